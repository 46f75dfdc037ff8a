//! The pages of the admin port: which page a request gets, and what the pages are made from.

use std::time::Duration;

use super::bulkhead_series::write_bulkheads;
use super::cluster::cluster_page;
use super::exposition::{CONTENT_TYPE, Exposition, Kind, Value};
use super::fleet_series::write_fleet;
use super::hot_keys::hot_keys_page;
use super::hot_series::write_hot;
use super::http::Head;
use super::http::{Response, Route, Status};
use super::quota_page::quotas_page;
use super::replicas::write_replicas;
use super::state::state_page;
use super::tenants::Tenants;
use super::tls_series::write_tls;
use super::{
    FleetQuotas, History, Journal, Meter, ProcessFacts, QuotaHistory, QuotaSource, Recent, Totals, Versions,
};
use crate::config::Quotas;
use crate::shard::{COUNTERS, FilterKind};
use crate::values::time::Now;
use crate::values::usage::Amount;
use crate::values::usage::UsageKind;

impl Route {
    /// True if this page of the admin port shows counters of all shards, which must be collected first.
    pub const fn needs_figures(self) -> bool {
        matches!(self, Self::Metrics | Self::HotKeys | Self::State | Self::Cluster)
    }
}

/// The state of the process from which an admin page is made.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Facts about the process that do not depend on its traffic.
    pub facts: &'a ProcessFacts,
    /// The counters of all shards. None if they were not collected, or if a shard or the embedded store did
    /// not report in time.
    pub totals: Option<&'a Totals>,
    /// The quotas in force and those before them, with the reason for the change, its time, and the numbers
    /// of quotas put in force and refused.
    pub versions: &'a Versions,
    /// The usage of tenants, minute by minute.
    pub meter: &'a Meter,
    /// The quotas shared with a fleet (other weir processes); None if none are.
    pub fleet: Option<&'a FleetQuotas>,
    /// The moment at which the page is made.
    pub now: Now,
}

/// State of the admin pages that is kept from one request for a page to the next.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    /// Counters of all shards as of up to four recent moments, from which rates per second are computed.
    pub recent: Recent,
    /// The last lines of weir's log.
    pub journal: Journal,
    /// Figures of the last ten minutes, for `/history.json`.
    pub history: History,
}

impl Looks {
    /// Records the current counters (`totals`), whether or not somebody looks at a page: as a point of
    /// `/history.json`, and as those with which the rates of `/state.json` are computed.
    pub fn note(&mut self, view: View<'_>, totals: &Totals) {
        self.history.note(view, totals);
        self.recent.look(totals, view.meter, view.versions.current(), view.now.monotonic);
    }
}

/// Returns the refusal of a request for data (`/state.json`, `/history.json` or `/explain`) that a web page
/// of another origin made a browser send; None for any other request. Such a page could not read the reply,
/// but would make weir collect counters.
pub fn foreign(head: &Head) -> Option<Response> {
    (head.is_foreign && matches!(head.route, Route::State | Route::History | Route::Explain))
        .then(|| Response::problem(Status::Forbidden, "web pages of other origins may not read this", None))
}

/// Makes the page of the admin port that `route` names. `query` is the query string, `view` the state to
/// show, and `looks` what is kept from one page to the next, to compute rates. Pages that need counters of
/// shards get status 503 if `view` has none, except `/cluster`. [`Route::Explain`] gets status 404, since its
/// page takes an answer of a shard and is made elsewhere.
pub fn page(route: Route, query: &str, view: View<'_>, looks: &mut Looks) -> Response {
    match (route, view.totals) {
        (Route::Page, _) => super::page::page(),
        (Route::State, Some(totals)) => state_page(view, totals, &mut looks.recent, &looks.journal),
        (Route::History, _) => looks.history.page(view),
        (Route::Index, _) => Response::index(),
        (Route::Health, _) => Response::text(Status::Ok, "ok"),
        (Route::Ready, _) if view.facts.draining => Response::text(Status::ServiceUnavailable, "draining"),
        (Route::Ready, _) => Response::text(Status::Ok, "ready"),
        (Route::Quotas, _) => quotas_page(view.versions, query),
        (Route::Tenants, _) => {
            Tenants { quotas: view.versions.current(), meter: view.meter, now: view.now }.page(query)
        }
        (Route::Cluster, totals) => {
            cluster_page(view.facts.cluster.as_deref(), &view.facts.replicas, totals, view.now.monotonic)
        }
        (Route::Fleet, _) => match view.fleet {
            Some(fleet) => fleet.page(view.versions.current(), query, view.now.monotonic),
            None => Response::problem(Status::NotFound, "quotas are not shared (--fleet)", None),
        },
        // A shard makes the answer to `/explain`, so it does not come here.
        (Route::NotFound | Route::Explain, _) => Response::refusal(Status::NotFound),
        (Route::Metrics | Route::HotKeys | Route::State, None) => {
            let silent = "a shard, or the embedded store, does not answer";
            Response::text(Status::ServiceUnavailable, silent)
        }
        (Route::HotKeys, Some(totals)) => hot_keys_page(totals, query, view.now),
        (Route::Metrics, Some(totals)) => Response::page(CONTENT_TYPE, metrics(view, totals)),
    }
}

/// Returns the text of `/metrics`. Most figures of shards are shown per shard, since operators look for
/// uneven load.
fn metrics(view: View<'_>, totals: &Totals) -> String {
    let mut page = Exposition::new();
    write_facts(&mut page, view.facts);
    write_quota_history(&mut page, view.versions.history());
    write_tenants(&mut page, view.versions.current(), view.meter);
    if let Some(fleet) = view.fleet {
        let named = view.meter.series().named();
        let names = named.iter().map(|(id, _)| (*id, view.versions.current().tenant(*id).name.as_str()));
        write_fleet(&mut page, fleet, names, view.now.monotonic);
    }
    if let Some(tls) = &view.facts.tls {
        write_tls(&mut page, tls);
    }
    write_shard_gauges(&mut page, totals);
    write_counters(&mut page, totals);
    write_service_times(&mut page, totals);
    write_bulkheads(&mut page, &view.facts.backends, totals);
    write_replicas(&mut page, &view.facts.backends, &view.facts.replicas, totals, view.now.monotonic);
    write_hot(&mut page, &view.facts.backends, totals);
    write_engine(&mut page, totals);
    page.finish()
}

fn write_facts(page: &mut Exposition, facts: &ProcessFacts) {
    page.family("weir_build_info", "Version of weir.", Kind::Gauge)
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64);
    page.family("weir_uptime_seconds", "Time since the start.", Kind::Gauge)
        .sample(&[], facts.uptime.as_secs_f64());
    page.family("weir_resident_bytes", "Resident memory of the process.", Kind::Gauge)
        .sample(&[], facts.resident_bytes);
    page.family("weir_draining", "1 while weir drains and accepts no new clients, else 0.", Kind::Gauge)
        .sample(&[], u64::from(facts.draining));
    page.family("weir_clients_max", "Most clients that may be connected at once.", Kind::Gauge)
        .sample(&[], facts.clients_max);
    page.family("weir_quota_pools", "Buckets that are not full or are in use.", Kind::Gauge)
        .sample(&[], facts.quota_pools);
    page.family(
        "weir_quota_forgiven_request_units_total",
        "Request units above the estimated price that were not charged to the bucket of all tenants together.",
        Kind::Counter,
    )
    .sample(&[], Amount(u128::from(facts.forgiven)).as_f64());
    page.family(
        "weir_admin_denied_total",
        "Admin requests that were refused: without the right token, or from a page of another site.",
        Kind::Counter,
    )
    .sample(&[], facts.admin_denied);
}

fn write_quota_history(page: &mut Exposition, quotas: &QuotaHistory) {
    page.family("weir_tenants", "Tenants in the quotas in force.", Kind::Gauge).sample(&[], quotas.tenants);
    page.family("weir_quotas_version", "Times quotas were replaced since the start.", Kind::Gauge)
        .sample(&[], quotas.version);
    let mut taken =
        page.family("weir_quotas_loaded_total", "Times new quotas were put in force.", Kind::Counter);
    for source in QuotaSource::ALL {
        taken.sample(&[("source", source.name())], quotas.taken(source));
    }
    let help = "Times new quotas were invalid and were not put in force.";
    let mut refused = page.family("weir_quotas_refused_total", help, Kind::Counter);
    for source in QuotaSource::ALL {
        refused.sample(&[("source", source.name())], quotas.refused(source));
    }
}

/// The name in metrics that stands for all tenants without metrics of their own. No tenant can have it.
const OTHERS: &str = "(other)";

fn write_tenants(page: &mut Exposition, quotas: &Quotas, meter: &Meter) {
    let named = meter.series().named();
    let help = "Request units that tenants asked for, by outcome.";
    let mut family = page.family("weir_tenant_request_units_total", help, Kind::Counter);
    let others = (OTHERS, meter.series().others());
    let tenants = named.iter().map(|(tenant, sum)| (quotas.tenant(*tenant).name.as_str(), *sum));
    for (name, sum) in tenants.chain([others]) {
        for kind in UsageKind::ALL {
            family.sample(&[("tenant", name), ("outcome", kind.name())], sum.of(kind).as_f64());
        }
    }
    let help = "Quotas of tenants that have one.";
    let mut family = page.family("weir_tenant_quota_request_units_per_second", help, Kind::Gauge);
    for (tenant, _) in &named {
        let terms = quotas.tenant(*tenant);
        if let Some(limit) = terms.limit {
            family.sample(&[("tenant", &terms.name)], limit.ru_per_second);
        }
    }
    let help =
        "Reports of usage that were dropped because their quotas had been replaced more than eight times.";
    page.family("weir_tenant_reports_late_total", help, Kind::Counter).sample(&[], meter.late_reports());
}

fn write_shard_gauges(page: &mut Exposition, totals: &Totals) {
    type Figure = fn(&super::ShardReport) -> usize;
    let gauges: [(&str, &str, Figure); 4] = [
        ("weir_clients_open", "Clients connected.", |report| report.clients_open),
        ("weir_monitors", "Clients that watch requests (MONITOR).", |report| report.monitors),
        ("weir_backend_connections_open", "Connections to backends.", |report| report.links_open),
        ("weir_backend_replies_owed", "Requests sent to backends without a reply yet.", |report| {
            report.replies_owed
        }),
    ];
    for (name, help, figure) in gauges {
        let mut family = page.family(name, help, Kind::Gauge);
        for (shard, report) in totals.shards.iter().enumerate() {
            family.sample(&[("shard", &shard.to_string())], figure(report));
        }
    }
    let help =
        "Channels and patterns with one subscription for all clients of this process, by their home shard.";
    let mut family = page.family("weir_shared_channels", help, Kind::Gauge);
    for (shard, report) in totals.shards.iter().enumerate() {
        for (kind, count) in ["channel", "pattern"].into_iter().zip(report.shared_channels) {
            family.sample(&[("shard", &shard.to_string()), ("kind", kind)], count);
        }
    }
    let help = "Connections to backends that a client has to itself, by use; idle ones can be lent, and shared ones \
                have subscriptions of many clients.";
    let mut family = page.family("weir_private_links", help, Kind::Gauge);
    for (shard, report) in totals.shards.iter().enumerate() {
        for (usage, count) in report.private_links.by_use() {
            family.sample(&[("shard", &shard.to_string()), ("use", usage)], count);
        }
    }
    let help = "Places that patterns of channels (PSUBSCRIBE) and prefixes of keys (CLIENT TRACKING with BCAST) take at \
                backends, which compare them with each message and each write; long ones take several.";
    let mut family = page.family("weir_filters", help, Kind::Gauge);
    for (shard, report) in totals.shards.iter().enumerate() {
        for ((_, kind), count) in FilterKind::ALL.into_iter().zip(report.filters) {
            family.sample(&[("shard", &shard.to_string()), ("kind", kind)], count);
        }
    }
    write_users(page, totals);
    write_event_loops(page, totals);
}

fn write_event_loops(page: &mut Exposition, totals: &Totals) {
    type Figure = fn(&super::EventLoopFigures) -> u64;
    let figures: [(&str, &str, Figure); 4] = [
        ("weir_event_loop_turns_total", "Turns of a shard's loop that found something to do.", |figures| {
            figures.turns
        }),
        ("weir_event_loop_sleeps_total", "Times a shard slept.", |figures| figures.sleeps),
        (
            "weir_event_loop_overslept_total",
            "Sleeps of a shard that ended by the timeout of one second although work had come. A growing number means lost wake-ups.",
            |figures| figures.overslept,
        ),
        ("weir_doorbells_total", "Times a shard woke another one.", |figures| figures.doorbells),
    ];
    for (name, help, figure) in figures {
        let mut family = page.family(name, help, Kind::Counter);
        for (shard, report) in totals.shards.iter().enumerate() {
            family.sample(&[("shard", &shard.to_string())], figure(&report.event_loop));
        }
    }
    let mut family =
        page.family("weir_shard_cpu_seconds_total", "CPU time of a shard's thread.", Kind::Counter);
    for (shard, report) in totals.shards.iter().enumerate() {
        family.sample(&[("shard", &shard.to_string())], report.event_loop.cpu.as_secs_f64());
    }
}

fn write_users(page: &mut Exposition, totals: &Totals) {
    type Figure = fn(&super::ShardReport) -> u64;
    let figures: [(&str, &str, Kind, Figure); 3] = [
        ("weir_users_active", "Users whose quotas are not full.", Kind::Gauge, |report| {
            report.users.active as u64
        }),
        (
            "weir_users_evicted_total",
            "Idle users whose state was dropped to make room for others.",
            Kind::Counter,
            |report| report.users.evicted,
        ),
        (
            "weir_users_refused_total",
            "Requests of users for whose state there was no room.",
            Kind::Counter,
            |report| report.users.refused,
        ),
    ];
    for (name, help, kind, figure) in figures {
        let mut family = page.family(name, help, kind);
        for (shard, report) in totals.shards.iter().enumerate() {
            family.sample(&[("shard", &shard.to_string())], figure(report));
        }
    }
}

/// Writes the metrics that are counters of shards. Rows of the table `COUNTERS` that stand next to each other
/// and differ only in their label are one family of samples. Counters of metrics in seconds hold
/// microseconds, which are converted.
fn write_counters(page: &mut Exposition, totals: &Totals) {
    for rows in COUNTERS.chunk_by(|one, other| one.1 == other.1) {
        let (_, name, _, help) = rows[0];
        let mut family = page.family(name, help, Kind::Counter);
        for (counter, _, label, _) in rows {
            for (shard, report) in totals.shards.iter().enumerate() {
                let shard = shard.to_string();
                let count = report.counters.get(*counter);
                let is_time = name.ends_with("_seconds_total");
                let value: Value =
                    if is_time { Duration::from_micros(count).as_secs_f64().into() } else { count.into() };
                match label.split_once('=') {
                    Some((name, word)) => {
                        family.sample(&[("shard", &shard), (name, word.trim_matches('"'))], value)
                    }
                    None => family.sample(&[("shard", &shard)], value),
                };
            }
        }
    }
}

/// Writes the metrics of the times that backends took to reply. Quantiles are those over all shards, since a
/// reader cannot combine quantiles of single shards.
fn write_service_times(page: &mut Exposition, totals: &Totals) {
    let times = totals.sum().service_times;
    let help = "Time from handing a request to a backend connection to its whole reply.";
    let mut family = page.family("weir_backend_reply_seconds", help, Kind::Summary);
    for (label, share) in [("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99), ("0.999", 0.999), ("1", 1.0)] {
        family.sample(&[("quantile", label)], times.quantile(share).as_secs_f64());
    }
    family.sum_and_count(times.sum().as_secs_f64(), times.count());
    page.family(
        "weir_backend_reply_seconds_total",
        "Sum of the times from handing a request to a backend connection to its whole reply.",
        Kind::Counter,
    )
    .sample(&[], times.sum().as_secs_f64());
}

fn write_engine(page: &mut Exposition, totals: &Totals) {
    let Some(engine) = &totals.engine else { return };
    let figures = [
        ("weir_embedded_keys", "Keys.", Kind::Gauge, engine.keys as u64),
        (
            "weir_embedded_keys_volatile",
            "Keys with an expiry time.",
            Kind::Gauge,
            engine.keys_volatile as u64,
        ),
        ("weir_embedded_bytes", "Bytes of all keys and values, roughly.", Kind::Gauge, engine.bytes_used),
        ("weir_embedded_commands_total", "Commands carried out.", Kind::Counter, engine.commands),
        ("weir_embedded_errors_total", "Error replies.", Kind::Counter, engine.errors),
        (
            "weir_embedded_out_of_memory_total",
            "Writes refused because the memory limit is reached.",
            Kind::Counter,
            engine.refused_for_memory,
        ),
        (
            "weir_embedded_too_dear_total",
            "Requests refused for their cost.",
            Kind::Counter,
            engine.refused_for_cost,
        ),
        ("weir_embedded_expired_total", "Keys that expired.", Kind::Counter, engine.expired),
        ("weir_embedded_hits_total", "Reads that found their key.", Kind::Counter, engine.hits),
        ("weir_embedded_misses_total", "Reads that did not find their key.", Kind::Counter, engine.misses),
    ];
    for (name, help, kind, value) in figures {
        page.family(name, &format!("Embedded store: {help}"), kind).sample(&[], value);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::control::{EventLoopFigures, ShardReport};
    use crate::shard::Counter;
    use crate::store::EngineStatistics;
    use crate::values::{TenantId, Usage};

    fn shown(route: Route, facts: &ProcessFacts, totals: Option<&Totals>) -> Response {
        let versions = Versions::new(Arc::new(Quotas::trusting()), None, 0);
        let mut meter = Meter::new(versions.current());
        let usage = Usage { admitted: 1_500_000, ..Usage::default() };
        meter.record(TenantId(0), usage, 0);
        page(
            route,
            "",
            View { facts, totals, versions: &versions, meter: &meter, fleet: None, now: Now::default() },
            &mut Looks::default(),
        )
    }

    fn body(route: Route, draining: bool) -> (Status, String) {
        let response = shown(route, &ProcessFacts { draining, ..ProcessFacts::default() }, None);
        (response.status, response.body)
    }

    #[test]
    fn health_and_readiness() {
        assert_eq!(body(Route::Health, true), (Status::Ok, "ok\n".to_owned()));
        assert_eq!(body(Route::Ready, false), (Status::Ok, "ready\n".to_owned()));
        assert_eq!(body(Route::Ready, true), (Status::ServiceUnavailable, "draining\n".to_owned()));
        assert_eq!(body(Route::NotFound, false).0, Status::NotFound);
        assert_eq!(body(Route::Fleet, false).0, Status::NotFound, "there is none");
        assert_eq!(body(Route::Metrics, false).0, Status::ServiceUnavailable);
        assert_eq!(body(Route::HotKeys, false).0, Status::ServiceUnavailable);
        assert_eq!(body(Route::State, false).0, Status::ServiceUnavailable);
        assert_eq!(body(Route::Page, false).0, Status::Ok, "it says itself that there are no figures");
        assert!(Route::HotKeys.needs_figures() && !Route::Ready.needs_figures());
    }

    #[test]
    fn figures_of_all_shards() {
        let event_loop = EventLoopFigures {
            turns: 5,
            sleeps: 4,
            overslept: 0,
            doorbells: 6,
            cpu: Duration::from_millis(1_500),
        };
        let mut busy = ShardReport { clients_open: 7, event_loop, ..ShardReport::default() };
        busy.counters.add(Counter::Requests, 3);
        busy.counters.add(Counter::RefusedPermission, 2);
        let totals =
            Totals { shards: vec![busy, ShardReport::default()], engine: Some(EngineStatistics::default()) };
        let text = shown(Route::Metrics, &ProcessFacts::default(), Some(&totals)).body;
        for line in [
            "weir_clients_open{shard=\"0\"} 7",
            "weir_clients_open{shard=\"1\"} 0",
            "weir_requests_total{shard=\"0\"} 3",
            "weir_event_loop_turns_total{shard=\"0\"} 5",
            "weir_event_loop_sleeps_total{shard=\"0\"} 4",
            "weir_doorbells_total{shard=\"0\"} 6",
            "weir_shard_cpu_seconds_total{shard=\"0\"} 1.5",
            "weir_refusals_total{shard=\"0\",reason=\"permission\"} 2",
            "weir_embedded_keys 0",
            "weir_tenants 1",
            "weir_tenant_request_units_total{tenant=\"default\",outcome=\"admitted\"} 1.5",
            "weir_tenant_request_units_total{tenant=\"(other)\",outcome=\"shed\"} 0",
            "weir_quotas_loaded_total{source=\"post\"} 0",
            "# TYPE weir_requests_total counter",
        ] {
            assert!(text.lines().any(|each| each == line), "{line} in {text}");
        }
    }
}
