use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::values::Random;

const SECRET: u64 = 0x005e_c2e7;

/// A pane (interval of counting) of the slow reference model, which counts every request by key.
#[derive(Clone, Default)]
struct Exact {
    nanos: u64,
    load: u64,
    counts: HashMap<Vec<u8>, u64>,
}

impl Exact {
    fn of(&self, key: &[u8]) -> u64 {
        self.counts.get(key).copied().unwrap_or_default()
    }
}

/// A core's search for hot keys, its clock, the reference model, and the events so far.
struct World {
    keys: HotKeys,
    settings: HotSettings,
    is_bounded: bool,
    now: Timestamp,
    started: Timestamp,
    random: Random,
    /// The model's current pane (interval of about 50 ms).
    pane: Exact,
    /// The model's earlier panes (intervals of about 50 ms), newest first.
    panes: VecDeque<Exact>,
    /// Keys that are hot by the events of the search, with their ids and the times of their promotion.
    hot: HashMap<Vec<u8>, (HotId, Timestamp)>,
    promoted: u32,
    demoted: u32,
}

impl World {
    fn new(settings: HotSettings) -> Self {
        let now = Timestamp::from_millis(70);
        Self {
            keys: HotKeys::new(settings, SECRET, now),
            settings,
            is_bounded: false,
            now,
            started: now,
            random: Random::new(11),
            pane: Exact::default(),
            panes: VecDeque::new(),
            hot: HashMap::new(),
            promoted: 0,
            demoted: 0,
        }
    }

    fn usual() -> Self {
        Self::new(HotSettings::default())
    }

    fn ask_in(&mut self, slot: u16, key: &[u8], access: Access) -> Option<HotId> {
        self.pane.load += 1;
        *self.pane.counts.entry(key.to_vec()).or_default() += 1;
        let is_warm = self.keys.note(slot);
        let id = is_warm.then(|| self.keys.note_key(slot, self.keys.hash(key), key, access)).flatten();
        assert_eq!(id, self.hot.get(key).map(|(id, _)| *id), "a hot key is known as such, and no other is");
        id
    }

    fn ask(&mut self, key: &[u8]) -> Option<HotId> {
        let slot = slot_of(key);
        self.ask_in(slot, key, Access::Read)
    }

    fn wait(&mut self, duration: Duration) {
        self.now = self.now.after(duration);
        self.tick();
    }

    fn tick(&mut self) {
        // The search drops its counts when its pane ends, so the test compares them just before.
        let nanos = self.now.nanos_since(self.keys.pane_started);
        let ends = self.now >= self.keys.pane_ends && (nanos <= LONG || self.keys.is_long);
        if ends {
            self.end_pane(nanos);
        }
        let mut events = Vec::new();
        self.keys.tick(self.now, &mut |event| {
            events.push(match event {
                Event::Promoted { id, hash, slot, key } => (id, Some((hash, slot, key.clone()))),
                Event::Demoted { id } => (id, None),
            });
        });
        for (id, promoted) in events {
            if let Some((hash, slot, name)) = promoted {
                self.promoted(id, hash, slot, &name);
            } else {
                let before = self.hot.len();
                self.hot.retain(|_, (hot, _)| *hot != id);
                assert_eq!(self.hot.len() + 1, before, "it was hot");
                self.demoted += 1;
            }
        }
        assert_eq!(self.keys.hot, self.hot.len());
        assert!(self.hot.len() <= self.settings.keys_max);
        assert!(!ends || self.keys.pane_started == self.now);
        if ends {
            self.nobody_is_missing();
        }
    }

    /// Checks precision: a promoted key had enough requests in the last window (two panes of 50 ms) to be hot.
    fn promoted(&mut self, id: HotId, hash: u64, slot: u16, name: &KeyName) {
        let key = if name.is_whole() {
            name.bytes().to_vec()
        } else {
            let whole = self.panes[0].counts.keys().find(|key| self.keys.hash(key) == hash);
            whole.expect("it was asked for").clone()
        };
        assert_eq!((hash, slot_of(&key)), (self.keys.hash(&key), slot));
        let (count, hot_from) = self.window(&key);
        assert!(count >= hot_from, "{name:?} had {count} of {hot_from}");
        assert!(self.hot.insert(key, (id, self.now)).is_none(), "it was not hot");
        self.promoted += 1;
    }

    /// Checks recall: a key that had 10 % more than the threshold in five panes (intervals of 50 ms) in a row
    /// is hot.
    fn nobody_is_missing(&self) {
        if self.panes.len() < 5 || self.is_bounded {
            return;
        }
        for key in self.panes[0].counts.keys() {
            let has_much = |pane: &Exact| {
                10 * pane.of(key) >= 11 * self.settings.hot_from(pane.nanos.max(PANE), pane.load)
            };
            if self.panes.iter().take(5).all(has_much) {
                assert!(self.hot.contains_key(key), "{} at {:?}", String::from_utf8_lossy(key), self.now);
            }
        }
    }

    /// Returns the number of requests of a key in the last window (two panes of 50 ms), and the number that
    /// makes a key hot.
    fn window(&self, key: &[u8]) -> (u64, u64) {
        let last = || self.panes.iter().take(2);
        let (nanos, load) = (last().map(|pane| pane.nanos).sum(), last().map(|pane| pane.load).sum());
        (last().map(|pane| pane.of(key)).sum(), self.settings.hot_from(nanos, load))
    }

    fn end_pane(&mut self, nanos: u64) {
        let by_hash: HashMap<u64, u64> =
            self.pane.counts.iter().map(|(key, count)| (self.keys.hash(key), *count)).collect();
        for (_, record) in self.keys.records.iter() {
            let Tally { reads, writes, error, .. } = record.tally;
            let had = by_hash.get(&record.hash).copied().unwrap_or_default();
            assert!((reads + writes..=reads + writes + error).contains(&had), "{had} {record:?}");
        }
        for (hash, counted) in self.keys.counts.all() {
            let had = by_hash.get(&hash).copied().unwrap_or_default();
            // A key that has got a record meanwhile is not counted in the sketch any more.
            if self.keys.records.find(hash).is_none() {
                assert!((counted.certain()..=counted.count).contains(&had), "{had} {counted:?}");
            }
        }
        let mut ended = std::mem::take(&mut self.pane);
        ended.nanos = nanos;
        self.panes.push_front(ended);
        self.panes.truncate(5);
    }

    /// Requests keys from `next` at an even rate for some milliseconds, with a tick about every millisecond.
    fn run(&mut self, millis: u64, per_second: u64, mut next: impl FnMut(&mut Random, u64) -> Vec<u8>) {
        let (started, count) = (self.now, millis * per_second / 1_000);
        let mut ticked = 0;
        for number in 0..count {
            let at = number * 1_000_000_000 / per_second;
            if at / 1_000_000 > ticked {
                ticked = at / 1_000_000;
                self.now = started.after(Duration::from_nanos(at));
                self.tick();
            }
            let key = next(&mut self.random, number);
            self.ask(&key);
        }
        self.now = started.after(Duration::from_millis(millis));
        self.tick();
    }

    fn is_hot(&self, key: &[u8]) -> bool {
        self.hot.contains_key(key)
    }

    fn hot_after(&self, key: &[u8]) -> Duration {
        self.hot.get(key).map_or(Duration::MAX, |(_, at)| at.since(self.started))
    }

    fn report(&self, key: &[u8]) -> Report<'_> {
        self.keys.hot().find(|report| report.key.bytes() == key).expect("it is hot")
    }
}

/// Returns the slot of a key, by its hash tag if it has one.
fn slot_of(key: &[u8]) -> u16 {
    let end = key.iter().position(|byte| *byte == b'}').unwrap_or(key.len());
    let mixed = key[..end].iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (Random::new(mixed).bits() % 16_384) as u16
}

fn random_key(random: &mut Random) -> Vec<u8> {
    random.bits().to_le_bytes().to_vec()
}

fn tagged_key(random: &mut Random) -> Vec<u8> {
    [b"{tag}".as_slice(), &random.bits().to_le_bytes()].concat()
}

/// Returns a generator of ranks (0 to `keys` - 1) that follow Zipf's law with this exponent: low ranks come
/// often, high ones seldom.
fn zipf(keys: u32, exponent: f64) -> impl Fn(&mut Random) -> usize {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=keys)
        .map(|rank| {
            sum += (f64::from(rank).ln() * -exponent).exp();
            sum
        })
        .collect();
    move |random| {
        let drawn = random.unit() * sum;
        sums.partition_point(|sum| *sum < drawn)
    }
}

#[test]
fn a_key_with_500_per_second_is_hot_within_250_ms_whenever_it_starts() {
    for started in 0..50 {
        for rate in [500, 700, 1_999] {
            let mut world = World::usual();
            world.wait(Duration::from_millis(started));
            world.started = world.now;
            world.run(252, rate, |_, _| b"key".to_vec());
            assert!(world.hot_after(b"key") <= Duration::from_millis(251), "{started} {rate}");
        }
    }
}

#[test]
fn so_is_one_with_a_fiftieth_of_a_large_load_and_one_with_four_times_that_earlier() {
    for started in [0, 1, 20, 49] {
        let mut world = World::usual();
        let mut stranger = |random: &mut Random, _| random_key(random);
        world.run(300 + started, 50_000, &mut stranger);
        assert_eq!(world.promoted, 0);
        world.started = world.now;
        world.run(251, 50_000, |random, number| match number % 50 {
            0 => b"a fiftieth".to_vec(),
            10 | 20 | 30 | 40 => b"much more".to_vec(),
            _ => random_key(random),
        });
        assert!(world.hot_after(b"a fiftieth") <= Duration::from_millis(251), "{started}");
        assert!(world.hot_after(b"much more") <= Duration::from_millis(151), "{started}");
        assert_eq!(world.promoted, 2);
        let report = world.report(b"a fiftieth");
        assert!((0.01..=0.021).contains(&report.share), "{report:?}");
    }
}

#[test]
fn four_hundred_per_second_are_not_enough_and_neither_is_one_window() {
    let mut world = World::usual();
    world.run(3_000, 400, |_, _| b"key".to_vec());
    world.run(300, 20, |_, _| b"key".to_vec());
    world.run(90, 900, |_, _| b"key".to_vec());
    world.run(300, 20, |_, _| b"key".to_vec());
    assert_eq!(world.promoted, 0);
}

/// The hot keys of a Zipf distribution over a million keys are found; the model checks precision and recall at
/// the end of each pane (interval of 50 ms).
#[test]
fn of_zipf_over_a_million_keys_those_above_the_threshold_are_found_and_no_others() {
    for (exponent, per_mille) in [(0.9, 20), (1.0, 5), (1.1, 20), (1.3, 20)] {
        let rank = zipf(1_000_000, exponent);
        let settings = HotSettings { least_share_per_mille: per_mille, ..HotSettings::default() };
        let mut world = World::new(settings);
        world.run(400, 100_000, |random, _| format!("key:{}", rank(random)).into_bytes());
        let weight = |rank: u32| f64::from(rank).powf(-exponent);
        let all: f64 = (1..=1_000_000).map(weight).sum();
        let threshold = per_mille as f64 / 1_000.0;
        // A window has 10,000 requests; the tolerance is three standard deviations of the count of a key at
        // the threshold.
        let chance = 3.0 / (10_000.0 * threshold).sqrt();
        let mut above = 0;
        for rank in 1..=40 {
            let share = weight(rank) / all;
            let is_hot = world.is_hot(format!("key:{}", rank - 1).as_bytes());
            assert!(is_hot || share < (1.0 + chance) * threshold, "{exponent} {rank}");
            assert!(!is_hot || share > (1.0 - chance) * threshold, "{exponent} {rank}");
            above += u32::from(is_hot);
        }
        assert_eq!(world.hot.len(), above as usize, "no others");
        assert!(above >= 1 && world.demoted == 0, "{exponent} {above}");
    }
}

#[test]
fn uniform_load_and_floods_promote_nothing_and_keep_no_names() {
    let uniform = |random: &mut Random, _| random.below(1_000_000).to_le_bytes().to_vec();
    let flood = |random: &mut Random, _| random_key(random);
    let tagged = |random: &mut Random, _| tagged_key(random);
    let mut world = World::usual();
    world.run(200, 200_000, uniform);
    world.run(200, 200_000, flood);
    assert_eq!(world.keys.counters(), HotCounters::default(), "nothing gets as far as stage 2");
    world.run(200, 200_000, tagged);
    assert_eq!(world.promoted, 0);
    assert!(world.keys.records.is_empty());
    assert!(world.keys.counters().passed_over > 10_000, "{:?}", world.keys.counters());
}

#[test]
fn floods_neither_hide_a_hot_key_nor_cool_one() {
    let mut world = World::usual();
    world.run(300, 2_000, |_, _| b"old".to_vec());
    assert!(world.is_hot(b"old"));
    let flood = |world: &mut World, millis, key: Option<&'static [u8]>, tag: bool| {
        world.run(millis, 60_000, |random, number| match (number % 40, key) {
            (0, _) => b"old".to_vec(),
            (20, Some(key)) => key.to_vec(),
            _ if tag => tagged_key(random),
            _ => random_key(random),
        });
    };
    flood(&mut world, 500, None, false);
    flood(&mut world, 500, None, true);
    assert!(world.is_hot(b"old") && world.demoted == 0 && world.promoted == 1);
    // In the middle of the flood another key becomes hot, first one in a slot of its own, then one in the
    // flood's slot.
    world.started = world.now;
    flood(&mut world, 252, Some(b"new"), true);
    assert!(world.hot_after(b"new") <= Duration::from_millis(251));
    world.started = world.now;
    flood(&mut world, 252, Some(b"{tag}new"), true);
    assert!(world.hot_after(b"{tag}new") <= Duration::from_millis(251));
    assert_eq!((world.promoted, world.demoted), (3, 0));
}

#[test]
fn a_hot_key_stays_hot_down_to_a_quarter_and_for_a_second_below() {
    let mut world = World::usual();
    world.run(300, 1_000, |_, _| b"key".to_vec());
    assert!(world.is_hot(b"key"));
    world.run(3_000, 140, |_, _| b"key".to_vec());
    world.run(900, 50, |_, _| b"key".to_vec());
    world.run(200, 200, |_, _| b"key".to_vec());
    world.run(900, 50, |_, _| b"key".to_vec());
    assert!(world.is_hot(b"key"), "every one of these requests was known to be of a hot key");
    world.run(250, 50, |_, _| b"key".to_vec());
    assert!(!world.is_hot(b"key"));
    world.run(200, 10, |_, _| b"key".to_vec());
    assert!(world.keys.records.is_empty() && world.keys.wake_at().is_none());
}

#[test]
fn what_wavers_around_the_threshold_is_promoted_once() {
    for period in [60, 100, 250, 700, 2_000] {
        let mut world = World::usual();
        for _ in 0..20_000 / period {
            world.run(period / 2, 700, |_, _| b"key".to_vec());
            world.run(period / 2, 300, |_, _| b"key".to_vec());
        }
        assert!(world.promoted <= 1 && world.demoted == 0, "{period}");
    }
}

#[test]
fn a_key_that_others_answer_for_does_not_cool() {
    let mut world = World::usual();
    world.run(300, 5_000, |_, _| b"key".to_vec());
    let id = world.hot[b"key".as_slice()].0;
    for _ in 0..200 {
        world.run(50, 100, |random, _| random_key(random));
        world.keys.note_many(id, 1_000);
    }
    assert!(world.is_hot(b"key"));
    let report = world.report(b"key");
    assert!((report.reads_per_second - 20_000.0).abs() < 500.0, "{report:?}");
    assert!(report.elsewhere_per_second > 19_000.0 && report.share < 0.2, "{report:?}");
    // Late reads from other cores concern a key that is not hot any more.
    for _ in 0..30 {
        world.wait(Duration::from_millis(50));
    }
    assert!(!world.is_hot(b"key"));
    world.keys.note_many(id, 1_000_000);
    world.run(300, 5_000, |_, _| b"key".to_vec());
    assert_ne!(world.hot[b"key".as_slice()].0, id, "an id is never used again");
    assert!(world.report(b"key").elsewhere_per_second < 1.0);
}

#[test]
fn a_core_that_stood_still_takes_what_waited_for_what_it_is() {
    for (still, rate) in [(300, 450), (300, 120), (1_000, 300), (2_000, 450), (120, 350)] {
        let mut world = World::usual();
        let once = |_: &mut Random, _| b"key".to_vec();
        world.run(500, rate, once);
        for _ in 0..3 {
            world.now = world.now.after(Duration::from_millis(still));
            // All requests come in one turn, before or after the clock is read.
            for _ in 0..still * rate / 1_000 {
                world.ask(b"key");
            }
            world.tick();
            world.run(500, rate, once);
            world.wait(Duration::from_millis(still));
            for _ in 0..still * rate / 1_000 {
                world.ask(b"key");
            }
            world.run(500, rate, once);
        }
        assert_eq!(world.promoted, 0, "{still} ms, {rate} per second");
    }
}

#[test]
fn a_hot_key_survives_a_core_that_stood_still() {
    let mut world = World::usual();
    world.run(300, 1_000, |_, _| b"key".to_vec());
    for still in [300, 1_500, 5_000] {
        world.wait(Duration::from_millis(still));
        for _ in 0..still {
            world.ask(b"key");
        }
        world.run(500, 1_000, |_, _| b"key".to_vec());
    }
    assert_eq!((world.promoted, world.demoted), (1, 0));
    let report = world.report(b"key");
    assert!((report.reads_per_second - 1_000.0).abs() < 100.0, "{report:?}");
}

#[test]
fn time_that_stands_still_or_runs_backwards_decides_nothing() {
    let mut world = World::usual();
    for _ in 0..10_000 {
        world.ask(b"key");
        world.tick();
    }
    let now = world.now;
    world.now = Timestamp::ZERO;
    world.tick();
    assert_eq!(world.promoted, 0);
    world.now = now;
    // The pane lasts ten seconds, so its rate is 1,000 per second.
    world.wait(Duration::from_secs(10));
    world.run(100, 100, |_, _| b"key".to_vec());
    world.run(1_000, 100, |_, _| b"key".to_vec());
    assert!(world.promoted == 0 && world.keys.load.per_second() < 500.0);
}

#[test]
fn an_idle_core_has_nothing_to_wake_for_but_to_let_hot_keys_go() {
    let mut world = World::usual();
    assert_eq!(world.keys.wake_at(), None);
    world.run(300, 1_000, |_, _| b"key".to_vec());
    let mut wakes = 0;
    while let Some(at) = world.keys.wake_at() {
        assert!(at > world.now);
        world.now = at;
        world.tick();
        wakes += 1;
    }
    assert!(world.hot.is_empty());
    assert!((21..=23).contains(&wakes), "what is left of the window, and a second: {wakes}");
    // The length of the pause does not matter.
    world.run(300, 1_000, |_, _| b"key".to_vec());
    world.wait(Duration::from_secs(3_600));
    world.wait(Duration::from_millis(50));
    assert!(world.hot.is_empty());
}

#[test]
fn there_are_no_more_hot_keys_than_allowed_and_much_hotter_ones_take_over() {
    let mut world = World::new(HotSettings { keys_max: 2, ..HotSettings::default() });
    // The model would demand that all of them are found.
    world.is_bounded = true;
    let name = |number: u64| format!("key:{number}").into_bytes();
    world.run(2_000, 6_000, |_, number| name([0, 0, 1, 1, 2, 2, 2][number as usize % 7]));
    assert_eq!((world.hot.len(), world.promoted), (2, 2), "what is about as hot takes nobody's place");
    assert!(world.keys.counters().crowded_out > 0);
    world.run(1_000, 12_000, |_, number| name([0, 1, 2, 3, 3, 3, 3, 3, 3][number as usize % 9]));
    assert!(world.is_hot(b"key:3") && world.hot.len() == 2);
    assert_eq!((world.promoted, world.demoted), (3, 1));
    let mut none = World::new(HotSettings { keys_max: 0, ..HotSettings::default() });
    none.is_bounded = true;
    none.run(500, 5_000, |_, _| name(1));
    assert_eq!(none.promoted, 0);
}

#[test]
fn long_keys_are_reported_by_their_start_and_not_to_be_cached() {
    let mut world = World::usual();
    let (long, longest_whole) = (vec![b'l'; 1_025], vec![b'w'; 1_024]);
    world.run(300, 2_000, |_, number| if number % 2 == 0 { long.clone() } else { longest_whole.clone() });
    let mut reports: Vec<_> = world.keys.hot().map(|report| report.key).collect();
    reports.sort_by_key(|key| key.length());
    assert_eq!(reports.len(), 2);
    assert!(reports[0].is_whole() && reports[0].bytes() == longest_whole);
    assert!(!reports[1].is_whole() && reports[1].bytes() == &long[..128]);
    assert_eq!(reports[1].length(), 1_025);
}

#[test]
fn reads_writes_and_costs_are_reported_by_the_second() {
    let mut world = World::usual();
    for number in 0..30_000_u64 {
        world.now = world.now.after(Duration::from_micros(100));
        world.tick();
        let (key, access): (&[u8], _) = match number % 10 {
            0 => (b"written", Access::Write),
            1 => (b"written", Access::Read),
            2..5 => (b"read", Access::Read),
            _ => (&number.to_le_bytes(), Access::Read),
        };
        world.ask_in(slot_of(key), key, access);
        let cost = Price::new(2 * UNIT);
        world.keys.note_cost(slot_of(key), cost);
        world.keys.note_key_cost(world.keys.hash(key), cost);
    }
    for (key, reads, writes) in [(b"written".as_slice(), 1_000.0, 1_000.0), (b"read", 3_000.0, 0.0)] {
        let report = world.report(key);
        let (share, ru) = ((reads + writes) / 10_000.0, 2.0 * (reads + writes));
        for (is, wanted) in [
            (report.reads_per_second, reads),
            (report.writes_per_second, writes),
            (report.ru_per_second, ru),
            (report.share, share),
        ] {
            assert!((is - wanted).abs() <= 0.03 * wanted, "{is} {wanted} {report:?}");
        }
        assert!(report.error_per_second < 0.01 && report.since.is_some() && report.id.is_some());
    }
    assert_eq!(world.keys.expensive().count(), 2);
}

#[test]
fn a_key_that_is_asked_for_rarely_and_costs_much_is_reported() {
    let (mut now, mut random) = (Timestamp::ZERO, Random::new(5));
    let mut keys = HotKeys::new(HotSettings::default(), SECRET, now);
    for number in 0..80_000_u64 {
        now = now.after(Duration::from_micros(50));
        keys.tick(now, &mut |event| panic!("{event:?}"));
        // Large replies come 20 times a second and cost 500 request units each: a third of the total cost.
        let is_large = number % 1_000 == 0;
        let key = if is_large { b"large".to_vec() } else { random_key(&mut random) };
        let cost = Price::new(if is_large { 500 * UNIT } else { UNIT });
        let (slot, hash) = (slot_of(&key), keys.hash(&key));
        if keys.note(slot) {
            keys.note_key(slot, hash, &key, Access::Read);
            keys.note_key_cost(hash, cost);
        }
        keys.note_cost(slot, cost);
    }
    assert_eq!(keys.hot().count(), 0);
    let expensive: Vec<_> = keys.expensive().collect();
    assert_eq!(expensive.len(), 1);
    assert_eq!((expensive[0].key.bytes(), expensive[0].id), (b"large".as_slice(), None));
    assert!((8_000.0..12_000.0).contains(&expensive[0].ru_per_second), "{expensive:?}");
}

#[test]
fn more_keys_than_there_are_records_for_are_counted_as_such() {
    let mut world = World::usual();
    // A thousand keys get thirty requests each in one pane, with no counts from earlier panes.
    for number in 0..30_000_u64 {
        let key = (number / 30).to_le_bytes();
        world.ask(&key);
    }
    assert!(world.keys.counters().unrecorded > 0);
    assert_eq!(world.keys.records.iter().count(), records::RECORDS_MAX);
    world.wait(Duration::from_millis(50));
    world.wait(Duration::from_millis(50));
    world.wait(Duration::from_millis(50));
    assert!(world.keys.records.is_empty() && world.promoted == 0);
    world.run(300, 1_000, |_, _| b"key".to_vec());
    assert!(world.is_hot(b"key"), "records are used again");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// With random pauses of up to half a second, few slots and skewed keys, counts are never too low,
    /// promotions are right, and no key is missed that was above the threshold all the time ([`World::tick`]
    /// checks at the end of each pane, an interval of 50 ms).
    #[test]
    fn counts_hold_what_was_asked(
        seed: u64, slots in 1_u16..40, keys in 1_u64..3_000, steps in 1_usize..60, keys_max in 30_usize..64,
        least_per_second in 1_u64..2_000,
    ) {
        let settings = HotSettings { least_per_second, keys_max, ..HotSettings::default() };
        let mut world = World::new(settings);
        let mut random = Random::new(seed);
        for _ in 0..steps {
            for _ in 0..random.below(200) {
                let number = random.below(keys).min(random.below(keys)).min(random.below(keys));
                let key = [b"{".as_slice(), &[(number % u64::from(slots)) as u8], b"}", &number.to_le_bytes()].concat();
                let access = if random.per_mille(300) { Access::Write } else { Access::Read };
                world.ask_in(slot_of(&key), &key, access);
                if random.per_mille(100) {
                    let cost = Price::new(random.below(1_000 * UNIT));
                    world.keys.note_cost(slot_of(&key), cost);
                    world.keys.note_key_cost(world.keys.hash(&key), cost);
                }
            }
            let millis = if random.per_mille(100) { random.below(500) } else { random.below(30) };
            world.wait(Duration::from_millis(millis));
        }
    }
}
