//! What the core that sends a request tells the one that has its client, besides the reply.

use crate::values::Timestamp;

/// About one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A request is about to be answered without its backend, which may carry it out yet.
    Unsettled,
    /// A request that was answered without its backend is over there, too: nothing can be overtaken by it any more.
    Settled,
    /// So much of the connection waits that no more of it should be taken on.
    Long,
    /// And now little does.
    Eased,
    /// A request that asked to be told of it (`Touches::reported`) is on its connection to the
    /// store since then: nothing that is sent from now on overtakes it there. Never leaves its core.
    Sent(Timestamp),
    /// A node that was asked for being a primary of the cluster is none any more.
    NotPrimary,
}
