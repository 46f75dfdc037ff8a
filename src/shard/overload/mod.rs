//! Overload: limits on the requests in flight to each backend, and the queueing or refusal of requests beyond them. Has
//! no access to connections or clients.
//!
//! | what | file |
//! |---|---|
//! | the window and the queue before one backend | `bulkhead.rs` |
//! | requests that wait in queues, and how they leave them | `waiting.rs` |
//! | replies as samples: the window's size, and response times against usual ones | `pressure.rs` |

mod bulkhead;
mod pressure;
mod waiting;

pub use bulkhead::{Bulkhead, Figures as BulkheadFigures, Parked, RESERVED, Verdict};

use std::time::Duration;

use super::durations::Durations;
use super::env::Env;
use super::refusal::NotSent;
use super::request::{Addressee, Track};
use super::settings::{BULKHEADS, Mode, ShardSettings};
use crate::policy::baseline::Baseline;
use crate::policy::latency_ratio::LatencyRatio;
use crate::protocol::command::Class;
use crate::values::{BackendId, Timestamp};

/// The least limit (1 MiB) on the bytes of requests in each queue in front of a backend, however many queues share this
/// core's limit.
const QUEUE_BYTES_LEAST: usize = 1 << 20;

/// The windows (limits on requests in flight), queues and response times of all backends, on one core.
#[derive(Debug)]
pub struct Overload {
    /// Windows (limits on requests in flight) and queues by backend and track (usual or expensive
    /// requests): the index is 2 times the backend's number, plus 1 for expensive requests.
    bulkheads: Vec<Bulkhead>,
    /// Indices of bulkheads (windows and queues) with waiting requests or a stalled (silent) backend. They
    /// are handled at the end of each turn (pass of the shard's loop).
    listed: Vec<usize>,
    /// Requests pushed out of a full queue by more important ones, still to be answered with a refusal,
    /// each with its reason.
    turned_away: Vec<(Addressee, NotSent)>,
    /// True if requests that find no room in a backend's window (limit on requests in flight) wait in a
    /// queue rather than being refused.
    may_wait: bool,
    /// Whether requests that cannot be answered by their deadline are refused: on, off, or only counted.
    deadlines: Mode,
    /// The time of the next search of the requests in flight for passed deadlines and stalled (silent) backends;
    /// `Timestamp::MAX` if none is planned.
    early_at: Timestamp,
    service_times: Durations,
    /// The latency ratio of each backend: usual response times divided by recent ones, less than 1 when it
    /// is slow.
    ratios: Vec<LatencyRatio>,
    /// The usual response times of each backend, by class of commands, against which each reply's time is
    /// compared.
    baselines: Vec<Baseline>,
}

impl Overload {
    /// Creates the windows (limits on requests in flight), queues and response times that a core keeps for all
    /// backends, with no requests in flight.
    pub fn new(settings: &ShardSettings) -> Self {
        let topology = settings.topology;
        let mut overload = settings.overload.clone();
        // Each queue gets an equal part of this core's limit.
        let parts = usize::from(topology.backends()) * BULKHEADS;
        overload.queue_limit.bytes = (overload.queue_limit.bytes / parts.max(1)).max(QUEUE_BYTES_LEAST);
        let bulkheads = topology.all_backends().flat_map(|_| [Track::Usual, Track::Heavy]);
        let bulkheads = bulkheads
            .map(|track| Bulkhead::new(topology.shards(), &overload, track == Track::Heavy))
            .collect();
        Self {
            bulkheads,
            listed: Vec::new(),
            turned_away: Vec::new(),
            may_wait: overload.window == Mode::On && overload.queue != Mode::Off,
            deadlines: overload.shed,
            early_at: Timestamp::MAX,
            service_times: Durations::default(),
            ratios: topology
                .all_backends()
                .map(|_| LatencyRatio::new(overload.shed_levels, Timestamp::ZERO))
                .collect(),
            baselines: topology.all_backends().map(|_| Baseline::default()).collect(),
        }
    }

    /// Returns the bulkhead (window and queue) with this index ([`bulkhead_for`]).
    #[inline]
    pub fn bulkhead(&self, index: usize) -> &Bulkhead {
        &self.bulkheads[index]
    }

    /// Returns the bulkhead (window and queue) with this index ([`bulkhead_for`]), to be changed.
    #[inline]
    pub fn bulkhead_mut(&mut self, index: usize) -> &mut Bulkhead {
        &mut self.bulkheads[index]
    }

    /// Forgets the response times of a backend, and all limits that follow from them, because another server has its
    /// place.
    pub fn forget_times(&mut self, env: &Env, backend: BackendId, now: Timestamp) {
        let (id, settings) = (env.settings.id, &env.settings.overload);
        for index in bulkheads_of(backend) {
            self.bulkheads[index].forget_times(now, settings.board.of(id, index));
        }
        let index = usize::from(backend.0);
        self.ratios[index] = LatencyRatio::new(settings.shed_levels, now);
        settings.board.of(id, index * BULKHEADS).tell_level(self.ratios[index].told(now));
        self.baselines[index] = Baseline::default();
    }

    /// Returns the backend that the bulkhead (window and queue) with this index belongs to.
    pub fn backend_of(index: usize) -> BackendId {
        BackendId((index / BULKHEADS) as u16)
    }

    /// Returns the backends that, at the last check, had sent nothing for 50 ms although requests were in flight to
    /// them, so that they are asked whether they are busy with a script. Empty unless windows are on.
    pub fn silent(&self) -> Vec<BackendId> {
        let silent = |index: &usize| self.bulkheads[*index].is_silent();
        let mut backends: Vec<BackendId> =
            (0..self.bulkheads.len()).filter(silent).map(Self::backend_of).collect();
        backends.dedup();
        backends
    }

    /// Records whether a backend is busy with a script, as its reply to a `PING` over another connection shows, and
    /// publishes that to other cores. A track (set of connections) on which the backend is not silent does not count as
    /// busy.
    pub fn handle_sign(&mut self, settings: &ShardSettings, backend: BackendId, is_busy: bool) {
        for index in bulkheads_of(backend) {
            self.bulkheads[index].handle_sign(is_busy);
            self.tell_load(settings, index);
        }
    }

    /// True if any core has found that a backend is busy with a script.
    pub fn is_busy_anywhere(settings: &ShardSettings, backend: BackendId) -> bool {
        let board = &settings.overload.board;
        bulkheads_of(backend).any(|index| board.of(settings.id, index).is_busy())
    }

    /// Returns the number of bulkheads (windows and queues) on this core.
    pub fn len(&self) -> usize {
        self.bulkheads.len()
    }

    /// True if requests that find no room in a backend's window (limit on requests in flight) wait in a
    /// queue rather than being refused.
    #[inline]
    pub fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// Returns whether requests that cannot be answered by their deadline are refused: on, off, or only
    /// counted.
    pub fn deadlines(&self) -> Mode {
        self.deadlines
    }

    /// Returns the time of the next search of the requests in flight for passed deadlines and stalled (silent)
    /// backends; `Timestamp::MAX` if none is planned.
    #[inline]
    pub fn early_at(&self) -> Timestamp {
        self.early_at
    }

    /// Makes the next search of the requests in flight (for passed deadlines) happen by `at` at the latest.
    #[inline]
    pub fn search_by(&mut self, at: Timestamp) {
        self.early_at = self.early_at.min(at);
    }

    /// Plans no search of the requests in flight until [`Overload::search_by`] is called.
    pub fn plan_no_search(&mut self) {
        self.early_at = Timestamp::MAX;
    }

    /// Returns a histogram of the times from sending a request to its reply, over all backends, as seen by this core.
    /// Requests that a backend which is itself a weir refused do not count.
    pub fn service_times(&self) -> Durations {
        self.service_times.told()
    }

    /// Returns the 95th percentile of a backend's recent response times in a class of commands; None if there
    /// were too few replies.
    pub fn recent_p95(&self, backend: BackendId, class: Class) -> Option<Duration> {
        self.ratios[usize::from(backend.0)].recent_p95(class.index())
    }

    /// Tells all queues that this core did not run for `late`, so that waiting requests do not age by that
    /// time.
    pub fn handle_late(&mut self, late: Duration) {
        self.bulkheads.iter_mut().for_each(|bulkhead| bulkhead.handle_late(late));
    }

    /// Returns the figures of all bulkheads (windows and queues), in the order of backends and tracks. Fields
    /// about the breaker are left empty.
    pub fn figures(&self, env: &Env) -> impl Iterator<Item = (BackendId, BulkheadFigures)> {
        self.bulkheads.iter().enumerate().map(|(index, bulkhead)| {
            let place = index / BULKHEADS;
            let ratio = &self.ratios[place];
            let latency_ratio = ratio.seen().map(|seen| seen.ratio);
            let level = ratio.level() as u8;
            let refused = env.refused_for(place);
            let figures = BulkheadFigures { level, latency_ratio, refused, ..bulkhead.figures() };
            (BackendId(place as u16), figures)
        })
    }

    /// Frees the memory that the queues took while many requests waited, where none waits any more.
    pub fn tidy(&mut self) {
        self.bulkheads.iter_mut().for_each(Bulkhead::tidy);
    }
}

/// Returns the index of the bulkhead (window and queue) that requests to a backend pass on a track (set of
/// connections).
#[inline]
pub const fn bulkhead_for(backend: BackendId, track: Track) -> usize {
    // Reads for replicas pass through their node's usual bulkhead, which nothing else uses.
    backend.0 as usize * BULKHEADS + track as usize % BULKHEADS
}

/// Returns the indices of the bulkheads (windows and queues) of a backend.
pub fn bulkheads_of(backend: BackendId) -> std::ops::Range<usize> {
    let first = usize::from(backend.0) * BULKHEADS;
    first..first + BULKHEADS
}

const _: () = assert!(Track::Replica as usize % BULKHEADS == Track::Usual as usize);
