//! Remaining quotas for response headers: a refusal by one quota carries the state of all others that the
//! request counts against.
//!
//! The state follows the refusal's text, in the same line, and is removed before the text is shown.

use std::fmt::Write;

/// Text between a refusal because of a quota and the state of the request's other quotas.
const ALSO: &str = " also=";
/// Kinds of quotas (scopes), by their names in response headers.
const SCOPES: [&str; 4] = ["global", "tenant", "user", "key"];
/// The largest number that a structured field may have (RFC 9651: fifteen digits); a larger one is shown as
/// this.
const NUMBER_MAX: u64 = 999_999_999_999_999;

/// Appends the state of the other quotas (`others`) that a request counts against to the line of a refusal,
/// as ` also=scope:limit:left,...`: the kind of each quota, its limit in request units per second, and the
/// request units left. The HTTP code removes it again and makes `RateLimit` headers of it. Does nothing if
/// there are none.
pub fn note_quotas(refusal: &mut Vec<u8>, others: &[(&'static str, u64, u64)]) {
    if others.is_empty() || !refusal.ends_with(b"\r\n") {
        return;
    }
    refusal.truncate(refusal.len() - b"\r\n".len());
    let told: Vec<String> =
        others.iter().map(|(scope, limit, left)| format!("{scope}:{limit}:{left}")).collect();
    refusal.extend_from_slice(ALSO.as_bytes());
    refusal.extend_from_slice(told.join(",").as_bytes());
    refusal.extend_from_slice(b"\r\n");
}

/// Splits a refusal (`error`) worded by weir into the text that is shown and the state of other quotas that
/// follows it (empty if none does).
pub(super) fn taken_off(error: &str) -> (&str, &str) {
    // The note is the last word of the error; names before it may contain the same marker.
    let noted = error.rsplit_once(ALSO).filter(|(_, noted)| !noted.contains(' '));
    noted.filter(|_| error.starts_with("THROTTLED ")).unwrap_or((error, ""))
}

/// Returns the kind of quota (scope) with that name; `None` if there is none.
pub(super) fn scope_of(text: &str) -> Option<&'static str> {
    SCOPES.into_iter().find(|scope| *scope == text)
}

/// Returns the values of the headers `RateLimit-Policy` and `RateLimit`, for the quota that refused (its
/// kind, its limit in request units per second, the request units left, and seconds until a retry) and the
/// other quotas, whose state is in `noted`.
pub(super) fn headers(
    (scope, limit, remaining, seconds): (&'static str, u64, u64, u64),
    noted: &str,
) -> (String, String) {
    let [limit, remaining] = [limit, remaining].map(|number| number.min(NUMBER_MAX));
    let mut policy = format!("\"{scope}\";q={limit};w=1;weir-unit=\"ru\"");
    let mut state = format!("\"{scope}\";r={remaining};t={seconds}");
    for one in noted.split(',') {
        let mut parts = one.split(':');
        let scope = parts.next().and_then(scope_of);
        let mut number = || Some(parts.next()?.parse::<u64>().ok()?.min(NUMBER_MAX));
        if let (Some(scope), Some(limit), Some(left)) = (scope, number(), number()) {
            // Writing to a string does not fail.
            let _ = write!(policy, ", \"{scope}\";q={limit};w=1;weir-unit=\"ru\"");
            let _ = write!(state, ", \"{scope}\";r={left}");
        }
    }
    (policy, state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_taken_off_again() {
        let refusal = "-THROTTLED scope=user name=a/b limit=10 remaining=0 retry_after_ms=40\r\n";
        let mut noted = refusal.as_bytes().to_vec();
        note_quotas(&mut noted, &[]);
        assert_eq!(noted, refusal.as_bytes());
        note_quotas(&mut noted, &[("tenant", 5_000, 312), ("global", 100_000, 99_000)]);
        let line = String::from_utf8(noted).expect("text");
        let (shown, told) = taken_off(line[1..].trim_end());
        assert_eq!(shown, refusal[1..].trim_end());
        let (policy, state) = headers(("user", 10, 0, 1), told);
        assert_eq!(
            policy,
            "\"user\";q=10;w=1;weir-unit=\"ru\", \"tenant\";q=5000;w=1;weir-unit=\"ru\", \
             \"global\";q=100000;w=1;weir-unit=\"ru\""
        );
        assert_eq!(state, "\"user\";r=0;t=1, \"tenant\";r=312, \"global\";r=99000");
    }

    #[test]
    fn what_a_store_says_is_left_as_it_is() {
        for error in [
            "ERR x also=tenant:1:1",
            "THROTTLED",
            "THROTTLED scope=key name=x also=tenant:1:1 limit=1 remaining=0",
        ] {
            assert_eq!(taken_off(error), (error, ""));
        }
        let (policy, state) =
            headers(("key", u64::MAX, u64::MAX, 1), "tenant:18446744073709551615:18446744073709551615");
        assert!(
            policy.contains("\"tenant\";q=999999999999999;") && policy.contains("\"key\";q=999999999999999;"),
            "{policy}"
        );
        assert!(state.contains("r=999999999999999;t=1") && !state.contains("1844"), "{state}");
        let (policy, _) = headers(("key", 1, 0, 1), "a\";q=1:2:3,tenant:x:1,tenant,,:::");
        assert_eq!(policy, "\"key\";q=1;w=1;weir-unit=\"ru\"");
    }
}
