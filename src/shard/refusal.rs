//! Refusals: outcomes, not errors. One enum, one place that words them.

use std::time::Duration;

/// Why weir itself did not let a request through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal<'a> {
    /// The backend cannot be reached, or was lost before it answered.
    Unavailable {
        /// The backend's address.
        backend: &'a str,
        /// What happened to it.
        reason: &'static str,
        /// When a new attempt makes sense.
        retry_after: Duration,
    },
    /// Too much waits already.
    Overloaded {
        /// What is full.
        reason: &'static str,
        /// The backend it is full before.
        backend: &'a str,
        /// When a new attempt makes sense.
        retry_after: Duration,
    },
}

impl Refusal<'_> {
    /// Appends the error reply.
    pub fn encode(&self, out: &mut Vec<u8>) {
        use std::io::Write as _;
        let written = match self {
            Self::Unavailable { backend, reason, retry_after } => write!(
                out,
                "-UNAVAILABLE backend={backend} reason={reason} retry_after_ms={}\r\n",
                retry_after.as_millis()
            ),
            Self::Overloaded { reason, backend, retry_after } => write!(
                out,
                "-OVERLOADED reason={reason} backend={backend} retry_after_ms={}\r\n",
                retry_after.as_millis()
            ),
        };
        written.expect("writing to a vector does not fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_read_as_documented() {
        let mut out = Vec::new();
        Refusal::Unavailable {
            backend: "10.0.0.5:6379",
            reason: "ejected",
            retry_after: Duration::from_millis(900),
        }
        .encode(&mut out);
        assert_eq!(out, b"-UNAVAILABLE backend=10.0.0.5:6379 reason=ejected retry_after_ms=900\r\n");
        out.clear();
        Refusal::Overloaded { reason: "queue", backend: "a:1", retry_after: Duration::from_millis(12) }
            .encode(&mut out);
        assert_eq!(out, b"-OVERLOADED reason=queue backend=a:1 retry_after_ms=12\r\n");
    }
}
