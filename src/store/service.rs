//! The service of the embedded store: an engine and the connections to it. Takes bytes, gives bytes, and
//! never waits; time is an argument.

mod busy;
mod turns;

use std::collections::VecDeque;

use super::{Connections, Engine, Sweeper};
use crate::protocol::{RequestLimits, Segment};
use crate::values::limits::ENGINE_SUBSCRIBER_BYTES_MAX;
use crate::values::time::Now;
use crate::values::{Action, ClientId, Owner, Timestamp};
use busy::Aside;
use turns::{Allowance, Standing};

/// The state that the service in front of the engine keeps about a connection: whether requests wait and for
/// what, and the effort (steps of work) that the connection may spend.
#[derive(Debug, Default)]
struct Turns {
    standing: Standing,
    allowance: Allowance,
    reading_paused: bool,
    /// A request that may run a script: it was copied from the received bytes, and is carried out in the
    /// connection's next turn. `None` if no such request waits.
    aside: Option<Box<Aside>>,
    /// True once the client has closed its sending side. Requests that it has sent before are still answered.
    ended: bool,
}

/// The clients of a store, as the driver (the code that does the socket I/O) uses them. The driver passes
/// time and received bytes in, and polls actions and output.
pub trait StoreClients {
    /// Registers a client that has connected, and returns its id.
    fn handle_client_opened(&mut self, now: Now) -> ClientId;
    /// Handles bytes (`chunk`) from a client. Each complete request in them is carried out when it is the
    /// client's turn.
    fn handle_client_bytes(&mut self, id: ClientId, chunk: &[u8], now: Now);
    /// Ends a client that has closed its sending side: its requests so far are answered, then the connection
    /// is closed. A connection that waits for the reply to a blocking call is closed at once.
    fn handle_client_end(&mut self, id: ClientId);
    /// Removes a client whose connection is lost.
    fn handle_client_lost(&mut self, id: ClientId);
    /// Takes back a segment (a part of a connection's output), after the driver has sent it or its socket was
    /// closed.
    fn handle_transmitted(&mut self, id: ClientId, segment: Segment);
    /// Returns the next action for the driver to carry out; `None` if there is none.
    fn poll_action(&mut self) -> Option<Action>;
    /// Returns the next bytes to send and their connection; `None` if there are none.
    fn poll_transmit(&mut self) -> Option<(Owner, Segment)>;
}

/// The sockets of a store's clients, which the driver (the code that does the socket I/O) can serve while the
/// engine runs a long script.
pub trait Sockets {
    /// Receives and sends whatever is possible on the sockets without waiting, and reports it to `clients`
    /// instead of the service, which is busy with a script.
    fn attend(&mut self, clients: &mut dyn StoreClients);
}

/// A store with its connections, as the executor (the loop of a thread that does the socket I/O) drives it.
pub trait StoreService: StoreClients {
    /// Returns the engine that carries out the connections' requests.
    fn engine(&self) -> &Engine;
    /// Ends a turn of the executor's loop, in which it has passed in what its sockets received: carries out
    /// requests of connections that wait for their turn, removes expired keys if that is due, and ends
    /// blocking calls whose timeout has passed. A script that runs for a long time calls `sockets` meanwhile.
    fn handle_turn_end(&mut self, now: Now, sockets: &mut dyn Sockets);
    /// Returns the latest time for the next `handle_turn_end`: a time in the past if a connection waits for
    /// its turn; `None` if nothing is due.
    fn poll_deadline(&self) -> Option<Timestamp>;
    /// True if requests of a connection wait for its turn, or a reply is held back, so that the next deadline
    /// must be met exactly.
    fn is_busy(&self) -> bool;
}

/// An engine and its connections: the embedded store without sockets.
pub struct Service {
    engine: Engine,
    limits: RequestLimits,
    connections: Connections<Turns>,
    sweeper: Sweeper,
    /// The connections with requests that wait for their turn, each at most once, in the order of their
    /// turns.
    ready: VecDeque<ClientId>,
    turn: u64,
}

impl Service {
    /// Creates a service without connections. A client that sends a request of more than `request_bytes_max`
    /// bytes gets an error and is disconnected.
    pub fn new(engine: Engine, request_bytes_max: usize) -> Self {
        Self {
            engine,
            limits: RequestLimits::trusted(request_bytes_max),
            connections: Connections::default(),
            sweeper: Sweeper::default(),
            ready: VecDeque::new(),
            turn: 1,
        }
    }

    /// Moves replies to blocking calls that have waited, and messages (of channels, about changed keys), from
    /// the engine to the output of their connections. Closes a connection if more than 32 MiB of messages
    /// wait behind the last reply in its output; that reply and the bytes before it do not count.
    fn deliver(&mut self) {
        while let Some(delivery) = self.engine.poll_delivery() {
            let Some(id) = self.connections.numbered(delivery.session) else { continue };
            let Some((connection, pool)) = self.connections.get_with_pool(id) else { continue };
            connection.output.append_shared(pool, &delivery.bytes);
            if delivery.ends_wait {
                connection.note_reply();
                connection.own.standing = Standing::Ready;
                self.ready.push_back(id);
            } else if connection.message_bytes() > ENGINE_SUBSCRIBER_BYTES_MAX {
                self.connections.close(&mut self.engine, id);
                continue;
            }
            self.after_output(id);
        }
    }

    fn after_output(&mut self, id: ClientId) {
        let Some(connection) = self.connections.get(id) else { return };
        if connection.ending && connection.is_sent() {
            self.connections.close(&mut self.engine, id);
        } else {
            self.connections.list(id);
        }
    }
}

impl StoreClients for Service {
    fn handle_client_opened(&mut self, _now: Now) -> ClientId {
        self.connections.open(Turns::default())
    }

    fn handle_client_bytes(&mut self, id: ClientId, chunk: &[u8], now: Now) {
        self.take_requests(id, chunk, now);
    }

    fn handle_client_end(&mut self, id: ClientId) {
        let Some(connection) = self.connections.get(id) else { return };
        connection.own.ended = true;
        if connection.own.standing == Standing::Waiting {
            // No element may be popped for a client that has gone.
            self.connections.close(&mut self.engine, id);
            return;
        }
        connection.ending |= connection.own.standing == Standing::Idle;
        self.after_output(id);
    }

    fn handle_client_lost(&mut self, id: ClientId) {
        self.connections.forget(&mut self.engine, id);
    }

    fn handle_transmitted(&mut self, id: ClientId, segment: Segment) {
        if self.connections.handle_transmitted(id, segment) {
            self.unblock(id);
            self.after_output(id);
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.connections.poll_action()
    }

    fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        self.connections.poll_transmit()
    }
}

impl StoreService for Service {
    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn handle_turn_end(&mut self, now: Now, sockets: &mut dyn Sockets) {
        self.serve_ready(now, sockets);
        self.sweeper.handle_turn_end(&mut self.engine, now);
        self.engine.expire_waits(now);
        self.deliver();
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        if !self.ready.is_empty() {
            return Some(Timestamp::ZERO);
        }
        Timestamp::earliest([self.sweeper.deadline(), self.engine.waits_until()])
    }

    fn is_busy(&self) -> bool {
        !self.ready.is_empty()
    }
}

#[cfg(all(test, feature = "scripts"))]
mod busy_tests;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod tests;
