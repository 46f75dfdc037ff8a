//! The order of one client's replies, which is that of its requests.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::protocol::{BufferPool, Output};
use crate::shard::admission::Charge;
use crate::shard::message::Message;
use crate::shard::stored::Stored;
use crate::values::shorten;

/// The change that a backend's reply needs before it goes to the client. One is kept for each unanswered
/// request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// Change of nothing: the client gets the backend's reply as it is.
    AsItCame,
    /// The cursor in the reply of one of several stores to `SCAN` is replaced by one that also says which
    /// backend is next.
    Cursor {
        /// The number of the backend that was sent this `SCAN`; the next one follows once its own cursor is 0.
        backend: u16,
    },
    /// The cursor in the reply of a cluster node to `SCAN` is replaced by one that also holds the position in
    /// the walk over all nodes, which are scanned one after another.
    Walk,
    /// Replies to several parts are joined into one. The number is the request's index in
    /// [`Gathers`](crate::shard::gather::Gathers).
    Gather(u32),
    /// Weir's own replies within a transaction are inserted into the backend's reply to `EXEC`.
    Splice,
}

/// Binary logarithm of the divisor that gives the part of the expected size of replies that is taken off with
/// each reply: 5 stands for a thirty-second.
const FADE_BITS: u32 = 5;

/// Setting of `CLIENT REPLY`: whether a client's next requests get replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Replies {
    /// All requests get replies, as without `CLIENT REPLY`.
    #[default]
    All,
    /// As many of the next requests as the number says (at least one) get no replies; later ones do (`CLIENT
    /// REPLY SKIP`).
    NoneTo(u8),
    /// No requests get replies (`CLIENT REPLY OFF`).
    None,
}

/// Record of the replies to come that a client is not sent: those that it has switched off (`CLIENT REPLY`), and those
/// to questions that weir asks for the sake of its requests.
#[derive(Debug, Default)]
struct Silence {
    replies: Replies,
    /// True if the reply to the next request is sent even though replies are switched off.
    is_next_sent: bool,
    /// Sequence numbers of unanswered requests whose replies will be dropped, in order.
    dropped: VecDeque<u32>,
}

impl Silence {
    /// True if the reply to the client's next request will be dropped. Called once for each request, as it
    /// counts the request as one that `CLIENT REPLY SKIP` leaves out.
    #[cold]
    fn takes_next(&mut self) -> bool {
        match self.replies {
            Replies::All => return false,
            Replies::NoneTo(0 | 1) => self.replies = Replies::All,
            Replies::NoneTo(more) => self.replies = Replies::NoneTo(more - 1),
            Replies::None => {}
        }
        !std::mem::take(&mut self.is_next_sent)
    }

    /// Records the number (`sequence`) of the client's next request, if its reply will be dropped.
    #[cold]
    fn note_next(&mut self, sequence: u32) {
        if self.takes_next() {
            self.dropped.push_back(sequence);
        }
    }

    /// True if the reply to the request with this number (`sequence`) is to be dropped; called once for each
    /// reply, as it forgets the number.
    #[cold]
    fn drops(&mut self, sequence: u32) -> bool {
        let place = self.dropped.iter().position(|dropped| *dropped == sequence);
        place.and_then(|place| self.dropped.remove(place)).is_some()
    }
}

/// The place of one unanswered request in the order of replies: its reply has not come, or waits for an
/// earlier one.
#[derive(Debug)]
enum Entry {
    Waiting(Rewrite, Option<Charge>),
    Ready(Stored),
}

/// The unanswered requests of a client in order, and the replies that are waiting to be sent.
#[derive(Debug, Default)]
pub struct Order {
    entries: VecDeque<Entry>,
    /// The bytes of replies that wait for earlier replies, and of replies to parts of split requests that wait for the
    /// other parts, with the tables of those requests.
    pub stored_bytes: usize,
    /// The bytes of the last parts of replies that are being joined over several turns (passes of the shard's
    /// loop). They count as memory of the client, and not as replies that wait for it: a joined reply that
    /// turns out too long becomes an error.
    pub joining_bytes: usize,
    /// The size in bytes that replies to requests in flight are expected to have at most: the largest so far, which
    /// decays by a thirty-second with each reply, or an assumed size when requests follow a pause.
    expected_bytes: usize,
    first_sequence: u32,
    /// Record of the replies that the client is not sent (`CLIENT REPLY`, or answers that only weir needs); `None` if
    /// it is certainly sent all.
    silence: Option<Box<Silence>>,
    /// The replies that may be sent now, as no earlier reply is missing.
    pub output: Output,
}

impl Order {
    /// Returns the number of requests whose replies have not been put into the output.
    pub fn unanswered(&self) -> usize {
        self.entries.len()
    }

    /// Raises the expected size of replies, unless it is larger already, to `first` bytes if no reply has come yet,
    /// else to a quarter of that. Called when no request is in flight: nothing is known of the requests that follow a
    /// pause.
    pub fn expect_at_least(&mut self, first: usize) {
        let least = if self.expected_bytes == 0 { first } else { first / 4 };
        self.expected_bytes = self.expected_bytes.max(least);
    }

    /// Returns the bytes of replies that will wait, as far as can be expected, if the requests in flight and
    /// one more are answered, each with a reply of the expected size, while the client reads nothing.
    #[inline]
    pub fn foreseen_bytes(&self) -> usize {
        let requests = self.entries.len() + 1;
        self.waiting_bytes().saturating_add(requests.saturating_mul(self.expected_bytes))
    }

    /// Returns two sequence numbers: that of the oldest unanswered request, and the one that the next request
    /// will get.
    pub fn sequences(&self) -> (u32, u32) {
        (self.first_sequence, self.first_sequence.wrapping_add(self.entries.len() as u32))
    }

    /// If the reply to the request with this number (`sequence`) is to be dropped (`CLIENT REPLY`), lets the
    /// next request get no reply either, because that is the same request, which is tried again.
    pub fn drop_again(&mut self, sequence: u32) {
        if let Some(silence) = &mut self.silence
            && silence.dropped.contains(&sequence)
        {
            silence.replies = match silence.replies {
                Replies::All => Replies::NoneTo(1),
                Replies::NoneTo(more) => Replies::NoneTo(more.saturating_add(1)),
                Replies::None => Replies::None,
            };
        }
    }

    /// Takes the next place in the order of replies. Returns its sequence number. `rewrite` says how the
    /// reply is changed before it is sent; `charge` is the estimated price that was taken for the request, if
    /// any.
    #[inline]
    pub fn expect_reply(&mut self, rewrite: Rewrite, charge: Option<Charge>) -> u32 {
        let (_, sequence) = self.sequences();
        if let Some(silence) = &mut self.silence {
            silence.note_next(sequence);
        }
        self.entries.push_back(Entry::Waiting(rewrite, charge));
        sequence
    }

    /// Takes the next place in the order of replies for a reply that is dropped when it comes, whatever `CLIENT REPLY`
    /// says: replies to later requests wait for it. Returns its sequence number. `charge` is the estimated price that
    /// was taken for the client's request for whose sake weir needs the reply, if any.
    pub fn expect_dropped(&mut self, charge: Option<Charge>) -> u32 {
        let (_, sequence) = self.sequences();
        self.silence.get_or_insert_default().dropped.push_back(sequence);
        self.entries.push_back(Entry::Waiting(Rewrite::AsItCame, charge));
        sequence
    }

    /// Returns the change that the reply with this number (`sequence`) needs, and the charge that is corrected
    /// to the real price with it, if there is one. None if no reply with this number is expected any more.
    pub fn waiting(&self, sequence: u32) -> Option<(Rewrite, Option<&Charge>)> {
        match self.entries.get(self.offset_of(sequence)) {
            Some(Entry::Waiting(rewrite, charge)) => Some((*rewrite, charge.as_ref())),
            _ => None,
        }
    }

    /// Takes the charge of an unanswered request by its number (`sequence`), to correct it to the real price;
    /// None if there is none.
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

    fn offset_of(&self, sequence: u32) -> usize {
        sequence.wrapping_sub(self.first_sequence) as usize
    }

    /// Puts the reply with this number (`sequence`) in its place. If no earlier reply is missing, the reply
    /// goes to the output, together with the replies that waited for it.
    pub fn answer(&mut self, sequence: u32, message: Message<'_>, pool: &mut BufferPool) {
        let offset = self.offset_of(sequence);
        debug_assert!(matches!(self.entries.get(offset), Some(Entry::Waiting(..))), "one reply per request");
        let is_dropped = self.silence.as_mut().is_some_and(|silence| silence.drops(sequence));
        let message = if is_dropped { Message::Small(&[]) } else { message };
        let faded = self.expected_bytes - (self.expected_bytes >> FADE_BITS);
        self.expected_bytes = faded.max(message.bytes().len());
        if offset > 0 {
            return self.store(offset, message, pool);
        }
        match message {
            Message::Small(bytes) => self.output.append(pool, bytes),
            Message::Shared(bytes) => self.output.append_shared(pool, bytes),
        }
        self.entries.pop_front();
        self.first_sequence = self.first_sequence.wrapping_add(1);
        if let Some(Entry::Ready(_)) = self.entries.front() {
            self.send_stored(pool);
        }
    }

    /// Keeps the reply to the request at this place (`offset`) of the order until the replies to all earlier ones have
    /// come.
    fn store(&mut self, offset: usize, message: Message<'_>, pool: &mut BufferPool) {
        self.stored_bytes += message.bytes().len();
        self.entries[offset] = Entry::Ready(Stored::new(message, pool));
    }

    /// Puts the replies that waited for an earlier one into the output, up to the first that is missing.
    fn send_stored(&mut self, pool: &mut BufferPool) {
        while let Some(Entry::Ready(_)) = self.entries.front() {
            let Some(Entry::Ready(stored)) = self.entries.pop_front() else { unreachable!("seen just now") };
            self.stored_bytes -= stored.len();
            stored.send(&mut self.output, pool);
            self.first_sequence = self.first_sequence.wrapping_add(1);
        }
    }

    /// Puts a message that is not the reply to a request into the output, after all replies that are ready.
    pub fn push(&mut self, message: Message<'_>, pool: &mut BufferPool) {
        match message {
            Message::Small(bytes) => self.output.append(pool, bytes),
            Message::Shared(bytes) => self.output.append_shared(pool, bytes),
        }
    }

    /// Answers the next request with a reply that weir writes itself (`write`), in its place in the order.
    pub fn answer_now(&mut self, pool: &mut BufferPool, write: impl FnOnce(&mut Vec<u8>)) {
        let is_dropped = self.silence.as_mut().is_some_and(|silence| silence.takes_next());
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

    /// Sets which of the client's next requests get replies (`CLIENT REPLY`). Requests sent before are not
    /// affected.
    pub fn set_replies(&mut self, replies: Replies) {
        if replies != Replies::All {
            self.silence.get_or_insert_default().replies = replies;
            return;
        }
        match &mut self.silence {
            Some(silence) if !silence.dropped.is_empty() => silence.replies = replies,
            silence => *silence = None,
        }
    }

    /// Returns which of the client's next requests get replies (`CLIENT REPLY`).
    pub fn replies(&self) -> Replies {
        self.silence.as_ref().map_or(Replies::All, |silence| silence.replies)
    }

    /// Makes sure that the reply to the next request is sent even if replies are switched off (`CLIENT REPLY`), because
    /// it consists of messages: acknowledgements of subscriptions.
    pub fn send_next(&mut self) {
        if let Some(silence) = &mut self.silence {
            silence.is_next_sent = silence.replies != Replies::All;
        }
    }

    /// True if replies may have been dropped (`CLIENT REPLY`, for instance), so that a request may have been answered
    /// without any bytes to send.
    pub fn has_silence(&self) -> bool {
        self.silence.is_some()
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

    /// Iterates over the indices of unanswered requests that were split into parts (in the table of gathers, where the
    /// replies to the parts are collected), so that they can be dropped when the client leaves.
    pub fn open_gathers(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Waiting(Rewrite::Gather(index), _) => Some(*index),
            _ => None,
        })
    }

    /// Frees the unused memory that a long pipeline left behind.
    pub fn tidy(&mut self) {
        shorten(&mut self.entries);
    }

    /// Returns all buffers to the pool, because the client has disconnected.
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
    fn replies_that_were_switched_off_leave_no_trace_and_keep_their_places() {
        let mut pool = BufferPool::new(8);
        let mut order = Order::default();
        let mut numbers: Vec<u32> = Vec::new();
        let ask = |order: &mut Order| order.expect_reply(Rewrite::AsItCame, None);
        numbers.push(ask(&mut order));
        order.set_replies(Replies::NoneTo(2));
        order.answer_now(&mut pool, |out| out.extend(b"not-this "));
        numbers.push(ask(&mut order));
        numbers.push(ask(&mut order));
        order.set_replies(Replies::None);
        numbers.push(ask(&mut order));
        order.answer_now(&mut pool, |out| out.extend(b"nor-this "));
        order.set_replies(Replies::All);
        order.answer_now(&mut pool, |out| out.extend(b"on "));
        assert_eq!(order.replies(), Replies::All);
        for (number, reply) in numbers.iter().zip(["0 ", "1 ", "2 ", "3 "]).rev() {
            order.answer(*number, Message::Small(reply.as_bytes()), &mut pool);
        }
        assert_eq!(order.unanswered(), 0);
        assert_eq!(order.stored_bytes, 0);
        let sent = order.output.take().expect("replies are ready");
        assert_eq!(String::from_utf8_lossy(&sent.bytes()), "0 2 on ");
        order.set_replies(Replies::All);
        assert!(!order.has_silence(), "nothing is left to drop");
    }

    #[test]
    fn a_second_try_gets_no_reply_where_the_first_would_have_got_none() {
        for (replies, told) in [(Replies::NoneTo(1), "next "), (Replies::None, "")] {
            for is_answered_here in [false, true] {
                let mut pool = BufferPool::new(8);
                let mut order = Order::default();
                order.set_replies(replies);
                let first = order.expect_reply(Rewrite::AsItCame, None);
                order.drop_again(first);
                order.answer(first, Message::Small(b"first "), &mut pool);
                if is_answered_here {
                    order.answer_now(&mut pool, |out| out.extend(b"second "));
                } else {
                    let second = order.expect_reply(Rewrite::AsItCame, None);
                    order.answer(second, Message::Small(b"second "), &mut pool);
                }
                order.answer_now(&mut pool, |out| out.extend(b"next "));
                let sent = order.output.take().map(|sent| sent.bytes().into_owned()).unwrap_or_default();
                assert_eq!(String::from_utf8_lossy(&sent), told, "{replies:?}, {is_answered_here}");
                order.set_replies(Replies::All);
                assert!(!order.has_silence(), "nothing is left to drop");
            }
        }
    }

    #[test]
    fn a_reply_that_is_dropped_holds_back_later_ones_until_it_comes() {
        let mut pool = BufferPool::new(8);
        let mut order = Order::default();
        order.set_replies(Replies::NoneTo(1));
        let dropped = order.expect_dropped(None);
        let silent = order.expect_reply(Rewrite::AsItCame, None);
        order.answer(silent, Message::Small(b"switched-off "), &mut pool);
        order.answer_now(&mut pool, |out| out.extend(b"next "));
        assert!(order.output.is_empty() && order.unanswered() == 3);
        order.answer(dropped, Message::Small(b"dropped "), &mut pool);
        let sent = order.output.take().expect("a reply is ready");
        assert_eq!((String::from_utf8_lossy(&sent.bytes()).as_ref(), order.unanswered()), ("next ", 0));
    }

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
