//! Shared channels (`pubsub = "shared"`): what clients, home cores and stores have to tell each other, carried out at
//! the ends of turns. A name's home core is the one that a key of the same name has.
//!
//! ```text
//!   clients of this core <──> listeners ── joins, leaves ──> home core (this one, or over the mesh) <──> its feeds
//! ```

use bytes::Bytes;

use super::Shard;
use super::channel_permission::literal_prefix;
use crate::protocol::Arguments;
use crate::protocol::command::{Command, FanOut, Handling, Subscription};
use crate::routing::slot_of;
use crate::shard::clients::SharedMessage;
use crate::shard::counters::Counter;
use crate::shard::gather::Receivers;
use crate::shard::peers::Batch;
use crate::shard::refusal::{NotSent, Refusal};
use crate::shard::replies::write_refusal;
use crate::shard::shared_channel::{FromHome, SharedName, ToHome};
use crate::shard::shared_channels::{Heard, JoinRefusal};
use crate::values::limits::{SHARED_DELIVERIES_PER_TURN, SHARED_NAME_BYTES_MAX};
use crate::values::time::Now;
use crate::values::{BackendId, ClientId, ShardId};

/// True if a channel or pattern can have one subscription for all clients. Sharded channels follow their slots,
/// and events of keys come from all stores, so clients have connections of their own for these, and for names of
/// more than 1,024 bytes (`SHARED_NAME_BYTES_MAX`).
pub(super) fn may_share(kind: Subscription, name: &[u8]) -> bool {
    let is_event = match kind {
        Subscription::Channels => name.starts_with(b"__key"),
        Subscription::Patterns => literal_prefix(name).starts_with(b"__key"),
        Subscription::Sharded => return false,
    };
    !is_event && name.len() <= SHARED_NAME_BYTES_MAX
}

impl Shard {
    /// True if new subscriptions of a client share the subscriptions that weir has at the stores with other
    /// clients, as its tenant has `pubsub = "shared"`.
    pub(super) fn shares_channels(&mut self, id: ClientId) -> bool {
        self.env.quotas.shares_channels() && self.tenant_of(id).is_some_and(|tenant| tenant.shares_channels)
    }

    /// Returns the channels for which the reply to a request (`PUBLISH`, `PUBSUB NUMSUB`) names the number
    /// of subscribers, if that number has to be corrected because clients of this process share
    /// subscriptions. None if not.
    pub(super) fn receivers_of(
        &self,
        command: Option<&'static Command>,
        arguments: &Arguments<'_>,
    ) -> Option<Receivers> {
        let command = command.filter(|_| self.clients.counts_listeners(&self.env))?;
        match command.handling {
            Handling::FanOut(FanOut::Channel) => {
                Some(Receivers::of_message(arguments.get(1).unwrap_or_default()))
            }
            Handling::FanOut(FanOut::SumEach) if command.name == "pubsub|numsub" => {
                Some(Receivers::of_channels(arguments.iter().skip(2)))
            }
            _ => None,
        }
    }

    /// Returns the stores at which the home core (the one that subscribes for all clients) of a channel or
    /// pattern subscribes to it: all plain stores for a pattern, else one.
    fn stores_of_name(&self, name: &SharedName) -> Vec<BackendId> {
        // In a cluster, messages are sent to the first node, which tells the others.
        if name.kind == Subscription::Patterns && self.env.slots.is_none() {
            return self.env.stores();
        }
        vec![self.store_of_channel(&name.name).1]
    }

    /// Handles the messages of a batch from another core about channels that have one subscription for all
    /// clients: those to this core as a channel's home core, and those from home cores to this core's
    /// clients.
    pub(super) fn hear_of_shared(&mut self, batch: &mut Batch) {
        for (from, message) in batch.take_to_home() {
            self.tell_home(from, message);
        }
        while let Some(told) = batch.pop_from_home() {
            self.clients.listeners().handle_from_home(told);
        }
    }

    /// Handles a message to this core as the home core (the one that subscribes for all clients) of a
    /// channel or pattern, about the subscribers of core `from`. A refused subscription is answered with an
    /// error.
    fn tell_home(&mut self, from: ShardId, message: ToHome) {
        let stores = match &message {
            ToHome::Join { name, .. } => self.stores_of_name(name),
            ToHome::Leave { .. } | ToHome::Forget { .. } => Vec::new(),
        };
        let is_full = stores.iter().any(|store| self.private.is_feed_full(*store));
        let result = if is_full {
            Err(JoinRefusal::Owed)
        } else {
            self.shared_channels.handle(from, &message, &stores)
        };
        let (Err(refusal), ToHome::Join { name, client, .. }) = (result, message) else { return };
        let why = match refusal {
            JoinRefusal::Channels => NotSent::SharedChannels,
            JoinRefusal::Owed => NotSent::Full,
            JoinRefusal::NoStore => NotSent::NoOwner,
        };
        let store = stores.first().copied().unwrap_or(BackendId(0));
        let mut text = Vec::new();
        write_refusal(&mut self.env, store, why, &mut text);
        self.shared_channels.refuse(from, name, client, text.into());
    }

    /// Handles what came on the feed (this core's connection to a store for channels that have one
    /// subscription for all clients): a message of the store or, as the error, the reason why the feed was
    /// lost.
    pub(super) fn take_from_feed(&mut self, backend: BackendId, said: Result<Vec<u8>, &'static str>) {
        match said {
            Ok(message) => match self.shared_channels.hear(backend, message.into()) {
                Heard::Message => self.env.counters.add(Counter::SharedMessages, 1),
                Heard::Answer => {
                    let owes = self.shared_channels.is_owed(backend);
                    self.private.note_feed_owed(backend, owes);
                }
                Heard::Violation => self.private.give_up_feed(&mut self.env, backend),
            },
            Err(reason) => {
                let mut text = Vec::new();
                let name = self.env.backend_name(backend);
                let retry_after = super::private::RETRY_AFTER_LOSS;
                Refusal::Unavailable { backend: name, reason, retry_after }.encode(&mut text);
                self.shared_channels.handle_lost(backend, &Bytes::from(text));
            }
        }
    }

    /// Sends waiting messages about channels that have one subscription for all clients to the channels' home cores
    /// (those that subscribe for all clients) and to stores, and delivers those for clients of this core. Once
    /// `SHARED_DELIVERIES_PER_TURN` clients have got one, the rest waits for the next turn (pass of the shard's loop).
    #[cold]
    #[inline(never)]
    pub(super) fn exchange_shared(&mut self, now: Now) {
        self.send_shared(now);
        let mut deliveries = 0;
        while deliveries < SHARED_DELIVERIES_PER_TURN {
            let Some(told) = self.clients.listeners().poll_undelivered() else { break };
            deliveries += self.deliver_shared(told, now);
        }
        self.send_shared(now);
    }

    /// Sends waiting messages about channels that have one subscription for all clients: to the channels' home cores
    /// (those that subscribe for all clients), from this core as a home core to the cores with subscribers, and to
    /// stores. Messages for clients of this core are only queued.
    #[cold]
    #[inline(never)]
    pub(super) fn send_shared(&mut self, now: Now) {
        let own = self.env.settings.id;
        for message in self.clients.listeners().take_output() {
            let (ToHome::Join { name, .. } | ToHome::Leave { name, .. } | ToHome::Forget { name }) = &message;
            let home = self.env.settings.topology.home_of(slot_of(&name.name));
            if home == own {
                self.tell_home(own, message);
            } else {
                self.peers.push_to_home(own, home, message);
            }
        }
        while let Some((backend, frame)) = self.shared_channels.poll_request() {
            self.private.send_to_feed(&mut self.env, backend, &frame, now);
        }
        while let Some(numbers) = self.shared_channels.poll_changed() {
            for shard in (0..self.env.settings.topology.shards()).map(ShardId) {
                self.tell_core(shard, numbers.clone());
            }
        }
        while let Some((shard, told)) = self.shared_channels.poll_told() {
            self.tell_core(shard, told);
        }
    }

    fn tell_core(&mut self, shard: ShardId, told: FromHome) {
        if shard == self.env.settings.id {
            self.clients.listeners().handle_from_home(told);
        } else {
            self.peers.push_from_home(shard, told);
        }
    }

    /// Delivers a message of a channel's home core (the one that subscribes for all clients) to the clients of this
    /// core that it concerns: a published message, or the result of a subscription. Clients whose subscription was
    /// lost, or that have missed messages, are closed. Returns the number of clients, by which the caller limits how
    /// much is delivered in one turn (pass of the shard's loop).
    fn deliver_shared(&mut self, told: FromHome, now: Now) -> usize {
        match told {
            FromHome::Message { name, message } => return self.fan_out(&name, message, now),
            FromHome::Joined { name, client } => {
                let delivered = self.clients.handle_joined(&self.env, &name, client);
                self.handle_delivered(client, delivered, 0, now);
            }
            FromHome::Refused { name, client, error } => {
                let delivered = self.clients.handle_refused(&self.env, &name, client, &error);
                self.handle_delivered(client, delivered, 0, now);
            }
            FromHome::Lost { name, error } => {
                let listeners = self.clients.handle_name_lost(&name);
                for listener in &listeners {
                    if listener.is_acknowledged {
                        // The client subscribes anew when it connects again, as it does when a store has died.
                        if self.clients.find(listener.client).is_some() {
                            self.clients.close(&mut self.env, listener.client);
                        }
                    } else {
                        self.env.counters.add(Counter::RefusedUnavailable, 1);
                        let delivered = self.clients.refuse_shared(&self.env, listener.client, &error);
                        self.handle_delivered(listener.client, delivered, 0, now);
                    }
                }
                return listeners.len();
            }
            FromHome::Missed { name } => {
                let listeners = self.clients.listeners().lend(&name);
                for listener in listeners.iter().filter(|listener| listener.is_acknowledged) {
                    if self.clients.find(listener.client).is_some() {
                        self.env.counters.add(Counter::ClientsClosedMissed, 1);
                        self.clients.close(&mut self.env, listener.client);
                    }
                }
                let count = listeners.len();
                self.clients.listeners().give_back(&name, listeners);
                return count;
            }
            FromHome::Numbers { .. } => {}
        }
        1
    }

    /// Passes a published message to all clients of this core that are subscribed to a channel or pattern.
    /// Returns the number of its subscribers, including clients whose subscription is not acknowledged yet,
    /// which do not get the message.
    fn fan_out(&mut self, name: &SharedName, message: Bytes, now: Now) -> usize {
        let listeners = self.clients.listeners().lend(name);
        let mut message = SharedMessage::new(message);
        for listener in listeners.iter().filter(|listener| listener.is_acknowledged) {
            if self.clients.pass_shared(&mut self.env, listener.client, &mut message) {
                self.env.counters.add(Counter::MessagesDelivered, 1);
                self.charge_for_bytes(listener.client, message.len(), now);
            }
        }
        let count = listeners.len();
        self.clients.listeners().give_back(name, listeners);
        count
    }
}
