//! The value of a list: its items, in a ring buffer that grows at both ends.

use super::text::Text;
use std::collections::VecDeque;

/// One of the two ends of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Left,
    Right,
}

/// All items of a list, and their size in bytes.
#[derive(Clone, Default)]
pub(super) struct Items {
    ring: VecDeque<Text>,
    bytes: usize,
}

impl Items {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(super) fn get(&self, position: usize) -> Option<&Text> {
        self.ring.get(position)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Text> + ExactSizeIterator {
        self.ring.iter()
    }

    /// Returns the items of the list from position `start` up to, but not including, `end`.
    pub(super) fn range(&self, start: usize, end: usize) -> impl ExactSizeIterator<Item = &Text> {
        self.ring.range(start..end)
    }

    pub(super) fn push(&mut self, end: End, item: Text) {
        self.bytes += item.cost();
        match end {
            End::Left => self.ring.push_front(item),
            End::Right => self.ring.push_back(item),
        }
    }

    pub(super) fn pop(&mut self, end: End) -> Option<Text> {
        let item = match end {
            End::Left => self.ring.pop_front(),
            End::Right => self.ring.pop_back(),
        }?;
        self.bytes -= item.cost();
        self.shrink();
        Some(item)
    }

    /// Frees spare memory of a list that has become much shorter.
    fn shrink(&mut self) {
        if self.ring.capacity() > 64 && self.ring.len() * 4 < self.ring.capacity() {
            self.ring.shrink_to(self.ring.len() * 2);
        }
    }

    /// Replaces the item of the list at `position`, which must exist.
    pub(super) fn set(&mut self, position: usize, item: Text) {
        self.bytes = self.bytes + item.cost() - self.ring[position].cost();
        self.ring[position] = item;
    }

    pub(super) fn insert(&mut self, position: usize, item: Text) {
        self.bytes += item.cost();
        self.ring.insert(position, item);
    }

    /// Keeps the items of the list from position `start` up to, but not including, `end`, and returns how
    /// many it removed. Only the removed items are read.
    pub(super) fn keep(&mut self, start: usize, end: usize) -> usize {
        let before = self.ring.len();
        let gone: usize = self.ring.drain(end..).map(|item| item.cost()).sum();
        self.bytes -= gone;
        let gone: usize = self.ring.drain(..start.min(end)).map(|item| item.cost()).sum();
        self.bytes -= gone;
        self.shrink();
        before - self.ring.len()
    }

    /// Removes at most `count` items equal to `item`, nearest to `end` of the list first, and returns how
    /// many it removed.
    pub(super) fn remove(&mut self, item: &[u8], count: usize, end: End) -> usize {
        let equal = self.ring.iter().filter(|other| other.as_bytes() == item).count();
        let goes = equal.min(count);
        // Searching from the right, the first `equal - goes` matches stay; from the left, the last ones do.
        let first = if end == End::Left { 0 } else { equal - goes };
        let mut met = 0;
        self.ring.retain(|other| {
            if other.as_bytes() != item {
                return true;
            }
            met += 1;
            !(first < met && met <= first + goes)
        });
        self.bytes -= goes * Text::new(item).cost();
        goes
    }
}
