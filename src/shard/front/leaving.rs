//! How a connection ends.

use super::Front;
use super::client::Ending;
use super::departed::Owing;
use super::order::Rewrite;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::gate::Settlement;
use crate::values::time::Now;
use crate::values::{Action, ClientId, Owner};

impl Front {
    /// The client will send no more, but may still read.
    pub fn handle_end(&mut self, env: &mut Env, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        if client.ending == Ending::Open {
            client.ending = Ending::NoMoreInput;
        }
        self.close_if_done(env, id);
    }

    /// No further request is taken on; what was taken on is answered, then the connection is closed.
    pub fn stop_listening(&mut self, env: &mut Env, id: ClientId) {
        // The answer just given may have been more than may wait for it, and it was closed for that.
        let Some(client) = self.clients.get(id) else { return };
        client.ending = Ending::Deaf;
        self.close_if_done(env, id);
    }

    /// What let it in does not hold any more: what it has asked for is answered, and that is the end.
    pub fn revoke(&mut self, env: &mut Env, id: ClientId) {
        if self.clients.get(id).is_some_and(|client| client.ending != Ending::Deaf) {
            env.counters.add(Counter::ClientsClosedRevoked, 1);
            self.stop_listening(env, id);
        }
    }

    /// Drops what is left of a client that has ended, when everything was answered and sent.
    pub(super) fn close_if_done(&mut self, env: &mut Env, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        let undecoded = client.ending == Ending::NoMoreInput && client.stalled;
        if client.ending != Ending::Open && !client.is_owed() && !undecoded {
            self.forget(env, id);
            env.actions.push_back(Action::Close(Owner::Client(id)));
        }
    }

    /// Closes a client, whatever it is still owed.
    pub(super) fn expel(&mut self, env: &mut Env, id: ClientId, why: Counter) {
        env.counters.add(why, 1);
        self.forget(env, id);
        env.actions.push_back(Action::Close(Owner::Client(id)));
    }

    /// The client is gone.
    pub fn forget(&mut self, env: &mut Env, id: ClientId) {
        self.remember_charges(id);
        let gathers: Vec<u32> =
            self.clients.get(id).map(|client| client.order.open_gathers().collect()).unwrap_or_default();
        for gather in gathers {
            self.gathers.remove(gather, &mut env.pool);
        }
        if let Some(client) = self.clients.close(id, &mut env.pool) {
            env.counters.add(Counter::ClientsClosed, 1);
            if let Some(tenant) = client.seat {
                env.settings.clients.seats.give_back(tenant);
            }
            if client.sending_since.is_some() {
                self.outbox.handle_done();
            }
            self.end_turns_of(client.congested > 0);
        }
    }

    /// A client leaves before it was answered.
    fn remember_charges(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        for (sequence, rewrite, charge) in client.order.open_charges() {
            let (parts_left, settlement) = match rewrite {
                Rewrite::Gather(index) => self.gathers.parts_missing(index),
                Rewrite::AsItCame | Rewrite::Cursor { .. } | Rewrite::Walk | Rewrite::Splice => {
                    (1, Settlement::default())
                }
            };
            self.departed.remember(id, sequence, Owing { charge, parts_left, settlement });
        }
    }

    /// Closes clients that do not read, or that say nothing for too long.
    pub fn close_stuck(&mut self, env: &mut Env, now: Now) {
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
            } else if idle_timeout
                .is_some_and(|timeout| !client.is_owed() && has_passed(client.last_heard, timeout))
            {
                self.expel(env, id, Counter::ClientsClosedIdle);
            }
        }
    }
}
