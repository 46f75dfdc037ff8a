//! The page `/state.json`: the current state in one document of bounded size. The page `/` and `weir top`
//! show it.
//!
//! | part | content | at most |
//! |---|---|---|
//! | `verdict` | one word for the state, and the reasons for it | `REASONS_MAX` reasons |
//! | `requests` | counts since the start as in `/metrics`, and rates per second | |
//! | `reply_ms` | quantiles of stores' reply times within the last second | |
//! | `shards` | one entry per shard | `SHARDS_MAX` |
//! | `stores`, `tenants`, `hot_keys` | those that need attention most come first; `..._left_out` is the number of others | `STATE_..._MAX` |
//! | `log` | the last lines of the journal, the newest first | `JOURNAL_LINES_MAX` |
//!
//! Rates per second are null, and those of tenants 0, if there are no counters from 0.9 to 10 s ago to
//! compare with, as in the first second of the process. Names and keys may be hostile: the document has them as
//! JSON strings, and nothing that reads like markup.

pub(super) mod stores;
pub(super) mod tenants;
mod verdict;

use serde::{Serialize, Serializer};

use super::hot_keys::hottest;
use super::hot_series::label;
use super::http::{Response, Status};
use super::journal::{Journal, Line};
use super::json::as_shown;
use super::recent::{Recent, Since};
use super::{Totals, View};
use crate::shard::{Counter, HotKey, Pressure};
use crate::values::Tier;
use crate::values::limits::STATE_HOT_KEYS_MAX;
use crate::values::time::rfc3339;
use stores::StoreShown;
use tenants::TenantShown;
use verdict::Verdict;

/// The urgency with which something in the state needs attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Grade {
    /// Nothing needs attention: the conditions of the other grades do not hold. Requests may be refused for
    /// other reasons, such as permissions.
    #[default]
    Well,
    /// Something deserves a look: requests are throttled (a quota is used up, or a hot key is written more often
    /// than permitted), less than 1 % of all requests are refused because of overload, deadlines or an unavailable
    /// store, a store is slow or comes back after an ejection, or the process drains (takes no new clients).
    Strained,
    /// Requests that should be served are refused: 1 % of all requests or more because of overload, deadlines
    /// or an unavailable store (any of a tenant's, for the grade of that tenant), or a store is ejected (out
    /// of use), stalled (silent), slow at shedding level 3, or has a full queue.
    Trouble,
}

/// Makes the page `/state.json` from the current counters and their increases over the last 0.9 to 10 s.
/// `recent` has the earlier counters to compare with, and keeps the current ones; `journal` has the last
/// lines of the log.
pub(super) fn state_page(
    view: View<'_>,
    totals: &Totals,
    recent: &mut Recent,
    journal: &Journal,
) -> Response {
    let since = recent.look(totals, view.meter, view.versions.current(), view.now.monotonic);
    Response::json(Status::Ok, &document(view, totals, since.as_ref(), journal))
}

fn document<'a>(
    view: View<'a>,
    totals: &'a Totals,
    since: Option<&Since>,
    journal: &'a Journal,
) -> Document<'a> {
    let facts = view.facts;
    let requests = Requests::of(totals, since);
    let (stores, stores_left_out) = stores::shown(&facts.backends, totals);
    let (tenants, tenants_left_out) = tenants::shown(view, since);
    let (keys, hot_keys_left_out) = hottest(totals, STATE_HOT_KEYS_MAX, |_| true);
    Document {
        at: rfc3339(view.now.unix_ms),
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: facts.uptime.as_secs(),
        draining: facts.draining,
        resident_bytes: facts.resident_bytes,
        quotas_version: view.versions.current().version(),
        period_ms: since.map(|since| since.period.as_millis() as u64),
        verdict: Verdict::of(facts.draining, &requests, &stores, &tenants),
        requests,
        reply_ms: since.and_then(Replies::of),
        clients: Clients {
            open: totals.shards.iter().map(|report| report.clients_open).sum(),
            max: facts.clients_max,
        },
        shards: ShardShown::all(totals, since),
        stores,
        stores_left_out,
        tenants,
        tenants_left_out,
        hot_keys: keys.iter().map(|told| HotKeyShown::of(told.home, told.key)).collect(),
        hot_keys_left_out,
        log: journal.latest().map(LineShown::of).collect(),
    }
}

/// The JSON of `/state.json`; names and their order are a contract.
#[derive(Debug, Serialize)]
struct Document<'a> {
    at: String,
    version: &'static str,
    uptime_seconds: u64,
    draining: bool,
    resident_bytes: u64,
    quotas_version: u64,
    period_ms: Option<u64>,
    verdict: Verdict,
    requests: Requests,
    reply_ms: Option<Replies>,
    clients: Clients,
    shards: Vec<ShardShown>,
    stores: Vec<StoreShown<'a>>,
    stores_left_out: usize,
    tenants: Vec<TenantShown<'a>>,
    tenants_left_out: usize,
    hot_keys: Vec<HotKeyShown<'a>>,
    hot_keys_left_out: usize,
    log: Vec<LineShown<'a>>,
}

/// A number rounded to a thousandth. Infinity and NaN become 0, since JSON has neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(super) struct Number(pub f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let rounded = (self.0 * 1_000.0).round() / 1_000.0;
        as_shown(if rounded.is_finite() { &rounded } else { &0.0 }, to)
    }
}

/// Numbers of requests (since the start, or per second) by outcome, named as in `/metrics`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Outcomes<T> {
    decoded: T,
    forwarded: T,
    cached: T,
    refused_throttled: T,
    refused_overloaded: T,
    refused_deadline: T,
    refused_unavailable: T,
    refused_permission: T,
    refused_excess: T,
    refused_ejected: T,
    failed_logins: T,
}

impl<T> Outcomes<T> {
    fn of(count: impl Fn(&[Counter]) -> T) -> Self {
        Self {
            decoded: count(&[Counter::Requests]),
            forwarded: count(&[Counter::RequestsForwarded]),
            cached: count(&[Counter::HotHits, Counter::HotHitsCopied]),
            refused_throttled: count(&[Counter::RefusedThrottled]),
            refused_overloaded: count(&[Counter::RefusedOverloaded]),
            refused_deadline: count(&[Counter::RefusedDeadline]),
            refused_unavailable: count(&[Counter::RefusedUnavailable]),
            refused_permission: count(&[Counter::RefusedPermission]),
            refused_excess: count(&[Counter::RefusedExcess]),
            refused_ejected: count(&[Counter::RefusedEjected]),
            failed_logins: count(&[Counter::LoginsFailed]),
        }
    }
}

/// Numbers of requests (since the start, or per second) refused because of overload, by reason.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Pressed<T> {
    window: T,
    queue: T,
    stalled: T,
    deadline: T,
    latency: T,
}

impl<T> Pressed<T> {
    fn of(count: impl Fn(Pressure) -> T) -> Self {
        Self {
            window: count(Pressure::Window),
            queue: count(Pressure::Queue),
            stalled: count(Pressure::Stalled),
            deadline: count(Pressure::Deadline),
            latency: count(Pressure::Latency),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Requests {
    since_start: Outcomes<u64>,
    per_second: Option<Outcomes<Number>>,
    pressed_since_start: Pressed<u64>,
    pressed_per_second: Option<Pressed<Number>>,
}

impl Requests {
    fn of(totals: &Totals, since: Option<&Since>) -> Self {
        let counted = |counters: &[Counter]| -> u64 {
            let of = |counter: &Counter| {
                totals.shards.iter().map(|report| report.counters.get(*counter)).sum::<u64>()
            };
            counters.iter().map(of).sum()
        };
        let all_tiers = |pressures: &crate::shard::Pressures, pressure| {
            Tier::ALL.iter().map(|tier| pressures.get(pressure, *tier)).sum::<u64>()
        };
        Self {
            since_start: Outcomes::of(counted),
            per_second: since
                .map(|since| Outcomes::of(|counters| Number(since.per_second(since.count(counters) as f64)))),
            pressed_since_start: Pressed::of(|pressure| {
                totals.shards.iter().map(|report| all_tiers(&report.pressures, pressure)).sum()
            }),
            pressed_per_second: since.map(|since| {
                Pressed::of(|pressure| {
                    let of = since.shards.iter().map(|shard| all_tiers(&shard.pressures, pressure));
                    Number(since.per_second(of.sum::<u64>() as f64))
                })
            }),
        }
    }
}

/// Quantiles of the times, in milliseconds, that stores took for the replies that came in the last second or
/// so.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Replies {
    count: u64,
    p50: Number,
    p90: Number,
    p99: Number,
    p99_9: Number,
    max: Number,
}

impl Replies {
    fn of(since: &Since) -> Option<Self> {
        let times = &since.service_times;
        let ms = |share| Number(times.quantile(share).as_secs_f64() * 1_000.0);
        let [p50, p90, p99, p99_9, max] = [0.5, 0.9, 0.99, 0.999, 1.0].map(ms);
        (times.count() > 0).then_some(Self { count: times.count(), p50, p90, p99, p99_9, max })
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Clients {
    open: usize,
    max: usize,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct ShardShown {
    shard: usize,
    clients: usize,
    cpu_seconds: Number,
    /// The part of one CPU that the shard's thread used in the last second or so; null if unknown.
    cpu: Option<Number>,
    requests_per_second: Option<Number>,
}

impl ShardShown {
    fn all(totals: &Totals, since: Option<&Since>) -> Vec<Self> {
        let of = |(shard, report): (usize, &super::ShardReport)| {
            let lately = since.and_then(|since| Some((since, since.shards.get(shard)?)));
            Self {
                shard,
                clients: report.clients_open,
                cpu_seconds: Number(report.event_loop.cpu.as_secs_f64()),
                cpu: lately.map(|(since, own)| Number(since.per_second(own.cpu.as_secs_f64()))),
                requests_per_second: lately
                    .map(|(since, own)| Number(since.per_second(own.counters.get(Counter::Requests) as f64))),
            }
        };
        totals.shards.iter().enumerate().map(of).collect()
    }
}

#[derive(Debug, Serialize)]
struct HotKeyShown<'a> {
    /// The beginning of the hot key, with special bytes escaped, as in `/metrics`.
    key: String,
    home: usize,
    tenant: Option<&'a str>,
    reads_per_second: Number,
    writes_per_second: Number,
    ru_per_second: Number,
    share: Number,
    hits: Number,
    hot_for_seconds: Option<Number>,
    state: &'static str,
    /// True if the store reports when this hot key changes.
    tracked: bool,
}

impl<'a> HotKeyShown<'a> {
    fn of(home: usize, key: &'a HotKey) -> Self {
        Self {
            key: label(key),
            home,
            tenant: key.tenant.as_deref(),
            reads_per_second: Number(key.reads),
            writes_per_second: Number(key.writes),
            ru_per_second: Number(key.request_units),
            share: Number(key.share),
            hits: Number(key.hit_ratio),
            hot_for_seconds: key.hot_for.map(|time| Number(time.as_secs_f64())),
            state: key.state,
            tracked: key.is_tracked,
        }
    }
}

#[derive(Debug, Serialize)]
struct LineShown<'a> {
    number: u64,
    at: String,
    about: &'static str,
    text: &'a str,
}

impl<'a> LineShown<'a> {
    fn of(line: &'a Line) -> Self {
        Self { number: line.number, at: rfc3339(line.unix_ms), about: line.about, text: &line.text }
    }
}

#[cfg(test)]
mod tests;
