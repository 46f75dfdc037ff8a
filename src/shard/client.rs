//! One client connection: what it sent and has not been answered, in order, and what goes back to it.

use std::collections::VecDeque;

use bytes::Bytes;

use super::accounts::Charge;
use super::client_list::Paused;
use super::identify::Identity;
use super::tidying::shorten;
use super::track::Tracks;
use super::transaction::{Splice, Transaction};
use crate::protocol::{Argument, Arguments, BufferPool, Output, Protocol, RequestDecoder};
use crate::shard::batch::Message;
use crate::values::limits::REQUESTS_PER_TURN;
use crate::values::{ClientId, TenantId, Timestamp};

/// A reply that came before its turn.
#[derive(Debug)]
pub(super) enum Stored {
    /// Short enough to be kept in place.
    Short { length: u8, bytes: [u8; Self::SHORT_BYTES_MAX] },
    /// In a buffer of the pool.
    Pooled(Vec<u8>),
    /// Large, and shared.
    Shared(Bytes),
}

impl Stored {
    const SHORT_BYTES_MAX: usize = 22;

    pub fn new(message: Message<'_>, pool: &mut BufferPool) -> Self {
        match message {
            Message::Shared(bytes) => Self::Shared(bytes.clone()),
            Message::Small(bytes) if bytes.len() <= Self::SHORT_BYTES_MAX => {
                let mut place = [0; Self::SHORT_BYTES_MAX];
                place[..bytes.len()].copy_from_slice(bytes);
                Self::Short { length: bytes.len() as u8, bytes: place }
            }
            Message::Small(bytes) => {
                let mut buffer = pool.take();
                buffer.extend_from_slice(bytes);
                Self::Pooled(buffer)
            }
        }
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Pooled(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }

    pub fn release(self, pool: &mut BufferPool) {
        if let Self::Pooled(buffer) = self {
            pool.give(buffer);
        }
    }

    fn send(self, output: &mut Output, pool: &mut BufferPool) {
        match &self {
            Self::Shared(bytes) => output.append_shared(pool, bytes),
            other => output.append(pool, other.bytes()),
        }
        self.release(pool);
    }
}

/// What must be done to a reply before it is the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rewrite {
    /// Nothing: the store's reply is the client's.
    AsItCame,
    /// The cursor that a store returned becomes one that also says which store is next.
    Cursor {
        /// The store that was asked.
        backend: u16,
    },
    /// Several replies become one; an index into the table of gathers.
    Gather(u32),
    /// What weir answers itself in a transaction takes its places.
    Splice,
}

/// A request that has not been answered, or whose reply is not the next one to go out.
#[derive(Debug)]
pub(super) enum Slot {
    Waiting(Rewrite, Option<Charge>),
    Ready(Stored),
}

/// A request that may not start before all earlier ones of its connection are answered.
#[derive(Debug)]
pub(super) struct HeldRequest {
    pub frame: Vec<u8>,
    pub places: Vec<Argument>,
    /// On whose terms it is to run.
    pub identity: Identity,
}

impl HeldRequest {
    pub fn new(arguments: &Arguments<'_>, identity: &Identity) -> Self {
        Self {
            frame: arguments.frame().to_vec(),
            places: arguments.places().to_vec(),
            identity: identity.clone(),
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.frame.capacity() + self.places.capacity() * size_of::<Argument>()
    }
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It does not.
    Open,
    /// The client sends no more: what it sent is answered, then it is closed.
    NoMoreInput,
    /// Nothing further is read from it: what was taken on is answered, then it is closed.
    Deaf,
}

/// Both ends of a connection, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// The client's.
    pub peer: Box<str>,
    /// Weir's.
    pub local: Box<str>,
}

#[derive(Debug)]
pub(super) struct Client {
    /// What `CLIENT ID` says.
    pub number: u64,
    pub protocol: Protocol,
    pub identity: Identity,
    /// Whose seat it has taken.
    pub seat: Option<TenantId>,
    /// Since when it has yet to log in.
    pub stranger_since: Option<Timestamp>,
    pub name: Vec<u8>,
    pub library: [Vec<u8>; 2],
    /// Where it is, as sockets name it.
    pub address: Box<Address>,
    pub opened: Timestamp,
    /// It is not closed for what all clients hold.
    pub no_evict: bool,
    /// What of it waits by order.
    pub paused: Paused,
    /// Its next request, held or not, waits by order.
    pub waits_by_order: bool,
    /// Attempts to log in that failed.
    pub logins_failed: u8,
    pub decoder: RequestDecoder,
    pub transaction: Option<Box<Transaction>>,
    /// What belongs into the reply to the transaction that is under way; there is one at a time.
    pub splice: Option<Box<Splice>>,
    slots: VecDeque<Slot>,
    /// Bytes of replies, and of parts of replies, that wait for others.
    pub stored_bytes: usize,
    first_sequence: u32,
    /// Which connections its requests take.
    pub tracks: Tracks,
    /// Requests after the one that is under way must wait until it is answered.
    pub barrier: bool,
    pub held_request: Option<Box<HeldRequest>>,
    /// The held request waits for a pool of quotas to answer.
    pub waits_for_quota: bool,
    pub ending: Ending,
    pub output: Output,
    /// Since when a segment is with the socket.
    pub sending_since: Option<Timestamp>,
    pub last_heard: Timestamp,
    pub reading_paused: bool,
    /// The turn in which requests of it were taken on last, and how many more may be in that one.
    pub turn: u32,
    pub turn_left: u32,
    /// Requests (or parts of them) are held that were not looked at yet.
    pub stalled: bool,
    /// In the list of those with something to send.
    pub listed_to_send: bool,
    /// In the list of those whose replies wait for the rest of their pipeline.
    pub listed_partial: bool,
    /// In the list of those that may go on decoding, at the end of this turn or of the next.
    pub listed_to_resume: bool,
}

impl Client {
    fn new(number: u64, identity: Identity, now: Timestamp) -> Self {
        Self {
            number,
            protocol: Protocol::Resp2,
            identity,
            seat: None,
            stranger_since: None,
            name: Vec::new(),
            library: [Vec::new(), Vec::new()],
            address: Box::default(),
            opened: now,
            no_evict: false,
            paused: Paused::Nothing,
            waits_by_order: false,
            logins_failed: 0,
            decoder: RequestDecoder::default(),
            transaction: None,
            splice: None,
            slots: VecDeque::new(),
            stored_bytes: 0,
            first_sequence: 0,
            tracks: Tracks::default(),
            barrier: false,
            held_request: None,
            waits_for_quota: false,
            ending: Ending::Open,
            output: Output::default(),
            sending_since: None,
            last_heard: now,
            reading_paused: false,
            turn: 0,
            turn_left: REQUESTS_PER_TURN,
            stalled: false,
            listed_to_send: false,
            listed_partial: false,
            listed_to_resume: false,
        }
    }

    /// Requests that have not been answered to the client.
    pub fn unanswered(&self) -> usize {
        self.slots.len()
    }

    /// The number of the oldest request that has not been answered, and the one that the next request gets.
    pub fn sequences(&self) -> (u32, u32) {
        (self.first_sequence, self.first_sequence.wrapping_add(self.slots.len() as u32))
    }

    /// Takes the next place in the order of replies.
    #[inline]
    pub fn expect_reply(&mut self, rewrite: Rewrite, charge: Option<Charge>) -> u32 {
        let (_, sequence) = self.sequences();
        self.slots.push_back(Slot::Waiting(rewrite, charge));
        sequence
    }

    /// What the reply with this number still needs, and what was taken for its request, if anything: it is settled once,
    /// with the reply.
    /// `None` if it was never expected or is already there.
    pub fn waiting(&self, sequence: u32) -> Option<(Rewrite, Option<&Charge>)> {
        match self.slots.get(self.offset_of(sequence)) {
            Some(Slot::Waiting(rewrite, charge)) => Some((*rewrite, charge.as_ref())),
            _ => None,
        }
    }

    /// All charges that are not settled, each with the number of its request, and whether its reply comes in parts.
    pub fn open_charges(&self) -> impl Iterator<Item = (u32, Rewrite, Charge)> {
        (self.first_sequence..).zip(&self.slots).filter_map(|(sequence, slot)| match slot {
            Slot::Waiting(rewrite, Some(charge)) => Some((sequence, *rewrite, *charge)),
            _ => None,
        })
    }

    fn offset_of(&self, sequence: u32) -> usize {
        sequence.wrapping_sub(self.first_sequence) as usize
    }

    /// The reply with this number is there. It goes out if it is its turn, with those that waited for it.
    pub fn answer(&mut self, sequence: u32, message: Message<'_>, pool: &mut BufferPool) {
        let offset = self.offset_of(sequence);
        debug_assert!(matches!(self.slots.get(offset), Some(Slot::Waiting(..))), "one reply per request");
        if offset > 0 {
            self.stored_bytes += message.bytes().len();
            self.slots[offset] = Slot::Ready(Stored::new(message, pool));
            return;
        }
        match message {
            Message::Small(bytes) => self.output.append(pool, bytes),
            Message::Shared(bytes) => self.output.append_shared(pool, bytes),
        }
        self.slots.pop_front();
        self.first_sequence = self.first_sequence.wrapping_add(1);
        while let Some(Slot::Ready(_)) = self.slots.front() {
            let Some(Slot::Ready(stored)) = self.slots.pop_front() else { unreachable!("seen just now") };
            self.stored_bytes -= stored.len();
            stored.send(&mut self.output, pool);
            self.first_sequence = self.first_sequence.wrapping_add(1);
        }
    }

    /// A reply that weir writes itself, for a request that never left.
    pub fn answer_now(&mut self, pool: &mut BufferPool, write: impl FnOnce(&mut Vec<u8>)) {
        if self.slots.is_empty() {
            self.first_sequence = self.first_sequence.wrapping_add(1);
            write(self.output.buffer(pool));
            return;
        }
        let mut buffer = pool.take();
        write(&mut buffer);
        let stored = Stored::new(Message::Small(&buffer), pool);
        self.stored_bytes += stored.len();
        pool.give(buffer);
        self.slots.push_back(Slot::Ready(stored));
    }

    /// Memory that the list of unanswered requests takes.
    pub fn slots_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    /// Bytes that wait to be sent, or for replies that come before them.
    #[inline]
    pub fn waiting_bytes(&self) -> usize {
        self.output.len() + self.stored_bytes
    }

    /// Gathers that nobody will complete, when the client leaves.
    pub fn open_gathers(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Waiting(Rewrite::Gather(index), _) => Some(*index),
            _ => None,
        })
    }

    /// Gives back what a long pipeline took.
    pub fn tidy(&mut self) {
        shorten(&mut self.slots);
        self.decoder.tidy();
    }

    fn release(&mut self, pool: &mut BufferPool) {
        self.output.clear(pool);
        for slot in self.slots.drain(..) {
            if let Slot::Ready(stored) = slot {
                stored.release(pool);
            }
        }
    }
}

/// All clients of a shard. A place is used again, under a new generation.
#[derive(Debug, Default)]
pub(super) struct Clients {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    client: Option<Box<Client>>,
}

impl Clients {
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub fn open(&mut self, number: u64, identity: Identity, now: Timestamp) -> ClientId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, client: None });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.generation = place.generation.wrapping_add(1);
        place.client = Some(Box::new(Client::new(number, identity, now)));
        ClientId { index, generation: place.generation }
    }

    pub fn close(&mut self, id: ClientId, pool: &mut BufferPool) -> Option<Box<Client>> {
        let place = &mut self.places[id.index as usize];
        if place.generation != id.generation {
            return None;
        }
        let mut client = place.client.take()?;
        client.release(pool);
        self.free.push(id.index);
        Some(client)
    }

    /// The client, unless it has left.
    pub fn get(&mut self, id: ClientId) -> Option<&mut Client> {
        self.places
            .get_mut(id.index as usize)
            .filter(|place| place.generation == id.generation)
            .and_then(|place| place.client.as_deref_mut())
    }

    /// The client, which the caller knows to be there.
    pub fn at(&mut self, id: ClientId) -> &mut Client {
        self.get(id).expect("the caller holds the id of an open client")
    }

    /// The same to look at only.
    pub fn peek(&self, id: ClientId) -> Option<&Client> {
        let place = self.places.get(id.index as usize)?;
        place.client.as_deref().filter(|_| place.generation == id.generation)
    }

    pub fn all(&self) -> impl Iterator<Item = &Client> {
        self.places.iter().filter_map(|place| place.client.as_deref())
    }

    pub fn ids(&self) -> impl Iterator<Item = ClientId> {
        (0..self.places()).filter_map(|index| self.in_place(index))
    }

    /// How many places there are, taken or not.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// Who is in a place, if anyone.
    pub fn in_place(&self, index: usize) -> Option<ClientId> {
        let place = &self.places[index];
        place.client.as_ref().map(|_| ClientId { index: index as u32, generation: place.generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_leave_in_the_order_of_requests() {
        let mut pool = BufferPool::new(8);
        let mut client = Client::new(1, Identity::default(), Timestamp::ZERO);
        let first = client.expect_reply(Rewrite::AsItCame, None);
        let second = client.expect_reply(Rewrite::AsItCame, None);
        client.answer_now(&mut pool, |out| out.extend_from_slice(b"third "));
        let fourth = client.expect_reply(Rewrite::AsItCame, None);
        client.answer(
            fourth,
            Message::Small(b"a fourth reply that is too long to be kept in place "),
            &mut pool,
        );
        client.answer(second, Message::Small(b"second "), &mut pool);
        assert!(client.output.is_empty());
        client.answer(first, Message::Small(b"first "), &mut pool);
        let sent = client.output.take().expect("all are ready");
        assert_eq!(
            String::from_utf8_lossy(&sent.bytes()),
            "first second third a fourth reply that is too long to be kept in place "
        );
        assert_eq!(client.unanswered(), 0);
    }

    #[test]
    fn a_place_is_not_mistaken_for_its_former_owner() {
        let mut clients = Clients::default();
        let mut pool = BufferPool::new(1);
        let former = clients.open(1, Identity::default(), Timestamp::ZERO);
        clients.close(former, &mut pool);
        let owner = clients.open(2, Identity::default(), Timestamp::ZERO);
        assert_eq!(owner.index, former.index);
        assert!(clients.get(former).is_none() && clients.get(owner).is_some());
        assert!(clients.close(former, &mut pool).is_none());
        assert_eq!(clients.len(), 1);
    }
}
