//! A request that is kept until it may be carried out, the handling of it then, and the times from which it waits.

use bytes::Bytes;

use super::ClientStage;
use super::identity::Identity;
use crate::protocol::{Argument, Arguments};
use crate::shard::env::Env;
use crate::shard::partition::Partition;
use crate::values::{ClientId, Timestamp};

/// The times from which a request's deadline and its waits are counted.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Time at which the request arrived, from which its deadline counts.
    pub came: Timestamp,
    /// Time at which the request was decoded, from which its waits for the map of a cluster and (`PUBLISH`) for earlier
    /// subscriptions count.
    pub began: Timestamp,
}

/// A request that is kept because it may not be carried out yet: it waits for earlier replies, for quotas, or for the
/// end of a `CLIENT PAUSE`, for instance. Requests that weir itself answers at `EXEC`, and copies of requests that may
/// have to be tried a second time, are kept in the same form.
#[derive(Debug)]
pub struct HeldRequest {
    /// The bytes of the whole request, as received.
    pub frame: Bytes,
    /// The positions of the request's arguments in `frame`.
    pub places: Vec<Argument>,
    /// The identity under which the request is carried out: that of its arrival, or of the `QOS CALL` that it
    /// came in.
    pub identity: Identity,
    /// The times at which the request arrived and was decoded.
    pub times: Times,
    /// The split of the request by key, if it has so many keys that this takes several turns (passes of the
    /// shard's loop); None for any other request.
    pub partition: Option<Box<Partition>>,
}

impl HeldRequest {
    /// Copies a request, to be carried out later under this identity. Its waits count from `times`.
    pub fn new(arguments: &Arguments<'_>, identity: &Identity, times: Times) -> Self {
        Self {
            frame: Bytes::copy_from_slice(arguments.frame()),
            places: arguments.places().to_vec(),
            identity: identity.clone(),
            times,
            partition: None,
        }
    }

    /// Holds a large request, without a copy of its bytes, while weir computes its `partition` (which keys go
    /// to which backend) over several turns (passes of the shard's loop). Its waits count from `times`.
    pub fn to_partition(
        (frame, places): (Bytes, Vec<Argument>),
        partition: Partition,
        identity: &Identity,
        times: Times,
    ) -> Self {
        Self { frame, places, identity: identity.clone(), times, partition: Some(Box::new(partition)) }
    }

    /// Returns the bytes of memory that the held request (kept to be handled later) takes.
    pub fn memory_bytes(&self) -> usize {
        let partition = self.partition.as_ref().map_or(0, |partition| partition.memory_bytes());
        self.frame.len() + self.places.capacity() * size_of::<Argument>() + partition
    }
}

/// The held request (kept to be handled later) that is being handled now, with the state to restore
/// afterwards; a shard handles one at a time.
#[derive(Debug)]
pub struct Resumed {
    /// Address in memory of the bytes of the request that is resumed, by which it is told from a request
    /// inside it (`QOS CALL`).
    address: usize,
    /// True once the request has to be held again, because it must wait for another condition.
    is_held_again: bool,
    partition: Option<Box<Partition>>,
    /// The client's times of arrival and decoding of before, which become its times again when the request has been
    /// handled.
    newest: Times,
}

impl Resumed {
    fn is(&self, arguments: &Arguments<'_>) -> bool {
        self.address == arguments.frame().as_ptr().addr()
    }
}

impl ClientStage {
    /// Begins to handle a held request (kept to be handled later). Until [`Self::end_held`], the client's times
    /// of arrival, from which deadlines count, and of decoding are those of the request.
    pub fn begin_held(&mut self, id: ClientId, held: &mut HeldRequest) {
        debug_assert!(self.resumed.is_none(), "held requests are handled one after the other");
        let newest = std::mem::replace(&mut self.clients.at(id).times, held.times);
        let (address, partition) = (held.frame.as_ptr().addr(), held.partition.take());
        self.resumed = Some(Resumed { address, is_held_again: false, partition, newest });
    }

    /// Ends the handling of a held request (kept to be handled later): restores the client's times of arrival and
    /// decoding, which [`Self::begin_held`] changed, and keeps the request if it has to wait again.
    pub fn end_held(&mut self, id: ClientId, mut held: Box<HeldRequest>) {
        let Some(Resumed { is_held_again, partition, newest, .. }) = self.resumed.take() else { return };
        let Some(client) = self.clients.get(id) else { return };
        client.times = newest;
        if is_held_again {
            held.partition = partition;
            client.held_request = Some(held);
        }
    }

    /// True if the request that is being handled, or was handled last, of a client has to wait, and is held (kept to
    /// be handled later).
    pub fn holds_request(&self, id: ClientId) -> bool {
        let is_held_again = self.resumed.as_ref().is_some_and(|resumed| resumed.is_held_again);
        is_held_again || self.clients.peek(id).is_some_and(|client| client.held_request.is_some())
    }

    /// Marks the held request (kept to be handled later) that is being handled to be held again, so that it
    /// need not be copied. Returns false if `arguments` are those of another request.
    pub(super) fn hold_again(&mut self, arguments: &Arguments<'_>) -> bool {
        let resumed = self.resumed.as_mut().filter(|resumed| resumed.is(arguments));
        resumed.map(|resumed| resumed.is_held_again = true).is_some()
    }

    /// Returns the complete split by key of the request that is being handled, if it was made over several turns
    /// (passes of the shard's loop). None otherwise, and if the first map of a cluster has come since: each slot then
    /// needs a part of its own.
    #[inline]
    pub fn partition(&self, env: &Env, arguments: &Arguments<'_>) -> Option<&Partition> {
        let resumed = self.resumed.as_ref().filter(|resumed| resumed.is(arguments))?;
        resumed.partition.as_deref().filter(|partition| partition.is_in_force(env, arguments))
    }

    /// Takes the complete split by key of the request that is being handled, if it was made over several turns (passes
    /// of the shard's loop). None otherwise, and if the first map of a cluster has come since: each slot then needs a
    /// part of its own.
    pub fn take_partition(&mut self, env: &Env, arguments: &Arguments<'_>) -> Option<Partition> {
        let resumed = self.resumed.as_mut().filter(|resumed| resumed.is(arguments))?;
        resumed
            .partition
            .take_if(|partition| partition.is_in_force(env, arguments))
            .map(|partition| *partition)
    }
}
