//! The data of a `CLIENT PAUSE`.

use crate::protocol::Arguments;
use crate::protocol::command::{Class, Command, Effect};
use crate::shard::script_board::{ScriptBoard, declares_no_writes};
use crate::values::Timestamp;

/// Commands that change no key by their own account and are still held back with writes, as in Redis: a primary passes
/// them on to its replicas, `PFCOUNT` when it notes the count beside the key.
const PASSED_ON: [&str; 3] = ["pfcount", "publish", "spublish"];

/// True if `CLIENT PAUSE ... WRITE` holds a request back. A script counts as writing unless it declares otherwise, and a
/// function (`FCALL`) always does, because only the store has its flags.
pub fn is_held_as_write(command: &Command, arguments: &Arguments<'_>, scripts: &ScriptBoard) -> bool {
    if command.class == Class::Script {
        let is_declared = match command.name {
            "eval" => declares_no_writes(arguments.at(1)),
            "evalsha" => scripts.has(arguments.at(1)),
            _ => false,
        };
        return command.effect == Effect::Write && !is_declared;
    }
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
