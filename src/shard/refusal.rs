//! Refusals: reasons why weir does not have a request carried out (a quota, overload, a deadline, an unavailable
//! store), and the texts of the error replies for them.

use std::time::Duration;

/// The reason to give up a connection whose store refuses the database that the connection selects. Counts as no
/// failure of the store.
pub const NO_DATABASE: &str = "no-database";
/// The reason to give up a connection whose store refuses weir's user or password, or the RESP version. Counts as no
/// failure of the store.
pub const LOGIN_REFUSED: &str = "login-refused";
/// The reason to give up a connection whose store refuses all requests at present: it loads its data, is busy with a
/// script, or has lost its primary.
pub const NOT_READY: &str = "not-ready";
/// The reason to give up a connection whose store has sent something that is neither the reply to a request nor a
/// message that may come unasked.
pub const UNEXPECTED_REPLY: &str = "unexpected-reply";
/// The reason to give up a new connection on which the store, before any reply, sends an error unasked and closes it,
/// since it has too many clients or is in protected mode.
pub const TURNED_AWAY: &str = "turned-away";

/// True if a store's reply within the greeting (the requests that open a connection) is the error that it
/// sends unasked before it closes a new connection: it has as many clients as it may have (`maxclients`), or
/// it is in protected mode.
pub fn turns_away(reply: &[u8]) -> bool {
    reply.starts_with(b"-ERR max number of clients") || reply.starts_with(b"-DENIED ")
}

/// Returns the reason to give up a connection whose store has answered the login with this error: that it
/// cannot serve requests at present, or that it refuses the login.
pub fn reason_of_refused_login(error: &[u8]) -> &'static str {
    if is_not_ready(error) { NOT_READY } else { LOGIN_REFUSED }
}

/// Returns the reason to give up a connection whose store has answered `SELECT` with this error: that it
/// cannot serve requests at present, or that it refuses the database.
pub fn reason_of_refused_select(error: &[u8]) -> &'static str {
    if is_not_ready(error) { NOT_READY } else { NO_DATABASE }
}

/// Returns the error reply in place of a store's reply of more than `bytes_max` bytes.
pub fn oversized(bytes_max: usize) -> String {
    format!("-ERR the reply is larger than {bytes_max} bytes (--max-reply-bytes)\r\n")
}

/// True if a store's whole reply is an error which says that the store can serve no request at present: it is
/// busy with a script, loads its data, or has lost its primary.
pub fn is_not_ready(reply: &[u8]) -> bool {
    NodeRefusal::parse(reply).and_then(NodeRefusal::unavailability).is_some()
}

/// True if a store's whole reply is an error which says that it is a replica and takes no writes.
pub fn is_read_only(reply: &[u8]) -> bool {
    NodeRefusal::parse(reply) == Some(NodeRefusal::ReadOnly)
}

use super::counters::{Counter, Pressure};
use super::request::Nature;
use crate::protocol::encode;
use crate::routing::cluster::NodeRefusal;

/// Reason why weir refused a request, with the data of the error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal<'a> {
    /// No backend can carry the request out now, or none has answered it: the backend could not be reached or is
    /// ejected, its connection was lost, or no cluster node takes the request (`-UNAVAILABLE`).
    Unavailable {
        /// Address of the backend that the request was for.
        backend: &'a str,
        /// Word for the reason why the backend is unavailable, such as `connection-lost`.
        reason: &'static str,
        /// Time after which the client may try again.
        retry_after: Duration,
    },
    /// A quota is used up, or a hot key is written too often (`-THROTTLED`).
    Throttled {
        /// Scope of the quota: `global`, `tenant` or `user`; or `key`, for the limit of writes to a hot key.
        scope: &'static str,
        /// Name of the tenant whose quota, or whose user's quota, is used up; for a hot key, the key.
        tenant: &'a str,
        /// Name of the user within the tenant, if the quota is the user's.
        user: Option<&'a str>,
        /// Limit of the quota, in request units per second; for a key, in writes per second.
        limit: u64,
        /// Whole request units that are left in the quota's bucket; 0 for a hot key.
        remaining: u64,
        /// Time after which the quota, or the limit of writes, admits the request.
        retry_after: Duration,
    },
    /// The request was not sent, because too many others wait or are in flight, or because the backend is stalled or
    /// slow (`-OVERLOADED`).
    Overloaded {
        /// Word for the kind of overload, such as `queue`, `window`, `stalled` or `latency`.
        reason: &'static str,
        /// Address of the backend that the request was for.
        backend: &'a str,
        /// Time after which the client may try again.
        retry_after: Duration,
    },
    /// The backend stalled (sends nothing) with the request in flight, and weir answers in its place (`-OVERLOADED`).
    Abandoned {
        /// Address of the backend that the request was sent to.
        backend: &'a str,
        /// True if the request was a write, or another one that is no read, which may still be carried out.
        may_have_happened: bool,
        /// Time after which the client may try again.
        retry_after: Duration,
    },
    /// The backend is busy with a script (`-BUSY`, like a store's own error).
    Busy {
        /// Address of the backend that the request was for.
        backend: &'a str,
    },
    /// The backend is busy with a script, and the request is a transaction (`-EXECABORT ... BUSY`, as a store says
    /// itself).
    BusyForTransaction {
        /// Address of the backend that the transaction was for.
        backend: &'a str,
    },
    /// The deadline passed, or could not be met, so a reply would be useless (`-DEADLINE`).
    TooLate {
        /// Stage that the request had reached when it was refused.
        stage: Stage,
        /// Time that the request had waited in that stage: since its arrival, or since it was queued or sent.
        waited: Duration,
        /// True if the request was a write, or another one that is no read, and had been sent, so that it may be
        /// carried out.
        may_have_happened: bool,
    },
}

/// Text appended to the refusal of a write, or of another request that is no read, that was sent and not
/// answered.
const MAY_HAVE_HAPPENED: &str = " (it may have happened)";

/// Reason why a request was not sent to its backend, or not to another one after a cluster node refused it; the
/// client's error reply is made from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// The backend could not be reached; the next attempt to connect is after this time.
    Down(Duration),
    /// The backend refuses the database that the client has selected; weir tries it again after this time.
    NoDatabase(Duration),
    /// The backend is ejected: its breaker refuses requests for this time, because the backend is unhealthy.
    Ejected(Duration),
    /// Too many requests are unanswered on the connection to the backend, or too many bytes wait to be sent on it or on
    /// private links (connections that one client has to itself).
    Full,
    /// Too many bytes wait to be sent to the key's home core (the core through which a key's requests pass).
    CoreFull,
    /// As many requests as the window permits are in flight at the backend, and no queue is configured in which they
    /// could wait; a retry makes sense after this time.
    Window(Duration),
    /// The queue in front of the backend is full, the request has waited in it for too long, or too many reads wait for
    /// the fetch of a hot key; a retry makes sense after this time.
    Queue(Duration),
    /// The backend has stalled (sends nothing although requests are in flight), or may still carry out an earlier
    /// request of the client which weir has answered in its place; a retry makes sense after this time.
    Stalled(Duration),
    /// The backend is busy with a script, so the client gets `-BUSY`, as from a store.
    Busy,
    /// The backend is busy with a script, and the request is a transaction, so the client gets `-EXECABORT`.
    BusyForTransaction,
    /// The backend's shedding level is raised because it is slow, and requests of less important tiers are
    /// refused.
    Strained,
    /// The request could not be answered by its deadline: the stage it had reached, and how long it had
    /// waited there.
    TooLate(Stage, Duration),
    /// All private links (connections to stores that one client has to itself) of the core, or of the
    /// tenant's part of them, are in use.
    Links,
    /// There is no room, on the channel's home core (the one that subscribes for all clients) or for the tenant, for
    /// another channel with one subscription for all clients.
    SharedChannels,
    /// The request's slot has no owner among the nodes of the cluster, or no node is known that could take the request.
    NoOwner,
    /// The request was for a primary of the cluster, and the node that it was meant for is no primary any more.
    NotPrimary,
    /// The primaries of the cluster could not all be asked, so the request might miss keys.
    Unconfirmed,
    /// Cluster nodes redirected the request for too long or too often, or there is no room to hold it until it can be
    /// sent again, or a node may have carried it out already.
    Redirects,
}

/// Stage that a request had reached when it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The request had just arrived, or waited for earlier requests of its connection.
    Arrival,
    /// The request waited in the queue in front of its backend.
    Queue,
    /// The request was in flight at the backend.
    Backend,
}

impl Stage {
    /// Returns the stage's name in `-DEADLINE` replies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arrival => "arrival",
            Self::Queue => "queue",
            Self::Backend => "backend",
        }
    }
}

/// Time after which a client may try again whose request was refused for its tier (importance) because the backend is
/// slow: shedding levels last for at least a second.
const RETRY_STRAINED: Duration = Duration::from_secs(1);
/// Time after which a client may try again whose request no node of the cluster can carry out at present, such as while
/// its slot moves.
const RETRY_MOVED: Duration = Duration::from_millis(100);
/// Time after which a client may try again when all private links (connections to stores that one client has
/// to itself), or all places for channels that clients share, are in use.
const RETRY_NO_LINK: Duration = Duration::from_secs(1);
/// Time after which a client may try again when a buffer of weir (such as a batch for another core) was full.
const RETRY_WHEN_FULL: Duration = Duration::from_millis(10);

impl NotSent {
    /// Returns the kind of overload that the request was refused for; None if the reason is not overload.
    pub const fn pressure(self) -> Option<Pressure> {
        match self {
            Self::Down(_)
            | Self::NoDatabase(_)
            | Self::Ejected(_)
            | Self::CoreFull
            | Self::Links
            | Self::SharedChannels
            | Self::NoOwner
            | Self::NotPrimary
            | Self::Unconfirmed
            | Self::Redirects => None,
            Self::Full | Self::Queue(_) => Some(Pressure::Queue),
            Self::Window(_) => Some(Pressure::Window),
            Self::Stalled(_) | Self::Busy | Self::BusyForTransaction => Some(Pressure::Stalled),
            Self::Strained => Some(Pressure::Latency),
            Self::TooLate(..) => Some(Pressure::Deadline),
        }
    }

    /// Returns the reason to state in the error reply to a request of this nature (class and effect). For a
    /// transaction, `Busy` (the backend is busy with a script) becomes `BusyForTransaction`, because stores
    /// word their error to `EXEC` differently. Any other reason stays as it is.
    pub fn for_nature(self, nature: Nature) -> Self {
        if self == Self::Busy && nature.is_transaction() { Self::BusyForTransaction } else { self }
    }

    /// Returns the text of the error reply, without the `-` and the line end. `backend` is the backend's
    /// name.
    pub fn words(self, backend: &str) -> String {
        let mut text = Vec::new();
        self.refusal(backend).1.encode(&mut text);
        String::from_utf8_lossy(&text).trim_start_matches('-').trim_end().to_owned()
    }

    /// Returns the refusal from which the error reply is made, and the counter that counts it. `backend` is
    /// the backend's name.
    pub fn refusal(self, backend: &str) -> (Counter, Refusal<'_>) {
        let overloaded = |reason, retry_after| Refusal::Overloaded { reason, backend, retry_after };
        let full = |reason| overloaded(reason, RETRY_WHEN_FULL);
        match self {
            Self::Window(retry_after) => (Counter::RefusedOverloaded, overloaded("window", retry_after)),
            Self::Queue(retry_after) => (Counter::RefusedOverloaded, overloaded("queue", retry_after)),
            Self::Stalled(retry_after) => (Counter::RefusedOverloaded, overloaded("stalled", retry_after)),
            Self::Busy => (Counter::RefusedOverloaded, Refusal::Busy { backend }),
            Self::BusyForTransaction => (Counter::RefusedOverloaded, Refusal::BusyForTransaction { backend }),
            Self::Strained => (Counter::RefusedOverloaded, overloaded("latency", RETRY_STRAINED)),
            Self::TooLate(stage, waited) => {
                (Counter::RefusedDeadline, Refusal::TooLate { stage, waited, may_have_happened: false })
            }
            Self::Down(retry_after) => (
                Counter::RefusedUnavailable,
                Refusal::Unavailable { backend, reason: "connect-failed", retry_after },
            ),
            Self::NoDatabase(retry_after) => (
                Counter::RefusedUnavailable,
                Refusal::Unavailable { backend, reason: NO_DATABASE, retry_after },
            ),
            Self::Ejected(retry_after) => (
                Counter::RefusedUnavailable,
                Refusal::Unavailable { backend, reason: "ejected", retry_after },
            ),
            Self::NoOwner | Self::NotPrimary | Self::Unconfirmed | Self::Redirects => {
                let reason = match self {
                    Self::NoOwner => "no-owner",
                    Self::NotPrimary => "not-primary",
                    Self::Unconfirmed => "topology",
                    _ => "redirects",
                };
                let retry_after = RETRY_MOVED;
                (Counter::RefusedUnavailable, Refusal::Unavailable { backend, reason, retry_after })
            }
            Self::Full => (Counter::RefusedOverloaded, full("pending")),
            Self::CoreFull => (Counter::RefusedOverloaded, full("core")),
            Self::Links => (Counter::RefusedOverloaded, overloaded("links", RETRY_NO_LINK)),
            Self::SharedChannels => (Counter::RefusedOverloaded, overloaded("channels", RETRY_NO_LINK)),
        }
    }
}

impl Refusal<'_> {
    /// Appends the error reply that states this refusal to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        use std::io::Write as _;
        if let Self::Throttled { scope, tenant, user, limit, remaining, retry_after } = *self {
            return throttled(out, [scope, tenant], user, [limit, remaining], retry_after);
        }
        let unsure = |it_may: bool| if it_may { MAY_HAVE_HAPPENED } else { "" };
        let written = match *self {
            Self::Throttled { .. } => unreachable!("worded above"),
            Self::Unavailable { backend, reason, retry_after } => write!(
                out,
                "-UNAVAILABLE backend={backend} reason={reason} retry_after_ms={}\r\n",
                retry_after.as_millis()
            ),
            Self::Overloaded { reason, backend, retry_after } => {
                overloaded(out, reason, backend, retry_after);
                Ok(())
            }
            Self::Busy { backend } => write!(out, "-{}\r\n", busy_with_script(backend)),
            Self::BusyForTransaction { backend } => {
                write!(out, "-{}\r\n", abort_because_of(&busy_with_script(backend)))
            }
            Self::Abandoned { backend, may_have_happened, retry_after } => write!(
                out,
                "-OVERLOADED reason=stalled backend={backend} retry_after_ms={}{}\r\n",
                retry_after.as_millis(),
                unsure(may_have_happened)
            ),
            Self::TooLate { stage, waited, may_have_happened } => write!(
                out,
                "-DEADLINE stage={} waited_ms={}{}\r\n",
                stage.name(),
                waited.as_millis(),
                unsure(may_have_happened)
            ),
        };
        written.expect("writing to a vector does not fail");
    }
}

/// Returns the text of the error reply while a backend is busy with a script, without the `-` before it.
pub fn busy_with_script(backend: &str) -> String {
    format!("BUSY backend={backend} is busy running a script. SCRIPT KILL or FUNCTION KILL ends it")
}

/// Returns the text of the error reply to an `EXEC` that is refused because of `error`; both without the `-`
/// before them.
pub fn abort_because_of(error: &str) -> String {
    format!("EXECABORT Transaction discarded because of: {error}")
}

/// Returns the error that a client gets in place of the store's reply to `EXEC` (`reply`), if that is an
/// `-EXECABORT` which names no reason but "previous errors". The error contains `step_error`, the store's
/// error to one of the queued requests, given without its `-` and line end. None for any other reply.
pub fn reasoned_abort(reply: &[u8], step_error: &[u8]) -> Option<Vec<u8>> {
    let is_vague = reply.starts_with(b"-EXECABORT") && reply.windows(8).any(|words| words == b"previous");
    is_vague
        .then(|| [b"-EXECABORT Transaction discarded because of: ".as_slice(), step_error, b"\r\n"].concat())
}

/// Appends an `-OVERLOADED` reply with the reason, the backend's address and the time after which to retry. For speed,
/// it does without the formatting machinery, as [`throttled`] does.
fn overloaded(out: &mut Vec<u8>, reason: &str, backend: &str, retry_after: Duration) {
    for text in ["-OVERLOADED reason=", reason, " backend=", backend, " retry_after_ms="] {
        out.extend_from_slice(text.as_bytes());
    }
    encode::decimal(out, retry_after.as_millis() as i64);
    out.extend_from_slice(b"\r\n");
}

/// Appends a `-THROTTLED` reply that names the scope, the tenant (for a hot key, the key) and, if the quota is a
/// user's, the user; the limit and what remains of it; and the time after which to retry. During a flood most replies
/// are of this kind, so it avoids `core::fmt`, which is slower.
fn throttled(
    out: &mut Vec<u8>,
    [scope, tenant]: [&str; 2],
    user: Option<&str>,
    [limit, remaining]: [u64; 2],
    retry_after: Duration,
) {
    let retry_after_ms = (retry_after.as_micros() as u64).div_ceil(1_000).max(1);
    let mut text = |text: &str| out.extend_from_slice(text.as_bytes());
    text("-THROTTLED scope=");
    text(scope);
    text(" name=");
    text(tenant);
    if let Some(user) = user {
        text("/");
        text(user);
    }
    for (name, value) in
        [(" limit=", limit), (" remaining=", remaining), (" retry_after_ms=", retry_after_ms)]
    {
        out.extend_from_slice(name.as_bytes());
        encode::decimal(out, value.min(i64::MAX as u64) as i64);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_transaction_is_refused_as_one_while_its_store_is_busy() {
        for hides_work in [false, true] {
            let transaction = Nature::of_transaction(hides_work);
            let delete = Nature::new(transaction.class, transaction.effect(), hides_work);
            assert_eq!(transaction.hides_work(), hides_work);
            assert_eq!(NotSent::Busy.for_nature(transaction), NotSent::BusyForTransaction);
            assert_eq!(NotSent::Busy.for_nature(delete), NotSent::Busy);
            assert_eq!(NotSent::Full.for_nature(transaction), NotSent::Full);
        }
    }

    #[test]
    fn refusals_read_as_documented() {
        let mut out = Vec::new();
        Refusal::Unavailable {
            backend: "10.0.0.5:6379",
            reason: "ejected",
            retry_after: Duration::from_millis(900),
        }
        .encode(&mut out);
        assert_eq!(out, b"-UNAVAILABLE backend=10.0.0.5:6379 reason=ejected retry_after_ms=900\r\n");
        out.clear();
        Refusal::Overloaded { reason: "queue", backend: "a:1", retry_after: Duration::from_millis(12) }
            .encode(&mut out);
        assert_eq!(out, b"-OVERLOADED reason=queue backend=a:1 retry_after_ms=12\r\n");
        out.clear();
        let (tenant, retry_after) = ("acme", Duration::from_micros(36_001));
        Refusal::Throttled { scope: "tenant", tenant, user: None, limit: 5_000, remaining: 0, retry_after }
            .encode(&mut out);
        let user = Some("ann");
        Refusal::Throttled {
            scope: "user",
            tenant,
            user,
            limit: 10,
            remaining: 3,
            retry_after: Duration::ZERO,
        }
        .encode(&mut out);
        let lines = "-THROTTLED scope=tenant name=acme limit=5000 remaining=0 retry_after_ms=37\r\n\
                     -THROTTLED scope=user name=acme/ann limit=10 remaining=3 retry_after_ms=1\r\n";
        assert_eq!(String::from_utf8_lossy(&out), lines);
    }
}
