//! Metrics and `INFO` lines about hot keys.

use std::collections::BTreeMap;

use super::Totals;
use super::bulkhead_series::known;
use super::exposition::{Exposition, Kind};
use super::hot_keys::hottest;
use crate::shard::{Durations, HotFigures, HotKey, TrackingFigures};
use crate::values::escaped;
use crate::values::limits::{HOT_KEY_LABEL_BYTES_MAX, HOT_KEY_SERIES_MAX};

type Figure = fn(&HotFigures) -> usize;

const FIGURES: [(&str, &str, Figure); 7] = [
    ("weir_hot_keys", "Keys that are hot.", |own| own.keys),
    ("weir_hot_replies_kept", "Replies to reads of hot keys that are kept.", |own| own.kept),
    ("weir_hot_kept_bytes", "Bytes of replies to reads of hot keys that are kept.", |own| own.kept_bytes),
    ("weir_hot_copies", "Copies of replies that are kept on other cores.", |own| own.copies),
    ("weir_hot_fetches_in_flight", "Fetches for hot keys in flight.", |own| own.flights),
    ("weir_hot_waiters", "Reads that wait for a fetch of a hot key.", |own| own.waiters),
    (
        "weir_hot_open",
        "Requests in flight for hot keys, requests for ranges of keys that are not hot, and writes in flight whose keys weir does not know.",
        |own| own.writes_under_way,
    ),
];

type TrackingFigure = fn(TrackingFigures) -> usize;

const TRACKING: [(&str, &str, TrackingFigure); 2] = [
    ("weir_hot_tracked", "Hot keys of which the backend tells when they change.", |own| own.tracked),
    ("weir_hot_trackers", "Connections on which the backend tells of changes of hot keys.", |own| {
        own.trackers
    }),
];

pub(super) fn write_hot(page: &mut Exposition, backends: &[String], totals: &Totals) {
    for (name, help, figure) in FIGURES {
        let mut family = page.family(name, help, Kind::Gauge);
        for (shard, report) in totals.shards.iter().enumerate() {
            family.sample(&[("shard", &shard.to_string())], figure(&report.hot));
        }
    }
    for (name, help, figure) in TRACKING {
        let mut family = page.family(name, help, Kind::Gauge);
        for (index, backend) in known(backends) {
            let own = totals.shards.iter().filter_map(|report| report.hot.tracking.get(index));
            family.sample(&[("backend", backend)], own.map(|own| figure(*own)).sum::<usize>());
        }
    }
    write_ages(page, totals);
    write_hottest(page, totals);
}

fn write_ages(page: &mut Exposition, totals: &Totals) {
    let ages = ages(totals);
    let help = "Age of a reply from memory when it is sent: the time since its store was asked.";
    let mut family = page.family("weir_hot_reply_age_seconds", help, Kind::Summary);
    for (label, share) in [("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99), ("1", 1.0)] {
        family.sample(&[("quantile", label)], ages.quantile(share).as_secs_f64());
    }
    family.sum_and_count(ages.sum().as_secs_f64(), ages.count());
}

fn ages(totals: &Totals) -> Durations {
    let mut all = Durations::default();
    totals.shards.iter().for_each(|report| all.merge(&report.hot_ages));
    all
}

/// Writes the request rates of the hottest keys as metrics. Each key is a time series in the system that
/// scrapes it, so only a few are written. Keys of one core whose shortened names are equal share a series.
fn write_hottest(page: &mut Exposition, totals: &Totals) {
    let mut rates: BTreeMap<(usize, String), [f64; 2]> = BTreeMap::new();
    for told in hottest(totals, HOT_KEY_SERIES_MAX, |_| true).0 {
        let [reads, writes] = rates.entry((told.home, label(told.key))).or_default();
        (*reads, *writes) = (*reads + told.key.reads, *writes + told.key.writes);
    }
    let help = "Requests for the hottest keys in the last second. A name that ends in ... is truncated.";
    let mut family = page.family("weir_hot_key_requests_per_second", help, Kind::Gauge);
    for ((home, key), [reads, writes]) in rates {
        for (access, rate) in [("read", reads), ("write", writes)] {
            family.sample(&[("key", &key), ("shard", &home.to_string()), ("access", access)], rate);
        }
    }
}

pub(super) fn label(key: &HotKey) -> String {
    let shown = key.key.len().min(HOT_KEY_LABEL_BYTES_MAX);
    let more = if shown < key.length { "..." } else { "" };
    escaped(&key.key[..shown]) + more
}

/// Returns the lines of `INFO` (names and values) about hot keys, of all cores together.
pub(super) fn hot_lines(totals: &Totals) -> impl Iterator<Item = (&'static str, usize)> {
    let lines = FIGURES.into_iter().map(|(name, _, figure)| {
        let all = totals.shards.iter().map(|report| figure(&report.hot));
        (name, all.sum())
    });
    let tracking = TRACKING.into_iter().map(|(name, _, figure)| {
        let all = totals.shards.iter().flat_map(|report| &report.hot.tracking);
        (name, all.map(|own| figure(*own)).sum())
    });
    let age = ages(totals).quantile(0.99).as_millis() as usize;
    let lines = lines.chain(tracking).chain(std::iter::once(("hot_reply_age_ms_p99", age)));
    lines.map(|(name, sum)| (name.trim_start_matches("weir_"), sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ShardReport;
    use crate::control::hot_keys::tests::key;

    fn totals() -> Totals {
        let hot = HotFigures {
            keys: 3,
            kept: 2,
            kept_bytes: 100,
            copies: 6,
            flights: 1,
            waiters: 4,
            writes_under_way: 5,
            examined: 0,
            tracking: vec![TrackingFigures::default(), TrackingFigures { trackers: 1, tracked: 2 }],
        };
        let mut hot_ages = Durations::default();
        (0..100).for_each(|_| hot_ages.record(2_000_000_000));
        let long = [b'x'; 200];
        let keys =
            vec![key(b"a\"\n\xff\\", 30.0), key(&long, 20.5), key(&long[1..], 10.0), key(&long[..64], 9.0)];
        let busy = ShardReport { hot: hot.clone(), hot_ages, hot_keys: keys, ..ShardReport::default() };
        let many = (0..30).map(|n| key(format!("k{n}").as_bytes(), f64::from(n) / 100.0)).collect();
        let other = ShardReport { hot, hot_keys: many, ..ShardReport::default() };
        Totals { shards: vec![busy, other], engine: None }
    }

    #[test]
    fn the_hottest_keys_have_series_of_their_own() {
        let mut page = Exposition::new();
        write_hot(&mut page, &["a:1".to_owned(), "b:1".to_owned(), "c:1".to_owned()], &totals());
        let text = page.finish();
        let long = "x".repeat(64);
        for line in [
            "weir_hot_keys{shard=\"0\"} 3",
            "weir_hot_kept_bytes{shard=\"1\"} 100",
            "weir_hot_open{shard=\"1\"} 5",
            "weir_hot_tracked{backend=\"a:1\"} 0",
            "weir_hot_tracked{backend=\"b:1\"} 4",
            "weir_hot_trackers{backend=\"b:1\"} 2",
            "weir_hot_trackers{backend=\"c:1\"} 0",
            "weir_hot_reply_age_seconds_count 100",
            "weir_hot_reply_age_seconds_sum 200",
            "weir_hot_key_requests_per_second{key=\"a\\\"\\\\x0a\\\\xff\\\\\\\\\",shard=\"0\",access=\"read\"} 30",
            &format!(
                "weir_hot_key_requests_per_second{{key=\"{long}...\",shard=\"0\",access=\"read\"}} 30.5"
            ),
            &format!("weir_hot_key_requests_per_second{{key=\"{long}...\",shard=\"0\",access=\"write\"}} 4"),
            &format!("weir_hot_key_requests_per_second{{key=\"{long}\",shard=\"0\",access=\"read\"}} 9"),
        ] {
            assert!(text.lines().any(|each| each == line), "{line} in {text}");
        }
        let series: Vec<&str> =
            text.lines().filter(|line| line.starts_with("weir_hot_key_requests")).collect();
        assert_eq!(series.len(), 2 * (HOT_KEY_SERIES_MAX - 1), "two keys share one");
    }

    #[test]
    fn lines_are_about_all_cores() {
        let lines: Vec<String> = hot_lines(&totals()).map(|(name, sum)| format!("{name}:{sum}")).collect();
        assert_eq!(
            lines,
            [
                "hot_keys:6",
                "hot_replies_kept:4",
                "hot_kept_bytes:200",
                "hot_copies:12",
                "hot_fetches_in_flight:2",
                "hot_waiters:8",
                "hot_open:10",
                "hot_tracked:4",
                "hot_trackers:2",
                "hot_reply_age_ms_p99:2007",
            ]
        );
    }
}
