//! The command line, and the plan made of it or of its scenario file.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};
use weir::config::Tier;
use weir::config::units::{duration, number, positive_duration};
use weir_load::rate::Rate;
use weir_load::schedule::Arrivals;
use weir_load::template::{Mix, Template};
use weir_load::{ClientKind, GroupPlan, Identity, PhasePlan, Plan, SetupPlan};

use super::scenario;
use super::values::{
    CONNECTIONS_DEFAULT, CONNECTIONS_MAX, DURATION_DEFAULT, DURATION_MAX, PIPELINE_DEFAULT, PIPELINE_MAX,
    THREADS_MAX, arrivals,
};

const COMMAND_DEFAULT: &str = "GET key:{zipf:100000}";

const EXAMPLES: &str = "\
In a command, braces enclose a part that differs from request to request: {uniform:N} {zipf:N[:s]} {hot:N:share%:K}
{viral} {seq} {value:BYTES} {rand:BYTES}. {{ and }} are literal braces.
Latency counts from the time at which a request was due, even if it was sent later. The generator adds at most --tick to it.
A request is served if its reply is no error. An array with errors in it (MGET, EXEC) counts as the first of them.

Examples:
  weir-load --rate 50000 --duration 10s --command 'GET key:{zipf:100000}'
  weir-load --rate 1000..50000 --arrivals poisson --json run.json --html run.html
  weir-load --closed --connections 50 --pipeline 16 --command 'SET key:{uniform:100000} {value:64}'
  weir-load --scenario flood.toml --metrics http://127.0.0.1:7381/metrics --html flood.html
  weir-load compare before.json after.json --html both.html";

/// Generates open-loop load for any server that speaks the Redis protocol, and measures latency.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir-load", version, after_help = EXAMPLES, max_term_width = 110)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct LoadFlags {
    /// Server that gets the load; connections are spread evenly over several
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', default_value = "127.0.0.1:7379")]
    pub target: Vec<String>,
    /// Requests per second: 50000 or 50k, 1000..50000 for a ramp, 1000,2000,4000 for equally long steps
    /// [default: 1000]
    #[arg(long, value_name = "RATE", conflicts_with = "closed")]
    pub rate: Option<Rate>,
    /// Duration of the load [default: 10s, or the duration in the scenario file]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    /// Distribution of arrivals: even or poisson [default: even]
    #[arg(long, value_name = "HOW", value_parser = arrivals, conflicts_with = "closed")]
    pub arrivals: Option<Arrivals>,
    /// Sends a request as soon as an earlier one is answered (closed loop), at no set rate. Hides stalls, so
    /// use it only to measure capacity
    #[arg(long, action = ArgAction::SetTrue)]
    pub closed: bool,
    /// Number of connections [default: 50]
    #[arg(long, value_name = "N", value_parser = number(1, CONNECTIONS_MAX))]
    pub connections: Option<u64>,
    /// Maximum number of requests in flight on each connection; if all connections are full, due requests are
    /// sent late [default: 16]
    #[arg(long, value_name = "N", value_parser = number(1, PIPELINE_MAX))]
    pub pipeline: Option<u64>,
    /// Command to send; of several, one is chosen at random for each request [default: GET key:{zipf:100000}]
    #[arg(long, value_name = "COMMAND")]
    pub command: Vec<Template>,
    /// Command to send COUNT times before the load starts, such as '1000 SET key:{seq} {value:64}'; sent again where it
    /// is refused with OVERLOADED
    #[arg(long, value_name = "COUNT COMMAND", value_parser = setup)]
    pub setup: Vec<(u64, Template)>,
    /// Tenant to log in as
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Password of the tenant, or with --scenario of each tenant for which the file has none; set it in the
    /// environment, because other users can read command lines
    #[arg(long, env = "WEIR_LOAD_PASSWORD", value_name = "TEXT", hide_env_values = true)]
    pub password: Option<String>,
    /// Users to send requests for; connections are spread evenly over them
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub user: Vec<String>,
    /// Tier of all requests: critical, standard, batch or sheddable
    #[arg(long, value_name = "TIER")]
    pub tier: Option<Tier>,
    /// Deadline of each request, which weir is told
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub deadline: Option<Duration>,
    /// Kind of client. naive: retries at once each request that was refused, failed or timed out. smart:
    /// retries only requests that are safe to retry, after a back-off and within a budget; sends less when it
    /// is throttled, and pauses before a server that refuses everything [default: naive]
    #[arg(long, value_name = "KIND", conflicts_with = "closed")]
    pub client: Option<ClientKind>,
    /// Maximum number of retries of a request [default: 0; 2 with --client smart]
    #[arg(long, value_name = "N", value_parser = number(0, 255))]
    pub retries: Option<u64>,
    /// Time after which a request without a reply is given up [default: at the end of the run; 1s with
    /// --client smart]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub timeout: Option<Duration>,
    /// Leaves out AUTH and QOS SET, for a target that is not weir
    #[arg(long, action = ArgAction::SetTrue)]
    pub plain: bool,
    /// TOML file with groups, phases and set-up
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "arrivals", "closed", "connections", "pipeline",
        "command", "setup", "tenant", "user", "tier", "deadline", "client", "retries", "timeout"])]
    pub scenario: Option<PathBuf>,
    /// Threads, each with an equal part of the connections and of the rate
    #[arg(long, value_name = "N", value_parser = number(1, THREADS_MAX), default_value = "1")]
    pub threads: u64,
    /// Time between looks for due requests: a longer tick takes less CPU, a shorter one is more exact
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "100us")]
    pub tick: Duration,
    /// Time after the last request was due in which late requests are still sent and replies are awaited
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1s")]
    pub drain: Duration,
    /// Time without an accepted connection after which the run ends
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "5s")]
    pub connect_timeout: Duration,
    /// Longest time for the set-up
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "60s")]
    pub setup_timeout: Duration,
    /// Seed of all random choices: the same seed makes the same requests
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// URL of weir's metrics, read every second for the report
    #[arg(long, value_name = "URL")]
    pub metrics: Option<super::scrape::Page>,
    /// File for counts, latencies and results by second, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// File for the report with plots: HTML that needs no network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Folder for latency distributions in the format of the hdrhistogram plotter: one file GROUP.hgrm per
    /// group
    #[arg(long, value_name = "FOLDER")]
    pub hgrm: Option<PathBuf>,
    /// File for a histogram of every second and group, for hdrhistogram's log tools
    #[arg(long, value_name = "FILE")]
    pub hlog: Option<PathBuf>,
    /// JSON file of an earlier run to draw into the report
    #[arg(long, value_name = "FILE", requires = "html")]
    pub compare: Option<PathBuf>,
    /// Shows no progress
    #[arg(long, action = ArgAction::SetTrue)]
    pub quiet: bool,
    /// Subcommand other than sending load.
    #[command(subcommand)]
    pub action: Option<Action>,
}

/// Subcommands of weir-load besides sending load.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Shows two earlier runs beside each other: rates, outcomes and latencies by group and phase, and their ratios
    Compare(CompareFlags),
}

/// Flags of `weir-load compare`.
#[derive(Clone, Debug, Args)]
pub struct CompareFlags {
    /// JSON file of the earlier run
    pub before: PathBuf,
    /// JSON file of the later run
    pub after: PathBuf,
    /// File for the report with the plots of both runs; the earlier one's lines are dashed
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// The checked plan of a run, with the addresses of its targets, and their names as the user gave them.
#[derive(Debug)]
pub struct Prepared {
    pub plan: Plan,
    pub targets: Vec<SocketAddr>,
    pub target_names: Vec<String>,
}

impl LoadFlags {
    /// Makes the plan from the flags or the scenario file, and resolves the targets' names. The error is a
    /// text for the user.
    pub fn prepare(&self) -> Result<Prepared, String> {
        let (mut groups, setup) = match &self.scenario {
            Some(path) => scenario::read(path, self.duration, self.password.as_deref())?,
            None => self.group(),
        };
        let threads = self.threads as usize;
        for group in &mut groups {
            if group.connections < threads {
                return Err(format!(
                    "--threads {threads}: group '{}' has only {} connections, and each thread wants one",
                    group.name, group.connections
                ));
            }
            if self.plain {
                group.identity = Identity::default();
            }
        }
        let connections: usize = groups.iter().map(|group| group.connections).sum();
        if connections as u64 > CONNECTIONS_MAX {
            return Err(format!("{connections} connections in all: at most {CONNECTIONS_MAX} are expected"));
        }
        let plan = Plan {
            setup,
            groups,
            threads,
            tick: self.tick,
            drain: self.drain,
            connect_timeout: self.connect_timeout,
            setup_timeout: self.setup_timeout,
            seed: self.seed,
        };
        for (flag, given) in [("--duration", plan.duration()), ("--drain", self.drain)] {
            if given > DURATION_MAX {
                return Err(format!("{flag} {given:?}: at most {DURATION_MAX:?} is expected"));
            }
        }
        let targets = self.target.iter().map(|name| resolve(name)).collect::<Result<_, _>>()?;
        Ok(Prepared { plan, targets, target_names: self.target.clone() })
    }

    fn group(&self) -> (Vec<GroupPlan>, Vec<SetupPlan>) {
        let mut commands = self.command.clone();
        if commands.is_empty() {
            commands.push(Template::parse(COMMAND_DEFAULT).expect("the default is a command"));
        }
        let rate = self.rate.clone().unwrap_or(Rate::constant(1_000.0));
        let phase = PhasePlan {
            name: "all".to_owned(),
            duration: self.duration.unwrap_or(DURATION_DEFAULT),
            rate: if self.closed { Rate::constant(0.0) } else { rate },
            mix: Mix::weighted(commands.into_iter().map(|command| (1, command)).collect()),
        };
        let arrivals = if self.closed { Arrivals::Closed } else { self.arrivals.unwrap_or_default() };
        let client = self.client.unwrap_or_default();
        let group = GroupPlan {
            name: self.tenant.clone().unwrap_or_else(|| "load".to_owned()),
            identity: Identity {
                tenant: self.tenant.clone(),
                password: self.password.clone(),
                resp3: false,
                users: self.user.clone(),
                tier: self.tier,
                deadline: self.deadline,
            },
            connections: self.connections.map_or(CONNECTIONS_DEFAULT, |count| count as usize),
            pipeline: self.pipeline.map_or(PIPELINE_DEFAULT, |count| count as usize),
            arrivals,
            phases: vec![phase],
            client,
            retries: self.retries.map_or(client.retries(), |retries| retries as u8),
            timeout: self.timeout.or(client.timeout()),
        };
        let setup = self.setup.iter().map(|(count, command)| SetupPlan {
            command: command.clone(),
            count: *count,
            group: 0,
        });
        (vec![group], setup.collect())
    }
}

fn resolve(name: &str) -> Result<SocketAddr, String> {
    let addresses = name.to_socket_addrs();
    let found = addresses.map_err(|error| {
        format!("--target {name}: HOST:PORT such as 127.0.0.1:7379 is expected ({error})")
    })?;
    let mut found: Vec<SocketAddr> = found.collect();
    // A name such as localhost has two addresses; most servers listen on the IPv4 one, so it is preferred.
    found.sort_by_key(SocketAddr::is_ipv6);
    found.first().copied().ok_or_else(|| format!("--target {name}: there is no such host"))
}

fn setup(text: &str) -> Result<(u64, Template), String> {
    let wanted = "a count and a command are expected, such as '1000 SET key:{seq} {value:64}'";
    let (count, command) = text.split_once(' ').ok_or(wanted)?;
    let count = count.parse().ok().filter(|count| (1..=1_000_000_000).contains(count)).ok_or(wanted)?;
    Ok((count, Template::parse(command)?))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn told(flags: &[&str]) -> String {
        let words = std::iter::once("weir-load").chain(flags.iter().copied());
        match LoadFlags::try_parse_from(words) {
            Ok(flags) => flags.prepare().expect_err("it is wrong"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_definition_holds_together() {
        LoadFlags::command().debug_assert();
    }

    #[test]
    fn flags_make_one_group() {
        let flags = LoadFlags::parse_from([
            "weir-load",
            "--rate",
            "50k",
            "--duration",
            "2s",
            "--tenant",
            "acme",
            "--tier",
            "batch",
            "--connections",
            "7",
            "--client",
            "smart",
            "--command",
            "GET a",
            "--command",
            "SET a {value:3}",
        ]);
        let plan = flags.prepare().expect("it is right").plan;
        assert_eq!(plan.duration(), Duration::from_secs(2));
        let group = &plan.groups[0];
        assert_eq!((group.name.as_str(), group.connections, group.pipeline), ("acme", 7, PIPELINE_DEFAULT));
        assert_eq!(group.phases[0].rate, Rate::constant(50_000.0));
        assert_eq!(group.phases[0].mix.texts().count(), 2);
        assert_eq!(group.identity.tier, Some(Tier::Batch));
        assert_eq!((group.client, group.retries), (ClientKind::Smart, 2));
        assert_eq!(group.timeout, Some(Duration::from_secs(1)));
    }

    #[test]
    fn complaints_say_what_was_given_and_what_would_be_right() {
        for (flags, complaint) in [
            (vec!["--rate=fast"], "invalid value 'fast' for '--rate <RATE>': 'fast' is no rate"),
            (vec!["--command=GET {zip:3}"], "{zip:3} is not known: {uniform:N}"),
            (vec!["--duration=10"], "a duration needs a unit"),
            (vec!["--pipeline=0"], "a whole number from 1 to 4096 is expected"),
            (vec!["--closed", "--rate=5"], "cannot be used with"),
            (vec!["--closed", "--client=smart"], "cannot be used with"),
            (vec!["--client=clever"], "naive or smart is expected"),
            (vec!["--target=nowhere"], "--target nowhere: HOST:PORT such as 127.0.0.1:7379 is expected"),
            (vec!["--threads=3", "--connections=2"], "--threads 3: group 'load' has only 2 connections"),
            (vec!["--duration=25h"], "--duration 90000s: at most 86400s is expected"),
            (vec!["--scenario=none.toml"], "none.toml: "),
            (vec!["--tier=gold"], "critical, standard, batch or sheddable is expected"),
        ] {
            let told = told(&flags);
            assert!(told.contains(complaint), "{told}");
        }
    }
}
