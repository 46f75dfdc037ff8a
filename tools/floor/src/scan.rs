//! Finds where messages of RESP2 end, and parses nothing else of them: a request is an array of bulk strings,
//! a reply is any value of RESP2. An incomplete message is scanned from its start again when more of it has
//! come; bulk strings are stepped over by their length, so that costs little.

use std::fmt;

/// The largest number of elements of one array, and of values that may still be missing from one reply.
const ELEMENTS_MAX: usize = 1 << 20;
/// The largest bulk string, in bytes: as in Redis.
const BULK_BYTES_MAX: usize = 512 << 20;
/// Maximum number of bytes of a line that contains only a number.
const NUMBER_BYTES_MAX: usize = 24;

/// The whole messages (requests or replies) at the start of some bytes: their number, and the bytes that
/// they take together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    pub messages: usize,
    pub bytes: usize,
}

/// Error for bytes that are no message of RESP2 of the expected kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("bytes that are not RESP2, or an inline command")
    }
}

/// Counts the whole requests at the start of `bytes`; an incomplete one after them is left out. An error if
/// they are followed by bytes that cannot be a request in RESP2 (an array of bulk strings).
pub fn whole_requests(bytes: &[u8]) -> Result<Whole, Malformed> {
    whole(bytes, usize::MAX, request_end)
}

/// Counts the whole replies at the start of `bytes`, at most `messages_max` of them; an incomplete one is
/// left out. An error if bytes that are to be counted cannot be a reply in RESP2.
pub fn whole_replies(bytes: &[u8], messages_max: usize) -> Result<Whole, Malformed> {
    whole(bytes, messages_max, reply_end)
}

/// Function that finds the end of a message: given bytes and the offset at which a message starts in them,
/// it returns the offset after the message; `None` if its end has not been received.
type End = fn(&[u8], usize) -> Result<Option<usize>, Malformed>;

fn whole(bytes: &[u8], messages_max: usize, end_of: End) -> Result<Whole, Malformed> {
    let mut whole = Whole::default();
    while whole.messages < messages_max && whole.bytes < bytes.len() {
        let Some(end) = end_of(bytes, whole.bytes)? else { break };
        whole = Whole { messages: whole.messages + 1, bytes: end };
    }
    Ok(whole)
}

fn request_end(bytes: &[u8], start: usize) -> Result<Option<usize>, Malformed> {
    if bytes[start] != b'*' {
        return Err(Malformed);
    }
    let Some((elements, mut at)) = number(bytes, start + 1)? else { return Ok(None) };
    for _ in 0..count(elements, ELEMENTS_MAX)?.ok_or(Malformed)? {
        match bytes.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(_) => return Err(Malformed),
        }
        let Some((length, body)) = number(bytes, at + 1)? else { return Ok(None) };
        at = body + count(length, BULK_BYTES_MAX)?.ok_or(Malformed)? + 2;
    }
    Ok((at <= bytes.len()).then_some(at))
}

fn reply_end(bytes: &[u8], start: usize) -> Result<Option<usize>, Malformed> {
    let (mut values, mut at) = (1, start);
    while values > 0 {
        values -= 1;
        let Some(kind) = bytes.get(at) else { return Ok(None) };
        match kind {
            b'+' | b'-' | b':' => match bytes[at..].iter().position(|byte| *byte == b'\n') {
                Some(length) => at += length + 1,
                None => return Ok(None),
            },
            b'$' => {
                let Some((length, body)) = number(bytes, at + 1)? else { return Ok(None) };
                at = count(length, BULK_BYTES_MAX)?.map_or(body, |length| body + length + 2);
            }
            b'*' => {
                let Some((elements, next)) = number(bytes, at + 1)? else { return Ok(None) };
                values += count(elements, ELEMENTS_MAX)?.unwrap_or(0);
                at = next;
            }
            _ => return Err(Malformed),
        }
        if values > ELEMENTS_MAX {
            return Err(Malformed);
        }
    }
    Ok((at <= bytes.len()).then_some(at))
}

/// Checks a length in bytes or elements, as read from a message, against a maximum (`count_max`) and returns
/// it; `None` for -1, which stands for a null. An error for any other number.
fn count(number: i64, count_max: usize) -> Result<Option<usize>, Malformed> {
    match usize::try_from(number) {
        Ok(count) if count <= count_max => Ok(Some(count)),
        Err(_) if number == -1 => Ok(None),
        _ => Err(Malformed),
    }
}

/// Returns the number in the line at the offset `start`, and the offset after the line; `None` if the line
/// is incomplete. An error if the line contains anything but one number of at most 24 bytes.
fn number(bytes: &[u8], start: usize) -> Result<Option<(i64, usize)>, Malformed> {
    let line = &bytes[start.min(bytes.len())..];
    let (digits, is_negative) = match line.split_first() {
        Some((b'-', digits)) => (digits, true),
        _ => (line, false),
    };
    let mut value: i64 = 0;
    for (place, byte) in digits.iter().enumerate().take(NUMBER_BYTES_MAX) {
        match byte {
            b'0'..=b'9' => {
                let digit = i64::from(byte - b'0');
                value = value.checked_mul(10).and_then(|value| value.checked_add(digit)).ok_or(Malformed)?;
            }
            b'\r' if place > 0 => {
                let next = start + usize::from(is_negative) + place + 2;
                return match digits.get(place + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((if is_negative { -value } else { value }, next))),
                    Some(_) => Err(Malformed),
                };
            }
            _ => return Err(Malformed),
        }
    }
    if digits.len() >= NUMBER_BYTES_MAX { Err(Malformed) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: [&[u8]; 4] = [
        b"*1\r\n$4\r\nPING\r\n",
        b"*2\r\n$3\r\nGET\r\n$5\r\nkey:1\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n*1\r\n",
        b"*0\r\n",
    ];
    const REPLIES: [&[u8]; 9] = [
        b"+OK\r\n",
        b"-ERR no such thing\r\n",
        b":-7\r\n",
        b"$5\r\n+OK\r\n\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*3\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n+x\r\n",
    ];

    /// Checks the scanner on every prefix of the messages.
    fn ends_are_found(messages: &[&[u8]], scan: impl Fn(&[u8]) -> Result<Whole, Malformed>) {
        let all = messages.concat();
        let mut ends = vec![0];
        messages.iter().for_each(|message| ends.push(ends[ends.len() - 1] + message.len()));
        for length in 0..=all.len() {
            let messages = ends.iter().rposition(|end| *end <= length).expect("the first end is 0");
            assert_eq!(scan(&all[..length]), Ok(Whole { messages, bytes: ends[messages] }), "{length} bytes");
        }
    }

    #[test]
    fn ends_of_requests_are_found_wherever_they_are_cut() {
        ends_are_found(&REQUESTS, whole_requests);
    }

    #[test]
    fn ends_of_replies_are_found_wherever_they_are_cut() {
        ends_are_found(&REPLIES, |bytes| whole_replies(bytes, usize::MAX));
    }

    #[test]
    fn no_more_replies_are_taken_than_are_wanted() {
        let all = REPLIES.concat();
        for messages in 0..=REPLIES.len() {
            let bytes = REPLIES[..messages].concat().len();
            assert_eq!(whole_replies(&all, messages), Ok(Whole { messages, bytes }));
        }
    }

    #[test]
    fn other_bytes_are_malformed() {
        for bytes in [
            &b"PING\r\n"[..],
            b"*1\r\n:1\r\n",
            b"*x\r\n",
            b"*\r\n",
            b"*-1\r\n",
            b"*1\rx",
            b"*1\r\n$-1\r\n",
            b"*99999999999999999999\r\n",
            b"*1048577\r\n",
            b"*000000000000000000000000000",
            b"$3\r\nGET\r\n",
        ] {
            assert_eq!(whole_requests(bytes), Err(Malformed), "{}", bytes.escape_ascii());
        }
        for bytes in [&b"%1\r\n+a\r\n+b\r\n"[..], b"$-2\r\n", b"OK\r\n", b"*2\r\n*1048576\r\n"] {
            assert_eq!(whole_replies(bytes, usize::MAX), Err(Malformed), "{}", bytes.escape_ascii());
        }
    }
}
