//! Entries of the table of commands: commands on keys of any kind, and on the key space as a whole.

use super::super::{Command, FanOut, Flags, Gather, Keys, Refusal};
use super::build::{container, help, read, write};

pub(super) const COMMANDS: &[Command] = &[
    write("copy", -3).hides_work().needs_memory().several(1, 2, 1).flags(Flags::ARGUMENTS_DECIDE),
    read("dbsize", 1).fast().to_all(FanOut::Sum),
    write("del", -2).several(1, -1, 1).split(Gather::Sum),
    read("dump", 2).over_range(),
    read("exists", -2).cacheable().fast().several(1, -1, 1).split(Gather::Sum),
    write("expire", -3).fast(),
    write("expireat", -3).fast(),
    read("expiretime", 2).fast(),
    write("flushall", -1).dangerous().to_all(FanOut::AllOk).walks().admin_only(),
    write("flushdb", -1).dangerous().to_all(FanOut::AllOk).walks().admin_only(),
    read("keys", 2).multiplies().dangerous().to_all(FanOut::Concat).walks().admin_only(),
    write("migrate", -6).dangerous().movable(Keys::Migrate).refused(Refusal::Migrates),
    write("move", 3).fast().between_databases(),
    container("object"),
    read("object|encoding", 3).keys(2, 2, 1),
    read("object|freq", 3).keys(2, 2, 1),
    help("object|help"),
    read("object|idletime", 3).keys(2, 2, 1),
    read("object|refcount", 3).keys(2, 2, 1),
    write("persist", 2).fast(),
    write("pexpire", -3).fast(),
    write("pexpireat", -3).fast(),
    read("pexpiretime", 2).fast(),
    read("pttl", 2).fast(),
    read("randomkey", 1).to_all(FanOut::NonNull),
    write("rename", 3).several(1, 2, 1),
    write("renamenx", 3).fast().several(1, 2, 1),
    write("restore", -4).needs_memory().dangerous(),
    read("scan", -2).multiplies().to_all(FanOut::Scan).walks(),
    write("restore-asking", -4)
        .needs_memory()
        .dangerous()
        .flags(Flags::ASKING)
        .refused(Refusal::ClusterDisabled),
    write("sort", -2).multiplies().hides_work().needs_memory().dangerous().movable(Keys::Sort).over_range(),
    read("sort_ro", -2).multiplies().hides_work().dangerous().movable(Keys::FIRST).over_range(),
    write("swapdb", 3).fast().keyless().dangerous().to_all(FanOut::AllOk).admin_only(),
    read("touch", -2).fast().several(1, -1, 1).split(Gather::Sum),
    read("ttl", 2).fast(),
    read("type", 2).cacheable().fast(),
    write("unlink", -2).fast().several(1, -1, 1).split(Gather::Sum),
];
