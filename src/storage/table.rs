//! A hash table whose slots stay in hash order, so that a place in a walk is simply a hash.
//!
//! ```text
//!     slots    [ . | 3:e2 | 5:e0 | . | 9:e1 | 9:e3 | . ]   hash and position, ascending, each at or after its home
//!     entries  [ e0 | e1 | e2 | e3 ]                        dense, in no order
//! ```
//!
//! Linear probing with the home given by the *top* bits of the hash keeps that order through growth and removal:
//! a walk that stopped at hash 9 goes on at hash 9 whatever happened meanwhile, so it meets everything that was
//! there all along. The dense entries make a random choice one index away.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use std::sync::Arc;

const SLOTS_MIN: usize = 8;
/// In a walk an empty slot counts this much less than an entry.
const SLOTS_PER_ENTRY: usize = 10;
const ABSENT: u32 = u32::MAX;
/// What an entry costs beside itself: its slot at the usual load, and the slack of a growing vector.
pub(super) const PLACE_BYTES: usize = 24;

/// Something that is found by its key.
pub(super) trait Keyed {
    fn key(&self) -> &[u8];
}

/// The hash function of one engine; seeded, so that no client can aim at one slot.
#[derive(Clone)]
pub(super) struct Hasher(Arc<RapidSecrets>);

impl Hasher {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(RapidSecrets::seed(seed)))
    }

    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        rapidhash_v3_seeded(key, &self.0)
    }
}

#[derive(Clone, Copy)]
struct Slot {
    hash: u32,
    position: u32,
}

const EMPTY: Slot = Slot { hash: 0, position: ABSENT };

impl Slot {
    fn is_empty(self) -> bool {
        self.position == ABSENT
    }
}

/// Entries by key. The caller hands in the hash: the low half of the [`Hasher`]'s.
#[derive(Clone)]
pub(super) struct Table<E> {
    hasher: Hasher,
    /// A power of two of homes, then as many more as the last run needs.
    slots: Vec<Slot>,
    homes: usize,
    entries: Vec<E>,
}

impl<E: Keyed> Table<E> {
    pub(super) fn new(hasher: Hasher) -> Self {
        Self { hasher, slots: Vec::new(), homes: 0, entries: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn entries(&self) -> &[E] {
        &self.entries
    }

    pub(super) fn at(&self, position: usize) -> &E {
        &self.entries[position]
    }

    pub(super) fn at_mut(&mut self, position: usize) -> &mut E {
        &mut self.entries[position]
    }

    pub(super) fn hash(&self, key: &[u8]) -> u32 {
        self.hasher.hash(key) as u32
    }

    /// Where the entry of `key` lies; good until the next insertion or removal.
    pub(super) fn find(&self, hash: u32, key: &[u8]) -> Option<usize> {
        let mut at = self.first_slot(hash)?;
        while let Some(slot) = self.slots.get(at).filter(|slot| !slot.is_empty() && slot.hash == hash) {
            let position = slot.position as usize;
            if self.entries[position].key() == key {
                return Some(position);
            }
            at += 1;
        }
        None
    }

    /// Adds an entry whose key is not there yet, and tells its position.
    pub(super) fn insert(&mut self, hash: u32, entry: E) -> usize {
        if (self.entries.len() + 1) * 4 > self.homes * 3 {
            self.resize((self.homes * 2).max(SLOTS_MIN));
        }
        let position = self.entries.len();
        assert!(position < ABSENT as usize, "positions fit 32 bits");
        self.entries.push(entry);
        self.place(Slot { hash, position: position as u32 });
        position
    }

    /// Takes an entry out; the last one moves to its position.
    pub(super) fn remove(&mut self, position: usize) -> E {
        let last = self.entries.len() - 1;
        let at = self.slot_of(position);
        self.close_gap(at);
        if position != last {
            let moved = self.slot_of(last);
            self.slots[moved].position = position as u32;
        }
        let entry = self.entries.swap_remove(position);
        if self.homes > SLOTS_MIN && self.entries.len() * 8 < self.homes {
            self.resize(self.homes / 2);
            self.entries.shrink_to(self.homes);
        }
        entry
    }

    /// Visits entries in hash order from hash `from` on, and stops after `count` of them, or after many empty
    /// slots. Entries of the same hash are never split. Returns where to go on, or nothing at the end.
    pub(super) fn walk(&self, from: u32, count: usize, mut visit: impl FnMut(&E)) -> Option<u32> {
        let start = self.first_slot(from)?;
        let mut left = count.saturating_mul(SLOTS_PER_ENTRY);
        let mut done = None;
        for (at, slot) in self.slots.iter().enumerate().skip(start) {
            if left == 0 && (slot.is_empty() || done != Some(slot.hash)) {
                let next = if slot.is_empty() { self.first_hash(at) } else { Some(slot.hash) };
                return next.filter(|_| self.slots[at..].iter().any(|slot| !slot.is_empty()));
            }
            left = left.saturating_sub(if slot.is_empty() { 1 } else { SLOTS_PER_ENTRY });
            if !slot.is_empty() {
                done = Some(slot.hash);
                visit(&self.entries[slot.position as usize]);
            }
        }
        None
    }

    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.homes as u64) >> 32) as usize
    }

    /// The smallest hash whose home is slot `at`, if it is a home at all.
    fn first_hash(&self, at: usize) -> Option<u32> {
        (at < self.homes).then(|| (((at as u64) << 32) / self.homes as u64) as u32)
    }

    /// The first slot that `hash` could have: all before it in its run are smaller.
    fn first_slot(&self, hash: u32) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        while self.slots.get(at).is_some_and(|slot| !slot.is_empty() && slot.hash < hash) {
            at += 1;
        }
        Some(at)
    }

    fn slot_of(&self, position: usize) -> usize {
        let hash = self.hash(self.entries[position].key());
        let first = self.first_slot(hash).expect("an entry has a slot");
        let offset = self.slots[first..].iter().position(|slot| slot.position as usize == position);
        first + offset.expect("an entry has a slot")
    }

    fn place(&mut self, slot: Slot) {
        let at = self.first_slot(slot.hash).expect("an insertion makes room first");
        let run = self.slots[at..].iter().position(|slot| slot.is_empty());
        let end = run.map_or(self.slots.len(), |run| at + run);
        if end == self.slots.len() {
            self.slots.push(EMPTY);
        }
        self.slots.copy_within(at..end, at + 1);
        self.slots[at] = slot;
    }

    /// Moves the rest of the run back by one, up to the first slot that is at home.
    fn close_gap(&mut self, at: usize) {
        let mut end = at + 1;
        while self.slots.get(end).is_some_and(|slot| !slot.is_empty() && self.home(slot.hash) < end) {
            end += 1;
        }
        self.slots.copy_within(at + 1..end, at);
        self.slots[end - 1] = EMPTY;
    }

    fn resize(&mut self, homes: usize) {
        let ordered = std::mem::take(&mut self.slots);
        self.homes = homes;
        self.slots = Vec::with_capacity(homes + SLOTS_MIN);
        for slot in ordered.into_iter().filter(|slot| !slot.is_empty()) {
            let at = self.slots.len().max(self.home(slot.hash));
            self.slots.resize(at, EMPTY);
            self.slots.push(slot);
        }
        let length = self.slots.len().max(homes);
        self.slots.resize(length, EMPTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Random;
    use std::collections::BTreeSet;

    impl Keyed for String {
        fn key(&self) -> &[u8] {
            self.as_bytes()
        }
    }

    fn add(table: &mut Table<String>, key: &str) {
        let hash = table.hash(key.as_bytes());
        if table.find(hash, key.as_bytes()).is_none() {
            table.insert(hash, key.to_owned());
        }
    }

    fn delete(table: &mut Table<String>, key: &str) {
        let hash = table.hash(key.as_bytes());
        if let Some(position) = table.find(hash, key.as_bytes()) {
            table.remove(position);
        }
    }

    fn check(table: &Table<String>) {
        let full: Vec<(usize, &Slot)> =
            table.slots.iter().enumerate().filter(|(_, slot)| !slot.is_empty()).collect();
        assert_eq!(full.len(), table.len());
        assert!(full.windows(2).all(|pair| pair[0].1.hash <= pair[1].1.hash), "slots stay in hash order");
        for (at, slot) in full {
            let home = table.home(slot.hash);
            assert!(home <= at && table.slots[home..at].iter().all(|slot| !slot.is_empty()));
        }
    }

    #[test]
    fn behaves_like_a_set_of_keys() {
        let mut random = Random::new(7);
        let mut table = Table::new(Hasher::new(3));
        let mut model = BTreeSet::new();
        for step in 0..20_000 {
            let key = format!("key:{}", random.index(700));
            // Long phases of growth and of shrinking, so that both resizes happen.
            if random.index(10) < if (step / 2_000) % 2 == 0 { 8 } else { 2 } {
                add(&mut table, &key);
                model.insert(key);
            } else {
                delete(&mut table, &key);
                model.remove(&key);
            }
            if step % 500 == 0 {
                check(&table);
            }
        }
        let found: BTreeSet<String> = table.entries().iter().cloned().collect();
        assert_eq!(found, model);
    }

    #[test]
    fn a_walk_meets_everything_that_stays() {
        let mut random = Random::new(11);
        let mut table = Table::new(Hasher::new(5));
        for key in 0..500 {
            add(&mut table, &format!("stays:{key}"));
        }
        let (mut seen, mut cursor) = (BTreeSet::new(), 0);
        loop {
            let next = table.walk(cursor, 3, |entry| {
                seen.insert(entry.clone());
            });
            let Some(next) = next else { break };
            assert!(next >= cursor);
            cursor = next;
            for _ in 0..40 {
                add(&mut table, &format!("guest:{}", random.index(4_000)));
                delete(&mut table, &format!("guest:{}", random.index(4_000)));
            }
        }
        assert_eq!(seen.iter().filter(|key| key.starts_with("stays")).count(), 500);
    }
}
