//! String commands on bits (SETBIT, GETBIT, BITCOUNT); the highest bit of a byte comes first.

use super::call::{Call, Command, Done, Effect, command};
use super::numbers;
use super::refusal::Refusal;
use super::strings::{edit, grow, make_room, slice};
use crate::values::limits::REQUEST_BYTES_CEILING;

pub(super) const COMMANDS: &[Command] = &[
    command("setbit", 4, Effect::Grow, setbit),
    command("getbit", 3, Effect::Read, getbit),
    command("bitcount", -2, Effect::Read, bitcount),
];

fn setbit(call: &mut Call<'_>) -> Done {
    let offset = bit_offset(call, 2)?;
    let bit = match call.at(3) {
        b"0" => 0_u8,
        b"1" => 1,
        _ => return Err(Refusal::Words("ERR bit is not an integer or out of range")),
    };
    let length = call.keyspace.read_string(call.at(1), |bytes| bytes.map(<[u8]>::len))?;
    make_room(call, length, offset / 8 + 1)?;
    let old = edit(call, |bytes| {
        grow(bytes, offset / 8 + 1);
        let shift = 7 - offset % 8;
        let byte = &mut bytes[offset / 8];
        let old = *byte >> shift & 1;
        *byte = *byte & !(1 << shift) | bit << shift;
        Ok(old)
    })?;
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

fn bitcount(call: &mut Call<'_>) -> Done {
    let range = bit_range(call);
    let effort = call.effort;
    let counted = call.keyspace.read_string(call.at(1), |bytes| {
        let Some(bytes) = bytes else { return Ok(0) };
        effort.spend_bytes(bytes.len())?;
        let Some((start, end, unit)) = range? else { return Ok(ones(bytes)) };
        Ok(match unit {
            BitUnit::Byte => ones(slice(bytes, start, end)),
            BitUnit::Bit => ones_between(bytes, start, end),
        })
    })??;
    call.integer(counted)
}

/// The unit of the bounds of BITCOUNT.
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
        // Redis does not look at the unit either in this case, even if it is misspelled.
        _ if start < 0 && end < 0 && start > end => BitUnit::Byte,
        5 if call.is(4, "bit") => BitUnit::Bit,
        5 if !call.is(4, "byte") => return Err(Refusal::Syntax),
        _ => BitUnit::Byte,
    };
    Ok(Some((start, end, unit)))
}

fn ones(bytes: &[u8]) -> i64 {
    bytes.iter().map(|byte| i64::from(byte.count_ones())).sum()
}

/// The number of one bits from bit `start` to bit `end` inclusive; the highest bit of a byte comes first.
fn ones_between(bytes: &[u8], start: i64, end: i64) -> i64 {
    let length = bytes.len() as i64 * 8;
    if start < 0 && end < 0 && start > end {
        return 0;
    }
    let absolute = |index: i64| if index < 0 { (length + index).max(0) } else { index };
    let (start, end) = (absolute(start), absolute(end).min(length - 1));
    if start > end {
        return 0;
    }
    let (first, last) = ((start / 8) as usize, (end / 8) as usize);
    let before = (u16::from(bytes[first]) >> (8 - start % 8)).count_ones();
    let after = (u16::from(bytes[last]) & ((1 << (7 - end % 8)) - 1)).count_ones();
    ones(&bytes[first..=last]) - i64::from(before) - i64::from(after)
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
            ("SETBIT b 4294967296 1", "-ERR bit offset is not an integer or out of range|"),
            ("OBJECT ENCODING b", "$3|raw|"),
        ]);
    }
}
