//! Commands on strings as bytes or numbers: GET, SET and so on. Bits are in `bits.rs`.

use super::call::{Call, Command, Done, Effect, command};
use super::events::Class;
use super::keyspace::{Lifetime, Place};
use super::long_double;
use super::numbers::{self, Digits};
use super::refusal::Refusal;
use super::text::Text;
use super::value::Value;
use crate::values::limits::REQUEST_BYTES_CEILING;

/// The size in bytes below which a string that grows by APPEND gets as much spare capacity again; a larger
/// string gets an eighth more.
const DOUBLING_BYTES_MAX: usize = 64 * 1024;
/// The approximate bytes that a new key with a string takes besides its name and value.
const KEY_BYTES: usize = 160;

pub(super) const COMMANDS: &[Command] = &[
    command("get", 2, Effect::Read, get),
    command("set", -3, Effect::Grow, set),
    command("setnx", 3, Effect::Grow, setnx),
    command("setex", 4, Effect::Grow, setex),
    command("psetex", 4, Effect::Grow, psetex),
    command("getset", 3, Effect::Grow, getset),
    command("getdel", 2, Effect::Write, getdel),
    command("getex", -2, Effect::Write, getex),
    command("mget", -2, Effect::Read, mget),
    command("mset", -3, Effect::Grow, mset),
    command("msetnx", -3, Effect::Grow, msetnx),
    command("append", 3, Effect::Grow, append),
    command("strlen", 2, Effect::Read, strlen),
    command("getrange", 4, Effect::Read, getrange),
    command("substr", 4, Effect::Read, getrange),
    command("setrange", 4, Effect::Grow, setrange),
    command("incr", 2, Effect::Grow, incr),
    command("decr", 2, Effect::Grow, decr),
    command("incrby", 3, Effect::Grow, incrby),
    command("decrby", 3, Effect::Grow, decrby),
    command("incrbyfloat", 3, Effect::Grow, incrbyfloat),
];

fn get(call: &mut Call<'_>) -> Done {
    match call.keyspace.read(call.arguments.at(1)) {
        Some(Value::Text(text)) => call.out.bulk(text.as_bytes()),
        Some(value) => {
            call.out.bulk(value.bytes(&mut Digits::new(0)).ok_or(Refusal::WrongType)?);
        }
        None => return call.null(),
    }
    // A reply that does not fit is refused here, before the caller changes the value.
    call.out.check()
}

/// The condition under which SET writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Always,
    IfAbsent,
    IfPresent,
}

/// The options of SET: its condition, the expiry, and whether the old value is the reply.
struct SetOptions {
    condition: Condition,
    lifetime: Lifetime,
    /// True if the reply is the old value (GET).
    returns_old: bool,
}

fn set(call: &mut Call<'_>) -> Done {
    if call.count() == 3 {
        store(call, call.at(1), call.at(2), Lifetime::Forever);
        return call.ok();
    }
    let options = set_options(call)?;
    let key = call.at(1);
    if options.returns_old {
        get(call)?;
    }
    let present = call.keyspace.find(key).is_some();
    let goes = match options.condition {
        Condition::Always => true,
        Condition::IfAbsent => !present,
        Condition::IfPresent => present,
    };
    if goes {
        store(call, key, call.at(2), options.lifetime);
    }
    match (options.returns_old, goes) {
        (true, _) => Ok(()),
        (false, true) => call.ok(),
        (false, false) => call.null(),
    }
}

/// Stores a string under `key`, and queues its keyspace events: `set` and, if `lifetime` is a time, `expire`.
fn store(call: &mut Call<'_>, key: &[u8], text: &[u8], lifetime: Lifetime) {
    call.keyspace.set(key, Value::string(text), lifetime);
    call.announce(Class::String, "set", key);
    if matches!(lifetime, Lifetime::UntilMs(_)) {
        call.announce(Class::Generic, "expire", key);
    }
}

fn set_options(call: &Call<'_>) -> Result<SetOptions, Refusal> {
    let mut options =
        SetOptions { condition: Condition::Always, lifetime: Lifetime::Forever, returns_old: false };
    let mut moment = None;
    let mut index = 3;
    while index < call.count() {
        if call.is(index, "nx") && options.condition != Condition::IfPresent {
            options.condition = Condition::IfAbsent;
        } else if call.is(index, "xx") && options.condition != Condition::IfAbsent {
            options.condition = Condition::IfPresent;
        } else if call.is(index, "get") {
            options.returns_old = true;
        } else if call.is(index, "keepttl") && moment.is_none() {
            options.lifetime = Lifetime::Keep;
        } else if let Some(unit) = Unit::named(call.at(index))
            && index + 1 < call.count()
            && moment.is_none_or(|(other, _)| other == unit)
            && options.lifetime == Lifetime::Forever
        {
            moment = Some((unit, index + 1));
            index += 1;
        } else {
            return Err(Refusal::Syntax);
        }
        index += 1;
    }
    if let Some((unit, index)) = moment {
        options.lifetime = Lifetime::UntilMs(expiry(call, unit, index, "set")?);
    }
    Ok(options)
}

/// The unit in which a command gives an expiry, and whether it counts from now or from 1970.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Seconds,
    Milliseconds,
    UnixSeconds,
    UnixMilliseconds,
}

impl Unit {
    fn named(word: &[u8]) -> Option<Self> {
        [
            ("ex", Self::Seconds),
            ("px", Self::Milliseconds),
            ("exat", Self::UnixSeconds),
            ("pxat", Self::UnixMilliseconds),
        ]
        .into_iter()
        .find_map(|(name, unit)| word.eq_ignore_ascii_case(name.as_bytes()).then_some(unit))
    }
}

/// Returns the expiry in argument `index`, in milliseconds since 1970. An error, which names the command
/// `name`, if it is not positive or too large.
fn expiry(call: &Call<'_>, unit: Unit, index: usize, name: &'static str) -> Result<u64, Refusal> {
    let given = call.integer_at(index)?;
    let invalid = Refusal::InvalidExpire(name);
    if given <= 0 {
        return Err(invalid);
    }
    let scale = if matches!(unit, Unit::Seconds | Unit::UnixSeconds) { 1000 } else { 1 };
    let base = if matches!(unit, Unit::Seconds | Unit::Milliseconds) { call.keyspace.now_ms() } else { 0 };
    given.checked_mul(scale).and_then(|ms| ms.checked_add_unsigned(base)).map(|ms| ms as u64).ok_or(invalid)
}

fn setnx(call: &mut Call<'_>) -> Done {
    let key = call.at(1);
    if call.keyspace.find(key).is_some() {
        return call.integer(0);
    }
    call.keyspace.add(key, Value::string(call.at(2)));
    call.announce(Class::String, "set", key);
    call.integer(1)
}

fn setex(call: &mut Call<'_>) -> Done {
    set_for(call, Unit::Seconds, "setex")
}

fn psetex(call: &mut Call<'_>) -> Done {
    set_for(call, Unit::Milliseconds, "psetex")
}

fn set_for(call: &mut Call<'_>, unit: Unit, name: &'static str) -> Done {
    let expires_ms = expiry(call, unit, 2, name)?;
    store(call, call.at(1), call.at(3), Lifetime::UntilMs(expires_ms));
    call.ok()
}

fn getset(call: &mut Call<'_>) -> Done {
    get(call)?;
    store(call, call.at(1), call.at(2), Lifetime::Forever);
    Ok(())
}

fn getdel(call: &mut Call<'_>) -> Done {
    get(call)?;
    call.remove_key(call.at(1));
    Ok(())
}

fn getex(call: &mut Call<'_>) -> Done {
    let mut moment = None;
    let mut persists = false;
    let mut index = 2;
    while index < call.count() {
        if call.is(index, "persist") && moment.is_none() {
            persists = true;
        } else if let Some(unit) = Unit::named(call.at(index))
            && index + 1 < call.count()
            && moment.is_none_or(|(other, _)| other == unit)
            && !persists
        {
            moment = Some((unit, index + 1));
            index += 1;
        } else {
            return Err(Refusal::Syntax);
        }
        index += 1;
    }
    get(call)?;
    let Some(place) = call.keyspace.find(call.at(1)) else { return Ok(()) };
    if persists {
        if call.keyspace.entry(place).expires_ms != super::keyspace::NEVER_MS {
            call.keyspace.set_expiry(place, super::keyspace::NEVER_MS);
            call.announce(Class::Generic, "persist", call.at(1));
        }
    } else if let Some((unit, index)) = moment {
        let expires_ms = expiry(call, unit, index, "getex")?;
        if expires_ms <= call.keyspace.now_ms() {
            call.keyspace.remove_at(place);
            call.announce(Class::Generic, "del", call.at(1));
        } else {
            call.keyspace.set_expiry(place, expires_ms);
            call.announce(Class::Generic, "expire", call.at(1));
        }
    }
    Ok(())
}

fn mget(call: &mut Call<'_>) -> Done {
    call.out.array(call.count() - 1);
    let protocol = call.protocol();
    for key in call.rest(1) {
        let mut digits = Digits::new(0);
        match call.keyspace.read(key).and_then(|value| value.bytes(&mut digits)) {
            Some(bytes) => call.out.bulk(bytes),
            None => call.out.null(protocol),
        }
    }
    Ok(())
}

fn mset(call: &mut Call<'_>) -> Done {
    set_pairs(call, "mset")?;
    call.ok()
}

fn msetnx(call: &mut Call<'_>) -> Done {
    if call.count().is_multiple_of(2) {
        return Err(Refusal::WrongArity("msetnx"));
    }
    for index in (1..call.count()).step_by(2) {
        if call.keyspace.find(call.at(index)).is_some() {
            return call.integer(0);
        }
    }
    set_pairs(call, "msetnx")?;
    call.integer(1)
}

fn set_pairs(call: &mut Call<'_>, name: &'static str) -> Result<(), Refusal> {
    if call.count().is_multiple_of(2) {
        return Err(Refusal::WrongArity(name));
    }
    for index in (1..call.count()).step_by(2) {
        store(call, call.at(index), call.at(index + 1), Lifetime::Forever);
    }
    Ok(())
}

fn append(call: &mut Call<'_>) -> Done {
    let (key, suffix) = (call.at(1), call.at(2));
    if call.keyspace.find(key).is_none() {
        call.keyspace.add(key, Value::string(suffix));
        call.announce(Class::String, "append", key);
        return call.number(suffix.len());
    }
    let left = call.memory_left();
    let length = edit(call, |bytes| {
        let end = bytes.len() + suffix.len();
        if end > REQUEST_BYTES_CEILING {
            return Err(Refusal::TooLong);
        }
        reserve(bytes, end, left)?;
        bytes.extend_from_slice(suffix);
        Ok(bytes.len())
    })?;
    call.announce(Class::String, "append", key);
    call.number(length)
}

/// Reserves capacity for `end` bytes in all in a string that grows, and spare capacity for later appends if
/// `memory_left` bytes allow that. An error if not even `end` bytes fit.
fn reserve(bytes: &mut Vec<u8>, end: usize, memory_left: u64) -> Result<(), Refusal> {
    if end <= bytes.capacity() {
        return Ok(());
    }
    let growth = end - bytes.capacity();
    let spare = if end < DOUBLING_BYTES_MAX { end } else { end / 8 };
    let fits = |growth: usize| growth as u64 <= memory_left;
    if !fits(growth) {
        return Err(Refusal::OutOfMemory);
    }
    let spare = if fits(growth.saturating_add(spare)) { spare } else { 0 };
    bytes.reserve_exact(end - bytes.len() + spare);
    Ok(())
}

/// Changes the string at the key in argument 1 in place by `change`; the key must exist. Returns the result
/// of `change`, which may be an error. An error also if the value is no string.
pub(super) fn edit<R>(
    call: &mut Call<'_>,
    change: impl FnOnce(&mut Vec<u8>) -> Result<R, Refusal>,
) -> Result<R, Refusal> {
    let place = call.keyspace.find(call.at(1)).expect("the caller made sure that the key exists");
    let (copied, held) = match &call.keyspace.entry(place).value {
        Value::Text(text) => (text.as_bytes().len(), 0),
        value => (0, value.cost()),
    };
    call.effort.charge_bytes(copied);
    let changed = change_string(call, place, change);
    // A buffer that grew may have been copied.
    let grown = call.keyspace.entry(place).value.cost() > held;
    call.effort.charge_bytes(if grown { held } else { 0 });
    changed
}

fn change_string<R>(
    call: &mut Call<'_>,
    place: Place,
    change: impl FnOnce(&mut Vec<u8>) -> Result<R, Refusal>,
) -> Result<R, Refusal> {
    call.keyspace.change_at(place, |value| {
        if !matches!(value, Value::Buffer(_)) {
            let bytes = value.bytes(&mut Digits::new(0)).ok_or(Refusal::WrongType)?.to_vec();
            *value = Value::Buffer(Box::new(bytes));
        }
        let Value::Buffer(bytes) = value else { return Err(Refusal::WrongType) };
        change(bytes)
    })
}

fn strlen(call: &mut Call<'_>) -> Done {
    let length = call.keyspace.read_string(call.at(1), |bytes| bytes.map_or(0, <[u8]>::len))?;
    call.number(length)
}

fn getrange(call: &mut Call<'_>) -> Done {
    let (start, end) = (call.integer_at(2)?, call.integer_at(3)?);
    let out = &mut call.out;
    call.keyspace.read_string(call.arguments.at(1), |bytes| {
        let bytes = bytes.unwrap_or_default();
        out.bulk(slice(bytes, start, end));
    })
}

/// Returns the bytes from `start` to `end` inclusive, as `GETRANGE` counts them: negative numbers count from
/// the end, those before the first byte mean the first byte, and an end after the last byte means the last.
/// Empty if `start` is after `end`.
pub(super) fn slice(bytes: &[u8], start: i64, end: i64) -> &[u8] {
    let length = bytes.len() as i64;
    if start < 0 && end < 0 && start > end {
        return &[];
    }
    let absolute = |index: i64| if index < 0 { (length + index).max(0) } else { index };
    let (start, end) = (absolute(start), absolute(end).min(length - 1));
    if start > end { &[] } else { &bytes[start as usize..=end as usize] }
}

fn setrange(call: &mut Call<'_>) -> Done {
    let offset = call.integer_at(2)?;
    let patch = call.at(3);
    if offset < 0 {
        return Err(Refusal::Words("ERR offset is out of range"));
    }
    let length = call.keyspace.read_string_uncounted(call.at(1), |bytes| bytes.map(<[u8]>::len))?;
    if patch.is_empty() {
        return call.number(length.unwrap_or(0));
    }
    let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(patch.len()));
    let end = end.filter(|end| *end <= REQUEST_BYTES_CEILING).ok_or(Refusal::TooLong)?;
    make_room(call, length, end)?;
    let length = edit(call, |bytes| {
        grow(bytes, end);
        bytes[end - patch.len()..end].copy_from_slice(patch);
        Ok(bytes.len())
    })?;
    call.announce(Class::String, "setrange", call.at(1));
    call.number(length)
}

/// Makes sure that the key in argument 1 exists and that a string of `end` bytes fits in memory, since a
/// small request may ask for a large string; refuses the request otherwise. `length` is the present length of
/// the string at the key; `None` if there is no such key, which is then created with an empty string.
pub(super) fn make_room(call: &mut Call<'_>, length: Option<usize>, end: usize) -> Result<(), Refusal> {
    let held = match call.keyspace.peek(call.at(1)).map(|entry| &entry.value) {
        Some(Value::Buffer(buffer)) => buffer.capacity(),
        _ => length.unwrap_or(0),
    };
    let growth = end.saturating_sub(held);
    call.effort.spend_bytes(growth)?;
    // A new key also needs room for its entry and its value's header.
    call.afford(if growth == 0 { 0 } else { growth + KEY_BYTES })?;
    if length.is_none() {
        call.keyspace.add(call.at(1), Value::Text(Text::new(b"")));
    }
    Ok(())
}

/// Extends a string with zeros to `end` bytes, if it is shorter, without spare capacity, since the next write
/// may be far away.
pub(super) fn grow(bytes: &mut Vec<u8>, end: usize) {
    if end > bytes.len() {
        bytes.reserve_exact(end - bytes.len());
        bytes.resize(end, 0);
    }
}

fn incr(call: &mut Call<'_>) -> Done {
    add(call, 1)
}

fn decr(call: &mut Call<'_>) -> Done {
    add(call, -1)
}

fn incrby(call: &mut Call<'_>) -> Done {
    let by = call.integer_at(2)?;
    add(call, by)
}

fn decrby(call: &mut Call<'_>) -> Done {
    let by = call.integer_at(2)?;
    let by = by.checked_neg().ok_or(Refusal::Words("ERR decrement would overflow"))?;
    add(call, by)
}

fn add(call: &mut Call<'_>, by: i64) -> Done {
    let key = call.at(1);
    let Some(place) = call.keyspace.find(key) else {
        call.keyspace.add(key, Value::Integer(by));
        call.announce(Class::String, "incrby", key);
        return call.integer(by);
    };
    let sum = call.keyspace.change_at(place, |value| {
        let old = match &*value {
            Value::Integer(integer) => *integer,
            other => {
                let mut digits = Digits::new(0);
                let bytes = other.bytes(&mut digits).ok_or(Refusal::WrongType)?;
                numbers::integer(bytes).ok_or(Refusal::NotAnInteger)?
            }
        };
        let sum = old.checked_add(by).ok_or(Refusal::Overflow)?;
        *value = Value::Integer(sum);
        Ok(sum)
    })?;
    call.announce(Class::String, "incrby", key);
    call.integer(sum)
}

fn incrbyfloat(call: &mut Call<'_>) -> Done {
    let (key, by) = (call.at(1), call.at(2));
    call.effort.spend(1, long_double::effort(by))?;
    let effort = call.effort;
    let sum = call.keyspace.read_string_uncounted(key, |old| {
        let old = old.unwrap_or(b"0");
        effort.spend(1, long_double::effort(old))?;
        long_double::add(old, by)
    })??;
    call.out.expect(sum.len())?;
    call.keyspace.set(key, Value::Text(Text::new(sum.as_bytes())), Lifetime::Keep);
    call.announce(Class::String, "incrbyfloat", key);
    call.bulk(sum.as_bytes())
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn conditions_decide_about_a_write() {
        Bench::new().talk(&[
            ("SET k 1 XX", "$-1|"),
            ("SET k 1 NX GET", "$-1|"),
            ("SET k 2 NX GET", "$1|1|"),
            ("SET k 2 XX GET EX 10", "$1|1|"),
            ("TTL k", ":10|"),
            ("SET k 3 KEEPTTL EX 10", "-ERR syntax error|"),
            ("SET k 3 EX 0", "-ERR invalid expire time in 'set' command|"),
            ("MSETNX a 1 k 2", ":0|"),
            ("MGET a k", "*2|$-1|$1|2|"),
            ("GETDEL k", "$1|2|"),
            ("EXISTS k", ":0|"),
        ]);
    }

    #[test]
    fn a_value_is_bytes_and_numbers() {
        Bench::new().talk(&[
            ("SET n 9223372036854775807", "+OK|"),
            ("INCR n", "-ERR increment or decrement would overflow|"),
            ("APPEND n 0", ":20|"),
            ("INCR n", "-ERR value is not an integer or out of range|"),
            ("SETRANGE s 3 abc", ":6|"),
            ("GETRANGE s -3 -1", "$3|abc|"),
            ("INCRBYFLOAT f 10.5", "$4|10.5|"),
            ("INCRBYFLOAT f 0.1", "$4|10.6|"),
        ]);
    }

    #[test]
    fn a_long_number_takes_effort_whether_old_or_added() {
        let mut bench = Bench::new();
        bench.talk(&[("SET f 1e4000", "+OK|"), ("SET g 1", "+OK|")]);
        for line in ["INCRBYFLOAT f 1", "INCRBYFLOAT g 1e4000"] {
            bench.send(line);
            assert!(bench.engine.effort() >= 4_000, "{line}");
        }
    }
}
