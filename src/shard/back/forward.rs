//! Sends requests to backends, pipelined over connections, and takes their replies.

use std::time::Duration;

use bytes::Bytes;

use super::link::{Link, LinkState, Odd, Pending, Purpose};
use super::readers::patient_until;
use super::slots::{Heard, PRIMARY, behind_role};
use super::unanswered::Tries;
use super::{Back, Replies};
use crate::policy::window::{KINDS, Sample};
use crate::protocol::command::{Class, Effect};
use crate::protocol::{Protocol, Scanned, room};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::outcome::Outcome;
use crate::shard::refusal::{NotSent, Refusal};
use crate::shard::request::{Envelope, Overdue, ReplyTo, Route, Track};
use crate::shard::settings::{BULKHEADS, ShardSettings};
use crate::values::limits::{COMMAND_CLASSES, COPY_BYTES_MAX};
use crate::values::time::Now;
use crate::values::{Action, BackendId, ConnectionId, Loss, Owner, Timestamp};

/// The least retry delay named to clients whose requests were lost with a connection.
const RETRY_AFTER_LOSS: Duration = Duration::from_millis(50);

impl Back {
    /// Sends a request, or a block of `requests` requests of which only the last one's reply counts; queues
    /// it if there is no room. Before a cluster, sends it to the slot's owner, or holds it while the owner is
    /// unknown.
    #[inline]
    pub fn send(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) -> Result<(), NotSent> {
        let owned;
        let envelope = if self.is_at_owner(envelope.route) {
            envelope
        } else {
            if envelope.route.slot == PRIMARY && requests == 1 {
                let block = behind_role(message.bytes());
                return self.send(env, envelope, Message::Small(&block), 2, now);
            }
            let Some(found) = self.resolve_owner(env, envelope, message, requests, now)? else {
                return Ok(());
            };
            owned = found;
            &owned
        };
        let bulkhead = &self.bulkheads[bulkhead_for(envelope.route)];
        if bulkhead.has_room(envelope.deadline, now.monotonic) {
            match self.put_on_link(env, envelope, message, requests, now) {
                // The connection has its limit of unsent bytes; the request waits if it may.
                Err(NotSent::Full) if self.may_wait => {}
                sent_or_not => return sent_or_not,
            }
        }
        self.send_later(env, envelope, message, requests, now)
    }

    /// Appends a request to the output of its connection, and opens that if need be.
    #[expect(clippy::inline_always, reason = "every request: a call would be a tenth of it")]
    #[inline(always)]
    pub(super) fn put_on_link(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) -> Result<(), NotSent> {
        self.put_on_link_again(env, envelope, message, (requests, Tries::default()), now)
    }

    /// Appends a request to the output of its connection; it may have been sent before. Returns an error if
    /// the backend is not reachable or the connection is full.
    #[expect(clippy::inline_always, reason = "every request: a call would be a tenth of it")]
    #[inline(always)]
    pub(super) fn put_on_link_again(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        (requests, tries): (usize, Tries),
        now: Now,
    ) -> Result<(), NotSent> {
        let Envelope { route, nature, .. } = *envelope;
        let connection = link_for(&env.settings, route);
        let mut link = &mut self.links[connection.0 as usize];
        if !link.is_ready(self.fences.count()) {
            self.make_ready(env, connection, now)?;
            link = &mut self.links[connection.0 as usize];
        }
        env.counters.add(Counter::RequestsForwarded, 1);
        if route.track == Track::Heavy {
            env.counters.add(Counter::RequestsHeavy, 1);
        }
        let has_deadline = envelope.deadline != Timestamp::MAX;
        match message {
            // A block of requests is one transaction, so none of them gets a deadline of its own.
            _ if has_deadline && requests == 1 && link.takes_deadlines() => {
                link.append_within((&mut env.pool, &mut env.counters), envelope, message, now.monotonic);
            }
            Message::Small(bytes) => link.output.append(&mut env.pool, bytes),
            Message::Shared(bytes) => link.output.append_shared(&mut env.pool, bytes),
        }
        if requests > 1 {
            let ahead = if envelope.reply_to.flight_id().is_some() {
                Purpose::Ahead(envelope.reply_to)
            } else {
                Purpose::Steps(requests as u32 - 1)
            };
            link.pending.push_back(Pending::uncounted(ahead, now.monotonic));
        }
        let depth = self.bulkheads[link.bulkhead].handle_sent(envelope.tenant(), now.monotonic);
        // Requests of the heavy track have a bulkhead of their own, in which high cost is usual.
        let is_costly =
            is_costly(nature.class) && route.track == Track::Usual || link.state != LinkState::Open;
        let odd = if is_costly {
            link.costly_ahead += 1;
            Odd::Costly
        } else if link.costly_ahead > 0 {
            Odd::Behind
        } else {
            Odd::No
        };
        link.pending.push_back(Pending::answer(envelope, (depth, odd), now.monotonic));
        if has_deadline && envelope.overdue == Overdue::Answered {
            self.early_at = self.early_at.min(envelope.deadline);
        }
        if route.track == Track::Replica {
            self.early_at = self.early_at.min(patient_until(envelope.deadline, now.monotonic));
        }
        self.in_flight += requests;
        if link.begin_list() {
            self.to_send.push_back(connection);
        }
        if envelope.touches.is_reported() {
            self.notes.push((envelope.reply_to, Note::Sent(now.monotonic)));
        }
        if self.slots.is_some() {
            link.unanswered.push((envelope, requests), tries, message);
        }
        Ok(())
    }

    /// Makes a connection ready for requests: opens it if it is closed, and sends it the fences that it
    /// lacks. Returns an error if it may not be retried yet or is full.
    #[cold]
    pub(super) fn make_ready(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        now: Now,
    ) -> Result<(), NotSent> {
        let link = &mut self.links[connection.0 as usize];
        match link.state {
            LinkState::BackingOff { until } if until > now.monotonic => {
                return Err(NotSent::Down(until.since(now.monotonic)));
            }
            LinkState::Closed | LinkState::BackingOff { .. } => self.open_link(env, connection, now),
            LinkState::Opening { .. } | LinkState::Greeting { .. } | LinkState::Open => {
                if !link.has_room() {
                    return Err(NotSent::Full);
                }
            }
        }
        if self.links[connection.0 as usize].fenced < self.fences.count() {
            self.fence_off(env, connection, now);
        }
        Ok(())
    }

    /// Handles a connection that could not be opened, or was lost: its requests are answered `-UNAVAILABLE`,
    /// or retried where that is safe.
    pub fn handle_lost(
        &mut self,
        env: &mut Env,
        (connection, generation): (ConnectionId, u32),
        loss: Loss,
        replies: &mut impl Replies,
        now: Now,
    ) {
        let Some(link) = self.current_link(connection, generation) else { return };
        let connected = !matches!(link.state, LinkState::Opening { .. });
        if loss == Loss::OnTheWay {
            self.raise_fence(connection);
        }
        let reason = if connected { "connection-lost" } else { "connect-failed" };
        self.lose_link(env, connection, reason, replies, now);
    }

    /// Handles bytes received from a backend. Closes the connection if they are no valid reply.
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
        let late = self.late;
        let Some(link) = self.current_link(connection, generation) else { return };
        link.heard_at = now.monotonic;
        if link.greetings.is_empty() {
            let bulkhead = link.bulkhead;
            self.bulkheads[bulkhead].handle_progress(late, now.monotonic);
        } else {
            chunk = self.take_greetings(env, (connection, generation), chunk, replies, now);
        }
        while !chunk.is_empty() {
            let Some(link) = self.current_link(connection, generation) else { return };
            let Ok(scanned) = link.scanner.scan(chunk) else {
                return self.drop_link(env, connection, "malformed-reply", replies, now);
            };
            let Some(scanned) = scanned else {
                return self.keep_partial(env, connection, chunk);
            };
            let (end, rest) = chunk.split_at(scanned.end);
            chunk = rest;
            self.take_whole(env, connection, end, &scanned, replies, now);
        }
    }

    /// Handles one whole reply, of which `end` is the last part, and gives it to the request that was sent
    /// first of those unanswered.
    #[inline]
    pub(super) fn take_whole(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        end: &[u8],
        scanned: &Scanned,
        replies: &mut impl Replies,
        now: Now,
    ) {
        let link = &mut self.links[connection.0 as usize];
        if link.inner.is_some() && scanned.kind == b'-' {
            self.hear_error(connection, end);
        }
        let Some(pending) = self.links[connection.0 as usize].pending.pop_front() else {
            return self.drop_link(env, connection, "unexpected-reply", replies, now);
        };
        self.in_flight -= 1;
        env.counters.add(Counter::RepliesReceived, 1);
        match pending.purpose {
            Purpose::Answer(to) => {
                self.leave_window(env, connection, &pending, now);
                self.note_health(env, connection, &pending, (scanned, end), now);
                if !self.is_done(connection, scanned)
                    && self.redirect_if_refused(env, connection, &pending, (scanned, end), replies, now)
                        == Heard::Redirected
                {
                    return self.take_no_reply(env, connection, pending);
                }
                self.take_reply(env, connection, (to, pending), end, scanned, replies, now);
            }
            Purpose::Abandoned(to) => {
                self.leave_window(env, connection, &pending, now);
                self.note_health(env, connection, &pending, (scanned, end), now);
                if self.slots.is_some() {
                    self.redirect_if_refused(env, connection, &pending, (scanned, end), replies, now);
                }
                self.take_no_reply(env, connection, pending);
                if !self.links[connection.0 as usize].only_reads {
                    replies.note(env, to, Note::Settled);
                }
            }
            Purpose::Ahead(to) => self.take_ahead(env, connection, (to, pending), end, replies, now),
            Purpose::Steps(_) => {
                if self.slots.is_some() {
                    self.hear_step(connection, scanned.kind, end);
                }
                self.links[connection.0 as usize].hear_step(scanned.kind, end);
                self.take_no_reply(env, connection, pending);
            }
            Purpose::Fence => {
                self.take_no_reply(env, connection, pending);
            }
        }
    }

    /// Removes an answered request from the window and, if the reply is selected as a sample, adjusts the
    /// window.
    #[expect(clippy::inline_always, reason = "every reply: a call would be half of it")]
    #[inline(always)]
    fn leave_window(&mut self, env: &Env, connection: ConnectionId, pending: &Pending, now: Now) {
        let link = &mut self.links[connection.0 as usize];
        if pending.odd == Odd::Costly {
            link.costly_ahead -= 1;
        }
        let bulkhead = &mut self.bulkheads[link.bulkhead];
        let in_flight = bulkhead.handle_over(pending.tenant);
        if bulkhead.wants(pending.sent_at, now.monotonic) {
            let index = link.bulkhead;
            self.look_at(env, index, (pending, in_flight), now);
        }
    }

    #[cold]
    fn look_at(&mut self, env: &Env, index: usize, (pending, in_flight): (&Pending, usize), now: Now) {
        if pending.odd == Odd::Refused {
            return;
        }
        let sample = Sample {
            sent_at: pending.sent_at,
            late: self.late,
            in_flight,
            depth: u32::from(pending.depth),
            kind: pending.class.index() * 2 + usize::from(pending.effect == Effect::Write),
            is_costly: pending.odd != Odd::No,
            left: (pending.useful_ms != u32::MAX)
                .then(|| Duration::from_millis(u64::from(pending.useful_ms))),
        };
        let took = now.monotonic.since(pending.sent_at).saturating_sub(self.late);
        if took > Duration::ZERO {
            self.ratios[index / BULKHEADS].record(pending.class.index(), took.as_micros() as u64);
        }
        let section = env.settings.overload.board.of(env.settings.id, index);
        self.bulkheads[index].handle_reply(&sample, now.monotonic, section);
    }

    /// Passes on one whole reply for which a request waits, with its size and service time.
    #[expect(
        clippy::too_many_arguments,
        reason = "one step of `handle_bytes`, in a function of its own to be readable"
    )]
    #[inline]
    fn take_reply(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        (to, pending): (ReplyTo, Pending),
        end: &[u8],
        scanned: &Scanned,
        replies: &mut impl Replies,
        now: Now,
    ) {
        let link = &mut self.links[connection.0 as usize];
        link.proved();
        let backend = usize::from(link.backend.0);
        let bytes = link.let_go.saturating_add((link.partial.len() + end.len()) as u64);
        let is_all_here = link.partial.is_empty() && link.let_go == 0;
        let abort = if scanned.kind == b'-' { link.reasoned_abort(end) } else { None };
        let took_nanos = now.monotonic.nanos_since(pending.sent_at);
        let took_micros = took_nanos / 1_000;
        let slowness_micros = if pending.odd == Odd::Refused {
            0
        } else {
            self.service_times.record(took_nanos);
            self.baselines[backend].handle_reply(pending.class.index(), took_micros)
        };
        let in_32_bits = |number: u64| number.min(u64::from(u32::MAX)) as u32;
        let outcome = Outcome::Served {
            bytes: in_32_bits(bytes),
            rows: in_32_bits(scanned.rows),
            took_micros: in_32_bits(took_micros),
            slowness_micros: in_32_bits(slowness_micros),
        };
        if let Some(text) = abort {
            env.pool.give(std::mem::take(&mut self.links[connection.0 as usize].partial));
            replies.reply(env, to, outcome, Message::Small(&text), now);
        } else if is_all_here {
            replies.reply(env, to, outcome, Message::Small(end), now);
        } else {
            self.give_kept(env, connection, (to, outcome), end, replies, now);
        }
    }

    /// Passes on a reply that came in several parts. A reply beyond `--max-reply-bytes` was dropped, and an
    /// error takes its place.
    #[inline(never)]
    fn give_kept(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        (to, outcome): (ReplyTo, Outcome),
        end: &[u8],
        replies: &mut impl Replies,
        now: Now,
    ) {
        let link = &mut self.links[connection.0 as usize];
        let mut partial = std::mem::take(&mut link.partial);
        if std::mem::take(&mut link.let_go) > 0 {
            env.counters.add(Counter::RepliesOversized, 1);
            let bytes_max = env.settings.reply_bytes_max;
            let text = format!("-ERR the reply is larger than {bytes_max} bytes (--max-reply-bytes)\r\n");
            return replies.reply(env, to, outcome, Message::Small(text.as_bytes()), now);
        }
        partial.extend_from_slice(end);
        if partial.len() > COPY_BYTES_MAX {
            replies.reply(env, to, outcome, Message::Shared(&Bytes::from(partial)), now);
        } else {
            replies.reply(env, to, outcome, Message::Small(&partial), now);
            env.pool.give(partial);
        }
    }

    /// Passes on the reply to the prelude of a fetch (`PTTL` or `ASKING`), which was sent right before it.
    fn take_ahead(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        (to, pending): (ReplyTo, Pending),
        end: &[u8],
        replies: &mut impl Replies,
        now: Now,
    ) {
        let mut told = std::mem::take(&mut self.links[connection.0 as usize].partial);
        told.extend_from_slice(end);
        replies.reply(env, to.ahead(), Outcome::answered(told.len()), Message::Small(&told), now);
        self.links[connection.0 as usize].partial = told;
        self.take_no_reply(env, connection, pending);
    }

    /// Handles one whole reply that no client gets: to a step of a block, to a fence, or to a request that
    /// was answered early or sent elsewhere.
    fn take_no_reply(&mut self, env: &mut Env, connection: ConnectionId, pending: Pending) {
        let link = &mut self.links[connection.0 as usize];
        link.let_go = 0;
        env.pool.give(std::mem::take(&mut link.partial));
        match pending.purpose {
            Purpose::Steps(left) if left > 1 => {
                link.pending.push_front(Pending { purpose: Purpose::Steps(left - 1), ..pending });
            }
            Purpose::Steps(_) | Purpose::Answer(_) | Purpose::Abandoned(_) | Purpose::Ahead(_) => {}
            Purpose::Fence => {
                let (origin, sequence) = link.fences.pop_front().expect("each in the stream is noted");
                self.lift_fence(origin, sequence);
            }
        }
    }

    /// Keeps the beginning of a reply. A reply that exceeds the limit is dropped, and its bytes are only
    /// counted.
    pub(super) fn keep_partial(&mut self, env: &mut Env, connection: ConnectionId, chunk: &[u8]) {
        let link = &mut self.links[connection.0 as usize];
        if link.let_go > 0 {
            link.let_go = link.let_go.saturating_add(chunk.len() as u64);
            return;
        }
        if link.partial.len() + chunk.len() > env.settings.reply_bytes_max {
            link.let_go = (link.partial.len() + chunk.len()) as u64;
            link.partial = Vec::new();
            return;
        }
        let missing = usize::try_from(link.scanner.missing()).unwrap_or(usize::MAX);
        // A large reply is passed on in its buffer, so it takes none from the pool.
        if link.partial.capacity() == 0 && missing <= COPY_BYTES_MAX {
            link.partial = env.pool.take();
        }
        room::expect(&mut link.partial, chunk.len(), missing.min(env.settings.reply_bytes_max));
        link.partial.extend_from_slice(chunk);
    }

    /// Gives up a connection and answers for its requests. Unsent bytes are dropped; a fence keeps what the
    /// store has not read yet from taking effect later.
    pub(super) fn drop_link(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        reason: &'static str,
        replies: &mut impl Replies,
        now: Now,
    ) {
        let generation = self.links[connection.0 as usize].generation;
        env.actions.push_back(Action::Reset(Owner::Link(connection, generation)));
        let fenced = self.raise_fence(connection);
        self.lose_link(env, connection, reason, replies, now);
        if fenced && self.links[connection.0 as usize].state == LinkState::Closed {
            // An early connection lets the store kill the old one soon, so that it does less work that nobody
            // waits for.
            self.open_link(env, connection, now);
        }
    }

    /// Gives up all connections that `is_over` selects.
    pub(super) fn drop_links(
        &mut self,
        env: &mut Env,
        is_over: impl Fn(&Link) -> bool,
        reason: &'static str,
        replies: &mut impl Replies,
        now: Now,
    ) {
        for index in 0..self.links.len() {
            if is_over(&self.links[index]) {
                self.drop_link(env, ConnectionId(index as u32), reason, replies, now);
            }
        }
    }

    /// Handles a store whose name has a new address: closes all connections to the old one and forgets its
    /// health.
    pub fn handle_store_moved(
        &mut self,
        env: &mut Env,
        backend: BackendId,
        replies: &mut impl Replies,
        now: Now,
    ) {
        env.counters.add(Counter::StoresMoved, 1);
        self.forget_health(env, backend);
        let is_left = |link: &Link| link.backend == backend && link.state != LinkState::Closed;
        self.drop_links(env, is_left, "store-moved", replies, now);
        self.forget_failures(backend);
    }

    /// Forgets failures to connect to a backend, so that it is tried at once.
    pub(super) fn forget_failures(&mut self, backend: BackendId) {
        self.links.iter_mut().filter(|link| link.backend == backend).for_each(Link::forget_failures);
    }

    fn lose_link(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        reason: &'static str,
        replies: &mut impl Replies,
        now: Now,
    ) {
        env.counters.add(Counter::LinksLost, 1);
        self.doubt_slots(self.links[connection.0 as usize].backend);
        self.hear_of_loss(env, connection, reason, now);
        let spread = env.random_byte();
        let link = &mut self.links[connection.0 as usize];
        if link.only_reads {
            return self.lose_reads(env, connection, reason, (spread, replies), now);
        }
        let mut again = self.choose_again(env, connection, reason, now);
        let link = &mut self.links[connection.0 as usize];
        // Requests on a connection that was not open yet were not sent. Of the others it is unknown whether
        // they were carried out.
        let outcome = if link.state == LinkState::Open { Outcome::Lost } else { Outcome::Refused };
        self.in_flight -= link.clear(&mut env.pool);
        link.lost(now.monotonic, spread);
        let retry_after = link.pause_left(now.monotonic).max(RETRY_AFTER_LOSS);
        let backend = link.backend;
        let mut pending = std::mem::take(&mut link.pending);
        self.in_flight -= pending.iter().map(Pending::replies).sum::<usize>();
        let bulkhead = link.bulkhead;
        link.costly_ahead = 0;
        for lost in pending.iter().filter(|lost| lost.is_counted()) {
            self.bulkheads[bulkhead].handle_over(lost.tenant);
        }
        self.bulkheads[bulkhead].handle_none_in_flight(now.monotonic);
        let mut text = env.pool.take();
        Refusal::Unavailable { backend: env.backend_name(backend), reason, retry_after }.encode(&mut text);
        for pending in pending.drain(..) {
            if pending.is_counted() && self.is_asked_again(env, connection, &pending, &mut again, now) {
                continue;
            }
            match pending.purpose {
                Purpose::Answer(to) => {
                    env.counters.add(Counter::RefusedUnavailable, 1);
                    replies.reply(env, to, outcome, Message::Small(&text), now);
                }
                Purpose::Abandoned(to) => replies.note(env, to, Note::Settled),
                Purpose::Steps(_) | Purpose::Ahead(_) | Purpose::Fence => {}
            }
        }
        env.pool.give(text);
        self.links[connection.0 as usize].pending = pending;
    }

    /// Gives up connections whose backend has owed a reply for longer than `--backend-timeout`, or that could
    /// not be opened in time.
    pub fn give_up_on_silent(&mut self, env: &mut Env, replies: &mut impl Replies, now: Now) {
        for index in 0..self.links.len() {
            let connection = ConnectionId(index as u32);
            if let Some(reason) = overdue(&self.links[index], &env.settings, self.late, now) {
                self.drop_link(env, connection, reason, replies, now);
            }
        }
    }
}

/// Returns the reason to give up a connection, if it has waited for too long.
fn overdue(link: &Link, settings: &ShardSettings, late: Duration, now: Now) -> Option<&'static str> {
    let has_passed = |since, timeout| now.monotonic.since(since) >= timeout;
    match link.state {
        LinkState::Opening { since } => {
            has_passed(since, settings.connect_timeout).then_some("connect-timeout")
        }
        LinkState::Open if link.only_reads => link.is_silent(late, now.monotonic).then_some("silent"),
        LinkState::Open | LinkState::Greeting { .. } => {
            let owes_since = link.owes_since()?;
            has_passed(owes_since, settings.reply_timeout).then_some("reply-timeout")
        }
        LinkState::Closed | LinkState::BackingOff { .. } => None,
    }
}

/// The connection for a request: always the same for one slot and track, so that requests for a key keep
/// their order.
#[inline]
pub(super) fn link_for(settings: &ShardSettings, route: Route) -> ConnectionId {
    let (usual, heavy) = (settings.links_per_backend, settings.heavy_links);
    let per_backend = u32::from(usual + heavy + settings.replica_links());
    let lane = settings.lane_of(route.slot);
    let lane = match route.track {
        Track::Usual => lane,
        // Slots that share a usual connection also share a heavy one.
        Track::Heavy => usual + lane % heavy,
        Track::Replica => usual + heavy,
    };
    let dialect = match route.protocol {
        Protocol::Resp2 => 0,
        Protocol::Resp3 => 1,
    };
    ConnectionId((u32::from(route.backend.0) * 2 + dialect) * per_backend + u32::from(lane))
}

/// The index of the bulkhead that a request passes through.
#[inline]
pub(super) const fn bulkhead_for(route: Route) -> usize {
    // Reads for replicas pass through their node's usual bulkhead, which nothing else uses.
    route.backend.0 as usize * BULKHEADS + route.track as usize % BULKHEADS
}

/// The track whose requests pass through a bulkhead.
pub(super) const fn track_of(bulkhead: usize) -> Track {
    if bulkhead % BULKHEADS == Track::Usual as usize { Track::Usual } else { Track::Heavy }
}

const _: () = assert!(Track::Replica as usize % BULKHEADS == Track::Usual as usize);
const _: () = assert!(KINDS >= 2 * COMMAND_CLASSES, "reads and writes of each class are a kind");

/// True for commands whose time depends on how much data they look at, so that it does not tell how fast the
/// backend is.
const fn is_costly(class: Class) -> bool {
    matches!(class, Class::Range | Class::Scan | Class::Script)
}
