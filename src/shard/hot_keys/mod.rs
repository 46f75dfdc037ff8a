//! Hot keys, on their home core (the one through which all requests for a key pass). Answers reads from kept replies
//! (those held in memory), lets reads of the same reply share one fetch, and makes all kept replies of a key invalid
//! before a write of it is sent. Has no access to clients or connections to stores.
//!
//! ```text
//!   request ── slot warm? ── hot? ── write ──────────────────> version + 1, until its reply has come ──> link
//!      └ no ──> link   └ no ──> link  └ read
//!                                      ├─ kept, and nothing written since ──> answered
//!                                      ├─ a fetch of it has yet to be sent ──> waits for that, whatever is being written
//!                                      ├─ a fetch of it is on its way, and nothing written since ──> waits for that
//!                                      └─ else ──> begins the next fetch: PTTL, HPTTL for fields, and itself
//! ```
//!
//! A fetch that is sent after a read came answers that read, whatever anybody writes: so reads of a hot key cost its
//! store one fetch in a round trip. The next fetch leaves when the earlier one is answered, or at once if a write has
//! begun since the earlier one was sent; at most two fetches of one reply are in flight. A fetch takes the next free
//! place in its store's window (limit on requests in flight), and reads join it until it is sent.
//!
//! Requests of a connection keep their order: fetches and the connection's own requests for the key go over
//! one connection to the store, so a request is held back only while an earlier one of its connection is yet
//! to be sent (`entry.rs`). Requests that are queued when a key becomes hot are treated as if they came then.
//!
//! | what | file |
//! |---|---|
//! | which keys are hot | `policy/hot_keys.rs` |
//! | what was written since when, for all cores | `../versions.rs` |
//! | what other cores lend of their hot keys | `copies.rs` |
//! | what is kept of a key, and who must not be overtaken | `entry.rs` |
//! | reads that several requests wait for | `flights.rs` |
//! | requests for hot keys that have yet to be answered, and writes that no home sees | `under_way.rs` |
//! | the keys of a request, where it names several | `../reach.rs` |
//! | changes that stores tell of | `tracking.rs` |
//! | when a kept reply becomes untrue without a write: its key, or a field, expires | `lifetime.rs` |
//! | values of several keys in one reply: `MGET` | `several.rs` |
//! | a key's value, whichever request asks for it | `value.rs` |
//! | what would be done, for `QOS EXPLAIN` | `explain.rs` |
//!
//! Why no client gets a reply from before an acknowledged write: `../versions.rs`. Why no connection sees its
//! own requests out of order: `entry.rs` knows for each key what a connection still waits for, and
//! `under_way.rs` knows of requests that may be about any key, behind which reads go the way of the earlier
//! requests.

mod copies;
mod entry;
mod explain;
mod flights;
mod lifetime;
mod several;
mod tracking;
mod under_way;
mod value;

use std::collections::{HashMap, HashSet, VecDeque};
use std::iter::Peekable;
use std::time::Duration;

use bytes::Bytes;

pub use explain::Forecast;
pub use flights::Landed;
pub use tracking::Task;

use super::copy::{Copy, CopyHits};
use super::counters::Counter;
use super::durations::Durations;
use super::env::Env;
use super::hot_slots::HotSlots;
use super::last_told::Told;
use super::note::Note;
use super::outcome::Outcome;
use super::reach;
use super::refusal::{self, NotSent};
use super::request::{Asker, Envelope, FlightId, NOBODY, Overdue, ReplyTo, Route, Touched, Touches, Track};
use super::settings::{HotSettings, Mode};
use super::versions::{Cell, InnerRead, Versions};
use crate::config::{HotScripts, Quotas};
use crate::policy::hot_keys::{Access, Event, HotId, HotKeys, Report};
use crate::protocol::Protocol;
use crate::protocol::command::{Class, Effect};
use crate::protocol::reply::{elements, pushed, text};
use crate::routing::slot_of;
use crate::values::limits::{
    HOT_COUNTED_BYTES_MAX, HOT_FRAME_BYTES_MAX, HOT_HELD_BYTES_MAX, HOT_REPLY_BYTES_MAX, HOT_WAITERS_MAX,
    MESSAGE_READ_BYTES_MAX,
};
use crate::values::{BackendId, Database, ShardId, TenantId, Timestamp};
use copies::Copies;
use entry::{Entry, Found, Held, Read, Warmth, Way};
use flights::{Flight, Flights, Late, Stage, Waiter};
use lifetime::{FieldExpiry, Lifetime};
use tracking::{REFUSED, Registration, Tracking};
use under_way::{Open, UnderWay, Values};

/// The least time between two checks of whether all requests are answered that were sent before a key became
/// hot.
const LOOKS_APART: Duration = Duration::from_micros(500);
/// The time after which a request that still waits (counted from when its fetch was sent, or from when it was held
/// back) counts as one more read of its key, so that the key stays hot while its store does not reply; also the time
/// between two such counts. Without effect unless a tenant accepts expired replies (`stale_on_error`).
const ASKS_AGAIN: Duration = Duration::from_millis(50);
/// The divisor of a client's output limit: the replies of one fetch that a client gets at once may take up at most a
/// quarter of the limit, except that one reply is always permitted.
const OUTPUT_PART: usize = 4;

/// Maximum number of reads in one message (a transaction, or the keys of an `MGET`) whose replies are compared with
/// those that other clients have got. The keys of further reads count as written.
const INNER_READS_MAX: usize = 1_024;

/// The least time between two steps of the search of the queues in front of the stores for requests about keys that
/// have become hot. The search goes on for keys whose requests cannot be taken out yet, because a queued request for
/// several keys names the key, its slot is moving, or there is too much to examine in one step.
const NOTICES_APART: Duration = Duration::from_millis(5);

/// Whether a request for a key that may be hot is handled for the first time, and so counts towards the key's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The request has just arrived, and is counted.
    First,
    /// The request was handled before and held back, or was taken out of a queue: it was counted when it came.
    Again,
}

/// The result of handling a request for a key that may be hot, which says what the caller does with it.
#[derive(Debug)]
pub enum Meeting {
    /// The request goes to the store. The caller need not report when it has been put on the connection.
    Passes,
    /// The request goes to the store, and the caller reports with `Note::Sent` when it has been put on the
    /// connection.
    PassesReported,
    /// The request is answered with this reply from memory. The number is that of the values in it: one for each key of
    /// an `MGET`, else 1.
    Answered(Bytes, usize),
    /// The request waits for a fetch (shared read of a hot key), or is held back behind earlier requests of
    /// its connection.
    Waits,
    /// The request is refused: too many reads wait already, for its fetch (shared read of a hot key) or on
    /// this core.
    Crowded,
    /// The write is refused: its key is written more often than permitted.
    WrittenTooOften(Box<TooOften>),
}

/// Reason to refuse a write: its key is written more often than `--hot-write-rate` permits.
#[derive(Debug)]
pub struct TooOften {
    /// The key that is written too often.
    pub key: Vec<u8>,
    /// The permitted writes per second of one key.
    pub limit: u64,
    /// Time until `--hot-write-rate` allows another write of the key.
    pub retry_after: Duration,
}

/// The hot keys of one core: their kept replies (those held in memory) and fetches, and the requests that
/// wait.
#[derive(Debug)]
pub struct HotKeyStage {
    settings: HotSettings,
    keys: HotKeys,
    /// Hot keys by the index in their [`HotId`], which is below 512; None where no hot key has the index, or where the
    /// key is too long to be stored whole.
    entries: Vec<Option<Box<Entry>>>,
    /// The number of hot keys: entries that are not `None`.
    known: usize,
    /// The number of hot keys that are not warm yet: requests from before they became hot may be
    /// unanswered, so none of their replies is kept.
    warming: usize,
    warmed_at: Timestamp,
    flights: Flights,
    /// Fetches (shared reads of hot keys) that may be sent, in this order.
    to_send: VecDeque<FlightId>,
    /// Requests, each with its bytes, that no longer wait for a fetch (shared read of a hot key) or for
    /// earlier requests, and are to be sent to the store on their own.
    detached: VecDeque<(Envelope, Vec<u8>)>,
    /// Writes that were held back behind earlier requests and are to be refused, because their key is written more
    /// often than permitted by now.
    refused: VecDeque<(Envelope, TooOften)>,
    /// Pairs of a key and a client connection, whose requests for the key were held back and may go on now.
    resuming: VecDeque<(HotId, u64)>,
    /// The number of requests held back, for all keys.
    held: usize,
    /// The number of bytes of all requests held back, for all keys.
    held_bytes: usize,
    /// The earliest deadline of the requests held back, or a time before that.
    held_until: Timestamp,
    resumed: VecDeque<Held>,
    /// The number of hot keys that have not left [`Warmth::Queued`]: requests for them may wait, unknown, in the queues
    /// in front of the stores.
    unnoticed: usize,
    noticed_at: Timestamp,
    /// The number of keys that have become hot since this core started; keys too long to be stored whole do not count.
    promotions: u64,
    /// The value of `promotions` when the unfinished search of the queues in front of the stores began. The search
    /// finds the requests for keys that were hot by then; later keys are left to the next one. None if no search is
    /// unfinished.
    searched_for: Option<u64>,
    /// The number of keys of queued requests that all searches of the queues have read so far, which a metric
    /// shows.
    examined: u64,
    under_way: UnderWay,
    /// True if the slot of the request that [`Self::notices`] was last called with has enough traffic that its keys are
    /// counted one by one. Requests for several keys do not change it.
    is_warm: bool,
    copies: Copies,
    tracking: Tracking,
    fields: FieldExpiry,
    /// Ages of the replies from memory when they were sent: the time since the store was asked. Replies sent after
    /// their expiry (`stale_on_error`) do not count.
    ages: Durations,
    /// Copies of kept replies (those held in memory) to lend to other cores.
    to_lend: VecDeque<(ShardId, Copy)>,
    to_tell: VecDeque<(ShardId, CopyHits)>,
    /// The time of the end of the last turn (pass of the shard's loop), for functions that are not told the
    /// time.
    turned_at: Timestamp,
    /// The time at which the waiting reads were last counted as requests for their keys.
    counted_at: Timestamp,
    /// The longest `stale_on_error` of any tenant: how long after its expiry a kept reply (one held in
    /// memory) may be sent while its store is unavailable.
    stale_max: Duration,
}

impl HotKeyStage {
    /// Creates the state of a core without hot keys.
    pub fn new(settings: HotSettings, quotas: &Quotas) -> Self {
        Self {
            keys: HotKeys::new(settings.detection, settings.seed, Timestamp::ZERO),
            settings,
            entries: Vec::new(),
            known: 0,
            warming: 0,
            warmed_at: Timestamp::ZERO,
            flights: Flights::default(),
            to_send: VecDeque::new(),
            detached: VecDeque::new(),
            refused: VecDeque::new(),
            resuming: VecDeque::new(),
            held: 0,
            held_bytes: 0,
            held_until: Timestamp::MAX,
            resumed: VecDeque::new(),
            unnoticed: 0,
            noticed_at: Timestamp::ZERO,
            promotions: 0,
            searched_for: None,
            examined: 0,
            under_way: UnderWay::default(),
            is_warm: false,
            copies: Copies::default(),
            tracking: Tracking::default(),
            fields: FieldExpiry::default(),
            ages: Durations::default(),
            to_lend: VecDeque::new(),
            to_tell: VecDeque::new(),
            turned_at: Timestamp::ZERO,
            counted_at: Timestamp::ZERO,
            stale_max: quotas.stale_on_error_max(),
        }
    }

    /// True if the handling of hot keys is not switched off. Shadow mode (decisions are counted, without
    /// effect) counts as on.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.settings.mode != Mode::Off
    }

    /// Returns the hash slots that have hot keys on any core, where the handling of hot keys is switched on.
    pub fn slots(&self) -> &HotSlots {
        &self.settings.slots
    }

    /// Counts a request for one key that is about to be sent from this core to a store, in the key's slot. Other
    /// requests are not counted here. True if [`HotKeyStage::meet`] must handle the request before it is sent.
    #[inline]
    pub fn notices(&mut self, envelope: &Envelope) -> bool {
        let touches = envelope.touches;
        if !touches.is_key() {
            return touches != Touches::NOTHING;
        }
        self.is_warm = self.keys.note(envelope.route.slot);
        self.is_warm || envelope.nature.class == Class::Range
    }

    /// Handles a request that [`HotKeyStage::notices`] selected, before it is sent to its store. `arrival`
    /// says whether the request is new or was counted before, and `frame` is its bytes. `envelope` is the
    /// record that goes with its bytes. Returns what the caller does with the request.
    pub fn meet(
        &mut self,
        env: &mut Env,
        (envelope, arrival): (&Envelope, Arrival),
        frame: &[u8],
        now: Timestamp,
    ) -> Meeting {
        match envelope.touches.of(frame) {
            Touched::Nothing => Meeting::Passes,
            Touched::Key { key, may_be_kept } => {
                self.meet_key(env, (envelope, arrival), (key, may_be_kept), frame, now)
            }
            Touched::Keys => self.meet_keys(env, envelope, frame, now),
            Touched::Unknown => {
                self.meet_unknown(env, envelope, frame, now);
                Meeting::Passes
            }
        }
    }

    fn meet_key(
        &mut self,
        env: &mut Env,
        (envelope, arrival): (&Envelope, Arrival),
        (key, may_be_kept): (&[u8], bool),
        frame: &[u8],
        now: Timestamp,
    ) -> Meeting {
        let hash = hash_of(&self.keys, envelope.route.database, key);
        let is_write = envelope.nature.effect() == Effect::Write;
        let access = if is_write { Access::Write } else { Access::Read };
        let slot = envelope.route.slot;
        let id = match arrival {
            Arrival::First if self.is_warm => self.keys.note_key(slot, hash, key, access),
            Arrival::First => None,
            Arrival::Again => self.keys.id_of(hash),
        };
        let Some(id) = id else {
            if envelope.nature.class == Class::Range {
                self.under_way.open(envelope.reply_to, Open::Costly(slot, hash));
            }
            return Meeting::Passes;
        };
        let Some(entry) = entry_of(&mut self.entries, id) else { return Meeting::Passes };
        if entry.key != key || entry.database != envelope.route.database {
            return Meeting::Passes;
        }
        entry.last_asker = present_tenant(envelope.asker, &env.quotas).unwrap_or(NOBODY);
        let is_on = self.settings.mode == Mode::On;
        let connection = connection_of(env, envelope);
        let is_fit = !is_write && may_be_kept && frame.len() <= HOT_FRAME_BYTES_MAX;
        if !is_fit
            && is_on
            && entry.is_to_wait(connection)
            && self.hold(connection, (id, envelope), frame, now)
        {
            return Meeting::Waits;
        }
        let limit = self.write_limit();
        let Some(entry) = entry_of(&mut self.entries, id) else { return Meeting::Passes };
        if is_write {
            if let Err(reason) = take_write(entry, limit, now) {
                return Meeting::WrittenTooOften(Box::new(reason));
            }
            entry.tally.writes += 1;
            let cell = Cell::of_hash(hash);
            self.settings.versions.begin(cell);
            return self.pass(env, envelope, (id, Open::Write(id, cell)), now);
        }
        let found = if is_fit {
            let route = as_fetched(envelope.route);
            let is_behind_any = self.under_way.is_about_any(connection);
            let read = Read { connection, route, frame, is_behind_any, may_move: env.slots.is_some() };
            let known = (&*self.settings.versions, &self.flights);
            entry.find(read, known, (self.settings.ttl, self.stale_max), now)
        } else {
            Found::Nothing(Counter::HotBypassedOther)
        };
        match found {
            Found::Kept { reply, asked_at, is_to_be_fetched } => {
                if self.settings.mode == Mode::Shadow {
                    let snapshot = entry.snapshot(&self.settings.versions);
                    if envelope.route.track != Track::Replica {
                        self.under_way.compare(envelope.reply_to, snapshot, reply);
                    }
                    return self.pass(env, envelope, (id, self.read(id, envelope, frame)), now);
                }
                if is_to_be_fetched {
                    self.fetch(env, envelope, (id, true), frame, now);
                }
                self.ages.record(now.nanos_since(asked_at));
                env.counters.add(Counter::HotHits, 1);
                self.handle_elsewhere(env, id, (envelope.reply_to.shard, 1), now);
                Meeting::Answered(reply, 1)
            }
            Found::Flight(_) if !is_on => self.pass(env, envelope, (id, self.read(id, envelope, frame)), now),
            Found::Flight(flight) => self.join(env, envelope, (id, flight), now),
            Found::Fetchable => {
                let flight = self.fetch(env, envelope, (id, !is_on), frame, now);
                if is_on {
                    self.join(env, envelope, (id, flight), now)
                } else {
                    self.pass(env, envelope, (id, self.read(id, envelope, frame)), now)
                }
            }
            Found::Behind if is_on && self.hold(connection, (id, envelope), frame, now) => Meeting::Waits,
            Found::Behind => {
                env.counters.add(Counter::HotBypassedFull, 1);
                self.pass(env, envelope, (id, self.read(id, envelope, frame)), now)
            }
            Found::Nothing(why) => {
                env.counters.add(why, 1);
                self.pass(env, envelope, (id, self.read(id, envelope, frame)), now)
            }
        }
    }

    /// Holds a request (`frame`) for the hot key `id` back, so that it does not overtake earlier ones of its client
    /// connection. False, and nothing is held, if the key is no longer hot, or if this core would then hold back more
    /// than 65,536 requests or 16 MiB of them.
    fn hold(
        &mut self,
        connection: u64,
        (id, envelope): (HotId, &Envelope),
        frame: &[u8],
        now: Timestamp,
    ) -> bool {
        let has_room =
            self.held < HOT_WAITERS_MAX && self.held_bytes.saturating_add(frame.len()) <= HOT_HELD_BYTES_MAX;
        let Some(entry) = entry_of(&mut self.entries, id).filter(|_| has_room) else { return false };
        let held = Held { envelope: *envelope, frame: frame.to_vec(), since: now };
        self.held += 1;
        self.held_bytes += frame.len();
        self.held_until = self.held_until.min(held.answered_by());
        entry.hold(connection, held);
        true
    }

    fn handle_unheld(&mut self, held: &[Held]) {
        self.held -= held.len();
        self.held_bytes -= held.iter().map(|held| held.frame.len()).sum::<usize>();
    }

    /// Counts `count` requests of another core (`from`) for a hot key that were answered from memory: by this core, or
    /// by that core from copies of kept replies (those held in memory). Then, at most every 20 ms, chooses the cores
    /// that ask often, and lends copies to those that have none. Does nothing for requests of this core itself.
    fn handle_elsewhere(&mut self, env: &Env, id: HotId, (from, count): (ShardId, u32), now: Timestamp) {
        let own = env.settings.id;
        let Some(entry) = entry_of(&mut self.entries, id) else { return };
        if from != own && entry.handle_elsewhere(from, count, now) {
            for holder in entry.choose_holders(&self.settings, now) {
                self.to_lend.extend(entry.copies(own, None).map(|copy| (holder, copy)));
            }
        }
    }

    /// Handles another core's report of how many requests it answered from copies of the kept replies (those held in
    /// memory) of one key. Begins to fetch one of these replies anew if it expires soon, since no request on this core
    /// would.
    pub fn handle_copy_hits(&mut self, env: &Env, told: CopyHits, now: Timestamp) {
        let CopyHits { from, id, hits } = told;
        self.keys.note_many(id, u64::from(hits));
        let Some(entry) = entry_of(&mut self.entries, id) else { return };
        entry.handle_hits(hits);
        let aging = entry.aging(&self.settings.versions, now);
        self.handle_elsewhere(env, id, (from, hits), now);
        if let Some((frame, terms)) = aging {
            self.fetch(env, &terms, (id, true), &frame, now);
        }
    }

    /// Stores a copy of another core's kept reply (one held in memory), which that core lends to this one. Drops it if
    /// this core has no room for more copies.
    pub fn take_copy(&mut self, env: &Env, copy: &Copy, now: Timestamp) {
        let Self { copies, to_tell, settings, .. } = self;
        let bytes_max = settings.bytes_max;
        copies
            .take(copy, (env.settings.id, bytes_max), now, &mut |home, hits| to_tell.push_back((home, hits)));
    }

    /// True if this core has copies of other cores' kept replies (those held in memory) for keys in a slot.
    #[inline]
    pub fn has_copies(&self, slot: u16) -> bool {
        self.copies.has(slot)
    }

    /// Returns the lent reply to a request (`frame`) for a key whose home is another core, and counts it as
    /// an answer from memory; None if there is no valid one.
    pub fn find_copy(&mut self, env: &mut Env, route: Route, frame: &[u8], now: Timestamp) -> Option<Bytes> {
        let (reply, asked_at) = self.copies.find(route, frame, &self.settings.versions, now)?;
        self.ages.record(now.nanos_since(asked_at));
        env.counters.add(Counter::HotHitsCopied, 1);
        Some(reply)
    }

    /// Returns the next copy of a kept reply (one held in memory) to lend to another core, and that core;
    /// None if there is none.
    pub fn poll_copy(&mut self) -> Option<(ShardId, Copy)> {
        self.to_lend.pop_front()
    }

    /// Returns the next report of how many requests a copy of a kept reply (one held in memory) answered, and
    /// the home core (the core through which a key's requests pass) that gets it. None if there is none.
    pub fn poll_hits(&mut self) -> Option<(ShardId, CopyHits)> {
        self.to_tell.pop_front()
    }

    /// Lets a request for a hot key be sent to the store on its own, without a shared fetch. Before it are sent, also
    /// on their own, the requests of its client connection for the key that are held back, or wait for a fetch that
    /// holds back later ones. `id` is the key, and `open` the record that is kept of the request until it is answered.
    /// Returns what the caller does with the request.
    fn pass(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        (id, open): (HotId, Open),
        now: Timestamp,
    ) -> Meeting {
        let connection = connection_of(env, envelope);
        self.detach(env, id, connection, now);
        self.handle_passed(connection, envelope, (id, open));
        Meeting::PassesReported
    }

    fn handle_passed(&mut self, connection: u64, envelope: &Envelope, (id, open): (HotId, Open)) {
        if let Some(entry) = entry_of(&mut self.entries, id) {
            let access = if matches!(open, Open::Write(..)) { Access::Write } else { Access::Read };
            entry.handle_request(connection, Way::Own(access));
        }
        self.under_way.open(envelope.reply_to, open);
    }

    /// Returns the record of a read (`frame`) that is sent to the store without a shared fetch; it is kept
    /// until the read is answered.
    fn read(&self, id: HotId, envelope: &Envelope, frame: &[u8]) -> Open {
        open_read(&self.keys, id, envelope, frame)
    }

    /// Begins a fetch (shared read of a hot key) of the reply to a request (`frame`), for which no read waits yet. A
    /// fetch that no read joins is dropped before it is sent, unless `is_ahead_of_time` says that it is to be sent all
    /// the same, for instance to renew a kept reply.
    fn fetch(
        &mut self,
        env: &Env,
        envelope: &Envelope,
        (id, is_ahead_of_time): (HotId, bool),
        frame: &[u8],
        now: Timestamp,
    ) -> FlightId {
        let terms = Envelope {
            deadline: Timestamp::MAX,
            overdue: Overdue::Awaited,
            touches: Touches::NOTHING,
            route: as_fetched(envelope.route),
            ..*envelope
        };
        let flight = self.flights.begin(env.settings.id, terms, (id, is_ahead_of_time), frame);
        if let Some(entry) = entry_of(&mut self.entries, id) {
            entry.handle_fetch(envelope, frame, flight, now);
        }
        self.let_leave(flight);
        flight
    }

    /// Adds a fetch (shared read of a hot key) to those that may be sent, unless other fetches of the same reply have
    /// to be answered first. Does nothing if it is among them already.
    fn let_leave(&mut self, id: FlightId) {
        let Some(flight) = self.flights.get(id).filter(|flight| flight.stage == Stage::Gathering) else {
            return;
        };
        let entry = entry_of(&mut self.entries, flight.hot);
        let beside = entry.as_ref().map_or(&[][..], |entry| entry.flights_beside(flight));
        if self.flights.may_leave(id, beside, &self.settings.versions)
            && let Some(flight) = self.flights.get(id)
        {
            flight.stage = Stage::Leaving;
            self.to_send.push_back(id);
        }
    }

    fn join(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        (id, flight): (HotId, FlightId),
        now: Timestamp,
    ) -> Meeting {
        if !self.flights.join(flight, envelope, env.settings.overload.shed == Mode::On, now) {
            return Meeting::Crowded;
        }
        env.counters.add(Counter::HotJoins, 1);
        if let Some(entry) = entry_of(&mut self.entries, id) {
            entry.handle_request(connection_of(env, envelope), Way::Fetch(flight));
        }
        Meeting::Waits
    }

    /// Has the requests of a client connection for the hot key `id` sent on their own, in their order, that are held
    /// back, or wait for a fetch (shared read of the key) that holds back later ones. The connection's next request for
    /// the key is about to be sent or queued, and could overtake them otherwise. Writes beyond the limit of the key are
    /// refused instead.
    fn detach(&mut self, env: &mut Env, id: HotId, connection: u64, now: Timestamp) {
        let limit = self.write_limit();
        let Some(entry) = entry_of(&mut self.entries, id).filter(|entry| entry.is_to_wait(connection)) else {
            return;
        };
        let mut left = Vec::new();
        if let Some(flight) = entry.bound(connection) {
            left = self.flights.leave(flight, |waiter| connection_of(env, waiter) == connection);
            left.iter().for_each(|_| _ = entry.handle_landed(connection, flight, true));
        }
        let held = entry.take_held(connection);
        self.handle_unheld(&held);
        left.extend(held.into_iter().map(|held| (held.envelope, held.frame)));
        for (envelope, frame) in left {
            let open = if envelope.nature.effect() == Effect::Write {
                let Some(entry) = entry_of(&mut self.entries, id) else { continue };
                if let Err(reason) = take_write(entry, limit, now) {
                    self.refused.push_back((envelope, reason));
                    continue;
                }
                entry.tally.writes += 1;
                let cell = Cell::of_hash(entry.hash);
                self.settings.versions.begin(cell);
                Open::Write(id, cell)
            } else {
                env.counters.add(Counter::HotBypassedOrder, 1);
                open_read(&self.keys, id, &envelope, &frame)
            };
            self.handle_passed(connection, &envelope, (id, open));
            self.detached.push_back((envelope, frame));
        }
    }

    /// True if it is time for a step of the search of the queues in front of the stores: requests for keys that have
    /// become hot may be in them, and the last step is at least 5 ms ago.
    fn is_notice_due(&self, now: Timestamp) -> bool {
        self.unnoticed > 0 && now.since(self.noticed_at) >= NOTICES_APART
    }

    /// Returns what the caller has to search the queues in front of the stores for: requests about keys that have
    /// become hot. Begins a search, or goes on with an unfinished one. None without such keys, or if the last call that
    /// returned something is less than 5 ms ago.
    pub fn search(&mut self, now: Timestamp) -> Option<Search> {
        if !self.is_notice_due(now) {
            return None;
        }
        self.noticed_at = now;
        let promotions = self.promotions;
        let since = *self.searched_for.get_or_insert(promotions);
        let unnoticed = self.entries.iter().flatten().filter(|entry| entry.warmth == Warmth::Queued);
        let told = |entry: &Entry| Unnoticed {
            id: entry.id,
            place: (entry.backend, entry.slot),
            database: entry.database,
            key: entry.key.clone(),
            promotion: entry.promotion,
        };
        let mut keys: Vec<Unnoticed> = unnoticed.map(|entry| told(entry)).collect();
        keys.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        Some(Search { keys, promotions, since })
    }

    /// Records the result of one step of a search ([`Self::search`]): the number of keys of queued requests that it has
    /// read (`examined`), and whether nothing of the search is left to do.
    pub fn handle_searched(&mut self, examined: u64, is_finished: bool) {
        self.examined += examined;
        if is_finished {
            self.searched_for = None;
        }
    }

    /// Records that a queued request (`frame`) is for the hot key `id`, if that was not known. The request stays in the
    /// queue in front of its store and counts as in flight from now on.
    pub fn handle_queued(&mut self, env: &Env, id: HotId, envelope: &Envelope, frame: &[u8]) {
        self.handle_unqueued(env, envelope);
        let Some(entry) = entry_of(&mut self.entries, id) else { return };
        let open = if envelope.nature.effect() == Effect::Write {
            entry.tally.writes += 1;
            let cell = Cell::of_hash(entry.hash);
            self.settings.versions.begin(cell);
            Open::Write(id, cell)
        } else {
            open_read(&self.keys, id, envelope, frame)
        };
        self.handle_passed(connection_of(env, envelope), envelope, (id, open));
    }

    /// True if a client connection has an unanswered request, sent from this core, that may be about keys of other home
    /// cores, or about keys that are unknown (EXEC, a script, FLUSHALL). The connection's later requests for a hot key
    /// must not overtake it.
    pub fn is_about_any(&self, connection: u64) -> bool {
        self.under_way.is_about_any(connection)
    }

    /// Removes the record of a queued request for a key that has become hot, because the request was taken
    /// out of the queue. The caller then passes the request to [`HotKeyStage::meet`], as if it came now.
    pub fn handle_unqueued(&mut self, env: &Env, envelope: &Envelope) {
        let Some((open, was_sent)) = self.under_way.close(envelope.reply_to) else { return };
        let connection = connection_of(env, envelope);
        open.for_each_key(|id| {
            if let Some(entry) = entry_of(&mut self.entries, id)
                && entry.handle_answered(connection, was_sent)
            {
                self.resuming.push_back((id, connection));
            }
        });
        open.for_each_cell(|cell| self.settings.versions.end(cell));
    }

    /// Records that all queued requests for a key that has become hot are known by now. Reads of the key may share
    /// fetches from now on (in front of a cluster only once all earlier requests are answered).
    pub fn handle_noticed(&mut self, id: HotId, now: Timestamp) {
        if let Some(entry) = entry_of(&mut self.entries, id)
            && entry.warmth == Warmth::Queued
        {
            entry.warmth = Warmth::Sent { until: now };
            self.unnoticed -= 1;
        }
    }

    /// Handles a request (`frame`) for several keys whose home is this core. Answers an `MGET` from memory if all its
    /// values are kept; any other request goes to the store and joins no fetch. Counts an `MGET` as a read of each key,
    /// unless it is longer than 8 KiB. Sends earlier requests of its connection for its hot keys, which wait or are
    /// held back, before it. If it writes, refuses it if one of its hot keys is written more often than permitted, and
    /// otherwise makes the kept replies of these keys invalid. A write whose keys cannot be parsed counts as one of all
    /// keys of its store.
    fn meet_keys(&mut self, env: &mut Env, envelope: &Envelope, frame: &[u8], now: Timestamp) -> Meeting {
        let is_write = envelope.nature.effect() == Effect::Write;
        let is_of_values = !is_write && value::is_asked_of_several(frame);
        let is_counted = is_of_values && frame.len() <= HOT_COUNTED_BYTES_MAX;
        if self.known == 0 && !is_counted {
            return Meeting::Passes;
        }
        let (connection, database) = (connection_of(env, envelope), envelope.route.database);
        let mut found: Vec<(HotId, Option<Cell>)> = Vec::new();
        let mut places: Vec<u32> = Vec::new();
        let (mut named, mut count) = (Vec::new(), 0);
        let (keys, entries) = (&mut self.keys, &mut self.entries);
        let told = reach::for_each_key(frame, env.settings.request_bytes_max, &mut |key| {
            let hash = hash_of(keys, database, key);
            let id = if is_counted { count_read(keys, (key, hash)) } else { keys.id_of(hash) };
            if let Some(id) = id
                && entry_of(entries, id).is_some_and(|entry| entry.key == key && entry.database == database)
            {
                named.extend(is_counted.then_some(id));
                if !found.iter().any(|(other, _)| *other == id) {
                    found.push((id, is_write.then(|| Cell::of_hash(hash))));
                    places.push(count);
                }
            }
            count += 1;
        });
        if told.is_err() && is_write {
            self.meet_all(env, envelope, now);
            return Meeting::Passes;
        }
        if found.is_empty() {
            return Meeting::Passes;
        }
        if named.len() == count as usize
            && let Some(reply) = self.find_values(env, envelope, &named, now)
        {
            return Meeting::Answered(reply, named.len());
        }
        let limit = self.write_limit().filter(|_| is_write);
        if let Some(limit) = limit {
            for (id, _) in &found {
                if let Some(entry) = entry_of(&mut self.entries, *id)
                    && let Err(retry_after) = entry.may_write(limit, now)
                {
                    let key = entry.key.clone();
                    return Meeting::WrittenTooOften(Box::new(TooOften { key, limit, retry_after }));
                }
            }
        }
        for (id, cell) in &found {
            if let Some(cell) = cell {
                self.settings.versions.begin(*cell);
            }
            self.detach(env, *id, connection, now);
            if let Some(entry) = entry_of(&mut self.entries, *id) {
                entry.last_asker = present_tenant(envelope.asker, &env.quotas).unwrap_or(NOBODY);
                if let Some(limit) = limit {
                    entry.note_write(limit, now);
                }
                entry.tally.writes += u64::from(cell.is_some());
                let access = if cell.is_some() { Access::Write } else { Access::Read };
                entry.handle_request(connection, Way::Own(access));
            }
        }
        let open = if is_of_values {
            let keys = found.iter().zip(places).map(|((id, _), place)| (*id, place));
            Open::Values(Values::new(envelope, keys.collect(), count))
        } else {
            Open::Keys(found.into())
        };
        self.under_way.open(envelope.reply_to, open);
        Meeting::PassesReported
    }

    /// Handles a request that may be about keys of any core (`EXEC`, a script, an unknown command). Changes
    /// the version cell (counter of writes) of each key that it writes, for all cores; if the keys cannot
    /// be read from the request, or it is longer than 256 KiB, the backend's cell.
    ///
    /// Such a request bypasses the kept replies, so a client could see something newer with it. The table
    /// says why the client does not get an older reply from memory afterwards:
    ///
    /// | request | why no older reply is sent after it |
    /// |---|---|
    /// | a read whose replies are kept, by itself; `MGET` | its reply, or each value, is compared with the kept reply to the same request (`compare`, `compare_values`) |
    /// | the same in a transaction, or on a private link | the reply, or `EXEC`'s elements, are compared likewise, from whatever core they were sent (`last_told.rs`) |
    /// | a write that returns the former value: `GETEX`, `GETDEL`, `GETSET`, `SET` with `GET`, a pop | as any write, it makes all kept replies of the key invalid before it is sent |
    /// | a script (`EVAL`, `FCALL`), an unknown command | the same for all keys of its store; only for the keys that it declares, where scripts are trusted |
    /// | a read whose replies are not kept: `SORT_RO`, `EVAL_RO`, `TTL`, a scan, several keys at once | nothing: no request that is answered from memory asks for what it returns |
    ///
    /// So the promise holds for each request by itself: `GET` and `MGET` never return what is older than what
    /// either returned before, nor does `STRLEN` return what is older than an earlier `STRLEN`. A client that
    /// reads a key's value and its length while somebody writes without weir may get one that is up to
    /// `--hot-ttl` older than the other.
    fn meet_unknown(&mut self, env: &mut Env, envelope: &Envelope, frame: &[u8], now: Timestamp) {
        let (protocol, database) = (envelope.route.protocol, envelope.route.database);
        let Some(mut cells) = self.cells_written(env, database, frame) else {
            return self.meet_all(env, envelope, now);
        };
        let read = self.reads_of(env, (protocol, database), frame, &mut cells);
        cells.iter().for_each(|cell| self.settings.versions.begin(*cell));
        self.detach_all(env, envelope, now);
        // Requests that only read count too: later reads of the connection must not get a reply from before
        // them.
        if !cells.is_empty() || !read.is_empty() || self.known > 0 {
            self.under_way
                .open(envelope.reply_to, Open::Anywhere { written: cells.into(), read: read.into() });
        }
    }

    /// Returns the reads in a message whose replies are to be compared with those that other clients have got
    /// ([`Self::compare_read`]); none in shadow mode. Leaves out reads of keys that the message writes, whose version
    /// cells (counters of writes) are `cells`. Beyond 1,024 reads, adds the cells of further ones to `cells`. Sorts
    /// `cells`, and leaves each once.
    fn reads_of(
        &self,
        env: &Env,
        (protocol, database): (Protocol, Database),
        message: &[u8],
        cells: &mut Vec<Cell>,
    ) -> Vec<InnerRead> {
        let mut read: Vec<InnerRead> = Vec::new();
        if self.settings.mode == Mode::On {
            reach::for_each_read(message, env.settings.request_bytes_max, &mut |inner| {
                let hash = hash_of(&self.keys, database, inner.key);
                let cell = Cell::of_hash(hash);
                if read.len() >= INNER_READS_MAX {
                    return cells.push(cell);
                }
                let asked = match inner.part {
                    Some(_) => hash,
                    None => number_of(&self.keys, inner.frame, (protocol, database)),
                };
                read.push(InnerRead { place: (inner.element, inner.part), asked, cell });
            });
        }
        cells.sort_unstable();
        cells.dedup();
        // A key that the message also writes has its cell changed anyway.
        read.retain(|read| cells.binary_search(&read.cell).is_err());
        read
    }

    /// Records that a message may change keys from now on, though it is sent from another core than its keys' home or
    /// on a private link, so that [`Self::meet`] does not handle it. If it may write, changes the version cells
    /// (counters of writes) of all keys that it writes, or of its backend if they are unknown or the message is longer
    /// than 256 KiB. Returns the cells, which the caller passes to [`Self::end_writes`] when the message is answered,
    /// or to [`Self::put_off_writes`] when it is lost; and the reads in the message, which the caller passes to
    /// [`Self::compare_read`] with the reply. No reads are returned for a message that is longer or writes unknown
    /// keys. Both are empty if the handling of hot keys is off.
    pub fn begin_elsewhere(
        &self,
        env: &Env,
        (backend, protocol, database): (BackendId, Protocol, Database),
        (effect, message): (Effect, &[u8]),
    ) -> (Vec<Cell>, Vec<InnerRead>) {
        if self.settings.mode == Mode::Off
            || message.len() > MESSAGE_READ_BYTES_MAX && effect != Effect::Write
        {
            return (Vec::new(), Vec::new());
        }
        let known = if effect == Effect::Write {
            self.cells_written(env, database, message)
        } else {
            Some(Vec::new())
        };
        let (cells, read) = match known {
            Some(mut cells) => {
                let read = self.reads_of(env, (protocol, database), message, &mut cells);
                (cells, read)
            }
            None => (vec![Cell::of_backend(store_of(env, backend))], Vec::new()),
        };
        cells.iter().for_each(|cell| self.settings.versions.begin(*cell));
        (cells, read)
    }

    /// Returns the version cells (counters of writes) of the keys that a message may change, in no order
    /// and some of them twice. `None` if the keys are unknown, or the message is longer than 256 KiB
    /// (`MESSAGE_READ_BYTES_MAX`).
    fn cells_written(&self, env: &Env, database: Database, message: &[u8]) -> Option<Vec<Cell>> {
        if message.len() > MESSAGE_READ_BYTES_MAX {
            return None;
        }
        let trusts = self.settings.scripts == HotScripts::Declared;
        let within = (database, env.settings.request_bytes_max);
        let mut cells = Vec::new();
        let told = reach::for_each_written_key(message, within, trusts, &mut |database, key| {
            cells.push(Cell::of_hash(hash_of(&self.keys, database, key)));
        });
        told.is_ok().then_some(cells)
    }

    /// Records that the writes for which [`Self::begin_elsewhere`] returned these cells (counters of writes) are no
    /// longer in flight: they were answered, or never sent.
    pub fn end_writes(&self, cells: &[Cell]) {
        cells.iter().for_each(|cell| self.settings.versions.end(*cell));
    }

    /// Records that the writes for which [`Self::begin_elsewhere`] returned these cells (counters of writes) may
    /// still be carried out, though their connection is lost: they count as in flight for `--hot-ttl` more.
    pub fn put_off_writes(&mut self, cells: Vec<Cell>, now: Timestamp) {
        if !cells.is_empty() {
            let open = Open::Anywhere { written: cells.into(), read: Box::default() };
            self.under_way.put_off(open, now.after(self.settings.ttl));
        }
    }

    fn meet_all(&mut self, env: &mut Env, envelope: &Envelope, now: Timestamp) {
        let cell = Cell::of_backend(store_of(env, envelope.route.backend));
        self.settings.versions.begin(cell);
        self.detach_all(env, envelope, now);
        self.under_way.open(envelope.reply_to, Open::Cell(cell));
    }

    fn detach_all(&mut self, env: &mut Env, envelope: &Envelope, now: Timestamp) {
        if self.known == 0 {
            return;
        }
        let ids: Vec<HotId> = self.entries.iter().flatten().map(|entry| entry.id).collect();
        let connection = connection_of(env, envelope);
        ids.into_iter().for_each(|id| self.detach(env, id, connection, now));
    }

    /// True if anything waits to be sent for hot keys: fetches (shared reads), requests that no longer wait for a fetch
    /// or are no longer held back, refusals of such requests, and, to other cores, copies of kept replies or reports of
    /// how often copies were used.
    #[inline]
    pub fn has_to_send(&self) -> bool {
        !self.to_send.is_empty()
            || !self.detached.is_empty()
            || !self.refused.is_empty()
            || !self.resuming.is_empty()
            || !self.to_lend.is_empty()
            || !self.to_tell.is_empty()
    }

    /// Returns the next request, with its bytes, that no longer waits for a fetch (shared read of a hot key)
    /// or for other requests and is to be sent before anything else; None if there is none.
    pub fn poll_detached(&mut self) -> Option<(Envelope, Vec<u8>)> {
        self.detached.pop_front()
    }

    /// Returns the next write that was held back behind other requests and is to be refused, and the reason; None if
    /// there is none.
    pub fn poll_refused(&mut self) -> Option<(Envelope, TooOften)> {
        self.refused.pop_front()
    }

    /// Returns the number of writes per second that each hot key may have; None without a limit, and in shadow mode.
    fn write_limit(&self) -> Option<u64> {
        self.settings.write_rate.filter(|_| self.settings.mode == Mode::On)
    }

    /// Returns the next request, with its bytes, that was held back and is to be handled again; None if there
    /// is none.
    pub fn poll_resumed(&mut self) -> Option<(Envelope, Vec<u8>)> {
        while self.resumed.is_empty() {
            let (id, connection) = self.resuming.pop_front()?;
            // The connection may have unanswered requests again; its held request then waits longer.
            if let Some(entry) =
                entry_of(&mut self.entries, id).filter(|entry| entry.is_to_resume(connection))
            {
                let held = entry.take_held(connection);
                self.handle_unheld(&held);
                self.resumed.extend(held);
            }
        }
        self.resumed.pop_front().map(|held| (held.envelope, held.frame))
    }

    /// Returns the envelope (record that goes with a request's bytes) of the next fetch (shared read of a hot
    /// key) to send and the number of requests that it consists of (up to three, with PTTL and HPTTL), and
    /// appends its bytes to `out`. Drops fetches that no read waits for. None if there is nothing to send.
    pub fn poll_fetch(&mut self, env: &Env, out: &mut Vec<u8>, now: Timestamp) -> Option<(Envelope, usize)> {
        loop {
            let id = self.to_send.pop_front()?;
            let Some(flight) = self.flights.get(id) else { continue };
            if flight.is_for_nobody() {
                self.drop_fetch(id);
                continue;
            }
            let entry = entry_of(&mut self.entries, flight.hot);
            // A reply is kept only if no write is in flight, and then the key's expiry must be known.
            let asked_before = entry.as_ref().filter(|entry| {
                entry.warmth == Warmth::Warm && entry.snapshot(&self.settings.versions).is_some()
            });
            flight.lifetime = asked_before.map_or_else(Lifetime::default, |entry| {
                let fields_expire = self.fields.may_expire(env.backend_of(entry.slot), now);
                Lifetime::ask(out, (&entry.key, &flight.frame), fields_expire)
            });
            out.extend_from_slice(&flight.frame);
            let touches = flight.envelope.touches.reported();
            let envelope = Envelope { tier: flight.tier(), touches, ..flight.envelope };
            return Some((envelope, 1 + flight.lifetime.questions()));
        }
    }

    /// Drops a fetch (shared read of a hot key) that is not sent. The next fetch of the same reply, which may have been
    /// waiting for its end, may then be sent.
    fn drop_fetch(&mut self, id: FlightId) {
        let Some(dropped) = self.flights.end(id) else { return };
        let Some(entry) = entry_of(&mut self.entries, dropped.hot) else { return };
        let next = self.flights.latest_of(entry.flights_beside(&dropped), dropped.envelope.route);
        entry.handle_failed(id);
        next.into_iter().for_each(|next| self.let_leave(next));
    }

    /// Records that a fetch (shared read of a hot key) has been put on the connection to the store. If its reply is to
    /// be kept and stores are to report changes, asks the store to report the key's next one. Later requests of the
    /// waiting client connections may go on, except of those with several waiting reads, and except in front of a
    /// cluster.
    fn handle_fetch_sent(&mut self, env: &Env, id: FlightId, at: Timestamp) {
        let Some(flight) = self.flights.get(id).filter(|flight| flight.stage != Stage::Sent) else { return };
        let mut entry = entry_of(&mut self.entries, flight.hot);
        let snapshot = entry.as_ref().map(|entry| entry.look_at(&self.settings.versions));
        let is_quiet = snapshot.is_some_and(|snapshot| snapshot.is_quiet());
        let may_keep = is_quiet
            && flight.lifetime.questions() > 0
            && entry.as_ref().is_some_and(|entry| entry.may_keep(flight, at));
        let registration = match &mut entry {
            Some(entry) if may_keep && self.settings.tracked_ttl.is_some() => {
                register(&mut self.tracking, env, entry, at)
            }
            _ => Registration::Unregistered,
        };
        // A reply that is fetched before the store has confirmed a registration may lack a change of which the
        // store will not tell.
        let is_kept = may_keep && !matches!(registration, Registration::Asked(_));
        flight.registration = registration;
        let asked = number_of(&self.keys, &flight.frame, dialect_of(flight.envelope.route));
        flight.handle_sent(snapshot, self.settings.versions.last_told.look(asked), is_kept, at);
        // A node of a cluster may refuse a fetch and still carry out what came after it, if the slot has come
        // back.
        flight.binds = env.slots.is_some();
        let Some(entry) = entry.filter(|_| !flight.binds) else { return };
        for waiter in &mut flight.waiters {
            let connection = connection_of(env, &waiter.envelope);
            waiter.is_bound = entry.waits_often(connection);
            if waiter.is_bound {
                continue;
            }
            if entry.handle_fetch_sent(connection, id) {
                self.resuming.push_back((flight.hot, connection));
            }
        }
    }

    /// Handles a reply, or an error of weir's in its place, to a request that this core has sent, before it is passed
    /// on: the request is no longer in flight. For an `MGET` that failed because the store is unavailable, returns kept
    /// values to send instead, if the tenant accepts expired replies; else None.
    #[inline]
    pub fn handle_reply(
        &mut self,
        env: &mut Env,
        to: ReplyTo,
        outcome: Outcome,
        reply: &[u8],
        now: Timestamp,
    ) -> Option<Bytes> {
        if self.under_way.may_have(to) { self.close(env, to, outcome, reply, now) } else { None }
    }

    #[inline(never)]
    fn close(
        &mut self,
        env: &mut Env,
        to: ReplyTo,
        outcome: Outcome,
        reply: &[u8],
        now: Timestamp,
    ) -> Option<Bytes> {
        if let Some(is_same) = self.under_way.compared(to, &self.settings.versions, reply) {
            let counter = if is_same { Counter::HotMatches } else { Counter::HotMismatches };
            env.counters.add(counter, 1);
        }
        let (open, was_sent) = self.under_way.close(to)?;
        self.note_cost(env, &open, outcome);
        let is_away = says_away(reply);
        let connection = env.pieces.connection(to);
        let mut instead = None;
        match (&open, outcome) {
            (Open::Values(values), _) if is_away => {
                instead = self.spare_values(env, (connection, values), now);
            }
            (Open::Read(id, asked), Outcome::Served { .. }) if !is_away => {
                self.compare(env, (*id, *asked), reply, now);
            }
            (Open::Values(values), Outcome::Served { .. }) => self.compare_values(env, values, reply, now),
            (Open::Anywhere { read, .. }, Outcome::Served { .. }) => self.compare_read(read, reply),
            _ => {}
        }
        open.for_each_key(|id| {
            if let Some(entry) = entry_of(&mut self.entries, id)
                && entry.handle_answered(connection, was_sent)
            {
                self.resuming.push_back((id, connection));
            }
        });
        if outcome == Outcome::Lost {
            // The write may still be carried out, so its key counts as being written for `ttl` more.
            self.under_way.handle_lost(to, open, now.after(self.settings.ttl));
        } else if let (Open::Write(_, cell), true) = (&open, was_not_carried_out(outcome, reply)) {
            // Otherwise writes that fail while the store is away would make the kept replies invalid for no
            // reason.
            self.settings.versions.take_back(*cell);
        } else {
            open.for_each_cell(|cell| self.settings.versions.end(cell));
        }
        instead
    }

    /// Adds the cost of a reply, in request units, to the counts of the key and its slot, if the request
    /// (`open`) was for one key.
    fn note_cost(&mut self, env: &Env, open: &Open, outcome: Outcome) {
        match open {
            Open::Costly(slot, hash) => self.note_cost_of_key(env, (*slot, *hash), outcome),
            Open::Read(id, _) | Open::Write(id, _) => self.note_cost_of_hot(env, *id, outcome),
            Open::Keys(_) | Open::Values(_) | Open::Anywhere { .. } | Open::Cell(_) => {}
        }
    }

    fn note_cost_of_hot(&mut self, env: &Env, id: HotId, outcome: Outcome) {
        if let Some(entry) = entry_of(&mut self.entries, id) {
            let place = (entry.slot, entry.hash);
            self.note_cost_of_key(env, place, outcome);
        }
    }

    fn note_cost_of_key(&mut self, env: &Env, (slot, hash): (u16, u64), outcome: Outcome) {
        let Outcome::Served { bytes, rows, .. } = outcome else { return };
        let cost = env.settings.admission.weights.of_reply(u64::from(bytes), u64::from(rows));
        self.keys.note_cost(slot, cost);
        self.keys.note_key_cost(hash, cost);
    }

    /// Handles a note (message) about a request that this core has sent: it was put on its connection; or it is
    /// answered before its store replies, which may still carry it out; or it is over at the store, too (the store has
    /// replied, or its connection is lost). Ignores all other notes.
    pub fn handle_note(&mut self, env: &Env, to: ReplyTo, note: Note) {
        match note {
            Note::Sent(at) => match to.flight_id() {
                Some(flight) => self.handle_fetch_sent(env, flight, at),
                None => self.handle_own_sent(env, to),
            },
            Note::Unsettled => self.under_way.abandon(to),
            Note::Settled { is_certain } => match self.under_way.settle(to, is_certain) {
                Some((open, true)) => open.for_each_cell(|cell| self.settings.versions.end(cell)),
                Some((open, false)) => {
                    self.under_way.put_off(open, self.turned_at.after(self.settings.ttl));
                }
                None => {}
            },
            Note::Long | Note::Eased | Note::NotPrimary | Note::PriceFollows | Note::LatePrice(_) => {}
        }
    }

    /// Records that a request for hot keys, which shares no fetch, has been put on the connection to the
    /// store, so that later requests of its client connection may go on. Does nothing where weir stands in
    /// front of a cluster, since the request may have to be sent again.
    fn handle_own_sent(&mut self, env: &Env, to: ReplyTo) {
        if env.slots.is_some() {
            return;
        }
        let Self { under_way, entries, resuming, .. } = self;
        let Some(open) = under_way.handle_sent(to) else { return };
        let connection = env.pieces.connection(to);
        open.for_each_key(|id| {
            if let Some(entry) = entry_of(entries, id)
                && entry.handle_own_sent(connection)
            {
                resuming.push_back((id, connection));
            }
        });
    }

    /// Handles the reply to a fetch (shared read of a hot key), or its failure, after which it may be sent once more.
    /// Returns the reads that get this reply or error now; None for the reply to a command sent before the fetch
    /// (`PTTL`, `HPTTL`), and for an unknown fetch.
    pub fn land(
        &mut self,
        env: &mut Env,
        to: ReplyTo,
        outcome: Outcome,
        reply: &[u8],
        now: Timestamp,
    ) -> Option<Landed> {
        let id = to.flight_id()?;
        if to.is_ahead() {
            let flight = self.flights.get(id)?;
            if flight.lifetime.handle_answer(outcome, reply)
                && let Some(entry) = entry_of(&mut self.entries, flight.hot)
            {
                self.fields.handle_never_expire(env.backend_of(entry.slot), now);
            }
            return None;
        }
        let is_away = says_away(reply);
        let was_served = matches!(outcome, Outcome::Served { .. });
        let hot = self.flights.get(id)?.hot;
        let payer = self.flights.take_payer(id);
        self.note_cost_of_hot(env, hot, outcome);
        let spared = if is_away { self.spare(env, (id, hot), now) } else { Default::default() };
        if !was_served && let Some(told) = self.fetch_again(env, (id, hot)) {
            return Some(Landed::new(told, outcome, payer).sparing(spared));
        }
        let mut flight = self.flights.end(id)?;
        let asked = number_of(&self.keys, &flight.frame, dialect_of(flight.envelope.route));
        if was_served && !is_away {
            self.compare(env, (hot, asked), reply, now);
        }
        // A kept reply stays while the store is away, if any tenant accepts expired replies.
        if let Some(entry) = entry_of(&mut self.entries, hot)
            && !(is_away && self.stale_max > Duration::ZERO)
        {
            entry.forget(&flight);
        }
        if was_served && flight.has_ended(now) {
            self.hold_again(env, (id, &mut flight));
        }
        if was_served {
            let output_max = env.settings.output_bytes_max;
            self.send_apart(env, (id, &mut flight), output_max / OUTPUT_PART / reply.len().max(1));
        }
        let fits = self.fits(reply.len(), now);
        if let Some(entry) = entry_of(&mut self.entries, hot) {
            // The store has begun to tell of changes since the fetch was sent, perhaps after one that the reply
            // lacks.
            let tracks = self.tracking.tracks(env.backend_of(entry.slot));
            flight.is_kept &= !tracks || entry.registration.covers(flight.registration);
            for waiter in &flight.waiters {
                let connection = connection_of(env, &waiter.envelope);
                if entry.handle_landed(connection, id, flight.is_bound(waiter)) {
                    self.resuming.push_back((hot, connection));
                }
            }
            let next = self.flights.latest_of(entry.flights_beside(&flight), flight.envelope.route);
            if was_served && !is_away {
                let reply = (reply, told(&self.keys, asked, reply));
                let counter = entry.handle_fetched(id, &flight, reply, (&self.settings, fits), now);
                env.counters.add(counter, 1);
                for holder in entry.holders() {
                    let copies = entry.copies(env.settings.id, Some(&flight));
                    self.to_lend.extend(copies.map(|copy| (*holder, copy)));
                }
            } else {
                entry.handle_failed(id);
            }
            // The next fetch of the reply may have been waiting for this one's end.
            next.into_iter().for_each(|next| self.let_leave(next));
        }
        Some(Landed::new(flight.waiters, outcome, payer).sparing(spared))
    }

    /// Sends a failed fetch (shared read of a hot key) once more, for the waiting reads except the first whose client
    /// connection has sent nothing for the key since. Returns the other reads, which get the error; None if the fetch
    /// is not sent again. `hot` is the key.
    fn fetch_again(&mut self, env: &Env, (id, hot): (FlightId, HotId)) -> Option<Vec<Waiter>> {
        let entry = entry_of(&mut self.entries, hot)?;
        let may_wait = |waiter: &Envelope| entry.is_latest(connection_of(env, waiter), id);
        let told = self.flights.begin_again(id, may_wait)?;
        for waiter in &told {
            let connection = connection_of(env, &waiter.envelope);
            if entry.handle_landed(connection, id, false) {
                self.resuming.push_back((hot, connection));
            }
        }
        let mut bound: HashMap<u64, u32> = HashMap::new();
        for waiter in &self.flights.get(id)?.waiters {
            *bound.entry(connection_of(env, &waiter.envelope)).or_default() += 1;
        }
        for waiter in &told {
            bound.entry(connection_of(env, &waiter.envelope)).or_default();
        }
        for (connection, reads) in bound {
            if entry.is_latest(connection, id) && entry.bind(connection, id, reads) {
                self.resuming.push_back((hot, connection));
            }
        }
        self.to_send.push_back(id);
        Some(told)
    }

    /// Handles a fetch (shared read of a hot key) that failed because the store is unavailable. Takes out the waiting
    /// reads whose tenant accepts a reply as old as the kept one (`stale_on_error`), and returns them with that reply.
    /// Returns no reads if no reply is kept. `hot` is the key.
    fn spare(
        &mut self,
        env: &mut Env,
        (id, hot): (FlightId, HotId),
        now: Timestamp,
    ) -> (Vec<Envelope>, Bytes) {
        let Self { entries, flights, settings, resuming, .. } = self;
        let Some(entry) = entry_of(entries, hot) else { return Default::default() };
        let Some(flight) = flights.get(id) else { return Default::default() };
        let Some(stale) = entry.stale(flight) else { return Default::default() };
        let reply = value::as_asked(&flight.frame, stale.reply());
        let quotas = &env.quotas;
        let is_for = |waiter: &Envelope| stale.is_for(longer(waiter.asker, quotas), &settings.versions, now);
        let bound: HashSet<ReplyTo> = flight.bound().map(|waiter| waiter.envelope.reply_to).collect();
        let spared = flights.spare(id, is_for);
        if !spared.is_empty() {
            for waiter in &spared {
                let connection = connection_of(env, &waiter.envelope);
                if entry.handle_landed(connection, id, bound.contains(&waiter.envelope.reply_to)) {
                    resuming.push_back((hot, connection));
                }
            }
            entry.handle_stale(spared.len(), now);
            env.counters.add(Counter::HotStaleOnError, spared.len() as u64);
        }
        (spared.into_iter().map(|waiter| waiter.envelope).collect(), reply)
    }

    /// True if this core has room to keep a reply of this size in bytes. To make room, drops expired replies.
    fn fits(&mut self, bytes: usize, now: Timestamp) -> bool {
        let has_room = |(kept, kept_bytes): (usize, usize)| {
            kept < self.settings.entries_max && kept_bytes + bytes <= self.settings.bytes_max
        };
        if has_room(self.kept()) {
            return true;
        }
        self.entries.iter_mut().flatten().for_each(|entry| entry.drop_old(now));
        has_room(self.kept())
    }

    /// Compares a reply that the store has just sent with the kept reply (one held in memory) to the same request
    /// (`asked` is its hash), and drops the kept one if they differ. If that was still valid, the key was written
    /// without weir: the key's cell (counter of writes) changes, so that no core sends the older reply to a client that
    /// has seen this one. Does nothing in shadow mode.
    fn compare(&mut self, env: &mut Env, (id, asked): (HotId, u64), reply: &[u8], now: Timestamp) {
        let Self { entries, keys, settings, .. } = self;
        let Some(entry) = entry_of(entries, id).filter(|_| settings.mode == Mode::On) else { return };
        let database = entry.database;
        let is_asked = |frame: &[u8], protocol| number_of(keys, frame, (protocol, database)) == asked;
        if entry.forget_differing(is_asked, reply, &settings.versions, now) {
            settings.versions.pass(Cell::of_hash(entry.hash));
            env.counters.add(Counter::HotWrittenPast, 1);
        }
    }

    /// Compares the store's `reply` to reads, to one by itself or to those within a transaction, with the last replies
    /// that any core kept or saw, wherever the keys' homes are. Where one differs, makes the kept replies of the key
    /// invalid on all cores. Does nothing for an error, for a transaction that was aborted, or where no reply came.
    pub fn compare_read(&mut self, read: &[InnerRead], reply: &[u8]) {
        let is_alone = read.first().is_some_and(|read| read.place.0.is_none());
        if is_alone && !value::is_error(reply) {
            self.compare_parts(&mut read.iter().peekable(), None, reply);
        }
        let Some(told_all) = elements(reply).filter(|_| !is_alone && !read.is_empty()) else { return };
        let mut read = read.iter().peekable();
        for (place, element) in told_all.enumerate() {
            self.compare_parts(&mut read, Some(place as u32), element);
            if read.peek().is_none() {
                return;
            }
        }
    }

    /// Compares the `reply` to one request, the one with index `place` in a transaction (None: it is in none), with the
    /// last replies to the reads in it, of which an `MGET` has one for each key. Where one differs, makes the kept
    /// replies of its key invalid. Takes these reads off the front of `read`.
    fn compare_parts<'a>(
        &self,
        read: &mut Peekable<impl Iterator<Item = &'a InnerRead>>,
        place: Option<u32>,
        reply: &[u8],
    ) {
        let mut parts = elements(reply).map(Iterator::enumerate);
        while let Some(read) = read.next_if(|read| read.place.0 == place) {
            let told_one = match (read.place.1, &mut parts) {
                (None, _) => Some(reply),
                (Some(part), Some(parts)) => {
                    parts.find(|(place, _)| *place == part as usize).map(|(_, told)| told)
                }
                // The element should be an array of values, but is an error.
                (Some(_), None) => None,
            };
            let Some(told_one) = told_one else { continue };
            let Versions { last_told, .. } = &*self.settings.versions;
            if !last_told.pass(told(&self.keys, read.asked, told_one)) {
                self.settings.versions.pass(read.cell);
            }
        }
    }

    /// Returns the number of kept replies (those held in memory) on this core, and their bytes.
    fn kept(&self) -> (usize, usize) {
        let entries = self.entries.iter().flatten().map(|entry| entry.kept());
        entries.fold((0, 0), |(all, all_bytes), (kept, bytes)| (all + kept, all_bytes + bytes))
    }

    /// Holds back, to handle them again, the reads that joined the fetch (shared read of a hot key) `flight` after it
    /// was sent: its key, or a field, has expired since then, perhaps before they came. `id` is the fetch's id.
    fn hold_again(&mut self, env: &Env, (id, flight): (FlightId, &mut Flight)) {
        let Some(entry) = entry_of(&mut self.entries, flight.hot) else { return };
        let mut held: HashMap<u64, Vec<Held>> = HashMap::new();
        for Waiter { envelope, since, .. } in flight.waiters.extract_if(.., |waiter| waiter.came_late) {
            let connection = connection_of(env, &envelope);
            entry.handle_landed(connection, id, true);
            self.held += 1;
            self.held_bytes += flight.frame.len();
            let one = Held { envelope, frame: flight.frame.clone(), since };
            self.held_until = self.held_until.min(one.answered_by());
            held.entry(connection).or_default().push(one);
        }
        for (connection, held) in held {
            entry.hold_first(connection, held.into_iter());
            self.resuming.push_back((flight.hot, connection));
        }
    }

    /// Limits the replies of the fetch (shared read of a hot key) `flight` that one client connection gets at
    /// once to `replies_max`, at least one, because more might exceed its output limit. Its further reads are
    /// sent on their own, before any later request of the connection.
    fn send_apart(&mut self, env: &mut Env, (id, flight): (FlightId, &mut Flight), replies_max: usize) {
        if flight.waiters.len() <= replies_max {
            return;
        }
        let mut replies: HashMap<u64, usize> = HashMap::new();
        let is_beyond = |waiter: &mut Waiter| {
            let replies = replies.entry(connection_of(env, &waiter.envelope)).or_default();
            *replies += 1;
            *replies > replies_max.max(1)
        };
        let apart: Vec<Waiter> = flight.waiters.extract_if(.., is_beyond).collect();
        let hot = flight.hot;
        for waiter in &apart {
            if let Some(entry) = entry_of(&mut self.entries, hot) {
                let connection = connection_of(env, &waiter.envelope);
                if entry.handle_landed(connection, id, flight.is_bound(waiter)) {
                    self.resuming.push_back((hot, connection));
                }
            }
        }
        for Waiter { envelope, .. } in apart {
            // The fetch has ended, so nothing is held back behind it any more.
            let connection = connection_of(env, &envelope);
            if let Some(entry) = entry_of(&mut self.entries, hot) {
                entry.bind(connection, id, 0);
            }
            env.counters.add(Counter::HotBypassedLarge, 1);
            let open = self.read(hot, &envelope, &flight.frame);
            self.handle_passed(connection, &envelope, (hot, open));
            self.detached.push_back((envelope, flight.frame.clone()));
        }
    }

    /// Takes requests whose deadline passed while they waited for a fetch (shared read of a hot key) or were
    /// held back. Returns each with the reason for its refusal, and true if it is charged for its fetch all the
    /// same.
    pub fn take_late(&mut self, env: &Env, now: Timestamp) -> Vec<(Envelope, NotSent, bool)> {
        let mut late = Vec::new();
        for Late { envelope, hot, flight, is_bound, stage, waited, pays } in self.flights.take_late(now) {
            let connection = connection_of(env, &envelope);
            if let Some(entry) = entry_of(&mut self.entries, hot)
                && entry.handle_landed(connection, flight, is_bound)
            {
                self.resuming.push_back((hot, connection));
            }
            late.push((envelope, NotSent::TooLate(stage, waited), pays));
        }
        if now >= self.held_until {
            let obeys_deadlines = env.settings.overload.shed == Mode::On;
            self.held_until = Timestamp::MAX;
            let entries = self.entries.iter_mut().flatten().filter(|_| obeys_deadlines);
            let mut held = Vec::new();
            for entry in entries {
                held.extend(entry.take_late(now));
                self.held_until = self.held_until.min(entry.held_until());
            }
            self.handle_unheld(&held);
            let why = |held: &Held| NotSent::TooLate(refusal::Stage::Queue, now.since(held.since));
            late.extend(held.into_iter().map(|held| (held.envelope, why(&held), false)));
        }
        late
    }

    /// Records the time at which the present turn (pass of the shard's loop) ends.
    #[inline]
    pub fn handle_time(&mut self, now: Timestamp) {
        self.turned_at = now;
    }

    /// True if [`Self::handle_turn_end`] and the functions that send and refuse requests have anything to do for hot
    /// keys at this time. In most turns (passes of the shard's loop) they have not.
    #[inline]
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.is_count_due(now)
            || self.is_notice_due(now)
            || self.has_to_send()
            || self.tracking.has_tasks()
            || self.keys.is_due(now)
            || self.poll_deadline().is_some_and(|at| at <= now)
    }

    /// Ends a turn (pass of the shard's loop): reports how many requests copies answered, adds keys that have become
    /// hot and drops others, finds out for which hot keys no unknown request is in flight any more, and stops counting
    /// writes as in flight that were lost long enough ago. `is_sent` says whether a request for a backend and slot that
    /// was sent up to a time is still unanswered.
    pub fn handle_turn_end(
        &mut self,
        env: &mut Env,
        is_sent: impl Fn((BackendId, u16), Timestamp) -> bool,
        now: Timestamp,
    ) {
        let to_tell = &mut self.to_tell;
        self.copies.handle_turn_end(env.settings.id, now, &mut |home, hits| to_tell.push_back((home, hits)));
        if self.is_count_due(now) {
            self.count_waiting(now);
        }
        let mut forgotten = Vec::new();
        let Self {
            keys,
            entries,
            known,
            warming,
            unnoticed,
            noticed_at,
            promotions,
            searched_for,
            settings,
            ..
        } = self;
        let hash_alone = keys.hasher();
        keys.tick(now, &mut |event| match event {
            Event::Promoted { id, hash, slot, key } => {
                env.counters.add(Counter::HotPromoted, 1);
                // Keys with a name too long to be stored whole cannot be told apart.
                let database = database_of(hash_alone(key.bytes()), hash);
                if let Some(database) = database.filter(|_| key.is_whole()) {
                    let backend = store_of(env, env.settings.topology.backend_of(slot));
                    let index = usize::from(id.index);
                    if entries.len() <= index {
                        entries.resize_with(index + 1, || None);
                    }
                    *promotions += 1;
                    let (named, place) = ((key.bytes(), database), (slot, hash));
                    entries[index] =
                        Some(Box::new(Entry::new(id, named, place, (backend, *promotions), now)));
                    if settings.mode == Mode::On {
                        settings.slots.add(slot);
                    }
                    *known += 1;
                    *warming += 1;
                    *unnoticed += 1;
                    // An unfinished search takes its time, however many keys become hot meanwhile.
                    if searched_for.is_none() {
                        *noticed_at = now.before(NOTICES_APART);
                    }
                }
            }
            Event::Demoted { id } => {
                env.counters.add(Counter::HotDemoted, 1);
                let place = entries.get_mut(usize::from(id.index));
                if let Some(entry) = place.and_then(|place| place.take_if(|entry| entry.id == id)) {
                    if settings.mode == Mode::On {
                        settings.slots.remove(entry.slot);
                    }
                    *known -= 1;
                    *warming -= usize::from(entry.warmth != Warmth::Warm);
                    *unnoticed -= usize::from(entry.warmth == Warmth::Queued);
                    forgotten.push(entry);
                }
            }
        });
        forgotten.into_iter().for_each(|entry| self.let_go(env, entry));
        if self.warming > 0 && now.since(self.warmed_at) >= LOOKS_APART {
            self.warmed_at = now;
            self.warm_up(is_sent);
        }
        while let Some(open) = self.under_way.take_due(now) {
            open.for_each_cell(|cell| self.settings.versions.end(cell));
        }
        if self.settings.tracked_ttl.is_some() {
            self.look_after_trackers(env, now);
        }
    }

    fn look_after_trackers(&mut self, env: &mut Env, now: Timestamp) {
        if self.tracking.poll_deadline().is_none_or(|at| at > now) {
            return;
        }
        let Self { entries, tracking, .. } = self;
        let of = |entry: &Entry, backend| env.backend_of(entry.slot) == backend;
        let has_hot = |backend| entries.iter().flatten().any(|entry| of(entry, backend));
        let is_needed =
            |backend| entries.iter().flatten().any(|entry| entry.is_registered() && of(entry, backend));
        for backend in tracking.look_after((has_hot, is_needed), now) {
            env.counters.add(Counter::HotTrackersSilent, 1);
            self.unregister(env, backend, now);
        }
    }

    /// Handles a store's reply to `CLIENT TRACKING`: `tracks` says whether it reports changes of registered keys from
    /// now on, or cannot. If it does, kept replies of its keys, which were read without such reports, expire now. If it
    /// cannot, it is not asked again for a minute.
    pub fn handle_tracker_opened(&mut self, env: &Env, backend: BackendId, tracks: bool, now: Timestamp) {
        if tracks {
            self.tracking.handle_tracks(backend, now);
            self.end_kept(env, backend, now);
        } else {
            self.tracking.handle_cannot_track(backend, now);
        }
    }

    /// Handles a store's reply to the registration of a key, or to a PING, on its tracker (the connection on
    /// which it reports changes of keys); `is_error` if it refuses.
    pub fn handle_tracker_answer(&mut self, backend: BackendId, is_error: bool, now: Timestamp) {
        let Some((id, number)) = self.tracking.handle_answer(backend, now) else { return };
        if let Some(entry) = entry_of(&mut self.entries, id)
            && entry.registration == Registration::Asked(number)
        {
            entry.registration = if is_error {
                Registration::Refused(now.after(REFUSED))
            } else {
                Registration::Registered(number)
            };
        }
    }

    /// Handles a store's invalidation message: replies of the changed keys that were read before are no
    /// longer sent from memory, on any core. A message that names no keys is about all keys of the store.
    /// Ignores messages of other kinds.
    pub fn handle_changes(&mut self, env: &mut Env, backend: BackendId, message: &[u8], now: Timestamp) {
        self.tracking.handle_message(backend, now);
        let mut parts = pushed(message).into_iter().flatten();
        if parts.next().and_then(text) != Some(b"invalidate") {
            return;
        }
        let Some(keys) = parts.next().and_then(elements) else {
            return self.handle_change_of_all(env, backend);
        };
        for key in keys.filter_map(text) {
            // The store does not say in which database the key is.
            for entry in self.entries.iter_mut().flatten().filter(|entry| entry.key == key) {
                entry.registration = Registration::Unregistered;
                let under_way = entry.flights().filter(|id| self.flights.is_to_be_kept(*id)).count();
                env.counters.add(Counter::HotPoisoned, under_way as u64);
                self.settings.versions.pass(Cell::of_hash(entry.hash));
                env.counters.add(Counter::HotChanges, 1);
            }
        }
    }

    fn handle_change_of_all(&mut self, env: &mut Env, backend: BackendId) {
        let own = self.entries.iter().flatten().filter(|entry| env.backend_of(entry.slot) == backend);
        let under_way = own.flat_map(|entry| entry.flights()).filter(|id| self.flights.is_to_be_kept(*id));
        let under_way = under_way.count();
        env.counters.add(Counter::HotPoisoned, under_way as u64);
        self.forget_registrations(env, backend);
        self.settings.versions.pass(Cell::of_backend(store_of(env, backend)));
        env.counters.add(Counter::HotChangesOfAll, 1);
    }

    fn forget_registrations(&mut self, env: &Env, backend: BackendId) {
        let own = self.entries.iter_mut().flatten().filter(|entry| env.backend_of(entry.slot) == backend);
        own.for_each(|entry| entry.registration = Registration::Unregistered);
    }

    /// Handles the loss of a tracker (the connection on which a store reports changes of keys), or a failed attempt to
    /// open it. If the store reported changes on it, all kept replies of the store's keys expire now.
    pub fn handle_tracker_lost(&mut self, env: &mut Env, backend: BackendId, now: Timestamp) {
        let tracked = self.tracking.tracks(backend);
        self.tracking.handle_lost(backend, now);
        self.fields.forget(backend);
        if tracked {
            env.counters.add(Counter::HotTrackersLost, 1);
            self.unregister(env, backend, now);
        }
    }

    /// Marks a store's keys as not registered for reports of changes (`CLIENT TRACKING`), and lets their kept replies
    /// (those held in memory) expire now.
    fn unregister(&mut self, env: &Env, backend: BackendId, now: Timestamp) {
        self.forget_registrations(env, backend);
        self.end_kept(env, backend, now);
    }

    /// Lets the kept replies (those held in memory) of a store's keys expire now, on all cores. They stay for
    /// tenants that accept expired replies while the store is unavailable.
    fn end_kept(&mut self, env: &Env, backend: BackendId, now: Timestamp) {
        let Self { entries, to_lend, settings, .. } = self;
        for entry in entries.iter_mut().flatten().filter(|entry| env.backend_of(entry.slot) == backend) {
            if entry.end_kept(&settings.versions, now) {
                for holder in entry.holders() {
                    to_lend.extend(entry.copies(env.settings.id, None).map(|copy| (*holder, copy)));
                }
            }
        }
    }

    /// Returns the next task about a tracker (the connection on which a store reports changes of keys); None
    /// if there is none.
    pub fn poll_task(&mut self) -> Option<Task> {
        self.tracking.poll_task()
    }

    /// Drops the state of a key that is no longer hot, and makes copies of its replies on other cores invalid. The
    /// requests for it that are held back, or wait for a fetch (shared read of the key) which holds back later ones,
    /// are sent on their own.
    fn let_go(&mut self, env: &Env, mut entry: Box<Entry>) {
        // Later writes of the key go unnoticed, so copies on other cores become invalid now.
        self.settings.versions.pass(Cell::of_hash(entry.hash));
        for connection in entry.waiting() {
            if let Some(flight) = entry.bound(connection) {
                let left = self.flights.leave(flight, |waiter| connection_of(env, waiter) == connection);
                self.detached.extend(left);
            }
            for Held { envelope, frame, .. } in entry.take_held(connection) {
                self.held -= 1;
                self.held_bytes -= frame.len();
                if envelope.nature.effect() == Effect::Write {
                    let cell = Cell::of_hash(entry.hash);
                    self.settings.versions.begin(cell);
                    self.under_way.open(envelope.reply_to, Open::Write(entry.id, cell));
                }
                self.detached.push_back((envelope, frame));
            }
        }
        for flight in entry.flights() {
            if self.flights.get(flight).is_some_and(|flight| flight.stage == Stage::Gathering) {
                self.flights.end(flight);
            }
        }
    }

    /// True if reads that wait are to be counted as further requests for their keys now, as is done every
    /// 50 ms if a tenant accepts expired replies.
    fn is_count_due(&self, now: Timestamp) -> bool {
        self.stale_max > Duration::ZERO
            && self.flights.len() + self.held > 0
            && now.since(self.counted_at) >= ASKS_AGAIN
    }

    /// Counts requests that have waited for 50 ms or more, for a fetch or held back, as further reads of their keys, so
    /// that the keys stay hot while their store does not reply. Their clients send no others meanwhile, and kept
    /// replies (those held in memory) of the keys may be needed soon.
    fn count_waiting(&mut self, now: Timestamp) {
        self.counted_at = now;
        for (hot, waiting) in self.flights.slow(now.before(ASKS_AGAIN)) {
            self.keys.note_many(hot, waiting as u64);
        }
        for entry in self.entries.iter().flatten() {
            self.keys.note_many(entry.id, entry.held_since(now.before(ASKS_AGAIN)) as u64);
        }
    }

    /// Marks keys as warm once every request that was sent before they became hot is answered. No reply of
    /// theirs is kept until then. `is_sent` says whether a request for a backend and slot that was sent up
    /// to a time is unanswered.
    fn warm_up(&mut self, is_sent: impl Fn((BackendId, u16), Timestamp) -> bool) {
        for entry in self.entries.iter_mut().flatten() {
            if let Warmth::Sent { until } = entry.warmth
                && !is_sent((entry.backend, entry.slot), until)
            {
                entry.warmth = Warmth::Warm;
                self.warming -= 1;
            }
        }
    }

    /// Returns the time by which [`HotKeyStage::handle_turn_end`] is to be called, for the next thing that
    /// falls due for hot keys; None if nothing does.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let warming = (self.warming > 0).then(|| self.warmed_at.after(LOOKS_APART));
        if !self.is_on() {
            return None;
        }
        let copies = self.copies.due();
        let held = Some(self.held_until).filter(|until| *until != Timestamp::MAX);
        let trackers = self.tracking.poll_deadline();
        Timestamp::earliest([
            self.keys.wake_at(),
            self.under_way.due(),
            self.flights.late_at(),
            copies,
            warming,
            held,
            trackers,
        ])
    }

    /// Handles a change of slot owners in a cluster: makes all kept replies (those held in memory) for keys
    /// in slots that `has_changed` selects invalid, because the new owner may lack writes that the former
    /// one had.
    pub fn handle_owners(&mut self, has_changed: impl Fn(u16) -> bool) {
        for entry in self.entries.iter_mut().flatten().filter(|entry| has_changed(entry.slot)) {
            entry.registration = Registration::Unregistered;
            self.settings.versions.pass(Cell::of_hash(entry.hash));
        }
    }

    /// Handles new quotas, with which tenants get new ids, so the last asker of each key is forgotten, and with which
    /// they may accept expired replies for another time.
    pub fn handle_quotas(&mut self, quotas: &Quotas) {
        self.stale_max = quotas.stale_on_error_max();
        self.entries.iter_mut().flatten().for_each(|entry| entry.last_asker = NOBODY);
    }

    /// Returns a report on each key of this core that is hot or whose requests cost much.
    pub fn keys(&self, quotas: &Quotas) -> Vec<HotKey> {
        let hot = self.keys.hot();
        let others = self.keys.expensive().filter(|report| report.id.is_none());
        hot.chain(others).map(|report| self.told(&report, quotas)).collect()
    }

    fn told(&self, report: &Report<'_>, quotas: &Quotas) -> HotKey {
        let place = report.id.and_then(|id| self.entries.get(usize::from(id.index)));
        let entry = place.and_then(|place| place.as_deref()).filter(|entry| Some(entry.id) == report.id);
        let tenant =
            entry.map(|entry| entry.last_asker).filter(|tenant| usize::from(tenant.0) < quotas.len());
        let tally = entry.map(|entry| entry.tally).unwrap_or_default();
        HotKey {
            key: report.key.bytes().to_vec(),
            length: report.key.length(),
            slot: report.slot,
            database: database_of(self.keys.hash(report.key.bytes()), report.hash).unwrap_or_default(),
            tenant: tenant.map(|tenant| quotas.tenant(tenant).name.clone()),
            reads: report.reads_per_second,
            writes: report.writes_per_second,
            elsewhere: report.elsewhere_per_second,
            request_units: report.ru_per_second,
            error: report.error_per_second,
            share: report.share,
            hot_for: report.since.map(|since| self.turned_at.since(since)),
            hit_ratio: tally.hits as f64 / tally.all_reads.max(1) as f64,
            state: entry.map_or("counted", |entry| entry.state(self.turned_at)),
            copies: entry.map_or(0, |entry| entry.holders().len()),
            is_tracked: entry.is_some_and(Entry::is_registered),
        }
    }

    /// Returns a histogram of the ages of replies that were sent from memory: each age is the time since the
    /// store was asked.
    pub fn ages(&self) -> Durations {
        self.ages.told()
    }

    fn tracking_figures(&self, env: &Env) -> Vec<TrackingFigures> {
        let states = self.tracking.states();
        let mut figures: Vec<TrackingFigures> =
            states.map(|tracks| TrackingFigures { trackers: usize::from(tracks), tracked: 0 }).collect();
        for entry in self.entries.iter().flatten().filter(|entry| entry.is_registered()) {
            if let Some(own) = figures.get_mut(usize::from(env.backend_of(entry.slot).0)) {
                own.tracked += 1;
            }
        }
        figures
    }

    /// Returns figures of this core for reports: numbers of hot keys, kept replies (those held in memory), fetches,
    /// waiting requests and the like.
    pub fn figures(&self, env: &Env) -> HotFigures {
        let (kept, kept_bytes) = self.kept();
        HotFigures {
            keys: self.keys.hot().count(),
            kept,
            kept_bytes,
            copies: self.copies.len(),
            flights: self.flights.len(),
            waiters: self.flights.waiters() + self.held + self.resumed.len(),
            writes_under_way: self.under_way.len(),
            examined: self.examined,
            tracking: self.tracking_figures(env),
        }
    }
}

/// Figures of one core on one store that is asked to report changes of hot keys (CLIENT TRACKING).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrackingFigures {
    /// Number of connections of the core on which the store reports changes of keys: 0 or 1.
    pub trackers: usize,
    /// Number of hot keys whose next change the store will report.
    pub tracked: usize,
}

/// A report on a key that is hot or whose requests cost much.
#[derive(Clone, Debug, PartialEq)]
pub struct HotKey {
    /// First bytes of the key; the whole key if `length` is at most the length of this field.
    pub key: Vec<u8>,
    /// The length of the key, in bytes.
    pub length: usize,
    /// The key's hash slot.
    pub slot: u16,
    /// The database that has the key; the first one if the key is too long to be stored whole.
    pub database: Database,
    /// The tenant whose request for the key came last; `None` if unknown.
    pub tenant: Option<String>,
    /// Reads per second, over about the last second, including those in `elsewhere`.
    pub reads: f64,
    /// Writes per second through weir, over about the last second.
    pub writes: f64,
    /// Reads per second that other cores answered from copies of this core's kept replies, over about the last second.
    /// Where a tenant accepts expired replies, reads that wait for a store which does not reply count here once every
    /// 50 ms.
    pub elsewhere: f64,
    /// Request units per second that requests for the key cost, over about the last second, as far as their replies
    /// show it.
    pub request_units: f64,
    /// Maximum number of requests per second, reads and writes together, that may be missing from `reads` and
    /// `writes`: those from before the key was counted.
    pub error: f64,
    /// The key's share of its home core's requests for keys (a short `MGET` counts once for each of its keys), 0 to 1,
    /// over about the last second. Reads that other cores answered from copies do not count.
    pub share: f64,
    /// The time since the key became hot; `None` if it is not hot.
    pub hot_for: Option<Duration>,
    /// The share of the key's reads since it became hot that were answered from memory, on any core, 0 to 1.
    pub hit_ratio: f64,
    /// The key's state: `counted` (not hot), `warming` (requests from before it became hot are unanswered, so no reply
    /// is kept), `kept`, `shared` (keeping replies did not pay off, so none is kept for a while) or `stale` (expired
    /// replies are sent because the store is unavailable).
    pub state: &'static str,
    /// The number of other cores that hold copies of the key's kept replies (those held in memory).
    pub copies: usize,
    /// True if the store will report the key's next change (CLIENT TRACKING).
    pub is_tracked: bool,
}

/// Figures on the hot keys of one core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotFigures {
    /// Number of keys that are hot on this core.
    pub keys: usize,
    /// Number of replies that are kept in memory for hot keys.
    pub kept: usize,
    /// Number of bytes of the replies that this core keeps.
    pub kept_bytes: usize,
    /// Number of copies of kept replies (those held in memory) that other cores have lent to this one.
    pub copies: usize,
    /// Number of fetches (shared reads of hot keys) that have not ended.
    pub flights: usize,
    /// Number of requests for hot keys that wait for a fetch (shared read), or are held back so that they do not
    /// overtake others.
    pub waiters: usize,
    /// Number of requests sent from this core that may still be carried out: those for hot keys, those that may be
    /// about keys of any core, and costly ones for other keys, whose price is counted by key. Reads that wait for a
    /// fetch do not count.
    pub writes_under_way: usize,
    /// Number of keys of queued requests that were read so far, to find requests about keys that had become hot.
    pub examined: u64,
    /// Figures on the stores that are asked to report changes of hot keys, by backend number.
    pub tracking: Vec<TrackingFigures>,
}

/// A key that has become hot and may have requests in the queues in front of its store.
#[derive(Clone, Debug)]
pub struct Unnoticed {
    /// Id of the key that has become hot.
    pub id: HotId,
    /// The store that has the key, and the key's hash slot.
    pub place: (BackendId, u16),
    /// The database that the key is in.
    pub database: Database,
    /// The bytes of the key that has become hot.
    pub key: Vec<u8>,
    /// The key's number in the order in which keys have become hot on this core since it started, counted from 1.
    pub promotion: u64,
}

/// A search of the queues in front of the stores for requests about keys that have become hot.
#[derive(Clone, Debug)]
pub struct Search {
    /// The keys that are searched for: those for which requests may wait, unknown, in a queue. Sorted by their bytes.
    pub keys: Vec<Unnoticed>,
    /// The number of keys that have become hot on this core since it started. Requests that this part of the
    /// search parses are marked with it, so that later searches know which keys were looked for.
    pub promotions: u64,
    /// The number of keys that had become hot when this search began, perhaps in an earlier part of it. Keys
    /// that became hot after that are left to the next search.
    pub since: u64,
}

impl Search {
    /// Returns the stores of all keys that are searched for, each once.
    pub fn backends(&self) -> Vec<BackendId> {
        let mut backends: Vec<BackendId> = self.keys.iter().map(|unnoticed| unnoticed.place.0).collect();
        backends.sort_unstable();
        backends.dedup();
        backends
    }

    /// Returns the ids of those of the keys searched for, in any database, that have these bytes.
    pub fn named(&self, key: &[u8]) -> impl Iterator<Item = HotId> {
        let first = self.keys.partition_point(|unnoticed| unnoticed.key.as_slice() < key);
        self.keys[first..]
            .iter()
            .take_while(move |unnoticed| unnoticed.key == key)
            .map(|unnoticed| unnoticed.id)
    }
}

/// Returns whether the store will report the next change of a key for which a fetch (shared read of a hot key) is sent
/// now. Asks the store to do so if it was not asked since the last change, or refused at least a second ago.
fn register(tracking: &mut Tracking, env: &Env, entry: &mut Entry, now: Timestamp) -> Registration {
    match entry.registration {
        Registration::Unregistered => {}
        Registration::Refused(until) if now >= until => {}
        known => return known,
    }
    let backend = env.backend_of(entry.slot);
    entry.registration = tracking.register(backend, (entry.id, &entry.key), now);
    entry.registration
}

/// Takes one write from a key's limit of `limit` writes per second. An error, with nothing taken, if the key is written
/// too often. Does nothing without a limit.
fn take_write(entry: &mut Entry, limit: Option<u64>, now: Timestamp) -> Result<(), TooOften> {
    let Some(limit) = limit else { return Ok(()) };
    let taken = entry.take_write(limit, now);
    taken.map_err(|retry_after| TooOften { key: entry.key.clone(), limit, retry_after })
}

fn entry_of(entries: &mut [Option<Box<Entry>>], id: HotId) -> Option<&mut Entry> {
    entries.get_mut(usize::from(id.index))?.as_deref_mut().filter(|entry| entry.id == id)
}

/// Beginnings of a store's own errors which say that it is unavailable. Errors of a store that is overloaded
/// are not among them.
const AWAY_TOLD: [&[u8]; 3] = [b"-LOADING ", b"-MASTERDOWN ", b"-CLUSTERDOWN "];
const AWAY_FOUND: [&[u8]; 3] = [b"-UNAVAILABLE ", b"-OVERLOADED reason=stalled ", b"-BUSY backend="];

/// True if a reply, or weir's error in its place, says that the store is unavailable. The store may itself be a weir,
/// so errors of stores and of weir are both looked for.
fn says_away(reply: &[u8]) -> bool {
    reply.first() == Some(&b'-') && AWAY_TOLD.iter().chain(&AWAY_FOUND).any(|word| reply.starts_with(word))
}

/// True if a write of one key was certainly not carried out: it was not sent, or the store's `reply` refused
/// it because it is unavailable.
fn was_not_carried_out(outcome: Outcome, reply: &[u8]) -> bool {
    match outcome {
        Outcome::Refused | Outcome::Throttled => true,
        Outcome::Served { .. } => AWAY_TOLD.iter().any(|word| reply.starts_with(word)),
        Outcome::Lost | Outcome::Cached { .. } => false,
    }
}

/// Returns the number of the client connection that sent a request, also for one piece (one key's part) of a
/// split request.
fn connection_of(env: &Env, envelope: &Envelope) -> u64 {
    env.pieces.connection(envelope.reply_to)
}

/// Returns the backend whose version cell (counter of writes) is changed by writes of unknown keys. In front
/// of a cluster it is one for all backends, because slots move between them.
fn store_of(env: &Env, backend: BackendId) -> BackendId {
    if env.slots.is_some() { BackendId(0) } else { backend }
}

/// Returns the route of a fetch: that of the read, but always to the primary, because reads that no replica
/// may answer share the fetch.
fn as_fetched(route: Route) -> Route {
    let track = if route.track == Track::Replica { Track::Usual } else { route.track };
    Route { track, ..route }
}

/// Returns the record of a read (`frame`) that is sent to the store without a shared fetch; it is kept until
/// the read is answered. A replica's reply may be older than the kept one, so it is not compared.
fn open_read(keys: &HotKeys, id: HotId, envelope: &Envelope, frame: &[u8]) -> Open {
    if envelope.route.track == Track::Replica {
        Open::Keys([(id, None)].into())
    } else {
        Open::Read(id, number_of(keys, frame, dialect_of(envelope.route)))
    }
}

/// Returns the hash of a key in a database. In the first database it is that of the key alone.
#[inline]
fn hash_of(keys: &HotKeys, database: Database, key: &[u8]) -> u64 {
    keys.hash(key) ^ mark_of(database)
}

/// Returns the database of a key, given the hash of the key alone and the hash in its database ([`hash_of`]);
/// None if no database fits.
fn database_of(alone: u64, hash: u64) -> Option<Database> {
    let mark = hash ^ alone;
    (0..=u8::MAX).map(Database).find(|database| mark_of(*database) == mark)
}

/// Returns the value by which the hash of a key is changed (by exclusive or) for a database; 0 for the
/// first one.
#[inline]
const fn mark_of(database: Database) -> u64 {
    // The multiples of an odd number are all different.
    (database.0 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns the parts of a request's route on which its reply depends, besides the request itself: the RESP version and
/// the database.
fn dialect_of(route: Route) -> (Protocol, Database) {
    (route.protocol, route.database)
}

/// Returns a hash that identifies a read by its bytes (`frame`), RESP version and database. `GET` and `MGET`
/// of one key have the key's hash in both RESP versions, because they ask for the same value.
fn number_of(keys: &HotKeys, frame: &[u8], (protocol, database): (Protocol, Database)) -> u64 {
    match value::key_of(frame) {
        Some(key) => hash_of(keys, database, key),
        None => keys.hash(frame) ^ mark_of(database) ^ protocol as u64,
    }
}

/// Returns the digest of a read (`asked`, from [`number_of`]) and its reply. For a reply too large to be
/// kept, the length takes the place of the content.
fn told(keys: &HotKeys, asked: u64, reply: &[u8]) -> Told {
    let reply = value::told(reply);
    let is_large = reply.len() > HOT_REPLY_BYTES_MAX;
    Told::new(asked, if is_large { reply.len() as u64 } else { keys.hash(reply) })
}

/// Returns the time for which the asker's tenant accepts a kept reply (one held in memory) after its expiry
/// while the store is unavailable; zero if it accepts none, or if the quotas have changed since the request
/// came.
fn longer(asker: Option<Asker>, quotas: &Quotas) -> Duration {
    present_tenant(asker, quotas).map_or(Duration::ZERO, |tenant| quotas.tenant(tenant).stale_on_error)
}

/// Counts a read of one key of a request for several, given with its hash, in its slot and, if that has enough traffic,
/// by key. Returns the key's id if it is hot, else None.
fn count_read(keys: &mut HotKeys, (key, hash): (&[u8], u64)) -> Option<HotId> {
    let slot = slot_of(key);
    if keys.note(slot) { keys.note_key(slot, hash, key, Access::Read) } else { None }
}

/// Returns the tenant of a request's asker; None if it is unknown, or if the quotas have changed since the
/// request came, so that the asker has the tenant's former id.
fn present_tenant(asker: Option<Asker>, quotas: &Quotas) -> Option<TenantId> {
    let present = asker.filter(|asker| asker.version() == quotas.version() as u16);
    present.map(Asker::tenant)
}
