//! The settings of a client; the defaults suit requests of a few milliseconds.

use std::time::Duration;

use super::backoff::Backoff;
use super::breaker::BreakerPolicy;
use super::budget::BudgetPolicy;
use super::throttle::THROTTLE_WINDOW;

/// All settings of the client library for one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The time after which an attempt at a request is given up as timed out.
    pub timeout: Duration,
    /// Maximum time that a request may take, all attempts together; `None` for no limit. The caller announces
    /// it on each connection (`QOS SET DEADLINE`); a retry, which has less time left, carries the remaining
    /// time ([`call_within`](super::call_within)).
    pub deadline: Option<Duration>,
    /// Maximum number of times that one request is sent again.
    pub retries: u8,
    /// The upper bounds of the random pause before each retry.
    pub backoff: Backoff,
    /// Maximum number of retries of all requests together, relative to the number of new requests.
    pub budget: BudgetPolicy,
    /// The time for which the throttle (which refuses requests in the client while the target refuses most
    /// of them) remembers which requests were accepted.
    pub throttle_window: Duration,
    /// The conditions under which the circuit breaker opens (stops all requests to the target for a pause),
    /// and the length of its pauses.
    pub breaker: BreakerPolicy,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(1),
            deadline: None,
            retries: 2,
            backoff: Backoff::default(),
            budget: BudgetPolicy::default(),
            throttle_window: THROTTLE_WINDOW,
            breaker: BreakerPolicy::default(),
        }
    }
}
