//! Tiers: the importance of a request.

use std::fmt;
use std::str::FromStr;

/// Importance of a request. In an overload, requests of the last tier are refused first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The most important requests: somebody waits for the reply, and cannot do without it.
    Critical,
    /// Requests for whose reply somebody waits.
    #[default]
    Standard,
    /// Requests for whose reply nobody waits, but whose work must get done.
    Batch,
    /// Requests whose work may be dropped: they are refused first in an overload.
    Sheddable,
}

impl Tier {
    /// All tiers, the most important first.
    pub const ALL: [Self; 4] = [Self::Critical, Self::Standard, Self::Batch, Self::Sheddable];

    /// Returns the tier's name, as people write and read it, such as `critical`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Standard => "standard",
            Self::Batch => "batch",
            Self::Sheddable => "sheddable",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// Error for a word that is no name of a tier (importance of requests).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTier;

impl fmt::Display for UnknownTier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("critical, standard, batch or sheddable is expected")
    }
}

impl std::error::Error for UnknownTier {}

impl FromStr for Tier {
    type Err = UnknownTier;

    fn from_str(word: &str) -> Result<Self, UnknownTier> {
        Self::ALL.into_iter().find(|tier| tier.name() == word).ok_or(UnknownTier)
    }
}
