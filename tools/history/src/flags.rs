//! The command line of `weir-history`, which checks that no read returned a stale or lost value.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};
use weir::values::units::number;

const EXAMPLES: &str = "\
Values are unique, so each read shows which write it saw. A history is correct if the operations on each key have one order in which
every read returns the newest write. The order must agree with time (an operation with a reply comes before all that were sent later)
and with each connection (operations keep the order in which they were sent, also within a pipeline). A write without a reply may have
taken effect at any later time, or never.

Half of the connections use RESP3, and half only read. The exit code is 1 if the history is not correct or something was no reply
to what was asked, and 2 if the run was not possible or no read through weir was answered.

Examples:
  weir-history --address 127.0.0.1:7379 --operations 1000000
  weir-history --reads mixed --undeclared --flushes --writes-per-mille 50
  weir-history --around 127.0.0.1:6379,127.0.0.1:6380 --ttl 1s";

/// Commands with which values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reads {
    /// GET only; all keys are strings
    Get,
    /// All commands that show a value or its absence: GETRANGE, MGET, HGET, HGETALL, LINDEX, EXISTS and more
    Mixed,
}

/// Reads and writes through a running weir, and checks that no read returned a stale or lost value.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir-history", version, after_help = EXAMPLES, max_term_width = 120)]
pub struct HistoryFlags {
    /// Address of weir. Keys that begin with {history are overwritten
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7379")]
    pub address: String,
    /// Number of keys; with more than 6, some are hashes and lists, except with --reads get
    #[arg(long, value_name = "N", value_parser = number(1, 1_000), default_value = "8")]
    pub keys: u64,
    /// Number of connections, each with a thread of its own
    #[arg(long, value_name = "N", value_parser = number(1, 256), default_value = "32")]
    pub connections: u64,
    /// Number of operations, with those of writers around weir. A signal ends the run earlier; the operations
    /// until then are checked
    #[arg(long, value_name = "N", value_parser = number(1, 10_000_000), default_value = "1000000")]
    pub operations: u64,
    /// Maximum number of operations in a pipeline; the number is random
    #[arg(long, value_name = "N", value_parser = number(1, 256), default_value = "16")]
    pub pipeline: u64,
    /// Number of writes in a thousand operations
    #[arg(long, value_name = "N", value_parser = number(0, 1_000), default_value = "200")]
    pub writes_per_mille: u64,
    /// Longest time for which reads may be stale after writes around weir (weir's --hot-ttl)
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "0s")]
    pub ttl: Duration,
    /// Seed of the operations of all connections
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Stores behind weir that this tool also writes to directly
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub around: Vec<String>,
    /// Commands with which values are read
    #[arg(long, value_name = "WHICH", value_enum, default_value = "mixed")]
    pub reads: Reads,
    /// Makes some scripts write a key that they do not declare
    #[arg(long, action = ArgAction::SetTrue)]
    pub undeclared: bool,
    /// Sends FLUSHALL now and then: all other keys of the stores are lost
    #[arg(long, action = ArgAction::SetTrue)]
    pub flushes: bool,
    /// Accepts that a key loses its value, because stores without persistence are killed during the run
    #[arg(long, action = ArgAction::SetTrue)]
    pub stores_forget: bool,
    /// Number of pipelines in a thousand whose replies are not awaited: their connection is closed instead
    #[arg(long, value_name = "N", value_parser = number(0, 1_000), default_value = "5")]
    pub closes_per_mille: u64,
}

impl HistoryFlags {
    /// Resolves the address of weir, which is returned first, and those of the stores that are written to
    /// directly (bypassing weir). The error is a text for the user.
    pub fn check(&self) -> Result<(SocketAddr, Vec<SocketAddr>), String> {
        let around = self.around.iter().map(|name| resolve("--around", name)).collect::<Result<_, _>>()?;
        Ok((resolve("--address", &self.address)?, around))
    }
}

fn resolve(flag: &str, name: &str) -> Result<SocketAddr, String> {
    let addresses = name
        .to_socket_addrs()
        .map_err(|error| format!("{flag} {name}: HOST:PORT such as 127.0.0.1:7379 is expected ({error})"))?;
    // A name such as localhost has two addresses; most servers listen on the IPv4 one, so it is preferred.
    let address = addresses.min_by_key(SocketAddr::is_ipv6);
    address.ok_or_else(|| format!("{flag} {name}: there is no such host"))
}

/// Parses a duration such as `1s` or `250ms`. The error is a text for the user.
fn duration(text: &str) -> Result<Duration, String> {
    let wanted = || format!("'{text}': a duration such as 250ms or 1s is expected");
    let (digits, unit_ms) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1),
        None => (text.strip_suffix('s').ok_or_else(wanted)?, 1_000),
    };
    let count: u64 = digits.parse().map_err(|_| wanted())?;
    count.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(wanted)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        HistoryFlags::command().debug_assert();
    }

    #[test]
    fn complaints_say_what_was_given_and_what_would_be_right() {
        for (flag, complaint) in [
            ("--keys=0", "'0' for '--keys <N>': a whole number from 1 to 1000 is expected"),
            ("--ttl=soon", "'soon': a duration such as 250ms or 1s is expected"),
            ("--around=nowhere", "--around nowhere: HOST:PORT such as 127.0.0.1:7379 is expected"),
        ] {
            let told = match HistoryFlags::try_parse_from(["weir-history", flag]) {
                Ok(flags) => flags.check().expect_err("it is wrong"),
                Err(error) => error.to_string(),
            };
            assert!(told.contains(complaint), "{told}");
        }
    }

    #[test]
    fn durations() {
        for (text, ms) in [("0s", 0), ("250ms", 250), ("2s", 2_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }
}
