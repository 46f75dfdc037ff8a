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
//! | `Said` | one for each time that certificates are read again, as many as `Withdrawn`, and one a minute |
//! | `Line` | one per shard, backend and second, since a shedding level lasts at least that long |
//! | `ToFleet`, `Fleet` | one per period, and one before it that was not taken yet |
//! | `Drain`, `HandOver`, `Listen`, `Stop`, `Drained`, `Deaf` | one per shard |
//! | `DrainOver` | one |
//! | `Moved` | one per client to the control executor, and one more to the takeover thread |
//! | `Adopt` | one per client of the previous process |
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
use crate::config::{AdminToken, QuotaError, Quotas};
use crate::control::explain_page::ExplainQuery;
use crate::control::{Exchange, QuotaSource, ShardReport, StoresTold};
use crate::routing::cluster::{Map, ReplicaState};
use crate::shard::{ClientsAsked, ClientsTold, Explained, Question, ReplyTo, Session};
use crate::store::EngineStatistics;
use crate::values::allowance::Report;
use crate::values::{BackendId, Grant, ShardId, StoreVersion, Timestamp};

/// A message from the control executor, or another thread, to a shard.
#[derive(Debug)]
pub(super) enum ToShard {
    /// New quotas are in force.
    Quotas(Arc<Quotas>),
    /// Amounts that the pools of quotas grant to this core.
    Grants(Vec<Grant>),
    /// Another Redis version is shown to clients from now on (HELLO, INFO).
    StoreVersion(StoreVersion),
    /// The name of a store has another address.
    StoreMoved(BackendId),
    /// A new map of the cluster: which node owns which slot.
    Slots(Arc<Map>),
    /// The map was confirmed: all primaries were asked at or after this time, and agree with it.
    SlotsConfirmed(Timestamp),
    /// The replication lag of the cluster's replicas.
    Replicas(Arc<[ReplicaState]>),
    /// A client whose TLS handshake is done, to be served by this shard.
    SecureClient(Box<SecureClient>),
    /// Clients whose certificates would not be accepted any more are to be closed.
    Withdrawn,
    /// A request for the shard's counters, answered with `ToControl::Report`.
    Report,
    /// A request for something about all clients (CLIENT LIST, say), answered with `ToControl::Clients`.
    Clients(Arc<ClientsAsked>),
    /// The reply to a client's question that the control executor answered.
    Answer(ReplyTo, Vec<u8>),
    /// A request to explain what would be decided for a command. The ticket comes back with the answer.
    Explain { query: Arc<ExplainQuery>, ticket: u64 },
    /// An order to drain: stop accepting, answer what was taken on, close clients, and report
    /// `ToControl::Drained`.
    Drain,
    /// An order to hand over: stop accepting, pass each client to the successor process once nothing of it is
    /// under way, and report when all are gone.
    HandOver,
    /// An order to accept clients: the previous process has stopped.
    Listen,
    /// A client handed over by the previous process, to be served by this shard.
    Adopt(Box<Moved>),
    /// An order to stop at once: the time for draining is over.
    Stop,
}

/// A client's socket and session on the way between two processes.
#[derive(Debug)]
pub(super) struct Moved {
    pub socket: OwnedFd,
    pub session: Session,
}

/// An event in a takeover, on either side of it.
#[derive(Debug)]
pub(super) enum Takeover {
    /// A line about the takeover for the log.
    Line(String),
    /// The successor serves: this process hands its clients over and ends.
    Ready { pid: i32, version: String },
    /// The previous process has stopped accepting at the admin port, so this process starts.
    Listen,
    /// All clients were handed over to the successor.
    Done { clients: u64 },
}

/// A message from the control executor to the thread that talks with another process in a takeover.
#[derive(Debug)]
pub(super) enum ToTakeover {
    /// All shards have stopped accepting.
    Deaf,
    /// A client to hand over to the successor.
    Moved(Box<Moved>),
    /// The last client was sent to the successor.
    AllMoved,
    /// Ends the thread that waits for a successor, because this process was told to stop: no successor may
    /// take over any more, and a takeover under way is given up.
    Withdraw,
}

/// A message from a shard, or another thread, to the control executor.
#[derive(Debug)]
pub(super) enum ToControl {
    /// An event in a takeover, from the thread that talks with the other process.
    Takeover(Takeover),
    /// A shard has stopped accepting, as it was told.
    Deaf,
    /// A client to hand over to the successor process.
    Moved(Box<Moved>),
    Report(ShardId, Box<ShardReport>),
    Engine(EngineStatistics),
    Ask(ReplyTo, Question),
    /// A shard's answer to a question about all clients.
    Clients(ShardId, ClientsTold),
    /// The explanation of a command by a shard, or why there is none.
    Explained {
        ticket: u64,
        told: Result<Explained, String>,
    },
    /// A shard's report of what it spent of quotas, and on whose behalf.
    Spent(Report),
    /// A line for the log about a backend: its shedding level changed, or it, or a replica, was ejected or is
    /// used again.
    Line(String),
    /// A line for the log from another thread, and its kind.
    Said(log::Kind, String),
    /// A shard has no client left, after `Drain` or `HandOver`.
    Drained(ShardId),
    /// `--drain-timeout` is over: clients that are left are closed.
    DrainOver,
    Signal(Signal),
    /// The pause before the next round of counters is over.
    RoundDue,
    Quotas(Box<QuotasRead>),
    /// The lowest Redis version among the stores changed.
    StoreVersion(StoreVersion),
    /// The stores' answers to a [`ToStoreInfo`].
    StoresTold(StoresTold),
    /// Log line: the name of a store resolves to another address.
    StoreMoved(String),
    /// A new map of the cluster, and the reason for it.
    Slots(Arc<Map>, String),
    /// The replication lag of the cluster's replicas.
    Replicas(Arc<[ReplicaState]>),
    /// The answer of the fleet's store, or why there is none.
    Fleet {
        number: u64,
        answer: Result<Vec<u8>, String>,
    },
    /// The admin token was read from its file again, or could not be.
    Token(Result<AdminToken, String>),
}

/// Quotas that were read and checked, to be put in force if they are right.
#[derive(Debug)]
pub(super) struct QuotasRead {
    pub source: QuotaSource,
    /// The ticket of the HTTP request that posted them; none if they come from the file.
    pub ticket: Option<u64>,
    pub result: Result<Quotas, QuotaError>,
}

/// A message from the control executor to the thread that reads quotas.
#[derive(Debug)]
pub(super) enum ToQuotas {
    /// An order to read the quota file, whether it changed or not.
    Reload,
    /// An order to check quotas that were posted over HTTP.
    Check { body: Vec<u8>, ticket: u64 },
}

/// A message from the control executor to the thread that asks stores for their `INFO`: ask now, and answer with
/// [`ToControl::StoresTold`].
#[derive(Debug)]
pub(super) struct ToStoreInfo {
    /// True to ask for all sections; false for the default ones, which take a store less time.
    pub everything: bool,
    /// Indices of the stores to ask; `None` for all.
    pub only: Option<Vec<usize>>,
}

/// A message from the control executor to the thread that asks replicas for their replication lag.
#[derive(Debug)]
pub(super) enum ToReplicas {
    /// The cluster has a new map.
    Map(Arc<Map>),
    /// Whether any tenant reads from replicas; if not, replicas are not asked.
    Wanted(bool),
}

/// A message from the control executor to the thread that asks the fleet's store: an exchange, and the time
/// after which its answer is of no use.
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

/// The sending end of a channel, with a bell that wakes its reader.
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
    /// Makes a mailbox for an executor that sleeps on an eventfd. Returns also the receiver and the eventfd.
    pub fn for_executor() -> io::Result<(Self, Receiver<Message>, OwnedFd)> {
        let handle = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let bell = handle.try_clone()?;
        Ok(Self::with(bell, handle))
    }

    /// Makes a mailbox for a ring that receives from a socket. It is not an eventfd, because the kernel does
    /// not reliably pass a signal of one eventfd on to another, which the ring signals in turn to wake its
    /// executor.
    pub fn for_ring() -> io::Result<(Self, Receiver<Message>, OwnedFd)> {
        let (bell, handle) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        Ok(Self::with(bell.into(), handle.into()))
    }

    fn with(bell: OwnedFd, handle: OwnedFd) -> (Self, Receiver<Message>, OwnedFd) {
        let (sender, receiver) = crossbeam_channel::unbounded();
        (Self { sender, bell: Arc::new(File::from(bell)) }, receiver, handle)
    }

    /// Sends a message and wakes the reader. The message is lost only if the reader is gone.
    pub fn post(&self, message: Message) {
        if self.sender.send(message).is_ok() {
            // The write fails only when so much was written that the reader is about to wake anyway. Eight
            // bytes are what an eventfd takes.
            let _ = (&*self.bell).write(&1_u64.to_ne_bytes());
        }
    }
}
