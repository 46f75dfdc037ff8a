//! Table of entries by bucket, with a bound on their number: the accounts of up to a million users.
//!
//! A hash table that grows moves everything it holds, which would stop a core for a tenth of a second at a
//! million entries. Therefore this is 256 small tables: each grows alone, and at another moment.
//!
//! A tenant whose clients make up names of users must not take the room of other tenants' users. So a tenant may have
//! as many users here as there is room left for others (a dynamic threshold, as in switches with shared
//! memory): a single tenant gets half of the room, a second one half of the rest, and some room is always
//! left for another tenant.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::values::BucketId;

/// Number of hash tables among which the buckets of quotas are divided.
const PARTS: usize = 256;
/// Maximum number of entries checked to find idle ones to drop when there is no room for a new bucket. If there
/// is still no room then, the new bucket gets no entry.
const LOOKED_AT_MAX: usize = 16;

/// Hasher that returns the id unchanged: bucket ids are hashes already.
#[derive(Debug, Default)]
pub struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only ids are hashed, and they are numbers");
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}

type Part<V> = HashMap<BucketId, V, BuildHasherDefault<AsItIs>>;

/// Table of entries by bucket (of a quota), at most `entries_max`. When it is full, or when a tenant has more
/// users in it than there is room left, those of the 16 oldest entries that are idle make room.
#[derive(Debug)]
pub struct BucketTable<V> {
    parts: Box<[Part<V>; PARTS]>,
    /// Ids of the buckets that have entries, ordered by the time when each was added, or last found to be in
    /// use.
    order: VecDeque<BucketId>,
    entries_max: usize,
    /// Numbers of entries for users of each group of tenants (see [`BucketId::tenant_group`]).
    users: Box<[u32; BucketId::TENANT_GROUPS]>,
    evicted: u64,
    refused: u64,
}

impl<V> BucketTable<V> {
    /// Creates an empty table that holds at most `entries_max` buckets.
    pub fn new(entries_max: usize) -> Self {
        Self {
            parts: Box::new(std::array::from_fn(|_| Part::default())),
            order: VecDeque::new(),
            entries_max,
            users: Box::new([0; BucketId::TENANT_GROUPS]),
            evicted: 0,
            refused: 0,
        }
    }

    /// Returns the number of buckets that have an entry in the table.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// True if no bucket has an entry in the table.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the number of idle entries that were dropped to make room for others since the table was made.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns the number of entries that could not be added for lack of room since the table was made.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the value stored for a bucket, if there is one.
    pub fn get_mut(&mut self, id: BucketId) -> Option<&mut V> {
        self.parts[part_of(id)].get_mut(&id)
    }

    /// Returns the value stored for a bucket, if there is one.
    pub fn get(&self, id: BucketId) -> Option<&V> {
        self.parts[part_of(id)].get(&id)
    }

    /// Returns the value of a bucket's entry, which is created with `make` if there is none. If there is no
    /// room for a new entry, the 16 oldest entries are checked, and those for which `is_idle` is true are
    /// dropped. None if there is still no room then.
    pub fn get_or_insert_with(
        &mut self,
        id: BucketId,
        make: impl FnOnce() -> V,
        is_idle: impl FnMut(&V) -> bool,
    ) -> Option<&mut V> {
        if !self.has_room_for(id) && !self.parts[part_of(id)].contains_key(&id) {
            self.evicted += self.sweep(LOOKED_AT_MAX, is_idle) as u64;
            if !self.has_room_for(id) {
                self.refused += 1;
                return None;
            }
        }
        Some(match self.parts[part_of(id)].entry(id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(place) => {
                self.order.push_back(id);
                if let Some(group) = id.tenant_group() {
                    self.users[group] += 1;
                }
                place.insert(make())
            }
        })
    }

    /// True if a bucket without an entry may get one: the table has room and, for a user's bucket, the users
    /// of its group of tenants have fewer entries in the table than there is room left.
    fn has_room_for(&self, id: BucketId) -> bool {
        let room = self.entries_max - self.order.len();
        room > 0 && id.tenant_group().is_none_or(|group| (self.users[group] as usize) < room)
    }

    /// Checks the oldest `looked_at_max` entries, drops those for which `is_idle` is true, and returns how
    /// many it dropped. Frees memory once the table is empty.
    pub fn sweep(&mut self, looked_at_max: usize, mut is_idle: impl FnMut(&V) -> bool) -> usize {
        let before = self.order.len();
        for _ in 0..looked_at_max.min(before) {
            let Some(id) = self.order.pop_front() else { break };
            let part = &mut self.parts[part_of(id)];
            if part.get(&id).is_some_and(&mut is_idle) {
                part.remove(&id);
                if let Some(group) = id.tenant_group() {
                    self.users[group] -= 1;
                }
            } else {
                self.order.push_back(id);
            }
        }
        let freed = before - self.order.len();
        if self.order.is_empty() && freed > 0 {
            // After a flood of users, the memory that their entries took is given back.
            self.parts.iter_mut().for_each(Part::shrink_to_fit);
            self.order.shrink_to_fit();
        }
        freed
    }
}

/// Returns the index of the hash table, 0 to 255, that holds a bucket's entry. It is taken from bits of the
/// id that the hash tables do not use themselves.
const fn part_of(id: BucketId) -> usize {
    (id.0 >> 40) as usize % PARTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> BucketId {
        BucketId::of_tenant(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn user(tenant: u64, number: u64) -> BucketId {
        BucketId::of_user(tenant << 24, id(number).0)
    }

    fn adds(table: &mut BucketTable<bool>, tenant: u64, count: u64) -> usize {
        let first = table.len() as u64;
        (first..first + count)
            .filter(|number| {
                table.get_or_insert_with(user(tenant, *number), || false, |is_idle| *is_idle).is_some()
            })
            .count()
    }

    #[test]
    fn users_of_one_tenant_leave_room_for_those_of_others() {
        let mut table = BucketTable::new(1_024);
        assert_eq!(adds(&mut table, 1, 10_000), 512, "half of it");
        assert_eq!(adds(&mut table, 2, 10_000), 256, "half of the rest");
        assert_eq!([3, 4, 5].map(|tenant| adds(&mut table, tenant, 10_000)), [128, 64, 32]);
        assert_eq!(table.refused(), 5 * 10_000 - 992);
        // Buckets of tenants themselves have any room that is left.
        let tenants =
            (0..100).filter(|number| table.get_or_insert_with(id(*number), || false, |_| false).is_some());
        assert_eq!(tenants.count(), 32);
        assert_eq!(table.len(), 1_024);
        // A user that is known stays so.
        assert!(table.get_or_insert_with(user(1, 0), || false, |_| false).is_some());
    }

    #[test]
    fn idle_users_make_room_for_others_of_their_tenant() {
        let mut table = BucketTable::new(64);
        assert_eq!(adds(&mut table, 1, 100), 32);
        assert_eq!(adds(&mut table, 1, 1), 0);
        *table.get_mut(user(1, 0)).expect("the first") = true;
        assert_eq!(adds(&mut table, 1, 10), 1);
        assert_eq!((table.len(), table.evicted()), (32, 1));
        while table.sweep(1_000, |_| true) > 0 {}
        assert_eq!(table.users.iter().sum::<u32>(), 0);
    }

    #[test]
    fn the_oldest_idle_one_makes_room() {
        let mut table = BucketTable::new(3);
        for number in 0..3 {
            *table.get_or_insert_with(id(number), || 0, |_| true).expect("room") = number;
        }
        // The first entry is in use, so another one must make room.
        assert!(table.get_or_insert_with(id(9), || 9, |number| *number != 0).is_some());
        assert_eq!((table.len(), table.evicted()), (2, 2));
        assert!(table.get_mut(id(0)).is_some() && table.get_mut(id(9)).is_some());
    }

    #[test]
    fn when_all_are_in_use_a_new_one_finds_no_room() {
        let mut table = BucketTable::new(40);
        (0..40).for_each(|number| assert!(table.get_or_insert_with(id(number), || 0, |_| false).is_some()));
        assert_eq!(table.get_or_insert_with(id(99), || 0, |_| false), None);
        assert_eq!((table.len(), table.refused()), (40, 1));
        assert_eq!(table.get_or_insert_with(id(7), || 0, |_| false), Some(&mut 0));
    }

    #[test]
    fn a_flood_of_names_leaves_nothing_behind() {
        let mut table = BucketTable::new(10_000);
        (0..100_000).for_each(|number| {
            table.get_or_insert_with(id(number), || 0, |_| true);
        });
        assert!(table.len() <= 10_000);
        while table.sweep(1_000, |_| true) > 0 {}
        assert!(table.is_empty());
        assert_eq!(table.parts.iter().map(Part::capacity).sum::<usize>(), 0);
    }
}
