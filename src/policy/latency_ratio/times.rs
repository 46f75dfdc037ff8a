//! Latencies of one class of replies: over the last second, the last ten seconds, the last minute, and in the
//! better minutes of a quarter of an hour.

use std::ops::{AddAssign, SubAssign};

use super::{SAMPLES_MIN, SECOND, SLICES};

/// Binary logarithm of the number of latency counters for each power of two microseconds. With 16 counters
/// the error is at most a sixteenth; within a counter latencies are taken to be spread evenly.
const PARTS_BITS: u32 = 4;
/// Number of latency counters for each power of two microseconds.
const PARTS: usize = 1 << PARTS_BITS;
/// Number of bits of the longest latency that is counted, 67 s in microseconds. A longer one was measured
/// wrongly.
const MICROS_BITS: u32 = 26;
/// Longest latency that is counted, in microseconds. A longer one, and zero, is ignored.
const MICROS_MAX: u64 = (1 << MICROS_BITS) - 1;
/// Number of counters that record a set of latencies by size.
const COUNTERS: usize = PARTS * (MICROS_BITS - PARTS_BITS + 1) as usize;
/// Number of samples wanted in a slice (250 ms): of more replies, every n-th is sampled.
const KEPT: u32 = 800;
/// Maximum number of samples kept in a slice (250 ms) whose number of replies is not known yet; further ones
/// are left out.
const KEPT_MAX: u32 = 2 * KEPT;
/// Number of parts, of ten seconds each, of the minute over which usual latency is measured. Ten seconds are
/// also the longest time over which recent latency is measured.
const LONG_PARTS: usize = 6;
/// Number of minutes from which the reference (usual percentile) is computed.
const FLOORS: usize = 15;
/// Number of slices (250 ms each, without those whose latencies are not learnt) that make one minute of the
/// usual percentile.
const FLOOR_SLICES: usize = LONG_PARTS * SLICES;
/// Share of replies that are at most as slow as the percentile of latency in use, the 95th.
const SHARE: f64 = 0.95;
/// Number of standard deviations beyond which a difference between percentiles of latency counts as certain.
const SURE: f64 = 2.0;

const _: () = assert!(KEPT_MAX as usize * SLICES <= u16::MAX as usize, "counters of ten seconds do not wrap");

/// Latencies of replies in a time span, counted by size. Sixteen bits per counter (`N`) are enough for ten
/// seconds.
#[derive(Clone, Debug)]
struct Counts<N> {
    /// For each range of latencies, the number of samples in it.
    kept: [N; COUNTERS],
    /// Number of samples of all latencies together.
    samples: u32,
    /// Number of replies that the samples stand for, since only some replies are sampled.
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

    /// Subtracts the counts of latencies of a time span that were added before.
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
    /// Returns the latency, in microseconds, that a share (0 to 1) of the samples did not exceed.
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

    /// Returns the 95th percentile of the latencies in microseconds, moved by `deviations` standard
    /// deviations of its chance error (down if negative).
    fn percentile(&self, deviations: f64) -> f64 {
        let deviation = (SHARE * (1.0 - SHARE) / f64::from(self.samples.max(1))).sqrt();
        self.quantile((SHARE + deviations * deviation).min(1.0))
    }
}

fn counter_of(micros: u64) -> usize {
    let doubled = (micros | PARTS as u64).ilog2() - PARTS_BITS;
    (u64::from(doubled << PARTS_BITS) + (micros >> doubled)) as usize
}

/// Returns the lower end and the width of a counter's latencies, in microseconds.
fn range_of(counter: usize) -> (f64, f64) {
    let doubled = (counter / PARTS).max(1) - 1;
    let width = (1_u64 << doubled) as f64;
    ((counter - doubled * PARTS) as f64 * width, width)
}

/// Latency figures of a class of commands at one check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    /// Number of replies of the class in the last minute, by which classes are weighed.
    pub weight: f64,
    /// Number of replies of the class in the last ten seconds, estimated from samples: each sampled reply
    /// counts for the sampling interval.
    pub replies: u32,
    /// 95th percentile of latency in the last second, or in up to ten seconds until there are 100 samples, in
    /// microseconds.
    pub short: f64,
    /// Lower confidence bound of `short` (the 95th percentile of latency in the last second, or in up to ten), two
    /// standard deviations of its sampling error below it, in microseconds.
    pub surely: f64,
    /// Lower bound of the 95th percentile of latency in the last ten seconds, two standard deviations below
    /// the measured one, in microseconds.
    pub surely_wide: f64,
    /// Reference for a class of commands: its usual 95th percentile of latency, in microseconds.
    pub long: f64,
}

#[derive(Debug)]
pub(super) struct Times {
    /// Latencies sampled in the present slice (250 ms).
    current: Counts<u16>,
    /// Sampling interval: one reply in this many is sampled.
    stride: u32,
    /// Number of replies to skip before the next sample.
    skip: u32,
    /// Number of replies sampled in the present slice (250 ms).
    looked_at: u32,
    /// Slices (250 ms each) of the last ten seconds, the widest short window, in a ring.
    slices: Box<[Counts<u16>]>,
    /// Index of the newest slice (250 ms) in `slices`.
    newest: usize,
    /// Sum of the latencies sampled in all slices (250 ms each): those of the last ten seconds.
    wide: Counts<u32>,
    /// Parts (ten seconds each) of the last minute, the long window, in a ring.
    long: Box<[Counts<u16>]>,
    /// Index in `long` of the newest of the parts (ten seconds each) of the last minute.
    long_newest: usize,
    /// Age of the newest part of the last minute, in slices of 250 ms.
    long_age: usize,
    /// For each of the last 15 minutes, the least 95th percentile of latency over the long window (a minute)
    /// that was measured in it, as an upper bound (two standard deviations more); in microseconds, infinite
    /// if none was measured.
    floors: [f64; FLOORS],
    /// Index in `floors` of the minute that is in progress.
    floor_newest: usize,
    /// Age, in slices of 250 ms, of the minute that is in progress.
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
    /// Records the latency of a reply, in microseconds, if it is among those that are sampled. A latency of
    /// zero or of more than 67 s was measured wrongly, and is ignored.
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

    /// Ends `passed` slices (250 ms each), of which only the last has replies: those recorded since the last
    /// call. Learns usual latencies from it unless `is_frozen` (latencies are too high to be learnt as
    /// usual).
    pub fn end_slice(&mut self, passed: usize, is_frozen: bool) {
        let replies = self.looked_at.saturating_mul(self.stride);
        self.current.replies = replies;
        // An odd stride does not fall in step with pipelines.
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
        // The upper confidence bound is taken, so that with few samples nothing counts as slow too early.
        let floor = &mut self.floors[self.floor_newest];
        *floor = floor.min(long.percentile(SURE));
    }

    fn long_sum(&self) -> Counts<u32> {
        let mut sum = Counts::none();
        self.long.iter().for_each(|part| sum.add(part));
        sum
    }

    /// Returns the usual 95th percentile of latency in microseconds: the lower quartile of the values of the
    /// last 15 minutes; infinite while unknown. The best minute would be luck, and the median would follow a
    /// slow rise.
    fn reference(&self) -> f64 {
        let mut floors = self.floors;
        floors.sort_unstable_by(f64::total_cmp);
        let known = floors.partition_point(|floor| floor.is_finite());
        floors[known / 4]
    }

    /// Sums up the latencies sampled in the last second, or in as much more of the last ten seconds as has
    /// 100 samples.
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

    /// Returns the 95th percentile of latency in the last second, or in up to ten seconds until there are 100
    /// samples, in microseconds; None with fewer than 100 samples in ten seconds.
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
