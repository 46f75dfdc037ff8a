//! Commands about clusters. To its clients weir is a single server, also in front of a cluster.

use super::super::{Command, Flags, LocalCommand, Refusal};
use super::build::{container, help, local, refused};

pub(super) const COMMANDS: &[Command] = &[
    container("cluster"),
    disabled("cluster|addslots", -3).flags(CHANGES),
    disabled("cluster|addslotsrange", -4).flags(CHANGES),
    disabled("cluster|bumpepoch", 2).flags(CHANGES),
    disabled("cluster|count-failure-reports", 3).flags(Flags::ADMIN),
    disabled("cluster|countkeysinslot", 3),
    disabled("cluster|delslots", -3).flags(CHANGES),
    disabled("cluster|delslotsrange", -4).flags(CHANGES),
    disabled("cluster|failover", -2).flags(CHANGES),
    disabled("cluster|flushslots", 2).flags(CHANGES),
    disabled("cluster|forget", 3).flags(CHANGES),
    disabled("cluster|getkeysinslot", 4),
    help("cluster|help"),
    disabled("cluster|info", 2),
    local("cluster|keyslot", 3, LocalCommand::ClusterKeySlot).flags(Flags::STALE),
    disabled("cluster|links", 2),
    disabled("cluster|meet", -4).flags(CHANGES),
    disabled("cluster|myid", 2),
    disabled("cluster|myshardid", 2),
    disabled("cluster|nodes", 2),
    disabled("cluster|replicas", 3).flags(Flags::ADMIN),
    disabled("cluster|replicate", 3).flags(CHANGES),
    disabled("cluster|reset", -2).flags(Flags::ADMIN.and(Flags::NOSCRIPT)),
    disabled("cluster|saveconfig", 2).flags(CHANGES),
    disabled("cluster|set-config-epoch", 3).flags(CHANGES),
    disabled("cluster|setslot", -4).flags(CHANGES),
    disabled("cluster|shards", 2),
    disabled("cluster|slaves", 3).flags(Flags::ADMIN),
    disabled("cluster|slot-stats", -4),
    disabled("cluster|slots", 2),
    // Valkey 9.1: `SCAN` walks all keys that weir has.
    disabled("clusterscan", -2).flags(Flags::READONLY),
];

const CHANGES: Flags = Flags::ADMIN.and(Flags::NO_ASYNC_LOADING);

const fn disabled(name: &'static str, arity: i16) -> Command {
    refused(name, arity, Refusal::ClusterDisabled).flags(Flags::STALE)
}
