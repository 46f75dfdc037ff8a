//! Refusals: outcomes, not errors. One enum, one place that words them.

use std::time::Duration;

use super::counters::{Counter, Pressure};
use crate::protocol::encode;

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
    /// A quota is used up.
    Throttled {
        /// Whose: `global`, `tenant` or `user`; or `key`, for writes of one that is hot.
        scope: &'static str,
        /// The tenant's name, or the key.
        tenant: &'a str,
        /// The user's within it.
        user: Option<&'a str>,
        /// Request units per second; of a key, writes.
        limit: u64,
        /// Whole units that are left.
        remaining: u64,
        /// When there will be enough.
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
    /// The backend stands still with the request in flight. A write may be carried out yet.
    Abandoned {
        /// The backend's address.
        backend: &'a str,
        /// It was a write.
        may_have_happened: bool,
        /// When a new attempt makes sense.
        retry_after: Duration,
    },
    /// Nobody has a use for an answer any more.
    TooLate {
        /// Where the request was then.
        stage: Stage,
        /// For how long it had waited there.
        waited: Duration,
        /// It was a write, and had been sent.
        may_have_happened: bool,
    },
}

/// What is said of a write that was sent and not answered.
const MAY_HAVE_HAPPENED: &str = " (it may have happened)";

/// Why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// The backend could not be reached; the next attempt is this far away.
    Down(Duration),
    /// The backend is sick, and left alone until then.
    Ejected(Duration),
    /// Too much is in flight on the connection.
    Full,
    /// Too much waits for the core that the key is at home on.
    CoreFull,
    /// As much is in flight at the backend as may be, and nothing waits for it.
    Window(Duration),
    /// Too much waits for the backend, or it would have waited for too long.
    Queue(Duration),
    /// The backend stands still.
    Stalled(Duration),
    /// The backend is much slower than it used to be, and others matter more.
    Strained,
    /// It could not be answered in time; where it was then, and for how long it had waited.
    TooLate(Stage, Duration),
    /// No node of the cluster owns its slot.
    NoOwner,
    /// A node of the cluster was asked for being a primary, and is none.
    NotPrimary,
    /// Not all primaries of the cluster could be asked, so nobody knows whether it would miss something.
    Unconfirmed,
    /// Nodes of the cluster sent it to each other, for too long or though it may have been carried out.
    Redirects,
}

/// How far a request had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It had just come, or waited for earlier ones of its connection.
    Arrival,
    /// It waited for room at its backend.
    Queue,
    /// It was with the backend.
    Backend,
}

impl Stage {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arrival => "arrival",
            Self::Queue => "queue",
            Self::Backend => "backend",
        }
    }
}

/// When to come back to a backend that is too slow for what matters little: levels last for a second at least.
const RETRY_STRAINED: Duration = Duration::from_secs(1);
/// When to come back to a slot that is between two nodes.
const RETRY_MOVED: Duration = Duration::from_millis(100);
/// When to come back after something had no room.
const RETRY_WHEN_FULL: Duration = Duration::from_millis(10);

impl NotSent {
    /// Under which pressure it was refused, if any.
    pub const fn pressure(self) -> Option<Pressure> {
        match self {
            Self::Down(_)
            | Self::Ejected(_)
            | Self::CoreFull
            | Self::NoOwner
            | Self::NotPrimary
            | Self::Unconfirmed
            | Self::Redirects => None,
            Self::Full | Self::Queue(_) => Some(Pressure::Queue),
            Self::Window(_) => Some(Pressure::Window),
            Self::Stalled(_) => Some(Pressure::Stalled),
            Self::Strained => Some(Pressure::Latency),
            Self::TooLate(..) => Some(Pressure::Deadline),
        }
    }

    /// The same as its client is told, and what counts it.
    pub fn refusal(self, backend: &str) -> (Counter, Refusal<'_>) {
        let overloaded = |reason, retry_after| Refusal::Overloaded { reason, backend, retry_after };
        let full = |reason| overloaded(reason, RETRY_WHEN_FULL);
        match self {
            Self::Window(retry_after) => (Counter::RefusedOverloaded, overloaded("window", retry_after)),
            Self::Queue(retry_after) => (Counter::RefusedOverloaded, overloaded("queue", retry_after)),
            Self::Stalled(retry_after) => (Counter::RefusedOverloaded, overloaded("stalled", retry_after)),
            Self::Strained => (Counter::RefusedOverloaded, overloaded("latency", RETRY_STRAINED)),
            Self::TooLate(stage, waited) => {
                (Counter::RefusedDeadline, Refusal::TooLate { stage, waited, may_have_happened: false })
            }
            Self::Down(retry_after) => (
                Counter::RefusedUnavailable,
                Refusal::Unavailable { backend, reason: "connect-failed", retry_after },
            ),
            Self::Ejected(retry_after) => (
                Counter::RefusedUnavailable,
                Refusal::Unavailable { backend, reason: "ejected", retry_after },
            ),
            Self::NoOwner | Self::NotPrimary | Self::Unconfirmed | Self::Redirects => {
                let reason = match self {
                    Self::NoOwner => "no-owner",
                    Self::NotPrimary => "not-primary",
                    Self::Unconfirmed => "topology",
                    _ => "redirects",
                };
                let retry_after = RETRY_MOVED;
                (Counter::RefusedUnavailable, Refusal::Unavailable { backend, reason, retry_after })
            }
            Self::Full => (Counter::RefusedOverloaded, full("pending")),
            Self::CoreFull => (Counter::RefusedOverloaded, full("core")),
        }
    }
}

impl Refusal<'_> {
    /// Appends the error reply.
    pub fn encode(&self, out: &mut Vec<u8>) {
        use std::io::Write as _;
        if let Self::Throttled { scope, tenant, user, limit, remaining, retry_after } = *self {
            return throttled(out, [scope, tenant], user, [limit, remaining], retry_after);
        }
        let unsure = |it_may: bool| if it_may { MAY_HAVE_HAPPENED } else { "" };
        let written = match *self {
            Self::Throttled { .. } => unreachable!("worded above"),
            Self::Unavailable { backend, reason, retry_after } => write!(
                out,
                "-UNAVAILABLE backend={backend} reason={reason} retry_after_ms={}\r\n",
                retry_after.as_millis()
            ),
            Self::Overloaded { reason, backend, retry_after } => {
                overloaded(out, reason, backend, retry_after);
                Ok(())
            }
            Self::Abandoned { backend, may_have_happened, retry_after } => write!(
                out,
                "-OVERLOADED reason=stalled backend={backend} retry_after_ms={}{}\r\n",
                retry_after.as_millis(),
                unsure(may_have_happened)
            ),
            Self::TooLate { stage, waited, may_have_happened } => write!(
                out,
                "-DEADLINE stage={} waited_ms={}{}\r\n",
                stage.name(),
                waited.as_millis(),
                unsure(may_have_happened)
            ),
        };
        written.expect("writing to a vector does not fail");
    }
}

/// The same under too much load.
fn overloaded(out: &mut Vec<u8>, reason: &str, backend: &str, retry_after: Duration) {
    for text in ["-OVERLOADED reason=", reason, " backend=", backend, " retry_after_ms="] {
        out.extend_from_slice(text.as_bytes());
    }
    encode::decimal(out, retry_after.as_millis() as i64);
    out.extend_from_slice(b"\r\n");
}

/// Under a flood these are most of what weir says, so they are put together without the machinery of formatting.
fn throttled(
    out: &mut Vec<u8>,
    [scope, tenant]: [&str; 2],
    user: Option<&str>,
    [limit, remaining]: [u64; 2],
    retry_after: Duration,
) {
    let retry_after_ms = (retry_after.as_micros() as u64).div_ceil(1_000).max(1);
    let mut text = |text: &str| out.extend_from_slice(text.as_bytes());
    text("-THROTTLED scope=");
    text(scope);
    text(" name=");
    text(tenant);
    if let Some(user) = user {
        text("/");
        text(user);
    }
    for (name, value) in
        [(" limit=", limit), (" remaining=", remaining), (" retry_after_ms=", retry_after_ms)]
    {
        out.extend_from_slice(name.as_bytes());
        encode::decimal(out, value.min(i64::MAX as u64) as i64);
    }
    out.extend_from_slice(b"\r\n");
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
        out.clear();
        let (tenant, retry_after) = ("acme", Duration::from_micros(36_001));
        Refusal::Throttled { scope: "tenant", tenant, user: None, limit: 5_000, remaining: 0, retry_after }
            .encode(&mut out);
        let user = Some("ann");
        Refusal::Throttled {
            scope: "user",
            tenant,
            user,
            limit: 10,
            remaining: 3,
            retry_after: Duration::ZERO,
        }
        .encode(&mut out);
        let lines = "-THROTTLED scope=tenant name=acme limit=5000 remaining=0 retry_after_ms=37\r\n\
                     -THROTTLED scope=user name=acme/ann limit=10 remaining=3 retry_after_ms=1\r\n";
        assert_eq!(String::from_utf8_lossy(&out), lines);
    }
}
