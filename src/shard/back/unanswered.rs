//! What nodes of a cluster have yet to answer, as it was sent: it may have to be sent again, to another one. So all that travels with
//! a request is kept here, as it was: what is sent again has the deadline, the payer, the tier and the dialect of the first time.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::shard::message::Message;
use crate::shard::request::Envelope;
use crate::values::limits::LINK_UNANSWERED_BYTES_MAX;
use crate::values::{Timestamp, shorten};

/// Room there is from the first request on, for bytes and for requests.
const BYTES_MIN: usize = 4 * 1024;
const REQUESTS_MIN: usize = 128;

/// How often a request was refused without being carried out, and since when it has been held.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tries {
    /// Redirections, since a node made it wait.
    pub hops: u8,
    /// Times that a node made it wait.
    pub waits: u8,
    /// When it was held first, if it was.
    pub held_since: Timestamp,
    /// It was lost with a connection.
    pub is_again: bool,
}

impl Tries {
    fn is_first(self) -> bool {
        !self.were_refused() && !self.is_again && self.held_since == Timestamp::ZERO
    }

    /// True if it was sent before, and refused.
    pub fn were_refused(self) -> bool {
        self.hops > 0 || self.waits > 0
    }

    /// Counts a refusal that sends the request elsewhere (MOVED, ASK). Time that it waited behind others before does not count.
    pub fn elsewhere(self, now: Timestamp) -> Self {
        let held_since = if self.were_refused() { self.held_since } else { now };
        Self { hops: self.hops.saturating_add(1), held_since, ..self }
    }

    /// Counts a refusal by a node that may carry the request out later (TRYAGAIN, CLUSTERDOWN). All the time that it has waited counts.
    pub fn once_more(self, now: Timestamp) -> Self {
        let held_since = if self.held_since == Timestamp::ZERO { now } else { self.held_since };
        Self { hops: 0, waits: self.waits.saturating_add(1), held_since, ..self }
    }
}

/// A request that was sent, as it was: it may have to be sent again.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// What travelled with it.
    pub envelope: Envelope,
    /// Of how many requests it is made.
    pub requests: u16,
    pub tries: Tries,
}

impl Sent {
    /// The slot that it was sent for.
    pub fn slot(&self) -> u16 {
        self.envelope.route.slot
    }
}

/// What stands for it in the list: little, since there is one for every request.
#[derive(Clone, Copy, Debug)]
struct Entry {
    envelope: Envelope,
    /// Where in all that was ever kept its frame begins; only differences count.
    start: u32,
    /// There is more of it in a list of its own.
    is_odd: bool,
}

const _: () = assert!(size_of::<Entry>() <= 56 && LINK_UNANSWERED_BYTES_MAX < u32::MAX as usize / 2);

/// What few have: several requests are one, it was sent before, or its bytes are shared.
#[derive(Debug)]
struct Odd {
    requests: u16,
    tries: Tries,
    shared: Option<Bytes>,
}

/// What was sent over one connection and has yet to be answered, in its order. What is answered makes room when room is wanted, so that
/// an answer costs next to nothing.
#[derive(Debug, Default)]
pub struct Unanswered {
    /// From `first` on they are unanswered.
    sent: Vec<Entry>,
    first: usize,
    odd: VecDeque<Odd>,
    /// Frames one behind the other, but for those that are shared; and where in all that was ever kept they begin.
    bytes: Vec<u8>,
    base: u32,
    shared_length: usize,
    /// A step of the block that is being answered was refused so.
    pub step: Option<Vec<u8>>,
}

impl Unanswered {
    /// One more was sent.
    #[inline]
    pub fn push(&mut self, (envelope, requests): (&Envelope, usize), tries: Tries, message: Message<'_>) {
        match message {
            Message::Small(bytes) if requests == 1 && tries.is_first() => {
                self.keep(envelope, false, bytes);
            }
            message => self.push_odd((envelope, requests), tries, message),
        }
    }

    #[cold]
    fn push_odd(&mut self, (envelope, requests): (&Envelope, usize), tries: Tries, message: Message<'_>) {
        let (bytes, shared) = match message {
            Message::Small(bytes) => (bytes, None),
            Message::Shared(bytes) => (&[][..], Some(bytes.clone())),
        };
        self.shared_length += message.shared_bytes();
        self.odd.push_back(Odd { requests: requests as u16, tries, shared });
        self.keep(envelope, true, bytes);
    }

    #[inline]
    fn keep(&mut self, envelope: &Envelope, is_odd: bool, bytes: &[u8]) {
        if self.sent.len() == self.sent.capacity() || bytes.len() > self.bytes.capacity() - self.bytes.len() {
            self.make_room(bytes.len());
        }
        let start = self.base.wrapping_add(self.bytes.len() as u32);
        self.bytes.extend_from_slice(bytes);
        self.sent.push(Entry { envelope: *envelope, start, is_odd });
    }

    /// Where much is answered it goes; else there is more room from now on.
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

    /// What is answered goes, where it is no less than what stays: never more is moved than was answered.
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

    /// Where the frame of one begins.
    fn offset(&self, place: usize) -> usize {
        let entry = self.sent.get(place);
        entry.map_or(self.bytes.len(), |entry| entry.start.wrapping_sub(self.base) as usize)
    }

    /// The oldest is answered. It, with its bytes if they are wanted.
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

    /// The oldest is answered.
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

    /// The slot of the oldest.
    pub fn next_slot(&self) -> Option<u16> {
        self.sent.get(self.first).map(|sent| sent.envelope.route.slot)
    }

    /// Is there something of a slot that was sent before?
    pub fn has_again(&self, slot: u16) -> bool {
        !self.odd.is_empty() && self.all().any(|sent| sent.slot() == slot && sent.tries.were_refused())
    }

    /// May more be kept?
    pub fn has_room(&self) -> bool {
        let at_most = self.bytes.len() + self.shared_length;
        at_most < LINK_UNANSWERED_BYTES_MAX || self.length() < LINK_UNANSWERED_BYTES_MAX
    }

    #[cold]
    fn length(&self) -> usize {
        self.bytes.len() - self.offset(self.first) + self.shared_length
    }

    /// Gives back what a burst took.
    pub fn tidy(&mut self) {
        self.close_up();
        shorten(&mut self.odd);
        shrink(&mut self.sent, REQUESTS_MIN);
        shrink(&mut self.bytes, BYTES_MIN);
    }

    /// The connection is lost.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// All of it, in its order.
    pub fn all(&self) -> impl Iterator<Item = Sent> {
        let mut odd = self.odd.iter();
        self.entries().iter().map(move |entry| entry.as_sent(if entry.is_odd { odd.next() } else { None }))
    }

    /// How many requests that are.
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// The slots of all of it.
    pub fn slots(&self) -> impl Iterator<Item = u16> {
        self.entries().iter().map(|entry| entry.envelope.route.slot)
    }

    fn entries(&self) -> &[Entry] {
        self.sent.get(self.first..).unwrap_or_default()
    }
}

/// Gives back most of the room that is not needed, but for the least that there is.
fn shrink<T>(list: &mut Vec<T>, least: usize) {
    if list.capacity() > least && list.len() < list.capacity() / 4 {
        list.shrink_to((list.len() * 2).max(least));
    }
}

impl Entry {
    fn as_sent(self, odd: Option<&Odd>) -> Sent {
        let tries = odd.map(|odd| odd.tries).unwrap_or_default();
        Sent { envelope: self.envelope, requests: odd.map_or(1, |odd| odd.requests), tries }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::Protocol;
    use crate::shard::request::{Nature, Overdue, ReplyTo, Route, Touches, Track};
    use crate::values::{BackendId, ClientId, ShardId, Tier};

    /// Slot, requests, hops.
    type Told = (u16, u16, u8);

    /// What travels with a request for a slot.
    fn envelope_for(slot: u16) -> Envelope {
        let client = ClientId { index: u32::from(slot), generation: 1 };
        let route = Route { slot, backend: BackendId(0), protocol: Protocol::Resp2, track: Track::Usual };
        Envelope {
            reply_to: ReplyTo::new(ShardId(0), client, 0),
            route,
            asker: None,
            nature: Nature::TRANSACTION,
            touches: Touches::NOTHING,
            tier: Tier::Standard,
            weight: u32::from(slot),
            deadline: Timestamp::from_millis(u64::from(slot)),
            overdue: Overdue::Answered,
        }
    }

    fn told(sent: Sent) -> Told {
        assert_eq!(sent.envelope, envelope_for(sent.slot()), "it is as it was");
        (sent.slot(), sent.requests, sent.tries.hops)
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
                        // Some are sent for the second time, some are several.
                        let tries = Tries { hops: u8::from(fill % 7 == 0), ..Tries::default() };
                        let requests = 1 + u16::from(fill % 5 == 0);
                        unanswered.push((&envelope_for(slot), usize::from(requests)), tries, message);
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
