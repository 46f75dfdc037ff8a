//! A connection to a backend. All requests of this shard to one database of the backend, in one RESP version and on one
//! track (usual, expensive, or to a replica), share it; if there are several, those of one part of the slots.
//!
//! ```text
//!   Closed ──first request──> Opening ──connected──> Greeting ──answered──> Open
//!     ^                          │ failed              │                     │ lost, malformed, silent too long
//!     └──── time is over ── BackingOff <───────────────┴─────────────────────┘ (a lost one is tried again at once)
//! ```
//!
//! The greeting logs in, asks for the store's name of the connection, and kills connections that weir gave up
//! (`fence.rs`). Requests are sent when all of it is answered, so every connection that carries requests can
//! be named to the store later.
//!
//! Replies come in the order of requests, so the oldest unanswered request owns the next reply. When the
//! connection is lost, it is not known which of them were carried out.

use std::collections::VecDeque;
use std::time::Duration;

use crate::protocol::{BufferPool, Output, Protocol, ReplyScanner, Segment};
use crate::shard::fence::StoreClient;
use crate::shard::pending::{Pending, whole};
use crate::shard::refusal::reasoned_abort;
use crate::shard::request::Track;
use crate::values::limits::{LINK_OUTPUT_BYTES_MAX, LINK_PENDING_MAX, STEP_ERROR_BYTES_MAX};
use crate::values::{BackendId, Database, ShardId, Tier, Timestamp};

/// State of a connection to a backend. Requests open it where it is closed, wait in its output while it is
/// connected and greeted, are sent once it is open, and are refused during the pause after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The connection is closed; the next request opens it.
    Closed,
    /// The socket is being connected; requests wait in the output.
    Opening { since: Timestamp },
    /// The greeting (the requests that open a connection) is being answered; requests wait in the output.
    Greeting { since: Timestamp },
    /// The connection is open and greeted: requests are sent on it.
    Open,
    /// The last attempts failed; requests are refused until the given time, and the next one after it opens the
    /// connection.
    BackingOff { until: Timestamp },
}

/// The command of the greeting (the requests that open a connection) that an expected reply belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// The login, and the RESP version. An error closes the connection.
    Login,
    /// `READONLY`, without which a replica redirects every read to its primary. An error closes the
    /// connection.
    ReadOnly,
    /// `SELECT` of a database other than the first. An error closes the connection.
    Select,
    /// `CLIENT INFO`: the store's id and address for the connection, for a `CLIENT KILL` if it is given up.
    Identity,
    /// `CLIENT LIST ID` with the connection's own id, to a backend that may be a weir: its tier (importance).
    Tier,
    /// `QOS SET INFLIGHT WAIT`, to a backend that is a weir: it agrees to be sent deadlines.
    Terms,
    /// A fence: `CLIENT KILL` of a connection that weir has given up, by the shard that gave it up and the
    /// sequence number that this shard gave it.
    Fence(ShardId, u64),
}

/// Knowledge about a backend that is itself a weir, from its replies on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner {
    /// The tier (importance) that the other weir gives to this connection, the most important one that requests can
    /// have there. The least important one once the other weir has refused a request its tier.
    pub tier: Tier,
    /// True if the other weir has agreed to accept deadlines.
    pub takes_deadlines: bool,
}

/// One connection to a backend.
#[derive(Debug)]
pub struct Link {
    pub backend: BackendId,
    pub protocol: Protocol,
    /// The number of the database that the connection's requests use, chosen by `SELECT` when it opens.
    pub database: Database,
    /// The track (usual, expensive, or to replicas) whose requests the connection carries.
    pub track: Track,
    pub state: LinkState,
    /// Counts the sockets of this connection, so that an event of an earlier socket is not taken for one of
    /// the present socket.
    pub generation: u32,
    attempts: u32,
    /// True if the last attempt to open the connection failed because the store refuses the database.
    pub is_refused: bool,
    /// True if the store has turned the connection away since it was last open (`maxclients`, protected mode),
    /// which is logged once.
    pub is_turned_away: bool,
    /// Bytes of the greeting (the requests that open the connection: login, database, `CLIENT INFO`), until
    /// they are sent. `greetings` has the commands whose replies are expected.
    pub greeting: Vec<u8>,
    pub greetings: VecDeque<Greeting>,
    /// The store's id and address for this connection, by which later connections can have it killed; `None`
    /// if unknown.
    pub name: Option<StoreClient>,
    /// Knowledge about the backend if it is a weir; None for any other.
    pub inner: Option<Inner>,
    /// The number of fences (given-up connections that stores are to kill) that the shard knew of when a
    /// `CLIENT KILL` for each of those at this store was last sent over the connection; `u64::MAX` until the
    /// greeting has sent some.
    pub fenced: u64,
    /// Fences (each the `CLIENT KILL` of a connection that was given up) sent between requests and not
    /// answered yet, by origin and sequence number.
    pub fences: VecDeque<(ShardId, u64)>,
    pub output: Output,
    pub sending: bool,
    pub listed_to_send: bool,
    pub pending: VecDeque<Pending>,
    /// The number of unanswered requests below which another is sent without a closer look; 0 while the connection
    /// retires: it is opened anew for the next request once none is unanswered.
    pending_max: usize,
    /// True if the connection retires and takes no more requests until it is opened anew.
    is_held_up: bool,
    /// The number of entries, from the front of `greetings` while the connection is greeted and of `pending` once it is
    /// open, whose requests were handed to the socket at least in part, so that replies to them may come. A reply that
    /// comes when it is 0 answers no request.
    pub handed: usize,
    /// The number of costly requests (whose response times say nothing about others) among the connection's
    /// unanswered ones.
    pub costly_ahead: u32,
    /// Finds the ends of replies, and of push messages between them, which are dropped: no request on a shared
    /// connection asks for any.
    pub scanner: ReplyScanner,
    /// The time at which the backend last sent bytes over the connection, from which its silence is counted.
    pub heard_at: Timestamp,
    /// The first error among the replies to the requests of the transaction that is being answered, before its `EXEC`,
    /// without `-` and line end, at most 512 bytes. The reply to `EXEC` itself only says that there was one. None if
    /// there was no error.
    pub step_error: Option<Box<[u8]>>,
    /// The bytes received so far of a reply that is not complete yet.
    pub partial: Vec<u8>,
    /// The bytes dropped so far of a reply that is larger than permitted; an error takes its place. Zero
    /// otherwise.
    pub let_go: u64,
}

/// The number of failed attempts to connect that a refused `SELECT` counts as. It makes the pause long,
/// because each attempt to find out whether the store has the database by now costs the store a connection.
const ATTEMPTS_OF_REFUSED: u32 = 5;
/// The pause after the first failed attempt to connect.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// The longest pause after failed attempts to connect.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

impl Link {
    /// Creates a connection that is closed.
    pub fn new(backend: BackendId, protocol: Protocol, database: Database, track: Track) -> Self {
        Self {
            backend,
            protocol,
            database,
            track,
            state: LinkState::Closed,
            generation: 0,
            attempts: 0,
            is_refused: false,
            is_turned_away: false,
            greeting: Vec::new(),
            greetings: VecDeque::new(),
            name: None,
            inner: None,
            fenced: u64::MAX,
            fences: VecDeque::new(),
            output: Output::default(),
            sending: false,
            listed_to_send: false,
            pending: VecDeque::new(),
            pending_max: LINK_PENDING_MAX,
            is_held_up: false,
            handed: 0,
            costly_ahead: 0,
            scanner: ReplyScanner::with_pushes(),
            heard_at: Timestamp::ZERO,
            step_error: None,
            partial: Vec::new(),
            let_go: 0,
        }
    }

    /// True for a connection to a replica, which carries only reads.
    #[inline]
    pub fn is_for_replica(&self) -> bool {
        self.track == Track::Replica
    }

    /// Records that the socket is connected, so that the greeting (the requests that open a connection) is
    /// sent.
    pub fn connected(&mut self, now: Timestamp) {
        self.state = LinkState::Greeting { since: now };
    }

    /// Records that the store has answered the whole greeting (login, database and the like) on this
    /// connection, so that requests are sent from now on.
    pub fn opened(&mut self) {
        debug_assert!(self.greetings.is_empty(), "requests flow when all of it is answered");
        self.state = LinkState::Open;
        self.handed = 0;
        self.is_turned_away = false;
    }

    /// Takes the next bytes to send, None if there are none: of the greeting (the requests that open the
    /// connection) while it is greeted, of clients' requests once it is open. Records that requests were
    /// handed to the socket, so that replies to them may come.
    pub fn take_output(&mut self) -> Option<Segment> {
        let (segment, owed) = match self.state {
            LinkState::Open => (self.output.take(), self.pending.len()),
            _ => (Some(Segment::Gathered(std::mem::take(&mut self.greeting))), self.greetings.len()),
        };
        self.handed = owed;
        segment
    }

    /// True if an unanswered request, one of the greeting (the requests that open the connection) aside, was
    /// handed to the socket, so that the store may carry it out.
    pub fn has_sent(&self) -> bool {
        self.state == LinkState::Open && self.handed > 0
    }

    /// True if the connection has bytes that may be sent now: those of the greeting (the requests that open
    /// it) while it is greeted, those of clients' requests once it is open.
    pub fn has_output(&self) -> bool {
        match self.state {
            LinkState::Greeting { .. } => !self.greeting.is_empty(),
            LinkState::Open => !self.output.is_empty(),
            _ => false,
        }
    }

    /// True if the connection has bytes to send and is not in the list of such connections yet. Marks it as
    /// listed.
    #[inline]
    pub fn begin_list(&mut self) -> bool {
        let is_new = !self.sending && !self.listed_to_send && self.has_output();
        self.listed_to_send |= is_new;
        is_new
    }

    /// True if a request may be sent over the connection at once: it is open, has room and does not retire, and a
    /// `CLIENT KILL` for each given-up connection to its store was sent over it. `fences` is the number of connections
    /// that weir has given up so far, to any store, as far as this shard knows.
    #[inline]
    pub fn is_ready(&self, fences: u64) -> bool {
        self.state == LinkState::Open
            && self.fenced >= fences
            && self.pending.len() < self.pending_max
            && self.output.len() < LINK_OUTPUT_BYTES_MAX
    }

    /// True if the connection may take more requests: neither unanswered requests nor unsent bytes are at
    /// their limit (65,536 requests, 64 MiB), and it does not retire, or can be opened anew at once.
    pub fn has_room(&self) -> bool {
        let takes_more = !self.is_held_up || self.is_to_be_renewed();
        takes_more && self.pending.len() < LINK_PENDING_MAX && self.output.len() < LINK_OUTPUT_BYTES_MAX
    }

    /// Makes an open connection retire: it is opened anew for the next request once none is unanswered on it. If
    /// requests may wait (`may_wait`), it takes no more until then; otherwise it goes on taking requests, and is opened
    /// anew when a request comes while none happens to be unanswered.
    pub fn retire(&mut self, may_wait: bool) {
        if self.state == LinkState::Open {
            (self.pending_max, self.is_held_up) = (0, may_wait);
        }
    }

    /// Lets the connection take requests again after it retired (waited to be opened anew), because that
    /// happens now.
    pub fn end_retirement(&mut self) {
        (self.pending_max, self.is_held_up) = (LINK_PENDING_MAX, false);
    }

    /// True if the connection retires, no request is unanswered on it and no bytes are being sent, so that it is opened
    /// anew for the next request.
    pub fn is_to_be_renewed(&self) -> bool {
        self.pending_max == 0 && self.pending.is_empty() && !self.sending
    }

    /// Returns the number of bytes known to be missing of the reply that is being received; 0 if it is
    /// dropped or none is.
    pub fn missing(&self) -> usize {
        let wanted = !self.partial.is_empty() && self.let_go == 0 && self.greetings.is_empty();
        if wanted { self.scanner.missing() } else { 0 }
    }

    /// Returns the number of bytes known to be missing of the reply that is being received, as far as they are kept:
    /// a reply has at most `bytes_max`.
    pub fn missing_within(&self, bytes_max: usize) -> usize {
        self.missing().min(bytes_max.saturating_sub(self.partial.len()))
    }

    /// Records the reply to one request of a transaction before its `EXEC`; `kind` is the reply's first byte,
    /// and `end` has the bytes of it that came last, after those in `partial`. The first error is kept, up to
    /// 512 bytes of it, until the next `MULTI` is answered or [`Self::reasoned_abort`] takes it.
    pub fn record_step(&mut self, kind: u8, end: &[u8]) {
        let whole = whole(&self.partial, end);
        if kind == b'+' && *whole == *b"+OK\r\n" {
            self.step_error = None;
        } else if kind == b'-' && self.step_error.is_none() {
            let text =
                whole.strip_prefix(b"-").and_then(|line| line.strip_suffix(b"\r\n")).unwrap_or_default();
            self.step_error = Some(text[..text.len().min(STEP_ERROR_BYTES_MAX)].into());
        }
    }

    /// Returns the error that a client gets in place of `EXEC`'s reply, whose last bytes are `end` (earlier
    /// ones are in `partial`): it contains the error, taken from this connection, of the request for which
    /// the transaction was aborted. None if no error is kept, or if the store's reply contains one already or
    /// does not say that a transaction was aborted.
    pub fn reasoned_abort(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        let step_error = self.step_error.take()?;
        reasoned_abort(&whole(&self.partial, end), &step_error)
    }

    /// Returns the time since which the store owes a reply: from when the request was sent, or from the last
    /// bytes received if that is later. None if it owes none.
    pub fn owes_since(&self) -> Option<Timestamp> {
        let owed = match self.state {
            LinkState::Greeting { since } => Some(since),
            _ => self.pending.front().map(Pending::sent_at),
        };
        owed.map(|since| since.max(self.heard_at))
    }

    /// Returns the number of bytes of the reply whose last bytes are `end`: with those kept in `partial`, and
    /// those that were dropped.
    pub fn reply_bytes(&self, end: &[u8]) -> u64 {
        self.let_go.saturating_add((self.partial.len() + end.len()) as u64)
    }

    /// Records that the backend gave a reply, to the greeting (the requests that open the connection) or to a request:
    /// earlier failed attempts to connect no longer count, so a connection lost after this is opened again at once.
    pub fn handle_success(&mut self) {
        self.attempts = 0;
    }

    /// Records that the store refuses the connection's database, so that the next attempt comes after a long
    /// pause.
    pub fn handle_refused(&mut self) {
        self.attempts = ATTEMPTS_OF_REFUSED;
        self.is_refused = true;
    }

    /// Records that the store can carry out no request at present, or turns connections away, so that the next attempt
    /// comes after a pause.
    pub fn handle_not_ready(&mut self) {
        self.attempts = self.attempts.max(1);
    }

    /// Drops unsent bytes and all state that belongs to the socket, but not the pending requests. Returns how
    /// many replies to the greeting (the requests that open a connection) were owed.
    pub fn clear(&mut self, pool: &mut BufferPool) -> usize {
        self.output.clear(pool);
        pool.give(std::mem::take(&mut self.greeting));
        self.fences.clear();
        self.step_error = None;
        self.name = None;
        self.inner = None;
        self.fenced = u64::MAX;
        let owed = self.greetings.len();
        self.greetings.clear();
        self.handed = 0;
        owed
    }

    /// Handles the loss of the socket, and sets the pause before the next attempt: none if the socket was connected and
    /// no attempt has failed since the store last replied, else about 50 ms to 2 s, longer with each failed attempt.
    /// `spread` (a random byte) varies the pause by a quarter, so that many connections do not return in step.
    pub fn lost(&mut self, now: Timestamp, spread: u8) {
        let worked = matches!(self.state, LinkState::Open | LinkState::Greeting { .. });
        let pause = if self.attempts == 0 && worked {
            Duration::ZERO
        } else {
            BACKOFF_FIRST.saturating_mul(1 << self.attempts.min(10)).min(BACKOFF_MAX)
        };
        self.attempts = self.attempts.saturating_add(1);
        let jittered = pause.mul_f64(0.75 + f64::from(spread) / 512.0);
        self.state = if pause.is_zero() {
            LinkState::Closed
        } else {
            LinkState::BackingOff { until: now.after(jittered) }
        };
        self.sending = false;
        self.scanner = ReplyScanner::with_pushes();
        self.partial = Vec::new();
        self.let_go = 0;
    }

    /// Forgets failed attempts, and ends the pause after them: the address now leads to another server, for instance,
    /// or the server has another role.
    pub fn forget_failures(&mut self) {
        self.attempts = 0;
        if let LinkState::BackingOff { .. } = self.state {
            self.state = LinkState::Closed;
        }
    }

    /// Returns the time until the next attempt to open the connection is allowed; zero if it is now.
    pub fn pause_left(&self, now: Timestamp) -> Duration {
        match self.state {
            LinkState::BackingOff { until } => until.since(now),
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let mut link = Link::new(BackendId(0), Protocol::Resp2, Database::FIRST, Track::Usual);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            link.state = LinkState::Opening { since: Timestamp::ZERO };
            link.lost(Timestamp::ZERO, 128);
            pauses.push(link.pause_left(Timestamp::ZERO));
        }
        assert!(pauses.is_sorted());
        assert_eq!(pauses.first(), Some(&BACKOFF_FIRST));
        assert_eq!(pauses.last(), Some(&BACKOFF_MAX));
    }

    #[test]
    fn a_link_that_worked_is_tried_again_at_once() {
        let mut link = Link::new(BackendId(0), Protocol::Resp2, Database::FIRST, Track::Usual);
        link.state = LinkState::Opening { since: Timestamp::ZERO };
        link.lost(Timestamp::ZERO, 0);
        link.opened();
        link.handle_success();
        link.lost(Timestamp::ZERO, 0);
        assert_eq!(link.state, LinkState::Closed);
    }
}
