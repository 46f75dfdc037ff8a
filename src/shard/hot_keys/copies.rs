//! Copies of kept replies for hot keys whose home is another core: one core could not answer all requests for
//! a very hot key.
//!
//! No message takes a copy back. Each copy has the state of its key's version cells (counters of writes) from
//! when it was read, and a write changes those cells for all cores at once (`versions.rs`). Only the key's
//! home core renews copies; every 10 ms the other cores report to it how often the copies were used.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

use crate::shard::copy::{Copy, CopyHits};
use crate::shard::request::Route;
use crate::shard::versions::Versions;
use crate::values::limits::{HOT_COPIES_MAX, SLOTS};
use crate::values::{ShardId, Timestamp};

/// The least time between two reports to the home cores that lent copies of kept replies: how many requests
/// this core answered from them. A home core is the one through which all requests for a key pass.
const TOLD_APART: Duration = Duration::from_millis(10);
/// The number of 64-bit words in a bit set of all hash slots.
const WORDS: usize = SLOTS as usize / 64;

#[derive(Debug)]
struct Held {
    copy: Copy,
    hits: u32,
}

/// The copies of other cores' kept replies (those held in memory) that one core holds.
#[derive(Debug)]
pub struct Copies {
    by_slot: HashMap<u16, Vec<Held>>,
    /// A bit set of the slots of whose keys this core has copies of kept replies (those held in memory),
    /// which is looked at before the map, since nearly all requests find no copy.
    slots: Box<[u64; WORDS]>,
    count: usize,
    bytes: usize,
    has_hits: bool,
    told_at: Timestamp,
}

impl Default for Copies {
    fn default() -> Self {
        Self {
            by_slot: HashMap::new(),
            slots: Box::new([0; WORDS]),
            count: 0,
            bytes: 0,
            has_hits: false,
            told_at: Timestamp::ZERO,
        }
    }
}

impl Copies {
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if this core holds a copy of another core's kept reply (one held in memory) for some key in this
    /// slot.
    #[inline]
    pub fn has(&self, slot: u16) -> bool {
        self.slots[usize::from(slot) / 64 % WORDS] & (1 << (slot % 64)) != 0
    }

    /// Stores a copy of another core's kept reply in place of an older one of the same reply. Drops the copy if this
    /// core has 256 (`HOT_COPIES_MAX`) already, or would have more than `bytes_max` bytes of them. For each copy of the
    /// slot that is replaced or has expired, calls `tell` with the home core that lent it and the number of requests
    /// that it answered since the last report, if there were any. `own` is this core.
    pub fn take(
        &mut self,
        copy: &Copy,
        (own, bytes_max): (ShardId, usize),
        now: Timestamp,
        tell: &mut impl FnMut(ShardId, CopyHits),
    ) {
        self.drop_where(copy.slot, own, tell, |held| {
            now >= held.copy.good_until
                || held.copy.protocol == copy.protocol
                    && held.copy.database == copy.database
                    && held.copy.frame == copy.frame
        });
        if self.count >= HOT_COPIES_MAX || self.bytes + copy.bytes() > bytes_max {
            return;
        }
        self.count += 1;
        self.bytes += copy.bytes();
        self.slots[usize::from(copy.slot) / 64] |= 1 << (copy.slot % 64);
        // The bytes are copied because two cores would otherwise change one reference count.
        let (frame, reply) = (Bytes::copy_from_slice(&copy.frame), Bytes::copy_from_slice(&copy.reply));
        let held = Held { copy: Copy { frame, reply, ..*copy }, hits: 0 };
        self.by_slot.entry(held.copy.slot).or_default().push(held);
    }

    /// Returns the copy of another core's kept reply (one held in memory) to this request (`frame`), with the
    /// time at which the store was asked for it, and counts a hit. None if there is none, its lifetime is
    /// over, or its key was written since.
    pub fn find(
        &mut self,
        route: Route,
        frame: &[u8],
        versions: &Versions,
        now: Timestamp,
    ) -> Option<(Bytes, Timestamp)> {
        let held = self.by_slot.get_mut(&route.slot)?;
        let held = held.iter_mut().find(|Held { copy, .. }| {
            copy.protocol == route.protocol && copy.database == route.database && copy.frame == frame
        })?;
        if now >= held.copy.good_until || !versions.is_good(&held.copy.snapshot) {
            return None;
        }
        held.hits += 1;
        self.has_hits = true;
        Some((held.copy.reply.clone(), held.copy.asked_at))
    }

    /// Drops expired copies, and reports through `tell` to the home cores (the cores through which the keys' requests
    /// pass) how many requests each of their copies answered since the last report. Does nothing if it did so less than
    /// 10 ms ago.
    pub fn handle_turn_end(
        &mut self,
        own: ShardId,
        now: Timestamp,
        tell: &mut impl FnMut(ShardId, CopyHits),
    ) {
        if self.count == 0 || now.since(self.told_at) < TOLD_APART {
            return;
        }
        self.told_at = now;
        let slots: Vec<u16> = self.by_slot.keys().copied().collect();
        for slot in slots {
            self.drop_where(slot, own, tell, |held| now >= held.copy.good_until);
        }
        if std::mem::take(&mut self.has_hits) {
            for held in self.by_slot.values_mut().flatten() {
                held.tell(own, tell);
            }
        }
    }

    fn drop_where(
        &mut self,
        slot: u16,
        own: ShardId,
        tell: &mut impl FnMut(ShardId, CopyHits),
        is_done: impl Fn(&Held) -> bool,
    ) {
        let Some(all) = self.by_slot.get_mut(&slot) else { return };
        for mut held in all.extract_if(.., |held| is_done(held)) {
            held.tell(own, tell);
            self.count -= 1;
            self.bytes -= held.copy.bytes();
        }
        if all.is_empty() {
            self.by_slot.remove(&slot);
            self.slots[usize::from(slot) / 64] &= !(1 << (slot % 64));
        }
    }

    /// Returns the time at which [`Self::handle_turn_end`] has something to do next: expired copies to drop, or a
    /// report to the cores that lent copies of how many requests these answered. None if this core has no copies.
    pub fn due(&self) -> Option<Timestamp> {
        (self.count > 0).then(|| self.told_at.after(TOLD_APART))
    }
}

impl Held {
    fn tell(&mut self, own: ShardId, tell: &mut impl FnMut(ShardId, CopyHits)) {
        let hits = std::mem::take(&mut self.hits);
        if hits > 0 {
            tell(self.copy.home, CopyHits { from: own, id: self.copy.id, hits });
        }
    }
}
