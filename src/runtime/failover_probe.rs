//! Asks each replica of a primary whose connection was lost whether it has become the primary, on a
//! short-lived thread per replica. A failover is noticed within about 50 ms of the replica's promotion, so
//! the regular rounds over the whole topology need not be frequent.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use super::asking::{self, Credentials, Question};
use super::clock::Clock;
use super::connect::Spot;
use super::tls::{Line, StoreTls};
use super::topology_thread::found;
use crate::routing::cluster::failover_probe::{Said, Watch, to_watch};
use crate::routing::cluster::{Map, NodeKey};
use crate::values::ServerAddress;
use crate::values::limits::CLUSTER_NODES_MAX;

/// The longest time that a replica may take to reply to `ROLE`; after that this attempt counts as unanswered.
const PATIENCE: Duration = Duration::from_secs(1);
/// The stack size, in bytes, of a thread that watches one replica.
const STACK_BYTES: usize = 256 * 1024;
/// Maximum number of bytes of a replica's reply to `ROLE`; a longer reply is an error.
const ANSWER_BYTES_MAX: usize = 4 * 1024;

/// The report that a thread no longer watches a replica, either because the replica has become a primary
/// (`took_over`) or because no failover is to be expected any more.
pub(super) struct News {
    replica: NodeKey,
    took_over: bool,
}

/// The replicas that are being watched because the connection to their primary was lost, so that a failover to
/// one of them is noticed at once.
pub(super) struct FailoverProbe {
    watched: Vec<NodeKey>,
    question: Arc<Question>,
    tls: Option<StoreTls>,
    clock: Clock,
    tell: Sender<News>,
    /// The channel on which the watching threads report to the topology thread that a replica is no longer
    /// watched.
    pub news: Receiver<News>,
}

impl FailoverProbe {
    pub fn new(credentials: Option<&Credentials>, tls: Option<StoreTls>, clock: Clock) -> Self {
        let question = Arc::new(Question::new(credentials, &[&["ROLE"]], ANSWER_BYTES_MAX));
        let (tell, news) = crossbeam_channel::bounded(CLUSTER_NODES_MAX);
        Self { watched: Vec::new(), question, tls, clock, tell, news }
    }

    /// Begins to watch the replicas of the primary `lost`, to which a connection was lost, each on a thread
    /// that asks it for its `ROLE`.
    pub fn handle_lost(&mut self, lost: NodeKey, map: &Map) {
        for replica in to_watch(map, lost, &self.watched) {
            let Some(address) = map.node_of(replica).and_then(|node| node.addresses.first()).cloned() else {
                continue;
            };
            if self.watch(replica, address).is_ok() {
                self.watched.push(replica);
            }
        }
    }

    /// Handles the report that a replica is no longer watched. Returns the replica if it has become a
    /// primary.
    pub fn handle_news(&mut self, news: &News) -> Option<NodeKey> {
        self.watched.retain(|replica| *replica != news.replica);
        news.took_over.then_some(news.replica)
    }

    fn watch(&self, replica: NodeKey, address: ServerAddress) -> io::Result<()> {
        let (question, tls, clock, tell) =
            (Arc::clone(&self.question), self.tls.clone(), self.clock, self.tell.clone());
        let watch = move || {
            let took_over =
                found(&address).is_some_and(|spot| took_over(&spot, tls.as_ref(), &question, clock));
            // The channel has room for as many messages as replicas can be watched.
            let _ = tell.try_send(News { replica, took_over });
        };
        thread::Builder::new()
            .name("weir-failover".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(watch)
            .map(|_| ())
    }
}

/// Asks a replica for its `ROLE` repeatedly. Returns true once it is a primary, and false when no failover is
/// to be expected any more: none has come for some time, or the replica has been connected to its primary again
/// for a while.
fn took_over(spot: &Spot, tls: Option<&StoreTls>, question: &Question, clock: Clock) -> bool {
    let mut watch = Watch::new(clock.now().monotonic);
    let mut line: Option<Line> = None;
    loop {
        let deadline = clock.now().monotonic.after(PATIENCE);
        let asked = || -> io::Result<Option<Said>> {
            let mut open = match line.take() {
                Some(line) => line,
                None => asking::connect(spot, tls, clock, deadline)?,
            };
            let replies = asking::ask_on(&mut open, question, clock, deadline)?;
            line = Some(open);
            Ok(replies.first().and_then(|role| Said::parse(role)))
        };
        let said = { asked }().unwrap_or_default();
        match watch.handle(said, clock.now().monotonic) {
            Some(pause) => thread::park_timeout(pause),
            None => return said == Some(Said::IsPrimary),
        }
    }
}
