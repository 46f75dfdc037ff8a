//! Compares merged cluster maps with a slow reference model, which merges the views of made-up nodes by name,
//! slot by slot.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::values::Timestamp;

const SLOTS_USED: u16 = 5;
const NODES: u8 = 5;

/// The view that one node (`teller`) has of the cluster, in the model: the nodes that it knows (epoch,
/// failed), and the owner of each slot.
#[derive(Clone, Debug)]
struct Said {
    teller: u8,
    nodes: BTreeMap<u8, (u64, bool)>,
    owners: Vec<Option<u8>>,
}

#[derive(Clone, Debug)]
enum Step {
    Views(Vec<Said>),
    Moved(u16, u8),
}

/// Slow reference model of the rules by which views are merged.
#[derive(Default)]
struct Model {
    known: BTreeSet<u8>,
    in_force: BTreeMap<u16, (f64, u8)>,
    failed: BTreeSet<u8>,
}

impl Model {
    fn apply(&mut self, said: &[Said]) -> Vec<Said> {
        let mut accepted: Vec<Said> = Vec::new();
        let mut known = self.known.clone();
        for one in said {
            let ids: BTreeSet<u8> = one.nodes.keys().copied().collect();
            if known.is_empty() {
                known.clone_from(&ids);
            }
            if ids.intersection(&known).count() as f64 >= known.len() as f64 / 2.0 {
                accepted.push(one.clone());
            }
        }
        if accepted.is_empty() {
            return accepted;
        }
        self.known = accepted.iter().flat_map(|one| one.nodes.keys().copied()).collect();
        let failed: BTreeSet<u8> = self
            .known
            .iter()
            .filter(|node| accepted.iter().all(|one| one.teller != **node))
            .filter(|node| accepted.iter().any(|one| one.nodes.get(node).is_some_and(|node| node.1)))
            .copied()
            .collect();
        self.failed.clone_from(&failed);
        for slot in 0..SLOTS_USED {
            // Claims to a slot, sorted by precedence: epoch, then the claim that is in force, then a claim by
            // the node itself, then the order of views.
            let mut claims: Vec<(f64, u8, i32, u8)> = Vec::new();
            if let Some((epoch, node)) = self.in_force.get(&slot)
                && self.known.contains(node)
                && !(epoch.fract() > 0.0 && failed.contains(node))
            {
                claims.push((*epoch, 2, 0, *node));
            }
            for (place, one) in accepted.iter().enumerate() {
                if let Some(owner) = one.owners[usize::from(slot)] {
                    let own = u8::from(owner == one.teller);
                    // An owner that answered and confirms the claim is believed about its epoch.
                    let itself = accepted.iter().find(|one| one.teller == owner);
                    let confirmed = itself.filter(|itself| itself.owners[usize::from(slot)] == Some(owner));
                    claims.push((
                        confirmed.unwrap_or(one).nodes[&owner].0 as f64,
                        own,
                        -(place as i32),
                        owner,
                    ));
                }
            }
            claims.retain(|(epoch, _, _, owner)| {
                let itself = accepted.iter().find(|one| one.teller == *owner);
                itself.is_none_or(|own| {
                    let makes_it = own.owners[usize::from(slot)] == Some(*owner);
                    makes_it || (epoch.fract() == 0.0 && *epoch > own.nodes[owner].0 as f64)
                })
            });
            claims.sort_by(|one, other| one.partial_cmp(other).expect("numbers"));
            match claims.last() {
                Some((epoch, _, _, owner)) => self.in_force.insert(slot, (*epoch, *owner)),
                None => self.in_force.remove(&slot),
            };
        }
        accepted
    }

    fn patch(&mut self, slot: u16, node: u8) -> bool {
        let owner = self.in_force.get(&slot).map(|claim| claim.1);
        if !self.known.contains(&node) || owner == Some(node) {
            return false;
        }
        if self.failed.contains(&node) && owner.is_some_and(|owner| !self.failed.contains(&owner)) {
            return false;
        }
        let epoch = self.in_force.get(&slot).map_or(0.0, |claim| claim.0.floor());
        self.in_force.insert(slot, (epoch + 0.5, node));
        true
    }
}

fn name(node: u8) -> String {
    format!("n{node}")
}

fn view_of(said: &Said) -> View {
    let mut told: Vec<Told> = Vec::new();
    for (node, (epoch, failed)) in &said.nodes {
        let slots = (0..SLOTS_USED).filter(|slot| said.owners[usize::from(*slot)] == Some(*node));
        let mut one = Told::primary(&name(*node), *epoch, slots);
        if *failed {
            one.flags = "master,fail";
        }
        let place = if *node == said.teller { 0 } else { told.len() };
        told.insert(place, one);
    }
    view(&told).expect("well formed")
}

fn said() -> impl Strategy<Value = Said> {
    let node = || (0_u64..5, prop::bool::weighted(0.4));
    let nodes = prop::collection::btree_map(0..NODES, node(), 2..=usize::from(NODES));
    nodes.prop_flat_map(|nodes| {
        let ids: Vec<u8> = nodes.keys().copied().collect();
        let owner = prop::option::weighted(0.85, prop::sample::select(ids.clone()));
        let owners = prop::collection::vec(owner, usize::from(SLOTS_USED));
        (prop::sample::select(ids), owners).prop_map(move |(teller, owners)| Said {
            teller,
            nodes: nodes.clone(),
            owners,
        })
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => prop::collection::vec(said(), 1..=3).prop_map(Step::Views),
        2 => (0..SLOTS_USED, 0..NODES).prop_map(|(slot, node)| Step::Moved(slot, node)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn merged_as_the_model_merges(steps in prop::collection::vec(step(), 1..12)) {
        let (mut cluster, mut model) = (Cluster::default(), Model::default());
        let mut generations = BTreeMap::new();
        for step in steps {
            let before = cluster.map().clone();
            let changed = match step {
                Step::Views(said) => {
                    let views: Vec<View> = said.iter().map(view_of).collect();
                    let applied = cluster.apply(&views);
                    let accepted = model.apply(&said);
                    prop_assert_eq!(views.len() - accepted.len(), applied.rejected.len());
                    applied.map
                }
                Step::Moved(slot, node) => {
                    let key = before.nodes().find(|known| known.id.as_str() == name(node)).map(|node| node.key);
                    let changed = key.and_then(|key| cluster.patch(&[(slot, key)]));
                    prop_assert_eq!(changed.is_some(), model.patch(slot, node));
                    changed
                }
            };
            let map = cluster.map();
            for slot in 0..SLOTS_USED {
                let wanted = model.in_force.get(&slot).map(|claim| name(claim.1));
                prop_assert_eq!(owner_of(map, slot), wanted.as_deref(), "slot {}", slot);
                let is_half = model.in_force.get(&slot).is_some_and(|claim| claim.0.fract() > 0.0);
                prop_assert_eq!(map.is_hearsay(slot), is_half, "slot {}", slot);
            }
            prop_assert_eq!(map.owner(SLOTS_USED), None);
            let known: BTreeSet<String> = map.nodes().map(|node| node.id.to_string()).collect();
            prop_assert_eq!(known, model.known.iter().map(|node| name(*node)).collect::<BTreeSet<_>>());
            prop_assert_eq!(changed.is_some(), map.version() == before.version() + 1);
            for node in map.nodes() {
                prop_assert_eq!(map.node_of(node.key), Some(node));
                let first = generations.entry(node.key.generation).or_insert_with(|| node.id.clone());
                prop_assert_eq!(&*first, &node.id, "a generation is one node for ever");
            }
            let moved: Vec<u16> = map.moved_since(&before, 0..=SLOTS_USED).collect();
            let key = |map: &Map, slot| map.owner_key(slot);
            let wanted: Vec<u16> =
                (0..=SLOTS_USED).filter(|slot| key(map, *slot) != key(&before, *slot)).collect();
            prop_assert_eq!(moved, wanted);
            let gone = map.gone_since(&before).count();
            prop_assert_eq!(gone, before.nodes().filter(|node| map.node_of(node.key).is_none()).count());
        }
    }
}

/// The views of three nodes, most of which are late, do not undo a MOVED.
#[test]
fn late_views_do_not_undo_moved() {
    let told = |slots_of_a: &[u16], slots_of_b: &[u16], epoch_of_b, first: usize| {
        let mut told = vec![
            Told::primary("a", 5, slots_of_a.iter().copied()),
            Told::primary("b", epoch_of_b, slots_of_b.iter().copied()),
            Told::primary("c", 3, [9]),
        ];
        told.swap(0, first);
        view(&told).expect("a view")
    };
    let mut cluster = Cluster::default();
    cluster.apply(&[told(&[1, 2], &[3], 4, 0)]);
    let key = cluster.map().owner_key(3).expect("b");
    assert!(cluster.patch(&[(1, key)]).is_some());
    assert!(cluster.patch(&[(1, key)]).is_none(), "it is known by now");
    // Node c, and node a which is late, still report the former state; the epoch of a node that gave a slot
    // away remains the higher one.
    assert!(cluster.apply(&[told(&[1, 2], &[3], 4, 2)]).map.is_none());
    assert_eq!(owner_of(cluster.map(), 1), Some("b"));
    // Node b claims the slot itself at first, and then gives it back.
    cluster.apply(&[told(&[2], &[1, 3], 6, 1)]);
    assert_eq!(owner_of(cluster.map(), 1), Some("b"));
    let back = [Told::primary("a", 7, [1, 2]), Told::primary("b", 6, [3]), Told::primary("c", 3, [9])];
    cluster.apply(&[told(&[2], &[1, 3], 6, 2), view(&back).expect("a view")]);
    assert_eq!(owner_of(cluster.map(), 1), Some("a"));
}

/// A late node replied MOVED to a node that is dead, so no node can say where the slot is now, and the map
/// drops the MOVED.
#[test]
fn moved_to_a_dead_node_is_taken_back() {
    let told = |flags, first: usize| {
        let mut told =
            vec![Told::primary("a", 5, [1]), Told::primary("b", 4, [2]), Told::primary("c", 3, [9])];
        told[1].flags = flags;
        told.swap(0, first);
        view(&told).expect("a view")
    };
    let mut cluster = Cluster::default();
    cluster.apply(&[told("master", 0)]);
    let b = cluster.map().owner_key(2).expect("b");
    cluster.patch(&[(1, b)]);
    cluster.apply(&[told("master,fail?", 2)]);
    assert_eq!(owner_of(cluster.map(), 1), Some("b"), "only one node thinks so");
    cluster.apply(&[told("master,fail", 2)]);
    assert_eq!((owner_of(cluster.map(), 1), owner_of(cluster.map(), 2)), (Some("a"), Some("b")));
    assert!(cluster.patch(&[(1, b)]).is_none(), "that it has failed is known");
}

#[test]
fn another_cluster_at_a_reused_address_is_not_listened_to() {
    let mut cluster = Cluster::default();
    let ours: Vec<Told> = ["a", "b", "c", "d"].map(|id| Told::primary(id, 1, [])).to_vec();
    let ours = [vec![Told::primary("z", 1, 0..10)], ours].concat();
    cluster.apply(&[view(&ours).expect("a view")]);
    let theirs = [Told::primary("x", 9, 0..10), Told::primary("a", 1, []), Told::primary("b", 1, [])];
    let applied = cluster.apply(&[view(&theirs).expect("a view"), view(&ours).expect("a view")]);
    assert_eq!(applied.rejected, [(0, Rejected::Strangers)]);
    assert!(applied.map.is_none());
    assert_eq!(owner_of(cluster.map(), 5), Some("z"));
}

#[test]
fn a_node_is_believed_about_itself_whatever_others_say_of_it() {
    let a = view(&[Told::primary("a", 1, [1]), Told::primary("b", 2, [2]), Told::primary("c", 3, [])]);
    let lie =
        view(&[Told::primary("b", 2, [2]), Told::primary("a", 1 << 40, [1]), Told::primary("c", 3, [])]);
    let worse =
        view(&[Told::primary("b", 2, [1, 2]), Told::replica("a", "b", 1 << 40), Told::primary("c", 3, [])]);
    for lie in [lie, worse] {
        let mut cluster = Cluster::default();
        cluster.apply(&[a.clone().expect("a view"), lie.expect("a view")]);
        let is_primary = cluster.map().primaries().any(|node| node.id.as_str() == "a");
        assert!(is_primary, "it says so itself");
        // Node c takes the slot over, as the node that lied admits.
        let mut failed = Told::primary("a", 1, []);
        failed.flags = "master,fail";
        let told = [Told::primary("c", 4, [1]), failed.clone(), Told::primary("b", 2, [2])];
        let honest = [Told::primary("b", 2, [2]), failed, Told::primary("c", 4, [1])];
        cluster.apply(&[view(&told).expect("a view"), view(&honest).expect("a view")]);
        assert_eq!(owner_of(cluster.map(), 1), Some("c"));
    }
}

#[test]
fn a_cluster_that_was_set_up_anew_is_believed_once_nobody_is_left_of_the_old_one() {
    let seconds = |seconds: u64| Timestamp::from_millis(seconds * 1_000);
    let (seeds, nodes) = (Ask::Seeds(vec![0]), Ask::Nodes(Vec::new()));
    let mut strangers = Strangers::default();
    assert!(!strangers.handle_round(&seeds, (2, 2), seconds(1)));
    assert!(!strangers.handle_round(&seeds, (0, 0), seconds(4)), "nobody answered");
    assert!(!strangers.handle_round(&seeds, (3, 2), seconds(5)), "one that is known did");
    assert!(!strangers.handle_round(&nodes, (1, 1), seconds(6)));
    assert!(!strangers.handle_round(&seeds, (1, 1), seconds(10)));
    assert!(!strangers.handle_round(&nodes, (1, 1), seconds(12)), "seeds are what the operator named");
    assert!(strangers.handle_round(&seeds, (1, 1), seconds(13)));
    assert!(!strangers.handle_round(&seeds, (1, 1), seconds(14)), "from the beginning");

    let mut cluster = Cluster::default();
    let told = |ids: [&str; 3], epoch| {
        let told = ids.map(|id| Told::primary(id, epoch, if id < "m" { 0..5 } else { 5..10 }));
        view(&told[..2]).expect("a view")
    };
    let before = cluster.apply(&[told(["a", "z", ""], 9)]).map.expect("a map");
    let anew = told(["b", "y", ""], 1);
    assert!(cluster.apply(std::slice::from_ref(&anew)).map.is_none());
    let after = cluster.adopt(&[anew]).map.expect("another map");
    assert!(after.version() > before.version());
    assert_eq!(
        (owner_of(&after, 0), owner_of(&after, 9)),
        (Some("b"), Some("y")),
        "whatever epochs were before"
    );
    assert_eq!(after.gone_since(&before).count(), 2);
    assert_eq!(after.moved_since(&before, 0..=9).count(), 10);
    assert_eq!(after.changed_since(&before).len(), 2);
}

#[test]
fn a_new_node_at_an_old_place_is_another() {
    let mut cluster = Cluster::default();
    let told = |id: &str, epoch| {
        view(&[Told::primary("a", 1, [1]), Told::primary(id, epoch, [2]), Told::primary("c", 1, [3])])
            .expect("a view")
    };
    let before = cluster.apply(&[told("b", 1)]).map.expect("a map");
    let after = cluster.apply(&[told("n", 0)]).map.expect("a map");
    assert_eq!(before.owner(2), after.owner(2), "the place of b is used again");
    assert_eq!(after.moved_since(&before, 0..=9).collect::<Vec<_>>(), [2]);
    let gone: Vec<NodeKey> = after.gone_since(&before).collect();
    assert_eq!(gone, [before.owner_key(2).expect("b")]);
    assert_eq!(after.node_of(gone[0]), None);
}

/// A node that answers knows its own open (moving) slots best; for other nodes, their last answers hold.
#[test]
fn open_slots_are_kept_while_they_make_sense() {
    let told = |first: usize, open: &str, slots_of_a: &[u16], slots_of_b: &[u16]| {
        let (slots_of_a, slots_of_b) = (slots_of_a.iter().copied(), slots_of_b.iter().copied());
        let epoch = 1 + slots_of_b.len() as u64;
        let mut told = vec![
            Told::primary("a", 1, slots_of_a),
            Told::primary("b", epoch, slots_of_b),
            Told::primary("c", 1, [9]),
        ];
        told[first].open = open.to_owned();
        told.swap(0, first);
        view(&told).expect("a view")
    };
    let open =
        |cluster: &Cluster| cluster.map().open_slots().iter().map(|open| open.slot).collect::<Vec<_>>();
    let mut cluster = Cluster::default();
    cluster.apply(&[told(0, " [1->-b] [2->-b] [3->-nobody]", &[1, 2], &[])]);
    assert_eq!(open(&cluster), [1, 2]);
    cluster.apply(&[told(2, "", &[1, 2], &[])]);
    assert_eq!(open(&cluster), [1, 2], "c does not know");
    cluster.apply(&[told(2, "", &[2], &[1])]);
    assert_eq!(open(&cluster), [2], "the first has arrived");
    cluster.apply(&[told(1, " [2-<-a]", &[2], &[1])]);
    assert_eq!(open(&cluster), [2]);
    let key = cluster.map().owner_key(1).expect("b");
    cluster.patch(&[(2, key)]);
    assert_eq!(open(&cluster), [] as [u16; 0]);
}

#[test]
fn whose_replica_has_taken_over_is_no_store_before_it_knows() {
    let is_store = |map: &Map, id: &str| map.stores().any(|node| node.id.as_str() == id);
    let before = [Told::primary("p", 1, 0..100), Told::primary("q", 2, 100..200), Told::replica("h", "p", 1)];
    let mut cluster = Cluster::default();
    assert!(cluster.apply(&[view(&before).expect("a view")]).map.is_some());
    // The successor answers before the other nodes have heard of the failover, the former primary among them.
    let successor =
        view(&[Told::primary("h", 3, 0..100), Told::primary("p", 1, []), Told::primary("q", 2, 100..200)]);
    let late = view(&before);
    let views = [successor.clone().expect("a view"), late.clone().expect("a view")];
    let map = cluster.apply(&views).map.expect("news");
    assert_eq!(owner_of(&map, 0), Some("h"));
    assert!(is_store(&map, "h") && is_store(&map, "q") && !is_store(&map, "p"));
    // The result is the same in any order of the views, and from each view alone.
    for views in [vec![successor.clone()], vec![late.clone()], vec![late, successor.clone()]] {
        let views: Vec<View> = views.into_iter().map(|view| view.expect("a view")).collect();
        let _ = cluster.apply(&views);
        let map = cluster.map();
        assert!(is_store(map, "h") && is_store(map, "q") && !is_store(map, "p"), "{views:?}");
    }
    // The former primary hears of the failover.
    let aware = [Told::replica("p", "h", 3), Told::primary("h", 3, 0..100), Told::primary("q", 2, 100..200)];
    let _ = cluster.apply(&[view(&aware).expect("a view")]);
    assert!(!is_store(cluster.map(), "p"));
    // The former primary leaves its successor. Other nodes may be late once more, but its own view counts,
    // and it keeps slots that are moved to it.
    let apart = [Told::primary("p", 4, []), Told::primary("h", 3, 0..100), Told::primary("q", 2, 100..200)];
    assert!(is_store(&cluster.apply(&[view(&apart).expect("a view")]).map.expect("news"), "p"));
    let _ = cluster.apply(&[successor.expect("a view")]);
    assert!(is_store(cluster.map(), "p"));
}

#[test]
fn who_has_given_its_slots_to_others_stays_a_store() {
    let before = [Told::primary("p", 1, 0..100), Told::primary("q", 2, 100..200), Told::replica("h", "p", 1)];
    let after = [Told::primary("q", 3, 0..200), Told::primary("p", 1, []), Told::replica("h", "q", 3)];
    let mut cluster = Cluster::default();
    let _ = cluster.apply(&[view(&before).expect("a view")]);
    let _ = cluster.apply(&[view(&after).expect("a view")]);
    assert!(cluster.map().stores().any(|node| node.id.as_str() == "p"));
}

#[test]
fn a_replica_that_takes_slots_over_is_a_store_at_once() {
    let before = [Told::primary("p", 1, 0..100), Told::primary("q", 2, 100..200), Told::replica("h", "p", 1)];
    let mut cluster = Cluster::default();
    let _ = cluster.apply(&[view(&before).expect("a view")]);
    let successor = cluster.map().nodes().find(|node| node.id.as_str() == "h").expect("known").key;
    // The slot moves by MOVED first, which leaves the nodes as they were; then by its owner's view.
    let map = cluster.patch(&[(0, successor)]).expect("news");
    assert!(map.stores().any(|node| node.key == successor) && map.stores().count() == 3);
    let told = [Told::primary("h", 3, 0..100), Told::primary("p", 1, []), Told::primary("q", 2, 100..200)];
    let map = cluster.apply(&[view(&told).expect("a view")]).map.expect("news");
    assert_eq!(map.stores().count(), 2);
}
