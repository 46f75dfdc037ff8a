//! Gives memory back after a burst: buffers that nobody needed for a while, and lists that were long once.

use std::collections::VecDeque;
use std::time::Duration;

use super::Shard;
use super::counters::Counter;
use crate::values::time::Now;

/// How often. A burst leaves nothing behind after some ten times this.
const TIDIED_EVERY: Duration = Duration::from_secs(1);
/// Lists up to this length are left alone.
const LIST_KEPT: usize = 64;

impl Shard {
    /// Something is done: sooner or later there is something to tidy.
    pub(super) fn plan_tidying(&mut self, now: Now) {
        if self.tidy_at.is_none() && (self.untidy || self.work_done() != self.work_tidied) {
            self.tidy_at = Some(now.monotonic.after(TIDIED_EVERY));
        }
    }

    pub(super) fn tidy_if_due(&mut self, now: Now) {
        if self.tidy_at.is_none_or(|at| at > now.monotonic) {
            return;
        }
        (self.tidy_at, self.tidied) = (None, true);
        self.work_tidied = self.work_done();
        let buffers = self.pool.tidy();
        let batches = self.spare_batches.tidy(drop);
        self.untidy = buffers || batches;
        self.links.iter_mut().for_each(|link| shorten(&mut link.pending));
        self.gathers.tidy();
        self.departed.tidy();
        for place in 0..self.clients.places() {
            let Some(id) = self.clients.in_place(place) else { continue };
            let client = self.clients.at(id);
            if now.monotonic.since(client.last_heard) >= TIDIED_EVERY {
                client.tidy();
            } else {
                self.untidy = true;
            }
        }
    }

    /// Was memory given back, so that the system may have it?
    pub fn take_tidied(&mut self) -> bool {
        std::mem::take(&mut self.tidied)
    }

    fn work_done(&self) -> u64 {
        self.counters.get(Counter::Requests)
            + self.counters.get(Counter::RepliesReceived)
            + self.counters.get(Counter::ClientsOpened)
            + self.counters.get(Counter::BatchesReceived)
    }
}

/// Shortens a list that is much longer than what stands in it.
pub(super) fn shorten<T>(list: &mut VecDeque<T>) {
    if list.capacity() > LIST_KEPT && list.len() < list.capacity() / 4 {
        list.shrink_to((list.len() * 2).max(LIST_KEPT));
    }
}
