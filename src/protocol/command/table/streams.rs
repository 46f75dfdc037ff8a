//! Entries of the table of commands: commands on streams.

use super::super::{Command, Flags, Keys};
use super::build::{container, help, read, write};

pub(super) const COMMANDS: &[Command] = &[
    write("xack", -4).fast(),
    // Exists since Redis 8.2.
    write("xackdel", -6).fast(),
    write("xadd", -5).fast().needs_memory(),
    write("xautoclaim", -6).hides_work().fast(),
    write("xclaim", -6).fast(),
    write("xdel", -3).fast(),
    write("xdelex", -5).fast(),
    container("xgroup"),
    write("xgroup|create", -5).needs_memory().keys(2, 2, 1),
    write("xgroup|createconsumer", 5).needs_memory().keys(2, 2, 1),
    write("xgroup|delconsumer", 5).keys(2, 2, 1),
    write("xgroup|destroy", 4).keys(2, 2, 1),
    help("xgroup|help"),
    write("xgroup|setid", -5).keys(2, 2, 1),
    container("xinfo"),
    read("xinfo|consumers", 4).keys(2, 2, 1),
    read("xinfo|groups", 3).keys(2, 2, 1),
    help("xinfo|help"),
    read("xinfo|stream", -3).keys(2, 2, 1),
    read("xlen", 2).fast(),
    read("xpending", -3).hides_work().over_range(),
    read("xrange", -4).over_range(),
    read("xread", -4).multiplies().movable(Keys::Streams).over_range().flags(MAY_BLOCK),
    write("xreadgroup", -7).multiplies().hides_work().movable(Keys::Streams).over_range().flags(MAY_BLOCK),
    read("xrevrange", -4).over_range(),
    write("xsetid", -3).fast().needs_memory(),
    write("xtrim", -4).hides_work().over_range(),
];

const MAY_BLOCK: Flags = Flags::BLOCKING.and(Flags::ARGUMENTS_DECIDE);
