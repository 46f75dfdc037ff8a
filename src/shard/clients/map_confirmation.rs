//! Requests that wait until the cluster's map of slots is confirmed: all primaries were asked for it after
//! the request arrived.

use std::time::Duration;

use super::ClientStage;
use crate::protocol::Arguments;
use crate::routing::cluster::{NodeKey, WalkPosition};
use crate::shard::clients::held::HeldRequest;
use crate::shard::env::Env;
use crate::values::{ClientId, Timestamp};

/// The longest time (2 s) that a request waits for the cluster's map of slots to be confirmed; then it is
/// refused.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// The interval (100 ms) at which the cluster's map of slots is asked for again while a request waits for it.
const ASKED_EVERY: Duration = Duration::from_millis(100);

/// A request in flight that is sent to the primaries of a cluster rather than to a slot (such as `DBSIZE` or
/// `SCAN`). A client has at most one at a time.
#[derive(Debug)]
pub struct Addressed {
    /// The position of a `SCAN` over the nodes of the cluster; None for other commands.
    pub walk: Option<WalkPosition>,
    /// A copy of the request, to try it a second time if a node that was asked turns out to be no primary; None
    /// if it is the second try.
    pub again: Option<Box<HeldRequest>>,
    /// The indices of the request's parts (one per primary) that were sent to a node which turned out to be no
    /// primary.
    pub refused: Vec<u16>,
    /// The node to which each part was sent, for commands that need not be carried out twice on a node (those
    /// whose reply only says OK); else empty.
    pub told: Vec<NodeKey>,
}

impl Addressed {
    /// Returns the indices of the parts to leave out of the first try's reply, because other nodes will be sent
    /// the request instead. Empty if all nodes are sent the request once more, or none is.
    pub fn left_out(&self) -> &[u16] {
        let keeps_some = self.again.is_some() && self.refused.len() < self.told.len();
        if keeps_some { &self.refused } else { &[] }
    }
}

/// The result of the first try of a request to a cluster's primaries, which is tried a second time because a
/// node that was asked is no primary.
#[derive(Debug, Default)]
pub struct FirstTry {
    /// The sequence number of the second try, by which its reply is recognised.
    sequence: u32,
    /// The nodes that carried the request out in the first try, and their joined reply. They are not asked
    /// again. None if the second try goes to all nodes, or once it has been sent.
    pub done: Option<(Vec<NodeKey>, Vec<u8>)>,
}

impl FirstTry {
    /// True if the second try has this sequence number. A later request has another, if the second try was refused
    /// before it was sent.
    pub fn is_followed_by(&self, sequence: u32) -> bool {
        self.sequence == sequence
    }
}

/// The clients whose request is held until the cluster's map of slots is confirmed (all primaries were asked
/// for it after the request arrived), or for `PATIENCE` (2 s) at most, and the time at which the primaries
/// were last asked.
#[derive(Debug, Default)]
pub struct MapConfirmation {
    /// The waiting clients, each with the time since which it waits, which is set at the end of the turn
    /// (pass of the shard's loop) in which the wait began.
    waiting: Vec<(ClientId, Option<Timestamp>)>,
    asked: Option<Timestamp>,
}

impl MapConfirmation {
    fn wait(&mut self, id: ClientId) {
        self.waiting.push((id, None));
        self.asked = None;
    }

    /// Removes and returns the clients that no longer wait: the map of slots was confirmed after they began
    /// to wait, or they have waited for 2 s.
    pub fn take_ready(&mut self, env: &Env, now: Timestamp) -> Vec<ClientId> {
        let is_ready = |(_, since): &mut (ClientId, Option<Timestamp>)| {
            let since = *since.get_or_insert(now);
            env.is_sure(since) || now.since(since) >= PATIENCE
        };
        self.waiting.extract_if(.., is_ready).map(|(id, _)| id).collect()
    }

    /// True if the primaries should be asked for the map of slots now, as a request waits for it. The caller
    /// has to ask, since this counts as asked for the next 100 ms.
    pub fn take_question(&mut self, now: Timestamp) -> bool {
        let is_due = self.asked.is_none_or(|asked| now.since(asked) >= ASKED_EVERY);
        let asks = is_due && !self.waiting.is_empty();
        if asks {
            self.asked = Some(now);
        }
        asks
    }

    /// Returns the time at which [`Self::take_ready`] or [`Self::take_question`] should be called next. None
    /// if no request waits.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let first = self.waiting.iter().filter_map(|(_, since)| *since).min();
        let asks_again =
            self.asked.filter(|_| !self.waiting.is_empty()).map(|asked| asked.after(ASKED_EVERY));
        Timestamp::earliest([first.map(|since| since.after(PATIENCE)), asks_again])
    }
}

impl ClientStage {
    /// Holds a client's request, and later ones of the client after it, until the cluster's map of slots is
    /// confirmed. After `PATIENCE` (2 s) the request is refused.
    pub fn hold_for_map(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        self.hold_for_grant(id, arguments);
        self.map_confirmation.wait(id);
    }

    /// Returns the list of clients whose request waits for the cluster's map of slots.
    pub fn map_confirmation(&mut self) -> &mut MapConfirmation {
        &mut self.map_confirmation
    }

    /// Returns the time at which to check next which clients no longer wait for the cluster's map of slots;
    /// None if none waits.
    pub fn map_confirmation_deadline(&self) -> Option<Timestamp> {
        self.map_confirmation.poll_deadline()
    }

    /// Records that a client's request is sent to primaries rather than to a slot, and keeps a copy for a
    /// second try, unless this is the second try. `walk` is the position if the request is a step of a walk
    /// (`SCAN`) over the nodes; None for any other request.
    pub fn note_addressed(&mut self, id: ClientId, walk: Option<WalkPosition>, arguments: &Arguments<'_>) {
        let client = self.clients.at(id);
        let (_, sequence) = client.order.sequences();
        client.first_try.take_if(|first_try| !first_try.is_followed_by(sequence));
        let again = client.first_try.is_none().then(|| Box::new(client.held(arguments)));
        let (refused, told) = (Vec::new(), Vec::new());
        client.addressed = Some(Box::new(Addressed { walk, again, refused, told }));
    }

    /// Prepares a request that no node needs to carry out twice: removes from `asked` the nodes that carried it
    /// out in the first try, and records the others as being asked. Returns the joined reply of the first try;
    /// None if there was none.
    pub fn note_told(&mut self, id: ClientId, asked: &mut Vec<NodeKey>) -> Option<Vec<u8>> {
        let client = self.clients.at(id);
        let (_, sequence) = client.order.sequences();
        let first_try = client.first_try.as_mut().filter(|first_try| first_try.is_followed_by(sequence));
        let (done, said) = first_try.and_then(|first_try| first_try.done.take()).unzip();
        asked.retain(|node| done.as_ref().is_none_or(|done: &Vec<NodeKey>| !done.contains(node)));
        if let Some(addressed) = &mut client.addressed {
            addressed.told.clone_from(asked);
        }
        said
    }

    /// Decides whether `reply` ends the request with number `sequence`, which went to primaries. True if so: the caller
    /// answers the client. Returns false if the request is tried a second time instead, because a node that was asked
    /// is no primary; the client then gets the reply to the second try. `addressed` says which nodes it was sent to.
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
        client.order.drop_again(sequence);
        client.first_try = Some(Box::new(FirstTry { sequence: next, done }));
        client.held_request = Some(again);
        client.waits_for_quota = true;
        self.map_confirmation.wait(id);
        self.answer_rewritten(env, id, sequence, Vec::new());
        false
    }
}
