//! Sends the remaining time of a deadline along with a request, so that weir does not start requests that
//! cannot be answered in time.

use std::time::Duration;

use weir::protocol::call;

/// The least remaining time of a request's deadline that is sent to weir; with less, no reply could come in
/// time.
pub(super) const REST_LEAST: Duration = Duration::from_millis(1);

/// Appends `request` (an array of bulk strings) to `out` as the command `QOS CALL DEADLINE rest request`,
/// where `rest` is the remaining time in milliseconds. Any other bytes are appended unchanged, as is every
/// request with less than a millisecond left.
pub fn call_within(out: &mut Vec<u8>, request: &[u8], rest: Duration) {
    let mut replaced = 0;
    if rest >= REST_LEAST {
        let millis = u64::try_from(rest.as_millis()).unwrap_or(u64::MAX);
        replaced = call::begin_call(out, request, millis, None).unwrap_or(0);
    }
    out.extend_from_slice(&request[replaced..]);
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
