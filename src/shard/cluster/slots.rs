//! Slots of a cluster, which may move to another node while requests for them are in flight. Unused in front of plain
//! stores.
//!
//! ```text
//!   request ── slot held? ── no ──> its owner ── refused unexecuted: MOVED, ASK, TRYAGAIN, CLUSTERDOWN ──┐
//!                  └ yes ──────────────────────────────> held <──────────────────────────────────────────┘
//!                                                         └─ nothing of the slot in flight any more ──> in order, to where they belong
//! ```
//!
//! A slot is held (its requests wait) from its first redirect on, or from when a new owner is known while the old one
//! still owes replies. Held requests are sent together, each connection's in its order, when everything sent for the
//! slot is answered. So no request overtakes another of its connection, though some were refused and others not. While
//! requests that were sent again are in flight, the slot stays held.
//!
//! Only requests that a node refused, or reads that were lost with a connection, are sent again, and never
//! behind a later request of their connection for the same key that was carried out.
//!
//! TRYAGAIN and CLUSTERDOWN say that a node cannot carry out a request yet: it is sent again after a pause,
//! until its deadline and for at most a second. After CLUSTERDOWN, one request is tried for all that wait, so
//! that a node which is down for long is not flooded. When the time is over, the client gets the node's
//! error.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::unanswered::{Sent, Tries, Unanswered};
use crate::policy::retry_budget::RetryBudget;
use crate::protocol::command::{Class, Effect};
use crate::protocol::{RequestDecoder, RequestLimits, reply};
use crate::routing::cluster::{Map, NodeKey, NodeRefusal, Reason, Target};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::outcome::Outcome;
use crate::shard::pending::{InFlight, whole};
use crate::shard::pieces::{Pieces, taken_apart};
use crate::shard::reach;
use crate::shard::refusal::{NotSent, Stage};
use crate::shard::replies::{Replies, turn_away, turn_away_as};
use crate::shard::request::{Envelope, Nature, PRIMARY, ReplyTo, Route, Track};
use crate::shard::settings::Mode;
use crate::shard::stored::Stored;
use crate::values::limits::{REFUSAL_KEPT_BYTES_MAX, SLOT_HELD_MAX, SLOTS};
use crate::values::time::Now;
use crate::values::{BackendId, ConnectionId, Timestamp};

/// Maximum number of times that one request is sent again because of a redirect, where the loss of its connection
/// counts as one; at a further redirect it is refused. The count begins again at 0 when a node makes the request wait
/// (TRYAGAIN, CLUSTERDOWN).
const HOPS_MAX: u8 = 6;
/// The time without any bytes after which a node that owes a reply is suspected to be gone.
const SILENT: Duration = Duration::from_millis(500);
/// The pause before a request follows its second redirect. It doubles with each further one, up to 200 ms.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
/// The longest pause before a request follows a redirect.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// The pause before a request is sent again to a node that replied TRYAGAIN or CLUSTERDOWN. It doubles each
/// time, up to 50 ms.
const PAUSE_NOT_YET_FIRST: Duration = Duration::from_millis(5);
/// The longest pause before a request is sent again to a node that replied TRYAGAIN or CLUSTERDOWN.
const PAUSE_NOT_YET_MAX: Duration = Duration::from_millis(50);
/// Maximum number of requests that one core holds back because their slots are moving or their nodes cannot take them
/// yet; further ones are refused.
const HELD_MAX: usize = 16_384;
/// Maximum number of bytes of the requests that one core holds back because their slots are moving or their nodes
/// cannot take them yet; further ones are refused.
const HELD_BYTES_MAX: usize = 64 << 20;
/// The least time between two checks of the slots whose requests are held back (because the slot moves or
/// its node is down). A check comes earlier after an event that may release some, such as a reply.
pub const LOOKS_APART: Duration = Duration::from_millis(1);
/// The time for which a slot's owner that a redirect named takes precedence over the owner on the cluster
/// map.
const PATCH_HOLDS: Duration = Duration::from_secs(2);
/// The time by which an owner that a redirect named may be forgotten before its 2 s (`PATCH_HOLDS`) are over,
/// so that owners named shortly after one another are forgotten together.
const PATCHES_END_WITHIN: Duration = Duration::from_millis(10);
/// The time for which an ASK redirect is followed. After it, the slot may have moved to the named node, come
/// back, and begun to move again: a key that is still at the owner would be created a second time at the
/// named node.
const ASK_HOLDS: Duration = Duration::from_millis(250);
const _: () = assert!(ASK_HOLDS.as_millis() > PAUSE_MAX.as_millis(), "it outlasts what it may have to wait");
/// The time, after a script returned a false MOVED for a slot, in which a MOVED from a script does not hold
/// back the slot's requests.
const FORGED_HOLDS: Duration = Duration::from_secs(5);
/// The command that is sent right before a request to the node that is importing the request's slot.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";
/// `ROLE`, which is sent right before a request that only a primary may carry out.
const ROLE: &[u8] = b"*1\r\n$4\r\nROLE\r\n";

/// A request that is held back because its slot is moving, or because the slot's node cannot carry it out
/// yet.
#[derive(Debug)]
pub struct Held {
    envelope: Envelope,
    message: Stored,
    requests: usize,
    tries: Tries,
    /// The node that is importing the slot, and the time at which the owner replied so (ASK); None if no
    /// owner did.
    ask: Option<(BackendId, Timestamp)>,
    /// The refusal of the request, if it may be untrue (a script's, or one from an old map); None if the refusal is
    /// certain or there was none.
    doubted: Option<Doubted>,
    /// The text of the error with which a node that is down refused the request (CLUSTERDOWN), which the client gets if
    /// the request is not sent again in time; None if none did.
    words: Option<Arc<[u8]>>,
}

/// Owners of slots that redirects named, each with the time until which it overrides the map.
type Patches = BTreeMap<u16, (NodeKey, Timestamp)>;

/// Returns the owner of a slot: the one that a redirect named lately (`patches`), else the one on the map; None
/// if there is none.
fn owner_of(patches: &Patches, map: &Map, slot: u16) -> Option<BackendId> {
    patches.get(&slot).map(|(owner, _)| owner.backend).or_else(|| map.owner(slot))
}

/// The meaning of an owner's reply to a request: the reply for the client, or a refusal after which the
/// request is held or its client was sent an error.
#[derive(Debug)]
pub enum Heard {
    /// The reply is passed to the request's client.
    Answered,
    /// The node refused the request: it is held back to be sent again, or its client was sent an error. The node's
    /// reply is not passed on.
    Redirected,
    /// The node has refused the request because the cluster is down (CLUSTERDOWN). The caller passes the refused
    /// request to [`Slots::hold_for_node`], which keeps it until the node works again, for a second at most.
    NodeDown(Refused),
}

/// The destination of a request: a backend, or the list of held requests (kept until their slot's node can take them).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The request is held back, because its slot is moving or the slot's node cannot carry requests out.
    Held,
    /// The backend that owns the slot, or that the request names itself.
    Owner(Route),
    /// The backend that owns the slot, unless a replica is chosen for the read.
    OwnerOrReplica(Route),
}

/// A request that was held back and is to be sent now.
#[derive(Debug)]
pub struct Released {
    /// The request's reply address, and the route on which it is sent.
    pub envelope: Envelope,
    pub message: Stored,
    /// The number of requests in the message: more than one for a transaction, or for a fetch (shared read of
    /// a hot key) with `PTTL`.
    pub requests: usize,
    pub tries: Tries,
    /// True if `ASKING` must be sent before the request.
    pub is_asking: bool,
}

/// The consequences of a new map of the cluster for connections and for the recorded health of nodes.
#[derive(Debug, Default)]
pub struct MapChange {
    /// Nodes to which connections are tried at once, whatever failed before: they changed, or own more slots.
    pub reachable: Vec<BackendId>,
    /// Places in the table of nodes that have another node now, or whose node has another role.
    pub changed: Vec<BackendId>,
    /// Nodes that have left the cluster.
    pub gone: Vec<BackendId>,
}

/// A request that a node of the cluster has refused.
#[derive(Debug)]
pub struct Refused {
    /// The reply address, route, tier (importance) and tenant with which the refused request is sent again; the route
    /// leads to the node that refused it.
    envelope: Envelope,
    frame: Vec<u8>,
    /// The slot, number of requests and earlier redirects of the refused request, from when it was sent.
    sent: Sent,
    /// The node that refused the request.
    sender: BackendId,
    /// The measurements of the refusal if the request is a script, which may have run and made the refusal up;
    /// `Outcome::Refused` for any other request.
    ran: Outcome,
}

/// Conditions under which a refused request is sent again: to the node that an ASK named (`ask`), once a new
/// map confirms the refusal (`doubted`), or once a node that is down works again. `words` is the error of
/// that node, which the client gets if the request cannot be sent in time.
#[derive(Debug, Default)]
struct Until {
    ask: Option<(BackendId, Timestamp)>,
    doubted: Option<Doubted>,
    words: Option<Arc<[u8]>>,
}

/// A refusal that may be untrue: the version of the map when it came, and the time. A newer map shows whether it was
/// true.
#[derive(Clone, Copy, Debug)]
struct Doubted {
    version: u64,
    at: Timestamp,
    /// The outcome from which the request's price follows if it is not sent again: the measurements of the refusal if
    /// the request is a script, which may have run and made the refusal up; `Outcome::Refused` for any other request.
    ran: Outcome,
}

/// The requests of one slot that are held back, and the conditions for sending them.
#[derive(Debug, Default)]
struct Hold {
    list: Vec<Held>,
    not_before: Timestamp,
    carried_out: CarriedOut,
    /// The last reply to a request for the slot, if it was CLUSTERDOWN (the node cannot serve it at present);
    /// else None.
    down: Option<Down>,
}

/// A node's CLUSTERDOWN to a request for a slot, with the retries that follow.
#[derive(Debug)]
struct Down {
    /// The text of the CLUSTERDOWN error, which clients get when the time for retries is over.
    words: Arc<[u8]>,
    /// The time at which the request was sent that the node last answered with CLUSTERDOWN.
    sent_at: Timestamp,
    /// The number of CLUSTERDOWN replies in a row. Those to requests that were sent before `again_at` was over do not
    /// count.
    times: u8,
    /// The time before which no request for the slot is sent to the node again.
    again_at: Timestamp,
}

/// For each client connection and key, the sequence number of the newest request that was carried out after
/// the slot's requests were first held back. Older requests may not be sent again. Keys of the same name in
/// all databases count as one, because `MOVE` and `COPY` change keys of two.
#[derive(Debug, Default)]
struct CarriedOut(HashMap<(u64, Box<[u8]>), u32>);

impl CarriedOut {
    fn note(&mut self, connection: u64, to: ReplyTo, frame: &[u8]) {
        for key in keys_of(frame) {
            let newest = self.0.entry((connection, key)).or_insert(to.sequence);
            if to.sequence.wrapping_sub(*newest) as i32 > 0 {
                *newest = to.sequence;
            }
        }
    }
}

impl Hold {
    /// Takes the held-back requests of the slot that are sent next, in the order of each connection (first list), and
    /// those that may not be sent again because a later request of their connection for the same key was carried out
    /// (second list). Others stay held back: behind refused requests, which are sent alone, behind requests in pieces,
    /// and behind the one that tests whether a node is up again.
    fn take_next(&mut self, pieces: &Pieces) -> (Vec<Held>, Vec<Held>) {
        // Refused requests go first, alone: later ones must not be carried out before them if they are
        // refused again.
        let mut list: Vec<Held> = self.list.extract_if(.., |held| held.tries.were_refused()).collect();
        if list.is_empty() {
            list = std::mem::take(&mut self.list);
        }
        let carried_out = std::mem::take(&mut self.carried_out);
        // Sequence numbers may wrap, so they are compared with one of the same connection.
        let mut some: HashMap<u64, u32> = HashMap::new();
        for Held { envelope: Envelope { reply_to: to, .. }, .. } in &list {
            some.entry(pieces.connection(*to)).or_insert(to.sequence);
        }
        list.sort_by_cached_key(|Held { envelope: Envelope { reply_to: to, .. }, .. }| {
            let some = some.get(&pieces.connection(*to)).copied().unwrap_or_default();
            (to.sequence.wrapping_sub(some) as i32, to.part)
        });
        let was_overtaken = |held: &mut Held| {
            let to = held.envelope.reply_to;
            let is_newer = |key| {
                let newest = carried_out.0.get(&(pieces.connection(to), key));
                newest.is_some_and(|newest| newest.wrapping_sub(to.sequence) as i32 > 0)
            };
            let was_sent = held.tries.were_refused() && !carried_out.0.is_empty();
            was_sent && keys_of(held.message.message().bytes()).into_iter().any(is_newer)
        };
        let overtaken = list.extract_if(.., was_overtaken).collect();
        if list.iter().any(Held::is_piece) {
            // Pieces of a split request go to several nodes, so what comes behind them must wait until they
            // are answered, and they for what comes before them. For each connection, `until` has whether its
            // first request is in pieces, the number of that request, and whether a later one must wait.
            let mut until: HashMap<u64, (bool, u32, bool)> = HashMap::new();
            let is_later = |held: &mut Held| {
                let (to, is_piece) = (held.envelope.reply_to, held.is_piece());
                let (first_is_piece, first, has_later) =
                    until.entry(pieces.connection(to)).or_insert((is_piece, to.sequence, false));
                *has_later |= if *first_is_piece { *first != to.sequence } else { is_piece };
                *has_later
            };
            let later: Vec<Held> = list.extract_if(.., is_later).collect();
            self.list.extend(later);
        }
        if self.down.is_some() && list.len() > 1 {
            // The first request tests whether the node is up again. For the others, it must be remembered
            // which requests were carried out.
            self.list.extend(list.drain(1..));
            self.carried_out = carried_out;
        }
        (list, overtaken)
    }
}

/// A reason to suspect that this core's map of the cluster is out of date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The event that makes the map doubtful, which decides the nodes that are asked for a new one.
    pub reason: Reason,
    /// The slot and its new owner, if a redirect named one.
    pub moved: Option<(u16, NodeKey)>,
}

/// The state that one core keeps of the cluster's slots.
#[derive(Debug)]
pub struct Slots {
    pub(super) map: Arc<Map>,
    /// The unanswered requests of each connection, by the connection's index, kept in case they must be sent
    /// again.
    unanswered: Vec<Unanswered>,
    /// Owners of slots that redirects named, each with the time until which it overrides the map.
    patches: Patches,
    /// The earliest time at which an owner that a redirect named may stop overriding the map;
    /// `Timestamp::MAX` if none does.
    patched_until: Timestamp,
    /// Slots for which a script returned a false MOVED, each with the time until which scripts are not
    /// believed.
    forged: BTreeMap<u16, Timestamp>,
    holds: BTreeMap<u16, Hold>,
    held: usize,
    held_bytes: usize,
    doubt: Option<Doubt>,
    /// The time at which this core last checked which held-back requests can be sent, after which the next
    /// check is due.
    looked_at: Timestamp,
    is_touched: bool,
    /// Nodes that replied CLUSTERDOWN and have given no better reply since, each with the time from which on the
    /// held-back request of one more slot may be sent to it.
    down: BTreeMap<BackendId, Timestamp>,
    /// The index of the connection from which the search for nodes that owe replies and send nothing
    /// continues.
    silent_next: usize,
    /// The budget for sending again reads that were lost with a connection: a share of all requests sent, and ten per
    /// second over all cores.
    pub(super) retries: RetryBudget,
}

impl Slots {
    /// Creates the state that one of `cores` cores keeps of the cluster's slots, with the first map of the
    /// cluster. `connections` is the number of this core's connections to nodes.
    pub fn new(map: Arc<Map>, cores: u16, connections: usize) -> Self {
        Self {
            map,
            unanswered: (0..connections).map(|_| Unanswered::default()).collect(),
            patches: BTreeMap::new(),
            patched_until: Timestamp::MAX,
            forged: BTreeMap::new(),
            holds: BTreeMap::new(),
            held: 0,
            held_bytes: 0,
            doubt: None,
            looked_at: Timestamp::ZERO,
            is_touched: false,
            down: BTreeMap::new(),
            silent_next: 0,
            retries: RetryBudget::new(cores),
        }
    }

    /// Returns the owner of a slot: the one that a redirect named lately, else the one on the map; None if
    /// there is none.
    pub fn owner(&self, slot: u16) -> Option<BackendId> {
        owner_of(&self.patches, &self.map, slot)
    }

    /// True if the backend owns the slot on the map, and no redirect has lately named the owner of any slot.
    #[inline]
    fn is_owner(&self, slot: u16, backend: BackendId) -> bool {
        self.patches.is_empty() && slot < SLOTS && self.map.owner(slot) == Some(backend)
    }

    fn doubt(&mut self, reason: Reason, moved: Option<(u16, NodeKey)>) {
        // A doubt that names an owner is worth more than one that does not.
        if self.doubt.is_none_or(|doubt| doubt.moved.is_none()) {
            self.doubt = Some(Doubt { reason, moved });
        }
    }

    fn key_of(&self, backend: BackendId) -> Option<NodeKey> {
        self.map.node(backend).map(|node| node.key)
    }

    /// True if the slot is moving to another owner on the map, a redirect named its owner in the last 2 s,
    /// or its requests are held.
    pub(super) fn is_moving(&self, slot: u16) -> bool {
        self.map.open_slot(slot).is_some()
            || self.patches.contains_key(&slot)
            || self.holds.contains_key(&slot)
    }

    /// True if new requests for the slot are held back, because it is moving or its node is down, even if none waits
    /// now.
    pub fn is_held(&self, slot: u16) -> bool {
        self.holds.contains_key(&slot)
    }

    /// Records that a request (`frame`) was carried out, or may have been. An earlier request of its client connection
    /// for the same key must not be sent again then. `slot` is the key's slot, `to` the request's reply address. Does
    /// nothing unless requests for the slot are held back.
    pub(super) fn record_carried_out(&mut self, connection: u64, to: ReplyTo, slot: u16, frame: &[u8]) {
        if let Some(hold) = self.holds.get_mut(&slot) {
            hold.carried_out.note(connection, to, frame);
        }
    }

    /// True if at least one request for the slot is held back now, and waits to be sent.
    pub fn is_holding(&self, slot: u16) -> bool {
        self.holds.get(&slot).is_some_and(|hold| !hold.list.is_empty())
    }

    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        self.held < HELD_MAX && self.held_bytes + bytes <= HELD_BYTES_MAX
    }

    pub(super) fn hold(&mut self, held: Held) {
        self.is_touched = true;
        self.held += 1;
        self.held_bytes += held.message.len();
        self.holds.entry(held.envelope.route.slot).or_default().list.push(held);
    }
}

impl Slots {
    /// Adds a request that was sent for a slot over a connection to the connection's unanswered ones.
    /// `requests` is the number of requests in the message, and `tries` counts its redirects and waits so
    /// far.
    #[inline]
    pub fn push_sent(
        &mut self,
        connection: ConnectionId,
        (slot, requests): (u16, usize),
        tries: Tries,
        message: Message<'_>,
    ) {
        self.unanswered_mut(connection).push((slot, requests), tries, message);
    }

    /// True if the bytes kept of a connection's unanswered requests, in case they must be sent again, are
    /// below their limit of 64 MiB, so that more may be sent.
    #[inline]
    pub fn has_room(&self, connection: ConnectionId) -> bool {
        self.unanswered.get(connection.0 as usize).is_none_or(Unanswered::has_room)
    }

    /// Returns the list of a connection's unanswered requests.
    pub(super) fn unanswered_mut(&mut self, connection: ConnectionId) -> &mut Unanswered {
        let place = connection.0 as usize;
        if place >= self.unanswered.len() {
            self.make_places(place + 1);
        }
        &mut self.unanswered[place]
    }

    /// Adds lists of unanswered requests for connections that were created since the start: those to a
    /// database that a client has used for the first time. `connections` is the number of connections by
    /// then.
    #[cold]
    fn make_places(&mut self, connections: usize) {
        self.unanswered.resize_with(connections, Unanswered::default);
    }

    /// Takes all unanswered requests of a connection, because it is lost.
    pub fn take_unanswered(&mut self, connection: ConnectionId) -> Unanswered {
        std::mem::take(self.unanswered_mut(connection))
    }

    /// True if an unanswered request of the slot was sent again, after a node had refused it or it was lost with a
    /// connection.
    pub fn has_again(&self, slot: u16) -> bool {
        self.unanswered.iter().any(|unanswered| unanswered.has_again(slot))
    }

    /// Frees unused memory that the lists of unanswered requests took in a burst of requests.
    pub fn tidy(&mut self) {
        self.unanswered.iter_mut().for_each(Unanswered::tidy);
    }

    /// Puts a new map of the cluster in force and returns what it changes. Forgets owners that redirects named, if
    /// their time is over or the new map shows that they do not own the slot. The caller handles the changes, then
    /// calls [`Slots::hold_moved`].
    pub fn handle_map(&mut self, map: Arc<Map>, now: Now) -> MapChange {
        let older = std::mem::replace(&mut self.map, map);
        let Self { patches, forged, map, .. } = self;
        forged.retain(|_, until| *until > now.monotonic);
        // The place of a node that has left may be empty, or another node's.
        let is_out = |owner: NodeKey, slot| {
            map.node_of(owner).is_none() || map.has_lost(owner.backend, slot) || map.is_replica(owner.backend)
        };
        patches.retain(|slot, (owner, until)| *until > now.monotonic && !is_out(*owner, *slot));
        let (changed, gained) = (map.changed_since(&older), map.gained_since(&older));
        let gone = map.gone_since(&older).map(|node| node.backend).collect();
        let reachable = gained.union(&changed.iter().copied().collect()).copied().collect();
        MapChange { reachable, changed, gone }
    }

    /// Forgets the owners that redirects named about 2 s ago or earlier (`PATCH_HOLDS`). A slot that has another
    /// owner on the map is held until its requests in flight are answered.
    fn end_patches(&mut self, now: Timestamp) {
        let Self { patches, holds, map, .. } = self;
        // Owners that were named one after the other are forgotten together, as each search looks at all.
        let soon = now.after(PATCHES_END_WITHIN);
        patches.retain(|slot, (owner, until)| {
            let stays = *until > soon;
            if !stays && map.owner(*slot) != Some(owner.backend) {
                holds.entry(*slot).or_default();
            }
            stays
        });
        self.patched_until = patches.values().map(|(_, until)| *until).min().unwrap_or(Timestamp::MAX);
        self.is_touched = true;
    }

    /// Holds the slots that have another owner now, if requests for them are still in flight at the former
    /// owner or wait to be sent to it: these must be carried out before requests at the new owner. `owner_at`
    /// gives the backend of a connection; None for a connection to a replica, whose unanswered reads do not
    /// matter. `waiting` has slot and backend of each request that waits in a queue.
    pub fn hold_moved(
        &mut self,
        owner_at: impl Fn(usize) -> Option<BackendId>,
        waiting: impl Iterator<Item = (u16, BackendId)>,
    ) {
        self.is_touched = true;
        let Self { unanswered, holds, patches, map, .. } = self;
        let owners = unanswered.iter().enumerate();
        let owners = owners.filter_map(|(place, unanswered)| Some((unanswered, owner_at(place)?)));
        let former =
            owners.flat_map(|(unanswered, backend)| unanswered.slots().map(move |slot| (slot, backend)));
        for (slot, backend) in former.chain(waiting) {
            if slot < SLOTS && owner_of(patches, map, slot) != Some(backend) {
                holds.entry(slot).or_default();
            }
        }
    }

    /// Returns the failed primaries whose slots other nodes own by now, so that their replies need not be
    /// awaited.
    pub fn fallen(&self) -> Vec<BackendId> {
        self.map.fallen().map(|node| node.key.backend).collect()
    }

    /// Suspects that the map is old if a node has owed a reply and sent nothing for 500 ms (`SILENT`):
    /// other nodes may know that it is gone, long before that is certain here. `owes_since` gives the
    /// backend of a connection and the time since which it owes a reply and is silent; None if it owes
    /// none.
    pub fn doubt_silent(&mut self, owes_since: impl Fn(usize) -> Option<(BackendId, Timestamp)>, now: Now) {
        let connections = self.unanswered.len();
        let is_long = |since| now.monotonic.since(since) >= SILENT;
        // The search goes round, so that each silent node has its turn.
        let next = self.silent_next.min(connections);
        let found = (next..connections)
            .chain(0..next)
            .find_map(|place| owes_since(place).filter(|(_, since)| is_long(*since)).map(|at| (place, at.0)));
        if let Some((place, backend)) = found {
            self.silent_next = place + 1;
            self.doubt(Reason::LinkLost(self.key_of(backend)), None);
        }
    }

    /// Makes this turn (pass of the shard's loop) check which held-back requests can be sent, because the map
    /// was confirmed or a connection was lost.
    pub fn touch(&mut self) {
        self.is_touched = true;
    }

    /// Makes this turn (pass of the shard's loop) check which held-back requests can be sent, if some are
    /// held back for the slot of a connection's oldest unanswered request. Called when the reply to that
    /// request has come, before the request is removed from the list.
    pub(super) fn touch_next(&mut self, connection: ConnectionId) {
        let slot = self.unanswered_mut(connection).next_slot();
        self.is_touched |= slot.is_some_and(|slot| self.is_held(slot));
    }

    /// Takes the reason to suspect that the cluster map is old, so that nodes are asked for a new map; None
    /// if there is none.
    pub fn take_doubt(&mut self) -> Option<Doubt> {
        self.doubt.take()
    }

    /// Handles a lost or failed connection to a node: suspects that the map is old, and makes this turn (pass
    /// of the shard's loop) check which held-back requests can be sent.
    pub fn handle_link_lost(&mut self, backend: BackendId) {
        self.touch();
        self.doubt(Reason::LinkLost(self.key_of(backend)), None);
    }

    /// Returns the time by which slots with held requests (kept until their slot's node can take them), and
    /// owners that redirects named, are to be checked again; None if there are none.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let held = (!self.holds.is_empty()).then(|| self.looked_at.after(LOOKS_APART));
        let next = held.unwrap_or(Timestamp::MAX).min(self.patched_until);
        (next != Timestamp::MAX).then_some(next)
    }

    /// True if a request may go straight to the backend of its route: no slot's requests are held, no redirect has
    /// lately named an owner, the backend owns the slot, and the request is not one that a replica may answer.
    #[inline]
    pub fn is_at_owner(&self, route: Route) -> bool {
        self.holds.is_empty() && route.track != Track::Replica && self.is_owner(route.slot, route.backend)
    }

    /// Finds the destination of a request (its slot's owner or, for a read, perhaps a replica), or holds the request if
    /// its slot is held. A request without a slot goes to the backend that it names. An error if too many requests are
    /// held, or if the slot has no owner: the cluster is then asked for its map again.
    pub fn find_place(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) -> Result<Place, NotSent> {
        let slot = envelope.route.slot;
        if slot >= SLOTS {
            return Ok(Place::Owner(envelope.route));
        }
        if self.is_held(slot) {
            if !self.has_room_for(message.bytes().len()) {
                return Err(NotSent::Queue(LOOKS_APART));
            }
            self.hold(Held::new(env, envelope, message, requests, now));
            env.counters.add(Counter::SlotsHeld, 1);
            return Ok(Place::Held);
        }
        let Some(backend) = self.owner(slot) else {
            self.doubt(Reason::Moved(None), None);
            return Err(NotSent::NoOwner);
        };
        let route = Route { backend, ..envelope.route };
        Ok(if route.track == Track::Replica && envelope.nature.effect() == Effect::Read {
            Place::OwnerOrReplica(route)
        } else {
            Place::Owner(Route { track: track_at_owner(route.track), ..route })
        })
    }

    /// Holds a request that waited for room in its window (limit on requests in flight), if its slot is held or has
    /// another owner by now, however many are held. True if it is held.
    pub fn hold_if_moved(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) -> bool {
        let (slot, backend) = (envelope.route.slot, envelope.route.backend);
        let is_held = slot < SLOTS && (self.owner(slot) != Some(backend) || self.is_held(slot));
        if is_held {
            self.hold(Held::new(env, envelope, message, requests, now));
        }
        is_held
    }

    /// Records a reply that comes before the last one to a message: to a request of a transaction before its
    /// `EXEC`, or to a command sent right before a request (`ROLE`, `ASKING`). A redirect, or a reply which
    /// shows that the node is no primary, is kept until the last reply comes. `kind` is the reply's first
    /// byte; `kept` and `end` are its earlier bytes, and the last ones.
    pub fn record_step(&mut self, connection: ConnectionId, kind: u8, (kept, end): (&[u8], &[u8])) {
        let unanswered = self.unanswered_mut(connection);
        let is_role = unanswered.next_slot() == Some(PRIMARY);
        if kind != b'-' && !is_role {
            return;
        }
        let whole = whole(kept, end);
        let matters = if is_role { is_replica(&whole) } else { NodeRefusal::parse(&whole).is_some() };
        if matters {
            unanswered.step.get_or_insert(whole.into_owned());
        }
    }

    /// Removes the oldest unanswered request of a connection, to which a reply has come, if nothing more has
    /// to be done about the reply: it is not an error, no held request of the slot waits for it, no node is
    /// down while slots are held, no earlier reply to the same message matters (`record_step`), and its
    /// response time is not needed to choose between replicas (`is_compared`). True if the request was
    /// removed.
    #[inline]
    pub fn settle_if_plain(&mut self, connection: ConnectionId, is_error: bool, is_compared: bool) -> bool {
        let Self { holds, down, unanswered, .. } = self;
        // A reply comes only to a request, so the connection has an entry.
        let unanswered = &mut unanswered[connection.0 as usize];
        // The common case: the reply's slot has no held requests.
        let is_of_rest = holds.is_empty()
            || down.is_empty() && unanswered.next_slot().is_some_and(|slot| !holds.contains_key(&slot));
        let is_plain = !is_error && is_of_rest && unanswered.step.is_none() && !is_compared;
        if is_plain {
            unanswered.forget();
        }
        is_plain
    }

    /// Handles the reply of a slot's owner (`sender`) that may be a refusal; `error` is its text if it is an
    /// error. If the request was not carried out, it is held for later, or its client is sent an error.
    /// `request` is the record of the request, which was sent over `connection` on `track`. `ran` is the outcome from
    /// which its price follows if its client is sent an error although it may have run: the measurements of the reply
    /// if it is a script, else `Outcome::Refused`.
    pub fn take_owner_reply(
        &mut self,
        env: &mut Env,
        (connection, sender, track): (ConnectionId, BackendId, Track),
        (request, error, ran): (&InFlight, Option<&[u8]>, Outcome),
        replies: &mut impl Replies,
        now: Now,
    ) -> Heard {
        let unanswered = self.unanswered_mut(connection);
        let step = unanswered.step.take();
        let refused = match (&step, error) {
            (Some(step), Some(error)) if error.starts_with(b"-EXECABORT") => NodeRefusal::parse(step),
            (_, Some(error)) => NodeRefusal::parse(error),
            (_, None) => None,
        };
        let Envelope { reply_to: to, nature: Nature { class, .. }, .. } = request.envelope;
        // Errors that do not name another node are passed on. So is a script's CLUSTERDOWN, since the script
        // may have been carried out.
        let is_down = refused == Some(NodeRefusal::ClusterDown);
        let is_sick = refused.is_some_and(|refused| refused.unavailability().is_some());
        let is_handed_on = is_sick || is_down && class == Class::Script;
        let refused = refused.filter(|_| !is_handed_on);
        let next_slot = unanswered.next_slot();
        let is_wanted = refused.is_some() || next_slot.is_some_and(|slot| self.is_held(slot));
        let Some((sent, frame)) = self.unanswered_mut(connection).pop(is_wanted) else {
            return Heard::Answered;
        };
        self.is_touched |= is_wanted;
        if request.is_abandoned {
            if refused.is_none() {
                self.record_carried_out(env.pieces.connection(to), to, sent.slot, &frame);
            }
            return Heard::Answered;
        }
        if sent.slot == PRIMARY && step.is_some() {
            if let Some(node) = self.key_of(sender) {
                self.doubt(Reason::ReadOnly(node), None);
            }
            replies.note(env, to, Note::NotPrimary);
            turn_away(env, replies, (to, sender, request.envelope.tier), NotSent::NotPrimary, now);
            return Heard::Redirected;
        }
        if sent.slot >= SLOTS {
            return Heard::Answered;
        }
        if (is_down || is_sick)
            && let Some(node) = self.key_of(sender)
        {
            self.doubt(Reason::ClusterDown(node), None);
        }
        if !is_down && !is_sick {
            self.record_not_down(sent.slot, sender);
        }
        let Some(refused) = refused else {
            self.record_carried_out(env.pieces.connection(to), to, sent.slot, &frame);
            return Heard::Answered;
        };
        let route = Route { backend: sender, track, ..request.envelope.route };
        let asked = Refused { envelope: Envelope { route, ..request.envelope }, frame, sent, sender, ran };
        if !is_down {
            self.redirect(env, refused, &asked, class, replies, now);
            return Heard::Redirected;
        }
        let error = error.unwrap_or_default();
        if !self.may_wait(env, &asked, request.sent_at, now.monotonic) || error.len() > REFUSAL_KEPT_BYTES_MAX
        {
            if self.is_held(sent.slot) {
                let words = &error[..error.len().min(REFUSAL_KEPT_BYTES_MAX)];
                self.record_down((sent.slot, sender), words, request.sent_at, now.monotonic);
            }
            return Heard::Answered;
        }
        Heard::NodeDown(asked)
    }

    /// Holds a request, sent at `sent_at`, that a node which is down has refused. `words` is the error that
    /// the client gets if the request is not sent again in time.
    pub fn hold_for_node(
        &mut self,
        env: &mut Env,
        request: &Refused,
        words: &[u8],
        sent_at: Timestamp,
        now: Now,
    ) {
        let place = (request.sent.slot, request.sender);
        let words = self.record_down(place, words, sent_at, now.monotonic);
        env.counters.add(Counter::RefusedClusterDown, 1);
        let tries = request.sent.tries.once_more(now.monotonic);
        self.hold_refused(env, request, tries, Until { words: Some(words), ..Until::default() });
    }

    /// Takes the held requests (kept until their slot's node can take them) of slots whose other requests are all
    /// answered and whose pause is over, and answers with an error those whose deadline has passed (if deadlines are
    /// on) or that were held for a second. Before that, forgets the owners that redirects named about 2 s ago or
    /// earlier. Where a node is down, takes one request at a time. Looks at the requests at most once in 1 ms, unless
    /// something has happened that may release some. `waiting` are the slots of requests that wait for room in windows.
    /// The caller passes each request taken to [`Slots::release`].
    #[inline(never)]
    pub fn take_ready(
        &mut self,
        env: &mut Env,
        waiting: impl Iterator<Item = u16>,
        replies: &mut impl Replies,
        now: Now,
    ) -> Vec<Held> {
        if now.monotonic >= self.patched_until {
            self.end_patches(now.monotonic);
        }
        if self.holds.is_empty() {
            return Vec::new();
        }
        // A check looks at everything in flight on all connections, so it is not made in every turn.
        if !self.is_touched && now.monotonic.since(self.looked_at) < LOOKS_APART {
            return Vec::new();
        }
        (self.looked_at, self.is_touched) = (now.monotonic, false);
        let Self { holds, map, forged, patches, down, unanswered, .. } = self;
        let mut asking: Vec<(Timestamp, u16)> = Vec::new();
        let in_flight = unanswered.iter().flat_map(Unanswered::slots);
        let busy: BTreeSet<u16> = in_flight.chain(waiting).filter(|slot| holds.contains_key(slot)).collect();
        let mut late: Vec<(Held, Told)> = Vec::new();
        let mut ready: Vec<Held> = Vec::new();
        holds.retain(|slot, hold| {
            let is_over = |held: &&Held| held.is_late(env, now.monotonic) || !held.is_doubted(env, map);
            for held in hold.list.iter().filter(|held| held.is_unproven(env, map)).filter(is_over) {
                forged.insert(*slot, now.monotonic.after(FORGED_HOLDS));
                // The node may have carried out the script, so it counts among the requests that were carried
                // out.
                let (to, frame) = (held.envelope.reply_to, held.message.message().bytes());
                hold.carried_out.note(env.pieces.connection(to), to, frame);
            }
            late.extend(hold.list.extract_if(.., |held| held.is_late(env, now.monotonic)).map(|held| {
                let is_late = now.monotonic >= obeyed_deadline(env, &held.envelope);
                let waited = now.monotonic.since(held.tries.held_since);
                // A script may have run, which a deadline that passed in a queue would deny.
                let is_unsent = is_late && !held.is_scripts_word();
                let why = if is_unsent { NotSent::TooLate(Stage::Queue, waited) } else { NotSent::Redirects };
                let told = held.told(hold.down.as_ref(), why);
                (held, told)
            }));
            let has_doubts = hold.list.iter().any(|held| held.is_doubted(env, map));
            if busy.contains(slot) || has_doubts || now.monotonic < hold.not_before {
                return true;
            }
            if hold.down.is_some() && !hold.list.is_empty() {
                asking.push((hold.not_before, *slot));
                return true;
            }
            hold.let_go(env, &mut late, &mut ready)
        });
        // Of slots that wait for one node that is down, the one that has waited longest asks it, and the next
        // one `LOOKS_APART` later.
        asking.sort_unstable();
        for (_, slot) in asking {
            let owner = owner_of(patches, map, slot);
            if let Some(not_before) = owner.and_then(|owner| down.get_mut(&owner)) {
                if now.monotonic < *not_before {
                    continue;
                }
                *not_before = now.monotonic.after(LOOKS_APART);
            }
            if let Some(hold) = holds.get_mut(&slot)
                && !hold.let_go(env, &mut late, &mut ready)
            {
                holds.remove(&slot);
            }
        }
        if holds.is_empty() {
            down.clear();
        }
        for held in ready.iter().chain(late.iter().map(|(held, _)| held)) {
            self.held -= 1;
            self.held_bytes -= held.message.len();
        }
        for (held, told) in late {
            match told {
                Told::Why(why) => {
                    turn_away_as(held.outcome(), env, replies, held.envelope.addressee(), why, now);
                }
                Told::Words(words) => {
                    let outcome = Outcome::answered(words.len());
                    replies.reply(env, held.envelope.reply_to, outcome, Message::Small(&words), now);
                }
            }
            held.message.release(&mut env.pool);
        }
        ready
    }

    /// Returns a held-back request with the route on which it is to be sent now. Answers it with an error, and returns
    /// None, if it is a script whose redirect was not confirmed, or if its slot has no owner.
    pub fn release(
        &mut self,
        env: &mut Env,
        held: Held,
        replies: &mut impl Replies,
        now: Now,
    ) -> Option<Released> {
        // A script that was carried out may return any text. Its redirect was true only if the slot has left
        // its node, and only nodes say where the slot is.
        let (is_untrue, is_scripts_word) = (held.is_unproven(env, &self.map), held.is_scripts_word());
        let ran = held.outcome();
        let Held { envelope, message, requests, tries, ask, .. } = held;
        let Route { slot, backend: sender, .. } = envelope.route;
        let current = if is_scripts_word { self.map.owner(slot) } else { self.owner(slot) };
        // An ASK does not count if the node that gave it no longer owns the slot.
        let is_fresh = |(_, said_at): &(_, Timestamp)| now.monotonic.since(*said_at) < ASK_HOLDS;
        let ask = ask.filter(is_fresh).filter(|_| current == Some(sender));
        let owner = ask.map(|(target, _)| target).or(current);
        let Some(backend) = owner.filter(|_| !is_untrue) else {
            let (outcome, why) =
                if is_untrue { (ran, NotSent::Redirects) } else { (Outcome::Refused, NotSent::NoOwner) };
            turn_away_as(outcome, env, replies, envelope.addressee(), why, now);
            message.release(&mut env.pool);
            return None;
        };
        let envelope = Envelope { route: Route { backend, ..envelope.route }, ..envelope };
        Some(Released { envelope, message, requests, tries, is_asking: ask.is_some() })
    }
}

/// Puts `ASKING` before the bytes of a request (`frame`) to the node that is importing its slot.
pub fn behind_asking(frame: &[u8]) -> Vec<u8> {
    [ASKING, frame].concat()
}

/// The reply to the client of a held request that is not sent again.
enum Told {
    /// An error of weir's own, with the reason why the request was not sent.
    Why(NotSent),
    /// The error text of the node that was down (CLUSTERDOWN).
    Words(Arc<[u8]>),
}

impl Hold {
    /// Moves those of the slot's held requests that are to be sent now into `ready`, and those that may not
    /// be sent again, each with its client's error, into `late`. True if the slot's later requests are
    /// still to be held.
    fn let_go(&mut self, env: &Env, late: &mut Vec<(Held, Told)>, ready: &mut Vec<Held>) -> bool {
        let (list, overtaken) = self.take_next(&env.pieces);
        let is_asking = self.down.is_some() && !list.is_empty();
        let stays = !self.list.is_empty() || is_asking || list.iter().any(|held| held.tries.were_refused());
        late.extend(overtaken.into_iter().map(|held| {
            let told = held.told(None, NotSent::Redirects);
            (held, told)
        }));
        ready.extend(list);
        stays
    }
}

/// Returns the pause before a request is sent again to a node that has replied TRYAGAIN or CLUSTERDOWN
/// `times` times in a row.
pub fn pause_not_yet(times: u8) -> Duration {
    doubled(PAUSE_NOT_YET_FIRST, times).min(PAUSE_NOT_YET_MAX)
}

/// Returns the pause after `times` refusals: `first`, doubled for each refusal after the first; zero if
/// `times` is 0.
fn doubled(first: Duration, times: u8) -> Duration {
    if times == 0 { Duration::ZERO } else { first * (1 << (times - 1).min(10)) }
}

/// True if a reply to `ROLE` (`role`) says that the node is a replica.
fn is_replica(role: &[u8]) -> bool {
    let first = reply::elements(role).and_then(|mut parts| parts.next()).and_then(reply::text);
    first.is_some_and(|role| matches!(role, b"slave" | b"replica"))
}

/// Puts `ROLE` before the bytes of a request (`frame`) that only a primary may carry out.
pub fn behind_role(frame: &[u8]) -> Vec<u8> {
    [ROLE, frame].concat()
}

/// Returns the keys of a request (`frame`), or of all requests of a transaction.
fn keys_of(frame: &[u8]) -> Vec<Box<[u8]>> {
    let mut keys: Vec<Box<[u8]>> = Vec::new();
    let frame = frame.strip_prefix(ASKING).unwrap_or(frame);
    // The keys of an unreadable frame are unknown, but weir sends none.
    let _ = reach::for_each_key(frame, frame.len(), &mut |key| keys.push(key.into()));
    keys
}

/// The destination of a request that a node has refused: the slot's owner, the node named by an ASK, or an
/// owner that is only known when a new map has come.
enum Way {
    Owner,
    Ask(BackendId),
    AfterRefresh,
}

impl Slots {
    /// Decides where a request for a slot that the node `sender` refused is sent, and records the slot's new owner if
    /// the refusal names one. Suspects the map to be old, unless the refusal is a TRYAGAIN, or an ASK that names a
    /// known node. None if the refusal cannot be true: it names another slot, or a script may have made it up.
    fn record_refusal(
        &mut self,
        refused: NodeRefusal<'_>,
        (slot, sender): (u16, BackendId),
        class: Class,
        now: Timestamp,
    ) -> Option<Way> {
        let is_script = class == Class::Script;
        match refused {
            NodeRefusal::Moved { slot: named, target } if named == slot => {
                let owner = self.find(target, sender);
                if is_script {
                    // A script's redirect is no news by itself: the slot waits until nodes confirm it.
                    self.doubt(Reason::Unsure, None);
                    // The slot does not wait again for a redirect that was just untrue, because others wait
                    // with it.
                    let is_forger = self.forged.get(&slot).is_some_and(|until| *until > now);
                    return (!is_forger).then_some(Way::AfterRefresh);
                }
                self.doubt(Reason::Moved(owner), owner.map(|owner| (slot, owner)));
                let Some(owner) = owner else { return Some(Way::AfterRefresh) };
                // The node may not have heard yet that another one has taken over from the owner that it
                // names.
                if !self.map.has_lost(owner.backend, slot) {
                    self.patch(slot, owner, now);
                }
                Some(Way::Owner)
            }
            NodeRefusal::Ask { slot: named, target } if named == slot && !is_script => {
                let target = self.find(target, sender);
                if target.is_none() {
                    self.doubt(Reason::Moved(None), None);
                }
                Some(target.map_or(Way::AfterRefresh, |target| Way::Ask(target.backend)))
            }
            NodeRefusal::TryAgain if !is_script => Some(Way::Owner),
            NodeRefusal::ReadOnly if !is_script => {
                let node = self.key_of(sender);
                self.doubt(node.map_or(Reason::LinkLost(None), Reason::ReadOnly), None);
                Some(Way::AfterRefresh)
            }
            _ => None,
        }
    }

    /// Records the owner of a slot that a redirect named. It overrides the map for 2 s (`PATCH_HOLDS`),
    /// unless the map is certain of the same owner.
    fn patch(&mut self, slot: u16, owner: NodeKey, now: Timestamp) {
        if self.map.owner(slot) == Some(owner.backend) && !self.map.is_hearsay(slot) {
            self.patches.remove(&slot);
            return;
        }
        let until = now.after(PATCH_HOLDS);
        self.patches.insert(slot, (owner, until));
        self.patched_until = self.patched_until.min(until);
    }

    /// True if a request refused with CLUSTERDOWN may be held until the node works: it has time left (of its deadline,
    /// if deadlines are on, and of the second for which it may be held) and there is room.
    /// A read of a hot key may not if a tenant accepts expired replies, since a kept one may answer it at once.
    fn may_wait(&self, env: &Env, request: &Refused, sent_at: Timestamp, now: Timestamp) -> bool {
        let (envelope, slot) = (&request.envelope, request.sent.slot);
        let tries = request.sent.tries.once_more(now);
        let again_at = self.down_until(slot, sent_at, now).1;
        let has_time =
            again_at < obeyed_deadline(env, envelope) && now.since(tries.held_since) < SLOT_HELD_MAX;
        // A read of a hot key may get a kept reply at once, so it does not wait.
        let is_spared = envelope.nature.effect() == Effect::Read
            && (envelope.reply_to.flight_id().is_some() || envelope.touches.is_reported())
            && !env.quotas.stale_on_error_max().is_zero();
        has_time && !is_spared && self.has_room_for(request.frame.len())
    }

    /// Handles a node's redirect (MOVED, ASK, READONLY) or TRYAGAIN in reply to a request: holds the
    /// request to send it again, or answers its client with an error if it was redirected too often, the
    /// redirect cannot be true, or too many requests are held. A script, which may have run, is charged for that
    /// all the same.
    fn redirect(
        &mut self,
        env: &mut Env,
        refused: NodeRefusal<'_>,
        request: &Refused,
        class: Class,
        replies: &mut impl Replies,
        now: Now,
    ) {
        let Refused { envelope, frame, sent, sender, ran } = request;
        let (to, slot, sender, ran) = (envelope.reply_to, sent.slot, *sender, *ran);
        let says_try_again = refused == NodeRefusal::TryAgain;
        env.counters.add(Counter::Redirections, 1);
        let tries = if says_try_again {
            env.counters.add(Counter::RefusedTryAgain, 1);
            sent.tries.once_more(now.monotonic)
        } else {
            sent.tries.elsewhere(now.monotonic)
        };
        let until = match self.record_refusal(refused, (slot, sender), class, now.monotonic) {
            Some(Way::Owner) => Until::default(),
            Some(Way::Ask(backend)) => Until { ask: Some((backend, now.monotonic)), ..Until::default() },
            // The slot has left the node since the request was sent there, so the map in force says where it is. A
            // script may have made the refusal up, and a node that was sent ASKING did not own the slot before.
            Some(Way::AfterRefresh)
                if class != Class::Script
                    && !frame.starts_with(ASKING)
                    && self.owner(slot).is_some_and(|owner| owner != sender) =>
            {
                Until::default()
            }
            Some(Way::AfterRefresh) => {
                let doubted = Some(Doubted { version: self.map.version(), at: now.monotonic, ran });
                Until { doubted, ..Until::default() }
            }
            None => {
                self.record_carried_out(env.pieces.connection(to), to, slot, frame);
                return turn_away_as(ran, env, replies, envelope.addressee(), NotSent::Redirects, now);
            }
        };
        if tries.hops > HOPS_MAX || !self.has_room_for(frame.len()) {
            if class == Class::Script {
                self.record_carried_out(env.pieces.connection(to), to, slot, frame);
            }
            return turn_away_as(ran, env, replies, envelope.addressee(), NotSent::Redirects, now);
        }
        if says_try_again && to.flight_id().is_none() && self.hold_apart(env, envelope, frame, tries) {
            return;
        }
        let pause = match refused {
            NodeRefusal::TryAgain => pause_not_yet(tries.waits),
            // Many pieces of a request may be redirected one after another, so they do not pause.
            NodeRefusal::Ask { .. } if to.piece_of().is_some() => Duration::ZERO,
            _ => doubled(PAUSE_FIRST, tries.hops.saturating_sub(1)).min(PAUSE_MAX),
        };
        self.pause(slot, now.monotonic.after(pause));
        self.hold_refused(env, request, tries, until);
    }

    /// Holds a request that a node has refused, to send it again. `tries` is its history with this refusal,
    /// and `until` has the conditions for sending it.
    fn hold_refused(&mut self, env: &mut Env, request: &Refused, tries: Tries, until: Until) {
        let Refused { envelope, frame, sent, .. } = request;
        let (frame, requests) = as_asked(frame, sent.requests as usize, envelope.reply_to);
        let message = Stored::of(frame, &mut env.pool);
        let Until { ask, doubted, words } = until;
        self.hold(Held { envelope: *envelope, message, requests, tries, ask, doubted, words });
    }

    /// Prevents all held requests of a slot from being sent before the time `until`, so that nodes are not
    /// flooded.
    fn pause(&mut self, slot: u16, until: Timestamp) {
        let hold = self.holds.entry(slot).or_default();
        hold.not_before = hold.not_before.max(until);
    }

    /// Returns how many times in a row a node has replied CLUSTERDOWN for a slot, including the reply to a
    /// request sent at `sent_at`, and the time from which it may be sent requests for the slot again.
    fn down_until(&self, slot: u16, sent_at: Timestamp, now: Timestamp) -> (u8, Timestamp) {
        match self.holds.get(&slot).and_then(|hold| hold.down.as_ref()) {
            Some(down) if sent_at < down.again_at => (down.times, down.again_at),
            before => {
                let times = before.map_or(1, |down| down.times.saturating_add(1));
                (times, now.after(pause_not_yet(times)))
            }
        }
    }

    /// Records the CLUSTERDOWN of the node `sender`, with its words, to a request for a slot, whose requests are held
    /// back from now on. Returns the error's text, shared with the error before if that had the same text. `sent_at` is
    /// when the request was sent.
    fn record_down(
        &mut self,
        (slot, sender): (u16, BackendId),
        words: &[u8],
        sent_at: Timestamp,
        now: Timestamp,
    ) -> Arc<[u8]> {
        let (times, again_at) = self.down_until(slot, sent_at, now);
        self.down.entry(sender).or_insert(now);
        self.pause(slot, again_at);
        let hold = self.holds.entry(slot).or_default();
        // Requests of a slot that got the same error text share its memory.
        let known = hold.down.take().map(|down| down.words).filter(|known| **known == *words);
        let words = known.unwrap_or_else(|| words.into());
        hold.down = Some(Down { words: Arc::clone(&words), sent_at, times, again_at });
        words
    }

    /// Records that the node `sender` answered a request for a slot with something other than CLUSTERDOWN,
    /// so that other requests need not wait for it to work again.
    fn record_not_down(&mut self, slot: u16, sender: BackendId) {
        self.down.remove(&sender);
        if let Some(hold) = self.holds.get_mut(&slot) {
            hold.down = None;
        }
    }

    /// Splits a request (`frame`) whose keys are not all on one node (TRYAGAIN) and holds the pieces, one per key.
    /// False, and nothing is held, if it cannot be split or too many requests are held.
    fn hold_apart(&mut self, env: &mut Env, whole: &Envelope, frame: &[u8], tries: Tries) -> bool {
        let apart = taken_apart(frame.strip_prefix(ASKING).unwrap_or(frame));
        let Some((pieces, join)) = apart.filter(|(pieces, _)| self.held + pieces.len() <= HELD_MAX) else {
            return false;
        };
        let to = whole.reply_to;
        let index = env.pieces.insert(to, (join, whole.nature.effect()), whole.route.protocol, pieces.len());
        for (part, piece) in pieces.iter().enumerate() {
            let reply_to = to.piece(env.settings.id, index, part as u16);
            let message = Stored::new(Message::Small(piece), &mut env.pool);
            let envelope = Envelope { reply_to, ..*whole };
            self.hold(Held { envelope, message, requests: 1, tries, ask: None, doubted: None, words: None });
        }
        true
    }

    fn find(&self, target: Target<'_>, sender: BackendId) -> Option<NodeKey> {
        let sender = self.map.node(sender)?.addresses.first()?;
        self.map.find(&target.resolve(sender)?).map(|node| node.key)
    }
}

impl Held {
    /// Makes a held request (kept until its slot's node can take it) of one that was not sent yet. It will
    /// be sent to the slot's owner, even if a replica might have answered it.
    fn new(env: &mut Env, envelope: &Envelope, message: Message<'_>, requests: usize, now: Now) -> Self {
        let track = track_at_owner(envelope.route.track);
        Self {
            envelope: Envelope { route: Route { track, ..envelope.route }, ..*envelope },
            message: Stored::new(message, &mut env.pool),
            requests,
            tries: Tries { held_since: now.monotonic, ..Tries::default() },
            ask: None,
            doubted: None,
            words: None,
        }
    }

    /// Creates a held request from a read that was lost with a connection, to be sent once more, to its slot's owner.
    pub(super) fn again(envelope: Envelope, message: Stored, tries: Tries, now: Timestamp) -> Self {
        let tries = Tries { is_again: true, ..tries.elsewhere(now) };
        Self { envelope, message, requests: 1, tries, ask: None, doubted: None, words: None }
    }

    /// True for a piece, with one key, of a request that was split because of TRYAGAIN.
    fn is_piece(&self) -> bool {
        self.envelope.reply_to.piece_of().is_some()
    }

    /// True if this held request is a script whose reply was a redirect. The script may have been carried
    /// out in part, and may have made up the redirect.
    fn is_scripts_word(&self) -> bool {
        self.doubted.is_some() && self.envelope.nature.class == Class::Script
    }

    /// True if this held request is a script and its redirect is not confirmed. All primaries must have said,
    /// after the redirect, that the slot has left the node that ran the script: what one other node says may be
    /// older than the redirect, however new the map is.
    fn is_unproven(&self, env: &Env, map: &Map) -> bool {
        let Some(Doubted { at, .. }) = self.doubted.filter(|_| self.is_scripts_word()) else {
            return false;
        };
        let Route { slot, backend, .. } = self.envelope.route;
        let is_elsewhere = map.owner(slot) != Some(backend) && !map.is_hearsay(slot);
        !(is_elsewhere && env.is_sure(at))
    }

    /// True as long as it is not known whether the refusal of this held request was true, so that it waits. A
    /// script's redirect needs a map confirmed by all primaries after the redirect, any other a newer map.
    fn is_doubted(&self, env: &Env, map: &Map) -> bool {
        let Some(Doubted { version, at, .. }) = self.doubted else { return false };
        if self.is_scripts_word() { !env.is_sure(at) } else { map.version() <= version }
    }

    /// True if this held request waits no longer: its deadline has passed (if deadlines are on), or it was held for a
    /// second.
    fn is_late(&self, env: &Env, now: Timestamp) -> bool {
        now >= obeyed_deadline(env, &self.envelope) || now.since(self.tries.held_since) >= SLOT_HELD_MAX
    }

    /// Returns the outcome from which the price of this held request follows if it is not sent again: the measurements
    /// of a script that may have run, else `Outcome::Refused`.
    fn outcome(&self) -> Outcome {
        self.doubted.map_or(Outcome::Refused, |doubted| doubted.ran)
    }

    /// Returns the reply for the client if this held request is not sent again: the error of the node that
    /// was down (`down`), if the request waited for that node, else an error for the reason `why`.
    fn told(&self, down: Option<&Down>, why: NotSent) -> Told {
        let has_waited = |down: &&Down| !self.tries.were_refused() && self.tries.held_since <= down.sent_at;
        let words = self.words.as_ref().or_else(|| down.filter(has_waited).map(|down| &down.words));
        words.map_or(Told::Why(why), |words| Told::Words(Arc::clone(words)))
    }
}

/// Returns the deadline of a request; `Timestamp::MAX` if it has none, or if deadlines are off or only counted (shadow
/// mode).
fn obeyed_deadline(env: &Env, envelope: &Envelope) -> Timestamp {
    if env.settings.overload.shed == Mode::On { envelope.deadline } else { Timestamp::MAX }
}

/// Returns the track (set of connections) of a request that is sent to the slot's owner: the usual one in
/// place of that for replicas.
fn track_at_owner(track: Track) -> Track {
    if track == Track::Replica { Track::Usual } else { track }
}

/// Strips the commands that were sent right before a request (`ASKING`, and `PTTL` and `HPTTL` before a fetch of a hot
/// key) from the bytes of a message (`frame`) of `requests` requests. Returns the rest and its number of requests. `to`
/// is the reply address, which tells a fetch from other requests.
fn as_asked(frame: &[u8], requests: usize, to: ReplyTo) -> (&[u8], usize) {
    let (frame, requests) = match frame.strip_prefix(ASKING) {
        Some(rest) => (rest, requests - 1),
        None => (frame, requests),
    };
    if to.flight_id().is_none() || requests < 2 {
        return (frame, requests);
    }
    let (mut decoder, mut consumed) = (RequestDecoder::default(), 0);
    for _ in 1..requests {
        let _ = decoder.next(frame, &mut consumed, &RequestLimits::trusted(frame.len()));
    }
    (&frame[consumed..], 1)
}
