//! Tests of admission in the pipeline: prices of requests, and quotas.

use super::*;
use crate::policy::fixed_window::FixedWindows;
use crate::shard::admission::{AdmissionStage, Payer};
use crate::values::{BucketId, TenantId};

const LIMITED: &str = r"
    [global]
    ru_per_second = 1_000
    [default]
    ru_per_second = 10
    user_ru_per_second = 5
    admin = true
";

/// Returns a test rig (shards with scripted stores and clients) with limited tenants, whose quota pools (the parts of
/// buckets that no core holds) have nothing left: they grant only the amounts that cores have already spent on credit.
fn limited(shards: u16) -> Rig {
    limited_at(shards, Weights { base: UNIT, hit: UNIT / 10, row: UNIT / 100, ..FREE })
}

fn limited_at(shards: u16, weights: Weights) -> Rig {
    limited_with(shards, |settings| settings.admission.weights = weights)
}

fn limited_with(shards: u16, change: impl Fn(&mut ShardSettings)) -> Rig {
    let mut rig = Rig::with(shards, 1, change);
    let now = rig.now;
    for shard in &mut rig.shards {
        shard.handle_quotas(quotas(LIMITED), now);
    }
    rig.pools = (0, true);
    rig
}

#[test]
fn a_request_without_quota_is_refused_in_its_place_and_takes_nothing() {
    let mut rig = limited(1);
    let client = rig.client(0);
    // The first request runs on credit; the others wait for the pool, which has nothing for them.
    rig.send(client, &[&["GET", "a"], &["GET", "b"], &["PING"], &["GET", "c"]]);
    assert_eq!(rig.words_at_stores(), ["GET"]);
    rig.answer_next("$1\r\na\r\n");
    let told = rig.told(client);
    let lines: Vec<&str> = told.split("\r\n").collect();
    assert_eq!(lines[..2], ["$1", "a"]);
    assert!(
        lines[2].starts_with("-THROTTLED scope=tenant name=default limit=10 remaining=0 retry_after_ms=")
    );
    assert_eq!((lines[3], &lines[4][..10]), ("+PONG", "-THROTTLED"));
    let spent: i64 = rig.reports.iter().flat_map(|report| &report.demands).map(|demand| demand.spent).sum();
    assert_eq!(spent, 2 * UNIT as i64, "one request, in the global and in the tenant's bucket");
}

#[test]
fn a_request_waits_for_the_pool_and_nothing_overtakes_it() {
    let mut rig = limited(1);
    rig.pools = (3 * UNIT as i64, false);
    let client = rig.client(0);
    rig.send(client, &[&["SET", "a", "1"], &["SET", "a", "2"], &["SET", "a", "3"], &["PING"]]);
    assert_eq!(rig.words_at_stores(), ["SET"; 3]);
    assert_eq!(rig.shards[0].counters().get(Counter::AdmissionsWaited), 1);
    assert_eq!(rig.shards[0].counters().get(Counter::Requests), 4, "one that waited is counted once");
}

#[test]
fn a_user_has_a_quota_of_its_own() {
    let mut rig = limited(1);
    let client = rig.client(0);
    rig.send(client, &[&["QOS", "SET", "USER", "ann"], &["GET", "a"], &["GET", "a"]]);
    rig.answer_next("$-1\r\n");
    let told = rig.told(client);
    assert!(told.starts_with("+OK\r\n$-1\r\n-THROTTLED scope=user name=default/ann limit=5 "), "{told}");
    rig.send(client, &[&["QOS", "CALL", "USER", "bob", "GET", "a"]]);
    let told = rig.told(client);
    assert!(
        told.starts_with("-THROTTLED scope=tenant name=default "),
        "bob has his own, the tenant has none: {told}"
    );
}

#[test]
fn a_reply_corrects_the_price_and_the_next_estimate() {
    let mut rig = limited(1);
    rig.pools = (1_000 * UNIT as i64, false);
    let client = rig.client(0);
    rig.send(client, &[&["LRANGE", "a", "0", "-1"]]);
    rig.answer_next("*3\r\n:1\r\n:2\r\n:3\r\n");
    rig.send(client, &[&["QOS", "EXPLAIN", "LRANGE", "a", "0", "-1"]]);
    let told = rig.told(client);
    assert!(told.contains("reply_expected\r\n$4\r\n0.03\r\n"), "{told}");
    assert!(told.contains("$5\r\ntotal\r\n$4\r\n1.03\r\n"), "{told}");
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_secs(2));
    rig.turns();
    let metered: u64 =
        rig.reports.iter().flat_map(|report| &report.usage).map(|(_, usage)| usage.admitted).sum();
    assert_eq!(metered, UNIT + 3 * UNIT / 100 + UNIT, "the question is metered, too");
}

#[test]
fn a_client_that_leaves_still_pays() {
    let mut rig = limited(2);
    rig.pools = (1_000 * UNIT as i64, false);
    let client = rig.client(0);
    let [here, there] = [rig.key(0, 0), rig.key(1, 0)];
    rig.send(client, &[&["LRANGE", &here, "0", "-1"], &["MGET", &here, &there]]);
    let id = rig.id(client);
    rig.shards[0].handle_client_lost(id);
    assert_eq!(rig.shards[0].requests_abandoned(), 2);
    rig.answer_first("LRANGE", "*2\r\n:1\r\n:2\r\n");
    rig.answer_next("*1\r\n$-1\r\n");
    rig.answer_next("*1\r\n$-1\r\n");
    assert_eq!(rig.shards[0].requests_abandoned(), 0);
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_secs(2));
    rig.turns();
    let metered: u64 =
        rig.reports.iter().flat_map(|report| &report.usage).map(|(_, usage)| usage.admitted).sum();
    assert_eq!(metered, 2 * UNIT + 4 * UNIT / 100);
}

#[test]
fn a_transaction_is_admitted_whole_or_not_at_all() {
    let mut rig = limited(1);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "z"]]);
    rig.answer_next("$-1\r\n");
    rig.send(client, &[&["MULTI"], &["SET", "a", "1"], &["SET", "a", "2"], &["EXEC"], &["EXEC"]]);
    let told = rig.told(client);
    assert!(told.contains("+QUEUED\r\n+QUEUED\r\n-THROTTLED scope=tenant "), "{told}");
    assert!(told.ends_with("-ERR EXEC without MULTI\r\n"), "{told}");
    assert!(rig.at_stores.is_empty());
    rig.pools = (2 * UNIT as i64, false);
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_millis(500));
    rig.send(client, &[&["MULTI"], &["SET", "a", "1"], &["SET", "a", "2"], &["EXEC"]]);
    assert_eq!(rig.frames("EXEC").len(), 1);
}

#[test]
fn what_was_refused_later_costs_nothing() {
    let mut rig = limited(1);
    rig.connecting = Connecting::Fails;
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"]]);
    assert!(rig.told(client).starts_with("-UNAVAILABLE "));
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_secs(1));
    rig.turns();
    let spent: i64 = rig.reports.iter().flat_map(|report| &report.demands).map(|demand| demand.spent).sum();
    let usage = rig.reports.iter().flat_map(|report| &report.usage);
    let (admitted, shed) =
        usage.fold((0, 0), |sums, (_, usage)| (sums.0 + usage.admitted, sums.1 + usage.shed));
    assert_eq!((spent, admitted, shed), (0, 0, UNIT), "and is counted as shed");
}

/// Lets two seconds pass, and returns the micro-units that cores have reported as taken from buckets so far,
/// and those that requests are reported to have cost.
pub(super) fn booked(rig: &mut Rig) -> (i64, u64) {
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_secs(2));
    rig.turns();
    let demands = rig.reports.iter().flat_map(|report| &report.demands);
    let usage = rig.reports.iter().flat_map(|report| &report.usage);
    (demands.map(|demand| demand.spent).sum(), usage.map(|(_, usage)| usage.admitted).sum())
}

#[test]
fn what_was_sent_and_never_answered_costs_what_it_was_estimated_at() {
    let mut rig = limited(2);
    rig.pools = (1_000 * UNIT as i64, false);
    let client = rig.client(0);
    let [here, there] = [rig.key(0, 0), rig.key(1, 0)];
    // The global bucket and the tenant's each hold one unit more than these requests cost.
    rig.send(client, &[&["SET", &here, "1"], &["MGET", &here, &there]]);
    rig.lose("SET");
    rig.answer_first("MGET", "*1\r\n$-1\r\n");
    assert_eq!(rig.told(client).matches("-UNAVAILABLE").count(), 2);
    assert_eq!(booked(&mut rig), (2 * (2 * UNIT + UNIT / 50) as i64, 2 * UNIT + UNIT / 50));
    // Requests that wait for a connection that is never made were not sent.
    rig.connecting = Connecting::Hangs;
    rig.send(client, &[&["GET", &here]]);
    assert_eq!(rig.words_at_stores(), Vec::<&str>::new());
    booked(&mut rig);
    assert!(rig.told(client).starts_with("-UNAVAILABLE "), "the connection is given up");
    assert_eq!(booked(&mut rig), (2 * (2 * UNIT + UNIT / 50) as i64, 2 * UNIT + UNIT / 50));
}

#[test]
fn a_request_that_was_answered_at_its_deadline_costs_the_rest_when_the_reply_comes() {
    let row = UNIT / 100;
    for (shards, home) in [(1, 0), (2, 1)] {
        for leaves in ["never", "before its deadline", "after its deadline"] {
            let mut rig = limited_with(shards, |settings| {
                settings.overload.shed = Mode::On;
                settings.admission.weights = Weights { base: UNIT, row, ..FREE };
            });
            rig.pools = (1_000 * UNIT as i64, false);
            let client = rig.client(0);
            let key = rig.key(home, 0);
            rig.send(client, &[&["QOS", "CALL", "DEADLINE", "5", "LRANGE", &key, "0", "-1"]]);
            let id = rig.id(client);
            if leaves == "before its deadline" {
                rig.shards[0].handle_client_lost(id);
            }
            rig.wait(Duration::from_millis(10));
            if leaves != "before its deadline" {
                assert!(rig.told(client).starts_with("-DEADLINE stage=backend "));
            }
            if leaves == "after its deadline" {
                rig.shards[0].handle_client_lost(id);
            }
            assert_eq!(booked(&mut rig).1, UNIT, "as estimated");
            assert_eq!(rig.shards[0].requests_abandoned(), 1);
            rig.answer_first("LRANGE", &format!("*300\r\n{}", ":1\r\n".repeat(300)));
            assert_eq!(rig.shards[0].requests_abandoned(), 0);
            assert_eq!(booked(&mut rig), (2 * 4 * UNIT as i64, 4 * UNIT), "{shards} {leaves}");
            let other = rig.client(0);
            rig.send(other, &[&["QOS", "EXPLAIN", "LRANGE", &key, "0", "-1"]]);
            let told = rig.told(other);
            assert!(!told.contains("reply_expected\r\n$1\r\n0\r\n"), "it is learnt: {told}");
        }
    }
}

#[test]
fn elements_that_a_write_stored_or_removed_count_as_far_as_there_was_time_for_them() {
    let row = UNIT / 100;
    for (request, micros, rows) in [
        (&["SUNIONSTORE", "{a}", "{a}b"][..], 1_000, 1_000),
        (&["SUNIONSTORE", "{a}", "{a}b"], 10, 50),
        (&["ZREMRANGEBYRANK", "{a}", "0", "-1"], 1_000, 1_000),
        (&["INCR", "{a}"], 1_000, 0),
    ] {
        let mut rig = limited_at(1, Weights { base: 100 * UNIT, row, ..FREE });
        rig.pools = (1_000 * UNIT as i64, false);
        let client = rig.client(0);
        rig.send(client, &[request]);
        rig.now.monotonic = rig.now.monotonic.after(Duration::from_micros(micros));
        rig.answer_next(":1000\r\n");
        assert_eq!(booked(&mut rig).1, 100 * UNIT + rows * row, "{request:?}");
    }
}

#[test]
fn a_request_that_is_lost_after_its_deadline_costs_no_more() {
    let mut rig = limited_with(1, |settings| {
        settings.overload.shed = Mode::On;
        settings.admission.weights = Weights { base: UNIT, row: UNIT, ..FREE };
    });
    rig.pools = (1_000 * UNIT as i64, false);
    let client = rig.client(0);
    rig.send(client, &[&["QOS", "CALL", "DEADLINE", "5", "LRANGE", "a", "0", "-1"]]);
    rig.wait(Duration::from_millis(10));
    assert_eq!(rig.shards[0].requests_abandoned(), 1);
    rig.lose("LRANGE");
    assert_eq!(rig.shards[0].requests_abandoned(), 0, "nothing will come");
    assert_eq!(booked(&mut rig), (2 * UNIT as i64, UNIT));
}

#[test]
fn a_reply_that_is_too_large_is_billed_by_what_was_read() {
    let weights = Weights { base: UNIT, hit: UNIT / 10, kib_out: UNIT, ..FREE };
    let mut rig = limited_at(1, weights);
    rig.pools = (1_000_000 * UNIT as i64, false);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"]]);
    let value = "x".repeat(2 << 20);
    rig.answer_next(&format!("${}\r\n", value.len()));
    value.as_bytes().chunks(16 << 10).for_each(|piece| rig.more(std::str::from_utf8(piece).expect("text")));
    rig.more("\r\n");
    assert!(rig.told(client).starts_with("-ERR the reply is larger than 1048576 bytes"));
    let (_, metered) = booked(&mut rig);
    assert_eq!(metered, UNIT + ((2 << 20) + 12) * UNIT / 1_024);
}

#[test]
fn no_transaction_costs_less_than_nothing_however_much_it_asks_for() {
    let weights = Weights { base: 1_000_000 * UNIT, key: 1_000_000 * UNIT, ..Weights::default() };
    let mut rig = limited_at(1, weights);
    let client = rig.client(0);
    rig.send(client, &[&["MULTI"]]);
    let walk = ["HSCAN", "k", "0", "COUNT", "4294967295"];
    for _ in 0..2_000 {
        rig.send(client, &[&walk[..]; 10]);
    }
    rig.send(client, &[&["EXEC"]]);
    let told = rig.told(client);
    assert!(told.contains("-THROTTLED scope="), "{}", &told[told.len().saturating_sub(200)..]);
    assert!(booked(&mut rig).0 <= 0 && rig.at_stores.is_empty());
}

#[test]
fn the_end_of_subscriptions_pays_for_its_acknowledgements() {
    let mut rig = priced_by_bytes();
    let client = rig.client(0);
    let words = [vec!["UNSUBSCRIBE"], vec!["a"; 2_000]].concat();
    rig.send(client, &[&words]);
    let told = rig.told(client).len() as u64;
    assert!(told > 60_000);
    let bytes = request(&words).len() as u64;
    assert_eq!(newly_metered(&mut rig), bytes * UNIT / 1_024 + told * (UNIT / 4) / 1_024);
}

#[test]
fn a_transaction_pays_for_each_database_that_it_selects() {
    let mut rig = limited_with(1, |settings| {
        settings.private_links_max = 1;
        settings.admission.weights = Weights { base: UNIT, ..FREE };
    });
    rig.pools = (100 * UNIT as i64, false);
    let client = rig.client(0);
    rig.send(client, &[&["MULTI"], &["SELECT", "5"], &["SELECT", "3"], &["GET", "k"], &["EXEC"]]);
    super::private::greet(&mut rig);
    for step in ["MULTI", "SELECT", "SELECT", "GET"] {
        rig.answer_first(step, "+QUEUED\r\n");
    }
    rig.answer_first("EXEC", "*3\r\n+OK\r\n+OK\r\n$-1\r\n");
    assert_eq!(newly_metered(&mut rig), 3 * UNIT);
}

#[test]
fn a_walk_is_told_to_take_smaller_steps_wherever_it_stands() {
    let mut rig = Rig::with(1, 2, |settings| settings.admission.scan_count_max = 50);
    let client = rig.client(0);
    let key = rig.key(0, 0);
    rig.send(client, &[&["HSCAN", &key, "0", "MATCH", "count", "COUNT", "51", "count", "9000000"]]);
    let frame = rig.at_stores[0].frame.clone();
    assert!(
        frame.ends_with("MATCH\r\n$5\r\ncount\r\n$5\r\nCOUNT\r\n$2\r\n50\r\n$5\r\ncount\r\n$2\r\n50\r\n"),
        "{frame}"
    );
    rig.answer_next("*2\r\n$1\r\n0\r\n*0\r\n");
    rig.send(client, &[&["SCAN", "0", "COUNT", "4294967295"]]);
    assert!(rig.at_stores[0].frame.ends_with("COUNT\r\n$2\r\n50\r\n"));
    rig.answer_next("*2\r\n$1\r\n0\r\n*0\r\n");
    rig.send(client, &[&["MULTI"], &["SSCAN", &key, "0", "COUNT", "1000"], &["EXEC"]]);
    assert!(rig.frames("SSCAN")[0].frame.ends_with("COUNT\r\n$2\r\n50\r\n"));
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n*2\r\n$1\r\n0\r\n*0\r\n"] {
        rig.answer_next(reply);
    }
    // A COUNT below the limit is forwarded unchanged.
    let plain = "*5\r\n$5\r\nzScAn\r\n$1\r\nz\r\n$1\r\n0\r\n$5\r\nCoUnT\r\n$2\r\n50\r\n";
    rig.raw(client, plain.as_bytes());
    assert_eq!(rig.at_stores[0].frame, plain);
}

#[test]
fn a_walk_that_finds_nothing_at_once_does_not_pay_for_the_step_that_it_named() {
    let mut rig = limited(1);
    rig.pools = (1_000 * UNIT as i64, false);
    let client = rig.client(0);
    rig.send(client, &[&["HSCAN", "missing", "0", "COUNT", "10000"]]);
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_micros(20));
    rig.answer_next("*2\r\n$1\r\n0\r\n*0\r\n");
    assert_eq!(booked(&mut rig).1, 2 * UNIT, "a hundred of ten thousand, at a hundredth each");
}

#[test]
fn no_more_is_under_way_than_could_be_paid_though_replies_turn_out_dear() {
    let mut rig = limited(1);
    rig.pools = (100 * UNIT as i64, false);
    let client = rig.client(0);
    let small = format!("*{}{}", "1\r\n", ":1\r\n");
    let large = format!("*3000\r\n{}", ":1\r\n".repeat(3_000));
    let ask = ["LRANGE", "a", "0", "-1"];
    rig.send(client, &[&ask[..]; 16]);
    assert_eq!(rig.at_stores.len(), 4, "nobody knows yet what they cost");
    rig.answer_next(&small);
    rig.turns();
    assert_eq!(rig.at_stores.len(), 6, "each that is settled lets two more in");
    while !rig.at_stores.is_empty() {
        rig.answer_next(&small);
        rig.turns();
    }
    (0..20).for_each(|_| {
        rig.send(client, &[&ask]);
        rig.answer_next(&small);
    });
    let other = rig.client(0);
    rig.send(client, &[&ask[..]; 16]);
    rig.send(other, &[&ask[..]; 16]);
    assert_eq!(rig.at_stores.len(), 32, "they have been alike so far");
    (0..31).for_each(|_| rig.answer_next(&small));
    rig.answer_next(&large);
    // After a few dozen requests the average has forgotten the expensive reply; the highest cost that is
    // still possible has not.
    for _ in 0..60 {
        rig.send(client, &[&ask]);
        rig.answer_next(&small);
    }
    rig.send(client, &[&ask[..]; 8]);
    rig.send(other, &[&ask[..]; 8]);
    assert!((1..9).contains(&rig.at_stores.len()), "{} of both clients", rig.at_stores.len());
    let mut answered = 0;
    while !rig.at_stores.is_empty() {
        rig.answer_next(&small);
        rig.turns();
        answered += 1;
    }
    assert_eq!(answered, 16, "the others waited, and were not refused");
}

/// Returns a test rig (shards with scripted stores and clients) whose only tenant has used up its quota, by
/// requests of which one was dear (a reply of 3,000 elements); and two clients of the tenant.
fn dry_after_a_dear_request() -> (Rig, [usize; 2]) {
    let mut rig = limited(1);
    rig.pools = (100 * UNIT as i64, false);
    let [client, other] = [rig.client(0), rig.client(0)];
    let small = "*1\r\n:1\r\n";
    let large = format!("*3000\r\n{}", ":1\r\n".repeat(3_000));
    let replies = std::iter::once(large.as_str()).chain([small; 40]);
    for reply in std::iter::repeat_n(small, 40).chain(replies) {
        rig.send(client, &[&LIST]);
        rig.answer_next(reply);
    }
    rig.pools = (0, true);
    rig.send(client, &[&LIST]);
    while !rig.at_stores.is_empty() {
        rig.answer_next(small);
        rig.send(client, &[&LIST]);
    }
    assert!(rig.told(client).contains("-THROTTLED scope=tenant "), "the allowance is used up");
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_secs(1));
    (rig, [client, other])
}

const LIST: [&str; 4] = ["LRANGE", "a", "0", "-1"];

#[test]
fn a_request_that_its_bucket_cannot_pay_anyway_does_not_wait_for_others_to_be_settled() {
    let (mut rig, [client, other]) = dry_after_a_dear_request();
    let held = |rig: &Rig| rig.shards[0].counters().get(Counter::AdmissionsHeld);
    let held_before = held(&rig);
    rig.pools = (3 * UNIT as i64 / 2, true);
    rig.send(client, &[&LIST]);
    assert_eq!(rig.at_stores.len(), 1);
    rig.send(other, &[&LIST, &LIST]);
    let told = rig.told(other);
    assert_eq!((rig.at_stores.len(), told.matches("-THROTTLED scope=tenant ").count()), (1, 2), "{told}");
    assert_eq!(held(&rig), held_before);
}

#[test]
fn requests_that_wait_for_others_to_be_settled_wait_from_their_arrival_on() {
    let (mut rig, [client, other]) = dry_after_a_dear_request();
    rig.pools = (8 * UNIT as i64, true);
    rig.send(client, &[&LIST]);
    rig.send(other, &[&LIST, &LIST, &LIST]);
    rig.wait(Duration::from_millis(60));
    rig.send(other, &[&LIST]);
    assert_eq!(
        (rig.at_stores.len(), rig.told(other).as_str()),
        (1, ""),
        "it could pay, unless they are dear"
    );
    rig.wait(Duration::from_millis(60));
    let told = rig.told(other);
    assert_eq!((rig.at_stores.len(), told.matches("-THROTTLED scope=tenant ").count()), (1, 3), "{told}");
    rig.wait(Duration::from_millis(100));
    let told = rig.told(other);
    assert_eq!(told.matches("-THROTTLED scope=tenant ").count(), 1, "{told}");
}

#[test]
fn the_shadow_lets_pass_what_it_counts() {
    let mut rig = Rig::with(1, 1, |settings| settings.admission.limiter = Limiter::Shadow);
    let now = rig.now;
    rig.shards[0].handle_quotas(quotas(LIMITED), now);
    rig.pools = (0, true);
    let client = rig.client(0);
    for key in ["a", "b", "c", "d"] {
        rig.send(client, &[&["GET", key]]);
    }
    assert_eq!(rig.at_stores.len(), 4);
    assert!(rig.shards[0].counters().get(Counter::ThrottledInShadow) > 0);
    assert_eq!(rig.shards[0].counters().get(Counter::RefusedThrottled), 0);
}

#[test]
fn the_static_limiter_goes_on_counting_a_tenants_requests_after_a_reload() {
    let windows = FixedWindows::default();
    let mut rig = Rig::with(2, 1, |settings| {
        settings.admission.limiter = Limiter::Static(windows.clone());
    });
    let in_force = |names: &[&str], version| {
        let terms = names.iter().map(|name| format!("[tenants.{name}]\npassword = 'x'\nru_per_second = 3\n"));
        let text: String = terms.collect();
        Arc::new(Quotas::parse("quotas.toml", &text).expect("well formed").with_version(version))
    };
    let now = rig.now;
    for shard in &mut rig.shards {
        shard.handle_quotas(in_force(&["mine"], 1), now);
    }
    let clients = [0, 1].map(|shard| rig.client(shard));
    for client in clients {
        rig.send(client, &[&["AUTH", "mine", "x"]]);
        assert_eq!(rig.told(client), "+OK\r\n");
    }
    rig.send(clients[0], &[&["GET", "a"], &["GET", "b"], &["GET", "c"]]);
    (0..3).for_each(|_| rig.answer_next("$-1\r\n"));
    assert_eq!(rig.told(clients[0]), "$-1\r\n".repeat(3));
    // The new tenant takes the place of the other in the list, on one core before the other core.
    for reloaded in 0..=2_usize {
        if let Some(shard) = reloaded.checked_sub(1) {
            rig.shards[shard].handle_quotas(in_force(&["another", "mine"], 2), now);
            rig.turns();
        }
        for client in clients {
            rig.send(client, &[&["GET", "a"]]);
            let told = rig.told(client);
            assert!(told.starts_with("-THROTTLED scope=tenant name=mine limit=3 "), "{reloaded}: {told}");
        }
    }
    let other = rig.client(0);
    rig.send(other, &[&["AUTH", "another", "x"], &["GET", "a"]]);
    assert_eq!((rig.told(other).as_str(), rig.at_stores.len()), ("+OK\r\n", 1), "it has asked for nothing");
}

#[test]
fn where_requests_have_no_prices_nothing_is_metered_that_comes_without_a_request() {
    let charges: [fn(&mut AdmissionStage, Payer, Now); 3] = [
        |admission, payer, now| admission.charge_for_bytes(payer, 100_000, now),
        |admission, payer, now| admission.charge_for_waited(payer, (100_000, 1_000), 0, now),
        |admission, payer, now| admission.charge_for_unanswered(payer, UNIT, true, now),
    ];
    let limiters = [
        (Limiter::Off, false),
        (Limiter::Static(FixedWindows::default()), false),
        (Limiter::Shadow, true),
        (Limiter::Buckets, true),
    ];
    let now = Now { monotonic: Timestamp::from_millis(1), unix_ms: 1_700_000_000_000 };
    for (limiter, is_metered) in limiters {
        for (place, charge) in charges.iter().enumerate() {
            let store = BackendSettings { name: "store".to_owned(), credentials: None };
            let mut settings = ShardSettings::new(Topology::new(1, 1), Arc::new([store]));
            settings.admission.limiter = limiter.clone();
            let terms = quotas(LIMITED);
            let mut admission = AdmissionStage::new(&settings, &terms);
            charge(&mut admission, Payer::new(TenantId(0), None, terms.version()), now);
            admission.flush(now.monotonic);
            assert_eq!(admission.poll_report().is_some(), is_metered, "{limiter:?}, {place}");
        }
    }
}

#[test]
fn an_explanation_of_a_request_that_is_none_is_charged_and_leaves_nothing_under_way() {
    let mut rig = limited(1);
    rig.pools = (1_000 * UNIT as i64, false);
    let client = rig.client(0);
    let tenant = crate::values::TenantId(0);
    for words in
        [&["QOS", "EXPLAIN", "NOSUCH"][..], &["QOS", "EXPLAIN", "GET"], &["QOS", "EXPLAIN", "OBJECT", "NO"]]
    {
        rig.send(client, &[words]);
        assert!(rig.told(client).starts_with("-ERR "), "{words:?}");
    }
    assert_eq!(rig.shards[0].under_way(tenant), 0);
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_secs(2));
    rig.turns();
    let metered: u64 = rig
        .reports
        .iter()
        .flat_map(|report| &report.usage)
        .map(|(_, usage)| usage.cached + usage.admitted)
        .sum();
    assert!(metered >= 3 * UNIT / 10, "{metered}");
}

/// Of a flood of 300 failed logins or questions about quotas, which are charged and not refused, a bucket is
/// charged at most 40 request units, so that its debt does not keep others of the tenant waiting for long.
/// Some questions are throttled then, but no logins.
#[test]
fn requests_that_are_never_refused_bring_their_payer_into_debt_for_a_second_at_most() {
    for flood in [&["AUTH", "default", "wrong"][..], &["QOS", "EXPLAIN", "GET", "k"]] {
        let mut rig = limited(2);
        let client = rig.client(0);
        let id = rig.id(client);
        let mut throttled = 0;
        for _ in 0..300 {
            rig.now.monotonic = rig.now.monotonic.after(Duration::from_micros(100));
            rig.shards[0].handle_client_bytes(id, &request(flood), rig.now);
            rig.turns();
            throttled += usize::from(rig.told(client).starts_with("-THROTTLED"));
        }
        assert_eq!(throttled > 0, flood[0] == "QOS", "{flood:?}: {throttled} throttled");
        rig.wait(Duration::from_millis(20));
        let mut spent = std::collections::HashMap::new();
        for demand in rig.reports.iter().flat_map(|report| &report.demands) {
            *spent.entry(demand.bucket).or_insert(0) += demand.spent;
        }
        let most =
            spent.into_iter().filter(|(bucket, _)| *bucket != BucketId::GLOBAL).map(|(_, spent)| spent).max();
        let second = 10 * UNIT as i64;
        assert!(most.is_some_and(|spent| (second..=4 * second).contains(&spent)), "{flood:?}: {most:?}");
    }
}

/// Returns a test rig (shards with scripted stores and clients) whose quota pools (the parts of buckets that no core
/// holds) grant much, and in which bytes have prices: a request unit per KiB of a request, a quarter per KiB of a
/// reply.
pub(super) fn priced_by_bytes() -> Rig {
    let mut rig = limited_with(1, |settings| {
        settings.private_links_max = 10;
        settings.admission.weights =
            Weights { base: UNIT, hit: UNIT / 10, kib_in: UNIT, kib_out: UNIT / 4, row: UNIT / 100, ..FREE };
    });
    rig.pools = (100_000 * UNIT as i64, false);
    rig
}

#[test]
fn what_weir_answers_by_itself_pays_for_its_bytes_beyond_a_kib() {
    let large = "x".repeat(100 * 1024);
    let short = "x".repeat(900);
    let with_spaces = " ".repeat(100 * 1024);
    for (requests, kib_in, kib_out) in [
        (vec![&["PING"][..], &["ECHO", &short], &["CLIENT", "SETNAME", &short], &["HELLO", "3"]], 0, 0),
        (vec![&["MULTI"], &["SET", "a", &short], &["SET", "b", &short], &["DISCARD"]], 1, 0),
        (vec![&["ECHO", &large]], 100, 100),
        (vec![&["PING", &large]], 100, 100),
        (vec![&["CLIENT", "SETNAME", &with_spaces]], 100, 0),
        (vec![&["MULTI"], &["SET", "a", &large], &["DISCARD"]], 100, 0),
        (vec![&["MULTI"], &["SET", "a", &large], &["GET"], &["EXEC"]], 100, 0),
        (vec![&["MULTI"], &["SET", "a", &large], &["EXEC", "now"]], 100, 0),
        (vec![&["MULTI"], &["SET", "a", &large], &["RESET"]], 100, 0),
        (vec![&["MULTI"], &["CLIENT", "SETNAME", &large], &["EXEC"]], 100, 0),
        (vec![&["GET", "a", &large]], 100, 0),
        (vec![&["CLIENT", "NOSUCH", &large]], 100, 0),
        (vec![&["QOS", "CALL", "TIER", "batch", "ECHO", &large]], 100, 100),
        (vec![&["QOS", "SET", "USER", &large]], 100, 0),
    ] {
        let mut rig = priced_by_bytes();
        let client = rig.client(0);
        let words: Vec<String> = requests.iter().map(|words| words[..words.len().min(2)].join(" ")).collect();
        rig.send(client, &requests);
        assert!(!rig.told(client).contains("THROTTLED"));
        let least = kib_in * UNIT + kib_out * UNIT / 4;
        let (taken, metered) = booked(&mut rig);
        let name = words.iter().map(|words| &words[..words.len().min(20)]).collect::<Vec<_>>();
        assert!((least..least + UNIT).contains(&metered), "{name:?}: {metered}");
        assert_eq!(taken, 2 * metered as i64, "{name:?}: from the global and the tenant's bucket");
    }
}

#[test]
fn a_long_answer_to_a_short_request_is_paid_for() {
    let mut rig = priced_by_bytes();
    let client = rig.client(0);
    let (one, other) = ("a".repeat(900), "b".repeat(900));
    rig.send(client, &[&["HELLO", "3"]]);
    rig.send(client, &[&["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", &one, "PREFIX", &other]]);
    super::key_tracking::greet(&mut rig);
    rig.answer_first("TRACKING", "+OK\r\n");
    assert!(rig.told(client).ends_with("+OK\r\n"));
    let before = booked(&mut rig);
    rig.send(client, &[&["CLIENT", "TRACKINGINFO"]]);
    let bytes = rig.told(client).len() as u64;
    assert!(bytes > 1_800);
    assert_eq!(booked(&mut rig).1 - before.1, bytes * (UNIT / 4) / 1024);
}

#[test]
fn a_transaction_that_its_client_leaves_behind_is_paid_for_by_its_bytes() {
    let mut rig = priced_by_bytes();
    let client = rig.client(0);
    rig.send(client, &[&["MULTI"], &["SET", "a", &"x".repeat(100 * 1024)]]);
    assert_eq!(booked(&mut rig), (0, 0));
    let id = rig.id(client);
    rig.shards[0].handle_client_lost(id);
    rig.turns();
    let (taken, metered) = booked(&mut rig);
    assert!((100 * UNIT..101 * UNIT).contains(&metered) && taken == 2 * metered as i64, "{taken} {metered}");
}

#[test]
fn a_tenant_without_quota_is_refused_large_requests_that_weir_would_answer_and_small_ones_are_free() {
    let mut rig = limited_at(1, Weights { base: UNIT, hit: UNIT / 10, kib_in: UNIT, kib_out: UNIT, ..FREE });
    let client = rig.client(0);
    let large = "x".repeat(2_000);
    rig.send(client, &[&["ECHO", &large]]);
    assert!(rig.told(client).starts_with("$2000\r\n"), "the first runs on credit");
    rig.send(client, &[&["ECHO", &large], &["PING"], &["MULTI"], &["DISCARD"], &["GET", "a"]]);
    let told = rig.told(client);
    assert!(told.starts_with("-THROTTLED scope=tenant name=default limit=10 "), "{told}");
    assert!(told.contains("\r\n+PONG\r\n+OK\r\n+OK\r\n-THROTTLED "), "{told}");
    assert_eq!(rig.counted(Counter::RefusedThrottled), 2);
    let before = booked(&mut rig);
    rig.send(client, &[&["ECHO", &large]]);
    assert!(rig.told(client).starts_with("-THROTTLED "));
    assert_eq!(booked(&mut rig), before, "what is refused for want of quota costs nothing");
}

#[test]
fn a_call_that_waits_in_vain_costs_what_a_nil_costs() {
    let mut rig = priced_by_bytes();
    let client = rig.client(0);
    rig.send(client, &[&["LRANGE", "a", "0", "-1"]]);
    rig.answer_next(&format!("*3000\r\n{}", ":1\r\n".repeat(3_000)));
    let before = booked(&mut rig);
    let call = ["XREAD", "BLOCK", "0", "STREAMS", "s", "$"];
    let base = UNIT + request(&call).len() as u64 * UNIT / 1024;
    rig.send(client, &[&call]);
    super::private::greet(&mut rig);
    let waiting = booked(&mut rig);
    assert_eq!(waiting.1 - before.1, base);
    assert!(waiting.0 - before.0 > 2 * 20 * UNIT as i64, "what the reply may cost is taken");
    rig.answer_first("XREAD", "*-1\r\n");
    let after = booked(&mut rig);
    let cost = base + 5 * (UNIT / 4) / 1024;
    assert_eq!((after.0 - before.0, after.1 - before.1), (2 * cost as i64, cost));
}

#[test]
fn a_call_that_gets_no_reply_pays_for_one_only_if_it_was_sent() {
    for is_sent in [false, true] {
        let mut rig = priced_by_bytes();
        let client = rig.client(0);
        rig.send(client, &[&["LRANGE", "a", "0", "-1"]]);
        rig.answer_next(&format!("*3000\r\n{}", ":1\r\n".repeat(3_000)));
        rig.told(client);
        let before = booked(&mut rig);
        let call = ["XREAD", "BLOCK", "0", "STREAMS", "s", "$"];
        let base = UNIT + request(&call).len() as u64 * UNIT / 1024;
        rig.send(client, &[&call]);
        if is_sent {
            super::private::greet(&mut rig);
        }
        let taken = booked(&mut rig).0 - before.0;
        assert!(taken > 2 * 20 * UNIT as i64, "what the reply may cost is taken");
        rig.lose(if is_sent { "XREAD" } else { "\r\nID\r\n" });
        assert!(rig.told(client).starts_with("-UNAVAILABLE "));
        let after = booked(&mut rig);
        let cost = if is_sent { taken as u64 / 2 } else { base };
        assert_eq!((after.0 - before.0, after.1 - before.1), (2 * cost as i64, cost), "{is_sent}");
    }
}

/// Returns the reported cost of all requests since the last call, in millionths of a request unit.
fn newly_metered(rig: &mut Rig) -> u64 {
    let metered = booked(rig).1;
    rig.reports.clear();
    metered
}

/// The price of the second of two requests that keep a store busy for 400 ms each, of which 1 ms counts as
/// usual: 50 units per millisecond beyond the leeway of half a second and its growth.
const DEAR: std::ops::Range<u64> = 13_500 * UNIT..14_000 * UNIT;

/// Returns a test rig (shards with scripted stores and clients) of one core, in which a millisecond of a
/// store's time costs 50 request units.
fn rig_that_bills_time() -> Rig {
    let mut rig = limited_with(1, |settings| {
        settings.admission.weights = Weights { base: UNIT, busy_ms: 50 * UNIT, ..FREE };
        settings.private_links_max = 10;
    });
    rig.pools = (1_000_000 * UNIT as i64, false);
    rig
}

#[test]
fn work_that_does_not_show_pays_for_the_time_of_its_store() {
    let long = Duration::from_millis(400);
    for (before, request, after, replies) in [
        (&[][..], &["LCS", "{a}", "{a}b"][..], &[][..], &[":1\r\n"][..]),
        (&[], &["EVAL", "return 1", "0"], &[], &[":1\r\n"]),
        (&[], &["MODULE.DOES", "a"], &[], &[":1\r\n"]),
        (&[], &["KEYS", "*"], &[], &["*0\r\n"]),
        (&["MULTI"], &["LCS", "{a}", "{a}b"], &["EXEC"], &["+OK\r\n", "+QUEUED\r\n", "*1\r\n:1\r\n"]),
    ] {
        let mut rig = rig_that_bills_time();
        let client = rig.client(0);
        for is_first in [true, false] {
            for words in [before, request, after].iter().filter(|words| !words.is_empty()) {
                rig.send(client, &[words]);
            }
            rig.wait(long);
            replies.iter().for_each(|reply| rig.answer_next(reply));
            let cost = newly_metered(&mut rig);
            assert!(if is_first { cost <= 200 * UNIT } else { DEAR.contains(&cost) }, "{request:?}: {cost}");
        }
    }
    let mut rig = rig_that_bills_time();
    let client = rig.client(0);
    for _ in 0..3 {
        rig.send(client, &[&["GET", "a"]]);
        rig.wait(long);
        rig.answer_next("$1\r\na\r\n");
        assert_eq!(newly_metered(&mut rig), UNIT, "a plain request has no part in it");
    }
}

#[test]
fn a_transaction_over_a_private_link_pays_for_its_time_too() {
    let mut rig = rig_that_bills_time();
    let client = rig.client(0);
    for is_first in [true, false] {
        rig.send(client, &[&["WATCH", "a"]]);
        if is_first {
            super::private::greet(&mut rig);
        }
        rig.answer_first("WATCH", "+OK\r\n");
        rig.send(client, &[&["MULTI"], &["SINTER", "{a}", "{a}b"], &["EXEC"]]);
        rig.wait(Duration::from_millis(400));
        for (word, reply) in [("MULTI", "+OK\r\n"), ("SINTER", "+QUEUED\r\n"), ("EXEC", "*1\r\n*0\r\n")] {
            rig.answer_first(word, reply);
        }
        let cost = newly_metered(&mut rig);
        assert!(if is_first { cost <= 20 * UNIT } else { DEAR.contains(&cost) }, "{cost}");
    }
}

#[test]
fn requests_whose_work_does_not_show_share_the_time_and_do_not_pay_for_a_store_that_answers_others() {
    let mut rig = rig_that_bills_time();
    let [one, other] = [rig.client(0), rig.client(0)];
    let half = Duration::from_millis(200);
    for _ in 0..2 {
        rig.send(one, &[&["SINTER", "{a}", "{a}b"]]);
        rig.send(other, &[&["SINTER", "{a}", "{a}b"]]);
        rig.wait(half + half);
        (0..2).for_each(|_| rig.answer_next("*0\r\n"));
    }
    let cost = newly_metered(&mut rig);
    assert!((14_000 * UNIT..15_100 * UNIT).contains(&cost), "as much as one alone: {cost}");
    // Replies to other requests show that the store is not kept busy by this one.
    rig.send(one, &[&["SINTER", "{b}", "{b}b"]]);
    for _ in 0..300 {
        rig.send(other, &[&["GET", "a"]]);
        rig.wait(Duration::from_millis(1));
        rig.answer_first("GET", "$-1\r\n");
    }
    rig.answer_first("SINTER", "*0\r\n");
    let cost = newly_metered(&mut rig);
    assert!(cost <= 305 * UNIT, "{cost}");
}

/// Returns a test rig (shards with scripted stores and clients) of one core, in which a KiB of a reply costs
/// a request unit, and so does each element of it.
fn rig_that_bills_replies() -> Rig {
    let mut rig = limited_with(1, |settings| {
        settings.admission.weights = Weights { base: UNIT, kib_out: UNIT, row: UNIT, ..FREE };
        settings.private_links_max = 10;
        settings.reply_bytes_max = 50 * 1_024;
        settings.overload.shed = Mode::On;
    });
    rig.pools = (1_000_000 * UNIT as i64, false);
    rig
}

#[test]
fn requests_over_private_links_pay_for_what_stores_do_after_nobody_waits_any_more() {
    let bulk = |kib: usize| format!("${}\r\n{}\r\n", kib * 1_024, "x".repeat(kib * 1_024));
    // The end of the client's wait; the request, the reply to it, and its least cost.
    for (leaves, request, reply, units) in [
        (false, &["GET", "k"][..], bulk(40), 40),
        (true, &["GET", "k"], bulk(40), 40),
        (false, &["GET", "k"], bulk(90), 90),
        (true, &["XREAD", "BLOCK", "1000", "STREAMS", "s", "0"], format!("*1\r\n{}", bulk(40)), 40),
        (false, &["XREAD", "BLOCK", "1000", "STREAMS", "s", "0"], format!("*1\r\n{}", bulk(40)), 40),
    ] {
        let mut rig = rig_that_bills_replies();
        let client = rig.client(0);
        rig.send(client, &[&["QOS", "SET", "DEADLINE", "200"], &["WATCH", "k"]]);
        super::private::greet(&mut rig);
        rig.answer_first("WATCH", "+OK\r\n");
        rig.told(client);
        rig.send(client, &[request]);
        if leaves {
            let id = rig.id(client);
            rig.shards[0].handle_client_lost(id);
            rig.turns();
        } else {
            rig.wait(Duration::from_millis(201));
            assert!(rig.told(client).contains("-DEADLINE stage=backend"));
        }
        let before = newly_metered(&mut rig);
        assert!(before <= 10 * UNIT, "{request:?}: {before}");
        rig.answer_first(request[0], &reply);
        let cost = newly_metered(&mut rig);
        assert!((units * UNIT..(units + 5) * UNIT).contains(&cost), "{request:?}, {leaves}: {cost}");
    }
}

#[test]
fn a_script_over_a_private_link_pays_for_its_time_though_its_client_has_left() {
    for leaves in [true, false] {
        let mut rig = limited_with(1, |settings| {
            settings.admission.weights = Weights { base: UNIT, busy_ms: 50 * UNIT, ..FREE };
            settings.private_links_max = 10;
            settings.overload.shed = Mode::On;
        });
        rig.pools = (1_000_000 * UNIT as i64, false);
        for is_first in [true, false] {
            let client = rig.client(0);
            rig.send(client, &[&["QOS", "SET", "DEADLINE", "200"], &["WATCH", "k"]]);
            if rig.frames("WATCH").is_empty() {
                super::private::greet(&mut rig);
            }
            rig.answer_first("WATCH", "+OK\r\n");
            rig.send(client, &[&["EVAL", "return 1", "1", "k"]]);
            if leaves {
                let id = rig.id(client);
                rig.shards[0].handle_client_lost(id);
                rig.turns();
            }
            rig.wait(Duration::from_millis(400));
            rig.answer_first("EVAL", ":1\r\n");
            let cost = newly_metered(&mut rig);
            assert!(if is_first { cost <= 20 * UNIT } else { DEAR.contains(&cost) }, "{leaves}: {cost}");
        }
    }
}

#[test]
fn replies_over_private_links_cost_their_own_size_and_the_elements_that_they_report() {
    for (request, reply, told, units) in [
        (
            &["GET", "k"][..],
            format!("${}\r\n{}\r\n", 90 * 1_024, "x".repeat(90 * 1_024)),
            "-ERR the reply is larger",
            90,
        ),
        (&["SUNIONSTORE", "k", "k"], ":1000\r\n".to_owned(), ":1000", 1_000),
    ] {
        let mut rig = rig_that_bills_replies();
        let client = rig.client(0);
        rig.send(client, &[&["WATCH", "k"]]);
        super::private::greet(&mut rig);
        rig.answer_first("WATCH", "+OK\r\n");
        rig.told(client);
        newly_metered(&mut rig);
        rig.send(client, &[request]);
        rig.wait(Duration::from_millis(100));
        rig.answer_first(request[0], &reply);
        let answered = rig.told(client);
        assert!(answered.starts_with(told), "{answered:.80}");
        let cost = newly_metered(&mut rig);
        assert!((units * UNIT..(units + 5) * UNIT).contains(&cost), "{request:?}: {cost}");
    }
}

#[test]
fn the_reply_to_a_blocking_command_is_charged_to_the_user_that_it_was_sent_for() {
    let spent_of = |rig: &mut Rig| {
        booked(rig);
        let reports = std::mem::take(&mut rig.reports);
        let mut spent: BTreeMap<_, i64> = BTreeMap::new();
        for demand in reports.iter().flat_map(|report| &report.demands) {
            *spent.entry(demand.bucket).or_default() += demand.spent;
        }
        spent
    };
    let mut rig = rig_that_bills_replies();
    let client = rig.client(0);
    rig.send(client, &[&["QOS", "SET", "USER", "ann"]]);
    rig.send(client, &[&["QOS", "CALL", "USER", "bob", "XREAD", "BLOCK", "1000", "STREAMS", "s", "0"]]);
    super::private::greet(&mut rig);
    rig.wait(Duration::from_millis(10));
    rig.answer_first("XREAD", &format!("*1\r\n${}\r\n{}\r\n", 40 * 1_024, "x".repeat(40 * 1_024)));
    assert!(rig.told(client).starts_with("+OK\r\n*1\r\n$"));
    let first = spent_of(&mut rig);
    rig.send(client, &[&["QOS", "CALL", "USER", "bob", "GET", "a"]]);
    rig.answer_next("$-1\r\n");
    let payers: Vec<_> = spent_of(&mut rig).into_iter().filter(|(_, spent)| *spent > 0).collect();
    assert_eq!(payers.len(), 3, "all, the tenant, and bob");
    for (bucket, _) in payers {
        assert!(first[&bucket] > 40 * UNIT as i64, "{bucket:?} of {first:?}");
    }
}

#[test]
fn a_question_is_told_when_its_payer_has_paid_off_enough_of_its_debt() {
    let mut rig = limited(1);
    let client = rig.client(0);
    rig.send(client, &[&["LRANGE", "a", "0", "-1"]]);
    rig.answer_next(&format!("*5000\r\n{}", ":1\r\n".repeat(5_000)));
    rig.told(client);
    // The tenant owes about 50 request units, and has 10 a second.
    (0..12).for_each(|_| rig.send(client, &[&["QOS", "EXPLAIN", "GET", "k"]]));
    let told = rig.told(client);
    let refusals = told.split("\r\n").filter(|line| line.starts_with("-THROTTLED "));
    let waits: Vec<u64> = refusals
        .map(|line| line.split("retry_after_ms=").nth(1).expect("a time"))
        .map(|rest| rest.split(' ').next().unwrap_or(rest).parse().expect("a number"))
        .collect();
    assert!(
        !waits.is_empty() && waits.iter().all(|millis| (3_000..8_000).contains(millis)),
        "{waits:?}: {told}"
    );
}
