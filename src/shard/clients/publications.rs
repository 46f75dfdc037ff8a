//! Messages (`PUBLISH`) that wait until stores have acknowledged earlier subscriptions by clients of the same
//! tenant, to the same channel or to a pattern, on any core (`../subscription_board.rs`).

use std::time::Duration;

use super::ClientStage;
use crate::protocol::Arguments;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::subscription_board::{Cells, SubscriptionBoard};
use crate::values::time::Now;
use crate::values::{ClientId, Timestamp};

/// The interval at which a waiting `PUBLISH` is checked again: whether stores have acknowledged the
/// subscriptions that it waits for.
const LOOKS_APART: Duration = Duration::from_millis(1);

/// The clients whose message (`PUBLISH`) waits until stores have acknowledged earlier subscriptions to its
/// channel.
#[derive(Debug, Default)]
pub struct Publications {
    /// The clients, each with the counters of unacknowledged subscriptions that must become zero first, and
    /// the time at which its message is sent in any case.
    waiting: Vec<(ClientId, Cells, Timestamp)>,
    looked_at: Timestamp,
}

impl Publications {
    /// Removes and returns the clients whose message (`PUBLISH`) may be sent: stores have acknowledged all
    /// subscriptions that the message waits for, or its time is over.
    pub fn take_ready(&mut self, board: &SubscriptionBoard, now: Timestamp) -> Vec<ClientId> {
        self.looked_at = now;
        let is_ready =
            |(_, cells, until): &mut (ClientId, Cells, Timestamp)| now >= *until || !board.has_any(*cells);
        self.waiting.extract_if(.., is_ready).map(|(id, ..)| id).collect()
    }

    /// True if no message (`PUBLISH`) waits for stores to acknowledge subscriptions.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the time at which [`Self::take_ready`] should be called next; None if no message (`PUBLISH`)
    /// waits.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        (!self.waiting.is_empty()).then(|| self.looked_at.after(LOOKS_APART))
    }
}

impl ClientStage {
    /// Holds a message (`PUBLISH`), and later requests of its client after it, if stores have not
    /// acknowledged a subscription of the tenant to its channel or to a pattern, and the message was decoded less
    /// than `--publish-wait` ago. False if it may be sent.
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
        let channel = arguments.get(1).unwrap_or_default();
        let Some(cells) = limits.subscriptions.awaited(client.identity.tenant_id(), channel) else {
            return false;
        };
        env.counters.add(Counter::PublicationsHeld, 1);
        self.hold_for_grant(id, arguments);
        self.publications.waiting.push((id, cells, until));
        true
    }

    /// Returns the list of clients whose message (`PUBLISH`) waits until stores have acknowledged earlier
    /// subscriptions.
    pub fn publications(&mut self) -> &mut Publications {
        &mut self.publications
    }

    /// Returns the time at which to check next which messages (`PUBLISH`) may be sent; None if none waits.
    pub fn publications_deadline(&self) -> Option<Timestamp> {
        self.publications.poll_deadline()
    }
}
