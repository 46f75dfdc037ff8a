//! Shedding levels: which requests to a slow backend are refused or cost more, and the level that cores agree
//! on.

use std::time::Duration;

use crate::values::{Tier, Timestamp};

/// One in this many requests of a refused tier (importance) is sent all the same, so that the latency stays
/// known.
const PROBES: u32 = 100;
/// Age above which a core's proposal of a shedding level is ignored.
const FRESH: Duration = Duration::from_secs(2);

/// Shedding level: which tiers of requests to a slow backend cost more or are refused. Prices in percent of
/// the usual one:
///
/// | level | `batch` | `sheddable` |
/// |---|---|---|
/// | 0 `Steady` | 100 | 100 |
/// | 1 `Strained` | 100 | 150 |
/// | 2 `Overloaded` | 150 | 300 |
/// | 3 `Shedding` | 300 | refused, but for one request in a hundred |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// All tiers (degrees of importance) of requests are sent at the usual price.
    #[default]
    Steady,
    /// Requests of the tier (importance) `sheddable` cost 1.5 times as much as usual.
    Strained,
    /// Requests of the tier (importance) `sheddable` cost 3 times as much as usual, those of `batch` 1.5
    /// times.
    Overloaded,
    /// Requests of the tier (importance) `sheddable` are refused, but for one in a hundred, and those of
    /// `batch` cost 3 times as much as usual.
    Shedding,
}

impl Level {
    /// All levels of load shedding, the mildest first.
    pub const ALL: [Self; 4] = [Self::Steady, Self::Strained, Self::Overloaded, Self::Shedding];

    /// Returns the price of a request of a tier (importance) at this shedding level, in percent of the usual
    /// one.
    pub const fn price_percent(self, tier: Tier) -> u32 {
        match (self, tier) {
            (Self::Strained, Tier::Sheddable) | (Self::Overloaded, Tier::Batch) => 150,
            (Self::Overloaded | Self::Shedding, Tier::Sheddable) | (Self::Shedding, Tier::Batch) => 300,
            _ => 100,
        }
    }

    /// True if a request of a tier (importance) is refused at this shedding level. `number` is the number of
    /// earlier calls: in every hundredth call the request passes, so that cores notice when the backend has
    /// become faster.
    pub const fn refuses(self, tier: Tier, number: u32) -> bool {
        matches!((self, tier), (Self::Shedding, Tier::Sheddable)) && !number.is_multiple_of(PROBES)
    }

    pub(super) const fn above(self) -> Option<Self> {
        match self {
            Self::Steady => Some(Self::Strained),
            Self::Strained => Some(Self::Overloaded),
            Self::Overloaded => Some(Self::Shedding),
            Self::Shedding => None,
        }
    }

    pub(super) const fn below(self) -> Option<Self> {
        match self {
            Self::Steady => None,
            Self::Strained => Some(Self::Steady),
            Self::Overloaded => Some(Self::Strained),
            Self::Shedding => Some(Self::Overloaded),
        }
    }
}

/// A core's proposal of a level of load shedding for one backend, which it publishes to the other cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Time at which the core made the proposal.
    pub at: Timestamp,
    /// The level of load shedding that the core proposes.
    pub level: Level,
    /// Number of replies in the last ten seconds that the proposal is based on, its weight in the vote; a
    /// core that saw too few has weight 0.
    pub replies: u32,
}

/// Returns the level of load shedding that cores agree on: the highest one such that the cores which propose
/// it, or a higher one, have seen at least half of all replies. `told` are the cores' proposals; those older
/// than 2 s do not count, and without any the level is `Steady`. So a few cores with bad luck decide nothing,
/// nor does one core that blames the backend for its own lateness.
pub fn agreed(told: impl IntoIterator<Item = Told>, now: Timestamp) -> Level {
    let mut replies = [0_u64; Level::ALL.len()];
    for one in told {
        if now.since(one.at) <= FRESH {
            replies[one.level as usize] += u64::from(one.replies);
        }
    }
    let all: u64 = replies.iter().sum();
    let mut so_far = 0;
    let chosen = Level::ALL.into_iter().rev().find(|level| {
        so_far += replies[*level as usize];
        so_far > 0 && 2 * so_far >= all
    });
    chosen.unwrap_or_default()
}
