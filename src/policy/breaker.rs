//! Is a store sick, so that to ask it is of no use, or would harm it?
//!
//! What replies say is watched; a store that fails is set aside and its requests are refused at once; then one request after another
//! is let through, until one is answered; then all come back, some more every moment.
//!
//! ```text
//!   Well ── it fails, or is slow ──> Out ── the pause is over ──> Trying ── answered ──> Returning ── nothing fails ──> Well
//!                                     ^                             │ failed                │ it fails
//!                                     └─────────────────────────────┴───────────────────────┘ (a longer pause)
//! ```
//!
//! | sign | when it counts |
//! |---|---|
//! | failures in a row, on one core | five: a connection lost or not made, a silence that was too long, `-LOADING`, `-BUSY`, `-MASTERDOWN`. Connections lost at about the same time are one |
//! | failures among replies, on all cores | surely more than one in five, of at least 100 in ten seconds or less; after it was set aside, of 20 |
//! | slowness | the 95th percentile of a class is three times what it is at the other stores, and two milliseconds more, for two seconds and with 100 replies to judge by |
//!
//! Other errors say something of requests, not of stores: a cluster's nodes all say `-CLUSTERDOWN` while one of them is away.
//!
//! | trap | what is done about it |
//! |---|---|
//! | a store is slow because much is asked of it: the owner of a hot key | it is not sick: not if it is asked for twice as much as others, or half as much again as it was |
//! | ... and that could not be seen | the first request that is let through finds nothing before it: if it is answered quickly, all was load, and slowness does not count for a minute |
//! | all stores are slow | is compared with the others, not with what was |
//! | nothing can stand in for the store | the pauses are short, and shorter where only connections failed: nobody is refused for much longer than need be |
//!
//! Pure: what cores share of it is one word per store ([`Standing::to_bits`]).

use std::time::Duration;

use crate::values::Timestamp;

/// Failures in a row.
const ROW: u32 = 5;
/// Connections that are lost within so long count once.
const LOSSES_APART: Duration = Duration::from_millis(100);
/// Of so many replies more than this part.
const SAMPLES: u64 = 100;
const SAMPLES_RETURNING: u64 = 20;
const FAILING: f64 = 0.2;
/// What came before that says nothing.
const MEMORY: Duration = Duration::from_secs(10);
/// How often evidence is looked at, and how long it has to last where it is slowness.
pub const LOOKS_APART: Duration = Duration::from_millis(250);
const SLOW_LOOKS: u32 = 8;
/// Slow is what takes so many times as long as elsewhere, and so much longer.
const SLOWER: f64 = 3.0;
const SLOWER_BY: Duration = Duration::from_millis(2);
/// A store that gets so many times the requests of others, or of what it got before, is crowded.
const CROWDED: f64 = 2.0;
const GROWN: f64 = 1.5;
/// What it got before is what came until then, in seconds.
const BEFORE: Duration = Duration::from_secs(3);
/// How long slowness does not count once it was found to be load.
const EXCUSED: Duration = Duration::from_secs(60);
/// The first pause, and the longest; the same where only connections failed.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(4)];
const PAUSES_LOST: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];
/// A trial that nothing is heard of for so long is given up.
const TRIAL: Duration = Duration::from_secs(3);
/// How long it takes until all requests pass again, and the part of them that passes at first.
const RETURN: Duration = Duration::from_secs(2);
const FIRST_PART: f64 = 0.1;
/// One time that it was set aside is forgotten with each healthy minute.
const FORGOTTEN: Duration = Duration::from_secs(60);
const OPENINGS_MAX: u8 = 63;

/// What is done with a store's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// They pass.
    #[default]
    Well,
    /// They are refused.
    Out,
    /// One has been let through.
    Trying,
    /// Some pass.
    Returning,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Well, Self::Out, Self::Trying, Self::Returning];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Well => "ok",
            Self::Out => "ejected",
            Self::Trying => "trying",
            Self::Returning => "returning",
        }
    }
}

/// Why a store was set aside last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// Its replies were errors.
    #[default]
    Errors,
    /// Connections to it failed.
    Losses,
    /// Its replies came late.
    Slowness,
    /// The same, but that was load.
    Load,
}

impl Cause {
    const ALL: [Self; 4] = [Self::Errors, Self::Losses, Self::Slowness, Self::Load];
}

/// How it stands with a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// See there.
    pub stage: Stage,
    /// See there.
    pub cause: Cause,
    /// How often it was set aside, as far as that is not forgotten.
    pub openings: u8,
    /// Until when it is out; in any other stage since when.
    pub at: Timestamp,
}

/// Times in a word are in units of a power of two of nanoseconds: about a microsecond.
const UNIT_BITS: u32 = 10;

impl Standing {
    /// As one word, for others to read: times are rounded up by a microsecond.
    pub fn to_bits(self) -> u64 {
        let at = self.at.as_nanos().div_ceil(1 << UNIT_BITS) & ((1 << 54) - 1);
        at << 10 | u64::from(self.openings & OPENINGS_MAX) << 4 | (self.cause as u64) << 2 | self.stage as u64
    }

    /// See there.
    pub fn from_bits(bits: u64) -> Self {
        Self {
            stage: Stage::ALL[(bits & 3) as usize],
            cause: Cause::ALL[(bits >> 2 & 3) as usize],
            openings: (bits >> 4) as u8 & OPENINGS_MAX,
            at: Timestamp::from_nanos((bits >> 10).saturating_mul(1 << UNIT_BITS)),
        }
    }

    /// It is set aside. `spread` (0 to 255) keeps many from coming back in step.
    #[must_use]
    pub fn set_aside(self, cause: Cause, now: Timestamp, spread: u8) -> Self {
        let openings = self.remembered(now);
        let [first, most] = if cause == Cause::Losses { PAUSES_LOST } else { PAUSES };
        let pause = first.saturating_mul(1 << u32::from(openings).min(10)).min(most);
        let pause = pause.mul_f64(0.75 + f64::from(spread) / 1_024.0);
        let openings = openings.saturating_add(1).min(OPENINGS_MAX);
        Self { stage: Stage::Out, cause, openings, at: now.after(pause) }
    }

    /// How often it was set aside, as far as that is not forgotten by now.
    fn remembered(self, now: Timestamp) -> u8 {
        let healthy = if self.stage == Stage::Well { now.since(self.at) } else { Duration::ZERO };
        let forgotten = (healthy.as_secs() / FORGOTTEN.as_secs()).min(u64::from(OPENINGS_MAX)) as u8;
        self.openings.saturating_sub(forgotten)
    }

    /// One request is let through, if it is time for that.
    pub fn begin_trial(self, now: Timestamp) -> Option<Self> {
        let is_due = match self.stage {
            Stage::Out => now >= self.at,
            Stage::Trying => now.since(self.at) >= TRIAL,
            Stage::Well | Stage::Returning => false,
        };
        is_due.then_some(Self { stage: Stage::Trying, at: now, ..self })
    }

    /// The request that was let through was answered: was that quick?
    #[must_use]
    pub fn end_trial(self, is_quick: bool, now: Timestamp, spread: u8) -> Self {
        match self.cause {
            // A connection that can be made is a store that is back: windows begin small by themselves.
            Cause::Losses => Self { stage: Stage::Well, at: now, ..self },
            Cause::Slowness | Cause::Load if !is_quick => self.set_aside(Cause::Slowness, now, spread),
            Cause::Slowness if self.openings <= 1 => {
                Self { stage: Stage::Well, cause: Cause::Load, openings: 0, at: now }
            }
            Cause::Errors | Cause::Slowness | Cause::Load => {
                Self { stage: Stage::Returning, at: now, ..self }
            }
        }
    }

    /// It could not be sent: the next one is tried then.
    #[must_use]
    pub fn put_off(self, until: Timestamp) -> Self {
        Self { stage: Stage::Out, at: until, ..self }
    }

    /// The part of requests that passes while it returns; nothing once that is all of them.
    pub fn part(self, now: Timestamp) -> Option<f64> {
        let gone = now.since(self.at).as_secs_f64() / RETURN.as_secs_f64();
        (gone < 1.0).then_some(FIRST_PART + (1.0 - FIRST_PART) * gone)
    }

    /// All of its requests pass again.
    #[must_use]
    pub fn back(self, now: Timestamp) -> Self {
        Self { stage: Stage::Well, at: now, ..self }
    }

    /// Until it makes sense to ask again.
    pub fn retry_after(self, now: Timestamp) -> Duration {
        match self.stage {
            Stage::Out => self.at.since(now).max(RETRY_LEAST),
            _ => RETRY_LEAST,
        }
    }

    /// Does slowness count?
    fn is_judged_by_time(self, now: Timestamp) -> bool {
        self.stage == Stage::Well && !(self.cause == Cause::Load && now.since(self.at) < EXCUSED)
    }
}

/// Nobody should come back sooner.
const RETRY_LEAST: Duration = Duration::from_millis(20);

/// What a store's replies were, over all cores: counts that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Whatever they said.
    pub replies: u64,
    /// Those, and lost connections, that count as failures.
    pub failures: u64,
}

/// Why it should be set aside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Evidence {
    /// So many in a row.
    Row(u32),
    /// So many of so many.
    Failing(u64, u64),
}

#[derive(Clone, Copy, Debug)]
struct Look {
    at: Timestamp,
    tally: Tally,
}

const LOOKS_KEPT: usize = (MEMORY.as_millis() / LOOKS_APART.as_millis()) as usize + 1;

/// What one core has seen of one store.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    row: u32,
    lost_at: Option<Timestamp>,
    looks: std::collections::VecDeque<Look>,
    slow: u32,
}

impl Watch {
    /// Nothing failed since something was answered.
    #[inline]
    pub const fn is_calm(&self) -> bool {
        self.row == 0
    }

    /// A reply that is no failure.
    pub fn handle_answer(&mut self) {
        self.row = 0;
    }

    /// One that is. Whether that is enough.
    pub fn handle_failure(&mut self) -> Option<Evidence> {
        self.row = self.row.saturating_add(1);
        (self.row >= ROW).then_some(Evidence::Row(self.row))
    }

    /// A connection was lost, or not made, that something waited for. Whether it counts, and whether that is enough.
    pub fn handle_loss(&mut self, now: Timestamp) -> (bool, Option<Evidence>) {
        if self.lost_at.is_some_and(|lost_at| now.since(lost_at) < LOSSES_APART) {
            return (false, None);
        }
        self.lost_at = Some(now);
        (true, self.handle_failure())
    }

    /// What all cores have counted so far.
    pub fn look(&mut self, tally: Tally, standing: Standing, now: Timestamp) -> Option<Evidence> {
        self.looks.push_front(Look { at: now, tally });
        while self.looks.len() > LOOKS_KEPT
            || self.looks.back().is_some_and(|look| now.since(look.at) > MEMORY)
        {
            self.looks.pop_back();
        }
        let wanted = match standing.stage {
            Stage::Well if standing.remembered(now) == 0 => SAMPLES,
            Stage::Well | Stage::Returning => SAMPLES_RETURNING,
            Stage::Out | Stage::Trying => return None,
        };
        // What was before it was set aside has been judged.
        let of_late = self.looks.iter().skip(1).take_while(|look| look.at >= standing.at);
        let mut differences = of_late.map(|look| {
            let replies = tally.replies.saturating_sub(look.tally.replies);
            (tally.failures.saturating_sub(look.tally.failures), replies)
        });
        let (failures, replies) = differences
            .find(|(failures, replies)| *replies >= wanted && is_surely_failing(*failures, *replies))?;
        Some(Evidence::Failing(failures, replies))
    }

    /// Requests per second over about the last second, and before that.
    pub fn rates(&self) -> (f64, Option<f64>) {
        let Some(newest) = self.looks.front() else { return (0.0, None) };
        let rate = |later: &Look, earlier: &Look| {
            let passed = later.at.since(earlier.at).as_secs_f64();
            let replies = later.tally.replies.saturating_sub(earlier.tally.replies);
            (passed > 0.0).then(|| replies as f64 / passed)
        };
        let is_older = |look: &&Look, than: Duration| newest.at.since(look.at) >= than;
        let lately = self.looks.iter().find(|look| is_older(look, Duration::from_secs(1)));
        let before = self.looks.iter().find(|look| is_older(look, BEFORE));
        let oldest = self.looks.back();
        let before = before.zip(oldest).filter(|(later, oldest)| later.at.since(oldest.at) >= LOOKS_APART);
        let now = lately.and_then(|lately| rate(newest, lately)).unwrap_or_default();
        (now, before.and_then(|(later, oldest)| rate(later, oldest)))
    }

    /// One look at how long replies take here, and elsewhere. Whether it has been slow for long enough; a store that is not compared
    /// is not slow.
    pub fn handle_comparison(
        &mut self,
        compared: Option<Comparison>,
        standing: Standing,
        now: Timestamp,
    ) -> bool {
        let is_slow = standing.is_judged_by_time(now) && compared.is_some_and(Comparison::is_slow);
        self.slow = if is_slow { self.slow + 1 } else { 0 };
        self.slow >= SLOW_LOOKS
    }

    /// It was set aside, or is back: what was in a row is not any more.
    pub fn begin_anew(&mut self) {
        (self.row, self.slow) = (0, 0);
    }
}

/// More than one in five, beyond two standard deviations: by chance alone there are more now and then.
fn is_surely_failing(failures: u64, replies: u64) -> bool {
    let deviation = (replies as f64 * FAILING * (1.0 - FAILING)).sqrt();
    failures as f64 > replies as f64 * FAILING + 2.0 * deviation
}

/// A store, and the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// The 95th percentiles of what replies of a class take.
    pub own: Duration,
    /// The median of that of the others.
    pub others: Duration,
    /// Requests per second: here, here before, and the median of the others.
    pub rate: f64,
    /// Nothing where that is not known.
    pub rate_before: Option<f64>,
    /// See there.
    pub rate_others: f64,
}

impl Comparison {
    /// Up to how long a reply may take that is no sign of sickness.
    pub fn fair(others: Duration) -> Duration {
        others.mul_f64(SLOWER).max(others + SLOWER_BY)
    }

    /// How many times as long as elsewhere.
    pub fn slowness(self) -> f64 {
        self.own.as_secs_f64() / self.others.as_secs_f64().max(1e-9)
    }

    fn is_slow(self) -> bool {
        let is_crowded = self.rate > CROWDED * self.rate_others
            || self.rate_before.is_none_or(|before| self.rate > GROWN * before);
        self.own > Self::fair(self.others) && !is_crowded
    }
}

/// The median; nothing where there are fewer than two: one other store is no yardstick.
pub fn median_of_others(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    (values.len() >= 2).then(|| values[values.len() / 2])
}

#[cfg(test)]
mod tests;
