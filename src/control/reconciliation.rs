//! Quotas over all cores: the pools that their slices draw from, and what each core is told about them.

use std::collections::HashMap;
use std::time::Duration;

use super::pool::{Pool, Rhythm};
use crate::policy::bucket_table::BucketTable;
use crate::values::allowance::Report;
use crate::values::limits::{FLEET_CANDIDATES_MAX, POOLS_MAX};
use crate::values::{BucketId, Capacity, Demand, Grant, MicroUnits, Part, Timestamp, signed};

/// Idle pools are looked for with every report, the oldest first: this many, and twice as many as it may have made.
const SWEPT_PER_REPORT: usize = 4;

/// All pools.
#[derive(Debug)]
pub struct Reconciliation {
    rhythm: Rhythm,
    pools: BucketTable<Pool>,
    /// The buckets that several processes share: what this one has of each.
    parts: HashMap<BucketId, Part>,
    /// And of each user's that is not among them, if users' are shared too.
    users: Option<Users>,
    /// The latest version of the quotas that a core went by.
    version: u64,
    forgiven: MicroUnits,
}

/// Users whose quotas are shared with other processes, most of which are not counted there.
#[derive(Debug)]
struct Users {
    terms: UserTerms,
    /// The stretch of time in which it is found out who is heavy.
    stretch: u32,
    /// Who is, as far as is known: some that ask for more than others.
    heavy: Vec<BucketId>,
}

/// What holds for users who are not counted elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserTerms {
    /// This process's part of the quota of each.
    pub part: Part,
    /// Who asks for more than this part of a second's quota until somebody looks is heavy.
    pub floor: Part,
}

/// One who asked for much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeavyUser {
    /// The bucket.
    pub bucket: BucketId,
    /// All of the quota.
    pub capacity: Capacity,
    /// How much that was.
    pub asked: MicroUnits,
}

impl Reconciliation {
    /// No pools: every bucket is full.
    pub fn new(rhythm: Rhythm) -> Self {
        Self {
            rhythm,
            pools: BucketTable::new(POOLS_MAX),
            parts: HashMap::new(),
            users: None,
            version: 0,
            forgiven: 0,
        }
    }

    /// From now on this process has another part of a quota. What is in the bucket stays, as far as it fits: a part that
    /// grows is not full at once, or else a burst would come with it each time.
    pub fn set_part(&mut self, bucket: BucketId, capacity: Capacity, part: Part, now: Timestamp) {
        let before = self.shared_part(bucket).unwrap_or(part);
        self.parts.insert(bucket, part);
        let rhythm = self.rhythm;
        let is_idle = |pool: &Pool| pool.is_idle(now, rhythm);
        let pool = if part > before {
            self.pools.get_or_insert_with(bucket, || Pool::full(capacity, before, now), is_idle)
        } else {
            self.pools.get_mut(bucket)
        };
        if let Some(pool) = pool {
            pool.resize(pool.capacity(), part, now);
        }
    }

    /// From now on users that have no part of their own have this one, and who of them is heavy is found out. What is in a
    /// bucket stays, as for all parts.
    pub fn share_users(&mut self, terms: UserTerms) {
        match &mut self.users {
            Some(users) => users.terms = terms,
            // Stretches count from one: no pool has seen that.
            None => self.users = Some(Users { terms, stretch: 1, heavy: Vec::new() }),
        }
    }

    /// A stretch of time is over: who was found to be heavy in it and has no part of its own, with what was asked for.
    pub fn take_heavy_users(&mut self) -> Vec<HeavyUser> {
        let Some(users) = &mut self.users else { return Vec::new() };
        let stretch = users.stretch;
        users.stretch = stretch.wrapping_add(1);
        let heavy = std::mem::take(&mut users.heavy);
        let known = heavy.into_iter().filter_map(|bucket| Some((bucket, self.pools.get(bucket)?)));
        let heavy = known.map(|(bucket, pool)| HeavyUser {
            bucket,
            capacity: pool.capacity(),
            asked: pool.asked(stretch),
        });
        heavy.collect()
    }

    /// What was asked for of a bucket in this stretch, and how large it is, if it is in use.
    pub fn asked(&self, bucket: BucketId) -> Option<(MicroUnits, Capacity)> {
        let (users, pool) = (self.users.as_ref()?, self.pools.get(bucket)?);
        Some((pool.asked(users.stretch), pool.capacity()))
    }

    /// This process has all of a bucket again, or what it has of each user's.
    pub fn forget_part(&mut self, bucket: BucketId) {
        self.parts.remove(&bucket);
    }

    /// This process's part of a bucket, if others have parts of it too.
    pub fn shared_part(&self, bucket: BucketId) -> Option<Part> {
        // Where users' are, tenants' and everybody's have parts of their own.
        self.parts.get(&bucket).copied().or(self.users.as_ref().map(|users| users.terms.part))
    }

    /// This process's part of a bucket.
    pub fn part(&self, bucket: BucketId) -> Part {
        self.shared_part(bucket).unwrap_or(Part::WHOLE)
    }

    /// How many buckets are not full, or are in use.
    pub fn pools(&self) -> usize {
        self.pools.len()
    }

    /// Debt that everybody's bucket has forgiven so far.
    pub fn forgiven(&self) -> MicroUnits {
        self.forgiven
    }

    /// What a core told. Each of its demands is answered, in order.
    pub fn handle_report(&mut self, report: &Report, now: Timestamp, grants: &mut Vec<Grant>) {
        let rhythm = self.rhythm;
        let current = report.version >= self.version;
        self.version = self.version.max(report.version);
        for demand in &report.demands {
            let part = self.part(demand.bucket);
            let made = self.pools.get_or_insert_with(
                demand.bucket,
                || Pool::full(demand.capacity, part, now),
                |pool| pool.is_idle(now, rhythm),
            );
            let Some(pool) = made else {
                grants.push(nothing(demand.bucket, part, now));
                continue;
            };
            let capacity = if current { demand.capacity } else { pool.capacity() };
            if pool.capacity() != capacity || pool.part() != part {
                pool.resize(capacity, part, now);
            }
            if let Some(users) = &mut self.users {
                users.note(pool, demand, &self.parts);
            }
            grants.push(pool.handle_demand(report.shard, demand, now, self.rhythm));
            self.forgiven = self.forgiven.saturating_add(pool.take_forgiven());
        }
        self.pools.sweep(SWEPT_PER_REPORT + 2 * report.demands.len(), |pool| pool.is_idle(now, rhythm));
    }

    /// What is left of a bucket: all of this process's part, if nobody draws from it.
    pub fn remaining(&self, bucket: BucketId, capacity: Capacity, now: Timestamp) -> i64 {
        let full = || signed(capacity.scaled(self.part(bucket)).burst);
        self.pools.get(bucket).map_or_else(full, |pool| pool.remaining(now))
    }

    /// How often cores report.
    pub fn period(&self) -> Duration {
        self.rhythm.period
    }
}

impl Users {
    /// `others` have parts of their own: it is known how heavy they are.
    fn note(&mut self, pool: &mut Pool, demand: &Demand, others: &HashMap<BucketId, Part>) {
        let (before, after) = pool.note_asked(demand.asked, self.stretch);
        let floor = self.terms.floor.of(demand.capacity.second());
        let is_now = before <= floor && after > floor;
        if is_now && self.heavy.len() < FLEET_CANDIDATES_MAX && !others.contains_key(&demand.bucket) {
            self.heavy.push(demand.bucket);
        }
    }
}

/// There are more buckets in use than can be kept.
fn nothing(bucket: BucketId, part: Part, now: Timestamp) -> Grant {
    Grant { bucket, amount: 0, holds: 0, level: 0, at: now, share: 0, part, dry_from: Some(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{ShardId, UNIT};

    const CAPACITY: Capacity = Capacity { ru_per_second: 1, burst: UNIT };

    /// What a core tells of a user who spent one unit, a period ago.
    fn spent_one(bucket: u64) -> Demand {
        let (wanted, spent) = (UNIT, UNIT as i64);
        Demand {
            bucket: BucketId(bucket),
            capacity: CAPACITY,
            wanted,
            asked: wanted,
            spent,
            surprise: 0,
            returned: 0,
            owed: 0,
            needed: 0,
            lump: UNIT,
        }
    }

    fn tell(pools: &mut Reconciliation, demands: Vec<Demand>, millis: u64) {
        let report = Report { shard: ShardId(0), version: 0, demands, usage: Vec::new() };
        pools.handle_report(&report, Timestamp::from_millis(millis), &mut Vec::new());
    }

    #[test]
    fn pools_of_users_who_are_not_heard_of_again_are_forgotten() {
        let rhythm = Rhythm { period: Duration::from_millis(10), lease: Duration::from_millis(50) };
        let mut pools = Reconciliation::new(rhythm);
        tell(&mut pools, (0..1_000).map(spent_one).collect(), 0);
        tell(&mut pools, (1_000..2_000).map(spent_one).collect(), 500);
        assert_eq!(pools.pools(), 2_000, "nobody's bucket is full again");
        tell(&mut pools, (2_000..3_000).map(spent_one).collect(), 1_200);
        assert_eq!(pools.pools(), 2_000, "those of the first thousand are");
    }
}
