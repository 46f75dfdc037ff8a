//! Circuit breaker of a store: finds out whether the store is sick, so that asking it is of no use or would
//! harm it.
//!
//! Replies are watched. A store that fails is ejected and its requests are refused at once; after a pause one
//! request at a time is let through, until one is answered; then all requests return, a growing part over 2
//! s.
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
//! | failures among replies, on all cores | surely more than one in five, of at least 100 replies in ten seconds or less; of 20 if the store was ejected lately |
//! | slowness | the 95th percentile of a class of commands is more than three times the other stores', and more than 2 ms above it, for two seconds and with 100 replies to judge by |
//!
//! Other errors say something of requests, not of stores: a cluster's nodes all say `-CLUSTERDOWN` while one
//! of them is away.
//!
//! | trap | what is done about it |
//! |---|---|
//! | a store is slow under load: the owner of a hot key | slowness does not count if the store has twice the requests of the others, or 1.5 times its own earlier ones |
//! | ... and its load could not be seen | the trial request finds an empty queue: if it is answered quickly, the slowness was load, and does not count for a minute |
//! | all stores are slow | a store is compared with the others, not with its own past |
//! | no other store can answer | the pauses are short, and shorter where only connections failed, so that clients are not refused for much longer than need be |
//!
//! The breaker is pure: cores share one word per store ([`Standing::to_bits`]).

use std::time::Duration;

use crate::values::Timestamp;

/// Consecutive failures seen by one core after which a store is ejected (taken out of use).
const ROW: u32 = 5;
/// Time within which several lost connections to a store count as one failure of the store.
const LOSSES_APART: Duration = Duration::from_millis(100);
/// Number of recent replies of a store that are needed before it can be ejected (taken out of use) for the
/// share of failures among them.
const SAMPLES: u64 = 100;
/// Number of recent replies that are needed before a store that was ejected (taken out of use) lately can be
/// ejected again for the share of failures among them.
const SAMPLES_RETURNING: u64 = 20;
/// Share of failures among a store's recent replies above which it is ejected (taken out of use). The share
/// must be exceeded by two standard deviations, so that chance alone ejects no store.
const FAILING: f64 = 0.2;
/// Time for which replies and failures count towards a store's share of failures.
const MEMORY: Duration = Duration::from_secs(10);
/// Interval at which each core checks the share of failures among the recent replies of every store.
pub const LOOKS_APART: Duration = Duration::from_millis(250);
/// Consecutive comparisons with the other stores, 250 ms apart, at which a store must be slow before it is
/// ejected (taken out of use) for that: two seconds.
const SLOW_LOOKS: u32 = 8;
/// A store whose 95th percentile of latencies is above this many times the median of the other stores' is slow.
const SLOWER: f64 = 3.0;
/// Least difference between a store's 95th percentile of latencies and the median of the other stores' for it
/// to count as slow.
const SLOWER_BY: Duration = Duration::from_millis(2);
/// Ratio of a store's request rate to the median of the other stores' above which its slowness counts as load.
const CROWDED: f64 = 2.0;
/// Ratio of a store's request rate to its own some seconds earlier above which its slowness counts as load.
const GROWN: f64 = 1.5;
/// Replies of a store that are at least this old count for its earlier request rate, with which the present
/// rate is compared.
const BEFORE: Duration = Duration::from_secs(3);
/// Time for which a store's slowness is ignored after it was found to be due to load.
const EXCUSED: Duration = Duration::from_secs(60);
/// First and longest pause after an ejection (taking out of use) of a store, in which all requests to it are
/// refused.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(4)];
/// First and longest pause after an ejection (taking out of use) of a store for failed connections alone, in
/// which all requests to it are refused.
const PAUSES_LOST: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];
/// Time after which a trial request without an answer is given up, so that another one may be sent.
const TRIAL: Duration = Duration::from_secs(3);
/// Time over which the fraction of requests let through to a store that answered its trial grows to 1.
const RETURN: Duration = Duration::from_secs(2);
/// Fraction of requests that is let through to an ejected store (one taken out of use) right after it
/// answered its trial request; it grows to 1 over 2 s.
const FIRST_PART: f64 = 0.1;
/// Time in full service after which one earlier ejection (taking out of use) of a store is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Maximum number of ejections (taking out of use) of a store that are counted: the count has six bits in the
/// word that cores share.
const OPENINGS_MAX: u8 = 63;

/// Stage of a store's circuit breaker: which of the requests to the store are let through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// All requests to the store are sent.
    #[default]
    Well,
    /// The store is ejected (taken out of use): all requests to it are refused until a pause is over.
    Out,
    /// The store is ejected (taken out of use), and one request has been sent to it as a trial; all others
    /// are refused.
    Trying,
    /// The store answered the trial request: a growing fraction of the requests is let through.
    Returning,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Well, Self::Out, Self::Trying, Self::Returning];

    /// Returns the stage's name in figures and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Well => "ok",
            Self::Out => "ejected",
            Self::Trying => "trying",
            Self::Returning => "returning",
        }
    }
}

/// Reason why a store was last ejected (taken out of use).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// The store was ejected (taken out of use) because too many of its replies were failures.
    #[default]
    Errors,
    /// The store was ejected (taken out of use) because connections to it failed or were lost.
    Losses,
    /// The store was ejected (taken out of use) because its replies came late.
    Slowness,
    /// The store's replies came late because of load, as a quick reply to the trial request showed.
    Load,
}

impl Cause {
    const ALL: [Self; 4] = [Self::Errors, Self::Losses, Self::Slowness, Self::Load];
}

/// State of one store's circuit breaker (which decides whether requests to it are sent), shared by all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The present stage of the store's breaker, which says which requests are let through.
    pub stage: Stage,
    /// Reason why the store was last ejected (taken out of use); without meaning if it never was.
    pub cause: Cause,
    /// Number of ejections (takings out of use) of the store that counted when it was last ejected, that one
    /// included, at most 63. Each doubles the pause after the next ejection, unless it is forgotten until then,
    /// one for each minute in full service.
    pub openings: u8,
    /// In stage `Out` the time until which all requests to the store are refused; in any other stage the time
    /// at which the stage began.
    pub at: Timestamp,
}

/// Number of bits by which nanoseconds are shifted right in the word by which cores share a breaker's state:
/// its unit of time is 1,024 ns, about a microsecond.
const UNIT_BITS: u32 = 10;

impl Standing {
    /// Packs the state of a store's breaker into one word for other cores to read, and returns the word.
    /// Times are rounded up by at most a microsecond.
    pub fn to_bits(self) -> u64 {
        let at = self.at.as_nanos().div_ceil(1 << UNIT_BITS) & ((1 << 54) - 1);
        at << 10 | u64::from(self.openings & OPENINGS_MAX) << 4 | (self.cause as u64) << 2 | self.stage as u64
    }

    /// Unpacks the state of a store's breaker from the word that [`Standing::to_bits`] made.
    pub fn from_bits(bits: u64) -> Self {
        Self {
            stage: Stage::ALL[(bits & 3) as usize],
            cause: Cause::ALL[(bits >> 2 & 3) as usize],
            openings: (bits >> 4) as u8 & OPENINGS_MAX,
            at: Timestamp::from_nanos((bits >> 10).saturating_mul(1 << UNIT_BITS)),
        }
    }

    /// Ejects the store (takes it out of use) for the reason `cause`: returns the breaker's state in which all
    /// requests are refused until a pause is over. Each earlier ejection that is not forgotten doubles the
    /// pause, up to 4 s (1 s after lost connections); `spread` (0 to 255, random) shortens it by up to a
    /// quarter, so that many proxies do not come back in step.
    #[must_use]
    pub fn set_aside(self, cause: Cause, now: Timestamp, spread: u8) -> Self {
        let openings = self.remembered(now);
        let [first, most] = if cause == Cause::Losses { PAUSES_LOST } else { PAUSES };
        let pause = first.saturating_mul(1 << u32::from(openings).min(10)).min(most);
        let pause = pause.mul_f64(0.75 + f64::from(spread) / 1_024.0);
        let openings = openings.saturating_add(1).min(OPENINGS_MAX);
        Self { stage: Stage::Out, cause, openings, at: now.after(pause) }
    }

    /// Returns the number of earlier ejections (taking out of use) of the store that still count: each minute
    /// in full service forgets one.
    fn remembered(self, now: Timestamp) -> u8 {
        let healthy = if self.stage == Stage::Well { now.since(self.at) } else { Duration::ZERO };
        let forgotten = (healthy.as_secs() / FORGOTTEN.as_secs()).min(u64::from(OPENINGS_MAX)) as u8;
        self.openings.saturating_sub(forgotten)
    }

    /// Returns the breaker's state in which one request is sent to the ejected store as a trial. None if no
    /// trial is due: the pause after the ejection is not over, or the last trial began less than 3 s ago, or
    /// the store is not ejected.
    pub fn begin_trial(self, now: Timestamp) -> Option<Self> {
        let is_due = match self.stage {
            Stage::Out => now >= self.at,
            Stage::Trying => now.since(self.at) >= TRIAL,
            Stage::Well | Stage::Returning => false,
        };
        is_due.then_some(Self { stage: Stage::Trying, at: now, ..self })
    }

    /// Ends a trial whose request was answered, and returns the breaker's state after it. After an ejection
    /// for lost connections the store is in full use at once; after one for failures, within 2 s. After one
    /// for slowness `is_quick` (the answer came quickly) decides: a slow answer ejects the store again; a
    /// quick one returns it within 2 s or, after a first ejection, at once, since load was the cause.
    /// `spread` (0 to 255, random) varies the pause of an ejection.
    #[must_use]
    pub fn end_trial(self, is_quick: bool, now: Timestamp, spread: u8) -> Self {
        match self.cause {
            // A connection that opens proves that the store is back. Requests need not be limited further,
            // because windows begin small.
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

    /// Ends a trial whose request could not be sent to the ejected store, and returns the breaker's state
    /// after it; the next trial is due at `until`.
    #[must_use]
    pub fn put_off(self, until: Timestamp) -> Self {
        Self { stage: Stage::Out, at: until, ..self }
    }

    /// Ends the pause after an ejection of the store, so that its trial is due now, since the script that kept the
    /// store busy was killed. Returns the breaker's state after it; None if there is no such pause.
    pub fn end_pause(self, now: Timestamp) -> Option<Self> {
        (self.stage == Stage::Out && self.at > now).then_some(self.put_off(now))
    }

    /// Returns the fraction of requests, 0.1 to 1, that is sent to a store that answered its trial (stage
    /// [`Stage::Returning`]); None once the 2 s of that stage are over.
    pub fn part(self, now: Timestamp) -> Option<f64> {
        let gone = now.since(self.at).as_secs_f64() / RETURN.as_secs_f64();
        (gone < 1.0).then_some(FIRST_PART + (1.0 - FIRST_PART) * gone)
    }

    /// Ends the 2 s in which a growing part of the requests is sent to a store that answered its trial:
    /// returns the breaker's state in which all are sent again.
    #[must_use]
    pub fn back(self, now: Timestamp) -> Self {
        Self { stage: Stage::Well, at: now, ..self }
    }

    /// Returns the time after which a client whose request to the store is refused should try again: the rest
    /// of the pause after an ejection (taking out of use), at least 20 ms.
    pub fn retry_after(self, now: Timestamp) -> Duration {
        match self.stage {
            Stage::Out => self.at.since(now).max(RETRY_LEAST),
            _ => RETRY_LEAST,
        }
    }

    /// True if the store may be ejected (taken out of use) for slowness: it is healthy, and its slowness was
    /// not found to be due to load within the last minute.
    fn is_judged_by_time(self, now: Timestamp) -> bool {
        self.stage == Stage::Well && !(self.cause == Cause::Load && now.since(self.at) < EXCUSED)
    }
}

/// Shortest retry delay named to a client whose request to an ejected store (one taken out of use) is refused.
const RETRY_LEAST: Duration = Duration::from_millis(20);

/// Numbers of replies of a store to all cores, as counts that only grow; their differences over time show
/// whether the store fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of all replies of the store to all cores, failures included; a lost connection counts as one
    /// too.
    pub replies: u64,
    /// Number of replies of the store that count as failures, and of connections to it that were lost or not
    /// made.
    pub failures: u64,
}

/// The failures that justify an ejection (taking out of use) of a store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Evidence {
    /// Number of consecutive failures of the store that one core saw.
    Row(u32),
    /// Among the recent replies of a store to all cores: the number of failures, and the number of all
    /// replies.
    Failing(u64, u64),
}

#[derive(Clone, Copy, Debug)]
struct Look {
    at: Timestamp,
    tally: Tally,
}

/// Maximum number of counts of a store's replies that are kept, one per 250 ms: those of the last 10 s, and
/// the present one. The oldest is dropped.
const LOOKS_KEPT: usize = (MEMORY.as_millis() / LOOKS_APART.as_millis()) as usize + 1;

/// One core's observations of one store, from which the core decides whether the store has to be ejected
/// (taken out of use).
#[derive(Clone, Debug, Default)]
pub struct Watch {
    row: u32,
    lost_at: Option<Timestamp>,
    looks: std::collections::VecDeque<Look>,
    slow: u32,
}

impl Watch {
    /// True if this core has seen no failure of the store since the last reply that was not a failure or since
    /// the store was last ejected (taken out of use) or came back.
    #[inline]
    pub const fn is_calm(&self) -> bool {
        self.row == 0
    }

    /// Records a reply of the store that is not a failure, after which failures in a row are counted from
    /// zero.
    pub fn handle_answer(&mut self) {
        self.row = 0;
    }

    /// Records a reply of the store that is a failure. Returns evidence that justifies an ejection once five
    /// failures came in a row; else None.
    pub fn handle_failure(&mut self) -> Option<Evidence> {
        self.row = self.row.saturating_add(1);
        (self.row >= ROW).then_some(Evidence::Row(self.row))
    }

    /// Records a connection that was lost or not made while requests waited for it. Returns whether it counts
    /// as a failure (not if one counted within the last 100 ms), and evidence that justifies an ejection once
    /// five failures came in a row.
    pub fn handle_loss(&mut self, now: Timestamp) -> (bool, Option<Evidence>) {
        if self.lost_at.is_some_and(|lost_at| now.since(lost_at) < LOSSES_APART) {
            return (false, None);
        }
        self.lost_at = Some(now);
        (true, self.handle_failure())
    }

    /// Takes the counts of the store's replies to all cores so far (`tally`), every 250 ms; `standing` is the
    /// state of the store's breaker. Returns evidence that justifies an ejection if more than one in five
    /// replies failed, beyond what chance explains, over the last 10 s or less, since that state last changed;
    /// else None. None also while the store is ejected.
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
        // Replies from before the last ejection have led to that ejection already, so they do not count
        // again.
        let of_late = self.looks.iter().skip(1).take_while(|look| look.at >= standing.at);
        let mut differences = of_late.map(|look| {
            let replies = tally.replies.saturating_sub(look.tally.replies);
            (tally.failures.saturating_sub(look.tally.failures), replies)
        });
        let (failures, replies) = differences
            .find(|(failures, replies)| *replies >= wanted && is_surely_failing(*failures, *replies))?;
        Some(Evidence::Failing(failures, replies))
    }

    /// Returns the replies of the store per second to all cores: over about the last second (0 if unknown),
    /// and over the time that ended 3 s ago or earlier, at most 10 s back (None if unknown).
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

    /// Takes one comparison of the store's latency with the other stores' (`compared`; None if none could be
    /// made). True once the store has been slow in eight comparisons in a row. It does not count as slow
    /// without a comparison, nor while its breaker's state (`standing`) is not full service, nor for a minute
    /// after load was found to be the cause of its slowness.
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

    /// Forgets the store's consecutive failures and slow comparisons, after it was ejected (taken out of use)
    /// or came back into service.
    pub fn begin_anew(&mut self) {
        (self.row, self.slow) = (0, 0);
    }
}

/// True if more than one of a store's replies in five failed, and more than chance explains (two standard
/// deviations).
fn is_surely_failing(failures: u64, replies: u64) -> bool {
    let deviation = (replies as f64 * FAILING * (1.0 - FAILING)).sqrt();
    failures as f64 > replies as f64 * FAILING + 2.0 * deviation
}

/// Latency and load of a store, and of the other stores, by which it is judged whether the store is slow, and
/// whether because of load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// 95th percentile of this store's latency for a class of commands, as this core measured it.
    pub own: Duration,
    /// Median of the other stores' 95th percentiles of latency for the same class of commands.
    pub others: Duration,
    /// Replies per second of this store to all cores, over about the last second.
    pub rate: f64,
    /// Replies per second of this store to all cores some seconds earlier; None if unknown.
    pub rate_before: Option<f64>,
    /// Median of the other stores' replies per second to all cores.
    pub rate_others: f64,
}

impl Comparison {
    /// Returns the highest 95th percentile of a store's latency that does not count as slow: three times that
    /// of the other stores (`others`), and at least 2 ms more.
    pub fn fair(others: Duration) -> Duration {
        others.mul_f64(SLOWER).max(others + SLOWER_BY)
    }

    /// Returns the ratio of this store's 95th percentile of latency to the median of the other stores'.
    pub fn slowness(self) -> f64 {
        self.own.as_secs_f64() / self.others.as_secs_f64().max(1e-9)
    }

    fn is_slow(self) -> bool {
        let is_crowded = self.rate > CROWDED * self.rate_others
            || self.rate_before.is_none_or(|before| self.rate > GROWN * before);
        self.own > Self::fair(self.others) && !is_crowded
    }
}

/// One figure of several stores, sorted, from which the median of all stores but one is read for each of them:
/// sorting the others anew for each store would take more than quadratic time.
#[derive(Clone, Debug, Default)]
pub struct Sorted {
    /// Figures and indices of the stores, in ascending order.
    values: Vec<(f64, usize)>,
}

impl Sorted {
    /// Sorts a figure of some stores, given with the stores' indices, each of which occurs once at most.
    pub fn new(values: impl IntoIterator<Item = (f64, usize)>) -> Self {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_unstable_by(Self::order);
        Self { values }
    }

    /// Returns the median of the other stores' figures, the upper one of an even number. `store` is the index of the
    /// store to be compared with them and `own` its figure, None if that is not among the sorted ones. None with fewer
    /// than two others, since one other store is not enough to compare with.
    pub fn median_of_others(&self, store: usize, own: Option<f64>) -> Option<f64> {
        let own = own.and_then(|own| self.place(store, own));
        let others = self.values.len() - usize::from(own.is_some());
        let middle = others / 2;
        let middle = middle + usize::from(own.is_some_and(|own| own <= middle));
        (others >= 2).then(|| self.values[middle].0)
    }

    /// Removes a store's figure (`own`), if it is among the sorted ones: the store is not one to compare with any more.
    pub fn remove(&mut self, store: usize, own: f64) {
        if let Some(place) = self.place(store, own) {
            self.values.remove(place);
        }
    }

    fn place(&self, store: usize, own: f64) -> Option<usize> {
        self.values.binary_search_by(|value| Self::order(value, &(own, store))).ok()
    }

    fn order(one: &(f64, usize), other: &(f64, usize)) -> std::cmp::Ordering {
        one.0.total_cmp(&other.0).then(one.1.cmp(&other.1))
    }
}

#[cfg(test)]
mod tests;
