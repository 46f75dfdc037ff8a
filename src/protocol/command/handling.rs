//! Handling of commands: forward, split, fan out, answer, or refuse with a reason.

use std::fmt;

use super::{Arguments, Command, Keys};

/// Handling of a request once it has been recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// The request goes where its keys live, as one request.
    Forward,
    /// The request goes where its keys live, and changes keys of two databases there.
    BetweenDatabases,
    /// The request is taken apart by key, and the parts' replies become one.
    Split(Gather),
    /// The request goes to one store or more without regard to keys, and the replies become one.
    FanOut(FanOut),
    /// weir answers the request.
    Local(LocalCommand),
    /// The request needs a connection to its store that its client has to itself.
    Private(PrivateUse),
    /// weir refuses the request.
    Refused(Refusal),
}

/// Reason why a request needs a connection to its store that no other client shares (a private link).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivateUse {
    /// The request waits at the store until there is something to return.
    Waits,
    /// The request waits until replicas, or the disk, have what was written before.
    AwaitsCopies,
    /// The request watches keys until the next `EXEC`.
    Watches,
    /// The request subscribes to channels or patterns of this kind.
    Subscribes(Subscription),
    /// The request ends subscriptions of this kind.
    Unsubscribes(Subscription),
}

impl PrivateUse {
    /// Returns the refusal of the request where clients may have no private connections.
    pub const fn refusal(self) -> Refusal {
        match self {
            Self::Waits => Refusal::Blocks,
            Self::AwaitsCopies => Refusal::AwaitsReplicas,
            Self::Watches => Refusal::Watches,
            Self::Subscribes(_) | Self::Unsubscribes(_) => Refusal::Subscribes,
        }
    }
}

/// Kind of names that a subscription is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subscription {
    /// Channels, by their names.
    Channels,
    /// All channels whose names match a pattern.
    Patterns,
    /// Channels of a shard, which live where a key of the same name would.
    Sharded,
}

impl Subscription {
    /// Returns the word with which a store acknowledges that such a subscription begins or ends.
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
    /// True if such a command tells or changes the state of its connection, or would if weir let it pass.
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

/// Way in which the replies to the parts of a split request become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gather {
    /// An array with one value per key, in the order of the keys.
    Values,
    /// `+OK` if every part's reply is `+OK`; else an error.
    AllOk,
    /// The sum of integers.
    Sum,
}

/// Choice of the stores that a request without keys goes to, and the way in which their replies become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FanOut {
    /// All arrays, one behind the other.
    Concat,
    /// The sum of integers.
    Sum,
    /// The reply of the store that has the subscribers of a channel; in a cluster that of one node, which tells
    /// the others.
    Channel,
    /// The number of patterns at one plain store, since each has all patterns; in a cluster the sum.
    Patterns,
    /// `+OK` if every store's reply is `+OK`; else an error.
    AllOk,
    /// One of the replies that are not null, at random.
    NonNull,
    /// An array of integers, in which an element is 1 only where all stores say 1.
    Every,
    /// The first reply, since all stores give equal ones; an error if any store gives one.
    Same,
    /// The reply of one store. No other store gets the request, because all stores hold the same data.
    One,
    /// A success from any store; an error only when all failed.
    AnyOk,
    /// The union of arrays, each element once.
    Union,
    /// Arrays of the same form: integers are added up place by place, all else is as the first store has it.
    SumEach,
    /// Settings as the first store has them, but for secrets.
    Settings,
    /// The numbers of keys by database (`INFO keyspace`), added up.
    KeyCounts,
    /// A list of all replies, each under its store's name, since no single answer is right. With one store,
    /// its reply.
    ByStore,
    /// The reply of one store after the other; the cursor says which is next.
    Scan,
}

/// Commands that weir answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the command of its name")]
pub enum LocalCommand {
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
    /// `COMMAND` and all its subcommands: see [`super::describe::answer`].
    Command,
    ConfigGet,
    Discard,
    Echo,
    Exec,
    Hello,
    /// `HELP` of any container: see [`super::describe::help`].
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
    /// True if the command takes so much work that it has a price: a digest of a password, pages of text, a
    /// question to all cores.
    pub const fn is_priced(self) -> bool {
        matches!(
            self,
            Self::Auth
                | Self::ClientKill
                | Self::ClientList
                | Self::ClientUnblock
                | Self::Command
                | Self::Info
        )
    }

    /// True if the command tells or changes the state of its connection: its identity, dialect, transaction
    /// or lifetime. Refused over HTTP, where connections are shared and have no such state.
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
            Self::AclWhoAmI
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

    /// True if the command may stand in a transaction and is answered by weir when that is carried out. Such
    /// a command is about the connection, and its answer is there at once, or it is `CLIENT PAUSE` or `CLIENT UNPAUSE`,
    /// whose answer is `OK`.
    pub const fn stands_in_transaction(self) -> bool {
        matches!(
            self,
            Self::AclWhoAmI
                | Self::ClientGetName
                | Self::ClientGetRedir
                | Self::ClientId
                | Self::ClientInfo
                | Self::ClientNoEvict
                | Self::ClientNoTouch
                | Self::ClientPause
                | Self::ClientSetInfo
                | Self::ClientSetName
                | Self::ClientTrackingInfo
                | Self::ClientUnpause
                | Self::ClusterKeySlot
                | Self::Command
                | Self::ConfigGet
                | Self::Help
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

/// Reason why a command is refused. Connections to the stores are shared by all clients, and most reasons
/// follow from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Blocking command such as `BLPOP`, refused since it would hold up the connection to the store, which
    /// all clients share.
    Blocks,
    /// The command turns a connection into a stream of messages.
    Subscribes,
    /// The command watches keys on behalf of a connection.
    Watches,
    /// The command waits for replicas to have what a connection wrote.
    AwaitsReplicas,
    /// The command shows the requests of other clients, and no client may see them.
    Monitors,
    /// The command is spoken between a primary and its replicas.
    Replicates,
    /// The command is about one server.
    OneStore,
    /// The command is about connections to the store.
    StoreClients,
    /// The command is about a cluster, and to its clients weir is a single server.
    ClusterDisabled,
    /// The command moves keys to another server.
    Migrates,
    /// The command asks for messages about keys that others change (`CLIENT TRACKING`).
    Tracks,
    /// The command manages users.
    Users,
    /// The command asks for notice of maintenance, and weir has none to announce.
    Maintenance,
    /// The command is for debugging a store.
    Debugs,
    /// The command prepares later ones of its connection.
    Prepares,
}

impl Refusal {
    /// Returns the reason as text that continues "... is not supported by weir: it".
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
            Self::Maintenance => "asks for notice of maintenance, and weir sends none",
            Self::Prepares => {
                "keeps names of fields on its connection, and connections to the store are shared"
            }
            Self::Debugs => "is for debugging a store, so ask that store itself",
        }
    }

    /// Returns the whole error for a command, without the leading `-`.
    pub const fn of(self, command: &Command) -> RefusalText<'_> {
        RefusalText { refusal: self, command }
    }
}

/// Error that a refused command is answered with.
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

/// Returns how weir handles a request whose arguments decide whether it is forwarded or refused.
#[cold]
pub(super) fn decide(command: &Command, arguments: &Arguments<'_>) -> Handling {
    let other = match command.keys {
        Keys::Streams => {
            names_option_before_streams(arguments, b"block").then_some(Handling::Private(PrivateUse::Waits))
        }
        _ => copies_to_another_database(arguments).then_some(Handling::BetweenDatabases),
    };
    other.unwrap_or(command.handling)
}

/// True if `XREAD` or `XREADGROUP` has this option, which stands before `STREAMS`: everything behind that is
/// keys and ids.
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

/// True if `COPY source destination [DB number] [REPLACE]` names another database than 0.
fn copies_to_another_database(arguments: &Arguments<'_>) -> bool {
    let options = 3..arguments.len();
    options
        .clone()
        .any(|index| arguments.at(index).eq_ignore_ascii_case(b"db") && arguments.get(index + 1).is_some())
}
