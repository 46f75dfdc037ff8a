//! What shards report, and what the process is as a whole.

use std::sync::Arc;
use std::time::Duration;

use super::{QuotaHistory, ReplicaFacts, TlsFigures};
use crate::routing::cluster::Map;
use crate::shard::{
    BulkheadFigures, Counters, HotFigures, HotKey, Pressures, ReaderFigures, ServiceTimes, Shard, UserFigures,
};
use crate::store::EngineStatistics;
use crate::values::StoreVersion;

/// One shard's figures at one moment.
#[derive(Clone, Debug, Default)]
pub struct ShardReport {
    /// What it has counted.
    pub counters: Counters,
    /// Clients connected to it.
    pub clients_open: usize,
    /// Replies that backends owe it.
    pub replies_owed: usize,
    /// Connections to backends that are open, and all that there may be.
    pub links_open: usize,
    /// How long backends took.
    pub service_times: ServiceTimes,
    /// How it stands before each backend, by backend and track.
    pub bulkheads: Vec<BulkheadFigures>,
    /// What it has refused under pressure.
    pub pressures: Pressures,
    /// How it stands with hot keys, and what is known of each.
    pub hot: HotFigures,
    /// See there.
    pub hot_keys: Vec<HotKey>,
    /// What nodes did of reads that replicas may answer, by their places.
    pub readers: Vec<ReaderFigures>,
    /// Users whose quotas it keeps account of.
    pub users: UserFigures,
    /// How often it was awake, and woke others.
    pub event_loop: EventLoopFigures,
}

/// What the event loop of a core has counted: batches are as large as these are rare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventLoopFigures {
    /// Turns that found something to do.
    pub turns: u64,
    /// Times the core slept.
    pub sleeps: u64,
    /// Times it woke another core.
    pub doorbells: u64,
    /// Sleeps that ended by themselves though there was something to do.
    pub overslept: u64,
    /// CPU time of its thread.
    pub cpu: Duration,
}

impl ShardReport {
    /// The shard's figures now.
    pub fn of(shard: &Shard, event_loop: EventLoopFigures) -> Self {
        Self {
            counters: shard.counters().clone(),
            clients_open: shard.clients_open(),
            replies_owed: shard.replies_in_flight(),
            links_open: shard.links_open(),
            service_times: shard.service_times(),
            bulkheads: shard.bulkheads().collect(),
            pressures: shard.pressures().clone(),
            hot: shard.hot_figures(),
            hot_keys: shard.hot_keys(),
            readers: shard.reader_figures(),
            users: shard.users(),
            event_loop,
        }
    }
}

/// All shards together.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Per shard, in order.
    pub shards: Vec<ShardReport>,
    /// The embedded store's figures, if there is one.
    pub engine: Option<EngineStatistics>,
}

impl Totals {
    /// The sum of all shards.
    pub fn sum(&self) -> ShardReport {
        self.shards.iter().fold(ShardReport::default(), |mut sum, report| {
            sum.counters.merge(&report.counters);
            sum.clients_open += report.clients_open;
            sum.replies_owed += report.replies_owed;
            sum.links_open += report.links_open;
            sum.service_times.merge(&report.service_times);
            sum
        })
    }
}

/// What is true of the process, whatever passes through it.
#[derive(Clone, Debug, Default)]
pub struct ProcessFacts {
    /// Process id.
    pub pid: u32,
    /// The first TCP port, 0 if there is none.
    pub port: u16,
    /// Drawn at the start: tells this process from the one before.
    pub run_id: String,
    /// The lowest among the stores: what clients are told.
    pub store_version: StoreVersion,
    /// Since the start.
    pub uptime: Duration,
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
    /// `--max-clients`.
    pub clients_max: usize,
    /// Addresses of the stores.
    pub backends: Vec<String>,
    /// Who owns which slot, before a cluster.
    pub cluster: Option<Arc<Map>>,
    /// What is known of its replicas.
    pub replicas: ReplicaFacts,
    /// What became of the quotas it was given.
    pub quotas: QuotaHistory,
    /// Requests to the admin port that would have changed something, and were not allowed to.
    pub admin_denied: u64,
    /// Buckets that are not full or are in use, over all shards.
    pub quota_pools: usize,
    /// Debt to quotas that was forgiven so far, in millionths of a request unit.
    pub forgiven: u64,
    /// What was counted of TLS, where it is spoken.
    pub tls: Option<TlsFigures>,
    /// No new clients: the process is about to end.
    pub draining: bool,
}
