//! Sockets: bytes arrive late and in pieces, but in order.

use std::time::Duration;

use weir::values::Random;
use weir::values::{BackendId, Owner, Timestamp};

/// Names a socket for the whole run; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SocketId(pub usize);

/// Who is at the other end of a shard's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Client(usize),
    Store(BackendId),
}

/// One direction: nothing overtakes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    free_at: Timestamp,
}

impl Lane {
    /// When the last of what was sent arrives.
    pub fn last_arrival(self) -> Timestamp {
        self.free_at
    }

    /// When something that is sent now arrives.
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
    /// Whose it is on the shard's side, once the shard knows.
    pub owner: Option<Owner>,
    pub to_shard: Lane,
    pub to_peer: Lane,
    /// The shard's end is closed: nothing is told to the shard any more.
    pub closed_by_shard: bool,
    /// The other end is closed: what still comes there is lost.
    pub closed_by_peer: bool,
    /// The shard has reset the connection: what had not left this end by then is dropped, so it is as if nothing arrived after this.
    pub cut_at: Option<Timestamp>,
    /// The shard does not want to read now.
    pub paused: bool,
    /// A segment is on its way to the other end.
    pub sending: bool,
    /// Its shard drains: what is left to hear.
    pub last_words: Option<LastWords>,
}

/// A client's socket, whose shard drains.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastWords {
    /// Nothing was in it when it was looked at last.
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
            sending: false,
            last_words: None,
        }
    }
}

/// Cuts bytes at random places, now and then not at all.
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
