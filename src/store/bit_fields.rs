//! BITFIELD and `BITFIELD_RO`: integers of 1 to 64 bits at any bit offset of a string, highest bit first.

use super::call::{Call, Command, Done, Effect, command};
use super::events::Class;
use super::numbers;
use super::refusal::Refusal;
use super::strings::{edit, grow, make_room};
use crate::values::limits::REQUEST_BYTES_CEILING;

pub(super) const COMMANDS: &[Command] =
    &[command("bitfield", -2, Effect::Grow, bitfield), command("bitfield_ro", -2, Effect::Read, bitfield_ro)];

/// The type of an integer (`u8`, `i16` ...): its width in bits, and whether the integer has a sign.
#[derive(Clone, Copy)]
struct Kind {
    bits: usize,
    signed: bool,
}

/// The handling of a value that does not fit in its integer type (option OVERFLOW of BITFIELD).
#[derive(Clone, Copy)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

enum Action {
    Get,
    Set(i64, Overflow),
    Increase(i64, Overflow),
}

/// One operation of a BITFIELD request on an integer in the string.
struct Operation {
    kind: Kind,
    /// The position of the integer's highest bit, counted in bits from the start of the string.
    offset: usize,
    action: Action,
}

impl Kind {
    fn parse(text: &[u8]) -> Option<Self> {
        let (signed, bits) = match text {
            [b'i', bits @ ..] => (true, bits),
            [b'u', bits @ ..] => (false, bits),
            _ => return None,
        };
        let bits = usize::try_from(numbers::integer(bits)?).ok()?;
        let most = if signed { 64 } else { 63 };
        (1..=most).contains(&bits).then_some(Self { bits, signed })
    }

    fn bounds(self) -> (i128, i128) {
        if self.signed {
            let half = 1_i128 << (self.bits - 1);
            (-half, half - 1)
        } else {
            (0, (1_i128 << self.bits) - 1)
        }
    }

    /// Returns the integer that BITFIELD stores for `value`: `value` itself if it fits the integer type, else
    /// the one that `overflow` gives. `None` if nothing is to be stored (OVERFLOW FAIL).
    fn fit(self, value: i128, overflow: Overflow) -> Option<i64> {
        let (least, most) = self.bounds();
        if (least..=most).contains(&value) {
            return Some(value as i64);
        }
        match overflow {
            Overflow::Fail => None,
            Overflow::Saturate => Some(value.clamp(least, most) as i64),
            Overflow::Wrap => Some(self.extended(value as u64)),
        }
    }

    /// Returns the lowest bits of `word`, as many as the integer type is wide, as an integer of the type.
    fn extended(self, word: u64) -> i64 {
        let spare = 64 - self.bits as u32;
        if self.signed { (word << spare) as i64 >> spare } else { (word << spare >> spare) as i64 }
    }

    fn read(self, bytes: &[u8], offset: usize) -> i64 {
        let word = (offset..offset + self.bits).fold(0_u64, |word, bit| {
            let byte = bytes.get(bit / 8).copied().unwrap_or(0);
            word << 1 | u64::from(byte >> (7 - bit % 8) & 1)
        });
        self.extended(word)
    }

    fn write(self, bytes: &mut [u8], offset: usize, value: i64) {
        for (place, bit) in (offset..offset + self.bits).enumerate() {
            let one = (value >> (self.bits - 1 - place) & 1) as u8;
            let shift = 7 - bit % 8;
            let byte = &mut bytes[bit / 8];
            *byte = *byte & !(1 << shift) | one << shift;
        }
    }
}

fn bitfield(call: &mut Call<'_>) -> Done {
    let operations = operations(call)?;
    let written = operations.iter().filter(|operation| !matches!(operation.action, Action::Get));
    match written.map(|operation| operation.offset + operation.kind.bits).max() {
        None => read_all(call, &operations),
        Some(end) => carry_out(call, &operations, end.div_ceil(8)),
    }
}

fn bitfield_ro(call: &mut Call<'_>) -> Done {
    let operations = operations(call)?;
    if operations.iter().any(|operation| !matches!(operation.action, Action::Get)) {
        return Err(Refusal::Words("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    read_all(call, &operations)
}

fn read_all(call: &mut Call<'_>, operations: &[Operation]) -> Done {
    let out = &mut call.out;
    call.keyspace.read_string(call.arguments.at(1), |bytes| {
        out.array(operations.len());
        for operation in operations {
            out.integer(operation.kind.read(bytes.unwrap_or_default(), operation.offset));
        }
    })
}

/// Maximum number of bytes of an integer in a reply.
const INTEGER_BYTES_MAX: usize = b":-9223372036854775808\r\n".len();

/// Carries out a BITFIELD with at least one write: first extends the string with zeros to at least `end`
/// bytes. Refuses the request, before any change, if the value is no string, or if the reply, the memory or
/// the effort does not suffice.
fn carry_out(call: &mut Call<'_>, operations: &[Operation], end: usize) -> Done {
    call.out.expect(operations.len() * INTEGER_BYTES_MAX)?;
    let length = call.keyspace.read_string_uncounted(call.at(1), |bytes| bytes.map(<[u8]>::len))?;
    make_room(call, length, end)?;
    let mut changed = length.is_none_or(|length| length < end);
    let replies = edit(call, |bytes| {
        grow(bytes, end);
        let mut run = |operation: &Operation| {
            let value = |bytes: &[u8]| operation.kind.read(bytes, operation.offset);
            let before = value(bytes);
            let reply = operation.run(bytes);
            changed |= value(bytes) != before;
            reply
        };
        Ok(operations.iter().map(&mut run).collect::<Vec<_>>())
    })?;
    if changed {
        call.announce(Class::String, "setbit", call.at(1));
    } else {
        call.keyspace.interest.withdraw();
    }
    call.out.array(replies.len());
    for reply in replies {
        match reply {
            Some(value) => call.out.integer(value),
            None => call.out.null(call.session.protocol),
        }
    }
    Ok(())
}

impl Operation {
    /// Carries out one operation of BITFIELD on the string, and returns the integer for the reply. `None` if
    /// the value overflows and OVERFLOW FAIL applies; the string does not change then.
    fn run(&self, bytes: &mut [u8]) -> Option<i64> {
        let old = self.kind.read(bytes, self.offset);
        match self.action {
            Action::Get => Some(old),
            Action::Set(value, overflow) => {
                // A negative value for an unsigned integer counts as its 64 bits without a sign, as in Redis.
                let value = if self.kind.signed { i128::from(value) } else { i128::from(value as u64) };
                let new = self.kind.fit(value, overflow)?;
                self.kind.write(bytes, self.offset, new);
                Some(old)
            }
            Action::Increase(by, overflow) => {
                let new = self.kind.fit(i128::from(old) + i128::from(by), overflow)?;
                self.kind.write(bytes, self.offset, new);
                Some(new)
            }
        }
    }
}

fn operations(call: &Call<'_>) -> Result<Vec<Operation>, Refusal> {
    let mut operations = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut index = 2;
    while index < call.count() {
        let left = call.count() - index - 1;
        let [get, set, increase] = ["get", "set", "incrby"].map(|word| call.is(index, word));
        if call.is(index, "overflow") && left >= 1 {
            overflow = overflow_at(call, index + 1)?;
            index += 2;
            continue;
        }
        if !(get && left >= 2 || (set || increase) && left >= 3) {
            return Err(Refusal::Syntax);
        }
        let kind = Kind::parse(call.at(index + 1)).ok_or(Refusal::Words(
            "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
        ))?;
        let offset = offset(call.at(index + 2), kind)
            .ok_or(Refusal::Words("ERR bit offset is not an integer or out of range"))?;
        let action = if get {
            Action::Get
        } else {
            let value = call.integer_at(index + 3)?;
            if set { Action::Set(value, overflow) } else { Action::Increase(value, overflow) }
        };
        operations.push(Operation { kind, offset, action });
        index += if get { 3 } else { 4 };
    }
    Ok(operations)
}

fn overflow_at(call: &Call<'_>, index: usize) -> Result<Overflow, Refusal> {
    [("wrap", Overflow::Wrap), ("sat", Overflow::Saturate), ("fail", Overflow::Fail)]
        .into_iter()
        .find_map(|(word, overflow)| call.is(index, word).then_some(overflow))
        .ok_or(Refusal::Words("ERR Invalid OVERFLOW type specified"))
}

/// Parses the offset of an integer in BITFIELD, in bits; `#n` means n times the width of `kind`. `None` if
/// the text is no valid offset.
fn offset(text: &[u8], kind: Kind) -> Option<usize> {
    let (text, scale) = match text {
        [b'#', wholes @ ..] => (wholes, kind.bits),
        text => (text, 1),
    };
    let offset = usize::try_from(numbers::integer(text)?).ok()?.checked_mul(scale)?;
    (offset / 8 < REQUEST_BYTES_CEILING).then_some(offset)
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;
    use crate::store::limits::EngineLimits;

    #[test]
    fn integers_are_read_and_written_at_any_bit() {
        Bench::new().talk(&[
            ("BITFIELD b SET u8 0 200 GET u8 0 INCRBY i5 100 1 GET u4 0", "*4|:0|:200|:1|:12|"),
            ("BITFIELD b OVERFLOW SAT INCRBY u2 102 3 OVERFLOW FAIL INCRBY u2 102 3", "*2|:3|$-1|"),
            ("BITFIELD b INCRBY u2 102 3", "*1|:2|"),
            ("BITFIELD c SET i64 #1 -1 GET i64 #1 GET u63 #1", "*3|:0|:-1|:4611686018427387903|"),
            ("STRLEN c", ":16|"),
            ("BITFIELD c OVERFLOW SAT INCRBY i64 64 -9223372036854775808", "*1|:-9223372036854775808|"),
            ("BITFIELD c OVERFLOW SAT SET u8 0 -1 GET u8 0", "*2|:0|:255|"),
            ("BITFIELD_RO b GET u8 0", "*1|:200|"),
            ("BITFIELD_RO b SET u8 0 1", "-ERR BITFIELD_RO only supports the GET subcommand|"),
            ("BITFIELD_RO nothing GET u8 100", "*1|:0|"),
            ("BITFIELD b", "*0|"),
            (
                "BITFIELD b GET u64 0",
                "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.|",
            ),
            ("BITFIELD b GET u8 -1", "-ERR bit offset is not an integer or out of range|"),
            ("BITFIELD b GET u8", "-ERR syntax error|"),
        ]);
    }

    #[test]
    fn a_reply_that_does_not_fit_changes_nothing() {
        let limits = EngineLimits { reply_bytes_max: 200, ..EngineLimits::with_memory(u64::MAX) };
        let line = format!("BITFIELD b{}", " SET u8 0 1".repeat(100));
        Bench::with(limits).talk(&[
            (&line, "-ERR the reply would be larger than 200 bytes|"),
            ("EXISTS b", ":0|"),
            ("BITFIELD b SET u8 0 1", "*1|:0|"),
        ]);
    }
}
