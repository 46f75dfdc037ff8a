//! Request decoder: RESP arrays of bulk strings and inline commands, in whatever pieces they arrive.
//!
//! A whole request inside one received chunk is read in place and never copied. An unfinished request at the
//! end of a chunk is copied once and kept, and parsing continues where it stopped, so that no input makes it
//! quadratic. A large request ends as shared [`Bytes`] that are passed on without being copied.

use bytes::Bytes;

use crate::protocol::{Argument, Arguments, Room, encode, header, room};
use crate::values::limits;

/// Limits on the size of one connection's requests. A request beyond one of them is a protocol error.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Maximum number of arguments of one request.
    pub arguments_max: usize,
    /// Maximum number of bytes of one argument.
    pub argument_bytes_max: usize,
    /// Maximum number of bytes of one request, its framing included.
    pub request_bytes_max: usize,
}

impl RequestLimits {
    /// Returns the limits on the size of requests of a client that has authenticated, or need not. An
    /// argument may have up to `request_bytes_max` bytes, and a request 4 KiB more.
    pub fn trusted(request_bytes_max: usize) -> Self {
        Self {
            arguments_max: limits::ARGUMENTS_MAX,
            argument_bytes_max: request_bytes_max,
            request_bytes_max: request_bytes_max + FRAMING_BYTES_SPARE,
        }
    }

    /// Returns limits on the size of requests that are never reached, for requests that weir itself has put
    /// together from bounded parts.
    pub fn assembled() -> Self {
        let bytes_max = usize::MAX / 4;
        Self { arguments_max: usize::MAX / 4, argument_bytes_max: bytes_max, request_bytes_max: bytes_max }
    }

    /// Returns the limits on the size of requests of a client that has not authenticated: just enough for
    /// `HELLO` and `AUTH`.
    pub fn stranger() -> Self {
        Self {
            arguments_max: limits::ARGUMENTS_MAX_UNAUTHENTICATED,
            argument_bytes_max: limits::ARGUMENT_BYTES_MAX_UNAUTHENTICATED,
            request_bytes_max: limits::ARGUMENTS_MAX_UNAUTHENTICATED
                * (limits::ARGUMENT_BYTES_MAX_UNAUTHENTICATED + FRAMING_BYTES_SPARE),
        }
    }

    fn is_stranger(&self) -> bool {
        self.arguments_max == limits::ARGUMENTS_MAX_UNAUTHENTICATED
    }
}

/// Number of bytes by which a request may be longer than the largest allowed argument: for its command name,
/// its key and the framing around them.
const FRAMING_BYTES_SPARE: usize = 4096;
/// Maximum number of bytes of a header line (`*3`, `$5`): a type byte and the digits of 64 bits. A longer
/// line is a protocol error.
const HEADER_BYTES_MAX: usize = 24;
/// Maximum capacity, in bytes, of the buffer of received bytes that a connection keeps between requests.
const HELD_BYTES_KEPT: usize = 4096;
/// Maximum number of argument positions for which a connection keeps memory between requests; memory for more
/// is freed.
const PLACES_KEPT: usize = 256;
/// Number of bytes of finished requests in a connection's buffer at which they are removed from it, if they
/// are at least half of its bytes: each byte is then moved at most once for each byte removed.
const DONE_BYTES_MAX: usize = 16 * 1024;

/// Error for received bytes that are not a request, or not one within the limits. The text is the error
/// reply, after which the connection is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolError(pub String);

impl ProtocolError {
    fn new(text: &str) -> Self {
        Self(format!("ERR Protocol error: {text}"))
    }
}

/// One whole request of a client, borrowed from the received chunk or from the decoder.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The words of the request, and the bytes in which it is forwarded.
    pub arguments: Arguments<'a>,
    /// The bytes of a large request (above 16 KiB) that did not come in one chunk, as shared bytes, so that
    /// they are not copied; `None` for most requests.
    pub shared: Option<&'a Bytes>,
}

/// The decoder of one client connection, which finds whole requests in the received bytes.
#[derive(Debug, Default)]
pub struct RequestDecoder {
    /// Bytes that were received and kept: first `held_done` bytes of requests that `next` has returned, then
    /// whole requests that it has still to return, and the unfinished one. Both parts begin at the start of a
    /// request. Empty while the caller has this buffer, to receive more bytes into it (from [`Self::lend`] to
    /// [`Self::take_back`]).
    held: Vec<u8>,
    /// Number of bytes at the start of the buffer `held` that belong to requests that `next` has already
    /// returned.
    held_done: usize,
    /// Bytes of the request that `next` returned last, if it was a large one.
    large: Option<Bytes>,
    /// The inline request that `next` returned last, rewritten as an array of bulk strings.
    canonical: Vec<u8>,
    places: Vec<Argument>,
    /// Offset, from the first byte of the unfinished request, at which parsing of it continues.
    position: usize,
    /// Number of arguments of the unfinished request that are still to come; none until its array header was
    /// parsed.
    arguments_left: Option<usize>,
    /// Offset, from the first byte of the unfinished request, at which the argument being received ends; 0 if
    /// unknown.
    awaited: usize,
    /// Capacity in bytes of the `held` buffer while the caller has it (from [`Self::lend`] to
    /// [`Self::take_back`]); 0 otherwise.
    lent_bytes: usize,
}

enum Progress {
    /// The request is whole; the field is its length in bytes.
    Finished(usize),
    /// The bytes begin with an empty array of this many bytes, which gets no reply.
    Nothing(usize),
    /// The bytes begin with a whole inline request (a line of text): its length without the line end, and the
    /// offset at which the next request starts.
    Inline { length: usize, next: usize },
    /// More bytes are needed until the request is whole.
    Unfinished,
}

/// The place of a whole request that was found among the bytes kept earlier.
#[derive(Clone, Copy)]
enum Found {
    /// The request is at the start of the kept bytes, has this length in bytes, and is large enough (above 16
    /// KiB) to be shared instead of copied.
    Large(usize),
    Held {
        start: usize,
        length: usize,
    },
    /// The request came as a line of text (inline) and has been rewritten as an array of bulk strings in
    /// `canonical`.
    Canonical,
}

impl RequestDecoder {
    /// Returns the next request from the bytes kept earlier and `chunk[*consumed..]`, and advances
    /// `consumed`. Skips empty arrays and blank lines, which get no reply. `None` if no whole request is
    /// left: then all of the chunk is consumed and the rest is kept. An error if the bytes are no request, or
    /// one beyond `limits`.
    #[expect(clippy::inline_always, reason = "every request: a call would be a third of it")]
    #[inline(always)]
    pub fn next<'a>(
        &'a mut self,
        chunk: &'a [u8],
        consumed: &mut usize,
        limits: &RequestLimits,
    ) -> Result<Option<Request<'a>>, ProtocolError> {
        let has_kept = !self.held.is_empty() || self.large.is_some();
        if has_kept && let Some(found) = self.next_held(chunk, consumed, limits)? {
            return Ok(Some(self.request(found)));
        }
        self.next_in_place(chunk, consumed, limits)
    }

    /// Finds the next request in the bytes that were kept earlier, to which bytes of `chunk[*consumed..]` are added as
    /// needed; advances `consumed`. `None` if no bytes are kept any more, or the whole chunk is consumed. An error if
    /// the bytes are no request, or one beyond `limits`.
    #[cold]
    fn next_held(
        &mut self,
        chunk: &[u8],
        consumed: &mut usize,
        limits: &RequestLimits,
    ) -> Result<Option<Found>, ProtocolError> {
        self.forget_done();
        while !self.held.is_empty() {
            let rest = &chunk[*consumed..];
            // If the length of the present argument is known, only its bytes are held: later bytes are parsed
            // in place.
            let length = match self.missing() {
                0 => rest.len(),
                missing => missing.min(rest.len()),
            };
            self.held.extend_from_slice(&rest[..length]);
            *consumed += length;
            let found = self.find_held(limits)?;
            if found.is_some() || *consumed == chunk.len() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Takes the positions of the arguments of the request that `next` returned last, for a caller that keeps
    /// the request.
    pub fn take_places(&mut self) -> Vec<Argument> {
        std::mem::take(&mut self.places)
    }

    /// Keeps the rest of a chunk of received bytes for later, because no further request of the connection
    /// may be handled now.
    pub fn hold(&mut self, rest: &[u8]) {
        self.forget_done();
        // If more bytes keep coming than are taken out, the buffer never empties, so its used front is
        // dropped here.
        if self.held_done > self.held.len() / 2 {
            self.compact();
        }
        self.held.extend_from_slice(rest);
    }

    /// Returns how many bytes are still missing of the argument being received; 0 if unknown.
    pub fn missing(&self) -> usize {
        self.awaited.saturating_sub(self.held_bytes())
    }

    /// Lends the buffer of received bytes, so that the caller can receive the rest of the current argument into it. The
    /// buffer has capacity for the missing bytes, but for at most 16 times as many as were received. No other bytes may
    /// be passed in until [`Self::take_back`]. `None` if no bytes are held or none are known to be missing.
    pub fn lend(&mut self) -> Option<Room> {
        self.compact();
        let missing = self.missing();
        let room = Room::in_buffer(&mut self.held, missing)?;
        self.lent_bytes = room.buffer.capacity();
        Some(room)
    }

    /// Takes back the buffer that [`Self::lend`] gave to the caller, with the bytes of the request that were
    /// received into it.
    pub fn take_back(&mut self, buffer: Vec<u8>) {
        debug_assert!(self.held.is_empty() && self.lent_bytes > 0, "what is taken back was lent");
        self.held = buffer;
        self.lent_bytes = 0;
    }

    /// Returns the number of received bytes that are kept because they belong to no request that was returned
    /// yet.
    pub fn held_bytes(&self) -> usize {
        self.held.len() - self.held_done
    }

    /// Returns the received bytes that are kept because they belong to no request that was returned yet; they
    /// begin at the start of a request. Empty while the caller has the buffer (from [`Self::lend`] to
    /// [`Self::take_back`]).
    pub fn held(&self) -> &[u8] {
        &self.held[self.held_done..]
    }

    /// True while the buffer of received bytes is lent to the caller, to receive more bytes into it.
    pub fn is_lent(&self) -> bool {
        self.lent_bytes > 0
    }

    /// Frees the memory that long requests of the connection have taken, unless received bytes are kept in it
    /// or a request is being received.
    pub fn tidy(&mut self) {
        if self.held.is_empty() && self.arguments_left.is_none() {
            self.held = Vec::new();
            self.places = Vec::new();
            self.canonical = Vec::new();
        }
    }

    /// Returns the memory of the decoder's buffers, in bytes, the one lent to the caller included.
    pub fn memory_bytes(&self) -> usize {
        self.held.capacity()
            + self.lent_bytes
            + self.canonical.capacity()
            + self.places.capacity() * size_of::<Argument>()
    }

    #[expect(clippy::inline_always, reason = "nearly every request: a call would be a quarter of it")]
    #[inline(always)]
    fn next_in_place<'a>(
        &'a mut self,
        chunk: &'a [u8],
        consumed: &mut usize,
        limits: &RequestLimits,
    ) -> Result<Option<Request<'a>>, ProtocolError> {
        loop {
            let bytes = &chunk[*consumed..];
            if bytes.is_empty() {
                return Ok(None);
            }
            match self.parse(bytes, limits)? {
                Progress::Finished(end) => {
                    *consumed += end;
                    self.start_over();
                    let arguments = Arguments::new(&bytes[..end], &self.places);
                    return Ok(Some(Request { arguments, shared: None }));
                }
                Progress::Nothing(end) => {
                    *consumed += end;
                    self.start_over();
                }
                Progress::Inline { length, next } => {
                    *consumed += next;
                    self.start_over();
                    if self.canonicalise(&bytes[..length])? {
                        let arguments = Arguments::new(&self.canonical, &self.places);
                        return Ok(Some(Request { arguments, shared: None }));
                    }
                }
                Progress::Unfinished => {
                    room::expect(&mut self.held, bytes.len(), self.awaited.saturating_sub(bytes.len()));
                    self.held.extend_from_slice(bytes);
                    self.expect_words();
                    *consumed = chunk.len();
                    return Ok(None);
                }
            }
        }
    }

    /// Looks for the next whole request in the bytes that were kept earlier; `None` if there is none. An
    /// error if the bytes are no request, or one beyond `limits`.
    fn find_held(&mut self, limits: &RequestLimits) -> Result<Option<Found>, ProtocolError> {
        loop {
            let held = std::mem::take(&mut self.held);
            let progress = self.parse(&held[self.held_done..], limits);
            self.held = held;
            match progress? {
                Progress::Finished(length) if self.held_done == 0 && length > limits::COPY_BYTES_MAX => {
                    return Ok(Some(Found::Large(length)));
                }
                Progress::Finished(length) => {
                    let start = self.held_done;
                    self.held_done += length;
                    self.start_over();
                    return Ok(Some(Found::Held { start, length }));
                }
                Progress::Nothing(length) => {
                    self.held_done += length;
                    self.start_over();
                }
                Progress::Inline { length, next } => {
                    let line = self.held[self.held_done..][..length].to_vec();
                    self.held_done += next;
                    self.start_over();
                    if self.canonicalise(&line)? {
                        return Ok(Some(Found::Canonical));
                    }
                }
                Progress::Unfinished => {
                    self.compact();
                    let missing = self.missing();
                    room::expect(&mut self.held, 0, missing);
                    self.expect_words();
                    return Ok(None);
                }
            }
            if self.held_done == self.held.len() {
                self.forget_done();
                return Ok(None);
            }
        }
    }

    fn request(&mut self, found: Found) -> Request<'_> {
        let frame = match found {
            Found::Large(length) => {
                let rest = self.held[length..].to_vec();
                let mut frame = std::mem::replace(&mut self.held, rest);
                frame.truncate(length);
                self.start_over();
                let shared = self.large.insert(Bytes::from(frame));
                return Request { arguments: Arguments::new(shared, &self.places), shared: Some(shared) };
            }
            Found::Held { start, length } => &self.held[start..start + length],
            Found::Canonical => &self.canonical,
        };
        Request { arguments: Arguments::new(frame, &self.places), shared: None }
    }

    /// Reserves memory for the rest of a request of many words, assuming that they are as long as those that
    /// have been received.
    fn expect_words(&mut self) {
        if let Some(left) = self.arguments_left {
            room::expect_many(&mut self.held, room::estimate(self.position, self.places.len(), left));
            room::expect_many(&mut self.places, left);
        }
    }

    fn start_over(&mut self) {
        self.position = 0;
        self.arguments_left = None;
        self.awaited = 0;
    }

    /// Drops the bytes of requests that earlier calls of `next` returned, whose borrows have ended, if they
    /// are all bytes kept or so many that few others have to be moved.
    fn forget_done(&mut self) {
        self.large = None;
        if self.held_done == 0 {
            return;
        }
        if self.held_done == self.held.len() {
            self.held.clear();
            self.held.shrink_to(HELD_BYTES_KEPT);
            self.held_done = 0;
        } else if self.held_done >= DONE_BYTES_MAX.max(self.held.len() / 2) {
            self.compact();
        }
        if self.places.len() > PLACES_KEPT && self.arguments_left.is_none() {
            self.places = Vec::new();
        }
    }

    fn compact(&mut self) {
        if self.held_done > 0 {
            self.held.drain(..self.held_done);
            self.held_done = 0;
        }
    }

    /// Continues to parse the request that starts at `bytes[0]`, where the last call for it stopped. An error
    /// if the bytes are no request, or one beyond `limits`.
    fn parse(&mut self, bytes: &[u8], limits: &RequestLimits) -> Result<Progress, ProtocolError> {
        let mut left = if let Some(left) = self.arguments_left {
            left
        } else {
            match bytes.first() {
                None => return Ok(Progress::Unfinished),
                Some(b'*') => {}
                Some(_) => return self.parse_line(bytes),
            }
            match parse_array_header(bytes, limits)? {
                Header::Unfinished => return Ok(Progress::Unfinished),
                Header::Value { value: 0, end } => return Ok(Progress::Nothing(end)),
                Header::Value { value, end } => {
                    self.position = end;
                    self.places.clear();
                    value
                }
            }
        };
        let mut position = self.position;
        while left > 0 {
            let rest = &bytes[position..];
            let Header::Value { value: length, end } = parse_bulk_header(rest, limits)? else {
                (self.position, self.arguments_left) = (position, Some(left));
                return Ok(Progress::Unfinished);
            };
            let start = position + end;
            let after = start + length + 2;
            if after > limits.request_bytes_max {
                return Err(ProtocolError::new("invalid bulk length"));
            }
            match bytes.get(start + length..after) {
                Some(b"\r\n") => {}
                Some(_) => return Err(ProtocolError::new("expected CRLF after a bulk string")),
                None => {
                    (self.position, self.arguments_left) = (position, Some(left));
                    self.awaited = after;
                    return Ok(Progress::Unfinished);
                }
            }
            self.places.push(Argument { start: start as u32, length: length as u32 });
            position = after;
            left -= 1;
        }
        Ok(Progress::Finished(position))
    }

    fn parse_line(&mut self, bytes: &[u8]) -> Result<Progress, ProtocolError> {
        let unseen = &bytes[self.position..];
        let Some(found) = unseen.iter().position(|byte| *byte == b'\n') else {
            if bytes.len() > limits::INLINE_BYTES_MAX {
                return Err(ProtocolError::new("too big inline request"));
            }
            self.position = bytes.len();
            return Ok(Progress::Unfinished);
        };
        let newline = self.position + found;
        if newline > limits::INLINE_BYTES_MAX {
            return Err(ProtocolError::new("too big inline request"));
        }
        let length = if newline > 0 && bytes[newline - 1] == b'\r' { newline - 1 } else { newline };
        Ok(Progress::Inline { length, next: newline + 1 })
    }

    /// Rewrites an inline request (a line of text) into the array that a client library would have sent, in
    /// `canonical`. False if the line is blank; an error if a quote is not closed, or no space follows a
    /// closing quote.
    fn canonicalise(&mut self, line: &[u8]) -> Result<bool, ProtocolError> {
        let words = split_line(line).ok_or_else(|| ProtocolError::new("unbalanced quotes in request"))?;
        self.canonical.clear();
        self.places.clear();
        encode::array(&mut self.canonical, words.len());
        for word in &words {
            encode::header(&mut self.canonical, b'$', word.len());
            self.places.push(Argument { start: self.canonical.len() as u32, length: word.len() as u32 });
            self.canonical.extend_from_slice(word);
            self.canonical.extend_from_slice(b"\r\n");
        }
        Ok(!words.is_empty())
    }
}

enum Header {
    Value { value: usize, end: usize },
    Unfinished,
}

fn parse_array_header(bytes: &[u8], limits: &RequestLimits) -> Result<Header, ProtocolError> {
    let invalid = || ProtocolError::new("invalid multibulk length");
    if let Some((value @ ..=limits::ARGUMENTS_MAX_UNAUTHENTICATED, end)) = header::short_count(bytes) {
        return Ok(Header::Value { value, end });
    }
    let Some((digits, end)) = header_line(bytes, "too big mbulk count string")? else {
        return Ok(Header::Unfinished);
    };
    // Like Redis, an array of no or of negative length is skipped without an answer.
    let (digits, negative) = match digits.strip_prefix(b"-") {
        Some(rest) => (rest, true),
        None => (digits, false),
    };
    let count = parse_number(digits).ok_or_else(invalid)?;
    if negative {
        return Ok(Header::Value { value: 0, end });
    }
    if count > limits.arguments_max {
        return Err(if limits.is_stranger() && count <= limits::ARGUMENTS_MAX {
            ProtocolError::new("unauthenticated multibulk length")
        } else {
            invalid()
        });
    }
    Ok(Header::Value { value: count, end })
}

fn parse_bulk_header(bytes: &[u8], limits: &RequestLimits) -> Result<Header, ProtocolError> {
    match bytes.first() {
        None => return Ok(Header::Unfinished),
        Some(b'$') => {
            // Two digits are below any limit on the size of an argument.
            if let Some((value, end)) = header::short_count(bytes) {
                return Ok(Header::Value { value, end });
            }
        }
        Some(other) => {
            return Err(ProtocolError::new(&format!("expected '$', got '{}'", other.escape_ascii())));
        }
    }
    let Some((digits, end)) = header_line(bytes, "too big bulk count string")? else {
        return Ok(Header::Unfinished);
    };
    let length = parse_number(digits).ok_or_else(|| ProtocolError::new("invalid bulk length"))?;
    if length > limits.argument_bytes_max {
        return Err(ProtocolError::new(if limits.is_stranger() && length <= limits::REQUEST_BYTES_CEILING {
            "unauthenticated bulk length"
        } else {
            "invalid bulk length"
        }));
    }
    Ok(Header::Value { value: length, end })
}

/// Returns the digits of a header line (`*3`, `$5`) and the offset at which the next line starts; `None` if
/// the line is incomplete. An error if the line ends wrongly; the error `too_long` if it is longer than any
/// number.
fn header_line<'a>(bytes: &'a [u8], too_long: &str) -> Result<Option<(&'a [u8], usize)>, ProtocolError> {
    let window = &bytes[..bytes.len().min(HEADER_BYTES_MAX)];
    match window.iter().position(|byte| *byte == b'\r') {
        Some(at) => match bytes.get(at + 1) {
            Some(b'\n') => Ok(Some((&bytes[1..at], at + 2))),
            Some(_) => Err(ProtocolError::new("expected CRLF after a count or length")),
            None => Ok(None),
        },
        None if window.len() == HEADER_BYTES_MAX => Err(ProtocolError::new(too_long)),
        None => Ok(None),
    }
}

/// Reads a count or length as Redis does: digits only, no leading zero, since the bytes are forwarded as they
/// came. `None` for any other text.
fn parse_number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 18 || (digits[0] == b'0' && digits.len() > 1) {
        return None;
    }
    digits.iter().try_fold(0_usize, |value, digit| {
        digit.is_ascii_digit().then(|| value * 10 + usize::from(digit - b'0'))
    })
}

/// Splits an inline request into words, by Redis's quoting rules. `None` if a quote is not closed, or no
/// space follows a closing quote.
pub fn split_line(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|byte| is_space(*byte)) {
            at += 1;
        }
        if at == line.len() {
            return Some(words);
        }
        let mut word = Vec::new();
        while let Some(byte) = line.get(at).copied().filter(|byte| !is_space(*byte)) {
            at += 1;
            match byte {
                b'"' => at = double_quoted(line, at, &mut word)?,
                b'\'' => at = single_quoted(line, at, &mut word)?,
                other => word.push(other),
            }
        }
        words.push(word);
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c | 0)
}

/// Returns `at`, the offset just after a closing quote, if the word ends there as it must (at a space or the
/// line's end); `None` otherwise.
fn ends_word(line: &[u8], at: usize) -> Option<usize> {
    line.get(at).is_none_or(|byte| is_space(*byte)).then_some(at)
}

fn single_quoted(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        match (*line.get(at)?, line.get(at + 1)) {
            (b'\\', Some(b'\'')) => {
                word.push(b'\'');
                at += 2;
            }
            (b'\'', _) => return ends_word(line, at + 1),
            (other, _) => {
                word.push(other);
                at += 1;
            }
        }
    }
}

fn double_quoted(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        match *line.get(at)? {
            b'"' => return ends_word(line, at + 1),
            b'\\' => {
                let (byte, used) = escape(&line[at + 1..])?;
                word.push(byte);
                at += 1 + used;
            }
            other => {
                word.push(other);
                at += 1;
            }
        }
    }
}

fn escape(rest: &[u8]) -> Option<(u8, usize)> {
    let hex = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
    if let [b'x', high, low, ..] = rest
        && let (Some(high), Some(low)) = (hex(*high), hex(*low))
    {
        return Some((high * 16 + low, 3));
    }
    let byte = match rest.first()? {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => *other,
    };
    Some((byte, 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 1 << 20;

    #[test]
    fn what_is_done_is_let_go_though_something_always_waits() {
        let mut decoder = RequestDecoder::default();
        let limits = RequestLimits::trusted(LIMIT);
        let mut chunk = Vec::new();
        (0..100).for_each(|_| encode::request(&mut chunk, [b"DBSIZE".as_slice()].into_iter()));
        decoder.hold(&chunk);
        for _ in 0..10_000 {
            decoder.hold(&chunk);
            for _ in 0..100 {
                assert!(decoder.next(&[], &mut 0, &limits).expect("well formed").is_some());
            }
            assert!(decoder.memory_bytes() < 8 * DONE_BYTES_MAX, "{}", decoder.memory_bytes());
        }
    }

    #[test]
    fn a_request_in_one_chunk_is_seen_in_place() {
        let chunk = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n";
        let mut decoder = RequestDecoder::default();
        let mut consumed = 0;
        let limits = RequestLimits::trusted(LIMIT);
        let request = decoder.next(chunk, &mut consumed, &limits).expect("well formed").expect("whole");
        assert_eq!(request.arguments.iter().collect::<Vec<_>>(), [b"GET".as_slice(), b"k"]);
        assert_eq!(request.arguments.frame().as_ptr(), chunk.as_ptr());
        assert_eq!(consumed, 20);
    }

    #[test]
    fn a_large_request_is_shared() {
        let value = vec![b'x'; 100_000];
        let mut frame = Vec::new();
        encode::request(&mut frame, [b"SET".as_slice(), b"k", &value].into_iter());
        let whole = frame.clone();
        frame.extend_from_slice(b"PING\r\n");
        let mut decoder = RequestDecoder::default();
        let limits = RequestLimits::trusted(LIMIT);
        let mut seen = Vec::new();
        for chunk in frame.chunks(16_384) {
            let mut consumed = 0;
            while let Some(request) = decoder.next(chunk, &mut consumed, &limits).expect("well formed") {
                seen.push((request.shared.is_some(), request.arguments.frame().to_vec()));
            }
        }
        assert_eq!(seen, [(true, whole), (false, b"*1\r\n$4\r\nPING\r\n".to_vec())]);
    }

    #[test]
    fn malformed_bytes_get_the_words_that_redis_uses() {
        for (bytes, words) in [
            (b"*2147483647\r\n".as_slice(), "invalid multibulk length"),
            (b"*1x\r\n", "invalid multibulk length"),
            (b"*\r\n", "invalid multibulk length"),
            (b"*1\r\n$-5\r\n", "invalid bulk length"),
            (b"*1\r\n$99999999999\r\n", "invalid bulk length"),
            (b"*1\r\n$03\r\nGET\r\n", "invalid bulk length"),
            (b"*1\r\n*1\r\n$1\r\na\r\n", "expected '$', got '*'"),
            (b"*1\r\n$1\r\nabc", "expected CRLF after a bulk string"),
            (b"GET \"k\r\n", "unbalanced quotes in request"),
            (b"*111111111111111111111111111111", "too big mbulk count string"),
            (b"*1\rx$4\r\nPING\r\n", "expected CRLF after a count or length"),
            (b"*1\r\n$4\rxPING\r\n", "expected CRLF after a count or length"),
        ] {
            let error = decode_all(&[bytes], &RequestLimits::trusted(LIMIT)).expect_err("malformed");
            assert_eq!(error.0, format!("ERR Protocol error: {words}"), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_stranger_may_send_only_little() {
        let limits = RequestLimits::stranger();
        let error = decode_all(&[b"*11\r\n"], &limits).expect_err("too many");
        assert_eq!(error.0, "ERR Protocol error: unauthenticated multibulk length");
        let error = decode_all(&[b"*1\r\n$16385\r\n"], &limits).expect_err("too large");
        assert_eq!(error.0, "ERR Protocol error: unauthenticated bulk length");
    }

    #[test]
    fn an_inline_request_without_end_is_bounded() {
        let line = vec![b'a'; limits::INLINE_BYTES_MAX + 1];
        let error = decode_all(&[&line], &RequestLimits::trusted(LIMIT)).expect_err("too long");
        assert_eq!(error.0, "ERR Protocol error: too big inline request");
    }

    #[test]
    fn inline_quoting() {
        let words = split_line(br#" set "a\x41\n" 'it\'s'  b "#).expect("balanced");
        assert_eq!(words, [b"set".to_vec(), b"aA\n".to_vec(), b"it's".to_vec(), b"b".to_vec()]);
        assert_eq!(split_line(b"\"a\"b"), None);
        assert_eq!(split_line(b""), Some(vec![]));
    }

    #[test]
    fn empty_arrays_and_lines_are_skipped() {
        let seen = decode_all(&[b"*0\r\n\r\n*-1\r\n  \r\nPING\r\n"], &RequestLimits::trusted(LIMIT));
        assert_eq!(seen.expect("well formed"), [[b"PING".to_vec()]]);
    }

    #[test]
    fn what_is_missing_is_received_where_it_belongs() {
        let value = vec![b'x'; 100_000];
        let mut frame = Vec::new();
        encode::request(&mut frame, [b"SET".as_slice(), b"k", &value].into_iter());
        let limits = RequestLimits::trusted(LIMIT);
        let mut decoder = RequestDecoder::default();
        assert!(decoder.lend().is_none(), "nothing is under way");
        let (first, rest) = frame.split_at(16_384);
        assert!(decoder.next(first, &mut 0, &limits).expect("well formed").is_none());
        assert_eq!(decoder.missing(), rest.len());
        let mut room = decoder.lend().expect("much is missing");
        assert_eq!(room.bytes, rest.len());
        assert!(decoder.memory_bytes() >= frame.len(), "what is lent counts");
        let place = room.buffer.as_ptr();
        room.buffer.extend_from_slice(rest);
        decoder.take_back(room.buffer);
        let request = decoder.next(&[], &mut 0, &limits).expect("well formed").expect("whole");
        let shared = request.shared.expect("it is large");
        assert_eq!((&shared[..], shared.as_ptr()), (frame.as_slice(), place), "not copied again");
        assert_eq!(decoder.missing(), 0);
    }

    #[test]
    fn requests_in_a_row_are_each_copied_once() {
        let value = vec![b'x'; 20_000];
        let mut frame = Vec::new();
        encode::request(&mut frame, [b"SET".as_slice(), b"k", &value].into_iter());
        let stream = frame.repeat(20);
        let limits = RequestLimits::trusted(LIMIT);
        let (mut decoder, mut seen) = (RequestDecoder::default(), 0);
        for chunk in stream.chunks(16_384) {
            let mut consumed = 0;
            while let Some(request) = decoder.next(chunk, &mut consumed, &limits).expect("well formed") {
                assert_eq!(&request.shared.expect("it is large")[..], &frame);
                seen += 1;
            }
            // The held bytes belong to one request, with memory for just that one.
            assert!(decoder.memory_bytes() < frame.len() + 4_096, "{}", decoder.memory_bytes());
        }
        assert_eq!(seen, 20);
    }

    #[test]
    fn who_announces_much_and_sends_little_is_given_little() {
        let limits = RequestLimits::trusted(LIMIT);
        let mut decoder = RequestDecoder::default();
        let announced = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n";
        assert!(decoder.next(announced, &mut 0, &limits).expect("well formed").is_none());
        assert_eq!(decoder.missing(), 1_000_002);
        assert!(decoder.memory_bytes() < 2_000, "{}", decoder.memory_bytes());
        let room = decoder.lend().expect("much is missing");
        assert!(room.bytes < 1_000 && decoder.memory_bytes() < 2_000);
        // The lent buffer comes back empty.
        decoder.take_back(room.buffer);
        assert_eq!(decoder.missing(), 1_000_002);
    }

    /// Decodes chunks as `decode_all` does, but appends the rest of an argument of which a part has come to the buffer
    /// that the decoder lends, wherever it lends one. Returns an error if the bytes are not requests, or if a request
    /// exceeds `limits`.
    fn decode_lending(chunks: &[&[u8]], limits: &RequestLimits) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        let mut decoder = RequestDecoder::default();
        let mut seen = Vec::new();
        for chunk in chunks {
            let mut chunk = *chunk;
            while !chunk.is_empty() {
                let (mut consumed, mut here) = (0, chunk);
                if let Some(mut room) = decoder.lend() {
                    let (filling, rest) = chunk.split_at(room.bytes.min(chunk.len()));
                    room.buffer.extend_from_slice(filling);
                    decoder.take_back(room.buffer);
                    (here, chunk) = (&[], rest);
                } else {
                    chunk = &[];
                }
                while let Some(request) = decoder.next(here, &mut consumed, limits)? {
                    seen.push(request.arguments.iter().map(<[u8]>::to_vec).collect());
                }
                assert_eq!(consumed, here.len());
            }
        }
        Ok(seen)
    }

    fn decode_all(chunks: &[&[u8]], limits: &RequestLimits) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        let mut decoder = RequestDecoder::default();
        let mut seen = Vec::new();
        for chunk in chunks {
            let mut consumed = 0;
            while let Some(request) = decoder.next(chunk, &mut consumed, limits)? {
                seen.push(request.arguments.iter().map(<[u8]>::to_vec).collect());
            }
            assert_eq!(consumed, chunk.len());
        }
        Ok(seen)
    }

    fn any_request() -> impl Strategy<Value = Vec<Vec<u8>>> {
        proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..6)
    }

    fn cut<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
    }

    proptest! {
        #[test]
        fn however_it_is_split_it_reads_the_same(
            requests in proptest::collection::vec(any_request(), 1..8),
            cuts in proptest::collection::vec(any::<usize>(), 0..12),
        ) {
            let mut bytes = Vec::new();
            for request in &requests {
                encode::request(&mut bytes, request.iter().map(Vec::as_slice));
            }
            let limits = RequestLimits::trusted(LIMIT);
            prop_assert_eq!(&decode_all(&cut(&bytes, &cuts), &limits).expect("well formed"), &requests);
            let singles: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(&decode_all(&singles, &limits).expect("well formed"), &requests);
            prop_assert_eq!(&decode_lending(&cut(&bytes, &cuts), &limits).expect("well formed"), &requests);
            prop_assert_eq!(&decode_lending(&singles, &limits).expect("well formed"), &requests);
        }

        #[test]
        fn garbage_reads_the_same_however_it_is_split(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'"')],
                0..80,
            ),
            cuts in proptest::collection::vec(any::<usize>(), 0..6),
        ) {
            let limits = RequestLimits::trusted(LIMIT);
            let whole = decode_all(&[&bytes], &limits);
            prop_assert_eq!(&decode_all(&cut(&bytes, &cuts), &limits), &whole);
            prop_assert_eq!(&decode_lending(&cut(&bytes, &cuts), &limits), &whole);
        }
    }
}
