//! Map of a cluster: the owner of each slot, and the nodes. Immutable; every shard has the same, sooner or
//! later.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::databases::Databases;
use super::view::NodeId;
use crate::values::limits::{CLUSTER_NODES_MAX, SLOTS};
use crate::values::{BackendId, ServerAddress};

/// Value in place of a slot's owner if no node owns the slot.
pub(super) const NOBODY: u16 = u16::MAX;
const _: () = assert!(CLUSTER_NODES_MAX < NOBODY as usize);

/// Key of a cluster's node: its index in the table of nodes, and a generation that distinguishes it from
/// other nodes at the same index. Indices are used again, generations never are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeKey {
    /// Index of the node in the table of nodes.
    pub backend: BackendId,
    /// Serial number of the node: how many nodes, at all indices of the table, became known before it.
    pub generation: u32,
}

/// Role of a cluster's node: primary or replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The node is a primary: it may own slots, though it need not.
    Primary,
    /// The node is a replica of this primary; None if the primary is not known.
    Replica(Option<BackendId>),
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Key of the node: its index in the table of nodes and its serial number.
    pub key: NodeKey,
    /// Id of the node in the cluster, which does not change with its addresses.
    pub id: NodeId,
    /// Addresses of the node, the best first; empty if none is known.
    pub addresses: Vec<ServerAddress>,
    /// Role of the node: primary or replica.
    pub role: Role,
    /// Config epoch, a number of the cluster: the node that was given slots last has the highest. A replica
    /// has that of its primary.
    pub epoch: u64,
    /// True if most primaries cannot reach the node. It still owns its slots until another node takes them
    /// over.
    pub failed: bool,
    /// Live replicas of the node, if it is a primary.
    pub replicas: Vec<BackendId>,
    /// Databases that may be selected at the node, by its last reply about them; None before it was asked.
    pub databases: Option<Databases>,
}

/// A slot that is moving from one node to another; the source still owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenSlot {
    /// Number of the slot, 0 to 16,383.
    pub slot: u16,
    /// Owner of the slot, which replies ASK for keys that have moved.
    pub source: BackendId,
    /// Node that the keys move to; it may own no slots yet.
    pub target: BackendId,
}

/// Map of a cluster: the owners of all slots at one moment, and the nodes.
#[derive(Clone, Debug)]
pub struct Map {
    pub(super) version: u64,
    pub(super) owners: Box<[u16]>,
    pub(super) nodes: Arc<[Option<Node>]>,
    pub(super) open: Arc<[OpenSlot]>,
    /// Slots, in order, whose owner is known only from a MOVED redirect and not from the owner's own view.
    pub(super) hearsay: Arc<[u16]>,
}

impl Map {
    /// Creates a map without nodes.
    pub(super) fn empty() -> Self {
        Self {
            version: 0,
            owners: vec![NOBODY; usize::from(SLOTS)].into(),
            nodes: Arc::new([]),
            open: Arc::new([]),
            hearsay: Arc::new([]),
        }
    }

    /// Returns the serial number of this map among those that the process has made; 0 is the empty map.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the node that owns a slot; None if none does.
    pub fn owner(&self, slot: u16) -> Option<BackendId> {
        let owner = self.owners[usize::from(slot)];
        (owner != NOBODY).then_some(BackendId(owner))
    }

    /// Returns the key of the node that owns a slot, which stays valid with later maps; None if no node does.
    pub fn owner_key(&self, slot: u16) -> Option<NodeKey> {
        self.owner(slot).and_then(|owner| self.node(owner)).map(|node| node.key)
    }

    /// Returns the node at this index in the table of nodes; None if there is none.
    pub fn node(&self, backend: BackendId) -> Option<&Node> {
        self.nodes.get(usize::from(backend.0))?.as_ref()
    }

    /// Returns the node with this key; None if it is not in the cluster any more.
    pub fn node_of(&self, key: NodeKey) -> Option<&Node> {
        self.node(key.backend).filter(|node| node.key == key)
    }

    /// Returns the databases that exist at all nodes which have reported how many they have; None if none
    /// has.
    pub fn databases(&self) -> Option<Databases> {
        self.nodes().filter_map(|node| node.databases).min()
    }

    /// Returns the length of the table of nodes, indices without a node included.
    pub fn places(&self) -> usize {
        self.nodes.len()
    }

    /// Returns all nodes of the cluster.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().flatten()
    }

    /// Returns all primaries, including those without slots: they may be importing slots, and have keys of
    /// them.
    pub fn primaries(&self) -> impl Iterator<Item = &Node> {
        self.nodes().filter(|node| node.role == Role::Primary)
    }

    /// Returns the nodes that may have keys: owners of slots, nodes that slots move to, and all other
    /// primaries that have not failed.
    pub fn stores(&self) -> impl Iterator<Item = &Node> {
        let mut owns = vec![false; self.places()];
        for owner in self.owners.iter().filter(|owner| **owner != NOBODY) {
            owns[usize::from(*owner)] = true;
        }
        self.open.iter().for_each(|open| owns[usize::from(open.target.0)] = true);
        let is_well = |node: &Node| node.role == Role::Primary && !node.failed;
        self.nodes().filter(move |node| is_well(node) || owns[usize::from(node.key.backend.0)])
    }

    /// Returns the primaries that have failed and own no slots, since other nodes have taken them over.
    pub fn fallen(&self) -> impl Iterator<Item = &Node> {
        let stores: Vec<NodeKey> = self.stores().map(|node| node.key).collect();
        let is_fallen = move |node: &&Node| node.failed && !stores.contains(&node.key);
        self.nodes().filter(is_fallen).filter(|node| node.role == Role::Primary)
    }

    /// True if a node is a replica. A replica that takes over counts as one until the map changes.
    pub fn is_replica(&self, backend: BackendId) -> bool {
        self.node(backend).is_some_and(|node| node.role != Role::Primary)
    }

    /// True if a node (`backend`) has failed and another node, which has not, owns the slot.
    pub fn has_lost(&self, backend: BackendId, slot: u16) -> bool {
        let has_failed = |backend| self.node(backend).is_some_and(|node| node.failed);
        has_failed(backend) && self.owner(slot).is_some_and(|owner| !has_failed(owner))
    }

    /// Returns the node at an address. Where two nodes have it, the node for which it is the better address
    /// (earlier in its list). None if no node has it.
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

    /// Returns the slots that are moving from one node to another, by their numbers in ascending order. A
    /// node that was not asked lately counts as it was when it was last asked.
    pub fn open_slots(&self) -> &[OpenSlot] {
        &self.open
    }

    /// Returns from which node to which a slot is moving; None if the slot is not known to be moving.
    pub fn open_slot(&self, slot: u16) -> Option<&OpenSlot> {
        let place = self.open.partition_point(|open| open.slot < slot);
        self.open.get(place).filter(|open| open.slot == slot)
    }

    /// True if the owner of a slot is known from a MOVED redirect alone, which any node (or script) may send.
    pub fn is_hearsay(&self, slot: u16) -> bool {
        self.hearsay.binary_search(&slot).is_ok()
    }

    /// Returns the slots of a range whose owner differs from that in an older map.
    pub fn moved_since(&self, older: &Self, range: RangeInclusive<u16>) -> impl Iterator<Item = u16> {
        let same_nodes = Arc::ptr_eq(&self.nodes, &older.nodes);
        range.filter(move |slot| {
            let place = usize::from(*slot);
            let same_place = self.owners[place] == older.owners[place];
            !(same_place && (same_nodes || self.owner_key(*slot) == older.owner_key(*slot)))
        })
    }

    /// Returns the keys (`NodeKey`, which identify nodes) of those nodes of an older map that this map lacks:
    /// their connections drain, then close.
    pub fn gone_since(&self, older: &Self) -> impl Iterator<Item = NodeKey> {
        older.nodes().map(|node| node.key).filter(|key| self.node_of(*key).is_none())
    }

    /// Returns the indices in the table of nodes at which the node or its role differs from an older map.
    pub fn changed_since(&self, older: &Self) -> Vec<BackendId> {
        let told = |map: &Self, place| map.node(place).map(|node| (node.key, node.role));
        let places = (0..self.places().max(older.places())).map(|place| BackendId(place as u16));
        places.filter(|place| told(self, *place) != told(older, *place)).collect()
    }

    /// Returns the nodes that own at least one slot which they did not own in an older map.
    pub fn gained_since(&self, older: &Self) -> BTreeSet<BackendId> {
        let both = self.owners.iter().zip(&older.owners);
        both.filter(|(owner, before)| owner != before && **owner != NOBODY)
            .map(|(owner, _)| BackendId(*owner))
            .collect()
    }

    /// True if this map and `other` are equal apart from their versions.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        self.owners == other.owners
            && self.nodes == other.nodes
            && self.open == other.open
            && self.hearsay == other.hearsay
    }
}
