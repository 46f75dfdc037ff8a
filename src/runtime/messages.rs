//! Messages between the control executor, the shards and the other threads, over channels, and how each wakes
//! the other.
//!
//! The channels have no bound of their own, because what goes through them has:
//!
//! | messages | at most |
//! |---|---|
//! | `Spent`, `Grants` | one per shard and period, and one for each that a request waits for; each `Spent` is answered once |
//! | `Ask`, `Answer` | `QUESTIONS_UNDER_WAY_MAX` per shard |
//! | `Report`, `Clients` | one per shard: at most one round of each is in progress |
//! | `Explain`, `Explained` | two per connection to the admin port |
//! | `Quotas`, `Token`, `Check` | one per file that changed or was posted; the bodies in memory have a common bound |
//! | `Reload` | one in progress, and one behind it that stands for all later ones |
//! | `Slots` | one per map: maps are a second apart, or differ by a slot that a node refused, or someone asked to confirm one |
//! | `SlotsConfirmed` | one per round of all primaries; there is none four fifths of the time |
//! | `Replicas` | one per shard and second, and one per second to the control executor |
//! | `ToStoreInfo`, `StoresTold` | one in progress |
//! | `Map`, `Wanted` | one per map, and one per version of the quotas |
//! | `SecureClient` | `TLS_IN_TRANSIT_MAX` over all shards |
//! | `Withdrawn` | one for each time that certificates are read again, and one per handshake in progress then |
//! | `Said` | one for each time that certificates are read again, as many as `Withdrawn`, one a minute, and one per accepting thread and second |
//! | `Line` | one per shard, backend and second, since a shedding level lasts at least that long |
//! | `ToFleet`, `Fleet` | one per period, and one before it that was not taken yet |
//! | `Drain`, `HandOver`, `Listen`, `Stop`, `Drained`, `Deaf` | one per shard |
//! | `DrainOver` | one |
//! | `Moved` | one per client to the control executor, and one more to the takeover thread |
//! | `Adopt` | one per client of the previous process |
//! | `Pause` | one per tenant with a `CLIENT PAUSE` in force at a takeover, and one for each ordered while clients move |
//! | `Takeover`, `ToTakeover` | one per attempt of a successor; the next is refused meanwhile |

use std::fs::File;
use std::io;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use super::log;
use super::tls::SecureClient;
use crate::config::{AdminToken, QuotaError, QuotaText, Quotas, TextDigest};
use crate::control::explain_page::ExplainQuery;
use crate::control::{Exchange, InheritedPart, QuotaSource, ShardReport, StoresTold};
use crate::routing::cluster::{Map, ReplicaState};
use crate::shard::{ClientsAsked, ClientsTold, Explained, Question, ReplyTo, Session};
use crate::store::EngineStatistics;
use crate::values::allowance::Report;
use crate::values::{BackendId, Grant, ShardId, StoreVersion, Timestamp};

/// A message from the control executor, or another thread, to a shard.
#[derive(Debug)]
pub(super) enum ToShard {
    /// Quotas that are in force from now on.
    Quotas(Arc<Quotas>),
    /// Amounts of quota that this core may spend, in reply to its report ([`ToControl::Spent`]).
    Grants(Vec<Grant>),
    /// The Redis version that clients are shown from now on (in HELLO and INFO).
    StoreVersion(StoreVersion),
    /// News that the host name of this store resolves to another address now: its connections are closed, and
    /// later ones lead there.
    StoreMoved(BackendId),
    /// A new map of the cluster: which node owns which slot.
    Slots(Arc<Map>),
    /// A confirmation of the cluster's map: all primaries were asked at or after this time, and agree with
    /// it.
    SlotsConfirmed(Timestamp),
    /// State of the cluster's replicas: how far each lags behind its primary.
    Replicas(Arc<[ReplicaState]>),
    /// A client whose TLS handshake is done, to be served by this shard.
    SecureClient(Box<SecureClient>),
    /// An order to close clients whose TLS certificates are no longer accepted, because certificates or
    /// revocation lists have been read again.
    Withdrawn,
    /// A request for the shard's counters, answered with `ToControl::Report`.
    Report,
    /// A request for data about all clients of the shard (for `CLIENT LIST`, say), answered with
    /// `ToControl::Clients`.
    Clients(Arc<ClientsAsked>),
    /// The reply to a client's request that the control executor answered, and the request that it belongs
    /// to.
    Answer(ReplyTo, Vec<u8>),
    /// A request to explain how weir would treat a command. The shard sends the ticket back with its
    /// explanation.
    Explain { query: Arc<ExplainQuery>, ticket: u64 },
    /// An order to drain: stop accepting, reply to the requests that have been started, close clients, and
    /// report `ToControl::Drained`.
    Drain,
    /// An order to hand over: stop accepting, pass each client to the successor process once it has no
    /// request in flight, and report `ToControl::Drained` when all are gone.
    HandOver,
    /// An order to begin accepting clients, because the previous process (from which this one takes over) has
    /// stopped accepting, or has not done so in 5 s.
    Listen,
    /// A client handed over by the previous process, to be served by this shard.
    Adopt(Box<Moved>),
    /// A `CLIENT PAUSE` or `CLIENT UNPAUSE` of the previous process, which holds for this shard's clients too.
    /// No client waits for the answer.
    Pause(Arc<ClientsAsked>),
    /// An order to end the shard's loop at once: all clients are gone or moved to a successor process, the time
    /// for that is over, or a second signal to stop has come.
    Stop,
}

/// A client's socket and session state, on the way from one process to another in a takeover.
#[derive(Debug)]
pub(super) struct Moved {
    pub socket: OwnedFd,
    pub session: Session,
}

/// An event in a takeover, sent to the control executor by the thread that communicates with the other
/// process.
#[derive(Debug)]
pub(super) enum Takeover {
    /// A line about the takeover for the log.
    Line(String),
    /// The successor process is ready: this process hands its clients over and ends.
    Ready { pid: i32, version: String },
    /// Quotas that were posted to the previous process. `file` is the digest of the quota file that they have replaced
    /// there, in hexadecimal digits; none without a file. `taken` is dropped once all shards have them, or they are
    /// refused.
    Quotas { read: Box<QuotasRead>, file: Option<String>, taken: Sender<()> },
    /// Parts of the quotas that the fleet shares which the previous process used last, with which this one goes
    /// on.
    Parts(Vec<InheritedPart>),
    /// A `CLIENT PAUSE` or `CLIENT UNPAUSE` of the previous process, which the shards have got.
    Pause(Arc<ClientsAsked>),
    /// An order to begin accepting at the admin port, and clients with TLS, because the previous process has
    /// stopped accepting, or has not done so in 5 s.
    Listen,
    /// News that all clients, `clients` in number, were handed over to the successor process, so that this one
    /// ends.
    Done { clients: u64 },
}

/// A message from the control executor to the thread that communicates with another process in a takeover.
#[derive(Debug)]
pub(super) enum ToTakeover {
    /// Quotas that were posted to this process, or to one before it, and are in force.
    Quotas(Box<QuotasMoved>),
    /// A `CLIENT PAUSE` or `CLIENT UNPAUSE` that is to hold in the successor process too.
    Pause(Arc<ClientsAsked>),
    /// Parts of the quotas that the fleet shares which this process uses, for the successor to go on with.
    Parts(Vec<InheritedPart>),
    /// News that all shards have stopped accepting clients, so that the successor may begin to accept.
    Deaf,
    /// A client to be handed to the successor process.
    Moved(Box<Moved>),
    /// News that all clients have been sent to the successor, so that the takeover is complete.
    AllMoved,
    /// An order to end the thread that waits for a successor, because this process is to end: no successor
    /// may take over any more, and a takeover in progress is given up.
    Withdraw,
}

/// A message from a shard, or another thread, to the control executor.
#[derive(Debug)]
pub(super) enum ToControl {
    /// An event while this process hands over to another or takes over from one, from the thread that
    /// communicates with that process.
    Takeover(Takeover),
    /// News that a shard has stopped accepting clients, as ordered because of a takeover.
    Deaf,
    /// A client to hand over to the successor process.
    Moved(Box<Moved>),
    Report(ShardId, Box<ShardReport>),
    Engine(EngineStatistics),
    Ask(ReplyTo, Question),
    /// A shard's data about its clients, for a request such as CLIENT LIST.
    Clients(ShardId, ClientsTold),
    /// A shard's explanation of how weir would treat a command, or the reason why there is none.
    Explained {
        ticket: u64,
        told: Result<Explained, String>,
    },
    /// A shard's report of the amounts that it spent from token buckets, and of the prices of tenants'
    /// requests.
    Spent(Report),
    /// A line for the log about a backend: its level of load shedding changed, or the backend (or a replica
    /// of a cluster) was ejected (taken out of use) or is used again.
    Line(String),
    /// A line for the log from another thread, and the kind of event that it is about.
    Said(log::Kind, String),
    /// A shard that was ordered to drain, or to hand its clients over, has no client left.
    Drained(ShardId),
    /// News that the time for draining (`--drain-timeout`), or for handing clients over to a successor, is
    /// over, so that the remaining clients are closed.
    DrainOver,
    Signal(Signal),
    /// News that the pause before the next collection of all shards' counters is over.
    RoundDue,
    Quotas(Box<QuotasRead>),
    /// The lowest Redis version among the stores, which has changed, so that all shards are sent it.
    StoreVersion(StoreVersion),
    /// The stores' own `INFO`, as the control executor had asked for.
    StoresTold(StoresTold),
    /// A line for the log: a store's host name resolves to another address.
    StoreMoved(String),
    /// A new map of the cluster (which node owns which slot), and the reason why it was asked for, in words.
    Slots(Arc<Map>, String),
    /// State of the cluster's replicas: how far each lags behind its primary.
    Replicas(Arc<[ReplicaState]>),
    /// The reply of the fleet's store (Redis server with the counters of shared quotas) to the exchange with
    /// this number, or the reason why there is none.
    Fleet {
        number: u64,
        answer: Result<Vec<u8>, String>,
    },
    /// The admin token as read from its file again, or the reason why it could not be read.
    Token(Result<AdminToken, String>),
}

/// Quotas that were read and checked, or the errors in them. The control executor puts them in force if they
/// are valid.
#[derive(Debug)]
pub(super) struct QuotasRead {
    pub source: QuotaSource,
    /// The number of the HTTP request that posted the quotas, by which the control executor finds the request to
    /// answer; none if the quotas come from the quota file or from the previous process.
    pub ticket: Option<u64>,
    pub result: Result<Quotas, QuotaError>,
    /// The text of quotas that were posted, to this process or to the one before, which a successor process is
    /// given; none if they come from the quota file, or are refused.
    pub posted: Option<QuotaText>,
}

/// Quotas that were posted, on the way to a process that takes over.
#[derive(Debug)]
pub(super) struct QuotasMoved {
    pub text: QuotaText,
    /// The digest of the quota file that the posted quotas have replaced; none without a file.
    pub file: Option<TextDigest>,
}

/// A message from the control executor to the thread that reads quotas.
#[derive(Debug)]
pub(super) enum ToQuotas {
    /// An order to read the quota file (and a file with the admin token) again, whether it has changed or
    /// not.
    Reload,
    /// An order to check quotas that were posted over HTTP. The result comes back with the ticket.
    Check { body: Vec<u8>, ticket: u64 },
}

/// A message from the control executor to the thread that asks stores for their `INFO`. The thread asks them
/// now, and posts [`ToControl::StoresTold`].
#[derive(Debug)]
pub(super) struct ToStoreInfo {
    /// True to ask stores for all sections of `INFO`; false for the default ones, which take a store less
    /// time.
    pub everything: bool,
    /// Indices (backend numbers) of the stores to be asked for their `INFO`; `None` for all.
    pub only: Option<Vec<usize>>,
}

/// A message from the control executor to the thread that asks replicas for their replication lag.
#[derive(Debug)]
pub(super) enum ToReplicas {
    /// A new map of the cluster, whose nodes are asked from now on.
    Map(Arc<Map>),
    /// True if any tenant of the quotas in force reads from replicas; otherwise replicas are not asked for
    /// their lag.
    Wanted(bool),
}

/// A message from the control executor to the thread that communicates with the fleet's store (Redis server
/// with the counters of shared quotas): an exchange, and the time after which its reply is of no use.
#[derive(Debug)]
pub(super) struct ToFleet {
    pub exchange: Exchange,
    pub deadline: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Terminate,
    Reload,
}

/// The sending end of a channel to another thread, with a descriptor (`bell`) to which senders write, so that
/// the reader wakes.
pub(super) struct Mailbox<Message> {
    sender: Sender<Message>,
    bell: Arc<File>,
}

impl<Message> Clone for Mailbox<Message> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<Message> Mailbox<Message> {
    /// Makes a mailbox for an executor that sleeps on an eventfd. Returns also the receiver of the messages and
    /// the eventfd. Fails if the process may open no more files.
    pub fn for_executor() -> io::Result<(Self, Receiver<Message>, OwnedFd)> {
        let handle = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let bell = handle.try_clone()?;
        Ok(Self::with(bell, handle))
    }

    /// Makes a mailbox for a core whose `io_uring` receives from a socket; returns also the receiver of the
    /// messages and that socket. The socket is not an eventfd, because the kernel does not reliably pass a
    /// signal of one eventfd on to another, which the ring signals in turn to wake its executor. Fails if the
    /// process may open no more files.
    pub fn for_ring() -> io::Result<(Self, Receiver<Message>, OwnedFd)> {
        let (bell, handle) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        Ok(Self::with(bell.into(), handle.into()))
    }

    fn with(bell: OwnedFd, handle: OwnedFd) -> (Self, Receiver<Message>, OwnedFd) {
        let (sender, receiver) = crossbeam_channel::unbounded();
        (Self { sender, bell: Arc::new(File::from(bell)) }, receiver, handle)
    }

    /// Sends a message to the thread that reads this mailbox, and wakes it. The message is lost only if the
    /// thread is gone.
    pub fn post(&self, message: Message) {
        if self.sender.send(message).is_ok() {
            // The write fails only when so much was written that the reader is about to wake anyway. Eight
            // bytes are what an eventfd takes.
            let _ = (&*self.bell).write(&1_u64.to_ne_bytes());
        }
    }
}
