//! Simulation of one quota over 1 to 64 cores in virtual time, with random traffic: admission never exceeds
//! the quota, and the whole quota can be used.
//!
//! The bound is the promise itself: in any stretch of time, admitted <= burst + rate * time + rate * period +
//! cores * largest cost.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use weir::control::pool::Rhythm;
use weir::control::reconciliation::Reconciliation;
use weir::policy::slice::{Rules, Slice, Verdict};
use weir::values::allowance::Report;
use weir::values::{BucketId, Capacity, Demand, Grant, Price, Random, ShardId, Timestamp, UNIT};

const PERIOD: Duration = Duration::from_millis(10);
const LEASE: Duration = Duration::from_millis(50);
const BUCKET: BucketId = BucketId(7);

#[derive(Clone, Debug)]
struct Case {
    cores: u64,
    ru_per_second: u64,
    /// The burst, in milliseconds of the quota's rate.
    burst_ms: u64,
    /// The largest cost of a request, in hundredths of a request unit.
    cost_max: u64,
    /// The offered load, in hundredths of the quota's rate.
    load: u64,
    /// The number of cores at which requests arrive at a time.
    busy_cores: u64,
    /// The interval in milliseconds after which requests arrive at other cores.
    shift_ms: u64,
    /// The upper bound of the random part of a message's delay, in microseconds.
    delay_max: u64,
    /// Start and end, in milliseconds, of the time in which no report reaches the control executor (which divides the
    /// quota among cores); these reports arrive at its end.
    stall_ms: (u64, u64),
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let quota = |cores: u64| {
        prop_oneof![
            Just(1),
            Just((cores - 1).max(1)),
            Just(cores),
            Just(cores + 1),
            Just(1_000_u64),
            Just(100_000)
        ]
    };
    (1_u64..=64).prop_flat_map(move |cores| {
        (
            (Just(cores), quota(cores), prop_oneof![Just(1_000_u64), 100_u64..=3_000], 1_u64..=64),
            (prop_oneof![Just(100_u64), 1_u64..=2_000], 50_u64..=1_500, 20_u64..=1_000, 20_u64..=5_000),
            any::<u64>(),
        )
            .prop_map(
                |((cores, ru_per_second, burst_ms, busy), (cost_max, load, shift_ms, delay_max), seed)| {
                    let busy_cores = busy.min(cores);
                    Case {
                        cores,
                        ru_per_second,
                        burst_ms,
                        cost_max,
                        load,
                        busy_cores,
                        shift_ms,
                        delay_max,
                        stall_ms: (0, 0),
                        seed,
                    }
                },
            )
    })
}

enum Event {
    Arrival,
    Tick(usize),
    Reported(Report),
    Granted(usize, Vec<Grant>),
}

struct Core {
    slice: Slice,
    listed: bool,
    asked: bool,
    waiting: VecDeque<u64>,
    /// The times of the core's reports without an answer, in microseconds.
    unanswered: VecDeque<u64>,
}

struct World {
    case: Case,
    capacity: Capacity,
    random: Random,
    cores: Vec<Core>,
    control: Reconciliation,
    /// Events in order of time (microseconds) and number. Messages in one direction of a core keep their
    /// order.
    events: std::collections::BTreeMap<(u64, u64), Event>,
    sent: u64,
    arrives_last: Vec<[u64; 2]>,
    now: u64,
    admitted: u64,
    /// The time of the first request that arrives three periods or more after the first refusal, and the micro-units
    /// admitted until then.
    dry_since: Option<(u64, u64)>,
    dry_at: Option<u64>,
    last_arrival: u64,
    /// The lowest value so far of the micro-units admitted minus those that the quota's rate has yielded since the
    /// start: the worst stretch of time starts there.
    lowest: i64,
    worst: i64,
    largest: u64,
}

impl World {
    fn new(case: &Case) -> Self {
        let burst = (case.ru_per_second * case.burst_ms * 1_000).max(1);
        let capacity = Capacity::new(case.ru_per_second, burst);
        let core = || Core {
            slice: Slice::untouched(Timestamp::ZERO),
            listed: false,
            asked: false,
            waiting: VecDeque::new(),
            unanswered: VecDeque::new(),
        };
        Self {
            capacity,
            random: Random::new(case.seed),
            cores: std::iter::repeat_with(core).take(case.cores as usize).collect(),
            control: Reconciliation::new(Rhythm { period: PERIOD, lease: LEASE }),
            events: std::collections::BTreeMap::new(),
            sent: 0,
            arrives_last: vec![[0; 2]; case.cores as usize],
            now: 0,
            admitted: 0,
            dry_since: None,
            dry_at: None,
            last_arrival: 0,
            lowest: 0,
            worst: 0,
            largest: 0,
            case: case.clone(),
        }
    }

    fn at(&self) -> Timestamp {
        Timestamp::from_nanos(self.now * 1_000)
    }

    fn rules(&self, core: usize) -> Rules {
        let oldest = self.cores[core].unanswered.front();
        Rules {
            period: PERIOD,
            lease: LEASE,
            silent: oldest.is_some_and(|sent| sent + LEASE.as_micros() as u64 <= self.now),
            even_share: 65_536 / self.case.cores as u32,
        }
    }

    fn schedule(&mut self, micros: u64, event: Event) {
        self.sent += 1;
        self.events.insert((micros, self.sent), event);
    }

    fn deliver(&mut self, core: usize, way: usize, event: Event) {
        let mut arrives = self.now + 5 + self.random.below(self.case.delay_max);
        let (from, to) = self.case.stall_ms;
        if way == 0 && (from * 1_000..to * 1_000).contains(&arrives) {
            arrives = to * 1_000;
        }
        let last = &mut self.arrives_last[core][way];
        *last = arrives.max(*last);
        let at = *last;
        self.schedule(at, event);
    }

    fn cost(&mut self) -> u64 {
        (1 + self.random.below(self.case.cost_max)) * UNIT / 100
    }

    fn run(&mut self, requests: u64) {
        self.schedule(0, Event::Arrival);
        let mut left = requests;
        while let Some(((micros, _), event)) = self.events.pop_first() {
            self.now = micros;
            match event {
                Event::Arrival => {
                    self.last_arrival = micros;
                    let shift = micros / 1_000 / self.case.shift_ms * 13;
                    let core = (self.random.below(self.case.busy_cores) + shift) % self.case.cores;
                    let cost = self.cost();
                    self.arrive(core as usize, cost);
                    left -= 1;
                    if left > 0 {
                        // The mean gap between arrivals makes the load that the case asks for.
                        let mean_cost = (1 + self.case.cost_max) * UNIT / 200;
                        let gap = mean_cost * 100 / (self.case.ru_per_second * self.case.load).max(1);
                        let next = micros + self.random.below(2 * gap + 1);
                        self.schedule(next, Event::Arrival);
                    }
                }
                Event::Tick(core) => self.tick(core),
                Event::Reported(report) => {
                    let core = usize::from(report.shard.0);
                    let mut grants = Vec::new();
                    self.control.handle_report(&report, self.at(), &mut grants);
                    self.deliver(core, 1, Event::Granted(core, grants));
                }
                Event::Granted(core, grants) => {
                    grants.iter().for_each(|grant| self.cores[core].slice.handle_grant(grant));
                    self.cores[core].asked = false;
                    self.cores[core].unanswered.pop_front();
                    for cost in std::mem::take(&mut self.cores[core].waiting) {
                        self.arrive(core, cost);
                    }
                }
            }
        }
    }

    fn arrive(&mut self, core: usize, cost: u64) {
        if self.dry_at.is_some_and(|at| at <= self.now) {
            self.dry_since.get_or_insert((self.now, self.admitted));
        }
        let (at, rules) = (self.at(), self.rules(core));
        self.list(core);
        let slot = &mut self.cores[core];
        match slot.slice.check(Price::new(cost), self.capacity, at, rules) {
            Verdict::Fits => {
                slot.slice.take(Price::new(cost));
                self.admit(cost);
            }
            Verdict::Refused(_) => {
                slot.slice.handle_denied(Price::new(cost));
                self.dry_at.get_or_insert(self.now + 3 * PERIOD.as_micros() as u64);
            }
            Verdict::Ask => {
                slot.waiting.push_back(cost);
                if !slot.asked {
                    slot.asked = true;
                    self.report(core, cost);
                }
            }
        }
    }

    fn admit(&mut self, cost: u64) {
        self.largest = self.largest.max(cost);
        let came_in = (self.now * self.case.ru_per_second) as i64;
        self.lowest = self.lowest.min(self.admitted as i64 - came_in);
        self.admitted += cost;
        self.worst = self.worst.max(self.admitted as i64 - came_in - self.lowest);
    }

    fn list(&mut self, core: usize) {
        if !self.cores[core].listed {
            self.cores[core].listed = true;
            let at = self.now + PERIOD.as_micros() as u64;
            self.schedule(at, Event::Tick(core));
        }
    }

    fn tick(&mut self, core: usize) {
        self.cores[core].listed = false;
        let told = self.report(core, 0);
        self.cores[core].slice.start_period();
        if self.rules(core).silent {
            for cost in std::mem::take(&mut self.cores[core].waiting) {
                self.arrive(core, cost);
            }
        }
        if told {
            self.list(core);
        }
    }

    fn report(&mut self, core: usize, needed: u64) -> bool {
        let (at, rules) = (self.at(), self.rules(core));
        let demand: Option<Demand> = self.cores[core].slice.report(BUCKET, self.capacity, needed, at, rules);
        let Some(demand) = demand else { return false };
        let report =
            Report { shard: ShardId(core as u16), version: 0, demands: vec![demand], usage: Vec::new() };
        self.cores[core].unanswered.push_back(self.now);
        self.deliver(core, 0, Event::Reported(report));
        true
    }

    fn bound(&self) -> u64 {
        self.capacity.burst
            + self.case.ru_per_second * PERIOD.as_micros() as u64
            + self.case.cores * self.largest
    }
}

/// Returns the settings of a test of `cases` cases, which keeps failing seeds in a file. A test outside of `src` must
/// name the file's path.
fn config(cases: u32) -> ProptestConfig {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/tests/quota_bound.txt");
    let failure_persistence = Some(Box::new(FileFailurePersistence::Direct(seeds)) as Box<_>);
    ProptestConfig { cases, failure_persistence, ..ProptestConfig::default() }
}

#[test]
fn no_stretch_of_time_sees_more_than_the_quota() {
    let config = ProptestConfig { max_shrink_iters: 200, ..config(10_000) };
    proptest!(config, |(case in cases())| {
        let mut world = World::new(&case);
        world.run(400);
        prop_assert!(world.worst <= world.bound() as i64, "{} > {}", world.worst, world.bound());
        prop_assert!(world.cores.iter().all(|core| core.waiting.is_empty()), "a request waits for ever");
    });
}

#[test]
fn a_pool_that_was_silent_for_a_while_is_paid_once_and_pays_once() {
    proptest!(config(300), |(case in cases(), from in 20_u64..200, length in 40_u64..400)| {
        // Long after the stall its effect must be gone: cores may not go on spending the share that they
        // granted themselves.
        let cores = case.cores.min(8);
        let case = Case {
            cores, busy_cores: case.busy_cores.min(cores), load: 150 + case.load % 400, cost_max: case.cost_max.min(200),
            ru_per_second: 1_000 + case.ru_per_second, stall_ms: (from, from + length), ..case
        };
        let mut world = World::new(&case);
        world.run(8_000);
        let meanwhile = (LEASE.as_micros() as u64 + length * 1_000) * case.ru_per_second;
        let bound = world.bound() + meanwhile;
        prop_assert!(world.worst <= bound as i64, "{} > {bound}", world.worst);
    });
}

#[test]
fn all_of_the_quota_is_usable_on_any_core() {
    let config = ProptestConfig { max_shrink_iters: 200, ..config(500) };
    proptest!(config, |(case in cases(), busy in prop_oneof![Just(1_u64), Just(2), Just(64)])| {
        // The load always exceeds the quota, in requests that a core can afford, and messages are as quick as
        // in practice.
        let cores = case.cores;
        let case = Case {
            load: 150 + case.load % 400, busy_cores: busy.min(cores), delay_max: 300, shift_ms: 1_000_000,
            // The burst holds eight of the largest requests, because units that come in while the bucket is
            // full are lost.
            burst_ms: case.burst_ms.max(80 * case.cost_max / case.ru_per_second), ..case
        };
        let mut world = World::new(&case);
        world.run(4_000);
        let Some((since, before)) = world.dry_since else { return Ok(()) };
        let Some(elapsed) = world.last_arrival.checked_sub(since) else { return Ok(()) };
        let came_in = elapsed * case.ru_per_second;
        // Units that came in since the last period are not granted to cores yet.
        let last_period = case.ru_per_second * PERIOD.as_micros() as u64;
        let least = (came_in * 98 / 100).saturating_sub(last_period + 2 * world.largest);
        let admitted = world.admitted - before;
        prop_assert!(admitted >= least, "{admitted} of {came_in} in {elapsed} us");
    });
}
