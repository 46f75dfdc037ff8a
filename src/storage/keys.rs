//! Keys of any kind: existence, lifetime, renaming, walks.

use super::call::{Call, Done};
use super::commands::{Command, Effect, command};
use super::glob;
use super::keyspace::{Lifetime, NEVER_MS};
use super::refusal::Refusal;
use super::scan::{self, ScanOptions, Scanned};
use super::value::Value;
use crate::protocol::encode;

pub(super) const COMMANDS: &[Command] = &[
    command("del", -2, Effect::Write, del),
    command("unlink", -2, Effect::Write, del),
    command("exists", -2, Effect::Read, exists),
    command("touch", -2, Effect::Read, exists),
    command("type", 2, Effect::Read, kind),
    command("expire", -3, Effect::Write, expire),
    command("pexpire", -3, Effect::Write, pexpire),
    command("expireat", -3, Effect::Write, expireat),
    command("pexpireat", -3, Effect::Write, pexpireat),
    command("ttl", 2, Effect::Read, ttl),
    command("pttl", 2, Effect::Read, pttl),
    command("expiretime", 2, Effect::Read, expiretime),
    command("pexpiretime", 2, Effect::Read, pexpiretime),
    command("persist", 2, Effect::Write, persist),
    command("rename", 3, Effect::Write, rename),
    command("renamenx", 3, Effect::Write, renamenx),
    command("copy", -3, Effect::Grow, copy),
    command("keys", 2, Effect::Read, keys),
    command("scan", -2, Effect::Read, scan),
    command("randomkey", 1, Effect::Read, randomkey),
    command("dbsize", 1, Effect::Read, dbsize),
    command("flushdb", -1, Effect::Write, flush),
    command("flushall", -1, Effect::Write, flush),
    command("object", -2, Effect::Read, object),
];

fn del(call: &mut Call<'_>) -> Done {
    let removed = call.rest(1).filter(|key| call.keyspace.remove(key)).count();
    call.number(removed)
}

fn exists(call: &mut Call<'_>) -> Done {
    let found = call.rest(1).filter(|key| call.keyspace.read(key).is_some()).count();
    call.number(found)
}

fn kind(call: &mut Call<'_>) -> Done {
    let kind = call.keyspace.peek(call.at(1)).map_or("none", |entry| entry.value.kind());
    encode::simple(call.out, kind);
    Ok(())
}

/// How a command names a moment or a duration.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    Seconds,
    Milliseconds,
}

/// What a number of EXPIRE and its kin counts from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Now,
    Epoch,
}

fn expire(call: &mut Call<'_>) -> Done {
    set_lifetime(call, Scale::Seconds, Origin::Now, "expire")
}

fn pexpire(call: &mut Call<'_>) -> Done {
    set_lifetime(call, Scale::Milliseconds, Origin::Now, "pexpire")
}

fn expireat(call: &mut Call<'_>) -> Done {
    set_lifetime(call, Scale::Seconds, Origin::Epoch, "expireat")
}

fn pexpireat(call: &mut Call<'_>) -> Done {
    set_lifetime(call, Scale::Milliseconds, Origin::Epoch, "pexpireat")
}

/// NX, XX, GT and LT of EXPIRE.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one word of the command")]
struct Conditions {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_sooner: bool,
}

impl Conditions {
    fn parse(call: &Call<'_>) -> Result<Self, Refusal> {
        let mut conditions = Self::default();
        for index in 3..call.count() {
            if call.is(index, "nx") {
                conditions.if_none = true;
            } else if call.is(index, "xx") {
                conditions.if_some = true;
            } else if call.is(index, "gt") {
                conditions.if_later = true;
            } else if call.is(index, "lt") {
                conditions.if_sooner = true;
            } else {
                let option = String::from_utf8_lossy(call.at(index)).into_owned();
                return Err(Refusal::Quoting(format!("ERR Unsupported option {option}")));
            }
        }
        if conditions.if_none && (conditions.if_some || conditions.if_later || conditions.if_sooner) {
            return Err(Refusal::Words(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if conditions.if_later && conditions.if_sooner {
            return Err(Refusal::Words("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(conditions)
    }

    /// A key without a lifetime counts as expiring last of all.
    fn allow(&self, old_ms: u64, new_ms: i64) -> bool {
        let new_ms = u64::try_from(new_ms).unwrap_or(0);
        let volatile = old_ms != NEVER_MS;
        !(self.if_none && volatile
            || self.if_some && !volatile
            || self.if_later && new_ms <= old_ms
            || self.if_sooner && new_ms >= old_ms)
    }
}

fn set_lifetime(call: &mut Call<'_>, scale: Scale, origin: Origin, name: &'static str) -> Done {
    let conditions = Conditions::parse(call)?;
    let given = call.integer_at(2)?;
    let scale = if scale == Scale::Seconds { 1000 } else { 1 };
    let base = if origin == Origin::Now { call.keyspace.now_ms() as i64 } else { 0 };
    let expires_ms =
        given.checked_mul(scale).and_then(|ms| ms.checked_add(base)).ok_or(Refusal::InvalidExpire(name))?;
    let Some(place) = call.keyspace.find(call.at(1)) else { return call.integer(0) };
    if !conditions.allow(call.keyspace.entry(place).expires_ms, expires_ms) {
        return call.integer(0);
    }
    if expires_ms <= call.keyspace.now_ms() as i64 {
        call.keyspace.remove_at(place);
    } else {
        call.keyspace.set_expiry(place, expires_ms as u64);
    }
    call.integer(1)
}

fn ttl(call: &mut Call<'_>) -> Done {
    let now_ms = call.keyspace.now_ms();
    tell_lifetime(call, |expires_ms| (expires_ms - now_ms + 500) / 1000)
}

fn pttl(call: &mut Call<'_>) -> Done {
    let now_ms = call.keyspace.now_ms();
    tell_lifetime(call, |expires_ms| expires_ms - now_ms)
}

fn expiretime(call: &mut Call<'_>) -> Done {
    tell_lifetime(call, |expires_ms| (expires_ms + 500) / 1000)
}

fn pexpiretime(call: &mut Call<'_>) -> Done {
    tell_lifetime(call, |expires_ms| expires_ms)
}

fn tell_lifetime(call: &mut Call<'_>, tell: impl FnOnce(u64) -> u64) -> Done {
    let told = match call.keyspace.peek(call.at(1)) {
        None => -2,
        Some(entry) if entry.expires_ms == NEVER_MS => -1,
        Some(entry) => tell(entry.expires_ms) as i64,
    };
    call.integer(told)
}

fn persist(call: &mut Call<'_>) -> Done {
    let Some(place) = call.keyspace.find(call.at(1)) else { return call.integer(0) };
    if call.keyspace.entry(place).expires_ms == NEVER_MS {
        return call.integer(0);
    }
    call.keyspace.set_expiry(place, NEVER_MS);
    call.integer(1)
}

/// Whether a key that is in the way goes.
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
    let place = call.keyspace.find(from).ok_or(Refusal::NoSuchKey)?;
    if from == to {
        return Ok(obstacle == Obstacle::Replaced);
    }
    if obstacle == Obstacle::Respected && call.keyspace.find(to).is_some() {
        return Ok(false);
    }
    let entry = call.keyspace.remove_at(place);
    call.keyspace.set(to, entry.value, lifetime_until(entry.expires_ms));
    Ok(true)
}

fn lifetime_until(expires_ms: u64) -> Lifetime {
    if expires_ms == NEVER_MS { Lifetime::Forever } else { Lifetime::UntilMs(expires_ms) }
}

fn copy(call: &mut Call<'_>) -> Done {
    let obstacle = copy_options(call)?;
    let (from, to) = (call.at(1), call.at(2));
    if from == to {
        return Err(Refusal::Words("ERR source and destination objects are the same"));
    }
    let Some(place) = call.keyspace.find(from) else { return call.integer(0) };
    let entry = call.keyspace.entry(place);
    let (cost, lifetime) = (entry.value.cost(), lifetime_until(entry.expires_ms));
    if obstacle == Obstacle::Respected && call.keyspace.find(to).is_some() {
        return call.integer(0);
    }
    call.afford(cost)?;
    let place = call.keyspace.find(from).expect("it was there a moment ago");
    let value = call.keyspace.entry(place).value.clone();
    call.keyspace.set(to, value, lifetime);
    call.integer(1)
}

fn copy_options(call: &Call<'_>) -> Result<Obstacle, Refusal> {
    let mut obstacle = Obstacle::Respected;
    let mut index = 3;
    while index < call.count() {
        if call.is(index, "replace") {
            obstacle = Obstacle::Replaced;
        } else if call.is(index, "db") && index + 1 < call.count() {
            index += 1;
            if call.integer_at(index)? != 0 {
                return Err(Refusal::Words("ERR DB index is out of range"));
            }
        } else {
            return Err(Refusal::Syntax);
        }
        index += 1;
    }
    Ok(obstacle)
}

fn keys(call: &mut Call<'_>) -> Done {
    let pattern = call.at(1);
    let (mut elements, mut count) = (Vec::new(), 0);
    for entry in call.keyspace.entries() {
        if glob::matches(pattern, entry.key.as_bytes()) {
            encode::bulk(&mut elements, entry.key.as_bytes());
            count += 1;
        }
    }
    encode::array(call.out, count);
    call.out.append(&mut elements);
    Ok(())
}

fn scan(call: &mut Call<'_>) -> Done {
    let options = ScanOptions::parse(call, 1, Scanned::Keys)?;
    let (mut elements, mut count) = (Vec::new(), 0);
    let next = call.keyspace.walk(options.cursor, options.count, |entry| {
        let of_kind =
            options.kind.is_none_or(|kind| kind.eq_ignore_ascii_case(entry.value.kind().as_bytes()));
        if of_kind && options.wants(entry.key.as_bytes()) {
            encode::bulk(&mut elements, entry.key.as_bytes());
            count += 1;
        }
    });
    scan::reply(call, next, count, &elements)
}

fn randomkey(call: &mut Call<'_>) -> Done {
    let key = call.keyspace.random_key();
    call.bulk_or_null(key.as_ref().map(super::text::Text::as_bytes))
}

fn dbsize(call: &mut Call<'_>) -> Done {
    call.number(call.keyspace.len())
}

fn flush(call: &mut Call<'_>) -> Done {
    let mode_known = call.count() == 1 || call.count() == 2 && (call.is(1, "async") || call.is(1, "sync"));
    if !mode_known {
        return Err(Refusal::Syntax);
    }
    call.keyspace.clear();
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
    let Some(place) = call.keyspace.find(call.at(2)) else { return call.null() };
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

/// Nothing is shared here; Redis shares small integers and says so.
fn reference_count(value: &Value) -> i64 {
    if matches!(value, Value::Integer(0..10_000)) { i64::from(i32::MAX) } else { 1 }
}

#[cfg(test)]
mod tests {
    use crate::storage::engine::testing::Bench;
    use crate::storage::random::Random;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn lifetimes_end() {
        let mut bench = Bench::new();
        bench.talk(&[
            ("SET k v PX 100", "+OK|"),
            ("PTTL k", ":100|"),
            ("EXPIRE k 10 GT", ":1|"),
            ("EXPIRE k 5 GT", ":0|"),
            ("TTL k", ":10|"),
            ("PERSIST k", ":1|"),
            ("TTL k", ":-1|"),
            ("PEXPIRE k 100 LT", ":1|"),
            ("RENAME k other", "+OK|"),
        ]);
        bench.wait_ms(100);
        bench.talk(&[("GET other", "$1|v|")]);
        bench.wait_ms(1);
        bench.talk(&[
            ("GET other", "$-1|"),
            ("TTL other", ":-2|"),
            ("DBSIZE", ":0|"),
            ("SET k v", "+OK|"),
            ("EXPIRE k -1", ":1|"),
            ("EXISTS k", ":0|"),
        ]);
        assert_eq!(bench.engine.statistics().bytes_used, 0);
    }

    /// Value and moment of expiry by key: the slow, obvious store.
    type Model = BTreeMap<usize, (String, u64)>;

    fn step(bench: &mut Bench, model: &mut Model, random: &mut Random) {
        let (key, value) = (random.below(40), random.below(1_000));
        let ms = random.below(300) as u64 + 1;
        let now_ms = bench.now.unix_ms;
        model.retain(|_, (_, expires_ms)| *expires_ms >= now_ms);
        let found = model.get(&key).cloned();
        let expected = match random.below(9) {
            0 => {
                model.insert(key, (value.to_string(), u64::MAX));
                (format!("SET {key} {value}"), "+OK|".to_owned())
            }
            1 => {
                model.insert(key, (value.to_string(), now_ms + ms));
                (format!("SET {key} {value} PX {ms}"), "+OK|".to_owned())
            }
            2 => {
                let kept = found.map_or(u64::MAX, |(_, expires_ms)| expires_ms);
                model.insert(key, (value.to_string(), kept));
                (format!("SET {key} {value} KEEPTTL"), "+OK|".to_owned())
            }
            3 => {
                if let Some(entry) = model.get_mut(&key) {
                    entry.1 = now_ms + ms;
                }
                (format!("PEXPIRE {key} {ms}"), format!(":{}|", i32::from(found.is_some())))
            }
            4 => {
                model.remove(&key);
                (format!("DEL {key}"), format!(":{}|", i32::from(found.is_some())))
            }
            5 => {
                let (old, kept) = found.unwrap_or(("0".to_owned(), u64::MAX));
                let sum = old.parse::<i64>().expect("all values are numbers") + value as i64;
                model.insert(key, (sum.to_string(), kept));
                (format!("INCRBY {key} {value}"), format!(":{sum}|"))
            }
            6 => {
                let left = found.map_or(-2, |(_, at)| if at == u64::MAX { -1 } else { (at - now_ms) as i64 });
                (format!("PTTL {key}"), format!(":{left}|"))
            }
            7 => {
                bench.engine.expire_some(bench.now, 5);
                bench.wait_ms(random.below(30) as u64);
                return;
            }
            _ => {
                let reply = found.map_or("$-1|".to_owned(), |(old, _)| format!("${}|{old}|", old.len()));
                (format!("GET {key}"), reply)
            }
        };
        assert_eq!(bench.send(&expected.0), expected.1, "{} at {now_ms}", expected.0);
    }

    #[test]
    fn strings_and_lifetimes_agree_with_a_simple_model() {
        for seed in 0..20 {
            let (mut bench, mut model, mut random) = (Bench::new(), Model::new(), Random::new(seed));
            for _ in 0..3_000 {
                step(&mut bench, &mut model, &mut random);
            }
            bench.wait_ms(1_000_000);
            while bench.engine.expire_some(bench.now, 7).visited > 0 {}
            let forever = model.values().filter(|(_, expires_ms)| *expires_ms == u64::MAX).count();
            assert_eq!(bench.engine.statistics().keys, forever, "seed {seed}");
            assert_eq!(bench.engine.statistics().keys_volatile, 0, "seed {seed}");
            bench.send("FLUSHALL");
            assert_eq!(bench.engine.statistics().bytes_used, 0);
        }
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
            assert!(cursor.parse::<u64>().expect("a cursor is a number") < 1 << 48);
            let found: Vec<&str> = words[4..].iter().skip(1).step_by(2).copied().collect();
            assert!(found.len() <= 10, "a call stays small");
            seen.extend(found.into_iter().filter(|key| key.starts_with("stays")).map(str::to_owned));
            if cursor == "0" {
                break;
            }
            for _ in 0..30 {
                bench.send(&format!("SET guest:{} v", random.below(20_000)));
                bench.send(&format!("DEL guest:{}", random.below(20_000)));
            }
        }
        assert_eq!(seen.len(), 2_000);
    }

    #[test]
    fn a_scan_selects_by_pattern_and_kind() {
        Bench::new().talk(&[
            ("MSET a 1 b 2 ab 3", "+OK|"),
            ("RPUSH a-list x", ":1|"),
            ("SCAN 0 COUNT 1000 MATCH ?b", "*2|$1|0|*1|$2|ab|"),
            ("SCAN 0 COUNT 1000 TYPE LIST", "*2|$1|0|*1|$6|a-list|"),
            ("SCAN x", "-ERR invalid cursor|"),
            ("SCAN 0 COUNT 0", "-ERR syntax error|"),
        ]);
    }
}
