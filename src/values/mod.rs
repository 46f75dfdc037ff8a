//! Plain values that every room may name: time, ids, limits. No behaviour beyond arithmetic.

pub mod allowance;
pub mod effects;
pub mod ids;
pub mod limits;
pub mod request_units;
pub mod tier;
pub mod time;
pub mod units;
pub mod usage;

pub use allowance::{BucketId, Capacity, Demand, Grant};
pub use effects::{Action, Owner};
pub use ids::{BackendId, ClientId, ConnectionId, ShardId, TenantId};
pub use request_units::{MicroUnits, UNIT, Weights};
pub use tier::Tier;
pub use time::Timestamp;
pub use usage::Usage;
