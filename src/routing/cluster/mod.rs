//! Topology of a Redis Cluster: the views of its nodes, and the map of slots made of them.
//!
//! ```text
//!   CLUSTER SLOTS ─┐
//!   CLUSTER NODES ─┴─> View, one per node asked ──┐ up to three together
//!                                                 v
//!   MOVED ──────────────────────────────────> Cluster ──> Map, immutable, for every shard
//!     └────────────────> Refresh: when to ask again, and whom
//! ```
//!
//! | what | file |
//! |---|---|
//! | view of one node | `view.rs` |
//! | merge of views into the next map | `merge.rs` |
//! | map: owners of slots; nodes, replicas, slots on the move | `map.rs` |
//! | databases of a node | `databases.rs` |
//! | when to ask nodes, and which | `refresh.rs` |
//! | which replicas may be about to take over | `failover_probe.rs` |
//! | `SCAN` over all nodes, while slots move | `walk.rs` |
//! | refusals of nodes: MOVED, ASK ... | `refusal.rs` |
//! | replication lag | `replicas.rs` |
//! | when a cluster that was set up anew is adopted | `strangers.rs` |
//!
//! A node is its id; its addresses are aliases. What a node tells is bounded and checked, and what makes no
//! sense is refused as a whole.

mod databases;
pub mod failover_probe;
mod map;
mod merge;
mod refresh;
mod refusal;
mod replicas;
mod strangers;
mod view;
mod walk;

pub use databases::{Databases, NOT_IN_CLUSTER};
pub use map::{Map, Node, NodeKey, OpenSlot, Role};
pub use merge::{Applied, Cluster, Rejected};
pub use refresh::{Ask, Outcome, Reason, Refresh};
pub use refusal::{NodeRefusal, Target};
pub use replicas::{Answer, ReplicaState, Replicas, Replication};
pub use strangers::Strangers;
pub use view::{NodeId, Unusable, View};
pub use walk::{WalkPosition, WalkStep, Walks};

#[cfg(test)]
mod tests;
