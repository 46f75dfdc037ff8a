//! What cores and the control executor tell each other about quotas.

use std::time::Duration;

use super::{MicroUnits, ShardId, TenantId, Timestamp, Usage};

/// A token bucket, by a hash of whose it is: the same on every core, and in every version of the quota file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketId(pub u64);

impl BucketId {
    /// Everybody's, which is no hash.
    pub const GLOBAL: Self = Self(0);
}

/// So much comes in, and so much may gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capacity {
    /// Request units per second, which are millionths per microsecond.
    pub ru_per_second: u64,
    /// Millionths that may gather.
    pub burst: MicroUnits,
}

impl Capacity {
    /// What one second brings.
    pub const fn second(&self) -> MicroUnits {
        self.ru_per_second.saturating_mul(1_000_000)
    }

    /// What comes in meanwhile, whatever may gather.
    pub const fn comes_in(&self, meanwhile: Duration) -> MicroUnits {
        self.ru_per_second.saturating_mul(meanwhile.as_micros() as u64)
    }

    /// A part of it, for whoever only estimates: no less than 1 per second, and no burst of nothing.
    #[must_use]
    pub fn scaled(&self, part: Part) -> Self {
        Self { ru_per_second: part.of(self.ru_per_second).max(1), burst: part.of(self.burst).max(1) }
    }

    /// Microseconds until so many millionths have come in.
    pub const fn micros_for(&self, amount: MicroUnits) -> u64 {
        amount.div_ceil(self.ru_per_second)
    }
}

/// A part of a quota, in billionths: what one of several weirs may give out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part(u32);

impl Part {
    /// All of it.
    pub const WHOLE: Self = Self(1_000_000_000);

    /// So many billionths; all of it, if they are more.
    pub const fn of_billionths(billionths: u64) -> Self {
        if billionths < Self::WHOLE.0 as u64 { Self(billionths as u32) } else { Self::WHOLE }
    }

    /// One of so many equal parts.
    pub const fn even(parts: u64) -> Self {
        Self((Self::WHOLE.0 as u64 / if parts == 0 { 1 } else { parts }) as u32)
    }

    /// In billionths.
    pub const fn billionths(self) -> u64 {
        self.0 as u64
    }

    /// So much of an amount, rounded down.
    pub const fn of(self, amount: u64) -> u64 {
        if self.0 == Self::WHOLE.0 {
            return amount;
        }
        (amount as u128 * self.0 as u128 / Self::WHOLE.0 as u128) as u64
    }

    /// As a number from 0 to 1.
    pub fn ratio(self) -> f64 {
        f64::from(self.0) / f64::from(Self::WHOLE.0)
    }
}

/// What one core tells about one bucket: what happened since it last did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Which bucket.
    pub bucket: BucketId,
    /// How large it is, in the version of the quotas that the core goes by.
    pub capacity: Capacity,
    /// What was asked for lately in one period, whether it was granted or not.
    pub wanted: MicroUnits,
    /// What was asked for in the period that this is the end of: nothing if it goes on, so that none is told twice.
    pub asked: MicroUnits,
    /// What was spent; below zero where more came back than was spent.
    pub spent: i64,
    /// Requests cost so much more than was taken for them, which is a part of that. Told of everybody's bucket only.
    pub surprise: MicroUnits,
    /// What the core does not need, and gives back.
    pub returned: MicroUnits,
    /// What it spent beyond its allowance, and has not got back.
    pub owed: MicroUnits,
    /// What a request needs that waits for the answer; zero if none does.
    pub needed: MicroUnits,
    /// The largest recent cost: less than this is of no use.
    pub lump: MicroUnits,
}

/// What it is told in return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which bucket.
    pub bucket: BucketId,
    /// What may be spent more; where the core spent more than it had, that debt is taken over and is in here too.
    pub amount: i64,
    /// All that may be spent then, as far as the pool knows.
    pub holds: MicroUnits,
    /// What is left for others, and for later.
    pub level: i64,
    /// When that was. What was granted is good for a lease from here.
    pub at: Timestamp,
    /// The core's part of what comes in, in 65,536ths.
    pub share: u32,
    /// The part of the quota that all cores of this process have together.
    pub part: Part,
    /// There was not enough for requests of this cost, or a larger one; zero if for none at all.
    pub dry_from: Option<MicroUnits>,
}

/// All that one core tells at once.
#[derive(Debug)]
pub struct Report {
    /// Which core.
    pub shard: ShardId,
    /// The version of the quotas it goes by.
    pub version: u64,
    /// Its buckets. If there are any, the report is answered.
    pub demands: Vec<Demand>,
    /// What became of tenants' requests since the last report.
    pub usage: Vec<(TenantId, Usage)>,
}

/// How long a grant is good for, and how long a core waits for an answer before it goes on alone.
pub const fn lease_of(period: Duration) -> Duration {
    const PERIODS: u64 = 5;
    Duration::from_nanos(period.as_nanos() as u64 * PERIODS)
}
