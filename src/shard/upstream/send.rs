//! Sends a request: finds the owner of its slot, a place in that backend's window, and a connection.

use super::Upstream;
use crate::protocol::command::Class;
use crate::shard::cluster::{Tries, behind_role};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::links::patient_until;
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::overload::bulkhead_for;
use crate::shard::refusal::NotSent;
use crate::shard::request::{Envelope, Overdue, PRIMARY, Track};
use crate::values::time::Now;
use crate::values::{ConnectionId, Timestamp};

impl Upstream {
    /// Sends a message of `requests` requests, of which only the last one's reply counts (more than one for a
    /// transaction, or with commands such as `PTTL` before a request); queues it if the window (limit on requests in
    /// flight) has no room. In front of a cluster, sends it to the slot's owner or a replica, or holds it while the
    /// slot changes its owner or its node is down. The error says why it was neither sent, queued nor held.
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
        let index = bulkhead_for(envelope.route.backend, envelope.route.track);
        if self.overload.bulkhead(index).has_room(envelope.deadline, now.monotonic) {
            match self.put_on_link(env, envelope, message, requests, now) {
                // The connection has its limit of unsent bytes; the request waits if it may.
                Err(NotSent::Full) if self.overload.may_wait() => {}
                sent_or_not => return sent_or_not,
            }
        }
        self.send_later(env, envelope, message, requests, now)
    }

    /// Appends a request that is sent for the first time to the output of its connection, which is opened
    /// if it is closed. `requests` is the number of requests in the message. The error says why it cannot
    /// be sent.
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

    /// Appends a request to the output of the connection that its `envelope` (addressee, route and price)
    /// chooses; a closed connection is opened. `requests` is the number of requests in the message. `tries`
    /// is the history of a request that was held back or sent before: its redirects (MOVED, ASK) and waits
    /// (TRYAGAIN, CLUSTERDOWN). Returns an error if the backend is not reachable or the connection is full.
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
        let connection = self.links.connection_for(&env.settings, route);
        if !self.links.is_ready(env, connection) || !self.has_room_for_again(connection) {
            self.make_ready(env, connection, now)?;
        }
        env.counters.add(Counter::RequestsForwarded, 1);
        if route.track == Track::Heavy {
            env.counters.add(Counter::RequestsHeavy, 1);
        }
        let bulkhead = self.overload.bulkhead_mut(bulkhead_for(route.backend, route.track));
        let depth = bulkhead.handle_sent(envelope.tenant(), now.monotonic);
        // Requests of the heavy track have a bulkhead of their own, in which high cost is usual.
        let is_costly = is_costly(nature.class) && route.track == Track::Usual;
        let quiet = &mut self.quiets[usize::from(route.backend.0)];
        let quiet_reading = if nature.hides_work() { quiet.handle_sent() } else { 0 };
        let record = (depth, is_costly, quiet_reading);
        self.links.send(env, connection, (envelope, message, requests), record, now);
        if envelope.deadline != Timestamp::MAX && envelope.overdue == Overdue::Answered {
            self.overload.search_by(envelope.deadline);
        }
        if route.track == Track::Replica {
            self.overload.search_by(patient_until(envelope.deadline, now.monotonic));
        }
        if envelope.touches.is_reported() {
            self.notes.push((envelope.reply_to, Note::Sent(now.monotonic)));
        }
        if let Some(slots) = &mut self.cluster.slots {
            slots.push_sent(connection, (route.slot, requests), tries, message);
        }
        Ok(())
    }

    /// True if the bytes of another request over this connection can be kept, in case it must be sent again
    /// (at most 64 MiB), or need not be kept because weir stands in front of plain stores.
    #[inline]
    fn has_room_for_again(&self, connection: ConnectionId) -> bool {
        self.cluster.slots.as_ref().is_none_or(|slots| slots.has_room(connection))
    }

    /// Makes a connection ready for requests: opens it if it is closed, and sends over it a `CLIENT KILL` for
    /// each connection to its store that weir has given up since such commands were last sent over it. An
    /// error if the connection may not be opened yet or is full.
    #[cold]
    fn make_ready(&mut self, env: &mut Env, connection: ConnectionId, now: Now) -> Result<(), NotSent> {
        let has_room = self.has_room_for_again(connection);
        self.links.make_ready(env, connection, has_room, now)
    }
}

/// True for commands whose response time depends on how much data they read, so that it does not show how
/// fast the backend is.
const fn is_costly(class: Class) -> bool {
    matches!(class, Class::Range | Class::Scan | Class::Script)
}
