//! Simulation of a few hosts in virtual time with real pools, around a made-up store (a map). Users move
//! their demand between hosts.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::Quotas;
use crate::control::fleet::split;
use crate::control::pool::Rhythm;
use crate::control::reconciliation::Reconciliation;
use crate::control::{Exchange, FleetQuotas, FleetSettings};
use crate::policy::fleet::HostId;
use crate::protocol::reply;
use crate::values::allowance::{Report, lease_of};
use crate::values::limits::{FLEET_CANDIDATES_MAX, FLEET_KEYS_MAX};
use crate::values::{BucketId, Capacity, Demand, Random, ShardId, Timestamp, UNIT};

const STEP: Duration = Duration::from_millis(50);
const RATE: u64 = 100;
const BURST_SECONDS: f64 = 1.0;
const USER: Capacity = Capacity::new(RATE, RATE * UNIT);

/// A made-up store of the fleet, which keeps counters and the list of hosts. Nothing in it expires.
#[derive(Default)]
struct Store {
    counters: BTreeMap<String, i64>,
    hosts: BTreeMap<String, String>,
}

impl Store {
    fn carry_out(&mut self, exchange: &Exchange) -> Vec<u8> {
        let mut out = Vec::new();
        for request in split(&exchange.request).expect("requests have the form of replies") {
            let words = reply::elements(request).expect("an array");
            let words: Vec<String> = words
                .map(|word| String::from_utf8(reply::text(word).expect("a word").to_vec()).expect("text"))
                .collect();
            match words[0].as_str() {
                "HSET" => {
                    self.hosts.insert(words[2].clone(), words[3].clone());
                    out.extend(b":0\r\n");
                }
                "HGETALL" => {
                    out.extend(format!("*{}\r\n", 2 * self.hosts.len()).bytes());
                    let words = self.hosts.iter().flat_map(|(host, tick)| [host, tick]);
                    out.extend(words.flat_map(|word| format!("${}\r\n{word}\r\n", word.len()).into_bytes()));
                }
                "INCRBY" => {
                    let counter = self.counters.entry(words[1].clone()).or_default();
                    *counter += words[2].parse::<i64>().expect("a number");
                    out.extend(format!(":{counter}\r\n").bytes());
                }
                _ => out.extend(b":1\r\n"),
            }
        }
        out
    }
}

/// The traffic of one user at one host.
#[derive(Clone, Copy, Default)]
struct Part {
    /// Requests offered per second, each of one request unit.
    offered: f64,
    due: f64,
    holding: i64,
    spent: i64,
}

struct Host {
    fleet: FleetQuotas,
    pools: Reconciliation,
    next: Duration,
    users: BTreeMap<u64, Part>,
}

impl Host {
    fn new(number: u64, users_max: usize) -> Self {
        let settings = FleetSettings {
            store: "redis://h:1".to_owned(),
            namespace: "ns".to_owned(),
            host: HostId(0x1234_5678 * (number + 1)),
            secret: [1, 2],
            users_max,
        };
        let quotas = Quotas::parse("q", "[tenants.acme]\npassword = 'x'").expect("well formed");
        let mut fleet = FleetQuotas::new(settings, &quotas);
        let mut pools = Reconciliation::new(Rhythm { period: STEP, lease: lease_of(STEP) });
        fleet.start(&mut pools, Timestamp::ZERO);
        Self { next: fleet.phase(), fleet, pools, users: BTreeMap::new() }
    }
}

struct World {
    now: Duration,
    store: Store,
    hosts: Vec<Host>,
    admitted: BTreeMap<u64, u64>,
}

impl World {
    fn new(hosts: u64, users_max: usize) -> Self {
        let hosts = (0..hosts).map(|number| Host::new(number, users_max)).collect();
        let mut world =
            Self { now: Duration::ZERO, store: Store::default(), hosts, admitted: BTreeMap::new() };
        // Three periods let the hosts hear of each other.
        world.pass(3);
        world
    }

    /// Sets the requests per second that a user sends to each host from now on, in the order of the hosts.
    fn offer(&mut self, user: u64, offered: &[f64]) {
        for (host, offered) in self.hosts.iter_mut().zip(offered) {
            host.users.entry(user).or_default().offered = *offered;
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        let now = Timestamp::from_nanos(self.now.as_nanos() as u64);
        for host in &mut self.hosts {
            if host.next <= self.now {
                host.next += Duration::from_secs(1);
                let exchange = host.fleet.begin(now, &mut host.pools);
                let answer = self.store.carry_out(&exchange);
                host.fleet.handle_answer(exchange.number, Ok(&answer), now, &mut host.pools);
            }
            let mut asked = Vec::new();
            let mut demands = Vec::new();
            for (user, part) in &mut host.users {
                part.due += part.offered * STEP.as_secs_f64();
                let wanted = part.due.floor();
                part.due -= wanted;
                let wanted = wanted as u64 * UNIT;
                if wanted == 0 && part.spent == 0 {
                    continue;
                }
                let needed = if part.holding < wanted as i64 { UNIT } else { 0 };
                let spent = std::mem::take(&mut part.spent);
                demands.push(demand(*user, wanted, spent, needed));
                asked.push((*user, wanted));
            }
            let report = Report { shard: ShardId(0), version: 0, demands, usage: Vec::new() };
            let mut grants = Vec::new();
            host.pools.handle_report(&report, now, &mut grants);
            for ((user, wanted), grant) in asked.into_iter().zip(grants) {
                let part = host.users.get_mut(&user).expect("it asked");
                part.holding += grant.amount;
                part.spent = part.holding.clamp(0, wanted as i64) / UNIT as i64 * UNIT as i64;
                part.holding -= part.spent;
                *self.admitted.entry(user).or_default() += part.spent as u64 / UNIT;
            }
        }
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 1_000 / STEP.as_millis() as u64 {
            self.step();
        }
    }

    /// Runs for some seconds, and returns the request units that were admitted from a user in them.
    fn admits(&mut self, user: u64, seconds: u64) -> f64 {
        let before = self.admitted.get(&user).copied().unwrap_or(0);
        self.pass(seconds);
        (self.admitted.get(&user).copied().unwrap_or(0) - before) as f64
    }
}

const fn demand(user: u64, wanted: u64, spent: i64, needed: u64) -> Demand {
    Demand {
        bucket: BucketId(user),
        capacity: USER,
        wanted,
        asked: wanted,
        spent,
        surprise: 0,
        returned: 0,
        owed: 0,
        needed,
        lump: UNIT,
    }
}

#[test]
fn a_user_has_one_quota_wherever_in_the_fleet_it_asks() {
    let mut world = World::new(3, 10);
    // This user is never counted in the store, because it asks for less than every host may grant without
    // that.
    world.offer(7, &[3.0, 3.0, 0.0]);
    let usual = RATE as f64 * 10.0;
    for offered in [[300.0, 0.0, 0.0], [0.0, 300.0, 0.0], [200.0, 200.0, 200.0], [90.0, 0.0, 30.0]] {
        world.offer(5, &offered);
        world.pass(5);
        let light = world.admitted[&7];
        let admitted = world.admits(5, 10);
        assert!((0.93 * usual..1.02 * usual).contains(&admitted), "{offered:?}: {admitted}");
        assert_eq!(world.admitted[&7] - light, 60, "nothing of it is refused");
    }
    let figures = world.hosts.iter().map(|host| host.fleet.users().expect("they are shared"));
    assert!(figures.clone().all(|users| users.left_out == 0 && users.counted <= 1));
    assert_eq!(world.store.counters.keys().collect::<Vec<_>>(), ["{weir:ns}:d:user:0000000000000005"]);
    // A user without requests is forgotten.
    world.offer(5, &[0.0; 3]);
    world.pass(13);
    assert!(world.hosts.iter().all(|host| host.fleet.users().expect("they are shared").counted == 0));
}

/// Samples taken every half second: the units admitted from a user so far, and how many times so far the user
/// began to send much to a host that it had sent little or nothing to.
#[derive(Default)]
struct Past {
    admitted: Vec<f64>,
    fresh: Vec<f64>,
}

impl Past {
    /// Returns by how much the units admitted in any stretch of time exceeded the quota at most, in seconds
    /// of the quota's rate. The even share (with its burst) that each host grants a user who is new to it,
    /// until the other hosts know of the user, does not count as excess.
    fn worst(&self, hosts: u64) -> f64 {
        // A new host is noticed after one period (two if the user began late in one), known to the others in
        // the next period, and in effect one period later.
        const FELT: usize = 8;
        let mut worst: f64 = 0.0;
        for start in 0..self.admitted.len() {
            for end in start..self.admitted.len() {
                let admitted = (self.admitted[end] - self.admitted[start]) / RATE as f64;
                let fresh = self.fresh[end] - self.fresh[start.saturating_sub(FELT)];
                let unheard = fresh * (UNHEARD + BURST_SECONDS) / hosts as f64;
                let beyond = admitted - (end - start) as f64 * 0.5 - unheard;
                worst = worst.max(beyond);
            }
        }
        worst
    }
}

/// The number of periods (seconds) from a user's first request to a host until the other hosts know of it.
const UNHEARD: f64 = 3.0;
/// The permitted excess over a quota, in seconds of its rate, because shares of the quota are one period old.
const RISING: f64 = 0.2;

#[test]
fn no_user_is_admitted_more_than_the_bound_however_it_moves_about() {
    const USERS: u64 = 6;
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let hosts = random.between(2, 6);
        let mut world = World::new(hosts, FLEET_KEYS_MAX);
        let mut pasts: BTreeMap<u64, Past> = (0..USERS).map(|user| (user, Past::default())).collect();
        let mut fresh = [0.0; USERS as usize];
        for _ in 0..40 {
            for user in 0..USERS {
                let offered: Vec<f64> = (0..hosts)
                    .map(|_| if random.below(2) == 0 { 0.0 } else { random.between(1, 4 * RATE) as f64 })
                    .collect();
                let before =
                    world.hosts.iter().map(|host| host.users.get(&user).map_or(0.0, |part| part.offered));
                let floor = 0.1 * RATE as f64 / hosts as f64;
                let is_fresh = |(before, now): &(f64, &f64)| *before <= floor && **now > floor;
                fresh[user as usize] += before.zip(&offered).filter(is_fresh).count() as f64;
                world.offer(user, &offered);
            }
            for _ in 0..random.between(2, 30) {
                (0..10).for_each(|_| world.step());
                for (user, past) in &mut pasts {
                    past.admitted.push(world.admitted.get(user).copied().unwrap_or(0) as f64);
                    past.fresh.push(fresh[*user as usize]);
                }
            }
        }
        for (user, past) in &pasts {
            let worst = past.worst(hosts);
            assert!(worst <= BURST_SECONDS + RISING, "seed {seed}, user {user}, {hosts} hosts: {worst} s");
        }
    }
}

#[test]
fn who_goes_round_has_hardly_more_than_who_stays() {
    let mut world = World::new(3, 10);
    let begun = world.now;
    for turn in 0..60 {
        let mut offered = [0.0; 3];
        offered[turn % 3] = 400.0;
        world.offer(1, &offered);
        world.pass(2);
    }
    let seconds = world.now.saturating_sub(begun).as_secs_f64();
    let ratio = world.admitted[&1] as f64 / (RATE as f64 * seconds);
    assert!(ratio <= 1.0, "{ratio}");
}

#[test]
fn users_stay_counted_when_other_quotas_are_in_force() {
    let mut world = World::new(3, 10);
    world.offer(5, &[300.0, 0.0, 0.0]);
    world.offer(6, &[0.0, 300.0, 0.0]);
    world.pass(6);
    let texts = [
        "[global]\nru_per_second = 1_000\n[tenants.zeta]\npassword = 'x'\nru_per_second = 7",
        "[tenants.acme]\npassword = 'x'\n[tenants.zeta]\npassword = 'x'\nru_per_second = 9",
        "[tenants.acme]\npassword = 'x'",
    ];
    for text in texts {
        let quotas = Quotas::parse("q", text).expect("well formed");
        let now = Timestamp::from_nanos(world.now.as_nanos() as u64);
        for host in &mut world.hosts {
            host.fleet.handle_quotas(&quotas, &mut host.pools, now);
        }
        for user in [5, 6] {
            let admitted = world.admits(user, 3);
            assert!((0.9..1.05).contains(&(admitted / (3.0 * RATE as f64))), "{text}: {admitted}");
        }
        let parts = |user: u64| world.hosts.iter().map(move |host| host.pools.part(BucketId(user)).ratio());
        assert!(
            parts(5).next().is_some_and(|part| part > 0.9) && parts(6).nth(1).is_some_and(|part| part > 0.9)
        );
        assert_eq!(world.hosts[0].fleet.users().expect("they are shared").counted, 1);
    }
}

#[test]
fn a_user_goes_on_being_counted_through_a_takeover() {
    let user = BucketId::of_user(7, 1).0;
    let mut world = World::new(2, 10);
    world.offer(user, &[300.0, 0.0]);
    world.pass(6);
    let now = Timestamp::from_nanos(world.now.as_nanos() as u64);
    let mut successor = Host::new(0, 10);
    let before = &world.hosts[0];
    successor.fleet.inherit(&before.fleet.heritage(now), &mut successor.pools, now);
    successor.next = before.next;
    world.hosts[0] = successor;
    world.offer(user, &[300.0, 0.0]);
    let counted = |world: &World| world.store.counters[&format!("{{weir:ns}}:d:user:{user:016x}")];
    let reported = counted(&world);
    for second in 0..12 {
        let part = world.hosts[0].pools.part(BucketId(user)).ratio();
        assert!(part > 0.9, "{part} in second {second}");
        assert!(second < 3 || counted(&world) > reported, "the other hosts hear of the demand");
        world.pass(1);
    }
}

#[test]
fn of_many_users_some_are_counted_and_the_heaviest_first() {
    const MOST: usize = 50;
    let mut world = World::new(2, MOST);
    let host = &mut world.hosts[0];
    let mut now = Timestamp::from_nanos(world.now.as_nanos() as u64);
    let mut tell = |host: &mut Host, users: &[(u64, u64)], now: Timestamp| {
        let demands = users.iter().map(|(user, wanted)| demand(*user, wanted * UNIT, 0, 0)).collect();
        let report = Report { shard: ShardId(0), version: 0, demands, usage: Vec::new() };
        host.pools.handle_report(&report, now, &mut Vec::new());
        let exchange = host.fleet.begin(now.after(STEP), &mut host.pools);
        // An exchange has the list of hosts, and two commands for each counted user.
        assert!(exchange.replies <= 3 + 2 * MOST, "{}", exchange.replies);
        let answer = world.store.carry_out(&exchange);
        host.fleet.handle_answer(exchange.number, Ok(&answer), now.after(STEP), &mut host.pools);
        host.fleet.users().expect("they are shared")
    };
    // A hundred thousand users, none of whom asks for much.
    let light: Vec<(u64, u64)> = (1..=100_000).map(|user| (user, 4)).collect();
    let figures = tell(host, &light, now);
    assert_eq!((figures.counted, figures.left_out), (0, 0));
    // Twice as many heavy users as the store's counters may cover.
    let heavy: Vec<(u64, u64)> =
        (0..2 * FLEET_CANDIDATES_MAX as u64).map(|user| (1_000_000 + user, 30)).collect();
    now = now.after(Duration::from_secs(1));
    let most: Vec<(u64, u64)> = (0..MOST as u64).map(|user| (2_000_000 + user, 90)).collect();
    let figures = tell(host, &[&heavy[..1_000], &most[..], &heavy[1_000..]].concat(), now);
    assert_eq!((figures.counted, figures.left_out), (MOST, (FLEET_CANDIDATES_MAX - MOST) as u64));
    let counted = |world: &Store| world.counters.keys().filter(|key| key.contains(":00000000001e84")).count();
    // Users that are counted stay counted, whoever comes after them.
    now = now.after(Duration::from_secs(1));
    let figures = tell(host, &[&heavy[..], &most[..]].concat(), now);
    assert_eq!(figures.counted, MOST);
    // Some of them become light, and other users take their places.
    now = now.after(Duration::from_secs(1));
    tell(host, &[&heavy[..100], &most[10..]].concat(), now);
    now = now.after(Duration::from_secs(1));
    let figures = tell(host, &[&heavy[..100], &most[10..]].concat(), now);
    assert_eq!(figures.counted, MOST);
    assert_eq!(world.store.counters.len(), MOST + 10);
    assert_eq!(counted(&world.store), MOST);
}
