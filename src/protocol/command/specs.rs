//! Key specifications of `COMMAND INFO`: rules for finding the first key of a request, and from there the
//! others.

use super::{Arguments, Command, Effect, KeyError, Keys, keys, uses};
use crate::protocol::encode::{self, Protocol};

/// Rule that finds some of a command's keys and says how the command uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    pub(super) access: Access,
    pub(super) begin: Begin,
    pub(super) find: Find,
}

/// Use that a command makes of the keys that a rule finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    ReadAndWrite,
    Overwrite,
    /// The keys are used as Redis describes with exactly these flags.
    As(&'static [&'static str]),
    /// The rule finds no key, but a channel or a cursor, which stands where a key might stand.
    NoKey,
}

/// Position among a command's arguments from which its keys are searched (`begin_search` of Redis's key
/// specifications).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    Index(i64),
    /// The search for keys begins after the given word, which is looked for from the given argument on; a
    /// negative position counts from the end, and the word is looked for backwards.
    Keyword(&'static str, i64),
    Unknown,
}

/// Rule for the positions of a request's keys, relative to the position where the search begins ([`Begin`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Find {
    /// The keys begin at the position where the search begins ([`Begin`]), at equal distances.
    Range {
        /// Distance from the first key to the last; a negative value counts from the end of the request,
        /// where -1 is the last argument.
        last: i64,
        step: i64,
        /// Divisor of the number of the arguments from the first key on: 2 if only the first half of them are
        /// keys; 0 or 1 if all are.
        limit: i64,
    },
    /// The number of keys is one of the arguments, and the keys follow it.
    Counted {
        /// Distance from the position where the search begins ([`Begin`]) to the argument that is the number
        /// of keys.
        number: i64,
        /// Distance from the position where the search begins ([`Begin`]) to the first key.
        first: i64,
        step: i64,
    },
    Unknown,
}

/// Rule for a single key, which is at the position where the search begins ([`Begin`]).
const ONE: Find = Find::Range { last: 0, step: 1, limit: 0 };
/// Rule for keys that follow their number, which stands at the position where the search begins ([`Begin`]).
const COUNTED: Find = Find::Counted { number: 0, first: 1, step: 1 };
/// Rule by which all arguments from the position where the search begins up to the last are keys.
const TO_THE_END: Find = Find::Range { last: -1, step: 1, limit: 0 };

/// Returns all rules by which a command's keys are found.
pub(super) fn of(command: &Command) -> Vec<KeySpec> {
    let access = match command.effect {
        Effect::Read => Access::Read,
        Effect::Write => Access::ReadAndWrite,
        Effect::None => Access::NoKey,
    };
    // Some commands access their first key in another way than their other keys.
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
            // In `XREADGROUP`, a group or a consumer may be called `STREAMS`.
            let from = if command.name == "xreadgroup" { 4 } else { 1 };
            vec![spec(access, Begin::Keyword("STREAMS", from), halves)]
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
        Keys::Migrate => {
            vec![spec(access, Begin::Index(3), ONE), spec(access, Begin::Keyword("KEYS", -2), TO_THE_END)]
        }
        Keys::Specs(specs) => specs.to_vec(),
    }
}

/// Calls `each` with the index of every key of a request and the command's use of it, as `COMMAND GETKEYS` of
/// Redis lists them. If it returns an error, it has not called `each` at all.
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
    if let Some(access) = access_by_options(command, arguments) {
        return command.for_each_key(arguments, &mut |index| each(index, access));
    }
    let specs = of(command);
    // Where the rules differ, the first key is the odd one: it receives the result, or `STORE` reads it.
    let (Some(first), Some(others)) = (specs.first(), specs.last()) else { return Ok(()) };
    let mut access = first.access;
    let mut each = |index| {
        each(index, access);
        access = others.access;
    };
    let Keys::Range { first, last, step } = command.keys else {
        return command.for_each_key(arguments, &mut each);
    };
    let range = keys::key_range(arguments.len(), first, last);
    // Each rule must find a key: `PFMERGE` alone can lack the keys of its second rule.
    if range.len() < specs.len() {
        return Err(KeyError::Syntax);
    }
    // A last key without its value, as in `MSET a 1 b`, is listed too.
    range.step_by(usize::from(step)).for_each(each);
    Ok(())
}

/// Returns the use of keys by a request whose options decide it (`SET` without `GET`, `BITFIELD` that only
/// reads); `None` for every other request, for which the command's rules hold.
fn access_by_options(command: &Command, arguments: &Arguments<'_>) -> Option<Access> {
    match command.name {
        // Without `GET`, the old value is not returned, so it is only overwritten.
        "set" if !arguments.iter().skip(3).any(|word| word.eq_ignore_ascii_case(b"get")) => {
            Some(Access::Overwrite)
        }
        "bitfield" if is_read_only(arguments) => Some(Access::Read),
        _ => None,
    }
}

/// True if all operations of a `BITFIELD` are reads. Words that are no operation count as a write, as in Redis.
fn is_read_only(arguments: &Arguments<'_>) -> bool {
    let mut index = 2;
    while let Some(word) = arguments.get(index) {
        let words = if word.eq_ignore_ascii_case(b"get") { 3 } else { 2 };
        let is_known = words == 3 || word.eq_ignore_ascii_case(b"overflow");
        if !is_known || index + words > arguments.len() {
            return false;
        }
        index += words;
    }
    true
}

/// True if some arguments of a command are keys. The channels of `SSUBSCRIBE` stand where keys stand, but are none.
pub(super) fn names_keys(command: &Command) -> bool {
    of(command).iter().any(|spec| spec.access != Access::NoKey)
}

/// Calls `each` with the index of every argument that the rules `specs` find, rule by rule. If it returns an
/// error, because a rule finds a position that the request does not have or no valid number of keys, it has
/// not called `each` at all.
pub(super) fn for_each_key(
    specs: &[KeySpec],
    arguments: &Arguments<'_>,
    each: &mut impl FnMut(usize),
) -> Result<(), KeyError> {
    all_keys(specs, arguments)?.into_iter().for_each(|(index, _)| each(index));
    Ok(())
}

/// Returns the index of every argument that the rules find, with the command's use of it. An error if a rule
/// finds a position that the request does not have, or no valid number of keys.
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
    /// Rule for keys that each are followed by a value; their number is the first argument, and they follow
    /// it.
    pub(super) const COUNTED_PAIRS: Self = Self {
        access: Access::Overwrite,
        begin: Begin::Index(1),
        find: Find::Counted { number: 0, first: 1, step: 2 },
    };

    /// Returns the indices of first and last key in a request and the step between keys; `None` if the word
    /// before the keys is absent, or the number of keys is 0. An error if the request has too few arguments
    /// for this rule.
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
    /// Returns the flags by which Redis describes this use of keys.
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

/// Writes words as a RESP set of simple strings (an array in RESP2).
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

/// Writes the start, with the type `kind`, of a key specification's part (`begin_search` or `find_keys`):
/// everything before its fields, whose number is `fields` and which the caller writes next.
fn write_spec_head(out: &mut Vec<u8>, protocol: Protocol, kind: &str, fields: usize) {
    encode::map(out, protocol, 2);
    encode::bulk(out, b"type");
    encode::bulk(out, kind.as_bytes());
    encode::bulk(out, b"spec");
    encode::map(out, protocol, fields);
}
