//! The size limits of small collections, which are stored and shown in a compact form (OBJECT ENCODING). All
//! collections of an engine share these limits. A collection that has outgrown a limit stays large, as in
//! Redis.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The most elements of a small collection (one in compact form), whatever the settings say: small
/// collections are searched element by element, and a scan visits them as a whole.
const ELEMENTS_MAX: usize = 4_096;

/// The size limits up to which collections count as small, shared by all collections of an engine.
pub(super) struct Shapes {
    sizes: [AtomicUsize; Size::COUNT],
}

/// The limits up to which Redis would store a collection in its compact form, named by what each of them
/// limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// The most fields of a small hash (`hash-max-listpack-entries`).
    HashFields,
    /// The longest name or value in a small hash, in bytes (`hash-max-listpack-value`).
    HashBytes,
    /// The most members of a small sorted set (`zset-max-listpack-entries`).
    RankingMembers,
    /// The longest member of a small sorted set, in bytes (`zset-max-listpack-value`).
    RankingBytes,
    /// The most members of a set of integers that is stored as sorted integers (`set-max-intset-entries`).
    Integers,
}

impl Size {
    const COUNT: usize = 5;
}

impl Default for Shapes {
    fn default() -> Self {
        Self { sizes: [128, 64, 128, 64, 512].map(AtomicUsize::new) }
    }
}

impl Shapes {
    pub(super) fn get(&self, size: Size) -> usize {
        self.sizes[size as usize].load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, size: Size, value: usize) {
        let counts_bytes = matches!(size, Size::HashBytes | Size::RankingBytes);
        let value = if counts_bytes { value } else { value.min(ELEMENTS_MAX) };
        self.sizes[size as usize].store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn settings_decide_what_is_small() {
        Bench::new().talk(&[
            ("HSET h a 1 b 2", ":2|"),
            ("ZADD z 1 a 2 b", ":2|"),
            ("SADD s 1 2", ":2|"),
            (
                "CONFIG SET hash-max-ziplist-entries 1 zset-max-listpack-entries 1 set-max-intset-entries 1",
                "+OK|",
            ),
            ("OBJECT ENCODING h", "$8|listpack|"),
            ("HSET h2 a 1", ":1|"),
            ("OBJECT ENCODING h2", "$8|listpack|"),
            ("HSET h2 b 2", ":1|"),
            ("OBJECT ENCODING h2", "$9|hashtable|"),
            ("ZADD z 3 a", ":0|"),
            ("OBJECT ENCODING z", "$8|listpack|"),
            ("ZADD z 3 c", ":1|"),
            ("OBJECT ENCODING z", "$8|skiplist|"),
            ("ZRANGESTORE z2 z 0 0", ":1|"),
            ("OBJECT ENCODING z2", "$8|listpack|"),
            ("ZRANGESTORE z2 z 0 1", ":2|"),
            ("OBJECT ENCODING z2", "$8|skiplist|"),
            ("SADD s2 1", ":1|"),
            ("OBJECT ENCODING s2", "$6|intset|"),
            ("SADD s2 2", ":1|"),
            ("OBJECT ENCODING s2", "$9|hashtable|"),
            ("CONFIG SET hash-max-listpack-entries 10 hash-max-listpack-value 3", "+OK|"),
            ("HSET h3 a long", ":1|"),
            ("OBJECT ENCODING h3", "$9|hashtable|"),
            ("OBJECT ENCODING h2", "$9|hashtable|"),
            (
                "CONFIG GET hash-max-listpack-*",
                "*4|$25|hash-max-listpack-entries|$2|10|$23|hash-max-listpack-value|$1|3|",
            ),
        ]);
    }
}
