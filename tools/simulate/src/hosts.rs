//! Hosts of many cores in virtual time: real shards, the real reconciliation of quotas and exchange with the fleet's
//! store, and embedded engines as stores. Nothing fails here; only figures are of interest.
//!
//! Time passes in ticks. Everything that is sent in one tick arrives in a later one, in the order in which it was sent.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use weir::config::Quotas;
use weir::control::pool::Rhythm;
use weir::control::reconciliation::Reconciliation;
use weir::control::{Exchange, FLEET_PERIOD, FleetQuotas, FleetSettings, Versions};
use weir::policy::fleet::HostId;
use weir::protocol::{RequestDecoder, RequestLimits, Segment, encode};
use weir::routing::{Topology, slot_of};
use weir::shard::{BackendSettings, Batch, Counter, HotSettings, Shard, ShardSettings};
use weir::store::{Engine, EngineLimits, Session};
use weir::values::allowance::{Report, lease_of};
use weir::values::time::Now;
use weir::values::{Action, ClientId, Grant, Owner, ShardId, Timestamp, Usage};

/// Length of a tick, the step in which simulated time advances.
pub(super) const TICK: Duration = Duration::from_micros(100);
/// Number of ticks (of 100 microseconds) until a message to another core of the host, or a new connection,
/// arrives.
const TO_CORE: usize = 1;
/// Number of ticks (of 100 microseconds) until bytes arrive at a store. Its reply is on its way for as long
/// again.
const TO_STORE: usize = 2;
/// Number of ticks (of 100 microseconds) until a message arrives at the control executor of a host (which
/// runs beside its cores), or comes back from it.
const TO_CONTROL: usize = 1;
/// Number of ticks (of 100 microseconds) until a host's commands about quotas arrive at the fleet's store,
/// which the hosts share for their quotas, or the replies come back.
const TO_FLEET: usize = 10;
const UNIX_MS_AT_START: u64 = 1_700_000_000_000;
const STORE_BYTES_MAX: u64 = 1 << 30;
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// The shape of a simulated fleet of equal hosts (running weir) before the same stores.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub hosts: u16,
    /// The number of cores of each host.
    pub cores: u16,
    pub stores: u16,
    pub quotas: Arc<Quotas>,
    /// True if the hosts share their quotas with each other, over a store that they all ask (the fleet's
    /// store).
    pub shares_quotas: bool,
    /// The time for which weir keeps replies of hot keys while stores report changes of keys to it (CLIENT
    /// TRACKING); `None` if stores are not asked to.
    pub tracked_ttl: Option<Duration>,
}

/// Counts of messages since the start of the simulation, over all hosts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    /// Number of reports of cores, about quotas, to the control executors of their hosts.
    pub reports: u64,
    /// Number of entries in the reports of cores to control executors, each about the demand on one quota;
    /// as many grants come back.
    pub demands: u64,
    /// Number of commands at the fleet's store, over which hosts share quotas. `fleet_bytes` is the length
    /// of its replies in bytes.
    pub fleet_commands: u64,
    pub fleet_bytes: u64,
    /// Number of GET requests that the stores have carried out.
    pub store_reads: u64,
}

/// An event that comes in at a shard (core of weir) of a host.
enum Input {
    Connected(Owner),
    Bytes(Owner, Vec<u8>),
    Sent(Owner, Segment),
    Batch(Box<Batch>),
    Grants(Vec<Grant>),
}

enum Event {
    ToCore(usize, Input),
    /// Bytes of requests for a store over a link (connection of a shard to it), by the link's index.
    ToStore(usize, Vec<u8>),
    /// A report of a core to the control executor of the host with this index.
    ToControl(usize, Report),
    /// Commands of the host with this index to the fleet's store, over which hosts share quotas.
    ToFleet(usize, Exchange),
    /// The replies of the fleet's store (over which hosts share quotas): the index of the host, the number of
    /// the exchange, and the bytes.
    FromFleet(usize, u64, Vec<u8>),
}

struct Core {
    shard: Shard,
    inbox: Vec<Input>,
    /// True if the core's last turn had work: another turn follows, as in the real runtime.
    goes_on: bool,
    due: Option<Timestamp>,
}

/// The control executor of a host, which divides quotas among its cores.
struct Control {
    pools: Reconciliation,
    versions: Versions,
    /// The quotas that the host shares with the other hosts, and the time at which its next exchange with
    /// the fleet's store is due; `None` if it shares none.
    fleet: Option<(FleetQuotas, Timestamp)>,
}

/// A connection of a shard to a store.
struct Link {
    core: usize,
    owner: Owner,
    store: usize,
    session: Session,
    decoder: RequestDecoder,
}

pub(super) struct Hosts {
    shape: Shape,
    now: Timestamp,
    cores: Vec<Core>,
    /// The control executors (which divide quotas among cores), one for each host.
    controls: Vec<Control>,
    stores: Vec<Engine>,
    fleet_store: (Engine, Session),
    links: Vec<Link>,
    link_of: HashMap<(usize, Owner), usize>,
    /// Events of the coming ticks, a list for each tick, the next one first.
    later: VecDeque<Vec<Event>>,
    traffic: Traffic,
    /// Usage of each tenant (admitted request units and the like) since the start, by the tenant's id.
    usage: Vec<Usage>,
    /// Ids of the tenants whose usage cores have reported since it was taken last.
    told: Vec<usize>,
    /// Bytes of replies that clients have received since they were taken last.
    replies: Vec<u8>,
}

impl Hosts {
    pub fn new(shape: Shape) -> Self {
        let topology = Topology::new(shape.cores, shape.stores);
        let backends: Arc<[BackendSettings]> = (0..shape.stores)
            .map(|index| BackendSettings { name: format!("store{index}:6379"), credentials: None })
            .collect();
        let (mut cores, mut controls) = (Vec::new(), Vec::new());
        for index in 0..shape.hosts {
            let mut settings = ShardSettings::new(topology, Arc::clone(&backends));
            settings.hot =
                HotSettings { tracked_ttl: shape.tracked_ttl, ..HotSettings::new(topology.backends()) };
            let admission = settings.admission.clone();
            for core in 0..shape.cores {
                let settings = ShardSettings {
                    id: ShardId(core),
                    seed: u64::from(index) << 16 | u64::from(core),
                    ..settings.clone()
                };
                let shard = Shard::new(settings, Arc::clone(&shape.quotas));
                cores.push(Core { shard, inbox: Vec::new(), goes_on: false, due: None });
            }
            let rhythm = Rhythm { period: admission.period, lease: lease_of(admission.period) };
            let mut pools = Reconciliation::new(rhythm);
            let fleet = shape.shares_quotas.then(|| {
                let member = FleetSettings {
                    store: "fleet:6379".to_owned(),
                    namespace: "simulated".to_owned(),
                    host: HostId(u64::from(index) + 1),
                    secret: admission.secret,
                    users_max: 0,
                };
                let mut fleet = FleetQuotas::new(member, &shape.quotas);
                fleet.start(&mut pools, Timestamp::ZERO);
                let first = Timestamp::ZERO.after(fleet.phase());
                (fleet, first)
            });
            controls.push(Control {
                pools,
                versions: Versions::new(Arc::clone(&shape.quotas), None, UNIX_MS_AT_START),
                fleet,
            });
        }
        let store = |seed| Engine::new(EngineLimits::with_memory(STORE_BYTES_MAX), seed);
        let usage = vec![Usage::default(); shape.quotas.len()];
        Self {
            now: Timestamp::ZERO,
            cores,
            controls,
            stores: (0..u64::from(shape.stores)).map(store).collect(),
            fleet_store: (store(u64::MAX), Session::new(u64::MAX)),
            links: Vec::new(),
            link_of: HashMap::new(),
            later: VecDeque::new(),
            traffic: Traffic::default(),
            usage,
            told: Vec::new(),
            replies: Vec::new(),
            shape,
        }
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns the number of cores of all hosts together.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Takes the ids of the tenants whose usage cores have reported since this was called last, and returns
    /// each with its usage since the start.
    pub fn take_usage(&mut self) -> impl Iterator<Item = (usize, Usage)> {
        std::mem::take(&mut self.told).into_iter().map(|tenant| (tenant, self.usage[tenant]))
    }

    /// Returns the sum of a counter over all cores of all hosts.
    pub fn counted(&self, counter: Counter) -> u64 {
        self.cores.iter().map(|core| core.shard.counters().get(counter)).sum()
    }

    /// Returns the bytes of the replies that clients have received since this was called last.
    pub fn take_replies(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.replies)
    }

    /// Connects a client to the core with this index over all hosts. Returns the client's id there.
    pub fn connect_client(&mut self, core: usize) -> ClientId {
        let now = clocks(self.now);
        self.cores[core].shard.handle_client_opened(now)
    }

    /// Sends bytes of a client to its core (an index over all hosts), where they arrive in the coming tick.
    pub fn send(&mut self, core: usize, client: ClientId, bytes: Vec<u8>) {
        self.cores[core].inbox.push(Input::Bytes(Owner::Client(client), bytes));
    }

    /// Writes a value at the store of its key, as a client does that bypasses weir.
    pub fn write_around(&mut self, key: &[u8], value: &[u8]) {
        let store = usize::from(Topology::new(1, self.shape.stores).backend_of(slot_of(key)).0);
        let mut frame = Vec::new();
        encode::request(&mut frame, [&b"SET"[..], key, value].into_iter());
        let mut session = Session::new(u64::MAX);
        carry_out(&mut self.stores[store], &mut session, &mut RequestDecoder::default(), &frame, self.now);
        self.deliver(store);
    }

    /// Lets one tick (100 microseconds) pass: carries out the events that are due, then a turn of each core
    /// with work.
    pub fn tick(&mut self) {
        self.now = self.now.after(TICK);
        for event in self.later.pop_front().unwrap_or_default() {
            self.happen(event);
        }
        for host in 0..self.controls.len() {
            self.ask_fleet(host);
        }
        for core in 0..self.cores.len() {
            let Core { inbox, goes_on, due, .. } = &self.cores[core];
            if *goes_on || !inbox.is_empty() || due.is_some_and(|due| due <= self.now) {
                self.turn(core);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToCore(core, input) => self.cores[core].inbox.push(input),
            Event::ToStore(link, bytes) => self.carry_out(link, &bytes),
            Event::ToControl(host, report) => self.reconcile(host, &report),
            Event::ToFleet(host, exchange) => {
                let (engine, session) = &mut self.fleet_store;
                let mut decoder = RequestDecoder::default();
                let (answer, _) = carry_out(engine, session, &mut decoder, &exchange.request, self.now);
                self.traffic.fleet_commands += exchange.replies as u64;
                self.traffic.fleet_bytes += answer.len() as u64;
                self.send_later(TO_FLEET, Event::FromFleet(host, exchange.number, answer));
            }
            Event::FromFleet(host, number, answer) => {
                let control = &mut self.controls[host];
                if let Some((fleet, _)) = &mut control.fleet {
                    fleet.handle_answer(number, Ok(&answer), self.now, &mut control.pools);
                }
            }
        }
    }

    /// Begins an exchange of the host with this index with the fleet's store, over which hosts share quotas,
    /// if one is due.
    fn ask_fleet(&mut self, host: usize) {
        let Control { pools, fleet: Some((fleet, due)), .. } = &mut self.controls[host] else { return };
        if *due > self.now {
            return;
        }
        *due = due.after(FLEET_PERIOD);
        let exchange = fleet.begin(self.now, pools);
        self.send_later(TO_FLEET, Event::ToFleet(host, exchange));
    }

    /// Counts a core's report of usage and demands at the host with this index, and sends the quotas that
    /// are granted back to the core.
    fn reconcile(&mut self, host: usize, report: &Report) {
        for (tenant, usage) in &report.usage {
            self.usage[usize::from(tenant.0)].add(*usage);
            self.told.push(usize::from(tenant.0));
        }
        let control = &mut self.controls[host];
        if let Some((fleet, _)) = &mut control.fleet {
            fleet.handle_usage(&control.versions, report.version, &report.usage);
        }
        if report.demands.is_empty() {
            return;
        }
        self.traffic.reports += 1;
        self.traffic.demands += report.demands.len() as u64;
        let mut grants = Vec::new();
        control.pools.handle_report(report, self.now, &mut grants);
        let core = self.core_of(host, report.shard);
        self.send_later(TO_CONTROL, Event::ToCore(core, Input::Grants(grants)));
    }

    fn core_of(&self, host: usize, shard: ShardId) -> usize {
        host * usize::from(self.shape.cores) + usize::from(shard.0)
    }

    fn turn(&mut self, core: usize) {
        let now = clocks(self.now);
        let Core { shard, inbox, .. } = &mut self.cores[core];
        let has_work = !inbox.is_empty();
        for input in inbox.drain(..) {
            match input {
                Input::Connected(Owner::Link(connection, generation)) => {
                    shard.handle_link_connected(connection, generation, now);
                }
                Input::Connected(Owner::Client(_)) => unreachable!("shards connect to stores only"),
                Input::Bytes(Owner::Client(client), bytes) => {
                    shard.handle_client_bytes(client, &bytes, now);
                }
                Input::Bytes(Owner::Link(connection, generation), bytes) => {
                    shard.handle_link_bytes(connection, generation, &bytes, now);
                }
                Input::Sent(owner, segment) => shard.handle_transmitted(owner, segment, now),
                Input::Batch(batch) => shard.handle_batch(batch, now),
                Input::Grants(grants) => shard.handle_grants(&grants, now),
            }
        }
        shard.handle_turn_end(now);
        if !has_work {
            shard.handle_quiet();
        }
        self.cores[core].goes_on = has_work;
        self.send_what_is_due(core);
        self.cores[core].due = self.cores[core].shard.poll_deadline();
    }

    /// Takes everything that the shard with index `core` (over all hosts) has for others, and sends it.
    fn send_what_is_due(&mut self, core: usize) {
        let host = core / usize::from(self.shape.cores);
        while let Some(action) = self.cores[core].shard.poll_action() {
            if let Action::Connect { owner, backend } = action {
                let link = self.links.len();
                let session = Session::new(link as u64);
                let store = usize::from(backend.0);
                self.links.push(Link { core, owner, store, session, decoder: RequestDecoder::default() });
                self.link_of.insert((core, owner), link);
                self.send_later(TO_CORE, Event::ToCore(core, Input::Connected(owner)));
            }
        }
        while let Some((owner, segment)) = self.cores[core].shard.poll_transmit() {
            match self.link_of.get(&(core, owner)).copied() {
                Some(link) => {
                    let bytes = segment.bytes().into_owned();
                    self.send_later(TO_STORE, Event::ToStore(link, bytes));
                }
                None => segment.pieces().for_each(|piece| self.replies.extend_from_slice(piece)),
            }
            self.send_later(1, Event::ToCore(core, Input::Sent(owner, segment)));
        }
        while let Some((to, batch)) = self.cores[core].shard.poll_batch() {
            let to = self.core_of(host, to);
            self.send_later(TO_CORE, Event::ToCore(to, Input::Batch(batch)));
        }
        while let Some(report) = self.cores[core].shard.poll_report() {
            self.send_later(TO_CONTROL, Event::ToControl(host, report));
        }
        while self.cores[core].shard.poll_line().is_some() {}
    }

    /// Carries out requests that have come to a store over the link (connection of a shard) with this index,
    /// and sends the replies.
    fn carry_out(&mut self, link: usize, bytes: &[u8]) {
        let Link { core, owner, store, session, decoder } = &mut self.links[link];
        let (core, owner, store) = (*core, *owner, *store);
        let (replies, reads) = carry_out(&mut self.stores[store], session, decoder, bytes, self.now);
        self.traffic.store_reads += reads;
        self.send_later(TO_STORE, Event::ToCore(core, Input::Bytes(owner, replies)));
        self.deliver(store);
    }

    /// Sends the messages of the store with this index about keys that have changed.
    fn deliver(&mut self, store: usize) {
        while let Some(delivery) = self.stores[store].poll_delivery() {
            let Link { core, owner, .. } = &self.links[delivery.session as usize];
            let input = Input::Bytes(*owner, delivery.bytes.to_vec());
            let event = Event::ToCore(*core, input);
            self.send_later(TO_STORE, event);
        }
    }

    fn send_later(&mut self, ticks: usize, event: Event) {
        if self.later.len() < ticks {
            self.later.resize_with(ticks, Vec::new);
        }
        self.later[ticks - 1].push(event);
    }
}

/// Carries out the whole requests among these bytes in the engine of a store. Returns the replies, and how
/// many of the requests were GET.
fn carry_out(
    engine: &mut Engine,
    session: &mut Session,
    decoder: &mut RequestDecoder,
    bytes: &[u8],
    now: Timestamp,
) -> (Vec<u8>, u64) {
    let limits = RequestLimits::trusted(REQUEST_BYTES_MAX);
    let (mut consumed, mut replies, mut reads) = (0, Vec::new(), 0);
    while let Some(request) =
        decoder.next(bytes, &mut consumed, &limits).expect("weir sends well-formed requests")
    {
        reads += u64::from(request.arguments.name() == b"GET");
        engine.execute(session, request.arguments, clocks(now), &mut replies);
    }
    (replies, reads)
}

fn clocks(now: Timestamp) -> Now {
    Now { monotonic: now, unix_ms: UNIX_MS_AT_START + now.as_nanos() / 1_000_000 }
}
