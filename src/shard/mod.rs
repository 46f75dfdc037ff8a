//! One core's share of everything: the stages of a request's life, composed. Pure: bytes, batches and time come in
//! through `handle_*`, what is to be done comes out through `poll_*`, and nothing else changes it.
//!
//! ```text
//!  handle_client_bytes ─> decode ─> identify ─> route ──────> forward ─> poll_transmit (to the backend)
//!                            │         │          │ other core    ^
//!                            │      local, qos    └─ poll_batch ─ │ ─> handle_batch (there)
//!                            │         v                          │
//!  poll_transmit  <── answer, in order <── gather, rewrite <── handle_backend_bytes
//!  (to the client)
//! ```
//!
//! | stage | file |
//! |---|---|
//! | bytes to requests, holding back, flow control | `decode.rs` |
//! | who is it, may it | `identify.rs` |
//! | what does it cost, is there enough left | `pricing.rs`, `effort.rs`, `admission.rs`, `accounts/` |
//! | key to core and backend | `route.rs` |
//! | one request, many places | `split.rs`, `gather.rs` |
//! | MULTI ... EXEC | `transaction.rs` |
//! | over which connections | `track.rs` |
//! | to the backend and back | `forward.rs`, `link.rs`, `greeting.rs`, `fence.rs`, `service_time.rs` |
//! | what it really cost | `settlement.rs` |
//! | replies in order | `answer.rs`, `client.rs` |
//! | who may be connected, and hold how much | `seats.rs`, `memory.rs`, `tidying.rs` |
//! | what weir answers itself | `local.rs`, `handshake.rs`, `client_list.rs`, `qos.rs`, `explain.rs` |
//! | from core to core | `batch.rs` |

mod accounts;
mod admission;
mod answer;
mod batch;
mod client;
mod client_list;
mod counters;
mod decode;
mod effort;
mod explain;
mod fence;
mod forward;
mod gather;
mod greeting;
mod handshake;
mod identify;
mod link;
mod local;
mod memory;
mod pricing;
mod qos;
mod refusal;
mod route;
mod seats;
mod service_time;
mod settlement;
mod split;
mod tidying;
mod track;
mod transaction;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub use accounts::{Accounts, Bill, Charge, Decision, Payer, Scope, Tab, UserAccount, UserFigures};
pub use admission::{AdmissionSettings, Limiter};
pub use batch::{Batch, Message, Outcome, ReplyTo, Route, Terms};
pub use client::Address;
pub use client_list::{ClientsAsked, ClientsTold};
pub use counters::{COUNTERS, Counter, Counters};
pub use identify::Identity;
pub use pricing::asked;
pub use refusal::Refusal;
pub use seats::ClientLimits;
pub use service_time::ServiceTimes;
pub use track::Track;

use crate::config::Quotas;
use crate::policy::baseline::Baseline;
use crate::protocol::{BufferPool, Protocol, RequestLimits, Segment};
use crate::routing::Topology;
use crate::values::allowance::Report;
use crate::values::time::Now;
use crate::values::{
    Action, BucketId, Capacity, ClientId, ConnectionId, MicroUnits, Owner, Price, ShardId, Spares,
    StoreVersion, Timestamp,
};
use client::Clients;
use client_list::Pause;
use fence::Fences;
use gather::Gathers;
use link::{Link, LinkState};
use memory::Holdings;
use settlement::Departed;

/// A store, as this core sees it.
#[derive(Clone, Debug)]
pub struct BackendSettings {
    /// Its address, as refusals and metrics name it.
    pub name: String,
    /// Weir's own credentials there: user name (if any) and password.
    pub credentials: Option<(Option<String>, String)>,
}

/// What a shard is told once.
#[derive(Clone, Debug)]
pub struct ShardSettings {
    /// Which shard it is.
    pub id: ShardId,
    /// How many shards and backends there are.
    pub topology: Topology,
    /// The backends, in the order of the topology.
    pub backends: Arc<[BackendSettings]>,
    /// Connections of this shard to each backend in each dialect.
    pub links_per_backend: u16,
    /// The same for requests that cost much, on top of those; none of them, and such requests travel among all others.
    pub heavy_links: u16,
    /// What costs much.
    pub heavy_from: MicroUnits,
    /// The largest value that a client may send.
    pub request_bytes_max: usize,
    /// The largest reply that is taken from a backend.
    pub reply_bytes_max: usize,
    /// What may wait for one client that does not read, before it is closed.
    pub output_bytes_max: usize,
    /// Clients that say nothing for so long are closed.
    pub idle_timeout: Option<Duration>,
    /// Clients that take nothing for so long, though something waits for them, are closed.
    pub send_timeout: Duration,
    /// A backend that owes a reply for so long is given up.
    pub reply_timeout: Duration,
    /// A backend that does not accept for so long is given up.
    pub connect_timeout: Duration,
    /// Where its own randomness starts.
    pub seed: u64,
    /// How requests are priced and admitted.
    pub admission: AdmissionSettings,
    /// What clients may hold.
    pub clients: ClientLimits,
}

/// One scope that a client's requests are paid from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeLimit {
    /// `global`, `tenant` or `user`.
    pub scope: &'static str,
    /// Who that is.
    pub name: String,
    /// The bucket and its size; none if there is no bound.
    pub bucket: Option<(BucketId, Capacity)>,
}

/// What a shard cannot know alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// `QOS LIMITS`.
    Limits {
        /// What is asked for.
        limits: Vec<ScopeLimit>,
        /// The dialect of the reply.
        protocol: Protocol,
    },
    /// `INFO`, with the sections that were named, in lower case.
    Info {
        /// Names of sections; none means the usual ones.
        sections: Vec<String>,
        /// The dialect of the reply.
        protocol: Protocol,
    },
    /// `CLIENT LIST` and its kin.
    Clients {
        /// What is asked of the clients of all shards.
        asked: ClientsAsked,
        /// The dialect of the reply.
        protocol: Protocol,
    },
    /// `QOS TENANTS`.
    Tenants {
        /// The name of the tenant that asks.
        asker: String,
        /// Only tenants whose names come after this one.
        after: String,
        /// The dialect of the reply.
        protocol: Protocol,
    },
}

/// The largest number of spare buffers and batches that a shard keeps.
const SPARE_BUFFERS_MAX: usize = 1024;
const SPARE_BATCHES_MAX: usize = 256;
/// How often slow things (timeouts) are looked at while there is something to look at.
const HOUSEKEEPING: Duration = Duration::from_millis(100);

/// One core's partition of everything.
#[derive(Debug)]
pub struct Shard {
    settings: ShardSettings,
    limits: RequestLimits,
    quotas: Arc<Quotas>,
    clients: Clients,
    clients_opened: u64,
    links: Vec<Link>,
    /// Connections that were given up, of which a store may have something left.
    fences: Fences,
    /// Replies that backends owe, over all links.
    owed: usize,
    gathers: Gathers,
    pool: BufferPool,
    outgoing: Vec<Option<Box<Batch>>>,
    outgoing_touched: VecDeque<ShardId>,
    spare_batches: Spares<Box<Batch>>,
    actions: VecDeque<Action>,
    /// One for each client at most: what a client asks behind it waits for the answer.
    questions: VecDeque<(ReplyTo, Question)>,
    /// Those that the control executor has yet to answer.
    questions_under_way: usize,
    clients_to_send: VecDeque<ClientId>,
    links_to_send: VecDeque<ConnectionId>,
    clients_partial: Vec<ClientId>,
    /// Since when the first of them waits.
    partial_since: Option<Timestamp>,
    clients_to_resume: VecDeque<ClientId>,
    /// Those whose turn is over though they have sent more.
    clients_next_turn: VecDeque<ClientId>,
    /// Counts turns.
    turn: u32,
    /// When memory is given back that was not needed for a while.
    tidy_at: Option<Timestamp>,
    /// There was more to give back than was given back last.
    untidy: bool,
    /// What had been done by then.
    work_tidied: u64,
    /// Something was given back since it was last asked.
    tidied: bool,
    /// Clients that wait by order.
    pauses: Vec<Pause>,
    /// Where answers go that are written while a transaction is carried out.
    captured: Option<Vec<u8>>,
    /// What clients held when they were weighed last.
    holdings: Holdings,
    /// There may be clients that have yet to log in.
    watch_strangers: bool,
    /// Segments that sockets of clients are busy with.
    sends_under_way: usize,
    housekeeping_at: Option<Timestamp>,
    /// When the turn that is being ended was; what is polled is polled then.
    turn_started: Timestamp,
    draining: bool,
    /// What clients are told.
    store_version: StoreVersion,
    random: u64,
    counters: Counters,
    service_times: ServiceTimes,
    accounts: Accounts,
    /// What is usual, per backend.
    baselines: Vec<Baseline>,
    /// Clients whose next request waits for the answer of a pool.
    clients_waiting: Vec<ClientId>,
    /// Requests that passed in shadow, and what was asked for them, before a pool has said whether they could.
    undecided_in_shadow: Vec<(Payer, Price)>,
    /// Requests under way whose clients have left, and who pays for them.
    departed: Departed,
}

impl Shard {
    /// A shard with no clients and no connections.
    pub fn new(settings: ShardSettings, quotas: Arc<Quotas>) -> Self {
        let links = settings
            .topology
            .all_backends()
            .flat_map(|backend| [Protocol::Resp2, Protocol::Resp3].map(|protocol| (backend, protocol)))
            .flat_map(|(backend, protocol)| {
                let links = settings.links_per_backend + settings.heavy_links;
                (0..links).map(move |_| Link::new(backend, protocol))
            })
            .collect();
        let shards = usize::from(settings.topology.shards());
        let accounts = Accounts::new(settings.id, settings.topology.shards(), &settings.admission, &quotas);
        let baselines = settings.topology.all_backends().map(|_| Baseline::default()).collect();
        Self {
            accounts,
            baselines,
            clients_waiting: Vec::new(),
            undecided_in_shadow: Vec::new(),
            departed: Departed::default(),
            limits: RequestLimits::trusted(settings.request_bytes_max),
            quotas,
            clients: Clients::default(),
            clients_opened: 0,
            links,
            fences: Fences::new(settings.id, shards),
            owed: 0,
            gathers: Gathers::default(),
            pool: BufferPool::new(SPARE_BUFFERS_MAX),
            outgoing: std::iter::repeat_with(|| None).take(shards).collect(),
            outgoing_touched: VecDeque::with_capacity(shards),
            spare_batches: Spares::new(SPARE_BATCHES_MAX),
            pauses: Vec::new(),
            captured: None,
            tidy_at: None,
            untidy: false,
            work_tidied: 0,
            tidied: false,
            actions: VecDeque::new(),
            questions: VecDeque::new(),
            questions_under_way: 0,
            clients_to_send: VecDeque::new(),
            links_to_send: VecDeque::new(),
            clients_partial: Vec::new(),
            partial_since: None,
            clients_to_resume: VecDeque::new(),
            clients_next_turn: VecDeque::new(),
            turn: 0,
            holdings: Holdings::default(),
            watch_strangers: false,
            sends_under_way: 0,
            housekeeping_at: None,
            turn_started: Timestamp::ZERO,
            draining: false,
            store_version: StoreVersion::default(),
            random: settings.seed | 1,
            counters: Counters::default(),
            service_times: ServiceTimes::default(),
            settings,
        }
    }

    /// Which shard it is.
    pub fn id(&self) -> ShardId {
        self.settings.id
    }

    /// What it has counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Clients that are connected.
    pub fn clients_open(&self) -> usize {
        self.clients.len()
    }

    /// Users whose quotas it keeps account of.
    pub fn users(&self) -> UserFigures {
        self.accounts.users()
    }

    /// How long backends took.
    pub fn service_times(&self) -> &ServiceTimes {
        &self.service_times
    }

    /// Replies that backends owe.
    pub fn replies_owed(&self) -> usize {
        self.owed
    }

    /// Requests under way whose clients have left.
    pub fn requests_departed(&self) -> usize {
        self.departed.len()
    }

    /// Requests that wait for the replies to several parts.
    pub fn gathers_open(&self) -> usize {
        self.gathers.len()
    }

    /// Connections to backends that are open.
    pub fn links_open(&self) -> usize {
        self.links.iter().filter(|link| link.state == LinkState::Open).count()
    }

    /// A batch from another shard.
    pub fn handle_batch(&mut self, mut batch: Box<Batch>, now: Now) {
        self.counters.add(Counter::BatchesReceived, 1);
        self.counters.add(Counter::BatchBytesReceived, batch.bytes() as u64);
        self.hear_fences(&mut batch);
        for (to, route, terms, message) in batch.requests() {
            self.forward_here(to, route, terms, message, now);
        }
        for (to, outcome, message) in batch.replies() {
            self.deliver(to, outcome, message, now);
        }
        batch.clear();
        self.spare_batches.push(batch);
    }

    /// The end of a turn: what was put off until now is done. Call before the `poll_*`.
    pub fn handle_turn_end(&mut self, now: Now) {
        self.turn_started = now.monotonic;
        self.end_pauses(now);
        for _ in 0..self.clients_next_turn.len() {
            if let Some(id) = self.clients_next_turn.pop_front() {
                self.resume(id, now);
            }
        }
        while let Some(id) = self.clients_to_resume.pop_front() {
            self.resume(id, now);
        }
        self.weigh_clients_if_due();
        self.release_overdue_partials(now);
        self.admission_turn_end(now);
        if self.housekeeping_at.is_some_and(|at| at <= now.monotonic) {
            self.housekeeping_at = None;
            self.keep_house(now);
        }
        if self.housekeeping_at.is_none() && self.is_to_be_looked_after() {
            self.housekeeping_at = Some(now.monotonic.after(HOUSEKEEPING));
        }
        self.tidy_if_due(now);
        self.plan_tidying(now);
        self.turn = self.turn.wrapping_add(1);
    }

    /// Do clients wait for their next turn, with requests that are here already?
    pub fn is_busy(&self) -> bool {
        !self.clients_next_turn.is_empty()
    }

    /// Clients that say HELLO from now on are told this version.
    pub fn handle_store_version(&mut self, version: StoreVersion) {
        self.store_version = version;
    }

    /// New quotas. Clients keep their tenant by its name; those whose tenant is gone must authenticate again.
    pub fn handle_quotas(&mut self, quotas: Arc<Quotas>, now: Now) {
        self.accounts.handle_quotas(&self.quotas, &quotas, now.monotonic);
        let ids: Vec<ClientId> = self.clients.ids().collect();
        for id in ids {
            let client = self.clients.at(id);
            // What is queued was permitted by the quotas before.
            if let Some(transaction) = &mut client.transaction
                && !client.identity.keeps_its_rights(&self.quotas, &quotas)
            {
                transaction.poison();
            }
            let held = client.held_request.as_mut().map(|held| &mut held.identity);
            for identity in std::iter::once(&mut client.identity).chain(held) {
                *identity = identity.carried_over(&self.quotas, &quotas, &mut self.accounts);
            }
            self.keep_seat(id, now);
        }
        self.quotas = quotas;
        self.resume_waiting(now);
    }

    /// From now on, requests that were taken on are answered, nothing more is read, and clients are closed.
    pub fn handle_drain(&mut self) {
        self.draining = true;
        let ids: Vec<ClientId> = self.clients.ids().collect();
        for id in ids {
            self.stop_listening(id);
        }
    }

    /// What should be done in the world, if anything.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What only the control executor knows, if anything is asked; the reply comes back through `handle_answer`.
    pub fn poll_question(&mut self) -> Option<(ReplyTo, Question)> {
        if self.questions_under_way >= crate::values::limits::QUESTIONS_UNDER_WAY_MAX {
            return None;
        }
        let question = self.questions.pop_front()?;
        self.questions_under_way += 1;
        Some(question)
    }

    /// Asks what only the control executor knows. What the client asks for behind it waits, so that nobody has more than one such
    /// question under way.
    fn ask(&mut self, id: ClientId, to: ReplyTo, question: Question) {
        self.questions.push_back((to, question));
        self.hold_back_later(id);
    }

    /// Bytes that should go out, if any. The socket gives the segment back through `handle_transmitted`, and there is
    /// at most one segment per socket on its way.
    pub fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        self.poll_link_transmit().or_else(|| self.poll_client_transmit())
    }

    /// A batch for another shard, if there is one.
    pub fn poll_batch(&mut self) -> Option<(ShardId, Box<Batch>)> {
        let shard = self.outgoing_touched.pop_front()?;
        let batch = self.outgoing[usize::from(shard.0)].take().expect("a touched peer has a batch");
        self.counters.add(Counter::BatchesSent, 1);
        Some((shard, batch))
    }

    /// What is to be told to the pools of quotas, if anything; each report is answered through `handle_grants`.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.accounts.poll_report()
    }

    /// When `handle_turn_end` should be called at the latest.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let patience = if self.is_answer_awaited() { self.accounts.patience_ends() } else { None };
        let next_turn = self.is_busy().then_some(self.turn_started);
        let pause = self.pause_ends();
        [self.housekeeping_at, self.tidy_at, self.accounts.poll_deadline(), patience, next_turn, pause]
            .into_iter()
            .flatten()
            .min()
    }

    /// A socket is done with a segment: it was sent whole, or the socket is closed.
    pub fn handle_transmitted(&mut self, owner: Owner, segment: Segment, now: Now) {
        self.pool.give_segment(segment);
        match owner {
            Owner::Client(id) => {
                self.counters.add(Counter::SendsToClients, 1);
                self.client_transmitted(id, now);
            }
            Owner::Link(connection, generation) => {
                self.counters.add(Counter::SendsToBackends, 1);
                self.link_transmitted(connection, generation);
            }
        }
    }

    fn batch_for(&mut self, shard: ShardId) -> &mut Batch {
        let place = &mut self.outgoing[usize::from(shard.0)];
        if place.is_none() {
            self.outgoing_touched.push_back(shard);
            *place = Some(self.spare_batches.pop().unwrap_or_default());
        }
        let batch = place.as_mut().expect("just filled");
        if !self.fences.is_told(shard) {
            // Whatever the other one does because of this batch, or of what a client sends it later, comes behind them.
            self.fences.tell(shard).for_each(|fence| batch.push_fence(fence.clone()));
        }
        batch
    }

    /// Is there anything that housekeeping would look at?
    fn is_to_be_looked_after(&self) -> bool {
        let idle_matters = self.settings.idle_timeout.is_some() && self.clients.len() > 0;
        let login_matters = self.settings.clients.login_timeout.is_some() && self.watch_strangers;
        let holds_much = self.holds_much();
        self.owed > 0 || self.sends_under_way > 0 || idle_matters || login_matters || holds_much
    }

    fn keep_house(&mut self, now: Now) {
        self.give_up_on_silent_links(now);
        self.close_stuck_clients(now);
        self.close_strangers(now);
        if self.holds_much() {
            self.weigh_clients();
        }
    }

    /// A small generator (xorshift) for what need not be unguessable: jitter.
    fn random_byte(&mut self) -> u8 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u8
    }
}

#[cfg(test)]
mod tests;
