//! Writes the man pages of weir and its shell completions, made from its flags: `weir-pages FOLDER`. Packages
//! include these files.

use std::path::PathBuf;
use std::process::ExitCode;
use std::{fs, io};

use clap::{Arg, Parser};
use clap_complete::Shell;
use weir::config::Flags;

/// Writes weir's man pages and shell completions, made from its flags.
#[derive(Parser)]
#[command(name = "weir-pages", version)]
struct PagesFlags {
    /// Folder for the man pages and completions; created if it does not exist
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

fn main() -> ExitCode {
    let folder = PagesFlags::parse().folder;
    match write(&folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-pages: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

/// Adds the flag's environment variable to its help text.
fn with_twin(flag: Arg) -> Arg {
    let Some(twin) = flag.get_env().map(|name| name.to_string_lossy().into_owned()) else { return flag };
    let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
    flag.help(format!("{help} [environment: {twin}]"))
}

fn write(folder: &PathBuf) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut weir = Flags::with_rare_flags();
    // One page each for weir and its subcommands.
    clap_mangen::generate_to(weir.clone().mut_args(with_twin), folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut weir, "weir", folder)?;
    }
    Ok(())
}
