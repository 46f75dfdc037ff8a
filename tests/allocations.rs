//! After warm-up, requests pass through the pipeline without a single allocation.

#![expect(
    unsafe_code,
    reason = "only a global allocator sees every allocation, and implementing one is unsafe"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use weir::config::Quotas;
use weir::policy::hot_keys::HotSettings as Detection;
use weir::protocol::{Segment, encode};
use weir::routing::{Topology, slot_of};
use weir::shard::{BackendSettings, Counter, Shard, ShardSettings};
use weir::values::time::Now;
use weir::values::{Action, ClientId, Demand, Grant, Owner, ShardId, Timestamp, UNIT};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // The thread may be ending; what it allocates then is not asked for.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every call is handed to the system's allocator as it came; counting touches no memory of the heap.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SHARDS: u16 = 2;
const BACKENDS: u16 = 3;
/// Which keys a pipeline asks for in turn, as core and store: ranges of slots meet in these ways.
const HOMES: [(u16, u16); 4] = [(0, 0), (1, 2), (0, 1), (1, 1)];
const CLIENTS_PER_SHARD: usize = 4;
const PIPELINE: usize = 16;
const ROUNDS_OF_WARM_UP: u64 = 400;
const REQUESTS: u64 = 100_000;

/// What one report of a core's spending may allocate, once per period for hundreds of requests: its lists, and what
/// requests that wait for the answer are set aside in.
const ALLOCATIONS_PER_REPORT: u64 = 16;

const LIMITED: &str = "
    [global]
    ru_per_second = 1_000_000
    [default]
    ru_per_second = 100_000
    user_ru_per_second = 10_000
";

#[test]
fn a_hundred_thousand_gets_allocate_nothing() {
    let mut bench = Bench::new(Quotas::trusting(), Pools::Plenty);
    let answered = bench.run();
    assert!(answered >= REQUESTS * bench.values[0].len() as u64, "all were answered");
}

#[test]
fn admission_under_three_limits_and_settlement_allocate_nothing() {
    let mut bench = Bench::new(quotas(), Pools::Plenty);
    bench.name_users();
    let answered = bench.run();
    assert!(answered >= REQUESTS * bench.values[0].len() as u64, "all were answered");
    assert!(bench.reports > 100, "{} reports", bench.reports);
}

#[test]
fn refusals_allocate_nothing() {
    let mut bench = Bench::new(quotas(), Pools::Dry);
    bench.name_users();
    let answered = bench.run();
    let refused = bench.told(Counter::RefusedThrottled);
    assert!(refused >= REQUESTS && answered >= REQUESTS * 60, "{refused} refusals, {answered} bytes");
}

#[test]
fn deadlines_that_are_passed_on_allocate_nothing() {
    let mut bench = Bench::new(Quotas::trusting(), Pools::Plenty);
    bench.greeting = [bulk(b"id=1 addr=store:1 tier=critical"), b"+OK\r\n".to_vec()].concat();
    bench.say_all(|_, _| ["QOS", "SET", "DEADLINE", "5000"].map(str::to_owned));
    bench.run();
    assert!(bench.told(Counter::DeadlinesPassedOn) >= REQUESTS);
}

/// What a fetch of a hot key may allocate: what asks for it, who waits, and what is kept.
const ALLOCATIONS_PER_FETCH: u64 = 16;

#[test]
fn answers_from_memory_allocate_nothing() {
    let mut bench = Bench::with(Quotas::trusting(), Pools::Plenty, 10);
    // Each at home where it is asked for: what is handed over travels in batches, of which one may be new in a turn.
    bench.requests = (0..bench.requests.len())
        .map(|client| gets(client, &[((client / CLIENTS_PER_SHARD) as u16, 1)]))
        .collect();
    let before = bench.told(Counter::HotHits);
    bench.run();
    let hits = bench.told(Counter::HotHits) - before;
    assert!(hits >= REQUESTS, "{hits} hits");
}

fn quotas() -> Quotas {
    Quotas::parse("quotas.toml", LIMITED).expect("a valid file")
}

/// What the pools of quotas have to give.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pools {
    Plenty,
    Dry,
}

/// Shards, their clients, and stores that know one value each.
struct Bench {
    shards: Vec<Shard>,
    clients: Vec<Vec<ClientId>>,
    /// What each client sends in a round; different ones reach stores and cores in different orders.
    requests: Vec<Vec<u8>>,
    /// What each store answers.
    values: [Vec<u8>; BACKENDS as usize],
    /// Replies of one to several requests.
    replies: Vec<u8>,
    links: Vec<(usize, Owner, Segment)>,
    /// The backend of each link, by shard and link.
    backend_of: Vec<[usize; 4 * BACKENDS as usize]>,
    /// What stores answer to the greeting.
    greeting: Vec<u8>,
    pools: Pools,
    grants: Vec<Grant>,
    reports: u64,
    bytes_answered: u64,
    nanos: u64,
}

impl Bench {
    /// Warms up, then sees to it that a hundred thousand requests allocate nothing but what reports do. How many bytes
    /// they were answered with.
    fn run(&mut self) -> u64 {
        for _ in 0..ROUNDS_OF_WARM_UP {
            self.round();
        }
        let (answered, allocated, reports) = (self.bytes_answered, ALLOCATIONS.get(), self.reports);
        let fetched = self.fetched();
        let per_round = (usize::from(SHARDS) * CLIENTS_PER_SHARD * PIPELINE) as u64;
        for _ in 0..REQUESTS.div_ceil(per_round) {
            self.round();
        }
        let (allocated, reports) = (ALLOCATIONS.get() - allocated, self.reports - reports);
        let fetched = self.fetched() - fetched;
        let allowed = reports * ALLOCATIONS_PER_REPORT + fetched * ALLOCATIONS_PER_FETCH;
        assert!(
            allocated <= allowed,
            "{allocated} allocations in {REQUESTS} requests, {reports} reports and {fetched} fetches"
        );
        self.bytes_answered - answered
    }

    fn told(&self, counter: Counter) -> u64 {
        self.shards.iter().map(|shard| shard.counters().get(counter)).sum()
    }

    /// What was asked for on behalf of all who ask for hot keys.
    fn fetched(&self) -> u64 {
        self.told(Counter::HotFetched) + self.told(Counter::HotDiscarded)
    }

    /// Every client is a user of its own.
    fn name_users(&mut self) {
        self.say_all(|shard, number| {
            ["QOS", "SET", "USER", &format!("user-{shard}-{number}")].map(str::to_owned)
        });
    }

    /// Every client says something once.
    fn say_all(&mut self, said: impl Fn(usize, usize) -> [String; 4]) {
        let now = at(self.nanos);
        for shard in 0..self.shards.len() {
            for (number, client) in self.clients[shard].clone().into_iter().enumerate() {
                let mut words = Vec::new();
                encode::request(&mut words, said(shard, number).iter().map(String::as_bytes));
                self.shards[shard].handle_client_bytes(client, &words, now);
            }
        }
    }

    /// No key is hot: there are so few of them that each would be.
    fn new(quotas: Quotas, pools: Pools) -> Self {
        Self::with(quotas, pools, u64::MAX)
    }

    fn with(quotas: Quotas, pools: Pools, hot_from: u64) -> Self {
        let quotas = Arc::new(quotas);
        let topology = Topology::new(SHARDS, BACKENDS);
        let backends: Arc<[BackendSettings]> = (0..BACKENDS)
            .map(|index| BackendSettings { name: format!("store{index}:6379"), credentials: None })
            .collect();
        let mut common = ShardSettings::new(topology, backends);
        common.hot.detection =
            Detection { least_per_second: hot_from, least_share_per_mille: 0, ..common.hot.detection };
        common.idle_timeout = Some(Duration::from_secs(60));
        let settings = |id| ShardSettings { id: ShardId(id), ..common.clone() };
        let mut shards: Vec<Shard> =
            (0..SHARDS).map(|id| Shard::new(settings(id), Arc::clone(&quotas))).collect();
        let now = at(1);
        let clients = shards
            .iter_mut()
            .map(|shard| (0..CLIENTS_PER_SHARD).map(|_| shard.handle_client_opened(now)).collect())
            .collect();
        // One fits where it waits for its turn, the others need a buffer.
        let values = [bulk(b"short"), bulk(&[b'v'; 64]), bulk(&[b'w'; 80])];
        Self {
            shards,
            clients,
            requests: (0..CLIENTS_PER_SHARD * usize::from(SHARDS))
                .map(|client| gets(client, &HOMES))
                .collect(),
            values,
            replies: Vec::with_capacity(1 << 20),
            links: Vec::with_capacity(64),
            backend_of: vec![[0; 4 * BACKENDS as usize]; usize::from(SHARDS)],
            greeting: b"+OK\r\n".to_vec(),
            pools,
            grants: Vec::with_capacity(64),
            reports: 0,
            bytes_answered: 0,
            nanos: 1_000_000,
        }
    }

    /// Every client sends a pipeline of requests and gets all its replies.
    fn round(&mut self) {
        self.nanos += 1_000_000;
        let now = at(self.nanos);
        for shard in 0..self.shards.len() {
            for client in 0..self.clients[shard].len() {
                let requests = &self.requests[shard * CLIENTS_PER_SHARD + client];
                self.shards[shard].handle_client_bytes(self.clients[shard][client], requests, now);
            }
        }
        // Over to the other core, out to the stores, in from the stores, back to the other core, out to the clients.
        for _ in 0..4 {
            for shard in 0..self.shards.len() {
                self.shards[shard].handle_turn_end(now);
                self.carry_out(shard, now);
            }
            // The later stores are quicker, so their replies wait for the first one's.
            for backend in [2, 1, 0] {
                self.answer(backend, now);
            }
            self.links.clear();
        }
    }

    fn carry_out(&mut self, shard: usize, now: Now) {
        while let Some(action) = self.shards[shard].poll_action() {
            if let Action::Connect { owner: Owner::Link(link, generation), backend } = action {
                self.backend_of[shard][link.0 as usize] = usize::from(backend.0);
                self.shards[shard].handle_link_connected(link, generation, now);
                self.shards[shard].handle_link_bytes(link, generation, &self.greeting, now);
            }
        }
        while let Some((owner, segment)) = self.shards[shard].poll_transmit() {
            match owner {
                Owner::Link(..) => self.links.push((shard, owner, segment)),
                Owner::Client(_) => {
                    self.bytes_answered += segment.len() as u64;
                    self.shards[shard].handle_transmitted(owner, segment, now);
                }
            }
        }
        while let Some(report) = self.shards[shard].poll_report() {
            self.reports += 1;
            self.grants.clear();
            self.grants.extend(report.demands.iter().map(|demand| self.pools.grant(demand, now)));
            if !report.demands.is_empty() {
                self.shards[shard].handle_grants(&self.grants, now);
            }
        }
        while let Some((to, batch)) = self.shards[shard].poll_batch() {
            self.shards[usize::from(to.0)].handle_batch(batch, now);
        }
    }

    fn answer(&mut self, backend: usize, now: Now) {
        let mut at = 0;
        while at < self.links.len() {
            let (shard, owner, _) = &self.links[at];
            let (shard, Owner::Link(link, generation)) = (*shard, *owner) else { unreachable!("only links") };
            if self.backend_of[shard][link.0 as usize] != backend {
                at += 1;
                continue;
            }
            let (_, owner, segment) = self.links.swap_remove(at);
            self.replies.clear();
            for request in segment.bytes().split(|byte| *byte == b'*').skip(1) {
                let is_expiry = request.starts_with(b"2\r\n$4\r\nPTTL");
                self.replies.extend_from_slice(if is_expiry { b":-1\r\n" } else { &self.values[backend] });
            }
            self.shards[shard].handle_transmitted(owner, segment, now);
            let replies = self.replies.as_slice();
            // Cut, so that the beginning of a reply has to be kept now and then.
            let (first, second) = replies.split_at(replies.len() / 2);
            self.shards[shard].handle_link_bytes(link, generation, first, now);
            self.shards[shard].handle_link_bytes(link, generation, second, now);
        }
    }
}

impl Pools {
    fn grant(self, demand: &Demand, now: Now) -> Grant {
        let plenty = self == Self::Plenty;
        let given = if plenty { 1_000 * UNIT as i64 } else { 0 };
        Grant {
            bucket: demand.bucket,
            amount: demand.spent.max(0) + given,
            holds: given as u64,
            level: 0,
            at: now.monotonic,
            share: 1 << 15,
            part: weir::values::Part::WHOLE,
            dry_from: (!plenty).then_some(0),
        }
    }
}

/// A pipeline of one client: half of its keys live on each core, and each core has two stores.
fn gets(client: usize, homes: &[(u16, u16)]) -> Vec<u8> {
    let topology = Topology::new(SHARDS, BACKENDS);
    let mut bytes = Vec::new();
    for wanted in 0..PIPELINE {
        let key = (0..100_000)
            .map(|number| format!("key:{client}:{number}"))
            .find(|key| {
                let slot = slot_of(key.as_bytes());
                (topology.home_of(slot).0, topology.backend_of(slot).0) == homes[wanted % homes.len()]
            })
            .expect("some key lives there");
        encode::request(&mut bytes, [b"GET", key.as_bytes()].into_iter());
    }
    bytes
}

fn bulk(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode::bulk(&mut out, value);
    out
}

fn at(nanos: u64) -> Now {
    Now { monotonic: Timestamp::from_nanos(nanos), unix_ms: 1_700_000_000_000 + nanos / 1_000_000 }
}
