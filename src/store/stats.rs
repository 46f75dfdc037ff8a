//! Statistics of commands and errors since the last CONFIG RESETSTAT, for INFO commandstats, errorstats and
//! latencystats, and for LATENCY HISTOGRAM.
//!
//! ```text
//!     Call::run ── begin ... end ─> Figures: calls, time, failures, rejections ── Times: one count per range of time
//!     refusal ───── count_error ──> errors by their codes
//! ```
//!
//! The owner's clock is read once for each command: a command begins where the one before it ended, or with the turn.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::directory::Directory;
use super::slow_log::Clock;
use crate::protocol::Arguments;
use crate::protocol::command;
use crate::values::Timestamp;

/// The most error codes that are counted separately; errors with further codes count only in total, because
/// scripts may make up any number of codes.
const CODES_MAX: usize = 128;
/// The longest error code in bytes. An error whose first word is longer counts as ERR, as in Redis.
const CODE_BYTES_MAX: usize = 31;

/// The binary logarithm of the shortest time in nanoseconds that the histograms tell apart: all times below
/// about 1 µs share one range.
const SHORTEST_LOG: u32 = 10;
/// The binary logarithm of the longest time in nanoseconds that the histograms tell apart: all times from
/// about 17 s on share the last range.
const LONGEST_LOG: u32 = 34;
/// The number of ranges of the histogram between a time and twice that time.
const STEPS: usize = 16;
const RANGES: usize = 1 + (LONGEST_LOG - SHORTEST_LOG) as usize * STEPS;

/// A histogram of the times of a command's calls: the number of calls by range of time. The width of the
/// ranges grows with the time.
#[derive(Clone, Debug)]
pub(super) struct Times(Box<[u64; RANGES]>);

impl Times {
    fn new() -> Self {
        Self(Box::new([0; RANGES]))
    }

    fn add(&mut self, nanos: u64) {
        self.0[range_of(nanos)] += 1;
    }

    /// Returns the number of calls in the histogram.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the time in microseconds that `percent` percent of the calls in the histogram did not exceed,
    /// rounded up to the end of its range.
    pub(super) fn percentile(&self, percent: f64) -> f64 {
        let total = self.total();
        let wanted = ((total as f64 * percent / 100.0).ceil() as u64).clamp(1, total.max(1));
        let mut met = 0;
        let found = self.0.iter().position(|calls| {
            met += calls;
            met >= wanted
        });
        longest_of(found.unwrap_or(0)) as f64 / 1_000.0
    }

    /// Returns pairs of a time in microseconds and the number of calls that took at most that time, as
    /// LATENCY HISTOGRAM shows them: each time is about twice the one before, and times that add no calls are
    /// left out.
    pub(super) fn distribution(&self) -> Vec<(u64, u64)> {
        let mut pairs = Vec::new();
        let (mut met, mut shown) = (0, 0);
        for (octave, ranges) in std::iter::once(&self.0[..1]).chain(self.0[1..].chunks(STEPS)).enumerate() {
            met += ranges.iter().sum::<u64>();
            if met > shown {
                // Redis's histogram has ranges of 8/1024 of their time, and shows the end of each range.
                pairs.push((((1_032 << octave) - 1) / 1_000, met));
                shown = met;
            }
        }
        pairs
    }
}

/// Returns the index of the histogram range for a time in nanoseconds.
fn range_of(nanos: u64) -> usize {
    let log = nanos.max(1).ilog2();
    if log < SHORTEST_LOG {
        return 0;
    }
    if log >= LONGEST_LOG {
        return RANGES - 1;
    }
    let step = (nanos >> (log - STEPS.ilog2())) as usize % STEPS;
    1 + (log - SHORTEST_LOG) as usize * STEPS + step
}

/// Returns the longest time, in nanoseconds, that falls into the histogram range with index `range`.
fn longest_of(range: usize) -> u64 {
    let Some(range) = range.checked_sub(1) else { return (1 << SHORTEST_LOG) - 1 };
    let log = SHORTEST_LOG + (range / STEPS) as u32;
    (((STEPS + range % STEPS + 1) as u64) << (log - STEPS.ilog2())) - 1
}

/// The statistics of one command or subcommand: calls, errors and times.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) calls: u64,
    nanos: u64,
    /// The number of calls of the command whose reply was an error.
    failed: u64,
    /// The number of requests with the command that were refused before they ran.
    rejected: u64,
    /// The histogram of the times of the command's calls; `None` until a time was counted.
    pub(super) times: Option<Times>,
}

impl Figures {
    fn is_empty(&self) -> bool {
        self.calls == 0 && self.rejected == 0 && self.failed == 0
    }

    /// Returns the statistics in the form in which INFO commandstats shows them after the command's name.
    pub(super) fn line(&self) -> String {
        let Self { calls, nanos, failed, rejected, .. } = self;
        let micros = nanos / 1_000;
        let each = if *calls == 0 { 0.0 } else { *nanos as f64 / 1_000.0 / *calls as f64 };
        format!(
            "calls={calls},usec={micros},usec_per_call={each:.2},rejected_calls={rejected},failed_calls={failed}"
        )
    }
}

/// The key under which the statistics of a request are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// A command without subcommands, by its position in the directory of commands.
    Position(usize),
    /// A subcommand, by its full name such as `client|id`.
    Named(&'static str),
    /// A subcommand whose request has a wrong number of words, by its full name. The request counts as
    /// rejected.
    Misused(&'static str),
    /// A subcommand that does not exist, for which no statistics are kept.
    Unknown,
}

/// The statistics of all commands, and the number of errors by code.
pub(super) struct Stats {
    clock: Option<Clock>,
    /// The time of the last reading of the clock, or the start of the present turn (pass of the service's
    /// loop), whichever is later.
    latest: Timestamp,
    /// True if a histogram of the times of calls is kept for each command (`latency-tracking`).
    pub(super) counts_times: bool,
    /// The name of each command, by its position in the directory of commands, and the description of the
    /// command if it has subcommands.
    names: Vec<(&'static str, Option<&'static command::Command>)>,
    plain: Vec<Figures>,
    /// The statistics of subcommands by their full names.
    named: BTreeMap<&'static str, Figures>,
    /// The number of errors that clients were sent, by the error's code (its first word).
    errors: BTreeMap<Box<str>, u64>,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            clock: None,
            latest: Timestamp::ZERO,
            counts_times: true,
            names: Vec::new(),
            plain: Vec::new(),
            named: BTreeMap::new(),
            errors: BTreeMap::new(),
        }
    }
}

impl std::fmt::Debug for Stats {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Stats").field("errors", &self.errors).finish_non_exhaustive()
    }
}

impl Stats {
    /// Creates empty statistics for the commands of a directory.
    pub(super) fn new<T>(directory: &Directory<T>) -> Self {
        let has_subcommands = |name: &str| {
            let rest =
                |known: &command::Command| known.name.strip_prefix(name).map(|rest| rest.starts_with('|'));
            command::all().iter().any(|known| rest(known) == Some(true))
        };
        let container = |name: &str| {
            command::all().iter().find(|known| known.name == name).filter(|_| has_subcommands(name))
        };
        let names: Vec<_> = directory.names().map(|name| (name, container(name))).collect();
        let plain = vec![Figures::default(); names.len()];
        Self { names, plain, ..Self::default() }
    }

    pub(super) fn set_clock(&mut self, clock: &Clock) {
        self.clock = Some(Rc::clone(clock));
    }

    /// Begins a request; `turn` is the time at which the present turn (pass of the service's loop) began.
    pub(super) fn begin_request(&mut self, turn: Timestamp) {
        self.latest = self.latest.max(turn);
    }

    /// Resets all statistics of commands and all counts of errors.
    pub(super) fn reset(&mut self) {
        self.plain.fill(Figures::default());
        self.named.clear();
        self.errors.clear();
    }

    /// Returns the key under which the statistics of a request are kept; `position` is that of its command in
    /// the directory of commands.
    pub(super) fn slot(&self, position: usize, arguments: Arguments<'_>) -> Slot {
        match self.names.get(position) {
            Some((_, Some(container))) => match container.resolve(&arguments) {
                Ok(found) if found.arity_fits(arguments.len()) => Slot::Named(found.name),
                Ok(found) => Slot::Misused(found.name),
                Err(_) => Slot::Unknown,
            },
            Some((_, None)) => Slot::Position(position),
            None => Slot::Unknown,
        }
    }

    /// Returns the start time of a command that begins now: the time at which the one before it ended, or at
    /// which the present turn (pass of the service's loop) began.
    pub(super) fn begin(&self) -> Timestamp {
        self.latest
    }

    /// Counts in `slot` a call that began at `began`, and whether it `failed`, and returns its duration in
    /// nanoseconds; 0 without a clock. A subcommand with a wrong number of words counts as rejected instead.
    pub(super) fn end(&mut self, slot: Slot, began: Timestamp, failed: bool) -> u64 {
        if let Some(clock) = &self.clock {
            self.latest = clock();
        }
        let (nanos, counts_times) = (self.latest.nanos_since(began), self.counts_times);
        if matches!(slot, Slot::Misused(_)) {
            self.reject(slot);
            return nanos;
        }
        let Some(figures) = self.figures(slot) else { return nanos };
        figures.calls += 1;
        figures.nanos += nanos;
        figures.failed += u64::from(failed);
        if counts_times {
            figures.times.get_or_insert_with(Times::new).add(nanos);
        }
        nanos
    }

    /// Counts an error reply to a blocking call that had waited, and that was counted as a call when its wait
    /// began; `slot` is the key of the statistics of the call's command.
    pub(super) fn fail(&mut self, slot: Slot) {
        if let Some(figures) = self.figures(slot) {
            figures.failed += 1;
        }
    }

    /// Counts a request that was refused before it ran; `slot` is the key of its statistics.
    pub(super) fn reject(&mut self, slot: Slot) {
        if let Some(figures) = self.figures(slot) {
            figures.rejected += 1;
        }
    }

    /// Counts an error reply by its code, the first word of its text, or as `ERR` if that is no code. New
    /// codes are not counted once 128 are known.
    pub(super) fn count_error(&mut self, text: &[u8]) {
        let word = text.split(|byte| *byte == b' ').next().filter(|word| word.len() < text.len());
        let word = word.filter(|word| word.len() <= CODE_BYTES_MAX && word.iter().all(u8::is_ascii_graphic));
        let code = word.and_then(|word| std::str::from_utf8(word).ok()).unwrap_or("ERR");
        if let Some(count) = self.errors.get_mut(code) {
            *count += 1;
        } else if self.errors.len() < CODES_MAX {
            self.errors.insert(code.into(), 1);
        }
    }

    /// Returns the error codes and the number of error replies with each.
    pub(super) fn errors(&self) -> impl Iterator<Item = (&str, u64)> {
        self.errors.iter().map(|(code, count)| (&**code, *count))
    }

    /// Returns the names and statistics of all commands and subcommands that were called or rejected.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, &Figures)> {
        let plain = self.names.iter().map(|(name, _)| *name).zip(&self.plain);
        plain
            .chain(self.named.iter().map(|(name, figures)| (*name, figures)))
            .filter(|(_, figures)| !figures.is_empty())
    }

    fn figures(&mut self, slot: Slot) -> Option<&mut Figures> {
        match slot {
            Slot::Position(position) => self.plain.get_mut(position),
            Slot::Named(name) | Slot::Misused(name) => Some(self.named.entry(name).or_default()),
            Slot::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::bench::Bench;

    /// Returns a bench whose clock advances by 1 ms with each reading.
    fn timed() -> Bench {
        let mut bench = Bench::new();
        let time = std::cell::Cell::new(0);
        bench.engine = bench.engine.with_clock(move || {
            time.set(time.get() + 1_000_000);
            Timestamp::from_nanos(time.get())
        });
        bench.send("CONFIG SET slowlog-log-slower-than -1");
        bench.send("CONFIG RESETSTAT");
        bench
    }

    fn figure(bench: &mut Bench, section: &str, field: &str) -> String {
        let info = bench.send(&format!("INFO {section}"));
        let line = info.split('|').find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or("none").to_owned()
    }

    #[test]
    fn calls_failures_and_rejections_are_counted() {
        let mut bench = timed();
        for line in ["SET a b", "INCR a", "INCR", "MULTI", "SET a 1", "INCR a", "EXEC"] {
            bench.send(line);
        }
        let mut shown = |name: &str| figure(&mut bench, "commandstats", &format!("cmdstat_{name}"));
        assert_eq!(shown("set"), "calls=2,usec=2000,usec_per_call=1000.00,rejected_calls=0,failed_calls=0");
        assert_eq!(shown("incr"), "calls=2,usec=2000,usec_per_call=1000.00,rejected_calls=1,failed_calls=1");
        assert!(shown("exec").starts_with("calls=1,usec=3000,"));
        assert_eq!(shown("get"), "none");
        assert_eq!(figure(&mut bench, "errorstats", "errorstat_ERR"), "count=2");
        assert_eq!(figure(&mut bench, "stats", "total_error_replies"), "2");
        bench.send("CONFIG RESETSTAT");
        assert_eq!(figure(&mut bench, "errorstats", "errorstat_ERR"), "none");
        assert_eq!(figure(&mut bench, "stats", "total_error_replies"), "0");
        assert_eq!(bench.engine.statistics().errors, 2, "metrics only grow");
    }

    #[test]
    fn an_error_within_a_script_counts_once() {
        let mut bench = timed();
        bench.send_bytes(&[b"EVAL", b"return redis.call('incr','a','b')", b"0"]);
        bench.send_bytes(&[b"EVAL", b"redis.call('set','a','x') return redis.pcall('incr','a')", b"0"]);
        bench.send_bytes(&[b"EVAL", b"return redis.error_reply('MINE is this')", b"0"]);
        let mut shown = |name: &str| figure(&mut bench, "commandstats", &format!("cmdstat_{name}"));
        assert!(shown("eval").ends_with("rejected_calls=0,failed_calls=3"), "{}", shown("eval"));
        assert!(shown("incr").ends_with("rejected_calls=1,failed_calls=1"), "{}", shown("incr"));
        assert_eq!(figure(&mut bench, "errorstats", "errorstat_ERR"), "count=2");
        assert_eq!(figure(&mut bench, "errorstats", "errorstat_MINE"), "count=1");
    }

    #[test]
    fn codes_of_errors_are_bounded() {
        let mut stats = Stats::default();
        for number in 0..1_000 {
            stats.count_error(format!("CODE{number} text").as_bytes());
        }
        stats.count_error(&[b'X'; 1_000]);
        assert_eq!(stats.errors().count(), CODES_MAX);
    }

    #[test]
    fn ranges_of_times_have_no_gaps() {
        for range in 0..RANGES - 1 {
            assert_eq!(range_of(longest_of(range)), range);
            assert_eq!(range_of(longest_of(range) + 1), range + 1);
        }
        assert_eq!(range_of(u64::MAX), RANGES - 1);
        let mut times = Times::new();
        (0..100).for_each(|_| times.add(3_000));
        times.add(1_000_000);
        assert_eq!(times.distribution(), [(4, 100), (1_056, 101)]);
        assert!((3.0..3.2).contains(&times.percentile(50.0)), "{}", times.percentile(50.0));
        assert!((1_000.0..1_060.0).contains(&times.percentile(100.0)));
    }

    #[test]
    fn times_are_shown_by_command() {
        let mut bench = timed();
        bench.talk(&[
            ("SET a b", "+OK|"),
            ("CLIENT ID", ":1|"),
            ("LATENCY HISTOGRAM set nosuch", "*2|$3|set|*4|$5|calls|:1|$14|histogram_usec|*2|:1056|:1|"),
            ("LATENCY HISTOGRAM client", "*2|$9|client|id|*4|$5|calls|:1|$14|histogram_usec|*2|:1056|:1|"),
            ("CONFIG SET latency-tracking-info-percentiles 50.0", "+OK|"),
        ]);
        assert!(figure(&mut bench, "latencystats", "latency_percentiles_usec_set").starts_with("p50=10"));
        bench.send("CONFIG RESETSTAT");
        bench.send("CONFIG SET latency-tracking no");
        bench.send("SET a b");
        assert_eq!(bench.send("LATENCY HISTOGRAM set"), "*0|");
    }
}
