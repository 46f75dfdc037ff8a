//! Counts of reads by key: how many in all, how many at the same time, and how many in one second.
//!
//! A read is in flight from its arrival, waiting or served, until its service is over or it is dropped. This
//! shows how a store is loaded by a hot key.

use std::collections::BTreeMap;

use slab::Slab;

use weir::values::Timestamp;

/// Maximum number of keys whose reads are counted separately; reads of further keys are counted together.
const KEYS_MAX: usize = 1_000_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Counts of the reads of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyReads {
    /// Number of reads of the key that were carried out.
    pub(super) reads: u64,
    pub(super) in_flight: u32,
    pub(super) in_flight_max: u32,
    /// The second of the store's clock in which the key was last read; `in_second` counts its reads in that
    /// second.
    second: u64,
    in_second: u64,
    /// The largest number of reads of the key in one second so far.
    pub(super) per_second_max: u64,
}

impl KeyReads {
    fn note_read(&mut self, at: Timestamp) {
        self.reads += 1;
        let second = at.as_nanos() / NANOS_PER_SECOND;
        self.in_second = if self.second == second { self.in_second + 1 } else { 1 };
        self.second = second;
        self.per_second_max = self.per_second_max.max(self.in_second);
    }
}

/// The count by which keys are ordered when the busiest are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busiest {
    Reads,
    InFlight,
}

/// The number of a key whose reads are counted separately; a key keeps its number at least while a read of it
/// is in flight.
pub(crate) type KeyNumber = u32;

#[derive(Debug, Default)]
pub(super) struct Reads {
    numbers: BTreeMap<Box<[u8]>, KeyNumber>,
    figures: Slab<KeyReads>,
    pub(super) untracked: u64,
}

impl Reads {
    /// Counts a read of `key` that has arrived as in flight, and returns the key's number; `None` if too
    /// many keys are counted already.
    pub(super) fn enter(&mut self, key: &[u8]) -> Option<KeyNumber> {
        let number = match self.numbers.get(key) {
            Some(number) => *number,
            None if self.numbers.len() < KEYS_MAX => {
                let number = self.figures.insert(KeyReads::default()) as KeyNumber;
                self.numbers.insert(key.into(), number);
                number
            }
            None => {
                self.untracked += 1;
                return None;
            }
        };
        let key = &mut self.figures[number as usize];
        key.in_flight += 1;
        key.in_flight_max = key.in_flight_max.max(key.in_flight);
        Some(number)
    }

    /// Counts a read of the key with this number as carried out at the time `at`; it is still in flight.
    pub(super) fn note_read(&mut self, number: KeyNumber, at: Timestamp) {
        self.figures[number as usize].note_read(at);
    }

    /// Ends a read in flight of the key with this number.
    pub(super) fn leave(&mut self, number: KeyNumber) {
        let key = &mut self.figures[number as usize];
        debug_assert!(key.in_flight > 0, "it has arrived");
        key.in_flight = key.in_flight.saturating_sub(1);
    }

    /// Ends all reads in flight, because their requests are lost.
    pub(super) fn leave_all(&mut self) {
        self.figures.iter_mut().for_each(|(_, key)| key.in_flight = 0);
    }

    pub(super) fn of(&self, key: &[u8]) -> KeyReads {
        self.numbers.get(key).map(|number| self.figures[*number as usize]).unwrap_or_default()
    }

    /// Returns the `count` keys with the largest counts, largest first, each with its count: reads carried
    /// out, or the most reads in flight at a time. Keys with equal counts come in the order of their bytes.
    pub(super) fn top(&self, count: usize, by: Busiest) -> Vec<(&[u8], u64)> {
        let value = |number: &KeyNumber| {
            let key = &self.figures[*number as usize];
            if by == Busiest::Reads { key.reads } else { u64::from(key.in_flight_max) }
        };
        let all = self.numbers.iter().map(|(key, number)| (&**key, value(number)));
        let mut busy: Vec<(&[u8], u64)> = all.filter(|(_, value)| *value > 0).collect();
        busy.sort_by_key(|(_, value)| std::cmp::Reverse(*value));
        busy.truncate(count);
        busy
    }

    /// Sets the counts of reads of all keys to zero. Reads in flight stay counted as in flight.
    pub(super) fn reset(&mut self) {
        let Self { numbers, figures, untracked } = self;
        *untracked = 0;
        numbers.retain(|_, number| {
            let key = &mut figures[*number as usize];
            *key = KeyReads { in_flight: key.in_flight, in_flight_max: key.in_flight, ..KeyReads::default() };
            let wanted = key.in_flight > 0;
            if !wanted {
                figures.remove(*number as usize);
            }
            wanted
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

    #[test]
    fn the_busiest_keys_come_first() {
        let mut reads = Reads::default();
        for key in ["b", "a", "c", "c", "a", "c"] {
            let number = reads.enter(key.as_bytes()).expect("few keys");
            reads.note_read(number, AT(0));
            reads.leave(number);
        }
        assert_eq!(reads.top(2, Busiest::Reads), [(&b"c"[..], 3), (b"a", 2)]);
        reads.enter(b"b");
        reads.enter(b"b");
        assert_eq!(reads.top(2, Busiest::InFlight), [(&b"b"[..], 2), (b"a", 1)]);
        assert_eq!((reads.of(b"b").reads, reads.of(b"d").reads), (1, 0));
    }

    #[test]
    fn reads_in_flight_outlive_a_reset() {
        let mut reads = Reads::default();
        let (early, late) = (reads.enter(b"a").expect("few"), reads.enter(b"a").expect("few"));
        let gone = reads.enter(b"gone").expect("few");
        reads.leave(gone);
        reads.leave(early);
        assert_eq!((reads.of(b"a").in_flight, reads.of(b"a").in_flight_max), (1, 2));
        reads.reset();
        assert_eq!((reads.of(b"a").in_flight, reads.of(b"a").in_flight_max), (1, 1));
        assert_eq!(reads.of(b"gone"), KeyReads::default());
        reads.note_read(late, AT(5));
        reads.leave(late);
        assert_eq!((reads.of(b"a").in_flight, reads.of(b"a").reads), (0, 1));
        reads.enter(b"a");
        reads.leave_all();
        assert_eq!(reads.of(b"a").in_flight, 0);
    }

    #[test]
    fn reads_of_one_second_are_counted_together() {
        let mut reads = Reads::default();
        let number = reads.enter(b"k").expect("few");
        for ms in [0, 500, 999, 1_000, 1_999, 7_000] {
            reads.note_read(number, AT(ms));
        }
        assert_eq!((reads.of(b"k").reads, reads.of(b"k").per_second_max), (6, 3));
    }

    #[test]
    fn keys_are_bounded() {
        let mut reads = Reads::default();
        for key in 0..=KEYS_MAX as u32 {
            assert_eq!(reads.enter(&key.to_be_bytes()).is_some(), (key as usize) < KEYS_MAX);
        }
        assert_eq!(reads.untracked, 1);
        assert!(reads.enter(&0_u32.to_be_bytes()).is_some());
    }
}
