//! The pause before a request is sent again: a random time up to a bound that doubles (exponential backoff
//! with full jitter), so that clients that failed together do not come back together.

use std::time::Duration;

use weir::values::Random;

/// The upper bounds of the random pause before a retry: each pause is drawn from zero to the bound, which
/// doubles from retry to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The upper bound of the pause before the first retry; it doubles with each further retry.
    pub first: Duration,
    /// The largest upper bound of a pause, at which the doubling from retry to retry ends: no pause is
    /// longer.
    pub most: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), most: Duration::from_secs(2) }
    }
}

impl Backoff {
    /// Draws the random pause before the next attempt at a request, after `attempts` attempts (at least 1)
    /// have failed.
    pub fn pause(&self, attempts: u8, random: &mut Random) -> Duration {
        let bound = doubled(self.first, u32::from(attempts.saturating_sub(1)), self.most);
        Duration::from_nanos(random.between(0, bound.as_nanos() as u64))
    }
}

/// Returns the duration `first` doubled `times` times, but at most `most`.
pub(super) fn doubled(first: Duration, times: u32, most: Duration) -> Duration {
    let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(most)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bounds_double_up_to_the_most(first in 0..1_000_u64, most in 0..10_000_u64, times in 0..255_u32) {
            let mut model = Duration::from_millis(first);
            for _ in 0..times {
                model = (model * 2).min(Duration::from_secs(3_600));
            }
            let most = Duration::from_millis(most);
            prop_assert_eq!(doubled(Duration::from_millis(first), times, most), model.min(most));
        }
    }

    #[test]
    fn pauses_are_spread_over_all_of_the_time_up_to_the_bound() {
        let backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_millis(300) };
        let mut random = Random::new(1);
        for (attempts, bound) in [(1, 100), (2, 200), (3, 300), (200, 300)] {
            let mut tenths = [0; 10];
            for _ in 0..10_000 {
                let pause = backoff.pause(attempts, &mut random);
                assert!(pause <= Duration::from_millis(bound));
                tenths[(pause.as_micros() / 100 / u128::from(bound)).min(9) as usize] += 1;
            }
            assert!(tenths.iter().all(|count| (850..1_150).contains(count)), "{tenths:?}");
        }
    }
}
