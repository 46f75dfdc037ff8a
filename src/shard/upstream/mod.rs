//! Upstream: the way of a request to its backend and of the reply from it. Owns four rooms that do not know
//! each other, and calls them in the right order.
//!
//! ```text
//!   request -- cluster: whose slot? -- breaker: ejected? -- overload: room in the window? -- links ==> store
//!               |-- held until the slot settles              |-- no: queued until there is room
//!   reply <-- cluster: refused? -- breaker: failed? -- overload: how long? -- links <== store
//!               |-- yes: the request is held, or sent elsewhere
//! ```
//!
//! | step | file |
//! |---|---|
//! | a request is sent, from its slot to its connection | `send.rs` |
//! | a request that found no room waits, or is refused | `queue.rs` |
//! | a reply is taken | `receive.rs` |
//! | a connection is lost or given up, with its requests | `lose.rs` |
//! | a turn begins and ends | `turn.rs` |
//! | connections to a store that has become a replica are opened anew | `renew.rs` |
//! | requests are answered before their backend has | `early.rs` |
//! | backends are ejected and taken back | `gates.rs` |
//! | the nodes of a cluster: maps, owners, replicas, redirected requests | `nodes.rs` |

mod early;
mod gates;
mod lose;
mod nodes;
mod queue;
mod receive;
mod renew;
mod send;
mod turn;

use super::breaker::Breaker;
use super::cluster::{Cluster, ReaderFigures};
use super::durations::Durations;
use super::env::Env;
use super::links::{Link, Links};
use super::note::Note;
use super::overload::{BulkheadFigures, Overload, bulkhead_for};
use super::pending::Pending;
use super::quiet::{OnShared, Quiet};
use super::replies::Replies;
use super::request::ReplyTo;
use super::settings::ShardSettings;
use crate::protocol::{Room, Segment};
use crate::routing::cluster::ReplicaState;
use crate::values::{BackendId, ConnectionId, Owner, Timestamp};
use renew::Renewals;
use turn::Turn;

/// One core's way to all backends: the connections that clients share, the windows (limits on requests in flight)
/// and queues, the health of the backends, and the state of a cluster.
#[derive(Debug)]
pub struct Upstream {
    links: Links,
    overload: Overload,
    breaker: Breaker,
    cluster: Cluster,
    turn: Turn,
    /// For each backend, the record of the times in which it answered nothing while requests in flight (such as
    /// scripts) kept it busy; these requests share the time as part of their prices.
    quiets: Vec<Quiet>,
    /// For each backend, when its connections were last opened anew because it had become a replica.
    renewals: Renewals,
    /// Notes (such as that a request was sent) about requests of client connections, still to be delivered
    /// to the cores of the clients.
    notes: Vec<(ReplyTo, Note)>,
    /// The number of backends that weir is configured with: plain stores, or places for nodes of a cluster.
    backends: usize,
}

impl Upstream {
    /// Creates one core's way to all backends; all connections are closed.
    pub fn new(settings: &ShardSettings) -> Self {
        let backends = settings.topology.all_backends().count();
        Self {
            links: Links::new(settings),
            overload: Overload::new(settings),
            breaker: Breaker::new(settings.topology.backends()),
            cluster: Cluster::new(settings),
            turn: Turn::default(),
            quiets: vec![Quiet::default(); backends],
            renewals: Renewals::new(backends),
            notes: Vec::new(),
            backends,
        }
    }

    /// Returns a histogram of the times from sending a request to its reply, over all backends and all requests
    /// that this core sent over shared connections.
    pub fn service_times(&self) -> Durations {
        self.overload.service_times()
    }

    /// Returns the number of replies that backends owe this core, over all its shared connections.
    pub fn in_flight(&self) -> usize {
        self.links.in_flight()
    }

    /// Returns the number of this core's open connections to backends, without those that one client has to
    /// itself.
    pub fn links_open(&self) -> usize {
        self.links.open_count()
    }

    /// Returns the number of requests that wait in this core's queues in front of backends, without fetches (shared
    /// reads of hot keys).
    pub fn waiting(&self) -> usize {
        self.overload.waiting()
    }

    /// Returns the figures of all bulkheads (windows and queues), in the order of backends: for each backend, first
    /// those for usual requests, then those for expensive ones.
    pub fn bulkheads(&self, env: &Env) -> impl Iterator<Item = BulkheadFigures> {
        self.overload.figures(env).map(|(backend, figures)| {
            let breaker = env.settings.overload.health.standing(usize::from(backend.0)).stage;
            BulkheadFigures { breaker, ejections: self.breaker.ejections(backend), ..figures }
        })
    }

    /// Returns, for each node of a cluster, how many reads it answered as a replica and how often it was
    /// ejected (taken out of use), by the node's index; empty unless replicas answer reads.
    pub fn reader_figures(&self) -> Vec<ReaderFigures> {
        self.cluster.readers.as_ref().map(|readers| readers.figures()).unwrap_or_default()
    }

    /// True while at least one request for a slot is held back because the slot changes its owner, or its node is
    /// down.
    pub fn is_holding(&self, slot: u16) -> bool {
        self.cluster.slots.as_ref().is_some_and(|slots| slots.is_holding(slot))
    }

    /// True if a request that was sent to `backend` at `until` or earlier is unanswered. In front of a cluster, a
    /// request to any node counts, and so does a request for `slot` that is held back, or was sent again after a node
    /// had refused it, whenever that was.
    pub fn has_in_flight(&self, (backend, slot): (BackendId, u16), until: Timestamp) -> bool {
        let is_early = |link: &Link| link.pending.front().is_some_and(|oldest| oldest.sent_at() <= until);
        let mut links = self.links.iter();
        match &self.cluster.slots {
            Some(slots) => slots.is_holding(slot) || links.any(is_early) || slots.has_again(slot),
            None => links.any(|link| link.backend == backend && is_early(link)),
        }
    }

    /// Records, for each replica of a cluster, the time up to which it is known to have its primary's writes.
    /// That decides whether the replica may answer reads.
    pub fn handle_replicas(&mut self, states: &[ReplicaState]) {
        if let Some(readers) = &mut self.cluster.readers {
            readers.handle_states(states);
        }
    }

    /// Returns the next bytes to send to a backend, and the connection for them; None if there are none.
    /// The connection gives no more until [`Self::handle_transmitted`] is called for it.
    pub fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        self.links.poll_transmit()
    }

    /// Handles a finished send on a connection: the next one may begin. Does nothing if `generation` is that of an
    /// earlier socket of the connection.
    pub fn handle_transmitted(&mut self, connection: ConnectionId, generation: u32) {
        self.links.handle_transmitted(connection, generation);
    }

    /// Returns the number of bytes known to be missing of the reply that is being received on a connection
    /// (`id`: its index and the generation of its socket); 0 if none is known.
    pub fn missing(&mut self, id: (ConnectionId, u32)) -> usize {
        self.links.missing(id)
    }

    /// Lends out the buffer with the beginning of the reply that a connection (`id`: its index and the
    /// generation of its socket) is receiving, with room for the rest, at most up to the largest permitted
    /// reply; None if nothing large is missing.
    pub fn lend_room(&mut self, env: &Env, id: (ConnectionId, u32)) -> Option<Room> {
        self.links.lend_room(env, id)
    }

    /// True if there are notes (messages about requests to the cores that have their clients), which have to be
    /// delivered before more requests are read.
    #[inline]
    pub fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    /// Delivers the notes (such as that a request was sent) about requests to the cores of their clients.
    pub fn deliver_notes(&mut self, env: &mut Env, replies: &mut impl Replies) {
        let mut notes = std::mem::take(&mut self.notes);
        for (to, note) in notes.drain(..) {
            replies.note(env, to, note);
        }
        self.notes = notes;
    }

    /// Frees memory that is unused after a burst: that of long pipelines to backends and of full queues in
    /// front of them. Called about once a second while this core has work.
    pub fn tidy(&mut self) {
        self.links.tidy();
        self.overload.tidy();
        if let Some(slots) = &mut self.cluster.slots {
            slots.tidy();
        }
    }

    /// Records that a backend sent a reply or a part of one, on any connection, which ends its quiet time (in which it
    /// answers nothing): the requests that kept it busy share the time as part of their prices.
    #[inline]
    pub fn handle_heard(&mut self, backend: BackendId, now: Timestamp) {
        let Self { links, quiets, turn, backends, .. } = self;
        let see = || {
            let mut on_shared = OnShared::default();
            links.of_backend(backend, *backends).for_each(|(_, link)| on_shared.add(&link.pending));
            on_shared
        };
        quiets[usize::from(backend.0)].handle_heard(turn.late, see, now);
    }

    /// Returns the record of a backend's quiet time: the time in which it answers nothing while requests in
    /// flight, such as scripts, keep it busy, and which they share as part of their prices.
    pub fn quiet_mut(&mut self, backend: BackendId) -> &mut Quiet {
        &mut self.quiets[usize::from(backend.0)]
    }

    /// Returns the index of the bulkhead (window and queue) that the requests of a connection pass.
    #[inline]
    fn bulkhead_of(&self, connection: ConnectionId) -> usize {
        let link = self.links.at(connection);
        bulkhead_for(link.backend, link.track)
    }

    /// Returns the connections whose requests pass this bulkhead (window and queue).
    fn links_of(&self, index: usize) -> impl Iterator<Item = (ConnectionId, &Link)> {
        links_of(&self.links, self.backends, index)
    }

    /// Begins to handle a bulkhead (window and queue) at the end of each turn (pass of the shard's loop),
    /// because requests wait there or the backend has stalled.
    fn list(&mut self, index: usize) {
        let Self { links, overload, backends, .. } = self;
        overload.list(index, || {
            let owed = links_of(links, *backends, index).flat_map(|(_, link)| &link.pending);
            owed.filter_map(Pending::request).map(|request| request.envelope.tenant())
        });
    }
}

fn links_of(links: &Links, backends: usize, index: usize) -> impl Iterator<Item = (ConnectionId, &Link)> {
    let own = links.of_backend(Overload::backend_of(index), backends);
    own.filter(move |(_, link)| bulkhead_for(link.backend, link.track) == index)
}
