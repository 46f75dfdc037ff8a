//! Commands on hashes, including the fields that expire of Redis 7.4 and 8 and of Valkey 9.

use super::super::{Command, Refusal};
use super::build::{read, refused, write};

pub(super) const COMMANDS: &[Command] = &[
    write("hdel", -3).fast(),
    read("hexists", 3).cacheable().fast(),
    write("hexpire", -6).fast().needs_memory(),
    write("hexpireat", -6).fast().needs_memory(),
    read("hexpiretime", -5).fast(),
    read("hget", 3).cacheable().fast(),
    read("hgetall", 2).cacheable().over_range(),
    write("hgetdel", -5).fast(),
    write("hgetex", -5).multiplies().fast(),
    // Redis 8.10: names of fields are prepared on a connection.
    refused("himport", -2, Refusal::Prepares),
    write("hincrby", 4).fast().needs_memory(),
    write("hincrbyfloat", 4).fast().needs_memory(),
    read("hkeys", 2).cacheable().over_range(),
    read("hlen", 2).cacheable().fast(),
    read("hmget", -3).multiplies().cacheable().fast(),
    write("hmset", -4).fast().needs_memory(),
    write("hpersist", -5).fast(),
    write("hpexpire", -6).fast().needs_memory(),
    write("hpexpireat", -6).fast().needs_memory(),
    read("hpexpiretime", -5).fast(),
    read("hpttl", -5).fast(),
    read("hrandfield", -2).multiplies().over_range(),
    read("hscan", -3).multiplies().walks(),
    write("hset", -4).fast().needs_memory(),
    write("hsetex", -6).fast().needs_memory(),
    write("hsetnx", 4).fast().needs_memory(),
    read("hstrlen", 3).cacheable().fast(),
    read("httl", -5).fast(),
    read("hvals", 2).cacheable().over_range(),
];
