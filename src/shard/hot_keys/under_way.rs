//! Requests in flight that concern hot keys, or may. Each core lists those that it has sent itself.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};

use bytes::Bytes;

use crate::policy::hot_keys::HotId;
use crate::protocol::Protocol;
use crate::shard::request::{Asker, Envelope, ReplyTo, Track};
use crate::shard::versions::{Cell, InnerRead, Snapshot, Versions};
use crate::values::Timestamp;

/// The hot keys that a request in flight reads or writes, and the version cells (counters of writes, shared
/// by all cores) that it has changed.
#[derive(Debug)]
pub enum Open {
    /// A read of one hot key, and the hash that identifies the read (command, key, RESP version and
    /// database).
    Read(HotId, u64),
    /// A write of one hot key, and the key's version cell (counter of writes).
    Write(HotId, Cell),
    /// A request for several keys: the hot ones, each with its version cell (counter of writes) if it is
    /// written.
    Keys(Box<[(HotId, Option<Cell>)]>),
    /// An `MGET`: the hot keys among its keys, whose values are compared with the kept replies (those held in
    /// memory) when the reply comes.
    Values(Values),
    /// A request that may be about keys of any core, such as `EXEC`, or a script that declares its keys.
    Anywhere {
        /// Version cells (counters of writes) of the keys that the request writes, which count the request as
        /// in flight.
        written: Box<[Cell]>,
        /// Reads within the request of keys that it does not write, in the order of their replies, which are
        /// compared with kept replies.
        read: Box<[InnerRead]>,
    },
    /// A write that may touch any key of a backend, and the backend's version cell (counter of writes).
    Cell(Cell),
    /// A request for a key that is not hot (its slot and hash), whose reply may cost much: the price is
    /// counted for the key.
    Costly(u16, u64),
}

/// An `MGET` that names at least one hot key, and is sent to the store.
#[derive(Debug)]
pub struct Values {
    /// The hot keys, each once, with the index of its first value in the reply.
    pub keys: Box<[(HotId, u32)]>,
    /// True if every key of the request is hot and named once, so that kept values can make up the whole
    /// reply.
    pub are_all: bool,
    pub asker: Option<Asker>,
    pub protocol: Protocol,
    /// True unless a replica answers: the reply is then at least as new as the kept replies (those held in
    /// memory), which are dropped where they differ.
    pub is_compared: bool,
}

impl Values {
    pub fn new(envelope: &Envelope, keys: Box<[(HotId, u32)]>, count: u32) -> Self {
        Self {
            are_all: keys.len() == count as usize,
            keys,
            asker: envelope.asker,
            protocol: envelope.route.protocol,
            is_compared: envelope.route.track != Track::Replica,
        }
    }
}

impl Open {
    /// True if a request may be about keys whose home core (the core through which a key's requests pass) is
    /// another one, or about keys that are unknown.
    fn is_about_any(&self) -> bool {
        matches!(self, Self::Anywhere { .. } | Self::Cell(_))
    }

    /// Calls `each` with every hot key that the request names; with none for a request that may be about keys of any
    /// core.
    pub fn for_each_key(&self, mut each: impl FnMut(HotId)) {
        match self {
            Self::Read(id, _) | Self::Write(id, _) => each(*id),
            Self::Keys(keys) => keys.iter().for_each(|(id, _)| each(*id)),
            Self::Values(values) => values.keys.iter().for_each(|(id, _)| each(*id)),
            Self::Anywhere { .. } | Self::Cell(_) | Self::Costly(..) => {}
        }
    }

    /// Calls `each` with the version cell (shared counter of writes) of every key that the request writes, or
    /// with the backend's cell if the keys are unknown.
    pub fn for_each_cell(&self, mut each: impl FnMut(Cell)) {
        match self {
            Self::Write(_, cell) | Self::Cell(cell) => each(*cell),
            Self::Keys(keys) => keys.iter().filter_map(|(_, cell)| *cell).for_each(each),
            Self::Anywhere { written, .. } => written.iter().copied().for_each(each),
            Self::Read(..) | Self::Values(_) | Self::Costly(..) => {}
        }
    }
}

/// A request that is sent to the store on its own, rather than waiting for a fetch that several reads share.
#[derive(Debug)]
struct Passed {
    open: Open,
    /// True once the bytes of the request are known to have been put on the connection to the store; not recorded in
    /// front of a cluster, where the request may have to be sent again.
    is_sent: bool,
}

/// A request that weir answered itself while stores may still carry it out.
#[derive(Debug)]
struct Unsettled {
    open: Open,
    /// The number of parts of the request that no store has answered yet, unless their connection to the store is
    /// lost.
    parts: u32,
    /// True as long as no part was lost with its connection: a lost part may still take effect, one to which its store
    /// has replied may not.
    is_certain: bool,
}

/// The requests in flight on one core that concern hot keys, or may.
#[derive(Debug)]
pub struct UnderWay {
    open: HashMap<ReplyTo, Passed>,
    /// The number of requests in `open` for each value of a hash of their reply address: a filter that shows, without a
    /// look into the map, that a reply belongs to none of them, as is the case for nearly all.
    marks: Box<[u32; MARKS]>,
    /// The number of requests in flight that may be about any key, by client connection.
    about_any: HashMap<u64, u32>,
    /// The requests that weir is about to answer itself (their deadline passed, or the store is stalled), each with the
    /// number of its parts that stores may still carry out.
    abandoned: HashMap<ReplyTo, u32>,
    /// Requests that weir answered itself, of which some parts are still at their stores.
    unsettled: HashMap<ReplyTo, Unsettled>,
    /// Writes that may still be carried out though their connection to the store is lost, each with the time
    /// until which it counts as in flight.
    lost: VecDeque<(Timestamp, Open)>,
    /// Kept replies that would have been sent if hot keys were not in shadow mode (decisions without effect).
    /// The store's reply is compared with them.
    compared: HashMap<ReplyTo, (Snapshot, Bytes)>,
}

const MARKS: usize = 1_024;

impl Default for UnderWay {
    fn default() -> Self {
        Self {
            open: HashMap::new(),
            marks: Box::new([0; MARKS]),
            about_any: HashMap::new(),
            abandoned: HashMap::new(),
            unsettled: HashMap::new(),
            lost: VecDeque::new(),
            compared: HashMap::new(),
        }
    }
}

fn mark_of(to: ReplyTo) -> usize {
    (to.client.wrapping_mul(61) ^ to.sequence) as usize % MARKS
}

impl UnderWay {
    /// True if a reply may be to one of the requests in flight that concern hot keys; false if it certainly
    /// is not.
    #[inline]
    pub fn may_have(&self, to: ReplyTo) -> bool {
        self.marks[mark_of(to)] > 0
    }

    pub fn len(&self) -> usize {
        self.open.len() + self.unsettled.len() + self.lost.len()
    }

    /// True if a client connection has an unanswered request, sent from this core, that may be about keys of other home
    /// cores, or about keys that are unknown.
    pub fn is_about_any(&self, connection: u64) -> bool {
        !self.about_any.is_empty() && self.about_any.contains_key(&connection)
    }

    pub fn open(&mut self, to: ReplyTo, open: Open) {
        if open.is_about_any() {
            *self.about_any.entry(to.connection()).or_default() += 1;
        }
        let before = self.open.insert(to, Passed { open, is_sent: false });
        self.marks[mark_of(to)] += u32::from(before.is_none());
        debug_assert!(before.is_none(), "a reply has one request: {to:?}");
    }

    /// Records that a request has been put on its connection to the store. Returns its hot keys and the
    /// counters of writes (cells) that it has changed in the first call, None in later ones and for an
    /// unknown request.
    pub fn handle_sent(&mut self, to: ReplyTo) -> Option<&Open> {
        let passed = self.open.get_mut(&to)?;
        (!std::mem::replace(&mut passed.is_sent, true)).then_some(&passed.open)
    }

    /// Removes a request that is answered. Returns its hot keys and the counters of writes (cells) that it
    /// has changed, and whether it is known to have been sent; None for an unknown request.
    pub fn close(&mut self, to: ReplyTo) -> Option<(Open, bool)> {
        let Passed { open, is_sent } = self.open.remove(&to)?;
        self.marks[mark_of(to)] -= 1;
        if open.is_about_any()
            && let Entry::Occupied(mut count) = self.about_any.entry(to.connection())
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some((open, is_sent))
    }

    /// Records that weir is about to answer a request itself, while the store may still carry it out, or a part
    /// of it. Does nothing for an unknown request.
    pub fn abandon(&mut self, to: ReplyTo) {
        if self.open.contains_key(&to) {
            *self.abandoned.entry(to).or_default() += 1;
        }
    }

    /// Records that a request, or a part of one, that weir answered before its store did is over at the store as well:
    /// the store has replied too or never got it (`is_certain`), or the connection to it is lost. With the last such
    /// part, removes the request and returns its hot keys and the counters of writes (cells) that it has changed, and
    /// whether it is certain for all parts that they take effect no more. None if the request is unknown, or if other
    /// parts of it may still be carried out.
    pub fn settle(&mut self, to: ReplyTo, is_certain: bool) -> Option<(Open, bool)> {
        if let Entry::Occupied(mut request) = self.unsettled.entry(to) {
            let unsettled = request.get_mut();
            unsettled.parts -= 1;
            unsettled.is_certain &= is_certain;
            return (unsettled.parts == 0).then(|| {
                let Unsettled { open, is_certain, .. } = request.remove();
                (open, is_certain)
            });
        }
        if let Entry::Occupied(mut parts) = self.abandoned.entry(to) {
            *parts.get_mut() -= 1;
            if *parts.get() == 0 {
                parts.remove();
            }
        }
        None
    }

    /// Keeps a request as in flight that was answered with an error, because its store may still carry it
    /// out. If weir answered it before the store did, it stays until the store has answered all its parts or
    /// their connections are lost; otherwise until the time `until`.
    pub fn handle_lost(&mut self, to: ReplyTo, open: Open, until: Timestamp) {
        match self.abandoned.remove(&to) {
            Some(parts) => {
                self.unsettled.insert(to, Unsettled { open, parts, is_certain: true });
            }
            None => self.put_off(open, until),
        }
    }

    /// Counts a write as in flight until `until`: its connection to the store is lost, and the store may
    /// still carry it out.
    pub fn put_off(&mut self, open: Open, until: Timestamp) {
        self.lost.push_back((until, open));
    }

    /// Returns the time at which the first lost write stops counting as in flight; None if there is none.
    pub fn due(&self) -> Option<Timestamp> {
        self.lost.front().map(|(until, _)| *until)
    }

    /// Removes the next lost write whose time has passed. Returns its hot keys and the counters of writes
    /// (cells) that it has changed. None if there is none.
    pub fn take_due(&mut self, now: Timestamp) -> Option<Open> {
        self.due().filter(|due| *due <= now)?;
        self.lost.pop_front().map(|(_, open)| open)
    }

    /// Keeps a reply for comparison with the store's reply to the same request (shadow mode). Does nothing
    /// without a snapshot, because a write is then in flight.
    pub fn compare(&mut self, to: ReplyTo, snapshot: Option<Snapshot>, reply: Bytes) {
        if let Some(snapshot) = snapshot {
            self.compared.insert(to, (snapshot, reply));
        }
    }

    /// Compares the store's reply to a request with the kept reply that [`Self::compare`] stored in shadow
    /// mode (decisions without effect): true if they are the same. None if no reply was stored, or if the key
    /// was written since.
    pub fn compared(&mut self, to: ReplyTo, versions: &Versions, reply: &[u8]) -> Option<bool> {
        let (snapshot, kept) = self.compared.remove(&to)?;
        versions.is_good(&snapshot).then(|| kept == reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{ClientId, ShardId};

    #[test]
    fn a_request_of_which_parts_were_given_up_is_under_way_until_all_of_them_are_answered() {
        let to = ReplyTo::new(ShardId(0), ClientId { index: 1, generation: 1 }, 7);
        for settled_before in 0..3 {
            let mut under_way = UnderWay::default();
            under_way.abandon(to);
            assert!(under_way.settle(to, true).is_none(), "nothing is known of it");
            under_way.open(to, Open::Cell(Cell::of_hash(5)));
            (0..3).for_each(|_| under_way.abandon(to));
            for _ in 0..settled_before {
                assert!(under_way.settle(to, true).is_none());
            }
            let (open, _) = under_way.close(to).expect("it is under way");
            under_way.handle_lost(to, open, Timestamp::from_millis(1));
            for left in (0..3 - settled_before).rev() {
                assert_eq!(
                    under_way.settle(to, left > 1).map(|(_, is_certain)| is_certain),
                    (left == 0).then_some(false)
                );
            }
            assert!(
                under_way.settle(to, true).is_none() && under_way.len() == 0 && under_way.due().is_none()
            );
        }
    }
}
