//! Connections of one core to the backends: requests in flight, windows, queues and service times. Knows
//! neither clients nor accounts.
//!
//! | what | file |
//! |---|---|
//! | one connection | `link.rs` |
//! | what is said first on it | `greeting.rs` |
//! | a store that is a weir: the rest of deadlines, and its refusals | `inner.rs` |
//! | requests out, replies in | `forward.rs` |
//! | the rest of a large reply, in room made for it | `large_reply.rs` |
//! | how long that took | `service_time.rs` |
//! | how much may be in flight, and what waits for that | `bulkhead.rs`, `waiting.rs` |
//! | whether a backend is slower than it used to be | `strain.rs` |
//! | whether a backend is sick, and left alone | `breaker.rs` |
//! | what is answered before its backend has | `early.rs` |
//! | reads that replicas of a cluster may answer | `readers.rs` |
//! | reads that were lost with a connection to a node, once more | `retry.rs` |
//! | slots of a cluster, which change their owners, and what may have to be sent again for that | `slots.rs`, `unanswered.rs` |

mod breaker;
mod bulkhead;
mod early;
mod forward;
mod greeting;
mod inner;
mod large_reply;
mod link;
mod readers;
mod retry;
mod service_time;
mod slots;
mod strain;
mod unanswered;
mod waiting;

use std::collections::VecDeque;
use std::time::Duration;

pub use crate::policy::breaker::Stage as BreakerStage;
pub use bulkhead::Parked;
pub use bulkhead::{Figures as BulkheadFigures, RESERVED};
pub use readers::ReaderFigures;
pub use service_time::ServiceTimes;
pub use slots::{Doubt, NO_SLOT, PRIMARY};
pub use waiting::turn_away;

use super::env::Env;
use super::fence::{Fence, Fences};
use super::message::Message;
use super::note::Note;
use super::outcome::Outcome;
use super::refusal::NotSent;
use super::request::{Addressee, ReplyTo, Route, Track};
use super::settings::{BULKHEADS, Mode, ShardSettings};
use crate::policy::baseline::Baseline;
use crate::policy::latency_ratio::LatencyRatio;
use crate::protocol::{Protocol, Segment};
use crate::values::time::Now;
use crate::values::{BackendId, ConnectionId, Owner, ShardId, Timestamp, shorten};
use breaker::Health;
use bulkhead::Bulkhead;
use forward::bulkhead_for;
use link::{Link, LinkState};
use readers::Readers;
use slots::Slots;

/// The least number of bytes of requests that may wait in each queue, however many backends share this core's
/// limit.
const QUEUE_BYTES_LEAST: usize = 1 << 20;

/// The receiver of replies and of notes about connections.
pub trait Replies {
    /// Passes on one reply, to a request of this core or another.
    fn reply(&mut self, env: &mut Env, to: ReplyTo, outcome: Outcome, message: Message<'_>, now: Now);
    /// Passes on a note about a request, such as that its bytes are on the connection.
    fn note(&mut self, env: &mut Env, to: ReplyTo, note: Note);
}

/// All connections of one core to all backends, with their windows and queues.
#[derive(Debug)]
pub struct Back {
    links: Vec<Link>,
    /// Connections that weir gave up while the store may still carry out requests from them. Later
    /// connections begin by killing those.
    fences: Fences,
    /// Numbers of this shard's fences that are no longer needed, yet to be told to other shards.
    lifted: Vec<u64>,
    /// Replies that backends owe, over all connections.
    in_flight: usize,
    to_send: VecDeque<ConnectionId>,
    /// Windows and queues by backend and track: `backend * BULKHEADS + track`.
    bulkheads: Vec<Bulkhead>,
    /// Indices of bulkheads with waiting requests or a stalled backend. They are handled at the end of each
    /// turn.
    listed: Vec<usize>,
    /// Requests pushed out of a full queue that are yet to be refused; and notes yet to be delivered.
    turned_away: Vec<(Addressee, NotSent)>,
    notes: Vec<(ReplyTo, Note)>,
    /// True if requests that find no room wait in a queue rather than being refused.
    may_wait: bool,
    /// Whether requests that cannot be answered by their deadline are refused: on, off, or only counted.
    deadlines: Mode,
    /// The time for which this turn was planned, the time at which it began, and the delay between them. The
    /// delay is this core's own and no backend is blamed for it.
    planned: Timestamp,
    turned_at: Timestamp,
    late: Duration,
    /// The sum of delays of turns since the backends' health was last compared.
    late_lately: Duration,
    /// The time by which the requests in flight are searched for passed deadlines and stalled backends.
    early_at: Timestamp,
    service_times: ServiceTimes,
    /// The latency ratio of each backend: recent response times against usual ones.
    ratios: Vec<LatencyRatio>,
    /// The usual response times of each backend.
    baselines: Vec<Baseline>,
    /// The health of each backend: whether it is ejected (not sent to for a while).
    health: Vec<Health>,
    /// The owners of slots; `None` unless the backends are nodes of a cluster.
    slots: Option<Box<Slots>>,
    /// The choice of replicas for reads that replicas may answer; `None` unless that is switched on.
    readers: Option<Box<Readers>>,
}

impl Back {
    /// Creates the state of a core whose connections are all closed.
    pub fn new(settings: &ShardSettings) -> Self {
        let topology = settings.topology;
        let links = topology
            .all_backends()
            .flat_map(|backend| [Protocol::Resp2, Protocol::Resp3].map(|protocol| (backend, protocol)))
            .flat_map(|(backend, protocol)| {
                let (usual, heavy) = (settings.links_per_backend, settings.heavy_links);
                let tracks = (0..usual).map(|_| Track::Usual).chain((0..heavy).map(|_| Track::Heavy));
                let replica = (0..settings.replica_links()).map(|_| Track::Replica);
                tracks.chain(replica).map(move |track| {
                    let route = Route { slot: 0, backend, protocol, track };
                    let mut link = Link::new(backend, protocol, bulkhead_for(route));
                    link.only_reads = track == Track::Replica;
                    link
                })
            })
            .collect();
        let mut overload = settings.overload.clone();
        // Each queue gets an equal part of this core's limit.
        let parts = usize::from(topology.backends()) * BULKHEADS;
        overload.queue_limit.bytes = (overload.queue_limit.bytes / parts.max(1)).max(QUEUE_BYTES_LEAST);
        let bulkheads = topology.all_backends().flat_map(|_| [Track::Usual, Track::Heavy]);
        let bulkheads = bulkheads
            .map(|track| Bulkhead::new(topology.shards(), &overload, track == Track::Heavy))
            .collect();
        Self {
            links,
            fences: Fences::new(settings.id, usize::from(topology.shards())),
            lifted: Vec::new(),
            in_flight: 0,
            to_send: VecDeque::new(),
            bulkheads,
            listed: Vec::new(),
            turned_away: Vec::new(),
            notes: Vec::new(),
            may_wait: overload.window == Mode::On && overload.queue != Mode::Off,
            deadlines: overload.shed,
            planned: Timestamp::MAX,
            turned_at: Timestamp::ZERO,
            late: Duration::ZERO,
            late_lately: Duration::ZERO,
            early_at: Timestamp::MAX,
            service_times: ServiceTimes::default(),
            ratios: topology
                .all_backends()
                .map(|_| LatencyRatio::new(overload.shed_levels, Timestamp::ZERO))
                .collect(),
            baselines: topology.all_backends().map(|_| Baseline::default()).collect(),
            health: topology.all_backends().map(|_| Health::default()).collect(),
            slots: None,
            readers: (settings.replicas == Mode::On).then(|| Box::new(Readers::new(settings.seed))),
        }
    }

    /// The service times of all backends together.
    pub fn service_times(&self) -> ServiceTimes {
        self.service_times.told()
    }

    /// The number of connections, open or not: connections with this number and above are no shared ones.
    pub fn connections(&self) -> u32 {
        self.links.len() as u32
    }

    /// The number of replies that backends owe.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// True while requests of a slot are held back because the slot changes its owner.
    pub fn is_holding(&self, slot: u16) -> bool {
        self.slots.as_ref().is_some_and(|slots| slots.is_holding(slot))
    }

    /// True if a request that was sent to a backend by `until` is unanswered. Before a cluster, any node
    /// counts, as do requests of the slot that are held back or were sent again.
    pub fn has_in_flight(&self, (backend, slot): (BackendId, u16), until: Timestamp) -> bool {
        let is_early = |link: &Link| link.pending.front().is_some_and(|oldest| oldest.sent_at <= until);
        let mut links = self.links.iter();
        match &self.slots {
            Some(slots) => {
                slots.is_holding(slot) || links.any(|link| is_early(link) || link.unanswered.has_again(slot))
            }
            None => links.any(|link| link.backend == backend && is_early(link)),
        }
    }

    /// The number of open connections.
    pub fn links_open(&self) -> usize {
        self.links.iter().filter(|link| link.state == LinkState::Open).count()
    }

    /// The fences: what keeps requests of connections that weir gave up from taking effect behind later ones.
    pub fn fences(&mut self) -> &mut Fences {
        &mut self.fences
    }

    /// Takes the fences that another shard raised and lifted, before anything else of its batch is handled.
    pub fn hear_fences(&mut self, (raised, lifted): (Vec<Fence>, Vec<(ShardId, u64)>)) {
        raised.into_iter().for_each(|fence| self.fences.hear(fence));
        lifted.into_iter().for_each(|(origin, sequence)| {
            self.fences.lift(origin, sequence);
        });
    }

    /// Takes the numbers of this shard's fences that were lifted since the last call.
    pub fn take_lifted(&mut self) -> impl Iterator<Item = u64> {
        std::mem::take(&mut self.lifted).into_iter()
    }

    /// Returns the next bytes to send, and the connection for them.
    pub fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        while let Some(connection) = self.to_send.pop_front() {
            let link = &mut self.links[connection.0 as usize];
            link.listed_to_send = false;
            if link.sending || !link.has_output() {
                continue;
            }
            let segment = match link.state {
                LinkState::Open => link.output.take(),
                _ => Some(Segment::Gathered(std::mem::take(&mut link.greeting))),
            };
            if let Some(segment) = segment {
                link.sending = true;
                return Some((Owner::Link(connection, link.generation), segment));
            }
        }
        None
    }

    /// Handles a finished send on a connection: the next one may begin.
    pub fn handle_transmitted(&mut self, connection: ConnectionId, generation: u32) {
        if let Some(link) = self.current_link(connection, generation) {
            link.sending = false;
            self.list_to_send(connection);
        }
    }

    /// Frees memory that long pipelines and full queues took.
    pub fn tidy(&mut self) {
        for link in &mut self.links {
            shorten(&mut link.pending);
            link.unanswered.tidy();
        }
        self.bulkheads.iter_mut().for_each(Bulkhead::tidy);
    }

    fn current_link(&mut self, connection: ConnectionId, generation: u32) -> Option<&mut Link> {
        self.links.get_mut(connection.0 as usize).filter(|link| {
            let exists = matches!(
                link.state,
                LinkState::Open | LinkState::Greeting { .. } | LinkState::Opening { .. }
            );
            link.generation == generation && exists
        })
    }

    fn list_to_send(&mut self, connection: ConnectionId) {
        let link = &mut self.links[connection.0 as usize];
        if link.begin_list() {
            self.to_send.push_back(connection);
        }
    }
}
