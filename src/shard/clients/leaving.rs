//! The ways in which a client connection ends.

use super::abandoned::Owing;
use super::client::Ending;
use super::order::Rewrite;
use super::{BACKLOG_GROWTH, ClientStage, ReplyRoom, UNREAD_PATIENCE};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::outcome::Settlement;
use crate::shard::request::PrivateId;
use crate::values::time::Now;
use crate::values::{Action, ClientId, Owner};

impl ClientStage {
    /// Handles the end of a client's input. The client may still read: the requests that it sent are answered
    /// before the connection is closed.
    pub fn handle_end(&mut self, env: &mut Env, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        if client.ending == Ending::Open {
            client.ending = Ending::NoMoreInput;
        }
        self.close_if_done(env, id);
    }

    /// Records that a client's input ends behind bytes that weir has not read yet. If a blocking command in which the
    /// client waits is ended at its store without a reply, the client is then closed, because nobody waits for the
    /// command any more.
    pub fn handle_end_ahead(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get(id) {
            client.end_is_ahead = true;
        }
    }

    /// Ends a connection in order: no further request is started; earlier ones are answered, then the
    /// connection is closed.
    pub fn stop_listening(&mut self, env: &mut Env, id: ClientId) {
        // The answer just given may have exceeded the limit on waiting replies, for which the client was
        // closed already.
        let Some(client) = self.clients.get(id) else { return };
        client.ending = Ending::Deaf;
        self.close_if_done(env, id);
    }

    /// Ends a connection in order (earlier requests are answered first), and counts it, because its client is no longer
    /// permitted: its certificate is no longer accepted, or its rights have changed. Does nothing if it is being ended
    /// like this already.
    pub fn revoke(&mut self, env: &mut Env, id: ClientId) {
        if self.clients.get(id).is_some_and(|client| client.ending != Ending::Deaf) {
            env.counters.add(Counter::ClientsClosedRevoked, 1);
            self.stop_listening(env, id);
        }
    }

    /// True if a connection is ending: it is closed as soon as its client is answered, or its client's input is
    /// known to end behind bytes that are not read yet.
    pub fn is_ending(&self, id: ClientId) -> bool {
        self.clients.peek(id).is_some_and(|client| client.ending != Ending::Open || client.end_is_ahead)
    }

    /// Closes a connection that is ending, once every request was answered and every reply was sent. A blocking command
    /// that was ended at its store without a reply need not be answered, and nothing behind it is carried out.
    pub(super) fn close_if_done(&mut self, env: &mut Env, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        let undecoded = client.ending == Ending::NoMoreInput && client.stalled;
        let is_done =
            if client.is_withdrawn() { !client.has_output() } else { !client.is_owed() && !undecoded };
        if client.ending != Ending::Open && is_done {
            self.forget(env, id);
            env.actions.push_back(Action::Close(Owner::Client(id)));
        }
    }

    /// Closes a connection at once, with requests unanswered, and adds one to the counter `why`.
    pub(super) fn expel(&mut self, env: &mut Env, id: ClientId, why: Counter) {
        env.counters.add(why, 1);
        self.forget(env, id);
        env.actions.push_back(Action::Close(Owner::Client(id)));
    }

    /// Removes a client that is gone from all tables, gives its place among its tenant's connections back,
    /// and keeps the charges of its requests in flight until the replies come.
    pub fn forget(&mut self, env: &mut Env, id: ClientId) {
        self.remember_charges(id);
        self.discard_transaction(id);
        let gathers: Vec<u32> =
            self.clients.get(id).map(|client| client.order.open_gathers().collect()).unwrap_or_default();
        for gather in gathers {
            self.gathers.remove(gather, &mut env.pool);
        }
        if let Some(mut client) = self.clients.close(id, &mut env.pool) {
            env.counters.add(Counter::ClientsClosed, 1);
            if let Some(tenant) = client.seat {
                env.settings.clients.seats.give_back(tenant);
            }
            if client.sending_since.is_some() {
                self.outbox.handle_done();
            }
            if let Some(ties) = &client.ties {
                let tracking = ties.tracking.as_ref();
                let is_tracking = |link: &PrivateId| tracking.is_some_and(|tracking| tracking.has(*link));
                self.left_links.extend(ties.link.filter(|link| !is_tracking(link)));
                self.left_links.extend(tracking.into_iter().flat_map(|tracking| tracking.links()));
                self.left_links
                    .extend(ties.inbox.iter().flat_map(|inbox| inbox.links()).map(|(_, link)| *link));
                self.left_links
                    .extend(ties.subscriptions.iter().flat_map(|subscriptions| subscriptions.links()));
            }
            if let Some(ties) = client.ties.take() {
                let own = env.settings.id;
                ties.subscriptions.into_iter().for_each(|left| self.listeners.handle_left(id, left));
                ties.tracking.iter().for_each(|left| self.leave_targets(own, id, left.targets()));
                ties.inbox.into_iter().for_each(|mut left| self.dissolve(own, id, &mut left));
            }
            self.end_turns_of(&client);
        }
    }

    /// Keeps the charges of the requests in flight of a client that is leaving, to be corrected to their real
    /// price when the replies come.
    fn remember_charges(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        for (sequence, rewrite, charge) in client.order.open_charges() {
            let (parts_left, settlement) = match rewrite {
                Rewrite::Gather(index) => self.gathers.parts_missing(index),
                Rewrite::AsItCame | Rewrite::Cursor { .. } | Rewrite::Walk | Rewrite::Splice => {
                    (1, Settlement::default())
                }
            };
            self.abandoned.remember(id, sequence, Owing { charge, parts_left, settlement });
        }
    }

    /// Lets more replies than usual wait for clients that have taken none for a second, since such a client may write a
    /// whole pipeline before it reads. Closes clients that accept no bytes of a segment (block) of replies for longer
    /// than the send timeout, and clients that are owed no reply, have no request that waits (for the end of a `CLIENT
    /// PAUSE`, say), and have been silent for longer than the idle timeout, except subscribers and monitors. Closes
    /// clients that have read the messages sent to them (as subscribers, for instance) too slowly: more than
    /// `subscriber_slow_bytes` have waited for `subscriber_slow_time`.
    pub fn look_after_stuck(&mut self, env: &mut Env, now: Now) {
        let (idle_timeout, send_timeout) = (env.settings.idle_timeout, env.settings.send_timeout);
        if self.outbox.in_flight() == 0 && idle_timeout.is_none() {
            return;
        }
        for place in 0..self.clients.places() {
            let Some(id) = self.clients.in_place(place) else { continue };
            let client = self.clients.at(id);
            let has_passed = |since, timeout| now.monotonic.since(since) >= timeout;
            if client.sending_since.is_some_and(|since| has_passed(since, send_timeout)) {
                self.expel(env, id, Counter::ClientsClosedUnread);
            } else if client.is_messaged() && client.is_slow_subscriber(&env.settings, now.monotonic) {
                self.expel(env, id, Counter::ClientsClosedSubscriber);
            } else if idle_timeout
                .is_some_and(|timeout| !client.is_owed() && has_passed(client.last_heard, timeout))
                && !client.stalled
                && !client.is_subscribed()
                && !client.is_monitor
            {
                self.expel(env, id, Counter::ClientsClosedIdle);
            } else if client.sending_since.is_some_and(|since| has_passed(since, UNREAD_PATIENCE)) {
                self.allow_backlog(env, id);
            }
        }
    }

    /// Lets more replies wait for a client that takes none, if those that wait are the only reason why no more
    /// of its requests are started and its bytes are not read. Does nothing for a client that has not logged in,
    /// or that is sent messages (subscriptions, `MONITOR`), because replies would count as unread messages.
    fn allow_backlog(&mut self, env: &mut Env, id: ClientId) {
        let client = self.clients.at(id);
        let allowed = self.reply_room.usual.max(client.backlog_bytes_max);
        let waits_for_other = client.must_wait(ReplyRoom::UNLIMITED, self.turns.pipeline_most(client));
        let is_meant = client.identity.tenant.is_some() && !client.is_messaged() && !client.is_monitor;
        if !is_meant || waits_for_other || client.listed_to_resume || !client.reading_paused {
            return;
        }
        if client.order.waiting_bytes() <= allowed {
            // A part of what waited has gone to the socket since, which has not sent it and may never do so.
            return self.resume_next_turn(id);
        }
        if allowed >= self.reply_room.unread {
            return;
        }
        if client.backlog_bytes_max == 0 {
            env.counters.add(Counter::ClientBacklogs, 1);
        }
        client.backlog_bytes_max = (BACKLOG_GROWTH * allowed).min(self.reply_room.unread);
        self.resume_next_turn(id);
    }
}
