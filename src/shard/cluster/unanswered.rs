//! The bytes of requests that nodes of a cluster have not answered yet, because a request may have to be sent again to
//! another node. Its envelope (deadline, tenant, tier, RESP version) is not here, but in the list of the replies that
//! its connection owes.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::shard::message::Message;
use crate::values::limits::LINK_UNANSWERED_BYTES_MAX;
use crate::values::{Timestamp, shorten};

/// The least number of bytes that memory is reserved for, for the unanswered requests of one connection, from its first
/// request on.
const BYTES_MIN: usize = 4 * 1024;
/// The least number of unanswered requests of one connection that memory is reserved for, from its first
/// request on.
const REQUESTS_MIN: usize = 128;

/// History of a request that was not carried out when it came: nodes refused it, weir held it, or it is a
/// read that was lost with a connection and is sent again. All zero for a request that is sent for the first
/// time, at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tries {
    /// The number of redirects (MOVED, ASK, READONLY), and of losses with a connection, since a node last made the
    /// request wait.
    pub hops: u8,
    /// The number of times that a node made the request wait (TRYAGAIN, CLUSTERDOWN).
    pub waits: u8,
    /// The time from which on the one second counts for which the request may be held back: when it was first held or,
    /// if that was before, first redirected. Zero if it never was.
    pub held_since: Timestamp,
    /// True if the request was lost with a connection and is sent a second time.
    pub is_again: bool,
}

impl Tries {
    fn is_first(self) -> bool {
        !self.were_refused() && !self.is_again && self.held_since == Timestamp::ZERO
    }

    /// True if a node has refused the request before (MOVED, ASK, TRYAGAIN, CLUSTERDOWN), or if it was lost with a
    /// connection.
    pub fn were_refused(self) -> bool {
        self.hops > 0 || self.waits > 0
    }

    /// Returns a request's history with one more redirect (MOVED, ASK), or loss with a connection, added. A request may
    /// be held for one second in all; time before its first refusal no longer counts towards that.
    pub fn elsewhere(self, now: Timestamp) -> Self {
        let held_since = if self.were_refused() { self.held_since } else { now };
        Self { hops: self.hops.saturating_add(1), held_since, ..self }
    }

    /// Returns a request's history with one more refusal by a node that may carry the request out later (TRYAGAIN,
    /// CLUSTERDOWN). A request may be held for one second in all, to which time that it was held before counts. The
    /// count of redirects begins again at 0.
    pub fn once_more(self, now: Timestamp) -> Self {
        let held_since = if self.held_since == Timestamp::ZERO { now } else { self.held_since };
        Self { hops: 0, waits: self.waits.saturating_add(1), held_since, ..self }
    }
}

/// A request that was sent and may have to be sent again to another node.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The slot that the request was sent for; `NO_SLOT` or `PRIMARY` if no slot chose the node.
    pub slot: u16,
    /// The number of requests in the message: more than one for a transaction, or a fetch (shared read of a
    /// hot key) with `PTTL`.
    pub requests: u32,
    pub tries: Tries,
}

/// The entry of one request in the list of a connection's unanswered requests. Small, because there is one
/// for every request in flight.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The position of the request's bytes in the queue of kept requests, counted from the first byte ever
    /// kept, modulo 2^32.
    start: u32,
    slot: u16,
    /// True if the request has an [`Odd`] entry as well, with data that most requests lack (several
    /// requests in one message, earlier refusals, shared bytes).
    is_odd: bool,
}

const _: () = assert!(size_of::<Entry>() <= 8 && LINK_UNANSWERED_BYTES_MAX < u32::MAX as usize / 2);

/// Further data of the few unanswered requests that are a transaction or have commands sent before them, were
/// sent earlier, or have shared bytes.
#[derive(Debug)]
struct Odd {
    requests: u32,
    tries: Tries,
    shared: Option<Bytes>,
}

/// The requests that were sent over one connection and are unanswered, in their order. Answered ones are only
/// removed when room is needed, so that an answer costs little.
#[derive(Debug, Default)]
pub struct Unanswered {
    /// Entries of the requests sent over the connection, oldest first. Those from index `first` on are
    /// unanswered; those before it are answered and not removed yet.
    sent: Vec<Entry>,
    first: usize,
    odd: VecDeque<Odd>,
    /// Bytes of the unanswered requests, one request after the other, except those in shared buffers (in
    /// `odd`).
    bytes: Vec<u8>,
    base: u32,
    shared_length: usize,
    /// The first reply by which a node refused a part of the message that is being answered: a redirect in
    /// reply to a request of a transaction before its `EXEC` or to `ASKING`, or a reply to `ROLE` that shows
    /// a replica. None if no part was refused.
    pub step: Option<Vec<u8>>,
}

impl Unanswered {
    /// Adds a request that was sent for a slot, with the data that its envelope (reply address and terms) lacks
    /// to send it again: the number of requests in the message, its history and its bytes.
    #[inline]
    pub fn push(&mut self, (slot, requests): (u16, usize), tries: Tries, message: Message<'_>) {
        match message {
            Message::Small(bytes) if requests == 1 && tries.is_first() => {
                self.keep(slot, false, bytes);
            }
            message => self.push_odd((slot, requests), tries, message),
        }
    }

    #[cold]
    fn push_odd(&mut self, (slot, requests): (u16, usize), tries: Tries, message: Message<'_>) {
        let (bytes, shared) = match message {
            Message::Small(bytes) => (bytes, None),
            Message::Shared(bytes) => (&[][..], Some(bytes.clone())),
        };
        self.shared_length += message.shared_bytes();
        self.odd.push_back(Odd { requests: requests as u32, tries, shared });
        self.keep(slot, true, bytes);
    }

    #[inline]
    fn keep(&mut self, slot: u16, is_odd: bool, bytes: &[u8]) {
        if self.sent.len() == self.sent.capacity() || bytes.len() > self.bytes.capacity() - self.bytes.len() {
            self.make_room(bytes.len());
        }
        let start = self.base.wrapping_add(self.bytes.len() as u32);
        self.bytes.extend_from_slice(bytes);
        self.sent.push(Entry { start, slot, is_odd });
    }

    /// Makes room for another request of `wanted` bytes, by removing answered requests or by growing.
    #[cold]
    fn make_room(&mut self, wanted: usize) {
        self.close_up();
        if self.sent.capacity() == 0 {
            self.sent.reserve(REQUESTS_MIN);
            self.bytes.reserve(BYTES_MIN);
        }
        self.sent.reserve(1);
        self.bytes.reserve(wanted);
    }

    /// Removes answered requests, and their bytes, where they are at least half of all, so that never more is
    /// moved than is removed.
    fn close_up(&mut self) {
        let begin = self.offset(self.first);
        if begin >= self.bytes.len() / 2 {
            self.bytes.drain(..begin);
            self.base = self.base.wrapping_add(begin as u32);
        }
        if self.first >= self.sent.len() / 2 {
            self.sent.drain(..self.first);
            self.first = 0;
        }
    }

    /// Returns the index in `bytes` of the first byte of the request at index `place` of the list.
    fn offset(&self, place: usize) -> usize {
        let entry = self.sent.get(place);
        entry.map_or(self.bytes.len(), |entry| entry.start.wrapping_sub(self.base) as usize)
    }

    /// Removes the oldest request, because it is answered, and returns it, with a copy of its bytes if
    /// `is_wanted`, else without bytes. None if there is none.
    pub fn pop(&mut self, is_wanted: bool) -> Option<(Sent, Vec<u8>)> {
        let oldest = *self.sent.get(self.first)?;
        let odd = if oldest.is_odd { self.odd.front() } else { None };
        let sent = oldest.as_sent(odd);
        let frame = match odd {
            Some(Odd { shared: Some(bytes), .. }) => &bytes[..],
            _ => self.bytes.get(self.offset(self.first)..self.offset(self.first + 1))?,
        };
        let bytes = if is_wanted { frame.to_vec() } else { Vec::new() };
        self.forget();
        Some((sent, bytes))
    }

    /// Removes the oldest request because it is answered and will not be sent again.
    #[inline]
    pub fn forget(&mut self) {
        if !self.odd.is_empty() {
            self.forget_odd();
        }
        self.first += 1;
    }

    #[cold]
    fn forget_odd(&mut self) {
        if self.sent.get(self.first).is_some_and(|oldest| oldest.is_odd) {
            let shared = self.odd.pop_front().and_then(|odd| odd.shared);
            self.shared_length -= shared.map_or(0, |bytes| bytes.len());
        }
    }

    /// Returns the slot of the oldest unanswered request, which the next reply answers; None if there is
    /// none.
    pub fn next_slot(&self) -> Option<u16> {
        self.sent.get(self.first).map(|sent| sent.slot)
    }

    /// True if an unanswered request of the slot was sent again, after a node had refused it or it was lost with a
    /// connection.
    pub fn has_again(&self, slot: u16) -> bool {
        !self.odd.is_empty() && self.all().any(|sent| sent.slot == slot && sent.tries.were_refused())
    }

    /// True if the kept bytes of a connection's unanswered requests are below 64 MiB
    /// (`LINK_UNANSWERED_BYTES_MAX`), so that more requests may be sent.
    pub fn has_room(&self) -> bool {
        let at_most = self.bytes.len() + self.shared_length;
        at_most < LINK_UNANSWERED_BYTES_MAX || self.length() < LINK_UNANSWERED_BYTES_MAX
    }

    #[cold]
    fn length(&self) -> usize {
        self.bytes.len() - self.offset(self.first) + self.shared_length
    }

    /// Frees unused memory that a connection's list of unanswered requests took in a burst.
    pub fn tidy(&mut self) {
        self.close_up();
        shorten(&mut self.odd);
        shrink(&mut self.sent, REQUESTS_MIN);
        shrink(&mut self.bytes, BYTES_MIN);
    }

    /// Iterates over all unanswered requests, in their order.
    pub fn all(&self) -> impl Iterator<Item = Sent> {
        let mut odd = self.odd.iter();
        self.entries().iter().map(move |entry| entry.as_sent(if entry.is_odd { odd.next() } else { None }))
    }

    /// Returns the number of unanswered requests.
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// Iterates over the slots of all unanswered requests.
    pub fn slots(&self) -> impl Iterator<Item = u16> {
        self.entries().iter().map(|entry| entry.slot)
    }

    fn entries(&self) -> &[Entry] {
        self.sent.get(self.first..).unwrap_or_default()
    }
}

/// Shrinks the memory of a list that is less than a quarter full, to twice the list's length but not below
/// the capacity `least`.
fn shrink<T>(list: &mut Vec<T>, least: usize) {
    if list.capacity() > least && list.len() < list.capacity() / 4 {
        list.shrink_to((list.len() * 2).max(least));
    }
}

impl Entry {
    fn as_sent(self, odd: Option<&Odd>) -> Sent {
        let tries = odd.map(|odd| odd.tries).unwrap_or_default();
        Sent { slot: self.slot, requests: odd.map_or(1, |odd| odd.requests), tries }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Entry of the model in the tests: a slot, the number of requests in the message, and the number of
    /// redirects so far.
    type Told = (u16, u32, u8);

    fn told(sent: Sent) -> Told {
        (sent.slot, sent.requests, sent.tries.hops)
    }

    proptest! {
        #[test]
        fn they_come_back_in_order_and_as_they_were(
            steps in prop::collection::vec((0..6_u8, 0..3_000_usize, any::<u8>()), 1..300),
        ) {
            let mut unanswered = Unanswered::default();
            let mut most = 0;
            let mut model: VecDeque<(Told, Vec<u8>)> = VecDeque::new();
            for (number, (step, length, fill)) in steps.into_iter().enumerate() {
                let (slot, frame) = (number as u16, vec![fill; length]);
                match step {
                    0..=2 => {
                        let shared = Bytes::copy_from_slice(&frame);
                        let message = if step == 0 { Message::Shared(&shared) } else { Message::Small(&frame) };
                        // Some requests are sent for the second time, and some count as many.
                        let tries = Tries { hops: u8::from(fill % 7 == 0), ..Tries::default() };
                        let requests = if fill % 5 == 0 { 65_537 } else { 1 };
                        unanswered.push((slot, requests as usize), tries, message);
                        model.push_back(((slot, requests, tries.hops), frame));
                    }
                    3 => {
                        let found = unanswered.pop(true);
                        let found = found.map(|(sent, bytes)| (told(sent), bytes));
                        prop_assert_eq!(found, model.pop_front());
                    }
                    4 => {
                        prop_assert_eq!(unanswered.next_slot(), model.pop_front().map(|((slot, ..), _)| slot));
                        if unanswered.next_slot().is_some() {
                            unanswered.forget();
                        }
                    }
                    _ => unanswered.tidy(),
                }
                let all: Vec<_> = unanswered.all().map(told).collect();
                let expected: Vec<_> = model.iter().map(|(told, _)| *told).collect();
                prop_assert_eq!(all, expected);
                prop_assert_eq!(unanswered.len(), model.len());
                let length = model.iter().map(|(_, frame)| frame.len()).sum::<usize>();
                prop_assert_eq!(unanswered.length(), length);
                let (kept, most) = (unanswered.bytes.capacity(), &mut most);
                *most = (*most).max(length);
                prop_assert!(kept <= BYTES_MIN + 4 * *most + 3_000, "{} are kept", kept);
            }
        }
    }
}
