//! Messages (`PUBLISH`) that wait for earlier subscriptions by clients of the same tenant, to the same channel
//! or to a pattern, on any core. A message waits twice: until the other cores have handled all bytes that
//! arrived before it, as a `SUBSCRIBE` may be among them, and then until stores have acknowledged the
//! subscriptions that are known by now (`../subscription_board.rs`).

use std::time::Duration;

use super::ClientStage;
use crate::protocol::Arguments;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::subscription_board::Awaited;
use crate::values::time::Now;
use crate::values::{ClientId, Timestamp};

/// The interval at which a waiting `PUBLISH` is checked again: whether stores have acknowledged the
/// subscriptions that it waits for.
const LOOKS_APART: Duration = Duration::from_millis(1);

/// A condition for which a message (`PUBLISH`) waits.
#[derive(Clone, Copy, Debug)]
enum Condition {
    /// The other cores must have handled all bytes that arrived by this time.
    Handled(Timestamp),
    /// Stores must have acknowledged these subscriptions.
    Acknowledged(Awaited),
}

/// A client whose message (`PUBLISH`) waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    client: ClientId,
    condition: Condition,
    /// The time at which the message is sent in any case.
    until: Timestamp,
}

/// The clients whose message (`PUBLISH`) waits for subscriptions that came before it.
#[derive(Debug, Default)]
pub struct Publications {
    waiting: Vec<Waiting>,
    looked_at: Timestamp,
}

impl Condition {
    fn holds(&self, env: &Env) -> bool {
        match self {
            Self::Handled(by) => env.others_have_handled(*by),
            Self::Acknowledged(awaited) => env.settings.clients.subscriptions.is_over(awaited),
        }
    }
}

impl Publications {
    /// Removes and returns the clients whose message (`PUBLISH`) need not wait any longer for its condition,
    /// or has waited for as long as it may.
    pub fn take_ready(&mut self, env: &Env, now: Timestamp) -> Vec<ClientId> {
        self.looked_at = now;
        let is_ready = |waiting: &mut Waiting| now >= waiting.until || waiting.condition.holds(env);
        self.waiting.extract_if(.., is_ready).map(|waiting| waiting.client).collect()
    }

    /// True if no message (`PUBLISH`) waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// True if a message (`PUBLISH`) waits until the other cores have handled all bytes that arrived before it.
    #[inline]
    pub fn await_others(&self) -> bool {
        self.waiting.iter().any(|waiting| matches!(waiting.condition, Condition::Handled(_)))
    }

    /// Returns the time at which [`Self::take_ready`] should be called next; None if no message (`PUBLISH`)
    /// waits.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        (!self.waiting.is_empty()).then(|| self.looked_at.after(LOOKS_APART))
    }
}

impl ClientStage {
    /// Holds a message (`PUBLISH`), and later requests of its client after it, while an earlier subscription of
    /// the tenant, to its channel or to a pattern, may be on its way: other cores may not have handled all bytes
    /// that arrived before the message, or stores have not acknowledged it. False if the message may be sent, as
    /// every message may that was decoded `--publish-wait` ago or more.
    pub fn hold_for_subscriptions(
        &mut self,
        env: &mut Env,
        id: ClientId,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> bool {
        let limits = &env.settings.clients;
        let client = self.clients.at(id);
        let until = client.times.began.after(limits.publish_wait);
        if now.monotonic >= until {
            return false;
        }
        let came = client.times.came;
        let (condition, counter) = if env.others_have_handled(came) {
            let channel = arguments.get(1).unwrap_or_default();
            let awaited = limits.subscriptions.awaited(client.identity.tenant_id(), channel);
            let Some(awaited) = awaited else { return false };
            (Condition::Acknowledged(awaited), Counter::PublicationsHeld)
        } else {
            (Condition::Handled(came), Counter::PublicationsHeldForCores)
        };
        env.counters.add(counter, 1);
        self.hold_for_grant(id, arguments);
        self.publications.waiting.push(Waiting { client: id, condition, until });
        true
    }

    /// Returns the list of clients whose message (`PUBLISH`) waits for earlier subscriptions.
    pub fn publications(&mut self) -> &mut Publications {
        &mut self.publications
    }

    /// True if a message (`PUBLISH`) of a client waits until the other cores have handled all bytes that
    /// arrived before it.
    #[inline]
    pub fn await_others(&self) -> bool {
        self.publications.await_others()
    }

    /// Returns the time at which to check next which messages (`PUBLISH`) may be sent; None if none waits.
    pub fn publications_deadline(&self) -> Option<Timestamp> {
        self.publications.poll_deadline()
    }
}
