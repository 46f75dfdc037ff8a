//! Times of arrival of the bytes that a client has sent and whose requests may not be started yet. Deadlines count
//! from them, however long the bytes wait to be decoded.

use std::collections::VecDeque;
use std::time::Duration;

use crate::values::Timestamp;

/// Bytes that arrive within this time after the first bytes of a group count as arrived together with those, so that
/// the record of many small arrivals stays short.
const TOGETHER: Duration = Duration::from_millis(1);
/// Bytes also join the last group if its first bytes came at most a 32nd (1 / `PARTS`) of the time ago for which the
/// oldest undecoded bytes have waited. A few hundred times of arrival then cover any wait.
const PARTS: u32 = 32;

/// Undecoded bytes of a client that arrived together: their number and their time of arrival.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    bytes: usize,
    at: Timestamp,
}

/// Record of the times at which the undecoded bytes of one client arrived. Empty for a client whose next
/// request may be started at once.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// The numbers and times of arrival of the undecoded bytes, the oldest first.
    waiting: VecDeque<Arrival>,
    /// Number of undecoded bytes whose times of arrival are in `waiting`.
    bytes: usize,
}

impl Arrivals {
    /// True if no bytes wait.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Records that `bytes` more bytes of the client arrived at the time `at`, behind those that wait to be
    /// decoded.
    pub fn add(&mut self, bytes: usize, at: Timestamp) {
        self.bytes += bytes;
        let oldest = self.waiting.front().map_or(at, |first| first.at);
        let together = TOGETHER.max(at.since(oldest) / PARTS);
        match self.waiting.back_mut() {
            Some(last) if at.since(last.at) <= together => last.bytes += bytes,
            _ => self.waiting.push_back(Arrival { bytes, at }),
        }
    }

    /// Removes the oldest bytes until `left` are left, and returns the time at which the last of the removed bytes
    /// arrived (if none had to be removed, the oldest of all); `None` if no bytes waited.
    pub fn take_until(&mut self, left: usize) -> Option<Timestamp> {
        let mut at = self.waiting.front()?.at;
        let mut taken = self.bytes.saturating_sub(left);
        self.bytes -= taken;
        while taken > 0 {
            let first = self.waiting.front_mut().expect("as many bytes wait as are counted");
            at = first.at;
            if first.bytes > taken {
                first.bytes -= taken;
                break;
            }
            taken -= first.bytes;
            self.waiting.pop_front();
        }
        Some(at)
    }

    /// Corrects the number of waiting bytes to `bytes`. If that is more than were recorded, the additional
    /// bytes count as arrived at the time `at`; if it is less, the oldest are removed.
    pub fn correct(&mut self, bytes: usize, at: Timestamp) {
        if bytes > self.bytes {
            self.add(bytes - self.bytes, at);
        } else {
            self.take_until(bytes);
        }
    }

    /// Removes all bytes, because none wait any more.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
    }

    /// Frees the memory of times of arrival, unless bytes wait.
    pub fn tidy(&mut self) {
        if self.is_empty() {
            self.waiting = VecDeque::new();
        }
    }

    /// Returns the bytes of memory that the times of arrival take.
    pub fn memory_bytes(&self) -> usize {
        self.waiting.capacity() * size_of::<Arrival>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::ZERO.after(Duration::from_micros(micros))
    }

    proptest::proptest! {
        /// Compares times of arrival with a list of the times of all bytes. A time is early by at most 1 ms
        /// or a 32nd of the longest wait, and never late.
        #[test]
        fn bytes_are_as_old_as_they_are(
            steps in proptest::collection::vec((0..20_000_u64, 1..400_usize, 0..500_usize), 1..400),
        ) {
            let (mut arrivals, mut model, mut now) = (Arrivals::default(), VecDeque::new(), 0);
            let mut longest = 0;
            for (later, bytes, taken) in steps {
                now += later;
                arrivals.add(bytes, at(now));
                model.extend(std::iter::repeat_n(now, bytes));
                longest = longest.max(now - model[0]);
                let taken = taken.min(model.len());
                let last = model.drain(..taken).next_back();
                let told = arrivals.take_until(model.len());
                if let (Some(told), Some(last)) = (told, last) {
                    let early = at(last).since(told);
                    let most = TOGETHER.max(Duration::from_micros(longest) / PARTS);
                    proptest::prop_assert!(told <= at(last) && early <= most, "{told:?} for {last} at {now}");
                }
                proptest::prop_assert_eq!(arrivals.is_empty(), model.is_empty());
            }
            arrivals.correct(model.len() + 1, at(now));
            arrivals.correct(0, at(now));
            proptest::prop_assert!(arrivals.is_empty());
        }
    }

    #[test]
    fn the_times_of_a_long_wait_take_little_memory() {
        let mut arrivals = Arrivals::default();
        for millis in 0..3_600_000 {
            arrivals.add(1, at(millis * 1_000));
        }
        assert!(arrivals.memory_bytes() <= 16 * 1024, "{}", arrivals.memory_bytes());
        arrivals.take_until(0);
        arrivals.tidy();
        assert_eq!(arrivals.memory_bytes(), 0);
    }
}
