//! Benchmark bodies for whole requests: shards with a client, stores that reply at once, and the pools (the parts of
//! the quotas that no core holds).

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use weir::config::Quotas;
use weir::control::pool::Rhythm;
use weir::control::reconciliation::Reconciliation;
use weir::protocol::encode;
use weir::routing::Topology;
use weir::routing::cluster::{Cluster, Map, View};
use weir::shard::{AdmissionSettings, BackendSettings, Limiter, Mode, Shard, ShardSettings};
use weir::values::allowance::lease_of;
use weir::values::limits::{CLUSTER_NODES_MAX, SLOTS};
use weir::values::time::Now;
use weir::values::{
    Action, BackendId, ClientId, ConnectionId, Grant, Loss, Owner, ServerAddress, ShardId, Timestamp,
};

/// The virtual time between two rounds, so that the periods in which shards report their spending end now and then.
const ROUND: Duration = Duration::from_micros(20);

/// The stores behind the shards of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// This many independent stores.
    Stores(u16),
    /// A cluster of this many nodes.
    Cluster(u16),
}

/// Shards with one client (on the first shard), and their stores.
pub struct Pipeline {
    shards: Vec<Shard>,
    client: ClientId,
    now: Now,
    /// Segments sent to stores without a reply yet: shard, link (connection to a store), its generation, and number of
    /// requests.
    sent: Vec<(usize, ConnectionId, u32, usize)>,
    pools: Reconciliation,
    grants: Vec<Grant>,
    pub fail_links: bool,
}

impl Pipeline {
    /// Creates shards in front of one store.
    pub fn new(shards: u16, quotas: Quotas, limiter: Limiter) -> Self {
        Self::before(Behind::Stores(1), shards, quotas, limiter)
    }

    pub fn before(behind: Behind, shards: u16, quotas: Quotas, limiter: Limiter) -> Self {
        let (backends, layers) = match behind {
            Behind::Stores(stores) => (stores, Mode::Off),
            Behind::Cluster(_) => (CLUSTER_NODES_MAX as u16, Mode::On),
        };
        let topology = Topology::new(shards, backends);
        let admission = AdmissionSettings { limiter, ..AdmissionSettings::default() };
        let period = admission.period;
        let common = ShardSettings {
            replicas: layers,
            retries: layers,
            admission,
            ..ShardSettings::new(topology, (0..backends).map(store).collect())
        };
        let settings = |id| ShardSettings { id: ShardId(id), ..common.clone() };
        let quotas = Arc::new(quotas);
        let mut shards: Vec<Shard> =
            (0..shards).map(|id| Shard::new(settings(id), Arc::clone(&quotas))).collect();
        let now = Now { monotonic: Timestamp::from_millis(1), unix_ms: 1_700_000_000_000 };
        if let Behind::Cluster(nodes) = behind {
            let map = cluster_of(nodes);
            shards.iter_mut().for_each(|shard| shard.handle_slots(Arc::clone(&map), now));
        }
        let client = shards[0].handle_client_opened(now);
        let rhythm = Rhythm { period, lease: lease_of(period) };
        let pools = Reconciliation::new(rhythm);
        Self { shards, client, now, sent: Vec::new(), pools, grants: Vec::new(), fail_links: false }
    }

    /// Makes the client a user (QOS SET USER), who may have a limit of its own.
    pub fn speak_for_a_user(&mut self) {
        let mut request = Vec::new();
        encode::request(&mut request, [b"QOS".as_slice(), b"SET", b"USER", b"ann"].into_iter());
        self.round(&request, &[], 0);
    }

    /// Sends a pipeline of requests, and runs until the client has all replies. `replies` holds many copies
    /// of a reply of `reply_bytes` bytes.
    pub fn round(&mut self, requests: &[u8], replies: &[u8], reply_bytes: usize) {
        self.now.monotonic = self.now.monotonic.after(ROUND);
        self.shards[0].handle_client_bytes(self.client, requests, self.now);
        loop {
            for shard in 0..self.shards.len() {
                self.turn(shard);
            }
            if self.sent.is_empty() {
                break;
            }
            while let Some((shard, link, generation, requests)) = self.sent.pop() {
                let replies = &replies[..requests * reply_bytes];
                self.shards[shard].handle_link_bytes(link, generation, replies, self.now);
            }
        }
        // The second shard has handed replies to the first one after the first one's turn.
        self.turn(0);
    }

    fn turn(&mut self, shard: usize) {
        let now = self.now;
        self.shards[shard].handle_turn_end(now);
        while self.reconcile(shard) {
            self.shards[shard].handle_turn_end(now);
        }
        let mut greeted = Vec::new();
        while let Some(action) = self.shards[shard].poll_action() {
            if let Action::Connect { owner: Owner::Link(link, generation), backend: BackendId(_) } = action {
                if self.fail_links {
                    self.shards[shard].handle_link_lost(link, generation, Loss::ByPeer, now);
                } else {
                    self.shards[shard].handle_link_connected(link, generation, now);
                    greeted.push((link, generation));
                }
            }
        }
        while let Some((owner, segment)) = self.shards[shard].poll_transmit() {
            if let Owner::Link(link, generation) = owner {
                if let Some(place) = greeted.iter().position(|own| *own == (link, generation)) {
                    greeted.swap_remove(place);
                    self.shards[shard].handle_transmitted(owner, segment, now);
                    self.shards[shard].handle_link_bytes(link, generation, b"+OK\r\n", now);
                    continue;
                }
                let requests = segment.bytes().split(|byte| *byte == b'*').count() - 1;
                self.sent.push((shard, link, generation, requests));
            }
            black_box(segment.bytes());
            self.shards[shard].handle_transmitted(owner, segment, now);
        }
        while let Some((to, batch)) = self.shards[shard].poll_batch() {
            self.shards[usize::from(to.0)].handle_batch(batch, now);
        }
    }

    /// Lets the pools (the parts of the quotas that no core holds) answer the reports of a shard with grants. True if
    /// there was a report about token buckets.
    fn reconcile(&mut self, shard: usize) -> bool {
        let mut answered = false;
        while let Some(report) = self.shards[shard].poll_report() {
            if !report.demands.is_empty() {
                self.grants.clear();
                self.pools.handle_report(&report, self.now.monotonic, &mut self.grants);
                self.shards[shard].handle_grants(&self.grants, self.now);
                answered = true;
            }
        }
        answered
    }
}

fn store(number: u16) -> BackendSettings {
    BackendSettings { name: format!("10.0.0.1:{}", 7_000 + number), credentials: None }
}

/// Returns the map of a cluster whose nodes own the ranges of slots that the same number of stores would.
fn cluster_of(nodes: u16) -> Arc<Map> {
    let topology = Topology::new(1, nodes);
    let line = |node: u16| {
        let mut slots = (0..SLOTS).filter(|slot| topology.backend_of(*slot).0 == node);
        let (first, last) = (slots.next().expect("one"), slots.next_back().expect("another"));
        let myself = if node == 0 { "myself," } else { "" };
        format!(
            "{node:040} 10.0.0.1:{}@1 {myself}master - 0 0 {} connected {first}-{last}\n",
            7_000 + node,
            node + 1
        )
    };
    let told: String = (0..nodes).map(line).collect();
    let asked = ServerAddress { host: "10.0.0.1".to_owned(), port: 7_000 };
    let told = format!("${}\r\n{told}\r\n", told.len());
    let view = View::parse(&asked, b"*0\r\n", told.as_bytes()).expect("a view");
    Cluster::default().apply(&[view]).map.expect("a map")
}
