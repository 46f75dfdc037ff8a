//! Pipeline: the way of a request through the six stages of one core. Pure: bytes, batches and time come in
//! through `handle_*`, actions and output go out through `poll_*`, and nothing else changes its state.
//!
//! | what happens to a request | file |
//! |---|---|
//! | its bytes become a request, the rest of a large one in room made for it | `decode.rs`, `http.rs`, `large_messages.rs` |
//! | whether its client may do that | `permission.rs`, `channel_permission.rs` |
//! | its destination is found | `destination.rs` |
//! | it is admitted, and sent there | `carry_out.rs`, `split.rs` |
//! | its key is hot | `hot_keys.rs` |
//! | it is queued, or a transaction carried out | `transaction.rs` |
//! | weir answers it | `local.rs`, `acl.rs`, `clients.rs`, `qos.rs`, `explain.rs` |
//! | a replica may answer it | `stale_reads.rs` |
//! | its client has a connection to the store to itself: blocking commands, `WATCH` | `private.rs` |
//! | it waits while its client moves to another process, or weir drains | `withdrawal.rs` |
//! | the client asks for messages: subscriptions | `subscriptions.rs` |
//! | messages that clients share: between stores, home cores and clients | `shared_channels.rs` |
//! | the client is told of changed keys: `CLIENT TRACKING` | `key_tracking.rs` |
//! | the same while slots of a cluster move | `tracking_in_clusters.rs` |
//! | another client is told of them: `REDIRECT` | `tracking_redirects.rs` |
//! | it is shown to clients that watch (`MONITOR`) | `monitors.rs` |
//! | its reply comes back | `replies.rs` |
//!
//! No file here has state of its own, except `upkeep.rs`: the times at which upkeep is due.

mod acl;
mod carry_out;
mod channel_permission;
mod clients;
mod decode;
mod destination;
pub(super) mod explain;
mod hot_keys;
mod http;
mod key_tracking;
mod large_messages;
mod local;
mod monitors;
mod permission;
mod private;
mod qos;
mod replies;
mod shared_channels;
mod split;
mod stale_reads;
mod subscriptions;
mod tracking_in_clusters;
mod tracking_redirects;
mod transaction;
mod upkeep;
mod withdrawal;

use std::sync::Arc;

use super::admission::{AdmissionStage, UserFigures};
use super::clients::Question;
use super::clients::client_filter::{ClientsAsked, ClientsTold};
use super::clients::{Address, ClientStage, Readiness, Session};
use super::cluster::{Doubt, ReaderFigures};
use super::counters::{Counter, Counters, Pressures};
use super::durations::Durations;
use super::env::Env;
use super::hot_keys::{HotFigures, HotKey, HotKeyStage};
use super::links::connections_max;
use super::message::Message;
use super::monitors::MonitorStage;
use super::outcome::Outcome;
use super::overload::BulkheadFigures;
use super::peers::{Batch, PeerStage};
use super::private::{PrivateFigures, PrivateLinks, call};
use super::request::{NOBODY, ReplyTo};
use super::settings::ShardSettings;
use super::shared_channels::SharedChannels;
use super::upstream::Upstream;
use crate::config::Quotas;
use crate::protocol::Segment;
use crate::routing::cluster::{Map, Reason, ReplicaState};
use crate::values::allowance::Report;
use crate::values::time::Now;
use crate::values::{
    Action, BackendId, ClientId, ConnectionId, Grant, Loss, Owner, ShardId, StoreVersion, TenantId, Timestamp,
};
use upkeep::Upkeep;

/// The state of one core: clients, prices and accounts, hot keys, connections to stores, and batches for
/// other cores.
#[derive(Debug)]
pub struct Shard {
    /// Settings, quotas, buffers and counters of the core, which all other stages (parts of the shard) use.
    env: Env,
    /// Connections to clients, and the order of the replies to each.
    clients: ClientStage,
    /// Prices of requests, and this core's accounts of the quotas that they are charged to.
    admission: AdmissionStage,
    /// Hot keys (those with many requests) whose requests pass through this core, and the replies kept for them, also
    /// those that other cores lend.
    hot_keys: HotKeyStage,
    /// Connections to stores, and their windows (limits on requests in flight) and queues.
    upstream: Upstream,
    /// Connections to stores that are each lent to one client (blocking commands, `WATCH`, subscriptions).
    private: PrivateLinks,
    /// The reason to ask the cluster for its map of slots again (a redirect, for instance), if one was found on
    /// a connection that one client has to itself (private link); else None.
    private_doubt: Option<Doubt>,
    /// The time of the last log line about elements that a store popped for a client that had disconnected; None
    /// before the first.
    orphans_said_at: Option<Timestamp>,
    /// Clients that wait in blocking commands and are to be closed, because weir drains or they have ended their
    /// input. Their stores are still to be asked to end the commands.
    leaving: Vec<ClientId>,
    /// Channels and patterns whose home is this core (it subscribes to them once at stores, for all clients).
    shared_channels: Box<SharedChannels>,
    /// Limits on the bytes of the lines that show requests to monitors (clients that have sent `MONITOR`), and the
    /// numbers of lines that these miss.
    monitors: MonitorStage,
    /// True once the request being handled needs no charge for its bytes: it was admitted, or queued in a
    /// transaction, or refused because of a quota or an overload. Kept only for requests of more than 1 KiB.
    is_paid: bool,
    /// True while a blocking command is handled whose client another process has handed over, and which was
    /// admitted there: it is not refused for its price.
    is_admitted_elsewhere: bool,
    /// Batches of messages that are being filled for other cores.
    peers: PeerStage,
    /// Times at which timeouts are checked and unused memory is freed.
    upkeep: Upkeep,
    /// Time at which the last turn (pass of the shard's loop) ended, which the `poll_*` methods take for the
    /// present time.
    turn: Now,
}

impl Shard {
    /// Creates a shard (all state of one core) with no clients and no connections.
    pub fn new(settings: ShardSettings, quotas: Arc<Quotas>) -> Self {
        let upstream = Upstream::new(&settings);
        Self {
            private: PrivateLinks::new(&settings, connections_max(&settings)),
            private_doubt: None,
            orphans_said_at: None,
            leaving: Vec::new(),
            is_admitted_elsewhere: false,
            is_paid: false,
            clients: ClientStage::new(&settings),
            admission: AdmissionStage::new(&settings, &quotas),
            hot_keys: HotKeyStage::new(settings.hot.clone(), &quotas),
            upstream,
            shared_channels: Box::new(SharedChannels::new(settings.clients.shared_channels_max)),
            monitors: MonitorStage::default(),
            peers: PeerStage::new(settings.topology.shards()),
            upkeep: Upkeep::default(),
            turn: Now::default(),
            env: Env::new(settings, quotas),
        }
    }

    /// Returns the id of the shard, which is that of its core.
    pub fn id(&self) -> ShardId {
        self.env.settings.id
    }

    /// Returns the counters of events (requests, replies, refusals and the like) on this shard.
    pub fn counters(&self) -> &Counters {
        &self.env.counters
    }

    /// Returns the numbers of requests refused because of overload, by reason and by tier (importance).
    pub fn pressures(&self) -> &Pressures {
        &self.env.pressures
    }

    /// Returns the number of clients that are connected to this core.
    pub fn clients_open(&self) -> usize {
        self.clients.len()
    }

    /// Returns the number of bytes of memory that clients of this core hold, such as buffers and unsent
    /// replies, as of the last measurement.
    pub fn clients_bytes(&self) -> usize {
        self.clients.clients_bytes()
    }

    /// Returns the bytes of memory that clients of this core may hold even if those of other cores hold more
    /// than their share.
    pub fn clients_bytes_share(&self) -> usize {
        self.env.settings.clients_bytes_share()
    }

    /// Returns figures on the users (of tenants) for whose quotas this core keeps accounts.
    pub fn users(&self) -> UserFigures {
        self.admission.users()
    }

    /// Returns a histogram of the times from sending a request to a backend to its reply, over all requests that
    /// this core sent over connections that clients share.
    pub fn service_times(&self) -> Durations {
        self.upstream.service_times()
    }

    /// Returns the number of replies that backends owe this core, over all its shared connections.
    pub fn replies_in_flight(&self) -> usize {
        self.upstream.in_flight()
    }

    /// Returns figures on the bulkheads (windows and queues) on this core, in the order of backends: for each
    /// backend, first that for usual requests, then that for expensive ones.
    pub fn bulkheads(&self) -> impl Iterator<Item = BulkheadFigures> {
        self.upstream.bulkheads(&self.env)
    }

    /// Returns the number of this core's requests that wait for room in the windows (limits on requests in flight) of
    /// their backends, without fetches (shared reads of hot keys).
    pub fn requests_waiting(&self) -> usize {
        self.upstream.waiting()
    }

    /// Returns figures on the hot keys of this core and on the replies that it keeps for them.
    pub fn hot_figures(&self) -> HotFigures {
        self.hot_keys.figures(&self.env)
    }

    /// Returns a histogram of the ages of replies that were sent from memory: each age is the time since the
    /// store was asked.
    pub fn hot_ages(&self) -> Durations {
        self.hot_keys.ages()
    }

    /// Returns a description of each key that is hot (requested often) or whose requests cost much.
    pub fn hot_keys(&self) -> Vec<HotKey> {
        self.hot_keys.keys(&self.env.quotas)
    }

    /// Returns the number of this core's priced requests in flight whose replies no client awaits any more: the
    /// client has disconnected, or was answered before the reply came.
    pub fn requests_abandoned(&self) -> usize {
        self.clients.requests_abandoned()
    }

    /// Returns the number of split requests that wait for the replies to their parts.
    pub fn gathers_open(&self) -> usize {
        self.clients.gathers_open()
    }

    /// Returns the number of this core's open connections to backends that all clients share.
    pub fn links_open(&self) -> usize {
        self.upstream.links_open()
    }

    /// Returns the numbers of private links (connections to stores that one client has to itself) by their
    /// use.
    pub fn private_links(&self) -> PrivateFigures {
        self.private.figures()
    }

    /// Returns how much of the limits on patterns (`PSUBSCRIBE`) and on key prefixes (`CLIENT TRACKING BCAST`) at
    /// stores the clients of this core take, in this order: one for each that differs within its tenant, more for
    /// one that is slow to compare.
    pub fn filters(&self) -> [usize; 2] {
        self.clients.filters()
    }

    /// Returns the number of this core's clients that are subscribed to channels or patterns.
    pub fn subscribers(&self) -> usize {
        self.clients.subscribers()
    }

    /// Returns the number of clients whose requests wait for the end of a `CLIENT PAUSE`.
    pub fn paused_clients(&self) -> usize {
        self.clients.clients_held()
    }

    /// Returns the number of clients for which stores track keys (`CLIENT TRACKING`).
    pub fn tracking_clients(&self) -> usize {
        self.clients.tracking_clients()
    }

    /// Returns the numbers of channels and of patterns, in this order, whose home is this core (it subscribes to them
    /// once at stores, for all clients). Those whose subscription, or its end, stores have not acknowledged count too.
    pub fn shared_channels(&self) -> [usize; 2] {
        self.shared_channels.counts()
    }

    /// Returns the number of this core's clients that watch requests (`MONITOR`).
    pub fn monitors(&self) -> usize {
        self.clients.monitors()
    }

    /// Registers a client that has connected. Returns its id.
    pub fn handle_client_opened(&mut self, now: Now) -> ClientId {
        self.clients.open(&mut self.env, now)
    }

    /// Records a client's address, which `CLIENT LIST` shows.
    pub fn note_client_address(&mut self, id: ClientId, address: Address) {
        self.clients.note_address(id, address);
    }

    /// Records that a client that has just connected speaks TLS. If its certificate names a tenant (`name`), the
    /// client is logged in as that; if the tenant has as many connections as it may, the client is answered with an
    /// error and closed. Without a name, or with one that is no tenant's, it has to log in like any other.
    pub fn handle_client_secure(&mut self, id: ClientId, name: Option<&str>, now: Now) {
        if let Err(text) = self.clients.note_secure(&self.env, id, name, now) {
            self.env.counters.add(Counter::ClientsRefused, 1);
            if !self.refuse_http(id, &text, now) {
                self.answer_error(id, &text);
            }
            self.clients.stop_listening(&mut self.env, id);
        }
    }

    /// Closes a client whose certificate would no longer be accepted, after its earlier requests are
    /// answered. A blocking command in which it waits is given up at once.
    pub fn handle_client_revoked(&mut self, id: ClientId, now: Now) {
        self.revoke(id, now);
    }

    /// Accepts a client above the limit of `clients_max` clients only to answer it with an error and close
    /// it. Returns its id.
    pub fn handle_client_refused(&mut self, clients_max: usize, now: Now) -> ClientId {
        self.env.counters.add(Counter::ClientsRefused, 1);
        let id = self.handle_client_opened(now);
        self.answer_error(id, &no_room(clients_max));
        self.clients.stop_listening(&mut self.env, id);
        id
    }

    /// Takes bytes (`chunk`) from a client. Returns how many more bytes of its next request are known to be
    /// missing, 0 while the client should not be read from.
    pub fn handle_client_bytes(&mut self, id: ClientId, chunk: &[u8], now: Now) -> usize {
        self.env.counters.add(Counter::ClientBytesReceived, chunk.len() as u64);
        if self.clients.hear(id, chunk.len(), now) { self.decode(id, chunk, now) } else { 0 }
    }

    /// Records that the client will send no more requests; it may still read its replies. A blocking command
    /// in which it waits, now or later, is ended at its store, and the client is closed.
    pub fn handle_client_end(&mut self, id: ClientId, now: Now) {
        self.clients.handle_end(&mut self.env, id);
        self.end_wait_at_end_of_input(id, now);
    }

    /// Records that the client's input ends behind bytes that are not read yet, since reading from the client is
    /// paused. A blocking command in which it waits, now or later, is ended as at the end of its input; the
    /// bytes are read once reading goes on.
    pub fn handle_client_end_ahead(&mut self, id: ClientId, now: Now) {
        self.clients.handle_end_ahead(id);
        self.end_wait_at_end_of_input(id, now);
    }

    /// Removes a client whose connection is gone. Replies to its requests in flight are still charged, but
    /// not sent.
    pub fn handle_client_lost(&mut self, id: ClientId) {
        self.clients.forget(&mut self.env, id);
    }

    /// Closes the client that has been connected for longest without logging in, so that another can connect.
    /// False if all clients have logged in.
    pub fn make_room(&mut self) -> bool {
        self.clients.make_room(&mut self.env)
    }

    /// Closes the largest clients of the tenants that hold the most memory on this core, because the clients of all
    /// cores together hold `excess` bytes more than they may. Stops once so much is freed, or the clients of this core
    /// hold no more than its share.
    pub fn handle_memory_exceeded(&mut self, excess: usize) {
        self.clients.handle_memory_exceeded(&mut self.env, excess);
    }

    /// Applies a client's command about other clients (such as `CLIENT LIST`) to the clients of this shard.
    /// Returns this shard's part of the reply.
    pub fn handle_clients_asked(&mut self, asked: &ClientsAsked, now: Now) -> ClientsTold {
        if let ClientsAsked::Unblock(filter, is_error) = asked {
            let blocked = self.clients.clients_of(&self.env, filter, now);
            let count = blocked.into_iter().filter(|id| self.unblock(*id, *is_error, now)).count();
            return ClientsTold::Counted(count as u64);
        }
        self.clients.handle_clients_asked(&mut self.env, asked, now)
    }

    /// Records that the socket of a backend connection is connected. Does nothing if `generation` is that of an earlier
    /// socket of the connection.
    pub fn handle_link_connected(&mut self, connection: ConnectionId, generation: u32, now: Now) {
        if self.private.is_mine(connection) {
            return self.private.handle_connected(connection, generation, now);
        }
        self.upstream.handle_connected(&mut self.env, connection, generation, now);
    }

    /// Records that a backend connection could not be opened, or was lost (by the peer or on the way, as `loss` says):
    /// its unanswered requests are answered with an error, or sent again where that is safe. Does nothing if
    /// `generation` is that of an earlier socket of the connection.
    pub fn handle_link_lost(&mut self, connection: ConnectionId, generation: u32, loss: Loss, now: Now) {
        if self.private.is_mine(connection) {
            self.private.handle_lost(&mut self.env, (connection, generation), loss);
            return self.handle_private_events(now);
        }
        let (env, upstream, mut replies) = self.towards_clients();
        upstream.handle_lost(env, (connection, generation), loss, &mut replies, now);
    }

    /// Takes bytes (`chunk`) from a backend; drops them if `generation` is that of an earlier socket of the connection.
    /// Returns how many more bytes of the present reply are known to be missing; always 0 for a connection that one
    /// client has to itself.
    pub fn handle_link_bytes(
        &mut self,
        connection: ConnectionId,
        generation: u32,
        chunk: &[u8],
        now: Now,
    ) -> usize {
        if self.private.is_mine(connection) {
            self.private.handle_bytes(&mut self.env, (connection, generation), chunk, now);
            self.handle_private_events(now);
            return 0;
        }
        let (env, upstream, mut replies) = self.towards_clients();
        upstream.handle_bytes(env, (connection, generation), chunk, &mut replies, now);
        self.upstream.missing((connection, generation))
    }

    /// Takes a batch from another shard, and handles its contents in this order: fences (given-up connections that
    /// stores are to kill), requests, copies of hot keys' replies and numbers of requests answered from such copies,
    /// lines that show requests to monitors (`MONITOR`), notes (messages about requests to the core of their client),
    /// replies, and messages about channels with one subscription for all clients and about redirected invalidation
    /// messages.
    pub fn handle_batch(&mut self, mut batch: Box<Batch>, now: Now) {
        self.env.counters.add(Counter::BatchesReceived, 1);
        self.env.counters.add(Counter::BatchBytesReceived, batch.bytes() as u64);
        self.env.fences.handle_told(batch.take_fences());
        for (envelope, message) in batch.requests() {
            self.send_from_here(envelope, message, 1, now);
        }
        self.hear_of_copies(&batch, now);
        self.hear_of_lines(&batch, now);
        for (to, note) in batch.notes() {
            self.clients.handle_note(to, note);
        }
        for (to, outcome, message) in batch.replies() {
            self.give_back(to, outcome, message, now);
        }
        self.hear_of_shared(&mut batch);
        for message in batch.take_redirects() {
            self.handle_redirect(message, now);
        }
        batch.clear();
        self.peers.recycle(batch);
    }

    /// Handles the grants (amounts of quotas) with which the control executor (thread that handles no data of clients)
    /// replies to this core's reports. Requests that waited for a grant are tried again.
    pub fn handle_grants(&mut self, grants: &[Grant], now: Now) {
        self.admission.handle_grants(grants, now.monotonic);
        self.resume_waiting(now);
    }

    /// Puts a new map of the cluster's slots in force. Connections to nodes that have left are closed, and clients'
    /// subscriptions and tracking of keys follow the map. Kept replies (those held in memory) for keys of slots with a
    /// new owner are dropped, because the new owner may lack data that the former one had.
    pub fn handle_slots(&mut self, slots: Arc<Map>, now: Now) {
        let (env, upstream, mut replies) = self.towards_clients();
        upstream.handle_slots(env, Arc::clone(&slots), &mut replies, now);
        let mut trackers = Vec::new();
        if let Some(older) = &self.env.slots {
            self.hot_keys.handle_owners(|slot| older.owner(slot) != slots.owner(slot));
            let older = Arc::clone(older);
            let key_in = |map: &Map, backend| map.node(backend).map(|node| node.key);
            let has_left = |backend| key_in(&older, backend) != key_in(&slots, backend);
            trackers = self.leave_nodes(&older, &slots, now);
            self.leave_gone_nodes(has_left);
            self.private.leave(&mut self.env, has_left, "node-gone");
            self.handle_private_events(now);
        }
        self.env.handle_slots(slots);
        self.spread_subscriptions(now);
        for id in self.clients.target_ids() {
            self.answer_questions(id, now);
        }
        for id in trackers {
            self.follow_nodes(id, now);
        }
    }

    /// Closes the connections to a store whose name resolves to another address now; later requests connect
    /// to the new address. Requests in flight are answered `-UNAVAILABLE`, and kept replies (those held in
    /// memory) for the store's keys are dropped.
    pub fn handle_store_moved(&mut self, backend: BackendId, now: Now) {
        let (env, upstream, mut replies) = self.towards_clients();
        upstream.handle_store_moved(env, backend, &mut replies, now);
        self.hot_keys.handle_owners(|slot| self.env.backend_of(slot) == backend);
        self.private.leave(&mut self.env, |other| other == backend, "store-moved");
        self.handle_private_events(now);
    }

    /// Records up to when each replica of a cluster is known to have its primary's writes, which decides
    /// whether it may answer reads.
    pub fn handle_replicas(&mut self, states: &[ReplicaState]) {
        self.upstream.handle_replicas(states);
    }

    /// Returns, for each node of a cluster, how many reads it answered as a replica and how often it was ejected (taken
    /// out of use), by the node's index in the map's table; empty unless replicas answer reads.
    pub fn reader_figures(&self) -> Vec<ReaderFigures> {
        self.upstream.reader_figures()
    }

    /// Takes the reason why the cluster should be asked for its map of slots again; None if there is no
    /// reason.
    pub fn poll_doubt(&mut self) -> Option<Doubt> {
        let unsure = Doubt { reason: Reason::Unsure, moved: None };
        let turn = self.turn.monotonic;
        self.private_doubt
            .take()
            .or_else(|| self.upstream.take_doubt())
            .or_else(|| self.clients.map_confirmation().take_question(turn).then_some(unsure))
    }

    /// Sets the store's version, which weir shows to clients in replies to `HELLO` from now on.
    pub fn handle_store_version(&mut self, version: StoreVersion) {
        self.clients.handle_store_version(version);
    }

    /// Puts new quotas in force. Clients keep their tenant by its name; those whose tenant is gone must
    /// authenticate again. Clients that wait in a blocking command, subscribe, monitor or have keys tracked
    /// are closed if their rights have changed.
    pub fn handle_quotas(&mut self, quotas: Arc<Quotas>, now: Now) {
        self.admission.handle_quotas(&self.env.quotas, &quotas, now.monotonic);
        let waits = |link| self.private.waits(link);
        let revoked = self.clients.handle_quotas(&self.env, &mut self.admission, (&quotas, waits), now);
        self.hot_keys.handle_quotas(&quotas);
        self.rename_tenants();
        self.env.quotas = quotas;
        revoked.into_iter().for_each(|id| self.revoke(id, now));
        self.resume_waiting(now);
    }

    /// Gives shared channels (one subscription for all clients), private links (unshared connections to
    /// stores) and filters (patterns and prefixes at stores) new tenant ids: each counts towards a tenant's
    /// limit, and gets the id that its tenant has in the new quotas. If the tenant is gone, it gets an id that
    /// no tenant has.
    fn rename_tenants(&mut self) {
        let renamed = |tenant: TenantId| self.admission.renamed(tenant).unwrap_or(NOBODY);
        self.shared_channels.handle_tenants(renamed);
        self.private.handle_tenants(renamed);
        self.clients.handle_tenants_of_filters(renamed);
    }

    /// Refuses new clients from now on, because weir is about to end. The caller ends those that are
    /// connected with `handle_client_end`.
    pub fn refuse_newcomers(&mut self) {
        self.clients.refuse_newcomers();
    }

    /// Returns the ids of all clients that are connected to this core.
    pub fn client_ids(&self) -> Vec<ClientId> {
        self.clients.ids()
    }

    /// Returns whether a client can be handed to another process now (takeover), and if not, why.
    pub fn readiness(&self, id: ClientId) -> Readiness {
        self.readiness_of_waiting(id).unwrap_or_else(|| self.clients.readiness(id))
    }

    /// Removes a client that is ready to be handed to another process, and returns the state of its session
    /// for that process.
    pub fn take_session(&mut self, id: ClientId, now: Now) -> Session {
        let withdrawn = self.clients.take_withdrawn(id);
        let mut session = self.clients.take_session(&mut self.env, id);
        if let Some(withdrawn) = withdrawn {
            let call = call::with_time_left(&withdrawn.frame, now.monotonic.since(withdrawn.began));
            let deadline = (withdrawn.deadline != Timestamp::MAX).then_some(withdrawn.deadline);
            session.put_first(&call, deadline.map(|deadline| deadline.since(now.monotonic)));
        }
        session
    }

    /// True if stores still owe replies to blocking commands of clients that have left, or to requests that put
    /// elements back. A store that owes such a reply may have popped an element that no client takes any more.
    pub fn owes_orphans(&self) -> bool {
        self.private.owes_orphans()
    }

    /// Registers a client that another process handed over, with the state of its session. Returns its id.
    pub fn handle_client_moved(&mut self, session: &Session, now: Now) -> ClientId {
        self.clients.adopt(&mut self.env, &mut self.admission, session, now)
    }

    /// Takes the bytes that a client had sent to its former process, which had not handled them yet, from its
    /// `session`. A blocking command that goes on keeps its deadline, is not refused for its price, and goes on
    /// during a `CLIENT PAUSE`, which holds back only requests that have not begun. It goes on in this turn (pass of
    /// the shard's loop), however many requests the turn has started.
    pub fn handle_client_held(&mut self, id: ClientId, session: &Session, now: Now) {
        let (call, rest) = session.call_and_rest();
        if session.waits {
            self.env.counters.add(Counter::WaitsTakenOver, 1);
            self.clients.exempt_from_pauses(id);
            self.clients.reserve_for_moved();
            self.is_admitted_elsewhere = true;
            self.handle_client_bytes(id, call, now);
            self.is_admitted_elsewhere = false;
            self.limit_wait(id, session.wait_deadline(), now);
            self.clients.apply_pauses_to(&self.env.quotas, id);
        }
        if !rest.is_empty() {
            self.handle_client_bytes(id, rest, now);
        }
    }

    /// Handles that a socket has accepted a part of a segment (bytes to send), not the whole. For a client,
    /// the send timeout starts anew, so that one that reads slowly is not closed like one that does not read
    /// at all. For a backend connection, nothing is done.
    pub fn handle_sending(&mut self, owner: Owner, now: Now) {
        if let Owner::Client(id) = owner {
            self.clients.handle_sending(id, now);
        }
    }

    /// Takes back a segment (bytes to send) that the socket of `owner` (a client or a backend connection) has
    /// sent completely, or dropped because it was closed.
    pub fn handle_transmitted(&mut self, owner: Owner, segment: Segment, now: Now) {
        self.env.pool.give_segment(segment);
        match owner {
            Owner::Client(id) => {
                self.env.counters.add(Counter::SendsToClients, 1);
                self.clients.handle_transmitted(&mut self.env, id, now);
            }
            Owner::Link(connection, generation) => {
                self.env.counters.add(Counter::SendsToBackends, 1);
                if self.private.is_mine(connection) {
                    self.private.handle_transmitted(connection, generation);
                } else {
                    self.upstream.handle_transmitted(connection, generation);
                }
            }
        }
    }

    /// Sends replies that were kept back to leave together with later replies of their pipeline. The runtime
    /// calls it when no more input is coming right now.
    pub fn handle_quiet(&mut self) {
        self.clients.handle_quiet();
    }

    /// Ends a turn (pass of the shard's loop): does the work that was put off during the turn. The runtime
    /// calls it before the `poll_*` methods.
    pub fn handle_turn_end(&mut self, now: Now) {
        self.turn = now;
        if !self.env.large_replies.is_empty() {
            self.look_after_large_replies(now);
        }
        if self.env.backend_levels.is_due(now.monotonic) {
            let Env { backend_levels, settings, .. } = &mut self.env;
            backend_levels.look(settings, now.monotonic);
        }
        // Fetches go first: they take the room in the window that replies have made, before queued requests
        // do.
        if self.hot_keys.has_to_send() {
            self.send_what_is_hot(now);
        }
        let (env, upstream, mut replies) = self.towards_clients();
        upstream.handle_turn_end(env, &mut replies, now);
        if self.private.len() > 0 {
            self.handle_private_turn_end(now);
        }
        self.look_after_hot(now);
        if self.clients.has_shared_work() || self.shared_channels.has_output() {
            self.exchange_shared(now);
        }
        self.clients.end_pauses(&self.env.quotas, now);
        self.resume_sure(now);
        if !self.clients.publications().is_empty() {
            self.resume_publications(now);
        }
        if self.clients.late_prices().has_known() {
            for (charge, settlement) in self.clients.late_prices().take_known() {
                self.admission.settle_late(&charge, &settlement, now);
            }
        }
        if self.clients.has_unpaid() {
            self.charge_for_discarded(now);
        }
        if self.admission.is_settlement_awaited() {
            self.resume_settled(now);
        }
        self.clients.reserve_for_waiting();
        for _ in 0..self.clients.waiting_for_turn() {
            let Some(id) = self.clients.take_next_turn() else { break };
            self.resume(id, now);
        }
        while let Some(id) = self.clients.take_resumable() {
            self.resume(id, now);
        }
        if self.clients.is_working_in_steps() {
            self.work_in_steps(now);
        }
        self.clients.weigh_if_due(&mut self.env);
        self.clients.release_overdue_partials(now);
        self.admission.handle_turn_end(now.monotonic);
        if self.admission.is_answer_awaited() && self.admission.is_alone(now.monotonic) {
            self.env.counters.add(Counter::QuotaPoolsSilent, 1);
            self.resume_waiting(now);
        }
        if self.upkeep.take_housekeeping(now) {
            self.keep_house(now);
        }
        if !self.upkeep.is_housekeeping_planned() && self.is_to_be_looked_after() {
            self.upkeep.plan_housekeeping(now.monotonic);
        }
        self.tidy_if_due(now);
        for sequence in self.env.fences.take_lifted() {
            self.peers.tell_lifted(self.env.settings.id, sequence);
        }
        if self.monitors.has_left_out() || self.clients.has_monitors() {
            self.end_turn_of_monitors(now);
        }
        if self.clients.has_shared_work() || self.shared_channels.has_output() {
            self.send_shared(now);
        }
        if self.clients.has_redirects() {
            self.exchange_redirects(now);
        }
        self.clients.begin_turn();
        let next_turn = self.is_busy().then_some(now.monotonic);
        let later = Timestamp::earliest([self.upkeep.poll_deadline(), self.hot_keys.poll_deadline()]);
        self.upstream.plan(next_turn.or(later));
    }

    /// True if the next turn (pass of the shard's loop) has work without new input, so that the runtime must
    /// not sleep: requests of clients that were received already, requests with many keys being split or
    /// their replies joined in steps, or messages of channels to be delivered to clients.
    pub fn is_busy(&self) -> bool {
        self.clients.is_busy() || self.clients.has_undelivered()
    }

    /// Returns the next action on a socket (such as to connect or to close one) for the runtime to carry
    /// out. None if there is none.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.env.actions.pop_front()
    }

    /// Returns the next line for the log; None if there is none.
    pub fn poll_line(&mut self) -> Option<String> {
        self.env.lines.pop_front()
    }

    /// Returns the next client's request that only the control executor (thread that handles no data of clients) can
    /// answer; the reply comes back through `handle_answer`. None if there is none.
    pub fn poll_question(&mut self) -> Option<(ReplyTo, Question)> {
        loop {
            let (to, question) = self.clients.poll_question()?;
            if self.clients.find(to.client_id()).is_some() {
                return Some((to, question));
            }
            // A client that has left is not answered, and its question costs nothing.
            self.clients.handle_question_answered();
            self.give_back(to, Outcome::Refused, Message::Small(&[]), self.turn);
        }
    }

    /// Returns the next segment of bytes to send, and the connection (`Owner`) to send it on. The socket
    /// gives the segment back through `handle_transmitted`; each socket has at most one segment at a time.
    /// None if there is none.
    pub fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        if let Some(to_backend) = self.upstream.poll_transmit().or_else(|| self.private.poll_transmit()) {
            return Some(to_backend);
        }
        let to_client = self.clients.poll_transmit(self.turn.monotonic)?;
        // The turn has ended, but housekeeping must check later whether this client takes the segment.
        self.upkeep.plan_housekeeping(self.turn.monotonic);
        Some(to_client)
    }

    /// Returns the next batch of messages for another shard, with that shard's id; None if there is none.
    pub fn poll_batch(&mut self) -> Option<(ShardId, Box<Batch>)> {
        let batch = self.peers.poll(&mut self.env.fences)?;
        self.env.counters.add(Counter::BatchesSent, 1);
        Some(batch)
    }

    /// Returns the next report of quota spent on this core, for the control executor (thread that handles no data of
    /// clients); each report is answered through `handle_grants`. None if there is none.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.admission.poll_report()
    }

    /// Returns the time at which `handle_turn_end` should be called at the latest. None if nothing is due.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        Timestamp::earliest([
            self.is_busy().then_some(self.turn.monotonic),
            self.upkeep.poll_deadline(),
            self.admission.poll_deadline(),
            self.hot_keys.poll_deadline(),
            self.upstream.poll_deadline(),
            self.private.poll_deadline(),
            self.clients.pause_ends(),
            self.clients.map_confirmation_deadline(),
            self.clients.publications_deadline(),
            self.env.large_replies.poll_deadline(),
        ])
    }

    /// True if the shard has tidied (freed memory that it no longer uses) since the last call; the caller can then make
    /// the allocator give free memory back to the system.
    pub fn take_tidied(&mut self) -> bool {
        self.upkeep.take_tidied()
    }

    /// True if the regular checks (housekeeping) have anything to check, such as replies that backends owe or
    /// sends in flight.
    fn is_to_be_looked_after(&self) -> bool {
        let settings = &self.env.settings;
        let idle_matters = settings.idle_timeout.is_some() && self.clients.len() > 0;
        let login_matters = settings.clients.login_timeout.is_some() && self.clients.has_strangers();
        let holds_much = self.clients.holds_much(&self.env);
        self.upstream.in_flight() > 0
            || self.private.len() > 0
            || self.clients.sends_in_flight() > 0
            || idle_matters
            || login_matters
            || self.clients.has_slow_http()
            || self.clients.has_monitors()
            || holds_much
    }

    fn keep_house(&mut self, now: Now) {
        let (env, upstream, mut replies) = self.towards_clients();
        upstream.give_up_on_silent(env, &mut replies, now);
        upstream.doubt_silent(now);
        upstream.find_stalls(&env.settings, now);
        let silent = upstream.silent();
        upstream.compare_latencies(env, now);
        upstream.check_health(env, now);
        let may_ask = self.private.is_on();
        for backend in silent.into_iter().filter(|_| may_ask) {
            self.private.ask_for_sign(&mut self.env, backend, now);
        }
        while let Some(backend) = self.upstream.poll_renewed() {
            self.private.retire(&mut self.env, backend);
        }
        self.look_after_private(now);
        self.tell_monitors(now);
        self.clients.look_after_stuck(&mut self.env, now);
        self.clients.leave_out_waiting();
        self.clients.close_strangers(&mut self.env, now);
        self.clients.close_slow_http(&mut self.env, now);
        if self.clients.holds_much(&self.env) {
            self.clients.weigh(&mut self.env);
        }
    }

    /// If tidying is due (once per second after work), frees memory that a burst has left: buffers unused for a
    /// while, and lists that were once long.
    fn tidy_if_due(&mut self, now: Now) {
        if let Some(idle_since) = self.upkeep.take_tidying(&self.env.counters, now) {
            let buffers = self.env.pool.tidy();
            let batches = self.peers.tidy();
            self.upstream.tidy();
            let clients = self.clients.tidy(idle_since);
            self.upkeep.handle_tidied(buffers || batches || clients);
        }
        self.upkeep.plan_tidying(&self.env.counters, now);
    }
}

/// Returns the text of the error for a client above the limit of `clients_max` clients.
fn no_room(clients_max: usize) -> String {
    format!("OVERLOADED reason=clients limit={clients_max} (--max-clients) retry_after_ms=1000")
}

#[cfg(test)]
impl Shard {
    /// Returns the client side of the shard (its clients and the order of their replies). For tests.
    pub fn front(&self) -> &ClientStage {
        &self.clients
    }

    /// True if no request waits for replies that was cut into pieces (one request per key), because a cluster's node
    /// could not carry it out whole. For tests.
    pub fn has_no_pieces(&self) -> bool {
        self.env.pieces.is_empty()
    }

    /// Returns the number of a tenant's requests that are admitted and not charged at their real cost yet. For
    /// tests.
    pub fn under_way(&mut self, tenant: TenantId) -> u32 {
        self.admission.under_way(tenant)
    }

    /// Measures now how many bytes of memory the clients hold, and closes the largest if that is too much.
    /// For tests.
    pub fn weigh_clients(&mut self) {
        self.clients.weigh(&mut self.env);
    }
}
