//! Sending of requests: the choice of a connection, the bytes that are written to it, and the record of the
//! replies that it owes.

use super::Links;
use super::link::{Link, LinkState};
use crate::protocol::Protocol;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::pending::{InFlight, Odd, Pending};
use crate::shard::request::{Envelope, Route, Track};
use crate::shard::settings::ShardSettings;
use crate::values::time::Now;
use crate::values::{ConnectionId, Database, Timestamp};

impl Links {
    /// True if a request may be sent over the connection at once: it is open, has room, and a `CLIENT KILL`
    /// for each given-up connection to its store was sent over it.
    #[inline]
    pub fn is_ready(&self, env: &Env, connection: ConnectionId) -> bool {
        self.connections[connection.0 as usize].is_ready(env.fences.count())
    }

    /// Appends a message of `requests` requests (more than one for a transaction, or with commands such as `ASKING`
    /// before a request) to the output of its connection, and records the replies that are owed for it. `depth` is the
    /// number of this core's requests in flight at the backend on the request's track (set of connections), this one
    /// included; `is_costly` says that the request's response time says nothing about that of others; `quiet_reading`
    /// is the reading of the backend's quiet time (in which it answers nothing). `envelope` is the record of the
    /// request that counts, the last one of the message.
    #[expect(clippy::inline_always, reason = "every request: a call would be a tenth of it")]
    #[inline(always)]
    pub fn send(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        (envelope, message, requests): (&Envelope, Message<'_>, usize),
        (depth, is_costly, quiet_reading): (u32, bool, u32),
        now: Now,
    ) {
        let link = &mut self.connections[connection.0 as usize];
        match message {
            // A block of requests is one transaction, so none of them gets a deadline of its own.
            _ if envelope.deadline != Timestamp::MAX && requests == 1 && link.takes_deadlines() => {
                link.append_within((&mut env.pool, &mut env.counters), envelope, message, now.monotonic);
            }
            Message::Small(bytes) => link.output.append(&mut env.pool, bytes),
            Message::Shared(bytes) => link.output.append_shared(&mut env.pool, bytes),
        }
        if requests > 1 {
            let sent_at = now.monotonic;
            let (ahead, records) = if envelope.reply_to.flight_id().is_some() {
                (Pending::Ahead { to: envelope.reply_to, sent_at }, requests - 1)
            } else {
                (Pending::Steps { left: requests as u32 - 1, sent_at }, 1)
            };
            link.pending.extend(std::iter::repeat_n(ahead, records));
        }
        let odd = if is_costly || link.state != LinkState::Open {
            link.costly_ahead += 1;
            Odd::Costly
        } else if link.costly_ahead > 0 {
            Odd::Behind
        } else {
            Odd::No
        };
        link.pending.push_back(Pending::Request(InFlight::new(
            envelope,
            (depth, odd, quiet_reading),
            now.monotonic,
        )));
        self.in_flight += requests;
        if link.begin_list() {
            self.to_send.push_back(connection);
        }
    }
}

/// Returns the index of the connection for a request to the first database: always the same for one
/// backend, slot, RESP version and track (usual, expensive, or to a replica), so that requests for a key
/// keep their order.
#[inline]
pub fn connection_for(settings: &ShardSettings, route: Route) -> ConnectionId {
    let per_dialect = u32::from(settings.links_per_backend + settings.heavy_links + settings.replica_links());
    let first = u32::from(route.backend.0) * 2 * per_dialect;
    ConnectionId(first + place_among(settings, route, per_dialect))
}

/// Returns the index of a request's connection among the connections to one database of its backend: the
/// `per_dialect` connections of RESP version 2 come first, then those of version 3.
#[inline]
fn place_among(settings: &ShardSettings, route: Route, per_dialect: u32) -> u32 {
    let (usual, heavy) = (settings.links_per_backend, settings.heavy_links);
    let lane = settings.lane_of(route.slot);
    let lane = match route.track {
        Track::Usual => lane,
        // Slots that share a usual connection also share a heavy one.
        Track::Heavy => usual + lane % heavy,
        Track::Replica => usual + heavy,
    };
    let dialect = match route.protocol {
        Protocol::Resp2 => 0,
        Protocol::Resp3 => 1,
    };
    dialect * per_dialect + u32::from(lane)
}

/// Returns the number of connections of one core, if all databases of all backends are in use.
pub fn connections_max(settings: &ShardSettings) -> u32 {
    let backends = settings.topology.all_backends().count() as u32;
    let each = settings.links_per_backend + settings.heavy_links + settings.replica_links();
    backends * 2 * u32::from(each) * u32::from(settings.databases)
}

impl Links {
    /// Returns the index of the connection for a request: always the same for one backend, database, slot,
    /// RESP version and track (usual, expensive, or to a replica), so that requests for a key keep their
    /// order.
    #[inline]
    pub fn connection_for(&mut self, settings: &ShardSettings, route: Route) -> ConnectionId {
        if route.database == Database::FIRST {
            connection_for(settings, route)
        } else {
            self.connection_elsewhere(settings, route)
        }
    }

    /// Returns the index of the connection for a request to another database than the first. Creates the connections of
    /// a backend to the database when the first request for both comes.
    #[cold]
    fn connection_elsewhere(&mut self, settings: &ShardSettings, route: Route) -> ConnectionId {
        let (usual, heavy) = (settings.links_per_backend, settings.heavy_links);
        let replica = settings.replica_links();
        let databases = usize::from(settings.databases);
        if self.others.is_empty() {
            self.others = vec![0; settings.topology.all_backends().count() * databases];
        }
        let place = usize::from(route.backend.0) * databases + usize::from(route.database.0);
        if self.others[place] == 0 {
            self.others[place] = self.connections.len() as u32;
            for protocol in [Protocol::Resp2, Protocol::Resp3] {
                let tracks = [(usual, Track::Usual), (heavy, Track::Heavy), (replica, Track::Replica)];
                for track in tracks.into_iter().flat_map(|(count, track)| (0..count).map(move |_| track)) {
                    self.connections.push(Link::new(route.backend, protocol, route.database, track));
                }
            }
        }
        ConnectionId(self.others[place] + place_among(settings, route, u32::from(usual + heavy + replica)))
    }
}
