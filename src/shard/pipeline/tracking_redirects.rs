//! Invalidation messages that go to another client than the one that reads the keys (`CLIENT TRACKING ON REDIRECT`).
//! The target may be on another core, which its number tells. That core opens a link of the target to each store, and
//! says how stores number these; the tracking client's stores are told to send the messages there.
//!
//! ```text
//!   tracking client ── Ask ──> core of the target ── opens links ──> stores
//!        │            <── numbers of the links ──┘                     │ messages
//!        └── CLIENT TRACKING ON REDIRECT number ──> stores             └──> target, in its dialect
//! ```
//!
//! In front of a cluster, nodes that get keys later are asked for one by one (`AskNode`), when the tracking
//! client first needs a link to one. A question about a node that the map of the target's core lacks waits
//! for the next map. A target keeps its link to a node that holds no keys any more until the node is gone:
//! maps may reach the cores one by one or not at all, and the node may get keys again.

use super::Shard;
use super::tracking_in_clusters::ANY_KEY;
use crate::protocol::{Protocol, encode};
use crate::routing::cluster::NodeKey;
use crate::shard::clients::{Inbox, NO_TARGET, TARGET_GONE};
use crate::shard::counters::Counter;
use crate::shard::private::Purpose;
use crate::shard::refusal::NotSent;
use crate::shard::replies::write_refusal;
use crate::shard::request::{PrivateId, ReplyTo};
use crate::shard::tracking_redirect::{NodeQuestion, Peer, RedirectMessage, Target};
use crate::values::time::Now;
use crate::values::{BackendId, ClientId, Database, ShardId, TenantId};

/// The reason for giving up a link (unshared connection) to a node of a cluster that does not answer `CLIENT
/// ID` with a number.
const UNNUMBERED: &str = "no-connection-number";
/// The text of the error reply to `CLIENT TRACKING` with `REDIRECT` if the stores do not reply to `CLIENT
/// ID` with the number of a connection.
const NO_NUMBER: &str = "ERR CLIENT TRACKING with REDIRECT needs stores that answer CLIENT ID";

impl Shard {
    /// Asks the core of the client with this number (`CLIENT ID`) whether that client can take the
    /// invalidation messages of a client of this core for which keys are tracked. `from` is the reply address
    /// of the tracking client's `CLIENT TRACKING`.
    pub(super) fn ask_for_target(&mut self, from: ReplyTo, number: u64) {
        let tenant = self.name_of_tenant(from.client_id());
        let home = self.core_of_number(number);
        self.clients.send_redirect(home, RedirectMessage::Ask { from, number, tenant });
    }

    /// Asks the core of the client with this number (`CLIENT ID`) whether that client exists, and belongs to the tenant
    /// of the client whose `CLIENT TRACKING OFF REDIRECT` names it. `from` is the reply address of that command.
    pub(super) fn search_for(&mut self, from: ReplyTo, number: u64) {
        let tenant = self.name_of_tenant(from.client_id());
        let home = self.core_of_number(number);
        self.clients.send_redirect(home, RedirectMessage::Search { from, number, tenant });
    }

    fn name_of_tenant(&mut self, id: ClientId) -> Option<Box<str>> {
        self.tenant_of(id).map(|tenant| tenant.name.clone().into())
    }

    /// Returns the core that has, if any has, the client with this number (`CLIENT ID`): numbers of clients are dealt
    /// out to the cores in turn.
    fn core_of_number(&self, number: u64) -> ShardId {
        let shards = u64::from(self.env.settings.topology.shards());
        ShardId((number.saturating_sub(1) % shards) as u16)
    }

    /// Sends waiting messages to other cores about clients that take others' invalidation messages (`CLIENT
    /// TRACKING` with `REDIRECT`), and handles those for this core.
    #[cold]
    #[inline(never)]
    pub(super) fn exchange_redirects(&mut self, now: Now) {
        while let Some((shard, message)) = self.clients.poll_redirect() {
            if shard == self.env.settings.id {
                self.handle_redirect(message, now);
            } else {
                self.peers.push_redirect(shard, message);
            }
        }
    }

    /// Handles a message between cores about a client that takes the invalidation messages of another.
    pub(super) fn handle_redirect(&mut self, message: RedirectMessage, now: Now) {
        match message {
            RedirectMessage::Ask { from, number, tenant } => {
                self.offer_target(from, number, tenant.as_deref(), now);
            }
            RedirectMessage::Answer { to, found: Ok(target) } => self.aim_at(to, &target, now),
            RedirectMessage::Answer { to, found: Err(error) } => {
                let id = to.client_id();
                let tracking = self.tracking_of(id);
                if let Some(replied) =
                    tracking.and_then(|tracking| tracking.refuse(to.sequence, error.into()))
                {
                    self.complete_tracking(id, replied, now);
                }
            }
            RedirectMessage::Search { from, number, tenant } => {
                let found = self.clients.find_target(&self.env.quotas, number, tenant.as_deref());
                let answer = RedirectMessage::Found { to: from, is_found: found.is_some() };
                self.clients.send_redirect(from.shard, answer);
            }
            RedirectMessage::Found { to, is_found } => self.take_search(to, is_found, now),
            RedirectMessage::Leave { target, tracker } => {
                let Some(inbox) = self.inbox_of(target) else { return };
                inbox.remove_tracker(tracker);
                let is_unused = inbox.is_unused();
                self.refuse_questions(target, TARGET_GONE, |question| question.tracker == tracker);
                if is_unused {
                    self.end_inbox(target);
                }
            }
            RedirectMessage::AskNode(question) => {
                let target = question.target.client;
                let inbox = self.inbox_of(target).filter(|inbox| inbox.has_tracker(question.tracker));
                let Some(inbox) = inbox else { return self.answer_question(question, Err(TARGET_GONE)) };
                inbox.add_question(question);
                self.answer_questions(target, now);
            }
            RedirectMessage::AnswerNode(question, number) => self.take_node_number(question, number, now),
            RedirectMessage::AnyKey { target, tracker } => {
                if self.inbox_of(target).is_some_and(|inbox| inbox.has_tracker(tracker)) {
                    self.deliver_to_target(target, ANY_KEY, now);
                }
            }
            RedirectMessage::Gone { tracker, target } => {
                let tracking = self.tracking_of(tracker);
                if let Some(number) = tracking.and_then(|tracking| tracking.lose_target(target)) {
                    self.tell_broken(tracker, number, now);
                }
            }
        }
    }

    /// Opens the links (unshared connections to stores) on which the client of this core with this `number` (`CLIENT
    /// ID`) takes invalidation messages of other clients. The core that asked (`from`) is answered when all links are
    /// open, or with an error if there is no such client or no further link may be opened. `tenant` is the tenant that
    /// the client must belong to.
    fn offer_target(&mut self, from: ReplyTo, number: u64, tenant: Option<&str>, now: Now) {
        let Some(target) = self.clients.find_target(&self.env.quotas, number, tenant) else {
            let mut error = Vec::new();
            encode::error(&mut error, NO_TARGET);
            return self.answer_redirect(from, Err(error));
        };
        let inbox = self.clients.client(target).ties_mut().inbox.get_or_insert_default();
        let known: Vec<BackendId> = inbox.links().iter().map(|(store, _)| *store).collect();
        for store in self.env.stores().into_iter().filter(|store| !known.contains(store)) {
            if self.open_inbox(target, store, now).is_none() {
                let error = self.error_of(NotSent::Links, store);
                self.answer_redirect(from, Err(error));
                return self.end_unused_inbox(target);
            }
        }
        self.clients.client(target).ties_mut().inbox.get_or_insert_default().add_waiting(from);
        self.answer_if_open(target);
    }

    /// Opens the link (unshared connection to a store) on which a client takes the invalidation messages of
    /// other clients from one store. `None` if no further link may be opened.
    fn open_inbox(&mut self, target: ClientId, store: BackendId, now: Now) -> Option<PrivateId> {
        let client = self.clients.find(target)?;
        let holder = (target, client.identity().tenant_id());
        let wanted = ((store, Database::FIRST), Protocol::Resp3);
        let link = self.private.lend(&mut self.env, holder, wanted, Purpose::Other, now)?;
        self.private.begin_inbox(link);
        self.clients.client(target).ties_mut().inbox.get_or_insert_default().add(store, link);
        Some(link)
    }

    /// Returns the encoded error for a request that could not be sent to a store, for the reason `why`, and
    /// counts the refusal.
    pub(super) fn error_of(&mut self, why: NotSent, store: BackendId) -> Vec<u8> {
        let mut error = Vec::new();
        write_refusal(&mut self.env, store, why, &mut error);
        error
    }

    /// Answers requests of other clients for the numbers (`CLIENT ID`) of the links (unshared connections) of client
    /// `target` to nodes of a cluster, for each link that is open. Opens links that are missing; requests about links
    /// that are not open yet, or about nodes that this core does not know yet, go on waiting.
    pub(super) fn answer_questions(&mut self, target: ClientId, now: Now) {
        let questions = self.inbox_of(target).map(Inbox::take_questions).unwrap_or_default();
        for question in questions {
            match self.number_at_node(target, question.node, now) {
                Some(number) => self.answer_question(question, number),
                None => self.inbox_of(target).into_iter().for_each(|inbox| inbox.add_question(question)),
            }
        }
    }

    /// Returns the number (`CLIENT ID`) that a node has given the link (unshared connection to a store) of a
    /// client that takes others' invalidation messages, or the reason why there is none. Opens the link if
    /// the client has none to the node. `None` while the link is being opened, or until this core knows the
    /// node.
    fn number_at_node(
        &mut self,
        target: ClientId,
        node: NodeKey,
        now: Now,
    ) -> Option<Result<u64, &'static str>> {
        self.env.slots.as_ref()?.node_of(node)?;
        let known = self.inbox_of(target)?.link_to(node.backend);
        let Some(link) = known.or_else(|| self.open_inbox(target, node.backend, now)) else {
            return Some(Err("links"));
        };
        self.private.is_open(link).then(|| self.private.number_of(link).ok_or(UNNUMBERED))
    }

    /// Refuses the unanswered requests for the numbers of a client's links (unshared connections to stores)
    /// that `concerns` selects. `reason` is the word that the answers state.
    fn refuse_questions(
        &mut self,
        target: ClientId,
        reason: &'static str,
        concerns: impl Fn(&NodeQuestion) -> bool,
    ) {
        let questions = self.inbox_of(target).map(Inbox::take_questions).unwrap_or_default();
        for question in questions {
            if concerns(&question) {
                self.answer_question(question, Err(reason));
            } else if let Some(inbox) = self.inbox_of(target) {
                inbox.add_question(question);
            }
        }
    }

    fn answer_question(&mut self, question: NodeQuestion, number: Result<u64, &'static str>) {
        let answer = RedirectMessage::AnswerNode(question, number);
        self.clients.send_redirect(question.tracker.shard, answer);
    }

    /// Closes the links (unshared connections) to nodes for which `has_left` is true, of all clients that
    /// take others' invalidation messages, because the nodes are gone from the cluster.
    pub(super) fn leave_gone_nodes(&mut self, has_left: impl Fn(BackendId) -> bool) {
        for target in self.clients.target_ids() {
            let Some(inbox) = self.inbox_of(target) else { continue };
            let gone = inbox.links().iter().filter(|(store, _)| has_left(*store));
            let gone: Vec<PrivateId> = gone.map(|(_, link)| *link).collect();
            gone.iter().for_each(|link| inbox.remove(*link));
            gone.into_iter().for_each(|link| self.private.close(&mut self.env, link));
        }
    }

    /// Returns the record of a client that takes the invalidation messages of other clients (`CLIENT
    /// TRACKING` with `REDIRECT`); `None` for any other client.
    fn inbox_of(&mut self, id: ClientId) -> Option<&mut Inbox> {
        self.clients.find(id)?.ties()?.inbox.as_deref_mut()
    }

    /// Answers the other clients' `CLIENT TRACKING` commands that wait until the links (unshared
    /// connections to stores) of a client that takes their messages are open, once all are.
    pub(super) fn answer_if_open(&mut self, target: ClientId) {
        let Some(inbox) =
            self.clients.find(target).and_then(|client| client.ties()).and_then(|ties| ties.inbox.as_mut())
        else {
            return;
        };
        if !inbox.links().iter().all(|(_, link)| self.private.is_open(*link)) {
            return;
        }
        let numbers =
            inbox.links().iter().map(|(store, link)| Some((*store, self.private.number_of(*link)?)));
        let numbers: Option<Box<[(BackendId, u64)]>> = numbers.collect();
        let waiting = inbox.take_waiting();
        if numbers.is_some() {
            waiting.iter().for_each(|from| inbox.add_tracker(Peer::of(*from)));
        }
        let peer = Peer { shard: self.env.settings.id, client: target };
        for from in waiting {
            let found = numbers.clone().map(|numbers| Target { peer, numbers });
            self.answer_redirect(
                from,
                found.ok_or_else(|| {
                    let mut error = Vec::new();
                    encode::error(&mut error, NO_NUMBER);
                    error
                }),
            );
        }
        self.end_unused_inbox(target);
    }

    fn answer_redirect(&mut self, to: ReplyTo, found: Result<Target, Vec<u8>>) {
        let found = found.map_err(Vec::into_boxed_slice);
        self.clients.send_redirect(to.shard, RedirectMessage::Answer { to, found });
    }

    /// Tells the stores of a tracking client to send the invalidation messages to the client that takes them
    /// (`target`). `to` is the reply address of the tracking client's command, which is refused if the target has no
    /// link to one of a cluster's nodes yet. If the command is gone, tells the target's core that it is not needed.
    fn aim_at(&mut self, to: ReplyTo, target: &Target, now: Now) {
        let id = to.client_id();
        let own = self.env.settings.id;
        let aimed = self.clients.find(id).and_then(|client| client.ties()?.tracking.as_mut());
        let aimed = aimed.and_then(|tracking| tracking.aim(to.sequence, target));
        let Some((links, options)) = aimed else {
            return self.clients.leave_targets(own, id, std::iter::once(target.peer));
        };
        let unknown = links.iter().map(|(store, _)| *store).find(|store| target.number_at(*store).is_none());
        if let Some(store) = unknown.filter(|_| self.env.slots.is_some()) {
            // For a moment, the cores of both clients have different maps of the cluster.
            let error = self.error_of(NotSent::Unconfirmed, store);
            let refused = self.tracking_of(id).and_then(|tracking| tracking.refuse(to.sequence, error));
            return refused.into_iter().for_each(|refused| self.complete_tracking(id, refused, now));
        }
        for (store, link) in links {
            let mut frame = self.env.pool.take();
            // A number that no connection has makes the store refuse.
            options.encode(&mut frame, Some(target.number_at(*store).unwrap_or(0)));
            self.private.send_tracking(&mut self.env, *link, &frame, now);
            self.env.pool.give(frame);
        }
    }

    /// Delivers a store's invalidation message to a client that takes those of other clients. False if the
    /// link (unshared connection to a store) is not one for such messages.
    pub(super) fn deliver_redirected(
        &mut self,
        (id, link): (ClientId, PrivateId),
        message: &[u8],
        now: Now,
    ) -> bool {
        if !self.inbox_of(id).is_some_and(|inbox| inbox.has(link)) {
            return false;
        }
        self.deliver_to_target(id, message, now);
        true
    }

    /// Delivers a message that keys have changed to a client that takes such messages of other clients.
    fn deliver_to_target(&mut self, id: ClientId, message: &[u8], now: Now) {
        if let Some(bytes) = self.clients.deliver_invalidation(&mut self.env, id, message) {
            self.env.counters.add(Counter::InvalidationsPassed, 1);
            self.charge_for_bytes(id, bytes, now);
        }
    }

    /// Sends a client the message that the connection with this number, which took its invalidation messages,
    /// has been closed. A client with RESP2 is sent nothing.
    pub(super) fn tell_broken(&mut self, id: ClientId, number: u64, now: Now) {
        let Some(client) = self.clients.find(id) else { return };
        if client.protocol() == Protocol::Resp3 {
            let mut message = Vec::new();
            encode::push(&mut message, Protocol::Resp3, 2);
            encode::bulk(&mut message, b"tracking-redir-broken");
            encode::integer(&mut message, number as i64);
            self.clients.push_message(&mut self.env, id, &message);
            self.charge_for_bytes(id, message.len(), now);
        }
    }

    /// Handles the loss of a `link` (unshared connection to a store) on which a client takes invalidation
    /// messages of other clients. Closes the client, which would miss messages, unless the link was not open
    /// yet (`was_open`) or its node holds no keys. Commands that wait for the link are refused with `error`.
    /// False for a link of any other kind. `store` is where the link led to, and `reason` why it was lost.
    pub(super) fn lose_inbox(
        &mut self,
        (id, link): (ClientId, PrivateId),
        (store, reason, was_open): (BackendId, &'static str, bool),
        error: &[u8],
    ) -> bool {
        let misses_messages = was_open && self.env.stores().contains(&store);
        let Some(inbox) = self.inbox_of(id).filter(|inbox| inbox.has(link)) else { return false };
        inbox.remove(link);
        let (waiting, is_in_use) = (inbox.take_waiting(), inbox.is_in_use());
        for from in waiting {
            self.answer_redirect(from, Err(error.to_vec()));
        }
        if !is_in_use {
            self.end_inbox(id);
        } else if misses_messages {
            self.clients.close(&mut self.env, id);
        } else {
            self.refuse_questions(id, reason, |question| question.node.backend == store);
        }
        true
    }

    /// Closes the links (unshared connections to stores) on which a client takes invalidation messages of
    /// other clients, if no client sends it any now.
    fn end_unused_inbox(&mut self, id: ClientId) {
        let ties = self.clients.find(id).and_then(|client| client.ties());
        if ties.and_then(|ties| ties.inbox.as_ref()).is_some_and(|inbox| inbox.is_unused()) {
            self.end_inbox(id);
        }
    }

    /// Closes the links (unshared connections to stores) on which a client takes invalidation messages of
    /// other clients, and informs the cores of those other clients.
    fn end_inbox(&mut self, id: ClientId) {
        let Some(client) = self.clients.find(id) else { return };
        let Some(mut inbox) = client.ties().and_then(|ties| ties.inbox.take()) else { return };
        client.release_ties();
        self.clients.dissolve(self.env.settings.id, id, &mut inbox);
        for (_, link) in inbox.links() {
            self.private.close(&mut self.env, *link);
        }
    }

    /// Ends the redirection of invalidation messages from and to a client whose tenant has just changed from
    /// `before`: such messages stay within a tenant.
    pub(super) fn keep_redirects_within(&mut self, before: TenantId, id: ClientId, now: Now) {
        let Some(client) = self.clients.find(id).filter(|client| client.is_tied()) else { return };
        if client.identity().tenant_id() == before {
            return;
        }
        self.end_inbox(id);
        if self.tracking_of(id).is_some_and(|tracking| tracking.targets().next().is_some()) {
            self.end_tracking(id, now);
        }
    }

    /// Changes the RESP version of the links (unshared connections to stores) over which keys are tracked for
    /// a client to the client's own version, if that is another one than `before`. A watch of keys (`WATCH`)
    /// is broken then, because its link speaks the former version.
    pub(super) fn follow_dialect(&mut self, (id, before): (ClientId, Protocol), now: Now) {
        let Some(protocol) = self.clients.find(id).map(|client| client.protocol()) else { return };
        if protocol == before {
            return;
        }
        self.break_watch(id, now);
        let Some(client) = self.clients.find(id) else { return };
        let Some(tracking) = client.ties().and_then(|ties| ties.tracking.as_ref()) else { return };
        let links: Vec<PrivateId> = tracking.links().collect();
        for link in links {
            self.private.change_dialect(&mut self.env, link, protocol, now);
        }
    }
}
