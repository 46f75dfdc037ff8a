//! The replies to one client, in the order of its requests.

use std::collections::VecDeque;

use crate::protocol::{BufferPool, Output};
use crate::shard::gate::Charge;
use crate::shard::message::Message;
use crate::shard::stored::Stored;
use crate::values::shorten;

/// What must be done to a reply before it is the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// Nothing: the store's reply is the client's.
    AsItCame,
    /// The cursor that a store returned becomes one that also says which store is next.
    Cursor {
        /// The store that was asked.
        backend: u16,
    },
    /// The same of a walk over the nodes of a cluster: the client keeps where it is.
    Walk,
    /// Several replies become one; an index into the table of gathers.
    Gather(u32),
    /// What weir answers itself in a transaction takes its places.
    Splice,
}

/// A request that has not been answered, or whose reply is not the next one to go out.
#[derive(Debug)]
enum Entry {
    Waiting(Rewrite, Option<Charge>),
    Ready(Stored),
}

/// All requests of a client that are not answered, in order, and what of the answers waits to be sent.
#[derive(Debug, Default)]
pub struct Order {
    entries: VecDeque<Entry>,
    /// Bytes of replies, and of parts of replies, that wait for others.
    pub stored_bytes: usize,
    first_sequence: u32,
    /// What may be sent.
    pub output: Output,
}

impl Order {
    /// Requests that have not been answered to the client.
    pub fn unanswered(&self) -> usize {
        self.entries.len()
    }

    /// The number of the oldest request that has not been answered, and the one that the next request gets.
    pub fn sequences(&self) -> (u32, u32) {
        (self.first_sequence, self.first_sequence.wrapping_add(self.entries.len() as u32))
    }

    /// Takes the next place in the order of replies.
    #[inline]
    pub fn expect_reply(&mut self, rewrite: Rewrite, charge: Option<Charge>) -> u32 {
        let (_, sequence) = self.sequences();
        self.entries.push_back(Entry::Waiting(rewrite, charge));
        sequence
    }

    /// What the reply with this number still needs, and what was taken for its request, if anything: it is settled once,
    /// with the reply.
    /// `None` if it was never expected or is already there.
    pub fn waiting(&self, sequence: u32) -> Option<(Rewrite, Option<&Charge>)> {
        match self.entries.get(self.offset_of(sequence)) {
            Some(Entry::Waiting(rewrite, charge)) => Some((*rewrite, charge.as_ref())),
            _ => None,
        }
    }

    /// All charges that are not settled, each with the number of its request, and whether its reply comes in parts.
    pub fn open_charges(&self) -> impl Iterator<Item = (u32, Rewrite, Charge)> {
        (self.first_sequence..).zip(&self.entries).filter_map(|(sequence, entry)| match entry {
            Entry::Waiting(rewrite, Some(charge)) => Some((sequence, *rewrite, *charge)),
            _ => None,
        })
    }

    fn offset_of(&self, sequence: u32) -> usize {
        sequence.wrapping_sub(self.first_sequence) as usize
    }

    /// The reply with this number is there. It goes out if it is its turn, with those that waited for it.
    pub fn answer(&mut self, sequence: u32, message: Message<'_>, pool: &mut BufferPool) {
        let offset = self.offset_of(sequence);
        debug_assert!(matches!(self.entries.get(offset), Some(Entry::Waiting(..))), "one reply per request");
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

    /// A reply that weir writes itself, for a request that never left.
    pub fn answer_now(&mut self, pool: &mut BufferPool, write: impl FnOnce(&mut Vec<u8>)) {
        if self.entries.is_empty() {
            self.first_sequence = self.first_sequence.wrapping_add(1);
            write(self.output.buffer(pool));
            return;
        }
        let mut buffer = pool.take();
        write(&mut buffer);
        let stored = Stored::new(Message::Small(&buffer), pool);
        self.stored_bytes += stored.len();
        pool.give(buffer);
        self.entries.push_back(Entry::Ready(stored));
    }

    /// Memory that the list of unanswered requests takes.
    pub fn entries_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Bytes that wait to be sent, or for replies that come before them.
    #[inline]
    pub fn waiting_bytes(&self) -> usize {
        self.output.len() + self.stored_bytes
    }

    /// Gathers that nobody will complete, when the client leaves.
    pub fn open_gathers(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Waiting(Rewrite::Gather(index), _) => Some(*index),
            _ => None,
        })
    }

    /// Gives back what a long pipeline took.
    pub fn tidy(&mut self) {
        shorten(&mut self.entries);
    }

    /// Gives all buffers back, when the client leaves.
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
}
