//! Private links: connections to stores that one client has to itself for a while, because the store keeps
//! state for the connection: a blocking command waits, keys are watched or tracked, channels are subscribed
//! to. The core itself has two kinds of such links: trackers, on which stores report changes of hot keys, and
//! feeds, over which messages of shared channels come.
//!
//! ```text
//!   lend --> Opening -- connected --> Greeting -- answered --> Open -- given back --> Cleaning --> idle
//!                                                               ^                                   |
//!                                                               +----------- lent again ------------+
//!
//!   Opening, Greeting, Open -- lost, or the client leaves --> closed
//!   idle -- unused for a minute --> closed
//! ```
//!
//! A client that disconnects while it waits in a blocking command leaves its link behind: the store is asked,
//! over another link, to end the command, and the reply shows whether it had popped an element for nobody by
//! then. Any other request whose client leaves, or whose deadline passes, leaves its link behind as well: the reply
//! is only measured, so that the request is charged what it has cost.
//!
//! Links are bounded per core, and per tenant to a part of that, so that no tenant can take all of them. A
//! link that is given back is lent again only when nothing is in flight on it and the store has ended all that it
//! kept for the link: it has replied `OK` to `UNWATCH` or `CLIENT TRACKING OFF`, or has acknowledged the end of all
//! subscriptions. A link over which the store has sent anything else is closed instead (a spoilt one). Windows,
//! queues, the breaker and the latency ratio know nothing of these links: a command that waits for an hour says
//! nothing about its store.
//!
//! | what | file |
//! |---|---|
//! | one link, and its replies in order | `link.rs` |
//! | the handling of replies and messages, and the rest of a link until it is lent again | `receive.rs` |
//! | elements that were popped for a client that had left | `orphans.rs` |
//! | blocking commands that go on in another process | `withdrawal.rs` |
//! | the words of a blocking command | `call.rs` |

pub mod call;
mod link;
mod orphans;
mod receive;
mod withdrawal;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use link::{Expected, Link, State, Subject};
pub use orphans::{Orphans, Takes};
pub use withdrawal::Withholding;

use super::admission::Payer;
use super::counters::Counter;
use super::env::Env;
use super::message::Message;
use super::refusal::{UNEXPECTED_REPLY, oversized};
use super::request::{Nature, PrivateId, ReplyTo, Selected};
use super::settings::ShardSettings;
use super::versions::{Cell, InnerRead};
use crate::protocol::command::Effect;
use crate::protocol::{Arguments, Protocol, Segment, encode};
use crate::values::limits::{COPY_BYTES_MAX, LINK_OUTPUT_BYTES_MAX, TENANT_PART};
use crate::values::time::Now;
use crate::values::{
    Action, BackendId, ClientId, ConnectionId, Database, Loss, MicroUnits, Owner, TenantId, Timestamp,
};

/// The time for which a private link (a connection to a store that one client has to itself) stays open while no
/// client has it; after that it is closed.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Divisor of a core's limit of private links (unshared connections to stores): a spare link is opened in
/// advance only while fewer links are open than a sixteenth of the limit.
const SPARE_PART: usize = 16;
/// Maximum number of private links (unshared connections to stores) beyond a core's limit that are opened for
/// requests about running scripts, such as `SCRIPT KILL`. Further such requests go over shared connections,
/// where they may wait behind the script.
const INTERRUPTS_MAX: usize = 8;

/// A client's request in flight on a private link (connection to a store that one client has to itself).
#[derive(Debug)]
pub struct PrivateRequest {
    /// Destination of the reply: the shard, the client and the sequence number of its request.
    pub to: ReplyTo,
    /// The class and effect of the request: how its cost grows, and whether it may change something at the store.
    pub nature: Nature,
    /// Version cells (counters of writes) of the keys that the request may write, which count a write in
    /// flight until it is over; empty while no replies of hot keys are kept.
    pub cells: Vec<Cell>,
    /// Reads in the request whose replies weir may keep for hot keys: the store's replies to them are compared
    /// with kept ones, to find out whether those were out of date.
    pub read: Vec<InnerRead>,
    /// The time at which the request was sent for the first time; a cluster may have it sent again.
    pub began: Timestamp,
    /// The deadline of the request: the time after which its reply is useless; `Timestamp::MAX` without a
    /// deadline.
    pub deadline: Timestamp,
    /// Kind of the request (plain, blocking, `WATCH`, transaction), which decides how its reply is handled.
    pub kind: Kind,
    /// For a request whose words do not show how much work it is, which is priced by its share of the time in
    /// which its store answers nothing (quiet time): the backend, and the reading of its quiet time when the
    /// request was sent; None for all other requests.
    pub shares_quiet: Option<(BackendId, u32)>,
}

impl PrivateRequest {
    /// True if the request is still to be charged at its real cost when no client awaits its reply any more. A
    /// command about running scripts costs nothing, and a blocking one is charged in another way.
    const fn is_measured_late(&self) -> bool {
        !matches!(self.kind, Kind::Waits(_) | Kind::Interrupt)
    }

    /// True if this request is a transaction, and the store's error `reply` to its `EXEC` does not show that the store
    /// has discarded it: the connection may still be in a transaction, or watch keys.
    fn may_leave_transaction(&self, reply: &[u8]) -> bool {
        matches!(self.kind, Kind::Exec(_) | Kind::Transaction(_)) && !reply.starts_with(b"-EXECABORT")
    }

    /// True if the client watches no keys any more if this request is lost, whether or not the store has
    /// carried it out: it is an `EXEC`, or the client's first `WATCH`.
    pub const fn ends_watch(&self) -> bool {
        matches!(self.kind, Kind::Exec(_) | Kind::Watch(true))
    }

    /// True for a blocking command, whose reply may come at any time or never.
    pub const fn waits(&self) -> bool {
        self.waiting().is_some()
    }

    /// Returns the record of a blocking command; `None` for any other request.
    pub const fn waiting(&self) -> Option<&Waiting> {
        match &self.kind {
            Kind::Waits(waiting) => Some(waiting),
            _ => None,
        }
    }
}

/// Kind of a request on a private link (unshared connection to a store), which decides how weir can end or
/// repeat it.
#[derive(Debug)]
pub enum Kind {
    /// A request that the store answers at once, such as one between `WATCH` and `EXEC`.
    Plain,
    /// A blocking command, with the data needed to end it or send it again.
    Waits(Waiting),
    /// `WATCH`; true if the client watched no keys before, so that it watches none if this request fails.
    Watch(bool),
    /// A transaction of a client that watches keys, which are no longer watched after the reply; with the
    /// databases that the transaction selects, in order.
    Exec(Vec<Selected>),
    /// A transaction of a client that watches no keys, with the databases that it selects.
    Transaction(Vec<Selected>),
    /// A request that a store answers even while it is busy with a script, such as `SCRIPT KILL`. It has a
    /// link to itself, because a busy store reads nothing more from the connection that the script came over.
    Interrupt,
}

/// A blocking command that waits at its store, with the data needed to end it or send it again.
#[derive(Debug)]
pub struct Waiting {
    /// The bytes of the request; empty if they are too many to be kept.
    pub frame: Box<[u8]>,
    /// Kind of the elements that the command removes, which may have to be put back.
    pub takes: Takes,
    /// The hash slot of the blocking command's keys, by which a cluster's node is found.
    pub slot: u16,
    /// The number of times that a node redirected the blocking command, or ended it because its slot moved,
    /// and weir then sent it to another node.
    pub tries: u8,
    /// The ability of another process, to which the client may move, to go on with the blocking command for the
    /// rest of its wait.
    pub can_move: CanMove,
    /// The number of failed attempts to have the store end the blocking command (`CLIENT UNBLOCK`): it replied
    /// `:0` (the command is not blocked there, perhaps as it has not arrived yet), or the reply was lost. From 20
    /// on (`TOLD_MAX`), which an error sets at once, weir does not ask again.
    pub told: u8,
    /// The stores that a `WAIT` or `WAITAOF` asks after the present one, the last of them first; empty for other
    /// commands.
    pub later: Vec<BackendId>,
    /// The least number of copies that the stores asked so far have confirmed, as the reply to a `WAIT` or
    /// `WAITAOF`; empty until one has.
    pub least: Vec<u8>,
    /// The account that the reply is charged to, with the part of the price that was taken for the reply when the
    /// command began; None where requests have no prices.
    pub paid_ahead: Option<PaidAhead>,
    /// True from when the store was asked to end the blocking command (`CLIENT UNBLOCK`) until it replies that
    /// it could not (`:0`, or an error), or that reply is lost.
    pub is_asked_to_end: bool,
    /// True if the core itself, not a client, has asked the store to end the blocking command, so that its
    /// client can move to another process or be closed, and the store may have ended it. A reply which shows
    /// that the command has waited in vain is not passed on then.
    pub is_withheld: bool,
    /// True once a store's reply to `CLIENT UNBLOCK` was lost. The store may then have ended the blocking
    /// command, even if it replies `:0` (nothing is blocked) to the next `CLIENT UNBLOCK`.
    pub may_have_ended: bool,
}

impl Waiting {
    /// Creates the record of a blocking command that is about to be sent. Another process cannot go on with
    /// it if `has_own_terms` is true: its terms (`QOS CALL`) are not those of its connection. `slot` is the
    /// hash slot of the command's keys.
    pub fn new(arguments: &Arguments<'_>, slot: u16, has_own_terms: bool) -> Self {
        let is_kept = arguments.frame().len() <= COPY_BYTES_MAX;
        // The request is kept so that it can be sent to another node, or by another process.
        let frame = if is_kept { arguments.frame() } else { &[] };
        let may_move = is_kept && !has_own_terms && call::is_known(arguments);
        let can_move = if may_move { CanMove::Yes } else { CanMove::No };
        Self {
            frame: frame.into(),
            takes: Takes::of(arguments),
            slot,
            tries: 0,
            can_move,
            told: 0,
            later: Vec::new(),
            least: Vec::new(),
            paid_ahead: None,
            is_asked_to_end: false,
            is_withheld: false,
            may_have_ended: false,
        }
    }

    /// Prepares for sending the blocking command to another store, which nobody has asked to end it.
    pub const fn begin_anew(&mut self) {
        self.told = 0;
        (self.is_asked_to_end, self.is_withheld, self.may_have_ended) = (false, false, false);
    }

    /// True if the core itself, not a client, has asked the store to end the blocking command, and the store has
    /// not replied that it could not.
    const fn is_being_withheld(&self) -> bool {
        self.is_withheld && self.is_asked_to_end
    }
}

/// The ability of another process to go on with a blocking command for the rest of its wait, by sending it
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CanMove {
    /// The blocking command can move to another process, once the stores have reported the last ids of the
    /// streams of which it awaits new entries.
    Yes,
    /// The blocking command can move to another process, but a store that was asked for the last id of a
    /// stream has not replied yet.
    Asks,
    /// The blocking command cannot move to another process: the request is too large to be kept, its words
    /// are not known, it has terms of its own (`QOS CALL`), or the store has not reported the last id of a
    /// stream.
    No,
}

/// The part of a blocking command's price that was taken for its reply when the command began.
#[derive(Clone, Copy, Debug)]
pub struct PaidAhead {
    /// The account that paid this part, and that is charged for the rest of the reply's price.
    pub payer: Payer,
    /// The part that was taken, in millionths of a request unit.
    pub units: MicroUnits,
}

/// The way in which a request without a client that awaits its reply is charged once the store has replied.
#[derive(Debug)]
pub enum Owing {
    /// The request was a blocking command, whose reply is charged to the account that paid ahead, if one did.
    Reply(Option<PaidAhead>),
    /// The request was charged its estimated price, and will be charged the part of its real cost that exceeds
    /// that.
    Rest {
        /// The time at which the request was sent.
        began: Timestamp,
        /// For a request whose words do not show how much work it is, which is priced by its share of the time
        /// in which its store answers nothing (quiet time): the backend, and the reading of its quiet time when
        /// the request was sent; None for all other requests.
        shares_quiet: Option<(BackendId, u32)>,
        /// The class and effect of the request: how its cost grows, and whether it may change something at the
        /// store.
        nature: Nature,
    },
}

/// A request in flight on a private link whose client has disconnected, or no longer awaits a reply. The reply
/// is still read, to charge the request, and to find elements that were popped for nobody.
#[derive(Debug)]
pub struct Abandoned {
    /// Kind of the elements that the request removes, if it is a blocking command.
    pub takes: Takes,
    /// Version cells (counters of writes) of the keys that the request may write, which count a write in
    /// flight until it is over.
    pub cells: Vec<Cell>,
    /// The tenant of the client that sent the request.
    pub tenant: TenantId,
    /// The way in which the request is charged once the store has replied, or its connection has ended.
    pub owing: Owing,
    /// Destination that the reply had, which distinguishes the request from later ones on the link; no client
    /// awaits the reply any more.
    pub to: ReplyTo,
    /// The number of times that the store was asked to end the blocking command (`CLIENT UNBLOCK`) and replied
    /// `:0`: the command is not blocked there, perhaps as it has not arrived yet. After 20 (`TOLD_MAX`) weir does
    /// not ask again. 0 for other requests.
    pub told: u8,
}

/// The outcome of a request that was to put elements back which a store had popped for a client that had left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutBack {
    /// The store has put the elements back.
    Done,
    /// The store has refused the request with an error, so that the elements are lost.
    Refused,
    /// The connection was lost before the reply, so it is unknown whether the store has put the elements back, or
    /// still will.
    Lost,
}

/// The size of a reply as the store sent it, on which the price of its request depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplySize {
    /// Number of bytes, also of a reply that weir has replaced by an error because it is too large.
    pub bytes: u64,
    /// Number of elements, at any depth; 0 for a reply that is not a collection.
    pub rows: u64,
}

/// An event on a private link (connection to a store that one client has to itself).
#[derive(Debug)]
pub enum Event {
    /// The store has sent its reply to the request in flight on a private link.
    Reply {
        /// The link (unshared connection to a store) that the reply came over.
        link: PrivateId,
        /// The client that the link (unshared connection to a store) is lent to.
        holder: ClientId,
        /// The record of the request that the reply answers.
        request: PrivateRequest,
        /// The complete reply, or an error in place of one that was larger than permitted.
        reply: Vec<u8>,
        /// Number of bytes that the store sent as the reply, and of elements in it.
        size: ReplySize,
        /// The first error among the replies to the requests of a transaction before its `EXEC`, or to commands
        /// that weir sent right before the request (such as `ASKING`); None if there was none, and if the store has
        /// carried out a later one of such commands before a blocking command.
        step_error: Option<Vec<u8>>,
    },
    /// A message that is not a reply to a request, on a link (unshared connection to a store) with
    /// subscriptions or tracked keys.
    Pushed {
        /// The link (unshared connection to a store) that the message came over.
        link: PrivateId,
        /// The client that the link (unshared connection to a store) is lent to.
        holder: ClientId,
        /// The complete message, as the store sent it.
        message: Vec<u8>,
    },
    /// A store has replied to `CLIENT TRACKING ON`, sent for a client over a private link (unshared
    /// connection).
    Tracking {
        /// The link (unshared connection to a store) that the reply came on.
        link: PrivateId,
        /// The client that the link (unshared connection to a store) is lent to.
        holder: ClientId,
        /// The store's reply to `CLIENT TRACKING ON`.
        reply: Vec<u8>,
    },
    /// A link (unshared connection to a store) on which a client takes the invalidation messages of others is open:
    /// its store has replied to `CLIENT ID`, perhaps with an error instead of the link's number.
    Numbered {
        /// The client that has the link (unshared connection to a store).
        holder: ClientId,
    },
    /// A request that no client awaits any more has ended, by the store's reply or with the connection.
    Abandoned {
        /// The store, and the database, that the request was sent to.
        place: (BackendId, Database),
        /// The request that no client awaits.
        request: Abandoned,
        /// The store's reply, and its size; `None` if the connection ended without one. The reply to a request
        /// other than a blocking command is only measured.
        reply: Option<(Vec<u8>, ReplySize)>,
    },
    /// A store that was asked to end a blocking command whose client has disconnected replied `:0`: it does not
    /// see the command blocked, which may still be on its way to it. The store is to be asked again.
    AbandonedUnknown {
        /// The link (unshared connection to a store) that the blocking command was sent over.
        link: PrivateId,
    },
    /// The reply to a request that put elements back, or the end of its link (unshared connection to a
    /// store).
    PutBack {
        /// Version cells (counters of writes) of the key, which counted a write in flight until now.
        cells: Vec<Cell>,
        /// The number of elements that were to be put back.
        count: usize,
        end: PutBack,
    },
    /// A reply or message of a store on a tracker (the link on which it reports changes of keys), or the
    /// tracker's end.
    Tracker {
        /// The store that the tracker (connection on which a store reports changes of keys) leads to.
        backend: BackendId,
        /// The store's reply or message, or the end of the tracker (connection on which a store reports
        /// changes of keys).
        said: Said,
    },
    /// A message of a store on the feed (the link for channels that have one subscription for all clients),
    /// or the feed's end.
    Feed {
        /// The store that the feed (the core's own link for channels with one subscription for all clients)
        /// leads to.
        backend: BackendId,
        /// The complete message; as the error, the reason of the end of the connection in one word.
        said: Result<Vec<u8>, &'static str>,
    },
    /// The reply to the `PING` that a store was sent because it was silent on other connections.
    Sign {
        /// The store that was sent the `PING`.
        backend: BackendId,
        /// True if the store is busy with a script.
        is_busy: bool,
    },
    /// A blocking command that the core itself asked a store to end may go on waiting: the store did not see it
    /// blocked yet, or the request to end it was refused or lost.
    WaitsOn {
        /// The client that waits in the blocking command.
        holder: ClientId,
    },
    /// A private link (unshared connection to a store) was lost or given up while a client had it, without an
    /// abandoned request (whose reply no client awaits) on it.
    Lost {
        /// The id of the private link (unshared connection to a store) that was lost, which is valid no more.
        link: PrivateId,
        /// The client that the link (unshared connection to a store) was lent to.
        holder: ClientId,
        /// The request in flight on the link, which the caller has to answer; None if there was none.
        request: Option<PrivateRequest>,
        /// The store that the link (unshared connection to a store) was connected to.
        backend: BackendId,
        /// The reason for the loss of the link in one word, for the error reply to the client.
        reason: &'static str,
        /// True if the request in flight was sent over the lost link, so that the store may have carried it
        /// out.
        was_sent: bool,
    },
}

/// A reply or message of a store on a tracker (connection on which a store reports changes of keys), or the
/// end of the tracker.
#[derive(Debug)]
pub enum Said {
    /// The reply to `CLIENT TRACKING ON`; true unless it is an error.
    Tracks(bool),
    /// The reply to the oldest unanswered request of the core on the tracker (connection on which a store
    /// reports changes of keys); true if it is an error.
    Answer(bool),
    /// A message that is not a reply to a request, such as that keys have changed.
    Message(Vec<u8>),
    /// The tracker (connection on which a store reports changes of keys) is lost.
    Lost,
}

/// Numbers of private links (unshared connections to stores) by their use. Trackers, on which stores report
/// changes of hot keys, are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrivateFigures {
    /// Links (unshared connections to stores) on which a blocking command waits, even if its client has
    /// disconnected, or on which the reply to another request is awaited only to learn what the request has
    /// cost.
    pub waiting: usize,
    /// Links (unshared connections to stores) on which keys are watched, or another request is in flight, and
    /// links that belong to none of the other uses.
    pub watching: usize,
    /// Links (unshared connections to stores) over which clients hear published messages.
    pub subscribed: usize,
    /// Links (unshared connections to stores) on which a store tracks keys for a client (`CLIENT TRACKING`).
    pub tracking: usize,
    /// Links (unshared connections to stores) on which clients take the invalidation messages of other
    /// clients (`REDIRECT`).
    pub redirected: usize,
    /// Links (unshared connections to stores) over which messages of channels with one subscription for all
    /// clients come, one per store at most.
    pub shared: usize,
    /// Links (unshared connections to stores) that no client has: idle, opened as a spare, being cleaned, or
    /// in use by the core itself for single requests.
    pub idle: usize,
    /// Clients whose blocking command has been sent to its store.
    pub blocked: usize,
}

impl PrivateFigures {
    /// Adds the numbers of another core's private links (unshared connections to stores), by use, to those in
    /// this record.
    pub fn add(&mut self, other: Self) {
        self.waiting += other.waiting;
        self.watching += other.watching;
        self.subscribed += other.subscribed;
        self.tracking += other.tracking;
        self.redirected += other.redirected;
        self.shared += other.shared;
        self.idle += other.idle;
        self.blocked += other.blocked;
    }

    /// Returns the number of private links (unshared connections to stores) for each use, with the use's name
    /// in metrics.
    pub const fn by_use(self) -> [(&'static str, usize); 7] {
        [
            ("waiting", self.waiting),
            ("watching", self.watching),
            ("subscribed", self.subscribed),
            ("tracking", self.tracking),
            ("redirected", self.redirected),
            ("shared", self.shared),
            ("idle", self.idle),
        ]
    }
}

/// Purpose for which a client is lent a private link (unshared connection to a store).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A store tracks keys for the client on the link (`CLIENT TRACKING`).
    Tracking,
    /// Any other purpose: a blocking command, a watch, a subscription, messages of other clients' tracking.
    Other,
}

/// A place for a private link (unshared connection to a store) in the table; its generation distinguishes the
/// link from earlier ones in the place.
#[derive(Debug, Default)]
struct Place {
    generation: u32,
    link: Option<Link>,
}

impl Place {
    /// Returns the id of the link that is in the place now; `index` is that of the place.
    fn id(&self, index: usize) -> PrivateId {
        PrivateId { place: index as u32, generation: self.generation }
    }
}

/// All private links of one core (connections to stores that one client has to itself), lent and idle, with
/// the connections that the core itself has for changes of keys (trackers) and for shared channels (feeds).
#[derive(Debug)]
pub struct PrivateLinks {
    /// The number of the first private connection of the core: connections with lower numbers are shared by all
    /// clients.
    first: u32,
    links_max: usize,
    places: Vec<Place>,
    free: Vec<u32>,
    idle: VecDeque<PrivateId>,
    /// The number of private links (unshared connections to stores) that each tenant's clients hold.
    held: HashMap<TenantId, usize>,
    open: usize,
    /// The trackers (links on which stores report changes of keys), which do not count towards the limit of
    /// links.
    trackers: HashMap<BackendId, PrivateId>,
    /// The feeds (the core's own links for channels that have one subscription for all clients), which do not
    /// count towards the limit of links.
    feeds: HashMap<BackendId, PrivateId>,
    /// The link (unshared connection to a store) that is being opened in advance, for the next client that
    /// needs one; None if there is none.
    spare: Option<PrivateId>,
    /// The stores that have turned links (unshared connections to stores) away, since they have too many clients or are
    /// in protected mode, after a link to them was last opened. That is logged once.
    turned_away: HashSet<BackendId>,
    to_send: VecDeque<PrivateId>,
    events: VecDeque<Event>,
    /// The number of links (unshared connections to stores) whose request in flight is to be sent once more,
    /// because a node of a cluster could not carry it out yet.
    put_off: usize,
}

impl PrivateLinks {
    /// Creates the table of a core's private links (unshared connections to stores), empty. `first` is the
    /// number of the core's first private connection.
    pub fn new(settings: &ShardSettings, first: u32) -> Self {
        Self {
            first,
            links_max: settings.private_links_max,
            places: Vec::new(),
            free: Vec::new(),
            idle: VecDeque::new(),
            held: HashMap::new(),
            open: 0,
            trackers: HashMap::new(),
            feeds: HashMap::new(),
            spare: None,
            turned_away: HashSet::new(),
            to_send: VecDeque::new(),
            events: VecDeque::new(),
            put_off: 0,
        }
    }

    /// True if clients may have private links (`--private-links` is not 0).
    pub fn is_on(&self) -> bool {
        self.links_max > 0
    }

    /// True if the connection with this number is a private link (unshared connection to a store), rather
    /// than one that all clients share.
    #[inline]
    pub fn is_mine(&self, connection: ConnectionId) -> bool {
        connection.0 >= self.first
    }

    /// Returns the numbers of private links (unshared connections to stores) that this core could lend now: to clients
    /// of this tenant, which may hold only a part of all links, and to clients of all tenants together.
    pub fn available(&self, env: &Env, tenant: TenantId) -> [usize; 2] {
        let free = self.links_max.saturating_sub(self.lent());
        let held = self.held.get(&tenant).copied().unwrap_or(0);
        [self.tenant_max(env, tenant).saturating_sub(held).min(free), free]
    }

    /// Returns the number of private links (unshared connections to stores) that are open or being opened,
    /// whether lent, idle, or the core's own (trackers and feeds).
    #[inline]
    pub fn len(&self) -> usize {
        self.open
    }

    /// Returns the numbers of private links (unshared connections to stores) by their use.
    pub fn figures(&self) -> PrivateFigures {
        let mut figures = PrivateFigures::default();
        let links = self.places.iter().filter_map(|place| place.link.as_ref());
        for link in links.filter(|link| !link.is_tracker) {
            let waits = link.abandoned.is_some() || link.waits();
            figures.blocked += usize::from(link.holder.is_some() && link.waits() && link.is_sent());
            let count = match link.holder {
                None if link.is_feed => &mut figures.shared,
                None => &mut figures.idle,
                Some(_) if link.is_streaming => &mut figures.subscribed,
                Some(_) if waits => &mut figures.waiting,
                Some(_) if link.is_inbox => &mut figures.redirected,
                Some(_) if link.is_tracking => &mut figures.tracking,
                Some(_) => &mut figures.watching,
            };
            *count += 1;
        }
        figures
    }

    /// Returns the number of open private links (unshared connections to stores) that are not idle: lent, being
    /// cleaned, or being opened as a spare. Trackers (for changes of hot keys) and feeds (for shared channels),
    /// which the core itself has, are not counted.
    pub fn lent(&self) -> usize {
        self.open - self.idle.len() - self.trackers.len() - self.feeds.len()
    }

    /// Lends a client a private link (unshared connection to a store) to a database of a store: an idle
    /// one, or a new one. None if all links of this core are lent, or if the tenant holds as many as it
    /// may. `holder` is the client, `wanted` the store, database and RESP version, and `purpose` what the
    /// link is for.
    pub fn lend(
        &mut self,
        env: &mut Env,
        (holder, tenant): (ClientId, TenantId),
        wanted: ((BackendId, Database), Protocol),
        purpose: Purpose,
        now: Now,
    ) -> Option<PrivateId> {
        let tenant_max = self.tenant_max(env, tenant);
        if self.held.get(&tenant).copied().unwrap_or(0) >= tenant_max {
            return None;
        }
        self.lend_beyond(env, (holder, tenant), wanted, (purpose, 0), now)
    }

    /// Opens a spare private link (unshared connection to a store) like the one that was just lent, so that
    /// the next client need not wait for a connection while other clients' requests overtake its own. Does
    /// nothing if such a link is idle, if a spare is being opened, or if a sixteenth of this core's limit of
    /// links is open.
    pub fn keep_spare(
        &mut self,
        env: &mut Env,
        ((backend, database), protocol): ((BackendId, Database), Protocol),
        now: Now,
    ) {
        let fits =
            |link: &Link| link.backend == backend && link.protocol == protocol && link.database == database;
        let is_idle = self.idle.iter().any(|id| self.peek(*id).is_some_and(fits));
        if !is_idle && self.spare.is_none() && self.open < self.links_max / SPARE_PART {
            self.spare = self.open(env, (backend, database), protocol, 0, now);
        }
    }

    /// Lends a client a private link (unshared connection to a store) for a request about a running script
    /// (such as `SCRIPT KILL`), even if all links of this core or of the tenant are lent. None if 8 links
    /// beyond the core's limit (`INTERRUPTS_MAX`) are open already. `holder` is the client. `backend` is the
    /// store, `protocol` the RESP version of the client.
    pub fn lend_for_interrupt(
        &mut self,
        env: &mut Env,
        (holder, tenant): (ClientId, TenantId),
        (backend, protocol): (BackendId, Protocol),
        now: Now,
    ) -> Option<PrivateId> {
        // A busy store refuses to select another database.
        let place = (backend, Database::FIRST);
        self.lend_beyond(env, (holder, tenant), (place, protocol), (Purpose::Other, INTERRUPTS_MAX), now)
    }

    /// Lends a client a private link (unshared connection to a store). `beyond` is the number of links by which
    /// the limit of this core may be exceeded. None if there is no room for another link even so. `holder` is
    /// the client, `tenant` its tenant, and `purpose` what the link is for.
    fn lend_beyond(
        &mut self,
        env: &mut Env,
        (holder, tenant): (ClientId, TenantId),
        ((backend, database), protocol): ((BackendId, Database), Protocol),
        (purpose, beyond): (Purpose, usize),
        now: Now,
    ) -> Option<PrivateId> {
        let found = self.take_idle(|link| {
            let is_fit = link.backend == backend && link.protocol == protocol && link.database == database;
            is_fit && (purpose == Purpose::Other || link.tracked_for.is_none_or(|earlier| earlier == holder))
        });
        let id = match found {
            Some(id) => id,
            None => self.open(env, (backend, database), protocol, beyond, now)?,
        };
        let link = self.at(id)?;
        link.lend(holder, tenant);
        *self.held.entry(tenant).or_default() += 1;
        env.counters.add(Counter::PrivateLinksLent, 1);
        Some(id)
    }

    /// Takes the idle link (unshared connection to a store) that was used last among those that `fits`
    /// selects; None if there is none.
    fn take_idle(&mut self, fits: impl Fn(&Link) -> bool) -> Option<PrivateId> {
        let fits = |id: &PrivateId| {
            self.peek(*id).is_some_and(|link| !link.is_retired && link.is_between_replies() && fits(link))
        };
        let index = self.idle.iter().rposition(fits)?;
        self.idle.remove(index)
    }

    /// Changes the tenants of lent links (unshared connections to stores), and of blocking commands whose
    /// clients have disconnected, to the ids that `renamed` returns, because new quotas give tenants other
    /// ids.
    pub fn handle_tenants(&mut self, renamed: impl Fn(TenantId) -> TenantId) {
        self.held.clear();
        for link in self.places.iter_mut().filter_map(|place| place.link.as_mut()) {
            if let Some((_, tenant)) = &mut link.holder {
                *tenant = renamed(*tenant);
                *self.held.entry(*tenant).or_default() += 1;
            }
            if let Some(request) = &mut link.abandoned {
                request.tenant = renamed(request.tenant);
            }
        }
        for event in &mut self.events {
            if let Event::Abandoned { request, .. } = event {
                request.tenant = renamed(request.tenant);
            }
        }
    }

    /// Returns the largest number of this core's private links (unshared connections to stores) that a tenant's clients
    /// may hold: the core's even part of the tenant's own limit (`private_links`) or, without one, four fifths of the
    /// core's limit, but at least 1.
    fn tenant_max(&self, env: &Env, tenant: TenantId) -> usize {
        let known = (usize::from(tenant.0) < env.quotas.len()).then(|| env.quotas.tenant(tenant));
        let shards = usize::from(env.settings.topology.shards());
        match known.and_then(|tenant| tenant.private_links) {
            Some(most) => (most as usize).div_ceil(shards),
            None => (self.links_max * TENANT_PART.0 / TENANT_PART.1).max(1),
        }
    }

    /// Opens a private link (unshared connection to a store) to `backend`, where `database` is selected. `beyond` is
    /// the number of links by which the core's limit may be exceeded. If the limit is reached, an idle link is closed
    /// to make room; None if no link is idle.
    fn open(
        &mut self,
        env: &mut Env,
        (backend, database): (BackendId, Database),
        protocol: Protocol,
        beyond: usize,
        now: Now,
    ) -> Option<PrivateId> {
        if self.open - self.trackers.len() - self.feeds.len() >= self.links_max + beyond {
            // An idle link to another database, or of another dialect, makes room.
            let unused = self.idle.pop_front()?;
            self.close(env, unused);
        }
        let id = self.vacant();
        let link = Link::new((backend, database), protocol, now.monotonic);
        Some(self.connect(env, id, link))
    }

    /// Takes a free place in the table of private links (unshared connections to stores), and returns its id
    /// with a new generation number.
    fn vacant(&mut self) -> PrivateId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.generation = place.generation.wrapping_add(1);
        PrivateId { place: index, generation: place.generation }
    }

    /// Opens a tracker to a store, unless there is one: a link (unshared connection to a store) of the core
    /// itself, on which the store reports changes of the keys that are read over it.
    pub fn open_tracker(&mut self, env: &mut Env, backend: BackendId, now: Now) {
        if self.trackers.contains_key(&backend) {
            return;
        }
        let id = self.vacant();
        let mut link = Link::new((backend, Database::FIRST), Protocol::Resp3, now.monotonic);
        link.is_tracker = true;
        self.connect(env, id, link);
        self.trackers.insert(backend, id);
    }

    /// Sends a request of the core itself over a tracker (connection on which a store reports changes of
    /// keys). Does nothing if there is no tracker.
    pub fn ask_tracker(&mut self, env: &mut Env, backend: BackendId, words: &[&[u8]], now: Now) {
        if let Some(id) = self.trackers.get(&backend).copied() {
            self.ask(env, (id, Expected::Told), words, now);
        }
    }

    /// Closes a tracker (connection on which a store reports changes of keys), if there is one, without an
    /// event.
    pub fn close_tracker(&mut self, env: &mut Env, backend: BackendId) {
        if let Some(id) = self.trackers.remove(&backend) {
            self.close(env, id);
        }
    }

    /// Sends a request (`frame`) about subscriptions over the feed of a store (the core's own link for
    /// channels with one subscription for all clients), which is opened if there is none. Its answer, and all
    /// messages, come as [`Event::Feed`].
    pub fn send_to_feed(&mut self, env: &mut Env, backend: BackendId, frame: &[u8], now: Now) {
        let id = self.feeds.get(&backend).copied().unwrap_or_else(|| {
            let id = self.vacant();
            let mut link = Link::new((backend, Database::FIRST), Protocol::Resp2, now.monotonic);
            link.is_feed = true;
            self.connect(env, id, link);
            self.feeds.insert(backend, id);
            id
        });
        self.send_subscription(env, id, Message::Small(frame), now);
    }

    /// True if 64 MiB or more wait to be sent over a store's feed (the core's own link for channels with
    /// one subscription for all clients), so that no further request should be sent over it.
    pub fn is_feed_full(&self, backend: BackendId) -> bool {
        let link = self.feeds.get(&backend).and_then(|id| self.peek(*id));
        link.is_some_and(|link| link.output.len() >= LINK_OUTPUT_BYTES_MAX)
    }

    /// Records whether a store owes acknowledgements of subscriptions on its feed (the core's own link for
    /// channels with one subscription for all clients); while it does, silence counts against it.
    pub fn note_feed_owed(&mut self, backend: BackendId, owes: bool) {
        if let Some(id) = self.feeds.get(&backend) {
            self.note_owed(*id, owes);
        }
    }

    /// Closes a store's feed (the core's own link for channels with one subscription for all clients) because
    /// the store has sent a message that is neither published nor an expected acknowledgement. Its end comes as
    /// [`Event::Feed`].
    pub fn give_up_feed(&mut self, env: &mut Env, backend: BackendId) {
        if let Some(id) = self.feeds.get(&backend) {
            self.give_up(env, *id, UNEXPECTED_REPLY);
        }
    }

    /// Starts to connect a private link (unshared connection to a store), and stores it in the table at the
    /// place that `id` names. Returns `id`.
    fn connect(&mut self, env: &mut Env, id: PrivateId, mut link: Link) -> PrivateId {
        let backend = link.backend;
        link.greet(&env.settings.backends[usize::from(backend.0)], &mut env.pool);
        self.places[id.place as usize].link = Some(link);
        self.open += 1;
        env.actions.push_back(Action::Connect { owner: self.owner(id), backend });
        env.counters.add(Counter::LinksOpened, 1);
        id
    }

    /// Returns the store that a private link (unshared connection to a store) is connected to; None if the
    /// link is gone.
    pub fn backend_of(&self, id: PrivateId) -> Option<BackendId> {
        self.place_of(id).map(|(backend, _)| backend)
    }

    /// Returns the store and the database of a private link (unshared connection to a store); None if the
    /// link is gone.
    pub fn place_of(&self, id: PrivateId) -> Option<(BackendId, Database)> {
        self.peek(id).map(|link| (link.backend, link.database))
    }

    /// Returns the tenant whose client holds a private link (unshared connection to a store); None for a link that no
    /// client holds, or that is gone.
    pub fn tenant_of(&self, id: PrivateId) -> Option<TenantId> {
        self.peek(id)?.holder.map(|(_, tenant)| tenant)
    }

    /// True if the request in flight on a private link (unshared connection to a store) is a blocking
    /// command.
    pub fn waits(&self, id: PrivateId) -> bool {
        self.peek(id).is_some_and(Link::waits)
    }

    /// True if a request is in flight on a private link (unshared connection to a store), whether or not its client
    /// awaits the reply.
    pub fn is_at_work(&self, id: PrivateId) -> bool {
        self.peek(id).is_some_and(|link| link.in_flight.is_some() || link.abandoned.is_some())
    }

    /// True if a request of `bytes` bytes may be sent over a private link (unshared connection to a store). A request
    /// above 16 KiB may only if, with it, at most 64 MiB wait to be sent on all private links together.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        // Small requests need no count: each link has at most one.
        bytes <= COPY_BYTES_MAX || {
            let links = self.places.iter().filter_map(|place| place.link.as_ref());
            links.map(Link::unsent_bytes).sum::<usize>() + bytes <= LINK_OUTPUT_BYTES_MAX
        }
    }

    /// Sends a message of one or several requests, which the store answers with `replies` replies, over a private link
    /// (unshared connection to a store); the last reply is the answer to the client's `request`.
    pub fn send(
        &mut self,
        env: &mut Env,
        id: PrivateId,
        (message, replies): (Message<'_>, usize),
        request: PrivateRequest,
        now: Now,
    ) {
        let Some(link) = self.at(id) else { return debug_assert!(false, "a link that is lent is there") };
        debug_assert!(link.in_flight.is_none(), "one request at a time");
        if link.state == State::Open {
            link.fence_off(env);
        }
        link.prepare(env, now.monotonic);
        link.append(env, message);
        link.expect_steps(replies - 1);
        link.expected.push_back(Expected::Answer);
        link.in_flight = Some(request);
        link.heard_at = now.monotonic;
        env.counters.add(Counter::RequestsForwarded, 1);
        self.list_to_send(id);
    }

    /// Keeps a request in flight on a private link (unshared connection to a store) to send it once more at
    /// `until` ([`Self::take_due`]), because a node replied that it cannot carry the request out yet. Returns
    /// the request if the link was lost after that reply, so that the caller answers it; else None.
    pub fn put_off(
        &mut self,
        id: PrivateId,
        request: PrivateRequest,
        until: Timestamp,
    ) -> Option<PrivateRequest> {
        let Some(link) = self.at(id) else { return Some(request) };
        debug_assert!(link.in_flight.is_none() && link.put_off_until.is_none(), "one request at a time");
        link.in_flight = Some(request);
        link.put_off_until = Some(until);
        self.put_off += 1;
        None
    }

    /// Takes a request in flight on a private link (unshared connection to a store) that is to be sent once
    /// more by now, with its client and the link. None if there is none.
    pub fn take_due(&mut self, now: Timestamp) -> Option<(ClientId, PrivateId, PrivateRequest)> {
        if self.put_off == 0 {
            return None;
        }
        let is_due = |link: &Link| link.put_off_until.is_some_and(|until| until <= now);
        let (index, place) =
            self.places.iter_mut().enumerate().find(|(_, place)| place.link.as_ref().is_some_and(is_due))?;
        let id = place.id(index);
        let link = place.link.as_mut()?;
        link.put_off_until = None;
        self.put_off -= 1;
        Some((link.holder?.0, id, link.in_flight.take()?))
    }

    /// Sends a command about subscriptions over a private link (unshared connection to a store). Its replies,
    /// and all messages from now on, come as [`Event::Pushed`], or on a feed as [`Event::Feed`].
    pub fn send_subscription(&mut self, env: &mut Env, id: PrivateId, message: Message<'_>, now: Now) {
        let Some(link) = self.at(id) else { return };
        link.heard_at = now.monotonic;
        link.append(env, message);
        link.owes_acknowledgements = true;
        link.is_streaming = true;
        env.counters.add(Counter::RequestsForwarded, 1);
        self.list_to_send(id);
    }

    /// Sends `CLIENT TRACKING ON` (`frame`), so that the store tracks the keys read over a private link
    /// (unshared connection to a store).
    pub fn send_tracking(&mut self, env: &mut Env, id: PrivateId, frame: &[u8], now: Now) {
        if let Some(link) = self.at(id) {
            link.is_tracking = true;
            link.tracked_for = link.holder.map(|(client, _)| client);
            self.post(env, (id, Expected::Tracking), frame, now);
        }
    }

    /// Holds back everything that is sent over a link (unshared connection to a store) that was just lent,
    /// because it is not known yet how the store is to track keys on it. [`Self::release`] sends it.
    pub fn hold(&mut self, id: PrivateId, now: Now) {
        let Some(link) = self.at(id) else { return };
        debug_assert!(link.output.is_empty(), "nothing is overtaken");
        link.is_tracking = true;
        link.tracked_for = link.holder.map(|(client, _)| client);
        link.expected.push_back(Expected::Tracking);
        link.is_held = true;
        link.heard_at = now.monotonic;
    }

    /// True while everything that is sent over a link (unshared connection to a store) is held back.
    pub fn is_held(&self, id: PrivateId) -> bool {
        self.peek(id).is_some_and(|link| link.is_held)
    }

    /// Sends a `CLIENT TRACKING` command over a link (unshared connection to a store), and behind it
    /// everything that was held back.
    pub fn release(&mut self, id: PrivateId, frame: &[u8], now: Now) {
        let Some(link) = self.at(id).filter(|link| link.is_held) else { return };
        link.is_held = false;
        link.prelude.extend_from_slice(frame);
        link.heard_at = now.monotonic;
        self.list_to_send(id);
    }

    /// Takes back a private link (unshared connection to a store) on which a store has tracked keys. The link is lent
    /// again once the store has confirmed that it no longer tracks them, or closed as [`Self::give_back`] says.
    pub fn end_tracking(&mut self, env: &mut Env, id: PrivateId, now: Now) {
        self.clean(env, id, &[b"CLIENT", b"TRACKING", b"OFF"], now);
        if let Some(link) = self.at(id) {
            link.is_tracking = false;
        }
        self.give_back(env, id, false, now);
    }

    /// Ends the watch of keys (`UNWATCH`) on a private link (unshared connection to a store), which its
    /// holder keeps.
    pub fn unwatch(&mut self, env: &mut Env, id: PrivateId, now: Now) {
        self.clean(env, id, &[b"UNWATCH"], now);
    }

    /// Sends a command (such as `UNWATCH`) that makes a store drop the state that it keeps for a link
    /// (unshared connection to a store).
    fn clean(&mut self, env: &mut Env, id: PrivateId, words: &[&[u8]], now: Now) {
        self.ask(env, (id, Expected::Cleaned), words, now);
    }

    /// Sends a request of weir's own over a private link (unshared connection to a store); its reply goes to
    /// no client.
    fn ask(&mut self, env: &mut Env, to: (PrivateId, Expected), words: &[&[u8]], now: Now) {
        let mut frame = env.pool.take();
        encode::request(&mut frame, words.iter().copied());
        self.post(env, to, &frame, now);
        env.pool.give(frame);
    }

    /// Sends the bytes of a request (`frame`) over a private link (unshared connection to a store), and
    /// records the reply that its store owes. `expected` says which reply that is.
    fn post(&mut self, env: &mut Env, (id, expected): (PrivateId, Expected), frame: &[u8], now: Now) {
        let Some(link) = self.at(id) else { return };
        link.append(env, Message::Small(frame));
        link.expected.push_back(expected);
        link.heard_at = now.monotonic;
        self.list_to_send(id);
    }

    /// Records whether a store owes acknowledgements of commands about subscriptions on a private link (unshared
    /// connection to a store); while it does, silence counts against it.
    pub fn note_owed(&mut self, id: PrivateId, owes: bool) {
        if let Some(link) = self.at(id) {
            link.owes_acknowledgements = owes;
        }
    }

    /// Records that no more messages will come over a private link (unshared connection to a store), because the store
    /// has acknowledged the end of all subscriptions: once given back, the link can be lent again.
    pub fn end_messages(&mut self, id: PrivateId) {
        if let Some(link) = self.at(id) {
            link.is_streaming = false;
        }
    }

    /// Marks a private link (unshared connection to a store) as one on which its holder takes the
    /// invalidation messages of other clients.
    pub fn begin_inbox(&mut self, id: PrivateId) {
        if let Some(link) = self.at(id) {
            link.is_inbox = true;
        }
    }

    /// True if a private link (unshared connection to a store) is open: its greeting (login, database,
    /// `CLIENT ID`) was answered, so that the store's number for it is known, if the store has reported
    /// one.
    pub fn is_open(&self, id: PrivateId) -> bool {
        self.peek(id).is_some_and(|link| link.state == State::Open)
    }

    /// Returns the store's number (`CLIENT ID`) for a private link (unshared connection to a store); None
    /// if the store has not reported it or the link is gone.
    pub fn number_of(&self, id: PrivateId) -> Option<u64> {
        self.peek(id)?.number
    }

    /// Changes the RESP version of the next requests on a private link (unshared connection to a store).
    pub fn change_dialect(&mut self, env: &mut Env, id: PrivateId, protocol: Protocol, now: Now) {
        if let Some(link) = self.at(id) {
            link.change_dialect(env, protocol, now.monotonic);
            self.list_to_send(id);
        }
    }

    /// Records that a transaction has selected another database on a private link (unshared connection to a
    /// store).
    pub fn note_selected(&mut self, id: PrivateId, database: Database) {
        if let Some(link) = self.at(id) {
            (link.database, link.selected) = (database, database);
        }
    }

    /// Sends `SELECT` of a private link's database once more, because another one may be selected at the store:
    /// it is unknown how far a transaction with `SELECT` was carried out.
    pub fn select_anew(&mut self, env: &mut Env, id: PrivateId, now: Now) {
        if let Some(link) = self.at(id) {
            link.select_anew(env, now.monotonic);
            self.list_to_send(id);
        }
    }

    /// Changes the database of the next requests on a private link (unshared connection to a store). The store is sent
    /// `SELECT` only right before the next request, so that a client that selects again and again causes no requests
    /// to the store, which nobody would pay for.
    pub fn select(&mut self, id: PrivateId, database: Database) {
        if let Some(link) = self.at(id) {
            link.database = database;
        }
    }

    /// Asks the store, over another link, to end the blocking command that waits on a private link (unshared
    /// connection to a store): with an error if `is_error`, else as at its timeout. True if the store is
    /// asked now or was asked before. False if no command waits or it is not sent yet, if the store has not
    /// reported the link's number, or if there is no room for another link. The reply to the command goes to the
    /// client, unless the caller withholds it ([`Waiting::is_withheld`]).
    pub fn unblock(&mut self, env: &mut Env, id: PrivateId, is_error: bool, now: Now) -> bool {
        let link = self.at(id).filter(|link| !link.waits_behind());
        let Some(waiting) = link.and_then(Link::waiting) else { return false };
        if waiting.is_asked_to_end {
            return true;
        }
        let is_asked = self.ask_to_end(env, id, is_error, now);
        if let Some(waiting) = self.at(id).and_then(Link::waiting) {
            waiting.is_asked_to_end = is_asked;
            waiting.is_withheld &= !is_asked;
        }
        is_asked
    }

    /// Asks the store once more to end a blocking command whose client has disconnected, because the store did
    /// not see it blocked yet ([`Event::AbandonedUnknown`]). If it cannot be asked, the link is closed, which ends the
    /// command too.
    pub fn end_abandoned(&mut self, env: &mut Env, id: PrivateId, now: Now) {
        if self.peek(id).is_some_and(|link| link.abandoned.is_some()) && !self.ask_to_end(env, id, false, now)
        {
            self.close(env, id);
        }
    }

    /// Has a private link (unshared connection to a store) closed when its client gives it back, because a command that
    /// weir does not know was sent over it, which may leave state at the store.
    pub fn spoil(&mut self, id: PrivateId) {
        if let Some(link) = self.at(id) {
            link.is_spoilt = true;
        }
    }

    /// Sends `CLIENT UNBLOCK` for the blocking command on a private link (unshared connection to a store) over
    /// another link, to end it with an error (`is_error`) or as at its timeout. False, with nothing sent, if the
    /// store has not reported the link's number, or if there is no room for another link.
    fn ask_to_end(&mut self, env: &mut Env, id: PrivateId, is_error: bool, now: Now) -> bool {
        let Some(link) = self.peek(id) else { return false };
        let (place, protocol) = ((link.backend, Database::FIRST), link.protocol);
        let Some(number) = link.number.map(|number| number.to_string()) else { return false };
        let Some(helper) = self.helper(env, (place, protocol), |_| true, now) else { return false };
        if let Some(link) = self.at(id) {
            link.was_unblocked = true;
        }
        let reason: &[u8] = if is_error { b"ERROR" } else { b"TIMEOUT" };
        let words: [&[u8]; 4] = [b"CLIENT", b"UNBLOCK", number.as_bytes(), reason];
        self.run_errand(env, helper, (id, Subject::End), &words, now);
        true
    }

    /// Sends `PING` over a private link (unshared connection to a store) to a store that is silent on other
    /// connections, to find out whether it is busy with a script. Does nothing if an earlier `PING` is
    /// unanswered, or there is no room for another link. The reply comes as [`Event::Sign`].
    pub fn ask_for_sign(&mut self, env: &mut Env, backend: BackendId, now: Now) {
        let places = self.places.iter().filter_map(|place| place.link.as_ref());
        if places.into_iter().any(|link| link.backend == backend && link.expected.contains(&Expected::Sign)) {
            return;
        }
        // A busy store refuses to select another database.
        let place = (backend, Database::FIRST);
        let found = self.take_idle(|link| link.backend == backend && link.protocol == Protocol::Resp2);
        let helper = found.or_else(|| self.open(env, place, Protocol::Resp2, 1, now));
        if let Some(helper) = helper {
            self.ask(env, (helper, Expected::Sign), &[b"PING"], now);
        }
    }

    /// Takes a link (unshared connection) to a store for a request of weir's own, among those that `fits`
    /// selects: an idle one, one on which such a request is in flight, or one that is opened now. None if
    /// there is no room for another link. `place` is the store and the database.
    fn helper(
        &mut self,
        env: &mut Env,
        (place, protocol): ((BackendId, Database), Protocol),
        fits: impl Fn(&Link) -> bool,
        now: Now,
    ) -> Option<PrivateId> {
        let (backend, _) = place;
        let found = self.take_idle(|link| link.backend == backend && fits(link));
        let found = found.or_else(|| self.messenger(&fits, backend));
        found.or_else(|| self.open(env, place, protocol, 1, now))
    }

    /// Returns a private link (unshared connection) to a store that no client has, and on which a command of
    /// weir's own (`UNWATCH`, `CLIENT UNBLOCK`) is the last unanswered one, so that another such command can
    /// follow on it. `fits` selects among these links. None if there is none.
    fn messenger(&self, fits: impl Fn(&Link) -> bool, backend: BackendId) -> Option<PrivateId> {
        let is_fit = |link: &Link| {
            link.backend == backend
                && link.holder.is_none()
                && matches!(link.expected.back(), Some(Expected::Cleaned | Expected::Errand))
                && fits(link)
        };
        self.places.iter().enumerate().find_map(|(index, place)| {
            let id = place.id(index);
            place.link.as_ref().is_some_and(is_fit).then_some(id)
        })
    }

    /// Returns the time since the request in flight on a private link (unshared connection to a store) was sent
    /// for the first time; None if there is none.
    pub fn waited(&self, id: PrivateId, now: Timestamp) -> Option<Duration> {
        Some(now.since(self.peek(id)?.in_flight.as_ref()?.began))
    }

    /// True if a private link (unshared connection to a store) is kept open only for a reply that no client awaits any
    /// more, to learn what the request has cost. False if the request is a blocking command.
    pub fn measures_late(&self, id: PrivateId) -> bool {
        let abandoned = self.peek(id).and_then(|link| link.abandoned.as_ref());
        abandoned.is_some_and(|abandoned| matches!(abandoned.owing, Owing::Rest { .. }))
    }

    /// Lets the request in flight on a private link (unshared connection to a store) be answered whenever its store
    /// replies: its deadline, which has passed, no longer counts, because deadlines are off or only counted.
    pub fn await_late(&mut self, id: PrivateId) {
        if let Some(request) = self.at(id).and_then(|link| link.in_flight.as_mut()) {
            request.deadline = Timestamp::MAX;
        }
    }

    /// True if the request in flight on a private link (unshared connection to a store) may have reached the store.
    pub fn may_have_sent(&self, id: PrivateId) -> bool {
        self.peek(id).is_some_and(Link::may_have_sent)
    }

    /// True if the request in flight on a private link (unshared connection to a store) may have consequences beyond
    /// its reply: it may write, or it is neither a read nor a write, such as `SPUBLISH` or `SCRIPT KILL`. False for
    /// `WATCH` and `WAIT`, which change nothing.
    pub fn may_change(&self, id: PrivateId) -> bool {
        let request = self.peek(id).and_then(|link| link.in_flight.as_ref());
        request.is_some_and(|request| match request.nature.effect() {
            Effect::Read => false,
            Effect::Write => true,
            Effect::None => matches!(request.kind, Kind::Plain | Kind::Interrupt),
        })
    }

    /// Gives up the request in flight on a private link (unshared connection to a store), whose holder does not await
    /// the store's reply any more, and returns it for the caller to end; None if there was none, or if it was given up
    /// before. The link stays open until the store has replied ([`Event::Abandoned`]): the reply to a blocking command,
    /// which the store is asked to end, shows whether it had popped something, and that to any other request what it
    /// cost. The link is closed if there is no such request, the store cannot be asked, or the request has not been
    /// sent or is one about running scripts, which costs nothing.
    pub fn abandon(&mut self, env: &mut Env, id: PrivateId, now: Now) -> Option<PrivateRequest> {
        let connection = self.connection(id);
        let link = self.at(id).filter(|link| link.abandoned.is_none())?;
        let was_asked = link.state == State::Open && link.unsent_bytes() == 0;
        let was_sent = was_asked && link.may_have_sent();
        // A store that pops an element and sees the end of the connection in one round drops the reply: only a
        // command over another connection comes surely before or after.
        let is_told = was_asked && self.unblock(env, id, false, now);
        let link = self.at(id)?;
        if !is_told {
            link.raise_fence(env);
        }
        let mut request = link.in_flight.take();
        match (&mut request, link.holder) {
            (Some(PrivateRequest { kind: Kind::Waits(waiting), cells, to, .. }), Some((_, tenant)))
                if is_told =>
            {
                let (takes, cells) = (waiting.takes, std::mem::take(cells));
                let (to, told, owing) = (*to, waiting.told, Owing::Reply(waiting.paid_ahead.take()));
                link.abandoned = Some(Abandoned { takes, cells, tenant, owing, to, told });
                link.heard_at = now.monotonic;
            }
            (Some(request), Some((_, tenant))) if was_sent && request.is_measured_late() => {
                let (began, shares_quiet) = (request.began, request.shares_quiet.take());
                let owing = Owing::Rest { began, shares_quiet, nature: request.nature };
                let (cells, to) = (std::mem::take(&mut request.cells), request.to);
                let takes = Takes::Nothing;
                link.abandoned = Some(Abandoned { takes, cells, tenant, owing, to, told: 0 });
                if link.drops_reply() {
                    link.drop_partial(env, connection);
                }
            }
            _ => self.close(env, id),
        }
        request
    }

    /// Sends a request that puts back `count` elements which a store has popped for a client that had
    /// disconnected. The error returns the version cells (counters of writes) of their key, if there is no
    /// room for another link (unshared connection to a store). `backend` and `database` are where they were
    /// popped.
    pub fn put_back(
        &mut self,
        env: &mut Env,
        (backend, database): (BackendId, Database),
        (request, count): (&[u8], usize),
        cells: Vec<Cell>,
        now: Now,
    ) -> Result<(), Vec<Cell>> {
        let found = self.take_idle(|link| link.backend == backend && link.database == database);
        let helper = found.or_else(|| self.open(env, (backend, database), Protocol::Resp2, 1, now));
        let Some(helper) = helper else { return Err(cells) };
        let Some(link) = self.at(helper) else { return Err(cells) };
        link.puts_back = Some((cells, count));
        self.post(env, (helper, Expected::PutBack), request, now);
        Ok(())
    }

    /// Takes a private link (unshared connection to a store) back from its holder; does nothing if no client has it.
    /// The link is closed if it is not open, if a request is in flight on it, if its store has become a replica, or if
    /// it has or may have state that does not end (subscriptions, say); otherwise it is lent again once the store has
    /// dropped its state. `has_watched` says that keys may still be watched on it.
    pub fn give_back(&mut self, env: &mut Env, id: PrivateId, has_watched: bool, now: Now) {
        let Some(link) = self.at(id).filter(|link| link.holder.is_some()) else { return };
        // A late `CLIENT UNBLOCK` could still end the next blocking command on the same link.
        let is_spent = link.is_streaming || link.was_unblocked || link.is_inbox || link.is_held;
        if link.is_retired || link.in_flight.is_some() || is_spent || link.state != State::Open {
            return self.close(env, id);
        }
        // The next holder finds what the store was told last.
        (link.protocol, link.database) = (link.spoken, link.selected);
        if has_watched {
            self.unwatch(env, id, now);
        }
        self.return_from_holder(id);
        self.rest(env, id, now);
    }

    /// Closes a private link (unshared connection to a store) at once, without an event for its holder. If a
    /// write may be in flight on it, later connections ask the store to kill the link before they send
    /// requests (a fence).
    pub fn close(&mut self, env: &mut Env, id: PrivateId) {
        let Some(link) = self.at(id) else { return };
        link.raise_fence(env);
        env.actions.push_back(Action::Reset(self.owner(id)));
        self.remove(env, id);
    }

    fn remove(&mut self, env: &mut Env, id: PrivateId) -> Option<Link> {
        self.return_from_holder(id);
        let place =
            self.places.get_mut(id.place as usize).filter(|place| place.generation == id.generation)?;
        let mut link = place.link.take()?;
        let connection = self.connection(id);
        env.handle_reply_end(connection);
        self.put_off -= usize::from(link.put_off_until.is_some());
        link.clear_output(&mut env.pool);
        if let Some(request) = link.abandoned.take() {
            let place = (link.backend, link.database);
            self.events.push_back(Event::Abandoned { place, request, reply: None });
        }
        if let Some((cells, count)) = link.puts_back.take() {
            self.events.push_back(Event::PutBack { cells, count, end: PutBack::Lost });
        }
        for errand in std::mem::take(&mut link.errands) {
            self.end_errand(env, errand, None);
        }
        self.free.push(id.place);
        self.open -= 1;
        self.idle.retain(|idle| *idle != id);
        self.spare.take_if(|spare| *spare == id);
        if self.trackers.get(&link.backend) == Some(&id) {
            self.trackers.remove(&link.backend);
        }
        if self.feeds.get(&link.backend) == Some(&id) {
            self.feeds.remove(&link.backend);
        }
        Some(link)
    }

    fn return_from_holder(&mut self, id: PrivateId) {
        let Some((_, tenant)) = self.at(id).and_then(|link| link.holder.take()) else { return };
        if let Some(held) = self.held.get_mut(&tenant) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&tenant);
            }
        }
    }

    /// Sends the greeting (login, database, `CLIENT ID`) over a private link (unshared connection to a store) whose
    /// socket is connected now. Does nothing if `generation` is that of an earlier link in its place.
    pub fn handle_connected(&mut self, connection: ConnectionId, generation: u32, now: Now) {
        let id = self.id_of(connection, generation);
        if let Some(link) = self.at(id) {
            link.state = State::Greeting;
            link.heard_at = now.monotonic;
            self.list_to_send(id);
        }
    }

    /// Handles the loss of a private link's socket, or a failed attempt to connect it: the link (unshared connection
    /// to a store) is removed, which is reported as an event. After a loss on the way (`loss`), the store may still
    /// carry out a write in flight, so it is asked over later connections to kill the lost one. Does nothing if
    /// `generation` is that of an earlier link in its place.
    pub fn handle_lost(&mut self, env: &mut Env, (connection, generation): (ConnectionId, u32), loss: Loss) {
        let id = self.id_of(connection, generation);
        let Some(link) = self.at(id) else { return };
        let reason = if link.state == State::Opening { "connect-failed" } else { "connection-lost" };
        if loss == Loss::OnTheWay {
            link.raise_fence(env);
        }
        self.lose(env, id, reason);
    }

    /// Closes a private link (unshared connection to a store) from this side, for this `reason`. An event with the
    /// reason tells of the loss, if a client or the core itself uses the link.
    fn give_up(&mut self, env: &mut Env, id: PrivateId, reason: &'static str) {
        if let Some(link) = self.at(id) {
            link.raise_fence(env);
        }
        env.actions.push_back(Action::Reset(self.owner(id)));
        self.lose(env, id, reason);
    }

    fn lose(&mut self, env: &mut Env, id: PrivateId, reason: &'static str) {
        env.counters.add(Counter::LinksLost, 1);
        let holder = self.peek(id).and_then(|link| link.holder);
        let was_abandoned = self.peek(id).is_some_and(|link| link.abandoned.is_some());
        let was_sent = self.peek(id).is_some_and(Link::may_have_sent);
        let Some(mut link) = self.remove(env, id) else { return };
        if link.is_tracker {
            self.events.push_back(Event::Tracker { backend: link.backend, said: Said::Lost });
        }
        if link.is_feed {
            self.events.push_back(Event::Feed { backend: link.backend, said: Err(reason) });
        }
        if let Some((holder, _)) = holder.filter(|_| !was_abandoned) {
            let (request, backend) = (link.in_flight.take(), link.backend);
            self.events.push_back(Event::Lost { link: id, holder, request, backend, reason, was_sent });
        }
    }

    /// Handles bytes (`chunk`) that a store sent over a private link (unshared connection to a store). The
    /// replies and messages in them are taken with [`Self::poll_event`].
    pub fn handle_bytes(
        &mut self,
        env: &mut Env,
        (connection, generation): (ConnectionId, u32),
        mut chunk: &[u8],
        now: Now,
    ) {
        env.counters.add(Counter::BackendBytesReceived, chunk.len() as u64);
        let id = self.id_of(connection, generation);
        while !chunk.is_empty() {
            let Some(link) = self.at(id) else { return };
            link.heard_at = now.monotonic;
            let bytes_max = env.settings.reply_bytes_max;
            let Ok(scanned) = link.scanner.scan(chunk) else {
                return self.give_up(env, id, "malformed-reply");
            };
            let Some(scanned) = scanned else {
                match link.keep_partial(chunk, bytes_max) {
                    Some(part) => env.handle_reply_part((connection, generation), part),
                    None => env.handle_reply_end((connection, generation)),
                }
                return;
            };
            env.handle_reply_end((connection, generation));
            let (end, rest) = chunk.split_at(scanned.end);
            chunk = rest;
            env.counters.add(Counter::RepliesReceived, 1);
            let is_dropped = link.drops_reply();
            let (reply, bytes) = link.take_whole(end, bytes_max);
            let reply = reply.unwrap_or_else(|| {
                env.counters.add(Counter::RepliesOversized, u64::from(!is_dropped));
                oversized(bytes_max).into()
            });
            let size = ReplySize { bytes, rows: scanned.rows };
            self.take_reply(env, id, (scanned.kind, size), reply, now);
        }
    }

    /// Lets the time of a store's silence start anew on a link (unshared connection to a store) that weir does not read
    /// at present, because large replies on other connections take all memory set aside for them: the store is not to
    /// blame. Does nothing if `generation` is that of an earlier link in its place.
    pub fn excuse(&mut self, (connection, generation): (ConnectionId, u32), now: Timestamp) {
        let id = self.id_of(connection, generation);
        if let Some(link) = self.at(id) {
            link.heard_at = now;
        }
    }

    /// Takes the next event on a private link (unshared connection to a store); None if there is none.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the next bytes to send over a private link (unshared connection to a store), and the
    /// connection for them; None if there are none.
    pub fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        while let Some(id) = self.to_send.pop_front() {
            let owner = self.owner(id);
            let Some(link) = self.at(id) else { continue };
            link.is_listed = false;
            if let Some(segment) = link.take_output() {
                return Some((owner, segment));
            }
        }
        None
    }

    /// Records that the bytes taken for a private link (unshared connection to a store) were written to its socket, so
    /// that the next ones may be sent. Does nothing if `generation` is that of an earlier link in its place.
    pub fn handle_transmitted(&mut self, connection: ConnectionId, generation: u32) {
        let id = self.id_of(connection, generation);
        if let Some(link) = self.at(id) {
            link.is_sending = false;
            self.list_to_send(id);
        }
    }

    /// Gives up, with this `reason`, all private links (unshared connections to stores) to backends for which
    /// `has_left` is true, because their addresses belong to other servers now, or to none.
    pub fn leave(&mut self, env: &mut Env, has_left: impl Fn(BackendId) -> bool, reason: &'static str) {
        for index in 0..self.places.len() {
            let place = &self.places[index];
            let id = place.id(index);
            if place.link.as_ref().is_some_and(|link| has_left(link.backend)) {
                self.give_up(env, id, reason);
            }
        }
    }

    /// Closes the idle private links (unshared connections) to a store that has become a replica, and lets
    /// those that clients have be closed when they give them back, so that links opened later lead to the
    /// server that the store's address then belongs to. The core's own link for changes of hot keys is given
    /// up, and opened anew.
    pub fn retire(&mut self, env: &mut Env, backend: BackendId) {
        for index in 0..self.places.len() {
            let place = &mut self.places[index];
            let id = place.id(index);
            let Some(link) = place.link.as_mut().filter(|link| link.backend == backend) else { continue };
            link.is_retired = true;
            if link.is_tracker {
                self.give_up(env, id, "store-moved");
            } else if let Some(at) = self.idle.iter().position(|idle| *idle == id) {
                self.idle.remove(at);
                self.close(env, id);
            }
        }
    }

    /// Gives up private links (unshared connections to stores) that could not be opened in time, or whose store has
    /// owed a reply and sent nothing for too long, and closes links that were unused for a minute. A link on which a
    /// blocking command waits is not given up, however long the command waits. Has the runtime check whether stores
    /// that have owed a reply for 500 ms to 3 s still acknowledge bytes.
    pub fn look_after(&mut self, env: &mut Env, now: Now) {
        let settings = (env.settings.connect_timeout, env.settings.reply_timeout);
        for index in 0..self.places.len() {
            let place = &self.places[index];
            let id = place.id(index);
            let Some(link) = &place.link else { continue };
            if let Some(reason) = link.overdue(settings, now.monotonic) {
                self.give_up(env, id, reason);
            } else if link.is_to_be_examined(now.monotonic) {
                env.actions.push_back(Action::Examine(self.owner(id)));
            }
        }
        while let Some(id) = self.idle.front().copied() {
            let since = self.peek(id).map_or(Timestamp::ZERO, |link| link.idle_since);
            if now.monotonic.since(since) < IDLE_MAX {
                break;
            }
            self.idle.pop_front();
            self.close(env, id);
        }
    }

    /// Returns the private links (unshared connections to stores) whose request in flight has passed its
    /// deadline, each with its holder.
    pub fn overdue(&self, now: Timestamp) -> Vec<(ClientId, PrivateId)> {
        let late = self.places.iter().enumerate().filter_map(|(index, place)| {
            let link = place.link.as_ref()?;
            let request = link.in_flight.as_ref()?;
            let (holder, _) = link.holder?;
            let id = place.id(index);
            (request.deadline <= now).then_some((holder, id))
        });
        late.collect()
    }

    /// Returns the earliest deadline of a request in flight on a private link (unshared connection to a
    /// store), or the time at which one is to be sent once more if that is earlier; None if there is none.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        if self.lent() == 0 {
            return None;
        }
        let requests = self.places.iter().filter_map(|place| place.link.as_ref()?.in_flight.as_ref());
        let deadlines =
            requests.map(|request| request.deadline).filter(|deadline| *deadline != Timestamp::MAX);
        if self.put_off == 0 {
            return deadlines.min();
        }
        let due = self.places.iter().filter_map(|place| place.link.as_ref()?.put_off_until);
        deadlines.chain(due).min()
    }

    fn list_to_send(&mut self, id: PrivateId) {
        let Some(link) = self.at(id) else { return };
        if link.has_output() && !link.is_sending && !link.is_listed {
            link.is_listed = true;
            self.to_send.push_back(id);
        }
    }

    fn owner(&self, id: PrivateId) -> Owner {
        let (connection, generation) = self.connection(id);
        Owner::Link(connection, generation)
    }

    fn connection(&self, id: PrivateId) -> (ConnectionId, u32) {
        (ConnectionId(self.first + id.place), id.generation)
    }

    fn id_of(&self, connection: ConnectionId, generation: u32) -> PrivateId {
        PrivateId { place: connection.0 - self.first, generation }
    }

    fn at(&mut self, id: PrivateId) -> Option<&mut Link> {
        let place = self.places.get_mut(id.place as usize)?;
        place.link.as_mut().filter(|_| place.generation == id.generation)
    }

    fn peek(&self, id: PrivateId) -> Option<&Link> {
        let place = self.places.get(id.place as usize)?;
        place.link.as_ref().filter(|_| place.generation == id.generation)
    }
}

/// Encodes a request whose words are separated by spaces.
#[cfg(test)]
fn encoded(request: &str) -> Vec<u8> {
    let words: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
    let mut out = Vec::new();
    encode::request(&mut out, words.into_iter());
    out
}
