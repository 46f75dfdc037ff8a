//! Records of keys whose requests are counted one by one: hot keys, and those that may become hot.

use super::{Access, HotId, PANES, Window, keep};
use crate::values::limits::{HOT_NAME_BYTES_MAX, HOT_NAME_BYTES_SHOWN};
use crate::values::{MicroUnits, Timestamp};

/// Maximum number of records of one core: of keys that are hot or may become hot. Further keys get none, and
/// so cannot become hot. By default at most 200 keys can have enough of the load of one pane (50 ms) to get a
/// record, a quarter of a fiftieth; a record lasts for two panes at least.
pub(super) const RECORDS_MAX: usize = 512;
/// Number of places in the hash table of records of keys: twice as many as records, so that searches in it
/// are short.
const CELLS: usize = 2 * RECORDS_MAX;
/// Value that stands for an empty place in the hash table of records of keys.
const EMPTY: u16 = u16::MAX;

/// A key's name: the whole key, or the start of a long one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyName {
    bytes: Vec<u8>,
    length: usize,
}

impl KeyName {
    /// Returns the key, or only its start if the key was too long to be stored in full.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the length of the whole key in bytes, also if only its start is stored.
    pub fn length(&self) -> usize {
        self.length
    }

    /// True if the whole key is stored, and not only the start of a long one. Only such keys can be told
    /// apart with certainty, so replies for longer keys are never cached.
    pub fn is_whole(&self) -> bool {
        self.bytes.len() == self.length
    }

    /// Replaces the stored key by another one, in the same memory.
    fn set(&mut self, key: &[u8]) {
        let kept = if key.len() <= HOT_NAME_BYTES_MAX { key.len() } else { HOT_NAME_BYTES_SHOWN };
        self.bytes.clear();
        self.bytes.extend_from_slice(&key[..kept]);
        self.length = key.len();
    }
}

/// A rate per second as a moving average (EWMA) over a second; a plain mean until a second is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    per_second: f64,
    /// Time over which the rate has been measured so far, in seconds; it stops growing at 1.
    known: f64,
}

impl Rate {
    pub fn of(amount: f64, seconds: f64) -> Self {
        let mut rate = Self::default();
        rate.learn(amount, seconds);
        rate
    }

    pub fn learn(&mut self, amount: f64, seconds: f64) {
        if seconds > 0.0 {
            self.known = (self.known + seconds).min(1.0);
            self.per_second += (amount / seconds - self.per_second) * (seconds / self.known).min(1.0);
        }
    }

    pub fn per_second(self) -> f64 {
        self.per_second
    }
}

/// Counts of the requests for a key in the present pane (interval of 50 ms).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub reads: u64,
    pub writes: u64,
    /// Number of reads that other cores answered from their copies of the key's replies.
    pub elsewhere: u64,
    /// Maximum number of requests that the key may have had in the pane (interval of 50 ms) before it was
    /// counted.
    pub error: u64,
    /// Price of the key's requests in millionths of a request unit, as far as callers recorded it.
    pub cost: MicroUnits,
}

impl Tally {
    /// Creates the counts for a key that has had `requests` requests. All of them count as reads or as writes
    /// by the `access` of the last one, since nothing is known of the others. `error` is the most requests
    /// that the key may have had besides.
    pub fn of(requests: u64, access: Access, error: u64) -> Self {
        let mut tally = Self { error, ..Self::default() };
        *tally.of_access(access) = requests;
        tally
    }

    #[inline]
    pub fn count(&mut self, access: Access) {
        *self.of_access(access) += 1;
    }

    #[inline]
    fn of_access(&mut self, access: Access) -> &mut u64 {
        match access {
            Access::Read => &mut self.reads,
            Access::Write => &mut self.writes,
        }
    }
}

/// State of a key that has a record: it is hot, or is only counted because it may become hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heat {
    /// The requests for the key are counted, and it is not hot.
    Watched,
    /// The key has been hot since a time, and has been cold (had less than a quarter of the load that makes a
    /// key hot) for `cold_for` nanoseconds without a break.
    Hot { since: Timestamp, cold_for: u64 },
}

/// The record of one key whose requests are counted one by one, because it is hot or may become hot.
#[derive(Debug)]
pub(super) struct Record {
    pub hash: u64,
    pub slot: u16,
    pub name: KeyName,
    pub heat: Heat,
    pub tally: Tally,
    /// Maximum number of requests that the key may have had in each of the last panes (intervals of 50 ms),
    /// the newest first.
    counts: [u64; PANES],
    /// Parts of `counts` that are not certain: the requests that the key may have had before it was counted,
    /// by pane (interval of 50 ms), the newest first.
    errors: [u64; PANES],
    /// Number of panes (intervals of 50 ms) in which the key was counted.
    pub panes: u32,
    pub reads: Rate,
    pub writes: Rate,
    pub elsewhere: Rate,
    pub cost: Rate,
    generation: u32,
    is_used: bool,
}

impl Record {
    fn unused() -> Self {
        Self {
            hash: 0,
            slot: 0,
            name: KeyName::default(),
            heat: Heat::Watched,
            tally: Tally::default(),
            counts: [0; PANES],
            errors: [0; PANES],
            panes: 0,
            reads: Rate::default(),
            writes: Rate::default(),
            elsewhere: Rate::default(),
            cost: Rate::default(),
            generation: 0,
            is_used: false,
        }
    }

    #[inline]
    pub fn is_hot(&self) -> bool {
        matches!(self.heat, Heat::Hot { .. })
    }

    /// Returns the most requests that the key may have had in a window (two panes of 50 ms).
    pub fn count(&self, window: Window) -> u64 {
        window.sum(&self.counts)
    }

    /// Returns by how much the record's [`count`](Self::count) of requests in a window (two panes of 50 ms)
    /// may be too high.
    pub fn error(&self, window: Window) -> u64 {
        window.sum(&self.errors)
    }

    /// Returns the number of requests that the key had for certain in a window (two panes of 50 ms).
    pub fn certain(&self, window: Window) -> u64 {
        self.count(window) - self.error(window)
    }

    /// Ends a pane (interval in which requests are counted) of this length (`seconds`): moves the present
    /// counts into the counts by pane and the rates.
    pub fn end_pane(&mut self, seconds: f64) {
        let Tally { reads, writes, elsewhere, error, cost } = std::mem::take(&mut self.tally);
        let served = reads.saturating_add(writes).saturating_add(elsewhere);
        keep(&mut self.counts, served.saturating_add(error));
        keep(&mut self.errors, error);
        self.panes = self.panes.saturating_add(1);
        self.reads.learn(reads as f64, seconds);
        self.writes.learn(writes as f64, seconds);
        self.elsewhere.learn(elsewhere as f64, seconds);
        self.cost.learn(cost as f64, seconds);
    }

    /// Makes the key count as not hot any more. The new generation makes ids of it that are held elsewhere
    /// invalid.
    pub fn cool(&mut self) {
        self.heat = Heat::Watched;
        self.generation = self.generation.wrapping_add(1);
    }
}

/// All records of keys of a core, found by the keys' hashes. A dropped record keeps its memory for the next
/// key.
#[derive(Debug)]
pub(super) struct Records {
    all: Vec<Record>,
    unused: Vec<u16>,
    /// Hash table of the records' indexes: each is in the place that its hash gives or, if that is taken, in
    /// the next free one after it.
    cells: Box<[u16; CELLS]>,
}

impl Records {
    pub fn new() -> Self {
        Self { all: Vec::new(), unused: Vec::new(), cells: Box::new([EMPTY; CELLS]) }
    }

    pub fn is_empty(&self) -> bool {
        self.all.len() == self.unused.len()
    }

    /// Returns the record of the key with this hash, and its index; None if there is none.
    #[inline]
    pub fn find(&mut self, hash: u64) -> Option<(u16, &mut Record)> {
        let at = self.place_of(hash)?;
        Some((at, &mut self.all[usize::from(at)]))
    }

    /// Returns the id of the key with this hash, if it is hot.
    #[inline]
    pub fn id_of(&self, hash: u64) -> Option<HotId> {
        let at = self.place_of(hash)?;
        self.all[usize::from(at)].is_hot().then(|| self.id(at))
    }

    #[inline]
    fn place_of(&self, hash: u64) -> Option<u16> {
        let mut cell = cell_of(hash);
        loop {
            let at = self.cells[cell];
            if self.all.get(usize::from(at))?.hash == hash {
                return Some(at);
            }
            cell = (cell + 1) % CELLS;
        }
    }

    /// Creates a record for a key that has none; `hash` is the key's hash and `slot` its hash slot. None if
    /// there is no room.
    pub fn admit(&mut self, hash: u64, slot: u16, key: &[u8]) -> Option<&mut Record> {
        let at = match self.unused.pop() {
            Some(at) => at,
            None if self.all.len() < RECORDS_MAX => {
                self.all.push(Record::unused());
                self.all.len() as u16 - 1
            }
            None => return None,
        };
        self.link(hash, at);
        let record = &mut self.all[usize::from(at)];
        let (mut name, generation) = (std::mem::take(&mut record.name), record.generation);
        name.set(key);
        *record = Record { hash, slot, name, generation, is_used: true, ..Record::unused() };
        Some(record)
    }

    /// Returns the record of the hot key with this id; None if the key is no longer hot.
    pub fn get_mut(&mut self, id: HotId) -> Option<&mut Record> {
        let record = self.all.get_mut(usize::from(id.index))?;
        (record.is_hot() && record.generation == id.generation).then_some(record)
    }

    /// Returns the id of the key whose record is at the index `at`.
    #[inline]
    pub fn id(&self, at: u16) -> HotId {
        HotId { index: at, generation: self.all[usize::from(at)].generation }
    }

    pub fn at(&mut self, at: u16) -> &mut Record {
        &mut self.all[usize::from(at)]
    }

    pub fn iter(&self) -> impl Iterator<Item = (u16, &Record)> {
        (0..).zip(&self.all).filter(|(_, record)| record.is_used)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u16, &mut Record)> {
        (0..).zip(&mut self.all).filter(|(_, record)| record.is_used)
    }

    /// Drops the records of keys for which `keeps` returns false.
    pub fn retain(&mut self, mut keeps: impl FnMut(&Record) -> bool) {
        let used = self.all.len() - self.unused.len();
        for (at, record) in (0..).zip(&mut self.all) {
            if record.is_used && !keeps(record) {
                record.is_used = false;
                self.unused.push(at);
            }
        }
        if used != self.all.len() - self.unused.len() {
            self.cells.fill(EMPTY);
            for at in 0..self.all.len() {
                if self.all[at].is_used {
                    self.link(self.all[at].hash, at as u16);
                }
            }
        }
    }

    fn link(&mut self, hash: u64, at: u16) {
        let mut cell = cell_of(hash);
        while self.cells[cell] != EMPTY {
            cell = (cell + 1) % CELLS;
        }
        self.cells[cell] = at;
    }
}

fn cell_of(hash: u64) -> usize {
    hash as usize % CELLS
}

const _: () = assert!(RECORDS_MAX < EMPTY as usize);
const _: () = assert!(HOT_NAME_BYTES_SHOWN <= HOT_NAME_BYTES_MAX);
