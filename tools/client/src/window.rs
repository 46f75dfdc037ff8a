//! A count of recent events. Time is cut into stretches, each with a counter of its own; the oldest is
//! dropped as a whole, so a window takes the same memory however many events there are.

use std::time::Duration;

use weir::values::Timestamp;

/// Counts recent events: a window of time is divided into `STRETCHES` equal stretches, each with a counter
/// of its own, and the oldest stretch is dropped as a whole.
#[derive(Clone, Debug)]
pub(super) struct Window<const STRETCHES: usize> {
    stretch_nanos: u64,
    /// The number of the newest stretch (one of the equal parts of the window), counted from the clock's zero.
    newest: u64,
    counts: [u32; STRETCHES],
    sum: u64,
}

impl<const STRETCHES: usize> Window<STRETCHES> {
    pub fn new(length: Duration) -> Self {
        let stretch_nanos = (length.as_nanos() as u64 / STRETCHES as u64).max(1);
        Self { stretch_nanos, newest: 0, counts: [0; STRETCHES], sum: 0 }
    }

    /// Counts one event that happens at `now`.
    pub fn add(&mut self, now: Timestamp) {
        self.move_on(now);
        let count = &mut self.counts[self.newest as usize % STRETCHES];
        if *count < u32::MAX {
            *count += 1;
            self.sum += 1;
        }
    }

    /// Returns the number of events in the window of time that ends at `now`, to within one stretch.
    pub fn sum(&mut self, now: Timestamp) -> u64 {
        self.move_on(now);
        self.sum
    }

    /// Sets the count of recent events to zero.
    pub fn clear(&mut self) {
        self.counts = [0; STRETCHES];
        self.sum = 0;
    }

    fn move_on(&mut self, now: Timestamp) {
        let newest = now.as_nanos() / self.stretch_nanos;
        // An event that is reported late counts in the current stretch.
        let passed = newest.saturating_sub(self.newest);
        for stretch in 1..=passed.min(STRETCHES as u64) {
            let count = &mut self.counts[(self.newest + stretch) as usize % STRETCHES];
            self.sum -= u64::from(std::mem::take(count));
        }
        self.newest += passed;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the window with a list of all events.
        #[test]
        fn it_counts_what_lies_in_its_stretches(
            steps in prop::collection::vec((0..400_u64, any::<bool>()), 1..200),
            late in 0..50_u64,
        ) {
            let mut window: Window<5> = Window::new(Duration::from_millis(500));
            let (mut moments, mut newest) = (Vec::new(), 0);
            let mut millis: u64 = 0;
            for (pause, happens) in steps {
                millis += pause;
                // A clock that steps back a little changes nothing.
                let told = if happens { millis.saturating_sub(late) } else { millis };
                newest = newest.max(told / 100);
                if happens {
                    window.add(Timestamp::from_millis(told));
                    moments.push(newest);
                }
                let kept = moments.iter().filter(|stretch| **stretch + 5 > newest).count();
                prop_assert_eq!(window.sum(Timestamp::from_millis(told)), kept as u64);
            }
        }
    }

    #[test]
    fn ages_without_a_word_cost_no_more_than_one_round() {
        let mut window: Window<60> = Window::new(Duration::from_secs(120));
        window.add(Timestamp::ZERO);
        assert_eq!(window.sum(Timestamp::from_millis(119_999)), 1);
        assert_eq!(window.sum(Timestamp::MAX), 0);
        window.add(Timestamp::MAX);
        assert_eq!(window.sum(Timestamp::ZERO), 1);
    }
}
