//! The admin port's HTTP/1.1: small requests, small replies, and one page that accepts a body.

mod request;
mod response;

pub use crate::protocol::http::Host;
pub use request::{Body, Head, Received, receive};
pub use response::Response;

/// A page of the admin port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/`: a web page that shows the state of weir to people.
    Page,
    /// `/pages`: the list of all pages of the admin port.
    Index,
    /// `/state.json`: the data of the page `/`.
    State,
    /// `/history.json`: some of the data of the page `/` over the last ten minutes.
    History,
    /// `/explain`: how weir would treat a command.
    Explain,
    /// `/metrics`: metrics for Prometheus.
    Metrics,
    /// `/healthz`: status 200 while the process lives, for a supervisor.
    Health,
    /// `/readyz`: 200 while clients should be sent to this process, 503 while it drains (accepts no new
    /// clients).
    Ready,
    /// `/config/quotas`: shows the quotas in force, and takes others by POST.
    Quotas,
    /// `/tenants`: each tenant's usage of its quota.
    Tenants,
    /// `/hotkeys`: the keys with the most requests.
    HotKeys,
    /// `/cluster`: the nodes of the cluster, and how many slots each owns.
    Cluster,
    /// `/fleet`: how quotas are shared with the other hosts of the fleet.
    Fleet,
    /// A path at which the admin port has no page (status 404).
    NotFound,
}

/// All pages of the admin port: path, route and description, in the order of the list `/pages`.
pub(super) const PAGES: [(&str, Route, &str); 13] = [
    ("/", Route::Page, "live page with the state of weir"),
    ("/pages", Route::Index, "this list"),
    ("/state.json", Route::State, "the data of that page and of weir top, as JSON"),
    ("/history.json", Route::History, "some of it over the last ten minutes, a point every five seconds"),
    (
        "/explain",
        Route::Explain,
        "price and decision for a command, which is not executed: ?tenant=NAME&command=GET%20key",
    ),
    ("/metrics", Route::Metrics, "metrics for Prometheus"),
    ("/healthz", Route::Health, "200 while the process lives"),
    ("/readyz", Route::Ready, "200 while weir accepts clients, 503 while it drains"),
    (
        "/tenants",
        Route::Tenants,
        "what each tenant used of its quota; ?minutes=N shows the last minutes one by one",
    ),
    ("/hotkeys", Route::HotKeys, "the keys with most requests; ?count=N shows N of them"),
    ("/cluster", Route::Cluster, "the nodes of a cluster, and how many slots each of them owns"),
    ("/fleet", Route::Fleet, "how quotas are shared with other hosts (--fleet)"),
    ("/config/quotas", Route::Quotas, "the quotas in force; POST a quota file to replace them"),
];

impl Route {
    /// Returns the methods that the page accepts, as in the header `allow`.
    pub const fn allowed(self) -> &'static str {
        match self {
            Self::Quotas => "GET, HEAD, POST",
            _ => "GET, HEAD",
        }
    }
}

/// Whether an admin connection stays open after the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// The connection stays open, so that another request may follow.
    KeepAlive,
    /// The connection is closed after the reply.
    Close,
}

/// The HTTP method of a request to the admin port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET: the reply has a body.
    Get,
    /// HEAD: the reply has only its head.
    Head,
    /// POST: the request has a body.
    Post,
}

/// The HTTP status of a reply of the admin port.
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
    /// Returns the number and reason of the HTTP status, as in the first line of a reply.
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

    /// Returns the number of the HTTP status and its words, separately.
    pub fn parts(self) -> (&'static str, &'static str) {
        self.line().split_once(' ').expect("every line has both")
    }
}
