//! `weir top`: its flags.

use clap::builder::{StringValueParser, TypedValueParser as _};
use clap::{ArgAction, Args, ValueEnum};

/// What stands first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TopSort {
    /// Stores, the worst first.
    #[default]
    Store,
    /// Tenants, those who are refused the most first.
    Tenant,
    /// Hot keys, the hottest first.
    Key,
}

/// Whom to ask, and how to show it.
#[derive(Args, Clone, Debug)]
pub struct TopFlags {
    /// The admin port of the weir to look at
    #[arg(long, env = "WEIR_ADMIN", value_name = "HOST:PORT", default_value = "127.0.0.1:7381")]
    pub admin: String,

    /// What stands first, and has the most room
    #[arg(long, value_enum, value_name = "WHAT", default_value = "store")]
    pub sort: TopSort,

    /// Look for a second, write it all as plain text, and end
    #[arg(long)]
    pub once: bool,

    /// The same as the JSON document that it is made from
    #[arg(long)]
    pub json: bool,

    /// No colours: words and shapes say the same
    #[arg(long, env = "NO_COLOR", action = ArgAction::SetTrue, value_parser = StringValueParser::new().map(|text| is_said(&text)))]
    pub no_color: bool,
}

/// Any word in the environment counts, as programs have agreed on; but `false` is what stands for a flag that is not there.
fn is_said(text: &str) -> bool {
    !matches!(text, "" | "false")
}
