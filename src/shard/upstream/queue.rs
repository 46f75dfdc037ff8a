//! Queues or refuses requests that find no room in their backend's window, and sends them when there is room
//! again.

use std::time::Duration;

use super::Upstream;
use crate::policy::queue::Choice;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::overload::{Parked, Verdict, bulkhead_for};
use crate::shard::refusal::{NotSent, Stage};
use crate::shard::replies::{Replies, turn_away};
use crate::shard::request::Envelope;
use crate::shard::settings::Mode;
use crate::values::time::Now;
use crate::values::{BackendId, Timestamp};

impl Upstream {
    /// Handles a request that could not be sent without a closer check, because the window (limit on requests in
    /// flight) may have no room, its deadline may be missed, or its backend is ejected (taken out of use): sends,
    /// queues or refuses it. The error says why it is refused. If deadlines are in shadow mode, requests that would be
    /// too late are only counted.
    #[cold]
    pub(super) fn send_later(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) -> Result<(), NotSent> {
        let index = bulkhead_for(envelope.route.backend, envelope.route.track);
        let deadlines = self.overload.deadlines();
        if deadlines != Mode::On && envelope.deadline != Timestamp::MAX {
            let bulkhead = self.overload.bulkhead(index);
            if deadlines == Mode::Shadow {
                if bulkhead.is_hopeless(envelope.deadline, now.monotonic) {
                    env.counters.add(Counter::LateInShadow, 1);
                } else if bulkhead.has_room(Timestamp::MAX, now.monotonic) {
                    // The request keeps its deadline, so that a late reply is counted in shadow mode.
                    return self.send_now(env, envelope, message, requests, now);
                }
            }
            let envelope = Envelope { deadline: Timestamp::MAX, ..*envelope };
            return self.send(env, &envelope, message, requests, now);
        }
        self.begin_turn(now);
        if self.overload.bulkhead(index).is_gated()
            && let Some(sent_or_not) = self.pass_gate(env, envelope, (message, requests), now)
        {
            return sent_or_not;
        }
        let may_wait = self.overload.may_wait();
        let connection = env.pieces.connection(envelope.reply_to);
        let bulkhead = self.overload.bulkhead_mut(index);
        match bulkhead.decide((envelope, connection), now.monotonic) {
            Verdict::TooLate => return Err(NotSent::TooLate(Stage::Arrival, Duration::ZERO)),
            Verdict::Stalled(retry_after) => return Err(NotSent::Stalled(retry_after)),
            Verdict::Busy => return Err(NotSent::Busy),
            Verdict::Passes => match self.send_now(env, envelope, message, requests, now) {
                // The connection has reached its limit of unsent bytes.
                Err(NotSent::Full) if may_wait => {}
                sent_or_not => return sent_or_not,
            },
            Verdict::PassesInShadow => {
                env.counters.add(Counter::WaitedInShadow, 1);
                return self.send_now(env, envelope, message, requests, now);
            }
            Verdict::Waits if may_wait => {}
            Verdict::Waits => return Err(NotSent::Window(bulkhead.retry_full())),
        }
        self.park(env, index, (envelope, message, requests), now)
    }

    /// Queues a request in front of its backend, in the queue of the bulkhead `index`. If the queue is full, a less
    /// important request is pushed out for it and refused; an error if there is none, or still no room. A fetch
    /// (shared read of a hot key) is queued before all requests, whatever the limit.
    fn park(
        &mut self,
        env: &mut Env,
        index: usize,
        request: (&Envelope, Message<'_>, usize),
        now: Now,
    ) -> Result<(), NotSent> {
        let envelope = request.0;
        let is_fetch = envelope.reply_to.flight_id().is_some();
        if !is_fetch {
            let eased = self.overload.make_room(env, index, envelope)?;
            self.notes.extend(eased.map(|to| (to, Note::Eased)));
        }
        if self.overload.bulkhead(index).is_empty() {
            self.list(index);
        }
        if is_fetch {
            self.overload.park_fetch(env, index, request, now);
        } else {
            let note = self.overload.park(env, index, request, self.turn.late, now)?;
            self.notes.extend(note.map(|note| (envelope.reply_to, note)));
        }
        Ok(())
    }

    /// Takes requests about a key that has become hot out of the queues in front of the slot's backend:
    /// those that `choose` selects, each connection's in their order. The flag with each says whether its
    /// client connection may be read from again. `choose` sees the requests for one key of `slot`, and
    /// those for several keys of any slot.
    pub fn take_queued(
        &mut self,
        (backend, slot): (BackendId, u16),
        choose: impl FnMut(&mut Parked) -> Choice,
    ) -> Vec<(Parked, bool)> {
        // In a cluster, requests of one slot may be queued for any node, so all queues are searched.
        let backend = self.cluster.slots.is_none().then_some(backend);
        self.overload.take_queued((backend, slot), choose)
    }

    /// Returns the requests that wait in the queues in front of these backends, in no particular order, to be
    /// changed. In a cluster, requests of one slot may be queued for any node, so those in all queues are returned.
    pub fn queued_mut(&mut self, backends: &[BackendId]) -> impl Iterator<Item = &mut Parked> {
        let is_any = self.cluster.slots.is_some();
        self.overload.queued_mut(move |backend| is_any || backends.contains(&backend))
    }

    /// Sends a request that has waited in a queue, or that a closer check found may be sent at once. The error says
    /// why the request was not sent. Not inlined, because most requests are sent without this function.
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

    /// Sends a request (`parked`) that waited in a queue, now that the window (limit on requests in flight) has room;
    /// refuses it if its deadline cannot be met any more or it cannot be sent, and holds it if its slot is held or
    /// has moved. `is_eased` says that its client connection may be read from again.
    pub(super) fn send_parked(
        &mut self,
        env: &mut Env,
        parked: Parked,
        is_eased: bool,
        replies: &mut impl Replies,
        now: Now,
    ) {
        let Parked { envelope, message, requests, came, .. } = parked;
        let to = envelope.addressee();
        let index = bulkhead_for(envelope.route.backend, envelope.route.track);
        if self.overload.bulkhead_mut(index).count_if_hopeless(envelope.deadline, now.monotonic) {
            let why = NotSent::TooLate(Stage::Queue, now.monotonic.since(came));
            turn_away(env, replies, to, why, now);
        } else if self.hold_if_moved(env, &envelope, message.message(), requests, now) {
            // The request is held, and is sent later with the others of its slot.
        } else if let Err(why) = self.send_now(env, &envelope, message.message(), requests, now) {
            turn_away(env, replies, to, why, now);
        }
        message.release(&mut env.pool);
        if is_eased {
            replies.note(env, to.0, Note::Eased);
        }
    }
}
