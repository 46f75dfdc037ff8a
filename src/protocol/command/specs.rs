//! Key specifications of `COMMAND INFO`: rules for finding the first key of a command, and from there the
//! others.

use super::{Arguments, Command, Effect, KeyError, Keys};
use crate::protocol::encode::{self, Protocol};

/// Rule for some of a command's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeySpec {
    access: Access,
    begin: Begin,
    find: Find,
}

/// Use of the keys by the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    ReadAndWrite,
    Overwrite,
    /// A channel, which stands where a key might.
    NoKey,
}

/// Position of the first key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    Index(i64),
    /// The first key stands behind a word, which is searched from a position on.
    Keyword(&'static str, i64),
    Unknown,
}

/// Positions of the other keys, relative to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Find {
    Range {
        last: i64,
        step: i64,
        /// Divisor of the arguments that are keys: 2 where only the first half are.
        limit: i64,
    },
    /// The number of keys stands where the first key was expected.
    Counted,
    Unknown,
}

/// Rule for a single key.
const ONE: Find = Find::Range { last: 0, step: 1, limit: 0 };
/// Rule for all arguments up to the last.
const TO_THE_END: Find = Find::Range { last: -1, step: 1, limit: 0 };

/// Returns all rules for a command.
pub(super) fn of(command: &Command) -> Vec<KeySpec> {
    let access = match command.effect {
        Effect::Read => Access::Read,
        Effect::Write => Access::ReadAndWrite,
        Effect::None => Access::NoKey,
    };
    let spec = |access, begin, find| KeySpec { access, begin, find };
    match command.keys {
        Keys::None => Vec::new(),
        Keys::Range { first, last, step } => {
            let (first, last, step) = (i64::from(first), i64::from(last), i64::from(step));
            let last = if last > 0 { last - first } else { last };
            vec![spec(access, Begin::Index(first), Find::Range { last, step, limit: 0 })]
        }
        Keys::NumKeys { at, destination: None, .. } => {
            vec![spec(access, Begin::Index(i64::from(at)), Find::Counted)]
        }
        Keys::NumKeys { at, destination: Some(destination), .. } => vec![
            spec(Access::Overwrite, Begin::Index(i64::from(destination)), ONE),
            spec(Access::Read, Begin::Index(i64::from(at)), Find::Counted),
        ],
        Keys::Streams => {
            let halves = Find::Range { last: -1, step: 1, limit: 2 };
            vec![spec(access, Begin::Keyword("STREAMS", 1), halves)]
        }
        Keys::Sort => vec![
            spec(Access::Read, Begin::Index(1), ONE),
            spec(Access::Overwrite, Begin::Unknown, Find::Unknown),
        ],
        Keys::GeoStore => {
            let options = i64::from(command.arity.unsigned_abs());
            vec![
                spec(Access::Read, Begin::Index(1), ONE),
                spec(Access::Overwrite, Begin::Keyword("STORE", options), ONE),
                spec(Access::Overwrite, Begin::Keyword("STOREDIST", options), ONE),
            ]
        }
        Keys::Migrate => vec![
            spec(Access::ReadAndWrite, Begin::Index(3), ONE),
            spec(Access::ReadAndWrite, Begin::Keyword("KEYS", -2), TO_THE_END),
        ],
    }
}

/// Calls `each` with every key of a request and its use.
pub(super) fn for_each_access(
    command: &Command,
    arguments: &Arguments<'_>,
    each: &mut impl FnMut(usize, Access),
) -> Result<(), KeyError> {
    let specs = of(command);
    // Where the rules differ, the first key is the odd one: it receives the result, or `STORE` reads it.
    let (Some(first), Some(others)) = (specs.first(), specs.last()) else { return Ok(()) };
    let mut access = first.access;
    command.for_each_key(arguments, &mut |index| {
        each(index, access);
        access = others.access;
    })
}

impl Access {
    /// Returns the flags that Redis has for this use of keys.
    pub(super) fn words(self) -> &'static [&'static str] {
        match self {
            Self::Read => &["RO", "access"],
            Self::ReadAndWrite => &["RW", "access", "update"],
            Self::Overwrite => &["OW", "update"],
            Self::NoKey => &["not_key"],
        }
    }
}

impl KeySpec {
    pub(super) fn write(self, out: &mut Vec<u8>, protocol: Protocol) {
        encode::map(out, protocol, 3);
        encode::bulk(out, b"flags");
        write_words(out, protocol, self.access.words());
        encode::bulk(out, b"begin_search");
        self.begin.write(out, protocol);
        encode::bulk(out, b"find_keys");
        self.find.write(out, protocol);
    }
}

impl Begin {
    fn write(self, out: &mut Vec<u8>, protocol: Protocol) {
        match self {
            Self::Index(index) => write_spec(out, protocol, "index", &[("index", index)]),
            Self::Unknown => write_spec(out, protocol, "unknown", &[]),
            Self::Keyword(keyword, from) => {
                write_spec_head(out, protocol, "keyword", 2);
                encode::bulk(out, b"keyword");
                encode::bulk(out, keyword.as_bytes());
                encode::bulk(out, b"startfrom");
                encode::integer(out, from);
            }
        }
    }
}

impl Find {
    fn write(self, out: &mut Vec<u8>, protocol: Protocol) {
        match self {
            Self::Range { last, step, limit } => {
                write_spec(out, protocol, "range", &[("lastkey", last), ("keystep", step), ("limit", limit)]);
            }
            Self::Counted => {
                let fields = [("keynumidx", 0), ("firstkey", 1), ("keystep", 1)];
                write_spec(out, protocol, "keynum", &fields);
            }
            Self::Unknown => write_spec(out, protocol, "unknown", &[]),
        }
    }
}

/// Writes words as a set of simple strings.
pub(super) fn write_words(out: &mut Vec<u8>, protocol: Protocol, words: &[&str]) {
    encode::set(out, protocol, words.len());
    for word in words {
        encode::simple(out, word);
    }
}

fn write_spec(out: &mut Vec<u8>, protocol: Protocol, kind: &str, fields: &[(&str, i64)]) {
    write_spec_head(out, protocol, kind, fields.len());
    for (name, value) in fields {
        encode::bulk(out, name.as_bytes());
        encode::integer(out, *value);
    }
}

/// Writes everything before the fields, which the caller writes next.
fn write_spec_head(out: &mut Vec<u8>, protocol: Protocol, kind: &str, fields: usize) {
    encode::map(out, protocol, 2);
    encode::bulk(out, b"type");
    encode::bulk(out, kind.as_bytes());
    encode::bulk(out, b"spec");
    encode::map(out, protocol, fields);
}
