//! Copies of what is kept of hot keys that are at home on other cores: a really hot key would be too much for one core.
//!
//! They need no words to be given up: each says how it stood with writes when it was read, and all cores see at once when that has
//! changed (`versions.rs`). Nobody renews them but their home, which is told how often they were of use.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

use crate::protocol::Protocol;
use crate::shard::copy::{Copy, CopyHits};
use crate::shard::versions::Versions;
use crate::values::limits::{HOT_COPIES_MAX, SLOTS};
use crate::values::{ShardId, Timestamp};

/// How often homes are told of hits.
const TOLD_APART: Duration = Duration::from_millis(10);
/// Words of a set of slots.
const WORDS: usize = SLOTS as usize / 64;

#[derive(Debug)]
struct Held {
    copy: Copy,
    hits: u32,
}

/// Those that one core has.
#[derive(Debug)]
pub struct Copies {
    by_slot: HashMap<u16, Vec<Held>>,
    /// Slots in which there are some: nearly all requests are for others.
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

    /// Is there one of a key in this slot?
    #[inline]
    pub fn has(&self, slot: u16) -> bool {
        self.slots[usize::from(slot) / 64 % WORDS] & (1 << (slot % 64)) != 0
    }

    /// Takes one, in the place of an older one of the same reply, if there is room.
    pub fn take(
        &mut self,
        copy: &Copy,
        (own, bytes_max): (ShardId, usize),
        now: Timestamp,
        tell: &mut impl FnMut(ShardId, CopyHits),
    ) {
        self.drop_where(copy.slot, own, tell, |held| {
            now >= held.copy.good_until
                || held.copy.protocol == copy.protocol && held.copy.frame == copy.frame
        });
        if self.count >= HOT_COPIES_MAX || self.bytes + copy.bytes() > bytes_max {
            return;
        }
        self.count += 1;
        self.bytes += copy.bytes();
        self.slots[usize::from(copy.slot) / 64] |= 1 << (copy.slot % 64);
        // Cores do not share a count of who uses it.
        let (frame, reply) = (Bytes::copy_from_slice(&copy.frame), Bytes::copy_from_slice(&copy.reply));
        let held = Held { copy: Copy { frame, reply, ..*copy }, hits: 0 };
        self.by_slot.entry(held.copy.slot).or_default().push(held);
    }

    /// The reply to a request, if it is there and still good.
    pub fn find(
        &mut self,
        slot: u16,
        frame: &[u8],
        protocol: Protocol,
        versions: &Versions,
        now: Timestamp,
    ) -> Option<Bytes> {
        let held = self.by_slot.get_mut(&slot)?;
        let held = held.iter_mut().find(|held| held.copy.protocol == protocol && held.copy.frame == frame)?;
        if now >= held.copy.good_until || !versions.is_good(&held.copy.snapshot) {
            return None;
        }
        held.hits += 1;
        self.has_hits = true;
        Some(held.copy.reply.clone())
    }

    /// Homes are told of hits, and what is too old goes. `tell` is called with each home.
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

    /// When homes should be told, at the latest.
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
