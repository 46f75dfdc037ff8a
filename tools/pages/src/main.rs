//! Writes the man pages of weir and its shell completions, made from its flags: `weir-pages FOLDER`. For
//! those who make packages.

use std::path::PathBuf;
use std::process::ExitCode;
use std::{fs, io};

use clap::{Arg, CommandFactory as _, Parser};
use clap_complete::Shell;
use weir::config::Flags;

/// Write weir's man pages and completions.
#[derive(Parser)]
#[command(name = "weir-pages", version)]
struct PagesFlags {
    /// Where they are written; made if it is not there
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
    let mut weir = Flags::command();
    // One page each for weir and its subcommands.
    clap_mangen::generate_to(weir.clone().mut_args(with_twin), folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut weir, "weir", folder)?;
    }
    Ok(())
}
