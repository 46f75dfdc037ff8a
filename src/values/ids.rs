//! Names of things that live in arrays. Each is an index with a type, so that they cannot be mixed up.

/// A shard: one core's partition of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub u16);

/// A store behind weir, as listed by `--storage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(pub u16);

/// A client connection of one shard. The generation tells a reused index apart from its former owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId {
    /// Place in the shard's table.
    pub index: u32,
    /// How often that place was given away before.
    pub generation: u32,
}

/// A connection to a backend, of one shard: an index into its fixed table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// A tenant, as listed in the quota file. Good for one version of that file only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u16);
