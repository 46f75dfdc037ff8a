//! Any bytes as the replies of a cluster's nodes to questions about the cluster and about themselves.

use weir::protocol::command;
use weir::routing::cluster::failover_probe::Said;
use weir::routing::cluster::{Cluster, Databases, NodeRefusal, Replication, View};
use weir::values::ServerAddress;
use weir::values::limits::{CLUSTER_NODES_MAX, SLOTS};

/// The line that separates two replies in the input.
const BETWEEN: &[u8] = b"---\n";

/// Reads replies, in pairs of CLUSTER SLOTS and CLUSTER NODES, as views of a cluster and merges them. Checks that the
/// map names only nodes that it has, and that the views change nothing when they are merged again. Reads each reply
/// also as the reply to every other question that weir asks a node.
pub fn nodes(bytes: &[u8]) {
    let replies = split(bytes);
    let _ = Databases::in_selects(&replies.iter().map(|reply| reply.to_vec()).collect::<Vec<_>>());
    let mut cluster = Cluster::default();
    let mut views = Vec::new();
    for (index, reply) in replies.iter().enumerate() {
        let sender = ServerAddress { host: format!("10.0.0.{index}"), port: 7000 };
        let _ = (Said::parse(reply), Replication::parse(reply), Databases::in_config(reply));
        command::learn(reply);
        if let Some(NodeRefusal::Moved { target, .. } | NodeRefusal::Ask { target, .. }) =
            NodeRefusal::parse(reply)
        {
            let _ = target.resolve(&sender);
        }
        let Some(pair) = replies.get(index..index + 2).filter(|_| index % 2 == 0) else { continue };
        let text = [format!("${}\r\n", pair[1].len()).as_bytes(), pair[1], b"\r\n"].concat();
        if let Ok(view) = View::parse(&sender, pair[0], &text) {
            cluster.apply(std::slice::from_ref(&view));
            check(&cluster);
            views.push(view);
        }
    }
    cluster.apply(&views);
    check(&cluster);
    assert!(cluster.apply(&views).map.is_none(), "the views again change the map");
}

fn check(cluster: &Cluster) {
    let map = cluster.map();
    assert!(map.nodes().count() <= CLUSTER_NODES_MAX, "{} nodes", map.nodes().count());
    for slot in 0..SLOTS {
        assert!(
            map.owner(slot).is_none_or(|owner| map.node(owner).is_some()),
            "slot {slot} belongs to no node"
        );
    }
    for node in map.nodes() {
        assert!(
            node.replicas.iter().all(|at| map.node(*at).is_some()),
            "{node:?} has replicas that are no nodes"
        );
    }
}

fn split(bytes: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(BETWEEN.len()).position(|bytes| bytes == BETWEEN) {
        found.push(&rest[..at]);
        rest = &rest[at + BETWEEN.len()..];
    }
    found.push(rest);
    found
}
