//! The engine behind connections: takes requests, sends replies. Pure, like the engine.

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

/// A connection's state in the service: the state of its waiting requests, and the effort that it may spend.
#[derive(Debug, Default)]
struct Turns {
    standing: Standing,
    allowance: Allowance,
    reading_paused: bool,
    /// A request that was taken from the bytes received, and is carried out in the connection's next turn.
    aside: Option<Box<Aside>>,
    /// True once the client has ended its sending side. Requests that it has sent are still answered.
    ended: bool,
}

/// Clients of a store, as a driver of their sockets tells of them. Pure: time is an argument, and bytes and actions
/// are polled.
pub trait StoreClients {
    /// Registers a client that has connected.
    fn handle_client_opened(&mut self, now: Now) -> ClientId;
    /// Handles bytes from a client. Every whole request in them is carried out when the client's turn comes.
    fn handle_client_bytes(&mut self, id: ClientId, chunk: &[u8], now: Now);
    /// Handles that a client has ended its sending side: its requests are answered, and then the connection
    /// is closed.
    fn handle_client_end(&mut self, id: ClientId);
    /// Removes a client whose connection is lost.
    fn handle_client_lost(&mut self, id: ClientId);
    /// Takes back a segment of output that was sent, or whose socket is closed.
    fn handle_transmitted(&mut self, id: ClientId, segment: Segment);
    /// Returns the next action to carry out, if any.
    fn poll_action(&mut self) -> Option<Action>;
    /// Returns the next bytes to send, and their connection, if any.
    fn poll_transmit(&mut self) -> Option<(Owner, Segment)>;
}

/// The sockets of a store's clients, while a script keeps the store busy.
pub trait Sockets {
    /// Receives and sends what there is without waiting, and tells `clients` of it instead of the service.
    fn attend(&mut self, clients: &mut dyn StoreClients);
}

/// Connections in front of an engine, as the storage executor drives them.
pub trait StoreService: StoreClients {
    /// The engine behind the connections.
    fn engine(&self) -> &Engine;
    /// Ends a turn: serves connections that wait for theirs, and looks for expired keys when that is due. A script that
    /// runs for long has the sockets attended meanwhile.
    fn handle_turn_end(&mut self, now: Now, sockets: &mut dyn Sockets);
    /// The latest time for the next `handle_turn_end`: at once, if a connection waits for a turn.
    fn poll_deadline(&self) -> Option<Timestamp>;
    /// True if a connection waits for its turn, or a reply is held back, so that the next deadline must be
    /// met exactly.
    fn is_busy(&self) -> bool;
}

/// An engine and its connections.
pub struct Service {
    engine: Engine,
    limits: RequestLimits,
    connections: Connections<Turns>,
    sweeper: Sweeper,
    /// Connections with requests that wait for their turn, each at most once, in order.
    ready: VecDeque<ClientId>,
    turn: u64,
}

impl Service {
    /// Creates a service without connections. A client whose request is larger than `request_bytes_max` is
    /// closed.
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

    /// Writes the engine's replies to calls that waited, and its messages, to the output of their
    /// connections. A subscriber that reads too slowly is closed.
    fn deliver(&mut self) {
        while let Some(delivery) = self.engine.poll_delivery() {
            let Some(id) = self.connections.numbered(delivery.session) else { continue };
            let Some((connection, pool)) = self.connections.get_with_pool(id) else { continue };
            connection.output.append_shared(pool, &delivery.bytes);
            if delivery.ends_wait {
                connection.own.standing = Standing::Ready;
                self.ready.push_back(id);
            } else if connection.output.len() > ENGINE_SUBSCRIBER_BYTES_MAX {
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
            // Nothing may be taken for a client that is not there to receive it.
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
