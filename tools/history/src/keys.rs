//! The keys that all connections use, and the values that are written to them.

use weir::protocol::encode;
use weir::routing::slot_of;
use weir::values::Random;

use super::flags::Reads;
use super::operation::{Found, Token};

/// The type of a key. A key of each type holds one value: the string, one field of the hash, or the head of
/// the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Hash,
    List,
}

/// A key that all connections use.
#[derive(Debug)]
pub struct Key {
    pub name: String,
    pub kind: Kind,
    /// A hash tag (part of a key's name that decides its slot) whose keys are on the same store as this key,
    /// but in another slot; this key's own tag if no such tag was found.
    pub near_tag: String,
    /// The indices of the stores that have the key, among those that the run also writes to directly: several
    /// if one of them is another weir before the same store.
    pub stores: Vec<usize>,
}

/// The field of hashes in which the value is stored.
pub const FIELD: &str = "f";
const HASH_PLACE: u64 = 6;
const LIST_PLACE: u64 = 7;
const KINDS_ROUND: u64 = 8;
/// The number of keys with the same hash tag.
const KEYS_PER_TAG: u64 = 2;

impl Key {
    pub fn all(count: u64, reads: Reads) -> Vec<Self> {
        let key = |number: u64| {
            let kind = match number % KINDS_ROUND {
                _ if reads == Reads::Get => Kind::Text,
                HASH_PLACE => Kind::Hash,
                LIST_PLACE => Kind::List,
                _ => Kind::Text,
            };
            let tag = format!("history{}", number / KEYS_PER_TAG);
            Self { name: format!("{{{tag}}}:{number}"), kind, near_tag: tag, stores: Vec::new() }
        };
        (0..count).map(key).collect()
    }

    pub fn slot(&self) -> u16 {
        slot_of(self.name.as_bytes())
    }

    /// True if both keys are in the same hash slot.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.slot() == other.slot()
    }

    /// Returns the name of a further key on the same store as this one, which no other command uses because
    /// the token (number of a write) is part of it.
    pub fn scratch(&self, token: Token) -> String {
        format!("{{{}}}:scratch:{token}", self.near_tag)
    }

    /// Appends a command to `out` that gives the key `name` a value of this key's type.
    pub fn create(&self, out: &mut Vec<u8>, name: &str, value: &[u8]) {
        match self.kind {
            Kind::Text => words(out, &[b"SET", name.as_bytes(), value]),
            Kind::Hash => words(out, &[b"HSET", name.as_bytes(), FIELD.as_bytes(), value]),
            Kind::List => words(out, &[b"LPUSH", name.as_bytes(), value]),
        }
    }

    pub const fn create_name(&self) -> &'static str {
        match self.kind {
            Kind::Text => "SET",
            Kind::Hash => "HSET",
            Kind::List => "LPUSH",
        }
    }
}

pub fn words(out: &mut Vec<u8>, words: &[&[u8]]) {
    encode::request(out, words.iter().copied());
}

/// The number of a run of `weir-history`, which is part of all its values and tells them from those that an
/// earlier run has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run(pub u64);

/// The longest padding, in bytes, of values of middle size. Most values have less than 8 bytes of it; a few
/// have up to 40 KiB, too much to be sent together with others, or to be kept by a cache.
const MIDDLE_BYTES_MAX: u64 = 2 * 1024;
const LARGE_BYTES_MAX: u64 = 40 * 1024;

impl Run {
    /// Makes the value for the write with the number `token`: the run's number, the token, and random
    /// padding whose length is written in the value.
    pub fn value(self, token: Token, random: &mut Random) -> Vec<u8> {
        let padding = match random.below(1_000) {
            0..2 => random.below(LARGE_BYTES_MAX),
            2..30 => random.below(MIDDLE_BYTES_MAX),
            _ => random.below(8),
        };
        let mut value = format!("{:x}.{token}.{padding}.", self.0).into_bytes();
        value.resize(value.len() + padding as usize, b'x');
        value
    }

    /// Finds the token (number of the write) in a value that was read; [`Found::Strange`] if the value is
    /// not of this run or was changed.
    pub fn read(self, value: &[u8]) -> Found {
        self.token(value).map_or(Found::Strange, Found::Value)
    }

    fn token(self, value: &[u8]) -> Option<Token> {
        let mut parts = value.splitn(4, |byte| *byte == b'.');
        let mut number = |radix| u64::from_str_radix(std::str::from_utf8(parts.next()?).ok()?, radix).ok();
        let (run, token, padding) = (number(16)?, number(10)?, number(10)?);
        let rest = parts.next()?;
        let is_whole = rest.len() as u64 == padding && rest.iter().all(|byte| *byte == b'x');
        (run == self.0 && is_whole).then_some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_known_again_as_long_as_it_is_whole() {
        let mut random = Random::new(1);
        for token in 1..2_000 {
            let value = Run(0xabc).value(token, &mut random);
            assert_eq!(Run(0xabc).read(&value), Found::Value(token));
            assert_eq!(Run(0xabd).read(&value), Found::Strange);
            assert_eq!(Run(0xabc).read(&value[..value.len() - 1]), Found::Strange);
        }
        for strange in ["", "x", "abc.1", "abc.1.2.", "abc.1.1.y"] {
            assert_eq!(Run(0xabc).read(strange.as_bytes()), Found::Strange, "{strange}");
        }
    }

    #[test]
    fn pairs_share_a_slot() {
        let keys = Key::all(8, Reads::Mixed);
        assert!(keys[0].is_beside(&keys[1]) && !keys[1].is_beside(&keys[2]));
        let kinds: Vec<Kind> = keys.iter().map(|key| key.kind).skip(5).collect();
        assert_eq!(kinds, [Kind::Text, Kind::Hash, Kind::List]);
        assert!(Key::all(8, Reads::Get).iter().all(|key| key.kind == Kind::Text));
    }
}
