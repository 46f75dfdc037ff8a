//! View of a cluster: one node's replies to `CLUSTER SLOTS` and `CLUSTER NODES`.
//!
//! | reply | facts taken from it |
//! |---|---|
//! | `CLUSTER NODES` | ids, config epochs, roles, flags, slots, and the node's own open slots |
//! | `CLUSTER SLOTS` | endpoints, as the cluster wants to be reached; which replicas are live |
//!
//! Owners and their epochs come out of one reply, so that they belong together. `CLUSTER SLOTS` has no
//! primary without slots, though it may import some; `CLUSTER SHARDS` counts a failed primary as one more
//! shard.

use std::collections::BTreeMap;
use std::fmt;

use super::databases::Databases;
use super::refusal::{digits, host_and_port, is_host};
use crate::protocol::{ReplyScanner, reply};
use crate::values::ServerAddress;
use crate::values::limits::{CLUSTER_NODES_MAX, CLUSTER_REPLY_BYTES_MAX, NODE_ID_BYTES_MAX, SLOTS};

/// Maximum number of bytes kept of a node's error reply, for the log.
const ERROR_BYTES_MAX: usize = 128;
/// Maximum number of addresses of one node in one view: its endpoint, its IP address, its name.
const ADDRESSES_MAX: usize = 3;

/// Id of a cluster node, which it keeps when its address changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(Box<str>);

impl NodeId {
    /// Checks and creates an id; `None` if the text cannot be a node's id.
    pub fn new(text: &str) -> Option<Self> {
        let sane = (1..=NODE_ID_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        sane.then(|| Self(text.into()))
    }

    /// Returns the node's id as the cluster writes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Reason why a node's replies could not be read as a view of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The node replied with this error: it is not in a cluster, is still loading, or does not permit the
    /// command.
    Refused(String),
    /// The replies do not have the form of replies to `CLUSTER SLOTS` and `CLUSTER NODES`; the text names the
    /// problem.
    Malformed(&'static str),
    /// The replies are larger than a view of a cluster may be (8 MiB each, 128 nodes).
    TooLarge,
    /// The node has no slots, and knows no other node yet.
    KnowsNobody,
}

/// One node's view of the cluster: the nodes that it knows, and the owners of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// All nodes that this node knows by their ids, without those that are still in the handshake.
    pub(super) nodes: Vec<Seen>,
    /// Index in `nodes` of the node that gave the view.
    pub(super) myself: usize,
    /// Open slots (moving to or from another node) of the node that gave the view.
    pub(super) open: Vec<Open>,
    /// Databases of the node that gave the view; `None` if it was not asked for them, or did not say.
    pub(super) databases: Option<Databases>,
}

/// One node of the cluster, as the node that gave the view sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: NodeId,
    /// Config epoch of the node; for a replica, that of its primary.
    pub(super) epoch: u64,
    /// Id of the primary that the node copies, if it is a replica of a known one; else None.
    pub(super) replica_of: Option<NodeId>,
    pub(super) is_replica: bool,
    /// True if most primaries consider the node failed. (`fail?` is the opinion of one node, and does not
    /// count.)
    pub(super) failed: bool,
    /// Addresses of the node, the best first; empty if none is known.
    pub(super) addresses: Vec<ServerAddress>,
    /// True for a replica that is in `CLUSTER SLOTS`, which shows that it works.
    pub(super) live: bool,
    /// Ranges of slots that the node owns, both ends included; no slot is in two ranges of a view.
    pub(super) slots: Vec<(u16, u16)>,
}

/// A slot that moves from or to the node that gave the view, with the other node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Open {
    To(u16, NodeId),
    From(u16, NodeId),
}

impl View {
    /// Reads the whole replies (RESP2) to `CLUSTER SLOTS` and `CLUSTER NODES` (`slots` and `nodes`) of the
    /// node at the address `asked`. An error if they are no view of a cluster.
    pub fn parse(asked: &ServerAddress, slots: &[u8], nodes: &[u8]) -> Result<Self, Unusable> {
        for whole in [slots, nodes] {
            check(whole)?;
        }
        let mut view = read_nodes(asked, nodes)?;
        view.note_endpoints(asked, slots)?;
        let alone = view.nodes.len() == 1 && view.nodes[0].slots.is_empty();
        if alone { Err(Unusable::KnowsNobody) } else { Ok(view) }
    }

    /// Adds the databases of the node that gave the view; None if they are not known.
    #[must_use]
    pub fn with_databases(self, databases: Option<Databases>) -> Self {
        Self { databases, ..self }
    }

    /// Returns the id of the node that gave the view.
    pub fn teller(&self) -> &NodeId {
        &self.nodes[self.myself].id
    }

    fn note_endpoints(&mut self, asked: &ServerAddress, slots: &[u8]) -> Result<(), Unusable> {
        const WRONG: Unusable = Unusable::Malformed("CLUSTER SLOTS");
        let places: BTreeMap<NodeId, usize> =
            self.nodes.iter().enumerate().map(|(place, node)| (node.id.clone(), place)).collect();
        let mut noted = vec![false; self.nodes.len()];
        for range in reply::elements(slots).ok_or(WRONG)? {
            let mut parts = reply::elements(range).ok_or(WRONG)?;
            for _ in 0..2 {
                parts.next().and_then(reply::integer).ok_or(WRONG)?;
            }
            for (position, node) in parts.enumerate() {
                let mut fields = reply::elements(node).ok_or(WRONG)?;
                let host = fields.next().ok_or(WRONG)?;
                let port = fields.next().and_then(reply::integer).ok_or(WRONG)?;
                let id = fields.next().and_then(reply::text).and_then(|id| std::str::from_utf8(id).ok());
                let id = id.and_then(NodeId::new).ok_or(WRONG)?;
                // A node that joined between the two replies, or that is still in its handshake, is missing
                // in the other reply.
                let Some(place) = places.get(&id) else { continue };
                let seen = &mut self.nodes[*place];
                seen.live |= position > 0;
                if !std::mem::replace(&mut noted[*place], true)
                    && let Some(endpoint) = endpoint(asked, host, port)
                {
                    seen.addresses.retain(|address| *address != endpoint);
                    seen.addresses.insert(0, endpoint);
                    seen.addresses.truncate(ADDRESSES_MAX);
                }
            }
        }
        Ok(())
    }
}

/// Checks that the bytes are one whole reply of at most 8 MiB, and not an error.
fn check(whole: &[u8]) -> Result<(), Unusable> {
    if whole.len() > CLUSTER_REPLY_BYTES_MAX {
        return Err(Unusable::TooLarge);
    }
    match ReplyScanner::default().scan(whole) {
        Ok(Some(scanned)) if scanned.end == whole.len() => {}
        _ => return Err(Unusable::Malformed("no whole reply")),
    }
    if whole[0] == b'-' {
        let text = reply::text(whole).unwrap_or_default();
        let text = &text[..text.len().min(ERROR_BYTES_MAX)];
        return Err(Unusable::Refused(String::from_utf8_lossy(text).into_owned()));
    }
    Ok(())
}

/// Returns the address of a node (`host` and `port`) by its entry in `CLUSTER SLOTS`. NULL and an empty host
/// stand for the host of the node that answered (`asked`). None for `?`, which means that no address is
/// known, and for an invalid one.
fn endpoint(asked: &ServerAddress, host: &[u8], port: i64) -> Option<ServerAddress> {
    let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
    let host = std::str::from_utf8(reply::text(host).unwrap_or_default()).ok()?;
    match host {
        "" => Some(ServerAddress { host: asked.host.clone(), port }),
        "?" => None,
        host => is_host(host).then(|| ServerAddress { host: host.to_owned(), port }),
    }
}

fn read_nodes(asked: &ServerAddress, nodes: &[u8]) -> Result<View, Unusable> {
    const WRONG: Unusable = Unusable::Malformed("CLUSTER NODES");
    let text = if nodes[0] == b'$' { reply::text(nodes) } else { None };
    let text = text.and_then(|text| std::str::from_utf8(text).ok()).ok_or(WRONG)?;
    let mut view = View { nodes: Vec::new(), myself: usize::MAX, open: Vec::new(), databases: None };
    let mut claimed = vec![false; usize::from(SLOTS)];
    let mut ids = std::collections::BTreeSet::new();
    for line in text.split('\n').filter(|line| !line.is_empty()) {
        let line = Line::read(line).ok_or(WRONG)?;
        // The id is made up until the handshake is over.
        if line.flag("handshake") {
            continue;
        }
        if view.nodes.len() == CLUSTER_NODES_MAX {
            return Err(Unusable::TooLarge);
        }
        let (seen, open) = line.seen(asked, &mut claimed).ok_or(WRONG)?;
        if !ids.insert(seen.id.clone()) {
            return Err(WRONG);
        }
        if line.flag("myself") {
            if view.myself != usize::MAX {
                return Err(WRONG);
            }
            view.myself = view.nodes.len();
            view.open = open;
        }
        view.nodes.push(seen);
    }
    if view.myself == usize::MAX { Err(WRONG) } else { Ok(view) }
}

/// A line of `CLUSTER NODES`: `id ip:port@cport,hostname flags primary ping pong epoch link slot ...`
struct Line<'a> {
    id: &'a str,
    address: &'a str,
    flags: &'a str,
    primary: &'a str,
    epoch: &'a str,
    slots: std::str::Split<'a, char>,
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut words = line.trim_end_matches('\r').split(' ');
        let (id, address, flags, primary) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let (_ping, _pong, epoch, _link) = (words.next()?, words.next()?, words.next()?, words.next()?);
        Some(Self { id, address, flags, primary, epoch, slots: words })
    }

    fn flag(&self, name: &str) -> bool {
        self.flags.split(',').any(|flag| flag == name)
    }

    fn seen(&self, asked: &ServerAddress, claimed: &mut [bool]) -> Option<(Seen, Vec<Open>)> {
        let is_replica = self.flag("slave") || self.flag("replica");
        let replica_of = if self.primary == "-" { None } else { Some(NodeId::new(self.primary)?) };
        let mut seen = Seen {
            id: NodeId::new(self.id)?,
            // The epoch is kept with one more bit, which a real one never needs.
            epoch: digits(self.epoch).filter(|epoch| *epoch <= u64::MAX >> 1)?,
            replica_of: replica_of.filter(|_| is_replica),
            is_replica,
            failed: self.flag("fail"),
            addresses: if self.flag("noaddr") { Vec::new() } else { addresses(asked, self.address) },
            live: false,
            slots: Vec::new(),
        };
        let mut open = Vec::new();
        for word in self.slots.clone().filter(|word| !word.is_empty()) {
            if let Some(inner) = word.strip_prefix('[') {
                open.push(Open::read(inner.strip_suffix(']')?)?);
                if open.len() > usize::from(SLOTS) {
                    return None;
                }
                continue;
            }
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let (first, last): (u16, u16) = (digits(first)?, digits(last)?);
            let range = claimed.get_mut(usize::from(first)..=usize::from(last))?;
            // No slot may be in two ranges, which also bounds the work, whatever the node writes.
            if range.is_empty() || range.contains(&true) {
                return None;
            }
            range.fill(true);
            seen.slots.push((first, last));
        }
        Some((seen, open))
    }
}

impl Open {
    /// Reads a moving slot in `CLUSTER NODES`: `93->-id` (to a node) or `77-<-id` (from a node). None for any
    /// other text.
    fn read(text: &str) -> Option<Self> {
        let slot = |text| digits(text).filter(|slot| *slot < SLOTS);
        if let Some((number, id)) = text.split_once("->-") {
            Some(Self::To(slot(number)?, NodeId::new(id)?))
        } else {
            let (number, id) = text.split_once("-<-")?;
            Some(Self::From(slot(number)?, NodeId::new(id)?))
        }
    }
}

/// Reads the addresses of a node in `ip:port@cport[,hostname[,name=value...]]`, where older versions of the
/// store leave parts out. Returns first the ip with the port, then the hostname with the same port if there
/// is a valid and different one; nothing if the first part is no `ip:port`. An empty host stands for that of
/// the node that answered (`asked`).
fn addresses(asked: &ServerAddress, text: &str) -> Vec<ServerAddress> {
    let mut parts = text.split(',');
    let endpoint = parts.next().unwrap_or_default();
    let endpoint = endpoint.split_once('@').map_or(endpoint, |(endpoint, _)| endpoint);
    let Some((host, port)) = host_and_port(endpoint) else { return Vec::new() };
    let host = if host.is_empty() { &asked.host } else { host };
    let name = parts.next().filter(|name| !name.is_empty() && !name.contains('=') && is_host(name));
    let mut found = vec![ServerAddress { host: host.to_owned(), port }];
    if let Some(name) = name.filter(|name| *name != host) {
        found.push(ServerAddress { host: name.to_owned(), port });
    }
    found
}
