//! A request within `QOS CALL`: what weir is told beside it, by whoever keeps a deadline itself.

use super::encode;
use crate::values::Tier;

/// Writes the beginning of `QOS CALL DEADLINE millis [TIER tier] request`. How many bytes of the request it stands in place of:
/// what follows them belongs behind it. None, and nothing written, if the request is no array of bulk strings.
pub fn begin_call(out: &mut Vec<u8>, request: &[u8], millis: u64, tier: Option<Tier>) -> Option<usize> {
    let head = request.iter().position(|byte| *byte == b'\n')? + 1;
    let digits = request[..head].strip_prefix(b"*")?.strip_suffix(b"\r\n")?;
    let count: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let added = if tier.is_some() { 6 } else { 4 };
    encode::array(out, count.checked_add(added)?);
    out.extend_from_slice(b"$3\r\nQOS\r\n$4\r\nCALL\r\n$8\r\nDEADLINE\r\n");
    encode::header(out, b'$', millis.checked_ilog10().unwrap_or(0) as usize + 1);
    encode::decimal(out, i64::try_from(millis).unwrap_or(i64::MAX));
    out.extend_from_slice(b"\r\n");
    if let Some(tier) = tier {
        out.extend_from_slice(b"$4\r\nTIER\r\n");
        encode::bulk(out, tier.name().as_bytes());
    }
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(request: &str, millis: u64, tier: Option<Tier>) -> Option<String> {
        let mut out = Vec::new();
        let Some(head) = begin_call(&mut out, request.as_bytes(), millis, tier) else {
            assert!(out.is_empty());
            return None;
        };
        out.extend_from_slice(&request.as_bytes()[head..]);
        Some(String::from_utf8(out).expect("text"))
    }

    fn encoded(words: &[&str]) -> String {
        let mut out = Vec::new();
        encode::request(&mut out, words.iter().map(|word| word.as_bytes()));
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_call_is_the_request_with_words_before_it() {
        for millis in [0, 1, 9, 10, 99, 100, 86_400_000] {
            let digits = millis.to_string();
            for words in [&["PING"][..], &["GET", "a"], &["SET", "a", ""], &["MGET"; 10]] {
                let plain = [&["QOS", "CALL", "DEADLINE", &digits], words].concat();
                assert_eq!(called(&encoded(words), millis, None), Some(encoded(&plain)));
                for tier in Tier::ALL {
                    let told = ["QOS", "CALL", "DEADLINE", &digits, "TIER", tier.name()];
                    let wanted = encoded(&[&told[..], words].concat());
                    assert_eq!(called(&encoded(words), millis, Some(tier)), Some(wanted));
                }
            }
        }
    }

    #[test]
    fn what_is_no_array_stays_as_it_is() {
        for request in ["", "PING\r\n", "*x\r\n", "*\r\n", "*-1\r\n", "*1\n", "*18446744073709551615\r\n"] {
            assert_eq!(called(request, 5, None), None, "{request:?}");
        }
    }
}
