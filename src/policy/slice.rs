//! One core's slice of one bucket: an allowance that it may spend without asking anybody.
//!
//! ```text
//!   first touch ──> one request on credit        a full bucket is no state, so nobody has to be asked for it
//!   enough left ──> spend
//!   not enough ───> ask; the request waits       unless it was told just now that so much is not there: then refuse
//!   every period ─> tell what was spent and wanted, give back what is not needed, get more
//! ```
//!
//! The allowances of all cores and the level of the pool that they are drawn from are one bucket: what is in one of them is
//! in no other. Only the requests on credit, one per core, are not covered, and they are booked with the next report.

use std::time::Duration;

use crate::values::{BucketId, Capacity, Demand, Grant, MicroUnits, Price, Timestamp, signed};

/// What is kept of an allowance at the end of a period: so many times what one period wants, and so many of the
/// largest costs.
const PERIODS_KEPT: u64 = 2;
const LUMPS_KEPT: u64 = 4;
/// A bucket that holds less of its quota than this is short: what is under way may owe more than it holds.
const SHORT_BURST: Duration = Duration::from_secs(1);
/// Shares are in this many parts.
const WHOLE_SHARE: u128 = 65_536;

/// What a slice says about a request. Nothing is taken yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may pass as far as this bucket is concerned.
    Fits,
    /// Nobody here knows: the pool must be asked.
    Ask,
    /// There is not enough, and not before this much later.
    Refused(Duration),
}

/// What holds for all slices of a core at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How often slices report, and are told what there is.
    pub period: Duration,
    /// How long a grant is good for.
    pub lease: Duration,
    /// The pool has not answered for longer than a lease.
    pub silent: bool,
    /// The part of a core that was never told its part, in 65,536ths.
    pub even_share: u32,
}

/// The slice. Small: there is one for each user that is active on a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// What may still be spent; below zero it is owed.
    allowance: i64,
    /// Spent since the last report.
    spent: i64,
    /// Asked for in this period and in the one before, in thousandths of a request unit, rounded up.
    wanted_milli: u32,
    wanted_before_milli: u32,
    /// What the pool had left when it was last heard of.
    level: i64,
    heard_at: Timestamp,
    /// The largest recent cost, likewise.
    lump_milli: u32,
    /// Less than a whole share, which nobody misses: it fits 16 bits then.
    share: u16,
    /// Requests that are admitted and not settled, as far as 16 bits count them.
    under_way: u16,
    heard: bool,
    /// A report is about to be sent.
    asking: bool,
    /// Reports that were not answered yet.
    unanswered: u8,
    /// A request had to ask in this period.
    asked: bool,
    /// There was not enough for this cost, likewise, when the pool was last heard of; `u32::MAX` if there was.
    dry_from_milli: u32,
}

impl Slice {
    /// A slice of a bucket that is full, as far as this core knows.
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

    /// What may still be spent; below zero it is owed.
    pub const fn allowance(&self) -> i64 {
        self.allowance
    }

    /// Nearly every request: its cost is within an allowance of which was heard since then.
    pub const fn allows(&self, cost: Price, heard_since: Timestamp) -> bool {
        self.heard_at.as_nanos() >= heard_since.as_nanos() && self.allowance >= cost.signed()
    }

    /// May a request of this cost pass?
    pub fn check(&mut self, cost: Price, capacity: Capacity, now: Timestamp, rules: Rules) -> Verdict {
        let heard_since = now.before(rules.lease);
        if self.allows(cost, heard_since) {
            return Verdict::Fits;
        }
        // On credit. What is larger than the burst never fits but into a full bucket, and whether it is that only the
        // pool knows.
        if cost.micro() <= capacity.burst && self.is_full(capacity, now) {
            return Verdict::Fits;
        }
        if rules.silent {
            return self.check_alone(cost, capacity, now, rules);
        }
        if self.heard_at >= heard_since && Wanted::of(cost).milli >= self.dry_from_milli {
            let earliest = self.earliest(cost, capacity, now);
            // By then somebody may have to ask, once in a period. Who comes after that waits for what all are told.
            let told_again = self.heard_at.after(rules.period).since(now);
            let wait = if self.asked { earliest.max(told_again) } else { earliest };
            if !wait.is_zero() {
                return Verdict::Refused(wait);
            }
        }
        self.ask(cost)
    }

    /// Takes a cost that fits.
    pub fn take(&mut self, cost: Price) {
        self.take_wanted(cost, Wanted::of(cost));
    }

    /// The same, where it is taken from several slices.
    pub fn take_wanted(&mut self, cost: Price, wanted: Wanted) {
        self.note_wanted(wanted);
        self.book(cost.signed());
    }

    /// Takes several costs that fit together: what they come to after all corrections, their sum, and the largest.
    pub fn take_run(&mut self, spent: i64, sum: Wanted, largest: Wanted) {
        self.wanted_milli = self.wanted_milli.saturating_add(sum.milli);
        self.lump_milli = self.lump_milli.max(largest.milli);
        self.book(spent);
    }

    /// When the pool was last heard of.
    pub const fn heard_at(&self) -> Timestamp {
        self.heard_at
    }

    /// It cost more than was taken, or less.
    pub const fn book(&mut self, difference: i64) {
        self.allowance = self.allowance.saturating_sub(difference);
        self.spent = self.spent.saturating_add(difference);
    }

    /// A request was refused for want of this.
    pub fn handle_denied(&mut self, cost: Price) {
        self.note_wanted(Wanted::of(cost));
    }

    /// What to tell the pool now, if anything. `needed` is what a request that waits needs.
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
        if wanted == 0 && needed == 0 && self.spent == 0 && returned == 0 {
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

    /// What was asked for in this period so far.
    pub const fn asked(&self) -> MicroUnits {
        self.wanted_milli as u64 * MICRO_PER_MILLI
    }

    /// An answer of the pool is on its way. If not, it is from now on: the caller sees to it that there is a report.
    pub const fn await_answer(&mut self) -> bool {
        let awaited = self.is_awaited();
        self.asking |= !awaited;
        awaited
    }

    const fn is_awaited(&self) -> bool {
        self.asking || self.unanswered > 0
    }

    /// A period is over, and was reported.
    pub const fn start_period(&mut self) {
        self.wanted_before_milli = self.wanted_milli;
        self.wanted_milli = 0;
        self.asked = false;
        self.lump_milli -= self.lump_milli / 8;
    }

    /// There is, or will be, something to report.
    pub const fn has_news(&self) -> bool {
        self.allowance > 0 || self.spent != 0 || self.wanted_milli > 0 || self.wanted_before_milli > 0
    }

    /// What the pool said. What this core allowed itself meanwhile, or was taken from it with its lease, the pool does not
    /// know, or not any more: so what counts is what the pool thinks that it holds.
    pub fn handle_grant(&mut self, grant: &Grant) {
        self.unanswered = self.unanswered.saturating_sub(1);
        let holds = signed(grant.holds).saturating_sub(self.spent);
        // What it told after what this is the answer to will be taken off by the next one.
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

    /// Nothing would be lost if it were forgotten.
    pub fn is_idle(&self, capacity: Capacity, now: Timestamp) -> bool {
        self.allowance == 0 && self.is_full(capacity, now)
    }

    /// By now the bucket must be full again, whatever was taken from it when this core last heard.
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

    /// What is left of the bucket, as far as this core knows.
    pub fn remaining(&self, capacity: Capacity, now: Timestamp) -> MicroUnits {
        if self.is_full(capacity, now) {
            return capacity.burst;
        }
        let came_in = capacity.comes_in(now.since(self.heard_at));
        let there = self.level.saturating_add_unsigned(came_in).min(signed(capacity.burst));
        there.saturating_add(self.allowance).clamp(0, signed(capacity.burst)) as u64
    }

    /// The part of a bucket that this core can count on: its allowance, and its share of what the pool has by now. Beside it
    /// stands the amount from which on requests under way may be any risk. There is one only where the bucket holds less than
    /// [`SHORT_BURST`] of its quota: then it is nearly all of the bucket, since a tenant with rare large replies would
    /// be served a part of its quota otherwise.
    pub fn in_sight(&self, capacity: Capacity, now: Timestamp, rules: Rules) -> (i64, Option<i64>) {
        let share = if self.heard { u32::from(self.share) } else { rules.even_share };
        let part = |whole: i64| (i128::from(whole) * i128::from(share) / WHOLE_SHARE as i128) as i64;
        let there = if self.is_full(capacity, now) {
            signed(capacity.burst)
        } else {
            let came_in = capacity.comes_in(now.since(self.heard_at));
            self.level.saturating_add_unsigned(came_in).min(signed(capacity.burst))
        };
        let is_short = capacity.burst < capacity.comes_in(SHORT_BURST);
        let full = part(signed(capacity.burst - capacity.burst / 32));
        (self.allowance.saturating_add(part(there)), is_short.then_some(full))
    }

    /// Requests of this bucket on this core that are admitted and not settled.
    pub const fn under_way(&self) -> u16 {
        self.under_way
    }

    /// Counts requests that are admitted, or, below zero, settled.
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

    /// The earliest moment at which so much could be there, if nobody else took any.
    fn earliest(&self, cost: Price, capacity: Capacity, now: Timestamp) -> Duration {
        let there = self.level.saturating_add(self.allowance.max(0));
        let missing = signed(cost.micro().min(capacity.burst)).saturating_sub(there).max(0);
        let moment = self.heard_at.after(Duration::from_micros(capacity.micros_for(missing as u64)));
        moment.since(now)
    }

    /// The pool is silent: this core goes on with the part of what comes in that it last had.
    fn check_alone(&mut self, cost: Price, capacity: Capacity, now: Timestamp, rules: Rules) -> Verdict {
        let share = u128::from(if self.heard { u32::from(self.share) } else { rules.even_share });
        let part = |whole: u64| signed((u128::from(whole) * share / WHOLE_SHARE) as u64);
        let most = part(capacity.burst);
        let came_in = part(capacity.comes_in(now.since(self.heard_at)));
        self.allowance = self.allowance.max(self.allowance.saturating_add(came_in).min(most));
        self.heard_at = now;
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

/// A cost as it is remembered to steer by: rounded up, because there may be a million of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    milli: u32,
}

const MICRO_PER_MILLI: u64 = 1_000;

impl Wanted {
    /// A cost in thousandths of a request unit.
    #[expect(
        clippy::manual_div_ceil,
        reason = "prices are far below 64 bits, and this is half of what that takes"
    )]
    pub fn of(cost: Price) -> Self {
        let milli = (cost.micro() + (MICRO_PER_MILLI - 1)) / MICRO_PER_MILLI;
        Self { milli: milli.min(u64::from(u32::MAX)) as u32 }
    }

    /// The same of several together.
    pub fn of_sum(costs: MicroUnits) -> Self {
        Self { milli: costs.div_ceil(MICRO_PER_MILLI).min(u64::from(u32::MAX)) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{Part, UNIT};

    const CAPACITY: Capacity = Capacity { ru_per_second: 10, burst: 20 * UNIT };
    const RULES: Rules = Rules {
        period: Duration::from_millis(10),
        lease: Duration::from_millis(50),
        silent: false,
        even_share: 65_536,
    };

    /// A slice that was told at 100 ms that the pool has this, and for whom it is not enough.
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
}
