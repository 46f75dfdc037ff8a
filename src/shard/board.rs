//! What cores tell each other of their bulkheads: a record each, which one core writes now and then and all may read. No lock, and
//! nothing waits: a reader that comes while it is written sees some of it old and some of it new, which nobody minds.

use std::sync::atomic::{AtomicU64, Ordering};

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
    /// What waits, and what is in flight.
    load: AtomicU64,
    /// The level of shedding.
    level: AtomicU64,
}

/// What waits at a bulkhead of a core, and what it has in flight, as of when it last said so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that wait.
    pub waiting: u32,
    /// Requests in flight.
    pub in_flight: u32,
}

/// The records of all cores.
#[derive(Debug)]
pub struct Noticeboard {
    places: Box<[Place]>,
    shards: usize,
}

impl Noticeboard {
    /// For so many cores, each with so many bulkheads. Nobody has told anything.
    pub fn new(shards: u16, bulkheads: usize) -> Self {
        let shards = usize::from(shards);
        Self { places: std::iter::repeat_with(Place::default).take(shards * bulkheads).collect(), shards }
    }

    /// The part of it that one core writes of one bulkhead, and reads of all.
    pub fn of(&self, shard: ShardId, bulkhead: usize) -> Section<'_> {
        let first = bulkhead * self.shards;
        Section { places: &self.places[first..first + self.shards], own: usize::from(shard.0) }
    }
}

/// What cores told of one bulkhead.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    places: &'a [Place],
    own: usize,
}

impl Section<'_> {
    /// This core's own load, from now on.
    pub fn tell_load(&self, load: Load) {
        let word = u64::from(load.waiting) << 32 | u64::from(load.in_flight);
        self.places[self.own].load.store(word, Ordering::Relaxed);
    }

    /// That of this core, as it said last.
    pub fn load(&self) -> Load {
        let word = self.places[self.own].load.load(Ordering::Relaxed);
        Load { waiting: (word >> 32) as u32, in_flight: word as u32 }
    }

    /// What this core said last.
    pub fn record(&self) -> Record {
        self.places[self.own].read()
    }

    /// This core's own level of shedding, from now on.
    pub fn tell_level(&self, level: u8) {
        self.places[self.own].level.store(u64::from(level), Ordering::Relaxed);
    }

    /// Those of all cores.
    pub fn levels(&self) -> impl Iterator<Item = u8> {
        self.places.iter().map(|place| place.level.load(Ordering::Relaxed) as u8)
    }
}

impl Board for Section<'_> {
    fn tell(&mut self, record: Record) {
        let place = &self.places[self.own];
        let pair = |high: f64, low: u32| u64::from((high as f32).to_bits()) << 32 | u64::from(low);
        place.seconds.store(pair(record.median, (record.base as f32).to_bits()), Ordering::Relaxed);
        let counted = record.samples << 1 | u32::from(record.is_limited);
        place.window.store(pair(record.window, counted), Ordering::Relaxed);
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
        };
        board.of(ShardId(1), 1).tell(record);
        board.of(ShardId(1), 1).tell_load(Load { waiting: 7, in_flight: u32::MAX });
        board.of(ShardId(2), 1).tell_level(3);
        let seen: Vec<Record> = board.of(ShardId(0), 1).records().collect();
        assert_eq!(seen, [Record::default(), record, Record::default()]);
        assert_eq!(board.of(ShardId(0), 1).levels().collect::<Vec<_>>(), [0, 0, 3]);
        assert!(board.of(ShardId(0), 0).records().all(|record| record == Record::default()));
        assert_eq!(board.of(ShardId(1), 1).load(), Load { waiting: 7, in_flight: u32::MAX });
    }
}
