//! The effort of requests: steps of work in the store that grow with a number among their arguments, while
//! neither their size nor the reply's shows it.
//!
//! | request | effort grows with |
//! |---|---|
//! | `SCAN` and the like | the elements looked at, whether or not they match |
//! | `LINDEX`, `LSET`, `LRANGE` | the distance to an element inside the list |
//! | `ZRANGE` and the like with `LIMIT` | the elements passed over |
//! | `SETBIT`, `SETRANGE`, `BITFIELD` | the zeros written before the place |
//! | `WATCH` | the square of the number of keys, each of which Redis compares with those before it |
//!
//! The effort may turn out smaller, because the collection may end before. So it is billed only as far as the
//! store took time for it (`policy/price.rs`).

use crate::protocol::Arguments;
use crate::protocol::command::{Command, Flags};

/// The number of list elements that count as one step of effort: the store steps over so many at once (one
/// node of the list).
const PLACES_PER_STEP: u64 = 64;
/// The number of bytes of zeros, written before the offset that a request names, that count as one step of
/// effort.
const ZEROS_PER_STEP: u64 = 1_024;
/// The number of pairs of watched keys that count as one step of effort, as Redis compares one pair in 12 ns.
const PAIRS_PER_STEP: u64 = 16;
/// The number of bytes of zeros (64 KiB) that one request (SETRANGE, SETBIT, BITFIELD) may write before the
/// offset that it names without effort, as a store writes them in next to no time; only bytes beyond them
/// count.
const ZEROS_FREE: u64 = 64 * 1_024;

/// Returns the most steps of work (such as elements looked at) that a request may cause in the store without its size
/// or its reply showing it; 0 for most. A store does a few steps per microsecond.
pub fn looks_at(command: &Command, arguments: &Arguments<'_>) -> u64 {
    if !command.flags.contains(Flags::FAR_WORK) {
        return command.walk(arguments).and_then(|walk| walk.count(arguments)).unwrap_or(0);
    }
    match command.name {
        "setbit" => zeros(number(arguments, 2) / 8),
        "setrange" => zeros(number(arguments, 2)),
        "bitfield" => zeros(last_bit(arguments) / 8),
        "watch" => pairs(arguments.len() as u64 - 1) / PAIRS_PER_STEP,
        "lindex" | "lset" | "lrange" => number(arguments, 2) / PLACES_PER_STEP,
        _ => passed_over(arguments),
    }
}

/// Returns the absolute value of the number in argument `index`, which commands use as a position counted from
/// the beginning or, if negative, from the end; 0 if the argument is no number.
fn number(arguments: &Arguments<'_>, index: usize) -> u64 {
    let text = arguments.get(index).and_then(|word| std::str::from_utf8(word).ok());
    text.and_then(|text| text.parse::<i64>().ok()).map_or(0, i64::unsigned_abs)
}

const fn pairs(of: u64) -> u64 {
    of * of.saturating_sub(1) / 2
}

const fn zeros(until: u64) -> u64 {
    until.saturating_sub(ZEROS_FREE) / ZEROS_PER_STEP
}

/// Returns the index of the first bit of the furthest field that `BITFIELD key [GET type offset] [SET type offset
/// value] [INCRBY type offset increment] [OVERFLOW how] ...` writes; 0 if it writes none. An offset of `#n` counts in
/// widths of the type.
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

/// Returns the number of elements that the store passes over before the first of the reply: the offset of `...
/// LIMIT offset count` after the two ends of a range; 0 without `LIMIT`.
fn passed_over(arguments: &Arguments<'_>) -> u64 {
    let limit = (4..arguments.len()).find(|index| arguments.at(*index).eq_ignore_ascii_case(b"limit"));
    limit.map_or(0, |index| number(arguments, index + 1))
}
