//! A cluster of simulated stores: which store owns each slot, slots that move between stores key by key, and
//! the requests that each store therefore refuses.
//!
//! Nodes lie as well: they redirect a request to a wrong node or to an address without a node, and give
//! outdated views of others. And a script may end with the words of a refusal though it was carried out.
//!
//! Keys move for good: a store holds only keys that it was sent or given, so a request that reaches the wrong
//! store is noticed by later reads.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use super::falls::{Fall, Life, Roles, Step, Way};
use super::plan::Moves;
use super::store::Store;
use weir::protocol::{Arguments, command};
use weir::routing::cluster::View;
use weir::routing::cluster::failover_probe::Said;
use weir::routing::slot_of;
use weir::values::limits::SLOTS;
use weir::values::time::Now;
use weir::values::{Random, ServerAddress, Timestamp};

/// A slot whose keys are being moved from one simulated node (`source`) to another (`target`), one by one.
#[derive(Clone, Copy, Debug)]
struct Open {
    source: u16,
    target: u16,
    /// True once the target node claims to own the slot, while the source node does not know that yet.
    claimed: bool,
}

/// A simulated node's decision on a request: carry it out, answer it, or refuse it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    CarryOut,
    /// The node replies with this text and does nothing else.
    Answered(String),
    /// The node replies with this error (MOVED, ASK and the like) and does not carry the request out.
    Refused(String),
}

/// A step that was taken to move a slot between nodes of the simulated cluster, and its line in the printed list
/// of events.
#[derive(Debug)]
pub(super) struct News {
    pub told: String,
    /// The slot and its former owner, if this step has made it the new owner's for good; else `None`.
    pub moved: Option<(u16, u16)>,
}

/// The state of the simulated cluster: the owners of slots, and what some of the nodes do not know yet.
#[derive(Debug)]
pub(super) struct Cluster {
    moves: Moves,
    nodes: u16,
    owners: Vec<u16>,
    epochs: Vec<u64>,
    open: BTreeMap<u16, Open>,
    /// The time at which each slot last moved to another node, by slot.
    settled: BTreeMap<u16, Timestamp>,
    /// The time at which a script on each slot last replied falsely that the slot had moved, although the
    /// script was carried out.
    forged: RefCell<BTreeMap<u16, Timestamp>>,
    /// Earlier owners of all slots, with the nodes' configuration epochs, which nodes that learn of changes
    /// late may still report; the newest last.
    past: VecDeque<(Vec<u16>, Vec<u64>)>,
    /// The number of slots that have moved from one node to another.
    pub moved: u64,
    /// The roles of the cluster's nodes (primary or replica, working or away); `None` if no node goes away
    /// in this world.
    pub roles: Option<Roles>,
}

/// Maximum number of earlier states of the cluster (owners of slots) that nodes may still report.
const PAST_MOST: usize = 4;

const TRY_AGAIN: &str = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
pub(super) const CLUSTER_DOWN: &str = "-CLUSTERDOWN The cluster is down\r\n";
const ROLE_OF_PRIMARY: &str = "*3\r\n$6\r\nmaster\r\n:7\r\n*0\r\n";

/// An address that no node has, for false redirects.
const NOBODY: &str = "10.0.0.99:7099";
/// The time for which weir may believe a script's false reply that its slot has moved (MOVED). The slot does
/// not move meanwhile, since a true redirect could not be told from the false one.
const FORGED_FELT: Duration = Duration::from_secs(2);
/// Maximum number of slots that move at the same time; no further move begins meanwhile.
const OPEN_MOST: usize = 3;

impl Cluster {
    pub fn new(moves: Moves, nodes: u16) -> Self {
        let roles = moves.falls.map(|falls| Roles::new(falls, nodes));
        let primaries = if roles.is_some() { nodes / 2 } else { nodes };
        let owner = |slot| (u32::from(slot) * u32::from(primaries) / u32::from(SLOTS)) as u16;
        Self {
            moves,
            nodes,
            roles,
            owners: (0..SLOTS).map(owner).collect(),
            epochs: (1..=u64::from(nodes)).collect(),
            open: BTreeMap::new(),
            settled: BTreeMap::new(),
            forged: RefCell::default(),
            past: VecDeque::new(),
            moved: 0,
        }
    }

    pub fn moves(&self) -> Moves {
        self.moves
    }

    /// True if no slot of the cluster is being moved now.
    pub fn is_at_rest(&self) -> bool {
        self.open.is_empty()
    }

    /// True if the node is a working primary that is neither about to go away nor to take over, so that slots
    /// may move from it or to it.
    fn is_settled(&self, node: u16) -> bool {
        self.roles.as_ref().is_none_or(|roles| roles.is_settled(node))
    }

    /// Returns the owner of a slot as far as this node knows: the former one, until it has learnt of the
    /// last takeover.
    fn owner_as_known(&self, node: u16, slot: u16, now: Timestamp) -> u16 {
        let owner = self.owners[usize::from(slot)];
        let late = self.roles.as_ref().and_then(|roles| roles.is_late(node, now));
        late.filter(|(_, taken)| taken[usize::from(slot)]).map_or(owner, |(old, _)| old)
    }

    /// True if a node still believes that it owns this slot, although another node has taken it over.
    pub fn is_deluded(&self, node: usize, slot: u16, now: Timestamp) -> bool {
        let node = node as u16;
        self.owners[usize::from(slot)] != node && self.owner_as_known(node, slot, now) == node
    }

    /// Decides whether a script on this slot may reply falsely that the slot has moved, although the script
    /// is carried out; if so, records the time. Never during a move of the slot or a takeover: the reply
    /// might then be true, and could not be told from a refusal.
    pub fn forge(&self, slot: u16, now: Timestamp) -> bool {
        let falls = self.roles.as_ref().is_some_and(|roles| roles.fall.is_some());
        let may_be = falls || self.open.contains_key(&slot);
        if !may_be {
            self.forged.borrow_mut().insert(slot, now);
        }
        !may_be
    }

    /// True if a script replied falsely, less than 2 seconds ago, that this slot had moved, so that the slot
    /// must not move now.
    fn is_forged(&self, slot: u16, now: Timestamp) -> bool {
        self.forged.borrow().get(&slot).is_some_and(|at| now.since(*at) < FORGED_FELT)
    }

    /// Chooses at random a primary that is to fail or to hand over to its replica, among those of which no
    /// slot is being moved. If there is none, no further move of a slot begins until there is.
    pub fn begin_fall(&mut self, now: Timestamp, random: &mut Random) {
        let is_free = |node: &u16| {
            let is_end = |open: &Open| open.source == *node || open.target == *node;
            let has_to_stay = (0..SLOTS).any(|slot| self.owner(slot) == *node && self.is_forged(slot, now));
            self.is_settled(*node) && !self.open.values().any(is_end) && !has_to_stay
        };
        let free: Vec<u16> = (0..self.nodes).filter(is_free).collect();
        let Some(roles) = self.roles.as_mut().filter(|roles| roles.fall.is_none()) else { return };
        roles.is_awaited = free.is_empty();
        if !free.is_empty() {
            roles.begin(*random.pick(&free), random);
        }
    }

    /// Carries out the next step of the failure of a primary in progress, and of the takeover by its replica. Returns
    /// the failure with that step (`next`), and the time until the step after it; `None` if no primary fails at
    /// present.
    pub fn fall_goes_on(&mut self, now: Timestamp, random: &mut Random) -> Option<(Fall, Duration)> {
        let (fall, after) = self.roles.as_mut()?.go_on(now, random)?;
        if fall.next == Step::TakenOver {
            self.past.push_back((self.owners.clone(), self.epochs.clone()));
            if self.past.len() > PAST_MOST {
                self.past.pop_front();
            }
            let taken = self.slots_of(fall.old);
            for (owner, _) in self.owners.iter_mut().zip(&taken).filter(|(_, is_taken)| **is_taken) {
                *owner = fall.successor;
            }
            let newest = self.epochs.iter().max().copied().unwrap_or_default();
            self.epochs[usize::from(fall.successor)] = newest + 1;
            self.roles.as_mut()?.note_taken(taken);
        }
        Some((fall, after))
    }

    /// Returns, for each slot, whether the node owns it.
    pub fn slots_of(&self, node: u16) -> Vec<bool> {
        self.owners.iter().map(|owner| *owner == node).collect()
    }

    /// Returns, for each slot, whether the node owns it, or owned it before one of the last (at most four)
    /// changes of owners.
    pub fn slots_had_lately(&self, node: u16) -> Vec<bool> {
        let maps = self.past.iter().map(|(owners, _)| owners).chain([&self.owners]);
        let mut had = vec![false; self.owners.len()];
        for owners in maps {
            had.iter_mut().zip(owners).for_each(|(had, owner)| *had |= *owner == node);
        }
        had
    }

    /// True if the node with this index is a replica.
    pub fn is_replica(&self, node: usize) -> bool {
        self.roles.as_ref().is_some_and(|roles| roles.copies[node].is_some())
    }

    pub fn owner(&self, slot: u16) -> u16 {
        self.owners[usize::from(slot)]
    }

    /// Returns the node's reply to the command ROLE, encoded in RESP2.
    fn role_of(&self, node: u16) -> String {
        let copied = self.roles.as_ref().and_then(|roles| roles.copies[usize::from(node)]);
        match copied {
            Some(primary) => {
                let ServerAddress { host, port } = address_of(primary);
                format!(
                    "*5\r\n$5\r\nslave\r\n${}\r\n{host}\r\n:{port}\r\n$9\r\nconnected\r\n:7\r\n",
                    host.len()
                )
            }
            None => ROLE_OF_PRIMARY.to_owned(),
        }
    }

    /// Returns the replica's reply to the command ROLE as weir parses it: whether it has become a primary,
    /// or still has one, or has lost the connection to it; `None` if the replica itself is away.
    pub fn replica_says(&self, node: u16) -> Option<Said> {
        let roles = self.roles.as_ref()?;
        let is_well = |node: u16| roles.life(node) == Life::Well;
        is_well(node).then(|| match roles.copies[usize::from(node)] {
            None => Said::IsPrimary,
            // The connection to a stopped process still exists.
            Some(primary) if is_well(primary) || roles.life(primary) == Life::Away(Way::Stopped) => {
                Said::HasPrimary
            }
            Some(_) => Said::HasNone,
        })
    }

    /// Returns the indices of the stores that may hold keys of the slot: the owner first, then the node that
    /// the slot is being moved to, if it is.
    pub fn holders_of(&self, slot: u16) -> Vec<usize> {
        let open = self.open.get(&slot).map(|open| usize::from(open.target));
        std::iter::once(usize::from(self.owners[usize::from(slot)])).chain(open).collect()
    }

    /// Decides what the node with the index `node` does with a request. `requests` is that request, or all
    /// requests that an `EXEC` would carry out; `asking` is true if ASKING came before, and `holds` tells
    /// whether the node has a key. An error if weir should not have sent the request.
    pub fn judge<'a>(
        &self,
        (node, now): (usize, Timestamp),
        asking: bool,
        requests: impl Iterator<Item = Arguments<'a>>,
        holds: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Verdict, String> {
        let mut keys: BTreeSet<&[u8]> = BTreeSet::new();
        for arguments in requests {
            match arguments.name() {
                b"ASKING" => return Ok(Verdict::Answered("+OK\r\n".to_owned())),
                b"ROLE" => return Ok(Verdict::Answered(self.role_of(node as u16))),
                _ => {}
            }
            let Ok(command) = command::recognise(&arguments) else { continue };
            let _ = command.for_each_key(&arguments, &mut |index| {
                keys.insert(arguments.at(index));
            });
        }
        let Some(slot) = keys.first().map(|key| slot_of(key)) else { return Ok(Verdict::CarryOut) };
        if keys.iter().any(|key| slot_of(key) != slot) {
            return Err("a node was sent a request for keys of several slots".into());
        }
        let missing = keys.iter().filter(|key| !holds(key)).count();
        let refused = |line: String| Ok(Verdict::Refused(line));
        let node = node as u16;
        if self.roles.as_ref().is_some_and(|roles| roles.says_down(node, now)) {
            return refused(CLUSTER_DOWN.to_owned());
        }
        let owner = self.owner_as_known(node, slot, now);
        match self.open.get(&slot) {
            Some(open) if open.source == node => match missing {
                0 => Ok(Verdict::CarryOut),
                missing if missing < keys.len() => refused(TRY_AGAIN.to_owned()),
                _ => refused(format!("-ASK {slot} {}\r\n", address_of(open.target))),
            },
            Some(open) if open.target == node && open.claimed => Ok(Verdict::CarryOut),
            Some(open) if open.target == node && asking => {
                if keys.len() > 1 && missing > 0 {
                    refused(TRY_AGAIN.to_owned())
                } else {
                    Ok(Verdict::CarryOut)
                }
            }
            _ if owner == node => Ok(Verdict::CarryOut),
            _ => refused(format!("-MOVED {slot} {}\r\n", address_of(owner))),
        }
    }

    /// Carries out the next step of moving a slot between nodes, or begins to move the slot `wanted`, if
    /// given. Returns the step if it began or ended a move; else `None`.
    pub fn go_on(
        &mut self,
        stores: &mut [Store],
        wanted: Option<u16>,
        now: Now,
        random: &mut Random,
    ) -> Option<News> {
        if self.open.is_empty() || (self.open.len() < OPEN_MOST && random.per_mille(200)) {
            return self.begin(stores, wanted?, now, random);
        }
        let slots: Vec<u16> = self.open.keys().copied().collect();
        let slot = *random.pick(&slots);
        let Open { source, target, claimed } = self.open[&slot];
        // A stalled node neither gives nor takes keys. Else a slot could leave it and come back while one of its
        // connections stands still, whose requests no other node can end.
        if [source, target].iter().any(|node| stores[usize::from(*node)].is_stuck(now.monotonic)) {
            return None;
        }
        let keys = stores[usize::from(source)].keys(now);
        let keys: Vec<Vec<u8>> = keys.into_iter().filter(|key| slot_of(key) == slot).collect();
        if !keys.is_empty() {
            for _ in 0..random.between(1, 2) {
                let key = random.pick(&keys);
                let copy_of = |node| self.roles.as_ref().and_then(|roles| roles.replica_of(node));
                if let Some((value, until)) = stores[usize::from(source)].take(key, now) {
                    stores[usize::from(target)].put(key, &value, until, now);
                    // The key is copied to the replicas too, so that it is not lost if either node goes away.
                    if let Some(copy) = copy_of(source) {
                        catch_up(stores, source, copy);
                        stores[usize::from(copy)].take(key, now);
                    }
                    if let Some(copy) = copy_of(target) {
                        catch_up(stores, target, copy);
                        stores[usize::from(copy)].put(key, &value, until, now);
                    }
                }
            }
            return None;
        }
        if claimed {
            self.open.remove(&slot);
            self.past.push_back((self.owners.clone(), self.epochs.clone()));
            if self.past.len() > PAST_MOST {
                self.past.pop_front();
            }
            self.owners[usize::from(slot)] = target;
            self.settled.insert(slot, now.monotonic);
            self.moved += 1;
            let told = format!("slot {slot} has moved from {source} to {target}");
            return Some(News { told, moved: Some((slot, source)) });
        }
        let newest = self.epochs.iter().max().copied().unwrap_or_default();
        self.epochs[usize::from(target)] = newest + 1;
        self.open.insert(slot, Open { source, target, claimed: true });
        None
    }

    /// Begins to move a slot to a random other node. `None` if the slot must not move now: a node is failing,
    /// the slot is being moved already, or requests may still follow an earlier redirect of the slot, true or
    /// false, to the new node. Refusals of these could not be told from those of this move.
    fn begin(&mut self, stores: &[Store], slot: u16, now: Now, random: &mut Random) -> Option<News> {
        let source = self.owners[usize::from(slot)];
        let others: Vec<u16> =
            (0..self.nodes).filter(|node| *node != source && self.is_settled(*node)).collect();
        let is_awaited = self.roles.as_ref().is_some_and(|roles| roles.is_awaited);
        if others.is_empty() || !self.is_settled(source) || is_awaited {
            return None;
        }
        let target = *random.pick(&others);
        let settled = self.settled.get(&slot).copied();
        let is_early = settled.is_some_and(|at| now.monotonic.since(at) < self.moves.rest);
        let is_early = is_early || self.is_forged(slot, now.monotonic);
        if self.open.contains_key(&slot) || is_early || stores[usize::from(target)].will_be_asked() {
            return None;
        }
        self.open.insert(slot, Open { source, target, claimed: false });
        Some(News { told: format!("slot {slot} moves from {source} to {target}"), moved: None })
    }

    /// Draws a false redirect (MOVED or ASK), which the node with the index `node` sends whatever its true
    /// reply would be; `None` for a request without a key.
    pub fn lie(&self, node: usize, arguments: &Arguments<'_>, random: &mut Random) -> Option<String> {
        let first = command::recognise(arguments).ok()?.first_key(arguments).ok()??;
        let slot = slot_of(arguments.at(first));
        // A lying ASK to the real target would make the request take effect twice; weir cannot guard against
        // that, so ASK names no node.
        let word = if random.per_mille(900) { "MOVED" } else { "ASK" };
        let target = match random.below(8) {
            _ if word == "ASK" => NOBODY.to_owned(),
            0 => NOBODY.to_owned(),
            1 => address_of(node as u16).to_string(),
            _ => address_of(random.below(u64::from(self.nodes)) as u16).to_string(),
        };
        let slot = if random.per_mille(50) { (slot + 1) % SLOTS } else { slot };
        Some(format!("-{word} {slot} {target}\r\n"))
    }

    /// Returns the view of the cluster (owners of slots, roles of nodes) that a node (`teller`) reports. It
    /// may have an outdated view of the other nodes.
    pub fn view(&self, teller: u16, now: Timestamp, random: &mut Random) -> View {
        let past = self.past.get(random.index(self.past.len().max(1)));
        let past = past.filter(|_| random.per_mille(20 * self.moves.lies));
        let owner = |slot: u16| {
            let current = self.owner_as_known(teller, slot, now);
            match (self.open.get(&slot), past) {
                (Some(open), _) if open.claimed && open.target == teller => open.target,
                (_, Some((owners, _))) if current != teller && owners[usize::from(slot)] != teller => {
                    owners[usize::from(slot)]
                }
                _ => current,
            }
        };
        let epoch_of = |node: usize| match past {
            Some((_, epochs)) if node != usize::from(teller) => epochs[node],
            _ => self.epochs[node],
        };
        let roles = self.roles.as_ref();
        let primary_of = |node: u16| {
            let copied = roles?.copies[usize::from(node)];
            // A node that has not heard of a takeover reports both nodes as they were.
            match roles?.is_late(teller, now) {
                Some((old, _)) if node == old => None,
                Some((old, _)) if self.is_successor_of(node, old) => Some(old),
                _ => copied,
            }
        };
        let has_failed = |node: u16| node != teller && roles.is_some_and(|roles| roles.has_failed(node));
        let mut slots = vec![String::new(); usize::from(self.nodes)];
        let all: Vec<u16> = (0..SLOTS).collect();
        let (mut ranges, mut told) = (0, String::new());
        for range in all.chunk_by(|one, next| owner(*one) == owner(*next)) {
            let (first, last) = (range[0], range.last().expect("chunks are not empty"));
            let owner = owner(first);
            _ = write!(slots[usize::from(owner)], " {first}-{last}");
            let copies =
                (0..self.nodes).filter(|node| primary_of(*node) == Some(owner) && !has_failed(*node));
            let nodes: Vec<u16> = std::iter::once(owner).chain(copies).collect();
            ranges += 1;
            _ = write!(told, "*{}\r\n:{first}\r\n:{last}\r\n", 2 + nodes.len());
            for node in nodes {
                let ServerAddress { host, port } = address_of(node);
                let length = host.len();
                _ = write!(told, "*3\r\n${length}\r\n{host}\r\n:{port}\r\n$40\r\n{node:040}\r\n");
            }
        }
        let ranges = format!("*{ranges}\r\n{told}");
        for (slot, open) in &self.open {
            let is_over = open.claimed && open.target == teller;
            if open.source == teller {
                _ = write!(slots[usize::from(teller)], " [{slot}->-{:040}]", open.target);
            } else if open.target == teller && !is_over {
                _ = write!(slots[usize::from(teller)], " [{slot}-<-{:040}]", open.source);
            }
        }
        let line = |(node, slots): (usize, String)| {
            let primary = primary_of(node as u16).filter(|_| slots.is_empty());
            let myself = if node == usize::from(teller) { "myself," } else { "" };
            let epoch = epoch_of(primary.map_or(node, usize::from));
            let failed = if has_failed(node as u16) { ",fail" } else { "" };
            let role = primary.map_or("master".to_owned(), |_| "slave".to_owned());
            let copied = primary.map_or("-".to_owned(), |primary| format!("{primary:040}"));
            let place = address_of(node as u16);
            format!("{node:040} {place}@1 {myself}{role}{failed} {copied} 0 0 {epoch} connected{slots}\n")
        };
        let told: String = slots.into_iter().enumerate().map(line).collect();
        let told = format!("${}\r\n{told}\r\n", told.len());
        View::parse(&address_of(teller), ranges.as_bytes(), told.as_bytes())
            .expect("a node tells what can be read")
    }
}

/// Makes a replica (`copy`) carry out all requests that its primary has carried out and it has not; both are
/// indices of stores.
pub(super) fn catch_up(stores: &mut [Store], primary: u16, copy: u16) {
    while let Some(done) = stores[usize::from(primary)].poll_done(Timestamp::MAX) {
        stores[usize::from(copy)].replay(&done);
    }
}

impl Cluster {
    fn is_successor_of(&self, node: u16, old: u16) -> bool {
        let fall = self.roles.as_ref().and_then(|roles| roles.fall);
        fall.is_some_and(|fall| fall.old == old && fall.successor == node)
    }
}

fn address_of(node: u16) -> ServerAddress {
    ServerAddress { host: format!("10.0.0.{node}"), port: 7_000 + node }
}
