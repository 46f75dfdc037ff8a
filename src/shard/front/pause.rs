//! Orders to wait.

use crate::values::Timestamp;

/// Clients that wait by order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Whose clients; none means everybody's.
    pub tenant: Option<String>,
    /// For how long.
    pub until: Timestamp,
    /// What of them.
    pub extent: Paused,
    /// Who ordered it, and does not wait.
    pub asker: u64,
}

/// What of a client's waits by order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Paused {
    #[default]
    /// Nothing.
    Nothing,
    /// Requests that may write.
    Writes,
    /// All of them.
    Everything,
}
