//! What waits for room in a window, and who gets it: the most important tier first, tenants of a tier by turns, and what is too
//! old refused while it is still worth being told.
//!
//! ```text
//!   tier ──> tenants, by turns (deficit round robin, in request units) ──> connections, by turns
//!                                                                    └─ in overload: the newest connection first
//! ```
//!
//! Requests of one connection never overtake each other: a later one waits in the tier and with the tenant of those before it.
//!
//! Ages are of a clock that stands still for what the backend cannot be blamed for ([`Queue::handle_turn`]), so that a queue of which
//! nobody took anything because this core did not run is not old; and what waits behind others of its own connection ages only once it
//! is the next of them, unless more is asked than can be done. Over a time in which a tier never was empty, and is not about to be,
//! it is *over*: then requests are refused after a few milliseconds instead of a tenth of a second, and the newest are served
//! first, because somebody still waits for them.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use slab::Slab;

use crate::values::{MicroUnits, TenantId, Tier, Timestamp, UNIT};

/// What of one connection may wait, before its core is told to take on no more of it; less than such a part of it, and it may again.
const LONG: Held = Held { requests: 64, bytes: 1 << 20 };
const EASED: usize = 2;
/// Too much waits from a limit on until this part of it is gone.
const RELIEVED: usize = 4;
/// One in so many is taken from the least important tier that has any, so that none is forgotten.
const FROM_BELOW: u32 = 100;
/// What a tenant may take in a turn, and how many turns the dearest request costs it.
const TURN: MicroUnits = 8 * UNIT;
const TURNS_MAX: u64 = 16;
/// A tier in which requests waited all along for so many intervals is over: longer than a few costly ones may keep the backend busy.
const STANDING: f64 = 1.5;
/// And if it hardly became shorter in half of one; or, however much it did, after four of them.
const SHORTER: f64 = 0.9;
const INTERVALS_MOST: f64 = 4.0;
/// Nor is it where so many of each connection wait in the mean, none for as many intervals, and none as the next of its connection
/// for as many.
const DEEP: usize = 8;
const DEEP_WAIT: f64 = 4.0;
const DEEP_WAIT_NEXT: f64 = 0.25;
/// What is the next of its connection may be so for this many, where it is not the only one.
const AGE_CALM: f64 = 1.5;
/// Nothing is the next of its connection for longer than this, whatever the reason; or than twice that.
const AGE_MAX: Duration = Duration::from_secs(2);
/// What waits for too long is looked for no more often than this, where it takes a look at every connection.
const LOOKS_APART: Duration = Duration::from_millis(5);
/// A core is late if it is so much later than planned.
const LATE: Duration = Duration::from_millis(1);
/// A backend is silent after so long, or after two medians.
const SILENT: Duration = Duration::from_millis(20);
/// How long the clock stands still for a window that grows.
const PAUSE: Duration = Duration::from_secs(1);

/// Room for so many is kept while nothing waits.
const KEPT: usize = 64;

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
    /// What its message takes.
    pub bytes: usize,
    /// No use in answering later.
    pub deadline: Option<Timestamp>,
}

/// A request that waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken<T> {
    /// What was given.
    pub item: T,
    /// So much of its connection waited that no more was taken on, and now little does.
    pub is_eased: bool,
    /// It waited for longer than it may.
    pub is_old: bool,
}

/// What becomes of a request that is looked at while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It goes on waiting.
    Stays,
    /// It leaves the queue.
    Leaves,
}

/// Limits of what waits, or how much does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Requests.
    pub requests: usize,
    /// What their messages take.
    pub bytes: usize,
}

impl Held {
    fn is_above(self, limit: Self) -> bool {
        self.requests >= limit.requests || self.bytes >= limit.bytes
    }

    fn add(&mut self, bytes: usize) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.requests -= 1;
        self.bytes -= bytes;
    }
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

/// How long requests may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// What waits in a tier that is over may be as old as this.
    pub target: Duration,
    /// Tiers are looked at over and over again in such intervals.
    pub interval: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { target: Duration::from_millis(5), interval: Duration::from_millis(100) }
    }
}

impl Patience {
    fn calm(self) -> Duration {
        self.interval.mul_f64(AGE_CALM)
    }

    fn longest(self) -> Duration {
        AGE_MAX.max(2 * self.calm())
    }
}

/// What a core knows of its backend at the beginning of a turn.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// How much later than planned this turn is.
    pub late: Duration,
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

/// A moment, and what the queue's clock said then.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: Timestamp,
    clock: Duration,
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
    connection: u64,
    first: u32,
    last: u32,
    tier: usize,
    tenant: TenantId,
    held: Held,
    /// Its core was told to take on no more of it.
    is_long: bool,
    /// Since when the first is the first.
    since: Moment,
    /// Neighbours among those of the tenant that wait for their turn.
    in_ring: Links,
}

#[derive(Debug, Default)]
struct Share {
    list: List,
    /// Its connections, the one whose turn it is first.
    ring: List,
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
    chains: Slab<Chain>,
    /// The chain of each connection of which something waits.
    chain_of: HashMap<u64, u32>,
    tiers: [TierQueue; TIERS],
    clock: Duration,
    turned_at: Timestamp,
    /// For how long this core did not run when it was to, all in all: that is taken off every moment here.
    away: Duration,
    /// When the backend last gave a sign, less the time in which this core did not run.
    progress: Timestamp,
    pause_left: Duration,
    taken: u32,
    held: Held,
    limit: Held,
    patience: Patience,
    /// The earliest deadline, or an earlier moment.
    soonest: Timestamp,
    /// When what waits for too long is looked for again, connection by connection.
    look_at: Timestamp,
    /// More than the limit waited, and not much less does.
    is_full: bool,
}

/// How much later a turn is than it was planned for, where that is worth a mention.
pub fn lateness(planned: Timestamp, now: Timestamp) -> Duration {
    let late = now.since(planned);
    if late > LATE { late } else { Duration::ZERO }
}

impl<T: Copy> Queue<T> {
    /// Nothing waits, and no more than that ever will.
    pub fn new(limit: Held, patience: Patience, now: Timestamp) -> Self {
        Self {
            nodes: Slab::new(),
            chains: Slab::new(),
            chain_of: HashMap::new(),
            tiers: std::array::from_fn(|_| TierQueue::default()),
            clock: Duration::ZERO,
            turned_at: now,
            away: Duration::ZERO,
            progress: now,
            pause_left: PAUSE,
            taken: 0,
            held: Held::default(),
            limit,
            patience,
            soonest: Timestamp::MAX,
            look_at: Timestamp::ZERO,
            is_full: false,
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

    /// What waits, and what it takes.
    pub fn held(&self) -> Held {
        self.held
    }

    /// How old the oldest is, by the queue's clock.
    pub fn age(&self) -> Duration {
        let oldest = |queue: &TierQueue| self.nodes.get(queue.list.first as usize).map(|node| node.clock);
        let clock = self.tiers.iter().filter_map(oldest).min();
        clock.map_or(Duration::ZERO, |clock| self.clock.saturating_sub(clock))
    }

    /// Do requests of more than one tenant wait?
    pub fn has_rivals(&self) -> bool {
        let mut tenants = self.tiers.iter().flat_map(|queue| &queue.turns);
        tenants.next().is_some_and(|first| tenants.any(|other| other != first))
    }

    /// Is more asked of any tier than can be done?
    pub fn is_any_over(&self) -> bool {
        self.tiers.iter().any(|queue| queue.over_since.is_some())
    }

    /// Does something of this importance, or of more, wait?
    pub fn has_any_of(&self, tier: Tier) -> bool {
        self.tiers[..=tier as usize].iter().any(|queue| queue.list.length > 0)
    }

    /// Is more asked of a tier than can be done?
    pub fn is_over(&self, tier: Tier) -> bool {
        self.tiers[tier as usize].over_since.is_some()
    }

    /// How long requests may wait while not more is asked than can be done.
    pub fn interval(&self) -> Duration {
        self.patience.interval
    }

    /// How long the backend has given no sign, this core's own absences aside.
    pub fn silence(&self, now: Timestamp) -> Duration {
        now.since(self.progress)
    }

    /// The backend has answered, or been sent something while nothing was in flight.
    pub fn handle_progress(&mut self, now: Timestamp) {
        self.progress = now;
    }

    /// This core did not run for so long: that is not the backend's silence.
    pub fn handle_late(&mut self, late: Duration) {
        self.progress = self.progress.after(late);
        self.away += late;
    }

    /// A turn begins: the clock goes on, but for what the backend cannot be blamed for.
    pub fn handle_turn(&mut self, now: Timestamp, circumstances: &Circumstances) {
        let passed = now.since(self.turned_at);
        self.turned_at = now;
        let mut passed = passed.saturating_sub(circumstances.late);
        let silent = SILENT.max(2 * circumstances.median);
        if !self.is_empty() && circumstances.is_growing && !self.pause_left.is_zero() {
            self.pause_left = self.pause_left.saturating_sub(passed);
            passed = Duration::ZERO;
        } else if circumstances.in_flight > 0 && self.silence(now) > silent {
            // Silence is no overload.
            passed = Duration::ZERO;
        }
        self.clock += passed;
    }

    /// Is there no room for one more? The limit was reached, and what waits has not become much less since.
    pub fn is_full(&mut self) -> bool {
        self.is_full = self.would_be_full();
        self.is_full
    }

    /// The same, where nobody comes.
    pub fn would_be_full(&self) -> bool {
        let Held { requests, bytes } = self.limit;
        let (requests, bytes) = if self.is_full {
            (requests - requests / RELIEVED, bytes - bytes / RELIEVED)
        } else {
            (requests, bytes)
        };
        self.held.is_above(Held { requests, bytes })
    }

    /// Of what matters less than that, what came last: whoever matters more may have its place.
    pub fn displace(&mut self, tier: Tier) -> Option<Taken<T>> {
        let lowest = (0..TIERS).rev().find(|tier| self.tiers[*tier].list.length > 0)?;
        (lowest > tier as usize).then(|| self.remove(self.tiers[lowest].list.last))
    }

    /// One more waits. Refused at once if there is no room for it. Whether so much of its connection waits from now on that no more
    /// of it should be taken on.
    pub fn push(&mut self, waiting: Waiting<T>, now: Timestamp) -> Result<bool, Refused> {
        if self.held.is_above(self.limit) {
            return Err(Refused::Overloaded);
        }
        if self.nodes.is_empty() {
            self.wake(now);
        }
        let here = now.before(self.away);
        let moment = Moment { at: here, clock: self.clock };
        let alone = Links { before: NONE, after: NONE };
        let node =
            Node { waiting, came: here, clock: self.clock, in_tier: alone, of_tenant: alone, behind: NONE };
        let index = self.nodes.insert(node) as u32;
        let chain = match self.chain_of.get(&waiting.connection) {
            Some(chain) => {
                let last = std::mem::replace(&mut self.chains[*chain as usize].last, index);
                self.nodes[last as usize].behind = index;
                *chain
            }
            None => self.begin_chain(&waiting, index, moment),
        };
        self.held.add(waiting.bytes);
        self.soonest = self.soonest.min(waiting.deadline.unwrap_or(Timestamp::MAX));
        let long = self.long();
        let chain = &mut self.chains[chain as usize];
        chain.held.add(waiting.bytes);
        let becomes_long = !chain.is_long && chain.held.is_above(long);
        chain.is_long |= becomes_long;
        let queue = &mut self.tiers[chain.tier];
        append(&mut self.nodes, &mut queue.list, index, in_tier);
        let share = queue.tenants.get_mut(&chain.tenant).expect("who waits has a share");
        append(&mut self.nodes, &mut share.list, index, of_tenant);
        Ok(becomes_long)
    }

    /// How much of one connection is much: the more connections wait, and the less room is left, the less.
    fn long(&self) -> Held {
        let parts = 2 * self.chains.len().max(1);
        let part = |limit: usize, held: usize| limit.saturating_sub(held) / parts;
        let requests = part(self.limit.requests, self.held.requests);
        let bytes = part(self.limit.bytes, self.held.bytes);
        Held { requests: requests.clamp(1, LONG.requests), bytes: bytes.clamp(1, LONG.bytes) }
    }

    /// The first of its connection: that waits for turns among its tenant's from now on.
    fn begin_chain(&mut self, waiting: &Waiting<T>, index: u32, since: Moment) -> u32 {
        let Waiting { connection, tenant, .. } = *waiting;
        let tier = waiting.tier as usize;
        let in_ring = Links { before: NONE, after: NONE };
        let held = Held::default();
        let chain = Chain {
            connection,
            first: index,
            last: index,
            tier,
            tenant,
            held,
            is_long: false,
            since,
            in_ring,
        };
        let chain = self.chains.insert(chain) as u32;
        self.chain_of.insert(connection, chain);
        let queue = &mut self.tiers[tier];
        queue.connections += 1;
        let share = queue.tenants.entry(tenant).or_default();
        if share.ring.length == 0 {
            queue.turns.push_back(tenant);
        }
        append(&mut self.chains, &mut share.ring, chain, in_ring_of);
        chain
    }

    fn chain(&self, connection: u64) -> &Chain {
        &self.chains[self.chain_of[&connection] as usize]
    }

    /// Nothing waited for a while, in which nobody looked: every tier was empty all along.
    fn wake(&mut self, now: Timestamp) {
        self.clock += now.since(self.turned_at);
        self.turned_at = now;
        for queue in &mut self.tiers {
            queue.handle_idle(self.clock, self.patience.interval);
        }
        self.pause_left = PAUSE;
    }

    /// The next one that is to be sent, of those whose tenants may have more in flight.
    pub fn take(&mut self, may: impl Fn(TenantId) -> bool) -> Option<Taken<T>> {
        self.taken = self.taken.wrapping_add(1);
        let is_from_below = self.taken.is_multiple_of(FROM_BELOW);
        for place in 0..TIERS {
            let tier = if is_from_below { TIERS - 1 - place } else { place };
            if let Some(index) = self.next_of(tier, &may) {
                return Some(self.remove(index));
            }
        }
        None
    }

    /// Whose turn it is in a tier, if anybody's.
    fn next_of(&mut self, tier: usize, may: &impl Fn(TenantId) -> bool) -> Option<u32> {
        let queue = &mut self.tiers[tier];
        let mut allowed = queue.turns.iter().filter(|tenant| may(**tenant));
        allowed.next()?;
        let is_only_one = allowed.next().is_none();
        loop {
            let tenant = *queue.turns.front().expect("somebody has turns");
            if !may(tenant) {
                queue.turns.rotate_left(1);
                continue;
            }
            let share = queue.tenants.get_mut(&tenant).expect("who has turns has a share");
            let index = if queue.over_since.is_some() {
                let newest = &self.nodes[share.list.last as usize].waiting;
                self.chains[self.chain_of[&newest.connection] as usize].first
            } else {
                self.chains[share.ring.first as usize].first
            };
            let cost = self.nodes[index as usize].waiting.cost.min(TURNS_MAX * TURN);
            if is_only_one || cost <= share.deficit {
                share.deficit = share.deficit.saturating_sub(cost);
                return Some(index);
            }
            share.deficit += TURN;
            queue.turns.rotate_left(1);
        }
    }

    /// Takes out what is chosen of all that waits, connection by connection, each connection's requests in their order.
    pub fn take_chosen(&mut self, mut choose: impl FnMut(T) -> Choice) -> Vec<Taken<T>> {
        let mut chosen = Vec::new();
        for (_, chain) in &self.chains {
            let mut next = chain.first;
            while let Some(node) = self.nodes.get(next as usize) {
                if choose(node.waiting.item) == Choice::Leaves {
                    chosen.push(next);
                }
                next = node.behind;
            }
        }
        chosen.into_iter().map(|index| self.remove(index)).collect()
    }

    /// Refuses what could not be answered in time, and what waits for too long: for the queue's own reasons only if those are
    /// obeyed. `expected` is what a reply takes.
    pub fn expire(
        &mut self,
        now: Timestamp,
        expected: Duration,
        (is_stalled, is_obeyed): (bool, bool),
        mut refuse: impl FnMut(Taken<T>, Refused),
    ) {
        let here = now.before(self.away);
        for tier in 0..TIERS {
            // The first of all is the first of its connection as well.
            while let Some(node) = self.nodes.get(self.tiers[tier].list.first as usize) {
                let why = if is_stalled && here.since(node.came) > self.patience.interval {
                    Refused::Stalled
                } else if is_obeyed && self.is_too_old_in_overload(node) {
                    Refused::Overloaded
                } else {
                    break;
                };
                let index = self.tiers[tier].list.first;
                refuse(self.remove(index), why);
            }
        }
        if now >= self.look_at && !self.nodes.is_empty() {
            self.look_at = now.after(LOOKS_APART);
            let longest = self.patience.longest();
            let is_old =
                |chain: &Chain| here.since(chain.since.at) > longest || is_obeyed && self.is_too_old(chain);
            let old: Vec<u32> =
                self.chains.iter().filter(|(_, chain)| is_old(chain)).map(|(_, chain)| chain.first).collect();
            old.into_iter().for_each(|index| refuse(self.remove(index), Refused::Overloaded));
        }
        let too_soon = now.after(expected);
        if too_soon <= self.soonest {
            return;
        }
        let is_late = |node: &Node<T>| node.waiting.deadline.is_some_and(|deadline| deadline < too_soon);
        let mut late: Vec<_> = self.nodes.iter().filter(|(_, node)| is_late(node)).collect();
        late.sort_unstable_by_key(|(_, node)| node.came);
        let late: Vec<u32> = late.into_iter().map(|(index, _)| index as u32).collect();
        late.into_iter().for_each(|index| refuse(self.remove(index), Refused::Deadline));
        let deadlines = self.nodes.iter().filter_map(|(_, node)| node.waiting.deadline);
        self.soonest = deadlines.min().unwrap_or(Timestamp::MAX);
    }

    /// Has one waited for too long, in a tier of which more is asked than can be done?
    fn is_too_old_in_overload(&self, node: &Node<T>) -> bool {
        let queue = &self.tiers[self.chain(node.waiting.connection).tier];
        queue.over_since.is_some()
            && queue.list.length > 1
            && self.clock.saturating_sub(node.clock) > self.patience.target
    }

    /// Has the first of a connection been that for too long, while others wait as well?
    fn is_too_old(&self, chain: &Chain) -> bool {
        let age = self.clock.saturating_sub(chain.since.clock);
        self.tiers[chain.tier].connections > 1 && age > self.patience.calm()
    }

    /// Gives back what a burst took, once nothing waits.
    pub fn tidy(&mut self) {
        if self.is_empty() && self.nodes.capacity() > KEPT {
            (self.nodes, self.chains, self.chain_of) = (Slab::new(), Slab::new(), HashMap::new());
            for queue in &mut self.tiers {
                queue.tenants.shrink_to_fit();
                queue.turns.shrink_to_fit();
            }
        }
    }

    /// The end of a turn: which tiers are over.
    pub fn handle_turn_end(&mut self) {
        let clock = self.clock;
        for tier in 0..TIERS {
            if self.tiers[tier].is_suspect(clock, self.patience.interval) && !self.is_deep(tier) {
                self.tiers[tier].begin_over(clock);
            }
        }
        if self.is_empty() {
            self.pause_left = PAUSE;
        }
    }

    /// Does so much wait of each connection of a tier, and yet nothing for very long, that clients which want many replies at a time
    /// wait for their own?
    fn is_deep(&self, tier: usize) -> bool {
        let queue = &self.tiers[tier];
        let is_within = |clock: Duration, intervals: f64| {
            self.clock.saturating_sub(clock) < self.patience.interval.mul_f64(intervals)
        };
        let oldest = self.nodes.get(queue.list.first as usize);
        queue.list.length >= DEEP * queue.connections
            && oldest.is_some_and(|node| is_within(node.clock, DEEP_WAIT))
            // Those whose turn comes next have waited longest for it.
            && queue.tenants.values().all(|share| {
                let next = self.chains.get(share.ring.first as usize);
                next.is_none_or(|chain| is_within(chain.since.clock, DEEP_WAIT_NEXT))
            })
    }

    /// Takes one out.
    fn remove(&mut self, index: u32) -> Taken<T> {
        let node = &self.nodes[index as usize];
        let place = self.chain_of[&node.waiting.connection];
        let chain = self.chains[place as usize];
        let is_old = self.is_too_old_in_overload(node) || chain.first == index && self.is_too_old(&chain);
        let queue = &mut self.tiers[chain.tier];
        let share = queue.tenants.get_mut(&chain.tenant).expect("who waits has a share");
        unlink(&mut self.nodes, &mut queue.list, index, in_tier);
        unlink(&mut self.nodes, &mut share.list, index, of_tenant);
        if chain.first == index {
            // Its turn is over.
            unlink(&mut self.chains, &mut share.ring, place, in_ring_of);
            if chain.last != index {
                append(&mut self.chains, &mut share.ring, place, in_ring_of);
            }
        }
        if share.list.length == 0 {
            queue.tenants.remove(&chain.tenant);
            if queue.turns.front() == Some(&chain.tenant) {
                queue.turns.pop_front();
            } else {
                queue.turns.retain(|tenant| *tenant != chain.tenant);
            }
        }
        let Node { waiting, behind, .. } = self.nodes.remove(index as usize);
        self.held.remove(waiting.bytes);
        if chain.first == chain.last {
            queue.connections -= 1;
            self.chains.remove(place as usize);
            self.chain_of.remove(&chain.connection);
            return Taken { item: waiting.item, is_eased: chain.is_long, is_old };
        }
        let Held { requests, bytes } = self.long();
        let eased = Held { requests: requests.div_ceil(EASED), bytes: bytes / EASED };
        let chain = &mut self.chains[place as usize];
        chain.held.remove(waiting.bytes);
        let is_eased = chain.is_long && !chain.held.is_above(eased);
        chain.is_long &= !is_eased;
        if chain.first == index {
            chain.first = behind;
            chain.since = Moment { at: self.turned_at.before(self.away), clock: self.clock };
        } else {
            let mut before = chain.first;
            while self.nodes[before as usize].behind != index {
                before = self.nodes[before as usize].behind;
            }
            self.nodes[before as usize].behind = behind;
            if chain.last == index {
                chain.last = before;
            }
        }
        Taken { item: waiting.item, is_eased, is_old }
    }
}

impl TierQueue {
    /// It was empty all along since it was judged last.
    fn handle_idle(&mut self, clock: Duration, interval: Duration) {
        (self.empty_at, self.seen) = (clock, (clock, 0));
        self.empty_turns += 2;
        if self.over_since.is_some_and(|since| clock.saturating_sub(since) >= interval) {
            (self.over_since, self.empty_turns) = (None, 0);
        }
    }

    /// Looks whether it is over no more, or may be from now on.
    fn is_suspect(&mut self, clock: Duration, interval: Duration) -> bool {
        let waiting = self.list.length;
        // One connection alone asks for no more than it wants to wait for.
        if self.connections <= 1 {
            self.empty_at = clock;
        }
        if let Some(since) = self.over_since {
            self.empty_turns += u32::from(waiting == 0);
            if clock.saturating_sub(since) >= interval {
                self.over_since = (self.empty_turns < 2).then_some(clock);
                self.empty_turns = 0;
            }
        } else if waiting == 0 {
            self.seen = (clock, 0);
        } else if clock.saturating_sub(self.seen.0) >= interval / 2 {
            let (all_along, before) = (clock.saturating_sub(self.empty_at), self.seen.1);
            self.seen = (clock, waiting);
            let hardly_shorter = waiting as f64 > SHORTER * before as f64;
            return all_along >= interval.mul_f64(STANDING)
                && self.connections > 1
                && (hardly_shorter || all_along >= interval.mul_f64(INTERVALS_MOST));
        }
        false
    }

    fn begin_over(&mut self, clock: Duration) {
        (self.over_since, self.empty_turns) = (Some(clock), 0);
    }
}

fn in_tier<T>(node: &mut Node<T>) -> &mut Links {
    &mut node.in_tier
}

fn of_tenant<T>(node: &mut Node<T>) -> &mut Links {
    &mut node.of_tenant
}

fn in_ring_of(chain: &mut Chain) -> &mut Links {
    &mut chain.in_ring
}

fn append<T>(items: &mut Slab<T>, list: &mut List, index: u32, of: fn(&mut T) -> &mut Links) {
    *of(&mut items[index as usize]) = Links { before: list.last, after: NONE };
    match list.last {
        NONE => list.first = index,
        last => of(&mut items[last as usize]).after = index,
    }
    list.last = index;
    list.length += 1;
}

fn unlink<T>(items: &mut Slab<T>, list: &mut List, index: u32, of: fn(&mut T) -> &mut Links) {
    let Links { before, after } = *of(&mut items[index as usize]);
    match before {
        NONE => list.first = after,
        before => of(&mut items[before as usize]).after = after,
    }
    match after {
        NONE => list.last = before,
        after => of(&mut items[after as usize]).before = before,
    }
    list.length -= 1;
}

#[cfg(test)]
mod tests;
