//! Sends a few requests to a store and waits for the replies, blocking the calling thread, with a bound on time
//! and bytes. Used by threads that have nothing else to do meanwhile, and never by a shard's.

use std::io::{self, Read as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use socket2::{Socket, Type};

use super::clock::Clock;
use super::connect::Spot;
use super::tls::{Line, StoreTls, is_interruption};
use crate::protocol::{ReplyScanner, encode};
use crate::values::Timestamp;

/// The shortest timeout that is set for a socket to a store, because a timeout of zero would mean to wait for
/// ever.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// The stack size, in bytes, of a short-lived thread that sends requests to stores.
const STACK_BYTES: usize = 256 * 1024;
/// The size of one read from a store's connection, in bytes.
const CHUNK_BYTES: usize = 16 * 1024;

/// The credentials with which weir authenticates (`AUTH`) to a store: user name, if any, and password.
pub(super) type Credentials = (Option<String>, String);

/// Encoded requests for a store, the number of replies that are dropped before the wanted ones (1, that to
/// `AUTH`, or 0), the number of wanted replies, and a bound on the bytes of all replies together.
pub(super) struct Question {
    bytes: Vec<u8>,
    before: usize,
    wanted: usize,
    bytes_max: usize,
}

impl Question {
    /// Encodes `requests` to a store, each a list of words, preceded by `AUTH` if there are credentials. All
    /// replies together may have at most `bytes_max` bytes.
    pub fn new(credentials: Option<&Credentials>, requests: &[&[&str]], bytes_max: usize) -> Self {
        let mut bytes = Vec::new();
        if let Some(credentials) = credentials {
            sign_in(&mut bytes, credentials);
        }
        for request in requests {
            encode::request(&mut bytes, request.iter().map(|word| word.as_bytes()));
        }
        Self { bytes, before: usize::from(credentials.is_some()), wanted: requests.len(), bytes_max }
    }
}

/// Appends an `AUTH` request with these credentials (user name, if any, and password) to `out`.
pub(super) fn sign_in(out: &mut Vec<u8>, (user, password): &Credentials) {
    let words = ["AUTH"].into_iter().chain(user.as_deref()).chain([password.as_str()]);
    let words: Vec<&[u8]> = words.map(str::as_bytes).collect();
    encode::request(out, words.into_iter());
}

/// Calls `ask` with each of `items` (stores, for instance), from at most `at_once` short-lived threads named
/// `name`, and passes each result to `take` as it comes, in any order. At most one result per thread is held,
/// and a store that does not reply holds up one thread only. If no thread can be started, `ask` is never
/// called.
pub(super) fn ask_each<T: Sync, A: Send>(
    (name, at_once): (&str, usize),
    items: &[T],
    ask: impl Fn(&T) -> A + Sync,
    take: impl FnMut(A),
) {
    let (next, ask) = (&AtomicUsize::new(0), &ask);
    let (sender, answers) = mpsc::sync_channel(0);
    thread::scope(|scope| {
        for _ in 0..items.len().min(at_once) {
            let sender = sender.clone();
            let ask_some = move || {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if sender.send(ask(item)).is_err() {
                        return;
                    }
                }
            };
            let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
            // If a thread cannot be started, the others ask all items, which takes longer.
            let _ = thread.spawn_scoped(scope, ask_some);
        }
        drop(sender);
        answers.into_iter().for_each(take);
    });
}

/// Opens a connection to a store, with TLS if `tls` is given, sends the requests in `question`, and returns
/// their replies in order, without the reply to `AUTH`. Fails at the deadline.
pub(super) fn ask(
    spot: &Spot,
    tls: Option<&StoreTls>,
    question: &Question,
    clock: Clock,
    deadline: Timestamp,
) -> io::Result<Vec<Vec<u8>>> {
    ask_on(&mut connect(spot, tls, clock, deadline)?, question, clock, deadline)
}

/// Sends the requests in `question` on an open connection to a store, and returns their replies in order,
/// without the reply to `AUTH`. Fails at the deadline.
pub(super) fn ask_on(
    line: &mut Line,
    question: &Question,
    clock: Clock,
    deadline: Timestamp,
) -> io::Result<Vec<Vec<u8>>> {
    send(line, &question.bytes, clock, deadline)?;
    let replies = question.before + question.wanted;
    let told = receive(line, (replies, question.bytes_max), clock, deadline)?;
    Ok(apart(&told).skip(question.before).map(<[u8]>::to_vec).collect())
}

/// Opens a connection to a store, with TLS if `tls` is given, or fails at the deadline. A TLS handshake
/// happens later, with the first bytes that are sent.
pub(super) fn connect(
    spot: &Spot,
    tls: Option<&StoreTls>,
    clock: Clock,
    deadline: Timestamp,
) -> io::Result<Line> {
    let session = tls.map(|tls| tls.session(&spot.host)).transpose().map_err(io::Error::other)?;
    let socket = Socket::new(spot.address.domain(), Type::STREAM.cloexec(), None)?;
    socket.connect_timeout(&spot.address, left(clock, deadline)?)?;
    if spot.address.is_ipv4() || spot.address.is_ipv6() {
        socket.set_tcp_nodelay(true)?;
    }
    Ok(Line::new(socket, session))
}

/// Splits received bytes (`told`) into the RESP replies that they consist of; an incomplete last one is left
/// out.
fn apart(mut told: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let scanned = ReplyScanner::default().scan(told).ok().flatten()?;
        let (reply, rest) = told.split_at(scanned.end);
        told = rest;
        Some(reply)
    })
}

/// Sends all bytes on a connection to a store, or fails at the deadline.
pub(super) fn send(line: &mut Line, bytes: &[u8], clock: Clock, deadline: Timestamp) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        line.set_timeout(left(clock, deadline)?)?;
        match line.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => rest = &rest[sent..],
            Err(error) if is_interruption(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Receives exactly `replies` whole RESP replies from a store and returns their bytes. Fails at the deadline,
/// if the connection ends, if a reply is not valid, if the replies have more than `bytes_max` bytes together,
/// and if more replies come.
pub(super) fn receive(
    line: &mut Line,
    (replies, bytes_max): (usize, usize),
    clock: Clock,
    deadline: Timestamp,
) -> io::Result<Vec<u8>> {
    let mut replies =
        Replies { scanner: ReplyScanner::default(), bytes: Vec::new(), missing: replies, bytes_max };
    let mut chunk = [0; CHUNK_BYTES];
    while replies.missing > 0 {
        line.set_timeout(left(clock, deadline)?)?;
        match line.read(&mut chunk) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(length) => replies.take(&chunk[..length])?,
            Err(error) if is_interruption(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(replies.bytes)
}

/// Returns the time left until the deadline, at least a millisecond, as a timeout for a socket; an error if the
/// deadline has passed.
pub(super) fn left(clock: Clock, deadline: Timestamp) -> io::Result<Duration> {
    match deadline.since(clock.now().monotonic) {
        Duration::ZERO => Err(io::Error::new(io::ErrorKind::TimedOut, "it did not answer in time")),
        // A timeout that is rounded down to zero would mean to wait for ever.
        left => Ok(left.max(TIMEOUT_MIN)),
    }
}

/// Replies of a store that are being received: the bytes so far, the number of replies that are still missing,
/// and the maximum number of bytes of all replies together.
struct Replies {
    scanner: ReplyScanner,
    bytes: Vec<u8>,
    missing: usize,
    bytes_max: usize,
}

impl Replies {
    fn take(&mut self, mut chunk: &[u8]) -> io::Result<()> {
        let nonsense = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        if self.bytes.len() + chunk.len() > self.bytes_max {
            return Err(nonsense("its reply is too long"));
        }
        self.bytes.extend_from_slice(chunk);
        while !chunk.is_empty() {
            if self.missing == 0 {
                return Err(nonsense("it sent more replies than requests"));
            }
            let scanned = self.scanner.scan(chunk).map_err(|_| nonsense("its reply is not valid"))?;
            let Some(scanned) = scanned else { return Ok(()) };
            self.missing -= 1;
            chunk = &chunk[scanned.end..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 64 * 1024;

    fn take(replies: usize, bytes: &[u8], piece: usize) -> io::Result<usize> {
        let (scanner, bytes_max) = (ReplyScanner::default(), BYTES_MAX);
        let mut taken = Replies { scanner, bytes: Vec::new(), missing: replies, bytes_max };
        bytes.chunks(piece).try_for_each(|part| taken.take(part))?;
        Ok(taken.missing)
    }

    #[test]
    fn answers_are_read_in_whatever_pieces_they_come() {
        let answer = b":0\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n:5\r\n";
        for piece in 1..=answer.len() {
            assert_eq!(take(3, answer, piece).expect("replies"), 0);
            assert_eq!(take(4, answer, piece).expect("replies"), 1);
            assert!(take(2, answer, piece).is_err(), "more than was asked for");
        }
        assert_eq!(apart(answer).collect::<Vec<_>>().concat(), answer);
        assert_eq!(apart(answer).count(), 3);
    }

    #[test]
    fn no_more_is_held_than_the_bound() {
        assert!(take(1, b"HTTP/1.1 400 Bad Request\r\n", 5).is_err());
        let endless = [b"$100000000\r\n".as_slice(), &vec![b'x'; BYTES_MAX]].concat();
        assert!(take(1, &endless, CHUNK_BYTES).is_err());
    }

    #[test]
    fn credentials_go_before_the_question() {
        let bytes = |credentials: Option<Credentials>| {
            let requests: [&[&str]; 2] = [&["INFO", "server"], &["PING"]];
            let question = Question::new(credentials.as_ref(), &requests, BYTES_MAX);
            (String::from_utf8(question.bytes).expect("text"), question.before, question.wanted)
        };
        let asked = "*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n*1\r\n$4\r\nPING\r\n";
        assert_eq!(bytes(None), (asked.to_owned(), 0, 2));
        let password = bytes(Some((None, "p".to_owned())));
        assert_eq!(password, (format!("*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n{asked}"), 1, 2));
        let both = bytes(Some((Some("u".to_owned()), "p".to_owned())));
        assert_eq!(both.0, format!("*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$1\r\np\r\n{asked}"));
    }
}
