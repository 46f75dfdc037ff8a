//! The replies to one client, which leave in the order of its requests.

use std::collections::VecDeque;

use crate::protocol::{BufferPool, Output};
use crate::shard::admission::Charge;
use crate::shard::message::Message;
use crate::shard::stored::Stored;
use crate::values::shorten;

/// The change that a backend's reply needs before it goes to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// No change: the backend's reply is the client's.
    AsItCame,
    /// The cursor in a reply to `SCAN` is replaced by one that also says which backend is next.
    Cursor {
        /// The backend that was asked with this `SCAN`.
        backend: u16,
    },
    /// The cursor in the reply of a cluster node to `SCAN` is replaced by one that also holds the position in
    /// the walk over all nodes.
    Walk,
    /// Replies to several parts are joined into one. The number is the request's index in
    /// [`Gathers`](crate::shard::gather::Gathers).
    Gather(u32),
    /// Weir's own replies within a transaction are inserted into the backend's reply to `EXEC`.
    Splice,
}

/// A place in the order of replies: its reply has not come, or waits for an earlier one.
#[derive(Debug)]
enum Entry {
    Waiting(Rewrite, Option<Charge>),
    Ready(Stored),
}

/// The replies that a client is not sent (`CLIENT REPLY`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Silence {
    /// All replies are sent.
    #[default]
    Nothing,
    /// No replies are sent (`OFF`).
    All,
    /// The reply with this sequence number is not sent (`SKIP`).
    One(u32),
}

/// The unanswered requests of a client in order, and the replies that are waiting to be sent.
#[derive(Debug, Default)]
pub struct Order {
    entries: VecDeque<Entry>,
    /// The bytes of replies that wait for earlier ones, and of partial replies that wait for the other parts.
    pub stored_bytes: usize,
    first_sequence: u32,
    /// The replies that may be sent now, as no earlier reply is missing.
    pub output: Output,
    silence: Silence,
}

impl Order {
    /// Returns the number of requests that have not been answered to the client.
    pub fn unanswered(&self) -> usize {
        self.entries.len()
    }

    /// Returns two sequence numbers: that of the oldest unanswered request, and that which the next request
    /// will get.
    pub fn sequences(&self) -> (u32, u32) {
        (self.first_sequence, self.first_sequence.wrapping_add(self.entries.len() as u32))
    }

    /// Takes the next place in the order of replies. Returns its sequence number. `charge` is what was taken
    /// for the request, if anything.
    #[inline]
    pub fn expect_reply(&mut self, rewrite: Rewrite, charge: Option<Charge>) -> u32 {
        let (_, sequence) = self.sequences();
        self.entries.push_back(Entry::Waiting(rewrite, charge));
        sequence
    }

    /// Returns the change that the reply with this number needs, and the charge that is settled with it, if
    /// there is one. None if no reply with this number is expected, or if it has already come.
    pub fn waiting(&self, sequence: u32) -> Option<(Rewrite, Option<&Charge>)> {
        match self.entries.get(self.offset_of(sequence)) {
            Some(Entry::Waiting(rewrite, charge)) => Some((*rewrite, charge.as_ref())),
            _ => None,
        }
    }

    /// Takes the charge of a request whose reply with this number is known but not yet written.
    pub fn take_charge(&mut self, sequence: u32) -> Option<Charge> {
        let offset = self.offset_of(sequence);
        match self.entries.get_mut(offset) {
            Some(Entry::Waiting(_, charge)) => charge.take(),
            _ => None,
        }
    }

    /// Iterates over requests that were charged an estimated price and whose replies have not come: the
    /// request's sequence number, how its reply is rewritten, and the charge.
    pub fn open_charges(&self) -> impl Iterator<Item = (u32, Rewrite, Charge)> {
        (self.first_sequence..).zip(&self.entries).filter_map(|(sequence, entry)| match entry {
            Entry::Waiting(rewrite, Some(charge)) => Some((sequence, *rewrite, *charge)),
            _ => None,
        })
    }

    /// Sets that no replies are sent, or that all are. All earlier requests must have been answered.
    pub fn set_silent(&mut self, is_silent: bool) {
        debug_assert!(
            self.entries.is_empty(),
            "replies to earlier requests are sent or not as they were to be"
        );
        self.silence = if is_silent { Silence::All } else { Silence::Nothing };
    }

    /// Sets that the reply to the next request is not sent.
    pub fn skip_next(&mut self) {
        if self.silence != Silence::All {
            self.silence = Silence::One(self.sequences().1);
        }
    }

    /// True if some replies are not sent.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.silence != Silence::Nothing
    }

    /// True if the reply with this number is not sent. The last one that is not ends that state.
    #[cold]
    fn drops(&mut self, sequence: u32) -> bool {
        match self.silence {
            Silence::Nothing => false,
            Silence::All => true,
            Silence::One(skipped) => {
                let is_past = (self.first_sequence.wrapping_sub(skipped) as i32) > 0;
                if is_past {
                    self.silence = Silence::Nothing;
                }
                sequence == skipped && !is_past
            }
        }
    }

    fn offset_of(&self, sequence: u32) -> usize {
        sequence.wrapping_sub(self.first_sequence) as usize
    }

    /// Puts the reply with this number in its place. If no earlier reply is missing, it goes to the output,
    /// together with the replies that waited for it.
    pub fn answer(&mut self, sequence: u32, message: Message<'_>, pool: &mut BufferPool) {
        let offset = self.offset_of(sequence);
        debug_assert!(matches!(self.entries.get(offset), Some(Entry::Waiting(..))), "one reply per request");
        let is_dropped = self.is_silent() && self.drops(sequence);
        let message = if is_dropped { Message::Small(b"") } else { message };
        if offset > 0 {
            self.stored_bytes += message.bytes().len();
            self.entries[offset] = Entry::Ready(Stored::new(message, pool));
            return;
        }
        match message {
            Message::Small(bytes) => self.output.append(pool, bytes),
            Message::Shared(bytes) => self.output.append_shared(pool, bytes),
        }
        self.entries.pop_front();
        self.first_sequence = self.first_sequence.wrapping_add(1);
        while let Some(Entry::Ready(_)) = self.entries.front() {
            let Some(Entry::Ready(stored)) = self.entries.pop_front() else { unreachable!("seen just now") };
            self.stored_bytes -= stored.len();
            stored.send(&mut self.output, pool);
            self.first_sequence = self.first_sequence.wrapping_add(1);
        }
    }

    /// Sends a message that is the reply to no request, behind all replies that are ready.
    pub fn push(&mut self, message: Message<'_>, pool: &mut BufferPool) {
        match message {
            Message::Small(bytes) => self.output.append(pool, bytes),
            Message::Shared(bytes) => self.output.append_shared(pool, bytes),
        }
    }

    /// Answers a request with a reply that weir writes itself and that takes the next place in the order.
    pub fn answer_now(&mut self, pool: &mut BufferPool, write: impl FnOnce(&mut Vec<u8>)) {
        let is_dropped = self.is_silent() && self.drops(self.sequences().1);
        if self.entries.is_empty() {
            self.first_sequence = self.first_sequence.wrapping_add(1);
            if !is_dropped {
                write(self.output.buffer(pool));
            }
            return;
        }
        let mut buffer = pool.take();
        if !is_dropped {
            write(&mut buffer);
        }
        let stored = Stored::new(Message::Small(&buffer), pool);
        self.stored_bytes += stored.len();
        pool.give(buffer);
        self.entries.push_back(Entry::Ready(stored));
    }

    /// Returns the memory that the list of unanswered requests takes, in bytes.
    pub fn entries_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Returns the bytes of all replies that have not been handed to the socket: those ready to be sent, and
    /// those that wait for earlier replies or other parts.
    #[inline]
    pub fn waiting_bytes(&self) -> usize {
        self.output.len() + self.stored_bytes
    }

    /// Iterates over the indices of gathers (requests in parts) that are incomplete, so that they can be
    /// dropped when the client leaves.
    pub fn open_gathers(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Waiting(Rewrite::Gather(index), _) => Some(*index),
            _ => None,
        })
    }

    /// Frees the spare memory that a long pipeline left behind.
    pub fn tidy(&mut self) {
        shorten(&mut self.entries);
    }

    /// Returns all buffers to the pool, when the client leaves.
    pub fn release(&mut self, pool: &mut BufferPool) {
        self.output.clear(pool);
        for entry in self.entries.drain(..) {
            if let Entry::Ready(stored) = entry {
                stored.release(pool);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_leave_in_the_order_of_requests() {
        let mut pool = BufferPool::new(8);
        let mut order = Order::default();
        let first = order.expect_reply(Rewrite::AsItCame, None);
        let second = order.expect_reply(Rewrite::AsItCame, None);
        order.answer_now(&mut pool, |out| out.extend_from_slice(b"third "));
        let fourth = order.expect_reply(Rewrite::AsItCame, None);
        order.answer(
            fourth,
            Message::Small(b"a fourth reply that is too long to be kept in place "),
            &mut pool,
        );
        order.answer(second, Message::Small(b"second "), &mut pool);
        assert!(order.output.is_empty());
        order.answer(first, Message::Small(b"first "), &mut pool);
        let sent = order.output.take().expect("all are ready");
        assert_eq!(
            String::from_utf8_lossy(&sent.bytes()),
            "first second third a fourth reply that is too long to be kept in place "
        );
        assert_eq!(order.unanswered(), 0);
    }

    #[test]
    fn replies_that_are_not_sent_keep_their_place() {
        let mut pool = BufferPool::new(8);
        let mut order = Order::default();
        let sent = |order: &mut Order| {
            let taken = std::iter::from_fn(|| order.output.take());
            taken.map(|segment| String::from_utf8_lossy(&segment.bytes()).into_owned()).collect::<String>()
        };
        let first = order.expect_reply(Rewrite::AsItCame, None);
        order.skip_next();
        let [second, third] = [(); 2].map(|()| order.expect_reply(Rewrite::AsItCame, None));
        for (sequence, reply) in [(third, b"third "), (second, b"never "), (first, b"first ")] {
            order.answer(sequence, Message::Small(reply), &mut pool);
        }
        assert_eq!(sent(&mut order), "first third ");
        order.answer_now(&mut pool, |out| out.extend_from_slice(b"fourth "));
        assert!(!order.is_silent(), "the reply that was skipped is past");
        order.skip_next();
        order.answer_now(&mut pool, |out| out.extend_from_slice(b"never "));
        order.answer_now(&mut pool, |out| out.extend_from_slice(b"fifth "));
        assert_eq!(sent(&mut order), "fourth fifth ");
        order.set_silent(true);
        order.skip_next();
        let sixth = order.expect_reply(Rewrite::AsItCame, None);
        order.answer_now(&mut pool, |out| out.extend_from_slice(b"never "));
        order.answer(sixth, Message::Small(b"never "), &mut pool);
        order.push(Message::Small(b"message "), &mut pool);
        order.set_silent(false);
        order.answer_now(&mut pool, |out| out.extend_from_slice(b"last "));
        assert_eq!(sent(&mut order), "message last ");
    }
}
