//! What one shard hands to another: everything of one turn at once, in buffers that go round.
//!
//! ```text
//!   shard i                                    shard j
//!   requests for keys at home on j  ──batch──>  forwards them as its own
//!   replies in the client's order   <──batch──  as they come from the backends
//! ```

use bytes::Bytes;

use super::fence::Fence;
use super::track::Track;
use crate::protocol::Protocol;
use crate::values::limits::{BATCH_BYTES_MAX, COPY_BYTES_MAX};
use crate::values::{BackendId, ShardId, Timestamp};

/// Where the reply to a request belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The shard that accepted the client.
    pub shard: ShardId,
    /// Which part of a split request.
    pub part: u16,
    /// The client's place in that shard's table.
    pub client: u32,
    /// Tells the client from later ones in the same place.
    pub generation: u32,
    /// The request's number on its connection.
    pub sequence: u32,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The key's slot.
    pub slot: u16,
    /// The backend that stores the slot.
    pub backend: BackendId,
    /// The dialect that the client wants its reply in.
    pub protocol: Protocol,
    /// Which of the connections there.
    pub track: Track,
}

/// What the policies will want to know of a request at its home core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// No use in answering later than this.
    pub deadline: Option<Timestamp>,
    /// Who pays.
    pub tenant: u16,
    /// How much it matters, as an index: 0 is critical.
    pub tier: u8,
    /// What its cost grows with, as an index of command classes.
    pub class: u8,
}

/// What became of a request, for whoever pays for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A backend did the work.
    Served {
        /// Bytes of its reply, whatever of it goes on to the client.
        bytes: u32,
        /// Elements of the reply, where it has elements.
        rows: u32,
        /// How long it took, in microseconds.
        took_micros: u32,
        /// How much longer it took than such requests usually do, in microseconds.
        slowness_micros: u32,
    },
    /// It was sent to a backend, and what became of it nobody knows: it costs what it was estimated at.
    Lost,
    /// It was refused after it had been admitted, and was sent to no backend: it costs nothing.
    Refused,
}

impl Outcome {
    /// Weir answered by itself: that costs what its bytes cost.
    pub const fn answered(reply_bytes: usize) -> Self {
        let bytes = if reply_bytes > u32::MAX as usize { u32::MAX } else { reply_bytes as u32 };
        Self::Served { bytes, rows: 0, took_micros: 0, slowness_micros: 0 }
    }
}

/// A message: copied if small, shared if large.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// Copied on every hop.
    Small(&'a [u8]),
    /// Handed on without being copied.
    Shared(&'a Bytes),
}

impl<'a> Message<'a> {
    /// A message that is shared if there is something to share and it is large enough.
    pub fn new(bytes: &'a [u8], shared: Option<&'a Bytes>) -> Self {
        match shared {
            Some(shared) if shared.len() > COPY_BYTES_MAX => Self::Shared(shared),
            _ => Self::Small(bytes),
        }
    }

    /// How many bytes it has if they are shared, not copied.
    const fn shared_bytes(&self) -> usize {
        match self {
            Self::Small(_) => 0,
            Self::Shared(bytes) => bytes.len(),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// Where a message of a batch lies: a length in the common buffer, or one of the shared ones.
#[derive(Clone, Copy, Debug)]
enum Place {
    Copied(u32),
    Shared(u32),
}

#[derive(Clone, Copy, Debug)]
struct RequestEntry {
    to: ReplyTo,
    route: Route,
    terms: Terms,
    place: Place,
}

#[derive(Clone, Copy, Debug)]
struct ReplyEntry {
    to: ReplyTo,
    outcome: Outcome,
    place: Place,
}

/// The messages of one turn from one shard to another.
#[derive(Debug, Default)]
pub struct Batch {
    requests: Vec<RequestEntry>,
    replies: Vec<ReplyEntry>,
    request_bytes: Vec<u8>,
    reply_bytes: Vec<u8>,
    shared: Vec<Bytes>,
    /// Bytes of those.
    shared_bytes: usize,
    /// What may be overtaken by nothing that comes with or after this batch.
    fences: Vec<Fence>,
    /// Fences that stand no more, by origin and sequence.
    lifted: Vec<(ShardId, u64)>,
}

/// A recycled batch keeps buffers up to this size.
const BYTES_KEPT: usize = 1 << 20;

impl Batch {
    /// Nothing in it?
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
            && self.replies.is_empty()
            && self.fences.is_empty()
            && self.lifted.is_empty()
    }

    /// Bytes of all its messages.
    pub fn bytes(&self) -> usize {
        self.request_bytes.len() + self.reply_bytes.len() + self.shared_bytes
    }

    /// Does so much wait for the other shard that no further request may?
    pub fn is_full(&self) -> bool {
        self.bytes() >= BATCH_BYTES_MAX
    }

    /// Adds a request.
    pub fn push_request(&mut self, to: ReplyTo, route: Route, terms: Terms, message: Message<'_>) {
        let place = place(&mut self.request_bytes, &mut self.shared, message);
        self.shared_bytes += message.shared_bytes();
        self.requests.push(RequestEntry { to, route, terms, place });
    }

    /// Adds a reply.
    pub fn push_reply(&mut self, to: ReplyTo, outcome: Outcome, message: Message<'_>) {
        let place = place(&mut self.reply_bytes, &mut self.shared, message);
        self.shared_bytes += message.shared_bytes();
        self.replies.push(ReplyEntry { to, outcome, place });
    }

    /// Adds a fence. It comes before all messages of the batch.
    pub(super) fn push_fence(&mut self, fence: Fence) {
        self.fences.push(fence);
    }

    /// Adds that a fence stands no more.
    pub(super) fn push_lifted(&mut self, origin: ShardId, sequence: u64) {
        self.lifted.push((origin, sequence));
    }

    /// Takes the fences, and those that stand no more.
    pub(super) fn take_fences(&mut self) -> (Vec<Fence>, Vec<(ShardId, u64)>) {
        (std::mem::take(&mut self.fences), std::mem::take(&mut self.lifted))
    }

    /// The requests in the order they were added.
    pub fn requests(&self) -> impl Iterator<Item = (ReplyTo, Route, Terms, Message<'_>)> {
        let mut at = 0;
        self.requests.iter().map(move |entry| {
            (
                entry.to,
                entry.route,
                entry.terms,
                found(&self.request_bytes, &self.shared, &mut at, entry.place),
            )
        })
    }

    /// The replies in the order they were added.
    pub fn replies(&self) -> impl Iterator<Item = (ReplyTo, Outcome, Message<'_>)> {
        let mut at = 0;
        self.replies.iter().map(move |entry| {
            (entry.to, entry.outcome, found(&self.reply_bytes, &self.shared, &mut at, entry.place))
        })
    }

    /// Empties it for its next use.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.replies.clear();
        self.shared.clear();
        self.shared_bytes = 0;
        self.fences.clear();
        self.lifted.clear();
        for buffer in [&mut self.request_bytes, &mut self.reply_bytes] {
            buffer.clear();
            buffer.shrink_to(BYTES_KEPT);
        }
    }
}

fn place(copied: &mut Vec<u8>, shared: &mut Vec<Bytes>, message: Message<'_>) -> Place {
    match message {
        Message::Small(bytes) => {
            copied.extend_from_slice(bytes);
            Place::Copied(bytes.len() as u32)
        }
        Message::Shared(bytes) => {
            shared.push(bytes.clone());
            Place::Shared(shared.len() as u32 - 1)
        }
    }
}

fn found<'a>(copied: &'a [u8], shared: &'a [Bytes], at: &mut usize, place: Place) -> Message<'a> {
    match place {
        Place::Copied(length) => {
            let start = *at;
            *at += length as usize;
            Message::Small(&copied[start..*at])
        }
        Place::Shared(index) => Message::Shared(&shared[index as usize]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in() {
        let mut batch = Batch::default();
        let large = Bytes::from(vec![b'L'; COPY_BYTES_MAX + 1]);
        let to = |sequence| ReplyTo { shard: ShardId(1), part: 0, client: 2, generation: 3, sequence };
        let route = Route { slot: 7, backend: BackendId(0), protocol: Protocol::Resp3, track: Track::Heavy };
        let terms = Terms { deadline: None, tenant: 4, tier: 1, class: 0 };
        batch.push_request(to(1), route, terms, Message::Small(b"one"));
        batch.push_reply(to(9), Outcome::Refused, Message::Shared(&large));
        batch.push_request(to(2), route, terms, Message::Shared(&large));
        batch.push_request(to(3), route, terms, Message::Small(b"three"));
        let requests: Vec<_> =
            batch.requests().map(|(to, _, _, message)| (to.sequence, message.bytes().to_vec())).collect();
        assert_eq!(requests, [(1, b"one".to_vec()), (2, large.to_vec()), (3, b"three".to_vec())]);
        assert_eq!(batch.replies().map(|(to, ..)| to.sequence).collect::<Vec<_>>(), [9]);
        batch.clear();
        assert!(batch.is_empty());
    }
}
