//! Limits on requests that multiply the work of a store: each of a few words of such a request makes the store do the
//! work for a whole collection or value again. A store works on one request at a time, so that one such request could
//! keep all other clients waiting for seconds, or make the store fill its memory with one reply.
//!
//! | request | multiplies | most |
//! |---|---|---|
//! | `SRANDMEMBER` and the like with a negative count | elements, which may be the same ones | 16,384 |
//! | `MGET`, `HMGET`, `HGETEX` | values of keys or fields that are named more than once | 1,024 |
//! | `SINTER`, `ZUNION`, `BITOP`, `PFCOUNT`, any `XREAD` and the like | keys that are named more than once | 16 |
//! | the two rows above, except `MGET` | words, all of which weir compares in one go | 65,536 |
//! | `SCRIPT EXISTS`, `PUBSUB NUMSUB` and the like | words, whose answers weir joins in one go | 65,536 |
//! | `BLPOP`, `XREAD BLOCK` and the like | records of a client that waits: keys | 1,024 |
//! | `SORT` | values for each element: `GET` patterns | 64 |
//! | `KEYS`, `SCAN MATCH` and the like | comparisons of each byte of each name: bytes of the pattern | 1,024 |
//! | `PUBLISH`, `SPUBLISH` | comparisons with each pattern: bytes of the channel | 4,096 |

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, RandomState};

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use super::keys::integer;
use super::{Arguments, Command, Flags, Group, Handling, Keys, PrivateUse};
use crate::values::IdHasher;
use crate::values::limits::{
    AWAITED_KEYS_MAX, CHANNEL_BYTES_MAX, COMBINED_WORDS_MAX, PATTERN_BYTES_MAX, RANDOM_ELEMENTS_MAX,
    REPEATED_KEYS_MAX, REPEATED_VALUES_MAX, SORT_PATTERNS_MAX,
};

/// Reason to refuse a request that would multiply the work of a store too often. Its text is the error reply.
#[derive(Clone, Copy, Debug)]
pub struct Excess {
    command: &'static Command,
    of: Multiplied,
    /// The greatest number of the quantity (elements, repeated keys, words, bytes) that is allowed.
    most: usize,
}

/// Quantity that multiplies the work of a store.
#[derive(Clone, Copy, Debug)]
enum Multiplied {
    /// Number of elements that a command picks at random, where it may pick the same one several times.
    RandomElements,
    /// Number of keys or fields in a request that are equal to an earlier one of the same request.
    Repeated,
    /// Number of words of a request for several keys, fields, scripts or channels.
    Words,
    /// Number of keys at which the client waits for data.
    Awaited,
    /// Number of patterns of keys that `SORT` reads for each element.
    SortPatterns,
    /// Number of bytes of a pattern that the store compares with many names.
    PatternBytes,
    /// Number of bytes of a channel's name that the store compares with many patterns.
    ChannelBytes,
}

impl Command {
    /// Returns the reason to refuse a request that would make a store do its work too many times; `None` for
    /// nearly all requests. `counted` returns the number of keys that are equal to an earlier key of the
    /// request, or `None` if they have not been counted.
    #[inline]
    pub fn excess(
        &'static self,
        arguments: &Arguments<'_>,
        counted: impl FnOnce() -> Option<usize>,
    ) -> Option<Excess> {
        if self.flags.contains(Flags::MULTIPLIES) { self.find_excess(arguments, counted) } else { None }
    }

    #[inline(never)]
    fn find_excess(
        &'static self,
        arguments: &Arguments<'_>,
        counted: impl FnOnce() -> Option<usize>,
    ) -> Option<Excess> {
        use Multiplied::{
            Awaited, ChannelBytes, PatternBytes, RandomElements, Repeated, SortPatterns, Words,
        };
        let bytes = |index| arguments.get(index).map_or(0, <[u8]>::len);
        let waits = matches!(self.handling_for(arguments), Handling::Private(PrivateUse::Waits));
        let awaited = if waits { self.number_of_keys(arguments) } else { 0 };
        // A request that finds data does not wait, and `XREAD` then replies with the data of each stream named.
        let may_answer_all = self.keys == Keys::Streams;
        let (of, count, most) = match self.name {
            _ if awaited > AWAITED_KEYS_MAX || waits && !may_answer_all => {
                (Awaited, awaited, AWAITED_KEYS_MAX)
            }
            "srandmember" | "hrandfield" | "zrandmember" | "vrandmember" => {
                let picked =
                    arguments.get(2).and_then(integer).map_or(0, |count| count.min(0).unsigned_abs());
                (RandomElements, usize::try_from(picked).unwrap_or(usize::MAX), RANDOM_ELEMENTS_MAX)
            }
            "sort" | "sort_ro" => {
                let words = arguments.iter().skip(2);
                let patterns = words.filter(|word| word.eq_ignore_ascii_case(b"get")).count();
                (SortPatterns, patterns, SORT_PATTERNS_MAX)
            }
            "publish" | "spublish" => (ChannelBytes, bytes(1), CHANNEL_BYTES_MAX),
            "keys" => (PatternBytes, bytes(1), PATTERN_BYTES_MAX),
            "pubsub|channels" | "pubsub|shardchannels" => (PatternBytes, bytes(2), PATTERN_BYTES_MAX),
            "config|get" => (PatternBytes, (2..arguments.len()).map(bytes).sum(), PATTERN_BYTES_MAX),
            "scan" | "hscan" | "sscan" | "zscan" => {
                let pattern = self.walk(arguments).and_then(|walk| walk.pattern(arguments));
                (PatternBytes, pattern.map_or(0, <[u8]>::len), PATTERN_BYTES_MAX)
            }
            "mget" => {
                let count = || self.repeated_keys(arguments, REPEATED_VALUES_MAX);
                (Repeated, counted().unwrap_or_else(count), REPEATED_VALUES_MAX)
            }
            "script|exists" | "pubsub|numsub" | "pubsub|shardnumsub" => {
                (Words, arguments.len(), COMBINED_WORDS_MAX)
            }
            _ if arguments.len() > COMBINED_WORDS_MAX => (Words, arguments.len(), COMBINED_WORDS_MAX),
            "hmget" | "hgetex" => {
                let fields = (2..arguments.len()).map(|index| arguments.at(index));
                (Repeated, repeated(fields, REPEATED_VALUES_MAX), REPEATED_VALUES_MAX)
            }
            // A command that stores taught weir, such as `JSON.MGET`, may read values.
            _ if self.group == Group::Module => {
                (Repeated, self.repeated_keys(arguments, REPEATED_VALUES_MAX), REPEATED_VALUES_MAX)
            }
            _ => (Repeated, self.repeated_keys(arguments, REPEATED_KEYS_MAX), REPEATED_KEYS_MAX),
        };
        (count > most).then_some(Excess { command: self, of, most })
    }

    /// Returns how often a request names a key that it has named before, or 0 if that is surely at most
    /// `most`.
    fn repeated_keys(&self, arguments: &Arguments<'_>, most: usize) -> usize {
        if arguments.len() <= most {
            return 0;
        }
        let mut keys = Vec::with_capacity(arguments.len());
        // Errors in the keys are reported where the request is routed.
        let _ = self.for_each_key(arguments, &mut |index| keys.push(arguments.at(index)));
        repeated(keys.into_iter(), most)
    }
}

/// Returns the number of words that are equal to an earlier one, or 0 if that is surely at most `most`.
fn repeated<'a>(words: impl ExactSizeIterator<Item = &'a [u8]>, most: usize) -> usize {
    if words.len() <= most {
        return 0;
    }
    let mut repeats = Repeats::with_capacity(words.len());
    words.for_each(|word| repeats.note(word));
    repeats.count
}

/// Count of the words (keys or fields) of a request that are equal to an earlier one. A request that repeats
/// many of them makes a store do the same work again and again, and is refused.
#[derive(Debug)]
pub struct Repeats {
    /// Hashes of the words that have been counted so far.
    seen: HashSet<u64, BuildHasherDefault<IdHasher>>,
    /// Seed of the hashes, which no client can foresee.
    secrets: RapidSecrets,
    count: usize,
}

impl Repeats {
    /// Creates an empty count of repeated words, with room for a number of words.
    pub fn with_capacity(words: usize) -> Self {
        let seen = HashSet::with_capacity_and_hasher(words, BuildHasherDefault::default());
        let secrets = RapidSecrets::seed(RandomState::new().hash_one(words));
        Self { seen, secrets, count: 0 }
    }

    /// Counts the next word of the request: as a repeated one, if an equal word was passed in before.
    pub fn note(&mut self, word: &[u8]) {
        let is_new = self.seen.insert(rapidhash_v3_seeded(word, &self.secrets));
        self.count += usize::from(!is_new);
    }

    /// Returns the number of counted words that are equal to an earlier one.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Returns the bytes of memory that the count of repeated words takes.
    pub fn memory_bytes(&self) -> usize {
        // Besides each hash, the set has one byte for it.
        self.seen.capacity() * (size_of::<u64>() + 1)
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, most) = (self.command.spoken_name(), self.most);
        match self.of {
            Multiplied::RandomElements => write!(
                out,
                "ERR value is out of range: {name} picks at most {most} elements that may be the same ones"
            ),
            Multiplied::Repeated => write!(
                out,
                "ERR {name} may name at most {most} keys or fields again, because a store does its work for each again"
            ),
            Multiplied::Words => write!(out, "ERR {name} may have at most {most} words"),
            Multiplied::Awaited => write!(out, "ERR {name} may wait at {most} keys at most"),
            Multiplied::SortPatterns => write!(out, "ERR {name} may have at most {most} GET patterns"),
            Multiplied::PatternBytes => write!(out, "ERR patterns of {name} may have at most {most} bytes"),
            Multiplied::ChannelBytes => write!(out, "ERR a channel of {name} may have at most {most} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::super::recognise;
    use super::super::tests::with_request as with;

    fn is_excess(request: &str) -> bool {
        with(request, |arguments| {
            recognise(arguments).expect("a command").excess(arguments, || None).is_some()
        })
    }

    /// Returns words in which `again` of `count` repeat the first one.
    fn words(count: usize, again: usize) -> String {
        let mut words = String::new();
        for number in 0..count {
            let _ = write!(words, " k{}", number.saturating_sub(again));
        }
        words
    }

    #[test]
    fn each_kind_of_request_has_its_limit() {
        let long = |bytes| "a".repeat(bytes);
        let gets = |count| " GET #".repeat(count);
        for (most, request) in [
            (16_384, (&|count| format!("SRANDMEMBER s -{count}")) as &dyn Fn(usize) -> String),
            (16_384, &|count| format!("HRANDFIELD h -{count} WITHVALUES")),
            (16_384, &|count| format!("ZRANDMEMBER z -{count}")),
            (16_384, &|count| format!("VRANDMEMBER v -{count}")),
            (1_024, &|count| format!("MGET{}", words(2_000, count))),
            (1_024, &|count| format!("HMGET h{}", words(2_000, count))),
            (1_024, &|count| format!("HGETEX h PERSIST FIELDS 2000{}", words(2_000, count))),
            (16, &|count| format!("SINTER{}", words(50, count))),
            (16, &|count| format!("SINTERCARD 50{} LIMIT 1", words(50, count))),
            (16, &|count| format!("SUNIONSTORE to{}", words(50, count))),
            (16, &|count| format!("SDIFF{}", words(50, count))),
            (16, &|count| format!("ZINTER 50{} WITHSCORES", words(50, count))),
            (16, &|count| format!("ZUNIONSTORE to 50{}", words(50, count))),
            (16, &|count| format!("ZDIFF 50{}", words(50, count))),
            (16, &|count| format!("ZINTERCARD 50{}", words(50, count))),
            (16, &|count| format!("PFCOUNT{}", words(50, count))),
            (16, &|count| format!("PFMERGE to{}", words(50, count))),
            (16, &|count| format!("BITOP XOR to{}", words(50, count))),
            (16, &|count| format!("XREAD STREAMS{}{}", words(50, count), " 0".repeat(50))),
            (16, &|count| format!("XREADGROUP GROUP g c STREAMS{}{}", words(50, count), " 0".repeat(50))),
            (16, &|count| format!("XREAD BLOCK 0 STREAMS{}{}", words(50, count), " 0".repeat(50))),
            (16, &|count| {
                format!("XREADGROUP GROUP g c BLOCK 0 STREAMS{}{}", words(50, count), " 0".repeat(50))
            }),
            (65_536, &|count| format!("SUNION{}", words(count - 1, 0))),
            (65_536, &|count| format!("HMGET h{}", words(count - 2, 0))),
            (65_536, &|count| format!("SCRIPT EXISTS{}", words(count - 2, 0))),
            (65_536, &|count| format!("PUBSUB NUMSUB{}", words(count - 2, 0))),
            (65_536, &|count| format!("PUBSUB SHARDNUMSUB{}", words(count - 2, 0))),
            (1_024, &|count| format!("BLPOP{} 0", words(count, 0))),
            (1_024, &|count| format!("BZMPOP 0 {count}{} MIN", words(count, 0))),
            (1_024, &|count| format!("XREAD BLOCK 0 STREAMS{}{}", words(count, 0), " $".repeat(count))),
            (64, &|count| format!("SORT list{}", gets(count))),
            (64, &|count| format!("SORT_RO list BY nosort{}", gets(count))),
            (1_024, &|count| format!("KEYS {}", long(count))),
            (1_024, &|count| format!("SCAN 0 COUNT 5 MATCH {}", long(count))),
            (1_024, &|count| format!("HSCAN h 0 MATCH {}", long(count))),
            (1_024, &|count| format!("PUBSUB CHANNELS {}", long(count))),
            (1_024, &|count| format!("CONFIG GET {} maxmemory", long(count - "maxmemory".len()))),
            (4_096, &|count| format!("PUBLISH {} text", long(count))),
            (4_096, &|count| format!("SPUBLISH {} text", long(count))),
        ] {
            assert!(!is_excess(&request(most)), "{} is allowed", request(1));
            assert!(is_excess(&request(most + 1)), "{} is refused beyond its limit", request(1));
        }
    }

    #[test]
    fn requests_that_multiply_nothing_are_allowed() {
        let many = words(5_000, 4_999);
        for request in [
            format!("EXISTS{many}"),
            format!("DEL{many}"),
            format!("TOUCH{many}"),
            format!("MSET{many}"),
            format!("XREAD STREAMS{}{}", words(5_000, 0), " 0".repeat(5_000)),
            format!("MGET{}", words(70_000, 0)),
            format!("SUNION{}", words(5_000, 0)),
            format!("SMISMEMBER s{many}"),
            format!("ZMSCORE z{many}"),
            format!("HSET h{many} value"),
            format!("SCRIPT EXISTS{many}"),
            "SRANDMEMBER s 9223372036854775807".to_owned(),
            "SRANDMEMBER s -0".to_owned(),
            "SRANDMEMBER s x".to_owned(),
            "SRANDMEMBER s".to_owned(),
        ] {
            assert!(!is_excess(&request), "{}", &request[..request.len().min(30)]);
        }
        assert!(is_excess("SRANDMEMBER s -9223372036854775808"));
    }

    #[test]
    fn repeats_that_have_been_counted_are_not_counted_again() {
        for (counted, is_refused) in [(None, true), (Some(1_024), false), (Some(1_025), true)] {
            with(&format!("MGET{}", words(2_000, 1_500)), |arguments| {
                let excess = recognise(arguments).expect("a command").excess(arguments, || counted);
                assert_eq!(excess.is_some(), is_refused, "{counted:?}");
            });
        }
    }
}
