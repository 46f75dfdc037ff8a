//! Reads that several requests wait for. Each belongs to nobody: whoever asked first may leave, or not wait any longer.

use std::time::Duration;

use bytes::Bytes;
use slab::Slab;

use super::as_fetched;
use crate::policy::hot_keys::HotId;
use crate::protocol::reply;
use crate::shard::last_told::Look;
use crate::shard::outcome::Outcome;
use crate::shard::request::{Envelope, FlightId, Overdue, ReplyTo, Route};
use crate::shard::versions::{Snapshot, Versions};
use crate::values::limits::{HOT_WAITERS_MAX, HOT_WAITERS_PER_FLIGHT_MAX};
use crate::values::{ShardId, Tier, Timestamp};

/// What a store says of how long a key will exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// It was not asked, or said something else.
    Unknown,
    /// There is no such key.
    NoKey,
    /// Forever.
    Never,
    /// So long, from when it was asked.
    In(Duration),
}

/// One read.
#[derive(Debug)]
pub struct Flight {
    generation: u32,
    /// On whose terms it is sent.
    pub envelope: Envelope,
    pub hot: HotId,
    pub frame: Vec<u8>,
    /// Who waits, in the order in which they came.
    pub waiters: Vec<Waiter>,
    pub stage: Stage,
    /// When it was sent, if it was.
    pub sent_at: Timestamp,
    /// How it stood with writes then.
    pub snapshot: Option<Snapshot>,
    /// What had been told of it then.
    pub look: Option<Look>,
    /// The reply is kept, unless something speaks against it.
    pub is_kept: bool,
    /// The store is asked when the key ends, too.
    pub asks_expiry: bool,
    pub expiry: Expiry,
    /// Nothing of its waiters' connections may pass it before it comes back.
    pub binds: bool,
    /// It makes what is kept younger: it is sent though nobody waits for it.
    is_ahead_of_time: bool,
    has_failed: bool,
}

/// How far a fetch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for an earlier one to come back.
    Gathering,
    /// It is to be sent, as soon as there is room at its store.
    Leaving,
    /// It is on its connection to the store.
    Sent,
}

/// A read that waits for a fetch.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    pub envelope: Envelope,
    /// Nothing of its connection passes the fetch before that comes back: the fetch had been sent when it came, or its connection waits
    /// for it more than once, and may get only some of the replies at a time.
    pub is_bound: bool,
}

impl Flight {
    /// It is on its connection to the store.
    pub fn handle_sent(&mut self, snapshot: Option<Snapshot>, look: Look, is_kept: bool, now: Timestamp) {
        (self.sent_at, self.stage, self.look) = (now, Stage::Sent, Some(look));
        (self.snapshot, self.is_kept, self.expiry) = (snapshot, is_kept, Expiry::Unknown);
    }

    /// True if nothing of a waiter's connection could pass it so far.
    pub fn is_bound(&self, waiter: &Waiter) -> bool {
        self.stage != Stage::Sent || self.binds || waiter.is_bound
    }

    /// Waiters of whose connections nothing could pass it so far.
    pub fn bound(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter().filter(|waiter| self.is_bound(waiter))
    }

    /// True if it need not be sent.
    pub fn is_for_nobody(&self) -> bool {
        self.waiters.is_empty() && !self.is_ahead_of_time
    }

    /// It is sent for whoever waits most urgently.
    pub fn tier(&self) -> Tier {
        self.waiters.iter().map(|waiter| waiter.envelope.tier).min().unwrap_or(self.envelope.tier)
    }

    /// Has the key ended by itself meanwhile? Whoever asked after that must not be told what it held.
    pub fn has_ended(&self, now: Timestamp) -> bool {
        matches!(self.expiry, Expiry::In(left) if now >= self.sent_at.after(left))
    }

    /// What the store says of how long the key will exist.
    pub fn handle_expiry(&mut self, outcome: Outcome, told: &[u8]) {
        self.expiry = match reply::integer(told) {
            _ if !matches!(outcome, Outcome::Served { .. }) => Expiry::Unknown,
            Some(-1) => Expiry::Never,
            Some(-2) => Expiry::NoKey,
            Some(left) if left >= 0 => Expiry::In(Duration::from_millis(left.unsigned_abs())),
            _ => Expiry::Unknown,
        };
    }
}

/// Who gets what was fetched.
#[derive(Debug)]
pub struct Landed {
    waiters: std::vec::IntoIter<Waiter>,
    outcome: Outcome,
    /// Who gets what is too old instead, because it could not be fetched, and that.
    spared: std::vec::IntoIter<Envelope>,
    stale: Bytes,
}

impl Landed {
    pub fn new(waiters: Vec<Waiter>, outcome: Outcome) -> Self {
        Self { waiters: waiters.into_iter(), outcome, spared: Vec::new().into_iter(), stale: Bytes::new() }
    }

    /// These are told something else than what came.
    pub fn sparing(self, (spared, stale): (Vec<Envelope>, Bytes)) -> Self {
        Self { spared: spared.into_iter(), stale, ..self }
    }

    /// What the next one of those is told, and what became of its request.
    pub fn next_spared(&mut self) -> Option<(ReplyTo, Outcome, Bytes)> {
        let to = self.spared.next()?.reply_to;
        Some((to, Outcome::cached(self.stale.len()), self.stale.clone()))
    }

    /// The next one, and what became of its request: who asked first pays for all of it.
    pub fn next(&mut self, reply_bytes: usize) -> Option<(ReplyTo, Outcome)> {
        let to = self.waiters.next()?.envelope.reply_to;
        let others = match self.outcome {
            Outcome::Served { .. } | Outcome::Cached { .. } => Outcome::cached(reply_bytes),
            Outcome::Lost | Outcome::Refused => Outcome::Refused,
        };
        Some((to, std::mem::replace(&mut self.outcome, others)))
    }
}

/// A read whose deadline has passed while it waited for a fetch.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    pub envelope: Envelope,
    pub hot: HotId,
    pub flight: FlightId,
    /// Nothing of its connection could pass the fetch so far.
    pub is_bound: bool,
    /// For how long the fetch has been on its way.
    pub waited: Duration,
}

/// All reads of one core.
#[derive(Debug, Default)]
pub struct Flights {
    all: Slab<Flight>,
    generations: u32,
    waiters: usize,
    /// Nobody's time is over before.
    late_at: Option<Timestamp>,
}

impl Flights {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Requests that wait, over all of them.
    pub fn waiters(&self) -> usize {
        self.waiters
    }

    /// A new one, on the terms of a request.
    pub fn begin(
        &mut self,
        shard: ShardId,
        terms: Envelope,
        (hot, is_ahead_of_time): (HotId, bool),
        frame: &[u8],
    ) -> FlightId {
        self.generations = self.generations.wrapping_add(1);
        let place = self.all.vacant_entry();
        let id = FlightId { index: place.key() as u32, generation: self.generations };
        place.insert(Flight {
            generation: id.generation,
            envelope: Envelope { reply_to: ReplyTo::flight(shard, id), ..terms },
            hot,
            frame: frame.to_vec(),
            waiters: Vec::new(),
            stage: Stage::Gathering,
            sent_at: Timestamp::ZERO,
            snapshot: None,
            look: None,
            is_kept: false,
            asks_expiry: false,
            binds: false,
            expiry: Expiry::Unknown,
            is_ahead_of_time,
            has_failed: false,
        });
        id
    }

    pub fn get(&mut self, id: FlightId) -> Option<&mut Flight> {
        self.all.get_mut(id.index as usize).filter(|flight| flight.generation == id.generation)
    }

    fn find(&self, id: FlightId) -> Option<&Flight> {
        self.all.get(id.index as usize).filter(|flight| flight.generation == id.generation)
    }

    /// The latest of some fetches that take this route.
    pub fn latest_of(&self, ids: &[FlightId], route: Route) -> Option<FlightId> {
        let takes = |id: &&FlightId| self.find(**id).is_some_and(|flight| flight.envelope.route == route);
        ids.iter().rev().find(takes).copied()
    }

    /// True for a fetch that has yet to be sent, for the first time: whoever comes before that may wait for it, whatever is written.
    pub fn is_gathering(&self, id: FlightId) -> bool {
        self.find(id).is_some_and(|flight| flight.stage != Stage::Sent && !flight.has_failed)
    }

    /// True for a fetch that was sent and may be waited for all the same: what it finds is neither older than what is kept may be, nor
    /// from before a write that anybody may have seen, because none was under way, and none has begun; and nobody has read it meanwhile
    /// who might have seen a write that went around weir.
    pub fn is_fresh(&self, id: FlightId, versions: &Versions, (ttl, now): (Duration, Timestamp)) -> bool {
        self.find(id).is_some_and(|flight| {
            flight.stage == Stage::Sent
                && flight.asks_expiry
                && now < flight.sent_at.after(ttl)
                && flight.snapshot.is_some_and(|seen| seen.is_quiet() && versions.is_good(&seen))
                && flight.look.is_some_and(|look| versions.last_told.is_latest(&look))
        })
    }

    /// True if a fetch may leave while these others for the same answer are not over: none of them was sent, or one, of which a write
    /// has made whatever it finds too old.
    pub fn may_leave(&self, id: FlightId, beside: &[FlightId], versions: &Versions) -> bool {
        let Some(flight) = self.find(id) else { return false };
        let others = beside.iter().filter(|other| **other != id).filter_map(|other| self.find(*other));
        let mut before = others
            .filter(|other| other.envelope.route == flight.envelope.route && other.stage != Stage::Gathering);
        let Some(first) = before.next() else { return true };
        let is_outdated = first.stage == Stage::Sent
            && first.snapshot.is_some_and(|snapshot| versions.has_begun_since(&snapshot));
        is_outdated && before.next().is_none()
    }

    /// One more waits for it. False if as many do as may.
    pub fn join(&mut self, id: FlightId, envelope: &Envelope, obeys_deadlines: bool) -> bool {
        let has_room = self.waiters < HOT_WAITERS_MAX;
        let Some(flight) = self.get(id) else { return false };
        if !has_room || flight.waiters.len() >= HOT_WAITERS_PER_FLIGHT_MAX {
            return false;
        }
        let is_obeyed = obeys_deadlines && envelope.overdue == Overdue::Answered;
        let deadline = if is_obeyed { envelope.deadline } else { Timestamp::MAX };
        let is_bound = flight.stage == Stage::Sent;
        flight.waiters.push(Waiter { envelope: Envelope { deadline, ..*envelope }, is_bound });
        self.waiters += 1;
        if deadline != Timestamp::MAX {
            self.late_at = Some(self.late_at.map_or(deadline, |late_at| late_at.min(deadline)));
        }
        true
    }

    /// Those of a connection that it is bound to wait no more. Each with the frame that it would have sent.
    pub fn leave(&mut self, id: FlightId, is_own: impl Fn(&Envelope) -> bool) -> Vec<(Envelope, Vec<u8>)> {
        let Some(flight) = self.get(id) else { return Vec::new() };
        let binds_all = flight.stage != Stage::Sent || flight.binds;
        let is_left = |waiter: &mut Waiter| (binds_all || waiter.is_bound) && is_own(&waiter.envelope);
        let left: Vec<Waiter> = flight.waiters.extract_if(.., is_left).collect();
        let left: Vec<_> = left.into_iter().map(|waiter| (waiter.envelope, flight.frame.clone())).collect();
        self.waiters -= left.len();
        left
    }

    /// Those that may wait no more: they are told something else.
    pub fn spare(&mut self, id: FlightId, may_be: impl Fn(&Envelope) -> bool) -> Vec<Waiter> {
        let Some(flight) = self.get(id) else { return Vec::new() };
        let may_be = |waiter: &mut Waiter| may_be(&waiter.envelope);
        let spared: Vec<Waiter> = flight.waiters.extract_if(.., may_be).collect();
        self.waiters -= spared.len();
        spared
    }

    /// It has failed. If that is the first time, and others wait for it than who asked first, that one is told so, and it is sent again
    /// for the others that may still wait, on the terms of the first of them. Who is told so.
    pub fn begin_again(&mut self, id: FlightId, may_wait: impl Fn(&Envelope) -> bool) -> Option<Vec<Waiter>> {
        let flight = self.get(id).filter(|flight| !flight.has_failed)?;
        let first = flight.waiters.first()?.envelope.reply_to;
        let is_told = |waiter: &Waiter| waiter.envelope.reply_to == first || !may_wait(&waiter.envelope);
        if flight.waiters.iter().all(is_told) {
            return None;
        }
        let told: Vec<Waiter> = flight.waiters.extract_if(.., |waiter| is_told(waiter)).collect();
        flight.waiters.iter_mut().for_each(|waiter| waiter.is_bound = false);
        let Envelope { reply_to, touches, deadline, overdue, .. } = flight.envelope;
        flight.envelope = Envelope { reply_to, touches, deadline, overdue, ..flight.waiters[0].envelope };
        flight.envelope.route = as_fetched(flight.envelope.route);
        (flight.has_failed, flight.stage) = (true, Stage::Leaving);
        self.waiters -= told.len();
        Some(told)
    }

    /// It is over.
    pub fn end(&mut self, id: FlightId) -> Option<Flight> {
        self.get(id)?;
        let flight = self.all.remove(id.index as usize);
        self.waiters -= flight.waiters.len();
        Some(flight)
    }

    /// The keys of those that have been under way since before then, and how many wait.
    pub fn slow(&self, before: Timestamp) -> impl Iterator<Item = (HotId, usize)> {
        let is_slow = move |flight: &&Flight| flight.stage == Stage::Sent && flight.sent_at < before;
        let all = self.all.iter().map(|(_, flight)| flight).filter(is_slow);
        all.map(|flight| (flight.hot, flight.waiters.len()))
    }

    /// When somebody's time is over.
    pub fn late_at(&self) -> Option<Timestamp> {
        self.late_at
    }

    /// Those whose time is over, and for how long each fetch has been under way.
    pub fn take_late(&mut self, now: Timestamp) -> Vec<Late> {
        let mut late = Vec::new();
        if self.late_at.is_none_or(|late_at| late_at > now) {
            return late;
        }
        let mut next = Timestamp::MAX;
        for (index, flight) in &mut self.all {
            let is_sent = flight.stage == Stage::Sent;
            let waited = now.since(if is_sent { flight.sent_at } else { now });
            let binds_all = !is_sent || flight.binds;
            let (hot, generation) = (flight.hot, flight.generation);
            let id = FlightId { index: index as u32, generation };
            let is_over = |waiter: &mut Waiter| waiter.envelope.deadline <= now;
            late.extend(flight.waiters.extract_if(.., is_over).map(|waiter| {
                let is_bound = binds_all || waiter.is_bound;
                Late { envelope: waiter.envelope, hot, flight: id, is_bound, waited }
            }));
            next = flight.waiters.iter().map(|waiter| waiter.envelope.deadline).fold(next, Timestamp::min);
        }
        self.waiters -= late.len();
        self.late_at = (next != Timestamp::MAX).then_some(next);
        late
    }
}
