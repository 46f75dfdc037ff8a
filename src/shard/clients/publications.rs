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

/// A client whose message (`PUBLISH`) waits because of earlier subscriptions, and the condition that ends the wait.
#[derive(Clone, Copy, Debug)]
struct Waiting<Condition> {
    client: ClientId,
    condition: Condition,
    /// The time at which the message is sent even if its subscriptions are not acknowledged (`--publish-wait`
    /// after it was decoded).
    until: Timestamp,
}

/// The clients whose message (`PUBLISH`) waits for subscriptions that came before it.
#[derive(Debug, Default)]
pub struct Publications {
    /// The clients whose message waits until the other cores have handled all bytes that arrived before it.
    for_cores: Vec<Waiting<Timestamp>>,
    /// The clients whose message waits until stores have acknowledged certain subscriptions to its channel or to
    /// patterns.
    for_stores: Vec<Waiting<Awaited>>,
    looked_at: Timestamp,
}

impl Publications {
    /// Removes and returns the clients whose message (`PUBLISH`) need not wait any longer for other cores, or for
    /// stores, or has waited for as long as it may. A message that waited for other cores may then still have to wait
    /// for stores. Acknowledgements are looked for once per millisecond, as many clients may wait.
    pub fn take_ready(&mut self, env: &Env, now: Timestamp) -> Vec<ClientId> {
        let is_ready = |waiting: &mut Waiting<Timestamp>| {
            now >= waiting.until || env.others_have_handled(waiting.condition)
        };
        let mut ready: Vec<ClientId> =
            self.for_cores.extract_if(.., is_ready).map(|waiting| waiting.client).collect();
        if now.since(self.looked_at) >= LOOKS_APART {
            self.looked_at = now;
            let board = &env.settings.clients.subscriptions;
            let is_ready =
                |waiting: &mut Waiting<Awaited>| now >= waiting.until || board.is_over(&waiting.condition);
            ready.extend(self.for_stores.extract_if(.., is_ready).map(|waiting| waiting.client));
        }
        ready
    }

    /// True if no message (`PUBLISH`) waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.for_cores.is_empty() && self.for_stores.is_empty()
    }

    /// True if a message (`PUBLISH`) waits until the other cores have handled all bytes that arrived before it.
    #[inline]
    pub fn await_others(&self) -> bool {
        !self.for_cores.is_empty()
    }

    /// Returns the time at which [`Self::take_ready`] should be called next; None if no message (`PUBLISH`)
    /// waits.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        // Messages begin to wait in the order in which they were decoded.
        let first_end = self.for_cores.first().map(|waiting| waiting.until);
        let next_look = (!self.for_stores.is_empty()).then(|| self.looked_at.after(LOOKS_APART));
        Timestamp::earliest([first_end, next_look])
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
        if env.others_have_handled(came) {
            let channel = arguments.get(1).unwrap_or_default();
            let awaited = limits.subscriptions.awaited(client.identity.tenant_id(), channel);
            let Some(condition) = awaited else { return false };
            env.counters.add(Counter::PublicationsHeld, 1);
            self.publications.for_stores.push(Waiting { client: id, condition, until });
        } else {
            env.counters.add(Counter::PublicationsHeldForCores, 1);
            self.publications.for_cores.push(Waiting { client: id, condition: came, until });
        }
        self.hold_for_grant(id, arguments);
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
