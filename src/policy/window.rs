//! Window of one core at one backend: how many requests the core has in flight there, as many as keep the
//! backend busy and no more.
//!
//! Each round of replies gives their median latency. The round compares it with the base, the latency of a
//! reply when little waits at the backend: up to an allowed latency above the base the window grows, in
//! proportion to the room that is left; beyond it the window shrinks, in proportion too. A deep cut is a
//! trial first: if much less in flight brings no sooner a reply, the backend is slow and not crowded, and its
//! present latency becomes the new base.
//!
//! | trap | what is done about it |
//! |---|---|
//! | one core has few samples | cores publish what they saw ([`Record`]), and judge by all records |
//! | the base creeps up under load | from time to time all cores probe together, with a quarter of their windows |
//! | a core was late | that time is not the backend's, and is subtracted from the sample |
//! | replies from before a change of the window | they do not count for the round after it |
//! | some kinds of requests always take longer | each kind has a base of its own, and counts by what it took beyond that |
//! | requests miss their deadlines, so the window is never full | the window is cut all the same |
//! | a window is not used | it shrinks to twice what was in flight lately |
//! | service times are irregular, and replies of a connection leave in order | latency is compared with that at a quarter of the window |
//! | replies come after their deadlines | the median latency may take 60 % of the time that deadlines leave when requests are sent |
//! | expensive requests, which have a window of their own, make replies slow | no cut while fewer of them may soon be in flight (`yielding.rs`) |
//! | rounds of slow replies take long | the latency of the next request is expected from the latest replies, and not from a round |
//!
//! # Crowded or irregular
//!
//! Little's law (in flight = throughput x latency) says which of the two a smaller window changes. Four times
//! less in flight at a crowded backend is answered four times sooner, and throughput stays; at one that is
//! not crowded latency stays, and throughput falls to a quarter. Replies of one connection leave in the order
//! of requests, so where service times are irregular one slow request holds back those behind it, and latency
//! grows with what is in flight though servers are idle. A single round cannot tell this from a queue.
//! Therefore no window is cut mildly before all cores have probed together with a quarter of it: as long as
//! the full window takes less than twice the latency of a quarter, it brings more than twice the throughput,
//! and stays. A backend that is not crowded with a quarter is allowed the same slack above that latency as above
//! the base, which may be that of a quicker time: a small window has small quarters, and would otherwise stay small.
//!
//! `tests/overload.rs` runs this together with the queue (`queue.rs`) in virtual time.

use std::time::Duration;

use crate::values::Timestamp;

/// Window (limit on requests in flight) that all cores together begin with at a backend, in requests: each core
/// gets an equal part, but at least [`FIRST_LEAST`].
const FIRST_OF_ALL: u16 = 64;
/// Smallest window (limit on requests in flight) that one core begins with at a backend, in requests.
const FIRST_LEAST: u16 = 4;
/// Latency allowed above the base (latency when few requests wait at the backend), as a multiple of the base;
/// at least 5 ms, and at most 40 ms or the base itself, whichever is more.
const SLACK_PARTS: f64 = 8.0;
/// Least latency allowed above the base (latency when few requests wait at the backend), in seconds.
const SLACK_LEAST: f64 = 0.005;
/// Largest latency, in seconds, that is allowed above the base (latency when few requests wait at the
/// backend), unless the base is longer: then as much as the base is allowed above it.
const SLACK_MOST: f64 = 0.040;
/// Shortest round (stretch of replies whose median latency decides about the window), in seconds.
const ROUND_LEAST: f64 = 0.010;
/// Shortest round (stretch of replies whose median latency decides about the window) as a multiple of the
/// last round's median latency: with slow replies a round lasts longer than 10 ms.
const ROUND_MEDIANS: f64 = 1.5;
/// Least number of sampled replies with which a round (stretch of replies that decides about the window) may
/// end.
const SAMPLES_LEAST: usize = 3;
/// Number of sampled replies that a round (stretch of replies that decides about the window) has to have before
/// a median latency above twice the allowed one makes a full window (limit on requests in flight) shrink. The
/// round waits for them for at most four times that median.
const SAMPLES_GRAVE: usize = 9;
/// Maximum number of sampled replies kept of a round (stretch of replies that decides about the window). Once
/// so many are kept, every second one is dropped, and from then on half as many replies are sampled.
const SAMPLES_KEPT: usize = 64;
/// Once a round (stretch of replies that decides about the window) has this many samples, a reply is not
/// sampled if it arrived with the last sample and its request was sent with that sample's request.
const SAMPLES_APART: usize = 16;
/// Length of a base period, in seconds. The base (latency when few requests wait at the backend) is the least
/// median of blocks of replies over this period and the one before.
const BASE_PERIOD: f64 = 10.0;
/// Number of replies in a block, whose median is a candidate for the base (latency when few requests wait at
/// the backend).
const BLOCK: usize = 64;
/// Number of replies in the first block of a kind of requests. Blocks, whose medians are candidates for the
/// base (latency when few requests wait at the backend), double up to 64 replies; until then their medians
/// are provisional.
const BLOCK_FIRST: usize = 4;
/// Latency, in seconds, that a reply is taken to have had if the clock did not move between the request's
/// sending and the reply: no latency is zero.
const LATENCY_LEAST: f64 = 1e-9;
/// Part of the window (limit on requests in flight) that a mild cut leaves: the window shrinks by 20 %. Also
/// the part of the allowed latency that a deep cut, made at more than twice the allowed latency, aims at.
const CUT: f64 = 0.8;
/// Smallest part of the window (limit on requests in flight) that one deep cut (made at more than twice the
/// allowed latency) leaves, if at least 3 replies show the latency of the full window; otherwise the window is
/// halved.
const CUT_DEEPEST: f64 = 0.2;
/// The result of a deep cut (at more than twice the allowed latency) is judged only if both this core's
/// window and the sum of all full windows are below this part of what they were before the cut: with hardly
/// less in flight, latency shows nothing.
const LESS: f64 = 0.9;
/// In each round of replies, a core's full window (limit on requests in flight, for room in which requests
/// wait) moves by this part of the way to the mean of all cores' full windows.
const EVEN: f64 = 0.2;
/// Shortest time between two regular probes (rounds with a quarter of the window, to measure the base latency),
/// in seconds. Probes begin at multiples of their interval, so that all cores probe at the same time.
const PROBE_LEAST: f64 = 1.0;
/// Longest time between two regular probes (measurements of the latency when few requests wait at the backend),
/// in seconds.
const PROBE_MOST: f64 = 8.0;
/// Shortest duration of a probe (measurement of the base latency), in seconds.
const PROBE_LASTS: f64 = 0.020;
/// Part of the window (limit on requests in flight) that is in use during a probe (measurement of the base
/// latency).
const PROBE_PART: f64 = 0.25;
/// Time, in seconds, for which the result of a probe (measurement of the base latency) permits the window to
/// shrink by 20 % (mild cut); after that a mild cut waits for another probe.
const LOOK_FRESH: f64 = 4.0;
/// Probes (measurements of the base latency) that are made before a mild cut (the window shrinks by 20 %)
/// begin at multiples of this time, in seconds, so that all cores probe at the same time.
const LOOK_STEP: f64 = 0.25;
/// Where replies are slow, probes (measurements of the base latency) before a mild cut (of 20 %) begin at
/// multiples of a longer time: the next power of two, in seconds, above this many median latencies.
const LOOK_STEP_MEDIANS: f64 = 5.0;
/// A mild cut (of 20 %) that would leave less than this part of the window (limit on requests in flight) at the
/// last probe (measurement of the base latency) waits for another probe: so few requests could not crowd the
/// backend as it was then, so the backend has changed.
const LOOK_PART: f64 = 0.5;
/// Latency of replies with a full window (limit on requests in flight), as a multiple of that with a quarter of
/// the window, up to which the backend does not count as crowded. Without deadlines, latency is also allowed up
/// to this multiple of the base (latency when few requests wait at the backend), if that is more than the usual
/// slack.
const QUARTERS: f64 = 2.0;
/// Time, in seconds, for which the latency at a quarter of the window (limit on requests in flight) that a
/// probe has measured is used.
const QUARTER_LASTS: f64 = 10.0;
/// Exponent by which a deep cut (at more than twice the allowed latency) is judged. If the cut left the part
/// p of the requests in flight, and latency fell to p to the power of this or lower, the backend was crowded.
const CROWDED: f64 = 0.75;
/// Time after a probe (measurement of the base latency) for which the window (limit on requests in flight) does
/// not grow, as a multiple of the longest latency at which a full window does not count as crowded: twice that
/// with a quarter.
const SETTLES: f64 = 2.0;
/// Median latency, as a multiple of the base (latency when few requests wait at the backend), above which load
/// may be what makes replies slow.
const RAISED: f64 = 1.5;
/// Exponent by which a probe (measurement of the base latency) is judged. If the probe divided the window
/// (limit on requests in flight) by n, and latency was divided by n to the power of this or more, the backend
/// is crowded even with the smaller window.
const ALL_CROWD: f64 = 0.9;
/// Number of replies that a probe (measurement of the base latency) needs for a result. A probe that has
/// fewer lasts up to a second longer, and then ends without result.
const QUARTER_LEAST: usize = 8;
/// Maximum number of latencies kept of a probe (measurement of the base latency); later ones are left out.
const QUARTER_KEPT: usize = 128;
/// Part of the time between a request's sending and its deadline that the median reply may take: half of the
/// replies take longer than the median.
const DEADLINE_PART: f64 = 0.6;
/// Latency, as a multiple of the base (latency when few requests wait at the backend), below which deadlines
/// of requests never lower the allowed latency: no smaller window would be faster.
const DEADLINE_BASES: f64 = 1.5;
/// Number of latest replies from which the latency of the next request is expected.
const LATEST: usize = 8;
/// Largest factor by which the latency beyond the base of an earlier request is multiplied because more
/// requests are in flight now than when it was sent; with even more in flight, it is multiplied by just this.
/// So the few replies of a calm time do not make a burst look slower than that.
const FAR: f64 = 4.0;
/// Part of the latency beyond the base (latency when few requests wait at the backend) that is expected on top
/// of it while requests wait for room in the window or miss their deadlines: replies vary, and a request that
/// is sent just in time makes the next ones late.
const CAUTION: f64 = 0.5;
/// Interval, in seconds, at which a window (limit on requests in flight) is lowered to twice the most
/// requests that were in flight during the last two such intervals, though not below the window's first size.
const UNUSED: f64 = 5.0;
/// Maximum number of cores with full windows (in which requests wait for room) at which a core that has
/// hardly any request in flight and still sees slow replies may conclude that the backend itself is slow.
const ALONE: usize = 8;

/// Smallest and largest size of a core's window (limit on requests in flight at a backend), in requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The smallest size that the window (limit on requests in flight) may shrink to, in requests, at least
    /// 1.
    pub least: u16,
    /// The largest size that the window (limit on requests in flight) may grow to, in requests.
    pub most: u16,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { least: 1, most: 4096 }
    }
}

impl Bounds {
    /// Returns the window (limit on requests in flight) that each of `shards` cores begins with at a backend,
    /// in requests.
    pub fn first(self, shards: u16) -> u16 {
        (FIRST_OF_ALL / shards.max(1)).max(FIRST_LEAST).min(self.most).max(self.least)
    }
}

/// Number of kinds of requests (class of command, read or write; and one for all whose replies are errors) that
/// have a base (latency when few requests wait at the backend) of their own.
pub const KINDS: usize = 16;
/// Kind of all requests whose replies are errors. A backend may refuse requests at once, so the base of these
/// replies counts as the backend's only while no other kind has one. Their latency above that base counts like
/// that of other replies.
pub const ERRORS: usize = KINDS - 1;
/// Part of its weight that the mix of kinds of requests in earlier rounds of replies keeps when the mix of
/// another round is added.
const MIX_KEPT: f64 = 0.9;

/// The facts about a sampled reply of the backend by which the window (limit on requests in flight) is
/// adjusted.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Time at which the sampled request was sent to the backend.
    pub sent_at: Timestamp,
    /// Time between sending and reply during which this core did not run, which is not the backend's latency.
    pub late: Duration,
    /// Number of this core's requests in flight at the backend when the reply came, itself included.
    pub in_flight: usize,
    /// Number of this core's requests in flight at the backend when the request was sent, itself included.
    pub depth: u32,
    /// Kind of the request (class of command, read or write) as a number from 0 to 15, or [`ERRORS`] if the reply is
    /// an error. Requests of one kind take about as long as each other.
    pub kind: usize,
    /// True if the latency says nothing about other requests: the request costs much, for instance, or was
    /// behind such a request on its connection.
    pub is_costly: bool,
    /// Time between the request's sending and its deadline; `None` for a request without deadline.
    pub left: Option<Duration>,
}

/// Result of one core's round (stretch of replies whose median latency decides about the window), which the
/// core publishes to the other cores on the [`Board`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Record {
    /// Time at which the round of replies that the record is about ended.
    pub at: Timestamp,
    /// The median latency of the round's replies, in seconds, as if they were of the usual mix of kinds of
    /// requests.
    pub median: f64,
    /// Number of sampled replies that the median latency is computed from.
    pub samples: u32,
    /// The core's base (latency of a reply when little waits at the backend), in seconds; 0 while it is
    /// unknown.
    pub base: f64,
    /// The core's window: the number of requests that it may have in flight.
    pub window: f64,
    /// True if requests waited for room in the window (limit on requests in flight) in the round of replies
    /// that the record is about.
    pub is_limited: bool,
    /// The median latency at a quarter of the window, in seconds, as probes (measurements of the base latency)
    /// and deep cuts have shown it; 0 where that is unknown or older than 10 s.
    pub quarter: f64,
    /// Time at which, by this core's request, all cores are to measure the base latency with few requests in
    /// flight (probe). Meaningless once it has passed.
    pub probe_at: Timestamp,
}

/// Figures of all cores together, computed from their records.
#[derive(Clone, Copy, Debug)]
struct Common {
    /// Median latency of the backend's replies, averaged over the cores by their numbers of samples, in
    /// seconds.
    median: f64,
    /// Median over all cores of their base latencies (latency when few requests wait at the backend), in
    /// seconds.
    base: f64,
    /// Mean window (limit on requests in flight) of the cores whose windows are full, in requests; 0 where
    /// none is.
    window: f64,
    /// Number of cores whose windows (limits on requests in flight) are full, so that requests wait.
    limited: usize,
    /// Sum of the windows (limits on requests in flight) of the cores whose windows are full, in requests.
    crowd: f64,
    /// The median latency at a quarter of the window, in seconds, averaged over the cores that know it; 0
    /// where no core does.
    quarter: f64,
    /// The earliest time, in seconds, at which any core wants all cores to measure the base latency (probe);
    /// infinite if none does.
    probe_at: f64,
}

/// State before a deep cut (at more than twice the allowed latency), with which its result is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Before {
    /// Window (largest number of requests in flight) of this core before the cut, in requests.
    window: f64,
    /// Median latency of replies to requests that were sent when at least 70 % of the window were in flight,
    /// in the round before the cut, in seconds.
    median: f64,
    /// Sum of the windows (limits on requests in flight) of all cores whose windows are full, in requests.
    crowd: f64,
}

/// Experiment with the size of the window (limit on requests in flight) that is in progress.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    None,
    /// A deep cut (at more than twice the allowed latency) of the window, to see whether replies come sooner
    /// with fewer requests in flight, with the state before it and the number of rounds (of replies) seen
    /// since.
    Cut {
        before: Before,
        rounds: u32,
    },
    /// A probe (measurement of the base latency) with a quarter of the window: the window before it, and its
    /// end in seconds.
    Probe {
        window: f64,
        until: f64,
    },
}

/// One sampled reply of a round (stretch of replies that decides about the window), from which the round's
/// median latency is computed.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Latency of the sampled reply without the time in which this core did not run, in seconds, as if the
    /// request were of the usual mix of kinds.
    low: f64,
    /// Number of requests in flight when the request was sent.
    depth: f64,
    /// Time between sending and deadline, in seconds; infinite without deadline.
    left: f64,
}

/// One of the latest replies, from which the latency of the next request is expected.
#[derive(Clone, Copy, Debug)]
struct Latest {
    /// Latency of the reply beyond the base of the request's kind, without the time in which this core did
    /// not run, in seconds.
    beyond: f64,
    /// Number of requests in flight when the request was sent, itself included.
    depth: f64,
}

impl Latest {
    const NONE: Self = Self { beyond: 0.0, depth: 1.0 };

    /// Returns the latency beyond the base, in seconds, of a request that is sent with `in_flight` others in
    /// flight, if the backend answers at the pace of this reply.
    fn beyond_with(&self, in_flight: f64) -> f64 {
        self.beyond * (in_flight / self.depth).min(FAR)
    }
}

/// Base of one kind of requests: the latency of its replies when few requests wait at the backend.
#[derive(Clone, Debug)]
struct Floor {
    /// Least median latency of a block of replies in this base period (10 s), in seconds.
    newer: f64,
    /// Least median latency of a block of replies in the base period (10 s) before, in seconds.
    older: f64,
    /// Latencies of the block of replies that is being filled, in seconds.
    block: Vec<f64>,
    /// Number of latencies at which the block of replies is complete, and its median is taken.
    block_wanted: usize,
    /// The lesser of `newer` and `older`, in seconds; 0 while unknown.
    base: f64,
    /// Weight of this kind of requests among all kinds in the last rounds (stretches of replies that decide
    /// about the window).
    weight: f64,
    /// Number of replies of the kind in this round (stretch of replies that decides about the window).
    seen: u32,
}

impl Default for Floor {
    fn default() -> Self {
        Self {
            newer: f64::INFINITY,
            older: f64::INFINITY,
            block: Vec::new(),
            block_wanted: BLOCK_FIRST,
            base: 0.0,
            weight: 0.0,
            seen: 0,
        }
    }
}

impl Floor {
    fn is_known(&self) -> bool {
        self.base > 0.0
    }

    fn add(&mut self, raw: f64, is_probe: bool) {
        self.seen += 1;
        if self.block.len() < 2 * BLOCK {
            self.block.push(raw);
        }
        // The first few replies of a kind, or of a backend after idle time, already give a first base.
        if !self.is_known() && self.block.len() == SAMPLES_LEAST {
            let first = median_of(&mut self.block, |seconds| *seconds);
            self.learn(first);
        } else if self.block.len() >= self.block_wanted && !is_probe {
            self.learn_block();
        }
    }

    fn learn_block(&mut self) {
        let median = median_of(&mut self.block, |seconds| *seconds);
        self.block.clear();
        self.learn(median);
    }

    /// Records the median of a block of replies as a candidate for the base (latency when few requests wait
    /// at the backend).
    fn learn(&mut self, median: f64) {
        if self.block_wanted < BLOCK {
            (self.older, self.block_wanted) = (f64::INFINITY, self.block_wanted * 2);
            // A median much above the first one comes from load, so it does not become the base.
            if median < RAISED * self.newer {
                self.newer = median;
            }
        }
        self.newer = self.newer.min(median);
        self.base = self.older.min(self.newer);
    }

    fn end_period(&mut self) {
        (self.older, self.newer) = (self.newer, f64::INFINITY);
    }

    fn set(&mut self, base: f64) {
        (self.older, self.newer, self.base) = (base, base, base);
        self.block.clear();
    }
}

/// The window (limit of requests in flight) of one core at one backend, which follows the backend's latency.
#[derive(Clone, Debug)]
pub struct Window {
    /// Present size of the window (limit on requests in flight), in requests.
    size: f64,
    /// Size that the window (limit on requests in flight) began with, in requests.
    first: f64,
    /// Smallest size that the window (limit on requests in flight) may have, in requests.
    least: f64,
    /// Largest size that the window (limit on requests in flight) may have, in requests.
    most: f64,
    /// Start of the present round of replies, whose median latency decides how the window changes, in seconds
    /// of the monotonic clock. Replies to requests sent before it do not count.
    started: f64,
    /// Latencies of replies sampled in the present round (stretch of replies, since `started`).
    seen: Vec<Seen>,
    /// Number of replies that each kept sample of a latency stands for.
    stride: u32,
    /// Number of replies to skip before the next sample.
    skip: u32,
    /// Time from which the next reply is sampled, however many were to be skipped.
    skip_until: Timestamp,
    /// Arrival and send time of the reply sampled last. Once a round has 16 samples, further replies with the
    /// same times are not sampled.
    looked_at: (Timestamp, Timestamp),
    /// True if requests waited for room in the window (limit on requests in flight) in the present round of
    /// replies.
    is_limited: bool,
    /// True if requests waited for room in the window (limit on requests in flight) in the round of replies
    /// before the present one.
    was_limited: bool,
    /// True if a request missed its deadline in the present round of replies.
    is_missed: bool,
    /// True after a cut or at the start of a probe (measurement of the base latency) until no more requests
    /// than the window permits are in flight; replies do not count until then.
    is_draining: bool,
    /// Experiment with the size of the window (limit on requests in flight) that is in progress, by which the
    /// base latency or the effect of a cut is measured.
    trial: Trial,
    /// Number of rounds of replies in a row with a median latency above the allowed one, 0 or 1: the second
    /// such round makes the window shrink or asks for a probe (measurement of the base latency).
    above: u32,
    /// Number of rounds of replies in a row with a median latency above the allowed one and hardly any
    /// request in flight. At 2, the latency becomes the base if at most 8 cores have full windows.
    floor: u32,
    /// Median latency of the last round of replies over all cores, in seconds.
    median: f64,
    /// True while the window (limit on requests in flight) grows by a quarter or more per round of replies.
    is_growing: bool,
    /// Base of each kind of requests: latency of its replies when little waits at the backend.
    floors: [Floor; KINDS],
    /// End of the present base period, in seconds. The base latency (latency when few requests wait at the
    /// backend) is the least of this period and the one before.
    period_ends: f64,
    /// Latency of a reply when few requests wait at the backend (the base), for the present mix of kinds of
    /// requests, as this core measured it, in seconds.
    own_base: f64,
    /// Base over all cores (latency of a reply when few requests wait at the backend), in seconds.
    base: f64,
    /// Time of the next probe (measurement of the base latency with few requests in flight), in seconds.
    probe_at: f64,
    /// Time between two regular probes of the base latency, in seconds.
    probe_every: f64,
    /// End of the last probe (measurement of the base latency), in seconds; 0 before the first.
    probed_at: f64,
    /// Window (limit on requests in flight) before the last probe (measurement of the base latency), in
    /// requests; 0 before the first.
    probed_size: f64,
    /// The median latency when the last probe (measurement of the base latency) began, in seconds.
    probed_median: f64,
    /// Time before which the window does not grow, in seconds: requests sent right after a probe (measurement
    /// of the base latency) found an empty backend, so their latency is too low.
    settles_until: f64,
    /// Latencies measured in the present probe (with a quarter of the window), in seconds.
    quarter_seen: Vec<f64>,
    /// Latency at a quarter of the window as this core measured it, in seconds; 0 if unknown, or if the backend
    /// was crowded even then.
    own_quarter: f64,
    /// Time at which the latency at a quarter of the window (`own_quarter`) was measured, in seconds.
    own_quarter_at: f64,
    /// Latency at a quarter of the window over all cores, in seconds; 0 if unknown.
    quarter: f64,
    /// Time for which this core has last asked all cores to measure the base latency (probe), in seconds on
    /// the clock of `Timestamp`; 0 if it never asked. Other cores ignore a time that is past.
    asked_at: f64,
    /// Median time between sending and deadline of the requests answered in the last round, in seconds;
    /// infinite without deadlines.
    left: f64,
    /// Base latencies of all cores (latencies when few requests wait at the backend), in a buffer that each
    /// round of replies uses again.
    bases: Vec<f64>,
    /// True if expensive requests, which have a window of their own, are in flight to the same backend.
    is_beside_expensive: bool,
    /// True if expensive requests, which have a window of their own, were in flight to the same backend at
    /// any time in this base period (10 s).
    was_beside_expensive: bool,
    /// True if fewer expensive requests may soon be in flight because replies of this window come late.
    may_yield: bool,
    /// Maximum number of requests in flight in this period (5 s), after which a window that was not used up
    /// may shrink.
    peak: usize,
    /// Maximum number of requests in flight in the period (of 5 s) before the present one.
    peak_before: usize,
    /// Start of the period in which `peak` is measured, in seconds.
    peak_since: f64,
    /// The latest replies, in a ring.
    latest: [Latest; LATEST],
    /// Index in `latest` that the next reply takes.
    latest_next: usize,
}

impl Window {
    /// Creates the window (limit on requests in flight) of one of `shards` cores, at a backend about which
    /// nothing is known yet. `bounds` are its smallest and largest size.
    pub fn new(shards: u16, bounds: Bounds) -> Self {
        let first = f64::from(bounds.first(shards));
        Self::beginning(0.0, [first, f64::from(bounds.least.max(1)), f64::from(bounds.most)])
    }

    /// Forgets all that was learnt, because another server has taken the backend's place. The window (limit on
    /// requests in flight) begins anew with its first size, which is published to the other cores (`others`).
    pub fn forget(&mut self, now: Timestamp, others: &mut impl Board) {
        *self = Self::beginning(seconds(now), [self.first, self.least, self.most]);
        others.tell(Record { at: now, window: self.size, ..Record::default() });
    }

    /// Returns a window that has seen nothing, at the time `at` in seconds, with its first, smallest and largest
    /// size.
    fn beginning(at: f64, [first, least, most]: [f64; 3]) -> Self {
        Self {
            size: first,
            first,
            least,
            most,
            started: at,
            seen: Vec::with_capacity(SAMPLES_KEPT),
            stride: 1,
            skip: 0,
            skip_until: Timestamp::ZERO,
            looked_at: (Timestamp::ZERO, Timestamp::ZERO),
            is_limited: false,
            was_limited: false,
            is_missed: false,
            is_draining: false,
            trial: Trial::None,
            above: 0,
            floor: 0,
            median: 0.0,
            is_growing: true,
            floors: std::array::from_fn(|_| Floor::default()),
            period_ends: at + BASE_PERIOD,
            own_base: 0.0,
            base: 0.0,
            probe_at: at + PROBE_LEAST,
            probe_every: PROBE_LEAST / 2.0,
            probed_at: 0.0,
            probed_size: 0.0,
            probed_median: 0.0,
            settles_until: 0.0,
            quarter_seen: Vec::with_capacity(QUARTER_KEPT),
            own_quarter: 0.0,
            own_quarter_at: 0.0,
            quarter: 0.0,
            asked_at: 0.0,
            left: f64::INFINITY,
            bases: Vec::new(),
            is_beside_expensive: false,
            was_beside_expensive: false,
            may_yield: false,
            peak: 0,
            peak_before: 0,
            peak_since: at,
            latest: [Latest::NONE; LATEST],
            latest_next: 0,
        }
    }

    /// Returns the size of the window: how many requests this core may have in flight at the backend.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Returns the latency of replies when few requests are in flight at the backend (the base), over all
    /// cores; zero while unknown.
    pub fn base(&self) -> Duration {
        duration(self.base)
    }

    /// Returns the latency expected of a request sent now, with `in_flight` others of this core in flight: the base
    /// (latency when few requests wait at the backend), and an excess over it. The excess of each of the latest
    /// eight replies is scaled by the number in flight now and when its request was sent; the smallest counts or, if
    /// requests lately waited for room in the window or missed their deadlines, one and a half times the median.
    pub fn expected(&self, in_flight: usize) -> Duration {
        let mut beyond = self.latest.map(|reply| reply.beyond_with(in_flight as f64));
        beyond.sort_unstable_by(f64::total_cmp);
        let is_pressed = self.is_limited || self.was_limited || self.is_missed;
        duration(self.base + if is_pressed { (1.0 + CAUTION) * beyond[LATEST / 2] } else { beyond[0] })
    }

    /// Returns the median latency of the last round (stretch of replies that decides about the window), over
    /// all cores.
    pub fn median(&self) -> Duration {
        duration(self.median)
    }

    /// True while the window (limit on requests in flight) still grows by a quarter or more per round of
    /// replies, so that the backend's capacity is not known yet.
    pub fn is_growing(&self) -> bool {
        self.is_growing
    }

    /// Handles that a turn (pass of the shard's loop) ended with requests that waited for room in the window
    /// (limit on requests in flight). The present round of replies may then make the window grow or shrink.
    pub fn handle_limited(&mut self) {
        self.is_limited = true;
    }

    /// Handles that a request could not be answered before its deadline. If the present round of replies is
    /// then slower than allowed, it counts as one with a full window (limit on requests in flight): the
    /// window may never become full, because such requests are not sent.
    pub fn handle_missed(&mut self) {
        self.is_missed = true;
    }

    /// Handles the first reply after the backend had stalled (sent nothing for long): the window (limit on
    /// requests in flight) falls to at most its first size, and replies to requests sent earlier do not
    /// count.
    pub fn handle_stall_end(&mut self, now: Timestamp) {
        self.size = self.size.min(self.first);
        (self.trial, self.is_draining, self.is_growing) = (Trial::None, false, true);
        self.begin_round(seconds(now));
    }

    /// True if a reply to a request sent at `sent_at` is to be sampled with [`Window::handle_reply`]. Of many
    /// replies in a round (stretch of replies that decides about the window) only every n-th is; the call
    /// counts those that are skipped.
    #[inline]
    pub fn wants(&mut self, sent_at: Timestamp, now: Timestamp) -> bool {
        if self.skip > 0 && now < self.skip_until {
            self.skip -= 1;
            return false;
        }
        (now, sent_at) != self.looked_at || self.seen.len() < SAMPLES_APART
    }

    /// Samples a reply. At the end of a round (stretch of replies that decides about the window) it publishes
    /// this core's record to `others`, reads there the records of the other cores, and adjusts the window.
    pub fn handle_reply(&mut self, sample: &Sample, now: Timestamp, others: &mut impl Board) {
        self.looked_at = (now, sample.sent_at);
        let at = seconds(now);
        self.peak = self.peak.max(sample.in_flight);
        if at >= self.probe_at {
            self.probe(at);
        }
        self.keep_latest(sample, at);
        if self.is_draining {
            if sample.in_flight as f64 > self.size {
                return;
            }
            self.is_draining = false;
            self.begin_round(at);
        }
        let sent_at = seconds(sample.sent_at);
        if sent_at < self.started || sample.is_costly {
            return;
        }
        // A clock that did not move in between makes the latency zero, which it never is.
        let raw = (at - sent_at).max(LATENCY_LEAST);
        let is_probe = matches!(self.trial, Trial::Probe { .. });
        let floor = &mut self.floors[sample.kind % KINDS];
        floor.add(raw, is_probe);
        if !floor.is_known() {
            return;
        }
        let usual = floor.base;
        if self.base == 0.0 {
            self.mix();
            self.base = self.own_base;
        }
        let low = (raw - sample.late.as_secs_f64() - usual + self.own_base).max(0.0);
        let left = sample.left.map_or(f64::INFINITY, |left| left.as_secs_f64());
        self.keep(Seen { low, depth: f64::from(sample.depth), left });
        let (count, took) = (self.seen.len(), at - self.started);
        if count >= SAMPLES_LEAST && took >= ROUND_LEAST.max(ROUND_MEDIANS * self.median) {
            let is_grave =
                count < SAMPLES_GRAVE && self.trial == Trial::None && self.size >= 4.0 && self.is_limited;
            if is_grave {
                // Before a large cut on few replies, more replies are awaited.
                let low = median_of(&mut self.seen, |seen| seen.low);
                if low > 2.0 * self.allowed() && took < 4.0 * low {
                    return;
                }
            }
            self.end_round(now, others);
        }
    }

    /// Keeps a reply, which came at the time `at` in seconds, as one of the eight latest, from which the
    /// latency of the next request is expected. Ignores it if its request was costly or followed a costly
    /// one, or if the base of its kind is unknown.
    fn keep_latest(&mut self, sample: &Sample, at: f64) {
        let (sent_at, floor) = (seconds(sample.sent_at), &self.floors[sample.kind % KINDS]);
        if sample.is_costly || !floor.is_known() {
            return;
        }
        let beyond = (at - sent_at - sample.late.as_secs_f64() - floor.base).max(0.0);
        self.latest[self.latest_next] = Latest { beyond, depth: f64::from(sample.depth.max(1)) };
        self.latest_next = (self.latest_next + 1) % LATEST;
    }

    fn keep(&mut self, seen: Seen) {
        if self.seen.len() == SAMPLES_KEPT {
            let mut index = 0;
            self.seen.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.stride = self.stride.saturating_mul(2);
        }
        self.seen.push(seen);
        self.skip = self.stride - 1;
        if self.skip > 0 {
            let ends = self.started + ROUND_LEAST.max(ROUND_MEDIANS * self.median);
            self.skip_until = Timestamp::from_nanos((ends * 1e9) as u64);
        }
    }

    /// Returns the median latency, in seconds, up to which the window (limit on requests in flight) is not
    /// too large for the backend.
    fn allowed(&self) -> f64 {
        calm_seconds(self.base.max(self.quarter)).min(self.useful())
    }

    /// Takes whether expensive requests, which have a window of their own, are in flight to the same backend: as long
    /// as they are, they may be why replies of this window come late. `may_yield` is true if fewer of them may soon
    /// be in flight for that reason.
    pub fn handle_expensive(&mut self, are_in_flight: bool, may_yield: bool) {
        (self.is_beside_expensive, self.may_yield) = (are_in_flight, may_yield);
        self.was_beside_expensive |= are_in_flight;
    }

    /// True if expensive requests, which have a window of their own, may be what makes replies slow, and fewer of
    /// them may soon be in flight. Until then a smaller window would only keep requests of this window waiting.
    const fn may_expensive_yield(&self) -> bool {
        self.is_beside_expensive && self.may_yield
    }

    /// True if this core may forget a lower base of earlier periods: no expensive requests were in flight in
    /// this base period (10 s), or the median latency is at most 1.5 times the base, so that they do not make
    /// replies slow.
    fn may_forget_base(&self) -> bool {
        !self.was_beside_expensive || self.median <= RAISED * self.base
    }

    /// Returns the median latency, in seconds, above which too many replies would come after their deadlines,
    /// however much throughput a larger window brings.
    fn useful(&self) -> f64 {
        (DEADLINE_PART * self.left).max(DEADLINE_BASES * self.base)
    }

    /// True if the window must not shrink by 20 % now, because it awaits a probe (measurement of the base
    /// latency) by all cores, for which this call asks them. False if there was a probe lately with a similar
    /// window, or if the window is too small for one. `at` is the present time, in seconds.
    fn awaits_probe(&mut self, at: f64) -> bool {
        let is_known = at - self.probed_at < LOOK_FRESH && self.size * CUT >= LOOK_PART * self.probed_size;
        if is_known || self.size < 2.0 * self.least {
            return false;
        }
        let step = LOOK_STEP.max(power_of_two_above(LOOK_STEP_MEDIANS * self.median));
        let soon = next_multiple(step, at);
        if soon < self.probe_at {
            (self.probe_at, self.asked_at) = (soon, soon);
        }
        true
    }

    fn begin_round(&mut self, at: f64) {
        self.was_limited = self.is_limited;
        (self.started, self.is_limited, self.is_missed, self.stride, self.skip) = (at, false, false, 1, 0);
        self.seen.clear();
    }

    /// Begins a probe (measurement of the base latency) at the time when all cores do, so that none of them
    /// fills the backend's queue meanwhile, and plans the next. Only a window that was full, or whose
    /// requests missed their deadlines, falls to a quarter. `at` is the present time, in seconds.
    fn probe(&mut self, at: f64) {
        let wanted = power_of_two_above((40.0 * self.median).max(0.5));
        self.probe_every = PROBE_MOST.min((2.0 * self.probe_every).max(wanted));
        self.probe_at = next_multiple(self.probe_every, at);
        if (self.is_limited || self.was_limited || self.is_missed)
            && self.size >= 2.0 * self.least
            && self.trial == Trial::None
        {
            self.floors.iter_mut().for_each(|floor| floor.block.clear());
            self.quarter_seen.clear();
            self.probed_median = self.median;
            self.trial = Trial::Probe { window: self.size, until: at + PROBE_LASTS.max(2.0 * self.median) };
            (self.size, self.is_draining) = (self.least.max(self.size * PROBE_PART), true);
        }
    }

    /// Computes this core's base (latency when few requests wait at the backend) for the recent mix of kinds
    /// of requests.
    fn mix(&mut self) {
        let (mut weights, mut sum) = (0.0, 0.0);
        for floor in self.floors[..ERRORS].iter_mut().filter(|floor| floor.is_known()) {
            floor.weight = MIX_KEPT * floor.weight + f64::from(std::mem::take(&mut floor.seen));
            weights += floor.weight;
            sum += floor.weight * floor.base;
        }
        if weights > 0.0 {
            self.own_base = sum / weights;
        } else if self.floors[ERRORS].is_known() {
            self.own_base = self.floors[ERRORS].base;
        }
    }

    /// Makes the present median latency (`median`, in seconds) the new base, the latency when few requests
    /// wait at the backend: the backend is slow by itself, rather than because of too many requests in
    /// flight. Does nothing while expensive requests may be the reason. `at` is the present time, in seconds.
    fn learn_anew(&mut self, at: f64, median: f64) {
        if self.may_expensive_yield() {
            // The backend may be slow because of those.
            return;
        }
        let times = if self.own_base > 0.0 { median / self.own_base } else { 1.0 };
        for floor in self.floors.iter_mut().filter(|floor| floor.is_known()) {
            floor.set(floor.base * times);
        }
        (self.base, self.own_base) = (median, median);
        // The latencies of the latest replies are those beyond the former base.
        self.latest = [Latest::NONE; LATEST];
        self.probe_every = PROBE_MOST.min(power_of_two_above((40.0 * median).max(1.0)));
        self.probe_at = next_multiple(self.probe_every, at);
    }

    /// Compares the latency of requests of this round of replies that were sent with few and with many
    /// requests in flight. Returns [`Foreign::Slow`] if they are about equal: the backend itself is slow.
    /// Returns [`Foreign::Paused`] if latency was lower with many in flight. None if latency rose with the
    /// number in flight, so that the window is the cause, or if the round has too few samples or too similar
    /// numbers in flight.
    fn is_not_ours(&mut self) -> Option<Foreign> {
        self.seen.sort_unstable_by(|one, other| one.depth.total_cmp(&other.depth));
        let third = self.seen.len() / 3;
        if third < SAMPLES_LEAST {
            return None;
        }
        let (lowest, others) = self.seen.split_at_mut(third);
        let start = others.len() - third;
        let highest = &mut others[start..];
        if highest[0].depth < 2.0 * lowest[third - 1].depth {
            return None;
        }
        let (few, many) = (median_of(lowest, |seen| seen.low), median_of(highest, |seen| seen.low));
        match few / many {
            ratio if ratio < 0.75 => None,
            ratio if ratio <= 1.33 => Some(Foreign::Slow),
            _ => Some(Foreign::Paused),
        }
    }

    fn end_round(&mut self, now: Timestamp, others: &mut impl Board) {
        let at = seconds(now);
        let (limited, before) = (self.is_limited, self.size);
        if at >= self.period_ends {
            if self.may_forget_base() {
                self.floors.iter_mut().for_each(Floor::end_period);
            }
            (self.period_ends, self.was_beside_expensive) = (at + BASE_PERIOD, self.is_beside_expensive);
        }
        let own = median_of(&mut self.seen, |seen| seen.low);
        let of_mix = self.own_base;
        self.mix();
        let own = (own - of_mix + self.own_base).max(0.0);
        if at - self.own_quarter_at > QUARTER_LASTS {
            self.own_quarter = 0.0;
        }
        if self.seen.len() >= SAMPLES_LEAST {
            self.left = median_of(&mut self.seen, |seen| seen.left);
        }
        let mut record = Record {
            at: now,
            median: own,
            samples: self.seen.len() as u32,
            base: self.own_base,
            window: self.size,
            is_limited: limited,
            quarter: self.own_quarter,
            probe_at: timestamp(self.asked_at),
        };
        others.tell(record);
        let common = self.common(others, now, 0.2 + 3.0 * own);
        self.median = common.median;
        self.base = common.base;
        self.quarter = common.quarter;
        self.probe_at = self.probe_at.min(common.probe_at);
        match self.trial {
            Trial::Probe { window, until } => self.end_probe_round(at, window, until),
            Trial::Cut { before, rounds } => self.end_cut_round(at, before, (rounds, common.crowd), own),
            Trial::None => {
                self.judge(at, limited, &common);
                self.adjust(limited, &common, before, at);
                // Other cores have to know before the probe begins, which may be sooner than this core's next
                // round ends.
                if record.probe_at != timestamp(self.asked_at) {
                    record.probe_at = timestamp(self.asked_at);
                    others.tell(record);
                }
            }
        }
        self.begin_round(at);
    }

    /// Combines the records about one backend (median latency, window, number of samples) that all cores have
    /// published on `board` into figures of the whole process. Median latencies count only if they are younger
    /// than `within` seconds, and bases for as long as a core remembers its own (two base periods).
    fn common(&mut self, board: &impl Board, now: Timestamp, within: f64) -> Common {
        let oldest = now.before(duration(within));
        let (mut samples, mut sum) = (0.0, 0.0);
        let (mut windows, mut fresh_limited, mut limited, mut crowd) = (0.0, 0.0, 0, 0.0);
        let (mut quarters, mut probed, mut probe_at) = (0.0, 0.0, f64::INFINITY);
        let oldest_quarter = now.before(duration(QUARTER_LASTS));
        let oldest_base = now.before(duration(2.0 * BASE_PERIOD));
        self.bases.clear();
        for record in board.records() {
            if record.quarter > 0.0 && record.at >= oldest_quarter {
                quarters += (record.quarter - record.base).max(0.0);
                probed += 1.0;
            }
            if record.probe_at > now {
                probe_at = probe_at.min(seconds(record.probe_at));
            }
            if record.base > 0.0 && record.at >= oldest_base {
                self.bases.push(record.base);
            }
            if record.is_limited && now.since(record.at) < Duration::from_secs(1) {
                limited += 1;
                crowd += record.window;
            }
            if record.at >= oldest && record.samples > 0 {
                samples += f64::from(record.samples);
                sum += (record.median - record.base) * f64::from(record.samples);
                if record.is_limited {
                    windows += record.window;
                    fresh_limited += 1.0;
                }
            }
        }
        let window = if fresh_limited > 0.0 { windows / fresh_limited } else { 0.0 };
        let base = median_of(&mut self.bases, |base| *base);
        // Latency is averaged beyond each core's own base, because mixes of kinds differ between cores.
        let median = if samples > 0.0 { (base + sum / samples).max(0.0) } else { 0.0 };
        let quarter = if probed > 0.0 { base + quarters / probed } else { 0.0 };
        Common { median, base, window, limited, crowd, quarter, probe_at }
    }

    /// Ends a round of replies during a probe (measurement of the base latency): collects its latencies and,
    /// once the probe is over, learns from them (if it has at least 8) and restores the window. `at` is the
    /// present time, `window` the window before the probe, and `until` its planned end, in seconds.
    fn end_probe_round(&mut self, at: f64, window: f64, until: f64) {
        let room = QUARTER_KEPT - self.quarter_seen.len();
        self.quarter_seen.extend(self.seen.iter().map(|seen| seen.low).take(room));
        let seen: usize = self.floors.iter().map(|floor| floor.block.len()).sum();
        let is_enough = seen >= QUARTER_LEAST;
        if (at >= until && is_enough) || at >= until + 1.0 {
            for floor in &mut self.floors {
                if is_enough && floor.block.len() >= SAMPLES_LEAST {
                    floor.learn_block();
                }
                floor.block.clear();
            }
            if self.quarter_seen.len() >= QUARTER_LEAST {
                // Of a small window less than a quarter could be taken away, because one request is the
                // least. A quarter allows twice the latency, the root of four; 1/n allows the root of n.
                let parts = (window.floor() / self.size.floor()).max(1.0);
                let low = median_of(&mut self.quarter_seen, |low| *low);
                if self.probed_median >= low * parts.powf(ALL_CROWD) {
                    self.own_quarter = 0.0;
                } else {
                    self.learn_quarter(at, low * parts.sqrt() / QUARTERS);
                }
            }
            (self.probed_at, self.probed_size) = (at, window);
            self.settles_until = at + SETTLES * QUARTERS * self.own_quarter;
            (self.size, self.trial) = (window, Trial::None);
        }
    }

    /// Ends a round of replies after a deep cut (at more than twice the allowed latency) of the window. If
    /// replies came no sooner with far fewer requests in flight, the backend is slow: its latency becomes the
    /// base (latency when few requests wait at the backend) and the window is restored. Both this core's own
    /// median and that of all cores have to show it, since other cores' records may be from before their
    /// cuts, and own replies are few. `at` is the present time in seconds, and `before` the state before the
    /// cut. `rounds` is the number of rounds since the cut, `crowd` the present sum of all cores' full
    /// windows, and `own` this core's own median latency.
    fn end_cut_round(&mut self, at: f64, before: Before, (rounds, crowd): (u32, f64), own: f64) {
        let Before { window, median, .. } = before;
        // Other cores with more in flight than before make up for this core's cut.
        let left = (self.size / window).max(crowd / before.crowd.max(window));
        let seen = self.median.min(own);
        let in_vain = left < LESS && seen > median * left.sqrt().max(0.3);
        if in_vain && rounds == 0 {
            self.trial = Trial::Cut { before, rounds: 1 };
            return;
        }
        self.trial = Trial::None;
        if !in_vain && left < LESS && seen > 0.0 {
            // The part of the cut that went into latency; the rest was throughput.
            let into_latency = (median / seen).ln() / (1.0 / left).ln();
            if into_latency < CROWDED {
                self.learn_quarter(at, median * 0.25_f64.powf(into_latency.max(0.0)));
            }
        }
        if in_vain {
            self.learn_anew(at, seen);
            (self.size, self.is_growing) = (self.size.max(window.min(window * seen / median)), true);
        }
    }

    fn judge(&mut self, at: f64, limited: bool, common: &Common) {
        let (allowed, seen) = (self.allowed(), self.median);
        let is_too_much = self.is_missed && seen > allowed;
        if !limited && !is_too_much {
            return;
        }
        if seen > allowed && self.may_expensive_yield() {
            return;
        }
        // If other cores are as busy at the backend, this core's concurrency says little about the cause of
        // the latency.
        let foreign = if seen > 2.0 * allowed { self.is_not_ours() } else { None };
        let foreign = foreign.filter(|foreign| *foreign == Foreign::Paused || common.limited <= 1);
        if let Some(foreign) = foreign {
            if foreign == Foreign::Slow {
                self.learn_anew(at, seen);
            }
        } else if seen > 2.0 * allowed {
            self.cut_deeply(at, allowed, common);
        } else if seen > allowed {
            // One slow round alone has no effect; the second in a row has.
            if self.above > 0 && self.size < 2.0 * self.least {
                // A window of about one request cannot crowd the backend, so it is not shrunk.
                self.count_floor(at, common);
            } else if self.above > 0 && seen <= self.useful() && self.awaits_probe(at) {
                // The probe finds out first whether a smaller window helps.
            } else if self.above > 0 {
                (self.size, self.above, self.is_draining) = (self.least.max(self.size * CUT), 0, true);
            } else {
                self.above = 1;
            }
        } else {
            let room = (allowed - seen) / (allowed - self.base);
            (self.above, self.floor) = (0, 0);
            if at < self.settles_until {
                return;
            }
            let growth = (2.0 * room - 1.0).clamp(0.05, 1.0);
            self.size = self.most.min(self.size + (self.size * growth).max(1.0));
        }
    }

    fn cut_deeply(&mut self, at: f64, allowed: f64, common: &Common) {
        if self.size < 4.0 || self.size <= self.least {
            self.size = self.least.max(self.size * 0.5);
            self.count_floor(at, common);
            return;
        }
        self.seen.sort_unstable_by(|one, other| one.depth.total_cmp(&other.depth));
        let full = self.seen.partition_point(|seen| seen.depth < 0.7 * self.size);
        let full = &mut self.seen[full..];
        self.is_draining = true;
        if full.len() < SAMPLES_LEAST {
            // Too few replies came while the window was full, so its latency is unknown: halve the window or,
            // if much less is in flight, that.
            let deepest = self.seen.last().map_or(self.size, |seen| seen.depth);
            self.size = self.least.max(self.size.min(deepest) * 0.5);
            return;
        }
        let median = median_of(full, |seen| seen.low);
        let before = Before { window: self.size, median, crowd: common.crowd };
        self.trial = Trial::Cut { before, rounds: 0 };
        // All cores decide that it was too much. Where this core alone would not, its cut is a mild one.
        let part = (CUT * allowed / median.max(LATENCY_LEAST)).clamp(CUT_DEEPEST, CUT);
        self.size = self.least.max(self.size * part);
    }

    /// Records the latency at a quarter of the window, in seconds, as measured by a probe (measurement of the
    /// base latency) or derived from a cut of the window. Takes the mean with the earlier value, since values
    /// from few replies vary. Does nothing while expensive requests may make replies slow. `at` is the
    /// present time, in seconds.
    fn learn_quarter(&mut self, at: f64, latency: f64) {
        if self.may_expensive_yield() {
            return;
        }
        let known = if self.own_quarter > 0.0 { self.own_quarter } else { latency };
        (self.own_quarter, self.own_quarter_at) = (known.midpoint(latency), at);
    }

    /// Counts a round of replies that took too long with hardly any request in flight. The second in a row
    /// means that the backend itself is slow, where at most 8 cores have full windows: its latency becomes
    /// the base. `at` is the present time, in seconds. `common` has the figures of all cores together.
    fn count_floor(&mut self, at: f64, common: &Common) {
        self.floor += 1;
        if self.floor >= 2 && common.limited <= ALONE {
            self.learn_anew(at, common.median);
            self.floor = 0;
        }
    }

    fn adjust(&mut self, limited: bool, common: &Common, before: f64, at: f64) {
        // Windows of cores that could use more come closer to each other.
        if limited && common.window > 0.0 {
            self.size += (common.window - self.size) * EVEN;
            self.size = self.size.min(self.most).max(self.least);
        }
        self.is_growing = self.size >= before * 1.25;
        if at - self.peak_since > UNUSED {
            let used = 2.0 * self.peak.max(self.peak_before) as f64;
            (self.peak_before, self.peak, self.peak_since) = (self.peak, 0, at);
            self.size = self.size.min(used).max(self.first.min(self.size));
        }
    }
}

/// Reason for slow replies other than the number of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Foreign {
    /// The backend is equally slow with few and with many requests in flight.
    Slow,
    /// The backend was slower for requests sent with few in flight than with many: it did not answer for a
    /// while.
    Paused,
}

/// The latest record of each core about its window in front of one backend (latency, base, window size),
/// through which the cores adjust their windows by common figures.
pub trait Board {
    /// Publishes this core's record about its window (limit on requests in flight), which replaces its former
    /// one.
    fn tell(&mut self, record: Record);
    /// Returns the latest records of all cores about their windows (limits on requests in flight), this
    /// core's included.
    fn records(&self) -> impl Iterator<Item = Record>;
}

/// Returns the largest median latency at which a backend is not crowded. `base` is its latency when few requests
/// wait there.
pub fn calm(base: Duration) -> Duration {
    duration(calm_seconds(base.as_secs_f64()))
}

/// Returns the largest median latency, in seconds, at which a backend with this base (latency when few requests
/// wait there, in seconds) is not crowded.
fn calm_seconds(base: f64) -> f64 {
    let slack = (SLACK_PARTS * base).clamp(SLACK_LEAST, SLACK_MOST);
    (QUARTERS * base).max(base + slack)
}

/// Returns the median of `values` by a key (the upper one of an even number), or 0 if there are none. Changes
/// their order.
fn median_of<T>(values: &mut [T], key: impl Fn(&T) -> f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let middle = values.len() / 2;
    key(values.select_nth_unstable_by(middle, |one, other| key(one).total_cmp(&key(other))).1)
}

/// Converts seconds to a duration; zero where they are negative, infinite or not a number.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn seconds(at: Timestamp) -> f64 {
    at.as_nanos() as f64 / 1e9
}

fn timestamp(seconds: f64) -> Timestamp {
    Timestamp::from_nanos((seconds * 1e9) as u64)
}

fn power_of_two_above(value: f64) -> f64 {
    2.0_f64.powf(value.log2().ceil())
}

fn next_multiple(of: f64, after: f64) -> f64 {
    ((after / of).floor() + 1.0) * of
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reply to a request without a deadline, of the usual price and the first kind, that a punctual core sent at
    /// this time with `depth` requests in flight. As many are in flight when the reply comes.
    fn usual(sent_at: Timestamp, depth: u32) -> Sample {
        let in_flight = depth as usize;
        Sample { sent_at, late: Duration::ZERO, in_flight, depth, kind: 0, is_costly: false, left: None }
    }

    /// The board (shared records of windows) of a single core.
    #[derive(Default)]
    struct Alone(Record);

    impl Board for Alone {
        fn tell(&mut self, record: Record) {
            self.0 = record;
        }

        fn records(&self) -> impl Iterator<Item = Record> {
            [self.0].into_iter()
        }
    }

    /// Simulates a backend that serves `servers` requests at once, each in `takes` seconds, from the time
    /// `from` for `lasts` seconds, before a window that always has requests waiting. Returns the time at the
    /// end.
    fn crowd(window: &mut Window, from: f64, lasts: f64, servers: usize, takes: f64) -> f64 {
        let mut board = Alone::default();
        let at = |seconds: f64| Timestamp::from_nanos((seconds * 1e9) as u64);
        let mut free = vec![from; servers];
        let mut in_flight: std::collections::VecDeque<(f64, f64, u32)> = std::collections::VecDeque::new();
        let mut now = from;
        while now < from + lasts {
            while in_flight.len() < window.size().max(1) {
                let server =
                    (0..servers).min_by(|one, other| free[*one].total_cmp(&free[*other])).expect("one");
                free[server] = free[server].max(now) + takes;
                let depth = in_flight.len() as u32 + 1;
                in_flight.push_back((now, free[server], depth));
            }
            window.handle_limited();
            let (sent_at, done, depth) = in_flight.pop_front().expect("just sent");
            now = now.max(done);
            let sample = Sample { in_flight: in_flight.len() + 1, ..usual(at(sent_at), depth) };
            window.handle_reply(&sample, at(now), &mut board);
        }
        now
    }

    #[test]
    fn a_cut_begins_at_what_is_in_flight_if_that_is_much_less_than_the_window() {
        let mut window = Window::new(1, Bounds::default());
        let now = crowd(&mut window, 0.0, 0.3, 64, 0.001);
        assert!(window.size() >= 64, "{}", window.size());
        let mut board = Alone::default();
        let at = |seconds: f64| Timestamp::from_nanos((seconds * 1e9) as u64);
        // After a quiet time the backend has become slow, and deadlines are missed before the window is full.
        window.begin_round(now);
        window.begin_round(now);
        for number in 0..10 {
            let sent_at = now + 0.02 * f64::from(number);
            window.handle_missed();
            window.handle_reply(&usual(at(sent_at), 20), at(sent_at + 0.4), &mut board);
        }
        assert!(window.size() <= 10, "{}", window.size());
    }

    #[test]
    fn it_grows_to_what_keeps_a_backend_busy_and_stays_there() {
        for (servers, takes) in [(1, 0.001), (8, 0.001), (64, 0.001), (1, 0.000_05), (4, 0.020)] {
            let mut window = Window::new(1, Bounds::default());
            crowd(&mut window, 0.0, 5.0, servers, takes);
            let waits = window.median().as_secs_f64();
            assert!(window.size() >= servers, "{servers} at once want {}", window.size());
            let most = (3.0 * takes).max(takes + SLACK_MOST + 0.005);
            assert!(waits <= most, "{servers} of {takes} s: replies take {waits} s in {}", window.size());
        }
    }

    #[test]
    fn it_stays_within_its_bounds_when_a_backend_becomes_slow() {
        for least in [16, 64, 90] {
            let mut window = Window::new(1, Bounds { least, most: 1_000 });
            let mut now = crowd(&mut window, 0.0, 5.0, 128, 0.001);
            for _ in 0..100 {
                now = crowd(&mut window, now, 0.05, 2, 0.02);
                assert!(window.size() >= usize::from(least), "{} of {least}", window.size());
            }
        }
    }

    #[test]
    fn it_stays_within_its_bounds_whatever_the_backend_would_like() {
        for (least, most, servers, expected) in [(1, 8, 64, 8), (100, 200, 1, 100), (7, 7, 16, 7)] {
            let mut window = Window::new(1, Bounds { least, most });
            let mut now = 0.0;
            let mut sizes = Vec::new();
            while now < 20.0 {
                now = crowd(&mut window, now, 0.1, servers, 0.001);
                sizes.push(window.size());
            }
            let (least, most) = (usize::from(least), usize::from(most));
            assert!(sizes.iter().all(|size| (least..=most).contains(size)), "{sizes:?}");
            let settled = &sizes[sizes.len() / 2..];
            let mean = settled.iter().sum::<usize>() / settled.len();
            assert!(mean >= expected / 2 && mean <= 2 * expected, "{mean}: {sizes:?}");
        }
    }

    #[test]
    fn a_backend_that_becomes_slow_is_not_taken_for_a_crowded_one() {
        let mut window = Window::new(1, Bounds::default());
        let now = crowd(&mut window, 0.0, 5.0, 16, 0.001);
        let now = crowd(&mut window, now, 30.0, 16, 0.100);
        assert!(window.size() >= 12, "16 at once are needed, {} are allowed", window.size());
        crowd(&mut window, now, 30.0, 16, 0.001);
        let waits = window.median().as_secs_f64();
        assert!(window.size() >= 12 && waits < 0.070, "{} and {waits} s", window.size());
    }

    #[test]
    fn what_a_late_core_adds_is_not_the_backends() {
        let (mut punctual, mut late) = (Window::new(1, Bounds::default()), Window::new(1, Bounds::default()));
        for (window, lateness) in [(&mut punctual, 0), (&mut late, 50)] {
            let mut board = Alone::default();
            for number in 1..5_000_u64 {
                window.handle_limited();
                let now = Timestamp::from_millis(1_000 + number * 60);
                let took = Duration::from_millis(1 + lateness);
                let late = Duration::from_millis(lateness);
                let sample = Sample { late, ..usual(now.before(took), 4) };
                window.handle_reply(&sample, now, &mut board);
            }
        }
        assert_eq!(punctual.median(), late.median());
        assert!(late.size() >= punctual.size() / 2, "{} and {}", late.size(), punctual.size());
    }

    /// Feeds 59 replies, 10 ms apart, each after `took`, and returns the size of the window then. `depth` is
    /// the number of requests in flight that each reply saw. `each` is called before each reply.
    fn replies(window: &mut Window, took: Duration, depth: u32, mut each: impl FnMut(&mut Window)) -> usize {
        let mut board = Alone::default();
        let from = seconds(window.looked_at.0);
        for number in 1..60_u64 {
            each(window);
            let now = Timestamp::from_nanos((from * 1e9) as u64)
                .after(took)
                .after(Duration::from_millis(10 * number));
            let in_flight = window.size().min(depth as usize);
            let sample = Sample { in_flight, ..usual(now.before(took), depth) };
            window.handle_reply(&sample, now, &mut board);
        }
        window.size()
    }

    #[test]
    fn requests_that_miss_their_deadlines_make_a_window_smaller_that_is_never_full() {
        for missed in [true, false] {
            let mut window = Window::new(1, Bounds::default());
            let size = replies(&mut window, Duration::from_millis(1), 48, |_| {});
            let later = replies(&mut window, Duration::from_millis(200), 48, |window| {
                if missed {
                    window.handle_missed();
                }
            });
            assert_eq!(later < size, missed, "{later} of {size}");
        }
    }

    /// The board of two cores: the first record is this core's, the second that of the other, which has
    /// published its state before it shrank its window, and none since.
    struct Two(Record, Record);

    impl Board for Two {
        fn tell(&mut self, record: Record) {
            self.0 = record;
        }

        fn records(&self) -> impl Iterator<Item = Record> {
            [self.0, self.1].into_iter()
        }
    }

    #[test]
    fn neither_base_nor_window_change_while_expensive_requests_may_be_the_reason() {
        let mut window = Window::new(1, Bounds::default());
        let mut now = crowd(&mut window, 0.0, 5.0, 16, 0.001);
        let base = window.base();
        let size = window.size();
        for _ in 0..5 {
            window.handle_expensive(true, true);
            now = crowd(&mut window, now, 3.0, 1_000, 0.1);
        }
        assert_eq!((window.base(), window.size()), (base, size), "fewer would come no sooner");
        for latency in [0.003, 0.005, 0.02] {
            for most in [16, 64, 200] {
                window.handle_expensive(true, true);
                now = crowd(&mut window, now, 3.0, most, latency);
                assert!(window.size() >= size, "{latency} {most}: {}", window.size());
            }
        }
        for _ in 0..5 {
            window.handle_expensive(true, false);
            now = crowd(&mut window, now, 3.0, 1_000, 0.1);
        }
        assert!(window.base() > 10 * base, "{:?}", window.base());
    }

    #[test]
    fn a_cut_that_helped_is_not_in_vain_for_what_another_core_told_before() {
        let mut window = Window::new(2, Bounds::default());
        crowd(&mut window, 0.0, 5.0, 16, 0.001);
        let base = window.base();
        let before = Before { window: window.size, median: 0.1, crowd: 2.0 * window.size };
        (window.trial, window.size) = (Trial::Cut { before, rounds: 1 }, window.size / 2.0);
        let now = window.looked_at.0.after(Duration::from_millis(100));
        let own = Record {
            at: now,
            median: 0.02,
            samples: 9,
            base: base.as_secs_f64(),
            window: window.size,
            is_limited: true,
            quarter: 0.0,
            probe_at: Timestamp::ZERO,
        };
        let mut board = Two(own, Record { median: 0.4, samples: 60, ..own });
        window.seen = vec![Seen { low: 0.02, depth: window.size, left: f64::INFINITY }; 9];
        window.end_round(now, &mut board);
        assert!(window.median() > Duration::from_millis(100), "together they say that nothing has changed");
        assert_eq!((window.trial, window.base()), (Trial::None, base));
    }

    #[test]
    fn of_another_server_nothing_is_known() {
        let mut window = Window::new(1, Bounds::default());
        crowd(&mut window, 0.0, 5.0, 4, 0.05);
        assert!(window.base() > Duration::from_millis(40));
        let now = window.looked_at.0.after(Duration::from_secs(1));
        let mut board = Alone::default();
        window.forget(now, &mut board);
        assert_eq!((window.size(), window.base(), window.median()), (64, Duration::ZERO, Duration::ZERO));
        let later = crowd(&mut window, seconds(now), 2.0, 4, 0.001);
        assert!(later > seconds(now) && window.base() < Duration::from_millis(10), "{:?}", window.base());
    }

    #[test]
    fn the_base_that_an_idle_core_saw_long_ago_does_not_count() {
        for (age, expected_millis) in [(19, 60), (21, 5)] {
            let mut window = Window::new(2, Bounds::default());
            crowd(&mut window, 0.0, 5.0, 4, 0.001);
            let now = window.looked_at.0.after(Duration::from_secs(30));
            let own = Record { at: now, median: 0.005, samples: 9, base: 0.005, ..Record::default() };
            let other = Record { at: now.before(Duration::from_secs(age)), base: 0.06, ..own };
            let common = window.common(&Two(own, other), now, 1.0);
            assert_eq!((common.base * 1e3).round() as u64, expected_millis, "{age} s");
        }
    }

    /// Feeds a window replies that took these times in milliseconds, 10 ms apart, to requests that were sent with 8 in
    /// flight.
    fn took(window: &mut Window, millis: &[u64], board: &mut Alone) {
        let mut now = window.looked_at.0;
        for took in millis {
            now = now.after(Duration::from_millis(10));
            window.handle_reply(&usual(now.before(Duration::from_millis(*took)), 8), now, board);
        }
    }

    #[test]
    fn the_next_reply_is_expected_at_the_pace_of_the_latest() {
        let mut window = Window::new(1, Bounds::default());
        replies(&mut window, Duration::from_millis(1), 8, |_| {});
        let (base, mut board) = (window.base().as_secs_f64(), Alone::default());
        let expected = |window: &Window, in_flight| window.expected(in_flight).as_secs_f64();
        took(&mut window, &[90, 90, 90, 90, 81, 90, 90, 90], &mut board);
        // The quickest counts, as nothing waits for room in the window.
        let beyond = 0.081 - base;
        for (in_flight, parts) in
            [(0, 0.0), (2, 0.25), (8, 1.0), (16, 2.0), (32, 4.0), (64, 4.0), (usize::MAX, 4.0)]
        {
            let found = expected(&window, in_flight);
            assert!((found - base - parts * beyond).abs() < 1e-6, "{in_flight}: {found} s");
        }
        // One quick reply is no sign that overload is over, where requests wait.
        took(&mut window, &[1], &mut board);
        assert!(expected(&window, 8) < 0.002);
        window.handle_limited();
        assert!(expected(&window, 8) > 0.12);
    }

    #[test]
    fn a_stall_ends_with_a_window_that_is_no_larger_than_the_first() {
        let mut window = Window::new(1, Bounds::default());
        let first = window.size();
        window.size *= 8.0;
        window.handle_stall_end(Timestamp::from_millis(5_000));
        assert_eq!((window.size(), window.is_growing()), (first, true));
    }

    #[test]
    fn costly_replies_and_those_from_before_a_stall_say_nothing() {
        let mut window = Window::new(1, Bounds::default());
        let now = crowd(&mut window, 0.0, 2.0, 4, 0.001);
        let before = (window.base(), window.median());
        let now = Timestamp::from_nanos((now * 1e9) as u64).after(Duration::from_secs(6));
        window.handle_stall_end(now);
        let mut board = Alone::default();
        for costly in [true, false] {
            for number in 0..100 {
                let sent_at = now.before(Duration::from_secs(if costly { 0 } else { 5 }));
                let sample = Sample { is_costly: costly, ..usual(sent_at, 3) };
                window.handle_reply(&sample, now.after(Duration::from_millis(number)), &mut board);
            }
        }
        assert_eq!((window.base(), window.median()), before);
        assert!(window.size() <= 64);
    }

    proptest::proptest! {
        /// Impossible times, clocks that step back, and exaggerated lateness leave the window within its
        /// bounds.
        #[test]
        fn absurd_samples_break_nothing(steps in proptest::collection::vec(
            (0..4_u8, 0..u64::MAX, 0..u64::MAX, 0..2_000_000_u64, 0..5_000_usize, 0..20_usize), 1..400)) {
            let mut window = Window::new(3, Bounds::default());
            let mut board = Alone::default();
            let mut now = 1_000_000_000_u64;
            for (what, absurd, other, micros, depth, kind) in steps {
                let (sent_at, late) = match what {
                    0 => (now.saturating_sub(micros * 1_000), 0),
                    1 => (now.saturating_sub(micros * 1_000), micros * 500),
                    2 => (absurd, other),
                    _ => { now = now.wrapping_add(absurd % 10_000_000_000); (now, other) }
                };
                let sample = Sample {
                    sent_at: Timestamp::from_nanos(sent_at),
                    late: Duration::from_nanos(late),
                    in_flight: depth + 1,
                    depth: depth as u32,
                    kind,
                    is_costly: absurd % 7 == 0, left: None,
                };
                if absurd % 2 == 0 { window.handle_limited(); }
                if absurd % 11 == 0 { window.handle_stall_end(Timestamp::from_nanos(now)); }
                window.handle_reply(&sample, Timestamp::from_nanos(now), &mut board);
                now += micros;
                proptest::prop_assert!((1..=4096).contains(&window.size()));
                let _ = (window.base(), window.median(), window.expected(depth));
            }
        }

        /// A window stays within its bounds, and no cut enlarges it, whatever another core has measured.
        #[test]
        fn another_core_that_finds_anything_breaks_nothing(steps in proptest::collection::vec(
            (0..100_000_u64, 0..100_000_u64, 0..3_u8, 0.0..2.0_f64, 0.0..0.1_f64, 0..200_u32), 20..400)) {
            let mut window = Window::new(2, Bounds { least: 1, most: 64 });
            let mut board = Two(Record::default(), Record::default());
            let mut now = Timestamp::from_millis(1_000);
            for (micros, late, what, median, base, samples) in steps {
                now = now.after(Duration::from_micros(1_000 + micros / 10));
                board.1 = Record {
                    at: now, median: base + median, samples, base, window: 32.0 * median,
                    is_limited: what > 0, quarter: 0.0, probe_at: Timestamp::ZERO,
                };
                let depth = window.size();
                for _ in 0..SAMPLES_LEAST {
                    let sample = Sample {
                        late: Duration::from_micros(if what == 1 { late } else { 0 }),
                        ..usual(now.before(Duration::from_micros(micros)), depth as u32)
                    };
                    window.handle_limited();
                    let (before, trial) = (window.size, window.trial);
                    window.handle_reply(&sample, now, &mut board);
                    proptest::prop_assert!((1.0..=64.0).contains(&window.size), "{}", window.size);
                    if trial == Trial::None && matches!(window.trial, Trial::Cut { .. }) {
                        // The window of the other core has a part in the mean.
                        let most = before * CUT + (64.0 - before * CUT) * EVEN;
                        proptest::prop_assert!(window.size <= most, "{before} to {}", window.size);
                    }
                }
            }
        }
    }

    #[test]
    fn a_deep_cut_for_what_another_core_sees_is_a_mild_one_here() {
        for own in [0.0, 1e-12, 0.002, 0.02] {
            let mut window = Window::new(2, Bounds { least: 1, most: 64 });
            let now = crowd(&mut window, 0.0, 5.0, 16, 0.002);
            let before = window.size;
            window.seen = vec![Seen { low: own, depth: before, left: f64::INFINITY }; 60];
            let common = Common {
                median: 0.1,
                base: window.base,
                window: before,
                limited: 2,
                crowd: 2.0 * before,
                quarter: 0.0,
                probe_at: f64::INFINITY,
            };
            window.cut_deeply(now, window.allowed().min(0.01), &common);
            assert!(
                window.size >= before * 0.3 && window.size <= before * CUT,
                "{before} to {}",
                window.size
            );
        }
    }

    #[test]
    fn what_is_not_used_is_forgotten() {
        let mut window = Window::new(1, Bounds::default());
        let mut now = crowd(&mut window, 0.0, 3.0, 256, 0.001);
        let large = window.size();
        assert!(large > 256);
        let mut board = Alone::default();
        while now < 20.0 {
            now += 0.001;
            let at = Timestamp::from_nanos((now * 1e9) as u64);
            window.handle_reply(&usual(at.before(Duration::from_millis(1)), 2), at, &mut board);
        }
        assert!(window.size() <= 64, "{} of {large}", window.size());
    }
}
