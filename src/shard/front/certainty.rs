//! Requests that go on when the map of the cluster is known to be right: all primaries were asked after the request had come.

use std::time::Duration;

use super::Front;
use crate::protocol::Arguments;
use crate::routing::cluster::WalkPosition;
use crate::shard::env::Env;
use crate::shard::front::held::HeldRequest;
use crate::values::{ClientId, Timestamp};

/// Nobody waits for longer.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// It is asked for so often while somebody waits.
const ASKED_EVERY: Duration = Duration::from_millis(100);

/// What is kept of a request for primaries as such, and not for a slot, until it is answered. A client has one at a time.
#[derive(Debug)]
pub struct Addressed {
    /// Where its walk is.
    pub walk: Option<WalkPosition>,
    /// The request, if it may be tried once more.
    pub again: Option<Box<HeldRequest>>,
    /// Somebody who was asked is no primary.
    pub was_refused: bool,
}

/// Who waits.
#[derive(Debug, Default)]
pub struct Certainty {
    /// Since when, once the turn is over in which they began.
    waiting: Vec<(ClientId, Option<Timestamp>)>,
    asked: Option<Timestamp>,
    /// When the newest round began after which the map was right.
    confirmed: Option<Timestamp>,
}

impl Certainty {
    /// Was the map right after this?
    pub fn is_sure(&self, after: Timestamp) -> bool {
        self.confirmed.is_some_and(|confirmed| confirmed > after)
    }

    fn wait(&mut self, id: ClientId) {
        self.waiting.push((id, None));
        self.asked = None;
    }

    /// The map is what primaries said that were asked at that time.
    pub fn handle_confirmed(&mut self, at: Timestamp) {
        self.confirmed = self.confirmed.max(Some(at));
    }

    /// Those who need not wait any more, or have waited for too long.
    pub fn take_ready(&mut self, now: Timestamp) -> Vec<ClientId> {
        let confirmed = self.confirmed;
        let is_ready = |(_, since): &mut (ClientId, Option<Timestamp>)| {
            let since = *since.get_or_insert(now);
            confirmed.is_some_and(|at| at > since) || now.since(since) >= PATIENCE
        };
        self.waiting.extract_if(.., is_ready).map(|(id, _)| id).collect()
    }

    /// Should primaries be asked?
    pub fn take_question(&mut self, now: Timestamp) -> bool {
        let is_due = self.asked.is_none_or(|asked| now.since(asked) >= ASKED_EVERY);
        let asks = is_due && !self.waiting.is_empty();
        if asks {
            self.asked = Some(now);
        }
        asks
    }

    /// When to look again.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let first = self.waiting.iter().filter_map(|(_, since)| *since).min();
        let asks_again =
            self.asked.filter(|_| !self.waiting.is_empty()).map(|asked| asked.after(ASKED_EVERY));
        [first.map(|since| since.after(PATIENCE)), asks_again].into_iter().flatten().min()
    }
}

impl Front {
    /// Puts a request off until the map is known to be right; later ones wait behind it.
    pub fn hold_for_map(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        self.hold_for_grant(id, arguments);
        self.certainty.wait(id);
    }

    /// Who waits for the map of the cluster.
    pub fn certainty(&mut self) -> &mut Certainty {
        &mut self.certainty
    }

    /// When to look again at those who wait for the map of the cluster.
    pub fn certainty_deadline(&self) -> Option<Timestamp> {
        self.certainty.poll_deadline()
    }

    /// A request goes to primaries as such.
    pub fn note_addressed(&mut self, id: ClientId, walk: Option<WalkPosition>, arguments: &Arguments<'_>) {
        let client = self.clients.at(id);
        let again = (!client.is_second_try).then(|| Box::new(client.held(arguments)));
        client.addressed = Some(Box::new(Addressed { walk, again, was_refused: false }));
    }

    /// Such a request is answered. False if it is tried again instead, because somebody was no primary.
    pub(super) fn end_addressed(
        &mut self,
        env: &mut Env,
        id: ClientId,
        sequence: u32,
        addressed: Option<Box<Addressed>>,
    ) -> bool {
        let client = self.clients.at(id);
        let again = addressed.filter(|addressed| addressed.was_refused).and_then(|addressed| addressed.again);
        client.is_second_try = again.is_some();
        let Some(again) = again.filter(|_| client.held_request.is_none()) else { return true };
        client.held_request = Some(again);
        client.waits_for_quota = true;
        self.certainty.wait(id);
        self.answer_rewritten(env, id, sequence, Vec::new());
        false
    }
}
