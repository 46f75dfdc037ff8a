//! How weir handles a command: forward it, split it, send it to several stores, answer it itself, or refuse
//! it with a reason.

use std::fmt;

use super::{Arguments, Command, Keys};

/// Way in which weir handles a request once its command is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// The request goes, as one request, to the store that has its keys, over a connection that clients
    /// share.
    Forward,
    /// The request goes to the store that has its keys, and changes keys of two databases there.
    BetweenDatabases,
    /// The request is split by key into parts, each of which goes to the home core of its keys (the core
    /// through which all requests for a key pass), and the parts' replies are merged into one.
    Split(Gather),
    /// The request goes to one store or more without regard to keys, and the replies are merged into one.
    FanOut(FanOut),
    /// The request is answered by weir itself, which asks stores for facts where it needs them.
    Local(LocalCommand),
    /// The request needs a connection to its store that no other client uses.
    Private(PrivateUse),
    /// The request is refused by weir, for this reason.
    Refused(Refusal),
}

/// Reason why a request needs a connection to its store that no other client uses (a private link).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivateUse {
    /// The request waits at the store until there is data to return.
    Waits,
    /// The request waits until replicas, or the disk, have the client's earlier writes (`WAIT`, `WAITAOF`).
    AwaitsCopies,
    /// The request watches keys until the client ends the watch (`EXEC`, `DISCARD` or `UNWATCH`).
    Watches,
    /// The request subscribes to channels or patterns of this kind.
    Subscribes(Subscription),
    /// The request ends subscriptions of this kind.
    Unsubscribes(Subscription),
}

impl PrivateUse {
    /// Returns the reason with which the request is refused where clients may not have connections to stores
    /// to themselves.
    pub const fn refusal(self) -> Refusal {
        match self {
            Self::Waits => Refusal::Blocks,
            Self::AwaitsCopies => Refusal::AwaitsReplicas,
            Self::Watches => Refusal::Watches,
            Self::Subscribes(_) | Self::Unsubscribes(_) => Refusal::Subscribes,
        }
    }
}

/// Kind of names that a client subscribes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subscription {
    /// The client subscribes to channels, by their names.
    Channels,
    /// The client subscribes to all channels whose names match a pattern.
    Patterns,
    /// The client subscribes to channels of a cluster's shard (`SSUBSCRIBE`), which live on the node that a
    /// key of the same name would live on.
    Sharded,
}

impl Subscription {
    /// Returns the first word of the message with which a store acknowledges that a subscription of this kind
    /// begins (true) or ends (false).
    pub const fn word(self, begins: bool) -> &'static [u8] {
        match (self, begins) {
            (Self::Channels, true) => b"subscribe",
            (Self::Channels, false) => b"unsubscribe",
            (Self::Patterns, true) => b"psubscribe",
            (Self::Patterns, false) => b"punsubscribe",
            (Self::Sharded, true) => b"ssubscribe",
            (Self::Sharded, false) => b"sunsubscribe",
        }
    }
}

impl Handling {
    /// True if a command that weir handles in this way reads or changes the state of its connection, or needs
    /// a connection to a store to itself (such as `BLPOP`); for a refused command, if it would read or change
    /// that state.
    pub const fn is_about_connection(self) -> bool {
        match self {
            Self::Local(local) => local.is_about_connection(),
            Self::Refused(refusal) => matches!(
                refusal,
                Refusal::Subscribes
                    | Refusal::Watches
                    | Refusal::StoreClients
                    | Refusal::Tracks
                    | Refusal::Prepares
            ),
            // Over HTTP, where connections are shared, a call that waits would hold up others as well.
            Self::Private(_) => true,
            Self::Forward | Self::BetweenDatabases | Self::Split(_) | Self::FanOut(_) => false,
        }
    }
}

/// Rule by which the replies to the parts of a split request are merged into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gather {
    /// The replies to a split request's parts are merged into an array with one value per key, in the order
    /// of the keys in the request.
    Values,
    /// The replies to a split request's parts are merged into `+OK` if all of them are `+OK`; else into an
    /// error.
    AllOk,
    /// The replies to a split request's parts are merged into the sum of their integers, or into an error if
    /// one of them is an error.
    Sum,
}

/// Choice of the stores that a request without keys goes to, and the rule by which their replies are merged
/// into one. Unless stated otherwise, the client's reply is an error if a store's reply is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FanOut {
    /// The client's reply is one array: the elements of all stores' arrays, one store after the other.
    Concat,
    /// The client's reply is the sum of the integers in all stores' replies.
    Sum,
    /// The request (`PUBLISH`) goes to the one store that has all subscribers of the channel, and the
    /// client's reply is that store's. In a cluster it goes to one node, which passes the message on to the
    /// others.
    Channel,
    /// The request (`PUBSUB NUMPAT`) goes to one store, because each store has all pattern subscriptions, and
    /// the client's reply is that store's. In a cluster the reply is the sum over all nodes.
    Patterns,
    /// The client's reply is `+OK` if every store's reply is `+OK`; else an error.
    AllOk,
    /// The client's reply is one of the stores' replies that are neither null nor errors, chosen at random.
    /// Without any, it is an error if a store's reply is one, else null.
    NonNull,
    /// The client's reply is an array of integers, in which an element is 1 only if it is 1 in all stores'
    /// replies.
    Every,
    /// The client's reply is the first store's, since all stores give equal ones; an error if any store
    /// replies with an error.
    Same,
    /// The client's reply is that of one store. No other store gets the request, because all stores hold the
    /// same data.
    One,
    /// The client's reply is a success if any store succeeded; an error only if all failed.
    AnyOk,
    /// The client's reply is the union of all stores' arrays, each element once.
    Union,
    /// The stores' replies are arrays of the same form: in the client's reply integers are added up position
    /// by position, and all other elements are as the first store has them.
    SumEach,
    /// The client's reply has the first store's settings, without secrets such as passwords.
    Settings,
    /// The client's reply has the numbers of keys by database (`INFO keyspace`), added up over all stores.
    KeyCounts,
    /// The client's reply is a list of all stores' replies, errors included, each under its store's name,
    /// since they cannot be merged; an error only if all are errors. With one store, it is that store's
    /// reply.
    ByStore,
    /// Each request reads keys of one store. The cursor in its reply says in which store, and at which place
    /// there, the client's next request continues.
    Scan,
}

/// Commands that weir answers itself. For some of them, such as `INFO`, it asks the stores for facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the command of its name")]
pub enum LocalCommand {
    AclGetUser,
    AclList,
    AclUsers,
    AclWhoAmI,
    Auth,
    ClientCaching,
    ClientCapa,
    ClientGetName,
    ClientId,
    ClientGetRedir,
    ClientInfo,
    ClientKill,
    ClientList,
    ClientNoEvict,
    ClientNoTouch,
    ClientPause,
    ClientReply,
    ClientSetInfo,
    ClientSetName,
    ClientTracking,
    ClientTrackingInfo,
    ClientUnblock,
    ClientUnpause,
    ClusterKeySlot,
    /// The command `COMMAND` and all its subcommands, which [`super::describe::answer`] answers.
    Command,
    ConfigGet,
    Discard,
    Echo,
    Exec,
    Hello,
    /// The subcommand `HELP` of any command with subcommands, which [`super::describe::help`] answers.
    Help,
    Info,
    Lolwut,
    Monitor,
    Multi,
    Ping,
    Qos,
    Quit,
    ReadOnly,
    ReadWrite,
    Reset,
    Role,
    Select,
    Time,
    Unwatch,
}

impl LocalCommand {
    /// True if a request of the command takes so much work that it is charged to quotas: it hashes a
    /// password, writes pages of text, asks all cores or stores, or switches on `CLIENT TRACKING`.
    pub fn is_priced(self, arguments: &Arguments<'_>) -> bool {
        match self {
            Self::AclGetUser
            | Self::AclList
            | Self::AclUsers
            | Self::Auth
            | Self::ClientKill
            | Self::ClientList
            | Self::ClientPause
            | Self::ClientUnblock
            | Self::ClientUnpause
            | Self::Command
            | Self::Info => true,
            // Its end is free, because until then the client pays for messages.
            Self::ClientTracking => arguments.get(2).is_some_and(|word| word.eq_ignore_ascii_case(b"on")),
            Self::Hello => arguments.iter().skip(2).any(|word| word.eq_ignore_ascii_case(b"auth")),
            _ => false,
        }
    }

    /// True if the command reads or changes the state of its connection: its identity, RESP version,
    /// transaction or lifetime; every `CLIENT` command counts. Such a command is refused over HTTP, where
    /// clients share connections that have no such state.
    pub const fn is_about_connection(self) -> bool {
        match self {
            Self::Auth
            | Self::ClientCaching
            | Self::ClientCapa
            | Self::ClientGetName
            | Self::ClientId
            | Self::ClientGetRedir
            | Self::ClientInfo
            | Self::ClientKill
            | Self::ClientList
            | Self::ClientNoEvict
            | Self::ClientNoTouch
            | Self::ClientPause
            | Self::ClientReply
            | Self::ClientSetInfo
            | Self::ClientSetName
            | Self::ClientTracking
            | Self::ClientTrackingInfo
            | Self::ClientUnblock
            | Self::ClientUnpause
            | Self::Discard
            | Self::Exec
            | Self::Hello
            | Self::Monitor
            | Self::Multi
            | Self::Quit
            | Self::ReadOnly
            | Self::ReadWrite
            | Self::Reset
            | Self::Select
            | Self::Unwatch => true,
            // Of `QOS` only `SET` is, and the inner request of `CALL`: see `call.rs`.
            Self::AclGetUser
            | Self::AclList
            | Self::AclUsers
            | Self::AclWhoAmI
            | Self::ClusterKeySlot
            | Self::Command
            | Self::ConfigGet
            | Self::Echo
            | Self::Help
            | Self::Info
            | Self::Lolwut
            | Self::Ping
            | Self::Qos
            | Self::Role
            | Self::Time => false,
        }
    }

    /// True if the reply to the command, which weir answers itself, is collected from all shards or from the
    /// stores.
    pub const fn is_collected(self) -> bool {
        matches!(self, Self::ClientKill | Self::ClientList | Self::ClientUnblock | Self::Info)
    }

    /// True if the command may be queued in a transaction, and weir answers it itself when `EXEC` comes. The
    /// reply to such a command is available at once, unless it is collected from shards or stores
    /// ([`Self::is_collected`]); to `CLIENT PAUSE` and `CLIENT UNPAUSE` it is `OK`.
    pub const fn stands_in_transaction(self) -> bool {
        matches!(
            self,
            Self::AclGetUser
                | Self::AclList
                | Self::AclUsers
                | Self::AclWhoAmI
                | Self::ClientCaching
                | Self::ClientGetName
                | Self::ClientGetRedir
                | Self::ClientId
                | Self::ClientInfo
                | Self::ClientKill
                | Self::ClientList
                | Self::ClientNoEvict
                | Self::ClientNoTouch
                | Self::ClientPause
                | Self::ClientReply
                | Self::ClientSetInfo
                | Self::ClientSetName
                | Self::ClientTrackingInfo
                | Self::ClientUnblock
                | Self::ClientUnpause
                | Self::ClusterKeySlot
                | Self::Command
                | Self::ConfigGet
                | Self::Help
                | Self::Info
                | Self::Lolwut
                // `EXEC` answers it with an error, as in Redis.
                | Self::Monitor
                | Self::ReadOnly
                | Self::ReadWrite
                | Self::Role
                | Self::Select
                | Self::Unwatch
        )
    }
}

/// Reason why weir refuses a command. Clients share the connections to the stores, and most reasons follow
/// from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The command is refused because it blocks its connection until data arrives (`BLPOP`), and clients
    /// share that connection.
    Blocks,
    /// The command is refused because it turns its connection into a stream of messages (`SUBSCRIBE`).
    Subscribes,
    /// The command is refused because it watches keys for its connection (`WATCH`).
    Watches,
    /// The command is refused because it waits until replicas have the writes of its connection (`WAIT`), and
    /// clients may have no connections to stores to themselves, or the stores are a cluster.
    AwaitsReplicas,
    /// The command is refused because it shows the requests of all clients (`MONITOR`), and weir was started
    /// with `--monitors 0`.
    Monitors,
    /// The command is refused because it is used between a primary and its replicas only (`PSYNC`).
    Replicates,
    /// The command is refused because it concerns one server (`SHUTDOWN`), and weir may stand in front of
    /// several.
    OneStore,
    /// The command is refused because it concerns the connections to the store; these are weir's, not the
    /// client's.
    StoreClients,
    /// The command is refused because it concerns a cluster (`CLUSTER NODES`), and to its clients weir is a
    /// single server.
    ClusterDisabled,
    /// The command is refused because it moves keys to another server (`MIGRATE`).
    Migrates,
    /// The command is refused because it asks for messages about changes of keys by other clients (`CLIENT
    /// TRACKING`).
    Tracks,
    /// The command is refused because it manages the users of a store (`ACL`).
    Users,
    /// The command is refused because it tells the permissions of a store's users (`ACL LOG`), and weir checks
    /// permissions of its own.
    Permissions,
    /// The command is refused because it asks for announcements of maintenance (`CLIENT
    /// MAINT_NOTIFICATIONS`), and weir makes none.
    Maintenance,
    /// The command is refused because it is for debugging a store.
    Debugs,
    /// The command is refused because it stores names of fields on its connection for later commands
    /// (`HIMPORT`), and clients share that connection.
    Prepares,
    /// The command is refused because it would change how clients reach the store and log in there, and so
    /// keep weir out (`CONFIG SET requirepass`).
    LocksOut,
}

impl Refusal {
    /// Returns the reason as the end of the error text "... is not supported by weir: it ...".
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Blocks => {
                "holds its connection until data arrives, and connections to the store are shared"
            }
            Self::Subscribes => {
                "turns its connection into a stream of messages, and connections to the store are shared"
            }
            Self::Watches => "ties keys to one connection, and connections to the store are shared",
            Self::AwaitsReplicas => {
                "is about the writes of one connection, and connections to the store are shared"
            }
            Self::Monitors => "shows the requests of other clients, and weir was started with --monitors 0",
            Self::Replicates => "is spoken between a store and its replicas, not by clients",
            Self::OneStore => "is about one server, so ask that store itself",
            Self::StoreClients => "is about the store's own connections, which all clients of weir share",
            Self::ClusterDisabled => "is about a cluster, and weir acts as a single server",
            Self::Migrates => "moves keys to a server that weir does not know",
            Self::Tracks => "asks for messages about changes, and connections to the store are shared",
            Self::Users => "manages users, and weir takes them from its quota file",
            Self::Permissions => {
                "is about permissions of a store's users, and weir has its own: see weir_refusals_total and QOS EXPLAIN"
            }
            Self::Maintenance => "asks for notice of maintenance, and weir sends none",
            Self::Prepares => {
                "keeps names of fields on its connection, and connections to the store are shared"
            }
            Self::Debugs => "is for debugging a store, so ask that store itself",
            Self::LocksOut => {
                "would change how the store is reached (bind, port, protected-mode, requirepass, tls-port) and keep weir out, so ask that store itself"
            }
        }
    }

    /// Returns the whole error reply for a command that is refused, without the leading `-`.
    pub const fn of(self, command: &Command) -> RefusalText<'_> {
        RefusalText { refusal: self, command }
    }
}

/// The text of the error reply to a refused command.
#[derive(Clone, Copy, Debug)]
pub struct RefusalText<'a> {
    refusal: Refusal,
    command: &'a Command,
}

impl fmt::Display for RefusalText<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Clients know this text: it tells them that they do not talk to a cluster.
        if self.refusal == Refusal::ClusterDisabled {
            return out.write_str("ERR This instance has cluster support disabled");
        }
        let (name, reason) = (self.command.spoken_name(), self.refusal.reason());
        write!(out, "ERR {name} is not supported by weir: it {reason}")
    }
}

/// Returns how weir handles a request of a command (`command`) whose arguments decide it: `XREAD` and
/// `XREADGROUP` with `BLOCK` need a private connection, `COPY` with `DB` changes two databases, and `CONFIG
/// SET` of some settings is refused.
#[cold]
pub(super) fn decide(command: &Command, arguments: &Arguments<'_>) -> Handling {
    let other = match command.keys {
        Keys::Streams => {
            names_option_before_streams(arguments, b"block").then_some(Handling::Private(PrivateUse::Waits))
        }
        Keys::None => sets_access(arguments).then_some(Handling::Refused(Refusal::LocksOut)),
        _ => copies_to_another_database(arguments).then_some(Handling::BetweenDatabases),
    };
    other.unwrap_or(command.handling)
}

/// True if a request `XREAD` or `XREADGROUP` has the option named `option`. Options stand before `STREAMS`;
/// the words after that are keys and ids.
fn names_option_before_streams(arguments: &Arguments<'_>, option: &[u8]) -> bool {
    let mut index = 1;
    while let Some(word) = arguments.get(index) {
        if word.eq_ignore_ascii_case(option) {
            return true;
        }
        let Some(skipped) = super::keys::stream_option_words(word) else { return false };
        index += skipped;
    }
    false
}

/// Settings of a store that say how clients reach it and log in there.
const ACCESS: [&str; 5] = ["bind", "port", "protected-mode", "requirepass", "tls-port"];

/// True if `CONFIG SET name value ...` has the name of a setting that says how clients reach the store or log
/// in there: `bind`, `port`, `protected-mode`, `requirepass` or `tls-port`.
fn sets_access(arguments: &Arguments<'_>) -> bool {
    let mut names = (2..arguments.len()).step_by(2).map(|index| arguments.at(index));
    names.any(|name| ACCESS.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes())))
}

/// True if `COPY source destination [DB number] [REPLACE]` has the option `DB`.
fn copies_to_another_database(arguments: &Arguments<'_>) -> bool {
    let options = 3..arguments.len();
    options
        .clone()
        .any(|index| arguments.at(index).eq_ignore_ascii_case(b"db") && arguments.get(index + 1).is_some())
}
