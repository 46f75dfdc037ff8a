//! What goes to other cores: at most one batch for each in a turn. Knows neither clients nor connections.

mod batch;

use std::collections::VecDeque;

pub use batch::Batch;

use super::copy::{Copy, CopyHits};
use super::fence::Fences;
use super::message::Message;
use super::note::Note;
use super::outcome::Outcome;
use super::request::{Envelope, ReplyTo};
use crate::values::{ShardId, Spares};

/// The largest number of spare batches that a shard keeps.
const SPARE_BATCHES_MAX: usize = 256;

/// Batches that are being filled, and those that can be filled again.
#[derive(Debug)]
pub struct Post {
    outgoing: Vec<Option<Box<Batch>>>,
    /// Those among them that have something in them, in the order in which they got it.
    touched: VecDeque<ShardId>,
    spare: Spares<Box<Batch>>,
}

impl Post {
    /// With nothing for any of so many shards.
    pub fn new(shards: u16) -> Self {
        let shards = usize::from(shards);
        Self {
            outgoing: std::iter::repeat_with(|| None).take(shards).collect(),
            touched: VecDeque::with_capacity(shards),
            spare: Spares::new(SPARE_BATCHES_MAX),
        }
    }

    /// Hands a request over. False if too much waits for that core already.
    #[inline]
    pub fn push_request(&mut self, to: ShardId, envelope: &Envelope, message: Message<'_>) -> bool {
        let batch = self.batch_for(to);
        let has_room = !batch.is_full();
        if has_room {
            batch.push_request(envelope, message);
        }
        has_room
    }

    /// Hands a reply over to the shard that has its client.
    #[inline]
    pub fn push_reply(&mut self, to: ReplyTo, outcome: Outcome, message: Message<'_>) {
        self.batch_for(to.shard).push_reply(to, outcome, message);
    }

    /// Tells the shard that has a client something about it.
    pub fn push_note(&mut self, to: ReplyTo, note: Note) {
        self.batch_for(to.shard).push_note(to, note);
    }

    /// Lends a reply to another shard, unless too much waits for it.
    pub fn push_copy(&mut self, to: ShardId, copy: Copy) {
        let batch = self.batch_for(to);
        if !batch.is_full() {
            batch.push_copy(copy);
        }
    }

    /// Tells another shard how often its copies were of use.
    pub fn push_hits(&mut self, to: ShardId, hits: CopyHits) {
        self.batch_for(to).push_hits(hits);
    }

    /// Tells all others that a fence of this shard's own stands no more.
    pub fn tell_lifted(&mut self, own: ShardId, sequence: u64) {
        for shard in (0..self.outgoing.len() as u16).map(ShardId).filter(|shard| *shard != own) {
            self.batch_for(shard).push_lifted(own, sequence);
        }
    }

    /// A batch for another shard, if there is one. Whatever that one does because of it, or of what a client sends it later,
    /// comes behind the fences that it was not told of yet.
    pub fn poll(&mut self, fences: &mut Fences) -> Option<(ShardId, Box<Batch>)> {
        let shard = self.touched.pop_front()?;
        let mut batch = self.outgoing[usize::from(shard.0)].take().expect("a touched peer has a batch");
        if !fences.is_told(shard) {
            fences.tell(shard).for_each(|fence| batch.push_fence(fence.clone()));
        }
        Some((shard, batch))
    }

    /// Takes an empty batch back.
    pub fn recycle(&mut self, batch: Box<Batch>) {
        self.spare.push(batch);
    }

    /// Gives back what a burst took. False once nothing is left to give back.
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
