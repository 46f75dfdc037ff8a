//! Retries of reads that were lost with the connection to a node of a cluster, within a budget.
//!
//! A read is retried only if every later unanswered request of its client for the same slot on that connection is
//! retried too: otherwise it might see a later write. There are no retries in front of plain stores, because sent
//! requests are not kept there.

use std::collections::{HashSet, VecDeque};

use super::slots::{Held, Slots};
use super::unanswered::{Sent, Unanswered};
use crate::protocol::command::{Class, Effect};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::pending::{InFlight, Pending};
use crate::shard::request::{Envelope, Route, Track};
use crate::shard::settings::Mode;
use crate::shard::stored::Stored;
use crate::values::limits::SLOTS;
use crate::values::time::Now;
use crate::values::{BackendId, ConnectionId};

/// The reasons for the loss of a connection after which its reads are sent again. With the first, the node
/// was not merely slow; with the others, another node has its slots by now.
const WAYS: [&str; 3] = ["connection-lost", "node-gone", "node-failed"];

/// The unanswered requests of a lost connection, and which of them are to be retried.
#[derive(Debug, Default)]
pub struct Retries {
    unanswered: Unanswered,
    /// For each unanswered request of the lost connection, whether it is retried; from the latest request
    /// to the oldest.
    chosen: Vec<bool>,
    /// True if the lost connection's requests were sent, so that the node may have carried them out.
    was_sent: bool,
}

impl Slots {
    /// Chooses which requests of a lost connection may be retried: reads, if retries are not off, the connection was
    /// lost for a `reason` that permits it (`WAYS`), and some of its requests left weir (`was_sent`). The caller then
    /// passes each of its unanswered requests, whose records are `pending`, to [`Slots::retry`].
    #[inline(never)]
    pub fn choose_retries(
        &mut self,
        env: &Env,
        connection: ConnectionId,
        (pending, was_sent): (&VecDeque<Pending>, bool),
        reason: &str,
        now: Now,
    ) -> Retries {
        let unanswered = self.take_unanswered(connection);
        let owed = pending.iter().filter_map(Pending::request);
        if owed.clone().count() != unanswered.len() {
            debug_assert!(false, "one is kept for each");
            return Retries::default();
        }
        if env.settings.retries == Mode::Off || !WAYS.contains(&reason) || !was_sent {
            return Retries { chosen: vec![false; unanswered.len()], unanswered, was_sent };
        }
        // Client connections, by slot, that have a request which is not retried behind this point.
        let mut barred: HashSet<(u64, u16)> = HashSet::new();
        let sent: Vec<Sent> = unanswered.all().collect();
        let backwards = owed.rev().zip(sent.iter().rev());
        let chosen = backwards
            .map(|(request, sent)| {
                let source = (env.pieces.connection(request.envelope.reply_to), sent.slot);
                let is_chosen = !request.is_abandoned
                    && is_mere_read(&request.envelope)
                    && sent.slot < SLOTS
                    && sent.requests == 1
                    && !sent.tries.is_again
                    && request.deadline().is_none_or(|deadline| deadline > now.monotonic)
                    && !barred.contains(&source);
                if !is_chosen {
                    barred.insert(source);
                }
                is_chosen
            })
            .collect();
        Retries { unanswered, chosen, was_sent }
    }

    /// Handles the next unanswered request (`request`) of a lost connection to a backend. True if the request is held,
    /// to be sent again over the same track (set of connections). False if it is to be answered with an error: it was
    /// not chosen for a retry, too many requests or bytes are held, the retry budget is used up, or retries are in
    /// shadow mode (counted only). Records a write that may have been carried out, so that no earlier request of its
    /// client for the same key is sent again.
    pub fn retry(
        &mut self,
        env: &mut Env,
        (backend, track): (BackendId, Track),
        request: &InFlight,
        retries: &mut Retries,
        now: Now,
    ) -> bool {
        let Some(is_chosen) = retries.chosen.pop() else { return false };
        let is_held = retries.unanswered.next_slot().is_some_and(|slot| self.is_held(slot));
        let Some((sent, frame)) = retries.unanswered.pop(is_chosen || is_held) else { return false };
        let Envelope { reply_to: to, nature, .. } = request.envelope;
        if retries.was_sent && nature.effect() != Effect::Read {
            // The request may have been carried out.
            self.record_carried_out(env.pieces.connection(to), to, sent.slot, &frame);
        }
        if !is_chosen || !self.has_room_for(frame.len()) {
            return false;
        }
        let is_left = self.retries.take(env.counters.get(Counter::RequestsForwarded), now.monotonic);
        let counter = match (is_left, env.settings.retries) {
            (false, _) => Counter::RetriesOverBudget,
            (true, Mode::On) => Counter::RetriesSent,
            (true, _) => Counter::RetriesInShadow,
        };
        env.counters.add(counter, 1);
        if counter != Counter::RetriesSent {
            return false;
        }
        let route = Route { backend, track, ..request.envelope.route };
        let envelope = Envelope { route, ..request.envelope };
        let message = Stored::of(&frame, &mut env.pool);
        self.hold(Held::again(envelope, message, sent.tries, now.monotonic));
        true
    }
}

/// True for a read of a kind that may be retried when its connection is lost: a client's whole request, not a
/// script, which may write, not a piece of a split request, and not a fetch of a hot key (one read for all
/// requests that wait), which is retried elsewhere.
fn is_mere_read(envelope: &Envelope) -> bool {
    let Envelope { reply_to: to, nature, .. } = *envelope;
    let is_own = to.piece_of().is_none() && to.flight_id().is_none();
    is_own && nature.effect() == Effect::Read && nature.class != Class::Script
}
