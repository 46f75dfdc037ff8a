//! Commands on keys of any type: existence, renaming, copying, scans. Commands on expiries are in
//! `lifetimes.rs`.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::{FIND, LOOK};
use super::events::Class;
use super::glob;
use super::keyspace::{Entry, Keyspace, Lifetime, NEVER_MS};
use super::numbers;
use super::refusal::Refusal;
use super::scan::{Page, ScanOptions, Scanned};
use super::text::Text;
use super::value::Value;
use crate::values::limits::ENGINE_DATABASES;

pub(super) const COMMANDS: &[Command] = &[
    command("del", -2, Effect::Write, del),
    command("unlink", -2, Effect::Write, del),
    command("exists", -2, Effect::Read, exists),
    command("touch", -2, Effect::Read, touch),
    command("type", 2, Effect::Read, kind),
    command("rename", 3, Effect::Write, rename),
    command("renamenx", 3, Effect::Write, renamenx),
    command("copy", -3, Effect::Grow, copy),
    command("move", 3, Effect::Write, move_to_database),
    command("keys", 2, Effect::Read, keys),
    command("scan", -2, Effect::Read, scan),
    command("randomkey", 1, Effect::Read, randomkey),
    command("dbsize", 1, Effect::Read, dbsize),
    command("flushdb", -1, Effect::Write, flushdb),
    command("flushall", -1, Effect::Write, flushall),
    command("swapdb", 3, Effect::Write, swapdb),
    command("object", -2, Effect::Read, object),
];

fn del(call: &mut Call<'_>) -> Done {
    let removed = call.rest(1).filter(|key| call.remove_key(key)).count();
    call.number(removed)
}

fn exists(call: &mut Call<'_>) -> Done {
    let found = call.rest(1).filter(|key| call.keyspace.find_counted(key).is_some()).count();
    call.number(found)
}

fn touch(call: &mut Call<'_>) -> Done {
    let found = call.rest(1).filter(|key| call.keyspace.read(key).is_some()).count();
    call.number(found)
}

fn kind(call: &mut Call<'_>) -> Done {
    let place = call.keyspace.find_counted(call.at(1));
    let kind = place.map_or("none", |place| call.keyspace.entry(place).value.kind());
    call.out.simple(kind);
    Ok(())
}

/// The handling of a key that exists at the destination of RENAME or COPY: it is replaced, or it stays and
/// the command does nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    Replaced,
    Respected,
}

fn rename(call: &mut Call<'_>) -> Done {
    move_key(call, Obstacle::Replaced)?;
    call.ok()
}

fn renamenx(call: &mut Call<'_>) -> Done {
    let moved = move_key(call, Obstacle::Respected)?;
    call.integer(i64::from(moved))
}

fn move_key(call: &mut Call<'_>, obstacle: Obstacle) -> Result<bool, Refusal> {
    let (from, to) = (call.at(1), call.at(2));
    call.keyspace.find(from).ok_or(Refusal::NoSuchKey)?;
    if from == to {
        return Ok(obstacle == Obstacle::Replaced);
    }
    if obstacle == Obstacle::Respected && call.keyspace.find(to).is_some() {
        return Ok(false);
    }
    // Where the second key had expired, its removal may have moved the first one.
    let place = call.keyspace.find(from).ok_or(Refusal::NoSuchKey)?;
    let freed = call.keyspace.entry(place).key.cost() as u64 + call.keyspace.peek(to).map_or(0, Entry::cost);
    // Redis renames keys in a full store, but longer and longer names would take any memory. A name that takes no more
    // than before, or than the key in its place, is free.
    let growth = (Text::new(to).cost() as u64).saturating_sub(freed);
    if growth > 0 {
        call.afford(growth as usize)?;
    }
    let entry = call.keyspace.remove_at(place);
    call.keyspace.replace(to, entry.value, lifetime_until(entry.expires_ms));
    call.announce(Class::Generic, "rename_from", from);
    call.announce(Class::Generic, "rename_to", to);
    Ok(true)
}

fn lifetime_until(expires_ms: u64) -> Lifetime {
    if expires_ms == NEVER_MS { Lifetime::Forever } else { Lifetime::UntilMs(expires_ms) }
}

fn copy(call: &mut Call<'_>) -> Done {
    let (obstacle, database) = copy_options(call)?;
    let (from, to) = (call.at(1), call.at(2));
    if from == to && database == call.session.database {
        return Err(SAME_OBJECT);
    }
    if call.keyspace.read(from).is_none() {
        return call.integer(0);
    }
    let place = call.keyspace.find(from).expect("it was there a moment ago");
    let entry = call.keyspace.entry(place);
    let (cost, lifetime) = (entry.value.cost(), lifetime_until(entry.expires_ms));
    if obstacle == Obstacle::Respected && within(call, database, |keyspace| keyspace.find(to).is_some()) {
        return call.integer(0);
    }
    call.afford(cost)?;
    let place = call.keyspace.find(from).expect("it was there a moment ago");
    call.effort.spend(call.keyspace.entry(place).value.elements(), FIND)?;
    call.effort.spend_bytes(cost)?;
    let value = call.keyspace.entry(place).value.clone();
    within(call, database, |keyspace| {
        keyspace.replace(to, value, lifetime);
        keyspace.announce(Class::Generic, "copy_to", to);
    });
    call.integer(1)
}

const SAME_OBJECT: Refusal = Refusal::Words("ERR source and destination objects are the same");
const NO_DATABASE: Refusal = Refusal::Words("ERR DB index is out of range");

/// Calls `act` while `database` is selected instead of the connection's database. Returns the result of
/// `act`.
fn within<R>(call: &mut Call<'_>, database: u8, act: impl FnOnce(&mut Keyspace) -> R) -> R {
    call.keyspace.select(database);
    let result = act(call.keyspace);
    call.keyspace.select(call.session.database);
    result
}

/// Returns `number` as the number of a database; an error if there is no such database.
fn database(number: i64) -> Result<u8, Refusal> {
    u8::try_from(number).ok().filter(|number| *number < ENGINE_DATABASES).ok_or(NO_DATABASE)
}

/// Returns the database whose number is argument `index`; an error if that is no number of a database.
pub(super) fn database_at(call: &Call<'_>, index: usize) -> Result<u8, Refusal> {
    let number = call.integer_at(index)?;
    if i32::try_from(number).is_err() {
        return Err(Refusal::Words(
            "ERR value is out of range, value must between -2147483648 and 2147483647",
        ));
    }
    database(number)
}

fn copy_options(call: &Call<'_>) -> Result<(Obstacle, u8), Refusal> {
    let (mut obstacle, mut target) = (Obstacle::Respected, call.session.database);
    let mut index = 3;
    while index < call.count() {
        if call.is(index, "replace") {
            obstacle = Obstacle::Replaced;
        } else if call.is(index, "db") && index + 1 < call.count() {
            index += 1;
            target = database_at(call, index)?;
        } else {
            return Err(Refusal::Syntax);
        }
        index += 1;
    }
    Ok((obstacle, target))
}

fn move_to_database(call: &mut Call<'_>) -> Done {
    let target = database_at(call, 2)?;
    if target == call.session.database {
        return Err(SAME_OBJECT);
    }
    let key = call.at(1);
    let Some(place) = call.keyspace.find(key) else { return call.integer(0) };
    if within(call, target, |keyspace| keyspace.find(key).is_some()) {
        return call.integer(0);
    }
    let entry = call.keyspace.remove_at(place);
    let lifetime = lifetime_until(entry.expires_ms);
    within(call, target, |keyspace| keyspace.set(key, entry.value, lifetime));
    call.announce(Class::Generic, "move_from", key);
    within(call, target, |keyspace| keyspace.announce(Class::Generic, "move_to", key));
    call.integer(1)
}

fn swapdb(call: &mut Call<'_>) -> Done {
    let number = |index, words| {
        let number = numbers::integer(call.at(index)).filter(|number| i32::try_from(*number).is_ok());
        number.ok_or(Refusal::Words(words))
    };
    let first = number(1, "ERR invalid first DB index")?;
    let second = number(2, "ERR invalid second DB index")?;
    let (first, second) = (database(first)?, database(second)?);
    if first != second {
        call.keyspace.swap(first, second);
    }
    call.ok()
}

fn keys(call: &mut Call<'_>) -> Done {
    let pattern = call.at(1);
    call.effort.spend(call.keyspace.len(), LOOK)?;
    let mut count = 0;
    for entry in call.keyspace.entries() {
        if pattern == b"*" || glob::matches(pattern, entry.key.as_bytes(), call.effort)? {
            call.out.bulk(entry.key.as_bytes());
            count += 1;
        }
    }
    call.out.insert(0, |out| out.array(count));
    Ok(())
}

fn scan(call: &mut Call<'_>) -> Done {
    let mut page = Page::new(ScanOptions::parse(call, 1, Scanned::Keys)?, call.effort);
    let ScanOptions { cursor, count, kind, .. } = *page.options();
    let next = call.keyspace.walk(cursor, count, |entry| {
        if kind.is_none_or(|kind| kind.eq_ignore_ascii_case(entry.value.kind().as_bytes())) {
            page.meet(entry.key.as_bytes(), 1, || call.out.bulk(entry.key.as_bytes()));
        }
    });
    page.finish(&mut call.out, next)
}

fn randomkey(call: &mut Call<'_>) -> Done {
    let key = call.keyspace.random_key();
    call.bulk_or_null(key.as_ref().map(super::text::Text::as_bytes))
}

fn dbsize(call: &mut Call<'_>) -> Done {
    call.number(call.keyspace.len())
}

/// Refuses a FLUSHDB or FLUSHALL with anything after its name but one word ASYNC or SYNC.
fn check_flush(call: &Call<'_>) -> Done {
    let known = call.count() == 1 || call.count() == 2 && (call.is(1, "async") || call.is(1, "sync"));
    if known { Ok(()) } else { Err(Refusal::Syntax) }
}

fn flushdb(call: &mut Call<'_>) -> Done {
    check_flush(call)?;
    call.keyspace.clear();
    call.ok()
}

fn flushall(call: &mut Call<'_>) -> Done {
    check_flush(call)?;
    (0..ENGINE_DATABASES).for_each(|database| within(call, database, Keyspace::clear));
    call.ok()
}

fn object(call: &mut Call<'_>) -> Done {
    if call.is(1, "help") && call.count() == 2 {
        return call.empty_array();
    }
    let [encoding, refcount, idletime, freq] =
        ["encoding", "refcount", "idletime", "freq"].map(|word| call.is(1, word));
    if !(encoding || refcount || idletime || freq) {
        return Err(call.unknown_subcommand());
    }
    if call.count() != 3 {
        let word = String::from_utf8_lossy(call.at(1)).to_ascii_lowercase();
        return Err(Refusal::Quoting(format!("ERR wrong number of arguments for 'object|{word}' command")));
    }
    let Some(place) = call.keyspace.find_counted_in_silence(call.at(2)) else { return call.null() };
    if encoding {
        let name = call.keyspace.entry(place).value.encoding();
        return call.bulk(name.as_bytes());
    }
    if freq {
        return Err(Refusal::Words(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
             switching between policies at runtime LRU and LFU data will take some time to adjust.",
        ));
    }
    if refcount {
        let count = reference_count(&call.keyspace.entry(place).value);
        return call.integer(count);
    }
    let idle_s = call.keyspace.idle_s(place);
    call.integer(idle_s as i64)
}

/// Returns the reply to OBJECT REFCOUNT: 1, or for integers from 0 to 9,999 the huge count that Redis reports
/// for them. The engine itself shares no values.
fn reference_count(value: &Value) -> i64 {
    if matches!(value, Value::Integer(0..10_000)) { i64::from(i32::MAX) } else { 1 }
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;
    use crate::values::Random;
    use std::collections::BTreeSet;

    #[test]
    fn a_longer_name_needs_memory() {
        let mut bench = Bench::bounded(10_000);
        let long = "x".repeat(12_000);
        let refusal = "-OOM command not allowed when used memory > 'maxmemory'.|";
        bench.talk(&[
            ("SET k v", "+OK|"),
            (&format!("RENAME k {long}"), refusal),
            (&format!("RENAMENX k {long}"), refusal),
            ("RENAME k longer", "+OK|"),
            ("GET longer", "$1|v|"),
        ]);
    }

    #[test]
    fn names_that_grow_bit_by_bit_stay_within_the_memory() {
        let mut bench = Bench::bounded(10_000);
        let (mut name, value) = ("k".to_owned(), "v".repeat(4_000));
        bench.talk(&[(&format!("SET k {value}"), "+OK|"), (&format!("SET other {value}"), "+OK|")]);
        let refused = (0..100).find_map(|_| {
            let longer = format!("{name}{}", "x".repeat(100));
            let reply = bench.send(&format!("RENAME {name} {longer}"));
            assert!(bench.engine.statistics().bytes_used <= 10_000);
            name = longer;
            (reply != "+OK|").then_some(reply)
        });
        assert_eq!(refused.as_deref(), Some("-OOM command not allowed when used memory > 'maxmemory'.|"));
        // A key that a longer name replaces gives its memory.
        bench.talk(&[
            (
                &format!("RENAME other {}", "y".repeat(600)),
                "-OOM command not allowed when used memory > 'maxmemory'.|",
            ),
            ("SET z 1", "+OK|"),
            ("RENAME other z", "+OK|"),
        ]);
    }

    #[test]
    fn a_scan_meets_every_key_that_stays() {
        let mut bench = Bench::new();
        for key in 0..2_000 {
            bench.send(&format!("SET stays:{key} v"));
        }
        let mut random = Random::new(3);
        let (mut seen, mut cursor) = (BTreeSet::new(), "0".to_owned());
        loop {
            let reply = bench.send(&format!("SCAN {cursor} COUNT 7"));
            let words: Vec<&str> = reply.split('|').collect();
            cursor = words[2].to_owned();
            assert!(cursor.parse::<u64>().expect("a cursor is a number") < 1 << 36);
            let found: Vec<&str> = words[4..].iter().skip(1).step_by(2).copied().collect();
            assert!(found.len() <= 10, "a call stays small");
            seen.extend(found.into_iter().filter(|key| key.starts_with("stays")).map(str::to_owned));
            if cursor == "0" {
                break;
            }
            for _ in 0..30 {
                bench.send(&format!("SET guest:{} v", random.index(20_000)));
                bench.send(&format!("DEL guest:{}", random.index(20_000)));
            }
        }
        assert_eq!(seen.len(), 2_000);
    }

    #[test]
    fn commands_on_two_keys_meet_keys_that_have_expired() {
        let mut bench = Bench::new();
        let mut random = Random::new(5);
        for round in 0..30_000 {
            let (from, to) = (random.index(2_000), random.index(2_000));
            match round % 3 {
                0 => bench.send(&format!("SET k{to} old PX 1")),
                1 => bench.send(&format!("SET k{from} v")),
                _ => {
                    bench.wait_ms(2);
                    let held = bench.send(&format!("EXISTS k{from}"));
                    let command = ["RENAME", "RENAMENX", "COPY", "SMOVE", "LMOVE", "SORT", "BITOP NOT"];
                    let reply = match command[random.index(command.len())] {
                        "SMOVE" => bench.send(&format!("SMOVE k{from} k{to} m")),
                        "LMOVE" => bench.send(&format!("LMOVE k{from} k{to} LEFT LEFT")),
                        "SORT" => bench.send(&format!("SORT k{from} STORE k{to}")),
                        "BITOP NOT" => bench.send(&format!("BITOP NOT k{to} k{from}")),
                        command => bench.send(&format!("{command} k{from} k{to}")),
                    };
                    assert!(held == ":1|" || !reply.starts_with('+'), "a key that is not there was renamed");
                    reply
                }
            };
        }
    }

    #[test]
    fn a_key_is_renamed_over_one_that_has_expired() {
        let mut bench = Bench::new();
        for number in 0..20_000 {
            let (from, to) = (format!("from{number}"), format!("to{number}"));
            bench.send(&format!("SET {to} old PX 1"));
            bench.send(&format!("SET {from} {number}"));
            bench.wait_ms(2);
            bench.talk(&[(format!("RENAMENX {from} {to}").as_str(), ":1|")]);
            assert_eq!(
                bench.send(&format!("GETDEL {to}")),
                format!("${}|{number}|", number.to_string().len())
            );
        }
    }

    #[test]
    fn only_a_use_of_a_value_ends_its_idle_time() {
        let mut bench = Bench::new();
        bench.send("SET a b");
        bench.wait_ms(5_000);
        bench.talk(&[
            ("EXISTS a nothing", ":1|"),
            ("TTL a", ":-1|"),
            ("TYPE a", "+string|"),
            ("OBJECT IDLETIME a", ":5|"),
            ("TOUCH a nothing", ":1|"),
            ("OBJECT IDLETIME a", ":0|"),
        ]);
    }

    #[test]
    fn numbers_of_databases_have_32_bits() {
        let refusal = "-ERR value is out of range, value must between -2147483648 and 2147483647|";
        Bench::new().talk(&[
            ("MOVE k 2147483648", refusal),
            ("COPY k l DB -2147483649", refusal),
            ("SELECT 9223372036854775807", refusal),
            ("MOVE k 2147483647", "-ERR DB index is out of range|"),
            ("SWAPDB 0 2147483648", "-ERR invalid second DB index|"),
            ("SWAPDB -2147483649 0", "-ERR invalid first DB index|"),
            ("SWAPDB 0 2147483647", "-ERR DB index is out of range|"),
        ]);
    }

    #[test]
    fn a_scan_selects_by_pattern_and_kind() {
        Bench::new().talk(&[
            ("MSET a 1 b 2 ab 3", "+OK|"),
            ("RPUSH a-list x", ":1|"),
            ("SCAN 0 COUNT 1000 MATCH ?b", "*2|$1|0|*1|$2|ab|"),
            ("SCAN 0 COUNT 1000 TYPE LIST", "*2|$1|0|*1|$6|a-list|"),
            ("SCAN x", "-ERR invalid cursor|"),
            ("SCAN -0 COUNT 1000 MATCH ?b", "*2|$1|0|*1|$2|ab|"),
            ("SCAN 0 COUNT 0", "-ERR syntax error|"),
        ]);
    }
}
