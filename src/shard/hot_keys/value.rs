//! Recognises requests for a key's value (`GET`, `MGET` of one key or of several), so that the value kept
//! from the reply to one of them also answers the others.

use bytes::Bytes;

use crate::protocol::encode;

/// The bytes before the key in a request for one key's value: `GET key` or `MGET key`, compared without
/// regard to case.
const ASKED_BY: [&[u8]; 2] = [b"*2\r\n$3\r\nGET\r\n", b"*2\r\n$4\r\nMGET\r\n"];
const ASKED_OF_SEVERAL_BY: &[u8] = b"$4\r\nMGET\r\n";
/// The array header before the value in the reply to an `MGET` of one key.
const ALONE: &[u8] = b"*1\r\n";
const NULLS: [&[u8]; 2] = [b"$-1\r\n", b"_\r\n"];

/// Returns the key if a request (`frame`) asks for one key's value and nothing else (`GET key`, `MGET key`);
/// else None.
pub fn key_of(frame: &[u8]) -> Option<&[u8]> {
    let key = ASKED_BY.iter().find_map(|before| after(frame, before))?;
    after_line(key)?.strip_suffix(b"\r\n")
}

/// Appends the request `MGET key`: the reply to it is what is kept of a key for an `MGET` of several.
pub fn ask(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(ASKED_BY[1]);
    encode::bulk(out, key);
}

/// True if a request (`frame`) is an `MGET`, of one key or of several.
pub fn is_asked_of_several(frame: &[u8]) -> bool {
    after_line(frame).is_some_and(|name| after(name, ASKED_OF_SEVERAL_BY).is_some())
}

/// Returns the value within a reply to `GET` or to `MGET` of one key, without the array header.
pub fn alone(reply: &[u8]) -> &[u8] {
    reply.strip_prefix(ALONE).unwrap_or(reply)
}

/// Returns the value within a reply like [`alone`], but nil in the form of RESP2 whichever RESP version the reply has,
/// so that values can be compared.
pub fn told(reply: &[u8]) -> &[u8] {
    let value = alone(reply);
    if NULLS.contains(&value) { NULLS[0] } else { value }
}

/// Converts a kept reply (one held in memory) to `GET` or `MGET` of one key into the form that a request (`frame`) asks
/// for: with the array header for `MGET` of one key, without it for `GET`. For any other request, returns the reply as
/// it is.
pub fn as_asked(frame: &[u8], reply: Bytes) -> Bytes {
    let is_alone = reply.starts_with(ALONE);
    match (key_of(frame), is_asked_of_several(frame)) {
        (Some(_), true) if !is_alone => [ALONE, &reply].concat().into(),
        (Some(_), false) if is_alone => reply.slice(ALONE.len()..),
        _ => reply,
    }
}

/// True if two replies (`kept` and `reply`) to requests for one key's value show different values. `MGET`
/// answers nil where `GET` answers an error because the key has no string value, so a kept nil of `MGET` does
/// not differ from an error.
pub fn differ(kept: &[u8], reply: &[u8]) -> bool {
    // `MGET` answers nil for a key that holds no string, as for a missing one.
    let says_as_little = kept.starts_with(ALONE) && told(kept) == NULLS[0] && is_error(reply);
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
