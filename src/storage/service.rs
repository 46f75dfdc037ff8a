//! The engine behind connections: requests in, replies out. Pure, like the engine.

mod scripted;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use slab::Slab;

use super::script::{Director, Pending, Place, Script};
use super::{Engine, Outcome, Session};
use crate::protocol::{BufferPool, Output, RequestDecoder, RequestLimits, Segment, encode};
use crate::values::time::Now;
use crate::values::{Action, ClientId, Owner, Timestamp};
use scripted::Early;

/// How often keys whose time is over are looked for while any key has a lifetime, and how many at once.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
const SWEEP_KEYS: usize = 400;
/// A connection that lets this much wait for it is closed.
const OUTPUT_BYTES_MAX: usize = 256 * 1024 * 1024;
const SPARE_BUFFERS_MAX: usize = 256;

#[derive(Debug)]
struct Connection {
    generation: u32,
    session: Session,
    decoder: RequestDecoder,
    output: Output,
    sending: bool,
    listed: bool,
    /// Closed once everything was sent.
    ending: bool,
    /// Replies that a script holds back.
    pending: Pending,
    /// What it sent while a script leaves it alone.
    early: Option<Early>,
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
            ending: false,
            pending: Pending::default(),
            early: None,
        });
        let id = ClientId { index: index as u32, generation };
        if self.director.is_some() {
            self.receive_opened(id, now);
        }
        id
    }

    /// Bytes from a client: every whole request in them is carried out.
    pub fn handle_client_bytes(&mut self, id: ClientId, chunk: &[u8], now: Now) {
        if self.director.is_some() {
            return self.receive_scripted(id, chunk, now);
        }
        let Self { engine, connections, limits, pool, .. } = self;
        let Some(connection) = find(connections, id) else { return };
        let Connection { session, decoder, output, ending, .. } = connection;
        let mut consumed = 0;
        while !*ending {
            match decoder.next(chunk, &mut consumed, limits) {
                Ok(Some(request)) => {
                    let outcome = engine.execute(session, request.arguments, now, output.buffer(pool));
                    *ending = outcome == Outcome::Close;
                }
                Ok(None) => break,
                Err(error) => {
                    encode::error(output.buffer(pool), &error.0);
                    *ending = true;
                }
            }
        }
        self.after_output(id);
    }

    /// The client sends no more: what it sent was answered, so it is closed once that is sent.
    pub fn handle_client_end(&mut self, id: ClientId) {
        let Some(connection) = find(&mut self.connections, id) else { return };
        if let Some(early) = &mut connection.early {
            early.ended = true;
        } else {
            connection.ending = true;
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
            self.after_output(id);
        }
    }

    /// The end of a turn: replies that are due leave, and keys whose time is over are looked for now and then.
    pub fn handle_turn_end(&mut self, now: Now) {
        if self.director.is_some() {
            self.advance_script(now);
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

    /// When `handle_turn_end` should be called at the latest.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        if self.director.is_none() {
            return self.sweep_at;
        }
        [self.sweep_at, self.next_scripted()].into_iter().flatten().min()
    }

    /// Does a script hold replies back, so that the next deadline is near and should be met closely?
    pub fn is_busy(&self) -> bool {
        self.director.as_ref().is_some_and(|director| director.is_busy())
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

    fn after_output(&mut self, id: ClientId) {
        let Some(connection) = find(&mut self.connections, id) else { return };
        let done = connection.ending
            && connection.output.is_empty()
            && connection.pending.is_empty()
            && !connection.sending;
        if done || connection.output.len() + connection.pending.bytes() > OUTPUT_BYTES_MAX {
            self.handle_client_lost(id);
            self.actions.push_back(Action::Close(Owner::Client(id)));
        } else if !connection.output.is_empty() && !connection.sending && !connection.listed {
            connection.listed = true;
            self.to_send.push_back(id);
        }
    }
}

fn find(connections: &mut Slab<Connection>, id: ClientId) -> Option<&mut Connection> {
    connections.get_mut(id.index as usize).filter(|connection| connection.generation == id.generation)
}
