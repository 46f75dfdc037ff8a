//! Simulation of a tenant whose replies cost far more than its requests show, with the real accounts of one to four
//! cores and their reconciliation in virtual time. In any ten seconds the tenant is served at most its quota, one
//! burst, and one expensive request per core; honest tenants get their whole quota.

use std::collections::VecDeque;
use std::time::Duration;

use weir::config::Quotas;
use weir::control::pool::Rhythm;
use weir::control::reconciliation::Reconciliation;
use weir::policy::price::Quote;
use weir::protocol::command::Class;
use weir::shard::{Accounts, AdmissionSettings, Bill, Charge, Decision, Outlook, Payer};
use weir::values::allowance::lease_of;
use weir::values::{Grant, MicroUnits, Price, Random, ShardId, Timestamp, UNIT};

const PERIOD: Duration = Duration::from_millis(10);
const STRETCH_MS: u64 = 10_000;
/// The time in milliseconds that a request waits for others to be settled before it is refused.
const PATIENCE_MS: u64 = 100;
/// The cost of an expensive reply.
const DEAR: MicroUnits = 100 * UNIT;

/// Gives the cost of a reply beyond the one unit of its request, by the request's number.
type Cost = fn(u64, &mut Random) -> MicroUnits;

#[derive(Clone, Copy)]
struct Case {
    cores: usize,
    ru_per_second: u64,
    burst_ms: u64,
    /// The number of connections per core, each of which keeps up to `pipeline` requests in flight.
    connections: usize,
    pipeline: usize,
    /// The time from request to reply, in milliseconds.
    round_trip_ms: u64,
    cost: Cost,
    seconds: u64,
}

struct Connection {
    core: usize,
    in_flight: usize,
    waits_since: Option<u64>,
    back_at: u64,
}

struct World {
    case: Case,
    cores: Vec<Accounts>,
    control: Reconciliation,
    payer: Payer,
    connections: Vec<Connection>,
    /// Requests at the store, in order: the time of the reply (milliseconds), the connection, the charge, and
    /// the cost beyond the charge's fixed part.
    at_store: VecDeque<(u64, usize, Charge, MicroUnits)>,
    random: Random,
    asked: u64,
    /// Micro-units served, by the millisecond of the reply.
    served: Vec<u64>,
}

impl World {
    fn new(case: Case) -> Self {
        let quotas = Quotas::parse(
            "quotas.toml",
            &format!(
                "[tenants.acme]\npassword = 'a'\nru_per_second = {}\nburst_seconds = {}\n",
                case.ru_per_second,
                case.burst_ms as f64 / 1_000.0
            ),
        )
        .expect("well formed");
        let accounts = |core| {
            Accounts::new(ShardId(core as u16), case.cores as u16, &AdmissionSettings::default(), &quotas)
        };
        let tenant = quotas.find("acme").expect("it is there");
        let connection =
            |place| Connection { core: place % case.cores, in_flight: 0, waits_since: None, back_at: 0 };
        Self {
            case,
            cores: (0..case.cores).map(accounts).collect(),
            control: Reconciliation::new(Rhythm { period: PERIOD, lease: lease_of(PERIOD) }),
            payer: Payer::new(tenant, None, quotas.version()),
            connections: (0..case.connections * case.cores).map(connection).collect(),
            at_store: VecDeque::new(),
            random: Random::new(1),
            asked: 0,
            served: Vec::new(),
        }
    }

    fn run(mut self) -> Vec<u64> {
        for ms in 1..=self.case.seconds * 1_000 {
            let now = Timestamp::from_millis(ms);
            self.served.push(0);
            while self.at_store.front().is_some_and(|(at, ..)| *at <= ms) {
                let (_, place, charge, beyond) = self.at_store.pop_front().expect("it is there");
                let cost = Price::new(charge.quote.fixed.micro() + beyond);
                *self.served.last_mut().expect("pushed just now") += cost.micro();
                let connection = &mut self.connections[place];
                connection.in_flight -= 1;
                self.cores[connection.core].settle(&charge, Bill::Cost { due: cost, unbilled: 0 }, now);
            }
            for place in 0..self.connections.len() {
                while self.goes_on(place, ms, now) {}
            }
            self.exchange(now);
        }
        for (core, accounts) in self.cores.iter_mut().enumerate() {
            let open = self.at_store.iter().filter(|(_, place, ..)| place % self.case.cores == core).count();
            assert_eq!(accounts.under_way(self.payer.tenant()), open as u32, "each is settled once");
        }
        self.served
    }

    /// Sends the next request of a connection. False if the request waits or is refused, if the connection has no room
    /// for one, or if it pauses after a refusal.
    fn goes_on(&mut self, place: usize, ms: u64, now: Timestamp) -> bool {
        let Case { pipeline, round_trip_ms, cost, .. } = self.case;
        let payer = self.payer;
        let connection = &mut self.connections[place];
        let accounts = &mut self.cores[connection.core];
        if connection.in_flight >= pipeline || connection.back_at > ms {
            return false;
        }
        let class = Class::Range;
        let quote = Quote { fixed: Price::new(UNIT), ..Quote::default() };
        let taken = Price::new(UNIT + accounts.expected(payer, class));
        let refused = |connection: &mut Connection, retry_after: Duration| {
            connection.waits_since = None;
            connection.back_at = ms + (retry_after.as_millis() as u64).clamp(1, 1_000);
        };
        match accounts.outlook(payer, class, taken, now) {
            Outlook::Covered | Outlook::Lacking => {}
            Outlook::Unknown => return false,
            Outlook::Risky { retry_after, scope } => {
                let since = *connection.waits_since.get_or_insert(ms);
                if ms - since >= PATIENCE_MS {
                    accounts.handle_denied(scope, taken, now);
                    refused(connection, retry_after);
                }
                return false;
            }
        }
        match accounts.admit(payer, taken, now) {
            Decision::Admitted => {
                accounts.begin(payer, class);
                connection.waits_since = None;
                connection.in_flight += 1;
                self.asked += 1;
                let beyond = cost(self.asked, &mut self.random);
                let charge = Charge { taken, quote, payer, class, is_unrefused: false };
                self.at_store.push_back((ms + round_trip_ms, place, charge, beyond));
                true
            }
            Decision::Wait => false,
            Decision::Refused { retry_after, .. } => {
                refused(connection, retry_after);
                false
            }
        }
    }

    /// Delivers each core's report to the control side, and the answer to the core.
    fn exchange(&mut self, now: Timestamp) {
        for accounts in &mut self.cores {
            accounts.handle_turn_end(now);
            while let Some(report) = accounts.poll_report() {
                let mut grants: Vec<Grant> = Vec::new();
                self.control.handle_report(&report, now, &mut grants);
                accounts.handle_grants(&grants, now);
            }
        }
    }
}

/// Returns the most request units that were served in any ten seconds.
fn worst_stretch(served: &[u64]) -> u64 {
    let mut sums = vec![0];
    served.iter().for_each(|served| sums.push(sums[sums.len() - 1] + served));
    let worst = sums[STRETCH_MS as usize..].iter().zip(&sums).map(|(end, start)| end - start).max();
    worst.expect("longer than a stretch") / UNIT
}

fn total(served: &[u64]) -> u64 {
    served.iter().sum::<u64>() / UNIT
}

/// Returns the bound for ten seconds in request units: the quota, one burst, and one expensive request per
/// core, whose cost is known only with its reply.
fn bound(case: &Case) -> u64 {
    let quota = case.ru_per_second * STRETCH_MS / 1_000;
    quota + case.ru_per_second * case.burst_ms / 1_000 + case.cores as u64 * (1 + DEAR / UNIT)
}

fn alternating(number: u64, _: &mut Random) -> MicroUnits {
    number % 2 * DEAR
}

fn in_blocks(number: u64, _: &mut Random) -> MicroUnits {
    if (number / 64).is_multiple_of(2) { 0 } else { DEAR }
}

fn in_rare_blocks(number: u64, _: &mut Random) -> MicroUnits {
    if number % 1_064 < 1_000 { 0 } else { DEAR }
}

/// One reply in a thousand costs 256 units more than its request, as one of a MiB does.
fn rarely_large(_: u64, random: &mut Random) -> MicroUnits {
    if random.below(1_000) == 0 { 256 * UNIT } else { 0 }
}

fn somewhat_varied(_: u64, random: &mut Random) -> MicroUnits {
    random.below(3 * UNIT)
}

const SMALL: Case = Case {
    cores: 1,
    ru_per_second: 100,
    burst_ms: 1_000,
    connections: 50,
    pipeline: 1,
    round_trip_ms: 5,
    cost: alternating,
    seconds: 60,
};

#[test]
fn dear_replies_among_cheap_ones_are_served_no_more_than_the_quota_and_one_burst() {
    for cores in [1, 2, 4] {
        for (connections, pipeline) in [(50, 1), (1, 64), (4, 64), (1, 1)] {
            for round_trip_ms in [1, 5, 50] {
                let case = Case { cores, connections, pipeline, round_trip_ms, ..SMALL };
                let served = World::new(case).run();
                let worst = worst_stretch(&served);
                assert!(
                    worst <= bound(&case),
                    "{worst}: {cores} cores, {connections} x {pipeline}, {round_trip_ms} ms"
                );
            }
        }
    }
}

/// The first expensive replies after many cheap ones make a debt, which is paid back; later ones are
/// expected.
#[test]
fn dear_replies_in_blocks_exceed_the_quota_once() {
    for cores in [1, 4] {
        for (connections, pipeline) in [(50, 1), (1, 64)] {
            for round_trip_ms in [1, 50] {
                for cost in [in_blocks as Cost, in_rare_blocks] {
                    let case =
                        Case { cores, connections, pipeline, round_trip_ms, cost, seconds: 300, ..SMALL };
                    let served = World::new(case).run();
                    let worst = worst_stretch(&served[100_000..]);
                    let told =
                        format!("{worst}: {cores} cores, {connections} x {pipeline}, {round_trip_ms} ms");
                    assert!(worst <= bound(&case), "{told}");
                    assert!(total(&served) <= case.ru_per_second * case.seconds * 103 / 100 + 100, "{told}");
                }
            }
        }
    }
}

#[test]
fn honest_tenants_are_served_all_of_their_quota() {
    for cores in [1, 4] {
        for (ru_per_second, burst_ms, round_trip_ms) in [
            (100, 1_000, 5),
            (1_000, 1_000, 20),
            (10_000, 1_000, 5),
            (1_000, 1_000, 100),
            (1_000, 200, 20),
            (1_000, 100, 20),
            (1_000, 200, 100),
        ] {
            for cost in [rarely_large as Cost, somewhat_varied, alternating] {
                let case = Case {
                    cores,
                    ru_per_second,
                    burst_ms,
                    round_trip_ms,
                    connections: 64,
                    pipeline: 4,
                    cost,
                    seconds: 40,
                };
                let total = total(&World::new(case).run());
                assert!(
                    total >= ru_per_second * case.seconds * 98 / 100,
                    "{total}: {cores} cores, {ru_per_second}/s, burst {burst_ms} ms, {round_trip_ms} ms"
                );
            }
        }
    }
}
