//! Entries of the table of commands: commands of transactions (`MULTI`, `EXEC` and others).

use super::super::{Command, Flags, LocalCommand, PrivateUse};
use super::build::{NOT_SCRIPTED, local, plain};

pub(super) const COMMANDS: &[Command] = &[
    local("discard", 1, LocalCommand::Discard).fast().flags(BETWEEN),
    local("exec", 1, LocalCommand::Exec).flags(NOT_SCRIPTED.and(Flags::SKIP_SLOWLOG)),
    local("multi", 1, LocalCommand::Multi).fast().flags(BETWEEN),
    local("unwatch", 1, LocalCommand::Unwatch).fast().flags(BETWEEN),
    plain("watch", -2).privately(PrivateUse::Watches).goes_far().fast().flags(BETWEEN).keys(1, -1, 1),
];

const BETWEEN: Flags = NOT_SCRIPTED.and(Flags::ALLOW_BUSY);
