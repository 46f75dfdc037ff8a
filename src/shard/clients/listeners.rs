//! Listeners: the clients of this core that are subscribed to shared channels and patterns, by name. Their home
//! cores have the subscriptions at stores, and send each message once per core (`../shared_channels/`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bytes::Bytes;

use super::ClientStage;
use super::subscriptions::{Delivered, Subscriptions};
use crate::protocol::Protocol;
use crate::protocol::command::Subscription;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::shared_channel::{FromHome, FromHomeQueue, SHARED_KINDS, SharedName, ToHome};
use crate::shard::shared_numbers::SharedNumbers;
use crate::values::{ClientId, TenantId};

/// The clients of this core that are subscribed to one channel or pattern for which weir has one subscription for all
/// clients.
#[derive(Debug)]
struct Listening {
    /// Number of this set of clients, which distinguishes it from earlier sets for the same channel or
    /// pattern.
    generation: u32,
    listeners: Vec<Listener>,
    /// Index in `listeners` of each subscribed client.
    places: HashMap<ClientId, u32>,
}

/// A client of this core that is subscribed to a channel or pattern for which weir has one subscription for all
/// clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The client, by its id on this core.
    pub client: ClientId,
    /// True once stores have acknowledged the subscription; the client gets no messages before.
    pub is_acknowledged: bool,
}

/// A published message of a channel for which weir has one subscription for all its clients, in both RESP
/// versions.
#[derive(Debug)]
pub struct SharedMessage {
    resp2: Bytes,
    resp3: Option<Bytes>,
}

impl SharedMessage {
    /// Creates a message from its RESP2 form; the RESP3 form is made when it is first needed.
    pub fn new(resp2: Bytes) -> Self {
        Self { resp2, resp3: None }
    }

    /// Returns the length of the message in bytes (of its RESP2 form).
    pub fn len(&self) -> usize {
        self.resp2.len()
    }

    /// Returns the message in a RESP version. In RESP3 it is a push instead of an array.
    fn in_dialect(&mut self, protocol: Protocol) -> &Bytes {
        if protocol == Protocol::Resp2 {
            return &self.resp2;
        }
        self.resp3.get_or_insert_with(|| {
            let mut push = self.resp2.to_vec();
            if let Some(first) = push.first_mut() {
                *first = b'>';
            }
            push.into()
        })
    }
}

/// The listeners of one core (clients subscribed to channels and patterns for which weir has one subscription for all
/// clients), and the messages to and from the home cores, which have these subscriptions.
#[derive(Debug, Default)]
pub struct Listeners {
    names: [HashMap<Bytes, Listening>; SHARED_KINDS],
    last_generation: u32,
    to_homes: Vec<ToHome>,
    undelivered: FromHomeQueue,
    /// The clients that have disconnected, with their subscriptions, whose end has not been reported to the
    /// home cores (those that subscribe for all clients) yet.
    left: Vec<(ClientId, Box<Subscriptions>)>,
    numbers: SharedNumbers,
}

impl Listeners {
    /// True if messages wait to be sent to the home cores (those that subscribe for all clients) of channels,
    /// or to be delivered to clients.
    pub fn has_work(&self) -> bool {
        !self.undelivered.is_empty() || self.has_output()
    }

    /// True if joins or leaves of clients wait to be sent to the home cores (those that subscribe for all
    /// clients) of channels.
    pub fn has_output(&self) -> bool {
        !self.to_homes.is_empty() || !self.left.is_empty()
    }

    /// True if messages of the home cores (those that subscribe for all clients) of channels wait to be
    /// delivered to clients.
    pub fn has_undelivered(&self) -> bool {
        !self.undelivered.is_empty()
    }

    /// Returns the numbers of subscribers, in this process, of all channels and patterns for which weir has
    /// one subscription for all clients.
    pub fn numbers(&self) -> &SharedNumbers {
        &self.numbers
    }

    /// Adds a client to the listeners of a channel or pattern, and reports it to the name's home core, which has the
    /// subscription for all clients. The client gets messages once stores have acknowledged its subscription. `tenant`
    /// is the client's tenant.
    pub fn join(&mut self, kind: Subscription, name: &[u8], (client, tenant): (ClientId, TenantId)) {
        let name = Bytes::copy_from_slice(name);
        let listening = match self.names[kind as usize].entry(name.clone()) {
            Entry::Occupied(place) => place.into_mut(),
            Entry::Vacant(place) => {
                self.last_generation = self.last_generation.wrapping_add(1);
                let generation = self.last_generation;
                place.insert(Listening { generation, listeners: Vec::new(), places: HashMap::new() })
            }
        };
        listening.add(client);
        let name = SharedName { kind, name, generation: listening.generation };
        self.to_homes.push(ToHome::Join { name, client, tenant });
    }

    /// Removes a client from the listeners of a channel or pattern, and reports it to the name's home core
    /// (the one that subscribes for all clients); does nothing if the client is not among them.
    pub fn leave(&mut self, kind: Subscription, name: &[u8], client: ClientId) {
        let names = &mut self.names[kind as usize];
        let Some(listening) = names.get_mut(name) else { return };
        if !listening.remove(client) {
            return;
        }
        let (generation, is_over) = (listening.generation, listening.listeners.is_empty());
        let name = match if is_over { names.remove_entry(name) } else { None } {
            Some((name, _)) => name,
            None => Bytes::copy_from_slice(name),
        };
        self.to_homes.push(ToHome::Leave { name: SharedName { kind, name, generation }, client });
    }

    /// Marks the subscription of a client to a channel or pattern as acknowledged by stores. False if the
    /// client is no longer subscribed to it.
    fn acknowledge(&mut self, name: &SharedName, client: ClientId) -> bool {
        let Some(listening) = self.find(name) else { return false };
        let Some(place) = listening.places.get(&client) else { return false };
        listening.listeners[*place as usize].is_acknowledged = true;
        true
    }

    /// Removes a client from the listeners of a channel or pattern, as its subscription was refused. False if
    /// the client is no longer one of them.
    fn drop_refused(&mut self, name: &SharedName, client: ClientId) -> bool {
        let Some(listening) = self.find(name) else { return false };
        let was_there = listening.remove(client);
        if listening.listeners.is_empty() {
            self.names[name.kind as usize].remove(&name.name);
        }
        was_there
    }

    /// Removes and returns all listeners of a channel or pattern, because its home core (the one that
    /// subscribes for all clients) has lost the subscription.
    fn drop_lost(&mut self, name: &SharedName) -> Vec<Listener> {
        if self.find(name).is_none() {
            return Vec::new();
        }
        self.to_homes.push(ToHome::Forget { name: name.clone() });
        self.names[name.kind as usize]
            .remove(&name.name)
            .map_or_else(Vec::new, |listening| listening.listeners)
    }

    fn find(&mut self, name: &SharedName) -> Option<&mut Listening> {
        let listening = self.names[name.kind as usize].get_mut(&name.name);
        listening.filter(|listening| listening.generation == name.generation)
    }

    /// Keeps the subscriptions of a client that has disconnected, so that their end is reported to the names'
    /// home cores (those that subscribe for all clients).
    pub fn handle_left(&mut self, client: ClientId, subscriptions: Box<Subscriptions>) {
        if subscriptions.has_shared() {
            self.left.push((client, subscriptions));
        }
    }

    /// Takes the messages (joins and leaves of clients) that are to be sent to the home cores (those that
    /// subscribe for all clients) of channels.
    pub fn take_output(&mut self) -> Vec<ToHome> {
        for (client, subscriptions) in std::mem::take(&mut self.left) {
            for (kind, name) in subscriptions.shared_names() {
                self.leave(kind, name, client);
            }
        }
        std::mem::take(&mut self.to_homes)
    }

    /// Takes a message of a channel's home core, the core that has the subscription for all clients. Numbers
    /// of subscribers take effect at once, any other message waits to be delivered.
    pub fn handle_from_home(&mut self, told: FromHome) {
        match told {
            FromHome::Numbers { kind, name, own } => self.numbers.set(kind, name, own),
            told => self.undelivered.push(told),
        }
    }

    /// Takes the next message of a channel's home core (the one that subscribes for all clients) that is to be
    /// delivered to clients of this core. None if there is none.
    pub fn poll_undelivered(&mut self) -> Option<FromHome> {
        self.undelivered.pop()
    }

    /// Lends the caller the listeners (subscribed clients of this core) of a channel or pattern while a
    /// message is passed to them; empty if there are none. The caller gives them back with
    /// [`Self::give_back`]; no client may join or leave meanwhile.
    pub fn lend(&mut self, name: &SharedName) -> Vec<Listener> {
        self.find(name).map_or_else(Vec::new, |listening| std::mem::take(&mut listening.listeners))
    }

    /// Takes back the listeners (subscribed clients) of a channel or pattern that [`Self::lend`] gave out.
    pub fn give_back(&mut self, name: &SharedName, listeners: Vec<Listener>) {
        if let Some(listening) = self.find(name) {
            debug_assert!(listening.places.len() == listeners.len(), "nobody joins or leaves meanwhile");
            listening.listeners = listeners;
        }
    }

    /// Returns the number of listeners (subscribed clients of this core) of all channels and patterns
    /// together. For tests.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.names.iter().flat_map(HashMap::values).map(|listening| listening.listeners.len()).sum()
    }
}

impl Listening {
    fn add(&mut self, client: ClientId) {
        if let Entry::Vacant(place) = self.places.entry(client) {
            place.insert(self.listeners.len() as u32);
            self.listeners.push(Listener { client, is_acknowledged: false });
        }
    }

    fn remove(&mut self, client: ClientId) -> bool {
        let Some(place) = self.places.remove(&client) else { return false };
        self.listeners.swap_remove(place as usize);
        if let Some(moved) = self.listeners.get(place as usize) {
            self.places.insert(moved.client, place);
        }
        true
    }
}

impl ClientStage {
    /// Returns the number of clients of this core that are subscribed to channels or patterns.
    pub fn subscribers(&self) -> usize {
        self.clients.all().filter(|client| client.is_subscribed()).count()
    }

    /// Returns the table of this core's clients that are subscribed to channels for which weir has one subscription for
    /// all clients.
    pub fn listeners(&mut self) -> &mut Listeners {
        &mut self.listeners
    }

    /// True if messages of channels for which weir has one subscription for all clients wait to be delivered to
    /// clients.
    pub fn has_undelivered(&self) -> bool {
        self.listeners.has_undelivered()
    }

    /// True if messages wait to be sent to the home cores of channels (those that subscribe for all clients),
    /// or messages from home cores to be delivered to clients.
    pub fn has_shared_work(&self) -> bool {
        self.listeners.has_work()
    }

    /// True if replies with numbers of subscribers (such as to `PUBLISH`) must be corrected, because this
    /// process has, or may have, one subscription for several clients.
    pub fn counts_listeners(&self, env: &Env) -> bool {
        env.quotas.shares_channels() || !self.listeners.numbers.is_empty()
    }

    /// Passes a published message, of a channel for which weir has one subscription for all clients, to a client, or
    /// keeps it until the client's command about subscriptions is acknowledged; a client for which too many bytes are
    /// kept or wait to be sent is closed. False if the client has disconnected or has no subscriptions.
    pub fn pass_shared(&mut self, env: &mut Env, id: ClientId, message: &mut SharedMessage) -> bool {
        let bytes_max = env.settings.subscriber_bytes_max();
        let Some(client) = self.clients.get(id) else { return false };
        let protocol = client.protocol;
        let message = message.in_dialect(protocol);
        let Some(subscriptions) = client.ties.as_mut().and_then(|ties| ties.subscriptions.as_mut()) else {
            return false;
        };
        if let Some(held) = subscriptions.held_messages() {
            held.extend_from_slice(message);
            if held.len() > bytes_max {
                self.expel(env, id, Counter::ClientsClosedSubscriber);
            }
            return true;
        }
        self.push_published(env, id, Message::new(message, Some(message)));
        true
    }

    /// Records that stores have acknowledged a client's subscription to a shared channel or pattern (one for which weir
    /// has one subscription for all its clients). Returns [`Delivered::Acknowledged`], with the reply to the client's
    /// command, if this was the last acknowledgement that the command waited for, and [`Delivered::Noted`] if not;
    /// [`Delivered::Nobody`] if the client no longer has the subscription.
    pub fn handle_joined(&mut self, env: &Env, name: &SharedName, id: ClientId) -> Delivered {
        if !self.listeners.acknowledge(name, id) {
            return Delivered::Nobody;
        }
        if let Some(subscriptions) = self.subscriptions(id) {
            subscriptions.hear_joined();
        }
        self.end_subscription_command(env, id)
    }

    /// Handles that a client's subscription to a shared channel or pattern (one for which weir has one subscription for
    /// all its clients) was refused with `error`: the client's whole command fails with the first such error. Returns
    /// [`Delivered::Noted`] while other parts of the command are unacknowledged; then [`Delivered::Acknowledged`], with
    /// the error as the reply and the requests that undo the rest of the command. [`Delivered::Nobody`] if the client
    /// no longer has the subscription.
    pub fn handle_refused(&mut self, env: &Env, name: &SharedName, id: ClientId, error: &[u8]) -> Delivered {
        if !self.listeners.drop_refused(name, id) {
            return Delivered::Nobody;
        }
        self.refuse_shared(env, id, error)
    }

    /// Ends the subscriptions of this core's clients to a channel or pattern, because its home core (the one
    /// that subscribes for all clients) has lost its connection to a store. Returns these clients: those with
    /// an acknowledged subscription miss messages; the commands of the others are to be refused with
    /// [`Self::refuse_shared`].
    pub fn handle_name_lost(&mut self, name: &SharedName) -> Vec<Listener> {
        self.listeners.drop_lost(name)
    }

    /// Refuses with `error` the command by which a client subscribes to a shared channel or pattern (one for which weir
    /// has one subscription for all its clients). The result is as that of [`Self::handle_refused`];
    /// [`Delivered::Nobody`] if the client has no subscriptions any more.
    pub fn refuse_shared(&mut self, env: &Env, id: ClientId, error: &[u8]) -> Delivered {
        if let Some(subscriptions) = self.subscriptions(id) {
            subscriptions.hear_refused(error);
        }
        self.end_subscription_command(env, id)
    }

    fn subscriptions(&mut self, id: ClientId) -> Option<&mut Subscriptions> {
        self.clients.get(id)?.ties.as_mut()?.subscriptions.as_deref_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Random;

    const CHANNELS: Subscription = Subscription::Channels;

    fn client(index: u32) -> ClientId {
        ClientId { index, generation: 1 }
    }

    /// Compares the listeners of a name with a plain list after each of many random steps.
    #[test]
    fn listeners_are_those_who_joined_and_have_not_left() {
        let mut random = Random::new(3);
        let mut listeners = Listeners::default();
        let mut model: Vec<Listener> = Vec::new();
        let mut generation = 0;
        for _ in 0..20_000 {
            let id = client(random.below(20) as u32);
            let known = model.iter().position(|listener| listener.client == id);
            let name = SharedName { kind: CHANNELS, name: Bytes::from_static(b"x"), generation };
            match (random.below(8), known) {
                (0..3, None) => {
                    listeners.join(CHANNELS, b"x", (id, TenantId(0)));
                    model.push(Listener { client: id, is_acknowledged: false });
                }
                (0..3, Some(place)) => {
                    listeners.leave(CHANNELS, b"x", id);
                    model.swap_remove(place);
                }
                (3, Some(place)) => {
                    assert!(listeners.acknowledge(&name, id));
                    model[place].is_acknowledged = true;
                }
                (4, Some(place)) if !model[place].is_acknowledged => {
                    assert!(listeners.drop_refused(&name, id));
                    model.swap_remove(place);
                }
                (5, None) => assert!(!listeners.acknowledge(&name, id) && !listeners.drop_refused(&name, id)),
                (6, _) if random.below(50) == 0 => {
                    assert_eq!(listeners.drop_lost(&name), model);
                    model.clear();
                }
                _ => {}
            }
            for told in listeners.take_output() {
                if let ToHome::Join { name, .. } = told {
                    generation = name.generation;
                }
            }
            let name = SharedName { kind: CHANNELS, name: Bytes::from_static(b"x"), generation };
            let lent = listeners.lend(&name);
            assert_eq!(lent, model);
            listeners.give_back(&name, lent);
            assert_eq!(listeners.len(), model.len());
        }
    }

    #[test]
    fn a_message_is_an_array_in_one_dialect_and_a_push_in_the_other() {
        let mut message = SharedMessage::new(Bytes::from_static(b"*3\r\n"));
        assert_eq!(&message.in_dialect(Protocol::Resp3)[..], b">3\r\n");
        assert_eq!(&message.in_dialect(Protocol::Resp2)[..], b"*3\r\n");
        assert_eq!(message.len(), 4);
    }
}
