//! What waits for room in a window, and who gets it: the most important tier first, tenants of a tier by turns, and what is too
//! old refused while it is still worth being told.
//!
//! ```text
//!   tier ──> tenants, by turns (deficit round robin, in request units) ──> connections, the oldest request first
//!                                                                    └─ in overload: the newest connection first
//! ```
//!
//! Requests of one connection never overtake each other: a later one waits in the tier and with the tenant of those before it.
//!
//! Ages are of a clock that stands still for what the backend cannot be blamed for ([`Queue::handle_turn`]), so that a queue of which
//! nobody took anything because this core did not run is not old. Over a time in which a tier never was empty, and is not about to be,
//! it is *over*: then requests are refused after a few milliseconds instead of a tenth of a second, and the newest are served
//! first, because somebody still waits for them.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use slab::Slab;

use crate::values::{MicroUnits, TenantId, Tier, Timestamp, UNIT};

/// No more than so many wait.
const WAITING_MAX: usize = 8192;
/// One in so many is taken from the least important tier that has any, so that none is forgotten.
const FROM_BELOW: u32 = 100;
/// What a tenant may take in a turn, and how many turns the dearest request costs it.
const TURN: MicroUnits = 8 * UNIT;
const TURNS_MAX: u64 = 16;
/// A tier in which requests waited all along for so long is over.
const INTERVAL: Duration = Duration::from_millis(100);
/// And if it hardly became shorter in half of that; or, however much it did, after four of them.
const SHORTER: f64 = 0.9;
const INTERVALS_MOST: f64 = 4.0;
/// What waits in a tier that is over may be as old as this.
const AGE_OVER: Duration = Duration::from_millis(5);
/// Nothing waits longer than this, whatever the reason.
const AGE_MAX: Duration = Duration::from_secs(2);
/// A core is late if it is so much later than planned.
const LATE: Duration = Duration::from_millis(1);
/// A backend is silent after so long, or after two medians.
const SILENT: Duration = Duration::from_millis(20);
/// How long the clock stands still for a window that grows.
const PAUSE: Duration = Duration::from_secs(1);

const TIERS: usize = 4;
const NONE: u32 = u32::MAX;

/// A request that is to wait.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<T> {
    /// What is given back when its turn has come.
    pub item: T,
    /// Whose order it keeps.
    pub connection: u64,
    /// Who takes turns with others.
    pub tenant: TenantId,
    /// How much it matters.
    pub tier: Tier,
    /// What it counts for in its tenant's turn.
    pub cost: MicroUnits,
    /// No use in answering later.
    pub deadline: Option<Timestamp>,
}

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It could not be answered in time.
    Deadline,
    /// More waits than can be served.
    Overloaded,
    /// The backend does not answer.
    Stalled,
}

/// What a core knows of its backend at the beginning of a turn.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// When this turn should have been, if it was planned.
    pub planned: Option<Timestamp>,
    /// Requests in flight.
    pub in_flight: usize,
    /// What a reply usually takes.
    pub median: Duration,
    /// How much the backend can do is still being found out.
    pub is_growing: bool,
}

#[derive(Debug)]
struct Node<T> {
    waiting: Waiting<T>,
    came: Timestamp,
    /// By the queue's own clock.
    clock: Duration,
    /// Neighbours in the tier, in the order of arrival; and in the tenant's part of it.
    in_tier: Links,
    of_tenant: Links,
    /// The next one of its connection.
    behind: u32,
}

#[derive(Clone, Copy, Debug)]
struct Links {
    before: u32,
    after: u32,
}

/// The ends of a list of nodes.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    length: usize,
}

impl Default for List {
    fn default() -> Self {
        Self { first: NONE, last: NONE, length: 0 }
    }
}

/// What of a connection waits: all of it in one tier, with one tenant.
#[derive(Clone, Copy, Debug)]
struct Chain {
    first: u32,
    last: u32,
    tier: usize,
    tenant: TenantId,
}

#[derive(Debug, Default)]
struct Share {
    list: List,
    /// What is left of its turn.
    deficit: MicroUnits,
}

#[derive(Debug, Default)]
struct TierQueue {
    list: List,
    connections: usize,
    tenants: HashMap<TenantId, Share>,
    turns: VecDeque<TenantId>,
    /// When it was empty last, and what waited when that was looked at last: by the queue's clock.
    empty_at: Duration,
    seen: (Duration, usize),
    /// Since when it is over, and in how many turns it was empty since.
    over_since: Option<Duration>,
    empty_turns: u32,
}

/// The queue of one core before one backend.
#[derive(Debug)]
pub struct Queue<T> {
    nodes: Slab<Node<T>>,
    chains: HashMap<u64, Chain>,
    tiers: [TierQueue; TIERS],
    clock: Duration,
    turned_at: Timestamp,
    /// When the backend last gave a sign, less the time in which this core did not run.
    progress: Timestamp,
    pause_left: Duration,
    taken: u32,
}

impl<T: Copy> Queue<T> {
    /// Nothing waits.
    pub fn new(now: Timestamp) -> Self {
        Self {
            nodes: Slab::new(),
            chains: HashMap::new(),
            tiers: std::array::from_fn(|_| TierQueue::default()),
            clock: Duration::ZERO,
            turned_at: now,
            progress: now,
            pause_left: PAUSE,
            taken: 0,
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Does nothing wait?
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Is more asked of a tier than can be done?
    pub fn is_over(&self, tier: Tier) -> bool {
        self.tiers[tier as usize].over_since.is_some()
    }

    /// How long the backend has given no sign, this core's own absences aside.
    pub fn silence(&self, now: Timestamp) -> Duration {
        now.since(self.progress)
    }

    /// The backend has answered, or been sent something while nothing was in flight.
    pub fn handle_progress(&mut self, now: Timestamp) {
        self.progress = now;
    }

    /// A turn begins: the clock goes on, but for what the backend cannot be blamed for. How late this core is.
    pub fn handle_turn(&mut self, now: Timestamp, circumstances: &Circumstances) -> Duration {
        let mut passed = now.since(self.turned_at);
        self.turned_at = now;
        let late = circumstances.planned.map_or(Duration::ZERO, |planned| now.since(planned));
        let late = if late > LATE { late } else { Duration::ZERO };
        self.progress = self.progress.after(late);
        passed = passed.saturating_sub(late);
        let silent = SILENT.max(2 * circumstances.median);
        if !self.is_empty() && circumstances.is_growing && !self.pause_left.is_zero() {
            self.pause_left = self.pause_left.saturating_sub(passed);
            passed = Duration::ZERO;
        } else if circumstances.in_flight > 0 && self.silence(now) > silent {
            // Silence is no overload.
            passed = Duration::ZERO;
        }
        self.clock += passed;
        late
    }

    /// One more waits. Refused at once if there is no room for it.
    pub fn push(&mut self, waiting: Waiting<T>, now: Timestamp) -> Result<(), Refused> {
        if self.nodes.len() >= WAITING_MAX {
            return Err(Refused::Overloaded);
        }
        let chain = self.chains.get(&waiting.connection).copied();
        let (tier, tenant) =
            chain.map_or((waiting.tier as usize, waiting.tenant), |chain| (chain.tier, chain.tenant));
        let alone = Links { before: NONE, after: NONE };
        let node =
            Node { waiting, came: now, clock: self.clock, in_tier: alone, of_tenant: alone, behind: NONE };
        let index = self.nodes.insert(node) as u32;
        if let Some(Chain { last, .. }) = chain {
            self.nodes[last as usize].behind = index;
            self.chains.entry(waiting.connection).and_modify(|chain| chain.last = index);
        } else {
            self.tiers[tier].connections += 1;
            self.chains.insert(waiting.connection, Chain { first: index, last: index, tier, tenant });
        }
        let queue = &mut self.tiers[tier];
        append(&mut self.nodes, &mut queue.list, index, in_tier);
        let share = queue.tenants.entry(tenant).or_default();
        if share.list.length == 0 {
            queue.turns.push_back(tenant);
        }
        append(&mut self.nodes, &mut share.list, index, of_tenant);
        Ok(())
    }

    /// The next one that is to be sent.
    pub fn take(&mut self) -> Option<T> {
        self.taken = self.taken.wrapping_add(1);
        let has_any = |tier: &usize| self.tiers[*tier].list.length > 0;
        let is_from_below = self.taken.is_multiple_of(FROM_BELOW);
        let tier = if is_from_below { (0..TIERS).rev().find(has_any) } else { (0..TIERS).find(has_any) }?;
        let index = self.next_of(tier);
        Some(self.remove(index).item)
    }

    /// Whose turn it is in a tier that is not empty.
    fn next_of(&mut self, tier: usize) -> u32 {
        let queue = &mut self.tiers[tier];
        loop {
            let tenant = *queue.turns.front().expect("who waits has turns");
            let share = queue.tenants.get_mut(&tenant).expect("who has turns has a share");
            let index = if queue.over_since.is_some() {
                let newest = &self.nodes[share.list.last as usize].waiting;
                self.chains[&newest.connection].first
            } else {
                share.list.first
            };
            let cost = self.nodes[index as usize].waiting.cost.min(TURNS_MAX * TURN);
            if queue.turns.len() == 1 || cost <= share.deficit {
                share.deficit = share.deficit.saturating_sub(cost);
                return index;
            }
            share.deficit += TURN;
            queue.turns.rotate_left(1);
        }
    }

    /// Refuses what waits for too long, or could not be answered in time. `base` is what a reply takes at best.
    pub fn expire(
        &mut self,
        now: Timestamp,
        base: Duration,
        is_stalled: bool,
        mut refuse: impl FnMut(T, Refused),
    ) {
        for tier in 0..TIERS {
            while self.tiers[tier].list.length > 0 {
                let queue = &self.tiers[tier];
                let oldest = &self.nodes[queue.list.first as usize];
                let age = self.clock.saturating_sub(oldest.clock);
                let real_age = now.since(oldest.came);
                let is_late = oldest.waiting.deadline.is_some_and(|deadline| now.after(base) > deadline);
                let is_over = queue.over_since.is_some() && age > AGE_OVER && queue.list.length > 1;
                let is_old = age > INTERVAL && queue.connections > 1;
                let why = if is_late {
                    Refused::Deadline
                } else if is_stalled && real_age > INTERVAL {
                    Refused::Stalled
                } else if is_over || is_old || real_age > AGE_MAX {
                    Refused::Overloaded
                } else {
                    break;
                };
                let index = queue.list.first;
                refuse(self.remove(index).item, why);
            }
        }
    }

    /// The end of a turn: which tiers are over.
    pub fn handle_turn_end(&mut self) {
        let clock = self.clock;
        for queue in &mut self.tiers {
            queue.judge(clock);
        }
        if self.is_empty() {
            self.pause_left = PAUSE;
        }
    }

    fn remove(&mut self, index: u32) -> Waiting<T> {
        let connection = self.nodes[index as usize].waiting.connection;
        let chain = self.chains[&connection];
        debug_assert_eq!(chain.first, index, "nothing of a connection overtakes");
        let queue = &mut self.tiers[chain.tier];
        let share = queue.tenants.get_mut(&chain.tenant).expect("who waits has a share");
        unlink(&mut self.nodes, &mut queue.list, index, in_tier);
        unlink(&mut self.nodes, &mut share.list, index, of_tenant);
        if share.list.length == 0 {
            queue.tenants.remove(&chain.tenant);
            if queue.turns.front() == Some(&chain.tenant) {
                queue.turns.pop_front();
            } else {
                queue.turns.retain(|tenant| *tenant != chain.tenant);
            }
        }
        let node = self.nodes.remove(index as usize);
        if node.behind == NONE {
            queue.connections -= 1;
            self.chains.remove(&connection);
        } else {
            self.chains.insert(connection, Chain { first: node.behind, ..chain });
        }
        node.waiting
    }
}

impl TierQueue {
    fn judge(&mut self, clock: Duration) {
        let waiting = self.list.length;
        if waiting == 0 {
            self.empty_at = clock;
        }
        if let Some(since) = self.over_since {
            self.empty_turns += u32::from(waiting == 0);
            if clock.saturating_sub(since) >= INTERVAL {
                self.over_since = (self.empty_turns < 2).then_some(clock);
                self.empty_turns = 0;
            }
        } else if waiting == 0 {
            self.seen = (clock, 0);
        } else if clock.saturating_sub(self.seen.0) >= INTERVAL / 2 {
            let (all_along, before) = (clock.saturating_sub(self.empty_at), self.seen.1);
            self.seen = (clock, waiting);
            let hardly_shorter = waiting as f64 > SHORTER * before as f64;
            let is_over = all_along >= INTERVAL
                && self.connections > 1
                && (hardly_shorter || all_along >= INTERVAL.mul_f64(INTERVALS_MOST));
            if is_over {
                (self.over_since, self.empty_turns) = (Some(clock), 0);
            }
        }
    }
}

fn in_tier<T>(node: &mut Node<T>) -> &mut Links {
    &mut node.in_tier
}

fn of_tenant<T>(node: &mut Node<T>) -> &mut Links {
    &mut node.of_tenant
}

fn append<T>(nodes: &mut Slab<Node<T>>, list: &mut List, index: u32, of: fn(&mut Node<T>) -> &mut Links) {
    *of(&mut nodes[index as usize]) = Links { before: list.last, after: NONE };
    match list.last {
        NONE => list.first = index,
        last => of(&mut nodes[last as usize]).after = index,
    }
    list.last = index;
    list.length += 1;
}

fn unlink<T>(nodes: &mut Slab<Node<T>>, list: &mut List, index: u32, of: fn(&mut Node<T>) -> &mut Links) {
    let Links { before, after } = *of(&mut nodes[index as usize]);
    match before {
        NONE => list.first = after,
        before => of(&mut nodes[before as usize]).after = after,
    }
    match after {
        NONE => list.last = before,
        after => of(&mut nodes[after as usize]).before = before,
    }
    list.length -= 1;
}

#[cfg(test)]
mod tests;
