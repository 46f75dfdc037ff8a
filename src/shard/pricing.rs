//! Stage 3: what a request is asked to cost, from its command and its arguments alone.

use crate::policy::price::Asked;
use crate::protocol::Arguments;
use crate::protocol::command::{Class, Command, Effect, Keys};
use crate::values::limits::COMMAND_CLASSES;
use crate::values::{MicroUnits, UNIT, Weights};

const _: () = assert!(Class::COUNT == COMMAND_CLASSES);

/// Work whose size neither the request nor the reply shows: code of the client's, and collections that are combined
/// inside the store.
const HIDDEN_WORK_FLOOR: MicroUnits = 5 * UNIT;
/// A walk over all keys.
const ALL_KEYS_FLOOR: MicroUnits = 100 * UNIT;
/// What `SCAN` and its kin look at when they are not told.
const SCAN_COUNT_DEFAULT: u64 = 10;

/// What is known of a request's cost now. Commands that weir does not know may do anything.
#[inline]
pub fn asked(command: Option<&Command>, arguments: &Arguments<'_>, weights: &Weights) -> Asked {
    let bytes_in = arguments.frame().len() as u64;
    let one = Asked { requests: 1, bytes_in, keys: 0, floor: 0 };
    let Some(command) = command else { return Asked { floor: HIDDEN_WORK_FLOOR, ..one } };
    match command.class {
        Class::Multi => Asked { keys: keys_of(command, arguments), ..one },
        Class::Range if command.effect == Effect::Write => Asked { floor: HIDDEN_WORK_FLOOR, ..one },
        Class::Point | Class::Range | Class::Control => one,
        Class::Script => Asked { floor: HIDDEN_WORK_FLOOR, ..one },
        Class::Scan => match scan_count(command, arguments) {
            Some(count) => Asked { floor: weights.base + count.saturating_mul(weights.row), ..one },
            None => Asked { floor: ALL_KEYS_FLOOR, ..one },
        },
    }
}

/// The class by which the cost of such requests is learnt.
pub(super) fn class_of(command: Option<&Command>) -> Class {
    command.map_or(Class::Script, |command| command.class)
}

/// Keys of a request that names several; one alone is part of the base.
fn keys_of(command: &Command, arguments: &Arguments<'_>) -> u64 {
    let count = if let Keys::Range { first, last: -1, step } = command.keys {
        arguments.len().saturating_sub(usize::from(first)).div_ceil(usize::from(step).max(1)) as u64
    } else {
        let mut count = 0;
        // What is wrong with the keys is said where the request is routed.
        let _ = command.for_each_key(arguments, &mut |_| count += 1);
        count
    };
    if count > 1 { count } else { 0 }
}

/// What a walk with a cursor looks at in one step. None for a walk to the end.
fn scan_count(command: &Command, arguments: &Arguments<'_>) -> Option<u64> {
    if !command.name.ends_with("scan") {
        return None;
    }
    let words = || 0..arguments.len();
    let option = words().rfind(|index| arguments.at(*index).eq_ignore_ascii_case(b"count"));
    let count = option
        .and_then(|index| arguments.get(index + 1))
        .and_then(|count| std::str::from_utf8(count).ok()?.parse::<u64>().ok());
    // More than any collection holds is as good as all of it.
    Some(count.unwrap_or(SCAN_COUNT_DEFAULT).min(u64::from(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Argument;
    use crate::protocol::command::recognise;

    fn asked_of(request: &str) -> Asked {
        let mut frame = Vec::new();
        let places: Vec<Argument> = request
            .split(' ')
            .map(|word| {
                let start = frame.len() as u32;
                frame.extend_from_slice(word.as_bytes());
                Argument { start, length: word.len() as u32 }
            })
            .collect();
        let arguments = Arguments::new(&frame, &places);
        asked(recognise(&arguments).ok(), &arguments, &Weights::default())
    }

    #[test]
    fn keys_count_where_there_are_several() {
        for (request, keys) in [
            ("GET a", 0),
            ("MGET a", 0),
            ("MGET a b c", 3),
            ("MSET a 1 b 2", 2),
            ("DEL a b", 2),
            ("SET a b", 0),
        ] {
            assert_eq!(asked_of(request).keys, keys, "{request}");
        }
    }

    #[test]
    fn work_that_does_not_show_has_a_floor() {
        for (request, floor) in [
            ("GET a", 0),
            ("ZRANGE a 0 -1", 0),
            ("SUNIONSTORE a b c", 5 * UNIT),
            ("EVAL return 0", 5 * UNIT),
            ("NOSUCH a", 5 * UNIT),
            ("KEYS *", 100 * UNIT),
            ("SCAN 0", UNIT + UNIT / 5),
            ("HSCAN a 0 MATCH x COUNT 100000", 2_001 * UNIT),
            ("SCAN 0 COUNT 99999999999999999999", UNIT + UNIT / 5),
        ] {
            assert_eq!(asked_of(request).floor, floor, "{request}");
        }
    }
}
