//! After warm-up, requests are admitted, refused and settled by the composer without a single allocation.

#![expect(
    unsafe_code,
    reason = "only a global allocator sees every allocation, and implementing one is unsafe"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use weir::config::Quotas;
use weir::control::pool::Rhythm;
use weir::control::reconciliation::Reconciliation;
use weir::protocol::{Segment, encode};
use weir::routing::{Topology, slot_of};
use weir::shard::{AdmissionSettings, BackendSettings, Counter, Shard, ShardSettings};
use weir::values::allowance::lease_of;
use weir::values::time::Now;
use weir::values::{Action, ClientId, Grant, Owner, ShardId, Timestamp};

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
const BACKENDS: u16 = 2;
const CLIENTS_PER_SHARD: usize = 4;
const PIPELINE: usize = 16;
const ROUNDS_OF_WARM_UP: u64 = 400;
const REQUESTS: u64 = 100_000;
const PERIOD: Duration = Duration::from_millis(10);

#[test]
fn a_hundred_thousand_gets_allocate_nothing() {
    assert_nothing_is_allocated(&mut Bench::new(Quotas::trusting()), Bench::replies_sent);
}

#[test]
fn nor_do_those_that_are_paid_from_three_buckets() {
    let text = "[global]\nru_per_second = 1_000_000_000\n\
                [default]\nru_per_second = 1_000_000_000\nuser_ru_per_second = 1_000_000_000";
    let mut bench = Bench::new(Quotas::parse("quotas.toml", text).expect("well formed"));
    bench.speak_for_users();
    assert_nothing_is_allocated(&mut bench, Bench::replies_sent);
    // What was taken is an estimate between the two values that are read, so each was put right.
    let taken = bench.counted(Counter::RequestsForwarded);
    assert!(taken >= REQUESTS, "{taken} were admitted and settled");
}

#[test]
fn nor_do_refusals() {
    let text = "[global]\nru_per_second = 1_000_000_000\n\
                [default]\nru_per_second = 1_000_000_000\nuser_ru_per_second = 1";
    let mut bench = Bench::new(Quotas::parse("quotas.toml", text).expect("well formed"));
    bench.speak_for_users();
    // One of these costs the users what comes in for several seconds.
    let costly = vec![set(&[b'v'; 8 * 1024]); bench.requests.len()];
    let cheap = std::mem::replace(&mut bench.requests, costly);
    bench.round();
    bench.requests = cheap;
    assert_nothing_is_allocated(&mut bench, |bench| bench.counted(Counter::RefusedThrottled));
}

/// Runs until so many more of what is to be counted have happened.
fn assert_nothing_is_allocated(bench: &mut Bench, done: impl Fn(&Bench) -> u64) {
    for _ in 0..ROUNDS_OF_WARM_UP {
        bench.round();
    }
    let (wanted, started) = (done(bench) + REQUESTS, bench.nanos);
    let (allocated, reporting, reports) = (ALLOCATIONS.get(), bench.allocated_for_reports, bench.reports);
    while done(bench) < wanted {
        bench.round();
        assert!(bench.nanos - started < 60_000_000_000, "{} of {wanted} in a minute", done(bench));
    }
    let allocated = ALLOCATIONS.get() - allocated;
    let for_reports = bench.allocated_for_reports - reporting;
    assert_eq!(allocated - for_reports, 0, "allocations in {REQUESTS} requests");
    // Reports are made once per period, however many requests there were.
    let periods = (bench.nanos - started).div_ceil(PERIOD.as_nanos() as u64) + 1;
    let reports = bench.reports - reports;
    assert!(reports <= u64::from(SHARDS) * periods, "{reports} reports in {periods} periods");
}

/// Shards, their clients, and stores that know one value each.
struct Bench {
    shards: Vec<Shard>,
    clients: Vec<Vec<ClientId>>,
    /// What each client sends in a round; different ones reach stores and cores in different orders.
    requests: Vec<Vec<u8>>,
    /// What each store answers, and that many times over.
    values: [Vec<u8>; 2],
    replies: [Vec<u8>; 2],
    links: Vec<(usize, Owner, Segment)>,
    /// The backend of each link, by shard and link.
    backend_of: Vec<[usize; 8]>,
    pools: Reconciliation,
    grants: Vec<Grant>,
    reports: u64,
    /// What telling the pools and hearing from them took: that happens once per period and not for each request.
    allocated_for_reports: u64,
    bytes_answered: u64,
    nanos: u64,
}

impl Bench {
    fn new(quotas: Quotas) -> Self {
        let topology = Topology::new(SHARDS, BACKENDS);
        let backends: Arc<[BackendSettings]> = (0..BACKENDS)
            .map(|index| BackendSettings { name: format!("store{index}:6379"), credentials: None })
            .collect();
        let settings = |id| ShardSettings {
            id: ShardId(id),
            topology,
            backends: Arc::clone(&backends),
            links_per_backend: 1,
            request_bytes_max: 1 << 20,
            reply_bytes_max: 1 << 20,
            output_bytes_max: 1 << 20,
            idle_timeout: Some(Duration::from_secs(60)),
            send_timeout: Duration::from_secs(30),
            reply_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(1),
            seed: 1,
            admission: AdmissionSettings { period: PERIOD, ..AdmissionSettings::default() },
        };
        let quotas = Arc::new(quotas);
        let mut shards: Vec<Shard> =
            (0..SHARDS).map(|id| Shard::new(settings(id), Arc::clone(&quotas))).collect();
        let rhythm = Rhythm { cores: SHARDS, period: PERIOD, lease: lease_of(PERIOD) };
        let now = at(1);
        let clients = shards
            .iter_mut()
            .map(|shard| (0..CLIENTS_PER_SHARD).map(|_| shard.handle_client_opened(now)).collect())
            .collect();
        // One fits where it waits for its turn, the other needs a buffer.
        let values = [bulk(b"short"), bulk(&[b'v'; 64])];
        let replies = [0, 1].map(|backend| values[backend].repeat(10_000));
        Self {
            shards,
            clients,
            requests: (0..CLIENTS_PER_SHARD * usize::from(SHARDS)).map(gets).collect(),
            values,
            replies,
            links: Vec::with_capacity(64),
            backend_of: vec![[0; 8]; usize::from(SHARDS)],
            pools: Reconciliation::new(rhythm),
            grants: Vec::with_capacity(64),
            reports: 0,
            allocated_for_reports: 0,
            bytes_answered: 0,
            nanos: 1_000_000,
        }
    }

    /// From now on each client's requests are those of a user of its own.
    fn speak_for_users(&mut self) {
        let now = at(self.nanos);
        for (index, shard) in self.shards.iter_mut().enumerate() {
            for client in &self.clients[index] {
                let mut request = Vec::new();
                let user = format!("user:{index}:{}", client.index);
                let words: [&[u8]; 4] = [b"QOS", b"SET", b"USER", user.as_bytes()];
                encode::request(&mut request, words.into_iter());
                shard.handle_client_bytes(*client, &request, now);
            }
        }
    }

    /// At least so many requests were answered with a value.
    fn replies_sent(&self) -> u64 {
        self.bytes_answered / self.values[1].len() as u64
    }

    fn counted(&self, counter: Counter) -> u64 {
        self.shards.iter().map(|shard| shard.counters().get(counter)).sum()
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
                while self.end_turn(shard, now) {}
                self.carry_out(shard, now);
            }
            // The second store is the quicker one, so its replies wait for the first one's.
            for backend in [1, 0] {
                self.answer(backend, now);
            }
            self.links.clear();
        }
    }

    /// True if there was a report, which the pools have answered.
    fn end_turn(&mut self, shard: usize, now: Now) -> bool {
        let (allocated, reports) = (ALLOCATIONS.get(), self.reports);
        self.shards[shard].handle_turn_end(now);
        while let Some(report) = self.shards[shard].poll_report() {
            self.reports += 1;
            if !report.demands.is_empty() {
                self.grants.clear();
                self.pools.handle_report(&report, now.monotonic, &mut self.grants);
                self.shards[shard].handle_grants(&self.grants, now);
            }
        }
        let reported = self.reports > reports;
        if reported {
            self.allocated_for_reports += ALLOCATIONS.get() - allocated;
        }
        reported
    }

    fn carry_out(&mut self, shard: usize, now: Now) {
        while let Some(action) = self.shards[shard].poll_action() {
            if let Action::Connect { owner: Owner::Link(link, generation), backend } = action {
                self.backend_of[shard][link.0 as usize] = usize::from(backend.0);
                self.shards[shard].handle_link_connected(link, generation);
            }
        }
        while let Some((owner, segment)) = self.shards[shard].poll_transmit() {
            match owner {
                Owner::Link(..) => self.links.push((shard, owner, segment)),
                Owner::Client(_) => {
                    self.bytes_answered += segment.bytes().len() as u64;
                    self.shards[shard].handle_transmitted(owner, segment, now);
                }
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
            let requests = segment.bytes().split(|byte| *byte == b'*').count() - 1;
            self.shards[shard].handle_transmitted(owner, segment, now);
            let replies = &self.replies[backend][..requests * self.values[backend].len()];
            // Cut, so that the beginning of a reply has to be kept now and then.
            let (first, second) = replies.split_at(replies.len() / 2);
            self.shards[shard].handle_link_bytes(link, generation, first, now);
            self.shards[shard].handle_link_bytes(link, generation, second, now);
        }
    }
}

/// A pipeline of one client: half of its keys live on each store, and on each core.
fn gets(client: usize) -> Vec<u8> {
    let topology = Topology::new(SHARDS, BACKENDS);
    let mut bytes = Vec::new();
    for wanted in 0..PIPELINE {
        let key = (0..100_000)
            .map(|number| format!("key:{client}:{number}"))
            .find(|key| {
                let slot = slot_of(key.as_bytes());
                let (home, backend) =
                    (usize::from(topology.home_of(slot).0), usize::from(topology.backend_of(slot).0));
                (home, backend) == (wanted % 2, wanted / 2 % 2)
            })
            .expect("some key lives there");
        encode::request(&mut bytes, [b"GET", key.as_bytes()].into_iter());
    }
    bytes
}

fn set(value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode::request(&mut bytes, [b"SET".as_slice(), b"key", value].into_iter());
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
