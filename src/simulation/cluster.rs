//! A cluster: which of the stores owns each slot, slots that move between them key by key, and what each store therefore refuses.
//!
//! Nodes lie as well: they send a request around, or to who is no node, and tell of others what was true once. And a script may end
//! with the words of a refusal though it was carried out.
//!
//! Keys move for good: a store holds only what it was sent or given, so a request that reaches the wrong one is noticed by what is
//! read later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use super::plan::Moves;
use super::store::Store;
use crate::protocol::{Arguments, command};
use crate::routing::cluster::View;
use crate::routing::slot_of;
use crate::values::limits::SLOTS;
use crate::values::time::Now;
use crate::values::{Random, ServerAddress, Timestamp};

/// A slot that moves.
#[derive(Clone, Copy, Debug)]
struct Open {
    source: u16,
    target: u16,
    /// The target says that it owns it, and the source has not heard of that.
    claimed: bool,
}

/// What becomes of a request, at a store that is a node of a cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    CarryOut,
    /// The store says this, and has nothing to do.
    Answered(&'static str),
    /// It is not carried out, for that reason.
    Refused(String),
}

/// What the nodes agree on, and what they do not.
#[derive(Debug)]
pub(super) struct Cluster {
    moves: Moves,
    nodes: u16,
    owners: Vec<u16>,
    epochs: Vec<u64>,
    open: BTreeMap<u16, Open>,
    /// When slots moved last.
    settled: BTreeMap<u16, Timestamp>,
    /// Owners and epochs, as nodes may tell them that hear late: the newest last.
    past: VecDeque<(Vec<u16>, Vec<u64>)>,
    /// Slots that have moved.
    pub moved: u64,
}

/// Old views that nodes may have of each other.
const PAST_MOST: usize = 4;

const TRY_AGAIN: &str = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
const ROLE_OF_PRIMARY: &str = "*3\r\n$6\r\nmaster\r\n:7\r\n*0\r\n";

/// Where there is no node.
const NOBODY: &str = "10.0.0.99:7099";
/// Slots that move at the same time.
const OPEN_MOST: usize = 3;

impl Cluster {
    pub fn new(moves: Moves, nodes: u16) -> Self {
        let owner = |slot| (u32::from(slot) * u32::from(nodes) / u32::from(SLOTS)) as u16;
        Self {
            moves,
            nodes,
            owners: (0..SLOTS).map(owner).collect(),
            epochs: (1..=u64::from(nodes)).collect(),
            open: BTreeMap::new(),
            settled: BTreeMap::new(),
            past: VecDeque::new(),
            moved: 0,
        }
    }

    pub fn moves(&self) -> Moves {
        self.moves
    }

    /// Does any slot move?
    pub fn is_at_rest(&self) -> bool {
        self.open.is_empty()
    }

    /// The stores that may hold a key, the first one first.
    pub fn holders_of(&self, slot: u16) -> Vec<usize> {
        let open = self.open.get(&slot).map(|open| usize::from(open.target));
        std::iter::once(usize::from(self.owners[usize::from(slot)])).chain(open).collect()
    }

    /// What a node does with a request. `asking` is what was said before it, `queued` what an `EXEC` would carry out, and `holds`
    /// whether the node has a key.
    pub fn judge<'a>(
        &self,
        node: usize,
        asking: bool,
        requests: impl Iterator<Item = Arguments<'a>>,
        holds: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Verdict, String> {
        let mut keys: BTreeSet<&[u8]> = BTreeSet::new();
        for arguments in requests {
            match arguments.name() {
                b"ASKING" => return Ok(Verdict::Answered("+OK\r\n")),
                b"ROLE" => return Ok(Verdict::Answered(ROLE_OF_PRIMARY)),
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
        let (node, owner) = (node as u16, self.owners[usize::from(slot)]);
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

    /// Something about a slot that moves goes on, or one of `wanted` begins to.
    pub fn go_on(
        &mut self,
        stores: &mut [Store],
        wanted: Option<u16>,
        now: Now,
        random: &mut Random,
    ) -> Option<String> {
        if self.open.is_empty() || (self.open.len() < OPEN_MOST && random.per_mille(200)) {
            return self.begin(stores, wanted?, now, random);
        }
        let slots: Vec<u16> = self.open.keys().copied().collect();
        let slot = *random.pick(&slots);
        let Open { source, target, claimed } = self.open[&slot];
        // Who stands still gives nothing and takes nothing.
        if [source, target].iter().any(|node| stores[usize::from(*node)].stands_still(now.monotonic)) {
            return None;
        }
        let keys = stores[usize::from(source)].keys(now);
        let keys: Vec<Vec<u8>> = keys.into_iter().filter(|key| slot_of(key) == slot).collect();
        if !keys.is_empty() {
            for _ in 0..random.between(1, 2) {
                let key = random.pick(&keys);
                if let Some((value, until)) = stores[usize::from(source)].take(key, now) {
                    stores[usize::from(target)].put(key, &value, until, now);
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
            return Some(format!("slot {slot} has moved from {source} to {target}"));
        }
        let newest = self.epochs.iter().max().copied().unwrap_or_default();
        self.epochs[usize::from(target)] = newest + 1;
        self.open.insert(slot, Open { source, target, claimed: true });
        None
    }

    /// Not if a request may come that was sent there because of an earlier move: nobody could tell it from those of this one.
    fn begin(&mut self, stores: &[Store], slot: u16, now: Now, random: &mut Random) -> Option<String> {
        let source = self.owners[usize::from(slot)];
        let target = (source + random.between(1, u64::from(self.nodes) - 1) as u16) % self.nodes;
        let settled = self.settled.get(&slot).copied();
        let is_early = settled.is_some_and(|at| now.monotonic.since(at) < self.moves.rest);
        if self.open.contains_key(&slot) || is_early || stores[usize::from(target)].will_be_asked() {
            return None;
        }
        self.open.insert(slot, Open { source, target, claimed: false });
        Some(format!("slot {slot} moves from {source} to {target}"))
    }

    /// What a node says instead, where it would refuse a request for a slot or not.
    pub fn lie(&self, node: usize, arguments: &Arguments<'_>, random: &mut Random) -> Option<String> {
        let first = command::recognise(arguments).ok()?.first_key(arguments).ok()??;
        let slot = slot_of(arguments.at(first));
        // Whoever asks a node to take over what has not left yet makes it twice: nobody can guard against that lie.
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

    /// What a node tells of the cluster; of others what was true once, if it hears late.
    pub fn view(&self, teller: u16, random: &mut Random) -> View {
        let past = self.past.get(random.index(self.past.len().max(1)));
        let past = past.filter(|_| random.per_mille(20 * self.moves.lies));
        let owner = |slot: u16| {
            let current = self.owners[usize::from(slot)];
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
        let mut slots = vec![String::new(); usize::from(self.nodes)];
        let all: Vec<u16> = (0..SLOTS).collect();
        for range in all.chunk_by(|one, next| owner(*one) == owner(*next)) {
            let last = range.last().expect("chunks are not empty");
            _ = write!(slots[usize::from(owner(range[0]))], " {}-{last}", range[0]);
        }
        for (slot, open) in &self.open {
            let is_over = open.claimed && open.target == teller;
            if open.source == teller {
                _ = write!(slots[usize::from(teller)], " [{slot}->-{:040}]", open.target);
            } else if open.target == teller && !is_over {
                _ = write!(slots[usize::from(teller)], " [{slot}-<-{:040}]", open.source);
            }
        }
        let line = |(node, slots): (usize, String)| {
            let (myself, epoch) = (if node == usize::from(teller) { "myself," } else { "" }, epoch_of(node));
            let place = address_of(node as u16);
            format!("{node:040} {place}@1 {myself}master - 0 0 {epoch} connected{slots}\n")
        };
        let told: String = slots.into_iter().enumerate().map(line).collect();
        let told = format!("${}\r\n{told}\r\n", told.len());
        View::parse(&address_of(teller), b"*0\r\n", told.as_bytes()).expect("a node tells what can be read")
    }
}

fn address_of(node: u16) -> ServerAddress {
    ServerAddress { host: format!("10.0.0.{node}"), port: 7_000 + node }
}
