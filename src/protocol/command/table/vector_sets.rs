//! Entries of the table of commands: commands on vector sets, of Redis 8.

use super::super::Command;
use super::build::{read, write};

pub(super) const COMMANDS: &[Command] = &[
    write("vadd", -5).hides_work().needs_memory(),
    read("vcard", 2).fast(),
    read("vdim", 2).fast(),
    read("vemb", -3).fast(),
    read("vgetattr", 3).fast(),
    read("vinfo", 2).fast(),
    read("vismember", 3).fast(),
    read("vlinks", -3).fast(),
    read("vrandmember", -2).multiplies().over_range(),
    read("vrange", -4).over_range(),
    write("vrem", 3),
    write("vsetattr", 4).fast(),
    read("vsim", -4).hides_work().over_range(),
];
