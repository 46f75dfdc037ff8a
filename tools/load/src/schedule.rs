//! The schedule of a group of clients: when its requests are due. It depends on no reply, which makes the
//! loop open.

use std::time::Duration;

use super::rate::Rate;
use weir::values::Random;
use weir::values::Timestamp;

/// The way in which the requests of a group of clients are spread over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// Requests are due at equal distances in time, as far as the rate is constant.
    #[default]
    Even,
    /// Requests are due at random times, independently of each other, like those of many users.
    Poisson,
    /// A request is sent when an earlier one was answered, so there is no rate.
    Closed,
}

/// The moment at which a request is due, and its phase (part of its group's time).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The time at which the request is due, counted from the start of the load.
    pub at: Timestamp,
    /// The index of the phase (part of its group's time) that the request belongs to.
    pub phase: u16,
}

#[derive(Clone, Debug)]
struct Stretch {
    phase: u16,
    start_seconds: f64,
    seconds: f64,
    from: f64,
    to: f64,
}

impl Stretch {
    /// Returns the number of requests that are due in the whole stretch (part of a phase in which the rate
    /// changes linearly); it may be fractional.
    fn requests(&self) -> f64 {
        self.seconds * f64::midpoint(self.from, self.to)
    }

    /// Returns the time, in seconds from the start of the stretch (part of a phase in which the rate changes
    /// linearly), at which `requests` of its requests have become due.
    fn time_of(&self, requests: f64) -> f64 {
        if requests <= 0.0 {
            return 0.0;
        }
        let growth = (self.to - self.from) / self.seconds;
        let root = (self.from * self.from + 2.0 * growth * requests).max(0.0).sqrt();
        (2.0 * requests / (self.from + root)).min(self.seconds)
    }
}

/// The times at which the requests of one group on one thread are due, in order.
#[derive(Clone, Debug)]
pub struct Schedule {
    stretches: std::rc::Rc<[Stretch]>,
    arrivals: Arrivals,
    random: Random,
    at: usize,
    /// The number of requests of the current stretch (part of a phase in which the rate changes linearly)
    /// that have become due so far; it may be fractional.
    come: f64,
    next: Option<Due>,
}

impl Schedule {
    /// Creates the schedule of the thread with index `thread` of `threads`, over which the rates are spread
    /// evenly. `phases`, each with its rate and length, follow each other.
    pub fn new(
        phases: &[(Rate, Duration)],
        arrivals: Arrivals,
        (thread, threads): (usize, usize),
        mut random: Random,
    ) -> Self {
        let mut stretches = Vec::new();
        let mut start_seconds = 0.0;
        for (phase, (rate, length)) in phases.iter().enumerate() {
            for (share, from, to) in rate.stretches() {
                let seconds = length.as_secs_f64() * share;
                let (from, to) = (from / threads as f64, to / threads as f64);
                stretches.push(Stretch { phase: phase as u16, start_seconds, seconds, from, to });
                start_seconds += seconds;
            }
        }
        let first = match arrivals {
            Arrivals::Even => thread as f64 / threads as f64,
            Arrivals::Poisson => random.exponential(),
            Arrivals::Closed => f64::INFINITY,
        };
        let mut schedule =
            Self { stretches: stretches.into(), arrivals, random, at: 0, come: 0.0, next: None };
        schedule.step(first);
        schedule
    }

    /// Returns when the next request will be due, without removing it; `None` after the last.
    pub fn peek(&self) -> Option<Due> {
        self.next
    }

    /// Removes and returns the next request if it is due by `until`, a time since the start of the load;
    /// else `None`.
    pub fn take_due(&mut self, until: Timestamp) -> Option<Due> {
        let due = self.next.filter(|due| due.at <= until)?;
        let more = match self.arrivals {
            Arrivals::Poisson => self.random.exponential(),
            Arrivals::Even | Arrivals::Closed => 1.0,
        };
        self.step(more);
        Some(due)
    }

    fn step(&mut self, mut more: f64) {
        self.next = loop {
            let Some(stretch) = self.stretches.get(self.at) else { break None };
            if self.come + more < stretch.requests() {
                self.come += more;
                let seconds = stretch.start_seconds + stretch.time_of(self.come);
                break Some(Due { at: Timestamp::from_nanos((seconds * 1e9) as u64), phase: stretch.phase });
            }
            more -= stretch.requests() - self.come;
            self.come = 0.0;
            self.at += 1;
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREVER: Timestamp = Timestamp::from_nanos(u64::MAX);

    fn all(phases: &[(Rate, Duration)], arrivals: Arrivals) -> Vec<Due> {
        let mut schedule = Schedule::new(phases, arrivals, (0, 1), Random::new(5));
        std::iter::from_fn(|| schedule.take_due(FOREVER)).collect()
    }

    #[test]
    fn a_constant_rate_is_kept_to_the_request() {
        let due = all(&[(Rate::constant(50_000.0), Duration::from_secs(10))], Arrivals::Even);
        assert_eq!(due.len(), 500_000);
        for (index, due) in due.iter().enumerate() {
            assert!(due.at.as_nanos().abs_diff(index as u64 * 20_000) <= 1, "{index}");
        }
    }

    #[test]
    fn phases_follow_each_other() {
        let second = Duration::from_secs(1);
        let due = all(
            &[
                (Rate::constant(10.0), second),
                (Rate::constant(0.0), second),
                (Rate::Steps(vec![100.0, 200.0]), second),
            ],
            Arrivals::Even,
        );
        let of = |phase| due.iter().filter(|due| due.phase == phase).count();
        assert_eq!((of(0), of(1), of(2)), (10, 0, 150));
        let late = Timestamp::from_millis(2_500);
        assert_eq!(due.iter().filter(|due| due.at >= late).count(), 100);
        assert!(due.is_sorted_by_key(|due| due.at));
    }

    #[test]
    fn a_ramp_grows_evenly() {
        for (from, to) in [(0.0, 1_000.0), (1_000.0, 0.0)] {
            let due = all(&[(Rate::Ramp(from, to), Duration::from_secs(10))], Arrivals::Even);
            assert_eq!(due.len(), 5_000);
            let first_half = due.iter().filter(|due| due.at < Timestamp::from_millis(5_000)).count();
            let expected = if from < to { 1_250 } else { 3_750 };
            assert!(first_half.abs_diff(expected) <= 1, "{first_half}");
        }
    }

    #[test]
    fn poisson_arrivals_vary_as_they_should() {
        let due = all(&[(Rate::constant(1_000.0), Duration::from_secs(100))], Arrivals::Poisson);
        assert!(due.len().abs_diff(100_000) < 1_600, "five standard deviations: {}", due.len());
        let mut tenths = vec![0.0_f64; 1_000];
        due.iter().for_each(|due| tenths[(due.at.as_nanos() / 100_000_000) as usize] += 1.0);
        let variance = tenths.iter().map(|count| (count - 100.0).powi(2)).sum::<f64>() / 1_000.0;
        assert!((variance / 100.0 - 1.0).abs() < 0.25, "variance equals mean: {variance}");
    }

    #[test]
    fn threads_share_a_schedule() {
        let phases = [(Rate::constant(999.0), Duration::from_secs(1))];
        let mut due: Vec<Due> = (0..4)
            .flat_map(|thread| {
                let mut own = Schedule::new(&phases, Arrivals::Even, (thread, 4), Random::new(1));
                std::iter::from_fn(move || own.take_due(FOREVER)).collect::<Vec<_>>()
            })
            .collect();
        due.sort_by_key(|due| due.at);
        assert_eq!(due.len(), 999);
        assert!(
            due.windows(2)
                .all(|pair| (900_000..1_100_000).contains(&pair[1].at.since(pair[0].at).as_nanos()))
        );
    }

    #[test]
    fn nothing_is_due_before_its_time() {
        let phases = [(Rate::constant(10.0), Duration::from_secs(1))];
        let mut schedule = Schedule::new(&phases, Arrivals::Even, (0, 1), Random::new(1));
        assert!(schedule.take_due(Timestamp::from_millis(50)).is_some());
        assert_eq!(schedule.take_due(Timestamp::from_millis(50)), None);
        assert_eq!(schedule.peek().map(|due| due.at), Some(Timestamp::from_millis(100)));
    }

    #[test]
    fn a_closed_loop_has_no_schedule() {
        assert_eq!(all(&[(Rate::constant(10.0), Duration::from_secs(1))], Arrivals::Closed), []);
    }
}
