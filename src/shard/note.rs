//! Notes: what the core that sends a request to its backend tells the core that has the client, besides the
//! reply.

use crate::values::Timestamp;

/// A message about one client connection to the core that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A request is about to be answered without its backend, which may still carry it out.
    Unsettled,
    /// A request that was answered without its backend is over at the backend, too: it cannot take effect
    /// after later requests any more.
    Settled,
    /// Requests of the connection fill a queue before a backend so far that no more of the connection should
    /// be taken on.
    Long,
    /// A queue that was reported with [`Note::Long`] has little of the connection left: its requests may be
    /// taken on again.
    Eased,
    /// A request that asked for this note (`Touches::reported`) was written to its connection to the store at
    /// this time: no request sent later overtakes it on that connection. The note never leaves its core.
    Sent(Timestamp),
    /// A node of the cluster that was asked as a primary is none any more.
    NotPrimary,
}
