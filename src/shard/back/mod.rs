//! Towards the stores: connections, what is in flight on them, how long stores take. Knows neither clients nor accounts.
//!
//! | what | file |
//! |---|---|
//! | one connection | `link.rs` |
//! | what is said first on it | `greeting.rs` |
//! | a store that is a weir: the rest of deadlines, and its refusals | `inner.rs` |
//! | requests out, replies in | `forward.rs` |
//! | the rest of a large reply, in room made for it | `room.rs` |
//! | how long that took | `service_time.rs` |
//! | how much may be in flight, and what waits for that | `bulkhead.rs`, `waiting.rs` |
//! | whether a backend is slower than it used to be | `strain.rs` |
//! | whether a backend is sick, and left alone | `sick.rs` |
//! | what is answered before its backend has | `early.rs` |
//! | reads that replicas of a cluster may answer | `readers.rs` |
//! | reads that were lost with a connection to a node, once more | `again.rs` |
//! | slots of a cluster, which change their owners, and what may have to be sent again for that | `slots.rs`, `unanswered.rs` |

mod again;
mod bulkhead;
mod early;
mod forward;
mod greeting;
mod inner;
mod link;
mod readers;
mod room;
mod service_time;
mod sick;
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
use bulkhead::Bulkhead;
use forward::bulkhead_for;
use link::{Link, LinkState};
use readers::Readers;
use sick::Health;
use slots::Slots;

/// However many backends there are, so many bytes of requests may wait before each.
const QUEUE_BYTES_LEAST: usize = 1 << 20;

/// Where replies go.
pub trait Replies {
    /// One reply, to a request of whichever core.
    fn reply(&mut self, env: &mut Env, to: ReplyTo, outcome: Outcome, message: Message<'_>, now: Now);
    /// Something about the connection of a request.
    fn note(&mut self, env: &mut Env, to: ReplyTo, note: Note);
}

/// Connections of one core to all backends.
#[derive(Debug)]
pub struct Back {
    links: Vec<Link>,
    /// Connections that were given up, of which a store may have something left.
    fences: Fences,
    /// Fences of this shard's own that stand no more, which the others have yet to hear.
    lifted: Vec<u64>,
    /// Replies that backends owe, over all links.
    in_flight: usize,
    to_send: VecDeque<ConnectionId>,
    /// By backend, and by track.
    bulkheads: Vec<Bulkhead>,
    /// Those that are looked after at the end of each turn.
    listed: Vec<usize>,
    /// What had to make way, and has yet to be told; and what is to be told about connections.
    turned_away: Vec<(Addressee, NotSent)>,
    notes: Vec<(ReplyTo, Note)>,
    /// What there is no room for may wait.
    may_wait: bool,
    /// What nobody would have a use for is not sent, and not waited for.
    deadlines: Mode,
    /// When this turn was to be, and how much later it is.
    planned: Timestamp,
    turned_at: Timestamp,
    late: Duration,
    /// How much later than planned turns were, since stores were compared last.
    late_lately: Duration,
    /// When to look for requests in flight that nobody has a use for any more.
    early_at: Timestamp,
    service_times: ServiceTimes,
    /// Whether backends are slower than they used to be.
    ratios: Vec<LatencyRatio>,
    /// What is usual, per backend.
    baselines: Vec<Baseline>,
    /// Whether they are sick.
    health: Vec<Health>,
    /// Who owns which slot, before a cluster.
    slots: Option<Box<Slots>>,
    /// Who answers reads that replicas may answer.
    readers: Option<Box<Readers>>,
}

impl Back {
    /// No connection is open yet.
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
        // They share what there is for this core.
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

    /// How long backends took.
    pub fn service_times(&self) -> ServiceTimes {
        self.service_times.told()
    }

    /// Replies that backends owe.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// True while requests of a slot are held back because it changes its owner.
    pub fn is_holding(&self, slot: u16) -> bool {
        self.slots.as_ref().is_some_and(|slots| slots.is_holding(slot))
    }

    /// Is something owed that was put on a connection to a backend at that time, or before it; or was, for a slot, and has been sent again?
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

    /// Connections that are open.
    pub fn links_open(&self) -> usize {
        self.links.iter().filter(|link| link.state == LinkState::Open).count()
    }

    /// What stands between connections that were given up and those that follow.
    pub fn fences(&mut self) -> &mut Fences {
        &mut self.fences
    }

    /// What another shard tells of fences, before anything else of its batch is done.
    pub fn hear_fences(&mut self, (raised, lifted): (Vec<Fence>, Vec<(ShardId, u64)>)) {
        raised.into_iter().for_each(|fence| self.fences.hear(fence));
        lifted.into_iter().for_each(|(origin, sequence)| {
            self.fences.lift(origin, sequence);
        });
    }

    /// Fences of this shard's own that have come to stand no more since this was asked last.
    pub fn take_lifted(&mut self) -> impl Iterator<Item = u64> {
        std::mem::take(&mut self.lifted).into_iter()
    }

    /// Bytes that should go out, if any.
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

    /// A socket is done with a segment.
    pub fn handle_transmitted(&mut self, connection: ConnectionId, generation: u32) {
        if let Some(link) = self.current_link(connection, generation) {
            link.sending = false;
            self.list_to_send(connection);
        }
    }

    /// Gives back what long pipelines took.
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
