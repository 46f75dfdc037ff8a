//! The keyspace: all keys of an engine's databases, with lookup, lifetimes, memory accounting and scans. One
//! database is selected, and most operations are about that one.
//!
//! ```text
//!     hash of the key, 64 bits:  [ segment 8 | ... | 32: order within the segment ]
//!     SCAN cursor, 36 bits:      [ segment 8 | 28: where to go on, in grains ]
//! ```
//!
//! weir adds to a cursor which node it belongs to, and of which map of the cluster, so a store's own cursor
//! must be narrow.
//!
//! Segments (hash tables among which a database's keys are divided) grow one by one, so an insertion moves at
//! most a small share of the keys. Expired keys are never seen: an access removes them or passes over them,
//! and a sweep finds those that nobody asks for.

use super::effort::{LOOK, RANK};
use super::events::{Class, Events};
use super::interest::Interest;
use super::numbers::Digits;
use super::refusal::Refusal;
use super::table::{GRAIN_BITS, Hasher, Keyed, Table, place_bytes};
use super::text::Text;
use super::value::{Collection, Value};
use super::waits::Kind;
use crate::values::Random;
use crate::values::limits::ENGINE_DATABASES;

const SEGMENT_BITS: u32 = 8;
const SEGMENTS: usize = 1 << SEGMENT_BITS;
/// The number of bits of a SCAN cursor that say where in a segment (one of the 256 hash tables that hold the
/// keys of a database) the scan continues.
const PLACE_BITS: u32 = u32::BITS - GRAIN_BITS;
/// The expiry (in milliseconds since 1970) that stands for none.
pub(super) const NEVER_MS: u64 = u64::MAX;

/// A key, its value and its expiry.
pub(super) struct Entry {
    pub(super) key: Text,
    pub(super) value: Value,
    /// The expiry of the key in milliseconds since 1970; `u64::MAX` if the key does not expire.
    pub(super) expires_ms: u64,
    /// The time at which the value was last read or written, in seconds since 1970. Commands that do not look
    /// at the value, such as TTL, do not count.
    touched_s: u32,
}

impl Keyed for Entry {
    fn key(&self) -> &[u8] {
        self.key.as_bytes()
    }
}

impl Entry {
    /// True if the key has not expired at `now_ms` (milliseconds since 1970), and is not a hash of which all
    /// fields have expired.
    fn lives(&self, now_ms: u64) -> bool {
        let is_over = matches!(&self.value, Value::Hash(fields) if fields.have_all_expired(now_ms));
        self.expires_ms >= now_ms && !is_over
    }

    /// Returns the approximate bytes of memory that the key, its value and their place in the hash table
    /// take.
    pub(super) fn cost(&self) -> u64 {
        let own = size_of::<Self>() - size_of::<Text>() + place_bytes::<Self>();
        (own + self.key.cost() + self.value.cost()) as u64
    }
}

/// The location of a key's entry in the selected database, valid until the next insertion or removal.
#[derive(Clone, Copy)]
pub(super) struct Place {
    segment: usize,
    position: usize,
}

struct Segment {
    table: Table<Entry>,
    /// A lower bound, in milliseconds since 1970, of the expiries of all keys and hash fields in this segment
    /// (one of the hash tables of keys).
    soonest_ms: u64,
    /// A lower bound, in milliseconds since 1970, of the expiries of the keys and hash fields that the
    /// current sweep (the search for expired ones) of this segment has visited, and of those that were set
    /// since it began. Replaces `soonest_ms` when that sweep ends.
    soonest_of_sweep_ms: u64,
    /// The position in the segment's table below which the current sweep (the search for expired keys) has
    /// still to visit entries; the sweep goes from the last entry down.
    sweep_left: usize,
}

impl Segment {
    fn new(hasher: &Hasher) -> Self {
        Self {
            table: Table::new(hasher.clone()),
            soonest_ms: NEVER_MS,
            soonest_of_sweep_ms: NEVER_MS,
            sweep_left: 0,
        }
    }
}

/// The expiry that a write gives to a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifetime {
    Forever,
    Keep,
    UntilMs(u64),
}

/// The result of a sweep, which removes expired keys and hash fields: the numbers of those visited and
/// removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The number of keys that the sweep (search for expired keys) looked at, and of expired hash fields that
    /// it removed.
    pub visited: usize,
    /// The number of expired keys and hash fields that the sweep removed.
    pub removed: usize,
}

/// The keys of one database (selected by SELECT), with their values and expiries.
#[derive(Default)]
struct Database {
    /// The 256 hash tables among which the keys of the database are divided by their hash; none until the
    /// first key is added.
    segments: Vec<Segment>,
    sweep_segment: usize,
    keys: usize,
    volatile: usize,
    /// The number of keys of the database whose value is a hash with at least one field that expires.
    volatile_hashes: usize,
}

impl Database {
    /// True if any key of the database, or any field of a hash in it, has an expiry.
    fn has_expiries(&self) -> bool {
        self.volatile + self.volatile_hashes > 0
    }
}

/// All keys of an engine in all its databases, with the memory that they take, the connections that watch, wait for or
/// track keys, and the keyspace events that are still to be published.
pub(super) struct Keyspace {
    databases: Vec<Database>,
    /// The number of the selected database, on which operations work that name no other.
    selected: u8,
    /// The number of the database at which the next sweep for expired keys begins.
    sweep_database: u8,
    hasher: Hasher,
    used: u64,
    now_ms: u64,
    /// The keys that connections watch, wait for or track; each change of a key is reported here.
    pub(super) interest: Interest,
    pub(super) events: Events,
    pub(super) random: Random,
    pub(super) expired: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    /// The work of freeing values since the last call of `take_removed`, in units of effort (steps of work):
    /// one for each element of a value that was removed or replaced as a whole, 16 for each expired hash
    /// field, and one for each key of a database that was emptied.
    removed: u64,
}

impl Keyspace {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            databases: (0..ENGINE_DATABASES).map(|_| Database::default()).collect(),
            selected: 0,
            sweep_database: 0,
            hasher: Hasher::new(seed),
            used: 0,
            now_ms: 0,
            interest: Interest::default(),
            events: Events::default(),
            random: Random::new(seed),
            expired: 0,
            hits: 0,
            misses: 0,
            removed: 0,
        }
    }

    /// Sets the present time (`unix_ms`, milliseconds since 1970), against which expiries are compared until
    /// the next call.
    pub(super) fn set_now(&mut self, unix_ms: u64) {
        self.now_ms = unix_ms;
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Selects the database (by its number) that all further calls concern.
    pub(super) fn select(&mut self, database: u8) {
        debug_assert!(database < ENGINE_DATABASES);
        self.selected = database;
    }

    /// Returns the number of the selected database.
    pub(super) fn selected(&self) -> u8 {
        self.selected
    }

    fn here(&self) -> &Database {
        &self.databases[usize::from(self.selected)]
    }

    fn here_mut(&mut self) -> &mut Database {
        &mut self.databases[usize::from(self.selected)]
    }

    /// Returns the approximate bytes of all keys and values of all databases.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Returns the number of keys of the selected database, with those that have expired but have not been
    /// removed yet.
    pub(super) fn len(&self) -> usize {
        self.here().keys
    }

    /// True if any key of any database, or any field of a hash, has an expiry.
    pub(super) fn has_expiries(&self) -> bool {
        self.databases.iter().any(Database::has_expiries)
    }

    /// Returns the number of keys of all databases together, and how many of them have an expiry.
    pub(super) fn totals(&self) -> (usize, usize) {
        let sum = |count: fn(&Database) -> usize| self.databases.iter().map(count).sum();
        (sum(|database| database.keys), sum(|database| database.volatile))
    }

    /// Returns, for each database that has any keys, its number, the number of its keys, and how many of them
    /// have an expiry.
    pub(super) fn filled(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let figures = |(number, database): (usize, &Database)| (number, database.keys, database.volatile);
        self.databases.iter().enumerate().map(figures).filter(|(_, keys, _)| *keys > 0)
    }

    /// Returns the work of freeing values since the last call, in units of effort (steps of work), for which
    /// the request is charged: one for each element of a value that was removed or replaced as a whole, 16
    /// for each expired hash field, and one for each key of a database that was emptied.
    pub(super) fn take_removed(&mut self) -> u64 {
        std::mem::take(&mut self.removed)
    }

    pub(super) fn hasher(&self) -> &Hasher {
        &self.hasher
    }

    /// Returns the location of a key in the selected database; `None` if there is none. If the key has
    /// expired, it is removed and not found. Expired fields of a hash are removed, and with the last one the
    /// key.
    pub(super) fn find(&mut self, key: &[u8]) -> Option<Place> {
        let place = self.locate(key)?;
        let entry = self.entry(place);
        if entry.expires_ms < self.now_ms {
            self.expire_at(place);
            return None;
        }
        let expired = entry.value.soonest_field_ms() < self.now_ms;
        if expired && self.expire_fields(place, usize::MAX).1 {
            return None;
        }
        Some(place)
    }

    /// Removes the expired key at `place`. For connections that watch the key this counts as a change, even
    /// if the command that has found it changes nothing.
    fn expire_at(&mut self, place: Place) {
        let entry = self.remove_at(place);
        self.announce(Class::Expired, "expired", entry.key.as_bytes());
        self.expired += 1;
        self.interest.settle();
    }

    /// Queues the keyspace event `name` of a key of the selected database, which is published if events of
    /// its `class` are switched on and any connection is subscribed to it.
    pub(super) fn announce(&mut self, class: Class, name: &'static str, key: &[u8]) {
        self.events.add(class, name, self.selected, key);
    }

    /// Removes the expired fields of the hash at `place`, at most `most` of them. Returns how many, and
    /// whether the hash was removed with its last field. For connections that watch the key this counts as a
    /// change, even if the command that has found it changes nothing.
    fn expire_fields(&mut self, place: Place, most: usize) -> (usize, bool) {
        let now_ms = self.now_ms;
        let key = self.events.is_on().then(|| self.entry(place).key.clone());
        let (removed, gone) = self.change_at(place, |value| match value {
            Value::Hash(fields) => (fields.remove_expired(now_ms, most), fields.len() == 0),
            _ => (0, false),
        });
        self.removed += removed as u64 * RANK / LOOK;
        if let Some(key) = key {
            self.announce(Class::Hash, "hexpired", key.as_bytes());
        }
        self.interest.settle();
        (removed, gone)
    }

    /// Updates the count of hashes with expiring fields, and the bounds on expiries of a segment (the index
    /// of a hash table of keys), after a value in it has changed. `before_ms` and `after_ms` are the soonest
    /// expiries of its fields before and after, in milliseconds since 1970; `u64::MAX` for none.
    fn note_fields(&mut self, segment: usize, before_ms: u64, after_ms: u64) {
        let database = self.here_mut();
        let segment = &mut database.segments[segment];
        segment.soonest_ms = segment.soonest_ms.min(after_ms);
        segment.soonest_of_sweep_ms = segment.soonest_of_sweep_ms.min(after_ms);
        database.volatile_hashes += usize::from(after_ms != NEVER_MS);
        database.volatile_hashes -= usize::from(before_ms != NEVER_MS);
    }

    /// Returns the entry of `key`; `None` if there is none or it has expired. The time of the last access
    /// stays.
    pub(super) fn peek(&self, key: &[u8]) -> Option<&Entry> {
        let entry = self.entry(self.locate(key)?);
        entry.lives(self.now_ms).then_some(entry)
    }

    /// Returns the value of `key` for a read command: counts a hit, or a miss with the event `keymiss`, and
    /// updates the time of the key's last access. `None` if there is no such key.
    pub(super) fn read(&mut self, key: &[u8]) -> Option<&Value> {
        let place = self.find_counted(key)?;
        Some(self.access(place))
    }

    /// Returns the value of `key` and updates the time of the key's last access, but counts neither a hit nor
    /// a miss. For commands that are about to change the value, and for blocking commands that have waited
    /// and can now get their reply. `None` if there is no such key.
    pub(super) fn read_uncounted(&mut self, key: &[u8]) -> Option<&Value> {
        let place = self.find(key)?;
        Some(self.access(place))
    }

    /// Returns the value at `place`, and sets the time of its last access to the present.
    fn access(&mut self, place: Place) -> &Value {
        let touched_s = (self.now_ms / 1000) as u32;
        let entry = self.here_mut().segments[place.segment].table.at_mut(place.position);
        entry.touched_s = touched_s;
        &entry.value
    }

    /// Returns the location of `key` for a read command: counts a hit, or a miss with the event `keymiss`,
    /// but leaves the time of the last access as it is, since commands such as EXISTS, TTL and TYPE do not
    /// use the value. `None` if there is no such key.
    pub(super) fn find_counted(&mut self, key: &[u8]) -> Option<Place> {
        let place = self.find_counted_in_silence(key);
        if place.is_none() {
            self.announce(Class::Missed, "keymiss", key);
        }
        place
    }

    /// Returns the location of `key` and counts a hit or a miss, as [`Keyspace::find_counted`] does, but
    /// queues no event `keymiss` for a missing key, since OBJECT causes none. `None` if there is no such key.
    pub(super) fn find_counted_in_silence(&mut self, key: &[u8]) -> Option<Place> {
        let place = self.find(key);
        match place {
            Some(_) => self.hits += 1,
            None => self.misses += 1,
        }
        place
    }

    /// Returns the value at `key`, of the type `T` (list, set, hash and so on), for a read command: counts a
    /// hit, or a miss with the event `keymiss`, and updates the time of the last access. `None` if there is
    /// no such key; an error if the value is of another type.
    pub(super) fn read_as<T: Collection>(&mut self, key: &[u8]) -> Result<Option<&T>, Refusal> {
        within(self.read(key))
    }

    /// Returns the value at `key`, of the type `T` (list, set, hash and so on), and updates the time of the
    /// last access, but counts neither a hit nor a miss. `None` if there is no such key; an error if the
    /// value is of another type.
    pub(super) fn read_uncounted_as<T: Collection>(&mut self, key: &[u8]) -> Result<Option<&T>, Refusal> {
        within(self.read_uncounted(key))
    }

    /// Returns the value at `key`, of the type `T` (list, set, hash and so on), without updating the time of
    /// the last access, so that several can be borrowed at once. `None` if there is no such key; an error if
    /// the value is of another type.
    pub(super) fn peek_as<T: Collection>(&self, key: &[u8]) -> Result<Option<&T>, Refusal> {
        within(self.peek(key).map(|entry| &entry.value))
    }

    pub(super) fn entry(&self, place: Place) -> &Entry {
        self.here().segments[place.segment].table.at(place.position)
    }

    /// Returns the number of seconds since the last access to the key at `place`.
    pub(super) fn idle_s(&self, place: Place) -> u64 {
        (self.now_ms / 1000).saturating_sub(u64::from(self.entry(place).touched_s))
    }

    /// Stores `value` under `key` as a new key: an existing one is removed first. Blocking calls (such as
    /// BLPOP) that wait for the key then get elements of the new value even if the key existed, in contrast
    /// to [`Keyspace::set`]. The key has an expiry only if `lifetime` names one.
    pub(super) fn replace(&mut self, key: &[u8], value: Value, lifetime: Lifetime) {
        self.remove(key);
        self.set(key, value, lifetime);
    }

    /// Stores `value` under `key`, replacing any existing value. `lifetime` says whether the key then has a
    /// new expiry, none, or the one it had (none, if there was no key).
    pub(super) fn set(&mut self, key: &[u8], value: Value, lifetime: Lifetime) {
        if let Some(place) = self.find(key) {
            if matches!(self.entry(place).value, Value::Stream(_)) {
                self.interest.waits.signal(self.selected, key, Kind::Stream);
            }
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

    /// Adds a key without an expiry, which must not exist, and returns its location.
    pub(super) fn add(&mut self, key: &[u8], value: Value) -> Place {
        let touched_s = (self.now_ms / 1000) as u32;
        let entry = Entry { key: Text::new(key), value, expires_ms: NEVER_MS, touched_s };
        self.used += entry.cost();
        self.interest.touch(self.selected, key);
        self.events.note_added(self.selected, key);
        self.announce(Class::New, "new", key);
        if let Some(kind) = Kind::of(&entry.value) {
            self.interest.waits.signal(self.selected, key, kind);
        }
        let hash = self.hasher.hash(key);
        let segment = segment_of(hash);
        let database = &mut self.databases[usize::from(self.selected)];
        database.keys += 1;
        if database.segments.is_empty() {
            database.segments.extend((0..SEGMENTS).map(|_| Segment::new(&self.hasher)));
        }
        self.note_fields(segment, NEVER_MS, entry.value.soonest_field_ms());
        Place { segment, position: self.here_mut().segments[segment].table.insert(hash as u32, entry) }
    }

    /// Removes `key`. True if it existed and had not expired; an expired one is removed as well.
    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        self.find(key).map(|place| self.remove_at(place)).is_some()
    }

    pub(super) fn remove_at(&mut self, place: Place) -> Entry {
        let database = &mut self.databases[usize::from(self.selected)];
        let entry = database.segments[place.segment].table.remove(place.position);
        self.removed += entry.value.elements() as u64;
        self.used -= entry.cost();
        database.keys -= 1;
        database.volatile -= usize::from(entry.expires_ms != NEVER_MS);
        database.volatile_hashes -= usize::from(entry.value.soonest_field_ms() != NEVER_MS);
        self.interest.touch(self.selected, entry.key.as_bytes());
        if matches!(entry.value, Value::Stream(_)) {
            self.interest.waits.signal(self.selected, entry.key.as_bytes(), Kind::Stream);
        }
        entry
    }

    /// Changes the value at a location by `change`, and updates the time of its last access and the memory
    /// counts. For connections that watch or track the key this counts as a change. A collection that loses
    /// its last element is removed, except a stream. Returns the result of `change`.
    pub(super) fn change_at<R>(&mut self, place: Place, change: impl FnOnce(&mut Value) -> R) -> R {
        let touched_s = (self.now_ms / 1000) as u32;
        let database = &mut self.databases[usize::from(self.selected)];
        let entry = database.segments[place.segment].table.at_mut(place.position);
        entry.touched_s = touched_s;
        self.interest.touch(self.selected, entry.key.as_bytes());
        let (before, before_ms) = (entry.value.cost() as u64, entry.value.soonest_field_ms());
        let was_hollow = self.events.is_on() && entry.value.is_hollow();
        let result = change(&mut entry.value);
        let (after, after_ms) = (entry.value.cost() as u64, entry.value.soonest_field_ms());
        let hollow = entry.value.is_hollow();
        self.used = self.used + after - before;
        if before_ms != after_ms {
            self.note_fields(place.segment, before_ms, after_ms);
        }
        if hollow {
            let entry = self.remove_at(place);
            self.events.note_emptied(self.selected, entry.key.as_bytes(), was_hollow);
        }
        result
    }

    /// Changes the collection at `key` by `change`, and returns the result of `change`; `None` if there is no
    /// such key, an error if the value is of another type.
    pub(super) fn change<T: Collection, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<Option<R>, Refusal> {
        let Some(place) = self.find(key) else { return Ok(None) };
        let changed = self.change_at(place, |value| T::within_mut(value).map(change));
        if changed.is_none() {
            self.interest.withdraw();
        }
        changed.map(Some).ok_or(Refusal::WrongType)
    }

    /// Changes the collection at `key`, or a new empty one if there is no such key, by `change`, and returns
    /// the result of `change`. An error if the value is of another type.
    pub(super) fn change_or_create<T: Collection, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Refusal> {
        let place = match self.find(key) {
            Some(place) => place,
            None => self.add(key, T::empty(&self.hasher)),
        };
        let changed = self.change_at(place, |value| T::within_mut(value).map(change));
        if changed.is_none() {
            self.interest.withdraw();
        }
        changed.ok_or(Refusal::WrongType)
    }

    pub(super) fn set_expiry(&mut self, place: Place, expires_ms: u64) {
        let database = &mut self.databases[usize::from(self.selected)];
        let segment = &mut database.segments[place.segment];
        let entry = segment.table.at_mut(place.position);
        let before = std::mem::replace(&mut entry.expires_ms, expires_ms);
        self.interest.touch(self.selected, entry.key.as_bytes());
        segment.soonest_ms = segment.soonest_ms.min(expires_ms);
        segment.soonest_of_sweep_ms = segment.soonest_of_sweep_ms.min(expires_ms);
        database.volatile += usize::from(expires_ms != NEVER_MS);
        database.volatile -= usize::from(before != NEVER_MS);
    }

    /// Removes expired keys and hash fields of all databases, visiting about `budget` of them at most, and
    /// returns how many it visited and removed. The next call goes on where this one has ended. Leaves any
    /// database selected.
    pub(super) fn sweep(&mut self, budget: usize) -> Swept {
        let mut swept = Swept::default();
        for _ in 0..ENGINE_DATABASES {
            self.select(self.sweep_database);
            for _ in 0..SEGMENTS {
                if !self.here().has_expiries() || swept.visited >= budget {
                    break;
                }
                self.sweep_one(budget, &mut swept);
            }
            if swept.visited >= budget {
                break;
            }
            self.sweep_database = (self.sweep_database + 1) % ENGINE_DATABASES;
        }
        swept
    }

    /// Removes expired keys and fields from the segment (hash table) of the selected database at which the
    /// sweep has arrived, until that segment is done or `swept` counts `budget` visited entries. Goes from
    /// the last entry down, because a removal moves the last entry, which was visited before, into the free
    /// place.
    fn sweep_one(&mut self, budget: usize, swept: &mut Swept) {
        let (index, now_ms) = (self.here().sweep_segment, self.now_ms);
        let segment = &mut self.here_mut().segments[index];
        if segment.sweep_left == 0 && segment.soonest_ms < now_ms {
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
                self.expire_at(place);
                swept.removed += 1;
                continue;
            }
            if entry.value.soonest_field_ms() < self.now_ms {
                let (removed, gone) = self.expire_fields(place, (budget - swept.visited).max(1));
                swept.visited += removed;
                swept.removed += removed;
                if gone {
                    continue;
                }
                if self.entry(place).value.soonest_field_ms() < self.now_ms {
                    // The next sweep goes on with the rest of this hash.
                    left += 1;
                    break;
                }
            }
            let entry = self.entry(place);
            let soonest_ms = entry.expires_ms.min(entry.value.soonest_field_ms());
            let soonest = &mut self.here_mut().segments[index].soonest_of_sweep_ms;
            *soonest = soonest_ms.min(*soonest);
        }
        let database = self.here_mut();
        let segment = &mut database.segments[index];
        segment.sweep_left = left;
        if left == 0 {
            if under_way {
                segment.soonest_ms = segment.soonest_of_sweep_ms;
            }
            database.sweep_segment = (index + 1) % SEGMENTS;
        }
    }

    /// Visits about `count` entries in the order of their hash values from a SCAN cursor on, and passes those
    /// that have not expired to `visit`. Returns the cursor to continue from; `None` at the end. Cursors stay
    /// below 2^36.
    pub(super) fn walk(&self, cursor: u64, count: usize, mut visit: impl FnMut(&Entry)) -> Option<u64> {
        let mut left = count;
        let mut from = (cursor as u32) << GRAIN_BITS;
        let cursor_at =
            |index: usize, from: u32| (index as u64) << PLACE_BITS | u64::from(from >> GRAIN_BITS);
        for index in (cursor >> PLACE_BITS) as usize..self.here().segments.len() {
            let table = &self.here().segments[index].table;
            if !table.is_empty() {
                if left == 0 {
                    return Some(cursor_at(index, from));
                }
                let next = table.walk(from, left, |entry| {
                    left = left.saturating_sub(1);
                    if entry.lives(self.now_ms) {
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

    /// Returns all entries of the selected database that have not expired.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.here()
            .segments
            .iter()
            .flat_map(|segment| segment.table.entries())
            .filter(|entry| entry.lives(self.now_ms))
    }

    /// Returns a random key of the selected database that has not expired, each with the same probability;
    /// `None` if there is none. Removes the expired keys and fields that it comes upon.
    pub(super) fn random_key(&mut self) -> Option<Text> {
        while self.len() > 0 {
            let mut target = self.random.index(self.databases[usize::from(self.selected)].keys);
            let (segment, position) = self
                .here()
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
            if entry.lives(self.now_ms) {
                return Some(entry.key.clone());
            }
            if entry.expires_ms < self.now_ms {
                self.expire_at(place);
            } else {
                self.expire_fields(place, usize::MAX);
            }
        }
        None
    }

    /// Removes every key of the selected database. For connections that watch an existing key this counts as
    /// a change, connections that track keys are told that all may have changed, and calls that wait for a
    /// removed stream are looked at again.
    pub(super) fn clear(&mut self) {
        let here = self.selected;
        self.interest.tracking.clear();
        for key in self.interest.keys(here) {
            let Some(entry) = self.entry_in(here, &key) else { continue };
            let kind = Kind::of(&entry.value);
            self.interest.touch_for_certain(here, &key);
            if kind == Some(Kind::Stream) {
                self.interest.waits.signal(here, &key, Kind::Stream);
            }
        }
        let former = std::mem::take(self.here_mut());
        self.removed += former.keys as u64;
        let entries = former.segments.iter().flat_map(|segment| segment.table.entries());
        self.used -= entries.map(Entry::cost).sum::<u64>();
    }

    /// Exchanges the keys of two databases. For connections that watch a name in one of them, this counts as
    /// a change if the key exists there before or afterwards. Blocking calls that wait for a name there are
    /// looked at again if the key exists afterwards, or was a stream before.
    pub(super) fn swap(&mut self, first: u8, second: u8) {
        let mut ready = Vec::new();
        for (here, there) in [(first, second), (second, first)] {
            for key in self.interest.keys(here) {
                let kind = |database| self.entry_in(database, &key).map(|entry| Kind::of(&entry.value));
                let (before, after) = (kind(here), kind(there));
                if before.is_some() || after.is_some() {
                    self.interest.touch_for_certain(here, &key);
                }
                let is_stream = |kind| kind == Some(Some(Kind::Stream));
                if is_stream(before) && !is_stream(after) {
                    ready.push((here, key.clone(), Kind::Stream));
                }
                if let Some(Some(kind)) = after {
                    ready.push((here, key, kind));
                }
            }
        }
        self.databases.swap(usize::from(first), usize::from(second));
        for (here, key, kind) in ready {
            self.interest.waits.signal(here, &key, kind);
        }
    }

    /// Returns the entry of `key` in the database with this number, which need not be the selected one, even
    /// if it has expired; `None` if there is none.
    fn entry_in(&self, database: u8, key: &[u8]) -> Option<&Entry> {
        let hash = self.hasher.hash(key);
        let segment = self.databases[usize::from(database)].segments.get(segment_of(hash))?;
        Some(segment.table.at(segment.table.find(hash as u32, key)?))
    }

    /// Passes the string at `key`, or `None` for a missing key, to `read`, and returns its result. Counts a
    /// hit or a miss, and updates the time of the last access. An error if the value is of another type.
    pub(super) fn read_string<R>(
        &mut self,
        key: &[u8],
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Refusal> {
        with_bytes(self.read(key), read)
    }

    /// Passes the string at `key`, or `None` for a missing key, to `read`, and returns its result. Updates
    /// the time of the last access, but counts neither a hit nor a miss. An error if the value is of another
    /// type.
    pub(super) fn read_string_uncounted<R>(
        &mut self,
        key: &[u8],
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Refusal> {
        with_bytes(self.read_uncounted(key), read)
    }

    /// Passes the string at `key`, or `None` for a missing key, to `read`, and returns its result. The time
    /// of the last access stays. An error if the value is of another type.
    pub(super) fn peek_string<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Refusal> {
        with_bytes(self.peek(key).map(|entry| &entry.value), read)
    }

    fn locate(&self, key: &[u8]) -> Option<Place> {
        let hash = self.hasher.hash(key);
        let segment = segment_of(hash);
        let position = self.here().segments.get(segment)?.table.find(hash as u32, key)?;
        Some(Place { segment, position })
    }
}

fn segment_of(hash: u64) -> usize {
    (hash >> (64 - SEGMENT_BITS)) as usize
}

/// Returns a value as one of the type `T`, or `None` for no value. An error if the value is of another type.
fn within<T: Collection>(value: Option<&Value>) -> Result<Option<&T>, Refusal> {
    value.map(|value| T::within(value).ok_or(Refusal::WrongType)).transpose()
}

/// Passes the bytes of a string, or `None` for no value, to `read`, and returns its result. An error if the
/// value is of another type.
fn with_bytes<R>(value: Option<&Value>, read: impl FnOnce(Option<&[u8]>) -> R) -> Result<R, Refusal> {
    let mut digits = Digits::new(0);
    match value {
        None => Ok(read(None)),
        Some(value) => value.bytes(&mut digits).map(|bytes| read(Some(bytes))).ok_or(Refusal::WrongType),
    }
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;
    use crate::store::session::Session;

    fn with_expired_field() -> Bench {
        let mut bench = Bench::new();
        bench.talk(&[("HSET h f v", ":1|"), ("HPEXPIRE h 10 FIELDS 1 f", "*1|:1|")]);
        bench
    }

    #[test]
    fn expired_fields_break_watches_whatever_command_finds_them() {
        let mut bench = with_expired_field();
        bench.talk(&[("HSET h g v", ":1|"), ("WATCH h", "+OK|")]);
        let mut other = Session::new(2);
        bench.wait_ms(11);
        std::mem::swap(&mut bench.session, &mut other);
        bench.talk(&[("HDEL h nosuch", ":0|")]);
        std::mem::swap(&mut bench.session, &mut other);
        bench.talk(&[("MULTI", "+OK|"), ("PING", "+QUEUED|"), ("EXEC", "*-1|")]);
    }

    #[test]
    fn reads_count_as_hits_or_misses_and_writes_do_not() {
        let lines = [
            ("TTL k", (0, 1)),
            ("TYPE k", (0, 1)),
            ("OBJECT ENCODING k", (0, 1)),
            ("COPY k other", (0, 1)),
            ("LCS k l", (1, 1)),
            ("SINTER k l", (1, 1)),
            ("ZUNIONSTORE u 2 k k", (0, 2)),
            ("XREAD STREAMS k 0", (0, 2)),
            ("SORT l", (1, 0)),
            ("SETRANGE k 0 x", (0, 0)),
            ("INCRBYFLOAT k 1", (0, 0)),
            ("PFADD k a", (0, 0)),
            ("XADD k NOMKSTREAM 1-1 f v", (0, 0)),
            ("SMOVE k other m", (0, 0)),
            ("LMPOP 2 k l LEFT", (0, 0)),
        ];
        for (line, counts) in lines {
            let mut bench = Bench::new();
            bench.send("RPUSH l 1 2");
            bench.send(line);
            let statistics = bench.engine.statistics();
            assert_eq!((statistics.hits, statistics.misses), counts, "{line}");
        }
    }

    #[test]
    fn a_sweep_removes_no_more_fields_than_its_budget() {
        let mut bench = Bench::new();
        let names = (0..1_000).map(|field| format!(" {field}")).collect::<Vec<_>>().concat();
        let pairs = (0..1_000).map(|field| format!(" {field} v")).collect::<Vec<_>>().concat();
        bench.talk(&[(&format!("HSET h{pairs}"), ":1000|")]);
        bench.send(&format!("HPEXPIRE h 10 FIELDS 1000{names}"));
        bench.wait_ms(11);
        let mut removed = 0;
        while removed < 1_000 {
            let swept = bench.engine.expire_some(bench.now, 100);
            assert!(swept.removed > 0 && swept.visited <= 101, "{swept:?}");
            removed += swept.removed;
        }
        assert_eq!((removed, bench.engine.statistics().bytes_used), (1_000, 0));
    }

    #[test]
    fn a_hash_of_expired_fields_is_not_seen() {
        for (line, reply) in [
            ("TTL h", ":-2|"),
            ("PTTL h", ":-2|"),
            ("EXPIRETIME h", ":-2|"),
            ("MEMORY USAGE h", "$-1|"),
            ("KEYS *", "*0|"),
            ("SCAN 0", "*2|$1|0|*0|"),
            ("RANDOMKEY", "$-1|"),
        ] {
            let mut bench = with_expired_field();
            assert!(bench.engine.holds(b"h", bench.now));
            bench.wait_ms(11);
            assert!(!bench.engine.holds(b"h", bench.now));
            bench.talk(&[(line, reply)]);
        }
    }
}
