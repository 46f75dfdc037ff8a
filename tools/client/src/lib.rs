//! A client library that spares an overloaded target: it has timeouts, retries within a budget, throttling of
//! its own, a breaker, and sends deadlines along. `weir-load --client smart` is made of it.
//!
//! The library only decides. Connections, clock and timers are the caller's, so it fits around any Redis
//! client: ask before a request is sent, report how each attempt ended, and do what the answers say. A
//! [`Client`] takes less than a kilobyte, and allocates nothing.
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
//! | `-THROTTLED` | rejected | unchanged: it is about a quota | no |
//! | `-OVERLOADED` `-UNAVAILABLE` `-DEADLINE` | rejected | a failure | no: the target has said that it has no room |
//! | timed out, connection lost | rejected | a failure | if it may be, after a pause, within budget and deadline |
//!
//! A [`Client`] serves connections that share a fate: those of one process to one weir. A caller that acts
//! for several tenants with quotas of their own keeps one client for each; a caller that can tell which
//! backend a request goes to may keep one for each backend.
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

/// Whether a request may be carried out twice without harm, which decides whether it is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    /// The request only reads, or its caller knows that repeating it does no harm. It may be sent again even
    /// if the first attempt may have been carried out.
    Harmless,
    /// The request would do harm if it were carried out twice, so it is never sent again.
    Harmful,
}

/// A request over all its attempts: the time at which it began (`since`), the number of attempts sent so
/// far, and whether it may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    since: Timestamp,
    attempts: u8,
    repeats: Repeats,
}

/// An attempt at a request that the caller sends. The caller gives this value back, with the attempt's
/// [`Outcome`], to [`Client::handle_outcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    request: Request,
    is_probe: bool,
    rest: Option<Duration>,
}

impl Sent {
    /// Returns the time that is left until the request's deadline, if this attempt is a retry and there is a
    /// deadline; `None` for a first attempt, which has all of the time.
    pub const fn rest(&self) -> Option<Duration> {
        self.rest
    }

    /// Returns the number of earlier attempts at the same request.
    pub const fn retries(&self) -> u8 {
        self.request.attempts - 1
    }
}

/// The client's decision on whether an attempt at a request may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The caller sends the attempt and reports its outcome.
    Send(Sent),
    /// The caller does not send the attempt, and reports nothing about it.
    Refused(Reason),
}

/// The reason for which the client library refuses to have a request sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The circuit breaker is open because the target serves no requests; none is sent before the given time, unless
    /// one in flight is answered before.
    BreakerOpen(Timestamp),
    /// The target has lately accepted less than half of the requests. Refusals are at random, so the next
    /// request may be sent.
    Throttled,
    /// The retry is too late: less than a millisecond of its deadline is left.
    TooLate,
}

/// The next step of the caller after an attempt has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// No further attempt is made: this attempt's outcome is the request's.
    Done {
        /// The time before which the target does not want to get the request again; `None` if it named none.
        not_before: Option<Timestamp>,
    },
    /// The request is to be sent again at the time that the retry names.
    RetryAt(Retry),
}

/// A retry that is planned. When its time has come, the caller passes it to [`Client::may_repeat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    at: Timestamp,
    request: Request,
}

impl Retry {
    /// Returns the time at which the retry is due.
    pub const fn at(&self) -> Timestamp {
        self.at
    }
}

/// Decides for all requests to one target: whether each is sent, and whether it is sent again. Combines
/// circuit breaker (stops all requests for a pause when none is answered), throttle (refuses a share of them
/// when the target refuses most) and retry budget (limits retries to a share of the requests).
#[derive(Clone, Debug)]
pub struct Client {
    policy: Policy,
    breaker: Breaker,
    throttle: Throttle,
    budget: Budget,
    random: Random,
}

impl Client {
    /// Creates a client whose circuit breaker is closed: requests are sent. Each client needs a seed of its
    /// own in `random`, or clients would retry and probe the target at the same time.
    pub fn new(policy: Policy, random: Random) -> Self {
        Self {
            breaker: Breaker::new(policy.breaker),
            throttle: Throttle::new(policy.throttle_window, policy.breaker.failures),
            budget: Budget::new(policy.budget),
            policy,
            random,
        }
    }

    /// Returns the settings of this client.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the time until which an open circuit breaker refuses all requests; `None` if requests may be
    /// sent. Changes nothing.
    pub fn open_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.breaker.open_until(now)
    }

    /// Decides whether a new request may be sent; `repeats` tells whether it may be retried later. A request
    /// that may be sent is counted for the retry budget.
    #[must_use]
    pub fn may_send(&mut self, repeats: Repeats, now: Timestamp) -> Decision {
        let decision = self.decide(Request { since: now, attempts: 0, repeats }, None, now);
        if let Decision::Send(_) = decision {
            self.budget.note_request(now);
        }
        decision
    }

    /// Decides whether a retry that is due may be sent: not if less than a millisecond of its deadline is
    /// left, nor if the circuit breaker or the throttle refuses it.
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

    /// Records the outcome of an attempt, and decides whether to retry, which it returns. Call it once for
    /// each attempt that was sent; if the outcome of a probe (single request that tries a failed target) is
    /// never reported, another probe may be sent after [`BreakerPolicy::probe_timeout`].
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
        // The budget comes last: a retry that could not be sent takes nothing from it.
        (at.after(REST_LEAST) <= ends && self.budget.take(now)).then_some(Retry { at, request })
    }
}
