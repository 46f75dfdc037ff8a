//! Clients of kind `smart`: a `weir_client` for each group and thread, set up as the group's plan says. All
//! connections of a group on one thread share it.

use std::time::Duration;

use super::classify::Ending;
use super::connection::Request;
use super::plan::{ClientKind, GroupPlan};
use weir::values::{Random, Timestamp};
use weir_client::{BreakerPolicy, Client, Next, Outcome, Policy, Retry};

pub(super) struct Smart {
    pub client: Client,
    /// The time after which a due request that could not be sent, for want of a free connection, is dropped
    /// and counts as timed out.
    pub patience: Duration,
}

impl Smart {
    /// Creates the state of the client library for a group of smart clients; `None` if its clients are naive
    /// (they retry at once).
    pub fn new(plan: &GroupPlan, random: &mut Random) -> Option<Self> {
        if plan.client == ClientKind::Naive {
            return None;
        }
        let timeout = plan.timeout.unwrap_or(Policy::default().timeout);
        let deadline = plan.identity.deadline;
        let policy = Policy {
            timeout,
            deadline,
            retries: plan.retries,
            breaker: BreakerPolicy { probe_timeout: timeout * 2, ..BreakerPolicy::default() },
            ..Policy::default()
        };
        let patience = deadline.map_or(timeout, |deadline| deadline.min(timeout));
        Some(Self { client: Client::new(policy, random.fork()), patience })
    }

    /// Reports the outcome of an attempt at a request to the client library. Returns the retry if there is
    /// to be one; else `None`.
    pub fn handle(&mut self, request: &Request, outcome: Outcome, now: Timestamp) -> Option<Retry> {
        match self.client.handle_outcome(request.sent?, outcome, now) {
            Next::RetryAt(retry) => Some(retry),
            Next::Done { .. } => None,
        }
    }
}

/// Translates the end of an attempt into the client library's terms; `text` is that of the error reply, or
/// empty.
pub(super) fn outcome(ending: Ending, text: &[u8]) -> Outcome {
    match ending {
        Ending::Served => Outcome::Answered,
        Ending::Timeout => Outcome::TimedOut,
        Ending::Lost => Outcome::Lost,
        _ => Outcome::of_error(text),
    }
}
