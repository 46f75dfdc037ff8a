//! Finds clusters (values with their write and reads) each of which comes before the other, so that no order
//! of them exists.

use std::collections::{HashMap, HashSet, VecDeque};

use super::super::operation::Operation;
use super::arrows::Arrows;
use super::clusters::Clusters;
use super::{EXPLAINED_MAX, Verdict, explain};
use weir::values::Timestamp;

pub fn find(operations: &[Operation], clusters: &Clusters, arrows: &Arrows, verdict: &mut Verdict) {
    let mut graph = Graph::of(operations, clusters, arrows);
    let circles = graph.circles(clusters.count());
    if !circles.is_empty() {
        graph.name_arrows(arrows);
    }
    let mut explained = HashSet::new();
    for circle in circles {
        // One cluster of the circle may be right; the others are counted.
        verdict.violations += circle.len() as u64 - 1;
        for cluster in &circle {
            if verdict.explained.len() >= EXPLAINED_MAX {
                break;
            }
            let steps = graph.shortest(operations, arrows, &circle, *cluster as usize);
            let mut members: Vec<usize> = steps.iter().map(|(from, _)| *from).collect();
            members.sort_unstable();
            if explained.insert(members) {
                verdict.explained.push(explain::circle(operations, &steps));
            }
        }
    }
}

/// A graph of what comes before what. Its nodes are the clusters (values with their write and reads), and
/// after them points in time (replies, see `arrows.rs`). Node `n` leads to the nodes
/// `targets[starts[n]..starts[n + 1]]`.
struct Graph<'a> {
    clusters: &'a Clusters,
    starts: Vec<u32>,
    targets: Vec<u32>,
    /// For two clusters (values with their write and reads), by number, the indices of two operations that
    /// one connection sent in this order and that put the first cluster before the second.
    sent_earlier: HashMap<(usize, usize), (usize, usize)>,
}

impl<'a> Graph<'a> {
    fn of(operations: &[Operation], clusters: &'a Clusters, arrows: &Arrows) -> Self {
        let mut edges: Vec<(u32, u32)> = Vec::new();
        for (from, to) in &arrows.sent_earlier {
            let ends = [from, to].map(|operation| clusters.cluster(*operation as usize));
            if let [Some(from), Some(to)] = ends {
                edges.push((from as u32, to as u32));
            }
        }
        let mut nodes = clusters.count();
        for line in &arrows.lines {
            let answered = line.answered_first.iter().enumerate();
            let mut points: Vec<(Timestamp, u32)> = answered
                .filter_map(|(cluster, first)| {
                    Some((operations[(*first)? as usize].answered, cluster as u32))
                })
                .collect();
            points.sort_unstable();
            for (place, (_, cluster)) in points.iter().enumerate() {
                let point = (nodes + place) as u32;
                edges.push((*cluster, point));
                if place + 1 < points.len() {
                    edges.push((point, point + 1));
                }
            }
            for (cluster, (_, asked)) in line.asked_last.iter().enumerate() {
                let earlier = points.partition_point(|(answered, _)| answered < asked);
                if earlier > 0 {
                    edges.push(((nodes + earlier - 1) as u32, cluster as u32));
                }
            }
            nodes += points.len();
        }
        edges.sort_unstable();
        let mut starts = vec![0; nodes + 1];
        for (from, _) in &edges {
            starts[*from as usize + 1] += 1;
        }
        for node in 0..nodes {
            starts[node + 1] += starts[node];
        }
        let targets = edges.into_iter().map(|(_, to)| to).collect();
        Self { clusters, starts, targets, sent_earlier: HashMap::new() }
    }

    /// Fills the map from two clusters to the operations of one connection that put one before the other
    /// (`sent_earlier`), which only explanations of contradictions need.
    fn name_arrows(&mut self, arrows: &Arrows) {
        for (earlier, later) in
            arrows.sent_earlier.iter().map(|(one, other)| (*one as usize, *other as usize))
        {
            let ends = [earlier, later].map(|operation| self.clusters.cluster(operation));
            if let [Some(from), Some(to)] = ends {
                self.sent_earlier.entry((from, to)).or_insert((earlier, later));
            }
        }
    }

    fn nodes(&self) -> usize {
        self.starts.len() - 1
    }

    fn next(&self, node: usize) -> &[u32] {
        &self.targets[self.starts[node] as usize..self.starts[node + 1] as usize]
    }

    /// Returns the strongly connected components of the graph (Tarjan) that contain several clusters (values
    /// with their write and reads), by number: these clusters come before each other, which is a
    /// contradiction. A single cluster that leads back to itself is none.
    fn circles(&self, clusters: usize) -> Vec<Vec<u32>> {
        const NEW: u32 = u32::MAX;
        let mut order = vec![NEW; self.nodes()];
        let mut lowest = vec![0_u32; self.nodes()];
        let mut is_open = vec![false; self.nodes()];
        let (mut open, mut path, mut count) = (Vec::new(), Vec::new(), 0);
        let mut found = Vec::new();
        for root in 0..clusters {
            if order[root] != NEW {
                continue;
            }
            path.push((root as u32, 0_usize));
            while let Some((node, taken)) = path.last_mut() {
                let at = *node as usize;
                if *taken == 0 && order[at] == NEW {
                    (order[at], lowest[at], is_open[at]) = (count, count, true);
                    count += 1;
                    open.push(at as u32);
                }
                let next = self.next(at).get(*taken).copied();
                *taken += 1;
                if let Some(next) = next {
                    if order[next as usize] == NEW {
                        path.push((next, 0));
                    } else if is_open[next as usize] {
                        lowest[at] = lowest[at].min(order[next as usize]);
                    }
                    continue;
                }
                path.pop();
                if let Some((parent, _)) = path.last() {
                    let parent = *parent as usize;
                    lowest[parent] = lowest[parent].min(lowest[at]);
                }
                if lowest[at] == order[at] {
                    let begin = open.iter().rposition(|node| *node as usize == at).unwrap_or(0);
                    let component = open.split_off(begin);
                    component.iter().for_each(|node| is_open[*node as usize] = false);
                    let members: Vec<u32> =
                        component.into_iter().filter(|node| (*node as usize) < clusters).collect();
                    if members.len() > 1 {
                        found.push(members);
                    }
                }
            }
        }
        found
    }

    /// Returns a short circle through `cluster`, one of the clusters (values with their write and reads) in
    /// `circle`: the pairs of operations, by index, by which each cluster comes before the next. Empty if
    /// none is found.
    fn shortest(
        &self,
        operations: &[Operation],
        arrows: &Arrows,
        circle: &[u32],
        cluster: usize,
    ) -> Vec<(usize, usize)> {
        let others = circle.iter().map(|other| *other as usize).filter(|other| *other != cluster);
        for other in others {
            let there = self.arrow(operations, arrows, cluster, other);
            let Some(there) = there else { continue };
            if let Some(back) = self.arrow(operations, arrows, other, cluster) {
                return vec![there, back];
            }
        }
        let members: HashSet<usize> = circle.iter().map(|member| *member as usize).collect();
        let Some(other) = self.way(cluster, |node| node != cluster && members.contains(&node)) else {
            return Vec::new();
        };
        let far = *other.last().unwrap_or(&cluster);
        let back = self.way(far, |node| node == cluster).unwrap_or_default();
        let around: Vec<usize> = other.into_iter().chain(back.into_iter().skip(1)).collect();
        around.windows(2).filter_map(|pair| self.arrow(operations, arrows, pair[0], pair[1])).collect()
    }

    /// Returns a path with as few clusters as possible from cluster `from` to another cluster for which
    /// `is_goal` holds: the clusters on it, both ends included. `None` if there is no path. A cluster is a
    /// value with its write and reads.
    fn way(&self, from: usize, is_goal: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
        let clusters = self.clusters.count();
        let mut came_from = vec![usize::MAX; self.nodes()];
        let mut ahead = VecDeque::from([(from, from)]);
        while let Some((node, parent)) = ahead.pop_front() {
            if came_from[node] != usize::MAX {
                continue;
            }
            came_from[node] = parent;
            if node != from && is_goal(node) {
                let mut way = vec![node];
                let mut at = node;
                while at != from {
                    at = came_from[at];
                    if at < clusters {
                        way.push(at);
                    }
                }
                way.reverse();
                return Some(way);
            }
            for next in self.next(node).iter().map(|next| *next as usize) {
                if next < clusters { ahead.push_back((next, node)) } else { ahead.push_front((next, node)) }
            }
        }
        None
    }

    /// Returns the two operations, by index, by which cluster `from` comes directly before cluster `to` (a
    /// cluster is a value with its write and reads); `None` if it does not.
    fn arrow(
        &self,
        operations: &[Operation],
        arrows: &Arrows,
        from: usize,
        to: usize,
    ) -> Option<(usize, usize)> {
        let by_time = arrows.lines.iter().find_map(|line| line.arrow(operations, from, to));
        by_time.or_else(|| self.sent_earlier.get(&(from, to)).copied())
    }
}
