//! The admin port's HTTP/1.1: small requests, small replies, and one page that takes a body.

mod request;
mod response;

pub use crate::protocol::http::Host;
pub use request::{Body, Head, Received, receive};
pub use response::Response;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/`: how it goes, for people.
    Page,
    /// `/pages`: what else there is.
    Index,
    /// `/state.json`: what the page shows.
    State,
    /// `/explain`: what would be decided of a command.
    Explain,
    /// `/metrics`.
    Metrics,
    /// `/healthz`: does the process live.
    Health,
    /// `/readyz`: should clients be sent here.
    Ready,
    /// `/config/quotas`: the quotas in force, and other ones in their place.
    Quotas,
    /// `/tenants`: what each of them used.
    Tenants,
    /// `/hotkeys`: the keys that are asked for the most.
    HotKeys,
    /// `/cluster`: its nodes, and who owns which slots.
    Cluster,
    /// `/fleet`: how quotas are shared with other hosts.
    Fleet,
    /// Nothing that there is.
    NotFound,
}

/// The pages, as the index lists them.
pub(super) const PAGES: [(&str, Route, &str); 12] = [
    ("/", Route::Page, "how it goes, for people: a page that is live"),
    ("/pages", Route::Index, "this list"),
    ("/state.json", Route::State, "what that page shows, and weir top"),
    (
        "/explain",
        Route::Explain,
        "what would be decided of a command, without doing it: ?tenant=NAME&command=GET%20key",
    ),
    ("/metrics", Route::Metrics, "figures for Prometheus"),
    ("/healthz", Route::Health, "200 while the process lives"),
    ("/readyz", Route::Ready, "200 while clients are welcome, 503 while it drains"),
    (
        "/tenants",
        Route::Tenants,
        "what each tenant used of its quota; ?minutes=N shows the last minutes one by one",
    ),
    ("/hotkeys", Route::HotKeys, "the keys that are asked for the most; ?count=N shows so many"),
    ("/cluster", Route::Cluster, "the nodes of a cluster, and how many slots each of them owns"),
    ("/fleet", Route::Fleet, "how quotas are shared with other hosts (--fleet)"),
    ("/config/quotas", Route::Quotas, "the quotas in force; POST a quota file to put others in force"),
];

impl Route {
    /// What may be done with it, as the header `allow` says it.
    pub const fn allowed(self) -> &'static str {
        match self {
            Self::Quotas => "GET, HEAD, POST",
            _ => "GET, HEAD",
        }
    }
}

/// What becomes of the connection after the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// Another request may follow.
    KeepAlive,
    /// It is closed.
    Close,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Show the page.
    Get,
    /// Show the head of the reply.
    Head,
    /// Take a body.
    Post,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the status of its name")]
pub enum Status {
    Ok,
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    MisdirectedRequest,
    LengthRequired,
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
            Self::Unauthorized => "401 Unauthorized",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::RequestTimeout => "408 Request Timeout",
            Self::MisdirectedRequest => "421 Misdirected Request",
            Self::LengthRequired => "411 Length Required",
            Self::ContentTooLarge => "413 Content Too Large",
            Self::HeaderFieldsTooLarge => "431 Request Header Fields Too Large",
            Self::ServiceUnavailable => "503 Service Unavailable",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }

    /// The number alone, and the words.
    pub fn parts(self) -> (&'static str, &'static str) {
        self.line().split_once(' ').expect("every line has both")
    }
}
