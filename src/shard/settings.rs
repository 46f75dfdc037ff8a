//! What a shard is told once, when it starts.

use std::sync::Arc;
use std::time::Duration;

use super::board::Noticeboard;
use super::health::HealthBoard;
use super::versions::Versions;
use crate::config::HotScripts;
use crate::policy::fixed_window::FixedWindows;
use crate::policy::hot_keys::HotSettings as Detection;
use crate::policy::queue::{Held, Patience};
use crate::policy::seats::Seats;
use crate::policy::window::Bounds;
use crate::protocol::http::Rules;
use crate::routing::Topology;
use crate::values::{MicroUnits, ShardId, Weights};

/// A store, as this core sees it.
#[derive(Clone, Debug)]
pub struct BackendSettings {
    /// Its address, as refusals and metrics name it.
    pub name: String,
    /// Weir's own credentials there: user name (if any) and password.
    pub credentials: Option<(Option<String>, String)>,
}

/// What a shard is told once.
#[derive(Clone, Debug)]
pub struct ShardSettings {
    /// Which shard it is.
    pub id: ShardId,
    /// How many shards and backends there are.
    pub topology: Topology,
    /// The backends, in the order of the topology.
    pub backends: Arc<[BackendSettings]>,
    /// Connections of this shard to each backend in each dialect.
    pub links_per_backend: u16,
    /// The same for requests that cost much, on top of those; none of them, and such requests travel among all others.
    pub heavy_links: u16,
    /// What costs much.
    pub heavy_from: MicroUnits,
    /// The largest value that a client may send.
    pub request_bytes_max: usize,
    /// The largest reply that is taken from a backend.
    pub reply_bytes_max: usize,
    /// What may wait for one client that does not read, before it is closed.
    pub output_bytes_max: usize,
    /// Clients that say nothing for so long are closed.
    pub idle_timeout: Option<Duration>,
    /// Clients that take nothing for so long, though something waits for them, are closed.
    pub send_timeout: Duration,
    /// A backend that owes a reply for so long is given up.
    pub reply_timeout: Duration,
    /// A backend that does not accept for so long is given up.
    pub connect_timeout: Duration,
    /// Where its own randomness starts.
    pub seed: u64,
    /// How requests are priced and admitted.
    pub admission: AdmissionSettings,
    /// What clients may hold.
    pub clients: ClientLimits,
    /// What stands before backends.
    pub overload: OverloadSettings,
    /// Which keys are hot, and what is kept of them.
    pub hot: HotSettings,
    /// Whether replicas of a cluster answer reads of those who allow it; without a cluster there are none.
    pub replicas: Mode,
    /// Whether reads that were lost with a connection to a node of a cluster are asked for again.
    pub retries: Mode,
}

/// What a shard is told about hot keys.
#[derive(Clone, Debug)]
pub struct HotSettings {
    /// Whether replies are kept and shared.
    pub mode: Mode,
    /// What makes a key hot.
    pub detection: Detection,
    /// How long a reply is kept.
    pub ttl: Duration,
    /// Replies that a core keeps.
    pub entries_max: usize,
    /// Bytes of those.
    pub bytes_max: usize,
    /// A key's replies are lent to other cores that ask so often per second: all of them together, and each.
    pub copied_from: [u64; 2],
    /// Writes of one hot key per second, if they are limited.
    pub write_rate: Option<u64>,
    /// What is thought of scripts.
    pub scripts: HotScripts,
    /// Makes hashes of keys that nobody outside can foretell; the same for all shards.
    pub seed: u64,
    /// How often keys were written, as all cores see it.
    pub versions: Arc<Versions>,
}

impl HotSettings {
    /// All of it, for so many backends.
    pub fn new(backends: u16) -> Self {
        Self {
            mode: Mode::On,
            detection: Detection::default(),
            ttl: Duration::from_secs(1),
            entries_max: 1024,
            bytes_max: 16 << 20,
            copied_from: [20_000, 2_000],
            write_rate: None,
            scripts: HotScripts::Strict,
            seed: 0,
            versions: Arc::new(Versions::new(backends)),
        }
    }
}

/// How far a layer goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is not there.
    Off,
    /// It decides and counts, and is not obeyed.
    Shadow,
    /// It is obeyed.
    #[default]
    On,
}

/// What a shard is told about windows, queues and shedding.
#[derive(Clone, Debug)]
pub struct OverloadSettings {
    /// How many requests are in flight at once.
    pub window: Mode,
    /// What waits for that, and for how long.
    pub queue: Mode,
    /// Deadlines, and what is refused or dearer by its tier when stores become slow.
    pub shed: Mode,
    /// Between what windows may grow and shrink.
    pub window_bounds: Bounds,
    /// Requests that may wait before each backend, and bytes of those before all of them together, for this core.
    pub queue_limit: Held,
    /// And for how long.
    pub queue_patience: Patience,
    /// Below which latency ratios less important work is held back, the highest one first.
    pub shed_levels: [f64; 3],
    /// Stores that are left alone while they are sick.
    pub breaker: Mode,
    /// What cores tell each other.
    pub board: Arc<Noticeboard>,
    /// See there.
    pub health: Arc<HealthBoard>,
}

impl OverloadSettings {
    /// All of it, for so many cores and backends.
    pub fn new(shards: u16, backends: u16) -> Self {
        Self {
            window: Mode::On,
            queue: Mode::On,
            shed: Mode::On,
            window_bounds: Bounds::default(),
            queue_limit: Held { requests: 8192, bytes: 64 << 20 },
            queue_patience: Patience::default(),
            shed_levels: [0.7, 0.5, 0.3],
            breaker: Mode::On,
            health: Arc::new(HealthBoard::new(shards, backends)),
            board: Arc::new(Noticeboard::new(shards, usize::from(backends) * BULKHEADS)),
        }
    }

    /// None of it.
    pub fn off(shards: u16, backends: u16) -> Self {
        Self {
            window: Mode::Off,
            queue: Mode::Off,
            shed: Mode::Off,
            breaker: Mode::Off,
            ..Self::new(shards, backends)
        }
    }
}

/// Bulkheads before one backend: one for each track.
pub const BULKHEADS: usize = 2;

/// How requests are admitted.
#[derive(Clone, Debug)]
pub enum Limiter {
    /// All of them, unpriced.
    Off,
    /// By buckets, but what does not fit passes too, and is only counted.
    Shadow,
    /// By buckets.
    Buckets,
    /// By a count of requests per tenant and second, and nothing else.
    Static(FixedWindows),
}

/// What a shard is told about pricing and admission.
#[derive(Clone, Debug)]
pub struct AdmissionSettings {
    /// How requests are admitted.
    pub limiter: Limiter,
    /// What the terms of a price weigh.
    pub weights: Weights,
    /// How often a core tells the pools what it spent.
    pub period: Duration,
    /// A walk is asked to look at no more than so much in one step, whatever the client wants.
    pub scan_count_max: u32,
    /// Makes hashes of names that nobody outside can foretell; the same for all shards.
    pub secret: [u64; 2],
}

impl Default for AdmissionSettings {
    fn default() -> Self {
        Self {
            limiter: Limiter::Buckets,
            weights: Weights::default(),
            period: Duration::from_millis(10),
            scan_count_max: 10_000,
            secret: [0; 2],
        }
    }
}

/// What clients may hold, and which of them are served over HTTP.
#[derive(Clone, Debug)]
pub struct ClientLimits {
    /// Whoever has yet to log in is closed after so long.
    pub login_timeout: Option<Duration>,
    /// Bytes that all clients of all shards may hold together.
    pub bytes_max: usize,
    /// Connections of each tenant, over all shards.
    pub seats: Seats,
    /// Web pages that may ask over HTTP, and names by which they may.
    pub web: Arc<Rules>,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self { login_timeout: None, bytes_max: usize::MAX, seats: Seats::unlimited(), web: Arc::default() }
    }
}

impl ShardSettings {
    /// What clients of this core may hold however much those of others do.
    pub fn clients_bytes_share(&self) -> usize {
        self.clients.bytes_max / usize::from(self.topology.shards())
    }

    /// Connections to each backend in each dialect for reads that may be answered by a replica.
    #[inline]
    pub fn replica_links(&self) -> u16 {
        u16::from(self.replicas == Mode::On)
    }

    /// Which of the usual connections to a backend a slot uses.
    #[inline]
    pub fn lane_of(&self, slot: u16) -> u16 {
        // The low bits of the slot: the high ones have chosen the core and the backend.
        if self.links_per_backend == 1 { 0 } else { slot % self.links_per_backend }
    }
}
