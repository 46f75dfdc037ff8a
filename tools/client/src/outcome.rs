//! The outcome of an attempt at a request, as far as the client library acts on it.

use std::time::Duration;

/// The longest `retry_after_ms` of an error reply that is honoured; a longer one is cut to it, as a mistake
/// must not keep a client away for good.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// The reason for which weir refused a request, from the first word of the error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A quota is used up (`-THROTTLED`).
    Throttled,
    /// There is not enough capacity for all requests at present, or the store has stalled (`-OVERLOADED`).
    Overloaded,
    /// No store can answer the request at present (`-UNAVAILABLE`): its store cannot be reached or was ejected (taken
    /// out of use), the connection was lost before the reply, or no node of the cluster takes the request.
    Unavailable,
    /// The request could not be answered within its deadline (`-DEADLINE`).
    Deadline,
}

impl Refusal {
    /// Returns the refusal that the first word of an error reply names; `None` for any other error.
    pub fn named(word: &[u8]) -> Option<Self> {
        match word {
            b"THROTTLED" => Some(Self::Throttled),
            b"OVERLOADED" => Some(Self::Overloaded),
            b"UNAVAILABLE" => Some(Self::Unavailable),
            b"DEADLINE" => Some(Self::Deadline),
            _ => None,
        }
    }
}

/// The way in which an attempt at a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request was answered by a reply, or by an error that is no refusal of weir's.
    Answered,
    /// weir refused the request; the duration is the `retry_after_ms` in its error reply, if there is one.
    Refused(Refusal, Option<Duration>),
    /// The reply did not come within the timeout.
    TimedOut,
    /// The connection was lost before the reply came.
    Lost,
}

impl Outcome {
    /// Reads the text of an error reply without its `-`, such as `OVERLOADED reason=queue
    /// backend=10.0.0.5:6379 retry_after_ms=12`. An error that is no refusal of weir's counts as answered.
    pub fn of_error(text: &[u8]) -> Self {
        let mut words = text.split(u8::is_ascii_whitespace);
        match words.next().and_then(Refusal::named) {
            Some(refusal) => Self::Refused(refusal, words.find_map(retry_after)),
            None => Self::Answered,
        }
    }

    /// Returns the pause before the next attempt that a refusal asked for; `None` if the outcome is no
    /// refusal or named none.
    pub const fn retry_after(self) -> Option<Duration> {
        if let Self::Refused(_, retry_after) = self { retry_after } else { None }
    }
}

fn retry_after(word: &[u8]) -> Option<Duration> {
    let digits = word.strip_prefix(b"retry_after_ms=")?;
    std::str::from_utf8(digits)
        .ok()?
        .parse()
        .ok()
        .map(|millis| Duration::from_millis(millis).min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_replies() {
        let refused =
            |refusal, millis: Option<u64>| Outcome::Refused(refusal, millis.map(Duration::from_millis));
        for (text, outcome) in [
            (
                "THROTTLED scope=tenant name=acme limit=5000 remaining=0 retry_after_ms=37",
                refused(Refusal::Throttled, Some(37)),
            ),
            (
                "OVERLOADED reason=queue backend=10.0.0.5:6379 retry_after_ms=12\r\n",
                refused(Refusal::Overloaded, Some(12)),
            ),
            (
                "UNAVAILABLE backend=a:1 reason=ejected retry_after_ms=900",
                refused(Refusal::Unavailable, Some(900)),
            ),
            ("DEADLINE stage=queue waited_ms=20", refused(Refusal::Deadline, None)),
            ("OVERLOADED retry_after_ms=soon", refused(Refusal::Overloaded, None)),
            ("OVERLOADED retry_after_ms=-1", refused(Refusal::Overloaded, None)),
            ("OVERLOADED retry_after_ms=99999999999999999999999", refused(Refusal::Overloaded, None)),
            ("OVERLOADEDX retry_after_ms=1", Outcome::Answered),
            ("LOADING Redis is loading", Outcome::Answered),
            ("", Outcome::Answered),
        ] {
            assert_eq!(Outcome::of_error(text.as_bytes()), outcome, "{text}");
        }
        let never = Outcome::of_error(format!("UNAVAILABLE retry_after_ms={}", u64::MAX).as_bytes());
        assert_eq!(never.retry_after(), Some(RETRY_AFTER_MAX));
        assert_eq!(Outcome::TimedOut.retry_after(), None);
    }
}
