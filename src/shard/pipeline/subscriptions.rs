//! Subscriptions: `SUBSCRIBE`, `PSUBSCRIBE`, `SSUBSCRIBE`, their ends, and the messages. A channel is at the
//! store that its name's slot leads to, so that `PUBLISH` and `SUBSCRIBE` meet there; patterns and events of
//! keys are heard from all stores. Nodes of a cluster pass messages on to each other, so a subscription at
//! one node is enough for channels and patterns there; events of keys and sharded channels are sent only by
//! the node that has the key or slot.

use super::Shard;
use super::channel_permission::literal_prefix;
use super::destination::{CROSS_SLOT, Destination, Placement};
use super::private::TRIES_MAX;
use super::shared_channels::may_share;
use crate::protocol::Arguments;
use crate::protocol::command::{Command, PrivateUse, Subscription};
use crate::routing::cluster::{NodeRefusal, Reason};
use crate::routing::slot_of;
use crate::shard::admission::Charge;
use crate::shard::clients::{
    CHANNEL_BYTES_MAX, CHANNELS_MAX, Delivered, FeedRequest, INVALIDATIONS, Moved, Named, Origin, Rewrite,
    Subscriptions,
};
use crate::shard::cluster::Doubt;
use crate::shard::counters::Counter;
use crate::shard::filter_board::FilterKind;
use crate::shard::message::Message;
use crate::shard::outcome::{Outcome, Settlement};
use crate::shard::private::Purpose;
use crate::shard::refusal::NotSent;
use crate::shard::request::PrivateId;
use crate::values::limits::COPY_BYTES_MAX;
use crate::values::time::Now;
use crate::values::{BackendId, ClientId};

impl Shard {
    /// Returns the slot and the store to which messages to a channel are sent: the store of the channel's
    /// slot. In a cluster that is the first node instead, which passes the messages to the others, so that a
    /// client's messages arrive in their order.
    pub(super) fn store_of_channel(&self, name: &[u8]) -> (u16, BackendId) {
        if self.env.slots.is_some() {
            return self.first_place();
        }
        (self.no_slot(), self.env.backend_of(slot_of(name)))
    }

    /// Returns the destination of a command about subscriptions, which the first channel or pattern that it
    /// names decides. The error is the text of the reply: sharded channels of several slots, in a cluster,
    /// cannot stand in one command. `kind` says whether it names channels, patterns or sharded channels.
    pub(super) fn destination_of_subscription(
        &self,
        (command, kind): (&'static Command, Subscription),
        arguments: &Arguments<'_>,
    ) -> Result<Destination, String> {
        if kind == Subscription::Sharded && self.env.slots.is_some() {
            let placement = self.placement(command, arguments).map_err(|error| error.to_string())?;
            if placement == Placement::Apart {
                return Err(CROSS_SLOT.to_owned());
            }
        }
        let (slot, backend) = self.store_of_channel(arguments.get(1).unwrap_or_default());
        Ok(Destination::Private { slot, backend })
    }

    /// Returns the stores at which a channel or pattern has to be subscribed to on a client's own links. `node` is the
    /// node of a cluster at which the client subscribes to all plain channels and patterns.
    fn origin_of(&self, kind: Subscription, name: &[u8], node: BackendId) -> Origin {
        const EVENTS: [&[u8]; 2] = [b"__keyspace@", b"__keyevent@"];
        let is_cluster = self.env.slots.is_some();
        match kind {
            Subscription::Patterns if !is_cluster => Origin::AllStores,
            Subscription::Patterns if literal_prefix(name).starts_with(b"__key") => Origin::AllStores,
            Subscription::Channels if EVENTS.iter().any(|prefix| name.starts_with(prefix)) => {
                Origin::AllStores
            }
            Subscription::Channels | Subscription::Patterns if is_cluster => Origin::Store(node),
            Subscription::Channels | Subscription::Patterns | Subscription::Sharded => {
                Origin::Store(self.env.backend_of(slot_of(name)))
            }
        }
    }

    /// Carries out a client's admitted command about subscriptions (such as `SUBSCRIBE`); `usage` says which kind of
    /// subscription it begins or ends. `charge` is the price taken for it, if it has one; it is corrected to the real
    /// price with the acknowledgement, or given back if the command is refused here.
    pub(super) fn change_subscriptions(
        &mut self,
        id: ClientId,
        usage: PrivateUse,
        charge: Option<Charge>,
        arguments: &Arguments<'_>,
        now: Now,
    ) {
        // Each name has an acknowledgement, also one that changes nothing.
        if arguments.len() - 1 > CHANNELS_MAX {
            self.settle(charge, &Settlement::default(), now);
            return match usage {
                PrivateUse::Unsubscribes(_) => self.answer_error(
                    id,
                    &format!(
                        "ERR too many names: UNSUBSCRIBE and the like take at most {CHANNELS_MAX}, or none to end all \
                         subscriptions of their kind"
                    ),
                ),
                _ => self.refuse_subscriptions(id),
            };
        }
        let names: Vec<&[u8]> = arguments.iter().skip(1).collect();
        let client = self.clients.client(id);
        let protocol = client.protocol();
        let known = client.ties().and_then(|ties| ties.subscriptions.as_mut());
        let change = match (usage, known) {
            (PrivateUse::Unsubscribes(kind), Some(known)) => known.end(kind, &names, protocol),
            (PrivateUse::Unsubscribes(kind), None) => Subscriptions::default().end(kind, &names, protocol),
            (PrivateUse::Subscribes(kind), _) => {
                let stores = self.env.stores();
                let Some(named) = self.find_feeds((id, kind), &names, &stores, charge, now) else { return };
                let ties = self.clients.client(id).ties_mut();
                let subscriptions = ties.subscriptions.get_or_insert_default();
                subscriptions.begin(kind, named, &stores, protocol)
            }
            (PrivateUse::Waits | PrivateUse::AwaitsCopies | PrivateUse::Watches, _) => {
                return debug_assert!(false, "handled elsewhere");
            }
        };
        // Acknowledgements are messages, which `CLIENT REPLY OFF` does not switch off.
        self.clients.client(id).send_next_reply();
        let begins = matches!(usage, PrivateUse::Subscribes(_));
        if let PrivateUse::Unsubscribes(kind) = usage {
            for name in &change.shared {
                self.clients.listeners().leave(kind, name, id);
            }
        }
        if change.requests.is_empty() && (!begins || change.shared.is_empty()) {
            let reply = change.acknowledgements;
            self.answer_priced(id, charge, now, |out, _| out.extend_from_slice(&reply));
            return self.end_unused_subscriptions(id, now);
        }
        let board = &self.env.settings.clients.subscriptions;
        let client = self.clients.client(id);
        let opening = match usage {
            PrivateUse::Subscribes(kind) => {
                board.begin(client.identity().tenant_id(), kind, names.iter().copied())
            }
            _ => None,
        };
        let sequence = client.expect_reply(Rewrite::AsItCame, charge);
        client.hold_back_later();
        let joining = (id, client.identity().tenant_id());
        if let PrivateUse::Subscribes(kind) = usage {
            for name in &change.shared {
                self.clients.listeners().join(kind, name, joining);
            }
        }
        let client = self.clients.client(id);
        let subscriptions = client.ties_mut().subscriptions.get_or_insert_default();
        let requests = subscriptions.expect(change, sequence, opening);
        self.send_to_feeds(requests, now);
    }

    /// Gives a client the links (unshared connections) to stores that it needs for new channels or patterns (`names`),
    /// and returns for each name the stores that its messages come from. None if the client cannot have the links, or
    /// would have too many subscriptions or patterns; the command is then refused here. `stores` are all stores. `kind`
    /// says whether the names are channels, patterns or sharded channels, and `charge` is the price taken for the
    /// command, if it has one, which is given back if the command is refused.
    fn find_feeds<'a>(
        &mut self,
        (id, kind): (ClientId, Subscription),
        names: &[&'a [u8]],
        stores: &[BackendId],
        charge: Option<Charge>,
        now: Now,
    ) -> Option<Vec<Named<'a>>> {
        let client = self.clients.client(id);
        let number = client.number();
        let none = Subscriptions::default();
        let known = client.ties().and_then(|ties| ties.subscriptions.as_deref()).unwrap_or(&none);
        if !known.has_room(kind, names) {
            self.settle(charge, &Settlement::default(), now);
            self.refuse_subscriptions(id);
            return None;
        }
        let has_link: Vec<BackendId> = known.stores().collect();
        let new: Vec<bool> = names.iter().map(|name| !known.has(kind, name)).collect();
        // A client uses one node for all its channels, chosen by its number so that clients are spread over
        // the nodes.
        let node = has_link.iter().find(|store| stores.contains(store)).copied();
        let node = node.or_else(|| stores.get(number as usize % stores.len().max(1)).copied());
        let node = node.unwrap_or(BackendId(0));
        let is_shared = self.shares_channels(id);
        let origin_of = |name: &&'a [u8]| match self.origin_of(kind, name, node) {
            _ if kind == Subscription::Channels && *name == INVALIDATIONS => Origin::Weir,
            _ if is_shared && may_share(kind, name) => Origin::Shared,
            origin => origin,
        };
        let named: Vec<(&[u8], Origin)> = names.iter().map(|name| (*name, origin_of(name))).collect();
        if stores.is_empty() && named.iter().any(|(_, origin)| *origin == Origin::AllStores) {
            // No node of the cluster is known yet, so none would send the messages.
            self.settle(charge, &Settlement::default(), now);
            self.answer_not_sent(id, node, NotSent::NoOwner);
            return None;
        }
        let mut needed = Vec::new();
        for ((_, origin), _) in named.iter().zip(&new).filter(|(_, is_new)| **is_new) {
            let all = match origin {
                Origin::Store(store) => std::slice::from_ref(store),
                Origin::AllStores => stores,
                Origin::Shared | Origin::Weir => &[],
            };
            needed.extend(all.iter().filter(|store| !has_link.contains(store)));
            needed.sort_unstable();
            needed.dedup();
        }
        let bytes = names.iter().map(|name| name.len()).sum::<usize>() * (has_link.len() + needed.len());
        if !self.private.has_room_for(bytes) {
            self.settle(charge, &Settlement::default(), now);
            self.answer_not_sent(id, node, NotSent::Full);
            return None;
        }
        let named = named.into_iter().map(|(name, origin)| {
            let is_filter =
                kind == Subscription::Patterns && !matches!(origin, Origin::Shared | Origin::Weir);
            let holder = (id, FilterKind::Pattern);
            let filter = is_filter.then(|| self.clients.hold_filter(&self.env, holder, name)).transpose()?;
            Ok(Named { name, origin, filter })
        });
        let named = match named.collect::<Result<Vec<Named<'_>>, String>>() {
            Ok(named) => named,
            Err(text) => {
                self.settle(charge, &Settlement::default(), now);
                self.answer_error(id, &text);
                return None;
            }
        };
        let lent = self.lend_all(id, &needed, Purpose::Other, charge, now)?;
        if !lent.is_empty() {
            let subscriptions = self.clients.client(id).ties_mut().subscriptions.get_or_insert_default();
            lent.into_iter().for_each(|(store, link)| subscriptions.add_feed(link, store));
        }
        Some(named)
    }

    fn refuse_subscriptions(&mut self, id: ClientId) {
        self.answer_error(
            id,
            &format!(
                "ERR too many subscriptions on this connection: at most {CHANNELS_MAX} channels and patterns, \
                 whose names have at most {CHANNEL_BYTES_MAX} bytes"
            ),
        );
    }

    fn subscriptions_of(&mut self, id: ClientId) -> Option<&mut Subscriptions> {
        self.clients.find(id)?.ties()?.subscriptions.as_deref_mut()
    }

    fn send_to_feeds(&mut self, requests: Vec<FeedRequest>, now: Now) {
        for FeedRequest { link, frame } in requests {
            if frame.len() > COPY_BYTES_MAX {
                let message = Message::Shared(&frame.into());
                self.private.send_subscription(&mut self.env, link, message, now);
            } else {
                self.private.send_subscription(&mut self.env, link, Message::Small(&frame), now);
            }
        }
    }

    /// Handles a store's message that came over a client's link (unshared connection to a store) with
    /// subscriptions: an acknowledgement, or a message to deliver.
    pub(super) fn take_message(&mut self, (id, link): (ClientId, PrivateId), message: &[u8], now: Now) {
        let delivered = self.clients.deliver_message(&mut self.env, (id, link), message);
        if !matches!(delivered, Delivered::Passed)
            && let Some(subscriptions) = self.subscriptions_of(id)
        {
            let is_owed = subscriptions.is_owed(link);
            self.private.note_owed(link, is_owed);
        }
        self.handle_delivered(id, delivered, message.len(), now);
    }

    pub(super) fn handle_delivered(&mut self, id: ClientId, delivered: Delivered, bytes: usize, now: Now) {
        match delivered {
            Delivered::Nobody | Delivered::Noted => {}
            Delivered::Passed => {
                self.env.counters.add(Counter::MessagesDelivered, 1);
                self.charge_for_bytes(id, bytes, now);
            }
            Delivered::Acknowledged { reply_to, reply, undo, leave, is_over } => {
                self.send_to_feeds(undo, now);
                for (kind, name) in leave {
                    self.clients.listeners().leave(kind, &name, id);
                }
                if is_over {
                    self.end_subscriptions(id, now);
                }
                let outcome = Outcome::answered(reply.len());
                self.give_back(reply_to, outcome, Message::Small(&reply), now);
            }
            Delivered::Moved(moved) => self.follow_channels(id, moved, now),
            // The client would miss messages and not know it; it subscribes anew when it connects again.
            Delivered::Revoked => self.clients.close(&mut self.env, id),
        }
    }

    /// Subscribes a client to sharded channels whose slot has moved, at the node that the former node's refusal
    /// (`moved.error`) names. If that node has ended the subscription without a refusal, it is asked once more, because
    /// its refusal names the other node. If no link to the node can be had, or too many nodes have refused, the
    /// client's command is refused, or the client closed if no command waits.
    fn follow_channels(&mut self, id: ClientId, moved: Moved, now: Now) {
        let map = self.env.slots.as_ref();
        let asked = map.and_then(|map| map.node(moved.from));
        let owner = if let Some(NodeRefusal::Moved { target, .. }) = NodeRefusal::parse(&moved.error) {
            let address = asked.and_then(|asked| target.resolve(asked.addresses.first()?));
            address.and_then(|address| map?.find(&address))
        } else {
            asked
        };
        let owner = owner.map(|node| node.key);
        let slot = moved.names.first().map_or(0, |name| slot_of(name));
        if !moved.error.is_empty() {
            let moved = owner.map(|owner| (slot, owner));
            self.private_doubt = Some(Doubt { reason: Reason::Moved(owner), moved });
        }
        let owner = owner.map(|owner| owner.backend).filter(|_| moved.tries <= TRIES_MAX);
        let Some(subscriptions) = self.subscriptions_of(id) else { return };
        let is_ready = owner.is_some_and(|owner| subscriptions.stores().any(|store| store == owner));
        let lent =
            owner.filter(|_| !is_ready).and_then(|owner| self.lend_for(id, owner, Purpose::Other, now));
        let Some(subscriptions) = self.subscriptions_of(id) else { return };
        let (Some(owner), true) = (owner, is_ready || lent.is_some()) else {
            if subscriptions.refuse(moved) {
                let delivered = self.clients.end_subscription_command(&self.env, id);
                return self.handle_delivered(id, delivered, 0, now);
            }
            return self.clients.close(&mut self.env, id);
        };
        if let Some(link) = lent {
            subscriptions.add_feed(link, owner);
        }
        let request = subscriptions.follow(moved, owner);
        self.send_to_feeds(request.into_iter().collect(), now);
    }

    /// Subscribes the clients that hear of events of keys (`__keyspace@`, `__keyevent@`) at all primaries of
    /// a cluster, after the cluster's map has changed. A client that can have no connection to one of the
    /// primaries is closed, because it would miss events.
    pub(super) fn spread_subscriptions(&mut self, now: Now) {
        if self.private.lent() == 0 {
            return;
        }
        let stores = self.env.stores();
        for id in self.clients.hearing_all_stores() {
            let Some(subscriptions) = self.subscriptions_of(id) else { continue };
            let has_link: Vec<BackendId> = subscriptions.stores().collect();
            let missing: Vec<BackendId> =
                stores.iter().filter(|store| !has_link.contains(store)).copied().collect();
            let lent: Vec<Option<PrivateId>> =
                missing.iter().map(|store| self.lend_for(id, *store, Purpose::Other, now)).collect();
            let Some(subscriptions) = self.subscriptions_of(id) else { continue };
            for (link, store) in lent.iter().zip(&missing) {
                link.iter().for_each(|link| subscriptions.add_feed(*link, *store));
            }
            let requests = subscriptions.spread(&stores);
            self.send_to_feeds(requests, now);
            if lent.iter().any(Option::is_none) {
                // Without a link to each of these stores, the client would miss events and not know it.
                self.clients.close(&mut self.env, id);
            }
        }
    }

    /// If a client has no subscription left, frees the record of its subscriptions, and gives back the
    /// connections that they used.
    fn end_unused_subscriptions(&mut self, id: ClientId, now: Now) {
        if self.subscriptions_of(id).is_some_and(|subscriptions| subscriptions.is_empty()) {
            self.end_subscriptions(id, now);
        }
    }

    /// Ends all subscriptions of a client, and gives back the client's own connections (private links) that
    /// they used.
    pub(super) fn end_subscriptions(&mut self, id: ClientId, now: Now) {
        let Some(client) = self.clients.find(id) else { return };
        let subscriptions = client.ties().and_then(|ties| ties.subscriptions.take());
        client.release_ties();
        let Some(subscriptions) = subscriptions else { return };
        for (kind, name) in subscriptions.shared_names() {
            self.clients.listeners().leave(kind, name, id);
        }
        for link in subscriptions.links() {
            if subscriptions.is_clean(link) {
                self.private.end_messages(link);
            }
            self.private.give_back(&mut self.env, link, false, now);
        }
    }
}
