//! How far a request goes for what it names: the further, the more its store does, and neither request nor reply shows it.
//!
//! | request | grows with |
//! |---|---|
//! | `SCAN` and its kin | what it looks at, matching or not |
//! | `LINDEX`, `LSET`, `LRANGE` | the way to a place in the middle of a list |
//! | `ZRANGE` and its kin with `LIMIT` | what is passed over |
//! | `SETBIT`, `SETRANGE`, `BITFIELD` | the zeros up to there |
//!
//! All of it may be less, because the collection may end before: so it is billed only as far as the store took time for it
//! (`policy/price.rs`).

use crate::protocol::Arguments;
use crate::protocol::command::{Command, Flags};

/// A list is stepped through by nodes of so many elements.
const PLACES_PER_STEP: u64 = 64;
/// Zeros are written this many at a time; the first of them are as good as none.
const ZEROS_PER_STEP: u64 = 1_024;
const ZEROS_FREE: u64 = 64 * 1_024;

/// What a request may look at without showing it, in steps of which a store does some in a microsecond.
pub fn looks_at(command: &Command, arguments: &Arguments<'_>) -> u64 {
    if !command.flags.contains(Flags::FAR_WORK) {
        return command.walk(arguments).and_then(|walk| walk.count(arguments)).unwrap_or(0);
    }
    match command.name {
        "setbit" => zeros(number(arguments, 2) / 8),
        "setrange" => zeros(number(arguments, 2)),
        "bitfield" => zeros(last_bit(arguments) / 8),
        "lindex" | "lset" | "lrange" => number(arguments, 2) / PLACES_PER_STEP,
        _ => passed_over(arguments),
    }
}

/// The distance that a number among the arguments means, from whichever end.
fn number(arguments: &Arguments<'_>, index: usize) -> u64 {
    let text = arguments.get(index).and_then(|word| std::str::from_utf8(word).ok());
    text.and_then(|text| text.parse::<i64>().ok()).map_or(0, i64::unsigned_abs)
}

const fn zeros(until: u64) -> u64 {
    until.saturating_sub(ZEROS_FREE) / ZEROS_PER_STEP
}

/// `BITFIELD key [GET type offset] [SET type offset value] [INCRBY type offset increment] [OVERFLOW how] ...`: the furthest bit
/// that is written. An offset of `#n` counts in wholes of the type.
fn last_bit(arguments: &Arguments<'_>) -> u64 {
    let (mut furthest, mut index) = (0, 2);
    while let Some(word) = arguments.get(index) {
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        index += if is(b"get") {
            3
        } else if is(b"overflow") {
            2
        } else {
            furthest = furthest.max(bit_of(arguments, index + 1));
            4
        };
    }
    furthest
}

fn bit_of(arguments: &Arguments<'_>, index: usize) -> u64 {
    let text = |index| arguments.get(index).and_then(|word: &[u8]| std::str::from_utf8(word).ok());
    match text(index + 1).and_then(|offset| offset.strip_prefix('#')) {
        None => number(arguments, index + 1),
        Some(wholes) => {
            let width = text(index).and_then(|kind| kind.get(1..)?.parse::<u64>().ok()).unwrap_or(64);
            wholes.parse::<u64>().map_or(0, |wholes| wholes.saturating_mul(width))
        }
    }
}

/// `... LIMIT offset count`, behind the two ends of a range.
fn passed_over(arguments: &Arguments<'_>) -> u64 {
    let limit = (4..arguments.len()).find(|index| arguments.at(*index).eq_ignore_ascii_case(b"limit"));
    limit.map_or(0, |index| number(arguments, index + 1))
}
