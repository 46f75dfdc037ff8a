//! Writes what is made from weir's flags: man pages and shell completions, which packages include
//! (`weir-pages FOLDER`), and the tables of flags in the documentation (`weir-pages --flags PAGE`).

mod flag_table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::{fs, io};

use clap::{Arg, Parser};
use clap_complete::Shell;
use weir::config::Flags;

/// Writes weir's man pages and shell completions, or the tables of flags in a page of its documentation, from the
/// definitions of its flags.
#[derive(Parser)]
#[command(name = "weir-pages", version)]
struct PagesFlags {
    /// Folder for the man pages and completions; created if it does not exist
    #[arg(value_name = "FOLDER", required_unless_present = "flags")]
    folder: Option<PathBuf>,

    /// Page (docs/operating/configuration.md) whose tables of flags are written anew
    #[arg(long, value_name = "PAGE")]
    flags: Option<PathBuf>,
}

fn main() -> ExitCode {
    let PagesFlags { folder, flags } = PagesFlags::parse();
    let tables = flags.iter().map(|page| (page, flag_table::write(page)));
    let pages = folder.iter().map(|folder| (folder, write(folder)));
    let mut code = ExitCode::SUCCESS;
    for (path, result) in tables.chain(pages) {
        if let Err(error) = result {
            eprintln!("weir-pages: {}: {error}", path.display());
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// Returns the flag with the name of its environment variable, if it has one, added to its help text.
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
