//! Retries of reads that were lost with the connection to a node of a cluster, within a budget.
//!
//! A read is retried only if its client has sent nothing behind it for the same slot that is not retried too:
//! otherwise it might see a later write. There are no retries before plain stores, because sent requests are
//! not kept there.

use std::collections::HashSet;

use super::link::{LinkState, Pending, Purpose};
use super::slots::Held;
use super::unanswered::{Sent, Unanswered};
use super::{Back, forward::track_of};
use crate::protocol::command::{Class, Effect};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::request::{Envelope, ReplyTo, Route};
use crate::shard::settings::Mode;
use crate::shard::stored::Stored;
use crate::values::ConnectionId;
use crate::values::limits::SLOTS;
use crate::values::time::Now;

/// Reasons for losing a connection after which reads are retried: they do not show that the node is slow, or
/// another node has its slots by then.
const WAYS: [&str; 3] = ["connection-lost", "node-gone", "node-failed"];

/// The unanswered requests of a lost connection, and which of them are retried.
#[derive(Debug, Default)]
pub(super) struct Again {
    unanswered: Unanswered,
    /// Whether each request is retried, from the last to the first.
    chosen: Vec<bool>,
    /// True if the requests were sent, so that the node may have carried them out.
    was_sent: bool,
}

impl Back {
    /// Chooses which requests of a lost connection may be retried.
    #[inline(never)]
    pub(super) fn choose_again(
        &mut self,
        env: &Env,
        connection: ConnectionId,
        reason: &str,
        now: Now,
    ) -> Again {
        let link = &mut self.links[connection.0 as usize];
        if self.slots.is_none() {
            return Again::default();
        }
        let unanswered = std::mem::take(&mut link.unanswered);
        let owed = link.pending.iter().filter(|pending| pending.is_counted());
        if owed.clone().count() != unanswered.len() {
            debug_assert!(false, "one is kept for each");
            return Again::default();
        }
        let was_sent = link.state == LinkState::Open;
        if env.settings.retries == Mode::Off || !WAYS.contains(&reason) || !was_sent {
            return Again { chosen: vec![false; unanswered.len()], unanswered, was_sent };
        }
        // Client connections, by slot, that have a request which is not retried behind this point.
        let mut barred: HashSet<(u64, u16)> = HashSet::new();
        let sent: Vec<Sent> = unanswered.all().collect();
        let backwards = owed.rev().zip(sent.iter().rev());
        let chosen = backwards
            .map(|(pending, sent)| {
                let of = |to| (env.pieces.connection(to), sent.slot());
                match pending.purpose {
                    Purpose::Answer(to)
                        if is_mere_read(pending, to)
                            && sent.slot() < SLOTS
                            && sent.requests == 1
                            && !sent.tries.is_again
                            && pending.deadline() > now.monotonic
                            && !barred.contains(&of(to)) =>
                    {
                        true
                    }
                    Purpose::Answer(to) | Purpose::Abandoned(to) => {
                        barred.insert(of(to));
                        false
                    }
                    Purpose::Steps(_) | Purpose::Ahead(_) | Purpose::Fence => false,
                }
            })
            .collect();
        Again { unanswered, chosen, was_sent }
    }

    /// Handles the next lost request. True if it is retried and so not answered yet; false also if the retry
    /// budget is used up.
    pub(super) fn is_asked_again(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        pending: &Pending,
        again: &mut Again,
        now: Now,
    ) -> bool {
        let Some(is_chosen) = again.chosen.pop() else { return false };
        let Some(slots) = &mut self.slots else { return false };
        let is_held = again.unanswered.next_slot().is_some_and(|slot| slots.is_held(slot));
        let Some((sent, frame)) = again.unanswered.pop(is_chosen || is_held) else { return false };
        let (Purpose::Answer(to) | Purpose::Abandoned(to)) = pending.purpose else { return false };
        if again.was_sent && pending.effect != Effect::Read {
            // Nobody can rule out that the request was carried out.
            slots.note_carried_out(env.pieces.connection(to), to, sent.slot(), &frame);
        }
        if !is_chosen || !slots.has_room_for(frame.len()) {
            return false;
        }
        let is_left = slots.retries.take(env.counters.get(Counter::RequestsForwarded), now.monotonic);
        let counter = match (is_left, env.settings.retries) {
            (false, _) => Counter::RetriesOverBudget,
            (true, Mode::On) => Counter::RetriesSent,
            (true, _) => Counter::RetriesInShadow,
        };
        env.counters.add(counter, 1);
        if counter != Counter::RetriesSent {
            return false;
        }
        let link = &self.links[connection.0 as usize];
        let track = track_of(link.bulkhead);
        let route = Route { backend: link.backend, track, ..sent.envelope.route };
        let envelope = Envelope { route, ..sent.envelope };
        let message = Stored::of(&frame, &mut env.pool);
        slots.hold(Held::again(envelope, message, sent.tries, now.monotonic));
        true
    }
}

/// True for a read of a kind that may be retried when its connection is lost: sent by a client as a whole, no
/// script, which may write, no piece of a split request, and no fetch, whose waiters are handled elsewhere.
fn is_mere_read(pending: &Pending, to: ReplyTo) -> bool {
    let is_own = to.piece_of().is_none() && to.flight_id().is_none();
    is_own && pending.effect == Effect::Read && pending.class != Class::Script
}
