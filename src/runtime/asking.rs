//! Asks a store something and waits for its replies: for threads that have nothing else to do, with a bound on time and bytes.

use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use socket2::{SockAddr, Socket, Type};

use super::clock::Clock;
use crate::protocol::{ReplyScanner, encode};
use crate::values::Timestamp;

/// The shortest time that sockets are made to wait for.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// How much is read at once.
const CHUNK_BYTES: usize = 4096;

/// Weir's own credentials at a store: user name (if any) and password.
pub(super) type Credentials = (Option<String>, String);

/// What is sent, how many replies stand before those that count, and how many of those there are.
pub(super) struct Question {
    bytes: Vec<u8>,
    before: usize,
    wanted: usize,
    bytes_max: usize,
}

impl Question {
    /// Requests that are asked together. What is answered may have so many bytes.
    pub fn new(credentials: Option<&Credentials>, requests: &[&[&str]], bytes_max: usize) -> Self {
        let mut bytes = Vec::new();
        if let Some((user, password)) = credentials {
            let words = ["AUTH"].into_iter().chain(user.as_deref()).chain([password.as_str()]);
            let words: Vec<&[u8]> = words.map(str::as_bytes).collect();
            encode::request(&mut bytes, words.into_iter());
        }
        for request in requests {
            encode::request(&mut bytes, request.iter().map(|word| word.as_bytes()));
        }
        Self { bytes, before: usize::from(credentials.is_some()), wanted: requests.len(), bytes_max }
    }
}

/// The replies, in their order.
pub(super) fn ask(
    address: &SockAddr,
    question: &Question,
    clock: Clock,
    deadline: Timestamp,
) -> io::Result<Vec<Vec<u8>>> {
    let left = || match deadline.since(clock.now().monotonic) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        // What is rounded down to nothing would mean to wait for ever.
        left => Ok(left.max(TIMEOUT_MIN)),
    };
    let mut socket = Socket::new(address.domain(), Type::STREAM.cloexec(), None)?;
    socket.connect_timeout(address, left()?)?;
    socket.set_write_timeout(Some(left()?))?;
    socket.write_all(&question.bytes)?;
    let mut answer = Answer::new(question);
    let mut chunk = [0; CHUNK_BYTES];
    while !answer.is_whole() {
        socket.set_read_timeout(Some(left()?))?;
        let length = socket.read(&mut chunk)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.take(&chunk[..length])?;
    }
    Ok(answer.replies)
}

/// Replies as they come in.
struct Answer {
    scanner: ReplyScanner,
    /// Of the reply that comes in.
    bytes: Vec<u8>,
    taken: usize,
    bytes_max: usize,
    before: usize,
    wanted: usize,
    replies: Vec<Vec<u8>>,
}

impl Answer {
    fn new(question: &Question) -> Self {
        let Question { before, wanted, bytes_max, .. } = *question;
        let (scanner, bytes, replies) = (ReplyScanner::default(), Vec::new(), Vec::new());
        Self { scanner, bytes, taken: 0, bytes_max, before, wanted, replies }
    }

    fn is_whole(&self) -> bool {
        self.replies.len() == self.wanted
    }

    /// More bytes.
    fn take(&mut self, mut chunk: &[u8]) -> io::Result<()> {
        self.taken += chunk.len();
        if self.taken > self.bytes_max {
            return Err(io::ErrorKind::InvalidData.into());
        }
        while !chunk.is_empty() && !self.is_whole() {
            let scanned = self.scanner.scan(chunk).map_err(|_| io::ErrorKind::InvalidData)?;
            let (part, rest) = chunk.split_at(scanned.map_or(chunk.len(), |scanned| scanned.end));
            self.bytes.extend_from_slice(part);
            chunk = rest;
            if scanned.is_none() {
                continue;
            }
            let whole = std::mem::take(&mut self.bytes);
            if self.before == 0 {
                self.replies.push(whole);
            } else {
                self.before -= 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 64 * 1024;

    fn question(credentials: Option<&Credentials>) -> Question {
        Question::new(credentials, &[&["INFO", "server"], &["PING"]], BYTES_MAX)
    }

    /// The replies in bytes that arrive in pieces of this length; nothing if more of them is to come.
    fn read(question: &Question, bytes: &[u8], piece: usize) -> io::Result<Option<Vec<Vec<u8>>>> {
        let mut answer = Answer::new(question);
        for part in bytes.chunks(piece) {
            answer.take(part)?;
        }
        Ok(answer.is_whole().then_some(answer.replies))
    }

    #[test]
    fn an_answer_is_read_in_whatever_pieces_it_comes() {
        let replies: [&[u8]; 2] = [b"$35\r\n# Server\r\nredis_version:7.0.15\r\nx:1\r\n", b"+PONG\r\n"];
        let plain = replies.concat();
        let signed_in = [b"+OK\r\n".as_slice(), &plain].concat();
        for piece in 1..=signed_in.len() {
            let expected = Some(replies.map(<[u8]>::to_vec).to_vec());
            assert_eq!(read(&question(None), &plain, piece).expect("replies"), expected);
            let credentials = Some((None, "p".to_owned()));
            assert_eq!(read(&question(credentials.as_ref()), &signed_in, piece).expect("replies"), expected);
        }
        assert_eq!(read(&question(None), &plain[..plain.len() - 1], 7).expect("replies"), None);
    }

    #[test]
    fn what_is_no_answer_ends_the_question() {
        assert!(read(&question(None), b"HTTP/1.1 400 Bad Request\r\n", 5).is_err());
        let endless = [b"$100000000\r\n".as_slice(), &vec![b'x'; BYTES_MAX]].concat();
        assert!(read(&question(None), &endless, CHUNK_BYTES).is_err(), "no more is held than the bound");
    }

    #[test]
    fn credentials_go_before_the_question() {
        let bytes = |credentials: Option<Credentials>| {
            String::from_utf8(question(credentials.as_ref()).bytes).expect("text")
        };
        let asked = "*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n*1\r\n$4\r\nPING\r\n";
        assert_eq!(bytes(None), asked);
        assert_eq!(bytes(Some((None, "p".to_owned()))), format!("*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n{asked}"));
        let both = Some((Some("u".to_owned()), "p".to_owned()));
        assert_eq!(bytes(both), format!("*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$1\r\np\r\n{asked}"));
    }
}
