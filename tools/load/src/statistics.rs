//! Counts and latencies: tallied by each thread for a second, then added up.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::classify::Ending;

/// Latencies are kept in nanoseconds, to three digits, from a tenth of a microsecond to an hour.
const LATENCY_NANOS_MIN: u64 = 100;
const LATENCY_NANOS_MAX: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;
/// Kinds of errors that are told apart.
const KINDS_MAX: usize = 16;
const OTHER_KINDS: &str = "other";

/// How many requests came to what. Every offered request ends as exactly one of the others, `sent`, `retries` and
/// `lost` aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Due by the schedule.
    pub offered: u64,
    /// Of those, sent at least once.
    pub sent: u64,
    /// Answered.
    pub served: u64,
    /// `-THROTTLED`.
    pub throttled: u64,
    /// `-OVERLOADED`.
    pub overloaded: u64,
    /// `-DEADLINE`.
    pub deadline: u64,
    /// `-UNAVAILABLE`.
    pub unavailable: u64,
    /// Other error replies, and requests whose connection was lost.
    pub errors: u64,
    /// Not answered in time, or never sent.
    pub timeouts: u64,
    /// Not sent by a smart client, so as to spare the target.
    pub refused_by_client: u64,
    /// Sent again.
    pub retries: u64,
    /// Of the errors, those for which there was no reply.
    pub lost: u64,
}

impl Counts {
    /// Names and values, in the order of the reports: `offered`, and what all of it came to.
    pub fn entries(&self) -> [(&'static str, u64); 10] {
        [
            ("offered", self.offered),
            ("sent", self.sent),
            ("served", self.served),
            ("throttled", self.throttled),
            ("overloaded", self.overloaded),
            ("deadline", self.deadline),
            ("unavailable", self.unavailable),
            ("errors", self.errors),
            ("timeouts", self.timeouts),
            ("refused_by_client", self.refused_by_client),
        ]
    }

    /// What there is to know of sends beside that.
    pub fn sends(&self) -> [(&'static str, u64); 2] {
        [("retries", self.retries), ("lost", self.lost)]
    }

    /// Refusals of weir, of all kinds.
    pub const fn refused(&self) -> u64 {
        self.throttled + self.overloaded + self.deadline + self.unavailable
    }

    /// Requests whose end is known.
    pub const fn ended(&self) -> u64 {
        self.served + self.refused() + self.errors + self.timeouts + self.refused_by_client
    }

    /// Adds the other's.
    pub const fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.sent += other.sent;
        self.served += other.served;
        self.throttled += other.throttled;
        self.overloaded += other.overloaded;
        self.deadline += other.deadline;
        self.unavailable += other.unavailable;
        self.errors += other.errors;
        self.timeouts += other.timeouts;
        self.refused_by_client += other.refused_by_client;
        self.retries += other.retries;
        self.lost += other.lost;
    }
}

/// An empty histogram of latencies in nanoseconds.
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_NANOS_MIN, LATENCY_NANOS_MAX, DIGITS).expect("the bounds are constant")
}

/// What happened to some requests.
#[derive(Clone, Debug)]
pub struct Tally {
    /// How many came to what.
    pub counts: Counts,
    /// How long those that were served took, from when they were due.
    pub served: Histogram<u64>,
    /// How long all others took.
    pub others: Histogram<u64>,
    /// Error replies by their first word.
    pub kinds: BTreeMap<String, u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self { counts: Counts::default(), served: latencies(), others: latencies(), kinds: BTreeMap::new() }
    }
}

impl Tally {
    /// A request has ended.
    pub fn record(&mut self, ending: Ending, took: Duration) {
        let counts = &mut self.counts;
        counts.lost += u64::from(ending == Ending::Lost);
        let count = match ending {
            Ending::Served => &mut counts.served,
            Ending::Throttled => &mut counts.throttled,
            Ending::Overloaded => &mut counts.overloaded,
            Ending::Deadline => &mut counts.deadline,
            Ending::Unavailable => &mut counts.unavailable,
            Ending::Error | Ending::Lost => &mut counts.errors,
            Ending::Timeout => &mut counts.timeouts,
            Ending::RefusedByClient => &mut counts.refused_by_client,
        };
        *count += 1;
        let histogram = if ending == Ending::Served { &mut self.served } else { &mut self.others };
        histogram.saturating_record(took.as_nanos() as u64);
    }

    /// An error of this kind was seen; it may be repeated, or the end of its request.
    pub fn note_kind(&mut self, kind: &str) {
        if let Some(count) = self.kinds.get_mut(kind) {
            *count += 1;
        } else {
            let kind = if self.kinds.len() < KINDS_MAX { kind } else { OTHER_KINDS };
            *self.kinds.entry(kind.to_owned()).or_default() += 1;
        }
    }

    /// Adds the other's.
    pub fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.served.add(&other.served).expect("the bounds are the same");
        self.others.add(&other.others).expect("the bounds are the same");
        for (kind, count) in &other.kinds {
            *self.kinds.entry(kind.clone()).or_default() += count;
        }
    }

    /// Is there nothing in it?
    pub fn is_empty(&self) -> bool {
        self.counts == Counts::default() && self.kinds.is_empty()
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.counts = Counts::default();
        self.served.reset();
        self.others.reset();
        self.kinds.clear();
    }

    /// Served and all others in one histogram.
    pub fn all(&self) -> Histogram<u64> {
        let mut all = self.served.clone();
        all.add(&self.others).expect("the bounds are the same");
        all
    }
}

/// Percentiles as the reports name them, and what they are.
pub const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99_9", 99.9), ("p99_99", 99.99)];

/// A latency in milliseconds; nothing if there is none.
pub fn percentile_ms(histogram: &Histogram<u64>, percentile: f64) -> Option<f64> {
    (!histogram.is_empty()).then(|| histogram.value_at_percentile(percentile) as f64 / 1e6)
}

/// What one thread, or all of them, saw in one second.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Which second of the run; the first is 0.
    pub second: u32,
    /// By group and phase. Only phases in which something happened.
    pub groups: Vec<Vec<(u16, Tally)>>,
}

/// Seconds of all threads, put together again.
#[derive(Debug)]
pub struct Joiner {
    threads: usize,
    groups: usize,
    /// The seconds that some thread has yet to tell of.
    open: BTreeMap<u32, Interval>,
    /// How many seconds each thread has told of.
    told: Vec<u32>,
}

impl Joiner {
    /// For so many threads, each of which has so many groups.
    pub fn new(threads: usize, groups: usize) -> Self {
        Self { threads, groups, open: BTreeMap::new(), told: vec![0; threads] }
    }

    /// A thread tells of a second; its seconds come in order.
    pub fn handle(&mut self, thread: usize, interval: &Interval) {
        self.told[thread] = interval.second + 1;
        let groups = self.groups;
        let joined = self
            .open
            .entry(interval.second)
            .or_insert_with(|| Interval { second: interval.second, groups: vec![Vec::new(); groups] });
        for (joined, told) in joined.groups.iter_mut().zip(&interval.groups) {
            for (phase, tally) in told {
                match joined.iter_mut().find(|(known, _)| known == phase) {
                    Some((_, known)) => known.add(tally),
                    None => joined.push((*phase, tally.clone())),
                }
            }
        }
    }

    /// A thread has ended.
    pub fn handle_end(&mut self, thread: usize) {
        self.told[thread] = u32::MAX;
    }

    /// A second that all threads have told of.
    pub fn poll(&mut self) -> Option<Interval> {
        debug_assert_eq!(self.told.len(), self.threads);
        let complete = *self.told.iter().min()?;
        let entry = self.open.first_entry()?;
        (*entry.key() < complete).then(|| entry.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_count() {
        let mut tally = Tally::default();
        let outcomes = [
            Ending::Served,
            Ending::Throttled,
            Ending::Overloaded,
            Ending::Deadline,
            Ending::Unavailable,
            Ending::Error,
            Ending::Lost,
            Ending::Timeout,
            Ending::RefusedByClient,
        ];
        for ending in outcomes {
            tally.record(ending, Duration::from_millis(10));
        }
        assert_eq!(tally.counts.ended(), 9);
        assert_eq!((tally.counts.errors, tally.counts.lost), (2, 1));
        assert_eq!(tally.counts.refused(), 4);
        assert_eq!((tally.served.len(), tally.others.len(), tally.all().len()), (1, 8, 9));
    }

    #[test]
    fn latencies_are_kept_to_three_digits() {
        let mut tally = Tally::default();
        for micros in [50, 1_000, 1_000_000, 3_000_000_000_u64] {
            tally.clear();
            tally.record(Ending::Served, Duration::from_micros(micros));
            let found = percentile_ms(&tally.served, 50.0).expect("one is there") * 1_000.0;
            assert!((found / micros as f64 - 1.0).abs() < 0.002, "{micros} {found}");
        }
        assert_eq!(percentile_ms(&latencies(), 50.0), None);
    }

    #[test]
    fn kinds_of_errors_are_bounded() {
        let mut tally = Tally::default();
        (0..100).for_each(|kind| tally.note_kind(&format!("E{kind}")));
        assert!(tally.kinds.len() <= KINDS_MAX + 1);
        assert_eq!(tally.kinds.values().sum::<u64>(), 100);
    }

    #[test]
    fn a_second_is_whole_when_all_threads_have_told_of_it() {
        let told = |second| {
            let mut tally = Tally::default();
            tally.record(Ending::Served, Duration::from_millis(1));
            Interval { second, groups: vec![vec![(0, tally)]] }
        };
        let mut joiner = Joiner::new(2, 1);
        joiner.handle(0, &told(0));
        joiner.handle(0, &told(1));
        assert!(joiner.poll().is_none());
        joiner.handle(1, &told(0));
        let whole = joiner.poll().expect("both have told");
        assert_eq!((whole.second, whole.groups[0][0].1.counts.served), (0, 2));
        assert!(joiner.poll().is_none());
        joiner.handle_end(1);
        joiner.handle_end(0);
        assert_eq!(joiner.poll().map(|interval| interval.second), Some(1));
    }
}
