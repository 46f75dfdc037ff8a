//! Stage 1 of the hot-key search, through which every request passes: the number of requests for each slot in
//! this pane (50 ms), and whether the slot is warm (busy now or in the last pane).

/// Number of counters of requests by hash slot. A core has a part of the 16,384 slots, so with four cores or
/// more few of its slots share a counter.
const COUNTERS: usize = 4_096;
/// The highest bit of a counter: set if the slot is warm from the start of the pane (interval of 50 ms),
/// however few its requests. The other bits count requests. So one comparison finds a warm slot (one whose
/// keys are counted one by one), and a request touches one cache line.
const WARM: u32 = 1 << 31;

/// Counters of requests (or of their costs) by hash slot, on one core: only keys of busy slots are counted
/// one by one.
#[derive(Debug)]
pub(super) struct Slots {
    counters: Box<[u32; COUNTERS]>,
    warm_at: u32,
}

impl Slots {
    /// Creates empty counters of requests by hash slot. A slot is warm, so that its keys are counted one by
    /// one, from `warm_at` requests on.
    pub fn new(warm_at: u64) -> Self {
        Self { counters: Box::new([0; COUNTERS]), warm_at: clamped(warm_at) }
    }

    /// Counts a request for a key of a slot. True if the slot is warm (busy, so that its keys are counted one
    /// by one): the caller then counts the key as well.
    #[inline]
    pub fn count(&mut self, slot: u16) -> bool {
        let counter = &mut self.counters[usize::from(slot) % COUNTERS];
        // A pane has no 2^31 requests; if it had, a slot would be warm for nothing, or cold until the pane
        // ends.
        *counter = counter.wrapping_add(1);
        *counter >= self.warm_at
    }

    /// Adds a weight (the cost of a request) to the counter of a hash slot; the counter stops at its maximum.
    #[inline]
    pub fn add(&mut self, slot: u16, weight: u64) {
        let counter = &mut self.counters[usize::from(slot) % COUNTERS];
        let sum = u64::from(*counter & !WARM).saturating_add(weight);
        *counter = (*counter & WARM) | sum.min(u64::from(!WARM)) as u32;
    }

    /// Returns the most requests that a key of the slot may have had in this pane (50 ms), before the present
    /// request, without being counted by itself, because the slot was not busy enough yet.
    pub fn missed(&self, slot: u16) -> u64 {
        match self.counters[usize::from(slot) % COUNTERS] {
            counter if counter & WARM != 0 => 0,
            counter => u64::from(counter.min(self.warm_at)).saturating_sub(1),
        }
    }

    /// Returns the sum of all requests (or costs) counted since the counters were last emptied for a new
    /// interval.
    pub fn total(&self) -> u64 {
        self.counters.iter().map(|counter| u64::from(counter & !WARM)).sum()
    }

    /// Empties the counters for a new pane (interval of 50 ms), in which a slot is warm (busy, so that its
    /// keys are counted one by one) from `warm_at` requests on. A slot that had at least as many in the last
    /// pane is warm at once.
    pub fn restart(&mut self, warm_at: u64) {
        self.warm_at = clamped(warm_at);
        for counter in self.counters.iter_mut() {
            *counter = if *counter & !WARM >= self.warm_at { WARM } else { 0 };
        }
    }

    /// Makes a slot warm, so that its keys are counted one by one, until the counters are next emptied.
    pub fn keep_warm(&mut self, slot: u16) {
        self.counters[usize::from(slot) % COUNTERS] |= WARM;
    }

    /// Makes all slots warm (their keys are counted one by one) that are warm by the counters in `others`.
    pub fn keep_warm_with(&mut self, others: &Self) {
        for (counter, other) in self.counters.iter_mut().zip(others.counters.iter()) {
            *counter |= if *other >= others.warm_at { WARM } else { 0 };
        }
    }
}

fn clamped(warm_at: u64) -> u32 {
    warm_at.clamp(1, u64::from(!WARM)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_is_what_had_enough_in_this_pane_or_in_the_last() {
        let mut slots = Slots::new(3);
        assert_eq!([(); 4].map(|()| slots.count(7)), [false, false, true, true]);
        assert!(!slots.count(8));
        assert_eq!((slots.missed(7), slots.missed(8), slots.total()), (2, 0, 5));
        slots.restart(4);
        assert!(slots.count(7) && !slots.count(8), "the first had four");
        assert_eq!((slots.missed(7), slots.total()), (0, 2));
        slots.restart(4);
        assert!(!slots.count(7));
        slots.keep_warm(9);
        assert!(slots.count(9));
    }

    #[test]
    fn what_does_not_fit_stays_at_the_most_that_does() {
        let mut slots = Slots::new(u64::MAX);
        slots.add(1, u64::MAX);
        slots.add(1, 5);
        assert_eq!(slots.total(), u64::from(!WARM));
        let mut others = Slots::new(9);
        others.keep_warm_with(&slots);
        assert!(others.count(1) && !others.count(2));
    }
}
