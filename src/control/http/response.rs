//! Replies of the admin port, and how they are written.

use std::io::Write as _;

use serde::Serialize;

use super::{Method, PAGES, Persistence, Route, Status};
use crate::control::json;

/// A reply of the admin port to an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status of the reply.
    pub status: Status,
    /// The media type of the reply's body, such as `text/plain`.
    pub content_type: &'static str,
    /// Names and values of headers that only this reply has.
    pub headers: Vec<(&'static str, &'static str)>,
    /// The body of the reply, which is not sent in reply to HEAD.
    pub body: String,
}

impl Response {
    /// Creates a reply with status 200 and this body. `content_type` is the body's media type.
    pub fn page(content_type: &'static str, body: String) -> Self {
        Self { status: Status::Ok, content_type, headers: Vec::new(), body }
    }

    /// Creates a reply with this status whose body is a line of plain text.
    pub fn text(status: Status, line: &str) -> Self {
        Self {
            status,
            headers: Vec::new(),
            content_type: "text/plain; charset=utf-8",
            body: format!("{line}\n"),
        }
    }

    /// Creates a reply with this status whose body is a value as a JSON document.
    pub fn json(status: Status, value: &impl Serialize) -> Self {
        Self { status, headers: Vec::new(), content_type: "application/json", body: json::document(value) }
    }

    /// Creates a reply that describes a problem, for people and programs (RFC 9457). `place` is the line and
    /// column of the request's body that the problem is about, if known.
    pub fn problem(status: Status, detail: &str, place: Option<(usize, usize)>) -> Self {
        let (number, title) = status.parts();
        let (line, column) = place.unzip();
        let body = json::document(&Problem { title, status: number, detail, line, column });
        Self { status, headers: Vec::new(), content_type: "application/problem+json", body }
    }

    /// Creates a reply that refuses a request; its text is the words of the status.
    pub fn refusal(status: Status) -> Self {
        Self::text(status, status.line())
    }

    /// Creates a refusal (405) that names the methods which the page `route` accepts.
    pub fn method_not_allowed(route: Route) -> Self {
        Self::refusal(Status::MethodNotAllowed).with_header("allow", route.allowed())
    }

    /// Adds a header to this reply.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Creates the reply that lists all pages of the admin port, as text.
    pub fn index() -> Self {
        let lines: Vec<_> = PAGES.iter().map(|(path, _, what)| format!("{path:<16}{what}")).collect();
        Self::text(Status::Ok, &lines.join("\n"))
    }

    /// Appends the encoded reply to `out`, without the body if the request's method was HEAD. `persistence`
    /// says whether the connection stays open, which a header tells the client.
    pub fn write(&self, out: &mut Vec<u8>, method: Method, persistence: Persistence) {
        let connection = match persistence {
            Persistence::KeepAlive => "keep-alive",
            Persistence::Close => "close",
        };
        let headers: String =
            self.headers.iter().flat_map(|(name, value)| [*name, ": ", *value, "\r\n"]).collect();
        write!(
            out,
            "HTTP/1.1 {}\r\ncontent-type: {}\r\ncontent-length: {}\r\ncache-control: no-store\r\n\
             x-content-type-options: nosniff\r\n{headers}connection: {connection}\r\n\r\n",
            self.status.line(),
            self.content_type,
            self.body.len()
        )
        .expect("writing to a vector does not fail");
        if method != Method::Head {
            out.extend_from_slice(self.body.as_bytes());
        }
    }
}

#[derive(Serialize)]
struct Problem<'a> {
    title: &'static str,
    #[serde(serialize_with = "json::as_shown")]
    status: &'static str,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(response: &Response, method: Method, persistence: Persistence) -> String {
        let mut out = Vec::new();
        response.write(&mut out, method, persistence);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_reply_says_how_long_it_is() {
        assert_eq!(
            written(&Response::text(Status::Ok, "ok"), Method::Get, Persistence::KeepAlive),
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 3\r\n\
             cache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: keep-alive\r\n\r\nok\n"
        );
        let head = written(&Response::index(), Method::Head, Persistence::Close);
        assert!(head.ends_with("connection: close\r\n\r\n") && !head.contains("content-length: 0"), "{head}");
        let refusal = written(&Response::method_not_allowed(Route::Quotas), Method::Get, Persistence::Close);
        assert!(
            refusal.contains("\r\nallow: GET, HEAD, POST\r\n")
                && refusal.ends_with("405 Method Not Allowed\n")
        );
    }

    #[test]
    fn a_problem_says_where_it_is() {
        let problem = Response::problem(Status::BadRequest, "body:3:17: \"x\" is wrong", Some((3, 17)));
        assert_eq!(problem.content_type, "application/problem+json");
        assert_eq!(
            problem.body,
            "{\"title\":\"Bad Request\",\"status\":400,\"detail\":\"body:3:17: \\\"x\\\" is wrong\",\
             \"line\":3,\"column\":17}\n"
        );
    }
}
