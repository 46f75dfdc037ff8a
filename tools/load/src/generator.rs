//! A run of the load generator: starts its threads together, adds up their reports, and ends them on a
//! signal.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, unbounded};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGINT, SIGTERM};
use weir::runtime::{Clock, raise_limits, ring_advice};

use super::Plan;
use super::statistics::{Interval, Joiner};
use super::thread::{Gate, Told, generate};

const SIGNALS_EVERY: Duration = Duration::from_millis(20);
/// The time between the decision to start the load and its start, so that no thread starts late, and the
/// caller can read the target's metrics as they were before the load.
const RUN_UP: Duration = Duration::from_millis(200);
const FILES_SPARE: u64 = 128;
/// Open files of each thread besides its connections: its `io_uring`, the eventfd of that, and the two ends of the
/// socket pair by which it is woken.
const FILES_PER_THREAD: u64 = 4;

/// An event of a run in progress, which [`run_load`] passes to its caller.
#[derive(Debug)]
pub enum LoadEvent {
    /// All threads are ready; the load starts 200 ms after the caller has handled this event.
    Started {
        /// The number of connections ready for requests.
        connections: usize,
    },
    /// A second of the run is over, and all threads have reported their counts of it.
    Second(Interval),
}

/// Facts about a run besides its counts.
#[derive(Clone, Debug)]
pub struct LoadSummary {
    /// The number of connections that were ready for requests at the start of the load.
    pub connections: usize,
    /// True if the load started; false if a group had no ready connection, or the run was ended before.
    pub started: bool,
    /// The time at which the load started, in milliseconds since 1970; 0 if it did not start.
    pub start_unix_ms: u64,
    /// The time from the start of the load to the end of the last thread; 0 if it did not start.
    pub took: Duration,
    /// User and system CPU time that the process used from start to end of the load.
    pub cpu: Duration,
    /// True if SIGINT or SIGTERM ended the run early.
    pub interrupted: bool,
    /// Problems of the run, in words for people, each once.
    pub complaints: Vec<String>,
}

/// Starts a stopwatch: a function that returns the time since this call.
pub fn stopwatch() -> impl Fn() -> Duration {
    let clock = Clock::start();
    move || Duration::from_nanos(clock.now().monotonic.as_nanos())
}

/// Carries out a plan of load against `targets`, over which the connections are spread evenly, and passes
/// events to `watch`. Returns facts about the run when the plan is done; SIGINT or SIGTERM ends it early,
/// and a second signal ends the process at once. The error is a text for the user.
pub fn run_load(
    plan: Plan,
    targets: &[SocketAddr],
    mut watch: impl FnMut(LoadEvent),
) -> Result<LoadSummary, String> {
    let connections: usize = plan.groups.iter().map(|group| group.connections).sum();
    let (threads, groups) = (plan.threads, plan.groups.len());
    let files = connections as u64 + threads as u64 * FILES_PER_THREAD + FILES_SPARE;
    let warning = raise_limits(files, "connections and threads")?;
    let clock = Clock::start();
    let (plan, gate) = (Arc::new(plan), Arc::new(Gate::default()));
    let interrupted = signal_flag()?;
    let (teller, hearer) = unbounded();
    let mut handles = Vec::new();
    for thread in 0..threads {
        let (plan, gate, teller) = (Arc::clone(&plan), Arc::clone(&gate), teller.clone());
        let targets = targets.to_vec();
        let handle = std::thread::Builder::new()
            .name(format!("weir-load-{thread}"))
            .spawn(move || generate(plan, thread, targets, &gate, clock, &teller))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        handles.push(handle);
    }
    drop(teller);
    let mut joiner = Joiner::new(threads, groups);
    let mut summary = LoadSummary {
        connections: 0,
        started: false,
        start_unix_ms: 0,
        took: Duration::ZERO,
        cpu: Duration::ZERO,
        interrupted: false,
        complaints: Vec::from_iter(warning),
    };
    let mut ready = 0;
    let mut by_group = vec![0; groups];
    let mut started = None;
    loop {
        match hearer.recv_timeout(SIGNALS_EVERY) {
            Ok((_, Told::Ready { connections, complaints })) => {
                ready += 1;
                by_group.iter_mut().zip(connections).for_each(|(sum, more)| *sum += more);
                summary.connections = by_group.iter().sum();
                note(&mut summary.complaints, complaints);
                if ready == threads {
                    note(&mut summary.complaints, missing(&plan, &by_group));
                }
                if ready == threads && by_group.contains(&0) {
                    gate.stop.store(true, Ordering::Relaxed);
                } else if ready == threads {
                    summary.started = true;
                    watch(LoadEvent::Started { connections: summary.connections });
                    let now = clock.now();
                    let start = now.monotonic.after(RUN_UP);
                    summary.start_unix_ms = now.unix_ms + RUN_UP.as_millis() as u64;
                    started = Some((start, cpu_time()));
                    gate.start_nanos.store(start.as_nanos(), Ordering::Relaxed);
                }
            }
            Ok((thread, Told::Second(interval))) => joiner.handle(thread, &interval),
            Ok((thread, Told::Ended { complaints })) => {
                joiner.handle_end(thread);
                note(&mut summary.complaints, complaints);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        while let Some(interval) = joiner.poll() {
            watch(LoadEvent::Second(interval));
        }
        if interrupted.load(Ordering::Relaxed) {
            summary.interrupted = true;
            gate.stop.store(true, Ordering::Relaxed);
        }
    }
    if let Some((start, cpu)) = started {
        summary.took = clock.now().monotonic.since(start);
        summary.cpu = cpu_time().saturating_sub(cpu);
    }
    for handle in handles {
        let name = handle.thread().name().unwrap_or_default().to_owned();
        let ended = handle.join().map_err(|_| format!("thread {name} panicked"))?;
        ended.map_err(|error| format!("thread {name} failed: {}", ring_advice(&error)))?;
    }
    Ok(summary)
}

/// Returns a message for each group of clients with fewer ready connections (`ready`, by group) than
/// planned.
fn missing(plan: &Plan, ready: &[usize]) -> Vec<String> {
    let short = plan.groups.iter().zip(ready).filter(|(group, ready)| **ready < group.connections);
    short
        .map(|(group, ready)| {
            format!("group '{}': {ready} of {} connections were ready", group.name, group.connections)
        })
        .collect()
}

fn note(complaints: &mut Vec<String>, told: Vec<String>) {
    for complaint in told {
        if !complaints.contains(&complaint) {
            complaints.push(complaint);
        }
    }
}

/// Returns a flag that the first SIGINT or SIGTERM sets; a second signal ends the process.
fn signal_flag() -> Result<Arc<AtomicBool>, String> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(|error| format!("cannot listen to signals: {error}"))?;
    }
    Ok(flag)
}

/// Returns the user and system CPU time that the process has used so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
