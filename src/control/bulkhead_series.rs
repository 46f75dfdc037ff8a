//! Metrics and `INFO` lines about bulkheads: the window, the queue and the breaker before each store, and the
//! requests refused there.

use std::time::Duration;

use super::Totals;
use super::exposition::{Exposition, Kind};
use crate::shard::{BULKHEADS, BreakerStage, BulkheadFigures, Pressure};
use crate::values::Tier;

/// Names in metrics of the two tracks (sets of connections to a backend: for usual and for expensive
/// requests, each with a window and a queue), in the order of `shard::Track`.
const TRACKS: [&str; BULKHEADS] = ["usual", "heavy"];

/// The way in which a figure of several cores becomes one: their sum, or the largest.
#[derive(Clone, Copy)]
enum Join {
    Sum,
    Most,
}

type Figure = fn(&BulkheadFigures) -> f64;

const FIGURES: [(&str, &str, Join, Figure); 9] = [
    ("weir_backend_in_flight", "Requests in flight at a backend.", Join::Sum, |own| own.in_flight as f64),
    ("weir_backend_window", "Requests that may be in flight at a backend.", Join::Sum, |own| {
        own.window as f64
    }),
    ("weir_queue_depth", "Requests that wait in the queue of a backend.", Join::Sum, |own| {
        own.held.requests as f64
    }),
    ("weir_queue_bytes", "Bytes of the requests that wait in the queue of a backend.", Join::Sum, |own| {
        own.held.bytes as f64
    }),
    (
        "weir_queue_age_seconds",
        "Waiting time of the oldest request in the queue of a backend.",
        Join::Most,
        |own| own.age.as_secs_f64(),
    ),
    (
        "weir_queue_full",
        "1 while the queue of a backend is full on at least one shard, else 0.",
        Join::Most,
        |own| f64::from(own.is_full),
    ),
    ("weir_backend_base_seconds", "Latency of a backend with few requests in flight.", Join::Most, |own| {
        own.base.as_secs_f64()
    }),
    ("weir_backend_median_seconds", "Recent median latency of a backend.", Join::Most, |own| {
        own.median.as_secs_f64()
    }),
    (
        "weir_backend_stalled",
        "1 while a backend with requests in flight sends no bytes (stalled), else 0.",
        Join::Most,
        |own| f64::from(own.is_stalled),
    ),
];

/// Returns the figures of one bulkhead (window and queue before a store) as each core reports them. `place`
/// is the bulkhead's index in a core's report: backend number times `BULKHEADS` + track, which is 0 for usual
/// connections and 1 for those for heavy requests.
pub(super) fn at(totals: &Totals, place: usize) -> impl Iterator<Item = &BulkheadFigures> + Clone {
    totals.shards.iter().filter_map(move |report| report.bulkheads.get(place))
}

/// Returns the backends that exist, with their numbers. `backends` are the names by number; in a cluster a
/// number without a node has an empty name and is left out.
pub(super) fn known(backends: &[String]) -> impl Iterator<Item = (usize, &String)> {
    backends.iter().enumerate().filter(|(_, backend)| !backend.is_empty())
}

pub(super) fn write_bulkheads(page: &mut Exposition, backends: &[String], totals: &Totals) {
    for (name, help, join, figure) in FIGURES {
        let mut family = page.family(name, help, Kind::Gauge);
        for (index, backend) in known(backends) {
            for (track, word) in TRACKS.iter().enumerate() {
                let place = index * BULKHEADS + track;
                let own = at(totals, place).map(figure);
                let value = match join {
                    Join::Sum => own.sum(),
                    Join::Most => own.fold(0.0, f64::max),
                };
                family.sample(&[("backend", backend), ("track", word)], value);
            }
        }
    }
    write_levels(page, backends, totals);
    write_health(page, backends, totals);
    let help = "Requests refused because this backend could not have answered in time.";
    let mut family = page.family("weir_backend_refusals_total", help, Kind::Counter);
    for (index, backend) in known(backends) {
        let refused = at(totals, index * BULKHEADS).map(|own| own.refused);
        family.sample(&[("backend", backend)], refused.sum::<u64>());
    }
    let help = "Requests refused because their backend could not have answered in time, by reason and tier.";
    let mut family = page.family("weir_overload_refusals_total", help, Kind::Counter);
    for pressure in Pressure::ALL {
        for tier in Tier::ALL {
            let own = totals.shards.iter().map(|report| report.pressures.get(pressure, tier));
            family.sample(&[("reason", pressure.name()), ("tier", tier.name())], own.sum::<u64>());
        }
    }
}

fn write_levels(page: &mut Exposition, backends: &[String], totals: &Totals) {
    let of = |backend: usize| at(totals, backend * BULKHEADS);
    let help = "Shedding level of a backend by latency ratio, 0 (none) to 3 (sheddable requests are refused): the highest of all shards.";
    let mut family = page.family("weir_backend_level", help, Kind::Gauge);
    for (index, backend) in known(backends) {
        let level = of(index).map(|own| own.level).max().unwrap_or_default();
        family.sample(&[("backend", backend)], u64::from(level));
    }
    let help = "Latency ratio of a backend: usual 95th percentile of latency divided by the present one, the lowest of all shards. 1 is steady.";
    let mut family = page.family("weir_backend_latency_ratio", help, Kind::Gauge);
    for (index, backend) in known(backends) {
        let ratio = of(index).filter_map(|own| own.latency_ratio).fold(1.0, f64::min);
        family.sample(&[("backend", backend)], ratio);
    }
}

fn write_health(page: &mut Exposition, backends: &[String], totals: &Totals) {
    let help = "State of a backend's breaker: 0 closed, 1 ejected (requests are refused), 2 trial (one request was sent), 3 recovering (a growing part of requests is sent).";
    let mut family = page.family("weir_backend_breaker", help, Kind::Gauge);
    for (index, backend) in known(backends) {
        family.sample(&[("backend", backend)], stage_of(totals, index) as u64);
    }
    let help = "Times a backend was ejected because it failed or was too slow.";
    let mut family = page.family("weir_backend_ejections_total", help, Kind::Counter);
    for (index, backend) in known(backends) {
        let ejections = at(totals, index * BULKHEADS).map(|own| own.ejections);
        family.sample(&[("backend", backend)], ejections.sum::<u64>());
    }
}

/// Returns the state of a backend's circuit breaker. All cores share it, so it is taken from the first core
/// that reports the backend; `Well` (closed) if none does.
pub(super) fn stage_of(totals: &Totals, backend: usize) -> BreakerStage {
    at(totals, backend * BULKHEADS).next().map(|own| own.breaker).unwrap_or_default()
}

/// Maximum number of backends that have a line each in `INFO`; the metrics have all of them.
const LINES_MAX: usize = 64;

/// Returns the lines of `INFO` (names and values) about bulkheads (windows and queues before stores): one for
/// each of the first `LINES_MAX` backends, then one for each reason of overload with the number of requests
/// refused for it.
pub(super) fn bulkhead_lines(backends: &[String], totals: &Totals) -> Vec<(String, String)> {
    let mut lines: Vec<(String, String)> = Vec::new();
    for (index, backend) in known(backends).take(LINES_MAX) {
        let [usual, heavy] = [0, 1].map(|track| at(totals, index * BULKHEADS + track));
        let in_micros = |figure: fn(&BulkheadFigures) -> Duration| {
            usual.clone().map(figure).max().unwrap_or_default().as_micros()
        };
        let text = format!(
            "name={backend},window={},in_flight={},queue={},heavy_in_flight={},heavy_queue={},base_us={},median_us={},\
             level={},stalled={},breaker={}",
            usual.clone().map(|own| own.window).sum::<usize>(),
            usual.clone().map(|own| own.in_flight).sum::<usize>(),
            usual.clone().map(|own| own.held.requests).sum::<usize>(),
            heavy.clone().map(|own| own.in_flight).sum::<usize>(),
            heavy.map(|own| own.held.requests).sum::<usize>(),
            in_micros(|own| own.base),
            in_micros(|own| own.median),
            usual.clone().map(|own| own.level).max().unwrap_or_default(),
            u8::from(usual.clone().any(|own| own.is_stalled)),
            stage_of(totals, index).name(),
        );
        lines.push((format!("backend{index}"), text));
    }
    for pressure in Pressure::ALL {
        let own = totals.shards.iter().map(|report| &report.pressures);
        let all = own.flat_map(|pressures| Tier::ALL.map(|tier| pressures.get(pressure, tier)));
        lines.push((format!("overload_refusals_{}", pressure.name()), all.sum::<u64>().to_string()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ShardReport;
    use crate::shard::{BulkheadFigures, Pressures};

    #[test]
    fn each_backend_has_a_line_and_each_reason_too() {
        let usual = BulkheadFigures { window: 32, in_flight: 3, ..BulkheadFigures::default() };
        let slow = BulkheadFigures { base: Duration::from_millis(2), level: 1, is_stalled: true, ..usual };
        let heavy = BulkheadFigures { window: 9, in_flight: 1, ..BulkheadFigures::default() };
        let mut pressures = Pressures::default();
        pressures.add(Pressure::Queue, Tier::Batch, 1);
        pressures.add(Pressure::Queue, Tier::Critical, 1);
        let report = |usual| ShardReport {
            bulkheads: vec![usual, heavy],
            pressures: pressures.clone(),
            ..ShardReport::default()
        };
        let totals = Totals { shards: vec![report(usual), report(slow)], engine: None };
        let lines = bulkhead_lines(&["a:1".to_owned()], &totals);
        let told: Vec<String> = lines.iter().map(|(name, text)| format!("{name}:{text}")).collect();
        assert_eq!(
            told,
            [
                "backend0:name=a:1,window=64,in_flight=6,queue=0,heavy_in_flight=2,heavy_queue=0,base_us=2000,\
                 median_us=0,level=1,stalled=1,breaker=ok",
                "overload_refusals_window:0",
                "overload_refusals_queue:4",
                "overload_refusals_stalled:0",
                "overload_refusals_deadline:0",
                "overload_refusals_latency:0",
            ]
        );
        let many: Vec<String> = (0..1_000).map(|number| format!("store{number}")).collect();
        assert_eq!(bulkhead_lines(&many, &totals).len(), LINES_MAX + Pressure::ALL.len());
    }
}
