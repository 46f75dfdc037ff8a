//! Simulated sockets: bytes arrive late and in pieces, but in order.

use std::time::Duration;

use weir::values::Random;
use weir::values::{BackendId, Owner, Timestamp};

/// The number of a socket, unique within the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SocketId(pub usize);

/// The other end of a shard's socket: a client or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Client(usize),
    Store(BackendId),
}

/// A direction of a socket: later bytes never arrive before earlier ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    free_at: Timestamp,
}

impl Lane {
    /// The time when the last bytes sent so far arrive.
    pub fn last_arrival(self) -> Timestamp {
        self.free_at
    }

    /// Draws the time when bytes that are sent now arrive: at most `delay_max` later, and not before earlier
    /// ones.
    pub fn arrival(&mut self, now: Timestamp, delay_max: Duration, random: &mut Random) -> Timestamp {
        let delay = Duration::from_nanos(random.below(delay_max.as_nanos() as u64 + 1));
        self.free_at = self.free_at.max(now.after(delay));
        self.free_at
    }
}

#[derive(Debug)]
pub(super) struct Socket {
    pub shard: usize,
    pub peer: Peer,
    /// The shard's id for the owner of the socket; `None` until the shard knows it.
    pub owner: Option<Owner>,
    pub to_shard: Lane,
    pub to_peer: Lane,
    /// True once the shard has closed its end: no more events of the socket are passed to the shard.
    pub closed_by_shard: bool,
    /// True once the other end is closed: bytes that still arrive there are lost.
    pub closed_by_peer: bool,
    /// The time from which nothing arrives at the other end, since the shard has reset the connection and
    /// dropped bytes that had not been sent.
    pub cut_at: Option<Timestamp>,
    /// True while the shard has paused reading: bytes that arrive wait.
    pub paused: bool,
    /// True while nothing is read because the client is about to move to another shard: bytes that arrive wait.
    pub detained: bool,
    /// True while a segment is on its way to the other end.
    pub sending: bool,
    /// The state of a client's socket whose shard drains and still reads it.
    pub last_words: Option<LastWords>,
}

/// The state of a client's socket while its shard drains and reads what the client sent before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastWords {
    /// True if the socket was found empty the last time; the second time in a row ends it.
    pub was_empty: bool,
}

impl Socket {
    pub fn new(shard: usize, peer: Peer, owner: Option<Owner>) -> Self {
        Self {
            shard,
            peer,
            owner,
            to_shard: Lane::default(),
            to_peer: Lane::default(),
            closed_by_shard: false,
            closed_by_peer: false,
            cut_at: None,
            paused: false,
            detained: false,
            sending: false,
            last_words: None,
        }
    }
}

/// Cuts bytes into pieces at random places; sometimes into large pieces only.
pub(super) fn pieces(mut bytes: &[u8], piece_bytes: u64, random: &mut Random) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let small = random.per_mille(300);
    while !bytes.is_empty() {
        // Small pieces of something large would take all the steps of a run.
        let least = bytes.len() as u64 / 50;
        let length = if small { least + random.between(1, piece_bytes) } else { piece_bytes.max(512) };
        let (piece, rest) = bytes.split_at((length as usize).min(bytes.len()).min(16 * 1024));
        found.push(piece.to_vec());
        bytes = rest;
    }
    found
}
