//! A reply that the home of a hot key lends to another core, which answers from it without asking.

use bytes::Bytes;

use super::versions::Snapshot;
use crate::policy::hot_keys::HotId;
use crate::protocol::Protocol;
use crate::values::{ShardId, Timestamp};

/// A reply to one request for a hot key.
#[derive(Clone, Debug)]
pub struct Copy {
    /// Where the key is at home, and what it is called there.
    pub home: ShardId,
    /// See there.
    pub id: HotId,
    /// The key's slot.
    pub slot: u16,
    /// The request.
    pub frame: Bytes,
    /// The dialect of the reply.
    pub protocol: Protocol,
    /// The reply.
    pub reply: Bytes,
    /// It is good as long as nothing was written since,
    pub snapshot: Snapshot,
    /// and until then.
    pub good_until: Timestamp,
}

impl Copy {
    /// What it takes.
    pub fn bytes(&self) -> usize {
        self.frame.len() + self.reply.len()
    }
}

/// How often a core has answered from copies of a key, since it said so last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyHits {
    /// Which core.
    pub from: ShardId,
    /// What the key is called at its home.
    pub id: HotId,
    /// How often.
    pub hits: u32,
}
