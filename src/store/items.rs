//! The value of a list: its items, in a ring buffer that grows at both ends.

use super::packed;
use super::shapes::{LISTPACK_BYTES, ListLimit};
use super::table::{capacity_kept, spare_bytes};
use super::text::Text;
use std::collections::VecDeque;

/// The approximate bytes of a list besides those in proportion to the number of its items.
const LIST_BYTES: usize = 64;

/// One of the two ends of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Left,
    Right,
}

/// The value of a list: all its items in order, their size in bytes, and whether Redis would keep them in one
/// listpack.
#[derive(Clone, Default)]
pub(super) struct Items {
    ring: VecDeque<Text>,
    bytes: usize,
    /// The bytes that the items would take in one listpack of Redis, by which (and by their number) the list
    /// counts as small.
    packed_bytes: usize,
    /// True if the list is large: Redis keeps it as a quicklist of several listpacks. False if it is small:
    /// one listpack.
    large: bool,
}

impl Items {
    pub(super) fn bytes(&self) -> usize {
        LIST_BYTES + self.bytes + spare_bytes(self.len() * size_of::<Text>())
    }

    pub(super) fn is_small(&self) -> bool {
        !self.large
    }

    /// Marks a small list (one listpack in Redis) as large (a quicklist) if it passes `limit` when `items`
    /// are added, or take the place of others. As in Redis, the new items count with the bytes of their texts
    /// alone.
    pub(super) fn expect<'a>(&mut self, limit: ListLimit, items: impl ExactSizeIterator<Item = &'a [u8]>) {
        if self.large {
            return;
        }
        let count = self.len().saturating_add(items.len());
        let bytes = LISTPACK_BYTES + self.packed_bytes + items.map(<[u8]>::len).sum::<usize>();
        self.large = bytes > limit.bytes || count > limit.items;
    }

    /// Marks a large list (a quicklist in Redis) as small (one listpack) if it is within half of `limit`, after it
    /// has lost items.
    ///
    /// Redis also asks that all items are in one listpack of the quicklist. Lists have no listpacks here, so that a
    /// list of several short ones becomes small a few items earlier.
    pub(super) fn settle(&mut self, limit: ListLimit) {
        self.settle_within(limit.bytes / 2, limit.items / 2);
    }

    /// Marks a list whose items were all added at once as small (one listpack in Redis) if it is within
    /// `limit`, or else as large (a quicklist).
    pub(super) fn settle_new(&mut self, limit: ListLimit) {
        self.large = true;
        self.settle_within(limit.bytes, limit.items);
    }

    fn settle_within(&mut self, bytes_max: usize, items_max: usize) {
        if LISTPACK_BYTES + self.packed_bytes <= bytes_max && self.len() <= items_max {
            self.large = false;
        }
    }

    fn count(&mut self, item: &Text) {
        self.bytes += item.cost();
        self.packed_bytes += packed::text_bytes(item.as_bytes());
    }

    fn discount(&mut self, item: &Text) {
        self.bytes -= item.cost();
        self.packed_bytes -= packed::text_bytes(item.as_bytes());
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
        self.count(&item);
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
        self.discount(&item);
        self.shrink();
        Some(item)
    }

    /// Frees spare memory of a list that has become much shorter.
    fn shrink(&mut self) {
        if let Some(capacity) = capacity_kept(self.ring.len(), self.ring.capacity()) {
            self.ring.shrink_to(capacity);
        }
    }

    /// Replaces the item of the list at `position`, which must exist.
    pub(super) fn set(&mut self, position: usize, item: Text) {
        self.count(&item);
        let former = std::mem::replace(&mut self.ring[position], item);
        self.discount(&former);
    }

    pub(super) fn insert(&mut self, position: usize, item: Text) {
        self.count(&item);
        self.ring.insert(position, item);
    }

    /// Keeps the items of the list from position `start` up to, but not including, `end`, and returns how
    /// many it removed. Only the removed items are read.
    pub(super) fn keep(&mut self, start: usize, end: usize) -> usize {
        let before = self.ring.len();
        let gone = |(bytes, packed): (usize, usize), item: Text| {
            (bytes + item.cost(), packed + packed::text_bytes(item.as_bytes()))
        };
        let behind = self.ring.drain(end..).fold((0, 0), gone);
        let (bytes, packed_bytes) = self.ring.drain(..start.min(end)).fold(behind, gone);
        self.bytes -= bytes;
        self.packed_bytes -= packed_bytes;
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
        self.packed_bytes -= goes * packed::text_bytes(item);
        self.shrink();
        goes
    }
}
