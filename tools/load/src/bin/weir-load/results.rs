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
    /// Number of requests that became due since the start of the load and had not ended by the end of this
    /// second, whether by a reply or otherwise (such as a timeout).
    pub open: u64,
}

/// Results of one group of clients, and of each of its phases.
pub struct GroupResult {
    pub name: String,
    pub phases: Vec<PhaseResult>,
    pub total: Tally,
}

pub struct PhaseResult {
    pub name: String,
    /// The time that the phase was planned to last.
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
        let mut all = Tally::default();
        let mut moments = Vec::new();
        for (group, told) in self.groups.iter_mut().zip(&interval.groups) {
            let mut second = Tally::default();
            for (phase, tally) in told {
                group.phases[usize::from(*phase)].tally.add(tally);
                second.add(tally);
            }
            group.total.add(&second);
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

    fn took(&self) -> Duration {
        self.summary.as_ref().map_or(Duration::ZERO, |summary| summary.took)
    }

    /// Returns the time over which requests became due: the planned time, or a shorter one if the run ended
    /// early.
    pub fn duration(&self) -> Duration {
        self.description.duration.min(self.took())
    }

    /// Returns the time over which requests of the group became due: the sum of its phases, or a shorter time
    /// if the run ended early.
    pub fn duration_of(&self, group: &GroupResult) -> Duration {
        group.phases.iter().map(|phase| phase.duration).sum::<Duration>().min(self.took())
    }

    /// Returns the phases of the group, each with the time that it lasted: its planned time, or a shorter one,
    /// at least zero, if the run ended early.
    pub fn phases_of<'group>(
        &self,
        group: &'group GroupResult,
    ) -> impl Iterator<Item = (&'group PhaseResult, Duration)> {
        let mut left = self.took();
        group.phases.iter().map(move |phase| {
            let duration = phase.duration.min(left);
            left -= duration;
            (phase, duration)
        })
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

/// Returns the rate `/s` of the reports for a phase, a group or all groups together: the requests counted in
/// `tally` that were served during the load time, divided by that time (`duration`) in seconds.
pub fn goodput(tally: &Tally, duration: Duration) -> f64 {
    let served = tally.counts.served_in_time as f64;
    if duration.is_zero() { 0.0 } else { served / duration.as_secs_f64() }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// Returns the results of a run that took `took` seconds, with the group `short` of one phase of a second,
    /// and the group `long` of two phases of two seconds each.
    pub fn two_groups(took: f64) -> Results {
        let phases = |lengths: &[f64]| -> Vec<_> {
            lengths.iter().enumerate().map(|(at, length)| (format!("phase {at}"), seconds(*length))).collect()
        };
        let mut results = Results::new(Description {
            targets: vec!["127.0.0.1:7379".to_owned()],
            seed: 1,
            duration: seconds(4.0),
            groups: vec![("short".to_owned(), phases(&[1.0])), ("long".to_owned(), phases(&[2.0, 2.0]))],
            closed: false,
        });
        let tally = |served_in_time, served| {
            let counts = Counts { offered: served, served, served_in_time, ..Counts::default() };
            Tally { counts, ..Tally::default() }
        };
        let groups = vec![vec![(0, tally(1_000, 1_500))], vec![(0, tally(200, 200)), (1, tally(100, 100))]];
        results.take(&Interval { second: 0, groups });
        let summary = LoadSummary {
            connections: 2,
            started: true,
            start_unix_ms: 1,
            took: seconds(took),
            cpu: Duration::ZERO,
            interrupted: took < 4.0,
            complaints: Vec::new(),
        };
        results.finish(summary, Vec::new());
        results
    }

    #[test]
    fn rates_are_per_second_of_each_ones_own_time() {
        let rates = |took| {
            let results = two_groups(took);
            let groups = results.groups.iter().map(|group| goodput(&group.total, results.duration_of(group)));
            let phases = results.phases_of(&results.groups[1]);
            let phases = phases.map(|(phase, duration)| goodput(&phase.tally, duration));
            (
                groups.collect::<Vec<_>>(),
                phases.collect::<Vec<_>>(),
                goodput(&results.total, results.duration()),
            )
        };
        // The last second of 5 is that in which the last replies are awaited.
        assert_eq!(rates(5.0), (vec![1_000.0, 75.0], vec![100.0, 50.0], 325.0));
        // The run was interrupted in the middle of the longer group's second phase, or at its first one.
        assert_eq!(rates(3.0), (vec![1_000.0, 100.0], vec![100.0, 100.0], 1_300.0 / 3.0));
        assert_eq!(rates(0.5), (vec![2_000.0, 600.0], vec![400.0, 0.0], 2_600.0));
    }
}
