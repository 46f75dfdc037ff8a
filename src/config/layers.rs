//! Layers of traffic management (such as quotas or queues), each of which can be switched off.

use std::fmt;
use std::str::FromStr;

/// Layer of traffic management, as `--disable` and `--shadow` name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Prices of requests, and the quotas that they are taken from.
    Rate,
    /// Refusing or charging more for requests of low tiers when latency rises, and deadlines.
    Shed,
    /// Queues of requests that wait for room in a backend's window (limit on requests in flight).
    Queue,
    /// The window of each backend, which limits the requests in flight there.
    Window,
    /// The cap on expensive requests in flight, which yield to cheap ones.
    Yields,
    /// The hot-key cache, and fetches from the store that several waiting reads of a hot key share.
    Hot,
    /// Connections on which stores report changes of hot keys.
    Tracking,
    /// The circuit breaker, which ejects (takes out of use) failing or slow stores.
    Breaker,
    /// Reads from replicas of a cluster, by tenants that permit it.
    Replicas,
    /// Retries of reads that were in flight on a lost connection to a cluster's node.
    Retries,
}

impl Layer {
    /// All layers of traffic management, in the order in which a request meets them.
    pub const ALL: [Self; 10] = [
        Self::Rate,
        Self::Hot,
        Self::Tracking,
        Self::Replicas,
        Self::Shed,
        Self::Breaker,
        Self::Queue,
        Self::Window,
        Self::Yields,
        Self::Retries,
    ];

    /// Returns a note for `--help` on what the layer (part of the traffic management) does, in parentheses;
    /// empty if the name says it.
    const fn meaning(self) -> &'static str {
        match self {
            Self::Rate => " (quotas)",
            Self::Shed => " (deadlines, also those passed on to a weir behind, and tiers)",
            Self::Queue | Self::Window => "",
            Self::Yields => " (fewer expensive requests in flight while cheap ones are slow)",
            Self::Hot => " (cache of hot keys)",
            Self::Tracking => " (of hot keys: stores tell of their changes)",
            Self::Breaker => " (ejects failing stores)",
            Self::Replicas => " (reads from replicas of a cluster)",
            Self::Retries => " (of reads that were lost with a connection to a node of a cluster)",
        }
    }

    /// True if the layer (part of the traffic management) can run without effect (`--shadow`), deciding and
    /// counting only.
    pub const fn has_shadow(self) -> bool {
        !matches!(self, Self::Replicas | Self::Tracking | Self::Yields)
    }

    /// Builds the help text of the flag `--disable`, which lists all layers.
    pub fn help_of_disable() -> String {
        let layers = Self::ALL.map(|layer| format!("{layer}{}", layer.meaning()));
        format!("Layers to switch off: {}", layers.join(", "))
    }

    /// Builds the help text of the flag `--shadow`, which lists the layers that can run without effect.
    pub fn help_of_shadow() -> String {
        let layers: Vec<&str> =
            Self::ALL.into_iter().filter(|layer| layer.has_shadow()).map(Self::name).collect();
        format!(
            "Layers in dry run: they decide and count, and their decisions are not enforced, except that \
             --queue-limit and --queue-bytes hold: {}",
            layers.join(", ")
        )
    }

    /// Returns the layer's name, as flags have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Shed => "shed",
            Self::Queue => "queue",
            Self::Window => "window",
            Self::Yields => "yields",
            Self::Hot => "hot",
            Self::Tracking => "tracking",
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
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|layer| layer.name() == word);
        known.ok_or_else(|| {
            let [names @ .., last] = Self::ALL.map(Self::name);
            let names = names.join(", ");
            format!("{names} or {last} is expected, or several of them with commas between")
        })
    }
}

/// Algorithm by which quotas are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LimiterKind {
    /// Token buckets of request units: one of all tenants, one for each tenant and one for each user.
    #[default]
    Buckets,
    /// A fixed number of requests per tenant and second, whatever they cost; no other quota is enforced.
    /// Meant for comparison with the token buckets.
    Static,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layer_is_found_by_its_name_and_an_error_names_them_all() {
        for (place, layer) in Layer::ALL.into_iter().enumerate() {
            assert_eq!(layer.name().parse(), Ok(layer));
            assert!(Layer::help_of_disable().contains(layer.name()));
            assert_eq!(Layer::ALL.iter().filter(|other| **other as usize == place).count(), 1, "{layer}");
        }
        let told = "cold".parse::<Layer>().expect_err("no such layer");
        assert_eq!(
            told,
            "rate, hot, tracking, replicas, shed, breaker, queue, window, yields or retries is expected, or several of them with commas \
             between"
        );
    }
}
