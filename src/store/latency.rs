//! LATENCY: the times of commands (HISTOGRAM), and a sample for each second in which a command took at least
//! `latency-monitor-threshold` (HISTORY, LATEST).

use std::collections::VecDeque;

use super::administration::{Subcommand, carry_out};
use super::call::{Call, Command, Done, Effect, command};
use super::effort::LOOK;
use super::refusal::{Refusal, quoted};
use crate::protocol::Arguments;
use crate::protocol::command::{self as table, Flags};

pub(super) const COMMANDS: &[Command] = &[command("latency", -2, Effect::Read, latency)];

/// The most samples that are kept of one LATENCY event (`command` or `fast-command`), as in Redis. A further
/// one takes the place of the oldest.
const SAMPLES_MAX: usize = 160;

/// The event of LATENCY that a slow command counts as, by whether the command has the flag `fast`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Command,
    FastCommand,
}

impl Event {
    const ALL: [Self; 2] = [Self::Command, Self::FastCommand];

    fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::FastCommand => "fast-command",
        }
    }
}

/// The samples of one event of LATENCY (slow commands, or slow commands with the flag `fast`), at most one
/// for each second.
#[derive(Debug, Default)]
struct Samples {
    /// For each second (since 1970) with a slow command, the second and the longest duration of a command in
    /// it, in milliseconds; the oldest second first.
    latest: VecDeque<(u64, u64)>,
    /// The longest duration of a command since the start or the last LATENCY RESET, in milliseconds.
    longest_ms: u64,
}

/// The durations that were recorded of slow commands, for LATENCY: for commands without the flag `fast`, and
/// for those with it.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    samples: [Samples; Event::ALL.len()],
}

impl Latencies {
    /// Records that the command `arguments` took `ms` milliseconds in the second `unix_s` (since 1970). The
    /// caller has checked that this is at least `latency-monitor-threshold`.
    pub(super) fn add(&mut self, arguments: &Arguments<'_>, unix_s: u64, ms: u64) {
        let is_fast = table::recognise(arguments).is_ok_and(|known| known.flags.contains(Flags::FAST));
        let samples = &mut self.samples[(if is_fast { Event::FastCommand } else { Event::Command }) as usize];
        samples.longest_ms = samples.longest_ms.max(ms);
        if let Some((second, longest_ms)) = samples.latest.back_mut()
            && *second == unix_s
        {
            *longest_ms = ms.max(*longest_ms);
            return;
        }
        if samples.latest.len() == SAMPLES_MAX {
            samples.latest.pop_front();
        }
        samples.latest.push_back((unix_s, ms));
    }
}

fn latency(call: &mut Call<'_>) -> Done {
    const MANY: usize = usize::MAX;
    let subcommands: &[Subcommand] = &[
        ("doctor", 2, 2, doctor),
        ("graph", 3, 3, graph),
        ("histogram", 2, MANY, histogram),
        ("history", 3, 3, history),
        ("latest", 2, 2, latest),
        ("reset", 2, MANY, reset),
    ];
    carry_out(call, "latency", subcommands)
}

fn doctor(call: &mut Call<'_>) -> Done {
    let text = "LATENCY LATEST shows commands that took longer than latency-monitor-threshold, SLOWLOG GET slow requests, \
                and weir's metrics the latency of all.\n";
    call.out.verbatim(call.session.protocol, text);
    Ok(())
}

/// Refuses LATENCY GRAPH with the error that Redis gives for an event without samples. LATENCY HISTORY shows
/// the same figures.
fn graph(call: &mut Call<'_>) -> Done {
    Err(Refusal::Quoting(format!("ERR No samples available for event '{}'", quoted(call.at(2)))))
}

fn history(call: &mut Call<'_>) -> Done {
    let event = Event::ALL.into_iter().find(|event| call.is(2, event.name()));
    let Some(event) = event else { return call.empty_array() };
    let samples = &call.tally.latencies.samples[event as usize].latest;
    call.effort.spend(samples.len(), LOOK)?;
    call.out.array(samples.len());
    for (second, ms) in samples {
        call.out.array(2);
        call.out.integer(*second as i64);
        call.out.integer(*ms as i64);
    }
    Ok(())
}

fn latest(call: &mut Call<'_>) -> Done {
    let known = || Event::ALL.into_iter().zip(&call.tally.latencies.samples);
    let filled: Vec<_> =
        known().filter_map(|(event, samples)| Some((event, samples.latest.back()?, samples))).collect();
    call.out.array(filled.len());
    for (event, (second, ms), samples) in filled {
        call.out.array(4);
        call.out.bulk(event.name().as_bytes());
        call.out.integer(*second as i64);
        call.out.integer(*ms as i64);
        call.out.integer(samples.longest_ms as i64);
    }
    Ok(())
}

/// Carries out LATENCY RESET: removes the samples of all events, or of the named ones, and replies how many
/// events had samples.
fn reset(call: &mut Call<'_>) -> Done {
    let mut forgotten = 0;
    for event in Event::ALL {
        let is_named = call.count() == 2 || (2..call.count()).any(|index| call.is(index, event.name()));
        let samples = &mut call.tally.latencies.samples[event as usize];
        if is_named && !samples.latest.is_empty() {
            *samples = Samples::default();
            forgotten += 1;
        }
    }
    call.number(forgotten)
}

/// Carries out LATENCY HISTOGRAM: shows the times of all commands, or of the named ones. The name of a
/// command with subcommands (CLIENT) stands for all its subcommands.
fn histogram(call: &mut Call<'_>) -> Done {
    let stats = &call.tally.stats;
    call.effort.spend(call.count(), call.directory.len() as u64)?;
    let is_named = |name: &str, word: &[u8]| {
        let parent = name.split('|').next().unwrap_or_default();
        word.eq_ignore_ascii_case(name.as_bytes()) || word.eq_ignore_ascii_case(parent.as_bytes())
    };
    let protocol = call.session.protocol;
    let mut listed = 0;
    for (name, figures) in stats.all() {
        let is_wanted =
            call.arguments.len() == 2 || call.arguments.iter().skip(2).any(|word| is_named(name, word));
        let Some(times) = figures.times.as_ref().filter(|_| is_wanted) else { continue };
        listed += 1;
        call.out.bulk(name.as_bytes());
        call.out.map(protocol, 2);
        call.out.bulk(b"calls");
        call.out.integer(times.total() as i64);
        call.out.bulk(b"histogram_usec");
        let distribution = times.distribution();
        call.out.map(protocol, distribution.len());
        for (micros, calls) in distribution {
            call.out.integer(micros as i64);
            call.out.integer(calls as i64);
        }
    }
    call.out.insert(0, |out| out.map(protocol, listed));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;
    use crate::values::Timestamp;

    #[test]
    fn commands_that_take_long_are_sampled_and_samples_are_bounded() {
        let mut bench = Bench::new();
        let time = std::cell::Cell::new(0);
        bench.engine = bench.engine.with_clock(move || {
            time.set(time.get() + 3_000_000);
            Timestamp::from_nanos(time.get())
        });
        bench.talk(&[
            ("SET a b", "+OK|"),
            ("LATENCY LATEST", "*0|"),
            ("CONFIG SET latency-monitor-threshold 2 slowlog-log-slower-than -1", "+OK|"),
            ("LATENCY RESET", ":1|"),
            ("GET a", "$1|b|"),
            ("LATENCY HISTORY fast-command", "*1|*2|:1700000000|:3|"),
            ("LATENCY HISTORY nosuch", "*0|"),
            ("LATENCY RESET command", ":1|"),
            ("LATENCY RESET fast-command nosuch", ":1|"),
            ("LATENCY RESET", ":1|"),
            ("CONFIG SET latency-monitor-threshold 0", "+OK|"),
            ("LATENCY LATEST", "*1|*4|$7|command|:1700000000|:3|:3|"),
            ("CONFIG SET latency-monitor-threshold 1", "+OK|"),
        ]);
        for _ in 0..200 {
            bench.send("GET a");
            bench.wait_ms(1_000);
        }
        assert!(bench.send("LATENCY HISTORY fast-command").starts_with("*160|"));
    }
}
