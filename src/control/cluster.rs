//! Descriptions of a cluster: its nodes, the number of slots that each owns, and the slots that are moving.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::http::{Response, Status};
use super::{ReplicaFacts, Totals};
use crate::routing::cluster::{Databases, Map, Node, Role};
use crate::values::limits::SLOTS;
use crate::values::{BackendId, Timestamp};

/// Returns the names of the nodes in a cluster's map, by backend number: a node's first address, or its id if
/// it has no address or another node is named by that address already; empty for a number without a node.
pub fn node_names(map: &Map) -> Vec<String> {
    let nodes = || (0..map.places()).map(|place| map.node(BackendId(place as u16)));
    let mut names = vec![String::new(); map.places()];
    let mut taken = HashSet::new();
    // A failed node may be known by the address that its successor has now.
    for failed in [false, true] {
        for (name, node) in names.iter_mut().zip(nodes()) {
            if let Some(node) = node.filter(|node| node.failed == failed) {
                let address = name_of(node);
                *name = if taken.insert(address.clone()) { address } else { node.id.to_string() };
            }
        }
    }
    names
}

fn name_of(node: &Node) -> String {
    node.addresses.first().map_or_else(|| node.id.to_string(), ToString::to_string)
}

/// Returns the number of slots that each node owns, by backend number.
fn owned(map: &Map) -> Vec<u32> {
    let mut owned = vec![0; map.places()];
    for owner in (0..SLOTS).filter_map(|slot| map.owner(slot)) {
        if let Some(count) = owned.get_mut(usize::from(owner.0)) {
            *count += 1;
        }
    }
    owned
}

/// Returns the log line about a new map of the cluster; `why` is the reason why the nodes were asked for it.
pub fn slots_line(map: &Map, why: &str) -> String {
    let owned = owned(map);
    let primaries = map.primaries().filter(|node| owned[usize::from(node.key.backend.0)] > 0).count();
    format!(
        "cluster: map {} ({why}): {} of {SLOTS} slots owned by {primaries} of {} nodes, {} of them failed, {} slots migrating",
        map.version(),
        owned.iter().sum::<u32>(),
        map.nodes().count(),
        map.nodes().filter(|node| node.failed).count(),
        map.open_slots().len()
    )
}

/// Makes the admin page `/cluster`, which shows the nodes, slots (`map`; None without a cluster) and
/// replicas. Without the counters of all shards (`totals`) it shows 0 reads answered by replicas, and no
/// ejections of replicas.
pub(super) fn cluster_page(
    map: Option<&Map>,
    replicas: &ReplicaFacts,
    totals: Option<&Totals>,
    now: Timestamp,
) -> Response {
    Response::json(Status::Ok, &told(map, replicas, totals, now))
}

fn told(map: Option<&Map>, replicas: &ReplicaFacts, totals: Option<&Totals>, now: Timestamp) -> Value {
    let Some(map) = map else { return json!({ "cluster": false }) };
    let owned = owned(map);
    let names = node_names(map);
    let nodes: Vec<Value> = map
        .nodes()
        .map(|node| {
            let place = usize::from(node.key.backend.0);
            let (role, of) = match node.role {
                Role::Primary => ("primary", None),
                Role::Replica(of) => ("replica", of.and_then(|of| names.get(usize::from(of.0)))),
            };
            let reads = of.map(|_| replicas.told(node.key, totals, now));
            json!({
                "name": names[place],
                "id": node.id.to_string(),
                "addresses": node.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "role": role,
                "replica_of": of,
                "reads": reads,
                "failed": node.failed,
                "slots": owned[place],
            })
        })
        .collect();
    let open: Vec<Value> = map
        .open_slots()
        .iter()
        .map(|open| {
            let name = |node: BackendId| names.get(usize::from(node.0));
            json!({ "slot": open.slot, "source": name(open.source), "target": name(open.target) })
        })
        .collect();
    json!({
        "cluster": true,
        "version": map.version(),
        "slots_owned": owned.iter().sum::<u32>(),
        "databases": map.databases().map(Databases::count),
        "nodes": nodes,
        "slots_on_their_way": open,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::cluster::{Cluster, View};
    use crate::values::ServerAddress;

    #[test]
    fn a_cluster_is_told_of_by_its_nodes() {
        let told = |map| told(map, &ReplicaFacts::default(), None, Timestamp::ZERO);
        assert_eq!(told(None), json!({ "cluster": false }));
        let nodes = "a1 10.0.0.1:7000@1 myself,master - 0 0 1 connected 0-99 200 [5->-b2]\n\
                     b2 10.0.0.2:7000@1 master,fail - 0 0 2 connected 100-199\n";
        let reply = format!("${}\r\n{nodes}\r\n", nodes.len());
        let asked = ServerAddress { host: "10.0.0.1".to_owned(), port: 7000 };
        let mut cluster = Cluster::default();
        cluster.apply(&[View::parse(&asked, b"*0\r\n", reply.as_bytes()).expect("a view")]);
        let map = cluster.map();
        assert_eq!(node_names(map), ["10.0.0.1:7000", "10.0.0.2:7000"]);
        let line = slots_line(map, "MOVED");
        assert!(
            line.contains("(MOVED): 201 of 16384 slots owned by 2 of 2 nodes, 1 of them failed, 1 slots"),
            "{line}"
        );
        let page = told(Some(map));
        assert_eq!((&page["nodes"][0]["slots"], &page["nodes"][1]["failed"]), (&json!(101), &json!(true)));
        assert_eq!(page["slots_on_their_way"][0]["target"], json!("10.0.0.2:7000"));
    }

    #[test]
    fn nodes_that_are_known_by_one_address_have_names_of_their_own() {
        let nodes = "b2 10.0.0.1:7000@1 master,fail - 0 0 2 connected 100-199\n\
                     c3 10.0.0.1:7000@1 myself,master - 0 0 1 connected 0-99\n";
        let reply = format!("${}\r\n{nodes}\r\n", nodes.len());
        let asked = ServerAddress { host: "10.0.0.1".to_owned(), port: 7000 };
        let mut cluster = Cluster::default();
        cluster.apply(&[View::parse(&asked, b"*0\r\n", reply.as_bytes()).expect("a view")]);
        let mut names = node_names(cluster.map());
        names.sort_unstable();
        assert_eq!(names, ["10.0.0.1:7000", "b2"]);
    }
}
