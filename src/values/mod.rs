//! Plain values that all other modules may use: time, ids, limits, random numbers, spare buffers. They compute and
//! store, and have no effects.

pub mod address;
pub mod allowance;
pub mod effects;
pub mod escape;
pub mod glob;
pub mod id_map;
pub mod ids;
pub mod limits;
pub mod percent;
pub mod random;
pub mod request_units;
pub mod spares;
pub mod store_version;
pub mod tier;
pub mod time;
pub mod units;
pub mod usage;

pub use address::ServerAddress;
pub use allowance::{BucketId, Capacity, Demand, Grant, Part};
pub use effects::{Action, Loss, Owner};
pub use escape::escaped;
pub use id_map::{IdHasher, IdMap};
pub use ids::{BackendId, ClientId, ConnectionId, Database, ShardId, TenantId};
pub use percent::percent_decoded;
pub use random::Random;
pub use request_units::{MicroUnits, Price, UNIT, Weights, signed};
pub use spares::{Spares, shorten};
pub use store_version::StoreVersion;
pub use tier::Tier;
pub use time::Timestamp;
pub use usage::Usage;
