//! Takes replies from backends: each belongs to the oldest unanswered request on its connection.

use bytes::Bytes;

use super::Upstream;
use super::nodes::Fate;
use crate::protocol::Scanned;
use crate::protocol::command::Class;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::links::{Greeted, Received};
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::outcome::Outcome;
use crate::shard::pending::{InFlight, Pending, whole};
use crate::shard::refusal::{UNEXPECTED_REPLY, is_read_only, oversized};
use crate::shard::replies::Replies;
use crate::shard::request::ReplyTo;
use crate::values::ConnectionId;
use crate::values::limits::COPY_BYTES_MAX;
use crate::values::time::Now;

impl Upstream {
    /// Sends the greeting (the requests that open a connection) over a connection whose socket is connected
    /// now. Does nothing if `generation` is that of an earlier socket of the connection.
    pub fn handle_connected(&mut self, env: &mut Env, connection: ConnectionId, generation: u32, now: Now) {
        self.links.handle_connected(env, connection, generation, now);
    }

    /// Handles bytes received from a backend: passes complete replies to `replies`, and closes the connection if the
    /// greeting (the requests that open it) fails, or if the bytes are not a valid reply or answer no request.
    /// Ignores bytes of an earlier socket of the connection, whose `generation` is not the present one.
    pub fn handle_bytes(
        &mut self,
        env: &mut Env,
        (connection, generation): (ConnectionId, u32),
        mut chunk: &[u8],
        replies: &mut impl Replies,
        now: Now,
    ) {
        env.counters.add(Counter::BackendBytesReceived, chunk.len() as u64);
        self.begin_turn(now);
        let Some(link) = self.links.current(connection, generation) else { return };
        link.heard_at = now.monotonic;
        if !link.greetings.is_empty() {
            match self.links.take_greetings(env, connection, chunk) {
                Greeted::Waits => return,
                Greeted::Failed(reason) => return self.drop_link(env, connection, reason, replies, now),
                Greeted::Open(rest) => chunk = rest,
            }
        }
        // Requests that waited for the connection leave only now, if it has just been opened.
        self.handle_progress(connection, now);
        self.take_all(env, (connection, generation), (None, chunk), replies, now);
    }

    /// Takes back the buffer that was lent for the rest of a reply ([`Upstream::lend_room`]), with `received` bytes
    /// more in it than before. Handles the reply if it is complete now. Does nothing if `generation` is that of an
    /// earlier socket of the connection.
    pub fn handle_filled(
        &mut self,
        env: &mut Env,
        (connection, generation): (ConnectionId, u32),
        (buffer, received): (Vec<u8>, usize),
        replies: &mut impl Replies,
        now: Now,
    ) {
        env.counters.add(Counter::BackendBytesReceived, received as u64);
        let Some(link) = self.links.current(connection, generation) else { return };
        if received > 0 {
            link.heard_at = now.monotonic;
            self.begin_turn(now);
            self.handle_progress(connection, now);
        }
        let filled = self.links.take_filled(env, (connection, generation), (buffer, received));
        self.take_all(env, (connection, generation), (Some(filled), &[]), replies, now);
    }

    /// Handles `first` (the result of receiving bytes into a lent buffer; None if no buffer was lent), then
    /// all replies in `chunk`. Closes the connection if the bytes are not valid replies, or answer no
    /// request.
    #[inline(never)]
    fn take_all(
        &mut self,
        env: &mut Env,
        (connection, generation): (ConnectionId, u32),
        (mut first, mut chunk): (Option<Received<'_>>, &[u8]),
        replies: &mut impl Replies,
        now: Now,
    ) {
        loop {
            let received = match first.take() {
                Some(received) => received,
                None if chunk.is_empty() => return,
                None => self.links.receive(env, (connection, generation), &mut chunk),
            };
            match received {
                Received::Whole(end, scanned) => {
                    self.take_whole(env, connection, end, &scanned, replies, now);
                }
                Received::Nothing => return,
                Received::Malformed => {
                    return self.drop_link(env, connection, "malformed-reply", replies, now);
                }
                Received::Unexpected => {
                    return self.drop_link(env, connection, UNEXPECTED_REPLY, replies, now);
                }
            }
        }
    }

    /// Treats a backend as if it had sent bytes now, so that its silence has no consequences, because weir itself does
    /// not read the connection at present: large replies on other connections take all memory for such replies. Does
    /// nothing if `generation` is that of an earlier socket of the connection.
    pub fn excuse(&mut self, (connection, generation): (ConnectionId, u32), now: Now) {
        self.begin_turn(now);
        if let Some(link) = self.links.current(connection, generation) {
            link.heard_at = now.monotonic;
            self.handle_progress(connection, now);
        }
    }

    /// Records that a backend sent a reply or a part of one over this connection, so that it no longer counts
    /// as silent or stalled.
    #[inline]
    fn handle_progress(&mut self, connection: ConnectionId, now: Now) {
        let (index, backend) = (self.bulkhead_of(connection), self.links.at(connection).backend);
        self.overload.bulkhead_mut(index).handle_progress(self.turn.late, now.monotonic);
        self.handle_heard(backend, now.monotonic);
    }

    /// Handles one complete reply of a backend, of which `end` has the bytes that came last (earlier ones are
    /// kept in the connection), and `scanned` the type and size: finds the request that it answers, and
    /// passes it on, drops it, or has the request sent again.
    #[inline]
    fn take_whole(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        end: &[u8],
        scanned: &Scanned,
        replies: &mut impl Replies,
        now: Now,
    ) {
        let kind = scanned.kind;
        if kind == b'-' {
            self.record_error(connection, end, now);
        }
        let Some(pending) = self.links.take_pending(connection) else {
            return self.drop_link(env, connection, UNEXPECTED_REPLY, replies, now);
        };
        env.counters.add(Counter::RepliesReceived, 1);
        match pending {
            Pending::Request(request) => {
                self.leave_window(env, connection, (&request, kind), now);
                self.record_health(env, connection, (&request, kind), end, now);
                let mut ran = None;
                if !request.is_abandoned && !self.settle_if_plain(connection, kind) {
                    ran = self.measured_if_script(env, connection, (&request, scanned), end, now);
                    let taken = (&request, kind, ran.unwrap_or(Outcome::Refused));
                    let fate = self.redirect_if_refused(env, connection, taken, end, replies, now);
                    if fate == Fate::Redirected {
                        return self.links.swallow(env, connection);
                    }
                }
                let outcome = match ran {
                    Some(outcome) => outcome,
                    None => self.measured(env, connection, &request, scanned, end, now),
                };
                if request.is_abandoned {
                    return self.drop_reply(env, connection, (&request, kind, outcome), end, replies, now);
                }
                let to = request.envelope.reply_to;
                self.take_reply(env, connection, (to, outcome), (end, kind), replies, now);
            }
            Pending::Ahead { to, .. } => self.take_ahead(env, connection, to, end, replies, now),
            Pending::Steps { left, sent_at } => {
                self.record_step(connection, kind, end);
                self.links.at_mut(connection).record_step(kind, end);
                self.links.swallow_step(env, connection, left, sent_at);
            }
            Pending::Fence { .. } => self.links.swallow_fence(env, connection, kind, end),
        }
    }

    /// Looks at an error reply, of which `end` has the bytes that came last: if the backend is a weir too,
    /// records whether it refused the request; if it is a plain store that has become a replica, has its
    /// connections opened anew.
    #[cold]
    fn record_error(&mut self, connection: ConnectionId, end: &[u8], now: Now) {
        let link = self.links.at(connection);
        if link.inner.is_some() {
            self.links.record_weir_error(connection, end);
        } else if is_read_only(&whole(&link.partial, end)) {
            self.handle_read_only(link.backend, now.monotonic);
        }
    }

    /// Drops the reply to a request that weir has answered already. Tells the core of the request's client the
    /// measurements (`outcome`), from which the rest of the price follows, and, unless a replica replied, that the
    /// request cannot take effect any more. `request` is the record of the request, `kind` the reply's first byte,
    /// and `end` has the bytes of the reply that came last.
    #[cold]
    fn drop_reply(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        (request, kind, outcome): (&InFlight, u8, Outcome),
        end: &[u8],
        replies: &mut impl Replies,
        now: Now,
    ) {
        self.redirect_if_refused(env, connection, (request, kind, Outcome::Refused), end, replies, now);
        self.links.swallow(env, connection);
        replies.note(env, request.envelope.reply_to, Note::LatePrice(outcome));
        if !self.links.at(connection).is_for_replica() {
            replies.note(env, request.envelope.reply_to, Note::Settled { is_certain: true });
        }
    }

    /// Counts an answered request as no longer in flight in its backend's window (limit on requests in
    /// flight) and, if its reply is selected as a sample, adjusts the window's size. `kind` is the reply's first byte.
    #[expect(clippy::inline_always, reason = "every reply: a call would be half of it")]
    #[inline(always)]
    fn leave_window(
        &mut self,
        env: &Env,
        connection: ConnectionId,
        (request, kind): (&InFlight, u8),
        now: Now,
    ) {
        let index = self.bulkhead_of(connection);
        self.overload.handle_answered(env, (index, request, kind), self.turn.late, now);
    }

    /// Records the time that a backend took for its reply to a request. Returns the measurements from which the
    /// request's price follows; `end` has the bytes of the reply that came last.
    #[expect(clippy::inline_always, reason = "every reply: a call would be a third of it")]
    #[inline(always)]
    fn measured(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        request: &InFlight,
        scanned: &Scanned,
        end: &[u8],
        now: Now,
    ) -> Outcome {
        let link = self.links.at(connection);
        let (backend, bytes) = (link.backend, link.reply_bytes(end));
        let took_nanos = now.monotonic.nanos_since(request.sent_at);
        let (nature, took_micros) = (request.envelope.nature, took_nanos / 1_000);
        let rows = nature.rows_priced((scanned.kind, scanned.rows), end, took_micros);
        let slowness_micros = self.overload.record_time(backend, (request, scanned.kind), took_nanos);
        let busy_micros = if nature.hides_work() {
            self.quiets[usize::from(backend.0)].share_since(request.quiet_reading)
        } else {
            0
        };
        if busy_micros > 0 {
            env.counters.add(Counter::BusyMicros, u64::from(busy_micros));
        }
        Outcome::served((bytes, rows), (took_micros, slowness_micros), busy_micros)
    }

    /// Records the time that a cluster's node took for its error reply to a script, before it is known whether the
    /// client gets the reply: a script may return any error once it has run, and costs what it did then. Returns the
    /// measurements, as [`Self::measured`] does; None, with nothing recorded, for any other reply.
    #[cold]
    fn measured_if_script(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        (request, scanned): (&InFlight, &Scanned),
        end: &[u8],
        now: Now,
    ) -> Option<Outcome> {
        let is_scripts_word = scanned.kind == b'-' && request.envelope.nature.class == Class::Script;
        if is_scripts_word { Some(self.measured(env, connection, request, scanned, end, now)) } else { None }
    }

    /// Passes on one complete reply of a backend. `to` is the address of the reply, `outcome` its measurements, and
    /// `kind` its first byte; `end` has the bytes of it that came last.
    #[inline]
    fn take_reply(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        (to, outcome): (ReplyTo, Outcome),
        (end, kind): (&[u8], u8),
        replies: &mut impl Replies,
        now: Now,
    ) {
        let reply = self.links.finish(connection, kind, end);
        if reply.is_all_here && reply.abort.is_none() {
            replies.reply(env, to, outcome, Message::Small(end), now);
        } else {
            self.take_unusual(env, connection, (to, outcome), (end, reply.abort), replies, now);
        }
    }

    /// Passes on a reply in place of which the client gets the error `abort`, or else (None) a reply that came in
    /// several parts, of which `end` is the last. `to` is the address of the reply, `outcome` its measurements.
    #[inline(never)]
    fn take_unusual(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        (to, outcome): (ReplyTo, Outcome),
        (end, abort): (&[u8], Option<Vec<u8>>),
        replies: &mut impl Replies,
        now: Now,
    ) {
        let Some(text) = abort else {
            return self.give_parts(env, connection, (to, outcome), end, replies, now);
        };
        env.pool.give(self.links.take_partial(connection));
        replies.reply(env, to, outcome, Message::Small(&text), now);
    }

    /// Passes on a reply that came in several parts, of which `end` is the last. A reply above
    /// `--max-reply-bytes` was dropped, and an error takes its place. `to` is the address of the reply,
    /// `outcome` its measurements.
    fn give_parts(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        (to, outcome): (ReplyTo, Outcome),
        end: &[u8],
        replies: &mut impl Replies,
        now: Now,
    ) {
        let Some(reply) = self.links.take_parts(connection, end) else {
            env.counters.add(Counter::RepliesOversized, 1);
            let text = oversized(env.settings.reply_bytes_max);
            replies.reply(env, to, outcome, Message::Small(text.as_bytes()), now);
            return;
        };
        if reply.len() > COPY_BYTES_MAX {
            replies.reply(env, to, outcome, Message::Shared(&Bytes::from(reply)), now);
        } else {
            replies.reply(env, to, outcome, Message::Small(&reply), now);
            env.pool.give(reply);
        }
    }

    /// Passes on, to the fetch `to` (shared read of a hot key), the reply to a command that was sent right
    /// before it (`PTTL`, `HPTTL`, `ASKING`). `end` is the last part of that reply.
    fn take_ahead(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        to: ReplyTo,
        end: &[u8],
        replies: &mut impl Replies,
        now: Now,
    ) {
        let mut told = self.links.take_partial(connection);
        told.extend_from_slice(end);
        replies.reply(env, to.ahead(), Outcome::answered(told.len()), Message::Small(&told), now);
        env.pool.give(told);
        self.links.swallow(env, connection);
    }
}
