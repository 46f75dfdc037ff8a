//! One thread of the load generator: the same ring and driver as a shard's, around one part of a run.
//!
//! It has no executor around it: there is nothing else to do while it waits for the ring, and waiting there is the most
//! exact clock there is.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::Sender;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::clock::Clock;
use super::driver::{Application, Connector, Driver, Entrance};
use super::ring::Ring;
use crate::load::statistics::Interval;
use crate::load::{Plan, Run};
use crate::protocol::Segment;
use crate::values::time::Now;
use crate::values::{Action, BackendId, ClientId, Loss, Owner, Timestamp};

/// How long a thread may fail to notice that the others have started or that all is over.
const NOTICE_EVERY: Duration = Duration::from_millis(5);

/// What the threads of one run share.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// When the load starts, on the common clock; 0 before that is known.
    pub start_nanos: AtomicU64,
    pub stop: AtomicBool,
}

/// What a thread tells.
pub(super) enum Told {
    /// Its connections are ready, or will not be: how many are, by group.
    Ready {
        connections: Vec<usize>,
        complaints: Vec<String>,
    },
    Second(Interval),
    Ended {
        complaints: Vec<String>,
    },
}

struct Generating(Run);

impl Application for Generating {
    fn handle_accepted(&mut self, _entrance: Entrance, _now: Now) -> Owner {
        // Nothing listens, so nothing is accepted.
        Owner::Client(ClientId { index: 0, generation: 0 })
    }

    fn handle_connected(&mut self, owner: Owner, _now: Now) {
        if let Owner::Link(id, generation) = owner {
            self.0.handle_connected(id, generation);
        }
    }

    fn handle_received(&mut self, owner: Owner, bytes: &[u8], now: Now) -> usize {
        if let Owner::Link(id, generation) = owner {
            self.0.handle_bytes(id, generation, bytes, now.monotonic);
        }
        0
    }

    fn handle_end(&mut self, owner: Owner, now: Now) {
        if let Owner::Link(id, generation) = owner {
            self.0.handle_end(id, generation, now.monotonic);
        }
    }

    fn note_unreachable(&mut self, owner: Owner, error: &io::Error) {
        if let Owner::Link(id, generation) = owner {
            self.0.note_unreachable(id, generation, &error.to_string());
        }
    }

    fn handle_lost(&mut self, owner: Owner, _loss: Loss, now: Now) {
        if let Owner::Link(id, generation) = owner {
            self.0.handle_lost(id, generation, now.monotonic);
        }
    }

    fn handle_transmitted(&mut self, owner: Owner, segment: Segment, _now: Now) {
        if let Owner::Link(id, generation) = owner {
            self.0.handle_transmitted(id, generation, segment);
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.0.poll_action()
    }

    fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        self.0.poll_transmit()
    }
}

/// Where the load goes.
pub(super) struct Targets(pub Vec<SocketAddr>);

impl Connector for Targets {
    fn open(&self, backend: BackendId) -> io::Result<(OwnedFd, Option<SockAddr>)> {
        let address = self.0[usize::from(backend.0)];
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        Ok((socket.into(), Some(address.into())))
    }
}

/// Carries one thread's part out.
pub(super) fn generate(
    plan: Arc<Plan>,
    thread: usize,
    targets: &Targets,
    gate: &Gate,
    clock: Clock,
    told: &Sender<(usize, Told)>,
) -> io::Result<()> {
    // Nobody rings: the thread looks at the gate often enough. The other end must stay open all the same.
    let (bell, _rope) = UnixStream::pair()?;
    let mut driver = Driver::new(Ring::new(bell.into())?, Vec::new());
    let names = targets.0.iter().map(SocketAddr::to_string).collect();
    let run = Run::new(plan, thread, names, clock.now().monotonic);
    let mut generating = Generating(run);
    let mut ready_told = false;
    let mut started = false;
    while !generating.0.is_done() {
        let now = clock.now();
        driver.handle_completions(&mut generating, now);
        if gate.stop.load(Ordering::Relaxed) {
            generating.0.handle_stop(now.monotonic);
        }
        if generating.0.is_waiting() && !ready_told {
            ready_told = true;
            let (connections, complaints) =
                (generating.0.ready().to_vec(), generating.0.complaints().to_vec());
            let _ = told.send((thread, Told::Ready { connections, complaints }));
        }
        let start_nanos = gate.start_nanos.load(Ordering::Relaxed);
        if !started && start_nanos > 0 && generating.0.is_waiting() {
            started = true;
            generating.0.handle_start(Timestamp::from_nanos(start_nanos));
        }
        generating.0.handle_turn(now.monotonic);
        while let Some(interval) = generating.0.poll_interval() {
            let _ = told.send((thread, Told::Second(interval)));
        }
        driver.carry_out(&mut generating, targets, now);
        let pause = generating.0.poll_deadline().since(clock.now().monotonic).min(NOTICE_EVERY);
        if pause.is_zero() {
            driver.ring.submit()?;
        } else {
            driver.ring.submit_and_wait(Some(pause))?;
        }
    }
    let complaints = generating.0.complaints().to_vec();
    let _ = told.send((thread, Told::Ended { complaints }));
    Ok(())
}
