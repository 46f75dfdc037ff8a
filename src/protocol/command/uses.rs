//! Uses of keys as Redis 7.0 describes them (`COMMAND INFO`, `COMMAND GETKEYSANDFLAGS`), for commands where
//! they do not follow from the command's effect: what the command needs of a value, and what it does to it.

use super::specs::Access;

const EXISTENCE: Access = Access::As(&["RO"]);
const READ: Access = Access::Read;
const OVERWRITE: Access = Access::Overwrite;
const OVERWRITE_NEW: Access = Access::As(&["OW", "insert"]);
const READ_AND_NOTE: Access = Access::As(&["RW", "access"]);
const INSERT: Access = Access::As(&["RW", "insert"]);
const MERGE: Access = Access::As(&["RW", "access", "insert"]);
const UPDATE: Access = Access::As(&["RW", "update"]);
const DELETE: Access = Access::As(&["RW", "delete"]);
const TAKE: Access = Access::As(&["RW", "access", "delete"]);
const REMOVE: Access = Access::As(&["RM", "delete"]);

/// Returns how the named command uses its first key and its other keys, as Redis describes it; `None` if that
/// follows from the command's effect (read or write).
pub(super) fn of(name: &str) -> Option<(Access, Access)> {
    let uses = match name {
        "exists" | "hexists" | "hlen" | "hstrlen" | "llen" | "memory|usage" | "object|encoding"
        | "object|freq" | "object|idletime" | "object|refcount" | "scard" | "sismember" | "strlen"
        | "touch" | "type" | "watch" | "xlen" | "zcard" => (EXISTENCE, EXISTENCE),
        "append"
        | "hsetnx"
        | "linsert"
        | "lpush"
        | "lpushx"
        | "pfadd"
        | "rpush"
        | "rpushx"
        | "sadd"
        | "xgroup|create"
        | "xgroup|createconsumer" => (INSERT, INSERT),
        "expire" | "expireat" | "geoadd" | "hmset" | "hset" | "lset" | "persist" | "pexpire"
        | "pexpireat" | "setrange" | "xack" | "xadd" | "xclaim" | "xgroup|setid" | "xsetid" | "zadd" => {
            (UPDATE, UPDATE)
        }
        "hdel" | "lrem" | "ltrim" | "srem" | "xautoclaim" | "xdel" | "xgroup|delconsumer"
        | "xgroup|destroy" | "xtrim" | "zrem" | "zremrangebylex" | "zremrangebyrank" | "zremrangebyscore" => {
            (DELETE, DELETE)
        }
        "blmpop" | "blpop" | "brpop" | "bzmpop" | "bzpopmax" | "bzpopmin" | "getdel" | "lmpop" | "lpop"
        | "migrate" | "rpop" | "spop" | "zmpop" | "zpopmax" | "zpopmin" => (TAKE, TAKE),
        "blmove" | "brpoplpush" | "lmove" | "rpoplpush" | "smove" => (TAKE, INSERT),
        "rename" => (TAKE, OVERWRITE),
        "renamenx" => (TAKE, OVERWRITE_NEW),
        "copy" => (READ, OVERWRITE),
        "del" | "unlink" => (REMOVE, REMOVE),
        "mset" | "psetex" | "restore" | "restore-asking" | "setex" => (OVERWRITE, OVERWRITE),
        "msetnx" | "setnx" => (OVERWRITE_NEW, OVERWRITE_NEW),
        "bitop" | "geosearchstore" | "sdiffstore" | "sunionstore" | "zrangestore" => (OVERWRITE, READ),
        "sinterstore" => (UPDATE, READ),
        "pfcount" | "pfdebug" => (READ_AND_NOTE, READ_AND_NOTE),
        "pfmerge" => (MERGE, READ),
        "xreadgroup" => (READ, READ),
        _ => return None,
    };
    Some(uses)
}
