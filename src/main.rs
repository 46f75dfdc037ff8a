//! The server: flags to configuration, configuration to a running process; and what looks at one.

use std::process::ExitCode;

use clap::Parser as _;
use weir::config::{Command, Config, Flags};
use weir::runtime;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let flags = Flags::parse();
    let outcome = if let Some(Command::Top(top)) = &flags.command {
        runtime::run_top(top)
    } else if flags.check {
        Config::from_flags(flags)
            .map_err(|error| error.to_string())
            .and_then(|config| runtime::check(&config))
    } else {
        Config::from_flags(flags).map_err(|error| error.to_string()).and_then(|config| runtime::run(&config))
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("weir: {text}");
            ExitCode::FAILURE
        }
    }
}
