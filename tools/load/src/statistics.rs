//! Counts and latencies: each thread counts for a second, and the main thread adds the threads' counts up.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::classify::Ending;

/// The smallest step between latencies in the histograms, in nanoseconds. Latencies are kept to three
/// digits, up to an hour.
const LATENCY_NANOS_MIN: u64 = 100;
const LATENCY_NANOS_MAX: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;
/// Maximum number of kinds of error replies that are counted separately; further kinds are counted as
/// `other`.
const KINDS_MAX: usize = 16;
const OTHER_KINDS: &str = "other";

/// Numbers of requests by how they ended. Every offered request (due by the schedule) ends in exactly one of
/// these counts; `sent`, `retries`, `lost`, `may_have_happened` and `served_in_time` are additional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of requests that were due by the schedule, whether sent or not.
    pub offered: u64,
    /// Number of requests that were sent at least once, retries not counted.
    pub sent: u64,
    /// Number of requests whose reply was not an error. An array with errors in it, such as that of MGET, counts as the
    /// first of them.
    pub served: u64,
    /// Number of requests that ended with the refusal `-THROTTLED`.
    pub throttled: u64,
    /// Number of requests that ended with the refusal `-OVERLOADED`.
    pub overloaded: u64,
    /// Number of requests that ended with the refusal `-DEADLINE`.
    pub deadline: u64,
    /// Number of requests that ended with the refusal `-UNAVAILABLE`.
    pub unavailable: u64,
    /// Number of requests that ended with an error reply other than weir's refusals, or whose connection was
    /// lost.
    pub errors: u64,
    /// Number of requests that were not answered in time, or never sent.
    pub timeouts: u64,
    /// Number of requests that a smart client did not send, in order to spare the target.
    pub refused_by_client: u64,
    /// Number of times that a request was sent again after a first attempt.
    pub retries: u64,
    /// Number of requests, a part of `errors`, that ended without a reply because the connection was lost.
    pub lost: u64,
    /// Number of times that a request was sent and not served, and may have been carried out nevertheless: its
    /// connection was lost, no reply came in time, the error says so, or only parts of the reply are errors.
    pub may_have_happened: u64,
    /// Number of requests that were served during this phase, even if they were due in an earlier one.
    /// Replies after the group's last phase count in no phase. Divided by the length of the phase, this is
    /// the rate `/s` of the reports.
    pub served_in_time: u64,
}

impl Counts {
    /// Returns names and values of the counts in the order of the reports: `offered`, `sent`, and the counts
    /// by how requests ended.
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

    /// Returns names and values of the counts that are not ends of requests: `retries` (times that a request
    /// was sent again), `lost` (requests that ended with a lost connection) and `may_have_happened` (times that a
    /// request was not served and may have been carried out nevertheless).
    pub fn sends(&self) -> [(&'static str, u64); 3] {
        [("retries", self.retries), ("lost", self.lost), ("may_have_happened", self.may_have_happened)]
    }

    /// Returns the number of requests that weir refused, for any reason.
    pub const fn refused(&self) -> u64 {
        self.throttled + self.overloaded + self.deadline + self.unavailable
    }

    /// Returns the number of requests that have ended in any way.
    pub const fn ended(&self) -> u64 {
        self.served + self.refused() + self.errors + self.timeouts + self.refused_by_client
    }

    /// Adds the counts of `other` to these, each to the same count.
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
        self.may_have_happened += other.may_have_happened;
        self.served_in_time += other.served_in_time;
    }
}

/// Creates an empty histogram of latencies in nanoseconds.
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_NANOS_MIN, LATENCY_NANOS_MAX, DIGITS).expect("the bounds are constant")
}

/// Counts and latencies of some requests, usually of a group and phase in one second.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Numbers of requests by how they ended.
    pub counts: Counts,
    /// Latencies in nanoseconds of the served requests, each from the time when the request was due.
    pub served: Histogram<u64>,
    /// Latencies in nanoseconds of all requests that were not served (refused, failed, timed out or lost),
    /// each from the time when the request was due.
    pub others: Histogram<u64>,
    /// Numbers of error replies by their first word, which names the kind of error.
    pub kinds: BTreeMap<String, u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self { counts: Counts::default(), served: latencies(), others: latencies(), kinds: BTreeMap::new() }
    }
}

impl Tally {
    /// Counts a request that has ended, and records its latency (`took`).
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

    /// Counts an error reply by its kind (its first word); after 16 kinds, further ones count as `other`.
    /// The request may still be retried.
    pub fn note_kind(&mut self, kind: &str) {
        if let Some(count) = self.kinds.get_mut(kind) {
            *count += 1;
        } else {
            let kind = if self.kinds.len() < KINDS_MAX { kind } else { OTHER_KINDS };
            *self.kinds.entry(kind.to_owned()).or_default() += 1;
        }
    }

    /// Adds the counts and latencies of requests in `other` to these.
    pub fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.served.add(&other.served).expect("the bounds are the same");
        self.others.add(&other.others).expect("the bounds are the same");
        for (kind, count) in &other.kinds {
            *self.kinds.entry(kind.clone()).or_default() += count;
        }
    }

    /// True if no request and no error reply was counted.
    pub fn is_empty(&self) -> bool {
        self.counts == Counts::default() && self.kinds.is_empty()
    }

    /// Sets all counts of requests to zero and empties the histograms of latencies, to begin a new interval.
    pub fn clear(&mut self) {
        self.counts = Counts::default();
        self.served.reset();
        self.others.reset();
        self.kinds.clear();
    }

    /// Returns the latencies of all requests, served or not, in one histogram.
    pub fn all(&self) -> Histogram<u64> {
        let mut all = self.served.clone();
        all.add(&self.others).expect("the bounds are the same");
        all
    }
}

/// The latency percentiles in the reports, each as a name and a percentage.
pub const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99_9", 99.9), ("p99_99", 99.99)];

/// Returns a percentile (0 to 100), in milliseconds, of a histogram of latencies in nanoseconds; `None` if
/// the histogram is empty.
pub fn percentile_ms(histogram: &Histogram<u64>, percentile: f64) -> Option<f64> {
    (!histogram.is_empty()).then(|| histogram.value_at_percentile(percentile) as f64 / 1e6)
}

/// Counts and latencies of requests in one second of the run, of one thread or of all together.
#[derive(Clone, Debug)]
pub struct Interval {
    /// The number of the second since the start of the run, from 0.
    pub second: u32,
    /// Counts and latencies of requests, indexed by group of clients; for each group a list with the index
    /// of each phase. Phases without any event are left out.
    pub groups: Vec<Vec<(u16, Tally)>>,
}

/// Adds up the counts of requests of all threads, second by second.
#[derive(Debug)]
pub struct Joiner {
    threads: usize,
    groups: usize,
    /// The summed counts of the seconds that not all threads have reported yet, by the number of the second.
    open: BTreeMap<u32, Interval>,
    /// The number of seconds that each thread has reported so far; the maximum for a thread that has ended.
    told: Vec<u32>,
}

impl Joiner {
    /// Creates the sums for `threads` threads, each of which reports on the same `groups` groups of clients.
    pub fn new(threads: usize, groups: usize) -> Self {
        Self { threads, groups, open: BTreeMap::new(), told: vec![0; threads] }
    }

    /// Adds the counts of one second of the thread with this index; each thread reports its seconds in
    /// order.
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

    /// Records that a thread has ended: from now on, a second is complete without this thread's report.
    pub fn handle_end(&mut self, thread: usize) {
        self.told[thread] = u32::MAX;
    }

    /// Removes and returns the counts of the earliest second that all threads have reported; `None` if there
    /// is none.
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
