//! The value of a key, which `GET` tells, and `MGET` of one key or of several: what is kept of one is of use to the others.

use bytes::Bytes;

/// What stands before the key in requests for the value of one alone, in whichever case.
const ASKED_BY: [&[u8]; 2] = [b"*2\r\n$3\r\nGET\r\n", b"*2\r\n$4\r\nMGET\r\n"];
const ASKED_OF_SEVERAL_BY: &[u8] = b"$4\r\nMGET\r\n";
/// What stands before the value in a reply to the second.
const ALONE: &[u8] = b"*1\r\n";
const NULLS: [&[u8]; 2] = [b"$-1\r\n", b"_\r\n"];

/// The key of a request for its value and nothing else.
pub fn key_of(frame: &[u8]) -> Option<&[u8]> {
    let key = ASKED_BY.iter().find_map(|before| after(frame, before))?;
    after_line(key)?.strip_suffix(b"\r\n")
}

/// Is it asked for the values of keys?
pub fn is_asked_of_several(frame: &[u8]) -> bool {
    after_line(frame).is_some_and(|name| after(name, ASKED_OF_SEVERAL_BY).is_some())
}

/// The value that a reply to a request for one tells.
pub fn told(reply: &[u8]) -> &[u8] {
    reply.strip_prefix(ALONE).unwrap_or(reply)
}

/// What was told somebody who asked for the same, as this request would have been told.
pub fn as_asked(frame: &[u8], reply: Bytes) -> Bytes {
    let is_alone = reply.starts_with(ALONE);
    match (key_of(frame), is_asked_of_several(frame)) {
        (Some(_), true) if !is_alone => [ALONE, &reply].concat().into(),
        (Some(_), false) if is_alone => reply.slice(ALONE.len()..),
        _ => reply,
    }
}

/// Did a key hold something else when this was told than when that was?
pub fn differ(kept: &[u8], reply: &[u8]) -> bool {
    // Of what is no string, `MGET` tells as little as of what is not there.
    let says_as_little = kept.starts_with(ALONE) && NULLS.contains(&told(kept)) && is_error(reply);
    told(kept) != told(reply) && !says_as_little
}

pub fn is_error(reply: &[u8]) -> bool {
    matches!(reply.first(), Some(b'-' | b'!'))
}

fn after_line(bytes: &[u8]) -> Option<&[u8]> {
    bytes.iter().position(|byte| *byte == b'\n').map(|end| &bytes[end + 1..])
}

fn after<'a>(bytes: &'a [u8], before: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = bytes.split_at_checked(before.len())?;
    start.eq_ignore_ascii_case(before).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::encode;

    fn asked(words: &str) -> (Option<String>, bool) {
        let mut frame = Vec::new();
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        encode::request(&mut frame, words.into_iter());
        let key = key_of(&frame).map(|key| String::from_utf8_lossy(key).into_owned());
        (key, is_asked_of_several(&frame))
    }

    #[test]
    fn requests_for_values_are_known_however_they_are_written() {
        let key = Some("k".to_owned());
        for (words, told) in [
            ("GET k", (key.clone(), false)),
            ("get k", (key.clone(), false)),
            ("MGET k", (key.clone(), true)),
            ("mGet k", (key, true)),
            ("MGET k l", (None, true)),
            ("EXISTS k l", (None, false)),
            ("HGET k f", (None, false)),
            ("HMGET k f", (None, false)),
            ("STRLEN k", (None, false)),
        ] {
            assert_eq!(asked(words), told, "{words}");
        }
        assert!(!is_asked_of_several(b"") && !is_asked_of_several(b"*1\r\n") && key_of(b"*2\r\n").is_none());
    }

    #[test]
    fn a_reply_is_told_in_the_form_that_was_asked_for() {
        let [get, mget, list] = [
            b"*2\r\n$3\r\nget\r\n$1\r\nk\r\n".as_slice(),
            b"*2\r\n$4\r\nMGET\r\n$1\r\nk\r\n",
            b"*2\r\n$5\r\nHKEYS\r\n$1\r\nk\r\n",
        ];
        let [value, alone] = [b"$1\r\nv\r\n".as_slice(), b"*1\r\n$1\r\nv\r\n"];
        let told = |frame: &[u8], reply: &'static [u8]| as_asked(frame, Bytes::from_static(reply));
        for reply in [value, alone] {
            assert_eq!(
                (told(get, reply), told(mget, reply), told(list, reply)),
                (value.into(), alone.into(), reply.into())
            );
        }
    }

    #[test]
    fn replies_differ_where_the_key_held_something_else() {
        let [value, other, null] = [b"$1\r\nv\r\n".as_slice(), b"$1\r\nw\r\n", b"$-1\r\n"];
        let alone = |value: &[u8]| [ALONE, value].concat();
        assert!(!differ(value, value) && differ(value, other) && differ(value, null) && differ(null, value));
        assert!(!differ(&alone(value), value) && !differ(value, &alone(value)));
        assert!(differ(&alone(value), other) && differ(value, &alone(null)));
        let error = b"-WRONGTYPE no\r\n";
        assert!(differ(value, error) && differ(null, error) && differ(&alone(value), error));
        assert!(!differ(&alone(null), error) && !differ(&alone(b"_\r\n"), error));
    }
}
