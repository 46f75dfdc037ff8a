//! Envelope of a request: the record that goes with its bytes from the core that decoded it, to the home core
//! of its key, to the backend connection.

use std::num::NonZeroU16;

use crate::policy::price::looked_at;
use crate::protocol::Argument;
use crate::protocol::Protocol;
use crate::protocol::command::{Class, Command, Effect, Flags};
use crate::protocol::reply::integer;
use crate::values::limits::SLOTS;
use crate::values::{BackendId, ClientId, Database, ShardId, TenantId, Tier, Timestamp};

/// Address of a reply: the request that it belongs to, on which client connection of which shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplyTo {
    /// The shard that accepted the client.
    pub shard: ShardId,
    /// Index of the part of a split request; 0 for a request in one piece. For a fetch (shared read of a hot
    /// key), 1 marks the reply to a command sent before it ([`Self::ahead`]).
    pub part: u16,
    /// Index of the client in that shard's table of clients. With one of its two highest bits set, the address is that
    /// of a flight (fetch of a hot key) or of a piece (one key's part of a split request), and the rest is an index in
    /// their table.
    pub client: u32,
    /// Generation of the entry in that table, which distinguishes the client, or the flight (fetch of a hot key), from
    /// others that have the same index at other times.
    pub generation: u32,
    /// Sequence number of the request on its client connection, which gives the order of the client's replies; 0 for a
    /// flight (fetch of a hot key).
    pub sequence: u32,
}

impl ReplyTo {
    /// Returns the address of the reply to the client's request with this sequence number, if it is not
    /// split.
    #[inline]
    pub fn new(shard: ShardId, client: ClientId, sequence: u32) -> Self {
        Self { shard, part: 0, client: client.index, generation: client.generation, sequence }
    }

    /// Returns the reply address of a flight: one fetch of a hot key whose reply several requests wait for.
    pub fn flight(shard: ShardId, flight: FlightId) -> Self {
        Self { shard, part: 0, client: FLIGHT | flight.index, generation: flight.generation, sequence: 0 }
    }

    /// Returns the flight (fetch of a hot key) that the reply is for; None if it is for a client or for a
    /// piece (one key's part of a split request).
    #[inline]
    pub fn flight_id(self) -> Option<FlightId> {
        let is_flight = self.client & FLIGHT != 0;
        is_flight.then_some(FlightId { index: self.client & !FLIGHT, generation: self.generation })
    }

    /// Returns the reply address of one piece (index `part`) of a request that `shard` splits by key because
    /// its slot is half moved; `whole` is the request's index in the shard's table of such requests. The
    /// address keeps the sequence number of the whole request.
    #[must_use]
    pub fn piece(self, shard: ShardId, whole: u32, part: u16) -> Self {
        Self { shard, part, client: PIECE | whole, ..self }
    }

    /// Returns the index, in the shard's table of requests split into one per key, of the request of which
    /// this is a piece; None for any other address.
    #[inline]
    pub fn piece_of(self) -> Option<u32> {
        (self.client & (PIECE | FLIGHT) == PIECE).then_some(self.client & !PIECE)
    }

    /// Returns the reply address of a command that weir sends right before a fetch (shared read of a hot key),
    /// such as `PTTL`.
    #[must_use]
    pub fn ahead(self) -> Self {
        Self { part: 1, ..self }
    }

    /// True for the reply to a command that was sent before a fetch (shared read of a hot key) rather than to
    /// the fetch itself. Meaningful only for addresses of fetches.
    pub fn is_ahead(self) -> bool {
        self.part == 1
    }

    /// Returns the client's id on its shard. Meaningful only for the address of a client's reply.
    #[inline]
    pub fn client_id(self) -> ClientId {
        ClientId { index: self.client, generation: self.generation }
    }

    /// Returns a number that identifies the client's connection among all that have requests in flight, on
    /// any shard.
    pub fn connection(self) -> u64 {
        u64::from(self.shard.0) << 48 | u64::from(self.client) << 16 | u64::from(self.generation as u16)
    }
}

/// Bit of [`ReplyTo::client`] that marks the address of a flight (fetch of a hot key). No table of clients
/// has so many places.
const FLIGHT: u32 = 1 << 31;
/// Bit of [`ReplyTo::client`] that marks the address of a piece (one key's part of a request that was split
/// by key).
const PIECE: u32 = 1 << 30;

/// Id of a flight: one fetch of a hot key whose reply several reads wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlightId {
    /// Index of the flight in its shard's table.
    pub index: u32,
    /// Generation of the flight's place in the table, which distinguishes the flight from others in the same
    /// place.
    pub generation: u32,
}

/// Id of a private link: a connection to a store that one client has to itself for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateId {
    /// Index of the link (unshared connection to a store) in its shard's table.
    pub place: u32,
    /// Generation of the place of the link (unshared connection to a store) in the table, which distinguishes
    /// the link from earlier ones in the same place.
    pub generation: u32,
}

/// A `SELECT` in a transaction, carried out by the backend: if it succeeds, the client's later requests use
/// the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Index of the request's reply among the elements of the backend's reply to `EXEC`.
    pub element: u32,
    /// The database that the `SELECT` names.
    pub database: Database,
}

/// Which keys a request reads or writes, as far as the cache of hot keys needs to know. 4 bytes;
/// [`Touches::of`] unpacks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touches {
    /// Offset of the key in the bytes of the request; without a key, 0 to 2 for nothing, several keys or
    /// unknown keys. The highest bit says that the sender wants to be told when the request is put on its
    /// connection.
    start: u16,
    /// Length of the key in bytes; the highest bit says whether the reply may be kept.
    length: u16,
}

/// Which keys a request reads or writes, unpacked from [`Touches`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched<'a> {
    /// The cache of hot keys is not concerned: the request reads or writes no key, or only keys that can never be hot,
    /// or is a read that bypasses the cache.
    Nothing,
    /// A single key, whose home core (the core through which a key's requests pass) is the one that sends the
    /// request.
    Key {
        /// The bytes of the key, as the client sent them.
        key: &'a [u8],
        /// True if the reply depends on the key's value alone, so that it may be kept.
        may_be_kept: bool,
    },
    /// Several keys, for all of which the sending core is the home core (the core through which a key's
    /// requests pass).
    Keys,
    /// Keys that may have any core as their home core (the core through which a key's requests pass). Only
    /// parsing the request finds them, and sometimes not even that.
    Unknown,
}

impl Touches {
    /// A request that does not concern the cache of hot keys (a read, for instance, that bypasses it).
    pub const NOTHING: Self = Self { start: 0, length: 0 };
    /// A request for several keys with one home core (the core through which a key's requests pass).
    pub const KEYS: Self = Self { start: 1, length: 0 };
    /// A request for keys with any home core (the core through which a key's requests pass), or for unknown
    /// keys.
    pub const UNKNOWN: Self = Self { start: 2, length: 0 };

    /// Bit of `length` which says that the reply may be kept in memory.
    const MAY_BE_KEPT: u16 = 1 << 15;
    /// Bit of `start` that marks a request whose sender wants to be told when the request is put on its
    /// backend connection. An offset needs no more than 15 bits.
    const REPORTED: u16 = 1 << 15;

    /// Packs the only key of a request. A key that is empty, or whose offset or length is 32,768 bytes or more, counts
    /// as no key, and so never becomes hot.
    #[inline]
    pub fn key(command: &Command, place: Argument) -> Self {
        // The offset and the length both fit in 15 bits if their bitwise or does.
        if (place.start | place.length) >= u32::from(Self::MAY_BE_KEPT) {
            return Self::NOTHING;
        }
        let may_be_kept = u16::from(command.flags.contains(Flags::CACHEABLE)) << Self::MAY_BE_KEPT.ilog2();
        Self { start: place.start as u16, length: place.length as u16 | may_be_kept }
    }

    /// Marks a request whose sender wants a note of the time (`Note::Sent`) when the request is put on its
    /// backend connection.
    #[must_use]
    pub const fn reported(self) -> Self {
        Self { start: self.start | Self::REPORTED, ..self }
    }

    /// True if the request's sender wants a note of the time (`Note::Sent`) when the request is put on its
    /// backend connection.
    #[inline]
    pub const fn is_reported(self) -> bool {
        self.start & Self::REPORTED != 0
    }

    /// Unpacks which keys the request reads or writes, given the bytes of the request (`frame`).
    pub fn of(self, frame: &[u8]) -> Touched<'_> {
        let length = usize::from(self.length & !Self::MAY_BE_KEPT);
        let this = Self { start: self.start & !Self::REPORTED, ..self };
        match (length, this) {
            (_, Self::KEYS) => Touched::Keys,
            (_, Self::UNKNOWN) => Touched::Unknown,
            // An empty key does not look like several or unknown keys, because no key of a request starts at
            // offset 1 or 2.
            (0, _) => Touched::Nothing,
            _ => Touched::Key {
                key: &frame[usize::from(this.start)..][..length],
                may_be_kept: this.length & Self::MAY_BE_KEPT != 0,
            },
        }
    }

    /// True for a read of one key whose reply may be kept in memory.
    #[inline]
    pub fn may_be_kept(self) -> bool {
        self.length & Self::MAY_BE_KEPT != 0
    }

    /// True if the request is about exactly one key that can be hot.
    #[inline]
    pub fn is_key(self) -> bool {
        self.length != 0
    }
}

/// Group of connections to a backend on which a request is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Track {
    /// Connections for requests that take little time.
    #[default]
    Usual,
    /// Connections for requests that cost much, so that cheap requests do not wait behind them.
    Heavy,
    /// Connections for reads that a replica of a cluster may answer as well as the primary: the key's home
    /// core (the core through which a key's requests pass) chooses.
    Replica,
}

impl Track {
    /// Returns this track (set of connections) if it is the heavy one or for replicas, else `usual`.
    #[inline]
    #[must_use]
    pub fn or(self, usual: Self) -> Self {
        if self == Self::Usual { usual } else { self }
    }
}

/// Slot number of requests whose backend is not chosen by a slot. A number rather than a variant of an enum
/// beside the slot: with an enum, [`Route`] has 10 bytes in place of 8, and [`Envelope`] 56 in place of 48.
pub const NO_SLOT: u16 = u16::MAX;
/// Slot number of requests without a key that are meant for primaries of a cluster, such as `DBSIZE` and `SCAN`. A node
/// that has become a replica would answer them too, so weir sends `ROLE` before them, to notice.
pub const PRIMARY: u16 = NO_SLOT - 1;
const _: () = assert!(SLOTS < PRIMARY);

/// Destination of a request: slot, backend, database, RESP version and group of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Hash slot of the key; `NO_SLOT` or `PRIMARY` if no slot chooses the backend.
    pub slot: u16,
    /// The backend that the request is for: the one that stores the slot, if a slot chooses it.
    pub backend: BackendId,
    /// RESP version of the reply that the client expects. The request is sent on a connection to the backend that uses
    /// this version.
    pub protocol: Protocol,
    /// Group of connections to the backend on which the request is sent.
    pub track: Track,
    /// Database of the backend in which the request is carried out.
    pub database: Database,
}

/// The tenant that a request comes from, by its id and the version of the quotas to which the id belongs.
/// `Option<Asker>` takes 4 bytes, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    tenant_plus_one: NonZeroU16,
    version: u16,
}

impl Asker {
    /// Creates the asker from a tenant's id and the lower 16 bits of the version of its quotas.
    #[inline]
    pub const fn new(tenant: TenantId, version: u16) -> Self {
        Self { tenant_plus_one: NonZeroU16::MIN.saturating_add(tenant.0), version }
    }

    /// Returns the id of the tenant.
    #[inline]
    pub const fn tenant(self) -> TenantId {
        TenantId(self.tenant_plus_one.get() - 1)
    }

    /// Returns the lower 16 bits of the version of the quotas.
    #[inline]
    pub const fn version(self) -> u16 {
        self.version
    }
}

/// Nature of a request, as far as its command tells: the class by which it is priced, and whether it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nature {
    /// Class of the command, which says what its price grows with and how its response times are grouped.
    pub class: Class,
    /// Whether the command reads, writes, or does neither, and whether it hides its work: neither the request nor its
    /// reply shows how much work it is.
    rest: Rest,
}

/// Effect of a request, and whether it hides its work (neither the request nor its reply shows how much it is). One
/// byte, as each request in flight has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Read,
    Write,
    Neither,
    HiddenRead,
    HiddenWrite,
    HiddenNeither,
    Transaction,
    HiddenTransaction,
}

impl Nature {
    /// Creates the nature of requests whose command has this class and effect. `hides_work` is true if neither the
    /// request nor its reply shows how much work it is.
    #[inline]
    pub const fn new(class: Class, effect: Effect, hides_work: bool) -> Self {
        let rest = match (effect, hides_work) {
            (Effect::Read, false) => Rest::Read,
            (Effect::Write, false) => Rest::Write,
            (Effect::None, false) => Rest::Neither,
            (Effect::Read, true) => Rest::HiddenRead,
            (Effect::Write, true) => Rest::HiddenWrite,
            (Effect::None, true) => Rest::HiddenNeither,
        };
        Self { class, rest }
    }

    /// Returns whether the command reads, writes, or does neither.
    #[inline]
    pub const fn effect(self) -> Effect {
        match self.rest {
            Rest::Read | Rest::HiddenRead => Effect::Read,
            Rest::Write | Rest::HiddenWrite | Rest::Transaction | Rest::HiddenTransaction => Effect::Write,
            Rest::Neither | Rest::HiddenNeither => Effect::None,
        }
    }

    /// True if neither the request nor its reply shows how much work it is, so that the time counts for which
    /// it keeps its store busy.
    #[inline]
    pub const fn hides_work(self) -> bool {
        matches!(
            self.rest,
            Rest::HiddenRead | Rest::HiddenWrite | Rest::HiddenNeither | Rest::HiddenTransaction
        )
    }

    /// True for a transaction, as opposed to a single request of the same class.
    pub const fn is_transaction(self) -> bool {
        matches!(self.rest, Rest::Transaction | Rest::HiddenTransaction)
    }

    /// Returns the number of elements by which a request is priced, from its reply, which has this `kind` and so many
    /// elements (`rows`) and took `took_micros` microseconds. `end` is the reply's last part. A write of many elements
    /// (`SUNIONSTORE`, `LREM`) replies with the number of elements that it has stored or removed; this number counts,
    /// but no more than a store can look at in that time.
    #[inline]
    pub fn rows_priced(self, (kind, rows): (u8, u64), end: &[u8], took_micros: u64) -> u64 {
        let reports = kind == b':' && self.class == Class::Range && self.effect() == Effect::Write;
        let reported = if reports { integer(end).and_then(|count| u64::try_from(count).ok()) } else { None };
        reported.map_or(rows, |count| looked_at(count, took_micros))
    }

    /// Returns the nature of a transaction. `hides_work` is true if one of its requests does not show how much work
    /// it is.
    pub const fn of_transaction(hides_work: bool) -> Self {
        let rest = if hides_work { Rest::HiddenTransaction } else { Rest::Transaction };
        Self { class: Self::TRANSACTION_CLASS, rest }
    }

    /// The class by which every transaction is priced, whatever its requests are.
    pub const TRANSACTION_CLASS: Class = Class::Multi;

    /// Returns which keys count as touched by a request that is sent from its client's core, not from the home of its
    /// keys (the core through which a key's requests pass): none for a read, which bypasses the kept replies (those
    /// held in memory) of hot keys; unknown ones for any other request, because most of them may change hot keys.
    pub const fn touches(self) -> Touches {
        match self.effect() {
            Effect::Read => Touches::NOTHING,
            Effect::Write | Effect::None => Touches::UNKNOWN,
        }
    }

    /// Returns the nature of a command. A command that weir does not know counts as a script that writes,
    /// because it may do anything.
    #[inline]
    pub fn of(command: Option<&Command>) -> Self {
        let unknown = Self::new(Class::Script, Effect::Write, true);
        command.map_or(unknown, |command| Self::new(command.class, command.effect, command.is_work_hidden()))
    }
}

/// The record that goes with the bytes of a request to its backend. At most 48 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Destination of the reply: the shard, the client and the sequence number of the request.
    pub reply_to: ReplyTo,
    /// Slot, backend, database and connections that the request is sent to.
    pub route: Route,
    /// Tenant that the request comes from; None if it is unknown.
    pub asker: Option<Asker>,
    /// Class of commands by which the request is priced, and whether it writes.
    pub nature: Nature,
    /// Keys that the request reads or writes.
    pub touches: Touches,
    /// Tier of the request: how important it is.
    pub tier: Tier,
    /// Price taken from the buckets of quotas for the request, in about thousandths of a request unit.
    pub weight: u32,
    /// Time after which the reply is useless; `Timestamp::MAX` if the request has no deadline.
    pub deadline: Timestamp,
    /// Treatment of the request if it is in flight at its deadline.
    pub overdue: Overdue,
}

/// Treatment of a request that is in flight at its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overdue {
    /// At the deadline weir answers the client with an error, and drops the backend's later reply.
    #[default]
    Answered,
    /// The client gets the backend's reply even after the deadline, because the client, such as another weir,
    /// enforces deadlines itself.
    Awaited,
}

/// Tenant id of requests whose tenant is unknown ([`Envelope::asker`] is None), which no tenant has.
pub const NOBODY: TenantId = TenantId(u16::MAX);

/// Data for the refusal of a request: the address of its reply, its backend and its tier (importance).
pub type Addressee = (ReplyTo, BackendId, Tier);

impl Envelope {
    /// Returns where to send a refusal of this request, with its backend and tier (importance).
    pub fn addressee(&self) -> Addressee {
        (self.reply_to, self.route.backend, self.tier)
    }

    /// Returns the tenant as which the request waits in queues, where tenants take turns; `NOBODY` if it is
    /// unknown.
    #[inline]
    pub fn tenant(&self) -> TenantId {
        self.asker.map_or(NOBODY, Asker::tenant)
    }
}

// The size matters because a batch has an envelope for each of its requests.
const _: () = assert!(size_of::<Envelope>() <= 48);
