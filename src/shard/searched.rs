//! Keys that have just become hot and that a queued request for several keys names. They are kept with the request, so
//! that it is not parsed again.

use crate::policy::hot_keys::HotId;

/// Number of words of a [`HotSet`]: one bit for each index of a hot key, which is below 512.
const WORDS: usize = 512 / u64::BITS as usize;

/// A set of keys of one core that are hot at the same time, by the index in their [`HotId`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotSet([u64; WORDS]);

impl HotSet {
    /// The set of all keys that can be hot, for a request whose keys cannot be parsed: it may name any of
    /// them.
    pub const ALL: Self = Self([u64::MAX; WORDS]);

    /// Adds a hot key to the set.
    pub fn insert(&mut self, id: HotId) {
        let (word, bit) = Self::place(id);
        self.0[word] |= bit;
    }

    /// True if the hot key is in the set.
    pub fn contains(&self, id: HotId) -> bool {
        let (word, bit) = Self::place(id);
        self.0[word] & bit != 0
    }

    /// Adds all hot keys of another set to this one.
    pub fn insert_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
    }

    fn place(id: HotId) -> (usize, u64) {
        let index = usize::from(id.index);
        (index / u64::BITS as usize % WORDS, 1 << (index % u64::BITS as usize))
    }
}

/// Result of parsing a queued request for several keys: which keys that had become hot it names.
#[derive(Clone, Copy, Debug)]
pub struct Searched {
    /// Number of times that a key had become hot on this core, from its start until the request was parsed. Keys that
    /// became hot later were not looked for.
    pub promotions: u64,
    /// Keys that the request names, of those that had become hot when it was parsed and whose earlier requests were
    /// still unnoticed in the queues.
    pub named: HotSet,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_keys_that_were_added_and_no_others() {
        let id = |index| HotId { index, generation: 7 };
        let (mut set, mut other) = (HotSet::default(), HotSet::default());
        set.insert(id(0));
        set.insert(id(64));
        other.insert(id(511));
        set.insert_all(&other);
        let members: Vec<u16> = (0..512).filter(|index| set.contains(id(*index))).collect();
        assert_eq!(members, [0, 64, 511]);
        assert!((0..512).all(|index| HotSet::ALL.contains(id(index))));
    }
}
