//! The simulated world: virtual time, events, shards with their mesh, clients and stores.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::capacity::Ability;
use super::client::{Client, Leaving, Move, Stage};
use super::cluster::{Cluster, catch_up};
use super::expect::Allowed;
use super::falls::{Fall, Life, Step, Way};
use super::history::{Fate, History, Sent};
use super::network::{Lane, LastWords, Peer, Socket, SocketId, pieces};
use super::overload::{Outcome, Trouble};
use super::pauses::KnownPause;
use super::plan::{ASKED, Load, MANY_LINKS, Plan};
use super::queues::{Ledger, Left};
use super::store::{Delivered, Store, StoreAnswer};
use super::token::{Token, tokens, value};
use super::topology::{Found, Topology as Lookout, delay_of_news, described};
use super::trace::Trace;
use super::{Summary, Voice};
use weir::config::Quotas;
use weir::control::pool::Rhythm;
use weir::control::reconciliation::Reconciliation;
use weir::policy::window::Bounds;
use weir::protocol::{Room, Segment, encode};
use weir::routing::cluster::{Map, NodeKey};
use weir::routing::{Topology, slot_of};
use weir::shard::{
    AdmissionSettings, BackendSettings, Batch, BulkheadFigures, ClientLimits, ClientsAsked, Counter, Doubt,
    Mode, OverloadSettings, Pause, Paused, Question, Readiness, ReplyTo, Shard, ShardSettings,
};
use weir::values::Random;
use weir::values::allowance::Report;
use weir::values::limits::SLOTS;
use weir::values::time::Now;
use weir::values::{Action, BackendId, ClientId, Grant, Loss, Owner, ShardId, Timestamp};

/// The virtual time (one hour) by which all activity of the simulated world must have ended; nothing that
/// weir waits for takes nearly so long.
const END: Timestamp = Timestamp::from_millis(3_600_000);
const UNIX_MS_AT_START: u64 = 1_700_000_000_000;
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const REPLY_TIMEOUT: Duration = Duration::from_secs(4);
const SEND_TIMEOUT: Duration = Duration::from_secs(3);

/// An event for a shard (core of weir) that comes from a socket, another core or a simulated thread.
#[derive(Debug)]
enum Input {
    Accepted(SocketId),
    Connected(SocketId),
    Bytes(SocketId, Vec<u8>),
    End(SocketId),
    Lost(SocketId),
    Transmitted(Owner, Segment),
    Batch(Box<Batch>),
    Answer(ReplyTo, Vec<u8>),
    /// A command about the shard's clients (`CLIENT PAUSE`), given at another shard.
    Clients(ClientsAsked),
    Grants(Vec<Grant>),
    Slots(Arc<Map>),
    SlotsConfirmed(Timestamp),
    Drain,
    /// The shard (core of weir) has read everything that was in this client's socket when it began to drain.
    Parted(SocketId),
}

#[derive(Debug)]
enum Event {
    /// The shard (core of weir) with this index handles the events that have arrived for it.
    Turn(usize),
    Input(usize, Input),
    ClientActs(usize),
    ClientReceives(usize, Vec<u8>),
    ClientSeesEnd(usize),
    StoreReceives(SocketId, Vec<u8>),
    StoreSeesEnd(SocketId),
    StoreActs(SocketId),
    /// A random client begins to move to another shard (core of weir), as it would to another process in a
    /// takeover.
    MoveBegins,
    /// The next step of moving the client with this index to another shard; the second number counts the
    /// steps before it.
    MoveGoesOn(usize, u32),
    /// A random store drops one of weir's connections to it.
    LinkBreaks,
    /// Blocking calls that wait at the store with this index may have reached their timeout.
    WaitsEnd(usize),
    PoolsHear(Report),
    /// The next step in moving slots between nodes of the cluster.
    SlotsGoOn,
    /// The next step of a primary's failure and the takeover by its replica.
    NodesGoOn,
    /// A replica replies to the command ROLE, which shows whether it has taken over from its primary.
    ReplicaTells(NodeKey),
    Doubted(Doubt),
    /// The simulated thread that finds the owners of slots begins a round in which nodes are asked about the
    /// cluster, if one is due.
    LookOut,
    NodeTells(u16),
    /// The draining shard (core of weir) with this index checks which clients' sockets it has read to the
    /// end.
    HearLastWords(usize),
    TellBulkheads,
    /// An operator pauses all clients, or ends all pauses.
    Pause,
    /// A client that bypasses weir writes to or deletes a key at its store.
    WritesAround,
    /// The time is over in which a read may still find a value older than that of this write, which bypassed
    /// weir; the field is the write's number in the history.
    AroundIsTold(usize),
}

struct Entry {
    at: Timestamp,
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

struct Core {
    shard: Shard,
    inbox: VecDeque<Input>,
    /// Events of sockets that the shard does not read at present, kept until it does.
    unread: BTreeMap<SocketId, Vec<Input>>,
    /// The times for which a turn of the core (handling of its events) is planned.
    turns: BTreeSet<Timestamp>,
    /// The time until which the core does not run; then it runs until `sleeps_from`, when it stops again.
    sleeps_until: Timestamp,
    sleeps_from: Timestamp,
    /// The times in which the core did not run, from which the possible number of served requests under
    /// overload is computed.
    slept: Vec<Range<Timestamp>>,
    to_others: Vec<Lane>,
    to_pools: Lane,
    from_pools: Lane,
    /// The path of messages about the cluster to this core of weir: later ones never arrive before earlier
    /// ones.
    of_slots: Lane,
    /// The amount that the core reported as spent from quotas, in millionths of a request unit; `metered` is
    /// the cost of its clients' requests that it reported, in the same unit.
    spent: i64,
    metered: u64,
}

pub(super) struct World {
    plan: Plan,
    steps: u64,
    step: u64,
    now: Timestamp,
    /// True once the world is ending: there are no new clients and no new faults.
    over: bool,
    draining: bool,
    events: BinaryHeap<Reverse<Entry>>,
    events_made: u64,
    cores: Vec<Core>,
    pools: Reconciliation,
    stores: Vec<Store>,
    clients: Vec<Client>,
    sockets: Vec<Socket>,
    by_owner: HashMap<(usize, Owner), SocketId>,
    /// The number of segments (blocks of bytes) that shards have given to sockets and not got back yet.
    segments: usize,
    /// Segments (blocks of bytes) on their way to clients that do not read, by socket.
    stuck_segments: BTreeMap<SocketId, Segment>,
    /// Buffers, by socket, that shards have lent so that the missing rest of large messages is received into
    /// them.
    rooms: BTreeMap<SocketId, Room>,
    history: History,
    random: Random,
    trace: Trace,
    voice: Voice,
    topology: Topology,
    /// The cluster that the stores form, and the simulated thread that finds the owners of slots for weir;
    /// `None` if the stores are single ones.
    cluster: Option<(Cluster, Lookout)>,
    /// Changes of slots' owners that not all cores of weir know of yet.
    changes: Vec<Change>,
    /// Takeovers (by index) that all cores know of, each with the number of the failed node, as long as some
    /// core does not know of an earlier change by which that node had lost slots.
    unsettled: Vec<(usize, u16)>,
    /// Sockets with requests that wait at a stopped node, one entry for each request.
    stopped: Vec<SocketId>,
    /// The number of writes so far by clients that bypass weir.
    beside: u64,
    /// The earliest time, by store, for which a check of the timeouts of waiting blocking calls is planned;
    /// `None` if none is.
    waits_end: Vec<Option<Timestamp>>,
    /// The pause of all clients that each shard (core of weir) knows of; `None` if there is none.
    pauses: Vec<Option<KnownPause>>,
}

/// A change of the owner of some slots (true in `slots`) from the node `old`, kept until all cores of weir
/// know of it.
#[derive(Debug)]
struct Change {
    slots: Vec<bool>,
    old: u16,
    /// The index of the takeover by which the slots changed their owner, if it was one; writes may be lost
    /// by it.
    takeover: Option<usize>,
    /// Numbers (in the history) of writes that bypassed weir and went to the slots' new owner at once.
    written: Vec<usize>,
    /// The version of the first map (owners of slots) that contains the change; `None` before there is one.
    /// `heard` is true for each core that has such a map.
    version: Option<u64>,
    heard: Vec<bool>,
}

/// The client number under which writes that bypass weir are recorded.
const BESIDE: u32 = u32::MAX - 1;
/// The time after which a node of the cluster that was asked for its view and is away counts as silent.
const PATIENCE: Duration = Duration::from_secs(1);

/// The interval at which cores report spent quota to the central pools, which divide quotas among them.
/// `POOL_STALL` is the longest delay of a report when the pools stall.
const PERIOD: Duration = Duration::from_millis(10);
const POOL_STALL: Duration = Duration::from_millis(300);

/// The interval at which a draining shard (core of weir) checks whether it has read its clients' sockets to
/// the end.
const LOOKED_AFTER: Duration = Duration::from_millis(5);

/// The number of steps after which the move of a client to another shard (core of weir) is given up.
const STEPS_MOST: u32 = 200;

/// The interval of virtual time between two lists of each shard's limits of requests in flight to stores and
/// its queues. Only a world under overload that prints its events prints them.
const BETWEEN_TOLD: Duration = Duration::from_millis(100);

fn quotas_of(plan: &Plan) -> Quotas {
    if plan.load.is_some() {
        // No request is more important than its tenant allows.
        return Quotas::parse("quotas.toml", "[default]\ntier = \"critical\"\n").expect("a valid file");
    }
    if plan.private.is_some_and(|private| private.gives_back) {
        return Quotas::parse("quotas.toml", "[default]\ngive_back = true\n").expect("a valid file");
    }
    let Some(quota) = plan.quota else { return Quotas::trusting() };
    let text = format!("[default]\nru_per_second = {quota}\nadmin = true\n");
    Quotas::parse("quotas.toml", &text).expect("a valid file")
}

type Checked = Result<(), String>;

/// Gives a lent buffer back to a shard, with the number of bytes received into it. `owner` is the connection
/// that the message comes on. Returns the number of bytes of the message that are still missing.
fn filled(shard: &mut Shard, owner: Owner, buffer: Vec<u8>, received: usize, now: Now) -> usize {
    match owner {
        Owner::Client(id) => shard.handle_client_filled(id, buffer, received, now),
        Owner::Link(connection, generation) => {
            shard.handle_link_filled(connection, generation, buffer, received, now)
        }
    }
}

impl World {
    pub fn new(seed: u64, steps: u64, voice: Voice) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::drawn_of_any(&mut random);
        Self::of(plan, random, steps, voice)
    }

    /// Creates a simulated world in which the stores form a cluster. Clients act for `steps` events of the
    /// simulation; `voice` says how much is printed.
    pub fn clustered(seed: u64, steps: u64, voice: Voice) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::clustered(&mut random);
        Self::of(plan, random, steps, voice)
    }

    /// Creates a simulated world in which stores report changes of keys to weir, and clients that bypass
    /// weir write too. Clients act for `steps` events of the simulation; `voice` says how much is printed.
    pub fn tracked(seed: u64, steps: u64, voice: Voice) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::tracked(&mut random);
        Self::of(plan, random, steps, voice)
    }

    /// Creates a simulated world in which an operator pauses clients. Clients act for `steps` events of the simulation;
    /// `voice` says how much is printed.
    pub fn paused(seed: u64, steps: u64, voice: Voice) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::paused(&mut random);
        Self::of(plan, random, steps, voice)
    }

    /// Creates a simulated world in which clients share queues and counters. Clients act for `steps` events
    /// of the simulation; `voice` says how much is printed.
    pub fn queueing(seed: u64, steps: u64, voice: Voice) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::queueing(&mut random);
        Self::of(plan, random, steps, voice)
    }

    /// Creates a simulated world in which clients send more requests than the stores can serve, with the
    /// faults in `trouble`; `voice` says how much is printed.
    pub fn overloaded(seed: u64, trouble: Trouble, voice: Voice) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::overloaded(&mut random, trouble);
        Self::of(plan, random, u64::MAX, voice)
    }

    fn of(plan: Plan, mut random: Random, steps: u64, voice: Voice) -> Self {
        let topology = Topology::new(plan.shards, plan.backends);
        let backends: Arc<[BackendSettings]> = (0..plan.backends)
            .map(|index| BackendSettings { name: format!("store{index}:6379"), credentials: None })
            .collect();
        let quotas = Arc::new(quotas_of(&plan));
        let rhythm = Rhythm { period: PERIOD, lease: PERIOD * 5 };
        let bounds = Bounds { most: plan.window_most, ..Bounds::default() };
        let overload =
            OverloadSettings { window_bounds: bounds, ..OverloadSettings::new(plan.shards, plan.backends) };
        let cores = (0..plan.shards)
            .map(|index| {
                let settings = ShardSettings {
                    id: ShardId(index),
                    topology,
                    backends: Arc::clone(&backends),
                    links_per_backend: plan.links_per_backend,
                    replicas: Mode::Off,
                    retries: plan.cluster.map_or(Mode::Off, |moves| moves.retries),
                    heavy_links: plan.heavy_links,
                    private_links_max: plan.private.map_or(0, |private| private.links),
                    databases: 16,
                    heavy_from: plan.heavy_from,
                    request_bytes_max: 4 << 20,
                    reply_bytes_max: plan.reply_bytes_max,
                    output_bytes_max: plan.output_bytes_max,
                    idle_timeout: plan.idle_timeout,
                    send_timeout: SEND_TIMEOUT,
                    reply_timeout: REPLY_TIMEOUT,
                    connect_timeout: CONNECT_TIMEOUT,
                    seed: random.bits(),
                    clients: ClientLimits::default(),
                    overload: overload.clone(),
                    hot: plan.hot.clone(),
                    admission: AdmissionSettings { period: PERIOD, ..AdmissionSettings::default() },
                };
                Core {
                    shard: Shard::new(settings, Arc::clone(&quotas)),
                    inbox: VecDeque::new(),
                    unread: BTreeMap::new(),
                    turns: BTreeSet::new(),
                    sleeps_until: Timestamp::ZERO,
                    sleeps_from: Timestamp::ZERO,
                    slept: Vec::new(),
                    to_pools: Lane::default(),
                    from_pools: Lane::default(),
                    of_slots: Lane::default(),
                    spent: 0,
                    metered: 0,
                    to_others: vec![Lane::default(); usize::from(plan.shards)],
                }
            })
            .collect();
        let stores = (0..plan.backends)
            .map(|index| Store::new(random.fork(), &plan, plan.stall_of(usize::from(index))))
            .collect();
        let cluster = plan.cluster.map(|moves| {
            let cluster = Cluster::new(moves, plan.backends);
            let lookout = Lookout::new(&cluster, plan.backends, random.fork());
            (cluster, lookout)
        });
        let mut world = Self {
            steps,
            step: 0,
            now: Timestamp::from_millis(1),
            over: false,
            draining: false,
            events: BinaryHeap::new(),
            events_made: 0,
            cores,
            pools: Reconciliation::new(rhythm),
            stores,
            clients: Vec::new(),
            sockets: Vec::new(),
            by_owner: HashMap::new(),
            segments: 0,
            stuck_segments: BTreeMap::new(),
            rooms: BTreeMap::new(),
            history: History::default(),
            random,
            trace: Trace::new(),
            voice,
            topology,
            cluster,
            changes: Vec::new(),
            unsettled: Vec::new(),
            stopped: Vec::new(),
            beside: 0,
            waits_end: vec![None; usize::from(plan.backends)],
            pauses: vec![None; usize::from(plan.shards)],
            plan,
        };
        world.find_cluster();
        world.history.ledger.gives_back = world.plan.private.is_some_and(|private| private.gives_back);
        if voice == Voice::Narrating {
            eprintln!("{:?}", world.plan);
            if world.plan.load.is_some() {
                world.after(Duration::ZERO, Event::TellBulkheads);
            }
        }
        for _ in 0..world.plan.clients {
            world.add_client();
        }
        if let Some(around) = world.plan.around {
            world.after(around.apart, Event::WritesAround);
        }
        if world.plan.pauses {
            world.after(Duration::ZERO, Event::Pause);
        }
        if world.plan.private.is_some_and(|private| private.moves_apart.is_some()) {
            world.after(Duration::ZERO, Event::MoveBegins);
        }
        if world.plan.private.is_some_and(|private| private.cuts_apart.is_some()) {
            world.after(Duration::ZERO, Event::LinkBreaks);
        }
        world
    }

    pub fn step(&self) -> u64 {
        self.step
    }

    /// Runs the simulated world until no event is left, and checks that all activity has ended then. Returns
    /// the figures of the run, or the promise of weir's that was broken.
    pub fn run(&mut self) -> Result<Summary, String> {
        while let Some(Reverse(Entry { at, event, .. })) = self.events.pop() {
            self.now = at;
            self.step += 1;
            self.note(&event);
            self.history.handle_time(at, self.step);
            self.happen(event)?;
            let is_enough = self.plan.load.map_or(self.step >= self.steps, |load| at >= load.until);
            if is_enough && !self.over {
                self.end();
            }
            if at > END {
                return Err("after an hour there is still something to do".into());
            }
        }
        self.check_rest()?;
        self.check_stores()?;
        let elements_missing = self.check_queues()?;
        let ledger = &self.history.ledger;
        Ok(Summary {
            elements_delivered: ledger.delivered,
            elements_missing,
            waits_moved: self.counted(Counter::WaitsTakenOver),
            committed: ledger.committed,
            conflicts: ledger.conflicts,
            steps: self.step,
            replies: self.clients.iter().map(|client| client.replies).sum(),
            refusals: self.clients.iter().map(|client| client.refusals).sum(),
            walks: self.clients.iter().map(|client| client.walks).sum(),
            links_lost: self.counted(Counter::LinksLost),
            from_memory: [Counter::HotHits, Counter::HotHitsCopied, Counter::HotJoins]
                .map(|counter| self.counted(counter))
                .iter()
                .sum(),
            from_copies: self.counted(Counter::HotHitsCopied),
            redirections: self.counted(Counter::Redirections),
            slots_moved: self.cluster.as_ref().map_or(0, |(cluster, _)| cluster.moved),
            takeovers: self
                .cluster
                .as_ref()
                .and_then(|(cluster, _)| cluster.roles.as_ref())
                .map_or(0, |roles| roles.takeovers),
            changes_told: self.counted(Counter::HotChanges),
            trackers_lost: self.counted(Counter::HotTrackersLost) + self.counted(Counter::HotTrackersSilent),
            trace: self.trace.value(),
        })
    }

    fn counted(&self, counter: Counter) -> u64 {
        self.cores.iter().map(|core| core.shard.counters().get(counter)).sum()
    }

    /// Prints, for every store of every shard (core of weir) with requests in flight or in the queue, the
    /// limit of requests in flight (window) and the queue.
    fn tell_bulkheads(&self) {
        for core in &self.cores {
            let busy = |figures: &BulkheadFigures| figures.in_flight + figures.held.requests > 0;
            for figures in core.shard.bulkheads().filter(busy) {
                eprintln!("       {:>12} shard {} {figures:?}", self.now.as_nanos(), core.shard.id().0);
            }
        }
    }

    /// Returns the outcome of a run under overload: the counts of the clients' requests by how they ended,
    /// with the capacity that the stores had.
    pub fn outcome(&self) -> Outcome {
        let (capacity, could) = self.plan.load.map_or((0.0, 0.0), |load| self.ability(&load).requests());
        let mut outcome = Outcome { capacity, could, ..Outcome::default() };
        for (tier, tally) in self.clients.iter().filter_map(Client::tally) {
            outcome.tiers[tier as usize].add(tally);
        }
        outcome
    }

    /// Collects the data about stores and cores from which the number of requests that could have been
    /// served under overload is computed.
    fn ability(&self, load: &Load) -> Ability {
        let part_of = |count: usize, all: usize| count as f64 / all.max(1) as f64;
        let cores = || 0..self.cores.len();
        let clients_of = |core| {
            self.clients.iter().filter(move |client| self.sockets[client.socket.0].shard == core).count()
        };
        let homes_of = |store: u16| {
            let slots = (0..SLOTS).filter(|slot| self.topology.backend_of(*slot) == BackendId(store));
            let homes: Vec<_> = slots.map(|slot| usize::from(self.topology.home_of(slot).0)).collect();
            let at = |core| homes.iter().filter(|home| **home == core).count();
            cores().map(|core| part_of(at(core), homes.len())).collect()
        };
        Ability {
            counted: load.counted_from..load.until,
            asked: ASKED,
            servers: self.plan.store_servers.unwrap_or(0),
            service: self.plan.store_delay,
            works: self.stores.iter().map(Store::work).collect(),
            slept: self.cores.iter().map(|core| core.slept.clone()).collect(),
            clients: cores().map(|core| part_of(clients_of(core), self.clients.len())).collect(),
            stalled: (0..self.stores.len())
                .map(|store| self.plan.stall_of(store).map(|stall| stall.from..stall.until))
                .collect(),
            homes: (0..self.plan.backends).map(homes_of).collect(),
        }
    }

    fn note(&mut self, event: &Event) {
        self.trace.number(self.now.as_nanos());
        if let Event::ClientReceives(client, bytes) = event {
            self.trace.number(*client as u64);
            self.trace.bytes(bytes);
        }
        if self.voice == Voice::Narrating {
            let mut text = format!("{event:?}");
            if let Event::ClientReceives(_, bytes)
            | Event::StoreReceives(_, bytes)
            | Event::Input(_, Input::Bytes(_, bytes)) = event
            {
                text = format!(
                    "{} {}",
                    text.split('[').next().unwrap_or_default(),
                    bytes[..bytes.len().min(300)].escape_ascii()
                );
            }
            if let Event::Input(shard, Input::Slots(map)) = event {
                text = format!("Input({shard}, {})", described(map));
            }
            text.truncate(600);
            eprintln!("{:>6} {:>12} {text}", self.step, self.now.as_nanos());
        }
    }

    /// Begins the end of the simulated world: there are no new faults, clients stop sending, and the shards
    /// drain if the plan says so.
    fn end(&mut self) {
        self.over = true;
        self.stores.iter_mut().for_each(Store::calm_down);
        for client in 0..self.clients.len() {
            self.after(Duration::ZERO, Event::ClientActs(client));
        }
        if self.plan.ends_by_draining {
            self.draining = true;
            for shard in 0..self.cores.len() {
                let late = Duration::from_micros(self.random.below(2_000));
                self.after(late, Event::Input(shard, Input::Drain));
            }
        }
    }

    fn happen(&mut self, event: Event) -> Checked {
        match event {
            Event::Turn(shard) => self.turn(shard)?,
            Event::Input(shard, input) => self.come_in(shard, input),
            Event::ClientActs(client) => self.client_acts(client),
            Event::ClientReceives(client, bytes) => self.client_receives(client, &bytes)?,
            Event::ClientSeesEnd(client) => {
                let around = 2 * self.plan.network_delay;
                let quiet_least = self.plan.idle_timeout.map(|timeout| timeout.saturating_sub(around));
                let gone = self.clients[client].stage == Stage::Gone;
                let overfull = self.is_overfull();
                if !gone {
                    self.clients[client].closed(
                        self.draining || overfull,
                        (self.now, quiet_least),
                        &mut self.history,
                    )?;
                    self.replace_client();
                }
            }
            Event::StoreReceives(socket, _)
                if self.sockets[socket.0].cut_at.is_some_and(|cut_at| cut_at < self.now) => {}
            Event::StoreReceives(socket, bytes) => {
                let Peer::Store(backend) = self.sockets[socket.0].peer else {
                    unreachable!("a store's socket")
                };
                for at in self.stores[usize::from(backend.0)].receive(socket, &bytes, self.now)? {
                    self.at(at, Event::StoreActs(socket));
                }
            }
            Event::StoreSeesEnd(socket) => {
                let Peer::Store(backend) = self.sockets[socket.0].peer else {
                    unreachable!("a store's socket")
                };
                let is_reset = self.sockets[socket.0].cut_at.is_some();
                if is_reset && self.life_of(backend) == Life::Away(Way::Stopped) {
                    self.store_of(socket).reset_unread(socket);
                } else {
                    self.store_of(socket).ended(socket);
                }
            }
            Event::StoreActs(socket) => self.store_acts(socket)?,
            Event::MoveBegins => self.begin_move(),
            Event::LinkBreaks => self.break_link(),
            Event::MoveGoesOn(client, steps) => self.move_goes_on(client, steps),
            Event::WaitsEnd(store) => {
                let now = self.clocks();
                self.waits_end[store].take_if(|at| *at <= now.monotonic);
                self.stores[store].expire_waits(now);
                self.deliver(store);
            }
            Event::PoolsHear(report) => self.pools_hear(&report),
            Event::SlotsGoOn => self.slots_go_on()?,
            Event::NodesGoOn => self.nodes_go_on()?,
            Event::ReplicaTells(successor) => self.replica_tells(successor),
            Event::Doubted(doubt) => self.doubted(doubt),
            Event::LookOut => self.look_out(),
            Event::NodeTells(node) => self.node_tells(node),
            Event::HearLastWords(shard) => self.hear_last_words(shard),
            Event::TellBulkheads => {
                self.tell_bulkheads();
                if !self.over {
                    self.after(BETWEEN_TOLD, Event::TellBulkheads);
                }
            }
            Event::Pause => self.pause(),
            Event::WritesAround => self.write_around()?,
            Event::AroundIsTold(write) => self.history.settle(write, Fate::Done(self.step))?,
        }
        Ok(())
    }

    // Shards.

    /// Queues an event for a shard (core of weir), unless the shard has closed the event's socket. The event
    /// is kept back while the shard does not read that socket. If the socket's client has moved, the event
    /// goes to the client's new shard.
    fn come_in(&mut self, shard: usize, input: Input) {
        let mut shard = shard;
        if let Input::Bytes(socket, _) | Input::End(socket) | Input::Lost(socket) | Input::Connected(socket) =
            &input
        {
            let known = &self.sockets[socket.0];
            if known.closed_by_shard {
                return;
            }
            // The client may have moved since the event was planned.
            shard = known.shard;
            if (known.paused || known.detained) && !matches!(input, Input::Lost(_)) {
                self.cores[shard].unread.entry(*socket).or_default().push(input);
                return;
            }
        }
        self.cores[shard].inbox.push_back(input);
        let delay = self.turn_delay();
        let soon = self.now.after(delay);
        if self.cores[shard].turns.first().is_none_or(|next| *next > soon) {
            self.plan_turn(shard, soon);
        }
    }

    fn plan_turn(&mut self, shard: usize, at: Timestamp) {
        if self.cores[shard].turns.insert(at) {
            self.at(at, Event::Turn(shard));
        }
    }

    fn turn(&mut self, shard: usize) -> Checked {
        let now = self.clocks();
        self.cores[shard].turns.remove(&self.now);
        if let Some(awake) = self.sleeps(shard) {
            self.plan_turn(shard, awake);
            return Ok(());
        }
        let quiet = self.cores[shard].inbox.is_empty();
        while let Some(input) = self.cores[shard].inbox.pop_front() {
            self.take(shard, input, now);
        }
        self.cores[shard].shard.handle_turn_end(now);
        if quiet {
            self.cores[shard].shard.handle_quiet();
        } else {
            // A turn with work in it is followed by another, as in the real runtime.
            let delay = self.turn_delay();
            self.plan_turn(shard, self.now.after(delay));
        }
        loop {
            while let Some(action) = self.cores[shard].shard.poll_action() {
                self.act(shard, action, now)?;
            }
            let Some((owner, segment)) = self.cores[shard].shard.poll_transmit() else { break };
            self.transmit(shard, owner, segment, now)?;
        }
        while let Some(line) = self.cores[shard].shard.poll_line() {
            self.narrate(&format_args!("shard {shard} says: {line}"));
        }
        while let Some((to, question)) = self.cores[shard].shard.poll_question() {
            let mut reply = Vec::new();
            match question {
                Question::Info { sections, .. } => encode::bulk(&mut reply, sections.concat().as_bytes()),
                Question::Tenants { asker, .. } | Question::HotKeys { asker, .. } => {
                    encode::bulk(&mut reply, asker.as_bytes());
                }
                Question::Limits { .. } | Question::Clients { .. } => {
                    unreachable!("no client of this world asks for these")
                }
            }
            let delay = self.some_delay();
            self.after(delay, Event::Input(shard, Input::Answer(to, reply)));
        }
        while let Some((to, batch)) = self.cores[shard].shard.poll_batch() {
            let to = usize::from(to.0);
            let arrival =
                self.cores[shard].to_others[to].arrival(self.now, self.plan.turn_delay, &mut self.random);
            self.at(arrival, Event::Input(to, Input::Batch(batch)));
        }
        while let Some(report) = self.cores[shard].shard.poll_report() {
            let stalled = self.random.per_mille(self.plan.pool_stall);
            let delay = if stalled { POOL_STALL } else { self.plan.pool_delay };
            let arrival = self.cores[shard].to_pools.arrival(self.now, delay, &mut self.random);
            self.at(arrival, Event::PoolsHear(report));
        }
        while let Some(doubt) = self.cores[shard].shard.poll_doubt() {
            let delay = self.plan.cluster.map_or(Duration::ZERO, |moves| moves.news_delay);
            let delay = delay_of_news(delay, &mut self.random);
            self.after(delay, Event::Doubted(doubt));
        }
        if let Some(at) = self.cores[shard].shard.poll_deadline() {
            let at = at.max(self.now);
            if self.cores[shard].turns.first().is_none_or(|next| *next > at) {
                self.plan_turn(shard, at);
            }
        }
        Ok(())
    }

    /// Returns the time until which the core of a shard does not run, because other processes have its CPU;
    /// `None` if it runs now.
    fn sleeps(&mut self, shard: usize) -> Option<Timestamp> {
        let sleeps = self.plan.sleeps?;
        let core = &mut self.cores[shard];
        if core.sleeps_from <= self.now {
            let is_first = core.sleeps_from == Timestamp::ZERO;
            let lasts = Duration::from_micros(self.random.between(5_000, sleeps.longest.as_micros() as u64));
            core.sleeps_until = if is_first { self.now } else { self.now.after(lasts) };
            core.sleeps_from = core.sleeps_until.after(sleeps.apart.mul_f64(self.random.exponential()));
            core.slept.push(self.now..core.sleeps_until);
        }
        (core.sleeps_until > self.now).then_some(core.sleeps_until)
    }

    fn take(&mut self, shard: usize, input: Input, now: Now) {
        if let Input::Bytes(socket, _) | Input::End(socket) | Input::Lost(socket) | Input::Connected(socket) =
            &input
            && self.sockets[socket.0].closed_by_shard
        {
            return;
        }
        let core = &mut self.cores[shard].shard;
        match input {
            Input::Accepted(socket) => {
                let owner = Owner::Client(core.handle_client_opened(now));
                self.sockets[socket.0].owner = Some(owner);
                self.by_owner.insert((shard, owner), socket);
            }
            Input::Connected(socket) => {
                if let Some(Owner::Link(connection, generation)) = self.sockets[socket.0].owner {
                    core.handle_link_connected(connection, generation, now);
                }
            }
            Input::Bytes(socket, bytes) => self.bytes_come(shard, socket, &bytes, now),
            Input::End(socket) => {
                self.take_room_back(shard, socket, now);
                let core = &mut self.cores[shard].shard;
                match self.sockets[socket.0].owner {
                    Some(Owner::Client(id)) => core.handle_client_end(id, now),
                    Some(Owner::Link(connection, generation)) => {
                        core.handle_link_lost(connection, generation, Loss::ByPeer, now);
                        self.close(shard, socket, now);
                    }
                    None => unreachable!("accepting came first"),
                }
            }
            Input::Lost(socket) => {
                match self.sockets[socket.0].owner {
                    Some(Owner::Client(id)) => core.handle_client_lost(id),
                    Some(Owner::Link(connection, generation)) => {
                        let is_severed = self.sockets[socket.0].is_severed;
                        let loss = if is_severed { Loss::OnTheWay } else { Loss::ByPeer };
                        core.handle_link_lost(connection, generation, loss, now);
                    }
                    None => unreachable!("accepting came first"),
                }
                self.close(shard, socket, now);
            }
            Input::Transmitted(owner, segment) => {
                self.segments -= 1;
                if let Some(socket) = self.by_owner.get(&(shard, owner)) {
                    self.sockets[socket.0].sending = false;
                }
                core.handle_transmitted(owner, segment, now);
            }
            Input::Batch(batch) => core.handle_batch(batch, now),
            Input::Answer(to, reply) => core.handle_answer(to, &reply, now),
            Input::Clients(asked) => {
                self.pauses[shard] = KnownPause::after(self.pauses[shard], &asked, self.step, self.now);
                core.handle_clients_asked(&asked, now);
            }
            Input::Grants(grants) => core.handle_grants(&grants, now),
            Input::Slots(map) => {
                let version = map.version();
                core.handle_slots(map, now);
                self.note_known(shard, version);
            }
            Input::SlotsConfirmed(at) => core.handle_slots_confirmed(at),
            Input::Drain => self.drain(shard),
            Input::Parted(socket) => {
                if let Some(Owner::Client(id)) =
                    self.sockets[socket.0].owner.filter(|_| !self.sockets[socket.0].closed_by_shard)
                {
                    core.handle_client_end(id, now);
                }
            }
        }
    }

    /// True if weir's limit on unread replies of one client is so low (below 300,000 bytes) that weir may
    /// close a client because of it.
    fn is_overfull(&self) -> bool {
        self.plan.output_bytes_max < 300_000
    }

    /// Drains a shard (core of weir) as the real runtime does: the shard accepts no more clients, and reads
    /// each client's socket until two checks in a row have found it empty.
    fn drain(&mut self, shard: usize) {
        self.cores[shard].shard.refuse_newcomers();
        let is_overfull = self.is_overfull();
        for client in &mut self.clients {
            let socket = &mut self.sockets[client.socket.0];
            if socket.shard != shard || socket.owner.is_none() || socket.closed_by_shard {
                continue;
            }
            socket.last_words = Some(LastWords::default());
            if socket.to_shard.last_arrival() <= self.now && !is_overfull {
                client.must_be_served();
            }
        }
        self.after(LOOKED_AFTER, Event::HearLastWords(shard));
    }

    fn hear_last_words(&mut self, shard: usize) {
        let core = &self.cores[shard];
        let waits = |input: &Input| match input {
            Input::Bytes(socket, _) => Some(*socket),
            _ => None,
        };
        let unread: BTreeSet<SocketId> =
            core.inbox.iter().chain(core.unread.values().flatten()).filter_map(waits).collect();
        let (mut parted, mut some_are_left) = (Vec::new(), false);
        for client in &self.clients {
            let socket = &mut self.sockets[client.socket.0];
            let is_here = socket.shard == shard && !socket.closed_by_shard;
            let Some(words) = socket.last_words.as_mut().filter(|_| is_here) else { continue };
            let is_empty = !unread.contains(&client.socket);
            if std::mem::replace(&mut words.was_empty, is_empty) && is_empty {
                socket.last_words = None;
                parted.push(client.socket);
            } else {
                some_are_left = true;
            }
        }
        for socket in parted {
            self.come_in(shard, Input::Parted(socket));
        }
        if some_are_left {
            self.after(LOOKED_AFTER, Event::HearLastWords(shard));
        }
    }

    /// Passes bytes that have come on a socket to a shard. If the shard has lent a buffer for the rest of a
    /// message on that socket, they go there first.
    fn bytes_come(&mut self, shard: usize, socket: SocketId, mut bytes: &[u8], now: Now) {
        let owner = self.sockets[socket.0].owner.expect("accepting came first");
        while !bytes.is_empty() {
            let core = &mut self.cores[shard].shard;
            let missing = if let Some(mut room) = self.rooms.remove(&socket) {
                let (here, rest) = bytes.split_at(room.bytes.min(bytes.len()));
                room.buffer.extend_from_slice(here);
                bytes = rest;
                filled(core, owner, room.buffer, here.len(), now)
            } else {
                let here = std::mem::take(&mut bytes);
                match owner {
                    Owner::Client(id) => core.handle_client_bytes(id, here, now),
                    Owner::Link(connection, generation) => {
                        core.handle_link_bytes(connection, generation, here, now)
                    }
                }
            };
            if missing > 0 && self.random.per_mille(700) {
                let room = match owner {
                    Owner::Client(id) => core.lend_client_room(id),
                    Owner::Link(connection, generation) => core.lend_link_room(connection, generation),
                };
                self.rooms.extend(room.map(|room| (socket, room)));
            }
        }
    }

    /// Gives the buffer that a shard has lent for a socket's bytes, if any, back to the shard without any
    /// received bytes.
    fn take_room_back(&mut self, shard: usize, socket: SocketId, now: Now) {
        if let Some(room) = self.rooms.remove(&socket)
            && let Some(owner) = self.sockets[socket.0].owner
        {
            filled(&mut self.cores[shard].shard, owner, room.buffer, 0, now);
        }
    }

    fn act(&mut self, shard: usize, action: Action, now: Now) -> Checked {
        match action {
            Action::Connect { owner, backend } => self.connect(shard, owner, backend),
            Action::Close(owner) => {
                if let Some(socket) = self.by_owner.get(&(shard, owner)).copied() {
                    self.close(shard, socket, now);
                }
            }
            Action::Reset(owner) => {
                if let Some(socket) = self.by_owner.get(&(shard, owner)).copied() {
                    // Some of the bytes on their way have already left this machine.
                    let last = self.sockets[socket.0].to_peer.last_arrival();
                    let left = self.random.below(last.since(self.now).as_nanos() as u64 + 1);
                    self.sockets[socket.0].cut_at = Some(self.now.after(Duration::from_nanos(left)));
                    self.close(shard, socket, now);
                }
            }
            Action::Examine(owner) => {
                if let Some(socket) = self.by_owner.get(&(shard, owner)).copied()
                    && self.sockets[socket.0].is_severed
                {
                    self.come_in(shard, Input::Lost(socket));
                }
            }
            // A socket may have been lost since the shard decided to pause it.
            Action::PauseReading(owner) => {
                if let Some(socket) = self.by_owner.get(&(shard, owner)).copied()
                    && std::mem::replace(&mut self.sockets[socket.0].paused, true)
                {
                    return Err("a socket is paused twice".into());
                }
                if let Some(socket) = self.by_owner.get(&(shard, owner)).copied() {
                    self.take_room_back(shard, socket, now);
                }
            }
            Action::ResumeReading(owner) => {
                if let Some(socket) = self.by_owner.get(&(shard, owner)).copied() {
                    if !std::mem::replace(&mut self.sockets[socket.0].paused, false) {
                        return Err("a socket is resumed that was not paused".into());
                    }
                    for input in self.cores[shard].unread.remove(&socket).unwrap_or_default() {
                        self.come_in(shard, input);
                    }
                }
            }
        }
        Ok(())
    }

    fn connect(&mut self, shard: usize, owner: Owner, backend: BackendId) {
        let socket = SocketId(self.sockets.len());
        self.sockets.push(Socket::new(shard, Peer::Store(backend), Some(owner)));
        self.by_owner.insert((shard, owner), socket);
        self.narrate(&format_args!("shard {shard} connects {socket:?} to store {}", backend.0));
        let faults = self.stores[usize::from(backend.0)].faults();
        match self.life_of(backend) {
            Life::Away(Way::Killed) => return self.send_to_shard(socket, Input::Lost(socket)),
            Life::Away(Way::Vanished) => return,
            Life::Well | Life::Away(Way::Stopped | Way::HandsOver) => {}
        }
        if self.random.per_mille(faults.refused_connect) {
            self.send_to_shard(socket, Input::Lost(socket));
        } else if !self.random.per_mille(faults.ignored_connect) {
            self.stores[usize::from(backend.0)].connected(socket);
            self.send_to_shard(socket, Input::Connected(socket));
        }
    }

    /// Closes the shard's end of a socket; the client or store at the far end notices it after the bytes on
    /// their way have arrived.
    fn close(&mut self, shard: usize, socket: SocketId, now: Now) {
        let known = &mut self.sockets[socket.0];
        if std::mem::replace(&mut known.closed_by_shard, true) {
            return;
        }
        let (peer, owner) = (known.peer, known.owner.expect("only open sockets are closed"));
        self.by_owner.remove(&(shard, owner));
        self.cores[shard].unread.remove(&socket);
        self.rooms.remove(&socket);
        if let Some(segment) = self.stuck_segments.remove(&socket) {
            self.segments -= 1;
            self.cores[shard].shard.handle_transmitted(owner, segment, now);
        }
        let arrival = self.arrival_at_peer(socket);
        match peer {
            Peer::Client(client) => self.at(arrival, Event::ClientSeesEnd(client)),
            Peer::Store(_) => self.at(arrival, Event::StoreSeesEnd(socket)),
        }
    }

    fn transmit(&mut self, shard: usize, owner: Owner, segment: Segment, now: Now) -> Checked {
        if segment.is_empty() {
            return Err("an empty segment is sent".into());
        }
        let Some(socket) = self.by_owner.get(&(shard, owner)).copied() else {
            self.cores[shard].shard.handle_transmitted(owner, segment, now);
            return Ok(());
        };
        self.segments += 1;
        if std::mem::replace(&mut self.sockets[socket.0].sending, true) {
            return Err("two segments are under way on one socket".into());
        }
        let peer = self.sockets[socket.0].peer;
        if let Peer::Client(client) = peer
            && self.clients[client].leaving == Leaving::Stuck
            && self.clients[client].stage == Stage::Leaving
        {
            self.stuck_segments.insert(socket, segment);
            return Ok(());
        }
        for piece in pieces(&segment.bytes(), self.plan.piece_bytes, &mut self.random) {
            let arrival = self.arrival_at_peer(socket);
            match peer {
                Peer::Client(client) => self.at(arrival, Event::ClientReceives(client, piece)),
                Peer::Store(_) => self.at(arrival, Event::StoreReceives(socket, piece)),
            }
        }
        let taken = self.arrival_at_peer(socket);
        self.at(taken, Event::Input(shard, Input::Transmitted(owner, segment)));
        Ok(())
    }

    // Clients.

    fn add_client(&mut self) {
        let shard = self.random.below(self.cores.len() as u64) as usize;
        let (socket, client) = (SocketId(self.sockets.len()), self.clients.len());
        self.sockets.push(Socket::new(shard, Peer::Client(client), None));
        let random = self.random.fork();
        self.clients.push(Client::new(client as u32, socket, &self.plan, self.topology, random));
        self.send_to_shard(socket, Input::Accepted(socket));
        let delay = self.clients[client].pause(self.now);
        self.after(delay, Event::ClientActs(client));
    }

    fn replace_client(&mut self) {
        if !self.over {
            self.add_client();
        }
    }

    fn client_acts(&mut self, client: usize) {
        let socket = self.clients[client].socket;
        let next = self.clients[client].act(self.step, self.now, self.over, &mut self.history);
        match next {
            Move::Nothing => return,
            Move::Leave => {
                self.sockets[socket.0].closed_by_peer = true;
                self.send_to_shard(socket, Input::Lost(socket));
                self.replace_client();
                return;
            }
            Move::Send(bytes) | Move::StopReading(bytes) => self.client_sends(socket, &bytes),
            Move::SendAndEnd(bytes) => {
                self.client_sends(socket, &bytes);
                self.send_to_shard(socket, Input::End(socket));
            }
        }
        let delay = self.clients[client].pause(self.now);
        self.after(delay, Event::ClientActs(client));
    }

    fn client_sends(&mut self, socket: SocketId, bytes: &[u8]) {
        for piece in pieces(bytes, self.plan.piece_bytes, &mut self.random) {
            self.send_to_shard(socket, Input::Bytes(socket, piece));
        }
    }

    fn client_receives(&mut self, client: usize, bytes: &[u8]) -> Checked {
        if self.clients[client].stage == Stage::Gone {
            return Ok(());
        }
        let allowed = Allowed {
            refusals: !self.plan.is_calm(),
            redirections: self.plan.cluster.is_some(),
            going_around: !self.plan.is_calm()
                || self.plan.sleeps.is_some()
                || self.plan.cluster.is_some_and(|moves| moves.lies > 0),
            down: false,
            overtaken: false,
            lateness: self.plan.sleeps.is_some(),
            throttling: self.plan.quota.is_some(),
            oversized: self.plan.reply_bytes_max.min(self.plan.output_bytes_max) < 300_000,
            stalled: self.plan.cluster.is_some_and(|moves| moves.falls.is_some()),
            early_deadlines: self.plan.has_early_deadlines(),
            few_links: self.plan.private.is_some_and(|private| private.links < MANY_LINKS),
            pause: self.pauses[self.sockets[self.clients[client].socket.0].shard],
            under_way: self.plan.network_delay
                + self.plan.turn_delay
                + self.plan.sleeps.map_or(Duration::ZERO, |sleeps| sleeps.longest),
        };
        self.clients[client].receive(bytes, (self.step, self.now), &mut self.history, allowed)?;
        if let Some(delay) = self.clients[client].pause_after_reply(self.now) {
            self.after(delay, Event::ClientActs(client));
        }
        Ok(())
    }

    fn break_link(&mut self) {
        let Some(apart) = self.plan.private.and_then(|private| private.cuts_apart).filter(|_| !self.over)
        else {
            return;
        };
        let store = self.random.index(self.stores.len());
        if let Some(cut) = self.stores[store].cut_any() {
            // Sometimes nothing tells weir of it: the path between them has gone.
            if self.random.per_mille(200) {
                self.sockets[cut.0].is_severed = true;
            } else {
                self.send_to_shard(cut, Input::Lost(cut));
            }
        }
        let next = apart.mul_f64(self.random.exponential());
        self.after(next, Event::LinkBreaks);
    }

    // Moves of clients.

    fn begin_move(&mut self) {
        let Some(apart) = self.plan.private.and_then(|private| private.moves_apart).filter(|_| !self.over)
        else {
            return;
        };
        let client = self.random.index(self.clients.len());
        self.move_goes_on(client, 0);
        let next = apart.mul_f64(self.random.exponential());
        self.after(next, Event::MoveBegins);
    }

    /// Takes the next step in moving a client to another shard, as the real runtime does: its socket is not
    /// read, its blocking call is ended if it waits in one, and it moves with its state once it has no
    /// request in flight. `steps` counts the earlier steps; after 200 the move is given up.
    fn move_goes_on(&mut self, client: usize, steps: u32) {
        let id = self.clients[client].socket;
        let socket = &self.sockets[id.0];
        let shard = socket.shard;
        let Some(Owner::Client(owner)) = socket.owner.filter(|_| !socket.closed_by_shard) else { return };
        let now = self.clocks();
        let readiness = self.cores[shard].shard.readiness(owner);
        let is_at_rest = !self.sockets[id.0].sending
            && !self.cores[shard].inbox.iter().any(
                |input| matches!(input, Input::Bytes(of, _) | Input::End(of) | Input::Lost(of) if *of == id),
            );
        self.take_room_back(shard, id, now);
        match readiness {
            Readiness::Unfinished | Readiness::Stays => return self.read_again(id),
            _ if self.over || steps > STEPS_MOST => return self.read_again(id),
            Readiness::Waits => {
                let was_detained = std::mem::replace(&mut self.sockets[id.0].detained, true);
                if was_detained && is_at_rest {
                    self.cores[shard].shard.withdraw_waiting(owner, now);
                }
            }
            Readiness::Ready if is_at_rest => return self.hand_over(id, owner, now),
            Readiness::Owed | Readiness::Ready => self.sockets[id.0].detained = true,
        }
        self.plan_turn(shard, self.now);
        let next = Duration::from_micros(self.random.between(100, 5_000));
        self.after(next, Event::MoveGoesOn(client, steps + 1));
    }

    /// Reads a client's socket again, including the bytes that arrived while the client was to move.
    fn read_again(&mut self, socket: SocketId) {
        let known = &mut self.sockets[socket.0];
        if std::mem::take(&mut known.detained) && !known.paused {
            let shard = known.shard;
            for input in self.cores[shard].unread.remove(&socket).unwrap_or_default() {
                self.come_in(shard, input);
            }
        }
    }

    /// Moves a client that has no request in flight to a random shard (core of weir). `id` is its name at
    /// its present one.
    fn hand_over(&mut self, socket: SocketId, id: ClientId, now: Now) {
        let from = self.sockets[socket.0].shard;
        let to = self.random.index(self.cores.len());
        let session = self.cores[from].shard.take_session(id, now);
        self.by_owner.remove(&(from, Owner::Client(id)));
        let unread = self.cores[from].unread.remove(&socket).unwrap_or_default();
        let moved = self.cores[to].shard.handle_client_moved(&session, now);
        let owner = Owner::Client(moved);
        self.by_owner.insert((to, owner), socket);
        let known = &mut self.sockets[socket.0];
        (known.shard, known.owner, known.detained, known.paused) = (to, Some(owner), false, false);
        self.narrate(&format_args!("{socket:?} moves from shard {from} to {to}"));
        if !session.held.is_empty() {
            self.cores[to].shard.handle_client_held(moved, &session, now);
        }
        for input in unread {
            self.come_in(to, input);
        }
        self.plan_turn(from, self.now);
        self.plan_turn(to, self.now);
    }

    // Pools of quotas.

    fn pools_hear(&mut self, report: &Report) {
        let shard = usize::from(report.shard.0);
        let core = &mut self.cores[shard];
        core.spent += report.demands.iter().map(|demand| demand.spent).sum::<i64>();
        core.metered += report.usage.iter().map(|(_, usage)| usage.admitted + usage.cached).sum::<u64>();
        if report.demands.is_empty() {
            return;
        }
        let mut grants = Vec::new();
        self.pools.handle_report(report, self.now, &mut grants);
        let arrival = core.from_pools.arrival(self.now, self.plan.pool_delay, &mut self.random);
        self.at(arrival, Event::Input(shard, Input::Grants(grants)));
    }

    // Maps and slots of a cluster.

    /// Gives the first map of the cluster (owners of slots), if the stores form one, to all cores before the first
    /// client connects, and plans the first events of the cluster.
    fn find_cluster(&mut self) {
        let now = self.clocks();
        let Some((cluster, lookout)) = &self.cluster else { return };
        let (apart, map) = (cluster.moves().apart, lookout.map());
        self.cores.iter_mut().for_each(|core| core.shard.handle_slots(Arc::clone(&map), now));
        let falls = cluster.moves().falls;
        self.after(apart, Event::SlotsGoOn);
        if let Some(falls) = falls {
            self.after(falls.apart, Event::NodesGoOn);
        }
        self.plan_round();
    }

    fn slots_go_on(&mut self) -> Checked {
        let now = self.clocks();
        let mut known: Vec<String> =
            self.history.keys().chain(self.history.counters()).map(str::to_owned).collect();
        if self.plan.private.is_some() {
            known.extend(Ledger::lists());
        }
        let wanted = (!known.is_empty() && !self.over).then(|| slot_of(self.random.pick(&known).as_bytes()));
        let Some((cluster, _)) = &mut self.cluster else { return Ok(()) };
        let news = cluster.go_on(&mut self.stores, wanted, now, &mut self.random);
        let apart = cluster.moves().apart.mul_f64(self.random.exponential());
        let goes_on = !self.over || !cluster.is_at_rest();
        if let Some(news) = &news {
            self.narrate(&news.told);
        }
        if goes_on {
            self.after(apart, Event::SlotsGoOn);
        }
        for node in 0..self.stores.len() {
            self.deliver(node);
        }
        let Some((slot, source)) = news.and_then(|news| news.moved) else { return Ok(()) };
        if let Some((cluster, _)) = &self.cluster {
            let node = usize::from(source);
            for redirected in self.stores[node].redirect_waits(now, (cluster, node))? {
                self.hand_out(redirected);
            }
        }
        let mut slots = vec![false; usize::from(SLOTS)];
        slots[usize::from(slot)] = true;
        self.change(slots, source, None)
    }

    fn narrate(&self, what: &impl std::fmt::Debug) {
        if self.voice == Voice::Narrating {
            eprintln!("       {:>12} {what:?}", self.now.as_nanos());
        }
    }

    /// Records that node `old` has lost slots (those with true) to another owner; `takeover` is the index of
    /// the takeover that caused it, if one did. Sometimes a client that bypasses weir writes at once to a key
    /// in one of these slots.
    fn change(&mut self, slots: Vec<bool>, old: u16, takeover: Option<usize>) -> Checked {
        let Some((cluster, lookout)) = &self.cluster else { return Ok(()) };
        let map = lookout.map();
        // Cores drop their copies of a slot's keys only when they hear of a change, so the current map must
        // still name the old owner.
        let is_news = |key: &&str| {
            let slot = slot_of(key.as_bytes());
            key.starts_with("key:") && slots[usize::from(slot)] && map.owner(slot) == Some(BackendId(old))
        };
        let keys: Vec<String> = self.history.keys().filter(is_news).map(str::to_owned).collect();
        let mut written = Vec::new();
        if !keys.is_empty() && !self.over && self.random.per_mille(700) {
            let key = self.random.pick(&keys).clone();
            // The favourite key is cached for sure, so it tests most.
            let key = if self.plan.has_favourites { keys[0].clone() } else { key };
            let owner = usize::from(cluster.owner(slot_of(key.as_bytes())));
            written.push(self.write_beside(owner, &key, false)?);
        }
        let heard = vec![false; self.cores.len()];
        self.changes.push(Change { slots, old, takeover, written, version: None, heard });
        self.note_map();
        Ok(())
    }

    /// Stores the version of the current map in each change of slots' owners that this map is the first to
    /// contain.
    fn note_map(&mut self) {
        let Some((_, lookout)) = &self.cluster else { return };
        let map = lookout.map();
        for change in self.changes.iter_mut().filter(|change| change.version.is_none()) {
            let old = Some(BackendId(change.old));
            let names_old = (0..SLOTS).any(|slot| change.slots[usize::from(slot)] && map.owner(slot) == old);
            change.version = (!names_old).then_some(map.version());
        }
    }

    /// Records that the core with this index has a map (owners of slots) of this version, and ends changes
    /// of owners that all cores know of.
    fn note_known(&mut self, core: usize, version: u64) {
        for change in &mut self.changes {
            change.heard[core] |= change.version.is_some_and(|least| version >= least);
        }
        let known = self.changes.extract_if(.., |change| change.heard.iter().all(|heard| *heard));
        for change in known {
            for write in change.written {
                self.history.settle(write, Fate::Done(self.step)).expect("it was carried out");
            }
            if let Some(takeover) = change.takeover {
                // Where nodes lie, a request may be sent to the old owner again.
                if self.plan.cluster.is_some_and(|moves| moves.lies == 0) {
                    self.history.know(takeover);
                }
                self.unsettled.push((takeover, change.old));
            }
        }
        let changes = &self.changes;
        for (takeover, _) in
            self.unsettled.extract_if(.., |(_, old)| changes.iter().all(|change| change.old != *old))
        {
            self.history.settle_down(takeover);
        }
    }

    /// Carries out a write that bypasses weir at the store with this index: a SET, or a deletion if
    /// `deletes`. Returns the number of the write in the history.
    fn write_beside(&mut self, store: usize, key: &str, deletes: bool) -> Result<usize, String> {
        let now = self.clocks();
        self.beside += 1;
        let sent = Sent { client: BESIDE, sequence: self.beside, step: self.step };
        let write = if deletes { self.history.delete(sent, key) } else { self.history.write(sent, key) };
        let value = (!deletes).then(|| value(write, BESIDE, key, 0));
        if !deletes {
            self.history.carried_out(Token { write, client: BESIDE, key })?;
        }
        self.history.settle(write, Fate::Unknown)?;
        self.stores[store].write_beside(key.as_bytes(), value.as_deref(), now, self.step);
        self.deliver(store);
        Ok(write)
    }

    /// Sends the messages of the store with this index about changed keys, on the connections that track
    /// them, and its replies to blocking calls that waited.
    fn deliver(&mut self, store: usize) {
        while let Some(delivered) = self.stores[store].poll_delivery() {
            self.hand_out(delivered);
        }
        let planned = self.waits_end[store];
        if let Some(at) =
            self.stores[store].waits_until().filter(|at| planned.is_none_or(|planned| *at < planned))
        {
            self.waits_end[store] = Some(at);
            self.at(at.max(self.now), Event::WaitsEnd(store));
        }
    }

    /// Sends bytes that a store sends at another time than right after a request. Requests received after a
    /// blocking call that waited are carried out then.
    fn hand_out(&mut self, Delivered { socket, answer, resumed }: Delivered) {
        self.send_answer(socket, answer);
        for _ in 0..resumed {
            self.after(Duration::ZERO, Event::StoreActs(socket));
        }
    }

    /// Pauses all clients for a time, or ends all pauses. Each shard (core of weir) hears of it at another time.
    fn pause(&mut self) {
        let ends = self.over || self.random.per_mille(500);
        let asked = if ends {
            ClientsAsked::Unpause(None)
        } else {
            ClientsAsked::Pause(Pause {
                tenant: None,
                until: self.now.after(Duration::from_micros(*self.random.pick(&[300, 3_000, 50_000]))),
                extent: *self.random.pick(&[Paused::Writes, Paused::Writes, Paused::Everything]),
                asker: None,
            })
        };
        for shard in 0..self.cores.len() {
            let delay = self.some_delay();
            self.after(delay, Event::Input(shard, Input::Clients(asked.clone())));
        }
        if !self.over {
            let next = Duration::from_millis(2).mul_f64(self.random.exponential());
            self.after(next, Event::Pause);
        }
    }

    /// Writes or deletes a key that clients know, bypassing weir, and plans the next write of this kind.
    fn write_around(&mut self) -> Checked {
        let Some(around) = self.plan.around.filter(|_| !self.over) else { return Ok(()) };
        let keys: Vec<&str> = self.history.keys().filter(|key| key.starts_with("key:")).collect();
        if !keys.is_empty() {
            let picked = if self.random.per_mille(700) { 0 } else { self.random.below(keys.len() as u64) };
            let key = keys[picked as usize].to_owned();
            let store = usize::from(self.topology.backend_of(slot_of(key.as_bytes())).0);
            let deletes = self.random.per_mille(200);
            if self.random.per_mille(around.cuts)
                && let Some(cut) = self.stores[store].cut_tracker()
                && !around.is_silent
            {
                self.send_to_shard(cut, Input::Lost(cut));
            }
            let write = self.write_beside(store, &key, deletes)?;
            self.after(around.told_within, Event::AroundIsTold(write));
        }
        let next = around.apart.mul_f64(self.random.exponential());
        self.after(next, Event::WritesAround);
        Ok(())
    }

    // Nodes that go away.

    fn life_of(&self, backend: BackendId) -> Life {
        let roles = self.cluster.as_ref().and_then(|(cluster, _)| cluster.roles.as_ref());
        roles.map_or(Life::Well, |roles| roles.life(backend.0))
    }

    /// Makes the replica of the primary with this index carry out the requests that have reached it, if both
    /// work.
    fn replicate(&mut self, primary: u16) {
        let roles = self.cluster.as_ref().and_then(|(cluster, _)| cluster.roles.as_ref());
        let Some(roles) = roles.filter(|roles| roles.life(primary) == Life::Well) else { return };
        let Some(replica) = roles.replica_of(primary).filter(|replica| roles.life(*replica) == Life::Well)
        else {
            return;
        };
        while let Some(done) = self.stores[usize::from(primary)].poll_done(self.now) {
            self.stores[usize::from(replica)].replay(&done);
        }
    }

    fn nodes_go_on(&mut self) -> Checked {
        let Some((cluster, _)) = &mut self.cluster else { return Ok(()) };
        let Some(roles) = &cluster.roles else { return Ok(()) };
        if roles.fall.is_none() {
            if self.over {
                return Ok(());
            }
            let apart = roles.falls.apart;
            cluster.begin_fall(self.now, &mut self.random);
            if cluster.roles.as_ref().is_some_and(|roles| roles.fall.is_none()) {
                self.after(apart / 10, Event::NodesGoOn);
                return Ok(());
            }
        }
        // Requests that have reached the replica by now are kept after the takeover.
        if let Some(fall) = cluster.roles.as_ref().and_then(|roles| roles.fall)
            && fall.next == Step::Goes
        {
            // A core that has not heard that slots have left the node sends it requests for those too, and
            // some may be in flight.
            let mut slots = cluster.slots_had_lately(fall.old);
            for change in self.changes.iter().filter(|change| change.old == fall.old) {
                slots.iter_mut().zip(&change.slots).for_each(|(has, had)| *has |= had);
            }
            // A core that was lied to sends it requests for any slot.
            if cluster.moves().lies > 0 {
                slots.fill(true);
            }
            self.history.begin_fall(slots);
            self.replicate(fall.old);
        }
        let Some((cluster, _)) = &mut self.cluster else { return Ok(()) };
        let Some((fall, after)) = cluster.fall_goes_on(self.now, &mut self.random) else { return Ok(()) };
        self.after(after, Event::NodesGoOn);
        self.narrate(&fall);
        match (fall.next, fall.way) {
            (Step::Goes, Way::Vanished) => self.stores[usize::from(fall.old)].forget_connections(),
            (Step::TakenOver, _) => self.taken_over(fall)?,
            (Step::Goes, Way::Killed) | (Step::Back, Way::Killed | Way::Vanished) => self.cut_off(fall.old),
            (Step::Back, Way::Stopped) => self.wake(),
            (Step::Wiser, _) => self.copy_all(fall.successor, fall.old),
            _ => {}
        }
        Ok(())
    }

    /// Resets all connections of weir to a node that was killed, or that is back.
    fn cut_off(&mut self, node: u16) {
        self.stores[usize::from(node)].forget_connections();
        for socket in (0..self.sockets.len()).map(SocketId) {
            let known = &self.sockets[socket.0];
            if known.peer == Peer::Store(BackendId(node)) && !known.closed_by_shard {
                self.send_to_shard(socket, Input::Lost(socket));
            }
        }
    }

    fn taken_over(&mut self, fall: Fall) -> Checked {
        if fall.way == Way::HandsOver {
            catch_up(&mut self.stores, fall.old, fall.successor);
        }
        let takeover = self.history.takeover();
        for done in self.stores[usize::from(fall.old)].take_log() {
            done.is_lost(&mut self.history, takeover);
        }
        self.history.take_over(fall.way == Way::Stopped);
        let Some((cluster, _)) = &self.cluster else { return Ok(()) };
        let slots = cluster.slots_of(fall.successor);
        self.change(slots, fall.old, Some(takeover))
    }

    /// Lets a stopped node of the cluster continue, which carries out the requests that wait there.
    fn wake(&mut self) {
        let longest = self.plan.cluster.and_then(|moves| moves.falls).map(|falls| falls.deluded_for);
        for socket in std::mem::take(&mut self.stopped) {
            let within = longest.map_or(0, |longest| self.random.below(longest.as_nanos() as u64 * 5 / 4));
            self.after(Duration::from_nanos(within), Event::StoreActs(socket));
        }
    }

    /// Replaces the keys of the node `replica` with those of its new primary.
    fn copy_all(&mut self, primary: u16, replica: u16) {
        let now = self.clocks();
        let [primary, replica] = [primary, replica].map(usize::from);
        if let Ok([primary, replica]) = self.stores.get_disjoint_mut([primary, replica]) {
            replica.copy_of(primary, now);
        }
    }

    fn replica_tells(&mut self, successor: NodeKey) {
        let Some((cluster, lookout)) = &mut self.cluster else { return };
        let again = lookout.replica_told(successor, cluster.replica_says(successor.backend.0), self.now);
        if let Some(pause) = again {
            let delay = self.some_delay();
            self.after(pause + delay, Event::ReplicaTells(successor));
        }
        self.plan_round();
    }

    fn doubted(&mut self, doubt: Doubt) {
        let Some((_, lookout)) = &mut self.cluster else { return };
        for successor in lookout.replicas_of(doubt, self.now) {
            let delay = self.some_delay();
            self.after(delay, Event::ReplicaTells(successor));
        }
        let Some((_, lookout)) = &mut self.cluster else { return };
        let map = lookout.hear(doubt);
        self.tell_slots(Found { map, sure_of: None });
        self.plan_round();
    }

    fn plan_round(&mut self) {
        let Some((_, lookout)) = &mut self.cluster else { return };
        let Some(next) = lookout.next(self.over) else { return };
        let next = next.max(self.now);
        if lookout.due.is_none_or(|due| due > next) {
            lookout.due = Some(next);
            self.at(next, Event::LookOut);
        }
    }

    fn look_out(&mut self) {
        let Some((_, lookout)) = &mut self.cluster else { return };
        if lookout.due.is_some_and(|due| due <= self.now) {
            lookout.due = None;
        }
        for node in lookout.begin(self.now) {
            let waits = matches!(self.life_of(BackendId(node)), Life::Away(Way::Stopped | Way::Vanished));
            let delay = if waits { PATIENCE } else { self.some_delay() };
            self.after(delay, Event::NodeTells(node));
        }
        self.plan_round();
    }

    fn node_tells(&mut self, node: u16) {
        let Some((cluster, lookout)) = &mut self.cluster else { return };
        // A stalled node does not answer.
        let is_silent = self.stores[usize::from(node)].stands_still(self.now)
            || cluster.roles.as_ref().is_some_and(|roles| roles.life(node) != Life::Well);
        let view = (!is_silent).then(|| cluster.view(node, self.now, &mut self.random));
        if let Some(found) = lookout.told(view, self.now) {
            self.tell_slots(found);
            self.plan_round();
        }
    }

    /// Sends a new map of the cluster (owners of slots), or a confirmation of the current one, to every
    /// core, each with a delay.
    fn tell_slots(&mut self, Found { map, sure_of }: Found) {
        self.note_map();
        let longest = self.plan.cluster.map_or(Duration::ZERO, |moves| moves.news_delay);
        for core in 0..self.cores.len() {
            let delay = delay_of_news(longest, &mut self.random);
            let arrival =
                self.cores[core].of_slots.arrival(self.now.after(delay), Duration::ZERO, &mut self.random);
            if let Some(map) = &map {
                self.at(arrival, Event::Input(core, Input::Slots(Arc::clone(map))));
            }
            if let Some(at) = sure_of {
                self.at(arrival, Event::Input(core, Input::SlotsConfirmed(at)));
            }
        }
    }

    // Stores.

    fn store_of(&mut self, socket: SocketId) -> &mut Store {
        let Peer::Store(backend) = self.sockets[socket.0].peer else { unreachable!("a store's socket") };
        &mut self.stores[usize::from(backend.0)]
    }

    fn store_acts(&mut self, socket: SocketId) -> Checked {
        let now = self.clocks();
        let Peer::Store(backend) = self.sockets[socket.0].peer else { unreachable!("a store's socket") };
        match self.life_of(backend) {
            Life::Well => {}
            Life::Away(Way::Stopped) => {
                self.stopped.push(socket);
                return Ok(());
            }
            // A node that is away has no connections.
            Life::Away(_) => return Ok(()),
        }
        let store = &mut self.stores[usize::from(backend.0)];
        let cluster = self.cluster.as_ref().map(|(cluster, _)| (cluster, usize::from(backend.0)));
        let answer = store.carry_out(socket, now, &mut self.history, cluster)?;
        self.replicate(backend.0);
        self.deliver(usize::from(backend.0));
        while let Some(killed) = self.stores[usize::from(backend.0)].poll_killed() {
            self.send_to_shard(killed, Input::Lost(killed));
        }
        if let Some(answer) = answer {
            self.send_answer(socket, answer);
        }
        Ok(())
    }

    /// Sends a store's reply (`answer`) to weir on the connection `socket`, in pieces. After a reply that is
    /// `Broken`, the store drops the connection, and weir sees it end or fail.
    fn send_answer(&mut self, socket: SocketId, answer: StoreAnswer) {
        let (bytes, broken) = match answer {
            StoreAnswer::Reply(bytes) => (bytes, false),
            StoreAnswer::Broken(bytes) => (bytes, true),
        };
        for piece in pieces(&bytes, self.plan.piece_bytes, &mut self.random) {
            self.send_to_shard(socket, Input::Bytes(socket, piece));
        }
        if broken {
            let now = self.now;
            self.store_of(socket).disconnected(socket, now);
            let end = if self.random.per_mille(500) { Input::End(socket) } else { Input::Lost(socket) };
            self.send_to_shard(socket, end);
        }
    }

    // Checks at the end of the run.

    fn check_rest(&self) -> Checked {
        if let Some(unserved) = self.clients.iter().find_map(Client::unserved) {
            return Err(format!("nothing is left to happen, but {unserved}"));
        }
        if self.segments > 0 {
            return Err(format!("{} segments never came back", self.segments));
        }
        let writes = self.plan.hot.versions.under_way();
        if writes > 0 {
            return Err(format!("hot keys are left with {writes} writes that go on for ever"));
        }
        for core in &self.cores {
            let shard = &core.shard;
            let hot = shard.hot_figures();
            if [hot.flights, hot.waiters, hot.writes_under_way] != [0; 3] {
                return Err(format!("shard {} is left with {hot:?}", shard.id().0));
            }
            let left = [
                shard.clients_open(),
                shard.replies_in_flight(),
                shard.gathers_open(),
                shard.requests_abandoned(),
            ];
            if left != [0; 4] {
                return Err(format!(
                    "shard {} is left with {left:?} (clients, owed replies, gathers, requests of clients that left)",
                    shard.id().0
                ));
            }
            let private = shard.private_links();
            if [private.waiting, private.watching] != [0; 2] || shard.owes_orphans() {
                return Err(format!("shard {} is left with {private:?}", shard.id().0));
            }
            if self.plan.quota.is_some() && core.spent != core.metered as i64 {
                return Err(format!(
                    "shard {} took {} from quotas for requests that cost {}",
                    shard.id().0,
                    core.spent,
                    core.metered
                ));
            }
        }
        Ok(())
    }

    /// Checks at the end of the run that the stores contain the acknowledged writes, and possible values of
    /// counters. The error says what is wrong.
    fn check_stores(&mut self) -> Checked {
        let now = self.clocks();
        let reader = Sent { client: u32::MAX, sequence: u64::MAX, step: u64::MAX };
        let keys: Vec<String> = self.history.keys().map(str::to_owned).collect();
        for key in keys.iter().filter(|key| !key.starts_with('{')) {
            let value = self.stored(key, now);
            let found =
                value.as_deref().map(|value| tokens(value).ok_or(format!("{key} holds what nobody wrote")));
            let found = found.transpose()?;
            if key.starts_with("log:") {
                self.history.check_log(reader, key, &found.unwrap_or_default())?;
            } else {
                self.history.check_value(reader, key, found.map(|found| found[0].write))?;
            }
        }
        let counters: Vec<String> = self.history.counters().map(str::to_owned).collect();
        for key in counters {
            let value = self
                .stored(&key, now)
                .map_or(0, |value| String::from_utf8_lossy(&value).parse().unwrap_or(-1));
            let (least, most) = self.history.count_bounds(&key);
            if value < least || value > most {
                return Err(format!("{key} is {value} in the end, not from {least} to {most}"));
            }
        }
        Ok(())
    }

    /// Checks at the end of the run that each pushed element either was received by a client or is in a list, and that
    /// each counter has the increases that took effect. Returns the number of elements of which neither is true; as
    /// many are allowed as may have been popped in calls without a reply. The error says what is wrong.
    fn check_queues(&mut self) -> Result<u64, String> {
        if self.plan.private.is_none() {
            return Ok(0);
        }
        let now = self.clocks();
        let mut lists = BTreeMap::new();
        for list in Ledger::lists() {
            let holders = self.holders_of(slot_of(list.as_bytes()));
            let words = holders.into_iter().flat_map(|store| self.stores[store].list(list.as_bytes(), now));
            lists.insert(list.clone(), words.collect());
        }
        let mut counters = BTreeMap::new();
        for counter in Ledger::counters() {
            let value = self.stored(&counter, now).unwrap_or_default();
            counters.insert(counter, String::from_utf8_lossy(&value).parse().unwrap_or(0));
        }
        let orphans = self.plan.is_calm().then(|| self.counted(Counter::OrphansLost));
        self.history.ledger.check(&Left { lists, counters, orphans })
    }

    fn stored(&mut self, key: &str, now: Now) -> Option<Vec<u8>> {
        let holders = self.holders_of(slot_of(key.as_bytes()));
        holders.into_iter().find_map(|store| self.stores[store].value(key.as_bytes(), now))
    }

    /// Returns the indices of the stores that may hold keys of a slot.
    fn holders_of(&self, slot: u16) -> Vec<usize> {
        match &self.cluster {
            Some((cluster, _)) => cluster.holders_of(slot),
            None => vec![usize::from(self.topology.backend_of(slot).0)],
        }
    }

    // Time.

    fn clocks(&self) -> Now {
        Now { monotonic: self.now, unix_ms: UNIX_MS_AT_START + self.now.as_nanos() / 1_000_000 }
    }

    fn turn_delay(&mut self) -> Duration {
        Duration::from_nanos(self.random.between(1, self.plan.turn_delay.as_nanos() as u64))
    }

    fn some_delay(&mut self) -> Duration {
        Duration::from_nanos(self.random.below(self.plan.network_delay.as_nanos() as u64 + 1))
    }

    fn send_to_shard(&mut self, socket: SocketId, input: Input) {
        let known = &mut self.sockets[socket.0];
        let arrival = known.to_shard.arrival(self.now, self.plan.network_delay, &mut self.random);
        let shard = known.shard;
        self.at(arrival, Event::Input(shard, input));
    }

    fn arrival_at_peer(&mut self, socket: SocketId) -> Timestamp {
        self.sockets[socket.0].to_peer.arrival(self.now, self.plan.network_delay, &mut self.random)
    }

    fn after(&mut self, delay: Duration, event: Event) {
        self.at(self.now.after(delay), event);
    }

    fn at(&mut self, at: Timestamp, event: Event) {
        self.events_made += 1;
        self.events.push(Reverse(Entry { at, number: self.events_made, event }));
    }
}
