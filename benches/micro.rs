//! Wall time of weir's parts and of whole requests through the pipeline: `cargo bench --bench micro`.

#![expect(clippy::disallowed_methods, reason = "a stopwatch is what this is")]

mod common;
#[path = "common/stopwatch.rs"]
mod stopwatch;

fn main() {
    // `cargo test` runs benchmarks without the flag `--bench`; each case then runs once.
    let measures =
        std::env::args().any(|word| word == "--bench") && !std::env::args().any(|word| word == "--test");
    println!("{:<32} {:>12} {:>10}", "", "ns/request", "spread");
    for mut case in common::cases() {
        if !measures {
            (case.run)();
            println!("{:<32} runs", case.name);
            continue;
        }
        let timing = stopwatch::time(&mut case.run);
        let nanos = timing.nanos / case.requests as f64;
        println!("{:<32} {nanos:>12.1} {:>9.1}%", case.name, timing.spread * 100.0);
    }
}
