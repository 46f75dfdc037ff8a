//! A breaker for back pressure: when a target has taken nothing on for a while, it is left alone, and asked from time
//! to time with one request whether that is over.
//!
//! ```text
//!  closed ── so many failures in a row, over so long ──> open ── pause over ──> half open: one probe
//!    ^                                                    ^                          │
//!    └──── anything that is answered, whenever ───────────┼──────────────────────────┘
//!                                                         └── the probe fails: a longer pause
//! ```
//!
//! weir stands before several backends, and a client does not know which of them a request will go to: one that stands
//! still must not cost the others their requests. Therefore failures have to come in a row: while one backend of two
//! answers, a run of twenty comes once in a million requests. What a part of the backends refuses is the throttle's
//! business.

use std::time::Duration;

use super::backoff::doubled;
use weir::values::{Random, Timestamp};

/// A target that asks for more is asked again all the same.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// So many failures in a row, nothing answered between them,
    pub failures: u32,
    /// and so long from the first to the last: replies come in batches, and a batch is one event.
    pub lasting: Duration,
    /// How long it is open at first; twice as long after each probe that failed. A longer `retry_after_ms` is honoured,
    /// and half as much may come on top by chance.
    pub pause: Duration,
    /// But no longer than this, unless the target said so.
    pub pause_most: Duration,
    /// A probe whose outcome is not told for so long is forgotten.
    pub probe_timeout: Duration,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failures: 20,
            lasting: Duration::from_millis(200),
            pause: Duration::from_millis(100),
            pause_most: Duration::from_millis(500),
            probe_timeout: Duration::from_secs(5),
        }
    }
}

/// What a breaker says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    Free,
    /// It passes alone: what becomes of it decides.
    Probe,
    /// Not before then.
    Refused(Timestamp),
}

/// What an answer means to a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    AsUsual,
    /// It had been open.
    Closes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Requests pass.
    Closed,
    /// None passes before that time; the next one after it is the probe.
    Open(Timestamp),
    /// A probe is under way; another may be sent at that time.
    HalfOpen(Timestamp),
}

#[derive(Clone, Debug)]
pub(super) struct Breaker {
    policy: BreakerPolicy,
    state: State,
    /// Failures since anything was answered, and when the first of them was.
    failures: u32,
    since: Timestamp,
    /// How often in a row it was opened.
    openings: u32,
}

impl Breaker {
    pub fn new(policy: BreakerPolicy) -> Self {
        Self { policy, state: State::Closed, failures: 0, since: Timestamp::ZERO, openings: 0 }
    }

    /// Until when it refuses everything, if it does.
    pub fn open_until(&self, now: Timestamp) -> Option<Timestamp> {
        match self.state {
            State::Open(until) | State::HalfOpen(until) if until > now => Some(until),
            _ => None,
        }
    }

    /// May a request pass?
    #[must_use]
    pub fn pass(&mut self, now: Timestamp) -> Passage {
        if self.state == State::Closed {
            return Passage::Free;
        }
        if let Some(until) = self.open_until(now) {
            return Passage::Refused(until);
        }
        self.state = State::HalfOpen(now.after(self.policy.probe_timeout));
        Passage::Probe
    }

    /// Something was answered, whenever it was asked: the target takes requests on. Says whether that closes it.
    pub fn note_answered(&mut self) -> Answered {
        let closes = self.state != State::Closed;
        self.state = State::Closed;
        self.failures = 0;
        self.openings = 0;
        if closes { Answered::Closes } else { Answered::AsUsual }
    }

    /// The probe's outcome says nothing of the target: the next request takes its place.
    pub fn note_probe_undecided(&mut self, now: Timestamp) {
        self.state = State::Open(now);
    }

    /// Back pressure, or no answer at all. `retry_after` is what the target asked for.
    pub fn note_failed(&mut self, retry_after: Option<Duration>, now: Timestamp, random: &mut Random) {
        if self.failures == 0 {
            self.since = now;
        }
        self.failures = self.failures.saturating_add(1);
        let is_enough = self.failures >= self.policy.failures && now.since(self.since) >= self.policy.lasting;
        // What was under way when it was opened says nothing new.
        if self.state == State::Closed && is_enough {
            self.open(retry_after, now, random);
        }
    }

    /// The same of a probe.
    pub fn note_probe_failed(&mut self, retry_after: Option<Duration>, now: Timestamp, random: &mut Random) {
        if matches!(self.state, State::HalfOpen(_)) {
            self.open(retry_after, now, random);
        }
    }

    fn open(&mut self, retry_after: Option<Duration>, now: Timestamp, random: &mut Random) {
        let own = doubled(self.policy.pause, self.openings, self.policy.pause_most);
        let pause = own.max(retry_after.unwrap_or_default().min(PAUSE_MAX));
        // Never sooner than asked, and not all clients at the same time.
        let jitter = Duration::from_nanos(random.between(0, pause.as_nanos() as u64 / 2));
        self.state = State::Open(now.after(pause).after(jitter));
        self.openings = self.openings.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Wait(u64),
        Answered,
        Failed(Option<u64>),
        Ask,
        ProbeFailed(Option<u64>),
        ProbeUndecided,
    }

    fn step() -> impl Strategy<Value = Step> {
        let retry_after = || prop::option::of(0..2_000_u64);
        prop_oneof![
            4 => (0..200_u64).prop_map(Step::Wait),
            1 => Just(Step::Answered),
            6 => retry_after().prop_map(Step::Failed),
            3 => Just(Step::Ask),
            2 => retry_after().prop_map(Step::ProbeFailed),
            1 => Just(Step::ProbeUndecided),
        ]
    }

    /// It keeps every failure, and of an open breaker the bounds between which it lets a probe pass.
    #[derive(Default)]
    struct Model {
        failures: Vec<u64>,
        /// Refuses surely until the first, and surely not after the second.
        open: Option<(u64, u64)>,
        probe_until: Option<u64>,
        openings: u32,
    }

    impl Model {
        fn open(&mut self, retry_after: Option<u64>, now: u64) {
            let own = (100 * 2_u64.pow(self.openings.min(10))).min(500);
            let pause = own.max(retry_after.unwrap_or(0));
            self.open = Some((now + pause, now + pause + pause.div_ceil(2)));
            self.probe_until = None;
            self.openings += 1;
        }

        fn is_closed(&self) -> bool {
            self.open.is_none() && self.probe_until.is_none()
        }
    }

    proptest! {
        #[test]
        fn it_opens_after_a_run_of_failures_and_lets_one_probe_at_a_time_pass(
            steps in prop::collection::vec(step(), 1..300), seed in any::<u64>(),
        ) {
            let policy = BreakerPolicy { failures: 3, ..BreakerPolicy::default() };
            let (mut breaker, mut random) = (Breaker::new(policy), Random::new(seed));
            let (mut model, mut now) = (Model::default(), 0);
            for step in steps {
                let millis = |retry_after: Option<u64>| retry_after.map(Duration::from_millis);
                match step {
                    Step::Wait(pause) => now += pause,
                    Step::Answered => {
                        let closes = breaker.note_answered() == Answered::Closes;
                        prop_assert_eq!(closes, !model.is_closed());
                        model = Model::default();
                    }
                    Step::Failed(retry_after) => {
                        breaker.note_failed(millis(retry_after), at(now), &mut random);
                        model.failures.push(now);
                        if model.is_closed() && model.failures.len() >= 3 && now - model.failures[0] >= 200 {
                            model.open(retry_after, now);
                        }
                    }
                    Step::ProbeFailed(retry_after) if model.probe_until.is_some() => {
                        breaker.note_probe_failed(millis(retry_after), at(now), &mut random);
                        model.open(retry_after, now);
                    }
                    Step::ProbeUndecided if model.probe_until.is_some() => {
                        breaker.note_probe_undecided(at(now));
                        (model.open, model.probe_until) = (Some((now, now)), None);
                    }
                    Step::ProbeFailed(_) | Step::ProbeUndecided => {}
                    Step::Ask => match breaker.pass(at(now)) {
                        Passage::Free => prop_assert!(model.is_closed()),
                        Passage::Refused(until) => {
                            prop_assert!(until > at(now) && breaker.open_until(at(now)) == Some(until));
                            let latest = model.probe_until.or(model.open.map(|(_, latest)| latest));
                            prop_assert!(until <= at(latest.expect("it is not closed")));
                        }
                        Passage::Probe => {
                            let soonest = model.probe_until.or(model.open.map(|(soonest, _)| soonest));
                            prop_assert!(now >= soonest.expect("it is not closed"));
                            (model.open, model.probe_until) = (None, Some(now + 5_000));
                        }
                    },
                }
            }
        }
    }

    #[test]
    fn pauses_honour_what_was_asked_for_and_are_spread() {
        let mut ends: Vec<Duration> = (0..1_000)
            .map(|seed| {
                let (mut breaker, mut random) = (Breaker::new(BreakerPolicy::default()), Random::new(seed));
                for number in 0..20 {
                    breaker.note_failed(
                        Some(Duration::from_millis(900)),
                        at(1_000 + number * 20),
                        &mut random,
                    );
                }
                breaker.open_until(at(1_380)).expect("it is open").since(at(1_380))
            })
            .collect();
        ends.sort_unstable();
        assert!(ends[0] >= Duration::from_millis(900) && ends[999] <= Duration::from_millis(1_350));
        assert!(
            ends[500].abs_diff(Duration::from_millis(1_125)) < Duration::from_millis(25),
            "{:?}",
            ends[500]
        );
    }

    #[test]
    fn no_target_keeps_clients_away_for_good() {
        let (mut breaker, mut random) = (Breaker::new(BreakerPolicy::default()), Random::new(1));
        (0..20).for_each(|number| breaker.note_failed(Some(Duration::MAX), at(number * 100), &mut random));
        assert!(breaker.open_until(at(1_900)).is_some_and(|until| until <= at(1_900 + 90_000)));
    }

    /// One of two backends refuses: requests for the other one must not pay for it.
    #[test]
    fn it_stays_closed_while_half_of_the_requests_are_answered() {
        let (mut breaker, mut random, mut targets) =
            (Breaker::new(BreakerPolicy::default()), Random::new(1), Random::new(2));
        let refused = (0..100_000)
            .filter(|millis| {
                let now = at(*millis);
                let is_refused = matches!(breaker.pass(now), Passage::Refused(_));
                match (is_refused, targets.below(2)) {
                    (true, _) => {}
                    (false, 0) => assert_eq!(breaker.note_answered(), Answered::AsUsual),
                    (false, _) => breaker.note_failed(Some(Duration::from_millis(900)), now, &mut random),
                }
                is_refused
            })
            .count();
        assert_eq!(refused, 0);
    }
}
