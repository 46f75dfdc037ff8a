//! Stage 9: requests to a backend, pipelined over its connections, and replies back to where they belong.

use std::time::Duration;

use bytes::Bytes;

use super::Shard;
use super::batch::{Message, Outcome, ReplyTo, Route, Terms};
use super::counters::Counter;
use super::link::{Link, LinkState, Pending, Purpose};
use super::refusal::Refusal;
use super::track::Track;
use crate::protocol::{Protocol, Scanned, Segment};
use crate::values::limits::{self, COPY_BYTES_MAX};
use crate::values::time::Now;
use crate::values::{Action, BackendId, ConnectionId, Loss, Owner};

/// When to come back after a connection was lost with requests on it.
const RETRY_AFTER_LOSS: Duration = Duration::from_millis(50);
/// When to come back after a connection had no room.
const RETRY_WHEN_FULL: Duration = Duration::from_millis(10);

impl Shard {
    /// Forwards a request whose key is at home here, or that has no home.
    pub(super) fn forward_here(
        &mut self,
        to: ReplyTo,
        route: Route,
        terms: Terms,
        message: Message<'_>,
        now: Now,
    ) {
        self.forward_block(to, route, terms, message, 1, now);
    }

    /// Forwards a block of requests of which only the last one's reply counts.
    pub(super) fn forward_block(
        &mut self,
        to: ReplyTo,
        route: Route,
        terms: Terms,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) {
        let connection = self.link_for(route);
        if let Err(refusal) = self.make_ready(connection, now) {
            return self.refuse(to, route.backend, &refusal, now);
        }
        if self.links[connection.0 as usize].fenced < self.fences.count() {
            self.fence_off(connection, now);
        }
        self.counters.add(Counter::RequestsForwarded, 1);
        self.counters.add(Counter::RequestsHeavy, u64::from(route.track == Track::Heavy));
        let link = &mut self.links[connection.0 as usize];
        match message {
            Message::Small(bytes) => link.output.append(&mut self.pool, bytes),
            Message::Shared(bytes) => link.output.append_shared(&mut self.pool, bytes),
        }
        for _ in 1..requests {
            link.pending.push_back(Pending {
                purpose: Purpose::Step,
                class: terms.class,
                sent_at: now.monotonic,
            });
        }
        let purpose = Purpose::Answer(to);
        link.pending.push_back(Pending { purpose, class: terms.class, sent_at: now.monotonic });
        self.owed += requests;
        self.list_link_to_send(connection);
    }

    /// The connection of a request: the same for the same slot and track, so that requests on one key keep their order.
    fn link_for(&self, route: Route) -> ConnectionId {
        let (usual, heavy) = (self.settings.links_per_backend, self.settings.heavy_links);
        let per_backend = u32::from(usual + heavy);
        let lane = self.lane_of(route.slot);
        let lane = match route.track {
            Track::Usual => lane,
            // What goes together on the usual track goes together here too.
            Track::Heavy => usual + lane % heavy,
        };
        let dialect = match route.protocol {
            Protocol::Resp2 => 0,
            Protocol::Resp3 => 1,
        };
        ConnectionId((u32::from(route.backend.0) * 2 + dialect) * per_backend + u32::from(lane))
    }

    /// Which of the usual connections to a backend a slot uses.
    pub(super) fn lane_of(&self, slot: u16) -> u16 {
        // The low bits of the slot: the high ones have chosen the core and the backend.
        slot % self.settings.links_per_backend
    }

    /// Sees to it that the link takes requests.
    fn make_ready(&mut self, connection: ConnectionId, now: Now) -> Result<(), Refused> {
        let link = &mut self.links[connection.0 as usize];
        match link.state {
            LinkState::BackingOff { until } if until > now.monotonic => {
                return Err(Refused::Down(until.since(now.monotonic)));
            }
            LinkState::Closed | LinkState::BackingOff { .. } => self.open_link(connection, now),
            LinkState::Opening { .. } | LinkState::Greeting { .. } | LinkState::Open => {
                let full = link.pending.len() >= limits::LINK_PENDING_MAX
                    || link.output.len() >= limits::LINK_OUTPUT_BYTES_MAX;
                if full {
                    return Err(Refused::Full);
                }
            }
        }
        Ok(())
    }

    /// The socket of a link could not be connected, or is gone.
    pub fn handle_link_lost(&mut self, connection: ConnectionId, generation: u32, loss: Loss, now: Now) {
        let Some(link) = self.current_link(connection, generation) else { return };
        let connected = !matches!(link.state, LinkState::Opening { .. });
        if loss == Loss::OnTheWay {
            self.raise_fence(connection);
        }
        self.lose_link(connection, if connected { "connection-lost" } else { "connect-failed" }, now);
    }

    /// Bytes from a backend.
    pub fn handle_link_bytes(
        &mut self,
        connection: ConnectionId,
        generation: u32,
        mut chunk: &[u8],
        now: Now,
    ) {
        self.counters.add(Counter::BackendBytesReceived, chunk.len() as u64);
        let Some(link) = self.current_link(connection, generation) else { return };
        link.heard_at = now.monotonic;
        if !link.greetings.is_empty() {
            chunk = self.take_greetings(connection, generation, chunk, now);
        }
        while !chunk.is_empty() {
            let Some(link) = self.current_link(connection, generation) else { return };
            let scanned = link.scanner.scan(chunk);
            let Ok(scanned) = scanned else { return self.drop_link(connection, "malformed-reply", now) };
            let Some(scanned) = scanned else {
                return self.keep_partial(connection, chunk);
            };
            let (end, rest) = chunk.split_at(scanned.end);
            chunk = rest;
            let Some(pending) = link.pending.pop_front() else {
                return self.drop_link(connection, "unexpected-reply", now);
            };
            self.owed -= 1;
            self.counters.add(Counter::RepliesReceived, 1);
            if !self.take_reply(connection, pending, end, &scanned, now) {
                return;
            }
        }
    }

    /// One whole reply. False if the link is no more.
    fn take_reply(
        &mut self,
        connection: ConnectionId,
        pending: Pending,
        end: &[u8],
        scanned: &Scanned,
        now: Now,
    ) -> bool {
        let link = &mut self.links[connection.0 as usize];
        let let_go = std::mem::take(&mut link.let_go);
        let mut partial = std::mem::take(&mut link.partial);
        let to = match pending.purpose {
            Purpose::Step => {
                self.pool.give(partial);
                return true;
            }
            Purpose::Fence => {
                let (origin, sequence) = link.fences.pop_front().expect("each in the stream is noted");
                self.pool.give(partial);
                self.lift_fence(origin, sequence);
                return true;
            }
            Purpose::Answer(to) => to,
        };
        link.proved();
        let backend = usize::from(link.backend.0);
        let took_nanos = now.monotonic.nanos_since(pending.sent_at);
        let took_micros = took_nanos / 1_000;
        self.service_times.record(took_nanos);
        let slowness_micros = self.baselines[backend].handle_reply(usize::from(pending.class), took_micros);
        let in_32_bits = |number: u64| number.min(u64::from(u32::MAX)) as u32;
        let outcome = Outcome::Served {
            bytes: in_32_bits(let_go.saturating_add((partial.len() + end.len()) as u64)),
            rows: in_32_bits(scanned.rows),
            took_micros: in_32_bits(took_micros),
            slowness_micros: in_32_bits(slowness_micros),
        };
        if let_go > 0 {
            self.counters.add(Counter::RepliesOversized, 1);
            let text = format!(
                "-ERR the reply is larger than {} bytes (--max-reply-bytes)\r\n",
                self.settings.reply_bytes_max
            );
            self.give_back(to, outcome, Message::Small(text.as_bytes()), now);
        } else if partial.is_empty() {
            self.give_back(to, outcome, Message::Small(end), now);
        } else {
            partial.extend_from_slice(end);
            if partial.len() > COPY_BYTES_MAX {
                self.give_back(to, outcome, Message::Shared(&Bytes::from(partial)), now);
            } else {
                self.give_back(to, outcome, Message::Small(&partial), now);
                self.pool.give(partial);
            }
        }
        true
    }

    pub(super) fn keep_partial(&mut self, connection: ConnectionId, chunk: &[u8]) {
        let link = &mut self.links[connection.0 as usize];
        if link.let_go > 0 {
            link.let_go = link.let_go.saturating_add(chunk.len() as u64);
            return;
        }
        if link.partial.len() + chunk.len() > self.settings.reply_bytes_max {
            link.let_go = (link.partial.len() + chunk.len()) as u64;
            link.partial = Vec::new();
            return;
        }
        if link.partial.capacity() == 0 {
            link.partial = self.pool.take();
        }
        link.partial.extend_from_slice(chunk);
    }

    /// A reply on its way to the client: to this shard's, or into the batch for the shard that has it.
    pub(super) fn give_back(&mut self, to: ReplyTo, outcome: Outcome, message: Message<'_>, now: Now) {
        if to.shard == self.settings.id {
            self.deliver(to, outcome, message, now);
        } else {
            self.batch_for(to.shard).push_reply(to, outcome, message);
        }
    }

    pub(super) fn refuse(&mut self, to: ReplyTo, backend: BackendId, refused: &Refused, now: Now) {
        let name = &self.settings.backends[usize::from(backend.0)].name;
        let (counter, refusal) = match refused {
            Refused::Down(left) => (
                Counter::RefusedUnavailable,
                Refusal::Unavailable { backend: name, reason: "connect-failed", retry_after: *left },
            ),
            Refused::Full => (
                Counter::RefusedOverloaded,
                Refusal::Overloaded { reason: "pending", backend: name, retry_after: RETRY_WHEN_FULL },
            ),
            Refused::CoreFull => (
                Counter::RefusedOverloaded,
                Refusal::Overloaded { reason: "core", backend: name, retry_after: RETRY_WHEN_FULL },
            ),
        };
        let mut text = self.pool.take();
        refusal.encode(&mut text);
        self.counters.add(counter, 1);
        self.give_back(to, Outcome::Refused, Message::Small(&text), now);
        self.pool.give(text);
    }

    /// Gives a link up and answers for it. What it has not sent yet is dropped; what the store has not read yet is fenced off.
    pub(super) fn drop_link(&mut self, connection: ConnectionId, reason: &'static str, now: Now) {
        let generation = self.links[connection.0 as usize].generation;
        self.actions.push_back(Action::Reset(Owner::Link(connection, generation)));
        let fenced = self.raise_fence(connection);
        self.lose_link(connection, reason, now);
        if fenced && self.links[connection.0 as usize].state == LinkState::Closed {
            // The sooner the store hears of it, the less it does of what nobody waits for.
            self.open_link(connection, now);
        }
    }

    fn lose_link(&mut self, connection: ConnectionId, reason: &'static str, now: Now) {
        self.counters.add(Counter::LinksLost, 1);
        let spread = self.random_byte();
        let link = &mut self.links[connection.0 as usize];
        // What waited for the connection to be greeted was not sent. Of the others nobody knows how far they came.
        let outcome = if link.state == LinkState::Open { Outcome::Lost } else { Outcome::Refused };
        self.owed -= link.clear(&mut self.pool);
        link.lost(now.monotonic, spread);
        let retry_after = link.pause_left(now.monotonic).max(RETRY_AFTER_LOSS);
        let backend = link.backend;
        let mut pending = std::mem::take(&mut link.pending);
        self.owed -= pending.len();
        let mut text = self.pool.take();
        let name = &self.settings.backends[usize::from(backend.0)].name;
        Refusal::Unavailable { backend: name, reason, retry_after }.encode(&mut text);
        for pending in pending.drain(..) {
            if let Purpose::Answer(to) = pending.purpose {
                self.counters.add(Counter::RefusedUnavailable, 1);
                self.give_back(to, outcome, Message::Small(&text), now);
            }
        }
        self.pool.give(text);
        self.links[connection.0 as usize].pending = pending;
    }

    pub(super) fn give_up_on_silent_links(&mut self, now: Now) {
        for index in 0..self.links.len() {
            let link = &self.links[index];
            let connection = ConnectionId(index as u32);
            let owes_since = link.owes_since();
            match link.state {
                LinkState::Opening { since }
                    if now.monotonic.since(since) >= self.settings.connect_timeout =>
                {
                    self.drop_link(connection, "connect-timeout", now);
                }
                LinkState::Open | LinkState::Greeting { .. }
                    if owes_since
                        .is_some_and(|since| now.monotonic.since(since) >= self.settings.reply_timeout) =>
                {
                    self.drop_link(connection, "reply-timeout", now);
                }
                _ => {}
            }
        }
    }

    pub(super) fn current_link(&mut self, connection: ConnectionId, generation: u32) -> Option<&mut Link> {
        self.links.get_mut(connection.0 as usize).filter(|link| {
            let exists = matches!(
                link.state,
                LinkState::Open | LinkState::Greeting { .. } | LinkState::Opening { .. }
            );
            link.generation == generation && exists
        })
    }

    pub(super) fn list_link_to_send(&mut self, connection: ConnectionId) {
        let link = &mut self.links[connection.0 as usize];
        if !link.sending && !link.listed_to_send && link.has_output() {
            link.listed_to_send = true;
            self.links_to_send.push_back(connection);
        }
    }

    pub(super) fn poll_link_transmit(&mut self) -> Option<(Owner, Segment)> {
        while let Some(connection) = self.links_to_send.pop_front() {
            let link = &mut self.links[connection.0 as usize];
            link.listed_to_send = false;
            if link.sending || !link.has_output() {
                continue;
            }
            let segment = match link.state {
                LinkState::Open => link.output.take(),
                _ => Some(Segment::Gathered(std::mem::take(&mut link.greeting))),
            };
            if let Some(segment) = segment {
                link.sending = true;
                return Some((Owner::Link(connection, link.generation), segment));
            }
        }
        None
    }

    pub(super) fn link_transmitted(&mut self, connection: ConnectionId, generation: u32) {
        if let Some(link) = self.current_link(connection, generation) {
            link.sending = false;
            self.list_link_to_send(connection);
        }
    }
}

/// Why a link takes no request.
pub(super) enum Refused {
    /// The backend could not be reached; the next attempt is this far away.
    Down(Duration),
    /// Too much waits on it.
    Full,
    /// Too much waits for the core that the key is at home on.
    CoreFull,
}
