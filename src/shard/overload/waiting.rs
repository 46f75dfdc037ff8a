//! Requests that wait in the queues before backends, and how they leave them: taken, displaced or expired.

use std::time::Duration;

use super::bulkhead::Parked;
use super::{BulkheadFigures, Overload, bulkheads_of};
use crate::policy::queue::{Choice, Refused};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::refusal::{NotSent, Stage};
use crate::shard::request::{Addressee, Envelope, ReplyTo};
use crate::shard::settings::ShardSettings;
use crate::shard::stored::Stored;
use crate::values::time::Now;
use crate::values::{BackendId, TenantId};

/// A request that left its queue to be refused, because it waited too long, cannot meet its deadline, or its backend
/// has stalled or is busy with a script.
#[derive(Debug)]
pub struct Expired {
    pub to: Addressee,
    /// True if the request's client connection, from which no more was read because many of its requests
    /// waited, may be read from again.
    pub is_eased: bool,
    pub why: NotSent,
}

impl Overload {
    /// True while any bulkhead (window and queue) has to be handled at the end of each turn (pass of the
    /// shard's loop).
    #[inline]
    pub fn is_any_listed(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Returns the index of the bulkhead (window and queue) at the index `place` of the list of those that
    /// are handled at the end of each turn (pass of the shard's loop); None past its end.
    pub fn listed_at(&self, place: usize) -> Option<usize> {
        self.listed.get(place).copied()
    }

    /// Removes the bulkhead (window and queue) at the index `place` from the list of those that are handled
    /// at the end of each turn (pass of the shard's loop); the last of the list takes its place.
    pub fn unlist(&mut self, place: usize) {
        self.listed.swap_remove(place);
    }

    /// Begins to handle a bulkhead (window and queue) at the end of each turn (pass of the shard's loop),
    /// if it is not handled yet. `index` is that of the bulkhead, and `in_flight` gives the tenants of its
    /// requests in flight.
    pub fn list<I: Iterator<Item = TenantId>>(&mut self, index: usize, in_flight: impl FnOnce() -> I) {
        let bulkhead = &mut self.bulkheads[index];
        if !bulkhead.is_listed() {
            bulkhead.begin_list(in_flight());
            self.listed.push(index);
        }
    }

    /// Takes the requests that were pushed out of full queues, to refuse them. The caller gives the emptied
    /// list back with [`Overload::recycle`].
    pub fn take_turned_away(&mut self) -> Vec<(Addressee, NotSent)> {
        std::mem::take(&mut self.turned_away)
    }

    /// Takes back the memory of the emptied list of requests that were pushed out of full queues.
    pub fn recycle(&mut self, turned_away: Vec<(Addressee, NotSent)>) {
        self.turned_away = turned_away;
    }

    /// Makes room for a request in the queue of the bulkhead (window and queue) with this index: if the queue
    /// is full, pushes out a less important request, which is refused. An error if the full queue has no less
    /// important request. Returns the reply address of the request pushed out if its client connection may be
    /// read from again; else None.
    pub fn make_room(
        &mut self,
        env: &mut Env,
        index: usize,
        envelope: &Envelope,
    ) -> Result<Option<ReplyTo>, NotSent> {
        let bulkhead = &mut self.bulkheads[index];
        if !bulkhead.check_full() {
            return Ok(None);
        }
        let Some((parked, is_eased)) = bulkhead.displace(envelope.tier) else {
            return Err(NotSent::Queue(bulkhead.retry_full()));
        };
        let why = NotSent::Queue(bulkhead.retry_full());
        self.turned_away.push((parked.envelope.addressee(), why));
        parked.message.release(&mut env.pool);
        Ok(is_eased.then_some(parked.envelope.reply_to))
    }

    /// Queues a request at the bulkhead (window and queue) with this index. `late` is the time by which this turn of
    /// the core (pass of its loop) began later than planned. Returns a message (note) that its client connection should
    /// not be read from for now, if many of its requests wait and no such note was returned since few waited; else
    /// None. An error if there is no room. `envelope` is the request's record, `requests` the number of requests in its
    /// message.
    pub fn park(
        &mut self,
        env: &mut Env,
        index: usize,
        (envelope, message, requests): (&Envelope, Message<'_>, usize),
        late: Duration,
        now: Now,
    ) -> Result<Option<Note>, NotSent> {
        env.counters.add(Counter::RequestsQueued, 1);
        let message = Stored::new(message, &mut env.pool);
        let parked = Parked { envelope: *envelope, message, requests, came: now.monotonic, searched: None };
        let bulkhead = &mut self.bulkheads[index];
        let connection = env.pieces.connection(envelope.reply_to);
        match bulkhead.park((connection, parked), late, now.monotonic) {
            Ok(is_long) => Ok(is_long.then_some(Note::Long)),
            Err(parked) => {
                parked.message.release(&mut env.pool);
                Err(NotSent::Queue(bulkhead.retry_full()))
            }
        }
    }

    /// Queues a fetch of a hot key (one read for all requests that wait) for the next place in the window
    /// (limit on requests in flight). The queue always has room for it, because fetches are few. `envelope`
    /// is the fetch's record, `requests` the number of requests in its message.
    pub fn park_fetch(
        &mut self,
        env: &mut Env,
        index: usize,
        (envelope, message, requests): (&Envelope, Message<'_>, usize),
        now: Now,
    ) {
        env.counters.add(Counter::RequestsQueued, 1);
        let message = Stored::new(message, &mut env.pool);
        let parked = Parked { envelope: *envelope, message, requests, came: now.monotonic, searched: None };
        self.bulkheads[index].park_fetch(parked);
    }

    /// Takes requests about a key that has become hot out of the queues in front of `backend` (None: of all backends):
    /// those that `choose` selects, each connection's in their order. The flag with each says whether its client
    /// connection may be read from again. `choose` sees all requests except those for one key of another slot than
    /// `slot`.
    pub fn take_queued(
        &mut self,
        (backend, slot): (Option<BackendId>, u16),
        mut choose: impl FnMut(&mut Parked) -> Choice,
    ) -> Vec<(Parked, bool)> {
        let places = backend.map_or(0..self.bulkheads.len(), bulkheads_of);
        let mut taken = Vec::new();
        for bulkhead in &mut self.bulkheads[places] {
            taken.extend(bulkhead.take_chosen(|parked| {
                if parked.envelope.touches.is_key() && parked.envelope.route.slot != slot {
                    Choice::Stays
                } else {
                    choose(parked)
                }
            }));
        }
        taken
    }

    /// Returns the requests that wait in the queues in front of the backends that `is_searched` selects, in no
    /// particular order, to be changed; without fetches (shared reads of hot keys).
    pub fn queued_mut(
        &mut self,
        is_searched: impl Fn(BackendId) -> bool,
    ) -> impl Iterator<Item = &mut Parked> {
        let bulkheads = self.bulkheads.iter_mut().enumerate();
        let searched = bulkheads.filter(move |(index, _)| is_searched(Self::backend_of(*index)));
        searched.flat_map(|(_, bulkhead)| bulkhead.queued_mut())
    }

    /// Removes and returns the requests in a queue that have waited too long or cannot meet their deadline, or whose
    /// backend has stalled or is busy with a script. `index` is that of the queue's bulkhead, and `late` the delay of
    /// this core itself, by which requests do not age.
    pub fn expire(&mut self, env: &mut Env, index: usize, late: Duration, now: Now) -> Vec<Expired> {
        let bulkhead = &mut self.bulkheads[index];
        bulkhead.begin_turn(late, now.monotonic);
        if bulkhead.handle_look(now.monotonic) {
            self.early_at = now.monotonic;
        }
        let stalled = bulkhead.why_stalled(now.monotonic);
        let full = bulkhead.retry_full();
        let mut expired = Vec::new();
        bulkhead.expire(now.monotonic, |(parked, is_eased), why| {
            let waited = now.monotonic.since(parked.came);
            let why = match why {
                Refused::Deadline => NotSent::TooLate(Stage::Queue, waited),
                Refused::Overloaded => NotSent::Queue(full),
                Refused::Stalled => stalled.for_nature(parked.envelope.nature),
            };
            env.counters.add(Counter::RequestsExpired, 1);
            expired.push(Expired { to: parked.envelope.addressee(), is_eased, why });
            parked.message.release(&mut env.pool);
        });
        expired
    }

    /// Ends a turn (pass of the shard's loop) for a bulkhead (window and queue) and publishes its load to
    /// other cores. True if it need not be handled in the next turn: no request waits in it, and its backend
    /// is not stalled.
    pub fn end_turn(&mut self, settings: &ShardSettings, index: usize) -> bool {
        self.bulkheads[index].end_turn(settings.overload.board.of(settings.id, index))
    }

    /// Marks a bulkhead (window and queue) as stalled if its backend has been silent for too long with requests in
    /// flight (250 ms or four median response times, whichever is longer; 1 s before the first sampled reply): nothing
    /// more is sent to it then. True only in the call that finds the stall; never unless windows are on, nor for
    /// expensive requests.
    pub fn find_stall(&mut self, index: usize, now: Now) -> bool {
        let has_stalled = self.bulkheads[index].handle_look(now.monotonic);
        if has_stalled {
            self.early_at = now.monotonic;
        }
        has_stalled
    }

    /// Publishes the load of a bulkhead (window and queue) to other cores: its numbers of waiting requests and of those
    /// in flight, and whether its queue is full and its backend stalled or busy.
    pub fn tell_load(&self, settings: &ShardSettings, index: usize) {
        self.bulkheads[index].tell(settings.overload.board.of(settings.id, index));
    }

    /// Returns the slots of all waiting requests, with the backends that they wait for.
    pub fn waiting_slots(&self) -> impl Iterator<Item = (u16, BackendId)> {
        let parked = self.bulkheads.iter().flat_map(super::Bulkhead::parked);
        parked.map(|parked| (parked.envelope.route.slot, parked.envelope.route.backend))
    }

    /// Returns the number of requests that wait in queues on this core, without fetches (shared reads of hot keys).
    pub fn waiting(&self) -> usize {
        let held = |figures: BulkheadFigures| figures.held.requests;
        self.listed.iter().map(|index| held(self.bulkheads[*index].figures())).sum()
    }
}
