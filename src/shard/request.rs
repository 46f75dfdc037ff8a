//! What travels with the bytes of a request: from the core that decoded it, to the core that its key is at home on, to the
//! connection that carries it.

use crate::protocol::Argument;
use crate::protocol::Protocol;
use crate::protocol::command::{Class, Command, Effect, Flags};
use crate::values::{BackendId, ClientId, ShardId, TenantId, Tier, Timestamp};

/// Where the reply to a request belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplyTo {
    /// The shard that accepted the client.
    pub shard: ShardId,
    /// Which part of a split request.
    pub part: u16,
    /// The client's place in that shard's table.
    pub client: u32,
    /// Tells the client from later ones in the same place.
    pub generation: u32,
    /// The request's number on its connection.
    pub sequence: u32,
}

impl ReplyTo {
    /// To a client of a shard, for a request in one piece.
    #[inline]
    pub fn new(shard: ShardId, client: ClientId, sequence: u32) -> Self {
        Self { shard, part: 0, client: client.index, generation: client.generation, sequence }
    }

    /// To the requests that wait for what one of them has sent for.
    pub fn flight(shard: ShardId, flight: FlightId) -> Self {
        Self { shard, part: 0, client: FLIGHT | flight.index, generation: flight.generation, sequence: 0 }
    }

    /// Which those are; none if it is a client's.
    #[inline]
    pub fn flight_id(self) -> Option<FlightId> {
        let is_flight = self.client & FLIGHT != 0;
        is_flight.then_some(FlightId { index: self.client & !FLIGHT, generation: self.generation })
    }

    /// To what puts a request of many pieces together, for one of those. It keeps the number of the whole.
    #[must_use]
    pub fn piece(self, shard: ShardId, whole: u32, part: u16) -> Self {
        Self { shard, part, client: PIECE | whole, ..self }
    }

    /// Of which request it is a piece, if it is one.
    #[inline]
    pub fn piece_of(self) -> Option<u32> {
        (self.client & (PIECE | FLIGHT) == PIECE).then_some(self.client & !PIECE)
    }

    /// The same reply, for what was asked before the request itself.
    #[must_use]
    pub fn ahead(self) -> Self {
        Self { part: 1, ..self }
    }

    /// Is it for that?
    pub fn is_ahead(self) -> bool {
        self.part == 1
    }

    /// Whose it is, on its shard.
    #[inline]
    pub fn client_id(self) -> ClientId {
        ClientId { index: self.client, generation: self.generation }
    }

    /// Tells its connection from all others that have requests under way, on whichever shard.
    pub fn connection(self) -> u64 {
        u64::from(self.shard.0) << 48 | u64::from(self.client) << 16 | u64::from(self.generation as u16)
    }
}

/// No table of clients has so many places.
const FLIGHT: u32 = 1 << 31;
const PIECE: u32 = 1 << 30;

/// A read that several requests wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlightId {
    /// Its place on its shard.
    pub index: u32,
    /// Tells it from others in the same place.
    pub generation: u32,
}

/// Which keys a request is about, as far as that matters to whoever keeps what is read of them. Four bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touches {
    /// Where its key stands in it; or, without a key, which of the others it is.
    start: u16,
    /// How long the key is, and in the highest bit whether the reply may be kept.
    length: u16,
}

/// The same, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched<'a> {
    /// None, or none that is ever hot.
    Nothing,
    /// One, which is at home where the request is sent from.
    Key {
        /// The key.
        key: &'a [u8],
        /// The reply says what the key holds, and nothing else.
        may_be_kept: bool,
    },
    /// Several, all at home there.
    Keys,
    /// Keys of any core: only the request says which, and perhaps not even that.
    Unknown,
}

impl Touches {
    /// No key.
    pub const NOTHING: Self = Self { start: 0, length: 0 };
    /// Several keys of one core.
    pub const KEYS: Self = Self { start: 1, length: 0 };
    /// Keys of any core.
    pub const UNKNOWN: Self = Self { start: 2, length: 0 };

    const MAY_BE_KEPT: u16 = 1 << 15;
    /// In `start`, which needs no more than 15 bits.
    const REPORTED: u16 = 1 << 15;

    /// One key. Those that are too long to be hot count as none, and so does the empty one.
    #[inline]
    pub fn key(command: &Command, place: Argument) -> Self {
        // Each fits, if both together do.
        if (place.start | place.length) >= u32::from(Self::MAY_BE_KEPT) {
            return Self::NOTHING;
        }
        let may_be_kept = u16::from(command.flags.contains(Flags::CACHEABLE)) << Self::MAY_BE_KEPT.ilog2();
        Self { start: place.start as u16, length: place.length as u16 | may_be_kept }
    }

    /// The same keys, of a request whose sender wants to be told when it is on its connection (`Note::Sent`).
    #[must_use]
    pub const fn reported(self) -> Self {
        Self { start: self.start | Self::REPORTED, ..self }
    }

    /// True if the sender wants to be told.
    #[inline]
    pub const fn is_reported(self) -> bool {
        self.start & Self::REPORTED != 0
    }

    /// Of a message with this frame.
    pub fn of(self, frame: &[u8]) -> Touched<'_> {
        let length = usize::from(self.length & !Self::MAY_BE_KEPT);
        let this = Self { start: self.start & !Self::REPORTED, ..self };
        match (length, this) {
            (_, Self::KEYS) => Touched::Keys,
            (_, Self::UNKNOWN) => Touched::Unknown,
            // No key of a request stands so far in front that the empty one looks like one of those.
            (0, _) => Touched::Nothing,
            _ => Touched::Key {
                key: &frame[usize::from(this.start)..][..length],
                may_be_kept: this.length & Self::MAY_BE_KEPT != 0,
            },
        }
    }

    /// Is it a read of one key whose reply may be kept?
    #[inline]
    pub fn may_be_kept(self) -> bool {
        self.length & Self::MAY_BE_KEPT != 0
    }

    /// Is it about one key?
    #[inline]
    pub fn is_key(self) -> bool {
        self.length != 0
    }
}

/// Which of the connections to a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Track {
    /// Those for requests that are soon over.
    #[default]
    Usual,
    /// Those for requests that cost much.
    Heavy,
    /// Those for reads that a replica of a cluster may answer, or the primary: the home of the key decides.
    Replica,
}

impl Track {
    /// The track of a request, where what does not cost much takes this one.
    #[inline]
    #[must_use]
    pub fn or(self, usual: Self) -> Self {
        if self == Self::Usual { usual } else { self }
    }
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The key's slot.
    pub slot: u16,
    /// The backend that stores the slot.
    pub backend: BackendId,
    /// The dialect that the client wants its reply in.
    pub protocol: Protocol,
    /// Which of the connections there.
    pub track: Track,
}

/// Who asks. An id of a tenant means something only together with the version of the quotas that it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The tenant.
    pub tenant: TenantId,
    /// The last digits of the version.
    pub version: u16,
}

/// What a request is, as far as its command says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nature {
    /// What its cost grows with.
    pub class: Class,
    /// Does it read or write?
    pub effect: Effect,
}

impl Nature {
    /// A transaction: nobody looks into it.
    pub const TRANSACTION: Self = Self { class: Class::Multi, effect: Effect::Write };

    /// Which keys it is about if it goes alone, from the core that has its client: a read passes what is kept of hot keys by, anything
    /// else may change some of them.
    pub const fn touches(self) -> Touches {
        match self.effect {
            Effect::Read => Touches::NOTHING,
            Effect::Write | Effect::None => Touches::UNKNOWN,
        }
    }

    /// That of a command. One that weir does not know may do anything.
    #[inline]
    pub fn of(command: Option<&Command>) -> Self {
        command.map_or(Self { class: Class::Script, effect: Effect::Write }, |command| Self {
            class: command.class,
            effect: command.effect,
        })
    }
}

/// All of it, in one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Where the reply belongs.
    pub reply_to: ReplyTo,
    /// Where the request goes.
    pub route: Route,
    /// Who asks; nobody where nobody is known.
    pub asker: Option<Asker>,
    /// What it is.
    pub nature: Nature,
    /// Which keys it is about.
    pub touches: Touches,
    /// How much it matters.
    pub tier: Tier,
    /// What was taken for it, in about thousandths of a request unit.
    pub weight: u32,
    /// No use in answering later; the end of time where it always is.
    pub deadline: Timestamp,
    /// What becomes of it if it is in flight by then.
    pub overdue: Overdue,
}

/// What becomes of a request that is in flight at its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overdue {
    /// It is answered, and what its backend does of it yet nobody hears of.
    #[default]
    Answered,
    /// Its reply is waited for: whoever asks keeps to deadlines itself, as another weir does.
    Awaited,
}

/// Who asks where nobody is known.
pub const NOBODY: TenantId = TenantId(u16::MAX);

/// Who is told that a request goes no further, which backend it was for, and how much it mattered.
pub type Addressee = (ReplyTo, BackendId, Tier);

impl Envelope {
    /// Who is told if it goes no further.
    pub fn addressee(&self) -> Addressee {
        (self.reply_to, self.route.backend, self.tier)
    }

    /// Whose turn it takes among others.
    #[inline]
    pub fn tenant(&self) -> TenantId {
        self.asker.map_or(NOBODY, |asker| asker.tenant)
    }
}

// Each request in a batch has one beside it.
const _: () = assert!(size_of::<Envelope>() <= 48);
