//! Metering of requests: request units by the outcome of the request.

use std::fmt;

use super::{MicroUnits, UNIT};

/// Outcome of a request, as far as metering distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageKind {
    /// The request was sent to a store, or weir answered it by itself (such as `CLIENT LIST`).
    Admitted,
    /// The request was refused because a quota (of all tenants, the tenant or the user) was used up, or because it
    /// wrote a hot key more often than permitted (`--hot-write-rate`).
    Throttled,
    /// The request was refused in an overload, or because its store was away.
    Shed,
    /// The request was answered without a store: from memory, or with the reply to another request.
    Cached,
}

impl UsageKind {
    /// All outcomes of requests that metering distinguishes.
    pub const ALL: [Self; 4] = [Self::Admitted, Self::Throttled, Self::Shed, Self::Cached];

    /// Returns the outcome's name in metrics and pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Throttled => "throttled",
            Self::Shed => "shed",
            Self::Cached => "cached",
        }
    }
}

/// Sums of the prices of one tenant's requests in some time (such as a minute), by outcome, in millionths of a request
/// unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Real cost of the requests that were sent to a store, or that weir answered by itself. Estimated cost of those
    /// that were sent and got no reply.
    pub admitted: MicroUnits,
    /// Estimated cost of the requests that were refused because a quota was used up, or because they wrote a hot key
    /// more often than permitted (`--hot-write-rate`).
    pub throttled: MicroUnits,
    /// Estimated cost of the requests that were refused in an overload, or because their store was away.
    pub shed: MicroUnits,
    /// Cost of the requests that were answered without a store: from memory, or with the reply to another
    /// request.
    pub cached: MicroUnits,
}

impl Usage {
    /// Adds the prices of other requests, outcome by outcome; each sum stops at the largest number.
    pub fn add(&mut self, other: Self) {
        self.admitted = self.admitted.saturating_add(other.admitted);
        self.throttled = self.throttled.saturating_add(other.throttled);
        self.shed = self.shed.saturating_add(other.shed);
        self.cached = self.cached.saturating_add(other.cached);
    }

    /// True if the prices of all outcomes are 0.
    pub const fn is_empty(&self) -> bool {
        self.admitted == 0 && self.throttled == 0 && self.shed == 0 && self.cached == 0
    }

    /// Returns the sum of the prices of requests with this outcome, in millionths of a request unit.
    pub const fn of(&self, kind: UsageKind) -> MicroUnits {
        match kind {
            UsageKind::Admitted => self.admitted,
            UsageKind::Throttled => self.throttled,
            UsageKind::Shed => self.shed,
            UsageKind::Cached => self.cached,
        }
    }
}

/// Prices of requests by outcome, summed over a long time in 128 bits: a day at the largest quota does not
/// fit 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageSum([u128; UsageKind::ALL.len()]);

impl UsageSum {
    /// Adds the prices of further requests, outcome by outcome.
    pub fn add(&mut self, usage: Usage) {
        for kind in UsageKind::ALL {
            self.0[kind as usize] += u128::from(usage.of(kind));
        }
    }

    /// Subtracts prices of requests that were added before, outcome by outcome.
    pub fn subtract(&mut self, usage: Usage) {
        for kind in UsageKind::ALL {
            let sum = &mut self.0[kind as usize];
            *sum = sum.saturating_sub(u128::from(usage.of(kind)));
        }
    }

    /// Returns the sum of the prices of requests with this outcome.
    pub const fn of(&self, kind: UsageKind) -> Amount {
        Amount(self.0[kind as usize])
    }

    /// Returns the amount taken from the tenant's quota: for requests that were not refused, whether a store answered
    /// them or not.
    pub const fn consumed(&self) -> Amount {
        Amount(self.of(UsageKind::Admitted).0 + self.of(UsageKind::Cached).0)
    }

    /// Returns the sum of the prices of requests of all outcomes together, refused ones included.
    pub fn asked(&self) -> Amount {
        Amount(self.0.iter().sum())
    }
}

impl From<Usage> for UsageSum {
    fn from(usage: Usage) -> Self {
        let mut sum = Self::default();
        sum.add(usage);
        sum
    }
}

/// An amount in millionths of a request unit, which is shown exactly as request units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(pub u128);

impl Amount {
    /// Returns the amount in request units as a float, which is close but not exact.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / UNIT as f64
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, micro) = (self.0 / u128::from(UNIT), self.0 % u128::from(UNIT));
        if micro == 0 {
            return write!(out, "{whole}");
        }
        let fraction = format!("{micro:06}");
        write!(out, "{whole}.{}", fraction.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_shown_exactly() {
        for (micro, text) in [
            (0, "0"),
            (1, "0.000001"),
            (100_000, "0.1"),
            (1_000_000, "1"),
            (12_345_600, "12.3456"),
            (u128::from(u64::MAX), "18446744073709.551615"),
        ] {
            assert_eq!(Amount(micro).to_string(), text);
        }
    }

    #[test]
    fn each_part_stays_its_own() {
        let mut usage = Usage { admitted: 1, throttled: 2, shed: 3, cached: 4 };
        usage.add(Usage { admitted: 10, throttled: 20, shed: 30, cached: u64::MAX });
        assert_eq!(UsageKind::ALL.map(|kind| usage.of(kind)), [11, 22, 33, u64::MAX]);
        let mut sum = UsageSum::from(usage);
        sum.add(usage);
        assert_eq!(sum.consumed(), Amount(22 + 2 * u128::from(u64::MAX)));
        assert_eq!(sum.asked(), Amount(22 + 44 + 66 + 2 * u128::from(u64::MAX)));
        sum.subtract(usage);
        assert_eq!(sum, UsageSum::from(usage));
        assert!(Usage::default().is_empty() && !usage.is_empty());
    }
}
