//! The value of a stream: its entries, and the groups of consumers that read them together.
//!
//! ```text
//!     Stream ── Log: id ─> entry
//!           └── name ─> Group ── id ─> Pending: delivered to whom, when, how often
//!                           └── name ─> Consumer ── ids that are pending with it
//! ```

use super::log::{Id, Log};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The approximate bytes of a pending entry (delivered and not acknowledged), which is in two trees.
pub(super) const PENDING_BYTES: usize = 112;
/// The approximate bytes of a consumer of a stream's group, besides its name.
pub(super) const CONSUMER_BYTES: usize = 240;
/// The approximate bytes of a stream's group of consumers, besides its name.
const GROUP_BYTES: usize = 160;
/// The least bytes of a tree of groups, of consumers and of pending entries (delivered and not acknowledged) that has
/// any: a tree has room for several from the beginning.
const GROUPS_BYTES_MIN: usize = 1_160;
const CONSUMERS_BYTES_MIN: usize = 720;
const PENDING_BYTES_MIN: usize = 544;

/// Returns the approximate bytes of a tree of `count` elements that take `bytes` each; a tree that has any takes at
/// least `bytes_min`.
fn tree_bytes(count: usize, bytes: usize, bytes_min: usize) -> usize {
    if count == 0 { 0 } else { (count * bytes).max(bytes_min) }
}

/// The name of a group of consumers, or of a consumer. All pending entries of a consumer share its name.
type Name = Rc<[u8]>;

/// The record of an entry of a stream that was delivered to a consumer and is not acknowledged yet: the
/// consumer, the time of the last delivery (milliseconds since 1970), and the number of deliveries.
#[derive(Clone)]
pub(super) struct Pending {
    pub(super) consumer: Name,
    pub(super) delivered_ms: u64,
    pub(super) deliveries: u64,
}

/// A consumer of a group: when it last sent a command, when it last got entries, and the ids of its pending
/// entries (delivered to it and not acknowledged).
#[derive(Clone)]
pub(super) struct Consumer {
    pub(super) seen_ms: u64,
    /// The time (in milliseconds since 1970) at which entries last became pending with the consumer, by
    /// XREADGROUP without NOACK or by a claim; `None` if none ever did.
    pub(super) active_ms: Option<u64>,
    pub(super) pending: BTreeSet<Id>,
}

/// A group of consumers of a stream, with the entries that are delivered and not acknowledged (pending).
#[derive(Clone)]
pub(super) struct Group {
    /// The id after which the group delivers entries: that of the last entry delivered to a consumer, unless
    /// XGROUP or XCLAIM has set another.
    pub(super) last: Id,
    /// The number of entries ever added to the stream, up to and including the one with the id `last` (XGROUP
    /// may set it, too: ENTRIESREAD); `None` if it cannot be computed.
    pub(super) read: Option<u64>,
    pub(super) pending: BTreeMap<Id, Pending>,
    pub(super) consumers: BTreeMap<Name, Consumer>,
    names_bytes: usize,
}

impl Group {
    /// Returns the approximate bytes of the group's consumers and of its pending entries (delivered and not
    /// acknowledged).
    pub(super) fn bytes(&self) -> usize {
        let consumers = tree_bytes(self.consumers.len(), CONSUMER_BYTES, CONSUMERS_BYTES_MIN);
        self.names_bytes + consumers + tree_bytes(self.pending.len(), PENDING_BYTES, PENDING_BYTES_MIN)
    }

    /// Returns the number of entries of the stream that the group has not delivered yet; `None` if it cannot
    /// be computed. The number may be negative after XSETID has set a smaller count of entries ever added.
    pub(super) fn lag(&self, log: &Log) -> Option<i64> {
        if log.added == 0 {
            return Some(0);
        }
        let read = match self.read {
            Some(read) if !log.has_gap_from(self.last) => Some(read),
            _ => log.added_until(self.last),
        };
        Some((log.added as i64).wrapping_sub(read? as i64))
    }

    /// Records that the group has delivered the entry `id` for the first time, and counts it as read. Does
    /// nothing if the group has delivered that id or a greater one.
    pub(super) fn advance(&mut self, log: &Log, id: Id) {
        if id <= self.last {
            return;
        }
        self.read = match self.read {
            Some(read) if !log.has_gap_from(id) => Some(read.saturating_add(1)),
            _ if log.added > 0 => log.added_until(id),
            read => read,
        };
        self.last = id;
    }

    /// Adds a consumer to the group, or records that it has sent a command at `now_ms`. True if it is new.
    pub(super) fn see(&mut self, name: &[u8], now_ms: u64) -> bool {
        if let Some(consumer) = self.consumers.get_mut(name) {
            consumer.seen_ms = now_ms;
            return false;
        }
        self.names_bytes += name.len();
        let consumer = Consumer { seen_ms: now_ms, active_ms: None, pending: BTreeSet::new() };
        self.consumers.insert(name.into(), consumer);
        true
    }

    /// Records that entries have become pending with the consumer `name`, which must exist, at `now_ms`.
    pub(super) fn note_active(&mut self, name: &[u8], now_ms: u64) {
        if let Some(consumer) = self.consumers.get_mut(name) {
            consumer.active_ms = Some(now_ms);
        }
    }

    /// Removes a consumer with its pending entries (delivered to it and not acknowledged), and returns the
    /// number of these; 0 if there is no such consumer.
    pub(super) fn remove_consumer(&mut self, name: &[u8]) -> usize {
        let Some(consumer) = self.consumers.remove(name) else { return 0 };
        self.names_bytes -= name.len();
        for id in &consumer.pending {
            self.pending.remove(id);
        }
        consumer.pending.len()
    }

    /// Makes the entry `id` pending with the consumer `name`, which must exist, taking it from another
    /// consumer if need be, and returns its record. A new record counts no deliveries yet.
    pub(super) fn give(&mut self, id: Id, name: &[u8]) -> &mut Pending {
        let known = self.consumers.get_key_value(name);
        let consumer: Name = known.map_or_else(|| name.into(), |(name, _)| Rc::clone(name));
        let pending = self.pending.entry(id).or_insert_with(|| Pending {
            consumer: Rc::clone(&consumer),
            delivered_ms: 0,
            deliveries: 0,
        });
        if pending.consumer != consumer {
            if let Some(former) = self.consumers.get_mut(&pending.consumer) {
                former.pending.remove(&id);
            }
            pending.consumer = consumer;
        }
        if let Some(consumer) = self.consumers.get_mut(name) {
            consumer.pending.insert(id);
        }
        pending
    }

    /// Acknowledges an entry, so that it is not pending with any consumer any more. True if it was.
    pub(super) fn acknowledge(&mut self, id: Id) -> bool {
        let Some(pending) = self.pending.remove(&id) else { return false };
        if let Some(consumer) = self.consumers.get_mut(&pending.consumer) {
            consumer.pending.remove(&id);
        }
        true
    }
}

/// The value of a stream: its entries, and its groups of consumers by name.
#[derive(Clone, Default)]
pub(super) struct Stream {
    pub(super) log: Log,
    groups: BTreeMap<Name, Group>,
    groups_bytes: usize,
    pending: usize,
}

impl Stream {
    pub(super) fn bytes(&self) -> usize {
        let groups = tree_bytes(self.groups.len(), GROUP_BYTES, GROUPS_BYTES_MIN);
        self.log.bytes() + groups + self.groups_bytes
    }

    /// Returns the number of entries of the stream plus that of its pending entries (delivered and not
    /// acknowledged), on which the effort (steps of work) to remove the stream depends.
    pub(super) fn elements(&self) -> usize {
        self.log.len() + self.pending
    }

    pub(super) fn groups(&self) -> &BTreeMap<Name, Group> {
        &self.groups
    }

    pub(super) fn group(&self, name: &[u8]) -> Option<&Group> {
        self.groups.get(name)
    }

    /// Adds a group of consumers that delivers the entries after id `last`. False if there is a group of this
    /// name. `read` is the number of entries that the group counts as delivered; `None` if unknown.
    pub(super) fn add_group(&mut self, name: &[u8], last: Id, read: Option<u64>) -> bool {
        if self.groups.contains_key(name) {
            return false;
        }
        self.groups_bytes += name.len();
        let group =
            Group { last, read, pending: BTreeMap::new(), consumers: BTreeMap::new(), names_bytes: 0 };
        self.groups.insert(name.into(), group);
        true
    }

    /// Removes a group of consumers. True if it existed.
    pub(super) fn remove_group(&mut self, name: &[u8]) -> bool {
        let Some(group) = self.groups.remove(name) else { return false };
        self.groups_bytes -= name.len() + group.bytes();
        self.pending -= group.pending.len();
        true
    }

    /// Changes a group of consumers by `change`, updates the memory counts, and returns the result of
    /// `change`. `None` if there is no such group.
    pub(super) fn change_group<R>(
        &mut self,
        name: &[u8],
        change: impl FnOnce(&Log, &mut Group) -> R,
    ) -> Option<R> {
        let group = self.groups.get_mut(name)?;
        let (bytes, pending) = (group.bytes(), group.pending.len());
        let result = change(&self.log, group);
        self.groups_bytes = self.groups_bytes + group.bytes() - bytes;
        self.pending = self.pending + group.pending.len() - pending;
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_entries_share_the_name_of_their_consumer() {
        let mut stream = Stream::default();
        stream.add_group(b"g", Id::LEAST, None);
        stream.change_group(b"g", |_, group| {
            group.see(b"first", 0);
            group.see(b"second", 0);
            for (sequence, name) in [(1, b"first".as_slice()), (2, b"first"), (3, b"second"), (1, b"second")]
            {
                group.give(Id { ms: 0, sequence }, name);
            }
            for pending in group.pending.values() {
                let (name, _) = group.consumers.get_key_value(&pending.consumer).expect("it exists");
                assert!(Rc::ptr_eq(name, &pending.consumer));
            }
            assert_eq!(
                group.consumers.values().map(|consumer| consumer.pending.len()).collect::<Vec<_>>(),
                [1, 2]
            );
        });
    }
}
