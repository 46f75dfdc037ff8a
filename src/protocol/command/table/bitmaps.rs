//! Commands on bitmaps (strings as arrays of bits) and on `HyperLogLog` (approximate counters, which are
//! strings too).

use super::super::{Command, FanOut, Flags};
use super::build::{plain, read, write};

pub(super) const COMMANDS: &[Command] = &[
    read("bitcount", -2).cacheable().hides_work().over_range(),
    write("bitfield", -2).goes_far().needs_memory(),
    read("bitfield_ro", -2).fast(),
    write("bitop", -4).multiplies().hides_work().needs_memory().several(2, -1, 1),
    read("bitpos", -3).cacheable().hides_work().over_range(),
    read("getbit", 3).cacheable().fast(),
    write("setbit", 4).goes_far().needs_memory(),
];

pub(super) const HYPERLOGLOG: &[Command] = &[
    write("pfadd", -2).fast().needs_memory(),
    read("pfcount", -2).multiplies().hides_work().several(1, -1, 1),
    write("pfdebug", 3).needs_memory().keys(2, 2, 1).flags(Flags::ADMIN).admin_only(),
    write("pfmerge", -2).multiplies().hides_work().needs_memory().several(1, -1, 1),
    plain("pfselftest", 1).to_all(FanOut::AllOk).flags(Flags::ADMIN).admin_only(),
];
