//! Connections to backends that are lost or given up: each request on them is answered `-UNAVAILABLE`, or
//! sent once more where that is safe.

use std::time::Duration;

use super::Upstream;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::links::{Link, LinkState, overdue};
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::outcome::Outcome;
use crate::shard::pending::Pending;
use crate::shard::refusal::Refusal;
use crate::shard::replies::Replies;
use crate::shard::request::{Envelope, Route, Track};
use crate::values::limits::SILENCE_EXAMINED;
use crate::values::time::Now;
use crate::values::{Action, BackendId, ConnectionId, Loss, Owner, Timestamp};

/// The least retry delay named to clients whose requests were lost with a connection.
const RETRY_AFTER_LOSS: Duration = Duration::from_millis(50);

impl Upstream {
    /// Handles the loss of a connection to a backend, or a failed attempt to open it: answers its unanswered
    /// requests `-UNAVAILABLE`, or sends them again where that is safe. After a loss on the way (`loss`), the
    /// backend may still carry requests out, so later connections ask it to kill the lost connection. Does nothing
    /// if `generation` is that of an earlier socket of the connection.
    pub fn handle_lost(
        &mut self,
        env: &mut Env,
        (connection, generation): (ConnectionId, u32),
        loss: Loss,
        replies: &mut impl Replies,
        now: Now,
    ) {
        let Some(link) = self.links.current(connection, generation) else { return };
        let connected = !matches!(link.state, LinkState::Opening { .. });
        if loss == Loss::OnTheWay {
            self.links.raise_fence(env, connection);
        }
        let reason = if connected { "connection-lost" } else { "connect-failed" };
        self.lose_link(env, connection, reason, replies, now);
    }

    /// Gives up a connection: closes its socket, and answers its unanswered requests `-UNAVAILABLE`, or sends them
    /// again where that is safe. `reason` is the word that the error replies name.
    pub(super) fn drop_link(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        reason: &'static str,
        replies: &mut impl Replies,
        now: Now,
    ) {
        let fenced = self.links.reset(env, connection);
        self.lose_link(env, connection, reason, replies, now);
        if fenced && self.links.at(connection).state == LinkState::Closed {
            // An early connection lets the store kill the old one soon, so that it does less work that nobody
            // waits for.
            self.links.open(env, connection, now);
        }
    }

    /// Gives up all connections to backends that `is_over` selects; `reason` is the word that the error
    /// replies to their requests name.
    pub(super) fn drop_links(
        &mut self,
        env: &mut Env,
        is_over: impl Fn(&Link) -> bool,
        reason: &'static str,
        replies: &mut impl Replies,
        now: Now,
    ) {
        for index in 0..self.links.len() {
            let connection = ConnectionId(index as u32);
            if is_over(self.links.at(connection)) {
                self.drop_link(env, connection, reason, replies, now);
            }
        }
    }

    /// Handles a store whose name resolves to another address: closes all connections to the former address, and
    /// forgets the health and response times of the server there.
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
        self.links.forget_failures(backend);
        self.overload.forget_times(env, backend, now.monotonic);
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
        let link = self.links.at(connection);
        let (backend, track) = (link.backend, link.track);
        if let Some(slots) = &mut self.cluster.slots {
            slots.handle_link_lost(backend);
        }
        self.record_loss(env, connection, reason, now);
        let spread = env.random_byte();
        if track == Track::Replica {
            return self.lose_reads(env, connection, reason, (spread, replies), now);
        }
        // No request was sent on a connection that was not open yet, or of whose unanswered requests none was
        // handed to the socket. Otherwise it is unknown whether they were carried out.
        let was_sent = self.links.at(connection).has_sent();
        let mut retries = self.cluster.slots.as_mut().map(|slots| {
            let owed = (&self.links.at(connection).pending, was_sent);
            slots.choose_retries(env, connection, owed, reason, now)
        });
        let outcome = if was_sent { Outcome::Lost } else { Outcome::Refused };
        let mut pending = self.links.take_lost(env, connection, now.monotonic, spread);
        let retry_after = self.links.at(connection).pause_left(now.monotonic).max(RETRY_AFTER_LOSS);
        self.leave_windows(connection, pending.iter(), now);
        let mut text = env.pool.take();
        Refusal::Unavailable { backend: env.backend_name(backend), reason, retry_after }.encode(&mut text);
        for pending in pending.drain(..) {
            let Some(request) = pending.request() else { continue };
            if let (Some(slots), Some(retries)) = (&mut self.cluster.slots, &mut retries)
                && slots.retry(env, (backend, track), request, retries, now)
            {
                continue;
            }
            let to = request.envelope.reply_to;
            if request.is_abandoned {
                replies.note(env, to, Note::LatePrice(outcome));
                replies.note(env, to, Note::Settled { is_certain: !was_sent });
            } else {
                let refused = replies.reply(env, to, outcome, Message::Small(&text), now);
                env.counters.add(Counter::RefusedUnavailable, refused);
            }
        }
        env.pool.give(text);
        self.links.recycle(connection, pending);
    }

    /// Counts lost requests as no longer in flight in the window (limit on requests in flight) of their
    /// connection's backend.
    fn leave_windows<'a>(
        &mut self,
        connection: ConnectionId,
        lost: impl Iterator<Item = &'a Pending>,
        now: Now,
    ) {
        let index = self.bulkhead_of(connection);
        let bulkhead = self.overload.bulkhead_mut(index);
        for lost in lost.filter_map(Pending::request) {
            bulkhead.handle_over(lost.envelope.tenant());
        }
        bulkhead.handle_none_in_flight(now.monotonic);
    }

    /// Handles a lost connection to a replica: sends its unanswered reads to the owners of their slots, and
    /// records a failure of the replica for `reason`, unless the connection was open and idle. `spread` is a random
    /// byte that varies the pause before the connection is opened again.
    fn lose_reads(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        reason: &'static str,
        (spread, replies): (u8, &mut impl Replies),
        now: Now,
    ) {
        let slots = self.cluster.slots.as_mut();
        let mut unanswered = slots.map(|slots| slots.take_unanswered(connection)).unwrap_or_default();
        let link = self.links.at(connection);
        let was_idle = link.state == LinkState::Open && link.pending.is_empty();
        let mut pending = self.links.take_lost(env, connection, now.monotonic, spread);
        let backend = self.links.at(connection).backend;
        self.leave_windows(connection, pending.iter(), now);
        // A store closes connections that nobody uses (`timeout`), which says nothing about it.
        if !was_idle && let Some(readers) = &mut self.cluster.readers {
            readers.handle_failure(backend, reason, now.monotonic);
        }
        for lost in pending.drain(..) {
            let Some(request) = lost.request() else { continue };
            if request.is_abandoned {
                replies.note(env, request.envelope.reply_to, Note::LatePrice(Outcome::Lost));
                unanswered.forget();
                continue;
            }
            let Some((_, frame)) = unanswered.pop(true) else { continue };
            env.counters.add(Counter::ReplicaReadsLost, 1);
            let route = Route { backend, track: Track::Usual, ..request.envelope.route };
            self.ask_owner(env, &Envelope { route, ..request.envelope }, &frame, replies, now);
        }
        self.links.recycle(connection, pending);
    }

    /// Gives up connections whose backend has owed a reply and sent nothing for as long as `--backend-timeout`
    /// (a replica: 10 to 100 ms), or that could not be opened in time. Where a backend has owed a reply and sent
    /// nothing for 500 ms, has the runtime check whether its host still acknowledges bytes; if not, the connection
    /// counts as lost long before that timeout.
    pub fn give_up_on_silent(&mut self, env: &mut Env, replies: &mut impl Replies, now: Now) {
        for index in 0..self.links.len() {
            let connection = ConnectionId(index as u32);
            let link = self.links.at(connection);
            if let Some(reason) = overdue(link, &env.settings, self.turn.late, now) {
                self.drop_link(env, connection, reason, replies, now);
            } else if link.owes_since().is_some_and(|since| now.monotonic.since(since) >= SILENCE_EXAMINED) {
                let owner = Owner::Link(connection, link.generation);
                env.actions.push_back(Action::Examine(owner));
            }
        }
    }

    /// Closes a connection to a replica if that has sent nothing for too long while a read is unanswered: half of
    /// the time from sending the read to its deadline, but 10 to 100 ms. Returns the time at which to check the
    /// connection again; `Timestamp::MAX` if no read is unanswered.
    pub(super) fn give_up_reads(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        replies: &mut impl Replies,
        now: Now,
    ) -> Timestamp {
        let link = self.links.at(connection);
        if link.state == LinkState::Open && link.is_silent(self.turn.late, now.monotonic) {
            self.drop_link(env, connection, "silent", replies, now);
        }
        self.links.at(connection).silent_at().unwrap_or(Timestamp::MAX)
    }
}
