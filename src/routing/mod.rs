//! Where a key lives: key to slot, slot to the core that is its home and to the backend that stores it.

mod slot;

pub use slot::slot_of;

use crate::values::limits::SLOTS;
use crate::values::{BackendId, ShardId};

/// The map from slots to cores and backends. Immutable; every shard has the same.
#[derive(Clone, Copy, Debug)]
pub struct Topology {
    shards: u16,
    backends: u16,
}

impl Topology {
    /// Spreads the slots over this many shards and backends.
    pub fn new(shards: u16, backends: u16) -> Self {
        assert!(shards > 0 && backends > 0, "a topology has at least one shard and one backend");
        Self { shards, backends }
    }

    /// How many shards there are.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// How many backends there are.
    pub fn backends(&self) -> u16 {
        self.backends
    }

    /// All backends.
    pub fn all_backends(&self) -> impl Iterator<Item = BackendId> + use<> {
        (0..self.backends).map(BackendId)
    }

    /// The backend of a slot: contiguous ranges, as Redis Cluster deals them out.
    pub fn backend_of(&self, slot: u16) -> BackendId {
        debug_assert!(slot < SLOTS);
        BackendId((u32::from(slot) * u32::from(self.backends) / u32::from(SLOTS)) as u16)
    }

    /// The home core of a slot. Mixed first, so that each core has keys of each backend.
    pub fn home_of(&self, slot: u16) -> ShardId {
        debug_assert!(slot < SLOTS);
        let mixed = u32::from(slot).wrapping_mul(0x9E37_79B1);
        ShardId(((u64::from(mixed) * u64::from(self.shards)) >> 32) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_has_a_fair_share_of_every_backend() {
        for (shards, backends) in [(1, 1), (2, 2), (3, 5), (8, 2), (64, 4)] {
            let topology = Topology::new(shards, backends);
            let mut counts = vec![0_u32; usize::from(shards * backends)];
            for slot in 0..SLOTS {
                let (home, backend) = (topology.home_of(slot), topology.backend_of(slot));
                counts[usize::from(home.0 * backends + backend.0)] += 1;
            }
            let fair = f64::from(SLOTS) / f64::from(shards * backends);
            for count in counts {
                assert!(
                    (f64::from(count) - fair).abs() / fair < 0.25,
                    "{count} of {fair} ({shards}x{backends})"
                );
            }
        }
    }

    #[test]
    fn ranges_of_backends_are_contiguous_and_whole() {
        let topology = Topology::new(4, 3);
        let owners: Vec<u16> = (0..SLOTS).map(|slot| topology.backend_of(slot).0).collect();
        assert!(owners.is_sorted());
        assert_eq!((owners[0], owners[usize::from(SLOTS) - 1]), (0, 2));
    }
}
