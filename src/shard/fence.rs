//! Fences: a request that was sent on a backend connection which weir then gave up must not take effect after
//! later requests of its client.
//!
//! Requests that were sent over such a connection lie in the store's receive buffer, and the store carries
//! them out whenever it gets to them, even if the connection is closed or reset meanwhile. Therefore weir
//! remembers the connection's id at the store, and every connection that may carry a later request of the
//! same clients sends `CLIENT KILL ID` for it before that request. A store carries out the requests of one
//! connection in order.
//!
//! ```text
//! shard i gives a connection up ── fence ──> its own links: before the next request of each
//! └── with the next batch to any shard, before anything that may follow from it ──> their links likewise
//! the store has answered ── lifted ──> all shards forget it
//! ```

use std::collections::VecDeque;

use crate::protocol::encode;
use crate::values::{BackendId, ShardId};

/// The largest number of fences (given-up connections that stores are to kill) that a shard keeps; a new one
/// then removes the oldest. A fence is kept only until the store has answered the next connection's `CLIENT
/// KILL`.
const FENCES_MAX: usize = 4096;

/// A connection of weir's to a store, as the store identifies it (`CLIENT INFO`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreClient {
    /// The connection's id. Ids of a store grow until it restarts.
    pub id: u64,
    /// Address that the connection came from, as the store saw it. After a restart of the store the id may
    /// belong to another client; the address tells the two apart.
    pub address: Box<str>,
}

/// A backend connection that was given up with unanswered requests; later connections ask the store to kill
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The shard that gave the connection up.
    pub origin: ShardId,
    /// Number of the fence (the connection to be killed) among those of its origin, counted from 1.
    pub sequence: u64,
    /// The backend of the given-up connection.
    pub backend: BackendId,
    /// The connection that the store is asked to kill.
    pub target: StoreClient,
}

impl Fence {
    /// Writes the request (`CLIENT KILL`) by which a store is asked to kill the given-up connection.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let id = self.target.id.to_string();
        let words = [&b"CLIENT"[..], b"KILL", b"ID", id.as_bytes(), b"ADDR", self.target.address.as_bytes()];
        encode::request(out, words.into_iter());
    }
}

/// The fences (given-up connections that stores are to kill) that one shard knows, with a record of which of
/// them it has sent to each other shard.
#[derive(Debug)]
pub struct Fences {
    own: ShardId,
    /// Fences (given-up connections to be killed) that the stores have not answered yet, the oldest first,
    /// each with a number in the order in which this shard learnt of them.
    standing: VecDeque<(u64, Fence)>,
    /// Number of fences (given-up connections that stores are to kill) that this shard has learnt of so far,
    /// its own included.
    count: u64,
    /// The highest sequence number received so far from each shard that gives up connections (raises fences).
    /// Each shard sends its fences in order, so all earlier ones are known as well.
    heard: Vec<u64>,
    /// The value of `count` up to which each other shard was sent the fences (connections that stores are to
    /// kill).
    told: Vec<u64>,
    /// Sequence numbers of this shard's own fences (connections that stores were asked to kill) that the
    /// stores have answered, still to be sent to the other shards.
    lifted: Vec<u64>,
}

impl Fences {
    /// Creates the list of fences (given-up connections that stores are to kill), none yet, of one shard
    /// among `shards` shards.
    pub fn new(own: ShardId, shards: usize) -> Self {
        Self {
            own,
            standing: VecDeque::new(),
            count: 0,
            heard: vec![0; shards],
            told: vec![0; shards],
            lifted: Vec::new(),
        }
    }

    /// Returns the number of fences (given-up connections that stores are to kill) that this shard has learnt
    /// of so far. A connection compares it with the number at which it last sent the store its fences, to
    /// find those that are still to be sent.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds a fence for the connection `target` to a backend, which this shard gave up with requests
    /// unanswered: before they send later requests, other connections ask the store to kill it.
    pub fn raise(&mut self, backend: BackendId, target: StoreClient) {
        let sequence = self.heard[usize::from(self.own.0)] + 1;
        self.hear(Fence { origin: self.own, sequence, backend, target });
    }

    /// Adds a fence (a given-up connection that a store is to kill) of any shard. A fence that is already
    /// known is ignored.
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

    /// Returns the fences (given-up connections that stores are to kill) that a shard was not sent yet, and
    /// records that it is sent them now.
    pub fn tell(&mut self, shard: ShardId) -> impl Iterator<Item = &Fence> {
        let told = std::mem::replace(&mut self.told[usize::from(shard.0)], self.count);
        self.since(told)
    }

    /// True if the given shard has been sent all fences (given-up connections that stores are to kill) that
    /// this shard knows.
    pub fn is_told(&self, shard: ShardId) -> bool {
        self.told[usize::from(shard.0)] == self.count
    }

    /// Returns the fences (given-up connections that the store is to kill and has not killed yet) of one
    /// backend, without the first `seen` fences, of any backend, that this shard has learnt of.
    pub fn at(&self, backend: BackendId, seen: u64) -> impl Iterator<Item = &Fence> {
        self.since(seen).filter(move |fence| fence.backend == backend)
    }

    /// Handles fences of which another shard tells: those `raised` (connections given up, which stores are to
    /// be asked to kill) and those `lifted` (which stores have answered).
    pub fn handle_told(&mut self, (raised, lifted): (Vec<Fence>, Vec<(ShardId, u64)>)) {
        raised.into_iter().for_each(|fence| self.hear(fence));
        lifted.into_iter().for_each(|(origin, sequence)| self.lift(origin, sequence));
    }

    /// Removes the fence (given-up connection that a store is to kill) with this origin and sequence number, because
    /// the store has answered the `CLIENT KILL`: it has killed the connection, does not know it, or refuses the
    /// command. If the fence is this shard's own, the other shards are to be informed ([`Self::take_lifted`]).
    pub fn lift(&mut self, origin: ShardId, sequence: u64) {
        let heard = &mut self.heard[usize::from(origin.0)];
        *heard = (*heard).max(sequence);
        let standing = self.standing.len();
        self.standing.retain(|(_, fence)| (fence.origin, fence.sequence) != (origin, sequence));
        // Several connections may have asked the store for the same.
        if origin == self.own && self.standing.len() < standing {
            self.lifted.push(sequence);
        }
    }

    /// Removes the fences (given-up connections that stores are to kill) of a backend that were raised before
    /// its store last restarted. A store numbers its clients upwards from its start, so this is true of
    /// fences whose connections have at least the id of `newest`, a connection that has just been opened.
    pub fn lift_former(&mut self, backend: BackendId, newest: &StoreClient) {
        let Self { own, standing, lifted, .. } = self;
        standing.retain(|(_, fence)| {
            let is_former = fence.backend == backend && fence.target.id >= newest.id;
            if is_former && fence.origin == *own {
                lifted.push(fence.sequence);
            }
            !is_former
        });
    }

    /// Takes the sequence numbers of this shard's own fences (connections that stores were asked to kill)
    /// that stores have answered since the last call, to tell the other shards.
    pub fn take_lifted(&mut self) -> impl Iterator<Item = u64> {
        std::mem::take(&mut self.lifted).into_iter()
    }

    fn since(&self, seen: u64) -> impl Iterator<Item = &Fence> {
        let start = self.standing.partition_point(|(number, _)| *number <= seen);
        self.standing.iter().skip(start).map(|(_, fence)| fence)
    }
}

/// Parses the reply to `CLIENT INFO`: the id and the address of the connection that asked. None if the reply has
/// another form, or an address of more than 256 bytes.
pub fn store_client(reply: &[u8]) -> Option<StoreClient> {
    let address = field_of(reply, "addr=")?;
    let is_address = !address.is_empty() && address.len() <= ADDRESS_BYTES_MAX;
    is_address.then_some(StoreClient { id: field_of(reply, "id=")?.parse().ok()?, address: address.into() })
}

/// Returns the value of a field of a `CLIENT INFO` reply, by a name such as `id=`. None if the reply does not
/// have it.
pub fn field_of<'a>(reply: &'a [u8], name: &str) -> Option<&'a str> {
    if !matches!(reply.first(), Some(b'$' | b'=')) {
        return None;
    }
    let start = reply.iter().position(|byte| *byte == b'\n')? + 1;
    let text = std::str::from_utf8(&reply[start..]).ok()?;
    // A verbatim string of RESP3 begins with its format, `txt:`.
    let text = text.strip_prefix("txt:").unwrap_or(text);
    text.split([' ', '\r', '\n']).find_map(|word| word.strip_prefix(name))
}

/// The longest address of a connection that is accepted, in bytes: a host and a port, or the path of a
/// socket. A connection with a longer one counts as unknown, so that it cannot be killed.
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
        // Every shard reports to every other one, three times over.
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
            shard.lift(ShardId(0), 1);
            let own: &[u64] = if shard.own == ShardId(0) { &[1] } else { &[] };
            assert_eq!(shard.take_lifted().collect::<Vec<_>>(), own);
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
        assert!(fences.at(BackendId(1), 0).all(|fence| fence.target.id == 2), "each store has its own");
        fences.lift_former(BackendId(0), &target(2));
        assert_eq!(fences.take_lifted().collect::<Vec<_>>(), [3]);
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
