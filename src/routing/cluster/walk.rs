//! Walk of `SCAN` over all nodes of a cluster, while slots change their owners: a key that is there all the
//! time is shown at least once.
//!
//! ```text
//!   plan of a map: all nodes, ordered by (does it take slots over, config epoch, id)
//!                  ── then again the nodes that take slots over, if one of them also gives slots away
//!                  ── then again the nodes that give slots away
//!   cursor:        fingerprint of the map (17 bits) | visit of its plan (9) | the node's own cursor, or that the visit is over (37)
//! ```
//!
//! While a slot is on the move, the walk visits its owner, then the node it moves to, then the owner once
//! more: keys may go back if the move is called off. So a key is shown that goes over and comes back, except
//! for one that goes over again before weir has a map that shows that the move was called off.
//!
//! A visit of a node counts as over only once the map has been confirmed after the scan of the node ended. So
//! all earlier visits were over before any change that the map of the cursor does not have. When another map
//! is in force, the walk goes back to the first visit that has to be made for a slot whose keys may not have
//! been shown, because the slot has come to a node that was visited before or is being visited. Nodes that
//! take slots over come last, and so do nodes that have just got some, whose epoch is higher: a walk seldom
//! goes back.
//!
//! A fingerprint means the same to every weir before the cluster. A cursor whose map is not remembered starts
//! over.

use std::collections::VecDeque;
use std::sync::Arc;

use super::map::{Map, NodeKey, OpenSlot};
use crate::values::BackendId;
use crate::values::limits::{CLUSTER_NODES_MAX, SLOTS};

/// Number of bits of a client's `SCAN` cursor that hold the fingerprint of the map of the cluster.
const PRINT_BITS: u32 = 17;
/// Number of bits of a client's `SCAN` cursor that hold the number of the visit (the scan of one node).
const VISIT_BITS: u32 = 9;
/// Number of bits of a client's `SCAN` cursor that hold the node's own cursor: clients may keep cursors in 63
/// bits and a sign.
const INNER_BITS: u32 = 63 - PRINT_BITS - VISIT_BITS;
/// Value in a client's `SCAN` cursor in place of the node's own cursor when the scan of that node has ended.
const OVER: u64 = (1 << INNER_BITS) - 1;
/// Maximum number of maps of the cluster whose plans are kept, so that clients' `SCAN` cursors made with them
/// can be read; of more, the oldest is dropped, and a cursor made with it begins the walk anew.
const MAPS_MAX: usize = 64;

const _: () = assert!(CLUSTER_NODES_MAX * 3 <= 1 << VISIT_BITS, "a plan visits a node three times at most");
/// Value in place of the number of a visit (scan of one node) that means that there is no such visit.
const NEVER: usize = usize::MAX;

/// Position of a walk (`SCAN` over all nodes) in the plan made from some map of the cluster, which a cursor
/// encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkPosition {
    print: u32,
    visit: u16,
    inner: u64,
}

/// Next step of a client's walk (`SCAN` over all nodes of a cluster).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkStep {
    /// Sends the client's next `SCAN` to a node of the cluster, with the node's own cursor.
    Visit {
        /// The node that gets the next `SCAN`.
        node: NodeKey,
        /// The node's own cursor that the next `SCAN` continues from: the one that it gave last, or 0.
        cursor: u64,
        /// Position of the walk (`SCAN` over all nodes) at this visit (scan of one node), from which
        /// [`WalkPosition::after`] makes the client's next cursor.
        position: WalkPosition,
    },
    /// Waits until the map of slots is confirmed: the scan of a node has ended, and whether slots have moved
    /// since has to be known before the next scan begins.
    Unsure,
    /// Ends the walk (`SCAN` over all nodes): all keys were returned.
    Done,
    /// Refuses the walk (`SCAN` over all nodes), because there is no node to send `SCAN` to.
    Nowhere,
}

impl WalkPosition {
    /// Returns the client's next cursor after the node has answered with the cursor `next`. The client's
    /// cursor is never 0: a `next` of 0 ends only the visit (scan of this node), not the walk (`SCAN` over
    /// all nodes). None if `next` is 2^37 - 1 or more and so does not fit.
    pub fn after(self, next: u64) -> Option<u64> {
        let inner = if next == 0 { OVER } else { next };
        (next < OVER).then(|| Self { inner, ..self }.to_cursor())
    }

    fn to_cursor(self) -> u64 {
        let high = u64::from(self.print) << VISIT_BITS | u64::from(self.visit);
        high << INNER_BITS | self.inner
    }

    /// Reads a client's `SCAN` cursor. Any number can be read: an invented one belongs to no known map, or is
    /// some position in the plan of a known map.
    fn of_cursor(cursor: u64) -> Self {
        let (high, inner) = (cursor >> INNER_BITS, cursor & OVER);
        Self { print: (high >> VISIT_BITS) as u32, visit: (high & ((1 << VISIT_BITS) - 1)) as u16, inner }
    }
}

/// The plans (nodes to scan, in order) of the maps that clients' `SCAN` cursors may belong to, the newest
/// last.
#[derive(Clone, Debug, Default)]
pub struct Walks(VecDeque<Arc<Plan>>);

impl Walks {
    /// Adds the plan (nodes to scan, in order) of a map that is in force from now on. Of more than 64 plans
    /// the oldest is dropped.
    pub fn handle_map(&mut self, map: &Arc<Map>) {
        let plan = Plan::of(map);
        // A map that comes again replaces its earlier plan: in between nothing was asked.
        self.0.retain(|known| known.print != plan.print);
        self.0.push_back(Arc::new(plan));
        if self.0.len() > MAPS_MAX {
            self.0.pop_front();
        }
    }

    /// Returns the step of a walk (`SCAN` over all nodes) to which a client's cursor leads. `is_sure` says
    /// that the newest map was confirmed after the client got the cursor.
    pub fn step(&self, cursor: u64, is_sure: bool) -> WalkStep {
        let Some(newest) = self.0.back().filter(|newest| !newest.visits.is_empty()) else {
            return WalkStep::Nowhere;
        };
        let start = WalkPosition { print: newest.print, visit: 0, inner: 0 };
        let at = WalkPosition::of_cursor(cursor);
        let of = self.0.iter().rev().find(|plan| plan.print == at.print);
        let Some(of) = of.filter(|of| usize::from(at.visit) < of.visits.len()) else {
            return newest.visit(start);
        };
        if at.inner == OVER && !is_sure {
            return WalkStep::Unsure;
        }
        newest.visit(newest.position_from(of, at))
    }
}

/// Plan of a walk (`SCAN` over all nodes) made from one map of the cluster: the nodes to scan, in order.
#[derive(Clone, Debug)]
struct Plan {
    print: u32,
    visits: Vec<NodeKey>,
    map: Arc<Map>,
    /// For each node, by its place in the table of nodes, the positions in the plan at which it is visited
    /// (scanned).
    at: Vec<Visits>,
}

/// Positions, in the plan of a walk over all nodes, at which one node is visited (scanned): up to three.
#[derive(Clone, Copy, Debug)]
struct Visits {
    first: usize,
    /// Position of the visit at which the node is scanned as the target of moving slots: its first visit or,
    /// if a target of moving slots also gives slots away, a second one after the first visits of all nodes.
    /// [`NEVER`] if the node is not scanned.
    as_target: usize,
    /// Position of the second visit (scan) of this node, which follows the visits of all nodes that its slots
    /// move to; [`NEVER`] if there is none.
    again: usize,
}

impl Plan {
    fn of(map: &Arc<Map>) -> Self {
        let takes_over = |key: NodeKey| map.open.iter().any(|open| open.target == key.backend);
        let gives = |key: NodeKey| map.open.iter().any(|open| map.owner(open.slot) == Some(key.backend));
        let mut nodes: Vec<_> =
            map.stores().map(|node| (takes_over(node.key), node.epoch, &node.id, node.key)).collect();
        nodes.sort_unstable();
        let print = print_of(map, nodes.iter().map(|(_, _, id, key)| (id.as_str(), key.backend.0)));
        let mut visits: Vec<NodeKey> = nodes.iter().map(|(_, _, _, key)| *key).collect();
        let givers: Vec<NodeKey> = visits.iter().copied().filter(|key| gives(*key)).collect();
        let targets: Vec<NodeKey> = visits.iter().copied().filter(|key| takes_over(*key)).collect();
        let mut at = vec![Visits { first: NEVER, as_target: NEVER, again: NEVER }; map.places()];
        for (visit, key) in visits.iter().enumerate() {
            at[usize::from(key.backend.0)] = Visits { first: visit, as_target: visit, again: NEVER };
        }
        if targets.iter().any(|key| gives(*key)) {
            for key in targets {
                at[usize::from(key.backend.0)].as_target = visits.len();
                visits.push(key);
            }
        }
        for key in givers {
            at[usize::from(key.backend.0)].again = visits.len();
            visits.push(key);
        }
        Self { print, visits, map: Arc::clone(map), at }
    }

    fn visit(&self, position: WalkPosition) -> WalkStep {
        match self.visits.get(usize::from(position.visit)) {
            Some(node) => WalkStep::Visit { node: *node, cursor: position.inner, position },
            None => WalkStep::Done,
        }
    }

    /// Returns for each node, by its place in the table of nodes, whether its config epoch has grown since
    /// the older plan without a new slot: slots may have moved away and come back.
    fn regained_since(&self, older: &Self) -> Vec<bool> {
        let grown = |place: usize| {
            let node = self.map.nodes.get(place)?.as_ref()?;
            Some(node.epoch > older.map.node_of(node.key)?.epoch)
        };
        let mut regained: Vec<bool> =
            (0..self.map.places()).map(|place| grown(place).unwrap_or(false)).collect();
        for slot in self.map.moved_since(&older.map, 0..=SLOTS - 1) {
            if let Some(owner) = self.map.owner(slot) {
                regained[usize::from(owner.0)] = false;
            }
        }
        regained
    }

    /// Returns the nodes that have keys of a slot: its owner, and the node to which it moves by `open`. Each
    /// is None if there is none.
    fn keys_of(&self, slot: u16, open: Option<&OpenSlot>) -> (Option<NodeKey>, Option<NodeKey>) {
        let target = open.and_then(|open| self.map.node(open.target)).map(|node| node.key);
        (self.map.owner_key(slot), target)
    }

    fn visits_of(&self, key: NodeKey) -> Visits {
        self.at[usize::from(key.backend.0)]
    }

    /// Returns the numbers of the visits (scans of one node) that are made for a slot, in their order, and how
    /// many there are: one at its `owner`; three if the slot moves to `target`.
    fn visits_for(&self, owner: NodeKey, target: Option<NodeKey>) -> ([usize; 3], usize) {
        let Visits { first, again, .. } = self.visits_of(owner);
        match target {
            Some(target) => ([first, self.visits_of(target).as_target, again], 3),
            None => ([first, NEVER, NEVER], 1),
        }
    }

    /// Translates a position in the plan `older`, which may be this plan, into a position in this plan: the
    /// first visit (scan of one node) that still has to be made for some slot.
    fn position_from(&self, older: &Self, at: WalkPosition) -> WalkPosition {
        let (visit, is_over) = (usize::from(at.visit), at.inner == OVER);
        if older.print == self.print {
            let (visit, inner) = if is_over { (visit + 1, 0) } else { (visit, at.inner) };
            return WalkPosition { print: self.print, visit: visit as u16, inner };
        }
        // The first visit that must still be made, and true if it must start from its beginning.
        let (mut next, mut anew) = (self.visits.len(), true);
        let mut make = |visit: usize, is_new: bool| match visit.cmp(&next) {
            std::cmp::Ordering::Less => (next, anew) = (visit, is_new),
            std::cmp::Ordering::Equal => anew |= is_new,
            std::cmp::Ordering::Greater => {}
        };
        let regained = self.regained_since(older);
        let (mut before, mut now) = (OpenSlots::of(older), OpenSlots::of(self));
        for slot in 0..SLOTS {
            let were = older.keys_of(slot, before.at(slot));
            let are = self.keys_of(slot, now.at(slot));
            let is_same = were == are && !were.0.is_some_and(|owner| regained[usize::from(owner.backend.0)]);
            let Some(owner) = are.0 else { continue };
            let Some(former) = were.0 else {
                make(self.visits_of(owner).first, true);
                continue;
            };
            let (visits, count) = older.visits_for(former, were.1);
            // A node that took the slot over has what left the former owner. Else keys may have come back
            // since.
            let needed = if !is_same && were.1 == Some(owner) { 2 } else { count };
            // A change may have come during the visit that has just ended.
            let is_made = |made: usize| made < visit || (made == visit && is_over && is_same);
            let Some(missing) = visits[..needed].iter().position(|made| !is_made(*made)) else { continue };
            if is_same {
                let goes_on = visits[missing] == visit && !is_over;
                make(self.visits_for(owner, are.1).0[missing], !goes_on);
            } else {
                make(self.visits_of(owner).first, true);
            }
        }
        let inner = if anew { 0 } else { at.inner };
        WalkPosition { print: self.print, visit: next as u16, inner }
    }
}

/// Finds the open slots (moving from one node to another) of a map by number, if called in ascending order of
/// slots.
struct OpenSlots<'a>(std::iter::Peekable<std::slice::Iter<'a, OpenSlot>>);

impl<'a> OpenSlots<'a> {
    fn of(plan: &'a Plan) -> Self {
        Self(plan.map.open.iter().peekable())
    }

    fn at(&mut self, slot: u16) -> Option<&'a OpenSlot> {
        self.0.next_if(|open| open.slot == slot)
    }
}

/// Returns a fingerprint of a map in 17 bits, made of its nodes, their order and epochs, the owners of slots
/// and the moving slots. The same in every process (FNV-1a). `nodes` are the ids and table indices of the
/// nodes, in the order of their scans.
fn print_of<'a>(map: &Map, nodes: impl Iterator<Item = (&'a str, u16)>) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    let mut order = vec![u16::MAX; map.places()];
    for (number, (id, place)) in nodes.enumerate() {
        add(id.as_bytes());
        let epoch = map.node(BackendId(place)).map_or(0, |node| node.epoch);
        add(&epoch.to_le_bytes());
        order[usize::from(place)] = number as u16;
    }
    let number = |place: u16| order.get(usize::from(place)).copied().unwrap_or(u16::MAX);
    let mut last = None;
    for (slot, owner) in map.owners.iter().enumerate() {
        if last != Some(*owner) {
            last = Some(*owner);
            add(&(slot as u16).to_le_bytes());
            add(&number(*owner).to_le_bytes());
        }
    }
    for open in map.open.iter() {
        [open.slot, number(open.source.0), number(open.target.0)]
            .iter()
            .for_each(|part| add(&part.to_le_bytes()));
    }
    // All bits count, and no value is that of the cursor 0.
    let folded = hash ^ hash >> 32 ^ hash >> 16;
    (folded as u32 % ((1 << PRINT_BITS) - 1)) + 1
}
