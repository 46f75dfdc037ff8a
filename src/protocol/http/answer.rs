//! Replies of stores and of weir, written as JSON for clients that speak HTTP.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// One parsed RESP reply, with its value; of an array only the number of elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reply<'a> {
    Simple(&'a [u8]),
    Error(&'a [u8]),
    /// The reply is an integer, in decimal digits as JSON has them, after a minus sign if it is negative.
    Integer(&'a [u8]),
    Double(f64),
    Boolean(bool),
    /// The reply is an integer of any length, in decimal digits.
    BigNumber(&'a [u8]),
    Bulk(&'a [u8]),
    Null,
    /// The reply is an array (or a set, or a map with twice as many elements as pairs), of whose elements this
    /// many follow.
    Array(usize),
}

/// Form in which replies are written as JSON.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// True if texts are written in Base64 (`Upstash-Encoding: base64`).
    pub in_base64: bool,
    /// Maximum length, in bytes, of the buffer that is written to. Writing ends with an error once the buffer
    /// gets longer, by a few bytes at most.
    pub bytes_max: usize,
}

/// Reason why a reply cannot be written as JSON. The buffer that was written to then ends with a part of the
/// reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The JSON is longer than [`Form::bytes_max`] allows.
    TooLarge,
    /// The reply is not RESP, or of a type that has no place in the answer to a command.
    Malformed,
}

/// Removes the next reply, or the header of an array, from the start of bytes that consist of whole replies.
/// RESP2 suffices for what stores send to clients of HTTP, and values of RESP3 are understood, too. `None` if
/// the bytes are neither.
pub fn next<'a>(bytes: &mut &'a [u8]) -> Option<Reply<'a>> {
    let end = bytes.iter().position(|byte| *byte == b'\n').filter(|end| *end >= 2)?;
    let (line, rest) = (&bytes[1..end - 1], &bytes[end + 1..]);
    let kind = bytes[0];
    *bytes = rest;
    Some(match kind {
        b'+' => Reply::Simple(line),
        b'-' => Reply::Error(line),
        b':' => Reply::Integer(integer(line)?),
        b',' => Reply::Double(parsed(line)?),
        b'#' => Reply::Boolean(match line {
            b"t" => true,
            b"f" => false,
            _ => return None,
        }),
        b'(' => {
            let digits = line.strip_prefix(b"-").unwrap_or(line);
            let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            Reply::BigNumber(Some(line).filter(|_| is_number)?)
        }
        b'_' if line.is_empty() => Reply::Null,
        b'$' | b'=' | b'!' | b'*' | b'~' | b'%' => match (kind, usize::try_from(parsed::<i64>(line)?)) {
            (_, Err(_)) => Reply::Null,
            (b'*' | b'~', Ok(length)) => Reply::Array(length),
            (b'%', Ok(pairs)) => Reply::Array(pairs.checked_mul(2)?),
            (_, Ok(length)) => {
                let text = rest.get(..length)?;
                *bytes = rest.get(length.checked_add(2)?..)?;
                match kind {
                    b'!' => Reply::Error(text),
                    // A verbatim string begins with its format, such as `txt:`.
                    b'=' => Reply::Bulk(text.get(4..)?),
                    _ => Reply::Bulk(text),
                }
            }
        },
        _ => return None,
    })
}

/// Returns the text of an integer without a plus sign; `None` for a text that is no integer of 64 bits, or has
/// zeros before it, which JSON does not allow.
fn integer(line: &[u8]) -> Option<&[u8]> {
    let number = line.strip_prefix(b"+").unwrap_or(line);
    let digits = line.strip_prefix(b"-").unwrap_or(number);
    let is_number = match digits {
        [b'0'] => true,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    // Any number of 18 digits has 64 bits or fewer.
    (is_number && (digits.len() <= 18 || parsed::<i64>(number).is_some())).then_some(number)
}

fn parsed<T: std::str::FromStr>(line: &[u8]) -> Option<T> {
    std::str::from_utf8(line).ok()?.parse().ok()
}

/// Removes one whole reply from the start of `bytes` and appends it as JSON. An error inside an array becomes an
/// object ([`write_error`]), and any other error a string, as does a number that JSON has no form for, or that
/// clients would round. Fails if the JSON would get longer than `form` allows, or if `bytes` do not begin with a
/// reply; `out` then ends with a part.
pub fn write_json(out: &mut Vec<u8>, bytes: &mut &[u8], form: Form) -> Result<(), Unfit> {
    // Missing elements by depth: twice as many bytes as that depth takes in the reply.
    let mut missing: Vec<usize> = Vec::new();
    let plain = Form { in_base64: false, ..form };
    loop {
        match next(bytes).ok_or(Unfit::Malformed)? {
            Reply::Array(0) => out.extend_from_slice(b"[]"),
            Reply::Array(length) => {
                out.push(b'[');
                missing.push(length);
                continue;
            }
            Reply::Null => out.extend_from_slice(b"null"),
            Reply::Boolean(value) => out.extend_from_slice(if value { b"true" } else { b"false" }),
            Reply::Integer(digits) => out.extend_from_slice(digits),
            Reply::Double(number) if number.is_finite() => {
                // Writing a number to memory does not fail.
                let _ = serde_json::to_writer(&mut *out, &number);
            }
            Reply::Double(number) => write_text(out, number.to_string().to_lowercase().as_bytes(), plain)?,
            Reply::BigNumber(digits) => write_text(out, digits, plain)?,
            // `OK` is never in base64, as clients of the REST dialect expect.
            Reply::Simple(b"OK") => write_text(out, b"OK", plain)?,
            Reply::Simple(text) | Reply::Bulk(text) => write_text(out, text, form)?,
            Reply::Error(text) if missing.is_empty() => write_text(out, text, plain)?,
            Reply::Error(text) => write_error(out, text, form)?,
        }
        if out.len() > form.bytes_max {
            return Err(Unfit::TooLarge);
        }
        loop {
            let Some(left) = missing.last_mut() else { return Ok(()) };
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

/// Appends the text of an error as `{"error":...}`, never in base64. Fails if the JSON would get longer than `form`
/// allows.
pub fn write_error(out: &mut Vec<u8>, text: &[u8], form: Form) -> Result<(), Unfit> {
    out.extend_from_slice(b"{\"error\":");
    write_text(out, text, Form { in_base64: false, ..form })?;
    out.push(b'}');
    Ok(())
}

/// Appends a text as a JSON string, in base64 or as UTF-8 with invalid bytes replaced. An error if the buffer
/// would get longer than `form` allows.
pub fn write_text(out: &mut Vec<u8>, text: &[u8], form: Form) -> Result<(), Unfit> {
    out.push(b'"');
    if form.in_base64 {
        let start = out.len();
        let length = text.len().div_ceil(3) * 4;
        if length > form.bytes_max.saturating_sub(start) {
            return Err(Unfit::TooLarge);
        }
        out.resize(start + length, 0);
        let written = STANDARD.encode_slice(text, &mut out[start..]).unwrap_or_default();
        out.truncate(start + written);
    } else {
        write_lossy(out, text, form.bytes_max)?;
    }
    out.push(b'"');
    Ok(())
}

/// Number of bytes of a text (64 KiB) that are checked to be UTF-8 at once, so that a text that is too large
/// costs no more than what is written of it.
const CHECKED_BYTES: usize = 64 * 1024;
/// Number of bytes of a text, from the first one that is not UTF-8, that are read character by character,
/// before whole blocks are checked again.
const REPLACED_BYTES: usize = 1024;

/// Appends the content of a JSON string: the text in UTF-8 with invalid bytes replaced, as
/// `String::from_utf8_lossy` replaces them. An error if the buffer would get longer than `bytes_max`.
fn write_lossy(out: &mut Vec<u8>, text: &[u8], bytes_max: usize) -> Result<(), Unfit> {
    let (mut rest, mut replaced) = (text, Vec::new());
    while !rest.is_empty() {
        let piece = &rest[..rest.len().min(CHECKED_BYTES)];
        let valid = std::str::from_utf8(piece).map_or_else(|error| error.valid_up_to(), str::len);
        write_escaped(out, &rest[..valid], bytes_max)?;
        rest = &rest[valid..];
        if valid < piece.len() {
            rest = replace_invalid(&mut replaced, rest);
            write_escaped(out, &replaced, bytes_max)?;
        }
    }
    Ok(())
}

/// Writes the beginning of a text as UTF-8 to `replaced`, with invalid bytes replaced. Returns the rest of
/// the text, which does not begin within a character.
fn replace_invalid<'a>(replaced: &mut Vec<u8>, text: &'a [u8]) -> &'a [u8] {
    replaced.clear();
    let beginning = &text[..text.len().min(REPLACED_BYTES)];
    let mut used = 0;
    for chunk in beginning.utf8_chunks() {
        replaced.extend_from_slice(chunk.valid().as_bytes());
        used += chunk.valid().len();
        let invalid = chunk.invalid();
        let is_last = used + invalid.len() == beginning.len();
        let is_cut = || std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if is_last && beginning.len() < text.len() && is_cut() {
            // The other bytes of the character follow.
            break;
        }
        if !invalid.is_empty() {
            replaced.extend_from_slice("\u{fffd}".as_bytes());
            used += invalid.len();
        }
    }
    &text[used..]
}

/// Number of bytes of a text that are searched at once for characters to escape.
const BLOCK_BYTES: usize = 64;

/// Appends UTF-8 as the content of a JSON string. Blocks without a character to escape are copied whole; in
/// other blocks each byte costs the same, whether it is escaped or not, because branches that cannot be
/// predicted cost more. An error if the buffer would get longer than `bytes_max`.
fn write_escaped(out: &mut Vec<u8>, text: &[u8], bytes_max: usize) -> Result<(), Unfit> {
    let mut start = 0;
    for (number, block) in text.chunks(BLOCK_BYTES).enumerate() {
        // Without a way out of the loop it becomes vector instructions.
        let specials = block.iter().fold(0, |specials, byte| {
            specials | u8::from(*byte < b' ') | u8::from(*byte == b'"') | u8::from(*byte == b'\\')
        });
        if specials == 0 {
            continue;
        }
        let end = number * BLOCK_BYTES;
        copy(out, &text[start..end], bytes_max)?;
        start = end + block.len();
        let (mut escaped, mut length) = ([0; BLOCK_BYTES * ESCAPE_BYTES_MAX + SLACK], 0);
        for byte in block {
            let (bytes, used) = &ESCAPES[usize::from(*byte)];
            escaped[length..length + bytes.len()].copy_from_slice(bytes);
            length += usize::from(*used);
        }
        copy(out, &escaped[..length], bytes_max)?;
    }
    copy(out, &text[start..], bytes_max)
}

fn copy(out: &mut Vec<u8>, bytes: &[u8], bytes_max: usize) -> Result<(), Unfit> {
    if bytes.len() > bytes_max.saturating_sub(out.len()) {
        return Err(Unfit::TooLarge);
    }
    out.extend_from_slice(bytes);
    Ok(())
}

/// Length in bytes of the longest escape in a JSON string, such as `\u001f`.
pub const ESCAPE_BYTES_MAX: usize = 6;
/// Number of bytes of an entry of [`ESCAPES`] that lie beyond the longest escape.
const SLACK: usize = 8 - ESCAPE_BYTES_MAX;

/// Form of each byte in a JSON string, and its length. Eight bytes are copied faster than a number of bytes
/// that varies.
static ESCAPES: [([u8; 8], u8); 256] = escapes();

const fn escapes() -> [([u8; 8], u8); 256] {
    let hex = b"0123456789abcdef";
    let mut all = [([0; 8], 1); 256];
    let mut byte = 0;
    while byte < all.len() {
        let short = match byte as u8 {
            b'"' => b'"',
            b'\\' => b'\\',
            0x08 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            0x0c => b'f',
            b'\r' => b'r',
            _ => 0,
        };
        if short > 0 {
            all[byte] = ([b'\\', short, 0, 0, 0, 0, 0, 0], 2);
        } else if byte < 0x20 {
            all[byte] = ([b'\\', b'u', b'0', b'0', hex[byte / 16], hex[byte % 16], 0, 0], 6);
        } else {
            all[byte].0[0] = byte as u8;
        }
        byte += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WHOLE: Form = Form { in_base64: false, bytes_max: usize::MAX };
    const BASE64: Form = Form { in_base64: true, bytes_max: usize::MAX };

    fn json(reply: &str, form: Form) -> Result<String, Unfit> {
        let (mut out, mut bytes) = (Vec::new(), reply.as_bytes());
        write_json(&mut out, &mut bytes, form)?;
        assert!(bytes.is_empty(), "{reply:?}");
        Ok(String::from_utf8(out).expect("text"))
    }

    #[test]
    fn replies_are_values() {
        for (reply, text) in [
            ("+OK\r\n", "\"OK\""),
            ("+PONG\r\n", "\"PONG\""),
            (":-7\r\n", "-7"),
            (":+7\r\n", "7"),
            (":0\r\n", "0"),
            (":-9223372036854775808\r\n", "-9223372036854775808"),
            ("$-1\r\n", "null"),
            ("*-1\r\n", "null"),
            ("_\r\n", "null"),
            (",1.5\r\n", "1.5"),
            (",1\r\n", "1.0"),
            (",inf\r\n", "\"inf\""),
            (",-inf\r\n", "\"-inf\""),
            (",nan\r\n", "\"nan\""),
            ("#t\r\n", "true"),
            ("#f\r\n", "false"),
            ("$5\r\na\"\r\nb\r\n", "\"a\\\"\\r\\nb\""),
            ("=7\r\ntxt:a\"b\r\n", "\"a\\\"b\""),
            ("*0\r\n", "[]"),
            ("*3\r\n:1\r\n*2\r\n$1\r\na\r\n*0\r\n-ERR x\r\n", "[1,[\"a\",[]],{\"error\":\"ERR x\"}]"),
            (
                "*2\r\n!3\r\nE\"x\r\n(-12345678901234567890\r\n",
                "[{\"error\":\"E\\\"x\"},\"-12345678901234567890\"]",
            ),
            ("-ERR x\r\n", "\"ERR x\""),
            ("%1\r\n+a\r\n~2\r\n+b\r\n_\r\n", "[\"a\",[\"b\",null]]"),
        ] {
            assert_eq!(json(reply, WHOLE).as_deref(), Ok(text), "{reply:?}");
        }
        assert_eq!(json("*2\r\n$1\r\na\r\n:1\r\n", BASE64).as_deref(), Ok("[\"YQ==\",1]"));
        let errors = json("*2\r\n-ERR x\r\n*1\r\n-ERR y\r\n", BASE64);
        assert_eq!(errors.as_deref(), Ok("[{\"error\":\"ERR x\"},[{\"error\":\"ERR y\"}]]"));
        assert_eq!(json("+OK\r\n", BASE64).as_deref(), Ok("\"OK\""));
        let mut out = Vec::new();
        write_json(&mut out, &mut b"$3\r\na\xffb\r\n".as_slice(), WHOLE).expect("whole");
        assert_eq!(String::from_utf8(out).as_deref(), Ok("\"a\u{fffd}b\""));
    }

    #[test]
    fn words_of_a_store_that_are_no_value_are_not_written() {
        for reply in [
            "",
            "$5\r\nab\r\n",
            "%1\r\n",
            "*2\r\n:1\r\n",
            "\n",
            ":1,\"admin\":true\r\n",
            ":\r\n",
            ":1.5\r\n",
            ":9223372036854775808\r\n",
            ":99999999999999999999\r\n",
            ":007\r\n",
            ":+-7\r\n",
            ":-\r\n",
            ",1,\"admin\":true\r\n",
            ",\r\n",
            "_x\r\n",
            "#true\r\n",
            "(12\"\r\n",
            "(-\r\n",
            "=3\r\nabc\r\n",
            "|1\r\n+a\r\n+b\r\n:1\r\n",
            ">1\r\n+a\r\n",
            "%9223372036854775807\r\n",
            "$9223372036854775807\r\n",
        ] {
            assert_eq!(json(reply, WHOLE), Err(Unfit::Malformed), "{reply:?}");
        }
    }

    #[test]
    fn writing_stops_at_the_limit() {
        for bytes in [1_000, 200_000] {
            for byte in ["x", "\u{1}", "\"", "\u{e4}"] {
                let text = byte.repeat(bytes);
                let reply = format!("*2\r\n:1\r\n${}\r\n{text}\r\n", text.len());
                for form in [WHOLE, BASE64] {
                    let length = json(&reply, form).expect("no limit").len();
                    for bytes_max in [0, 1, 2, 100, length / 2, length - 3] {
                        let mut out = Vec::new();
                        let told = write_json(&mut out, &mut reply.as_bytes(), Form { bytes_max, ..form });
                        assert_eq!(told, Err(Unfit::TooLarge), "{byte:?} {bytes_max}");
                        assert!(out.len() <= bytes_max + 3, "{} of {bytes_max}", out.len());
                    }
                    assert!(json(&reply, Form { bytes_max: length, ..form }).is_ok());
                }
            }
        }
    }

    /// Returns texts of bytes that are often escaped, often not UTF-8, and sometimes longer than a block that
    /// is checked at once.
    fn texts() -> impl Strategy<Value = Vec<u8>> {
        let part = prop_oneof![
            any::<u8>().prop_map(|byte| vec![byte]),
            prop::collection::vec(0_u8..0x30, 0..10),
            "[a-z]{0,100}".prop_map(String::into_bytes),
            "\\PC{0,30}".prop_map(String::into_bytes),
            (CHECKED_BYTES - 4..CHECKED_BYTES + 4).prop_map(|length| vec![b'x'; length]),
        ];
        prop::collection::vec(part, 0..20).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_text_is_written_as_a_slow_model_writes_it(text in texts()) {
            let mut out = Vec::new();
            write_text(&mut out, &text, WHOLE).expect("no limit");
            let model = serde_json::to_vec(&String::from_utf8_lossy(&text)).expect("a text");
            prop_assert!(out == model, "{:?}", String::from_utf8_lossy(&out));
        }

        #[test]
        fn whatever_a_store_sends_is_json_or_refused(reply in prop::collection::vec(
            prop_oneof![
                Just("*2\r\n"), Just("%1\r\n"), Just("~1\r\n"), Just(":"), Just(","), Just("("), Just("_"), Just("#"), Just("+"),
                Just("-"), Just("$1\r\n"), Just("=5\r\n"), Just("1"), Just("t"), Just("txt:"), Just("\""), Just("\r\n"), Just(","),
                Just("e5"), Just("inf"), Just("\u{1}"), Just("]"),
            ],
            0..12,
        )) {
            let (reply, mut out) = (reply.concat(), Vec::new());
            if write_json(&mut out, &mut reply.as_bytes(), WHOLE).is_ok() {
                let value = serde_json::from_slice::<serde_json::Value>(&out);
                prop_assert!(value.is_ok(), "{reply:?}: {}", String::from_utf8_lossy(&out));
            }
        }
    }
}
