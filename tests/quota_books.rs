//! The accounting of one token bucket that several cores share, in any order of events: the units granted,
//! spent, corrected, returned, and lost with a lease always add up.
//!
//! The reference model is one plain bucket that knows no cores, and the units that each core holds, counted
//! by hand.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use weir::control::pool::{Pool, Rhythm};
use weir::policy::slice::{Rules, Slice, Verdict};
use weir::values::allowance::lease_of;
use weir::values::{BucketId, Capacity, Demand, Grant, Part, Price, ShardId, Timestamp, UNIT};

const PERIOD: Duration = Duration::from_millis(10);
const BUCKET: BucketId = BucketId(7);
const CORES: usize = 3;
const RHYTHM: Rhythm = Rhythm { period: PERIOD, lease: lease_of(PERIOD) };
const CAPACITIES: [Capacity; 3] =
    [Capacity::new(1_000, 1_000 * UNIT), Capacity::new(20, 20 * UNIT), Capacity::new(100, 5 * UNIT)];

/// An event. `core` is the index of the core that it concerns.
#[derive(Clone, Debug)]
enum Step {
    /// A request arrives that costs this many hundredths of a request unit.
    Arrives { core: usize, cost: u64 },
    /// The oldest open request of the core turns out to cost this many hundredths of a request unit.
    Settled { core: usize, cost: u64 },
    /// A period of this core ends, so the core sends its report.
    Tick { core: usize },
    /// The oldest message of this core arrives: an answer of the pool at the core, or else a report at the
    /// pool.
    Delivered { core: usize },
    /// This many microseconds pass.
    Passes { micros: u64 },
}

fn step(delay: impl Strategy<Value = u64>) -> impl Strategy<Value = Step> {
    let core = 0..CORES;
    prop_oneof![
        6 => (core.clone(), 1_u64..400).prop_map(|(core, cost)| Step::Arrives { core, cost }),
        3 => (core.clone(), 0_u64..800).prop_map(|(core, cost)| Step::Settled { core, cost }),
        2 => core.clone().prop_map(|core| Step::Tick { core }),
        6 => core.prop_map(|core| Step::Delivered { core }),
        4 => delay.prop_map(|micros| Step::Passes { micros }),
    ]
}

/// Delays in microseconds: mostly moments, sometimes longer than a lease, so that the pool and cores count
/// each other as lost.
fn delays() -> impl Strategy<Value = u64> {
    prop_oneof![20 => 0_u64..4_000, 1 => 0_u64..200_000]
}

struct Core {
    slice: Slice,
    /// The micro-units that the core may still spend, counted by hand.
    holds: i64,
    /// The micro-units that the core has spent and not reported yet, counted by hand.
    untold: i64,
    /// For each admitted request that is not settled yet, the micro-units taken for it.
    open: VecDeque<i64>,
    heard_at: Timestamp,
    reports: VecDeque<(Timestamp, Demand)>,
    grants: VecDeque<Grant>,
}

/// The reference model: one bucket, from which every report takes its units at once.
struct Plain {
    capacity: Capacity,
    level: i64,
    filled_micros: u64,
}

impl Plain {
    fn fill(&mut self, at: Timestamp) {
        let micros = at.as_nanos() / 1_000;
        let came_in = (micros.saturating_sub(self.filled_micros) * self.capacity.ru_per_second()) as i64;
        let burst = self.capacity.burst as i64;
        self.level = self.level.max((self.level + came_in).min(burst));
        self.filled_micros = self.filled_micros.max(micros);
    }
}

struct World {
    capacity: Capacity,
    now: Timestamp,
    cores: Vec<Core>,
    pool: Pool,
    /// The micro-units that all cores hold by the pool's accounting.
    granted: i64,
    plain: Plain,
}

impl World {
    fn new(capacity: Capacity) -> Self {
        let now = Timestamp::from_millis(1_000);
        let core = || Core {
            slice: Slice::untouched(now),
            holds: 0,
            untold: 0,
            open: VecDeque::new(),
            heard_at: now,
            reports: VecDeque::new(),
            grants: VecDeque::new(),
        };
        let level = capacity.burst as i64;
        Self {
            capacity,
            now,
            cores: std::iter::repeat_with(core).take(CORES).collect(),
            pool: Pool::full(capacity, Part::WHOLE, now),
            granted: 0,
            plain: Plain { capacity, level, filled_micros: now.as_nanos() / 1_000 },
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Arrives { core, cost } => self.arrive(core, cost * UNIT / 100),
            Step::Settled { core, cost } => self.settle(core, (cost * UNIT / 100) as i64),
            Step::Tick { core } => {
                self.report(core, 0);
                self.cores[core].slice.start_period();
            }
            Step::Delivered { core } => self.deliver(core),
            Step::Passes { micros } => self.now = self.now.after(Duration::from_micros(micros)),
        }
        for core in &self.cores {
            assert_eq!(core.slice.allowance(), core.holds, "{:?}", core.slice);
        }
        if self.cores.iter().all(Core::is_told_everything) {
            self.check_holdings();
        }
    }

    /// Checks that cores with valid leases hold no more than the pool has granted, with what they have spent and not
    /// reported counted as held. Called while no message is under way.
    fn check_holdings(&self) {
        let good = self.cores.iter().filter(|core| self.now <= core.heard_at.after(RHYTHM.lease));
        let held: i64 = good.map(|core| core.holds + core.untold).sum();
        let known = self.granted;
        assert!(held <= known, "cores hold {held}, of which the pool knows {known}");
    }

    fn arrive(&mut self, index: usize, cost: u64) {
        let rules = self.rules(index);
        let core = &mut self.cores[index];
        let verdict = core.slice.check(Price::new(cost), self.capacity, self.now, rules);
        // While the pool is silent, a core may grant itself its even share of the quota.
        let own = core.slice.allowance() - core.holds;
        assert!(own == 0 || rules.silent && own > 0, "{own} out of nothing");
        core.holds += own;
        match verdict {
            Verdict::Fits => {
                core.slice.take(Price::new(cost));
                core.book(cost as i64);
                core.open.push_back(cost as i64);
            }
            Verdict::Refused(_) => core.slice.handle_denied(Price::new(cost)),
            Verdict::Ask => {
                if !core.slice.await_answer() {
                    self.report(index, cost);
                }
            }
        }
    }

    fn settle(&mut self, index: usize, cost: i64) {
        let core = &mut self.cores[index];
        if let Some(taken) = core.open.pop_front() {
            core.slice.book(cost - taken);
            core.book(cost - taken);
        }
    }

    fn report(&mut self, index: usize, needed: u64) {
        let rules = self.rules(index);
        let core = &mut self.cores[index];
        if let Some(demand) = core.slice.report(BUCKET, self.capacity, needed, self.now, rules) {
            assert_eq!(demand.spent, std::mem::take(&mut core.untold), "all that was spent is told, once");
            core.holds -= demand.returned as i64;
            core.reports.push_back((self.now, demand));
        }
    }

    /// Returns the rules that apply to a core now. The pool counts as silent once the core's oldest
    /// unanswered report is older than a lease.
    fn rules(&self, index: usize) -> Rules {
        let core = &self.cores[index];
        let waits_since = core.reports.front().map(|(sent, _)| *sent);
        let silent = waits_since.is_some_and(|sent| self.now >= sent.after(RHYTHM.lease));
        let even_share = 65_536 / CORES as u32;
        Rules { period: PERIOD, lease: RHYTHM.lease, silent, even_share }
    }

    fn deliver(&mut self, index: usize) {
        let core = &mut self.cores[index];
        if let Some(grant) = core.grants.pop_front() {
            let before = core.slice.allowance();
            core.slice.handle_grant(&grant);
            core.heard_at = grant.at;
            core.holds += core.slice.allowance() - before;
            return;
        }
        let Some((_, demand)) = core.reports.pop_front() else { return };
        // Units that came in more than a period ago were there before any of these were spent.
        self.plain.fill(self.now.before(PERIOD));
        let above = (self.plain.level - demand.spent.min(0) - self.capacity.burst as i64).max(0);
        self.plain.level -= demand.spent;
        let grant = self.pool.handle_demand(ShardId(index as u16), &demand, self.now, RHYTHM);
        assert_eq!(self.pool.take_forgiven(), 0, "what one owes is not forgiven");
        self.plain.fill(self.now);
        let remaining = self.pool.remaining(self.now);
        // Units that requests return because they cost less than was taken may find the bucket full; they are
        // lost then, sooner or later.
        self.plain.level -= above.min((self.plain.level - remaining).max(0));
        assert_eq!(remaining, self.plain.level, "the pool and its cores have what is left");
        core.grants.push_back(grant);
        self.granted = remaining - grant.level;
        assert!(self.granted >= 0, "no core holds less than nothing");
    }

    /// Ends the run without further requests: all messages arrive, and each core reports everything and
    /// returns all that it holds.
    fn come_to_rest(&mut self) {
        for _ in 0..4 {
            for core in 0..CORES {
                self.report(core, 0);
                self.cores[core].slice.start_period();
                while !self.cores[core].is_told_everything() {
                    self.deliver(core);
                }
            }
        }
    }
}

impl Core {
    fn is_told_everything(&self) -> bool {
        self.reports.is_empty() && self.grants.is_empty()
    }

    fn book(&mut self, amount: i64) {
        self.holds -= amount;
        self.untold += amount;
    }
}

fn run(capacity: Capacity, steps: &[Step]) {
    let mut world = World::new(capacity);
    steps.iter().for_each(|step| world.step(step));
    world.come_to_rest();
    for core in &world.cores {
        assert_eq!((core.holds, core.untold), (0, 0), "all is told and given back");
    }
    // After an hour any debt is paid off, so the pool has nothing left to remember.
    let later = world.now.after(Duration::from_secs(3_600));
    assert!(world.pool.is_idle(later, RHYTHM), "{:?}", world.pool);
}

/// Returns the settings of a test of `cases` cases, which keeps failing seeds in a file. A test outside of `src` must
/// name the file's path.
fn config(cases: u32) -> ProptestConfig {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/tests/quota_books.txt");
    let failure_persistence = Some(Box::new(FileFailurePersistence::Direct(seeds)) as Box<_>);
    ProptestConfig { cases, failure_persistence, ..ProptestConfig::default() }
}

#[test]
fn the_books_are_right_while_messages_are_quick() {
    let steps = prop::collection::vec(step(0_u64..3_000), 1..300);
    proptest!(config(2_000), |(capacity in prop::sample::select(&CAPACITIES[..]), steps in steps)| {
        run(capacity, &steps);
    });
}

#[test]
fn and_when_pools_fall_silent_and_leases_end() {
    let steps = prop::collection::vec(step(delays()), 1..300);
    proptest!(config(5_000), |(capacity in prop::sample::select(&CAPACITIES[..]), steps in steps)| {
        run(capacity, &steps);
    });
}
