//! Flags of `weir top`, which shows the state of a running weir in a terminal.

use clap::builder::{StringValueParser, TypedValueParser as _};
use clap::{ArgAction, Args, ValueEnum};

/// Table that stands first in `weir top`, with the most rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TopSort {
    /// Stores, the worst first.
    #[default]
    Store,
    /// Tenants, those with most refusals first.
    Tenant,
    /// Hot keys, the hottest first.
    Key,
}

/// Flags of `weir top`: the weir to ask, and how to show it.
#[derive(Args, Clone, Debug)]
pub struct TopFlags {
    /// Address of the admin port of the weir to show
    #[arg(long, env = "WEIR_ADMIN", value_name = "HOST:PORT", default_value = "127.0.0.1:7381")]
    pub admin: String,

    /// Table that is shown first, with the most rows
    #[arg(long, value_enum, value_name = "WHAT", default_value = "store")]
    pub sort: TopSort,

    /// Prints the state of one second as plain text, and exits
    #[arg(long)]
    pub once: bool,

    /// Prints the JSON document that the admin page is made from
    #[arg(long)]
    pub json: bool,

    /// Shows no colours; words and shapes carry the same information
    #[arg(long, env = "NO_COLOR", action = ArgAction::SetTrue, value_parser = StringValueParser::new().map(|text| is_said(&text)))]
    pub no_color: bool,
}

/// True if the value of a flag's environment variable switches the flag on: it is neither empty nor `false`.
fn is_said(text: &str) -> bool {
    !matches!(text, "" | "false")
}
