//! Sends the rest of a deadline along: weir does not begin what cannot be answered in time.

use std::time::Duration;

use crate::protocol::encode;

/// Less is not told to weir, and no time for a reply.
pub(super) const REST_LEAST: Duration = Duration::from_millis(1);

/// Words that `QOS CALL DEADLINE rest` puts before a request.
const WORDS: usize = 4;

/// Appends `request`, one array of bulk strings, as `QOS CALL DEADLINE rest request`. What is no such array is appended
/// as it is, and so is everything when less than a millisecond is left.
pub fn call_within(out: &mut Vec<u8>, request: &[u8], rest: Duration) {
    let header = request.iter().position(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    let (header, words) = request.split_at(header);
    let count = header.strip_prefix(b"*").and_then(|digits| digits.strip_suffix(b"\r\n"));
    let count = count.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<usize>().ok());
    match count {
        Some(count) if rest >= REST_LEAST => {
            encode::array(out, count.saturating_add(WORDS));
            let millis = rest.as_millis().to_string();
            for word in ["QOS", "CALL", "DEADLINE", &millis] {
                encode::bulk(out, word.as_bytes());
            }
            out.extend_from_slice(words);
        }
        _ => out.extend_from_slice(request),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(request: &str, micros: u64) -> String {
        let mut out = Vec::new();
        call_within(&mut out, request.as_bytes(), Duration::from_micros(micros));
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn the_rest_stands_before_the_request() {
        assert_eq!(
            called("*2\r\n$3\r\nGET\r\n$1\r\na\r\n", 37_900),
            "*6\r\n$3\r\nQOS\r\n$4\r\nCALL\r\n$8\r\nDEADLINE\r\n$2\r\n37\r\n$3\r\nGET\r\n$1\r\na\r\n"
        );
        for (request, micros) in
            [("*1\r\n$4\r\nPING\r\n", 999), ("PING\r\n", 5_000), ("*x\r\n", 5_000), ("", 5_000)]
        {
            assert_eq!(called(request, micros), request);
        }
    }
}
