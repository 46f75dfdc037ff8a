//! Layers of traffic management, which can be switched off one by one.

use std::fmt;
use std::str::FromStr;

/// Layer of traffic management, as `--disable` and `--shadow` name it.
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
    /// The hot-key cache, and flights (fetches that several waiting reads share).
    Hot,
    /// The circuit breaker, which ejects failing or slow stores.
    Breaker,
    /// Reads from replicas of a cluster.
    Replicas,
    /// Retries of reads that were lost with a connection to a node of a cluster.
    Retries,
}

impl Layer {
    /// All layers, in the order in which a request meets them.
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

    /// Returns the layer's name.
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
            "rate, shed, queue, window, hot, breaker, replicas or retries is expected, or several of them with commas between",
        )
    }
}

/// Way in which quotas are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LimiterKind {
    /// Request units in token buckets: global, tenant, user.
    #[default]
    Buckets,
    /// A fixed count of requests per tenant and second, whatever they cost, and nothing else: for comparison.
    Static,
}
