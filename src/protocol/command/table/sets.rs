//! Entries of the table of commands: commands on sets.

use super::super::{Command, KeyCount};
use super::build::{read, write};

pub(super) const COMMANDS: &[Command] = &[
    write("sadd", -3).fast().needs_memory(),
    read("scard", 2).cacheable().fast(),
    read("sdiff", -2).multiplies().hides_work().keys(1, -1, 1).over_range(),
    write("sdiffstore", -3).multiplies().hides_work().needs_memory().keys(1, -1, 1).over_range(),
    read("sinter", -2).multiplies().hides_work().keys(1, -1, 1).over_range(),
    read("sintercard", -3).multiplies().hides_work().counted(1, KeyCount::Intersection).over_range(),
    write("sinterstore", -3).multiplies().hides_work().needs_memory().keys(1, -1, 1).over_range(),
    read("sismember", 3).cacheable().fast(),
    read("smembers", 2).cacheable().over_range(),
    read("smismember", -3).cacheable().fast(),
    write("smove", 4).fast().several(1, 2, 1),
    write("spop", -2).fast(),
    read("srandmember", -2).multiplies().over_range(),
    write("srem", -3).fast(),
    read("sscan", -3).multiplies().walks(),
    read("sunion", -2).multiplies().hides_work().keys(1, -1, 1).over_range(),
    write("sunionstore", -3).multiplies().hides_work().needs_memory().keys(1, -1, 1).over_range(),
];
