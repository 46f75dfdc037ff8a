//! More is asked than stores can do: what becomes of it, and how much of what they can do is of use.

use std::fmt;

use crate::values::Tier;

/// What goes wrong besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// It is so from the first request on.
    ColdStart,
    /// Cores do not run for up to 200 ms, about once a second.
    LateCores,
    /// A store does nothing for one second, three or ten.
    Stalls,
    /// Connections to stores break, at one request in a thousand.
    LostLinks,
    /// All of that.
    All,
}

impl Trouble {
    /// All of them, the least first.
    pub const ALL: [Self; 6] =
        [Self::None, Self::ColdStart, Self::LateCores, Self::Stalls, Self::LostLinks, Self::All];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ColdStart => "cold-start",
            Self::LateCores => "late-cores",
            Self::Stalls => "stalls",
            Self::LostLinks => "lost-links",
            Self::All => "all",
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
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
    pub could: f64,
}

impl Outcome {
    /// Requests served in time, by what the stores could do.
    pub fn goodput(&self) -> f64 {
        let in_time: u64 = self.tiers.iter().map(|tally| tally.in_time).sum();
        in_time as f64 / self.could.max(1.0)
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
