//! Head of an HTTP request: its target, the length of its body, the client's credentials and options. It is
//! parsed more strictly than by other servers, so that weir and a proxy in front of it never disagree on
//! where a request ends (RFC 9112).

use std::sync::Arc;

use httparse::{EMPTY_HEADER, Error, Header, Request, Status as Parse};

use super::Status;
use super::headers::{lasts, length_of, values};
use super::host::Host;
use super::request_target::RequestTarget;
use super::source::Source;
use crate::values::percent_decoded;

/// Maximum number of bytes of an HTTP request's head: request line and headers. A longer head is refused with
/// status 431.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Maximum number of bytes of the first line of an HTTP request; a longer one is refused with status 414.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of headers of an HTTP request; one with more is refused with status 431.
const HEADERS_MAX: usize = 64;
/// Number of received bytes up to which an incomplete head of an HTTP request is parsed anew whenever bytes
/// arrive. In a longer one, the end of the head is searched in the new bytes first.
const SHORT_BYTES: usize = 1024;

/// Target of an HTTP request for keys (not for the admin port), from its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The path is `/v1/keys/{key}`: the fields are the decoded key, and the query after the `?`.
    Key(Vec<u8>, String),
    /// The path is `/`: the body of the HTTP request is one command.
    Command,
    /// The path is `/pipeline`: the body of the HTTP request is several commands, each carried out by itself.
    Pipeline,
    /// The path is `/multi-exec`: the body of the HTTP request is several commands, carried out as one
    /// transaction.
    Transaction,
}

/// Length of an HTTP request's body, as its headers state it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// The body has this length in bytes; 0 stands for no body.
    Known(u64),
    /// The body comes in chunks (`Transfer-Encoding: chunked`), so its length is not known beforehand.
    Chunks,
}

/// Method of an HTTP request for keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Put,
    Delete,
    Post,
    /// The request is a CORS preflight: a browser asks on behalf of a web page which methods and headers that
    /// page may use.
    Preflight {
        /// HTTP methods that the requested path allows, separated by commas.
        allowed: &'static str,
        /// True if the web page comes from a wider network than this server's, such as a public page that
        /// asks a private address.
        crosses_networks: bool,
    },
}

/// The head of an HTTP request: everything before the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub method: Method,
    pub target: Target,
    /// The name or address by which the request addresses the server: a name in an absolute target
    /// (`http://...`), otherwise that of the header `Host`.
    pub host: Host,
    /// The web page that made a browser send the HTTP request, as far as its headers say so.
    pub source: Source,
    /// Origin of the web page that made a browser send the request, once weir has found that the page may
    /// read the response; none otherwise.
    pub origin: Option<Arc<str>>,
    /// True unless the header `Content-Type` says that the request's body is not JSON.
    pub is_json: bool,
    pub length: Length,
    /// True if the client sends the body of its HTTP request only after it has received `100 Continue`.
    pub waits: bool,
    /// True if the client wants the connection to stay open after the response.
    pub keeps: bool,
    /// True for HTTP/1.1, which knows `100 Continue` and chunks.
    pub is_modern: bool,
    /// Value of the header `Authorization` as received (`Bearer ...`, `Basic ...`); none without one.
    pub authorization: Option<Vec<u8>>,
    /// User within the tenant, tier (importance) and deadline of the request, from its headers, as words of
    /// options of `QOS CALL`.
    pub options: Vec<Vec<u8>>,
    /// Number of the database for the request's commands; 0 unless a header names one. The stores may have
    /// fewer databases.
    pub database: i64,
    /// True if the client wants texts in the response encoded in Base64.
    pub in_base64: bool,
}

impl Head {
    /// True if no body follows this head of an HTTP request.
    pub fn has_no_body(&self) -> bool {
        self.length == Length::Known(0)
    }
}

/// True if the bytes are the beginning of an HTTP request with the method HEAD, even an incomplete or
/// malformed one. Responses to HEAD have no body.
pub fn wants_head_alone(bytes: &[u8]) -> bool {
    without_empty_line(bytes).starts_with(b"HEAD ")
}

/// True if the received bytes hold more than the one empty line that may stand before a request: a part of an HTTP
/// request.
pub fn has_begun(bytes: &[u8]) -> bool {
    !without_empty_line(bytes).is_empty()
}

/// Returns the bytes of an HTTP request without the one empty line that may stand before the request line
/// (RFC 9112, 2.2).
fn without_empty_line(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\r\n").unwrap_or(bytes)
}

/// True if the received bytes may contain a whole or a wrong head of an HTTP request by now, given that the
/// first `seen` of them did not. This saves searching all of them whenever bytes arrive.
pub fn may_be_whole(bytes: &[u8], seen: usize) -> bool {
    let new = &bytes[seen.saturating_sub(3).min(bytes.len())..];
    let line_bytes_max = LINE_BYTES_MAX + (bytes.len() - without_empty_line(bytes).len());
    bytes.len() <= SHORT_BYTES
        || bytes.len() >= HEAD_BYTES_MAX
        || (seen..bytes.len()).contains(&line_bytes_max)
        || new.windows(4).any(|four| four == b"\r\n\r\n")
        || (seen.saturating_sub(1)..bytes.len()).any(|at| is_misplaced(bytes, at))
}

/// True if the byte at index `at` of an HTTP request's head is zero, a CR that another byte than LF follows,
/// or a LF without a CR before it. Such a head is refused: a line ends with CR and LF, and software that
/// takes one of them alone for an end sees another request. A CR that is the last byte received so far is not
/// misplaced.
fn is_misplaced(head: &[u8], at: usize) -> bool {
    match head[at] {
        b'\n' => at == 0 || head[at - 1] != b'\r',
        b'\r' => head.get(at + 1).is_some_and(|next| *next != b'\n'),
        byte => byte == 0,
    }
}

/// Parses the head of an HTTP request at the start of the received bytes, and returns it with the offset at
/// which it ends; `None` while it is incomplete. The error is the refusal sent to the client.
pub fn receive(bytes: &[u8]) -> Result<Option<(Head, usize)>, Status> {
    let received = bytes.len();
    let bytes = without_empty_line(bytes);
    let skipped = received - bytes.len();
    let shown = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    let line_end = shown.iter().position(|byte| *byte == b'\n');
    if line_end.unwrap_or(shown.len()) > LINE_BYTES_MAX {
        return Err(Status::UriTooLong);
    }
    if line_end.is_none() && shown.starts_with(b"PRI * HTTP/2") {
        return Err(Status::VersionNotSupported);
    }
    let end = shown.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
    let head = &shown[..end.unwrap_or(shown.len())];
    if (0..head.len()).any(|at| is_misplaced(head, at)) {
        return Err(Status::BadRequest(
            "a line of the head ends with CR alone or LF alone, or holds a zero byte",
        ));
    }
    let Some(end) = end else {
        let is_full = shown.len() == HEAD_BYTES_MAX;
        return if is_full { Err(Status::HeadersTooLarge) } else { Ok(None) };
    };
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    match request.parse(head) {
        Ok(Parse::Complete(_)) => Ok(Some((understand(&request)?, end + skipped))),
        Ok(Parse::Partial) | Err(Error::HeaderName | Error::HeaderValue | Error::NewLine) => {
            Err(Status::BadRequest("a header is malformed"))
        }
        Err(Error::TooManyHeaders) => Err(Status::HeadersTooLarge),
        Err(Error::Version) => Err(Status::VersionNotSupported),
        Err(_) => Err(Status::BadRequest("the request line is malformed")),
    }
}

fn understand(request: &Request<'_, '_>) -> Result<Head, Status> {
    let headers = &*request.headers;
    let is_modern = request.version == Some(1);
    // The parser refuses folded lines, and spaces before the colon.
    let hosts = values(headers, "host").count();
    if hosts > 1 || (is_modern && hosts == 0) {
        return Err(Status::BadRequest("one header Host is expected"));
    }
    let host = Host::read(values(headers, "host"));
    let host = host.ok_or(Status::BadRequest("the header Host is no name and no address"))?;
    let length = length(headers, is_modern)?;
    let parts = RequestTarget::read(request.path.unwrap_or_default());
    let parts = parts.ok_or(Status::BadRequest("a path is expected"))?;
    let host = parts.host(host).ok_or(Status::BadRequest("the target has no name and no address"))?;
    let (target, allowed) = target(parts.path, parts.query)?;
    let source = Source::of(headers);
    let asks_for_page =
        source != Source::Unsaid && values(headers, "access-control-request-method").next().is_some();
    let crosses_networks =
        values(headers, "access-control-request-private-network").any(|value| value == b"true");
    let method = match request.method.unwrap_or_default() {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        "POST" => Method::Post,
        "OPTIONS" if asks_for_page => Method::Preflight { allowed, crosses_networks },
        _ => return Err(Status::MethodNotAllowed(allowed)),
    };
    let fits = match (&target, method) {
        (_, Method::Preflight { .. }) => true,
        (Target::Key(..), method) => method != Method::Post,
        (_, method) => method == Method::Post,
    };
    if !fits {
        return Err(Status::MethodNotAllowed(allowed));
    }
    let takes_body = matches!(method, Method::Put | Method::Post);
    let length = match length {
        None if takes_body => return Err(Status::LengthRequired),
        None => Length::Known(0),
        Some(length) => length,
    };
    if !takes_body && length != Length::Known(0) {
        return Err(Status::BadRequest("GET, HEAD, DELETE and OPTIONS have no body here"));
    }
    let expected = values(headers, "expect").next().filter(|_| is_modern);
    let waits = expected.is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
    if expected.is_some() && !waits {
        return Err(Status::ExpectationFailed);
    }
    let mut authorizations = values(headers, "authorization");
    let authorization = authorizations.next().map(<[u8]>::to_vec);
    if authorizations.next().is_some() {
        return Err(Status::BadRequest("one header Authorization is expected at most"));
    }
    let encoding = values(headers, "upstash-encoding").next();
    Ok(Head {
        method,
        target,
        host,
        source,
        origin: None,
        is_json: is_json(headers),
        length,
        waits,
        keeps: lasts(headers, is_modern),
        is_modern,
        authorization,
        options: options(headers)?,
        database: database(headers)?,
        in_base64: encoding.is_some_and(|value| value.eq_ignore_ascii_case(b"base64")),
    })
}

/// Returns the length of an HTTP request's body from its headers; `None` if they give none. The error is the
/// refusal of an ambiguous length. `is_modern` is true for HTTP/1.1.
fn length(headers: &[Header<'_>], is_modern: bool) -> Result<Option<Length>, Status> {
    let mut codings = values(headers, "transfer-encoding");
    let mut lengths = values(headers, "content-length");
    match (codings.next(), lengths.next()) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Status::BadRequest("Content-Length and Transfer-Encoding together")),
        (Some(coding), None) => {
            let is_alone = codings.next().is_none();
            if !is_modern || !is_alone || !coding.eq_ignore_ascii_case(b"chunked") {
                return Err(Status::BadRequest(
                    "Transfer-Encoding: chunked is all that is understood, in HTTP/1.1",
                ));
            }
            Ok(Some(Length::Chunks))
        }
        (None, Some(length)) => {
            let known = length_of(length).filter(|_| lengths.next().is_none());
            known
                .map(|length| Some(Length::Known(length)))
                .ok_or(Status::BadRequest("one Content-Length, a number, is expected"))
        }
    }
}

/// True unless a header says that the body is not JSON. A web page of another site can have a browser send
/// some content types without asking first (`text/plain`, forms), but not JSON. Programs often send no
/// content type; a browser then says where the page is from.
fn is_json(headers: &[Header<'_>]) -> bool {
    let mut kinds = values(headers, "content-type");
    let Some(kind) = kinds.next() else { return true };
    if kinds.next().is_some() {
        return false;
    }
    let end = kind.iter().position(|byte| *byte == b';').unwrap_or(kind.len());
    kind[..end].trim_ascii().eq_ignore_ascii_case(b"application/json")
}

fn target(path: &str, query: &str) -> Result<(Target, &'static str), Status> {
    let target = match path {
        "/" => Target::Command,
        "/pipeline" => Target::Pipeline,
        "/multi-exec" => Target::Transaction,
        _ => {
            let key = path.strip_prefix("/v1/keys/").filter(|key| !key.is_empty() && !key.contains('/'));
            let key = percent_decoded(key.ok_or(Status::NotFound)?);
            let key =
                key.ok_or(Status::BadRequest("a % in the path is not followed by two hexadecimal digits"))?;
            return Ok((Target::Key(key, query.to_owned()), "GET, HEAD, PUT, DELETE"));
        }
    };
    if query.is_empty() {
        Ok((target, "POST"))
    } else {
        Err(Status::BadRequest("no query string is allowed here"))
    }
}

/// Returns the number of the database that the header `X-Weir-Database` names; 0 without that header. The
/// error is the refusal of a text that is no number, or of a repeated header.
fn database(headers: &[Header<'_>]) -> Result<i64, Status> {
    let Some(value) = single(headers, "x-weir-database")? else { return Ok(0) };
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number.ok_or(Status::BadRequest("X-Weir-Database is the number of a database, such as 3"))
}

/// Returns the value of a header that may be sent once only; `None` without it. The error is the refusal of a
/// repeated header.
fn single<'h>(headers: &'h [Header<'_>], name: &'static str) -> Result<Option<&'h [u8]>, Status> {
    let mut values = values(headers, name);
    let value = values.next();
    if values.next().is_some() {
        return Err(Status::BadRequest("each header X-Weir-... is expected once at most"));
    }
    Ok(value)
}

/// Returns user, tier (importance) and deadline of a request, from its headers, as words of options of `QOS
/// CALL`; nothing for a header that is missing. The error is the refusal of a repeated header. The values are
/// not checked here.
fn options(headers: &[Header<'_>]) -> Result<Vec<Vec<u8>>, Status> {
    let mut options = Vec::new();
    for (name, option) in
        [("x-weir-user", "USER"), ("x-weir-tier", "TIER"), ("x-weir-deadline-ms", "DEADLINE")]
    {
        if let Some(value) = single(headers, name)? {
            options.push(option.as_bytes().to_vec());
            options.push(value.to_vec());
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Head, Status> {
        match receive(text.as_bytes())? {
            Some((head, length)) => {
                assert_eq!(length, text.len(), "{text:?}");
                Ok(head)
            }
            None => panic!("a whole head: {text:?}"),
        }
    }

    #[test]
    fn heads_as_clients_write_them() {
        let get = head("GET /v1/keys/a%2Fb%20c HTTP/1.1\r\nHost: x\r\nX-Weir-Tier: batch\r\n\r\n")
            .expect("well formed");
        assert_eq!(get.target, Target::Key(b"a/b c".to_vec(), String::new()));
        assert_eq!((get.method, get.length, get.keeps), (Method::Get, Length::Known(0), true));
        assert_eq!(get.options, [b"TIER".to_vec(), b"batch".to_vec()]);
        let put = "PUT http://x:1/v1/keys/k?ttl=5 HTTP/1.1\r\nhost:x\r\nContent-Length: 3\r\nExpect: 100-Continue\r\nConnection: a, Close\r\n\r\n";
        let put = head(put).expect("well formed");
        assert_eq!(put.target, Target::Key(b"k".to_vec(), "ttl=5".to_owned()));
        assert_eq!((put.length, put.waits, put.keeps), (Length::Known(3), true, false));
        let post = "POST /pipeline HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\nUpstash-Encoding: base64\r\nAuthorization: Bearer t\r\n\r\n";
        let post = head(post).expect("well formed");
        assert_eq!((post.target, post.length, post.in_base64), (Target::Pipeline, Length::Chunks, true));
        assert_eq!(post.authorization.as_deref(), Some(b"Bearer t".as_slice()));
        let old = head("GET /v1/keys/k HTTP/1.0\r\n\r\n").expect("well formed");
        assert!(!old.keeps && !old.is_modern);
        assert!(
            head("GET /v1/keys/k HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").expect("well formed").keeps
        );
    }

    #[test]
    fn what_could_be_taken_in_two_ways_is_refused() {
        let post = |headers: &str| head(&format!("POST / HTTP/1.1\r\nHost: x\r\n{headers}\r\n"));
        for headers in [
            "Content-Length: 3\r\nContent-Length: 3\r\n",
            "Content-Length: 3\r\nContent-Length: 4\r\n",
            "Content-Length: 3, 3\r\n",
            "Content-Length: +3\r\n",
            "Content-Length: \r\n",
            "Content-Length: 0x3\r\n",
            "Content-Length: 18446744073709551616\r\n",
            "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "Transfer-Encoding : chunked\r\n",
            "Content-Length : 3\r\n",
            "Content-Length: 3\r\n X: folded\r\n",
            "Host: y\r\nContent-Length: 3\r\n",
            "X Y: z\r\nContent-Length: 3\r\n",
            "X: \0\r\nContent-Length: 3\r\n",
            ": z\r\nContent-Length: 3\r\n",
            "Authorization: Bearer a\r\nAuthorization: Bearer b\r\nContent-Length: 3\r\n",
            "X-Weir-User: a\r\nX-Weir-User: b\r\nContent-Length: 3\r\n",
            "X-Weir-Database: 1\r\nX-Weir-Database: 1\r\nContent-Length: 3\r\n",
            "X-Weir-Database: cache\r\nContent-Length: 3\r\n",
        ] {
            assert!(matches!(post(headers), Err(Status::BadRequest(_))), "{headers:?}: {:?}", post(headers));
        }
        for text in [
            "POST / HTTP/1.1\nHost: x\nContent-Length: 3\n\n",
            "POST / HTTP/1.1\r\nHost: x\nContent-Length: 3\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\r\nContent-Length: 3\r\n\r\n",
            "GET /v1/keys/k HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n",
            "GET /v1/keys/%4 HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET v1 HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /v1/keys/k HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(matches!(receive(text.as_bytes()), Err(Status::BadRequest(_))), "{text:?}");
        }
    }

    #[test]
    fn what_is_refused_for_another_reason_says_which() {
        let cases = [
            ("POST / HTTP/1.1\r\nHost: x\r\n\r\n", Status::LengthRequired),
            ("PUT /v1/keys/k HTTP/1.1\r\nHost: x\r\n\r\n", Status::LengthRequired),
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", Status::MethodNotAllowed("POST")),
            (
                "POST /v1/keys/k HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
                Status::MethodNotAllowed("GET, HEAD, PUT, DELETE"),
            ),
            (
                "PATCH /v1/keys/k HTTP/1.1\r\nHost: x\r\n\r\n",
                Status::MethodNotAllowed("GET, HEAD, PUT, DELETE"),
            ),
            ("GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n", Status::NotFound),
            ("GET /v1/keys/ HTTP/1.1\r\nHost: x\r\n\r\n", Status::NotFound),
            ("GET /v1/keys/a/b HTTP/1.1\r\nHost: x\r\n\r\n", Status::NotFound),
            (
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nExpect: y\r\n\r\n",
                Status::ExpectationFailed,
            ),
            ("GET /v1/keys/k HTTP/2.0\r\nHost: x\r\n\r\n", Status::VersionNotSupported),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Status::VersionNotSupported),
        ];
        for (text, status) in cases {
            assert_eq!(receive(text.as_bytes()), Err(status), "{text:?}");
        }
        let long = format!("GET /v1/keys/{} HTTP/1.1\r\n", "k".repeat(LINE_BYTES_MAX));
        assert_eq!(receive(long.as_bytes()), Err(Status::UriTooLong));
        let many = format!("GET /v1/keys/k HTTP/1.1\r\nHost: x\r\n{}\r\n", "X: y\r\n".repeat(HEADERS_MAX));
        assert_eq!(receive(many.as_bytes()), Err(Status::HeadersTooLarge));
        let large = format!("GET /v1/keys/k HTTP/1.1\r\nHost: x\r\nX: {}", "y".repeat(HEAD_BYTES_MAX));
        assert_eq!(receive(large.as_bytes()), Err(Status::HeadersTooLarge));
    }

    #[test]
    fn what_browsers_say_is_read() {
        let post = |headers: &str| {
            head(&format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n{headers}\r\n"))
                .expect("well formed")
        };
        for kind in ["application/json", "Application/JSON; charset=utf-8", "application/json ;x"] {
            assert!(post(&format!("Content-Type: {kind}\r\n")).is_json, "{kind}");
        }
        assert!(post("").is_json, "programs often say nothing");
        for headers in [
            "Content-Type: text/plain\r\n",
            "Content-Type: text/plain; a=application/json\r\n",
            "Content-Type: application/jsonx\r\n",
            "Content-Type: application/x-www-form-urlencoded\r\n",
            "Content-Type: multipart/form-data; boundary=application/json\r\n",
            "Content-Type: application/json, text/plain\r\n",
            "Content-Type: application/json\r\nContent-Type: text/plain\r\n",
            "Content-Type: \r\n",
        ] {
            assert!(!post(headers).is_json, "{headers:?}");
        }
        assert_eq!(post("Origin: null\r\n").source, Source::Page(b"null".to_vec()));
        let options = |headers: &str| {
            receive(format!("OPTIONS /v1/keys/k HTTP/1.1\r\nHost: x\r\n{headers}\r\n").as_bytes())
        };
        let Ok(Some((preflight, _))) = options("Origin: https://a\r\nAccess-Control-Request-Method: PUT\r\n")
        else {
            panic!("a preflight")
        };
        let (allowed, crosses_networks) = ("GET, HEAD, PUT, DELETE", false);
        assert_eq!(preflight.method, Method::Preflight { allowed, crosses_networks });
        for headers in ["", "Origin: https://a\r\n", "Access-Control-Request-Method: PUT\r\n"] {
            assert_eq!(options(headers), Err(Status::MethodNotAllowed(allowed)), "{headers:?}");
        }
    }

    #[test]
    fn a_name_in_the_target_or_in_the_header_is_a_name() {
        let named = |target: &str, host: &str| {
            head(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).map(|head| head.host)
        };
        let evil = || Ok(Host::Name("evil.example".to_owned()));
        assert_eq!(named("/v1/keys/k", "127.0.0.1:7380"), Ok(Host::Address));
        assert_eq!(named("/v1/keys/k", "evil.example"), evil());
        assert_eq!(named("http://evil.example/v1/keys/k", "127.0.0.1"), evil());
        assert_eq!(named("http://127.0.0.1:1/v1/keys/k", "evil.example"), evil());
        assert_eq!(named("http://[::1]:1/v1/keys/k", "localhost"), Ok(Host::Address));
        for (target, host) in [("/v1/keys/k", "a:b"), ("http://a:b/v1/keys/k", "x"), ("/v1/keys/k", "[::1")] {
            assert!(matches!(named(target, host), Err(Status::BadRequest(_))), "{target} {host}");
        }
    }

    #[test]
    fn a_request_for_a_head_is_one_however_little_of_it_is_right() {
        for text in ["HEAD ", "HEAD /v2 HTTP/1.1\r\nHost: x\r\n\r\n", "\r\nHEAD / HTTP/9", "HEAD \0\r\n\r\n"]
        {
            assert!(wants_head_alone(text.as_bytes()), "{text:?}");
        }
        for text in ["", "\r\n", "HEAD", "HEADS / HTTP/1.1", "head / HTTP/1.1", "GET /HEAD HTTP/1.1"] {
            assert!(!wants_head_alone(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn every_part_of_a_head_is_a_part() {
        let text = b"PUT /v1/keys/k HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n";
        (0..text.len()).for_each(|end| assert_eq!(receive(&text[..end]), Ok(None), "{end}"));
    }
}
