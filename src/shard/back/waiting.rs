//! Queues or refuses requests that find no room in their window, and at the end of every turn sends queued
//! ones as far as there is room again.

use std::time::Duration;

use super::bulkhead::{Parked, Verdict};
use super::forward::bulkhead_for;
use super::link::Link;
use super::{Back, BulkheadFigures, Replies};
use crate::policy::queue::{Choice, Refused, lateness};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::outcome::Outcome;
use crate::shard::refusal::{NotSent, Stage};
use crate::shard::request::{Addressee, Envelope};
use crate::shard::settings::{BULKHEADS, Mode, ShardSettings};
use crate::shard::stored::Stored;
use crate::values::time::Now;
use crate::values::{BackendId, Timestamp};

/// The longest time between two turns that handle waiting requests.
const HEARTBEAT: Duration = Duration::from_millis(5);

impl Back {
    /// Handles a request that found no room at once: sends, queues or refuses it. In shadow mode of deadlines
    /// it only counts those that would be too late.
    #[cold]
    pub(super) fn send_later(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) -> Result<(), NotSent> {
        if self.deadlines != Mode::On && envelope.deadline != Timestamp::MAX {
            let bulkhead = &self.bulkheads[bulkhead_for(envelope.route)];
            if self.deadlines == Mode::Shadow && bulkhead.is_hopeless(envelope.deadline, now.monotonic) {
                env.counters.add(Counter::LateInShadow, 1);
            }
            let envelope = Envelope { deadline: Timestamp::MAX, ..*envelope };
            return self.send(env, &envelope, message, requests, now);
        }
        self.begin_turn(now);
        let index = bulkhead_for(envelope.route);
        if self.bulkheads[index].is_gated()
            && let Some(sent_or_not) = self.pass_gate(env, envelope, (message, requests), now)
        {
            return sent_or_not;
        }
        let bulkhead = &mut self.bulkheads[index];
        match bulkhead.judge(envelope, now.monotonic) {
            Verdict::TooLate => return Err(NotSent::TooLate(Stage::Arrival, Duration::ZERO)),
            Verdict::Stalled(retry_after) => return Err(NotSent::Stalled(retry_after)),
            Verdict::Passes => match self.send_now(env, envelope, message, requests, now) {
                // The connection has its limit of unsent bytes; the request waits if it may.
                Err(NotSent::Full) if self.may_wait => {}
                sent_or_not => return sent_or_not,
            },
            Verdict::PassesInShadow => {
                env.counters.add(Counter::WaitedInShadow, 1);
                return self.send_now(env, envelope, message, requests, now);
            }
            Verdict::Waits if self.may_wait => {}
            Verdict::Waits => return Err(NotSent::Window(bulkhead.retry_full())),
        }
        if envelope.reply_to.flight_id().is_some() {
            self.park_fetch(env, index, (envelope, message, requests), now);
            return Ok(());
        }
        let bulkhead = &mut self.bulkheads[index];
        if bulkhead.is_full() {
            // A less important request makes way.
            let Some((parked, is_eased)) = bulkhead.displace(envelope.tier) else {
                return Err(NotSent::Queue(bulkhead.retry_full()));
            };
            let why = NotSent::Queue(bulkhead.retry_full());
            let to = parked.envelope.reply_to;
            self.turned_away.push((parked.envelope.addressee(), why));
            self.notes.extend(is_eased.then_some((to, Note::Eased)));
            parked.message.release(&mut env.pool);
        }
        if self.bulkheads[index].is_empty() {
            self.list(index);
        }
        env.counters.add(Counter::RequestsQueued, 1);
        let message = Stored::new(message, &mut env.pool);
        let parked = Parked { envelope: *envelope, message, requests, came: now.monotonic };
        let bulkhead = &mut self.bulkheads[index];
        let connection = env.pieces.connection(envelope.reply_to);
        match bulkhead.park((connection, parked), self.late, now.monotonic) {
            Ok(is_long) => {
                self.notes.extend(is_long.then_some((envelope.reply_to, Note::Long)));
                Ok(())
            }
            Err(parked) => {
                parked.message.release(&mut env.pool);
                Err(NotSent::Queue(bulkhead.retry_full()))
            }
        }
    }

    /// Queues a fetch of a hot key for the next place in the window. There is always room for it, because
    /// fetches are few.
    fn park_fetch(
        &mut self,
        env: &mut Env,
        index: usize,
        (envelope, message, requests): (&Envelope, Message<'_>, usize),
        now: Now,
    ) {
        if self.bulkheads[index].is_empty() {
            self.list(index);
        }
        env.counters.add(Counter::RequestsQueued, 1);
        let message = Stored::new(message, &mut env.pool);
        let parked = Parked { envelope: *envelope, message, requests, came: now.monotonic };
        self.bulkheads[index].park_fetch(parked);
    }

    /// Takes requests about a key that has become hot out of the queues before the slot's backend: those that
    /// `choose` selects, each connection's in their order, each with whether its connection may send requests
    /// again. `choose` also sees requests for several keys of any slot.
    pub fn take_queued(
        &mut self,
        (backend, slot): (BackendId, u16),
        mut choose: impl FnMut(&mut Parked) -> Choice,
    ) -> Vec<(Parked, bool)> {
        let own = usize::from(backend.0) * BULKHEADS;
        // In a cluster the requests of a slot may wait before any node.
        let places = if self.slots.is_some() { 0..self.bulkheads.len() } else { own..own + BULKHEADS };
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

    /// Sends a request that has waited or may skip the queue. Kept out of line, because most requests are
    /// sent straight away.
    #[cold]
    fn send_now(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) -> Result<(), NotSent> {
        self.put_on_link(env, envelope, message, requests, now)
    }

    /// Starts handling a bulkhead at the end of each turn.
    pub(super) fn list(&mut self, index: usize) {
        let bulkhead = &mut self.bulkheads[index];
        if !bulkhead.is_listed() {
            let counted = links_of(&self.links, self.ratios.len(), index).flat_map(|link| &link.pending);
            let counted = counted.filter(|pending| pending.is_counted());
            bulkhead.begin_list(counted.map(|pending| pending.tenant));
            self.listed.push(index);
        }
    }

    /// Begins a turn and measures how much later than planned it is. No backend is blamed for that time.
    #[inline]
    pub(super) fn begin_turn(&mut self, now: Now) {
        if now.monotonic <= self.turned_at {
            return;
        }
        self.turned_at = now.monotonic;
        self.late = Duration::ZERO;
        if self.planned < now.monotonic {
            self.late = lateness(self.planned, now.monotonic);
            self.late_lately += self.late;
            self.planned = Timestamp::MAX;
            self.bulkheads.iter_mut().for_each(|bulkhead| bulkhead.handle_late(self.late));
        }
    }

    /// Notes the time by which the next turn is needed, for this stage or another, so that a delay can be
    /// measured.
    #[inline]
    pub fn plan(&mut self, next: Option<Timestamp>) {
        self.planned = next.unwrap_or(Timestamp::MAX).min(self.next_look());
    }

    /// The time by which [`Back::handle_turn_end`] is to be called; `None` if nothing is due.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let next = self.next_look();
        (next != Timestamp::MAX).then_some(next)
    }

    fn next_look(&self) -> Timestamp {
        let slots_due = self.slots_due().unwrap_or(Timestamp::MAX);
        if self.listed.is_empty() {
            self.early_at.min(slots_due)
        } else {
            self.early_at.min(self.turned_at.after(HEARTBEAT)).min(slots_due)
        }
    }

    /// Ends a turn: answers requests that are out of time, and sends or refuses queued ones.
    #[inline]
    pub fn handle_turn_end(&mut self, env: &mut Env, replies: &mut impl Replies, now: Now) {
        self.begin_turn(now);
        if now.monotonic >= self.early_at {
            self.answer_early(env, replies, now);
        }
        if !self.listed.is_empty() {
            self.look_after_all(env, replies, now);
        }
        if self.slots.is_some() {
            self.look_after_slots(env, replies, now);
            self.look_after_readers(env, now);
            self.deliver_notes(env, replies);
        }
    }

    #[inline(never)]
    fn look_after_all(&mut self, env: &mut Env, replies: &mut impl Replies, now: Now) {
        let mut turned_away = std::mem::take(&mut self.turned_away);
        for (to, why) in turned_away.drain(..) {
            turn_away(env, replies, to, why, now);
        }
        self.turned_away = turned_away;
        self.deliver_notes(env, replies);
        let mut place = 0;
        while let Some(index) = self.listed.get(place).copied() {
            let is_calm = self.look_after(env, index, replies, now);
            if is_calm {
                self.listed.swap_remove(place);
            } else {
                place += 1;
            }
        }
        self.deliver_notes(env, replies);
    }

    /// True if there are notes about connections to deliver before more of their requests are read.
    #[inline]
    pub fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    /// Delivers the notes about requests and their connections.
    pub fn deliver_notes(&mut self, env: &mut Env, replies: &mut impl Replies) {
        let mut notes = std::mem::take(&mut self.notes);
        for (to, note) in notes.drain(..) {
            replies.note(env, to, note);
        }
        self.notes = notes;
    }

    fn look_after(&mut self, env: &mut Env, index: usize, replies: &mut impl Replies, now: Now) -> bool {
        let late = self.late;
        if self.bulkheads[index].is_gated() {
            self.clear_gated(env, index, replies, now);
        }
        let bulkhead = &mut self.bulkheads[index];
        bulkhead.begin_turn(late, now.monotonic);
        if bulkhead.handle_look(now.monotonic) {
            self.early_at = now.monotonic;
        }
        let (stalled, full) = (bulkhead.retry_stalled(now.monotonic), bulkhead.retry_full());
        let Env { pool, counters, settings, .. } = &mut *env;
        let mut refused = Vec::new();
        bulkhead.expire(now.monotonic, |(parked, is_eased), why| {
            let waited = now.monotonic.since(parked.came);
            let why = match why {
                Refused::Deadline => NotSent::TooLate(Stage::Queue, waited),
                Refused::Overloaded => NotSent::Queue(full),
                Refused::Stalled => NotSent::Stalled(stalled),
            };
            counters.add(Counter::RequestsExpired, 1);
            refused.push((parked.envelope.addressee(), is_eased, why));
            parked.message.release(pool);
        });
        let is_shadow = settings.overload.queue == Mode::Shadow;
        for (to, is_eased, why) in refused {
            turn_away(env, replies, to, why, now);
            if is_eased {
                replies.note(env, to.0, Note::Eased);
            }
        }
        while self.has_room_on_links(index)
            && let Some(((parked, is_eased), is_old)) = self.bulkheads[index].take()
        {
            if is_old && is_shadow {
                env.counters.add(Counter::ExpiredInShadow, 1);
            }
            self.go_on(env, parked, is_eased, replies, now);
        }
        let settings = &env.settings;
        self.bulkheads[index].end_turn(settings.overload.board.of(settings.id, index))
    }

    /// Sends a request that waited, now that there is room, unless it is too late by now.
    fn go_on(&mut self, env: &mut Env, parked: Parked, is_eased: bool, replies: &mut impl Replies, now: Now) {
        let Parked { envelope, message, requests, came } = parked;
        let to = envelope.addressee();
        if self.bulkheads[bulkhead_for(envelope.route)].misses(envelope.deadline, now.monotonic) {
            let why = NotSent::TooLate(Stage::Queue, now.monotonic.since(came));
            turn_away(env, replies, to, why, now);
        } else if self.slots.is_some() && self.is_held_back(env, &envelope, message.message(), requests, now)
        {
            // The request is held, and is sent later with the others of its slot.
        } else if let Err(why) = self.send_now(env, &envelope, message.message(), requests, now) {
            turn_away(env, replies, to, why, now);
        }
        message.release(&mut env.pool);
        if is_eased {
            replies.note(env, to.0, Note::Eased);
        }
    }

    /// True if every connection of a bulkhead has room for more bytes.
    fn has_room_on_links(&self, index: usize) -> bool {
        links_of(&self.links, self.ratios.len(), index).all(Link::has_room)
    }

    /// Marks as stalled each bulkhead with requests in flight whose backend has been silent for 250 ms or
    /// four median latencies, whichever is longer (1 s before its first reply): it sends no more and refuses
    /// what comes. Then tells other cores the load of each bulkhead. Called with the housekeeping, about
    /// every 100 ms.
    pub fn look_for_stalls(&mut self, settings: &ShardSettings, now: Now) {
        self.begin_turn(now);
        for index in 0..self.bulkheads.len() {
            if self.bulkheads[index].handle_look(now.monotonic) {
                self.early_at = now.monotonic;
                self.list(index);
            }
            self.bulkheads[index].tell(settings.overload.board.of(settings.id, index));
        }
    }

    /// The figures of all bulkheads, in the order of backends and tracks.
    pub fn bulkheads(&self, env: &Env) -> impl Iterator<Item = BulkheadFigures> {
        self.bulkheads.iter().enumerate().map(|(index, bulkhead)| {
            let ratio = &self.ratios[index / BULKHEADS];
            let latency_ratio = ratio.seen().map(|seen| seen.ratio);
            let ejections = self.health[index / BULKHEADS].ejections;
            let breaker = env.settings.overload.health.standing(index / BULKHEADS).stage;
            let level = ratio.level() as u8;
            let refused = env.refused_for(index / BULKHEADS);
            BulkheadFigures { level, latency_ratio, breaker, ejections, refused, ..bulkhead.figures() }
        })
    }

    /// The number of requests that wait in queues.
    pub fn waiting(&self) -> usize {
        self.listed.iter().map(|index| self.bulkheads[*index].figures().held.requests).sum()
    }
}

/// The connections of a bulkhead. The connections of one backend are next to each other.
fn links_of(links: &[Link], backends: usize, index: usize) -> impl Iterator<Item = &Link> {
    let each = links.len() / backends;
    let first = index / BULKHEADS * each;
    links[first..first + each].iter().filter(move |link| link.bulkhead == index)
}

/// Refuses a request: answers its client with the reason and counts it.
pub fn turn_away(
    env: &mut Env,
    replies: &mut impl Replies,
    (to, backend, tier): Addressee,
    why: NotSent,
    now: Now,
) {
    if let Some(pressure) = why.pressure() {
        env.count_refused(pressure, tier, backend);
    }
    let mut text = env.pool.take();
    let (counter, refusal) = why.refusal(env.backend_name(backend));
    refusal.encode(&mut text);
    env.counters.add(counter, 1);
    replies.reply(env, to, Outcome::Refused, Message::Small(&text), now);
    env.pool.give(text);
}
