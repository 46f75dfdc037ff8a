//! Reports of shards, and facts about the process as a whole.

use std::sync::Arc;
use std::time::Duration;

use super::{QuotaHistory, ReplicaFacts, TlsFigures};
use crate::routing::cluster::Map;
use crate::shard::{
    BulkheadFigures, Counters, Durations, HotFigures, HotKey, Pressures, PrivateFigures, ReaderFigures,
    Shard, UserFigures,
};
use crate::store::EngineStatistics;
use crate::values::StoreVersion;

/// The counters and gauges of a shard at a moment.
#[derive(Clone, Debug, Default)]
pub struct ShardReport {
    /// The shard's counters.
    pub counters: Counters,
    /// The number of clients connected to the shard.
    pub clients_open: usize,
    /// The number of the shard's clients that watch requests (`MONITOR`).
    pub monitors: usize,
    /// The number of replies that backends owe the shard on its shared connections: its requests in flight
    /// there.
    pub replies_owed: usize,
    /// The number of the shard's open connections to backends that all clients share.
    pub links_open: usize,
    /// The numbers of private links (connections to backends that are not shared by all clients) by use, idle
    /// ones included.
    pub private_links: PrivateFigures,
    /// The numbers of places that the shard's clients take at stores with patterns of channels, and with key
    /// prefixes for tracking: one for each, or several for one that is slow to compare.
    pub filters: [usize; 2],
    /// The number of the shard's clients that are subscribed to channels.
    pub subscribers: usize,
    /// The number of the shard's clients whose requests wait for the end of a `CLIENT PAUSE`.
    pub paused_clients: usize,
    /// Number of the shard's clients for which stores track keys (`CLIENT TRACKING`).
    pub tracking_clients: usize,
    /// The numbers of channels and of patterns whose one subscription for all clients of the process this
    /// shard makes at the stores; also counted until stores have acknowledged its beginning or its end.
    pub shared_channels: [usize; 2],
    /// The distribution of the times from sending a request to a backend to its whole reply.
    pub service_times: Durations,
    /// The state of each bulkhead (window and queue before a backend), by backend number and, within it,
    /// track (usual connections, then those for heavy requests).
    pub bulkheads: Vec<BulkheadFigures>,
    /// Numbers of requests that the shard refused because of overload, by reason and tier (importance).
    pub pressures: Pressures,
    /// Figures on the shard's hot keys: how many there are, replies to their reads that it holds in memory,
    /// and fetches in flight for them, among others.
    pub hot: HotFigures,
    /// The distribution of the ages (time since the store was asked) of the replies that were sent from
    /// memory.
    pub hot_ages: Durations,
    /// Reports on the keys of the shard that are hot (requested often) or whose requests cost much.
    pub hot_keys: Vec<HotKey>,
    /// Each node's figures for reads that replicas may answer, by backend number.
    pub readers: Vec<ReaderFigures>,
    /// Numbers of the users for whose quotas the shard keeps token buckets.
    pub users: UserFigures,
    /// The counters of the shard's event loop.
    pub event_loop: EventLoopFigures,
}

/// Counters of a core's event loop. Few turns (rounds of work between two waits) per request mean that many
/// requests are handled together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventLoopFigures {
    /// The number of turns (rounds of work between two waits for the ring) that found something to do.
    pub turns: u64,
    /// The number of times that the core slept, because it had nothing to do.
    pub sleeps: u64,
    /// The number of times that the core woke another, sleeping core because it had sent it something.
    pub doorbells: u64,
    /// The number of the core's sleeps that ended by timeout although there was something to do; more than a
    /// few mean lost wake-ups.
    pub overslept: u64,
    /// The CPU time that the core's thread has used.
    pub cpu: Duration,
}

impl ShardReport {
    /// Collects the shard's counters and gauges as of now; `event_loop` are those of the loop that runs it.
    pub fn of(shard: &Shard, event_loop: EventLoopFigures) -> Self {
        Self {
            counters: shard.counters().clone(),
            clients_open: shard.clients_open(),
            monitors: shard.monitors(),
            replies_owed: shard.replies_in_flight(),
            links_open: shard.links_open(),
            private_links: shard.private_links(),
            filters: shard.filters(),
            subscribers: shard.subscribers(),
            paused_clients: shard.paused_clients(),
            tracking_clients: shard.tracking_clients(),
            shared_channels: shard.shared_channels(),
            service_times: shard.service_times(),
            bulkheads: shard.bulkheads().collect(),
            pressures: shard.pressures().clone(),
            hot: shard.hot_figures(),
            hot_ages: shard.hot_ages(),
            hot_keys: shard.hot_keys(),
            readers: shard.reader_figures(),
            users: shard.users(),
            event_loop,
        }
    }
}

/// The reports of all shards, one each, from which metrics and pages of the whole process are made.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// The reports of all shards, in the order of the shards.
    pub shards: Vec<ShardReport>,
    /// The embedded store's statistics; None with other stores.
    pub engine: Option<EngineStatistics>,
}

impl Totals {
    /// Returns the sum over all shards of the counters, of the numbers of clients (all but monitors), replies
    /// owed and connections, and of response times. Everything else is left at its default.
    pub fn sum(&self) -> ShardReport {
        self.shards.iter().fold(ShardReport::default(), |mut sum, report| {
            sum.counters.merge(&report.counters);
            sum.clients_open += report.clients_open;
            sum.replies_owed += report.replies_owed;
            sum.links_open += report.links_open;
            sum.private_links.add(report.private_links);
            sum.subscribers += report.subscribers;
            sum.paused_clients += report.paused_clients;
            sum.tracking_clients += report.tracking_clients;
            sum.service_times.merge(&report.service_times);
            sum
        })
    }
}

/// Facts about the process, independent of its traffic.
#[derive(Clone, Debug, Default)]
pub struct ProcessFacts {
    /// The operating system's id of this process.
    pub pid: u32,
    /// The first TCP port on which clients connect, or 0 if there is none.
    pub port: u16,
    /// A random identifier drawn at the start, which distinguishes this run of the process from others.
    pub run_id: String,
    /// The lowest version among the stores, which weir shows to clients.
    pub store_version: StoreVersion,
    /// The time since the process started.
    pub uptime: Duration,
    /// Resident memory of the process, in bytes.
    pub resident_bytes: u64,
    /// Maximum number of clients connected at once (`--max-clients`).
    pub clients_max: usize,
    /// The names of the stores, by backend number; in a cluster, empty for a number without a node.
    pub backends: Vec<String>,
    /// The map of the cluster, if there is one.
    pub cluster: Option<Arc<Map>>,
    /// The state of the cluster's replicas, as far as the control executor knows it.
    pub replicas: ReplicaFacts,
    /// Counts of how often quotas were put in force or refused in this process, with the last refusal.
    pub quotas: QuotaHistory,
    /// The number of POSTs of quotas that were refused with status 401 or 403: without the right token, from
    /// a web page, or without a token on an admin port that others may reach.
    pub admin_denied: u64,
    /// The number of token buckets of quotas that are not full or are in use.
    pub quota_pools: usize,
    /// The debt to the global quota that was forgiven so far, in millionths of a request unit.
    pub forgiven: u64,
    /// The counters of TLS; None where TLS is not used.
    pub tls: Option<TlsFigures>,
    /// True while the process accepts no new clients, since it is about to end.
    pub draining: bool,
}
