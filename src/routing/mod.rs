//! Routing of a key: from its slot to its home core (through which all requests for it pass) and to the
//! backend that stores it.
//!
//! ```text
//!   slots     0 ─────────────────────────────── 16383
//!   cores     |    0    |    1    |    2    |    3    |
//!   backends  |         A         |         B         |
//! ```
//!
//! Where stores deal out the slots themselves, as a Redis Cluster does, `cluster/` has their map.

pub mod cluster;
mod slot;

pub use slot::slot_of;

use crate::values::limits::SLOTS;
use crate::values::{BackendId, ShardId};

/// The assignment of hash slots to cores and backends (stores). Immutable; every shard has the same.
#[derive(Clone, Copy, Debug)]
pub struct Topology {
    shards: u16,
    backends: u16,
}

impl Topology {
    /// Creates the assignment that spreads the slots over this many shards and backends, at least one of
    /// each.
    pub fn new(shards: u16, backends: u16) -> Self {
        assert!(shards > 0 && backends > 0, "a topology has at least one shard and one backend");
        Self { shards, backends }
    }

    /// Returns the number of shards (cores) among which the slots are divided.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// Returns the number of backends (stores) among which the slots are divided.
    pub fn backends(&self) -> u16 {
        self.backends
    }

    /// Returns the ids of all backends among which the slots are divided.
    pub fn all_backends(&self) -> impl Iterator<Item = BackendId> + use<> {
        (0..self.backends).map(BackendId)
    }

    /// Returns the backend of a slot. Backends have contiguous ranges of slots, as in Redis Cluster.
    pub fn backend_of(&self, slot: u16) -> BackendId {
        BackendId(range_of(slot, self.backends))
    }

    /// Returns the home core (the core through which a key's requests pass) of a slot. Cores have contiguous
    /// ranges of slots too, which line up with those of backends: a core talks only to the few backends that
    /// share slots with it, so that more of its requests go to one backend in one write.
    pub fn home_of(&self, slot: u16) -> ShardId {
        ShardId(range_of(slot, self.shards))
    }
}

/// Returns the index of the range that a slot is in, of `ranges` contiguous ranges that differ in size by at
/// most one.
fn range_of(slot: u16, ranges: u16) -> u16 {
    debug_assert!(slot < SLOTS);
    (u32::from(slot) * u32::from(ranges) / u32::from(SLOTS)) as u16
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_contiguous_whole_and_even(shards in 1..=256_u16, backends in 1..=256_u16) {
            let topology = Topology::new(shards, backends);
            let homes: Vec<u16> = (0..SLOTS).map(|slot| topology.home_of(slot).0).collect();
            let stores: Vec<u16> = (0..SLOTS).map(|slot| topology.backend_of(slot).0).collect();
            for (owners, number) in [(homes, shards), (stores, backends)] {
                prop_assert!(owners.is_sorted());
                let sizes: Vec<usize> = owners.chunk_by(|one, next| one == next).map(<[u16]>::len).collect();
                prop_assert_eq!(sizes.len(), usize::from(number), "each owns one range");
                let (least, most) = (sizes.iter().min(), sizes.iter().max());
                prop_assert!(most <= least.map(|least| least + 1).as_ref());
            }
        }

        #[test]
        fn cores_and_backends_meet_as_seldom_as_they_can(shards in 1..=256_u16, backends in 1..=256_u16) {
            let topology = Topology::new(shards, backends);
            let meetings: BTreeSet<(u16, u16)> =
                (0..SLOTS).map(|slot| (topology.home_of(slot).0, topology.backend_of(slot).0)).collect();
            prop_assert!(meetings.len() < usize::from(shards) + usize::from(backends));
            let backends_of = |shard| meetings.iter().filter(|(home, _)| *home == shard).count();
            let shards_of = |backend| meetings.iter().filter(|(_, store)| *store == backend).count();
            for shard in 0..shards {
                prop_assert!(backends_of(shard) <= usize::from(backends.div_ceil(shards)) + 1);
            }
            for backend in 0..backends {
                prop_assert!(shards_of(backend) <= usize::from(shards.div_ceil(backends)) + 1);
            }
            if shards.is_multiple_of(backends) || backends.is_multiple_of(shards) {
                prop_assert_eq!(meetings.len(), usize::from(shards.max(backends)), "ranges line up");
            }
        }
    }

    /// Keys often differ only in a running number; such keys must spread evenly over the cores.
    #[test]
    fn names_in_a_row_are_spread_evenly() {
        for shards in [2, 3, 4, 8] {
            let topology = Topology::new(shards, 1);
            for prefix in ["key:", "user:", "acme:orders:", "{tag-", ""] {
                let mut counts = vec![0_u32; usize::from(shards)];
                for number in 0..1_000 {
                    let key = format!("{prefix}{number}}}:field");
                    counts[usize::from(topology.home_of(slot_of(key.as_bytes())).0)] += 1;
                }
                let fair = 1_000 / u32::from(shards);
                assert!(counts.iter().all(|count| count.abs_diff(fair) <= fair / 5), "{prefix}: {counts:?}");
            }
        }
    }
}
