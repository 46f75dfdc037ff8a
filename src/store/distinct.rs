//! Random choice of several distinct positions, and the effort that it takes.

use super::effort::{LOOK, RANK};
use crate::values::Random;

/// Maximum number of positions that are always chosen one by one. More than these are chosen by shuffling all
/// positions, if they are a large share of all.
const SHARE_MIN: usize = 64;

/// Returns the effort that choosing `count` distinct positions below `bound` takes (see `distinct`): a number
/// of elements, and the units of effort (steps of work) for each of them.
pub(super) fn distinct_effort(count: usize, bound: usize) -> (usize, u64) {
    if is_large_share(count, bound) { (bound, 2 * LOOK) } else { (count, RANK) }
}

/// Chooses `count` distinct positions below `bound` at random, or all of them if `count` is larger. More than
/// 64 positions that are more than an eighth of all are chosen by shuffling all positions; fewer by Floyd's
/// method, whose work and memory grow with `count` rather than with `bound`.
pub(super) fn distinct(random: &mut Random, count: usize, bound: usize) -> Vec<usize> {
    let count = count.min(bound);
    if is_large_share(count, bound) {
        let mut all: Vec<usize> = (0..bound).collect();
        for place in 0..count {
            all.swap(place, place + random.index(bound - place));
        }
        all.truncate(count);
        return all;
    }
    let mut chosen = std::collections::BTreeSet::new();
    let mut order = Vec::with_capacity(count);
    for top in bound - count..bound {
        let candidate = random.index(top + 1);
        let pick = if chosen.insert(candidate) { candidate } else { top };
        chosen.insert(pick);
        order.push(pick);
    }
    order
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
            let mut picks = distinct(&mut random, count, bound);
            picks.sort_unstable();
            picks.dedup();
            assert_eq!(picks.len(), count.min(bound));
            assert!(picks.iter().all(|pick| *pick < bound));
        }
    }
}
