//! The engine's own generator: random choices are then the same for the same seed.

/// splitmix64: one addition and three mixing steps, good enough to pick members by.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        debug_assert!(bound > 0);
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// A generator of its own, for use while the owner of this one is borrowed.
    pub(super) fn fork(&mut self) -> Self {
        Self::new(self.next())
    }

    /// `count` different positions below `bound`, in random order, by Floyd's method: work and memory follow
    /// `count`, not `bound`.
    pub(super) fn distinct(&mut self, count: usize, bound: usize) -> Vec<usize> {
        let count = count.min(bound);
        let mut chosen = std::collections::BTreeSet::new();
        let mut order = Vec::with_capacity(count);
        for top in bound - count..bound {
            let candidate = self.below(top + 1);
            let pick = if chosen.insert(candidate) { candidate } else { top };
            chosen.insert(pick);
            order.push(pick);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_positions_are_distinct_and_within_bounds() {
        let mut random = Random::new(1);
        for (count, bound) in [(0, 0), (1, 1), (5, 5), (3, 100), (9, 4)] {
            let mut picks = random.distinct(count, bound);
            picks.sort_unstable();
            picks.dedup();
            assert_eq!(picks.len(), count.min(bound));
            assert!(picks.iter().all(|pick| *pick < bound));
        }
    }
}
