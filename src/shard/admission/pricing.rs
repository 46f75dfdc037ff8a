//! The parts of a request's price that follow from its command and its arguments alone.

use super::effort::looks_at;
use crate::policy::price::Asked;
use crate::protocol::Arguments;
use crate::protocol::command::{Class, Command, Effect, Flags, Keys};
use crate::values::limits::COMMAND_CLASSES;
use crate::values::{MicroUnits, UNIT};

const _: () = assert!(Class::COUNT == COMMAND_CLASSES);

/// The least price of requests whose work neither the request nor the reply shows (5 request units): scripts,
/// and commands that combine, search or copy collections inside the store.
const HIDDEN_WORK_FLOOR: MicroUnits = 5 * UNIT;
/// The least price of a command that looks at all keys (100 request units).
const ALL_KEYS_FLOOR: MicroUnits = 100 * UNIT;

/// Returns the parts of a request's cost that are known before it is carried out. A command that weir does not
/// know (None) gets the least price of hidden work, as it may do anything.
#[inline]
pub fn asked(command: Option<&Command>, arguments: &Arguments<'_>) -> Asked {
    let bytes_in = arguments.frame().len() as u64;
    let one = Asked { requests: 1, bytes_in, keys: 0, looks_at: 0, floor: 0, hidden: 0 };
    let Some(command) = command else { return Asked { floor: HIDDEN_WORK_FLOOR, ..one } };
    if matches!(command.class, Class::Point | Class::Control)
        && !command.flags.intersects(Flags::UNSHOWN_WORK)
    {
        return one;
    }
    asked_of_more(command, arguments, one)
}

/// Slow path of [`asked`]: for commands whose cost depends on their arguments, or whose work neither request
/// nor reply shows. `one` has the parts of the cost that every request has; the others are added to it.
#[inline(never)]
fn asked_of_more(command: &Command, arguments: &Arguments<'_>, one: Asked) -> Asked {
    let floor = match command.class {
        _ if !command.is_work_hidden() => 0,
        Class::Scan => ALL_KEYS_FLOOR,
        _ => HIDDEN_WORK_FLOOR,
    };
    // A key that is read counts like a row, whether or not the reply shows it.
    let (written, read) = match (keys_of(command, arguments), command.effect) {
        (keys, Effect::Read) => (0, keys),
        (keys, Effect::Write | Effect::None) => (keys, 0),
    };
    Asked { keys: written, looks_at: looks_at(command, arguments).saturating_add(read), floor, ..one }
}

/// Returns the number of keys of a request that names several; 0 for a single key or none, which the base
/// price covers.
fn keys_of(command: &Command, arguments: &Arguments<'_>) -> u64 {
    let count = if let Keys::Range { first, last: -1, step } = command.keys {
        arguments.len().saturating_sub(usize::from(first)).div_ceil(usize::from(step).max(1)) as u64
    } else {
        command.number_of_keys(arguments) as u64
    };
    if count > 1 { count } else { 0 }
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
        asked(recognise(&arguments).ok(), &arguments)
    }

    #[test]
    fn keys_count_where_there_are_several() {
        for (request, keys) in [
            ("GET a", 0),
            ("MGET a", 0),
            ("MGET a b c", 0),
            ("MSET a 1 b 2", 2),
            ("DEL a b", 2),
            ("SET a b", 0),
            ("SINTER a b c", 0),
            ("ZUNIONSTORE d 2 a b", 3),
            ("EVAL code 2 a b", 2),
            ("LRANGE a 0 -1", 0),
            ("XREADGROUP GROUP g c STREAMS a b > >", 2),
        ] {
            assert_eq!(asked_of(request).keys, keys, "{request}");
        }
    }

    #[test]
    fn work_that_does_not_show_has_a_floor() {
        for (request, floor) in [
            ("GET a", 0),
            ("ZRANGE a 0 -1", 0),
            ("LRANGE a 0 -1", 0),
            ("SMEMBERS a", 0),
            ("HSET a b c", 0),
            ("SUNIONSTORE a b c", 5),
            ("SUNION a b", 5),
            ("SINTERCARD 2 a b LIMIT 1", 5),
            ("ZINTERCARD 2 a b", 5),
            ("ZDIFF 2 a b", 5),
            ("LCS a b LEN", 5),
            ("SORT_RO a LIMIT 0 0", 5),
            ("SORT a", 5),
            ("BITCOUNT a", 5),
            ("BITPOS a 1", 5),
            ("BITOP AND a b", 5),
            ("COPY a b", 5),
            ("PFCOUNT a", 5),
            ("GEOSEARCH a FROMLONLAT 0 0 BYRADIUS 1 km COUNT 1", 5),
            ("LPOS a x", 5),
            ("LINSERT a BEFORE b c", 5),
            ("LREM a 0 b", 5),
            ("XPENDING a b IDLE 9 - + 1", 5),
            ("MEMORY USAGE a SAMPLES 0", 5),
            ("EVAL return 0", 5),
            ("PUBSUB CHANNELS x", 5),
            ("NOSUCH a", 5),
            ("KEYS *", 100),
            ("FLUSHALL", 100),
            ("SCAN 0", 0),
        ] {
            assert_eq!(asked_of(request).floor, floor * UNIT, "{request}");
        }
    }

    #[test]
    fn how_far_it_goes_is_read_as_the_store_reads_it() {
        for (request, steps) in [
            ("SCAN 0", 10),
            ("HSCAN a 0 MATCH x COUNT 100000", 100_000),
            ("HSCAN h 0 COUNT 1000000 MATCH count", 1_000_000),
            ("SCAN 0 COUNT 99999999999999999999", 0),
            ("SETRANGE a 5 x", 0),
            ("SETRANGE a 536870911 x", 524_287 - 64),
            ("SETBIT a 4294967295 1", 524_287 - 64),
            ("SETBIT a 1000 1", 0),
            ("BITFIELD a GET u8 99999999999 OVERFLOW SAT INCRBY u8 4294967280 1", 524_287 - 64),
            ("BITFIELD a SET i32 #16777216 1", 65_536 - 64),
            ("WATCH a", 0),
            ("WATCH a b c d e f g h i j", 45 / 16),
            ("LINDEX a -1", 0),
            ("LINDEX a 640000", 10_000),
            ("LSET a -640000 x", 10_000),
            ("LRANGE a 640000 640001", 10_000),
            ("LRANGE a -9223372036854775808 -1", 1 << 57),
            ("ZRANGEBYSCORE a -inf +inf WITHSCORES LIMIT 5000 1", 5_000),
            ("ZRANGE a 0 -1 BYSCORE LIMIT 70 1", 70),
            ("ZRANGE a 100000 100001", 0),
            ("GET a", 0),
            ("MGET a", 0),
            ("MGET a b c", 3),
            ("EXISTS a b c", 3),
            ("MSET a 1 b 2", 0),
        ] {
            assert_eq!(asked_of(request).looks_at, steps, "{request}");
        }
    }
}
