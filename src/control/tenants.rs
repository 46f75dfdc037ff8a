//! The usage of tenants' quotas: the page `/tenants`, and the reply to `QOS TENANTS`.

use std::fmt;

use serde::Serialize;

use super::http::{Response, Status};
use super::json::{as_shown, as_shown_or_null};
use super::metering::{Figures, HOUR, Meter};
use super::suggestion::{Suggestion, suggestion};
use crate::config::{Quotas, Tenant};
use crate::protocol::{Protocol, encode};
use crate::values::limits::{METERED_MINUTES_MAX, TENANTS_SHOWN_MAX};
use crate::values::time::{Now, rfc3339};
use crate::values::usage::{Amount, UsageKind, UsageSum};
use crate::values::{TenantId, UNIT};

/// Maximum number of minutes on a page of usage, over all the tenants on it: the control executor (the thread
/// that makes the page) answers no shard meanwhile.
const MINUTES_SHOWN_MAX: usize = 10_000;

/// The query of the page `/tenants`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantsQuery {
    /// Name of a tenant: only tenants whose names come after it are shown.
    after: String,
    /// Name of the only tenant to show; None for all.
    tenant: Option<String>,
    /// The number of recent minutes whose usage is shown one by one; 0 for none.
    minutes: u64,
}

impl TenantsQuery {
    /// Parses the query string of the page `/tenants` (`after`, `tenant`, `minutes`). The error says what is
    /// wrong with it.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut found = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "after" => value.clone_into(&mut found.after),
                "tenant" => found.tenant = Some(value.to_owned()),
                "minutes" => {
                    let minutes =
                        value.parse().ok().filter(|minutes| (0..=METERED_MINUTES_MAX).contains(minutes));
                    found.minutes = minutes.ok_or_else(|| {
                        format!("minutes={value}: a whole number from 0 to {METERED_MINUTES_MAX} is expected")
                    })?;
                }
                _ => {
                    return Err(format!(
                        "{name} is not known here: tenant=, after= and minutes= are expected"
                    ));
                }
            }
        }
        Ok(found)
    }
}

/// The data from which the page `/tenants` and the reply to `QOS TENANTS` are made.
#[derive(Clone, Copy, Debug)]
pub struct Tenants<'a> {
    /// The quotas in force.
    pub quotas: &'a Quotas,
    /// The usage of tenants, minute by minute.
    pub meter: &'a Meter,
    /// The moment at which the page or reply is made.
    pub now: Now,
}

/// A tenant as it is shown, with its quota, its usage and the suggestion of a larger quota.
struct Told<'a> {
    id: TenantId,
    tenant: &'a Tenant,
    figures: Figures,
    suggestion: Option<Suggestion>,
}

impl Told<'_> {
    fn quota(&self) -> Option<u64> {
        self.tenant.limit.map(|limit| limit.ru_per_second)
    }

    /// Returns the part of its quota that the tenant consumed; `sum` is its usage in this many minutes. None
    /// without a quota.
    fn share(&self, sum: &UsageSum, minutes: u64) -> Option<Share> {
        let allowed = u128::from(self.quota()?) * 60 * u128::from(minutes) * u128::from(UNIT);
        Some(Share(sum.consumed().0 * 1_000_000 / allowed))
    }
}

/// The part of its quota that a tenant has used, in millionths: 1,000,000 is all of it.
#[derive(Clone, Copy, Debug)]
struct Share(u128);

impl fmt::Display for Share {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Both types display their millionths in the same way.
        Amount(self.0).fmt(out)
    }
}

impl Tenants<'_> {
    fn minute(&self) -> u64 {
        Meter::minute_of(self.now.monotonic)
    }

    /// Returns the wall-clock time (RFC 3339) at which a minute began; minutes are counted from the start of
    /// the process.
    fn start_of(&self, minute: u64) -> String {
        let started_ms = minute * 60_000;
        let now_ms = self.now.monotonic.as_nanos() / 1_000_000;
        rfc3339((self.now.unix_ms + started_ms).saturating_sub(now_ms))
    }

    fn told<'a>(&'a self, id: TenantId, tenant: &'a Tenant) -> Told<'a> {
        let minute = self.minute();
        let figures = self.meter.figures(id, minute);
        Told { id, tenant, figures, suggestion: suggestion(self.meter, id, tenant.limit, minute) }
    }

    /// Makes the page `/tenants`, which shows tenants in the order of their names; `query` is the query
    /// string. A wrong query gets status 400, one for an unknown tenant 404.
    pub fn page(&self, query: &str) -> Response {
        let query = match TenantsQuery::parse(query) {
            Ok(query) => query,
            Err(problem) => return Response::problem(Status::BadRequest, &problem, None),
        };
        let shown = match &query.tenant {
            None => self.quotas.tenants_after(&query.after).collect(),
            Some(name) => {
                let Some(id) = self.quotas.find(name) else {
                    let problem = format!("there is no tenant '{name}'");
                    return Response::problem(Status::NotFound, &problem, None);
                };
                vec![(id, self.quotas.tenant(id))]
            }
        };
        let most = (MINUTES_SHOWN_MAX / query.minutes.max(1) as usize).clamp(1, TENANTS_SHOWN_MAX);
        let next = (shown.len() > most).then(|| {
            let last = &shown[most - 1].1.name;
            format!("/tenants?after={last}&minutes={}", query.minutes)
        });
        let tenants = &shown[..shown.len().min(most)];
        let page = Page {
            at: rfc3339(self.now.unix_ms),
            since: self.start_of(self.meter.kept_from(self.minute())),
            quotas_version: self.quotas.version(),
            tenants: tenants.iter().map(|(id, tenant)| self.shown(*id, tenant, query.minutes)).collect(),
            next,
        };
        Response::json(Status::Ok, &page)
    }

    fn shown<'a>(&'a self, id: TenantId, tenant: &'a Tenant, minutes: u64) -> TenantShown<'a> {
        let told = self.told(id, tenant);
        let [this_minute, last_minute, last_hour, last_day] =
            periods(&told.figures).map(|(_, sum)| UsageShown::from(sum));
        TenantShown {
            name: &tenant.name,
            ru_per_second: told.quota(),
            request_units: PeriodsShown { this_minute, last_minute, last_hour, last_day },
            share_of_quota: SharesShown {
                last_minute: told.share(&told.figures.last_minute, 1),
                last_hour: told.share(&told.figures.last_hour, HOUR),
            },
            suggestion: told.suggestion.as_ref().map(|suggestion| SuggestionShown {
                ru_per_second: suggestion.ru_per_second,
                minutes_at_80_percent: suggestion.minutes_near,
            }),
            minutes: (minutes > 0).then(|| self.minutes_shown(&told, minutes)),
        }
    }

    /// Returns the usage of the tenant `told` in each of the last `minutes` minutes, the current one included,
    /// without those in which it had none.
    fn minutes_shown(&self, told: &Told<'_>, minutes: u64) -> Vec<MinuteShown> {
        let now = self.minute();
        let series = self.meter.series_of(told.id, (now + 1).saturating_sub(minutes), now);
        let shown = series.map(|(minute, usage)| {
            let sum = UsageSum::from(usage);
            let share_of_quota = told.share(&sum, 1);
            MinuteShown { start: self.start_of(minute), usage: UsageShown::from(&sum), share_of_quota }
        });
        shown.collect()
    }

    /// Writes the reply to `QOS TENANTS`, which the tenant named `asker` sent: an array of maps with the
    /// usage of tenants. A tenant sees only itself; an administrator sees at most `TENANTS_SHOWN_MAX` tenants
    /// whose names come after `after`. Empty if the asker is no longer a tenant.
    pub fn reply(&self, out: &mut Vec<u8>, protocol: Protocol, asker: &str, after: &str) {
        let told: Vec<Told<'_>> = match self.quotas.find(asker) {
            Some(id) if !self.quotas.tenant(id).admin => vec![self.told(id, self.quotas.tenant(id))],
            Some(_) => {
                let tenants = self.quotas.tenants_after(after).take(TENANTS_SHOWN_MAX);
                tenants.map(|(id, tenant)| self.told(id, tenant)).collect()
            }
            None => Vec::new(),
        };
        encode::array(out, told.len());
        told.iter().for_each(|told| reply_tenant(out, protocol, told));
    }
}

/// The JSON of `/tenants`; names and their order are a contract.
#[derive(Serialize)]
struct Page<'a> {
    at: String,
    since: String,
    quotas_version: u64,
    tenants: Vec<TenantShown<'a>>,
    next: Option<String>,
}

#[derive(Serialize)]
struct TenantShown<'a> {
    name: &'a str,
    ru_per_second: Option<u64>,
    request_units: PeriodsShown,
    share_of_quota: SharesShown,
    suggestion: Option<SuggestionShown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minutes: Option<Vec<MinuteShown>>,
}

#[derive(Serialize)]
struct PeriodsShown {
    this_minute: UsageShown,
    last_minute: UsageShown,
    last_hour: UsageShown,
    last_day: UsageShown,
}

#[derive(Serialize)]
struct SharesShown {
    #[serde(serialize_with = "as_shown_or_null")]
    last_minute: Option<Share>,
    #[serde(serialize_with = "as_shown_or_null")]
    last_hour: Option<Share>,
}

#[derive(Serialize)]
struct SuggestionShown {
    ru_per_second: u64,
    minutes_at_80_percent: usize,
}

#[derive(Serialize)]
struct MinuteShown {
    start: String,
    #[serde(flatten)]
    usage: UsageShown,
    #[serde(serialize_with = "as_shown_or_null")]
    share_of_quota: Option<Share>,
}

#[derive(Serialize)]
struct UsageShown {
    #[serde(serialize_with = "as_shown")]
    admitted: Amount,
    #[serde(serialize_with = "as_shown")]
    throttled: Amount,
    #[serde(serialize_with = "as_shown")]
    shed: Amount,
    #[serde(serialize_with = "as_shown")]
    cached: Amount,
}

impl From<&UsageSum> for UsageShown {
    fn from(sum: &UsageSum) -> Self {
        let [admitted, throttled, shed, cached] = UsageKind::ALL.map(|kind| sum.of(kind));
        Self { admitted, throttled, shed, cached }
    }
}

fn periods(figures: &Figures) -> [(&'static str, &UsageSum); 4] {
    [
        ("this_minute", &figures.this_minute),
        ("last_minute", &figures.last_minute),
        ("last_hour", &figures.last_hour),
        ("last_day", &figures.last_day),
    ]
}

fn reply_tenant(out: &mut Vec<u8>, protocol: Protocol, told: &Told<'_>) {
    let periods = periods(&told.figures);
    encode::map(out, protocol, 4 + periods.len());
    encode::bulk(out, b"name");
    encode::bulk(out, told.tenant.name.as_bytes());
    encode::bulk(out, b"ru_per_second");
    reply_integer(out, protocol, told.quota());
    encode::bulk(out, b"share_of_quota");
    match told.share(&told.figures.last_minute, 1) {
        Some(share) => encode::double(out, protocol, &share.to_string()),
        None => encode::null(out, protocol),
    }
    for (name, sum) in periods {
        encode::bulk(out, name.as_bytes());
        encode::map(out, protocol, UsageKind::ALL.len());
        for kind in UsageKind::ALL {
            encode::bulk(out, kind.name().as_bytes());
            encode::double(out, protocol, &sum.of(kind).to_string());
        }
    }
    encode::bulk(out, b"suggested_ru_per_second");
    reply_integer(out, protocol, told.suggestion.map(|suggestion| suggestion.ru_per_second));
}

fn reply_integer(out: &mut Vec<u8>, protocol: Protocol, number: Option<u64>) {
    match number {
        Some(number) => encode::integer(out, number as i64),
        None => encode::null(out, protocol),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{Timestamp, Usage};

    /// The time in these tests: 70 minutes and a second after the start of the process, which was at
    /// midnight.
    const NOW: Now =
        Now { monotonic: Timestamp::from_millis(70 * 60_000 + 1_000), unix_ms: 70 * 60_000 + 1_000 };
    const FILE: &str = "[tenants.acme]\npassword = 'x'\nru_per_second = 10\n[tenants.zeta]\npassword = 'x'\n\
                        [tenants.operator]\npassword = 'x'\nadmin = true\n";

    fn quotas() -> Quotas {
        Quotas::parse("q", FILE).expect("well formed")
    }

    fn metered(quotas: &Quotas) -> Meter {
        let mut meter = Meter::new(quotas);
        let acme = quotas.find("acme").expect("it is there");
        for minute in 5..70 {
            let usage = Usage { admitted: 590_000_000, throttled: 1_500_000, shed: 0, cached: 100_000 };
            meter.record(acme, usage, minute);
        }
        meter.record(acme, Usage { shed: 1, ..Usage::default() }, 70);
        meter
    }

    fn page(query: &str) -> String {
        let quotas = quotas();
        Tenants { quotas: &quotas, meter: &metered(&quotas), now: NOW }.page(query).body
    }

    #[test]
    fn a_tenants_figures() {
        assert_eq!(
            page("tenant=acme&minutes=2"),
            "{\"at\":\"1970-01-01T01:10:01.000Z\",\"since\":\"1970-01-01T00:00:00.000Z\",\"quotas_version\":0,\
             \"tenants\":[{\"name\":\"acme\",\"ru_per_second\":10,\"request_units\":{\
             \"this_minute\":{\"admitted\":0,\"throttled\":0,\"shed\":0.000001,\"cached\":0},\
             \"last_minute\":{\"admitted\":590,\"throttled\":1.5,\"shed\":0,\"cached\":0.1},\
             \"last_hour\":{\"admitted\":34810,\"throttled\":88.5,\"shed\":0.000001,\"cached\":5.9},\
             \"last_day\":{\"admitted\":38350,\"throttled\":97.5,\"shed\":0.000001,\"cached\":6.5}},\
             \"share_of_quota\":{\"last_minute\":0.9835,\"last_hour\":0.967108},\
             \"suggestion\":{\"ru_per_second\":13,\"minutes_at_80_percent\":60},\"minutes\":[\
             {\"start\":\"1970-01-01T01:09:00.000Z\",\"admitted\":590,\"throttled\":1.5,\"shed\":0,\"cached\":0.1,\
             \"share_of_quota\":0.9835},\
             {\"start\":\"1970-01-01T01:10:00.000Z\",\"admitted\":0,\"throttled\":0,\"shed\":0.000001,\"cached\":0,\
             \"share_of_quota\":0}]}],\"next\":null}\n"
        );
    }

    #[test]
    fn all_tenants_stand_in_the_order_of_their_names() {
        let names = |query: &str| -> Vec<String> {
            let page = page(query);
            page.split("{\"name\":\"")
                .skip(1)
                .map(|rest| rest.split('"').next().unwrap_or("").to_owned())
                .collect()
        };
        assert_eq!(names(""), ["acme", "operator", "zeta"]);
        assert_eq!(names("after=acme"), ["operator", "zeta"]);
        assert_eq!(names("after=b"), ["operator", "zeta"]);
        assert!(names("after=zeta").is_empty());
        assert!(page("tenant=zeta").contains("\"share_of_quota\":{\"last_minute\":null,\"last_hour\":null}"));
    }

    #[test]
    fn pages_are_bounded_and_lead_on() {
        let quotas = Quotas::with_tenants((0..2_500).map(|n| format!("t{n:04}")));
        let meter = Meter::new(&quotas);
        let tenants = Tenants { quotas: &quotas, meter: &meter, now: NOW };
        let mut query = String::new();
        let mut counts = Vec::new();
        loop {
            let body = tenants.page(&query).body;
            counts.push(body.matches("{\"name\":").count());
            let Some((_, next)) = body.split_once("\"next\":\"/tenants?") else { break };
            query = next.split('"').next().expect("it ends").replace("\\u0026", "&");
        }
        assert_eq!(counts, [1_000, 1_000, 500]);
        let body = tenants.page("minutes=1440").body;
        assert_eq!(body.matches("{\"name\":").count(), 6);
        assert!(body.ends_with("\"next\":\"/tenants?after=t0005\\u0026minutes=1440\"}\n"), "{body}");
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (query, problem) in [
            ("minutes=1441", "minutes=1441: a whole number from 0 to 1440 is expected"),
            ("minutes=", "minutes=: a whole number from 0 to 1440 is expected"),
            ("minuets=1", "minuets is not known here: tenant=, after= and minutes= are expected"),
        ] {
            assert_eq!(TenantsQuery::parse(query), Err(problem.to_owned()));
        }
        assert!(page("tenant=%3Cb%3E").contains("there is no tenant '%3Cb%3E'"));
        assert!(TenantsQuery::parse("").is_ok());
    }

    fn reply(protocol: Protocol, asker: &str, after: &str) -> String {
        let quotas = quotas();
        let mut out = Vec::new();
        Tenants { quotas: &quotas, meter: &metered(&quotas), now: NOW }
            .reply(&mut out, protocol, asker, after);
        String::from_utf8(out).expect("text").replace("\r\n", " ")
    }

    #[test]
    fn a_reply_in_both_dialects() {
        let outcomes = |parts: [&str; 4]| {
            let names = ["$8 admitted", "$9 throttled", "$4 shed", "$6 cached"];
            let words: Vec<&str> =
                names.into_iter().zip(parts).flat_map(|(name, part)| [name, part]).collect();
            words.join(" ") + " "
        };
        assert_eq!(
            reply(Protocol::Resp3, "acme", ""),
            format!(
                "*1 %8 $4 name $4 acme $13 ru_per_second :10 $14 share_of_quota ,0.9835 $11 this_minute %4 {}\
                 $11 last_minute %4 {}$9 last_hour %4 {}$8 last_day %4 {}$23 suggested_ru_per_second :13 ",
                outcomes([",0", ",0", ",0.000001", ",0"]),
                outcomes([",590", ",1.5", ",0", ",0.1"]),
                outcomes([",34810", ",88.5", ",0.000001", ",5.9"]),
                outcomes([",38350", ",97.5", ",0.000001", ",6.5"]),
            )
        );
        let resp2 = reply(Protocol::Resp2, "zeta", "");
        let start = "*1 *16 $4 name $4 zeta $13 ru_per_second $-1 $14 share_of_quota $-1 $11 this_minute *8 ";
        assert!(resp2.starts_with(start), "{resp2}");
        assert!(resp2.contains(&outcomes(["$1 0", "$1 0", "$1 0", "$1 0"])), "{resp2}");
    }

    #[test]
    fn only_an_administrator_is_told_of_others() {
        assert!(reply(Protocol::Resp2, "zeta", "").starts_with("*1 "));
        assert!(reply(Protocol::Resp2, "operator", "").starts_with("*3 "));
        assert!(reply(Protocol::Resp2, "operator", "operator").starts_with("*1 "));
        assert_eq!(reply(Protocol::Resp2, "nobody", ""), "*0 ");
    }
}
