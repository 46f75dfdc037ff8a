//! HTTP responses: status, headers, bodies. Refusals follow RFC 9457 and the draft on rate limits (draft-10).

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;

use serde::Serialize;

use super::quotas;
use crate::values::limits::HTTP_RETRY_AFTER_SECONDS_MAX;

/// Reason why an HTTP request is refused before it becomes commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the texts below say what each is")]
pub enum Status {
    BadRequest(&'static str),
    Forbidden,
    NotFound,
    /// The request's method is not allowed for its path; the text lists the methods that are.
    MethodNotAllowed(&'static str),
    Timeout,
    LengthRequired,
    ContentTooLarge,
    UriTooLong,
    UnsupportedMediaType,
    ExpectationFailed,
    MisdirectedRequest,
    HeadersTooLarge,
    VersionNotSupported,
}

impl Status {
    const fn code(self) -> u16 {
        match self {
            Self::BadRequest(_) => 400,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed(_) => 405,
            Self::Timeout => 408,
            Self::LengthRequired => 411,
            Self::ContentTooLarge => 413,
            Self::UriTooLong => 414,
            Self::UnsupportedMediaType => 415,
            Self::ExpectationFailed => 417,
            Self::MisdirectedRequest => 421,
            Self::HeadersTooLarge => 431,
            Self::VersionNotSupported => 505,
        }
    }

    const fn detail(self) -> &'static str {
        match self {
            Self::BadRequest(detail) => detail,
            Self::Forbidden => "web pages of that origin may not send requests here (--http-allow-origin)",
            Self::NotFound => "the paths are /v1/keys/{key}, /, /pipeline and /multi-exec",
            Self::MethodNotAllowed(_) => "the header Allow has the methods that are allowed there",
            Self::Timeout => "the request did not arrive in time",
            Self::LengthRequired => "Content-Length, or Transfer-Encoding: chunked, is expected",
            Self::ContentTooLarge => "the body is larger than --max-request-bytes, or has too many commands",
            Self::UriTooLong => "the request line is longer than 16 KiB",
            Self::UnsupportedMediaType => {
                "the header Content-Type is not application/json, and there is no token (Authorization: Bearer)"
            }
            Self::ExpectationFailed => "the only expectation that is supported is 100-continue",
            Self::MisdirectedRequest => {
                "the header Host is neither an IP address, nor localhost, nor a name of --http-allow-host, and no token says who \
                 asks (Authorization)"
            }
            Self::HeadersTooLarge => "the headers are larger than 32 KiB, or more than 64",
            Self::VersionNotSupported => "HTTP/1.1 or HTTP/1.0 is expected",
        }
    }
}

const fn reason(code: u16) -> &'static str {
    match code {
        100 => "Continue",
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Internal Server Error",
    }
}

/// Manner in which a response is written, which its request determines: whether the connection lasts, whether
/// the body is left out (`HEAD`), whether the client uses HTTP/1.1 or 1.0, and the origin of the page that
/// may read the response (CORS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manner {
    /// True if the client's connection stays open after the response.
    pub keeps: bool,
    /// True if the response is to an HTTP request with the method HEAD, so that it has no body.
    pub is_head: bool,
    /// True if the client uses HTTP/1.1; a client of HTTP/1.0 is sent a header that says that the connection
    /// lasts.
    pub is_modern: bool,
    /// Origin of the web page that may read the response; none unless a page's request is answered.
    pub origin: Option<Arc<str>>,
}

impl Manner {
    /// The manner of a response to a client of HTTP/1.1 after which the connection is closed.
    pub const LAST: Self = Self { keeps: false, is_head: false, is_modern: true, origin: None };
}

pub const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";
pub const BYTES: &str = "application/octet-stream";

/// Writes a whole HTTP response with this status code. `manner` says whether the connection lasts and the
/// body is left out; `more` is further headers, each with its line end; `body` is content type and content,
/// None for a response without a body.
pub fn write(out: &mut Vec<u8>, manner: &Manner, code: u16, more: &str, body: Option<(&str, &[u8])>) {
    write_head(out, manner, code, more, body.map(|(kind, body)| (kind, body.len())));
    if let Some((_, body)) = body.filter(|_| !manner.is_head) {
        out.extend_from_slice(body);
    }
}

/// Writes the head of a response (status line and headers) as [`write`] does; the caller writes the body
/// after it, unless the response has none. `body` is the body's content type and its length in bytes, None
/// for a response without a body.
pub fn write_head(out: &mut Vec<u8>, manner: &Manner, code: u16, more: &str, body: Option<(&str, usize)>) {
    let told = write!(out, "HTTP/1.1 {code} {}\r\n{more}", reason(code));
    told.expect("memory takes what is written to it");
    match body {
        Some((kind, length)) => {
            let told = write!(out, "content-type: {kind}\r\ncontent-length: {length}\r\n");
            told.expect("memory takes what is written to it");
        }
        // A 204 has no body and no length.
        None if code == 204 => {}
        None => out.extend_from_slice(b"content-length: 0\r\n"),
    }
    match (manner.keeps, manner.is_modern) {
        (true, true) => {}
        (true, false) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        (false, _) => out.extend_from_slice(b"connection: close\r\n"),
    }
    if let Some(origin) = &manner.origin {
        let told = write!(
            out,
            "access-control-allow-origin: {origin}\r\naccess-control-expose-headers: ratelimit, ratelimit-policy, retry-after\r\n\
             vary: origin\r\n"
        );
        told.expect("memory takes what is written to it");
    }
    out.extend_from_slice(
        b"cache-control: no-store\r\nx-content-type-options: nosniff\r\ncross-origin-resource-policy: same-origin\r\n\r\n",
    );
}

/// Interim HTTP response (status 100) after which the client sends the body of its request.
pub const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Writes the response to a CORS preflight: the methods (`allowed`) and headers that the page of
/// `manner.origin` may use and, with `crosses_networks`, that it may reach a private network.
pub fn preflight(out: &mut Vec<u8>, manner: &Manner, allowed: &str, crosses_networks: bool) {
    let network = if crosses_networks { "access-control-allow-private-network: true\r\n" } else { "" };
    let more = format!(
        "access-control-allow-methods: {allowed}\r\naccess-control-allow-headers: authorization, content-type, x-weir-user, \
         x-weir-tier, x-weir-deadline-ms, x-weir-database, upstash-encoding, upstash-sync-token, upstash-telemetry-runtime, upstash-telemetry-sdk, \
         upstash-telemetry-platform\r\naccess-control-max-age: 600\r\n{network}"
    );
    write(out, manner, 204, &more, None);
}

/// Writes the response to an HTTP request that is refused for the reason `status` before it becomes commands.
/// `manner` has the properties of the response that do not depend on its content.
pub fn refuse(out: &mut Vec<u8>, manner: &Manner, status: Status) {
    let more = if let Status::MethodNotAllowed(allowed) = status {
        format!("allow: {allowed}\r\n")
    } else {
        String::new()
    };
    let (code, detail) = (status.code(), status.detail());
    let problem = Problem {
        kind: "about:blank",
        title: reason(code),
        status: code,
        detail,
        error: detail,
        policies: None,
    };
    problem.write(out, manner, &more);
}

/// Body of the HTTP response to a refused request (RFC 9457). Clients of the usual REST interface to Redis
/// read only the member `error`.
#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    error: &'a str,
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    policies: Option<[&'a str; 1]>,
}

impl Problem<'_> {
    fn write(&self, out: &mut Vec<u8>, manner: &Manner, more: &str) {
        let body = serde_json::to_vec(self).unwrap_or_default();
        write(out, manner, self.status, more, Some((PROBLEM, &body)));
    }
}

/// Registered type (RFC 9457) of refusals because a quota is used up.
const QUOTA: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// Registered type (RFC 9457) of refusals because of overload or an unavailable store.
const CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// An error reply (RESP) that becomes an HTTP response.
#[derive(Clone, Copy, Debug)]
pub struct Failure<'a> {
    /// The text of the error reply that becomes an HTTP response, without the leading `-`.
    pub text: &'a str,
    /// True if weir worded the error, and not a store or a script; only then are headers made from its words.
    pub is_own: bool,
}

/// Writes an error reply of weir or of a store as an HTTP response, with the status that fits its error code.
/// A refusal for a used-up quota that weir has worded gets the headers about rate limits. `manner` has the
/// properties of the response that do not depend on its content: whether the connection stays open, HTTP
/// version, origin. `is_key` is true for requests to `/v1/keys`.
pub fn fail(out: &mut Vec<u8>, manner: &Manner, failure: Failure<'_>, is_key: bool) {
    let Failure { text, is_own } = failure;
    let (error, noted) = if is_own { quotas::taken_off(text) } else { (text, "") };
    let word = error.split(' ').next().unwrap_or_default();
    let code = match word {
        "THROTTLED" => 429,
        "OVERLOADED" | "UNAVAILABLE" | "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN"
        | "READONLY" | "OOM" | "MISCONF" | "NOREPLICAS" => 503,
        "DEADLINE" => 504,
        // An authentication error of a store is about weir, not about weir's client.
        "NOAUTH" | "WRONGPASS" if is_own => 401,
        "NOPERM" => 403,
        "WRONGTYPE" if is_key => 409,
        _ => 400,
    };
    // The scope comes first and the numbers last: between them are names, which may hold such words too.
    let scope = error.split(' ').find_map(|word| word.strip_prefix("scope=")).and_then(quotas::scope_of);
    let number = |name: &str| {
        let value = |word| str::strip_prefix(word, name)?.strip_prefix('=');
        error.rsplit(' ').find_map(value).and_then(|text| text.parse::<u64>().ok())
    };
    // Whole seconds, rounded up, from one to a day.
    let seconds = number("retry_after_ms").filter(|_| is_own);
    let seconds = seconds.map(|millis| millis.div_ceil(1_000).clamp(1, HTTP_RETRY_AFTER_SECONDS_MAX));
    let mut more = String::new();
    let mut policies = None;
    if let (429, Some(scope), Some(seconds)) = (code, scope, seconds) {
        let limit = number("limit").unwrap_or_default();
        let remaining = number("remaining").unwrap_or_default();
        let (policy, state) = quotas::headers((scope, limit, remaining, seconds), noted);
        more = format!("ratelimit-policy: {policy}\r\nratelimit: {state}\r\n");
        policies = Some([scope]);
    }
    if let (429 | 503, Some(seconds)) = (code, seconds) {
        let told = write!(more, "retry-after: {seconds}\r\n");
        told.expect("memory takes what is written to it");
    }
    if code == 401 {
        more.push_str("www-authenticate: Bearer realm=\"weir\"\r\n");
    }
    let kind = match code {
        429 => QUOTA,
        503 => CAPACITY,
        _ => "about:blank",
    };
    Problem { kind, title: reason(code), status: code, detail: error, error, policies }
        .write(out, manner, &more);
}

/// Error text in place of a store's reply that is malformed, or cannot be the reply to the request.
pub const BAD_REPLY: &str = "ERR the store's reply is malformed";

/// Writes the response (status 502) to an HTTP request to which the store's reply is malformed, or cannot be
/// the reply to the request. `manner` has the properties of the response that do not depend on its content.
pub fn refuse_reply(out: &mut Vec<u8>, manner: &Manner) {
    let code = 502;
    let (kind, title) = ("about:blank", reason(code));
    Problem { kind, title, status: code, detail: BAD_REPLY, error: BAD_REPLY, policies: None }
        .write(out, manner, "");
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEPS: Manner = Manner { keeps: true, is_head: false, is_modern: true, origin: None };
    const LAST: Manner = Manner::LAST;

    fn own(text: &str) -> Failure<'_> {
        Failure { text, is_own: true }
    }

    fn told(write: impl FnOnce(&mut Vec<u8>)) -> (String, serde_json::Value) {
        let mut out = Vec::new();
        write(&mut out);
        let text = String::from_utf8(out).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let length = format!("content-length: {}\r\n", body.len());
        assert!(head.contains(&length), "{head}");
        (head.to_owned(), serde_json::from_str(body).expect("JSON"))
    }

    #[test]
    fn a_quota_is_told_as_the_draft_says_and_never_sooner_than_true() {
        let error = "THROTTLED scope=tenant name=acme limit=5000 remaining=3 retry_after_ms=1001";
        let (head, body) = told(|out| fail(out, &KEEPS, own(error), true));
        for line in [
            "HTTP/1.1 429 Too Many Requests",
            "ratelimit-policy: \"tenant\";q=5000;w=1;weir-unit=\"ru\"",
            "ratelimit: \"tenant\";r=3;t=2",
            "retry-after: 2",
            "content-type: application/problem+json",
        ] {
            assert!(head.lines().any(|told| told == line), "{line} in {head}");
        }
        assert_eq!(body["type"], QUOTA);
        assert_eq!((&body["violated-policies"][0], &body["error"]), (&"tenant".into(), &error.into()));
    }

    #[test]
    fn each_refusal_has_its_status() {
        for (error, is_key, code) in [
            ("OVERLOADED reason=queue backend=a:1 retry_after_ms=12", false, 503),
            ("UNAVAILABLE backend=a:1 reason=ejected retry_after_ms=900", true, 503),
            ("DEADLINE stage=queue waited_ms=48", true, 504),
            ("NOAUTH Authentication required.", true, 401),
            ("WRONGPASS invalid", false, 401),
            ("NOPERM no", false, 403),
            ("WRONGTYPE Operation against a key", true, 409),
            ("WRONGTYPE Operation against a key", false, 400),
            ("ERR unknown command", false, 400),
        ] {
            let (head, body) = told(|out| fail(out, &LAST, own(error), is_key));
            assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{error}: {head}");
            assert_eq!((body["status"].as_u64(), body["error"].as_str()), (Some(code), Some(error)));
            assert_eq!(head.contains("retry-after: 1"), code == 503, "{head}");
            assert!(head.contains("connection: close"));
        }
        let (head, _) = told(|out| refuse(out, &KEEPS, Status::MethodNotAllowed("POST")));
        assert!(
            head.starts_with("HTTP/1.1 405 ")
                && head.contains("allow: POST\r\n")
                && !head.contains("connection")
        );
    }

    #[test]
    fn a_head_alone_says_how_long_its_body_would_be() {
        let mut out = Vec::new();
        write(&mut out, &Manner { is_head: true, ..KEEPS }, 200, "", Some((BYTES, b"12345")));
        let text = String::from_utf8(out).expect("text");
        assert!(text.ends_with("\r\n\r\n") && text.contains("content-length: 5\r\n"), "{text}");
    }

    #[test]
    fn words_of_a_store_or_a_script_shape_no_header() {
        for error in [
            "THROTTLED scope=a\";evil=1 limit=1 remaining=1 retry_after_ms=1",
            "THROTTLED scope=tenant name=x limit=5 remaining=0 retry_after_ms=99999999999999",
            "OVERLOADED reason=x retry_after_ms=18446744073709551615",
            "UNAVAILABLE retry_after_ms=1",
            "NOAUTH x",
        ] {
            let (head, body) = told(|out| fail(out, &KEEPS, Failure { text: error, is_own: false }, false));
            for header in ["ratelimit", "retry-after", "www-authenticate"] {
                assert!(!head.contains(header), "{header} in {head}");
            }
            assert_eq!(body["error"], error);
            assert!(body["violated-policies"].is_null());
        }
    }

    #[test]
    fn names_within_a_refusal_shape_no_header_either() {
        let error = "THROTTLED scope=key name=a limit=9 retry_after_ms=7000 scope=user limit=100 remaining=0 retry_after_ms=5";
        let (head, body) = told(|out| fail(out, &KEEPS, own(error), false));
        assert!(
            head.contains("ratelimit-policy: \"key\";q=100;") && head.contains("retry-after: 1\r\n"),
            "{head}"
        );
        assert_eq!(body["violated-policies"][0], "key");
        let (head, _) = told(|out| {
            fail(out, &KEEPS, own("THROTTLED scope=a\";b limit=1 remaining=0 retry_after_ms=5"), false);
        });
        assert!(!head.contains("ratelimit"), "{head}");
        let endless = format!("UNAVAILABLE backend=a retry_after_ms={}", u64::MAX);
        let (head, _) = told(|out| fail(out, &KEEPS, own(&endless), false));
        assert!(head.contains(&format!("retry-after: {HTTP_RETRY_AFTER_SECONDS_MAX}\r\n")), "{head}");
    }

    #[test]
    fn a_page_that_may_read_a_response_is_named_in_it() {
        let manner = Manner { origin: Some("https://app.example".into()), ..KEEPS };
        let (head, _) = told(|out| refuse(out, &manner, Status::MethodNotAllowed("POST")));
        assert!(
            head.contains("access-control-allow-origin: https://app.example\r\n")
                && head.contains("vary: origin")
        );
        let mut out = Vec::new();
        preflight(&mut out, &manner, "POST", true);
        let text = String::from_utf8(out).expect("text");
        assert!(
            text.starts_with("HTTP/1.1 204 ") && text.contains("access-control-allow-methods: POST\r\n"),
            "{text}"
        );
        assert!(
            text.contains("access-control-allow-private-network: true\r\n") && !text.contains("credentials")
        );
        let (head, _) = told(|out| refuse(out, &KEEPS, Status::NotFound));
        assert!(!head.contains("access-control"), "{head}");
    }
}
