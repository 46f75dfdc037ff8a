//! The data of a `CLIENT PAUSE`.

use crate::values::Timestamp;

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
