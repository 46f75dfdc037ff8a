//! Translates bytes to requests and replies, and back. It contains the grammar of RESP2, RESP3 and HTTP and
//! the table of commands, and nothing about connections, shards or policies.

pub mod arguments;
pub mod call;
pub mod command;
pub mod encode;
mod header;
pub mod http;
mod key_tracking;
pub mod monitor;
pub mod output;
pub mod reply;
pub mod request;
pub mod room;

pub use arguments::{Argument, Arguments};
pub use command::{Command, CommandId};
pub use encode::Protocol;
pub use key_tracking::{BadTrackingOption, TrackingOptions};
pub use output::{BufferPool, Output, Segment};
pub use reply::{ReplyScanner, Scanned};
pub use request::{ProtocolError, Request, RequestDecoder, RequestLimits};
pub use room::Room;
