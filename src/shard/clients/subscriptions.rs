//! Subscriptions of one client: the channels and patterns that it is subscribed to, and the links over which
//! their messages come. A client has at most one such link (a feed) per store.
//!
//! ```text
//!   SUBSCRIBE a b ── a ──> feed of store 0 ──┐
//!                 └─ b ──> feed of store 1 ──┴── all have acknowledged ──> the reply, written here
//! ```
//!
//! Weir writes acknowledgements itself, because each store counts only its own channels of the client. A
//! store answers the requests on a feed in order, so a queue of those that it has not answered tells which of
//! them an acknowledgement is for.
//!
//! Messages of names that are shared with other clients come over no link of the client: see `listeners.rs`.

use std::collections::{HashMap, HashSet, VecDeque};

use super::ClientStage;
use super::filters::Filter;
use crate::protocol::command::Subscription;
use crate::protocol::{Protocol, encode};
use crate::routing::slot_of;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::request::{PrivateId, ReplyTo};
use crate::shard::shared_channel::word_of;
use crate::shard::subscription_board::Opening;
use crate::values::{BackendId, ClientId};

/// Maximum number of channels and patterns that one client may be subscribed to, and of names in one command; a
/// command beyond it is refused as a whole.
pub const CHANNELS_MAX: usize = 16_384;
/// Maximum number of bytes (1 MiB) of the names of all channels and patterns of one client together; a command
/// beyond it is refused as a whole.
pub const CHANNEL_BYTES_MAX: usize = 1 << 20;
/// Bytes of memory, besides the name, that a client's subscription takes in the lists of its core and of the home core
/// (the one that subscribes for all clients), if weir has one subscription for all its clients.
const SHARED_SUBSCRIPTION_BYTES: usize = 96;

/// The stores that send the messages of a channel or pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// All messages of the channel or pattern come from this store.
    Store(BackendId),
    /// Each store has messages of its own: a pattern matches channels of all of them, and each publishes the
    /// events of its own keys.
    AllStores,
    /// One core of this process (the home core of the channel or pattern) has the subscription, for all clients of the
    /// process together.
    Shared,
    /// Weir itself sends the messages of the channel or pattern: no store is sent the subscription.
    Weir,
}

/// The channels and patterns that a client is subscribed to, the links that their messages come over, and the
/// command about them that stores have not acknowledged.
#[derive(Debug, Default)]
pub struct Subscriptions {
    feeds: Vec<Feed>,
    /// Channels, patterns and sharded channels by name, in this order, each with the stores that its messages
    /// come from.
    names: [HashMap<Box<[u8]>, Held>; 3],
    /// The sum of the lengths of the names of all the client's channels and patterns, in bytes.
    name_bytes: usize,
    /// The number of names for which weir has one subscription on behalf of all its clients ([`Origin::Shared`]).
    shared: usize,
    /// The client's (un)subscribing command that not all stores have acknowledged, and which is therefore not
    /// answered; None if there is none.
    pending: Option<Pending>,
}

/// A channel or pattern that a client is to be subscribed to.
#[derive(Debug)]
pub struct Named<'a> {
    /// The channel or pattern.
    pub name: &'a [u8],
    /// The stores that the messages of the channel or pattern come from.
    pub origin: Origin,
    /// The share that a pattern takes of the limit on patterns that stores compare with messages. None for a channel,
    /// and for a pattern for which the client has no subscription of its own at stores.
    pub filter: Option<Filter>,
}

/// A channel or pattern that a client is subscribed to.
#[derive(Debug)]
struct Held {
    /// The stores that the messages of the channel or pattern come from.
    origin: Origin,
    /// The share that a pattern takes of the limit on patterns that stores compare with messages, held for as long as
    /// the subscription. None for a channel, and for a pattern for which the client has no subscription of its own at
    /// stores.
    _filter: Option<Filter>,
}

/// A connection of the client's own to a store (private link), over which messages for the client come.
#[derive(Debug)]
struct Feed {
    link: PrivateId,
    backend: BackendId,
    /// True if this link (unshared connection to a store) has those of the client's subscriptions that are made at
    /// every store ([`Origin::AllStores`]).
    has_all: bool,
    /// True once the store has refused to end subscriptions that the client does not have: it may go on sending their
    /// messages over this link (unshared connection to a store), which are dropped.
    has_stale: bool,
    /// The requests sent over this link (unshared connection to a store) that the store has not acknowledged,
    /// in order.
    owed: VecDeque<Owed>,
}

/// A request to one store whose acknowledgements have not all come.
#[derive(Debug)]
struct Owed {
    /// The word that each acknowledgement of the request begins with, which is the request's own command, such
    /// as `psubscribe`.
    word: &'static [u8],
    /// The number of acknowledgements that the store still has to send, one for each name in the request.
    left: usize,
    purpose: Purpose,
    /// True if the request begins subscriptions, false if it ends some.
    begins: bool,
    /// The names in the request that matter if the store refuses it: sharded channels to subscribe to, because another
    /// node may have their slot, and channels and patterns whose subscription the client ends, because it then stays.
    /// Empty for other requests.
    names: Vec<Box<[u8]>>,
    /// The number of cluster nodes that were asked for the channels of this request before.
    tries: u8,
}

/// The reason for sending a store a request about subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The client has sent a command about subscriptions, which waits for the acknowledgements.
    Command,
    /// The subscriptions have to be made at another store without the client noticing: a cluster has moved
    /// sharded channels to another node, or has a new node for channels and patterns of all stores.
    Follows,
    /// The subscriptions at this store have to be ended again without the client noticing: their command was refused,
    /// or the store no longer counts among all stores.
    Undoes,
}

/// A (P|S)(UN)SUBSCRIBE command that not all stores, and home cores (which subscribe on behalf of all clients), have
/// acknowledged.
#[derive(Debug)]
struct Pending {
    sequence: u32,
    kind: Subscription,
    /// The number of requests to stores, and of requests to home cores (which subscribe on behalf of all
    /// clients), that are not acknowledged yet.
    requests: usize,
    acknowledgements: Vec<u8>,
    /// The channels or patterns that the command has added; empty if it ends subscriptions.
    begun: Vec<(Box<[u8]>, Origin)>,
    /// The channels or patterns that the command has removed, and whose end no store has refused; empty if it begins
    /// subscriptions.
    ended: Vec<(Box<[u8]>, Held)>,
    /// The removed channels or patterns whose end a store has refused, so that the client has them again.
    kept: Vec<Box<[u8]>>,
    /// The stores that have refused to end subscriptions of the command.
    refusing: Vec<BackendId>,
    /// The messages that have come since the command was sent, which the client gets after the reply; None if
    /// the command ends subscriptions.
    messages: Option<Vec<u8>>,
    /// The first error of a store or a home core (the one that subscribes for all clients), which becomes the
    /// reply; None if there is none.
    refusal: Option<Vec<u8>>,
    /// The command's entry among the subscriptions that stores have not acknowledged; while it exists, messages
    /// (`PUBLISH`) of the tenant's clients to the command's channels wait. None if the command ends subscriptions, or
    /// is about sharded channels.
    _opening: Option<Opening>,
}

/// A request about subscriptions that is to be sent to one store.
#[derive(Debug)]
pub struct FeedRequest {
    /// The link (unshared connection to a store) that the request is sent over.
    pub link: PrivateId,
    /// The bytes of the request, in the Redis protocol.
    pub frame: Vec<u8>,
}

/// A change of a client's subscriptions that has not been sent to stores yet.
#[derive(Debug)]
pub struct Change {
    /// The requests to stores; empty if no store's subscriptions change.
    pub requests: Vec<FeedRequest>,
    /// The reply to the client's command, if no store refuses the change: an acknowledgement for each channel
    /// or pattern.
    pub acknowledgements: Vec<u8>,
    /// The channels or patterns that their home cores, which subscribe on behalf of all clients, are to be
    /// told of: the client joins or leaves them.
    pub shared: Vec<Box<[u8]>>,
    kind: Subscription,
    begins: bool,
    begun: Vec<(Box<[u8]>, Origin)>,
    ended: Vec<(Box<[u8]>, Held)>,
}

/// Consequence for a client of the loss of one of its links (unshared connections to stores).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedLoss {
    /// Loss without a consequence: no messages for the client came over the link (unshared connection to a
    /// store).
    Unused,
    /// The client's command about subscriptions no longer waits for this store: it is refused with an error if
    /// it subscribes; if it ends subscriptions, they ended with the link. The caller ends the command if no
    /// other store has yet to acknowledge it.
    Answered,
    /// The client may miss messages of channels that it is subscribed to, so the caller closes it.
    Missed,
}

/// Sharded channels that a node no longer has, so that they have to be subscribed to at another node.
#[derive(Debug)]
pub struct Moved {
    /// The node that last refused the channels or ended the subscriptions.
    pub from: BackendId,
    /// The names of the sharded channels.
    pub names: Vec<Box<[u8]>>,
    /// The number of nodes that have refused the channels so far; 0 if a node has ended the subscriptions by
    /// itself.
    pub tries: u8,
    /// The node's error reply; empty if the node ended the subscriptions by itself.
    pub error: Vec<u8>,
    purpose: Purpose,
}

/// The consequence, for a client, of a store's message over a link (unshared connection to a store) with the
/// client's subscriptions.
#[derive(Debug)]
pub enum Delivered {
    /// The message is a published one, and is on its way to the client or kept until the client's command is
    /// acknowledged.
    Passed,
    /// An acknowledgement that needs nothing to be done: the client's command waits for further
    /// acknowledgements, or no command waits for this one.
    Noted,
    /// The last acknowledgement of a client's command, or a refusal in its place.
    Acknowledged {
        /// Destination of the reply to the command.
        reply_to: ReplyTo,
        /// The reply to the client's command about subscriptions: all acknowledgements or, if it is refused, the first
        /// error of a store or home core (the one that subscribes for all clients); then the messages that came since
        /// the command was sent.
        reply: Vec<u8>,
        /// Requests that undo the command at stores which have carried it out, because another store or a home core
        /// has refused it; else empty.
        undo: Vec<FeedRequest>,
        /// Subscriptions of the command that weir has on behalf of all its clients, and that this client has to leave
        /// because the command was refused.
        leave: Vec<(Subscription, Box<[u8]>)>,
        /// True if the client has no subscriptions any more.
        is_over: bool,
    },
    /// Channels have to be subscribed to at another node, since the node that sent the message no longer has
    /// their slot.
    Moved(Moved),
    /// The store has refused to continue the subscription, so that the client may miss messages.
    Revoked,
    /// The client has disconnected, or no longer has the subscription that the message is about.
    Nobody,
}

impl Subscriptions {
    /// Returns the numbers of channels, of patterns and of sharded channels, in this order, that the client is
    /// subscribed to.
    pub fn counts(&self) -> [usize; 3] {
        self.names.each_ref().map(HashMap::len)
    }

    /// Returns the links (unshared connections to stores) over which messages come for the client.
    pub fn links(&self) -> impl Iterator<Item = PrivateId> {
        self.feeds.iter().map(|feed| feed.link)
    }

    /// Returns the stores to which the client has links (unshared connections to stores) for messages.
    pub fn stores(&self) -> impl Iterator<Item = BackendId> {
        self.feeds.iter().map(|feed| feed.backend)
    }

    /// Adds a link (unshared connection) to a store over which nothing is subscribed to yet.
    pub fn add_feed(&mut self, link: PrivateId, backend: BackendId) {
        self.feeds.push(Feed { link, backend, has_all: false, has_stale: false, owed: VecDeque::new() });
    }

    /// True if the client is subscribed to this channel or pattern.
    pub fn has(&self, kind: Subscription, name: &[u8]) -> bool {
        self.names[kind as usize].contains_key(name)
    }

    /// True if the client has no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.names.iter().all(HashMap::is_empty)
    }

    /// True if some of the client's channels or patterns (events of keys, for instance) are subscribed to at all
    /// stores.
    pub fn hears_all_stores(&self) -> bool {
        self.names.iter().flat_map(HashMap::values).any(|held| held.origin == Origin::AllStores)
    }

    /// True if the client has no subscriptions left, over any link, and the store has acknowledged all
    /// requests over this link (unshared connection to a store).
    pub fn is_clean(&self, link: PrivateId) -> bool {
        self.is_empty() && self.feeds.iter().any(|feed| feed.link == link && feed.owed.is_empty())
    }

    /// True if a store has not acknowledged all requests over a link (unshared connection to a store).
    pub fn is_owed(&self, link: PrivateId) -> bool {
        self.feeds.iter().any(|feed| feed.link == link && !feed.owed.is_empty())
    }

    fn len(&self) -> usize {
        self.names.iter().map(HashMap::len).sum()
    }

    /// True if the limits on channels and bytes permit that the client is also subscribed to these channels or
    /// patterns. Names that it is subscribed to already do not count; a new name counts as often as it occurs
    /// in `names`.
    pub fn has_room(&self, kind: Subscription, names: &[&[u8]]) -> bool {
        let new = names.iter().filter(|name| !self.names[kind as usize].contains_key(**name));
        let (count, bytes) = new.fold((self.len(), self.name_bytes), |(count, bytes), name| {
            (count + 1, bytes.saturating_add(name.len()))
        });
        count <= CHANNELS_MAX && bytes <= CHANNEL_BYTES_MAX
    }

    /// Returns the bytes of memory that the subscriptions take.
    pub fn memory_bytes(&self) -> usize {
        let pending = self.pending.as_ref().map_or(0, |pending| {
            let messages = pending.messages.as_ref().map_or(0, Vec::capacity);
            let begun = pending.begun.iter().map(|(name, _)| size_of::<(Box<[u8]>, Origin)>() + name.len());
            let ended = pending.ended.iter().map(|(name, _)| size_of::<(Box<[u8]>, Held)>() + name.len());
            let kept = pending.kept.iter().map(|name| size_of::<Box<[u8]>>() + name.len());
            let names = begun.chain(ended).chain(kept);
            messages + pending.acknowledgements.capacity() + names.sum::<usize>()
        });
        let owed = self.feeds.iter().flat_map(|feed| &feed.owed).map(|owed| {
            let names = owed.names.iter().map(|name| size_of::<Box<[u8]>>() + name.len());
            size_of::<Owed>() + names.sum::<usize>()
        });
        let names =
            self.len() * (size_of::<(Box<[u8]>, Held)>() + 8) + self.shared * SHARED_SUBSCRIPTION_BYTES;
        self.name_bytes + names + self.feeds.len() * size_of::<Feed>() + pending + owed.sum::<usize>()
    }

    /// Returns the number of the client's subscriptions that an acknowledgement of this kind states: of all
    /// channels and patterns together, or of all sharded channels.
    fn told_count(&self, kind: Subscription) -> usize {
        let [channels, patterns, sharded] = self.counts();
        match kind {
            Subscription::Channels | Subscription::Patterns => channels + patterns,
            Subscription::Sharded => sharded,
        }
    }

    /// Adds channels or patterns, each with the stores that its messages come from, to which there must be
    /// links (unshared connections) already. `stores` are all stores, which matter for names whose messages
    /// come from each store; `protocol` is the RESP version of the reply. The caller still has to send the
    /// change.
    pub fn begin(
        &mut self,
        kind: Subscription,
        named: Vec<Named<'_>>,
        stores: &[BackendId],
        protocol: Protocol,
    ) -> Change {
        let (mut begun, mut acknowledgements) = (Vec::new(), Vec::new());
        for Named { name, origin, filter } in named {
            if !self.has(kind, name) {
                self.add(kind, name.into(), Held { origin, _filter: filter });
                begun.push((Box::from(name), origin));
            }
            let count = self.told_count(kind);
            acknowledge(&mut acknowledgements, protocol, kind.word(true), Some(name), count);
        }
        if begun.iter().any(|(_, origin)| *origin == Origin::AllStores) {
            self.feeds.iter_mut().for_each(|feed| feed.has_all |= stores.contains(&feed.backend));
        }
        let requests = self.requests((kind, true), &begun, Purpose::Command);
        let shared = only_shared(&begun);
        Change { requests, acknowledgements, shared, kind, begins: true, begun, ended: Vec::new() }
    }

    /// Removes these channels or patterns; if none are named, all of the kind (channels, patterns or sharded
    /// channels). The caller still has to send the change.
    pub fn end(&mut self, kind: Subscription, named: &[&[u8]], protocol: Protocol) -> Change {
        let (mut ended, mut acknowledgements) = (Vec::<(Box<[u8]>, Held)>::new(), Vec::new());
        let all: Vec<Box<[u8]>> = match named {
            [] => self.names[kind as usize].keys().cloned().collect(),
            _ => Vec::new(),
        };
        let named = named.iter().copied().chain(all.iter().map(|name| &**name));
        for name in named {
            if let Some(held) = self.remove(kind, name) {
                ended.push((Box::from(name), held));
            }
            let count = self.told_count(kind);
            acknowledge(&mut acknowledgements, protocol, kind.word(false), Some(name), count);
        }
        if acknowledgements.is_empty() {
            let count = self.told_count(kind);
            acknowledge(&mut acknowledgements, protocol, kind.word(false), None, count);
        }
        let origins: Vec<_> = ended.iter().map(|(name, held)| (name.clone(), held.origin)).collect();
        let requests = self.requests((kind, false), &origins, Purpose::Command);
        let shared = only_shared(&origins);
        Change { requests, acknowledgements, shared, kind, begins: false, begun: Vec::new(), ended }
    }

    /// Adds a channel or pattern that the client is not subscribed to.
    fn add(&mut self, kind: Subscription, name: Box<[u8]>, held: Held) {
        self.name_bytes += name.len();
        self.shared += usize::from(held.origin == Origin::Shared);
        self.names[kind as usize].insert(name, held);
    }

    /// Removes a channel or pattern; None if the client is not subscribed to it.
    fn remove(&mut self, kind: Subscription, name: &[u8]) -> Option<Held> {
        let held = self.names[kind as usize].remove(name)?;
        self.name_bytes -= name.len();
        self.shared -= usize::from(held.origin == Origin::Shared);
        Some(held)
    }

    /// Begins to wait for the acknowledgements of a change, and returns the requests to send. `opening`, which is kept
    /// until the acknowledgements have come, makes later messages (`PUBLISH`) of the tenant to the change's channels
    /// wait. `sequence` is the number of the client's command.
    pub fn expect(&mut self, change: Change, sequence: u32, opening: Option<Opening>) -> Vec<FeedRequest> {
        debug_assert!(self.pending.is_none(), "a client's commands about subscriptions are alone");
        let Change { requests, acknowledgements, shared, kind, begins, begun, ended } = change;
        let messages = begins.then(Vec::new);
        // The end of a shared subscription is not waited for: no message passes to the client after it.
        let count = requests.len() + if begins { shared.len() } else { 0 };
        self.pending = Some(Pending {
            sequence,
            kind,
            requests: count,
            acknowledgements,
            begun,
            ended,
            kept: Vec::new(),
            refusing: Vec::new(),
            messages,
            refusal: None,
            _opening: opening,
        });
        requests
    }

    /// True if stores have not acknowledged the client's last command about subscriptions.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Writes the requests that subscribe to these channels or patterns, or that unsubscribe if `begins` is
    /// false, at each store that their messages come from. `kind` says whether the names are channels,
    /// patterns or sharded channels, and `purpose` why the requests are sent.
    fn requests(
        &mut self,
        (kind, begins): (Subscription, bool),
        names: &[(Box<[u8]>, Origin)],
        purpose: Purpose,
    ) -> Vec<FeedRequest> {
        let mut requests = Vec::new();
        for feed in &mut self.feeds {
            let is_here = |origin: Origin| match origin {
                Origin::Store(backend) => backend == feed.backend,
                Origin::AllStores => feed.has_all,
                Origin::Shared | Origin::Weir => false,
            };
            let here = names.iter().filter(|(_, origin)| is_here(*origin)).map(|(name, _)| &**name);
            let mut here: Vec<&[u8]> = here.collect();
            // A node of a cluster refuses a request about sharded channels of several slots.
            let slot = |name: &[u8]| if kind == Subscription::Sharded { slot_of(name) } else { 0 };
            here.sort_by_key(|name| slot(name));
            for together in here.chunk_by(|one, next| slot(one) == slot(next)) {
                requests.push(feed.request((kind, begins), together, (purpose, 0)));
            }
        }
        requests
    }

    /// Makes the request that subscribes to sharded channels at another node, to which there is a link
    /// (unshared connection to a store). `None` if the client is no longer subscribed to any of them.
    pub fn follow(&mut self, moved: Moved, to: BackendId) -> Option<FeedRequest> {
        let held = &mut self.names[Subscription::Sharded as usize];
        let mut names = moved.names;
        names.retain(|name| held.get_mut(name).map(|held| held.origin = Origin::Store(to)).is_some());
        let feed = self.feeds.iter_mut().find(|feed| feed.backend == to)?;
        let here: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
        let subscribes = (Subscription::Sharded, true);
        (!here.is_empty()).then(|| feed.request(subscribes, &here, (moved.purpose, moved.tries)))
    }

    /// Handles the refusal, with `error`, of a request to the store `backend` that was to end subscriptions (`owed`).
    /// If the client's command waits for the request, the client has them still, and the error becomes the command's
    /// reply unless another error came first. False if none waits; the messages of these subscriptions are dropped
    /// then, since the client does not have them.
    fn keep(&mut self, owed: &Owed, backend: BackendId, error: &[u8]) -> bool {
        let Some(pending) = self.pending.as_mut().filter(|_| owed.purpose == Purpose::Command) else {
            if let Some(feed) = self.feeds.iter_mut().find(|feed| feed.backend == backend) {
                feed.has_stale = true;
            }
            return false;
        };
        pending.refusal.get_or_insert_with(|| error.to_vec());
        pending.requests -= 1;
        // A node that has lost the slot of sharded channels has ended the subscriptions to them by itself.
        if error.starts_with(b"-MOVED ") {
            return true;
        }
        let names: HashSet<&[u8]> = owed.names.iter().map(|name| &**name).collect();
        let is_named = |(name, _): &mut (Box<[u8]>, Held)| names.contains(&**name);
        let stays: Vec<_> = pending.ended.extract_if(.., is_named).collect();
        pending.kept.extend(stays.iter().map(|(name, _)| name.clone()));
        pending.refusing.push(backend);
        let kind = pending.kind;
        stays.into_iter().for_each(|(name, held)| self.add(kind, name, held));
        true
    }

    /// Writes the requests that subscribe once more, at the stores that have ended them, to those channels and patterns
    /// of all stores whose end another store has refused (`kept`; `refusing` are all stores that have refused).
    fn begin_anew(
        &mut self,
        kind: Subscription,
        kept: &[Box<[u8]>],
        refusing: &[BackendId],
    ) -> Vec<FeedRequest> {
        let names = &self.names[kind as usize];
        let is_of_all = |name: &&[u8]| names.get(*name).is_some_and(|held| held.origin == Origin::AllStores);
        let all: Vec<&[u8]> = kept.iter().map(|name| &**name).filter(is_of_all).collect();
        let has_ended = |feed: &&mut Feed| feed.has_all && !refusing.contains(&feed.backend);
        let feeds = self.feeds.iter_mut().filter(|_| !all.is_empty()).filter(has_ended);
        feeds.map(|feed| feed.request((kind, true), &all, (Purpose::Follows, 0))).collect()
    }

    /// Handles a store's final refusal of a request: the client's command about subscriptions waits for one request
    /// less, and the error (`moved.error`) becomes its reply unless another error came first. False if the request was
    /// not sent for a command that waits (it subscribes anew to channels that have moved, for instance); nothing
    /// changes then.
    pub fn refuse(&mut self, moved: Moved) -> bool {
        if moved.purpose == Purpose::Command
            && let Some(pending) = &mut self.pending
        {
            pending.refusal.get_or_insert(moved.error);
            pending.requests -= 1;
            return true;
        }
        false
    }

    /// Adapts the subscriptions that are made at all stores to the stores that there are now (`stores`). Returns the
    /// requests, which count as sent: the caller sends them. They subscribe at stores that are new in `stores`, and
    /// unsubscribe at stores that are no longer in it. Links to new stores must have been added with
    /// [`Self::add_feed`].
    pub fn spread(&mut self, stores: &[BackendId]) -> Vec<FeedRequest> {
        let mut requests = Vec::new();
        for feed in &mut self.feeds {
            let begins = stores.contains(&feed.backend);
            if begins == feed.has_all {
                continue;
            }
            feed.has_all = begins;
            for kind in [Subscription::Channels, Subscription::Patterns] {
                let names = self.names[kind as usize].iter();
                let all = names.filter(|(_, held)| held.origin == Origin::AllStores).map(|(name, _)| &**name);
                let all: Vec<&[u8]> = all.collect();
                if !all.is_empty() {
                    let purpose = if begins { Purpose::Follows } else { Purpose::Undoes };
                    requests.push(feed.request((kind, begins), &all, (purpose, 0)));
                }
            }
        }
        requests
    }

    /// Handles the loss of a link (unshared connection to a store). If the client may miss messages, changes
    /// nothing: the caller closes the client. Otherwise removes the link; a command that subscribes at its
    /// store is refused with `error`, and subscriptions that the store was to end have ended with the link.
    pub fn drop_feed(&mut self, link: PrivateId, error: &[u8]) -> FeedLoss {
        let Some(index) = self.feeds.iter().position(|feed| feed.link == link) else {
            return FeedLoss::Unused;
        };
        let feed = &self.feeds[index];
        let is_used = |origin: &Origin| match origin {
            Origin::Store(backend) => *backend == feed.backend,
            Origin::AllStores => feed.has_all,
            Origin::Shared | Origin::Weir => false,
        };
        // The client does not know yet that it is subscribed to these.
        let begun: HashSet<&[u8]> =
            self.pending.iter().flat_map(|pending| &pending.begun).map(|(name, _)| &**name).collect();
        let begins = self.pending.as_ref().map(|pending| pending.kind as usize);
        let is_heard = self.names.iter().enumerate().any(|(kind, names)| {
            let is_begun = |name: &[u8]| Some(kind) == begins && begun.contains(name);
            names.iter().any(|(name, held)| is_used(&held.origin) && !is_begun(name))
        });
        if is_heard || feed.owed.iter().any(|owed| owed.purpose == Purpose::Follows) {
            return FeedLoss::Missed;
        }
        let awaited = feed.owed.iter().filter(|owed| owed.purpose == Purpose::Command).count();
        let loss = match &mut self.pending {
            Some(pending) => {
                let is_begun_here = pending.begun.iter().any(|(_, origin)| is_used(origin));
                pending.requests -= awaited;
                if is_begun_here {
                    pending.refusal.get_or_insert_with(|| error.to_vec());
                }
                if is_begun_here || awaited > 0 { FeedLoss::Answered } else { FeedLoss::Unused }
            }
            None => FeedLoss::Unused,
        };
        self.feeds.swap_remove(index);
        loss
    }

    /// Takes a message that a store sent over a link (unshared connection to a store), and returns its
    /// meaning. A reply to a request about subscriptions is taken off those that the store owes.
    fn hear(&mut self, link: PrivateId, message: &[u8]) -> Heard {
        let Some(feed) = self.feeds.iter_mut().find(|feed| feed.link == link) else { return Heard::Nothing };
        let (backend, has_stale) = (feed.backend, feed.has_stale);
        if message.starts_with(b"-") {
            return feed.owed.pop_front().map_or(Heard::Unasked, |owed| Heard::Refused(owed, backend));
        }
        let word = word_of(message, 0);
        let ended = (word == Some(b"sunsubscribe")).then(|| word_of(message, 1).unwrap_or_default());
        let is_still_wanted = ended.is_some_and(|name| self.names[2].contains_key(name));
        if let Some(owed) = feed.owed.front_mut()
            && word == Some(owed.word)
            && !(is_still_wanted && owed.purpose == Purpose::Command)
        {
            owed.left -= 1;
            let is_whole = owed.left == 0;
            let is_awaited = owed.purpose == Purpose::Command;
            if is_whole {
                feed.owed.pop_front();
            }
            return if is_whole && is_awaited { Heard::Acknowledged } else { Heard::Nothing };
        }
        match ended {
            Some(name) if is_still_wanted => Heard::Ended(name.into(), backend),
            None if !has_stale || self.wants(message) => Heard::Message,
            _ => Heard::Nothing,
        }
    }

    /// False if a store's message was published, and the client is not subscribed to its channel or pattern.
    fn wants(&self, message: &[u8]) -> bool {
        let kind = match word_of(message, 0) {
            Some(b"message") => Subscription::Channels,
            Some(b"pmessage") => Subscription::Patterns,
            Some(b"smessage") => Subscription::Sharded,
            _ => return true,
        };
        word_of(message, 1).is_some_and(|name| self.has(kind, name))
    }

    /// True if weir has, for some of the client's channels or patterns, one subscription at the store on
    /// behalf of all its clients ([`Origin::Shared`]).
    pub fn has_shared(&self) -> bool {
        self.shared > 0
    }

    /// Returns the kind and name of each of the client's channels and patterns for which weir has one
    /// subscription at the store on behalf of all its clients ([`Origin::Shared`]).
    pub fn shared_names(&self) -> impl Iterator<Item = (Subscription, &[u8])> {
        let kinds = [Subscription::Channels, Subscription::Patterns].into_iter();
        kinds.zip(&self.names).flat_map(|(kind, names)| {
            let shared = names.iter().filter(|(_, held)| held.origin == Origin::Shared);
            shared.map(move |(name, _)| (kind, &**name))
        })
    }

    /// Returns the messages that are kept until the client's subscribing command (such as `SUBSCRIBE`) is acknowledged;
    /// None if no such command is in flight.
    pub fn held_messages(&mut self) -> Option<&mut Vec<u8>> {
        self.pending.as_mut()?.messages.as_mut()
    }

    /// Records that stores have acknowledged a shared subscription of the client's command, one that weir has
    /// on behalf of all its clients ([`Origin::Shared`]).
    pub fn hear_joined(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.requests = pending.requests.saturating_sub(1);
        }
    }

    /// Records that a shared subscription of the client's command, one that weir has on behalf of all its
    /// clients ([`Origin::Shared`]), was refused with `error`.
    pub fn hear_refused(&mut self, error: &[u8]) {
        if let Some(pending) = &mut self.pending {
            pending.requests = pending.requests.saturating_sub(1);
            pending.refusal.get_or_insert_with(|| error.to_vec());
        }
    }

    /// Ends the client's command about subscriptions if all stores and home cores (those that subscribe for all
    /// clients) have answered; None if not, or if there is no such command.
    fn complete(&mut self) -> Option<Completed> {
        let pending = self.pending.take_if(|pending| pending.requests == 0)?;
        let Some(mut reply) = pending.refusal else {
            let mut reply = pending.acknowledgements;
            reply.extend(pending.messages.unwrap_or_default());
            return Some(Completed {
                sequence: pending.sequence,
                reply,
                undo: Vec::new(),
                leave: Vec::new(),
            });
        };
        // The error replaces all acknowledgements, so nothing of the command may stay.
        for (name, _) in &pending.begun {
            self.remove(pending.kind, name);
        }
        reply.extend(pending.messages.unwrap_or_default());
        let mut undo = self.requests((pending.kind, false), &pending.begun, Purpose::Undoes);
        undo.extend(self.begin_anew(pending.kind, &pending.kept, &pending.refusing));
        let leave = only_shared(&pending.begun).into_iter().map(|name| (pending.kind, name)).collect();
        Some(Completed { sequence: pending.sequence, reply, undo, leave })
    }
}

/// The end of a command about subscriptions: its reply and, if it was refused, the requests that undo it and the shared
/// subscriptions to leave.
struct Completed {
    sequence: u32,
    reply: Vec<u8>,
    undo: Vec<FeedRequest>,
    leave: Vec<(Subscription, Box<[u8]>)>,
}

fn only_shared(names: &[(Box<[u8]>, Origin)]) -> Vec<Box<[u8]>> {
    let shared = names.iter().filter(|(_, origin)| *origin == Origin::Shared);
    shared.map(|(name, _)| name.clone()).collect()
}

impl Feed {
    fn request(
        &mut self,
        (kind, begins): (Subscription, bool),
        names: &[&[u8]],
        (purpose, tries): (Purpose, u8),
    ) -> FeedRequest {
        let (word, mut frame) = (kind.word(begins), Vec::new());
        encode::array(&mut frame, names.len() + 1);
        encode::bulk(&mut frame, word);
        names.iter().for_each(|name| encode::bulk(&mut frame, name));
        let is_named = if begins { kind == Subscription::Sharded } else { purpose == Purpose::Command };
        let named = if is_named { names.iter().map(|name| Box::from(*name)).collect() } else { Vec::new() };
        self.owed.push_back(Owed { word, left: names.len(), purpose, begins, names: named, tries });
        FeedRequest { link: self.link, frame }
    }
}

/// Meaning of a store's message over a link (unshared connection to a store) with subscriptions.
enum Heard {
    /// A published message for the client, to be passed on.
    Message,
    /// The last acknowledgement of a request that the client's command waits for.
    Acknowledged,
    /// An error in place of the acknowledgements of a request, with the store that sent it.
    Refused(Owed, BackendId),
    /// An error that is not the reply to a request: the store has refused to continue the subscriptions.
    Unasked,
    /// The end of a subscription to a sharded channel that the client has not ended, with the store that
    /// ended it.
    Ended(Box<[u8]>, BackendId),
    /// An acknowledgement, or the end of a subscription, that needs nothing to be done.
    Nothing,
}

impl ClientStage {
    /// Takes a store's message over a client's link (unshared connection to a store) with subscriptions: an
    /// acknowledgement or refusal, or a message that was published, which is put into the client's output, or kept
    /// until the client's `SUBSCRIBE` is acknowledged. Closes a client for which too many bytes are kept or wait to be
    /// sent.
    pub fn deliver_message(
        &mut self,
        env: &mut Env,
        (id, link): (ClientId, PrivateId),
        message: &[u8],
    ) -> Delivered {
        let bytes_max = env.settings.subscriber_bytes_max();
        let Some(client) = self.clients.get(id) else { return Delivered::Nobody };
        let Some(subscriptions) = client.ties.as_mut().and_then(|ties| ties.subscriptions.as_mut()) else {
            return Delivered::Nobody;
        };
        match subscriptions.hear(link, message) {
            Heard::Message => {
                let waits = subscriptions.pending.as_mut().and_then(|pending| pending.messages.as_mut());
                if let Some(messages) = waits {
                    messages.extend_from_slice(message);
                    if messages.len() > bytes_max {
                        self.expel(env, id, Counter::ClientsClosedSubscriber);
                    }
                } else {
                    self.push_published(env, id, Message::Small(message));
                }
                Delivered::Passed
            }
            Heard::Acknowledged => {
                if let Some(pending) = &mut subscriptions.pending {
                    pending.requests -= 1;
                }
                self.end_subscription_command(env, id)
            }
            Heard::Refused(owed, from) if !owed.begins => {
                if subscriptions.keep(&owed, from, message) {
                    return self.end_subscription_command(env, id);
                }
                Delivered::Noted
            }
            Heard::Refused(owed, from) => {
                let Owed { purpose, names, tries, .. } = owed;
                let moved = Moved { from, names, tries: tries + 1, error: message.to_vec(), purpose };
                if !moved.names.is_empty() && message.starts_with(b"-MOVED ") {
                    return Delivered::Moved(moved);
                }
                if subscriptions.refuse(moved) {
                    return self.end_subscription_command(env, id);
                }
                if purpose == Purpose::Follows { Delivered::Revoked } else { Delivered::Noted }
            }
            Heard::Unasked => Delivered::Revoked,
            Heard::Ended(name, from) => {
                let (error, purpose) = (Vec::new(), Purpose::Follows);
                Delivered::Moved(Moved { from, names: vec![name], tries: 0, error, purpose })
            }
            Heard::Nothing => Delivered::Noted,
        }
    }

    /// Ends the command about subscriptions (such as `SUBSCRIBE`) that a client waits for, once all stores and home
    /// cores (those that subscribe for all clients) have replied; before, returns [`Delivered::Noted`]. Returns the
    /// reply for the client and, if the command is refused, what ends its other subscriptions: requests to stores, and
    /// the channels to leave at home cores. [`Delivered::Nobody`] if the client has no subscriptions.
    pub fn end_subscription_command(&mut self, env: &Env, id: ClientId) -> Delivered {
        let client = self.clients.get(id);
        let ties = client.and_then(|client| client.ties.as_mut());
        let Some(subscriptions) = ties.and_then(|ties| ties.subscriptions.as_mut()) else {
            return Delivered::Nobody;
        };
        let Some(completed) = subscriptions.complete() else { return Delivered::Noted };
        let Completed { sequence, reply, undo, leave } = completed;
        let reply_to = ReplyTo::new(env.settings.id, id, sequence);
        Delivered::Acknowledged { reply_to, reply, undo, leave, is_over: subscriptions.is_empty() }
    }

    /// Returns the clients that have subscriptions at all stores (events of keys, patterns), which have to
    /// follow when a cluster gets another primary.
    pub fn hearing_all_stores(&self) -> Vec<ClientId> {
        let hears = |id: &ClientId| {
            let ties = self.clients.peek(*id).and_then(|client| client.ties.as_ref());
            let subscriptions = ties.and_then(|ties| ties.subscriptions.as_ref());
            subscriptions.is_some_and(|subscriptions| subscriptions.hears_all_stores())
        };
        self.clients.ids().filter(hears).collect()
    }
}

/// Writes the acknowledgement that a client has subscribed to, or unsubscribed from, one channel or pattern;
/// with None as `name`, the acknowledgement of an unsubscribing command that had nothing to end. `word` is the
/// command's name, and `count` the number of subscriptions that the client has then.
fn acknowledge(out: &mut Vec<u8>, protocol: Protocol, word: &[u8], name: Option<&[u8]>, count: usize) {
    encode::push(out, protocol, 3);
    encode::bulk(out, word);
    match name {
        Some(name) => encode::bulk(out, name),
        None => encode::null(out, protocol),
    }
    encode::integer(out, count as i64);
}
