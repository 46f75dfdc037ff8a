//! `weir-calibrate`: loads a Redis server with commands of many shapes, one at a time, and fits the weights
//! of request units to the costs that the server itself reports.
//!
//! ```text
//!  flags ─> backend (one connection) <─ measure: set up, rounds over all shapes, remove ─> calibration ─> report
//! ```

mod backend;
mod calibration;
mod flags;
mod measure;
mod report;

use std::process::ExitCode;

use clap::Parser as _;
use weir::runtime::{Clock, stop_flag};

use backend::Backend;
use calibration::Calibration;
use flags::CalibrateFlags;
use measure::Bench;

/// The exit code for invalid flags.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let flags = CalibrateFlags::parse();
    let target = match flags.check() {
        Ok(target) => target,
        Err(problem) => {
            eprintln!("weir-calibrate: {problem}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match run(&flags, target) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("weir-calibrate: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &CalibrateFlags, target: std::net::SocketAddr) -> Result<(), String> {
    let stop = stop_flag()?;
    let mut backend = Backend::connect(&flags.target, target, flags.password.as_deref())?;
    let server = measure::look_at(&mut backend, flags)?;
    let measured = Bench::new(&mut backend, flags, Clock::start(), &stop)?.measure()?;
    let calibration = Calibration::of(&measured)?;
    print!("{}", report::text(flags, &server, &measured, &calibration));
    report::write(flags, &server, &measured, &calibration)
}
