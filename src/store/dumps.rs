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
    call.effort.charge_bytes(bytes.len().saturating_mul(1 + rdb::CHECKSUM_COST));
    call.bulk(&bytes)
}

/// The options of RESTORE: whether it replaces an existing key, and how its expiry is given.
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
    call.effort.charge_bytes(call.at(3).len().saturating_mul(rdb::CHECKSUM_COST));
    let value = rdb::read(call.at(3), call.memory_left(), call.effort, call.keyspace.hasher())?;
    call.effort.charge(value.elements() as u64 * INSERT);
    let base_ms = if options.absolute { 0 } else { call.keyspace.now_ms() };
    let lifetime = match given {
        0 => Lifetime::Forever,
        given => Lifetime::UntilMs(given.saturating_add(base_ms).min(i64::MAX as u64)),
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

    /// A stream of Redis 7.0, of which an entry was deleted and two entries are pending.
    const COUNTED: &str = "130110000000000000000100000000000000004052520000001d00030101010101816102000102010001000101010401\
             03010101000102010401000101010501020181620203018163028e6c6f6e672d6c6f6e672d746578740f080102010301\
             000104010401ff0304000100020004020167020581ffffffffffffffff02000000000000000100000000000000006345\
             d41aa201000001000000000000000200000000000000056345d41aa2010000010201636345d41aa20100000200000000\
             0000000100000000000000000000000000000002000000000000000501646345d41aa2010000000168020781ffffffff\
             ffffffff00000a001307e2101d019d7d";
    /// A stream of Redis 5, compressed.
    const EARLY: &str = "0f011000000000000000010000000000000000c3404a4057165700000023000201040101018464617461050001030100\
             20010381610204200a0001400a0062600a0002400a0063600a4022018164200a4039200a0065600a0005400a0066200a\
             00ff02060002026731050004000000000000000100000000000000003ef783437a010000010000000000000002000000\
             00000000003ef783437a01000001000000000000000400000000000000003ef783437a01000001000000000000000500\
             000000000000003ef783437a0100000101036331313ef783437a01000004000000000000000100000000000000000000\
             000000000002000000000000000000000000000000040000000000000000000000000000000500000000000000000267\
             320000000009003d52ef6867521dfa";

    fn restore_digits(bench: &mut Bench, digits: &str) -> Vec<u8> {
        let digit = |digit: u8| (digit as char).to_digit(16).expect("a digit") as u8;
        let bytes: Vec<u8> = digits
            .as_bytes()
            .as_chunks::<2>()
            .0
            .iter()
            .map(|[high, low]| digit(*high) << 4 | digit(*low))
            .collect();
        bench.send_bytes(&[b"RESTORE", b"x", b"0", &bytes, b"REPLACE"])
    }

    #[test]
    fn streams_of_redis_are_read() {
        let mut bench = Bench::new();
        assert_eq!(restore_digits(&mut bench, COUNTED), b"+OK\r\n");
        bench.talk(&[
            (
                "XRANGE x - +",
                "*3|*2|$3|1-0|*2|$1|a|$1|1|*2|$3|2-5|*4|$1|b|$1|3|$1|c|$14|long-long-text|*2|$3|4-0|*2|$1|a|$1|4|",
            ),
            (
                "XINFO GROUPS x",
                "*2|*12|$4|name|$1|g|$9|consumers|:2|$7|pending|:2|$17|last-delivered-id|$3|2-5|$12|entries-read|$-1|\
                 $3|lag|$-1|*12|$4|name|$1|h|$9|consumers|:0|$7|pending|:0|$17|last-delivered-id|$3|2-7|$12|entries-read|\
                 $-1|$3|lag|$-1|",
            ),
            ("XPENDING x g", "*4|:2|$3|1-0|$3|2-5|*1|*2|$1|c|$1|2|"),
            ("XACK x g 1-0 2-5", ":2|"),
            ("XGROUP DELCONSUMER x g d", ":0|"),
            ("XADD x 5-0 a 5", "$3|5-0|"),
        ]);
        let full = bench.send("XINFO STREAM x FULL");
        for (name, value) in [("max-deleted-entry-id|", "$3|2-0|"), ("entries-added|", ":5|")] {
            assert!(full.contains(&format!("{name}{value}")), "{full}");
        }
        assert_eq!(restore_digits(&mut bench, EARLY), b"+OK\r\n");
        bench.talk(&[
            ("XRANGE x - +", "*2|*2|$3|5-0|*2|$4|data|$1|e|*2|$3|6-0|*2|$4|data|$1|f|"),
            ("XPENDING x g1", "*4|:4|$3|1-0|$3|5-0|*1|*2|$3|c11|$1|4|"),
            (
                "XINFO GROUPS x",
                "*2|*12|$4|name|$2|g1|$9|consumers|:1|$7|pending|:4|$17|last-delivered-id|$3|5-0|$12|entries-read|:1|\
                 $3|lag|:1|*12|$4|name|$2|g2|$9|consumers|:0|$7|pending|:0|$17|last-delivered-id|$3|0-0|$12|entries-read|\
                 :0|$3|lag|:2|",
            ),
        ]);
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

    #[test]
    fn the_latest_expiry_is_no_negative_number() {
        let mut bench = Bench::new();
        bench.talk(&[("SET s v", "+OK|")]);
        let dumped = bench.send_bytes(&[b"DUMP", b"s"]);
        let start = dumped.iter().position(|byte| *byte == b'\n').expect("a header") + 1;
        let latest = b"9223372036854775807";
        let bytes = &dumped[start..dumped.len() - 2];
        assert_eq!(bench.send_bytes(&[b"RESTORE", b"k", latest, bytes]), b"+OK\r\n");
        bench.talk(&[("PEXPIRETIME k", ":9223372036854775807|")]);
    }
}
