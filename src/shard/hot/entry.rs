//! One hot key: replies that are kept, fetches of more of them, and which connections wait for something of it.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

use super::flights::{Expiry, Flight, Flights};
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
use crate::values::{BackendId, ShardId, TenantId, Timestamp};

/// What did not pay off is tried again after so long.
const PAUSE: Duration = Duration::from_secs(10);
/// Over how long it is seen whether keeping replies pays off, and from how many reads.
const TRIAL: Duration = Duration::from_secs(1);
const TRIAL_READS: u64 = 50;
/// A reply is fetched anew before it is too old: this much before at least, twice what fetching takes, and no more than a part of how
/// long it is good.
const AHEAD_LEAST: Duration = Duration::from_millis(2);
const AHEAD_PART: u32 = 4;
/// What was not asked for in so long makes room for others.
const IDLE: Duration = Duration::from_millis(250);
/// So much of what may be written in a row may be written at once.
const WRITE_BURST: Duration = Duration::from_millis(100);
/// Over how long it is seen which cores ask how much.
const COPIED_AFTER: Duration = Duration::from_millis(20);
/// For so long a key counts as one of which old replies are told, after the last one was.
const STALE_SHOWN: Duration = Duration::from_secs(1);
/// One part in so many of how long replies are good is left to chance, so that many keys are not fetched together.
const CHANCE_PART: u32 = 10;

/// How much is known of the requests that came before the key was hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmth {
    /// Requests for the key may be queued that nobody has noticed: its reads go on by themselves.
    Queued,
    /// All that is queued is known, but requests that were sent until then may have yet to be answered, writes among them. Reads share
    /// fetches that are sent after they came; nothing is kept. Before a cluster they go by themselves: what was sent may have to be sent
    /// to another node, and a fetch, which is of no connection, could be there before it.
    Sent {
        /// When the last of them may have been sent.
        until: Timestamp,
    },
    /// All that has yet to be answered is known: replies are kept, too.
    Warm,
}

/// What there is for a read.
#[derive(Debug)]
pub enum Found {
    /// Its reply. It may be so old that it should be fetched again.
    Kept {
        /// The reply.
        reply: Bytes,
        /// It will soon be too old.
        is_to_be_fetched: bool,
    },
    /// What it asks for is on its way.
    Flight(FlightId),
    /// It may be fetched.
    Fetchable,
    /// It waits until nothing that its connection asked for before can be overtaken by it.
    Behind,
    /// Nothing, and why.
    Nothing(Counter),
}

/// The way that a request for the key takes to its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It waits for a fetch.
    Fetch(FlightId),
    /// It is sent by itself.
    Own(Access),
}

/// A read that may be answered from memory.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// Who asks.
    pub connection: u64,
    /// Which way it would go.
    pub route: Route,
    /// All of it.
    pub frame: &'a [u8],
    /// Something that its connection asked for before has yet to be answered, and may be about any key.
    pub is_behind_any: bool,
    /// Requests may be sent once more, later than others that were sent after them: a node of a cluster refuses what it no longer owns.
    pub may_move: bool,
}

/// What became of requests for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    since: Timestamp,
    reads: u64,
    useful: u64,
    fenced: u64,
    /// Since it became hot.
    pub hits: u64,
    /// Likewise.
    pub all_reads: u64,
    /// Likewise.
    pub writes: u64,
}

/// One connection's requests for the key that have yet to be answered, and those that are held back behind them.
///
/// All of them go over one connection to the store, where nothing overtakes what was sent before it. So a request only waits for
/// earlier ones of its connection that have yet to be sent, and for reads that may have to be asked for again.
#[derive(Debug, Default)]
struct Wait {
    /// Requests that have yet to be answered.
    requests: u32,
    /// Requests among them that go by themselves.
    own: u32,
    /// Requests among those that are not on their way yet.
    unsent: u32,
    /// A write is among those that go by themselves.
    has_written: bool,
    /// The fetch that the latest request waits for; none if that goes by itself.
    latest: Option<FlightId>,
    /// A fetch that nothing of this connection but further reads of it may pass, and how many of its reads wait for that: it has yet
    /// to be sent, or they came after it was.
    bound: Option<(FlightId, u32)>,
    /// Requests that are looked at again, in their order, when nothing is unsent or bound any more, or is answered.
    held: Vec<Held>,
}

/// A request that is held back on its key's home core.
#[derive(Debug)]
pub struct Held {
    /// What travels with it.
    pub envelope: Envelope,
    /// All of it.
    pub frame: Vec<u8>,
    /// Since when it is held back.
    pub since: Timestamp,
}

impl Held {
    /// When it is answered at the latest.
    pub fn answered_by(&self) -> Timestamp {
        if self.envelope.overdue == Overdue::Answered { self.envelope.deadline } else { Timestamp::MAX }
    }
}

impl Wait {
    /// True if a request may go its own way without overtaking any.
    fn is_open(&self) -> bool {
        self.unsent == 0 && self.bound.is_none()
    }

    /// True if requests are held back that may go on now.
    fn is_to_resume(&self) -> bool {
        self.is_open() && !self.held.is_empty()
    }
}

#[derive(Debug)]
struct Kept {
    reply: Bytes,
    snapshot: Snapshot,
    good_until: Timestamp,
    fetch_from: Timestamp,
    /// When the key ends by itself, if it does.
    ends_at: Timestamp,
}

/// The reply to one frame, in one dialect.
#[derive(Debug)]
struct Answer {
    frame: Vec<u8>,
    protocol: Protocol,
    kept: Option<Kept>,
    /// Fetches of it that have yet to end, the latest one last.
    flights: Vec<FlightId>,
    too_large_until: Timestamp,
    used_at: Timestamp,
    /// Those of the request that it was fetched for last.
    terms: Envelope,
}

/// How often other cores asked, or answered from copies.
#[derive(Debug, Default)]
struct Elsewhere {
    since: Timestamp,
    asked: HashMap<ShardId, u32>,
    holders: Vec<ShardId>,
}

/// One hot key.
#[derive(Debug)]
pub struct Entry {
    pub id: HotId,
    pub key: Vec<u8>,
    pub slot: u16,
    pub hash: u64,
    pub backend: BackendId,
    pub warmth: Warmth,
    pub tally: Tally,
    /// Who asked for it last.
    pub last_asker: TenantId,
    cell: Cell,
    answers: Vec<Answer>,
    waits: HashMap<u64, Wait>,
    elsewhere: Elsewhere,
    /// What was written so far took until then, at the rate that is allowed.
    writes_until: Timestamp,
    pauses_until: Timestamp,
    /// When somebody was told what was too old, because the store was away.
    stale_at: Option<Timestamp>,
    random: Random,
}

impl Entry {
    pub fn new(id: HotId, key: &[u8], (slot, hash): (u16, u64), backend: BackendId, now: Timestamp) -> Self {
        Self {
            id,
            key: key.to_vec(),
            slot,
            hash,
            backend,
            warmth: Warmth::Queued,
            tally: Tally { since: now, ..Tally::default() },
            last_asker: NOBODY,
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

    /// How it stands with writes of the key, if none is under way.
    pub fn snapshot(&self, versions: &Versions) -> Option<Snapshot> {
        versions.snapshot(self.cell, Cell::of_backend(self.backend))
    }

    /// How it stands with them, whatever is under way.
    pub fn look_at(&self, versions: &Versions) -> Snapshot {
        versions.look(self.cell, Cell::of_backend(self.backend))
    }

    /// What there is for a read.
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
                answer.kept.take_if(|kept| !kept.is_good_for(stale_max, versions, now));
            }
        }
        let is_fenced = !matches!(found, Found::Kept { .. }) && self.snapshot(versions).is_none();
        self.count(&found, is_fenced, now);
        found
    }

    /// The same, without a trace.
    pub fn foresee(
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
            return Found::Kept { reply: kept.reply.clone(), is_to_be_fetched };
        }
        // The latest one alone: whoever waits for it may not be told what an earlier one finds.
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
        // Behind reads that nobody shares it is told what is kept as soon as those are answered.
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

    /// Does it pay off?
    fn count(&mut self, found: &Found, is_fenced: bool, now: Timestamp) {
        let tally = &mut self.tally;
        if matches!(found, Found::Behind) {
            return;
        }
        tally.all_reads += 1;
        // What must not overtake earlier requests says nothing of how it goes once those are answered.
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
            // What is on its way already was asked for in the same moment: that is nobody's fault.
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

    /// May the reply that is fetched be kept?
    pub fn may_keep(&self, flight: &Flight, now: Timestamp) -> bool {
        let answer = self.answers.iter().find(|answer| answer.is_of(flight));
        now >= self.pauses_until && answer.is_some_and(|answer| now >= answer.too_large_until)
    }

    /// It is being fetched.
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

    /// Another core asked for it so often, or answered from copies. True if it is to be seen anew which of them should have copies.
    pub fn handle_elsewhere(&mut self, from: ShardId, count: u32, now: Timestamp) -> bool {
        *self.elsewhere.asked.entry(from).or_default() += count;
        now.since(self.elsewhere.since) >= COPIED_AFTER
    }

    /// Which cores should have copies, from now on: of those that ask much, if all of them ask very much. Those that are new among them.
    pub fn choose_holders(&mut self, settings: &HotSettings, now: Timestamp) -> Vec<ShardId> {
        let Elsewhere { since, asked, holders } = &mut self.elsewhere;
        let seconds = now.since(*since).as_secs_f64().max(COPIED_AFTER.as_secs_f64());
        *since = now;
        let [all, each] = settings.copied_from.map(|rate| rate as f64 * seconds);
        let is_much = asked.values().map(|count| f64::from(*count)).sum::<f64>() >= all;
        let much = asked.drain().filter(|(_, count)| is_much && f64::from(*count) >= each);
        let mut chosen: Vec<ShardId> = much.map(|(shard, _)| shard).collect();
        chosen.sort_unstable();
        let before = std::mem::replace(holders, chosen);
        holders.iter().copied().filter(|shard| !before.contains(shard)).collect()
    }

    /// May it be written once more, at so many writes per second? Or when?
    pub fn take_write(&mut self, rate: u64, now: Timestamp) -> Result<(), Duration> {
        // One write takes so long; a tenth of a second's may come at once.
        let each = Duration::from_secs_f64(1.0 / rate as f64);
        let free_at = self.writes_until.max(now.before(WRITE_BURST));
        let wait = free_at.after(each).since(now);
        if wait > each.max(Duration::from_millis(1)) {
            return Err(wait);
        }
        self.writes_until = free_at.after(each);
        Ok(())
    }

    /// Other cores have answered so often.
    pub fn handle_hits(&mut self, hits: u32) {
        self.tally.hits += u64::from(hits);
        self.tally.all_reads += u64::from(hits);
    }

    /// Those that have.
    pub fn holders(&self) -> &[ShardId] {
        &self.elsewhere.holders
    }

    /// Copies of what is kept; of one reply only, if one is named.
    pub fn copies(&self, home: ShardId, only: Option<&Flight>) -> impl Iterator<Item = Copy> {
        let meant = self.answers.iter().filter(move |answer| only.is_none_or(|flight| answer.is_of(flight)));
        meant.filter_map(move |answer| {
            let kept = answer.kept.as_ref()?;
            Some(Copy {
                home,
                id: self.id,
                slot: answer.terms.route.slot,
                frame: Bytes::copy_from_slice(&answer.frame),
                protocol: answer.protocol,
                reply: kept.reply.clone(),
                snapshot: kept.snapshot,
                good_until: kept.good_until,
            })
        })
    }

    /// What will soon be too old, and is answered from copies, so that nobody asks for it here: its frame, and on whose terms to fetch it.
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

    /// Forgets what is kept of the same and another reply than this one, which was read now. True if it was still told to those who ask.
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
            // What else would be told only if the store were away is from before that, too.
            self.drop_old(now);
        }
        differing.iter().any(|kept| kept.is_good(versions, now))
    }

    /// What is told instead of a reply that cannot be fetched because the store is away; for whom it depends on how much older than
    /// usual that may be.
    pub fn stale(&self, flight: &Flight) -> Option<Stale<'_>> {
        let own = self.answers.iter().find(|answer| answer.is_of(flight));
        let is_value = value::key_of(&flight.frame).is_some();
        let value = || self.stale_values(flight.envelope.route.protocol).next().filter(|_| is_value);
        own.and_then(|answer| answer.kept.as_ref().map(Stale)).or_else(value)
    }

    /// The same for the key's value, by all that is kept of it.
    pub fn stale_values(&self, protocol: Protocol) -> impl Iterator<Item = Stale<'_>> {
        let is_value =
            move |answer: &&Answer| answer.protocol == protocol && value::key_of(&answer.frame).is_some();
        self.answers.iter().filter(is_value).filter_map(|answer| answer.kept.as_ref().map(Stale))
    }

    /// Somebody was told that, beside other values.
    pub fn handle_stale_value(&mut self, now: Timestamp) {
        self.stale_at = Some(now);
        self.handle_hits(1);
    }

    /// Somebody was told that, so often.
    pub fn handle_stale(&mut self, count: usize, now: Timestamp) {
        self.stale_at = Some(now);
        self.tally.hits += count as u64;
        // All but the one that had it fetched have been counted as such.
        self.tally.useful += 1;
    }

    /// What is too old makes room.
    pub fn drop_old(&mut self, now: Timestamp) {
        for answer in &mut self.answers {
            answer.kept.take_if(|kept| now >= kept.good_until);
        }
    }

    /// What was kept gives way to what was fetched.
    pub fn forget(&mut self, flight: &Flight) {
        if let Some(answer) = self.answers.iter_mut().find(|answer| answer.is_of(flight)) {
            answer.kept = None;
        }
    }

    /// It was fetched. What became of it.
    pub fn handle_fetched(
        &mut self,
        id: FlightId,
        flight: &Flight,
        (reply, told): (&[u8], Told),
        (settings, fits): (&HotSettings, bool),
        now: Timestamp,
    ) -> Counter {
        let chance = self.random.below(1_000) as f64 / 1_000.0 / f64::from(CHANCE_PART);
        let longest = settings.ttl.mul_f64(1.0 - chance);
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
        let lifetime = match flight.expiry {
            Expiry::Never => longest,
            Expiry::In(left) => left.min(longest),
            Expiry::NoKey if says_nothing(reply) => longest,
            Expiry::NoKey | Expiry::Unknown => Duration::ZERO,
        };
        let ends_at = match flight.expiry {
            Expiry::In(left) => flight.sent_at.after(left),
            Expiry::Never | Expiry::NoKey | Expiry::Unknown => Timestamp::MAX,
        };
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
            snapshot,
            good_until,
            ends_at,
            fetch_from: flight.sent_at.after(lifetime.saturating_sub(ahead)),
        });
        Counter::HotFetched
    }

    /// It could not be fetched.
    pub fn handle_failed(&mut self, flight: FlightId) {
        for answer in &mut self.answers {
            answer.flights.retain(|own| *own != flight);
        }
    }

    /// The fetches of the answer that a fetch is for, itself among them.
    pub fn flights_beside(&self, flight: &Flight) -> &[FlightId] {
        let answer = self.answers.iter().find(|answer| answer.is_of(flight));
        answer.map_or(&[], |answer| &answer.flights)
    }

    /// All fetches for the key that have yet to end.
    pub fn flights(&self) -> impl Iterator<Item = FlightId> {
        self.answers.iter().flat_map(|answer| answer.flights.iter().copied())
    }

    /// A request of a connection goes on.
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

    /// A request that goes by itself is on its way. True if requests of its connection may go on that were held back.
    pub fn handle_own_sent(&mut self, connection: u64) -> bool {
        let Some(wait) = self.waits.get_mut(&connection) else { return false };
        wait.unsent = wait.unsent.saturating_sub(1);
        wait.is_to_resume()
    }

    /// True if a connection has more than one read waiting for the fetch that it is bound to.
    pub fn waits_often(&self, connection: u64) -> bool {
        self.waits.get(&connection).and_then(|wait| wait.bound).is_some_and(|(_, reads)| reads > 1)
    }

    /// A fetch is on its way, which a connection waits for. True if requests of it may go on that were held back.
    pub fn handle_fetch_sent(&mut self, connection: u64, flight: FlightId) -> bool {
        let Some(wait) = self.waits.get_mut(&connection) else { return false };
        wait.bound.take_if(|(bound, _)| *bound == flight);
        wait.is_to_resume()
    }

    /// True if nothing of a connection has gone another way since its reads joined a fetch, so that they may still be asked for later.
    pub fn is_latest(&self, connection: u64, flight: FlightId) -> bool {
        self.waits.get(&connection).is_some_and(|wait| wait.latest == Some(flight))
    }

    /// A fetch is to be sent once more, and so many reads of a connection wait for that.
    pub fn bind(&mut self, connection: u64, flight: FlightId, reads: u32) {
        if let Some(wait) = self.waits.get_mut(&connection) {
            wait.bound = (reads > 0).then_some((flight, reads));
        }
    }

    /// A request that went by itself has its reply, or never will have one. `was_sent` says whether it is known to have been on its
    /// way. True if requests of its connection may go on that were held back.
    pub fn handle_answered(&mut self, connection: u64, was_sent: bool) -> bool {
        self.handle_over(connection, |wait| {
            wait.own -= 1;
            wait.unsent -= u32::from(!was_sent);
            wait.has_written &= wait.own > 0;
        })
    }

    /// The same for a read that has waited for a fetch. `is_bound` says whether nothing could pass it so far.
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

    /// True if a connection has a request that must be sent before any other of its requests for the key. While some may be queued that
    /// nobody has noticed, all go by themselves: the queue keeps their order.
    pub fn is_to_wait(&self, connection: u64) -> bool {
        self.warmth != Warmth::Queued
            && self.waits.get(&connection).is_some_and(|wait| !wait.is_open() || !wait.held.is_empty())
    }

    /// True if requests of a connection are held back that may go on.
    pub fn is_to_resume(&self, connection: u64) -> bool {
        self.waits.get(&connection).is_some_and(Wait::is_to_resume)
    }

    /// A request is held back.
    pub fn hold(&mut self, connection: u64, held: Held) {
        self.waits.entry(connection).or_default().held.push(held);
    }

    /// Reads that waited for a fetch in vain are looked at again, before all that is held back behind them.
    pub fn hold_first(&mut self, connection: u64, reads: impl Iterator<Item = Held>) {
        let wait = self.waits.entry(connection).or_default();
        wait.held.splice(..0, reads);
    }

    /// What a connection holds back, in its order: it is seen to now.
    pub fn take_held(&mut self, connection: u64) -> Vec<Held> {
        let Some(wait) = self.waits.get_mut(&connection) else { return Vec::new() };
        let held = std::mem::take(&mut wait.held);
        if wait.requests == 0 {
            self.waits.remove(&connection);
        }
        held
    }

    /// How many requests have been held back since then, or longer.
    pub fn held_since(&self, since: Timestamp) -> usize {
        let held = self.waits.values().flat_map(|wait| &wait.held);
        held.filter(|held| held.since <= since).count()
    }

    /// Takes what is held back and of no use any more, because its deadline has passed.
    pub fn take_late(&mut self, now: Timestamp) -> Vec<Held> {
        let is_late = |held: &mut Held| held.answered_by() <= now;
        let late = self.waits.values_mut().flat_map(|wait| wait.held.extract_if(.., is_late)).collect();
        self.waits.retain(|_, wait| wait.requests > 0 || !wait.held.is_empty());
        late
    }

    /// The earliest deadline of what is held back; the end of time if none has any.
    pub fn held_until(&self) -> Timestamp {
        let held = self.waits.values().flat_map(|wait| &wait.held);
        held.map(Held::answered_by).min().unwrap_or(Timestamp::MAX)
    }

    /// Connections that are bound to a fetch, or hold something back.
    pub fn waiting(&self) -> Vec<u64> {
        let waiting = self.waits.iter().filter(|(_, wait)| wait.bound.is_some() || !wait.held.is_empty());
        waiting.map(|(connection, _)| *connection).collect()
    }

    /// The fetch that a connection is bound to, if it is bound to one.
    pub fn bound(&self, connection: u64) -> Option<FlightId> {
        self.waits.get(&connection).and_then(|wait| wait.bound).map(|(flight, _)| flight)
    }

    /// What is done about it.
    pub fn state(&self, now: Timestamp) -> &'static str {
        match self.warmth {
            Warmth::Queued | Warmth::Sent { .. } => "warming",
            Warmth::Warm if self.stale_at.is_some_and(|at| now.since(at) < STALE_SHOWN) => "stale",
            Warmth::Warm if now < self.pauses_until => "shared",
            Warmth::Warm => "kept",
        }
    }

    /// Replies that are kept, and bytes of those.
    pub fn kept(&self) -> (usize, usize) {
        let kept = self.answers.iter().filter_map(|answer| answer.kept.as_ref());
        kept.fold((0, 0), |(count, bytes), kept| (count + 1, bytes + kept.reply.len()))
    }
}

impl Kept {
    /// It is not too old, and nothing was written since.
    #[inline]
    fn is_good(&self, versions: &Versions, now: Timestamp) -> bool {
        self.is_good_for(Duration::ZERO, versions, now)
    }

    /// The same, if it may be so much older than usual. Never what was written since, nor what the key held before its own end.
    #[inline]
    fn is_good_for(&self, longer: Duration, versions: &Versions, now: Timestamp) -> bool {
        now < self.good_until.after(longer).min(self.ends_at) && versions.is_good(&self.snapshot)
    }
}

/// A reply that may be too old.
#[derive(Debug)]
pub struct Stale<'a>(&'a Kept);

impl Stale<'_> {
    /// May it be told to somebody who takes what is so much older than usual?
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

    /// May another take its place? Where more are asked for than there are places, those that have one keep it.
    fn is_idle(&self, now: Timestamp) -> bool {
        self.flights.is_empty() && now.since(self.used_at) >= IDLE
    }

    fn is_of(&self, flight: &Flight) -> bool {
        self.is_to(&flight.frame, flight.envelope.route.protocol)
    }
}

/// Errors may be over in a moment, and attributes and pushes are for one client alone.
fn is_plain(reply: &[u8]) -> bool {
    !matches!(reply.first(), None | Some(b'-' | b'!' | b'|' | b'>'))
}

/// Is it what is said of a key that does not exist?
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
