//! The command line of `weir-calibrate`, which fits the weights of request units to a server's costs.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use clap::{ArgAction, Parser, ValueEnum};
use weir::values::units::number;

const EXAMPLES: &str = "\
weir-calibrate sends one shape of request (a command and its sizes) at a time, in pipelines over several connections, and
reads the server's CPU time before and after. It repeats rounds over all shapes and takes the median of each shape. A third
of the shapes is held out: the fitted weights predict their cost, and R2 is the quality of that prediction.

--cost cpu          user and system time of the server: the whole cost of a request, with its socket reads and writes.
--cost commandstats microseconds of INFO commandstats: the command alone. Sockets and parsing, most of the cost of a small
                    request, are not included, so these weights favour requests with many bytes.

Examples:
  weir-calibrate --target 127.0.0.1:6379 --seconds 60
  weir-calibrate --svg fit.svg --json fit.json --pipeline 1";

/// Measure that is taken as the cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cost {
    /// User and system time of the server.
    Cpu,
    /// The time that the server itself measures for its commands: microseconds in its reply to `INFO
    /// commandstats`.
    Commandstats,
}

impl Cost {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Commandstats => "commandstats",
        }
    }
}

/// Fits the weights of weir's request units to what requests cost a Redis server.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir-calibrate", version, after_help = EXAMPLES, max_term_width = 120)]
pub struct CalibrateFlags {
    /// Server to load. A server on another host needs --yes-remote
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    pub target: String,
    /// Password of the server; set it in the environment, because other users can read command lines
    #[arg(long, env = "WEIR_CALIBRATE_PASSWORD", value_name = "TEXT", hide_env_values = true)]
    pub password: Option<String>,
    /// Seconds to measure, over all shapes and rounds
    #[arg(long, value_name = "N", value_parser = number(1, 3_600), default_value = "30")]
    pub seconds: u64,
    /// Number of rounds over all shapes
    #[arg(long, value_name = "N", value_parser = number(1, 100), default_value = "5")]
    pub rounds: u64,
    /// Requests in a pipeline; they share the cost of reading and writing the socket
    #[arg(long, value_name = "N", value_parser = number(1, 1_024), default_value = "16")]
    pub pipeline: u64,
    /// Number of connections that send at the same time, so that the server is never idle
    #[arg(long, value_name = "N", value_parser = number(1, 256), default_value = "16")]
    pub connections: u64,
    /// Measure that is taken as the cost of a request
    #[arg(long, value_name = "WHICH", value_enum, default_value = "cpu")]
    pub cost: Cost,
    /// Seed for the choice of shapes, and of those that are held out
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Allows a server that holds keys. The keys are not changed, but its users will notice the load
    #[arg(long, action = ArgAction::SetTrue)]
    pub yes_not_empty: bool,
    /// Allows a server on another host
    #[arg(long, action = ArgAction::SetTrue)]
    pub yes_remote: bool,
    /// File for a plot of predicted against measured cost (SVG)
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// File for the plot and a table of all shapes: HTML that needs no network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// File for all measurements, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Shows no progress
    #[arg(long, action = ArgAction::SetTrue)]
    pub quiet: bool,
}

impl CalibrateFlags {
    /// Checks everything in the flags that can be wrong, before a request is sent. Returns the address of
    /// the server to load; the error is a text for the user.
    pub fn check(&self) -> Result<SocketAddr, String> {
        for (flag, path) in [("--svg", &self.svg), ("--html", &self.html), ("--json", &self.json)] {
            let folder =
                path.as_deref().and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
            if let (Some(path), Some(folder)) = (path, folder)
                && !folder.is_dir()
            {
                return Err(format!("{flag} {}: there is no folder {}", path.display(), folder.display()));
            }
        }
        let target = &self.target;
        let addresses = target.to_socket_addrs().map_err(|error| {
            format!("--target {target}: HOST:PORT such as 127.0.0.1:6379 is expected ({error})")
        })?;
        // A name such as localhost has two addresses; most servers listen on the IPv4 one, so it is
        // preferred.
        let address = addresses.min_by_key(SocketAddr::is_ipv6);
        let address = address.ok_or_else(|| format!("--target {target}: there is no such host"))?;
        if !address.ip().is_loopback() && !self.yes_remote {
            return Err(format!(
                "--target {target}: the server is on another host, and this run will load it; give --yes-remote to allow that"
            ));
        }
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        CalibrateFlags::command().debug_assert();
    }

    #[test]
    fn complaints_say_what_was_given_and_what_would_be_right() {
        for (flags, complaint) in [
            (vec!["--seconds=0"], "'0' for '--seconds <N>': a whole number from 1 to 3600 is expected"),
            (vec!["--cost=money"], "[possible values: cpu, commandstats]"),
            (vec!["--target=nowhere"], "--target nowhere: HOST:PORT such as 127.0.0.1:6379 is expected"),
            (vec!["--target=192.0.2.1:6379"], "give --yes-remote"),
            (vec!["--svg=no/where.svg"], "--svg no/where.svg: there is no folder no"),
        ] {
            let words = std::iter::once("weir-calibrate").chain(flags.iter().copied());
            let told = match CalibrateFlags::try_parse_from(words) {
                Ok(flags) => flags.check().expect_err("it is wrong"),
                Err(error) => error.to_string(),
            };
            assert!(told.contains(complaint), "{told}");
        }
    }
}
