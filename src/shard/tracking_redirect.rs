//! Messages between cores about clients that take the invalidation messages of other clients (`CLIENT
//! TRACKING ON REDIRECT`): the core of a client that tracks keys asks the core of the client that the command
//! names, its target.
//!
//! ```text
//!   core of the tracking client ── Ask, AskNode, Leave, AnyKey ──> core of the target ── opens links ──> stores
//!                               <── Answer, AnswerNode, Gone ──
//!   core of the tracking client ── Search ──> core of a client that is only named
//!                               <── Found ──
//! ```
//!
//! Invalidation messages do not pass between cores: stores send them over links of the target. In front of a
//! cluster, the core of the tracking client adds messages of its own, that any key may have changed
//! (`AnyKey`), and asks for the numbers of the target's links to nodes that get keys later (`AskNode`).

use crate::routing::cluster::NodeKey;
use crate::shard::request::{PrivateId, ReplyTo};
use crate::values::{BackendId, ClientId, ShardId};

/// A client connection on any core, given by the core and by the client's id on that core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The core that has the client.
    pub shard: ShardId,
    /// The client, by its id on that core.
    pub client: ClientId,
}

impl Peer {
    /// Returns the client connection that a reply address leads to.
    pub fn of(to: ReplyTo) -> Self {
        Self { shard: to.shard, client: to.client_id() }
    }
}

/// The client that takes another client's invalidation messages, and the links (unshared connections to
/// stores) on which it takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The client that takes the invalidation messages.
    pub peer: Peer,
    /// For each store, the number (`CLIENT ID`) that it gave the target's link (unshared connection to a
    /// store), for `REDIRECT`.
    pub numbers: Box<[(BackendId, u64)]>,
}

impl Target {
    /// Returns the number (`CLIENT ID`) that a store gave the target's link; `None` if the target has no link
    /// (unshared connection) to that store.
    pub fn number_at(&self, store: BackendId) -> Option<u64> {
        self.numbers.iter().find(|(backend, _)| *backend == store).map(|(_, number)| *number)
    }
}

/// A question of a client that tracks keys: which number (`CLIENT ID`) has a node of a cluster given to the
/// connection of its target, the client that takes its invalidation messages? Asked for nodes that got keys
/// after the target was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeQuestion {
    /// The client that tracks keys.
    pub tracker: Peer,
    /// The link (unshared connection to a store) of that client to the node, on which all requests wait for
    /// the answer.
    pub link: PrivateId,
    /// The target: the client that takes the invalidation messages.
    pub target: Peer,
    /// The node of the cluster whose number for the target's connection is asked for.
    pub node: NodeKey,
}

/// A message from one core to another about the target of a client that tracks keys: the client that takes
/// its invalidation messages.
#[derive(Debug)]
pub enum RedirectMessage {
    /// To the target's core: a client has named the target in `CLIENT TRACKING` with `REDIRECT`.
    Ask {
        /// Destination of the reply: the client that tracks keys, and the number of its command.
        from: ReplyTo,
        /// The target's number, as its `CLIENT ID` returns it.
        number: u64,
        /// The name of the asking client's tenant, which has to be the target's too.
        tenant: Option<Box<str>>,
    },
    /// To the core of the client that tracks keys, in reply to an `Ask`: the target, or the error that
    /// becomes the reply to the client's command.
    Answer {
        /// Destination of the reply: the client that tracks keys, and the number of its command.
        to: ReplyTo,
        /// The client that is to take the invalidation messages, or, if it cannot, the encoded error reply.
        found: Result<Target, Box<[u8]>>,
    },
    /// To the core of a client that `CLIENT TRACKING OFF REDIRECT` of another client names: does it exist?
    Search {
        /// Destination of the reply: the client that sent the command, and the number of the command.
        from: ReplyTo,
        /// The number of the client that is looked for, as its `CLIENT ID` returns it.
        number: u64,
        /// The name of the asking client's tenant, which has to be that of the other client too.
        tenant: Option<Box<str>>,
    },
    /// To the core of the client that sent `CLIENT TRACKING OFF REDIRECT`, in reply to a `Search`.
    Found {
        /// Destination of the reply: the client that sent the command, and the number of the command.
        to: ReplyTo,
        /// True if the client that the command names exists and belongs to the same tenant.
        is_found: bool,
    },
    /// To the target's core: messages of a client that tracks keys will come from one more node of a cluster,
    /// so the number (`CLIENT ID`) of the target's link (unshared connection) to it is needed.
    AskNode(NodeQuestion),
    /// To the core of the client that tracks keys, in reply to an `AskNode`: the number (`CLIENT ID`) that
    /// the node gave the target's link (unshared connection to a store), or the reason in one word why there
    /// is none.
    AnswerNode(NodeQuestion, Result<u64, &'static str>),
    /// To the target's core: any key that a client has read may have changed, which the target is to be told.
    AnyKey {
        /// The target, by its id on its core.
        target: ClientId,
        /// The client that tracks keys.
        tracker: Peer,
    },
    /// To the target's core: a client no longer redirects its invalidation messages to the target.
    Leave {
        /// The target, by its id on its core.
        target: ClientId,
        /// The client that tracked keys.
        tracker: Peer,
    },
    /// To the core of a client that tracks keys: its target has disconnected, or belongs to another tenant
    /// now.
    Gone {
        /// The client that tracks keys, by its id on its core.
        tracker: ClientId,
        /// The client that took the invalidation messages and no longer does.
        target: Peer,
    },
}
