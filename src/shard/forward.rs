//! Stage 9: requests to a backend, pipelined over its connections, and replies back to where they belong.

use std::time::Duration;

use bytes::Bytes;

use super::Shard;
use super::batch::{Message, Outcome, ReplyTo, Route, Terms};
use super::counters::Counter;
use super::link::{Link, LinkState, Pending, Purpose};
use super::refusal::Refusal;
use super::track::Track;
use crate::protocol::{Protocol, Scanned, Segment, encode};
use crate::values::limits::{self, COPY_BYTES_MAX};
use crate::values::time::Now;
use crate::values::{Action, Owner};
use crate::values::{BackendId, ConnectionId};

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
        // The low bits of the slot are as good as any: home cores are chosen by a mix of all of them.
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
            LinkState::Opening { .. } | LinkState::Open => {
                let full = link.pending.len() >= limits::LINK_PENDING_MAX
                    || link.output.len() >= limits::LINK_OUTPUT_BYTES_MAX;
                if full {
                    return Err(Refused::Full);
                }
            }
        }
        Ok(())
    }

    fn open_link(&mut self, connection: ConnectionId, now: Now) {
        let link = &mut self.links[connection.0 as usize];
        link.generation = link.generation.wrapping_add(1);
        link.state = LinkState::Opening { since: now.monotonic };
        let greeting = Pending { purpose: Purpose::Greeting, class: 0, sent_at: now.monotonic };
        let backend = &self.settings.backends[usize::from(link.backend.0)];
        let out = link.output.buffer(&mut self.pool);
        if let Some(words) = greeting_words(link.protocol, backend.credentials.as_ref()) {
            encode::request(out, words.iter().map(|word| word.as_bytes()));
            link.pending.push_back(greeting);
            self.owed += 1;
        }
        let owner = Owner::Link(connection, link.generation);
        self.actions.push_back(Action::Connect { owner, backend: link.backend });
    }

    /// The socket of a link is connected.
    pub fn handle_link_connected(&mut self, connection: ConnectionId, generation: u32) {
        if self.current_link(connection, generation).is_none() {
            return;
        }
        self.counters.add(Counter::LinksOpened, 1);
        self.links[connection.0 as usize].opened();
        self.list_link_to_send(connection);
    }

    /// The socket of a link could not be connected, or is gone.
    pub fn handle_link_lost(&mut self, connection: ConnectionId, generation: u32, now: Now) {
        if self.current_link(connection, generation).is_some() {
            let connected = self.links[connection.0 as usize].state == LinkState::Open;
            self.lose_link(connection, if connected { "connection-lost" } else { "connect-failed" }, now);
        }
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
        if let Some(link) = self.current_link(connection, generation) {
            link.heard_at = now.monotonic;
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
        let oversized = std::mem::take(&mut link.oversized);
        let mut partial = std::mem::take(&mut link.partial);
        let to = match pending.purpose {
            Purpose::Step => {
                self.pool.give(partial);
                return true;
            }
            Purpose::Greeting => {
                if scanned.kind == b'-' {
                    self.drop_link(connection, "login-refused", now);
                    return false;
                }
                link.proved();
                return true;
            }
            Purpose::Answer(to) => to,
        };
        link.proved();
        let backend = usize::from(link.backend.0);
        let took = now.monotonic.since(pending.sent_at);
        self.service_times.record(took);
        let slowness = self.baselines[backend].handle_reply(usize::from(pending.class), took);
        let outcome = Outcome::Served {
            rows: scanned.rows.min(u64::from(u32::MAX)) as u32,
            slowness_micros: (slowness.as_micros() as u64).min(u64::from(u32::MAX)) as u32,
        };
        if oversized {
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

    fn keep_partial(&mut self, connection: ConnectionId, chunk: &[u8]) {
        let link = &mut self.links[connection.0 as usize];
        if link.oversized {
            return;
        }
        if link.partial.len() + chunk.len() > self.settings.reply_bytes_max {
            link.oversized = true;
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

    fn refuse(&mut self, to: ReplyTo, backend: BackendId, refused: &Refused, now: Now) {
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
        };
        let mut text = self.pool.take();
        refusal.encode(&mut text);
        self.counters.add(counter, 1);
        self.give_back(to, Outcome::Refused, Message::Small(&text), now);
        self.pool.give(text);
    }

    /// Closes a link's socket and answers for it.
    fn drop_link(&mut self, connection: ConnectionId, reason: &'static str, now: Now) {
        let generation = self.links[connection.0 as usize].generation;
        self.actions.push_back(Action::Close(Owner::Link(connection, generation)));
        self.lose_link(connection, reason, now);
    }

    fn lose_link(&mut self, connection: ConnectionId, reason: &'static str, now: Now) {
        self.counters.add(Counter::LinksLost, 1);
        let spread = self.random_byte();
        let link = &mut self.links[connection.0 as usize];
        link.output.clear(&mut self.pool);
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
                self.give_back(to, Outcome::Refused, Message::Small(&text), now);
            }
        }
        self.pool.give(text);
        self.links[connection.0 as usize].pending = pending;
    }

    pub(super) fn give_up_on_silent_links(&mut self, now: Now) {
        for index in 0..self.links.len() {
            let link = &self.links[index];
            let connection = ConnectionId(index as u32);
            // What stands behind much else is not owed from when it was sent, but from the reply before it.
            let owes_since = link.pending.front().map(|pending| pending.sent_at.max(link.heard_at));
            match link.state {
                LinkState::Opening { since }
                    if now.monotonic.since(since) >= self.settings.connect_timeout =>
                {
                    self.drop_link(connection, "connect-timeout", now);
                }
                LinkState::Open
                    if owes_since
                        .is_some_and(|since| now.monotonic.since(since) >= self.settings.reply_timeout) =>
                {
                    self.drop_link(connection, "reply-timeout", now);
                }
                _ => {}
            }
        }
    }

    fn current_link(&mut self, connection: ConnectionId, generation: u32) -> Option<&mut Link> {
        self.links.get_mut(connection.0 as usize).filter(|link| {
            link.generation == generation && matches!(link.state, LinkState::Open | LinkState::Opening { .. })
        })
    }

    fn list_link_to_send(&mut self, connection: ConnectionId) {
        let link = &mut self.links[connection.0 as usize];
        let idle = link.state == LinkState::Open && !link.sending && !link.listed_to_send;
        if idle && !link.output.is_empty() {
            link.listed_to_send = true;
            self.links_to_send.push_back(connection);
        }
    }

    pub(super) fn poll_link_transmit(&mut self) -> Option<(Owner, Segment)> {
        while let Some(connection) = self.links_to_send.pop_front() {
            let link = &mut self.links[connection.0 as usize];
            link.listed_to_send = false;
            if link.state != LinkState::Open || link.sending {
                continue;
            }
            if let Some(segment) = link.output.take() {
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
enum Refused {
    /// The backend could not be reached; the next attempt is this far away.
    Down(Duration),
    /// Too much waits on it.
    Full,
}

/// What weir says first to a backend, if anything.
fn greeting_words(protocol: Protocol, credentials: Option<&(Option<String>, String)>) -> Option<Vec<&str>> {
    match (protocol, credentials) {
        (Protocol::Resp2, None) => None,
        (Protocol::Resp2, Some((None, password))) => Some(vec!["AUTH", password]),
        (Protocol::Resp2, Some((Some(user), password))) => Some(vec!["AUTH", user, password]),
        (Protocol::Resp3, None) => Some(vec!["HELLO", "3"]),
        (Protocol::Resp3, Some((user, password))) => {
            Some(vec!["HELLO", "3", "AUTH", user.as_deref().unwrap_or("default"), password])
        }
    }
}
