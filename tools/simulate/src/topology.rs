//! Who asks the nodes of a cluster for their views, as weir's own thread for that does: after doubts and now and then, a few nodes or
//! all of them. What it finds out reaches each core when it does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::cluster::Cluster;
use weir::routing::cluster::heirs::{Said, Watch, to_watch};
use weir::routing::cluster::{Ask, Cluster as Known, Map, NodeKey, Outcome, Reason, Refresh, View};
use weir::shard::Doubt;
use weir::values::{Random, Timestamp};

/// What came of a round.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub map: Option<Arc<Map>>,
    /// When the round began, if all primaries were asked, and say just what the map says.
    pub sure_of: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) struct Topology {
    known: Known,
    refresh: Refresh,
    began: Timestamp,
    views: Vec<View>,
    awaited: usize,
    /// Somebody has asked since the last round.
    is_wanted: bool,
    /// When it will look whether a round is due.
    pub due: Option<Timestamp>,
    /// Replicas that are asked whether they have taken over.
    heirs: BTreeMap<NodeKey, Watch>,
}

impl Topology {
    /// It has asked everybody once.
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
            heirs: BTreeMap::new(),
        }
    }

    pub fn map(&self) -> Arc<Map> {
        Arc::clone(self.known.map())
    }

    /// A core has reason to think that the map is old. The next map, if it said what is new.
    pub fn hear(&mut self, doubt: Doubt) -> Option<Arc<Map>> {
        self.is_wanted = true;
        self.refresh.handle_reason(doubt.reason);
        self.known.patch(doubt.moved.as_slice())
    }

    /// The replicas that are asked from now on because a core has lost a connection to a node.
    pub fn heirs_of(&mut self, doubt: Doubt, now: Timestamp) -> Vec<NodeKey> {
        let Reason::LinkLost(Some(lost)) = doubt.reason else { return Vec::new() };
        let watched: Vec<NodeKey> = self.heirs.keys().copied().collect();
        let heirs = to_watch(self.known.map(), lost, &watched);
        self.heirs.extend(heirs.iter().map(|heir| (*heir, Watch::new(now))));
        heirs
    }

    /// What a replica has said, if anything. When it is asked again.
    pub fn heir_told(&mut self, heir: NodeKey, said: Option<Said>, now: Timestamp) -> Option<Duration> {
        let again = self.heirs.get_mut(&heir)?.handle(said, now);
        if again.is_none() {
            self.heirs.remove(&heir);
            if said == Some(Said::IsPrimary) {
                self.is_wanted = true;
                self.refresh.handle_reason(Reason::TookOver(heir));
            }
        }
        again
    }

    /// When a round is due. In the end there is none that nobody asked for.
    pub fn next(&self, is_over: bool) -> Option<Timestamp> {
        self.refresh.poll_deadline().filter(|_| self.is_wanted || !is_over)
    }

    /// The nodes that are to be asked, if it is time.
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

    /// A node has told what it knows, or has not. What is known in the end, if it was the last one.
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

/// How long news may take from there to a core, and back: mostly not long.
pub(super) fn delay_of_news(longest: Duration, random: &mut Random) -> Duration {
    let longest = if random.per_mille(800) { longest / 20 } else { longest };
    Duration::from_nanos(random.below(longest.as_nanos() as u64 + 1))
}
