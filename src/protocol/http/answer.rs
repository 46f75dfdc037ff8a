//! Replies of stores and of weir, written as JSON for clients that speak HTTP.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// One parsed RESP2 reply, with its text; of an array only the number of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    Simple(&'a [u8]),
    Error(&'a [u8]),
    Integer(&'a [u8]),
    Bulk(&'a [u8]),
    Null,
    /// The reply is an array, of whose elements this many follow.
    Array(usize),
}

/// Removes the next reply, or the header of an array, from the start of bytes that consist of whole replies.
/// `None` if the bytes are no valid RESP2.
pub fn next<'a>(bytes: &mut &'a [u8]) -> Option<Reply<'a>> {
    let end = bytes.iter().position(|byte| *byte == b'\n').filter(|end| *end >= 2)?;
    let (line, rest) = (&bytes[1..end - 1], &bytes[end + 1..]);
    let kind = bytes[0];
    *bytes = rest;
    let length = || std::str::from_utf8(line).ok()?.parse::<i64>().ok();
    Some(match kind {
        b'+' => Reply::Simple(line),
        b'-' => Reply::Error(line),
        b':' => Reply::Integer(line),
        b'$' | b'*' => match (kind, usize::try_from(length()?)) {
            (_, Err(_)) => Reply::Null,
            (b'$', Ok(length)) => {
                let text = rest.get(..length)?;
                *bytes = rest.get(length + 2..)?;
                Reply::Bulk(text)
            }
            (_, Ok(length)) => Reply::Array(length),
        },
        _ => return None,
    })
}

/// Removes one whole reply from the start of `bytes` and appends it as JSON; `in_base64` has its texts written
/// in Base64. An error inside an array becomes a string. `None` if the bytes are no valid RESP2.
pub fn write_json(out: &mut Vec<u8>, bytes: &mut &[u8], in_base64: bool) -> Option<()> {
    // Missing elements by depth: twice as many bytes as that depth takes in the reply.
    let mut missing: Vec<usize> = Vec::new();
    loop {
        match next(bytes)? {
            Reply::Array(0) => out.extend_from_slice(b"[]"),
            Reply::Array(length) => {
                out.push(b'[');
                missing.push(length);
                continue;
            }
            Reply::Null => out.extend_from_slice(b"null"),
            Reply::Integer(digits) => out.extend_from_slice(digits),
            // `OK` is never in base64, as clients of the REST dialect expect.
            Reply::Simple(b"OK") => write_text(out, b"OK", false),
            Reply::Simple(text) | Reply::Bulk(text) => write_text(out, text, in_base64),
            Reply::Error(text) => write_text(out, text, false),
        }
        loop {
            let Some(left) = missing.last_mut() else { return Some(()) };
            *left -= 1;
            if *left > 0 {
                out.push(b',');
                break;
            }
            out.push(b']');
            missing.pop();
        }
    }
}

/// Appends a text as a JSON string, in base64 or as UTF-8 with invalid bytes replaced.
pub fn write_text(out: &mut Vec<u8>, text: &[u8], in_base64: bool) {
    if in_base64 {
        out.push(b'"');
        let start = out.len();
        out.resize(start + text.len().div_ceil(3) * 4, 0);
        let written = STANDARD.encode_slice(text, &mut out[start..]).unwrap_or_default();
        out.truncate(start + written);
        out.push(b'"');
    } else {
        let text = String::from_utf8_lossy(text);
        // Writing a text to memory does not fail.
        let _ = serde_json::to_writer(&mut *out, text.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(reply: &str, in_base64: bool) -> Option<String> {
        let (mut out, mut bytes) = (Vec::new(), reply.as_bytes());
        write_json(&mut out, &mut bytes, in_base64)?;
        assert!(bytes.is_empty(), "{reply:?}");
        Some(String::from_utf8(out).expect("text"))
    }

    #[test]
    fn replies_are_values() {
        for (reply, text) in [
            ("+OK\r\n", "\"OK\""),
            ("+PONG\r\n", "\"PONG\""),
            (":-7\r\n", "-7"),
            ("$-1\r\n", "null"),
            ("*-1\r\n", "null"),
            ("$5\r\na\"\r\nb\r\n", "\"a\\\"\\r\\nb\""),
            ("*0\r\n", "[]"),
            ("*3\r\n:1\r\n*2\r\n$1\r\na\r\n*0\r\n-ERR x\r\n", "[1,[\"a\",[]],\"ERR x\"]"),
        ] {
            assert_eq!(json(reply, false).as_deref(), Some(text), "{reply:?}");
        }
        assert_eq!(json("*2\r\n$1\r\na\r\n:1\r\n", true).as_deref(), Some("[\"YQ==\",1]"));
        assert_eq!(json("+OK\r\n", true).as_deref(), Some("\"OK\""));
        let mut out = Vec::new();
        write_json(&mut out, &mut b"$3\r\na\xffb\r\n".as_slice(), false).expect("whole");
        assert_eq!(String::from_utf8(out).as_deref(), Ok("\"a\u{fffd}b\""));
        for reply in ["", "$5\r\nab\r\n", "%1\r\n", "*2\r\n:1\r\n", "\n"] {
            assert_eq!(json(reply, false), None, "{reply:?}");
        }
    }
}
