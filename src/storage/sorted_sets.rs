//! To come.
use super::commands::Command;
pub(super) const COMMANDS: &[Command] = &[];
