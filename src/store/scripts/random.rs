//! Random numbers of scripts: those of Redis, the same in each run of a script.

use std::cell::Cell;

/// The state that every script starts from: that of a new Redis.
const START: u64 = 0x1234_abcd_330e;
/// The low bits of the state that belongs to a seed.
const SEEDED: u64 = 0x330e;
const MULTIPLIER: u64 = 0x5_deec_e66d;
const INCREMENT: u64 = 0xb;
const BITS: u64 = (1 << 48) - 1;

/// The generator `drand48`, whose state has 48 bits.
#[derive(Debug)]
pub(super) struct Random(Cell<u64>);

impl Default for Random {
    fn default() -> Self {
        Self(Cell::new(START))
    }
}

impl Random {
    /// Resets the state to the one that every script starts from.
    pub(super) fn reset(&self) {
        self.0.set(START);
    }

    /// Sets the state to the one that `math.randomseed` gives for a seed.
    pub(super) fn seed(&self, seed: i32) {
        self.0.set((u64::from(seed as u32) << 16) | SEEDED);
    }

    /// The next number, from 0 to 1.
    pub(super) fn next(&self) -> f64 {
        let state = self.0.get().wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT) & BITS;
        self.0.set(state);
        let drawn = (state >> 17) % i32::MAX as u64;
        drawn as f64 / f64::from(i32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_redis() {
        let random = Random::default();
        let first = random.next();
        assert!((first - 0.396_464_773_638_39).abs() < 1e-12, "{first}");
        random.reset();
        assert!((random.next() - first).abs() < f64::EPSILON);
    }
}
