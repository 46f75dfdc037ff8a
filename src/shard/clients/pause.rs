//! The data of a `CLIENT PAUSE`: whose requests wait, which of them, and until when.

use crate::protocol::Arguments;
use crate::protocol::command::{Class, Command, Effect};
use crate::shard::script_board::{ScriptBoard, declares_no_writes};
use crate::values::Timestamp;

/// Commands that are not writes and are held back with writes all the same, as in Redis: a primary passes
/// them on to its replicas (`PFCOUNT` when it stores the count beside the key).
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

/// A `CLIENT PAUSE` in force: an order that requests of clients wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The tenant whose clients wait; None for all clients.
    pub tenant: Option<String>,
    /// The time at which the pause ends by itself.
    pub until: Timestamp,
    /// Requests that the `CLIENT PAUSE` holds back: only writes, or all.
    pub extent: Paused,
    /// The number (`CLIENT ID`) of the client that ordered the pause, which waits as others do but may end it.
    pub asker: u64,
}

impl Pause {
    /// Extends the pause by a later one of the same clients. The client that ordered the later one may end it.
    pub fn extend(&mut self, later: &Self) {
        self.until = self.until.max(later.until);
        self.extent = self.extent.max(later.extent);
        self.asker = later.asker;
    }

    /// Returns which requests of a client with this number (`CLIENT ID`) the pause holds back. For the client
    /// that ordered a pause of everything, `CLIENT` and `QUIT` are excepted.
    pub fn extent_for(&self, number: u64) -> Paused {
        let may_end_it = self.asker == number && self.extent == Paused::Everything;
        if may_end_it { Paused::AllButClient } else { self.extent }
    }
}

/// Which requests of a client a `CLIENT PAUSE` holds back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Paused {
    #[default]
    /// No request of the client is held back.
    Nothing,
    /// Requests that may write are held back.
    Writes,
    /// All requests are paused except `CLIENT` and `QUIT`: the client that has ordered a pause of everything waits
    /// too, but can end the pause.
    AllButClient,
    /// All requests of the client are held back.
    Everything,
}
