//! The pool of one bucket that cores draw allowances from: who gets how much.
//!
//! Each core is entitled to a part of what is there: a tenth of it evenly, the rest by what was wanted of each, granted
//! or not. What a core does not need of its part is for the others. That is about what cores are given in advance: a
//! request that waits is given what it needs whenever that is there, as it would be by a single bucket, except that it
//! leaves as much to whoever has waited longest. So equals take turns, and small requests do not wait for large ones.

use std::time::Duration;

use crate::policy::bucket::Bucket;
use crate::values::{Capacity, Demand, Grant, MicroUnits, ShardId, Timestamp};

/// Shares are in this many parts, and so many of them are dealt out evenly.
const WHOLE_SHARE: u64 = 65_536;
const EVEN_PARTS: u64 = WHOLE_SHARE / 10;
/// What a core should have at the start of a period: so many times what it wanted in the last, and so many of the
/// largest costs.
const PERIODS_GIVEN: u64 = 2;
const LUMPS_GIVEN: u64 = 4;
/// Who asks for more is given at least this part of what is there, so that it need not ask for every few requests. What
/// it wants for a period it is given whoever else is entitled to it.
const PART_WHEN_ASKED: i64 = 8;

/// When grants end, and how many may spend on credit at once.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm {
    /// How many cores there are.
    pub cores: u16,
    /// How often cores report.
    pub period: Duration,
    /// How long a grant is good for.
    pub lease: Duration,
}

/// One core's part.
#[derive(Clone, Debug)]
struct Holder {
    shard: ShardId,
    /// What it may still spend, as far as it has told.
    outstanding: i64,
    wanted: u64,
    /// What it would have needed to go on without asking, and was not granted.
    unmet: u64,
    /// What one request needs that it was not granted.
    denied: u64,
    granted_at: Timestamp,
    heard_at: Timestamp,
}

/// One bucket, and the cores that draw from it.
#[derive(Clone, Debug)]
pub struct Pool {
    bucket: Bucket,
    holders: Vec<Holder>,
    /// The largest request so far.
    lump: MicroUnits,
    forgiven: MicroUnits,
}

impl Pool {
    /// A full one.
    pub fn full(capacity: Capacity, now: Timestamp) -> Self {
        Self { bucket: Bucket::full(capacity, now), holders: Vec::new(), lump: 0, forgiven: 0 }
    }

    /// How large it is.
    pub fn capacity(&self) -> Capacity {
        self.bucket.capacity()
    }

    /// Another quota: what is in it stays, as far as it fits.
    pub fn resize(&mut self, capacity: Capacity, now: Timestamp) {
        let elsewhere = self.outstanding();
        self.bucket.resize(capacity, now, elsewhere);
    }

    /// What is left, wherever it is.
    pub fn remaining(&self, now: Timestamp) -> i64 {
        let elsewhere = self.outstanding();
        self.bucket.level_at(now, elsewhere) + elsewhere as i64
    }

    /// Debt that was forgiven, because it was more than a second's quota and one request of each core.
    pub fn take_forgiven(&mut self) -> MicroUnits {
        std::mem::take(&mut self.forgiven)
    }

    /// Nothing would be lost if it were forgotten.
    pub fn is_idle(&self, now: Timestamp, rhythm: Rhythm) -> bool {
        let active = |holder: &Holder| holder.outstanding != 0 || now.since(holder.heard_at) <= rhythm.lease;
        !self.holders.iter().any(active) && self.remaining(now) >= self.capacity().burst as i64
    }

    /// What a core told, and what it is told in return.
    pub fn handle_demand(
        &mut self,
        shard: ShardId,
        demand: &Demand,
        now: Timestamp,
        rhythm: Rhythm,
    ) -> Grant {
        // What came in more than a period ago was there before anything of this was spent.
        let before = now.before(rhythm.period);
        let elsewhere = self.outstanding();
        self.bucket.refill(before, elsewhere);
        self.lump = self.lump.max(demand.lump);
        self.reclaim(now, rhythm);
        let index = self.holder_of(shard, now);
        let debt = self.book(index, demand, now, rhythm);
        let elsewhere = self.outstanding();
        self.bucket.refill(now, elsewhere);
        let granted = self.grant(index, demand, now, rhythm);
        let holder = &mut self.holders[index];
        holder.outstanding += granted.amount as i64;
        let holds = holder.outstanding as u64;
        if granted.amount > 0 {
            holder.granted_at = now;
        }
        self.forgiven += self.bucket.book(granted.amount as i64, self.lump);
        Grant {
            bucket: demand.bucket,
            amount: granted.amount as i64 + debt,
            holds,
            level: self.bucket.level(),
            at: now,
            share: self.share_of(index, now, rhythm) as u32,
            dry_from: granted.dry_from,
        }
    }

    /// Takes back what cores hold that have not been heard of for longer than their grants are good for.
    fn reclaim(&mut self, now: Timestamp, rhythm: Rhythm) {
        for holder in &mut self.holders {
            let lapsed = now.since(holder.heard_at) > rhythm.lease + rhythm.period;
            if lapsed && holder.outstanding > 0 {
                self.bucket.book(-holder.outstanding, 0);
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
            // Most buckets are a user's, and most users are on one core.
            self.holders.reserve_exact(1);
            self.holders.push(Holder {
                shard,
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

    /// Books what the core tells. What it spent beyond its allowance is taken from the pool: how much that was.
    fn book(&mut self, index: usize, demand: &Demand, now: Timestamp, rhythm: Rhythm) -> i64 {
        let holder = &mut self.holders[index];
        holder.heard_at = now;
        holder.wanted = demand.wanted;
        holder.outstanding -= demand.spent;
        let beyond = (-holder.outstanding).max(0);
        holder.outstanding += beyond;
        // Only a debt that the core knows of is taken over. What it spent of an allowance that was reclaimed, or that it
        // gave itself while the pool was silent, is booked and no more: else it would have it again and again.
        let debt = beyond.min(demand.owed as i64);
        // Neither what was reclaimed nor what it allowed itself is there to be returned.
        let returned = (demand.returned as i64).clamp(0, holder.outstanding);
        holder.outstanding -= returned;
        // Each core may have let one request through on credit.
        let credit = self.lump * u64::from(rhythm.cores);
        self.forgiven += self.bucket.book(beyond - returned, credit);
        debt
    }

    fn grant(&mut self, index: usize, demand: &Demand, now: Timestamp, rhythm: Rhythm) -> Granted {
        let level = self.bucket.level();
        let outstanding = self.holders[index].outstanding;
        let asked = if demand.needed > 0 { level.max(0) / PART_WHEN_ASKED } else { 0 };
        let usual = if demand.wanted > 0 || demand.needed > 0 {
            (PERIODS_GIVEN * demand.wanted + LUMPS_GIVEN * demand.lump) as i64
        } else {
            0
        };
        let target = usual.max(asked).max(demand.needed as i64);
        let short = (target - outstanding).max(0);
        let allowed = (level - self.reserved_for_others(index, now, rhythm))
            .max(asked.min((demand.wanted + demand.lump) as i64));
        let mut amount = short.min(allowed);
        // Less than one request is of no use. Where one waits, it is known how much is of use.
        let whole = if demand.needed > 0 { demand.needed } else { demand.lump };
        let least = (whole as i64 - outstanding).max(0);
        let is_due = demand.needed > 0 || demand.wanted > 0;
        if amount < least.min(short) {
            let fits = level >= least + self.left_to_the_first(index).min(least)
                || (self.holds_all(index) && least > self.capacity().burst as i64 - outstanding);
            amount = if is_due && fits { least } else { 0 };
        }
        let unmet = if is_due { (short - amount).max(0) } else { 0 };
        self.holders[index].unmet = unmet as u64;
        self.holders[index].denied = if is_due { (least - amount).max(0) as u64 } else { 0 };
        let dry = unmet > 0 && (demand.needed == 0 || outstanding + amount < demand.needed as i64);
        Granted { amount: amount as u64, dry_from: dry.then_some(whole) }
    }

    /// What other cores need and are entitled to.
    fn reserved_for_others(&self, index: usize, now: Timestamp, rhythm: Rhythm) -> i64 {
        let there = self.bucket.level().max(0) + self.outstanding() as i64;
        let others =
            self.holders.iter().enumerate().filter(|(other, holder)| *other != index && holder.unmet > 0);
        others
            .map(|(other, holder)| {
                let entitled = part_of(there as u64, self.share_of(other, now, rhythm)) as i64;
                (entitled - holder.outstanding).clamp(0, holder.unmet as i64)
            })
            .sum()
    }

    /// A core's part in 65,536ths.
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

    /// Nobody else holds any, and it is full.
    fn holds_all(&self, index: usize) -> bool {
        let own = self.holders[index].outstanding;
        self.outstanding() as i64 == own.max(0) && self.bucket.level() + own >= self.capacity().burst as i64
    }

    /// What one request of whoever has waited longest needs, unless that is this core.
    fn left_to_the_first(&self, index: usize) -> i64 {
        let waiting = self.holders.iter().filter(|holder| holder.denied > 0);
        let first = waiting.min_by_key(|holder| holder.granted_at);
        let earlier = first.filter(|holder| holder.granted_at < self.holders[index].granted_at);
        earlier.map_or(0, |holder| holder.denied as i64)
    }

    fn outstanding(&self) -> u64 {
        self.holders.iter().map(|holder| holder.outstanding.max(0) as u64).sum()
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
    use crate::values::{BucketId, UNIT};

    const CAPACITY: Capacity = Capacity { ru_per_second: 100, burst: 100 * UNIT };
    const RHYTHM: Rhythm =
        Rhythm { cores: 64, period: Duration::from_millis(10), lease: Duration::from_millis(50) };
    const QUIET: Demand = Demand {
        bucket: BucketId(7),
        capacity: CAPACITY,
        wanted: 0,
        spent: 0,
        returned: 0,
        owed: 0,
        needed: 0,
        lump: UNIT,
    };

    /// A pool at a moment that the test moves.
    struct Rig {
        pool: Pool,
        millis: u64,
    }

    impl Rig {
        fn full() -> Self {
            Self { pool: Pool::full(CAPACITY, Timestamp::from_millis(1_000)), millis: 1_000 }
        }

        /// With this much in it, of which no core has any.
        fn holding(level: u64) -> Self {
            let mut rig = Self::full();
            rig.pool.bucket.book(CAPACITY.burst as i64 - level as i64, 0);
            rig
        }

        fn tell(&mut self, shard: u16, demand: Demand) -> Grant {
            self.pool.handle_demand(ShardId(shard), &demand, self.now(), RHYTHM)
        }

        /// A core that would go on for a period with so much.
        fn wants(&mut self, shard: u16, wanted: u64) -> u64 {
            self.tell(shard, Demand { wanted, ..QUIET }).amount as u64
        }

        /// A request waits for so much.
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
    fn a_core_that_was_denied_is_not_outrun_by_a_busier_one() {
        let mut rig = Rig::holding(0);
        let (mut more, mut some, mut busy, mut quiet) = (0, 0, 0, 0);
        for _ in 0..100 {
            rig.millis += 10;
            more = rig.tell(0, Demand { wanted: 9 * UNIT, spent: more, ..QUIET }).amount;
            some = rig.tell(1, Demand { wanted: UNIT, spent: some, ..QUIET }).amount;
            (busy, quiet) = (busy + more, quiet + some);
        }
        // One unit comes in each time, which is one request: they take turns.
        assert!(busy + quiet >= 99 * UNIT as i64 && quiet >= 49 * UNIT as i64, "{busy} and {quiet}");
    }

    #[test]
    fn what_is_given_in_advance_goes_by_what_was_wanted() {
        let mut rig = Rig::holding(0);
        for _ in 0..20 {
            rig.millis += 10;
            // So little that neither is of use: they are known, and nothing is given.
            rig.tell(0, Demand { wanted: 90 * UNIT, lump: 30 * UNIT, ..QUIET });
            rig.tell(1, Demand { wanted: 10 * UNIT, lump: 30 * UNIT, ..QUIET });
        }
        let (busy, quiet) = (rig.wants(0, 90 * UNIT), rig.wants(1, 10 * UNIT));
        // A tenth is dealt out evenly, and twenty units came in.
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
        // What they would all like is 300, and an even part of what is there is one at the most.
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
            // Half of what comes in.
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
        rig.pool.resize(Capacity { ru_per_second: 1_000, burst: 1_000 * UNIT }, rig.now());
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
