//! Fences: nothing that weir sends may be overtaken by what is left of a connection that it gave up.
//!
//! What had been sent over such a connection lies in the store's receive buffer, and is carried out whenever the store gets to
//! it, even if the connection is closed or reset meanwhile. So its number at the store is remembered, and every connection that
//! may carry a later request of the same clients asks the store to drop it (`CLIENT KILL ID`) before that request. A store does
//! what one connection asks in order.
//!
//! ```text
//!   shard i gives a connection up ── fence ──> its own links: before the next request of each
//!        └── with the next batch to any shard, before anything that may follow from it ──> their links likewise
//!   the store has answered ── lifted ──> all shards forget it
//! ```

use std::collections::VecDeque;

use crate::values::{BackendId, ShardId};

/// Fences that are kept. There is one for each connection that was given up and not replaced yet, so there are fewer.
const FENCES_MAX: usize = 4096;

/// A connection as its store names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreClient {
    /// Ids grow, until the store is started anew.
    pub id: u64,
    /// From where it came, as the store saw it: so that an id is not taken for that of somebody else in a store that was started
    /// anew.
    pub address: Box<str>,
}

/// A connection that was given up with requests on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The shard that gave it up, and the how manieth it was there.
    pub origin: ShardId,
    /// Grows by one with each of that shard.
    pub sequence: u64,
    /// Where it led.
    pub backend: BackendId,
    /// What to drop.
    pub target: StoreClient,
}

/// The fences that one shard knows of.
#[derive(Debug)]
pub struct Fences {
    own: ShardId,
    /// With the number that each has here.
    standing: VecDeque<(u64, Fence)>,
    /// How many there have been here.
    count: u64,
    /// The newest that was heard of, by origin. Each shard tells in order, so all older ones were heard of as well.
    heard: Vec<u64>,
    /// How many of those here each shard was told.
    told: Vec<u64>,
}

impl Fences {
    pub fn new(own: ShardId, shards: usize) -> Self {
        Self { own, standing: VecDeque::new(), count: 0, heard: vec![0; shards], told: vec![0; shards] }
    }

    /// How many there have been: whoever has seen to as many need not look further.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Raises one of this shard's own.
    pub fn raise(&mut self, backend: BackendId, target: StoreClient) {
        let sequence = self.heard[usize::from(self.own.0)] + 1;
        self.hear(Fence { origin: self.own, sequence, backend, target });
    }

    /// Another shard, or this one, tells of one.
    pub fn hear(&mut self, fence: Fence) {
        let heard = &mut self.heard[usize::from(fence.origin.0)];
        if fence.sequence <= *heard {
            return;
        }
        *heard = fence.sequence;
        self.count += 1;
        if self.standing.len() == FENCES_MAX {
            self.standing.pop_front();
        }
        self.standing.push_back((self.count, fence));
    }

    /// What a shard has not been told yet. It is told now.
    pub fn tell(&mut self, shard: ShardId) -> impl Iterator<Item = &Fence> {
        let told = std::mem::replace(&mut self.told[usize::from(shard.0)], self.count);
        self.since(told)
    }

    /// Does a shard know all that this one knows?
    pub fn is_told(&self, shard: ShardId) -> bool {
        self.told[usize::from(shard.0)] == self.count
    }

    /// Those at a backend that came after so many.
    pub fn at(&self, backend: BackendId, seen: u64) -> impl Iterator<Item = &Fence> {
        self.since(seen).filter(move |fence| fence.backend == backend)
    }

    /// The store has dropped the connection, or never knew it: is that one of this shard's own, so that the others should hear?
    pub fn lift(&mut self, origin: ShardId, sequence: u64) -> bool {
        let heard = &mut self.heard[usize::from(origin.0)];
        *heard = (*heard).max(sequence);
        self.standing.retain(|(_, fence)| (fence.origin, fence.sequence) != (origin, sequence));
        origin == self.own
    }

    /// The store was started anew, and knows none of the connections it had. Those of this shard's own that stood.
    pub fn lift_all(&mut self, backend: BackendId, matching: impl Fn(&StoreClient) -> bool) -> Vec<u64> {
        let mut own = Vec::new();
        self.standing.retain(|(_, fence)| {
            let lifted = fence.backend == backend && matching(&fence.target);
            if lifted && fence.origin == self.own {
                own.push(fence.sequence);
            }
            !lifted
        });
        own
    }

    fn since(&self, seen: u64) -> impl Iterator<Item = &Fence> {
        let start = self.standing.partition_point(|(number, _)| *number <= seen);
        self.standing.iter().skip(start).map(|(_, fence)| fence)
    }
}

/// What `CLIENT INFO` says of the connection that asks, if it is understood.
pub fn store_client(reply: &[u8]) -> Option<StoreClient> {
    let address = field_of(reply, "addr=")?;
    let is_address = !address.is_empty() && address.len() <= ADDRESS_BYTES_MAX;
    is_address.then_some(StoreClient { id: field_of(reply, "id=")?.parse().ok()?, address: address.into() })
}

/// What it says behind a name such as `id=`.
pub fn field_of<'a>(reply: &'a [u8], name: &str) -> Option<&'a str> {
    if !matches!(reply.first(), Some(b'$' | b'=')) {
        return None;
    }
    let start = reply.iter().position(|byte| *byte == b'\n')? + 1;
    let text = std::str::from_utf8(&reply[start..]).ok()?;
    // A verbatim string begins with its format.
    let text = text.strip_prefix("txt:").unwrap_or(text);
    text.split([' ', '\r', '\n']).find_map(|word| word.strip_prefix(name))
}

/// An address is a host and a port, or a path of a socket.
const ADDRESS_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn target(id: u64) -> StoreClient {
        StoreClient { id, address: "127.0.0.1:5".into() }
    }

    fn ids(fences: &Fences, seen: u64) -> Vec<u64> {
        fences.at(BackendId(0), seen).map(|fence| fence.target.id).collect()
    }

    #[test]
    fn what_goes_round_is_taken_once() {
        let mut shards: Vec<Fences> = (0..3).map(|own| Fences::new(ShardId(own), 3)).collect();
        shards[0].raise(BackendId(0), target(1));
        shards[0].raise(BackendId(0), target(2));
        // Everybody tells everybody, again and again.
        for _ in 0..3 {
            for from in 0..3 {
                for to in 0..3 {
                    let told: Vec<Fence> = shards[from].tell(ShardId(to as u16)).cloned().collect();
                    told.into_iter().for_each(|fence| shards[to].hear(fence));
                }
            }
        }
        for shard in &mut shards {
            assert_eq!(ids(shard, 0), [1, 2]);
            assert!((0..3).all(|other| shard.is_told(ShardId(other))));
            let was_own = shard.lift(ShardId(0), 1);
            assert_eq!(was_own, shard.own == ShardId(0));
            assert_eq!(ids(shard, 0), [2]);
            shard.hear(Fence { origin: ShardId(0), sequence: 1, backend: BackendId(0), target: target(1) });
            assert_eq!(ids(shard, 0), [2], "what was lifted does not come back");
        }
    }

    #[test]
    fn only_what_came_later_is_left_to_see_to() {
        let mut fences = Fences::new(ShardId(0), 1);
        fences.raise(BackendId(0), target(1));
        let seen = fences.count();
        fences.raise(BackendId(1), target(2));
        fences.raise(BackendId(0), target(3));
        assert_eq!(ids(&fences, seen), [3]);
        assert_eq!(fences.lift_all(BackendId(0), |target| target.id > 2), [3]);
        assert_eq!(ids(&fences, 0), [1]);
    }

    #[test]
    fn a_store_says_who_asks() {
        let line = "id=12 addr=127.0.0.1:4711 laddr=127.0.0.1:6379 fd=8 name= user=default\n";
        let bulk = format!("${}\r\n{line}\r\n", line.len());
        let verbatim = format!("={}\r\ntxt:{line}\r\n", line.len() + 4);
        let found = Some(StoreClient { id: 12, address: "127.0.0.1:4711".into() });
        assert_eq!(store_client(bulk.as_bytes()), found);
        assert_eq!(store_client(verbatim.as_bytes()), found);
        for strange in [
            "+OK\r\n",
            "-ERR unknown subcommand\r\n",
            ":5\r\n",
            "$4\r\nid=x\r\n",
            "$-1\r\n",
            "$9\r\nid=1 add=\r\n",
        ] {
            assert_eq!(store_client(strange.as_bytes()), None, "{strange}");
        }
    }
}
