//! The cost of a tenant's requests beyond what is known on arrival, per class of command: a fast average
//! (EWMA over the last dozen requests), which prices the next request, and a slow mean and variance (over the
//! last two thousand), which tell how far the requests in flight may exceed their prices.

use crate::values::MicroUnits;
use crate::values::limits::COMMAND_CLASSES;

/// Weight of a new sample in the fast average of the costs of a class of commands, as a number of bits: 3
/// stands for an eighth, so that the last dozen requests decide.
const WEIGHT_BITS: u32 = 3;
/// Number of samples (costs of single requests) over which the slow mean and variance of a class are taken;
/// fewer while there are fewer. So a tenant that wants an expensive class of commands to be taken for a cheap
/// one pays for thousands of cheap requests first.
const SLOW_SAMPLES: u32 = 2_048;
/// Number of requests with a known cost after which a class of commands counts as known: until then the
/// number of its requests in flight is bounded.
const SAMPLES_KNOWN: u32 = 32;
/// Maximum number of requests of a class of commands that may be in flight before the first reply shows their
/// real price; further ones wait.
const UNKNOWN_IN_FLIGHT: u32 = 4;
/// Number by which the bound on the requests in flight of a class of commands, which begins at 4, rises with
/// each request of the class whose real cost has been learnt. The bound ends once 32 costs are known.
const UNKNOWN_PER_SAMPLE: u32 = 2;
/// The cost of the requests in flight is assumed to exceed its mean by at most this many standard deviations
/// of the sum of their costs.
const DEVIATIONS: f64 = 3.0;

/// Expected costs of a tenant's requests that only their replies show, by class of commands, in millionths of
/// a request unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expected {
    averages: [MicroUnits; COMMAND_CLASSES],
    /// Averages, by class of commands, of the amounts by which requests would have cost more if all of the
    /// time for which they kept their stores busy had been billed.
    unbilled: [MicroUnits; COMMAND_CLASSES],
    spreads: [Spread; COMMAND_CLASSES],
    /// Bit set of classes of commands in which requests have lately had different costs.
    varied: u8,
    /// Bit set of classes of commands of which at least 32 requests' costs have been sampled.
    known: u8,
}

const _: () = assert!(COMMAND_CLASSES <= u8::BITS as usize);

/// Mean and variance of the costs of the last two thousand requests of one class of commands, in millionths of
/// a request unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spread {
    mean: f64,
    variance: f64,
    /// Number of samples (costs of single requests) that the mean and variance are computed from, at most
    /// 2,048.
    samples: u32,
}

/// Requests that are admitted and whose real cost is not known yet, by class of commands. From them follows
/// how far costs may still exceed prices, and whether another request is let in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnderWay([u32; COMMAND_CLASSES]);

impl UnderWay {
    /// Counts a request of a class of commands as admitted, so that its price is not final yet.
    #[inline]
    pub const fn begin(&mut self, class: usize) {
        self.0[class] += 1;
    }

    /// Counts a request of a class of commands as over: its price is final.
    #[inline]
    pub const fn end(&mut self, class: usize) {
        self.0[class] = self.0[class].saturating_sub(1);
    }

    /// Returns the number of unsettled requests (admitted, and not answered yet) of all classes of commands.
    pub fn total(&self) -> u32 {
        self.0.iter().sum()
    }

    /// True if every admitted request of any class of commands has been charged at its real cost.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; COMMAND_CLASSES]
    }

    /// Adds the requests in another count of admitted requests to those in this one, class by class.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    /// Creates a count of `count` requests of one class of commands (its index), and none of any other.
    pub const fn of(class: usize, count: u32) -> Self {
        let mut under_way = Self([0; COMMAND_CLASSES]);
        under_way.0[class] = count;
        under_way
    }
}

impl Expected {
    /// Returns the expected cost of the next request of a class of commands beyond the part that is known on
    /// arrival, in millionths of a request unit.
    pub const fn of(&self, class: usize) -> MicroUnits {
        self.averages[class]
    }

    /// Returns by how much the cost of the next request of a class of commands is expected to exceed its
    /// price, in millionths of a request unit, because not all of the time for which it keeps its store busy
    /// is billed.
    #[inline]
    pub const fn unbilled(&self, class: usize) -> MicroUnits {
        self.unbilled[class]
    }

    /// True once the real cost of a request of the class of commands has been learnt.
    pub const fn is_seen(&self, class: usize) -> bool {
        self.spreads[class].samples > 0
    }

    /// True if one more request of a class may be admitted beside those whose real cost is not known yet
    /// (`under_way`). While fewer than 32 costs of the class have been learnt, at most 4 such requests are
    /// allowed, and 2 more for each cost learnt.
    #[inline]
    pub const fn lets_in(&self, class: usize, under_way: &UnderWay) -> bool {
        let samples = self.spreads[class].samples;
        self.is_known(class) || under_way.0[class] < UNKNOWN_IN_FLIGHT + UNKNOWN_PER_SAMPLE * samples
    }

    /// True if in each class of commands all requests have cost the same lately, so that no estimated price
    /// is exceeded.
    #[inline]
    pub const fn is_even(&self) -> bool {
        self.varied == 0
    }

    /// True if at least 32 real costs of requests of a class of commands have been learnt, so that the number
    /// of its requests in flight is not bounded.
    #[inline]
    pub const fn is_known(&self, class: usize) -> bool {
        self.known & (1 << class) != 0
    }

    /// Returns the most by which the admitted requests whose real cost is not known yet (`under_way`), with
    /// one more of `class`, may exceed the prices that were taken for them, in millionths of a request unit.
    /// For each request that is its mean cost less the average that priced it, and for all together three
    /// standard deviations of the sum.
    pub fn risk(&self, under_way: &UnderWay, class: usize) -> i64 {
        let (mut excess, mut variance) = (0.0, 0.0);
        for (each, (spread, average)) in self.spreads.iter().zip(self.averages).enumerate() {
            let count = f64::from(under_way.0[each]) + f64::from(u8::from(each == class));
            excess += count * (spread.mean - average as f64).max(0.0);
            variance += count * spread.variance;
        }
        (excess + DEVIATIONS * variance.sqrt()) as i64
    }

    /// Learns the real cost of a request of a class of commands beyond the part that was known on arrival, in
    /// millionths of a request unit. The first request of a class sets the average, since nothing else is
    /// known of the class.
    #[inline]
    pub fn learn(&mut self, class: usize, cost: MicroUnits) {
        self.learn_partly_billed(class, cost, 0);
    }

    /// Learns the real cost of a request as [`Self::learn`] does, and the amount (`unbilled`) by which the
    /// request would have cost more if its store's time had been billed whole.
    #[inline]
    pub fn learn_partly_billed(&mut self, class: usize, cost: MicroUnits, unbilled: MicroUnits) {
        // If all requests of the class have cost the same so far, this one changes nothing.
        let is_usual = (cost, unbilled) == (self.averages[class], self.unbilled[class]);
        if is_usual && self.known & !self.varied & (1 << class) != 0 {
            return;
        }
        self.learn_new(class, cost, unbilled);
    }

    #[inline(never)]
    fn learn_new(&mut self, class: usize, cost: MicroUnits, unbilled: MicroUnits) {
        let spread = &mut self.spreads[class];
        let is_first = spread.samples == 0;
        spread.add(cost as f64);
        if spread.samples >= SAMPLES_KNOWN {
            self.known |= 1 << class;
        }
        if spread.variance > 0.0 {
            self.varied |= 1 << class;
        }
        if is_first {
            (self.averages[class], self.unbilled[class]) = (cost, unbilled);
        } else {
            approach(&mut self.averages[class], cost);
            approach(&mut self.unbilled[class], unbilled);
        }
        // Samples that have been alike for so long that no difference is left count as alike again.
        let spread = &mut self.spreads[class];
        if spread.variance < 1.0 && self.averages[class] == cost {
            (spread.mean, spread.variance) = (cost as f64, 0.0);
            self.varied &= !(1 << class);
        }
    }
}

/// Moves an average an eighth of the way towards a new sample, rounded so that it reaches the sample in the
/// end.
fn approach(average: &mut MicroUnits, sample: MicroUnits) {
    let step = sample as i64 - *average as i64;
    // Rounded away from zero, so that the average arrives instead of staying a few millionths short. A shift
    // rounds down.
    let rounded = (step + if step > 0 { (1 << WEIGHT_BITS) - 1 } else { 0 }) >> WEIGHT_BITS;
    *average = (*average as i64 + rounded) as u64;
}

impl Spread {
    fn add(&mut self, cost: f64) {
        self.samples = (self.samples + 1).min(SLOW_SAMPLES);
        let weight = 1.0 / f64::from(self.samples);
        let difference = cost - self.mean;
        self.mean += difference * weight;
        self.variance = (1.0 - weight) * (self.variance + difference * difference * weight);
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
        assert!(!expected.is_seen(3));
        expected.learn(3, 0);
        assert!(expected.is_seen(3) && !expected.is_seen(2));
        expected.learn(2, 5_000);
        assert_eq!((expected.of(2), expected.of(3)), (5_000, 0));
    }

    #[test]
    fn slow_statistics_are_those_of_all_samples_until_there_are_many() {
        let mut expected = Expected::default();
        let costs: Vec<u64> = (0..1_000).map(|at| if at % 10 == 3 { 101_000 } else { 1_000 }).collect();
        costs.iter().for_each(|cost| expected.learn(0, *cost));
        let mean = costs.iter().sum::<u64>() as f64 / 1_000.0;
        let variance = costs.iter().map(|cost| (*cost as f64 - mean).powi(2)).sum::<f64>() / 1_000.0;
        let spread = expected.spreads[0];
        assert!((spread.mean - mean).abs() < 1e-6 && (spread.variance / variance - 1.0).abs() < 1e-6);
        let nine = UnderWay::of(0, 9);
        let most = 10.0 * (mean - expected.of(0) as f64).max(0.0) + 3.0 * (10.0 * variance).sqrt();
        assert!((expected.risk(&nine, 0) as f64 - most).abs() < 2.0, "nine under way and one more");
    }

    #[test]
    fn requests_that_are_all_alike_are_no_risk_and_become_so_again_after_a_long_time() {
        let mut expected = Expected::default();
        (0..100).for_each(|_| expected.learn(0, 1_000));
        assert!(expected.is_even());
        assert_eq!(expected.risk(&UnderWay::of(0, 1_000), 0), 0);
        expected.learn(0, 257_000_000);
        (0..5_000).for_each(|_| expected.learn(0, 1_000));
        assert!(expected.risk(&UnderWay::of(0, 1), 0) > 1_000_000, "thousands of cheap ones do not hide it");
        (0..200_000).for_each(|_| expected.learn(0, 1_000));
        assert!(expected.is_even() && expected.of(0) == 1_000);
    }

    #[test]
    fn few_of_a_class_are_in_flight_before_the_first_is_settled() {
        let (mut expected, mut under_way) = (Expected::default(), UnderWay::default());
        let fill = |expected: &Expected, under_way: &mut UnderWay| {
            while under_way.total() < 1_000 && expected.lets_in(2, under_way) {
                under_way.begin(2);
            }
            under_way.total()
        };
        assert_eq!(fill(&expected, &mut under_way), 4);
        assert!(expected.lets_in(1, &under_way), "each class is bounded by itself");
        expected.learn(2, 5);
        under_way.end(2);
        assert_eq!(fill(&expected, &mut under_way), 6);
        (0..31).for_each(|_| expected.learn(2, 5));
        assert_eq!(fill(&expected, &mut under_way), 1_000);
    }

    #[test]
    fn the_part_that_is_not_billed_is_averaged_as_the_cost_is() {
        let mut expected = Expected::default();
        expected.learn_partly_billed(4, 1_000, 12_000);
        assert_eq!((expected.of(4), expected.unbilled(4)), (1_000, 12_000), "the first one decides alone");
        (0..100).for_each(|_| expected.learn_partly_billed(4, 1_000, 12_000));
        // The sum stays while more and more of the cost is billed.
        for billed in [3_000, 9_000, 12_000] {
            for _ in 0..100 {
                expected.learn_partly_billed(4, 1_000 + billed, 12_000 - billed);
                let sum = expected.of(4) + expected.unbilled(4);
                assert!((13_000..=13_001).contains(&sum), "{sum}");
            }
        }
        assert_eq!((expected.of(4), expected.unbilled(4)), (13_000, 0));
        assert_eq!(expected.unbilled(3), 0);
        expected.learn_partly_billed(0, 1_000, 800);
        assert_eq!(expected.varied & 1, 0, "no price is exceeded by what is not billed");
        (0..100).for_each(|_| expected.learn(0, 1_000));
        assert_eq!((expected.of(0), expected.unbilled(0)), (1_000, 0), "equal costs let it fade too");
    }

    #[test]
    fn one_odd_request_does_not_decide() {
        let mut expected = Expected::default();
        (0..100).for_each(|_| expected.learn(0, 1_000));
        expected.learn(0, 801_000);
        assert_eq!(expected.of(0), 101_000);
    }
}
