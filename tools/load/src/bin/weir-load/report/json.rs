//! The report as JSON, for programs, which rely on the names of counts and percentiles.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};
use weir_load::statistics::{PERCENTILES, Tally};

use crate::results::{GroupResult, Latencies, Moment, Results, goodput};

/// Builds the JSON report of the whole run.
pub fn report(results: &Results) -> Value {
    let summary = results.summary.as_ref();
    let description = &results.description;
    json!({
        "weir_load": env!("CARGO_PKG_VERSION"),
        "target": description.targets,
        "seed": description.seed,
        "start_unix_ms": summary.map_or(0, |summary| summary.start_unix_ms),
        "duration_s": results.duration().as_secs_f64(),
        "took_s": summary.map_or(0.0, |summary| summary.took.as_secs_f64()),
        "interrupted": summary.is_some_and(|summary| summary.interrupted),
        "connections": summary.map_or(0, |summary| summary.connections),
        "complaints": summary.map_or(&[][..], |summary| &summary.complaints),
        "generator": {
            "cpu_s": summary.map_or(0.0, |summary| summary.cpu.as_secs_f64()),
            "cpu_us_per_request": results.cpu_us_per_request(),
        },
        "groups": results.groups.iter().map(|group| group_report(results, group)).collect::<Vec<_>>(),
        "total": tally(&results.total, results.duration()),
        "seconds": results.seconds.iter().map(|second| {
            let mut row = moment(&second.all);
            row.insert("second".to_owned(), json!(second.number));
            row.insert("open".to_owned(), json!(second.open));
            let names = results.groups.iter().map(|group| &group.name);
            let groups = names.zip(&second.groups).map(|(name, group)| (name.clone(), Value::from(moment(group))));
            row.insert("groups".to_owned(), Value::Object(groups.collect()));
            Value::from(row)
        }).collect::<Vec<_>>(),
        "metrics": results.readings.iter().map(|reading| json!({
            "second": reading.second, "gauges": reading.gauges, "counters": reading.counters,
        })).collect::<Vec<_>>(),
    })
}

fn group_report(results: &Results, group: &GroupResult) -> Value {
    let named = |name: &str, counted: &Tally, duration: Duration| {
        let mut report = tally(counted, duration);
        report.insert("name".to_owned(), json!(name));
        report.insert("duration_s".to_owned(), json!(duration.as_secs_f64()));
        report
    };
    let mut report = named(&group.name, &group.total, results.duration_of(group));
    let phases = results.phases_of(group);
    let phases = phases.map(|(phase, duration)| Value::from(named(&phase.name, &phase.tally, duration)));
    report.insert("phases".to_owned(), phases.collect());
    Value::from(report)
}

fn tally(tally: &Tally, duration: Duration) -> Map<String, Value> {
    let mut report = Map::new();
    report.insert("counts".to_owned(), named(&tally.counts.entries()));
    report.insert("sends".to_owned(), named(&tally.counts.sends()));
    report.insert("goodput_per_s".to_owned(), json!(goodput(tally, duration)));
    report.insert("latency_ms".to_owned(), latencies(&Latencies::of(&tally.served)));
    report.insert("latency_all_ms".to_owned(), latencies(&Latencies::of(&tally.all())));
    report.insert("error_kinds".to_owned(), json!(tally.kinds));
    report.insert("slow".to_owned(), slow(tally));
    report
}

/// The bounds, in milliseconds, of the report's field `slow`, which counts the served requests that took longer than
/// each.
const SLOW_MILLIS: [u64; 10] = [10, 20, 50, 100, 200, 250, 500, 1_000, 2_000, 5_000];

/// Returns, by name, the number of served requests that took longer than each of ten bounds, from 10
/// milliseconds to 5 seconds.
fn slow(tally: &Tally) -> Value {
    let over = |millis: u64| tally.served.len() - tally.served.count_between(0, millis * 1_000_000);
    SLOW_MILLIS.iter().map(|millis| (format!("over_{millis}ms"), json!(over(*millis)))).collect()
}

fn moment(moment: &Moment) -> Map<String, Value> {
    let mut row = Map::new();
    row.insert("counts".to_owned(), named(&moment.counts.entries()));
    row.insert("latency_ms".to_owned(), latencies(&moment.latencies));
    row
}

fn named(counts: &[(&'static str, u64)]) -> Value {
    counts.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect()
}

fn latencies(latencies: &Latencies) -> Value {
    let percentiles = PERCENTILES.iter().zip(latencies.percentiles);
    let mut report: Map<String, Value> =
        percentiles.map(|((name, _), value)| ((*name).to_owned(), json!(value))).collect();
    report.insert("max".to_owned(), json!(latencies.max));
    Value::from(report)
}

/// Reads the JSON report of an earlier run from its file. The error is a text for the user.
pub fn read(path: &Path) -> Result<Value, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    let report: Value = serde_json::from_str(&text).map_err(|error| format!("{name}: {error}"))?;
    if report["weir_load"].is_string() && report["seconds"].is_array() {
        Ok(report)
    } else {
        Err(format!("{name}: a file that --json has written is expected"))
    }
}

#[cfg(test)]
mod tests {
    use weir_load::classify::Ending;
    use weir_load::statistics::Interval;

    use super::*;
    use crate::results::Description;

    /// Returns the names in a JSON object, in the order in which `serde_json` keeps them.
    fn names(object: &Value) -> Vec<&str> {
        object.as_object().expect("an object").keys().map(String::as_str).collect()
    }

    #[test]
    fn counts_and_latencies_have_exactly_the_names_of_the_contract() {
        let phases =
            vec![("calm".to_owned(), Duration::from_secs(1)), ("busy".to_owned(), Duration::from_secs(1))];
        let mut results = Results::new(Description {
            targets: vec!["127.0.0.1:7379".to_owned()],
            seed: 1,
            duration: Duration::from_secs(2),
            groups: vec![("point".to_owned(), phases)],
            closed: false,
        });
        let mut seen = Tally::default();
        seen.counts.offered = 2;
        seen.record(Ending::Served, Duration::from_millis(3));
        seen.record(Ending::Throttled, Duration::from_millis(1));
        results.take(&Interval { second: 0, groups: vec![vec![(0, seen)]] });
        let report = report(&results);
        let group = &report["groups"][0];
        let places =
            [&report["total"], group, &group["phases"][0], &group["phases"][1], &report["seconds"][0]];
        for place in places {
            let mut counts = names(&place["counts"]);
            counts.sort_unstable();
            assert_eq!(
                counts,
                [
                    "deadline",
                    "errors",
                    "offered",
                    "overloaded",
                    "refused_by_client",
                    "sent",
                    "served",
                    "throttled",
                    "timeouts",
                    "unavailable"
                ]
            );
            // Seconds have no such counts.
            if let Some(sends) = place.get("sends") {
                let mut sends = names(sends);
                sends.sort_unstable();
                assert_eq!(sends, ["lost", "may_have_happened", "retries"]);
            }
            let mut latencies = names(&place["latency_ms"]);
            latencies.sort_unstable();
            assert_eq!(latencies, ["max", "p50", "p90", "p99", "p99_9", "p99_99"]);
        }
        assert_eq!(
            (&group["phases"][0]["name"], &group["phases"][1]["name"]),
            (&json!("calm"), &json!("busy"))
        );
        // Latencies are of served requests only, and null where none was served.
        let p50 = group["phases"][0]["latency_ms"]["p50"].as_f64().expect("one was served");
        assert!((2.99..3.01).contains(&p50), "{p50}");
        assert_eq!(group["phases"][1]["latency_ms"]["p50"], Value::Null);
    }
}
