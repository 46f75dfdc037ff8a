//! Retry budget: how many requests may be sent again, as a share of all that are sent. Where few requests are
//! lost, a retry helps; where most are lost, retries are the load that keeps a store down.

use std::time::Duration;

use crate::values::Timestamp;

/// Number of retries (requests sent again) that each hundred sent requests add to the budget.
const PERCENT: f64 = 10.0;
/// Number of retries (requests sent again) that each second adds to the budget, over all cores and clients, so
/// that some are possible even when few requests are sent, of which 10 % are next to none.
const LEAST_PER_SECOND: f64 = 10.0;
/// Maximum number of retries (requests sent again) that the budget can hold, over all cores; what is added
/// beyond that is lost.
const SAVED_MAX: f64 = 1_000.0;

/// One core's part of the budget that limits how many lost reads are sent again.
#[derive(Clone, Copy, Debug)]
pub struct RetryBudget {
    /// Number of retries that may be sent now, with fractions.
    left: f64,
    /// Maximum number of retries that this core's budget can hold.
    saved_max: f64,
    /// Number of retries that each second adds to this core's budget.
    per_second: f64,
    /// Number of requests that this core had sent at the last call of [`RetryBudget::take`].
    sent: u64,
    /// Time of the last call of [`RetryBudget::take`], up to which the budget has grown.
    at: Timestamp,
}

impl RetryBudget {
    /// Creates the part of one of `cores` cores in the budget that limits how many lost reads are sent again.
    /// The budget begins with one second's retries, at least one.
    pub fn new(cores: u16) -> Self {
        let part = 1.0 / f64::from(cores.max(1));
        let least = (LEAST_PER_SECOND * part).max(1.0);
        Self {
            left: least,
            saved_max: (SAVED_MAX * part).max(least),
            per_second: LEAST_PER_SECOND * part,
            sent: 0,
            at: Timestamp::ZERO,
        }
    }

    /// Takes one retry from the budget; false if less than one is left, so that the request must not be sent
    /// again. `sent` is the number of requests that this core has sent since the start.
    #[must_use]
    pub fn take(&mut self, sent: u64, now: Timestamp) -> bool {
        let new = sent.saturating_sub(self.sent) as f64;
        let passed: Duration = now.since(self.at);
        let earned = new * PERCENT / 100.0 + passed.as_secs_f64() * self.per_second;
        (self.sent, self.at) = (sent, now);
        self.left = (self.left + earned).min(self.saved_max);
        let is_left = self.left >= 1.0;
        if is_left {
            self.left -= 1.0;
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the budget with exact arithmetic: retries are at most a tenth of the requests sent, this
        /// core's share of ten per second, and eleven more.
        #[test]
        fn what_is_sent_again_is_a_share_of_what_is_sent(
            cores in 1..8_u16, steps in prop::collection::vec((0..300_u64, 0..200_u64, 0..40_u8), 1..200),
        ) {
            let mut budget = RetryBudget::new(cores);
            let part = 1_000_000_000 / i128::from(cores);
            let (least, most) = ((10 * part).max(1_000_000_000), (1_000 * part).max(1_000_000_000));
            let (mut left, mut sent, mut millis, mut taken) = (least, 0, 0, 0_u64);
            for (pause, requests, tries) in steps {
                millis += pause;
                sent += requests;
                left += i128::from(pause) * 10 * part / 1_000 + i128::from(requests) * 100_000_000;
                left = left.min(most);
                for _ in 0..tries {
                    let is_taken = budget.take(sent, Timestamp::from_millis(millis));
                    // If both counts are nearly equal, either answer is right.
                    if (left - 1_000_000_000).abs() > 1_000 {
                        prop_assert_eq!(is_taken, left > 1_000_000_000);
                    }
                    if is_taken {
                        left -= 1_000_000_000;
                        taken += 1;
                    }
                }
            }
            let bound = (sent / 10) as f64 + 10.0 * millis as f64 / 1_000.0 / f64::from(cores);
            prop_assert!(taken as f64 <= bound + 10.0 + 1.0, "{} of {}", taken, bound);
        }
    }
}
