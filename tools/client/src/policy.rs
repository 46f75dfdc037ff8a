//! What a client is told to do; the defaults suit requests of a few milliseconds.

use std::time::Duration;

use super::backoff::Backoff;
use super::breaker::BreakerPolicy;
use super::budget::BudgetPolicy;
use super::throttle::THROTTLE_WINDOW;

/// All settings of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// After how long an attempt is given up.
    pub timeout: Duration,
    /// How long a request may take, all attempts together. Connections tell weir themselves (`QOS SET DEADLINE`); a
    /// retry, which has less left, tells the rest ([`call_within`](super::call_within)).
    pub deadline: Option<Duration>,
    /// How often a request is sent again at most.
    pub retries: u8,
    /// How long before that.
    pub backoff: Backoff,
    /// How many retries there may be in all.
    pub budget: BudgetPolicy,
    /// How long the client remembers what was accepted, to throttle itself by.
    pub throttle_window: Duration,
    /// When the target is left alone.
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
