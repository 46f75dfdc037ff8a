//! The value of a key in the embedded store: a string, list, set, sorted set, hash or stream.

use super::fields::Fields;
use super::items::Items;
use super::keyspace::NEVER_MS;
use super::members::Members;
use super::numbers::{self, Digits};
use super::ranking::Ranking;
use super::stream::Stream;
use super::table::Hasher;
use super::text::Text;

/// The longest string in bytes for which OBJECT ENCODING reports `embstr`, as in Redis.
const EMBEDDED_BYTES_MAX: usize = 44;

/// The value of a key, of any type: it takes three words (24 bytes) and the memory that these point to.
#[derive(Clone)]
#[expect(clippy::box_collection, reason = "a vector and a tag would take four words")]
pub(super) enum Value {
    /// A string that is the decimal form of an integer.
    Integer(i64),
    /// A string that was written as a whole, and is not changed in place.
    Text(Text),
    /// A string that was changed in place (by APPEND and the like), and probably will be again, or a long one
    /// whose buffer was taken over without a copy.
    Buffer(Box<Vec<u8>>),
    Hash(Box<Fields>),
    List(Box<Items>),
    Set(Box<Members>),
    SortedSet(Box<Ranking>),
    Stream(Box<Stream>),
}

const _: () = assert!(size_of::<Value>() == 24);

impl Value {
    pub(super) fn string(bytes: &[u8]) -> Self {
        match numbers::integer(bytes) {
            Some(integer) => Self::Integer(integer),
            None => Self::Text(Text::new(bytes)),
        }
    }

    /// Returns the value for a string. One of at most 44 bytes is copied, and stored as an integer if it is
    /// the canonical form of one; a longer one keeps the buffer `bytes`.
    pub(super) fn from_owned(bytes: Vec<u8>) -> Self {
        if bytes.len() <= EMBEDDED_BYTES_MAX { Self::string(&bytes) } else { Self::Buffer(Box::new(bytes)) }
    }

    /// Returns the bytes of a string that is stored as such; `None` for one that is stored as an integer, and for
    /// other types.
    pub(super) fn stored(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text.as_bytes()),
            Self::Buffer(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// Returns the bytes of a string; an integer is written into `digits` first. `None` for other types.
    pub(super) fn bytes<'a>(&'a self, digits: &'a mut Digits) -> Option<&'a [u8]> {
        match self {
            Self::Integer(integer) => {
                *digits = Digits::new(*integer);
                Some(digits.as_bytes())
            }
            _ => self.stored(),
        }
    }

    /// Returns the name of the value's type, as in `TYPE`.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Integer(_) | Self::Text(_) | Self::Buffer(_) => "string",
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::Set(_) => "set",
            Self::SortedSet(_) => "zset",
            Self::Stream(_) => "stream",
        }
    }

    /// Returns the name of the value's encoding, as in `OBJECT ENCODING`.
    pub(super) fn encoding(&self) -> &'static str {
        match self {
            Self::Integer(_) => "int",
            Self::Text(text) if text.as_bytes().len() <= EMBEDDED_BYTES_MAX => "embstr",
            Self::Text(_) | Self::Buffer(_) => "raw",
            Self::Hash(fields) if fields.is_small() && fields.expires() => "listpackex",
            Self::Hash(fields) if fields.is_small() => "listpack",
            Self::List(items) if items.is_small() => "listpack",
            Self::List(_) => "quicklist",
            Self::Set(members) => members.encoding(),
            Self::Hash(_) => "hashtable",
            Self::SortedSet(ranking) if ranking.is_small() => "listpack",
            Self::SortedSet(_) => "skiplist",
            Self::Stream(_) => "stream",
        }
    }

    /// Returns the approximate bytes that the value takes besides its own three words.
    pub(super) fn cost(&self) -> usize {
        match self {
            Self::Integer(_) => 0,
            Self::Text(text) => text.cost() - size_of::<Text>(),
            Self::Buffer(buffer) => buffer.capacity() + 40,
            Self::Hash(fields) => size_of::<Fields>() + fields.bytes(),
            Self::List(items) => size_of::<Items>() + items.bytes(),
            Self::Set(members) => size_of::<Members>() + members.bytes(),
            Self::SortedSet(ranking) => size_of::<Ranking>() + ranking.bytes(),
            Self::Stream(stream) => size_of::<Stream>() + stream.bytes(),
        }
    }

    /// Returns the number of elements of a collection; 1 for a string. For a stream, its pending entries
    /// count too.
    pub(super) fn elements(&self) -> usize {
        match self {
            Self::Integer(_) | Self::Text(_) | Self::Buffer(_) => 1,
            Self::Hash(fields) => fields.len(),
            Self::List(items) => items.len(),
            Self::Set(members) => members.len(),
            Self::SortedSet(ranking) => ranking.len(),
            Self::Stream(stream) => stream.elements(),
        }
    }

    /// Returns the soonest expiry of any field of a hash, in milliseconds since 1970; `u64::MAX` if no field
    /// expires, or for another type.
    pub(super) fn soonest_field_ms(&self) -> u64 {
        if let Self::Hash(fields) = self { fields.soonest_ms() } else { NEVER_MS }
    }

    /// True for a collection without elements, whose key must be removed. A stream stays when its last entry
    /// is removed.
    pub(super) fn is_hollow(&self) -> bool {
        match self {
            Self::Integer(_) | Self::Text(_) | Self::Buffer(_) | Self::Stream(_) => false,
            Self::Hash(fields) => fields.len() == 0,
            Self::List(items) => items.len() == 0,
            Self::Set(members) => members.len() == 0,
            Self::SortedSet(ranking) => ranking.len() == 0,
        }
    }
}

/// A type of value that has elements: hash, list, set, sorted set or stream.
pub(super) trait Collection: Sized {
    fn empty(hasher: &Hasher) -> Value;
    fn within(value: &Value) -> Option<&Self>;
    fn within_mut(value: &mut Value) -> Option<&mut Self>;
}

impl Collection for Fields {
    fn empty(hasher: &Hasher) -> Value {
        Value::Hash(Box::new(Self::new(hasher)))
    }

    fn within(value: &Value) -> Option<&Self> {
        if let Value::Hash(fields) = value { Some(fields) } else { None }
    }

    fn within_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::Hash(fields) = value { Some(fields) } else { None }
    }
}

impl Collection for Items {
    fn empty(_: &Hasher) -> Value {
        Value::List(Box::default())
    }

    fn within(value: &Value) -> Option<&Self> {
        if let Value::List(items) = value { Some(items) } else { None }
    }

    fn within_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::List(items) = value { Some(items) } else { None }
    }
}

impl Collection for Members {
    fn empty(hasher: &Hasher) -> Value {
        Value::Set(Box::new(Self::new(hasher)))
    }

    fn within(value: &Value) -> Option<&Self> {
        if let Value::Set(members) = value { Some(members) } else { None }
    }

    fn within_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::Set(members) = value { Some(members) } else { None }
    }
}

impl Collection for Ranking {
    fn empty(hasher: &Hasher) -> Value {
        Value::SortedSet(Box::new(Self::new(hasher)))
    }

    fn within(value: &Value) -> Option<&Self> {
        if let Value::SortedSet(ranking) = value { Some(ranking) } else { None }
    }

    fn within_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::SortedSet(ranking) = value { Some(ranking) } else { None }
    }
}

impl Collection for Stream {
    fn empty(_: &Hasher) -> Value {
        Value::Stream(Box::default())
    }

    fn within(value: &Value) -> Option<&Self> {
        if let Value::Stream(stream) = value { Some(stream) } else { None }
    }

    fn within_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::Stream(stream) = value { Some(stream) } else { None }
    }
}
