//! What is written down of a run: for each key, what was asked of it, when, and what came of it.

use weir::values::Timestamp;

/// What one command did to one key, as its connection saw it. A command that reads and writes is two of these.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub asked: Timestamp,
    /// `Timestamp::MAX` if it never was: then it may take effect at any time.
    pub answered: Timestamp,
    /// Which connection. A connection that was lost and opened again is another one.
    pub session: u32,
    /// Its place among the commands of that connection, which take effect in this order.
    pub number: u32,
    pub command: &'static str,
    pub act: Act,
    pub fate: Fate,
    pub way: Way,
}

/// What it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Read(Found),
    /// A read of what the same command replaced or removed: nobody can find that afterwards.
    Take(Found),
    Write {
        token: Token,
        /// When it expires, in milliseconds; 0 if never.
        lives_ms: u32,
    },
    Delete,
    /// What is there now gets a new expiry. What that was is not known if the reply never came.
    Expire {
        token: Option<Token>,
        lives_ms: u32,
    },
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Value(Token),
    Nil,
    /// Bytes that no write of this run consists of.
    Strange,
}

/// Tells values apart: no two writes have the same.
pub type Token = u64;

/// Whether it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Done,
    /// Its reply is not known, or says that it may have happened.
    Unknown,
    /// It was refused before it could take effect.
    Never,
}

/// How it reached the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through weir, which may answer a read without its store.
    Plain,
    /// Through weir, with something that only the store can do.
    Store,
    /// The same, but the command does not name the key: nobody promises its place among what else its connection sent
    /// in the same pipeline.
    Unnamed,
    /// Past weir.
    Around,
}

impl Operation {
    /// What it found, if it looked.
    pub const fn reads(&self) -> Option<Found> {
        match self.act {
            Act::Read(found) | Act::Take(found) => Some(found),
            _ => None,
        }
    }
}
