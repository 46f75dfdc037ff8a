//! Tracking of keys (`CLIENT TRACKING`) in front of a cluster. Each node tracks the keys of its slots, and
//! knows nothing of keys that have moved away.
//!
//! | event | what follows for a client that tracks keys |
//! |---|---|
//! | a slot has another owner, or another node may hold keys | the client is told that any key may have changed, at once and behind the reply in flight |
//! | a node redirects a request | it is sent to the node that was named, over a link on which that node tracks keys |
//! | a node cannot carry out a request yet (`TRYAGAIN`, `CLUSTERDOWN`) | it is sent once more after a while, for a second at most |
//! | a node gets keys, and the client hears of all keys with certain prefixes (`BCAST`) | a link to it is opened; once the node has confirmed it, the client is told that any key may have changed |
//! | a node is no primary any more | the link to it is given back |
//! | the connection to a node is lost | the client is closed, as in front of plain stores |
//!
//! A client that takes the messages of another one (`REDIRECT`) is told in its place. It has a link to each of these nodes
//! too, whose number at the node the tracking client has to know: see `tracking_redirects.rs`.

use super::Shard;
use super::private::TRIES_MAX;
use crate::protocol::{Protocol, encode};
use crate::routing::cluster::{Map, NodeKey, NodeRefusal, Reason};
use crate::shard::clients::KeyTracking;
use crate::shard::cluster::{Doubt, pause_not_yet};
use crate::shard::counters::Counter;
use crate::shard::message::Message;
use crate::shard::outcome::Outcome;
use crate::shard::private::{Kind, PrivateRequest, Purpose};
use crate::shard::refusal::NotSent;
use crate::shard::request::PrivateId;
use crate::shard::tracking_redirect::{NodeQuestion, Peer, RedirectMessage};
use crate::values::limits::{COPY_BYTES_MAX, SLOT_HELD_MAX, SLOTS};
use crate::values::time::Now;
use crate::values::{BackendId, ClientId};

/// The message to a client for which keys are tracked (`CLIENT TRACKING`) that any key may have changed.
pub(super) const ANY_KEY: &[u8] = b">2\r\n$10\r\ninvalidate\r\n_\r\n";

impl Shard {
    /// Returns the link (unshared connection) over which a store tracks keys for a client. If the client has no such
    /// link to that node of a cluster, opens one. Requests on the new link wait if another client takes the
    /// invalidation messages, until the node can be told so. `None` for a client that tracks no keys. An error if no
    /// further link may be opened, or if stores have not confirmed any tracking options yet.
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
        let (target, is_broken) = (tracking.live_target(), tracking.is_broken());
        let node = self.env.slots.as_ref().and_then(|map| map.node(store)).map(|node| node.key);
        let link = self.lend_for(id, store, Purpose::Tracking, now).ok_or(NotSent::Links)?;
        if let Some(tracking) = self.tracking_of(id) {
            tracking.add_late(store, link);
        }
        if let (Some(target), Some(node)) = (target, node) {
            let tracker = Peer { shard: self.env.settings.id, client: id };
            let question = NodeQuestion { tracker, link, target, node };
            self.private.hold(link, now);
            self.clients.send_redirect(target.shard, RedirectMessage::AskNode(question));
            return Ok(Some(link));
        }
        let mut frame = self.env.pool.take();
        if is_broken {
            write_tracking_off(&mut frame);
        } else {
            options.encode(&mut frame, None);
        }
        self.private.send_tracking(&mut self.env, link, &frame, now);
        self.env.pool.give(frame);
        Ok(Some(link))
    }

    /// Takes the answer to the question which number (`CLIENT ID`) a node of a cluster has given the connection of a
    /// tracking client's target (the client that takes its invalidation messages). Tells the node to send the messages
    /// over that connection. Without a number, the request that waits on the tracking client's link is refused, and a
    /// tracking client that hears of all keys with certain prefixes is closed. If the client has no such target any
    /// more, tracking is turned off on the link.
    pub(super) fn take_node_number(
        &mut self,
        question: NodeQuestion,
        number: Result<u64, &'static str>,
        now: Now,
    ) {
        let NodeQuestion { tracker: Peer { client: id, .. }, link, target, .. } = question;
        if !self.private.is_held(link) {
            return;
        }
        let Some(tracking) = self.tracking_of(id).filter(|tracking| tracking.has(link)) else { return };
        let mut frame = Vec::new();
        match (number, tracking.options()) {
            (Ok(number), Some(options)) if tracking.live_target() == Some(target) => {
                options.encode(&mut frame, Some(number));
            }
            (Err(reason), _) if tracking.live_target() == Some(target) => {
                return self.lose_late_link(id, link, reason, now);
            }
            // The target is gone, so tracking is turned off on this link; or the client has named another
            // target since, and that command follows.
            _ => write_tracking_off(&mut frame),
        }
        self.private.release(link, &frame, now);
    }

    /// Closes a client's link (unshared connection) to a node of a cluster that cannot be told which
    /// connection takes the invalidation messages in the client's place. A request that waits on it is
    /// refused. `reason` is a word for the error reply. A client that hears of all keys with certain
    /// prefixes is closed.
    fn lose_late_link(&mut self, id: ClientId, link: PrivateId, reason: &'static str, now: Now) {
        let Some(backend) = self.private.backend_of(link) else { return };
        let Some(tracking) = self.tracking_of(id) else { return };
        tracking.remove(link);
        let hears_all = tracking.options().is_some_and(|options| options.is_broadcast);
        let request = self.private.abandon(&mut self.env, link, now);
        self.lose_private((link, id), request, (backend, reason, false), now);
        self.end_tracked_request(id, now);
        if hears_all {
            self.clients.stop_listening(&mut self.env, id);
        }
    }

    /// Takes a store's reply to the `CLIENT TRACKING ON` that was sent on a link (unshared connection) to one more node
    /// of a cluster, after tracking began. An error closes the client, since it would miss changes of keys there. A
    /// client that hears of all keys with certain prefixes (`BCAST`) is sent the message that any key may have changed.
    pub(super) fn take_late_confirmation(&mut self, id: ClientId, reply: &[u8], now: Now) {
        if reply.starts_with(b"-") {
            // The client would not hear of changes at this node.
            return self.clients.stop_listening(&mut self.env, id);
        }
        let options = self.tracking_of(id).and_then(|tracking| tracking.options());
        if options.is_some_and(|options| options.is_broadcast) {
            // Keys may have changed at the node before it knew of the client.
            self.tell_any_key(id, now);
        }
    }

    /// After a new map of the cluster, gives back clients' links (unshared connections) for tracking to nodes
    /// that hold no keys any more. Returns the clients for which to call [`Self::follow_nodes`]: all for
    /// which keys are tracked if a slot has another owner or another node may hold keys, else none.
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
            // While stores answer a tracking command of the client (one reply per link), its links stay as
            // they are.
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
    /// changed, and opens links (unshared connections) to nodes whose messages it would miss. While a
    /// tracking command of the client is unanswered, only notes that this is to be done.
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

    /// Opens links (unshared connections) to all nodes for a client that hears of all keys with certain
    /// prefixes (`BCAST`). Closes the client if it can have no further link, because it would miss messages.
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

    /// Gives back a client's link (unshared connection) to a node that holds no keys any more, unless a
    /// request of the client is in flight on it.
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

    /// Sends the message that any key may have changed to a client for which keys are tracked, or to the client that
    /// takes its invalidation messages (target). Nothing is sent if there was a target and it is gone, or if the client
    /// has none and speaks RESP2.
    pub(super) fn tell_any_key(&mut self, id: ClientId, now: Now) {
        let Some(tracking) = self.tracking_of(id) else { return };
        if let Some(target) = tracking.live_target() {
            let tracker = Peer { shard: self.env.settings.id, client: id };
            let message = RedirectMessage::AnyKey { target: target.client, tracker };
            return self.clients.send_redirect(target.shard, message);
        }
        if tracking.is_broken() {
            return;
        }
        if self.clients.find(id).is_none_or(|client| client.protocol() == Protocol::Resp2) {
            return;
        }
        self.clients.push_message(&mut self.env, id, ANY_KEY);
        self.env.counters.add(Counter::InvalidationsPassed, 1);
        self.charge_for_bytes(id, ANY_KEY.len(), now);
    }

    /// Keeps a copy of a request (or transaction) to `store` of a client for which keys are tracked, with the number of
    /// its replies, to send it once more if a node of a cluster redirects it or cannot carry it out yet. A request
    /// above 16 KiB is not kept, and is refused in that case. `caching_bytes` is the length of the `CLIENT CACHING`
    /// command before it.
    pub(super) fn keep_for_another_node(
        &mut self,
        (id, store): (ClientId, BackendId),
        (bytes, caching_bytes): (&[u8], usize),
        replies: usize,
    ) {
        if self.env.slots.is_none() || bytes.len() > COPY_BYTES_MAX {
            return;
        }
        if let Some(tracking) = self.tracking_of(id) {
            tracking.keep_request(store, (bytes, caching_bytes), replies);
        }
    }

    /// Sends a request of a client for which keys are tracked to the node of a cluster that a redirect
    /// names, or keeps it for a while if a node cannot carry it out yet. Returns the request if it is not
    /// sent again, since `reply` is its answer. `holder` is the client that has the `link`; `step_error` is
    /// the first error within a transaction.
    pub(super) fn track_elsewhere(
        &mut self,
        (link, holder): (PrivateId, ClientId),
        request: PrivateRequest,
        (reply, step_error): (&[u8], Option<&[u8]>),
        now: Now,
    ) -> Option<PrivateRequest> {
        let Some(map) =
            self.env.slots.as_ref().filter(|_| matches!(request.kind, Kind::Plain | Kind::Transaction(_)))
        else {
            return Some(request);
        };
        let error = step_error.filter(|_| reply.starts_with(b"-EXECABORT")).unwrap_or(reply);
        let from = self.private.backend_of(link);
        let (slot, target, is_asking) = match NodeRefusal::parse(error) {
            Some(NodeRefusal::Moved { slot, target }) => (slot, target, false),
            Some(NodeRefusal::Ask { slot, target }) => (slot, target, true),
            Some(NodeRefusal::TryAgain) => {
                return self.ask_later((link, holder), request, Counter::RefusedTryAgain, now);
            }
            Some(NodeRefusal::ClusterDown) => {
                let node = from.and_then(|from| map.node(from)).map(|node| node.key);
                self.private_doubt =
                    node.map(|node| Doubt { reason: Reason::ClusterDown(node), moved: None });
                return self.ask_later((link, holder), request, Counter::RefusedClusterDown, now);
            }
            _ => return Some(request),
        };
        let sender = from.and_then(|from| map.node(from)).and_then(|node| node.addresses.first());
        let named = sender.and_then(|sender| map.find(&target.resolve(sender)?)).map(|node| node.key);
        let Some(named) = named.filter(|named| Some(named.backend) != from) else { return Some(request) };
        if self.clients.find(holder).is_none_or(|client| client.watch().is_some()) {
            // The client's watched keys have moved away, so its request is not sent again.
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

    /// Keeps a request that a node of a cluster cannot carry out yet, to send it over its `link` once more
    /// after a while, until its deadline and for a second at most. `holder` is the client that has the link
    /// (unshared connection to a store); `counter` counts the request. Returns the request if it is
    /// answered with the node's error.
    fn ask_later(
        &mut self,
        (link, holder): (PrivateId, ClientId),
        request: PrivateRequest,
        counter: Counter,
        now: Now,
    ) -> Option<PrivateRequest> {
        if self.clients.find(holder).is_none_or(|client| client.watch().is_some()) {
            return Some(request);
        }
        let tracking = self.tracking_of(holder).filter(|tracking| tracking.has(link));
        let Some(times) = tracking.and_then(KeyTracking::count_not_yet) else { return Some(request) };
        let again_at = now.monotonic.after(pause_not_yet(times));
        if again_at >= request.deadline || now.monotonic.since(request.began) >= SLOT_HELD_MAX {
            return Some(request);
        }
        self.env.counters.add(counter, 1);
        self.private.put_off(link, request, again_at)
    }

    /// Sends requests of clients for which keys are tracked once more, if nodes of a cluster could not carry them out
    /// yet and the pause is over. A request whose client has no link to the node any more is answered with an error.
    pub(super) fn ask_again(&mut self, now: Now) {
        while let Some((holder, link, request)) = self.private.take_due(now.monotonic) {
            if let Some((link, repeat)) = self.tracking_of(holder).and_then(|tracking| tracking.once_more()) {
                let message = (Message::Small(&repeat.bytes), repeat.replies);
                self.private.send(&mut self.env, link, message, request, now);
            } else {
                // The client has no link any more to the node that got the request, because that node holds
                // no keys now.
                let backend = self.private.backend_of(link).unwrap_or(BackendId(0));
                let error = self.error_of(NotSent::Redirects, backend);
                self.hot_keys.end_writes(&request.cells);
                self.give_back(request.to, Outcome::Refused, Message::Small(&error), now);
                self.end_tracked_request(holder, now);
            }
        }
    }

    /// Ends a request of a client for which keys are tracked, whose reply was passed on: forgets its copy,
    /// and tells the client that any key may have changed if a new map of the cluster came while the
    /// request was in flight.
    pub(super) fn end_tracked_request(&mut self, id: ClientId, now: Now) {
        let Some(tracking) = self.tracking_of(id) else { return };
        tracking.forget_request();
        if tracking.take_unsure() {
            self.tell_any_key(id, now);
        }
    }
}

/// Writes the command that ends the tracking of keys on a link (unshared connection to a store).
fn write_tracking_off(out: &mut Vec<u8>) {
    encode::request(out, [b"CLIENT".as_slice(), b"TRACKING", b"OFF"].into_iter());
}
