//! Envelope of a request: everything that travels with its bytes from the core that decoded it, to the home
//! core of its key, to the backend connection.

use std::num::NonZeroU16;

use crate::protocol::Argument;
use crate::protocol::Protocol;
use crate::protocol::command::{Class, Command, Effect, Flags};
use crate::values::limits::SLOTS;
use crate::values::{BackendId, ClientId, Database, ShardId, TenantId, Tier, Timestamp};

/// Address of a reply: the request that it belongs to, on which client connection of which shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplyTo {
    /// The shard that accepted the client.
    pub shard: ShardId,
    /// Index of the part of a split request; 0 for a request in one piece. For a fetch, 1 marks the reply to
    /// its prelude ([`Self::ahead`]).
    pub part: u16,
    /// The client's place in that shard's table. Two high bits mark the addresses of flights and of pieces
    /// instead.
    pub client: u32,
    /// Generation of the place, which tells the client from later ones in the same place.
    pub generation: u32,
    /// Number of the request on its connection.
    pub sequence: u32,
}

impl ReplyTo {
    /// Returns the address of a client's request that is in one piece.
    #[inline]
    pub fn new(shard: ShardId, client: ClientId, sequence: u32) -> Self {
        Self { shard, part: 0, client: client.index, generation: client.generation, sequence }
    }

    /// Returns the address of a flight: one fetch whose reply several requests wait for.
    pub fn flight(shard: ShardId, flight: FlightId) -> Self {
        Self { shard, part: 0, client: FLIGHT | flight.index, generation: flight.generation, sequence: 0 }
    }

    /// Returns the flight that the reply is for; none if it is for a client or for a piece.
    #[inline]
    pub fn flight_id(self) -> Option<FlightId> {
        let is_flight = self.client & FLIGHT != 0;
        is_flight.then_some(FlightId { index: self.client & !FLIGHT, generation: self.generation })
    }

    /// Returns the address of one piece of a request that was taken apart (by key, because its slot is half
    /// moved). It keeps the number of the whole request.
    #[must_use]
    pub fn piece(self, shard: ShardId, whole: u32, part: u16) -> Self {
        Self { shard, part, client: PIECE | whole, ..self }
    }

    /// Returns the index of the request whose piece this is; none for any other address.
    #[inline]
    pub fn piece_of(self) -> Option<u32> {
        (self.client & (PIECE | FLIGHT) == PIECE).then_some(self.client & !PIECE)
    }

    /// Returns the address of the reply to a prelude: a request that weir sends right before a fetch (for the
    /// key's expiry).
    #[must_use]
    pub fn ahead(self) -> Self {
        Self { part: 1, ..self }
    }

    /// True for the reply to a prelude rather than to the fetch itself. Of meaning only for flights.
    pub fn is_ahead(self) -> bool {
        self.part == 1
    }

    /// Returns the client's id on its shard.
    #[inline]
    pub fn client_id(self) -> ClientId {
        ClientId { index: self.client, generation: self.generation }
    }

    /// Returns a number that identifies the client's connection among all that have requests under way, on
    /// any shard.
    pub fn connection(self) -> u64 {
        u64::from(self.shard.0) << 48 | u64::from(self.client) << 16 | u64::from(self.generation as u16)
    }
}

/// Bit of the client's place that marks a flight. No table of clients has so many places.
const FLIGHT: u32 = 1 << 31;
/// Bit of the client's place that marks a piece of a request.
const PIECE: u32 = 1 << 30;

/// Id of a flight: one fetch whose reply several reads wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlightId {
    /// Index of the flight in its shard's table.
    pub index: u32,
    /// Generation of the place, which tells the flight from others in the same place.
    pub generation: u32,
}

/// Id of a private link: a connection to a store that one client has to itself for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateId {
    /// Index of the link in its shard's table.
    pub place: u32,
    /// Generation of the place, which tells the link from earlier ones in the same place.
    pub generation: u32,
}

/// A `SELECT` in a transaction, carried out by the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Index of the request's reply among the elements of the backend's reply to `EXEC`.
    pub element: u32,
    /// The database that the request names.
    pub database: Database,
}

/// Keys that a request is about, as far as the cache of hot keys needs to know. 4 bytes; [`Touches::of`]
/// unpacks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touches {
    /// Offset of the key in the request; without a key, 0 to 2 for nothing, several keys or unknown ones. The
    /// highest bit is [`Touches::REPORTED`].
    start: u16,
    /// Length of the key in bytes; the highest bit says whether the reply may be kept.
    length: u16,
}

/// Keys that a request is about, unpacked from [`Touches`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched<'a> {
    /// The request is about no key, or about none that can ever be hot.
    Nothing,
    /// A single key, whose home is the core that sends the request.
    Key {
        /// The bytes of the key, as the client sent them.
        key: &'a [u8],
        /// True if the reply says what the key holds and nothing else, so that it may be kept.
        may_be_kept: bool,
    },
    /// Several keys, all with the sending core as their home.
    Keys,
    /// Keys with any core as their home: they are found only by parsing the request, and perhaps not even so.
    Unknown,
}

impl Touches {
    /// A request about no key.
    pub const NOTHING: Self = Self { start: 0, length: 0 };
    /// A request about several keys with one home.
    pub const KEYS: Self = Self { start: 1, length: 0 };
    /// A request about keys with any home, or unknown ones.
    pub const UNKNOWN: Self = Self { start: 2, length: 0 };

    /// Bit of `length` that says that the reply may be kept.
    const MAY_BE_KEPT: u16 = 1 << 15;
    /// Bit of `start` that marks a request for [`Self::reported`]. An offset needs no more than 15 bits.
    const REPORTED: u16 = 1 << 15;

    /// Packs the only key of a request. A key that is empty, or whose offset or length is 32,768 bytes or
    /// more, counts as none, because it can never be hot.
    #[inline]
    pub fn key(command: &Command, place: Argument) -> Self {
        // The offset and the length both fit in 15 bits if their bitwise or does.
        if (place.start | place.length) >= u32::from(Self::MAY_BE_KEPT) {
            return Self::NOTHING;
        }
        let may_be_kept = u16::from(command.flags.contains(Flags::CACHEABLE)) << Self::MAY_BE_KEPT.ilog2();
        Self { start: place.start as u16, length: place.length as u16 | may_be_kept }
    }

    /// Marks the request of a sender that wants a `Note::Sent` when the request is on its backend connection.
    #[must_use]
    pub const fn reported(self) -> Self {
        Self { start: self.start | Self::REPORTED, ..self }
    }

    /// True if the sender wants a `Note::Sent`.
    #[inline]
    pub const fn is_reported(self) -> bool {
        self.start & Self::REPORTED != 0
    }

    /// Unpacks the keys, given the bytes of the request.
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

/// Group of connections to a backend that a request travels over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Track {
    /// Connections for requests that take little time.
    #[default]
    Usual,
    /// Connections for requests that cost much, so that cheap requests do not wait behind them.
    Heavy,
    /// Connections for reads that a replica of a cluster may answer as well as the primary: the key's home
    /// core chooses.
    Replica,
}

impl Track {
    /// Returns this track if it is heavy or for replicas, else `usual`.
    #[inline]
    #[must_use]
    pub fn or(self, usual: Self) -> Self {
        if self == Self::Usual { usual } else { self }
    }
}

/// Slot number of requests that go to a backend chosen for another reason than a slot. A number rather than a
/// variant of an enum beside the slot: with an enum, [`Route`] has 10 bytes in place of 8, and [`Envelope`] 56
/// in place of 48.
pub const NO_SLOT: u16 = u16::MAX;
/// Slot number of requests that must go to a primary. A replica would answer them too, so `ROLE` is asked
/// first.
pub const PRIMARY: u16 = NO_SLOT - 1;
const _: () = assert!(SLOTS < PRIMARY);

/// Destination of a request: slot, backend, database and kind of connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Hash slot of the key.
    pub slot: u16,
    /// The backend that stores the slot.
    pub backend: BackendId,
    /// RESP version that the client wants its reply in.
    pub protocol: Protocol,
    /// Group of connections to the backend that the request travels over.
    pub track: Track,
    /// Database of the backend that the request is about.
    pub database: Database,
}

/// Tenant that a request comes from. A tenant's id has a meaning only together with the version of the quotas
/// that it is from. Takes 4 bytes, also where there may be none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    tenant_plus_one: NonZeroU16,
    version: u16,
}

impl Asker {
    /// Creates the asker of a tenant's id and the lower 16 bits of the version of its quotas.
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

/// Nature of a request, as far as its command tells: class of cost, and whether it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nature {
    /// Class of the command, by what its cost grows with.
    pub class: Class,
    /// Whether the command reads, writes, or does neither.
    pub effect: Effect,
}

impl Nature {
    /// The nature of every transaction: its requests are not looked at one by one.
    pub const TRANSACTION: Self = Self { class: Class::Multi, effect: Effect::Write };

    /// Returns the keys of a request that leaves from the core that has its client instead of the key's home:
    /// none for a read, which bypasses the kept replies of hot keys; unknown ones for anything else, which
    /// may change hot keys.
    pub const fn touches(self) -> Touches {
        match self.effect {
            Effect::Read => Touches::NOTHING,
            Effect::Write | Effect::None => Touches::UNKNOWN,
        }
    }

    /// Returns the nature of a command. A command that weir does not know counts as a script that writes,
    /// because it may do anything.
    #[inline]
    pub fn of(command: Option<&Command>) -> Self {
        command.map_or(Self { class: Class::Script, effect: Effect::Write }, |command| Self {
            class: command.class,
            effect: command.effect,
        })
    }
}

/// Everything that travels with the bytes of a request. At most 48 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Destination of the reply: the shard, the client and the number of the request on its connection.
    pub reply_to: ReplyTo,
    /// Slot, backend, database and connections that the request goes to.
    pub route: Route,
    /// Tenant that the request comes from; none if it is unknown.
    pub asker: Option<Asker>,
    /// Class of cost, and whether the request writes.
    pub nature: Nature,
    /// Keys that the request is about.
    pub touches: Touches,
    /// Tier of the request: how important it is.
    pub tier: Tier,
    /// Amount taken from the buckets for the request, in about thousandths of a request unit.
    pub weight: u32,
    /// Time after which an answer is of no use; the end of time if the request has no deadline.
    pub deadline: Timestamp,
    /// Treatment of the request if it is in flight at its deadline.
    pub overdue: Overdue,
}

/// Treatment of a request that is in flight at its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overdue {
    /// The client is answered at the deadline, and the backend's later reply is dropped.
    #[default]
    Answered,
    /// The backend's reply is awaited: the sender, such as another weir, keeps to deadlines itself.
    Awaited,
}

/// Tenant id of requests whose tenant is unknown.
pub const NOBODY: TenantId = TenantId(u16::MAX);

/// Data for the refusal of a request: the address of its reply, its backend and its tier.
pub type Addressee = (ReplyTo, BackendId, Tier);

impl Envelope {
    /// Returns where to send a refusal of this request, with its backend and tier.
    pub fn addressee(&self) -> Addressee {
        (self.reply_to, self.route.backend, self.tier)
    }

    /// Returns the tenant whose turn in the queue the request takes; `NOBODY` if it is unknown.
    #[inline]
    pub fn tenant(&self) -> TenantId {
        self.asker.map_or(NOBODY, Asker::tenant)
    }
}

// The size matters because a batch has an envelope for each of its requests.
const _: () = assert!(size_of::<Envelope>() <= 48);
