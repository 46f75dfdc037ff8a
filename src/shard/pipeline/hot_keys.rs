//! Requests for hot keys: answered from memory, made to wait for a fetch that is under way, or sent like all
//! others.

use std::collections::HashSet;
use std::time::Duration;

use super::Shard;
use crate::policy::queue::Choice;
use crate::shard::counters::Counter;
use crate::shard::hot_keys::{Arrival, Meeting, Search, Task, TooOften, Unnoticed};
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::outcome::Outcome;
use crate::shard::overload::Parked;
use crate::shard::peers::Batch;
use crate::shard::private::Said;
use crate::shard::reach;
use crate::shard::refusal::{NotSent, Refusal};
use crate::shard::replies::{Replies, turn_away_as};
use crate::shard::request::{Envelope, Touched};
use crate::shard::searched::{HotSet, Searched};
use crate::values::limits::{
    HOT_FRAME_BYTES_MAX, HOT_KEYS_NOTICED_MAX, HOT_NAME_BYTES_SHOWN, HOT_QUEUED_KEYS_EXAMINED_MAX,
};
use crate::values::time::Now;
use crate::values::{BackendId, escaped};

/// Returns a copy of a request's envelope (record that goes with a request's bytes) that asks for a
/// `Note::Sent`, which reports to this core that the request was written to its connection to the store, so
/// that no later request can overtake it.
fn reported(envelope: &Envelope) -> Envelope {
    Envelope { touches: envelope.touches.reported(), ..*envelope }
}

/// Retry delay named in the refusal of a read of a hot key, when as many reads as allowed wait already for
/// one fetch (shared read of the key) or on this core.
const RETRY_CROWDED: Duration = Duration::from_millis(10);
/// Number of bytes of a key that count as much as one more key in the limit on the work of searching queued
/// requests for hot keys.
const KEY_BYTES: usize = 64;

impl Shard {
    /// Handles a request whose key may be hot: answers it from memory, lets it wait for a fetch (shared read of
    /// a hot key) of the key's reply, sends it, or refuses it. Then sends other requests for hot keys that may
    /// go on because of it. `requests` is the number of requests in the message.
    #[inline(never)]
    pub(super) fn meet(&mut self, envelope: &Envelope, message: Message<'_>, requests: usize, now: Now) {
        self.meet_one((envelope, Arrival::First), message, requests, now);
        if self.hot_keys.has_to_send() {
            self.send_what_is_hot(now);
        }
    }

    fn meet_one(
        &mut self,
        (envelope, arrival): (&Envelope, Arrival),
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) {
        let meeting = self.hot_keys.meet(&mut self.env, (envelope, arrival), message.bytes(), now.monotonic);
        // Earlier requests, which the one at hand must not overtake, are sent first.
        self.send_detached(now);
        match meeting {
            Meeting::Answered(reply, values) => {
                let (env, _, mut replies) = self.towards_clients();
                let outcome = Outcome::cached_values(reply.len(), values);
                replies.hand_on(env, envelope.reply_to, outcome, Message::new(&reply, Some(&reply)), now);
            }
            Meeting::Crowded => self.refuse(envelope, NotSent::Queue(RETRY_CROWDED), now),
            Meeting::WrittenTooOften(reason) => self.refuse_write(envelope, &reason, now),
            Meeting::Waits => {}
            Meeting::Passes => self.put_out(envelope, message, requests, now),
            Meeting::PassesReported => self.put_out(&reported(envelope), message, requests, now),
        }
    }

    /// Refuses a write to a key that is written too often. The refusal names the key, and the time until a
    /// write may come again.
    fn refuse_write(&mut self, envelope: &Envelope, reason: &TooOften, now: Now) {
        let TooOften { ref key, limit, retry_after } = *reason;
        let mut text = self.env.pool.take();
        // The key is one word of the refusal, so it must not contain spaces.
        let shown = escaped(&key[..key.len().min(HOT_NAME_BYTES_SHOWN)]).replace(' ', "\\x20");
        let (scope, user, remaining) = ("key", None, 0);
        Refusal::Throttled { scope, tenant: &shown, user, limit, remaining, retry_after }.encode(&mut text);
        self.env.counters.add(Counter::RefusedThrottled, 1);
        let (env, mut clients) = self.clients();
        clients.give(env, envelope.reply_to, Outcome::Throttled, Message::Small(&text), now);
        self.env.pool.give(text);
    }

    /// Sends the fetches (shared reads of hot keys) that reads wait for, the requests for hot keys that were held back
    /// and may go on, and to other cores copies of replies, and the numbers of requests answered from their copies.
    #[inline(never)]
    pub(super) fn send_what_is_hot(&mut self, now: Now) {
        loop {
            self.send_detached(now);
            if let Some((envelope, frame)) = self.hot_keys.poll_resumed() {
                self.meet_one((&envelope, Arrival::Again), Message::Small(&frame), 1, now);
            } else if !self.send_fetch(now) {
                break;
            }
        }
        while let Some((holder, copy)) = self.hot_keys.poll_copy() {
            self.peers.push_copy(holder, copy);
        }
        while let Some((home, hits)) = self.hot_keys.poll_hits() {
            self.peers.push_hits(home, hits);
        }
    }

    /// Sends the next fetch (shared read) of a hot key's reply; false if there is none. If it cannot be
    /// sent, the requests that wait for it are refused.
    fn send_fetch(&mut self, now: Now) -> bool {
        let mut message = self.env.pool.take();
        let fetch = self.hot_keys.poll_fetch(&self.env, &mut message, now.monotonic);
        if let Some((envelope, requests)) = fetch {
            self.put_out(&envelope, Message::Small(&message), requests, now);
        }
        self.env.pool.give(message);
        fetch.is_some()
    }

    /// Takes requests for keys that have just become hot out of the queues in front of their stores, and
    /// handles them as if they came now, so that they can share a fetch. Requests for the key alone must not overtake
    /// a queued request for several keys that names the key, so such a key waits for a later search.
    fn notice_queued(&mut self, now: Now) {
        let Some(search) = self.hot_keys.search(now.monotonic) else { return };
        let Some(beside_others) = self.search_queued(&search) else { return };
        let upstream = &self.upstream;
        let is_ready = |Unnoticed { id, place: (_, slot), promotion, .. }: &Unnoticed| {
            *promotion <= search.since && !upstream.is_holding(*slot) && !beside_others.contains(*id)
        };
        let ready: Vec<Unnoticed> =
            search.keys.into_iter().filter(is_ready).take(HOT_KEYS_NOTICED_MAX).collect();
        for Unnoticed { id, place: (backend, slot), database, key, .. } in ready {
            let Self { env, upstream, hot_keys, .. } = self;
            // Connections one of whose reads has left the queue: their later requests for the key have to
            // follow it.
            let mut left: HashSet<u64> = HashSet::new();
            let taken = upstream.take_queued((backend, slot), |parked| {
                let frame = parked.message.message();
                let Touched::Key { key: named, may_be_kept } = parked.envelope.touches.of(frame.bytes())
                else {
                    return Choice::Stays;
                };
                if named != key || parked.envelope.route.database != database {
                    return Choice::Stays;
                }
                let connection = env.pieces.connection(parked.envelope.reply_to);
                let is_fit = may_be_kept && frame.bytes().len() <= HOT_FRAME_BYTES_MAX;
                // A connection that also has a request about unknown keys keeps its place in the queue: that
                // request must not be overtaken.
                let may_leave = parked.requests == 1 && !hot_keys.is_about_any(connection);
                if may_leave && (is_fit || left.contains(&connection)) {
                    left.insert(connection);
                    return Choice::Leaves;
                }
                hot_keys.handle_queued(env, id, &parked.envelope, frame.bytes());
                parked.envelope = reported(&parked.envelope);
                Choice::Stays
            });
            self.hot_keys.handle_noticed(id, now.monotonic);
            taken.iter().for_each(|(parked, _)| self.hot_keys.handle_unqueued(&self.env, &parked.envelope));
            for (parked, is_eased) in taken {
                let Parked { envelope, message, .. } = parked;
                self.meet_one((&envelope, Arrival::Again), message.message(), 1, now);
                message.release(&mut self.env.pool);
                if is_eased {
                    let (env, _, mut replies) = self.towards_clients();
                    replies.note(env, envelope.reply_to, Note::Eased);
                }
            }
        }
    }

    /// Returns those of the keys that `search` looks for that queued requests for several keys name; all of
    /// them if the keys of such a request cannot be read. Each request is parsed once for all keys together,
    /// and again only for keys that became hot later. None if more is queued than may be parsed at once; the
    /// next call goes on with the rest.
    fn search_queued(&mut self, search: &Search) -> Option<HotSet> {
        let Self { env, upstream, hot_keys, .. } = self;
        let bytes_max = env.settings.request_bytes_max;
        let backends = search.backends();
        let mut beside_others = HotSet::default();
        let (mut examined, mut work, mut is_finished) = (0, 0, true);
        for parked in upstream.queued_mut(&backends) {
            let message = parked.message.message();
            if parked.envelope.touches.of(message.bytes()) != Touched::Keys {
                continue;
            }
            let known = parked.searched.as_ref().filter(|searched| searched.promotions >= search.since);
            if let Some(searched) = known {
                beside_others.insert_all(&searched.named);
                continue;
            }
            if work >= HOT_QUEUED_KEYS_EXAMINED_MAX {
                is_finished = false;
                break;
            }
            let mut named = HotSet::default();
            let told = reach::for_each_key(message.bytes(), bytes_max, &mut |key| {
                examined += 1;
                work += 1 + key.len() / KEY_BYTES;
                search.named(key).for_each(|id| named.insert(id));
            });
            if told.is_err() {
                named = HotSet::ALL;
            }
            work += 1;
            beside_others.insert_all(&named);
            parked.searched = Some(Box::new(Searched { promotions: search.promotions, named }));
        }
        hot_keys.handle_searched(examined, is_finished);
        is_finished.then_some(beside_others)
    }

    /// Takes from a batch the copies of hot keys' replies that another core lends, and the numbers of
    /// requests that it answered from the copies that this core lent.
    pub(super) fn hear_of_copies(&mut self, batch: &Batch, now: Now) {
        for copy in batch.copies() {
            self.hot_keys.take_copy(&self.env, copy, now.monotonic);
        }
        for hits in batch.hits() {
            self.hot_keys.handle_copy_hits(&self.env, *hits, now.monotonic);
        }
    }

    /// Answers a request of this core's client from a copy of a hot key's reply, which another core lent, and
    /// returns true. False if there is no copy, or if an earlier request of the connection that could be
    /// overtaken is under way at the key's home core; the request has to go to that core then, and is recorded
    /// as gone there.
    pub(super) fn is_copied(&mut self, envelope: &Envelope, message: Message<'_>, now: Now) -> bool {
        let slot = envelope.route.slot;
        let Some(client) = self.clients.find(envelope.reply_to.client_id()) else { return false };
        if !client.has_handed_over(slot, envelope.reply_to.part)
            && envelope.touches.may_be_kept()
            && self.hot_keys.has_copies(slot)
            && let Some(reply) =
                self.hot_keys.find_copy(&mut self.env, envelope.route, message.bytes(), now.monotonic)
        {
            let (env, mut clients) = self.clients();
            let outcome = Outcome::cached(reply.len());
            clients.give(env, envelope.reply_to, outcome, Message::new(&reply, Some(&reply)), now);
            return true;
        }
        if let Some(client) = self.clients.find(envelope.reply_to.client_id()) {
            client.hand_over(envelope.touches.is_key().then_some(slot));
        }
        false
    }

    /// Handles a store's message or reply (`said`) on its tracker, the connection on which it reports
    /// changes of hot keys, or the loss of that connection.
    pub(super) fn take_change(&mut self, backend: BackendId, said: Said, now: Now) {
        let Self { env, hot_keys, .. } = self;
        let now = now.monotonic;
        match said {
            Said::Tracks(tracks) => hot_keys.handle_tracker_opened(env, backend, tracks, now),
            Said::Answer(is_error) => hot_keys.handle_tracker_answer(backend, is_error, now),
            Said::Message(message) => hot_keys.handle_changes(env, backend, &message, now),
            Said::Lost => hot_keys.handle_tracker_lost(env, backend, now),
        }
    }

    /// Opens and closes trackers (connections on which stores report changes of hot keys), and sends requests
    /// over them, as the hot keys' state asks for.
    fn do_tracker_tasks(&mut self, now: Now) {
        while let Some(task) = self.hot_keys.poll_task() {
            match task {
                Task::Open(backend) => self.private.open_tracker(&mut self.env, backend, now),
                Task::Register(backend, key) => {
                    self.private.ask_tracker(&mut self.env, backend, &[b"PTTL", &key], now);
                }
                Task::Ping(backend) => self.private.ask_tracker(&mut self.env, backend, &[b"PING"], now),
                Task::Close(backend) => self.private.close_tracker(&mut self.env, backend),
            }
        }
    }

    fn send_detached(&mut self, now: Now) {
        while let Some((envelope, frame)) = self.hot_keys.poll_detached() {
            self.put_out(&reported(&envelope), Message::Small(&frame), 1, now);
        }
        while let Some((envelope, reason)) = self.hot_keys.poll_refused() {
            self.refuse_write(&envelope, &reason, now);
        }
    }

    /// Ends a turn (pass of the shard's loop) for hot keys: refuses requests that have waited too long for a fetch
    /// (shared read of a hot key), sends requests that may go on, and searches the queues for requests for keys that
    /// became hot.
    pub(super) fn look_after_hot(&mut self, now: Now) {
        if !self.hot_keys.is_on() {
            return;
        }
        self.hot_keys.handle_time(now.monotonic);
        if self.hot_keys.is_due(now.monotonic) {
            self.do_what_is_due(now);
        }
    }

    /// Answers the read that pays for a fetch (one read of a hot key for all requests that wait for it) with the error
    /// for `why`, since its deadline has passed. The read is charged its estimated price now, and the rest when the
    /// fetch is answered.
    fn answer_payer(&mut self, envelope: &Envelope, why: NotSent, now: Now) {
        let (env, _, mut replies) = self.towards_clients();
        env.counters.add(Counter::RequestsAbandoned, 1);
        let whole = env.pieces.whole(envelope.reply_to);
        replies.note(env, whole, Note::PriceFollows);
        turn_away_as(Outcome::Lost, env, &mut replies, envelope.addressee(), why, now);
    }

    #[inline(never)]
    fn do_what_is_due(&mut self, now: Now) {
        let Self { env, upstream, hot_keys, .. } = self;
        let is_sent = |place, until| upstream.has_in_flight(place, until);
        hot_keys.handle_turn_end(env, is_sent, now.monotonic);
        self.notice_queued(now);
        for (envelope, why, pays) in self.hot_keys.take_late(&self.env, now.monotonic) {
            if pays {
                self.answer_payer(&envelope, why, now);
            } else {
                self.refuse(&envelope, why, now);
            }
        }
        if self.hot_keys.has_to_send() {
            self.send_what_is_hot(now);
        }
        self.do_tracker_tasks(now);
    }
}
