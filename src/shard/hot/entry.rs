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
use crate::shard::request::{Envelope, FlightId, NOBODY, Route};
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

/// How far it is that nothing is under way which was not noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmth {
    /// Requests from until then may be queued.
    Queued {
        /// When it became hot.
        until: Timestamp,
    },
    /// Requests that were sent until then may have yet to be answered.
    Sent {
        /// When none was queued any more.
        until: Timestamp,
    },
    /// All that is under way was noticed.
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
    /// It can be told when earlier reads of its connection have been answered, without sending it behind those.
    Later,
    /// Nothing, and why.
    Nothing(Counter),
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

/// What a connection waits for: replies to requests of its own, or to one fetch.
#[derive(Debug)]
struct Wait {
    requests: u32,
    flight: Option<FlightId>,
    has_written: bool,
    /// Reads that are looked at again when all of those have been answered.
    held: Vec<(Envelope, Vec<u8>)>,
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
    flight: Option<FlightId>,
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
            warmth: Warmth::Queued { until: now },
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
        Read { connection, route, frame, is_behind_any }: Read<'_>,
        (versions, flights): (&Versions, &Flights),
        ttl: Duration,
        now: Timestamp,
    ) -> Found {
        if is_behind_any {
            return Found::Nothing(Counter::HotBypassedOrder);
        }
        let own = self.waits.get(&connection);
        let pauses = now < self.pauses_until;
        if let Some(answer) = place.and_then(|place| self.answers.get(place)) {
            if own.is_none()
                && let Some(kept) = answer.kept.as_ref().filter(|kept| kept.is_good(versions, now))
            {
                let is_to_be_fetched = now >= kept.fetch_from && answer.flight.is_none() && !pauses;
                return Found::Kept { reply: kept.reply.clone(), is_to_be_fetched };
            }
            if let Some(id) = answer.flight
                && flights.is_open_to(id, route, versions, (ttl, now))
            {
                let is_first = own.is_none_or(|own| own.flight == Some(id));
                if is_first {
                    return Found::Flight(id);
                }
            }
        }
        if let Some(own) = own {
            // Else whoever has one read under way never gets at what is kept, as long as the store is slower than it asks.
            let is_held = own.flight.is_none() && !own.has_written && self.warmth == Warmth::Warm;
            if is_held { Found::Later } else { Found::Nothing(Counter::HotBypassedOrder) }
        } else if self.warmth != Warmth::Warm {
            Found::Nothing(Counter::HotBypassedWarming)
        } else if !self.has_place_for(frame, route.protocol, now) {
            Found::Nothing(Counter::HotBypassedOther)
        } else {
            Found::Fetchable
        }
    }

    /// Does it pay off?
    fn count(&mut self, found: &Found, is_fenced: bool, now: Timestamp) {
        let tally = &mut self.tally;
        if matches!(found, Found::Later) {
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
            Found::Nothing(_) | Found::Fetchable | Found::Later => {}
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
            (answer.flight, answer.terms) = (Some(flight), *envelope);
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
            flight: Some(flight),
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
            answer.flight.is_none()
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
        reply: &[u8],
        (settings, fits): (&HotSettings, bool),
        now: Timestamp,
    ) -> Counter {
        let chance = self.random.below(1_000) as f64 / 1_000.0 / f64::from(CHANCE_PART);
        let longest = settings.ttl.mul_f64(1.0 - chance);
        let Some(answer) = self.answers.iter_mut().find(|answer| answer.is_of(flight)) else {
            return Counter::HotDiscarded;
        };
        answer.flight.take_if(|own| *own == id);
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
        if let Some(answer) = self.answers.iter_mut().find(|answer| answer.flight == Some(flight)) {
            answer.flight = None;
        }
    }

    /// A connection waits for a reply about the key: that of a fetch, or its own. It never waits for both.
    pub fn handle_sent(&mut self, connection: u64, flight: Option<FlightId>, access: Access) {
        let wait = self.waits.entry(connection).or_insert_with(|| Wait {
            requests: 0,
            flight,
            has_written: false,
            held: Vec::new(),
        });
        debug_assert_eq!(wait.flight, flight, "nothing goes on while something waits for a fetch");
        wait.requests += 1;
        wait.has_written |= access == Access::Write;
    }

    /// It has got one. True if it gets at what it holds back.
    pub fn handle_answered(&mut self, connection: u64) -> bool {
        let Some(wait) = self.waits.get_mut(&connection) else { return false };
        wait.requests -= 1;
        if wait.requests == 0 && wait.held.is_empty() {
            self.waits.remove(&connection);
            return false;
        }
        wait.requests == 0
    }

    /// Is nothing of a connection under way?
    pub fn is_free(&self, connection: u64) -> bool {
        self.waits.get(&connection).is_none_or(|wait| wait.requests == 0)
    }

    /// A read is held back.
    pub fn hold(&mut self, envelope: &Envelope, frame: &[u8]) {
        if let Some(wait) = self.waits.get_mut(&envelope.reply_to.connection()) {
            wait.held.push((*envelope, frame.to_vec()));
        }
    }

    /// What it waited for in vain is looked at again.
    pub fn hold_again(&mut self, envelope: Envelope, frame: &[u8]) {
        if let Some(wait) = self.waits.get_mut(&envelope.reply_to.connection()) {
            wait.requests -= 1;
            wait.flight = None;
            wait.held.push((envelope, frame.to_vec()));
        }
    }

    /// What a connection holds back, in its order: it is seen to now.
    pub fn take_held(&mut self, connection: u64) -> Vec<(Envelope, Vec<u8>)> {
        let Some(wait) = self.waits.get_mut(&connection) else { return Vec::new() };
        let held = std::mem::take(&mut wait.held);
        if wait.requests == 0 {
            self.waits.remove(&connection);
        }
        held
    }

    /// Connections that wait for a fetch, or hold something back.
    pub fn waiting(&self) -> Vec<u64> {
        let waiting = self.waits.iter().filter(|(_, wait)| wait.flight.is_some() || !wait.held.is_empty());
        waiting.map(|(connection, _)| *connection).collect()
    }

    /// The fetch that a connection waits for, if it waits for one.
    pub fn flight_of(&self, connection: u64) -> Option<FlightId> {
        self.waits.get(&connection).and_then(|wait| wait.flight)
    }

    /// What is done about it.
    pub fn state(&self, now: Timestamp) -> &'static str {
        match self.warmth {
            Warmth::Queued { .. } | Warmth::Sent { .. } => "warming",
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
        self.flight.is_none() && now.since(self.used_at) >= IDLE
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
