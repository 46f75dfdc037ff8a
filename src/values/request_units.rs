//! Request units, weir's currency, counted in millionths.

use super::limits::PRICE_MAX;

/// Amount in millionths of a request unit. A quota of N units per second is N millionths per microsecond.
pub type MicroUnits = u64;

/// One request unit, in millionths.
pub const UNIT: MicroUnits = 1_000_000;

/// Converts an amount to a signed number, as levels of buckets are, which may be below zero. An amount too
/// large for one becomes the largest.
pub const fn signed(amount: MicroUnits) -> i64 {
    if amount > i64::MAX as u64 { i64::MAX } else { amount as i64 }
}

/// Price of one request, at most a billion request units whatever a client sends and a store replies. So it
/// fits a signed number and never overflows a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price(MicroUnits);

impl Price {
    /// The price 0, of a request that costs nothing.
    pub const ZERO: Self = Self(0);

    /// Creates a price of `amount` millionths of a request unit; one above a billion request units is reduced
    /// to that.
    #[inline]
    pub const fn new(amount: MicroUnits) -> Self {
        Self(if amount > PRICE_MAX { PRICE_MAX } else { amount })
    }

    /// Returns the price in millionths of a request unit.
    #[inline]
    pub const fn micro(self) -> MicroUnits {
        self.0
    }

    /// Returns the price as a signed number, which is never below zero.
    #[inline]
    pub const fn signed(self) -> i64 {
        self.0 as i64
    }

    /// Returns the amount by which this price exceeds another, in millionths of a request unit; 0 if it does
    /// not.
    #[inline]
    pub const fn beyond(self, other: Self) -> MicroUnits {
        self.0.saturating_sub(other.0)
    }
}

const _: () = assert!(PRICE_MAX <= i64::MAX as u64);

/// Prices of the things that a request is charged for (bytes, elements, keys, latency and so on), in millionths of a
/// request unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// The part of the price that is the same for all requests.
    pub base: MicroUnits,
    /// Price of a request that weir answers from memory, instead of `base`.
    pub hit: MicroUnits,
    /// Price of 1,024 bytes of the request.
    pub kib_in: MicroUnits,
    /// Price of 1,024 bytes of the reply.
    pub kib_out: MicroUnits,
    /// Price of one element of the reply, or of one entry (element of a key) that the store looks at for the request.
    pub row: MicroUnits,
    /// Price of one key that a request writes, if it names several keys.
    pub key: MicroUnits,
    /// Price of a millisecond of latency beyond what requests of the same class (kind of command) usually take.
    pub latency_ms: MicroUnits,
    /// Price of a millisecond for which a request keeps its store busy, if neither the request nor the reply
    /// shows how much work it is; counts only if it is more than the rest of the price.
    pub busy_ms: MicroUnits,
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
            busy_ms: 20 * UNIT,
        }
    }
}
