//! What a connection has queued since `MULTI`.

use super::held::HeldRequest;
use crate::policy::price::Asked;
use crate::protocol::command::{Command, LocalCommand};
use crate::protocol::{Arguments, encode, reply};
use crate::values::limits::DESCRIPTION_BYTES_MAX;
use crate::values::{BackendId, Weights};

/// Requests that are carried out together.
#[derive(Debug, Default)]
pub struct Transaction {
    frames: Vec<u8>,
    requests: usize,
    /// What they are asked to cost, together.
    asked: Asked,
    /// Those that weir answers itself.
    locals: Vec<LocalRequest>,
    /// Bytes of those.
    locals_bytes: usize,
    /// Where the keys so far live.
    place: Option<(u16, BackendId)>,
    /// A request could not be queued, so `EXEC` will refuse.
    poisoned: bool,
}

/// A queued request that weir answers itself.
#[derive(Debug)]
pub struct LocalRequest {
    /// Its place in the transaction.
    position: usize,
    /// How it is answered.
    pub local: LocalCommand,
    /// Its row in the table.
    pub command: &'static Command,
    /// What was sent.
    pub request: HeldRequest,
}

/// Why a request could not be queued.
#[derive(Clone, Copy, Debug)]
pub enum NotQueued {
    /// Its keys live on another store than those before.
    Apart,
    /// The transaction has no room for it.
    TooLarge,
}

impl Transaction {
    /// What it takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.frames.capacity() + self.locals_bytes
    }

    /// Requests that were queued, whoever answers them.
    pub fn len(&self) -> usize {
        self.requests + self.locals.len()
    }

    /// `EXEC` will refuse it.
    pub fn poison(&mut self) {
        self.poisoned = true;
    }

    /// Will `EXEC` refuse it?
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// Will `EXEC` send something to a store?
    pub fn reaches_stores(&self) -> bool {
        self.requests > 0 && !self.poisoned
    }

    /// What all of it is asked to cost; nothing if there is nothing to carry out.
    pub fn asked(&self) -> Option<Asked> {
        (!self.poisoned && self.len() > 0).then_some(self.asked)
    }

    /// Where it goes: which slot, where only requests for one slot may stand together, and which backend. Nowhere without keys.
    pub fn place(&self) -> Option<(u16, BackendId)> {
        self.place
    }

    /// Those that weir answers itself.
    pub fn locals(&self) -> &[LocalRequest] {
        &self.locals
    }

    /// All that goes to the store, as one block, and how many replies that has; none if nothing does.
    pub fn into_block(mut self) -> Option<(Vec<u8>, usize)> {
        if self.requests == 0 {
            return None;
        }
        encode::request(&mut self.frames, [b"EXEC".as_slice()].into_iter());
        // One reply to MULTI, one per queued request, and the one that counts.
        Some((self.frames, self.requests + 2))
    }

    /// Queues a request for the place that has its keys; none if it has no keys.
    pub fn queue(
        &mut self,
        place: Option<(u16, BackendId)>,
        arguments: &Arguments<'_>,
        (asked, weights): (&Asked, &Weights),
        bytes_max: usize,
    ) -> Result<(), NotQueued> {
        if let (Some(one), Some(other)) = (self.place, place)
            && one != other
        {
            return Err(NotQueued::Apart);
        }
        if !self.has_room_for(arguments.frame().len(), bytes_max) {
            return Err(NotQueued::TooLarge);
        }
        self.place = self.place.or(place);
        if self.requests == 0 {
            encode::request(&mut self.frames, [b"MULTI".as_slice()].into_iter());
        }
        self.frames.extend_from_slice(arguments.frame());
        self.requests += 1;
        self.asked.add(asked, weights);
        Ok(())
    }

    /// Queues a request that weir answers itself.
    pub fn queue_local(
        &mut self,
        (command, local): (&'static Command, LocalCommand),
        request: HeldRequest,
        (asked, weights): (&Asked, &Weights),
        bytes_max: usize,
    ) -> Result<(), NotQueued> {
        let bytes = request.memory_bytes() + size_of::<LocalRequest>();
        if !self.has_room_for(bytes, bytes_max) {
            return Err(NotQueued::TooLarge);
        }
        self.locals.push(LocalRequest { position: self.len(), local, command, request });
        self.locals_bytes += bytes;
        if local.is_priced() {
            self.asked.add(asked, weights);
        }
        Ok(())
    }

    fn has_room_for(&self, bytes: usize, bytes_max: usize) -> bool {
        self.frames.len() + self.locals_bytes + bytes <= bytes_max
    }
}

/// What weir answers itself in a transaction whose other replies are to come, each with its place.
#[derive(Debug, Default)]
pub struct Splice {
    replies: Vec<(usize, Vec<u8>)>,
    bytes: usize,
}

/// Weir's own answers in a transaction are longer than they may be.
#[derive(Clone, Copy, Debug)]
pub struct TooLong;

impl Splice {
    /// What it takes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Is there nothing in it?
    pub fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// One more answer of weir's own.
    pub fn push(&mut self, request: &LocalRequest, reply: Vec<u8>) -> Result<(), TooLong> {
        self.bytes += reply.len();
        if self.bytes > DESCRIPTION_BYTES_MAX {
            return Err(TooLong);
        }
        self.replies.push((request.position, reply));
        Ok(())
    }

    /// The reply to `EXEC` with these in their places. What is no array is for nobody to add to.
    pub fn put_into(&self, reply: &[u8]) -> Vec<u8> {
        let Some(elements) = reply::elements(reply) else { return reply.to_vec() };
        let mut out = Vec::with_capacity(reply.len() + self.bytes + 16);
        encode::array(&mut out, elements.left() + self.replies.len());
        let mut own = self.replies.iter().peekable();
        let mut position = 0;
        for element in elements {
            while let Some((_, reply)) = own.next_if(|(place, _)| *place == position) {
                out.extend_from_slice(reply);
                position += 1;
            }
            out.extend_from_slice(element);
            position += 1;
        }
        own.for_each(|(_, reply)| out.extend_from_slice(reply));
        out
    }
}
