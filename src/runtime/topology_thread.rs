//! Asks the nodes of a cluster which node owns which slot, on a thread of its own, and sends the map to all
//! shards: once before the first client is served, then whenever a shard has reason to doubt its map, and
//! every ten seconds. Once a minute each node that is asked also reports how many databases it has.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, select};

use super::asking::{self, Credentials, Question};
use super::clock::Clock;
use super::connect::{Place, Spot, addresses_of, put};
use super::failover_probe::{FailoverProbe, News};
use super::log;
use super::messages::{Mailbox, ToControl, ToShard};
use super::tls::{Line, StoreTls};
use crate::routing::cluster::{Ask, Cluster, Databases, Map, Node, Reason, Refresh, Strangers, View};
use crate::shard::Doubt;
use crate::values::limits::CLUSTER_REPLY_BYTES_MAX;
use crate::values::{BackendId, Random, ServerAddress, Timestamp};

/// The longest time that the start of the process waits for a first map of the cluster; after that it goes on
/// with an empty map, and requests are refused until there is one.
const START_PATIENCE: Duration = Duration::from_secs(2);
/// The longest time that a node may take to reply to `CLUSTER SLOTS` and `CLUSTER NODES`; after that the node
/// counts as unanswered.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time for which a node is not asked again how many databases it has. A node that restarts may have
/// another number.
const DATABASES_HOLD: Duration = Duration::from_secs(60);
/// Maximum number of bytes of a node's replies about its databases; of a node with more, the number is unknown.
const DATABASES_BYTES_MAX: usize = 64 * 1024;
/// The stack size, in bytes, of a thread that asks one node and ends with its reply.
const STACK_BYTES: usize = 256 * 1024;
/// The capacity, in reports of all shards, of the channel on which shards report that the cluster's map may be
/// wrong; reports that find it full are dropped, since those in it have the map checked anyway.
pub(super) const DOUBTS_MAX: usize = 256;

/// The state of the thread that asks a cluster's nodes which node owns which slot: its knowledge of the
/// cluster, the nodes to ask next, and the addresses that it publishes.
pub(super) struct TopologyThread {
    seeds: Vec<ServerAddress>,
    question: Question,
    /// The request that asks a node for its setting of the number of databases (`CONFIG GET`).
    setting: Question,
    /// `SELECT` requests for each database that weir may use, sent to nodes that do not permit `CONFIG`.
    selects: Question,
    /// The addresses of nodes that have reported how many databases they have, each with the time from which
    /// they are asked again for it.
    databases_told: Vec<(ServerAddress, Timestamp)>,
    cluster: Cluster,
    refresh: Refresh,
    strangers: Strangers,
    failover_probe: FailoverProbe,
    /// The current address of each node, by backend number, which shards read when they connect to a node.
    places: Vec<Place>,
    tls: Option<StoreTls>,
    clock: Clock,
}

/// The mailboxes of the shards and the control executor, which receive new maps, and the channel on which
/// shards report doubts about the cluster's map.
pub(super) struct Listeners {
    pub shards: Vec<Mailbox<ToShard>>,
    pub control: Mailbox<ToControl>,
    pub doubts: Receiver<Doubt>,
}

/// The replies of one node about the cluster's slots and nodes, and its number of databases if it was asked for
/// that.
struct Answer {
    /// The address at which the node was asked.
    address: ServerAddress,
    view: View,
    /// The databases that the node has; `None` if it was not asked for them, or did not say.
    databases: Option<Databases>,
}

/// The result of one round, in which some nodes of the cluster were asked which node owns which slot.
#[derive(Default)]
struct Round {
    /// The new map of the cluster; None if it does not differ from the previous one.
    map: Option<Arc<Map>>,
    /// True if all primaries of the cluster have replied and agree with its map.
    is_sure: bool,
}

impl TopologyThread {
    /// Makes the state of the thread that asks a cluster's nodes which node owns which slot, before any node was
    /// asked. `seeds` are the nodes that are asked first, `credentials` are weir's at all nodes (None: it does
    /// not authenticate), `databases` is the number of databases that weir may use, and `places` are the
    /// addresses that shards connect to, by backend number.
    pub fn new(
        seeds: Vec<ServerAddress>,
        (credentials, databases): (Option<&Credentials>, u16),
        places: Vec<Place>,
        tls: Option<StoreTls>,
        (clock, random): (Clock, Random),
    ) -> Self {
        let requests: [&[&str]; 2] = [&["CLUSTER", "SLOTS"], &["CLUSTER", "NODES"]];
        let setting: [&[&str]; 1] = [&["CONFIG", "GET", "cluster-databases"]];
        let numbers: Vec<String> = (1..databases).map(|number| number.to_string()).collect();
        let selects: Vec<[&str; 2]> = numbers.iter().map(|number| ["SELECT", number.as_str()]).collect();
        let selects: Vec<&[&str]> = selects.iter().map(<[&str; 2]>::as_slice).collect();
        Self {
            question: Question::new(credentials, &requests, 2 * CLUSTER_REPLY_BYTES_MAX),
            setting: Question::new(None, &setting, DATABASES_BYTES_MAX),
            selects: Question::new(None, &selects, DATABASES_BYTES_MAX),
            databases_told: Vec::new(),
            cluster: Cluster::default(),
            refresh: Refresh::new(seeds.len(), random),
            strangers: Strangers::default(),
            failover_probe: FailoverProbe::new(credentials, tls.clone(), clock),
            seeds,
            places,
            tls,
            clock,
        }
    }

    /// Asks nodes which node owns which slot until one has replied, for at most 2 s (`START_PATIENCE`). Returns
    /// the cluster's map, which is empty if no node has replied.
    pub fn find_first(&mut self) -> Arc<Map> {
        let until = self.clock.now().monotonic.after(START_PATIENCE);
        while self.cluster.map().version() == 0 && self.clock.now().monotonic < until {
            match self.refresh.poll_deadline() {
                Some(due) if due > self.clock.now().monotonic => {
                    thread::park_timeout(due.min(until).since(self.clock.now().monotonic));
                }
                _ => _ = self.round(),
            }
        }
        Arc::clone(self.cluster.map())
    }

    /// Starts the topology thread, which keeps asking the cluster which node owns which slot and sends new
    /// maps to `listeners` (shards and control executor). It runs until no shard is left. Fails if the thread
    /// cannot be started.
    pub fn start(self, listeners: Listeners) -> io::Result<()> {
        thread::Builder::new()
            .name("weir-topology".to_owned())
            .spawn(move || self.run(&listeners))
            .map(|_| ())
    }

    fn run(mut self, listeners: &Listeners) {
        loop {
            let now = self.clock.now().monotonic;
            let due = self.refresh.poll_deadline().unwrap_or(now);
            let mut why = "nodes answered";
            select! {
                recv(listeners.doubts) -> doubt => match doubt {
                    Ok(doubt) => self.hear(doubt, listeners),
                    // No shard is left that could ask for a map, so the thread ends.
                    Err(_) => return,
                },
                recv(self.failover_probe.news) -> news => if news.is_ok_and(|news| self.hear_of_replica(&news)) {
                    why = "a replica took over";
                },
                default(due.since(now)) => {}
            }
            let began = self.clock.now().monotonic;
            let round = self.round();
            if let Some(map) = &round.map {
                tell(listeners, map, why);
            }
            if round.is_sure {
                listeners.shards.iter().for_each(|shard| shard.post(ToShard::SlotsConfirmed(began)));
            }
        }
    }

    /// Handles a shard's report that the cluster's map may be wrong, and all other such reports that are
    /// queued: plans when to ask nodes again, watches the replicas of lost primaries, and corrects the map by
    /// the redirects (MOVED) that shards received.
    fn hear(&mut self, first: Doubt, listeners: &Listeners) {
        let doubts: Vec<Doubt> =
            std::iter::once(first).chain(listeners.doubts.try_iter().take(DOUBTS_MAX)).collect();
        let moved: Vec<_> = doubts.iter().filter_map(|doubt| doubt.moved).collect();
        for doubt in &doubts {
            self.refresh.handle_reason(doubt.reason);
            if let Reason::LinkLost(Some(node)) = doubt.reason {
                self.failover_probe.handle_lost(node, self.cluster.map());
            }
        }
        if let Some(map) = self.cluster.patch(&moved) {
            self.note_places(&map);
            tell(listeners, &map, "MOVED");
        }
    }

    /// Handles that a lost primary's replica is no longer watched by the failover probe, which asks it whether
    /// it takes over. True if the replica has become a primary: then the cluster is asked for its map at once.
    fn hear_of_replica(&mut self, news: &News) -> bool {
        let replica = self.failover_probe.handle_news(news);
        replica.inspect(|replica| self.refresh.handle_reason(Reason::TookOver(*replica))).is_some()
    }

    /// Asks the nodes that are due which node owns which slot, and merges their views of the cluster into the
    /// map. Returns the new map, if it has changed, and whether all primaries agree with it. Does nothing if no
    /// node is due.
    fn round(&mut self) -> Round {
        let started = self.clock.now().monotonic;
        let map = Arc::clone(self.cluster.map());
        let Some(ask) = self.refresh.poll_round(&map, started) else { return Round::default() };
        let asked: Vec<ServerAddress> = match &ask {
            Ask::Seeds(seeds) => seeds.iter().filter_map(|seed| self.seeds.get(*seed).cloned()).collect(),
            Ask::Nodes(nodes) => {
                let address = |node: &Node| node.addresses.first().cloned();
                nodes.iter().filter_map(|key| map.node_of(*key).and_then(address)).collect()
            }
        };
        self.databases_told.retain(|(_, again_at)| *again_at > started);
        let answers = self.ask_together(&asked, started.after(PATIENCE));
        let views = self.take_views(answers, started);
        let mut applied = self.cluster.apply(&views);
        let told = (views.len(), applied.strangers());
        if self.strangers.handle_round(&ask, told, self.clock.now().monotonic) {
            log::line(
                "cluster: no known node answers any more, and the seed nodes belong to another cluster: weir uses that one",
            );
            applied = self.cluster.adopt(&views);
        }
        self.refresh.handle_outcome(applied.outcome(&views), self.clock.now().monotonic);
        // The names of nodes may resolve to other addresses by now.
        let current = Arc::clone(self.cluster.map());
        self.note_places(&current);
        Round { is_sure: applied.is_sure(&views, &current), map: applied.map }
    }

    /// Asks nodes which node owns which slot, and how many databases they have, each on a thread of its own, so
    /// that a silent node does not delay the others; at most `CLUSTER_NODES_MAX` threads. Returns the replies
    /// of the nodes that replied in time.
    fn ask_together(&self, asked: &[ServerAddress], deadline: Timestamp) -> Vec<Answer> {
        thread::scope(|scope| {
            let asked: Vec<_> = asked
                .iter()
                .map(|address| {
                    let thread =
                        thread::Builder::new().name("weir-topology".to_owned()).stack_size(STACK_BYTES);
                    thread.spawn_scoped(scope, move || self.ask(address, deadline))
                })
                .collect();
            asked.into_iter().filter_map(|thread| thread.ok()?.join().ok().flatten()).collect()
        })
    }

    /// Takes the nodes' views of the cluster out of their replies, and records which nodes reported how many
    /// databases they have. `started` is when the nodes were asked.
    fn take_views(&mut self, answers: Vec<Answer>, started: Timestamp) -> Vec<View> {
        let take = |Answer { address, view, databases }| {
            if databases.is_some() {
                self.databases_told.push((address, started.after(DATABASES_HOLD)));
            }
            view.with_databases(databases)
        };
        answers.into_iter().map(take).collect()
    }

    fn ask(&self, address: &ServerAddress, deadline: Timestamp) -> Option<Answer> {
        let clock = self.clock;
        let line = &mut asking::connect(&found(address)?, self.tls.as_ref(), clock, deadline).ok()?;
        let replies = asking::ask_on(line, &self.question, clock, deadline).ok()?;
        let [slots, nodes] = <[Vec<u8>; 2]>::try_from(replies).ok()?;
        let view = View::parse(address, &slots, &nodes).ok()?;
        let is_told = self.databases_told.iter().any(|(told, _)| told == address);
        let databases = if is_told { None } else { self.ask_for_databases(line, deadline) };
        Some(Answer { address: address.clone(), view, databases })
    }

    /// Asks a node how many databases it has. `None` if it does not reply, or does not say.
    fn ask_for_databases(&self, line: &mut Line, deadline: Timestamp) -> Option<Databases> {
        let setting = asking::ask_on(line, &self.setting, self.clock, deadline).ok()?;
        Databases::in_config(setting.first()?).or_else(|| {
            Databases::in_selects(&asking::ask_on(line, &self.selects, self.clock, deadline).ok()?)
        })
    }

    /// Publishes the current address of each node of the map, for shards that connect to it; none for a node
    /// whose name does not resolve.
    fn note_places(&self, map: &Map) {
        for (place, at) in self.places.iter().enumerate() {
            let node = map.node(BackendId(place as u16));
            let spot = node.and_then(|node| node.addresses.iter().find_map(found));
            put(at, spot);
        }
    }
}

fn tell(listeners: &Listeners, map: &Arc<Map>, why: &str) {
    listeners.shards.iter().for_each(|shard| shard.post(ToShard::Slots(Arc::clone(map))));
    listeners.control.post(ToControl::Slots(Arc::clone(map), why.to_owned()));
}

/// Looks up a server's host name. Returns its first address, with the name; `None` if it has none.
pub(super) fn found(address: &ServerAddress) -> Option<Spot> {
    let found = addresses_of(address).ok()?;
    Some(Spot::new(found[0], address))
}
