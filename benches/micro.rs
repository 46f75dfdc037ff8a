//! Wall time of the library's parts and of whole requests through the composer: `cargo bench --bench micro`.

#![expect(clippy::disallowed_methods, reason = "a stopwatch is what this is")]

mod common;

use std::time::{Duration, Instant};

const SAMPLES: usize = 21;
const SAMPLE: Duration = Duration::from_millis(20);

fn main() {
    // `cargo test` runs this too, without the flag that `cargo bench` gives: then everything runs once.
    let measures =
        std::env::args().any(|word| word == "--bench") && !std::env::args().any(|word| word == "--test");
    println!("{:<32} {:>12} {:>10}", "", "ns/request", "spread");
    for mut case in common::cases() {
        if !measures {
            (case.run)();
            println!("{:<32} runs", case.name);
            continue;
        }
        let runs = calibrate(&mut case.run);
        let mut samples: Vec<f64> = (0..SAMPLES)
            .map(|_| sample(&mut case.run, runs).as_nanos() as f64 / (runs * case.requests) as f64)
            .collect();
        samples.sort_by(f64::total_cmp);
        let (low, median, high) = (samples[SAMPLES / 4], samples[SAMPLES / 2], samples[SAMPLES * 3 / 4]);
        println!("{:<32} {median:>12.1} {:>9.1}%", case.name, (high - low) / median * 100.0);
    }
}

/// How many runs make a sample long enough.
fn calibrate(run: &mut dyn FnMut()) -> u64 {
    let mut runs = 16;
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
