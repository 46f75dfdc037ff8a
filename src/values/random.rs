//! Random numbers from a seed: the only generator of the code base. A seed gives the same numbers on every
//! machine and in every version, so a simulation, a load and a scripted store can be run again. The numbers
//! can be guessed: secret numbers come from the system (`runtime/server.rs`).

/// Random number generator splitmix64 (Steele, Lea and Flood, 2014): one addition and three mixing steps.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates the sequence of random numbers that a seed determines.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns sixty-four random bits.
    pub const fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number below `bound`, which must not be zero. Uses a multiplication instead of a
    /// remainder; probabilities differ by less than `bound` in 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0, "no number is below zero");
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a random number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns a random index below `length`, which is at least 1.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns a random element of a slice, which is not empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }

    /// Returns true with a probability of `often` in a thousand; always for 1,000 and more.
    pub fn per_mille(&mut self, often: u64) -> bool {
        self.below(1000) < often
    }

    /// Returns a random number from 0 to 1, without 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Returns an exponentially distributed random number with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Creates a second sequence of random numbers from the next number of this one, so that drawing from one
    /// does not disturb the other.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self::new(self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation: a recorded seed must give the same run for ever.
    #[test]
    fn a_seed_gives_what_it_gives_everywhere() {
        let mut random = Random::new(1_234_567);
        let first: [u64; 5] = std::array::from_fn(|_| random.bits());
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn means_are_what_they_should_be() {
        let mut random = Random::new(1);
        let count = 200_000;
        let mean = |sum: f64| sum / f64::from(count);
        let unit = mean((0..count).map(|_| random.unit()).sum());
        let exponential = mean((0..count).map(|_| random.exponential()).sum());
        let below = mean((0..count).map(|_| random.below(101) as f64).sum());
        assert!((unit - 0.5).abs() < 0.005, "{unit}");
        assert!((exponential - 1.0).abs() < 0.01, "{exponential}");
        assert!((below - 50.0).abs() < 0.5, "{below}");
    }

    #[test]
    fn every_number_of_a_range_comes_and_no_other() {
        let mut random = Random::new(2);
        let mut seen = [0; 12];
        for _ in 0..4_000 {
            seen[random.between(3, 8) as usize] += 1;
            seen[9 + random.index(3)] += 1;
        }
        assert_eq!(seen[..3], [0; 3]);
        assert!(seen[3..9].iter().all(|count| (500..=850).contains(count)), "{seen:?}");
        assert!(seen[9..].iter().all(|count| (1_150..=1_550).contains(count)), "{seen:?}");
        assert_eq!((random.below(1), random.index(1), random.between(7, 7)), (0, 0, 7));
    }

    #[test]
    fn a_thousandth_is_one() {
        let mut random = Random::new(3);
        let often =
            |random: &mut Random, per_mille| (0..10_000).filter(|_| random.per_mille(per_mille)).count();
        assert_eq!((often(&mut random, 0), often(&mut random, 1_000)), (0, 10_000));
        let quarter = often(&mut random, 250);
        assert!((2_300..=2_700).contains(&quarter), "{quarter}");
    }

    #[test]
    fn a_fork_is_a_sequence_of_its_own() {
        let (mut parent, mut alone) = (Random::new(4), Random::new(4));
        let mut fork = parent.fork();
        alone.bits();
        let drawn: Vec<u64> = (0..100).map(|_| fork.bits()).collect();
        let own: Vec<u64> = (0..100).map(|_| parent.bits()).collect();
        assert!(own.iter().all(|bits| !drawn.contains(bits)));
        assert_eq!(own, (0..100).map(|_| alone.bits()).collect::<Vec<_>>(), "the fork's draws do not show");
    }
}
