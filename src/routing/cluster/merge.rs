//! Merge of views into the next map of a cluster.
//!
//! Each slot goes to the claim with the highest config epoch, never one lower than the claim in force, and
//! never by counting views: most nodes may be late.
//!
//! | claim that does not count | reason |
//! |---|---|
//! | a claim that a node owns a slot, if the node was asked too and does not say so | it knows best, up to its own epoch |
//! | the claim in force, if no view has its node any more | the cluster has forgotten the node |
//! | the claim in force, if it comes from MOVED and its node has failed | the failed node cannot correct it |
//!
//! A MOVED redirect comes without a config epoch: its claim ranks between the epoch in force and the next.
//!
//! A primary whose replica has taken its slots over becomes a replica as soon as it hears of that. The map
//! has it as a replica even before, because its successor holds the same keys, and a walk over all keys would
//! count them twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::databases::Databases;
use super::map::{Map, NOBODY, Node, NodeKey, OpenSlot, Role};
use super::refresh::Outcome;
use super::view::{NodeId, Open, Seen, View};
use crate::values::BackendId;
use crate::values::limits::{CLUSTER_NODES_MAX, SLOTS};

/// Rank of a claim to a slot, of which the highest counts: twice the config epoch of the node that claims the
/// slot or, for an owner that is known from a MOVED redirect, one more, which is half an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Epoch(u64);

impl Epoch {
    fn whole(epoch: u64) -> Self {
        Self(epoch << 1)
    }

    fn and_a_half(self) -> Self {
        Self(self.0 | 1)
    }

    fn is_patched(self) -> bool {
        self.0 & 1 == 1
    }
}

/// Reason why a node's view of the cluster was not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The view has less than half of the known node ids: another cluster uses this address.
    Strangers,
    /// The view has so many nodes that weir would have to know more than it can handle (128).
    TooManyNodes,
    /// Too many views came at once: as many views as are merged together (128) were used before this one.
    TooManyViews,
}

/// Result of merging the views that several nodes have of the cluster into the next map.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The map now in force, if it differs from the one before.
    pub map: Option<Arc<Map>>,
    /// Indices, among the merged ones, of the views that were not used, with the reasons.
    pub rejected: Vec<(usize, Rejected)>,
}

impl Applied {
    /// Returns for the schedule of refreshes how the round ended in which nodes were asked for their views;
    /// `views` are the views that were merged. A round of whose views none was used counts as one without
    /// answers: the configured addresses (seeds) may lead to the right cluster.
    pub fn outcome(&self, views: &[View]) -> Outcome {
        match (&self.map, self.rejected.len() == views.len()) {
            (Some(_), _) => Outcome::Changed,
            (None, false) => Outcome::Unchanged,
            (None, true) => Outcome::NobodyAnswered,
        }
    }

    /// Returns how many of the merged views were of another cluster, by the ids of its nodes.
    pub fn strangers(&self) -> usize {
        self.rejected.iter().filter(|(_, why)| *why == Rejected::Strangers).count()
    }

    /// True if all nodes of `map` that may have keys gave a view that was used, so that the map in force is
    /// certain. `views` are those that were merged.
    pub fn is_sure(&self, views: &[View], map: &Map) -> bool {
        let is_heeded = |place: usize| self.rejected.iter().all(|(at, _)| *at != place);
        let heeded = views.iter().enumerate().filter(|(place, _)| is_heeded(*place));
        let tellers: Vec<&NodeId> = heeded.map(|(_, view)| view.teller()).collect();
        !tellers.is_empty() && map.stores().all(|node| tellers.contains(&&node.id))
    }
}

/// State of a cluster: the map in force and the config epochs of its slots' owners. One task owns it, and
/// sends its maps to all shards.
#[derive(Clone, Debug)]
pub struct Cluster {
    map: Arc<Map>,
    /// For each slot, the config epoch with which its owner in force claims it; a claim (a view in which
    /// another node owns the slot) with a higher epoch replaces it.
    epochs: Box<[Epoch]>,
    /// Serial number (generation) of the next node that is added to the map. A node that comes back after it was
    /// missing from the map gets a new one.
    generations: u32,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            map: Arc::new(Map::empty()),
            epochs: vec![Epoch::default(); usize::from(SLOTS)].into(),
            generations: 0,
        }
    }
}

impl Cluster {
    /// Returns the map of slots in force.
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// Merges the views of the cluster that some nodes gave at about the same time into the next map of
    /// slots. Returns the map if it differs from the one before, and the views that were not used.
    pub fn apply(&mut self, views: &[View]) -> Applied {
        let (accepted, rejected) = self.accept(views);
        if accepted.is_empty() {
            return Applied { map: None, rejected };
        }
        let facts = facts(&accepted);
        let places = self.places(&facts);
        let owners = self.owners(&accepted, &facts, &places);
        let open = self.open(&accepted, &places, &owners);
        let nodes = self.nodes(&facts, &places, &owners);
        let (version, hearsay) = (self.map.version + 1, self.hearsay());
        let next = Map { version, owners, nodes: nodes.into(), open: open.into(), hearsay };
        Applied { map: self.put_in_force(next), rejected }
    }

    /// Replaces the known cluster by the one that these views show. Its nodes get new generations (serial
    /// numbers), even at indices in the table that nodes of the old cluster had.
    pub fn adopt(&mut self, views: &[View]) -> Applied {
        let Map { version, .. } = *self.map;
        self.map = Arc::new(Map { version, ..Map::empty() });
        self.epochs.fill(Epoch::default());
        self.apply(views)
    }

    /// Applies MOVED redirects, each given as a slot and the key of the node that the redirect names: the
    /// slot belongs to that node until a view with a higher epoch says otherwise. Ignores nodes that are not
    /// in the map in force, and failed nodes whose slot another node has. Returns the new map, or None if
    /// nothing changed.
    pub fn patch(&mut self, moved: &[(u16, NodeKey)]) -> Option<Arc<Map>> {
        let is_news = |(slot, key): &&(u16, NodeKey)| {
            *slot < SLOTS
                && self.map.node_of(*key).is_some()
                && self.map.owner_key(*slot) != Some(*key)
                && !self.map.has_lost(key.backend, *slot)
        };
        let news: Vec<_> = moved.iter().filter(is_news).copied().collect();
        if news.is_empty() {
            return None;
        }
        let mut next = Map { version: self.map.version + 1, ..Map::clone(&self.map) };
        for (slot, key) in &news {
            next.owners[usize::from(*slot)] = key.backend.0;
            let epoch = &mut self.epochs[usize::from(*slot)];
            *epoch = epoch.and_a_half();
        }
        next.hearsay = self.hearsay();
        let stays_open = |open: &&OpenSlot| news.iter().all(|(slot, _)| *slot != open.slot);
        if !next.open.iter().all(|open| stays_open(&open)) {
            next.open = next.open.iter().filter(stays_open).copied().collect();
        }
        self.put_in_force(next)
    }

    fn hearsay(&self) -> Arc<[u16]> {
        let patched = self.epochs.iter().zip(0..).filter(|(epoch, _)| epoch.is_patched());
        patched.map(|(_, slot)| slot).collect()
    }

    fn put_in_force(&mut self, next: Map) -> Option<Arc<Map>> {
        if next.says_the_same(&self.map) {
            return None;
        }
        self.map = Arc::new(next);
        Some(Arc::clone(&self.map))
    }

    fn accept<'a>(&self, views: &'a [View]) -> (Vec<&'a View>, Vec<(usize, Rejected)>) {
        let mut known: Vec<&NodeId> = self.map.nodes().map(|node| &node.id).collect();
        known.sort_unstable();
        let mut all: Vec<&NodeId> = Vec::new();
        let (mut accepted, mut rejected) = (Vec::<&View>::new(), Vec::new());
        for (place, view) in views.iter().enumerate() {
            let shared = view.nodes.iter().filter(|node| known.binary_search(&&node.id).is_ok()).count();
            let with_this = || {
                let mut union = all.clone();
                union.extend(view.nodes.iter().map(|node| &node.id));
                union.sort_unstable();
                union.dedup();
                union
            };
            if accepted.len() == CLUSTER_NODES_MAX {
                rejected.push((place, Rejected::TooManyViews));
            } else if shared * 2 < known.len() {
                rejected.push((place, Rejected::Strangers));
            } else if with_this().len() > CLUSTER_NODES_MAX {
                rejected.push((place, Rejected::TooManyNodes));
            } else {
                all = with_this();
                // The first view of all decides which cluster this is.
                if known.is_empty() {
                    known.clone_from(&all);
                }
                accepted.push(view);
            }
        }
        (accepted, rejected)
    }

    /// Returns an index in the map's table of nodes for each node in `facts`: its former one, or a free one.
    fn places<'a>(&mut self, facts: &Facts<'a>) -> Places<'a> {
        let mut places = Places { by_id: BTreeMap::new(), taken: vec![None; CLUSTER_NODES_MAX] };
        for node in self.map.nodes() {
            if let Some((id, _)) = facts.get_key_value(&node.id) {
                places.take(id, node.key);
            }
        }
        let newcomers: Vec<_> = facts.keys().filter(|id| !places.by_id.contains_key(*id)).collect();
        let mut free = 0;
        for id in newcomers {
            while places.taken[free].is_some() {
                free += 1;
            }
            places.take(id, NodeKey { backend: BackendId(free as u16), generation: self.generations });
            self.generations = self.generations.wrapping_add(1);
        }
        places
    }

    fn owners(&mut self, accepted: &[&View], facts: &Facts<'_>, places: &Places<'_>) -> Box<[u16]> {
        let claims: Vec<Claims> = accepted.iter().map(|view| Claims::of(view, places)).collect();
        let mut failed = [false; CLUSTER_NODES_MAX];
        for (id, fact) in facts {
            failed[usize::from(places.of(id).0)] = fact.failed;
        }
        // Claims of the nodes that answered, by their places.
        let mut tellers: Vec<Option<&Claims>> = vec![None; CLUSTER_NODES_MAX];
        for claims in &claims {
            tellers[usize::from(claims.teller)].get_or_insert(claims);
        }
        let mut owners = vec![NOBODY; usize::from(SLOTS)];
        for (slot, chosen) in owners.iter_mut().enumerate() {
            let denied = |owner: u16, epoch: Epoch| {
                let Some(own) = tellers[usize::from(owner)] else { return false };
                own.owners[slot] != owner && (epoch.is_patched() || epoch <= own.epoch_of(owner))
            };
            let in_force = self.map.owner_key(slot as u16).filter(|key| {
                let (place, epoch) = (key.backend.0, self.epochs[slot]);
                places.has(*key)
                    && !denied(place, epoch)
                    && !(epoch.is_patched() && failed[usize::from(place)])
            });
            let mut best = in_force.map(|key| (self.epochs[slot], key.backend.0));
            for own in [true, false] {
                for claims in &claims {
                    let owner = claims.owners[slot];
                    if owner == NOBODY || own != (owner == claims.teller) {
                        continue;
                    }
                    // An owner that answered itself is believed about its epoch, and not another node.
                    let epoch = match tellers[usize::from(owner)] {
                        Some(own) if own.owners[slot] == owner => own.epoch_of(owner),
                        _ => claims.epoch_of(owner),
                    };
                    let is_higher = best.is_none_or(|(highest, _)| epoch > highest);
                    if is_higher && !denied(owner, epoch) {
                        best = Some((epoch, owner));
                    }
                }
            }
            let (epoch, owner) = best.unwrap_or((Epoch::default(), NOBODY));
            (self.epochs[slot], *chosen) = (epoch, owner);
        }
        owners.into()
    }

    /// Returns the open (moving) slots: those that the nodes which answered report of themselves, and those
    /// that were known before between other nodes, as far as they fit the new owners.
    fn open(&self, accepted: &[&View], places: &Places<'_>, owners: &[u16]) -> Vec<OpenSlot> {
        let tellers: Vec<BackendId> = accepted.iter().map(|view| places.of(view.teller())).collect();
        let is_old_news = |open: &&OpenSlot| {
            let ends = [open.source, open.target];
            let still_there = |end: &BackendId| self.map.node(*end).is_some_and(|node| places.has(node.key));
            ends.iter().all(still_there) && !ends.iter().any(|end| tellers.contains(end))
        };
        let mut open: Vec<OpenSlot> = self.map.open.iter().filter(is_old_news).copied().collect();
        for (view, teller) in accepted.iter().zip(&tellers) {
            open.extend(view.open.iter().filter_map(|told| {
                let (Open::To(slot, peer) | Open::From(slot, peer)) = told;
                let peer = places.by_id.get(peer)?.backend;
                let (source, target) =
                    if matches!(told, Open::To(..)) { (*teller, peer) } else { (peer, *teller) };
                Some(OpenSlot { slot: *slot, source, target })
            }));
        }
        open.retain(|open| owners[usize::from(open.slot)] == open.source.0 && open.source != open.target);
        open.sort_unstable();
        // A source knows best where its slot goes: only one target counts.
        open.dedup_by_key(|open| open.slot);
        open
    }

    /// Returns the node that took over from a former primary (`key`) which views still call a primary: a node
    /// that was its replica and owns slots now. None if there is none, and for a primary that owns slots, has
    /// failed, or says itself that it is a primary without slots. `fact` combines what views say of the
    /// former primary; `owns` says for each place in the table of nodes whether its node owns slots.
    fn successor_of(&self, key: NodeKey, fact: &Fact<'_>, owns: &[bool]) -> Option<BackendId> {
        let knows_of_it = fact.is_own && fact.seen.slots.is_empty();
        if owns[usize::from(key.backend.0)] || fact.failed || knows_of_it {
            return None;
        }
        let before = self.map.node_of(key)?;
        let has_slots = |successor: &Node| owns.get(usize::from(successor.key.backend.0)) == Some(&true);
        match before.role {
            Role::Replica(Some(successor)) => {
                self.map.node(successor).filter(|successor| has_slots(successor))
            }
            Role::Replica(None) => None,
            Role::Primary => {
                let is_successor =
                    |node: &&Node| node.role == Role::Replica(Some(key.backend)) && has_slots(node);
                self.map.nodes().find(is_successor)
            }
        }
        .map(|successor| successor.key.backend)
    }

    fn nodes(&self, facts: &Facts<'_>, places: &Places<'_>, owners: &[u16]) -> Vec<Option<Node>> {
        let length = places.taken.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let mut nodes: Vec<Option<Node>> = vec![None; length];
        let mut owns = vec![false; length];
        for owner in owners.iter().filter(|owner| **owner != NOBODY) {
            owns[usize::from(*owner)] = true;
        }
        let primary_of = |fact: &Fact<'_>| {
            let primary = places.by_id.get(fact.seen.replica_of.as_ref()?)?;
            Some(primary.backend)
        };
        for (id, fact) in facts {
            let key = places.by_id[id];
            // A replica that was asked just before it took slots over owns them all the same.
            let role = if fact.seen.is_replica && !owns[usize::from(key.backend.0)] {
                Role::Replica(primary_of(fact))
            } else {
                self.successor_of(key, fact, &owns)
                    .filter(|successor| {
                        self.map.node(*successor).is_some_and(|successor| places.has(successor.key))
                    })
                    .map_or(Role::Primary, |successor| Role::Replica(Some(successor)))
            };
            let mut addresses = fact.seen.addresses.clone();
            // Another order of the same addresses does not change the map.
            if let Some(before) = self.map.node_of(key)
                && before.addresses.len() == addresses.len()
                && before.addresses.iter().all(|address| addresses.contains(address))
            {
                addresses.clone_from(&before.addresses);
            }
            let id = (*id).clone();
            let (epoch, failed) = (fact.seen.epoch, fact.failed);
            let before = self.map.node_of(key).and_then(|node| node.databases);
            let databases = fact.databases.or(before);
            let node = Node { key, id, addresses, role, epoch, failed, replicas: Vec::new(), databases };
            nodes[usize::from(key.backend.0)] = Some(node);
        }
        for (id, fact) in facts.iter().filter(|(_, fact)| fact.live && !fact.failed) {
            if let Some(primary) = primary_of(fact)
                && let Some(node) = &mut nodes[usize::from(primary.0)]
                && node.role == Role::Primary
            {
                node.replicas.push(places.of(id));
            }
        }
        nodes.iter_mut().flatten().for_each(|node| node.replicas.sort_unstable());
        nodes
    }
}

/// The index of each node in the next map's table of nodes.
struct Places<'a> {
    by_id: BTreeMap<&'a NodeId, NodeKey>,
    taken: Vec<Option<NodeKey>>,
}

impl<'a> Places<'a> {
    fn take(&mut self, id: &'a NodeId, key: NodeKey) {
        self.taken[usize::from(key.backend.0)] = Some(key);
        self.by_id.insert(id, key);
    }

    /// Returns the index in the next map's table of nodes of a node (`id`) that occurs in one of the views.
    fn of(&self, id: &NodeId) -> BackendId {
        self.by_id[id].backend
    }

    /// True if the node with this key is in the next map, and not another node at its index.
    fn has(&self, key: NodeKey) -> bool {
        self.taken[usize::from(key.backend.0)] == Some(key)
    }
}

/// Facts about a node of the cluster, combined from the views of all nodes that answered.
struct Fact<'a> {
    /// The node as in its own view, or else as in the view with the highest config epoch for it.
    seen: &'a Seen,
    is_own: bool,
    /// True if a view reports that most primaries consider the node failed, and the node did not reply
    /// itself.
    failed: bool,
    answered: bool,
    /// True for a replica that some node's reply to `CLUSTER SLOTS` lists, which shows that it works.
    live: bool,
    /// Databases that may be selected at the node; None if it did not say how many it has.
    databases: Option<Databases>,
}

type Facts<'a> = BTreeMap<&'a NodeId, Fact<'a>>;

fn facts<'a>(accepted: &[&'a View]) -> Facts<'a> {
    let mut facts = Facts::new();
    for view in accepted {
        for (place, seen) in view.nodes.iter().enumerate() {
            let is_own = place == view.myself;
            let first = Fact { seen, is_own, failed: false, answered: false, live: false, databases: None };
            let fact = facts.entry(&seen.id).or_insert(first);
            if (is_own, seen.epoch) > (fact.is_own, fact.seen.epoch) {
                (fact.seen, fact.is_own) = (seen, is_own);
            }
            fact.answered |= is_own;
            if is_own {
                fact.databases = view.databases.or(fact.databases);
            }
            fact.failed = (fact.failed || seen.failed) && !fact.answered;
            fact.live |= seen.live;
        }
    }
    facts
}

/// Claims of one node's view of the cluster: the owner of each slot, and the config epoch of each node, by
/// the nodes' indices in the table.
struct Claims {
    teller: u16,
    owners: Box<[u16]>,
    epochs: Box<[Epoch]>,
}

impl Claims {
    fn of(view: &View, places: &Places<'_>) -> Self {
        let mut owners = vec![NOBODY; usize::from(SLOTS)];
        let mut epochs = vec![Epoch::default(); CLUSTER_NODES_MAX];
        for seen in &view.nodes {
            let place = places.of(&seen.id).0;
            epochs[usize::from(place)] = Epoch::whole(seen.epoch);
            for (first, last) in &seen.slots {
                owners[usize::from(*first)..=usize::from(*last)].fill(place);
            }
        }
        Self { teller: places.of(view.teller()).0, owners: owners.into(), epochs: epochs.into() }
    }

    fn epoch_of(&self, place: u16) -> Epoch {
        self.epochs[usize::from(place)]
    }
}
