//! The data of a `CLIENT PAUSE`.

use crate::protocol::command::{Command, Effect};
use crate::values::Timestamp;

/// Commands that change no key by their own account and are still held back with writes, as in Redis: a primary passes
/// them on to its replicas, `PFCOUNT` when it notes the count beside the key.
const PASSED_ON: [&str; 3] = ["pfcount", "publish", "spublish"];

/// True if `CLIENT PAUSE ... WRITE` holds a command back. A script counts as writing, because weir does not look into
/// it.
pub fn is_held_as_write(command: &Command) -> bool {
    command.effect == Effect::Write || PASSED_ON.contains(&command.name)
}

/// An order that clients wait (`CLIENT PAUSE`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The tenant whose clients wait; None for all clients.
    pub tenant: Option<String>,
    /// The time at which the pause ends.
    pub until: Timestamp,
    /// Requests that CLIENT PAUSE delays: only writes, or all.
    pub extent: Paused,
    /// The number of the client that ordered the pause, and that does not wait itself.
    pub asker: u64,
}

/// The requests of a client that a `CLIENT PAUSE` holds back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Paused {
    #[default]
    /// No requests.
    Nothing,
    /// Requests that may write.
    Writes,
    /// All requests.
    Everything,
}
