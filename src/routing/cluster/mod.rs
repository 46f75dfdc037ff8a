//! The topology of a Redis Cluster: what its nodes tell of it, and the map of slots that comes of that.
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
//! | what one node tells | `view.rs` |
//! | from views to the next map | `merge.rs` |
//! | slot to node; nodes, replicas, slots on the move | `map.rs` |
//! | when to ask, and whom | `refresh.rs` |
//! | which replicas may be about to take over | `heirs.rs` |
//! | `SCAN` over all nodes, while slots move | `walk.rs` |
//! | replies by which a node refuses: MOVED, ASK ... | `refusal.rs` |
//! | how far replicas are behind | `replicas.rs` |
//! | when another cluster is the cluster | `strangers.rs` |
//!
//! A node is its id; its addresses are aliases. What a node tells is bounded and checked, and what makes no sense is refused
//! as a whole.

pub mod heirs;
mod map;
mod merge;
mod refresh;
mod refusal;
mod replicas;
mod strangers;
mod view;
mod walk;

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
