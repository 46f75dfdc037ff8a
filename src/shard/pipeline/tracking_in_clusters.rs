//! Tracking of keys (`CLIENT TRACKING`) before a cluster. Each node tracks the keys of its slots, and knows nothing of
//! those that have moved away.
//!
//! | event | what follows for a client that tracks keys |
//! |---|---|
//! | a slot has another owner, or another node may hold keys | the client is told that any key may have changed, at once and behind the reply in flight |
//! | a node redirects a request | it is sent to the node that was named, over a link on which that node tracks keys |
//! | a node gets keys, and the client hears of all keys with certain prefixes (`BCAST`) | a link to it is opened; once the node has confirmed it, the client is told that any key may have changed |
//! | a node is no primary any more | the link to it is given back |
//! | the connection to a node is lost | the client is closed, as before plain stores |

use super::Shard;
use super::private::TRIES_MAX;
use crate::protocol::Protocol;
use crate::routing::cluster::{Map, NodeKey, NodeRefusal, Reason};
use crate::shard::cluster::Doubt;
use crate::shard::counters::Counter;
use crate::shard::message::Message;
use crate::shard::private::{InFlight, Kind};
use crate::shard::refusal::NotSent;
use crate::shard::request::PrivateId;
use crate::values::limits::{COPY_BYTES_MAX, SLOTS};
use crate::values::time::Now;
use crate::values::{BackendId, ClientId};

/// The message to a client that any key may have changed.
const ANY_KEY: &[u8] = b">2\r\n$10\r\ninvalidate\r\n_\r\n";

impl Shard {
    /// Returns the link over which a store tracks keys for a client; opens one to a node of a cluster that
    /// lacks it. `None` for a client that tracks no keys. The error says that there is no link left.
    pub(super) fn link_for_tracking(
        &mut self,
        id: ClientId,
        store: BackendId,
        now: Now,
    ) -> Result<Option<PrivateId>, NotSent> {
        let Some(tracking) = self.tracking_of(id) else { return Ok(None) };
        if let Some(link) = tracking.link_to(store) {
            return Ok(Some(link));
        }
        let Some(options) = tracking.options().cloned() else { return Err(NotSent::Links) };
        let link = self.lend_for(id, store, now).ok_or(NotSent::Links)?;
        if let Some(tracking) = self.tracking_of(id) {
            tracking.add_late(store, link);
        }
        let mut frame = self.env.pool.take();
        options.encode(&mut frame, None);
        self.private.send_tracking(&mut self.env, link, &frame, now);
        self.env.pool.give(frame);
        Ok(Some(link))
    }

    /// Takes a store's reply to the `CLIENT TRACKING ON` that was sent on a link opened after tracking began.
    /// An error closes the client.
    pub(super) fn take_late_confirmation(&mut self, id: ClientId, reply: &[u8], now: Now) {
        if reply.starts_with(b"-") {
            // The client would not hear of changes there.
            return self.clients.stop_listening(&mut self.env, id);
        }
        let options = self.tracking_of(id).and_then(|tracking| tracking.options());
        if options.is_some_and(|options| options.is_broadcast) {
            // Keys may have changed there before the node knew of the client.
            self.tell_any_key(id, now);
        }
    }

    /// Gives back the links to nodes that tracked keys and hold none on a new map of the cluster. Returns the
    /// clients for which to call [`Self::follow_nodes`]: all for which keys are tracked if a slot has another
    /// owner or another node may hold keys, else none.
    pub(super) fn leave_nodes(&mut self, older: &Map, newer: &Map, now: Now) -> Vec<ClientId> {
        let stores = |map: &Map| map.stores().map(|node| node.key).collect::<Vec<_>>();
        let stays =
            || newer.moved_since(older, 0..=SLOTS - 1).next().is_none() && stores(older) == stores(newer);
        let ids = self.clients.tracking_ids();
        if ids.is_empty() || stays() {
            return Vec::new();
        }
        let same = |key: &NodeKey| older.node_of(*key).is_some();
        let kept: Vec<BackendId> =
            stores(newer).iter().filter(|key| same(key)).map(|key| key.backend).collect();
        for id in &ids {
            // Stores answer a command of the client, one on each link.
            let Some(tracking) = self.tracking_of(*id).filter(|tracking| !tracking.is_pending()) else {
                continue;
            };
            let left: Vec<PrivateId> =
                tracking.stores().filter(|(store, _)| !kept.contains(store)).map(|(_, link)| link).collect();
            for link in left {
                self.leave_node(*id, link, now);
            }
        }
        ids
    }

    /// Makes a client's tracking fit the map in force: sends the client the message that any key may have
    /// changed, and opens links to nodes whose messages it would miss. If no message can be sent yet, this is
    /// done later.
    pub(super) fn follow_nodes(&mut self, id: ClientId, now: Now) {
        let Some(tracking) = self.tracking_of(id) else { return };
        if tracking.is_pending() {
            return tracking.note_unsure();
        }
        let links: Vec<PrivateId> = tracking.links().collect();
        if links.into_iter().any(|link| self.private.is_at_work(link))
            && let Some(tracking) = self.tracking_of(id)
        {
            // The reply in flight may be older than the change.
            tracking.note_unsure();
        }
        self.tell_any_key(id, now);
        self.hear_broadcasts(id, now);
    }

    /// Opens links to all nodes for a client that hears of all keys with certain prefixes (`BCAST`). Closes
    /// the client if there is no link left, because it would miss messages.
    fn hear_broadcasts(&mut self, id: ClientId, now: Now) {
        let options = self.tracking_of(id).and_then(|tracking| tracking.options());
        if !options.is_some_and(|options| options.is_broadcast) {
            return;
        }
        let stores = self.env.stores();
        if stores.iter().any(|store| self.link_for_tracking(id, *store, now).is_err()) {
            self.clients.stop_listening(&mut self.env, id);
        }
    }

    /// Gives back a client's link to a node that holds no keys any more, unless a request of the client is in
    /// flight on it.
    fn leave_node(&mut self, id: ClientId, link: PrivateId, now: Now) {
        if self.private.is_at_work(link) {
            return;
        }
        let ties = self.clients.find(id).and_then(|client| client.ties());
        if ties.is_some_and(|ties| ties.link == Some(link)) {
            self.break_watch(id, now);
        }
        if let Some(tracking) = self.tracking_of(id) {
            tracking.remove(link);
            self.private.end_tracking(&mut self.env, link, now);
        }
    }

    /// Sends a client for which keys are tracked the message that any of them may have changed. A client with
    /// RESP2 cannot be sent any.
    fn tell_any_key(&mut self, id: ClientId, now: Now) {
        if self.clients.find(id).is_none_or(|client| client.protocol() == Protocol::Resp2) {
            return;
        }
        self.clients.push_message(&mut self.env, id, ANY_KEY);
        self.env.counters.add(Counter::InvalidationsPassed, 1);
        self.charge_for_bytes(id, ANY_KEY.len(), now);
    }

    /// Keeps a copy of a request (or transaction) of a client for which keys are tracked, to send it once
    /// more if a node of a cluster redirects it. A request above [`COPY_BYTES_MAX`] bytes is not kept, and is
    /// refused when it is redirected.
    pub(super) fn keep_for_another_node(
        &mut self,
        id: ClientId,
        (bytes, caching_bytes): (&[u8], usize),
        replies: usize,
    ) {
        if self.env.slots.is_none() || bytes.len() > COPY_BYTES_MAX {
            return;
        }
        if let Some(tracking) = self.tracking_of(id) {
            tracking.keep_request((bytes, caching_bytes), replies);
        }
    }

    /// Sends a request of a client for which keys are tracked to the node of a cluster that a redirect names.
    /// Returns the request if it is not sent again, since `reply` is its answer.
    pub(super) fn track_elsewhere(
        &mut self,
        (link, holder): (PrivateId, ClientId),
        request: InFlight,
        (reply, step_error): (&[u8], Option<&[u8]>),
        now: Now,
    ) -> Option<InFlight> {
        let Some(map) =
            self.env.slots.as_ref().filter(|_| matches!(request.kind, Kind::Plain | Kind::Transaction(_)))
        else {
            return Some(request);
        };
        let error = step_error.filter(|_| reply.starts_with(b"-EXECABORT")).unwrap_or(reply);
        let (slot, target, is_asking) = match NodeRefusal::parse(error) {
            Some(NodeRefusal::Moved { slot, target }) => (slot, target, false),
            Some(NodeRefusal::Ask { slot, target }) => (slot, target, true),
            _ => return Some(request),
        };
        let from = self.private.backend_of(link);
        let sender = from.and_then(|from| map.node(from)).and_then(|node| node.addresses.first());
        let named = sender.and_then(|sender| map.find(&target.resolve(sender)?)).map(|node| node.key);
        let Some(named) = named.filter(|named| Some(named.backend) != from) else { return Some(request) };
        if self.clients.find(holder).is_none_or(|client| client.watch().is_some()) {
            // The keys that are watched have moved away.
            return Some(request);
        }
        let tracking = self.tracking_of(holder).filter(|tracking| tracking.has(link));
        let Some(repeat) = tracking.and_then(|tracking| tracking.repeat(is_asking, TRIES_MAX)) else {
            return Some(request);
        };
        if !is_asking {
            self.private_doubt =
                Some(Doubt { reason: Reason::Moved(Some(named)), moved: Some((slot, named)) });
        }
        let Ok(Some(link)) = self.link_for_tracking(holder, named.backend, now) else { return Some(request) };
        let message = (Message::Small(&repeat.bytes), repeat.replies);
        self.private.send(&mut self.env, link, message, request, now);
        None
    }

    /// Ends a request of a client for which keys are tracked, whose reply was passed on: forgets its copy,
    /// and tells the client that any key may have changed if a map of the cluster made that due.
    pub(super) fn end_tracked_request(&mut self, id: ClientId, now: Now) {
        let Some(tracking) = self.tracking_of(id) else { return };
        tracking.forget_request();
        if tracking.take_unsure() {
            self.tell_any_key(id, now);
        }
    }
}
