//! Commands on `HyperLogLog`: PFADD, PFCOUNT and PFMERGE, and the diagnostic commands PFDEBUG and PFSELFTEST.
//! The format is in `counters.rs`.

use super::call::{Call, Command, Done, Effect, command};
use super::counters::{self, Registers};
use super::effort::LOOK;
use super::events::Class;
use super::keyspace::Lifetime;
use super::numbers::Digits;
use super::refusal::{Refusal, quoted};
use super::value::Value;

pub(super) const COMMANDS: &[Command] = &[
    command("pfadd", -2, Effect::Grow, pfadd),
    command("pfcount", -2, Effect::Read, pfcount),
    command("pfmerge", -2, Effect::Grow, pfmerge),
    command("pfdebug", 3, Effect::Grow, pfdebug),
    command("pfselftest", 1, Effect::Read, pfselftest),
];

/// The units of effort (steps of work) to read, write or merge all registers of a `HyperLogLog`.
const REGISTERS_EFFORT: u64 = 256;

fn pfadd(call: &mut Call<'_>) -> Done {
    let (key, elements) = (call.at(1), call.rest(2));
    if let Some(place) = call.keyspace.find(key) {
        // A dense counter, the usual case, is changed in place.
        let changed = call.keyspace.change_at(place, |value| {
            let Value::Buffer(bytes) = value else { return Ok(None) };
            counters::cached(bytes)?;
            let mut changed = Some(false);
            for element in call.arguments.iter().skip(2) {
                changed = counters::add_dense(bytes, element).map(|grew| changed == Some(true) || grew);
            }
            Ok::<_, Refusal>(changed)
        })?;
        if changed == Some(true) {
            call.announce(Class::String, "pfadd", key);
        } else {
            call.keyspace.interest.withdraw();
        }
        if let Some(changed) = changed.filter(|_| elements.len() > 0) {
            return call.integer(i64::from(changed));
        }
    }
    let held = registers(call, key)?;
    let created = held.is_none();
    let mut registers = held.unwrap_or_else(Registers::new);
    let mut changed = false;
    elements.for_each(|element| changed |= registers.add(element));
    if changed || created {
        store(call, key, &registers)?;
    }
    call.integer(i64::from(changed || created))
}

/// Returns the registers of the `HyperLogLog` at `key`; `None` if there is no such key. Refuses a value that
/// is no `HyperLogLog`. Counts neither a hit nor a miss.
fn registers(call: &mut Call<'_>, key: &[u8]) -> Result<Option<Registers>, Refusal> {
    call.effort.spend(1, REGISTERS_EFFORT)?;
    call.keyspace.read_string_uncounted(key, decoded)?
}

fn decoded(bytes: Option<&[u8]>) -> Result<Option<Registers>, Refusal> {
    bytes.map(Registers::decode).transpose()
}

/// Stores a `HyperLogLog` under `key`; the key keeps its expiry. Refuses the command if memory has no room
/// for it.
fn store(call: &mut Call<'_>, key: &[u8], registers: &Registers) -> Done {
    let mut digits = Digits::new(0);
    let former = call.keyspace.peek(key).map(|entry| &entry.value);
    let held = former.map_or(0, Value::cost);
    let former = former.and_then(|value| value.bytes(&mut digits));
    let bytes = registers.encode(former, call.settings.sparse_bytes_max);
    call.afford(bytes.len().saturating_sub(held))?;
    call.effort.charge(REGISTERS_EFFORT);
    call.keyspace.set(key, Value::Buffer(Box::new(bytes)), Lifetime::Keep);
    call.announce(Class::String, "pfadd", key);
    Ok(())
}

fn pfcount(call: &mut Call<'_>) -> Done {
    if call.count() > 2 {
        let merged = merged(call, 1)?;
        return call.integer(merged.count() as i64);
    }
    let key = call.at(1);
    let held = call.keyspace.read_string(key, |bytes| bytes.map(counters::cached).transpose())??;
    let count = match held {
        None => 0,
        Some(Some(count)) => count,
        Some(None) => {
            let count = registers(call, key)?.map_or(0, |registers| registers.count());
            keep_count(call, key, count);
            count
        }
    };
    call.integer(count as i64)
}

/// Stores the estimated count in the header of the `HyperLogLog` at `key`, as Redis does, so that the next
/// PFCOUNT need not compute it again.
fn keep_count(call: &mut Call<'_>, key: &[u8], count: u64) {
    let Some(place) = call.keyspace.find(key) else { return };
    call.keyspace.change_at(place, |value| {
        if !matches!(value, Value::Buffer(_)) {
            let bytes = value.bytes(&mut Digits::new(0)).unwrap_or_default().to_vec();
            *value = Value::Buffer(Box::new(bytes));
        }
        if let Value::Buffer(bytes) = value {
            counters::cache(bytes, count);
        }
    });
}

/// Returns the union of the `HyperLogLog` values at the keys that argument `start` and all arguments after it
/// name, and counts a hit or a miss for each. Keys that do not exist count as empty. An error if a value is
/// no `HyperLogLog`, or if the work would exceed the effort limit.
fn merged(call: &mut Call<'_>, start: usize) -> Result<Registers, Refusal> {
    let mut merged = Registers::new();
    for key in call.rest(start) {
        call.effort.spend(1, REGISTERS_EFFORT)?;
        if let Some(registers) = call.keyspace.read_string(key, decoded)?? {
            merged.merge(&registers);
        }
    }
    Ok(merged)
}

fn pfmerge(call: &mut Call<'_>) -> Done {
    let merged = merged(call, 1)?;
    store(call, call.at(1), &merged)?;
    call.ok()
}

fn pfdebug(call: &mut Call<'_>) -> Done {
    let key = call.at(2);
    let absent = Refusal::Words("ERR The specified key does not exist");
    let is_dense =
        call.keyspace.read_string_uncounted(key, |bytes| bytes.map(counters::is_dense).transpose())??;
    let is_dense = is_dense.ok_or(absent)?;
    if call.is(1, "encoding") {
        call.out.simple(if is_dense { "dense" } else { "sparse" });
        return Ok(());
    }
    if call.is(1, "decode") {
        call.effort.spend(1, REGISTERS_EFFORT)?;
        let runs =
            call.keyspace.read_string_uncounted(key, |bytes| counters::runs(bytes.unwrap_or_default()))??;
        return call.bulk(runs.as_bytes());
    }
    let lists = call.is(1, "getreg");
    if !lists && !call.is(1, "todense") {
        return Err(Refusal::Quoting(format!("ERR Unknown PFDEBUG subcommand '{}'", quoted(call.at(1)))));
    }
    let mut registers = registers(call, key)?.unwrap_or_else(Registers::new);
    if !is_dense {
        registers.make_dense();
        store(call, key, &registers)?;
    }
    if !lists {
        return call.integer(i64::from(!is_dense));
    }
    call.effort.spend(registers.values().len(), LOOK)?;
    call.out.array(registers.values().len());
    registers.values().iter().for_each(|value| call.out.integer(i64::from(*value)));
    Ok(())
}

/// Carries out PFSELFTEST: adds 1,000 known elements to a `HyperLogLog`, and fails if the estimate is more
/// than 5 % off or if the sparse or the dense encoding does not decode to the same registers.
fn pfselftest(call: &mut Call<'_>) -> Done {
    const ELEMENTS: u64 = 1_000;
    call.effort.spend(ELEMENTS as usize, LOOK)?;
    call.effort.spend(4, REGISTERS_EFFORT)?;
    let mut registers = Registers::new();
    (0..ELEMENTS).for_each(|element| {
        registers.add(&element.to_le_bytes());
    });
    let sparse = registers.encode(None, usize::MAX);
    registers.make_dense();
    let dense = registers.encode(None, 0);
    let is_kept =
        |bytes: &[u8]| Registers::decode(bytes).is_ok_and(|decoded| decoded.values() == registers.values());
    let is_near = registers.count().abs_diff(ELEMENTS) * 20 <= ELEMENTS;
    if !is_near || !is_kept(&sparse) || !is_kept(&dense) {
        return Err(Refusal::Words("ERR TESTFAILED a counter of 1000 elements is wrong"));
    }
    call.ok()
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn counters_show_what_is_in_them() {
        let mut bench = Bench::new();
        bench.talk(&[
            ("PFDEBUG ENCODING p", "-ERR The specified key does not exist|"),
            ("PFADD p", ":1|"),
            ("PFDEBUG ENCODING p", "+sparse|"),
            ("PFDEBUG DECODE p", "$7|Z:16384|"),
            ("PFDEBUG TODENSE p", ":1|"),
            ("PFDEBUG TODENSE p", ":0|"),
            ("PFDEBUG ENCODING p", "+dense|"),
            ("PFDEBUG DECODE p", "-ERR HLL encoding is not sparse|"),
            ("PFDEBUG NOSUCH p", "-ERR Unknown PFDEBUG subcommand 'NOSUCH'|"),
            ("SET s text", "+OK|"),
            ("PFDEBUG GETREG s", "-WRONGTYPE Key is not a valid HyperLogLog string value.|"),
            ("PFSELFTEST", "+OK|"),
            ("CONFIG SET hll-sparse-max-bytes 20", "+OK|"),
            ("PFADD q a b c d", ":1|"),
            ("PFDEBUG ENCODING q", "+dense|"),
        ]);
        assert!(bench.send("PFDEBUG GETREG q").starts_with("*16384|:0|"));
    }

    #[test]
    fn distinct_elements_are_counted() {
        let mut bench = Bench::new();
        bench.talk(&[
            ("PFADD p a b c", ":1|"),
            ("PFADD p a", ":0|"),
            ("PFCOUNT p", ":3|"),
            ("PFCOUNT p", ":3|"),
            ("PFADD q c d", ":1|"),
            ("PFCOUNT p q nothing", ":4|"),
            ("PFMERGE m p q", "+OK|"),
            ("PFCOUNT m", ":4|"),
            ("PFADD e", ":1|"),
            ("PFADD e", ":0|"),
            ("PFCOUNT e", ":0|"),
            ("PFCOUNT nothing", ":0|"),
            ("TYPE p", "+string|"),
            ("STRLEN e", ":18|"),
            ("SET s text", "+OK|"),
            ("PFADD s a", "-WRONGTYPE Key is not a valid HyperLogLog string value.|"),
            ("PFCOUNT p s", "-WRONGTYPE Key is not a valid HyperLogLog string value.|"),
            ("RPUSH l a", ":1|"),
            ("PFADD l a", "-WRONGTYPE Operation against a key holding the wrong kind of value|"),
        ]);
        for number in 0..50_000 {
            bench.send(&format!("PFADD large {number} {}", number + 50_000));
        }
        bench.talk(&[("STRLEN large", ":12304|"), ("PFADD large 7", ":0|")]);
        let count: u64 = bench.send("PFCOUNT large")[1..].trim_end_matches('|').parse().expect("a number");
        assert!((97_000..103_000).contains(&count), "{count}");
        bench.talk(&[("DEL large p q m e s l", ":7|")]);
        assert_eq!(bench.engine.statistics().bytes_used, 0);
    }
}
