//! String commands on bits (SETBIT, GETBIT, BITCOUNT, BITPOS, BITOP); the highest bit of a byte comes first.
//! Bit fields are in `bit_fields.rs`.

use super::call::{Call, Command, Done, Effect, command};
use super::events::Class;
use super::keyspace::Lifetime;
use super::numbers::{self, Digits};
use super::refusal::Refusal;
use super::strings::{edit, grow, make_room, slice};
use super::value::Value;
use crate::values::limits::REQUEST_BYTES_CEILING;

pub(super) const COMMANDS: &[Command] = &[
    command("setbit", 4, Effect::Grow, setbit),
    command("getbit", 3, Effect::Read, getbit),
    command("bitcount", -2, Effect::Read, bitcount),
    command("bitpos", -3, Effect::Read, bitpos),
    command("bitop", -4, Effect::Grow, bitop),
];

fn setbit(call: &mut Call<'_>) -> Done {
    let offset = bit_offset(call, 2)?;
    let bit = match call.at(3) {
        b"0" => 0_u8,
        b"1" => 1,
        _ => return Err(Refusal::Words("ERR bit is not an integer or out of range")),
    };
    let length = call.keyspace.read_string_uncounted(call.at(1), |bytes| bytes.map(<[u8]>::len))?;
    make_room(call, length, offset / 8 + 1)?;
    let old = edit(call, |bytes| {
        grow(bytes, offset / 8 + 1);
        let shift = 7 - offset % 8;
        let byte = &mut bytes[offset / 8];
        let old = *byte >> shift & 1;
        *byte = *byte & !(1 << shift) | bit << shift;
        Ok(old)
    })?;
    if old == bit && length.is_some_and(|length| length > offset / 8) {
        call.keyspace.interest.withdraw();
    } else {
        call.announce(Class::String, "setbit", call.at(1));
    }
    call.integer(i64::from(old))
}

fn getbit(call: &mut Call<'_>) -> Done {
    let offset = bit_offset(call, 2)?;
    let bit = call.keyspace.read_string(call.at(1), |bytes| {
        bytes.unwrap_or_default().get(offset / 8).map_or(0, |byte| byte >> (7 - offset % 8) & 1)
    })?;
    call.integer(i64::from(bit))
}

fn bit_offset(call: &Call<'_>, index: usize) -> Result<usize, Refusal> {
    numbers::integer(call.at(index))
        .and_then(|offset| usize::try_from(offset).ok())
        .filter(|offset| offset / 8 < REQUEST_BYTES_CEILING)
        .ok_or(Refusal::Words("ERR bit offset is not an integer or out of range"))
}

/// The cost of counting the bits of a byte, as a multiple of the cost of copying a byte.
const COUNT_COST: usize = 2;

fn bitcount(call: &mut Call<'_>) -> Done {
    let range = bit_range(call)?;
    let effort = call.effort;
    let counted = call.keyspace.read_string(call.at(1), |bytes| {
        let Some(bytes) = bytes else { return Ok(0) };
        let spend = |bytes: &[u8]| effort.spend_bytes(bytes.len().saturating_mul(COUNT_COST));
        let Some((start, end, unit)) = range else {
            spend(bytes)?;
            return Ok(ones(bytes));
        };
        match unit {
            BitUnit::Byte => {
                let counted = slice(bytes, start, end);
                spend(counted)?;
                Ok(ones(counted))
            }
            BitUnit::Bit => ones_between(bytes, start, end, spend),
        }
    })??;
    call.integer(counted)
}

/// The unit in which BITCOUNT's bounds count: bytes or bits.
#[derive(Clone, Copy)]
enum BitUnit {
    Byte,
    Bit,
}

fn bit_range(call: &Call<'_>) -> Result<Option<(i64, i64, BitUnit)>, Refusal> {
    if call.count() == 2 {
        return Ok(None);
    }
    if call.count() != 4 && call.count() != 5 {
        return Err(Refusal::Syntax);
    }
    let (start, end) = (call.integer_at(2)?, call.integer_at(3)?);
    let unit = match call.count() {
        5 if call.is(4, "bit") => BitUnit::Bit,
        5 if !call.is(4, "byte") => return Err(Refusal::Syntax),
        _ => BitUnit::Byte,
    };
    Ok(Some((start, end, unit)))
}

fn ones(bytes: &[u8]) -> i64 {
    let words = bytes.chunks_exact(8);
    let rest: u64 = words.remainder().iter().map(|byte| u64::from(byte.count_ones())).sum();
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("a chunk has its length"));
    (rest + words.map(|bytes| u64::from(word(bytes).count_ones())).sum::<u64>()) as i64
}

/// Returns the number of bits that are set from bit `start` to bit `end` inclusive. Negative positions count
/// from the end of the string; bit 0 is the highest bit of the first byte. `spend` is given the bytes that
/// are read, and may refuse the request for their number.
fn ones_between(bytes: &[u8], start: i64, end: i64, spend: impl Fn(&[u8]) -> Done) -> Result<i64, Refusal> {
    let length = bytes.len() as i64 * 8;
    if start < 0 && end < 0 && start > end {
        return Ok(0);
    }
    let absolute = |index: i64| if index < 0 { (length + index).max(0) } else { index };
    let (start, end) = (absolute(start), absolute(end).min(length - 1));
    if start > end {
        return Ok(0);
    }
    let (first, last) = ((start / 8) as usize, (end / 8) as usize);
    let before = (u16::from(bytes[first]) >> (8 - start % 8)).count_ones();
    let after = (u16::from(bytes[last]) & ((1 << (7 - end % 8)) - 1)).count_ones();
    spend(&bytes[first..=last])?;
    Ok(ones(&bytes[first..=last]) - i64::from(before) - i64::from(after))
}

fn bitpos(call: &mut Call<'_>) -> Done {
    let bit = match call.integer_at(2)? {
        0 => 0_u8,
        1 => 1,
        _ => return Err(Refusal::Words("ERR The bit argument must be 1 or 0.")),
    };
    // As in Redis 7.2, the range is checked even if there is no such key.
    searched_bits(call, 0)?;
    if call.keyspace.read(call.at(1)).is_none() {
        return call.integer(-i64::from(bit));
    }
    let length = call.keyspace.peek_string(call.at(1), |bytes| bytes.map_or(0, <[u8]>::len))?;
    let (first, end) = searched_bits(call, length as i64)?;
    call.effort.spend_bytes((end - first) as usize / 8)?;
    let found = call.keyspace.peek_string(call.at(1), |bytes| {
        find_bit(bytes.unwrap_or_default(), bit, first as usize, end as usize)
    })?;
    let found = match found {
        Some(found) => found as i64,
        // Without a named end, BITPOS treats the string as followed by zeros.
        None if bit == 0 && call.count() < 5 && first < end => end,
        None => -1,
    };
    call.integer(found)
}

/// Returns the range of bits that BITPOS searches, as the first bit and the bit after the last; both are 0 if
/// the range is empty. `length` is the length of the string in bytes. An error if an argument is wrong.
fn searched_bits(call: &Call<'_>, length: i64) -> Result<(i64, i64), Refusal> {
    if call.count() == 3 {
        return Ok((0, length * 8));
    }
    let start = call.integer_at(3)?;
    let unit = match call.count() {
        4 | 5 => 8,
        6 if call.is(5, "bit") => 1,
        6 if call.is(5, "byte") => 8,
        _ => return Err(Refusal::Syntax),
    };
    let units = length * 8 / unit;
    let end = if call.count() >= 5 { call.integer_at(4)? } else { -1 };
    let absolute = |index: i64| if index < 0 { index.saturating_add(units).max(0) } else { index };
    let (start, end) = (absolute(start), absolute(end).min(units - 1));
    if start > end { Ok((0, 0)) } else { Ok((start * unit, (end + 1) * unit)) }
}

/// Returns the position of the first bit that equals `bit` (0 or 1), from bit `first` up to, but not
/// including, bit `end`; `None` if there is none. Bit 0 is the highest bit of the first byte.
fn find_bit(bytes: &[u8], bit: u8, first: usize, end: usize) -> Option<usize> {
    let passed = if bit == 1 { 0 } else { u8::MAX };
    let is_found = |at: &usize| bytes[at / 8] >> (7 - at % 8) & 1 == bit;
    let aligned = first.next_multiple_of(8).min(end);
    if let Some(found) = (first..aligned).find(is_found) {
        return Some(found);
    }
    let whole = bytes.get(aligned / 8..end / 8).unwrap_or_default();
    (aligned + 8 * repeated(whole, passed)..end).find(is_found)
}

/// Returns the number of bytes at the beginning of `bytes` that equal `byte`, which it looks for eight at once.
fn repeated(bytes: &[u8], byte: u8) -> usize {
    let words = bytes.chunks_exact(8).take_while(|word| **word == [byte; 8]).count() * 8;
    words + bytes[words..].iter().take_while(|other| **other == byte).count()
}

/// The operation by which BITOP combines the bits of its source strings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    And,
    Or,
    Xor,
    Not,
    /// BITOP DIFF: bits that are set in the first string and in no other (Redis 8.2, like DIFF1, ANDOR and
    /// ONE).
    Diff,
    /// BITOP DIFF1: bits that are set in at least one of the other strings, and not in the first.
    DiffOne,
    /// BITOP ANDOR: bits that are set in the first string and in at least one other.
    AndOr,
    /// BITOP ONE: bits that are set in exactly one of the strings.
    One,
}

/// The cost of each byte of a new string, for which the kernel has to provide memory, as a multiple of the
/// cost of reading a byte.
const MADE_COST: usize = 3;

fn bitop(call: &mut Call<'_>) -> Done {
    let operations = [
        ("and", Operation::And),
        ("or", Operation::Or),
        ("xor", Operation::Xor),
        ("not", Operation::Not),
        ("diff", Operation::Diff),
        ("diff1", Operation::DiffOne),
        ("andor", Operation::AndOr),
        ("one", Operation::One),
    ];
    let operation =
        operations.into_iter().find_map(|(word, operation)| call.is(1, word).then_some(operation));
    let operation = operation.ok_or(Refusal::Syntax)?;
    if operation == Operation::Not && call.count() != 4 {
        return Err(Refusal::Words("ERR BITOP NOT must be called with a single source key."));
    }
    let compares = matches!(operation, Operation::Diff | Operation::DiffOne | Operation::AndOr);
    if compares && call.count() < 5 {
        let name = String::from_utf8_lossy(call.at(1)).to_ascii_uppercase();
        return Err(Refusal::Quoting(format!(
            "ERR BITOP {name} must be called with at least two source keys."
        )));
    }
    let result = combined(call, operation)?;
    let (target, length) = (call.at(2), result.len());
    if length == 0 {
        call.remove_key(target);
    } else {
        call.keyspace.set(target, Value::Buffer(Box::new(result)), Lifetime::Forever);
        call.announce(Class::String, "set", target);
    }
    call.number(length)
}

/// Combines the strings at the source keys of BITOP byte by byte, and returns the result, as long as the
/// longest string. Shorter strings count as followed by zeros. An error if a value is no string, if the work
/// would exceed the effort limit, or the strings the memory that is left.
fn combined(call: &mut Call<'_>, operation: Operation) -> Result<Vec<u8>, Refusal> {
    let longest = longest(call, operation)?;
    let mut result = vec![0; longest];
    // The bits that are set in more than one string, for ONE.
    let mut several = vec![0; if operation == Operation::One { longest } else { 0 }];
    let mut digits = Digits::new(0);
    for (place, key) in call.rest(3).enumerate() {
        let bytes = source(call, key, &mut digits);
        let (covered, beyond) = result.split_at_mut(bytes.len());
        let pairs = covered.iter_mut().zip(bytes);
        match operation {
            Operation::Not => pairs.for_each(|(to, from)| *to = !from),
            Operation::One => pairs.zip(&mut several).for_each(|((to, from), several)| {
                *several |= *to & from;
                *to |= from;
            }),
            // The first string comes last.
            Operation::DiffOne | Operation::AndOr if place == 0 => {}
            _ if place == 0 => covered.copy_from_slice(bytes),
            Operation::And => {
                pairs.for_each(|(to, from)| *to &= from);
                beyond.fill(0);
            }
            Operation::Or | Operation::DiffOne | Operation::AndOr => pairs.for_each(|(to, from)| *to |= from),
            Operation::Xor => pairs.for_each(|(to, from)| *to ^= from),
            Operation::Diff => pairs.for_each(|(to, from)| *to &= !from),
        }
    }
    let first = source(call, call.at(3), &mut digits);
    let (covered, beyond) = result.split_at_mut(first.len());
    let pairs = covered.iter_mut().zip(first);
    match operation {
        Operation::DiffOne => pairs.for_each(|(to, from)| *to &= !from),
        Operation::AndOr => {
            pairs.for_each(|(to, from)| *to &= from);
            beyond.fill(0);
        }
        Operation::One => result.iter_mut().zip(&several).for_each(|(to, several)| *to &= !several),
        _ => {}
    }
    Ok(result)
}

/// Returns the bytes of the string at `key`, a source of BITOP; an integer is written into `digits` first. Empty if there
/// is no such key.
fn source<'a>(call: &'a Call<'_>, key: &[u8], digits: &'a mut Digits) -> &'a [u8] {
    let entry = call.keyspace.peek(key);
    entry.and_then(|entry| entry.value.bytes(digits)).unwrap_or_default()
}

/// Returns the length in bytes of the longest string at the source keys of BITOP, and counts a hit or a miss
/// for each. An error if a value is no string, if memory has no room for the strings of that length that the
/// operation makes, or if the work would exceed the effort limit.
fn longest(call: &mut Call<'_>, operation: Operation) -> Result<usize, Refusal> {
    let mut longest = 0;
    let mut sum = 0_usize;
    for key in call.rest(3) {
        let length = call.keyspace.read_string(key, |bytes| bytes.map_or(0, <[u8]>::len))?;
        longest = longest.max(length);
        sum = sum.saturating_add(length);
    }
    // Each source is read for each string that is made, and those strings are written, read and freed.
    let made = if operation == Operation::One { 2 } else { 1 };
    call.afford(longest.saturating_mul(made))?;
    call.effort.spend_bytes(made * sum.saturating_add(longest.saturating_mul(MADE_COST)))?;
    Ok(longest)
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn bits_count_from_the_left() {
        Bench::new().talk(&[
            ("SETBIT b 7 1", ":0|"),
            ("SETBIT b 9 1", ":0|"),
            ("SETBIT b 9 1", ":1|"),
            ("STRLEN b", ":2|"),
            ("GETBIT b 9", ":1|"),
            ("GETBIT b 1000", ":0|"),
            ("BITCOUNT b", ":2|"),
            ("BITCOUNT b 0 6 BIT", ":0|"),
            ("BITCOUNT b 7 -7 BIT", ":2|"),
            ("BITCOUNT b 1 1", ":1|"),
            ("BITCOUNT b 0 1 FOO", "-ERR syntax error|"),
            ("BITCOUNT b -1 -2 FOO", "-ERR syntax error|"),
            ("BITCOUNT b -1 -2", ":0|"),
            ("BITCOUNT nothing 0", "-ERR syntax error|"),
            ("BITCOUNT nothing 0 x", "-ERR value is not an integer or out of range|"),
            ("BITCOUNT nothing 0 1 FOO", "-ERR syntax error|"),
            ("BITCOUNT nothing 0 1", ":0|"),
            ("SETBIT b 4294967296 1", "-ERR bit offset is not an integer or out of range|"),
            ("OBJECT ENCODING b", "$3|raw|"),
        ]);
    }

    #[test]
    fn bits_are_found_and_combined() {
        let mut bench = Bench::new();
        bench.talk(&[
            ("SET b foobar", "+OK|"),
            ("BITPOS b 1", ":1|"),
            ("BITPOS b 0 2", ":16|"),
            ("BITPOS b 1 7 15 BIT", ":9|"),
            ("BITPOS b 1 -1 -2", ":-1|"),
            ("BITPOS b 2", "-ERR The bit argument must be 1 or 0.|"),
            ("BITPOS nothing 0 x", "-ERR value is not an integer or out of range|"),
            ("BITPOS nothing 0 0 1 FOO", "-ERR syntax error|"),
            ("BITPOS nothing 0 0 1 BIT x", "-ERR syntax error|"),
            ("BITPOS nothing 0 0", ":0|"),
            ("BITPOS nothing 1", ":-1|"),
            ("SET a foof", "+OK|"),
            ("BITOP XOR d a a nothing", ":4|"),
            ("BITCOUNT d", ":0|"),
            ("BITOP AND d a b", ":6|"),
            ("BITCOUNT d 4 5", ":0|"),
            ("BITOP OR d a b", ":6|"),
            ("GETRANGE d 4 5", "$2|ar|"),
            ("BITOP NOT d a b", "-ERR BITOP NOT must be called with a single source key.|"),
            ("BITOP DIFF d a", "-ERR BITOP DIFF must be called with at least two source keys.|"),
            ("MSET p 3 q 5 r 9", "+OK|"),
            ("BITOP DIFF d p q r", ":1|"),
            ("BITCOUNT d", ":1|"),
            ("BITOP DIFF1 d p q r", ":1|"),
            ("GETBIT d 4", ":1|"),
            ("BITCOUNT d", ":2|"),
            ("BITOP ANDOR d p q r", ":1|"),
            ("GET d", "$1|1|"),
            ("BITOP ONE d p q r", ":1|"),
            ("BITCOUNT d", ":3|"),
            ("SETBIT long 80 1", ":0|"),
            ("BITOP DIFF1 d p long", ":11|"),
            ("BITCOUNT d", ":1|"),
            ("BITOP ANDOR d p long p", ":11|"),
            ("BITCOUNT d 1 -1", ":0|"),
            ("BITOP DIFF d long p", ":11|"),
            ("BITCOUNT d", ":1|"),
            ("BITOP ONE d long p long", ":11|"),
            ("GET d", "$11|3\0\0\0\0\0\0\0\0\0\0|"),
            ("BITOP AND d nothing", ":0|"),
            ("EXISTS d", ":0|"),
        ]);
        bench.send_bytes(&[b"SET", b"ones", b"\xff\xff"]);
        bench.talk(&[("BITPOS ones 0", ":16|"), ("BITPOS ones 0 0", ":16|"), ("BITPOS ones 0 0 -1", ":-1|")]);
    }

    #[test]
    fn bits_are_found_wherever_they_are() {
        let mut bench = Bench::new();
        for (bit, byte) in [(1_u8, 0_u8), (0, u8::MAX)] {
            for place in 0..200 {
                let mut bytes = [byte; 25];
                bytes[place / 8] ^= 0x80 >> (place % 8);
                bench.send_bytes(&[b"SET", b"b", &bytes]);
                for (first, end) in
                    [(0, 199), (place, place), (3, 197), (place + 1, 199), (0, place.saturating_sub(1))]
                {
                    let found = if (first..=end).contains(&place) { place as i64 } else { -1 };
                    let line = format!("BITPOS b {bit} {first} {end} BIT");
                    assert_eq!(bench.send(&line), format!(":{found}|"), "{line} {place}");
                }
                let count = if bit == 1 { 1 } else { 199 };
                assert_eq!(bench.send("BITCOUNT b"), format!(":{count}|"));
            }
        }
    }

    #[test]
    fn a_search_is_one_hit() {
        let mut bench = Bench::new();
        bench.talk(&[("SET b a", "+OK|"), ("BITPOS b 1", ":1|")]);
        assert_eq!(bench.engine.statistics().hits, 1);
    }
}
