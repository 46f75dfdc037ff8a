//! What the control executor and the shards say to each other, over channels, and how each wakes the other.
//!
//! The channels have no bound of their own, because what goes through them has:
//!
//! | letters | at most |
//! |---|---|
//! | `Spent`, `Grants` | one per shard and period, and one for each that a request waits for; each `Spent` is answered once |
//! | `Ask`, `Answer` | `QUESTIONS_UNDER_WAY_MAX` per shard |
//! | `Report`, `Clients` | one per shard: there is one round of each at a time |
//! | `Explain`, `Explained` | two per connection to the admin port |
//! | `Quotas`, `Token`, `Check` | one per file that changed, or was posted: those bodies have a common bound |
//! | `Reload` | one that is carried out, and one behind it: those that came meanwhile are one |
//! | `Slots` | one per map: maps are a second apart, or differ by a slot that a node refused, or somebody asked for certainty |
//! | `SlotsConfirmed` | one per round of all primaries: four fifths of the time there is none |
//! | `Replicas` | one per shard and second, and one to control |
//! | `Map`, `Wanted` | one per map, and one per file of quotas |
//! | `SecureClient` | `TLS_IN_TRANSIT_MAX` over all shards |
//! | `Withdrawn` | one for each time that certificates are read again, and one per handshake that was under way then |
//! | `Said` | one for each time that certificates are read again, as many as `Withdrawn`, and one a minute |
//! | `Line` | one per shard, backend and second: a level lasts that long at least |
//! | `ToFleet`, `Fleet` | one per period, and one before it that is not taken yet |
//! | `Drain`, `HandOver`, `Listen`, `Stop`, `Drained`, `Deaf` | one per shard |
//! | `Moved` | one per client, once, and on to the thread that sends it |
//! | `Adopt` | one per client of the process before |
//! | `Takeover`, `ToTakeover` | one per attempt of a successor: the next is refused meanwhile |

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
use crate::control::{Exchange, QuotaSource, ShardReport};
use crate::routing::cluster::{Map, ReplicaState};
use crate::shard::{ClientsAsked, ClientsTold, Explained, Question, ReplyTo, Session};
use crate::store::EngineStatistics;
use crate::values::allowance::Report;
use crate::values::{BackendId, Grant, ShardId, StoreVersion, Timestamp};

/// From the control executor to a shard.
#[derive(Debug)]
pub(super) enum ToShard {
    /// Other quotas are in force.
    Quotas(Arc<Quotas>),
    /// What the pools of quotas can give.
    Grants(Vec<Grant>),
    /// Clients are told another version.
    StoreVersion(StoreVersion),
    /// The name of a store leads elsewhere.
    StoreMoved(BackendId),
    /// Who owns which slot of a cluster.
    Slots(Arc<Map>),
    /// All primaries of the cluster were asked from then on, and the map is what they say.
    SlotsConfirmed(Timestamp),
    /// How far its replicas are behind.
    Replicas(Arc<[ReplicaState]>),
    /// A client that has shaken hands.
    SecureClient(Box<SecureClient>),
    /// Certificates that clients have shown would be refused by now.
    Withdrawn,
    /// Say what you have counted.
    Report,
    /// A client of any shard wants something of all clients.
    Clients(Arc<ClientsAsked>),
    /// The reply to a question.
    Answer(ReplyTo, Vec<u8>),
    /// What would be decided of a command. The ticket comes back with the answer.
    Explain { query: Arc<ExplainQuery>, ticket: u64 },
    /// Stop accepting, finish, close, and say when you are done.
    Drain,
    /// Stop accepting, let clients go on in another process as soon as nothing of them is under way, and say when all have.
    HandOver,
    /// Accept clients: the process before does no more.
    Listen,
    /// A client that comes from another process.
    Adopt(Box<Moved>),
    /// The time for draining is over.
    Stop,
}

/// A client between two processes.
#[derive(Debug)]
pub(super) struct Moved {
    pub socket: OwnedFd,
    pub session: Session,
}

/// How it goes with another process that takes over from this one, or with one that this one takes over from.
#[derive(Debug)]
pub(super) enum Takeover {
    /// Something to tell.
    Line(String),
    /// It serves: this one hands its clients over and ends.
    Ready { pid: i32, version: String },
    /// The process before accepts no more.
    Listen,
    /// All clients were handed over.
    Done { clients: u64 },
}

/// From the control executor to the thread that talks with another process.
#[derive(Debug)]
pub(super) enum ToTakeover {
    /// Nobody accepts here any more.
    Deaf,
    /// A client that goes on there.
    Moved(Box<Moved>),
    /// There are no more of them.
    AllMoved,
    /// This process ends by itself: nobody takes over any more.
    Withdraw,
}

/// From a shard to the control executor.
#[derive(Debug)]
pub(super) enum ToControl {
    /// From the thread that talks with another process.
    Takeover(Takeover),
    /// A shard accepts no more, as it was told.
    Deaf,
    /// A client that goes on there.
    Moved(Box<Moved>),
    Report(ShardId, Box<ShardReport>),
    Engine(EngineStatistics),
    Ask(ReplyTo, Question),
    /// What a shard has to say about its clients.
    Clients(ShardId, ClientsTold),
    /// What would be decided of a command, or why that cannot be said.
    Explained {
        ticket: u64,
        told: Result<Explained, String>,
    },
    /// What was spent of quotas, and by whom.
    Spent(Report),
    /// Something that whoever looks after weir should read.
    Line(String),
    /// The same from a thread beside them, and what it is about.
    Said(log::Kind, String),
    /// No client is left, after `Drain`.
    Drained(ShardId),
    Signal(Signal),
    /// The pause before the next round of figures is over.
    RoundDue,
    Quotas(Box<QuotasRead>),
    /// The lowest version among the stores is another.
    StoreVersion(StoreVersion),
    /// The name of a store leads elsewhere, in words.
    StoreMoved(String),
    /// There is another map of the cluster, and why.
    Slots(Arc<Map>, String),
    /// How far replicas of the cluster are behind.
    Replicas(Arc<[ReplicaState]>),
    /// What the fleet's store said, or why it said nothing.
    Fleet {
        number: u64,
        answer: Result<Vec<u8>, String>,
    },
    /// The file of the admin token was read again.
    Token(Result<AdminToken, String>),
}

/// Quotas that were read and checked, to be put in force if they are right.
#[derive(Debug)]
pub(super) struct QuotasRead {
    pub source: QuotaSource,
    /// Of the request that brought them.
    pub ticket: Option<u64>,
    pub result: Result<Quotas, QuotaError>,
}

/// From the control executor to the thread that reads quotas.
#[derive(Debug)]
pub(super) enum ToQuotas {
    /// Read the quota file, whether it changed or not.
    Reload,
    /// Check what came over HTTP.
    Check { body: Vec<u8>, ticket: u64 },
}

/// From the control executor to the thread that asks replicas how far they are.
#[derive(Debug)]
pub(super) enum ToReplicas {
    /// There is another map.
    Map(Arc<Map>),
    /// Whether there are tenants whose reads they may answer.
    Wanted(bool),
}

/// From the control executor to the thread that asks the fleet's store: one question, and when its answer is of no use any more.
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

/// A channel together with a bell that wakes whoever reads it.
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
    /// A mailbox for an executor that sleeps on an eventfd: with the receiver of its letters.
    pub fn for_executor() -> io::Result<(Self, Receiver<Message>, OwnedFd)> {
        let handle = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let bell = handle.try_clone()?;
        Ok(Self::with(bell, handle))
    }

    /// A mailbox for a ring that receives from a socket. Not from an eventfd: the kernel does not reliably pass a signal
    /// of one eventfd on to another, which the ring signals in turn to wake its executor.
    pub fn for_ring() -> io::Result<(Self, Receiver<Message>, OwnedFd)> {
        let (bell, handle) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        Ok(Self::with(bell.into(), handle.into()))
    }

    fn with(bell: OwnedFd, handle: OwnedFd) -> (Self, Receiver<Message>, OwnedFd) {
        let (sender, receiver) = crossbeam_channel::unbounded();
        (Self { sender, bell: Arc::new(File::from(bell)) }, receiver, handle)
    }

    /// Puts a message into the channel and wakes the reader. Lost only if the reader is gone.
    pub fn post(&self, message: Message) {
        if self.sender.send(message).is_ok() {
            // It can only fail when so much was written that the reader is about to wake anyway. Eight bytes are what an
            // eventfd takes.
            let _ = (&*self.bell).write(&1_u64.to_ne_bytes());
        }
    }
}
