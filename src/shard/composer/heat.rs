//! Requests for keys that are hot: answered from memory, waiting for somebody else's fetch, or on their way like all others.

use std::time::Duration;

use super::Shard;
use crate::shard::counters::Counter;
use crate::shard::hot::Meeting;
use crate::shard::message::Message;
use crate::shard::outcome::Outcome;
use crate::shard::post::Batch;
use crate::shard::refusal::{NotSent, Refusal, Stage};
use crate::shard::request::{Envelope, Touched};
use crate::values::escaped;
use crate::values::limits::HOT_NAME_BYTES_SHOWN;
use crate::values::time::Now;

/// When to come back where as many wait for one key as may.
const RETRY_CROWDED: Duration = Duration::from_millis(10);

impl Shard {
    /// Looks at a request whose key may be hot. True if it need not be sent.
    #[inline(never)]
    pub(super) fn is_seen_to(&mut self, envelope: &Envelope, message: Message<'_>, now: Now) -> bool {
        let is_met = self.is_met(envelope, message, now);
        if self.hot.has_to_send() {
            self.send_what_is_hot(now);
        }
        is_met
    }

    fn is_met(&mut self, envelope: &Envelope, message: Message<'_>, now: Now) -> bool {
        let meeting = self.hot.meet(&mut self.env, envelope, message.bytes(), now.monotonic);
        let passes = matches!(meeting, Meeting::Passes);
        match meeting {
            Meeting::Answered(reply) => {
                let (env, mut clients) = self.clients();
                let outcome = Outcome::cached(reply.len());
                clients.give(env, envelope.reply_to, outcome, Message::new(&reply, Some(&reply)), now);
            }
            Meeting::Crowded => self.refuse(envelope, NotSent::Queue(RETRY_CROWDED), now),
            Meeting::WrittenTooOften { limit, retry_after } => {
                self.refuse_write(envelope, message, (limit, retry_after), now);
            }
            Meeting::Passes | Meeting::Waits => {}
        }
        !passes
    }

    /// A key is written more often than keys may be: whoever writes it is told which.
    fn refuse_write(
        &mut self,
        envelope: &Envelope,
        message: Message<'_>,
        (limit, retry_after): (u64, Duration),
        now: Now,
    ) {
        let Touched::Key { key, .. } = envelope.touches.of(message.bytes()) else { return };
        let mut text = self.env.pool.take();
        // A word of the refusal: without spaces.
        let shown = escaped(&key[..key.len().min(HOT_NAME_BYTES_SHOWN)]).replace(' ', "\\x20");
        let (scope, user, remaining) = ("key", None, 0);
        Refusal::Throttled { scope, tenant: &shown, user, limit, remaining, retry_after }.encode(&mut text);
        self.env.counters.add(Counter::RefusedThrottled, 1);
        let (env, mut clients) = self.clients();
        clients.give(env, envelope.reply_to, Outcome::Refused, Message::Small(&text), now);
        self.env.pool.give(text);
    }

    /// Sends what several requests wait for, and what waits no more.
    #[inline(never)]
    pub(super) fn send_what_is_hot(&mut self, now: Now) {
        loop {
            self.send_detached(now);
            let Some((envelope, frame)) = self.hot.poll_resumed() else { break };
            let is_met = self.is_met(&envelope, Message::Small(&frame), now);
            // What it must not overtake goes before it.
            self.send_detached(now);
            if !is_met {
                self.put_out(&envelope, Message::Small(&frame), 1, now);
            }
        }
        let mut message = self.env.pool.take();
        while let Some((envelope, requests)) = self.hot.poll_fetch(now.monotonic, &mut message) {
            self.put_out(&envelope, Message::Small(&message), requests, now);
            message.clear();
        }
        self.env.pool.give(message);
        while let Some((holder, copy)) = self.hot.poll_copy() {
            self.post.push_copy(holder, copy);
        }
        while let Some((home, hits)) = self.hot.poll_hits() {
            self.post.push_hits(home, hits);
        }
    }

    /// What other cores lend, and how often what this one lends was of use.
    pub(super) fn hear_of_copies(&mut self, batch: &Batch, now: Now) {
        for copy in batch.copies() {
            self.hot.take_copy(&self.env, copy, now.monotonic);
        }
        for hits in batch.hits() {
            self.hot.handle_copy_hits(&self.env, *hits, now.monotonic);
        }
    }

    /// A request of a client of this core goes to the home of its key. True if it need not, because its reply is lent to this core, and
    /// nothing of its connection is under way there that it could overtake.
    pub(super) fn is_copied(&mut self, envelope: &Envelope, message: Message<'_>, now: Now) -> bool {
        let slot = envelope.route.slot;
        let Some(client) = self.front.find(envelope.reply_to.client_id()) else { return false };
        if !client.has_handed_over(slot, envelope.reply_to.part)
            && envelope.touches.may_be_kept()
            && self.hot.has_copies(slot)
            && let Some(reply) =
                self.hot.find_copy(&mut self.env, envelope.route, message.bytes(), now.monotonic)
        {
            let (env, mut clients) = self.clients();
            let outcome = Outcome::cached(reply.len());
            clients.give(env, envelope.reply_to, outcome, Message::new(&reply, Some(&reply)), now);
            return true;
        }
        if let Some(client) = self.front.find(envelope.reply_to.client_id()) {
            client.hand_over(envelope.touches.is_key().then_some(slot));
        }
        false
    }

    fn send_detached(&mut self, now: Now) {
        while let Some((envelope, frame)) = self.hot.poll_detached() {
            self.put_out(&envelope, Message::Small(&frame), 1, now);
        }
    }

    /// The end of a turn, for what is hot.
    pub(super) fn look_after_hot(&mut self, now: Now) {
        if !self.hot.is_on() {
            return;
        }
        let Self { env, back, hot, .. } = self;
        let is_queued = |place, until| back.has_queued(place, until);
        let is_sent = |place, until| back.has_in_flight(place, until);
        hot.handle_turn_end(env, is_queued, is_sent, now.monotonic);
        for (envelope, waited) in self.hot.take_late(now.monotonic) {
            self.refuse(&envelope, NotSent::TooLate(Stage::Backend, waited), now);
        }
        if self.hot.has_to_send() {
            self.send_what_is_hot(now);
        }
    }
}
