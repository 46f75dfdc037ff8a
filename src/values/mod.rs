//! Plain values that every room may name: time, ids, limits. No behaviour beyond arithmetic.

pub mod effects;
pub mod ids;
pub mod limits;
pub mod tier;
pub mod time;
pub mod units;
pub mod usage;

pub use effects::{Action, Owner};
pub use ids::{BackendId, ClientId, ConnectionId, ShardId, TenantId};
pub use tier::Tier;
pub use time::Timestamp;
pub use usage::Usage;
