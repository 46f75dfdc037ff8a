//! The nodes of a cluster: new maps, owners of slots, replicas for reads, and requests that nodes refused.

use std::sync::Arc;

use super::Upstream;
use crate::policy::replica_choice::Role;
use crate::routing::cluster::Map;
use crate::shard::cluster::{
    Cluster, Doubt, Heard, MapChange, Place, Released, ReplicaReply, Slots, behind_asking,
};
use crate::shard::env::Env;
use crate::shard::links::{Link, LinkState};
use crate::shard::message::Message;
use crate::shard::outcome::Outcome;
use crate::shard::overload::bulkhead_for;
use crate::shard::pending::{InFlight, whole};
use crate::shard::refusal::NotSent;
use crate::shard::replies::{Replies, turn_away};
use crate::shard::request::{Envelope, Route, Track};
use crate::shard::stored::Stored;
use crate::values::time::Now;
use crate::values::{BackendId, ConnectionId, Timestamp};

/// Whether a reply of a cluster node is passed on to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The reply is passed to the request's client.
    Answered,
    /// The request is held or sent to another node, or its client was sent an error, so the node's reply is
    /// not passed on.
    Redirected,
}

impl Upstream {
    /// Puts a new map of the cluster in force: closes connections to nodes that have left or failed, and
    /// holds back requests for slots with a new owner until the old one has answered. The first map
    /// switches this core's cluster handling on.
    pub fn handle_slots(&mut self, env: &mut Env, map: Arc<Map>, replies: &mut impl Replies, now: Now) {
        let Some(slots) = &mut self.cluster.slots else {
            let slots = Slots::new(map, env.settings.topology.shards(), self.links.len());
            self.cluster.slots = Some(Box::new(slots));
            return;
        };
        let MapChange { reachable, changed, gone } = slots.handle_map(map, now);
        // A node may have the place of one that has left, whose lost connections count against nobody then.
        self.leave(env, &gone, replies, now);
        reachable.into_iter().for_each(|backend| self.links.forget_failures(backend));
        changed.into_iter().for_each(|backend| self.meet_anew(env, backend));
        self.give_up_on_fallen(env, replies, now);
        let Self { links, overload, cluster: Cluster { slots: Some(slots), .. }, .. } = self else { return };
        let owner_at = |place| {
            let link = links.at(ConnectionId(place as u32));
            (!link.is_for_replica()).then_some(link.backend)
        };
        slots.hold_moved(owner_at, overload.waiting_slots());
    }

    /// Drops all observations of a node as a replica and of its health, because another node has its place in
    /// the table of nodes or the node has another role (primary or replica). Does nothing unless replicas
    /// answer reads.
    fn meet_anew(&mut self, env: &Env, backend: BackendId) {
        if let Some(readers) = &mut self.cluster.readers {
            readers.forget(backend);
            self.forget_health(env, backend);
        }
    }

    /// Closes all connections to nodes that have left the cluster, since other nodes may take their places in
    /// the table of nodes, and forgets the health and the response times of the former nodes.
    fn leave(&mut self, env: &mut Env, gone: &[BackendId], replies: &mut impl Replies, now: Now) {
        gone.iter().for_each(|backend| self.forget_health(env, *backend));
        let is_left = |link: &Link| gone.contains(&link.backend) && link.state != LinkState::Closed;
        self.drop_links(env, is_left, "node-gone", replies, now);
        gone.iter().for_each(|backend| self.overload.forget_times(env, *backend, now.monotonic));
    }

    /// Closes connections to failed nodes whose slots other nodes have taken over, because their unanswered
    /// requests would keep the new owners' requests waiting.
    fn give_up_on_fallen(&mut self, env: &mut Env, replies: &mut impl Replies, now: Now) {
        let Some(slots) = &self.cluster.slots else { return };
        let fallen = slots.fallen();
        let owes = |link: &Link| !link.pending.is_empty() && fallen.contains(&link.backend);
        self.drop_links(env, owes, "node-failed", replies, now);
    }

    /// Suspects that the map of slots is old, so that nodes are asked for a new one, if a primary has owed a reply
    /// and sent nothing on a connection for 500 ms: the primary may be gone. Silent replicas do not count.
    pub fn doubt_silent(&mut self, now: Now) {
        let Self { links, cluster: Cluster { slots: Some(slots), .. }, .. } = self else { return };
        let owes_since = |place| {
            let link = links.at(ConnectionId(place as u32));
            let since = link.owes_since().filter(|_| !link.is_for_replica())?;
            Some((link.backend, since))
        };
        slots.doubt_silent(owes_since, now);
    }

    /// Makes this turn (pass of the shard's loop) check which held requests (kept until their slot's node can take
    /// them) can be sent, because the map of slots was confirmed.
    pub fn touch_slots(&mut self) {
        if let Some(slots) = &mut self.cluster.slots {
            slots.touch();
        }
    }

    /// Takes the reason to suspect that the map of slots is old, so that nodes are asked for a new one;
    /// None if there is none.
    pub fn take_doubt(&mut self) -> Option<Doubt> {
        self.cluster.slots.as_mut()?.take_doubt()
    }

    /// True if a request may go straight to the backend of its route: weir stands in front of plain stores, or the
    /// backend owns the slot on the cluster's map, the request is not for a replica, and there is no slot at all whose
    /// requests are held or whose owner a redirect has named lately.
    #[inline]
    pub(super) fn is_at_owner(&self, route: Route) -> bool {
        self.cluster.slots.as_ref().is_none_or(|slots| slots.is_at_owner(route))
    }

    /// Returns the request's envelope (record that goes with a request's bytes) with its slot's owner or a
    /// chosen replica as the backend; None if the request is held. An error if the slot has no owner or too
    /// many requests are held.
    #[inline(never)]
    pub(super) fn resolve_owner(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) -> Result<Option<Envelope>, NotSent> {
        let Some(slots) = &mut self.cluster.slots else { return Ok(Some(*envelope)) };
        let route = match slots.find_place(env, envelope, message, requests, now)? {
            Place::Held => return Ok(None),
            Place::Owner(route) => route,
            Place::OwnerOrReplica(route) => self.choose_reader(env, route, envelope.deadline, now),
        };
        Ok(Some(Envelope { route, ..*envelope }))
    }

    /// Chooses the node for a read that a replica may answer: a replica that is up to date and can take it
    /// at once, or the slot's owner, which `route` names. `deadline` is that of the read.
    #[inline(never)]
    fn choose_reader(&mut self, env: &mut Env, route: Route, deadline: Timestamp, now: Now) -> Route {
        let home = Route { track: Track::Usual, ..route };
        let Self { links, overload, cluster, .. } = self;
        let offer = |slots: &Slots, route: Route, role: Role| {
            let connection = links.connection_for(&env.settings, route);
            let can_take_read = match role {
                // An owner whose connection is in back-off is not asked.
                Role::Owner => {
                    let state = links.at(connection).state;
                    !matches!(state, LinkState::BackingOff { until } if until > now.monotonic)
                }
                // The read must be sent at once. The connection is opened if there is none.
                Role::Replica => {
                    let has_room = slots.has_room(connection);
                    links.is_ready(env, connection) && has_room
                        || links.make_ready(env, connection, has_room, now).is_ok()
                            && links.is_ready(env, connection)
                            && has_room
                }
            };
            let bulkhead = overload.bulkhead(bulkhead_for(route.backend, route.track));
            let has_room = can_take_read && bulkhead.has_room(deadline, now.monotonic);
            has_room.then(|| bulkhead.in_flight())
        };
        cluster.choose_reader(home, offer, now)
    }

    /// Holds a request that waited for room in its window (limit on requests in flight), if its slot is held
    /// or has another owner by now. True if it is held.
    pub(super) fn hold_if_moved(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) -> bool {
        let slots = self.cluster.slots.as_mut();
        slots.is_some_and(|slots| slots.hold_if_moved(env, envelope, message, requests, now))
    }

    /// Records a reply that comes before the last one to a message (to a request of a transaction before its
    /// `EXEC`, or to a `ROLE` or `ASKING` sent right before a request), if it is a redirect or shows that the
    /// node is no primary. `kind` is the reply's first byte, `end` its last bytes.
    pub(super) fn record_step(&mut self, connection: ConnectionId, kind: u8, end: &[u8]) {
        if let Some(slots) = &mut self.cluster.slots {
            slots.record_step(connection, kind, (&self.links.at(connection).partial, end));
        }
    }

    /// Drops the copy of a connection's oldest unanswered request, kept in case it must be sent again, since a reply
    /// to it has come about which nothing more has to be done (see [`Slots::settle_if_plain`]): the reply is not an
    /// error, no held request waits for it, and so on. True if the copy was dropped, or if none are kept (plain
    /// stores). `kind` is the first byte of the reply.
    #[inline]
    pub(super) fn settle_if_plain(&mut self, connection: ConnectionId, kind: u8) -> bool {
        let is_compared = self.cluster.is_compared();
        let slots = self.cluster.slots.as_mut();
        slots.is_none_or(|slots| slots.settle_if_plain(connection, kind == b'-', is_compared))
    }

    /// Handles a node's reply that may be a refusal, or a replica's reply that may be wrong. A request that
    /// was not carried out is held, sent to another node, or answered with an error. Returns whether the
    /// reply is still to be passed on. `kind` is the reply's first byte, `end` its last bytes, and `request`
    /// the record of the request. `ran` is the outcome from which the request's price follows if it is answered with
    /// an error although it may have run: the measurements of the reply to a script, else `Outcome::Refused`.
    #[inline(never)]
    pub(super) fn redirect_if_refused(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        (request, kind, ran): (&InFlight, u8, Outcome),
        end: &[u8],
        replies: &mut impl Replies,
        now: Now,
    ) -> Fate {
        let Cluster { slots: Some(slots), readers } = &mut self.cluster else { return Fate::Answered };
        let link = self.links.at_mut(connection);
        let (sender, track) = (link.backend, link.track);
        if track == Track::Replica {
            link.handle_success();
            let reply = ReplicaReply { kind, kept: &link.partial, end, is_kept: link.let_go == 0 };
            let readers = (readers.as_deref_mut(), self.turn.late);
            let refused = slots.take_replica_reply(env, (connection, sender), (request, reply), readers, now);
            let Some((envelope, frame)) = refused else { return Fate::Answered };
            self.ask_owner(env, &envelope, &frame, replies, now);
            return Fate::Redirected;
        }
        if let Some(readers) = readers {
            readers.record_owner(sender, request, self.turn.late, now);
        }
        let error = (kind == b'-').then(|| whole(&link.partial, end));
        let from = (connection, sender, track);
        match slots.take_owner_reply(env, from, (request, error.as_deref(), ran), replies, now) {
            Heard::Answered => Fate::Answered,
            Heard::Redirected => Fate::Redirected,
            Heard::NodeDown(refused) => {
                let reasoned = link.reasoned_abort(end);
                let words = reasoned.as_deref().or(error.as_deref()).unwrap_or_default();
                slots.hold_for_node(env, &refused, words, request.sent_at, now);
                Fate::Redirected
            }
        }
    }

    /// Sends a read (`frame`) to its slot's owner after a replica gave an error, an empty reply or none. If the read
    /// cannot be sent, answers it with an error.
    pub(super) fn ask_owner(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        frame: &[u8],
        replies: &mut impl Replies,
        now: Now,
    ) {
        let route = envelope.route;
        let owner = self.cluster.slots.as_ref().and_then(|slots| slots.owner(route.slot));
        let route = Route { backend: owner.unwrap_or(route.backend), ..route };
        let envelope = Envelope { route, ..*envelope };
        let message = Stored::of(frame, &mut env.pool);
        if let Err(why) = self.send(env, &envelope, message.message(), 1, now) {
            turn_away(env, replies, envelope.addressee(), why, now);
        }
        message.release(&mut env.pool);
    }

    /// Sends held requests (kept until their slot's node can take them) of slots whose other requests are all
    /// answered, if they need not wait for anything else, and refuses those whose time is over.
    pub(super) fn handle_held(&mut self, env: &mut Env, replies: &mut impl Replies, now: Now) {
        let Self { overload, cluster: Cluster { slots: Some(slots), .. }, .. } = self else { return };
        let waiting = overload.waiting_slots().map(|(slot, _)| slot);
        for held in slots.take_ready(env, waiting, replies, now) {
            let Some(slots) = &mut self.cluster.slots else { return };
            if let Some(released) = slots.release(env, held, replies, now) {
                self.send_released(env, released, replies, now);
            }
        }
    }

    fn send_released(&mut self, env: &mut Env, released: Released, replies: &mut impl Replies, now: Now) {
        let Released { envelope, message, requests, tries, is_asking } = released;
        let sent = if is_asking {
            let asking = behind_asking(message.message().bytes());
            self.put_on_link_again(env, &envelope, Message::Small(&asking), (requests + 1, tries), now)
        } else {
            self.put_on_link_again(env, &envelope, message.message(), (requests, tries), now)
        };
        if let Err(why) = sent {
            turn_away(env, replies, envelope.addressee(), why, now);
        }
        message.release(&mut env.pool);
    }
}
