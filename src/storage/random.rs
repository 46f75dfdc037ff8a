//! The engine's own generator: random choices are then the same for the same seed.

use super::effort::{LOOK, RANK};

/// Fewer are chosen one by one, whatever their share.
const SHARE_MIN: usize = 64;

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

    /// What [`distinct`](Self::distinct) takes: how many elements, and units for each.
    pub(super) fn distinct_effort(count: usize, bound: usize) -> (usize, u64) {
        if is_large_share(count, bound) { (bound, 2 * LOOK) } else { (count, RANK) }
    }

    /// `count` different positions below `bound`, in random order. A large share of them by shuffling all; few of many
    /// by Floyd's method: work and memory follow `count` then, not `bound`.
    pub(super) fn distinct(&mut self, count: usize, bound: usize) -> Vec<usize> {
        let count = count.min(bound);
        if is_large_share(count, bound) {
            let mut all: Vec<usize> = (0..bound).collect();
            for place in 0..count {
                all.swap(place, place + self.below(bound - place));
            }
            all.truncate(count);
            return all;
        }
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

fn is_large_share(count: usize, bound: usize) -> bool {
    count > SHARE_MIN && count > bound / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_positions_are_distinct_and_within_bounds() {
        let mut random = Random::new(1);
        for (count, bound) in [(0, 0), (1, 1), (5, 5), (3, 100), (9, 4), (100, 100), (100, 150), (65, 10_000)]
        {
            let mut picks = random.distinct(count, bound);
            picks.sort_unstable();
            picks.dedup();
            assert_eq!(picks.len(), count.min(bound));
            assert!(picks.iter().all(|pick| *pick < bound));
        }
    }
}
