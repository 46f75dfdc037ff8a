//! Ids of things that live in arrays. Each is an index with a type of its own, so that they cannot be mixed
//! up.

/// Id of a shard: one core's executor and everything that it owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub u16);

/// Id of a backend: a store behind weir, as listed by `--storage`, or a node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(pub u16);

/// Id of a client connection of one shard. The generation distinguishes the client from others that had the
/// same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId {
    /// Index of the client in the shard's table of clients.
    pub index: u32,
    /// Number of clients that have had this index in the shard's table of clients so far, this one included.
    pub generation: u32,
}

/// Number of a database of a store, as `SELECT` takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Database(pub u8);

impl Database {
    /// The database, number 0, of a connection that has selected none.
    pub const FIRST: Self = Self(0);
}

/// Id of one shard's connection to a backend: an index into the shard's table of such connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// Id of a tenant, as listed in the quota file. Valid for one version of that file only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u16);
