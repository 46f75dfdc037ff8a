//! The page `/config/quotas`: shows the quotas in force, and decides who may replace them.

use std::net::SocketAddr;

use serde::Serialize;

use super::http::{Head, Response, Status};
use super::json::as_shown_or_null;
use super::quotas::{QuotaSource, Versions};
use crate::config::quotas::{Limit, Tenant};
use crate::config::{AdminToken, QuotaError, Size};
use crate::values::limits::{QUOTA_POST_BYTES_MAX, TENANTS_SHOWN_MAX};
use crate::values::time::rfc3339;

/// The access check for `/config/quotas`, the only page of the admin port that changes something.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The token that a POST of quotas must have; None if none is configured.
    pub token: Option<AdminToken>,
    /// The address on which the admin port listens.
    pub address: SocketAddr,
}

impl Guard {
    /// True if the admin port listens on an address that other machines may reach (not loopback) and no token
    /// is set, in which case it accepts no quotas.
    pub fn is_open_to_strangers(&self) -> bool {
        self.token.is_none() && !self.address.ip().to_canonical().is_loopback()
    }

    /// Checks whether a POST of quotas with this head is permitted, and its body may be received. The error
    /// is the HTTP reply.
    pub fn admit(&self, head: &Head) -> Result<(), Response> {
        if head.is_foreign {
            // A page of any site can make a browser on this machine send a request to a loopback address.
            return Err(Response::problem(Status::Forbidden, "requests of web pages are refused here", None));
        }
        match &self.token {
            Some(token) if head.bearer.as_deref().is_some_and(|given| token.is(given)) => {}
            Some(_) => {
                let detail = match head.bearer {
                    Some(_) => "this is not the token of --admin-token or --admin-token-file",
                    None => {
                        "the header Authorization: Bearer TOKEN is expected (--admin-token, --admin-token-file)"
                    }
                };
                return Err(Response::problem(Status::Unauthorized, detail, None)
                    .with_header("www-authenticate", "Bearer realm=\"weir\""));
            }
            None if self.is_open_to_strangers() => {
                let detail = format!(
                    "the admin port listens on {}, where others than this machine may reach it: quotas are taken only \
                     with a token (--admin-token or --admin-token-file)",
                    self.address
                );
                return Err(Response::problem(Status::Forbidden, &detail, None));
            }
            None => {}
        }
        if head.body.bytes() > QUOTA_POST_BYTES_MAX as u64 {
            let detail = format!(
                "a body of {} bytes: up to {} is expected; larger quotas go into the quota file",
                head.body.bytes(),
                Size(QUOTA_POST_BYTES_MAX as u64)
            );
            return Err(Response::problem(Status::ContentTooLarge, &detail, None));
        }
        Ok(())
    }
}

/// Makes the page `/config/quotas`, which shows the quotas in force: at most `TENANTS_SHOWN_MAX` tenants, in
/// the order of their names, after the name in the query string (`after=NAME`). Any other query gets status
/// 400. Passwords are not shown.
pub fn quotas_page(versions: &Versions, query: &str) -> Response {
    let quotas = versions.current();
    let Some(after) = query.strip_prefix("after=").or(query.is_empty().then_some("")) else {
        let problem = format!("{query} is not known here: after=NAME is expected");
        return Response::problem(Status::BadRequest, &problem, None);
    };
    let mut shown: Vec<&Tenant> =
        quotas.tenants_after(after).take(TENANTS_SHOWN_MAX + 1).map(|(_, tenant)| tenant).collect();
    let is_cut = shown.len() > TENANTS_SHOWN_MAX;
    shown.truncate(TENANTS_SHOWN_MAX);
    let refusal = versions.history().last_refusal.as_ref().map(|refusal| RefusalShown {
        at: rfc3339(refusal.unix_ms),
        source: refusal.source.name(),
        problem: refusal.problem.to_string(),
    });
    let next = shown.last().filter(|_| is_cut).map(|last| format!("/config/quotas?after={}", last.name));
    let page = QuotasShown {
        version: quotas.version(),
        source: versions.source().name(),
        since: rfc3339(versions.since_unix_ms()),
        file: versions.file(),
        last_refusal: refusal,
        global_ru_per_second: rate(quotas.global()),
        global_burst_seconds: burst(quotas.global()),
        tenants: shown.into_iter().map(TenantShown::of).collect(),
        next,
    };
    Response::json(Status::Ok, &page)
}

/// The JSON of `/config/quotas`; names and their order are a contract.
#[derive(Serialize)]
struct QuotasShown<'a> {
    version: u64,
    source: &'static str,
    since: String,
    file: Option<&'a str>,
    last_refusal: Option<RefusalShown>,
    global_ru_per_second: Option<u64>,
    #[serde(serialize_with = "as_shown_or_null")]
    global_burst_seconds: Option<f64>,
    tenants: Vec<TenantShown<'a>>,
    next: Option<String>,
}

#[derive(Serialize)]
struct RefusalShown {
    at: String,
    source: &'static str,
    problem: String,
}

#[derive(Serialize)]
struct TenantShown<'a> {
    name: &'a str,
    ru_per_second: Option<u64>,
    #[serde(serialize_with = "as_shown_or_null")]
    burst_seconds: Option<f64>,
    user_ru_per_second: Option<u64>,
    tier: &'static str,
    deadline_ms: Option<u64>,
    stale_on_error_ms: u64,
    admin: bool,
    /// The key prefixes to which the tenant is confined; null if it may use every key.
    keys: Option<&'a [String]>,
    users: usize,
}

impl<'a> TenantShown<'a> {
    fn of(tenant: &'a Tenant) -> Self {
        Self {
            name: &tenant.name,
            ru_per_second: rate(tenant.limit),
            burst_seconds: burst(tenant.limit),
            user_ru_per_second: rate(tenant.user_limit),
            tier: tenant.tier.name(),
            deadline_ms: tenant.deadline.map(|deadline| deadline.as_millis() as u64),
            stale_on_error_ms: tenant.stale_on_error.as_millis() as u64,
            admin: tenant.admin,
            keys: Some(&*tenant.keys).filter(|keys| !keys.is_empty()),
            users: tenant.users.len(),
        }
    }
}

fn rate(limit: Option<Limit>) -> Option<u64> {
    limit.map(|limit| limit.ru_per_second)
}

fn burst(limit: Option<Limit>) -> Option<f64> {
    limit.map(|limit| limit.burst.as_secs_f64())
}

/// Returns the source of the quotas in force, in words for a log.
pub fn origin(versions: &Versions) -> String {
    let file = versions.file().unwrap_or("nowhere");
    match versions.source() {
        QuotaSource::Start => file.to_owned(),
        QuotaSource::Change => format!("{file}, which changed"),
        QuotaSource::Signal => format!("{file}, as told by SIGHUP"),
        QuotaSource::Post => "POST /config/quotas".to_owned(),
        QuotaSource::Takeover => "POST /config/quotas to the process before".to_owned(),
    }
}

/// Makes the reply to a POST of quotas that have been put in force.
pub fn posted(versions: &Versions) -> Response {
    let answer = Posted {
        version: versions.current().version(),
        source: versions.source().name(),
        tenants: versions.current().len(),
        lasts: lasts(versions),
    };
    Response::json(Status::Ok, &answer)
}

#[derive(Serialize)]
struct Posted {
    version: u64,
    source: &'static str,
    tenants: usize,
    lasts: String,
}

fn lasts(versions: &Versions) -> String {
    match versions.file() {
        Some(file) => format!(
            "in force until {file} changes, SIGHUP, or a restart, and through takeovers; the file was not written"
        ),
        None => {
            "in force until a restart, and through takeovers; there is no quota file (--quotas)".to_owned()
        }
    }
}

/// Makes the reply to a POST of quotas that have a mistake and are not put in force.
pub fn refused(problem: &QuotaError) -> Response {
    Response::problem(Status::BadRequest, &problem.to_string(), problem.place())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::Quotas;
    use crate::control::http::{Received, receive};

    fn head(headers: &str) -> Head {
        let text = format!("POST /config/quotas HTTP/1.1\r\nContent-Length: 9\r\n{headers}\r\n");
        match receive(text.as_bytes()) {
            Received::Request(head) => head,
            other => panic!("{other:?}"),
        }
    }

    fn guard(token: Option<&str>, address: &str) -> Guard {
        let token =
            token.map(|text| AdminToken::new(&text.parse().expect("any text is a secret")).expect("a token"));
        Guard { token, address: address.parse().expect("an address") }
    }

    fn status(guard: &Guard, headers: &str) -> Option<Status> {
        guard.admit(&head(headers)).err().map(|response| response.status)
    }

    #[test]
    fn who_may_post() {
        const LOOPBACK: [&str; 3] = ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"];
        const OPEN: [&str; 3] = ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"];
        for address in LOOPBACK {
            assert_eq!(status(&guard(None, address), ""), None, "{address}");
            assert!(!guard(None, address).is_open_to_strangers());
        }
        for address in OPEN {
            assert_eq!(status(&guard(None, address), ""), Some(Status::Forbidden), "{address}");
            assert!(guard(None, address).is_open_to_strangers());
        }
        for address in LOOPBACK.into_iter().chain(OPEN) {
            let guard = guard(Some("sesame"), address);
            assert_eq!(status(&guard, "Authorization: Bearer sesame\r\n"), None, "{address}");
            for wrong in ["", "Authorization: Bearer sesam\r\n", "Authorization: Basic sesame\r\n"] {
                assert_eq!(status(&guard, wrong), Some(Status::Unauthorized), "{address} {wrong}");
            }
            assert!(!guard.is_open_to_strangers());
        }
    }

    #[test]
    fn web_pages_may_not() {
        let origin = "Origin: http://evil.example\r\n";
        assert_eq!(status(&guard(None, "127.0.0.1:1"), origin), Some(Status::Forbidden));
    }

    #[test]
    fn a_refusal_says_how_to_sign_in() {
        let response = guard(Some("sesame"), "127.0.0.1:1").admit(&head("")).expect_err("no token");
        assert_eq!(response.headers, [("www-authenticate", "Bearer realm=\"weir\"")]);
        assert!(!response.body.contains("sesame"));
    }

    #[test]
    fn bodies_are_bounded() {
        let long = |bytes: usize| {
            let mut head = head("");
            head.body = crate::control::http::Body::Follows(bytes as u64);
            guard(None, "127.0.0.1:1").admit(&head).err().map(|response| response.status)
        };
        assert_eq!(long(QUOTA_POST_BYTES_MAX), None);
        assert_eq!(long(QUOTA_POST_BYTES_MAX + 1), Some(Status::ContentTooLarge));
    }

    #[test]
    fn many_tenants_take_several_pages() {
        let quotas = Quotas::with_tenants((0..2_500).map(|n| format!("t{n:04}")));
        let versions = Versions::new(Arc::new(quotas), None, 0);
        let counts = ["", "after=t0999", "after=t1999", "after=t2499"].map(|query| {
            let body = quotas_page(&versions, query).body;
            (body.matches("{\"name\":").count(), body.contains("\"next\":\"/config/quotas?after=t1999\"}"))
        });
        assert_eq!(counts, [(1_000, false), (1_000, true), (500, false), (0, false)]);
        assert_eq!(quotas_page(&versions, "name=x").status, Status::BadRequest);
    }

    #[test]
    fn the_page_shows_everything_but_passwords() {
        let text = "[global]\nru_per_second = 9\n[tenants.acme]\npassword = 'sesame'\nru_per_second = 5\n\
                    burst_seconds = 1.5\nkeys = ['a\"']\n[tenants.acme.users.ann]\n[tenants.zeta]\npassword = 'x'";
        let quotas = Quotas::parse("q", text).expect("well formed");
        let mut versions = Versions::new(Arc::new(quotas.clone()), Some("q.toml".to_owned()), 0);
        assert!(quotas_page(&versions, "").body.starts_with(
            "{\"version\":0,\"source\":\"start\",\"since\":\"1970-01-01T00:00:00.000Z\",\"file\":\"q.toml\",\
             \"last_refusal\":null,\"global_ru_per_second\":9,\"global_burst_seconds\":1,\"tenants\":[\
             {\"name\":\"acme\",\"ru_per_second\":5,\"burst_seconds\":1.5,\"user_ru_per_second\":null,\
             \"tier\":\"standard\",\"deadline_ms\":null,\"stale_on_error_ms\":0,\"admin\":false,\"keys\":[\"a\\\"\"],\"users\":1},"
        ));
        let problem = Quotas::parse("q", "[default]\ntier = 1").expect_err("it is wrong");
        versions.refuse(problem.clone(), QuotaSource::Post, 1_700_000_000_123);
        let page = quotas_page(&versions, "").body;
        assert!(
            page.contains("\"at\":\"2023-11-14T22:13:20.123Z\",\"source\":\"post\",\"problem\":\"q:2:8: ")
        );
        assert!(!page.contains("sesame"), "{page}");
        versions.take(quotas, QuotaSource::Post, 2);
        let reply = posted(&versions);
        assert!(
            reply.body.starts_with("{\"version\":1,\"source\":\"post\",\"tenants\":2,"),
            "{}",
            reply.body
        );
        assert!(refused(&problem).body.contains("\"line\":2,\"column\":8"));
    }
}
