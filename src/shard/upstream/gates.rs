//! Ejection of backends: passes replies, losses and response times to the breaker, and carries out its
//! decisions at windows and connections.

use super::Upstream;
use crate::shard::breaker::{Gate, Pass};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::overload::{Overload, Parked, bulkhead_for, bulkheads_of};
use crate::shard::pending::{InFlight, whole};
use crate::shard::refusal::{LOGIN_REFUSED, NO_DATABASE, NotSent};
use crate::shard::replies::{Replies, turn_away};
use crate::shard::request::Envelope;
use crate::values::time::Now;
use crate::values::{BackendId, ConnectionId};

impl Upstream {
    /// Reports a backend's reply to a client's request to the circuit breaker. Only an error which says that the
    /// backend is unavailable (such as LOADING) is a failure, unless a script may have made up its text; too many
    /// failures eject the backend (take it out of use). Replies of replicas are only counted. `request` is the
    /// record of the request, `kind` the reply's first byte, and `end` has the bytes of it that came last.
    #[inline]
    pub(super) fn record_health(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        (request, kind): (&InFlight, u8),
        end: &[u8],
        now: Now,
    ) {
        if self.breaker.count_reply(self.links.at(connection).backend, kind == b'-') {
            self.record_suspect_reply(env, connection, (request, kind), end, now);
        }
    }

    #[cold]
    fn record_suspect_reply(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        (request, kind): (&InFlight, u8),
        end: &[u8],
        now: Now,
    ) {
        let link = self.links.at(connection);
        // Replicas that answer reads are judged separately (`cluster/readers.rs`).
        if link.is_for_replica() {
            return;
        }
        let error = (kind == b'-').then(|| whole(&link.partial, end));
        self.breaker.record_reply(env, (link.backend, request), error.as_deref(), self.turn.late, now);
        self.apply_gates();
    }

    /// Tells the circuit breaker that a connection to a backend was lost or could not be opened, for this `reason`;
    /// the breaker may eject (take out of use) the backend. The loss does not count against the backend if no request
    /// was unanswered on the connection, if the store refuses its database, the login or the RESP version, or if
    /// another backend does the work by now. Does nothing for connections to replicas.
    pub(super) fn record_loss(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        reason: &'static str,
        now: Now,
    ) {
        let link = self.links.at(connection);
        if link.is_for_replica() {
            return;
        }
        if matches!(reason, NO_DATABASE | LOGIN_REFUSED) {
            self.breaker.record_refused_connection(env, link.backend, &link.pending, now);
        } else {
            self.breaker.record_loss(env, link.backend, &link.pending, reason, now);
        }
        self.apply_gates();
    }

    /// Reports to other cores how many replies and failures of each backend this core has counted, and ejects
    /// (takes out of use) backends that fail or, outside of clusters, are slower than the others. Called with the
    /// regular checks, about every 100 ms.
    pub fn check_health(&mut self, env: &mut Env, now: Now) {
        let Self { breaker, overload, cluster, .. } = self;
        // Nodes of a cluster have different keys and load, so their latencies are not compared with each
        // other.
        let are_alike = cluster.slots.is_none();
        breaker.check_all(env, are_alike, |backend, class| overload.recent_p95(backend, class), now);
        self.apply_gates();
    }

    /// Forgets a backend's failures, and ends its ejection (state in which it is out of use), because another
    /// server has its number now, or the server has another role (primary or replica).
    pub(super) fn forget_health(&mut self, env: &Env, backend: BackendId) {
        self.breaker.forget(env, backend);
        self.apply_gates();
    }

    /// Carries out the circuit breaker's decisions: tells the bulkheads (windows and queues) of a backend whether
    /// the breaker checks each request to it. When it checks them no longer, connections to the backend may be
    /// opened at once, without the rest of the pause after a failed attempt.
    fn apply_gates(&mut self) {
        while let Some((backend, gate)) = self.breaker.poll_gate() {
            for index in bulkheads_of(backend) {
                let bulkhead = self.overload.bulkhead_mut(index);
                bulkhead.set_gated(gate == Gate::Closed);
                if gate == Gate::Closed && !bulkhead.is_empty() {
                    self.list(index);
                }
            }
            if gate == Gate::Open {
                self.links.end_pauses(backend);
            }
        }
    }

    /// Decides about a request to a backend that is ejected (taken out of use) or returning. None if the
    /// backend is healthy again and the request takes the usual way, else the result of sending or refusing
    /// it. `message` has the bytes of the request, or of `requests` requests that belong together.
    #[cold]
    pub(super) fn pass_gate(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        (message, requests): (Message<'_>, usize),
        now: Now,
    ) -> Option<Result<(), NotSent>> {
        let pass = self.breaker.check(env, envelope, now);
        self.apply_gates();
        let sent = match pass {
            Pass::AsUsual => return None,
            Pass::Refused(why) => Err(why),
            Pass::WithRoom => {
                let bulkhead =
                    self.overload.bulkhead(bulkhead_for(envelope.route.backend, envelope.route.track));
                if bulkhead.has_place() {
                    self.put_on_link(env, envelope, message, requests, now)
                } else {
                    Err(NotSent::Window(bulkhead.retry_full()))
                }
            }
            Pass::Always => self.put_on_link(env, envelope, message, requests, now),
            Pass::Trial => {
                let sent = self.put_on_link(env, envelope, message, requests, now);
                if let Err(why) = sent {
                    self.breaker.handle_trial_unsent(env, envelope.route.backend, why, now);
                }
                sent
            }
        };
        Some(sent)
    }

    /// Refuses all requests, whatever their tier (importance), that wait in the bulkhead (window and queue) with
    /// this index, because its backend is ejected (taken out of use) or returning.
    pub(super) fn clear_gated(&mut self, env: &mut Env, index: usize, replies: &mut impl Replies, now: Now) {
        let backend = Overload::backend_of(index);
        let standing = env.settings.overload.health.standing(usize::from(backend.0));
        while let Some((parked, is_eased)) = self.overload.bulkhead_mut(index).take_gated() {
            let Parked { envelope, message, .. } = parked;
            env.counters.add(Counter::RefusedEjected, 1);
            let why = NotSent::Ejected(standing.retry_after(now.monotonic));
            turn_away(env, replies, envelope.addressee(), why, now);
            message.release(&mut env.pool);
            if is_eased {
                replies.note(env, envelope.reply_to, Note::Eased);
            }
        }
    }
}
