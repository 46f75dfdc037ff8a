//! The `STORAGE` command, by which clients change the script and read figures while the store runs.

use std::time::Duration;

use super::behaviour::{Change, ServiceTimes};
use super::cluster::{Cluster, ClusterNodes, Endpoints, refusal};
use super::director::Director;
use super::fault::{Errors, FaultKind};
use super::reads::Busiest;
use weir::protocol::{Arguments, Protocol, encode};
use weir::values::Timestamp;
use weir::values::units::{duration, positive_duration};

const NAME: &[u8] = b"storage";
/// The number of keys that `STORAGE TOP` (the keys read most) lists by default; at most 10,000 can be asked
/// for.
const TOP_DEFAULT: usize = 10;
const TOP_MAX: usize = 10_000;
/// Maximum number of bytes of a client's word that an error text repeats.
const QUOTED_BYTES_MAX: usize = 260;

const HELP: &[&str] = &[
    "STORAGE <subcommand> [<arg> ...]. Subcommands are:",
    "SET SERVICE-TIME point|multi|range|scan|write|control|all TIME",
    "    TIME is 1ms, fixed:1ms, exp:MEAN or lognormal:MEDIAN:SIGMA.",
    "SET SERVERS N | SET PER-KIB DURATION | SET PER-ROW DURATION",
    "SET ERRORS KIND SHARE | SET ERRORS OFF",
    "    KIND is LOADING, BUSY, CLUSTERDOWN, MASTERDOWN, READONLY, TRYAGAIN, OOM or ERR.",
    "SET REFUSE ON|OFF",
    "    Whether new connections are closed at once. Phases of the script file go before what is set.",
    "STALL DURATION",
    "    Serves nothing for so long.",
    "OUTAGE DURATION",
    "    Closes all connections, loses what is in flight, and closes new connections for so long.",
    "SLOW-ACCEPT DURATION",
    "    Leaves new connections alone for so long.",
    "CLUSTER NODES TEXT | CLUSTER NODES OFF",
    "    Plays a node of a cluster that has this reply to CLUSTER NODES, with its flags and open slots; or none any more.",
    "CLUSTER ENDPOINTS IP|HOSTNAME|UNKNOWN",
    "    How MOVED, ASK and CLUSTER SLOTS name nodes.",
    "CLUSTER REFUSE MOVED|ASK HOST:PORT [SLOTS FROM[-TO]] [SKIP N] [TIMES N]",
    "CLUSTER REFUSE TRYAGAIN|CLUSTERDOWN|READONLY|KIND [SLOTS FROM[-TO]] [SKIP N] [TIMES N]",
    "    Refuses requests about these slots, but for the first N, so many times. READONLY is for writes only.",
    "CLUSTER REFUSE OFF",
    "    Refuses only what such a node would.",
    "RESET",
    "    Behaves as the flags say again, and starts all figures anew.",
    "STATS | COMMANDS",
    "    Figures; how often each command was served.",
    "SERVICE-TIMES",
    "    How the service times were spread as they were drawn, in nanoseconds.",
    "READS KEY | TOP [N [READS|IN-FLIGHT]] | READS-RESET",
    "    How often a key was read; the keys read most, or most at a time; forgets the reads.",
    "KEY KEY",
    "    Of a key: reads, reads in flight now and at most, and the most reads in one second.",
    "HELP",
    "    This.",
];

/// The effect of a `STORAGE` command on connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Effect {
    None,
    /// The store closes all its connections, the one that sent the command after its reply.
    Outage,
}

type Answer = Result<Effect, String>;

impl Director {
    /// True for a `STORAGE` command, which is answered at once instead of waiting for a server.
    pub(crate) fn answers(arguments: &Arguments<'_>) -> bool {
        arguments.name().eq_ignore_ascii_case(NAME)
    }

    /// Carries out a `STORAGE` command (which changes the store's behaviour, or reads or resets its statistics) and
    /// appends its reply or error to `out`. Returns whether the store must close its connections.
    pub(crate) fn command(
        &mut self,
        arguments: &Arguments<'_>,
        protocol: Protocol,
        now: Timestamp,
        out: &mut Vec<u8>,
    ) -> Effect {
        let start = out.len();
        self.carry_out(arguments, protocol, now, out).unwrap_or_else(|problem| {
            out.truncate(start);
            encode::error(out, &format!("ERR {problem}"));
            Effect::None
        })
    }

    fn carry_out(
        &mut self,
        arguments: &Arguments<'_>,
        protocol: Protocol,
        now: Timestamp,
        out: &mut Vec<u8>,
    ) -> Answer {
        if !self.script.scriptable {
            return Err("STORAGE is refused: this store was not started with --scriptable".to_owned());
        }
        let words: Vec<String> = arguments.iter().skip(1).map(quoted).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let subcommand = words.first().map(|word| word.to_ascii_uppercase()).unwrap_or_default();
        let mut effect = Effect::None;
        match (subcommand.as_str(), words.get(1..).unwrap_or_default()) {
            ("HELP", []) => {
                encode::array(out, HELP.len());
                HELP.iter().for_each(|line| encode::simple(out, line));
                return Ok(effect);
            }
            ("STATS", []) => return Ok(self.write_figures(protocol, out)),
            ("COMMANDS", []) => return Ok(self.write_commands(protocol, out)),
            ("SERVICE-TIMES", []) => return Ok(self.write_service_times(protocol, out)),
            ("READS", [_]) => {
                encode::integer(out, self.tally.reads.of(arguments.at(2)).reads as i64);
                return Ok(effect);
            }
            ("KEY", [_]) => return Ok(self.write_key(arguments.at(2), protocol, out)),
            ("TOP", []) => return Ok(self.write_top(TOP_DEFAULT, Busiest::Reads, out)),
            ("TOP", [count]) => return Ok(self.write_top(number(count, TOP_MAX)?, Busiest::Reads, out)),
            ("TOP", [count, by]) => return Ok(self.write_top(number(count, TOP_MAX)?, busiest(by)?, out)),
            ("CLUSTER", [what, values @ ..]) => self.script_cluster(what, values, arguments)?,
            ("READS-RESET", []) => self.tally.reads.reset(),
            ("RESET", []) => self.reset(now),
            ("SET", [what, values @ ..]) => self.set(&change(what, values)?, now)?,
            ("SLOW-ACCEPT", [pause]) => {
                self.set(&Change { slow_accept: Some(time(pause)?), ..Change::default() }, now)?;
            }
            ("STALL", [pause]) => self.stations.stall(now, positive_time(pause)?),
            ("OUTAGE", [pause]) => {
                self.begin_outage(now, positive_time(pause)?);
                effect = Effect::Outage;
            }
            _ => return Err(format!("'{}' is no STORAGE command. Try STORAGE HELP.", words.join(" "))),
        }
        encode::simple(out, "OK");
        Ok(effect)
    }

    fn set(&mut self, change: &Change, now: Timestamp) -> Result<(), String> {
        change.check()?;
        self.base.apply(change);
        self.refresh(now);
        Ok(())
    }

    fn script_cluster(
        &mut self,
        what: &str,
        values: &[&str],
        arguments: &Arguments<'_>,
    ) -> Result<(), String> {
        if what.eq_ignore_ascii_case("nodes") && values.len() == 1 {
            return self.set_nodes(arguments.at(3));
        }
        let cluster =
            self.cluster.as_mut().ok_or("this is no node of a cluster: CLUSTER NODES makes it one")?;
        match (what.to_ascii_uppercase().as_str(), values) {
            ("ENDPOINTS", [kind]) => {
                cluster.endpoints = match kind.to_ascii_uppercase().as_str() {
                    "IP" => Endpoints::Address,
                    "HOSTNAME" => Endpoints::Name,
                    "UNKNOWN" => Endpoints::Unknown,
                    _ => return Err(format!("'{kind}': IP, HOSTNAME or UNKNOWN is expected")),
                }
            }
            ("REFUSE", [off]) if off.eq_ignore_ascii_case("off") => cluster.refusals.clear(),
            ("REFUSE", words) => cluster.refusals.push(refusal(words)?)?,
            _ => return Err(format!("'CLUSTER {what}': NODES, ENDPOINTS or REFUSE is expected")),
        }
        Ok(())
    }

    fn set_nodes(&mut self, text: &[u8]) -> Result<(), String> {
        if text.eq_ignore_ascii_case(b"off") {
            self.cluster = None;
            return Ok(());
        }
        let text = std::str::from_utf8(text).map_err(|_| "a text is expected".to_owned())?;
        let id = self.cluster.as_ref().map(|cluster| cluster.nodes.my_id().to_owned());
        let nodes = ClusterNodes::parse_of(text, id.as_deref(), self.script.listens)?;
        match &mut self.cluster {
            Some(cluster) => cluster.nodes = nodes,
            None => self.cluster = Some(Cluster::new(nodes)),
        }
        Ok(())
    }

    fn reset(&mut self, now: Timestamp) {
        self.cluster = self.script.cluster.clone().map(Cluster::new);
        self.base = self.script.behaviour.clone();
        self.stations.end_stall(now);
        self.end_outage();
        self.refresh(now);
        self.tally.reset();
    }

    fn write_figures(&self, protocol: Protocol, out: &mut Vec<u8>) -> Effect {
        let (concurrency, queue) = (self.stations.in_service(), self.stations.waiting());
        let tally = &self.tally;
        let figures = [
            ("concurrency", concurrency as u64),
            ("concurrency_max", tally.concurrency_max as u64),
            ("queue", queue as u64),
            ("queue_max", tally.queue_max as u64),
            ("requests", tally.requests),
            // Requests in service count as served, but their replies are not due yet.
            ("replies", tally.served.saturating_sub(concurrency as u64)),
            ("errors_injected", tally.errors_injected),
            ("requests_refused", tally.requests_refused),
            ("cluster_refusals", self.cluster.as_ref().map_or(0, |cluster| cluster.refused)),
            ("requests_lost", tally.requests_lost),
            ("connections_refused", tally.connections_refused),
            ("reads_untracked", tally.reads.untracked),
        ];
        write_counts(protocol, &figures, out);
        Effect::None
    }

    fn write_commands(&self, protocol: Protocol, out: &mut Vec<u8>) -> Effect {
        write_counts(protocol, &self.tally.commands(), out);
        Effect::None
    }

    fn write_service_times(&self, protocol: Protocol, out: &mut Vec<u8>) -> Effect {
        write_counts(protocol, &self.tally.service_times(), out);
        Effect::None
    }

    fn write_key(&self, key: &[u8], protocol: Protocol, out: &mut Vec<u8>) -> Effect {
        let key = self.tally.reads.of(key);
        let figures = [
            ("reads", key.reads),
            ("in_flight", u64::from(key.in_flight)),
            ("in_flight_max", u64::from(key.in_flight_max)),
            ("per_second_max", key.per_second_max),
        ];
        write_counts(protocol, &figures, out);
        Effect::None
    }

    fn write_top(&self, count: usize, by: Busiest, out: &mut Vec<u8>) -> Effect {
        let top = self.tally.reads.top(count, by);
        encode::array(out, top.len());
        for (key, value) in top {
            encode::array(out, 2);
            encode::bulk(out, key);
            encode::integer(out, value as i64);
        }
        Effect::None
    }
}

fn write_counts(protocol: Protocol, counts: &[(&str, u64)], out: &mut Vec<u8>) {
    encode::map(out, protocol, counts.len());
    for (name, count) in counts {
        encode::bulk(out, name.as_bytes());
        encode::integer(out, *count as i64);
    }
}

fn busiest(word: &str) -> Result<Busiest, String> {
    match word.to_ascii_uppercase().as_str() {
        "READS" => Ok(Busiest::Reads),
        "IN-FLIGHT" => Ok(Busiest::InFlight),
        _ => Err(format!("'{word}': READS or IN-FLIGHT is expected")),
    }
}

/// Parses the words of `STORAGE SET what values` into a change of the store's behaviour. The error is a text
/// for the client.
fn change(what: &str, values: &[&str]) -> Result<Change, String> {
    let none = Change::default();
    Ok(match (what.to_ascii_uppercase().as_str(), values) {
        ("SERVICE-TIME", [class, time]) => {
            Change { service_time: Some(ServiceTimes::of(class, time.parse()?)?), ..none }
        }
        ("SERVERS", [count]) => Change { servers: Some(number(count, super::SERVERS_MAX)?), ..none },
        ("PER-KIB", [pause]) => Change { per_kib: Some(time(pause)?), ..none },
        ("PER-ROW", [pause]) => Change { per_row: Some(time(pause)?), ..none },
        ("ERRORS", [off]) if off.eq_ignore_ascii_case("off") => {
            Change { errors: Some(Errors::new("ERR".parse()?, 0.0)?), ..none }
        }
        ("ERRORS", [kind, share]) => {
            let kind: FaultKind = kind.parse()?;
            let share = share
                .parse()
                .map_err(|_| format!("'{share}' is no share; a number from 0 to 1 is expected"))?;
            Change { errors: Some(Errors::new(kind, share)?), ..none }
        }
        ("REFUSE", [on]) if on.eq_ignore_ascii_case("on") => {
            Change { refuse_connections: Some(true), ..none }
        }
        ("REFUSE", [off]) if off.eq_ignore_ascii_case("off") => {
            Change { refuse_connections: Some(false), ..none }
        }
        _ => {
            return Err(format!(
                "'SET {what} {}' is not understood; SERVICE-TIME CLASS TIME, SERVERS N, PER-KIB DURATION, PER-ROW \
                 DURATION, ERRORS KIND SHARE, ERRORS OFF or REFUSE ON|OFF is expected",
                values.join(" ")
            ));
        }
    })
}

fn time(word: &str) -> Result<Duration, String> {
    duration(word).map_err(|problem| format!("'{word}': {problem}"))
}

fn positive_time(word: &str) -> Result<Duration, String> {
    positive_duration(word).map_err(|problem| format!("'{word}': {problem}"))
}

fn number(word: &str, most: usize) -> Result<usize, String> {
    let number = word.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("'{word}': a whole number from 1 to {most} is expected"))
}

/// Converts a word of a client's command to text, cut to 260 bytes: a longer word is no keyword, number, or host
/// with its port, and an error text repeats no more of it.
fn quoted(word: &[u8]) -> String {
    String::from_utf8_lossy(&word[..word.len().min(QUOTED_BYTES_MAX)]).into_owned()
}
