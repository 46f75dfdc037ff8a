//! Tests with replies recorded from a real cluster of three primaries and three replicas, healthy and in
//! trouble.

use super::*;

const A: &str = "d4cf48fa0236b0a7c90e22fd463a4fcd34bc0bf4";
const B: &str = "2bb527b7bd5dbc4991d57ffbdb1ebd6d6f53f4fe";
const C: &str = "3aa80c7c215c0c43203877a5d87199defc24c715";
const C_REPLICA: &str = "4a307377521e1ce8debafcea43d7986ee370873b";
const NEWCOMER: &str = "456258689d85cd9372f00a17097d62ac12a940f8";

macro_rules! recorded {
    ($name:literal) => {
        View::parse(
            &address("asked.example:36089"),
            include_bytes!(concat!("../../../../tests/data/cluster/", $name, ".slots")),
            include_bytes!(concat!("../../../../tests/data/cluster/", $name, ".nodes")),
        )
    };
}

fn map_of(view: Result<View, Unusable>) -> std::sync::Arc<Map> {
    let mut cluster = Cluster::default();
    let applied = cluster.apply(&[view.expect("a view")]);
    assert_eq!(applied.rejected, []);
    applied.map.expect("the first map")
}

fn by_id<'a>(map: &'a Map, id: &str) -> &'a Node {
    map.nodes().find(|node| node.id.as_str() == id).expect("a known node")
}

#[test]
fn a_healthy_cluster() {
    let map = map_of(recorded!("healthy"));
    for (slot, owner) in [(0, A), (5460, A), (5461, B), (10922, B), (10923, C), (16383, C)] {
        assert_eq!(owner_of(&map, slot), Some(owner), "{slot}");
    }
    assert_eq!((map.nodes().count(), map.primaries().count(), map.places()), (6, 3, 6));
    let (primary, replica) = (by_id(&map, C), by_id(&map, C_REPLICA));
    assert_eq!(primary.replicas, [replica.key.backend]);
    assert_eq!(replica.role, Role::Replica(Some(primary.key.backend)));
    assert_eq!(primary.addresses, [address("127.0.0.1:32863")]);
    assert_eq!(map.find(&address("127.0.0.1:32863")), Some(primary));
    assert_eq!(map.find(&address("127.0.0.1:1")), None);
    assert!(map.open_slots().is_empty() && !map.nodes().any(|node| node.failed));
}

#[test]
fn asking_again_is_no_news() {
    let mut cluster = Cluster::default();
    assert!(cluster.apply(&[recorded!("healthy").expect("a view")]).map.is_some());
    assert!(cluster.apply(&[recorded!("healthy").expect("a view")]).map.is_none());
    assert_eq!(cluster.map().version(), 1);
}

#[test]
fn a_slot_on_its_way_stays_where_it_is_and_is_known_as_such() {
    for view in [recorded!("migrating"), recorded!("importing")] {
        let map = map_of(view);
        let (source, target) = (by_id(&map, A).key.backend, by_id(&map, B).key.backend);
        assert_eq!(map.open_slots(), [OpenSlot { slot: 5061, source, target }]);
        assert_eq!(map.open_slot(5061).map(|open| open.target), Some(target));
        assert_eq!((owner_of(&map, 5061), map.open_slot(5060)), (Some(A), None));
    }
}

#[test]
fn a_primary_that_imports_and_has_no_slots_is_known() {
    let map = map_of(recorded!("empty-importing"));
    let newcomer = by_id(&map, NEWCOMER);
    assert_eq!(newcomer.role, Role::Primary);
    assert!((0..16_384).all(|slot| map.owner(slot) != Some(newcomer.key.backend)));
    assert_eq!(map.open_slot(5061).map(|open| open.target), Some(newcomer.key.backend));
    assert!(map.primaries().any(|node| node.key == newcomer.key));
}

#[test]
fn one_that_joins_is_not_listened_to_before_it_knows_somebody() {
    assert_eq!(recorded!("alone"), Err(Unusable::KnowsNobody));
    // The joining node has heard of all nodes, but not yet of one primary's slots; merging its view loses
    // nothing that is known.
    let mut cluster = Cluster::default();
    cluster.apply(&[recorded!("healthy").expect("a view")]);
    let joining = recorded!("joining").expect("a view");
    let map = cluster.apply(&[joining]).map.expect("a new node");
    assert_eq!((owner_of(&map, 5461), map.nodes().count()), (Some(B), 7));
    assert_eq!(map.moved_since(&map_of(recorded!("healthy")), 0..=16_383).count(), 0);
    // The joining node's view alone gives these slots no owner.
    assert_eq!(owner_of(&map_of(recorded!("joining")), 5461), None);
}

#[test]
fn whoever_shakes_hands_is_no_node_yet() {
    assert_eq!(map_of(recorded!("handshake")).nodes().count(), 6);
}

#[test]
fn endpoints_come_first_and_unknown_ones_are_left_out() {
    let map = map_of(recorded!("hostnames"));
    assert_eq!(by_id(&map, B).addresses, [address("b.example:46087"), address("127.0.0.1:46087")]);
    // The node's endpoint is `?` (unknown), so its former address remains.
    assert_eq!(by_id(&map, C).addresses, [address("127.0.0.1:32863")]);
    assert_eq!(map.find(&address("B.example:46087")).map(|node| node.id.as_str()), Some(B));
    let map = map_of(recorded!("unknown-endpoints"));
    assert_eq!(by_id(&map, C).addresses, [address("asked.example:32863"), address("127.0.0.1:32863")]);
}

#[test]
fn a_failed_primary_owns_its_slots_until_it_is_replaced() {
    let mut cluster = Cluster::default();
    cluster.apply(&[recorded!("healthy").expect("a view")]);
    // The suspicion of one node (`fail?`) changes nothing.
    let before = cluster.apply(&[recorded!("failing").expect("a view")]).map.expect("a newcomer");
    assert_eq!((owner_of(&before, 16_383), by_id(&before, C).failed), (Some(C), false));
    let after = cluster.apply(&[recorded!("promoted").expect("a view")]).map.expect("a new owner");
    assert_eq!((owner_of(&after, 16_383), by_id(&after, C).failed), (Some(C_REPLICA), true));
    assert_eq!(after.moved_since(&before, 0..=16_383).count(), 16_384 - 10_923);
    assert_eq!(after.gone_since(&before).count(), 0);
    assert_eq!(by_id(&after, C_REPLICA).key, by_id(&before, C_REPLICA).key);
    // A late view does not undo a newer state.
    assert_eq!(owner_of(cluster.map(), 16_383), Some(C_REPLICA));
    cluster.apply(&[recorded!("failing").expect("a view")]);
    assert_eq!(owner_of(cluster.map(), 16_383), Some(C_REPLICA));
}
