//! The engine behind connections: takes requests, sends replies. Pure, like the engine.

mod turns;

use std::collections::VecDeque;

use slab::Slab;

use super::{Engine, Session, Sweeper};
use crate::protocol::{BufferPool, Output, RequestDecoder, RequestLimits, Segment};
use crate::values::time::Now;
use crate::values::{Action, ClientId, Owner, Timestamp};
use turns::{Allowance, Standing};

const SPARE_BUFFERS_MAX: usize = 256;

#[derive(Debug)]
struct Connection {
    generation: u32,
    session: Session,
    decoder: RequestDecoder,
    output: Output,
    sending: bool,
    listed: bool,
    standing: Standing,
    allowance: Allowance,
    reading_paused: bool,
    /// True once the client sends no more. Requests that it has sent are still answered.
    ended: bool,
    /// True if the connection is to be closed once everything was sent.
    ending: bool,
}

/// Connections in front of an engine, as its executor drives them. Pure: time is an argument, and bytes and
/// actions are polled.
pub trait StoreService {
    /// The engine behind the connections.
    fn engine(&self) -> &Engine;
    /// Registers a client that has connected.
    fn handle_client_opened(&mut self, now: Now) -> ClientId;
    /// Takes bytes from a client. Every whole request in them is carried out when it is the client's turn.
    fn handle_client_bytes(&mut self, id: ClientId, chunk: &[u8], now: Now);
    /// Notes that a client sends no more: its requests are answered, and then the connection is closed.
    fn handle_client_end(&mut self, id: ClientId);
    /// Forgets a client whose connection is gone.
    fn handle_client_lost(&mut self, id: ClientId);
    /// Takes a segment back that was sent, or whose socket is closed.
    fn handle_transmitted(&mut self, id: ClientId, segment: Segment);
    /// Ends a turn: serves connections that wait for theirs, and looks for expired keys when that is due.
    fn handle_turn_end(&mut self, now: Now);
    /// The latest time for the next `handle_turn_end`: at once, if a connection waits for a turn.
    fn poll_deadline(&self) -> Option<Timestamp>;
    /// True if a connection waits for a turn, or a reply is held back, so that the next deadline must be met
    /// closely.
    fn is_busy(&self) -> bool;
    /// Returns the next action to carry out, if any.
    fn poll_action(&mut self) -> Option<Action>;
    /// Returns the next bytes to send, and their connection, if any.
    fn poll_transmit(&mut self) -> Option<(Owner, Segment)>;
}

/// An engine and its connections.
pub struct Service {
    engine: Engine,
    limits: RequestLimits,
    connections: Slab<Connection>,
    opened: u32,
    pool: BufferPool,
    to_send: VecDeque<ClientId>,
    actions: VecDeque<Action>,
    sweeper: Sweeper,
    /// Connections whose requests wait for their turn, each at most once.
    ready: VecDeque<ClientId>,
    turn: u64,
}

impl Service {
    /// A service without connections.
    pub fn new(engine: Engine, request_bytes_max: usize) -> Self {
        Self {
            engine,
            limits: RequestLimits::trusted(request_bytes_max),
            connections: Slab::new(),
            opened: 0,
            pool: BufferPool::new(SPARE_BUFFERS_MAX),
            to_send: VecDeque::new(),
            actions: VecDeque::new(),
            sweeper: Sweeper::default(),
            ready: VecDeque::new(),
            turn: 1,
        }
    }

    /// Drops the connections that CLIENT KILL named, with all their unanswered requests.
    pub(super) fn drop_killed(&mut self) {
        while let Some(killed) = self.engine.poll_killed() {
            let mut open = self.connections.iter();
            let found = open.find(|(_, connection)| u64::from(connection.generation) == killed);
            if let Some((index, connection)) = found {
                let id = ClientId { index: index as u32, generation: connection.generation };
                self.handle_client_lost(id);
                self.actions.push_back(Action::Close(Owner::Client(id)));
            }
        }
    }

    fn after_output(&mut self, id: ClientId) {
        let Some(connection) = find(&mut self.connections, id) else { return };
        if connection.ending && connection.output.is_empty() && !connection.sending {
            self.handle_client_lost(id);
            self.actions.push_back(Action::Close(Owner::Client(id)));
        } else if !connection.output.is_empty() && !connection.sending && !connection.listed {
            connection.listed = true;
            self.to_send.push_back(id);
        }
    }
}

impl StoreService for Service {
    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn handle_client_opened(&mut self, _now: Now) -> ClientId {
        self.opened = self.opened.wrapping_add(1);
        let generation = self.opened;
        let index = self.connections.insert(Connection {
            generation,
            session: Session::new(u64::from(generation)),
            decoder: RequestDecoder::default(),
            output: Output::default(),
            sending: false,
            listed: false,
            standing: Standing::Idle,
            allowance: Allowance::default(),
            reading_paused: false,
            ended: false,
            ending: false,
        });
        ClientId { index: index as u32, generation }
    }

    fn handle_client_bytes(&mut self, id: ClientId, chunk: &[u8], now: Now) {
        self.take_requests(id, chunk, now);
    }

    fn handle_client_end(&mut self, id: ClientId) {
        let Some(connection) = find(&mut self.connections, id) else { return };
        connection.ended = true;
        connection.ending |= connection.standing == Standing::Idle;
        self.after_output(id);
    }

    fn handle_client_lost(&mut self, id: ClientId) {
        if find(&mut self.connections, id).is_some() {
            let mut connection = self.connections.remove(id.index as usize);
            connection.output.clear(&mut self.pool);
        }
    }

    fn handle_transmitted(&mut self, id: ClientId, segment: Segment) {
        self.pool.give_segment(segment);
        if let Some(connection) = find(&mut self.connections, id) {
            connection.sending = false;
            self.unblock(id);
            self.after_output(id);
        }
    }

    fn handle_turn_end(&mut self, now: Now) {
        self.serve_ready(now);
        self.sweeper.handle_turn_end(&mut self.engine, now);
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        if !self.ready.is_empty() {
            return Some(Timestamp::ZERO);
        }
        self.sweeper.deadline()
    }

    fn is_busy(&self) -> bool {
        !self.ready.is_empty()
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        while let Some(id) = self.to_send.pop_front() {
            let Some(connection) = find(&mut self.connections, id) else { continue };
            connection.listed = false;
            if !connection.sending
                && let Some(segment) = connection.output.take()
            {
                connection.sending = true;
                return Some((Owner::Client(id), segment));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;

fn find(connections: &mut Slab<Connection>, id: ClientId) -> Option<&mut Connection> {
    connections.get_mut(id.index as usize).filter(|connection| connection.generation == id.generation)
}
