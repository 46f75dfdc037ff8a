//! How long a backend may be silent on a connection before the connection is given up.

use std::time::Duration;

use super::link::{Link, LinkState};
use crate::shard::pending::{InFlight, Pending};
use crate::shard::settings::ShardSettings;
use crate::values::Timestamp;
use crate::values::time::Now;

/// The longest silence (without any bytes received) after which weir stops waiting for a replica. It stops after half
/// of the time from sending the read to its deadline, but after 10 ms at the earliest and this at the latest.
const PATIENCE: Duration = Duration::from_millis(100);
/// The shortest silence after which weir stops waiting for a replica, however soon the read's deadline is.
const PATIENCE_LEAST: Duration = Duration::from_millis(10);

/// Returns the time for which a replica may be silent while it owes a read: half of `useful`, the time from
/// sending to the read's deadline, but 10 to 100 ms.
fn patience(useful: Duration) -> Duration {
    (useful / 2).clamp(PATIENCE_LEAST, PATIENCE)
}

/// Returns the time at which a replica that is sent a read now is checked for silence: after half of the time
/// to the read's `deadline`, but at least 10 ms from now and at most 100 ms.
pub fn patient_until(deadline: Timestamp, now: Timestamp) -> Timestamp {
    now.after(patience(deadline.since(now)))
}

impl Link {
    /// Returns the earliest time at which an unanswered read will have waited in silence for too long, if no bytes
    /// come; None if no read is unanswered.
    pub fn silent_at(&self) -> Option<Timestamp> {
        let due = |pending: &Pending| {
            let useful = pending.request().and_then(InFlight::useful).unwrap_or(Duration::MAX);
            pending.sent_at().max(self.heard_at).after(patience(useful))
        };
        self.pending.iter().map(due).min()
    }

    /// True if the replica owes a read and has sent nothing for too long: for half of the time from the read's sending
    /// to its deadline, but at least 10 ms and at most 100 ms. `late`, the delay of this core itself, is added to that
    /// time.
    pub fn is_silent(&self, late: Duration, now: Timestamp) -> bool {
        self.silent_at().is_some_and(|at| at.after(late) <= now)
    }
}

/// Returns the reason to give up a connection, if it has waited too long for a socket, for replies to the greeting (the
/// requests that open a connection) or for a reply; else None. `late` is the delay of this core itself, for which a
/// replica is not blamed.
pub fn overdue(link: &Link, settings: &ShardSettings, late: Duration, now: Now) -> Option<&'static str> {
    let has_passed = |since, timeout| now.monotonic.since(since) >= timeout;
    match link.state {
        LinkState::Opening { since } => {
            has_passed(since, settings.connect_timeout).then_some("connect-timeout")
        }
        LinkState::Open if link.is_for_replica() => link.is_silent(late, now.monotonic).then_some("silent"),
        LinkState::Open | LinkState::Greeting { .. } => {
            let owes_since = link.owes_since()?;
            has_passed(owes_since, settings.reply_timeout).then_some("reply-timeout")
        }
        LinkState::Closed | LinkState::BackingOff { .. } => None,
    }
}
