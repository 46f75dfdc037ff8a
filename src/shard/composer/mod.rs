//! One core's share of everything: six stages, and the way of a request through them. Pure: bytes, batches and time come in
//! through `handle_*`, what is to be done comes out through `poll_*`, and nothing else changes it.
//!
//! | what happens to a request | file |
//! |---|---|
//! | its bytes become a request, the rest of a large one in room made for it | `decode.rs`, `http.rs`, `rooms.rs` |
//! | may its client do that | `permit.rs` |
//! | where does it go | `destination.rs` |
//! | it is admitted, and sent there | `carry_out.rs`, `split.rs` |
//! | its key is hot | `heat.rs` |
//! | it is queued, or a transaction carried out | `transaction.rs` |
//! | weir answers it | `local.rs`, `clients.rs`, `qos.rs`, `explain.rs` |
//! | a replica may answer it | `stale.rs` |
//! | its reply comes back | `replies.rs` |
//!
//! No file here has state of its own, but for when to look after things (`upkeep.rs`).

mod carry_out;
mod clients;
mod decode;
mod destination;
pub(super) mod explain;
mod heat;
mod http;
mod local;
mod permit;
mod qos;
mod replies;
mod rooms;
mod split;
mod stale;
mod transaction;
mod upkeep;

use std::sync::Arc;

use super::back::{Back, BulkheadFigures, Doubt, ReaderFigures, ServiceTimes};
use super::counters::{Counter, Counters, Pressures};
use super::env::Env;
use super::front::client_filter::{ClientsAsked, ClientsTold};
use super::front::{Address, Front, Readiness, Session};
use super::gate::{Gate, UserFigures};
use super::hot::{Hot, HotFigures, HotKey};
use super::message::Message;
use super::outcome::Outcome;
use super::post::{Batch, Post};
use super::question::Question;
use super::request::ReplyTo;
use super::settings::ShardSettings;
use crate::config::Quotas;
use crate::protocol::Segment;
use crate::routing::cluster::{Map, Reason, ReplicaState};
use crate::values::allowance::Report;
use crate::values::time::Now;
use crate::values::{
    Action, BackendId, ClientId, ConnectionId, Grant, Loss, Owner, ShardId, StoreVersion, Timestamp,
};
use upkeep::Upkeep;

/// One core's partition of everything.
#[derive(Debug)]
pub struct Shard {
    /// Lent to all others: settings, quotas, buffers, counters.
    env: Env,
    /// Clients.
    front: Front,
    /// Prices and accounts.
    gate: Gate,
    /// Hot keys.
    hot: Hot,
    /// Connections to stores.
    back: Back,
    /// Batches for other cores.
    post: Post,
    /// What is looked after now and then.
    upkeep: Upkeep,
    /// The turn that is being ended; what is polled is polled then.
    turn: Now,
}

impl Shard {
    /// A shard with no clients and no connections.
    pub fn new(settings: ShardSettings, quotas: Arc<Quotas>) -> Self {
        Self {
            front: Front::new(&settings),
            gate: Gate::new(&settings, &quotas),
            hot: Hot::new(settings.hot.clone(), &quotas),
            back: Back::new(&settings),
            post: Post::new(settings.topology.shards()),
            upkeep: Upkeep::default(),
            turn: Now::default(),
            env: Env::new(settings, quotas),
        }
    }

    /// Which shard it is.
    pub fn id(&self) -> ShardId {
        self.env.settings.id
    }

    /// What it has counted so far.
    pub fn counters(&self) -> &Counters {
        &self.env.counters
    }

    /// What it has refused under pressure.
    pub fn pressures(&self) -> &Pressures {
        &self.env.pressures
    }

    /// Clients that are connected.
    pub fn clients_open(&self) -> usize {
        self.front.len()
    }

    /// Bytes that clients of this core hold, as of when they were weighed last.
    pub fn clients_bytes(&self) -> usize {
        self.front.clients_bytes()
    }

    /// What clients of this core may hold however much those of others do.
    pub fn clients_bytes_share(&self) -> usize {
        self.env.settings.clients_bytes_share()
    }

    /// Users whose quotas it keeps account of.
    pub fn users(&self) -> UserFigures {
        self.gate.users()
    }

    /// How long backends took.
    pub fn service_times(&self) -> ServiceTimes {
        self.back.service_times()
    }

    /// Replies that backends owe.
    pub fn replies_in_flight(&self) -> usize {
        self.back.in_flight()
    }

    /// How it stands with the bulkheads of each backend: one for each track.
    pub fn bulkheads(&self) -> impl Iterator<Item = BulkheadFigures> {
        self.back.bulkheads(&self.env)
    }

    /// Requests that wait for room at their backends.
    pub fn requests_waiting(&self) -> usize {
        self.back.waiting()
    }

    /// How it stands with hot keys.
    pub fn hot_figures(&self) -> HotFigures {
        self.hot.figures()
    }

    /// What is known of keys that are hot, or cost much.
    pub fn hot_keys(&self) -> Vec<HotKey> {
        self.hot.keys(&self.env.quotas)
    }

    /// Requests in flight whose clients have left.
    pub fn requests_departed(&self) -> usize {
        self.front.requests_departed()
    }

    /// Requests that wait for the replies to several parts.
    pub fn gathers_open(&self) -> usize {
        self.front.gathers_open()
    }

    /// Connections to backends that are open.
    pub fn links_open(&self) -> usize {
        self.back.links_open()
    }

    /// A client has connected.
    pub fn handle_client_opened(&mut self, now: Now) -> ClientId {
        self.front.open(&mut self.env, now)
    }

    /// Where a client is, for those who list clients.
    pub fn note_client_address(&mut self, id: ClientId, address: Address) {
        self.front.note_address(id, address);
    }

    /// A client that has just come speaks TLS. Where its certificate names a tenant, it is logged in.
    pub fn handle_client_secure(&mut self, id: ClientId, name: Option<&str>, now: Now) {
        if let Err(text) = self.front.note_secure(&self.env, id, name, now) {
            self.env.counters.add(Counter::ClientsRefused, 1);
            if !self.refuse_http(id, &text, now) {
                self.answer_error(id, &text);
            }
            self.front.stop_listening(&mut self.env, id);
        }
    }

    /// The certificate of a client would be refused by now.
    pub fn handle_client_revoked(&mut self, id: ClientId) {
        self.front.revoke(&mut self.env, id);
    }

    /// A client has connected for whom there is no room: it is told so, and closed.
    pub fn handle_client_refused(&mut self, clients_max: usize, now: Now) -> ClientId {
        self.env.counters.add(Counter::ClientsRefused, 1);
        let id = self.handle_client_opened(now);
        self.answer_error(id, &no_room(clients_max));
        self.front.stop_listening(&mut self.env, id);
        id
    }

    /// Bytes from a client. How many more are known to be missing of its request, if they may come now.
    pub fn handle_client_bytes(&mut self, id: ClientId, chunk: &[u8], now: Now) -> usize {
        self.env.counters.add(Counter::ClientBytesReceived, chunk.len() as u64);
        if self.front.hear(id, now) { self.decode(id, chunk, now) } else { 0 }
    }

    /// The client will send no more, but may still read.
    pub fn handle_client_end(&mut self, id: ClientId) {
        self.front.handle_end(&mut self.env, id);
    }

    /// The client is gone.
    pub fn handle_client_lost(&mut self, id: ClientId) {
        self.front.forget(&mut self.env, id);
    }

    /// Closes the client that has been here for longest without logging in. False if all have.
    pub fn make_room(&mut self) -> bool {
        self.front.make_room(&mut self.env)
    }

    /// Clients of all cores hold so many bytes too much.
    pub fn handle_memory_exceeded(&mut self, excess: usize) {
        self.front.handle_memory_exceeded(&mut self.env, excess);
    }

    /// What a client of any shard wants of those of this one.
    pub fn handle_clients_asked(&mut self, asked: &ClientsAsked, now: Now) -> ClientsTold {
        self.front.handle_clients_asked(&mut self.env, asked, now)
    }

    /// The socket of a link is connected.
    pub fn handle_link_connected(&mut self, connection: ConnectionId, generation: u32, now: Now) {
        self.back.handle_connected(&mut self.env, connection, generation, now);
    }

    /// The socket of a link could not be connected, or is gone.
    pub fn handle_link_lost(&mut self, connection: ConnectionId, generation: u32, loss: Loss, now: Now) {
        let (env, back, mut replies) = self.towards_clients();
        back.handle_lost(env, (connection, generation), loss, &mut replies, now);
    }

    /// Bytes from a backend. How many more are known to be missing of the reply that is coming.
    pub fn handle_link_bytes(
        &mut self,
        connection: ConnectionId,
        generation: u32,
        chunk: &[u8],
        now: Now,
    ) -> usize {
        let (env, back, mut replies) = self.towards_clients();
        back.handle_bytes(env, (connection, generation), chunk, &mut replies, now);
        self.back.missing((connection, generation))
    }

    /// A batch from another shard.
    pub fn handle_batch(&mut self, mut batch: Box<Batch>, now: Now) {
        self.env.counters.add(Counter::BatchesReceived, 1);
        self.env.counters.add(Counter::BatchBytesReceived, batch.bytes() as u64);
        self.back.hear_fences(batch.take_fences());
        for (envelope, message) in batch.requests() {
            self.send_from_here(envelope, message, 1, now);
        }
        self.hear_of_copies(&batch, now);
        for (to, note) in batch.notes() {
            self.front.handle_note(to, note);
        }
        for (to, outcome, message) in batch.replies() {
            self.give_back(to, outcome, message, now);
        }
        batch.clear();
        self.post.recycle(batch);
    }

    /// What the pools of quotas said; requests that waited for it are tried again.
    pub fn handle_grants(&mut self, grants: &[Grant], now: Now) {
        self.gate.handle_grants(grants, now.monotonic);
        self.resume_waiting(now);
    }

    /// Who owns which slot of a cluster, from now on.
    pub fn handle_slots(&mut self, slots: Arc<Map>, now: Now) {
        let (env, back, mut replies) = self.towards_clients();
        back.handle_slots(env, Arc::clone(&slots), &mut replies, now);
        if let Some(older) = &self.env.slots {
            self.hot.handle_owners(|slot| older.owner(slot) != slots.owner(slot));
        }
        self.env.handle_slots(slots);
    }

    /// The name of a store leads elsewhere: what follows goes there, and what is owed was sent to somebody else.
    pub fn handle_store_moved(&mut self, backend: BackendId, now: Now) {
        let (env, back, mut replies) = self.towards_clients();
        back.handle_store_moved(env, backend, &mut replies, now);
        self.hot.handle_owners(|slot| self.env.backend_of(slot) == backend);
    }

    /// How far replicas of a cluster are behind.
    pub fn handle_replicas(&mut self, states: &[ReplicaState]) {
        self.back.handle_replicas(states);
    }

    /// What nodes did of reads that replicas may answer, by their places.
    pub fn reader_figures(&self) -> Vec<ReaderFigures> {
        self.back.reader_figures()
    }

    /// Why the map of the cluster may be old, if it may.
    pub fn poll_doubt(&mut self) -> Option<Doubt> {
        let unsure = Doubt { reason: Reason::Unsure, moved: None };
        let turn = self.turn.monotonic;
        self.back.take_doubt().or_else(|| self.front.certainty().take_question(turn).then_some(unsure))
    }

    /// Clients that say HELLO from now on are told this version.
    pub fn handle_store_version(&mut self, version: StoreVersion) {
        self.front.handle_store_version(version);
    }

    /// New quotas. Clients keep their tenant by its name; those whose tenant is gone must authenticate again.
    pub fn handle_quotas(&mut self, quotas: Arc<Quotas>, now: Now) {
        self.gate.handle_quotas(&self.env.quotas, &quotas, now.monotonic);
        self.front.handle_quotas(&self.env, &mut self.gate, &quotas, now);
        self.hot.handle_quotas(&quotas);
        self.env.quotas = quotas;
        self.resume_waiting(now);
    }

    /// Weir is about to end: no client is taken in. Those that are here have an end each (`handle_client_end`).
    pub fn refuse_newcomers(&mut self) {
        self.front.refuse_newcomers();
    }

    /// All clients that are connected.
    pub fn client_ids(&self) -> Vec<ClientId> {
        self.front.ids()
    }

    /// Can a client go on in another process now?
    pub fn readiness(&self, id: ClientId) -> Readiness {
        self.front.readiness(id)
    }

    /// Lets go of a client that can: what that process must know of it.
    pub fn take_session(&mut self, id: ClientId) -> Session {
        self.front.take_session(&mut self.env, id)
    }

    /// A client that comes from another process.
    pub fn handle_client_moved(&mut self, session: &Session, now: Now) -> ClientId {
        self.front.adopt(&mut self.env, &mut self.gate, session, now)
    }

    /// A socket has taken a part of a segment: whoever reads slowly is not one that does not read.
    pub fn handle_sending(&mut self, owner: Owner, now: Now) {
        if let Owner::Client(id) = owner {
            self.front.handle_sending(id, now);
        }
    }

    /// A socket is done with a segment: it was sent whole, or the socket is closed.
    pub fn handle_transmitted(&mut self, owner: Owner, segment: Segment, now: Now) {
        self.env.pool.give_segment(segment);
        match owner {
            Owner::Client(id) => {
                self.env.counters.add(Counter::SendsToClients, 1);
                self.front.handle_transmitted(&mut self.env, id, now);
            }
            Owner::Link(connection, generation) => {
                self.env.counters.add(Counter::SendsToBackends, 1);
                self.back.handle_transmitted(connection, generation);
            }
        }
    }

    /// Nothing more is coming right now: replies that waited for the rest of their pipeline go out alone.
    pub fn handle_quiet(&mut self) {
        self.front.handle_quiet();
    }

    /// The end of a turn: what was put off until now is done. Call before the `poll_*`.
    pub fn handle_turn_end(&mut self, now: Now) {
        self.turn = now;
        if self.env.strain.is_due(now.monotonic) {
            let Env { strain, settings, .. } = &mut self.env;
            strain.look(settings, now.monotonic);
        }
        // Fetches take the places that replies have made, before what is queued does.
        if self.hot.has_to_send() {
            self.send_what_is_hot(now);
        }
        let (env, back, mut replies) = self.towards_clients();
        back.handle_turn_end(env, &mut replies, now);
        self.look_after_hot(now);
        self.front.end_pauses(&self.env.quotas, now);
        self.resume_sure(now);
        if self.gate.is_settlement_awaited() {
            self.resume_settled(now);
        }
        self.front.reserve_for_waiting();
        for _ in 0..self.front.waiting_for_turn() {
            let Some(id) = self.front.take_next_turn() else { break };
            self.resume(id, now);
        }
        while let Some(id) = self.front.take_resumable() {
            self.resume(id, now);
        }
        self.front.weigh_if_due(&mut self.env);
        self.front.release_overdue_partials(now);
        self.gate.handle_turn_end(now.monotonic);
        if self.gate.is_answer_awaited() && self.gate.is_alone(now.monotonic) {
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
        for sequence in self.back.take_lifted() {
            self.post.tell_lifted(self.env.settings.id, sequence);
        }
        self.front.begin_turn();
        let next_turn = self.is_busy().then_some(now.monotonic);
        let later = [self.upkeep.poll_deadline(), self.hot.poll_deadline()].into_iter().flatten().min();
        self.back.plan(next_turn.or(later));
    }

    /// Do clients wait for their next turn, with requests that are here already?
    pub fn is_busy(&self) -> bool {
        self.front.is_busy()
    }

    /// What should be done in the world, if anything.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.env.actions.pop_front()
    }

    /// A line for those who look after weir, if there is one.
    pub fn poll_line(&mut self) -> Option<String> {
        self.env.lines.pop_front()
    }

    /// What only the control executor knows, if anything is asked; the reply comes back through `handle_answer`.
    pub fn poll_question(&mut self) -> Option<(ReplyTo, Question)> {
        loop {
            let (to, question) = self.front.poll_question()?;
            if self.front.find(to.client_id()).is_some() {
                return Some((to, question));
            }
            // Whoever asked has left: it is not answered, and costs nothing.
            self.front.handle_question_answered();
            self.give_back(to, Outcome::Refused, Message::Small(&[]), self.turn);
        }
    }

    /// Bytes that should go out, if any. The socket gives the segment back through `handle_transmitted`, and there is
    /// at most one segment per socket on its way.
    pub fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        if let Some(to_backend) = self.back.poll_transmit() {
            return Some(to_backend);
        }
        let to_client = self.front.poll_transmit(self.turn.monotonic)?;
        // The turn has ended, but someone must look whether this client takes it.
        self.upkeep.plan_housekeeping(self.turn.monotonic);
        Some(to_client)
    }

    /// A batch for another shard, if there is one.
    pub fn poll_batch(&mut self) -> Option<(ShardId, Box<Batch>)> {
        let batch = self.post.poll(self.back.fences())?;
        self.env.counters.add(Counter::BatchesSent, 1);
        Some(batch)
    }

    /// What is to be told to the pools of quotas, if anything; each report is answered through `handle_grants`.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.gate.poll_report()
    }

    /// When `handle_turn_end` should be called at the latest.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let next_turn = self.is_busy().then_some(self.turn.monotonic);
        let upkeep = self.upkeep.poll_deadline();
        let own = [self.gate.poll_deadline(), self.hot.poll_deadline(), self.back.poll_deadline()];
        let front = [self.front.pause_ends(), self.front.certainty_deadline()];
        own.into_iter().chain([upkeep, next_turn]).chain(front).flatten().min()
    }

    /// Was memory given back, so that the system may have it?
    pub fn take_tidied(&mut self) -> bool {
        self.upkeep.take_tidied()
    }

    /// Is there anything that housekeeping would look at?
    fn is_to_be_looked_after(&self) -> bool {
        let settings = &self.env.settings;
        let idle_matters = settings.idle_timeout.is_some() && self.front.len() > 0;
        let login_matters = settings.clients.login_timeout.is_some() && self.front.has_strangers();
        let holds_much = self.front.holds_much(&self.env);
        self.back.in_flight() > 0
            || self.front.sends_in_flight() > 0
            || idle_matters
            || login_matters
            || self.front.has_slow_http()
            || holds_much
    }

    fn keep_house(&mut self, now: Now) {
        let (env, back, mut replies) = self.towards_clients();
        back.give_up_on_silent(env, &mut replies, now);
        back.doubt_silent(now);
        back.look_for_stalls(&env.settings, now);
        back.look_for_strain(env, now);
        back.look_for_sickness(env, now);
        self.front.close_stuck(&mut self.env, now);
        self.front.close_strangers(&mut self.env, now);
        self.front.close_slow_http(&mut self.env, now);
        if self.front.holds_much(&self.env) {
            self.front.weigh(&mut self.env);
        }
    }

    /// Gives memory back after a burst: buffers that nobody needed for a while, and lists that were long once.
    fn tidy_if_due(&mut self, now: Now) {
        if let Some(idle_since) = self.upkeep.take_tidying(&self.env.counters, now) {
            let buffers = self.env.pool.tidy();
            let batches = self.post.tidy();
            self.back.tidy();
            let clients = self.front.tidy(idle_since);
            self.upkeep.handle_tidied(buffers || batches || clients);
        }
        self.upkeep.plan_tidying(&self.env.counters, now);
    }
}

/// What a client is told for whom there is no room.
fn no_room(clients_max: usize) -> String {
    format!("OVERLOADED reason=clients limit={clients_max} (--max-clients) retry_after_ms=1000")
}

#[cfg(test)]
impl Shard {
    /// Its clients, to look at.
    pub fn front(&self) -> &Front {
        &self.front
    }

    /// Is nothing left of requests that were taken apart?
    pub fn has_no_pieces(&self) -> bool {
        self.env.pieces.is_empty()
    }

    /// Weighs them now.
    pub fn weigh_clients(&mut self) {
        self.front.weigh(&mut self.env);
    }
}
