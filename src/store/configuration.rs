//! CONFIG GET, SET, RESETSTAT and REWRITE: values of most settings are in `settings.rs`, a few belong to
//! other parts of the store.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::FIND;
use super::events;
use super::glob;
use super::refusal::{Refusal, quoted};
use super::settings::{self, Kind, ROWS, Settings};
use crate::values::limits::ENGINE_SLOW_REQUESTS_MAX;

pub(super) const COMMANDS: &[Command] = &[command("config", -2, Effect::Read, config)];

/// The name of the setting that selects the keyspace events to publish.
const EVENTS: &str = "notify-keyspace-events";
/// The name of the setting for the least duration of a request in the slow log, in microseconds. The constant
/// below it is the name of the setting for the maximum number of entries.
const SLOWER_THAN: &str = "slowlog-log-slower-than";
const SLOW_ENTRIES: &str = "slowlog-max-len";
/// The name of the setting that limits memory: the number of bytes at which writes that need memory are
/// refused.
const MEMORY: &str = "maxmemory";

fn config(call: &mut Call<'_>) -> Done {
    if call.is(1, "get") && call.count() >= 3 {
        return get(call);
    }
    if call.is(1, "set") && call.count() >= 4 {
        return set(call);
    }
    if call.is(1, "resetstat") && call.count() == 2 {
        call.tally.reset(call.keyspace);
        return call.ok();
    }
    if call.is(1, "rewrite") && call.count() == 2 {
        return Err(Refusal::Words("ERR The server is running without a config file"));
    }
    for name in ["get", "set", "resetstat", "rewrite"] {
        if call.is(1, name) {
            return Err(Refusal::Quoting(format!(
                "ERR wrong number of arguments for 'config|{name}' command"
            )));
        }
    }
    Err(call.unknown_subcommand())
}

/// A validated value of CONFIG SET, by the part of the store that has the setting.
enum Checked {
    Events(events::Flags),
    SlowerThan(i64),
    SlowEntries(usize),
    Memory(u64),
    /// The value of any setting that no other variant names: the position of its row in the table of
    /// settings, and the text.
    Text(usize, String),
}

/// Carries out CONFIG SET. If one setting is refused, none changes.
fn set(call: &mut Call<'_>) -> Done {
    if !call.count().is_multiple_of(2) {
        return Err(Refusal::Syntax);
    }
    call.effort.spend(call.count(), ROWS.len() as u64 / 4)?;
    let names = || (2..call.count()).step_by(2);
    let mut positions = Vec::new();
    for index in names() {
        let name = call.at(index);
        let Some(position) = Settings::find(name) else {
            return Err(Refusal::Quoting(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{}'",
                quoted(name)
            )));
        };
        positions.push(position);
    }
    let mut named: Vec<(usize, bool)> = Vec::new();
    for (index, position) in names().zip(positions) {
        let name = call.at(index);
        let is_fixed = matches!(ROWS[position].kind, Kind::Immutable | Kind::Protected);
        if let Some(reason) = call.settings.check(position, b"").err().filter(|_| is_fixed) {
            return Err(failed(&quoted(name), &reason));
        }
        // A request may set a name and its alias both, as in Redis, but neither twice.
        let by_alias = ROWS[position].alias.is_some_and(|alias| name.eq_ignore_ascii_case(alias.as_bytes()));
        if named.contains(&(position, by_alias)) {
            return Err(failed(&quoted(name), "duplicate parameter"));
        }
        named.push((position, by_alias));
    }
    let mut checked = Vec::with_capacity(named.len());
    for (index, (position, _)) in names().zip(named) {
        checked.push(check(call, position, call.at(index + 1))?);
    }
    for value in checked {
        match value {
            Checked::Events(flags) => call.keyspace.events.set_flags(flags),
            Checked::SlowerThan(micros) => call.tally.slow_log.set_slower_than(micros),
            Checked::SlowEntries(entries) => call.tally.slow_log.set_entries_max(entries),
            Checked::Memory(bytes) => call.settings.bytes_max = bytes,
            Checked::Text(position, text) => call.settings.set(position, text),
        }
    }
    call.tally.stats.counts_times = call.settings.counts_times;
    call.settings.share(call.keyspace.hasher().shapes());
    call.ok()
}

fn check(call: &Call<'_>, position: usize, value: &[u8]) -> Result<Checked, Refusal> {
    let name = ROWS[position].name;
    let number =
        |least, most| settings::number_between(value, least, most).map_err(|reason| failed(name, &reason));
    Ok(match name {
        EVENTS => Checked::Events(events::parse_setting(value)?),
        SLOWER_THAN => Checked::SlowerThan(number(-1, i64::MAX)?),
        SLOW_ENTRIES => Checked::SlowEntries(number(0, ENGINE_SLOW_REQUESTS_MAX as i64)? as usize),
        MEMORY => {
            let bytes =
                settings::memory(value).ok_or_else(|| failed(name, "argument must be a memory value"))?;
            let most = call.limits.bytes_max;
            if bytes > most {
                let reason =
                    format!("the embedded store may take {most} bytes at most (--embedded-max-bytes)");
                return Err(failed(name, &reason));
            }
            Checked::Memory(bytes)
        }
        _ => {
            let text = call.settings.check(position, value).map_err(|reason| failed(name, &reason))?;
            Checked::Text(position, text)
        }
    })
}

/// Returns the error reply of CONFIG SET for the setting `name`; `reason` says why its value is refused.
fn failed(name: &str, reason: &str) -> Refusal {
    Refusal::Quoting(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}"))
}

fn get(call: &mut Call<'_>) -> Done {
    let mut wanted: Vec<(Vec<u8>, usize)> = Vec::new();
    for pattern in call.rest(2) {
        call.effort.spend(ROWS.len(), FIND)?;
        if !pattern.iter().any(|byte| b"[*?".contains(byte)) {
            wanted.extend(Settings::find(pattern).map(|position| (pattern.to_vec(), position)));
            continue;
        }
        let pattern = pattern.to_ascii_lowercase();
        for (position, row) in ROWS.iter().enumerate().filter(|(_, row)| !row.hidden) {
            for name in [Some(row.name), row.alias].into_iter().flatten() {
                if glob::matches(&pattern, name.as_bytes(), call.effort)? {
                    wanted.push((name.into(), position));
                }
            }
        }
    }
    wanted.sort();
    wanted.dedup();
    call.out.map(call.session.protocol, wanted.len());
    for (name, position) in wanted {
        call.out.bulk(&name);
        let value = value(call, position);
        call.out.bulk(value.as_bytes());
    }
    Ok(())
}

/// Returns the present value of the setting at `position` of the table of settings, as text.
fn value(call: &Call<'_>, position: usize) -> String {
    let (slower_than, entries) = call.tally.slow_log.settings();
    match ROWS[position].name {
        EVENTS => call.keyspace.events.flags().text(),
        SLOWER_THAN => slower_than.to_string(),
        SLOW_ENTRIES => entries.to_string(),
        MEMORY => call.bytes_max().to_string(),
        _ => call.settings.text(position).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn settings_are_checked_kept_and_shown() {
        let failed = |name: &str, reason: &str| {
            format!("-ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}|")
        };
        Bench::new().talk(&[
            ("CONFIG SET nosuch 1", "-ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'|"),
            ("CONFIG SET timeout 1 hz", "-ERR syntax error|"),
            ("CONFIG SET hz x", &failed("hz", "argument couldn't be parsed into an integer")),
            ("CONFIG SET hz -1", &failed("hz", "argument must be between 0 and 2147483647 inclusive")),
            ("CONFIG SET activedefrag maybe", &failed("activedefrag", "argument must be 'yes' or 'no'")),
            ("CONFIG SET databases 3", &failed("databases", "can't set immutable config")),
            ("CONFIG SET hz 1 HZ 2", &failed("HZ", "duplicate parameter")),
            ("CONFIG SET lua-time-limit 1 busy-reply-threshold 2", "+OK|"),
            ("CONFIG GET lua-time-limit", "*2|$14|lua-time-limit|$1|2|"),
            ("CONFIG SET hz 11 timeout x", &failed("timeout", "argument couldn't be parsed into an integer")),
            ("CONFIG GET hz", "*2|$2|hz|$2|10|"),
            ("CONFIG SET hz 11 Appendonly YES", "+OK|"),
            ("CONFIG GET hz appendonly", "*4|$10|appendonly|$3|yes|$2|hz|$2|11|"),
            ("CONFIG SET maxmemory-clients 5%", "+OK|"),
            ("CONFIG GET maxmemory-c*", "*2|$17|maxmemory-clients|$2|5%|"),
            ("CONFIG GET slave-pri* slave-priority", "*2|$14|slave-priority|$3|100|"),
            ("CONFIG GET key-load-dela?", "*0|"),
            ("CONFIG GET key-load-delay", "*2|$14|key-load-delay|$1|0|"),
        ]);
    }

    #[test]
    fn no_password_can_be_set_that_nobody_would_be_asked_for() {
        Bench::new().talk(&[
            ("CONFIG GET requirepass", "*2|$11|requirepass|$0||"),
            (
                "CONFIG SET requirepass secret",
                "-ERR CONFIG SET failed (possibly related to argument 'requirepass') - the embedded store has no password: \
                 weir takes users from its quota file|",
            ),
        ]);
    }

    #[test]
    fn memory_is_bounded_below_the_bound_of_the_store() {
        let mut bench = Bench::bounded(100_000);
        bench.talk(&[
            ("CONFIG GET maxmemory", "*2|$9|maxmemory|$6|100000|"),
            (
                "CONFIG SET maxmemory 1mb",
                "-ERR CONFIG SET failed (possibly related to argument 'maxmemory') - the embedded store may take 100000 \
                 bytes at most (--embedded-max-bytes)|",
            ),
            ("CONFIG SET maxmemory 1", "+OK|"),
            ("SET a b", "-OOM command not allowed when used memory > 'maxmemory'.|"),
            ("EVAL return(redis.call('set','a','b')) 0", "-OOM command not allowed when used memory > 'maxmemory'. script: 5b4a017a54a584d40d057d6612ee0a2646691a0b, on @user_script:1.|"),
            ("CONFIG SET maxmemory 0", "+OK|"),
            ("SET a b", "+OK|"),
            ("CONFIG GET maxmemory", "*2|$9|maxmemory|$6|100000|"),
        ]);
    }

    #[test]
    fn a_long_value_is_refused() {
        let mut bench = Bench::new();
        let long = "x".repeat(2_000);
        assert!(bench.send(&format!("CONFIG SET masteruser {long}")).starts_with("-ERR CONFIG SET failed"));
        assert_eq!(bench.send("CONFIG SET masteruser x"), "+OK|");
    }
}
