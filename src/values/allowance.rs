//! Messages about quotas between cores, which report what they spent, and the control executor, which grants
//! amounts.

use std::time::Duration;

use super::{MicroUnits, ShardId, TenantId, Timestamp, Usage};

/// Identity of a token bucket, a hash of its owner's name: the same on every core, and in every version of
/// the quota file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketId(pub u64);

impl BucketId {
    /// The token bucket of all tenants' requests together, whose id is not a hash.
    pub const GLOBAL: Self = Self(0);
}

/// Rate and burst of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capacity {
    /// Income of the bucket in request units per second; the same number is also its income in millionths per
    /// microsecond.
    pub ru_per_second: u64,
    /// Maximum number of millionths of a request unit that the bucket holds.
    pub burst: MicroUnits,
}

impl Capacity {
    /// Returns the income of a token bucket in a second, in millionths of a request unit.
    pub const fn second(&self) -> MicroUnits {
        self.ru_per_second.saturating_mul(1_000_000)
    }

    /// Returns the income of a token bucket in the time `meanwhile`, in millionths of a request unit, without
    /// regard to the most that it can hold.
    pub const fn comes_in(&self, meanwhile: Duration) -> MicroUnits {
        self.ru_per_second.saturating_mul(meanwhile.as_micros() as u64)
    }

    /// Returns the rate and burst of a part (share) of the quota: at least 1 request unit per second and a
    /// burst of at least a millionth of a request unit.
    #[must_use]
    pub fn scaled(&self, part: Part) -> Self {
        Self { ru_per_second: part.of(self.ru_per_second).max(1), burst: part.of(self.burst).max(1) }
    }

    /// Returns the microseconds in which the income of a token bucket reaches `amount` (in millionths of a
    /// request unit), rounded up.
    pub const fn micros_for(&self, amount: MicroUnits) -> u64 {
        amount.div_ceil(self.ru_per_second)
    }
}

/// Share of a quota that one host of a fleet may spend, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part(u32);

impl Part {
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

/// Report of one core to the control executor, which divides buckets among cores, about one token bucket:
/// amounts since its last report, in millionths of a request unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The bucket that the report is about.
    pub bucket: BucketId,
    /// Rate and burst of the bucket, in the version of the quotas that the core uses.
    pub capacity: Capacity,
    /// Sum of the prices of the core's requests for the bucket in the present period (10 ms by default) or
    /// the one before, whichever is more, admitted or not.
    pub wanted: MicroUnits,
    /// Sum of the prices of the core's requests for the bucket in the period (10 ms by default) that this
    /// report ends; 0 in a report within a period, so that none is counted twice.
    pub asked: MicroUnits,
    /// Amount that the core spent from the bucket since its last report; negative where corrections of
    /// estimated prices gave back more than was spent.
    pub spent: i64,
    /// Part of the amount spent since the last report by which requests cost more than the prices taken on
    /// their arrival. Set for the bucket of all requests only.
    pub surprise: MicroUnits,
    /// Amount that the core may still spend from the bucket but does not need, and gives back.
    pub returned: MicroUnits,
    /// Amount that the core spent from the bucket beyond what it had been granted and that no grant has
    /// covered since.
    pub owed: MicroUnits,
    /// Amount of quota that a waiting request needs to be admitted; 0 if none waits.
    pub needed: MicroUnits,
    /// The largest recent cost of one request for the bucket: a core that may spend less than that can admit
    /// no such request.
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
    /// The whole amount that the core may spend from the bucket with this grant, by the count of the control
    /// executor, in millionths of a request unit.
    pub holds: MicroUnits,
    /// Amount in the pool (the part of the bucket that no core holds) after the grant (amount of quota to
    /// spend), by which the core estimates what it can count on until the next.
    pub level: i64,
    /// Time of the grant (amount that a core may spend), which is valid for five periods (50 ms by default)
    /// from then on.
    pub at: Timestamp,
    /// The core's share of the bucket, in 65,536ths. It bounds what the core counts on from the level and
    /// income of the pool (the part that no core holds), and is the part of the quota that the core goes on
    /// with while the control executor does not answer.
    pub share: u32,
    /// Part of the quota that all cores of this process have together; less than the whole if a fleet shares
    /// it.
    pub part: Part,
    /// Least price for which the pool (the part of the bucket that no core holds) did not have enough (0 if
    /// it had nothing at all); None if it had enough for all.
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

/// Returns the time for which a grant (amount of quota that a core may spend) is valid: five periods. After
/// that a core without an answer goes on with its last known share.
pub const fn lease_of(period: Duration) -> Duration {
    const PERIODS: u64 = 5;
    Duration::from_nanos(period.as_nanos() as u64 * PERIODS)
}
