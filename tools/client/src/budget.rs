//! The retry budget: retries are limited to a share of the requests that are sent anyway. Retries help where
//! few requests fail; where most fail, retries are the load that keeps the target overloaded.

use std::time::Duration;

use super::window::Window;
use weir::values::Timestamp;

const STRETCHES: usize = 10;

/// The retry budget's limits: the maximum number of retries that a client may send, relative to its
/// requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetPolicy {
    /// Maximum number of retries per hundred new requests, both counted over the last `window` of time.
    pub percent: u32,
    /// Number of retries per window that are allowed on top of `percent`, so that a client with few requests can retry
    /// at all.
    pub least: u32,
    /// The length of the time over which requests and retries are counted; older ones are forgotten.
    pub window: Duration,
}

impl Default for BudgetPolicy {
    fn default() -> Self {
        Self { percent: 10, least: 1, window: Duration::from_secs(10) }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Budget {
    policy: BudgetPolicy,
    requests: Window<STRETCHES>,
    retries: Window<STRETCHES>,
}

impl Budget {
    pub fn new(policy: BudgetPolicy) -> Self {
        Self { policy, requests: Window::new(policy.window), retries: Window::new(policy.window) }
    }

    /// Counts a request that is sent for the first time: the more of these, the more retries are allowed.
    pub fn note_request(&mut self, now: Timestamp) {
        self.requests.add(now);
    }

    /// Takes one retry from the budget, if one is left, and returns true; false if none is left, so that the
    /// retry must not be sent.
    #[must_use]
    pub fn take(&mut self, now: Timestamp) -> bool {
        let earned = self.requests.sum(now) * u64::from(self.policy.percent) / 100;
        let is_left = self.retries.sum(now) < earned + u64::from(self.policy.least);
        if is_left {
            self.retries.add(now);
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the retry budget's decisions with those that follow from lists of all requests and
        /// retries, each with the second of its time.
        #[test]
        fn retries_are_a_share_of_the_requests_of_the_same_time(
            percent in 0..50_u32, least in 0..5_u32, steps in prop::collection::vec((0..300_u64, 0..3_u8), 1..400),
        ) {
            let policy = BudgetPolicy { percent, least, window: Duration::from_secs(10) };
            let mut budget = Budget::new(policy);
            let (mut requests, mut retries): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
            let mut millis = 0;
            for (pause, kind) in steps {
                millis += pause;
                let (now, second) = (Timestamp::from_millis(millis), millis / 1_000);
                let recent = |all: &[u64]| all.iter().filter(|other| **other + 10 > second).count() as u64;
                if kind > 0 {
                    budget.note_request(now);
                    requests.push(second);
                    continue;
                }
                let earned = recent(&requests) * u64::from(percent) / 100 + u64::from(least);
                let expected = recent(&retries) < earned;
                prop_assert_eq!(budget.take(now), expected);
                if expected {
                    retries.push(second);
                }
            }
        }
    }
}
