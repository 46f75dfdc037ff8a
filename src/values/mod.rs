//! Plain values that every room may name: time, ids, limits. No behaviour beyond arithmetic.

pub mod ids;
pub mod limits;
pub mod time;

pub use ids::{BackendId, ClientId, ConnectionId, ShardId};
pub use time::Timestamp;
