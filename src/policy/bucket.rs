//! Token bucket in whole numbers: the rate, the burst and the level, without any rounding.

use crate::values::{Capacity, MicroUnits, Part, Timestamp, signed};

/// A token bucket. Its level rises with time up to the burst. The level may be below zero, because the real
/// cost of a request is taken even if it is higher than the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    capacity: Capacity,
    /// Part of the quota's rate and burst that this bucket has; less than all of it where hosts of a fleet
    /// share the quota.
    part: Part,
    level: i64,
    /// Time up to which the bucket's level includes its income, in whole microseconds.
    refilled_micros: u64,
}

impl Bucket {
    /// Creates the token bucket of a quota (`capacity` is its rate and burst), full. `part` is the part of
    /// the quota that this bucket has.
    pub fn full(capacity: Capacity, part: Part, now: Timestamp) -> Self {
        let level = signed(capacity.scaled(part).burst);
        Self { capacity, part, level, refilled_micros: now.as_nanos() / 1_000 }
    }

    /// Adds the income until `now` and returns the level, in millionths of a request unit. `elsewhere` is the
    /// amount that cores hold from this bucket, in the same unit: it counts towards the burst as if it were
    /// in the bucket.
    pub fn refill(&mut self, now: Timestamp, elsewhere: u64) -> i64 {
        self.level = self.level_at(now, elsewhere);
        self.refilled_micros = self.refilled_micros.max(now.as_nanos() / 1_000);
        self.level
    }

    /// Returns the level at `now`, in millionths of a request unit, with the income since the last refill;
    /// changes nothing. `elsewhere` is the amount that cores hold from this bucket, which counts towards the
    /// burst.
    pub fn level_at(&self, now: Timestamp, elsewhere: u64) -> i64 {
        let elapsed = (now.as_nanos() / 1_000).saturating_sub(self.refilled_micros);
        let room = signed(self.burst()).saturating_sub(signed(elsewhere)).saturating_sub(self.level).max(0);
        let came_in = self.part.of(self.capacity.comes_in_micros(elapsed));
        self.level.saturating_add(signed(came_in).min(room))
    }

    /// Returns the amount in the bucket, in millionths of a request unit, without the income since the last refill. A
    /// negative amount is a debt.
    pub const fn level(&self) -> i64 {
        self.level
    }

    /// Returns the rate and the burst of the whole quota.
    pub const fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Returns the part (share) of the quota's rate and burst that this bucket has.
    pub const fn part(&self) -> Part {
        self.part
    }

    /// Returns the burst of the part of the quota that this bucket has: the highest level that the bucket can
    /// have.
    pub fn burst(&self) -> MicroUnits {
        self.capacity.scaled(self.part).burst
    }

    /// Takes an amount, in millionths of a request unit, from the bucket, or puts it back if negative. A debt
    /// (level below zero) cannot grow above `debt_max`; returns the part of the amount that is not taken
    /// because of this bound.
    pub fn book(&mut self, amount: i64, debt_max: MicroUnits) -> MicroUnits {
        let lowest = -signed(debt_max);
        let wanted = self.level.saturating_sub(amount);
        self.level = wanted.max(lowest.min(self.level)).min(signed(self.burst()));
        self.level.saturating_sub(wanted).max(0) as u64
    }

    /// Changes the quota's rate and burst (`capacity`), or this bucket's part of them. The level, refilled
    /// until `now` at the old rate, stays, but is reduced to the new burst if it is higher. `elsewhere` is the
    /// amount that cores hold from this bucket, in millionths of a request unit.
    pub fn resize(&mut self, capacity: Capacity, part: Part, now: Timestamp, elsewhere: u64) {
        self.refill(now, elsewhere);
        (self.capacity, self.part) = (capacity, part);
        self.level = self.level.min(signed(self.burst()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::limits::DEBT_MAX;

    const SLOW: Capacity = Capacity::new(3, 10_000_000);

    fn drained(capacity: Capacity) -> Bucket {
        let mut bucket = Bucket::full(capacity, Part::WHOLE, Timestamp::ZERO);
        assert_eq!(bucket.book(capacity.burst as i64, DEBT_MAX), 0);
        bucket
    }

    #[test]
    fn polling_at_odd_moments_loses_nothing() {
        let mut bucket = drained(SLOW);
        for nanos in (1..=1_000_000_000_u64).step_by(777) {
            bucket.refill(Timestamp::from_nanos(nanos), 0);
        }
        assert_eq!(bucket.refill(Timestamp::from_millis(1_000), 0), 3_000_000);
    }

    #[test]
    fn it_fills_up_to_the_burst_and_counts_what_is_elsewhere() {
        let mut bucket = drained(SLOW);
        assert_eq!(bucket.refill(Timestamp::from_millis(2_000), 7_000_000), 3_000_000);
        assert_eq!(bucket.refill(Timestamp::from_millis(9_000), 0), 10_000_000);
        assert_eq!(bucket.refill(Timestamp::from_nanos(u64::MAX), 0), 10_000_000);
    }

    #[test]
    fn debt_ends_where_it_is_bounded_and_what_is_forgiven_is_told() {
        let mut bucket = drained(SLOW);
        assert_eq!(bucket.book(2_000_000, 3_000_000), 0);
        assert_eq!(bucket.book(5_000_000, 3_000_000), 4_000_000);
        assert_eq!(bucket.level(), -3_000_000);
        assert_eq!(bucket.book(-1_000_000, 3_000_000), 0);
        assert_eq!(bucket.level(), -2_000_000);
        assert_eq!(bucket.book(9_000_000, DEBT_MAX), 0);
        assert_eq!(bucket.level(), -11_000_000);
        assert_eq!(bucket.book(1, 3_000_000), 1, "what is deeper already stays where it is");
        assert!(bucket.book(i64::MAX, DEBT_MAX) > 0);
        assert_eq!(bucket.level(), -(DEBT_MAX as i64), "and no debt is deeper than counts have room for");
    }

    #[test]
    fn the_level_stays_when_the_quota_changes() {
        let mut bucket = Bucket::full(SLOW, Part::WHOLE, Timestamp::ZERO);
        bucket.book(4_000_000, DEBT_MAX);
        bucket.resize(Capacity::new(1_000, 20_000_000), Part::WHOLE, Timestamp::ZERO, 0);
        assert_eq!(bucket.level(), 6_000_000);
        bucket.resize(Capacity::new(2, 2_000_000), Part::WHOLE, Timestamp::ZERO, 0);
        assert_eq!(bucket.level(), 2_000_000);
    }

    #[test]
    fn a_part_of_a_quota_fills_as_slowly_and_holds_as_little() {
        let ten_per_second = Capacity::new(10, 10_000_000);
        let mut bucket = Bucket::full(ten_per_second, Part::of_billionths(10_000_000), Timestamp::ZERO);
        assert_eq!(bucket.level(), 100_000, "a hundredth");
        bucket.book(100_000, DEBT_MAX);
        for millis in 1..=500 {
            bucket.refill(Timestamp::from_millis(millis), 0);
        }
        assert_eq!(bucket.level(), 50_000, "less than one request unit per second, and nothing is lost");
        bucket.resize(ten_per_second, Part::even(2), Timestamp::from_millis(500), 0);
        assert_eq!(bucket.level(), 50_000, "a part that grows is not full at once");
        assert_eq!(bucket.refill(Timestamp::from_millis(1_500), 0), 5_000_000);
        bucket.resize(ten_per_second, Part::even(10), Timestamp::from_millis(1_500), 0);
        assert_eq!(bucket.level(), 1_000_000);
    }
}
