//! Latency ratio of a backend: whether it is slower than it used to be, and how much of the less important
//! work is held back for it.
//!
//! The latency ratio is the usual 95th percentile of replies, divided by the present one: 1 is steady, 0.3 is
//! trouble. One value of [`LatencyRatio`] is what one core knows of one backend; what its core would do is a
//! [`Level`], and what is done is the level that cores agree on ([`agreed`]).
//!
//! | window | of a class of commands |
//! |---|---|
//! | short | the last second, or up to ten, until there are 100 replies |
//! | wide | the last ten seconds: a slow rise shows here first, because there is less chance in it |
//! | long | the last minute |
//! | reference | the long window in the better minutes (the lower quartile) of the last 15 in which there were replies |
//!
//! A level is entered one step at a time: when the ratio was below its threshold for more than a second
//! without a break, *and* requests waited all the while or twice as many were in flight as usual ("company").
//! A level is left when the ratio was 0.15 above the threshold for a second, or without company for ten.
//! That takes seconds; so that requests are refused only in company, cores tell each other a level that
//! refuses none after a slice in which requests did not wait all along and no more were in flight than usual,
//! until requests wait again all along a slice, or more than usual are in flight over about a second.
//!
//! | trap | what is done about it |
//! |---|---|
//! | few replies, and by chance slow ones | a step up needs a percentile that is high beyond two standard deviations |
//! | more scans, on a store that is well | classes are compared with themselves, and weigh what they weigh in the long window |
//! | the store becomes slower every minute | the reference follows after ten minutes, not at once |
//! | an overload becomes the norm | while the ratio is below 0.8 nothing is learnt, for a minute at most; then as above |
//! | the store was quick for some minutes, because it had little load | the reference forgets that in as many minutes; and without company no level is entered |
//! | a pause of 200 ms | it is over before a level is entered |
//! | an overload ends, and the ratio is still low for seconds | nothing is refused once nothing waits and as many are in flight as usual |
//! | a clock that jumps, a core that slept, a store that was idle | after ten seconds without a tick nothing of the past counts |
//! | latencies of zero, or of more than a minute | they do not count |
//!
//! So an overload that lasts is seen for at least ten minutes. After fifteen, a store that has become slow
//! for good counts as normal, and the levels are left though requests may still wait: the queue decides on
//! them.
//!
//! A store with one server that is busy all the time is slow for seconds and quick for seconds, with nobody
//! to blame. Without a window before it, levels above `Steady` take the following part of the time, at 100
//! (and 1,000) requests per second: 1 % (0) at 0.7 of what it can do, 7 % (0.1 %) at 0.8, 33 % (9 %) at 0.9;
//! with sixteen servers, none.
//!
//! A class that is used takes 37 KiB, others nothing. Replies that are errors are not recorded: a store that
//! refuses is quick.

mod level;
mod times;

use std::time::Duration;

use crate::values::Timestamp;
use crate::values::limits::COMMAND_CLASSES;

pub use level::{Level, Told, agreed};
use times::{Judged, Times};

/// Length of a slice (interval at whose end latencies are judged) in nanoseconds, 250 ms: the shortest time
/// that decisions are based on.
const SLICE: u64 = 250_000_000;
/// Number of slices (250 ms) in a second.
const SECOND: usize = 4;
/// Number of slices (250 ms) in the widest short window, from which recent latency is computed: ten seconds.
const SLICES: usize = 10 * SECOND;
/// Longest time that counts as passed between two calls of [`LatencyRatio::handle_tick`], in nanoseconds: one
/// hour. A longer time means that the clock jumped, and counts as one hour.
const JUMP_MAX: u64 = 3_600_000_000_000;
/// Number of replies of a class of commands that a window of time needs for a latency ratio to be computed
/// from it.
const SAMPLES_MIN: u32 = 100;
/// Usual 95th percentile of latency that is assumed where the real one is lower, in microseconds: no reply
/// below it counts as slow, since the scheduler and the network may add so much at any time.
const LONG_MIN: f64 = 500.0;
/// Consecutive checks, 250 ms apart, at which the ratio of usual to recent latency must be below a shedding
/// level's threshold before the level is entered. More than a second, so that the first and the last have no
/// reply in common and a pause that spoils two slices is not enough.
const LOOKS_UP: u32 = SECOND as u32 + 2;
/// Consecutive checks, 250 ms apart, at which the ratio of usual to recent latency must be above the leave
/// threshold before the core goes down to the next lower shedding level. Also the least number of checks
/// between two changes of the level.
const LOOKS: u32 = SECOND as u32;
/// The core goes down to the next lower shedding level after this many consecutive checks, 250 ms apart, at
/// which no requests waited and no more were in flight than usual: ten seconds.
const LOOKS_ALONE: u32 = SLICES as u32;
/// Distance of the ratio of usual to recent latency above the threshold at which a shedding level was
/// entered, from which on the level is left; or half the way from the threshold to 1 if that is less.
const LEAVE: f64 = 0.15;
/// Ratio of usual to recent latency below which latencies are not learnt as usual, so that an overload does
/// not become the norm.
const FREEZE: f64 = 0.8;
/// Number of slices (250 ms each) for which the learning of usual latencies may stay off: one minute. After
/// that learning goes on, although latency is still high.
const FROZEN_MAX: usize = 60 * SECOND;
/// The number of requests in flight counts as risen if its mean over a second is above this many times its
/// mean over a minute. A smaller rise is chance: a busy store without overload has as much.
const RISEN: f64 = 2.0;
/// Usual number of requests in flight that is assumed where the real one is lower, so that one or two more
/// requests do not count as a rise.
const RISEN_FROM: f64 = 2.0;

/// Signs of overload of a backend besides latency: a low ratio of usual to recent latency alone does not show
/// overload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Company {
    /// True if requests waited for room in the window (limit on requests in flight) all the time since the
    /// last check, or some were refused because they had waited too long.
    pub waits: bool,
    /// Number of this core's requests in flight at the backend.
    pub in_flight: usize,
}

/// Latency ratio of a backend (usual latency divided by recent latency) at one check, and the class of
/// commands that lowered it most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// The latency ratio (usual latency divided by recent latency) of all classes of commands together.
    pub ratio: f64,
    /// Index of the class of commands that lowered the ratio most.
    pub class: usize,
    /// The 95th percentile of recent latency (the short window) of the class of commands that lowered the
    /// ratio most.
    pub short_p95: Duration,
    /// The usual 95th percentile of latency (the reference) of the class that lowered the ratio most; 0.5 ms
    /// if it is lower.
    pub long_p95: Duration,
}

/// Change of the level of load shedding that a core has chosen for a backend, with the reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The level of load shedding before the change.
    pub from: Level,
    /// The level of load shedding from now on.
    pub to: Level,
    /// The ratio of usual to recent latency that led to the change. `None` if the level of load shedding fell
    /// because there were too few replies to measure a ratio.
    pub seen: Option<Seen>,
}

/// One core's view of one backend's latency: recent and usual percentiles, and the level of load shedding
/// that follows from them.
#[derive(Debug)]
pub struct LatencyRatio {
    /// Latency ratios (usual 95th percentile divided by the present one, 1 is steady) below which the levels
    /// 1, 2 and 3 of load shedding are entered, the highest ratio first.
    thresholds: [f64; 3],
    /// Latencies by class of commands; `None` for a class that was never used.
    classes: [Option<Box<Times>>; COMMAND_CLASSES],
    /// Time of the last call of [`LatencyRatio::handle_tick`].
    ticked_at: Timestamp,
    /// Nanoseconds of the present slice (250 ms) that have passed.
    passed: u64,
    /// Means of the number of this core's requests in flight at the backend: over a second, and over a minute.
    in_flight: InFlight,
    /// True if requests waited for room in the window (limit on requests in flight) in the present slice (250
    /// ms).
    waits: bool,
    /// True if in the last slice (250 ms) requests waited for room in the window (limit on requests in
    /// flight), or more were in flight than usual.
    is_in_company: bool,
    /// Number of consecutive slices (250 ms) in which the ratio was too low for their latencies to be learnt
    /// as usual.
    frozen: usize,
    /// True while the backend's latencies are too high to be learnt as usual ones.
    is_frozen: bool,
    /// Latency ratio of the backend, with the class that lowered it most, at the last check (each slice of
    /// 250 ms); None before the first check and where there were too few replies.
    seen: Option<Seen>,
    /// Number of replies of the backend to this core in the ten seconds before the last check, in the classes
    /// of commands that had enough of them to be judged.
    replies: u32,
    /// Level of load shedding that this core has chosen for the backend, with the counts of checks (250 ms
    /// apart) that raise and lower it.
    steps: Steps,
}

impl LatencyRatio {
    /// Creates the view of a backend about which nothing is known yet. `thresholds` are the ratios of usual
    /// to recent latency below which the levels 1, 2 and 3 of load shedding are entered, the highest first.
    pub fn new(thresholds: [f64; 3], now: Timestamp) -> Self {
        Self {
            thresholds,
            classes: std::array::from_fn(|_| None),
            ticked_at: now,
            passed: 0,
            in_flight: InFlight::default(),
            waits: false,
            is_in_company: false,
            frozen: 0,
            is_frozen: false,
            seen: None,
            replies: 0,
            steps: Steps::default(),
        }
    }

    /// Records the latency of a reply in microseconds, without the time in which this core did not run.
    /// `class` is the index of the class of commands.
    #[inline]
    pub fn record(&mut self, class: usize, micros: u64) {
        match self.classes.get_mut(class) {
            Some(Some(times)) => times.record(micros),
            Some(unused) => unused.insert(Box::default()).record(micros),
            None => {}
        }
    }

    /// Ends the slices (250 ms each) that have passed, and returns the change of the level of load shedding
    /// if there is one: by a step, or to `Steady` after ten seconds without a call. `company` has the signs
    /// of overload besides latency: waiting requests and requests in flight. Called about every 100 ms while
    /// there is traffic.
    pub fn handle_tick(&mut self, now: Timestamp, company: Company) -> Option<Change> {
        let passed = now.nanos_since(self.ticked_at).min(JUMP_MAX);
        self.ticked_at = now;
        self.waits |= company.waits;
        self.in_flight.learn(company.in_flight, passed, self.is_frozen);
        self.passed += passed;
        let slices = (self.passed / SLICE) as usize;
        self.passed %= SLICE;
        if slices == 0 {
            return None;
        }
        for class in self.classes.iter_mut().flatten() {
            class.end_slice(slices, self.is_frozen);
        }
        let verdict = self.judge();
        self.freeze(verdict.as_ref(), slices);
        self.in_flight.end_slice();
        self.is_in_company = std::mem::take(&mut self.waits) || self.in_flight.has_risen();
        let from = self.steps.level;
        if slices >= SLICES {
            // After ten seconds without a tick nothing of the past counts.
            self.steps = Steps::default();
        } else {
            self.steps.look(&self.thresholds, verdict.as_ref(), self.is_in_company);
        }
        self.seen = verdict.map(|verdict| verdict.seen);
        let to = self.steps.level;
        (to != from).then_some(Change { from, to, seen: self.seen })
    }

    /// Returns the level of load shedding that this core has chosen for the backend, which says which tiers
    /// (degrees of importance) of requests are refused or cost more.
    pub fn level(&self) -> Level {
        self.steps.level
    }

    /// Returns the backend's latency ratio (usual latency divided by recent latency) at the last check, with
    /// the class of commands that lowered it most; None where there were too few replies.
    pub fn seen(&self) -> Option<Seen> {
        self.seen
    }

    /// Returns the present 95th percentile of latency of a class of commands; None without enough replies in
    /// the last ten seconds.
    pub fn recent_p95(&self, class: usize) -> Option<Duration> {
        let micros = self.classes.get(class)?.as_ref()?.recent()?;
        Some(Duration::from_micros(micros as u64))
    }

    /// Returns the level of load shedding that this core proposes to the other cores, with the weight of the
    /// proposal. The proposal is the core's own level, but at most `Overloaded`, which refuses nothing,
    /// unless in the last 250 ms requests waited or more were in flight than usual.
    pub fn told(&self, now: Timestamp) -> Told {
        let most = if self.is_in_company { Level::Shedding } else { Level::Overloaded };
        Told { at: now, level: self.steps.level.min(most), replies: self.replies }
    }

    fn judge(&mut self) -> Option<Verdict> {
        let (mut all, mut ratio, mut surely, mut surely_wide) = (0.0, 0.0, 0.0, 0.0);
        let mut worst: Option<(f64, usize, Judged)> = None;
        self.replies = 0;
        for (index, class) in self.classes.iter().enumerate() {
            let Some(judged) = class.as_ref().and_then(|times| times.judge()) else { continue };
            let long = judged.long.max(LONG_MIN);
            // The ratio of a class is at most 1, so that a fast class does not hide a slow one.
            let by = |short: f64| (long / short.max(1.0)).min(1.0);
            let lost = judged.weight * (1.0 - by(judged.short));
            all += judged.weight;
            ratio += judged.weight * by(judged.short);
            surely += judged.weight * by(judged.surely);
            surely_wide += judged.weight * by(judged.surely_wide);
            self.replies = self.replies.saturating_add(judged.replies);
            if worst.is_none_or(|(most, ..)| lost > most) {
                worst = Some((lost, index, judged));
            }
        }
        let (_, class, judged) = worst.filter(|_| all > 0.0)?;
        let ratio = ratio / all;
        let micros = |micros: f64| Duration::from_micros(micros as u64);
        let long_p95 = micros(judged.long.max(LONG_MIN));
        Some(Verdict {
            seen: Seen { ratio, class, short_p95: micros(judged.short), long_p95 },
            surely: ratio.max((surely / all).min(surely_wide / all)),
        })
    }

    fn freeze(&mut self, verdict: Option<&Verdict>, slices: usize) {
        let is_low = verdict.is_some_and(|verdict| verdict.surely < FREEZE);
        self.frozen = if is_low { self.frozen.saturating_add(slices) } else { 0 };
        self.is_frozen = is_low && self.frozen <= FROZEN_MAX;
    }
}

/// Ratio of usual to recent latency over all classes of commands at one check, with its bounds.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    seen: Seen,
    /// Upper bound of the ratio of usual to recent latency: computed from recent percentiles that are taken
    /// two standard deviations lower, so that chance alone does not raise the level of load shedding.
    surely: f64,
}

/// Level of load shedding that a core has chosen for a backend, and the counts of checks that change it.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    /// The present level of load shedding, by this core's own choice.
    level: Level,
    /// For each of the levels 1, 2 and 3 of load shedding: the number of consecutive checks (250 ms apart)
    /// with the ratio below its threshold, while requests waited or more were in flight than usual.
    below: [u32; 3],
    /// Consecutive checks (250 ms apart) with the ratio above the threshold at which the present level of
    /// load shedding is left, or with too few replies for a ratio.
    above: u32,
    /// Consecutive checks (250 ms apart) at which no requests waited and no more were in flight than usual.
    alone: u32,
    /// Number of checks (250 ms apart) since the level of load shedding last changed.
    since: u32,
}

impl Steps {
    fn look(&mut self, thresholds: &[f64; 3], verdict: Option<&Verdict>, has_company: bool) {
        self.since = self.since.saturating_add(1);
        for (looks, threshold) in self.below.iter_mut().zip(thresholds) {
            let is_below = has_company && verdict.is_some_and(|verdict| verdict.surely < *threshold);
            *looks = if is_below { *looks + 1 } else { 0 };
        }
        self.alone = if has_company { 0 } else { self.alone + 1 };
        let Some(above) = self.level.above() else {
            return self.look_down(thresholds, verdict);
        };
        if self.below[self.level as usize] >= LOOKS_UP && self.since >= LOOKS {
            self.step(above);
        } else {
            self.look_down(thresholds, verdict);
        }
    }

    fn look_down(&mut self, thresholds: &[f64; 3], verdict: Option<&Verdict>) {
        let Some(below) = self.level.below() else { return };
        let threshold = thresholds[below as usize];
        let leave = (threshold + LEAVE).min(f64::midpoint(threshold, 1.0));
        let is_above = verdict.is_none_or(|verdict| verdict.seen.ratio >= leave);
        self.above = if is_above { self.above + 1 } else { 0 };
        if self.since >= LOOKS && (self.above >= LOOKS || self.alone >= LOOKS_ALONE) {
            self.step(below);
        }
    }

    fn step(&mut self, to: Level) {
        (self.level, self.above, self.since) = (to, 0, 0);
    }
}

/// Mean number of requests in flight in the present slice (250 ms), and over a second (`now`) and a minute
/// (`usual`) as EWMA. The mean over a second falls at once when an overload ends, and rises slowly, so that
/// a few requests more by chance soon after are no overload.
#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    /// Sum of the numbers of requests in flight that were seen in the present slice (250 ms), each multiplied
    /// by the seconds since the number before it was seen.
    sum: f64,
    /// Seconds of the present slice (250 ms) that `sum` covers.
    covered: f64,
    /// Mean number of requests in flight over a second; at most the mean of the last slice (250 ms) if that
    /// was usual.
    now: f64,
    /// Mean number of requests in flight over a minute.
    usual: f64,
    /// Time over which the numbers of requests in flight have been averaged, in seconds, at most 60.
    known: f64,
}

impl InFlight {
    fn learn(&mut self, in_flight: usize, passed: u64, is_frozen: bool) {
        let (seen, passed) = (in_flight as f64, passed as f64 / 1e9);
        self.sum += seen * passed;
        self.covered += passed;
        self.now += (seen - self.now) * passed.min(1.0);
        if !is_frozen && passed > 0.0 {
            // In the first minute, the usual number is a plain mean of the time so far.
            let passed = passed.min(1.0);
            self.known = (self.known + passed).min(60.0);
            self.usual += (seen - self.usual) * passed / self.known;
        }
    }

    fn has_risen(&self) -> bool {
        self.is_risen(self.now)
    }

    /// Ends the present slice (250 ms). If no more requests than usual were in flight in it, the mean over a
    /// second falls to that of the slice.
    fn end_slice(&mut self) {
        let mean = std::mem::take(&mut self.sum) / std::mem::take(&mut self.covered).max(1e-9);
        if !self.is_risen(mean) {
            self.now = self.now.min(mean);
        }
    }

    fn is_risen(&self, in_flight: f64) -> bool {
        in_flight > RISEN * self.usual.max(RISEN_FROM)
    }
}

#[cfg(test)]
mod tests;
