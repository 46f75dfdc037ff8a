//! What deciding code asks of the world: sockets opened, closed, read from or not.

use super::{BackendId, ClientId, ConnectionId};

/// Whom a socket belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A client.
    Client(ClientId),
    /// A connection to a backend; the number tells its sockets apart.
    Link(ConnectionId, u32),
}

/// Why a connection is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The other side ended it, or was never there: it does nothing more of what it had not read.
    ByPeer,
    /// It failed on the way: the other side may not know yet.
    OnTheWay,
}

/// What is to be done in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a socket to a backend and say whether it is connected or lost.
    Connect {
        /// Whose socket it will be.
        owner: Owner,
        /// Where to.
        backend: BackendId,
    },
    /// Close a socket. Nothing more is to be told about it, except that a segment under way comes back.
    Close(Owner),
    /// The same, and what has not left this machine yet is dropped.
    Reset(Owner),
    /// Stop reading from a socket, because what it sends has no room.
    PauseReading(Owner),
    /// Read on.
    ResumeReading(Owner),
}
