//! A histogram of times that one core measures: response times of backends, ages of replies from memory.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Precision of the histogram of times, in decimal digits: two are enough for percentiles, and keep it in the
/// CPU cache.
const SIGNIFICANT_DIGITS: u8 = 2;
/// The largest time that is counted, 60 s in microseconds. Longer times count as this.
const MICROS_MAX: u64 = 60_000_000;

/// A histogram of times in microseconds, with their exact sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Durations {
    micros: Histogram<u64>,
    sum_nanos: u64,
    /// The time recorded last, in nanoseconds, and how often it was recorded in a row. These are not in the
    /// histogram yet: times of one batch are often equal, and are then added together.
    run: (u64, u64),
}

impl Default for Durations {
    fn default() -> Self {
        let micros = Histogram::new_with_bounds(1, MICROS_MAX, SIGNIFICANT_DIGITS);
        Self { micros: micros.expect("the bounds are constant and valid"), sum_nanos: 0, run: (0, 0) }
    }
}

impl Durations {
    /// Counts one duration, given in nanoseconds.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        if nanos != self.run.0 {
            self.end_run(nanos);
        }
        self.run.1 += 1;
    }

    fn end_run(&mut self, nanos: u64) {
        let (before, count) = std::mem::replace(&mut self.run, (nanos, 0));
        self.add_run(before, count);
    }

    fn add_run(&mut self, nanos: u64, count: u64) {
        self.sum_nanos = self.sum_nanos.saturating_add(nanos.saturating_mul(count));
        self.micros.saturating_record_n((nanos / 1_000).clamp(1, MICROS_MAX), count);
    }

    /// Adds the durations that another core has counted to those in this record.
    pub fn merge(&mut self, other: &Self) {
        self.sum_nanos = self.sum_nanos.saturating_add(other.sum_nanos);
        self.micros.add(&other.micros).expect("all have the same bounds");
        self.end_run(0);
        self.add_run(other.run.0, other.run.1);
    }

    /// Returns the times counted since `before`, an earlier copy of this histogram. If `before` has counts
    /// that this histogram lacks, it is of other cores, and all times are returned. Both must be copies made
    /// by [`Durations::told`], or sums of such copies ([`Durations::merge`]), as the last run of equal times
    /// is left out otherwise.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        // If the earlier state has more counts, it is of other cores, and all counts are new.
        if since.micros.subtract(&before.micros).is_err() {
            return self.clone();
        }
        since.sum_nanos = self.sum_nanos.saturating_sub(before.sum_nanos);
        since
    }

    /// Returns a copy in which all times are in the histogram, also the last run of equal times, which is
    /// kept beside it until another time comes.
    #[must_use]
    pub fn told(&self) -> Self {
        let mut told = self.clone();
        told.end_run(0);
        told
    }

    /// Returns the number of durations in the histogram. The last run of equal ones is in it only in a copy
    /// made by [`Durations::told`].
    pub fn count(&self) -> u64 {
        self.micros.len()
    }

    /// Returns the sum of the durations that were counted. The last run of equal ones is in it only in a copy
    /// made by [`Durations::told`].
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }

    /// Returns the time that a share (0 to 1) of the counted times do not exceed, rounded to two digits; zero
    /// if no time was counted.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_micros(self.micros.value_at_quantile(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_two_cores_are_those_of_all_times() {
        let (mut one, mut other) = (Durations::default(), Durations::default());
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
