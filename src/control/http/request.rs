//! From bytes to a request, or to the reason why it is none.

use httparse::{EMPTY_HEADER, Error, Header, Request, Status as Parse};

use super::{Host, Method, PAGES, Persistence, Response, Route, Status};
use crate::protocol::http::Source;
use crate::protocol::http::headers::{credentials, lasts, length_of, values};

/// Bytes of a request up to the end of its headers. More is refused.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Headers of a request.
const HEADERS_MAX: usize = 64;

/// What the bytes received so far amount to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Not a whole head yet.
    Partial,
    /// A head, behind which its body follows if it has one.
    Request(Head),
    /// None that can be served. This is the reply, and the connection is closed after it.
    Refused(Response),
}

/// A request up to its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Where it goes.
    pub route: Route,
    /// What stood behind a `?`.
    pub query: String,
    /// What it calls the server.
    pub host: Host,
    /// What is to be done there.
    pub method: Method,
    /// What becomes of the connection.
    pub persistence: Persistence,
    /// Bytes of the head: where the body, or the next request, starts.
    pub length: usize,
    /// What follows.
    pub body: Body,
    /// What came as `Authorization: Bearer`.
    pub bearer: Option<Vec<u8>>,
    /// Whether a page of some other site made a browser send it: only browsers say where a request comes from.
    pub is_foreign: bool,
}

/// What follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Nothing.
    None,
    /// So many bytes, which are on their way.
    Follows(u64),
    /// So many bytes, which the client holds back until it is told `100 Continue`.
    Waits(u64),
}

impl Body {
    /// How long it is.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Follows(bytes) | Self::Waits(bytes) => bytes,
        }
    }
}

/// Reads one request from the start of what was received.
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
    let (route, query) = target(request.path.unwrap_or_default());
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
    let host = Host::read(values(headers, "host")).ok_or_else(|| Response::refusal(Status::BadRequest))?;
    let bearer = values(headers, "authorization").next();
    let bearer = bearer.and_then(|value| credentials(value, "bearer")).map(<[u8]>::to_vec);
    Ok(Head {
        route,
        query: query.to_owned(),
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
        // Our own page only ever asks its own host for something, of which browsers do not say where it comes from.
        is_foreign: Source::of(headers) != Source::Unsaid,
    })
}

/// Bodies that nobody asked for are not read, so they must not be taken for the next request.
fn has_no_body(headers: &[Header<'_>]) -> Result<(), Status> {
    let chunked = values(headers, "transfer-encoding").next().is_some();
    let some = values(headers, "content-length").any(|value| value != b"0");
    if chunked || some { Err(Status::ContentTooLarge) } else { Ok(()) }
}

/// Bodies come with their length, said once. Chunks are not understood.
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

/// The page that a target names, and what stands behind a `?`.
fn target(target: &str) -> (Route, &str) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    // Through a proxy the target has scheme and host.
    let path = match path.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |slash| &rest[slash..]),
        None => path,
    };
    let found = PAGES.iter().find(|(name, _, _)| *name == path);
    (found.map_or(Route::NotFound, |(_, route, _)| *route), query)
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
