//! Arrows: rules by which one cluster (a value with its write and its reads) comes before another.
//!
//! There are as many arrows of time as pairs of clusters, so they are not listed. A line of points stands for
//! them, one for each reply, in the order of time: a cluster leads to the point of its first reply, a point
//! to the next, and the last point before a cluster's last command leads to that cluster.

use super::super::operation::{Act, Operation, Way};
use super::clusters::Clusters;
use super::{Rules, Verdict, explain, is_binding};
use weir::values::Timestamp;

/// All arrows (rules by which one comes before another) between the clusters of a key; a cluster is a value
/// with its write and its reads.
pub struct Arrows {
    /// Pairs of operations, by index, that the same connection sent in this order and that belong to
    /// different clusters (a cluster is the write of a value and its reads).
    pub sent_earlier: Vec<(u32, u32)>,
    /// The rules of time by which one cluster (a value's write and its reads) comes before another: one that counts all
    /// operations as answered first and, if reads may be stale, one that counts only acknowledged writes and deletes
    /// through weir.
    pub lines: Vec<Line>,
}

/// A rule of time by which one cluster (a value of a key with its write and its reads) comes before another: a counted
/// operation of the first was answered before one of the second was asked (or, for a read that may be stale, before the
/// earliest time whose state it may show).
pub struct Line {
    /// For each cluster (a value of a key with its write and its reads), the index of its operation that was
    /// answered first; `None` if the rule counts no operation of the cluster.
    pub answered_first: Vec<Option<u32>>,
    /// For each cluster (a value of a key with its write and its reads), the index of its operation that was asked
    /// last, and the time by which the rule says it was asked: earlier than in fact for a read that may be stale.
    pub asked_last: Vec<(u32, Timestamp)>,
}

impl Arrows {
    pub fn of(operations: &[Operation], clusters: &Clusters, rules: &Rules, verdict: &mut Verdict) -> Self {
        let mut lines = vec![Line::of(operations, clusters, |_| true, |operation| rules.start(operation))];
        if !rules.ttl.is_zero() {
            lines.push(Line::of(operations, clusters, is_binding, |operation| operation.asked));
        }
        Self { sent_earlier: sent_earlier(operations, clusters, rules, verdict), lines }
    }
}

impl Line {
    fn of(
        operations: &[Operation],
        clusters: &Clusters,
        counts: impl Fn(&Operation) -> bool,
        start: impl Fn(&Operation) -> Timestamp,
    ) -> Self {
        let mut line = Self {
            answered_first: vec![None; clusters.count()],
            asked_last: (0..clusters.count())
                .map(|cluster| (clusters.head(cluster) as u32, Timestamp::ZERO))
                .collect(),
        };
        for (index, operation) in operations.iter().enumerate() {
            let Some(cluster) = clusters.cluster(index) else { continue };
            let first = &mut line.answered_first[cluster];
            let earlier = first.is_none_or(|first| operation.answered < operations[first as usize].answered);
            if counts(operation) && operation.answered < Timestamp::MAX && earlier {
                *first = Some(index as u32);
            }
            let started = start(operation);
            if started >= line.asked_last[cluster].1 {
                line.asked_last[cluster] = (index as u32, started);
            }
        }
        line
    }

    /// Returns the two operations, by index, because of which the cluster numbered `from` comes before the cluster
    /// numbered `to` (a cluster is a value of a key with its write and its reads): the first was answered before the
    /// second was asked, or could at the earliest have seen the key. `None` if there are no such two.
    pub fn arrow(&self, operations: &[Operation], from: usize, to: usize) -> Option<(usize, usize)> {
        let first = self.answered_first[from]? as usize;
        let (last, started) = self.asked_last[to];
        (operations[first].answered < started).then_some((first, last as usize))
    }
}

/// Returns pairs of operations, by index, of different clusters (a cluster is a value of a key with its
/// write and its reads): the second followed the first on the same connection, and so takes effect after it.
/// A contradiction within one cluster is recorded in `verdict`.
fn sent_earlier(
    operations: &[Operation],
    clusters: &Clusters,
    rules: &Rules,
    verdict: &mut Verdict,
) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    // The operations of the connection that the next one must come after: its newest operation that was no
    // plain read, and its reads since then.
    let mut before: Vec<usize> = Vec::new();
    for (index, operation) in operations.iter().enumerate() {
        let Some(cluster) = clusters.cluster(index).filter(|_| operation.way != Way::Unnamed) else {
            continue;
        };
        before.retain(|earlier| operations[*earlier].session == operation.session);
        for earlier in &before {
            let former = &operations[*earlier];
            if !rules.keeps_up(former, operation) {
                continue;
            }
            if clusters.cluster(*earlier) != Some(cluster) {
                found.push((*earlier as u32, index as u32));
            } else if matches!(operation.act, Act::Write { .. }) {
                verdict.note(|| explain::two(former, "found", operation, "was sent behind it"));
            }
        }
        if matches!(operation.act, Act::Read(_)) {
            // A read that is at least as new as another one replaces it from now on.
            before.retain(|earlier| {
                let former = &operations[*earlier];
                !matches!(former.act, Act::Read(_)) || !rules.keeps_up(former, operation)
            });
        } else {
            before.clear();
        }
        before.push(index);
    }
    found
}
