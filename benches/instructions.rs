//! Instructions per request, counted by callgrind: `cargo bench --bench instructions`. Needs valgrind.
//!
//! Clocks are noisy on shared machines, this number is the same in every run of the same binary. Each case runs in a
//! process of its own under valgrind, which collects only inside [`measured`].

mod common;

use std::process::{Command, ExitCode};

const RUNS_OF_WARM_UP: u64 = 200;
const RUNS: u64 = 500;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    if let Some(at) = words.iter().position(|word| word == "--case") {
        let mut case = common::cases().swap_remove(words[at + 1].parse().expect("the number of a case"));
        measured_after_warm_up(&mut case.run);
        // The number of requests, by which the user of a profiler divides its counts.
        println!("measured {} requests", RUNS * case.requests);
        return ExitCode::SUCCESS;
    }
    // `cargo test` runs benchmarks without the flag `--bench`; each case then runs once.
    let measures = words.iter().any(|word| word == "--bench") && !words.iter().any(|word| word == "--test");
    println!("{:<32} {:>20}", "", "instructions/request");
    for (number, mut case) in common::cases().into_iter().enumerate() {
        if !measures {
            measured(&mut case.run, 1);
            println!("{:<32} runs", case.name);
            continue;
        }
        match count(&words[0], number) {
            Ok(instructions) => {
                println!("{:<32} {:>20.1}", case.name, instructions as f64 / (RUNS * case.requests) as f64);
            }
            Err(what) => {
                eprintln!("{}: {what}", case.name);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn measured_after_warm_up(run: &mut dyn FnMut()) {
    for _ in 0..RUNS_OF_WARM_UP {
        run();
    }
    measured(run, RUNS);
}

/// The function whose instructions valgrind counts; valgrind finds it by its name.
#[inline(never)]
fn measured(run: &mut dyn FnMut(), runs: u64) {
    for _ in 0..runs {
        run();
    }
}

fn count(program: &str, case: usize) -> Result<u64, String> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        // The first pattern excludes `measured_after_warm_up`, whose name only begins the same.
        .arg("--toggle-collect=instructions::measured")
        .arg("--toggle-collect=instructions::measured::h*")
        .args([program, "--case", &case.to_string()])
        .output()
        .map_err(|error| format!("valgrind cannot be started ({error}); it is Debian's package valgrind"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    let collected = told.lines().find_map(|line| line.split("Collected :").nth(1));
    collected
        .and_then(|number| number.trim().parse().ok())
        .filter(|instructions| *instructions > 0)
        .ok_or_else(|| format!("valgrind collected nothing:\n{told}"))
}
