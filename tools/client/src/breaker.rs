//! A circuit breaker for back pressure: when a target has refused or failed every request for a while,
//! nothing is sent for a pause, and then a single probe finds out whether the target serves requests again.
//!
//! ```text
//!  closed ── so many failures in a row, over so long ──> open ── pause over ──> half open: one probe
//!    ^                                                    ^                          │
//!    └──── anything that is answered, whenever ───────────┼──────────────────────────┘
//!                                                         └── the probe fails: a longer pause
//! ```
//!
//! weir stands before several backends, and a client does not know which of them a request will go to: a
//! stalled one must not cost the others their requests. Therefore only failures in a row count: while one
//! backend of two answers, a run of twenty comes once in a million requests. Refusals by a part of the
//! backends are left to the throttle.

use std::time::Duration;

use super::backoff::doubled;
use weir::values::{Random, Timestamp};

/// The longest pause, before the random addition, that the `retry_after_ms` in a target's error reply may
/// cause.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The conditions under which a circuit breaker opens (stops all requests to a target for a pause), and the
/// length of its pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// The least number of failed requests in a row, with none answered between them, that opens the circuit
    /// breaker (stops all requests for a pause).
    pub failures: u32,
    /// The least time from the first to the last of the failures that open the breaker. Replies come in
    /// batches, so many failures at one instant count as one incident and do not open it.
    pub lasting: Duration,
    /// The pause after the breaker has opened, in which no request is sent; it doubles after each probe
    /// (single request that tries the target) that failed. A longer `retry_after_ms` in the target's error
    /// reply is honoured, and up to half of the pause is added at random.
    pub pause: Duration,
    /// The longest pause after failed probes (single requests that try the target), unless the target asks
    /// for a longer one; up to half of it is added at random.
    pub pause_most: Duration,
    /// The time after which a probe (single request that tries the target) whose outcome was not reported is
    /// given up, so that another one may be sent.
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

/// The circuit breaker's decision on a request that is about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    Free,
    /// The request is sent as the only probe (request that tries the target after a pause). Its outcome closes the
    /// breaker or opens it again; `-THROTTLED` does neither, and the next request becomes the probe.
    Probe,
    /// The request is refused, as is every other one before the given time, unless an earlier request is answered
    /// before.
    Refused(Timestamp),
}

/// The effect that an answered request has on the circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    AsUsual,
    /// The breaker was open or half open, and the answer has closed it.
    Closes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The breaker is closed: all requests are sent.
    Closed,
    /// The breaker is open: no request is sent before the given time; the next one after it is sent alone,
    /// to try the target (the probe).
    Open(Timestamp),
    /// A probe (single request that tries the target) is in flight, and no other request is sent; if its
    /// outcome is not reported, another probe may be sent at the given time.
    HalfOpen(Timestamp),
}

#[derive(Clone, Debug)]
pub(super) struct Breaker {
    policy: BreakerPolicy,
    state: State,
    /// The number of failed requests since a request was last answered, without probes; `since` is the time of the
    /// first of them.
    failures: u32,
    since: Timestamp,
    /// The number of times that the breaker has opened since a request was last answered; each doubles the
    /// next pause.
    openings: u32,
}

impl Breaker {
    pub fn new(policy: BreakerPolicy) -> Self {
        Self { policy, state: State::Closed, failures: 0, since: Timestamp::ZERO, openings: 0 }
    }

    /// Returns the time until which the breaker refuses every request; `None` if the next request may be
    /// sent.
    pub fn open_until(&self, now: Timestamp) -> Option<Timestamp> {
        match self.state {
            State::Open(until) | State::HalfOpen(until) if until > now => Some(until),
            _ => None,
        }
    }

    /// Decides whether a request may be sent. The first request after a pause becomes the probe (single request that
    /// tries the target), and further ones are refused until its outcome is known or `probe_timeout` is over.
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

    /// Closes the breaker: any answered request, even one that was sent before it opened, shows that the
    /// target serves requests. Returns the effect of the answer on the breaker.
    pub fn note_answered(&mut self) -> Answered {
        let closes = self.state != State::Closed;
        self.state = State::Closed;
        self.failures = 0;
        self.openings = 0;
        if closes { Answered::Closes } else { Answered::AsUsual }
    }

    /// Handles a probe (single request that tries the target) whose outcome, the error `-THROTTLED`,
    /// concerns a quota and says nothing about the target's health: the next request becomes the probe. Does
    /// nothing unless the breaker is half open.
    pub fn note_probe_undecided(&mut self, now: Timestamp) {
        if matches!(self.state, State::HalfOpen(_)) {
            self.state = State::Open(now);
        }
    }

    /// Counts a request that was refused or not answered, and opens the breaker if there were enough in a
    /// row, over long enough. `retry_after` is the pause that the target asked for, if it did.
    pub fn note_failed(&mut self, retry_after: Option<Duration>, now: Timestamp, random: &mut Random) {
        if self.failures == 0 {
            self.since = now;
        }
        self.failures = self.failures.saturating_add(1);
        let is_enough = self.failures >= self.policy.failures && now.since(self.since) >= self.policy.lasting;
        // Failures of requests that were in flight when the breaker opened say nothing new.
        if self.state == State::Closed && is_enough {
            self.open(retry_after, now, random);
        }
    }

    /// Handles the failure of a probe (single request that tries the target): opens the breaker for a longer
    /// pause, at least the one that the target asked for (`retry_after`, up to 60 seconds). Does nothing
    /// unless the breaker is half open.
    pub fn note_probe_failed(&mut self, retry_after: Option<Duration>, now: Timestamp, random: &mut Random) {
        if matches!(self.state, State::HalfOpen(_)) {
            self.open(retry_after, now, random);
        }
    }

    fn open(&mut self, retry_after: Option<Duration>, now: Timestamp, random: &mut Random) {
        let own = doubled(self.policy.pause, self.openings, self.policy.pause_most);
        let pause = own.max(retry_after.unwrap_or_default().min(PAUSE_MAX));
        // The pause is never shorter than the target asked, and clients do not come back at the same time.
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

    /// A model of the breaker that keeps every failure, and the bounds between which an open breaker lets a
    /// probe (single request that tries the target) pass.
    #[derive(Default)]
    struct Model {
        failures: Vec<u64>,
        /// The times in milliseconds before which the open breaker certainly refuses, and after which it
        /// certainly does not; `None` while closed.
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
                    Step::ProbeFailed(retry_after) => {
                        breaker.note_probe_failed(millis(retry_after), at(now), &mut random);
                        if model.probe_until.is_some() {
                            model.open(retry_after, now);
                        }
                    }
                    Step::ProbeUndecided => {
                        breaker.note_probe_undecided(at(now));
                        if model.probe_until.take().is_some() {
                            model.open = Some((now, now));
                        }
                    }
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

    /// Checks that requests to one backend do not suffer from another backend that refuses.
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
