//! Requests for which there is no room: they wait, or are told at once why not. At the end of every turn those that waited go on as
//! far as there is room again.

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

/// While something waits, it is looked after this often at least.
const HEARTBEAT: Duration = Duration::from_millis(5);

impl Back {
    /// A request for which there is no room as it comes.
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
                // As many bytes as may be have yet to leave.
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
            // Whoever matters less makes way.
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

    /// A fetch of a hot key waits for the next place in the window: however full the queue is, there is room for it.
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

    /// Requests about a key that are queued while it becomes hot: those that `choose` wants leave the queue, each connection's in their
    /// order, and whether that eases their connection comes with them. `choose` sees everything that waits for the slot's store.
    pub fn take_queued(
        &mut self,
        (backend, slot): (BackendId, u16),
        mut choose: impl FnMut(&mut Parked) -> Choice,
    ) -> Vec<(Parked, bool)> {
        let own = usize::from(backend.0) * BULKHEADS;
        // Before a cluster any of them may have it.
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

    /// Sends what does not come straight from its client.
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

    /// A bulkhead is looked after from now on.
    pub(super) fn list(&mut self, index: usize) {
        let bulkhead = &mut self.bulkheads[index];
        if !bulkhead.is_listed() {
            let counted = links_of(&self.links, self.ratios.len(), index).flat_map(|link| &link.pending);
            let counted = counted.filter(|pending| pending.is_counted());
            bulkhead.begin_list(counted.map(|pending| pending.tenant));
            self.listed.push(index);
        }
    }

    /// How much later than planned this turn is: no backend is to blame for that.
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

    /// When the next turn should be at the latest, for this stage or another.
    #[inline]
    pub fn plan(&mut self, next: Option<Timestamp>) {
        self.planned = next.unwrap_or(Timestamp::MAX).min(self.next_look());
    }

    /// When `handle_turn_end` should be called at the latest.
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

    /// The end of a turn: what waited goes on, or is told that it will not.
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

    /// Is there something that is to be told about connections, before more of them is taken on?
    #[inline]
    pub fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    /// Tells it.
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

    /// What waited is sent, now that there is room for it.
    fn go_on(&mut self, env: &mut Env, parked: Parked, is_eased: bool, replies: &mut impl Replies, now: Now) {
        let Parked { envelope, message, requests, came } = parked;
        let to = envelope.addressee();
        if self.bulkheads[bulkhead_for(envelope.route)].misses(envelope.deadline, now.monotonic) {
            let why = NotSent::TooLate(Stage::Queue, now.monotonic.since(came));
            turn_away(env, replies, to, why, now);
        } else if self.slots.is_some() && self.is_held_back(env, &envelope, message.message(), requests, now)
        {
            // It goes on with the others of its slot.
        } else if let Err(why) = self.send_now(env, &envelope, message.message(), requests, now) {
            turn_away(env, replies, to, why, now);
        }
        message.release(&mut env.pool);
        if is_eased {
            replies.note(env, to.0, Note::Eased);
        }
    }

    /// Is there room for more bytes on the connections of a bulkhead?
    fn has_room_on_links(&self, index: usize) -> bool {
        links_of(&self.links, self.ratios.len(), index).all(Link::has_room)
    }

    /// Looks for backends that stand still with requests in flight, and tells other cores how it stands.
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

    /// How it stands with the bulkheads of each backend, in the order of backends and tracks.
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

    /// Requests that wait for room.
    pub fn waiting(&self) -> usize {
        self.listed.iter().map(|index| self.bulkheads[*index].figures().held.requests).sum()
    }
}

/// The connections behind a bulkhead: those of one backend stand together.
fn links_of(links: &[Link], backends: usize, index: usize) -> impl Iterator<Item = &Link> {
    let each = links.len() / backends;
    let first = index / BULKHEADS * each;
    links[first..first + each].iter().filter(move |link| link.bulkhead == index)
}

/// A request is not sent: its client is told why.
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
