//! A node's view of a made-up cluster, read from and written as a reply to `CLUSTER NODES`.

use std::fmt::Write as _;
use std::net::SocketAddr;

use weir::values::limits::SLOTS;

/// Maximum number of cluster nodes in one reply to `CLUSTER NODES` that is read.
const NODES_MAX: usize = 1024;
const NOBODY: u16 = u16::MAX;
const LINE: &str = "ID HOST:PORT[@PORT][,NAME] FLAGS PRIMARY|- PING PONG EPOCH LINK [SLOT|FROM-TO|[SLOT->-ID]|[SLOT-<-ID]]...";

/// The view that one node of a cluster has of all nodes and slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNodes {
    nodes: Vec<Node>,
    myself: usize,
    owners: Vec<u16>,
    open: Vec<Open>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) id: String,
    pub(super) host: String,
    pub(super) port: u16,
    bus: Option<u16>,
    pub(super) name: Option<String>,
    /// The node's flags (such as `master`), without `myself`.
    flags: Vec<String>,
    primary: String,
    pub(super) epoch: u64,
    link: String,
}

impl Node {
    pub(super) fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|known| known == flag)
    }
}

/// A slot that the node itself is moving to the node with the id `peer` (`leaves` is true), or importing
/// from it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Open {
    slot: u16,
    peer: String,
    leaves: bool,
}

impl ClusterNodes {
    /// Reads a node's view of its cluster from the text of a reply to `CLUSTER NODES`. The view is that of
    /// the node with the flag `myself`, or else of the node with the address `listens`. The error is a text
    /// for the user.
    pub fn parse(text: &str, listens: Option<SocketAddr>) -> Result<Self, String> {
        Self::parse_of(text, None, listens)
    }

    /// Reads a node's view of its cluster from the text of a reply to `CLUSTER NODES`. The view is that of
    /// the node with the flag `myself`, or else of the node with this id, or else of the node with the
    /// address `listens`. The error is a text for the user.
    pub(crate) fn parse_of(
        text: &str,
        id: Option<&str>,
        listens: Option<SocketAddr>,
    ) -> Result<Self, String> {
        let mut read = Self {
            nodes: Vec::new(),
            myself: usize::MAX,
            owners: vec![NOBODY; usize::from(SLOTS)],
            open: Vec::new(),
        };
        let mut opens: Vec<Vec<Open>> = Vec::new();
        for (number, line) in text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty()) {
            let problem = |what: String| format!("line {}: {what}", number + 1);
            if read.nodes.len() == NODES_MAX {
                return Err(problem(format!("{NODES_MAX} nodes are the most")));
            }
            opens.push(read.add(line).map_err(problem)?);
        }
        let listening = |node: &Node| {
            listens.is_some_and(|at| {
                node.port == at.port() && [at.ip().to_string(), String::new()].contains(&node.host)
            })
        };
        if read.myself == usize::MAX {
            let by_id = read.nodes.iter().position(|node| Some(node.id.as_str()) == id);
            let myself = by_id.or_else(|| read.nodes.iter().position(listening));
            read.myself = myself
                .ok_or("which node is this? None has the flag myself, nor the address that --listen names")?;
        }
        read.open = opens.swap_remove(read.myself);
        Ok(read)
    }

    pub(super) fn myself(&self) -> usize {
        self.myself
    }

    pub(crate) fn my_id(&self) -> &str {
        &self.nodes[self.myself].id
    }

    pub(super) fn all(&self) -> &[Node] {
        &self.nodes
    }

    pub(super) fn node(&self, place: usize) -> &Node {
        &self.nodes[place]
    }

    pub(super) fn owner(&self, slot: u16) -> Option<usize> {
        let owner = self.owners[usize::from(slot)];
        (owner != NOBODY).then_some(usize::from(owner))
    }

    pub(super) fn primary_of(&self, place: usize) -> Option<usize> {
        self.find(&self.nodes[place].primary)
    }

    /// Returns the index of the node to which this slot of the node itself is being moved; `None` if it is
    /// not being moved.
    pub(super) fn migrates_to(&self, slot: u16) -> Option<usize> {
        let open = self.open.iter().find(|open| open.slot == slot && open.leaves)?;
        self.find(&open.peer)
    }

    pub(super) fn imports(&self, slot: u16) -> bool {
        self.open.iter().any(|open| open.slot == slot && !open.leaves)
    }

    /// Returns contiguous ranges of slots with their owner: first slot, last slot, index of the node. Slots
    /// without an owner are left out.
    pub(super) fn ranges(&self) -> Vec<(u16, u16, usize)> {
        let mut ranges: Vec<(u16, u16, usize)> = Vec::new();
        for (slot, owner) in (0..SLOTS).filter_map(|slot| Some((slot, self.owner(slot)?))) {
            match ranges.last_mut() {
                Some((_, last, same)) if *same == owner && *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot, owner)),
            }
        }
        ranges
    }

    /// Carries out `CLUSTER SETSLOT` on this node's view of the cluster. `words` are the arguments after the
    /// slot; the error is an error line for the client.
    pub(super) fn set_slot(&mut self, slot: u16, words: &[&str]) -> Result<(), String> {
        let known = |id: &str| self.find(id).ok_or_else(|| format!("ERR Unknown node {id}"));
        match words {
            [what, id] if what.eq_ignore_ascii_case("migrating") => {
                known(id)?;
                if self.owner(slot) != Some(self.myself) {
                    return Err(format!("ERR I'm not the owner of hash slot {slot}"));
                }
                self.set_open(slot, id, true);
            }
            [what, id] if what.eq_ignore_ascii_case("importing") => {
                known(id)?;
                if self.owner(slot) == Some(self.myself) {
                    return Err(format!("ERR I'm already the owner of hash slot {slot}"));
                }
                self.set_open(slot, id, false);
            }
            [what, id] if what.eq_ignore_ascii_case("node") => {
                let owner = known(id)?;
                let highest = self.nodes.iter().map(|node| node.epoch).max().unwrap_or(0);
                let epoch = &mut self.nodes[self.myself].epoch;
                if owner == self.myself && self.owners[usize::from(slot)] != owner as u16 && *epoch < highest
                {
                    *epoch = highest.saturating_add(1);
                }
                self.owners[usize::from(slot)] = owner as u16;
                self.open.retain(|open| open.slot != slot);
            }
            [what] if what.eq_ignore_ascii_case("stable") => self.open.retain(|open| open.slot != slot),
            _ => return Err("ERR Invalid CLUSTER SETSLOT action or number of arguments".to_owned()),
        }
        Ok(())
    }

    fn set_open(&mut self, slot: u16, peer: &str, leaves: bool) {
        self.open.retain(|open| open.slot != slot);
        self.open.push(Open { slot, peer: peer.to_owned(), leaves });
    }

    fn find(&self, id: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }

    fn add(&mut self, line: &str) -> Result<Vec<Open>, String> {
        let mut words = line.split_whitespace();
        let mut next = || words.next().ok_or_else(|| format!("{LINE} is expected"));
        let (id, address, flags, primary) = (next()?, next()?, next()?, next()?);
        let (_ping, _pong, epoch, link) = (next()?, next()?, next()?, next()?);
        let (endpoint, name) = address.split_once(',').unwrap_or((address, ""));
        let (endpoint, bus) = endpoint.split_once('@').unwrap_or((endpoint, ""));
        let place = || endpoint.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = place().ok_or_else(|| format!("'{address}': HOST:PORT is expected"))?;
        if self.find(id).is_some() {
            return Err(format!("'{id}' is given twice"));
        }
        let is_myself = flags.split(',').any(|flag| flag == "myself");
        if is_myself && self.myself != usize::MAX {
            return Err("only one node can be myself".to_owned());
        }
        let owner = self.nodes.len();
        let mut open = Vec::new();
        for word in words {
            if let Some(inner) = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')) {
                let parts = [("->-", true), ("-<-", false)];
                let read = parts.into_iter().find_map(|(arrow, leaves)| {
                    let (slot, peer) = inner.split_once(arrow)?;
                    Some(Open { slot: slot_number(slot)?, peer: peer.to_owned(), leaves })
                });
                open.push(read.ok_or_else(|| format!("'{word}' is no open slot"))?);
                continue;
            }
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let range = slot_number(first).zip(slot_number(last)).filter(|(first, last)| first <= last);
            let (first, last) = range.ok_or_else(|| format!("'{word}' is no slot and no range of slots"))?;
            let owners = &mut self.owners[usize::from(first)..=usize::from(last)];
            if owners.iter().any(|owner| *owner != NOBODY) {
                return Err(format!("'{word}': a slot has one owner"));
            }
            owners.fill(owner as u16);
        }
        if is_myself {
            self.myself = owner;
        }
        let name = name.split(',').next().filter(|name| !name.is_empty() && !name.contains('='));
        self.nodes.push(Node {
            id: id.to_owned(),
            host: host.to_owned(),
            port,
            bus: bus.parse().ok(),
            name: name.map(str::to_owned),
            flags: flags.split(',').filter(|flag| *flag != "myself").map(str::to_owned).collect(),
            primary: primary.to_owned(),
            epoch: epoch.parse().map_err(|_| format!("'{epoch}' is no epoch"))?,
            link: link.to_owned(),
        });
        Ok(open)
    }

    /// Returns the node's view of the cluster in the format of `CLUSTER NODES`.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let mut slots: Vec<String> = vec![String::new(); self.nodes.len()];
        for (first, last, owner) in self.ranges() {
            let end = if first == last { String::new() } else { format!("-{last}") };
            write!(slots[owner], " {first}{end}").expect("a string takes all");
        }
        for open in &self.open {
            let arrow = if open.leaves { "->-" } else { "-<-" };
            write!(slots[self.myself], " [{}{arrow}{}]", open.slot, open.peer).expect("a string takes all");
        }
        for (place, node) in self.nodes.iter().enumerate() {
            let Node { id, host, port, bus, name, flags, primary, epoch, link } = node;
            let bus = bus.unwrap_or(port.wrapping_add(10_000));
            let name = name.as_ref().map_or(String::new(), |name| format!(",{name}"));
            let myself = if place == self.myself { "myself," } else { "" };
            let (flags, slots) = (flags.join(","), &slots[place]);
            writeln!(
                text,
                "{id} {host}:{port}@{bus}{name} {myself}{flags} {primary} 0 0 {epoch} {link}{slots}"
            )
            .expect("a string takes all");
        }
        text
    }
}

/// Parses a slot number from 0 to 16,383; `None` for any other text.
pub(super) fn slot_number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|slot| *slot < SLOTS)
}
