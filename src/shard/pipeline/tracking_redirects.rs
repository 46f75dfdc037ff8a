//! Invalidation messages that go to another client than the one that reads the keys (`CLIENT TRACKING ON REDIRECT`).
//! The target may be on another core, which its number tells. That core opens a link of the target to each store, and
//! says how stores number these; the tracking client's stores are told to send the messages there.
//!
//! ```text
//!   tracking client ── Ask ──> core of the target ── opens links ──> stores
//!        │            <── numbers of the links ──┘                     │ messages
//!        └── CLIENT TRACKING ON REDIRECT number ──> stores             └──> target, in its dialect
//! ```

use super::Shard;
use crate::protocol::{Protocol, encode};
use crate::shard::clients::NO_TARGET;
use crate::shard::counters::Counter;
use crate::shard::refusal::NotSent;
use crate::shard::request::{PrivateId, ReplyTo};
use crate::shard::tracking_redirect::{Peer, RedirectMessage, Target};
use crate::values::time::Now;
use crate::values::{BackendId, ClientId, Database, ShardId, TenantId};

/// The error reply if the stores do not reply to `CLIENT ID` with the number of a connection.
const NO_NUMBER: &str = "ERR CLIENT TRACKING with REDIRECT needs stores that answer CLIENT ID";

impl Shard {
    /// Asks the core of the client with this number (`CLIENT ID`) whether that client can take the
    /// invalidation messages of a tracking client of this core.
    pub(super) fn ask_for_target(&mut self, from: ReplyTo, number: u64) {
        let tenant = self.tenant_of(from.client_id()).map(|tenant| tenant.name.clone().into());
        // Numbers of clients are dealt out to the cores in turn.
        let shards = u64::from(self.env.settings.topology.shards());
        let home = ShardId((number.saturating_sub(1) % shards) as u16);
        self.clients.send_redirect(home, RedirectMessage::Ask { from, number, tenant });
    }

    /// Sends waiting messages between cores about clients that take others' invalidation messages, and
    /// handles those for this core.
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
            RedirectMessage::Leave { target, tracker } => {
                let ties = self.clients.find(target).and_then(|client| client.ties());
                let Some(inbox) = ties.and_then(|ties| ties.inbox.as_mut()) else { return };
                inbox.remove_tracker(tracker);
                if inbox.is_unused() {
                    self.end_inbox(target);
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

    /// Opens the links on which a client of this core (`number`) takes invalidation messages of other
    /// clients. The core that asked (`from`) is answered when all links are open.
    fn offer_target(&mut self, from: ReplyTo, number: u64, tenant: Option<&str>, now: Now) {
        let Some(target) = self.clients.find_target(&self.env.quotas, number, tenant) else {
            let mut error = Vec::new();
            encode::error(&mut error, NO_TARGET);
            return self.answer_redirect(from, Err(error));
        };
        let client = self.clients.client(target);
        let holder = (target, client.identity().tenant_id());
        let inbox = client.ties_mut().inbox.get_or_insert_default();
        let known: Vec<BackendId> = inbox.links().iter().map(|(store, _)| *store).collect();
        for store in self.env.stores().into_iter().filter(|store| !known.contains(store)) {
            let wanted = ((store, Database::FIRST), Protocol::Resp3);
            let Some(link) = self.private.lend(&mut self.env, holder, wanted, now) else {
                let mut error = Vec::new();
                let (counter, refusal) = NotSent::Links.refusal(self.env.backend_name(store));
                refusal.encode(&mut error);
                self.env.counters.add(counter, 1);
                self.answer_redirect(from, Err(error));
                return self.end_unused_inbox(target);
            };
            self.private.begin_inbox(link);
            self.clients.client(target).ties_mut().inbox.get_or_insert_default().add(store, link);
        }
        self.clients.client(target).ties_mut().inbox.get_or_insert_default().add_waiting(from);
        self.answer_if_open(target);
    }

    /// Answers the commands that wait until the links of a client that takes others' messages are open, once
    /// all are.
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
    /// (`target`).
    fn aim_at(&mut self, to: ReplyTo, target: &Target, now: Now) {
        let id = to.client_id();
        let own = self.env.settings.id;
        let aimed = self.clients.find(id).and_then(|client| client.ties()?.tracking.as_mut());
        let aimed = aimed.and_then(|tracking| tracking.aim(to.sequence, target));
        let Some((links, options)) = aimed else {
            return self.clients.leave_targets(own, id, std::iter::once(target.peer));
        };
        for (store, link) in links {
            let mut frame = self.env.pool.take();
            // A number that no connection has makes the store refuse.
            options.encode(&mut frame, Some(target.number_at(*store).unwrap_or(0)));
            self.private.send_tracking(&mut self.env, *link, &frame, now);
            self.env.pool.give(frame);
        }
    }

    /// Delivers a store's invalidation message to a client that takes those of other clients. False if the
    /// link is not one for such messages.
    pub(super) fn deliver_redirected(
        &mut self,
        (id, link): (ClientId, PrivateId),
        message: &[u8],
        now: Now,
    ) -> bool {
        let ties = self.clients.find(id).and_then(|client| client.ties());
        if !ties.and_then(|ties| ties.inbox.as_ref()).is_some_and(|inbox| inbox.has(link)) {
            return false;
        }
        if let Some(bytes) = self.clients.deliver_invalidation(&mut self.env, id, message) {
            self.env.counters.add(Counter::InvalidationsPassed, 1);
            self.charge_for_bytes(id, bytes, now);
        }
        true
    }

    /// Sends a client the message that the connection with this number, which took its invalidation messages,
    /// has been closed. A client with RESP2 cannot be sent any.
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

    /// Handles the loss of a link on which a client takes invalidation messages of other clients: it would
    /// miss some, so it is closed. Commands that wait for the link are refused with `error`. False if the
    /// link is not such a link.
    pub(super) fn lose_inbox(&mut self, id: ClientId, link: PrivateId, error: &[u8]) -> bool {
        let ties = self.clients.find(id).and_then(|client| client.ties());
        let inbox = ties.and_then(|ties| ties.inbox.as_mut()).filter(|inbox| inbox.has(link));
        let Some(inbox) = inbox else { return false };
        let (waiting, is_in_use) = (inbox.take_waiting(), inbox.is_in_use());
        for from in waiting {
            self.answer_redirect(from, Err(error.to_vec()));
        }
        if is_in_use {
            self.clients.close(&mut self.env, id);
        } else {
            self.end_inbox(id);
        }
        true
    }

    /// Closes the links on which a client takes invalidation messages of other clients, if no client sends it
    /// any now.
    fn end_unused_inbox(&mut self, id: ClientId) {
        let ties = self.clients.find(id).and_then(|client| client.ties());
        if ties.and_then(|ties| ties.inbox.as_ref()).is_some_and(|inbox| inbox.is_unused()) {
            self.end_inbox(id);
        }
    }

    /// Closes the links on which a client takes invalidation messages of other clients, and sends those
    /// clients a message about it.
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

    /// Changes the RESP version of the links over which keys are tracked for a client to the client's own
    /// version.
    pub(super) fn follow_dialect(&mut self, id: ClientId, now: Now) {
        let Some(client) = self.clients.find(id) else { return };
        let protocol = client.protocol();
        let Some(tracking) = client.ties().and_then(|ties| ties.tracking.as_ref()) else { return };
        let links: Vec<PrivateId> = tracking.links().collect();
        for link in links {
            self.private.change_dialect(&mut self.env, link, protocol, now);
        }
    }
}
