//! Descriptions of replicas that answer reads: how far they are behind, how many reads they answered, and why
//! one is not used.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Totals;
use super::exposition::{Exposition, Kind};
use crate::routing::cluster::{NodeKey, ReplicaState};
use crate::shard::ReaderFigures;
use crate::values::Timestamp;
use crate::values::limits::REPLICA_LAG_MAX;

/// Facts about the replicas of a cluster for the page `/cluster` and the metrics of replicas: whether reads may go to
/// replicas, and the replication state of each replica by what the nodes reported last.
#[derive(Clone, Debug, Default)]
pub struct ReplicaFacts {
    /// True if the store is a cluster, and reads from replicas are not switched off.
    pub is_on: bool,
    /// True if there are tenants with `stale_reads`, whose reads replicas may answer.
    pub is_wanted: bool,
    /// The replication state of each replica of the cluster, as last reported.
    pub states: Arc<[ReplicaState]>,
}

fn figures_at(totals: Option<&Totals>, node: NodeKey) -> impl Iterator<Item = &ReaderFigures> + Clone {
    let place = usize::from(node.backend.0);
    totals.into_iter().flat_map(|totals| &totals.shards).filter_map(move |report| report.readers.get(place))
}

impl ReplicaFacts {
    /// Returns a description, as JSON, of the replica `node` for the page `/cluster`: whether reads go to it
    /// and why not, how far it is behind, and how many reads it answered. `totals` has the counters of all
    /// shards; without them the number of reads is 0, and an ejection of the replica does not show.
    pub(super) fn told(&self, node: NodeKey, totals: Option<&Totals>, now: Timestamp) -> Value {
        let state = self.states.iter().find(|state| state.node == node);
        let figures = figures_at(totals, node);
        let why_not = self.why_not(state, figures.clone(), now);
        let lag = state.and_then(|state| state.as_of).map(|as_of| now.since(as_of).as_secs_f64());
        json!({
            "used": why_not.is_none(),
            "why_not": why_not,
            "lag_seconds_at_most": lag,
            "behind_bytes": state.and_then(|state| state.behind_bytes),
            "heard_of_primary_seconds_ago": state.and_then(|state| state.heard_seconds),
            "reads_answered": figures.map(|own| own.answered).sum::<u64>(),
        })
    }

    fn why_not<'a>(
        &self,
        state: Option<&ReplicaState>,
        mut figures: impl Iterator<Item = &'a ReaderFigures> + Clone,
        now: Timestamp,
    ) -> Option<&'static str> {
        let known = state.and_then(|state| state.as_of);
        if !self.is_on {
            Some("it is switched off (--disable replicas)")
        } else if !self.is_wanted {
            Some("no tenant has stale_reads")
        } else if let Some(unfit) = state.and_then(|state| state.unfit) {
            Some(unfit)
        } else if known.is_none_or(|as_of| now.since(as_of) > REPLICA_LAG_MAX) {
            Some("it may be too far behind")
        } else if figures.clone().next().is_some() && figures.all(|own| own.is_out) {
            Some("it failed or was slow, and is ejected for a while")
        } else {
            None
        }
    }
}

/// Writes the metrics of replicas: reads and ejections, summed over all cores, and the lag. Nothing if no
/// state of a replica is known.
pub(super) fn write_replicas(
    page: &mut Exposition,
    backends: &[String],
    facts: &ReplicaFacts,
    totals: &Totals,
    now: Timestamp,
) {
    if facts.states.is_empty() {
        return;
    }
    let named = || {
        // A place whose node has just left the map has no name; its state is told for a moment longer.
        let name = |state: &ReplicaState| {
            let name = backends.get(usize::from(state.node.backend.0)).map(String::as_str);
            name.filter(|name| !name.is_empty())
        };
        facts.states.iter().filter_map(move |state| Some((state, name(state)?)))
    };
    let sums = |state: &ReplicaState, figure: fn(&ReaderFigures) -> u64| {
        figures_at(Some(totals), state.node).map(figure).sum::<u64>()
    };
    let help = "Reads that a replica answered.";
    let mut family = page.family("weir_replica_reads_total", help, Kind::Counter);
    for (state, backend) in named() {
        family.sample(&[("backend", backend)], sums(state, |own| own.answered));
    }
    let help = "Times a shard ejected a replica for a while, by reason.";
    let mut family = page.family("weir_replica_ejections_total", help, Kind::Counter);
    for (state, backend) in named() {
        for (index, reason) in ["failures", "slow"].into_iter().enumerate() {
            let count = figures_at(Some(totals), state.node).map(|own| own.out[index]).sum::<u64>();
            family.sample(&[("backend", backend), ("reason", reason)], count);
        }
    }
    let help = "Shards that have ejected a replica now.";
    let mut family = page.family("weir_replica_ejected", help, Kind::Gauge);
    for (state, backend) in named() {
        family.sample(&[("backend", backend)], sums(state, |own| u64::from(own.is_out)));
    }
    let help = "Most that a replica may lag behind its primary; absent if unknown.";
    let mut family = page.family("weir_replica_lag_seconds", help, Kind::Gauge);
    for (state, backend) in named() {
        if let Some(as_of) = state.as_of {
            family.sample(&[("backend", backend)], now.since(as_of).as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ShardReport;
    use crate::values::BackendId;

    #[test]
    fn who_is_not_used_is_told_with_the_reason() {
        let key = |place| NodeKey { backend: BackendId(place), generation: 0 };
        let at = Timestamp::from_millis;
        let state = |as_of, unfit| ReplicaState {
            node: key(1),
            primary: key(0),
            as_of,
            behind_bytes: Some(7),
            heard_seconds: Some(1),
            unfit,
        };
        let report = |is_out| {
            let own = ReaderFigures { answered: 5, out: [1, 0], is_out };
            ShardReport { readers: vec![ReaderFigures::default(), own], ..ShardReport::default() }
        };
        let totals = |out: [bool; 2]| Totals { shards: out.map(report).into(), engine: None };
        let facts =
            |states: &[ReplicaState]| ReplicaFacts { is_on: true, is_wanted: true, states: states.into() };
        let well = facts(&[state(Some(at(5_000)), None)]);
        let told = |facts: &ReplicaFacts, out, now| facts.told(key(1), Some(&totals(out)), at(now));
        let page = told(&well, [false, true], 6_500);
        assert_eq!((&page["used"], &page["reads_answered"]), (&json!(true), &json!(10)));
        assert_eq!((&page["lag_seconds_at_most"], &page["why_not"]), (&json!(1.5), &json!(null)));
        let why = |facts: &ReplicaFacts, out, now| told(facts, out, now)["why_not"].to_string();
        assert!(why(&well, [false, false], 8_500).contains("too far behind"));
        assert!(why(&well, [true, true], 6_000).contains("ejected"));
        assert!(why(&facts(&[]), [false; 2], 6_000).contains("too far behind"));
        assert!(
            why(&facts(&[state(None, Some("it does not answer"))]), [false; 2], 6_000).contains("not answer")
        );
        assert!(
            why(&ReplicaFacts { is_wanted: false, ..well.clone() }, [false; 2], 6_000).contains("no tenant")
        );
        assert!(why(&ReplicaFacts { is_on: false, ..well.clone() }, [false; 2], 6_000).contains("--disable"));
        let mut page = Exposition::new();
        let names = ["a:1".to_owned(), "b:2".to_owned()];
        write_replicas(&mut page, &names, &well, &totals([true, false]), at(5_500));
        let page = page.finish();
        for line in [
            "weir_replica_reads_total{backend=\"b:2\"} 10\n",
            "weir_replica_ejections_total{backend=\"b:2\",reason=\"failures\"} 2\n",
            "weir_replica_ejected{backend=\"b:2\"} 1\n",
            "weir_replica_lag_seconds{backend=\"b:2\"} 0.5\n",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
    }
}
