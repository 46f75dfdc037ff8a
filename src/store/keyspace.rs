//! The keyspace: all keys of an engine, with lookup, lifetimes, memory accounting and scans.
//!
//! ```text
//!     hash of the key, 64 bits:  [ segment 8 | ... | 32: order within the segment ]
//!     SCAN cursor, 36 bits:      [ segment 8 | 28: where to go on, in grains ]
//! ```
//!
//! weir adds to a cursor which node it belongs to, and of which map, so a store's own cursor must be narrow.
//!
//! Segments grow one by one, so an insertion moves at most a small share of the keys. Expired keys are never
//! seen: an access removes them, and a sweep finds those that nobody asks for.

use super::numbers::Digits;
use super::refusal::Refusal;
use super::table::{GRAIN_BITS, Hasher, Keyed, PLACE_BYTES, Table};
use super::text::Text;
use super::value::{Collection, Value};
use crate::values::Random;

const SEGMENT_BITS: u32 = 8;
const SEGMENTS: usize = 1 << SEGMENT_BITS;
/// The number of bits of a cursor that give the place within a segment.
const PLACE_BITS: u32 = u32::BITS - GRAIN_BITS;
/// The expiry of a key without a lifetime.
pub(super) const NEVER_MS: u64 = u64::MAX;

/// A key, its value and its expiry.
pub(super) struct Entry {
    pub(super) key: Text,
    pub(super) value: Value,
    /// The expiry in milliseconds since 1970; `NEVER_MS` for none.
    pub(super) expires_ms: u64,
    /// The time of the last access, in seconds since 1970.
    touched_s: u32,
}

impl Keyed for Entry {
    fn key(&self) -> &[u8] {
        self.key.as_bytes()
    }
}

impl Entry {
    /// Approximate bytes of key, value and their places.
    pub(super) fn cost(&self) -> u64 {
        (size_of::<Self>() - size_of::<Text>() + PLACE_BYTES + self.key.cost() + self.value.cost()) as u64
    }
}

/// The location of an entry, valid until the next insertion or removal.
#[derive(Clone, Copy)]
pub(super) struct Place {
    segment: usize,
    position: usize,
}

struct Segment {
    table: Table<Entry>,
    /// A lower bound of the expiries of all keys in this segment.
    soonest_ms: u64,
    /// A lower bound of the expiries of keys that the current sweep has visited, or that were added since it
    /// began.
    soonest_of_sweep_ms: u64,
    /// The position below which entries are still to be visited by the current sweep.
    sweep_left: usize,
}

/// The lifetime that a write gives to a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifetime {
    Forever,
    Keep,
    UntilMs(u64),
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The number of keys visited.
    pub visited: usize,
    /// The number of expired keys removed.
    pub removed: usize,
}

/// All keys of an engine.
pub(super) struct Keyspace {
    segments: Vec<Segment>,
    hasher: Hasher,
    sweep_segment: usize,
    used: u64,
    keys: usize,
    volatile: usize,
    /// The number of hashes with fields that expire.
    volatile_hashes: usize,
    now_ms: u64,
    pub(super) random: Random,
    pub(super) expired: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    /// The number of elements of values removed since it was last taken.
    removed: u64,
}

impl Keyspace {
    pub(super) fn new(seed: u64) -> Self {
        let hasher = Hasher::new(seed);
        let segment = || Segment {
            table: Table::new(hasher.clone()),
            soonest_ms: NEVER_MS,
            soonest_of_sweep_ms: NEVER_MS,
            sweep_left: 0,
        };
        Self {
            segments: (0..SEGMENTS).map(|_| segment()).collect(),
            hasher,
            sweep_segment: 0,
            used: 0,
            keys: 0,
            volatile: 0,
            volatile_hashes: 0,
            now_ms: 0,
            random: Random::new(seed),
            expired: 0,
            hits: 0,
            misses: 0,
            removed: 0,
        }
    }

    /// Sets the time that applies to everything until the next call.
    pub(super) fn set_now(&mut self, unix_ms: u64) {
        self.now_ms = unix_ms;
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Approximate bytes of all keys and values.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn len(&self) -> usize {
        self.keys
    }

    /// Returns the number of elements removed or replaced since the last call, since freeing them takes time
    /// as well.
    pub(super) fn take_removed(&mut self) -> u64 {
        std::mem::take(&mut self.removed)
    }

    /// The number of keys with a lifetime.
    pub(super) fn volatile(&self) -> usize {
        self.volatile
    }

    pub(super) fn hasher(&self) -> &Hasher {
        &self.hasher
    }

    /// Finds a key. An expired key is removed and not found, and so are expired fields of a hash.
    pub(super) fn find(&mut self, key: &[u8]) -> Option<Place> {
        let place = self.locate(key)?;
        let entry = self.entry(place);
        if entry.expires_ms < self.now_ms {
            self.remove_at(place);
            self.expired += 1;
            return None;
        }
        let expired = entry.value.soonest_field_ms() < self.now_ms;
        if expired && self.expire_fields(place).1 {
            return None;
        }
        Some(place)
    }

    /// Removes expired fields of a hash. Returns how many, and whether the hash is gone with them.
    fn expire_fields(&mut self, place: Place) -> (usize, bool) {
        let now_ms = self.now_ms;
        let (removed, gone) = self.change_at(place, |value| match value {
            Value::Hash(fields) => (fields.remove_expired(now_ms), fields.len() == 0),
            _ => (0, false),
        });
        self.removed += removed as u64;
        (removed, gone)
    }

    /// Updates what is known of hashes with fields that expire, after a value of a segment has changed.
    fn note_fields(&mut self, segment: usize, before_ms: u64, after_ms: u64) {
        let segment = &mut self.segments[segment];
        segment.soonest_ms = segment.soonest_ms.min(after_ms);
        segment.soonest_of_sweep_ms = segment.soonest_of_sweep_ms.min(after_ms);
        self.volatile_hashes += usize::from(after_ms != NEVER_MS);
        self.volatile_hashes -= usize::from(before_ms != NEVER_MS);
    }

    /// The entry of `key`, unless it has expired. Records no access.
    pub(super) fn peek(&self, key: &[u8]) -> Option<&Entry> {
        let entry = self.entry(self.locate(key)?);
        (entry.expires_ms >= self.now_ms).then_some(entry)
    }

    /// The value of `key` for a read command: counts a hit or a miss, and records the access.
    pub(super) fn read(&mut self, key: &[u8]) -> Option<&Value> {
        let Some(place) = self.find(key) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        let touched_s = (self.now_ms / 1000) as u32;
        let entry = self.segments[place.segment].table.at_mut(place.position);
        entry.touched_s = touched_s;
        Some(&entry.value)
    }

    /// The collection at `key` for a read command: counts a hit or a miss, and records the access. An error
    /// if the value is of another type.
    pub(super) fn read_as<T: Collection>(&mut self, key: &[u8]) -> Result<Option<&T>, Refusal> {
        match self.read(key) {
            None => Ok(None),
            Some(value) => T::within(value).map(Some).ok_or(Refusal::WrongType),
        }
    }

    /// The collection at `key`, without recording an access, so that several can be looked at side by side.
    /// An error if the value is of another type.
    pub(super) fn peek_as<T: Collection>(&self, key: &[u8]) -> Result<Option<&T>, Refusal> {
        match self.peek(key) {
            None => Ok(None),
            Some(entry) => T::within(&entry.value).map(Some).ok_or(Refusal::WrongType),
        }
    }

    pub(super) fn entry(&self, place: Place) -> &Entry {
        self.segments[place.segment].table.at(place.position)
    }

    /// The number of seconds since the last access of an entry.
    pub(super) fn idle_s(&self, place: Place) -> u64 {
        (self.now_ms / 1000).saturating_sub(u64::from(self.entry(place).touched_s))
    }

    /// Stores `value` under `key`, replacing any former value.
    pub(super) fn set(&mut self, key: &[u8], value: Value, lifetime: Lifetime) {
        if let Some(place) = self.find(key) {
            self.removed += self.entry(place).value.elements() as u64;
            self.change_at(place, |old| *old = value);
            match lifetime {
                Lifetime::Forever => self.set_expiry(place, NEVER_MS),
                Lifetime::Keep => {}
                Lifetime::UntilMs(expires_ms) => self.set_expiry(place, expires_ms),
            }
        } else {
            let place = self.add(key, value);
            if let Lifetime::UntilMs(expires_ms) = lifetime {
                self.set_expiry(place, expires_ms);
            }
        }
    }

    /// Adds a key, which must not exist.
    pub(super) fn add(&mut self, key: &[u8], value: Value) -> Place {
        let touched_s = (self.now_ms / 1000) as u32;
        let entry = Entry { key: Text::new(key), value, expires_ms: NEVER_MS, touched_s };
        self.used += entry.cost();
        self.keys += 1;
        let hash = self.hasher.hash(key);
        let segment = segment_of(hash);
        self.note_fields(segment, NEVER_MS, entry.value.soonest_field_ms());
        Place { segment, position: self.segments[segment].table.insert(hash as u32, entry) }
    }

    /// Removes `key`. True if it existed and had not expired.
    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        self.find(key).map(|place| self.remove_at(place)).is_some()
    }

    pub(super) fn remove_at(&mut self, place: Place) -> Entry {
        let segment = &mut self.segments[place.segment];
        let entry = segment.table.remove(place.position);
        self.removed += entry.value.elements() as u64;
        self.used -= entry.cost();
        self.keys -= 1;
        self.volatile -= usize::from(entry.expires_ms != NEVER_MS);
        self.volatile_hashes -= usize::from(entry.value.soonest_field_ms() != NEVER_MS);
        entry
    }

    /// Changes a value and updates the accounts. A collection that loses its last element is removed.
    pub(super) fn change_at<R>(&mut self, place: Place, change: impl FnOnce(&mut Value) -> R) -> R {
        let touched_s = (self.now_ms / 1000) as u32;
        let entry = self.segments[place.segment].table.at_mut(place.position);
        entry.touched_s = touched_s;
        let (before, before_ms) = (entry.value.cost() as u64, entry.value.soonest_field_ms());
        let result = change(&mut entry.value);
        let (after, after_ms) = (entry.value.cost() as u64, entry.value.soonest_field_ms());
        let hollow = entry.value.is_hollow();
        self.used = self.used + after - before;
        if before_ms != after_ms {
            self.note_fields(place.segment, before_ms, after_ms);
        }
        if hollow {
            self.remove_at(place);
        }
        result
    }

    /// Changes the collection at `key`, if there is one.
    pub(super) fn change<T: Collection, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<Option<R>, Refusal> {
        let Some(place) = self.find(key) else { return Ok(None) };
        self.change_at(place, |value| T::within_mut(value).map(change)).map(Some).ok_or(Refusal::WrongType)
    }

    /// Changes the collection at `key`, or a new empty one if there is none.
    pub(super) fn change_or_create<T: Collection, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Refusal> {
        let place = match self.find(key) {
            Some(place) => place,
            None => self.add(key, T::empty(&self.hasher)),
        };
        self.change_at(place, |value| T::within_mut(value).map(change)).ok_or(Refusal::WrongType)
    }

    pub(super) fn set_expiry(&mut self, place: Place, expires_ms: u64) {
        let segment = &mut self.segments[place.segment];
        let before = std::mem::replace(&mut segment.table.at_mut(place.position).expires_ms, expires_ms);
        segment.soonest_ms = segment.soonest_ms.min(expires_ms);
        segment.soonest_of_sweep_ms = segment.soonest_of_sweep_ms.min(expires_ms);
        self.volatile += usize::from(expires_ms != NEVER_MS);
        self.volatile -= usize::from(before != NEVER_MS);
    }

    /// Removes expired keys and fields, visiting no more than about `budget` of them.
    pub(super) fn sweep(&mut self, budget: usize) -> Swept {
        let mut swept = Swept::default();
        for _ in 0..SEGMENTS {
            if self.volatile + self.volatile_hashes == 0 || swept.visited >= budget {
                break;
            }
            self.sweep_one(budget, &mut swept);
        }
        swept
    }

    /// Sweeps a segment from its last entry down: an entry that moves into a removed entry's place was
    /// visited before.
    fn sweep_one(&mut self, budget: usize, swept: &mut Swept) {
        let index = self.sweep_segment;
        let segment = &mut self.segments[index];
        if segment.sweep_left == 0 && segment.soonest_ms < self.now_ms {
            segment.sweep_left = segment.table.len();
            segment.soonest_of_sweep_ms = NEVER_MS;
        }
        let mut left = segment.sweep_left.min(segment.table.len());
        let under_way = segment.sweep_left > 0;
        while left > 0 && swept.visited < budget {
            left -= 1;
            swept.visited += 1;
            let place = Place { segment: index, position: left };
            let entry = self.entry(place);
            if entry.expires_ms < self.now_ms {
                self.remove_at(place);
                self.expired += 1;
                swept.removed += 1;
                continue;
            }
            if entry.value.soonest_field_ms() < self.now_ms {
                let (removed, gone) = self.expire_fields(place);
                swept.visited += removed;
                swept.removed += removed;
                if gone {
                    continue;
                }
            }
            let entry = self.entry(place);
            let soonest_ms = entry.expires_ms.min(entry.value.soonest_field_ms());
            let soonest = &mut self.segments[index].soonest_of_sweep_ms;
            *soonest = soonest_ms.min(*soonest);
        }
        let segment = &mut self.segments[index];
        segment.sweep_left = left;
        if left == 0 {
            if under_way {
                segment.soonest_ms = segment.soonest_of_sweep_ms;
            }
            self.sweep_segment = (index + 1) % SEGMENTS;
        }
    }

    /// Visits about `count` entries that have not expired, in hash order, and returns the cursor to go on
    /// from; none at the end. Cursors stay below 2^36.
    pub(super) fn walk(&self, cursor: u64, count: usize, mut visit: impl FnMut(&Entry)) -> Option<u64> {
        let mut left = count;
        let mut from = (cursor as u32) << GRAIN_BITS;
        let cursor_at =
            |index: usize, from: u32| (index as u64) << PLACE_BITS | u64::from(from >> GRAIN_BITS);
        for index in (cursor >> PLACE_BITS) as usize..SEGMENTS {
            let table = &self.segments[index].table;
            if !table.is_empty() {
                if left == 0 {
                    return Some(cursor_at(index, from));
                }
                let next = table.walk(from, left, |entry| {
                    left = left.saturating_sub(1);
                    if entry.expires_ms >= self.now_ms {
                        visit(entry);
                    }
                });
                if let Some(next) = next {
                    return Some(cursor_at(index, next));
                }
            }
            from = 0;
        }
        None
    }

    /// All entries that have not expired.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.segments
            .iter()
            .flat_map(|segment| segment.table.entries())
            .filter(|entry| entry.expires_ms >= self.now_ms)
    }

    /// A random key that has not expired; every key has the same chance.
    pub(super) fn random_key(&mut self) -> Option<Text> {
        while self.keys > 0 {
            let mut target = self.random.index(self.keys);
            let (segment, position) = self
                .segments
                .iter()
                .enumerate()
                .find_map(|(index, segment)| {
                    if target < segment.table.len() {
                        return Some((index, target));
                    }
                    target -= segment.table.len();
                    None
                })
                .expect("the segments hold all keys");
            let place = Place { segment, position };
            let entry = self.entry(place);
            if entry.expires_ms >= self.now_ms {
                return Some(entry.key.clone());
            }
            self.remove_at(place);
            self.expired += 1;
        }
        None
    }

    /// Removes every key.
    pub(super) fn clear(&mut self) {
        self.removed += self.keys as u64;
        for segment in &mut self.segments {
            segment.table = Table::new(self.hasher.clone());
            segment.soonest_ms = NEVER_MS;
            segment.soonest_of_sweep_ms = NEVER_MS;
            segment.sweep_left = 0;
        }
        (self.used, self.keys, self.volatile, self.volatile_hashes) = (0, 0, 0, 0);
    }

    /// Passes the string at `key`, or none for a missing key, to `read`, as a read command. An error if the
    /// value is of another type.
    pub(super) fn read_string<R>(
        &mut self,
        key: &[u8],
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Refusal> {
        let mut digits = Digits::new(0);
        match self.read(key) {
            None => Ok(read(None)),
            Some(value) => value.bytes(&mut digits).map(|bytes| read(Some(bytes))).ok_or(Refusal::WrongType),
        }
    }

    fn locate(&self, key: &[u8]) -> Option<Place> {
        let hash = self.hasher.hash(key);
        let segment = segment_of(hash);
        let position = self.segments[segment].table.find(hash as u32, key)?;
        Some(Place { segment, position })
    }
}

fn segment_of(hash: u64) -> usize {
    (hash >> (64 - SEGMENT_BITS)) as usize
}
