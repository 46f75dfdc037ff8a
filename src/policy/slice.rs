//! Slice: one core's part of one bucket, with an allowance that the core may spend without asking anybody.
//!
//! ```text
//!   bucket is full ─> one request on credit        as far as the core knows; nobody has to be asked
//!   enough left ────> spend
//!   not enough ─────> ask; the request waits       if the last answer was that so much is not there: refuse
//!   every period ───> report what was spent and wanted, give back what is not needed, get more
//! ```
//!
//! The allowances of all cores and the level of the pool that they are drawn from add up to one bucket. Only
//! requests on credit, one per core, are not covered; they are booked with the next report.

use std::time::Duration;

use crate::values::{BucketId, Capacity, Demand, Grant, MicroUnits, Price, Timestamp, signed};

/// A report leaves the core the demand of this many periods, and `LUMPS_KEPT` requests more, as its allowance
/// (the amount that it may spend without asking); the rest goes back to the pool, the part of the bucket that
/// no core holds.
const PERIODS_KEPT: u64 = 2;
/// A report leaves the core this many times the largest recent cost of one request as its allowance (the amount
/// that it may spend without asking), besides the demand of two periods.
const LUMPS_KEPT: u64 = 4;
/// A bucket is short if its rate fills it in less than this time. Where nearly a core's whole share of a
/// short bucket is left, the core admits a request without regard to admitted requests whose real cost may
/// turn out high, because a tenant with rare large replies would otherwise get only a part of its quota.
const SHORT_BURST: Duration = Duration::from_secs(1);
/// The whole of a bucket, in the unit of a core's share: 65,536ths.
const WHOLE_SHARE: u128 = 65_536;
/// The least time from an answer of the control executor until a slice (one core's part of a bucket) may ask it
/// a second time in a period: a bucket that fills at once costs no more than a thousand questions a second.
const ASKS_APART: Duration = Duration::from_millis(1);
/// Least income, in millionths of a request unit, that a core adds to its own allowance at once while the
/// control executor does not answer. A smaller income is left to accumulate, because rounding would lose it.
const COMES_IN_LEAST: i64 = 1_000;

/// Decision of a slice (one core's part of a bucket) on a request. Nothing is taken yet; the caller takes the
/// cost ([`Slice::take`]) once all slices that the request needs let it pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request may pass: the core's allowance covers it, or the bucket is full as far as this core knows,
    /// so that it passes on credit, or the core's saved share covers it while the control executor does not
    /// answer.
    Fits,
    /// The core cannot decide: the control executor (which divides buckets among cores) must be asked for a
    /// grant (amount of quota to spend), and the request waits.
    Ask,
    /// The bucket does not have enough, as far as this core knows; while the control executor does not answer,
    /// this core's share of it has not enough. A retry makes no sense before this time has passed.
    Refused(Duration),
}

/// Rules that all slices (one core's parts of buckets) of a core follow at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Interval at which slices (one core's parts of buckets) report to the control executor and are granted
    /// amounts to spend.
    pub period: Duration,
    /// Time for which a grant (amount of quota that a core may spend) is valid.
    pub lease: Duration,
    /// True if the control executor, which divides quotas among cores, has not answered for longer than a
    /// grant (amount of quota to spend) is valid.
    pub silent: bool,
    /// Share of the bucket assumed for a core until the control executor (which divides buckets among cores)
    /// has told it its share, in 65,536ths.
    pub even_share: u32,
}

/// One core's part of one token bucket of a quota. Kept small: there is one for each user that is active on
/// the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Amount that this core may still spend, in millionths of a request unit; below zero if it has spent more
    /// than it had.
    allowance: i64,
    /// Amount spent since the last report to the control executor, in millionths of a request unit; below zero
    /// if corrections of estimated prices gave back more.
    spent: i64,
    /// Sum of the costs of requests for the bucket in this period (10 ms by default), refused ones included,
    /// in thousandths of a request unit, rounded up.
    wanted_milli: u32,
    /// Sum of the costs of requests for the bucket in the period (10 ms by default) before, refused ones
    /// included, in thousandths of a request unit, rounded up.
    wanted_before_milli: u32,
    /// Amount in the bucket that no core held (the level of the pool) at the last grant (amount of quota to
    /// spend), in millionths of a request unit.
    level: i64,
    /// Time of the last grant (amount of quota to spend), or, while the control executor does not answer, the
    /// time up to which this core has refilled its own allowance (what a core may spend without asking).
    /// Before the first grant it is the time when the slice (one core's part of a bucket) was made.
    heard_at: Timestamp,
    /// The largest recent cost of a request, in thousandths of a request unit, rounded up; falls by an eighth
    /// with each period (10 ms by default). Of what this core may still spend at a period's end, it keeps at
    /// most four times as much, besides the demand of two periods.
    lump_milli: u32,
    /// This core's share of the bucket, in 65,536ths; at most 65,535, so that it fits 16 bits.
    share: u16,
    /// Number of requests admitted that have not been charged at their real cost yet, at most 65,535.
    under_way: u16,
    /// True once a first grant (amount of quota to spend) has come from the control executor.
    heard: bool,
    /// True if a report to the control executor (which grants the core amounts to spend) is about to be sent.
    asking: bool,
    /// Number of reports about the bucket that the control executor (which divides buckets among cores) has
    /// not answered yet.
    unanswered: u8,
    /// True if a request had to ask the control executor for a grant (amount of quota to spend) in this
    /// period.
    asked: bool,
    /// Least cost, in thousandths of a request unit, that the control executor could not grant the last time;
    /// `u32::MAX`, which is more than any cost, if it could grant all.
    dry_from_milli: u32,
}

impl Slice {
    /// Creates one core's part of a bucket that counts as full, since the control executor (which divides
    /// buckets among cores) has not granted this core any of it yet.
    pub const fn untouched(now: Timestamp) -> Self {
        Self {
            allowance: 0,
            spent: 0,
            wanted_milli: 0,
            wanted_before_milli: 0,
            level: 0,
            heard_at: now,
            lump_milli: 0,
            share: 0,
            under_way: 0,
            heard: false,
            asking: false,
            unanswered: 0,
            asked: false,
            dry_from_milli: u32::MAX,
        }
    }

    /// Returns the amount that this core may still spend, in millionths of a request unit; below zero if it has
    /// spent more than it had.
    pub const fn allowance(&self) -> i64 {
        self.allowance
    }

    /// True if the amount that this core may spend covers the cost and the last grant (amount of quota to
    /// spend) is no older than `heard_since`. Fast path of nearly every request.
    pub const fn allows(&self, cost: Price, heard_since: Timestamp) -> bool {
        self.heard_at.as_nanos() >= heard_since.as_nanos() && self.allowance >= cost.signed()
    }

    /// Decides whether a request of this cost may pass: from the amount that this core may spend, on credit
    /// because the bucket must be full, or from the core's last known share while the control executor (which
    /// divides buckets among cores) does not answer. Else the control executor is to be asked, or the request
    /// is refused. Takes nothing yet. `capacity` has the quota's rate and burst, and `rules` say how long a
    /// grant of an amount is valid.
    pub fn check(&mut self, cost: Price, capacity: Capacity, now: Timestamp, rules: Rules) -> Verdict {
        let heard_since = now.before(rules.lease);
        if self.allows(cost, heard_since) {
            return Verdict::Fits;
        }
        // On credit. A cost above the burst only fits into a full bucket, and only the pool knows whether it
        // is full.
        if cost.micro() <= capacity.burst && self.is_full(capacity, now) {
            return Verdict::Fits;
        }
        if rules.silent {
            return self.check_alone(cost, capacity, now, rules);
        }
        if self.heard_at >= heard_since && Wanted::of(cost).milli >= self.dry_from_milli {
            let earliest = self.earliest(cost, capacity, now);
            // After that time the slice may ask the pool again, which it does once in a period, or in the time in
            // which the bucket fills if that is shorter; later requests wait for the next report's answer. A bucket
            // that fills sooner would overflow while its tenant's clients wait for the end of the period.
            let fills = Duration::from_micros(capacity.micros_for(capacity.burst)).max(ASKS_APART);
            let told_again = self.heard_at.after(rules.period.min(fills)).since(now);
            let wait = if self.asked { earliest.max(told_again) } else { earliest };
            if !wait.is_zero() {
                return Verdict::Refused(wait);
            }
        }
        self.ask(cost)
    }

    /// Takes a cost from the allowance (what a core may spend without asking), and counts it as demand.
    pub fn take(&mut self, cost: Price) {
        self.take_wanted(cost, Wanted::of(cost));
    }

    /// Takes a cost from the allowance (what a core may spend without asking); `wanted` is its rounded form,
    /// computed before by callers that take it from several slices (one core's parts of buckets).
    pub fn take_wanted(&mut self, cost: Price, wanted: Wanted) {
        self.note_wanted(wanted);
        self.book(cost.signed());
    }

    /// Takes the costs of several requests together: `spent` is the sum of the amounts that were taken and
    /// given back for them so far, in millionths of a request unit; `sum` and `largest` are the sum and the
    /// largest of the prices taken on their arrival, which count as demand.
    pub fn take_run(&mut self, spent: i64, sum: Wanted, largest: Wanted) {
        self.wanted_milli = self.wanted_milli.saturating_add(sum.milli);
        self.lump_milli = self.lump_milli.max(largest.milli);
        self.book(spent);
    }

    /// Returns the time of the last grant (amount of quota to spend). While the control executor does not
    /// answer, it is the time up to which this core has refilled its own allowance (what a core may spend
    /// without asking); before the first grant, the time when the slice (one core's part of a bucket) was
    /// made.
    pub const fn heard_at(&self) -> Timestamp {
        self.heard_at
    }

    /// Takes the difference between the cost of a request and the amount taken for it on arrival, in
    /// millionths of a request unit, from what this core may spend; a negative difference is given back.
    pub const fn book(&mut self, difference: i64) {
        self.allowance = self.allowance.saturating_sub(difference);
        self.spent = self.spent.saturating_add(difference);
    }

    /// Counts the cost of a refused request as demand, which is reported to the control executor.
    pub fn handle_denied(&mut self, cost: Price) {
        self.note_wanted(Wanted::of(cost));
    }

    /// Makes the report to send to the control executor now, or returns None if there is nothing to report.
    /// `capacity` has the quota's rate and burst, `needed` is the amount that a waiting request needs (0 if
    /// none waits), and `rules` say how long a grant is valid. Gives back what the core does not need of its
    /// allowance (the amount that it may spend without asking), and counts the report as unanswered.
    pub fn report(
        &mut self,
        bucket: BucketId,
        capacity: Capacity,
        needed: MicroUnits,
        now: Timestamp,
        rules: Rules,
    ) -> Option<Demand> {
        let wanted = u64::from(self.wanted_milli.max(self.wanted_before_milli)) * MICRO_PER_MILLI;
        let lapsed = self.heard_at < now.before(rules.lease);
        let kept = if wanted == 0 || lapsed { 0 } else { PERIODS_KEPT * wanted + LUMPS_KEPT * self.lump() };
        let returned = self.allowance.saturating_sub(signed(kept)).max(0);
        if wanted == 0 && needed == 0 && self.spent == 0 && returned == 0 && !self.asking {
            return None;
        }
        self.allowance -= returned;
        self.asking = false;
        self.unanswered = self.unanswered.saturating_add(1);
        self.asked |= needed > 0;
        let spent = std::mem::take(&mut self.spent);
        Some(Demand {
            bucket,
            capacity,
            wanted,
            asked: 0,
            spent,
            surprise: 0,
            returned: returned as u64,
            owed: self.allowance.min(0).unsigned_abs(),
            needed,
            lump: self.lump().max(needed),
        })
    }

    /// Returns the sum of the prices of this period's requests for the bucket so far, admitted or not, in
    /// millionths of a request unit. Periods (10 ms by default) end with a report to the control executor.
    pub const fn asked(&self) -> MicroUnits {
        self.wanted_milli as u64 * MICRO_PER_MILLI
    }

    /// True if a grant (amount of quota to spend) of the control executor is awaited already. If not, one
    /// counts as awaited from now on, and the caller has to send a report.
    pub const fn await_answer(&mut self) -> bool {
        let awaited = self.is_awaited();
        self.asking |= !awaited;
        awaited
    }

    const fn is_awaited(&self) -> bool {
        self.asking || self.unanswered > 0
    }

    /// Begins the next period (10 ms by default), after the demand of the present one was reported to the
    /// control executor.
    pub const fn start_period(&mut self) {
        self.wanted_before_milli = self.wanted_milli;
        self.wanted_milli = 0;
        self.asked = false;
        self.lump_milli -= self.lump_milli / 8;
    }

    /// True if there is something to report about the bucket to the control executor, now or at the end of
    /// the period: an amount left, spent or wanted.
    pub const fn has_news(&self) -> bool {
        self.allowance > 0 || self.spent != 0 || self.wanted_milli > 0 || self.wanted_before_milli > 0
    }

    /// Applies a grant of the control executor, which divides the bucket among cores. The allowance (what a
    /// core may spend without asking) becomes the amount that this core holds by the control executor's count,
    /// less what was spent since the report. While later reports are unanswered, it rises by the granted amount
    /// at most.
    pub fn handle_grant(&mut self, grant: &Grant) {
        self.unanswered = self.unanswered.saturating_sub(1);
        let holds = signed(grant.holds).saturating_sub(self.spent);
        // If later reports are still unanswered, the grant does not know of them; their own grants subtract
        // what they reported.
        self.allowance = match self.unanswered {
            0 => holds,
            _ => holds.min(self.allowance.saturating_add(grant.amount)),
        };
        self.level = grant.level;
        self.heard_at = self.heard_at.max(grant.at);
        self.heard = true;
        self.dry_from_milli = grant.dry_from.map_or(u32::MAX, |cost| Wanted::of_sum(cost).milli);
        self.share = grant.share.min(u32::from(u16::MAX)) as u16;
    }

    /// True if the slice (one core's part of a bucket) can be dropped: a new one would be the same.
    pub fn is_idle(&self, capacity: Capacity, now: Timestamp) -> bool {
        self.allowance == 0 && self.is_full(capacity, now)
    }

    /// True if the bucket must be full again by now, however much was missing from it at the last grant
    /// (amount of quota to spend), or if there was no grant yet. False while the present period has demand of
    /// this core, or something that it spent is not reported or a report not answered.
    fn is_full(&self, capacity: Capacity, now: Timestamp) -> bool {
        if self.spent != 0 || self.wanted_milli != 0 || self.is_awaited() {
            return false;
        }
        if !self.heard {
            return true;
        }
        let missing = signed(capacity.burst).saturating_sub(self.level).saturating_sub(self.allowance).max(0);
        let until_full = Duration::from_micros(capacity.micros_for(missing as u64));
        now >= self.heard_at.after(until_full)
    }

    /// Returns what is left of the bucket, in millionths of a request unit, from 0 to its burst: the level of
    /// the pool (the part that no core holds) at the last grant, the income since, and the amount that this
    /// core may spend. Amounts that other cores hold, and what they took since then, are not known here.
    pub fn remaining(&self, capacity: Capacity, now: Timestamp) -> MicroUnits {
        if self.is_full(capacity, now) {
            return capacity.burst;
        }
        self.level_by(capacity, now).saturating_add(self.allowance).clamp(0, signed(capacity.burst)) as u64
    }

    /// Returns the amount in the bucket that no core held (the level of the pool) at the last grant plus the
    /// income since, at most the burst, in millionths of a request unit.
    fn level_by(&self, capacity: Capacity, now: Timestamp) -> i64 {
        let came_in = capacity.comes_in(now.since(self.heard_at));
        self.level.saturating_add_unsigned(came_in).min(signed(capacity.burst))
    }

    /// Returns two amounts in millionths of a request unit. The first is what this core can count on in the
    /// bucket: its allowance (what a core may spend without asking), and its share of the part that no core
    /// holds. The second, None unless the bucket's burst is less than a second's income, is nearly all of
    /// this core's share of the burst: a core that can count on more ignores the risk that admitted requests
    /// cost more than was taken for them, since a tenant with rare large replies would otherwise be served
    /// only a part of its quota.
    pub fn in_sight(&self, capacity: Capacity, now: Timestamp, rules: Rules) -> (i64, Option<i64>) {
        let share = if self.heard { u32::from(self.share) } else { rules.even_share };
        let part = |whole: i64| (i128::from(whole) * i128::from(share) / WHOLE_SHARE as i128) as i64;
        let there =
            if self.is_full(capacity, now) { signed(capacity.burst) } else { self.level_by(capacity, now) };
        let is_short = capacity.burst < capacity.comes_in(SHORT_BURST);
        let full = part(signed(capacity.burst - capacity.burst / 32));
        (self.allowance.saturating_add(part(there)), is_short.then_some(full))
    }

    /// Returns the amount in the bucket as far as this core knows it, in millionths of a request unit: its own
    /// allowance (what a core may spend without asking), and the part that no core holds. Below zero it is
    /// owed.
    pub fn balance(&self, capacity: Capacity, now: Timestamp) -> i64 {
        let level = if self.heard { self.level_by(capacity, now) } else { signed(capacity.burst) };
        self.allowance.saturating_add(level)
    }

    /// Returns how many requests of this bucket on this core are admitted and have not been charged at their
    /// real cost yet.
    pub const fn under_way(&self) -> u16 {
        self.under_way
    }

    /// Adds to the number of admitted requests that have not been charged at their real cost yet: positive
    /// for admitted requests, negative for charged ones.
    pub const fn count_under_way(&mut self, change: i32) {
        let count = (self.under_way as i32).saturating_add(change);
        self.under_way = if count < 0 {
            0
        } else if count > u16::MAX as i32 {
            u16::MAX
        } else {
            count as u16
        };
    }

    fn ask(&mut self, cost: Price) -> Verdict {
        self.lump_milli = self.lump_milli.max(Wanted::of(cost).milli);
        Verdict::Ask
    }

    /// Returns the shortest time until the bucket could hold `cost` (at most its burst), if no other core
    /// took any.
    fn earliest(&self, cost: Price, capacity: Capacity, now: Timestamp) -> Duration {
        let there = self.level.saturating_add(self.allowance);
        let missing = signed(cost.micro().min(capacity.burst)).saturating_sub(there).max(0);
        let moment = self.heard_at.after(Duration::from_micros(capacity.micros_for(missing as u64)));
        moment.since(now)
    }

    /// Decides on a request while the control executor (which divides buckets among cores) does not answer:
    /// this core adds its last known share of the bucket's income to its allowance, up to that share of the
    /// burst. A request that costs more than this limit passes once the limit is reached. Refuses with the time
    /// to wait, and never asks.
    fn check_alone(&mut self, cost: Price, capacity: Capacity, now: Timestamp, rules: Rules) -> Verdict {
        let share = u128::from(if self.heard { u32::from(self.share) } else { rules.even_share });
        let part = |whole: u64| signed((u128::from(whole) * share / WHOLE_SHARE) as u64);
        let most = part(capacity.burst);
        let came_in = part(capacity.comes_in(now.since(self.heard_at)));
        // Less is lost to rounding: a core that is asked every few microseconds would never get anything.
        if came_in >= COMES_IN_LEAST {
            self.allowance = self.allowance.max(self.allowance.saturating_add(came_in).min(most));
            self.heard_at = now;
        }
        if self.allowance >= cost.signed().min(most) && self.allowance > 0 {
            return Verdict::Fits;
        }
        let missing = cost.signed().saturating_sub(self.allowance).max(0) as u64;
        let scaled = (u128::from(missing) * WHOLE_SHARE / share.max(1)).min(u128::from(u32::MAX) * 1_000_000);
        Verdict::Refused(Duration::from_micros(capacity.micros_for(scaled as u64)))
    }

    fn note_wanted(&mut self, wanted: Wanted) {
        self.wanted_milli = self.wanted_milli.saturating_add(wanted.milli);
        self.lump_milli = self.lump_milli.max(wanted.milli);
    }

    const fn lump(&self) -> MicroUnits {
        self.lump_milli as u64 * MICRO_PER_MILLI
    }
}

/// A cost in thousandths of a request unit, rounded up, at most `WANTED_MAX`. 4 bytes, because there may be a million
/// slices (one core's parts of buckets) with such costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    milli: u32,
}

const MICRO_PER_MILLI: u64 = 1_000;
/// The largest cost that is told apart from larger ones, in thousandths of a request unit: 4,294,967 units. Less
/// than `u32::MAX`, which says that a pool (the part of a bucket that no core holds) lacks nothing.
const WANTED_MAX: u64 = u32::MAX as u64 - 1;

impl Wanted {
    /// Rounds a price up to thousandths of a request unit.
    #[expect(
        clippy::manual_div_ceil,
        reason = "prices are far below 64 bits, and this is half of what that takes"
    )]
    pub fn of(cost: Price) -> Self {
        let milli = (cost.micro() + (MICRO_PER_MILLI - 1)) / MICRO_PER_MILLI;
        Self { milli: milli.min(WANTED_MAX) as u32 }
    }

    /// Rounds a sum of costs up to thousandths of a request unit.
    pub fn of_sum(costs: MicroUnits) -> Self {
        Self { milli: costs.div_ceil(MICRO_PER_MILLI).min(WANTED_MAX) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{Part, UNIT};

    const CAPACITY: Capacity = Capacity::new(10, 20 * UNIT);
    const RULES: Rules = Rules {
        period: Duration::from_millis(10),
        lease: Duration::from_millis(50),
        silent: false,
        even_share: 65_536,
    };

    /// Creates a slice (one core's part of a bucket) that got a grant (amount of quota to spend) at 100 ms,
    /// which stated this level of the pool, and the least cost that the pool could not cover (`dry_from`).
    fn told(level: u64, dry_from: Option<MicroUnits>) -> Slice {
        let mut slice = Slice::untouched(Timestamp::ZERO);
        slice.take(Price::new(UNIT));
        let at = Timestamp::from_millis(100);
        let level = level as i64;
        slice.handle_grant(&Grant {
            bucket: BucketId(1),
            amount: 0,
            holds: 0,
            level,
            at,
            share: 0,
            part: Part::WHOLE,
            dry_from,
        });
        slice.allowance = 0;
        slice
    }

    fn check(slice: &mut Slice, cost: MicroUnits, millis: u64) -> Verdict {
        slice.check(Price::new(cost), CAPACITY, Timestamp::from_millis(millis), RULES)
    }

    #[test]
    fn what_was_too_much_for_the_pool_says_nothing_of_less() {
        let mut slice = told(8 * UNIT, Some(14 * UNIT));
        assert_eq!(check(&mut slice, 14 * UNIT, 100), Verdict::Refused(Duration::from_millis(600)));
        assert_eq!(check(&mut slice, 7 * UNIT, 100), Verdict::Ask);
    }

    #[test]
    fn the_time_to_wait_counts_what_this_core_owes() {
        let mut slice = told(8 * UNIT, Some(UNIT));
        slice.book(9 * UNIT as i64);
        assert_eq!(check(&mut slice, UNIT, 100), Verdict::Refused(Duration::from_millis(200)));
    }

    #[test]
    fn what_was_granted_is_used_until_the_lease_is_over() {
        let mut slice = told(8 * UNIT, None);
        slice.allowance = 10 * UNIT as i64;
        assert_eq!(check(&mut slice, 4 * UNIT, 150), Verdict::Fits);
        assert_eq!(check(&mut slice, 4 * UNIT, 151), Verdict::Ask);
    }

    #[test]
    fn a_request_without_a_price_is_asked_about_too() {
        let mut slice = told(8 * UNIT, None);
        let report =
            |slice: &mut Slice| slice.report(BucketId(1), CAPACITY, 0, Timestamp::from_millis(400), RULES);
        (slice.wanted_milli, slice.wanted_before_milli, slice.spent) = (0, 0, 0);
        assert_eq!(report(&mut slice), None, "there is nothing to tell");
        assert_eq!(check(&mut slice, 0, 400), Verdict::Ask, "the lease is over");
        assert!(!slice.await_answer());
        assert!(report(&mut slice).is_some(), "somebody waits for the answer");
        assert!(slice.await_answer(), "the answer is still to come");
    }

    #[test]
    fn a_core_alone_gets_its_income_however_often_it_is_asked() {
        for apart in [100, 1_000, 300_000] {
            let mut slice = told(0, None);
            slice.share = 256;
            let rules = Rules { silent: true, ..RULES };
            let capacity = Capacity::new(1, 20 * UNIT);
            for step in 1..=10_000_000 / apart {
                let now = Timestamp::from_millis(100).after(Duration::from_micros(step * apart));
                let verdict = slice.check(Price::new(UNIT), capacity, now, rules);
                assert!(matches!(verdict, Verdict::Refused(_)), "{verdict:?}");
            }
            // A 256th of one unit per second, for ten seconds.
            assert!((37_000..=39_063).contains(&slice.allowance), "{apart}: {}", slice.allowance);
        }
    }

    #[test]
    fn only_the_pool_knows_whether_more_than_a_burst_fits() {
        let mut slice = Slice::untouched(Timestamp::ZERO);
        assert_eq!(check(&mut slice, 20 * UNIT, 100), Verdict::Fits, "on credit");
        assert_eq!(check(&mut slice, 20 * UNIT + 1, 100), Verdict::Ask);
    }

    #[test]
    fn no_request_costs_so_much_that_it_is_refused_though_the_pool_lacks_nothing() {
        for cost in [4_294_967 * UNIT, 4_294_968 * UNIT, u64::from(u32::MAX) * UNIT] {
            assert_eq!(check(&mut Slice::untouched(Timestamp::ZERO), cost, 0), Verdict::Ask, "{cost}");
            assert_eq!(check(&mut told(8 * UNIT, None), cost, 100), Verdict::Ask, "{cost}");
            let refused = Verdict::Refused(Duration::from_millis(1_200));
            let mut slice = told(8 * UNIT, Some(cost));
            assert_eq!(check(&mut slice, cost, 100), refused, "{cost}: as soon as the bucket is full");
            assert_eq!(check(&mut slice, 20 * UNIT, 100), Verdict::Ask, "{cost}");
        }
    }

    #[test]
    fn what_was_spent_since_the_report_is_taken_off_the_answer() {
        let mut slice = Slice::untouched(Timestamp::ZERO);
        slice.take(Price::new(5 * UNIT));
        let at = Timestamp::from_millis(100);
        assert!(slice.report(BucketId(1), CAPACITY, 0, at, RULES).is_some());
        slice.take(Price::new(3 * UNIT));
        let grant = Grant {
            bucket: BucketId(1),
            amount: 15 * UNIT as i64,
            holds: 10 * UNIT,
            level: 0,
            at,
            share: 0,
            part: Part::WHOLE,
            dry_from: None,
        };
        slice.handle_grant(&grant);
        assert_eq!(slice.allowance(), 7 * UNIT as i64);
    }

    #[test]
    fn who_comes_again_when_there_may_be_enough_is_not_refused_on_old_news() {
        let mut slice = told(UNIT * 8 / 10, Some(UNIT));
        assert_eq!(check(&mut slice, UNIT, 101), Verdict::Refused(Duration::from_millis(19)));
        assert_eq!(check(&mut slice, UNIT, 120), Verdict::Ask);
    }

    #[test]
    fn one_request_may_ask_in_a_period_and_the_next_is_told_when_the_period_is_over() {
        let mut slice = told(UNIT - 1, Some(UNIT));
        assert_eq!(check(&mut slice, UNIT, 101), Verdict::Ask);
        assert!(slice.report(BucketId(1), CAPACITY, UNIT, Timestamp::from_millis(101), RULES).is_some());
        assert_eq!(check(&mut slice, UNIT, 101), Verdict::Refused(Duration::from_millis(9)));
        slice.start_period();
        assert_eq!(check(&mut slice, UNIT, 105), Verdict::Ask);
    }

    /// Checks when a slice (one core's part of a bucket) of `burst` millionths of a request unit, and 1,000 units a
    /// second, may ask a second time in a period of 10 ms: `millis` after the last answer. Requests before that are
    /// refused with the time until then.
    fn asks_again_after(burst: MicroUnits, millis: u64) {
        let capacity = Capacity::new(1_000, burst);
        let mut slice = told(0, Some(UNIT / 2));
        let at = |micros| Timestamp::from_millis(100).after(Duration::from_micros(micros));
        let check =
            |slice: &mut Slice, micros| slice.check(Price::new(UNIT / 2), capacity, at(micros), RULES);
        assert_eq!(check(&mut slice, 500), Verdict::Ask);
        assert!(slice.report(BucketId(1), capacity, UNIT / 2, at(500), RULES).is_some());
        let wait = Duration::from_micros(millis * 1_000 - 600);
        assert_eq!(check(&mut slice, 600), Verdict::Refused(wait), "{burst}");
        assert_eq!(check(&mut slice, millis * 1_000), Verdict::Ask, "{burst}");
    }

    #[test]
    fn a_bucket_that_fills_within_a_period_is_asked_for_again_once_it_is_full() {
        asks_again_after(UNIT / 2, 1);
        asks_again_after(UNIT, 1);
        asks_again_after(4 * UNIT, 4);
        asks_again_after(10 * UNIT, 10);
        asks_again_after(1_000 * UNIT, 10);
    }
}
