//! weir: traffic management between Redis-protocol clients and a shared key-value store. See ARCHITECTURE.md.

pub mod calibration;
pub mod client;
pub mod config;
pub mod control;
pub mod load;
pub mod policy;
pub mod protocol;
pub mod routing;
#[cfg(feature = "runtime")]
pub mod runtime;
pub mod shard;
pub mod simulation;
pub mod storage;
pub mod values;
