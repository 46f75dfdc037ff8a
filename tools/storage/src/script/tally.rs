//! Figures about the requests that the scripted store has received.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::reads::Reads;
use weir::protocol::command::{self, COMMANDS, CommandId};

/// The smallest step between service times in the histogram, in nanoseconds. Service times are kept to three
/// digits, up to an hour.
const SERVICE_NANOS_MIN: u64 = 100;
const SERVICE_NANOS_MAX: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// Counts of what a scripted store has received and done since the start of the process, or since they were
/// last reset.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) requests: u64,
    /// Number of requests that were served, including those answered with a scripted error.
    pub(super) served: u64,
    pub(super) errors_injected: u64,
    /// Number of requests that were refused because too many requests, or too many of their bytes, waited for a server.
    pub(super) requests_refused: u64,
    /// Number of requests without a reply, because their connection was closed or an outage began.
    pub(super) requests_lost: u64,
    pub(super) connections_refused: u64,
    pub(super) concurrency_max: usize,
    pub(super) queue_max: usize,
    pub(super) reads: Reads,
    commands: Vec<u64>,
    /// Service times of executed requests, in nanoseconds, except those about the connection or the server.
    /// They are the times as drawn: without stalls, waiting and late wake-ups.
    service_nanos: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            requests: 0,
            served: 0,
            errors_injected: 0,
            requests_refused: 0,
            requests_lost: 0,
            connections_refused: 0,
            concurrency_max: 0,
            queue_max: 0,
            reads: Reads::default(),
            commands: vec![0; COMMANDS],
            service_nanos: Histogram::new_with_bounds(SERVICE_NANOS_MIN, SERVICE_NANOS_MAX, DIGITS)
                .expect("the bounds are constant"),
        }
    }
}

impl Tally {
    pub(super) fn note_command(&mut self, id: CommandId) {
        self.commands[usize::from(id.0)] += 1;
    }

    pub(super) fn note_service_time(&mut self, time: Duration) {
        self.service_nanos.saturating_record(time.as_nanos() as u64);
    }

    /// Returns percentiles and other figures of the service times that were drawn, by name: a count, and
    /// times in nanoseconds.
    pub(super) fn service_times(&self) -> [(&'static str, u64); 8] {
        let times = &self.service_nanos;
        let at = |percentile| if times.is_empty() { 0 } else { times.value_at_percentile(percentile) };
        [
            ("count", times.len()),
            ("mean_ns", times.mean() as u64),
            ("p50_ns", at(50.0)),
            ("p90_ns", at(90.0)),
            ("p99_ns", at(99.0)),
            ("p99_9_ns", at(99.9)),
            ("p99_99_ns", at(99.99)),
            ("max_ns", times.max()),
        ]
    }

    /// Sets all figures to zero. Reads of keys in flight stay counted as in flight.
    pub(super) fn reset(&mut self) {
        let mut reads = std::mem::take(&mut self.reads);
        reads.reset();
        *self = Self { reads, ..Self::default() };
    }

    /// Returns how often each command was served, by name; commands that never were are left out.
    pub(super) fn commands(&self) -> Vec<(&'static str, u64)> {
        let all =
            command::all().iter().map(|command| (command.name, self.commands[usize::from(command.id().0)]));
        let mut served: Vec<_> = all.filter(|(_, count)| *count > 0).collect();
        served.sort_unstable();
        served
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_times_are_told_to_three_digits() {
        let mut tally = Tally::default();
        assert!(tally.service_times().iter().all(|(_, value)| *value == 0));
        (1..=1_000).for_each(|ms| tally.note_service_time(Duration::from_millis(ms)));
        let told = tally.service_times();
        for (name, wanted_ms) in
            [("mean_ns", 500.5), ("p50_ns", 500.0), ("p99_ns", 990.0), ("max_ns", 1_000.0)]
        {
            let (_, nanos) = told.iter().find(|(told, _)| *told == name).expect("it is told");
            assert!((*nanos as f64 / 1e6 / wanted_ms - 1.0).abs() < 0.002, "{name}: {nanos}");
        }
        tally.reset();
        assert_eq!(tally.service_times()[0], ("count", 0));
    }
}
