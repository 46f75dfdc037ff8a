//! What all stages of one core work with, lent to each for as long as a call.

use std::collections::VecDeque;
use std::sync::Arc;

use super::counters::{Counters, Pressure, Pressures};
use super::pieces::Pieces;
use super::settings::ShardSettings;
use super::strain::Strain;
use crate::config::Quotas;
use crate::protocol::BufferPool;
use crate::routing::cluster::{Map, Walks};
use crate::values::random::Random;
use crate::values::{Action, BackendId, Tier, Timestamp};

/// The largest number of spare buffers that a shard keeps.
const SPARE_BUFFERS_MAX: usize = 1024;

/// Settings, quotas, buffers, counters: none of it is a stage's own.
#[derive(Debug)]
pub struct Env {
    /// What the shard was told when it started.
    pub settings: ShardSettings,
    /// The quotas in force.
    pub quotas: Arc<Quotas>,
    /// Buffers that go round.
    pub pool: BufferPool,
    /// What was counted so far.
    pub counters: Counters,
    /// What was refused under pressure, and how much of it for which backend.
    pub pressures: Pressures,
    refused_for: Vec<u64>,
    /// What is to be done in the world.
    pub actions: VecDeque<Action>,
    /// Which node owns which slot, before a cluster.
    pub slots: Option<Arc<Map>>,
    /// When the newest round began after which that was right: it is what primaries said.
    pub slots_confirmed: Option<Timestamp>,
    /// What cursors of walks over its nodes mean.
    pub walks: Walks,
    /// Requests that were taken apart because their slot is half moved.
    pub pieces: Pieces,
    /// How its nodes are called, by their places.
    node_names: Vec<String>,
    /// How strained backends are.
    pub strain: Strain,
    /// Lines for those who look after weir.
    pub lines: VecDeque<String>,
    random: Random,
}

/// Lines that wait to be written. There are more only if nobody writes them.
const LINES_MAX: usize = 64;

impl Env {
    /// Nothing has happened yet.
    pub fn new(settings: ShardSettings, quotas: Arc<Quotas>) -> Self {
        let pool = BufferPool::new(SPARE_BUFFERS_MAX);
        let random = Random::new(settings.seed);
        let backends = settings.topology.backends();
        let strain = Strain::new(backends);
        Self {
            settings,
            quotas,
            pool,
            counters: Counters::default(),
            pressures: Pressures::default(),
            refused_for: vec![0; usize::from(backends)],
            actions: VecDeque::new(),
            slots: None,
            slots_confirmed: None,
            walks: Walks::default(),
            pieces: Pieces::default(),
            node_names: Vec::new(),
            strain,
            lines: VecDeque::new(),
            random,
        }
    }

    /// Something that whoever looks after weir should read.
    pub fn say(&mut self, line: String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push_back(line);
        }
    }

    /// A request was refused because this backend could not have answered it in time.
    pub fn count_refused(&mut self, pressure: Pressure, tier: Tier, backend: BackendId) {
        self.pressures.add(pressure, tier);
        if let Some(count) = self.refused_for.get_mut(usize::from(backend.0)) {
            *count += 1;
        }
    }

    /// How often that happened.
    pub fn refused_for(&self, place: usize) -> u64 {
        self.refused_for.get(place).copied().unwrap_or_default()
    }

    /// A backend's address, as refusals and metrics name it.
    pub fn backend_name(&self, backend: BackendId) -> &str {
        match &self.slots {
            None => &self.settings.backends[usize::from(backend.0)].name,
            Some(_) => self.node_names.get(usize::from(backend.0)).map_or("none", String::as_str),
        }
    }

    /// Was the map of the cluster right after this?
    pub fn is_sure(&self, after: Timestamp) -> bool {
        self.slots_confirmed.is_some_and(|confirmed| confirmed > after)
    }

    /// Another map of the cluster is in force.
    pub fn handle_slots(&mut self, slots: Arc<Map>) {
        let place = |place| slots.node(BackendId(place as u16)).and_then(|node| node.addresses.first());
        let name = |at| place(at).map_or_else(|| "none".to_owned(), ToString::to_string);
        self.node_names = (0..slots.places()).map(name).collect();
        self.walks.handle_map(&slots);
        self.slots = Some(slots);
    }

    /// The backend of a slot; any, where a cluster has nobody for it.
    #[inline]
    pub fn backend_of(&self, slot: u16) -> BackendId {
        match &self.slots {
            None => self.settings.topology.backend_of(slot),
            Some(slots) => slots.owner(slot).unwrap_or(BackendId(0)),
        }
    }

    /// Backends that have keys of their own.
    pub fn stores(&self) -> Vec<BackendId> {
        match &self.slots {
            None => self.settings.topology.all_backends().collect(),
            Some(slots) => slots.stores().map(|node| node.key.backend).collect(),
        }
    }

    /// For what need not be unguessable: jitter.
    pub fn random_byte(&mut self) -> u8 {
        (self.random.bits() >> 56) as u8
    }
}
