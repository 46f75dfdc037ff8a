//! Entries of the table of commands: commands on lists.

use super::super::{Class, Command, Flags, KeyCount};
use super::build::{read, write};

pub(super) const COMMANDS: &[Command] = &[
    write("blmove", 6).needs_memory().keys(1, 2, 1).flags(Flags::NOSCRIPT).blocks(),
    // Exists since Redis 8.10.
    write("blmovem", -6).needs_memory().keys(1, 2, 1).blocks(),
    write("blmpop", -5).counted(2, KeyCount::Pop).blocks(),
    write("blpop", -3).keys(1, -2, 1).flags(Flags::NOSCRIPT).blocks(),
    write("brpop", -3).keys(1, -2, 1).flags(Flags::NOSCRIPT).blocks(),
    write("brpoplpush", 4).needs_memory().keys(1, 2, 1).flags(Flags::NOSCRIPT).blocks(),
    read("lindex", 3).cacheable().goes_far(),
    write("linsert", 5).hides_work().needs_memory(),
    read("llen", 2).cacheable().fast(),
    write("lmove", 5).needs_memory().several(1, 2, 1),
    // Exists since Redis 8.10.
    write("lmovem", -5).needs_memory().several(1, 2, 1),
    write("lmpop", -4).counted(1, KeyCount::Pop).class(Class::Multi),
    write("lpop", -2).fast(),
    read("lpos", -3).hides_work(),
    write("lpush", -3).fast().needs_memory(),
    write("lpushx", -3).fast().needs_memory(),
    read("lrange", 4).cacheable().goes_far().over_range(),
    write("lrem", 4).hides_work().over_range(),
    write("lset", 4).goes_far().needs_memory(),
    write("ltrim", 4).hides_work().over_range(),
    write("rpop", -2).fast(),
    write("rpoplpush", 3).needs_memory().several(1, 2, 1),
    write("rpush", -3).fast().needs_memory(),
    write("rpushx", -3).fast().needs_memory(),
];
