//! Commands about the server as a whole: INFO, COMMAND, TIME, MEMORY; as much of them as clients and
//! benchmarks need.

use super::call::{Call, Command, Done, Effect, command};
use super::channels::Space;
use super::connection::REDIS_VERSION;
use super::numbers::Digits;
use super::refusal::{self, Refusal, quoted};
use std::fmt::Write as _;

pub(super) const COMMANDS: &[Command] = &[
    command("info", -1, Effect::Read, info),
    command("command", -1, Effect::Read, describe_commands),
    command("time", 1, Effect::Read, time),
    command("lastsave", 1, Effect::Read, lastsave),
    command("memory", -2, Effect::Read, memory),
];

impl Call<'_> {
    /// Returns the error, in Redis's words, for this command's subcommand (argument 1), which is unknown or
    /// has a wrong number of arguments.
    pub(super) fn wrong_subcommand(&self) -> Refusal {
        Refusal::Quoting(format!(
            "ERR unknown subcommand or wrong number of arguments for '{}'. Try {} HELP.",
            quoted(self.at(1)),
            String::from_utf8_lossy(self.at(0)).to_ascii_uppercase(),
        ))
    }

    /// Returns the error, in Redis's words, for this command's subcommand (argument 1), which is unknown.
    pub(super) fn unknown_subcommand(&self) -> Refusal {
        refusal::unknown_subcommand(self.arguments)
    }
}

type Section = (&'static str, fn(&Call<'_>, &mut String));

const SECTIONS: &[Section] = &[
    ("server", server_section),
    ("clients", clients_section),
    ("memory", memory_section),
    ("persistence", persistence_section),
    ("stats", stats_section),
    ("replication", replication_section),
    ("commandstats", commandstats_section),
    ("errorstats", errorstats_section),
    ("latencystats", latencystats_section),
    ("keyspace", keyspace_section),
];

/// Sections of INFO that appear only for `all`, `everything` or their own name.
const ON_REQUEST: &[&str] = &["commandstats", "latencystats"];

fn info(call: &mut Call<'_>) -> Done {
    let mut text = String::new();
    call.effort.spend(call.count(), SECTIONS.len() as u64)?;
    for (name, write) in SECTIONS {
        let by_name = (1..call.count()).any(|index| call.is(index, name));
        let everything = (1..call.count()).any(|index| call.is(index, "all") || call.is(index, "everything"));
        let default = call.count() == 1 || (1..call.count()).any(|index| call.is(index, "default"));
        if by_name || everything || default && !ON_REQUEST.contains(name) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            write(call, &mut text);
        }
    }
    call.effort.charge(text.len() as u64 / INFO_BYTES_PER_UNIT);
    call.out.verbatim(call.session.protocol, &text);
    Ok(())
}

/// The number of bytes of INFO that are computed and written per unit of effort (steps of work).
const INFO_BYTES_PER_UNIT: u64 = 4;

fn add(text: &mut String, field: &str, value: impl std::fmt::Display) {
    write!(text, "{field}:{value}\r\n").expect("a string takes all");
}

fn server_section(call: &Call<'_>, text: &mut String) {
    text.push_str("# Server\r\n");
    let uptime_s = call.now.unix_ms.saturating_sub(call.tally.started_ms.unwrap_or(0)) / 1000;
    add(text, "redis_version", REDIS_VERSION);
    add(text, "redis_mode", "standalone");
    add(text, "arch_bits", usize::BITS);
    add(text, "uptime_in_seconds", uptime_s);
    add(text, "uptime_in_days", uptime_s / 86_400);
}

fn clients_section(call: &Call<'_>, text: &mut String) {
    text.push_str("# Clients\r\n");
    add(text, "connected_clients", 1);
    let (watching, watched) = call.keyspace.interest.watches.counts();
    let waits = &call.keyspace.interest.waits;
    add(text, "blocked_clients", waits.len());
    add(text, "tracking_clients", call.keyspace.interest.tracking.clients());
    add(text, "pubsub_clients", call.post.channels.clients());
    add(text, "watching_clients", watching);
    add(text, "total_watched_keys", watched);
    let (blocking, ended_by_removal) = waits.count_keys(call.effort);
    add(text, "total_blocking_keys", blocking);
    add(text, "total_blocking_keys_on_nokey", ended_by_removal);
}

fn memory_section(call: &Call<'_>, text: &mut String) {
    text.push_str("# Memory\r\n");
    add(text, "used_memory", call.keyspace.used());
    add(text, "used_memory_dataset", call.keyspace.used());
    scripts_lines(call, text);
    add(text, "maxmemory", call.bytes_max());
    add(text, "maxmemory_policy", "noeviction");
    add(text, "mem_not_counted_for_evict", 0);
    add(text, "lazyfree_pending_objects", 0);
    add(text, "lazyfreed_objects", 0);
}

#[cfg(feature = "scripts")]
fn scripts_lines(call: &Call<'_>, text: &mut String) {
    add(text, "used_memory_lua", call.scripts.machine_bytes());
    add(text, "used_memory_vm_eval", call.scripts.machine_bytes());
    add(text, "used_memory_scripts_eval", call.scripts.bytes());
    add(text, "number_of_cached_scripts", call.scripts.known());
    let (libraries, functions) = call.scripts.functions.counts();
    add(text, "number_of_functions", functions);
    add(text, "number_of_libraries", libraries);
    add(text, "used_memory_vm_functions", call.scripts.functions.machine_bytes());
    add(text, "used_memory_functions", call.scripts.functions.bytes());
}

#[cfg(not(feature = "scripts"))]
fn scripts_lines(_: &Call<'_>, _: &mut String) {}

fn persistence_section(_: &Call<'_>, text: &mut String) {
    text.push_str("# Persistence\r\n");
    add(text, "loading", 0);
    add(text, "async_loading", 0);
    add(text, "rdb_bgsave_in_progress", 0);
    add(text, "aof_enabled", 0);
}

fn stats_section(call: &Call<'_>, text: &mut String) {
    text.push_str("# Stats\r\n");
    let counters = call.tally.since_reset(call.keyspace);
    add(text, "total_commands_processed", counters.commands);
    add(text, "expired_keys", counters.expired);
    add(text, "evicted_keys", 0);
    add(text, "keyspace_events_dropped", call.keyspace.events.dropped());
    add(text, "keyspace_hits", counters.hits);
    add(text, "keyspace_misses", counters.misses);
    add(text, "pubsub_channels", call.post.channels.names(Space::Channels).len());
    add(text, "pubsub_patterns", call.post.channels.names(Space::Patterns).len());
    add(text, "pubsubshard_channels", call.post.channels.names(Space::Shards).len());
    let (keys, items, prefixes) = call.keyspace.interest.tracking.counts();
    add(text, "tracking_total_keys", keys);
    add(text, "tracking_total_items", items);
    add(text, "tracking_total_prefixes", prefixes);
    add(text, "total_error_replies", counters.errors);
    add(text, "writes_refused_for_memory", call.tally.refused_for_memory);
    add(text, "requests_refused_for_cost", call.tally.refused_for_cost);
}

fn replication_section(_: &Call<'_>, text: &mut String) {
    text.push_str("# Replication\r\n");
    add(text, "role", "master");
    add(text, "connected_slaves", 0);
    add(text, "master_repl_offset", 0);
}

fn commandstats_section(call: &Call<'_>, text: &mut String) {
    text.push_str("# Commandstats\r\n");
    for (name, figures) in call.tally.stats.all() {
        add(text, &format!("cmdstat_{name}"), figures.line());
    }
}

fn errorstats_section(call: &Call<'_>, text: &mut String) {
    text.push_str("# Errorstats\r\n");
    for (code, count) in call.tally.stats.errors() {
        add(text, &format!("errorstat_{code}"), format_args!("count={count}"));
    }
}

fn latencystats_section(call: &Call<'_>, text: &mut String) {
    text.push_str("# Latencystats\r\n");
    for (name, figures) in call.tally.stats.all() {
        let Some(times) = &figures.times else { continue };
        let share = |percent: &f64| format!("p{percent}={:.3}", times.percentile(*percent));
        let shares: Vec<String> = call.settings.percentiles.iter().map(share).collect();
        add(text, &format!("latency_percentiles_usec_{name}"), shares.join(","));
    }
}

fn keyspace_section(call: &Call<'_>, text: &mut String) {
    text.push_str("# Keyspace\r\n");
    for (database, keys, volatile) in call.keyspace.filled() {
        add(text, &format!("db{database}"), format_args!("keys={keys},expires={volatile},avg_ttl=0"));
    }
}

fn describe_commands(call: &mut Call<'_>) -> Done {
    if call.is(1, "count") && call.count() == 2 {
        return call.number(call.directory.len());
    }
    if call.is(1, "docs") {
        call.out.map(call.session.protocol, 0);
        return Ok(());
    }
    if call.count() == 1 || ["info", "list", "help"].iter().any(|word| call.is(1, word)) {
        return call.empty_array();
    }
    Err(call.unknown_subcommand())
}

fn time(call: &mut Call<'_>) -> Done {
    let unix_ms = call.now.unix_ms;
    call.out.array(2);
    call.out.bulk(Digits::new((unix_ms / 1000) as i64).as_bytes());
    call.out.bulk(Digits::new((unix_ms % 1000 * 1000) as i64).as_bytes());
    Ok(())
}

fn lastsave(call: &mut Call<'_>) -> Done {
    call.integer((call.tally.started_ms.unwrap_or(0) / 1000) as i64)
}

fn memory(call: &mut Call<'_>) -> Done {
    for (name, run) in [
        ("doctor", memory_doctor as fn(&mut Call<'_>) -> Done),
        ("malloc-stats", memory_malloc_stats),
        // Freed values return their memory to the allocator at once, so there is nothing to purge.
        ("purge", |call| call.ok()),
        ("stats", memory_stats),
    ] {
        if call.is(1, name) && call.count() == 2 {
            return run(call);
        }
        if call.is(1, name) {
            return Err(Refusal::Quoting(format!(
                "ERR wrong number of arguments for 'memory|{name}' command"
            )));
        }
    }
    if !call.is(1, "usage") {
        return Err(call.unknown_subcommand());
    }
    if call.count() < 3 {
        return Err(Refusal::WrongArity("memory|usage"));
    }
    let mut index = 3;
    while index < call.count() {
        if !call.is(index, "samples") || index + 1 == call.count() || call.integer_at(index + 1)? < 0 {
            return Err(Refusal::Syntax);
        }
        index += 2;
    }
    match call.keyspace.peek(call.arguments.at(2)).map(super::keyspace::Entry::cost) {
        Some(bytes) => call.integer(bytes as i64),
        None => call.null(),
    }
}

fn memory_doctor(call: &mut Call<'_>) -> Done {
    let (keys, _) = call.keyspace.totals();
    let (used, most) = (call.keyspace.used(), call.bytes_max());
    let advice =
        if call.memory_left() == 0 { "Writes that need memory are refused." } else { "There is room." };
    let text = format!("{keys} keys take {used} of {most} bytes. {advice}\n");
    call.out.verbatim(call.session.protocol, &text);
    Ok(())
}

fn memory_malloc_stats(call: &mut Call<'_>) -> Done {
    call.out.verbatim(call.session.protocol, "The embedded store asks its allocator for no statistics.\n");
    Ok(())
}

/// Carries out MEMORY STATS, with those figures of Redis's that the engine has.
fn memory_stats(call: &mut Call<'_>) -> Done {
    let (keys, _) = call.keyspace.totals();
    let used = call.keyspace.used();
    #[cfg(feature = "scripts")]
    let (scripts, functions) = (call.scripts.bytes(), call.scripts.functions.bytes());
    #[cfg(not(feature = "scripts"))]
    let (scripts, functions) = (0, 0);
    let figures = [
        ("total.allocated", used),
        ("lua.caches", scripts as u64),
        ("functions.caches", functions as u64),
        ("keys.count", keys as u64),
        ("keys.bytes-per-key", used / (keys as u64).max(1)),
        ("dataset.bytes", used),
    ];
    call.out.map(call.session.protocol, figures.len());
    for (name, figure) in figures {
        call.out.bulk(name.as_bytes());
        call.out.integer(figure as i64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn memory_usage_checks_its_options() {
        Bench::new().talk(&[
            ("MEMORY USAGE k SAMPLES -1", "-ERR syntax error|"),
            ("MEMORY USAGE k SAMPLES", "-ERR syntax error|"),
            ("MEMORY USAGE k FOO 1", "-ERR syntax error|"),
            ("MEMORY USAGE k SAMPLES x", "-ERR value is not an integer or out of range|"),
            ("MEMORY USAGE k SAMPLES 0", "$-1|"),
        ]);
    }
}
