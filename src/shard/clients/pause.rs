//! The data of a `CLIENT PAUSE`: whose requests wait, which of them, and until when.

use crate::protocol::command::{Command, Effect};
use crate::values::Timestamp;

/// Commands that are not writes and are held back with writes all the same, as in Redis: a primary passes
/// them on to its replicas (`PFCOUNT` when it stores the count beside the key).
const PASSED_ON: [&str; 3] = ["pfcount", "publish", "spublish"];

/// True if `CLIENT PAUSE ... WRITE` holds a command back. A script counts as writing, because weir does not
/// read it.
pub fn is_held_as_write(command: &Command) -> bool {
    command.effect == Effect::Write || PASSED_ON.contains(&command.name)
}

/// A `CLIENT PAUSE` in force: an order that requests of clients wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The tenant whose clients wait; None for all clients.
    pub tenant: Option<String>,
    /// The time at which the pause ends.
    pub until: Timestamp,
    /// Requests that CLIENT PAUSE delays: only writes, or all.
    pub extent: Paused,
    /// The number (`CLIENT ID`) of the client that ordered the pause, whose own requests do not wait.
    pub asker: u64,
}

/// Which requests of a client a `CLIENT PAUSE` holds back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Paused {
    #[default]
    /// No requests are paused.
    Nothing,
    /// Requests that may write are paused.
    Writes,
    /// All requests are paused.
    Everything,
}
