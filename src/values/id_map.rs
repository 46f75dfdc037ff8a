//! Hash maps whose keys are numbers that weir assigns itself, such as tenant ids. No client can choose such
//! numbers so that many keys collide, so one multiplication is enough to hash them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash map whose keys are numbers assigned by weir, such as ids, which are hashed with one multiplication.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Factor of the hash, an odd number whose bits have no pattern: 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hasher for map keys that are a single number, such as ids.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u16(&mut self, id: u16) {
        self.write_u64(u64::from(id));
    }

    #[inline]
    fn write_u32(&mut self, id: u32) {
        self.write_u64(u64::from(id));
    }

    #[inline]
    fn write_u64(&mut self, id: u64) {
        let mixed = (self.0 ^ id).wrapping_mul(FACTOR);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::Hash as _;

    use super::*;
    use crate::values::TenantId;

    #[test]
    fn numbers_in_a_row_spread_over_the_places_of_a_table() {
        // A hash table uses the lowest bits of a hash for the place of an entry, and the highest seven to
        // tell entries apart there.
        let hashes: Vec<u64> = (0..4_096_u16)
            .map(|id| {
                let mut hasher = IdHasher::default();
                TenantId(id).hash(&mut hasher);
                hasher.finish()
            })
            .collect();
        let low: BTreeSet<u64> = hashes.iter().map(|hash| hash % 4_096).collect();
        let high: BTreeSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
        assert!(low.len() > 2_400, "{} of 4096 places", low.len());
        assert_eq!(high.len(), 128);
    }
}
