//! What cores tell each other of their bulkheads: a record each, which one core writes now and then and all may read. No lock, and
//! nothing waits: a reader that comes while it is written sees some of it old and some of it new, which nobody minds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::policy::latency_ratio::{Level, Told};
use crate::policy::window::{Board, Record};
use crate::values::{ShardId, Timestamp};

/// One core's record of one bulkhead, in a line of the cache of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Place {
    at: AtomicU64,
    /// Median and base, in seconds, as floating point numbers of 32 bits.
    seconds: AtomicU64,
    /// The window, as such a number; how many replies, and whether it is short of room in the lowest bit.
    window: AtomicU64,
    /// The median at a quarter of the window, in seconds, as a floating point number of 32 bits; and when a probe is asked for.
    quarter: AtomicU64,
    probe_at: AtomicU64,
    /// What waits, and what is in flight.
    load: AtomicU64,
    /// The level that the core would choose for the backend, from how many replies, and when it said so.
    level: AtomicU64,
    level_at: AtomicU64,
}

/// What waits at a bulkhead of a core, and what it has in flight, as of when it last said so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that wait.
    pub waiting: u32,
    /// Requests in flight.
    pub in_flight: u32,
    /// No more may wait.
    pub is_full: bool,
    /// The backend gives no sign.
    pub is_stalled: bool,
}

/// The records of all cores.
#[derive(Debug)]
pub struct Noticeboard {
    places: Box<[Place]>,
    shards: usize,
    /// Until when what cores say of levels is worth a look.
    alarmed_until: AtomicU64,
}

impl Noticeboard {
    /// For so many cores, each with so many bulkheads. Nobody has told anything.
    pub fn new(shards: u16, bulkheads: usize) -> Self {
        let shards = usize::from(shards);
        let places = std::iter::repeat_with(Place::default).take(shards * bulkheads).collect();
        Self { places, shards, alarmed_until: AtomicU64::new(0) }
    }

    /// Has any core chosen a level of late?
    pub fn is_alarmed(&self, now: Timestamp) -> bool {
        self.alarmed_until.load(Ordering::Relaxed) > now.as_nanos()
    }

    /// The part of it that one core writes of one bulkhead, and reads of all.
    pub fn of(&self, shard: ShardId, bulkhead: usize) -> Section<'_> {
        let first = bulkhead * self.shards;
        let places = &self.places[first..first + self.shards];
        Section { places, own: usize::from(shard.0), alarmed_until: &self.alarmed_until }
    }
}

/// What cores told of one bulkhead.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    places: &'a [Place],
    own: usize,
    alarmed_until: &'a AtomicU64,
}

/// Where in a load what waits ends, and what is said with one bit stands.
const WAITING_MAX: u32 = (1 << 30) - 1;
const FULL: u32 = 62;
const STALLED: u32 = 63;
/// For how long a level that was told is worth a look.
const ALARM: Duration = Duration::from_secs(3);

impl Section<'_> {
    /// This core's own load, from now on.
    pub fn tell_load(&self, load: Load) {
        let waiting = u64::from(load.waiting.min(WAITING_MAX));
        let flags = u64::from(load.is_full) << FULL | u64::from(load.is_stalled) << STALLED;
        let (own, word) = (&self.places[self.own].load, flags | waiting << 32 | u64::from(load.in_flight));
        // What is written is taken from whoever reads it.
        if own.load(Ordering::Relaxed) != word {
            own.store(word, Ordering::Relaxed);
        }
    }

    /// That of this core, as it said last.
    pub fn load(&self) -> Load {
        let word = self.places[self.own].load.load(Ordering::Relaxed);
        Load {
            waiting: (word >> 32) as u32 & WAITING_MAX,
            in_flight: word as u32,
            is_full: word >> FULL & 1 == 1,
            is_stalled: word >> STALLED & 1 == 1,
        }
    }

    /// What this core said last.
    pub fn record(&self) -> Record {
        self.places[self.own].read()
    }

    /// The level that this core would choose, from now on.
    pub fn tell_level(&self, told: Told) {
        let place = &self.places[self.own];
        let word = u64::from(told.replies) << 8 | told.level as u64;
        place.level.store(word, Ordering::Relaxed);
        place.level_at.store(told.at.as_nanos(), Ordering::Relaxed);
        if told.level != Level::Steady {
            self.alarmed_until.fetch_max(told.at.after(ALARM).as_nanos(), Ordering::Relaxed);
        }
    }

    /// What all cores told of levels.
    pub fn told(&self) -> impl Iterator<Item = Told> {
        self.places.iter().map(|place| {
            let word = place.level.load(Ordering::Relaxed);
            let level = Level::ALL.into_iter().find(|level| *level as u64 == word & 0xff);
            Told {
                at: Timestamp::from_nanos(place.level_at.load(Ordering::Relaxed)),
                level: level.unwrap_or_default(),
                replies: (word >> 8) as u32,
            }
        })
    }
}

impl Board for Section<'_> {
    fn tell(&mut self, record: Record) {
        let place = &self.places[self.own];
        let pair = |high: f64, low: u32| u64::from((high as f32).to_bits()) << 32 | u64::from(low);
        place.seconds.store(pair(record.median, (record.base as f32).to_bits()), Ordering::Relaxed);
        let counted = record.samples << 1 | u32::from(record.is_limited);
        place.window.store(pair(record.window, counted), Ordering::Relaxed);
        place.quarter.store(u64::from((record.quarter as f32).to_bits()), Ordering::Relaxed);
        place.probe_at.store(record.probe_at.as_nanos(), Ordering::Relaxed);
        place.at.store(record.at.as_nanos(), Ordering::Relaxed);
    }

    fn records(&self) -> impl Iterator<Item = Record> {
        self.places.iter().map(Place::read)
    }
}

impl Place {
    fn read(&self) -> Record {
        let (at, seconds) = (self.at.load(Ordering::Relaxed), self.seconds.load(Ordering::Relaxed));
        let window = self.window.load(Ordering::Relaxed);
        let number = |bits: u64| f64::from(f32::from_bits(bits as u32));
        Record {
            at: Timestamp::from_nanos(at),
            median: number(seconds >> 32),
            samples: window as u32 >> 1,
            base: number(seconds),
            window: number(window >> 32),
            is_limited: window & 1 == 1,
            quarter: number(self.quarter.load(Ordering::Relaxed)),
            probe_at: Timestamp::from_nanos(self.probe_at.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_core_tells_all_may_read() {
        let board = Noticeboard::new(3, 2);
        let record = Record {
            at: Timestamp::from_millis(5),
            median: 0.25,
            samples: 77,
            base: 0.125,
            window: 64.5,
            is_limited: true,
            quarter: 0.5,
            probe_at: Timestamp::from_millis(6),
        };
        board.of(ShardId(1), 1).tell(record);
        let load = Load { waiting: 7, in_flight: u32::MAX, is_full: false, is_stalled: true };
        board.of(ShardId(1), 1).tell_load(load);
        let told = Told { at: Timestamp::from_millis(7), level: Level::Shedding, replies: 5_000 };
        assert!(!board.is_alarmed(told.at));
        board.of(ShardId(2), 1).tell_level(told);
        assert!(board.is_alarmed(told.at) && !board.is_alarmed(told.at.after(ALARM)));
        let seen: Vec<Record> = board.of(ShardId(0), 1).records().collect();
        assert_eq!(seen, [Record::default(), record, Record::default()]);
        assert_eq!(
            board.of(ShardId(0), 1).told().collect::<Vec<_>>(),
            [Told::default(), Told::default(), told]
        );
        assert!(board.of(ShardId(0), 0).records().all(|record| record == Record::default()));
        assert_eq!(board.of(ShardId(1), 1).load(), load);
        let load = Load { waiting: u32::MAX, in_flight: 0, is_full: true, is_stalled: false };
        board.of(ShardId(1), 1).tell_load(load);
        assert_eq!(board.of(ShardId(1), 1).load(), Load { waiting: WAITING_MAX, ..load });
    }
}
