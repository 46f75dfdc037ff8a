//! Peers: batches of messages for other cores, at most one for each core per turn. Has no access to clients
//! or connections.

mod batch;

use std::collections::VecDeque;

pub use batch::Batch;

use super::copy::{Copy, CopyHits};
use super::fence::Fences;
use super::message::Message;
use super::monitor_board::Sender;
use super::note::Note;
use super::outcome::Outcome;
use super::request::{Envelope, ReplyTo};
use super::shared_channel::{FromHome, ToHome};
use super::tracking_redirect::RedirectMessage;
use crate::values::{ShardId, Spares};

/// The largest number of emptied batches of messages that a shard keeps for reuse; further ones are freed.
const SPARE_BATCHES_MAX: usize = 256;

/// The batches of messages that are being filled for other cores, and spare ones for reuse.
#[derive(Debug)]
pub struct PeerStage {
    outgoing: Vec<Option<Box<Batch>>>,
    /// Cores that a batch is being filled for, in the order in which each got its first message.
    touched: VecDeque<ShardId>,
    spare: Spares<Box<Batch>>,
}

impl PeerStage {
    /// Creates the state with which one of `shards` cores fills batches of messages for the other cores,
    /// without any batch.
    pub fn new(shards: u16) -> Self {
        let shards = usize::from(shards);
        Self {
            outgoing: std::iter::repeat_with(|| None).take(shards).collect(),
            touched: VecDeque::with_capacity(shards),
            spare: Spares::new(SPARE_BATCHES_MAX),
        }
    }

    /// Adds a request to the batch of messages for its key's home core (the core through which a key's requests
    /// pass). False if the batch is full (64 MiB): the request is then not added.
    #[inline]
    pub fn push_request(&mut self, to: ShardId, envelope: &Envelope, message: Message<'_>) -> bool {
        let batch = self.batch_for(to);
        let has_room = !batch.is_full();
        if has_room {
            batch.push_request(envelope, message);
        }
        has_room
    }

    /// Adds a reply to the batch for the core that has its client.
    #[inline]
    pub fn push_reply(&mut self, to: ReplyTo, outcome: Outcome, message: Message<'_>) {
        self.batch_for(to.shard).push_reply(to, outcome, message);
    }

    /// Adds a note (message) about a request to the batch for the core that has its client.
    pub fn push_note(&mut self, to: ReplyTo, note: Note) {
        self.batch_for(to.shard).push_note(to, note);
    }

    /// Adds a copy of a hot key's reply to the batch for another core. Drops the copy if that batch is full.
    pub fn push_copy(&mut self, to: ShardId, copy: Copy) {
        let batch = self.batch_for(to);
        if !batch.is_full() {
            batch.push_copy(copy);
        }
    }

    /// Adds the number of requests that this core answered from copies of a hot key's replies to the batch
    /// for the key's home core, which lent the copies.
    pub fn push_hits(&mut self, to: ShardId, hits: CopyHits) {
        self.batch_for(to).push_hits(hits);
    }

    /// Adds a line, which shows a request of a client of the tenant `sender`, for another core's monitors (clients that
    /// sent `MONITOR`) to the batch for that core. False if that batch has too many bytes of lines already: the line is
    /// then left out.
    pub fn push_line(&mut self, to: ShardId, sender: Sender, line: &[u8]) -> bool {
        self.batch_for(to).push_line(sender, line)
    }

    /// Adds a report of this core (a client joins or leaves a channel, or all its clients' subscriptions have
    /// ended) to the batch for the channel's home core, which has one subscription at each store for all
    /// clients.
    pub fn push_to_home(&mut self, own: ShardId, home: ShardId, message: ToHome) {
        self.batch_for(home).push_to_home(own, message);
    }

    /// Adds a message of this core, which as a channel's home core has one subscription for all clients, to the batch
    /// for a core with subscribers: a published message, the answer to a join, the loss of the subscription or the
    /// like. Numbers of subscribers go to any core.
    pub fn push_from_home(&mut self, to: ShardId, told: FromHome) {
        self.batch_for(to).push_from_home(told);
    }

    /// Adds a message about a client that takes the invalidation messages of another client (`CLIENT
    /// TRACKING` with `REDIRECT`) to the batch for another core.
    pub fn push_redirect(&mut self, to: ShardId, message: RedirectMessage) {
        self.batch_for(to).push_redirect(message);
    }

    /// Adds, to the batches for all other cores, the message that a store has answered a fence of this core
    /// (the request to kill a given-up connection), named by its sequence number.
    pub fn tell_lifted(&mut self, own: ShardId, sequence: u64) {
        for shard in (0..self.outgoing.len() as u16).map(ShardId).filter(|shard| *shard != own) {
            self.batch_for(shard).push_lifted(own, sequence);
        }
    }

    /// Returns the next batch of messages for another core, and that core; None if there is none. Adds the
    /// fences (given-up connections that stores are to kill) that the core was not sent yet. The receiving core
    /// handles the fences before all else in the batch, so that no request in it is carried out before the
    /// kills are known.
    pub fn poll(&mut self, fences: &mut Fences) -> Option<(ShardId, Box<Batch>)> {
        let shard = self.touched.pop_front()?;
        let mut batch = self.outgoing[usize::from(shard.0)].take().expect("a touched peer has a batch");
        if !fences.is_told(shard) {
            fences.tell(shard).for_each(|fence| batch.push_fence(fence.clone()));
        }
        Some((shard, batch))
    }

    /// Takes an emptied batch of messages back for reuse.
    pub fn recycle(&mut self, batch: Box<Batch>) {
        self.spare.push(batch);
    }

    /// Frees spare batches of messages that a burst has left. True if there may be more to free later.
    pub fn tidy(&mut self) -> bool {
        self.spare.tidy(drop)
    }

    #[inline]
    fn batch_for(&mut self, shard: ShardId) -> &mut Batch {
        let place = &mut self.outgoing[usize::from(shard.0)];
        if place.is_none() {
            self.touched.push_back(shard);
            *place = Some(self.spare.pop().unwrap_or_default());
        }
        place.as_mut().expect("just filled")
    }
}
