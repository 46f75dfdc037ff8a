//! Batch: all messages that one shard passes to another in a turn (pass of its loop), in buffers that are reused.
//!
//! ```text
//! shard i                                    shard j
//! requests for keys at home on j  ──batch──>  forwards them as its own
//! replies in the client's order   <──batch──  as they come from the backends
//! ```

use bytes::Bytes;

use crate::shard::copy::{Copy, CopyHits};
use crate::shard::fence::Fence;
use crate::shard::message::Message;
use crate::shard::monitor_board::Sender;
use crate::shard::note::Note;
use crate::shard::outcome::Outcome;
use crate::shard::request::{Envelope, ReplyTo};
use crate::shard::shared_channel::{FromHome, FromHomeQueue, ToHome};
use crate::shard::tracking_redirect::RedirectMessage;
use crate::values::ShardId;
use crate::values::limits::{BATCH_BYTES_MAX, MONITOR_BATCH_BYTES_MAX};

/// Place of a message's bytes in a batch: its length if they were copied to the common buffer, which is
/// read in order, or its index among the shared buffers if they are shared.
#[derive(Clone, Copy, Debug)]
enum Place {
    Copied(u32),
    Shared(u32),
}

#[derive(Clone, Copy, Debug)]
struct RequestEntry {
    envelope: Envelope,
    place: Place,
}

#[derive(Clone, Copy, Debug)]
struct ReplyEntry {
    to: ReplyTo,
    outcome: Outcome,
    place: Place,
}

/// The messages from one shard to another that are sent at the end of one turn (pass of the sender's loop).
#[derive(Debug, Default)]
pub struct Batch {
    requests: Vec<RequestEntry>,
    replies: Vec<ReplyEntry>,
    request_bytes: Vec<u8>,
    reply_bytes: Vec<u8>,
    shared: Vec<Bytes>,
    /// Number of bytes of all shared messages and of the copies of hot keys' replies.
    shared_bytes: usize,
    /// Notes (such as that too many requests of a connection are queued) about requests of the receiver's client
    /// connections, each with the reply address of the request.
    notes: Vec<(ReplyTo, Note)>,
    /// Fences: connections to stores that weir gave up, and that the stores are to kill. The receiver handles
    /// them before all else in the batch, so that no request of such a connection is carried out after a
    /// later request of the receiver.
    fences: Vec<Fence>,
    /// Fences that a store has answered, by the shard that raised them and their sequence number there: the
    /// receiver forgets them, and no longer asks the store to kill the connections.
    lifted: Vec<(ShardId, u64)>,
    /// Copies of hot keys' replies that the sender lends to the receiver, which answers requests from them.
    copies: Vec<Copy>,
    /// The sender's reports of how many requests it answered from copies of replies that the receiver lent it, one for
    /// each copy or hot key.
    hits: Vec<CopyHits>,
    /// Lines for monitors (clients that sent `MONITOR`) of the receiver: for each, the tenant of the client whose
    /// request it shows, and its length in `line_bytes`.
    lines: Vec<(Sender, u32)>,
    line_bytes: Vec<u8>,
    /// The sender's reports that its clients join or leave channels, or that all subscriptions of its clients to
    /// one have ended, to the receiver, which as the channels' home core has one subscription for all clients;
    /// each with the core that sent it.
    to_home: Vec<(ShardId, ToHome)>,
    /// The sender's messages about channels for which the sender, as the home core, has one subscription for all
    /// clients: to a receiver with subscribers, for instance, published messages, answers to joins, and losses of
    /// subscriptions; to any receiver, numbers of subscribers.
    from_home: FromHomeQueue,
    /// The sender's messages about clients that take the invalidation messages of other clients (`CLIENT
    /// TRACKING` with `REDIRECT`).
    redirects: Vec<RedirectMessage>,
}

/// Capacity in bytes (1 MiB) that each buffer of an emptied batch of messages keeps at most.
const BYTES_KEPT: usize = 1 << 20;

impl Batch {
    /// True if the batch contains no messages of any kind for the receiving core.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
            && self.replies.is_empty()
            && self.notes.is_empty()
            && self.fences.is_empty()
            && self.lifted.is_empty()
            && self.copies.is_empty()
            && self.hits.is_empty()
            && self.lines.is_empty()
            && self.to_home.is_empty()
            && self.from_home.is_empty()
            && self.redirects.is_empty()
    }

    /// Returns the number of bytes of all requests, replies, copies of hot keys' replies, lines for
    /// monitors and published messages in the batch.
    pub fn bytes(&self) -> usize {
        self.request_bytes.len()
            + self.reply_bytes.len()
            + self.shared_bytes
            + self.line_bytes.len()
            + self.from_home.message_bytes()
    }

    /// True if the batch of messages has 64 MiB or more (`BATCH_BYTES_MAX`), so that no further request or copy of a
    /// reply may be added.
    pub fn is_full(&self) -> bool {
        self.bytes() >= BATCH_BYTES_MAX
    }

    /// Adds a request, which the receiving core forwards to the store as the home core of its keys (all
    /// requests for a key pass through one core).
    pub fn push_request(&mut self, envelope: &Envelope, message: Message<'_>) {
        let place = place(&mut self.request_bytes, &mut self.shared, message);
        self.shared_bytes += message.shared_bytes();
        self.requests.push(RequestEntry { envelope: *envelope, place });
    }

    /// Adds a reply to a request of one of the receiver's clients; it is added even to a full batch.
    pub fn push_reply(&mut self, to: ReplyTo, outcome: Outcome, message: Message<'_>) {
        let place = place(&mut self.reply_bytes, &mut self.shared, message);
        self.shared_bytes += message.shared_bytes();
        self.replies.push(ReplyEntry { to, outcome, place });
    }

    /// Adds a note (message to the core of its client) about a request. The receiver handles it before all
    /// replies of the batch.
    pub fn push_note(&mut self, to: ReplyTo, note: Note) {
        self.notes.push((to, note));
    }

    /// Adds a fence (a connection to a store that was given up, and that the store is to kill before it gets
    /// further requests). The receiver handles it before all messages of the batch.
    pub fn push_fence(&mut self, fence: Fence) {
        self.fences.push(fence);
    }

    /// Adds a copy of a hot key's reply, which is lent to the receiver, so that it answers requests from
    /// it.
    pub fn push_copy(&mut self, copy: Copy) {
        self.shared_bytes += copy.bytes();
        self.copies.push(copy);
    }

    /// Adds the number of requests that the sender answered from copies of the replies for one of the
    /// receiver's hot keys.
    pub fn push_hits(&mut self, hits: CopyHits) {
        self.hits.push(hits);
    }

    /// Adds a line, which shows a request of a client of the tenant `sender`, for the receiver's monitors (clients that
    /// sent `MONITOR`). False if the batch has too many bytes of lines already: the line is then left out.
    pub fn push_line(&mut self, sender: Sender, line: &[u8]) -> bool {
        let has_room = self.line_bytes.len() + line.len() <= MONITOR_BATCH_BYTES_MAX;
        if has_room {
            self.lines.push((sender, line.len() as u32));
            self.line_bytes.extend_from_slice(line);
        }
        has_room
    }

    /// Returns the lines for monitors (clients that sent `MONITOR`), each with the tenant of the client whose request
    /// it shows, in the order in which they were added.
    pub fn lines(&self) -> impl Iterator<Item = (Sender, &[u8])> {
        let mut rest = self.line_bytes.as_slice();
        self.lines.iter().map(move |(sender, length)| {
            let (line, behind) = rest.split_at(*length as usize);
            rest = behind;
            (*sender, line)
        })
    }

    /// Adds the report that a client joins or leaves a channel, or that all subscriptions of a core's clients to
    /// it have ended, for the receiver, which as the home core has one subscription for all clients. `from` is
    /// the core that has the subscribers.
    pub fn push_to_home(&mut self, from: ShardId, message: ToHome) {
        self.to_home.push((from, message));
    }

    /// Adds a message about a channel for which the sender, as the home core, has one subscription for all clients: a
    /// published message, the answer to a join, a lost subscription or the like, for a receiver with subscribers, or
    /// numbers of subscribers, for any.
    pub fn push_from_home(&mut self, told: FromHome) {
        self.from_home.push(told);
    }

    /// Takes the reports about joins, leaves and ended subscriptions to channels for which the receiver, as the
    /// home core, has one subscription for all clients, each with the core that sent it.
    pub fn take_to_home(&mut self) -> Vec<(ShardId, ToHome)> {
        std::mem::take(&mut self.to_home)
    }

    /// Takes the next message about a channel for which the sender, as the home core, has one subscription for
    /// all clients (a published one, for instance); None if there is none.
    pub fn pop_from_home(&mut self) -> Option<FromHome> {
        self.from_home.pop()
    }

    /// Adds a message about a client that takes the invalidation messages of another client (`CLIENT
    /// TRACKING` with `REDIRECT`).
    pub fn push_redirect(&mut self, message: RedirectMessage) {
        self.redirects.push(message);
    }

    /// Takes out of the batch the messages about clients that take the invalidation messages of other
    /// clients (`CLIENT TRACKING` with `REDIRECT`).
    pub fn take_redirects(&mut self) -> Vec<RedirectMessage> {
        std::mem::take(&mut self.redirects)
    }

    /// Returns the copies of hot keys' replies that the sender lends to the receiver.
    pub fn copies(&self) -> &[Copy] {
        &self.copies
    }

    /// Returns the sender's reports of how many requests it answered from copies of replies that the receiver lent it.
    pub fn hits(&self) -> &[CopyHits] {
        &self.hits
    }

    /// Adds the message that a store has answered a fence (the request to kill a given-up connection).
    /// `origin` is the shard that raised the fence, `sequence` the number that this shard gave it.
    pub fn push_lifted(&mut self, origin: ShardId, sequence: u64) {
        self.lifted.push((origin, sequence));
    }

    /// Takes the fences (connections that stores are to kill) out of the batch: the new fences, and those that
    /// stores have answered, by the shard that raised each and its sequence number there.
    pub fn take_fences(&mut self) -> (Vec<Fence>, Vec<(ShardId, u64)>) {
        (std::mem::take(&mut self.fences), std::mem::take(&mut self.lifted))
    }

    /// Returns the requests that the receiver is to forward, with their bytes, in the order in which they
    /// were added.
    pub fn requests(&self) -> impl Iterator<Item = (&Envelope, Message<'_>)> {
        let mut at = 0;
        self.requests.iter().map(move |entry| {
            (&entry.envelope, found(&self.request_bytes, &self.shared, &mut at, entry.place))
        })
    }

    /// Returns the replies to requests of the receiver's clients, each with its reply address and outcome,
    /// in the order in which they were added.
    pub fn replies(&self) -> impl Iterator<Item = (ReplyTo, Outcome, Message<'_>)> {
        let mut at = 0;
        self.replies.iter().map(move |entry| {
            (entry.to, entry.outcome, found(&self.reply_bytes, &self.shared, &mut at, entry.place))
        })
    }

    /// Returns the notes (messages about requests of the receiver's clients, such as that too many are queued),
    /// each with the request's reply address, in the order in which they were added.
    pub fn notes(&self) -> impl Iterator<Item = (ReplyTo, Note)> {
        self.notes.iter().copied()
    }

    /// Empties the batch for its next use.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.replies.clear();
        self.notes.clear();
        self.copies.clear();
        self.hits.clear();
        self.lines.clear();
        self.shared.clear();
        self.shared_bytes = 0;
        self.fences.clear();
        self.lifted.clear();
        self.to_home.clear();
        self.redirects.clear();
        while self.from_home.pop().is_some() {}
        for buffer in [&mut self.request_bytes, &mut self.reply_bytes, &mut self.line_bytes] {
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
    use crate::protocol::Protocol;
    use crate::protocol::command::{Class, Effect};
    use crate::shard::request::{Asker, Nature, Overdue, Route, Touches, Track};
    use crate::values::limits::COPY_BYTES_MAX;
    use crate::values::{BackendId, Database, TenantId, Tier, Timestamp};

    #[test]
    fn messages_come_out_as_they_went_in() {
        let mut batch = Batch::default();
        let large = Bytes::from(vec![b'L'; COPY_BYTES_MAX + 1]);
        let to = |sequence| ReplyTo { shard: ShardId(1), part: 0, client: 2, generation: 3, sequence };
        let route = Route {
            slot: 7,
            backend: BackendId(0),
            protocol: Protocol::Resp3,
            track: Track::Heavy,
            database: Database(3),
        };
        let asker = Some(Asker::new(TenantId(4), 1));
        let nature = Nature::new(Class::Point, Effect::Read, false);
        let request = |sequence| Envelope {
            reply_to: to(sequence),
            route,
            asker,
            nature,
            touches: Touches::KEYS,
            tier: Tier::Standard,
            weight: 1_000,
            deadline: Timestamp::MAX,
            overdue: Overdue::Answered,
        };
        batch.push_request(&request(1), Message::Small(b"one"));
        batch.push_reply(to(9), Outcome::Refused, Message::Shared(&large));
        batch.push_request(&request(2), Message::Shared(&large));
        batch.push_request(&request(3), Message::Small(b"three"));
        let requests: Vec<_> =
            batch.requests().map(|(envelope, message)| (*envelope, message.bytes().to_vec())).collect();
        assert_eq!(
            requests,
            [(request(1), b"one".to_vec()), (request(2), large.to_vec()), (request(3), b"three".to_vec())]
        );
        assert_eq!(batch.replies().map(|(to, ..)| to.sequence).collect::<Vec<_>>(), [9]);
        let of = |tenant| Sender { tenant: TenantId(tenant), version: 1 };
        assert!(batch.push_line(of(4), b"+first\r\n") && batch.push_line(of(5), b"+second\r\n"));
        assert!(!batch.push_line(of(4), &vec![b'x'; MONITOR_BATCH_BYTES_MAX]), "lines are bounded");
        let lines: Vec<_> = batch.lines().collect();
        assert_eq!(lines, [(of(4), b"+first\r\n".as_slice()), (of(5), b"+second\r\n")]);
        batch.clear();
        assert!(batch.is_empty());
    }
}
