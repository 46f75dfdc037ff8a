//! The state of one hot key on its home core: kept replies, fetches of more of them, and the client
//! connections whose requests for the key are in flight or held back.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

use super::flights::{Flight, Flights};
use super::tracking::{REFUSED, Registration};
use super::value;
use crate::policy::hot_keys::{Access, HotId};
use crate::protocol::Protocol;
use crate::shard::copy::Copy;
use crate::shard::counters::Counter;
use crate::shard::last_told::Told;
use crate::shard::request::{Envelope, FlightId, NOBODY, Overdue, Route};
use crate::shard::settings::HotSettings;
use crate::shard::versions::{Cell, Snapshot, Versions};
use crate::values::limits::{HOT_ANSWERS_MAX, HOT_REPLY_BYTES_MAX};
use crate::values::random::Random;
use crate::values::{BackendId, Database, ShardId, TenantId, Timestamp};

/// The time for which no reply of a key is kept, after too few of its reads were answered from memory or by a shared
/// fetch, or too many came while a write was in flight. Also the time for which the reply to a request is not kept
/// after one was too large.
const PAUSE: Duration = Duration::from_secs(10);
/// The period over which weir measures how many of a key's reads are answered from memory or by a shared
/// fetch, after which it decides whether to keep replies of the key.
const TRIAL: Duration = Duration::from_secs(1);
/// The least number of reads of a key in one second (`TRIAL`) by which weir decides to keep no replies of the
/// key for a while (`PAUSE`). Fewer reads show too little of the share that are answered from memory or by a
/// shared fetch.
const TRIAL_READS: u64 = 50;
/// The time before the expiry of a kept reply (one held in memory) from which on a read of it begins a fetch that
/// renews it. Twice the duration of the last fetch if that is more, but at most a quarter (`AHEAD_PART`) of the reply's
/// lifetime.
const AHEAD_LEAST: Duration = Duration::from_millis(2);
/// The divisor of the lifetime of a kept reply (one held in memory): the reply is fetched again in the last
/// quarter of its lifetime at the earliest.
const AHEAD_PART: u32 = 4;
/// The time for which a request must not have come before its place among the kept replies (those held in memory) of a
/// key may be given to the reply to another request.
const IDLE: Duration = Duration::from_millis(250);
/// The burst of writes to one key, as a time: about as many writes may come at once as the permitted rate allows in
/// this time.
const WRITE_BURST: Duration = Duration::from_millis(100);
/// The least time over which requests from other cores for a key are counted before the cores that get copies of its
/// kept replies (those held in memory) are chosen again.
const COPIED_AFTER: Duration = Duration::from_millis(20);
/// The time for which reports show a key as `stale` after the last expired reply was sent for it.
const STALE_SHOWN: Duration = Duration::from_secs(1);
/// The divisor of a reply's lifetime: the lifetime is shortened by a random part of at most a tenth, so that
/// many keys are not fetched at the same moment.
const CHANCE_PART: u32 = 10;

/// Knowledge about requests that were in flight when the key became hot. Unknown writes may be among
/// them, which limits which reads share fetches and which replies are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmth {
    /// Requests for the key may wait, unknown here, in the queues in front of the store: its reads are sent to the
    /// store one by one and share no fetch.
    Queued,
    /// All requests in the queues in front of the store are known, but requests that were sent up to `until` may be
    /// unanswered, writes among them. A read shares only fetches that are sent after it came; nothing is kept. In front
    /// of a cluster, reads share no fetch: a node may redirect earlier requests, and a fetch, which belongs to no
    /// client connection, could reach the next node before them.
    Sent {
        /// The latest time at which a request that is not known here may have been sent.
        until: Timestamp,
    },
    /// All requests in flight for the key are known: reads share fetches, and replies are kept.
    Warm,
}

/// The result of looking up a read among a key's kept replies (those held in memory) and fetches (shared reads of hot
/// keys): how the read is handled.
#[derive(Debug)]
pub enum Found {
    /// A valid reply is kept in memory, and answers the read.
    Kept {
        /// The kept reply (one held in memory), which answers the read.
        reply: Bytes,
        /// The time at which the store was asked for the reply.
        asked_at: Timestamp,
        /// True if the reply expires soon, so that a new fetch (shared read of a hot key) should begin now.
        is_to_be_fetched: bool,
    },
    /// A fetch (shared read of a hot key) of the reply has begun, and the read may wait for it.
    Flight(FlightId),
    /// No kept reply (one held in memory) or fetch in flight answers the read, so it may begin a fetch
    /// (shared read of a hot key) of the reply.
    Fetchable,
    /// The read is held back until it can no longer overtake an earlier request of its client connection, or until a
    /// kept reply may answer it because earlier reads of the connection are answered.
    Behind,
    /// The read is sent to the store on its own, shares no fetch, and is counted under this reason.
    Nothing(Counter),
}

/// The way in which a request for a hot key reaches its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The request is a read that is not sent itself, but waits for a fetch (shared read of a hot key).
    Fetch(FlightId),
    /// The request is sent to the store on its own, as a read or as a write.
    Own(Access),
}

/// A read of a hot key, with the data by which it is decided whether it is answered from memory or shares a fetch.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// The number of the client connection that sent the read.
    pub connection: u64,
    /// The backend, slot, database, track (set of connections) and RESP version that a fetch of the reply would be sent
    /// with.
    pub route: Route,
    /// The bytes of the read.
    pub frame: &'a [u8],
    /// True if an unanswered earlier request of the connection may be about any key.
    pub is_behind_any: bool,
    /// True if weir stands in front of a cluster: a node may redirect a request, so that it arrives later
    /// than requests sent after it.
    pub may_move: bool,
}

/// Counts of a hot key's reads and writes. The public fields count since the key became hot. The private ones
/// start again each second, and decide whether the key's replies are kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    since: Timestamp,
    reads: u64,
    useful: u64,
    fenced: u64,
    /// Number of reads answered from memory since the key became hot, on this core or from copies on others.
    pub hits: u64,
    /// Number of reads since the key became hot whose replies may be kept, with those that other cores answered from
    /// copies. The read of an `MGET` of several keys counts only if all its keys are hot.
    pub all_reads: u64,
    /// Number of writes since the key became hot.
    pub writes: u64,
}

/// The unanswered requests of one client connection for the key, and those that are held back after them.
///
/// These requests go over one connection to the store, which carries them out in the order in which they were
/// sent. So a request waits only for earlier ones of its client connection that have not been sent yet, and
/// for reads that may have to be sent again.
#[derive(Debug, Default)]
struct Wait {
    /// The number of all unanswered requests of the connection for the key, including reads that wait for a
    /// shared fetch.
    requests: u32,
    /// The number of unanswered requests that are sent to the store on their own, not answered by a shared
    /// fetch.
    own: u32,
    /// The number of requests counted in `own` whose bytes are not known to have been put on the connection to the
    /// store. In front of a cluster none is known to be until it is answered.
    unsent: u32,
    /// True if there has been a write among the requests counted in `own` since there was last none of them.
    has_written: bool,
    /// The fetch that the connection's latest request for the key waits or waited for; `None` if that request is sent
    /// on its own.
    latest: Option<FlightId>,
    /// The fetch (shared read of a hot key) behind which the connection's later requests for the key are held back, and
    /// how many of the connection's reads wait for it. Reads that can join the fetch are not held back. There is one
    /// while a fetch for which the connection waits is not sent, and until its answer if the read joined it after that,
    /// if several of the connection's reads wait, or in front of a cluster.
    bound: Option<(FlightId, u32)>,
    /// Requests held back, in the order in which they came. They are handled again when no earlier request of the
    /// connection for the key can be overtaken any more: all are sent, and no fetch holds back later ones (`bound` is
    /// None).
    held: Vec<Held>,
}

/// A request that is held back on its key's home core (the core through which a key's requests pass) so that
/// it does not overtake earlier ones.
#[derive(Debug)]
pub struct Held {
    /// The request's reply address, route, tier (importance), deadline and tenant.
    pub envelope: Envelope,
    /// The bytes of the request that is held back.
    pub frame: Vec<u8>,
    /// The time since which the request has been held back, or has waited for a fetch (shared read of a hot key) that
    /// could not answer it.
    pub since: Timestamp,
}

impl Held {
    /// Returns the time at which the request, if it is still held back, is answered with an error; `Timestamp::MAX` if
    /// it has no deadline, or its client awaits the reply even after that.
    pub fn answered_by(&self) -> Timestamp {
        if self.envelope.overdue == Overdue::Answered { self.envelope.deadline } else { Timestamp::MAX }
    }
}

impl Wait {
    /// True if the connection's next request may be sent to the store now, as it would overtake no earlier
    /// one.
    fn is_open(&self) -> bool {
        self.unsent == 0 && self.bound.is_none()
    }

    /// True if requests of the client connection are held back and may be handled now.
    fn is_to_resume(&self) -> bool {
        self.is_open() && !self.held.is_empty()
    }
}

#[derive(Debug)]
struct Kept {
    reply: Bytes,
    /// The time at which the store was asked for the reply, from which its age is counted.
    asked_at: Timestamp,
    snapshot: Snapshot,
    good_until: Timestamp,
    fetch_from: Timestamp,
    /// The time at which the key, or a field that the reply is about, expires, and the reply with it; many years ahead
    /// if neither is known to expire.
    ends_at: Timestamp,
}

/// A place for the kept reply (one held in memory) to one request (`frame`) about the key, in one RESP
/// version, with the fetches of it.
#[derive(Debug)]
struct Answer {
    frame: Vec<u8>,
    protocol: Protocol,
    kept: Option<Kept>,
    /// Unfinished fetches of the reply, the latest last.
    flights: Vec<FlightId>,
    too_large_until: Timestamp,
    used_at: Timestamp,
    /// The envelope (tier, route, tenant) of the request that last began a fetch (shared read of a hot key) of the
    /// reply. A fetch that renews the reply for the sake of other cores' copies is sent with it.
    terms: Envelope,
}

/// Counts, by core, of the requests of other cores for a hot key that were answered from memory, by this core or from
/// copies, since the cores that get copies of its kept replies (those held in memory) were last chosen; and the chosen
/// cores.
#[derive(Debug, Default)]
struct Elsewhere {
    since: Timestamp,
    asked: HashMap<ShardId, u32>,
    holders: Vec<ShardId>,
    /// True if cores that are no longer chosen to get copies may still have some that have not expired.
    has_former: bool,
}

/// The state of one hot key on its home core (the core through which a key's requests pass).
#[derive(Debug)]
pub struct Entry {
    pub id: HotId,
    pub key: Vec<u8>,
    /// The database that has the key.
    pub database: Database,
    pub slot: u16,
    pub hash: u64,
    pub backend: BackendId,
    pub warmth: Warmth,
    /// The key's number in the order in which keys have become hot on this core since it started, counted from 1. It
    /// shows whether a search of the queues that began earlier has looked for requests for this key.
    pub promotion: u64,
    pub tally: Tally,
    /// The tenant whose request for the key came last, which reports of hot keys name.
    pub last_asker: TenantId,
    /// Whether the store reports the key's next change to this core (CLIENT TRACKING).
    pub registration: Registration,
    cell: Cell,
    answers: Vec<Answer>,
    waits: HashMap<u64, Wait>,
    elsewhere: Elsewhere,
    /// The time until which the writes so far use up the permitted rate of writes to the key; a time in the
    /// past if the key has been written less often than permitted.
    writes_until: Timestamp,
    pauses_until: Timestamp,
    /// The last time at which a kept reply was sent, though perhaps expired, because the store was unavailable; `None`
    /// if none was.
    stale_at: Option<Timestamp>,
    random: Random,
}

impl Entry {
    pub fn new(
        id: HotId,
        (key, database): (&[u8], Database),
        (slot, hash): (u16, u64),
        (backend, promotion): (BackendId, u64),
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            key: key.to_vec(),
            database,
            slot,
            hash,
            backend,
            warmth: Warmth::Queued,
            promotion,
            tally: Tally { since: now, ..Tally::default() },
            last_asker: NOBODY,
            registration: Registration::Unregistered,
            cell: Cell::of_hash(hash),
            answers: Vec::new(),
            waits: HashMap::new(),
            elsewhere: Elsewhere::default(),
            writes_until: Timestamp::ZERO,
            pauses_until: Timestamp::ZERO,
            stale_at: None,
            random: Random::new(hash ^ now.as_nanos()),
        }
    }

    /// True if the store has confirmed that it will report the key's next change (CLIENT TRACKING).
    pub fn is_registered(&self) -> bool {
        matches!(self.registration, Registration::Registered(_))
    }

    /// Returns the values of the two version counters (the key's and its backend's) that writes of the key
    /// change; None while a write is in flight.
    pub fn snapshot(&self, versions: &Versions) -> Option<Snapshot> {
        versions.snapshot(self.cell, Cell::of_backend(self.backend))
    }

    /// Returns the values of the two version counters (the key's and its backend's) that writes of the key
    /// change; unlike [`Entry::snapshot`], also while a write is in flight.
    pub fn look_at(&self, versions: &Versions) -> Snapshot {
        versions.look(self.cell, Cell::of_backend(self.backend))
    }

    /// Looks up how a read is handled, by the key's kept replies and the fetches (shared reads of hot keys) in progress
    /// (`flights`): it is answered from memory, joins or begins a fetch, is held back, or is sent on its own. Counts
    /// the result. Drops the kept reply if it may no longer be sent, not even while the store is unavailable. A fetch
    /// that was sent `ttl` ago or earlier is not joined; `stale_max` is how long after its expiry a reply may be sent.
    pub fn find(
        &mut self,
        read: Read<'_>,
        (versions, flights): (&Versions, &Flights),
        (ttl, stale_max): (Duration, Duration),
        now: Timestamp,
    ) -> Found {
        let place = self.place_of(read);
        let found = self.look(place, read, (versions, flights), ttl, now);
        if let Some(answer) = place.and_then(|place| self.answers.get_mut(place)) {
            answer.used_at = now;
            if !matches!(found, Found::Kept { .. }) {
                // A write in flight may yet turn out not to be carried out, so that the reply is good again.
                let is_written = versions.snapshot(self.cell, Cell::of_backend(self.backend)).is_none();
                answer.kept.take_if(|kept| {
                    kept.is_over(stale_max, now) || !is_written && !versions.is_good(&kept.snapshot)
                });
            }
        }
        let is_fenced = !matches!(found, Found::Kept { .. }) && self.snapshot(versions).is_none();
        self.count(&found, is_fenced, now);
        found
    }

    /// Looks up how a read is handled like [`Entry::find`], but counts and changes nothing. `known` has the counters of
    /// writes, and the fetches in progress; a fetch that was sent `ttl` ago or earlier is not joined.
    pub fn forecast(
        &self,
        read: Read<'_>,
        known: (&Versions, &Flights),
        ttl: Duration,
        now: Timestamp,
    ) -> Found {
        self.look(self.place_of(read), read, known, ttl, now)
    }

    fn place_of(&self, Read { route, frame, .. }: Read<'_>) -> Option<usize> {
        self.answers.iter().position(|answer| answer.is_to(frame, route.protocol))
    }

    fn look(
        &self,
        place: Option<usize>,
        Read { connection, route, frame, is_behind_any, may_move }: Read<'_>,
        (versions, flights): (&Versions, &Flights),
        ttl: Duration,
        now: Timestamp,
    ) -> Found {
        if is_behind_any {
            return Found::Nothing(Counter::HotBypassedOrder);
        }
        let may_be_overtaken = may_move && self.warmth != Warmth::Warm;
        if self.warmth == Warmth::Queued || may_be_overtaken {
            return Found::Nothing(Counter::HotBypassedWarming);
        }
        let own = self.waits.get(&connection);
        let answer = place.and_then(|place| self.answers.get(place));
        if own.is_none()
            && let Some(kept) = answer.and_then(|answer| answer.kept.as_ref())
            && kept.is_good(versions, now)
        {
            let is_idle = answer.is_some_and(|answer| answer.flights.is_empty());
            let is_to_be_fetched = now >= kept.fetch_from && is_idle && now >= self.pauses_until;
            let (reply, asked_at) = (kept.reply.clone(), kept.asked_at);
            return Found::Kept { reply, asked_at, is_to_be_fetched };
        }
        // Only the latest fetch may be joined: a read that waits for it must not get the older reply of an
        // earlier one.
        let latest = answer.and_then(|answer| flights.latest_of(&answer.flights, route));
        let is_warm = self.warmth == Warmth::Warm;
        let is_joinable =
            |id: FlightId| flights.is_gathering(id) || is_warm && flights.is_fresh(id, versions, (ttl, now));
        let Some(own) = own else {
            return match latest.filter(|id| is_joinable(*id)) {
                Some(id) => Found::Flight(id),
                None => self.fetchable(frame, route.protocol, now),
            };
        };
        if let Some((bound, _)) = own.bound {
            let is_same = own.held.is_empty() && latest == Some(bound) && is_joinable(bound);
            return if is_same { Found::Flight(bound) } else { Found::Behind };
        }
        if !own.is_open() || !own.held.is_empty() {
            return Found::Behind;
        }
        // Behind own reads that go by themselves, a read is held back: a kept reply answers it once those are
        // answered.
        let is_kept_for = is_warm && own.own == own.requests && !own.has_written;
        match latest.filter(|id| is_joinable(*id)) {
            Some(id) if flights.is_gathering(id) || own.latest == Some(id) => Found::Flight(id),
            _ if is_kept_for => Found::Behind,
            _ => self.fetchable(frame, route.protocol, now),
        }
    }

    fn fetchable(&self, frame: &[u8], protocol: Protocol, now: Timestamp) -> Found {
        if self.has_place_for(frame, protocol, now) {
            Found::Fetchable
        } else {
            Found::Nothing(Counter::HotBypassedOther)
        }
    }

    /// Counts a read, unless it is held back, and once a second decides whether replies are kept: if fewer than half of
    /// at least 50 reads were answered from memory or shared a fetch, or more than 30 % of them found a write in flight
    /// (`is_fenced`), no reply is kept for 10 s.
    fn count(&mut self, found: &Found, is_fenced: bool, now: Timestamp) {
        let tally = &mut self.tally;
        if matches!(found, Found::Behind) {
            return;
        }
        tally.all_reads += 1;
        // Reads that must wait for earlier requests say nothing about whether keeping replies pays off.
        let counts =
            !matches!(found, Found::Nothing(Counter::HotBypassedOrder | Counter::HotBypassedWarming));
        tally.reads += u64::from(counts);
        tally.fenced += u64::from(counts && is_fenced);
        match found {
            Found::Kept { .. } => {
                tally.useful += 1;
                tally.hits += 1;
            }
            Found::Flight(_) => tally.useful += 1,
            // A fetch, or a read that goes by itself, counts as a read that gained nothing.
            Found::Nothing(_) | Found::Fetchable | Found::Behind => {}
        }
        if now.since(tally.since) >= TRIAL {
            let fails = tally.useful * 2 < tally.reads || tally.fenced * 10 > tally.reads * 3;
            if self.warmth == Warmth::Warm && tally.reads >= TRIAL_READS && fails {
                self.pauses_until = now.after(PAUSE);
            }
            (tally.since, tally.reads, tally.useful, tally.fenced) = (now, 0, 0, 0);
        }
    }

    fn has_place_for(&self, frame: &[u8], protocol: Protocol, now: Timestamp) -> bool {
        self.answers.len() < HOT_ANSWERS_MAX
            || self.answers.iter().any(|answer| answer.is_idle(now) || answer.is_to(frame, protocol))
    }

    /// True if the reply to a fetch (shared read of a hot key) may be kept: the key has a place for the
    /// reply, keeping is not paused, and no reply to the same request was too large in the last 10 s.
    pub fn may_keep(&self, flight: &Flight, now: Timestamp) -> bool {
        let answer = self.answers.iter().find(|answer| answer.is_of(flight));
        now >= self.pauses_until && answer.is_some_and(|answer| now >= answer.too_large_until)
    }

    /// True if the reply to a fetch (shared read of a hot key) that begins now would be kept, as far as is known
    /// yet: keeping is not paused, all earlier requests for the key are known, and no write is in flight.
    pub fn would_keep(&self, versions: &Versions, now: Timestamp) -> bool {
        now >= self.pauses_until && self.warmth == Warmth::Warm && self.snapshot(versions).is_some()
    }

    /// Counts the read of the key in an `MGET` of several hot keys that is sent to the store because not all their
    /// values are kept. The read counts towards the decision whether to keep replies only while a write of the key is
    /// in flight: otherwise a value is still missing that is being fetched, for long if the store is overloaded.
    pub fn handle_unshared(&mut self, versions: &Versions, now: Timestamp) {
        match self.snapshot(versions) {
            Some(_) => self.tally.all_reads += 1,
            None => self.count(&Found::Fetchable, true, now),
        }
    }

    /// Replaces `out` with the request (`MGET` of this key alone) under which the key's value is kept for an `MGET` of
    /// several keys.
    pub fn encode_read(&self, out: &mut Vec<u8>) {
        out.clear();
        value::ask(out, &self.key);
    }

    /// Records that a fetch (shared read of a hot key) of the reply to a request (`frame`) has begun. If
    /// all 16 places for the key's replies (`HOT_ANSWERS_MAX`) are taken, replaces the one that was unused
    /// for longest; if none was unused for 250 ms, records nothing.
    pub fn handle_fetch(&mut self, envelope: &Envelope, frame: &[u8], flight: FlightId, now: Timestamp) {
        let protocol = envelope.route.protocol;
        if let Some(answer) = self.answers.iter_mut().find(|answer| answer.is_to(frame, protocol)) {
            answer.flights.push(flight);
            answer.terms = *envelope;
            return;
        }
        if self.answers.len() >= HOT_ANSWERS_MAX {
            let idle = self.answers.iter().enumerate().filter(|(_, answer)| answer.is_idle(now));
            let Some((oldest, _)) = idle.min_by_key(|(_, answer)| answer.used_at) else { return };
            self.answers.swap_remove(oldest);
        }
        self.answers.push(Answer {
            frame: frame.to_vec(),
            protocol,
            kept: None,
            flights: vec![flight],
            too_large_until: Timestamp::ZERO,
            used_at: now,
            terms: *envelope,
        });
    }

    /// Counts `count` requests of another core that were answered from memory, by this core or there from copies of
    /// kept replies (those held in memory). True if the cores that get copies are to be chosen again, because 20 ms
    /// have passed since the last choice.
    pub fn handle_elsewhere(&mut self, from: ShardId, count: u32, now: Timestamp) -> bool {
        *self.elsewhere.asked.entry(from).or_default() += count;
        now.since(self.elsewhere.since) >= COPIED_AFTER
    }

    /// Chooses the cores that get copies of kept replies (those held in memory): each core whose requests for the key
    /// are frequent enough (`copied_from`), if those of all other cores together are, too. Returns the chosen cores
    /// that held no copies before.
    pub fn choose_holders(&mut self, settings: &HotSettings, now: Timestamp) -> Vec<ShardId> {
        let Elsewhere { since, asked, holders, has_former } = &mut self.elsewhere;
        let seconds = now.since(*since).as_secs_f64().max(COPIED_AFTER.as_secs_f64());
        *since = now;
        let [all, each] = settings.copied_from.map(|rate| rate as f64 * seconds);
        let is_much = asked.values().map(|count| f64::from(*count)).sum::<f64>() >= all;
        let much = asked.drain().filter(|(_, count)| is_much && f64::from(*count) >= each);
        let mut chosen: Vec<ShardId> = much.map(|(shard, _)| shard).collect();
        chosen.sort_unstable();
        let before = std::mem::replace(holders, chosen);
        *has_former |= before.iter().any(|shard| !holders.contains(shard));
        holders.iter().copied().filter(|shard| !before.contains(shard)).collect()
    }

    /// Checks whether another write of the key is within its limit of `rate` writes per second. An error has
    /// the time until one is. Takes nothing from the limit.
    pub fn may_write(&self, rate: u64, now: Timestamp) -> Result<(), Duration> {
        let wait = self.next_write_until(rate, now).since(now);
        let at_once = Duration::from_secs_f64(1.0 / rate as f64).max(Duration::from_millis(1));
        if wait > at_once { Err(wait.saturating_sub(at_once)) } else { Ok(()) }
    }

    /// Returns the time until which the key's limit of `rate` writes per second is used up if one more write
    /// is taken from it. Up to a tenth of a second of unused time counts.
    fn next_write_until(&self, rate: u64, now: Timestamp) -> Timestamp {
        let each = Duration::from_secs_f64(1.0 / rate as f64);
        self.writes_until.max(now.before(WRITE_BURST)).after(each)
    }

    /// Takes one write from the key's limit of `rate` writes per second, of which about a tenth of a second's
    /// worth may come at once. `Err` has the time until the next write may come; nothing is taken then.
    pub fn take_write(&mut self, rate: u64, now: Timestamp) -> Result<(), Duration> {
        self.may_write(rate, now)?;
        self.note_write(rate, now);
        Ok(())
    }

    /// Takes one write, which [`Entry::may_write`] has permitted, from the key's limit of `rate` writes per
    /// second.
    pub fn note_write(&mut self, rate: u64, now: Timestamp) {
        self.writes_until = self.next_write_until(rate, now);
    }

    /// Counts this many (`hits`) reads that were answered on other cores, from the copies of kept replies
    /// (those held in memory) that they were lent.
    pub fn handle_hits(&mut self, hits: u32) {
        self.tally.hits += u64::from(hits);
        self.tally.all_reads += u64::from(hits);
    }

    /// Returns the cores, apart from this one, that are chosen to hold copies of the key's kept replies (those held in
    /// memory).
    pub fn holders(&self) -> &[ShardId] {
        &self.elsewhere.holders
    }

    /// Returns copies of all kept replies (those held in memory) of the key to lend to other cores, or only
    /// of the one that the fetch (shared read of a hot key) `only` brought. `home` is this core.
    pub fn copies(&self, home: ShardId, only: Option<&Flight>) -> impl Iterator<Item = Copy> {
        let meant = self.answers.iter().filter(move |answer| only.is_none_or(|flight| answer.is_of(flight)));
        meant.filter_map(move |answer| {
            let kept = answer.kept.as_ref()?;
            Some(Copy {
                home,
                id: self.id,
                slot: answer.terms.route.slot,
                database: self.database,
                frame: Bytes::copy_from_slice(&answer.frame),
                protocol: answer.protocol,
                reply: kept.reply.clone(),
                asked_at: kept.asked_at,
                snapshot: kept.snapshot,
                good_until: kept.good_until,
            })
        })
    }

    /// Finds a kept reply (one held in memory) that expires soon and that no fetch is about to renew. Returns the bytes
    /// of its request, and the envelope (record that goes with a request's bytes) to fetch the reply with; None if
    /// there is none, or while no replies of the key are kept. Called for keys that other cores answer from copies, so
    /// that no request on this core would renew the reply.
    pub fn aging(&self, versions: &Versions, now: Timestamp) -> Option<(Vec<u8>, Envelope)> {
        let is_aging = |answer: &&Answer| {
            let kept = answer.kept.as_ref();
            answer.flights.is_empty()
                && now >= self.pauses_until
                && kept.is_some_and(|kept| now >= kept.fetch_from && kept.is_good(versions, now))
        };
        let answer = self.answers.iter().find(is_aging)?;
        Some((answer.frame.clone(), answer.terms))
    }

    /// Drops kept replies (those held in memory) that differ from `reply`, which the store has just sent,
    /// among those to requests for which `is_asked` is true. True if any dropped reply was still valid, which
    /// shows that the key was written by someone who does not use weir.
    pub fn forget_differing(
        &mut self,
        is_asked: impl Fn(&[u8], Protocol) -> bool,
        reply: &[u8],
        versions: &Versions,
        now: Timestamp,
    ) -> bool {
        let asked = self.answers.iter_mut().filter(|answer| is_asked(&answer.frame, answer.protocol));
        let differing: Vec<Kept> = asked
            .filter_map(|answer| answer.kept.take_if(|kept| value::differ(&kept.reply, reply)))
            .collect();
        if !differing.is_empty() {
            // Expired replies, kept for when the store is away, are older than the new one too.
            self.drop_old(now);
        }
        differing.iter().any(|kept| kept.is_good(versions, now))
    }

    /// Returns the kept reply (one held in memory) that may be sent in place of a fetch's reply while the
    /// store is unavailable; for `GET` and `MGET` also the reply to the other command. [`Stale::is_for`]
    /// decides which tenants may get it. None if there is none.
    pub fn stale(&self, flight: &Flight) -> Option<Stale<'_>> {
        let own = self.answers.iter().find(|answer| answer.is_of(flight));
        let is_value = value::key_of(&flight.frame).is_some();
        let value = || self.stale_values(flight.envelope.route.protocol).next().filter(|_| is_value);
        own.and_then(|answer| answer.kept.as_ref().map(Stale)).or_else(value)
    }

    /// Returns all kept replies (those held in memory) to requests for the key's value (`GET`, `MGET` of one
    /// key) in this RESP version.
    pub fn stale_values(&self, protocol: Protocol) -> impl Iterator<Item = Stale<'_>> {
        let is_value =
            move |answer: &&Answer| answer.protocol == protocol && value::key_of(&answer.frame).is_some();
        self.answers.iter().filter(is_value).filter_map(|answer| answer.kept.as_ref().map(Stale))
    }

    /// Counts a kept value, perhaps an expired one, that was sent within an `MGET` reply because the store was
    /// unavailable.
    pub fn handle_stale_value(&mut self, now: Timestamp) {
        self.stale_at = Some(now);
        self.handle_hits(1);
    }

    /// Counts `count` reads that got a kept reply, perhaps an expired one, because the store was unavailable.
    pub fn handle_stale(&mut self, count: usize, now: Timestamp) {
        self.stale_at = Some(now);
        self.tally.hits += count as u64;
        // The reads that joined the fetch are in `useful` already; only the one that began it is not.
        self.tally.useful += 1;
    }

    /// Drops the key's kept replies (those held in memory) that have expired. They were only held for tenants that
    /// accept expired replies while the store is unavailable.
    pub fn drop_old(&mut self, now: Timestamp) {
        for answer in &mut self.answers {
            answer.kept.take_if(|kept| now >= kept.good_until);
        }
    }

    /// Lets the key's kept replies (those held in memory) expire now; they stay for tenants that accept
    /// expired replies while the store is unavailable. If cores that no longer get copies may still have
    /// some, the key's version (counter of writes) changes, which makes those copies invalid; the kept
    /// replies are marked as of the new version. True if there were kept replies.
    pub fn end_kept(&mut self, versions: &Versions, now: Timestamp) -> bool {
        let has_former = std::mem::take(&mut self.elsewhere.has_former);
        if has_former {
            versions.pass(self.cell);
        }
        let mut any = false;
        for kept in self.answers.iter_mut().filter_map(|answer| answer.kept.as_mut()) {
            kept.good_until = kept.good_until.min(now);
            if has_former {
                kept.snapshot = kept.snapshot.after_pass();
            }
            any = true;
        }
        any
    }

    /// Drops the kept reply (one held in memory) to the request of a fetch (shared read of a hot key).
    pub fn forget(&mut self, flight: &Flight) {
        if let Some(answer) = self.answers.iter_mut().find(|answer| answer.is_of(flight)) {
            answer.kept = None;
        }
    }

    /// Handles a fetched reply: keeps it, unless that was ruled out when the fetch was sent, the reply is an error, too
    /// large or expired by now, its key was written meanwhile, another core may have seen a later reply to the same
    /// read, or this core has no room (`fits`). Returns the counter for the result. `told` is the digest of the reply.
    pub fn handle_fetched(
        &mut self,
        id: FlightId,
        flight: &Flight,
        (reply, told): (&[u8], Told),
        (settings, fits): (&HotSettings, bool),
        now: Timestamp,
    ) -> Counter {
        let chance = self.random.below(1_000) as f64 / 1_000.0 / f64::from(CHANCE_PART);
        let is_tracked = self.is_registered() && flight.registration == self.registration;
        // A node of a cluster says nothing when one of its slots goes to another, and no store when a field of a
        // hash expires.
        let stays = is_tracked && !flight.binds && !flight.lifetime.may_lose_fields();
        let ttl = match (settings.tracked_ttl, self.registration) {
            (Some(tracked), _) if stays => tracked,
            // The store has refused to track the key. The reply lives at most `REFUSED`, because the next
            // fetch asks again.
            (Some(_), Registration::Refused(_)) => settings.ttl.min(REFUSED),
            _ => settings.ttl,
        };
        let longest = ttl.mul_f64(1.0 - chance);
        let Some(answer) = self.answers.iter_mut().find(|answer| answer.is_of(flight)) else {
            return Counter::HotDiscarded;
        };
        answer.flights.retain(|own| *own != id);
        if reply.len() > HOT_REPLY_BYTES_MAX {
            answer.too_large_until = now.after(PAUSE);
            return Counter::HotDiscarded;
        }
        let Some(snapshot) = flight.snapshot.filter(|snapshot| settings.versions.is_good(snapshot)) else {
            return Counter::HotDiscarded;
        };
        let left = flight.lifetime.left(says_nothing(reply));
        let lifetime = left.min(longest);
        let good_until = flight.sent_at.after(lifetime);
        if !flight.is_kept || good_until <= now || !is_plain(reply) || !fits {
            return Counter::HotDiscarded;
        }
        if !flight.look.is_some_and(|look| settings.versions.last_told.keep(&look, told)) {
            return Counter::HotDiscarded;
        }
        let ahead = (2 * now.since(flight.sent_at)).max(AHEAD_LEAST).min(lifetime / AHEAD_PART);
        answer.kept = Some(Kept {
            reply: Bytes::copy_from_slice(reply),
            asked_at: flight.sent_at,
            snapshot,
            good_until,
            ends_at: flight.sent_at.after(left),
            fetch_from: flight.sent_at.after(lifetime.saturating_sub(ahead)),
        });
        Counter::HotFetched
    }

    /// Removes a fetch (shared read of a hot key) from the key's unfinished ones, because it failed, or was
    /// dropped before it was sent.
    pub fn handle_failed(&mut self, flight: FlightId) {
        for answer in &mut self.answers {
            answer.flights.retain(|own| *own != flight);
        }
    }

    /// Returns the unfinished fetches (shared reads of hot keys) of the same reply as `flight`, which is among them,
    /// the latest last.
    pub fn flights_beside(&self, flight: &Flight) -> &[FlightId] {
        let answer = self.answers.iter().find(|answer| answer.is_of(flight));
        answer.map_or(&[], |answer| &answer.flights)
    }

    /// Returns all unfinished fetches (shared reads of hot keys) for the key.
    pub fn flights(&self) -> impl Iterator<Item = FlightId> {
        self.answers.iter().flat_map(|answer| answer.flights.iter().copied())
    }

    /// Counts a request of a client connection that is not held back: it is sent on its own, or waits for a
    /// fetch (shared read of a hot key).
    pub fn handle_request(&mut self, connection: u64, way: Way) {
        let wait = self.waits.entry(connection).or_default();
        wait.requests += 1;
        match way {
            Way::Own(access) => {
                debug_assert!(wait.bound.is_none(), "nothing passes a fetch that it is bound to");
                wait.own += 1;
                wait.unsent += 1;
                wait.has_written |= access == Access::Write;
                wait.latest = None;
            }
            Way::Fetch(flight) => {
                let (bound, reads) = wait.bound.get_or_insert((flight, 0));
                debug_assert_eq!(*bound, flight, "nothing passes a fetch that it is bound to");
                *reads += 1;
                wait.latest = Some(flight);
            }
        }
    }

    /// Records that a request of a client connection, which shares no fetch, has been put on the connection
    /// to the store. True if requests of the same client connection that were held back may go on.
    pub fn handle_own_sent(&mut self, connection: u64) -> bool {
        let Some(wait) = self.waits.get_mut(&connection) else { return false };
        wait.unsent = wait.unsent.saturating_sub(1);
        wait.is_to_resume()
    }

    /// True if more than one read of a client connection waits for the fetch (shared read of a hot key) that
    /// holds back the connection's later requests.
    pub fn waits_often(&self, connection: u64) -> bool {
        self.waits.get(&connection).and_then(|wait| wait.bound).is_some_and(|(_, reads)| reads > 1)
    }

    /// Records that a fetch (shared read of a hot key) has been put on the connection to the store, so that
    /// later requests of a waiting client connection no longer wait for it. True if requests of the client
    /// connection that were held back may go on.
    pub fn handle_fetch_sent(&mut self, connection: u64, flight: FlightId) -> bool {
        let Some(wait) = self.waits.get_mut(&connection) else { return false };
        wait.bound.take_if(|(bound, _)| *bound == flight);
        wait.is_to_resume()
    }

    /// True if a client connection's latest request waits for this fetch (shared read of a hot key), so that
    /// the fetch may be sent again without being overtaken.
    pub fn is_latest(&self, connection: u64, flight: FlightId) -> bool {
        self.waits.get(&connection).is_some_and(|wait| wait.latest == Some(flight))
    }

    /// Holds back a client connection's later requests until a fetch (shared read of a hot key) has been sent
    /// or answered, for which `reads` of the connection's reads wait. With 0 reads, stops holding them back
    /// for any fetch. True if requests that were held back may go on.
    pub fn bind(&mut self, connection: u64, flight: FlightId, reads: u32) -> bool {
        let Some(wait) = self.waits.get_mut(&connection) else { return false };
        wait.bound = (reads > 0).then_some((flight, reads));
        wait.is_to_resume()
    }

    /// Records that a request which waited for no fetch (shared read of a hot key) is no longer in flight, answered or
    /// not. `was_sent` says whether it is known to have been sent. True if requests of its client connection that were
    /// held back may go on.
    pub fn handle_answered(&mut self, connection: u64, was_sent: bool) -> bool {
        self.handle_over(connection, |wait| {
            wait.own -= 1;
            wait.unsent -= u32::from(!was_sent);
            wait.has_written &= wait.own > 0;
        })
    }

    /// Records that a client connection's read no longer waits for a fetch (shared read of a hot key).
    /// `is_bound` says whether the read held back later requests of the connection. True if requests of the
    /// connection that were held back may go on now.
    pub fn handle_landed(&mut self, connection: u64, flight: FlightId, is_bound: bool) -> bool {
        self.handle_over(connection, |wait| {
            if let Some((bound, reads)) = &mut wait.bound
                && *bound == flight
                && is_bound
            {
                *reads -= 1;
                if *reads == 0 {
                    wait.bound = None;
                }
            }
        })
    }

    fn handle_over(&mut self, connection: u64, change: impl FnOnce(&mut Wait)) -> bool {
        let Some(wait) = self.waits.get_mut(&connection) else { return false };
        wait.requests -= 1;
        change(wait);
        if wait.requests == 0 && wait.held.is_empty() {
            self.waits.remove(&connection);
            return false;
        }
        wait.is_to_resume()
    }

    /// True if a client connection's next request for the key must be held back. False while requests for the
    /// key may be queued unnoticed: no read shares a fetch then, and the queue keeps the order of requests.
    pub fn is_to_wait(&self, connection: u64) -> bool {
        self.warmth != Warmth::Queued
            && self.waits.get(&connection).is_some_and(|wait| !wait.is_open() || !wait.held.is_empty())
    }

    /// True if requests of a client connection are held back and may go on now.
    pub fn is_to_resume(&self, connection: u64) -> bool {
        self.waits.get(&connection).is_some_and(Wait::is_to_resume)
    }

    /// Appends a request to those of its client connection that are held back.
    pub fn hold(&mut self, connection: u64, held: Held) {
        self.waits.entry(connection).or_default().held.push(held);
    }

    /// Holds reads back that their fetch (shared read of a hot key) could not answer, ahead of all other
    /// requests of their client connection that are held back.
    pub fn hold_first(&mut self, connection: u64, reads: impl Iterator<Item = Held>) {
        let wait = self.waits.entry(connection).or_default();
        wait.held.splice(..0, reads);
    }

    /// Takes all requests of a client connection that are held back, in their order, for the caller to handle
    /// now.
    pub fn take_held(&mut self, connection: u64) -> Vec<Held> {
        let Some(wait) = self.waits.get_mut(&connection) else { return Vec::new() };
        let held = std::mem::take(&mut wait.held);
        if wait.requests == 0 {
            self.waits.remove(&connection);
        }
        held
    }

    /// Returns the number of requests that are held back at least since the time `since`.
    pub fn held_since(&self, since: Timestamp) -> usize {
        let held = self.waits.values().flat_map(|wait| &wait.held);
        held.filter(|held| held.since <= since).count()
    }

    /// Takes the held-back requests whose deadline has passed.
    pub fn take_late(&mut self, now: Timestamp) -> Vec<Held> {
        let is_late = |held: &mut Held| held.answered_by() <= now;
        let late = self.waits.values_mut().flat_map(|wait| wait.held.extract_if(.., is_late)).collect();
        self.waits.retain(|_, wait| wait.requests > 0 || !wait.held.is_empty());
        late
    }

    /// Returns the earliest deadline of the held-back requests; `Timestamp::MAX` if none has one.
    pub fn held_until(&self) -> Timestamp {
        let held = self.waits.values().flat_map(|wait| &wait.held);
        held.map(Held::answered_by).min().unwrap_or(Timestamp::MAX)
    }

    /// Returns the client connections that have held-back requests, and those whose later requests are to be held back
    /// behind a fetch (shared read of a hot key).
    pub fn waiting(&self) -> Vec<u64> {
        let waiting = self.waits.iter().filter(|(_, wait)| wait.bound.is_some() || !wait.held.is_empty());
        waiting.map(|(connection, _)| *connection).collect()
    }

    /// Returns the fetch (shared read of a hot key) after which a client connection's later requests are held
    /// back; None if there is none.
    pub fn bound(&self, connection: u64) -> Option<FlightId> {
        self.waits.get(&connection).and_then(|wait| wait.bound).map(|(flight, _)| flight)
    }

    /// Returns the key's state as reports show it: `warming` (requests from before it became hot may be unanswered, so
    /// no reply is kept), `stale` (kept replies, perhaps expired ones, were sent in the last second because the store
    /// is unavailable), `shared` (reads share fetches, replies are not kept at present) or `kept` (replies are kept).
    pub fn state(&self, now: Timestamp) -> &'static str {
        match self.warmth {
            Warmth::Queued | Warmth::Sent { .. } => "warming",
            Warmth::Warm if self.stale_at.is_some_and(|at| now.since(at) < STALE_SHOWN) => "stale",
            Warmth::Warm if now < self.pauses_until => "shared",
            Warmth::Warm => "kept",
        }
    }

    /// Returns the number of kept replies (those held in memory) of the key, and their bytes.
    pub fn kept(&self) -> (usize, usize) {
        let kept = self.answers.iter().filter_map(|answer| answer.kept.as_ref());
        kept.fold((0, 0), |(count, bytes), kept| (count + 1, bytes + kept.reply.len()))
    }
}

impl Kept {
    /// True if the reply has not expired and the key was not written since the store was asked for it.
    #[inline]
    fn is_good(&self, versions: &Versions, now: Timestamp) -> bool {
        self.is_good_for(Duration::ZERO, versions, now)
    }

    /// True if the reply expired less than `longer` ago, its key has not expired itself, and was not written since the
    /// store was asked for the reply.
    #[inline]
    fn is_good_for(&self, longer: Duration, versions: &Versions, now: Timestamp) -> bool {
        !self.is_over(longer, now) && versions.is_good(&self.snapshot)
    }

    /// True if the reply expired `longer` ago or earlier, or its key, or a field that it is about, has expired.
    #[inline]
    fn is_over(&self, longer: Duration, now: Timestamp) -> bool {
        now >= self.good_until.after(longer).min(self.ends_at)
    }
}

/// A reply held in memory for a hot key that may have expired; it may be sent while the store is
/// unavailable.
#[derive(Debug)]
pub struct Stale<'a>(&'a Kept);

impl Stale<'_> {
    /// True if the reply may be sent to a tenant that accepts replies until `longer` after their expiry: that time is
    /// not over, its key has not expired itself, and was not written since. False if `longer` is zero.
    pub fn is_for(&self, longer: Duration, versions: &Versions, now: Timestamp) -> bool {
        !longer.is_zero() && self.0.is_good_for(longer, versions, now)
    }

    pub fn reply(&self) -> Bytes {
        self.0.reply.clone()
    }
}

impl Answer {
    #[inline]
    fn is_to(&self, frame: &[u8], protocol: Protocol) -> bool {
        self.protocol == protocol && self.frame == frame
    }

    /// True if this place for a kept reply (one held in memory) may be given to the reply to another request: no fetch
    /// of its reply is in progress, and its request did not come for 250 ms. So many different requests do not push
    /// each other out.
    fn is_idle(&self, now: Timestamp) -> bool {
        self.flights.is_empty() && now.since(self.used_at) >= IDLE
    }

    fn is_of(&self, flight: &Flight) -> bool {
        self.is_to(&flight.frame, flight.envelope.route.protocol)
    }
}

/// True if a reply may be kept. Errors are not kept, since their cause may be over in a moment; attributes
/// and pushes are for one client alone.
fn is_plain(reply: &[u8]) -> bool {
    !matches!(reply.first(), None | Some(b'-' | b'!' | b'|' | b'>'))
}

/// True if a reply may be that of a store in which the key does not exist, such as nil, 0 or an empty array.
fn says_nothing(reply: &[u8]) -> bool {
    const NOTHING: [&[u8]; 9] = [
        b"$-1\r\n",
        b"*-1\r\n",
        b"_\r\n",
        b":0\r\n",
        b"*0\r\n",
        b"%0\r\n",
        b"~0\r\n",
        b"$0\r\n\r\n",
        b"+none\r\n",
    ];
    NOTHING.contains(&reply)
}
