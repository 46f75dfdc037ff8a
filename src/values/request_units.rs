//! The currency: request units, counted in millionths.

use super::limits::PRICE_MAX;

/// Millionths of a request unit. A quota of N units per second is N millionths per microsecond.
pub type MicroUnits = u64;

/// One request unit.
pub const UNIT: MicroUnits = 1_000_000;

/// An amount where it is counted with a sign, because it may be owed. What does not fit stays at the most that does.
pub const fn signed(amount: MicroUnits) -> i64 {
    if amount > i64::MAX as u64 { i64::MAX } else { amount as i64 }
}

/// What one request costs. Whatever a client sends and a store answers, it is no more than [`PRICE_MAX`], so it can be
/// counted with a sign, and is never one that fills a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price(MicroUnits);

impl Price {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// That much, or the most that a request may cost.
    #[inline]
    pub const fn new(amount: MicroUnits) -> Self {
        Self(if amount > PRICE_MAX { PRICE_MAX } else { amount })
    }

    /// In millionths of a request unit.
    #[inline]
    pub const fn micro(self) -> MicroUnits {
        self.0
    }

    /// The same with a sign, which is never below zero.
    #[inline]
    pub const fn signed(self) -> i64 {
        self.0 as i64
    }

    /// What is missing to it.
    #[inline]
    pub const fn beyond(self, other: Self) -> MicroUnits {
        self.0.saturating_sub(other.0)
    }
}

const _: () = assert!(PRICE_MAX <= i64::MAX as u64);

/// What each term weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Any request.
    pub base: MicroUnits,
    /// A request that weir answers from memory, instead of `base`.
    pub hit: MicroUnits,
    /// 1,024 bytes of the request.
    pub kib_in: MicroUnits,
    /// 1,024 bytes of the reply.
    pub kib_out: MicroUnits,
    /// One row of the reply, or one key of a request that reads several.
    pub row: MicroUnits,
    /// One key of a request that writes several.
    pub key: MicroUnits,
    /// A millisecond beyond what such requests usually take.
    pub latency_ms: MicroUnits,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            base: UNIT,
            hit: UNIT / 10,
            kib_in: UNIT,
            kib_out: UNIT / 4,
            row: UNIT / 50,
            key: 3 * UNIT / 50,
            latency_ms: UNIT / 2,
        }
    }
}
