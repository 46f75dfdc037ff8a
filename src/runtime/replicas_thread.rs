//! Asks the nodes of a cluster for their replication offsets, once a second, on a thread of its own, as long
//! as some tenant reads from replicas; otherwise it sleeps.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvError, RecvTimeoutError};

use super::asking::{self, Credentials, Question};
use super::clock::Clock;
use super::messages::{Mailbox, ToControl, ToReplicas, ToShard};
use super::tls::StoreTls;
use super::topology_thread::found;
use crate::routing::cluster::{Answer, Map, NodeKey, ReplicaState, Replicas, Replication};
use crate::values::Timestamp;

/// The interval between the starts of two rounds of questions, in each of which all nodes of the cluster are
/// asked for their replication offsets.
const PERIOD: Duration = Duration::from_secs(1);
/// The least pause between the end of one round of questions to all nodes of the cluster and the start of the
/// next.
const PAUSE_LEAST: Duration = Duration::from_millis(100);
/// The longest time that a node may take to reply to `INFO replication`; after that the node counts as
/// unanswered.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of cluster nodes that are asked at the same time, each by a thread of its own; the others
/// wait.
const ASKED_AT_ONCE: usize = 8;
/// Maximum number of bytes of a node's reply to `INFO replication`; a longer reply is an error.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The thread's state: the cluster's map, and the mailboxes of the shards and the control executor, to which
/// it reports replication lag.
pub(super) struct ReplicasThread {
    pub shards: Vec<Mailbox<ToShard>>,
    pub control: Mailbox<ToControl>,
    pub letters: Receiver<ToReplicas>,
    pub map: Arc<Map>,
    /// True while the quotas in force let some tenant read from replicas; otherwise the nodes are not asked.
    pub is_wanted: bool,
    pub tls: Option<StoreTls>,
    pub clock: Clock,
}

impl ReplicasThread {
    /// Starts the thread that asks the nodes of a cluster for their replication offsets, which ends when the
    /// control executor drops its end of the channel. `credentials` are weir's own at the nodes; None if it does
    /// not authenticate there. Fails if the thread cannot be started.
    pub fn start(self, credentials: Option<&Credentials>) -> io::Result<()> {
        let requests: [&[&str]; 1] = [&["INFO", "replication"]];
        let question = Question::new(credentials, &requests, ANSWER_BYTES_MAX);
        thread::Builder::new().name("weir-replicas".to_owned()).spawn(move || self.run(&question)).map(|_| ())
    }

    fn run(mut self, question: &Question) {
        let mut known = Replicas::default();
        let mut due = self.clock.now().monotonic;
        loop {
            let letter = if self.is_wanted {
                self.letters.recv_timeout(due.since(self.clock.now().monotonic))
            } else {
                self.letters.recv().map_err(|RecvError| RecvTimeoutError::Disconnected)
            };
            match letter {
                Ok(ToReplicas::Map(map)) => self.map = map,
                Ok(ToReplicas::Wanted(is_wanted)) => {
                    if self.is_wanted && !is_wanted {
                        self.tell(&Arc::default());
                    }
                    self.is_wanted = is_wanted;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let began = self.clock.now().monotonic;
                    let mut answers = Vec::new();
                    for nodes in Replicas::to_ask(&self.map) {
                        let ask = |node: &NodeKey| self.ask(*node, question);
                        let take = |answer| answers.push(answer);
                        asking::ask_each(("weir-replicas", ASKED_AT_ONCE), &nodes, ask, take);
                    }
                    self.tell(&known.handle_answers(&self.map, &answers));
                    due = began.after(PERIOD).max(self.clock.now().monotonic.after(PAUSE_LEAST));
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn tell(&self, states: &Arc<[ReplicaState]>) {
        self.shards.iter().for_each(|shard| shard.post(ToShard::Replicas(Arc::clone(states))));
        self.control.post(ToControl::Replicas(Arc::clone(states)));
    }

    fn ask(&self, node: NodeKey, question: &Question) -> Answer {
        let asked_at = self.clock.now().monotonic;
        Answer { node, asked_at, told: self.told(node, question, asked_at.after(PATIENCE)) }
    }

    fn told(&self, node: NodeKey, question: &Question, deadline: Timestamp) -> Option<Replication> {
        let spot = self.map.node_of(node)?.addresses.iter().find_map(found)?;
        let replies = asking::ask(&spot, self.tls.as_ref(), question, self.clock, deadline).ok()?;
        Replication::parse(replies.first()?)
    }
}
