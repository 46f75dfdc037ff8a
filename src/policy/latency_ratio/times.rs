//! How long the replies of one class took: over the last second, the last ten, the last minute, and in the better minutes of a
//! quarter of an hour.

use std::ops::{AddAssign, SubAssign};

use super::{SAMPLES_MIN, SECOND, SLICES};

/// Times are counted in so many parts of each power of two, so the error is at most a sixteenth; within a part they are taken
/// to be spread evenly.
const PARTS_BITS: u32 = 4;
const PARTS: usize = 1 << PARTS_BITS;
/// 67 seconds, in microseconds. What claims to have taken longer was measured wrongly.
const MICROS_BITS: u32 = 26;
const MICROS_MAX: u64 = (1 << MICROS_BITS) - 1;
const COUNTERS: usize = PARTS * (MICROS_BITS - PARTS_BITS + 1) as usize;
/// So many samples of a slice are wanted: of more replies, every second one is taken, or every third, and so on.
const KEPT: u32 = 800;
/// And no more than so many are kept, until that is known.
const KEPT_MAX: u32 = 2 * KEPT;
/// The long window: so many parts of as many slices as the widest short window has, which is a minute.
const LONG_PARTS: usize = 6;
/// The reference: so many minutes, each with so many slices in which something was learnt.
const FLOORS: usize = 15;
const FLOOR_SLICES: usize = LONG_PARTS * SLICES;
/// The share of replies that a percentile leaves below.
const SHARE: f64 = 0.95;
/// How sure is sure, in standard deviations.
const SURE: f64 = 2.0;

const _: () = assert!(KEPT_MAX as usize * SLICES <= u16::MAX as usize, "counters of ten seconds do not wrap");

/// Samples of a stretch of time, counted: of ten seconds at most in 16 bits.
#[derive(Clone, Debug)]
struct Counts<N> {
    kept: [N; COUNTERS],
    samples: u32,
    /// The replies that they stand for.
    replies: u32,
}

impl<N: Copy + Default + AddAssign + SubAssign> Counts<N> {
    fn none() -> Self {
        Self { kept: [N::default(); COUNTERS], samples: 0, replies: 0 }
    }

    fn add<M: Copy + Into<N>>(&mut self, other: &Counts<M>) {
        if other.samples == 0 {
            return;
        }
        for (sum, count) in self.kept.iter_mut().zip(&other.kept) {
            *sum += (*count).into();
        }
        self.samples += other.samples;
        self.replies = self.replies.saturating_add(other.replies);
    }

    /// Takes away what was added before.
    fn subtract<M: Copy + Into<N>>(&mut self, other: &Counts<M>) {
        if other.samples == 0 {
            return;
        }
        for (sum, count) in self.kept.iter_mut().zip(&other.kept) {
            *sum -= (*count).into();
        }
        self.samples -= other.samples;
        self.replies = self.replies.saturating_sub(other.replies);
    }
}

impl Counts<u32> {
    /// The time, in microseconds, that this share of them did not exceed.
    fn quantile(&self, share: f64) -> f64 {
        let rank = (share * f64::from(self.samples)).ceil().clamp(1.0, f64::from(self.samples.max(1)));
        let mut before = 0.0;
        for (index, kept) in self.kept.iter().enumerate() {
            let kept = f64::from(*kept);
            if before + kept >= rank {
                let (from, width) = range_of(index);
                return from + width * (rank - before - 0.5) / kept;
            }
            before += kept;
        }
        0.0
    }

    /// The percentile, and what it is surely not below and not above, by how many samples there are.
    fn percentile(&self, deviations: f64) -> f64 {
        let deviation = (SHARE * (1.0 - SHARE) / f64::from(self.samples.max(1))).sqrt();
        self.quantile((SHARE + deviations * deviation).min(1.0))
    }
}

fn counter_of(micros: u64) -> usize {
    let doubled = (micros | PARTS as u64).ilog2() - PARTS_BITS;
    (u64::from(doubled << PARTS_BITS) + (micros >> doubled)) as usize
}

/// Where what a counter counts begins, and how wide it is.
fn range_of(counter: usize) -> (f64, f64) {
    let doubled = (counter / PARTS).max(1) - 1;
    let width = (1_u64 << doubled) as f64;
    ((counter - doubled * PARTS) as f64 * width, width)
}

/// What the times of a class come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    /// Replies of a minute, so that classes can be weighed.
    pub weight: f64,
    /// And of ten seconds.
    pub replies: u32,
    /// Percentiles in microseconds: of the last second, what those of the last second and of the last ten are at least, and
    /// the reference.
    pub short: f64,
    pub surely: f64,
    pub surely_wide: f64,
    pub long: f64,
}

#[derive(Debug)]
pub(super) struct Times {
    current: Counts<u16>,
    /// Replies, of which one in `stride` is looked at: `skip` more are passed over first.
    stride: u32,
    skip: u32,
    looked_at: u32,
    /// The slices of the widest short window, in a ring, and their sum.
    slices: Box<[Counts<u16>]>,
    newest: usize,
    wide: Counts<u32>,
    /// The long window, in a ring too, and how old its newest part is.
    long: Box<[Counts<u16>]>,
    long_newest: usize,
    long_age: usize,
    /// The least that the percentile of the long window was in each minute.
    floors: [f64; FLOORS],
    floor_newest: usize,
    floor_age: usize,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            current: Counts::none(),
            stride: 1,
            skip: 0,
            looked_at: 0,
            slices: vec![Counts::none(); SLICES].into(),
            newest: 0,
            wide: Counts::none(),
            long: vec![Counts::none(); LONG_PARTS].into(),
            long_newest: 0,
            long_age: 0,
            floors: [f64::INFINITY; FLOORS],
            floor_newest: 0,
            floor_age: 0,
        }
    }
}

impl Times {
    /// A reply took so many microseconds.
    #[inline]
    pub fn record(&mut self, micros: u64) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        self.skip = self.stride - 1;
        if micros == 0 || micros > MICROS_MAX {
            return;
        }
        self.looked_at += 1;
        if self.current.samples < KEPT_MAX {
            self.current.kept[counter_of(micros)] += 1;
            self.current.samples += 1;
        }
    }

    /// A slice has ended, and so many in a row with it, of which all but the last saw nothing.
    pub fn end_slice(&mut self, passed: usize, is_frozen: bool) {
        let replies = self.looked_at.saturating_mul(self.stride);
        self.current.replies = replies;
        // Odd, so that it does not fall in step with pipelines.
        self.stride = (replies / KEPT) | 1;
        (self.skip, self.looked_at) = (0, 0);
        for _ in 1..passed.min(SLICES) {
            self.push(&Counts::none());
        }
        let ended = std::mem::replace(&mut self.current, Counts::none());
        self.push(&ended);
        if !is_frozen {
            self.learn(&ended, passed.min(SLICES));
        }
    }

    fn push(&mut self, slice: &Counts<u16>) {
        self.newest = (self.newest + 1) % SLICES;
        let oldest = &mut self.slices[self.newest];
        self.wide.subtract(oldest);
        self.wide.add(slice);
        if oldest.samples > 0 || slice.samples > 0 {
            oldest.clone_from(slice);
        }
    }

    fn learn(&mut self, slice: &Counts<u16>, passed: usize) {
        self.long_age += passed;
        if self.long_age > SLICES {
            self.long_age -= SLICES;
            self.long_newest = (self.long_newest + 1) % LONG_PARTS;
            self.long[self.long_newest] = Counts::none();
        }
        self.long[self.long_newest].add(slice);
        let long = self.long_sum();
        if long.samples < SAMPLES_MIN {
            return;
        }
        self.floor_age += passed;
        if self.floor_age > FLOOR_SLICES {
            self.floor_age -= FLOOR_SLICES;
            self.floor_newest = (self.floor_newest + 1) % FLOORS;
            self.floors[self.floor_newest] = f64::INFINITY;
        }
        // In doubt the usual is a little longer: few samples are no reason to find anything slow.
        let floor = &mut self.floors[self.floor_newest];
        *floor = floor.min(long.percentile(SURE));
    }

    fn long_sum(&self) -> Counts<u32> {
        let mut sum = Counts::none();
        self.long.iter().for_each(|part| sum.add(part));
        sum
    }

    /// Of four minutes one was better: the best one of many would be luck, and the middle one follows what creeps.
    fn reference(&self) -> f64 {
        let mut floors = self.floors;
        floors.sort_unstable_by(f64::total_cmp);
        let known = floors.partition_point(|floor| floor.is_finite());
        floors[known / 4]
    }

    /// Nothing as long as there are too few samples.
    /// The last second, or as much more as it takes until there are enough of them.
    fn narrow(&self) -> Counts<u32> {
        let mut narrow = Counts::<u32>::none();
        for back in 0..SLICES {
            if back >= SECOND && narrow.samples >= SAMPLES_MIN {
                break;
            }
            narrow.add(&self.slices[(self.newest + SLICES - back) % SLICES]);
        }
        narrow
    }

    /// The percentile of those, in microseconds.
    pub fn recent(&self) -> Option<f64> {
        (self.wide.samples >= SAMPLES_MIN).then(|| self.narrow().percentile(0.0))
    }

    pub fn judge(&self) -> Option<Judged> {
        if self.wide.samples < SAMPLES_MIN {
            return None;
        }
        let narrow = self.narrow();
        let long = self.reference();
        long.is_finite().then(|| Judged {
            weight: self.long.iter().map(|part| f64::from(part.replies)).sum(),
            replies: self.wide.replies,
            short: narrow.percentile(0.0),
            surely: narrow.percentile(-SURE),
            surely_wide: self.wide.percentile(-SURE),
            long,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Random;

    #[test]
    fn every_time_has_a_counter_and_lies_in_its_range() {
        let mut random = Random::new(1);
        let edges = (0..MICROS_BITS).flat_map(|bits| [(1_u64 << bits) - 1, 1 << bits, (1 << bits) + 1]);
        let some = (0..10_000).map(|_| random.bits() >> random.between(38, 63));
        for micros in edges.chain(some).chain([MICROS_MAX]) {
            let (from, width) = range_of(counter_of(micros));
            assert!((from..from + width).contains(&(micros as f64)), "{micros}: {from} and {width}");
            assert!(width <= (from / PARTS as f64).max(1.0));
        }
        assert_eq!(counter_of(MICROS_MAX), COUNTERS - 1);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_samples() {
        let mut random = Random::new(2);
        for samples in [1, 2, 19, 20, 100, 1_600] {
            let mut times = Times::default();
            let mut sorted: Vec<u64> =
                (0..samples).map(|_| (500.0 * random.exponential()) as u64 + 1).collect();
            sorted.iter().for_each(|micros| times.record(*micros));
            times.end_slice(1, false);
            sorted.sort_unstable();
            for share in [0.0, 0.05, 0.5, 0.95, 0.99, 1.0] {
                let rank = (share * f64::from(samples)).ceil().max(1.0) as usize;
                let (exact, found) = (sorted[rank - 1] as f64, times.wide.quantile(share));
                assert!(
                    (found - exact).abs() <= 1.0 + exact / 16.0,
                    "{share} of {samples}: {found}, {exact}"
                );
            }
        }
    }

    #[test]
    fn of_a_million_a_second_enough_are_looked_at() {
        let mut times = Times::default();
        for _ in 0..40 {
            (0..250_000).for_each(|number: u64| times.record(1 + number % 1_000));
            times.end_slice(1, false);
        }
        let judged = times.judge().expect("enough");
        assert!((judged.short - 950.0).abs() < 20.0, "{judged:?}");
        assert!((f64::from(judged.replies) / 10e6 - 1.0).abs() < 0.05, "{judged:?}");
        assert!((600..1_000).contains(&(times.wide.samples / 40)), "{}", times.wide.samples);
    }
}
