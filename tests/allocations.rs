//! Counts allocations: after warm-up, requests pass through weir's shards without a single one, apart from a few for
//! each report of a core's spending and for each fetch of a hot key. The embedded store counts about the bytes that it
//! allocates.

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
use weir::protocol::{Argument, Arguments, Segment, encode};
use weir::routing::{Topology, slot_of};
use weir::shard::{BackendSettings, Counter, Shard, ShardSettings};
use weir::store::{Engine, EngineLimits, Session};
use weir::values::time::Now;
use weir::values::{Action, ClientId, Demand, Grant, Owner, ShardId, Timestamp, UNIT};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// The bytes that the thread has allocated and not freed.
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

fn count() {
    // While a thread ends, its counter may be gone; allocations then belong to no test.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

fn weigh(allocated: usize, freed: usize) {
    let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() + allocated as i64 - freed as i64));
}

// SAFETY: each call goes to the system's allocator unchanged; counting touches no heap memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        weigh(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`, which is that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        weigh(0, layout.size());
        // SAFETY: as for `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        weigh(size, layout.size());
        // SAFETY: as for `alloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SHARDS: u16 = 2;
const BACKENDS: u16 = 3;
/// The homes of the keys in a client's pipeline, in turn, as (core, store): each core has keys of two stores.
const HOMES: [(u16, u16); 4] = [(0, 0), (1, 2), (0, 1), (1, 1)];
const CLIENTS_PER_SHARD: usize = 4;
const PIPELINE: usize = 16;
const ROUNDS_OF_WARM_UP: u64 = 400;
const REQUESTS: u64 = 100_000;

/// The most allocations per report of a core's spending (one per period, for hundreds of requests): the
/// report's lists, and the queue of requests that wait for the answer.
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
    let lines = [b"id=1 addr=store:1 fd=-1".as_slice(), b"id=1 addr=store:1 fd=-1 tier=critical"];
    bench.greeting = lines.map(bulk).into_iter().chain([b"+OK\r\n".to_vec()]).collect();
    bench.say_all(|_, _| ["QOS", "SET", "DEADLINE", "5000"].map(str::to_owned));
    bench.run();
    assert!(bench.told(Counter::DeadlinesPassedOn) >= REQUESTS);
}

/// The most allocations per fetch of a hot key from its store: the request, the list of waiting clients, and
/// the cached reply.
const ALLOCATIONS_PER_FETCH: u64 = 16;

#[test]
fn answers_from_memory_allocate_nothing() {
    let mut bench = Bench::with(Quotas::trusting(), Pools::Plenty, 10);
    // Every client asks for keys whose home is its own core: a hand-over to another core travels in batches,
    // and one batch per turn may be new.
    bench.requests = (0..bench.requests.len())
        .map(|client| gets(client, &[((client / CLIENTS_PER_SHARD) as u16, 1)]))
        .collect();
    let before = bench.told(Counter::HotHits);
    bench.run();
    let hits = bench.told(Counter::HotHits) - before;
    assert!(hits >= REQUESTS, "{hits} hits");
}

/// Values of each type, of one element and of many, and those that lost nearly all elements: what the embedded store
/// counts is near what it allocates.
#[test]
fn the_embedded_store_counts_about_what_it_allocates() {
    const KEYS: usize = 2_500;
    let list = |word: fn(usize) -> String, count: usize| (0..count).map(word).collect::<Vec<_>>().concat();
    let pairs = |count| list(|number| format!(" {number} member-{number}"), count);
    let names = |count| list(|number| format!(" member-{number}"), count);
    let fields = list(|number| format!(" {number}"), 99);
    // The command lines that make one value, of the key that stands in the place of `#`.
    let cases = [
        "SET # value".to_owned(),
        "RPUSH # item".to_owned(),
        "SADD # member".to_owned(),
        "SADD # 7".to_owned(),
        "HSET # field value".to_owned(),
        "ZADD # 1 member".to_owned(),
        "XADD # 1-1 field value".to_owned(),
        "XADD # 1-1 f v;XGROUP CREATE # g 0;XREADGROUP GROUP g c STREAMS # >".to_owned(),
        format!("RPUSH #{}", names(200)),
        format!("SADD #{}", names(200)),
        format!("HSET #{}", pairs(100)),
        format!("HSET #{}", pairs(600)),
        format!("ZADD #{}", pairs(300)),
        format!("RPUSH #{};LTRIM # 0 0", names(60)),
        format!("HSET #{};HDEL #{fields}", pairs(100)),
        format!("ZADD #{};ZREMRANGEBYRANK # 1 -1", pairs(256)),
        format!("SADD #{};SPOP # 199", names(200)),
    ];
    for case in cases {
        let mut engine = Engine::new(EngineLimits::with_memory(u64::MAX), 7);
        let mut session = Session::new(1);
        let before = BYTES.get();
        for key in 0..KEYS {
            for line in case.split(';') {
                tell(&mut engine, &mut session, &line.replace('#', &format!("key:{key}")));
            }
        }
        let (counted, allocated) = (engine.statistics().bytes_used as f64, (BYTES.get() - before) as f64);
        let begin = &case[..case.len().min(60)];
        let share = counted / allocated;
        assert!((0.8..2.0).contains(&share), "{counted} bytes counted of {allocated} for {begin}");
    }
}

/// Sends a command, whose words are separated by spaces, to an embedded store; an error reply fails the test.
fn tell(engine: &mut Engine, session: &mut Session, line: &str) {
    let (mut frame, mut places) = (Vec::new(), Vec::new());
    for word in line.split(' ') {
        places.push(Argument { start: frame.len() as u32, length: word.len() as u32 });
        frame.extend_from_slice(word.as_bytes());
    }
    let mut reply = Vec::new();
    engine.execute(session, Arguments::new(&frame, &places), at(1), &mut reply);
    assert!(!reply.starts_with(b"-"), "{line}: {}", String::from_utf8_lossy(&reply));
}

fn quotas() -> Quotas {
    Quotas::parse("quotas.toml", LIMITED).expect("a valid file")
}

/// Whether the pools (the parts of the quotas that no core holds) grant anything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pools {
    Plenty,
    Dry,
}

/// Two shards with their clients, and stores that each reply a value of their own to every GET.
struct Bench {
    shards: Vec<Shard>,
    clients: Vec<Vec<ClientId>>,
    /// The pipeline of GETs that each client sends in a round.
    requests: Vec<Vec<u8>>,
    /// The reply of each store to GET.
    values: [Vec<u8>; BACKENDS as usize],
    /// The buffer for the replies to one segment of requests.
    replies: Vec<u8>,
    links: Vec<(usize, Owner, Segment)>,
    /// The backend of each link, by shard and by the link's number.
    backend_of: Vec<[usize; 4 * BACKENDS as usize]>,
    /// The replies of every store to the greeting of a new link, each to one segment of it.
    greeting: Vec<Vec<u8>>,
    pools: Pools,
    grants: Vec<Grant>,
    reports: u64,
    bytes_answered: u64,
    nanos: u64,
}

impl Bench {
    /// Warms up, then checks that a hundred thousand requests allocate nothing beyond the allowance for
    /// reports and fetches. Returns the number of bytes of their replies.
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

    /// Returns the number of fetches of hot keys, whether their reply was kept or not.
    fn fetched(&self) -> u64 {
        self.told(Counter::HotFetched) + self.told(Counter::HotDiscarded)
    }

    /// Makes every client a user of its own (QOS SET USER).
    fn name_users(&mut self) {
        self.say_all(|shard, number| {
            ["QOS", "SET", "USER", &format!("user-{shard}-{number}")].map(str::to_owned)
        });
    }

    /// Sends one command from every client; `said` gives its words by shard and number of the client.
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

    /// Creates a bench in which no key counts as hot, since with so few keys each of them would.
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
        // The first value fits into the slot of a reply that waits for its turn; the longer ones need a
        // buffer.
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
            greeting: vec![b"+OK\r\n".to_vec()],
            pools,
            grants: Vec::with_capacity(64),
            reports: 0,
            bytes_answered: 0,
            nanos: 1_000_000,
        }
    }

    /// Runs a round: every client sends its pipeline and gets all replies.
    fn round(&mut self) {
        self.nanos += 1_000_000;
        let now = at(self.nanos);
        for shard in 0..self.shards.len() {
            for client in 0..self.clients[shard].len() {
                let requests = &self.requests[shard * CLIENTS_PER_SHARD + client];
                self.shards[shard].handle_client_bytes(self.clients[shard][client], requests, now);
            }
        }
        // Four turns: to the other core, out to the stores and in again, back to the first core, out to the
        // clients.
        for _ in 0..4 {
            for shard in 0..self.shards.len() {
                self.shards[shard].handle_turn_end(now);
                self.carry_out(shard, now);
            }
            // Later stores reply first, so their replies wait for that of the first store.
            for backend in [2, 1, 0] {
                self.answer(backend, now);
            }
            self.links.clear();
        }
    }

    fn carry_out(&mut self, shard: usize, now: Now) {
        let mut greeted = Vec::new();
        while let Some(action) = self.shards[shard].poll_action() {
            if let Action::Connect { owner: Owner::Link(link, generation), backend } = action {
                self.backend_of[shard][link.0 as usize] = usize::from(backend.0);
                self.shards[shard].handle_link_connected(link, generation, now);
                greeted.push((Owner::Link(link, generation), 0));
            }
        }
        while let Some((owner, segment)) = self.shards[shard].poll_transmit() {
            let is_greeted = |(own, step): &&mut (Owner, usize)| *own == owner && *step < self.greeting.len();
            if let (Owner::Link(link, generation), Some((_, step))) =
                (owner, greeted.iter_mut().find(is_greeted))
            {
                let reply = &self.greeting[*step];
                *step += 1;
                self.shards[shard].handle_transmitted(owner, segment, now);
                self.shards[shard].handle_link_bytes(link, generation, reply, now);
                continue;
            }
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
            // The replies arrive in two pieces, so that a shard must sometimes keep the beginning of a reply.
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

/// Returns a pipeline of GETs of one client, for keys whose homes (core and store) are `homes` in turn.
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
