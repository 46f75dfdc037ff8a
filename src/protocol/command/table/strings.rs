//! Entries of the table of commands: commands on strings.

use super::super::specs::KeySpec;
use super::super::{Class, Command, Gather, Keys};
use super::build::{read, write};

pub(super) const COMMANDS: &[Command] = &[
    write("append", 3).fast().needs_memory(),
    write("decr", 2).fast().needs_memory(),
    write("decrby", 3).fast().needs_memory(),
    // Valkey 9: deletes if the value is the one given.
    write("delifeq", 3).fast(),
    // Exists since Redis 8.4.
    write("delex", -2).fast(),
    read("digest", 2).hides_work().fast(),
    read("get", 2).cacheable().fast(),
    write("getdel", 2).fast(),
    write("getex", -2).fast(),
    read("getrange", 4).cacheable().over_range(),
    write("getset", 3).fast().needs_memory(),
    write("incr", 2).fast().needs_memory(),
    write("incrby", 3).fast().needs_memory(),
    write("incrbyfloat", 3).fast().needs_memory(),
    read("lcs", -3).hides_work().keys(1, 2, 1).over_range(),
    read("mget", -2).multiplies().cacheable().fast().several(1, -1, 1).split(Gather::Values),
    write("mset", -3).needs_memory().several(1, -1, 2).split(Gather::AllOk),
    // Redis 8.4 and Valkey 9.1: a number of keys, each with its value.
    write("msetex", -4).needs_memory().movable(Keys::Specs(&[KeySpec::COUNTED_PAIRS])).class(Class::Multi),
    write("msetnx", -3).needs_memory().several(1, -1, 2),
    write("psetex", 4).needs_memory(),
    write("set", -3).needs_memory(),
    write("setex", 4).needs_memory(),
    write("setnx", 3).fast().needs_memory(),
    write("setrange", 4).goes_far().needs_memory(),
    read("strlen", 2).cacheable().fast(),
    read("substr", 4).cacheable().over_range(),
];
