//! Flags of commands (such as `write` or `fast`) and families of commands, as `COMMAND INFO` lists them.

use std::ops::BitOr;

/// Set of a command's properties. Most have the meaning and the name that Redis gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// The empty set of flags.
    pub const NONE: Self = Self(0);
    /// Flag of commands that change keys.
    pub const WRITE: Self = Self(1 << 0);
    /// Flag of commands that read keys.
    pub const READONLY: Self = Self(1 << 1);
    /// Flag of commands that need memory, so that a store that has none left refuses them.
    pub const DENYOOM: Self = Self(1 << 2);
    /// Flag of commands that administer the server.
    pub const ADMIN: Self = Self(1 << 3);
    /// Flag of commands that belong to publish and subscribe.
    pub const PUBSUB: Self = Self(1 << 4);
    /// Flag of commands that scripts may not call.
    pub const NOSCRIPT: Self = Self(1 << 5);
    /// Flag of commands that may hold their connection until data arrives.
    pub const BLOCKING: Self = Self(1 << 6);
    /// Flag of commands that a store answers while it loads its data.
    pub const LOADING: Self = Self(1 << 7);
    /// Flag of commands that a replica answers after it has lost its primary.
    pub const STALE: Self = Self(1 << 8);
    /// Flag of commands that Redis does not show to `MONITOR` like others: scripts, and those of modules that ask not
    /// to be shown.
    pub const SKIP_MONITOR: Self = Self(1 << 9);
    /// Flag of commands that are not written to the slow log.
    pub const SKIP_SLOWLOG: Self = Self(1 << 10);
    /// Flag of commands that a cluster node accepts for a slot that it is importing.
    pub const ASKING: Self = Self(1 << 11);
    /// Flag of commands that take constant or logarithmic time.
    pub const FAST: Self = Self(1 << 12);
    /// Flag of commands that need no authentication.
    pub const NO_AUTH: Self = Self(1 << 13);
    /// Flag of commands whose keys are optional.
    pub const NO_MANDATORY_KEYS: Self = Self(1 << 14);
    /// Flag of commands whose keys cannot be found from fixed positions among the arguments.
    pub const MOVABLE_KEYS: Self = Self(1 << 15);
    /// Flag of commands that a store answers while a script runs for too long.
    pub const ALLOW_BUSY: Self = Self(1 << 16);
    /// Flag of commands that a store does not answer while it loads its data in the background.
    pub const NO_ASYNC_LOADING: Self = Self(1 << 17);
    /// Flag of commands that are not allowed inside a transaction.
    pub const NO_MULTI: Self = Self(1 << 18);

    /// Flag of commands whose requests may make a store repeat its work (by repeated keys, long patterns and
    /// the like), so that weir limits how often. Not shown to clients.
    pub const MULTIPLIES: Self = Self(1 << 24);
    /// Flag of commands that read one key and whose reply depends on the key alone, and not on time or
    /// chance: it may be kept in the hot-key cache. Not shown to clients.
    pub const CACHEABLE: Self = Self(1 << 25);
    /// Flag of commands whose amount of work can be seen neither in the request nor in the reply. Not shown
    /// to clients.
    pub const HIDDEN_WORK: Self = Self(1 << 26);
    /// Flag of commands whose work grows with a number among their arguments (such as an index or an offset),
    /// or with the square of the number of keys (`WATCH`). Not shown to clients.
    pub const FAR_WORK: Self = Self(1 << 27);
    /// Both flags of commands whose amount of work the reply does not show: `HIDDEN_WORK` (the request does
    /// not show it either) and `FAR_WORK` (it grows with a number in the request).
    pub const UNSHOWN_WORK: Self = Self::HIDDEN_WORK.and(Self::FAR_WORK);
    /// Flag of commands that can harm every user of the server: the access category `@dangerous`. Not shown
    /// among the flags.
    pub(super) const DANGEROUS: Self = Self(1 << 28);
    /// Flag of command names that are only the first word of their subcommands, such as `OBJECT`.
    pub(super) const CONTAINER: Self = Self(1 << 29);
    /// Flag of the subcommands of a container command, such as `OBJECT ENCODING`.
    pub(super) const SUBCOMMAND: Self = Self(1 << 30);
    /// Flag of commands whose arguments decide how weir handles them.
    pub(super) const ARGUMENTS_DECIDE: Self = Self(1 << 31);

    /// The flags of commands that clients see, with the names that Redis gives them.
    const NAMES: [(Self, &'static str); 19] = [
        (Self::WRITE, "write"),
        (Self::READONLY, "readonly"),
        (Self::DENYOOM, "denyoom"),
        (Self::ADMIN, "admin"),
        (Self::PUBSUB, "pubsub"),
        (Self::NOSCRIPT, "noscript"),
        (Self::BLOCKING, "blocking"),
        (Self::LOADING, "loading"),
        (Self::STALE, "stale"),
        (Self::SKIP_MONITOR, "skip_monitor"),
        (Self::SKIP_SLOWLOG, "skip_slowlog"),
        (Self::ASKING, "asking"),
        (Self::FAST, "fast"),
        (Self::NO_AUTH, "no_auth"),
        (Self::NO_MANDATORY_KEYS, "no_mandatory_keys"),
        (Self::MOVABLE_KEYS, "movablekeys"),
        (Self::ALLOW_BUSY, "allow_busy"),
        (Self::NO_ASYNC_LOADING, "no_async_loading"),
        (Self::NO_MULTI, "no_multi"),
    ];

    /// True if all flags of `others` are set.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// True if any flag of `others` is set.
    pub const fn intersects(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// Returns the set of the flags that are in this set or in `others`.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Returns the flag with the name that Redis gives it; `None` if there is none.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| known.as_bytes() == name).map(|(flag, _)| *flag)
    }

    /// Returns the names, as in Redis, of the flags that are set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(flag, _)| self.contains(*flag)).map(|(_, name)| name)
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, others: Self) -> Self {
        self.and(others)
    }
}

/// Family of a command, such as commands on lists. Where families of Redis overlap, the family is the one
/// that the access category names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Commands on bits and bit fields of strings.
    Bitmap,
    /// Commands about the client and its connection.
    Connection,
    /// Commands about clusters of stores.
    Cluster,
    /// Commands on any kind of key.
    Generic,
    /// Commands on geographic places, which are kept in sorted sets.
    Geo,
    /// Commands on hashes.
    Hash,
    /// Commands on `HyperLogLog` keys, for approximate counting.
    HyperLogLog,
    /// Commands on lists.
    List,
    /// Commands that weir has learned from stores because its table does not have them: nearly all are those
    /// of modules.
    Module,
    /// Commands to publish and subscribe.
    PubSub,
    /// Commands on scripts and functions.
    Scripting,
    /// Commands about the server itself.
    Server,
    /// Commands on sets.
    Set,
    /// Commands on sorted sets.
    SortedSet,
    /// Commands on streams.
    Stream,
    /// Commands on strings.
    String,
    /// Commands of transactions.
    Transactions,
    /// Commands on vector sets.
    VectorSet,
}

impl Group {
    /// Returns the family's name in `COMMAND DOCS`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bitmap => "bitmap",
            Self::Connection => "connection",
            Self::Cluster => "cluster",
            Self::Generic => "generic",
            Self::Geo => "geo",
            Self::Hash => "hash",
            Self::HyperLogLog => "hyperloglog",
            Self::List => "list",
            Self::Module => "module",
            Self::PubSub => "pubsub",
            Self::Scripting => "scripting",
            Self::Server => "server",
            Self::Set => "set",
            Self::SortedSet => "sorted-set",
            Self::Stream => "stream",
            Self::String => "string",
            Self::Transactions => "transactions",
            Self::VectorSet => "vector-set",
        }
    }

    /// Returns the access category that all commands of the family share, such as `@list`; `None` if they
    /// share none.
    pub const fn category(self) -> Option<&'static str> {
        match self {
            Self::Bitmap => Some("@bitmap"),
            Self::Connection => Some("@connection"),
            Self::Generic => Some("@keyspace"),
            Self::Geo => Some("@geo"),
            Self::Hash => Some("@hash"),
            Self::HyperLogLog => Some("@hyperloglog"),
            Self::List => Some("@list"),
            Self::Scripting => Some("@scripting"),
            Self::Set => Some("@set"),
            Self::SortedSet => Some("@sortedset"),
            Self::Stream => Some("@stream"),
            Self::String => Some("@string"),
            Self::Transactions => Some("@transaction"),
            Self::VectorSet => Some("@vectorset"),
            Self::Cluster | Self::Module | Self::PubSub | Self::Server => None,
        }
    }
}
