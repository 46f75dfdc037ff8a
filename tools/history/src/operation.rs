//! The record of a run: for each key, the operations on it, when they were asked and answered, and how they
//! ended.

use weir::values::Timestamp;

/// The effect of one command on one key, as its connection saw it. A command that reads and writes makes two
/// operations.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub asked: Timestamp,
    /// The time of the reply; `Timestamp::MAX` if none came, so that the operation may take effect at any
    /// time.
    pub answered: Timestamp,
    /// The number of the connection. A connection that was lost and opened again has another number.
    pub session: u32,
    /// The place among the commands of the connection, which take effect in this order.
    pub number: u32,
    pub command: &'static str,
    pub act: Act,
    pub fate: Fate,
    pub way: Way,
}

/// The effect of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Read(Found),
    /// A read of the value that the same command replaced or removed, so that no later read may find it.
    Take(Found),
    Write {
        token: Token,
        /// The life of the value in milliseconds; 0 without expiry.
        lives_ms: u32,
    },
    Delete,
    /// Gives the present value a new expiry. `token` is `None` if the reply that tells the value never came.
    Expire {
        token: Option<Token>,
        lives_ms: u32,
    },
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Value(Token),
    Nil,
    /// The read found bytes that are no value of this run.
    Strange,
}

/// The number of a write, which is in its value: no two writes have the same.
pub type Token = u64;

/// Whether a recorded operation of a client took effect at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Done,
    /// The reply is missing, or says that the operation may have happened.
    Unknown,
    /// The operation was refused before it could take effect.
    Never,
}

/// The way that an operation took to the store, which decides what is promised about its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through weir, which may answer a read without the store.
    Plain,
    /// Through weir, with a command that only the store can carry out.
    Store,
    /// Through weir, with a command that does not name the key: its order relative to other commands of the
    /// same pipeline is not promised.
    Unnamed,
    /// Directly to the store, past weir.
    Around,
}

impl Operation {
    /// The result of the read, if the operation is one.
    pub const fn reads(&self) -> Option<Found> {
        match self.act {
            Act::Read(found) | Act::Take(found) => Some(found),
            _ => None,
        }
    }
}
