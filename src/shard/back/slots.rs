//! Slots of a cluster, which change their owners while requests for them are under way. Nothing of this exists before plain stores.
//!
//! ```text
//!   request ── slot held? ── no ──> its owner ── refused unexecuted: MOVED, ASK, TRYAGAIN, CLUSTERDOWN ──┐
//!                  └ yes ──────────────────────────────> held <──────────────────────────────────────────┘
//!                                                         └─ nothing of the slot in flight any more ──> in order, to where they belong
//! ```
//!
//! A slot is held from its first refusal on, or from when another owner is known while the old one still owes replies. Held requests
//! leave together, each connection's in its order, when all that was sent for the slot has been answered. So no request overtakes
//! another of its connection, though some were refused and others not. While what was sent again is under way the slot stays held.
//!
//! Only what a node has refused is sent again, at most so often, and not behind a later request of its connection that was carried out.
//!
//! TRYAGAIN and CLUSTERDOWN say that a node does not do it yet: such a request is asked again after a pause, for as long as its deadline
//! leaves, and for a second at most. Where a node says CLUSTERDOWN, one request asks for all that wait for it: a node that is down for long
//! is not flooded by what is held. When the time is over, the client is told what the node said.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::bulkhead::Bulkhead;
use super::forward::track_of;
use super::link::{Link, LinkState, Pending, Purpose, whole};
use super::unanswered::{Sent, Tries};
use super::{Back, Replies, turn_away};
use crate::policy::retry_budget::RetryBudget;
use crate::protocol::command::{Class, Effect};
use crate::protocol::{RequestDecoder, RequestLimits, Scanned, reply};
use crate::routing::cluster::{Map, NodeKey, NodeRefusal, Reason, Target};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::outcome::Outcome;
use crate::shard::pieces::{Pieces, taken_apart};
use crate::shard::reach;
use crate::shard::refusal::{NotSent, Stage};
use crate::shard::request::{Envelope, ReplyTo, Route, Track};
use crate::shard::stored::Stored;
use crate::values::limits::{REFUSAL_KEPT_BYTES_MAX, SLOT_HELD_MAX, SLOTS};
use crate::values::time::Now;
use crate::values::{BackendId, ConnectionId, Timestamp};

/// What goes to a backend that was chosen for another reason than a slot.
pub const NO_SLOT: u16 = u16::MAX;
/// What goes to a node for being a primary: a replica would answer it too, so it is asked first.
pub const PRIMARY: u16 = NO_SLOT - 1;
const _: () = assert!(SLOTS < PRIMARY);

/// Redirections that one request follows at most, unless a node makes it wait between two of them.
const HOPS_MAX: u8 = 6;
/// A node that has owed something for so long may be gone.
const SILENT: Duration = Duration::from_millis(500);
/// The pause before a request goes where its second redirection leads. It doubles with each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// The pause before a node is asked again that has said TRYAGAIN or CLUSTERDOWN once. It doubles with each further time.
const PAUSE_NOT_YET_FIRST: Duration = Duration::from_millis(5);
const PAUSE_NOT_YET_MAX: Duration = Duration::from_millis(50);
/// Requests that one core holds, and bytes of those.
const HELD_MAX: usize = 16_384;
const HELD_BYTES_MAX: usize = 64 << 20;
/// Held slots are looked at this often.
pub const LOOKS_APART: Duration = Duration::from_millis(1);
/// An owner that a refusal named counts for so long against maps that know of none.
const PATCH_HOLDS: Duration = Duration::from_secs(2);
/// A node that an owner sends a request to for once counts for so long. Later the slot may have gone there, come back and be on its
/// way again: a key that has yet to leave would be made a second time there.
const ASK_HOLDS: Duration = Duration::from_millis(250);
const _: () = assert!(ASK_HOLDS.as_millis() > PAUSE_MAX.as_millis(), "it outlasts what it may have to wait");
/// A slot whose scripts said MOVED though it was not does not wait for what they say for so long.
const FORGED_HOLDS: Duration = Duration::from_secs(5);
/// What is said before a request that a node was asked to take over.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";
/// What is asked before a request for a primary.
const ROLE: &[u8] = b"*1\r\n$4\r\nROLE\r\n";

/// A request that is held.
#[derive(Debug)]
pub(super) struct Held {
    envelope: Envelope,
    message: Stored,
    requests: usize,
    tries: Tries,
    /// A node that takes it over, key by key, and when its owner said so.
    ask: Option<(BackendId, Timestamp)>,
    /// It is not known yet whether who refused it was right.
    doubted: Option<Doubted>,
    /// The error by which a node that is down refused it: its client is told that when the time is over.
    words: Option<Arc<[u8]>>,
}

/// What the reply to a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The reply is its answer.
    Answered,
    /// It was not carried out, and is seen to: it is held, goes elsewhere, or its client was told why it goes no further.
    Redirected,
}

/// A request that a node has refused.
#[derive(Debug)]
struct Refused {
    /// What travels with it from now on.
    envelope: Envelope,
    frame: Vec<u8>,
    /// As it was sent.
    sent: Sent,
    /// The node.
    sender: BackendId,
}

/// What is known of a refused request, besides when it was tried: see [`Held`].
#[derive(Debug, Default)]
struct Until {
    ask: Option<(BackendId, Timestamp)>,
    doubted: Option<Doubted>,
    words: Option<Arc<[u8]>>,
}

/// What was known when a refusal came that may not be true, and when that was.
#[derive(Clone, Copy, Debug)]
struct Doubted {
    version: u64,
    at: Timestamp,
    /// Who refused it was known as the owner. If not, a map on which another is may be as old as that one.
    by_owner: bool,
}

/// A slot of which requests are held.
#[derive(Debug, Default)]
struct Hold {
    list: Vec<Held>,
    not_before: Timestamp,
    carried_out: CarriedOut,
    /// The last answer to a request for the slot was CLUSTERDOWN.
    down: Option<Down>,
}

/// A node's CLUSTERDOWN to a request for a slot.
#[derive(Debug)]
struct Down {
    /// The error.
    words: Arc<[u8]>,
    /// When the request was sent that was answered so.
    sent_at: Timestamp,
    /// Times in a row that it was said, not counting what was on its way when it was said first.
    times: u8,
    /// Before that time the node is not asked again.
    again_at: Timestamp,
}

/// The newest request of each connection for each key that was carried out since a slot is held.
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
    /// What leaves next, in the order of each connection; and what must not, because something later was carried out.
    fn take_next(&mut self, pieces: &Pieces) -> (Vec<Held>, Vec<Held>) {
        // What was refused goes first, alone: what came later must not be carried out before it, should it be refused again.
        let mut list: Vec<Held> = self.list.extract_if(.., |held| held.tries.were_refused()).collect();
        if list.is_empty() {
            list = std::mem::take(&mut self.list);
        }
        let carried_out = std::mem::take(&mut self.carried_out);
        // Also where the numbers of a connection begin again.
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
            // Each goes its own way: what comes behind it must not be there first.
            let mut until: HashMap<u64, (bool, u32)> = HashMap::new();
            let is_later = |held: &mut Held| {
                let (to, is_piece) = (held.envelope.reply_to, held.is_piece());
                let first = *until.entry(pieces.connection(to)).or_insert((is_piece, to.sequence));
                if first.0 { first.1 != to.sequence } else { is_piece }
            };
            let later: Vec<Held> = list.extract_if(.., is_later).collect();
            self.list.extend(later);
        }
        if self.down.is_some() && list.len() > 1 {
            // The first one asks for the others, too. What was carried out behind those is still to be known.
            self.list.extend(list.drain(1..));
            self.carried_out = carried_out;
        }
        (list, overtaken)
    }
}

/// Why the map may be old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// What speaks for it.
    pub reason: Reason,
    /// A slot's new owner, if one was named.
    pub moved: Option<(u16, NodeKey)>,
}

/// One core's.
#[derive(Debug)]
pub struct Slots {
    pub(super) map: Arc<Map>,
    /// Owners that refusals named, and until when that counts.
    patches: BTreeMap<u16, (BackendId, Timestamp)>,
    /// Slots whose scripts said MOVED though it was not so, and until when they are not believed.
    forged: BTreeMap<u16, Timestamp>,
    holds: BTreeMap<u16, Hold>,
    held: usize,
    held_bytes: usize,
    doubt: Option<Doubt>,
    /// Held slots were looked at then; and something has happened since that may let one go.
    looked_at: Timestamp,
    is_touched: bool,
    /// Nodes that have said CLUSTERDOWN, and nothing better since; and when another slot may ask them.
    down: BTreeMap<BackendId, Timestamp>,
    /// From where on links are looked at for being silent.
    silent_next: usize,
    /// How much of what is lost may be asked for again.
    pub(super) retries: RetryBudget,
}

impl Slots {
    pub fn new(map: Arc<Map>, cores: u16) -> Self {
        Self {
            map,
            patches: BTreeMap::new(),
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

    pub(super) fn owner(&self, slot: u16) -> Option<BackendId> {
        match self.patches.get(&slot) {
            Some((owner, _)) => Some(*owner),
            None => self.map.owner(slot),
        }
    }

    /// Does it own the slot, as far as the map says, and nobody says otherwise?
    #[inline]
    fn is_owner(&self, slot: u16, backend: BackendId) -> bool {
        self.patches.is_empty() && slot < SLOTS && self.map.owner(slot) == Some(backend)
    }

    fn doubt(&mut self, reason: Reason, moved: Option<(u16, NodeKey)>) {
        // What names an owner is worth more.
        if self.doubt.is_none_or(|doubt| doubt.moved.is_none()) {
            self.doubt = Some(Doubt { reason, moved });
        }
    }

    fn key_of(&self, backend: BackendId) -> Option<NodeKey> {
        self.map.node(backend).map(|node| node.key)
    }

    /// Is a slot on its way to another owner, or has it just come from one?
    pub(super) fn is_moving(&self, slot: u16) -> bool {
        self.map.open_slot(slot).is_some()
            || self.patches.contains_key(&slot)
            || self.holds.contains_key(&slot)
    }

    /// Is a slot held?
    pub(super) fn is_held(&self, slot: u16) -> bool {
        self.holds.contains_key(&slot)
    }

    /// A request of a connection was carried out, as far as anybody knows: what came before it must not be, any more.
    pub(super) fn note_carried_out(&mut self, connection: u64, to: ReplyTo, slot: u16, frame: &[u8]) {
        if let Some(hold) = self.holds.get_mut(&slot) {
            hold.carried_out.note(connection, to, frame);
        }
    }

    /// Do requests of a slot wait?
    pub(super) fn is_holding(&self, slot: u16) -> bool {
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

impl Back {
    /// A map of the cluster; the first one says that there is a cluster.
    pub fn handle_slots(&mut self, env: &mut Env, map: Arc<Map>, replies: &mut impl Replies, now: Now) {
        let Some(slots) = &mut self.slots else {
            self.slots = Some(Box::new(Slots::new(map, env.settings.topology.shards())));
            return;
        };
        let older = std::mem::replace(&mut slots.map, map);
        let Slots { patches, forged, map, .. } = &mut **slots;
        forged.retain(|_, until| *until > now.monotonic);
        let is_out = |owner, slot| map.has_lost(owner, slot) || map.is_replica(owner);
        patches.retain(|slot, (owner, until)| *until > now.monotonic && !is_out(*owner, *slot));
        let (changed, gained) = (slots.map.changed_since(&older), slots.map.gained_since(&older));
        let gone: Vec<BackendId> = slots.map.gone_since(&older).map(|node| node.backend).collect();
        gained.union(&changed.iter().copied().collect()).for_each(|backend| self.forget_failures(*backend));
        changed.into_iter().for_each(|backend| self.meet_anew(env, backend));
        self.leave(env, &gone, replies, now);
        self.give_up_on_fallen(env, replies, now);
        let Some(slots) = &mut self.slots else { return };
        slots.is_touched = true;
        // What is owed by former owners comes before what new ones are sent; what replicas owe only reads.
        let owners = self.links.iter().filter(|link| !link.only_reads);
        let former = owners.flat_map(|link| link.unanswered.slots().map(|slot| (slot, link.backend)));
        let waiting = self.bulkheads.iter().flat_map(|bulkhead| {
            bulkhead.parked().map(|parked| (parked.envelope.route.slot, parked.envelope.route.backend))
        });
        for (slot, backend) in former.chain(waiting) {
            if slot < SLOTS && slots.owner(slot) != Some(backend) {
                slots.holds.entry(slot).or_default();
            }
        }
    }

    /// These nodes are no members any more: others may take their places.
    fn leave(&mut self, env: &mut Env, gone: &[BackendId], replies: &mut impl Replies, now: Now) {
        gone.iter().for_each(|backend| self.forget_health(env, *backend));
        let is_left = |link: &Link| gone.contains(&link.backend) && link.state != LinkState::Closed;
        self.drop_links(env, is_left, "node-gone", replies, now);
    }

    /// What is owed by nodes that others have taken over from nobody waits for: it would keep new owners waiting.
    fn give_up_on_fallen(&mut self, env: &mut Env, replies: &mut impl Replies, now: Now) {
        let Some(slots) = &self.slots else { return };
        let fallen: Vec<BackendId> = slots.map.fallen().map(|node| node.key.backend).collect();
        let owes = |link: &Link| !link.pending.is_empty() && fallen.contains(&link.backend);
        self.drop_links(env, owes, "node-failed", replies, now);
    }

    /// Who owes something and says nothing may be gone, long before that is certain: whoever asks around knows more.
    pub fn doubt_silent(&mut self, now: Now) {
        let Some(slots) = &mut self.slots else { return };
        let is_silent = |link: &Link| {
            let owes_since = link.owes_since().filter(|_| !link.only_reads);
            owes_since.is_some_and(|since| now.monotonic.since(since) >= SILENT)
        };
        // Of several each has its turn.
        let (before, after) = self.links.split_at(slots.silent_next.min(self.links.len()));
        let places = (before.len()..).zip(after).chain((0..).zip(before));
        let found = places.into_iter().find(|(_, link)| is_silent(link));
        if let Some((place, link)) = found {
            slots.silent_next = place + 1;
            slots.doubt(Reason::LinkLost(slots.key_of(link.backend)), None);
        }
    }

    /// Something has happened that may let a held slot go: the map was confirmed, or a connection was lost.
    pub fn touch_slots(&mut self) {
        if let Some(slots) = &mut self.slots {
            slots.is_touched = true;
        }
    }

    /// Why the map may be old, if it may.
    pub fn take_doubt(&mut self) -> Option<Doubt> {
        self.slots.as_mut()?.doubt.take()
    }

    /// A connection to a node was lost, or could not be made.
    pub(super) fn doubt_slots(&mut self, backend: BackendId) {
        self.touch_slots();
        if let Some(slots) = &mut self.slots {
            slots.doubt(Reason::LinkLost(slots.key_of(backend)), None);
        }
    }

    /// When held slots are looked at again.
    pub(super) fn slots_due(&self) -> Option<Timestamp> {
        let slots = self.slots.as_ref()?;
        (!slots.holds.is_empty()).then(|| slots.looked_at.after(LOOKS_APART))
    }

    /// Does a request go where it says? Nothing is held, and it goes to the owner of its slot.
    #[inline]
    pub(super) fn is_at_owner(&self, route: Route) -> bool {
        let Some(slots) = &self.slots else { return true };
        slots.holds.is_empty() && route.track != Track::Replica && slots.is_owner(route.slot, route.backend)
    }

    /// A request as it goes to the owner of its slot. Nothing, if it is held.
    #[inline(never)]
    pub(super) fn resolve_owner(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) -> Result<Option<Envelope>, NotSent> {
        let slot = envelope.route.slot;
        let Some(slots) = self.slots.as_mut().filter(|_| slot < SLOTS) else { return Ok(Some(*envelope)) };
        if slots.holds.contains_key(&slot) {
            if !slots.has_room_for(message.bytes().len()) {
                return Err(NotSent::Queue(LOOKS_APART));
            }
            slots.hold(Held::new(env, envelope, message, requests, now));
            env.counters.add(Counter::SlotsHeld, 1);
            return Ok(None);
        }
        let Some(backend) = slots.owner(slot) else {
            slots.doubt(Reason::Moved(None), None);
            return Err(NotSent::NoOwner);
        };
        let route = Route { backend, ..envelope.route };
        let route = if route.track == Track::Replica && envelope.nature.effect == Effect::Read {
            self.choose_reader(env, route, envelope.deadline, now)
        } else {
            Route { track: track_at_owner(route.track), ..route }
        };
        Ok(Some(Envelope { route, ..*envelope }))
    }

    /// What waited for room goes on. True if it is held instead, because its slot has another owner by now.
    pub(super) fn is_held_back(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) -> bool {
        let (slot, backend) = (envelope.route.slot, envelope.route.backend);
        let Some(slots) = self.slots.as_mut().filter(|_| slot < SLOTS) else { return false };
        let is_held = slots.owner(slot) != Some(backend) || slots.holds.contains_key(&slot);
        if is_held {
            slots.hold(Held::new(env, envelope, message, requests, now));
        }
        is_held
    }

    /// A step of a block was answered.
    pub(super) fn hear_step(&mut self, connection: ConnectionId, kind: u8, end: &[u8]) {
        let link = &mut self.links[connection.0 as usize];
        let is_role = link.unanswered.next_slot() == Some(PRIMARY);
        if kind != b'-' && !is_role {
            return;
        }
        let whole = whole(&link.partial, end);
        let matters = if is_role { is_replica(&whole) } else { NodeRefusal::parse(&whole).is_some() };
        if matters {
            link.unanswered.step.get_or_insert(whole.into_owned());
        }
    }

    /// The reply to a request has come, and whatever it is, it was carried out and no slot waits for that.
    #[inline]
    pub(super) fn is_done(&mut self, connection: ConnectionId, scanned: &Scanned) -> bool {
        let Some(slots) = &self.slots else { return true };
        let is_heard = self.readers.as_ref().is_some_and(|readers| readers.used_at.is_some());
        let unanswered = &mut self.links[connection.0 as usize].unanswered;
        // Most replies are about other slots than those that are held.
        let is_of_rest = slots.holds.is_empty()
            || slots.down.is_empty() && unanswered.next_slot().is_some_and(|slot| !slots.is_held(slot));
        let is_done = scanned.kind != b'-' && is_of_rest && unanswered.step.is_none() && !is_heard;
        if is_done {
            unanswered.forget();
        }
        is_done
    }

    /// The reply to a request has come. If that says that it was not carried out, it goes on, later or elsewhere, or is turned away.
    #[inline(never)]
    pub(super) fn redirect_if_refused(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        pending: &Pending,
        (scanned, end): (&Scanned, &[u8]),
        replies: &mut impl Replies,
        now: Now,
    ) -> Heard {
        if self.readers.is_some() {
            let link = &self.links[connection.0 as usize];
            if link.only_reads {
                let slot = link.unanswered.next_slot();
                if let Some(slots) = &mut self.slots {
                    slots.is_touched |= slot.is_some_and(|slot| slots.is_held(slot));
                }
                let is_asked = self.is_asked_of_owner(env, connection, pending, (scanned, end), replies, now);
                return if is_asked { Heard::Redirected } else { Heard::Answered };
            }
            self.hear_owner(connection, pending, now);
        }
        let link = &mut self.links[connection.0 as usize];
        let step = link.unanswered.step.take();
        let is_error = scanned.kind == b'-';
        let error = if is_error { whole(&link.partial, end) } else { Cow::Borrowed(&[][..]) };
        let refused = match &step {
            Some(step) if error.starts_with(b"-EXECABORT") => NodeRefusal::parse(step),
            _ if is_error => NodeRefusal::parse(&error),
            _ => None,
        };
        // Errors that say nothing of where the slot is are handed on; so is a script's CLUSTERDOWN, since the script may have been carried out.
        let is_down = refused == Some(NodeRefusal::ClusterDown);
        let is_sick = refused.is_some_and(|refused| refused.sickness().is_some());
        let is_handed_on = is_sick || is_down && pending.class == Class::Script;
        let refused = refused.filter(|_| !is_handed_on);
        let is_wanted = refused.is_some()
            || self
                .slots
                .as_ref()
                .zip(link.unanswered.next_slot())
                .is_some_and(|(slots, slot)| slots.is_held(slot));
        let Some((sent, frame)) = link.unanswered.pop(is_wanted) else { return Heard::Answered };
        let (sender, bulkhead) = (link.backend, link.bulkhead);
        let Some(slots) = self.slots.as_mut() else { return Heard::Answered };
        slots.is_touched |= is_wanted;
        let to = match pending.purpose {
            Purpose::Answer(to) => to,
            Purpose::Abandoned(to) if refused.is_none() => {
                slots.note_carried_out(env.pieces.connection(to), to, sent.slot(), &frame);
                return Heard::Answered;
            }
            _ => return Heard::Answered,
        };
        if sent.slot() == PRIMARY && step.is_some() {
            if let Some(node) = slots.key_of(sender) {
                slots.doubt(Reason::ReadOnly(node), None);
            }
            replies.note(env, to, Note::NotPrimary);
            turn_away(env, replies, (to, sender, pending.tier), NotSent::NotPrimary, now);
            return Heard::Redirected;
        }
        if sent.slot() >= SLOTS {
            return Heard::Answered;
        }
        if (is_down || is_sick)
            && let Some(node) = slots.key_of(sender)
        {
            slots.doubt(Reason::ClusterDown(node), None);
        }
        if !is_down && !is_sick {
            slots.hear_not_down(sent.slot(), sender);
        }
        let Some(refused) = refused else {
            slots.note_carried_out(env.pieces.connection(to), to, sent.slot(), &frame);
            return Heard::Answered;
        };
        let route = Route { backend: sender, track: track_of(bulkhead), ..sent.envelope.route };
        let request = Refused { envelope: Envelope { route, ..sent.envelope }, frame, sent, sender };
        if !is_down {
            slots.redirect(env, refused, &request, pending.class, replies, now);
            return Heard::Redirected;
        }
        if !slots.may_wait(env, &request, pending, now.monotonic) || error.len() > REFUSAL_KEPT_BYTES_MAX {
            if slots.is_held(request.sent.slot()) {
                let words = &error[..error.len().min(REFUSAL_KEPT_BYTES_MAX)];
                slots.hear_down((request.sent.slot(), sender), words, pending.sent_at, now.monotonic);
            }
            return Heard::Answered;
        }
        let reasoned = link.reasoned_abort(end);
        let words = reasoned.as_deref().unwrap_or(&error);
        let words = slots.hear_down((request.sent.slot(), sender), words, pending.sent_at, now.monotonic);
        env.counters.add(Counter::RefusedClusterDown, 1);
        let tries = request.sent.tries.once_more(now.monotonic);
        slots.hold_refused(env, &request, tries, Until { words: Some(words), ..Until::default() });
        Heard::Redirected
    }

    /// The end of a turn: slots of which nothing is in flight any more are let go.
    #[inline(never)]
    pub(super) fn look_after_slots(&mut self, env: &mut Env, replies: &mut impl Replies, now: Now) {
        let Some(slots) = self.slots.as_mut().filter(|slots| !slots.holds.is_empty()) else { return };
        // All that is in flight is looked through, over all connections: not in every turn, for the sake of all other slots.
        if !slots.is_touched && now.monotonic.since(slots.looked_at) < LOOKS_APART {
            return;
        }
        (slots.looked_at, slots.is_touched) = (now.monotonic, false);
        let Slots { holds, map, forged, patches, down, .. } = &mut **slots;
        let mut asking: Vec<(Timestamp, u16)> = Vec::new();
        let parked = self.bulkheads.iter().flat_map(Bulkhead::parked);
        let waiting = parked.map(|parked| parked.envelope.route.slot);
        let in_flight = self.links.iter().flat_map(|link| link.unanswered.slots());
        let busy: BTreeSet<u16> = in_flight.chain(waiting).filter(|slot| holds.contains_key(slot)).collect();
        let mut late: Vec<(Held, Told)> = Vec::new();
        let mut ready: Vec<Held> = Vec::new();
        holds.retain(|slot, hold| {
            let is_over = |held: &&Held| held.is_late(now.monotonic) || !held.is_doubted(env, map);
            for held in hold.list.iter().filter(|held| held.is_unproven(env, map)).filter(is_over) {
                forged.insert(*slot, now.monotonic.after(FORGED_HOLDS));
                // It may have been carried out.
                let (to, frame) = (held.envelope.reply_to, held.message.message().bytes());
                hold.carried_out.note(env.pieces.connection(to), to, frame);
            }
            late.extend(hold.list.extract_if(.., |held| held.is_late(now.monotonic)).map(|held| {
                let is_late = now.monotonic >= held.envelope.deadline;
                let waited = now.monotonic.since(held.tries.held_since);
                let why = if is_late { NotSent::TooLate(Stage::Queue, waited) } else { NotSent::Redirects };
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
        // Of slots that wait for a node that is down, the one that has waited longest asks, and the next one a little later.
        asking.sort_unstable();
        for (_, slot) in asking {
            let owner = patches.get(&slot).map(|(owner, _)| *owner).or_else(|| map.owner(slot));
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
            slots.held -= 1;
            slots.held_bytes -= held.message.len();
        }
        for (held, told) in late {
            match told {
                Told::Why(why) => turn_away(env, replies, held.envelope.addressee(), why, now),
                Told::Words(words) => {
                    let outcome = Outcome::answered(words.len());
                    replies.reply(env, held.envelope.reply_to, outcome, Message::Small(&words), now);
                }
            }
            held.message.release(&mut env.pool);
        }
        for held in ready {
            self.send_held(env, held, replies, now);
        }
    }

    fn send_held(&mut self, env: &mut Env, held: Held, replies: &mut impl Replies, now: Now) {
        let Some(slots) = &mut self.slots else { return };
        // A script that was carried out may say what it likes: only if the slot is gone from its node was that true, and only nodes
        // say where it is.
        let (is_untrue, is_scripts_word) = (held.is_unproven(env, &slots.map), held.is_scripts_word());
        let Held { envelope, message, requests, tries, ask, .. } = held;
        let Route { slot, backend: sender, .. } = envelope.route;
        let current = if is_scripts_word { slots.map.owner(slot) } else { slots.owner(slot) };
        // Who sent it elsewhere for once may have the slot no more, or may have it again: then that says nothing.
        let is_fresh = |(_, said_at): &(_, Timestamp)| now.monotonic.since(*said_at) < ASK_HOLDS;
        let ask = ask.filter(is_fresh).filter(|_| current == Some(sender));
        let owner = ask.map(|(target, _)| target).or(current);
        let Some(backend) = owner.filter(|_| !is_untrue) else {
            let why = if is_untrue { NotSent::Redirects } else { NotSent::NoOwner };
            turn_away(env, replies, envelope.addressee(), why, now);
            return message.release(&mut env.pool);
        };
        let envelope = Envelope { route: Route { backend, ..envelope.route }, ..envelope };
        let sent = if ask.is_some() {
            let asking = [ASKING, message.message().bytes()].concat();
            self.put_on_link_again(env, &envelope, Message::Small(&asking), (requests + 1, tries), now)
        } else {
            self.put_on_link_again(env, &envelope, message.message(), (requests, tries), now)
        };
        if let Err(why) = sent {
            turn_away(env, replies, envelope.addressee(), why, now);
        }
        message.release(&mut env.pool);
    }
}

/// The answer to a held request that is not sent again.
enum Told {
    /// Why weir did not send it.
    Why(NotSent),
    /// The error of a node.
    Words(Arc<[u8]>),
}

impl Hold {
    /// Takes from the slot what leaves now, and what is not sent again. True if the slot stays held.
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

/// The pause before a node is asked again that has made requests wait so often in a row.
fn pause_not_yet(times: u8) -> Duration {
    doubled(PAUSE_NOT_YET_FIRST, times).min(PAUSE_NOT_YET_MAX)
}

/// The first of a row of pauses for the first time, and twice as long for each further one. Nothing for none.
fn doubled(first: Duration, times: u8) -> Duration {
    if times == 0 { Duration::ZERO } else { first * (1 << (times - 1).min(10)) }
}

/// Does a node say that it copies another?
fn is_replica(role: &[u8]) -> bool {
    let first = reply::elements(role).and_then(|mut parts| parts.next()).and_then(reply::text);
    first.is_some_and(|role| matches!(role, b"slave" | b"replica"))
}

/// A request for a primary, behind the question whether it is one.
pub(super) fn behind_role(frame: &[u8]) -> Vec<u8> {
    [ROLE, frame].concat()
}

/// The keys of a request, or of a block of them.
fn keys_of(frame: &[u8]) -> Vec<Box<[u8]>> {
    let mut keys: Vec<Box<[u8]>> = Vec::new();
    let frame = frame.strip_prefix(ASKING).unwrap_or(frame);
    // Of what cannot be told apart nothing is known: what weir has sent can.
    let _ = reach::for_each_key(frame, frame.len(), &mut |key| keys.push(key.into()));
    keys
}

/// Where what was refused goes.
enum Way {
    Owner,
    Ask(BackendId),
    AfterRefresh,
}

impl Slots {
    /// What follows from a refusal. Nothing, if it cannot be true.
    fn judge(
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
                    // What it says is no news of its own: nodes say so, or it is not true. Its slot waits for them.
                    self.doubt(Reason::Unsure, None);
                    // Nor does it wait time and again for what was not so: others wait with it.
                    let is_forger = self.forged.get(&slot).is_some_and(|until| *until > now);
                    return (!is_forger).then_some(Way::AfterRefresh);
                }
                self.doubt(Reason::Moved(owner), owner.map(|owner| (slot, owner)));
                let Some(owner) = owner else { return Some(Way::AfterRefresh) };
                // Who says so may not have heard yet who has taken over, and nobody is left there to correct it.
                if !self.map.has_lost(owner.backend, slot) {
                    self.patches.insert(slot, (owner.backend, now.after(PATCH_HOLDS)));
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

    /// A node that is down has refused a request. May that wait for it, as far as its time and what is held go?
    fn may_wait(&self, env: &Env, request: &Refused, pending: &Pending, now: Timestamp) -> bool {
        let (envelope, slot) = (&request.envelope, request.sent.slot());
        let tries = request.sent.tries.once_more(now);
        let again_at = self.down_until(slot, pending.sent_at, now).1;
        let has_time = again_at < envelope.deadline && now.since(tries.held_since) < SLOT_HELD_MAX;
        // A reply that is kept of a hot key may be told at once instead.
        let is_spared = pending.effect == Effect::Read
            && (envelope.reply_to.flight_id().is_some() || envelope.touches.is_reported())
            && !env.quotas.stale_on_error_max().is_zero();
        has_time && !is_spared && self.has_room_for(request.frame.len())
    }

    /// A node has refused a request because its keys are elsewhere, or not all there: it goes on when it may, or is turned away.
    fn redirect(
        &mut self,
        env: &mut Env,
        refused: NodeRefusal<'_>,
        request: &Refused,
        class: Class,
        replies: &mut impl Replies,
        now: Now,
    ) {
        let Refused { envelope, frame, sent, sender } = request;
        let (to, slot) = (envelope.reply_to, sent.slot());
        let says_try_again = refused == NodeRefusal::TryAgain;
        env.counters.add(Counter::Redirections, 1);
        let tries = if says_try_again {
            env.counters.add(Counter::RefusedTryAgain, 1);
            sent.tries.once_more(now.monotonic)
        } else {
            sent.tries.elsewhere(now.monotonic)
        };
        let until = match self.judge(refused, (slot, *sender), class, now.monotonic) {
            Some(Way::Owner) => Until::default(),
            Some(Way::Ask(backend)) => Until { ask: Some((backend, now.monotonic)), ..Until::default() },
            Some(Way::AfterRefresh) => {
                let (version, by_owner) = (self.map.version(), self.map.owner(slot) == Some(*sender));
                let doubted = Some(Doubted { version, at: now.monotonic, by_owner });
                Until { doubted, ..Until::default() }
            }
            None => {
                self.note_carried_out(env.pieces.connection(to), to, slot, frame);
                return turn_away(env, replies, envelope.addressee(), NotSent::Redirects, now);
            }
        };
        if tries.hops > HOPS_MAX || !self.has_room_for(frame.len()) {
            if class == Class::Script {
                self.note_carried_out(env.pieces.connection(to), to, slot, frame);
            }
            return turn_away(env, replies, envelope.addressee(), NotSent::Redirects, now);
        }
        if says_try_again && to.flight_id().is_none() && self.hold_apart(env, envelope, frame, tries) {
            return;
        }
        let pause = match refused {
            NodeRefusal::TryAgain => pause_not_yet(tries.waits),
            // Each of many may be sent on.
            NodeRefusal::Ask { .. } if to.piece_of().is_some() => Duration::ZERO,
            _ => doubled(PAUSE_FIRST, tries.hops.saturating_sub(1)).min(PAUSE_MAX),
        };
        self.pause(slot, now.monotonic.after(pause));
        self.hold_refused(env, request, tries, until);
    }

    /// A request that a node has refused is held.
    fn hold_refused(&mut self, env: &mut Env, request: &Refused, tries: Tries, until: Until) {
        let Refused { envelope, frame, sent, .. } = request;
        let (frame, requests) = as_asked(frame, usize::from(sent.requests), envelope.reply_to);
        let message = Stored::of(frame, &mut env.pool);
        let Until { ask, doubted, words } = until;
        self.hold(Held { envelope: *envelope, message, requests, tries, ask, doubted, words });
    }

    /// Nothing of a slot is sent before that time.
    fn pause(&mut self, slot: u16, until: Timestamp) {
        let hold = self.holds.entry(slot).or_default();
        hold.not_before = hold.not_before.max(until);
    }

    /// How often in a row a node has said CLUSTERDOWN for a slot, with the answer to what was sent at that time, and when it is asked
    /// again.
    fn down_until(&self, slot: u16, sent_at: Timestamp, now: Timestamp) -> (u8, Timestamp) {
        match self.holds.get(&slot).and_then(|hold| hold.down.as_ref()) {
            Some(down) if sent_at < down.again_at => (down.times, down.again_at),
            before => {
                let times = before.map_or(1, |down| down.times.saturating_add(1));
                (times, now.after(pause_not_yet(times)))
            }
        }
    }

    /// A node says CLUSTERDOWN to a request for a slot that was sent at that time. Returns the error, to be kept.
    fn hear_down(
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
        // Many are told the same.
        let known = hold.down.take().map(|down| down.words).filter(|known| **known == *words);
        let words = known.unwrap_or_else(|| words.into());
        hold.down = Some(Down { words: Arc::clone(&words), sent_at, times, again_at });
        words
    }

    /// A node says something else to a request for a slot than that it is down.
    fn hear_not_down(&mut self, slot: u16, sender: BackendId) {
        self.down.remove(&sender);
        if let Some(hold) = self.holds.get_mut(&slot) {
            hold.down = None;
        }
    }

    /// A request for keys that are not all where its slot is goes on key by key, if it may.
    fn hold_apart(&mut self, env: &mut Env, whole: &Envelope, frame: &[u8], tries: Tries) -> bool {
        let apart = taken_apart(frame.strip_prefix(ASKING).unwrap_or(frame));
        let Some((pieces, join)) = apart.filter(|(pieces, _)| self.held + pieces.len() <= HELD_MAX) else {
            return false;
        };
        let to = whole.reply_to;
        let index = env.pieces.insert(to, (join, whole.nature.effect), whole.route.protocol, pieces.len());
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
    /// It has not been sent yet. What is held goes to owners, whoever might have answered it.
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

    /// It was lost with a connection, and goes to whoever owns its slot.
    pub(super) fn again(envelope: Envelope, message: Stored, tries: Tries, now: Timestamp) -> Self {
        let tries = Tries { is_again: true, ..tries.elsewhere(now) };
        Self { envelope, message, requests: 1, tries, ask: None, doubted: None, words: None }
    }

    /// Is it for one of the keys of a request that was taken apart?
    fn is_piece(&self) -> bool {
        self.envelope.reply_to.piece_of().is_some()
    }

    /// Was it refused by a script, for all anybody knows? That may have been carried out.
    fn is_scripts_word(&self) -> bool {
        self.doubted.is_some() && self.envelope.nature.class == Class::Script
    }

    /// Is that so, and is the slot not known to have gone from the node that carried it out?
    fn is_unproven(&self, env: &Env, map: &Map) -> bool {
        let Some(Doubted { at, by_owner, .. }) = self.doubted.filter(|_| self.is_scripts_word()) else {
            return false;
        };
        let Route { slot, backend, .. } = self.envelope.route;
        let is_elsewhere = map.owner(slot) != Some(backend) && !map.is_hearsay(slot);
        !(is_elsewhere && (by_owner || env.is_sure(at)))
    }

    /// Is it still to be found out whether it was refused in truth? A newer map tells; of a script's word only one that says that the
    /// slot is gone, or all primaries.
    fn is_doubted(&self, env: &Env, map: &Map) -> bool {
        let Some(Doubted { version, at, .. }) = self.doubted else { return false };
        let is_told = map.version() > version && !self.is_unproven(env, map);
        !(is_told || self.is_scripts_word() && env.is_sure(at))
    }

    fn is_late(&self, now: Timestamp) -> bool {
        now >= self.envelope.deadline || now.since(self.tries.held_since) >= SLOT_HELD_MAX
    }

    /// The answer if this request is not sent again: the error of the node that was down, if the request waited for one.
    fn told(&self, down: Option<&Down>, why: NotSent) -> Told {
        let has_waited = |down: &&Down| !self.tries.were_refused() && self.tries.held_since <= down.sent_at;
        let words = self.words.as_ref().or_else(|| down.filter(has_waited).map(|down| &down.words));
        words.map_or(Told::Why(why), |words| Told::Words(Arc::clone(words)))
    }
}

/// The track of what goes to an owner, whoever might have answered it.
fn track_at_owner(track: Track) -> Track {
    if track == Track::Replica { Track::Usual } else { track }
}

/// A request without what was said before it: that another node is asked, or when its key ends.
fn as_asked(frame: &[u8], requests: usize, to: ReplyTo) -> (&[u8], usize) {
    let (frame, requests) = match frame.strip_prefix(ASKING) {
        Some(rest) => (rest, requests - 1),
        None => (frame, requests),
    };
    if to.flight_id().is_none() || requests < 2 {
        return (frame, requests);
    }
    let (mut decoder, mut consumed) = (RequestDecoder::default(), 0);
    let _ = decoder.next(frame, &mut consumed, &RequestLimits::trusted(frame.len()));
    (&frame[consumed..], 1)
}
