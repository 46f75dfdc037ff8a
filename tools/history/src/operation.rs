//! The record of a run: for each key, the operations on it, when each was asked and answered, and how it
//! ended.

use weir::values::Timestamp;

/// The effect of one command on one key, as its connection saw it. A command that reads and writes makes two
/// operations.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub asked: Timestamp,
    /// The time of the operation's reply; `Timestamp::MAX` if none came or its success is unknown, so that
    /// it may take effect at any time.
    pub answered: Timestamp,
    /// The number of the connection that sent the operation. A connection that was lost and opened again has
    /// another number.
    pub session: u32,
    /// The number of the operation's command among those of its connection, in the order in which they were sent.
    pub number: u32,
    pub command: &'static str,
    pub act: Act,
    pub fate: Fate,
    pub way: Way,
}

/// The effect of an operation on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Read(Found),
    /// A read of the value that the same command replaced or removed, so that no later read may find that
    /// value.
    Take(Found),
    Write {
        token: Token,
        /// The lifetime of the value in milliseconds; 0 if it does not expire.
        lives_ms: u32,
    },
    Delete,
    /// An operation that gives the present value a new lifetime of `lives_ms` milliseconds. `token` names
    /// the value; `None` if the reply that has it never came.
    Expire {
        token: Option<Token>,
        lives_ms: u32,
    },
}

/// The result of a read: the value that it found, or that there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Value(Token),
    Nil,
    /// The read found bytes that are no value of this run.
    Strange,
}

/// The number of a write, which is part of the value written: no two writes have the same number.
pub type Token = u64;

/// Whether a recorded operation of a client took effect at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Done,
    /// The reply is missing, or says that the operation may have taken effect.
    Unknown,
    /// The operation was refused before it could take effect.
    Never,
}

/// The way by which an operation reached the store, on which the promised order depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through weir, by a command that weir may answer without the store.
    Plain,
    /// Through weir, by a command that only the store can answer.
    Store,
    /// Through weir, by a script that does not declare the key: its order relative to other commands of the
    /// same pipeline is not promised.
    Unnamed,
    /// Directly to the store, bypassing weir.
    Around,
}

impl Operation {
    /// Returns what the operation read (with or without removing it); `None` if it is no read.
    pub const fn reads(&self) -> Option<Found> {
        match self.act {
            Act::Read(found) | Act::Take(found) => Some(found),
            _ => None,
        }
    }
}
