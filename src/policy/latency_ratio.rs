//! Is a backend slower than it used to be, and how much of the less important work is to be held back for it?
//!
//! The latency ratio is the 95th percentile of what replies usually take, by what it is now: 1 is steady, 0.3 is trouble. One value
//! of [`LatencyRatio`] is what one core knows of one backend; what its core would do is a [`Level`], and what is done is the level that
//! cores agree on ([`agreed`]).
//!
//! | window | of a class of commands |
//! |---|---|
//! | short | the last second, or up to ten, until there are 100 replies |
//! | wide | the last ten seconds: what creeps shows here first, because there is less chance in it |
//! | long | the last minute |
//! | reference | the long window in the better minutes (the lower quartile) of the last 15 in which there were replies |
//!
//! A level is entered one step at a time: when the ratio was below its threshold for more than a second without a break, *and*
//! requests waited all the while or twice as many were in flight as usual. It is left when the ratio was 0.15 above the threshold for
//! a second, or when there was no such company for ten. That takes seconds, so requests are refused only in such
//! company: after a slice in which none waited all along, and no more were in flight than usual, cores tell each other a level that
//! refuses none.
//!
//! | trap | what is done about it |
//! |---|---|
//! | few replies, and by chance slow ones | a step up needs a percentile that is high beyond two standard deviations |
//! | more scans, on a store that is well | classes are compared with themselves, and weigh what they weigh in the long window |
//! | the store becomes slower every minute | the reference follows after ten minutes, not at once |
//! | an overload becomes the usual | while the ratio is below 0.8 nothing is learnt, for a minute at most; then as above |
//! | it was quick for some minutes, because nobody asked for much | that is forgotten as soon; and without company nothing happens |
//! | a pause of 200 ms | is over before a level is entered |
//! | an overload ends, and the ratio is still low for seconds | nothing is refused once nothing waits and as many are in flight as usual |
//! | a clock that jumps, a core that slept, a store that was idle | it may be ten seconds that have passed, and nothing is known of them |
//! | samples of nothing, or of more than a minute | do not count |
//!
//! So an overload that lasts is seen for ten minutes at least. After fifteen a store that has become slow for good is taken for what
//! it is then, and the levels are left though requests may still wait: that is the queue's to judge.
//!
//! A store with one server that is busy all the time is slow for seconds and quick for seconds, with nobody to blame. Without a
//! window before it, levels above `Steady` take the following part of the time, at 100 (and 1,000) requests per second: 1 % (0) at
//! 0.7 of what it can do, 7 % (0.1 %) at 0.8, 33 % (9 %) at 0.9; with sixteen servers, none.
//!
//! A class that is used takes 37 KiB, others nothing. Replies that are errors should not be recorded: a store that refuses is quick.

mod level;
mod times;

use std::time::Duration;

use crate::values::Timestamp;
use crate::values::limits::COMMAND_CLASSES;

pub use level::{Level, Told, agreed};
use times::{Judged, Times};

/// The least that anything is decided by.
const SLICE: u64 = 250_000_000;
/// A second, and the widest short window, in slices.
const SECOND: usize = 4;
const SLICES: usize = 10 * SECOND;
/// The clock is not believed beyond this.
const JUMP_MAX: u64 = 3_600_000_000_000;
/// A class with fewer replies says nothing.
const SAMPLES_MIN: u32 = 100;
/// Nothing is slow below this, in microseconds: so much the scheduler and the network may add at any time.
const LONG_MIN: f64 = 500.0;
/// Looks in a row before a level is entered. More than a second, so that the first and the last have no reply in common, and a
/// pause that spoils two slices is not enough.
const LOOKS_UP: u32 = SECOND as u32 + 2;
/// And before one is left, and between any two steps.
const LOOKS: u32 = SECOND as u32;
/// Without company for so many, a level is left.
const LOOKS_ALONE: u32 = SLICES as u32;
/// A level is left this far above its threshold, or half way to what is steady.
const LEAVE: f64 = 0.15;
/// Nothing is learnt below this, for so many slices.
const FREEZE: f64 = 0.8;
const FROZEN_MAX: usize = 60 * SECOND;
/// In flight has risen if over a second there are this many times what there are over a minute, or as many times this. Less is
/// nothing: a store that is busy and well has as much by chance.
const RISEN: f64 = 2.0;
const RISEN_FROM: f64 = 2.0;
/// Time constant, in seconds, of the mean that tells soonest that fewer are in flight again.
const LATELY: f64 = 0.25;

/// What else is known of the backend: a ratio alone is no overload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Company {
    /// Requests waited for room all the time since it was last told, or some were refused because they had waited too long.
    pub waits: bool,
    /// Requests in flight.
    pub in_flight: usize,
}

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// The latency ratio of all classes together.
    pub ratio: f64,
    /// The class that did most to it.
    pub class: usize,
    /// Its percentile in the short window, and the reference.
    pub short_p95: Duration,
    /// See there.
    pub long_p95: Duration,
}

/// Another level, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Before.
    pub from: Level,
    /// From now on.
    pub to: Level,
    /// Nothing where there were too few replies.
    pub seen: Option<Seen>,
}

/// What one core knows of one backend.
#[derive(Debug)]
pub struct LatencyRatio {
    thresholds: [f64; 3],
    classes: [Option<Box<Times>>; COMMAND_CLASSES],
    ticked_at: Timestamp,
    /// How much of a slice has passed, in nanoseconds.
    passed: u64,
    in_flight: InFlight,
    waits: bool,
    /// In the last slice requests waited, or more were in flight than usual.
    is_in_company: bool,
    frozen: usize,
    is_frozen: bool,
    seen: Option<Seen>,
    replies: u32,
    steps: Steps,
}

impl LatencyRatio {
    /// Nothing is known yet. The levels are entered below these thresholds, the highest one first.
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

    /// A reply took so many microseconds, less those in which this core did not run.
    #[inline]
    pub fn record(&mut self, class: usize, micros: u64) {
        match self.classes.get_mut(class) {
            Some(Some(times)) => times.record(micros),
            Some(unused) => unused.insert(Box::default()).record(micros),
            None => {}
        }
    }

    /// To be called about every 100 ms while there is traffic.
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
        let waits = std::mem::take(&mut self.waits);
        self.is_in_company = waits || self.in_flight.has_risen_lately();
        let has_company = waits || self.in_flight.has_risen();
        let from = self.steps.level;
        if slices >= SLICES {
            // What was known then says nothing now.
            self.steps = Steps::default();
        } else {
            self.steps.look(&self.thresholds, verdict.as_ref(), has_company);
        }
        self.seen = verdict.map(|verdict| verdict.seen);
        let to = self.steps.level;
        (to != from).then_some(Change { from, to, seen: self.seen })
    }

    /// The level that this core has come to, step by step.
    pub fn level(&self) -> Level {
        self.steps.level
    }

    /// What was seen last; nothing where there were too few replies.
    pub fn seen(&self) -> Option<Seen> {
        self.seen
    }

    /// What replies of a class take now: the 95th percentile, if there were enough of them in the last ten seconds.
    pub fn recent_p95(&self, class: usize) -> Option<Duration> {
        let micros = self.classes.get(class)?.as_ref()?.recent()?;
        Some(Duration::from_micros(micros as u64))
    }

    /// The level that this core would choose for all cores: its own, but one that refuses requests only while others wait or more are
    /// in flight than usual.
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
            // A class that is quicker than ever makes up for no other.
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

/// What all classes come to.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    seen: Seen,
    /// The ratio is not above this, however much chance there was in it.
    surely: f64,
}

/// From level to level.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    level: Level,
    /// Looks in a row: below each threshold in company, above what the level is left at, and without company.
    below: [u32; 3],
    above: u32,
    alone: u32,
    /// Looks since the last step.
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

/// Requests in flight, over a quarter of a second, a second and a minute (EWMA).
#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    lately: f64,
    now: f64,
    usual: f64,
    /// For how long that is known, in seconds.
    known: f64,
}

impl InFlight {
    fn learn(&mut self, in_flight: usize, passed: u64, is_frozen: bool) {
        let (seen, passed) = (in_flight as f64, passed as f64 / 1e9);
        self.lately += (seen - self.lately) * (passed / LATELY).min(1.0);
        self.now += (seen - self.now) * passed.min(1.0);
        if !is_frozen && passed > 0.0 {
            // What is not known for a minute yet is a plain mean.
            let passed = passed.min(1.0);
            self.known = (self.known + passed).min(60.0);
            self.usual += (seen - self.usual) * passed / self.known;
        }
    }

    fn has_risen(&self) -> bool {
        self.is_risen(self.now)
    }

    /// Seen sooner than [`has_risen`](Self::has_risen) does, and more often by chance.
    fn has_risen_lately(&self) -> bool {
        self.is_risen(self.lately)
    }

    fn is_risen(&self, in_flight: f64) -> bool {
        in_flight > RISEN * self.usual.max(RISEN_FROM)
    }
}

#[cfg(test)]
mod tests;
