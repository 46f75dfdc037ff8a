//! Worlds under overload: clients send more requests than the stores can serve. Counts how requests end, and
//! which part of the stores' capacity is of use.

use std::fmt;
use std::str::FromStr;

use weir::values::Tier;

/// The set of faults that a world under overload has besides the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble(u8);

impl Trouble {
    /// The empty set of faults: nothing happens besides the overload.
    pub const NONE: Self = Self(0);
    /// The fault that the overload begins with the first request, without a calm time before.
    pub const COLD_START: Self = Self(1);
    /// The fault that cores do not run for up to 200 ms, about once a second.
    pub const LATE_CORES: Self = Self(2);
    /// The fault that the first store stalls for one second, three or ten.
    pub const STALLS: Self = Self(4);
    /// The fault that connections to stores break, at one request in a thousand.
    pub const LOST_LINKS: Self = Self(8);
    /// The set of all faults: cold start, late cores, stalls, lost connections.
    pub const ALL: Self = Self(15);

    const NAMED: [(Self, &str); 4] = [
        (Self::COLD_START, "cold-start"),
        (Self::LATE_CORES, "late-cores"),
        (Self::STALLS, "stalls"),
        (Self::LOST_LINKS, "lost-links"),
    ];

    /// Returns the sets of faults that are run unless flags say otherwise: none, each alone, all but the
    /// cold start, and all.
    pub fn usual() -> Vec<Self> {
        let each = Self::NAMED.map(|(trouble, _)| trouble);
        let warm = Self(Self::ALL.0 & !Self::COLD_START.0);
        [Self::NONE].into_iter().chain(each).chain([warm, Self::ALL]).collect()
    }

    /// True if all faults of `other` are in this set.
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
                "none, all, or some of cold-start, late-cores, stalls and lost-links with + between is expected"
                    .into()
            })
    }
}

/// Numbers of the requests of one tier (importance) that were sent in the counted time, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of requests that were served before their deadline.
    pub in_time: u64,
    /// Number of requests that were served after their deadline, too late to be of use.
    pub late: u64,
    /// Number of requests that weir refused.
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

/// The result of a simulated world in which clients send more requests than the stores can serve.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Counts of requests by tier (importance), the most important first.
    pub tiers: [Tally; Tier::ALL.len()],
    /// The number of requests that the stores could have carried out in the counted time.
    pub capacity: f64,
    /// The number of those requests that running cores of weir could have sent to the stores; cores do not
    /// run all the time.
    pub could: f64,
}

impl Outcome {
    /// Returns the number of requests served in time, divided by the number that running cores could have had
    /// served.
    pub fn goodput(&self) -> f64 {
        self.in_time() / self.could.max(1.0)
    }

    /// Returns the number of requests served in time, divided by the number that the stores could have
    /// carried out.
    pub fn goodput_of_capacity(&self) -> f64 {
        self.in_time() / self.capacity.max(1.0)
    }

    fn in_time(&self) -> f64 {
        self.tiers.iter().map(|tally| tally.in_time).sum::<u64>() as f64
    }

    /// Returns the fraction of a tier's requests that were served in time.
    pub fn served(&self, tier: Tier) -> f64 {
        let tally = self.tiers[tier as usize];
        tally.in_time as f64 / tally.all().max(1) as f64
    }

    /// Returns the fraction of all requests that were served after their deadline.
    pub fn late(&self) -> f64 {
        let sum = |of: fn(Tally) -> u64| self.tiers.iter().copied().map(of).sum::<u64>() as f64;
        sum(|tally| tally.late) / sum(Tally::all).max(1.0)
    }
}
