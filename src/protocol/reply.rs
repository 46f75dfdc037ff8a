//! Reply scanner: finds where each reply of a backend ends, in RESP2 and RESP3, in whatever pieces it
//! arrives.
//!
//! The scanner examines every byte of structure once and steps over payloads, so a reply takes time linear in
//! its size. Attributes and pushes that stand before a reply belong to it and are passed on with it.

use crate::protocol::{header, room};

/// End, type and size of a whole reply that a [`ReplyScanner`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Offset of the reply's end in the bytes that were passed to the last call of the scanner.
    pub end: usize,
    /// The type byte of the reply itself, such as `$` (not of attributes before it).
    pub kind: u8,
    /// Number of values in an aggregate reply (array, map, set), at any depth, without the aggregates
    /// themselves, so that it is the same in RESP2 and RESP3. 0 for a scalar.
    pub rows: u64,
}

/// Error for bytes that are not RESP. The connection that they came from cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedReply;

/// The reply scanner of one backend connection, which finds where each reply ends without keeping its bytes,
/// with its state between chunks.
#[derive(Debug, Default)]
pub struct ReplyScanner {
    /// Number of elements not yet received of attributes and pushes (messages that are no replies) before the
    /// reply, at any depth.
    before: u64,
    /// Number of elements not yet received of the reply, which counts as one itself, at any depth. Depth is
    /// not limited: a script may nest its reply as it likes. 0 between replies.
    left: u64,
    /// Number of payload bytes of a bulk string still to be stepped over, its line end included.
    payload_left: u64,
    /// Start of a header line (type, and count or length) whose end has not been received yet.
    line: Vec<u8>,
    /// Last received byte of a line whose content does not matter for where the reply ends; `None` outside
    /// such a line.
    text: Option<u8>,
    /// Type byte of the reply that is being received; 0 until it is known.
    kind: u8,
    /// Number of values received so far in the reply, if it is an aggregate (array, map, set).
    rows: u64,
    /// True if a push message (one that is the reply to no request) between replies is reported like a reply,
    /// with kind `>`; if not, it counts as a part of the next reply.
    reports_pushes: bool,
    /// Type byte of an error line beside those of RESP; `None` if there is no other.
    mark: Option<u8>,
}

/// Maximum number of bytes of a header line of a reply with a number or a length; a longer one makes the
/// reply malformed. Lines of text are stepped over without being kept.
const HEADER_BYTES_MAX: usize = 32;
/// End of every line and of the bytes of every bulk string.
const LINE_END: &[u8] = b"\r\n";

impl ReplyScanner {
    /// Creates a scanner that also reports push messages, which are replies to no request: a push between two
    /// replies is reported as if it were a reply, with kind `>`. A push within a reply, which no store sends,
    /// counts as a part of that reply.
    pub fn with_pushes() -> Self {
        Self { reports_pushes: true, ..Self::default() }
    }

    /// Creates a scanner that also takes `mark` as the type byte of an error line. A mark that is no type of RESP
    /// tells errors that weir has worded from those of a store, whose scanner refuses that byte.
    pub fn with_mark(mark: u8) -> Self {
        Self { mark: Some(mark), ..Self::default() }
    }

    /// Scans further bytes of a connection. Returns `Some` when a reply ends within `bytes`; the bytes after
    /// its end belong to the next reply. `None` if all of `bytes` belongs to a reply that is incomplete. An
    /// error if the bytes are not RESP.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Option<Scanned>, MalformedReply> {
        if !self.is_midway()
            && let Some(scanned) = scan_simple(bytes)
        {
            return Ok(Some(scanned));
        }
        self.scan_parts(bytes)
    }

    /// Scans further bytes of a connection as [`Self::scan`] does and with the same results, piece by piece:
    /// the slower way, which handles replies of any form and replies that arrive in several chunks.
    #[inline(never)]
    fn scan_parts(&mut self, bytes: &[u8]) -> Result<Option<Scanned>, MalformedReply> {
        if !self.is_midway() {
            self.left = 1;
            self.kind = 0;
            self.rows = 0;
        }
        let mut at = 0;
        while at < bytes.len() {
            if self.payload_left > 0 {
                at += self.payload(&bytes[at..])?;
            } else if let Some(before) = self.text {
                at += self.rest_of_text(&bytes[at..], before)?;
            } else {
                at += self.header(&bytes[at..])?;
            }
            if !self.is_midway() {
                return Ok(Some(Scanned { end: at, kind: self.kind, rows: self.rows }));
            }
        }
        Ok(None)
    }

    /// Returns the number of bytes that are still missing of the bulk string being received, its line end
    /// included; 0 outside a bulk string.
    pub fn missing(&self) -> usize {
        usize::try_from(self.payload_left).unwrap_or(usize::MAX)
    }

    /// Returns an estimate of the bytes that the reply's remaining elements will take, if they are as long on
    /// average as those in the first `come` bytes of the reply. 0 as long as no value of an aggregate (array,
    /// map, set) has come, so also for any other reply.
    pub fn expected(&self, come: usize) -> usize {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        if self.rows == 0 { 0 } else { room::estimate(come, self.rows as usize, left) }
    }

    /// True if the beginning of a reply was scanned and its end was not.
    pub fn is_midway(&self) -> bool {
        self.left > 0
    }

    /// True if the beginning of a push message was scanned and its end was not, in a scanner that reports push
    /// messages (messages that are replies to no request).
    pub fn is_within_push(&self) -> bool {
        self.is_midway() && self.kind == b'>'
    }

    /// True if the beginning of a reply was scanned and its end was not, and the reply's type is known, so that
    /// the bytes cannot be the beginning of a push message (which is the reply to no request).
    pub fn is_within_reply(&self) -> bool {
        let kind = if self.kind == 0 { self.line.first().copied().unwrap_or_default() } else { self.kind };
        self.is_midway() && self.before == 0 && !matches!(kind, 0 | b'>' | b'|')
    }

    /// Steps over bytes of a bulk string and checks the line end after it, so that a wrong length is found at
    /// once. Returns the number of bytes it used. An error if other bytes stand where the line end belongs.
    fn payload(&mut self, bytes: &[u8]) -> Result<usize, MalformedReply> {
        let step = self.payload_left.min(bytes.len() as u64);
        let left = self.payload_left - step;
        // The part of the line end that has been read by now, and within it the bytes read in this step.
        let passed = &LINE_END[..LINE_END.len() - left.min(LINE_END.len() as u64) as usize];
        let here = &passed[passed.len() - passed.len().min(step as usize)..];
        if !bytes[..step as usize].ends_with(here) {
            return Err(MalformedReply);
        }
        self.payload_left = left;
        if left == 0 {
            self.scalar_done();
        }
        Ok(step as usize)
    }

    /// Steps over a line whose content does not matter; `before` is the line's last byte that was received
    /// earlier. Returns the number of bytes it used. An error if the line ends with LF alone.
    fn rest_of_text(&mut self, bytes: &[u8], before: u8) -> Result<usize, MalformedReply> {
        let Some(newline) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.text = bytes.last().copied();
            return Ok(bytes.len());
        };
        let last = newline.checked_sub(1).map_or(before, |at| bytes[at]);
        if last != b'\r' {
            return Err(MalformedReply);
        }
        self.text = None;
        self.scalar_done();
        Ok(newline + 1)
    }

    fn header(&mut self, bytes: &[u8]) -> Result<usize, MalformedReply> {
        let kind = self.line.first().copied().unwrap_or(bytes[0]);
        if matches!(kind, b'+' | b'-' | b':' | b',' | b'(' | b'_' | b'#') || self.mark == Some(kind) {
            self.note_kind(kind);
            self.text = Some(kind);
            return Ok(1);
        }
        let Some(newline) = bytes.iter().take(HEADER_BYTES_MAX).position(|byte| *byte == b'\n') else {
            self.line.extend_from_slice(bytes);
            return if self.line.len() > HEADER_BYTES_MAX { Err(MalformedReply) } else { Ok(bytes.len()) };
        };
        let used = newline + 1;
        let count = if self.line.is_empty() {
            parse_count(&bytes[..used])?
        } else {
            self.line.extend_from_slice(&bytes[..used]);
            let count = parse_count(&self.line)?;
            self.line.clear();
            count
        };
        self.counted(kind, count)?;
        Ok(used)
    }

    fn counted(&mut self, kind: u8, count: Option<u64>) -> Result<(), MalformedReply> {
        match kind {
            b'$' | b'=' | b'!' => {
                self.note_kind(kind);
                match count {
                    Some(length) => self.payload_left = length.checked_add(2).ok_or(MalformedReply)?,
                    None => self.scalar_done(),
                }
            }
            b'>' if self.reports_pushes && self.kind == 0 && self.before == 0 => {
                let elements = count.ok_or(MalformedReply)?;
                self.note_kind(kind);
                self.left = (self.left - 1).checked_add(elements).ok_or(MalformedReply)?;
            }
            b'*' | b'~' | b'%' => {
                let pairs = if kind == b'%' { 2 } else { 1 };
                let elements = count.unwrap_or(0).checked_mul(pairs).ok_or(MalformedReply)?;
                self.note_kind(kind);
                let left = self.counter();
                *left = (*left - 1).checked_add(elements).ok_or(MalformedReply)?;
            }
            // An attribute stands before the element it describes, a push before the reply it interrupts:
            // neither counts as an element.
            b'|' | b'>' => {
                let pairs = if kind == b'|' { 2 } else { 1 };
                let elements = count.and_then(|count| count.checked_mul(pairs)).ok_or(MalformedReply)?;
                let left = if self.kind == 0 { &mut self.before } else { &mut self.left };
                *left = left.checked_add(elements).ok_or(MalformedReply)?;
            }
            _ => return Err(MalformedReply),
        }
        Ok(())
    }

    fn scalar_done(&mut self) {
        let is_within = self.before == 0 && matches!(self.kind, b'*' | b'~' | b'%');
        self.rows += u64::from(is_within);
        *self.counter() -= 1;
    }

    /// Returns the counter of missing elements that the next element belongs to: that of attributes and
    /// pushes before the reply, or that of the reply.
    fn counter(&mut self) -> &mut u64 {
        if self.before > 0 { &mut self.before } else { &mut self.left }
    }

    /// Stores the type of the reply (`kind`, its first byte), if this element is the reply itself.
    fn note_kind(&mut self, kind: u8) {
        if self.before == 0 && self.kind == 0 {
            self.kind = kind;
        }
    }
}

/// Scans a reply in the common case: one short line or one bulk string, which `bytes` has from its start to
/// its end; `None` in any other case.
#[expect(clippy::inline_always, reason = "nearly every reply: a call would be a quarter of it")]
#[inline(always)]
fn scan_simple(bytes: &[u8]) -> Option<Scanned> {
    let kind = *bytes.first()?;
    let line_end = || bytes.iter().take(HEADER_BYTES_MAX).position(|byte| *byte == b'\n').map(|at| at + 1);
    let end = match kind {
        b'+' | b'-' | b':' | b'_' | b'#' | b',' => line_end()?,
        b'$' => {
            if let Some((length, start)) = header::short_count(bytes) {
                start + length + LINE_END.len()
            } else {
                let start = line_end()?;
                let length = parse_count(&bytes[..start]).ok()?;
                start + length.map_or(0, |length| length as usize + LINE_END.len())
            }
        }
        _ => return None,
    };
    // A wrong end is left to the scanner, which finds what is wrong with it.
    bytes.get(..end)?.ends_with(LINE_END).then_some(Scanned { end, kind, rows: 0 })
}

/// Reads the count of a header line such as `*12\r\n`; `None` for the null of RESP2 (`-1`). An error for any
/// other line.
fn parse_count(line: &[u8]) -> Result<Option<u64>, MalformedReply> {
    let digits = line[1..].strip_suffix(b"\r\n").ok_or(MalformedReply)?;
    if digits == b"-1" {
        return Ok(None);
    }
    if digits.is_empty() || digits.len() > 12 {
        return Err(MalformedReply);
    }
    digits
        .iter()
        .try_fold(0_u64, |value, digit| {
            digit.is_ascii_digit().then(|| value * 10 + u64::from(digit - b'0')).ok_or(MalformedReply)
        })
        .map(Some)
}

/// Returns the elements of a whole array reply, each as the bytes in which it was received; `None` if the
/// reply is no array, or a null one.
pub fn elements(array: &[u8]) -> Option<Elements<'_>> {
    elements_of(array, b'*', 1)
}

/// Returns the names and values of a whole map reply, one after the other; in RESP2 such a reply is an array.
/// `None` for any other reply and for null.
pub fn names_and_values(map: &[u8]) -> Option<Elements<'_>> {
    elements_of(map, b'%', 2).or_else(|| elements(map))
}

/// Returns the elements of a whole push message; in RESP2 such a message is an array. `None` for any other
/// bytes.
pub fn pushed(message: &[u8]) -> Option<Elements<'_>> {
    elements_of(message, b'>', 1).or_else(|| elements(message))
}

fn elements_of(aggregate: &[u8], kind: u8, per_count: usize) -> Option<Elements<'_>> {
    let newline = aggregate.iter().position(|byte| *byte == b'\n')?;
    if aggregate[0] != kind {
        return None;
    }
    let count = parse_count(&aggregate[..=newline]).ok()?? as usize;
    Some(Elements { rest: &aggregate[newline + 1..], left: count.checked_mul(per_count)? })
}

/// Iterator over the elements of an array reply, each as the bytes in which it was received. Ends early at an
/// element that is malformed or not whole.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Elements<'a> {
    /// Returns the iterator over the elements of `array` that continues where another one stopped, with the
    /// last `bytes_left` bytes and `left` elements still to come.
    pub fn resume(array: &'a [u8], bytes_left: usize, left: usize) -> Self {
        Self { rest: &array[array.len() - bytes_left..], left }
    }

    /// Returns the bytes of the RESP array that have not been iterated over yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns how many elements of the RESP array have not been iterated over yet.
    pub fn left(&self) -> usize {
        self.left
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let scanned = ReplyScanner::default().scan(self.rest).ok()??;
        let (element, rest) = self.rest.split_at(scanned.end);
        self.rest = rest;
        self.left -= 1;
        Some(element)
    }
}

/// Returns the text of a whole reply that is one bulk string, verbatim string, simple string or simple error;
/// `None` for any other reply, such as null.
pub fn text(reply: &[u8]) -> Option<&[u8]> {
    let newline = reply.iter().position(|byte| *byte == b'\n')?;
    match reply[0] {
        b'+' | b'-' => reply.get(1..newline.checked_sub(1)?),
        b'$' => {
            let length = parse_count(&reply[..=newline]).ok()??;
            reply.get(newline + 1..newline + 1 + length as usize)
        }
        // The format (`txt:`) stands before the text.
        b'=' => {
            let length = parse_count(&reply[..=newline]).ok()??;
            reply.get(newline + 1 + 4..newline + 1 + length as usize)
        }
        _ => None,
    }
}

/// Returns the value of a whole integer reply; `None` for any other reply.
pub fn integer(reply: &[u8]) -> Option<i64> {
    let digits = reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pushes_between_replies_are_reported_if_that_is_wanted() {
        let stream = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n:1\r\n>1\r\n$1\r\nx\r\n";
        for step in 1..stream.len() {
            let mut scanner = ReplyScanner::with_pushes();
            let mut kinds = Vec::new();
            for chunk in stream.chunks(step) {
                let mut at = 0;
                while at < chunk.len() {
                    let Some(scanned) = scanner.scan(&chunk[at..]).expect("well formed") else { break };
                    at += scanned.end;
                    kinds.push(scanned.kind);
                }
            }
            assert_eq!(kinds, [b'>', b':', b'>'], "in steps of {step}");
        }
    }

    #[test]
    fn each_kind_of_reply_ends_where_it_ends() {
        for (reply, rows) in [
            ("+OK\r\n", 0),
            ("-ERR no\r\n", 0),
            (":-12\r\n", 0),
            ("$5\r\nhello\r\n", 0),
            ("$-1\r\n", 0),
            ("*-1\r\n", 0),
            ("*0\r\n", 0),
            ("_\r\n", 0),
            (",1.5\r\n", 0),
            ("#t\r\n", 0),
            ("(12345678901234567890123456789012345678901234567890\r\n", 0),
            ("=7\r\ntxt:abc\r\n", 0),
            ("!5\r\nERR x\r\n", 0),
            ("*2\r\n$1\r\na\r\n*1\r\n:1\r\n", 2),
            ("%2\r\n+a\r\n:1\r\n+b\r\n*0\r\n", 3),
            ("~1\r\n+a\r\n", 1),
            ("|1\r\n+ttl\r\n:3600\r\n$1\r\na\r\n", 0),
            (">2\r\n+invalidate\r\n*1\r\n+k\r\n*3\r\n:1\r\n:2\r\n:3\r\n", 3),
            ("*2\r\n|1\r\n+a\r\n+b\r\n:1\r\n:2\r\n", 4),
            ("*3\r\n+OK\r\n*2\r\n:1\r\n:2\r\n*2\r\n$-1\r\n*1\r\n*1\r\n:3\r\n", 5),
        ] {
            let mut bytes = reply.as_bytes().to_vec();
            bytes.extend_from_slice(b"+NEXT\r\n");
            let scanned = ReplyScanner::default().scan(&bytes).expect("well formed").expect("whole");
            assert_eq!((scanned.end, scanned.rows), (reply.len(), rows), "{}", reply.escape_debug());
            assert_eq!(in_pieces(reply.as_bytes(), 1), vec![reply.len()], "{}", reply.escape_debug());
        }
    }

    #[test]
    fn replies_nest_as_deep_as_they_like() {
        // Miri is some thousand times slower.
        let depth = if cfg!(miri) { 20 } else { 500 };
        for kind in ["*1\r\n", "~1\r\n", "%1\r\n+key\r\n", "|1\r\n+key\r\n+value\r\n*1\r\n"] {
            let deep = kind.repeat(depth) + "-ERR too deep for a script\r\n";
            let scanned = ReplyScanner::default().scan(deep.as_bytes()).expect("well formed").expect("whole");
            assert_eq!(scanned.end, deep.len());
            assert_eq!(in_pieces(deep.as_bytes(), 5), vec![deep.len()]);
        }
    }

    #[test]
    fn what_stands_before_a_reply_is_none_of_it() {
        let before = "|1\r\n*1\r\n+a\r\n%1\r\n+b\r\n*0\r\n>2\r\n|1\r\n+c\r\n+d\r\n+e\r\n+f\r\n";
        for (reply, kind, rows) in
            [("+OK\r\n", b'+', 0), ("*2\r\n:1\r\n*1\r\n:2\r\n", b'*', 2), ("*-1\r\n", b'*', 0)]
        {
            let both = format!("{before}{reply}");
            let scanned = ReplyScanner::default().scan(both.as_bytes()).expect("well formed").expect("whole");
            assert_eq!(scanned, Scanned { end: both.len(), kind, rows });
        }
    }

    #[test]
    fn more_elements_than_can_be_counted_are_no_reply() {
        let elements = "*999999999999\r\n".repeat(2);
        assert_eq!(ReplyScanner::default().scan(elements.as_bytes()), Ok(None));
        let mut scanner = ReplyScanner { left: u64::MAX - 5, kind: b'*', ..ReplyScanner::default() };
        assert_eq!(scanner.scan(b"*99\r\n"), Err(MalformedReply));
    }

    #[test]
    fn what_is_not_resp_is_refused() {
        for bytes in [
            "hello\r\n",
            "$x\r\n",
            "*1\n",
            "$-2\r\n",
            "*99999999999999\r\n",
            "\r\n",
            "+\n",
            "+OK\n",
            "*2\r\n+\n*0\r\n",
            "$1\r\nab\r\n",
            "$1\r\na\n\n",
            "*1\r\n$2\r\nab\rx",
        ] {
            assert_eq!(ReplyScanner::default().scan(bytes.as_bytes()), Err(MalformedReply), "{bytes:?}");
            let mut scanner = ReplyScanner::default();
            let found = bytes.as_bytes().chunks(1).find_map(|piece| scanner.scan(piece).err());
            assert_eq!(found, Some(MalformedReply), "{bytes:?} byte by byte");
        }
    }

    #[test]
    fn the_text_of_what_is_no_reply_is_none() {
        for bytes in ["", "\n", "+\n", "+", "$5\r\nab\r\n", "$\n", "*0\r\n"] {
            assert_eq!(text(bytes.as_bytes()), None, "{bytes:?}");
            assert_eq!(integer(bytes.as_bytes()), None, "{bytes:?}");
        }
        assert_eq!(text(b"+OK\r\n"), Some(b"OK".as_slice()));
    }

    #[test]
    fn elements_are_given_as_they_came() {
        let array = b"*3\r\n$1\r\na\r\n$-1\r\n*1\r\n:1\r\n";
        let found: Vec<&[u8]> = elements(array).expect("an array").collect();
        assert_eq!(found, [b"$1\r\na\r\n".as_slice(), b"$-1\r\n", b"*1\r\n:1\r\n"]);
        assert!(elements(b":1\r\n").is_none());
    }

    /// Returns the ends of the replies in `bytes`, which arrive in pieces of `size`.
    fn in_pieces(bytes: &[u8], size: usize) -> Vec<usize> {
        let mut scanner = ReplyScanner::default();
        let mut ends = Vec::new();
        for (index, piece) in bytes.chunks(size).enumerate() {
            let mut at = 0;
            while at < piece.len() {
                match scanner.scan(&piece[at..]).expect("well formed") {
                    Some(scanned) => {
                        at += scanned.end;
                        ends.push(index * size + at);
                    }
                    None => break,
                }
            }
        }
        ends
    }

    fn any_reply() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            "[a-z ]{0,60}".prop_map(|text| format!("+{text}\r\n").into_bytes()),
            any::<i64>().prop_map(|value| format!(":{value}\r\n").into_bytes()),
            proptest::collection::vec(any::<u8>(), 0..50).prop_map(|value| {
                let mut out = Vec::new();
                crate::protocol::encode::bulk(&mut out, &value);
                out
            }),
            Just(b"$-1\r\n".to_vec()),
            Just(b"_\r\n".to_vec()),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            (proptest::collection::vec(inner, 0..6), prop_oneof![Just('*'), Just('~'), Just('%'), Just('|')])
                .prop_map(|(parts, kind)| aggregate(kind, &parts))
        })
    }

    fn aggregate(kind: char, parts: &[Vec<u8>]) -> Vec<u8> {
        let even = &parts[..parts.len() / 2 * 2];
        let (count, parts) =
            if matches!(kind, '%' | '|') { (even.len() / 2, even) } else { (parts.len(), parts) };
        let mut out = format!("{kind}{count}\r\n").into_bytes();
        out.extend(parts.concat());
        if kind == '|' {
            out.extend_from_slice(b"+described\r\n");
        }
        out
    }

    proptest! {
        #[test]
        fn however_it_is_split_it_ends_at_the_same_places(
            replies in proptest::collection::vec(any_reply(), 1..6),
            size in 1_usize..40,
        ) {
            let bytes = replies.concat();
            let expected: Vec<usize> = replies.iter().scan(0, |end, reply| { *end += reply.len(); Some(*end) }).collect();
            prop_assert_eq!(in_pieces(&bytes, size), expected);
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'*'), Just(b'9'), Just(b'\r'), Just(b'\n')], 0..60)) {
            let mut scanner = ReplyScanner::default();
            for piece in bytes.chunks(3) {
                if scanner.scan(piece).is_err() {
                    break;
                }
            }
        }
    }
}
