//! The binary `weir`: runs the server, or `weir top`, which shows the state of a running server.

use std::process::ExitCode;

use clap::Parser as _;
use weir::config::{Command, Config, Flags};
use weir::runtime;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let flags = Flags::parse();
    if flags.help_all {
        // A reader that closes the pipe early, such as `head`, is no failure.
        let _ = Flags::with_rare_flags().print_long_help();
        return ExitCode::SUCCESS;
    }
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
            runtime::write_log_line(&text);
            ExitCode::FAILURE
        }
    }
}
