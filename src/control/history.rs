//! The page `/history.json`: some figures of the last ten minutes, of weir, its stores, tenants and hot keys.
//! They are recorded every five seconds, whether or not anybody looks, so that somebody who opens the page
//! `/` during a problem sees how it began. They are kept in memory, at most about a mebibyte, and are lost
//! with the process.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use super::hot_keys::hottest;
use super::hot_series::label;
use super::http::{Response, Status};
use super::recent::{Recent, Since};
use super::state::{Number, stores, tenants};
use super::{Totals, View};
use crate::shard::Counter;
use crate::values::limits::{HISTORY_TENANTS_MAX, STATE_HOT_KEYS_MAX, STATE_STORES_MAX};
use crate::values::time::rfc3339;

/// The interval between two points of the history.
pub const PERIOD: Duration = Duration::from_secs(5);
/// The number of points of the history that are kept: those of ten minutes, one every five seconds.
const POINTS: usize = 120;
/// Counters of refused requests, by reason. Those refused because a store was ejected (taken out of use by
/// its breaker) are among the unavailable ones.
const REFUSED: [Counter; 6] = [
    Counter::RefusedThrottled,
    Counter::RefusedOverloaded,
    Counter::RefusedDeadline,
    Counter::RefusedUnavailable,
    Counter::RefusedPermission,
    Counter::RefusedExcess,
];

/// Named things (stores, tenants or keys), each with its figures at one moment.
type Named<const N: usize> = Vec<(String, [f32; N])>;

/// The figures of weir, its stores, tenants and hot keys at one moment, recorded every five seconds.
#[derive(Clone, Debug, Default)]
struct Point {
    unix_ms: u64,
    requests: f32,
    refused: f32,
    p99_ms: Option<f32>,
    /// For each store: requests in flight (without expensive ones), and the median latency in milliseconds.
    stores: Named<2>,
    /// For each tenant: request units per second that were used, and that were refused.
    tenants: Named<2>,
    /// For each hot key, by its name: reads and writes per second.
    hot_keys: Named<2>,
}

/// Figures of the last ten minutes, one point every five seconds, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    recent: Recent,
    points: VecDeque<Point>,
}

impl History {
    /// Appends the current figures to the history as a point. Nothing is appended without counters of the
    /// last ten seconds to compare with: the first time, and after the process stood still.
    pub fn note(&mut self, view: View<'_>, totals: &Totals) {
        let quotas = view.versions.current();
        let Some(since) = self.recent.look(totals, view.meter, quotas, view.now.monotonic) else { return };
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(Point::of(view, totals, &since));
    }

    /// Makes the page `/history.json`, which shows some figures of the last ten minutes.
    pub(super) fn page(&self, view: View<'_>) -> Response {
        let each = |figure: fn(&Point) -> Option<f32>| self.points.iter().map(figure).map(shown).collect();
        let document = Document {
            at: rfc3339(view.now.unix_ms),
            period_seconds: PERIOD.as_secs(),
            points: self.points.iter().map(|point| rfc3339(point.unix_ms)).collect(),
            requests_per_second: each(|point| Some(point.requests)),
            refused_per_second: each(|point| Some(point.refused)),
            reply_ms_p99: each(|point| point.p99_ms),
            stores: self.series(
                STATE_STORES_MAX,
                |point| &point.stores,
                |name, [in_flight, median_ms]| StoreSeries { name, in_flight, median_ms },
            ),
            tenants: self.series(
                HISTORY_TENANTS_MAX,
                |point| &point.tenants,
                |name, [used, refused]| TenantSeries {
                    name,
                    used_ru_per_second: used,
                    refused_ru_per_second: refused,
                },
            ),
            hot_keys: self.series(
                STATE_HOT_KEYS_MAX,
                |point| &point.hot_keys,
                |key, [reads, writes]| HotKeySeries {
                    key,
                    reads_per_second: reads,
                    writes_per_second: writes,
                },
            ),
        };
        Response::json(Status::Ok, &document)
    }

    /// Makes a series of figures, by `make`, for each name (of a store, tenant or key) in the points of the
    /// history, names in later points first, for at most `most` names. `of` picks the named figures of a
    /// point.
    fn series<'a, const N: usize, S>(
        &'a self,
        most: usize,
        of: impl Fn(&'a Point) -> &'a Named<N>,
        make: impl Fn(&'a str, [Values; N]) -> S,
    ) -> Vec<S> {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.points.iter().rev().flat_map(&of) {
            if names.len() < most && !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let values = |name: &str| {
            let mut values: [Values; N] = std::array::from_fn(|_| Vec::with_capacity(self.points.len()));
            for point in &self.points {
                let figures = of(point).iter().find(|(own, _)| own == name).map(|(_, figures)| figures);
                for (index, values) in values.iter_mut().enumerate() {
                    values.push(shown(figures.map(|figures| figures[index])));
                }
            }
            values
        };
        names.into_iter().map(|name| make(name, values(name))).collect()
    }
}

impl Point {
    fn of(view: View<'_>, totals: &Totals, since: &Since) -> Self {
        let per_second = |counters: &[Counter]| since.per_second(since.count(counters) as f64) as f32;
        let times = &since.service_times;
        let (stores, _) = stores::shown(&view.facts.backends, totals);
        let (tenants, _) = tenants::shown(view, Some(since));
        let (keys, _) = hottest(totals, STATE_HOT_KEYS_MAX, |key| key.hot_for.is_some());
        Self {
            unix_ms: view.now.unix_ms,
            requests: per_second(&[Counter::Requests]),
            refused: per_second(&REFUSED),
            p99_ms: (times.count() > 0).then(|| times.quantile(0.99).as_secs_f32() * 1_000.0),
            stores: stores.iter().map(|store| (store.name.to_owned(), store.figures())).collect(),
            tenants: tenants
                .iter()
                .map(|tenant| (tenant.name.to_owned(), tenant.figures()))
                .filter(|(_, [used, refused])| used + refused > 0.0)
                .take(HISTORY_TENANTS_MAX)
                .collect(),
            hot_keys: keys
                .iter()
                .map(|told| (label(told.key), [told.key.reads as f32, told.key.writes as f32]))
                .collect(),
        }
    }
}

/// Values of one figure, one for each point of the history; null where the point has none, such as for a
/// tenant without usage at that time.
type Values = Vec<Option<Number>>;

fn shown(value: Option<f32>) -> Option<Number> {
    value.map(|value| Number(f64::from(value)))
}

/// The JSON of `/history.json`; names and their order are a contract.
#[derive(Debug, Serialize)]
struct Document<'a> {
    at: String,
    period_seconds: u64,
    /// The time of each point, as text; all lists of figures have one value for each of these points.
    points: Vec<String>,
    requests_per_second: Values,
    refused_per_second: Values,
    reply_ms_p99: Values,
    stores: Vec<StoreSeries<'a>>,
    tenants: Vec<TenantSeries<'a>>,
    hot_keys: Vec<HotKeySeries<'a>>,
}

#[derive(Debug, Serialize)]
struct StoreSeries<'a> {
    name: &'a str,
    in_flight: Values,
    median_ms: Values,
}

#[derive(Debug, Serialize)]
struct TenantSeries<'a> {
    name: &'a str,
    used_ru_per_second: Values,
    refused_ru_per_second: Values,
}

#[derive(Debug, Serialize)]
struct HotKeySeries<'a> {
    key: &'a str,
    reads_per_second: Values,
    writes_per_second: Values,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::*;
    use crate::config::Quotas;
    use crate::control::hot_keys::tests::key;
    use crate::control::{Meter, ProcessFacts, ShardReport, Versions};
    use crate::shard::{BULKHEADS, BulkheadFigures};
    use crate::values::time::Now;
    use crate::values::{TenantId, Timestamp, Usage};

    struct Scene {
        facts: ProcessFacts,
        versions: Versions,
        meter: Meter,
        totals: Totals,
        history: History,
    }

    impl Scene {
        fn new(tenants: usize, stores: usize) -> Self {
            let quotas = Quotas::with_tenants((0..tenants).map(|n| format!("t{n:05}")));
            let versions = Versions::new(Arc::new(quotas), None, 0);
            let bulkheads = vec![BulkheadFigures::default(); stores * BULKHEADS];
            let report = ShardReport { bulkheads, ..ShardReport::default() };
            Self {
                facts: ProcessFacts {
                    backends: (0..stores).map(|n| format!("10.0.0.{n}:6379")).collect(),
                    ..ProcessFacts::default()
                },
                meter: Meter::new(versions.current()),
                versions,
                totals: Totals { shards: vec![report], engine: None },
                history: History::default(),
            }
        }

        fn note(&mut self, seconds: u64) -> Value {
            let Self { facts, versions, meter, totals, history } = self;
            let now = Now { monotonic: Timestamp::from_millis(seconds * 1_000), unix_ms: seconds * 1_000 };
            let view = View { facts, totals: Some(totals), versions, meter, fleet: None, now };
            history.note(view, totals);
            serde_json::from_str(&history.page(view).body).expect("it is JSON")
        }

        /// Adds to the counters what five seconds bring: requests per second, and request units per second of
        /// a tenant, booked at second `at`.
        fn pass(&mut self, requests: u64, tenant: u16, units: u64, at: u64) {
            self.totals.shards[0].counters.add(Counter::Requests, 5 * requests);
            let usage = Usage { admitted: 5_000_000 * units, ..Usage::default() };
            self.meter.record(TenantId(tenant), usage, Meter::minute_of(Timestamp::from_millis(at * 1_000)));
        }
    }

    #[test]
    fn figures_are_noted_by_name_and_gaps_stay_gaps() {
        let mut scene = Scene::new(3, 2);
        assert_eq!(scene.note(0)["points"], Value::Array(vec![]), "there is nothing to compare with");
        scene.pass(100, 1, 10, 5);
        scene.totals.shards[0].bulkheads[BULKHEADS].in_flight = 7;
        // Requests refused because their store is ejected; the totals and the tenant both count them.
        scene.totals.shards[0].counters.add(Counter::RefusedUnavailable, 15);
        scene.totals.shards[0].counters.add(Counter::RefusedEjected, 10);
        scene.note(5);
        scene.pass(200, 2, 20, 10);
        scene.totals.shards[0].hot_keys = vec![key(b"</script>", 40.0)];
        let told = scene.note(10);
        assert_eq!(told["points"].as_array().map(Vec::len), Some(2));
        assert_eq!(told["requests_per_second"], serde_json::json!([100, 200]));
        assert_eq!(told["refused_per_second"], serde_json::json!([3, 0]));
        assert_eq!(told["reply_ms_p99"], serde_json::json!([null, null]), "no store has replied");
        assert_eq!(told["stores"][1]["in_flight"], serde_json::json!([7, 7]));
        let tenants = told["tenants"].as_array().expect("a list");
        assert_eq!(tenants.len(), 2, "one has done nothing");
        assert_eq!(tenants[0]["name"], "t00002");
        assert_eq!(tenants[0]["used_ru_per_second"], serde_json::json!([null, 20]));
        assert_eq!(tenants[1]["used_ru_per_second"], serde_json::json!([10, null]));
        assert_eq!(told["hot_keys"][0]["reads_per_second"], serde_json::json!([null, 40]));
        scene.note(30);
        assert_eq!(scene.note(35)["points"].as_array().map(Vec::len), Some(3), "a halt is no point");
    }

    #[test]
    fn ten_minutes_are_kept_and_no_more_than_fits_a_page() {
        let mut scene = Scene::new(400, 300);
        scene.note(0);
        for turn in 1..=300_u16 {
            let at = u64::from(turn) * 5;
            // Each pass has another tenant and another key.
            scene.pass(u64::from(turn), turn, 1, at);
            let keys = (0..30_u16).map(|n| key(&[b'\xff'; 100], f64::from(turn * 30 + n)));
            scene.totals.shards[0].hot_keys = keys.collect();
            scene.note(at);
        }
        let told = scene.note(1_504);
        let lengths =
            ["points", "stores", "tenants", "hot_keys"].map(|list| told[list].as_array().map(Vec::len));
        assert_eq!(lengths, [Some(POINTS), Some(STATE_STORES_MAX), Some(HISTORY_TENANTS_MAX), Some(1)]);
        assert_eq!(told["requests_per_second"][POINTS - 2], 300);
        assert!(told.to_string().len() < 1 << 20, "{}", told.to_string().len());
    }
}
