//! What requests came to, in request units, by what became of them.

use std::fmt;

use super::{MicroUnits, UNIT};

/// What became of a request, as far as metering goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageKind {
    /// It went on to a store.
    Admitted,
    /// A quota was used up.
    Throttled,
    /// It was let go because there was too much to do.
    Shed,
    /// It was answered without a store.
    Cached,
}

impl UsageKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Admitted, Self::Throttled, Self::Shed, Self::Cached];

    /// The word for it in metrics and pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Throttled => "throttled",
            Self::Shed => "shed",
            Self::Cached => "cached",
        }
    }
}

/// Some requests of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of those that went on to a store: what they cost in the end.
    pub admitted: MicroUnits,
    /// Of those that were refused because a quota was used up: what they would have cost.
    pub throttled: MicroUnits,
    /// Of those that were let go because there was too much to do: what they would have cost.
    pub shed: MicroUnits,
    /// Of those that were answered without a store: what that cost.
    pub cached: MicroUnits,
}

impl Usage {
    /// Adds another. What does not fit stays at the most that does.
    pub fn add(&mut self, other: Self) {
        self.admitted = self.admitted.saturating_add(other.admitted);
        self.throttled = self.throttled.saturating_add(other.throttled);
        self.shed = self.shed.saturating_add(other.shed);
        self.cached = self.cached.saturating_add(other.cached);
    }

    /// Whether there was nothing.
    pub const fn is_empty(&self) -> bool {
        self.admitted == 0 && self.throttled == 0 && self.shed == 0 && self.cached == 0
    }

    /// The part that came to this end.
    pub const fn of(&self, kind: UsageKind) -> MicroUnits {
        match kind {
            UsageKind::Admitted => self.admitted,
            UsageKind::Throttled => self.throttled,
            UsageKind::Shed => self.shed,
            UsageKind::Cached => self.cached,
        }
    }
}

/// Those of a long time: a day at the largest quota does not fit 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageSum([u128; UsageKind::ALL.len()]);

impl UsageSum {
    /// Adds some.
    pub fn add(&mut self, usage: Usage) {
        for kind in UsageKind::ALL {
            self.0[kind as usize] += u128::from(usage.of(kind));
        }
    }

    /// Takes some off that were added before.
    pub fn subtract(&mut self, usage: Usage) {
        for kind in UsageKind::ALL {
            let sum = &mut self.0[kind as usize];
            *sum = sum.saturating_sub(u128::from(usage.of(kind)));
        }
    }

    /// The part that came to this end.
    pub const fn of(&self, kind: UsageKind) -> Amount {
        Amount(self.0[kind as usize])
    }

    /// What was taken from the tenant's quota.
    pub const fn consumed(&self) -> Amount {
        Amount(self.of(UsageKind::Admitted).0 + self.of(UsageKind::Cached).0)
    }

    /// Everything that was asked for.
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

/// So many millionths, which are shown as request units, exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(pub u128);

impl Amount {
    /// Nearly the same, where only a part of the digits is wanted.
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
