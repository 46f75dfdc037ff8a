//! Keys of any kind: existence, lifetime, renaming, walks.

use super::call::{Call, Done};
use super::commands::{Command, Effect, command};
use super::glob;
use super::keyspace::{Lifetime, NEVER_MS};
use super::refusal::Refusal;
use super::scan::{self, ScanOptions, Scanned};
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
    let (value, lifetime) = (entry.value.clone(), lifetime_until(entry.expires_ms));
    if obstacle == Obstacle::Respected && call.keyspace.find(to).is_some() {
        return call.integer(0);
    }
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
    let next = call.keyspace.walk(options.cursor, options.slots, |entry| {
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
    call.integer(if refcount { 1 } else { call.keyspace.idle_s(place) as i64 })
}
