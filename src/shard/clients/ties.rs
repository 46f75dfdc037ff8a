//! Ties of a client to stores: the private links that it has, and what they are used for: watched keys,
//! subscriptions, keys that stores track for it, and messages of other clients.

use super::inbox::Inbox;
use super::{ClientStage, KeyTracking, Subscriptions};
use crate::shard::env::Env;
use crate::shard::request::PrivateId;
use crate::shard::subscription_board::Opening;
use crate::values::{Action, BackendId, ClientId, Owner, Timestamp};

/// The connections of a client's own to stores (links), and the state for which it has them. A client has at most one
/// link for requests and, per store, one for subscriptions, one over which keys are tracked, and one for the
/// invalidation messages of other clients.
#[derive(Debug, Default)]
pub struct Ties {
    /// The link (unshared connection to a store) for the client's blocking command or, while the client watches keys,
    /// for its requests to their store; None if it has none.
    pub link: Option<PrivateId>,
    /// The client's watch of keys (`WATCH`); None if it watches none.
    pub watch: Option<Watch>,
    /// The channels that the client is subscribed to; None if there are none.
    pub subscriptions: Option<Box<Subscriptions>>,
    /// The entry, on the board of unacknowledged subscriptions, for requests that the client has sent behind an
    /// unacknowledged command about subscriptions and that are not decoded yet. None if there are no such requests.
    pub unread: Option<Opening>,
    /// The state of `CLIENT TRACKING`, for which stores track keys for the client; None if they track none.
    pub tracking: Option<Box<KeyTracking>>,
    /// The client's blocking command, once it was ended at its store without a reply, so that the client can move to
    /// another process or be closed; None before.
    pub withdrawn: Option<Box<Withdrawn>>,
    /// The links (unshared connections to stores) on which the client takes the invalidation messages of
    /// others; None if it takes none.
    pub inbox: Option<Box<Inbox>>,
    /// The time since which more than the permitted bytes of messages (setting `subscriber_slow_bytes`) have
    /// waited for the client; None while fewer do.
    pub slow_since: Option<Timestamp>,
}

impl Ties {
    /// Ends the client's watch of keys, if it has one, because the link (unshared connection to a store) over
    /// which the keys are watched is given up. `is_over` says that the watch has ended in any case (after
    /// `EXEC`, for instance); otherwise it is broken, so that the client's next `EXEC` fails.
    pub fn end_or_break_watch(&mut self, is_over: bool) {
        match &mut self.watch {
            Some(_) if is_over => self.watch = None,
            Some(watch) => watch.is_broken = true,
            None => {}
        }
    }
}

/// A blocking command that was ended at its store without effect and without a reply to its client: it waited in vain,
/// or its slot has moved to another node. The client moves to another process, which sends the command again, or is
/// closed if it is leaving.
#[derive(Debug)]
pub struct Withdrawn {
    /// The bytes of the request, with its original timeout.
    pub frame: Box<[u8]>,
    /// The time at which the blocking command was sent to its store for the first time, from which its timeout
    /// counts.
    pub began: Timestamp,
    /// The time after which the reply to the blocking command is useless; `Timestamp::MAX` without a deadline.
    pub deadline: Timestamp,
}

/// A client's watch of keys, from `WATCH` until it ends (by `EXEC`, `DISCARD`, `UNWATCH` or `RESET`, for instance). An
/// `EXEC` fails if one of the keys has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The store that has the watched keys.
    pub backend: BackendId,
    /// The hash slot of the first watched key; in a cluster, all watched keys are in it.
    pub slot: u16,
    /// The time since which keys are watched.
    pub since: Timestamp,
    /// The number of keys that were named; one that was named twice counts twice.
    pub keys: usize,
    /// True once the watch's link (unshared connection to a store) was lost or given up (the watch has lasted too long,
    /// or the keys have moved to another node): the next `EXEC` fails as if a key had changed.
    pub is_broken: bool,
}

impl Watch {
    /// True if keys in a slot of a backend can be used together with those that are watched: they share a store
    /// and, if the stores are a cluster (`is_cluster`), the slot.
    pub fn covers(&self, (slot, backend): (u16, BackendId), is_cluster: bool) -> bool {
        backend == self.backend && (!is_cluster || slot == self.slot)
    }
}

impl ClientStage {
    /// Returns the clients that have been watching keys since the time `since` or earlier, without those whose watch is
    /// broken.
    pub fn watching_since(&self, since: Timestamp) -> Vec<ClientId> {
        let has_watched = |id: &ClientId| {
            let client = self.clients.peek(*id);
            client.is_some_and(|client| client.watch().is_some_and(|watch| watch.since <= since))
        };
        self.clients.ids().filter(has_watched).collect()
    }

    /// Takes the links (connections of their own to stores) of clients that have disconnected since the last
    /// call.
    pub fn take_left_links(&mut self) -> Vec<PrivateId> {
        std::mem::take(&mut self.left_links)
    }

    /// Closes a client at once, with requests unanswered: their replies are dropped when they come, and charged
    /// all the same.
    pub fn close(&mut self, env: &mut Env, id: ClientId) {
        self.forget(env, id);
        env.actions.push_back(Action::Close(Owner::Client(id)));
    }
}
