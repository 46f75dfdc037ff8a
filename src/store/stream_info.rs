//! XINFO: the state of a stream, its groups and their consumers.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::{FIND, LOOK};
use super::log::Id;
use super::refusal::{Refusal, quoted};
use super::reply::Reply;
use super::stream::{Group, Stream};
use super::stream_groups::no_such_group;
use super::streams::{write_entries, write_entry, write_id};
use crate::protocol::Protocol;

pub(super) const COMMANDS: &[Command] = &[command("xinfo", -2, Effect::Read, xinfo)];

/// Maximum number of entries, and of pending entries of each group and consumer, that XINFO STREAM FULL shows
/// without COUNT.
const SHOWN: usize = 10;

fn xinfo(call: &mut Call<'_>) -> Done {
    let subcommand = String::from_utf8_lossy(call.at(1)).to_ascii_lowercase();
    let count = call.count();
    let (fits, run): (bool, fn(&mut Call<'_>) -> Done) = match subcommand.as_str() {
        "stream" => (count >= 3, stream),
        "groups" => (count == 3, groups),
        "consumers" => (count == 4, consumers),
        "help" => (count == 2, |call| call.empty_array()),
        _ => return Err(call.unknown_subcommand()),
    };
    if !fits {
        return Err(Refusal::Quoting(format!(
            "ERR wrong number of arguments for 'xinfo|{subcommand}' command"
        )));
    }
    run(call)
}

/// Returns the stream at the key in argument 2; an error if there is no such key or no stream.
fn named<'a>(call: &'a Call<'_>) -> Result<&'a Stream, Refusal> {
    call.keyspace.peek_as::<Stream>(call.at(2))?.ok_or(Refusal::NoSuchKey)
}

fn stream(call: &mut Call<'_>) -> Done {
    let shown = match call.count() {
        3 => None,
        4 if call.is(3, "full") => Some(SHOWN),
        6 if call.is(3, "full") && call.is(4, "count") => {
            let count = usize::try_from(call.integer_at(5)?).unwrap_or(SHOWN);
            Some(if count == 0 { usize::MAX } else { count })
        }
        _ => {
            return Err(Refusal::Quoting(format!(
                "ERR unknown subcommand or wrong number of arguments for '{}'. Try XINFO HELP.",
                quoted(call.at(1))
            )));
        }
    };
    call.keyspace.read_as::<Stream>(call.at(2))?;
    let stream = call.keyspace.peek_as::<Stream>(call.arguments.at(2))?.ok_or(Refusal::NoSuchKey)?;
    let (out, protocol) = (&mut call.out, call.session.protocol);
    call.effort.spend(stream.log.len(), LOOK)?;
    let nodes = stream.log.nodes() as i64;
    out.map(protocol, if shown.is_some() { 9 } else { 10 });
    for (name, number) in
        [("length", stream.log.len() as i64), ("radix-tree-keys", nodes), ("radix-tree-nodes", nodes + 1)]
    {
        write_number(out, name, number);
    }
    for (name, id) in [("last-generated-id", stream.log.last), ("max-deleted-entry-id", stream.log.deleted)] {
        out.bulk(name.as_bytes());
        write_id(out, id);
    }
    write_number(out, "entries-added", stream.log.added as i64);
    out.bulk(b"recorded-first-entry-id");
    write_id(out, stream.log.first());
    if let Some(shown) = shown {
        out.bulk(b"entries");
        write_entries(out, call.effort, stream.log.range(Id::LEAST..=Id::GREATEST).take(shown))?;
        out.bulk(b"groups");
        out.array(stream.groups().len());
        for (name, group) in stream.groups() {
            let (consumers, pending) = (group.consumers.len(), group.pending.len());
            let of_consumers = consumers.saturating_mul(shown).min(pending);
            call.effort.spend(1 + consumers + pending.min(shown) + of_consumers, FIND)?;
            write_whole_group(out, protocol, name, (stream, group), shown);
            out.check()?;
        }
        return Ok(());
    }
    write_number(out, "groups", stream.groups().len() as i64);
    let mut ids = stream.log.range(Id::LEAST..=Id::GREATEST);
    let first = ids.next();
    for (name, entry) in [("first-entry", first), ("last-entry", ids.next_back().or(first))] {
        out.bulk(name.as_bytes());
        match entry {
            Some((id, entry)) => write_entry(out, id, entry),
            None => out.null(protocol),
        }
    }
    Ok(())
}

fn write_number(out: &mut Reply<'_>, name: &str, number: i64) {
    out.bulk(name.as_bytes());
    out.integer(number);
}

/// Writes the fields of a stream's group (last delivered id, entries read, lag) that are the same in XINFO
/// GROUPS and XINFO STREAM FULL.
fn write_progress(out: &mut Reply<'_>, protocol: Protocol, stream: &Stream, group: &Group) {
    out.bulk(b"last-delivered-id");
    write_id(out, group.last);
    for (name, number) in
        [("entries-read", group.read.map(|read| read as i64)), ("lag", group.lag(&stream.log))]
    {
        out.bulk(name.as_bytes());
        match number {
            Some(number) => out.integer(number),
            None => out.null(protocol),
        }
    }
}

fn write_whole_group(
    out: &mut Reply<'_>,
    protocol: Protocol,
    name: &[u8],
    (stream, group): (&Stream, &Group),
    shown: usize,
) {
    out.map(protocol, 7);
    out.bulk(b"name");
    out.bulk(name);
    write_progress(out, protocol, stream, group);
    write_number(out, "pel-count", group.pending.len() as i64);
    out.bulk(b"pending");
    out.array(group.pending.len().min(shown));
    for (id, pending) in group.pending.iter().take(shown) {
        out.array(4);
        write_id(out, *id);
        out.bulk(&pending.consumer);
        out.integer(pending.delivered_ms as i64);
        out.integer(pending.deliveries as i64);
    }
    out.bulk(b"consumers");
    out.array(group.consumers.len());
    for (name, consumer) in &group.consumers {
        out.map(protocol, 5);
        out.bulk(b"name");
        out.bulk(name);
        write_number(out, "seen-time", consumer.seen_ms as i64);
        write_number(out, "active-time", consumer.active_ms.map_or(-1, |active_ms| active_ms as i64));
        write_number(out, "pel-count", consumer.pending.len() as i64);
        out.bulk(b"pending");
        out.array(consumer.pending.len().min(shown));
        for id in consumer.pending.iter().take(shown) {
            let pending = group.pending.get(id);
            out.array(3);
            write_id(out, *id);
            out.integer(pending.map_or(0, |pending| pending.delivered_ms) as i64);
            out.integer(pending.map_or(0, |pending| pending.deliveries) as i64);
        }
    }
}

fn groups(call: &mut Call<'_>) -> Done {
    call.keyspace.read_as::<Stream>(call.at(2))?;
    let stream = call.keyspace.peek_as::<Stream>(call.arguments.at(2))?.ok_or(Refusal::NoSuchKey)?;
    let (out, protocol) = (&mut call.out, call.session.protocol);
    call.effort.spend(stream.groups().len(), FIND)?;
    out.array(stream.groups().len());
    for (name, group) in stream.groups() {
        out.map(protocol, 6);
        out.bulk(b"name");
        out.bulk(name);
        write_number(out, "consumers", group.consumers.len() as i64);
        write_number(out, "pending", group.pending.len() as i64);
        write_progress(out, protocol, stream, group);
    }
    Ok(())
}

fn consumers(call: &mut Call<'_>) -> Done {
    call.keyspace.read_as::<Stream>(call.at(2))?;
    if named(call)?.group(call.at(3)).is_none() {
        return Err(no_such_group(call, 2, 3));
    }
    let now_ms = call.keyspace.now_ms();
    let stream = call.keyspace.peek_as::<Stream>(call.arguments.at(2))?.ok_or(Refusal::NoSuchKey)?;
    let Some(group) = stream.group(call.arguments.at(3)) else { return Ok(()) };
    let (out, protocol) = (&mut call.out, call.session.protocol);
    call.effort.spend(group.consumers.len(), FIND)?;
    out.array(group.consumers.len());
    for (name, consumer) in &group.consumers {
        out.map(protocol, 4);
        out.bulk(b"name");
        out.bulk(name);
        write_number(out, "pending", consumer.pending.len() as i64);
        write_number(out, "idle", now_ms.saturating_sub(consumer.seen_ms) as i64);
        let inactive = consumer.active_ms.map(|active_ms| now_ms.saturating_sub(active_ms) as i64);
        write_number(out, "inactive", inactive.unwrap_or(-1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn a_stream_and_its_groups_are_described() {
        Bench::new().talk(&[
            ("XADD x 1-1 a 1", "$3|1-1|"),
            ("XGROUP CREATE x g 0", "+OK|"),
            (
                "XINFO STREAM x",
                "*20|$6|length|:1|$15|radix-tree-keys|:1|$16|radix-tree-nodes|:2|$17|last-generated-id|$3|1-1|\
                 $20|max-deleted-entry-id|$3|0-0|$13|entries-added|:1|$23|recorded-first-entry-id|$3|1-1|$6|groups|\
                 :1|$11|first-entry|*2|$3|1-1|*2|$1|a|$1|1|$10|last-entry|*2|$3|1-1|*2|$1|a|$1|1|",
            ),
            (
                "XINFO GROUPS x",
                "*1|*12|$4|name|$1|g|$9|consumers|:0|$7|pending|:0|$17|last-delivered-id|$3|0-0|$12|entries-read|\
                 $-1|$3|lag|:1|",
            ),
            ("XINFO CONSUMERS x g", "*0|"),
            ("XINFO CONSUMERS x h", "-NOGROUP No such consumer group 'h' for key name 'x'|"),
            ("XINFO STREAM nothing", "-ERR no such key|"),
        ]);
    }

    #[test]
    fn ids_and_options_are_read_as_by_redis() {
        let mut bench = Bench::new();
        for (id, reply) in [(" 1-+5", "$3|1-5|"), ("+2", "$3|2-0|"), ("\t\n3-4", "$3|3-4|")] {
            let told = bench.send_bytes(&[b"XADD", b"x", id.as_bytes(), b"a", b"1"]);
            assert_eq!(String::from_utf8_lossy(&told).replace("\r\n", "|"), reply);
        }
        bench.talk(&[
            ("XADD x +-9 a 1", "-ERR Invalid stream ID specified as stream command argument|"),
            ("XADD x ++9 a 1", "-ERR Invalid stream ID specified as stream command argument|"),
            (
                "XGROUP CREATE x g 0 FOO",
                "-ERR unknown subcommand or wrong number of arguments for 'CREATE'. Try XGROUP HELP.|",
            ),
            (
                "XREADGROUP GROUP g c STREAMS x y 0",
                "-ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.|",
            ),
            ("ZINCRBY z nx m", "-ERR syntax error|"),
        ]);
    }

    #[test]
    fn a_consumer_is_active_when_entries_become_pending_with_it() {
        let mut bench = Bench::new();
        bench.talk(&[
            ("XADD x 1-1 a 1", "$3|1-1|"),
            ("XADD x 1-2 a 2", "$3|1-2|"),
            ("XGROUP CREATE x g 0", "+OK|"),
            ("XGROUP CREATECONSUMER x g c", ":1|"),
        ]);
        bench.wait_ms(5);
        let told = |idle: u64, pending: u64, inactive: i64| {
            format!("*1|*8|$4|name|$1|c|$7|pending|:{pending}|$4|idle|:{idle}|$8|inactive|:{inactive}|")
        };
        assert_eq!(bench.send("XINFO CONSUMERS x g"), told(5, 0, -1));
        assert!(bench.send("XINFO STREAM x FULL").contains("$11|active-time|:-1|"));
        bench.send("XREADGROUP GROUP g c COUNT 1 NOACK STREAMS x >");
        assert_eq!(bench.send("XINFO CONSUMERS x g"), told(0, 0, -1));
        bench.send("XREADGROUP GROUP g c COUNT 1 STREAMS x >");
        let active = format!("$11|active-time|:{}|", bench.now.unix_ms);
        bench.wait_ms(7);
        bench.send("XREADGROUP GROUP g c STREAMS x 0");
        assert_eq!(bench.send("XINFO CONSUMERS x g"), told(0, 1, 7), "entries that it had already");
        assert!(bench.send("XINFO STREAM x FULL").contains(&active));
        bench.send("XCLAIM x g c 0 1-2");
        assert_eq!(bench.send("XINFO CONSUMERS x g"), told(0, 1, 0));
        bench.wait_ms(3);
        bench.send("XAUTOCLAIM x g c 0 0");
        assert_eq!(bench.send("XINFO CONSUMERS x g"), told(0, 1, 0));
    }
}
