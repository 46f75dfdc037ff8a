//! Options of `SCAN`, `HSCAN`, `SSCAN` and `ZSCAN`, read as a store reads them: word by word from the cursor
//! on, and if an option is repeated, the last one counts.

use super::keys::integer;
use super::{Arguments, Class, Command, Flags, Keys};

/// Number of elements that a store examines for one `SCAN` request without `COUNT`.
pub const COUNT_DEFAULT: u64 = 10;

/// Options of one `SCAN`, `HSCAN`, `SSCAN` or `ZSCAN` request (a walk: it returns a part of the elements, and
/// a cursor to go on from).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Index of the argument at which the options of the request begin.
    from: usize,
    /// Index of the argument that is the value of the last `COUNT`, the one that counts; none without
    /// `COUNT`.
    count: Option<usize>,
    /// Index of the argument that is the value of the last `MATCH`, the one that counts; none without
    /// `MATCH`.
    pattern: Option<usize>,
    /// True if a word is no option of any store, so that a store will refuse the request.
    malformed: bool,
}

/// Option of a SCAN command, with the index of its value among the arguments.
enum Given {
    Count(usize),
    Match(usize),
    /// An option (`TYPE`, `NOVALUES`) that changes neither the number of elements that the command examines
    /// nor the pattern.
    Other,
    /// A word that is no option of any store.
    Nonsense,
}

/// Returns the cursor of a scan that a client has written as `word`, read as Redis 7.0 reads it: nothing stands for 0,
/// and a number may have a sign, below zero counted from 2^64. None if the word is no cursor.
pub fn scan_cursor(word: &[u8]) -> Option<u64> {
    let (is_negative, digits) = match word {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits.strip_prefix(b"+").unwrap_or(digits)),
    };
    // A second sign would be read as one otherwise.
    let digits =
        std::str::from_utf8(digits).ok().filter(|digits| digits.starts_with(|c: char| c.is_ascii_digit()))?;
    let number: u64 = digits.parse().ok()?;
    Some(if is_negative { number.wrapping_neg() } else { number })
}

impl Command {
    /// True for the commands that return elements step by step, with a cursor to go on from: `SCAN`, `HSCAN`,
    /// `SSCAN` and `ZSCAN`.
    fn is_walk(&self) -> bool {
        self.class == Class::Scan && self.name.ends_with("scan")
    }

    /// True if neither a request of this command nor its reply shows how much work it is: it runs a script,
    /// looks at all keys, or combines, searches or copies collections inside the store.
    #[inline]
    pub fn is_work_hidden(&self) -> bool {
        match self.class {
            Class::Script => true,
            Class::Scan => !self.is_walk(),
            _ => self.flags.contains(Flags::HIDDEN_WORK),
        }
    }

    /// Returns the options of a request `SCAN`, `HSCAN`, `SSCAN` or `ZSCAN`; `None` for all other commands.
    pub fn walk(&self, arguments: &Arguments<'_>) -> Option<Walk> {
        if !self.is_walk() {
            return None;
        }
        // The cursor is the first argument, or stands behind the key.
        let cursor = if self.keys == Keys::None { 1 } else { 2 };
        Some(Walk::read(arguments, cursor + 1))
    }
}

impl Walk {
    fn read(arguments: &Arguments<'_>, from: usize) -> Self {
        let mut walk = Self { from, count: None, pattern: None, malformed: false };
        for given in options(arguments, from) {
            match given {
                Given::Count(index) => walk.count = Some(index),
                Given::Match(index) => walk.pattern = Some(index),
                Given::Other => {}
                Given::Nonsense => walk.malformed = true,
            }
        }
        walk
    }

    /// Returns how many elements a store examines for this request (`COUNT`, or 10 without it); `None` if it
    /// will refuse the request.
    pub fn count(&self, arguments: &Arguments<'_>) -> Option<u64> {
        if self.malformed {
            return None;
        }
        let Some(index) = self.count else { return Some(COUNT_DEFAULT) };
        integer(arguments.at(index)).and_then(|count| u64::try_from(count).ok())
    }

    /// Returns the pattern (`MATCH`) that the elements in the reply must match; `None` if all are returned or
    /// the options are invalid.
    pub fn pattern<'a>(&self, arguments: &Arguments<'a>) -> Option<&'a [u8]> {
        self.pattern.filter(|_| !self.malformed).map(|index| arguments.at(index))
    }

    /// Returns the indices of those arguments that are values of `COUNT` options and are larger than `most`,
    /// in order.
    pub fn counts_above(&self, arguments: &Arguments<'_>, most: u32) -> impl Iterator<Item = usize> {
        options(arguments, self.from).filter_map(move |given| match given {
            Given::Count(index) if integer(arguments.at(index))? > i64::from(most) => Some(index),
            _ => None,
        })
    }
}

fn options(arguments: &Arguments<'_>, from: usize) -> impl Iterator<Item = Given> {
    let mut index = from;
    std::iter::from_fn(move || {
        let word = arguments.get(index)?;
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        let value = Some(index + 1).filter(|value| *value < arguments.len());
        let (given, words) = match value {
            _ if is(b"novalues") => (Given::Other, 1),
            Some(value) if is(b"count") => (Given::Count(value), 2),
            Some(value) if is(b"match") => (Given::Match(value), 2),
            Some(_) if is(b"type") => (Given::Other, 2),
            _ => (Given::Nonsense, arguments.len()),
        };
        index += words;
        Some(given)
    })
}

#[cfg(test)]
mod tests {
    use super::super::recognise;
    use super::super::tests::with_request as with;
    use super::*;

    #[test]
    fn a_cursor_is_read_as_a_store_reads_it() {
        let read = ["", "0", "+0", "-0", "007", "18446744073709551615", "-1"]
            .map(|word| scan_cursor(word.as_bytes()));
        assert_eq!(read, [0, 0, 0, 0, 7, u64::MAX, u64::MAX].map(Some));
        for word in ["x", "-", "+", "--1", "+-1", " 1", "1 ", "1x", "18446744073709551616", "\u{0}"] {
            assert_eq!(scan_cursor(word.as_bytes()), None, "{word:?}");
        }
    }

    fn walk_of<T>(request: &str, look: impl FnOnce(&Walk, &Arguments<'_>) -> T) -> T {
        with(request, |arguments| {
            let command = recognise(arguments).expect("a command");
            look(&command.walk(arguments).expect("a walk"), arguments)
        })
    }

    #[test]
    fn the_last_count_is_the_one_that_counts_and_no_value_is_taken_for_an_option() {
        for (request, count) in [
            ("SCAN 0", Some(10)),
            ("SCAN 0 COUNT 7", Some(7)),
            ("SCAN 0 count 7 MATCH count", Some(7)),
            ("HSCAN h 0 COUNT 1000000 MATCH count", Some(1_000_000)),
            ("HSCAN count 0 NOVALUES COUNT 3", Some(3)),
            ("HSCAN count 0", Some(10)),
            ("ZSCAN z 0 COUNT 9 COUNT 5 MATCH a", Some(5)),
            ("SCAN 0 TYPE count COUNT 6", Some(6)),
            ("SSCAN s 0 MATCH count", Some(10)),
            ("SCAN 0 COUNT", None),
            ("SCAN 0 COUNT x", None),
            ("SCAN 0 COUNT -1", None),
            ("SCAN 0 COUNT 99999999999999999999", None),
            ("SCAN 0 nonsense COUNT 5", None),
        ] {
            assert_eq!(walk_of(request, Walk::count), count, "{request}");
        }
        with("GET a", |arguments| assert_eq!(recognise(arguments).expect("a command").walk(arguments), None));
        with("KEYS *", |arguments| {
            assert_eq!(recognise(arguments).expect("a command").walk(arguments), None);
        });
    }

    #[test]
    fn a_pattern_is_the_one_that_the_store_will_use() {
        for (request, pattern) in [
            ("SCAN 0", None),
            ("SCAN 0 MATCH a MATCH b", Some("b")),
            ("SCAN 0 NOVALUES MATCH a", Some("a")),
            ("SCAN 0 TYPE match MATCH a TYPE match", Some("a")),
            ("SCAN 0 COUNT MATCH MATCH a", Some("a")),
            ("SCAN 0 MATCH MATCH a", None),
            ("SCAN 0 MATCH a MATCH", None),
            ("SCAN 0 x MATCH a", None),
        ] {
            let found = walk_of(request, |walk, arguments| walk.pattern(arguments).map(<[u8]>::to_vec));
            assert_eq!(found.as_deref(), pattern.map(str::as_bytes), "{request}");
        }
    }

    #[test]
    fn all_counts_that_are_too_much_are_found() {
        let found = walk_of(
            "SCAN 0 COUNT 5 MATCH 70 COUNT 70 COUNT 10 COUNT 9223372036854775807",
            |walk, arguments| walk.counts_above(arguments, 10).collect::<Vec<_>>(),
        );
        assert_eq!(found, [7, 11]);
    }
}
