//! More is asked than stores can do: what becomes of it, and how much of what they can do is of use.

use std::fmt;
use std::str::FromStr;

use weir::values::Tier;

/// What goes wrong besides: nothing, or some of these at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble(u8);

impl Trouble {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// It is so from the first request on.
    pub const COLD_START: Self = Self(1);
    /// Cores do not run for up to 200 ms, about once a second.
    pub const LATE_CORES: Self = Self(2);
    /// A store does nothing for one second, three or ten.
    pub const STALLS: Self = Self(4);
    /// Connections to stores break, at one request in a thousand.
    pub const LOST_LINKS: Self = Self(8);
    /// All of that.
    pub const ALL: Self = Self(15);

    const NAMED: [(Self, &str); 4] = [
        (Self::COLD_START, "cold-start"),
        (Self::LATE_CORES, "late-cores"),
        (Self::STALLS, "stalls"),
        (Self::LOST_LINKS, "lost-links"),
    ];

    /// Each by itself, all but the cold start, and all; the least first.
    pub fn usual() -> Vec<Self> {
        let each = Self::NAMED.map(|(trouble, _)| trouble);
        let warm = Self(Self::ALL.0 & !Self::COLD_START.0);
        [Self::NONE].into_iter().chain(each).chain([warm, Self::ALL]).collect()
    }

    /// Does that go wrong?
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> =
            Self::NAMED.iter().filter(|(one, _)| self.has(*one)).map(|(_, word)| *word).collect();
        match *self {
            Self::NONE => out.pad("none"),
            Self::ALL => out.pad("all"),
            _ => out.pad(&words.join("+")),
        }
    }
}

impl FromStr for Trouble {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = |word| match word {
            "none" => Some(Self::NONE),
            "all" => Some(Self::ALL),
            _ => Self::NAMED.iter().find(|(_, name)| *name == word).map(|(one, _)| *one),
        };
        text.split('+')
            .try_fold(Self::NONE, |sum, word| known(word).map(|one| Self(sum.0 | one.0)))
            .ok_or_else(|| {
                "none, all, or some of cold-start, late-cores, stalls and lost-links with + between is wanted"
                    .into()
            })
    }
}

/// What became of the requests of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Served before their deadline.
    pub in_time: u64,
    /// Served, when nobody had a use for it.
    pub late: u64,
    /// Told that they are not.
    pub refused: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: Self) {
        self.in_time += other.in_time;
        self.late += other.late;
        self.refused += other.refused;
    }

    const fn all(self) -> u64 {
        self.in_time + self.late + self.refused
    }
}

/// What a world under load came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// By tiers, the most important first.
    pub tiers: [Tally; Tier::ALL.len()],
    /// What the stores could have carried out meanwhile.
    pub capacity: f64,
    /// That of it which cores that ran could have asked them for (`capacity.rs`).
    pub could: f64,
}

impl Outcome {
    /// Requests served in time, by what cores that ran could have had the stores do.
    pub fn goodput(&self) -> f64 {
        self.in_time() / self.could.max(1.0)
    }

    /// The same, by what the stores could do.
    pub fn goodput_of_capacity(&self) -> f64 {
        self.in_time() / self.capacity.max(1.0)
    }

    fn in_time(&self) -> f64 {
        self.tiers.iter().map(|tally| tally.in_time).sum::<u64>() as f64
    }

    /// The part of a tier's requests that was served in time.
    pub fn served(&self, tier: Tier) -> f64 {
        let tally = self.tiers[tier as usize];
        tally.in_time as f64 / tally.all().max(1) as f64
    }

    /// The part of all requests that was served too late.
    pub fn late(&self) -> f64 {
        let sum = |of: fn(Tally) -> u64| self.tiers.iter().copied().map(of).sum::<u64>() as f64;
        sum(|tally| tally.late) / sum(Tally::all).max(1.0)
    }
}
