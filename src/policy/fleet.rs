//! Division of each quota among the hosts of a fleet: the part that this host may give out, by the demand on
//! it and on all others.
//!
//! ```text
//!   once a period ─> question: my tick, and what I was asked for since ──INCRBY──> counters of the fleet
//!   its answer ────> whose ticks move: N hosts; how far each counter went: D      share = R (0.1 / N + 0.9 d / D)
//!   no answer ─────> the last shares, for a minute; then an even part at most
//! ```
//!
//! `R` is the quota's rate. `d` and `D` are of the same stretch of this host's own time, so that no clocks are
//! compared. A share shrinks at once and grows a period later, when every other host had time to shrink: the
//! shares of hosts that hear each other add up to one quota, except for one period after a host came. Demand
//! that was denied counts, because the host could use it.
//!
//! A host claims at most four times `R` in a period, and believes a counter no more than that of each other
//! live host: demand beyond it tells little more of what shares should be. Whatever else adds to a counter, a
//! host alone keeps `R`, and one of two hosts that could use all of `R` keeps at least a fifth of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::values::limits::{FLEET_FORGOTTEN_AT_ONCE, FLEET_HOSTS_MAX, FLEET_KEYS_MAX};
use crate::values::{MicroUnits, Part, Timestamp};

/// Part of a quota that is divided evenly among hosts, in billionths: 10 %. The rest is divided by demand.
const EVEN_BILLIONTHS: u64 = 100_000_000;
/// Part of a quota that a host may give out before it knows how many hosts there are: 10 %.
const UNKNOWN: Part = Part::of_billionths(EVEN_BILLIONTHS);
/// Consecutive answers of the fleet's store (a Redis server) in which another host's counter (tick) has not
/// changed, after which that host counts as gone.
const MISSED_MAX: u32 = 3;
/// Consecutive answers of the fleet's store (a Redis server) in which another host's counter (tick) has not
/// changed, after which that host's entry is removed there.
const FORGOTTEN_AFTER: u32 = 60;
/// Time for which shares of quotas stay in force without a reply of the fleet's store (a Redis server). After
/// it, a host gives out at most an even part.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of answers of the fleet's store (a Redis server) for which shares that were taken over from a process
/// before stay in force: until then the counters hold demand of the clients that still move.
const INHERITED_ANSWERS: u32 = 3;
/// The most demand on a quota that a host reports for a period, as a multiple of the quota's income in the
/// period; refused requests count up to that.
const CLAIM_QUOTAS: u64 = 4;
/// Factor between internal amounts, in millionths of a request unit, and those sent to the fleet's store (a
/// Redis server), in thousandths.
const MICRO_PER_MILLI: u64 = 1_000;

/// Identity of one host's proxy in the fleet, drawn at random when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub u64);

impl HostId {
    /// Returns how long after the start of a period this host asks the fleet's store (a Redis server), so that
    /// not all hosts ask at once.
    pub fn phase(self, period: Duration) -> Duration {
        // Fibonacci hashing, which spreads even consecutive ids.
        let spread = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Duration::from_nanos(((u128::from(spread) * period.as_nanos()) >> 64) as u64)
    }
}

/// Question to the fleet's store (Redis server with the counters of shared quotas), sent in one round trip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// Counter that this host raises in each period; hosts whose tick does not change count as gone.
    pub tick: u64,
    /// Hosts that have been gone for long, whose entries in the fleet's store (Redis server with the counters
    /// of shared quotas) are to be removed.
    pub gone: Vec<HostId>,
    /// Quotas, by their indices in the host's list, and the amounts to add to their counters in the fleet's
    /// store (a Redis server), in thousandths of a request unit.
    pub added: Vec<(usize, u64)>,
}

/// Outcome of handling a reply of the fleet's store (Redis server with the counters of shared quotas).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The reply was used to compute the shares of quotas.
    Heard,
    /// The reply was ignored: it came more than a period after the question, none was awaited, or it has not as
    /// many counters as were asked for.
    Late,
    /// The reply was ignored: the fleet has more hosts (above 4,096) than this one can keep track of.
    Crowded,
}

/// One quota that the hosts of the fleet share, with this host's demand for it and the part that this host may
/// give out.
#[derive(Clone, Debug)]
struct Scope {
    ru_per_second: u64,
    /// Sum of the prices of this host's requests for the quota since the fleet's store (a Redis server) was
    /// last asked, refused ones included, in millionths of a request unit.
    demand: MicroUnits,
    /// Sum of the prices of this host's requests for the quota in the period before the fleet's store (a Redis
    /// server) was last asked, refused ones included, in millionths of a request unit per second.
    demand_shown: MicroUnits,
    /// Value of the quota's counter at the fleet's store (a Redis server) when it was last read; `None` if the
    /// next value cannot be compared with it, because a reply of the store was lost or the quota was left out
    /// since, or if it was never read.
    total: Option<u64>,
    /// Share of the quota that follows from the last reply of the fleet's store (a Redis server). Where it is
    /// larger than `part`, the part grows to it only with the next reply.
    target: Part,
    part: Part,
    /// Part of the quota that the process before this one gave out. This process gives out at least as much,
    /// until three answers of the fleet's store (a Redis server) have come.
    inherited: Part,
    heard_at: Option<Timestamp>,
}

/// Another host of the fleet, and its counter (tick) as last read. A host raises its tick as long as it
/// lives, and counts as gone if the tick stays the same.
#[derive(Clone, Copy, Debug)]
struct Seen {
    tick: u64,
    /// Number of consecutive replies of the fleet's store (Redis server with the counters of shared quotas) in which
    /// the other host's tick has not changed.
    missed: u32,
}

/// An exchange with the fleet's store (Redis server with the counters of shared quotas) that has not been
/// answered.
#[derive(Clone, Debug)]
struct Asked {
    at: Timestamp,
    /// Length of the time over which the demand in `added` was counted.
    elapsed: Duration,
    /// Quotas, by their indices in the host's list, and the amounts added to their counters, in thousandths
    /// of a request unit.
    added: Vec<(usize, u64)>,
}

/// This host's view of the fleet: the other hosts, and the quotas that they share (scopes), which are named
/// by their indices in a list.
#[derive(Clone, Debug)]
pub struct Fleet {
    own: HostId,
    period: Duration,
    tick: u64,
    others: BTreeMap<HostId, Seen>,
    /// Quotas that the hosts share: first those that are never removed (of all tenants together, and of each
    /// tenant), then those of heavily used users.
    scopes: Vec<Scope>,
    /// Number of quotas that are never removed: that of all tenants together, and those of tenants.
    fixed: usize,
    /// The exchange with the fleet's store (a Redis server) that is in flight, with the amounts added to
    /// counters; `None` if none is.
    asked: Option<Asked>,
    asked_at: Option<Timestamp>,
    heard_at: Option<Timestamp>,
    /// Number of answers of the fleet's store (a Redis server) for which shares taken over from the process
    /// before stay in force.
    inherits: u32,
    inherited_at: Option<Timestamp>,
}

impl Fleet {
    /// Creates the view of a host (with the id `own`) that knows no other host. `quotas` are the sizes of the
    /// shared quotas, in request units per second. `period` is the time between two exchanges with the fleet's
    /// store (a Redis server).
    pub fn new(own: HostId, period: Duration, quotas: impl Iterator<Item = u64>) -> Self {
        let scopes: Vec<Scope> = quotas.map(|quota| Scope::new(quota, UNKNOWN)).collect();
        Self {
            own,
            period,
            tick: 0,
            others: BTreeMap::new(),
            fixed: scopes.len(),
            scopes,
            asked: None,
            asked_at: None,
            heard_at: None,
            inherits: 0,
            inherited_at: None,
        }
    }

    /// Prepares for shares that the process before this one, whose clients this one takes over, gave out
    /// ([`Fleet::inherit`]). They stay in force for three answers of the fleet's store (a Redis server).
    pub fn begin_inheritance(&mut self, now: Timestamp) {
        (self.inherits, self.inherited_at) = (INHERITED_ANSWERS, Some(now));
    }

    /// Takes over the part of the quota with index `place` that the process before this one gave out.
    pub fn inherit(&mut self, place: usize, part: Part) {
        let scope = &mut self.scopes[place];
        (scope.inherited, scope.part) = (part, scope.part.max(part));
    }

    /// True while shares that were taken over from the process before are in force.
    pub fn inherits(&self) -> bool {
        self.inherits > 0
    }

    /// Adds the quota of a heavily used user at the end of the list of shared quotas; `ru_per_second` is its
    /// size in request units per second. Until the other hosts' demand on it is known, this host may give out
    /// an even part of it, or 10 % before the first reply of the fleet's store (a Redis server).
    pub fn admit(&mut self, ru_per_second: u64) {
        let part = self.uncounted();
        self.scopes.push(Scope { heard_at: self.heard_at, ..Scope::new(ru_per_second, part) });
    }

    /// Removes the user's quota with index `place` from the list of shared quotas; the quota at the end of the
    /// list takes its index. An exchange with the fleet's store (a Redis server) in flight is given up.
    pub fn dismiss(&mut self, place: usize) {
        self.handle_lost();
        debug_assert!(place >= self.fixed, "it is one that came");
        self.scopes.swap_remove(place);
    }

    /// Changes the size of the quota with index `place`, in request units per second.
    pub fn resize(&mut self, place: usize, ru_per_second: u64) {
        self.scopes[place].ru_per_second = ru_per_second;
    }

    /// Returns the part that this host may give out of a quota whose demand is too small to be counted: an even
    /// part among the hosts, or 10 % before the fleet's store (a Redis server) first replied.
    pub fn uncounted(&self) -> Part {
        if self.heard_at.is_some() { Part::even(self.hosts()) } else { UNKNOWN }
    }

    /// Replaces the quotas that are never removed (of all tenants together, and of each tenant). `quotas` gives
    /// for each new one its size in request units per second, and the index that it had before, if any. An
    /// exchange with the fleet's store (a Redis server) in flight is given up.
    pub fn replace(&mut self, quotas: impl Iterator<Item = (u64, Option<usize>)>) {
        self.handle_lost();
        let newcomer = if self.heard_at.is_some() { self.floor() } else { UNKNOWN };
        let guests = self.scopes.split_off(self.fixed);
        let mut before: Vec<Option<Scope>> = std::mem::take(&mut self.scopes).into_iter().map(Some).collect();
        self.scopes = quotas
            .map(|(ru_per_second, place)| {
                let known = place.and_then(|place| before.get_mut(place)?.take());
                match known {
                    Some(scope) => Scope { ru_per_second, ..scope },
                    None => Scope { heard_at: self.heard_at, ..Scope::new(ru_per_second, newcomer) },
                }
            })
            .collect();
        self.fixed = self.scopes.len();
        self.scopes.extend(guests);
    }

    /// Counts the price of a request (`amount`) towards the demand on the quota with index `scope`, whether
    /// the request was admitted or not.
    pub fn handle_demand(&mut self, scope: usize, amount: MicroUnits) {
        if let Some(scope) = self.scopes.get_mut(scope) {
            scope.demand = scope.demand.saturating_add(amount);
        }
    }

    /// True if the demand on a quota since the fleet's store (a Redis server) was last asked exceeds the part
    /// that every host may give out anyway (10 % divided by the number of hosts), so that other hosts have to
    /// know of it. `scope` is the quota's index in the list of shared quotas.
    pub fn is_heavy(&self, scope: usize, now: Timestamp) -> bool {
        let elapsed = self.elapsed(now);
        self.scopes.get(scope).is_some_and(|scope| scope.is_above(self.floor(), elapsed))
    }

    /// Returns the time since the fleet's store (Redis server with the counters of shared quotas) was last
    /// asked, or one period if it never was.
    fn elapsed(&self, now: Timestamp) -> Duration {
        self.asked_at.map_or(self.period, |asked_at| now.since(asked_at))
    }

    /// Begins a period and returns the question for the fleet's store (a Redis server): counters to read and
    /// amounts to add to them. An earlier exchange in flight is given up.
    pub fn begin(&mut self, now: Timestamp) -> Question {
        self.handle_lost();
        let elapsed = self.elapsed(now);
        let hosts = self.hosts();
        for scope in &mut self.scopes {
            scope.demand_shown = per_second(scope.demand, elapsed);
        }
        let added = self.choose(elapsed, hosts);
        let gone = self.others.iter().filter(|(_, seen)| seen.missed >= FORGOTTEN_AFTER);
        let gone: Vec<HostId> = gone.map(|(id, _)| *id).take(FLEET_FORGOTTEN_AT_ONCE).collect();
        self.tick += 1;
        self.asked_at = Some(now);
        self.asked = Some(Asked { at: now, elapsed, added: added.clone() });
        Question { tick: self.tick, gone, added }
    }

    /// Chooses the quotas whose counters are read at the fleet's store (a Redis server): those with much
    /// demand, then others while the number of counters allows, and all of heavily used users. Returns their
    /// indices with the amounts to add to the counters, in thousandths of a request unit. Sets this host's
    /// parts of the quotas left out: an even part if they are in much demand, otherwise a small one that needs
    /// no counter. `elapsed` is the time since the store was last asked, `hosts` the number of hosts.
    fn choose(&mut self, elapsed: Duration, hosts: u64) -> Vec<(usize, u64)> {
        let floor = self.floor();
        let is_heavy = |scope: &Scope| scope.is_above(floor, elapsed);
        let (mut heavy, light): (Vec<usize>, Vec<usize>) =
            (0..self.fixed).partition(|place| is_heavy(&self.scopes[*place]));
        // Where more quotas are heavy than the store may keep keys for, the heaviest have keys and the others
        // get an even part.
        let crowded = if heavy.len() > FLEET_KEYS_MAX {
            heavy.select_nth_unstable_by_key(FLEET_KEYS_MAX, |place| {
                std::cmp::Reverse(self.scopes[*place].demand)
            });
            heavy.split_off(FLEET_KEYS_MAX)
        } else {
            Vec::new()
        };
        // A quota below the floor needs no key. While keys are spare, such quotas are counted too: if nobody
        // else wants any, an even part is available at once instead of the floor.
        let spare = (FLEET_KEYS_MAX as u64 / hosts) as usize;
        let spare = spare.min(FLEET_KEYS_MAX - heavy.len());
        let is_known = |place: &usize| self.scopes[*place].total.is_some();
        let (mut light, others): (Vec<usize>, Vec<usize>) = light.into_iter().partition(is_known);
        light.extend(others);
        let unasked = light.split_off(spare.min(light.len()));
        for place in crowded {
            self.scopes[place].leave_out(Part::even(hosts));
        }
        for place in unasked {
            self.scopes[place].leave_out(floor);
        }
        let asked = heavy.into_iter().chain(light).chain(self.fixed..self.scopes.len());
        asked.map(|place| (place, self.scopes[place].take_demand(elapsed))).collect()
    }

    /// Handles a reply of the fleet's store (a Redis server): all hosts with their ticks (counters that live
    /// hosts raise), and the quotas' counters (`totals`) in the order in which they were asked for, None where
    /// one could not be read. Returns whether the reply was used.
    pub fn handle_answer(
        &mut self,
        now: Timestamp,
        hosts: &[(HostId, u64)],
        totals: &[Option<u64>],
    ) -> Outcome {
        if hosts.len() > FLEET_HOSTS_MAX {
            self.handle_lost();
            return Outcome::Crowded;
        }
        let Some(asked) = self.asked.take() else { return Outcome::Late };
        if now.since(asked.at) > self.period || asked.added.len() != totals.len() {
            self.asked = Some(asked);
            self.handle_lost();
            return Outcome::Late;
        }
        // Shares that were capped while the store did not answer go on from the cap, and grow like any other
        // share.
        let even = Part::even(self.hosts());
        for scope in self.scopes.iter_mut().filter(|scope| scope.is_out_of_patience(now)) {
            scope.part = scope.part.min(even);
            scope.target = scope.target.min(scope.part);
        }
        self.handle_hosts(hosts);
        let hosts = self.hosts();
        let mut unread = Vec::new();
        for ((place, added), total) in asked.added.iter().zip(totals) {
            match total {
                Some(total) => self.scopes[*place].handle_total((*added, asked.elapsed), *total, hosts),
                None => unread.push((*place, self.scopes[*place].heard_at)),
            }
        }
        self.heard_at = Some(now);
        self.scopes.iter_mut().for_each(|scope| scope.heard_at = Some(now));
        for (place, heard_at) in unread {
            self.scopes[place].start_over();
            self.scopes[place].heard_at = heard_at;
        }
        self.inherits = self.inherits.saturating_sub(1);
        if self.inherits == 0 {
            self.scopes.iter_mut().for_each(|scope| scope.inherited = Part::NONE);
        }
        Outcome::Heard
    }

    /// Gives up the exchange with the fleet's store (a Redis server) that is in flight, if any: whether its
    /// amounts reached the counters is unknown, so they are never sent again. The next values of these counters
    /// are not compared with earlier ones, so the quotas' parts do not grow by them.
    pub fn handle_lost(&mut self) {
        let Some(asked) = self.asked.take() else { return };
        for (place, _) in asked.added {
            self.scopes[place].start_over();
        }
    }

    fn handle_hosts(&mut self, hosts: &[(HostId, u64)]) {
        self.others.values_mut().for_each(|seen| seen.missed = seen.missed.saturating_add(1));
        for (id, tick) in hosts.iter().filter(|(id, _)| *id != self.own) {
            let seen = self.others.entry(*id).or_insert(Seen { tick: *tick, missed: 0 });
            if seen.tick != *tick {
                *seen = Seen { tick: *tick, missed: 0 };
            }
        }
        // Hosts whose entries others removed, or an emptied store lost, are dropped.
        let listed: BTreeSet<HostId> = hosts.iter().map(|(id, _)| *id).collect();
        self.others.retain(|id, seen| seen.missed < MISSED_MAX || listed.contains(id));
    }

    /// Returns the number of live hosts of the fleet, this one included.
    pub fn hosts(&self) -> u64 {
        1 + self.others.values().filter(|seen| seen.missed < MISSED_MAX).count() as u64
    }

    /// Returns the part of the quota with index `scope` that this host may give out now; all of it if there is
    /// no such quota. Before the first reply of the fleet's store (a Redis server), it is 10 % or, for 60 s,
    /// the part taken over from the process before. It is at most an even part when no reply has come for 60 s.
    pub fn part(&self, scope: usize, now: Timestamp) -> Part {
        let Some(scope) = self.scopes.get(scope) else { return Part::WHOLE };
        if self.heard_at.is_none() && is_too_old(self.inherited_at, now) {
            return scope.part.min(UNKNOWN);
        }
        if scope.is_out_of_patience(now) { scope.part.min(Part::even(self.hosts())) } else { scope.part }
    }

    /// Returns the sum of the prices of this host's requests for the quota with index `scope` in the last
    /// period, refused ones included, in millionths of a request unit per second.
    pub fn demand(&self, scope: usize) -> MicroUnits {
        self.scopes.get(scope).map_or(0, |scope| scope.demand_shown)
    }

    /// Returns when a reply of the store that the fleet's hosts share was last applied to the quotas; `None`
    /// before the first.
    pub fn heard_at(&self) -> Option<Timestamp> {
        self.heard_at
    }

    /// True if no reply of the fleet's store (Redis server with the counters of shared quotas) was used for
    /// longer than shares stay in force (60 s); false before the first reply.
    pub fn is_out_of_patience(&self, now: Timestamp) -> bool {
        is_too_old(self.heard_at, now)
    }

    /// Returns the id of this host in the fleet.
    pub fn own(&self) -> HostId {
        self.own
    }

    /// Returns the part of a quota that every host may give out whatever the demand: 10 %, divided by the
    /// number of hosts.
    pub fn floor(&self) -> Part {
        Part::of_billionths(EVEN_BILLIONTHS / self.hosts())
    }
}

impl Scope {
    const fn new(ru_per_second: u64, part: Part) -> Self {
        Self {
            ru_per_second,
            demand: 0,
            demand_shown: 0,
            total: None,
            target: part,
            part,
            inherited: Part::NONE,
            heard_at: None,
        }
    }

    fn is_out_of_patience(&self, now: Timestamp) -> bool {
        is_too_old(self.heard_at, now)
    }

    fn is_above(&self, part: Part, elapsed: Duration) -> bool {
        let came_in = u128::from(self.ru_per_second) * elapsed.as_micros();
        u128::from(self.demand) * u128::from(Part::WHOLE.billionths())
            > came_in * u128::from(part.billionths())
    }

    /// Returns this host's demand on the quota in a time span (`elapsed`), in whole thousandths of a request
    /// unit, at most as much as a host may claim. Demand is then counted from zero again, but for a rest of
    /// less than a thousandth.
    fn take_demand(&mut self, elapsed: Duration) -> u64 {
        let whole = self.demand / MICRO_PER_MILLI;
        self.demand %= MICRO_PER_MILLI;
        whole.min(self.claim_max(elapsed))
    }

    /// Returns the largest demand on the quota that one host may claim for a time span (`elapsed`), in
    /// thousandths of a request unit: four times the quota's income.
    fn claim_max(&self, elapsed: Duration) -> u64 {
        let milli = u128::from(CLAIM_QUOTAS) * u128::from(self.ru_per_second) * elapsed.as_millis();
        milli.min(u128::from(u64::MAX)) as u64
    }

    /// Records that this quota is not part of the period's exchange with the fleet's store (a Redis server),
    /// and sets the part of it that this host may give out.
    fn leave_out(&mut self, part: Part) {
        self.demand = 0;
        self.total = None;
        self.settle(part);
    }

    fn handle_total(&mut self, (added, elapsed): (u64, Duration), total: u64, hosts: u64) {
        let others_max = self.claim_max(elapsed).saturating_mul(hosts.saturating_sub(1));
        let believed = |difference: u64| difference.min(added.saturating_add(others_max));
        let difference = self.total.and_then(|before| total.checked_sub(before)).map(believed);
        self.total = Some(total);
        match difference {
            // Less than was added just now means that the counter started over.
            Some(all) if all >= added => self.settle(share(added, all, hosts)),
            _ if self.heard_at.is_none() => self.settle(Part::even(hosts)),
            _ => self.target = self.target.min(self.part),
        }
        if total < added {
            // A counter is never below what was just added to it.
            self.start_over();
        }
    }

    /// Forgets the value of the quota's counter at the fleet's store (a Redis server), so that the next value
    /// read is not compared with it.
    fn start_over(&mut self) {
        self.total = None;
        self.target = self.target.min(self.part);
    }

    /// Sets the part that this host may give out of the quota: it shrinks to `target` at once, and grows only
    /// to a value that two consecutive replies allow. It is never below the part taken over from the process
    /// before this one.
    fn settle(&mut self, target: Part) {
        self.part = target.min(self.target).max(self.inherited);
        self.target = target;
    }
}

fn is_too_old(heard_at: Option<Timestamp>, now: Timestamp) -> bool {
    heard_at.is_some_and(|heard_at| now.since(heard_at) > PATIENCE)
}

/// Returns a host's part of a quota: an even part of 10 %, and of the rest its share of the demand (`own` of
/// `all`). `hosts` is the number of hosts; without any demand, the part is even.
fn share(own: u64, all: u64, hosts: u64) -> Part {
    if all == 0 {
        return Part::even(hosts);
    }
    let by_demand = Part::WHOLE.billionths() - EVEN_BILLIONTHS;
    let by_demand = u128::from(by_demand) * u128::from(own.min(all)) / u128::from(all);
    Part::of_billionths(EVEN_BILLIONTHS / hosts + by_demand as u64)
}

fn per_second(amount: MicroUnits, elapsed: Duration) -> MicroUnits {
    (u128::from(amount) * 1_000_000 / elapsed.as_micros().max(1)).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests;
