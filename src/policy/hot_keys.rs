//! Search for hot keys: the keys that have much of a core's load.
//!
//! ```text
//!   every request ──> stage 1: a counter per slot; is the slot warm?     note()      about 6 instructions
//!   of warm slots ──> does the key have a record? count it               note_key()
//!                 └─> stage 2: the heaviest others (Space-Saving)            a key with a quarter of T gets a record
//!   every 50 ms   ──> judge the records: promote, demote, drop           tick()
//! ```
//!
//! | word | |
//! |---|---|
//! | pane | 50 ms, or what really passed |
//! | T | requests that make a key hot: 500/s or 2 % of the core's load, whichever is more |
//! | warm | a slot that reached half of T in this pane or in the last, or in which there is a record |
//! | window | two panes in a row. One ends with each pane; two windows in a row take four panes, whenever they start |
//! | hot | T in two windows in a row, by count and then for certain (count - error); or four times T in one |
//! | cold | less than a quarter of T for a second, including reads that other cores answered |
//!
//! A key that comes with T at any moment is hot after 250 ms: what is left of a pane, and four panes. A slot
//! becomes warm on the way, and a key's requests from before that are its error.
//!
//! | trap | what is done about it |
//! |---|---|
//! | a flood of random keys | it spreads over slots, which stay below half of T |
//! | a flood of `{tag}random` keys | it replaces keys in stage 2, which are no records, up to a cap; then only keys with a place are counted |
//! | in such a slot the slot's count is large | a new key is taken to have had as many requests as its slot had *before it was warm*, or the minimum. With the slot's present count, each new key would push out the others |
//! | a hot key below half of T | there is a record in its slot, so the slot is warm: no write to a hot key passes unseen |
//! | reads that other cores answer | they are reported by [`HotKeys::note_many`] |
//! | a core that stood still | the pane goes on for another 50 ms, in which the requests that came meanwhile are counted |
//! | names allocate memory | only records have names, in memory that is used again |
//! | a key that is asked for rarely and costs much | slots are warm by cost too, for a second at a time; such keys get records, and are reported |
//!
//! A key is known by a 64-bit hash with a secret seed. Two keys with one hash are counted as one; a cache
//! that answers by hash has to compare the keys.

mod panes;
mod records;
mod slots;
mod summary;

use std::time::Duration;

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use crate::values::limits::HOT_KEYS_MAX;
use crate::values::{MicroUnits, Price, Timestamp, UNIT};

use panes::{PANES, Panes, Window, keep};
use records::{Heat, Rate, Record, Records, Tally};
use slots::Slots;
use summary::Summary;

pub use records::KeyName;

/// Length of a pane (the interval in which requests are counted) in nanoseconds, the shortest time that
/// anything is decided by.
const PANE: u64 = 50_000_000;
/// Length of a pane (interval in which requests are counted, 50 ms), in nanoseconds, above which the core
/// must have slept or not run. The pane then goes on, since the requests that came meanwhile have yet to be
/// counted.
const LONG: u64 = 3 * PANE;
/// Time over which expensive keys are looked for, in nanoseconds: such keys may be asked for rarely.
const COST_SPAN: u64 = 1_000_000_000;
/// Time, in nanoseconds, for which a hot key must be cold (have less than a quarter of the load that makes a
/// key hot) before it is demoted.
const COLD: u64 = 1_000_000_000;
/// Divisor of the load that makes a key hot: a hot key below a quarter of that load is cold, and any key with
/// a quarter of it gets a record (is counted by itself).
const QUARTER: u64 = 4;
/// Multiple of the load that makes a key hot at which a key becomes hot after one window (two panes of 50 ms)
/// instead of two.
const BLAZING: u64 = 4;
/// Factor by which the load of a key that becomes hot must exceed that of the weakest hot key to replace it,
/// when there are as many hot keys as there may be.
const MUCH_MORE: u64 = 2;
/// Number of bits by which the costs of requests, counted by hash slot, are shifted right: the unit is about
/// a thousandth of a request unit, so that two million request units fit.
const COST_SHIFT: u32 = 10;

/// The load at which a key becomes hot (the greater of the two least loads), and the largest number of hot
/// keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotSettings {
    /// Least load of a hot key, in requests per second; as many request units per second make a key expensive.
    pub least_per_second: u64,
    /// Least load of a hot key, as a share of the core's requests, in thousandths; the same share of the core's
    /// costs makes a key expensive.
    pub least_share_per_mille: u64,
    /// Maximum number of hot keys of a core, at most 256. Beyond it a key becomes hot only in place of one
    /// with at most half its load.
    pub keys_max: usize,
}

impl Default for HotSettings {
    fn default() -> Self {
        Self { least_per_second: 500, least_share_per_mille: 20, keys_max: 64 }
    }
}

/// Effect of a request on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The request reads the key, and leaves it unchanged.
    Read,
    /// The request may change the key.
    Write,
}

/// Identity of a hot key, valid until it is demoted: its generation distinguishes it from other keys at the
/// same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HotId {
    /// Index of the key's record, below 512.
    pub index: u16,
    /// Number of keys at this index that stopped being hot before, which distinguishes the key from them.
    pub generation: u32,
}

/// Change of the set of hot keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A key is hot from now on.
    Promoted {
        /// The key's id, which [`HotKeys::note_key`] returns for each request for the key from now on.
        id: HotId,
        /// The key's hash, by which requests for it are recognised.
        hash: u64,
        /// The key's hash slot, 0 to 16,383.
        slot: u16,
        /// The key. Replies for it may be cached only if it is stored in full ([whole](KeyName::is_whole)).
        key: &'a KeyName,
    },
    /// A key is not hot any more.
    Demoted {
        /// The id that the key had while it was hot.
        id: HotId,
    },
}

/// Figures of a key that has a large part of the core's load, for operators.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report<'a> {
    /// The key's id if it is hot; `None` for a key that is only expensive.
    pub id: Option<HotId>,
    /// The key, or its beginning if it is long.
    pub key: &'a KeyName,
    /// The hash by which the search identifies the key.
    pub hash: u64,
    /// The key's hash slot, 0 to 16,383.
    pub slot: u16,
    /// Reads of the key per second over the last second, including those answered on other cores.
    pub reads_per_second: f64,
    /// Reads per second that other cores answered from their copies of the key's replies.
    pub elsewhere_per_second: f64,
    /// Writes of the key per second over the last second.
    pub writes_per_second: f64,
    /// Price of the requests for the key, in request units per second, as far as callers recorded it
    /// ([`HotKeys::note_key_cost`]).
    pub ru_per_second: f64,
    /// Maximum number of requests for the key per second that may be missing from its reads and writes: those
    /// from before the key was counted.
    pub error_per_second: f64,
    /// Share of the requests that this core handled in about the last second that are about the key, 0 to 1.
    /// Reads that other cores answered from copies do not count.
    pub share: f64,
    /// Time since which the key is hot; None if it is not.
    pub since: Option<Timestamp>,
}

/// Counts of the hot-key search since the start: promotions, demotions, and requests that could not be
/// counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotCounters {
    /// Number of promotions: times that a key became hot.
    pub promoted: u64,
    /// Number of demotions: times that a hot key stopped being hot.
    pub demoted: u64,
    /// Promotions that failed because there were too many hot keys, counted once for each key and pane (50
    /// ms).
    pub crowded_out: u64,
    /// Number of requests for keys that had enough load to be counted by themselves (in a record) when no
    /// record was free.
    pub unrecorded: u64,
    /// Number of times that a request, or the cost of one, was not counted by key because too many keys had
    /// been replaced in the pane (50 ms).
    pub passed_over: u64,
}

/// The search for hot keys of one core. It takes 52 KiB, and up to 512 records with a name of 1 KiB at most.
#[derive(Debug)]
pub struct HotKeys {
    // The fields that each request touches come first.
    slots: Slots,
    cost_slots: Slots,
    settings: HotSettings,
    secrets: RapidSecrets,
    records: Records,
    counts: Summary,
    costs: Summary,
    /// Number of requests for a key in a pane (50 ms) from which on the key gets a record.
    watch_at: u64,
    panes: Panes,
    pane_started: Timestamp,
    pane_ends: Timestamp,
    /// True while the present pane (50 ms) is prolonged because the core did not run during it.
    is_long: bool,
    load: Rate,
    /// Cost of the requests for a key that makes it expensive, in millionths of a request unit per second.
    expensive_from: MicroUnits,
    costs_started: Timestamp,
    hot: usize,
    /// Records of keys that are to become hot at the end of a pane (50 ms), in memory that is used again.
    rising: Vec<u16>,
    /// Records of hot keys that are to be demoted at the end of a pane (50 ms), in memory that is used again.
    cooled: Vec<u16>,
    counters: HotCounters,
}

impl HotKeys {
    /// Creates the search for hot keys of one core; no key is hot yet. `settings` say how much load makes a
    /// key hot. Clients must not be able to guess the `seed` of the keys' hash, or they could make keys
    /// collide.
    pub fn new(settings: HotSettings, seed: u64, now: Timestamp) -> Self {
        let settings = HotSettings { keys_max: settings.keys_max.min(HOT_KEYS_MAX), ..settings };
        let hot_from = settings.hot_from(PANE, 0);
        let expensive_from = settings.least_per_second.max(1).saturating_mul(UNIT);
        Self {
            slots: Slots::new(hot_from / 2),
            cost_slots: Slots::new((expensive_from / 2) >> COST_SHIFT),
            settings,
            secrets: RapidSecrets::seed(seed),
            records: Records::new(),
            counts: Summary::new(),
            costs: Summary::new(),
            watch_at: (hot_from / QUARTER).max(1),
            panes: Panes::new(settings),
            pane_started: now,
            pane_ends: now.after(Duration::from_nanos(PANE)),
            is_long: false,
            load: Rate::default(),
            expensive_from,
            costs_started: now,
            hot: 0,
            rising: Vec::new(),
            cooled: Vec::new(),
            counters: HotCounters::default(),
        }
    }

    /// Returns the hash of a key, by which records of keys are found.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        rapidhash_v3_seeded(key, &self.secrets)
    }

    /// Returns a function that computes the same hash of a key as [`hash`](Self::hash), for callers that
    /// cannot hold on to this search.
    pub fn hasher(&self) -> impl Fn(&[u8]) -> u64 + use<> {
        let secrets = self.secrets;
        move |key| rapidhash_v3_seeded(key, &secrets)
    }

    /// Counts a request in its hash slot. Called for each key of each request. True if the slot is busy
    /// enough to have a hot key (warm): the caller then has to call [`note_key`](Self::note_key) to count the
    /// key itself. The slot of a hot key is always warm.
    #[inline]
    pub fn note(&mut self, slot: u16) -> bool {
        self.slots.count(slot)
    }

    /// Counts a request for a key of a warm slot (one whose keys are counted one by one). Returns the key's id
    /// if it is hot, else None. `hash` is the key's hash, and `access` says whether the request reads or may
    /// change the key.
    #[inline]
    pub fn note_key(&mut self, slot: u16, hash: u64, key: &[u8], access: Access) -> Option<HotId> {
        if let Some((at, record)) = self.records.find(hash) {
            record.tally.count(access);
            return record.is_hot().then(|| self.records.id(at));
        }
        self.note_stranger(slot, hash, key, access);
        None
    }

    /// Returns the id of the key with this hash if it is hot, else None. Counts nothing.
    pub fn id_of(&self, hash: u64) -> Option<HotId> {
        self.records.id_of(hash)
    }

    /// Adds the price of a request to its key's hash slot, to find keys that are expensive. The caller may
    /// leave out requests at the usual price; a key's share of its slot's cost is then its share of the cost
    /// of the requests that were added.
    #[inline]
    pub fn note_cost(&mut self, slot: u16, cost: Price) {
        self.cost_slots.add(slot, cost.micro() >> COST_SHIFT);
    }

    /// Adds the price of a request to its key (given by `hash`), in addition to
    /// [`note_cost`](Self::note_cost). For requests whose slot was warm (busy, so that its keys are counted
    /// one by one) when they came.
    pub fn note_key_cost(&mut self, hash: u64, cost: Price) {
        if let Some((_, record)) = self.records.find(hash) {
            record.tally.cost = record.tally.cost.saturating_add(cost.micro());
        } else if cost > Price::ZERO {
            self.costs.add(hash, cost.micro(), 0);
        }
    }

    /// Adds a number of reads of a hot key that other cores answered from their copies of its replies.
    /// Ignored if the key is no longer hot.
    pub fn note_many(&mut self, id: HotId, reads: u64) {
        if let Some(record) = self.records.get_mut(id) {
            record.tally.elsewhere = record.tally.elsewhere.saturating_add(reads);
        }
    }

    /// Ends the interval in which requests are counted (50 ms) if its time is over, and reports to `events`
    /// keys that become hot or cease to be. Called once in each pass of the core's loop while there is
    /// traffic, and else at the time that [`wake_at`](Self::wake_at) returns.
    #[inline]
    pub fn tick(&mut self, now: Timestamp, events: &mut impl FnMut(Event<'_>)) {
        if self.is_due(now) {
            self.end_pane(now, events);
        }
    }

    /// True if the present pane (interval of 50 ms in which requests are counted) is over, so that
    /// [`tick`](Self::tick) has to be called.
    #[inline]
    pub fn is_due(&self, now: Timestamp) -> bool {
        now >= self.pane_ends
    }

    /// Returns when the present pane (interval of 50 ms) ends; None if no key has a record, since the end of
    /// the pane decides nothing then.
    pub fn wake_at(&self) -> Option<Timestamp> {
        (!self.records.is_empty()).then_some(self.pane_ends)
    }

    /// Returns a report on each hot key, in no particular order.
    pub fn hot(&self) -> impl Iterator<Item = Report<'_>> {
        self.reports(Record::is_hot)
    }

    /// Returns a report on each expensive key, hot or not, in no particular order. Expensive is a key whose
    /// requests cost at least as much per second as `HotSettings` says, in request units or as a share of the
    /// core's costs, whichever is more.
    pub fn expensive(&self) -> impl Iterator<Item = Report<'_>> {
        let least = self.expensive_from as f64;
        self.reports(move |record| record.cost.per_second() >= least)
    }

    /// Returns how many times keys became hot and stopped being hot since the start, and how many requests
    /// could not be counted.
    pub fn counters(&self) -> HotCounters {
        let passed_over = self.counts.passed_over() + self.costs.passed_over();
        HotCounters { passed_over, ..self.counters }
    }

    fn reports(&self, is_meant: impl Fn(&Record) -> bool) -> impl Iterator<Item = Report<'_>> {
        let records = self.records.iter().filter(move |(_, record)| is_meant(record));
        records.map(|(at, record)| self.report(at, record))
    }

    fn report<'a>(&self, at: u16, record: &'a Record) -> Report<'a> {
        let (reads, writes) = (record.reads.per_second(), record.writes.per_second());
        let elsewhere = record.elsewhere.per_second();
        let since = match record.heat {
            Heat::Hot { since, .. } => Some(since),
            Heat::Watched => None,
        };
        Report {
            id: since.map(|_| self.records.id(at)),
            key: &record.name,
            hash: record.hash,
            slot: record.slot,
            reads_per_second: reads + elsewhere,
            elsewhere_per_second: elsewhere,
            writes_per_second: writes,
            ru_per_second: record.cost.per_second() / UNIT as f64,
            error_per_second: record.error(Window::Last) as f64
                / self.panes.seconds(Window::Last).max(PANE as f64 / 1e9),
            share: ((reads + writes) / self.load.per_second().max(1.0)).min(1.0),
            since,
        }
    }

    /// Counts a request for a key without a record, once its slot is warm (busy, so that its keys are counted
    /// one by one), and gives the key a record if it has a quarter of the load that makes it hot, or costs
    /// much. `hash` is the key's hash, and `access` says whether the request reads or may change the key.
    fn note_stranger(&mut self, slot: u16, hash: u64, key: &[u8], access: Access) {
        let Some(counted) = self.counts.add(hash, 1, self.slots.missed(slot)) else { return };
        let cost = self.costs.get(hash).unwrap_or_default().certain();
        let is_expensive = cost >= (self.expensive_from / QUARTER).max(1);
        if counted.certain() < self.watch_at && !is_expensive {
            return;
        }
        let Some(record) = self.records.admit(hash, slot, key) else {
            self.counters.unrecorded += 1;
            return;
        };
        record.tally = Tally::of(counted.certain(), access, counted.error);
        if cost > 0 {
            let known = self.pane_started.nanos_since(self.costs_started).clamp(PANE, COST_SPAN);
            record.cost = Rate::of(cost as f64, known as f64 / 1e9);
        }
    }

    fn end_pane(&mut self, now: Timestamp, events: &mut impl FnMut(Event<'_>)) {
        let passed = now.nanos_since(self.pane_started);
        if passed > LONG && !self.is_long {
            self.is_long = true;
            self.pane_ends = now.after(Duration::from_nanos(PANE));
            self.counts.allow();
            return;
        }
        let (load, seconds) = (self.slots.total(), passed as f64 / 1e9);
        self.load.learn(load as f64, seconds);
        self.panes.end(passed, load);
        for (_, record) in self.records.iter_mut() {
            record.end_pane(seconds);
        }
        self.judge(now, events);
        let costs_passed = now.nanos_since(self.costs_started);
        if costs_passed >= COST_SPAN {
            self.end_costs(now, costs_passed);
        }
        self.start_pane(now, passed, load);
    }

    fn start_pane(&mut self, now: Timestamp, passed: u64, load: u64) {
        (self.pane_started, self.is_long) = (now, false);
        self.pane_ends = now.after(Duration::from_nanos(PANE));
        // The load is scaled as if the ended pane had been one of 50 ms.
        let usual = (u128::from(load) * u128::from(PANE) / u128::from(passed.max(1))) as u64;
        let hot_from = self.settings.hot_from(PANE, usual);
        self.watch_at = (hot_from / QUARTER).max(1);
        self.slots.restart(hot_from / 2);
        self.slots.keep_warm_with(&self.cost_slots);
        for (_, record) in self.records.iter() {
            self.slots.keep_warm(record.slot);
        }
        self.counts.clear();
        self.counts.allow();
        self.costs.allow();
    }

    fn end_costs(&mut self, now: Timestamp, passed: u64) {
        self.costs_started = now;
        let total = u128::from(self.cost_slots.total()) << COST_SHIFT;
        let per_second = total * 1_000_000_000 / u128::from(passed.max(1));
        let by_share = per_second * u128::from(self.settings.least_share_per_mille) / 1_000;
        let by_rate = self.settings.least_per_second.max(1).saturating_mul(UNIT);
        self.expensive_from = by_rate.max(by_share.min(u64::MAX.into()) as u64);
        self.cost_slots.restart((self.expensive_from / 2) >> COST_SHIFT);
        self.costs.clear();
    }

    fn judge(&mut self, now: Timestamp, events: &mut impl FnMut(Event<'_>)) {
        let (last, before) = (self.panes.hot_from(Window::Last), self.panes.hot_from(Window::Before));
        let nanos = self.panes.nanos();
        self.rising.clear();
        for (at, record) in self.records.iter_mut() {
            let (count, certain) = (record.count(Window::Last), record.certain(Window::Last));
            match record.heat {
                Heat::Watched => {
                    let is_steady = record.count(Window::Before) >= before;
                    if certain >= last && (is_steady || count >= last.saturating_mul(BLAZING)) {
                        self.rising.push(at);
                    }
                }
                Heat::Hot { since, cold_for } => {
                    let is_cold = count.saturating_mul(QUARTER) < last;
                    let cold_for = if is_cold { cold_for.saturating_add(nanos) } else { 0 };
                    record.heat = Heat::Hot { since, cold_for };
                    if cold_for >= COLD {
                        self.cooled.push(at);
                    }
                }
            }
        }
        while let Some(at) = self.cooled.pop() {
            self.cool(at, events);
        }
        self.promote(now, events);
        let (quarter_of_last, expensive) = (last.div_ceil(QUARTER), self.expensive_from / QUARTER);
        self.records.retain(|record| {
            record.is_hot()
                || record.panes < 2
                || record.count(Window::Last) >= quarter_of_last
                || record.cost.per_second() >= expensive as f64
        });
    }

    fn cool(&mut self, at: u16, events: &mut impl FnMut(Event<'_>)) {
        let id = self.records.id(at);
        self.records.at(at).cool();
        self.hot -= 1;
        self.counters.demoted += 1;
        events(Event::Demoted { id });
    }

    /// Makes those keys hot whose load suffices, the one with the most load first, and reports them to
    /// `events`.
    fn promote(&mut self, now: Timestamp, events: &mut impl FnMut(Event<'_>)) {
        let mut rising = std::mem::take(&mut self.rising);
        rising.sort_by_key(|at| std::cmp::Reverse(self.records.at(*at).certain(Window::Last)));
        for at in &rising {
            if !self.make_room(*at, events) {
                self.counters.crowded_out += 1;
                continue;
            }
            let id = self.records.id(*at);
            let record = self.records.at(*at);
            record.heat = Heat::Hot { since: now, cold_for: 0 };
            self.hot += 1;
            self.counters.promoted += 1;
            events(Event::Promoted { id, hash: record.hash, slot: record.slot, key: &record.name });
        }
        self.rising = rising;
    }

    /// True if one more key may become hot. While there are as many hot keys as there may be, the weakest hot
    /// key is demoted for a newcomer with at least twice its load, and any other newcomer is refused.
    /// `newcomer` is the index of the new key's record; a demotion is reported to `events`.
    fn make_room(&mut self, newcomer: u16, events: &mut impl FnMut(Event<'_>)) -> bool {
        if self.hot < self.settings.keys_max {
            return true;
        }
        let certain = self.records.at(newcomer).certain(Window::Last);
        let hot = self.records.iter().filter(|(_, record)| record.is_hot());
        let Some((count, weakest)) = hot.map(|(at, record)| (record.count(Window::Last), at)).min() else {
            return false;
        };
        if count.saturating_mul(MUCH_MORE) > certain {
            return false;
        }
        self.cool(weakest, events);
        true
    }
}

#[cfg(test)]
mod tests;
