//! What travels with the bytes of a request: from the core that decoded it, to the core that its key is at home on, to the
//! connection that carries it.

use crate::protocol::Protocol;
use crate::protocol::command::{Class, Command, Effect};
use crate::values::{BackendId, ClientId, ShardId, TenantId, Tier, Timestamp};

/// Where the reply to a request belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Which of the connections to a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Track {
    /// Those for requests that are soon over.
    #[default]
    Usual,
    /// Those for requests that cost much.
    Heavy,
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
const NOBODY: TenantId = TenantId(u16::MAX);

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
