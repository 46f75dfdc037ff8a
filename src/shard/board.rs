//! Noticeboard between cores: a record of each core's bulkhead (the window and the queue before one backend),
//! written by that core and read by all. Readers and writers use relaxed atomics and no lock: a reader that
//! comes during a write may see old and new fields together, which does no harm to the decisions based on
//! them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::policy::latency_ratio::{Level, Told};
use crate::policy::window::{Board, Record};
use crate::values::{ShardId, Timestamp};

/// The record that one core writes about one bulkhead (window and queue in front of a backend). It fills a
/// cache line of its own, so that writes of other cores do not slow its readers.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Place {
    at: AtomicU64,
    /// The backend's median response time in the upper 32 bits, and its base response time (that with few
    /// requests in flight) in the lower 32 bits: both in seconds, as 32-bit floating point numbers.
    seconds: AtomicU64,
    /// The window (the most requests that may be in flight) in the upper 32 bits, as a 32-bit floating point
    /// number. The lower 32 bits hold twice the number of replies so far, plus 1 if requests waited for room
    /// in the window.
    window: AtomicU64,
    /// The backend's median response time while a quarter of the window (the most requests that may be in
    /// flight) is in flight, in seconds, as a 32-bit floating point number.
    quarter: AtomicU64,
    /// Time at which the core asks all cores to measure the backend's base response time (that with few
    /// requests in flight), on the monotonic clock in nanoseconds.
    probe_at: AtomicU64,
    /// Number of requests in flight in the lower 32 bits; above it the number of requests that wait (29 bits)
    /// and three flags: the backend is busy with a script (bit 61), the queue is full (bit 62), the backend
    /// has stalled (bit 63).
    load: AtomicU64,
    /// The shedding level (which requests are refused or cost more) that the core proposes for the backend, in
    /// the lower 8 bits, and above it the number of replies that the proposal is based on.
    level: AtomicU64,
    /// Time at which the core wrote the shedding level (which requests are refused or cost more) that it
    /// proposes, in nanoseconds.
    level_at: AtomicU64,
}

/// Requests that wait and that are in flight at one bulkhead (window and queue) of one core, as that core
/// last wrote them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of requests that wait in the queue in front of the backend.
    pub waiting: u32,
    /// Number of requests in flight at the backend.
    pub in_flight: u32,
    /// True if the queue in front of the backend is full: no more requests may wait.
    pub is_full: bool,
    /// True if the backend has stalled: it sends nothing while requests are in flight.
    pub is_stalled: bool,
    /// True if the backend is busy with a script: it says so over another connection, and sends nothing on the usual
    /// ones, so that the core sends it no more requests.
    pub is_busy: bool,
}

/// The records that all cores write of their bulkheads (windows and queues in front of backends).
#[derive(Debug)]
pub struct Noticeboard {
    places: Box<[Place]>,
    shards: usize,
    /// Time until which cores read each other's proposals of shedding levels (which requests are refused or
    /// cost more), in nanoseconds; 3 s after the last proposal of a level above steady.
    alarmed_until: AtomicU64,
}

impl Noticeboard {
    /// Creates a board for `shards` cores with `bulkheads` bulkheads (windows and queues) each. All records
    /// are empty.
    pub fn new(shards: u16, bulkheads: usize) -> Self {
        let shards = usize::from(shards);
        let places = std::iter::repeat_with(Place::default).take(shards * bulkheads).collect();
        Self { places, shards, alarmed_until: AtomicU64::new(0) }
    }

    /// True if any core proposed a shedding level (which requests are refused or cost more) above steady in
    /// the last 3 s.
    pub fn is_alarmed(&self, now: Timestamp) -> bool {
        self.alarmed_until.load(Ordering::Relaxed) > now.as_nanos()
    }

    /// Returns the records of one bulkhead (window and queue) for the given core, which may write its own and
    /// read those of all cores.
    pub fn of(&self, shard: ShardId, bulkhead: usize) -> Section<'_> {
        let first = bulkhead * self.shards;
        let places = &self.places[first..first + self.shards];
        Section { places, own: usize::from(shard.0), alarmed_until: &self.alarmed_until }
    }
}

/// The records of all cores about one bulkhead (window and queue), as seen by one core.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    places: &'a [Place],
    own: usize,
    alarmed_until: &'a AtomicU64,
}

/// The largest number of waiting requests that a core's record of a bulkhead (window and queue) has room for,
/// in 29 bits; a larger number is written as this one.
const WAITING_MAX: u32 = (1 << 29) - 1;
/// Number of the bit in `Place::load` (requests in flight and waiting at a backend) which says that the
/// backend is busy with a script.
const BUSY: u32 = 61;
/// Number of the bit in `Place::load` (requests in flight and waiting at a backend) which says that the queue
/// in front of the backend is full.
const FULL: u32 = 62;
/// Number of the bit in `Place::load` (requests in flight and waiting at a backend) which says that the
/// backend has stalled: it sends nothing although requests are in flight.
const STALLED: u32 = 63;
/// Time for which cores read each other's proposals of shedding levels (which requests are refused or cost
/// more) after a core proposed one above steady.
const ALARM: Duration = Duration::from_secs(3);

impl Section<'_> {
    /// Writes this core's load of the bulkhead (requests in flight and waiting at one backend), which other
    /// cores and reports read.
    pub fn tell_load(&self, load: Load) {
        let waiting = u64::from(load.waiting.min(WAITING_MAX));
        let flags = u64::from(load.is_busy) << BUSY
            | u64::from(load.is_full) << FULL
            | u64::from(load.is_stalled) << STALLED;
        let (own, word) = (&self.places[self.own].load, flags | waiting << 32 | u64::from(load.in_flight));
        // Skips the store when nothing changed: a write takes the cache line from its readers.
        if own.load(Ordering::Relaxed) != word {
            own.store(word, Ordering::Relaxed);
        }
    }

    /// Returns the load of the bulkhead (requests in flight and waiting at one backend) that this core wrote
    /// last.
    pub fn load(&self) -> Load {
        let word = self.places[self.own].load.load(Ordering::Relaxed);
        Load {
            waiting: (word >> 32) as u32 & WAITING_MAX,
            in_flight: word as u32,
            is_full: word >> FULL & 1 == 1,
            is_stalled: word >> STALLED & 1 == 1,
            is_busy: word >> BUSY & 1 == 1,
        }
    }

    /// Returns the number of requests in flight at the backend of this bulkhead (window and queue), of all
    /// cores together as they wrote it last.
    pub fn in_flight(&self) -> u32 {
        self.places.iter().map(|place| place.load.load(Ordering::Relaxed) as u32).sum()
    }

    /// True if any core has written that the backend of this bulkhead (window and queue) is busy with a
    /// script.
    pub fn is_busy(&self) -> bool {
        self.places.iter().any(|place| place.load.load(Ordering::Relaxed) >> BUSY & 1 == 1)
    }

    /// Returns what this core wrote last about the bulkhead's backend: the window (limit on requests in
    /// flight), the response times and the number of replies.
    pub fn record(&self) -> Record {
        self.places[self.own].read()
    }

    /// Writes the shedding level (which requests are refused or cost more) that this core proposes for the
    /// backend. A level above steady makes all cores read the levels for 3 s.
    pub fn tell_level(&self, told: Told) {
        let place = &self.places[self.own];
        let word = u64::from(told.replies) << 8 | told.level as u64;
        place.level.store(word, Ordering::Relaxed);
        place.level_at.store(told.at.as_nanos(), Ordering::Relaxed);
        if told.level != Level::Steady {
            self.alarmed_until.fetch_max(told.at.after(ALARM).as_nanos(), Ordering::Relaxed);
        }
    }

    /// Returns the shedding levels (which requests are refused or cost more) that all cores proposed, in the
    /// order of the cores.
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
        let load = Load { waiting: 7, in_flight: u32::MAX, is_full: false, is_stalled: true, is_busy: true };
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
        let load = Load { waiting: u32::MAX, in_flight: 0, is_full: true, is_stalled: false, is_busy: false };
        board.of(ShardId(1), 1).tell_load(load);
        assert_eq!(board.of(ShardId(1), 1).load(), Load { waiting: WAITING_MAX, ..load });
    }
}
