//! What requests of one tenant and class cost lately, beyond what is known when they come: a moving average (EWMA) and a
//! peak that decays.

use crate::values::MicroUnits;
use crate::values::limits::COMMAND_CLASSES;

/// A new sample weighs one part in two to the power of this: the last dozen requests decide.
const WEIGHT_BITS: u32 = 3;
/// The peak comes down by one part in two to the power of this with each request: half of a large surprise is remembered
/// for 177 of them, a tenth of it for 588.
const PEAK_WEIGHT_BITS: u32 = 8;

/// Exponentially weighted moving averages (EWMA) and decaying peaks in millionths of a request unit, one of each per class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    averages: [MicroUnits; COMMAND_CLASSES],
    /// The highest of late: up at once, down slowly.
    peaks: [MicroUnits; COMMAND_CLASSES],
    /// One bit for each class of which a sample was seen.
    known: u8,
}

const _: () = assert!(COMMAND_CLASSES <= u8::BITS as usize);

impl Expected {
    /// What the next request of that class is expected to cost beyond its fixed part.
    pub const fn of(&self, class: usize) -> MicroUnits {
        self.averages[class]
    }

    /// How much more than that it may be, as far as is remembered.
    #[inline]
    pub const fn surprise(&self, class: usize) -> MicroUnits {
        self.peaks[class].saturating_sub(self.averages[class])
    }

    /// Has any request of that class been paid for?
    pub const fn is_known(&self, class: usize) -> bool {
        self.known & (1 << class) != 0
    }

    /// What one really cost. The first one is all that is known, so it decides alone.
    #[inline]
    pub const fn learn(&mut self, class: usize, cost: MicroUnits) {
        let peak = self.peaks[class];
        // As long as all are alike there is nothing to learn.
        if cost == peak && cost == self.averages[class] && self.is_known(class) {
            return;
        }
        self.peaks[class] =
            if cost >= peak { cost } else { peak - (peak - cost).div_ceil(1 << PEAK_WEIGHT_BITS) };
        if !self.is_known(class) {
            self.known |= 1 << class;
            self.averages[class] = cost;
            return;
        }
        let (average, sample) = (self.averages[class] as i64, cost as i64);
        // Rounded away from zero, so that the average arrives instead of staying a few millionths short. A shift rounds
        // down.
        let step = sample - average;
        let rounded = (step + if step > 0 { (1 << WEIGHT_BITS) - 1 } else { 0 }) >> WEIGHT_BITS;
        self.averages[class] = (average + rounded) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_arrives_where_the_samples_are() {
        let mut expected = Expected::default();
        for cost in [1_000_003, 7] {
            (0..200).for_each(|_| expected.learn(2, cost));
            assert_eq!(expected.of(2), cost);
        }
        assert_eq!(expected.of(1), 0);
    }

    #[test]
    fn the_first_request_decides_alone() {
        let mut expected = Expected::default();
        assert!(!expected.is_known(3));
        expected.learn(3, 0);
        assert!(expected.is_known(3) && !expected.is_known(2));
        expected.learn(2, 5_000);
        assert_eq!((expected.of(2), expected.of(3)), (5_000, 0));
    }

    #[test]
    fn a_large_surprise_is_remembered_for_hundreds_of_requests_and_forgotten_in_the_end() {
        let mut expected = Expected::default();
        (0..100).for_each(|_| expected.learn(0, 1_000));
        assert_eq!(expected.surprise(0), 0, "as long as all are alike nothing is surprising");
        expected.learn(0, 257_000_000);
        (0..100).for_each(|_| expected.learn(0, 1_000));
        assert!(expected.of(0) < 10_000 && expected.surprise(0) > 150_000_000, "{expected:?}");
        (0..5_000).for_each(|_| expected.learn(0, 1_000));
        assert_eq!((expected.of(0), expected.surprise(0)), (1_000, 0));
    }

    #[test]
    fn one_odd_request_does_not_decide() {
        let mut expected = Expected::default();
        (0..100).for_each(|_| expected.learn(0, 1_000));
        expected.learn(0, 801_000);
        assert_eq!(expected.of(0), 101_000);
    }
}
