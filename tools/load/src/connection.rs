//! A connection to the target: the requests in flight on it, and the bytes that it has to send.

use std::collections::VecDeque;
use std::time::Duration;

use super::classify::{Ending, ErrorWithin, classify, error_text, first_word, may_have_happened};
use super::template::Draw;
use weir::protocol::reply::MalformedReply;
use weir::protocol::{BufferPool, Output, ReplyScanner, Segment};
use weir::values::Timestamp;
use weir_client::Sent;

/// Maximum number of bytes that are kept of an error reply, of the first error within a reply, or of a reply that comes
/// in pieces: enough to classify it.
const HEAD_BYTES: usize = 512;
/// Maximum number of bytes of an error reply that a message to the user shows.
const SHOWN_BYTES: usize = 128;
/// Maximum number of requests without a reply on one connection, including those that were given up as timed
/// out. At this number no more are sent.
const PENDING_MAX: usize = 65_536;
const REST_MIN: Duration = Duration::from_millis(50);
const REST_MAX: Duration = Duration::from_secs(1);

/// A request of the load, or of the set-up commands that fill the store before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The time at which the request was due by the schedule; its latency counts from here.
    pub intended: Timestamp,
    pub draw: Draw,
    pub phase: u16,
    /// The number of earlier attempts at the same request.
    pub attempt: u8,
    /// The client library's record of this attempt; `None` for naive clients (which retry at once) and for
    /// set-up requests.
    pub sent: Option<Sent>,
    /// The index of the set-up command that the request belongs to, in the plan's list; `None` for a request
    /// of the load.
    pub setup: Option<u16>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    request: Request,
    sent: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The connection is closed, and connects again at the given time.
    Resting(Timestamp),
    Opening(Timestamp),
    /// Connected; the field is the number of replies to greeting commands (AUTH, HELLO, QOS SET) that have
    /// not come yet.
    Greeting(usize),
    Ready,
}

/// The thing that a reply answers: a greeting command, a request, or nothing.
pub(super) enum Answered {
    Greeting,
    /// The reply answers this request, which has not been given up as timed out.
    Request(Request),
    /// The reply answers a request that has been given up as timed out before.
    GivenUp,
    /// The reply answers no request: the target sent it without being asked.
    Nothing,
}

pub(super) struct Connection {
    pub group: u16,
    /// The number of the connection within its group of clients, counted over all threads.
    pub number: usize,
    pub state: State,
    /// The number of sockets that this connection has lost, by which late events of an earlier socket are
    /// recognised and ignored.
    pub generation: u32,
    pub output: Output,
    pub sending: bool,
    /// True while the connection is in the run's list of connections with bytes to send.
    pub listed: bool,
    /// True while the connection is in its group's list of connections that may have room for further
    /// requests.
    pub offered: bool,
    /// True if the target answered a greeting command (AUTH, HELLO, QOS SET) with an error.
    pub turned_away: bool,
    scanner: ReplyScanner,
    /// The first bytes of the reply, if it is an error or comes in pieces. Of a reply of several values, such as an
    /// array, those of the first error within it.
    head: Vec<u8>,
    /// The finder of that error, if the reply has several values; `None` for a reply of one value.
    error_within: Option<ErrorWithin>,
    pending: VecDeque<Pending>,
    /// The number of requests, the oldest ones in `pending`, that were given up as timed out; their replies
    /// are ignored.
    given_up: usize,
    rest: Duration,
}

impl Connection {
    pub fn new(group: u16, number: usize) -> Self {
        Self {
            group,
            number,
            state: State::Resting(Timestamp::ZERO),
            generation: 0,
            output: Output::default(),
            sending: false,
            listed: false,
            offered: false,
            turned_away: false,
            scanner: ReplyScanner::default(),
            head: Vec::new(),
            error_within: None,
            pending: VecDeque::new(),
            given_up: 0,
            rest: REST_MIN,
        }
    }

    pub fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// Returns the number of requests that may be sent on the connection now, with at most `pipeline` in
    /// flight.
    pub fn room(&self, pipeline: usize) -> usize {
        if self.is_ready() && self.pending.len() < PENDING_MAX {
            pipeline.saturating_sub(self.pending.len() - self.given_up)
        } else {
            0
        }
    }

    /// Returns the number of requests in flight, without those that have been given up as timed out.
    pub fn waiting(&self) -> usize {
        self.pending.len() - self.given_up
    }

    /// Marks the connection as connected, and makes it wait for the replies to `commands` greeting commands
    /// (AUTH, HELLO, QOS SET); with none, it is ready at once.
    pub fn greet(&mut self, commands: usize) {
        self.state = if commands == 0 { State::Ready } else { State::Greeting(commands) };
        self.note_ready();
    }

    fn note_ready(&mut self) {
        if self.is_ready() {
            self.rest = REST_MIN;
        }
    }

    /// Records a request that was written to the output at `now`, so that its reply is expected.
    pub fn push(&mut self, request: Request, now: Timestamp) {
        self.pending.push_back(Pending { request, sent: now });
    }

    /// Scans further bytes of the current reply. If it ends within `bytes`, returns how many of them belong
    /// to it, and the way in which its request ended: with the first error within it, if it is an array with errors.
    /// `None` if it does not end. An error if the bytes are no RESP.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Option<(usize, Ending)>, MalformedReply> {
        let midway = self.scanner.is_midway();
        if !midway {
            self.head.clear();
            self.error_within = ErrorWithin::begin(bytes);
        }
        let end = self.scanner.scan(bytes)?.map(|scanned| scanned.end);
        let reply = &bytes[..end.unwrap_or(bytes.len())];
        let told = match &mut self.error_within {
            Some(error_within) => error_within.scan(reply),
            None => reply,
        };
        // Of a reply that was served and came in one piece, nothing is kept.
        let is_in_pieces = midway || end.is_none();
        if is_in_pieces || classify(told) != Ending::Served {
            self.keep_head(told);
        }
        Ok(end.map(|end| (end, classify(&self.head))))
    }

    /// Returns the text of the reply that was scanned last, if that is an error, or of the first error within it, if it
    /// is an array with errors. The text is cut off after 512 bytes, and meaningless after any other reply.
    pub fn error(&self) -> &[u8] {
        error_text(&self.head)
    }

    /// Returns the text of the error reply that was scanned last, at most 128 bytes, for messages to the user.
    pub fn error_text(&self) -> String {
        let shown = &self.error()[..self.error().len().min(SHOWN_BYTES)];
        String::from_utf8_lossy(shown).trim_end().to_owned()
    }

    /// Returns the first word of the error reply that was scanned last, which names the kind of error.
    pub fn error_kind(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(first_word(&self.head))
    }

    /// True if a request that ended so (`ending`), with the reply that was scanned last, was not served and may have
    /// been carried out nevertheless: the error says so, or the reply is an array, whose other parts may be no errors.
    pub fn may_have_happened(&self, ending: Ending) -> bool {
        ending != Ending::Served && (self.error_within.is_some() || may_have_happened(self.error()))
    }

    fn keep_head(&mut self, bytes: &[u8]) {
        let room = HEAD_BYTES.saturating_sub(self.head.len());
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Handles a complete reply, and returns what it answers: a greeting command, a request, or nothing.
    pub fn answered(&mut self) -> Answered {
        if let State::Greeting(left) = self.state {
            self.state = if left == 1 { State::Ready } else { State::Greeting(left - 1) };
            self.note_ready();
            return Answered::Greeting;
        }
        match self.pending.pop_front() {
            None => Answered::Nothing,
            Some(_) if self.given_up > 0 => {
                self.given_up -= 1;
                Answered::GivenUp
            }
            Some(pending) => Answered::Request(pending.request),
        }
    }

    /// Gives up the oldest request in flight that has not been given up, if it was sent before
    /// `sent_before`, and returns it; else `None`.
    pub fn give_up(&mut self, sent_before: Timestamp) -> Option<Request> {
        let pending = self.pending.get(self.given_up).filter(|pending| pending.sent < sent_before)?;
        self.given_up += 1;
        Some(pending.request)
    }

    /// Resets the connection after its socket was lost, and plans to connect again after a pause that doubles
    /// from 50 ms up to 1 s. Returns the requests that were in flight and not given up.
    pub fn lose(&mut self, now: Timestamp, pool: &mut BufferPool) -> impl Iterator<Item = Request> + use<> {
        self.generation = self.generation.wrapping_add(1);
        self.state = State::Resting(now.after(self.rest));
        self.rest = (self.rest * 2).min(REST_MAX);
        self.output.clear(pool);
        self.sending = false;
        self.scanner = ReplyScanner::default();
        self.head.clear();
        let given_up = std::mem::take(&mut self.given_up);
        std::mem::take(&mut self.pending).into_iter().skip(given_up).map(|pending| pending.request)
    }

    /// Returns the next segment of bytes to send, and marks the connection as sending; `None` while one is
    /// being sent, or if there are none.
    pub fn segment(&mut self) -> Option<Segment> {
        let segment = if self.sending { None } else { self.output.take() };
        self.sending |= segment.is_some();
        segment
    }

    /// Removes and returns the requests in flight that have not been given up as timed out, at the end of
    /// the run.
    pub fn drain(&mut self) -> impl Iterator<Item = Request> + use<> {
        let given_up = std::mem::take(&mut self.given_up);
        std::mem::take(&mut self.pending).into_iter().skip(given_up).map(|pending| pending.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(sequence: u64) -> Request {
        let draw = Draw { seed: 0, sequence };
        Request { intended: Timestamp::ZERO, draw, phase: 0, attempt: 0, sent: None, setup: None }
    }

    fn ready() -> Connection {
        let mut connection = Connection::new(0, 0);
        connection.greet(0);
        connection
    }

    #[test]
    fn the_head_of_a_reply_in_pieces() {
        let mut connection = ready();
        for piece in [&b"-THR"[..], b"OTTLED sc"] {
            assert_eq!(connection.scan(piece).expect("well-formed"), None);
        }
        assert_eq!(connection.scan(b"ope\r\n+OK\r\n"), Ok(Some((5, Ending::Throttled))));
        assert_eq!(connection.scan(b"+OK\r\n"), Ok(Some((5, Ending::Served))));
        assert_eq!(connection.scan(b"-ERR no such thing\r\n"), Ok(Some((20, Ending::Error))));
        assert_eq!(connection.scan(b"-OVERLOADED retry_after_ms=5\r\n"), Ok(Some((30, Ending::Overloaded))));
        assert_eq!(connection.error(), b"OVERLOADED retry_after_ms=5\r\n");
        assert_eq!(connection.scan(b"-ERR no such thing\r\n"), Ok(Some((20, Ending::Error))));
        assert_eq!(
            (connection.error_text().as_str(), &*connection.error_kind()),
            ("ERR no such thing", "ERR")
        );
    }

    #[test]
    fn an_array_with_errors_ends_as_the_first_of_them() {
        let values = b"*3\r\n$1\r\na\r\n-UNAVAILABLE backend=b reason=ejected\r\n-LOADING x\r\n";
        let mut connection = ready();
        for step in 1..=values.len() {
            let mut pieces: Vec<&[u8]> = values.chunks(step).collect();
            let last = pieces.pop().expect("there is one");
            for piece in pieces {
                assert_eq!(connection.scan(piece), Ok(None));
            }
            assert_eq!(connection.scan(last), Ok(Some((last.len(), Ending::Unavailable))), "step {step}");
            assert_eq!(connection.error(), b"UNAVAILABLE backend=b reason=ejected\r\n");
            assert!(connection.may_have_happened(Ending::Unavailable));
        }
        assert_eq!(connection.scan(b"*2\r\n+OK\r\n+-\r\n"), Ok(Some((13, Ending::Served))));
        let error = b"-UNAVAILABLE backend=b reason=ejected\r\n";
        assert_eq!(connection.scan(error), Ok(Some((error.len(), Ending::Unavailable))));
        assert!(!connection.may_have_happened(Ending::Unavailable));
    }

    #[test]
    fn a_request_that_was_given_up_makes_room_and_its_reply_is_not_counted() {
        let mut connection = ready();
        connection.push(request(1), Timestamp::from_millis(1));
        connection.push(request(2), Timestamp::from_millis(5));
        assert_eq!(connection.room(2), 0);
        assert_eq!(connection.give_up(Timestamp::from_millis(3)), Some(request(1)));
        assert_eq!(connection.give_up(Timestamp::from_millis(3)), None);
        assert_eq!((connection.room(2), connection.waiting()), (1, 1));
        assert!(matches!(connection.answered(), Answered::GivenUp));
        assert!(matches!(connection.answered(), Answered::Request(answered) if answered == request(2)));
        assert!(matches!(connection.answered(), Answered::Nothing));
    }

    #[test]
    fn a_lost_connection_gives_back_what_was_waited_for_and_rests_longer_each_time() {
        let mut connection = ready();
        let mut pool = BufferPool::new(1);
        connection.push(request(1), Timestamp::ZERO);
        connection.push(request(2), Timestamp::from_millis(9));
        connection.give_up(Timestamp::from_millis(1));
        let lost: Vec<Request> = connection.lose(Timestamp::ZERO, &mut pool).collect();
        assert_eq!(lost, [request(2)]);
        assert_eq!(connection.state, State::Resting(Timestamp::from_millis(50)));
        assert_eq!(connection.lose(Timestamp::ZERO, &mut pool).count(), 0);
        assert_eq!(connection.state, State::Resting(Timestamp::from_millis(100)));
    }
}
