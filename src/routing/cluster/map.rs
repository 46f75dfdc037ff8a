//! The map: which node owns each slot, and what is known of the nodes. Immutable; every shard has the same, sooner or later.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::view::NodeId;
use crate::values::limits::{CLUSTER_NODES_MAX, SLOTS};
use crate::values::{BackendId, ServerAddress};

/// A slot that nobody owns.
pub(super) const NOBODY: u16 = u16::MAX;
const _: () = assert!(CLUSTER_NODES_MAX < NOBODY as usize);

/// A place in the table of nodes, and who has it: places are used again, generations never are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeKey {
    /// The place.
    pub backend: BackendId,
    /// How many nodes were known before this one, over all places.
    pub generation: u32,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It may own slots, though it need not.
    Primary,
    /// It copies this one, unless that is not known.
    Replica(Option<BackendId>),
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it stands in the table.
    pub key: NodeKey,
    /// Its name, whatever its addresses are.
    pub id: NodeId,
    /// Where it may be reached, the best first. Empty if nobody knows.
    pub addresses: Vec<ServerAddress>,
    /// What it does.
    pub role: Role,
    /// Its config epoch: whoever got slots last has the highest. Of a replica, that of its primary.
    pub epoch: u64,
    /// Most primaries cannot reach it. It goes on owning its slots until another does.
    pub failed: bool,
    /// Its live replicas, if it is a primary.
    pub replicas: Vec<BackendId>,
}

/// A slot whose keys are on their way: the source still owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenSlot {
    /// Which slot.
    pub slot: u16,
    /// Its owner, which says ASK for keys that are gone.
    pub source: BackendId,
    /// Where they go; it may own no slots yet.
    pub target: BackendId,
}

/// Slots to nodes, at one moment.
#[derive(Clone, Debug)]
pub struct Map {
    pub(super) version: u64,
    pub(super) owners: Box<[u16]>,
    pub(super) nodes: Arc<[Option<Node>]>,
    pub(super) open: Arc<[OpenSlot]>,
    /// Slots, in order, whose owner nobody has claimed them for yet: MOVED said so.
    pub(super) hearsay: Arc<[u16]>,
}

impl Map {
    /// A map of nothing.
    pub(super) fn empty() -> Self {
        Self {
            version: 0,
            owners: vec![NOBODY; usize::from(SLOTS)].into(),
            nodes: Arc::new([]),
            open: Arc::new([]),
            hearsay: Arc::new([]),
        }
    }

    /// Counts the maps of this process; 0 is the one that knows nothing.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The node that owns a slot, if any does.
    pub fn owner(&self, slot: u16) -> Option<BackendId> {
        let owner = self.owners[usize::from(slot)];
        (owner != NOBODY).then_some(BackendId(owner))
    }

    /// The node that owns a slot, by its key: good beyond this map.
    pub fn owner_key(&self, slot: u16) -> Option<NodeKey> {
        self.owner(slot).and_then(|owner| self.node(owner)).map(|node| node.key)
    }

    /// The node at a place, if there is one.
    pub fn node(&self, backend: BackendId) -> Option<&Node> {
        self.nodes.get(usize::from(backend.0))?.as_ref()
    }

    /// The node with this key, unless it is gone.
    pub fn node_of(&self, key: NodeKey) -> Option<&Node> {
        self.node(key.backend).filter(|node| node.key == key)
    }

    /// How long a table has to be that has a place for each node.
    pub fn places(&self) -> usize {
        self.nodes.len()
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().flatten()
    }

    /// All primaries, also those without slots: they may import some, and hold keys of them.
    pub fn primaries(&self) -> impl Iterator<Item = &Node> {
        self.nodes().filter(|node| node.role == Role::Primary)
    }

    /// Nodes that may hold keys: who owns slots or takes some over, and all other primaries that have not failed.
    pub fn stores(&self) -> impl Iterator<Item = &Node> {
        let mut owns = vec![false; self.places()];
        for owner in self.owners.iter().filter(|owner| **owner != NOBODY) {
            owns[usize::from(*owner)] = true;
        }
        self.open.iter().for_each(|open| owns[usize::from(open.target.0)] = true);
        let is_well = |node: &Node| node.role == Role::Primary && !node.failed;
        self.nodes().filter(move |node| is_well(node) || owns[usize::from(node.key.backend.0)])
    }

    /// Primaries that have failed, and whose slots others have by now.
    pub fn fallen(&self) -> impl Iterator<Item = &Node> {
        let stores: Vec<NodeKey> = self.stores().map(|node| node.key).collect();
        let is_fallen = move |node: &&Node| node.failed && !stores.contains(&node.key);
        self.nodes().filter(is_fallen).filter(|node| node.role == Role::Primary)
    }

    /// Is a node a replica? One that takes over is, until this map has heard of it.
    pub fn is_replica(&self, backend: BackendId) -> bool {
        self.node(backend).is_some_and(|node| node.role != Role::Primary)
    }

    /// Has a node failed, and does another own the slot that has not?
    pub fn has_lost(&self, backend: BackendId, slot: u16) -> bool {
        let has_failed = |backend| self.node(backend).is_some_and(|node| node.failed);
        has_failed(backend) && self.owner(slot).is_some_and(|owner| !has_failed(owner))
    }

    /// The node at an address. A better address of one node goes before a lesser one of another.
    pub fn find(&self, address: &ServerAddress) -> Option<&Node> {
        let rank = |node: &Node| {
            let mut addresses = node.addresses.iter();
            addresses.position(|known| {
                known.port == address.port && known.host.eq_ignore_ascii_case(&address.host)
            })
        };
        let ranked = self.nodes().filter_map(|node| Some((rank(node)?, node)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, node)| node)
    }

    /// Slots on their way, in order. Of a node that was not asked lately, as it was when it was.
    pub fn open_slots(&self) -> &[OpenSlot] {
        &self.open
    }

    /// Is this slot on its way, as far as is known, and where from and to?
    pub fn open_slot(&self, slot: u16) -> Option<&OpenSlot> {
        let place = self.open.partition_point(|open| open.slot < slot);
        self.open.get(place).filter(|open| open.slot == slot)
    }

    /// Is its owner known by MOVED alone, which anybody may say?
    pub fn is_hearsay(&self, slot: u16) -> bool {
        self.hearsay.binary_search(&slot).is_ok()
    }

    /// Slots within a range that have another owner than in an older map.
    pub fn moved_since(&self, older: &Self, range: RangeInclusive<u16>) -> impl Iterator<Item = u16> {
        let same_nodes = Arc::ptr_eq(&self.nodes, &older.nodes);
        range.filter(move |slot| {
            let place = usize::from(*slot);
            let same_place = self.owners[place] == older.owners[place];
            !(same_place && (same_nodes || self.owner_key(*slot) == older.owner_key(*slot)))
        })
    }

    /// Nodes of an older map that are gone: their connections drain, then close.
    pub fn gone_since(&self, older: &Self) -> impl Iterator<Item = NodeKey> {
        older.nodes().map(|node| node.key).filter(|key| self.node_of(*key).is_none())
    }

    /// Places where another node is than in an older map, or one that does something else.
    pub fn changed_since(&self, older: &Self) -> Vec<BackendId> {
        let told = |map: &Self, place| map.node(place).map(|node| (node.key, node.role));
        let places = (0..self.places().max(older.places())).map(|place| BackendId(place as u16));
        places.filter(|place| told(self, *place) != told(older, *place)).collect()
    }

    /// Who has a slot that somebody else had, or nobody, by an older map.
    pub fn gained_since(&self, older: &Self) -> BTreeSet<BackendId> {
        let both = self.owners.iter().zip(&older.owners);
        both.filter(|(owner, before)| owner != before && **owner != NOBODY)
            .map(|(owner, _)| BackendId(*owner))
            .collect()
    }

    /// Do both say the same, whatever their versions?
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        self.owners == other.owners
            && self.nodes == other.nodes
            && self.open == other.open
            && self.hearsay == other.hearsay
    }
}
