//! Stage 2 of the hot-key search: the heaviest keys of a stretch of time, found in one pass (Space-Saving;
//! Metwally, Agrawal and El Abbadi, 2005).
//!
//! A newcomer takes the place of the lightest key, and its count as the most that the newcomer itself may
//! have had. With n places, every key with more than an n-th of all requests has a place. The search for the
//! lightest starts where the last one ended: counts only rise, so a key not above the last minimum is a
//! lightest. That is a step or two where a flood replaces keys one after the other, and at worst a look at
//! all places, as often as replacements are allowed.

/// Number of keys that are counted at the same time, each in a place of its own.
pub(super) const PLACES: usize = 256;
/// Number of keys that may lose their places to others within a pane (50 ms); after that, only keys with a
/// place are counted. Before 1,024 keys are replaced, a key with a fiftieth of the load has a count of about
/// 25, while the least count is 5: so that key keeps its place.
pub(super) const REPLACED_MAX: u32 = 4 * PLACES as u32;

/// Number of heads of the hash table of counted keys; each head is the start of a chain of places (one
/// counted key each).
const HEADS: usize = 2 * PLACES;
/// Index that marks the end of a chain of the hash table.
const NOBODY: u16 = u16::MAX;

/// Count of the requests for one key, and the part of it that may be too much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Upper bound of the key's count: it may include requests for keys that had its place before.
    pub count: u64,
    /// Part of `count` that is not certain: the count of the key whose place this key took, or the number of
    /// requests that may not have been counted before the key had a place, if that is more.
    pub error: u64,
}

impl Counted {
    /// Returns a number of requests that the key has certainly had.
    pub fn certain(self) -> u64 {
        self.count - self.error
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u64,
    counted: Counted,
    /// Index of the next place in the chain of places that start at the same head of the hash table.
    next: u16,
}

/// The keys with the most requests (or the most cost) in an interval, each with its count; they are found by
/// their hashes. If all places are taken, a new key takes that of the key with the lowest count.
#[derive(Debug)]
pub(super) struct Summary {
    heads: Box<[u16; HEADS]>,
    places: Vec<Place>,
    /// Lower bound of the counts of all keys that have a place: the lightest key's count when one was last
    /// replaced.
    least: u64,
    cursor: usize,
    replaced: u32,
    passed_over: u64,
}

impl Summary {
    pub fn new() -> Self {
        Self {
            heads: Box::new([NOBODY; HEADS]),
            places: Vec::with_capacity(PLACES),
            least: 0,
            cursor: 0,
            replaced: 0,
            passed_over: 0,
        }
    }

    /// Adds a weight (1 for a request, or a cost) to the count of the key with this hash. `missed` is the most
    /// that may not have been counted for the key while it had no place. Returns the key's new count; None if
    /// the key has no place and no other key may lose its place to it in this pane (interval of 50 ms).
    pub fn add(&mut self, hash: u64, weight: u64, missed: u64) -> Option<Counted> {
        if let Some(found) = self.find(hash) {
            let counted = &mut self.places[found].counted;
            counted.count = counted.count.saturating_add(weight);
            return Some(*counted);
        }
        let place = if self.places.len() < PLACES {
            self.places.push(Place { hash, counted: Counted::default(), next: NOBODY });
            self.places.len() - 1
        } else if self.replaced < REPLACED_MAX {
            self.replaced += 1;
            let lightest = self.lightest();
            self.unlink(lightest);
            lightest
        } else {
            self.passed_over += 1;
            return None;
        };
        // The newcomer's earlier requests came before its slot was warm, or were counted in a place that it
        // lost as the lightest.
        let error = missed.max(self.places[place].counted.count);
        let counted = Counted { count: error.saturating_add(weight), error };
        let head = &mut self.heads[head_of(hash)];
        self.places[place] = Place { hash, counted, next: *head };
        *head = place as u16;
        Some(counted)
    }

    /// Returns the count of requests of the key with this hash; None if the key has no place, so that it is
    /// not counted.
    pub fn get(&self, hash: u64) -> Option<Counted> {
        self.find(hash).map(|found| self.places[found].counted)
    }

    /// Frees the places of all keys, to start counting anew.
    pub fn clear(&mut self) {
        if !self.places.is_empty() {
            self.heads.fill(NOBODY);
            self.places.clear();
        }
        (self.least, self.cursor) = (0, 0);
    }

    /// Allows another 1,024 keys to lose their places to newcomers. Called at the start of each pane (50 ms),
    /// and when a pane is prolonged.
    pub fn allow(&mut self) {
        self.replaced = 0;
    }

    /// Returns how many times a key was not counted, because 1,024 others had lost their places in the pane
    /// (interval of 50 ms).
    pub fn passed_over(&self) -> u64 {
        self.passed_over
    }

    #[cfg(test)]
    pub fn all(&self) -> impl Iterator<Item = (u64, Counted)> {
        self.places.iter().map(|place| (place.hash, place.counted))
    }

    fn find(&self, hash: u64) -> Option<usize> {
        let mut at = self.heads[head_of(hash)];
        while let Some(place) = self.places.get(usize::from(at)) {
            if place.hash == hash {
                return Some(usize::from(at));
            }
            at = place.next;
        }
        None
    }

    fn lightest(&mut self) -> usize {
        let from = self.cursor.min(self.places.len());
        let near = self.places[from..].iter().position(|place| place.counted.count <= self.least);
        let found = near.map_or_else(
            || {
                let counts = self.places.iter().enumerate().map(|(at, place)| (place.counted.count, at));
                counts.min().map_or(0, |(_, at)| at)
            },
            |steps| from + steps,
        );
        (self.least, self.cursor) = (self.places[found].counted.count, found + 1);
        found
    }

    fn unlink(&mut self, place: usize) {
        let Place { hash, next, .. } = self.places[place];
        let head = head_of(hash);
        let mut at = self.heads[head];
        if usize::from(at) == place {
            self.heads[head] = next;
            return;
        }
        while let Some(before) = self.places.get_mut(usize::from(at)) {
            if usize::from(before.next) == place {
                before.next = next;
                return;
            }
            at = before.next;
        }
    }
}

fn head_of(hash: u64) -> usize {
    hash as usize % HEADS
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::values::Random;

    proptest! {
        /// The lower bound and the count of a key enclose its true count: with many keys for few places, some
        /// much heavier than others, and poor hashes that make long chains.
        #[test]
        fn a_key_had_what_is_certain_at_least_and_its_count_at_most(
            seed: u64, keys in 1_u64..2_000, weight_max in 1_u64..50, adds in 1_usize..4_000,
        ) {
            let (mut summary, mut random) = (Summary::new(), Random::new(seed));
            let mut exact: HashMap<u64, u64> = HashMap::new();
            let mut all = 0;
            for _ in 0..adds {
                let skewed = random.below(keys).min(random.below(keys)).min(random.below(keys));
                let (hash, weight) = (skewed << random.below(2), random.between(1, weight_max));
                summary.allow();
                *exact.entry(hash).or_default() += weight;
                all += weight;
                let told = summary.add(hash, weight, 0).expect("replacing is allowed");
                prop_assert_eq!(summary.get(hash), Some(told));
            }
            for (hash, counted) in summary.all() {
                let had = exact.remove(&hash).expect("it was told");
                prop_assert!((counted.certain()..=counted.count).contains(&had), "{counted:?} {had}");
                prop_assert_eq!(summary.get(hash), Some(counted), "it is found where it is");
                prop_assert!(counted.error <= all / PLACES as u64);
            }
            for had in exact.into_values() {
                prop_assert!(had <= all / PLACES as u64, "{had} of {all} has no place");
            }
        }
    }

    #[test]
    fn too_many_newcomers_are_passed_over_and_replace_nobody() {
        let mut summary = Summary::new();
        (0..10).for_each(|_| _ = summary.add(1, 1, 0));
        let newcomers = PLACES as u64 - 1 + u64::from(REPLACED_MAX);
        assert!((2..2 + newcomers).all(|hash| summary.add(hash, 1, 0).is_some()));
        assert_eq!(summary.add(1_000_000, 1, 0), None);
        assert_eq!(summary.add(1, 1, 0), Some(Counted { count: 11, error: 0 }), "who has a place is counted");
        assert_eq!(summary.passed_over(), 1);
        summary.allow();
        assert!(summary.add(1_000_000, 1, 0).is_some());
        summary.clear();
        assert_eq!(summary.get(1), None);
        assert_eq!(summary.add(1, 2, 5), Some(Counted { count: 7, error: 5 }));
    }
}
