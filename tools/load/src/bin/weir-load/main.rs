//! `weir-load`: open-loop load for anything that speaks RESP, with latencies from the intended send time.
//!
//! ```text
//!  flags / scenario file ─> Plan ─> weir_load::run_load ── a tally per second ──> results ─> report/
//!                                                                  metrics page ──> scrape ─┘
//! ```

mod flags;
mod report;
mod results;
mod scenario;
mod scrape;
mod values;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser as _;
use weir_load::{LoadEvent, run_load};

use flags::{Action, LoadFlags};
use results::{Description, Results};
use scrape::Scraper;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code for invalid flags or an invalid scenario.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let flags = LoadFlags::parse();
    if let Some(Action::Compare(flags)) = &flags.action {
        return match report::compare(flags) {
            Ok(table) => {
                print!("{table}");
                ExitCode::SUCCESS
            }
            Err(problem) => {
                eprintln!("weir-load compare: {problem}");
                ExitCode::from(EXIT_USAGE)
            }
        };
    }
    match prepare(&flags) {
        Err(problem) => {
            eprintln!("weir-load: {problem}");
            ExitCode::from(EXIT_USAGE)
        }
        Ok((prepared, compared)) => match carry_out(&flags, prepared, compared.as_ref()) {
            Ok(code) => code,
            Err(problem) => {
                eprintln!("weir-load: {problem}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Checks the flags, the scenario file, the report to compare with, and the folders for reports, before a
/// request is sent. Returns the plan, and the JSON report to compare with, if any; the error is a text for
/// the user.
fn prepare(flags: &LoadFlags) -> Result<(flags::Prepared, Option<serde_json::Value>), String> {
    let prepared = flags.prepare()?;
    let compared = flags
        .compare
        .as_deref()
        .map(report::json::read)
        .transpose()
        .map_err(|problem| format!("--compare {problem}"))?;
    report::check_writable(flags)?;
    Ok((prepared, compared))
}

fn carry_out(
    flags: &LoadFlags,
    prepared: flags::Prepared,
    compared: Option<&serde_json::Value>,
) -> Result<ExitCode, String> {
    let mut results = Results::new(Description::of(&prepared));
    let mut scraper = flags.metrics.clone().map(Scraper::new);
    let progress = !flags.quiet;
    let colour = std::io::stderr().is_terminal();
    let summary = run_load(prepared.plan, &prepared.targets, |event| match event {
        LoadEvent::Started { connections } => {
            if let Some(scraper) = &mut scraper {
                scraper.start();
            }
            if progress {
                eprintln!("weir-load: started on {connections} connections");
            }
        }
        LoadEvent::Second(interval) => {
            let line = results.take(&interval);
            if progress {
                eprintln!("{}", report::terminal::progress(&line, colour));
            }
        }
    })?;
    let started = summary.started;
    results.finish(summary, scraper.map(Scraper::finish).unwrap_or_default());
    print!("{}", report::terminal::summary(&results));
    report::write(flags, &results, compared)?;
    Ok(if started { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
