//! Asks the nodes of a cluster for their views, like weir's control thread: after doubts of cores and at
//! intervals, a few nodes or all of them. The resulting map reaches each core with a delay.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::cluster::Cluster;
use weir::routing::cluster::failover_probe::{Said, Watch, to_watch};
use weir::routing::cluster::{Ask, Cluster as Known, Map, NodeKey, Outcome, Reason, Refresh, View};
use weir::shard::Doubt;
use weir::values::limits::SLOTS;
use weir::values::{Random, Timestamp};

/// The result of a round in which nodes were asked for their views of the cluster: a new map (owners of
/// slots), if there is one, and whether all primaries confirm it.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub map: Option<Arc<Map>>,
    /// The time at which the round began, if all primaries were asked for their views and agree with the map;
    /// `None` otherwise.
    pub sure_of: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) struct Topology {
    known: Known,
    refresh: Refresh,
    began: Timestamp,
    views: Vec<View>,
    awaited: usize,
    /// True if another round, in which nodes are asked for their views, is wanted: since the last round
    /// began, a core of weir has reported that its map may be outdated, a replica has taken over, or no node
    /// has answered.
    is_wanted: bool,
    /// The earliest time for which the next round, in which nodes are asked for their views, is planned;
    /// `None` if none is.
    pub due: Option<Timestamp>,
    /// Replicas that are asked whether they have taken over, because weir has lost the connection to their
    /// primary.
    watched: BTreeMap<NodeKey, Watch>,
}

impl Topology {
    /// Creates the simulated thread that finds the owners of slots for weir, after a first round in which at
    /// most three nodes are asked.
    pub fn new(cluster: &Cluster, nodes: u16, mut random: Random) -> Self {
        let mut known = Known::default();
        let views: Vec<View> =
            (0..nodes.min(3)).map(|node| cluster.view(node, Timestamp::ZERO, &mut random)).collect();
        known.apply(&views);
        let mut refresh = Refresh::new(usize::from(nodes), random);
        refresh.poll_round(known.map(), Timestamp::ZERO);
        refresh.handle_outcome(Outcome::Changed, Timestamp::ZERO);
        Self {
            known,
            refresh,
            began: Timestamp::ZERO,
            views: Vec::new(),
            awaited: 0,
            is_wanted: false,
            due: None,
            watched: BTreeMap::new(),
        }
    }

    pub fn map(&self) -> Arc<Map> {
        Arc::clone(self.known.map())
    }

    /// Handles a core's report (`doubt`) that its map of slots may be outdated: makes a round due in which
    /// nodes are asked for their views. Returns a new map if the report names the new owner of a slot; else
    /// `None`.
    pub fn hear(&mut self, doubt: Doubt) -> Option<Arc<Map>> {
        self.is_wanted = true;
        self.refresh.handle_reason(doubt.reason);
        self.known.patch(doubt.moved.as_slice())
    }

    /// Returns the replicas that are to be asked from now on whether they have taken over, because a core
    /// has lost its connection to their primary.
    pub fn replicas_of(&mut self, doubt: Doubt, now: Timestamp) -> Vec<NodeKey> {
        let Reason::LinkLost(Some(lost)) = doubt.reason else { return Vec::new() };
        let watched: Vec<NodeKey> = self.watched.keys().copied().collect();
        let found = to_watch(self.known.map(), lost, &watched);
        self.watched.extend(found.iter().map(|replica| (*replica, Watch::new(now))));
        found
    }

    /// Handles a replica's reply to ROLE, which tells whether the replica has taken over; `said` is `None` if
    /// none came. Returns the pause until the replica is sent ROLE again; `None` if it is not.
    pub fn replica_told(&mut self, replica: NodeKey, said: Option<Said>, now: Timestamp) -> Option<Duration> {
        let again = self.watched.get_mut(&replica)?.handle(said, now);
        if again.is_none() {
            self.watched.remove(&replica);
            if said == Some(Said::IsPrimary) {
                self.is_wanted = true;
                self.refresh.handle_reason(Reason::TookOver(replica));
            }
        }
        again
    }

    /// Returns the time of the next round in which nodes are asked for their views, if one is planned. At the
    /// end of the world (`is_over`), a planned round counts only if there is a reason for it, such as a
    /// core's report.
    pub fn next(&self, is_over: bool) -> Option<Timestamp> {
        self.refresh.poll_deadline().filter(|_| self.is_wanted || !is_over)
    }

    /// Begins a round in which nodes are asked for their views, if one is due. Returns the indices of the
    /// nodes to ask; empty if no round is due.
    pub fn begin(&mut self, now: Timestamp) -> Vec<u16> {
        let map = self.map();
        let asked: Vec<u16> = match self.refresh.poll_round(&map, now) {
            None => return Vec::new(),
            Some(Ask::Seeds(seeds)) => seeds.into_iter().map(|seed| seed as u16).collect(),
            Some(Ask::Nodes(nodes)) => nodes.into_iter().map(|node| node.backend.0).collect(),
        };
        self.is_wanted = false;
        (self.began, self.awaited) = (now, asked.len());
        asked
    }

    /// Takes the view of the cluster that a node has reported; `None` if the node did not answer. When all
    /// nodes of the round have been heard, returns its result; before that, `None`.
    pub fn told(&mut self, view: Option<View>, now: Timestamp) -> Option<Found> {
        self.views.extend(view);
        self.awaited -= 1;
        if self.awaited > 0 {
            return None;
        }
        let views = std::mem::take(&mut self.views);
        let applied = self.known.apply(&views);
        let outcome = applied.outcome(&views);
        self.is_wanted |= outcome == Outcome::NobodyAnswered;
        self.refresh.handle_outcome(outcome, now);
        let is_sure = applied.is_sure(&views, self.known.map());
        Some(Found { map: applied.map, sure_of: is_sure.then_some(self.began) })
    }
}

/// Draws the delay of a message about the cluster to a core of weir or from it: mostly at most a twentieth
/// of `longest`, else at most `longest`.
pub(super) fn delay_of_news(longest: Duration, random: &mut Random) -> Duration {
    let longest = if random.per_mille(800) { longest / 20 } else { longest };
    Duration::from_nanos(random.below(longest.as_nanos() as u64 + 1))
}

/// Describes a map of the cluster for the list of events: its nodes, and the ranges of slots that each owns.
pub(super) fn described(map: &Map) -> String {
    let mut told = format!("map {}:", map.version());
    for node in map.nodes() {
        let own = Some(node.key.backend);
        let failed = if node.failed { " failed" } else { "" };
        _ = write!(told, " {}{failed} epoch {} {:?}", node.key.backend.0, node.epoch, node.role);
        let slots: Vec<u16> = (0..SLOTS).filter(|slot| map.owner(*slot) == own).collect();
        for range in slots.chunk_by(|one, next| one + 1 == *next) {
            let by_redirect = if map.is_hearsay(range[0]) { "?" } else { "" };
            _ = write!(told, " {}..={}{by_redirect}", range[0], range[range.len() - 1]);
        }
        told.push(';');
    }
    told
}
