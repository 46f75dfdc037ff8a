//! The reply of a command, of limited length, while it is written. Once a part does not fit, that part and
//! all later ones are dropped.

use super::numbers;
use super::refusal::Refusal;
use crate::protocol::{Protocol, encode};

/// An upper bound of the bytes that any element of a reply takes besides its content: a type byte, the digits
/// of 64 bits, two line ends.
const FRAMING_BYTES: usize = 32;
/// Maximum number of bytes of the score of a sorted set's member in decimal.
const SCORE_BYTES_MAX: usize = 32;
/// An upper bound of the bytes that a sorted set's member takes in a reply besides the member itself: the header of a
/// nested pair, and the score as a bulk string.
const PAIR_BYTES: usize = b"*2\r\n$32\r\n\r\n".len() + SCORE_BYTES_MAX;
/// The capacity in bytes from which on a reply's buffer at most doubles, and does not grow beyond what the
/// limit of the reply allows.
const DOUBLING_BYTES_MIN: usize = 1024 * 1024;

/// A reply that is written at the end of a buffer, which may contain earlier replies.
pub(super) struct Reply<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    bytes_max: usize,
    /// The limit in bytes that the error about a too large reply states. For a command in a transaction this
    /// limit, which is that of the whole transaction, is larger than `bytes_max`, the bytes that the other
    /// commands leave.
    bytes_max_told: usize,
    /// Maximum number of bytes of an error reply in place of this reply; a longer text is replaced by a short
    /// one. Only a command in a transaction has such a limit.
    refusal_bytes_max: usize,
    over: bool,
}

impl<'a> Reply<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>, bytes_max: usize) -> Self {
        let start = out.len();
        Self { out, start, bytes_max, bytes_max_told: bytes_max, refusal_bytes_max: usize::MAX, over: false }
    }

    /// Returns a reply, still empty, for a command that runs within the command of this one (EXEC): a part of
    /// this reply. `reserve` bytes of the limit are left for the commands after it.
    pub(super) fn part(&mut self, reserve: usize) -> Reply<'_> {
        let left = self.bytes_max.saturating_sub(self.len() + reserve);
        Reply {
            start: self.out.len(),
            out: self.out,
            bytes_max: left,
            bytes_max_told: self.bytes_max_told,
            refusal_bytes_max: left,
            over: false,
        }
    }

    /// Returns the number of bytes of this reply that are written so far.
    pub(super) fn len(&self) -> usize {
        self.out.len() - self.start
    }

    /// True if the reply that was written so far is an error, which a script may reply without being refused.
    pub(super) fn is_error(&self) -> bool {
        self.out.get(self.start) == Some(&b'-')
    }

    /// Returns the text of a reply that is an error, without the leading minus and the line end.
    pub(super) fn error_text(&self) -> &[u8] {
        let text = self.out.get(self.start + 1..).unwrap_or_default();
        text.strip_suffix(b"\r\n").unwrap_or(text)
    }

    /// Returns an error if any part of the reply did not fit in the limit on a reply's bytes.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        if self.over { Err(Refusal::ReplyTooLarge(self.bytes_max_told)) } else { Ok(()) }
    }

    /// Returns an error if `bytes` more bytes of the reply and its headers would not fit in its limit, or if a part of
    /// the reply did not fit already. A command calls it before it changes anything.
    pub(super) fn expect(&self, bytes: usize) -> Result<(), Refusal> {
        let wanted = bytes.saturating_add(2 * FRAMING_BYTES);
        if self.over || wanted > self.bytes_max.saturating_sub(self.len()) {
            return Err(Refusal::ReplyTooLarge(self.bytes_max_told));
        }
        Ok(())
    }

    /// Replaces everything that the command has written with the error reply for `refusal`; in a transaction
    /// whose limit leaves no room for its text, with a short error.
    pub(super) fn refuse(&mut self, refusal: &Refusal) {
        self.out.truncate(self.start);
        let text = refusal.bytes();
        let fits = text.len() + FRAMING_BYTES <= self.refusal_bytes_max;
        encode::error_bytes(self.out, if fits { &text } else { b"ERR no room for this reply" });
    }

    /// Appends a simple string (`+text`) to the reply.
    pub(super) fn simple(&mut self, text: &str) {
        self.write(text.len(), |out| encode::simple(out, text));
    }

    pub(super) fn integer(&mut self, value: i64) {
        self.write(0, |out| encode::integer(out, value));
    }

    pub(super) fn bulk(&mut self, value: &[u8]) {
        self.write(value.len(), |out| encode::bulk(out, value));
    }

    pub(super) fn null(&mut self, protocol: Protocol) {
        self.write(0, |out| encode::null(out, protocol));
    }

    pub(super) fn null_array(&mut self, protocol: Protocol) {
        self.write(0, |out| encode::null_array(out, protocol));
    }

    pub(super) fn array(&mut self, count: usize) {
        self.write(0, |out| encode::array(out, count));
    }

    /// Appends the header of a push message with `count` elements: in RESP2, the header of an array.
    pub(super) fn push(&mut self, protocol: Protocol, count: usize) {
        self.write(0, |out| encode::push(out, protocol, count));
    }

    pub(super) fn map(&mut self, protocol: Protocol, pairs: usize) {
        self.write(0, |out| encode::map(out, protocol, pairs));
    }

    pub(super) fn set(&mut self, protocol: Protocol, count: usize) {
        self.write(0, |out| encode::set(out, protocol, count));
    }

    pub(super) fn verbatim(&mut self, protocol: Protocol, text: &str) {
        self.write(text.len(), |out| encode::verbatim(out, protocol, text));
    }

    /// Appends a reply of one line: the type byte `kind` and the text, in which line breaks become spaces.
    #[cfg(feature = "scripts")]
    pub(super) fn line(&mut self, kind: u8, text: &[u8]) {
        self.write(text.len(), |out| {
            out.push(kind);
            out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
            out.extend_from_slice(b"\r\n");
        });
    }

    /// Appends `text` as a verbatim string with the name of its format, which is cut or filled up with spaces
    /// to three letters; as a plain string, without the format, in RESP2.
    #[cfg(feature = "scripts")]
    pub(super) fn verbatim_in(&mut self, protocol: Protocol, format: &[u8], text: &[u8]) {
        self.write(text.len(), |out| match protocol {
            Protocol::Resp2 => encode::bulk(out, text),
            Protocol::Resp3 => {
                encode::header(out, b'=', text.len() + 4);
                out.extend((0..3).map(|at| format.get(at).copied().unwrap_or(b' ')));
                out.push(b':');
                out.extend_from_slice(text);
                out.extend_from_slice(b"\r\n");
            }
        });
    }

    /// Appends the score of a sorted set's member: a double in RESP3, a string in RESP2.
    pub(super) fn score(&mut self, protocol: Protocol, value: f64) {
        self.write(SCORE_BYTES_MAX, |out| write_score(out, protocol, value));
    }

    /// Appends a number that is a decimal text already: a double in RESP3, a string in RESP2.
    pub(super) fn decimal(&mut self, protocol: Protocol, text: &str) {
        self.write(text.len(), |out| match protocol {
            Protocol::Resp3 => {
                out.push(b',');
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Protocol::Resp2 => encode::bulk(out, text.as_bytes()),
        });
    }

    /// Inserts what `write` appends (such as an array's header) before the elements that begin at byte `at`
    /// of the reply. For a part whose content is known only after those elements are written.
    pub(super) fn insert(&mut self, at: usize, write: impl FnOnce(&mut Self)) {
        let before = self.out.len();
        write(self);
        let inserted = self.out.len() - before;
        self.out[self.start + at..].rotate_right(inserted);
    }

    fn write(&mut self, bytes: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let wanted = bytes.saturating_add(FRAMING_BYTES);
        if self.over || wanted > self.bytes_max.saturating_sub(self.len()) {
            self.over = true;
            return;
        }
        if self.out.capacity() - self.out.len() < wanted && self.out.capacity() >= DOUBLING_BYTES_MIN {
            let most = self.bytes_max - self.len();
            self.out.reserve_exact(self.out.len().clamp(wanted, most));
        }
        write(self.out);
    }
}

/// Returns the number of bytes that a bulk string of `length` bytes takes in a reply.
pub(super) fn bulk_bytes(length: usize) -> usize {
    let digits = length.checked_ilog10().unwrap_or(0) as usize + 1;
    length.saturating_add(b"$\r\n\r\n".len() + digits)
}

/// Returns an upper bound of the bytes that a sorted set's member of `length` bytes and its score take in a
/// reply of either RESP version, in a pair of their own or not.
pub(super) fn scored_bytes(length: usize) -> usize {
    bulk_bytes(length) + PAIR_BYTES
}

fn write_score(out: &mut Vec<u8>, protocol: Protocol, value: f64) {
    if protocol == Protocol::Resp3 {
        out.push(b',');
        numbers::write_float(out, value);
        out.extend_from_slice(b"\r\n");
        return;
    }
    // The number is spelled at the end of the reply first, because its length stands before it.
    let start = out.len();
    numbers::write_float(out, value);
    let mut spelled = [0; SCORE_BYTES_MAX];
    let length = out.len() - start;
    spelled[..length].copy_from_slice(&out[start..]);
    out.truncate(start);
    encode::bulk(out, &spelled[..length]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_beyond_the_bound_and_little_is_reserved_beyond_it() {
        const BYTES_MAX: usize = 10_000_000;
        let mut out = b"+earlier\r\n".to_vec();
        let mut reply = Reply::new(&mut out, BYTES_MAX);
        let value = vec![b'v'; 3_000];
        let mut written = 0;
        while reply.check().is_ok() {
            reply.bulk(&value);
            written += 1;
        }
        assert!((3_200..3_400).contains(&written), "{written}");
        assert!(reply.len() <= BYTES_MAX);
        reply.integer(1);
        assert_eq!(reply.check(), Err(Refusal::ReplyTooLarge(BYTES_MAX)));
        reply.refuse(&Refusal::ReplyTooLarge(BYTES_MAX));
        assert_eq!(out, b"+earlier\r\n-ERR the reply would be larger than 10000000 bytes\r\n");
        assert!(out.capacity() <= BYTES_MAX + 3_000 + 100, "{}", out.capacity());
    }

    #[test]
    fn what_comes_last_may_stand_first() {
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, 1_000);
        reply.integer(1);
        let at = reply.len();
        reply.bulk(b"a");
        reply.bulk(b"b");
        reply.insert(at, |reply| reply.array(2));
        assert_eq!(out, b":1\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n");
    }

    #[test]
    fn a_part_leaves_room_for_those_behind_it() {
        let mut out = Vec::new();
        let mut whole = Reply::new(&mut out, 300);
        whole.bulk(&[b'a'; 100]);
        let mut part = whole.part(100);
        assert_eq!(part.expect(100), Err(Refusal::ReplyTooLarge(300)));
        part.bulk(&[b'b'; 100]);
        assert_eq!(part.check(), Err(Refusal::ReplyTooLarge(300)));
        part.refuse(&Refusal::Syntax);
        let mut last = whole.part(0);
        last.bulk(&[b'c'; 100]);
        last.refuse(&Refusal::WrongType);
        assert!(out.ends_with(b"a\r\n-ERR syntax error\r\n-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"));
    }
}
