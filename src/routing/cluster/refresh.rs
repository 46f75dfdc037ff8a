//! When nodes are asked for their views, and which.
//!
//! | what happened | is asked |
//! |---|---|
//! | MOVED, READONLY, CLUSTERDOWN, a lost link | at once; again after 1 s at least, doubling to 10 s while nothing changes |
//! | a replica of a primary that is away says that it took over | at once, that replica among others |
//! | somebody has to be sure that nothing has changed | all primaries, at once, but for a fifth of the time at most |
//! | nothing | every 10 s, give or take a fifth |
//! | ASK | not: the slot is where it was |
//! | nobody answered | again like that, the seeds and the known nodes in turn |
//!
//! One round at a time: what happens while one is under way asks for another, since its answers may be older.

use std::time::Duration;

use super::map::{Map, NodeKey, Role};
use crate::values::limits::CLUSTER_VIEWS_MAX;
use crate::values::{Random, Timestamp};

/// Rounds that were asked for begin so long after each other at least, and a part more by chance.
const GAP_LEAST: Duration = Duration::from_secs(1);
const GAP_MOST: Duration = Duration::from_secs(10);
const GAP_CHANCE: f64 = 0.25;
/// Without any need, a round begins so long after the last has ended.
const PERIOD: Duration = Duration::from_secs(10);
const PERIOD_CHANCE: f64 = 0.2;
/// After a round of all primaries the next is so many times as far away as that took, and at least and at most so far.
const PAUSE_TIMES: u32 = 4;
const PAUSE_LEAST: Duration = Duration::from_millis(5);
const PAUSE_MOST: Duration = Duration::from_millis(500);
/// Nodes that are remembered for not being there.
const LOST_MAX: usize = 16;

/// Why a map may be old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A slot has moved to this node; or this node said so, if the map does not know where to.
    Moved(Option<NodeKey>),
    /// This node has become a replica.
    ReadOnly(NodeKey),
    /// This node thinks that the cluster does not work.
    ClusterDown(NodeKey),
    /// A connection to a node was lost, or could not be made: others know more.
    LinkLost(Option<NodeKey>),
    /// This replica says that it is a primary now.
    TookOver(NodeKey),
    /// Nothing speaks against it, but somebody has to know: all primaries are asked.
    Unsure,
}

/// Who is to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// These nodes: three at most, or all primaries.
    Nodes(Vec<NodeKey>),
    /// These of the seeds, by their places in the list, three at most.
    Seeds(Vec<usize>),
}

/// What came of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is a new map.
    Changed,
    /// All is as it was.
    Unchanged,
    /// There was no view to look at.
    NobodyAnswered,
}

/// When to ask, and whom.
#[derive(Clone, Debug)]
pub struct Refresh {
    random: Random,
    seeds: usize,
    /// The seed that is asked next.
    next_seed: usize,
    /// How far apart rounds are that were asked for.
    gap: Duration,
    /// Before that, no round begins that was asked for.
    not_before: Timestamp,
    /// The next round without need.
    due: Timestamp,
    wanted: bool,
    /// All primaries are to be asked, and not before then; when the last round began.
    unsure: bool,
    sure_not_before: Timestamp,
    began: Timestamp,
    /// Whether the round under way was wanted.
    under_way: Option<bool>,
    ask_seeds: bool,
    /// Who should be among those asked; the last that were named.
    named: Vec<NodeKey>,
    /// Who cannot be reached, it seems, and is asked only if nobody else is there; the last of them.
    lost: Vec<NodeKey>,
}

impl Refresh {
    /// The first round is due at once, with the seeds, of which there are so many.
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

    /// The map may be old.
    pub fn handle_reason(&mut self, reason: Reason) {
        if reason == Reason::Unsure {
            self.unsure = true;
            return;
        }
        self.wanted = true;
        match reason {
            // One place is left for somebody who has nothing to do with it.
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

    /// The round under way is over.
    pub fn handle_outcome(&mut self, outcome: Outcome, now: Timestamp) {
        let Some(was_wanted) = self.under_way.take() else { return };
        let pause = now.since(self.began).saturating_mul(PAUSE_TIMES).clamp(PAUSE_LEAST, PAUSE_MOST);
        self.sure_not_before = now.after(pause);
        match outcome {
            Outcome::Changed => {
                self.gap = GAP_LEAST;
                self.lost.clear();
            }
            // A round that nobody asked for says nothing about how often to ask.
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

    /// When `poll_round` should be called at the latest; nothing while a round is under way.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        if self.under_way.is_some() {
            None
        } else {
            let sure = if self.unsure { self.sure_not_before } else { Timestamp::MAX };
            Some(self.due_at().min(sure))
        }
    }

    /// When the next round is due that is not about all primaries.
    fn due_at(&self) -> Timestamp {
        if self.wanted { self.not_before.min(self.due) } else { self.due }
    }

    /// Begins a round, if it is time: these are to be asked, and `handle_outcome` says what came of it.
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
            // After a while in which nobody asked, the first is at once, and the next soon.
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

    /// Those that were named, and others by chance: primaries that work first, then replicas, then any.
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

    /// The next seeds, around and around.
    fn choose_seeds(&mut self) -> Vec<usize> {
        let first = self.next_seed;
        let count = self.seeds.min(CLUSTER_VIEWS_MAX);
        self.next_seed = (first + count) % self.seeds.max(1);
        (first..first + count).map(|seed| seed % self.seeds).collect()
    }
}

/// One of a few that were named last.
fn note(list: &mut Vec<NodeKey>, node: NodeKey, most: usize) {
    list.retain(|noted| *noted != node);
    list.push(node);
    if list.len() > most {
        list.remove(0);
    }
}
