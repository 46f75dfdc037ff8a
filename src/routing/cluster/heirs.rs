//! Replicas of a primary that is away: one of them takes over, and knows it before anybody else does.

use std::time::Duration;

use super::map::{Map, NodeKey, Role};
use crate::protocol::reply;
use crate::values::Timestamp;

/// So many replicas are looked at, at once.
const HEIRS_MAX: usize = 16;
/// How far apart a replica is asked.
const PAUSE: Duration = Duration::from_millis(50);
/// For so long at most, until another connection to its primary is lost.
const WATCH_MOST: Duration = Duration::from_secs(60);
/// A replica that has not missed its primary for so long has nothing to take over.
const CALM: Duration = Duration::from_secs(30);

/// The replicas to look at from now on, where these are looked at already.
pub fn to_watch(map: &Map, lost: NodeKey, watched: &[NodeKey]) -> Vec<NodeKey> {
    let Some(primary) = map.node_of(lost).filter(|node| node.role == Role::Primary) else {
        return Vec::new();
    };
    let heirs = primary.replicas.iter().filter_map(|at| map.node(*at)).map(|node| node.key);
    let room = HEIRS_MAX.saturating_sub(watched.len());
    heirs.filter(|heir| !watched.contains(heir)).take(room).collect()
}

/// What a replica says that it is, by `ROLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It has taken over.
    IsPrimary,
    /// Its primary is there, as far as it knows.
    HasPrimary,
    /// Its primary is not there.
    HasNone,
}

impl Said {
    /// Reads a whole reply; nothing if it makes no sense.
    pub fn parse(role: &[u8]) -> Option<Self> {
        let mut parts = reply::elements(role)?;
        match reply::text(parts.next()?)? {
            b"master" => Some(Self::IsPrimary),
            // Its primary's host and port stand before the state of their connection.
            b"slave" | b"replica" => match reply::text(parts.nth(2)?)? {
                b"connected" => Some(Self::HasPrimary),
                _ => Some(Self::HasNone),
            },
            _ => None,
        }
    }
}

/// For how long a replica is looked at, and how closely.
#[derive(Clone, Debug)]
pub struct Watch {
    since: Timestamp,
    trouble: Timestamp,
}

impl Watch {
    /// Begins.
    pub fn new(now: Timestamp) -> Self {
        Self { since: now, trouble: now }
    }

    /// It has said something, or not answered: when to ask again, if at all.
    pub fn handle(&mut self, said: Option<Said>, now: Timestamp) -> Option<Duration> {
        if said == Some(Said::HasNone) {
            self.trouble = now;
        }
        let is_over = now.since(self.since) >= WATCH_MOST || now.since(self.trouble) >= CALM;
        (said != Some(Said::IsPrimary) && !is_over).then_some(PAUSE)
    }
}
