//! What nodes of a cluster have yet to answer, as it was sent: it may have to be sent again, to another one.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::shard::message::Message;
use crate::values::limits::LINK_UNANSWERED_BYTES_MAX;
use crate::values::{Timestamp, shorten};

/// How often a request was sent, and since when it has been held.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tries {
    pub hops: u8,
    pub held_since: Timestamp,
    /// It was lost with a connection.
    pub is_again: bool,
}

/// A request that was sent, as it was: it may have to be sent again.
#[derive(Debug)]
pub struct Sent {
    pub slot: u16,
    /// Of how many requests it is made.
    pub requests: u16,
    pub tries: Tries,
    frame: Frame,
}

#[derive(Debug)]
enum Frame {
    /// So many of the bytes that are kept.
    Kept(u32),
    Shared(Bytes),
}

impl Frame {
    fn len(&self) -> usize {
        match self {
            Self::Kept(length) => *length as usize,
            Self::Shared(bytes) => bytes.len(),
        }
    }
}

/// What was sent over one connection and has yet to be answered, in its order.
#[derive(Debug, Default)]
pub struct Unanswered {
    sent: VecDeque<Sent>,
    bytes: VecDeque<u8>,
    /// Of all of it, wherever it is kept.
    length: usize,
    /// A step of the block that is being answered was refused so.
    pub step: Option<Vec<u8>>,
}

impl Unanswered {
    /// One more was sent.
    pub fn push(&mut self, (slot, requests): (u16, usize), tries: Tries, message: Message<'_>) {
        let frame = match message {
            Message::Shared(bytes) => Frame::Shared(bytes.clone()),
            Message::Small(bytes) => {
                self.bytes.extend(bytes);
                Frame::Kept(bytes.len() as u32)
            }
        };
        self.length += message.bytes().len();
        self.sent.push_back(Sent { slot, requests: requests as u16, tries, frame });
    }

    /// The oldest is answered. It, if it is wanted, with its bytes.
    pub fn pop(&mut self, is_wanted: bool) -> Option<(Sent, Vec<u8>)> {
        let sent = self.sent.pop_front()?;
        self.length -= sent.frame.len();
        let bytes = match &sent.frame {
            Frame::Kept(length) => {
                let bytes = self.bytes.drain(..*length as usize);
                if is_wanted { bytes.collect() } else { Vec::new() }
            }
            Frame::Shared(bytes) if is_wanted => bytes.to_vec(),
            Frame::Shared(_) => Vec::new(),
        };
        Some((sent, bytes))
    }

    /// The slot of the oldest.
    pub fn next_slot(&self) -> Option<u16> {
        self.sent.front().map(|sent| sent.slot)
    }

    /// Is there something of a slot that was sent before?
    pub fn has_again(&self, slot: u16) -> bool {
        self.sent.iter().any(|sent| sent.slot == slot && sent.tries.hops > 0)
    }

    /// May more be kept?
    pub fn has_room(&self) -> bool {
        self.length < LINK_UNANSWERED_BYTES_MAX
    }

    /// Gives back what a burst took.
    pub fn tidy(&mut self) {
        shorten(&mut self.sent);
        shorten(&mut self.bytes);
    }

    /// The connection is lost.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// All of it, in its order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Sent> {
        self.sent.iter()
    }

    /// How many requests that are.
    pub fn len(&self) -> usize {
        self.sent.len()
    }

    /// The slots of all of it.
    pub fn slots(&self) -> impl Iterator<Item = u16> {
        self.sent.iter().map(|sent| sent.slot)
    }
}
