//! What nodes of a cluster have yet to answer, as it was sent: it may have to be sent again, to another one.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::shard::message::Message;
use crate::values::limits::LINK_UNANSWERED_BYTES_MAX;
use crate::values::{Timestamp, shorten};

/// Bytes of what is answered that stay in front of the others.
const ANSWERED_BYTES_MAX: usize = 4 * 1024;

/// How often a request was sent, and since when it has been held.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tries {
    pub hops: u8,
    pub held_since: Timestamp,
    /// It was lost with a connection.
    pub is_again: bool,
}

impl Tries {
    fn is_first(self) -> bool {
        self.hops == 0 && !self.is_again
    }
}

/// A request that was sent, as it was: it may have to be sent again.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub slot: u16,
    /// Of how many requests it is made.
    pub requests: u16,
    pub tries: Tries,
}

/// What stands for it in the list: little, since there is one for every request.
#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: u16,
    requests: u16,
    length: u32,
    is_shared: bool,
    /// It was sent before.
    is_repeated: bool,
}

/// What was sent over one connection and has yet to be answered, in its order.
#[derive(Debug, Default)]
pub struct Unanswered {
    sent: VecDeque<Entry>,
    /// Of those that were sent before.
    tries: VecDeque<Tries>,
    /// Frames one behind the other, from `begin` on; those that are shared have a list of their own.
    bytes: Vec<u8>,
    begin: usize,
    shared: VecDeque<Bytes>,
    shared_length: usize,
    /// A step of the block that is being answered was refused so.
    pub step: Option<Vec<u8>>,
}

impl Unanswered {
    /// One more was sent.
    #[inline]
    pub fn push(&mut self, (slot, requests): (u16, usize), tries: Tries, message: Message<'_>) {
        let entry =
            Entry { slot, requests: requests as u16, length: 0, is_shared: false, is_repeated: false };
        match message {
            Message::Small(bytes) if tries.is_first() => {
                self.bytes.extend_from_slice(bytes);
                self.sent.push_back(Entry { length: bytes.len() as u32, ..entry });
            }
            message => self.push_odd(entry, tries, message),
        }
    }

    #[cold]
    fn push_odd(&mut self, entry: Entry, tries: Tries, message: Message<'_>) {
        let (length, is_shared) = (message.bytes().len(), matches!(message, Message::Shared(_)));
        match message {
            Message::Small(bytes) => self.bytes.extend_from_slice(bytes),
            Message::Shared(bytes) => {
                self.shared.push_back(bytes.clone());
                self.shared_length += length;
            }
        }
        let is_repeated = !tries.is_first();
        if is_repeated {
            self.tries.push_back(tries);
        }
        self.sent.push_back(Entry { length: length as u32, is_shared, is_repeated, ..entry });
    }

    /// The oldest is answered. It, with its bytes if they are wanted.
    pub fn pop(&mut self, is_wanted: bool) -> Option<(Sent, Vec<u8>)> {
        let oldest = *self.sent.front()?;
        let bytes = if is_wanted { self.frame_of(oldest)?.to_vec() } else { Vec::new() };
        let tries = if oldest.is_repeated { *self.tries.front()? } else { Tries::default() };
        self.forget();
        Some((Sent { slot: oldest.slot, requests: oldest.requests, tries }, bytes))
    }

    fn frame_of(&self, oldest: Entry) -> Option<&[u8]> {
        let kept = || self.bytes.get(self.begin..self.begin + oldest.length as usize);
        if oldest.is_shared { self.shared.front().map(|bytes| &bytes[..]) } else { kept() }
    }

    /// The oldest is answered.
    #[inline]
    pub fn forget(&mut self) {
        let Some(oldest) = self.sent.pop_front() else { return };
        if oldest.is_shared || oldest.is_repeated {
            return self.forget_odd(oldest);
        }
        self.pass(oldest.length as usize);
    }

    /// So many of the bytes are answered.
    #[inline]
    fn pass(&mut self, bytes: usize) {
        self.begin += bytes;
        if self.begin >= ANSWERED_BYTES_MAX && self.begin >= self.bytes.len() / 2 {
            self.close_up();
        }
    }

    #[cold]
    fn forget_odd(&mut self, oldest: Entry) {
        if oldest.is_shared {
            self.shared.pop_front();
            self.shared_length -= oldest.length as usize;
        } else {
            self.pass(oldest.length as usize);
        }
        if oldest.is_repeated {
            self.tries.pop_front();
        }
    }

    /// What is answered makes room: never more is moved than was answered.
    #[cold]
    fn close_up(&mut self) {
        self.bytes.drain(..self.begin);
        self.begin = 0;
    }

    /// The slot of the oldest.
    pub fn next_slot(&self) -> Option<u16> {
        self.sent.front().map(|sent| sent.slot)
    }

    /// Is there something of a slot that was sent before?
    pub fn has_again(&self, slot: u16) -> bool {
        !self.tries.is_empty() && self.all().any(|sent| sent.slot == slot && sent.tries.hops > 0)
    }

    /// May more be kept?
    pub fn has_room(&self) -> bool {
        self.length() < LINK_UNANSWERED_BYTES_MAX
    }

    fn length(&self) -> usize {
        self.bytes.len() - self.begin + self.shared_length
    }

    /// Gives back what a burst took.
    pub fn tidy(&mut self) {
        shorten(&mut self.sent);
        shorten(&mut self.shared);
        shorten(&mut self.tries);
        self.close_up();
        if self.bytes.capacity() > ANSWERED_BYTES_MAX && self.bytes.len() < self.bytes.capacity() / 4 {
            self.bytes.shrink_to((self.bytes.len() * 2).max(ANSWERED_BYTES_MAX));
        }
    }

    /// The connection is lost.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// All of it, in its order.
    pub fn all(&self) -> impl Iterator<Item = Sent> {
        let mut tries = self.tries.iter();
        self.sent.iter().map(move |entry| {
            let tries = if entry.is_repeated { tries.next().copied() } else { None };
            Sent { slot: entry.slot, requests: entry.requests, tries: tries.unwrap_or_default() }
        })
    }

    /// How many requests that are.
    pub fn len(&self) -> usize {
        self.sent.len()
    }

    /// The slots of all of it.
    pub fn slots(&self) -> impl Iterator<Item = u16> {
        self.sent.iter().map(|sent| sent.slot)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_come_back_in_order_and_as_they_were(
            steps in prop::collection::vec((0..6_u8, 0..3_000_usize, any::<u8>()), 1..300),
        ) {
            let mut unanswered = Unanswered::default();
            let mut model: VecDeque<(u16, u8, Vec<u8>)> = VecDeque::new();
            for (number, (step, length, fill)) in steps.into_iter().enumerate() {
                let (slot, frame) = (number as u16, vec![fill; length]);
                match step {
                    0..=2 => {
                        let shared = Bytes::copy_from_slice(&frame);
                        let message = if step == 0 { Message::Shared(&shared) } else { Message::Small(&frame) };
                        // Some are sent for the second time.
                        let tries = Tries { hops: u8::from(fill % 7 == 0), ..Tries::default() };
                        unanswered.push((slot, 1), tries, message);
                        model.push_back((slot, tries.hops, frame));
                    }
                    3 => {
                        let found = unanswered.pop(true);
                        let found = found.map(|(sent, bytes)| (sent.slot, sent.tries.hops, bytes));
                        prop_assert_eq!(found, model.pop_front());
                    }
                    4 => {
                        prop_assert_eq!(unanswered.next_slot(), model.pop_front().map(|(slot, ..)| slot));
                        unanswered.forget();
                    }
                    _ => unanswered.tidy(),
                }
                let all: Vec<_> = unanswered.all().map(|sent| (sent.slot, sent.tries.hops)).collect();
                let expected: Vec<_> = model.iter().map(|(slot, hops, _)| (*slot, *hops)).collect();
                prop_assert_eq!(all, expected);
                prop_assert_eq!(unanswered.len(), model.len());
                prop_assert_eq!(unanswered.length(), model.iter().map(|(.., frame)| frame.len()).sum::<usize>());
                let kept = unanswered.bytes.len();
                prop_assert!(kept <= 2 * unanswered.length() + ANSWERED_BYTES_MAX + 3_000, "{} are kept", kept);
            }
        }
    }
}
