//! Bytes to requests and replies, and back. Knows the grammar of RESP2 and RESP3 and the table of commands, and
//! nothing of connections, shards or policies.

pub mod arguments;
pub mod encode;

pub use arguments::{Argument, Arguments};
pub use encode::Protocol;
