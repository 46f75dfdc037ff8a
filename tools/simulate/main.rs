//! Runs simulated worlds, many of them, and says which one breaks a promise.

use std::process::ExitCode;

use clap::Parser;
use weir::simulation::{self, Voice};

#[derive(Parser)]
#[command(
    name = "weir-simulate",
    version,
    about = "Run weir's composer in simulated worlds and check what it promises."
)]
struct Flags {
    /// The seeds to run, the second one not included.
    #[arg(long, value_name = "A..B", default_value = "0..1000", value_parser = seeds, conflicts_with = "seed")]
    seeds: (u64, u64),
    /// Run this seed only.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Events in each world before its clients leave.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    steps: u64,
    /// Tell every event on standard error.
    #[arg(long)]
    narrate: bool,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let (first, end) = flags.seed.map_or(flags.seeds, |seed| (seed, seed + 1));
    let voice = if flags.narrate { Voice::Narrating } else { Voice::Silent };
    let (mut replies, mut refusals, mut links_lost, mut steps) = (0, 0, 0, 0);
    for seed in first..end {
        match simulation::run(seed, flags.steps, voice) {
            Ok(summary) => {
                replies += summary.replies;
                refusals += summary.refusals;
                links_lost += summary.links_lost;
                steps += summary.steps;
                if (seed + 1 - first).is_multiple_of(100) {
                    println!("seeds {first}..{}: {replies} replies, all as promised", seed + 1);
                }
            }
            Err(failure) => {
                println!("{failure}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "seeds {first}..{end}: {steps} steps, {replies} replies ({refusals} refusals), {links_lost} connections to \
         stores lost: all as promised"
    );
    ExitCode::SUCCESS
}

/// `A..B`.
fn seeds(text: &str) -> Result<(u64, u64), String> {
    let wanted = || format!("'{text}': two numbers as in 0..1000 are wanted, the second one larger");
    let (first, end) = text.split_once("..").ok_or_else(wanted)?;
    let (first, end) = (first.parse().map_err(|_| wanted())?, end.parse().map_err(|_| wanted())?);
    if first < end { Ok((first, end)) } else { Err(wanted()) }
}
