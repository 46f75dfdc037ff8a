//! Parses received bytes into a request to the admin port, or into the refusal of it.

use httparse::{EMPTY_HEADER, Error, Header, Request, Status as Parse};

use super::{Host, Method, PAGES, Persistence, Response, Route, Status};
use crate::protocol::http::headers::{credentials, lasts, length_of, values};
use crate::protocol::http::{RequestTarget, Source};

/// Maximum number of bytes of a request up to the end of its headers; a longer one is refused.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of headers of an HTTP request; a request with more is refused.
const HEADERS_MAX: usize = 64;

/// The result of parsing the bytes that an admin connection has received so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// The head of the request is incomplete so far: more bytes have to be received.
    Partial,
    /// A complete head of a request. Its body follows, if it has one.
    Request(Head),
    /// A request that cannot be served. The connection is closed after this reply.
    Refused(Response),
}

/// A request to the admin port without its body: page, query, host, method and some headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The page that the request asks for.
    pub route: Route,
    /// The query string: the part of the target behind a `?`.
    pub query: String,
    /// The name or address by which the client addressed the server: a name in an absolute target
    /// (`http://...`), otherwise that of the header `Host`.
    pub host: Host,
    /// The HTTP method of the request.
    pub method: Method,
    /// Whether the connection stays open after the reply to this request.
    pub persistence: Persistence,
    /// The length of the request's head in bytes: the body, or the next request, starts there.
    pub length: usize,
    /// The length of the body that follows, and whether the client waits for permission to send it.
    pub body: Body,
    /// The token of the header `Authorization: Bearer`; None without one.
    pub bearer: Option<Vec<u8>>,
    /// True if a web page made a browser send the request, by headers that only browsers send: a page of any
    /// origin if there is a header `Origin`, otherwise one of another origin (`Sec-Fetch-Site`).
    pub is_foreign: bool,
}

/// Whether a body follows the head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The request has no body.
    None,
    /// A body of this many bytes, which the client sends at once.
    Follows(u64),
    /// A body of this many bytes, which the client holds back until it receives `100 Continue`.
    Waits(u64),
}

impl Body {
    /// Returns the length of the request's body in bytes; 0 without a body.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Follows(bytes) | Self::Waits(bytes) => bytes,
        }
    }
}

/// Parses the head of a request at the start of the bytes that an admin connection has received.
pub fn receive(bytes: &[u8]) -> Received {
    let head = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let refused = |status| Received::Refused(Response::refusal(status));
    match request.parse(head) {
        Ok(Parse::Complete(length)) => {
            understand(&request, length).map_or_else(Received::Refused, Received::Request)
        }
        Ok(Parse::Partial) if head.len() == HEAD_BYTES_MAX => refused(Status::HeaderFieldsTooLarge),
        Ok(Parse::Partial) => Received::Partial,
        Err(Error::TooManyHeaders) => refused(Status::HeaderFieldsTooLarge),
        Err(Error::Version) => refused(Status::VersionNotSupported),
        Err(_) => refused(Status::BadRequest),
    }
}

fn understand(request: &Request<'_, '_>, length: usize) -> Result<Head, Response> {
    let target = RequestTarget::read(request.path.unwrap_or_default());
    let route = target.map_or(Route::NotFound, |target| page_at(target.path));
    let method = match request.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        Some("POST") if route.allowed().contains("POST") => Method::Post,
        _ => return Err(Response::method_not_allowed(route)),
    };
    let headers = &*request.headers;
    let body = match method {
        Method::Get | Method::Head => {
            has_no_body(headers).map_err(Response::refusal)?;
            Body::None
        }
        Method::Post => body(headers).map_err(Response::refusal)?,
    };
    let host = match (Host::read(values(headers, "host")), target) {
        (Some(said), Some(target)) => target.host(said),
        (said, _) => said,
    };
    let host = host.ok_or_else(|| Response::refusal(Status::BadRequest))?;
    let bearer = values(headers, "authorization").next();
    let bearer = bearer.and_then(|value| credentials(value, "bearer")).map(<[u8]>::to_vec);
    Ok(Head {
        route,
        query: target.map_or("", |target| target.query).to_owned(),
        host,
        method,
        persistence: if lasts(headers, request.version == Some(1)) {
            Persistence::KeepAlive
        } else {
            Persistence::Close
        },
        length,
        body,
        bearer,
        // Weir's own page only asks its own host, for which browsers do not say where a request comes from.
        is_foreign: Source::of(headers) != Source::Unsaid,
    })
}

/// Checks that a GET or HEAD request has no body, which would not be read, and would be parsed as the next
/// request. The error is the status of the refusal.
fn has_no_body(headers: &[Header<'_>]) -> Result<(), Status> {
    let chunked = values(headers, "transfer-encoding").next().is_some();
    let some = values(headers, "content-length").any(|value| value != b"0");
    if chunked || some { Err(Status::ContentTooLarge) } else { Ok(()) }
}

/// Reads from the headers the length of a request's body, which must be given exactly once, and whether the
/// client waits for permission to send it. Chunked bodies are refused. The error is the status of the
/// refusal.
fn body(headers: &[Header<'_>]) -> Result<Body, Status> {
    if values(headers, "transfer-encoding").next().is_some() {
        return Err(Status::LengthRequired);
    }
    let mut lengths = values(headers, "content-length");
    let (Some(length), None) = (lengths.next(), lengths.next()) else {
        return Err(if values(headers, "content-length").next().is_some() {
            Status::BadRequest
        } else {
            Status::LengthRequired
        });
    };
    let bytes = length_of(length).ok_or(Status::BadRequest)?;
    let waits = values(headers, "expect").any(|value| value.eq_ignore_ascii_case(b"100-continue"));
    Ok(if waits { Body::Waits(bytes) } else { Body::Follows(bytes) })
}

/// Returns the page at a path; [`Route::NotFound`] if there is none.
fn page_at(path: &str) -> Route {
    PAGES.iter().find(|(name, _, _)| *name == path).map_or(Route::NotFound, |(_, route, _)| *route)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Head {
        match receive(text.as_bytes()) {
            Received::Request(head) => {
                assert_eq!(head.length, text.len());
                head
            }
            other => panic!("{other:?}"),
        }
    }

    fn refused(text: &str) -> Response {
        match receive(text.as_bytes()) {
            Received::Refused(response) => response,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pages_are_found() {
        for (path, route, query) in [
            ("/", Route::Page, ""),
            ("/pages", Route::Index, ""),
            ("/state.json", Route::State, ""),
            ("/history.json", Route::History, ""),
            ("/metrics", Route::Metrics, ""),
            ("/metrics?name=x", Route::Metrics, "name=x"),
            ("http://host:1/healthz", Route::Health, ""),
            ("http://host:1", Route::Page, ""),
            ("/readyz", Route::Ready, ""),
            ("/config/quotas", Route::Quotas, ""),
            ("/metrics/", Route::NotFound, ""),
            ("*", Route::NotFound, ""),
        ] {
            let head = head(&format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
            assert_eq!((head.route, head.query.as_str()), (route, query), "{path}");
        }
    }

    #[test]
    fn a_name_in_the_target_counts_as_one_in_the_header() {
        let named =
            |target: &str, host: &str| head(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).host;
        let evil = Host::Name("evil.example".to_owned());
        assert_eq!(named("http://evil.example/metrics", "127.0.0.1"), evil);
        assert_eq!(named("HTTPS://evil.example:1?x", "localhost"), evil);
        assert_eq!(named("http://127.0.0.1/metrics", "evil.example"), evil);
        assert_eq!(named("http://[::1]/metrics", "localhost"), Host::Address);
        assert_eq!(refused("GET http://a:b/metrics HTTP/1.1\r\nHost: h\r\n\r\n").status, Status::BadRequest);
    }

    #[test]
    fn connections_stay_where_both_sides_like_it() {
        for (version, header, persistence) in [
            ("1.1", "", Persistence::KeepAlive),
            ("1.1", "Connection: close\r\n", Persistence::Close),
            ("1.1", "connection: TE, Close\r\n", Persistence::Close),
            ("1.0", "", Persistence::Close),
            ("1.0", "Connection: Keep-Alive\r\n", Persistence::KeepAlive),
        ] {
            let text = format!("HEAD / HTTP/{version}\r\n{header}\r\n");
            let head = head(&text);
            assert_eq!((head.method, head.persistence), (Method::Head, persistence), "{text}");
        }
    }

    #[test]
    fn requests_come_in_pieces_and_one_behind_the_other() {
        let text = b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        for end in 0..32 {
            assert_eq!(receive(&text[..end]), Received::Partial, "{end}");
        }
        let Received::Request(first) = receive(text) else { panic!("it is whole") };
        let Received::Request(second) = receive(&text[first.length..]) else { panic!("it is whole") };
        assert_eq!(second.route, Route::Page);
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        for (text, status) in [
            ("POST / HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("PUT /config/quotas HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", Status::ContentTooLarge),
            ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", Status::ContentTooLarge),
            ("GET / HTTP/2.0\r\n\r\n", Status::VersionNotSupported),
            ("GET /\r\n\r\n", Status::BadRequest),
            ("*1\r\n$4\r\nPING\r\n", Status::BadRequest),
            ("\0\u{1}", Status::BadRequest),
        ] {
            assert_eq!(refused(text).status, status, "{text}");
        }
        assert_eq!(head("GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n").body, Body::None);
    }

    #[test]
    fn a_body_has_its_length_said_once() {
        let post = |headers: &str| format!("POST /config/quotas HTTP/1.1\r\n{headers}\r\n");
        assert_eq!(head(&post("Content-Length: 5\r\n")).body, Body::Follows(5));
        assert_eq!(head(&post("Content-Length: 5\r\nExpect: 100-continue\r\n")).body, Body::Waits(5));
        assert_eq!(head(&post("Content-Length: 18446744073709551615\r\n")).body.bytes(), u64::MAX);
        for (headers, status) in [
            ("", Status::LengthRequired),
            ("Transfer-Encoding: chunked\r\n", Status::LengthRequired),
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", Status::LengthRequired),
            ("Content-Length: 5\r\nContent-Length: 5\r\n", Status::BadRequest),
            ("Content-Length: +5\r\n", Status::BadRequest),
            ("Content-Length: -5\r\n", Status::BadRequest),
            ("Content-Length: \r\n", Status::BadRequest),
            ("Content-Length: 18446744073709551616\r\n", Status::BadRequest),
        ] {
            assert_eq!(refused(&post(headers)).status, status, "{headers}");
        }
    }

    #[test]
    fn who_sends_it() {
        let with = |header: &str| head(&format!("GET / HTTP/1.1\r\n{header}\r\n\r\n"));
        assert_eq!(with("Authorization: Bearer abc").bearer.as_deref(), Some(&b"abc"[..]));
        assert_eq!(with("authorization: bearer  abc ").bearer.as_deref(), Some(&b"abc"[..]));
        assert_eq!(with("Authorization: Bearer").bearer, None);
        assert_eq!(with("Authorization: Basic abc").bearer, None);
        for header in
            ["Origin: http://evil.example", "Sec-Fetch-Site: cross-site", "sec-fetch-site: same-site"]
        {
            assert!(with(header).is_foreign, "{header}");
        }
        for header in ["Host: h", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: none"] {
            assert!(!with(header).is_foreign, "{header}");
        }
    }

    #[test]
    fn heads_are_bounded() {
        let long = format!("GET / HTTP/1.1\r\nCookie: {}\r\n\r\n", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(refused(&long).status, Status::HeaderFieldsTooLarge);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(refused(&many).status, Status::HeaderFieldsTooLarge);
        let endless = "G".repeat(HEAD_BYTES_MAX);
        assert_eq!(refused(&endless).status, Status::HeaderFieldsTooLarge);
    }
}
