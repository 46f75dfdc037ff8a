//! Simulation of SCAN over a cluster in which slots move and nodes fail over: a made-up cluster that checks
//! that each key is visited.

use std::collections::{BTreeMap, BTreeSet};

use super::super::map::{Node, OpenSlot};
use super::super::walk::{WalkStep, Walks};
use super::*;
use crate::values::limits::SLOTS;
use crate::values::{BackendId, Random};

/// The number of slots that have keys; the other slots stay with the first node.
const SLOTS_USED: u16 = 6;
const BUCKETS: u64 = 8;

/// A simulated cluster: nodes that return the keys of one of eight buckets in each step of `SCAN`, in another
/// order on every node.
struct World {
    /// The id and epoch of each node, and true if the node is gone.
    nodes: Vec<(String, u64, bool)>,
    owners: Vec<usize>,
    open: BTreeMap<u16, usize>,
    /// Slots whose move to another node is being called off: their keys go back one by one.
    returning: BTreeSet<u16>,
    /// Slots that were moving at some time since weir last got a map, and have stopped moving.
    closed: BTreeSet<u16>,
    /// The number of the node that has each key; a key is given by its slot and a number.
    keys: BTreeMap<(u16, u32), usize>,
    epoch: u64,
}

impl World {
    fn new(random: &mut Random) -> Self {
        let count = random.between(2, 5) as usize;
        let nodes =
            (0..count).map(|node| (format!("n{}", (node * 7 + 3) % 10), node as u64, false)).collect();
        let owners: Vec<usize> = (0..SLOTS_USED).map(|_| random.index(count)).collect();
        let keys = (0..SLOTS_USED).flat_map(|slot| (0..4).map(move |key| (slot, key)));
        let keys = keys.map(|(slot, key)| ((slot, key), owners[usize::from(slot)])).collect();
        let (open, returning, closed) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { nodes, owners, open, returning, closed, keys, epoch: count as u64 }
    }

    fn living(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| !self.nodes[*node].2).collect()
    }

    /// Makes a random change: a slot moves, opens or closes, or a node fails over.
    fn change(&mut self, random: &mut Random) {
        let slot = random.below(u64::from(SLOTS_USED)) as u16;
        let owner = self.owners[usize::from(slot)];
        let others: Vec<usize> = self.living().into_iter().filter(|node| *node != owner).collect();
        let all = self.keys.keys().copied().filter(|key| key.0 == slot).collect::<Vec<_>>();
        match (random.below(6), self.open.get(&slot).copied()) {
            (0, _) => {
                // The node's replica takes over, whose hash table has an order of its own.
                let successor = self.nodes.len();
                self.epoch += 1;
                self.nodes.push((format!("r{successor}"), self.epoch, false));
                self.nodes[owner].2 = true;
                let places =
                    self.owners.iter_mut().chain(self.open.values_mut()).chain(self.keys.values_mut());
                places.filter(|node| **node == owner).for_each(|node| *node = successor);
            }
            (1, None) => {
                // The whole slot moves at once.
                let target = *random.pick(&others);
                all.iter().for_each(|key| _ = self.keys.insert(*key, target));
                self.give(slot, target);
            }
            // A move that starts again and again without weir hearing of it cannot be followed, so it is left
            // out.
            (_, None) if self.closed.contains(&slot) => {}
            (_, None) => _ = self.open.insert(slot, *random.pick(&others)),
            (0..3, Some(_)) if self.returning.contains(&slot) => {
                // The move is cancelled.
                all.iter().for_each(|key| _ = self.keys.insert(*key, owner));
                self.close(slot);
            }
            (_, Some(_)) if self.returning.contains(&slot) => {
                _ = self.keys.insert(*random.pick(&all), owner);
            }
            (1, Some(target)) => {
                all.iter().for_each(|key| _ = self.keys.insert(*key, target));
                self.give(slot, target);
            }
            (2, Some(_)) => _ = self.returning.insert(slot),
            (_, Some(target)) => _ = self.keys.insert(*random.pick(&all), target),
        }
    }

    fn close(&mut self, slot: u16) {
        self.open.remove(&slot);
        self.returning.remove(&slot);
        self.closed.insert(slot);
    }

    fn give(&mut self, slot: u16, target: usize) {
        self.close(slot);
        self.owners[usize::from(slot)] = target;
        // The epoch grows as in Redis.
        if self.nodes[target].1 < self.epoch {
            self.epoch += 1;
            self.nodes[target].1 = self.epoch;
        }
    }

    fn map(&mut self) -> Arc<Map> {
        self.closed.clear();
        let mut owners = vec![0; usize::from(SLOTS)];
        let first = self.living()[0];
        owners.fill(first as u16);
        for (slot, owner) in self.owners.iter().enumerate() {
            owners[slot] = *owner as u16;
        }
        let node = |(place, (id, epoch, is_gone)): (usize, &(String, u64, bool))| {
            let key = NodeKey { backend: BackendId(place as u16), generation: place as u32 };
            let id = NodeId::new(id).expect("an id");
            let (addresses, replicas) = (Vec::new(), Vec::new());
            let (role, databases) = (Role::Primary, None);
            let node = Node { key, id, addresses, role, epoch: *epoch, failed: false, replicas, databases };
            (!is_gone).then_some(node)
        };
        let open = self.open.iter().map(|(slot, target)| OpenSlot {
            slot: *slot,
            source: BackendId(self.owners[usize::from(*slot)] as u16),
            target: BackendId(*target as u16),
        });
        let nodes: Vec<Option<Node>> = self.nodes.iter().enumerate().map(node).collect();
        let (owners, nodes, open) = (owners.into(), nodes.into(), open.collect());
        Arc::new(Map { version: 1, owners, nodes, open, hearsay: Arc::new([]) })
    }

    /// Returns the reply of a node to one step of its own SCAN: the keys of one bucket, sometimes of two, and
    /// the next cursor.
    fn page(&self, node: usize, cursor: u64, random: &mut Random) -> (Vec<(u16, u32)>, u64) {
        let end = cursor + random.between(1, 2);
        let bucket = |key: &(u16, u32)| {
            u64::from(key.0).wrapping_mul(31).wrapping_add(u64::from(key.1) * 17 + node as u64 * 13) % BUCKETS
        };
        let here = self.keys.iter().filter(|(_, at)| **at == node).map(|(key, _)| *key);
        let page = here.filter(|key| (cursor..end).contains(&bucket(key))).collect();
        (page, if end >= BUCKETS { 0 } else { end })
    }
}

#[test]
fn a_key_that_is_there_all_the_time_is_shown() {
    let (mut walks_done, mut steps_all, mut visits_all) = (0, 0, 0);
    for seed in 0..200 {
        let random = &mut Random::new(seed);
        let mut world = World::new(random);
        let mut walks = Walks::default();
        walks.handle_map(&world.map());
        let mut changes = random.below(24);
        let (mut cursor, mut shown) = (0, BTreeSet::new());
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < 3_000, "seed {seed}: it ends");
            while changes > 0 && random.below(4) == 0 {
                changes -= 1;
                world.change(random);
                // Weir hears of one change in three at once.
                if random.below(3) == 0 {
                    walks.handle_map(&world.map());
                }
            }
            match walks.step(cursor, false) {
                WalkStep::Visit { node, cursor: inner, position } => {
                    let place = usize::from(node.backend.0);
                    visits_all += 1;
                    if world.nodes[place].2 {
                        // The node is no primary any more, so weir refreshes its map.
                        walks.handle_map(&world.map());
                        continue;
                    }
                    let (page, next) = world.page(place, inner, random);
                    shown.extend(page);
                    cursor = position.after(next).expect("small");
                    assert!(cursor > 0 && cursor < 1 << 63);
                }
                WalkStep::Unsure => {
                    walks.handle_map(&world.map());
                    match walks.step(cursor, true) {
                        WalkStep::Done => break,
                        WalkStep::Visit { node, cursor: inner, position } => {
                            if world.nodes[usize::from(node.backend.0)].2 {
                                continue;
                            }
                            let (page, next) = world.page(usize::from(node.backend.0), inner, random);
                            shown.extend(page);
                            cursor = position.after(next).expect("small");
                        }
                        step => panic!("seed {seed}: {step:?}"),
                    }
                }
                WalkStep::Done => break,
                WalkStep::Nowhere => panic!("seed {seed}"),
            }
        }
        let missed: Vec<_> = world.keys.keys().filter(|key| !shown.contains(*key)).collect();
        assert!(missed.is_empty(), "seed {seed}: {missed:?} of {:?}", world.keys);
        (walks_done, steps_all) = (walks_done + 1, steps_all + steps);
    }
    assert!(visits_all > walks_done * 10 && steps_all > walks_done * 10);
}

#[test]
fn cursors_that_nobody_gave_start_somewhere_or_over() {
    let random = &mut Random::new(1);
    let mut walks = Walks::default();
    assert_eq!(walks.step(0, true), WalkStep::Nowhere);
    let mut world = World::new(random);
    walks.handle_map(&world.map());
    let start = walks.step(0, false);
    for cursor in [1, 77, 1 << 40, u64::MAX, u64::MAX >> 1] {
        assert!(matches!(walks.step(cursor, true), WalkStep::Visit { .. }));
    }
    assert_eq!(walks.step(1 << 62 | 1, true), start);
    let WalkStep::Visit { position, .. } = start else { panic!("{start:?}") };
    assert!(position.after((1 << 37) - 2).is_some());
    assert_eq!(position.after((1 << 37) - 1), None);
    assert_eq!(position.after(u64::MAX), None);
    // The cursor is one visit too large.
    let beyond = position.after(0).expect("small") | 200 << 37;
    assert_eq!(walks.step(beyond, true), start);
}

/// During resharding, nodes that give slots away are visited before the node that gets them, whose visit does
/// not start again for each slot.
#[test]
fn a_walk_ends_though_slots_go_on_moving() {
    let random = &mut Random::new(7);
    let mut world = World::new(random);
    while world.nodes.len() < 3 {
        world = World::new(random);
    }
    world.owners.fill(0);
    world.keys.values_mut().for_each(|at| *at = 0);
    let mut walks = Walks::default();
    walks.handle_map(&world.map());
    let (mut cursor, mut steps, mut turn) = (0, 0, 0);
    loop {
        steps += 1;
        assert!(steps < 500);
        // Slots move to and fro; each move that began is over a few steps later.
        if steps % 3 == 0 {
            let (slot, target) = (turn % SLOTS_USED, 1 + usize::from(turn / SLOTS_USED % 2));
            if world.open.remove(&slot).is_some() {
                world.give(slot, target);
                turn += 1;
            } else {
                world.open.insert(slot, target);
            }
            walks.handle_map(&world.map());
        }
        match walks.step(cursor, true) {
            WalkStep::Visit { node, cursor: inner, position } => {
                let (_, next) = world.page(usize::from(node.backend.0), inner, random);
                cursor = position.after(next).expect("small");
            }
            WalkStep::Done => break,
            step => panic!("{step:?}"),
        }
    }
}

/// Keys that were migrated go back one by one before the move is cancelled, with any maps that weir may have
/// meanwhile.
#[test]
fn keys_that_come_back_are_shown_by_their_owner_once_more() {
    for heard in ["nothing", "it was called off", "another slot goes over"] {
        let random = &mut Random::new(3);
        let mut world = World::new(random);
        world.owners.fill(0);
        world.keys.values_mut().for_each(|at| *at = 0);
        let key = (2, 1);
        world.open.insert(key.0, 1);
        _ = world.keys.insert(key, 1);
        let mut walks = Walks::default();
        walks.handle_map(&world.map());
        let (mut cursor, mut shown, mut visited) = (0, BTreeSet::new(), Vec::new());
        while let WalkStep::Visit { node, cursor: inner, position } = walks.step(cursor, true) {
            let place = usize::from(node.backend.0);
            if visited.last() != Some(&place) {
                visited.push(place);
            }
            if place == 1 {
                // The owner was visited while it had no such key, and the node that takes over is being
                // visited now.
                _ = world.keys.insert(key, 0);
            }
            let (page, next) = world.page(place, inner, random);
            shown.extend(page);
            cursor = position.after(next).expect("small");
            if place == 1 && next == 0 {
                match heard {
                    "it was called off" => world.close(key.0),
                    "another slot goes over" => _ = world.open.insert(3, 1),
                    _ => {}
                }
                walks.handle_map(&world.map());
            }
        }
        assert_eq!(visited.iter().filter(|place| **place == 0).count(), 2, "{heard}: {visited:?}");
        assert_eq!(shown, world.keys.keys().copied().collect(), "{heard}: {visited:?}");
    }
}
