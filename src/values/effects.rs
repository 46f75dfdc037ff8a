//! Actions that deciding code asks the runtime to carry out: sockets opened, closed, read from or not.

use super::{BackendId, ClientId, ConnectionId};

/// Owner of a socket: a client connection, or a connection to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The socket belongs to a client's connection.
    Client(ClientId),
    /// The socket belongs to a connection to a backend; the number distinguishes the connection's successive
    /// sockets.
    Link(ConnectionId, u32),
}

/// Cause of the loss of a connection, as far as the runtime can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The peer closed the connection or refused to connect: it will not carry out requests that it had not
    /// read before.
    ByPeer,
    /// The connection failed on the way: the peer may not know of the loss yet, and may still carry out
    /// requests that it received.
    OnTheWay,
}

/// Action on a socket that deciding code asks the runtime to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Opens a socket to a backend, and reports whether it is connected or lost.
    Connect {
        /// Owner of the new socket, under which events about it are reported.
        owner: Owner,
        /// The backend to connect to.
        backend: BackendId,
    },
    /// Closes a socket. No event is reported for the socket any more, except that output which was being sent
    /// is given back to the deciding code.
    Close(Owner),
    /// Closes a socket and drops the output that has not left this machine yet.
    Reset(Owner),
    /// Stops reading from a socket, because there is no room for its input.
    PauseReading(Owner),
    /// Resumes reading from a socket after a pause, because there is room for its input again.
    ResumeReading(Owner),
    /// Checks whether the peer's machine still acknowledges the bytes sent over a socket. If it has not for a while,
    /// although the kernel has sent them again and again, the connection is reported lost on the way.
    Examine(Owner),
}
