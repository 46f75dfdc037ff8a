//! Health board of the stores: the replies and failures that each core has counted of each store, and the
//! state of each store's breaker, one word that any core may change. Cores share it without a lock, as in
//! `board.rs`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::policy::breaker::{Standing, Tally};
use crate::values::limits::COMMAND_CLASSES;
use crate::values::{ShardId, Timestamp};

/// Counts that one core keeps of the replies of one store. They fill cache lines of their own, so that cores
/// do not slow each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Seen {
    replies: AtomicU64,
    failures: AtomicU64,
    /// By class of commands: the 95th percentile of recent response times, in microseconds, in the upper 32
    /// bits, and in the lower the second (of the monotonic clock, counted from 1) in which it was published.
    times: [AtomicU64; COMMAND_CLASSES],
}

/// State of one store's breaker (which refuses requests to an unhealthy store), shared by all cores.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Common {
    standing: AtomicU64,
    /// The response time, in microseconds, up to which the reply to a trial request (one that finds out
    /// whether an ejected store is healthy again) counts as fast.
    fair: AtomicU64,
}

/// Counts and breaker states of all stores, which all cores share.
#[derive(Debug)]
pub struct HealthBoard {
    seen: Box<[Seen]>,
    common: Box<[Common]>,
    shards: usize,
}

/// Number of seconds for which a response time that a core has published on the board is used; an older one counts as
/// unknown.
const FRESH: u64 = 3;

impl HealthBoard {
    /// Creates a board for `shards` cores and `backends` stores, on which every store is healthy.
    pub fn new(shards: u16, backends: u16) -> Self {
        let (shards, backends) = (usize::from(shards), usize::from(backends));
        Self {
            seen: std::iter::repeat_with(Seen::default).take(shards * backends).collect(),
            common: std::iter::repeat_with(Common::default).take(backends).collect(),
            shards,
        }
    }

    fn of(&self, backend: usize) -> &[Seen] {
        &self.seen[backend * self.shards..(backend + 1) * self.shards]
    }

    /// Publishes the replies and failures that a core has counted of a store (`backend` is its number) so far.
    pub fn tell(&self, shard: ShardId, backend: usize, tally: Tally) {
        let own = &self.of(backend)[usize::from(shard.0)];
        own.replies.store(tally.replies, Ordering::Relaxed);
        own.failures.store(tally.failures, Ordering::Relaxed);
    }

    /// Returns the replies and failures of a store (`backend` is its number) that all cores have counted
    /// together.
    pub fn tally(&self, backend: usize) -> Tally {
        self.of(backend).iter().fold(Tally::default(), |sum, seen| Tally {
            replies: sum.replies + seen.replies.load(Ordering::Relaxed),
            failures: sum.failures + seen.failures.load(Ordering::Relaxed),
        })
    }

    /// Publishes the 95th percentile (`p95`) of a store's response times in a class of commands, as one core
    /// sees it.
    pub fn tell_time(&self, shard: ShardId, (backend, class): (usize, usize), p95: Duration, now: Timestamp) {
        let micros = (p95.as_micros() as u64).min(u64::from(u32::MAX));
        let own = &self.of(backend)[usize::from(shard.0)].times[class];
        own.store(micros << 32 | second(now), Ordering::Relaxed);
    }

    /// Returns the 95th percentile of a store's response times in a class of commands that this core
    /// published in the last 3 s. If it published none, the longest that another core did; None if no core
    /// did.
    pub fn time(&self, shard: ShardId, (backend, class): (usize, usize), now: Timestamp) -> Option<Duration> {
        let fresh = |seen: &Seen| {
            let word = seen.times[class].load(Ordering::Relaxed);
            let is_fresh = word != 0 && second(now).saturating_sub(word & u64::from(u32::MAX)) < FRESH;
            is_fresh.then_some(Duration::from_micros(word >> 32))
        };
        let all = self.of(backend);
        fresh(&all[usize::from(shard.0)]).or_else(|| all.iter().filter_map(fresh).max())
    }

    /// Returns the state of the breaker (which refuses requests to an unhealthy store) of the store with
    /// number `backend`.
    pub fn standing(&self, backend: usize) -> Standing {
        Standing::from_bits(self.common[backend].standing.load(Ordering::Relaxed))
    }

    /// Changes the state of the breaker (which refuses requests to an unhealthy store) of the store with number
    /// `backend` from `from` to `to`. False, and nothing is changed, if the state is not `from` because another core
    /// changed it first.
    pub fn change(&self, backend: usize, from: Standing, to: Standing) -> bool {
        let standing = &self.common[backend].standing;
        let (from, to) = (from.to_bits(), to.to_bits());
        standing.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Makes the trial (requests that find out whether the store is healthy again) of the store with number `backend`
    /// due now, if the store is ejected (taken out of use), because the script that kept it busy was killed.
    pub fn handle_script_killed(&self, backend: usize, now: Timestamp) {
        let standing = self.standing(backend);
        if let Some(due) = standing.end_pause(now) {
            self.change(backend, standing, due);
        }
    }

    /// Resets the breaker (which refuses requests to an unhealthy store) of the backend with this number to
    /// the healthy state, because the number belongs to another store now.
    pub fn forget(&self, backend: usize) {
        self.common[backend].standing.store(0, Ordering::Relaxed);
    }

    /// Returns the response time up to which the reply to a trial request (one that finds out whether an
    /// ejected store is healthy again) to the store with number `backend` counts as fast.
    pub fn fair(&self, backend: usize) -> Duration {
        Duration::from_micros(self.common[backend].fair.load(Ordering::Relaxed))
    }

    /// Sets, for the store with number `backend`, the response time (`fair`) up to which the reply to a trial
    /// request (one that finds out whether the ejected store is healthy again) counts as fast.
    pub fn set_fair(&self, backend: usize, fair: Duration) {
        self.common[backend].fair.store(fair.as_micros() as u64, Ordering::Relaxed);
    }
}

/// Returns the second of a time, counted from 1. Never zero, because a word that is zero means that nothing
/// was published.
fn second(now: Timestamp) -> u64 {
    (now.as_nanos() / 1_000_000_000 + 1).min(u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::breaker::Cause;

    #[test]
    fn what_cores_count_is_added_up_and_one_of_them_changes_what_is_done() {
        let board = HealthBoard::new(3, 2);
        let told = Tally { replies: 5, failures: 1 };
        board.tell(ShardId(0), 1, told);
        board.tell(ShardId(2), 1, told);
        assert_eq!(board.tally(1), Tally { replies: 10, failures: 2 });
        assert_eq!(board.tally(0), Tally::default());
        let well = board.standing(1);
        assert_eq!(well, Standing::default());
        let out = well.set_aside(Cause::Errors, Timestamp::from_millis(1_000), 128);
        assert!(board.change(1, well, out) && !board.change(1, well, out));
        assert_eq!((board.standing(1).stage, board.standing(0)), (out.stage, Standing::default()));
        board.forget(1);
        assert_eq!(board.standing(1), Standing::default());
    }

    #[test]
    fn times_are_this_cores_own_or_the_longest_that_was_told_of_late() {
        let (board, millis) = (HealthBoard::new(3, 1), Duration::from_millis);
        let now = Timestamp::from_millis(100);
        assert_eq!(board.time(ShardId(0), (0, 3), now), None);
        board.tell_time(ShardId(1), (0, 3), millis(7), now);
        board.tell_time(ShardId(2), (0, 3), millis(9), now);
        assert_eq!(board.time(ShardId(0), (0, 3), now), Some(millis(9)));
        assert_eq!(board.time(ShardId(1), (0, 3), now), Some(millis(7)));
        assert_eq!(board.time(ShardId(1), (0, 2), now), None);
        assert_eq!(board.time(ShardId(1), (0, 3), now.after(millis(3_000))), None);
    }
}
