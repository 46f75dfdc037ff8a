//! Commands about the server. weir answers those that clients send when they connect. Commands about the
//! stores go to all of them, for tenants that are admin; replies that cannot be merged are listed by store.

use super::super::{Class, Command, FanOut, Flags, LocalCommand, Refusal};
use super::build::{ADMINISTERS, ANY_TIME, NOT_SCRIPTED, container, help, local, plain, read, refused};

pub(super) const COMMANDS: &[Command] = &[
    container("acl"),
    plain("acl|cat", -2).to_all(FanOut::One).admin_only().flags(NOT_SCRIPTED),
    refused("acl|deluser", -3, Refusal::Users).flags(ADMINISTERS),
    refused("acl|dryrun", -4, Refusal::Permissions).flags(ADMINISTERS),
    plain("acl|genpass", -2).to_all(FanOut::One).admin_only().flags(NOT_SCRIPTED),
    local("acl|getuser", 3, LocalCommand::AclGetUser).flags(ADMINISTERS),
    help("acl|help"),
    local("acl|list", 2, LocalCommand::AclList).flags(ADMINISTERS),
    refused("acl|load", 2, Refusal::Users).flags(ADMINISTERS),
    refused("acl|log", -2, Refusal::Permissions).flags(ADMINISTERS),
    refused("acl|save", 2, Refusal::Users).flags(ADMINISTERS),
    refused("acl|setuser", -3, Refusal::Users).flags(ADMINISTERS),
    local("acl|users", 2, LocalCommand::AclUsers).flags(ADMINISTERS),
    local("acl|whoami", 2, LocalCommand::AclWhoAmI).flags(NOT_SCRIPTED),
    plain("bgrewriteaof", 1).to_all(FanOut::AllOk).admin_only().flags(SAVES),
    plain("bgsave", -1).to_all(FanOut::AllOk).admin_only().flags(SAVES),
    // Valkey 8.1's name for the slow log.
    container("commandlog"),
    plain("commandlog|get", 4).to_all(FanOut::Concat).admin_only().flags(Flags::ADMIN.and(ANY_TIME)),
    help("commandlog|help"),
    plain("commandlog|len", 3).to_all(FanOut::Sum).admin_only().flags(Flags::ADMIN.and(ANY_TIME)),
    plain("commandlog|reset", 3).to_all(FanOut::AllOk).admin_only().flags(Flags::ADMIN.and(ANY_TIME)),
    container("config"),
    local("config|get", -3, LocalCommand::ConfigGet).multiplies().flags(ADMINISTERS),
    help("config|help"),
    plain("config|resetstat", 2).to_all(FanOut::AllOk).flags(ADMINISTERS).admin_only(),
    plain("config|rewrite", 2).to_all(FanOut::AllOk).flags(ADMINISTERS).admin_only(),
    plain("config|set", -4)
        .to_all(FanOut::AllOk)
        .flags(ADMINISTERS.and(Flags::ARGUMENTS_DECIDE))
        .admin_only(),
    plain("debug", -2).to_all(FanOut::AnyOk).admin_only().flags(ADMINISTERS),
    refused("failover", -1, Refusal::OneStore).flags(Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::STALE)),
    local("info", -1, LocalCommand::Info).dangerous().flags(ANY_TIME),
    plain("lastsave", 1).to_all(FanOut::ByStore).admin_only().fast().dangerous().flags(ANY_TIME),
    container("latency"),
    plain("latency|doctor", 2).to_all(FanOut::ByStore).admin_only().flags(ADMINISTERS),
    plain("latency|graph", 3).to_all(FanOut::ByStore).admin_only().flags(ADMINISTERS),
    help("latency|help"),
    plain("latency|histogram", -2).to_all(FanOut::ByStore).admin_only().flags(ADMINISTERS),
    plain("latency|history", 3).to_all(FanOut::ByStore).admin_only().flags(ADMINISTERS),
    plain("latency|latest", 2).to_all(FanOut::ByStore).admin_only().flags(ADMINISTERS),
    plain("latency|reset", -2).to_all(FanOut::Sum).admin_only().flags(ADMINISTERS),
    local("lolwut", -1, LocalCommand::Lolwut).fast().flags(Flags::READONLY),
    container("memory"),
    plain("memory|doctor", 2).to_all(FanOut::ByStore).admin_only(),
    help("memory|help"),
    plain("memory|malloc-stats", 2).to_all(FanOut::ByStore).admin_only(),
    plain("memory|purge", 2).to_all(FanOut::AllOk).admin_only(),
    plain("memory|stats", 2).to_all(FanOut::ByStore).admin_only(),
    read("memory|usage", -3).hides_work().keys(2, 2, 1).class(Class::Range),
    container("module"),
    help("module|help"),
    plain("module|list", 2).to_all(FanOut::Same).admin_only().flags(Flags::ADMIN.and(Flags::NOSCRIPT)),
    refused("module|load", -3, Refusal::OneStore).flags(SAVES),
    refused("module|loadex", -3, Refusal::OneStore).flags(SAVES),
    refused("module|unload", 3, Refusal::OneStore).flags(SAVES),
    local("monitor", 1, LocalCommand::Monitor).flags(ADMINISTERS),
    refused("psync", -3, Refusal::Replicates).flags(SAVES.and(Flags::NO_MULTI)),
    // Weir's own: quotas, tiers, deadlines and explanations.
    local("qos", -2, LocalCommand::Qos).flags(NOT_SCRIPTED),
    refused("replconf", -1, Refusal::Replicates).flags(ADMINISTERS.and(Flags::ALLOW_BUSY)),
    refused("replicaof", 3, Refusal::Replicates).flags(FOLLOWS),
    local("role", 1, LocalCommand::Role).fast().dangerous().flags(NOT_SCRIPTED),
    plain("save", 1).to_all(FanOut::AllOk).admin_only().flags(SAVES.and(Flags::NO_MULTI)),
    refused("shutdown", -1, Refusal::OneStore)
        .flags(ADMINISTERS.and(Flags::NO_MULTI).and(Flags::ALLOW_BUSY))
        .admin_only(),
    refused("slaveof", 3, Refusal::Replicates).flags(FOLLOWS),
    container("slowlog"),
    plain("slowlog|get", -2).to_all(FanOut::Concat).admin_only().flags(Flags::ADMIN.and(ANY_TIME)),
    help("slowlog|help"),
    plain("slowlog|len", 2).to_all(FanOut::Sum).admin_only().flags(Flags::ADMIN.and(ANY_TIME)),
    plain("slowlog|reset", 2).to_all(FanOut::AllOk).admin_only().flags(Flags::ADMIN.and(ANY_TIME)),
    refused("sync", 1, Refusal::Replicates).flags(SAVES.and(Flags::NO_MULTI)),
    local("time", 1, LocalCommand::Time).fast().flags(ANY_TIME),
];

const SAVES: Flags = Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::NO_ASYNC_LOADING);
const FOLLOWS: Flags = Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::STALE).and(Flags::NO_ASYNC_LOADING);
