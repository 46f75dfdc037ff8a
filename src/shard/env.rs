//! Environment of a core's stages: settings, quotas, buffers and counters, lent to a stage for the duration
//! of a call.

use std::collections::VecDeque;
use std::sync::Arc;

use super::backend_levels::BackendLevels;
use super::counters::{Counter, Counters, Pressure, Pressures};
use super::fence::Fences;
use super::large_replies::LargeReplies;
use super::pieces::Pieces;
use super::settings::ShardSettings;
use crate::config::Quotas;
use crate::protocol::BufferPool;
use crate::routing::cluster::{Databases, Map, Walks};
use crate::values::limits::STEP_ERROR_BYTES_MAX;
use crate::values::random::Random;
use crate::values::{Action, BackendId, ConnectionId, Tier, Timestamp};

/// The largest number of spare buffers that a shard keeps; further ones are freed.
const SPARE_BUFFERS_MAX: usize = 1024;

/// State that all stages (clients, admission, hot keys, connections to stores) of one core share: settings,
/// quotas, buffers, counters, actions for the runtime.
#[derive(Debug)]
pub struct Env {
    /// Settings that the shard received when it started.
    pub settings: ShardSettings,
    /// Quotas in force, which a reload replaces.
    pub quotas: Arc<Quotas>,
    /// Spare buffers, used again so that requests need not allocate memory.
    pub pool: BufferPool,
    /// Counters of events on this core.
    pub counters: Counters,
    /// Numbers of requests refused because of overload, by reason and tier (importance).
    pub pressures: Pressures,
    /// Numbers of requests refused because of overload, by the number of their backend.
    refused_for: Vec<u64>,
    /// Actions that the runtime has yet to carry out for this core.
    pub actions: VecDeque<Action>,
    /// Map of the cluster's slots to their nodes; None where weir stands in front of plain stores, and before
    /// the first map has come.
    pub slots: Option<Arc<Map>>,
    /// Databases that clients may select; `None` where weir stands in front of a cluster of which no node has
    /// said how many it has.
    pub databases: Option<Databases>,
    /// Start of the last round in which weir asked all primaries of the cluster for the map, and all of them
    /// confirmed it; None before the first such round.
    pub slots_confirmed: Option<Timestamp>,
    /// The latest time for which the other cores are known to have handled all bytes of their clients that arrived
    /// until then; None before the first message (`PUBLISH`) has waited for that.
    pub others_handled: Option<Timestamp>,
    /// The meanings of cursors that clients got from `SCAN` over all nodes of the cluster: for the latest
    /// maps, the order in which the nodes are scanned.
    pub walks: Walks,
    /// Requests that were split into one request per key, because their slot is half moved to another node.
    pub pieces: Pieces,
    /// Address of each cluster node, by its index in the map's table of nodes (its backend number); "none"
    /// where no node has the index.
    node_names: Vec<String>,
    /// Shedding level of each backend: which tiers (degrees of importance) of requests to it are refused or
    /// priced higher.
    pub backend_levels: BackendLevels,
    /// Fences: connections to stores that weir gave up with requests unanswered. Before later requests, the
    /// stores are asked to kill these connections, so that the unanswered requests take effect before the
    /// later ones, or never.
    pub fences: Fences,
    /// Large replies that are being received from stores, over all connections of this core.
    pub large_replies: LargeReplies,
    /// Log lines of this core that wait until the runtime writes them, at most 64.
    pub lines: VecDeque<String>,
    random: Random,
}

/// The largest number of log lines that may wait to be written. Further lines are dropped, so that memory
/// stays bounded when nothing writes them.
const LINES_MAX: usize = 64;

impl Env {
    /// Creates the environment of a core that starts: no cluster map, all counters zero.
    pub fn new(settings: ShardSettings, quotas: Arc<Quotas>) -> Self {
        let pool = BufferPool::new(SPARE_BUFFERS_MAX);
        let random = Random::new(settings.seed);
        let backends = settings.topology.backends();
        let fences = Fences::new(settings.id, usize::from(settings.topology.shards()));
        let backend_levels = BackendLevels::new(backends);
        let databases = Some(Databases::Numbered(settings.databases));
        let large_replies = LargeReplies::new(settings.large_replies_bytes());
        Self {
            settings,
            quotas,
            pool,
            counters: Counters::default(),
            pressures: Pressures::default(),
            refused_for: vec![0; usize::from(backends)],
            actions: VecDeque::new(),
            slots: None,
            databases,
            slots_confirmed: None,
            others_handled: None,
            walks: Walks::default(),
            pieces: Pieces::default(),
            node_names: Vec::new(),
            backend_levels,
            fences,
            large_replies,
            lines: VecDeque::new(),
            random,
        }
    }

    /// Records that a reply is being received from a store over a connection, given by its id and the number
    /// that tells its successive sockets apart. Large replies must not take too much memory together: if they
    /// do, actions for the runtime pause the reading of some connections. `part` has the number of bytes
    /// received, and of those that the store has announced besides.
    pub fn handle_reply_part(&mut self, connection: (ConnectionId, u32), part: (usize, usize)) {
        let paused = self.large_replies.handle_part(connection, part, &mut self.actions);
        if paused > 0 {
            self.counters.add(Counter::LargeRepliesPaused, paused);
        }
    }

    /// Records that a reply has been received to its end over a connection, or will not be. Connections whose reading
    /// was paused, because large replies took too much memory, are read again as far as there is room now.
    #[inline]
    pub fn handle_reply_end(&mut self, connection: (ConnectionId, u32)) {
        if !self.large_replies.is_empty() {
            self.large_replies.handle_end(connection, &mut self.actions);
        }
    }

    /// Queues a line for the log. Drops it if 64 lines already wait.
    pub fn say(&mut self, line: String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push_back(line);
        }
    }

    /// Queues a line for the log which says that a store turns connections away, with the words of the error (`reply`)
    /// by which it does.
    pub fn say_turned_away(&mut self, backend: BackendId, reply: &[u8]) {
        let words = reply.strip_prefix(b"-").unwrap_or(reply).trim_ascii_end();
        let words = words[..words.len().min(STEP_ERROR_BYTES_MAX)].escape_ascii();
        let line = format!("backend {} turns connections away: {words}", self.backend_name(backend));
        self.say(line);
    }

    /// Counts requests of a tier (importance) that were refused because of this backend's overload;
    /// `pressure` is the kind of overload.
    pub fn count_refused(&mut self, pressure: Pressure, tier: Tier, backend: BackendId, requests: u64) {
        self.pressures.add(pressure, tier, requests);
        if let Some(count) = self.refused_for.get_mut(usize::from(backend.0)) {
            *count += requests;
        }
    }

    /// Returns the number of requests that were refused because of overload of the backend with number
    /// `place`; 0 if none was.
    pub fn refused_for(&self, place: usize) -> u64 {
        self.refused_for.get(place).copied().unwrap_or_default()
    }

    /// Returns a backend's address, which refusals and metrics show; "none" for a cluster node that the map
    /// does not have.
    pub fn backend_name(&self, backend: BackendId) -> &str {
        match &self.slots {
            None => &self.settings.backends[usize::from(backend.0)].name,
            Some(_) => self.node_names.get(usize::from(backend.0)).map_or("none", String::as_str),
        }
    }

    /// True if all primaries of the cluster have confirmed the map of slots in a round of questions that
    /// began later than `after`.
    pub fn is_sure(&self, after: Timestamp) -> bool {
        self.slots_confirmed.is_some_and(|confirmed| confirmed > after)
    }

    /// True if the other cores are known to have handled all bytes of their clients that arrived by the time
    /// `by`, or if there are no other cores.
    pub fn others_have_handled(&self, by: Timestamp) -> bool {
        self.settings.topology.shards() == 1 || self.others_handled >= Some(by)
    }

    /// Puts a new map of the cluster in force, and takes the nodes' addresses and databases from it.
    pub fn handle_slots(&mut self, slots: Arc<Map>) {
        let place = |place| slots.node(BackendId(place as u16)).and_then(|node| node.addresses.first());
        let name = |at| place(at).map_or_else(|| "none".to_owned(), ToString::to_string);
        self.node_names = (0..slots.places()).map(name).collect();
        self.walks.handle_map(&slots);
        let most = Databases::Numbered(self.settings.databases);
        self.databases = slots.databases().map(|databases| databases.min(most));
        self.slots = Some(slots);
    }

    /// Returns the backend of a slot. A slot of a cluster that no node owns gets the first backend.
    #[inline]
    pub fn backend_of(&self, slot: u16) -> BackendId {
        match &self.slots {
            None => self.settings.topology.backend_of(slot),
            Some(slots) => slots.owner(slot).unwrap_or(BackendId(0)),
        }
    }

    /// Returns the backends that may have keys of their own. Without a cluster these are all backends; in a
    /// cluster, the owners of slots, the nodes that slots move to, and all other primaries that have not
    /// failed.
    pub fn stores(&self) -> Vec<BackendId> {
        match &self.slots {
            None => self.settings.topology.all_backends().collect(),
            Some(slots) => slots.stores().map(|node| node.key.backend).collect(),
        }
    }

    /// True if weir stands in front of plain stores, if the cluster's map is not known yet, or if a node in
    /// it may have keys of its own.
    pub fn has_stores(&self) -> bool {
        self.slots.as_ref().is_none_or(|slots| slots.stores().next().is_some())
    }

    /// Returns a random byte, by which pauses and delays are varied, and one of several replies is chosen. An
    /// attacker can predict it.
    pub fn random_byte(&mut self) -> u8 {
        (self.random.bits() >> 56) as u8
    }
}
