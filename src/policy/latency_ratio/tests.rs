use proptest::prelude::*;

use super::*;
use crate::values::{Random, Tier};

const THRESHOLDS: [f64; 3] = [0.7, 0.5, 0.3];
const POINT: usize = 0;
const MULTI: usize = 1;
const SCAN: usize = 3;
/// The longest latency that counts as a sample, in microseconds.
const MICROS_MAX: u64 = (1 << 26) - 1;
/// The strongest signs of overload: requests are queued, and many are in flight.
const CROWD: Company = Company { waits: true, in_flight: 1_000 };
const ALONE: Company = Company { waits: false, in_flight: 1 };

/// The latency ratio of one core for one backend, with a clock.
struct World {
    ratio: LatencyRatio,
    random: Random,
    now: Timestamp,
    started: Timestamp,
    changes: Vec<(f64, Change)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let now = Timestamp::from_millis(10);
        let ratio = LatencyRatio::new(THRESHOLDS, now);
        Self { ratio, random: Random::new(seed), now, started: now, changes: Vec::new() }
    }

    /// Simulates replies at `rate` per second for some seconds, with a tick every 100 ms that shows the signs
    /// of overload in `company`. `reply` gives the class and the latency (in microseconds) of each reply.
    fn run(
        &mut self,
        seconds: f64,
        rate: f64,
        company: Company,
        mut reply: impl FnMut(f64, &mut Random) -> (usize, f64),
    ) {
        self.started = self.now;
        let mut owed = 0.0;
        while self.at() < seconds {
            owed += rate / 10.0;
            for _ in 0..owed as u32 {
                let (class, micros) = reply(self.now.since(self.started).as_secs_f64(), &mut self.random);
                self.ratio.record(class, micros as u64);
            }
            owed = owed.fract();
            self.tick(100, company);
        }
    }

    fn at(&self) -> f64 {
        self.now.since(self.started).as_secs_f64()
    }

    fn tick(&mut self, millis: u64, company: Company) {
        self.now = self.now.after(Duration::from_millis(millis));
        let before = self.ratio.level();
        let change = self.ratio.handle_tick(self.now, company);
        if let Some(change) = change {
            assert_eq!((change.from, change.to), (before, self.ratio.level()));
            self.changes.push((self.at(), change));
        }
        assert_eq!(change.is_none(), before == self.ratio.level());
    }

    /// Returns the time, in seconds since the start of its run, at which the shedding level first rose to
    /// `level` or above; `None` if it never did. Looks at the changes of all runs that are still in `changes`.
    fn reached(&self, level: Level) -> Option<f64> {
        self.changes.iter().find(|(_, change)| change.to >= level).map(|(at, _)| *at)
    }
}

/// Returns a random latency in microseconds: around 1 ms, and one in twenty above 5 ms.
fn noise(random: &mut Random) -> f64 {
    let normal = (2.0 * random.exponential()).sqrt() * (std::f64::consts::TAU * random.unit()).cos();
    1_000.0 * normal.exp()
}

fn point(_: f64, random: &mut Random) -> (usize, f64) {
    (POINT, noise(random))
}

fn slower(times: f64) -> impl FnMut(f64, &mut Random) -> (usize, f64) {
    move |_, random| (POINT, times * noise(random))
}

#[test]
fn steady_noise_for_ten_minutes_is_no_trouble_in_any_company() {
    for (rate, seeds) in [(11.0, 3), (30.0, 3), (100.0, 2), (2_000.0, 1)] {
        for seed in 0..seeds {
            let mut world = World::new(seed);
            world.run(600.0, rate, CROWD, point);
            assert!(world.changes.is_empty(), "{rate}/s, seed {seed}: {:?}", world.changes);
            assert!(world.ratio.seen().is_some());
        }
    }
}

#[test]
fn more_scans_on_a_store_that_is_well_are_no_trouble() {
    for share in [0.03, 0.3, 0.9] {
        let mut world = World::new(1);
        world.run(120.0, 500.0, CROWD, point);
        world.run(300.0, 500.0, CROWD, |_, random| {
            if random.unit() < share { (SCAN, 100.0 * noise(random)) } else { (POINT, noise(random)) }
        });
        world.run(120.0, 500.0, CROWD, point);
        assert!(world.changes.is_empty(), "{share}: {:?}", world.changes);
    }
}

#[test]
fn a_store_that_becomes_five_percent_slower_every_minute_is_noticed_before_it_takes_twice_as_long() {
    for rate in [100.0, 1_000.0] {
        for seed in 0..3 {
            let mut world = World::new(seed);
            world.run(300.0, rate, CROWD, point);
            world.run(15.0 * 60.0, rate, CROWD, |at, random| {
                (POINT, 1.05_f64.powf(at / 60.0) * noise(random))
            });
            let noticed = world.reached(Level::Strained).expect("noticed");
            let slower = 1.05_f64.powf(noticed / 60.0);
            assert!((1.2..1.9).contains(&slower), "{rate}/s, seed {seed}: at {slower}");
        }
    }
}

#[test]
fn three_times_slower_in_company_is_acted_upon_within_three_seconds_and_forgiven_as_soon() {
    for (rate, within) in [(200.0, 8.0), (1_000.0, 3.0), (30_000.0, 3.0)] {
        for seed in 0..5 {
            let mut world = World::new(seed);
            world.run(60.0, rate, CROWD, point);
            world.run(30.0, rate, CROWD, slower(3.0));
            let first = world.reached(Level::Strained).expect("noticed");
            let second = world.reached(Level::Overloaded).expect("noticed");
            assert!(first <= 2.0 && second <= within, "{rate}/s, seed {seed}: {:?}", world.changes);
            assert_eq!(world.changes.len(), 2, "no flapping: {:?}", world.changes);
            let (_, change) = world.changes[1];
            let seen = change.seen.expect("the cause");
            assert!(seen.ratio < 0.5 && seen.class == POINT, "{seen:?}");
            assert!(
                seen.short_p95 > 2 * seen.long_p95 && seen.long_p95 > Duration::from_millis(4),
                "{seen:?}"
            );
            world.changes.clear();
            world.run(30.0, rate, CROWD, point);
            let (left, change) = *world.changes.last().expect("left");
            assert_eq!((change.to, world.changes.len()), (Level::Steady, 2), "{:?}", world.changes);
            assert!(left <= 6.0, "{rate}/s, seed {seed}: left after {left} s");
        }
    }
}

#[test]
fn ten_times_slower_goes_up_one_step_a_second() {
    let mut world = World::new(3);
    world.run(60.0, 1_000.0, CROWD, point);
    world.run(10.0, 1_000.0, CROWD, slower(10.0));
    let levels: Vec<Level> = world.changes.iter().map(|(_, change)| change.to).collect();
    assert_eq!(levels, Level::ALL[1..]);
    for pair in world.changes.windows(2) {
        assert!((0.99..1.31).contains(&(pair[1].0 - pair[0].0)), "{:?}", world.changes);
    }
}

#[test]
fn without_company_it_is_none_of_our_business() {
    let mut world = World::new(1);
    world.run(60.0, 1_000.0, ALONE, point);
    world.run(120.0, 1_000.0, ALONE, slower(20.0));
    assert!(world.changes.is_empty(), "{:?}", world.changes);
    // With a crowd the level rises, and it falls ten seconds after the crowd has gone.
    world.run(10.0, 1_000.0, CROWD, slower(20.0));
    assert!(world.ratio.level() > Level::Steady);
    world.changes.clear();
    world.run(30.0, 1_000.0, ALONE, slower(20.0));
    assert!(world.changes[0].0 > 9.0 && world.ratio.level() == Level::Steady, "{:?}", world.changes);
}

#[test]
fn more_in_flight_than_usual_is_company() {
    let mut world = World::new(1);
    let with = |in_flight| Company { in_flight, ..ALONE };
    world.run(60.0, 1_000.0, with(6), point);
    world.run(10.0, 1_000.0, with(7), slower(3.0));
    assert!(world.changes.is_empty(), "{:?}", world.changes);
    world.run(10.0, 1_000.0, with(18), slower(3.0));
    assert_eq!(world.ratio.level(), Level::Overloaded);
}

#[test]
fn without_company_requests_are_refused_no_longer_though_the_level_stays() {
    let mut world = World::new(1);
    world.run(60.0, 1_000.0, CROWD, point);
    world.run(10.0, 1_000.0, CROWD, slower(10.0));
    let told = |world: &World| world.ratio.told(world.now).level;
    assert_eq!((world.ratio.level(), told(&world)), (Level::Shedding, Level::Shedding));
    // The remainder of one slice, and a whole slice.
    for (company, lasts, wanted) in [(ALONE, 0.5, Level::Overloaded), (CROWD, 0.3, Level::Shedding)] {
        world.run(lasts, 1_000.0, company, slower(10.0));
        assert_eq!((world.ratio.level(), told(&world)), (Level::Shedding, wanted));
    }
    // Where requests never queue because all are sent at once, more than usual in flight is a sign of
    // overload too.
    let more = |in_flight| Company { waits: false, in_flight };
    let phases = [
        (more(5_000), 2.0, Level::Shedding),
        (ALONE, 0.6, Level::Overloaded),
        // Some more for a moment are chance.
        (more(3_000), 0.3, Level::Overloaded),
        (more(3_000), 2.0, Level::Shedding),
    ];
    for (company, lasts, wanted) in phases {
        world.run(lasts, 1_000.0, company, slower(10.0));
        assert_eq!((world.ratio.level(), told(&world)), (Level::Shedding, wanted));
    }
}

#[test]
fn an_overload_is_seen_for_ten_minutes_and_is_the_usual_after_fifteen() {
    let mut world = World::new(1);
    world.run(900.0, 300.0, CROWD, point);
    world.run(300.0, 300.0, CROWD, slower(5.0));
    assert_eq!(world.ratio.level(), Level::Shedding);
    assert_eq!(world.changes.len(), 3, "{:?}", world.changes);
    world.run(300.0, 300.0, CROWD, slower(5.0));
    assert_eq!(world.ratio.level(), Level::Shedding);
    assert_eq!(world.changes.len(), 3, "{:?}", world.changes);
    world.run(300.0, 300.0, CROWD, slower(5.0));
    assert_eq!((world.ratio.level(), world.changes.len()), (Level::Steady, 6), "{:?}", world.changes);
    world.run(300.0, 300.0, CROWD, slower(5.0));
    assert_eq!(world.changes.len(), 6, "{:?}", world.changes);
}

#[test]
fn classes_with_a_reply_now_and_then_say_nothing() {
    let mut world = World::new(1);
    world.run(120.0, 500.0, CROWD, point);
    let mut number = 0;
    world.run(120.0, 500.0, CROWD, |_, random| {
        number += 1;
        match number % 500 {
            0 => (MULTI, 1e6),
            1 => (SCAN, 60e6),
            _ => point(0.0, random),
        }
    });
    assert!(world.changes.is_empty(), "{:?}", world.changes);
    // A class with few replies counts, but with little weight.
    world.run(120.0, 500.0, CROWD, |_, random| {
        let (class, times) = if random.unit() < 0.1 { (MULTI, 2.0) } else { (POINT, 1.0) };
        (class, times * noise(random))
    });
    world.run(60.0, 500.0, CROWD, |_, random| {
        let (class, times) = if random.unit() < 0.1 { (MULTI, 40.0) } else { (POINT, 1.0) };
        (class, times * noise(random))
    });
    assert!(world.changes.is_empty(), "{:?}", world.changes);
    let seen = world.ratio.seen().expect("enough replies");
    assert!(seen.class == MULTI && seen.ratio > 0.8, "{seen:?}");
}

#[test]
fn fewer_than_a_hundred_replies_in_ten_seconds_are_too_few() {
    let mut world = World::new(1);
    world.run(300.0, 9.0, CROWD, point);
    world.run(60.0, 9.0, CROWD, slower(50.0));
    assert_eq!((world.ratio.seen(), world.changes.len()), (None, 0));
}

#[test]
fn samples_of_nothing_and_of_hours_do_not_count() {
    let mut world = World::new(1);
    world.run(120.0, 1_000.0, CROWD, point);
    let before = world.ratio.seen().expect("enough replies");
    world.run(60.0, 1_000.0, CROWD, |_, random| match random.below(3) {
        0 => (POINT, 0.0),
        1 => (POINT, *random.pick(&[1e300, 67_108_864.0, 3.6e9])),
        _ => point(0.0, random),
    });
    for class in [COMMAND_CLASSES, usize::MAX] {
        world.ratio.record(class, 1_000);
    }
    let after = world.ratio.seen().expect("enough replies");
    assert!(world.changes.is_empty());
    assert!((after.ratio / before.ratio - 1.0).abs() < 0.2, "{before:?} {after:?}");
    // Without any replies nothing changes either.
    world.run(600.0, 0.0, CROWD, point);
    assert!(world.changes.is_empty() && world.ratio.seen().is_none());
    let mut empty = World::new(1);
    empty.run(600.0, 0.0, CROWD, point);
    assert!(empty.changes.is_empty());
}

#[test]
fn nothing_is_slow_that_takes_half_a_millisecond() {
    let mut world = World::new(1);
    world.run(120.0, 1_000.0, CROWD, slower(0.005));
    world.run(60.0, 1_000.0, CROWD, slower(0.1));
    assert!(world.changes.is_empty(), "{:?}", world.changes);
}

#[test]
fn a_clock_that_jumps_changes_nothing() {
    let hours = Duration::from_secs(5 * 3_600);
    let jumps: [fn(Timestamp, Duration) -> Timestamp; 3] =
        [Timestamp::after, Timestamp::before, |_, _| Timestamp::MAX];
    for jump in jumps {
        let mut world = World::new(1);
        world.run(120.0, 1_000.0, CROWD, point);
        world.now = jump(world.now, hours);
        world.tick(0, CROWD);
        world.now = Timestamp::from_millis(40);
        world.run(20.0, 1_000.0, CROWD, point);
        assert!(world.changes.is_empty(), "{:?}", world.changes);
        world.run(5.0, 1_000.0, CROWD, slower(3.0));
        assert_eq!(world.ratio.level(), Level::Overloaded, "it still sees what is slow");
    }
}

#[test]
fn a_store_that_was_idle_for_hours_is_compared_with_what_it_was() {
    for (times, wanted) in [(1.0, Level::Steady), (3.0, Level::Overloaded)] {
        for rests in [1, 400] {
            let mut world = World::new(2);
            world.run(120.0, 1_000.0, CROWD, point);
            // One request now and then, with its tick.
            for _ in 0..rests {
                world.ratio.record(POINT, 900);
                world.tick(4 * 3_600_000 / rests, ALONE);
            }
            assert!(world.changes.is_empty());
            world.run(10.0, 1_000.0, CROWD, slower(times));
            assert_eq!(world.ratio.level(), wanted, "{times}, {rests}: {:?}", world.changes);
            // Baselines from before a long pause are gone when traffic comes back.
            world.tick(3_600_000, ALONE);
            assert_eq!(world.ratio.level(), Level::Steady);
        }
    }
}

#[test]
fn a_pause_of_a_fifth_of_a_second_and_a_core_that_slept_are_over_before_anything_is_done() {
    let mut world = World::new(1);
    world.run(120.0, 1_000.0, CROWD, point);
    for pause in 0..20 {
        let from = f64::from(pause % 10) / 40.0;
        world.run(8.0, 1_000.0, CROWD, move |at, random| {
            let times = if (from..from + 0.2).contains(&at) { 100.0 } else { 1.0 };
            (POINT, times * noise(random))
        });
        // All replies that came meanwhile are handled at once.
        for _ in 0..900 {
            let micros = noise(&mut world.random) as u64;
            world.ratio.record(POINT, micros);
        }
        world.tick(900, CROWD);
    }
    assert!(world.changes.is_empty(), "{:?}", world.changes);
}

#[test]
fn sixty_four_cores_with_fifty_replies_a_second_each_agree() {
    let mut cores: Vec<World> = (0..64).map(World::new).collect();
    let mut changes = Vec::new();
    let mut own = 0;
    let mut level = Level::Steady;
    for second in 0..130 {
        // A third of the cores report that everything is slow, because these cores run late themselves.
        let times = if (90..110).contains(&second) { 3.0 } else { 1.0 };
        for (index, core) in cores.iter_mut().enumerate() {
            let is_late = (50..80).contains(&second) && index % 3 == 0;
            core.run(1.0, 50.0, CROWD, slower(if is_late { 10.0 } else { times }));
            own += core.changes.drain(..).filter(|(_, change)| change.to > change.from).count();
        }
        let now = cores[0].now;
        let all = agreed(cores.iter().map(|core| core.ratio.told(now)), now);
        if all != level {
            changes.push((second, all));
            level = all;
        }
        if second == 49 {
            assert_eq!(own, 0, "steady noise in 64 cores");
        }
    }
    assert!(
        changes.len() <= 4 && changes.iter().any(|(_, level)| *level == Level::Overloaded),
        "{changes:?}"
    );
    let (first, last) = (changes[0].0, changes[changes.len() - 1]);
    assert!((90..=94).contains(&first) && last.1 == Level::Steady && last.0 <= 118, "{changes:?}");
}

#[test]
fn a_level_is_agreed_on_by_those_with_half_of_the_replies() {
    let now = Timestamp::from_millis(60_000);
    let told = |level, replies| Told { at: now, level, replies };
    let of = |told: &[Told]| agreed(told.iter().copied(), now);
    assert_eq!(of(&[]), Level::Steady);
    assert_eq!(of(&[told(Level::Shedding, 0)]), Level::Steady);
    assert_eq!(of(&[told(Level::Shedding, 1)]), Level::Shedding);
    assert_eq!(of(&[told(Level::Shedding, 100), told(Level::Steady, 101)]), Level::Steady);
    assert_eq!(of(&[told(Level::Shedding, 100), told(Level::Steady, 100)]), Level::Shedding);
    let three = [told(Level::Shedding, 30), told(Level::Strained, 30), told(Level::Steady, 30)];
    assert_eq!(of(&three), Level::Strained);
    let old = Told { at: now.before(Duration::from_millis(2_001)), ..told(Level::Shedding, 1_000) };
    assert_eq!(of(&[old, told(Level::Strained, 1)]), Level::Strained);
    let most = told(Level::Overloaded, u32::MAX);
    assert_eq!(of(&[most; 100]), Level::Overloaded);
}

#[test]
fn what_levels_mean() {
    let prices = |level: Level| Tier::ALL.map(|tier| level.price_percent(tier));
    assert_eq!(prices(Level::Steady), [100; 4]);
    assert_eq!(prices(Level::Strained), [100, 100, 100, 150]);
    assert_eq!(prices(Level::Overloaded), [100, 100, 150, 300]);
    assert_eq!(prices(Level::Shedding), [100, 100, 300, 300]);
    for level in Level::ALL {
        for tier in Tier::ALL {
            let passed = (0..1_000).filter(|number| !level.refuses(tier, *number)).count();
            let wanted = if (level, tier) == (Level::Shedding, Tier::Sheddable) { 10 } else { 1_000 };
            assert_eq!(passed, wanted, "{level:?} {tier:?}");
        }
    }
}

#[test]
fn thresholds_that_make_no_sense_do_no_harm() {
    for thresholds in [[f64::NAN; 3], [0.0; 3], [-1.0, f64::INFINITY, 2.0], [0.3, 0.5, 0.7]] {
        let mut world = World::new(1);
        world.ratio = LatencyRatio::new(thresholds, world.now);
        world.run(30.0, 1_000.0, CROWD, point);
        world.run(30.0, 1_000.0, CROWD, slower(5.0));
        world.run(60.0, 1_000.0, ALONE, point);
        assert!(world.ratio.level() == Level::Steady, "{thresholds:?}");
    }
}

/// Slow reference model of [`LatencyRatio`]: keeps every sample with the slice (250 ms) in which it came, and
/// sorts all of them whenever it is asked.
#[derive(Default)]
struct Model {
    /// The number of slices (250 ms) that have ended.
    slice: usize,
    samples: Vec<(usize, usize, u64)>,
    current: Vec<(usize, u64)>,
    classes: [Learnt; COMMAND_CLASSES],
}

#[derive(Default)]
struct Learnt {
    /// The samples of the long window (the last minute), each with the number of slices (250 ms) that had
    /// been learnt when it came.
    long: Vec<(usize, u64)>,
    age: usize,
    /// Percentiles of the long window (the last minute), each with the number of slices (250 ms) for which
    /// such percentiles had been recorded by then.
    floors: Vec<(usize, f64)>,
    floor_age: usize,
    is_known: bool,
}

impl Model {
    fn record(&mut self, class: usize, micros: u64) {
        let Some(learnt) = self.classes.get_mut(class) else { return };
        learnt.is_known = true;
        if (1..=MICROS_MAX).contains(&micros) {
            self.current.push((class, micros));
        }
    }

    fn tick(&mut self, slices: usize, is_frozen: bool) {
        self.slice += slices;
        let came = std::mem::take(&mut self.current);
        for (index, class) in self.classes.iter_mut().enumerate() {
            let of_class = |(of, micros): &(usize, u64)| (*of == index).then_some(*micros);
            let micros: Vec<u64> = came.iter().filter_map(of_class).collect();
            if class.is_known && !is_frozen {
                class.learn(&micros, slices.min(40));
            }
            self.samples.extend(micros.into_iter().map(|micros| (self.slice, index, micros)));
        }
        self.samples.retain(|(slice, ..)| slice + SLICES > self.slice);
    }

    fn of_last(&self, class: usize, slices: usize) -> Vec<u64> {
        let is_wanted = |(slice, of, micros): &(usize, usize, u64)| {
            (*of == class && slice + slices > self.slice).then_some(*micros)
        };
        self.samples.iter().filter_map(is_wanted).collect()
    }

    /// Returns the mean of the latency ratios (usual latency divided by recent latency, at most 1) of the
    /// classes of commands, weighted by their replies in the last minute; `None` if no class has enough
    /// replies.
    fn ratio(&self) -> Option<f64> {
        let (mut all, mut sum) = (0.0, 0.0);
        for (index, class) in self.classes.iter().enumerate() {
            let narrow = (4..=40).map(|slices| self.of_last(index, slices)).find(|seen| seen.len() >= 100);
            let (Some(narrow), Some(long)) = (narrow, class.reference()) else { continue };
            let weight = class.last_minute().len() as f64;
            all += weight;
            sum += weight * (long.max(500.0) / quantile(narrow, 0.95)).min(1.0);
        }
        (all > 0.0).then(|| sum / all)
    }
}

impl Learnt {
    fn learn(&mut self, micros: &[u64], slices: usize) {
        self.age += slices;
        self.long.retain(|(age, _)| age + 7 * 40 > self.age);
        self.long.extend(micros.iter().map(|micros| (self.age, *micros)));
        let long = self.last_minute();
        if long.len() >= 100 {
            self.floor_age += slices;
            let deviation = (0.95 * (1.0 - 0.95) / long.len() as f64).sqrt();
            self.floors.push((self.floor_age, quantile(long, (0.95 + 2.0 * deviation).min(1.0))));
        }
    }

    /// Returns the samples of the present ten seconds and of the five periods of ten seconds before.
    fn last_minute(&self) -> Vec<u64> {
        let part = |age: usize| age.max(1).div_ceil(40);
        self.long
            .iter()
            .filter(|(age, _)| part(*age) + 6 > part(self.age))
            .map(|(_, micros)| *micros)
            .collect()
    }

    fn reference(&self) -> Option<f64> {
        let minute = |age: usize| age.max(1).div_ceil(240);
        let last = minute(self.floor_age);
        let mut floors: Vec<f64> = (last.saturating_sub(14)..=last)
            .filter_map(|wanted| {
                let of_minute = self.floors.iter().filter(|(age, _)| minute(*age) == wanted);
                of_minute.map(|(_, floor)| *floor).min_by(f64::total_cmp)
            })
            .collect();
        floors.sort_unstable_by(f64::total_cmp);
        floors.get(floors.len() / 4).copied()
    }
}

fn quantile(mut samples: Vec<u64>, share: f64) -> f64 {
    samples.sort_unstable();
    let rank = (share * samples.len() as f64).ceil().max(1.0) as usize;
    samples[rank - 1] as f64
}

#[derive(Clone, Debug)]
enum Operation {
    Replies { class: usize, count: usize, micros: u64 },
    Ticks { count: usize, millis: u64, company: Company },
    Jump { millis: i64 },
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let micros =
        prop_oneof![4 => 1_000..20_000_u64, 1 => 0..MICROS_MAX, 1 => Just(u64::MAX), 1 => Just(0_u64)];
    let replies = (0..8_usize, prop_oneof![3 => 1..40_usize, 1 => 100..400_usize], micros)
        .prop_map(|(class, count, micros)| Operation::Replies { class: class % 7, count, micros });
    let company = (any::<bool>(), 0..50_usize).prop_map(|(waits, in_flight)| Company { waits, in_flight });
    let ticks = (1..6_usize, prop_oneof![6 => 90..120_u64, 1 => 0..12_000_u64], company)
        .prop_map(|(count, millis, company)| Operation::Ticks { count, millis, company });
    let jump = (-20_000_000..20_000_000_i64).prop_map(|millis| Operation::Jump { millis });
    prop::collection::vec(prop_oneof![20 => replies, 20 => ticks, 1 => jump], 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn windows_are_those_of_the_model_and_steps_keep_their_rules(operations in operations(), seed in any::<u64>()) {
        let mut world = World::new(seed);
        let mut model = Model::default();
        let mut in_company = 0;
        let (mut since_step, mut now) = (0.0, world.now);
        for operation in operations {
            match operation {
                Operation::Replies { class, count, micros } => {
                    // A slice takes only a limited number of samples, so more of them would not compare.
                    for _ in 0..count.min(150_usize.saturating_sub(model.current.len())) {
                        let micros = if micros > 1 << 32 { micros } else { micros + world.random.below(micros / 4 + 1) };
                        world.ratio.record(class, micros);
                        model.record(class, micros);
                    }
                }
                Operation::Jump { millis } => {
                    let by = Duration::from_millis(millis.unsigned_abs());
                    now = if millis < 0 { now.before(by) } else { now.after(by) };
                }
                Operation::Ticks { count, millis, company } => {
                    for _ in 0..count {
                        now = now.after(Duration::from_millis(millis));
                        let passed = now.nanos_since(world.ratio.ticked_at).min(JUMP_MAX);
                        let slices = ((world.ratio.passed + passed) / SLICE) as usize;
                        let was_frozen = world.ratio.is_frozen;
                        let before = world.ratio.level();
                        since_step += passed as f64 / 1e9;
                        let change = world.ratio.handle_tick(now, company);
                        if slices == 0 {
                            prop_assert!(change.is_none());
                            in_company += usize::from(company.waits);
                            continue;
                        }
                        model.tick(slices, was_frozen);
                        let (found, exact) = (world.ratio.seen().map(|seen| seen.ratio), model.ratio());
                        prop_assert_eq!(found.is_some(), exact.is_some(), "{:?} {:?}", found, exact);
                        if let (Some(found), Some(exact)) = (found, exact) {
                            prop_assert!((found / exact - 1.0).abs() < 0.15, "{} is {}", found, exact);
                        }
                        in_company += usize::from(company.waits || world.ratio.in_flight.has_risen());
                        if let Some(change) = change {
                            prop_assert_eq!((change.from, change.to), (before, world.ratio.level()));
                            if change.to > change.from {
                                prop_assert_eq!(change.from.above(), Some(change.to));
                                prop_assert!(in_company > 0 && since_step >= 0.7);
                                prop_assert!(exact.is_some_and(|exact| exact < 1.15 * THRESHOLDS[before as usize]));
                            } else if slices < SLICES {
                                prop_assert_eq!(change.from.below(), Some(change.to));
                                prop_assert!(since_step >= 0.7);
                            }
                            since_step = 0.0;
                        }
                        in_company = 0;
                        let Steps { below, above, alone, .. } = world.ratio.steps;
                        prop_assert!(!(below[0] > 0 && alone > 0));
                        prop_assert!(above == 0 || world.ratio.level() > Level::Steady);
                    }
                }
            }
        }
    }
}
