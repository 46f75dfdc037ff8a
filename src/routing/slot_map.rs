//! Which node of a cluster owns which slot, as control has found out. Immutable; every shard has the newest that it was sent.

use std::fmt;
use std::sync::Arc;

use crate::values::BackendId;
use crate::values::limits::SLOTS;

/// Nodes of a cluster that weir knows at once: each has a place among the backends for as long as it is a member.
pub const CLUSTER_NODES_MAX: u16 = 64;

/// No node.
const NOBODY: u8 = u8::MAX;

const _: () = assert!(CLUSTER_NODES_MAX < NOBODY as u16);

/// The map of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotMap {
    version: u64,
    owners: Box<[u8]>,
    members: Vec<Member>,
    /// By place among the backends.
    names: Vec<String>,
}

/// A node that may be sent something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its place among the backends.
    pub backend: BackendId,
    /// Where it is reached, as redirections name it: the first is how it is called.
    pub addresses: Vec<(String, u16)>,
    /// It owns slots, or imports some.
    pub is_primary: bool,
}

impl SlotMap {
    /// Nobody owns anything yet.
    pub fn empty() -> Arc<Self> {
        Arc::new(Self {
            version: 0,
            owners: vec![NOBODY; usize::from(SLOTS)].into(),
            members: Vec::new(),
            names: Vec::new(),
        })
    }

    /// A later version: who owns each slot, and who there is.
    pub fn new(
        version: u64,
        owner_of: impl Fn(u16) -> Option<BackendId>,
        mut members: Vec<Member>,
    ) -> Arc<Self> {
        members.sort_by_key(|member| member.backend.0);
        let place = |slot| owner_of(slot).map_or(NOBODY, |owner| owner.0 as u8);
        let mut names = vec![String::new(); usize::from(CLUSTER_NODES_MAX)];
        for member in &members {
            if let (Some(name), Some((host, port))) =
                (names.get_mut(usize::from(member.backend.0)), member.addresses.first())
            {
                *name = format!("{host}:{port}");
            }
        }
        Arc::new(Self { version, owners: (0..SLOTS).map(place).collect(), members, names })
    }

    /// Counts up with every map.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The node that owns a slot.
    #[inline]
    pub fn owner(&self, slot: u16) -> Option<BackendId> {
        match self.owners[usize::from(slot)] {
            NOBODY => None,
            owner => Some(BackendId(u16::from(owner))),
        }
    }

    /// The node that a redirection names.
    pub fn find(&self, host: &str, port: u16) -> Option<BackendId> {
        let is_there = |(known, at): &(String, u16)| known == host && *at == port;
        self.members.iter().find(|member| member.addresses.iter().any(is_there)).map(|member| member.backend)
    }

    /// All of them.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Nodes that have keys of their own.
    pub fn primaries(&self) -> impl Iterator<Item = BackendId> {
        self.members.iter().filter(|member| member.is_primary).map(|member| member.backend)
    }

    /// How a node is called.
    pub fn name_of(&self, backend: BackendId) -> &str {
        self.names.get(usize::from(backend.0)).map_or("", String::as_str)
    }
}

impl fmt::Debug for SlotMap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owned = self.owners.iter().filter(|owner| **owner != NOBODY).count();
        out.debug_struct("SlotMap")
            .field("version", &self.version)
            .field("owned", &owned)
            .field("members", &self.members)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_says_who_owns_what_and_who_is_where() {
        let member = |backend, addresses: &[(&str, u16)], is_primary| Member {
            backend: BackendId(backend),
            addresses: addresses.iter().map(|(host, port)| ((*host).to_owned(), *port)).collect(),
            is_primary,
        };
        let members = vec![
            member(1, &[("b", 2)], true),
            member(0, &[("a", 1), ("alias", 1)], true),
            member(2, &[("c", 3)], false),
        ];
        let owner = |slot: u16| (slot != 7).then_some(BackendId(slot % 2));
        let map = SlotMap::new(3, owner, members);
        assert_eq!(
            (map.owner(4), map.owner(5), map.owner(7)),
            (Some(BackendId(0)), Some(BackendId(1)), None)
        );
        assert_eq!((map.find("alias", 1), map.find("alias", 2)), (Some(BackendId(0)), None));
        assert_eq!(map.primaries().collect::<Vec<_>>(), [BackendId(0), BackendId(1)]);
        assert_eq!((map.name_of(BackendId(0)), map.name_of(BackendId(9))), ("a:1", ""));
        assert!((0..SLOTS).all(|slot| SlotMap::empty().owner(slot).is_none()));
    }
}
