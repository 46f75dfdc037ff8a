//! Settings of the hot-key cache, which keeps the replies to reads of keys that are requested often.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use super::{ConfigError, Flags};

/// Range of `--hot-ttl`. Within a shorter time hardly any key is read twice, and for a longer time writes
/// that bypass weir would go unseen.
const TTLS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// Range of `--hot-ttl-tracked`: 10 ms to 1 h.
const TRACKED_TTLS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(3600);

/// Limits of the hot-key cache of each core: when a key counts as hot, and how many replies are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotLimits {
    /// Requests for a key per second at which it becomes hot, if `share_per_mille` is reached too.
    pub rate: u64,
    /// Share of a core's requests, in thousandths, at which a key becomes hot, if `rate` is reached too.
    pub share_per_mille: u64,
    /// Longest time that the reply to a read of a hot key is kept, if its store does not report changes of
    /// the key.
    pub ttl: Duration,
    /// Longest time that the reply to a read of a hot key is kept while its store reports changes of the key
    /// (CLIENT TRACKING); never less than `ttl`.
    pub tracked_ttl: Duration,
    /// Maximum number of replies to reads of hot keys that each core keeps; further ones are not kept, unless expired
    /// ones can be dropped.
    pub entries: usize,
    /// Maximum number of bytes of all replies to reads of hot keys that each core keeps; further ones are not kept,
    /// unless expired ones can be dropped.
    pub bytes: usize,
    /// Keys that a script (such as `EVAL`) is assumed to write, whose kept replies are not used after it.
    pub scripts: HotScripts,
    /// Reads of one hot key per second, by all other cores together, from which on the core that keeps the
    /// reply gives copies of it to other cores (to those with at least a tenth of this rate).
    pub copy_rate: u64,
    /// Maximum number of writes of one hot key per second, above which they are refused; `None` for no limit.
    pub write_rate: Option<u64>,
}

impl HotLimits {
    /// Reads the limits of the hot-key cache from the flags, and checks that the flags agree with each other.
    pub(super) fn from_flags(flags: &Flags) -> Result<Self, ConfigError> {
        if !TTLS.contains(&flags.hot_ttl) {
            let problem = format!("--hot-ttl {:?}: 10ms to 60s is expected", flags.hot_ttl);
            return Err(ConfigError::new(problem));
        }
        if !TRACKED_TTLS.contains(&flags.hot_ttl_tracked) {
            let problem = format!("--hot-ttl-tracked {:?}: 10ms to 1h is expected", flags.hot_ttl_tracked);
            return Err(ConfigError::new(problem));
        }
        Ok(Self {
            rate: flags.hot_rate,
            share_per_mille: flags.hot_share.0,
            ttl: flags.hot_ttl,
            tracked_ttl: flags.hot_ttl_tracked.max(flags.hot_ttl),
            entries: flags.hot_entries as usize,
            bytes: flags.hot_bytes.bytes(),
            scripts: flags.hot_scripts,
            copy_rate: flags.hot_copy_rate,
            write_rate: flags.hot_write_rate,
        })
    }
}

/// The keys that a script is assumed to write, as far as the hot-key cache is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HotScripts {
    /// Any key of its store: no reply kept of that store's hot keys is used after the script.
    #[default]
    Strict,
    /// Only the keys that its caller names. If the script writes other keys, replies kept for these stay in
    /// use although they are outdated.
    Declared,
}

/// A share of a whole, in thousandths; flags give it as a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(pub u64);

impl FromStr for Share {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let percent: Option<f64> = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
        let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
        let thousandths = percent.map(|percent| percent * 10.0);
        thousandths
            .filter(|thousandths| (thousandths.round() - thousandths).abs() < 1e-6)
            .map(|thousandths| Self(thousandths.round() as u64))
            .ok_or("a share from 0% to 100% in steps of 0.1% is expected, such as 2% or 0.5%")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage() {
        for (text, share) in [("2%", 20), ("0.5%", 5), ("100%", 1_000), ("0%", 0), ("2 %", 20)] {
            assert_eq!(text.parse(), Ok(Share(share)), "{text}");
        }
        for text in ["0.04%", "0.05%", "2", "", "%", "-1%", "101%", "NaN%", "inf%", "two%"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }
}
