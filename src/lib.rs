//! weir: traffic management between Redis-protocol clients and a shared key-value store. See ARCHITECTURE.md.

pub mod config;
pub mod control;
pub mod policy;
pub mod protocol;
pub mod routing;
#[cfg(feature = "runtime")]
pub mod runtime;
pub mod shard;
pub mod store;
pub mod values;
