//! How long backends take, as one core sees it: from handing a request to a connection to its whole reply.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Two digits are enough for a percentile, and keep the histogram in the cache.
const SIGNIFICANT_DIGITS: u8 = 2;
/// Longer times count as this.
const MICROS_MAX: u64 = 60_000_000;

/// A histogram of microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceTimes {
    micros: Histogram<u64>,
    sum_nanos: u64,
    /// Requests that are sent together are often answered together: so many took so many nanoseconds, and are not in the histogram yet.
    run: (u64, u64),
}

impl Default for ServiceTimes {
    fn default() -> Self {
        let micros = Histogram::new_with_bounds(1, MICROS_MAX, SIGNIFICANT_DIGITS);
        Self { micros: micros.expect("the bounds are constant and valid"), sum_nanos: 0, run: (0, 0) }
    }
}

impl ServiceTimes {
    /// Counts one reply that took so many nanoseconds.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        if nanos != self.run.0 {
            self.end_run(nanos);
        }
        self.run.1 += 1;
    }

    fn end_run(&mut self, nanos: u64) {
        let (before, replies) = std::mem::replace(&mut self.run, (nanos, 0));
        self.add_run(before, replies);
    }

    fn add_run(&mut self, nanos: u64, replies: u64) {
        self.sum_nanos = self.sum_nanos.saturating_add(nanos.saturating_mul(replies));
        self.micros.saturating_record_n((nanos / 1_000).clamp(1, MICROS_MAX), replies);
    }

    /// Adds another core's.
    pub fn merge(&mut self, other: &Self) {
        self.sum_nanos = self.sum_nanos.saturating_add(other.sum_nanos);
        self.micros.add(&other.micros).expect("all have the same bounds");
        self.end_run(0);
        self.add_run(other.run.0, other.run.1);
    }

    /// What was counted after these, of the same cores; both as they are told.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        // Where there was more before, these are not the same cores; then all is new.
        if since.micros.subtract(&before.micros).is_err() {
            return self.clone();
        }
        since.sum_nanos = self.sum_nanos.saturating_sub(before.sum_nanos);
        since
    }

    /// As it stands, to be read.
    #[must_use]
    pub fn told(&self) -> Self {
        let mut told = self.clone();
        told.end_run(0);
        told
    }

    /// Replies counted.
    pub fn count(&self) -> u64 {
        self.micros.len()
    }

    /// All their times together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }

    /// The time that this share of replies did not exceed; nothing where there are none.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_micros(self.micros.value_at_quantile(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_two_cores_are_those_of_all_replies() {
        let (mut one, mut other) = (ServiceTimes::default(), ServiceTimes::default());
        (1..=90).for_each(|_| one.record(100_000));
        (1..=10).for_each(|_| other.record(5_000_000));
        other.record(100_000_000_000_000);
        one.merge(&other);
        assert_eq!(one.count(), 101);
        assert_eq!(one.quantile(0.5), Duration::from_micros(100));
        let high = one.quantile(0.95).as_micros();
        assert!((4950..=5050).contains(&high), "{high}");
        let before = one.told();
        one.record(7_000_000);
        let since = one.told().since(&before);
        assert_eq!((since.count(), since.sum()), (1, Duration::from_millis(7)));
        assert_eq!(before.since(&one.told()).count(), 101, "not the same cores");
    }
}
