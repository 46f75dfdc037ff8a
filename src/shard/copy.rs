//! Copy of a reply that the home core of a hot key lends to another core, which then answers from the copy
//! without sending requests to the home.

use bytes::Bytes;

use super::versions::Snapshot;
use crate::policy::hot_keys::HotId;
use crate::protocol::Protocol;
use crate::values::{Database, ShardId, Timestamp};

/// A reply to one request for a hot key, lent by the key's home core (the core through which a key's requests
/// pass) to another core.
#[derive(Clone, Debug)]
pub struct Copy {
    /// The home core (the core through which a key's requests pass) of the key, which lent the copy.
    pub home: ShardId,
    /// Number of the hot key at its home core (the core through which a key's requests pass).
    pub id: HotId,
    /// Hash slot of the key.
    pub slot: u16,
    /// Database that has the key.
    pub database: Database,
    /// Bytes of the request that the reply answers.
    pub frame: Bytes,
    /// RESP version of the reply.
    pub protocol: Protocol,
    /// Bytes of the reply.
    pub reply: Bytes,
    /// Time at which the store was asked for the reply.
    pub asked_at: Timestamp,
    /// State of the key's write counters when the store was asked for the reply: the copy is valid only as long as they
    /// have not changed.
    pub snapshot: Snapshot,
    /// Time at which the copy expires even if the key was not written.
    pub good_until: Timestamp,
}

impl Copy {
    /// Returns the memory that the copy holds: bytes of the request and of the reply.
    pub fn bytes(&self) -> usize {
        self.frame.len() + self.reply.len()
    }
}

/// Number of requests that a core answered from copies of a key's reply since its last report to the key's
/// home core (the core through which its requests pass).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyHits {
    /// The core that answered from the copies, and sends the report.
    pub from: ShardId,
    /// Number of the hot key at its home core (the core through which a key's requests pass).
    pub id: HotId,
    /// Number of requests that the core answered from copies of the key's replies since its last report to the key's
    /// home core (the core through which the key's requests pass).
    pub hits: u32,
}
