//! A hash table whose cells stay in hash order, so that a place in a scan is simply a hash.
//!
//! ```text
//!     cells    [ . | 3:e2 | 5:e0 | . | 9:e1 | 9:e3 | . ]   hash and position, ascending, each at or after its home
//!     entries  [ e0 | e1 | e2 | e3 ]                        dense, in no order
//! ```
//!
//! Linear probing with the home given by the *top* bits of the hash keeps that order through growth and
//! removal: a scan that stopped at hash 9 goes on at hash 9 whatever happened meanwhile, so it visits
//! everything that was there all along. The entries are dense, so a random choice is a random index.

use super::shapes::Shapes;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use std::sync::Arc;

const CELLS_MIN: usize = 8;
/// The capacity that a vector keeps however few elements it has: about that with which it begins.
const CAPACITY_MIN: usize = 4;
/// The number of empty cells (places of the hash table) whose passing counts as much work of a scan as one
/// entry.
const CELLS_PER_ENTRY: usize = 10;
/// The value that an empty cell (place of the hash table) has in place of the position of an entry.
const ABSENT: u32 = u32::MAX;
/// The number of lowest bits of a hash that a scan ignores: a scan stops and continues only at multiples of 2
/// to this power.
pub(super) const GRAIN_BITS: u32 = 4;
/// The approximate bytes of a hash table besides its entries and their places: the first entry already brings
/// cells and room for several.
pub(super) const TABLE_BYTES: usize = 160;

/// Returns the approximate bytes that a vector which grows and shrinks has to spare if its elements take `bytes`.
pub(super) const fn spare_bytes(bytes: usize) -> usize {
    bytes * 5 / 8
}

/// Returns the approximate bytes of an entry of a hash table besides the entry itself: its cell at the usual load,
/// and its share of the spare memory.
pub(super) const fn place_bytes<E>() -> usize {
    2 * size_of::<Cell>() + spare_bytes(size_of::<E>())
}

/// Frees most of the spare memory of a vector of which more than three quarters are spare.
pub(super) fn shrink<T>(vector: &mut Vec<T>) {
    if let Some(capacity) = capacity_kept(vector.len(), vector.capacity()) {
        vector.shrink_to(capacity);
    }
}

/// Returns the capacity that a vector or ring of `len` elements is cut to; None if no more than three quarters of its
/// present capacity are spare.
pub(super) fn capacity_kept(len: usize, capacity: usize) -> Option<usize> {
    (capacity > CAPACITY_MIN && len * 4 < capacity).then(|| (len * 2).max(CAPACITY_MIN))
}

/// An entry of a table, which is found by its key.
pub(super) trait Keyed {
    fn key(&self) -> &[u8];
}

/// The hash function of an engine, seeded so that no client can choose keys that collide. All collections of
/// the engine share it, and with it the sizes up to which Redis would store them in compact forms.
#[derive(Clone)]
pub(super) struct Hasher(Arc<(RapidSecrets, Shapes)>);

impl Hasher {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new((RapidSecrets::seed(seed), Shapes::default())))
    }

    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        rapidhash_v3_seeded(key, &self.0.0)
    }

    /// Returns the sizes up to which Redis would store collections in their compact forms, shared by all
    /// collections of the engine.
    pub(super) fn shapes(&self) -> &Shapes {
        &self.0.1
    }
}

#[derive(Clone, Copy)]
struct Cell {
    hash: u32,
    position: u32,
}

const EMPTY: Cell = Cell { hash: 0, position: ABSENT };

impl Cell {
    fn is_empty(self) -> bool {
        self.position == ABSENT
    }
}

/// A hash table of entries by key. To find or add an entry, the caller passes the key's hash: the low 32 bits
/// of the value of the engine's hash function.
#[derive(Clone)]
pub(super) struct Table<E> {
    hasher: Hasher,
    /// The cells of the hash table, in the order of their hashes: first the homes (the cells that hashes
    /// name, whose number is a power of two), then as many more as the last run of occupied cells needs.
    cells: Vec<Cell>,
    homes: usize,
    entries: Vec<E>,
}

impl<E: Keyed> Table<E> {
    pub(super) fn new(hasher: Hasher) -> Self {
        Self { hasher, cells: Vec::new(), homes: 0, entries: Vec::new() }
    }

    pub(super) fn hasher(&self) -> &Hasher {
        &self.hasher
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

    /// Returns the position of the entry of `key`, whose hash is `hash`; `None` if there is none. The
    /// position is valid until the next insertion or removal.
    pub(super) fn find(&self, hash: u32, key: &[u8]) -> Option<usize> {
        let mut at = self.first_cell(hash)?;
        while let Some(cell) = self.cells.get(at).filter(|cell| !cell.is_empty() && cell.hash == hash) {
            let position = cell.position as usize;
            if self.entries[position].key() == key {
                return Some(position);
            }
            at += 1;
        }
        None
    }

    /// Adds an entry, given the hash of its key, which must not be in the table yet, and returns the entry's
    /// position.
    pub(super) fn insert(&mut self, hash: u32, entry: E) -> usize {
        if (self.entries.len() + 1) * 4 > self.homes * 3 {
            self.resize((self.homes * 2).max(CELLS_MIN));
        }
        let position = self.entries.len();
        assert!(position < ABSENT as usize, "positions fit 32 bits");
        self.entries.push(entry);
        self.place(Cell { hash, position: position as u32 });
        position
    }

    /// Removes and returns the entry at `position`. The last entry moves to that position, so positions found
    /// before are not valid any more.
    pub(super) fn remove(&mut self, position: usize) -> E {
        let last = self.entries.len() - 1;
        let at = self.cell_of(position);
        self.close_gap(at);
        if position != last {
            let moved = self.cell_of(last);
            self.cells[moved].position = position as u32;
        }
        let entry = self.entries.swap_remove(position);
        if self.homes > CELLS_MIN && self.entries.len() * 4 < self.homes {
            self.resize(self.homes / 2);
        }
        shrink(&mut self.entries);
        entry
    }

    /// Visits entries in the order of their hashes from hash `from` on, and stops after `count` of them, or
    /// earlier after many empty cells. Entries whose hashes differ only in the lowest 4 bits are visited in
    /// the same call. Returns the hash to continue from; `None` at the end.
    pub(super) fn walk(&self, from: u32, count: usize, mut visit: impl FnMut(&E)) -> Option<u32> {
        let start = self.first_cell(from)?;
        let mut left = count.saturating_mul(CELLS_PER_ENTRY);
        let mut done = None;
        let grain = |cell: &Cell| cell.hash >> GRAIN_BITS;
        for (at, cell) in self.cells.iter().enumerate().skip(start) {
            if left == 0 && (cell.is_empty() || done != Some(grain(cell))) {
                let next =
                    if cell.is_empty() { self.first_hash(at) } else { Some(grain(cell) << GRAIN_BITS) };
                return next.filter(|_| self.cells[at..].iter().any(|cell| !cell.is_empty()));
            }
            left = left.saturating_sub(if cell.is_empty() { 1 } else { CELLS_PER_ENTRY });
            if !cell.is_empty() {
                done = Some(grain(cell));
                visit(&self.entries[cell.position as usize]);
            }
        }
        None
    }

    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.homes as u64) >> 32) as usize
    }

    /// Returns the smallest hash whose home (the cell that a hash names) is cell `at`; `None` if that cell
    /// (place of the hash table) is no home, but one of the extra cells at the end.
    fn first_hash(&self, at: usize) -> Option<u32> {
        (at < self.homes).then(|| (((at as u64) << 32) / self.homes as u64) as u32)
    }

    /// Returns the first cell in which `hash` may be: from the cell that the hash names on, the first cell
    /// that is empty or has a hash of at least `hash`. `None` if the table has no cells.
    fn first_cell(&self, hash: u32) -> Option<usize> {
        if self.cells.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        while self.cells.get(at).is_some_and(|cell| !cell.is_empty() && cell.hash < hash) {
            at += 1;
        }
        Some(at)
    }

    fn cell_of(&self, position: usize) -> usize {
        let hash = self.hash(self.entries[position].key());
        let first = self.first_cell(hash).expect("an entry has a cell");
        let offset = self.cells[first..].iter().position(|cell| cell.position as usize == position);
        first + offset.expect("an entry has a cell")
    }

    fn place(&mut self, cell: Cell) {
        let at = self.first_cell(cell.hash).expect("an insertion makes room first");
        let run = self.cells[at..].iter().position(|cell| cell.is_empty());
        let end = run.map_or(self.cells.len(), |run| at + run);
        if end == self.cells.len() {
            if end == self.cells.capacity() {
                // Few more cells are needed ever, so their number is not doubled.
                self.cells.reserve_exact(CELLS_MIN);
            }
            self.cells.push(EMPTY);
        }
        self.cells.copy_within(at..end, at + 1);
        self.cells[at] = cell;
    }

    /// Empties cell `at` of the hash table: the cells after it move back by one, up to an empty cell or one
    /// whose entry is in the cell that its hash names.
    fn close_gap(&mut self, at: usize) {
        let mut end = at + 1;
        while self.cells.get(end).is_some_and(|cell| !cell.is_empty() && self.home(cell.hash) < end) {
            end += 1;
        }
        self.cells.copy_within(at + 1..end, at);
        self.cells[end - 1] = EMPTY;
    }

    fn resize(&mut self, homes: usize) {
        let ordered = std::mem::take(&mut self.cells);
        self.homes = homes;
        self.cells = Vec::with_capacity(homes + CELLS_MIN);
        for cell in ordered.into_iter().filter(|cell| !cell.is_empty()) {
            let at = self.cells.len().max(self.home(cell.hash));
            self.cells.resize(at, EMPTY);
            self.cells.push(cell);
        }
        let length = self.cells.len().max(homes);
        self.cells.resize(length, EMPTY);
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
        let full: Vec<(usize, &Cell)> =
            table.cells.iter().enumerate().filter(|(_, cell)| !cell.is_empty()).collect();
        assert_eq!(full.len(), table.len());
        assert!(full.windows(2).all(|pair| pair[0].1.hash <= pair[1].1.hash), "cells stay in hash order");
        for (at, cell) in full {
            let home = table.home(cell.hash);
            assert!(home <= at && table.cells[home..at].iter().all(|cell| !cell.is_empty()));
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
    fn a_table_that_became_small_takes_little_memory() {
        let mut table = Table::new(Hasher::new(3));
        let keys: Vec<String> = (0..10_000).map(|key| format!("key:{key}")).collect();
        keys.iter().for_each(|key| add(&mut table, key));
        for left in (0..keys.len()).rev() {
            delete(&mut table, &keys[left]);
            let spare = table.entries.capacity() > (4 * left).max(CAPACITY_MIN);
            assert!(!spare, "{} places for {left} entries", table.entries.capacity());
            assert!(table.homes <= (4 * left).max(CELLS_MIN), "{} homes for {left} entries", table.homes);
            assert!(table.cells.capacity() <= 2 * table.homes + CELLS_MIN);
        }
        check(&table);
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
