//! The entries of a stream, in the order of their ids.
//!
//! Redis keeps entries in nodes of limited size, and an approximate trim (`~`) removes whole nodes only. Here
//! each entry knows its node's number, so that as much is trimmed as there.

use super::packed::{integer_bytes, text_bytes};
use super::text::Text;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The bytes that a node (a group of stream entries, as Redis stores them) takes in Redis besides its entries
/// and field names.
const NODE_BYTES: usize = 15;
const NODE_ENTRY_BYTES: usize = 4;
/// The approximate bytes of an entry in memory besides its fields and values.
const ENTRY_BYTES: usize = 88;
/// The approximate bytes that the first entry of a stream takes in addition: the tree that holds the entries has room
/// for several from the beginning.
const FIRST_ENTRY_BYTES: usize = 320;

/// The id of a stream entry: a time in milliseconds since 1970, and a sequence number within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) ms: u64,
    pub(super) sequence: u64,
}

impl Id {
    pub(super) const LEAST: Self = Self { ms: 0, sequence: 0 };
    pub(super) const GREATEST: Self = Self { ms: u64::MAX, sequence: u64::MAX };

    /// Returns the next greater id of a stream entry; `None` after the greatest.
    pub(super) fn next(self) -> Option<Self> {
        match self.sequence.checked_add(1) {
            Some(sequence) => Some(Self { sequence, ..self }),
            None => self.ms.checked_add(1).map(|ms| Self { ms, sequence: 0 }),
        }
    }

    /// Returns the next smaller id of a stream entry; `None` before the least.
    pub(super) fn previous(self) -> Option<Self> {
        match self.sequence.checked_sub(1) {
            Some(sequence) => Some(Self { sequence, ..self }),
            None => self.ms.checked_sub(1).map(|ms| Self { ms, sequence: u64::MAX }),
        }
    }

    pub(super) fn text(self) -> String {
        format!("{}-{}", self.ms, self.sequence)
    }
}

/// An entry of a stream: its field names and values, alternating.
#[derive(Clone)]
pub(super) struct Entry {
    words: Box<[Text]>,
    node: u64,
}

impl Entry {
    pub(super) fn words(&self) -> &[Text] {
        &self.words
    }

    fn cost(&self) -> usize {
        ENTRY_BYTES + self.words.iter().map(Text::cost).sum::<usize>()
    }
}

/// The entries of a stream that a trim (XTRIM, or XADD with MAXLEN or MINID) keeps.
#[derive(Clone, Copy, Debug)]
pub(super) enum Keep {
    /// The trim keeps at most this many of the newest entries.
    Newest(u64),
    /// The trim keeps the entries whose ids are at least this one.
    Since(Id),
}

/// The precision with which a trim of a stream keeps to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    Exact,
    /// The trim removes only whole nodes (groups of entries, as Redis stores them), and at most this many
    /// entries; 0 for any number.
    Nodes(u64),
}

/// The size of a node (a group of stream entries, as Redis stores them) at which the next entry begins a new
/// one. 0 means that there is no such limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeSize {
    /// Maximum number of entries of a node, a group of entries of a stream (`stream-node-max-entries`); 0 for
    /// no limit.
    pub(super) entries_max: usize,
    /// Maximum number of bytes of a node, a group of entries of a stream (`stream-node-max-bytes`); 0 for no
    /// limit.
    pub(super) bytes_max: usize,
}

impl Default for NodeSize {
    fn default() -> Self {
        Self { entries_max: 100, bytes_max: 4_096 }
    }
}

impl NodeSize {
    /// True if a node (a group of stream entries) takes no further entry: it has `entries` entries, and would
    /// have `bytes` bytes with the further one.
    fn is_full(self, entries: usize, bytes: usize) -> bool {
        let reaches = |size: usize, most: usize| most > 0 && size >= most;
        reaches(entries, self.entries_max) || reaches(bytes, self.bytes_max)
    }
}

/// All entries of a stream, and the counts and ids that it keeps of entries which were removed.
#[derive(Clone, Default)]
pub(super) struct Log {
    entries: BTreeMap<Id, Entry>,
    /// The greatest id that an entry of the stream ever had, or the one that XSETID has set. New entries get
    /// greater ids.
    pub(super) last: Id,
    /// The number of entries that were ever added to the stream, or the number that XSETID has set.
    pub(super) added: u64,
    /// The greatest id of an entry that XDEL has deleted, or the one that XSETID has set; 0-0 without any.
    pub(super) deleted: Id,
    bytes: usize,
    node: u64,
    node_entries: usize,
    /// The bytes that the last node (group of entries) of the stream would take in Redis. An entry that would
    /// bring them to the size of a node begins a new one.
    node_bytes: usize,
    /// The id and the field names of the first entry of the stream's last node (group of entries). A later
    /// entry of the node with the same field names does not repeat them in Redis.
    node_first: (Id, Box<[Text]>),
    names_bytes: usize,
}

impl Log {
    pub(super) fn bytes(&self) -> usize {
        let fixed = if self.entries.is_empty() { 0 } else { FIRST_ENTRY_BYTES };
        fixed + self.bytes + self.names_bytes
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, id: Id) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// Returns the id of the stream's first entry; the least id (0-0) if there is no entry.
    pub(super) fn first(&self) -> Id {
        self.entries.first_key_value().map_or(Id::LEAST, |(id, _)| *id)
    }

    /// Returns the id of the stream's last entry; the least id (0-0) if there is no entry.
    pub(super) fn newest(&self) -> Id {
        self.entries.last_key_value().map_or(Id::LEAST, |(id, _)| *id)
    }

    /// Returns the stream's entries whose ids are in a range, in ascending order of ids.
    pub(super) fn range(&self, ids: RangeInclusive<Id>) -> impl DoubleEndedIterator<Item = (Id, &Entry)> {
        let ids = if ids.is_empty() { None } else { Some(ids) };
        ids.into_iter().flat_map(|ids| self.entries.range(ids)).map(|(id, entry)| (*id, entry))
    }

    /// Returns the number of nodes (groups of entries, as Redis stores them) that contain entries of the
    /// stream.
    pub(super) fn nodes(&self) -> usize {
        let mut nodes = 0;
        let mut after = None;
        for entry in self.entries.values() {
            nodes += usize::from(after != Some(entry.node));
            after = Some(entry.node);
        }
        nodes
    }

    /// Appends an entry with the field names and values `words`, alternating; its id must be greater than the
    /// last one. `size` decides whether the entry begins a new node (group of entries, as Redis stores them).
    pub(super) fn append(&mut self, id: Id, words: Box<[Text]>, size: NodeSize) {
        debug_assert!(id > self.last);
        let bytes: usize = words.iter().map(|word| word.as_bytes().len()).sum();
        let continues = self.entries.last_key_value().is_some_and(|(_, entry)| entry.node == self.node);
        if !continues || size.is_full(self.node_entries, self.node_bytes + bytes) {
            let names: Box<[Text]> = words.iter().step_by(2).cloned().collect();
            let names_bytes: usize = names.iter().map(|name| text_bytes(name.as_bytes())).sum();
            self.node += 1;
            (self.node_entries, self.node_bytes) = (0, NODE_BYTES + names_bytes);
            self.names_bytes = names.iter().map(Text::cost).sum();
            self.node_first = (id, names);
        }
        self.node_entries += 1;
        self.node_bytes += self.packed_bytes(id, &words);
        let entry = Entry { words, node: self.node };
        self.bytes += entry.cost();
        self.entries.insert(id, entry);
        self.last = id;
        self.added = self.added.wrapping_add(1);
    }

    /// Returns the bytes that an entry would take in the stream's last node (group of entries) in Redis.
    fn packed_bytes(&self, id: Id, words: &[Text]) -> usize {
        let (first, names) = &self.node_first;
        let same = words.iter().step_by(2).eq(names.iter());
        let ids = integer_bytes(id.ms.wrapping_sub(first.ms) as i64)
            + integer_bytes(id.sequence.wrapping_sub(first.sequence) as i64);
        let count = if same { 0 } else { integer_bytes(words.len() as i64 / 2) };
        let told = words.iter().enumerate().filter(|(place, _)| !same || place % 2 == 1);
        let told: usize = told.map(|(_, word)| text_bytes(word.as_bytes())).sum();
        NODE_ENTRY_BYTES + ids + count + told
    }

    /// Deletes the stream's entry with this id (XDEL). True if it existed.
    pub(super) fn delete(&mut self, id: Id) -> bool {
        let existed = self.remove(id);
        if existed {
            self.deleted = self.deleted.max(id);
        }
        existed
    }

    fn remove(&mut self, id: Id) -> bool {
        let Some(entry) = self.entries.remove(&id) else { return false };
        self.bytes -= entry.cost();
        if self.entries.is_empty() {
            (self.node_first, self.names_bytes) = ((Id::LEAST, Box::default()), 0);
        }
        true
    }

    /// Removes the oldest entries beyond those that `keep` says to keep, and returns how many it removed.
    /// `precision` says whether exactly those are removed, or only whole nodes (groups of entries, as Redis
    /// stores them).
    pub(super) fn trim(&mut self, keep: Keep, precision: Precision) -> u64 {
        let mut removed = 0;
        while let Some((first, entry)) = self.entries.first_key_value() {
            if self.satisfies(keep, *first) {
                break;
            }
            if precision == Precision::Exact {
                let first = *first;
                self.remove(first);
                removed += 1;
                continue;
            }
            let node = entry.node;
            let ids: Vec<Id> =
                self.entries.iter().take_while(|(_, entry)| entry.node == node).map(|(id, _)| *id).collect();
            let goes = match keep {
                Keep::Newest(most) => (self.entries.len() - ids.len()) as u64 >= most,
                Keep::Since(least) => ids.last().is_some_and(|last| *last < least),
            };
            let too_many = match precision {
                Precision::Nodes(most) => most > 0 && removed + ids.len() as u64 > most,
                Precision::Exact => false,
            };
            if !goes || too_many {
                break;
            }
            removed += ids.len() as u64;
            ids.into_iter().for_each(|id| {
                self.remove(id);
            });
        }
        removed
    }

    fn satisfies(&self, keep: Keep, first: Id) -> bool {
        match keep {
            Keep::Newest(most) => self.entries.len() as u64 <= most,
            Keep::Since(least) => first >= least,
        }
    }

    /// True if the greatest id that XDEL has deleted is at least `start`, and at least the id of the first
    /// present entry: the present entries do not tell then how many were added from `start` on. False if
    /// there is no entry.
    pub(super) fn has_gap_from(&self, start: Id) -> bool {
        self.len() > 0 && self.deleted != Id::LEAST && self.first() <= self.deleted && start <= self.deleted
    }

    /// Returns the number of entries that were ever added to the stream with ids up to `id`; `None` if it
    /// cannot be computed, because entries were deleted or `id` lies beyond the last entry's or between
    /// entries.
    pub(super) fn added_until(&self, id: Id) -> Option<u64> {
        let length = self.len() as u64;
        if self.added == 0 {
            return Some(0);
        }
        if length == 0 && id <= self.last || id == self.last {
            return Some(self.added);
        }
        if id > self.last || id != Id::LEAST && id < self.deleted {
            return None;
        }
        if self.deleted == Id::LEAST || self.deleted < self.first() {
            if id < self.first() {
                return Some(self.added.saturating_sub(length));
            }
            if id == self.first() {
                return Some(self.added.saturating_sub(length) + 1);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64) -> Id {
        Id { ms, sequence: 0 }
    }

    #[test]
    fn approximate_trims_remove_whole_nodes() {
        let mut log = Log::default();
        for ms in 1..=250 {
            log.append(id(ms), Box::new([Text::new(b"f"), Text::new(b"v")]), NodeSize::default());
        }
        assert_eq!(log.nodes(), 3);
        assert_eq!(log.clone().trim(Keep::Newest(10), Precision::Exact), 240);
        assert_eq!(log.clone().trim(Keep::Newest(10), Precision::Nodes(0)), 200);
        assert_eq!(log.clone().trim(Keep::Newest(10), Precision::Nodes(150)), 100);
        assert_eq!(log.clone().trim(Keep::Since(id(150)), Precision::Nodes(0)), 100);
        assert_eq!(log.clone().trim(Keep::Since(id(150)), Precision::Exact), 149);
        assert_eq!(log.trim(Keep::Newest(0), Precision::Exact), 250);
        assert_eq!((log.bytes(), log.len(), log.last), (0, 0, id(250)));
    }

    #[test]
    fn ids_have_neighbors() {
        assert_eq!(Id { ms: 1, sequence: u64::MAX }.next(), Some(id(2)));
        assert_eq!(id(2).previous(), Some(Id { ms: 1, sequence: u64::MAX }));
        assert_eq!((Id::GREATEST.next(), Id::LEAST.previous()), (None, None));
    }
}
