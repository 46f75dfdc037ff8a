//! What is done about a slow backend, level by level, and on which level cores agree.

use std::time::Duration;

use crate::values::{Tier, Timestamp};

/// Of what is refused, one request in so many passes all the same.
const PROBES: u32 = 100;
/// What a core told longer ago than this counts no more.
const FRESH: Duration = Duration::from_secs(2);

/// How much of the less important work is held back. Prices in percent of the usual one:
///
/// | level | `batch` | `sheddable` |
/// |---|---|---|
/// | 0 `Steady` | 100 | 100 |
/// | 1 `Strained` | 100 | 150 |
/// | 2 `Overloaded` | 150 | 300 |
/// | 3 `Shedding` | 300 | refused, but for one request in a hundred |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// None.
    #[default]
    Steady,
    /// `sheddable` work costs more.
    Strained,
    /// `batch` work costs more too.
    Overloaded,
    /// `sheddable` work is refused.
    Shedding,
}

impl Level {
    /// All of them, the lowest first.
    pub const ALL: [Self; 4] = [Self::Steady, Self::Strained, Self::Overloaded, Self::Shedding];

    /// What a request of that tier costs, in percent of the usual price.
    pub const fn price_percent(self, tier: Tier) -> u32 {
        match (self, tier) {
            (Self::Strained, Tier::Sheddable) | (Self::Overloaded, Tier::Batch) => 150,
            (Self::Overloaded | Self::Shedding, Tier::Sheddable) | (Self::Shedding, Tier::Batch) => 300,
            _ => 100,
        }
    }

    /// Is a request of that tier refused? `number` counts those that were asked about: every hundredth passes, so that it is
    /// noticed when the backend has become quicker.
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

/// What a core tells the others of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// When that was.
    pub at: Timestamp,
    /// The level that it would choose.
    pub level: Level,
    /// From how many replies of the last seconds. Whoever saw too few has no say.
    pub replies: u32,
}

/// The highest level that cores with half of all replies would choose, or a higher one. A few cores with bad luck decide
/// nothing, and one that is late itself blames the backend in vain. What all choose when nobody has anything to say is steady.
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
