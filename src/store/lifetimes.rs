//! Commands on the expiries of keys: EXPIRE, TTL, PERSIST and their variants.

use super::call::{Call, Command, Done, Effect, command};
use super::events::Class;
use super::keyspace::NEVER_MS;
use super::refusal::Refusal;
use super::refusal::quoted;

pub(super) const COMMANDS: &[Command] = &[
    command("expire", -3, Effect::Write, expire),
    command("pexpire", -3, Effect::Write, pexpire),
    command("expireat", -3, Effect::Write, expireat),
    command("pexpireat", -3, Effect::Write, pexpireat),
    command("ttl", 2, Effect::Read, ttl),
    command("pttl", 2, Effect::Read, pttl),
    command("expiretime", 2, Effect::Read, expiretime),
    command("pexpiretime", 2, Effect::Read, pexpiretime),
    command("persist", 2, Effect::Write, persist),
];

/// The unit in which a command gives a time or duration: seconds or milliseconds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    Seconds,
    Milliseconds,
}

/// The origin from which the time given to EXPIRE and its variants counts: now, or the beginning of 1970.
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

/// The conditions of EXPIRE on the present expiry of the key: there is none (NX), there is one (XX), the new
/// one is later (GT) or sooner (LT).
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
                let option = quoted(call.at(index));
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

    /// True if the conditions of EXPIRE (NX, XX, GT, LT) allow the new expiry of a key (`new_ms`) in place of
    /// the old one (`old_ms`, `u64::MAX` for none), both in milliseconds since 1970. A key without an expiry
    /// counts as expiring last of all.
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
        call.announce(Class::Generic, "del", call.at(1));
    } else {
        call.keyspace.set_expiry(place, expires_ms as u64);
        call.announce(Class::Generic, "expire", call.at(1));
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
    let place = call.keyspace.find_counted(call.at(1));
    let told = match place.map(|place| call.keyspace.entry(place).expires_ms) {
        None => -2,
        Some(NEVER_MS) => -1,
        Some(expires_ms) => tell(expires_ms) as i64,
    };
    call.integer(told)
}

fn persist(call: &mut Call<'_>) -> Done {
    let Some(place) = call.keyspace.find(call.at(1)) else { return call.integer(0) };
    if call.keyspace.entry(place).expires_ms == NEVER_MS {
        return call.integer(0);
    }
    call.keyspace.set_expiry(place, NEVER_MS);
    call.announce(Class::Generic, "persist", call.at(1));
    call.integer(1)
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;
    use crate::values::Random;
    use std::collections::BTreeMap;

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

    /// The test's reference model: for each key, its value and its expiry in milliseconds since 1970.
    type Model = BTreeMap<usize, (String, u64)>;

    fn step(bench: &mut Bench, model: &mut Model, random: &mut Random) {
        let (key, value) = (random.index(40), random.index(1_000));
        let ms = random.between(1, 300);
        let now_ms = bench.now.unix_ms;
        model.retain(|_, (_, expires_ms)| *expires_ms >= now_ms);
        let found = model.get(&key).cloned();
        let expected = match random.index(9) {
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
                bench.wait_ms(random.below(30));
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
}
