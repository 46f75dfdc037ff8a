//! `weir-storage`: the embedded engine as a server of its own, for tests and load runs that need a store with
//! a known capacity, and with stalls, errors and outages at set times or by command.

mod script;
mod script_file;
mod service;

use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, Args, Parser};
use weir::config::Size;
use weir::config::units::duration;
use weir::runtime;
use weir::store::{Engine, EngineLimits, Service};

use script::{Behaviour, Change, ClusterNodes, Phases, SERVERS_MAX, Script, ServiceTimes};
use service::ScriptedService;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SCRIPT: &str = "Scripted behaviour";

const EXAMPLES: &str = "\
Classes of commands: point, multi, range, scan (these only read), write, control (PING, HELLO, INFO), or all (except control).
Service times: 1ms, fixed:1ms, exp:MEAN, lognormal:MEDIAN:SIGMA. Durations: 500us, 10ms, 1s, 5m.

A request waits in one queue until one of the servers is free. It is then executed, and its reply is sent after its service
time. So the capacity is known: servers / mean service time.

Examples:
  weir-storage --servers 4 --service-time point=1ms,range=exp:5ms,write=lognormal:1ms:0.5 --per-row 1us
                                            serves 4,000 GETs per second
  weir-storage --script outage.toml         a file with phases, each with some of these:
    [[phases]]
    at = \"5s\"                               from the start of the process
    duration = \"2s\"                         without it the phase never ends
    servers = 1
    service_time = \"point=10ms\"
    per_kib = \"10us\"
    per_row = \"1us\"
    errors = { kind = \"LOADING\", share = 0.3 }
    stall = \"1s\"                            serves nothing for this time
    slow_accept = \"100ms\"                   does not read new connections for this time
    refuse_connections = true               closes new connections at once
    outage = true                           closes and refuses all connections while the phase lasts
  weir-storage --cluster nodes.txt --listen 127.0.0.1:7001
                                            one node of a cluster; start one process per node
  redis-cli -p 7380 STORAGE HELP            lists commands that change all this at run time, or report requests";

/// Serves weir's embedded engine as a store of its own, with scripted latency, errors and outages.
#[derive(Debug, Parser)]
#[command(name = "weir-storage", version, after_help = EXAMPLES, max_term_width = 120)]
struct StorageFlags {
    /// Address where clients connect. Port 0 takes any free port
    #[arg(long, env = "WEIR_STORAGE_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:7380")]
    listen: SocketAddr,
    /// Memory that the store may hold before it refuses writes
    #[arg(long, env = "WEIR_STORAGE_MAX_BYTES", value_name = "SIZE", default_value = "1GiB")]
    max_bytes: Size,
    /// Largest request
    #[arg(long, env = "WEIR_STORAGE_MAX_REQUEST_BYTES", value_name = "SIZE", default_value = "16MiB")]
    max_request_bytes: Size,
    #[command(flatten)]
    script: ScriptFlags,
}

#[derive(Debug, Args)]
#[command(next_help_heading = SCRIPT)]
struct ScriptFlags {
    /// Number of requests that are served at the same time
    #[arg(long, env = "WEIR_STORAGE_SERVERS", value_name = "N", default_value = "1", value_parser = servers)]
    servers: usize,
    /// Service time of each class of commands; classes that are not named take no time
    #[arg(long, env = "WEIR_STORAGE_SERVICE_TIME", value_name = "CLASS=TIME,...")]
    service_time: Option<ServiceTimes>,
    /// Service time per KiB of request and reply
    #[arg(long, env = "WEIR_STORAGE_PER_KIB", value_name = "DURATION", default_value = "0", value_parser = duration)]
    per_kib: Duration,
    /// Service time per element of a reply
    #[arg(long, env = "WEIR_STORAGE_PER_ROW", value_name = "DURATION", default_value = "0", value_parser = duration)]
    per_row: Duration,
    /// Seed of random service times and errors
    #[arg(long, env = "WEIR_STORAGE_SEED", value_name = "N", default_value = "0")]
    seed: u64,
    /// File with phases that change the behaviour over time: see below
    #[arg(long, env = "WEIR_STORAGE_SCRIPT", value_name = "FILE")]
    script: Option<PathBuf>,
    /// File with a reply to CLUSTER NODES: the store then acts as a node of that cluster, as the node with
    /// the flag `myself`, or else as the node with the address of --listen
    #[arg(long, env = "WEIR_STORAGE_CLUSTER", value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Allows STORAGE commands, with which clients change all this and read which requests reached the store
    #[arg(long, env = "WEIR_STORAGE_SCRIPTABLE", value_name = "BOOL", action = ArgAction::Set)]
    #[arg(default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    scriptable: bool,
}

impl ScriptFlags {
    /// Makes the script of the store's behaviour from the flags; `None` if the store is to serve without
    /// one. `listens` is the address of `--listen`. The error is a text for the user.
    fn script(self, listens: SocketAddr) -> Result<Option<Script>, String> {
        let phases = self.script.as_deref().map(script_file::read).transpose()?.unwrap_or_default();
        let mut behaviour = Behaviour::default();
        behaviour.apply(&Change {
            servers: Some(self.servers),
            service_time: self.service_time,
            per_kib: Some(self.per_kib),
            per_row: Some(self.per_row),
            ..Change::default()
        });
        let cluster = self.cluster.as_deref().map(|path| read_cluster(path, listens)).transpose()?;
        let plain = cluster.is_none() && behaviour == Behaviour::default() && phases == Phases::default();
        let (seed, scriptable, listens) = (self.seed, self.scriptable, Some(listens));
        let script = Script { behaviour, phases, seed, scriptable, cluster, listens };
        Ok((self.scriptable || !plain).then_some(script))
    }
}

fn read_cluster(path: &Path, listens: SocketAddr) -> Result<ClusterNodes, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{name} (--cluster): {error}"))?;
    ClusterNodes::parse(&text, Some(listens)).map_err(|problem| format!("{name} (--cluster): {problem}"))
}

fn servers(text: &str) -> Result<usize, String> {
    let servers = text.parse().ok().filter(|servers| (1..=SERVERS_MAX).contains(servers));
    servers.ok_or_else(|| format!("a whole number from 1 to {SERVERS_MAX} is expected"))
}

fn run(flags: StorageFlags) -> Result<(), String> {
    let script = flags.script.script(flags.listen)?;
    let (listen, limits) = (flags.listen, EngineLimits::with_memory(flags.max_bytes.0));
    let request_bytes_max = flags.max_request_bytes.bytes();
    match script {
        None => {
            // The seed cannot be guessed, so that nobody outside can choose keys that collide.
            let seed = RandomState::new().hash_one(std::process::id());
            runtime::run_storage(listen, move |clock| {
                Service::new(timed_engine(limits, seed, clock), request_bytes_max)
            })
        }
        Some(script) => runtime::run_storage(listen, move |clock| {
            ScriptedService::new(timed_engine(limits, script.seed, clock), request_bytes_max, script)
        }),
    }
}

/// Creates an engine (the store's data and commands) whose Lua scripts are ended when they run for too long.
/// `seed` is that of its hash tables and random replies; `clock` is the one by which the service takes requests.
fn timed_engine(limits: EngineLimits, seed: u64, clock: runtime::Clock) -> Engine {
    Engine::new(limits, seed).with_clock(move || clock.now().monotonic)
}

fn main() -> ExitCode {
    match run(StorageFlags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("weir-storage: {text}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        StorageFlags::command().debug_assert();
    }

    #[test]
    fn a_store_that_just_serves_has_no_script() {
        let script = |words: &[&str]| {
            let flags =
                StorageFlags::try_parse_from([&["weir-storage"], words].concat()).expect("well formed");
            flags.script.script(flags.listen).expect("no file to read")
        };
        assert!(script(&["--scriptable=false"]).is_none());
        assert!(script(&[]).expect("scriptable").scriptable);
        assert!(!script(&["--scriptable=false", "--servers", "2"]).expect("scripted").scriptable);
    }

    #[test]
    fn complaints_name_the_flag() {
        for (flag, value) in
            [("--servers", "0"), ("--service-time", "point=1"), ("--per-kib", "1"), ("--seed", "x")]
        {
            let complaint =
                StorageFlags::try_parse_from(["weir-storage", flag, value]).expect_err(value).to_string();
            assert!(complaint.contains(flag) && complaint.contains(value), "{complaint}");
        }
    }
}
