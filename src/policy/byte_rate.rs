//! Limit on bytes per second, for work that is skipped when there is too much of it.

use crate::values::Timestamp;

/// A budget of bytes that grows with time, up to a limit (burst). One piece of work may overdraw it; then no
/// further bytes may be spent until that is made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRate {
    per_second: u64,
    /// The most bytes that the budget can hold, in millionths of a byte.
    burst: i64,
    /// Bytes left in the budget, in millionths, so that each microsecond adds a whole number; below zero
    /// while overdrawn.
    left: i64,
    /// Time up to which the budget has grown, in whole microseconds.
    refilled_micros: u64,
}

impl ByteRate {
    /// Creates a full budget: it holds at most `burst` bytes, and grows by `per_second` bytes per second.
    pub const fn new(per_second: u64, burst: u64) -> Self {
        let burst = (burst * 1_000_000) as i64;
        Self { per_second, burst, left: burst, refilled_micros: 0 }
    }

    /// True if bytes may be spent now, because some are left. Adds those that have come in since the last
    /// call.
    pub fn has_some(&mut self, now: Timestamp) -> bool {
        let micros = now.as_nanos() / 1_000;
        let elapsed = micros.saturating_sub(self.refilled_micros);
        if elapsed > 0 {
            let came_in = elapsed.saturating_mul(self.per_second).min(i64::MAX as u64 / 2) as i64;
            self.left = self.left.saturating_add(came_in).min(self.burst);
            self.refilled_micros = micros;
        }
        self.left > 0
    }

    /// Subtracts bytes that were spent; the budget may fall below zero.
    pub fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes as i64 * 1_000_000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_is_at_most_the_burst_and_what_came_in_since() {
        const LARGEST: u64 = 600;
        let (per_second, burst) = (1_000_000, 4_096);
        let mut rate = ByteRate::new(per_second, burst);
        let mut random = crate::values::Random::new(7);
        let (mut micros, mut spent, mut refused) = (0, 0, 0);
        for _ in 0..100_000 {
            micros += random.bits() % 400;
            let bytes = random.bits() % LARGEST;
            if rate.has_some(Timestamp::from_nanos(micros * 1_000 + 999)) {
                rate.spend(bytes as usize);
                spent += bytes;
            } else {
                refused += 1;
            }
            assert!(spent < burst + micros * per_second / 1_000_000 + LARGEST);
        }
        assert!(refused > 0, "more was asked for than there was at some time");
        assert!(spent > micros * per_second / 1_000_000 * 9 / 10, "and not much less was granted");
    }

    #[test]
    fn looking_often_loses_nothing() {
        let mut rate = ByteRate::new(3, 10);
        rate.spend(10);
        let first = (1..=2_000_000_u64).find(|micros| rate.has_some(Timestamp::from_nanos(micros * 1_000)));
        assert_eq!(first, Some(1));
        rate.spend(3);
        assert!(!rate.has_some(Timestamp::from_millis(1_000)));
        assert!(rate.has_some(Timestamp::from_nanos(1_000_001_000)));
        assert!(rate.has_some(Timestamp::MAX));
    }
}
