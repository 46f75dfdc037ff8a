//! Versions of keys: counters of writes that all cores share. A reply that was read before a write is not
//! used after the write.
//!
//! Keys share counter cells by hash, and each backend has one more cell for writes whose keys are unknown. A cell
//! counts the writes in flight and all that ever began. A core that wants to keep a reply records both cells before it
//! sends the read, while no write is in flight; the reply is valid for as long as neither cell has changed. A write
//! changes its cells before its bytes are sent, and is in flight until its reply has come: so no client that knows of
//! the write's reply is given an earlier value. A write whose connection is lost, so that it may yet be carried out,
//! counts as in flight for `--hot-ttl` more. A write that was refused before any store carried it out is taken back.
//!
//! Cells are used only by requests for hot keys, and by writes that are sent from another core than their
//! keys' home.

use std::sync::atomic::{AtomicU64, Ordering};

use super::last_told::LastTold;
use crate::values::BackendId;

/// Number of cells (counters of writes) that keys share by hash.
const CELLS: usize = 1 << 16;
/// Mask of the lower 24 bits of a cell (counter of writes), which count the writes in flight. There are never
/// as many requests in flight.
const UNDER_WAY: u64 = (1 << 24) - 1;
/// Unit of the upper 40 bits of a cell (counter of writes), which count the writes that began and wrap
/// around.
const BEGAN: u64 = UNDER_WAY + 1;

/// The cells (counters of writes to keys) of one process, shared by all cores.
#[derive(Debug)]
pub struct Versions {
    cells: Box<[AtomicU64]>,
    /// Digests of the replies that clients were given last, as all cores see them.
    pub last_told: LastTold,
}

/// Index of a cell: a counter of the writes to some keys, or to all keys of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell(u32);

impl Cell {
    /// Returns the cell (counter of writes) of keys with this hash. All cores have to hash alike.
    pub const fn of_hash(hash: u64) -> Self {
        Self((hash >> 48) as u32)
    }

    /// Returns the cell (counter of writes) of a backend, for writes whose keys are unknown.
    pub const fn of_backend(backend: BackendId) -> Self {
        Self(CELLS as u32 + backend.0 as u32)
    }
}

/// State of a key's two cells (counters of writes: its own and its backend's) at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    key: Cell,
    backend: Cell,
    seen: [u64; 2],
}

impl Snapshot {
    /// Returns the snapshot that is good after one [`Versions::pass`] of the key's cell (counter of writes), if this
    /// one was good before and nothing else was written.
    pub fn after_pass(self) -> Self {
        let [key, backend] = self.seen;
        Self { seen: [key.wrapping_add(BEGAN), backend], ..self }
    }

    /// True if no write to the key, or to unknown keys of its backend, was in flight when the snapshot was
    /// taken.
    pub fn is_quiet(&self) -> bool {
        self.seen.iter().all(|seen| seen & UNDER_WAY == 0)
    }
}

impl Versions {
    /// Creates cells (counters of writes) for keys and for this many backends, all zero.
    pub fn new(backends: u16) -> Self {
        let cells = std::iter::repeat_with(AtomicU64::default).take(CELLS + usize::from(backends)).collect();
        Self { cells, last_told: LastTold::default() }
    }

    /// Records that a write begins to keys that share a cell (counter of writes). The caller must do so
    /// before the write's bytes are sent.
    pub fn begin(&self, cell: Cell) {
        self.at(cell).fetch_add(BEGAN + 1, Ordering::SeqCst);
    }

    /// Records that a write to keys that share a cell (counter of writes) is over: its reply has come, it was never
    /// sent, or the time is over for which a write without a reply counts as in flight.
    pub fn end(&self, cell: Cell) {
        let before = self.at(cell).fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before & UNDER_WAY > 0, "a write ends once");
    }

    /// Changes a cell (counter of writes) like a write that begins and ends at once, so that replies kept for
    /// its keys are no longer used.
    pub fn pass(&self, cell: Cell) {
        self.begin(cell);
        self.end(cell);
    }

    /// Takes back the record that a write has begun ([`Self::begin`]), as it was not carried out and never
    /// will be. Replies that were read before it, while no other write was in flight, are valid again, unless
    /// another write has begun.
    pub fn take_back(&self, cell: Cell) {
        let before = self.at(cell).fetch_sub(BEGAN + 1, Ordering::SeqCst);
        debug_assert!(before & UNDER_WAY > 0, "a write ends once");
    }

    /// Returns the present state of a key's two cells (counters of writes): its own and its backend's.
    pub fn look(&self, key: Cell, backend: Cell) -> Snapshot {
        let seen = [key, backend].map(|cell| self.at(cell).load(Ordering::SeqCst));
        Snapshot { key, backend, seen }
    }

    /// Returns the present state of a key's two cells (counters of writes: its own and its backend's); None
    /// while a write to either is in flight.
    pub fn snapshot(&self, key: Cell, backend: Cell) -> Option<Snapshot> {
        Some(self.look(key, backend)).filter(Snapshot::is_quiet)
    }

    /// True if no write to the key, or to unknown keys of its backend, has begun or ended since the snapshot
    /// was taken.
    #[inline]
    pub fn is_good(&self, snapshot: &Snapshot) -> bool {
        self.at(snapshot.key).load(Ordering::SeqCst) == snapshot.seen[0]
            && self.at(snapshot.backend).load(Ordering::SeqCst) == snapshot.seen[1]
    }

    /// True if a write to the key, or to unknown keys of its backend, has begun since the snapshot was taken,
    /// so that a reply to a read sent then may be from before the write.
    pub fn has_begun_since(&self, snapshot: &Snapshot) -> bool {
        let begun = |cell: u64| cell & !UNDER_WAY;
        let has_begun = |cell: Cell, seen: u64| begun(self.at(cell).load(Ordering::SeqCst)) != begun(seen);
        has_begun(snapshot.key, snapshot.seen[0]) || has_begun(snapshot.backend, snapshot.seen[1])
    }

    /// Returns the number of writes in flight, over all cells (counters of writes); a write of several cells
    /// counts several times.
    pub fn under_way(&self) -> u64 {
        self.cells.iter().map(|cell| cell.load(Ordering::SeqCst) & UNDER_WAY).sum()
    }

    #[inline]
    fn at(&self, cell: Cell) -> &AtomicU64 {
        &self.cells[cell.0 as usize]
    }
}

/// A read of one key, by itself or within a transaction in flight, whose value in the reply is compared with other
/// replies.
#[derive(Clone, Copy, Debug)]
pub struct InnerRead {
    /// Position of the read's value in the store's reply: the index of the element in `EXEC`'s reply (None outside of
    /// a transaction), and, for `MGET`, the index within that.
    pub place: (Option<u32>, Option<u32>),
    /// The hash that identifies the read (command, key, RESP version and database).
    pub asked: u64,
    /// The version cell (counter of writes) of the key.
    pub cell: Cell,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_outlives_a_pass_and_no_write() {
        let versions = Versions::new(1);
        let (key, backend) = (Cell::of_hash(7), Cell::of_backend(BackendId(0)));
        let look = || versions.snapshot(key, backend).expect("nothing is being written");
        let seen = look();
        versions.pass(key);
        assert!(!versions.is_good(&seen) && versions.is_good(&seen.after_pass()));
        versions.pass(key);
        assert!(!versions.is_good(&seen.after_pass()), "another write came between");
        let seen = look();
        versions.begin(key);
        versions.pass(key);
        versions.end(key);
        assert!(!versions.is_good(&seen.after_pass()));
    }

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

    /// Compares which snapshots are good with a set of entries from which only writes that were carried out
    /// remove entries.
    #[test]
    fn what_was_read_before_writes_that_were_taken_back_is_good_again_and_nothing_else() {
        use crate::values::random::Random;
        let all = Cell::of_backend(BackendId(0));
        let key = Cell::of_hash(7 << 48);
        let mut good_again = 0;
        for seed in 0..200 {
            let (versions, mut random) = (Versions::new(1), Random::new(seed));
            let mut under_way: Vec<Cell> = Vec::new();
            // Each cached entry is stored with the number of writes carried out before its read, which is
            // known only after all writes have ended.
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

    /// Compares which snapshots are good with a set of entries from which any write of the key, or of all
    /// keys, removes entries.
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
                    // The entries were dropped when the write began; entries cached after that stay valid,
                    // whether the write ends or is taken back.
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
            // With 30 keys in 65,536 cells hardly two keys share a cell, so no entry is dropped without need
            // either.
            assert!(kept.iter().all(|(_, snapshot)| versions.is_good(snapshot)));
        }
    }
}
