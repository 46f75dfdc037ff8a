//! Turns of one core (passes of its loop): when they begin, how late they are, and what is done for backends
//! at their end.

use std::time::Duration;

use super::Upstream;
use crate::policy::queue::lateness;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::note::Note;
use crate::shard::replies::{Replies, turn_away};
use crate::shard::settings::{Mode, ShardSettings};
use crate::values::time::Now;
use crate::values::{BackendId, Timestamp};

/// The longest time between two turns (passes of the shard's loop) while requests wait in queues or a backend has
/// stalled (sends nothing although requests are in flight).
const HEARTBEAT: Duration = Duration::from_millis(5);

/// The time for which the next turn (pass of the shard's loop) is planned, and when and how late the present one began.
#[derive(Debug)]
pub(super) struct Turn {
    /// The time for which the next turn (pass of the shard's loop) is planned; `Timestamp::MAX` if none is, or once
    /// a turn has begun late.
    planned: Timestamp,
    /// The time at which the turn (pass of the shard's loop) began.
    began_at: Timestamp,
    /// The time by which the present turn (pass of the shard's loop) began later than planned. This core has caused
    /// that delay, so no backend is blamed for it.
    pub late: Duration,
}

impl Default for Turn {
    fn default() -> Self {
        Self { planned: Timestamp::MAX, began_at: Timestamp::ZERO, late: Duration::ZERO }
    }
}

impl Upstream {
    /// Begins a turn (pass of the shard's loop) and measures by how much it began later than planned; no backend is
    /// blamed for that delay. Called by the handlers of events; only the first call in a turn has an effect.
    #[inline]
    pub(super) fn begin_turn(&mut self, now: Now) {
        if now.monotonic <= self.turn.began_at {
            return;
        }
        self.turn.began_at = now.monotonic;
        self.turn.late = Duration::ZERO;
        if self.turn.planned < now.monotonic {
            let late = lateness(self.turn.planned, now.monotonic);
            self.turn.late = late;
            self.turn.planned = Timestamp::MAX;
            self.breaker.handle_late(late);
            self.overload.handle_late(late);
        }
    }

    /// Records for when the next turn (pass of the shard's loop) is planned, so that its delay can be measured: for
    /// `next`, the time by which the rest of the shard needs one (None if it does not), or for the time by which
    /// something is due at backends, if that is earlier.
    #[inline]
    pub fn plan(&mut self, next: Option<Timestamp>) {
        self.turn.planned = next.unwrap_or(Timestamp::MAX).min(self.next_look());
    }

    /// Returns whether requests that cannot be answered by their deadline are refused, and those in flight at it
    /// answered with an error: on, off, or shadow (only counted).
    pub fn deadlines(&self) -> Mode {
        self.overload.deadlines()
    }

    /// Returns the time by which [`Upstream::handle_turn_end`] is to be called, for deadlines, queues and
    /// held requests; None if nothing is due.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let next = self.next_look();
        (next != Timestamp::MAX).then_some(next)
    }

    fn next_look(&self) -> Timestamp {
        let slots_due = self.cluster.slots.as_ref().and_then(|slots| slots.poll_deadline());
        let next = self.overload.early_at().min(slots_due.unwrap_or(Timestamp::MAX));
        if self.overload.is_any_listed() { next.min(self.turn.began_at.after(HEARTBEAT)) } else { next }
    }

    /// Ends a turn (pass of the shard's loop): answers with an error requests in flight whose time is over, and sends
    /// or refuses queued ones, and held ones (kept until their slot's node can take them).
    #[inline]
    pub fn handle_turn_end(&mut self, env: &mut Env, replies: &mut impl Replies, now: Now) {
        self.begin_turn(now);
        if now.monotonic >= self.overload.early_at() {
            self.answer_early(env, replies, now);
        }
        if self.overload.is_any_listed() {
            self.handle_queues(env, replies, now);
        }
        if self.cluster.slots.is_some() {
            self.handle_held(env, replies, now);
            if let Some(readers) = &mut self.cluster.readers {
                readers.log_changes(env, now.monotonic);
            }
            self.deliver_notes(env, replies);
        }
    }

    #[inline(never)]
    fn handle_queues(&mut self, env: &mut Env, replies: &mut impl Replies, now: Now) {
        let mut turned_away = self.overload.take_turned_away();
        for (to, why) in turned_away.drain(..) {
            turn_away(env, replies, to, why, now);
        }
        self.overload.recycle(turned_away);
        self.deliver_notes(env, replies);
        let mut place = 0;
        while let Some(index) = self.overload.listed_at(place) {
            let is_calm = self.handle_queue(env, index, replies, now);
            if is_calm {
                self.overload.unlist(place);
            } else {
                place += 1;
            }
        }
        self.deliver_notes(env, replies);
    }

    /// Refuses and sends requests that wait in the queue of the bulkhead (window and queue) with this index.
    /// True if no request waits any more and the backend is not stalled (silent although requests are in
    /// flight), so that the queue need not be handled at the end of the next turn (pass of the shard's loop).
    fn handle_queue(&mut self, env: &mut Env, index: usize, replies: &mut impl Replies, now: Now) -> bool {
        if self.overload.bulkhead(index).is_gated() {
            self.clear_gated(env, index, replies, now);
        }
        for expired in self.overload.expire(env, index, self.turn.late, now) {
            turn_away(env, replies, expired.to, expired.why, now);
            if expired.is_eased {
                replies.note(env, expired.to.0, Note::Eased);
            }
        }
        let is_shadow = env.settings.overload.queue == Mode::Shadow;
        while self.has_room_on_links(index)
            && let Some(((parked, is_eased), is_old)) = self.overload.bulkhead_mut(index).take()
        {
            if is_old && is_shadow {
                env.counters.add(Counter::ExpiredInShadow, 1);
            }
            self.send_parked(env, parked, is_eased, replies, now);
        }
        self.overload.end_turn(&env.settings, index)
    }

    /// True if every connection whose requests pass a bulkhead (window and queue) can take more: neither its unsent
    /// bytes nor its unanswered requests, nor in front of a cluster the bytes kept of these, are at their limits, and
    /// it does not wait to be opened anew.
    fn has_room_on_links(&self, index: usize) -> bool {
        let slots = self.cluster.slots.as_ref();
        self.links_of(index)
            .all(|(connection, link)| link.has_room() && slots.is_none_or(|slots| slots.has_room(connection)))
    }

    /// Marks as stalled each bulkhead (window and queue) for usual requests with requests in flight whose
    /// backend has been silent for 250 ms or four median response times, whichever is longer (1 s before its
    /// first reply): nothing more is sent to the backend, and new requests for it are refused. Marks none
    /// unless windows are on. Then publishes the load of each bulkhead to other cores. Called with the
    /// regular checks, about every 100 ms.
    pub fn find_stalls(&mut self, settings: &ShardSettings, now: Now) {
        self.begin_turn(now);
        for index in 0..self.overload.len() {
            if self.overload.find_stall(index, now) {
                self.list(index);
            }
            self.overload.tell_load(settings, index);
        }
    }

    /// Returns the backends that, at the last check, had sent nothing for 50 ms although requests were in flight to
    /// them, so that they are asked whether they are busy with a script. Empty unless windows are on.
    pub fn silent(&self) -> Vec<BackendId> {
        self.overload.silent()
    }

    /// Records whether a backend is busy with a script, as its reply to a `PING` over another connection shows.
    /// Nothing more is sent to a backend that is busy while it is silent on the connections for requests.
    pub fn handle_sign(&mut self, settings: &ShardSettings, backend: BackendId, is_busy: bool) {
        self.overload.handle_sign(settings, backend, is_busy);
    }

    /// Compares recent response times of each backend with its usual ones: publishes the shedding level (which
    /// requests are refused or cost more) that follows, and lets expensive requests yield to cheap ones. Called
    /// with the regular checks, about every 100 ms.
    pub fn compare_latencies(&mut self, env: &mut Env, now: Now) {
        self.overload.yield_to_cheap(env, now);
        self.overload.compare_latencies(env, now);
    }
}
