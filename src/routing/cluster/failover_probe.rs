//! Watch over the replicas of a primary that is unreachable. One of them takes over, and reports that in its
//! reply to `ROLE` before other nodes know it.

use std::time::Duration;

use super::map::{Map, NodeKey, Role};
use crate::protocol::reply;
use crate::values::Timestamp;

/// Maximum number of replicas of unreachable primaries that are watched at the same time, to see which takes
/// over; further ones are not watched.
const WATCHED_MAX: usize = 16;
/// Time between a watched replica's reply to `ROLE` and the next `ROLE` sent to it.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest time for which a replica is watched (asked again and again whether it took over from its primary).
const WATCH_MOST: Duration = Duration::from_secs(60);
/// A replica is no longer watched once it has not replied for this long that its primary is unreachable.
const CALM: Duration = Duration::from_secs(30);

/// Returns the replicas to watch from now on, since one of them may take over from the primary `lost`, which
/// cannot be reached; without those that are watched already (`watched`). At most 16 are watched at a time.
/// Empty if `lost` is no primary of the map.
pub fn to_watch(map: &Map, lost: NodeKey, watched: &[NodeKey]) -> Vec<NodeKey> {
    let Some(primary) = map.node_of(lost).filter(|node| node.role == Role::Primary) else {
        return Vec::new();
    };
    let replicas = primary.replicas.iter().filter_map(|at| map.node(*at)).map(|node| node.key);
    let room = WATCHED_MAX.saturating_sub(watched.len());
    replicas.filter(|replica| !watched.contains(replica)).take(room).collect()
}

/// State of a replica, by its reply to `ROLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// The replica says that it is a primary: it has taken over.
    IsPrimary,
    /// The replica is connected to its primary.
    HasPrimary,
    /// The replica is not connected to its primary, or is still connecting to it or copying its data.
    HasNone,
}

impl Said {
    /// Reads a node's whole reply to `ROLE`; `None` if it is no reply of a primary or a replica.
    pub fn parse(role: &[u8]) -> Option<Self> {
        let mut parts = reply::elements(role)?;
        match reply::text(parts.next()?)? {
            b"master" => Some(Self::IsPrimary),
            // The primary's host and port stand before the state of their connection.
            b"slave" | b"replica" => match reply::text(parts.nth(2)?)? {
                b"connected" => Some(Self::HasPrimary),
                _ => Some(Self::HasNone),
            },
            _ => None,
        }
    }
}

/// State of the watch over one replica: when it began, and when the replica's primary was last unreachable.
#[derive(Clone, Debug)]
pub struct Watch {
    since: Timestamp,
    trouble: Timestamp,
}

impl Watch {
    /// Begins the watch over a replica, whose replies to `ROLE` will show whether it takes over from its
    /// primary, which may be unreachable.
    pub fn new(now: Timestamp) -> Self {
        Self { since: now, trouble: now }
    }

    /// Handles the replica's reply to `ROLE` (None if it did not reply). Returns the time until the next
    /// `ROLE` is to be sent; None ends the watch: the replica took over, or 60 s have passed, or 30 s since
    /// its primary was last unreachable.
    pub fn handle(&mut self, said: Option<Said>, now: Timestamp) -> Option<Duration> {
        if said == Some(Said::HasNone) {
            self.trouble = now;
        }
        let is_over = now.since(self.since) >= WATCH_MOST || now.since(self.trouble) >= CALM;
        (said != Some(Said::IsPrimary) && !is_over).then_some(PAUSE)
    }
}
