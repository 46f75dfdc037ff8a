//! What `COMMAND INFO` tells about a command besides its keys.

use std::ops::BitOr;

/// A set of properties. Most have the meaning and the name that Redis gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// Changes keys.
    pub const WRITE: Self = Self(1 << 0);
    /// Reads keys.
    pub const READONLY: Self = Self(1 << 1);
    /// Needs memory, so a store that is out of it refuses.
    pub const DENYOOM: Self = Self(1 << 2);
    /// Administers the server.
    pub const ADMIN: Self = Self(1 << 3);
    /// Belongs to publish and subscribe.
    pub const PUBSUB: Self = Self(1 << 4);
    /// Not to be called from scripts.
    pub const NOSCRIPT: Self = Self(1 << 5);
    /// May hold its connection until data arrives.
    pub const BLOCKING: Self = Self(1 << 6);
    /// Answered while the store loads its data.
    pub const LOADING: Self = Self(1 << 7);
    /// Answered by a replica that lost its primary.
    pub const STALE: Self = Self(1 << 8);
    /// Not shown by `MONITOR`.
    pub const SKIP_MONITOR: Self = Self(1 << 9);
    /// Not written to the slow log.
    pub const SKIP_SLOWLOG: Self = Self(1 << 10);
    /// Accepted for a slot that is being imported.
    pub const ASKING: Self = Self(1 << 11);
    /// Takes constant or logarithmic time.
    pub const FAST: Self = Self(1 << 12);
    /// Needs no authentication.
    pub const NO_AUTH: Self = Self(1 << 13);
    /// May name no keys although it could.
    pub const NO_MANDATORY_KEYS: Self = Self(1 << 14);
    /// Its keys cannot be told from positions alone.
    pub const MOVABLE_KEYS: Self = Self(1 << 15);
    /// Answered while a script runs for too long.
    pub const ALLOW_BUSY: Self = Self(1 << 16);
    /// Not answered while the store loads its data in the background.
    pub const NO_ASYNC_LOADING: Self = Self(1 << 17);
    /// Not inside a transaction.
    pub const NO_MULTI: Self = Self(1 << 18);

    /// The reply to a read of one key says what the key holds, and nothing that changes by itself: it may be kept for a while. Not
    /// shown among the flags.
    pub const CACHEABLE: Self = Self(1 << 25);
    /// What it does shows neither in the request nor in the reply, not shown among the flags.
    pub const HIDDEN_WORK: Self = Self(1 << 26);
    /// How much it does depends on a number among its arguments: the further, the more. Not shown either.
    pub const FAR_WORK: Self = Self(1 << 27);
    /// Either of them.
    pub const UNSHOWN_WORK: Self = Self::HIDDEN_WORK.and(Self::FAR_WORK);
    /// Can harm every user of the server: the access category `@dangerous`, not shown among the flags.
    pub(super) const DANGEROUS: Self = Self(1 << 28);
    /// Only holds subcommands.
    pub(super) const CONTAINER: Self = Self(1 << 29);
    /// Is one of a container's subcommands.
    pub(super) const SUBCOMMAND: Self = Self(1 << 30);
    /// Whether it may pass depends on its arguments.
    pub(super) const ARGUMENTS_DECIDE: Self = Self(1 << 31);

    /// Every flag that clients see, with the name that they see.
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

    /// Whether all of `others` are set.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// Whether any of `others` is set.
    pub const fn intersects(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// These and those.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// The names that Redis gives the flags that are set.
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

/// The family of a command. Where families of Redis overlap it is the one that the access category names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Bits and bit fields of strings.
    Bitmap,
    /// Who the client is and how it talks.
    Connection,
    /// Clusters of stores.
    Cluster,
    /// Any kind of key.
    Generic,
    /// Places on the globe.
    Geo,
    /// Hashes.
    Hash,
    /// Approximate counting.
    HyperLogLog,
    /// Lists.
    List,
    /// Publish and subscribe.
    PubSub,
    /// Scripts and functions.
    Scripting,
    /// The server itself.
    Server,
    /// Sets.
    Set,
    /// Sorted sets.
    SortedSet,
    /// Streams.
    Stream,
    /// Strings.
    String,
    /// Transactions.
    Transactions,
    /// Vector sets.
    VectorSet,
}

impl Group {
    /// The name in `COMMAND DOCS`.
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

    /// The access category of its commands, if they share one.
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
            Self::Cluster | Self::PubSub | Self::Server => None,
        }
    }
}
