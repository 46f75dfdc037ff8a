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
//! | replies by which a node refuses: MOVED, ASK ... | `refusal.rs` |
//!
//! A node is its id; its addresses are aliases. What a node tells is bounded and checked, and what makes no sense is refused
//! as a whole.

mod map;
mod merge;
mod refresh;
mod refusal;
mod view;

pub use map::{Map, Node, NodeKey, OpenSlot, Role};
pub use merge::{Applied, Cluster, Rejected};
pub use refresh::{Ask, Outcome, Reason, Refresh};
pub use refusal::{NodeRefusal, Target};
pub use view::{NodeId, Unusable, View};

#[cfg(test)]
mod tests;
