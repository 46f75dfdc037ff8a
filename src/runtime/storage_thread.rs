//! The embedded engine's executor: the same ring and driver as a shard's, around the engine's service.
//!
//! Shards reach it over socket pairs, by the same forwarding path as any other store. The tool `weir-storage`
//! is the same code with listeners, around a service that may follow a script.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::clock::Clock;
use super::driver::{Application, Connector, Driver, Entrance};
use super::messages::{Mailbox, ToControl};
use super::park::{Parking, SHALLOW_SLEEP};
use crate::protocol::Segment;
use crate::store::{Sockets, StoreClients, StoreService};
use crate::values::time::Now;
use crate::values::{Action, BackendId, Loss, Owner};

/// A message to the executor of the embedded store.
pub(super) enum ToStorage {
    /// The engine's end of a socket pair. A shard, or the thread that asks stores for their `INFO`, uses the
    /// other end as its connection to the store.
    Adopt(OwnedFd),
    /// A request for the engine's statistics, which are posted to this mailbox.
    Report(Mailbox<ToControl>),
    Stop,
}

/// Passes events of the driver's sockets to the store (`StoreClients`), whose clients these sockets belong
/// to, and the store's actions and output to the driver.
struct Served<'a, S: ?Sized>(&'a mut S);

impl<S: StoreClients + ?Sized> Application for Served<'_, S> {
    fn handle_accepted(&mut self, _entrance: Entrance, now: Now) -> Owner {
        Owner::Client(self.0.handle_client_opened(now))
    }

    fn handle_connected(&mut self, _owner: Owner, _now: Now) {}

    fn handle_received(&mut self, owner: Owner, bytes: &[u8], now: Now) -> usize {
        if let Owner::Client(id) = owner {
            self.0.handle_client_bytes(id, bytes, now);
        }
        0
    }

    fn handle_end(&mut self, owner: Owner, _now: Now) {
        if let Owner::Client(id) = owner {
            self.0.handle_client_end(id);
        }
    }

    fn handle_lost(&mut self, owner: Owner, _loss: Loss, _now: Now) {
        if let Owner::Client(id) = owner {
            self.0.handle_client_lost(id);
        }
    }

    fn handle_transmitted(&mut self, owner: Owner, segment: Segment, _now: Now) {
        if let Owner::Client(id) = owner {
            self.0.handle_transmitted(id, segment);
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.0.poll_action()
    }

    fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        self.0.poll_transmit()
    }
}

/// A connector that fails to open any connection, as the embedded engine connects to no backend.
struct Nowhere;

impl Connector for Nowhere {
    fn open(&self, _backend: BackendId) -> io::Result<(OwnedFd, Option<socket2::SockAddr>)> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The sockets of the store's clients, and the thread's messages. The store calls on them while it runs a long
/// script, so that clients are served (with errors that say that it is busy, for instance) meanwhile.
struct World<'a> {
    driver: &'a mut Driver,
    letters: &'a Receiver<ToStorage>,
    clock: &'a Clock,
    /// Messages that came during a script and wait until the store is free: requests for statistics and the
    /// order to stop, a few in a second.
    kept: Vec<ToStorage>,
}

impl Sockets for World<'_> {
    fn attend(&mut self, clients: &mut dyn StoreClients) {
        let now = self.clock.now();
        let mut served = Served(clients);
        while let Ok(letter) = self.letters.try_recv() {
            match letter {
                ToStorage::Adopt(socket) => self.driver.adopt(socket, Entrance::Resp, &mut served, now),
                other => self.kept.push(other),
            }
        }
        self.driver.handle_completions(&mut served, now);
        self.driver.carry_out(&mut served, &Nowhere, now);
        // An error occurs again in the next turn, which ends the thread.
        let _ = self.driver.ring.submit_and_wait(Some(Duration::ZERO));
    }
}

/// Serves the clients of the store `service` until a `ToStorage::Stop` arrives.
pub(super) async fn serve(
    mut service: impl StoreService,
    mut driver: Driver,
    letters: Receiver<ToStorage>,
    clock: Clock,
) -> io::Result<()> {
    let mut kept = Vec::new();
    let mut last_work = clock.now().monotonic;
    let mut parking = Parking::new(driver.ring.wait_handle())?;
    loop {
        let now = clock.now();
        let mut work = 0;
        for letter in std::mem::take(&mut kept).into_iter().chain(letters.try_iter()) {
            work += 1;
            match letter {
                ToStorage::Adopt(socket) => {
                    driver.adopt(socket, Entrance::Resp, &mut Served(&mut service), now);
                }
                ToStorage::Report(control) => {
                    control.post(ToControl::Engine(service.engine().statistics()));
                }
                ToStorage::Stop => {
                    // An accept under way would keep the port in use until the kernel has torn the ring down,
                    // which may be after the exit of the process: the next process could not listen.
                    driver.stop_listening();
                    return driver.ring.submit_and_wait(Some(SHALLOW_SLEEP));
                }
            }
        }
        work += driver.handle_completions(&mut Served(&mut service), now);
        let mut world = World { driver: &mut driver, letters: &letters, clock: &clock, kept: Vec::new() };
        service.handle_turn_end(now, &mut world);
        kept = world.kept;
        driver.carry_out(&mut Served(&mut service), &Nowhere, now);
        driver.ring.submit()?;
        if work > 0 || !kept.is_empty() || service.is_busy() {
            last_work = now.monotonic;
        }
        if work > 0 || !kept.is_empty() || driver.ring.has_completions() {
            continue;
        }
        if now.monotonic.since(last_work) < SHALLOW_SLEEP {
            let pause = service.poll_deadline().map_or(SHALLOW_SLEEP, |at| at.since(now.monotonic));
            driver.ring.submit_and_wait(Some(pause.min(SHALLOW_SLEEP)))?;
            continue;
        }
        if let Some(at) = service.poll_deadline() {
            driver.wake_at(at, now);
            driver.ring.submit()?;
        }
        if driver.ring.start_waiting() {
            if letters.is_empty() {
                parking.sleep().await;
            }
            driver.ring.stop_waiting();
        }
    }
}
