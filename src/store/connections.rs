//! Connections in front of an engine: their state, the output to be sent, and how they end. The service that
//! owns them decides which requests are carried out, and when.

use std::collections::{HashMap, VecDeque};

use slab::Slab;

use super::{Engine, Session};
use crate::protocol::{BufferPool, Output, RequestDecoder, Segment};
use crate::values::{Action, ClientId, Owner};

/// Maximum number of empty buffers that are kept, after replies were sent, for later replies; further ones
/// are freed.
const SPARE_BUFFERS_MAX: usize = 256;

/// A connection, with the state `T` that its service keeps about it.
#[derive(Debug)]
pub struct Connection<T> {
    generation: u32,
    /// State of the connection within the engine: its RESP version, name and transaction.
    pub session: Session,
    /// Decodes the bytes that were received into requests.
    pub decoder: RequestDecoder,
    /// Replies and messages that are to be sent.
    pub output: Output,
    /// True while the driver (the code that does the socket I/O) sends a part of this connection's output.
    sending: bool,
    /// True if the connection is queued among the connections with output to be sent.
    listed: bool,
    /// True if the connection is to be closed once all its output has been sent.
    pub ending: bool,
    /// The number of unsent bytes up to the end of the last reply. Unsent bytes after it are messages, such
    /// as those of subscribed channels.
    replied_bytes: usize,
    /// State that the service in front of the engine keeps about this connection.
    pub own: T,
}

/// All connections of one engine, with the actions and output that the driver (the code that does the socket
/// I/O) polls.
#[derive(Debug)]
pub struct Connections<T> {
    open: Slab<Connection<T>>,
    /// The index in `open` of each open connection, by the connection's generation: a count of all
    /// connections so far, which is also the number of the connection's session.
    indices: HashMap<u32, u32>,
    opened: u32,
    pool: BufferPool,
    to_send: VecDeque<ClientId>,
    actions: VecDeque<Action>,
}

impl<T> Connection<T> {
    /// True if all output of the connection has been sent.
    pub fn is_sent(&self) -> bool {
        self.output.is_empty() && !self.sending
    }

    /// Records that the bytes appended last to the output are the end of a reply, and not of a message (such
    /// as one of a subscribed channel).
    pub fn note_reply(&mut self) {
        self.replied_bytes = self.output.len();
    }

    /// Returns the number of unsent bytes of messages (such as those of subscribed channels) after the last
    /// reply.
    pub fn message_bytes(&self) -> usize {
        self.output.len() - self.replied_bytes
    }
}

impl<T> Default for Connections<T> {
    fn default() -> Self {
        Self {
            open: Slab::new(),
            indices: HashMap::new(),
            opened: 0,
            pool: BufferPool::new(SPARE_BUFFERS_MAX),
            to_send: VecDeque::new(),
            actions: VecDeque::new(),
        }
    }
}

impl<T> Connections<T> {
    /// Registers a client that has connected, with the state `own` that the service keeps about it, and
    /// returns its id.
    pub fn open(&mut self, own: T) -> ClientId {
        self.opened = self.opened.wrapping_add(1);
        let generation = self.opened;
        let index = self.open.insert(Connection {
            generation,
            session: Session::new(u64::from(generation)),
            decoder: RequestDecoder::default(),
            output: Output::default(),
            sending: false,
            listed: false,
            ending: false,
            replied_bytes: 0,
            own,
        });
        self.indices.insert(generation, index as u32);
        ClientId { index: index as u32, generation }
    }

    /// Returns the id of the connection whose session has this number; `None` if it is not open.
    pub fn numbered(&self, session: u64) -> Option<ClientId> {
        let generation = u32::try_from(session).ok()?;
        self.indices.get(&generation).map(|index| ClientId { index: *index, generation })
    }

    /// Returns the connection with this id; `None` if it is not open.
    pub fn get(&mut self, id: ClientId) -> Option<&mut Connection<T>> {
        self.get_with_pool(id).map(|(connection, _)| connection)
    }

    /// Returns the connection with this id, and the pool of buffers that its replies are written to; `None`
    /// if it is not open.
    pub fn get_with_pool(&mut self, id: ClientId) -> Option<(&mut Connection<T>, &mut BufferPool)> {
        let connection = self.open.get_mut(id.index as usize);
        let connection = connection.filter(|connection| connection.generation == id.generation)?;
        Some((connection, &mut self.pool))
    }

    /// Returns the ids of all open connections.
    pub fn all(&self) -> Vec<ClientId> {
        let id = |(index, connection): (usize, &Connection<T>)| ClientId {
            index: index as u32,
            generation: connection.generation,
        };
        self.open.iter().map(id).collect()
    }

    /// Removes a connection whose socket is closed, with its unsent output, and ends its wait, watches,
    /// tracking and subscriptions in the engine.
    pub fn forget(&mut self, engine: &mut Engine, id: ClientId) {
        if self.get(id).is_some() {
            let mut connection = self.open.remove(id.index as usize);
            self.indices.remove(&id.generation);
            connection.output.clear(&mut self.pool);
            engine.forget(&connection.session);
        }
    }

    /// Removes a connection, and has the driver (the code that does the socket I/O) close its socket.
    pub fn close(&mut self, engine: &mut Engine, id: ClientId) {
        self.forget(engine, id);
        self.act(Action::Close(Owner::Client(id)));
    }

    /// Closes the connections that `CLIENT KILL` named; their unanswered requests are dropped.
    pub fn close_killed(&mut self, engine: &mut Engine) {
        while let Some(killed) = engine.poll_killed() {
            if let Some(id) = self.numbered(killed) {
                self.close(engine, id);
            }
        }
    }

    /// Queues an action (close, pause reading and so on) for the driver, the code that does the socket I/O.
    pub fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Queues a connection for sending, if it has output and the driver is not sending any of it.
    pub fn list(&mut self, id: ClientId) {
        let Some(connection) = self.get(id) else { return };
        if !connection.output.is_empty() && !connection.sending && !connection.listed {
            connection.listed = true;
            self.to_send.push_back(id);
        }
    }

    /// Takes back a segment (a part of a connection's output) that the driver has sent, or whose socket is
    /// closed. False if the connection is not open any more.
    pub fn handle_transmitted(&mut self, id: ClientId, segment: Segment) -> bool {
        self.pool.give_segment(segment);
        self.get(id).map(|connection| connection.sending = false).is_some()
    }

    /// Returns the next action (such as closing a socket) for the driver to carry out; `None` if there is
    /// none.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the next bytes for the driver to send, and the connection to send them to; `None` if there are
    /// none.
    pub fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        while let Some(id) = self.to_send.pop_front() {
            let Some(connection) = self.get(id) else { continue };
            connection.listed = false;
            if !connection.sending
                && let Some(segment) = connection.output.take()
            {
                connection.sending = true;
                connection.replied_bytes = connection.replied_bytes.saturating_sub(segment.len());
                return Some((Owner::Client(id), segment));
            }
        }
        None
    }
}
