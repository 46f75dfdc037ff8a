//! Simulated sockets: bytes arrive late and in pieces, but in order.

use std::time::Duration;

use weir::values::Random;
use weir::values::{BackendId, Owner, Timestamp};

/// The number of a simulated socket, unique within the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SocketId(pub usize);

/// The far end of a shard's socket: a client or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Client(usize),
    Store(BackendId),
}

/// One direction of a socket: later bytes never arrive before earlier ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    free_at: Timestamp,
}

impl Lane {
    /// Returns the time at which the last bytes sent so far in this direction arrive.
    pub fn last_arrival(self) -> Timestamp {
        self.free_at
    }

    /// Draws the time at which bytes that are sent now arrive: at most `delay_max` later, and not before
    /// bytes sent earlier.
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
    /// The name (client or link id) by which the shard knows the socket; `None` until the shard knows of it.
    pub owner: Option<Owner>,
    pub to_shard: Lane,
    pub to_peer: Lane,
    /// True once the shard has closed its end: no more events of the socket are passed to it.
    pub closed_by_shard: bool,
    /// True once the client or store at the far end has closed it: bytes that still arrive there are lost.
    pub closed_by_peer: bool,
    /// The time from which nothing arrives at the client or store, because the shard has reset the
    /// connection and dropped unsent bytes; `None` if it has not.
    pub cut_at: Option<Timestamp>,
    /// True while the shard has paused reading: bytes that arrive wait at the socket.
    pub paused: bool,
    /// True while nothing is read from the socket because the client is to move to another shard: bytes that
    /// arrive wait at the socket.
    pub detained: bool,
    /// True once the store has dropped the connection and nothing tells the shard so: bytes that the shard sends are
    /// lost, and are not acknowledged.
    pub is_severed: bool,
    /// True while a segment (block) of bytes is on its way from the shard to the client or store.
    pub sending: bool,
    /// The state of a client's socket that its shard (core of weir) still reads although it drains; `None`
    /// for other sockets.
    pub last_words: Option<LastWords>,
}

/// The state of a client's socket while its shard drains and reads the bytes that the client sent before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastWords {
    /// True if the client's socket was empty at the last check; if it is empty at two checks in a row, the
    /// draining shard stops reading it.
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
            is_severed: false,
            sending: false,
            last_words: None,
        }
    }
}

/// Divides bytes into pieces at random places: either small ones, with up to `piece_bytes` bytes more than a fiftieth
/// of what is left, or large ones of `piece_bytes`, at least 512 bytes; none has more than 16 KiB.
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
