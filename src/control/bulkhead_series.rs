//! What stands before the stores, as metrics: windows, queues, and what was refused there.

use super::Totals;
use super::exposition::{Exposition, Kind};
use crate::shard::{BULKHEADS, BulkheadFigures, Pressure};
use crate::values::Tier;

/// The kinds of requests that each store has a bulkhead for, in the order of `shard::Track`.
const TRACKS: [&str; BULKHEADS] = ["usual", "heavy"];

/// How a figure of several cores becomes one.
#[derive(Clone, Copy)]
enum Join {
    Sum,
    Most,
}

type Figure = fn(&BulkheadFigures) -> f64;

const FIGURES: [(&str, &str, Join, Figure); 8] = [
    ("weir_backend_in_flight", "Requests in flight at a backend.", Join::Sum, |own| own.in_flight as f64),
    ("weir_backend_window", "Requests that may be in flight there.", Join::Sum, |own| own.window as f64),
    ("weir_queue_depth", "Requests that wait for room there.", Join::Sum, |own| own.held.requests as f64),
    ("weir_queue_bytes", "Bytes of those.", Join::Sum, |own| own.held.bytes as f64),
    ("weir_queue_age_seconds", "For how long the oldest of those has waited.", Join::Most, |own| {
        own.age.as_secs_f64()
    }),
    (
        "weir_backend_base_seconds",
        "What a reply takes when little waits at the backend.",
        Join::Most,
        |own| own.base.as_secs_f64(),
    ),
    ("weir_backend_median_seconds", "What half of the replies took at most, lately.", Join::Most, |own| {
        own.median.as_secs_f64()
    }),
    ("weir_backend_stalled", "1 while a backend gives no sign.", Join::Most, |own| f64::from(own.is_stalled)),
];

pub(super) fn write_bulkheads(page: &mut Exposition, backends: &[String], totals: &Totals) {
    for (name, help, join, figure) in FIGURES {
        let mut family = page.family(name, help, Kind::Gauge);
        for (index, backend) in backends.iter().enumerate() {
            for (track, word) in TRACKS.iter().enumerate() {
                let place = index * BULKHEADS + track;
                let own = totals.shards.iter().filter_map(|report| report.bulkheads.get(place)).map(figure);
                let value = match join {
                    Join::Sum => own.sum(),
                    Join::Most => own.fold(0.0, f64::max),
                };
                family.sample(&[("backend", backend), ("track", word)], value);
            }
        }
    }
    write_levels(page, backends, totals);
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
    let of = |backend: usize| {
        totals.shards.iter().filter_map(move |report| report.bulkheads.get(backend * BULKHEADS))
    };
    let help = "How much a core would hold back of what matters little, 0 to 3: the highest of all cores.";
    let mut family = page.family("weir_backend_level", help, Kind::Gauge);
    for (index, backend) in backends.iter().enumerate() {
        let level = of(index).map(|own| own.level).max().unwrap_or_default();
        family.sample(&[("backend", backend)], u64::from(level));
    }
    let help = "What replies usually take by what they take now (95th percentiles): 1 is steady, the lowest of all cores.";
    let mut family = page.family("weir_backend_latency_ratio", help, Kind::Gauge);
    for (index, backend) in backends.iter().enumerate() {
        let ratio = of(index).filter_map(|own| own.latency_ratio).fold(1.0, f64::min);
        family.sample(&[("backend", backend)], ratio);
    }
}
