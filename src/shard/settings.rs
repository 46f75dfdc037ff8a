//! Settings that a shard receives when it starts, and that do not change afterwards.

use std::sync::Arc;
use std::time::Duration;

use super::board::Noticeboard;
use super::filter_board::FilterBoard;
use super::health::HealthBoard;
use super::hot_slots::HotSlots;
use super::monitor_board::MonitorBoard;
use super::script_board::ScriptBoard;
use super::subscription_board::SubscriptionBoard;
use super::versions::Versions;
use crate::config::HotScripts;
use crate::policy::fixed_window::FixedWindows;
use crate::policy::hot_keys::HotSettings as Detection;
use crate::policy::queue::{Held, Patience};
use crate::policy::seats::Seats;
use crate::policy::window::Bounds;
use crate::protocol::Protocol;
use crate::protocol::http::Rules;
use crate::routing::Topology;
use crate::values::limits::SHARED_PATTERNS_MAX;
use crate::values::{MicroUnits, ShardId, UNIT, Weights};

/// Settings of one backend: its name and weir's credentials there.
#[derive(Clone, Debug)]
pub struct BackendSettings {
    /// Address of the backend, as refusals and metrics name it.
    pub name: String,
    /// Credentials that weir logs in with: user name (if any) and password. None if it does not log in.
    pub credentials: Option<(Option<String>, String)>,
}

impl BackendSettings {
    /// Returns the words of the request with which weir logs in and chooses the RESP version; None if neither
    /// is needed.
    pub fn login_words(&self, protocol: Protocol) -> Option<Vec<&str>> {
        match (protocol, &self.credentials) {
            (Protocol::Resp2, None) => None,
            (Protocol::Resp2, Some((None, password))) => Some(vec!["AUTH", password]),
            (Protocol::Resp2, Some((Some(user), password))) => Some(vec!["AUTH", user, password]),
            (Protocol::Resp3, None) => Some(vec!["HELLO", "3"]),
            (Protocol::Resp3, Some((user, password))) => {
                Some(vec!["HELLO", "3", "AUTH", user.as_deref().unwrap_or("default"), password])
            }
        }
    }
}

/// All settings of a shard: those that are the same for all shards of the process, and its own id.
#[derive(Clone, Debug)]
pub struct ShardSettings {
    /// Id of the shard: its index among all shards.
    pub id: ShardId,
    /// Numbers of shards and backends, and the assignment of slots to them.
    pub topology: Topology,
    /// The backends, in the order of the topology.
    pub backends: Arc<[BackendSettings]>,
    /// Number of usual connections of this shard to each backend for each RESP version.
    pub links_per_backend: u16,
    /// Number of further connections to each backend and RESP version for expensive requests. With 0, such
    /// requests share the usual connections.
    pub heavy_links: u16,
    /// The largest number of private links (connections to stores that one client has to itself) of this
    /// core. Commands that need a further one are refused; with 0, all that need one.
    pub private_links_max: usize,
    /// Number of databases of each backend that clients may select, 1 to 256.
    pub databases: u16,
    /// Estimated price from which a request is sent over the connections for expensive requests, in
    /// millionths of a request unit.
    pub heavy_from: MicroUnits,
    /// The most bytes that a client's request may have, without the framing of its words.
    pub request_bytes_max: usize,
    /// The largest reply that is accepted from a backend, in bytes.
    pub reply_bytes_max: usize,
    /// Most bytes of replies that may wait for one client that does not read; with more, it is closed.
    pub output_bytes_max: usize,
    /// Time without a byte received from a client, or a reply sent to it, after which it is closed, unless a reply is
    /// owed to it, or it is a subscriber or monitor (`MONITOR`). None means never.
    pub idle_timeout: Option<Duration>,
    /// Time after which a client is closed that has not accepted all of one send, of at most 1 MiB of the
    /// replies that wait for it.
    pub send_timeout: Duration,
    /// Time without any bytes after which a backend connection that owes a reply is given up.
    pub reply_timeout: Duration,
    /// Time without success after which an attempt to connect to a backend is given up.
    pub connect_timeout: Duration,
    /// Seed of the shard's random numbers, which vary pauses and choose between replicas.
    pub seed: u64,
    /// Settings for pricing and admission of requests.
    pub admission: AdmissionSettings,
    /// Limits on the memory, connections and waits of clients, and rules for clients over HTTP.
    pub clients: ClientLimits,
    /// Windows (limits on requests in flight), queues, shedding and breakers in front of backends.
    pub overload: OverloadSettings,
    /// Detection of hot keys, and the cache of their replies.
    pub hot: HotSettings,
    /// Mode of reads from replicas: whether replicas of a cluster answer reads of tenants that allow it.
    /// Without a cluster there are no replicas.
    pub replicas: Mode,
    /// Mode of retries: whether reads that were lost with a connection to a cluster node are sent again.
    pub retries: Mode,
}

impl ShardSettings {
    /// Creates settings of shard 0 in front of these backends, for tests and benchmarks: default layers,
    /// except that replicas and retries are off; one connection of each kind; messages of 1 MiB at most; no
    /// idle timeout. Clones share the boards (data of all shards), as the shards of one process do.
    pub fn new(topology: Topology, backends: Arc<[BackendSettings]>) -> Self {
        Self {
            id: ShardId(0),
            topology,
            backends,
            links_per_backend: 1,
            heavy_links: 1,
            private_links_max: 0,
            databases: 16,
            heavy_from: 20 * UNIT,
            request_bytes_max: 1 << 20,
            reply_bytes_max: 1 << 20,
            output_bytes_max: 1 << 20,
            idle_timeout: None,
            send_timeout: Duration::from_secs(30),
            reply_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(1),
            seed: 1,
            admission: AdmissionSettings::default(),
            clients: ClientLimits::default(),
            overload: OverloadSettings::new(topology.shards(), topology.backends()),
            hot: HotSettings::new(topology.backends()),
            replicas: Mode::Off,
            retries: Mode::Off,
        }
    }
}

/// Settings for the detection of hot keys and for the cache of their replies.
#[derive(Clone, Debug)]
pub struct HotSettings {
    /// Mode of the cache: whether replies to reads of hot keys are kept, and shared by requests.
    pub mode: Mode,
    /// Rates of requests from which a key counts as hot.
    pub detection: Detection,
    /// Time for which a reply to a read of a hot key is kept, unless its store reports changes of its key.
    pub ttl: Duration,
    /// Time for which a reply is kept while its store reports changes of its key; None if stores are not
    /// asked to report them.
    pub tracked_ttl: Option<Duration>,
    /// The largest number of replies to reads of hot keys that a core keeps. To keep a further one, it drops expired
    /// ones; if there are none, the reply is not kept.
    pub entries_max: usize,
    /// The largest number of bytes that the kept replies (those held in memory) of a core may have. To keep a further
    /// one, it drops expired ones; if that does not suffice, the reply is not kept.
    pub bytes_max: usize,
    /// Rates of requests for a key, per second, at which the key's home core (the core through which its
    /// requests pass) lends another core copies of its replies: the rate from all other cores together, and
    /// that from the one core. Both must be reached.
    pub copied_from: [u64; 2],
    /// Limit of writes to one hot key, per second; None means no limit.
    pub write_rate: Option<u64>,
    /// Whether a script counts as writing any key, or only those that it names.
    pub scripts: HotScripts,
    /// Seed of the hash of keys. Secret, so that clients cannot build colliding keys; the same for all
    /// shards.
    pub seed: u64,
    /// Write counters of the keys, shared by all cores, by which kept replies become invalid.
    pub versions: Arc<Versions>,
    /// Numbers of hot keys by hash slot, shared by all cores, by which reads of several keys are split.
    pub slots: Arc<HotSlots>,
}

impl HotSettings {
    /// Creates the default settings, with write counters for this many backends.
    pub fn new(backends: u16) -> Self {
        Self {
            mode: Mode::On,
            detection: Detection::default(),
            ttl: Duration::from_secs(1),
            tracked_ttl: None,
            entries_max: 1024,
            bytes_max: 16 << 20,
            copied_from: [20_000, 2_000],
            write_rate: None,
            scripts: HotScripts::Strict,
            seed: 0,
            versions: Arc::new(Versions::new(backends)),
            slots: Arc::default(),
        }
    }
}

/// Mode of one layer of the traffic management, such as quotas, queues or the breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The layer (part of the traffic management) does nothing.
    Off,
    /// The layer (part of the traffic management) runs and counts its decisions, but they have no effect.
    Shadow,
    /// The layer (part of the traffic management) runs and its decisions take effect.
    #[default]
    On,
}

/// Settings for windows (limits on requests in flight), queues, shedding and breakers.
#[derive(Clone, Debug)]
pub struct OverloadSettings {
    /// Mode of the windows, which limit the requests in flight at each backend.
    pub window: Mode,
    /// Mode of the queues, in which requests wait for room in a window (limit on requests in flight).
    pub queue: Mode,
    /// Mode of deadlines, and of refusing less important requests, or pricing them higher, when stores become
    /// slow.
    pub shed: Mode,
    /// The smallest and the largest size of a window, in requests.
    pub window_bounds: Bounds,
    /// True if the limit on expensive requests in flight at a backend is lowered while its replies to cheap ones come
    /// late.
    pub heavy_yields: bool,
    /// The largest number of this core's requests that may wait in front of each backend, and of their bytes
    /// in front of all backends together. Further requests are refused, or push out less important ones.
    pub queue_limit: Held,
    /// Times by which the queues refuse requests that have waited for too long: the longest wait in an overloaded tier
    /// (importance), and an interval, multiples of which are the longest wait in other tiers and the time after which a
    /// tier may count as overloaded.
    pub queue_patience: Patience,
    /// Ratios of a backend's usual latency to its present one below which its shedding levels begin (less
    /// important requests cost more or are refused), one per level, the highest ratio first.
    pub shed_levels: [f64; 3],
    /// Mode of the breakers, which refuse requests to an unhealthy store.
    pub breaker: Mode,
    /// Board on which cores share the state of their bulkheads (windows and queues).
    pub board: Arc<Noticeboard>,
    /// Board on which cores share the health of the stores.
    pub health: Arc<HealthBoard>,
}

impl OverloadSettings {
    /// Creates the default overload settings for this many cores and backends, with window, queue, shedding
    /// and breaker all on.
    pub fn new(shards: u16, backends: u16) -> Self {
        Self {
            window: Mode::On,
            queue: Mode::On,
            shed: Mode::On,
            window_bounds: Bounds::default(),
            heavy_yields: true,
            queue_limit: Held { requests: 8192, bytes: 64 << 20 },
            queue_patience: Patience::default(),
            shed_levels: [0.7, 0.5, 0.3],
            breaker: Mode::On,
            health: Arc::new(HealthBoard::new(shards, backends)),
            board: Arc::new(Noticeboard::new(shards, usize::from(backends) * BULKHEADS)),
        }
    }

    /// Creates settings for this many cores and backends with window, queue, shedding and breaker all off.
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

/// Number of bulkheads (windows and queues) in front of one backend: one for the usual connections and one
/// for the heavy ones.
pub const BULKHEADS: usize = 2;

/// Method by which requests are admitted or refused.
#[derive(Clone, Debug)]
pub enum Limiter {
    /// All requests are admitted, and none is priced.
    Off,
    /// All requests are admitted. Token buckets decide which of them would have been refused, and these are
    /// counted.
    Shadow,
    /// A request is admitted if the payer's token buckets have enough for its price.
    Buckets,
    /// A fixed number of each tenant's requests is admitted per second, whatever they cost. All cores count
    /// together, as a single server with fixed windows would; a tenant's count is found by its name.
    Static(FixedWindows),
}

/// Settings for pricing and admission.
#[derive(Clone, Debug)]
pub struct AdmissionSettings {
    /// Method by which requests are admitted.
    pub limiter: Limiter,
    /// Weights of the terms, such as bytes and keys, whose sum is a request's price.
    pub weights: Weights,
    /// Interval at which a core reports to the control executor how much of the quotas it spent.
    pub period: Duration,
    /// The largest number of elements that one `SCAN`, `HSCAN`, `SSCAN` or `ZSCAN` request may look at, whatever
    /// `COUNT` the client asks for.
    pub scan_count_max: u32,
    /// Key of the hash of tenants' and users' names. Secret, so that clients cannot build colliding names;
    /// the same for all shards.
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

/// Limits on the memory, connections and waits of clients, and rules for clients over HTTP.
#[derive(Clone, Debug)]
pub struct ClientLimits {
    /// Time after which a client that has not logged in is closed; None means never.
    pub login_timeout: Option<Duration>,
    /// Number of bytes of memory that the clients of all shards may take together (for requests and replies); above it,
    /// the largest clients are closed.
    pub bytes_max: usize,
    /// Counts of each tenant's connections (seats) over all shards, with their limits.
    pub seats: Seats,
    /// The board of the clients of all shards that have sent `MONITOR`. If it has no places for monitors,
    /// `MONITOR` is refused.
    pub monitors: Arc<MonitorBoard>,
    /// The subscriptions of all shards that stores have not acknowledged yet.
    pub subscriptions: Arc<SubscriptionBoard>,
    /// The numbers of patterns and key prefixes that clients of all shards have at stores.
    pub filters: Arc<FilterBoard>,
    /// The scripts, seen by any shard, that declare that they write nothing.
    pub scripts: Arc<ScriptBoard>,
    /// Longest time that a message (`PUBLISH`) waits until other cores have handled what came before it, and
    /// stores have acknowledged earlier subscriptions; zero if it does not wait.
    pub publish_wait: Duration,
    /// Maximum numbers of channels and of patterns for which one core, as their home core (the one that
    /// subscribes for the clients of all cores), has one subscription for all clients. Subscriptions to
    /// further ones are refused.
    pub shared_channels_max: [usize; 2],
    /// Bytes of messages that may wait for one subscriber; a subscriber with more is closed.
    pub subscriber_bytes_max: usize,
    /// Bytes of messages that may wait for one subscriber for any time. A subscriber with more for
    /// `subscriber_slow_time` is closed.
    pub subscriber_slow_bytes: usize,
    /// Longest time for which more than `subscriber_slow_bytes` bytes may wait for one subscriber.
    pub subscriber_slow_time: Duration,
    /// Origins of web pages that may send requests over HTTP, and host names, besides IP addresses and localhost, by
    /// which HTTP requests without an `Authorization` header may address weir.
    pub web: Arc<Rules>,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            login_timeout: None,
            bytes_max: usize::MAX,
            seats: Seats::unlimited(),
            monitors: Arc::new(MonitorBoard::new(16)),
            subscriptions: Arc::default(),
            filters: Arc::default(),
            scripts: Arc::default(),
            publish_wait: Duration::from_millis(100),
            shared_channels_max: [16_384, SHARED_PATTERNS_MAX],
            subscriber_bytes_max: 32 << 20,
            subscriber_slow_bytes: 8 << 20,
            subscriber_slow_time: Duration::from_secs(60),
            web: Arc::default(),
        }
    }
}

impl ShardSettings {
    /// Returns the bytes of memory that clients of this core may hold even if those of other cores hold more
    /// than their share.
    pub fn clients_bytes_share(&self) -> usize {
        self.clients.bytes_max / usize::from(self.topology.shards())
    }

    /// Returns the bytes that large replies may take on this core while they are being received from stores: a
    /// quarter of the clients' share, but at least the largest permitted reply.
    pub fn large_replies_bytes(&self) -> usize {
        (self.clients_bytes_share() / 4).max(self.reply_bytes_max)
    }

    /// Returns the most bytes of messages that may wait for one subscriber before it is closed: the limit for
    /// subscribers, or the one for all clients if that is lower.
    pub fn subscriber_bytes_max(&self) -> usize {
        self.clients.subscriber_bytes_max.min(self.output_bytes_max)
    }

    /// Returns the number of connections to each backend and RESP version for reads that a replica may
    /// answer: 1 if replicas are on, else 0.
    #[inline]
    pub fn replica_links(&self) -> u16 {
        u16::from(self.replicas == Mode::On)
    }

    /// Returns the index, among the usual connections to a backend, of the one over which requests for a slot are sent.
    #[inline]
    pub fn lane_of(&self, slot: u16) -> u16 {
        // The low bits of the slot decide, because the high ones have chosen the core and the backend.
        if self.links_per_backend == 1 { 0 } else { slot % self.links_per_backend }
    }
}
