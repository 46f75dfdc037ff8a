//! Positions of a command's keys among its arguments: the rules by which they are found.

use std::fmt;
use std::ops::Range;

use super::specs::{self, KeySpec};
use super::{Arguments, Command};

/// Rule by which the keys of a request are found. Positions count from the command name, which is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// The command names no keys.
    None,
    /// The keys are every `step`th argument from `first` to `last`; a negative `last` counts from the end,
    /// where -1 is the last.
    Range {
        /// Position of the first key among the request's words.
        first: u8,
        /// Position of the last key, or of the last argument that may be a key; -1 is the last argument.
        last: i8,
        /// Distance from one key to the next, in arguments: 1 if every argument is a key, 2 if a value follows
        /// each.
        step: u8,
    },
    /// The number of keys is argument `at`, and the keys follow it.
    NumKeys {
        /// Position of the word that states the number of keys.
        at: u8,
        /// Position of a further key, which stands before the number and receives the result; none if the
        /// command has no such key.
        destination: Option<u8>,
        /// The rule for the word that states the number of keys, with the error texts of Redis.
        count: KeyCount,
    },
    /// The keys are the first half of the arguments after the word `STREAMS`.
    Streams,
    /// The keys are the first argument, and the argument after the last `STORE`.
    Sort,
    /// The keys are the first argument, and the last argument that follows `STORE` or `STOREDIST`.
    GeoStore,
    /// The key is the third argument, or, if that is empty, the keys are all arguments after the word `KEYS`.
    Migrate,
    /// The keys are all arguments that any of these rules finds.
    Specs(&'static [KeySpec]),
}

/// Commands that state the number of their keys, by family. Each family has its own errors for a wrong
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyCount {
    /// The number of keys of `EVAL` and its variants, which may be 0, with their error texts for a wrong
    /// number.
    Script,
    /// The number of keys of `FCALL` and its variants, which may be 0, with their error texts for a wrong
    /// number.
    Function,
    /// The number of keys of `ZUNION` and related commands, with their error texts for a wrong number.
    SortedSets,
    /// The number of keys of `SINTERCARD`, with its error texts for a wrong number.
    Intersection,
    /// The number of keys of `LMPOP` and related commands, with their error texts for a wrong number.
    Pop,
}

/// Reason why the keys of a request cannot be found. Its text is the error reply that Redis would send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The word for the number of keys of a request is not an integer, or not one that can be a number of
    /// keys.
    NotAnInteger,
    /// The number of keys of a call of a function (`FCALL`) is not an integer.
    BadCount,
    /// The request is wrong: its number of keys is negative.
    NegativeCount,
    /// The number of keys is not an integer above 0.
    CountNotPositive,
    /// The number of keys is below 1, and the named command needs at least one.
    NoInputKey(&'static str),
    /// The number of keys is larger than the number of arguments that follow it.
    CountTooLarge,
    /// The arguments end too early, or an option before the keys is unknown.
    Syntax,
    /// Keys and values of the named command do not pair up.
    WrongArity(&'static str),
}

impl fmt::Display for KeyError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NotAnInteger => "ERR value is not an integer or out of range",
            Self::BadCount => "ERR Bad number of keys provided",
            Self::NegativeCount => "ERR Number of keys can't be negative",
            Self::CountNotPositive => "ERR numkeys should be greater than 0",
            Self::NoInputKey(name) => {
                return write!(out, "ERR at least 1 input key is needed for '{name}' command");
            }
            Self::CountTooLarge => "ERR Number of keys can't be greater than number of args",
            Self::Syntax => "ERR syntax error",
            Self::WrongArity(name) => {
                return write!(out, "ERR wrong number of arguments for '{name}' command");
            }
        })
    }
}

impl std::error::Error for KeyError {}

impl Keys {
    /// The rule for a single key at the first argument.
    pub(super) const FIRST: Self = Self::Range { first: 1, last: 1, step: 1 };

    /// Returns the positions of the first and the last key and the distance between keys, as `COMMAND` lists
    /// them: only of keys at fixed positions, and zeros if there are none.
    pub const fn positions(self) -> (i64, i64, i64) {
        match self {
            Self::Range { first, last, step } => (first as i64, last as i64, step as i64),
            Self::NumKeys { destination: Some(at), .. } => (at as i64, at as i64, 1),
            Self::Sort | Self::GeoStore => (1, 1, 1),
            Self::Migrate => (3, 3, 1),
            Self::None | Self::NumKeys { destination: None, .. } | Self::Streams | Self::Specs(_) => {
                (0, 0, 0)
            }
        }
    }
}

impl Command {
    /// Returns the index of the first key among the request's arguments; `None` if the request names no key.
    /// An error if the keys cannot be found.
    pub fn first_key(&self, arguments: &Arguments<'_>) -> Result<Option<usize>, KeyError> {
        match self.keys {
            Keys::None => Ok(None),
            Keys::Range { first, .. } => {
                let first = usize::from(first);
                Ok((first < arguments.len()).then_some(first))
            }
            Keys::Sort | Keys::GeoStore => Ok((arguments.len() > 1).then_some(1)),
            Keys::NumKeys { .. } | Keys::Streams | Keys::Migrate | Keys::Specs(_) => {
                let mut found = None;
                self.for_each_key(arguments, &mut |index| {
                    found.get_or_insert(index);
                })?;
                Ok(found)
            }
        }
    }

    /// Calls `each` with the index of every key of the request, in the order in which the command's rule
    /// finds them. If it returns an error, because the keys cannot be found, it has not called `each` at all.
    pub fn for_each_key(
        &self,
        arguments: &Arguments<'_>,
        each: &mut impl FnMut(usize),
    ) -> Result<(), KeyError> {
        let length = arguments.len();
        match self.keys {
            Keys::None => {}
            Keys::Range { first, last, step } => {
                let (range, step) = (key_range(length, first, last), usize::from(step));
                // Where the last key has a fixed place, no value has to follow it.
                if last < 0 && !range.len().is_multiple_of(step) {
                    return Err(KeyError::WrongArity(self.name));
                }
                range.step_by(step).for_each(each);
            }
            Keys::NumKeys { at, destination, count } => {
                let at = usize::from(at);
                let keys = count.read(self.name, arguments, at)?;
                destination.map(usize::from).into_iter().chain(at + 1..=at + keys).for_each(each);
            }
            Keys::Streams => streams(arguments)?.for_each(each),
            Keys::Sort => with_store(arguments, 2, sort_option).for_each(each),
            Keys::GeoStore => with_store(arguments, 5, geo_option).for_each(each),
            Keys::Migrate => migrated(arguments).for_each(each),
            Keys::Specs(specs) => specs::for_each_key(specs, arguments, each)?,
        }
        Ok(())
    }

    /// True if a request reads keys that it does not name: a `SORT` with a pattern of `BY` or `GET` in which `*`
    /// stands for an element.
    pub fn has_key_patterns(&self, arguments: &Arguments<'_>) -> bool {
        if !matches!(self.name, "sort" | "sort_ro") {
            return false;
        }
        let mut index = 2;
        while let Some(word) = arguments.get(index) {
            let is_pattern = word.eq_ignore_ascii_case(b"by") || word.eq_ignore_ascii_case(b"get");
            if is_pattern && arguments.get(index + 1).is_some_and(|pattern| pattern.contains(&b'*')) {
                return true;
            }
            index += match sort_option(word) {
                StoreOption::Words(words) => words,
                StoreOption::Stores => 2,
            };
        }
        false
    }

    /// Returns the number of keys that a request names; 0 if they cannot be found.
    pub fn number_of_keys(&self, arguments: &Arguments<'_>) -> usize {
        let mut count = 0;
        // Errors in the keys are reported where the request is routed.
        let _ = self.for_each_key(arguments, &mut |_| count += 1);
        count
    }
}

/// Returns the indices of the arguments that may be keys, or belong to one, in a request of `length` words, by the
/// positions of [`Keys::Range`].
pub(super) fn key_range(length: usize, first: u8, last: i8) -> Range<usize> {
    let distance = usize::from(last.unsigned_abs());
    let end = if last < 0 { (length + 1).saturating_sub(distance) } else { length.min(distance + 1) };
    usize::from(first)..end
}

impl KeyCount {
    /// Reads the number of keys of a request from argument `at`, and checks that as many arguments follow. An
    /// error, which names `command`, if the word is no such number or fewer arguments follow.
    fn read(self, command: &'static str, arguments: &Arguments<'_>, at: usize) -> Result<usize, KeyError> {
        let given = arguments.get(at).ok_or(KeyError::Syntax)?;
        let room = arguments.len() - at - 1;
        match (integer(given), self) {
            (None, Self::Script | Self::SortedSets) => Err(KeyError::NotAnInteger),
            (None, Self::Function) => Err(KeyError::BadCount),
            (None | Some(..=0), Self::Intersection | Self::Pop) => Err(KeyError::CountNotPositive),
            (Some(..=0), Self::SortedSets) => Err(KeyError::NoInputKey(command)),
            (Some(count), Self::SortedSets | Self::Pop) if count > room as i64 => Err(KeyError::Syntax),
            // For scripts, Redis checks for too many keys before it checks for a negative count.
            (Some(count), _) if count > room as i64 => Err(KeyError::CountTooLarge),
            (Some(..0), _) => Err(KeyError::NegativeCount),
            (Some(count), _) => Ok(count as usize),
        }
    }
}

/// Reads an integer in the one form that Redis accepts: no sign but a minus, no space, no leading zero;
/// `None` for any other text.
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if plain { std::str::from_utf8(text).ok()?.parse().ok() } else { None }
}

fn streams(arguments: &Arguments<'_>) -> Result<Range<usize>, KeyError> {
    let mut index = 1;
    // Redis reads the number of COUNT before it comes to an unknown option or misses STREAMS.
    let mut refusal = KeyError::Syntax;
    loop {
        let word = arguments.get(index).ok_or(refusal)?;
        if word.eq_ignore_ascii_case(b"streams") {
            break;
        }
        let count = arguments.get(index + 1).filter(|_| word.eq_ignore_ascii_case(b"count"));
        if count.is_some_and(|count| integer(count).is_none()) {
            refusal = KeyError::NotAnInteger;
        }
        index += stream_option_words(word).ok_or(refusal)?;
    }
    let first = index + 1;
    let named = arguments.len() - first;
    // Streams and ids that do not pair up are for the store to refuse, in the words of its version.
    if named == 0 { Err(KeyError::Syntax) } else { Ok(first..first + (named / 2).max(1)) }
}

/// Returns how many words an option of `XREAD` or `XREADGROUP` takes, its name included; `None` if the word
/// is no option.
pub(super) fn stream_option_words(word: &[u8]) -> Option<usize> {
    const OPTIONS: [(&[u8], usize); 5] =
        [(b"count", 2), (b"block", 2), (b"group", 3), (b"noack", 1), (b"claim", 2)];
    OPTIONS.iter().find(|(name, _)| word.eq_ignore_ascii_case(name)).map(|(_, words)| *words)
}

/// Meaning of a word among the options of a command that may store its result under a key.
enum StoreOption {
    /// An option of this many words, its name included.
    Words(usize),
    /// An option whose next word is the key that receives the result.
    Stores,
}

/// Returns the index of the first argument and, if an option names a key that receives the result, the index
/// of that key. Options begin at index `options_from`, and `option` classifies a word. If several options
/// name such a key, the last one counts, as in Redis.
fn with_store(
    arguments: &Arguments<'_>,
    options_from: usize,
    option: fn(&[u8]) -> StoreOption,
) -> impl Iterator<Item = usize> + use<> {
    let mut store = None;
    let mut index = options_from;
    while let Some(word) = arguments.get(index) {
        index += match option(word) {
            StoreOption::Words(words) => words,
            StoreOption::Stores => {
                store = (index + 1 < arguments.len()).then_some(index + 1).or(store);
                2
            }
        };
    }
    (arguments.len() > 1).then_some(1).into_iter().chain(store)
}

fn sort_option(word: &[u8]) -> StoreOption {
    if word.eq_ignore_ascii_case(b"store") {
        StoreOption::Stores
    } else if word.eq_ignore_ascii_case(b"limit") {
        StoreOption::Words(3)
    } else if word.eq_ignore_ascii_case(b"get") || word.eq_ignore_ascii_case(b"by") {
        StoreOption::Words(2)
    } else {
        StoreOption::Words(1)
    }
}

fn geo_option(word: &[u8]) -> StoreOption {
    if word.eq_ignore_ascii_case(b"store") || word.eq_ignore_ascii_case(b"storedist") {
        StoreOption::Stores
    } else {
        StoreOption::Words(1)
    }
}

/// Returns the indices of the keys of `MIGRATE host port key|"" database timeout [options] [KEYS key ...]`.
fn migrated(arguments: &Arguments<'_>) -> Range<usize> {
    const KEY: usize = 3;
    const OPTIONS: usize = 6;
    let listed = (OPTIONS..arguments.len()).find(|index| arguments.at(*index).eq_ignore_ascii_case(b"keys"));
    match (arguments.get(KEY), listed) {
        (Some(b""), Some(keyword)) => keyword + 1..arguments.len(),
        _ => KEY..arguments.len().min(KEY + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::with_request as with;
    use super::super::{Command, Handling, Keys, PrivateUse, find, recognise};

    #[test]
    fn keys_stand_where_redis_finds_them() {
        // The replies of COMMAND GETKEYS in Redis 7.
        let cases = [
            ("GET a", "a"),
            ("MGET a b c", "a b c"),
            ("MSET a 1 b 2", "a b"),
            ("BITOP AND d a b", "d a b"),
            ("LCS a b IDX", "a b"),
            ("BLPOP a b 0", "a b"),
            ("OBJECT ENCODING a", "a"),
            ("XGROUP CREATE s g $", "s"),
            ("EVAL code 2 a b argument", "a b"),
            ("EVAL code 0 argument", ""),
            ("FCALL_RO f 1 a", "a"),
            ("ZUNION 2 a b WITHSCORES", "a b"),
            ("ZUNIONSTORE d 2 a b", "d a b"),
            ("SINTERCARD 1 a LIMIT 3", "a"),
            ("LMPOP 2 a b LEFT", "a b"),
            ("BZMPOP 0 2 a b MIN", "a b"),
            ("XREAD COUNT 2 STREAMS a b 0 0", "a b"),
            ("XREADGROUP GROUP streams c NOACK STREAMS a >", "a"),
            ("XREAD STREAMS a b 0", "a"),
            ("XREAD COUNT 1 STREAMS a", "a"),
            ("SORT a", "a"),
            ("SORT a BY store LIMIT 0 10 GET store STORE d", "a d"),
            ("SORT a STORE d STORE e", "a e"),
            ("GEORADIUS g 1 2 3 km STORE d STOREDIST e", "g e"),
            ("GEORADIUSBYMEMBER g m 3 km", "g"),
            ("GEORADIUSBYMEMBER g m 3 km store d", "g d"),
            ("MIGRATE h 1 a 0 5", "a"),
            ("MIGRATE h 1 \"\" 0 5 COPY KEYS a b", "a b"),
            ("SSUBSCRIBE a b", "a b"),
            ("PING", ""),
            ("KEYS *", ""),
        ];
        for (request, keys) in cases {
            assert_eq!(keys_of(request), Ok(keys.to_owned()), "{request}");
        }
    }

    #[test]
    fn what_has_no_sense_gets_the_words_of_redis() {
        let cases = [
            ("EVAL code x", "ERR value is not an integer or out of range"),
            ("EVAL code 01 a", "ERR value is not an integer or out of range"),
            ("EVAL code +1 a", "ERR value is not an integer or out of range"),
            ("EVAL code 99999999999999999999 a", "ERR value is not an integer or out of range"),
            ("EVAL code -1", "ERR Number of keys can't be negative"),
            ("EVAL code 2 a", "ERR Number of keys can't be greater than number of args"),
            ("FCALL f x", "ERR Bad number of keys provided"),
            ("ZUNION 0 a", "ERR at least 1 input key is needed for 'zunion' command"),
            ("ZUNION 2 a", "ERR syntax error"),
            ("ZUNIONSTORE d x a", "ERR value is not an integer or out of range"),
            ("SINTERCARD 0 a", "ERR numkeys should be greater than 0"),
            ("SINTERCARD x a", "ERR numkeys should be greater than 0"),
            ("SINTERCARD 2 a", "ERR Number of keys can't be greater than number of args"),
            ("ZMPOP 3 a MIN", "ERR syntax error"),
            ("XREAD COUNT 1 a", "ERR syntax error"),
            ("XREAD a COUNT x", "ERR syntax error"),
            ("XREAD COUNT x a", "ERR value is not an integer or out of range"),
            ("XREADGROUP GROUP g c COUNT STREAMS s >", "ERR value is not an integer or out of range"),
            ("XREAD COUNT 1 STREAMS", "ERR syntax error"),
            ("MSET a 1 b", "ERR wrong number of arguments for 'mset' command"),
        ];
        for (request, text) in cases {
            assert_eq!(keys_of(request), Err(text.to_owned()), "{request}");
        }
    }

    #[test]
    fn a_last_key_at_a_fixed_place_needs_no_value_behind_it() {
        // A command that a store has taught weir may have such keys.
        let keys = Keys::Range { first: 1, last: 3, step: 2 };
        let command = Command { keys, ..*find(b"get").expect("a command") };
        for (request, expected) in
            [("GET a x b", vec![1, 3]), ("GET a x b y", vec![1, 3]), ("GET a x", vec![1]), ("GET a", vec![1])]
        {
            with(request, |arguments| {
                let mut found = Vec::new();
                command.for_each_key(arguments, &mut |index| found.push(index)).expect("keys");
                assert_eq!(found, expected, "{request}");
            });
        }
    }

    #[test]
    fn the_first_key_is_the_first_of_all_keys() {
        for request in
            ["GET a", "PING", "EVAL c 0", "ZDIFFSTORE d 1 a", "XREAD STREAMS a 0", "SORT a STORE b"]
        {
            with(request, |arguments| {
                let command = recognise(arguments).expect("a command");
                let mut first = None;
                command.for_each_key(arguments, &mut |index| _ = first.get_or_insert(index)).expect("keys");
                assert_eq!(command.first_key(arguments), Ok(first), "{request}");
            });
        }
    }

    #[test]
    fn arguments_decide_what_may_pass() {
        let cases = [
            ("XREAD STREAMS a 0", Handling::Forward),
            ("XREAD COUNT 1 BLOCK 0 STREAMS a 0", Handling::Private(PrivateUse::Waits)),
            ("XREAD STREAMS block 0", Handling::Forward),
            ("XREADGROUP GROUP block c STREAMS a >", Handling::Forward),
            ("XREADGROUP GROUP g c block 1 STREAMS a >", Handling::Private(PrivateUse::Waits)),
            ("COPY a b REPLACE", Handling::Forward),
            ("COPY a b db 0", Handling::BetweenDatabases),
            ("COPY a b DB 1", Handling::BetweenDatabases),
            ("COPY db db", Handling::Forward),
            ("MOVE a 1", Handling::BetweenDatabases),
        ];
        for (request, handling) in cases {
            with(request, |arguments| {
                assert_eq!(
                    recognise(arguments).expect("a command").handling_for(arguments),
                    handling,
                    "{request}"
                );
            });
        }
    }

    fn keys_of(request: &str) -> Result<String, String> {
        with(request, |arguments| {
            let command = recognise(arguments).map_err(|error| error.to_string())?;
            let mut keys = Vec::new();
            command
                .for_each_key(arguments, &mut |index| {
                    keys.push(String::from_utf8_lossy(arguments.at(index)).into_owned());
                })
                .map_err(|error| error.to_string())?;
            Ok(keys.join(" "))
        })
    }
}
