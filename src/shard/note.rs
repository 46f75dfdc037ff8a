//! Notes: messages about a request from the core that sends it to its backend to the core that has its
//! client, besides the reply.

use super::outcome::Outcome;
use crate::values::Timestamp;

/// A message from the core that sends requests to a backend, about one client connection, or a request of it,
/// to the core that has the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A request is about to be answered without its backend, which may still carry it out.
    Unsettled,
    /// A request, or a part of one, that weir answered before its backend did cannot take effect after later requests
    /// of its client any more: the backend has replied, or the connection was lost, and later ones first ask the store
    /// to kill it.
    Settled {
        /// True if the backend has replied to the request, or never got it; false if its connection was lost, so that
        /// it may still take effect before later requests of its client.
        is_certain: bool,
    },
    /// A request, or one part of it, is about to be answered before its store replies. The store still works on it,
    /// and the note [`Note::LatePrice`] follows.
    PriceFollows,
    /// The store has replied to a request, or to one part of it, after [`Note::PriceFollows`], or never will: the
    /// measurements from which the rest of its price follows.
    LatePrice(Outcome),
    /// Requests of the connection fill a queue in front of a backend so far that no further requests of the
    /// connection should be started.
    Long,
    /// A queue that was reported with [`Note::Long`] has few requests of the connection left: further
    /// requests may be started again.
    Eased,
    /// A request that asked for this note (`Touches::reported`) was written to its connection to the store at
    /// this time, so no request sent later overtakes it on that connection. The note never leaves its core.
    Sent(Timestamp),
    /// A node of the cluster to which a request was sent as to a primary is no longer a primary.
    NotPrimary,
}
