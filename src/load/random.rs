//! The generator's own randomness: the same seed gives the same load.

/// splitmix64: one addition and three mixing steps.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A sequence of its own for each seed.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Sixty-four random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0);
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from 0 to 1, without 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// An exponentially distributed number with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
