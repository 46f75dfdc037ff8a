//! Commands about the client and its connection. weir answers them, since the store knows only weir's own
//! connections.

use super::super::{Command, Flags, LocalCommand, PrivateUse, Refusal};
use super::build::{ADMINISTERS, ANY_TIME, NOT_SCRIPTED, container, help, local, plain, refused};

pub(super) const COMMANDS: &[Command] = &[
    refused("asking", 1, Refusal::ClusterDisabled).fast(),
    local("auth", -2, LocalCommand::Auth).fast().flags(BEFORE_SIGN_IN),
    container("client"),
    local("client|caching", 3, LocalCommand::ClientCaching).flags(NOT_SCRIPTED),
    // Exists since Valkey 8.
    local("client|capa", -3, LocalCommand::ClientCapa).flags(NOT_SCRIPTED),
    local("client|getname", 2, LocalCommand::ClientGetName).flags(NOT_SCRIPTED),
    local("client|getredir", 2, LocalCommand::ClientGetRedir).flags(NOT_SCRIPTED),
    help("client|help"),
    local("client|id", 2, LocalCommand::ClientId).flags(NOT_SCRIPTED),
    refused("client|import-source", 3, Refusal::StoreClients).flags(ADMINISTERS),
    local("client|info", 2, LocalCommand::ClientInfo).flags(NOT_SCRIPTED),
    local("client|kill", -3, LocalCommand::ClientKill).flags(ADMINISTERS),
    local("client|list", -2, LocalCommand::ClientList).flags(ADMINISTERS),
    // Clients ask for it when they connect and go on without it.
    refused("client|maint_notifications", -3, Refusal::Maintenance).flags(NOT_SCRIPTED),
    local("client|no-evict", 3, LocalCommand::ClientNoEvict).flags(ADMINISTERS),
    local("client|no-touch", 3, LocalCommand::ClientNoTouch).flags(NOT_SCRIPTED),
    local("client|pause", -3, LocalCommand::ClientPause).flags(ADMINISTERS),
    local("client|reply", 3, LocalCommand::ClientReply).flags(NOT_SCRIPTED),
    local("client|setinfo", 4, LocalCommand::ClientSetInfo).flags(NOT_SCRIPTED),
    local("client|setname", 3, LocalCommand::ClientSetName).flags(NOT_SCRIPTED),
    local("client|tracking", -3, LocalCommand::ClientTracking).flags(NOT_SCRIPTED),
    local("client|trackinginfo", 2, LocalCommand::ClientTrackingInfo).flags(NOT_SCRIPTED),
    local("client|unblock", -3, LocalCommand::ClientUnblock).flags(ADMINISTERS),
    local("client|unpause", 2, LocalCommand::ClientUnpause).flags(ADMINISTERS),
    Command { arity: -1, ..container("command") }.locally(LocalCommand::Command).flags(ANY_TIME),
    local("command|count", 2, LocalCommand::Command).flags(ANY_TIME),
    local("command|docs", -2, LocalCommand::Command).flags(ANY_TIME),
    local("command|getkeys", -3, LocalCommand::Command).flags(ANY_TIME),
    local("command|getkeysandflags", -3, LocalCommand::Command).flags(ANY_TIME),
    help("command|help"),
    local("command|info", -2, LocalCommand::Command).flags(ANY_TIME),
    local("command|list", -2, LocalCommand::Command).flags(ANY_TIME),
    local("echo", 2, LocalCommand::Echo).fast().flags(ANY_TIME),
    local("hello", -1, LocalCommand::Hello).fast().flags(BEFORE_SIGN_IN),
    local("ping", -1, LocalCommand::Ping).fast(),
    local("quit", -1, LocalCommand::Quit).fast().flags(BEFORE_SIGN_IN),
    // Cluster clients send it to read from replicas; here every read may be answered.
    local("readonly", 1, LocalCommand::ReadOnly).fast().flags(ANY_TIME),
    local("readwrite", 1, LocalCommand::ReadWrite).fast().flags(ANY_TIME),
    local("reset", 1, LocalCommand::Reset).fast().flags(BEFORE_SIGN_IN),
    local("select", 2, LocalCommand::Select).fast().flags(ANY_TIME),
    plain("wait", 3).privately(PrivateUse::AwaitsCopies).flags(Flags::NOSCRIPT),
    plain("waitaof", 4).privately(PrivateUse::AwaitsCopies).flags(Flags::NOSCRIPT),
];

const BEFORE_SIGN_IN: Flags = NOT_SCRIPTED.and(Flags::NO_AUTH).and(Flags::ALLOW_BUSY);
