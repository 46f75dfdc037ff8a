//! Messages about quotas between cores, which report what they spent, and the control executor, which grants
//! amounts.

use std::time::Duration;

use super::{MicroUnits, ShardId, TenantId, Timestamp, Usage};

/// Identity of a token bucket: a hash of its owner's name, the same on every core and in every version of the
/// quota file. The id of a user's bucket has 10 bits in common with the id of its tenant's bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketId(pub u64);

impl BucketId {
    /// The token bucket of all tenants' requests together, whose id is not a hash.
    pub const GLOBAL: Self = Self(0);

    /// The bit that is set in the ids of users' buckets, and in no other.
    const USER: u64 = 1 << 34;
    /// Position of the lowest of the 10 bits that the id of a user's bucket has in common with the id of its
    /// tenant's bucket.
    const TENANT_SHIFT: u32 = 24;
    /// Number of values of the 10 bits that the id of a user's bucket has in common with the id of its
    /// tenant's bucket.
    pub const TENANT_GROUPS: usize = 1 << 10;

    /// Returns the id of a tenant's bucket. `hash` is the hash of the tenant's name.
    pub const fn of_tenant(hash: u64) -> Self {
        let id = hash & !Self::USER;
        Self(if id == Self::GLOBAL.0 { 1 } else { id })
    }

    /// Returns the id of the bucket of a user. `tenant` is the hash of the tenant's name, `hash` that of both
    /// names.
    pub const fn of_user(tenant: u64, hash: u64) -> Self {
        const TENANT: u64 = (BucketId::TENANT_GROUPS as u64 - 1) << BucketId::TENANT_SHIFT;
        Self(hash & !TENANT | tenant & TENANT | Self::USER)
    }

    /// Returns the group, a number below [`Self::TENANT_GROUPS`], of the tenant to which a user's bucket
    /// belongs. A group may have several tenants, but hardly ever two with many users. None for the bucket of
    /// a tenant or of all tenants.
    pub const fn tenant_group(self) -> Option<usize> {
        let group = (self.0 >> Self::TENANT_SHIFT) as usize % Self::TENANT_GROUPS;
        if self.is_user() { Some(group) } else { None }
    }

    /// True for the bucket of a user.
    pub const fn is_user(self) -> bool {
        self.0 & Self::USER != 0
    }
}

/// Rate and burst of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capacity {
    /// Income of the bucket in thousandths of a request unit per second, at least one, since one host's share
    /// of a quota may be below one request unit per second. In millionths per millisecond the number is the
    /// same.
    milli_per_second: u64,
    /// Maximum number of millionths of a request unit that the bucket holds.
    pub burst: MicroUnits,
}

/// Number of thousandths in a whole, by which rates of buckets are counted.
const MILLI: u64 = 1_000;

impl Capacity {
    /// Creates the rate and burst of a token bucket from its income in request units per second (0 counts as
    /// a thousandth) and the maximum number of millionths of a request unit that it holds.
    pub const fn new(ru_per_second: u64, burst: MicroUnits) -> Self {
        Self {
            milli_per_second: if ru_per_second == 0 { 1 } else { ru_per_second.saturating_mul(MILLI) },
            burst,
        }
    }

    /// Returns the income of a token bucket in whole request units per second, rounded down, but at least 1:
    /// for what clients and operators are told.
    pub const fn ru_per_second(&self) -> u64 {
        let whole = self.milli_per_second / MILLI;
        if whole == 0 { 1 } else { whole }
    }

    /// Returns the income of a token bucket in a second, in millionths of a request unit.
    pub const fn second(&self) -> MicroUnits {
        self.milli_per_second.saturating_mul(MILLI)
    }

    /// Returns the income of a token bucket in the time `meanwhile`, in millionths of a request unit, without
    /// regard to the most that it can hold.
    pub const fn comes_in(&self, meanwhile: Duration) -> MicroUnits {
        self.comes_in_micros(meanwhile.as_micros() as u64)
    }

    /// Returns the income of a token bucket in this number of microseconds, in millionths of a request unit,
    /// rounded down, without regard to the most that it can hold.
    pub const fn comes_in_micros(&self, micros: u64) -> MicroUnits {
        // In two parts, since the product with all microseconds of a day would not fit.
        let whole = self.milli_per_second.saturating_mul(micros / MILLI);
        whole.saturating_add(self.milli_per_second.saturating_mul(micros % MILLI) / MILLI)
    }

    /// Returns the rate and burst of a part (share) of the quota, rounded down: at least a thousandth of a
    /// request unit per second and a burst of at least a millionth of a request unit.
    #[must_use]
    pub fn scaled(&self, part: Part) -> Self {
        let milli_per_second = part.of(self.milli_per_second).max(1);
        Self { milli_per_second, burst: part.of(self.burst).max(1) }
    }

    /// Returns the microseconds in which the income of a token bucket reaches `amount` (in millionths of a
    /// request unit), rounded up.
    pub const fn micros_for(&self, amount: MicroUnits) -> u64 {
        match amount.checked_mul(MILLI) {
            Some(amount) => amount.div_ceil(self.milli_per_second),
            // Amounts of this size (bursts of hours at the highest rates) are rounded up to milliseconds.
            None => amount.div_ceil(self.milli_per_second).saturating_mul(MILLI),
        }
    }
}

/// Share of a quota that one host of a fleet (weir processes that share quotas) may spend, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part(u32);

impl Part {
    /// The part (share of a quota) of a host that may spend nothing.
    pub const NONE: Self = Self(0);
    /// The part (share of a quota) of a host that may spend the whole quota.
    pub const WHOLE: Self = Self(1_000_000_000);

    /// Creates a part (share of a quota) from its billionths; more than the whole counts as the whole.
    pub const fn of_billionths(billionths: u64) -> Self {
        if billionths < Self::WHOLE.0 as u64 { Self(billionths as u32) } else { Self::WHOLE }
    }

    /// Creates the part of a quota that one host has if `parts` hosts have equal ones; 0 counts as 1.
    pub const fn even(parts: u64) -> Self {
        Self((Self::WHOLE.0 as u64 / if parts == 0 { 1 } else { parts }) as u32)
    }

    /// Returns the part (share of a quota) in billionths.
    pub const fn billionths(self) -> u64 {
        self.0 as u64
    }

    /// Returns this part (share of a quota) of an amount, rounded down.
    pub const fn of(self, amount: u64) -> u64 {
        if self.0 == Self::WHOLE.0 {
            return amount;
        }
        (amount as u128 * self.0 as u128 / Self::WHOLE.0 as u128) as u64
    }

    /// Returns the part of the quota as a number from 0 to 1.
    pub fn ratio(self) -> f64 {
        f64::from(self.0) / f64::from(Self::WHOLE.0)
    }
}

/// Report of one core about one token bucket to the control executor, which divides buckets among cores: the amount
/// spent since the last report, those asked for and wanted in the last periods (10 ms by default), and those owed,
/// needed and returned now, in millionths of a request unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The bucket that the report is about.
    pub bucket: BucketId,
    /// Rate and burst of the bucket, in the version of the quotas that the core uses.
    pub capacity: Capacity,
    /// Sum of the prices of the core's requests for the bucket, refused ones included, in the present period
    /// (10 ms by default) or in the period before, whichever sum is larger.
    pub wanted: MicroUnits,
    /// Sum of the prices of the core's requests for the bucket, refused ones included, in the period (10 ms
    /// by default) that ends with this report; 0 in a report sent within a period, so that no request is
    /// counted twice.
    pub asked: MicroUnits,
    /// Amount that the core spent from the bucket since its last report, in millionths of a request unit;
    /// negative where corrections of estimated prices gave back more than was spent.
    pub spent: i64,
    /// Part of `spent` by which requests cost more than the prices that were taken on their arrival. Set only
    /// for the bucket of all tenants together, else 0.
    pub surprise: MicroUnits,
    /// Amount that the core may still spend from the bucket but does not need, and gives back.
    pub returned: MicroUnits,
    /// Amount that the core has spent beyond what it was granted, and that no later grant (amount of quota to
    /// spend) has covered.
    pub owed: MicroUnits,
    /// Amount of quota that a waiting request needs to be admitted; 0 if none waits.
    pub needed: MicroUnits,
    /// The largest recent cost of one request for the bucket, or `needed` if that is more: a core with less to spend
    /// could not admit such a request.
    pub lump: MicroUnits,
}

/// Answer of the control executor to a core's report about a bucket ([`Demand`]): the amount that the core
/// may spend from now on. All amounts are in millionths of a request unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The bucket of a quota from which the core gets the amount.
    pub bucket: BucketId,
    /// Amount that the core may spend in addition, in millionths of a request unit. Where the core spent more
    /// than it had, the pool (the part of the bucket that no core holds) takes that debt over, and the amount
    /// includes it.
    pub amount: i64,
    /// The whole amount that the core may spend from the bucket now, this grant included, by the count of the
    /// control executor, in millionths of a request unit.
    pub holds: MicroUnits,
    /// Amount left after this grant in the pool (the part of the bucket that no core holds). Until the next
    /// grant the core estimates from it what it can count on.
    pub level: i64,
    /// Time of the grant, which is valid for five periods (50 ms by default) from then on.
    pub at: Timestamp,
    /// The core's share of the bucket, in 65,536ths. The core counts on no more than this share of the pool
    /// (the part of the bucket that no core holds) and of the pool's income. While the control executor does
    /// not answer, the core goes on with this share of the quota.
    pub share: u32,
    /// Part of the quota that all cores of this process have together; less than the whole if a fleet (weir
    /// processes that share quotas) shares it.
    pub part: Part,
    /// Least price of a request for which the pool (the part of the bucket that no core holds) had too
    /// little; 0 if it had too little for any request, None if it had enough.
    pub dry_from: Option<MicroUnits>,
}

/// Report of one core to the control executor, which divides quotas among cores, about all its token buckets.
#[derive(Debug)]
pub struct Report {
    /// The core that sends the report.
    pub shard: ShardId,
    /// The version of the quotas that the core uses.
    pub version: u64,
    /// The reports about the core's token buckets. If there are any, they are answered with grants (amounts
    /// that the core may spend).
    pub demands: Vec<Demand>,
    /// Prices of tenants' requests since the last report, by tenant and outcome of the request.
    pub usage: Vec<(TenantId, Usage)>,
}

/// Returns the time for which a grant (amount of quota that a core may spend) is valid: five periods. A core
/// that gets no other grant within that time goes on with its last known share.
pub const fn lease_of(period: Duration) -> Duration {
    const PERIODS: u64 = 5;
    Duration::from_nanos(period.as_nanos() as u64 * PERIODS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_below_one_request_unit_per_second_is_exact() {
        let quota = Capacity::new(4, 8_000_000);
        let share = quota.scaled(Part::of_billionths(100_000_000));
        assert_eq!((share.second(), share.burst, share.ru_per_second()), (400_000, 800_000, 1));
        assert_eq!(share.comes_in(Duration::from_secs(10)), 4_000_000);
        assert_eq!(share.comes_in_micros(2_505), 1_002);
        assert_eq!(share.micros_for(1_000_000), 2_500_000);
        assert_eq!(share.micros_for(1), 3);
        // A share above one is not rounded to whole request units either.
        let share = quota.scaled(Part::of_billionths(499_000_000));
        assert_eq!((share.second(), share.ru_per_second()), (1_996_000, 1));
        assert_eq!(share.micros_for(1_996_000), 1_000_000);
    }

    #[test]
    fn whole_quotas_lose_nothing_and_the_largest_fit() {
        let quota = Capacity::new(3, 10_000_000);
        for micros in [0, 1, 999, 1_000, 1_001, 86_400_000_000] {
            assert_eq!(quota.comes_in_micros(micros), 3 * micros);
            assert_eq!(quota.micros_for(3 * micros), micros);
        }
        assert_eq!(quota.micros_for(1), 1);
        let largest = Capacity::new(1_000_000_000, 3_600_000_000_000_000_000);
        let day = Duration::from_secs(86_400);
        assert_eq!(largest.comes_in(Duration::from_secs(3_600)), largest.burst);
        assert!(largest.comes_in(day) >= largest.burst);
        assert_eq!(largest.micros_for(largest.burst), 3_600_000_000);
        assert_eq!(largest.comes_in_micros(u64::MAX), u64::MAX);
        assert_eq!(largest.scaled(Part::even(u64::MAX)).second(), 1_000);
    }
}
