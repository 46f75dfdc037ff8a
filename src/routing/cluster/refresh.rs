//! Schedule of cluster refreshes: when nodes are asked for their views, and which.
//!
//! | event | when nodes are asked, and which |
//! |---|---|
//! | MOVED, READONLY, CLUSTERDOWN, a lost link | at once; again after 1 s at least, doubling to 10 s while nothing changes |
//! | a replica of a primary that is away says that it took over | at once, that replica among others |
//! | a caller has to be certain that nothing has changed | all primaries, at once, but for a fifth of the time at most |
//! | nothing | every 10 s, give or take a fifth |
//! | ASK | none: the slot is where it was |
//! | no node answered | as after MOVED, the seeds and the known nodes in turn |
//!
//! One round at a time: a reason that comes while one is under way asks for another round, since its answers
//! may be older.

use std::time::Duration;

use super::map::{Map, NodeKey, Role};
use crate::values::limits::CLUSTER_VIEWS_MAX;
use crate::values::{Random, Timestamp};

/// Shortest time between the starts of two rounds (questions to some nodes at once) that begin because the
/// map may be old. Only a replica that takes over is asked earlier.
const GAP_LEAST: Duration = Duration::from_secs(1);
/// Longest pause, before a random addition, between the starts of two rounds (questions to some nodes at
/// once) that have a reason. The pause begins at 1 s and doubles up to this while rounds find no change of
/// the map.
const GAP_MOST: Duration = Duration::from_secs(10);
/// The least time between two rounds (questions to some nodes at once) that have a reason is prolonged at
/// random by up to this part of itself.
const GAP_CHANCE: f64 = 0.25;
/// Time between the end of a round (questions to some nodes at once) and the next one if there is no reason
/// to ask for the map earlier.
const PERIOD: Duration = Duration::from_secs(10);
/// The time between two rounds (questions to some nodes at once) without a reason is shortened or prolonged
/// at random by up to this part of itself.
const PERIOD_CHANCE: f64 = 0.2;
/// Pause after any round (questions about the map to some nodes at once) before a round in which all primaries
/// are asked may begin, as a multiple of the earlier round's duration.
const PAUSE_TIMES: u32 = 4;
/// Shortest pause after any round (questions about the map to some nodes at once) before a round in which all
/// primaries are asked may begin.
const PAUSE_LEAST: Duration = Duration::from_millis(5);
/// Longest pause after any round (questions about the map to some nodes at once) before a round in which all
/// primaries are asked may begin.
const PAUSE_MOST: Duration = Duration::from_millis(500);
/// Maximum number of nodes that are remembered as unreachable; of more, the one that was noted first is
/// forgotten.
const LOST_MAX: usize = 16;

/// Reason why the map of slots may be old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A slot has moved to this node. If the map does not have that node, this is the node that sent the
    /// redirect instead; None if that is not known either.
    Moved(Option<NodeKey>),
    /// This node refused a write because it is a replica now.
    ReadOnly(NodeKey),
    /// This node replied CLUSTERDOWN.
    ClusterDown(NodeKey),
    /// A connection to this node was lost, or could not be made: other nodes may know why. None if the node
    /// is not in the map.
    LinkLost(Option<NodeKey>),
    /// This replica reports that it is a primary now.
    TookOver(NodeKey),
    /// Nothing happened, but a caller needs certainty that the map is right: all primaries are asked.
    Unsure,
}

/// Nodes to ask for their views of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Nodes in the map: at most three, or all that may hold keys.
    Nodes(Vec<NodeKey>),
    /// Configured addresses of nodes (seeds), by their indices in the list of seeds, at most three.
    Seeds(Vec<usize>),
}

/// Result of a round, in which some nodes of the cluster were asked for their views of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The views led to a new map, which is in force.
    Changed,
    /// The nodes' views of the cluster agree with the slot map in force.
    Unchanged,
    /// No node sent a view that could be used.
    NobodyAnswered,
}

/// Schedule of the rounds in which some nodes are asked for their views of the cluster, and the choice of
/// these nodes.
#[derive(Clone, Debug)]
pub struct Refresh {
    random: Random,
    seeds: usize,
    /// Index in the list of configured addresses (seeds) of the one that is asked next.
    next_seed: usize,
    /// Least time between two rounds (questions to some nodes at once) that have a reason; it doubles while
    /// nothing changes.
    gap: Duration,
    /// Time before which no round of questions to nodes begins just because of a reason to doubt the map.
    not_before: Timestamp,
    /// Time of the next round of questions to nodes about the map if there is no reason to ask earlier.
    due: Timestamp,
    wanted: bool,
    /// True if all primaries are to be asked for the map.
    unsure: bool,
    /// Time before which no round begins in which all primaries are asked for the map.
    sure_not_before: Timestamp,
    /// Time at which the last round of questions to nodes began.
    began: Timestamp,
    /// The round of questions to nodes in progress: true if a reported reason to doubt the map began it,
    /// false if it was only due, or asks all primaries for certainty. None if no round is in progress.
    under_way: Option<bool>,
    ask_seeds: bool,
    /// Nodes to ask in the next round: those that the reported reasons to doubt the map named.
    named: Vec<NodeKey>,
    /// Nodes that seem unreachable. They are asked for the map only if there are too few other nodes.
    lost: Vec<NodeKey>,
}

impl Refresh {
    /// Creates the schedule of the rounds in which nodes are asked for their views of the cluster. The first
    /// round is due at once, with some of the configured addresses of nodes (seeds), whose number is `seeds`.
    pub fn new(seeds: usize, mut random: Random) -> Self {
        let next_seed = random.index(seeds.max(1));
        Self {
            random,
            seeds,
            next_seed,
            gap: GAP_LEAST,
            not_before: Timestamp::ZERO,
            due: Timestamp::ZERO,
            wanted: true,
            unsure: false,
            sure_not_before: Timestamp::ZERO,
            began: Timestamp::ZERO,
            under_way: None,
            ask_seeds: true,
            named: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// Handles a reason why the map may be old, which may make the next round of questions to nodes begin
    /// earlier.
    pub fn handle_reason(&mut self, reason: Reason) {
        if reason == Reason::Unsure {
            self.unsure = true;
            return;
        }
        self.wanted = true;
        match reason {
            // One of the nodes asked in a round must have nothing to do with the reason, so one place is kept
            // free.
            Reason::Moved(Some(node)) | Reason::ReadOnly(node) | Reason::ClusterDown(node) => {
                note(&mut self.named, node, CLUSTER_VIEWS_MAX - 1);
            }
            Reason::TookOver(node) => {
                note(&mut self.named, node, CLUSTER_VIEWS_MAX - 1);
                self.not_before = Timestamp::ZERO;
            }
            Reason::LinkLost(Some(node)) => note(&mut self.lost, node, LOST_MAX),
            Reason::Moved(None) | Reason::LinkLost(None) | Reason::Unsure => {}
        }
    }

    /// Ends the round of questions to nodes that is in progress, with its result, and plans the next one.
    pub fn handle_outcome(&mut self, outcome: Outcome, now: Timestamp) {
        let Some(was_wanted) = self.under_way.take() else { return };
        let pause = now.since(self.began).saturating_mul(PAUSE_TIMES).clamp(PAUSE_LEAST, PAUSE_MOST);
        self.sure_not_before = now.after(pause);
        match outcome {
            Outcome::Changed => {
                self.gap = GAP_LEAST;
                self.lost.clear();
            }
            // Only rounds that had a reason change the interval between rounds.
            Outcome::Unchanged if was_wanted => self.gap = (self.gap * 2).min(GAP_MOST),
            Outcome::Unchanged => {}
            Outcome::NobodyAnswered => {
                self.gap = if was_wanted { (self.gap * 2).min(GAP_MOST) } else { self.gap };
                self.ask_seeds = !self.ask_seeds;
                self.wanted = true;
            }
        }
        if outcome != Outcome::NobodyAnswered {
            self.ask_seeds = false;
        }
        let chance = 1.0 - PERIOD_CHANCE + 2.0 * PERIOD_CHANCE * self.random.unit();
        self.due = now.after(PERIOD.mul_f64(chance));
    }

    /// Returns the time at which the next round of questions to nodes is due, so that `poll_round` is to be
    /// called; None while a round is in progress.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        if self.under_way.is_some() {
            None
        } else {
            let sure = if self.unsure { self.sure_not_before } else { Timestamp::MAX };
            Some(self.due_at().min(sure))
        }
    }

    /// Returns the time at which the next round of questions to nodes is due, apart from rounds in which all
    /// primaries are asked.
    fn due_at(&self) -> Timestamp {
        if self.wanted { self.not_before.min(self.due) } else { self.due }
    }

    /// Begins a round of questions if one is due, and returns the nodes to ask; the caller then calls
    /// `handle_outcome` with the result. None if no round is due.
    pub fn poll_round(&mut self, map: &Map, now: Timestamp) -> Option<Ask> {
        if self.poll_deadline().is_none_or(|at| at > now) {
            return None;
        }
        self.began = now;
        if self.due_at() > now {
            self.unsure = false;
            self.under_way = Some(false);
            let all: Vec<NodeKey> = map.stores().map(|node| node.key).collect();
            let is_known = !all.is_empty();
            return Some(if is_known { Ask::Nodes(all) } else { Ask::Seeds(self.choose_seeds()) });
        }
        if self.wanted {
            // After a while without reasons, the first round is at once, and the next soon.
            if now.since(self.not_before) >= GAP_MOST {
                self.gap = GAP_LEAST;
            }
            self.not_before = now.after(self.gap.mul_f64(1.0 + GAP_CHANCE * self.random.unit()));
        }
        self.under_way = Some(std::mem::take(&mut self.wanted));
        let named = std::mem::take(&mut self.named);
        let nodes = self.choose(map, named);
        self.ask_seeds |= nodes.is_empty();
        Some(if self.ask_seeds { Ask::Seeds(self.choose_seeds()) } else { Ask::Nodes(nodes) })
    }

    /// Chooses at most three nodes to ask for their views: those that the reasons to doubt the map named
    /// (`chosen`), and others at random: primaries that work first, then replicas, then any.
    fn choose(&mut self, map: &Map, mut chosen: Vec<NodeKey>) -> Vec<NodeKey> {
        chosen.retain(|key| map.node_of(*key).is_some_and(|node| !node.addresses.is_empty()));
        let mut others: Vec<(u8, u64, NodeKey)> = map
            .nodes()
            .filter(|node| !chosen.contains(&node.key) && !node.addresses.is_empty())
            .map(|node| {
                let is_away = node.failed || self.lost.contains(&node.key);
                let rank = u8::from(node.role != Role::Primary) + 2 * u8::from(is_away);
                (rank, self.random.bits(), node.key)
            })
            .collect();
        others.sort_unstable();
        let missing = CLUSTER_VIEWS_MAX - chosen.len();
        chosen.extend(others.into_iter().take(missing).map(|(_, _, key)| key));
        chosen
    }

    /// Chooses which of the configured addresses of nodes (seeds) to ask next, at most three in rotation, and
    /// returns their indices.
    fn choose_seeds(&mut self) -> Vec<usize> {
        let first = self.next_seed;
        let count = self.seeds.min(CLUSTER_VIEWS_MAX);
        self.next_seed = (first + count) % self.seeds.max(1);
        (first..first + count).map(|seed| seed % self.seeds).collect()
    }
}

/// Adds a node to the end of a list of at most `most` nodes, or moves it there; of more, the oldest is
/// dropped.
fn note(list: &mut Vec<NodeKey>, node: NodeKey, most: usize) {
    list.retain(|noted| *noted != node);
    list.push(node);
    if list.len() > most {
        list.remove(0);
    }
}
