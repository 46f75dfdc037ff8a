//! Hash slots that have hot keys, as all cores see them. By these, the core that has a client splits its reads of
//! several hot keys, because a request for one key is more often answered from memory, or shares a fetch (shared read
//! of a hot key).

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use crate::values::limits::SLOTS;

/// Numbers of hot keys by hash slot, of all cores. Each key is counted by its home core (the core through which the
/// key's requests pass); all cores read the numbers, which may be a moment old.
#[derive(Debug)]
pub struct HotSlots {
    slots: Box<[AtomicU16]>,
    /// Number of hot keys in all slots, so that requests look up no slot while there is none.
    all: AtomicU32,
}

impl Default for HotSlots {
    fn default() -> Self {
        let slots = (0..SLOTS).map(|_| AtomicU16::new(0)).collect();
        Self { slots, all: AtomicU32::new(0) }
    }
}

impl HotSlots {
    /// Counts one more hot key in a slot.
    pub fn add(&self, slot: u16) {
        self.slots[usize::from(slot)].fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one hot key less in a slot: a key that was counted with [`HotSlots::add`] is no longer hot.
    pub fn remove(&self, slot: u16) {
        self.slots[usize::from(slot)].fetch_sub(1, Ordering::Relaxed);
        self.all.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if no core has a hot key.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.load(Ordering::Relaxed) == 0
    }

    /// True if a core has a hot key in this slot.
    pub fn has(&self, slot: u16) -> bool {
        self.slots[usize::from(slot)].load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_hot_until_its_last_hot_key_is_cold() {
        let slots = HotSlots::default();
        assert!(slots.is_empty() && !slots.has(7));
        slots.add(7);
        slots.add(7);
        slots.add(SLOTS - 1);
        slots.remove(7);
        assert!(slots.has(7) && slots.has(SLOTS - 1) && !slots.has(8) && !slots.is_empty());
        slots.remove(7);
        slots.remove(SLOTS - 1);
        assert!(!slots.has(7) && slots.is_empty());
    }
}
