//! What weir does with a command: pass it on, spread it, answer it, or refuse it and say why.

use std::fmt;

use super::{Arguments, Command, Keys};

/// What happens to a request once it has been recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// It goes where its keys live, as one request.
    Forward,
    /// It is taken apart by key, and the parts' replies become one.
    Split(Gather),
    /// It names no key: it goes to every store, and the replies become one.
    FanOut(FanOut),
    /// Weir answers it.
    Local(LocalCommand),
    /// Weir does not let it pass.
    Refused(Refusal),
}

impl Handling {
    /// Whether such a command tells or changes what its connection is, or would if weir let it pass.
    pub const fn is_about_connection(self) -> bool {
        match self {
            Self::Local(local) => local.is_about_connection(),
            Self::Refused(refusal) => matches!(
                refusal,
                Refusal::Subscribes
                    | Refusal::Watches
                    | Refusal::Monitors
                    | Refusal::StoreClients
                    | Refusal::Tracks
                    | Refusal::Silences
            ),
            Self::Forward | Self::Split(_) | Self::FanOut(_) => false,
        }
    }
}

/// How the replies to the parts of a split request become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gather {
    /// An array with one value per key, in the order of the keys.
    Values,
    /// `OK` when every part said so.
    AllOk,
    /// The sum of integers.
    Sum,
}

/// How the replies of all stores become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FanOut {
    /// Arrays, one behind the other.
    Concat,
    /// The sum of integers.
    Sum,
    /// `OK` when every store said so.
    AllOk,
    /// One of the replies that are not null, by chance.
    NonNull,
    /// Arrays of integers, and an element is 1 only where all stores say 1.
    Every,
    /// The same everywhere, so any reply will do unless one is an error.
    Same,
    /// One store is asked, because all hold the same.
    One,
    /// A success from any store; an error only when all failed.
    AnyOk,
    /// Arrays, and each element once.
    Union,
    /// Arrays of the same form: integers are added up place by place, all else is as the first store has it.
    SumEach,
    /// Settings as the first store has them, but for secrets.
    Settings,
    /// What each store says, under its name: there is no one answer. With one store it is that store's.
    ByStore,
    /// One store after the other; the cursor says which is next.
    Scan,
}

/// The commands that weir answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the command of its name")]
pub enum LocalCommand {
    AclWhoAmI,
    Auth,
    ClientGetName,
    ClientId,
    ClientGetRedir,
    ClientInfo,
    ClientKill,
    ClientList,
    ClientNoEvict,
    ClientNoTouch,
    ClientPause,
    ClientSetInfo,
    ClientSetName,
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
    /// Whether it takes so much work that it has a price: a digest of a password, pages of text, a question to all cores.
    pub const fn is_priced(self) -> bool {
        matches!(self, Self::Auth | Self::ClientKill | Self::ClientList | Self::Command | Self::Info)
    }

    /// Whether it tells or changes what its connection is: who speaks, in which dialect, in a transaction or not, for how long.
    /// Over HTTP connections are shared, and nobody has one.
    pub const fn is_about_connection(self) -> bool {
        match self {
            Self::Auth
            | Self::ClientGetName
            | Self::ClientId
            | Self::ClientGetRedir
            | Self::ClientInfo
            | Self::ClientKill
            | Self::ClientList
            | Self::ClientNoEvict
            | Self::ClientNoTouch
            | Self::ClientPause
            | Self::ClientSetInfo
            | Self::ClientSetName
            | Self::ClientUnblock
            | Self::ClientUnpause
            | Self::Discard
            | Self::Exec
            | Self::Hello
            | Self::Multi
            | Self::Quit
            | Self::ReadOnly
            | Self::ReadWrite
            | Self::Reset
            | Self::Select
            | Self::Unwatch => true,
            // Of `QOS` it is `SET` alone, and what stands in `CALL`: see `call.rs`.
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

    /// Whether it may stand in a transaction, and is answered by weir when that is carried out. It says something about the
    /// connection or changes its name, and its answer is there at once.
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
                | Self::ClientSetInfo
                | Self::ClientSetName
                | Self::ClusterKeySlot
                | Self::Command
                | Self::ConfigGet
                | Self::Help
                | Self::Lolwut
                | Self::ReadOnly
                | Self::ReadWrite
                | Self::Role
                | Self::Select
                | Self::Unwatch
        )
    }
}

/// Why a command does not pass. Connections to the stores are shared by all clients, and most reasons follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It waits for data.
    Blocks,
    /// It turns a connection into a stream of messages.
    Subscribes,
    /// It watches keys on behalf of a connection.
    Watches,
    /// It waits for replicas to have what a connection wrote.
    AwaitsReplicas,
    /// It shows everyone's requests.
    Monitors,
    /// It is spoken between a primary and its replicas.
    Replicates,
    /// It is about one server.
    OneStore,
    /// It is about connections to the store.
    StoreClients,
    /// It needs more than one database.
    ManyDatabases,
    /// It is about a cluster, and to its clients weir is a single server.
    ClusterDisabled,
    /// It moves keys to another server.
    Migrates,
    /// It asks for messages about keys that others change.
    Tracks,
    /// It switches replies off.
    Silences,
    /// It manages users.
    Users,
    /// It announces maintenance, and weir has none to announce.
    Maintenance,
    /// It is for the people who debug a store.
    Debugs,
}

impl Refusal {
    /// Why, as it continues "... is not supported by weir: it".
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
            Self::Monitors => "would show the requests of every tenant",
            Self::Replicates => "is spoken between a store and its replicas, not by clients",
            Self::OneStore => "is about one server, so ask that store itself",
            Self::StoreClients => "is about the store's own connections, which all clients of weir share",
            Self::ManyDatabases => "needs a second database, and weir serves database 0 only",
            Self::ClusterDisabled => "is about a cluster, and weir acts as a single server",
            Self::Migrates => "moves keys to a server that weir does not know",
            Self::Tracks => "asks for messages about changes, and connections to the store are shared",
            Self::Silences => "switches replies off, and weir answers every request",
            Self::Users => "manages users, and weir takes them from its quota file",
            Self::Maintenance => "asks for notice of maintenance, and weir sends none",
            Self::Debugs => "is for debugging a store, so ask that store itself",
        }
    }

    /// The whole error for a command, without the leading `-`.
    pub const fn of(self, command: &Command) -> RefusalText<'_> {
        RefusalText { refusal: self, command }
    }
}

/// The error that a refused command is answered with.
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

/// For commands whose arguments decide whether they may pass.
#[cold]
pub(super) fn decide(command: &Command, arguments: &Arguments<'_>) -> Handling {
    let refusal = match command.keys {
        Keys::Streams => names_option_before_streams(arguments, b"block").then_some(Refusal::Blocks),
        _ => copies_to_another_database(arguments).then_some(Refusal::ManyDatabases),
    };
    refusal.map_or(command.handling, Handling::Refused)
}

/// `XREAD` and `XREADGROUP`: everything behind `STREAMS` is keys and ids.
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

/// `COPY source destination [DB number] [REPLACE]`.
fn copies_to_another_database(arguments: &Arguments<'_>) -> bool {
    let options = 3..arguments.len();
    options.clone().any(|index| {
        arguments.at(index).eq_ignore_ascii_case(b"db")
            && arguments.get(index + 1).is_some_and(|to| to != b"0")
    })
}
