//! Runs many simulated worlds, and reports the one that breaks a promise.

use std::ops::Range;
use std::process::ExitCode;

use clap::Parser;
use weir::values::Tier;
use weir_simulate::overload::{Outcome, Trouble};
use weir_simulate::{Summary, Voice};

#[derive(Parser)]
#[command(
    name = "weir-simulate",
    version,
    about = "Runs weir's shards with simulated clients, stores and faults in virtual time, and checks that no promise is broken."
)]
struct Flags {
    /// Range of seeds to run, without its end [default: 0..1000]
    #[arg(long, value_name = "A..B", value_parser = seeds, conflicts_with = "seed")]
    seeds: Option<(u64, u64)>,
    /// Runs this seed only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..u64::MAX))]
    seed: Option<u64>,
    /// Events of each seed before its clients close
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    steps: u64,
    /// Simulates an overload: clients ask for 1.5 times the capacity of the stores. Prints goodput, the part
    /// of the capacity that was used for replies in time. Runs 20 seeds by default
    #[arg(long, conflicts_with = "steps")]
    overload: bool,
    /// Simulates only clusters: slots move between nodes key by key, primaries fail and replicas take over,
    /// shards learn of it late, and some nodes report a wrong map. Without this flag a fifth of the seeds
    /// have a cluster
    #[arg(long, conflicts_with = "overload")]
    cluster: bool,
    /// Simulates stores that tell of changes of hot keys, and writers that bypass weir: connections over which
    /// stores tell break, become half-open, and are opened late
    #[arg(long, conflicts_with_all = ["overload", "cluster"])]
    tracked: bool,
    /// Simulates clients that wait for elements of queues (BLPOP and its kin), and clients that count under WATCH:
    /// no element is delivered twice or lost, and no increase
    #[arg(long, conflicts_with_all = ["overload", "cluster", "tracked"])]
    queues: bool,
    /// Simulates an operator who pauses clients and ends pauses early (CLIENT PAUSE, CLIENT UNPAUSE): no
    /// request that has to wait is answered before its pause ends
    #[arg(long, conflicts_with_all = ["overload", "cluster", "tracked", "queues"])]
    pauses: bool,
    /// Faults during the overload: none, all, or some of cold-start, late-cores, stalls and lost-links joined
    /// by +. By default weir-simulate runs none, each fault alone, all except cold-start, and all
    #[arg(long, value_name = "WHAT", requires = "overload")]
    trouble: Option<Trouble>,
    /// Least goodput of every seed, in percent of the capacity that running shards could have used
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "overload")]
    goodput: Option<f64>,
    /// Simulates hosts of 1 to 64 cores and fleets of up to 1,000 hosts, without faults. Prints how exactly quotas
    /// hold, how many messages that takes, and how often stores are asked for a hot key; takes some minutes
    #[arg(long, conflicts_with_all = ["overload", "cluster", "tracked", "queues", "pauses", "seed", "seeds"])]
    scale: bool,
    /// Prints every event on standard error
    #[arg(long)]
    narrate: bool,
}

/// The number of seeds with `--overload` if none are given: each seed takes as long as hundreds of other
/// worlds.
const OVERLOADS: u64 = 20;

fn main() -> ExitCode {
    let flags = Flags::parse();
    if flags.scale {
        weir_simulate::scale::print_all();
        return ExitCode::SUCCESS;
    }
    let usual = if flags.overload { OVERLOADS } else { 1_000 };
    let (first, end) = flags.seed.map_or(flags.seeds.unwrap_or((0, usual)), |seed| (seed, seed + 1));
    let outcome =
        if flags.overload { overload(&flags, first..end) } else { usual_worlds(&flags, first..end) };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}

impl Flags {
    fn voice(&self) -> Voice {
        if self.narrate { Voice::Narrating } else { Voice::Silent }
    }
}

fn usual_worlds(flags: &Flags, seeds: Range<u64>) -> Result<(), String> {
    let Range { start: first, end } = seeds;
    let mut sum = Summary::default();
    let run = match (flags.cluster, flags.tracked, flags.queues, flags.pauses) {
        (true, ..) => weir_simulate::run_clustered,
        (_, true, ..) => weir_simulate::run_tracked,
        (_, _, true, _) => weir_simulate::run_queues,
        (.., true) => weir_simulate::run_paused,
        _ => weir_simulate::run,
    };
    for seed in seeds {
        sum += run(seed, flags.steps, flags.voice()).map_err(|failure| failure.to_string())?;
        if (seed + 1 - first).is_multiple_of(100) {
            println!("seeds {first}..{}: {} replies, all as promised", seed + 1, sum.replies);
        }
    }
    let Summary {
        steps,
        replies,
        refusals,
        walks,
        links_lost,
        from_memory,
        from_copies,
        redirections,
        slots_moved,
        takeovers,
        changes_told,
        trackers_lost,
        elements_delivered,
        elements_missing,
        waits_moved,
        committed,
        conflicts,
        trace: _,
    } = sum;
    println!(
        "seeds {first}..{end}: {steps} steps, {replies} replies ({refusals} refusals), {walks} complete SCANs, {from_memory} answered from \
         memory, {from_copies} of them from copies, {links_lost} connections to stores lost, {slots_moved} slots moved, \
         {takeovers} takeovers, {redirections} redirections, {changes_told} changes told, {trackers_lost} trackers lost, {elements_delivered} elements of queues delivered and \
         {elements_missing} missing, {waits_moved} waits moved, {committed} increases under WATCH and {conflicts} conflicts: all as promised"
    );
    Ok(())
}

/// Prints one line for each set of faults: the requests served in time, in percent of the number that
/// running cores could have had served, and in percent of the stores' capacity; and the served part of each
/// tier (importance). The error names the seeds with less goodput than the flags demand, or a broken
/// promise.
fn overload(flags: &Flags, seeds: Range<u64>) -> Result<(), String> {
    println!(
        "{:<28} {:>8} {:>8} {:>8} {:>11} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "trouble",
        "goodput",
        "least",
        "(seed)",
        "of capacity",
        "late",
        "critical",
        "standard",
        "batch",
        "sheddable"
    );
    let mut missed = Vec::new();
    for trouble in flags.trouble.map_or_else(Trouble::usual, |trouble| vec![trouble]) {
        let mut outcomes: Vec<(u64, Outcome)> = Vec::new();
        for seed in seeds.clone() {
            let outcome = weir_simulate::run_overloaded(seed, trouble, flags.voice());
            outcomes.push((seed, outcome.map_err(|failure| failure.to_string())?));
        }
        outcomes.sort_by(|(_, one), (_, other)| one.goodput().total_cmp(&other.goodput()));
        let mean = |of: &dyn Fn(&Outcome) -> f64| {
            100.0 * outcomes.iter().map(|(_, outcome)| of(outcome)).sum::<f64>() / outcomes.len() as f64
        };
        let (worst, least) = outcomes.first().expect("there is a seed");
        print!(
            "{:<28} {:>7.1}% {:>7.1}% {worst:>8} {:>10.1}% {:>6.2}%",
            trouble.to_string(),
            mean(&Outcome::goodput),
            100.0 * least.goodput(),
            mean(&Outcome::goodput_of_capacity),
            mean(&Outcome::late)
        );
        for tier in Tier::ALL {
            print!(" {:>8.2}%", mean(&|outcome| outcome.served(tier)));
        }
        println!();
        if let Some(wanted) = flags.goodput {
            let below = outcomes.iter().map(|(seed, outcome)| (seed, 100.0 * outcome.goodput()));
            let below: Vec<_> = below.filter(|(_, goodput)| goodput < &wanted).collect();
            if !below.is_empty() {
                let seeds: Vec<_> =
                    below.iter().map(|(seed, goodput)| format!("{seed} ({goodput:.1} %)")).collect();
                missed.push(format!(
                    "{trouble}: below {wanted} % are {} of {} seeds: {}",
                    below.len(),
                    outcomes.len(),
                    seeds.join(", ")
                ));
            }
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(missed.join("\n")) }
}

/// Parses a range of seeds such as `0..1000`: the first one, and the end, which is not included. The error
/// is a text for the user.
fn seeds(text: &str) -> Result<(u64, u64), String> {
    let wanted = || format!("'{text}': two numbers as in 0..1000 are expected, the second one larger");
    let (first, end) = text.split_once("..").ok_or_else(wanted)?;
    let (first, end) = (first.parse().map_err(|_| wanted())?, end.parse().map_err(|_| wanted())?);
    if first < end { Ok((first, end)) } else { Err(wanted()) }
}

/// Parses a percentage. The error is a text for the user, also for NaN, which no goodput is below.
fn percent(text: &str) -> Result<f64, String> {
    let wanted = || format!("'{text}': a number is expected");
    text.parse().ok().filter(|percent: &f64| percent.is_finite()).ok_or_else(wanted)
}
