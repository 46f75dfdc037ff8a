//! Entries of the table of commands: commands on sorted sets.

use super::super::{Class, Command, Flags, KeyCount};
use super::build::{read, write};

pub(super) const COMMANDS: &[Command] = &[
    write("bzmpop", -5).counted(2, KeyCount::Pop).blocks(),
    write("bzpopmax", -3).fast().keys(1, -2, 1).flags(Flags::NOSCRIPT).blocks(),
    write("bzpopmin", -3).fast().keys(1, -2, 1).flags(Flags::NOSCRIPT).blocks(),
    write("zadd", -4).fast().needs_memory(),
    read("zcard", 2).cacheable().fast(),
    read("zcount", 4).cacheable().fast(),
    read("zdiff", -3).multiplies().hides_work().counted(1, KeyCount::SortedSets).over_range(),
    write("zdiffstore", -4)
        .multiplies()
        .hides_work()
        .needs_memory()
        .stored_and_counted(KeyCount::SortedSets)
        .over_range(),
    write("zincrby", 4).fast().needs_memory(),
    read("zinter", -3).multiplies().hides_work().counted(1, KeyCount::SortedSets).over_range(),
    read("zintercard", -3).multiplies().hides_work().counted(1, KeyCount::SortedSets).over_range(),
    write("zinterstore", -4)
        .multiplies()
        .hides_work()
        .needs_memory()
        .stored_and_counted(KeyCount::SortedSets)
        .over_range(),
    read("zlexcount", 4).cacheable().fast(),
    write("zmpop", -4).counted(1, KeyCount::Pop).class(Class::Multi),
    read("zmscore", -3).cacheable().fast(),
    write("zpopmax", -2).fast(),
    write("zpopmin", -2).fast(),
    read("zrandmember", -2).multiplies().over_range(),
    read("zrange", -4).cacheable().goes_far().over_range(),
    read("zrangebylex", -4).cacheable().goes_far().over_range(),
    read("zrangebyscore", -4).cacheable().goes_far().over_range(),
    write("zrangestore", -5).hides_work().needs_memory().keys(1, 2, 1).over_range(),
    // One word more since 7.2, WITHSCORE; an older store answers for itself.
    read("zrank", -3).cacheable().fast(),
    write("zrem", -3).fast(),
    write("zremrangebylex", 4).hides_work().over_range(),
    write("zremrangebyrank", 4).hides_work().over_range(),
    write("zremrangebyscore", 4).hides_work().over_range(),
    read("zrevrange", -4).cacheable().goes_far().over_range(),
    read("zrevrangebylex", -4).cacheable().goes_far().over_range(),
    read("zrevrangebyscore", -4).cacheable().goes_far().over_range(),
    read("zrevrank", -3).cacheable().fast(),
    read("zscan", -3).multiplies().walks(),
    read("zscore", 3).cacheable().fast(),
    read("zunion", -3).multiplies().hides_work().counted(1, KeyCount::SortedSets).over_range(),
    write("zunionstore", -4)
        .multiplies()
        .hides_work()
        .needs_memory()
        .stored_and_counted(KeyCount::SortedSets)
        .over_range(),
];
