//! What requests of one tenant and class cost lately, beyond what is known when they come.

use crate::values::MicroUnits;
use crate::values::limits::COMMAND_CLASSES;

/// A new sample weighs one part in two to the power of this: the last dozen requests decide.
const WEIGHT_BITS: u32 = 3;

/// Moving averages in millionths of a request unit, one per class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    averages: [MicroUnits; COMMAND_CLASSES],
    /// One bit for each class of which a sample was seen.
    known: u8,
}

const _: () = assert!(COMMAND_CLASSES <= u8::BITS as usize);

impl Expected {
    /// What the next request of that class is expected to cost beyond its fixed part.
    pub const fn of(&self, class: usize) -> MicroUnits {
        self.averages[class]
    }

    /// Has any request of that class been paid for?
    pub const fn is_known(&self, class: usize) -> bool {
        self.known & (1 << class) != 0
    }

    /// What one really cost. The first one is all that is known, so it decides alone.
    #[inline]
    pub const fn learn(&mut self, class: usize, cost: MicroUnits) {
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
    fn one_odd_request_does_not_decide() {
        let mut expected = Expected::default();
        (0..100).for_each(|_| expected.learn(0, 1_000));
        expected.learn(0, 801_000);
        assert_eq!(expected.of(0), 101_000);
    }
}
