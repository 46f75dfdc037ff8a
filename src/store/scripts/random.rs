//! The random numbers of scripts, from Redis's generator. Each script starts from a new state, whatever seeds
//! earlier scripts have set.

use std::cell::Cell;

/// The initial state of the random generator, which is that of a new Redis. The first script starts one step
/// after it.
const START: u64 = 0x1234_abcd_330e;
/// The low 16 bits of every state of the random generator that a seed gives.
const SEEDED: u64 = 0x330e;
const MULTIPLIER: u64 = 0x5_deec_e66d;
const INCREMENT: u64 = 0xb;
const BITS: u64 = (1 << 48) - 1;

/// The random generator of scripts: `drand48` of C, whose state has 48 bits.
#[derive(Debug)]
pub(super) struct Random {
    state: Cell<u64>,
    /// The state of the generator that the running script started from.
    start: Cell<u64>,
}

impl Default for Random {
    fn default() -> Self {
        Self { state: Cell::new(START), start: Cell::new(START) }
    }
}

impl Random {
    /// Begins a script: the random generator starts one step after the state that the previous script started
    /// from, so that scripts get different numbers however many the ones before them drew.
    pub(super) fn begin(&self) {
        let start = following(self.start.get());
        self.start.set(start);
        self.state.set(start);
    }

    /// Sets the state of the random generator that belongs to a seed (`math.randomseed`).
    pub(super) fn seed(&self, seed: i32) {
        self.state.set((u64::from(seed as u32) << 16) | SEEDED);
    }

    /// Returns the next random number, at least 0 and less than 1.
    pub(super) fn next(&self) -> f64 {
        let state = following(self.state.get());
        self.state.set(state);
        let drawn = (state >> 17) % i32::MAX as u64;
        drawn as f64 / f64::from(i32::MAX)
    }
}

const fn following(state: u64) -> u64 {
    state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT) & BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_redis() {
        let random = Random::default();
        let first = random.next();
        assert!((first - 0.396_464_773_638_39).abs() < 1e-12, "{first}");
        random.begin();
        let second = random.next();
        assert!((second - first).abs() > f64::EPSILON, "each script gets others");
        random.seed(9);
        random.begin();
        let third = random.next();
        random.seed(9);
        assert!((random.next() - third).abs() > f64::EPSILON, "a seed is forgotten");
    }
}
