//! The report for programs. Names of counts and percentiles are contracts.

use std::path::Path;

use serde_json::{Map, Value, json};
use weir::load::statistics::{Counts, PERCENTILES, Tally};

use crate::results::{GroupResult, Latencies, Moment, Results, per_second};

/// The whole run.
pub fn report(results: &Results) -> Value {
    let outcome = results.outcome.as_ref();
    let description = &results.description;
    json!({
        "weir_load": env!("CARGO_PKG_VERSION"),
        "target": description.targets,
        "seed": description.seed,
        "duration_s": results.duration().as_secs_f64(),
        "took_s": outcome.map_or(0.0, |outcome| outcome.took.as_secs_f64()),
        "interrupted": outcome.is_some_and(|outcome| outcome.interrupted),
        "connections": outcome.map_or(0, |outcome| outcome.connections),
        "complaints": outcome.map_or(&[][..], |outcome| &outcome.complaints),
        "generator": {
            "cpu_s": outcome.map_or(0.0, |outcome| outcome.cpu.as_secs_f64()),
            "cpu_us_per_request": results.cpu_us_per_request(),
        },
        "groups": results.groups.iter().map(|group| group_report(results, group)).collect::<Vec<_>>(),
        "total": tally(&results.total, results.goodput(results.served_in_time())),
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
    let mut report = tally(&group.total, results.goodput(group.served_in_time));
    report.insert("name".to_owned(), json!(group.name));
    let phases = group.phases.iter().map(|phase| {
        let mut report = tally(&phase.tally, per_second(phase.tally.counts.served, phase.duration));
        report.insert("name".to_owned(), json!(phase.name));
        report.insert("duration_s".to_owned(), json!(phase.duration.as_secs_f64()));
        Value::from(report)
    });
    report.insert("phases".to_owned(), phases.collect());
    Value::from(report)
}

fn tally(tally: &Tally, goodput_per_s: f64) -> Map<String, Value> {
    let mut report = Map::new();
    report.insert("counts".to_owned(), counts(&tally.counts));
    report.insert("goodput_per_s".to_owned(), json!(goodput_per_s));
    report.insert("latency_ms".to_owned(), latencies(&Latencies::of(&tally.served)));
    report.insert("latency_all_ms".to_owned(), latencies(&Latencies::of(&tally.all())));
    report.insert("error_kinds".to_owned(), json!(tally.kinds));
    report.insert("slow".to_owned(), slow(tally));
    report
}

/// Bounds of `slow`, in milliseconds.
const SLOW_MILLIS: [u64; 10] = [10, 20, 50, 100, 200, 250, 500, 1_000, 2_000, 5_000];

/// How many of the served took longer than so many milliseconds.
fn slow(tally: &Tally) -> Value {
    let over = |millis: u64| tally.served.len() - tally.served.count_between(0, millis * 1_000_000);
    SLOW_MILLIS.iter().map(|millis| (format!("over_{millis}ms"), json!(over(*millis)))).collect()
}

fn moment(moment: &Moment) -> Map<String, Value> {
    let mut row = Map::new();
    row.insert("counts".to_owned(), counts(&moment.counts));
    row.insert("latency_ms".to_owned(), latencies(&moment.latencies));
    row
}

fn counts(counts: &Counts) -> Value {
    counts.entries().into_iter().map(|(name, count)| (name.to_owned(), json!(count))).collect()
}

fn latencies(latencies: &Latencies) -> Value {
    let percentiles = PERCENTILES.iter().zip(latencies.percentiles);
    let mut report: Map<String, Value> =
        percentiles.map(|((name, _), value)| ((*name).to_owned(), json!(value))).collect();
    report.insert("max".to_owned(), json!(latencies.max));
    Value::from(report)
}

/// An earlier run's report.
pub fn read(path: &Path) -> Result<Value, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("--compare {name}: {error}"))?;
    let report: Value = serde_json::from_str(&text).map_err(|error| format!("--compare {name}: {error}"))?;
    if report["weir_load"].is_string() && report["seconds"].is_array() {
        Ok(report)
    } else {
        Err(format!("--compare {name}: a file that --json has written is wanted"))
    }
}
