//! The admin port's HTTP/1.1: small requests without bodies, small replies.

use std::io::Write as _;

use httparse::{EMPTY_HEADER, Error, Header, Request, Status as Parse};

/// Bytes of a request up to the end of its headers. More is refused.
pub const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Headers of a request.
const HEADERS_MAX: usize = 64;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/`: what else there is.
    Index,
    /// `/metrics`.
    Metrics,
    /// `/healthz`: does the process live.
    Health,
    /// `/readyz`: should clients be sent here.
    Ready,
    /// Nothing that there is.
    NotFound,
}

/// The pages, as the index lists them.
const PAGES: [(&str, Route, &str); 4] = [
    ("/", Route::Index, "this list"),
    ("/metrics", Route::Metrics, "figures for Prometheus"),
    ("/healthz", Route::Health, "200 while the process lives"),
    ("/readyz", Route::Ready, "200 while clients are welcome, 503 while it drains"),
];

/// What becomes of the connection after the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// Another request may follow.
    KeepAlive,
    /// It is closed.
    Close,
}

/// How much of the reply is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// All of it.
    Get,
    /// Its head.
    Head,
}

/// What the bytes received so far amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Not a whole request yet.
    Partial,
    /// A request, which took so many bytes.
    Request {
        /// What it asks for.
        route: Route,
        /// And how much of it.
        method: Method,
        /// What becomes of the connection.
        persistence: Persistence,
        /// Where the next request starts.
        length: usize,
    },
    /// None that can be served. The reply has this status, and the connection is closed after it.
    Refused(Status),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the status of its name")]
pub enum Status {
    Ok,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    ContentTooLarge,
    HeaderFieldsTooLarge,
    ServiceUnavailable,
    VersionNotSupported,
}

impl Status {
    /// Number and reason, as they stand in the reply.
    pub const fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::ContentTooLarge => "413 Content Too Large",
            Self::HeaderFieldsTooLarge => "431 Request Header Fields Too Large",
            Self::ServiceUnavailable => "503 Service Unavailable",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }
}

/// Reads one request from the start of what was received.
pub fn receive(bytes: &[u8]) -> Received {
    let head = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    match request.parse(head) {
        Ok(Parse::Complete(length)) => understand(&request, length).unwrap_or_else(Received::Refused),
        Ok(Parse::Partial) if head.len() == HEAD_BYTES_MAX => Received::Refused(Status::HeaderFieldsTooLarge),
        Ok(Parse::Partial) => Received::Partial,
        Err(Error::TooManyHeaders) => Received::Refused(Status::HeaderFieldsTooLarge),
        Err(Error::Version) => Received::Refused(Status::VersionNotSupported),
        Err(_) => Received::Refused(Status::BadRequest),
    }
}

fn understand(request: &Request<'_, '_>, length: usize) -> Result<Received, Status> {
    let method = match request.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        _ => return Err(Status::MethodNotAllowed),
    };
    has_no_body(request.headers)?;
    let route = route(request.path.unwrap_or_default());
    let persistence = persistence(request.version, request.headers);
    Ok(Received::Request { route, method, persistence, length })
}

/// Bodies are not read, so they must not be taken for the next request.
fn has_no_body(headers: &[Header<'_>]) -> Result<(), Status> {
    for header in headers {
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(Status::ContentTooLarge);
        }
        if header.name.eq_ignore_ascii_case("content-length") && header.value != b"0" {
            return Err(Status::ContentTooLarge);
        }
    }
    Ok(())
}

/// The page that a target names, whatever stands behind a `?`.
fn route(target: &str) -> Route {
    let path = target.split('?').next().unwrap_or(target);
    // Through a proxy the target has scheme and host.
    let path = match path.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |slash| &rest[slash..]),
        None => path,
    };
    PAGES.iter().find(|(name, _, _)| *name == path).map_or(Route::NotFound, |(_, route, _)| *route)
}

fn persistence(version: Option<u8>, headers: &[Header<'_>]) -> Persistence {
    let asks_for = |word: &str| {
        headers.iter().filter(|header| header.name.eq_ignore_ascii_case("connection")).any(|header| {
            let mut words = header.value.split(|byte| *byte == b',');
            words.any(|value| value.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
        })
    };
    let stays = match version {
        Some(1) => !asks_for("close"),
        _ => asks_for("keep-alive") && !asks_for("close"),
    };
    if stays { Persistence::KeepAlive } else { Persistence::Close }
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// How the request ended.
    pub status: Status,
    /// What the body is.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Response {
    /// One line of text.
    pub fn text(status: Status, line: &str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: format!("{line}\n") }
    }

    /// A refusal in the words of its status.
    pub fn refusal(status: Status) -> Self {
        Self::text(status, status.line())
    }

    /// The list of pages.
    pub fn index() -> Self {
        let lines: Vec<_> = PAGES.iter().map(|(path, _, what)| format!("{path:<10}{what}")).collect();
        Self::text(Status::Ok, &lines.join("\n"))
    }

    /// Appends the reply to `out`.
    pub fn write(&self, out: &mut Vec<u8>, method: Method, persistence: Persistence) {
        let connection = match persistence {
            Persistence::KeepAlive => "keep-alive",
            Persistence::Close => "close",
        };
        let allow = if self.status == Status::MethodNotAllowed { "allow: GET, HEAD\r\n" } else { "" };
        write!(
            out,
            "HTTP/1.1 {}\r\ncontent-type: {}\r\ncontent-length: {}\r\ncache-control: no-store\r\n\
             {allow}connection: {connection}\r\n\r\n",
            self.status.line(),
            self.content_type,
            self.body.len()
        )
        .expect("writing to a vector does not fail");
        if method == Method::Get {
            out.extend_from_slice(self.body.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> (Route, Method, Persistence) {
        match receive(text.as_bytes()) {
            Received::Request { route, method, persistence, length } => {
                assert_eq!(length, text.len());
                (route, method, persistence)
            }
            other => panic!("{other:?}"),
        }
    }

    fn refused(text: &str) -> Status {
        match receive(text.as_bytes()) {
            Received::Refused(status) => status,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pages_are_found() {
        for (path, route) in [
            ("/", Route::Index),
            ("/metrics", Route::Metrics),
            ("/metrics?name=x", Route::Metrics),
            ("http://host:1/healthz", Route::Health),
            ("http://host:1", Route::Index),
            ("/readyz", Route::Ready),
            ("/metrics/", Route::NotFound),
            ("*", Route::NotFound),
        ] {
            assert_eq!(request(&format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).0, route, "{path}");
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
            assert_eq!(request(&text), (Route::Index, Method::Head, persistence), "{text}");
        }
    }

    #[test]
    fn requests_come_in_pieces_and_one_behind_the_other() {
        let text = b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        for end in 0..32 {
            assert_eq!(receive(&text[..end]), Received::Partial, "{end}");
        }
        let Received::Request { length, .. } = receive(text) else { panic!("it is whole") };
        assert!(matches!(receive(&text[length..]), Received::Request { route: Route::Index, .. }));
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        for (text, status) in [
            ("POST / HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", Status::ContentTooLarge),
            ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", Status::ContentTooLarge),
            ("GET / HTTP/2.0\r\n\r\n", Status::VersionNotSupported),
            ("GET /\r\n\r\n", Status::BadRequest),
            ("*1\r\n$4\r\nPING\r\n", Status::BadRequest),
            ("\0\u{1}", Status::BadRequest),
        ] {
            assert_eq!(refused(text), status, "{text}");
        }
        assert!(matches!(receive(b"GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), Received::Request { .. }));
    }

    #[test]
    fn heads_are_bounded() {
        let long = format!("GET / HTTP/1.1\r\nCookie: {}\r\n\r\n", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(refused(&long), Status::HeaderFieldsTooLarge);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(refused(&many), Status::HeaderFieldsTooLarge);
        let endless = "G".repeat(HEAD_BYTES_MAX);
        assert_eq!(refused(&endless), Status::HeaderFieldsTooLarge);
    }

    #[test]
    fn a_reply_says_how_long_it_is() {
        let written = |response: Response, method, persistence| {
            let mut out = Vec::new();
            response.write(&mut out, method, persistence);
            String::from_utf8(out).expect("text")
        };
        assert_eq!(
            written(Response::text(Status::Ok, "ok"), Method::Get, Persistence::KeepAlive),
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 3\r\n\
             cache-control: no-store\r\nconnection: keep-alive\r\n\r\nok\n"
        );
        let head = written(Response::index(), Method::Head, Persistence::Close);
        assert!(head.ends_with("connection: close\r\n\r\n") && !head.contains("content-length: 0"), "{head}");
        let refusal = written(Response::refusal(Status::MethodNotAllowed), Method::Get, Persistence::Close);
        assert!(
            refusal.contains("\r\nallow: GET, HEAD\r\n") && refusal.ends_with("405 Method Not Allowed\n")
        );
    }
}
