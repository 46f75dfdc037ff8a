//! Quotas over all cores: the pools (the parts of buckets that no core holds) from which cores draw
//! allowances (amounts to spend without asking), and the grants to each core.

use std::collections::HashMap;
use std::time::Duration;

use super::pool::{Pool, Rhythm};
use crate::policy::bucket_table::BucketTable;
use crate::values::allowance::Report;
use crate::values::limits::{FLEET_CANDIDATES_MAX, POOLS_MAX};
use crate::values::{BucketId, Capacity, Demand, Grant, MicroUnits, Part, Timestamp, signed};

/// Number of pools (the parts of buckets that no core holds) that are checked with each report, in rotation,
/// and dropped if they are idle; two more are checked for each demand in the report.
const SWEPT_PER_REPORT: usize = 4;

/// The pools (the parts of buckets that no core holds) of all buckets in use, and this process's parts of
/// them.
#[derive(Debug)]
pub struct Reconciliation {
    rhythm: Rhythm,
    pools: BucketTable<Pool>,
    /// This process's part of each bucket that a fleet (weir processes that share quotas) shares. Buckets of
    /// users that are not listed have the part in `users`.
    parts: HashMap<BucketId, Part>,
    /// The parts of users' buckets that the process before this one gave out, which hold for users without parts of
    /// their own in `parts`. Such users are still looked for among those with high demand.
    inherited: HashMap<BucketId, Part>,
    /// State for users' quotas that are shared with other hosts; None if they are not shared.
    users: Option<Users>,
    /// The latest version of the quotas that a core reported; reports under earlier versions change no
    /// capacities.
    version: u64,
    forgiven: MicroUnits,
}

/// State for quotas of users that are shared with other hosts; most users are not counted there.
#[derive(Debug)]
struct Users {
    terms: UserTerms,
    /// Number of the interval in which demand is being measured. Each call of
    /// [`Reconciliation::take_heavy_users`] ends an interval and begins the next.
    stretch: u32,
    /// Buckets of the users whose demand in this measuring interval was above a certain part of their quotas
    /// (heavy users), at most `FLEET_CANDIDATES_MAX`.
    heavy: Vec<BucketId>,
}

/// The terms for users whose demand is not counted with the fleet (weir processes that share quotas), because
/// it is too low or other users' demand is higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserTerms {
    /// The part of the quota of each such user (whose demand is not counted) that this process may give out.
    pub part: Part,
    /// Part of a second's quota: a user whose demand in one measuring interval (between two calls of
    /// [`Reconciliation::take_heavy_users`]) is above this part counts as heavy.
    pub floor: Part,
}

/// A user whose demand in one measuring interval was above [`UserTerms::floor`], a certain part of the quota
/// of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeavyUser {
    /// Id of the token bucket of the user's quota.
    pub bucket: BucketId,
    /// The user's whole quota: its rate and burst, over all hosts.
    pub capacity: Capacity,
    /// The user's demand in the measuring interval, in millionths of a request unit.
    pub asked: MicroUnits,
}

impl Reconciliation {
    /// Creates a state without pools (the parts of buckets that no core holds), in which every bucket is full.
    pub fn new(rhythm: Rhythm) -> Self {
        Self {
            rhythm,
            pools: BucketTable::new(POOLS_MAX),
            parts: HashMap::new(),
            inherited: HashMap::new(),
            users: None,
            version: 0,
            forgiven: 0,
        }
    }

    /// Sets the part of a shared bucket that this process may give out. The amount left in the bucket stays,
    /// but is cut to the burst of the new part; a part that grows is not filled at once, or each change would
    /// grant a burst. `capacity` is that of the whole bucket.
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

    /// Sets the part of a shared bucket that the process before this one gave out, for when the bucket comes
    /// into use here.
    pub fn inherit_part(&mut self, bucket: BucketId, part: Part) {
        self.inherited.insert(bucket, part);
    }

    /// Sets the terms for users without parts of their own, and begins to look for users with high demand.
    /// Levels of buckets stay when the part of such users changes.
    pub fn share_users(&mut self, terms: UserTerms) {
        match &mut self.users {
            Some(users) => users.terms = terms,
            // Measuring intervals (stretches) are numbered from 1, which no pool has seen yet.
            None => self.users = Some(Users { terms, stretch: 1, heavy: Vec::new() }),
        }
    }

    /// Ends a measuring interval of users' demand. Returns the users whose demand in it was above the floor
    /// and who have no part of their own, with their demand, at most `FLEET_CANDIDATES_MAX`; empty if users'
    /// quotas are not shared with other hosts.
    pub fn take_heavy_users(&mut self) -> Vec<HeavyUser> {
        let Some(users) = &mut self.users else { return Vec::new() };
        let stretch = users.stretch;
        users.stretch = stretch.wrapping_add(1);
        let mut heavy = std::mem::take(&mut users.heavy);
        // A user whose pool was dropped meanwhile, as it was full again, has crossed the floor more than once.
        heavy.sort_unstable();
        heavy.dedup();
        let known = heavy.into_iter().filter_map(|bucket| Some((bucket, self.pools.get(bucket)?)));
        let heavy = known.map(|(bucket, pool)| HeavyUser {
            bucket,
            capacity: pool.capacity(),
            asked: pool.asked(stretch),
        });
        heavy.collect()
    }

    /// Returns the demand of all cores on a bucket in the current measuring interval (which began when heavy
    /// users were last taken), and the bucket's capacity. None if the bucket is not in use, or if users'
    /// quotas are not shared with other hosts.
    pub fn asked(&self, bucket: BucketId) -> Option<(MicroUnits, Capacity)> {
        let (users, pool) = (self.users.as_ref()?, self.pools.get(bucket)?);
        Some((pool.asked(users.stretch), pool.capacity()))
    }

    /// Drops this process's own part of a bucket: it has the whole bucket again or, where users' quotas are
    /// shared, the part that is common to all users.
    pub fn forget_part(&mut self, bucket: BucketId) {
        self.parts.remove(&bucket);
        self.inherited.remove(&bucket);
    }

    /// Returns this process's part of a bucket that hosts of a fleet (weir processes that share quotas)
    /// share; None if it is not shared.
    pub fn shared_part(&self, bucket: BucketId) -> Option<Part> {
        // Where users' quotas are shared, the buckets of tenants and the global one always have parts of
        // their own.
        let own = self.parts.get(&bucket).or_else(|| self.inherited.get(&bucket)).copied();
        own.or(self.users.as_ref().map(|users| users.terms.part))
    }

    /// Returns this process's part of a bucket, which is the whole if it is not shared.
    pub fn part(&self, bucket: BucketId) -> Part {
        self.shared_part(bucket).unwrap_or(Part::WHOLE)
    }

    /// Returns the number of buckets that have a pool (the part of a bucket that no core holds): those that
    /// are not full, or are in use.
    pub fn pools(&self) -> usize {
        self.pools.len()
    }

    /// Returns the debt to the quota of all tenants together that was forgiven so far, in millionths of a
    /// request unit.
    pub fn forgiven(&self) -> MicroUnits {
        self.forgiven
    }

    /// Handles a core's report of spent quota: adds a grant (amount of quota to spend) to `grants` for each
    /// of the demands in it, in order.
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

    /// Returns the amount left of a bucket, in millionths of a request unit, in its pool (what no core holds)
    /// and in all cores' allowances (what cores may spend without asking) together; the whole burst of this
    /// process's part if the bucket is not in use.
    pub fn remaining(&self, bucket: BucketId, capacity: Capacity, now: Timestamp) -> i64 {
        let full = || signed(capacity.scaled(self.part(bucket)).burst);
        self.pools.get(bucket).map_or_else(full, |pool| pool.remaining(now))
    }

    /// Returns the interval at which cores report spent quota.
    pub fn period(&self) -> Duration {
        self.rhythm.period
    }
}

impl Users {
    /// Adds a core's demand to that on a user's bucket in this measuring interval, and records the user as
    /// heavy if the sum crosses the floor (a part of a second's quota). Users in `others` have parts of their
    /// own, and are never recorded as heavy.
    fn note(&mut self, pool: &mut Pool, demand: &Demand, others: &HashMap<BucketId, Part>) {
        let (before, after) = pool.note_asked(demand.asked, self.stretch);
        let floor = self.terms.floor.of(demand.capacity.second());
        let is_now = before <= floor && after > floor;
        if is_now && self.heavy.len() < FLEET_CANDIDATES_MAX && !others.contains_key(&demand.bucket) {
            self.heavy.push(demand.bucket);
        }
    }
}

/// Returns the empty grant (amount of quota to spend) for a bucket for which no pool (the part of a bucket
/// that no core holds) can be made, since too many are in use.
fn nothing(bucket: BucketId, part: Part, now: Timestamp) -> Grant {
    Grant { bucket, amount: 0, holds: 0, level: 0, at: now, share: 0, part, dry_from: Some(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{ShardId, UNIT};

    const CAPACITY: Capacity = Capacity::new(1, UNIT);
    const RHYTHM: Rhythm = Rhythm { period: Duration::from_millis(10), lease: Duration::from_millis(50) };

    /// Returns the part of a core's report which says that the user with this bucket asked for one request
    /// unit and spent it.
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
        let mut pools = Reconciliation::new(RHYTHM);
        tell(&mut pools, (0..1_000).map(spent_one).collect(), 0);
        tell(&mut pools, (1_000..2_000).map(spent_one).collect(), 500);
        assert_eq!(pools.pools(), 2_000, "nobody's bucket is full again");
        tell(&mut pools, (2_000..3_000).map(spent_one).collect(), 1_200);
        assert_eq!(pools.pools(), 2_000, "those of the first thousand are");
    }

    #[test]
    fn a_user_whose_pool_was_dropped_in_between_is_named_once() {
        let mut pools = Reconciliation::new(RHYTHM);
        pools.share_users(UserTerms {
            part: Part::of_billionths(500_000_000),
            floor: Part::of_billionths(50_000_000),
        });
        for millis in [0, 500] {
            tell(&mut pools, vec![spent_one(1), spent_one(2)], millis);
            // A pool that is full and idle is dropped, and then forgets what was asked for.
            pools.pools.sweep(100, |_| true);
        }
        tell(&mut pools, vec![spent_one(1)], 600);
        let heavy: Vec<BucketId> = pools.take_heavy_users().iter().map(|user| user.bucket).collect();
        assert_eq!(heavy, [BucketId(1)], "the other has no pool");
    }
}
