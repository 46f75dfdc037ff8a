//! Measures the wall time of one run: the median of samples that are long compared with the clock's
//! resolution.

use std::time::{Duration, Instant};

const SAMPLES: usize = 21;
const SAMPLE: Duration = Duration::from_millis(20);

/// The median wall time of one run in nanoseconds, and the width of the middle half of the samples as a share
/// of it.
pub struct Timing {
    pub nanos: f64,
    pub spread: f64,
}

pub fn time(run: &mut dyn FnMut()) -> Timing {
    let runs = calibrate(run);
    let mut samples: Vec<f64> =
        (0..SAMPLES).map(|_| sample(run, runs).as_nanos() as f64 / runs as f64).collect();
    samples.sort_by(f64::total_cmp);
    let (low, median, high) = (samples[SAMPLES / 4], samples[SAMPLES / 2], samples[SAMPLES * 3 / 4]);
    Timing { nanos: median, spread: (high - low) / median }
}

/// Returns the number of runs that make one sample long enough.
fn calibrate(run: &mut dyn FnMut()) -> u64 {
    let mut runs = 1;
    loop {
        let took = sample(run, runs);
        if took >= SAMPLE {
            return runs;
        }
        runs *= 2;
    }
}

fn sample(run: &mut dyn FnMut(), runs: u64) -> Duration {
    let start = Instant::now();
    for _ in 0..runs {
        run();
    }
    start.elapsed()
}
