//! Queue of one core before one backend: requests that wait for room in a window, and who gets the room: the
//! most important tier first, tenants of a tier by turns. A request that has waited too long is refused early
//! enough for the refusal to be of use to its client.
//!
//! ```text
//!   tier ──> tenants, by turns (deficit round robin, in request units) ──> connections, by turns
//!                                                                    └─ in overload: the newest connection first
//! ```
//!
//! Requests of one connection never overtake each other: a later one waits in the tier and with the tenant of
//! those before it.
//!
//! Waiting is measured by a clock of the queue's own, which pauses for delays that the backend did not cause
//! ([`Queue::handle_turn`]), so that requests that waited because this core did not run are not old. A
//! request behind others of its connection ages only once it is the next of them, unless its tier is over. A
//! tier is *over* (overloaded) if it was never empty for 150 ms and hardly becomes shorter: then requests are
//! refused after a few milliseconds instead of a tenth of a second, and the newest are served first, because
//! their clients still wait.

use std::collections::VecDeque;
use std::time::Duration;

use slab::Slab;

use crate::values::{IdMap, MicroUnits, TenantId, Tier, Timestamp, UNIT};

/// Maximum number of waiting requests, and of their bytes, of one connection before [`Queue::push`] says that
/// no further requests of it should be started; less where many connections wait.
const LONG: Held = Held { requests: 64, bytes: 1 << 20 };
/// Divisor of the limit on a connection's waiting requests: once fewer wait than half of the limit, further
/// requests of the connection may be started.
const EASED: usize = 2;
/// Divisor of the queue's limit: once the queue was full, a quarter of the limit must become free until it
/// admits requests again.
const RELIEVED: usize = 4;
/// One of this many requests that are taken from the queue is of the least important tier (by importance) with
/// waiting requests, so that no tier starves.
const FROM_BELOW: u32 = 100;
/// Cost of the requests of a tenant that leave the queue before the next tenant's turn, in millionths of a
/// request unit: 8 request units.
const TURN: MicroUnits = 8 * UNIT;
/// Maximum number of a tenant's turns of fair queueing that one request takes up, however high its price is.
const TURNS_MAX: u64 = 16;
/// Number of intervals (100 ms by default) for which requests of several connections must have waited without a
/// break before a tier (importance) counts as overloaded: longer than a few costly requests keep a backend
/// busy.
const STANDING: f64 = 1.5;
/// While the queue of a tier (importance) is longer than this part of its length half an interval (50 ms by
/// default) earlier, the queue has hardly become shorter, and the tier may count as overloaded.
const SHORTER: f64 = 0.9;
/// Number of intervals (100 ms by default) after which a tier (importance) in which requests of several
/// connections waited without a break counts as overloaded even if its queue becomes shorter.
const INTERVALS_MOST: f64 = 4.0;
/// Mean number of waiting requests per connection from which on a tier (importance) may count as deep: long
/// only because clients pipeline and so wait for their own requests. A deep tier does not count as
/// overloaded.
const DEEP: usize = 8;
/// A tier (importance) counts as deep (long only because clients pipeline) only while none of its requests
/// has waited for this many intervals (100 ms by default).
const DEEP_WAIT: f64 = 4.0;
/// A tier (importance) counts as deep (long only because clients pipeline) only while no connection has waited
/// for this part of an interval (100 ms by default) for its oldest request to be sent.
const DEEP_WAIT_NEXT: f64 = 0.25;
/// Divisor of the time that a deadline leaves a request. A tier (importance) counts as deep (long only because
/// clients pipeline) only while most of its requests are of connections whose oldest one has waited for less
/// than half of that time.
const DEEP_PARTS: u32 = 2;
/// A request is refused once it has been the oldest waiting request of its connection for this many intervals
/// (100 ms each by default, by the queue's clock), if other connections wait in its tier (importance).
const AGE_CALM: f64 = 1.5;
/// Longest time, by the real clock, for which a request may be its connection's oldest waiting one before it is
/// refused; or three intervals (300 ms by default) if that is longer.
const AGE_MAX: Duration = Duration::from_secs(2);
/// Shortest time between two searches of all connections for requests that have waited too long.
const LOOKS_APART: Duration = Duration::from_millis(5);
/// Least delay of a turn (pass of the core's loop), against its plan, that counts as lateness.
const LATE: Duration = Duration::from_millis(1);
/// Silence of a backend after which the clock that measures waiting in the queue pauses; twice the median
/// latency if that is longer.
const SILENT: Duration = Duration::from_millis(20);
/// Longest time for which the clock that measures waiting in the queue pauses while the window (limit on
/// requests in flight) grows, or has shrunk below what is in flight.
const PAUSE: Duration = Duration::from_secs(1);

/// Number of requests for which the queue keeps memory while no request waits.
const KEPT: usize = 64;

/// Number of tiers of importance: critical, standard, batch and sheddable.
const TIERS: usize = 4;
/// Value in place of an index that stands for no request, and for no connection's list of requests.
const NONE: u32 = u32::MAX;

/// A request that is added to the queue, to wait for room in a backend's window (limit on requests in flight).
#[derive(Clone, Copy, Debug)]
pub struct Waiting<T> {
    /// The caller's handle of the request, which the queue gives back when the request leaves.
    pub item: T,
    /// Number of the client connection that sent the request; its waiting requests keep their order.
    pub connection: u64,
    /// The tenant that sent the request; it takes turns with the other tenants of its tier (importance).
    pub tenant: TenantId,
    /// Tier (importance) of the request. While earlier requests of its connection wait, it waits in their tier
    /// instead.
    pub tier: Tier,
    /// Cost of the request, in millionths of a request unit. Tenants take turns of 8 request units, from
    /// which the costs of their requests are subtracted.
    pub cost: MicroUnits,
    /// Size of the request's message in bytes.
    pub bytes: usize,
    /// Time after which the reply is useless; None without a deadline.
    pub deadline: Option<Timestamp>,
}

/// A request that has left the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken<T> {
    /// The caller's handle for the request, as given when it was added.
    pub item: T,
    /// True if further requests of the connection may be started again: [`Queue::push`] had returned that
    /// none should be started, and by now few requests of the connection wait.
    pub is_eased: bool,
    /// True if the request had waited longer than the queue's rules permit, whether or not it was refused for
    /// that.
    pub is_old: bool,
}

/// Answer of the caller of `take_chosen` for one waiting request: whether it stays in the queue or leaves it.
/// A request that leaves is handed to the caller, not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The request goes on waiting.
    Stays,
    /// The request leaves the queue.
    Leaves,
}

/// Amount of waiting requests, or a limit on it: their number and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Number of waiting requests.
    pub requests: usize,
    /// Number of bytes of the waiting requests' messages.
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

/// Reason why a request is refused, on arrival or after it has waited in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The reply could not come before the request's deadline.
    Deadline,
    /// Too many requests wait, or the request waited too long.
    Overloaded,
    /// The backend has stalled: it has sent nothing for a while though requests are in flight.
    Stalled,
}

/// The times by which the queue decides that a request has waited for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Longest age of a request in an overloaded tier (importance), 5 ms by default; older requests are
    /// refused.
    pub target: Duration,
    /// Interval of which multiples decide whether a tier (importance) is overloaded and a request too old (100
    /// ms by default).
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

/// A core's knowledge of its backend at the beginning of a turn (pass of the core's loop).
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// Time by which this turn (pass of the core's loop) began later than planned.
    pub late: Duration,
    /// Number of this core's requests in flight at the backend.
    pub in_flight: usize,
    /// Median latency of the backend's recent replies.
    pub median: Duration,
    /// True while the window (limit on requests in flight) still grows, or is small because it has just begun, so that
    /// the backend's capacity is not known yet.
    pub is_growing: bool,
    /// True while more requests are in flight than the window (limit on requests in flight) permits, because it has
    /// just shrunk: no request is sent until enough replies have come.
    pub is_draining: bool,
}

#[derive(Debug)]
struct Node<T> {
    /// Request in the queue, which waits until the backend's window (limit on requests in flight) has room.
    waiting: Waiting<T>,
    /// Time of arrival of the request, less the sum of the times before it in which this core did not run.
    came: Timestamp,
    /// Time of arrival of the request by the queue's own clock, which pauses for delays that the backend did
    /// not cause.
    clock: Duration,
    /// Indices of the neighbours in the list of the tier's (importance) requests, in the order of arrival.
    in_tier: Links,
    /// Indices of the neighbours in the list of the tenant's requests in the tier (importance), in the order
    /// of arrival.
    of_tenant: Links,
    /// Index of the next waiting request of the same connection; `u32::MAX` if there is none.
    behind: u32,
}

/// A moment in real time, and by the queue's clock, which pauses for delays that the backend did not cause.
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

/// Doubly linked list whose elements are entries of a slab: the indices of its ends, and its length.
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

/// Waiting requests of one client connection, in their order: all in one tier (importance), with one tenant.
#[derive(Clone, Copy, Debug)]
struct Chain {
    /// The connection, by the number that [`Waiting::connection`] gives it.
    connection: u64,
    /// Index in `Queue::nodes` of the connection's oldest waiting request.
    first: u32,
    /// Index in `Queue::nodes` of the connection's newest waiting request.
    last: u32,
    /// Index of the tier (importance) of the connection's waiting requests.
    tier: usize,
    /// The tenant of all the connection's waiting requests.
    tenant: TenantId,
    /// Number of the connection's waiting requests, and of their bytes.
    held: Held,
    /// True if [`Queue::push`] has returned that no further requests of the connection should be started.
    is_long: bool,
    /// Moment at which the present first request of the connection became the first.
    since: Moment,
    /// Indices of the neighbours in the ring of the tenant's connections, which take turns.
    in_ring: Links,
}

#[derive(Debug, Default)]
struct Share {
    /// The tenant's requests in the tier (importance), in the order of arrival.
    list: List,
    /// Connections of the tenant with waiting requests in the tier (importance), the one whose turn it is
    /// first.
    ring: List,
    /// Cost of the requests that may still leave the queue in the tenant's present turn, in millionths of a
    /// request unit.
    deficit: MicroUnits,
}

#[derive(Debug, Default)]
struct TierQueue {
    /// All requests of the tier (importance), in the order of arrival.
    list: List,
    /// Number of client connections with waiting requests in this tier (importance).
    connections: usize,
    /// For each tenant with waiting requests in this tier (importance), these requests and its state in fair
    /// queueing.
    tenants: IdMap<TenantId, Share>,
    /// Tenants with waiting requests in this tier (importance), in the order of their turns.
    turns: VecDeque<TenantId>,
    /// Time, by the queue's clock, at which requests of no more than one connection last waited in the tier
    /// (importance).
    empty_at: Duration,
    /// Time, by the queue's clock, at which the number of the waiting requests of the tier (importance) was
    /// last recorded, and that number.
    seen: (Duration, usize),
    /// Time since which the tier (importance) is overloaded, by the queue's clock, or the last time that this
    /// was confirmed; `None` if it is not.
    over_since: Option<Duration>,
    /// Number of passes of the core's loop since `over_since` at whose end no request waited in the tier
    /// (importance). Two of them in an interval (100 ms by default) end the overload.
    empty_turns: u32,
}

/// The queue of one core in front of one backend, for requests that wait for room in the backend's window
/// (limit on requests in flight): by tier (importance), tenant and connection.
#[derive(Debug)]
pub struct Queue<T> {
    /// All waiting requests of the queue; its lists refer to them by index.
    nodes: Slab<Node<T>>,
    /// For each client connection with waiting requests, a chain of these requests in their order.
    chains: Slab<Chain>,
    /// For each client connection with waiting requests, by its number, the index of its chain in `chains`.
    chain_of: IdMap<u64, u32>,
    /// The waiting requests by tier, the most important tier first.
    tiers: [TierQueue; TIERS],
    /// Present time by the queue's clock, which pauses for delays that the backend did not cause.
    clock: Duration,
    /// Start of the core's present turn (pass of its loop).
    turned_at: Timestamp,
    /// Sum of the times in which this core did not run when it should have; it is subtracted from all times
    /// in the queue.
    away: Duration,
    /// Time at which the backend last sent something, or was sent a request while none was in flight, moved
    /// forward by the times since then in which this core did not run.
    progress: Timestamp,
    /// Time for which the clock may still pause because the window (limit on requests in flight) grows, or has
    /// shrunk below what is in flight.
    pause_left: Duration,
    /// Number of times that a request was asked for so far ([`Queue::take`]), which wraps.
    taken: u32,
    /// Number and bytes of all waiting requests.
    held: Held,
    /// Maximum number of requests and bytes that may wait. A further request is refused, or takes the place
    /// of a less important one.
    limit: Held,
    /// Limits of the time for which requests may wait in the queue.
    patience: Patience,
    /// The earliest deadline of any waiting request, or an earlier time.
    soonest: Timestamp,
    /// Time of the next search of all connections for requests that waited too long.
    look_at: Timestamp,
    /// True once the queue has reached its limit, until a quarter of the limit is free.
    is_full: bool,
}

/// Returns by how much a turn (pass of the core's loop) is later than planned; zero below 1 ms.
pub fn lateness(planned: Timestamp, now: Timestamp) -> Duration {
    let late = now.since(planned);
    if late > LATE { late } else { Duration::ZERO }
}

impl<T: Copy> Queue<T> {
    /// Creates an empty queue for at most `limit` requests and bytes. `patience` has the times by which it
    /// decides that a request has waited for too long.
    pub fn new(limit: Held, patience: Patience, now: Timestamp) -> Self {
        Self {
            nodes: Slab::new(),
            chains: Slab::new(),
            chain_of: IdMap::default(),
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

    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if no request waits.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the number of waiting requests, and the sum of their sizes in bytes.
    pub fn held(&self) -> Held {
        self.held
    }

    /// Returns the age of the oldest waiting request by the queue's clock, which pauses for delays that the
    /// backend did not cause; zero if none waits.
    pub fn age(&self) -> Duration {
        let oldest = |queue: &TierQueue| self.nodes.get(queue.list.first as usize).map(|node| node.clock);
        let clock = self.tiers.iter().filter_map(oldest).min();
        clock.map_or(Duration::ZERO, |clock| self.clock.saturating_sub(clock))
    }

    /// True if at least one tier (importance) is in overload: its requests come faster than the backend serves
    /// them.
    pub fn is_any_over(&self) -> bool {
        self.tiers.iter().any(|queue| queue.over_since.is_some())
    }

    /// True if a request of this tier or a more important one waits.
    pub fn has_any_of(&self, tier: Tier) -> bool {
        self.tiers[..=tier as usize].iter().any(|queue| queue.list.length > 0)
    }

    /// True if a request of this client connection waits, so that its later ones have to wait behind it.
    pub fn has_any_from(&self, connection: u64) -> bool {
        self.chain_of.contains_key(&connection)
    }

    /// True if the tier (importance) is in overload: its requests come faster than the backend serves them.
    pub fn is_over(&self, tier: Tier) -> bool {
        self.tiers[tier as usize].over_since.is_some()
    }

    /// Returns the interval over which the queue decides whether tiers (degrees of importance) are overloaded,
    /// which is also the time after which requests to a stalled (silent) backend are refused.
    pub fn interval(&self) -> Duration {
        self.patience.interval
    }

    /// Returns the time since the backend last sent something, or was sent a request while none was in flight,
    /// without the time in which this core did not run.
    pub fn silence(&self, now: Timestamp) -> Duration {
        now.since(self.progress)
    }

    /// Handles that the backend has sent something, or was sent a request while none was in flight: its
    /// silence is counted from now on.
    pub fn handle_progress(&mut self, now: Timestamp) {
        self.progress = now;
    }

    /// Excludes a time (`late`) in which this core did not run from the backend's silence and from the age of
    /// requests.
    pub fn handle_late(&mut self, late: Duration) {
        self.progress = self.progress.after(late);
        self.away += late;
    }

    /// Begins a turn (pass of the core's loop), of which `circumstances` has what the core knows of its
    /// backend: advances the clock by which the queue measures waiting. The clock pauses for the time that
    /// this core is late, while the window of requests in flight still grows or has shrunk below what is in
    /// flight (1 s at most), and while the backend is silent.
    pub fn handle_turn(&mut self, now: Timestamp, circumstances: &Circumstances) {
        let passed = now.since(self.turned_at);
        self.turned_at = now;
        let mut passed = passed.saturating_sub(circumstances.late);
        let silent = SILENT.max(2 * circumstances.median);
        let is_changing = circumstances.is_growing || circumstances.is_draining;
        if !self.is_empty() && is_changing && !self.pause_left.is_zero() {
            self.pause_left = self.pause_left.saturating_sub(passed);
            passed = Duration::ZERO;
        } else if circumstances.in_flight > 0 && self.silence(now) > silent {
            // Silence is no overload.
            passed = Duration::ZERO;
        }
        self.clock += passed;
    }

    /// True if there is no room for another request in the queue: the limit was reached, and less than a
    /// quarter of it has become free since. The call records the state for the next one.
    pub fn is_full(&mut self) -> bool {
        self.is_full = self.would_be_full();
        self.is_full
    }

    /// True if there is no room for another request in the queue; unlike [`Queue::is_full`] it records
    /// nothing.
    pub fn would_be_full(&self) -> bool {
        let Held { requests, bytes } = self.limit;
        let (requests, bytes) = if self.is_full {
            (requests - requests / RELIEVED, bytes - bytes / RELIEVED)
        } else {
            (requests, bytes)
        };
        self.held.is_above(Held { requests, bytes })
    }

    /// Removes and returns the newest request of the least important tier with waiting requests, if that tier
    /// is less important than `tier`, to make room for a more important request; else None.
    pub fn displace(&mut self, tier: Tier) -> Option<Taken<T>> {
        let lowest = (0..TIERS).rev().find(|tier| self.tiers[*tier].list.length > 0)?;
        (lowest > tier as usize).then(|| self.remove(self.tiers[lowest].list.last))
    }

    /// Adds a request to the queue. Returns true if no further requests of its connection should be started,
    /// because many of them wait now (said once, until few wait). The error is `Refused::Overloaded`, if the
    /// queue has reached its limit.
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

    /// Returns the number and bytes of one connection's waiting requests at which no further requests of it
    /// should be started: fewer, the more connections wait and the less room is left.
    fn long(&self) -> Held {
        let parts = 2 * self.chains.len().max(1);
        let part = |limit: usize, held: usize| limit.saturating_sub(held) / parts;
        let requests = part(self.limit.requests, self.held.requests);
        let bytes = part(self.limit.bytes, self.held.bytes);
        Held { requests: requests.clamp(1, LONG.requests), bytes: bytes.clamp(1, LONG.bytes) }
    }

    /// Begins the list of a connection's waiting requests with the first one (at `index` among all waiting
    /// requests), and returns the list's index. From now on the connection takes turns with the other
    /// connections of its tenant. `since` is the present moment.
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

    /// Advances the clock when the first request comes after a time in which none waited: every tier
    /// (importance) counts as empty during that time.
    fn wake(&mut self, now: Timestamp) {
        self.clock += now.since(self.turned_at);
        self.turned_at = now;
        for queue in &mut self.tiers {
            queue.handle_idle(self.clock, self.patience.interval);
        }
        self.pause_left = PAUSE;
    }

    /// Removes and returns the request that is to be sent next: of the most important tier, or on each 100th
    /// call of the least important one with waiting requests. While several tenants wait in a tier
    /// (importance), only requests of those for which `may` returns true are taken from it. None if none
    /// waits that may be taken.
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

    /// Returns the index of the request whose turn it is in a tier (importance, by its index), and charges its
    /// tenant's turn for it, so that the caller has to take it; None if there is none. While several tenants
    /// wait there, only requests of those for which `may` returns true are considered. In overload, it is the
    /// oldest request of the connection that sent the tenant's newest one.
    fn next_of(&mut self, tier: usize, may: &impl Fn(TenantId) -> bool) -> Option<u32> {
        let queue = &mut self.tiers[tier];
        let has_rivals = queue.turns.len() > 1;
        let may = |tenant: TenantId| !has_rivals || may(tenant);
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

    /// Removes and returns all requests for which `choose` says that they leave, connection by connection,
    /// each connection's in their order.
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

    /// Passes to `refuse` the requests that could not be answered before their deadlines (`expected` is the
    /// latency of a reply), those that waited too long and, if the backend is stalled (`is_stalled`: it sends
    /// nothing), those older than an interval (100 ms by default). Without `is_obeyed` the queue's own
    /// overload rules refuse nothing; deadlines, stalls and the 2 s limit still do.
    pub fn expire(
        &mut self,
        now: Timestamp,
        expected: Duration,
        (is_stalled, is_obeyed): (bool, bool),
        mut refuse: impl FnMut(Taken<T>, Refused),
    ) {
        let here = now.before(self.away);
        for tier in 0..TIERS {
            // The first of the tier is also the first of its connection.
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
        for index in late {
            refuse(self.remove(index), Refused::Deadline);
        }
        let deadlines = self.nodes.iter().filter_map(|(_, node)| node.waiting.deadline);
        self.soonest = deadlines.min().unwrap_or(Timestamp::MAX);
    }

    /// True if a request has waited longer than `--queue-target` (5 ms by default) in an overloaded tier
    /// (importance) in which other requests wait.
    fn is_too_old_in_overload(&self, node: &Node<T>) -> bool {
        let queue = &self.tiers[self.chain(node.waiting.connection).tier];
        queue.over_since.is_some()
            && queue.list.length > 1
            && self.clock.saturating_sub(node.clock) > self.patience.target
    }

    /// True if the first waiting request of a connection has been the first for too long, while other
    /// connections wait in its tier (importance).
    fn is_too_old(&self, chain: &Chain) -> bool {
        let age = self.clock.saturating_sub(chain.since.clock);
        self.tiers[chain.tier].connections > 1 && age > self.patience.calm()
    }

    /// Frees the memory that the queue took while many requests waited, if none waits any more.
    pub fn tidy(&mut self) {
        if self.is_empty() && self.nodes.capacity() > KEPT {
            (self.nodes, self.chains, self.chain_of) = (Slab::new(), Slab::new(), IdMap::default());
            for queue in &mut self.tiers {
                queue.tenants.shrink_to_fit();
                queue.turns.shrink_to_fit();
            }
        }
    }

    /// Ends a turn (pass of the core's loop): decides which tiers (degrees of importance) count as overloaded
    /// from now on.
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

    /// True if the queue of a tier (importance, by its index) is long only because clients pipeline: at least 8
    /// requests per connection wait, none of them for 4 intervals (100 ms each by default), no connection a quarter
    /// of an interval for its turn, and most of them are of connections whose oldest request has waited for less
    /// than half of the time to its deadline. Such a tier does not count as overloaded. Deadlines matter, because a
    /// reply waits for those before it: where more than half of the time is over, most of a pipeline would be
    /// answered too late.
    fn is_deep(&self, tier: usize) -> bool {
        let queue = &self.tiers[tier];
        let oldest = self.nodes.get(queue.list.first as usize);
        queue.list.length >= DEEP * queue.connections
            && oldest.is_some_and(|node| self.is_within(node.clock, DEEP_WAIT))
            // The first of a ring has waited longest for its turn.
            && queue.tenants.values().all(|share| {
                let next = self.chains.get(share.ring.first as usize);
                next.is_none_or(|chain| self.is_within(chain.since.clock, DEEP_WAIT_NEXT))
            })
            && self.pressed(tier) * 2 < queue.list.length
    }

    /// Returns the number of requests of a tier (importance, by its index) whose connection's oldest waiting request
    /// has waited for half of the time that its deadline left it.
    fn pressed(&self, tier: usize) -> usize {
        let here = self.turned_at.before(self.away);
        let own = self.chains.iter().map(|(_, chain)| chain).filter(|chain| chain.tier == tier);
        let is_pressed = |chain: &Chain| {
            let Node { waiting, came, .. } = &self.nodes[chain.first as usize];
            let left = waiting.deadline.map(|deadline| deadline.since(*came));
            left.is_some_and(|left| here.since(*came) * DEEP_PARTS >= left)
        };
        own.filter(|chain| is_pressed(chain)).map(|chain| chain.held.requests).sum()
    }

    /// True if a time, by the queue's clock, is less than `intervals` intervals (100 ms each by default) ago.
    fn is_within(&self, clock: Duration, intervals: f64) -> bool {
        self.clock.saturating_sub(clock) < self.patience.interval.mul_f64(intervals)
    }

    /// Removes the request at the index `index` from the queue and all its lists, and returns it.
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
            // The connection had its turn, and goes to the end of its tenant's ring if it has more requests.
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
    /// Handles that no request has waited in the tier (importance) since its state was last decided. The
    /// tier's overload ends if it was found or confirmed at least an `interval` (100 ms by default) ago.
    /// `clock` is the present time by the queue's clock.
    fn handle_idle(&mut self, clock: Duration, interval: Duration) {
        (self.empty_at, self.seen) = (clock, (clock, 0));
        self.empty_turns = self.empty_turns.saturating_add(2);
        if self.over_since.is_some_and(|since| clock.saturating_sub(since) >= interval) {
            (self.over_since, self.empty_turns) = (None, 0);
        }
    }

    /// Confirms or ends the overload of the tier (importance) once in each `interval` (100 ms by default): it
    /// ends if at least two passes of the core's loop in that time left no request waiting in the tier. Returns
    /// true for a tier that is not overloaded, but may be from now on, since requests have waited in it for
    /// long without a break. `clock` is the present time by the queue's clock.
    fn is_suspect(&mut self, clock: Duration, interval: Duration) -> bool {
        let waiting = self.list.length;
        // Requests of a single connection do not mean an overload: its client decides how many of them wait.
        if self.connections <= 1 {
            self.empty_at = clock;
        }
        if let Some(since) = self.over_since {
            self.empty_turns = self.empty_turns.saturating_add(u32::from(waiting == 0));
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
