//! Upkeep: the times at which timeouts are checked and memory is given back after a burst.

use std::time::Duration;

use crate::shard::counters::{Counter, Counters};
use crate::values::Timestamp;
use crate::values::time::Now;

/// Interval at which timeouts are checked (housekeeping) while there is something to check.
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// Interval at which unused memory is freed (tidying) after the shard has worked. Memory of a burst is freed within
/// about ten intervals after the burst.
const TIDIED_EVERY: Duration = Duration::from_secs(1);

/// Times at which the next housekeeping (checks of timeouts) and the next tidying (freeing of unused memory)
/// are due.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// Time at which timeouts are checked next; None if there is nothing to check.
    housekeeping_at: Option<Timestamp>,
    /// Time at which unused memory is freed next (tidying); None if that is not planned.
    tidy_at: Option<Timestamp>,
    /// True if the last tidying (freeing of unused memory) left memory that a later one may free.
    untidy: bool,
    /// Number of events (requests, replies, clients, batches) that the shard had counted at the last
    /// tidying (freeing of unused memory).
    work_tidied: u64,
    /// True if the shard has tidied (looked for unused memory to free) since [`Self::take_tidied`] was last called.
    tidied: bool,
}

impl Upkeep {
    /// True if housekeeping (checks of timeouts) is due. The caller then has to do it, since the planned time
    /// is cleared.
    pub fn take_housekeeping(&mut self, now: Now) -> bool {
        let is_due = self.housekeeping_at.is_some_and(|at| at <= now.monotonic);
        if is_due {
            self.housekeeping_at = None;
        }
        is_due
    }

    /// True if a time for the next housekeeping (checks of timeouts) is set.
    pub fn is_housekeeping_planned(&self) -> bool {
        self.housekeeping_at.is_some()
    }

    /// Plans housekeeping (checks of timeouts) in 100 ms, unless it is planned already.
    pub fn plan_housekeeping(&mut self, now: Timestamp) {
        self.housekeeping_at.get_or_insert_with(|| now.after(HOUSEKEEPING));
    }

    /// Plans tidying (freeing of spare memory) in one second, if the shard has done any work since it was
    /// last tidied, or if the last tidying left memory that can be freed later.
    pub fn plan_tidying(&mut self, counters: &Counters, now: Now) {
        if self.tidy_at.is_none() && (self.untidy || work_done(counters) != self.work_tidied) {
            self.tidy_at = Some(now.monotonic.after(TIDIED_EVERY));
        }
    }

    /// If tidying (freeing of unused memory) is due, which the caller then has to do, returns the time one
    /// second ago: clients that have sent nothing since may give up their buffers. None if it is not due.
    pub fn take_tidying(&mut self, counters: &Counters, now: Now) -> Option<Timestamp> {
        if self.tidy_at.is_none_or(|at| at > now.monotonic) {
            return None;
        }
        (self.tidy_at, self.tidied) = (None, true);
        self.work_tidied = work_done(counters);
        Some(now.monotonic.before(TIDIED_EVERY))
    }

    /// Ends a tidying (freeing of unused memory). `untidy` says that it has left memory that can be freed
    /// later.
    pub fn handle_tidied(&mut self, untidy: bool) {
        self.untidy = untidy;
    }

    /// True if the shard has tidied (looked for unused memory to free) since the last call of this function.
    pub fn take_tidied(&mut self) -> bool {
        std::mem::take(&mut self.tidied)
    }

    /// Returns the earliest time at which housekeeping (checks of timeouts) or tidying (freeing of unused
    /// memory) is due. None if neither is planned.
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
