//! A thread of the load generator: carries out one part of a run with an `io_uring` of its own.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::Sender;
use weir::protocol::Segment;
use weir::runtime::{Clock, Dialer, Dials};
use weir::values::{Action, ConnectionId, Owner, Timestamp};

use super::statistics::Interval;
use super::{Plan, Run};

/// The longest time that a thread sleeps before it checks whether the load has started or the run is to stop.
const NOTICE_EVERY: Duration = Duration::from_millis(5);

/// The start time and the stop flag that all threads of a run share.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// The time at which the load starts, in nanoseconds of the clock that all threads share; 0 before it is
    /// known.
    pub start_nanos: AtomicU64,
    pub stop: AtomicBool,
}

/// A message of a load thread to the main thread.
pub(super) enum Told {
    /// The thread is ready for the load: its connections are open or given up, and the set-up is done.
    /// `connections` is the number of ready ones of each group, `complaints` are problems in words.
    Ready {
        connections: Vec<usize>,
        complaints: Vec<String>,
    },
    Second(Interval),
    Ended {
        complaints: Vec<String>,
    },
}

impl Dials for Run {
    fn handle_connected(&mut self, id: ConnectionId, generation: u32) {
        self.handle_connected(id, generation);
    }

    fn handle_bytes(&mut self, id: ConnectionId, generation: u32, bytes: &[u8], now: Timestamp) {
        self.handle_bytes(id, generation, bytes, now);
    }

    fn handle_end(&mut self, id: ConnectionId, generation: u32, now: Timestamp) {
        self.handle_end(id, generation, now);
    }

    fn note_unreachable(&mut self, id: ConnectionId, generation: u32, error: &str) {
        self.note_unreachable(id, generation, error);
    }

    fn handle_lost(&mut self, id: ConnectionId, generation: u32, now: Timestamp) {
        self.handle_lost(id, generation, now);
    }

    fn handle_transmitted(&mut self, id: ConnectionId, generation: u32, segment: Segment) {
        self.handle_transmitted(id, generation, segment);
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.poll_action()
    }

    fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        self.poll_transmit()
    }
}

/// Stops all threads of a run when it is dropped on a thread that has failed or panics, because the others would
/// wait for that thread without end.
struct StopUnlessEnded<'gate> {
    gate: &'gate Gate,
    ended: bool,
}

impl Drop for StopUnlessEnded<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.gate.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Carries out the part of a run that belongs to the thread with index `thread`, until this part is done or
/// the run is stopped. Sends events on `told`, with that index. A failure of the `io_uring`, which is
/// returned, or a panic stops the other threads too.
pub(super) fn generate(
    plan: Arc<Plan>,
    thread: usize,
    targets: Vec<SocketAddr>,
    gate: &Gate,
    clock: Clock,
    told: &Sender<(usize, Told)>,
) -> io::Result<()> {
    let mut guard = StopUnlessEnded { gate, ended: false };
    let names = targets.iter().map(SocketAddr::to_string).collect();
    let mut dialer = Dialer::new(targets)?;
    let mut run = Run::new(plan, thread, names, clock.now().monotonic);
    let mut ready_told = false;
    let mut started = false;
    while !run.is_done() {
        let now = clock.now();
        dialer.handle_completions(&mut run, now);
        if gate.stop.load(Ordering::Relaxed) {
            run.handle_stop(now.monotonic);
        }
        if run.is_waiting() && !ready_told {
            ready_told = true;
            let (connections, complaints) = (run.ready().to_vec(), run.complaints().to_vec());
            let _ = told.send((thread, Told::Ready { connections, complaints }));
        }
        let start_nanos = gate.start_nanos.load(Ordering::Relaxed);
        if !started && start_nanos > 0 && run.is_waiting() {
            started = true;
            run.handle_start(Timestamp::from_nanos(start_nanos));
        }
        run.handle_turn(now.monotonic);
        while let Some(interval) = run.poll_interval() {
            let _ = told.send((thread, Told::Second(interval)));
        }
        dialer.carry_out(&mut run, now);
        let pause = run.poll_deadline().since(clock.now().monotonic).min(NOTICE_EVERY);
        dialer.submit_and_wait(pause)?;
    }
    let complaints = run.complaints().to_vec();
    let _ = told.send((thread, Told::Ended { complaints }));
    guard.ended = true;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_thread_that_fails_or_panics_stops_the_others() {
        let gate = Gate::default();
        drop(StopUnlessEnded { gate: &gate, ended: true });
        assert!(!gate.stop.load(Ordering::Relaxed));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guard = StopUnlessEnded { gate: &gate, ended: false };
            std::panic::resume_unwind(Box::new("a panic"));
        }));
        assert!(panicked.is_err() && gate.stop.load(Ordering::Relaxed));
    }
}
