//! Flights: fetches (reads of hot keys that weir sends once for all requests that wait for the reply). A fetch belongs
//! to no client, so the request that began it may leave or time out and the others still get the reply.

use std::time::Duration;

use bytes::Bytes;
use slab::Slab;

use super::as_fetched;
use super::lifetime::Lifetime;
use super::tracking::Registration;
use crate::policy::hot_keys::HotId;
use crate::shard::last_told::Look;
use crate::shard::outcome::Outcome;
use crate::shard::refusal;
use crate::shard::request::{Envelope, FlightId, Overdue, ReplyTo, Route};
use crate::shard::versions::{Snapshot, Versions};
use crate::values::limits::{HOT_WAITERS_MAX, HOT_WAITERS_PER_FLIGHT_MAX};
use crate::values::{ShardId, Tier, Timestamp};

/// A fetch: a read of a hot key that weir sends once for all requests that wait for its reply.
#[derive(Debug)]
pub struct Flight {
    generation: u32,
    /// Tenant, route and tier (importance) of the fetch (shared read of a hot key): those of the request that began it
    /// or, if none did because it renews a reply, the fetch before it; when it is sent again, those of a read that
    /// still waits. The fetch goes to no replica and has no deadline. While reads wait, it is sent with the tier of the
    /// most important one ([`Flight::tier`]).
    pub envelope: Envelope,
    pub hot: HotId,
    pub frame: Vec<u8>,
    /// The reads that wait for the reply, in the order of their arrival.
    pub waiters: Vec<Waiter>,
    pub stage: Stage,
    /// The time at which the fetch (shared read of a hot key) was sent; zero if it is not sent yet.
    pub sent_at: Timestamp,
    /// Values of the version counters of the key and its backend, which writes change, when the fetch (shared
    /// read of a hot key) was sent; None until then. If they have changed when the reply comes, the key may
    /// have been written in between, and the reply is not kept.
    pub snapshot: Option<Snapshot>,
    /// State of the record of the last reply to this same read that a client got from any core, when the fetch (shared
    /// read of a hot key) was sent; `None` until then. If clients get another reply before this fetch is answered, its
    /// own is not kept.
    pub look: Option<Look>,
    /// True if the reply to this fetch (shared read of a hot key) is to be kept in memory, as far as was known when the
    /// fetch was sent: not if its key is written meanwhile, or the reply is too large. False until then.
    pub is_kept: bool,
    pub lifetime: Lifetime,
    /// True, once the fetch (shared read of a hot key) is sent, if weir stands in front of a cluster: later requests of
    /// the waiting client connections are held back until it is answered, because a node may redirect it and carry out
    /// requests that were sent after it.
    pub binds: bool,
    /// True for a fetch (shared read of a hot key) that is sent even if no request waits for it: to renew a kept reply
    /// (one held in memory) before it expires, to keep a value for `MGET`, or to compare replies in shadow mode.
    is_ahead_of_time: bool,
    has_failed: bool,
    /// Reply address of the read that is charged for the fetch (shared read of a hot key) though it has been
    /// answered: it was the last to wait when its deadline passed. None if a read that still waits is charged.
    payer: Option<ReplyTo>,
    /// Whether the store was going to report the key's next change (CLIENT TRACKING) when the fetch (shared
    /// read of a hot key) was sent. Only then is its reply kept for longer than `--hot-ttl`.
    pub registration: Registration,
}

/// The progress of a fetch, the request by which a core reads a hot key for all reads that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The fetch is not sent yet, because an earlier fetch of the same reply is in flight or about to be sent; until
    /// that is answered, further reads join this one.
    Gathering,
    /// The fetch waits for room in the window (limit on requests in flight) of its store; further reads join
    /// it until it is sent.
    Leaving,
    /// The bytes of the fetch (shared read of a hot key) are on the connection to the store.
    Sent,
}

/// A read that waits for the reply to a fetch (shared read of a hot key).
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    pub envelope: Envelope,
    /// The time since which the read has waited for the fetch.
    pub since: Timestamp,
    /// True if later requests of the client connection are held back until the fetch is answered: the read
    /// joined after the fetch was sent, or several reads of the connection wait for it and may get only some
    /// of the replies at once.
    pub is_bound: bool,
    /// True if the read joined after the fetch was sent. If the key, or a field, has expired when the reply comes, the
    /// read may have come after that, so it must not get the reply.
    pub came_late: bool,
}

impl Flight {
    /// Records that the fetch (shared read of a hot key) has been put on the connection to the store, with
    /// the versions (`snapshot`, `look`) of that moment, which are compared with the present ones when its
    /// reply comes. `is_kept` says that the reply is to be kept.
    pub fn handle_sent(&mut self, snapshot: Option<Snapshot>, look: Look, is_kept: bool, now: Timestamp) {
        (self.sent_at, self.stage, self.look) = (now, Stage::Sent, Some(look));
        (self.snapshot, self.is_kept) = (snapshot, is_kept);
        self.lifetime.handle_sent();
    }

    /// True if later requests of the client connection of a waiting read (`waiter`) are held back until
    /// this fetch (shared read of a hot key) is sent or answered.
    pub fn is_bound(&self, waiter: &Waiter) -> bool {
        self.stage != Stage::Sent || self.binds || waiter.is_bound
    }

    /// Returns the waiting reads whose client connections have later requests held back after this fetch
    /// (shared read of a hot key).
    pub fn bound(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter().filter(|waiter| self.is_bound(waiter))
    }

    /// True if the fetch (shared read of a hot key) need not be sent: no read waits for it, and it was not begun for
    /// another purpose, such as to renew a kept reply (one held in memory).
    pub fn is_for_nobody(&self) -> bool {
        self.waiters.is_empty() && !self.is_ahead_of_time
    }

    /// Returns the tier (importance) that the fetch (shared read of a hot key) is sent with: that of its most important
    /// waiter; without any, that of the request which began it.
    pub fn tier(&self) -> Tier {
        self.waiters.iter().map(|waiter| waiter.envelope.tier).min().unwrap_or(self.envelope.tier)
    }

    /// True if the key, or fields that the read is about, have expired since the fetch (shared read of a hot
    /// key) was sent. A read that came after that must not get this reply.
    pub fn has_ended(&self, now: Timestamp) -> bool {
        self.lifetime.has_ended(now.since(self.sent_at))
    }
}

/// The reads that are answered when a fetch ends: with its reply or error ([`Landed::next`]), or with an expired reply
/// from memory ([`Landed::next_spared`]).
#[derive(Debug)]
pub struct Landed {
    waiters: std::vec::IntoIter<Waiter>,
    outcome: Outcome,
    /// Reply address of the read that is charged for the fetch (shared read of a hot key) though it has been
    /// answered, because its deadline passed; None if the first read that waits is charged.
    payer: Option<ReplyTo>,
    /// Requests that get a kept reply (one held in memory) although it has expired (`stale_on_error`),
    /// because the store is unavailable; `stale` is that reply.
    spared: std::vec::IntoIter<Envelope>,
    stale: Bytes,
}

impl Landed {
    /// Creates the list of reads (`waiters`) that get the reply to a fetch (shared read of a hot key) with this
    /// outcome. `payer` is the read that is charged for it, if it has been answered already.
    pub fn new(waiters: Vec<Waiter>, outcome: Outcome, payer: Option<ReplyTo>) -> Self {
        let (spared, stale) = (Vec::new().into_iter(), Bytes::new());
        Self { waiters: waiters.into_iter(), outcome, payer, spared, stale }
    }

    /// Returns the reply address of the read that is charged for the fetch (shared read of a hot key) though
    /// it has been answered; None if a read that waits is charged.
    pub const fn payer(&self) -> Option<ReplyTo> {
        self.payer
    }

    /// Adds requests (`spared`) that get a reply from memory that may have expired (`stale`) instead of the error,
    /// because their tenants accept such replies.
    pub fn sparing(self, (spared, stale): (Vec<Envelope>, Bytes)) -> Self {
        Self { spared: spared.into_iter(), stale, ..self }
    }

    /// Takes the next request that gets the expired reply: its reply address, its outcome, and the reply.
    /// None if there is none left.
    pub fn next_spared(&mut self) -> Option<(ReplyTo, Outcome, Bytes)> {
        let to = self.spared.next()?.reply_to;
        Some((to, Outcome::cached(self.stale.len()), self.stale.clone()))
    }

    /// Takes the next request that gets the fetched reply: its reply address and its outcome. The first one
    /// is charged for the fetch (shared read of a hot key), unless an answered one is ([`Self::payer`]); the
    /// others count as answered from memory, or as refused if the fetch failed. None if there is none left.
    pub fn next(&mut self, reply_bytes: usize) -> Option<(ReplyTo, Outcome)> {
        let to = self.waiters.next()?.envelope.reply_to;
        let others = match self.outcome {
            Outcome::Served { .. } | Outcome::Cached { .. } => Outcome::cached(reply_bytes),
            Outcome::Lost | Outcome::Refused | Outcome::Throttled => Outcome::Refused,
        };
        let outcome = std::mem::replace(&mut self.outcome, others);
        Some((to, if self.payer.is_some() { others } else { outcome }))
    }
}

/// A read that waited for a fetch (shared read of a hot key) until its deadline passed.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    pub envelope: Envelope,
    pub hot: HotId,
    pub flight: FlightId,
    /// True if later requests of the client connection are held back until the fetch (shared read of a hot
    /// key) is sent or answered.
    pub is_bound: bool,
    /// Whether the fetch (shared read of a hot key) was in flight at its store, or had yet to be sent.
    pub stage: refusal::Stage,
    /// The time for which the read has waited for the fetch (shared read of a hot key).
    pub waited: Duration,
    /// True if the read is charged for the fetch (shared read of a hot key) although it no longer waits,
    /// because the fetch was sent and no other read waits for it.
    pub pays: bool,
}

/// All unfinished fetches of one core.
#[derive(Debug, Default)]
pub struct Flights {
    all: Slab<Flight>,
    generations: u32,
    waiters: usize,
    /// The earliest deadline of any waiting read, or a time before that; `None` if no read has one.
    late_at: Option<Timestamp>,
}

impl Flights {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the number of reads that wait for fetches (shared reads of hot keys) on this core.
    pub fn waiters(&self) -> usize {
        self.waiters
    }

    /// Begins a fetch (shared read of a hot key) with the tier (importance), route and tenant of `terms`; the caller
    /// still has to send it. Its reply is addressed to the fetch itself. `hot` is the key, `is_ahead_of_time` says that
    /// the fetch is sent even if no read joins it, and `frame` is the request's bytes.
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
            binds: false,
            lifetime: Lifetime::default(),
            is_ahead_of_time,
            has_failed: false,
            payer: None,
            registration: Registration::Unregistered,
        });
        id
    }

    pub fn get(&mut self, id: FlightId) -> Option<&mut Flight> {
        self.all.get_mut(id.index as usize).filter(|flight| flight.generation == id.generation)
    }

    fn find(&self, id: FlightId) -> Option<&Flight> {
        self.all.get(id.index as usize).filter(|flight| flight.generation == id.generation)
    }

    /// Returns the latest fetch among `ids` (those of one reply, the latest last) that takes this route to the store,
    /// which is the one that a read may join; None if none of them does.
    pub fn latest_of(&self, ids: &[FlightId], route: Route) -> Option<FlightId> {
        let takes = |id: &&FlightId| self.find(**id).is_some_and(|flight| flight.envelope.route == route);
        ids.iter().rev().find(takes).copied()
    }

    /// True for a fetch (shared read of a hot key) that is not sent yet and has not failed: a read may join
    /// it even while a write of its key is in flight, because the fetch will be sent after the write. False
    /// for an unknown id.
    pub fn is_gathering(&self, id: FlightId) -> bool {
        self.find(id).is_some_and(|flight| flight.stage != Stage::Sent && !flight.has_failed)
    }

    /// True for a fetch (shared read of a hot key) in flight whose reply is to be kept, unless its key is
    /// written meanwhile or the reply is too large.
    pub fn is_to_be_kept(&self, id: FlightId) -> bool {
        self.find(id).is_some_and(|flight| flight.stage == Stage::Sent && flight.is_kept)
    }

    /// True for a fetch (shared read of a hot key) that was sent and may still be joined: it was sent less
    /// than `ttl` ago, after a command (PTTL) that asks for the lifetime of its reply, no write of its key
    /// was in flight then and none has begun since, and no core has seen a later reply that might show a
    /// write that bypassed weir.
    pub fn is_fresh(&self, id: FlightId, versions: &Versions, (ttl, now): (Duration, Timestamp)) -> bool {
        self.find(id).is_some_and(|flight| {
            flight.stage == Stage::Sent
                && flight.lifetime.questions() > 0
                && now < flight.sent_at.after(ttl)
                && flight.snapshot.is_some_and(|seen| seen.is_quiet() && versions.is_good(&seen))
                && flight.look.is_some_and(|look| versions.last_told.is_latest(&look))
        })
    }

    /// True if a fetch (shared read of a hot key) may be sent now. Other fetches of the same reply (`beside`)
    /// may be about to be sent or in flight: the fetch is sent beside none, or beside a single one in flight
    /// if a write has begun since that one was sent.
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

    /// Adds a read to those that wait for a fetch (shared read of a hot key). False if the fetch has ended,
    /// or if 16,384 reads wait for it already, or 65,536 on this core. `obeys_deadlines` says that the read
    /// stops waiting at its deadline.
    pub fn join(&mut self, id: FlightId, envelope: &Envelope, obeys_deadlines: bool, now: Timestamp) -> bool {
        let has_room = self.waiters < HOT_WAITERS_MAX;
        let Some(flight) = self.get(id) else { return false };
        if !has_room || flight.waiters.len() >= HOT_WAITERS_PER_FLIGHT_MAX {
            return false;
        }
        let is_obeyed = obeys_deadlines && envelope.overdue == Overdue::Answered;
        let deadline = if is_obeyed { envelope.deadline } else { Timestamp::MAX };
        let came_late = flight.stage == Stage::Sent;
        let envelope = Envelope { deadline, ..*envelope };
        flight.waiters.push(Waiter { envelope, since: now, is_bound: came_late, came_late });
        self.waiters += 1;
        if deadline != Timestamp::MAX {
            self.late_at = Some(self.late_at.map_or(deadline, |late_at| late_at.min(deadline)));
        }
        true
    }

    /// Takes reads out of those that wait for a fetch (shared read of a hot key): those that `is_own`
    /// selects, if they hold back later requests of their connection. Returns each with the request's bytes,
    /// to be sent on its own.
    pub fn leave(&mut self, id: FlightId, is_own: impl Fn(&Envelope) -> bool) -> Vec<(Envelope, Vec<u8>)> {
        let Some(flight) = self.get(id) else { return Vec::new() };
        let binds_all = flight.stage != Stage::Sent || flight.binds;
        let is_left = |waiter: &mut Waiter| (binds_all || waiter.is_bound) && is_own(&waiter.envelope);
        let left: Vec<Waiter> = flight.waiters.extract_if(.., is_left).collect();
        let left: Vec<_> = left.into_iter().map(|waiter| (waiter.envelope, flight.frame.clone())).collect();
        self.waiters -= left.len();
        left
    }

    /// Removes and returns the waiting reads that `may_be` selects: they get a kept reply (one held in
    /// memory) instead of the fetched one.
    pub fn spare(&mut self, id: FlightId, may_be: impl Fn(&Envelope) -> bool) -> Vec<Waiter> {
        let Some(flight) = self.get(id) else { return Vec::new() };
        let may_be = |waiter: &mut Waiter| may_be(&waiter.envelope);
        let spared: Vec<Waiter> = flight.waiters.extract_if(.., may_be).collect();
        self.waiters -= spared.len();
        spared
    }

    /// Prepares a failed fetch (shared read of a hot key) to be sent a second time, for the waiting reads that
    /// `may_wait` selects, except the read that has waited longest, which gets the error. The fetch takes over the tier
    /// (importance) and tenant of the first read left. Returns the reads that get the error; None if the fetch has
    /// failed before or no read would be left to wait.
    pub fn begin_again(&mut self, id: FlightId, may_wait: impl Fn(&Envelope) -> bool) -> Option<Vec<Waiter>> {
        let flight = self.get(id).filter(|flight| !flight.has_failed)?;
        let first = flight.waiters.first()?.envelope.reply_to;
        let is_told = |waiter: &Waiter| waiter.envelope.reply_to == first || !may_wait(&waiter.envelope);
        if flight.waiters.iter().all(is_told) {
            return None;
        }
        let told: Vec<Waiter> = flight.waiters.extract_if(.., |waiter| is_told(waiter)).collect();
        flight.waiters.iter_mut().for_each(|waiter| (waiter.is_bound, waiter.came_late) = (false, false));
        let Envelope { reply_to, touches, deadline, overdue, .. } = flight.envelope;
        flight.envelope = Envelope { reply_to, touches, deadline, overdue, ..flight.waiters[0].envelope };
        flight.envelope.route = as_fetched(flight.envelope.route);
        (flight.has_failed, flight.stage) = (true, Stage::Leaving);
        self.waiters -= told.len();
        Some(told)
    }

    /// Removes a fetch (shared read of a hot key) and all reads that wait for it, and returns it; None if it
    /// is unknown.
    pub fn end(&mut self, id: FlightId) -> Option<Flight> {
        self.get(id)?;
        let flight = self.all.remove(id.index as usize);
        self.waiters -= flight.waiters.len();
        Some(flight)
    }

    /// Returns the keys of unanswered fetches (shared reads of hot keys) that were sent before `before`, each
    /// with the number of reads that wait.
    pub fn slow(&self, before: Timestamp) -> impl Iterator<Item = (HotId, usize)> {
        let is_slow = move |flight: &&Flight| flight.stage == Stage::Sent && flight.sent_at < before;
        let all = self.all.iter().map(|(_, flight)| flight).filter(is_slow);
        all.map(|flight| (flight.hot, flight.waiters.len()))
    }

    /// Returns the earliest time at which a waiting read's deadline may pass; None if no read has one.
    pub fn late_at(&self) -> Option<Timestamp> {
        self.late_at
    }

    /// Takes the reply address of the read that is charged for a fetch (shared read of a hot key) though it has been
    /// answered; None if a read that still waits is charged, or if the fetch is unknown.
    pub fn take_payer(&mut self, id: FlightId) -> Option<ReplyTo> {
        self.get(id)?.payer.take()
    }

    /// Removes and returns the waiting reads whose deadline has passed.
    pub fn take_late(&mut self, now: Timestamp) -> Vec<Late> {
        let mut late = Vec::new();
        if self.late_at.is_none_or(|late_at| late_at > now) {
            return late;
        }
        let mut next = Timestamp::MAX;
        for (index, flight) in &mut self.all {
            let is_sent = flight.stage == Stage::Sent;
            let stage = if is_sent { refusal::Stage::Backend } else { refusal::Stage::Queue };
            let binds_all = !is_sent || flight.binds;
            let (hot, generation) = (flight.hot, flight.generation);
            let id = FlightId { index: index as u32, generation };
            let is_over = |waiter: &mut Waiter| waiter.envelope.deadline <= now;
            let before = late.len();
            late.extend(flight.waiters.extract_if(.., is_over).map(|waiter| {
                let Waiter { envelope, since, .. } = waiter;
                let (is_bound, waited) = (binds_all || waiter.is_bound, now.since(since));
                Late { envelope, hot, flight: id, is_bound, stage, waited, pays: false }
            }));
            if is_sent
                && flight.payer.is_none()
                && flight.waiters.is_empty()
                && let Some(last) = late[before..].last_mut()
            {
                last.pays = true;
                flight.payer = Some(last.envelope.reply_to);
            }
            next = flight.waiters.iter().map(|waiter| waiter.envelope.deadline).fold(next, Timestamp::min);
        }
        self.waiters -= late.len();
        self.late_at = (next != Timestamp::MAX).then_some(next);
        late
    }
}
