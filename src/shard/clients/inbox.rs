//! Inboxes: the links on which a client takes the invalidation messages of other clients, which have named it
//! with `CLIENT TRACKING ON REDIRECT`. A client has one link per store for the messages of all those clients
//! together, so that the messages come in the store's order.

use super::{Client, ClientStage};
use crate::config::Quotas;
use crate::protocol::{Protocol, encode};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::request::{PrivateId, ReplyTo};
use crate::shard::tracking_redirect::{NodeQuestion, Peer, RedirectMessage};
use crate::values::{BackendId, ClientId, ShardId};

/// The channel on which a client that speaks RESP2 gets invalidation messages.
pub const INVALIDATIONS: &[u8] = b"__redis__:invalidate";
/// The beginning of a store's message that keys have changed. An array of the keys follows, or a null for all
/// keys.
const INVALIDATE: &[u8] = b">2\r\n$10\r\ninvalidate\r\n";
/// The error for a `CLIENT TRACKING` command with `REDIRECT` that names a connection which does not exist, or
/// belongs to another tenant.
pub const NO_TARGET: &str = "ERR The client ID you want redirect to does not exist";

/// The reason why the core of a tracking client (`CLIENT TRACKING ... REDIRECT`) is not told the number
/// (`CLIENT ID`) of its target's unshared connection to a node of a cluster: the target no longer takes the
/// client's invalidation messages.
pub const TARGET_GONE: &str = "target-gone";

/// The links (unshared connections to stores) on which a client takes the invalidation messages of other
/// clients (`CLIENT TRACKING ... REDIRECT`), and these clients.
#[derive(Debug, Default)]
pub struct Inbox {
    links: Vec<(BackendId, PrivateId)>,
    /// The clients whose invalidation messages come to this client.
    trackers: Vec<Peer>,
    /// Reply addresses of the `CLIENT TRACKING` commands of other clients that wait until this client's links (unshared
    /// connections to stores) are open.
    waiting: Vec<ReplyTo>,
    /// Requests of other clients for the number (`CLIENT ID`) of this client's link (unshared connection) to a
    /// node of a cluster, at most one per client and node.
    questions: Vec<NodeQuestion>,
}

impl Inbox {
    /// Adds a link (unshared connection to a store) over which a store will send invalidation messages.
    pub fn add(&mut self, store: BackendId, link: PrivateId) {
        self.links.push((store, link));
    }

    /// Returns the stores, each with the link (unshared connection to a store) over which it sends
    /// invalidation messages.
    pub fn links(&self) -> &[(BackendId, PrivateId)] {
        &self.links
    }

    /// Returns the link (unshared connection to a store) over which a store sends messages; `None` if there is
    /// none.
    pub fn link_to(&self, store: BackendId) -> Option<PrivateId> {
        self.links.iter().find(|(backend, _)| *backend == store).map(|(_, link)| *link)
    }

    /// Removes a link (unshared connection to a store), over which no more messages will come.
    pub fn remove(&mut self, link: PrivateId) {
        self.links.retain(|(_, own)| *own != link);
    }

    /// True if the client takes invalidation messages of other clients over this link (unshared connection to
    /// a store).
    pub fn has(&self, link: PrivateId) -> bool {
        self.links.iter().any(|(_, own)| *own == link)
    }

    /// Adds another client's request for the number (`CLIENT ID`) of this client's link (unshared connection) to a
    /// node, which is answered when that link is open. Does nothing if the request is there already.
    pub fn add_question(&mut self, question: NodeQuestion) {
        if !self.questions.contains(&question) {
            self.questions.push(question);
        }
    }

    /// Takes the requests of other clients for the numbers (`CLIENT ID`) of this client's links (unshared
    /// connections) to nodes, which are answered when those links are open.
    pub fn take_questions(&mut self) -> Vec<NodeQuestion> {
        std::mem::take(&mut self.questions)
    }

    /// Adds a `CLIENT TRACKING` command of another client that waits until this client's links (unshared connections to
    /// stores) are open.
    pub fn add_waiting(&mut self, from: ReplyTo) {
        self.waiting.push(from);
    }

    /// Takes the `CLIENT TRACKING` commands of other clients that wait until this client's links (unshared connections
    /// to stores) are open.
    pub fn take_waiting(&mut self) -> Vec<ReplyTo> {
        std::mem::take(&mut self.waiting)
    }

    /// Adds another client (`tracker`) whose invalidation messages this client takes from now on.
    pub fn add_tracker(&mut self, tracker: Peer) {
        if !self.trackers.contains(&tracker) {
            self.trackers.push(tracker);
        }
    }

    /// Removes another client (`tracker`) whose invalidation messages this client no longer takes.
    pub fn remove_tracker(&mut self, tracker: Peer) {
        self.trackers.retain(|other| *other != tracker);
    }

    /// True if this client takes the invalidation messages of that other client (`tracker`).
    pub fn has_tracker(&self, tracker: Peer) -> bool {
        self.trackers.contains(&tracker)
    }

    /// True if this client takes no other client's invalidation messages, and no `CLIENT TRACKING` command
    /// waits until it can.
    pub fn is_unused(&self) -> bool {
        self.trackers.is_empty() && self.waiting.is_empty()
    }

    /// True if this client takes the invalidation messages of at least one other client.
    pub fn is_in_use(&self) -> bool {
        !self.trackers.is_empty()
    }

    /// Returns the bytes of memory that the inbox (record of the links on which a client takes the invalidation
    /// messages of others) takes, without those of the links themselves.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.links.capacity() * size_of::<(BackendId, PrivateId)>()
            + self.trackers.capacity() * size_of::<Peer>()
            + self.waiting.capacity() * size_of::<ReplyTo>()
            + self.questions.capacity() * size_of::<NodeQuestion>()
    }
}

impl ClientStage {
    /// Returns the client with this number (`CLIENT ID`), if it is connected, belongs to the tenant named
    /// `tenant`, and can be sent messages (it speaks RESP, not HTTP); else None.
    pub fn find_target(&self, quotas: &Quotas, number: u64, tenant: Option<&str>) -> Option<ClientId> {
        let fits = |client: &Client| {
            client.number == number
                && !client.speaks_http
                && client.identity.tenant(quotas).map(|tenant| tenant.name.as_str()) == tenant
        };
        self.clients.ids().find(|id| self.clients.peek(*id).is_some_and(fits))
    }

    /// Returns the clients that take invalidation messages of others.
    pub fn target_ids(&self) -> Vec<ClientId> {
        let takes = |client: &Client| client.ties.as_ref().is_some_and(|ties| ties.inbox.is_some());
        self.clients.ids().filter(|id| self.clients.peek(*id).is_some_and(takes)).collect()
    }

    /// Queues a message to a core, which may be this one, about a client that takes the invalidation messages
    /// of another.
    pub fn send_redirect(&mut self, to: ShardId, message: RedirectMessage) {
        self.redirects.push_back((to, message));
    }

    /// Takes the next message about clients that take others' invalidation messages, and the core to send it
    /// to. None if there is none.
    pub fn poll_redirect(&mut self) -> Option<(ShardId, RedirectMessage)> {
        self.redirects.pop_front()
    }

    /// True if messages about clients that take others' invalidation messages wait to be sent.
    pub fn has_redirects(&self) -> bool {
        !self.redirects.is_empty()
    }

    /// Informs the cores of `targets`, clients that took the invalidation messages of client `id`, that `id`
    /// no longer redirects them there.
    pub fn leave_targets(&mut self, own: ShardId, id: ClientId, targets: impl Iterator<Item = Peer>) {
        let tracker = Peer { shard: own, client: id };
        for target in targets {
            self.send_redirect(target.shard, RedirectMessage::Leave { target: target.client, tracker });
        }
    }

    /// Ends the inbox of a client (its taking of other clients' invalidation messages): informs the cores of
    /// the clients whose messages came there, and answers commands and requests for numbers that wait for its
    /// links (unshared connections to stores) with errors. The caller closes the links.
    pub fn dissolve(&mut self, own: ShardId, id: ClientId, inbox: &mut Inbox) {
        let target = Peer { shard: own, client: id };
        for tracker in std::mem::take(&mut inbox.trackers) {
            self.send_redirect(tracker.shard, RedirectMessage::Gone { tracker: tracker.client, target });
        }
        for question in inbox.take_questions() {
            let answer = RedirectMessage::AnswerNode(question, Err(TARGET_GONE));
            self.send_redirect(question.tracker.shard, answer);
        }
        for to in inbox.take_waiting() {
            let mut error = Vec::new();
            encode::error(&mut error, NO_TARGET);
            self.send_redirect(to.shard, RedirectMessage::Answer { to, found: Err(error.into()) });
        }
    }

    /// Passes a store's message that keys have changed to a client, in the client's RESP version. In RESP2 it
    /// is a message of the channel `__redis__:invalidate`, and only clients that have subscribed to any channel
    /// get it. Returns the number of bytes that the client is sent; None if it is sent nothing.
    pub fn deliver_invalidation(&mut self, env: &mut Env, id: ClientId, message: &[u8]) -> Option<usize> {
        let bytes_max = env.settings.subscriber_bytes_max();
        let keys = message.strip_prefix(INVALIDATE)?;
        let client = self.clients.get(id)?;
        let protocol = client.protocol;
        let mut subscriptions = client.ties.as_mut().and_then(|ties| ties.subscriptions.as_mut());
        let mut out = Vec::with_capacity(message.len() + INVALIDATIONS.len());
        match protocol {
            Protocol::Resp3 => out.extend_from_slice(INVALIDATE),
            Protocol::Resp2 => {
                subscriptions.as_ref()?;
                encode::array(&mut out, 3);
                encode::bulk(&mut out, b"message");
                encode::bulk(&mut out, INVALIDATIONS);
            }
        }
        // The store writes the null in the dialect of the link that the keys were read over.
        if keys.starts_with(b"*") && !keys.starts_with(b"*-") {
            out.extend_from_slice(keys);
        } else {
            encode::null(&mut out, protocol);
        }
        let held = subscriptions.as_mut().and_then(|subscriptions| subscriptions.held_messages());
        if let Some(held) = held {
            held.extend_from_slice(&out);
            if held.len() > bytes_max {
                self.expel(env, id, Counter::ClientsClosedSubscriber);
            }
        } else {
            self.push_published(env, id, Message::Small(&out));
        }
        Some(out.len())
    }
}
