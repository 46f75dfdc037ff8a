//! Groups whose clients are smart: `weir_client`, set up as their plan says. The connections of a group on one thread
//! are those of one client.

use std::time::Duration;

use super::classify::Ending;
use super::connection::Request;
use super::plan::{ClientKind, GroupPlan};
use weir::values::{Random, Timestamp};
use weir_client::{BreakerPolicy, Client, Next, Outcome, Policy, Retry};

pub(super) struct Smart {
    pub client: Client,
    /// What was due and could not be sent for so long has timed out: it is not sent any more.
    pub patience: Duration,
}

impl Smart {
    /// None for a group of naive clients.
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

    /// An attempt has ended: is it repeated, and when?
    pub fn handle(&mut self, request: &Request, outcome: Outcome, now: Timestamp) -> Option<Retry> {
        match self.client.handle_outcome(request.sent?, outcome, now) {
            Next::RetryAt(retry) => Some(retry),
            Next::Done { .. } => None,
        }
    }
}

/// What a smart client hears of an attempt; `text` is that of an error reply.
pub(super) fn outcome(ending: Ending, text: &[u8]) -> Outcome {
    match ending {
        Ending::Served => Outcome::Answered,
        Ending::Timeout => Outcome::TimedOut,
        Ending::Lost => Outcome::Lost,
        _ => Outcome::of_error(text),
    }
}
