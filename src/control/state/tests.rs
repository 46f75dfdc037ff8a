use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::config::Quotas;
use crate::control::hot_keys::tests::key;
use crate::control::http::Route;
use crate::control::{EventLoopFigures, Looks, Meter, ProcessFacts, ShardReport, Versions, page};
use crate::shard::{BULKHEADS, BreakerStage, BulkheadFigures};
use crate::values::limits::{
    JOURNAL_LINE_CHARS_MAX, JOURNAL_LINES_MAX, SHARDS_MAX, STATE_STORES_MAX, STATE_TENANTS_MAX,
};
use crate::values::time::Now;
use crate::values::{TenantId, Timestamp, Usage};

/// The state of a process from which `/state.json` is made; the tests compare its counters with those of a
/// second before.
struct Scene {
    facts: ProcessFacts,
    versions: Versions,
    meter: Meter,
    looks: Looks,
    totals: Totals,
}

impl Scene {
    fn new(quotas: Quotas, stores: usize) -> Self {
        let versions = Versions::new(Arc::new(quotas), None, 0);
        let report = ShardReport {
            bulkheads: vec![BulkheadFigures::default(); stores * BULKHEADS],
            ..ShardReport::default()
        };
        Self {
            facts: ProcessFacts {
                backends: (0..stores).map(|n| format!("10.0.0.{n}:6379")).collect(),
                ..ProcessFacts::default()
            },
            meter: Meter::new(versions.current()),
            versions,
            looks: Looks::default(),
            totals: Totals { shards: vec![report.clone(), report], engine: None },
        }
    }

    /// Returns the state of the process at this time, in milliseconds, and what pages keep of earlier ones.
    fn view(&mut self, ms: u64) -> (View<'_>, &mut Looks) {
        let Self { facts, versions, meter, looks, totals } = self;
        let now = Now { monotonic: Timestamp::from_millis(ms), unix_ms: ms };
        (View { facts, totals: Some(totals), versions, meter, fleet: None, now }, looks)
    }

    fn look(&mut self, ms: u64) -> String {
        let (view, looks) = self.view(ms);
        page(Route::State, "", view, looks).body
    }

    /// Notes the counters without a look at a page, as weir does every five seconds.
    fn note(&mut self, ms: u64) {
        let totals = self.totals.clone();
        let (view, looks) = self.view(ms);
        looks.note(view, &totals);
    }

    fn read(&mut self, ms: u64) -> Value {
        serde_json::from_str(&self.look(ms)).expect("it is JSON")
    }

    fn count(&mut self, counter: Counter, count: u64) {
        self.totals.shards[0].counters.add(counter, count);
    }

    fn verdict(&mut self, ms: u64) -> (String, Vec<String>) {
        let read = self.read(ms);
        let reasons = read["verdict"]["reasons"].as_array().expect("a list").clone();
        let text = |reason: &Value| reason["text"].as_str().expect("a text").to_owned();
        (read["verdict"]["grade"].as_str().expect("a word").to_owned(), reasons.iter().map(text).collect())
    }
}

fn tenants(count: usize) -> Quotas {
    Quotas::with_tenants((0..count).map(|n| format!("t{n:05}")))
}

#[test]
fn rates_are_those_of_the_last_second_and_sums_those_of_the_metrics() {
    let mut scene = Scene::new(tenants(2), 1);
    scene.count(Counter::Requests, 1_000);
    let first = scene.read(0);
    assert_eq!((&first["period_ms"], &first["requests"]["per_second"]), (&Value::Null, &Value::Null));
    assert_eq!((&first["reply_ms"], &first["shards"][0]["cpu"]), (&Value::Null, &Value::Null));
    scene.count(Counter::Requests, 500);
    scene.count(Counter::HotHits, 3);
    scene.count(Counter::HotHitsCopied, 2);
    scene.totals.shards[1].counters.add(Counter::Requests, 100);
    scene.totals.shards[1].service_times.record(4_000_000);
    scene.totals.shards[1].service_times = scene.totals.shards[1].service_times.told();
    scene.totals.shards[1].event_loop =
        EventLoopFigures { cpu: Duration::from_millis(500), ..EventLoopFigures::default() };
    scene.meter.record(TenantId(1), Usage { admitted: 10_000_000, ..Usage::default() }, 0);
    let read = scene.read(2_000);
    assert_eq!(read["requests"]["since_start"]["decoded"], 1_600);
    assert_eq!(read["requests"]["per_second"]["decoded"], 300);
    assert_eq!(read["requests"]["per_second"]["cached"].as_f64(), Some(2.5));
    assert_eq!(read["shards"][1]["cpu"].as_f64(), Some(0.25));
    assert_eq!((&read["reply_ms"]["count"], &read["period_ms"]), (&Value::from(1), &Value::from(2_000)));
    assert!((3.9..4.1).contains(&read["reply_ms"]["p99"].as_f64().expect("a number")));
    assert_eq!((&read["tenants"][0]["name"], &read["tenants"][0]["admitted"]), (&"t00001".into(), &5.into()));
    assert_eq!((&read["tenants"][1]["state"], &read["stores"][0]["state"]), (&"idle".into(), &"ok".into()));
}

#[test]
fn a_good_minute_and_a_bad_one_are_told_apart_by_a_word() {
    let quotas = "[tenants.acme]\npassword = 'x'\nru_per_second = 10\n[tenants.zeta]\npassword = 'x'\n";
    let mut scene = Scene::new(Quotas::parse("q", quotas).expect("well formed"), 3);
    scene.look(0);
    scene.count(Counter::Requests, 10_000);
    assert_eq!(scene.verdict(1_000), ("well".to_owned(), vec![]));
    let acme = scene.versions.current().find("acme").expect("it is there");
    let usage = Usage { admitted: 9_000_000, throttled: 2_500_000, ..Usage::default() };
    scene.meter.record(acme, usage, 0);
    scene.count(Counter::Requests, 10_000);
    assert_eq!(
        scene.verdict(2_000),
        ("strained".to_owned(), vec!["tenant acme: 2.5 RU/s beyond its quota of 10".to_owned()])
    );
    scene.count(Counter::Requests, 10_000);
    scene.count(Counter::RefusedOverloaded, 500);
    scene.facts.draining = true;
    assert_eq!(
        scene.verdict(3_000),
        (
            "trouble".to_owned(),
            vec![
                "500 requests a second refused: overloaded".to_owned(),
                "draining: no new clients".to_owned()
            ]
        )
    );
    scene.facts.draining = false;
    scene.totals.shards[1].bulkheads[BULKHEADS].level = 1;
    for report in &mut scene.totals.shards {
        report.bulkheads[2 * BULKHEADS].breaker = BreakerStage::Out;
    }
    let read = scene.read(4_000);
    let states: Vec<&str> = read["stores"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|store| store["state"].as_str())
        .collect();
    assert_eq!(states, ["set aside", "slow, level 1", "ok"], "the worst first");
    assert_eq!(
        scene.verdict(5_000).1,
        ["store 10.0.0.2:6379: set aside", "store 10.0.0.1:6379: slow, level 1"]
    );
}

#[test]
fn figures_are_those_of_the_last_seconds_however_seldom_somebody_looks() {
    let mut scene = Scene::new(tenants(1), 1);
    assert_eq!(scene.read(0)["verdict"]["grade"], Value::Null);
    (0..=12).for_each(|n| scene.note(n * 5_000));
    scene.count(Counter::Requests, 30_000);
    scene.count(Counter::RefusedOverloaded, 28_500);
    let read = scene.read(63_000);
    assert_eq!((&read["period_ms"], &read["verdict"]["grade"]), (&Value::from(3_000), &"trouble".into()));
    assert_eq!(read["requests"]["per_second"]["refused_overloaded"], 9_500);
}

#[test]
fn a_tenant_is_beyond_its_quota_only_if_it_has_used_it() {
    let quotas = "[tenants.acme]\npassword = 'x'\nru_per_second = 10\n[tenants.zeta]\npassword = 'x'\n";
    let mut scene = Scene::new(Quotas::parse("q", quotas).expect("well formed"), 1);
    let [acme, zeta] = ["acme", "zeta"].map(|name| scene.versions.current().find(name).expect("it is there"));
    let throttled = Usage { throttled: 2_500_000, ..Usage::default() };
    scene.look(0);
    for (at, (tenant, usage, reason)) in (1_u64..).zip([
        (acme, Usage { admitted: 9_000_000, ..throttled }, "tenant acme: 2.5 RU/s beyond its quota of 10"),
        (
            acme,
            Usage { admitted: 300_000, ..throttled },
            "tenant acme: 2.5 RU/s throttled at 3 % of its quota of 10, by another limit or a debt",
        ),
        (zeta, throttled, "tenant zeta: 2.5 RU/s throttled, by a limit of all tenants, a user or a hot key"),
    ]) {
        scene.meter.record(tenant, usage, 0);
        scene.count(Counter::RefusedThrottled, 50);
        assert_eq!(scene.verdict(at * 1_000), ("strained".to_owned(), vec![reason.to_owned()]));
    }
    // The static limiter meters no tenants.
    scene.count(Counter::RefusedThrottled, 50);
    let reason = "50 requests a second refused: throttled".to_owned();
    assert_eq!(scene.verdict(4_000), ("strained".to_owned(), vec![reason]));
}

#[test]
fn each_trouble_of_a_store_has_its_word() {
    let ok = BulkheadFigures::default();
    for (figures, word, grade) in [
        (ok, "ok", "well"),
        (BulkheadFigures { is_stalled: true, level: 1, ..ok }, "stalled", "trouble"),
        (BulkheadFigures { is_full: true, ..ok }, "queue full", "trouble"),
        (BulkheadFigures { level: 2, ..ok }, "slow, level 2", "strained"),
        (BulkheadFigures { level: 3, ..ok }, "slow, level 3", "trouble"),
        (BulkheadFigures { breaker: BreakerStage::Trying, ..ok }, "being tried", "trouble"),
        (BulkheadFigures { breaker: BreakerStage::Returning, ..ok }, "coming back", "strained"),
    ] {
        let mut scene = Scene::new(tenants(1), 1);
        scene.totals.shards[0].bulkheads[0] = figures;
        let read = scene.read(0);
        assert_eq!((&read["stores"][0]["state"], &read["stores"][0]["grade"]), (&word.into(), &grade.into()));
        let known = (grade != "well").then_some(grade);
        assert_eq!(read["verdict"]["grade"].as_str(), known, "there are no rates yet");
    }
}

#[test]
fn names_and_keys_cannot_be_taken_for_markup() {
    let hostile = "</script><img src=x onerror=alert(1)>&\u{2028}\u{1b}[2J\"\\";
    let mut scene = Scene::new(tenants(1), 1);
    hostile.clone_into(&mut scene.facts.backends[0]);
    scene.totals.shards[0].hot_keys =
        vec![crate::shard::HotKey { tenant: Some(hostile.to_owned()), ..key(hostile.as_bytes(), 5.0) }];
    scene.looks.journal.write("store", hostile, 0);
    let text = scene.look(0);
    assert!(!text.contains(['<', '>', '&', '\u{2028}', '\u{1b}']), "{text}");
    let read: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!((&read["stores"][0]["name"], &read["log"][0]["text"]), (&hostile.into(), &hostile.into()));
    assert_eq!(read["hot_keys"][0]["tenant"], hostile);
}

#[test]
fn the_document_is_bounded_whatever_there_is() {
    let mut scene = Scene::new(tenants(10_000), 1_024);
    let worst = "<".repeat(10_000);
    scene.facts.backends.iter_mut().for_each(|name| *name = "<".repeat(255));
    scene.look(0);
    for tenant in 0..10_000 {
        let usage = Usage { admitted: u64::MAX, throttled: u64::from(tenant) + 1, shed: 1, cached: u64::MAX };
        scene.meter.record(TenantId(tenant), usage, 0);
    }
    let keys = (0..256_u32).map(|n| crate::shard::HotKey {
        tenant: Some("<".repeat(64)),
        reads: f64::MAX,
        ..key(&[&n.to_be_bytes()[..], &[0; 1_020]].concat(), f64::INFINITY)
    });
    let report = ShardReport { hot_keys: keys.collect(), ..scene.totals.shards[0].clone() };
    scene.totals.shards = vec![report; SHARDS_MAX];
    (0..1_000).for_each(|n| scene.looks.journal.write("store", &worst, n));
    let text = scene.look(1_000);
    assert!(text.len() < 640 * 1024, "{}", text.len());
    let read: Value = serde_json::from_str(&text).expect("it is JSON");
    for (part, shown, left_out) in [
        ("stores", STATE_STORES_MAX, 1_024 - STATE_STORES_MAX),
        ("tenants", STATE_TENANTS_MAX, 10_000 - STATE_TENANTS_MAX),
        ("hot_keys", STATE_HOT_KEYS_MAX, 256 * SHARDS_MAX - STATE_HOT_KEYS_MAX),
    ] {
        assert_eq!(read[part].as_array().map(Vec::len), Some(shown), "{part}");
        assert_eq!(read[format!("{part}_left_out")], left_out, "{part}");
    }
    assert_eq!(read["log"].as_array().map(Vec::len), Some(JOURNAL_LINES_MAX));
    assert_eq!(read["log"][0]["text"].as_str().map(str::len), Some(JOURNAL_LINE_CHARS_MAX + 3));
    assert_eq!(read["tenants"][0]["name"], "t09999", "who was refused the most comes first");
    assert_eq!(read["verdict"]["reasons"].as_array().map(Vec::len), Some(6));
}
