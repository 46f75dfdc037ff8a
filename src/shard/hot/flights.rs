//! Reads that several requests wait for. Each belongs to nobody: whoever asked first may leave, or not wait any longer.

use std::time::Duration;

use bytes::Bytes;
use slab::Slab;

use crate::policy::hot_keys::HotId;
use crate::protocol::reply;
use crate::shard::outcome::Outcome;
use crate::shard::request::{Envelope, FlightId, Overdue, ReplyTo, Route};
use crate::shard::versions::{Snapshot, Versions};
use crate::values::limits::{HOT_WAITERS_MAX, HOT_WAITERS_PER_FLIGHT_MAX};
use crate::values::{ShardId, Timestamp};

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
    /// Who asked before it was sent.
    pub first: ReplyTo,
    /// Who waits, in the order in which they came.
    pub waiters: Vec<Envelope>,
    /// When it was sent, if it was.
    pub sent_at: Timestamp,
    is_sent: bool,
    /// How it stood with writes then.
    pub snapshot: Option<Snapshot>,
    /// The reply is kept, unless something speaks against it.
    pub is_kept: bool,
    pub expiry: Expiry,
    has_failed: bool,
}

impl Flight {
    /// It is sent now.
    pub fn handle_sent(&mut self, snapshot: Option<Snapshot>, is_kept: bool, now: Timestamp) {
        (self.sent_at, self.is_sent) = (now, true);
        (self.snapshot, self.is_kept, self.expiry) = (snapshot, is_kept, Expiry::Unknown);
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
    waiters: std::vec::IntoIter<Envelope>,
    outcome: Outcome,
    /// Who gets what is too old instead, because it could not be fetched, and that.
    spared: std::vec::IntoIter<Envelope>,
    stale: Bytes,
}

impl Landed {
    pub fn new(waiters: Vec<Envelope>, outcome: Outcome) -> Self {
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
        let to = self.waiters.next()?.reply_to;
        let others = match self.outcome {
            Outcome::Served { .. } | Outcome::Cached { .. } => Outcome::cached(reply_bytes),
            Outcome::Lost | Outcome::Refused => Outcome::Refused,
        };
        Some((to, std::mem::replace(&mut self.outcome, others)))
    }
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
    pub fn begin(&mut self, shard: ShardId, terms: Envelope, hot: HotId, frame: &[u8]) -> FlightId {
        self.generations = self.generations.wrapping_add(1);
        let place = self.all.vacant_entry();
        let id = FlightId { index: place.key() as u32, generation: self.generations };
        place.insert(Flight {
            generation: id.generation,
            envelope: Envelope { reply_to: ReplyTo::flight(shard, id), ..terms },
            hot,
            frame: frame.to_vec(),
            first: terms.reply_to,
            waiters: Vec::new(),
            sent_at: Timestamp::ZERO,
            is_sent: false,
            snapshot: None,
            is_kept: false,
            expiry: Expiry::Unknown,
            has_failed: false,
        });
        id
    }

    pub fn get(&mut self, id: FlightId) -> Option<&mut Flight> {
        self.all.get_mut(id.index as usize).filter(|flight| flight.generation == id.generation)
    }

    /// May a request that takes this route wait for it? It goes where that would go, and what it finds there is neither older than
    /// what is kept may be, nor from before a write that anybody may have seen: none was under way, and none has begun.
    pub fn is_open_to(
        &self,
        id: FlightId,
        route: Route,
        versions: &Versions,
        (ttl, now): (Duration, Timestamp),
    ) -> bool {
        let flight = self.all.get(id.index as usize).filter(|flight| flight.generation == id.generation);
        flight.is_some_and(|flight| {
            let is_fresh = !flight.is_sent
                || now < flight.sent_at.after(ttl)
                    && flight.snapshot.is_some_and(|seen| seen.is_quiet() && versions.is_good(&seen));
            flight.envelope.route == route && is_fresh
        })
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
        flight.waiters.push(Envelope { deadline, ..*envelope });
        self.waiters += 1;
        if deadline != Timestamp::MAX {
            self.late_at = Some(self.late_at.map_or(deadline, |late_at| late_at.min(deadline)));
        }
        true
    }

    /// Those of a connection wait no more. Each with the frame that it would have sent.
    pub fn leave(&mut self, id: FlightId, connection: u64) -> Vec<(Envelope, Vec<u8>)> {
        let Some(flight) = self.get(id) else { return Vec::new() };
        let is_own = |waiter: &mut Envelope| waiter.reply_to.connection() == connection;
        let left: Vec<Envelope> = flight.waiters.extract_if(.., is_own).collect();
        let left: Vec<_> = left.into_iter().map(|envelope| (envelope, flight.frame.clone())).collect();
        self.waiters -= left.len();
        left
    }

    /// Those that may wait no more: they are told something else.
    pub fn spare(&mut self, id: FlightId, may_be: impl Fn(&Envelope) -> bool) -> Vec<Envelope> {
        let Some(flight) = self.get(id) else { return Vec::new() };
        let spared: Vec<Envelope> = flight.waiters.extract_if(.., |waiter| may_be(waiter)).collect();
        self.waiters -= spared.len();
        spared
    }

    /// It has failed. If that is the first time, and others wait for it than who asked first, that one alone is told so, and the next
    /// one has it sent again, on its own terms.
    pub fn begin_again(&mut self, id: FlightId) -> Option<Envelope> {
        let flight = self.get(id).filter(|flight| !flight.has_failed && flight.waiters.len() > 1)?;
        let first = flight.waiters.remove(0);
        let Envelope { reply_to, touches, deadline, overdue, .. } = flight.envelope;
        flight.envelope = Envelope { reply_to, touches, deadline, overdue, ..flight.waiters[0] };
        flight.first = flight.waiters[0].reply_to;
        (flight.has_failed, flight.is_sent) = (true, false);
        self.waiters -= 1;
        Some(first)
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
        let is_slow = move |flight: &&Flight| flight.is_sent && flight.sent_at < before;
        let all = self.all.iter().map(|(_, flight)| flight).filter(is_slow);
        all.map(|flight| (flight.hot, flight.waiters.len()))
    }

    /// When somebody's time is over.
    pub fn late_at(&self) -> Option<Timestamp> {
        self.late_at
    }

    /// Those whose time is over, and for how long each fetch has been under way.
    pub fn take_late(&mut self, now: Timestamp) -> Vec<(Envelope, HotId, Duration)> {
        let mut late = Vec::new();
        if self.late_at.is_none_or(|late_at| late_at > now) {
            return late;
        }
        let mut next = Timestamp::MAX;
        for (_, flight) in &mut self.all {
            let waited = now.since(if flight.is_sent { flight.sent_at } else { now });
            let is_late = |waiter: &mut Envelope| waiter.deadline <= now;
            late.extend(flight.waiters.extract_if(.., is_late).map(|waiter| (waiter, flight.hot, waited)));
            next = flight.waiters.iter().map(|waiter| waiter.deadline).fold(next, Timestamp::min);
        }
        self.waiters -= late.len();
        self.late_at = (next != Timestamp::MAX).then_some(next);
        late
    }
}
