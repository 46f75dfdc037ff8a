//! RESP encoding: small functions that append to a buffer, in the RESP version of the receiver.

use crate::values::Database;

/// The version of RESP that a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// RESP version 2, with which every connection starts.
    #[default]
    Resp2,
    /// RESP version 3, which a client chooses with `HELLO 3`.
    Resp3,
}

/// Appends a RESP simple string, `+text`. The text must not contain line breaks.
pub fn simple(out: &mut Vec<u8>, text: &str) {
    debug_assert!(!text.contains(['\r', '\n']));
    out.push(b'+');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends a RESP error, `-text`. Line breaks in the text (it may quote a client) become spaces.
pub fn error(out: &mut Vec<u8>, text: &str) {
    error_bytes(out, text.as_bytes());
}

/// Appends a RESP error, `-text`, that may quote bytes which are no UTF-8; line ends become spaces.
pub fn error_bytes(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'-');
    out.extend(text.iter().copied().map(|byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }));
    out.extend_from_slice(b"\r\n");
}

/// Appends a RESP integer, `:value`.
pub fn integer(out: &mut Vec<u8>, value: i64) {
    out.push(b':');
    decimal(out, value);
    out.extend_from_slice(b"\r\n");
}

/// Appends a RESP double, given by its decimal digits: `,digits` in RESP3, a bulk string in RESP2.
pub fn double(out: &mut Vec<u8>, protocol: Protocol, digits: &str) {
    match protocol {
        Protocol::Resp2 => bulk(out, digits.as_bytes()),
        Protocol::Resp3 => {
            out.push(b',');
            out.extend_from_slice(digits.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Appends a RESP bulk string: `$length` and the bytes.
pub fn bulk(out: &mut Vec<u8>, value: &[u8]) {
    header(out, b'$', value.len());
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends a RESP null that stands in place of a string.
pub fn null(out: &mut Vec<u8>, protocol: Protocol) {
    out.extend_from_slice(match protocol {
        Protocol::Resp2 => b"$-1\r\n",
        Protocol::Resp3 => b"_\r\n",
    });
}

/// Appends a RESP null that stands in place of an array.
pub fn null_array(out: &mut Vec<u8>, protocol: Protocol) {
    out.extend_from_slice(match protocol {
        Protocol::Resp2 => b"*-1\r\n",
        Protocol::Resp3 => b"_\r\n",
    });
}

/// Appends the head of a RESP array of `count` elements, which the caller writes next.
pub fn array(out: &mut Vec<u8>, count: usize) {
    header(out, b'*', count);
}

/// Appends the header of a push message (one that is the reply to no request) of `count` elements, which the
/// caller writes next; in RESP2, the header of an array.
pub fn push(out: &mut Vec<u8>, protocol: Protocol, count: usize) {
    header(out, if protocol == Protocol::Resp3 { b'>' } else { b'*' }, count);
}

/// Appends the head of a RESP map of `pairs` names and values, which the caller writes next: a flat array in
/// RESP2.
pub fn map(out: &mut Vec<u8>, protocol: Protocol, pairs: usize) {
    match protocol {
        Protocol::Resp2 => header(out, b'*', pairs * 2),
        Protocol::Resp3 => header(out, b'%', pairs),
    }
}

/// Appends the head of a RESP set of `count` members, which the caller writes next: an array in RESP2.
pub fn set(out: &mut Vec<u8>, protocol: Protocol, count: usize) {
    match protocol {
        Protocol::Resp2 => header(out, b'*', count),
        Protocol::Resp3 => header(out, b'~', count),
    }
}

/// Appends a verbatim string, a text for people that clients do not interpret; in RESP2, a bulk string.
pub fn verbatim(out: &mut Vec<u8>, protocol: Protocol, text: &str) {
    match protocol {
        Protocol::Resp2 => bulk(out, text.as_bytes()),
        Protocol::Resp3 => {
            header(out, b'=', text.len() + 4);
            out.extend_from_slice(b"txt:");
            out.extend_from_slice(text.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Appends the header of a RESP element with a count or length: type byte (`kind`), number and line end.
pub fn header(out: &mut Vec<u8>, kind: u8, count: usize) {
    out.push(kind);
    decimal(out, count as i64);
    out.extend_from_slice(b"\r\n");
}

/// Appends a request as a RESP array of bulk strings.
pub fn request<'a>(out: &mut Vec<u8>, words: impl ExactSizeIterator<Item = &'a [u8]>) {
    array(out, words.len());
    for word in words {
        bulk(out, word);
    }
}

/// Appends the request `SELECT`, which changes the database of a connection.
pub fn select(out: &mut Vec<u8>, database: Database) {
    request(out, [&b"SELECT"[..], database.0.to_string().as_bytes()].into_iter());
}

/// Appends a number in decimal, faster than the formatting functions of the standard library.
pub fn decimal(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("tests write text")
    }

    #[test]
    fn numbers_at_the_edges() {
        for value in [0, 1, -1, 9, 10, i64::MAX, i64::MIN] {
            assert_eq!(written(|out| decimal(out, value)), value.to_string());
        }
    }

    #[test]
    fn an_error_never_spans_lines() {
        assert_eq!(written(|out| error(out, "ERR no 'a\r\nb'")), "-ERR no 'a  b'\r\n");
    }

    #[test]
    fn a_map_is_flat_in_resp2() {
        assert_eq!(written(|out| map(out, Protocol::Resp2, 2)), "*4\r\n");
        assert_eq!(written(|out| map(out, Protocol::Resp3, 2)), "%2\r\n");
    }
}
