//! Requests for keys that are hot: answered from memory, waiting for somebody else's fetch, or on their way like all others.

use std::time::Duration;

use super::Shard;
use crate::shard::hot::Meeting;
use crate::shard::message::Message;
use crate::shard::outcome::Outcome;
use crate::shard::refusal::{NotSent, Stage};
use crate::shard::request::Envelope;
use crate::values::time::Now;

/// When to come back where as many wait for one key as may.
const RETRY_CROWDED: Duration = Duration::from_millis(10);

impl Shard {
    /// Looks at a request whose key may be hot. True if it need not be sent.
    #[inline(never)]
    pub(super) fn is_seen_to(&mut self, envelope: &Envelope, message: Message<'_>, now: Now) -> bool {
        let meeting = self.hot.meet(&mut self.env, envelope, message.bytes(), now.monotonic);
        let passes = matches!(meeting, Meeting::Passes);
        match meeting {
            Meeting::Answered(reply) => {
                let (env, mut clients) = self.clients();
                let outcome = Outcome::cached(reply.len());
                clients.give(env, envelope.reply_to, outcome, Message::new(&reply, Some(&reply)), now);
            }
            Meeting::Crowded => self.refuse(envelope, NotSent::Queue(RETRY_CROWDED), now),
            Meeting::Passes | Meeting::Waits => {}
        }
        if self.hot.has_to_send() {
            self.send_what_is_hot(now);
        }
        !passes
    }

    /// Sends what several requests wait for, and what waits no more.
    #[inline(never)]
    pub(super) fn send_what_is_hot(&mut self, now: Now) {
        while let Some((envelope, frame)) = self.hot.poll_detached() {
            self.put_out(&envelope, Message::Small(&frame), 1, now);
        }
        let mut message = self.env.pool.take();
        while let Some((envelope, requests)) = self.hot.poll_fetch(now.monotonic, &mut message) {
            self.put_out(&envelope, Message::Small(&message), requests, now);
            message.clear();
        }
        self.env.pool.give(message);
    }

    /// The end of a turn, for what is hot.
    pub(super) fn look_after_hot(&mut self, now: Now) {
        if !self.hot.is_on() {
            return;
        }
        let Self { env, back, hot, .. } = self;
        let is_queued = |backend, until| back.has_queued(backend, until);
        let is_sent = |backend, until| back.has_in_flight(backend, until);
        hot.handle_turn_end(env, is_queued, is_sent, now.monotonic);
        for (envelope, waited) in self.hot.take_late(now.monotonic) {
            self.refuse(&envelope, NotSent::TooLate(Stage::Backend, waited), now);
        }
        if self.hot.has_to_send() {
            self.send_what_is_hot(now);
        }
    }
}
