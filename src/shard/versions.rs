//! How often keys were written, as all cores see it: what was read before a write is not good after it.
//!
//! Keys share cells by hash, and each backend has one of its own for writes of which nobody knows what they touch. A cell counts
//! the writes under way and all that ever began. Whoever keeps something that was read notes both cells before the read is sent,
//! while no write is under way; it is good for as long as neither has changed. A write changes them before its bytes leave, and
//! is under way until its reply has come: so nobody who knows of the reply is told what was before. One that was refused before anybody
//! carried it out is taken back.
//!
//! Only requests for keys that are hot look at cells, and writes that leave from another core than their keys' home.

use std::sync::atomic::{AtomicU64, Ordering};

use super::last_told::LastTold;
use crate::values::BackendId;

/// Cells that keys share.
const CELLS: usize = 1 << 16;
/// The lower bits of a cell count what is under way. There are never as many requests in flight.
const UNDER_WAY: u64 = (1 << 24) - 1;
/// The others count what began; after 2^40 they start again.
const BEGAN: u64 = UNDER_WAY + 1;

/// The cells of a process.
#[derive(Debug)]
pub struct Versions {
    cells: Box<[AtomicU64]>,
    /// What was told last of keys.
    pub last_told: LastTold,
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell(u32);

impl Cell {
    /// That of keys with this hash, which all cores have to know them by.
    pub const fn of_hash(hash: u64) -> Self {
        Self((hash >> 48) as u32)
    }

    /// That of whatever a backend stores.
    pub const fn of_backend(backend: BackendId) -> Self {
        Self(CELLS as u32 + backend.0 as u32)
    }
}

/// What the cells of a key were at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    key: Cell,
    backend: Cell,
    seen: [u64; 2],
}

impl Snapshot {
    /// Was nothing being written?
    pub fn is_quiet(&self) -> bool {
        self.seen.iter().all(|seen| seen & UNDER_WAY == 0)
    }
}

impl Versions {
    /// Nothing was written yet.
    pub fn new(backends: u16) -> Self {
        let cells = std::iter::repeat_with(AtomicU64::default).take(CELLS + usize::from(backends)).collect();
        Self { cells, last_told: LastTold::default() }
    }

    /// A write begins: to be called before its bytes leave.
    pub fn begin(&self, cell: Cell) {
        self.at(cell).fetch_add(BEGAN + 1, Ordering::SeqCst);
    }

    /// A write is over: its reply has come, or it was never sent.
    pub fn end(&self, cell: Cell) {
        let before = self.at(cell).fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before & UNDER_WAY > 0, "a write ends once");
    }

    /// Something else has written: as a write that is over.
    pub fn pass(&self, cell: Cell) {
        self.begin(cell);
        self.end(cell);
    }

    /// A write that began turns out never to have been carried out, and never will be: it is as if it had not begun. What was read before
    /// it, while nothing else was being written, is good again, unless another one has begun.
    pub fn take_back(&self, cell: Cell) {
        let before = self.at(cell).fetch_sub(BEGAN + 1, Ordering::SeqCst);
        debug_assert!(before & UNDER_WAY > 0, "a write ends once");
    }

    /// What the cells of a key are now.
    pub fn look(&self, key: Cell, backend: Cell) -> Snapshot {
        let seen = [key, backend].map(|cell| self.at(cell).load(Ordering::SeqCst));
        Snapshot { key, backend, seen }
    }

    /// The same, unless something is being written.
    pub fn snapshot(&self, key: Cell, backend: Cell) -> Option<Snapshot> {
        Some(self.look(key, backend)).filter(Snapshot::is_quiet)
    }

    /// Has no write begun or ended since?
    #[inline]
    pub fn is_good(&self, snapshot: &Snapshot) -> bool {
        self.at(snapshot.key).load(Ordering::SeqCst) == snapshot.seen[0]
            && self.at(snapshot.backend).load(Ordering::SeqCst) == snapshot.seen[1]
    }

    /// True if a write has begun since: what was read then may be from before it.
    pub fn has_begun_since(&self, snapshot: &Snapshot) -> bool {
        let begun = |cell: u64| cell & !UNDER_WAY;
        let has_begun = |cell: Cell, seen: u64| begun(self.at(cell).load(Ordering::SeqCst)) != begun(seen);
        has_begun(snapshot.key, snapshot.seen[0]) || has_begun(snapshot.backend, snapshot.seen[1])
    }

    /// Writes under way, over all cells.
    pub fn under_way(&self) -> u64 {
        self.cells.iter().map(|cell| cell.load(Ordering::SeqCst) & UNDER_WAY).sum()
    }

    #[inline]
    fn at(&self, cell: Cell) -> &AtomicU64 {
        &self.cells[cell.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_good_until_something_is_written() {
        let versions = Versions::new(2);
        let [first, second] = [0, 1].map(|backend| Cell::of_backend(BackendId(backend)));
        let key = Cell::of_hash(0x1234_5678_9abc_def0);
        let seen = versions.snapshot(key, first).expect("nothing is being written");
        assert!(versions.is_good(&seen));
        versions.begin(second);
        assert!(versions.is_good(&seen), "that is another store");
        versions.begin(key);
        assert!(!versions.is_good(&seen));
        assert_eq!(versions.snapshot(key, first), None);
        versions.end(key);
        assert!(!versions.is_good(&seen), "it was written since");
        let again = versions.snapshot(key, first).expect("nothing is being written");
        assert!(versions.is_good(&again));
        versions.begin(first);
        versions.end(first);
        assert!(!versions.is_good(&again));
        versions.end(second);
        assert_eq!(versions.under_way(), 0);
    }

    /// Beside a set of entries that only writes which were carried out empty.
    #[test]
    fn what_was_read_before_writes_that_were_taken_back_is_good_again_and_nothing_else() {
        use crate::values::random::Random;
        let all = Cell::of_backend(BackendId(0));
        let key = Cell::of_hash(7 << 48);
        let mut good_again = 0;
        for seed in 0..200 {
            let (versions, mut random) = (Versions::new(1), Random::new(seed));
            let mut under_way: Vec<Cell> = Vec::new();
            // How many writes had been carried out when it was read, which nobody knows before they are over.
            let (mut kept, mut carried_out): (Vec<(Snapshot, u64)>, u64) = (Vec::new(), 0);
            for _ in 0..200 {
                match random.below(4) {
                    0 => {
                        let cell = if random.below(8) > 0 { key } else { all };
                        versions.begin(cell);
                        under_way.push(cell);
                    }
                    1 | 2 if !under_way.is_empty() => {
                        let cell = under_way.swap_remove(random.index(under_way.len()));
                        if random.below(2) == 0 {
                            versions.end(cell);
                            carried_out += 1;
                        } else {
                            versions.take_back(cell);
                        }
                    }
                    _ => kept.extend(versions.snapshot(key, all).map(|seen| (seen, carried_out))),
                }
                for (snapshot, at) in &kept {
                    let is_good = under_way.is_empty() && *at == carried_out;
                    let is_told = versions.is_good(snapshot);
                    assert_eq!(is_told, is_good, "seed {seed}");
                    good_again += u64::from(is_told);
                }
            }
        }
        assert!(good_again > 1_000, "{good_again}");
    }

    /// Beside a set of entries that any write of their key, or of everything, empties.
    #[test]
    fn nothing_is_good_that_a_cache_without_versions_would_have_dropped() {
        use crate::values::random::Random;
        let versions = Versions::new(1);
        let all = Cell::of_backend(BackendId(0));
        let mut random = Random::new(3);
        let hashes: Vec<u64> = (0..30).map(|_| random.bits()).collect();
        let mut kept: Vec<(u64, Snapshot)> = Vec::new();
        let mut under_way: Vec<(Option<u64>, Cell)> = Vec::new();
        for _ in 0..20_000 {
            let key = hashes[random.index(hashes.len())];
            match random.below(4) {
                0 => {
                    let touched = (random.below(8) > 0).then_some(key);
                    let cell = touched.map_or(all, Cell::of_hash);
                    versions.begin(cell);
                    kept.retain(|(kept, _)| touched.is_some_and(|touched| touched != *kept));
                    under_way.push((touched, cell));
                }
                1 if !under_way.is_empty() => {
                    let (_, cell) = under_way.swap_remove(random.index(under_way.len()));
                    // Whatever was dropped for it: what is kept from then on is good whether it is over or taken back.
                    if random.below(2) == 0 { versions.end(cell) } else { versions.take_back(cell) }
                }
                _ => {
                    let is_written =
                        under_way.iter().any(|(touched, _)| touched.is_none_or(|touched| touched == key));
                    let snapshot = versions.snapshot(Cell::of_hash(key), all);
                    assert!(!(is_written && snapshot.is_some()));
                    kept.extend(snapshot.map(|snapshot| (key, snapshot)));
                }
            }
            // With so few keys hardly two share a cell, so nothing is dropped for nothing either.
            assert!(kept.iter().all(|(_, snapshot)| versions.is_good(snapshot)));
        }
    }
}
