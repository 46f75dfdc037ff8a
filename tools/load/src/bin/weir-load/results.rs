//! Results of a run of the load generator, added up for the reports.

use std::time::Duration;

use weir_load::LoadSummary;
use weir_load::plan::Plan;
use weir_load::schedule::Arrivals;
use weir_load::statistics::{Counts, Interval, PERCENTILES, Tally, percentile_ms};

use super::flags::Prepared;
use super::report::hlog;
use super::scrape::Reading;

/// The description of a run: targets, seed, duration and groups of clients.
pub struct Description {
    pub targets: Vec<String>,
    pub seed: u64,
    pub duration: Duration,
    /// The groups of clients: the name of each, and the names and lengths of its phases, in order.
    pub groups: Vec<(String, Vec<(String, Duration)>)>,
    pub closed: bool,
}

impl Description {
    pub fn of(prepared: &Prepared) -> Self {
        let plan: &Plan = &prepared.plan;
        let phases = |group: &weir_load::GroupPlan| {
            group.phases.iter().map(|phase| (phase.name.clone(), phase.duration)).collect()
        };
        Self {
            targets: prepared.target_names.clone(),
            seed: plan.seed,
            duration: plan.duration(),
            groups: plan.groups.iter().map(|group| (group.name.clone(), phases(group))).collect(),
            closed: plan.groups.iter().any(|group| group.arrivals == Arrivals::Closed),
        }
    }
}

/// Latencies of the requests served in one second or in the whole run, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latencies {
    /// Latency percentiles in milliseconds: p50, p90, p99, p99.9 and p99.99; `None` if no request was
    /// served.
    pub percentiles: [Option<f64>; PERCENTILES.len()],
    pub max: Option<f64>,
}

impl Latencies {
    pub fn of(histogram: &hdrhistogram::Histogram<u64>) -> Self {
        let percentiles = PERCENTILES.map(|(_, percentile)| percentile_ms(histogram, percentile));
        Self { percentiles, max: percentile_ms(histogram, 100.0) }
    }
}

/// Counts and latencies of the requests of one second, for one group or for all groups.
#[derive(Clone, Debug)]
pub struct Moment {
    pub counts: Counts,
    pub latencies: Latencies,
}

impl Moment {
    fn of(tally: &Tally) -> Self {
        Self { counts: tally.counts, latencies: Latencies::of(&tally.served) }
    }
}

/// Results of one second of the load generator's run.
#[derive(Clone, Debug)]
pub struct Second {
    /// The number of the second since the start of the load, from 0.
    pub number: u32,
    pub all: Moment,
    pub groups: Vec<Moment>,
    /// Number of requests that had become due since the start of the load, and by the end of the second had
    /// neither a reply nor any other end.
    pub open: u64,
}

/// Results of one group of clients, and of each of its phases.
pub struct GroupResult {
    pub name: String,
    pub phases: Vec<PhaseResult>,
    pub total: Tally,
    /// Number of the group's requests served in the time in which requests became due, so not while the last
    /// replies were awaited.
    pub served_in_time: u64,
}

pub struct PhaseResult {
    pub name: String,
    pub duration: Duration,
    pub tally: Tally,
}

/// Results of a whole run, from which the reports are made.
pub struct Results {
    pub description: Description,
    pub groups: Vec<GroupResult>,
    pub total: Tally,
    pub seconds: Vec<Second>,
    /// The lines of the `HdrHistogram` interval log, one for each second and group in which requests were
    /// served.
    pub log: Vec<String>,
    pub readings: Vec<Reading>,
    pub summary: Option<LoadSummary>,
}

impl Results {
    pub fn new(description: Description) -> Self {
        let phase = |(name, duration): &(String, Duration)| PhaseResult {
            name: name.clone(),
            duration: *duration,
            tally: Tally::default(),
        };
        let groups = description.groups.iter().map(|(name, phases)| GroupResult {
            name: name.clone(),
            phases: phases.iter().map(phase).collect(),
            total: Tally::default(),
            served_in_time: 0,
        });
        Self {
            groups: groups.collect(),
            description,
            total: Tally::default(),
            seconds: Vec::new(),
            log: Vec::new(),
            readings: Vec::new(),
            summary: None,
        }
    }

    /// Adds the counts of one second to the results, and returns the results of that second.
    pub fn take(&mut self, interval: &Interval) -> Second {
        let in_time = Duration::from_secs(u64::from(interval.second)) < self.description.duration;
        let mut all = Tally::default();
        let mut moments = Vec::new();
        for (group, told) in self.groups.iter_mut().zip(&interval.groups) {
            let mut second = Tally::default();
            for (phase, tally) in told {
                group.phases[usize::from(*phase)].tally.add(tally);
                second.add(tally);
            }
            group.total.add(&second);
            group.served_in_time += if in_time { second.counts.served } else { 0 };
            if !second.served.is_empty() {
                self.log.push(hlog::line(&group.name, interval.second, &second.served));
            }
            moments.push(Moment::of(&second));
            all.add(&second);
        }
        self.total.add(&all);
        let counts = &self.total.counts;
        let open = counts.offered.saturating_sub(counts.ended());
        let second = Second { number: interval.second, all: Moment::of(&all), groups: moments, open };
        self.seconds.push(second.clone());
        second
    }

    pub fn finish(&mut self, summary: LoadSummary, readings: Vec<Reading>) {
        self.summary = Some(summary);
        self.readings = readings;
    }

    /// Returns the time over which requests became due: the planned time, or a shorter one if the run ended
    /// early.
    pub fn duration(&self) -> Duration {
        let took = self.summary.as_ref().map_or(Duration::ZERO, |summary| summary.took);
        self.description.duration.min(took)
    }

    /// Returns the number of served requests per second of the time in which requests became due, given the
    /// number served in that time.
    pub fn goodput(&self, served_in_time: u64) -> f64 {
        per_second(served_in_time, self.duration())
    }

    pub fn served_in_time(&self) -> u64 {
        self.groups.iter().map(|group| group.served_in_time).sum()
    }

    /// Returns the CPU time of the load generator per sent request or retry, in microseconds; `None` if
    /// nothing was sent.
    pub fn cpu_us_per_request(&self) -> Option<f64> {
        let counts = &self.total.counts;
        let sent = counts.sent + counts.retries;
        let cpu = self.summary.as_ref()?.cpu;
        (sent > 0).then(|| cpu.as_secs_f64() * 1e6 / sent as f64)
    }
}

pub fn per_second(count: u64, duration: Duration) -> f64 {
    if duration.is_zero() { 0.0 } else { count as f64 / duration.as_secs_f64() }
}
