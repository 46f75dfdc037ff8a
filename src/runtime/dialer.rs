//! Connections that a tool's thread opens itself, outside of a shard: the same ring and driver as a shard's,
//! without an executor around them. The thread has nothing else to do, and waiting in the ring is the most
//! exact timer there is.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::driver::{Application, Connector, Driver, Entrance};
use super::ring::Ring;
use crate::protocol::Segment;
use crate::values::time::Now;
use crate::values::{Action, BackendId, ClientId, ConnectionId, Loss, Owner, Timestamp};

/// The deciding code of a tool that opens connections and accepts none. It names each connection by an
/// identifier and a generation of its choice, as [`Owner::Link`].
pub trait Dials {
    /// Handles that a connection that the tool had asked for is open. `id` and `generation` are those that
    /// the tool gave it; a connection that is opened again under the same `id` has another `generation`.
    fn handle_connected(&mut self, id: ConnectionId, generation: u32);
    /// Takes bytes that a connection has received. `generation` tells it from earlier connections with the
    /// same `id`.
    fn handle_bytes(&mut self, id: ConnectionId, generation: u32, bytes: &[u8], now: Timestamp);
    /// Handles that the peer of a connection (`id` and `generation`) has ended its sending side.
    fn handle_end(&mut self, id: ConnectionId, generation: u32, now: Timestamp);
    /// Handles that a connection (`id` and `generation`) could not be opened, with the reason in the operating
    /// system's words; `handle_lost` follows.
    fn note_unreachable(&mut self, id: ConnectionId, generation: u32, error: &str);
    /// Handles that a connection failed, or could not be opened. `generation` tells it from earlier
    /// connections with the same `id`.
    fn handle_lost(&mut self, id: ConnectionId, generation: u32, now: Timestamp);
    /// Takes back a segment of bytes that was sent, or whose socket is closed. `id` and `generation` name the
    /// connection.
    fn handle_transmitted(&mut self, id: ConnectionId, generation: u32, segment: Segment);
    /// Returns the next action to carry out (connect, close and so on), if any. The action names a target by
    /// its index in the list given to [`Dialer::new`].
    fn poll_action(&mut self) -> Option<Action>;
    /// Returns the next bytes to send, and the connection that they are for, if any.
    fn poll_transmit(&mut self) -> Option<(Owner, Segment)>;
}

/// The `io_uring` of one thread, with the connections that the thread has opened.
pub struct Dialer {
    driver: Driver,
    targets: Targets,
    /// The other end of the ring's doorbell (socket by which a thread that sleeps in the ring is woken).
    /// Nothing is written to it; it is kept open so that the ring does not receive an end of stream on its own
    /// end.
    _rope: UnixStream,
}

impl Dialer {
    /// Creates a ring without connections. Connections will be opened to these targets, which the tool names
    /// by index.
    pub fn new(targets: Vec<SocketAddr>) -> io::Result<Self> {
        let (bell, rope) = UnixStream::pair()?;
        let driver = Driver::new(Ring::new(bell.into())?, Vec::new());
        Ok(Self { driver, targets: Targets(targets), _rope: rope })
    }

    /// Passes everything that has completed in the ring since the last call to the `handle_` functions of
    /// `application`, the tool's deciding code.
    pub fn handle_completions(&mut self, application: &mut impl Dials, now: Now) {
        self.driver.handle_completions(&mut Dialing(application), now);
    }

    /// Starts every action and every send that `application`, the tool's deciding code, returns, as
    /// operations of the ring.
    pub fn carry_out(&mut self, application: &mut impl Dials, now: Now) {
        self.driver.carry_out(&mut Dialing(application), &self.targets, now);
    }

    /// Submits queued operations to the kernel, and waits until one of the ring's operations completes, for at
    /// most `pause_max`. With a pause of zero it returns at once. Only an error of the kernel that lasts is
    /// returned.
    pub fn submit_and_wait(&mut self, pause_max: Duration) -> io::Result<()> {
        if pause_max.is_zero() {
            self.driver.ring.submit()
        } else {
            self.driver.ring.submit_and_wait(Some(pause_max))
        }
    }
}

struct Dialing<'a, A>(&'a mut A);

impl<A: Dials> Application for Dialing<'_, A> {
    fn handle_accepted(&mut self, _entrance: Entrance, _now: Now) -> Owner {
        // Nothing listens here, so nothing is accepted.
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

    fn note_unreachable(&mut self, owner: Owner, error: &io::Error, _now: Now) {
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

struct Targets(Vec<SocketAddr>);

impl Connector for Targets {
    fn open(&self, backend: BackendId) -> io::Result<(OwnedFd, Option<SockAddr>)> {
        let address = self.0[usize::from(backend.0)];
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        Ok((socket.into(), Some(address.into())))
    }
}
