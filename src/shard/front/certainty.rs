//! Requests that go on when the map of the cluster is known to be right: all primaries were asked after the request had come.

use std::time::Duration;

use super::Front;
use crate::protocol::Arguments;
use crate::routing::cluster::{NodeKey, WalkPosition};
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
    /// Parts for which somebody was asked who is no primary.
    pub refused: Vec<u16>,
    /// Who was asked, part by part, where nobody is to be told a second time.
    pub told: Vec<NodeKey>,
}

impl Addressed {
    /// Parts that others will be asked for, while the rest of the reply stays as it is.
    pub fn left_out(&self) -> &[u16] {
        let keeps_some = self.again.is_some() && self.refused.len() < self.told.len();
        if keeps_some { &self.refused } else { &[] }
    }
}

/// What a request that is tried once more has come to before.
#[derive(Debug, Default)]
pub struct FirstTry {
    /// The number that it has the second time.
    sequence: u32,
    /// Who has done it: they are not told again. And what they said, as one reply.
    pub done: Option<(Vec<NodeKey>, Vec<u8>)>,
}

/// Who waits.
#[derive(Debug, Default)]
pub struct Certainty {
    /// Since when, once the turn is over in which they began.
    waiting: Vec<(ClientId, Option<Timestamp>)>,
    asked: Option<Timestamp>,
}

impl Certainty {
    fn wait(&mut self, id: ClientId) {
        self.waiting.push((id, None));
        self.asked = None;
    }

    /// Those who need not wait any more, or have waited for too long.
    pub fn take_ready(&mut self, env: &Env, now: Timestamp) -> Vec<ClientId> {
        let is_ready = |(_, since): &mut (ClientId, Option<Timestamp>)| {
            let since = *since.get_or_insert(now);
            env.is_sure(since) || now.since(since) >= PATIENCE
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
        let again = client.first_try.is_none().then(|| Box::new(client.held(arguments)));
        let (refused, told) = (Vec::new(), Vec::new());
        client.addressed = Some(Box::new(Addressed { walk, again, refused, told }));
    }

    /// The same request, before it is sent, if nobody is to be told of it twice: who is asked, but for those that have done it. What
    /// they said, if there are any.
    pub fn note_told(&mut self, id: ClientId, asked: &mut Vec<NodeKey>) -> Option<Vec<u8>> {
        let client = self.clients.at(id);
        let (_, sequence) = client.order.sequences();
        let first_try = client.first_try.as_mut().filter(|first_try| first_try.sequence == sequence);
        let (done, said) = first_try.and_then(|first_try| first_try.done.take()).unzip();
        asked.retain(|node| done.as_ref().is_none_or(|done: &Vec<NodeKey>| !done.contains(node)));
        if let Some(addressed) = &mut client.addressed {
            addressed.told.clone_from(asked);
        }
        said
    }

    /// Such a request is answered, with this. False if it is tried again instead, because somebody was no primary.
    pub(super) fn end_addressed(
        &mut self,
        env: &mut Env,
        id: ClientId,
        sequence: u32,
        addressed: Option<Box<Addressed>>,
        reply: &[u8],
    ) -> bool {
        let client = self.clients.at(id);
        client.first_try = None;
        let addressed = addressed.filter(|addressed| !addressed.refused.is_empty());
        let Some(addressed) = addressed.filter(|_| client.held_request.is_none()) else { return true };
        let done = (!addressed.left_out().is_empty()).then(|| {
            let has_done = |part: &usize| !addressed.refused.contains(&(*part as u16));
            let done = (0..addressed.told.len()).filter(has_done).map(|part| addressed.told[part]);
            (done.collect(), reply.to_vec())
        });
        let Some(again) = addressed.again else { return true };
        let (_, next) = client.order.sequences();
        client.first_try = Some(Box::new(FirstTry { sequence: next, done }));
        client.held_request = Some(again);
        client.waits_for_quota = true;
        self.certainty.wait(id);
        self.answer_rewritten(env, id, sequence, Vec::new());
        false
    }
}
