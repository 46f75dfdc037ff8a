//! Replies of one connection that are held back: they are sent when they are due, in the order of the
//! requests.

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The number of the connection's oldest reply that is held back. If none is held back, the number that
    /// the next reply will have.
    first: u64,
    slots: VecDeque<Slot>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Slot {
    reply: Vec<u8>,
    finished: bool,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the number of bytes in the connection's replies that are held back.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves the place of the next reply in the order of the connection's requests, and returns its
    /// number. Later replies are held back until this one is sent.
    pub(crate) fn promise(&mut self) -> u64 {
        self.slots.push_back(Slot::default());
        self.first + self.slots.len() as u64 - 1
    }

    /// True if the place of a reply with this number is still reserved, so that the reply is wanted.
    pub(crate) fn holds(&self, number: u64) -> bool {
        self.position(number).is_some()
    }

    /// Stores the reply for the reserved place with this number; does nothing if the place was dropped. The
    /// reply is not sent before [`Self::finish`].
    pub(crate) fn fill(&mut self, number: u64, reply: Vec<u8>) {
        if let Some(position) = self.position(number) {
            self.bytes += reply.len();
            self.slots[position].reply = reply;
        }
    }

    /// Marks the reply at the reserved place with this number as due: it may be sent once all earlier ones
    /// are.
    pub(crate) fn finish(&mut self, number: u64) {
        if let Some(position) = self.position(number) {
            self.slots[position].finished = true;
        }
    }

    /// Removes and returns the connection's oldest held-back reply, if it is due; else `None`.
    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        if !self.slots.front()?.finished {
            return None;
        }
        self.first += 1;
        let slot = self.slots.pop_front()?;
        self.bytes -= slot.reply.len();
        Some(slot.reply)
    }

    /// Drops all held-back replies after the one with this number, as the connection is closed after that
    /// reply.
    pub(crate) fn cut_behind(&mut self, number: u64) {
        if let Some(position) = self.position(number) {
            let dropped = self.slots.drain(position + 1..);
            self.bytes -= dropped.map(|slot| slot.reply.len()).sum::<usize>();
        }
    }

    /// Drops all replies that are held back.
    pub(crate) fn clear(&mut self) {
        self.first += self.slots.len() as u64;
        self.slots.clear();
        self.bytes = 0;
    }

    fn position(&self, number: u64) -> Option<usize> {
        let position = number.checked_sub(self.first)? as usize;
        (position < self.slots.len()).then_some(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_leave_in_the_order_asked() {
        let mut pending = Pending::default();
        let numbers: Vec<u64> = (0..4).map(|_| pending.promise()).collect();
        for number in numbers.iter().rev() {
            pending.fill(*number, vec![*number as u8]);
        }
        pending.finish(numbers[1]);
        assert_eq!(pending.take(), None);
        pending.finish(numbers[0]);
        assert_eq!(pending.take(), Some(vec![0]));
        assert_eq!(pending.take(), Some(vec![1]));
        assert_eq!(pending.take(), None);
        pending.cut_behind(numbers[2]);
        assert_eq!(pending.bytes(), 1);
        assert!(pending.holds(numbers[2]) && !pending.holds(numbers[3]) && !pending.holds(numbers[0]));
        pending.clear();
        assert!(pending.is_empty() && !pending.holds(numbers[2]));
        assert_eq!(pending.promise(), 3);
    }
}
