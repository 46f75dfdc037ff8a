//! The layers of traffic management, which can be switched off one by one.

use std::fmt;
use std::str::FromStr;

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Prices, quotas and their buckets.
    Rate,
    /// Shedding by tier, latency ratio and deadline.
    Shed,
    /// The queue before each backend.
    Queue,
    /// The window of requests in flight at each backend.
    Window,
    /// Hot keys: cache and flights.
    Hot,
    /// Sick stores are left alone.
    Breaker,
    /// Reads from replicas of a cluster.
    Replicas,
    /// Reads that were lost with a connection to a node of a cluster are asked for again.
    Retries,
}

impl Layer {
    /// All of them, in the order in which a request meets them.
    pub const ALL: [Self; 8] = [
        Self::Rate,
        Self::Hot,
        Self::Replicas,
        Self::Shed,
        Self::Breaker,
        Self::Queue,
        Self::Window,
        Self::Retries,
    ];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Shed => "shed",
            Self::Queue => "queue",
            Self::Window => "window",
            Self::Hot => "hot",
            Self::Breaker => "breaker",
            Self::Replicas => "replicas",
            Self::Retries => "retries",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for Layer {
    type Err = &'static str;

    fn from_str(word: &str) -> Result<Self, &'static str> {
        let known = Self::ALL.into_iter().find(|layer| layer.name() == word);
        known.ok_or(
            "rate, shed, queue, window, hot, breaker, replicas or retries is wanted, or several of them with commas between",
        )
    }
}

/// How quotas are kept to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LimiterKind {
    /// Request units in token buckets: global, tenant, user.
    #[default]
    Buckets,
    /// A fixed count of requests per tenant and second, whatever they cost, and nothing else: to compare with.
    Static,
}
