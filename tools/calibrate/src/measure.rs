//! The measurement: creates keys, sends requests of every shape in rounds, reads the server's own cost for
//! each, and removes the keys.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::calibration::measurement::held_out;
use crate::calibration::shape::{Shape, encoded, shapes};
use crate::calibration::{Features, Measured, info};
use weir::runtime::Clock;
use weir::values::Random;

use super::backend::{Backend, ReplySize};
use super::flags::{CalibrateFlags, Cost};

/// Maximum number of bytes of requests, or of their replies, in one pipeline on one connection.
const BATCH_BYTES_MAX: usize = 256 * 1024;
const KEYS_PER_REMOVAL: usize = 500;
/// The number of rounds over all shapes at the beginning whose costs are not counted, since caches and
/// buffers are cold.
const ROUNDS_OF_WARM_UP: u64 = 1;

/// Facts about the server that was measured, for the report.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    pub version: String,
}

/// Checks that the target is a Redis server that reports its own CPU time, and that the flags allow it to be
/// loaded (it is empty, or `--yes-not-empty` is given). Returns facts about it; the error is a text for the
/// user.
pub fn look_at(backend: &mut Backend, flags: &CalibrateFlags) -> Result<ServerInfo, String> {
    let target = &flags.target;
    let version = info::field(&backend.ask_text(&["INFO", "server"])?, "redis_version").map(str::to_owned);
    let version =
        version.ok_or_else(|| format!("{target} is no Redis server: its INFO has no redis_version"))?;
    if info::cpu_seconds(&backend.ask_text(&["INFO", "cpu"])?).is_none() {
        return Err(format!(
            "{target} does not tell its own cost: its INFO has no used_cpu_user; a redis-server or valkey-server is expected"
        ));
    }
    let held = weir::protocol::reply::integer(&backend.ask(&["DBSIZE"])?);
    let held = held.ok_or_else(|| format!("{target} answers DBSIZE with something that is no number"))?;
    if held > 0 && !flags.yes_not_empty {
        return Err(format!(
            "{target} is not empty (DBSIZE {held}): an empty server is expected, or --yes-not-empty, which leaves them alone"
        ));
    }
    Ok(ServerInfo { version })
}

pub struct Bench<'a> {
    backend: &'a mut Backend,
    flags: &'a CalibrateFlags,
    clock: Clock,
    stop: &'a AtomicBool,
    /// The connections on which requests are sent. Several keep the server busy all the time: a server that
    /// sleeps before each pipeline spends several times the requests' cost on waking up.
    lanes: Vec<Backend>,
    prefix: String,
    shapes: Vec<Shape>,
}

impl<'a> Bench<'a> {
    pub fn new(
        backend: &'a mut Backend,
        flags: &'a CalibrateFlags,
        clock: Clock,
        stop: &'a AtomicBool,
    ) -> Result<Self, String> {
        let lanes = (0..flags.connections).map(|_| backend.another()).collect::<Result<_, _>>()?;
        // The prefix keeps this run's keys apart from those of other runs and users.
        let prefix = format!("weir-calibrate:{}:{}:", std::process::id(), clock.now().unix_ms);
        Ok(Self { backend, flags, clock, stop, lanes, shapes: shapes(&prefix, flags.seed), prefix })
    }

    /// Measures the costs of all shapes (commands in one size each). Removes all keys of the run at the end,
    /// even after an error, as long as the server can be reached.
    pub fn measure(mut self) -> Result<Vec<Measured>, String> {
        let measured = self.set_up().and_then(|sizes| self.rounds(&sizes));
        let removed = match &measured {
            Ok(_) => self.remove(),
            // On the old connection, unread replies may come before the next ones.
            Err(_) => self.backend.reconnect().and_then(|()| self.remove()),
        };
        let left = |problem| format!("keys that begin with {} may be left: {problem}", self.prefix);
        match (measured, removed) {
            (measured, Ok(())) => measured,
            (Ok(_), Err(problem)) => Err(left(problem)),
            (Err(first), Err(problem)) => Err(format!("{first}; {}", left(problem))),
        }
    }

    fn set_up(&mut self) -> Result<Vec<ReplySize>, String> {
        let mut sizes = Vec::new();
        for shape in &self.shapes {
            check(self.stop)?;
            for request in &shape.setup {
                self.backend.carry_out(request)?;
            }
            sizes.push(self.backend.carry_out(&shape.request)?);
        }
        Ok(sizes)
    }

    fn rounds(&mut self, sizes: &[ReplySize]) -> Result<Vec<Measured>, String> {
        let held = held_out(self.shapes.len(), self.flags.seed);
        let mut measured: Vec<Measured> = self
            .shapes
            .iter()
            .zip(sizes)
            .zip(held)
            .map(|((shape, size), held_out)| {
                let features: Features = shape.features(size.bytes, size.rows);
                Measured { name: shape.name.clone(), features, rounds_us: Vec::new(), held_out }
            })
            .collect();
        let rounds = ROUNDS_OF_WARM_UP + self.flags.rounds;
        let turn = Duration::from_secs(self.flags.seconds) / (rounds as u32 * self.shapes.len() as u32);
        let mut random = Random::new(self.flags.seed);
        for round in 0..rounds {
            if !self.flags.quiet {
                eprintln!("weir-calibrate: round {} of {rounds}", round + 1);
            }
            // The order is new each time, so that no shape always comes after the same one.
            let mut order: Vec<usize> = (0..self.shapes.len()).collect();
            (1..order.len()).rev().for_each(|at| order.swap(at, random.below(at as u64 + 1) as usize));
            for at in order {
                check(self.stop)?;
                let cost_us = self.turn(at, sizes[at], turn)?;
                if round >= ROUNDS_OF_WARM_UP {
                    measured[at].rounds_us.push(cost_us);
                }
            }
        }
        Ok(measured)
    }

    /// Measures the shape (command in one size) at index `at`: sends its requests for the time `turn`, and returns the
    /// server's time for one request in microseconds, by CPU time or by `INFO commandstats` as the flags say. The error
    /// is a text for the user, also if a reply does not have the size `size`, or if another client uses the command.
    fn turn(&mut self, at: usize, size: ReplySize, turn: Duration) -> Result<f64, String> {
        let shape = &self.shapes[at];
        let fitting = BATCH_BYTES_MAX / shape.request.len().max(size.bytes).max(1);
        let batch = (self.flags.pipeline as usize).min(fitting).max(1);
        let requests = shape.request.repeat(batch);
        // The longer of the two questions comes first, outside the measured CPU time, since it costs the
        // server time too.
        let (calls_before, us_before) = command_bill(self.backend, shape.command)?;
        let cpu_before = cpu_seconds(self.backend)?;
        let end = self.clock.now().monotonic.after(turn);
        let mut sent = 0;
        let mut over = false;
        self.lanes.iter_mut().try_for_each(|lane| lane.send(&requests))?;
        while !over {
            over = self.clock.now().monotonic >= end;
            for lane in &mut self.lanes {
                if lane.replies(batch)? != size {
                    return Err(format!("{}: the reply has changed: is someone else writing?", shape.name));
                }
                sent += batch as u64;
                if !over {
                    lane.send(&requests)?;
                }
            }
        }
        let cpu_after = cpu_seconds(self.backend)?;
        let (calls_after, us_after) = command_bill(self.backend, shape.command)?;
        let calls = calls_after.saturating_sub(calls_before);
        if calls != sent {
            return Err(format!(
                "{}: {sent} were sent and the server has counted {calls}: someone else is using it",
                shape.name
            ));
        }
        let spent_us = match self.flags.cost {
            Cost::Cpu => (cpu_after - cpu_before) * 1e6,
            Cost::Commandstats => us_after.saturating_sub(us_before) as f64,
        };
        Ok(spent_us / sent as f64)
    }

    fn remove(&mut self) -> Result<(), String> {
        let keys: Vec<&str> = self.shapes.iter().flat_map(|shape| &shape.keys).map(String::as_str).collect();
        for keys in keys.chunks(KEYS_PER_REMOVAL) {
            self.backend.carry_out(&encoded(&[&["DEL"], keys].concat()))?;
        }
        Ok(())
    }
}

fn check(stop: &AtomicBool) -> Result<(), String> {
    if stop.load(Ordering::Relaxed) { Err("interrupted".to_owned()) } else { Ok(()) }
}

/// Asks the server for the CPU time that it has used, and returns it in seconds. The error is a text for the
/// user.
fn cpu_seconds(backend: &mut Backend) -> Result<f64, String> {
    let seconds = info::cpu_seconds(&backend.ask_text(&["INFO", "cpu"])?);
    seconds.ok_or_else(|| missing("used_cpu_user and used_cpu_sys"))
}

/// Asks the server how often it has carried out a command, and how many microseconds that took in all, and
/// returns both. The error is a text for the user.
fn command_bill(backend: &mut Backend, command: &str) -> Result<(u64, u64), String> {
    let bill = info::command(&backend.ask_text(&["INFO", "commandstats"])?, command);
    bill.ok_or_else(|| missing(&format!("calls and usec of {command}")))
}

fn missing(what: &str) -> String {
    format!("INFO does not tell {what}; a redis-server or valkey-server is expected")
}
