//! The pool of a bucket, from which cores draw allowances: it decides how much each core gets.
//!
//! Each core is entitled to a share of the pool: a tenth is split evenly, the rest by the demand at each
//! core, granted or not. The part of its share that a core does not need is for the others. Shares limit the
//! amounts that cores are given in advance. A request that waits gets the amount that it needs whenever the
//! pool has it, as with a single bucket, except that as much is left to the core that has waited longest. So
//! equals take turns, and small requests do not wait for large ones.
//!
//! A debt to a bucket is paid off by its debtors. Only the global bucket forgives: the cost of requests
//! beyond what was taken for them, and beyond a whole burst, makes it owe at most a part of a second's quota,
//! because all tenants would have to wait for that. The tenant and the user pay all of it.

use std::time::Duration;

use crate::policy::bucket::Bucket;
use crate::values::limits::DEBT_MAX;
use crate::values::{BucketId, Capacity, Demand, Grant, MicroUnits, Part, ShardId, Timestamp, signed};

/// The number of parts in a whole bucket, in which shares of it are counted.
const WHOLE_SHARE: u64 = 65_536;
/// The part (a tenth of the whole) of a quota that is split evenly among the cores.
const EVEN_PARTS: u64 = WHOLE_SHARE / 10;
/// The factor for a core's recent demand per reporting period in the allowance (what a core may spend without
/// asking) up to which grants fill the core. To that is added `LUMPS_GIVEN` times the largest recent cost of
/// one request.
const PERIODS_GIVEN: u64 = 2;
/// The number of requests of the largest recent cost for which the allowance (what a core may spend without
/// asking) that grants give a core suffices, besides `PERIODS_GIVEN` times its demand.
const LUMPS_GIVEN: u64 = 4;
/// While a request waits at a core, grants fill the core's allowance (what it may spend without asking) up to
/// at least the pool (the part of a bucket that no core holds) divided by this number, so that it need not
/// ask again after a few requests. Up to the core's demand in a reporting period plus the cost of one
/// request, this takes precedence over other cores' shares.
const PART_WHEN_ASKED: i64 = 8;

/// The divisor for the most that the bucket of all tenants together may owe because requests cost more than
/// their estimated prices, which were taken on arrival: a quarter of a second's quota.
const SURPRISE_PARTS: u64 = 4;

/// The timing of reports from cores about their demand, and of grants (amounts of quota to spend) to them.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm {
    /// The interval at which cores report the quota that they spent.
    pub period: Duration,
    /// The time for which a core may spend a grant (amount of quota to spend).
    pub lease: Duration,
}

/// A core that draws from a pool: the allowance (what a core may spend without asking) that it holds, and its
/// demand.
#[derive(Clone, Debug)]
struct Holder {
    shard: ShardId,
    /// The share of the bucket, in 65,536ths, that the core was last told: it goes on with this share while
    /// it gets no answers.
    told: u32,
    /// The amount that the core may still spend, according to its own reports, in millionths of a request
    /// unit.
    outstanding: i64,
    wanted: u64,
    /// The amount, in millionths of a request unit, that the core lacked at its last demand to go on without
    /// asking, and that was not granted.
    unmet: u64,
    /// The amount, in millionths of a request unit, that the core lacked at its last demand for its next
    /// request, and that was not granted; 0 if it lacked nothing.
    denied: u64,
    granted_at: Timestamp,
    heard_at: Timestamp,
}

/// A token bucket of a quota, and the cores that draw grants (amounts to spend) from it.
#[derive(Clone, Debug)]
pub struct Pool {
    bucket: Bucket,
    holders: Vec<Holder>,
    forgiven: MicroUnits,
    /// The demand of all cores in the measuring interval with number `asked_in`, in millionths of a request
    /// unit.
    asked: MicroUnits,
    asked_in: u32,
}

impl Pool {
    /// Creates the pool (the part of a bucket that no core holds) of a full bucket. `capacity` is that of the
    /// whole bucket, and `part` the part of it that belongs to this process.
    pub fn full(capacity: Capacity, part: Part, now: Timestamp) -> Self {
        let bucket = Bucket::full(capacity, part, now);
        Self { bucket, holders: Vec::new(), forgiven: 0, asked: 0, asked_in: 0 }
    }

    /// Returns this process's part of the bucket; less than the whole if a fleet (weir processes that share
    /// quotas) shares it.
    pub fn part(&self) -> Part {
        self.bucket.part()
    }

    /// Adds `amount` to the demand on this bucket in measuring interval number `stretch`. Returns the demand
    /// in that interval before and after.
    pub fn note_asked(&mut self, amount: MicroUnits, stretch: u32) -> (MicroUnits, MicroUnits) {
        let before = self.asked(stretch);
        (self.asked, self.asked_in) = (before.saturating_add(amount), stretch);
        (before, self.asked)
    }

    /// Returns the demand on this bucket so far in measuring interval number `stretch`; 0 for any but the
    /// latest.
    pub fn asked(&self, stretch: u32) -> MicroUnits {
        if self.asked_in == stretch { self.asked } else { 0 }
    }

    /// Returns the capacity of the whole bucket, of which this process has a part.
    pub fn capacity(&self) -> Capacity {
        self.bucket.capacity()
    }

    /// Changes the rate and burst of the quota, or this process's part of them. The amount left in the bucket
    /// stays, but is cut to the new burst.
    pub fn resize(&mut self, capacity: Capacity, part: Part, now: Timestamp) {
        let elsewhere = self.outstanding();
        self.bucket.resize(capacity, part, now, elsewhere);
    }

    /// Returns the amount left in the bucket and in all cores' allowances (what cores may spend without
    /// asking) together, in millionths of a request unit; negative for a debt.
    pub fn remaining(&self, now: Timestamp) -> i64 {
        let elsewhere = self.outstanding();
        self.bucket.level_at(now, elsewhere).saturating_add(signed(elsewhere))
    }

    /// Returns the amount of the bucket's debt, in millionths of a request unit, that was forgiven since the
    /// last call.
    pub fn take_forgiven(&mut self) -> MicroUnits {
        std::mem::take(&mut self.forgiven)
    }

    /// True if the pool can be dropped without loss: it is full, no core holds an allowance (what a core may
    /// spend without asking) from it, and no core has reported for longer than a grant may be spent.
    pub fn is_idle(&self, now: Timestamp, rhythm: Rhythm) -> bool {
        let active = |holder: &Holder| holder.outstanding != 0 || now.since(holder.heard_at) <= rhythm.lease;
        !self.holders.iter().any(active) && self.remaining(now) >= signed(self.bucket.burst())
    }

    /// Handles the part of a core's report that is about this bucket, and returns the grant (amount of quota
    /// to spend) for the core.
    pub fn handle_demand(
        &mut self,
        shard: ShardId,
        demand: &Demand,
        now: Timestamp,
        rhythm: Rhythm,
    ) -> Grant {
        // Units that came in more than a period ago were in the bucket before any of this demand was spent.
        let before = now.before(rhythm.period);
        let elsewhere = self.outstanding();
        self.bucket.refill(before, elsewhere);
        self.reclaim(now, rhythm);
        let index = self.holder_of(shard, now);
        let debt = self.book(index, demand, now);
        let elsewhere = self.outstanding();
        self.bucket.refill(now, elsewhere);
        let granted = self.grant(index, demand, now, rhythm);
        let holder = &mut self.holders[index];
        holder.outstanding = holder.outstanding.saturating_add(signed(granted.amount));
        let holds = holder.outstanding as u64;
        if granted.amount > 0 {
            holder.granted_at = now;
        }
        let beyond_all = if demand.bucket == BucketId::GLOBAL { self.surprise_max() } else { DEBT_MAX };
        self.charge(signed(granted.amount), beyond_all);
        let share = self.share_to_tell(index, now, rhythm);
        self.holders[index].told = share;
        Grant {
            bucket: demand.bucket,
            amount: signed(granted.amount).saturating_add(debt),
            holds,
            level: self.bucket.level(),
            at: now,
            share,
            part: self.bucket.part(),
            dry_from: granted.dry_from,
        }
    }

    /// Takes back allowances (what cores may spend without asking) of cores that have not reported for longer
    /// than a grant may be spent, plus a reporting period, and forgets these cores.
    fn reclaim(&mut self, now: Timestamp, rhythm: Rhythm) {
        for holder in &mut self.holders {
            let lapsed = now.since(holder.heard_at) > rhythm.lease + rhythm.period;
            if lapsed && holder.outstanding > 0 {
                self.bucket.book(-holder.outstanding, DEBT_MAX);
                holder.outstanding = 0;
            }
            if lapsed {
                (holder.wanted, holder.unmet, holder.denied) = (0, 0, 0);
            }
        }
        self.holders.retain(|holder| {
            holder.outstanding != 0 || now.since(holder.heard_at) <= rhythm.lease + rhythm.period
        });
    }

    fn holder_of(&mut self, shard: ShardId, now: Timestamp) -> usize {
        self.holders.iter().position(|holder| holder.shard == shard).unwrap_or_else(|| {
            // Most buckets belong to a user, and most users are on one core: no room is reserved for more.
            self.holders.reserve_exact(1);
            self.holders.push(Holder {
                shard,
                told: 0,
                outstanding: 0,
                wanted: 0,
                unmet: 0,
                denied: 0,
                granted_at: Timestamp::ZERO,
                heard_at: now,
            });
            self.holders.len() - 1
        })
    }

    /// Books a core's report; `index` is the core's in `holders`. Spending beyond the core's allowance (what
    /// it may spend without asking) is charged to the pool (the part of a bucket that no core holds), and the
    /// amount that the core gives back is added to the pool. Returns the part of the spending beyond the
    /// allowance which the core itself reports as a debt: the pool takes that debt over.
    fn book(&mut self, index: usize, demand: &Demand, now: Timestamp) -> i64 {
        let holder = &mut self.holders[index];
        holder.heard_at = now;
        holder.wanted = demand.wanted;
        holder.outstanding = holder.outstanding.saturating_sub(demand.spent);
        let beyond = holder.outstanding.saturating_neg().max(0);
        holder.outstanding = holder.outstanding.max(0);
        // Only a debt that the core knows of is relieved. What it spent of an allowance that was reclaimed,
        // or that it gave itself while the pool was silent, is booked only; otherwise the core would gain it
        // again and again.
        let debt = beyond.min(signed(demand.owed));
        // An allowance that was reclaimed, or that the core gave itself, cannot be returned.
        let returned = signed(demand.returned).min(holder.outstanding);
        holder.outstanding -= returned;
        let surprise = match demand.bucket {
            BucketId::GLOBAL => beyond.min(signed(demand.surprise)),
            _ => 0,
        };
        self.charge(beyond - surprise - returned, DEBT_MAX);
        self.charge(surprise, self.surprise_max());
        debt
    }

    fn charge(&mut self, amount: i64, debt_max: MicroUnits) {
        self.forgiven = self.forgiven.saturating_add(self.bucket.book(amount, debt_max));
    }

    /// Returns the most that the bucket of all tenants together may owe, in millionths of a request unit, for
    /// requests that cost more than was taken for them on arrival.
    fn surprise_max(&self) -> MicroUnits {
        self.bucket.part().of(self.capacity().second()) / SURPRISE_PARTS
    }

    fn grant(&mut self, index: usize, demand: &Demand, now: Timestamp, rhythm: Rhythm) -> Granted {
        let level = self.bucket.level();
        let outstanding = self.holders[index].outstanding;
        let asked = if demand.needed > 0 { level.max(0) / PART_WHEN_ASKED } else { 0 };
        let usual = if demand.wanted > 0 || demand.needed > 0 {
            signed(
                PERIODS_GIVEN
                    .saturating_mul(demand.wanted)
                    .saturating_add(LUMPS_GIVEN.saturating_mul(demand.lump)),
            )
        } else {
            0
        };
        let target = usual.max(asked).max(signed(demand.needed));
        let short = target.saturating_sub(outstanding).max(0);
        let allowed = level
            .saturating_sub(self.reserved_for_others(index, now, rhythm))
            .max(asked.min(signed(demand.wanted.saturating_add(demand.lump))));
        let mut amount = short.min(allowed);
        // A grant for less than one request is of no use. The size is known if a request waits.
        let whole = if demand.needed > 0 { demand.needed } else { demand.lump };
        let least = signed(whole).saturating_sub(outstanding).max(0);
        let is_due = demand.needed > 0 || demand.wanted > 0;
        if amount < least.min(short) {
            let fits = level >= least.saturating_add(self.left_to_the_first(index).min(least))
                || (self.holds_all(index) && least > signed(self.bucket.burst()).saturating_sub(outstanding));
            amount = if is_due && fits { least } else { 0 };
        }
        let unmet = if is_due { (short - amount).max(0) } else { 0 };
        self.holders[index].unmet = unmet as u64;
        self.holders[index].denied = if is_due { (least - amount).max(0) as u64 } else { 0 };
        let dry =
            unmet > 0 && (demand.needed == 0 || outstanding.saturating_add(amount) < signed(demand.needed));
        Granted { amount: amount as u64, dry_from: dry.then_some(whole) }
    }

    /// Returns the amount to leave in the bucket for cores other than the one with this index in `holders`:
    /// the part of their shares that they lack.
    fn reserved_for_others(&self, index: usize, now: Timestamp, rhythm: Rhythm) -> i64 {
        let there = self.bucket.level().max(0).saturating_add(signed(self.outstanding()));
        let others =
            self.holders.iter().enumerate().filter(|(other, holder)| *other != index && holder.unmet > 0);
        others
            .map(|(other, holder)| {
                let entitled = signed(part_of(there as u64, self.share_of(other, now, rhythm)));
                entitled.saturating_sub(holder.outstanding).clamp(0, signed(holder.unmet))
            })
            .fold(0, i64::saturating_add)
    }

    /// Returns the share of the bucket, in 65,536ths, that the core with this index in `holders` may have.
    fn share_of(&self, index: usize, now: Timestamp, rhythm: Rhythm) -> u64 {
        let live = |holder: &&Holder| now.since(holder.heard_at) <= rhythm.lease;
        let (count, wanted) = self
            .holders
            .iter()
            .filter(live)
            .fold((0, 0_u128), |(count, sum), holder| (count + 1, sum + u128::from(holder.wanted)));
        if wanted == 0 {
            return WHOLE_SHARE / count.max(1);
        }
        let by_demand =
            u128::from(WHOLE_SHARE - EVEN_PARTS) * u128::from(self.holders[index].wanted) / wanted;
        EVEN_PARTS / count.max(1) + by_demand as u64
    }

    /// Returns the share of the bucket, in 65,536ths, to tell the core with this index in `holders`: its share,
    /// as far as the other cores have not been told that it is theirs. All cores together would otherwise
    /// spend a multiple of the quota if the demand shifts and then nobody answers them. The part that is split
    /// evenly is each core's in any case.
    fn share_to_tell(&self, index: usize, now: Timestamp, rhythm: Rhythm) -> u32 {
        let told_to_others: u64 = self.holders.iter().map(|holder| u64::from(holder.told)).sum::<u64>()
            - u64::from(self.holders[index].told);
        let even = EVEN_PARTS / self.holders.len() as u64;
        let untold = WHOLE_SHARE.saturating_sub(told_to_others).max(even);
        self.share_of(index, now, rhythm).min(untold) as u32
    }

    /// True if the bucket is full, and no core but the one with this index in `holders` holds an allowance
    /// (what a core may spend without asking) from it.
    fn holds_all(&self, index: usize) -> bool {
        let own = self.holders[index].outstanding;
        signed(self.outstanding()) == own.max(0)
            && self.bucket.level().saturating_add(own) >= signed(self.bucket.burst())
    }

    /// Returns the amount to leave in the bucket for the core that lacks something for its next request and
    /// got its last grant earliest: what it lacks. 0 if there is no such core, or if the core with this index
    /// in `holders` got its last grant as early.
    fn left_to_the_first(&self, index: usize) -> i64 {
        let waiting = self.holders.iter().filter(|holder| holder.denied > 0);
        let first = waiting.min_by_key(|holder| holder.granted_at);
        let earlier = first.filter(|holder| holder.granted_at < self.holders[index].granted_at);
        earlier.map_or(0, |holder| signed(holder.denied))
    }

    fn outstanding(&self) -> u64 {
        self.holders.iter().map(|holder| holder.outstanding.max(0) as u64).fold(0, u64::saturating_add)
    }
}

struct Granted {
    amount: MicroUnits,
    dry_from: Option<MicroUnits>,
}

fn part_of(amount: u64, share: u64) -> u64 {
    (u128::from(amount) * u128::from(share) / u128::from(WHOLE_SHARE)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{Random, UNIT};

    const CAPACITY: Capacity = Capacity::new(100, 100 * UNIT);
    const RHYTHM: Rhythm = Rhythm { period: Duration::from_millis(10), lease: Duration::from_millis(50) };
    const QUIET: Demand = Demand {
        bucket: BucketId(7),
        capacity: CAPACITY,
        wanted: 0,
        asked: 0,
        spent: 0,
        surprise: 0,
        returned: 0,
        owed: 0,
        needed: 0,
        lump: UNIT,
    };

    /// A pool (the part of a bucket that no core holds) with a clock, which the test moves.
    struct Rig {
        pool: Pool,
        millis: u64,
    }

    impl Rig {
        fn full() -> Self {
            Self { pool: Pool::full(CAPACITY, Part::WHOLE, Timestamp::from_millis(1_000)), millis: 1_000 }
        }

        /// Returns a pool with `level` millionths of a request unit in it, of which no core holds anything.
        fn holding(level: u64) -> Self {
            let mut rig = Self::full();
            rig.pool.bucket.book(CAPACITY.burst as i64 - level as i64, DEBT_MAX);
            rig
        }

        fn tell(&mut self, shard: u16, demand: Demand) -> Grant {
            self.pool.handle_demand(ShardId(shard), &demand, self.now(), RHYTHM)
        }

        /// Reports that core `shard` had requests for `wanted` micro-units in a period, and returns the
        /// amount of quota that it is granted, in micro-units.
        fn wants(&mut self, shard: u16, wanted: u64) -> u64 {
            self.tell(shard, Demand { wanted, ..QUIET }).amount as u64
        }

        /// Reports that a request at core `shard` waits for `needed` micro-units, and returns the amount of
        /// quota that the core is granted, in micro-units.
        fn needs(&mut self, shard: u16, needed: u64) -> u64 {
            self.tell(shard, Demand { needed, lump: needed, ..QUIET }).amount as u64
        }

        fn spent(&mut self, shard: u16, spent: u64) -> Grant {
            self.tell(shard, Demand { spent: spent as i64, ..QUIET })
        }

        fn left(&self) -> i64 {
            self.pool.remaining(self.now())
        }

        fn now(&self) -> Timestamp {
            Timestamp::from_millis(self.millis)
        }
    }

    #[test]
    fn what_is_there_goes_to_whom_it_is_of_use() {
        let mut rig = Rig::full();
        assert_eq!(rig.wants(0, 3 * UNIT), 2 * 3 * UNIT + 4 * UNIT, "two periods and four requests");
        assert_eq!(rig.wants(0, 0), 0, "it has enough");
        assert_eq!(rig.needs(1, 40 * UNIT), 90 * UNIT, "of four such requests, all there is");
        assert_eq!(rig.left(), 100 * UNIT as i64);
    }

    #[test]
    fn what_a_core_returns_is_there_for_others() {
        let mut rig = Rig::holding(50 * UNIT);
        let granted = rig.wants(0, 3 * UNIT);
        assert!(granted > 0);
        rig.tell(0, Demand { returned: granted, ..QUIET });
        assert_eq!((rig.left(), rig.pool.bucket.level()), (50 * UNIT as i64, 50 * UNIT as i64));
    }

    #[test]
    fn a_core_that_was_denied_is_not_outrun_by_a_busier_one() {
        let mut rig = Rig::holding(0);
        let (mut more, mut some, mut busy, mut quiet) = (0, 0, 0, 0);
        for _ in 0..100 {
            rig.millis += 10;
            more = rig.tell(0, Demand { wanted: 9 * UNIT, spent: more, ..QUIET }).amount;
            some = rig.tell(1, Demand { wanted: UNIT, spent: some, ..QUIET }).amount;
            (busy, quiet) = (busy + more, quiet + some);
        }
        // One request unit (one request) comes in each time, and the cores take turns.
        assert!(busy + quiet >= 99 * UNIT as i64 && quiet >= 49 * UNIT as i64, "{busy} and {quiet}");
    }

    #[test]
    fn cores_that_get_no_answer_any_more_have_little_more_than_one_quota_together() {
        let mut random = Random::new(1);
        for cores in [1, 2, 5, 64] {
            let (mut rig, mut told) = (Rig::full(), vec![0; cores]);
            // The core that joins as the second is told half of the even part, the third a third of it.
            let joined: u64 = (2..=cores as u64).map(|count| EVEN_PARTS / count).sum();
            for at in 0..2_000 {
                rig.millis += random.below(3);
                let shard = if at < cores { at } else { random.below(cores as u64) as usize };
                // Demand goes from core to core: the last one that reports always wants the most so far.
                let wanted = (1 + random.below(1 << (at % 20))) * UNIT;
                told[shard] = u64::from(rig.tell(shard as u16, Demand { wanted, ..QUIET }).share);
                // A core that the pool has heard nothing of for a lease and a period may have been forgotten.
                let known = rig.pool.holders.iter().map(|holder| told[usize::from(holder.shard.0)]);
                assert!(known.sum::<u64>() <= WHOLE_SHARE + joined, "{told:?} after {at}");
            }
        }
    }

    #[test]
    fn a_core_that_alone_wants_anything_is_told_that_nearly_all_is_its_own_after_two_reports() {
        let mut rig = Rig::full();
        let shares = |rig: &mut Rig, wanted: [u64; 2]| {
            rig.millis += 10;
            [0, 1].map(|at| rig.tell(at as u16, Demand { wanted: wanted[at] * UNIT, ..QUIET }).share)
        };
        for wanted in [[100, 0], [0, 100]] {
            shares(&mut rig, wanted);
            let at = usize::from(wanted[1] > 0);
            assert_eq!(u64::from(shares(&mut rig, wanted)[at]), WHOLE_SHARE - EVEN_PARTS + EVEN_PARTS / 2);
        }
    }

    #[test]
    fn what_is_given_in_advance_goes_by_what_was_wanted() {
        let mut rig = Rig::holding(0);
        for _ in 0..20 {
            rig.millis += 10;
            // The pool has less than either core can use, so it grants nothing and remembers both demands.
            rig.tell(0, Demand { wanted: 90 * UNIT, lump: 30 * UNIT, ..QUIET });
            rig.tell(1, Demand { wanted: 10 * UNIT, lump: 30 * UNIT, ..QUIET });
        }
        let (busy, quiet) = (rig.wants(0, 90 * UNIT), rig.wants(1, 10 * UNIT));
        // A tenth of the twenty units that came in is split evenly, the rest by demand.
        assert!(quiet.abs_diff(UNIT + 18 * UNIT / 10) < UNIT / 100, "{busy} and {quiet}");
        assert!((busy + quiet).abs_diff(20 * UNIT) < UNIT / 100, "{busy} and {quiet}");
    }

    #[test]
    fn nobody_is_refused_what_is_there_because_others_would_like_more() {
        let mut rig = Rig::holding(50 * UNIT);
        for shard in 0..50 {
            let now = rig.now();
            let index = rig.pool.holder_of(ShardId(shard), now);
            let holder = &mut rig.pool.holders[index];
            (holder.wanted, holder.unmet, holder.granted_at) = (UNIT, 6 * UNIT, now);
        }
        // All cores together want 300 units, and an even share of the pool is at most one unit.
        for shard in 0..40 {
            assert!(rig.needs(shard, UNIT) >= UNIT, "{shard}");
            rig.millis += 1;
        }
    }

    #[test]
    fn equals_take_turns_however_often_one_asks() {
        let mut rig = Rig::holding(0);
        let mut turns = Vec::new();
        for _ in 0..8 {
            for shard in [0, 1, 1, 1, 2] {
                rig.millis += 10;
                if rig.needs(shard, 10 * UNIT) > 0 {
                    turns.push(shard);
                    rig.spent(shard, 10 * UNIT);
                }
            }
        }
        turns.sort_unstable();
        turns.dedup();
        assert_eq!(turns, [0, 1, 2], "a hundred milliseconds each");
    }

    #[test]
    fn small_requests_do_not_wait_for_a_large_one_which_gets_what_they_leave() {
        let mut rig = Rig::holding(0);
        let (mut large, mut small) = (0, 0);
        for _ in 0..200 {
            rig.millis += 10;
            if rig.needs(0, 20 * UNIT) > 0 {
                large += 1;
                rig.spent(0, 20 * UNIT);
            }
            // One core asks for half of what comes in.
            if rig.millis.is_multiple_of(20) && rig.needs(1, UNIT) > 0 {
                small += 1;
                rig.spent(1, UNIT);
            }
        }
        assert!(small >= 95 && large >= 4, "{small} small and {large} large");
    }

    #[test]
    fn what_costs_more_than_the_burst_needs_all_of_it() {
        let mut rig = Rig::holding(99 * UNIT);
        assert_eq!(rig.needs(0, 500 * UNIT), 0);
        rig.millis += 10;
        assert_eq!(rig.needs(0, 500 * UNIT), 500 * UNIT);
        assert_eq!(rig.spent(0, 500 * UNIT).level, -400 * UNIT as i64);
        assert_eq!(rig.needs(0, UNIT), 0, "it is paid off first");
    }

    #[test]
    fn what_a_payer_owes_is_paid_off_however_much_it_is() {
        let mut rig = Rig::full();
        let spent = 5_000 * UNIT as i64;
        rig.tell(0, Demand { spent, surprise: spent as u64, ..QUIET });
        assert_eq!((rig.left(), rig.pool.take_forgiven()), (-4_900 * UNIT as i64, 0));
        rig.millis += 49_000;
        assert_eq!(rig.needs(0, UNIT), 0);
        rig.millis += 10;
        assert_eq!(rig.needs(0, UNIT), UNIT);
    }

    #[test]
    fn everybody_waits_for_a_surprise_no_longer_than_a_part_of_a_second() {
        let everybody = Demand { bucket: BucketId::GLOBAL, ..QUIET };
        let mut rig = Rig::full();
        // The amount that was taken is paid off, even if taken on credit; the cost beyond it is not.
        let spent = 150 * UNIT as i64;
        rig.tell(0, Demand { spent, ..everybody });
        assert_eq!(rig.left(), -50 * UNIT as i64);
        let mut rig = Rig::full();
        let spent = i64::MAX;
        for shard in 0..8 {
            rig.tell(
                shard,
                Demand { spent, surprise: spent as u64 - 10 * UNIT, owed: spent as u64, ..everybody },
            );
        }
        assert_eq!(
            rig.left(),
            -25 * UNIT as i64 - 7 * 10 * UNIT as i64,
            "eight requests of ten, and a quarter of a second"
        );
        rig.millis += 960;
        assert!(rig.tell(1, Demand { needed: UNIT, lump: UNIT, ..everybody }).amount >= UNIT as i64);
        // A request that costs more than the burst is treated in the same way.
        let mut rig = Rig::full();
        rig.tell(0, Demand { needed: 90_000 * UNIT, lump: 90_000 * UNIT, ..everybody });
        let level = rig.tell(0, Demand { spent: 90_000 * UNIT as i64, ..everybody }).level;
        assert_eq!(level, -25 * UNIT as i64);
    }

    #[test]
    fn what_a_silent_core_holds_comes_back_and_what_it_spent_is_booked_once() {
        let mut rig = Rig::full();
        assert_eq!(rig.needs(0, 30 * UNIT), 100 * UNIT);
        rig.millis += 61;
        assert!(rig.needs(1, 10 * UNIT) >= 10 * UNIT, "its lease is over");
        let before = rig.left();
        let grant = rig.tell(0, Demand { spent: 30 * UNIT as i64, returned: 70 * UNIT, ..QUIET });
        assert_eq!((rig.left(), grant.amount, grant.holds), (before - 30 * UNIT as i64, 0, 0));
    }

    #[test]
    fn another_quota_leaves_what_is_there_and_with_cores() {
        let mut rig = Rig::full();
        rig.needs(0, 15 * UNIT);
        rig.pool.resize(Capacity::new(1_000, 1_000 * UNIT), Part::WHOLE, rig.now());
        assert_eq!(rig.left(), 100 * UNIT as i64);
        rig.millis += 100;
        assert_eq!(rig.left(), 200 * UNIT as i64);
    }

    #[test]
    fn a_pool_is_forgotten_when_nothing_would_be_lost() {
        let mut rig = Rig::full();
        rig.spent(0, UNIT);
        rig.millis += 9;
        assert!(!rig.pool.is_idle(rig.now(), RHYTHM), "it is not full");
        rig.millis += 51;
        assert!(rig.pool.is_idle(rig.now(), RHYTHM));
    }
}
