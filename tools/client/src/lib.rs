//! A client that helps a crowded target instead of burying it: timeouts, retries within a budget, throttling of its
//! own, a breaker, and deadlines that are sent along. `weir-load --client smart` is made of it.
//!
//! It only decides. Connections, clock and timers are the caller's, so it fits around any Redis client: ask before a
//! request is sent, tell how each attempt ended, and do what the answers say. It takes less than a kilobyte, and
//! allocates nothing.
//!
//! ```text
//!  may_send ──> breaker ──> throttle ──> Send ──> the caller sends, waits for `Policy::timeout` at most
//!     │  ^         └───────────┴─────> Refused: nothing is sent           │
//!     │  └── may_repeat <── RetryAt <── handle_outcome <── Outcome <──────┘
//!     │                                      └──> Done: that was it; not to be repeated before `not_before`
//!     └── the throttle comes second: what is not sent during an outage must not throttle what comes after it
//! ```
//!
//! | how an attempt ended | throttle | breaker | sent again |
//! |---|---|---|---|
//! | answered, or an error of the store's | accepted | closes, and the throttle begins anew | no |
//! | `-THROTTLED` | rejected | does not mind: it is about a quota | no |
//! | `-OVERLOADED` `-UNAVAILABLE` `-DEADLINE` | rejected | a failure | no: the target has said that it has no room |
//! | timed out, connection lost | rejected | a failure | if it may be, after a pause, within budget and deadline |
//!
//! One `Client` is for what shares a fate: the connections of one process to one weir. Who acts for tenants with quotas
//! of their own keeps one for each, and who can tell which backend a request goes to may keep one for each backend.
//!
//! ```
//! use std::time::Duration;
//! use weir_client::{Client, Decision, Next, Outcome, Policy, Repeats, call_within};
//! use weir::values::{Random, Timestamp};
//!
//! let (timeout, deadline) = (Duration::from_millis(100), Some(Duration::from_millis(500)));
//! let policy = Policy { timeout, deadline, ..Policy::default() };
//! let mut client = Client::new(policy, Random::new(7)); // a seed of the process's own
//! let get = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
//!
//! // It is a read, so nothing is lost if it is carried out twice.
//! let now = Timestamp::from_millis(1_000);
//! let Decision::Send(sent) = client.may_send(Repeats::Harmless, now) else { panic!("nothing has failed yet") };
//!
//! // Nobody answers: it may be sent again, a little later, with what is left of its deadline.
//! let now = now.after(timeout);
//! let Next::RetryAt(retry) = client.handle_outcome(sent, Outcome::TimedOut, now) else { panic!("there is time left") };
//! let Decision::Send(sent) = client.may_repeat(retry, retry.at()) else { panic!("it was one failure only") };
//! let mut bytes = Vec::new();
//! call_within(&mut bytes, get, sent.rest().expect("there is a deadline"));
//! assert!(bytes.starts_with(b"*6\r\n$3\r\nQOS\r\n$4\r\nCALL\r\n$8\r\nDEADLINE\r\n$3\r\n3"));
//!
//! // What weir refuses is not repeated at once; the caller hears when that makes sense.
//! let refusal = Outcome::of_error(b"OVERLOADED reason=queue backend=10.0.0.5:6379 retry_after_ms=12");
//! let now = retry.at().after(Duration::from_millis(1));
//! let not_before = now.after(Duration::from_millis(12));
//! assert_eq!(client.handle_outcome(sent, refusal, now), Next::Done { not_before: Some(not_before) });
//! ```

mod backoff;
mod breaker;
mod budget;
mod deadline;
mod outcome;
mod policy;
mod throttle;
mod window;

#[cfg(test)]
mod storm;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use backoff::Backoff;
pub use breaker::BreakerPolicy;
pub use budget::BudgetPolicy;
pub use deadline::call_within;
pub use outcome::{Outcome, Refusal};
pub use policy::Policy;
pub use throttle::THROTTLE_WINDOW;

use breaker::{Answered, Breaker, Passage};
use budget::Budget;
use deadline::REST_LEAST;
use throttle::Throttle;
use weir::values::{Random, Timestamp};

/// What it does if a request is carried out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    /// No harm: it only reads, or its caller knows better. It may be sent again though the first attempt may have been
    /// carried out.
    Harmless,
    /// It is never sent again.
    Harmful,
}

/// A request, from its first attempt on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    since: Timestamp,
    attempts: u8,
    repeats: Repeats,
}

/// An attempt that may be sent: give it back with its [`Outcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    request: Request,
    is_probe: bool,
    rest: Option<Duration>,
}

impl Sent {
    /// What is left of the deadline, where that is less than all of it: of a retry, if there is a deadline.
    pub const fn rest(&self) -> Option<Duration> {
        self.rest
    }

    /// How often it was sent before.
    pub const fn retries(&self) -> u8 {
        self.request.attempts - 1
    }
}

/// Whether a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is.
    Send(Sent),
    /// It is not; nothing has to be told of it.
    Refused(Reason),
}

/// Why the client itself refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The target takes nothing on; it is not asked before that time.
    BreakerOpen(Timestamp),
    /// The target accepts much less than is offered; that is left to chance, so the next request may pass.
    Throttled,
    /// There is no time left for a retry.
    TooLate,
}

/// What comes after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Its outcome is the request's.
    Done {
        /// The target asked that it should not be repeated sooner.
        not_before: Option<Timestamp>,
    },
    /// It should be sent again.
    RetryAt(Retry),
}

/// A retry: at its time, ask [`Client::may_repeat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    at: Timestamp,
    request: Request,
}

impl Retry {
    /// When it is due.
    pub const fn at(&self) -> Timestamp {
        self.at
    }
}

/// Decides for all requests to one target. See the module.
#[derive(Clone, Debug)]
pub struct Client {
    policy: Policy,
    breaker: Breaker,
    throttle: Throttle,
    budget: Budget,
    random: Random,
}

impl Client {
    /// `random` keeps clients from acting at the same time: no two of them should begin with the same seed.
    pub fn new(policy: Policy, random: Random) -> Self {
        Self {
            breaker: Breaker::new(policy.breaker),
            throttle: Throttle::new(policy.throttle_window, policy.breaker.failures),
            budget: Budget::new(policy.budget),
            policy,
            random,
        }
    }

    /// What it was told to do.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Until when it refuses everything, if it does; asking changes nothing.
    pub fn open_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.breaker.open_until(now)
    }

    /// May a new request be sent?
    #[must_use]
    pub fn may_send(&mut self, repeats: Repeats, now: Timestamp) -> Decision {
        let decision = self.decide(Request { since: now, attempts: 0, repeats }, None, now);
        if let Decision::Send(_) = decision {
            self.budget.note_request(now);
        }
        decision
    }

    /// May it be sent again, now that its time has come?
    #[must_use]
    pub fn may_repeat(&mut self, retry: Retry, now: Timestamp) -> Decision {
        let rest =
            self.policy.deadline.map(|deadline| deadline.saturating_sub(now.since(retry.request.since)));
        if rest.is_some_and(|rest| rest < REST_LEAST) {
            return Decision::Refused(Reason::TooLate);
        }
        self.decide(retry.request, rest, now)
    }

    fn decide(&mut self, request: Request, rest: Option<Duration>, now: Timestamp) -> Decision {
        let passage = self.breaker.pass(now);
        if let Passage::Refused(until) = passage {
            return Decision::Refused(Reason::BreakerOpen(until));
        }
        let is_probe = passage == Passage::Probe;
        if !is_probe && !self.throttle.may_pass(now, &mut self.random) {
            return Decision::Refused(Reason::Throttled);
        }
        let request = Request { attempts: request.attempts.saturating_add(1), ..request };
        Decision::Send(Sent { request, is_probe, rest })
    }

    /// An attempt has ended; each that was sent does once. If that is never told of a probe, it is forgotten after a
    /// while.
    pub fn handle_outcome(&mut self, sent: Sent, outcome: Outcome, now: Timestamp) -> Next {
        self.learn(sent, outcome, now);
        let not_before = outcome.retry_after().map(|retry_after| now.after(retry_after));
        if matches!(outcome, Outcome::TimedOut | Outcome::Lost)
            && let Some(retry) = self.retry(sent.request, now)
        {
            return Next::RetryAt(retry);
        }
        Next::Done { not_before }
    }

    fn learn(&mut self, sent: Sent, outcome: Outcome, now: Timestamp) {
        if outcome == Outcome::Answered {
            if self.breaker.note_answered() == Answered::Closes {
                self.throttle.forget();
            }
            self.throttle.note_accepted(now);
            return;
        }
        self.throttle.note_rejected(now);
        let says_nothing = matches!(outcome, Outcome::Refused(Refusal::Throttled, _));
        match (sent.is_probe, says_nothing) {
            (true, true) => self.breaker.note_probe_undecided(now),
            (false, true) => {}
            (true, false) => self.breaker.note_probe_failed(outcome.retry_after(), now, &mut self.random),
            (false, false) => self.breaker.note_failed(outcome.retry_after(), now, &mut self.random),
        }
    }

    fn retry(&mut self, request: Request, now: Timestamp) -> Option<Retry> {
        if request.repeats == Repeats::Harmful || request.attempts > self.policy.retries {
            return None;
        }
        let at = now.after(self.policy.backoff.pause(request.attempts, &mut self.random));
        let ends = self.policy.deadline.map_or(Timestamp::MAX, |deadline| request.since.after(deadline));
        // The budget comes last: what could not be sent takes nothing from it.
        (at.after(REST_LEAST) <= ends && self.budget.take(now)).then_some(Retry { at, request })
    }
}
