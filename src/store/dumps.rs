//! DUMP and RESTORE. The format is in `rdb.rs`.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::{INSERT, LOOK};
use super::events::Class;
use super::keyspace::Lifetime;
use super::rdb;
use super::refusal::Refusal;

pub(super) const COMMANDS: &[Command] =
    &[command("dump", 2, Effect::Read, dump), command("restore", -4, Effect::Grow, restore)];

fn dump(call: &mut Call<'_>) -> Done {
    let key = call.at(1);
    if call.keyspace.read(key).is_none() {
        return call.null();
    }
    let Some(entry) = call.keyspace.peek(key) else { return call.null() };
    call.effort.spend(entry.value.elements(), LOOK)?;
    let bytes = rdb::write(&entry.value, &|bytes| call.out.expect(bytes))?;
    call.effort.charge_bytes(bytes.len());
    call.bulk(&bytes)
}

/// The options of RESTORE.
struct Options {
    replaces: bool,
    /// True if the expiry is given as a time since 1970 (ABSTTL), not as a duration.
    absolute: bool,
}

impl Options {
    fn parse(call: &Call<'_>) -> Result<Self, Refusal> {
        let mut options = Self { replaces: false, absolute: false };
        let mut index = 4;
        while index < call.count() {
            let more = index + 1 < call.count();
            if call.is(index, "replace") {
                options.replaces = true;
            } else if call.is(index, "absttl") {
                options.absolute = true;
            } else if call.is(index, "idletime") && more {
                index += 1;
                if call.integer_at(index)? < 0 {
                    return Err(Refusal::Words("ERR Invalid IDLETIME value, must be >= 0"));
                }
            } else if call.is(index, "freq") && more {
                index += 1;
                if !(0..=255).contains(&call.integer_at(index)?) {
                    return Err(Refusal::Words("ERR Invalid FREQ value, must be >= 0 and <= 255"));
                }
            } else {
                return Err(Refusal::Syntax);
            }
            index += 1;
        }
        Ok(options)
    }
}

fn restore(call: &mut Call<'_>) -> Done {
    let options = Options::parse(call)?;
    let key = call.at(1);
    if call.keyspace.find(key).is_some() && !options.replaces {
        return Err(Refusal::Words("BUSYKEY Target key name already exists."));
    }
    let given = call.integer_at(2)?;
    let given = u64::try_from(given).map_err(|_| Refusal::Words("ERR Invalid TTL value, must be >= 0"))?;
    let value = rdb::read(call.at(3), call.memory_left(), call.keyspace.hasher())?;
    call.effort.charge(value.elements() as u64 * INSERT);
    let base_ms = if options.absolute { 0 } else { call.keyspace.now_ms() };
    let lifetime = match given {
        0 => Lifetime::Forever,
        given => Lifetime::UntilMs(given.saturating_add(base_ms)),
    };
    if let Lifetime::UntilMs(expires_ms) = lifetime
        && expires_ms < call.keyspace.now_ms()
    {
        call.remove_key(key);
        return call.ok();
    }
    call.keyspace.replace(key, value, lifetime);
    call.announce(Class::Generic, "restore", key);
    call.ok()
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn values_of_every_kind_survive() {
        let mut bench = Bench::new();
        bench.talk(&[
            ("SET s text", "+OK|"),
            ("SET n -70000", "+OK|"),
            ("RPUSH l a 1 b", ":3|"),
            ("SADD m a b", ":2|"),
            ("SADD i 3 1 2", ":3|"),
            ("ZADD z 1.5 a -inf b", ":2|"),
            ("HSET h a 1 b 2", ":2|"),
            ("HSET e a 1 b 2", ":2|"),
            ("HEXPIRE e 10 FIELDS 1 a", "*1|:1|"),
            ("XADD x 1-1 a 1", "$3|1-1|"),
            ("XADD x 2-1 a 2", "$3|2-1|"),
            ("XDEL x 1-1", ":1|"),
            ("XGROUP CREATE x g 0", "+OK|"),
            ("XREADGROUP GROUP g c STREAMS x >", "*1|*2|$1|x|*1|*2|$3|2-1|*2|$1|a|$1|2|"),
        ]);
        for (key, look) in [
            ("s", "GET"),
            ("n", "GET"),
            ("l", "LRANGE 0 -1"),
            ("m", "SCARD"),
            ("i", "SMEMBERS"),
            ("z", "ZRANGE 0 -1 WITHSCORES"),
            ("h", "HGETALL"),
            ("e", "HPTTL FIELDS 2 a b"),
            ("x", "XPENDING g - + 10"),
            ("x", "XINFO STREAM"),
        ] {
            let line = |key: &str| match look.split_once(' ') {
                Some(("XINFO", rest)) => format!("XINFO {rest} {key}"),
                Some((command, rest)) => format!("{command} {key} {rest}"),
                None => format!("{look} {key}"),
            };
            let dumped = bench.send_bytes(&[b"DUMP", key.as_bytes()]);
            let start = dumped.iter().position(|byte| *byte == b'\n').expect("a header") + 1;
            let bytes = dumped[start..dumped.len() - 2].to_vec();
            let restored = bench.send_bytes(&[b"RESTORE", b"copy", b"0", &bytes, b"REPLACE"]);
            assert_eq!(restored, b"+OK\r\n", "{key}");
            assert_eq!(bench.send(&line("copy")), bench.send(&line(key)), "{key}");
        }
    }

    #[test]
    fn bytes_of_redis_are_read() {
        let mut bench = Bench::new();
        let v: &[u8] = b"\x00\x01v\x0a\x00\x91\x08\xce\xb2\x198\x8a\xce";
        assert_eq!(bench.send_bytes(&[b"RESTORE", b"k", b"0", v]), b"+OK\r\n");
        bench.talk(&[
            ("GET k", "$1|v|"),
            ("RESTORE k 0 x", "-BUSYKEY Target key name already exists.|"),
            ("RESTORE k 0 x REPLACE", "-ERR DUMP payload version or checksum are wrong|"),
            ("RESTORE k -1 x REPLACE", "-ERR Invalid TTL value, must be >= 0|"),
            ("RESTORE k 0 x FREQ 256", "-ERR Invalid FREQ value, must be >= 0 and <= 255|"),
            ("DUMP nothing", "$-1|"),
        ]);
        assert_eq!(bench.send_bytes(&[b"DUMP", b"k"]), [b"$13\r\n", v, b"\r\n"].concat());
        let restore: &[&[u8]] = &[b"RESTORE", b"k", b"100", v, b"REPLACE", b"IDLETIME", b"1000"];
        assert_eq!(bench.send_bytes(restore), b"+OK\r\n");
        bench.talk(&[("PTTL k", ":100|")]);
        let restore: &[&[u8]] = &[b"RESTORE", b"k", b"100", v, b"REPLACE", b"ABSTTL"];
        assert_eq!(bench.send_bytes(restore), b"+OK\r\n");
        bench.talk(&[("EXISTS k", ":0|")]);
    }
}
