//! Key specifications of `COMMAND INFO`: rules for finding the first key of a command, and from there the
//! others.

use super::{Arguments, Command, Effect, KeyError, Keys, keys, uses};
use crate::protocol::encode::{self, Protocol};

/// Rule for some of a command's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    pub(super) access: Access,
    pub(super) begin: Begin,
    pub(super) find: Find,
}

/// Use of the keys by the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    ReadAndWrite,
    Overwrite,
    /// The use that Redis tells with exactly these flags.
    As(&'static [&'static str]),
    /// A channel or a cursor, which stands where a key might and has a key's place.
    NoKey,
}

/// Position among a command's arguments from which its keys are searched (`begin_search` of Redis's key
/// specifications).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    Index(i64),
    /// The position behind a word, which is searched from an argument on; from a negative one, counted from the
    /// end, backwards.
    Keyword(&'static str, i64),
    Unknown,
}

/// Positions of keys, relative to the position from which they are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Find {
    /// The keys begin at the position that [`Begin`] gives, at equal distances.
    Range {
        /// Distance to the last key; a negative one counts from the end of the request, where -1 is the last
        /// argument.
        last: i64,
        step: i64,
        /// Divisor of the arguments that are keys: 2 where only the first half are.
        limit: i64,
    },
    /// The number of keys is among the arguments, and the keys follow.
    Counted {
        /// Distance to the number of keys.
        number: i64,
        /// Distance to the first key.
        first: i64,
        step: i64,
    },
    Unknown,
}

/// Rule for a single key.
const ONE: Find = Find::Range { last: 0, step: 1, limit: 0 };
/// Rule for keys that follow their number.
const COUNTED: Find = Find::Counted { number: 0, first: 1, step: 1 };
/// Rule for all arguments up to the last.
const TO_THE_END: Find = Find::Range { last: -1, step: 1, limit: 0 };

/// Returns all rules for a command.
pub(super) fn of(command: &Command) -> Vec<KeySpec> {
    let access = match command.effect {
        Effect::Read => Access::Read,
        Effect::Write => Access::ReadAndWrite,
        Effect::None => Access::NoKey,
    };
    // The first key and the others may be used in two ways.
    let (access, others) = uses::of(command.name).unwrap_or((access, access));
    let spec = |access, begin, find| KeySpec { access, begin, find };
    match command.keys {
        Keys::None => Vec::new(),
        Keys::Range { first, last, step } => {
            let (first, last, step) = (i64::from(first), i64::from(last), i64::from(step));
            let from = |first| {
                let last = if last > 0 { last - first } else { last };
                (Begin::Index(first), Find::Range { last, step, limit: 0 })
            };
            if access == others {
                let (begin, find) = from(first);
                vec![spec(access, begin, find)]
            } else {
                let (begin, find) = from(first + step);
                vec![spec(access, Begin::Index(first), ONE), spec(others, begin, find)]
            }
        }
        Keys::NumKeys { at, destination: None, .. } => {
            vec![spec(access, Begin::Index(i64::from(at)), COUNTED)]
        }
        Keys::NumKeys { at, destination: Some(destination), .. } => vec![
            spec(Access::Overwrite, Begin::Index(i64::from(destination)), ONE),
            spec(Access::Read, Begin::Index(i64::from(at)), COUNTED),
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
        Keys::Specs(specs) => specs.to_vec(),
    }
}

/// Calls `each` with every key of a request and its use.
pub(super) fn for_each_access(
    command: &Command,
    arguments: &Arguments<'_>,
    each: &mut impl FnMut(usize, Access),
) -> Result<(), KeyError> {
    if let Keys::Specs(specs) = command.keys {
        let keys = all_keys(specs, arguments)?;
        keys.into_iter().for_each(|(index, access)| each(index, access));
        return Ok(());
    }
    // Without `GET` it returns nothing of the old value.
    if command.name == "set" && !arguments.iter().skip(3).any(|word| word.eq_ignore_ascii_case(b"get")) {
        return command.for_each_key(arguments, &mut |index| each(index, Access::Overwrite));
    }
    let specs = of(command);
    // Where the rules differ, the first key is the odd one: it receives the result, or `STORE` reads it.
    let (Some(first), Some(others)) = (specs.first(), specs.last()) else { return Ok(()) };
    let mut access = first.access;
    command.for_each_key(arguments, &mut |index| {
        each(index, access);
        access = others.access;
    })
}

/// Calls `each` with the index of every argument that rules find, in their order. On an error it has not been
/// called at all.
pub(super) fn for_each_key(
    specs: &[KeySpec],
    arguments: &Arguments<'_>,
    each: &mut impl FnMut(usize),
) -> Result<(), KeyError> {
    all_keys(specs, arguments)?.into_iter().for_each(|(index, _)| each(index));
    Ok(())
}

/// Returns the index of every argument that rules find, with its use.
fn all_keys(specs: &[KeySpec], arguments: &Arguments<'_>) -> Result<Vec<(usize, Access)>, KeyError> {
    let mut keys = Vec::new();
    for spec in specs {
        let Some((first, last, step)) = spec.range(arguments)? else { continue };
        if last >= arguments.len() || step == 0 {
            return Err(KeyError::Syntax);
        }
        keys.extend((first..=last).step_by(step).map(|index| (index, spec.access)));
    }
    Ok(keys)
}

impl KeySpec {
    /// Rule for keys that each have a value behind them, and follow their number at the first argument.
    pub(super) const COUNTED_PAIRS: Self = Self {
        access: Access::Overwrite,
        begin: Begin::Index(1),
        find: Find::Counted { number: 0, first: 1, step: 2 },
    };

    /// Returns first key, last key and step in a request; none if the word before the keys is absent, or the
    /// number of keys is 0.
    fn range(self, arguments: &Arguments<'_>) -> Result<Option<(usize, usize, usize)>, KeyError> {
        let length = arguments.len() as i64;
        let begin = match self.begin {
            Begin::Index(index) => index,
            Begin::Keyword(word, from) => {
                let is_word = |index: &usize| arguments.at(*index).eq_ignore_ascii_case(word.as_bytes());
                let found = if from >= 0 {
                    (from as usize..arguments.len()).find(is_word)
                } else {
                    let end = (length + from + 1).max(0) as usize;
                    (0..end).rev().find(is_word)
                };
                let Some(found) = found else { return Ok(None) };
                found as i64 + 1
            }
            Begin::Unknown => return Err(KeyError::Syntax),
        };
        let (first, last, step) = match self.find {
            Find::Range { last, step, .. } if last >= 0 => (begin, begin + last, step),
            Find::Range { last, step, limit } if limit > 1 => {
                (begin, begin + (length - begin) / limit + last, step)
            }
            Find::Range { last, step, .. } => (begin, length + last, step),
            Find::Counted { number, first, step } => {
                let place = usize::try_from(begin + number).ok();
                let word = place.and_then(|place| arguments.get(place)).ok_or(KeyError::Syntax)?;
                let count = keys::integer(word).filter(|count| (0..=length).contains(count));
                match count.ok_or(KeyError::NotAnInteger)? {
                    0 => return Ok(None),
                    count => (begin + first, begin + first + (count - 1) * step, step),
                }
            }
            Find::Unknown => return Err(KeyError::Syntax),
        };
        let place = |at: i64| usize::try_from(at).map_err(|_| KeyError::Syntax);
        let (first, last, step) = (place(first)?, place(last)?, place(step)?);
        if first == 0 || last < first { Err(KeyError::Syntax) } else { Ok(Some((first, last, step))) }
    }
}

impl Access {
    /// Returns the flags that Redis has for this use of keys.
    pub(super) fn words(self) -> &'static [&'static str] {
        match self {
            Self::Read => &["RO", "access"],
            Self::ReadAndWrite => &["RW", "access", "update"],
            Self::Overwrite => &["OW", "update"],
            Self::As(words) => words,
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
            Self::Counted { number, first, step } => {
                let fields = [("keynumidx", number), ("firstkey", first), ("keystep", step)];
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
