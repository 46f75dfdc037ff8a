//! Figures of hosts with many cores: how exactly quotas hold while demand moves, what cores, hosts and the fleet's
//! store tell each other for it, and how often stores are asked for a key that everybody reads.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::hosts::{Hosts, Shape, Traffic};
use weir::config::Quotas;
use weir::protocol::encode;
use weir::shard::Counter;
use weir::values::{ClientId, Random, Timestamp, UNIT};

/// A case to simulate: tenants with quotas, all of which ask for more than they may have, on cores that
/// change.
#[derive(Clone, Copy, Debug)]
pub struct QuotaCase {
    /// The number of simulated hosts, which share the tenants' quotas if there are several.
    pub hosts: u16,
    /// The number of cores of each host.
    pub cores: u16,
    /// The number of tenants, each with a quota of its own.
    pub tenants: u16,
    /// The quota of each tenant, in request units per second.
    pub ru_per_second: u64,
    /// The length of the time in which requests are counted, after a time for warming up.
    pub counted: Duration,
}

/// The figures that the simulation of a [`QuotaCase`] yields.
#[derive(Clone, Copy, Debug)]
pub struct QuotaFigures {
    /// Request units admitted in the counted time, divided by the quota for that time: of all tenants
    /// together, of the tenant that got least, and of the one that got most.
    pub served: [f64; 3],
    /// The most that any tenant was admitted in any interval of time beyond its quota for that interval, in
    /// seconds of the quota. A burst of one second is allowed.
    pub beyond: f64,
    /// Number of reports of cores to their control executor (which divides quotas among the cores of a
    /// host), per second and host.
    pub reports: f64,
    /// Number of entries, one for each token bucket of a quota, in the reports of cores to their control
    /// executors, per second and host.
    pub demands: f64,
    /// Number of batches of messages between cores, per second and host.
    pub batches: f64,
    /// Number of requests of clients, per second and host.
    pub requests: f64,
    /// Number of commands per second at the fleet's store (over which hosts share quotas), and the bytes of
    /// its replies per second.
    pub fleet: [f64; 2],
}

/// A case to simulate: a key that clients of every core read, while a client that bypasses weir changes it.
#[derive(Clone, Copy, Debug)]
pub struct HotCase {
    /// The number of hosts that are simulated.
    pub hosts: u16,
    /// The number of cores of each host.
    pub cores: u16,
    /// Number of reads of the key per second that clients send to each core.
    pub reads_per_core: u64,
    /// Number of changes of the hot key per second.
    pub changes: u64,
    /// True if the store reports changes of the key to weir (CLIENT TRACKING); otherwise weir keeps replies
    /// for a second.
    pub tracked: bool,
    /// The length of the time in which requests are counted, after a time for warming up.
    pub counted: Duration,
}

/// The figures that the simulation of a [`HotCase`] yields.
#[derive(Clone, Copy, Debug)]
pub struct HotFigures {
    /// Number of reads of the hot key per second, of all clients together.
    pub asked: f64,
    /// Number of reads of the hot key per second that reach the store.
    pub store_reads: f64,
    /// The part (0 to 1) of the reads that were answered from the cache of the key's home core (the core of
    /// a host that handles the key).
    pub home: f64,
    /// The part (0 to 1) of the reads that were answered from a copy of the reply on another core than the
    /// key's own.
    pub copied: f64,
    /// The part (0 to 1) of the reads that waited for a shared fetch (one read at the store for all reads
    /// that come meanwhile), including those that began one.
    pub joined: f64,
    /// Number of batches of messages between cores for each thousand reads.
    pub batches: f64,
    /// Number of messages per second by which the store reports changes of the key to weir.
    pub told: f64,
    /// The longest time by which a reply was outdated: from the replacement of its value at the store until
    /// the client got it.
    pub oldest: Duration,
}

/// The number of clients' connections that all tenants share evenly. Each tenant has at least 4, and at most
/// one for each core.
const SEATS: usize = 4_096;
const SEATS_LEAST: usize = 4;
/// The mean time for which a tenant's requests come in over the same client, and so on the same core (or over
/// all of its clients): on one host, and in a fleet, whose hosts need three to four seconds to find out about
/// a change.
const STAYS: [Duration; 2] = [Duration::from_millis(700), Duration::from_secs(15)];
/// The time before counting, in which bursts are used up and hosts and cores find their shares of quotas: on
/// one host, and in a fleet.
const WARM_UP: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(8)];
/// The demand of each tenant, as a multiple of its quota.
const ASKED: u64 = 2;
const STORES: u16 = 4;
const KEY: &[u8] = b"hot";
const TRACKED_TTL: Duration = Duration::from_secs(300);

/// A tenant's clients (`seats`: the core, and the client's id there), and the client that sends its requests
/// at present.
struct Tenant {
    seats: Vec<(usize, ClientId)>,
    /// The index in `seats` of the client that sends all requests; `None` if they spread over all clients.
    at: Option<usize>,
    moves_at: Timestamp,
    asked: u64,
    account: Account,
}

/// Finds, in one pass over time, the most request units that were admitted beyond a quota in any interval.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    admitted: u64,
    /// The lowest value so far of the balance: what was admitted since the start less the quota since then,
    /// in millionths of a request unit. `risen` is the most that the balance has risen above an earlier
    /// value.
    lowest: i64,
    risen: i64,
}

impl Account {
    /// Records the amount admitted up to a time, and the quota up to that time, both since the start and in
    /// millionths of a request unit.
    fn note(&mut self, admitted: u64, quota: u64) {
        // The balance falls until something is admitted, so it was lowest just before.
        self.lowest = self.lowest.min(self.admitted as i64 - quota as i64);
        self.admitted = admitted;
        self.risen = self.risen.max(admitted as i64 - quota as i64 - self.lowest);
    }
}

/// Simulates tenants with quotas on cores that change, and returns the figures of the case.
pub fn quotas(case: QuotaCase) -> QuotaFigures {
    let text = (0..case.tenants).fold(String::new(), |mut text, tenant| {
        let rate = case.ru_per_second;
        let _ = writeln!(text, "[tenants.t{tenant}]\npassword = \"p\"\nru_per_second = {rate}");
        text
    });
    let quotas = Arc::new(Quotas::parse("quotas.toml", &text).expect("a valid file"));
    let is_fleet = case.hosts > 1;
    let mut hosts = Hosts::new(Shape {
        hosts: case.hosts,
        cores: case.cores,
        stores: STORES,
        quotas: Arc::clone(&quotas),
        shares_quotas: is_fleet,
        tracked_ttl: None,
    });
    let mut random = Random::new(1);
    let seats = (SEATS / usize::from(case.tenants)).max(SEATS_LEAST).min(hosts.cores());
    let mut tenants: Vec<Tenant> = quotas
        .tenants()
        .map(|(_, tenant)| Tenant {
            seats: (0..seats)
                .map(|seat| connect(&mut hosts, seat, seats, &tenant.name, &mut random))
                .collect(),
            at: None,
            moves_at: Timestamp::ZERO,
            asked: 0,
            account: Account::default(),
        })
        .collect();
    let gap = Duration::from_secs(1) / (ASKED * case.ru_per_second) as u32;
    let mut next: BinaryHeap<Reverse<(Timestamp, usize)>> = (0..tenants.len())
        .map(|tenant| Reverse((Timestamp::ZERO.after(gap.mul_f64(random.unit())), tenant)))
        .collect();
    let from = Timestamp::ZERO.after(WARM_UP[usize::from(is_fleet)]);
    let until = from.after(case.counted);
    let mut before = None;
    while hosts.now() < until {
        while let Some(Reverse((at, tenant))) = next.peek().copied()
            && at <= hosts.now()
        {
            next.pop();
            next.push(Reverse((at.after(gap.mul_f64(random.exponential())), tenant)));
            ask(&mut hosts, &mut tenants[tenant], tenant, STAYS[usize::from(is_fleet)], &mut random);
        }
        hosts.tick();
        hosts.take_replies();
        let quota = case.ru_per_second * hosts.now().as_nanos() / 1_000;
        for (tenant, usage) in hosts.take_usage() {
            tenants[tenant].account.note(usage.admitted + usage.cached, quota);
        }
        if before.is_none() && hosts.now() >= from {
            let admitted: Vec<u64> = tenants.iter().map(|tenant| tenant.account.admitted).collect();
            before = Some((hosts.traffic(), admitted, counted(&hosts)));
        }
    }
    let (traffic, admitted, [requests, batches]) = before.expect("the counted time has begun");
    let now = hosts.traffic();
    let seconds = case.counted.as_secs_f64();
    let quota = (case.ru_per_second * UNIT) as f64 * seconds;
    let served: Vec<f64> = tenants
        .iter()
        .zip(admitted)
        .map(|(tenant, before)| (tenant.account.admitted - before) as f64 / quota)
        .collect();
    let risen = tenants.iter().map(|tenant| tenant.account.risen).max().unwrap_or_default();
    let by_host = |count: u64| count as f64 / seconds / f64::from(case.hosts);
    let [requests_now, batches_now] = counted(&hosts);
    QuotaFigures {
        served: [
            served.iter().sum::<f64>() / served.len() as f64,
            served.iter().copied().fold(f64::INFINITY, f64::min),
            served.iter().copied().fold(0.0, f64::max),
        ],
        beyond: risen as f64 / (case.ru_per_second * UNIT) as f64,
        reports: by_host(now.reports - traffic.reports),
        demands: by_host(now.demands - traffic.demands),
        batches: by_host(batches_now - batches),
        requests: by_host(requests_now - requests),
        fleet: [
            (now.fleet_commands - traffic.fleet_commands) as f64 / seconds,
            (now.fleet_bytes - traffic.fleet_bytes) as f64 / seconds,
        ],
    }
}

/// Returns the numbers of requests, and of batches of messages between cores, since the start of the
/// simulation, over all hosts.
fn counted(hosts: &Hosts) -> [u64; 2] {
    [Counter::Requests, Counter::BatchesSent].map(|counter| hosts.counted(counter))
}

/// Connects the client number `seat` of the tenant `name`, which has `seats` clients, and logs it in: on a
/// random core, or on core `seat` if there are as many clients as cores. Returns the core (an index over all
/// hosts) and the client's id there.
fn connect(
    hosts: &mut Hosts,
    seat: usize,
    seats: usize,
    name: &str,
    random: &mut Random,
) -> (usize, ClientId) {
    let core = if seats == hosts.cores() { seat } else { random.index(hosts.cores()) };
    let client = hosts.connect_client(core);
    let mut login = Vec::new();
    encode::request(&mut login, [&b"AUTH"[..], name.as_bytes(), b"p"].into_iter());
    hosts.send(core, client, login);
    (core, client)
}

/// Sends the next request of a tenant (with the index `number`), over one of its clients for about `stays`,
/// or over a random one each time. After that time, a new choice is made.
fn ask(hosts: &mut Hosts, tenant: &mut Tenant, number: usize, stays: Duration, random: &mut Random) {
    if tenant.moves_at <= hosts.now() {
        tenant.moves_at = hosts.now().after(stays.mul_f64(0.5 + random.unit()));
        tenant.at = random.per_mille(500).then(|| random.index(tenant.seats.len()));
    }
    let seat = tenant.at.unwrap_or_else(|| random.index(tenant.seats.len()));
    let (core, client) = tenant.seats[seat];
    tenant.asked += 1;
    let key = format!("t{number}:{}", tenant.asked);
    let mut request = Vec::new();
    encode::request(&mut request, [&b"GET"[..], key.as_bytes()].into_iter());
    hosts.send(core, client, request);
}

/// Simulates a hot key that clients of every core read, and returns the figures of the case.
pub fn hot_key(case: HotCase) -> HotFigures {
    const WARM_UP: Duration = Duration::from_millis(1_500);
    let mut hosts = Hosts::new(Shape {
        hosts: case.hosts,
        cores: case.cores,
        stores: STORES,
        quotas: Arc::new(Quotas::trusting()),
        shares_quotas: false,
        tracked_ttl: case.tracked.then_some(TRACKED_TTL),
    });
    let mut random = Random::new(1);
    let clients: Vec<ClientId> = (0..hosts.cores()).map(|core| hosts.connect_client(core)).collect();
    let mut read = Vec::new();
    encode::request(&mut read, [&b"GET"[..], KEY].into_iter());
    let gap = Duration::from_secs(1) / case.reads_per_core as u32;
    let mut next: Vec<Timestamp> =
        clients.iter().map(|_| Timestamp::ZERO.after(gap.mul_f64(random.unit()))).collect();
    let [from, until] = [WARM_UP, WARM_UP + case.counted].map(|time| Timestamp::ZERO.after(time));
    // The times at which each value, a number from 0, was replaced.
    let mut replaced: Vec<Timestamp> = Vec::new();
    hosts.write_around(KEY, b"0");
    let mut changes_at = Timestamp::ZERO;
    let (mut oldest, mut before) = (Duration::ZERO, None);
    while hosts.now() < until {
        if case.changes > 0 && changes_at <= hosts.now() {
            replaced.push(hosts.now());
            hosts.write_around(KEY, replaced.len().to_string().as_bytes());
            changes_at = changes_at.after(Duration::from_secs(1) / case.changes as u32);
        }
        for (core, client) in clients.iter().enumerate() {
            let mut burst = Vec::new();
            while next[core] <= hosts.now() {
                next[core] = next[core].after(gap.mul_f64(random.exponential()));
                burst.extend_from_slice(&read);
            }
            if !burst.is_empty() {
                hosts.send(core, *client, burst);
            }
        }
        hosts.tick();
        let replies = hosts.take_replies();
        if hosts.now() >= from {
            before = before.or_else(|| Some(HotCounts::of(&hosts)));
            let values = replies
                .split(|byte| *byte == b'\n')
                .filter(|line| line.first().is_some_and(u8::is_ascii_digit));
            for value in values {
                let value: usize =
                    std::str::from_utf8(value).expect("a number").trim().parse().expect("a number");
                if let Some(since) = replaced.get(value) {
                    oldest = oldest.max(hosts.now().since(*since));
                }
            }
        }
    }
    let (seconds, now) = (case.counted.as_secs_f64(), HotCounts::of(&hosts));
    let before = before.expect("the counted time has begun");
    let since = |of: fn(&HotCounts) -> u64| (of(&now) - of(&before)) as f64;
    let asked = since(|counts| counts.requests).max(1.0);
    HotFigures {
        asked: asked / seconds,
        store_reads: since(|counts| counts.traffic.store_reads) / seconds,
        home: since(|counts| counts.home) / asked,
        copied: since(|counts| counts.copied) / asked,
        joined: since(|counts| counts.joined) / asked,
        batches: 1_000.0 * since(|counts| counts.batches) / asked,
        told: since(|counts| counts.told) / seconds,
        oldest,
    }
}

/// Counts, since the start, of a simulated run with a hot key, taken at one time.
struct HotCounts {
    traffic: Traffic,
    requests: u64,
    batches: u64,
    home: u64,
    copied: u64,
    joined: u64,
    told: u64,
}

impl HotCounts {
    fn of(hosts: &Hosts) -> Self {
        let [requests, batches] = counted(hosts);
        Self {
            traffic: hosts.traffic(),
            requests,
            batches,
            home: hosts.counted(Counter::HotHits),
            copied: hosts.counted(Counter::HotHitsCopied),
            joined: hosts.counted(Counter::HotJoins),
            told: hosts.counted(Counter::HotChanges),
        }
    }
}

/// Prints all cases of quotas and of hot keys, as tables in Markdown.
pub fn print_all() {
    println!(
        "| hosts | cores | tenants | requests/s and host | served / quota | least | most | beyond (s) | reports/s and host | buckets told/s and host | batches/s and host | commands/s at the fleet's store | kB/s from it |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let shapes: [(u16, u16); 6] = [(1, 1), (1, 8), (1, 64), (10, 64), (100, 8), (1_000, 1)];
    for (hosts, cores) in shapes {
        let sizes: &[(u16, u64)] =
            if hosts == 1 { &[(1, 20_000), (100, 200), (10_000, 4)] } else { &[(1, 20_000), (100, 200)] };
        for (tenants, ru_per_second) in sizes.iter().copied() {
            let counted = Duration::from_secs(if hosts == 1 { 5 } else { 15 });
            let figures = quotas(QuotaCase { hosts, cores, tenants, ru_per_second, counted });
            let [all, least, most] = figures.served;
            let [commands, bytes] = figures.fleet;
            println!(
                "| {hosts} | {cores} | {tenants} | {:.0} | {all:.3} | {least:.3} | {most:.3} | {:.2} | {:.0} | {:.0} | {:.0} | {commands:.0} | {:.0} |",
                figures.requests,
                figures.beyond,
                figures.reports,
                figures.demands,
                figures.batches,
                bytes / 1_000.0
            );
        }
    }
    println!();
    println!(
        "| hosts | cores | store tells | reads/s | reads/s at the store | of each host | from the home core | from copies | joined a fetch | batches per 1,000 reads | changes told/s | oldest value (ms) |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for (hosts, cores) in shapes {
        for tracked in [false, true] {
            let reads_per_core = if hosts == 1 { 3_000 } else { 300 }.max(600 / u64::from(cores));
            let counted = Duration::from_secs(4);
            let figures = hot_key(HotCase { hosts, cores, reads_per_core, changes: 2, tracked, counted });
            println!(
                "| {hosts} | {cores} | {} | {:.0} | {:.1} | {:.2} | {:.1} % | {:.1} % | {:.1} % | {:.0} | {:.1} | {:.1} |",
                if tracked { "yes" } else { "no" },
                figures.asked,
                figures.store_reads,
                figures.store_reads / f64::from(hosts),
                100.0 * figures.home,
                100.0 * figures.copied,
                100.0 * figures.joined,
                figures.batches,
                figures.told,
                1_000.0 * figures.oldest.as_secs_f64()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::hosts::TICK;
    use super::*;

    #[test]
    fn quotas_hold_on_64_cores_while_demand_moves() {
        let counted = Duration::from_secs(3);
        let case = QuotaCase { hosts: 1, cores: 64, tenants: 20, ru_per_second: 200, counted };
        let figures = quotas(case);
        let [all, least, most] = figures.served;
        assert!(all > 0.97 && least > 0.95, "{figures:?}");
        assert!(most < 1.03 && figures.beyond < 1.1, "{figures:?}");
    }

    #[test]
    fn hosts_share_a_quota_over_the_fleet_s_store() {
        let counted = Duration::from_secs(12);
        let case = QuotaCase { hosts: 5, cores: 2, tenants: 4, ru_per_second: 200, counted };
        let figures = quotas(case);
        let [all, _, most] = figures.served;
        assert!(all > 0.8 && most < 1.05, "{figures:?}");
        assert!(figures.fleet[0] > 10.0, "{figures:?}");
    }

    #[test]
    fn a_store_is_asked_for_a_hot_key_once_per_change_by_each_host() {
        let counted = Duration::from_secs(2);
        let case = HotCase { hosts: 2, cores: 16, reads_per_core: 500, changes: 4, tracked: true, counted };
        let figures = hot_key(case);
        assert!(figures.store_reads >= 8.0 && figures.store_reads <= 16.0, "{figures:?}");
        assert!(figures.oldest < 20 * TICK, "{figures:?}");
        assert!(figures.home + figures.copied + figures.joined > 0.99, "{figures:?}");
    }

    #[test]
    fn a_store_that_tells_nothing_is_asked_about_once_a_second_by_each_host() {
        let counted = Duration::from_secs(3);
        let case = HotCase { hosts: 2, cores: 16, reads_per_core: 500, changes: 4, tracked: false, counted };
        let figures = hot_key(case);
        assert!((1.0..=5.0).contains(&figures.store_reads), "{figures:?}");
        assert!(figures.home + figures.copied + figures.joined > 0.99, "{figures:?}");
        assert!(figures.oldest <= Duration::from_millis(1_200), "{figures:?}");
    }
}
