//! When to look after timeouts, and when to give memory back.

use std::time::Duration;

use crate::shard::counters::{Counter, Counters};
use crate::values::Timestamp;
use crate::values::time::Now;

/// How often slow things (timeouts) are looked at while there is something to look at.
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// How often memory is given back. A burst leaves nothing behind after some ten times this.
const TIDIED_EVERY: Duration = Duration::from_secs(1);

/// What is due when.
#[derive(Debug, Default)]
pub struct Upkeep {
    housekeeping_at: Option<Timestamp>,
    /// When memory is given back that was not needed for a while.
    tidy_at: Option<Timestamp>,
    /// There was more to give back than was given back last.
    untidy: bool,
    /// What had been done by then.
    work_tidied: u64,
    /// Something was given back since it was last asked.
    tidied: bool,
}

impl Upkeep {
    /// Is it time for housekeeping? Whoever asks does it then.
    pub fn take_housekeeping(&mut self, now: Now) -> bool {
        let is_due = self.housekeeping_at.is_some_and(|at| at <= now.monotonic);
        if is_due {
            self.housekeeping_at = None;
        }
        is_due
    }

    /// Is it known when the next housekeeping is?
    pub fn is_housekeeping_planned(&self) -> bool {
        self.housekeeping_at.is_some()
    }

    /// There is something to look at.
    pub fn plan_housekeeping(&mut self, now: Timestamp) {
        self.housekeeping_at.get_or_insert_with(|| now.after(HOUSEKEEPING));
    }

    /// Something is done: sooner or later there is something to tidy.
    pub fn plan_tidying(&mut self, counters: &Counters, now: Now) {
        if self.tidy_at.is_none() && (self.untidy || work_done(counters) != self.work_tidied) {
            self.tidy_at = Some(now.monotonic.after(TIDIED_EVERY));
        }
    }

    /// Is it time to tidy? Whoever asks does it then: what is of clients that have been idle since then may go.
    pub fn take_tidying(&mut self, counters: &Counters, now: Now) -> Option<Timestamp> {
        if self.tidy_at.is_none_or(|at| at > now.monotonic) {
            return None;
        }
        (self.tidy_at, self.tidied) = (None, true);
        self.work_tidied = work_done(counters);
        Some(now.monotonic.before(TIDIED_EVERY))
    }

    /// It is done; there may be more of it next time.
    pub fn handle_tidied(&mut self, untidy: bool) {
        self.untidy = untidy;
    }

    /// Was memory given back since this was asked last?
    pub fn take_tidied(&mut self) -> bool {
        std::mem::take(&mut self.tidied)
    }

    /// What is due next, and when.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        match (self.housekeeping_at, self.tidy_at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }
}

fn work_done(counters: &Counters) -> u64 {
    counters.get(Counter::Requests)
        + counters.get(Counter::RepliesReceived)
        + counters.get(Counter::ClientsOpened)
        + counters.get(Counter::BatchesReceived)
}
