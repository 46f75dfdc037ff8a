//! Links: the connections of one core to the backends, and only the bytes on them. Sends a request, and returns the
//! reply to it, or that it was lost. Has no access to windows, clients or accounts, and does not know why a request is
//! sent.
//!
//! | what | file |
//! |---|---|
//! | one connection | `link.rs` |
//! | the first requests on it, and fences | `greeting.rs` |
//! | a store that is a weir: the rest of deadlines, and its refusals | `inner.rs` |
//! | requests out | `send.rs` |
//! | replies in, and the requests of a connection that is lost | `receive.rs` |
//! | the rest of a large reply, in room made for it | `large_reply.rs` |
//! | for how long a backend may be silent | `silence.rs` |

mod greeting;
mod inner;
mod large_reply;
mod link;
mod receive;
mod send;
mod silence;

pub use greeting::Greeted;
pub use link::{Link, LinkState};
pub use receive::Received;
pub use send::connections_max;
pub use silence::{overdue, patient_until};

use std::collections::VecDeque;

use super::request::Track;
use super::settings::ShardSettings;
use crate::protocol::{Protocol, Segment};
use crate::values::{BackendId, ConnectionId, Database, Owner, shorten};

/// All connections of one core to all backends.
#[derive(Debug)]
pub struct Links {
    /// Connections to the first database of all backends, and then those to other databases, which are added
    /// when a client first uses one.
    connections: Vec<Link>,
    /// The number of connections to the first database of all backends, which come first in `connections`.
    of_first: usize,
    /// For each backend and each database other than the first, the index in `connections` of their first
    /// connection; 0 until a client uses the database. The place of a pair in this list is backend number
    /// times number of databases plus database number. Empty until any such database is used.
    others: Vec<u32>,
    /// Number of replies that backends owe this core, over all its connections, with those to weir's own
    /// commands.
    in_flight: usize,
    to_send: VecDeque<ConnectionId>,
}

impl Links {
    /// Creates the connections of a core, all closed.
    pub fn new(settings: &ShardSettings) -> Self {
        let topology = settings.topology;
        let connections = topology
            .all_backends()
            .flat_map(|backend| [Protocol::Resp2, Protocol::Resp3].map(|protocol| (backend, protocol)))
            .flat_map(|(backend, protocol)| {
                let (usual, heavy) = (settings.links_per_backend, settings.heavy_links);
                let tracks = (0..usual).map(|_| Track::Usual).chain((0..heavy).map(|_| Track::Heavy));
                let replica = (0..settings.replica_links()).map(|_| Track::Replica);
                tracks.chain(replica).map(move |track| Link::new(backend, protocol, Database::FIRST, track))
            })
            .collect::<Vec<_>>();
        Self {
            of_first: connections.len(),
            others: Vec::new(),
            connections,
            in_flight: 0,
            to_send: VecDeque::new(),
        }
    }

    /// Returns the number of connections, open or not, to all databases that were used so far.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Iterates over all connections, in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = &Link> {
        self.connections.iter()
    }

    /// Iterates over the connections to one backend; `backends` is the number of all backends.
    pub fn of_backend(
        &self,
        backend: BackendId,
        backends: usize,
    ) -> impl Iterator<Item = (ConnectionId, &Link)> {
        // The connections to the first database of one backend are next to each other.
        let each = self.of_first / backends;
        let first = usize::from(backend.0) * each;
        let others = self.of_first..self.connections.len();
        (first..first + each)
            .chain(others)
            .map(|index| (ConnectionId(index as u32), &self.connections[index]))
            .filter(move |(_, link)| link.backend == backend)
    }

    /// Returns the connection with this index.
    #[inline]
    pub fn at(&self, connection: ConnectionId) -> &Link {
        &self.connections[connection.0 as usize]
    }

    /// Returns the connection with this index, to be changed.
    #[inline]
    pub fn at_mut(&mut self, connection: ConnectionId) -> &mut Link {
        &mut self.connections[connection.0 as usize]
    }

    /// Returns the connection with this index, if its present socket has this generation; None if that socket
    /// is gone.
    pub fn current(&mut self, connection: ConnectionId, generation: u32) -> Option<&mut Link> {
        self.connections.get_mut(connection.0 as usize).filter(|link| {
            let exists = matches!(
                link.state,
                LinkState::Open | LinkState::Greeting { .. } | LinkState::Opening { .. }
            );
            link.generation == generation && exists
        })
    }

    /// Returns the number of replies that backends owe this core, over all its connections, with those to
    /// weir's own commands.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the number of open connections, as reports show it.
    pub fn open_count(&self) -> usize {
        self.connections.iter().filter(|link| link.state == LinkState::Open).count()
    }

    /// Makes each open connection to a backend retire: it is opened anew for the next request once none is unanswered
    /// on it. If requests may wait (`may_wait`), it takes no more until then.
    pub fn retire(&mut self, backend: BackendId, may_wait: bool) {
        let of_backend = self.connections.iter_mut().filter(|link| link.backend == backend);
        of_backend.for_each(|link| link.retire(may_wait));
    }

    /// Forgets failed attempts to connect to a backend, so that the next request opens a connection at once.
    pub fn forget_failures(&mut self, backend: BackendId) {
        self.connections.iter_mut().filter(|link| link.backend == backend).for_each(Link::forget_failures);
    }

    /// Ends the pauses after failed attempts to connect to a backend, because it is known to be reachable.
    pub fn end_pauses(&mut self, backend: BackendId) {
        for link in self.connections.iter_mut().filter(|link| link.backend == backend) {
            if matches!(link.state, LinkState::BackingOff { .. }) {
                link.state = LinkState::Closed;
            }
        }
    }

    /// Returns the next bytes to send to a backend, and the connection for them; None if there are none.
    /// The connection gives no more until [`Links::handle_transmitted`] is called for it.
    pub fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        while let Some(connection) = self.to_send.pop_front() {
            let link = &mut self.connections[connection.0 as usize];
            link.listed_to_send = false;
            if link.sending || !link.has_output() {
                continue;
            }
            if let Some(segment) = link.take_output() {
                link.sending = true;
                return Some((Owner::Link(connection, link.generation), segment));
            }
        }
        None
    }

    /// Handles a finished send on a connection: the next one may begin. `generation` tells the connection
    /// from earlier ones in its place.
    pub fn handle_transmitted(&mut self, connection: ConnectionId, generation: u32) {
        if let Some(link) = self.current(connection, generation) {
            link.sending = false;
            self.list_to_send(connection);
        }
    }

    /// Frees memory that the records of many unanswered requests took and that is unused now.
    pub fn tidy(&mut self) {
        self.connections.iter_mut().for_each(|link| shorten(&mut link.pending));
    }

    fn list_to_send(&mut self, connection: ConnectionId) {
        let link = &mut self.connections[connection.0 as usize];
        if link.begin_list() {
            self.to_send.push_back(connection);
        }
    }
}
