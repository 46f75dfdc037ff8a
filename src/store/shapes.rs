//! The size limits of small collections, which are stored and shown in a compact form (OBJECT ENCODING). All
//! collections of an engine share these limits. A collection that has outgrown a limit stays large, as in
//! Redis.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// The most elements of a small collection (one in compact form), whatever the settings say: small
/// collections are searched element by element, and a scan visits them as a whole.
const ELEMENTS_MAX: usize = 4_096;

/// The size limits up to which collections count as small, shared by all collections of an engine.
pub(super) struct Shapes {
    sizes: [AtomicUsize; Size::COUNT],
    /// The setting `list-max-listpack-size`: a number of items, or one of five sizes in bytes if negative.
    list: AtomicI64,
}

/// The size limits of a small list: Redis stores it as one listpack, and a longer one as a quicklist of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListLimit {
    /// Maximum number of bytes of the listpack, its header included.
    pub(super) bytes: usize,
    /// Maximum number of items; `usize::MAX` if only bytes count.
    pub(super) items: usize,
}

/// The header and the end of a listpack, in bytes.
pub(super) const LISTPACK_BYTES: usize = 7;

/// The limits in bytes that the values -1 to -5 of `list-max-listpack-size` stand for, from Redis's documentation.
const LIST_BYTES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// The limit in bytes of a small list whose items are counted.
const COUNTED_LIST_BYTES: usize = 8 << 10;

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
    /// The most members of a small set whose members are not all integers (`set-max-listpack-entries`).
    SetMembers,
    /// The longest member, in bytes, of a small set whose members are not all integers
    /// (`set-max-listpack-value`).
    SetBytes,
}

impl Size {
    const COUNT: usize = 7;
}

impl Default for Shapes {
    fn default() -> Self {
        Self { sizes: [512, 64, 128, 64, 512, 128, 64].map(AtomicUsize::new), list: AtomicI64::new(-2) }
    }
}

impl Shapes {
    pub(super) fn get(&self, size: Size) -> usize {
        self.sizes[size as usize].load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, size: Size, value: usize) {
        let counts_bytes = matches!(size, Size::HashBytes | Size::RankingBytes | Size::SetBytes);
        let value = if counts_bytes { value } else { value.min(ELEMENTS_MAX) };
        self.sizes[size as usize].store(value, Ordering::Relaxed);
    }

    /// Sets the size of small lists, in the form of the setting `list-max-listpack-size`.
    pub(super) fn set_list(&self, value: i64) {
        self.list.store(value, Ordering::Relaxed);
    }

    /// Returns the size limits of small lists.
    pub(super) fn list(&self) -> ListLimit {
        match self.list.load(Ordering::Relaxed) {
            items @ 0.. => ListLimit { bytes: COUNTED_LIST_BYTES, items: (items as usize).max(1) },
            size => {
                let step = (size.unsigned_abs() as usize - 1).min(LIST_BYTES.len() - 1);
                ListLimit { bytes: LIST_BYTES[step], items: usize::MAX }
            }
        }
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
            ("CONFIG SET set-max-listpack-entries 2 set-max-listpack-value 3", "+OK|"),
            ("SADD s3 a b", ":2|"),
            ("OBJECT ENCODING s3", "$8|listpack|"),
            ("SADD s3 c", ":1|"),
            ("OBJECT ENCODING s3", "$9|hashtable|"),
            ("SADD s4 long", ":1|"),
            ("OBJECT ENCODING s4", "$9|hashtable|"),
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
