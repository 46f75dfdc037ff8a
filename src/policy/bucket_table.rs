//! Table of entries by bucket, with a bound on their number: the accounts of up to a million users.
//!
//! A hash table that grows moves everything it holds, which would stop a core for a tenth of a second at a
//! million entries. Therefore this is 256 small tables: each grows alone, and at another moment.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::values::BucketId;

/// Number of hash tables among which the buckets of quotas are divided.
const PARTS: usize = 256;
/// Maximum number of entries checked to find an idle one to drop when the table is full.
const LOOKED_AT_MAX: usize = 16;

/// Hasher that returns the id unchanged: bucket ids are hashes already.
#[derive(Debug, Default)]
pub struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only ids are hashed, and they are numbers");
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}

type Part<V> = HashMap<BucketId, V, BuildHasherDefault<AsItIs>>;

/// Table of entries by bucket (of a quota), at most `entries_max`. When it is full, the oldest idle entries
/// make room.
#[derive(Debug)]
pub struct BucketTable<V> {
    parts: Box<[Part<V>; PARTS]>,
    /// Ids of the buckets that have entries, ordered by the time when each was added, or last found to be in
    /// use.
    order: VecDeque<BucketId>,
    entries_max: usize,
    evicted: u64,
    refused: u64,
}

impl<V> BucketTable<V> {
    /// Creates an empty table that holds at most `entries_max` buckets.
    pub fn new(entries_max: usize) -> Self {
        Self {
            parts: Box::new(std::array::from_fn(|_| Part::default())),
            order: VecDeque::new(),
            entries_max,
            evicted: 0,
            refused: 0,
        }
    }

    /// Returns the number of buckets that have an entry in the table.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// True if no bucket has an entry in the table.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the number of idle entries that were dropped to make room for others since the table was made.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns the number of entries that could not be added for lack of room since the table was made.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the value stored for a bucket, if there is one.
    pub fn get_mut(&mut self, id: BucketId) -> Option<&mut V> {
        self.parts[part_of(id)].get_mut(&id)
    }

    /// Returns the value stored for a bucket, if there is one.
    pub fn get(&self, id: BucketId) -> Option<&V> {
        self.parts[part_of(id)].get(&id)
    }

    /// Returns the entry of a bucket, and creates it with `make` if there is none. In a full table, those of
    /// the 16 oldest entries for which `is_idle` is true are dropped to make room; None if there are none.
    pub fn get_or_insert_with(
        &mut self,
        id: BucketId,
        make: impl FnOnce() -> V,
        is_idle: impl FnMut(&V) -> bool,
    ) -> Option<&mut V> {
        let is_full = self.order.len() >= self.entries_max;
        if is_full && !self.parts[part_of(id)].contains_key(&id) {
            let freed = self.sweep(LOOKED_AT_MAX, is_idle);
            self.evicted += freed as u64;
            if freed == 0 {
                self.refused += 1;
                return None;
            }
        }
        Some(match self.parts[part_of(id)].entry(id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(place) => {
                self.order.push_back(id);
                place.insert(make())
            }
        })
    }

    /// Checks the oldest `looked_at_max` entries, drops those for which `is_idle` is true, and returns how
    /// many it dropped. Frees memory once the table is empty.
    pub fn sweep(&mut self, looked_at_max: usize, mut is_idle: impl FnMut(&V) -> bool) -> usize {
        let before = self.order.len();
        for _ in 0..looked_at_max.min(before) {
            let Some(id) = self.order.pop_front() else { break };
            let part = &mut self.parts[part_of(id)];
            if part.get(&id).is_some_and(&mut is_idle) {
                part.remove(&id);
            } else {
                self.order.push_back(id);
            }
        }
        let freed = before - self.order.len();
        if self.order.is_empty() && freed > 0 {
            // After a flood of users, the memory that their entries took is given back.
            self.parts.iter_mut().for_each(Part::shrink_to_fit);
            self.order.shrink_to_fit();
        }
        freed
    }
}

/// Returns the index of the hash table, 0 to 255, that holds a bucket's entry. It is taken from bits of the
/// id that the hash tables do not use themselves.
const fn part_of(id: BucketId) -> usize {
    (id.0 >> 40) as usize % PARTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> BucketId {
        BucketId(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    #[test]
    fn the_oldest_idle_one_makes_room() {
        let mut table = BucketTable::new(3);
        for number in 0..3 {
            *table.get_or_insert_with(id(number), || 0, |_| true).expect("room") = number;
        }
        // The first entry is in use, so another one must make room.
        assert!(table.get_or_insert_with(id(9), || 9, |number| *number != 0).is_some());
        assert_eq!((table.len(), table.evicted()), (2, 2));
        assert!(table.get_mut(id(0)).is_some() && table.get_mut(id(9)).is_some());
    }

    #[test]
    fn when_all_are_in_use_a_new_one_finds_no_room() {
        let mut table = BucketTable::new(40);
        (0..40).for_each(|number| assert!(table.get_or_insert_with(id(number), || 0, |_| false).is_some()));
        assert_eq!(table.get_or_insert_with(id(99), || 0, |_| false), None);
        assert_eq!((table.len(), table.refused()), (40, 1));
        assert_eq!(table.get_or_insert_with(id(7), || 0, |_| false), Some(&mut 0));
    }

    #[test]
    fn a_flood_of_names_leaves_nothing_behind() {
        let mut table = BucketTable::new(10_000);
        (0..100_000).for_each(|number| {
            table.get_or_insert_with(id(number), || 0, |_| true);
        });
        assert!(table.len() <= 10_000);
        while table.sweep(1_000, |_| true) > 0 {}
        assert!(table.is_empty());
        assert_eq!(table.parts.iter().map(Part::capacity).sum::<usize>(), 0);
    }
}
