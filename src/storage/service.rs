//! The engine behind connections: requests in, replies out. Pure, like the engine.

mod scripted;
mod turns;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use slab::Slab;

use super::script::{ClusterSession, Director, Pending, Place, Script};
use super::{Engine, Session};
use crate::protocol::{BufferPool, Output, RequestDecoder, RequestLimits, Segment};
use crate::values::time::Now;
use crate::values::{Action, ClientId, Owner, Timestamp};
use scripted::Early;
use turns::{Allowance, Standing};

/// How often keys whose time is over are looked for while any key has a lifetime, and how many at once.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
const SWEEP_KEYS: usize = 400;
/// A connection to a scripted store that lets this much wait for it is closed: its requests arrive when the script says.
const SCRIPTED_OUTPUT_BYTES_MAX: usize = 256 * 1024 * 1024;
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
    /// It sends no more: what it sent is still answered.
    ended: bool,
    /// Closed once everything was sent.
    ending: bool,
    /// Replies that a script holds back.
    pending: Pending,
    /// What it sent while a script leaves it alone.
    early: Option<Early>,
    /// What it said to a store that plays a node of a cluster.
    cluster: ClusterSession,
}

/// One engine and its connections.
pub struct Service {
    engine: Engine,
    limits: RequestLimits,
    connections: Slab<Connection>,
    opened: u32,
    pool: BufferPool,
    to_send: VecDeque<ClientId>,
    actions: VecDeque<Action>,
    sweep_at: Option<Timestamp>,
    /// Connections whose requests wait for their turn, each once.
    ready: VecDeque<ClientId>,
    turn: u64,
    director: Option<Box<Director>>,
    /// Connections that a script leaves alone, and until when.
    ignored: BTreeSet<(Timestamp, Place)>,
}

impl Service {
    /// A server without connections.
    pub fn new(engine: Engine, request_bytes_max: usize) -> Self {
        Self {
            engine,
            limits: RequestLimits::trusted(request_bytes_max),
            connections: Slab::new(),
            opened: 0,
            pool: BufferPool::new(SPARE_BUFFERS_MAX),
            to_send: VecDeque::new(),
            actions: VecDeque::new(),
            sweep_at: None,
            ready: VecDeque::new(),
            turn: 1,
            director: None,
            ignored: BTreeSet::new(),
        }
    }

    /// The same, behaving as a script says.
    #[must_use]
    pub fn scripted(self, script: Script) -> Self {
        Self { director: Some(Box::new(Director::new(script))), ..self }
    }

    /// The store itself.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// A client has connected.
    pub fn handle_client_opened(&mut self, now: Now) -> ClientId {
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
            pending: Pending::default(),
            early: None,
            cluster: ClusterSession::default(),
        });
        let id = ClientId { index: index as u32, generation };
        if self.director.is_some() {
            self.receive_opened(id, now);
        }
        id
    }

    /// Bytes from a client: every whole request in them is carried out, when it is the client's turn.
    pub fn handle_client_bytes(&mut self, id: ClientId, chunk: &[u8], now: Now) {
        if self.director.is_some() {
            self.receive_scripted(id, chunk, now);
            self.drop_killed();
        } else {
            self.take_requests(id, chunk, now);
        }
    }

    /// The client sends no more: what it sent was answered, so it is closed once that is sent.
    pub fn handle_client_end(&mut self, id: ClientId) {
        let Some(connection) = find(&mut self.connections, id) else { return };
        if let Some(early) = &mut connection.early {
            early.ended = true;
        } else {
            connection.ended = true;
            connection.ending |= connection.standing == Standing::Idle;
            self.after_output(id);
        }
    }

    /// The client is gone.
    pub fn handle_client_lost(&mut self, id: ClientId) {
        if find(&mut self.connections, id).is_some() {
            let mut connection = self.connections.remove(id.index as usize);
            connection.output.clear(&mut self.pool);
        }
    }

    /// A segment was sent, or its socket is closed.
    pub fn handle_transmitted(&mut self, id: ClientId, segment: Segment) {
        self.pool.give_segment(segment);
        if let Some(connection) = find(&mut self.connections, id) {
            connection.sending = false;
            self.unblock(id);
            self.after_output(id);
        }
    }

    /// The end of a turn: connections that wait for theirs are served, replies that are due leave, and keys whose time
    /// is over are looked for now and then.
    pub fn handle_turn_end(&mut self, now: Now) {
        if self.director.is_some() {
            self.advance_script(now);
            self.drop_killed();
        } else {
            self.serve_ready(now);
        }
        if self.sweep_at.is_some_and(|at| at <= now.monotonic) {
            self.sweep_at = None;
            let swept = self.engine.expire_some(now, SWEEP_KEYS);
            if swept.removed * 4 > swept.visited {
                self.sweep_at = Some(now.monotonic);
            }
        }
        if self.sweep_at.is_none() && self.engine.statistics().keys_volatile > 0 {
            self.sweep_at = Some(now.monotonic.after(SWEEP_INTERVAL));
        }
    }

    /// When `handle_turn_end` should be called at the latest: at once, if somebody waits for a turn.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        if !self.ready.is_empty() {
            return Some(Timestamp::ZERO);
        }
        if self.director.is_none() {
            return self.sweep_at;
        }
        [self.sweep_at, self.next_scripted()].into_iter().flatten().min()
    }

    /// Does somebody wait for a turn, or a script hold replies back, so that the next deadline should be met closely?
    pub fn is_busy(&self) -> bool {
        !self.ready.is_empty() || self.director.as_ref().is_some_and(|director| director.is_busy())
    }

    /// What should be done in the world, if anything.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Bytes that should go out, if any.
    pub fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
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

    /// Drops the connections that were named to `CLIENT KILL ID`, with whatever they have not been answered.
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
        let done = connection.ending
            && connection.output.is_empty()
            && connection.pending.is_empty()
            && !connection.sending;
        let held_back = connection.output.len() + connection.pending.bytes();
        if done || self.director.is_some() && held_back > SCRIPTED_OUTPUT_BYTES_MAX {
            self.handle_client_lost(id);
            self.actions.push_back(Action::Close(Owner::Client(id)));
        } else if !connection.output.is_empty() && !connection.sending && !connection.listed {
            connection.listed = true;
            self.to_send.push_back(id);
        }
    }
}

#[cfg(test)]
mod tests;

fn find(connections: &mut Slab<Connection>, id: ClientId) -> Option<&mut Connection> {
    connections.get_mut(id.index as usize).filter(|connection| connection.generation == id.generation)
}
