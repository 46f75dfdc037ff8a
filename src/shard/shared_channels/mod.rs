//! Shared channels: the channels and patterns whose home is this core, with one subscription at each store
//! however many clients of this process are subscribed (`pubsub = "shared"` of a tenant).
//!
//! ```text
//!   cores with subscribers -- joins, leaves --> channel -- SUBSCRIBE --> store (by one link)
//!   cores with subscribers <-- messages, once per core -- channel <-- messages, acknowledgements -- store
//! ```
//!
//! Each join sends a `SUBSCRIBE` of its own, also if the channel is subscribed to: the acknowledgement marks
//! the place in the order of messages from which the client gets them, and shows that the connection is
//! alive. All requests about a channel go over one connection, so none overtakes another, and the queue of
//! acknowledgements that a store owes shows which request an acknowledgement is for. A store that refuses to end a
//! subscription, since it is busy with a script, is asked once more later.
//!
//! | what | file |
//! |---|---|
//! | random interleavings against a simple model | `tests.rs` |

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use slab::Slab;

use super::shared_channel::{FromHome, OwnNumbers, SHARED_KINDS, SharedName, ToHome, word_of};
use crate::protocol::command::Subscription;
use crate::protocol::encode;
use crate::values::limits::{SHARED_OWED_MAX, TENANT_PART};
use crate::values::{BackendId, ClientId, ShardId, TenantId};

/// Maximum number of shared channels, and of shared patterns (those to which weir subscribes once for all its
/// clients), that one core may have subscriptions for as their home core, in this order. A client's subscription
/// to a further one is refused.
pub type HomeLimits = [usize; SHARED_KINDS];

/// The id in requests about a channel or pattern that weir no longer has, whose end a store has refused before. Ids of
/// channels begin with 1.
const NO_CHANNEL: u64 = 0;

/// A channel or pattern to which weir subscribes once for all its clients. It has subscribers, or its stores
/// have not acknowledged the end of the subscription yet.
#[derive(Debug)]
struct Channel {
    /// Number by which the channel differs from earlier ones of the same name, whose requests stores may still
    /// acknowledge.
    id: u64,
    /// Tenant of the client that subscribed first; the channel counts towards this tenant's limit.
    tenant: TenantId,
    /// The stores at which the channel is subscribed to.
    stores: Vec<BackendId>,
    /// The cores that have subscribers to the channel, each with its subscribed clients.
    cores: Vec<Subscribers>,
    /// True once a store has acknowledged the subscription to the channel, so that it counts this process
    /// as a subscriber.
    is_subscribed: bool,
    /// The number of requests to subscribe or unsubscribe the channel that stores have not acknowledged.
    unanswered: usize,
    /// True while the channel's numbers of subscribers have changed and the cores have not been sent them
    /// yet.
    is_changed: bool,
}

/// The clients of one core that are subscribed to a channel.
#[derive(Debug)]
struct Subscribers {
    shard: ShardId,
    generation: u32,
    /// The subscribed clients, each with true once all stores have acknowledged its subscription.
    clients: HashMap<ClientId, bool>,
    /// The number of clients of the core whose subscription to the channel all stores have acknowledged.
    acknowledged: u32,
}

/// A request about subscriptions that a store has not acknowledged. Stores answer in order, so the oldest one is
/// acknowledged next.
#[derive(Debug)]
struct Owed {
    kind: Subscription,
    name: Bytes,
    /// The id of the channel that the request is about.
    channel: u64,
    /// True if the request begins a subscription, false if it ends one.
    begins: bool,
    /// The index in `joins` of the client's subscription that waits for the acknowledgement; None if the
    /// request ends a subscription.
    join: Option<usize>,
}

/// A client's subscription to a shared channel or pattern (to which weir subscribes once for all its clients) that
/// some stores have not acknowledged.
#[derive(Debug)]
struct Join {
    shard: ShardId,
    name: SharedName,
    client: ClientId,
    /// The number of stores that have not acknowledged the client's subscription yet.
    left: usize,
    /// The first error with which a store replied to the client's subscription, which the client gets; None
    /// if there is none.
    error: Option<Bytes>,
    /// True once the connection to a store of the channel is lost; the client's core has been sent a
    /// message about that.
    is_lost: bool,
}

/// Meaning of a message that a store has sent over a feed (the core's connection for channels with one
/// subscription for all clients).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The message was published on a channel; it has been queued for the cores with subscribers.
    Message,
    /// The message is the acknowledgement of a request about subscriptions, or an error in reply to it.
    Answer,
    /// The message is of any other kind, so that the connection must be closed.
    Violation,
}

/// Reason why weir refuses a client's subscription to a channel that would have one subscription for all
/// clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinRefusal {
    /// The core has as many shared channels (or patterns, if the name is one) as it may, or the tenant has as many as
    /// a tenant may: four fifths of the core's limit.
    Channels,
    /// A store of the channel owes too many acknowledgements of subscriptions, or too many bytes wait to be
    /// sent to it.
    Owed,
    /// No store is known at which to subscribe to the channel (its slot in the cluster has no owner, for
    /// instance).
    NoStore,
}

/// The channels and patterns of which this core is the home, with one subscription at each store for all
/// clients of the process, and the requests and messages about them that wait to be sent.
#[derive(Debug)]
pub struct SharedChannels {
    limits: HomeLimits,
    names: [HashMap<Bytes, Channel>; SHARED_KINDS],
    /// The numbers of shared channels and of shared patterns that count towards each tenant's limit, in
    /// this order.
    held: HashMap<TenantId, [usize; SHARED_KINDS]>,
    /// The requests about subscriptions that each store has not acknowledged, the oldest first.
    owed: HashMap<BackendId, VecDeque<Owed>>,
    /// The channels and patterns whose end each store has refused, so that it goes on sending their messages, which
    /// nobody gets. The store is asked once more about the oldest when it acknowledges another request or sends a
    /// message of a channel or pattern without subscribers.
    stale: HashMap<BackendId, VecDeque<(Subscription, Bytes)>>,
    joins: Slab<Join>,
    /// The id of the channel or pattern to which this core last began a shared subscription; the next one gets the next
    /// number.
    last_id: u64,
    requests: VecDeque<(BackendId, Vec<u8>)>,
    told: VecDeque<(ShardId, FromHome)>,
    /// The channels and patterns whose numbers of subscribers have changed; the cores are still to be sent
    /// them.
    changed: Vec<(Subscription, Bytes)>,
}

impl SharedChannels {
    /// Creates the state of a core without any channel that has one subscription for all clients.
    pub fn new(limits: HomeLimits) -> Self {
        Self {
            limits,
            names: Default::default(),
            held: HashMap::new(),
            owed: HashMap::new(),
            stale: HashMap::new(),
            joins: Slab::new(),
            last_id: 0,
            requests: VecDeque::new(),
            told: VecDeque::new(),
            changed: Vec::new(),
        }
    }

    /// Returns the numbers of shared channels and of shared patterns (those to which weir subscribes once for all its
    /// clients), in this order, whose home is this core. Those whose subscription, or its end, stores have not
    /// acknowledged yet count as well.
    pub fn counts(&self) -> [usize; SHARED_KINDS] {
        self.names.each_ref().map(HashMap::len)
    }

    /// True if requests about shared channels to stores, or messages about them to cores, wait to be sent.
    pub fn has_output(&self) -> bool {
        !self.requests.is_empty() || !self.told.is_empty() || !self.changed.is_empty()
    }

    /// True if a store has not acknowledged all requests about subscriptions that were sent, or are to be sent, to it.
    pub fn is_owed(&self, store: BackendId) -> bool {
        self.owed.get(&store).is_some_and(|owed| !owed.is_empty())
    }

    /// Subscribes a client of core `from` to a channel or pattern. `stores` are the stores to subscribe at if the
    /// channel or pattern is new on this core, and `tenant` is the client's tenant. After an error nothing has changed;
    /// the caller answers the client with [`Self::refuse`].
    pub fn join(
        &mut self,
        from: ShardId,
        (name, client, tenant): (&SharedName, ClientId, TenantId),
        stores: &[BackendId],
    ) -> Result<(), JoinRefusal> {
        let index = name.kind as usize;
        let known = self.names[index].get(&name.name);
        let stores = known.map_or(stores, |channel| &channel.stores);
        if stores.is_empty() {
            return Err(JoinRefusal::NoStore);
        }
        let owed = |store| self.owed.get(store).map_or(0, VecDeque::len);
        if stores.iter().any(|store| owed(store) >= SHARED_OWED_MAX) {
            return Err(JoinRefusal::Owed);
        }
        let limit = self.limits[index];
        let held = self.held.get(&tenant).map_or(0, |held| held[index]);
        let tenant_max = (limit * TENANT_PART.0 / TENANT_PART.1).max(1);
        if known.is_none() && (self.names[index].len() >= limit || held >= tenant_max) {
            return Err(JoinRefusal::Channels);
        }
        let stores = stores.to_vec();
        let channel = match self.names[index].entry(name.name.clone()) {
            Entry::Occupied(place) => place.into_mut(),
            Entry::Vacant(place) => {
                self.last_id += 1;
                self.held.entry(tenant).or_default()[index] += 1;
                place.insert(Channel {
                    id: self.last_id,
                    tenant,
                    stores: stores.clone(),
                    cores: Vec::new(),
                    is_subscribed: false,
                    unanswered: 0,
                    is_changed: false,
                })
            }
        };
        channel.subscribers_of(from, name.generation).clients.insert(client, false);
        let id = channel.id;
        let left = stores.len();
        let join = Join { shard: from, name: name.clone(), client, left, error: None, is_lost: false };
        let join = self.joins.insert(join);
        for store in stores {
            self.request(store, (name.kind, &name.name, id), true, Some(join));
        }
        Ok(())
    }

    /// Queues the message for core `to` that its client's subscription is refused with `error`.
    pub fn refuse(&mut self, to: ShardId, name: SharedName, client: ClientId, error: Bytes) {
        self.told.push_back((to, FromHome::Refused { name, client, error }));
    }

    /// Ends the subscription of a client of core `from` to a channel. If it was the last one, the subscription
    /// at the stores ends too. Does nothing if the client has no subscription to the channel.
    pub fn leave(&mut self, from: ShardId, name: &SharedName, client: ClientId) {
        let Some(channel) = self.names[name.kind as usize].get_mut(&name.name) else { return };
        let Some(subscribers) = channel.find(from, name.generation) else { return };
        subscribers.remove(client);
        self.end_if_unused(name.kind, &name.name);
    }

    /// Removes all subscribers of core `from` to a channel or pattern, because that core has dropped all of
    /// them itself.
    pub fn forget(&mut self, from: ShardId, name: &SharedName) {
        let Some(channel) = self.names[name.kind as usize].get_mut(&name.name) else { return };
        let Some(subscribers) = channel.find(from, name.generation) else { return };
        subscribers.clients.clear();
        subscribers.acknowledged = 0;
        self.end_if_unused(name.kind, &name.name);
    }

    /// Handles a message of core `from`, whose clients subscribe to channels, as the home core of a channel: the
    /// join or leave of one client, or the end of all its subscriptions. `stores` are the stores to subscribe at
    /// if the channel or pattern is new on this core. The error is the reason why a join is refused; the caller
    /// answers the client with [`Self::refuse`].
    pub fn handle(
        &mut self,
        from: ShardId,
        message: &ToHome,
        stores: &[BackendId],
    ) -> Result<(), JoinRefusal> {
        match message {
            ToHome::Join { name, client, tenant } => self.join(from, (name, *client, *tenant), stores)?,
            ToHome::Leave { name, client } => self.leave(from, name, *client),
            ToHome::Forget { name } => self.forget(from, name),
        }
        Ok(())
    }

    /// Handles a message that a store has sent over the core's connection to it for shared channels. Queues
    /// published messages for the cores with subscribers. Returns the meaning of the message.
    pub fn hear(&mut self, store: BackendId, message: Bytes) -> Heard {
        if message.starts_with(b"-") {
            let Some(owed) = self.owed.get_mut(&store).and_then(VecDeque::pop_front) else {
                return Heard::Violation;
            };
            self.handle_answer(&owed, Some(message));
            return if owed.begins { Heard::Answer } else { self.keep_stale(store, owed) };
        }
        let name = word_of(&message, 1).unwrap_or_default();
        let kind = match word_of(&message, 0) {
            Some(b"message") => Subscription::Channels,
            Some(b"pmessage") => Subscription::Patterns,
            word => {
                let is_next = |owed: &Owed| word == Some(owed.kind.word(owed.begins)) && owed.name == name;
                let owed = self.owed.entry(store).or_default();
                let next = if owed.front().is_some_and(is_next) { owed.pop_front() } else { None };
                let Some(owed) = next else { return Heard::Violation };
                self.handle_answer(&owed, None);
                self.end_stale(store);
                return Heard::Answer;
            }
        };
        if let Some((name, channel)) = self.names[kind as usize].get_key_value(name) {
            for core in channel.cores.iter().filter(|core| core.acknowledged > 0) {
                let name = SharedName { kind, name: name.clone(), generation: core.generation };
                self.told.push_back((core.shard, FromHome::Message { name, message: message.clone() }));
            }
        } else {
            self.end_stale(store);
        }
        Heard::Message
    }

    /// Keeps a channel or pattern whose end a store has refused, so that the store is asked once more later. `owed` is
    /// the record of the request. Returns the meaning of the refusal: the connection must be closed if there are more
    /// such channels (or patterns) than the limit permits with subscribers.
    fn keep_stale(&mut self, store: BackendId, owed: Owed) -> Heard {
        let most = self.limits[owed.kind as usize];
        let stale = self.stale.entry(store).or_default();
        stale.push_back((owed.kind, owed.name));
        if stale.len() > most { Heard::Violation } else { Heard::Answer }
    }

    /// Asks a store once more to end a subscription whose end it has refused, unless clients have subscribed to the
    /// channel or pattern since.
    fn end_stale(&mut self, store: BackendId) {
        let Some(stale) = self.stale.get_mut(&store) else { return };
        while let Some((kind, name)) = stale.pop_front() {
            if !self.names[kind as usize].contains_key(&name) {
                return self.request(store, (kind, &name, NO_CHANNEL), false, None);
            }
        }
        self.stale.remove(&store);
    }

    /// Handles the loss of the connection to a store: the subscriptions to all channels and patterns that were
    /// subscribed to there end, also at other stores. The cores with subscribers are told: they close clients whose
    /// subscription was acknowledged, which would miss messages, and answer the others with `error`. Requests that
    /// were still to be sent to the store are dropped.
    pub fn handle_lost(&mut self, store: BackendId, error: &Bytes) {
        self.requests.retain(|(to, _)| *to != store);
        self.stale.remove(&store);
        for owed in self.owed.remove(&store).unwrap_or_default() {
            if let Some(index) = owed.join {
                let join = &mut self.joins[index];
                join.left -= 1;
                join.is_lost = true;
                if join.left == 0 {
                    self.joins.remove(index);
                }
            }
        }
        for kind in [Subscription::Channels, Subscription::Patterns] {
            let is_here = |_: &Bytes, channel: &mut Channel| channel.stores.contains(&store);
            let lost: Vec<(Bytes, Channel)> = self.names[kind as usize].extract_if(is_here).collect();
            for (name, channel) in lost {
                self.release(channel.tenant, kind);
                for core in &channel.cores {
                    let name = SharedName { kind, name: name.clone(), generation: core.generation };
                    self.told.push_back((core.shard, FromHome::Lost { name, error: error.clone() }));
                }
                for other in channel.stores.iter().filter(|other| **other != store) {
                    self.request(*other, (kind, &name, channel.id), false, None);
                }
                self.changed.push((kind, name));
            }
        }
    }

    /// Changes the tenants of channels to the ids that `renamed` returns, because new quotas give tenants
    /// other ids.
    pub fn handle_tenants(&mut self, renamed: impl Fn(TenantId) -> TenantId) {
        self.held.clear();
        for (index, names) in self.names.iter_mut().enumerate() {
            for channel in names.values_mut() {
                channel.tenant = renamed(channel.tenant);
                self.held.entry(channel.tenant).or_default()[index] += 1;
            }
        }
    }

    /// Takes the next request about shared channels to be sent to a store; None if there is none.
    pub fn poll_request(&mut self) -> Option<(BackendId, Vec<u8>)> {
        self.requests.pop_front()
    }

    /// Takes the next message about shared channels to be sent to a core; None if there is none.
    pub fn poll_told(&mut self) -> Option<(ShardId, FromHome)> {
        self.told.pop_front()
    }

    /// Takes the next channel or pattern whose numbers of subscribers have changed, as a message for all
    /// cores; None if there is none.
    pub fn poll_changed(&mut self) -> Option<FromHome> {
        let (kind, name) = self.changed.pop()?;
        let channel = self.names[kind as usize].get_mut(&name);
        let own = channel.map(|channel| {
            channel.is_changed = false;
            let subscribers = channel.cores.iter().map(|core| core.acknowledged).sum();
            OwnNumbers { links: u32::from(channel.is_subscribed), subscribers }
        });
        // While no store has confirmed the channel, its clients do not count; they do once a store has.
        let own = own.filter(|own| own.links > 0).unwrap_or_default();
        Some(FromHome::Numbers { kind, name, own })
    }

    /// Queues a request to a store that begins, or ends, the subscription to one channel or pattern.
    /// `channel` is weir's id of the channel (`NO_CHANNEL` if nobody is subscribed any more), and `join` the
    /// index of the client's subscription that waits for the store's acknowledgement, if one does.
    fn request(
        &mut self,
        store: BackendId,
        (kind, name, channel): (Subscription, &Bytes, u64),
        begins: bool,
        join: Option<usize>,
    ) {
        let mut frame = Vec::new();
        encode::request(&mut frame, [kind.word(begins), name].into_iter());
        self.requests.push_back((store, frame));
        let owed = Owed { kind, name: name.clone(), channel, begins, join };
        self.owed.entry(store).or_default().push_back(owed);
        if let Some(channel) = self.names[kind as usize].get_mut(name).filter(|known| known.id == channel) {
            channel.unanswered += 1;
        }
    }

    /// Handles a store's reply to a request about subscriptions: its acknowledgement, or an `error`. `owed`
    /// is the record of the request.
    fn handle_answer(&mut self, owed: &Owed, error: Option<Bytes>) {
        let is_done = error.is_none();
        let known = self.names[owed.kind as usize].get_mut(&owed.name);
        if let Some(channel) = known.filter(|channel| channel.id == owed.channel) {
            channel.unanswered -= 1;
            if owed.begins && is_done {
                channel.is_subscribed = true;
            } else if channel.unanswered == 0 && channel.cores.is_empty() {
                let tenant = channel.tenant;
                self.names[owed.kind as usize].remove(&owed.name);
                self.release(tenant, owed.kind);
                self.changed.push((owed.kind, owed.name.clone()));
            }
        }
        let Some(index) = owed.join else { return };
        let join = &mut self.joins[index];
        join.left -= 1;
        if let Some(error) = error {
            join.error.get_or_insert(error);
        }
        if join.left == 0 {
            let join = self.joins.remove(index);
            self.end_join(join);
        }
    }

    /// Completes a client's subscription that all stores have acknowledged, or ends it if one of them replied
    /// with an error, and queues the result for the client's core.
    fn end_join(&mut self, join: Join) {
        if join.is_lost {
            return;
        }
        let Join { shard, name, client, error, .. } = join;
        let channel = self.names[name.kind as usize].get_mut(&name.name);
        let Some(channel) = channel else { return };
        let Some(subscribers) = channel.find(shard, name.generation) else { return };
        let Some(is_acknowledged) = subscribers.clients.get_mut(&client) else { return };
        let (kind, text) = (name.kind, name.name.clone());
        if let Some(error) = error {
            subscribers.remove(client);
            self.told.push_back((shard, FromHome::Refused { name, client, error }));
        } else {
            *is_acknowledged = true;
            subscribers.acknowledged += 1;
            self.told.push_back((shard, FromHome::Joined { name, client }));
        }
        self.end_if_unused(kind, &text);
    }

    /// Ends the subscription to a channel or pattern at its stores if no core has subscribers. Records that
    /// its numbers of subscribers have changed.
    fn end_if_unused(&mut self, kind: Subscription, name: &Bytes) {
        let Some(channel) = self.names[kind as usize].get_mut(name) else { return };
        if !std::mem::replace(&mut channel.is_changed, true) {
            self.changed.push((kind, name.clone()));
        }
        let had_subscribers = !channel.cores.is_empty();
        channel.cores.retain(|core| !core.clients.is_empty());
        if had_subscribers && channel.cores.is_empty() {
            let (id, stores) = (channel.id, channel.stores.clone());
            for store in stores {
                self.request(store, (kind, name, id), false, None);
            }
        }
    }

    /// Counts one channel or pattern (`kind`) less towards a tenant's limit of shared ones.
    fn release(&mut self, tenant: TenantId, kind: Subscription) {
        if let Some(held) = self.held.get_mut(&tenant) {
            held[kind as usize] = held[kind as usize].saturating_sub(1);
            if *held == [0; SHARED_KINDS] {
                self.held.remove(&tenant);
            }
        }
    }
}

impl Channel {
    fn find(&mut self, shard: ShardId, generation: u32) -> Option<&mut Subscribers> {
        self.cores.iter_mut().find(|core| core.shard == shard && core.generation == generation)
    }

    /// Returns the record of a core's subscribers; creates an empty one if the core is new, or if the
    /// record is of an earlier generation (the core has dropped all its subscribers since).
    fn subscribers_of(&mut self, shard: ShardId, generation: u32) -> &mut Subscribers {
        let index = self.cores.iter().position(|core| core.shard == shard).unwrap_or_else(|| {
            self.cores.push(Subscribers::new(shard, generation));
            self.cores.len() - 1
        });
        let subscribers = &mut self.cores[index];
        if subscribers.generation != generation {
            *subscribers = Subscribers::new(shard, generation);
        }
        subscribers
    }
}

impl Subscribers {
    fn new(shard: ShardId, generation: u32) -> Self {
        Self { shard, generation, clients: HashMap::new(), acknowledged: 0 }
    }

    fn remove(&mut self, client: ClientId) {
        if self.clients.remove(&client) == Some(true) {
            self.acknowledged -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
