//! The version of Redis or Valkey in which each command appeared, as `COMMAND DOCS` tells it.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Versions of Redis or Valkey, each with the commands that appeared in it. Versions above 7.2 are of either.
const SINCE: &[(&str, &str)] = &[
    (
        "1.0.0",
        "auth bgrewriteaof bgsave dbsize debug decr decrby del echo exists expire flushall flushdb get getset \
         incr incrby info keys lastsave lindex llen lpop lpush lrange lrem lset ltrim mget monitor move ping \
         quit randomkey rename renamenx rpop rpush sadd save scard sdiff sdiffstore select set setnx shutdown \
         sinter sinterstore sismember slaveof smembers smove sort spop srandmember srem substr sunion \
         sunionstore sync ttl type",
    ),
    ("1.0.1", "mset msetnx"),
    ("1.0.5", "zrangebyscore"),
    (
        "1.2.0",
        "exec expireat multi rpoplpush zadd zcard zincrby zrange zrem zremrangebyscore zrevrange zscore",
    ),
    (
        "2.0.0",
        "append blpop brpop config config|get config|resetstat config|set discard hdel hexists hget hgetall \
         hincrby hkeys hlen hmget hmset hset hsetnx hvals psubscribe publish punsubscribe setex subscribe \
         unsubscribe zcount zinterstore zrank zremrangebyrank zrevrank zunionstore",
    ),
    (
        "2.2.0",
        "brpoplpush getbit linsert lpushx persist rpushx setbit setrange strlen unwatch watch \
         zrevrangebyscore",
    ),
    ("2.2.3", "object object|encoding object|idletime object|refcount"),
    ("2.2.12", "slowlog slowlog|get slowlog|len slowlog|reset"),
    ("2.4.0", "client client|kill client|list getrange"),
    (
        "2.6.0",
        "bitcount bitop dump eval evalsha hincrbyfloat incrbyfloat migrate pexpire pexpireat psetex pttl \
         restore script script|exists script|flush script|kill script|load time",
    ),
    ("2.6.9", "client|getname client|setname"),
    (
        "2.8.0",
        "config|rewrite hscan psync pubsub pubsub|channels pubsub|numpat pubsub|numsub scan sscan zscan",
    ),
    ("2.8.7", "bitpos"),
    ("2.8.9", "pfadd pfcount pfdebug pfmerge pfselftest zlexcount zrangebylex zremrangebylex zrevrangebylex"),
    ("2.8.12", "role"),
    (
        "2.8.13",
        "command command|count command|getkeys command|info latency latency|doctor latency|graph latency|help \
         latency|history latency|latest latency|reset",
    ),
    ("2.9.50", "client|pause"),
    (
        "3.0.0",
        "asking cluster cluster|addslots cluster|bumpepoch cluster|count-failure-reports \
         cluster|countkeysinslot cluster|delslots cluster|failover cluster|flushslots cluster|forget \
         cluster|getkeysinslot cluster|info cluster|keyslot cluster|meet cluster|myid cluster|nodes \
         cluster|replicate cluster|reset cluster|saveconfig cluster|set-config-epoch cluster|setslot \
         cluster|slaves cluster|slots readonly readwrite replconf restore-asking wait",
    ),
    (
        "3.2.0",
        "bitfield client|reply geoadd geodist geohash geopos georadius georadiusbymember hstrlen script|debug",
    ),
    ("3.2.1", "touch"),
    ("3.2.10", "georadius_ro georadiusbymember_ro"),
    (
        "4.0.0",
        "memory memory|doctor memory|help memory|malloc-stats memory|purge memory|stats memory|usage module \
         module|list module|load module|unload object|freq swapdb unlink",
    ),
    (
        "5.0.0",
        "bzpopmax bzpopmin client|help client|id client|unblock cluster|help cluster|replicas command|help \
         config|help lolwut module|help replicaof script|help xack xadd xclaim xdel xgroup xgroup|create \
         xgroup|delconsumer xgroup|destroy xgroup|help xgroup|setid xinfo xinfo|consumers xinfo|groups \
         xinfo|help xinfo|stream xlen xpending xrange xread xreadgroup xrevrange xsetid xtrim zpopmax zpopmin",
    ),
    (
        "6.0.0",
        "acl acl|cat acl|deluser acl|genpass acl|getuser acl|help acl|list acl|load acl|log acl|save \
         acl|setuser acl|users acl|whoami bitfield_ro client|caching client|getredir client|tracking hello",
    ),
    ("6.0.6", "lpos"),
    (
        "6.2.0",
        "blmove client|info client|trackinginfo client|unpause copy failover geosearch geosearchstore getdel \
         getex hrandfield lmove object|help pubsub|help reset slowlog|help smismember xautoclaim \
         xgroup|createconsumer zdiff zdiffstore zinter zmscore zrandmember zrangestore zunion",
    ),
    (
        "7.0.0",
        "acl|dryrun blmpop bzmpop client|no-evict cluster|addslotsrange cluster|delslotsrange cluster|links \
         cluster|shards command|docs command|getkeysandflags command|list eval_ro evalsha_ro expiretime fcall \
         fcall_ro function function|delete function|dump function|flush function|help function|kill \
         function|list function|load function|restore function|stats latency|histogram lcs lmpop \
         module|loadex pexpiretime pubsub|shardchannels pubsub|shardnumsub sintercard sort_ro spublish \
         ssubscribe sunsubscribe zintercard zmpop",
    ),
    ("7.2.0", "client|no-touch client|setinfo cluster|myshardid waitaof"),
    ("7.4.0", "hexpire hexpireat hexpiretime hpersist hpexpire hpexpireat hpexpiretime hpttl httl"),
    (
        "8.0.0",
        "client|capa cluster|slot-stats hgetdel hgetex hsetex script|show vadd vcard vdim vemb vgetattr vinfo \
         vismember vlinks vrandmember vrem vsetattr vsim",
    ),
    (
        "8.1.0",
        "client|import-source commandlog commandlog|get commandlog|help commandlog|len commandlog|reset",
    ),
    ("8.2.0", "xackdel xdelex"),
    ("8.4.0", "delex digest msetex vrange"),
    ("8.10.0", "blmovem lmovem"),
    ("9.0.0", "delifeq"),
    ("9.1.0", "clusterscan"),
];

static BY_NAME: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    SINCE.iter().flat_map(|(version, names)| names.split(' ').map(|name| (name, *version))).collect()
});

/// Returns the version of Redis or Valkey in which a command appeared, of weir for a command of its own. `None`
/// if that is not known. The name of a subcommand contains that of its container: `client|no-touch`.
pub fn since(name: &str) -> Option<&'static str> {
    if name == "qos" { Some(env!("CARGO_PKG_VERSION")) } else { BY_NAME.get(name).copied() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::all;

    #[test]
    fn every_command_has_a_version_and_every_name_is_a_command() {
        let known: Vec<&str> = all().iter().map(|command| command.name).collect();
        let without: Vec<&str> = known.iter().copied().filter(|name| since(name).is_none()).collect();
        assert_eq!(without, ["himport", "client|maint_notifications"]);
        let unknown: Vec<&&str> = BY_NAME.keys().filter(|name| !known.contains(*name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let listed: usize = SINCE.iter().map(|(_, names)| names.split(' ').count()).sum();
        assert_eq!(listed, BY_NAME.len(), "no command appeared twice");
    }
}
