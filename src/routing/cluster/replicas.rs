//! Replication lag of a cluster's replicas, computed from what nodes report about their replication (`INFO
//! replication`).
//!
//! ```text
//! primary   asked at t, tells offset 700 ──┐
//! replica   tells offset 730 ──────────────┴─> it has all that the primary had at t: as of t
//! replica   tells offset 690 ────────────────> as of an earlier answer of the primary that told 690 or less
//! ```
//!
//! So lag is a time, however much or little is written, and the known lag of a replica that does not answer
//! grows by itself. Offsets are compared only within one history (`master_replid`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::map::{Map, Node, NodeKey, Role};
use crate::protocol::reply;
use crate::values::Timestamp;

/// Number of replies about replication (time and offset) kept for each primary, about one for each of the
/// last seconds; the oldest is dropped.
const ANSWERS_KEPT: usize = 16;

/// Facts from the `INFO replication` of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replication {
    /// True if the node is a replica.
    is_replica: bool,
    /// Id of the replication history (`master_replid`): offsets in two replies are compared only if it is the
    /// same.
    history: String,
    offset: u64,
    link_is_up: bool,
    is_syncing: bool,
    /// Seconds since the node last received data from its primary; None if it has none, or did not say.
    heard: Option<u64>,
}

impl Replication {
    /// Reads a whole reply to `INFO replication`; None if it cannot be understood.
    pub fn parse(info: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(reply::text(info)?).ok()?;
        let fields: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once(':')).collect();
        let number = |name| fields.get(name)?.parse::<u64>().ok();
        let is_replica = match *fields.get("role")? {
            "master" => false,
            "slave" | "replica" => true,
            _ => return None,
        };
        Some(Self {
            is_replica,
            history: (*fields.get("master_replid")?).to_owned(),
            offset: number(if is_replica { "slave_repl_offset" } else { "master_repl_offset" })?,
            link_is_up: fields.get("master_link_status") == Some(&"up"),
            is_syncing: number("master_sync_in_progress").is_some_and(|count| count > 0),
            heard: number("master_last_io_seconds_ago"),
        })
    }
}

/// Result of asking one node for its replication state.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The node that was asked for `INFO replication`.
    pub node: NodeKey,
    /// Time at which the node was asked.
    pub asked_at: Timestamp,
    /// The facts in the node's reply; None if it did not reply, or the reply could not be parsed.
    pub told: Option<Replication>,
}

/// Replication state of one replica, by which shards decide whether it may answer reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaState {
    /// Key of the replica.
    pub node: NodeKey,
    /// Key of the primary that the replica copies.
    pub primary: NodeKey,
    /// Time as of which the replica has all writes that its primary had carried out; None if unknown, or if
    /// the replica must not be used.
    pub as_of: Option<Timestamp>,
    /// Bytes of its primary's replication stream that the replica has not carried out yet; None if unknown.
    pub behind_bytes: Option<u64>,
    /// Seconds since the replica last received data from its primary; None if unknown.
    pub heard_seconds: Option<u64>,
    /// Reason why the replica must not be used, apart from too long a time since `as_of`; None if there is
    /// none.
    pub unfit: Option<&'static str>,
}

/// Time at which a primary was asked for its replication state, and the replication offset in its reply.
type Told = (Timestamp, u64);

/// The recent replies of a cluster's primaries about their replication, from which the replication state of
/// their replicas is computed.
#[derive(Debug, Default)]
pub struct Replicas {
    primaries: BTreeMap<NodeKey, (String, VecDeque<Told>)>,
}

impl Replicas {
    /// Returns the nodes to ask for their replication state, in two lists: first the primaries that have
    /// replicas, then their replicas.
    pub fn to_ask(map: &Map) -> [Vec<NodeKey>; 2] {
        let primaries: Vec<&Node> = map.primaries().filter(|node| !node.replicas.is_empty()).collect();
        let replicas = primaries.iter().flat_map(|node| &node.replicas).filter_map(|at| map.node(*at));
        let replicas = replicas.map(|node| node.key).collect();
        [primaries.into_iter().map(|node| node.key).collect(), replicas]
    }

    /// Handles the replies of one round in which nodes were asked for their replication state, primaries
    /// first, and returns the state of every live replica of a primary.
    pub fn handle_answers(&mut self, map: &Map, answers: &[Answer]) -> Arc<[ReplicaState]> {
        self.primaries.retain(|key, _| map.node_of(*key).is_some_and(|node| node.role == Role::Primary));
        for answer in answers {
            let Some(told) = answer.told.as_ref().filter(|told| !told.is_replica) else { continue };
            let (history, offsets) = self.primaries.entry(answer.node).or_default();
            let is_further = offsets.back().is_none_or(|(_, before)| told.offset >= *before);
            if *history != told.history || !is_further {
                history.clone_from(&told.history);
                offsets.clear();
            }
            if offsets.len() == ANSWERS_KEPT {
                offsets.pop_front();
            }
            offsets.push_back((answer.asked_at, told.offset));
        }
        let told_by = |key| answers.iter().find(|answer| answer.node == key)?.told.as_ref();
        let primaries = map.primaries().flat_map(|node| node.replicas.iter().map(|at| (node.key, *at)));
        let known = primaries.filter_map(|(primary, at)| Some((primary, map.node(at)?.key)));
        known.map(|(primary, node)| self.state(node, primary, told_by(node))).collect()
    }

    fn state(&self, node: NodeKey, primary: NodeKey, told: Option<&Replication>) -> ReplicaState {
        let mut state = ReplicaState {
            node,
            primary,
            as_of: None,
            behind_bytes: None,
            heard_seconds: told.and_then(|told| told.heard),
            unfit: None,
        };
        let known = self.primaries.get(&primary);
        state.unfit = match told {
            None => Some("it does not answer"),
            Some(told) if !told.is_replica => Some("it is no replica"),
            Some(told) if told.is_syncing => Some("it is being filled"),
            Some(told) if !told.link_is_up => Some("it has lost its primary"),
            Some(told) if known.is_none_or(|(history, _)| *history != told.history) => {
                Some("nothing is known of its primary")
            }
            Some(_) => None,
        };
        if let (None, Some(told), Some((_, offsets))) = (state.unfit, told, known) {
            let newest = offsets.back().map(|(_, offset)| offset.saturating_sub(told.offset));
            state.behind_bytes = newest;
            let reached = offsets.iter().rev().find(|(_, offset)| *offset <= told.offset);
            state.as_of = reached.map(|(asked_at, _)| *asked_at);
            state.unfit = state.as_of.is_none().then_some("it is far behind");
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cluster, View};
    use super::*;
    use crate::values::{Random, ServerAddress};

    fn info(lines: &str) -> Vec<u8> {
        format!("${}\r\n{lines}\r\n", lines.len()).into_bytes()
    }

    const PRIMARY: &str = "# Replication\r\nrole:master\r\nconnected_slaves:1\r\nmaster_replid:aa\r\nmaster_repl_offset:700\r\n";
    const REPLICA: &str = "# Replication\r\nrole:slave\r\nmaster_link_status:up\r\nmaster_last_io_seconds_ago:3\r\n\
        master_sync_in_progress:0\r\nslave_read_repl_offset:691\r\nslave_repl_offset:690\r\nmaster_replid:aa\r\n";

    fn primary(history: &str, offset: u64) -> Option<Replication> {
        Replication::parse(&info(&PRIMARY.replace("aa", history).replace("700", &offset.to_string())))
    }

    fn replica(history: &str, offset: u64) -> Option<Replication> {
        Replication::parse(&info(
            &REPLICA.replace("id:aa", &format!("id:{history}")).replace("690", &offset.to_string()),
        ))
    }

    /// Creates the map of a cluster with one primary and its replica, for tests.
    fn pair() -> Arc<Map> {
        let nodes = "a1 10.0.0.1:7000@1 myself,master - 0 0 1 connected 0-16383\n\
                     b2 10.0.0.2:7000@1 slave a1 0 0 1 connected\n";
        let slots = "*1\r\n*4\r\n:0\r\n:16383\r\n*3\r\n$8\r\n10.0.0.1\r\n:7000\r\n$2\r\na1\r\n*3\r\n$8\r\n10.0.0.2\r\n:7000\r\n$2\r\nb2\r\n";
        let asked = ServerAddress { host: "10.0.0.1".to_owned(), port: 7000 };
        let mut cluster = Cluster::default();
        cluster.apply(&[View::parse(&asked, slots.as_bytes(), &info(nodes)).expect("a view")]);
        Arc::clone(cluster.map())
    }

    #[test]
    fn what_nodes_tell_is_read() {
        let told = primary("aa", 700).expect("it makes sense");
        assert_eq!((told.is_replica, told.offset, told.heard), (false, 700, None));
        let told = replica("aa", 690).expect("it makes sense");
        assert_eq!((told.is_replica, told.offset, told.heard, told.link_is_up), (true, 690, Some(3), true));
        for nonsense in ["role:sentinel", "", "role:slave\r\nmaster_replid:a\r\nslave_repl_offset:-1"] {
            assert_eq!(Replication::parse(&info(nonsense)), None, "{nonsense}");
        }
        assert_eq!(Replication::parse(b"-LOADING Redis is loading\r\n"), None);
    }

    #[test]
    fn who_cannot_be_used_is_told_with_the_reason() {
        let map = pair();
        let [primaries, replicas] = Replicas::to_ask(&map);
        let (first, second) = (primaries[0], replicas[0]);
        let mut known = Replicas::default();
        let mut unfit = |own: Option<Replication>, copy: Option<Replication>| {
            let answer = |node, told| Answer { node, asked_at: Timestamp::from_millis(5), told };
            let states = known.handle_answers(&map, &[answer(first, own), answer(second, copy)]);
            assert_eq!((states[0].node, states[0].primary), (second, first));
            (states[0].unfit, states[0].as_of.is_some())
        };
        let changed = |from: &str, to: &str| Replication::parse(&info(&REPLICA.replace(from, to)));
        assert_eq!(unfit(None, replica("aa", 1)), (Some("nothing is known of its primary"), false));
        assert_eq!(unfit(primary("aa", 700), replica("aa", 690)), (Some("it is far behind"), false));
        assert_eq!(unfit(primary("aa", 700), replica("aa", 700)), (None, true));
        assert_eq!(unfit(primary("aa", 700), None), (Some("it does not answer"), false));
        assert_eq!(unfit(None, replica("aa", 700)), (None, true), "as of then");
        assert_eq!(unfit(primary("aa", 700), replica("bb", 700)).0, Some("nothing is known of its primary"));
        assert_eq!(unfit(primary("aa", 700), primary("aa", 700)).0, Some("it is no replica"));
        assert_eq!(unfit(None, changed("status:up", "status:down")).0, Some("it has lost its primary"));
        assert_eq!(unfit(None, changed("progress:0", "progress:1")).0, Some("it is being filled"));
        // Both nodes switch to another replication history.
        assert_eq!(unfit(primary("cc", 10), replica("cc", 10)), (None, true));
    }

    /// Compares with a list of all writes: a primary with writes now and then, and a replica that applies
    /// them at random times.
    #[test]
    fn a_replica_is_never_older_than_it_is_said_to_be() {
        let map = pair();
        let [primaries, replicas] = Replicas::to_ask(&map);
        let mut random = Random::new(4);
        let mut known = Replicas::default();
        let (mut written, mut carried_out, mut now) = (vec![(0_u64, 0_u64)], 0, 1_000);
        let mut used = 0;
        for _ in 0..5_000 {
            now += random.between(1, 400);
            let newest = written.last().map_or(0, |(_, offset)| *offset);
            written.push((now, newest + random.below(3) * random.below(50)));
            let newest = written.last().map_or(0, |(_, offset)| *offset);
            if random.below(3) == 0 {
                carried_out = random.between(carried_out, newest);
            }
            if random.below(3) > 0 {
                continue;
            }
            let (asked_at, own) = (Timestamp::from_millis(now), primary("aa", newest));
            let own = Answer { node: primaries[0], asked_at, told: own.filter(|_| random.below(4) > 0) };
            let copy = Answer { node: replicas[0], asked_at, told: replica("aa", carried_out) };
            let states = known.handle_answers(&map, &[own, copy]);
            if let Some(as_of) = states[0].as_of {
                used += 1;
                let then = written.iter().rev().find(|(at, _)| Timestamp::from_millis(*at) <= as_of);
                assert!(then.is_some_and(|(_, offset)| *offset <= carried_out), "as of {as_of:?}");
            }
        }
        assert!(used > 300, "{used}");
    }
}
