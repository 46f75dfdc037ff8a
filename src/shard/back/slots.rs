//! Slots of a cluster, which change their owners while requests for them are under way. Nothing of this exists before plain stores.
//!
//! ```text
//!   request ── slot held? ── no ──> its owner ── refused unexecuted: MOVED, ASK, TRYAGAIN ──┐
//!                  └ yes ──────────────────────────────> held <─────────────────────────────┘
//!                                                         └─ nothing of the slot in flight any more ──> in order, to where they belong
//! ```
//!
//! A slot is held from its first refusal on, or from when another owner is known while the old one still owes replies. Held requests
//! leave together, each connection's in its order, when all that was sent for the slot has been answered. So no request overtakes
//! another of its connection, though some were refused and others not. While what was sent again is under way the slot stays held.
//!
//! Only what a node has refused is sent again, at most so often, and not behind a later request of its connection that was carried out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::bulkhead::Bulkhead;
use super::link::{LinkState, Pending, Purpose};
use super::unanswered::Tries;
use super::{Back, Replies, turn_away};
use crate::protocol::command::Class;
use crate::protocol::{RequestDecoder, RequestLimits};
use crate::routing::cluster::{Map, NodeKey, NodeRefusal, Reason, Target};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::reach;
use crate::shard::refusal::{NotSent, Stage};
use crate::shard::request::{Envelope, Nature, Overdue, ReplyTo, Route, Touches, Track};
use crate::shard::stored::Stored;
use crate::values::limits::COPY_BYTES_MAX;
use crate::values::time::Now;
use crate::values::{BackendId, ConnectionId, Timestamp};

/// What goes to a backend that was chosen for another reason than a slot.
pub const NO_SLOT: u16 = u16::MAX;

/// A request is sent this often at most, and held for so long together.
const HOPS_MAX: u8 = 6;
const HELD_FOR_MAX: Duration = Duration::from_secs(1);
/// The pause before what was refused twice is sent again; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
/// The same for what a node will do once it has all keys of a request.
const PAUSE_INCOMPLETE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Requests that one core holds, and bytes of those.
const HELD_MAX: usize = 16_384;
const HELD_BYTES_MAX: usize = 64 << 20;
/// Held slots are looked at this often.
pub const LOOKS_APART: Duration = Duration::from_millis(1);
/// An owner that a refusal named counts for so long against maps that know of none.
const PATCH_HOLDS: Duration = Duration::from_secs(2);
/// What is said before a request that a node was asked to take over.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// A request that is held.
#[derive(Debug)]
struct Held {
    envelope: Envelope,
    message: Stored,
    requests: usize,
    tries: Tries,
    /// A node that takes it over, key by key.
    ask: Option<BackendId>,
    /// It is not known yet whether who refused it was right: a newer map than this one says so.
    confirmed_by: Option<u64>,
}

/// A slot of which requests are held.
#[derive(Debug, Default)]
struct Hold {
    list: Vec<Held>,
    not_before: Timestamp,
    pause: Duration,
    /// The newest request of each connection for each key that was carried out since it is held.
    carried_out: HashMap<(u64, Box<[u8]>), u32>,
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
    map: Arc<Map>,
    /// Owners that refusals named, and until when that counts.
    patches: BTreeMap<u16, (BackendId, Timestamp)>,
    holds: BTreeMap<u16, Hold>,
    held: usize,
    held_bytes: usize,
    /// What is being sent was sent before.
    tries: Tries,
    doubt: Option<Doubt>,
}

impl Slots {
    pub fn new(map: Arc<Map>) -> Self {
        Self {
            map,
            patches: BTreeMap::new(),
            holds: BTreeMap::new(),
            held: 0,
            held_bytes: 0,
            tries: Tries::default(),
            doubt: None,
        }
    }

    fn owner(&self, slot: u16) -> Option<BackendId> {
        match self.patches.get(&slot) {
            Some((owner, _)) => Some(*owner),
            None => self.map.owner(slot),
        }
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

    fn has_room_for(&self, bytes: usize) -> bool {
        self.held < HELD_MAX && self.held_bytes + bytes <= HELD_BYTES_MAX
    }

    fn hold(&mut self, held: Held) {
        self.held += 1;
        self.held_bytes += held.message.len();
        self.holds.entry(held.envelope.route.slot).or_default().list.push(held);
    }
}

impl Back {
    /// A map of the cluster; the first one says that there is a cluster.
    pub fn handle_slots(&mut self, env: &mut Env, map: Arc<Map>, replies: &mut impl Replies, now: Now) {
        let Some(slots) = &mut self.slots else {
            self.slots = Some(Box::new(Slots::new(map)));
            return;
        };
        let older = std::mem::replace(&mut slots.map, map);
        slots.patches.retain(|_, (_, until)| *until > now.monotonic);
        let gone: Vec<BackendId> = slots.map.gone_since(&older).map(|node| node.backend).collect();
        self.leave(env, &gone, replies, now);
        let Some(slots) = &mut self.slots else { return };
        // What is owed by former owners comes before what new ones are sent.
        let former =
            self.links.iter().flat_map(|link| link.unanswered.slots().map(|slot| (slot, link.backend)));
        let waiting = self.bulkheads.iter().flat_map(|bulkhead| {
            bulkhead.parked().map(|parked| (parked.envelope.route.slot, parked.envelope.route.backend))
        });
        for (slot, backend) in former.chain(waiting) {
            if slot != NO_SLOT && slots.owner(slot) != Some(backend) {
                slots.holds.entry(slot).or_default();
            }
        }
    }

    /// These nodes are no members any more: others may take their places.
    fn leave(&mut self, env: &mut Env, gone: &[BackendId], replies: &mut impl Replies, now: Now) {
        for index in 0..self.links.len() {
            let link = &self.links[index];
            if gone.contains(&link.backend) && link.state != LinkState::Closed {
                self.drop_link(env, ConnectionId(index as u32), "node-gone", replies, now);
            }
        }
    }

    /// Why the map may be old, if it may.
    pub fn take_doubt(&mut self) -> Option<Doubt> {
        self.slots.as_mut()?.doubt.take()
    }

    /// A connection to a node was lost, or could not be made.
    pub(super) fn doubt_slots(&mut self) {
        if let Some(slots) = &mut self.slots {
            slots.doubt(Reason::LinkLost, None);
        }
    }

    /// When held slots are looked at again.
    pub(super) fn slots_due(&self) -> Option<Timestamp> {
        let slots = self.slots.as_ref()?;
        (!slots.holds.is_empty()).then(|| self.turned_at.after(LOOKS_APART))
    }

    /// Sends a request to the owner of its slot, or holds it.
    #[inline(never)]
    pub(super) fn send_to_owner(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) -> Result<(), NotSent> {
        let Some(slots) = &mut self.slots else { return Ok(()) };
        let slot = envelope.route.slot;
        if slot == NO_SLOT {
            return self.send_there(env, envelope, message, requests, now);
        }
        if slots.holds.contains_key(&slot) {
            return self.hold_new(env, envelope, message, requests, now);
        }
        let Some(backend) = slots.owner(slot) else {
            slots.doubt(Reason::Moved(None), None);
            return Err(NotSent::NoOwner);
        };
        let envelope = Envelope { route: Route { backend, ..envelope.route }, ..*envelope };
        self.send_there(env, &envelope, message, requests, now)
    }

    /// A request that has not been sent yet, for a slot that is held.
    fn hold_new(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) -> Result<(), NotSent> {
        let Some(slots) = self.slots.as_mut().filter(|slots| slots.has_room_for(message.bytes().len()))
        else {
            return Err(NotSent::Queue(LOOKS_APART));
        };
        let tries = Tries { hops: 0, held_since: now.monotonic };
        let message = Stored::new(message, &mut env.pool);
        let envelope = *envelope;
        slots.hold(Held { envelope, message, requests, tries, ask: None, confirmed_by: None });
        env.counters.add(Counter::SlotsHeld, 1);
        Ok(())
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
        let Some(slots) = self.slots.as_mut().filter(|_| slot != NO_SLOT) else { return false };
        let is_elsewhere = slots.owner(slot) != Some(backend);
        if !is_elsewhere && !slots.holds.contains_key(&slot) {
            return false;
        }
        let tries = Tries { hops: 0, held_since: now.monotonic };
        let message = Stored::new(message, &mut env.pool);
        let envelope = *envelope;
        slots.hold(Held { envelope, message, requests, tries, ask: None, confirmed_by: None });
        true
    }

    /// A request is on its way over a connection.
    #[inline(never)]
    pub(super) fn keep_sent(
        &mut self,
        connection: ConnectionId,
        slot: u16,
        message: Message<'_>,
        requests: usize,
    ) {
        let tries = self.slots.as_ref().map(|slots| slots.tries).unwrap_or_default();
        self.links[connection.0 as usize].unanswered.push((slot, requests), tries, message);
    }

    /// A step of a block was answered with an error.
    pub(super) fn hear_step(&mut self, connection: ConnectionId, error: &[u8]) {
        if NodeRefusal::parse(error).is_some() {
            self.links[connection.0 as usize].unanswered.step.get_or_insert_with(|| error.to_vec());
        }
    }

    /// The reply to a request has come. True if that says that it was not carried out, and it is seen to.
    #[inline(never)]
    pub(super) fn is_refused_for_another(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        pending: &Pending,
        (kind, end): (u8, &[u8]),
        replies: &mut impl Replies,
        now: Now,
    ) -> bool {
        let link = &mut self.links[connection.0 as usize];
        let step = link.unanswered.step.take();
        let is_error = kind == b'-';
        let error = [link.partial.as_slice(), if is_error { end } else { &[] }].concat();
        let refused = match &step {
            Some(step) if error.starts_with(b"-EXECABORT") => NodeRefusal::parse(step),
            _ if is_error => NodeRefusal::parse(&error),
            _ => None,
        };
        // What says nothing of where the slot is, is handed on.
        let is_down = refused.is_some_and(|refused| {
            use NodeRefusal::{Busy, ClusterDown, Loading, MasterDown};
            matches!(refused, Busy | ClusterDown | Loading | MasterDown)
        });
        let refused = refused.filter(|_| !is_down);
        let is_wanted = refused.is_some()
            || self
                .slots
                .as_ref()
                .zip(link.unanswered.next_slot())
                .is_some_and(|(slots, slot)| slots.holds.contains_key(&slot));
        let Some((sent, frame)) = link.unanswered.pop(is_wanted) else { return false };
        let (sender, protocol, bulkhead) = (link.backend, link.protocol, link.bulkhead);
        let Some(slots) = self.slots.as_mut().filter(|_| sent.slot != NO_SLOT) else { return false };
        let Purpose::Answer(to) = pending.purpose else { return false };
        if is_down && let Some(node) = slots.key_of(sender) {
            slots.doubt(Reason::ClusterDown(node), None);
        }
        let Some(refused) = refused else {
            if let Some(hold) = slots.holds.get_mut(&sent.slot) {
                for key in keys_of(&frame) {
                    hold.carried_out.insert((to.connection(), key), to.sequence);
                }
            }
            return false;
        };
        env.counters.add(Counter::Redirections, 1);
        let track = if bulkhead.is_multiple_of(2) { Track::Usual } else { Track::Heavy };
        let route = Route { slot: sent.slot, backend: sender, protocol, track };
        let envelope = envelope_of(pending, to, route);
        let held_since = if sent.tries.hops == 0 { now.monotonic } else { sent.tries.held_since };
        let tries = Tries { hops: sent.tries.hops + 1, held_since };
        let is_known = slots.judge(refused, (sent.slot, sender), pending.class, now.monotonic);
        let (ask, confirmed_by) = match is_known {
            Some(Way::Owner) => (None, None),
            Some(Way::Ask(backend)) => (Some(backend), None),
            Some(Way::AfterRefresh) => (None, Some(slots.map.version())),
            None => return give_up_on(env, &envelope, replies, now),
        };
        if tries.hops > HOPS_MAX || !slots.has_room_for(frame.len()) {
            return give_up_on(env, &envelope, replies, now);
        }
        let hold = slots.holds.entry(sent.slot).or_default();
        let least = match refused {
            NodeRefusal::TryAgain => PAUSE_INCOMPLETE,
            _ if tries.hops > 1 => PAUSE_FIRST,
            _ => Duration::ZERO,
        };
        if !least.is_zero() {
            hold.pause = (hold.pause * 2).clamp(least, PAUSE_MAX);
            hold.not_before = now.monotonic.after(hold.pause);
        }
        let (frame, requests) = as_asked(&frame, usize::from(sent.requests), to);
        let message = if frame.len() > COPY_BYTES_MAX {
            Stored::Shared(Bytes::from(frame.to_vec()))
        } else {
            Stored::new(Message::Small(frame), &mut env.pool)
        };
        slots.hold(Held { envelope, message, requests, tries, ask, confirmed_by });
        true
    }

    /// The end of a turn: slots of which nothing is in flight any more are let go.
    #[inline(never)]
    pub(super) fn look_after_slots(&mut self, env: &mut Env, replies: &mut impl Replies, now: Now) {
        let Some(slots) = self.slots.as_mut().filter(|slots| !slots.holds.is_empty()) else { return };
        let mut is_busy: BTreeMap<u16, bool> = slots.holds.keys().map(|slot| (*slot, false)).collect();
        let parked = self.bulkheads.iter().flat_map(Bulkhead::parked);
        let waiting = parked.map(|parked| parked.envelope.route.slot);
        for slot in self.links.iter().flat_map(|link| link.unanswered.slots()).chain(waiting) {
            if let Some(is_busy) = is_busy.get_mut(&slot) {
                *is_busy = true;
            }
        }
        let mut late: Vec<(Held, NotSent)> = Vec::new();
        let mut ready: Vec<Held> = Vec::new();
        for (slot, is_busy) in is_busy {
            let Some(hold) = slots.holds.get_mut(&slot) else { continue };
            late.extend(hold.list.extract_if(.., |held| held.is_late(now.monotonic)).map(|held| {
                let is_late = now.monotonic >= held.envelope.deadline;
                let waited = now.monotonic.since(held.tries.held_since);
                let why = if is_late { NotSent::TooLate(Stage::Queue, waited) } else { NotSent::Redirects };
                (held, why)
            }));
            let version = slots.map.version();
            let is_doubted =
                hold.list.iter().any(|held| held.confirmed_by.is_some_and(|seen| seen >= version));
            if is_busy || is_doubted || now.monotonic < hold.not_before {
                continue;
            }
            // What was refused goes first, alone: what came later must not be carried out before it, should it be refused again.
            let mut list: Vec<Held> = hold.list.extract_if(.., |held| held.tries.hops > 0).collect();
            if list.is_empty() {
                list = std::mem::take(&mut hold.list);
            }
            let carried_out = std::mem::take(&mut hold.carried_out);
            // Those of one connection in its order, also where its numbers begin again.
            let mut some: HashMap<u64, u32> = HashMap::new();
            for Held { envelope: Envelope { reply_to: to, .. }, .. } in &list {
                some.entry(to.connection()).or_insert(to.sequence);
            }
            list.sort_by_cached_key(|Held { envelope: Envelope { reply_to: to, .. }, .. }| {
                let some = some.get(&to.connection()).copied().unwrap_or_default();
                (to.sequence.wrapping_sub(some) as i32, to.part)
            });
            let was_overtaken = |held: &mut Held| {
                let to = held.envelope.reply_to;
                let is_newer = |key| {
                    let newest = carried_out.get(&(to.connection(), key));
                    newest.is_some_and(|newest| newest.wrapping_sub(to.sequence) as i32 > 0)
                };
                let was_sent = held.tries.hops > 0 && !carried_out.is_empty();
                was_sent && keys_of(held.message.message().bytes()).into_iter().any(is_newer)
            };
            late.extend(list.extract_if(.., was_overtaken).map(|held| (held, NotSent::Redirects)));
            if hold.list.is_empty() && list.iter().all(|held| held.tries.hops == 0) {
                slots.holds.remove(&slot);
            }
            ready.extend(list);
        }
        for held in ready.iter().chain(late.iter().map(|(held, _)| held)) {
            slots.held -= 1;
            slots.held_bytes -= held.message.len();
        }
        for (held, why) in late {
            turn_away(env, replies, held.envelope.addressee(), why, now);
            held.message.release(&mut env.pool);
        }
        for held in ready {
            self.send_held(env, held, replies, now);
        }
    }

    fn send_held(&mut self, env: &mut Env, held: Held, replies: &mut impl Replies, now: Now) {
        let Held { envelope, message, requests, tries, ask, confirmed_by } = held;
        let Some(slots) = &mut self.slots else { return };
        let owner = ask.or_else(|| slots.owner(envelope.route.slot));
        // A script that was carried out may say what it likes: only if the slot is gone from its node was that true.
        let is_untrue = confirmed_by.is_some() && owner == Some(envelope.route.backend);
        let Some(backend) = owner.filter(|_| !is_untrue || envelope.nature.class != Class::Script) else {
            let why = if is_untrue { NotSent::Redirects } else { NotSent::NoOwner };
            turn_away(env, replies, envelope.addressee(), why, now);
            return message.release(&mut env.pool);
        };
        slots.tries = tries;
        let envelope = Envelope { route: Route { backend, ..envelope.route }, ..envelope };
        let sent = if ask.is_some() {
            let asking = [ASKING, message.message().bytes()].concat();
            self.put_on_link(env, &envelope, Message::Small(&asking), requests + 1, now)
        } else {
            self.put_on_link(env, &envelope, message.message(), requests, now)
        };
        if let Some(slots) = &mut self.slots {
            slots.tries = Tries::default();
        }
        if let Err(why) = sent {
            turn_away(env, replies, envelope.addressee(), why, now);
        }
        message.release(&mut env.pool);
    }
}

fn give_up_on(env: &mut Env, envelope: &Envelope, replies: &mut impl Replies, now: Now) -> bool {
    turn_away(env, replies, envelope.addressee(), NotSent::Redirects, now);
    true
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
                self.doubt(Reason::Moved(owner), owner.map(|owner| (slot, owner)));
                let Some(owner) = owner.filter(|_| !is_script) else { return Some(Way::AfterRefresh) };
                self.patches.insert(slot, (owner.backend, now.after(PATCH_HOLDS)));
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
                self.doubt(node.map_or(Reason::LinkLost, Reason::ReadOnly), None);
                Some(Way::AfterRefresh)
            }
            _ => None,
        }
    }

    fn find(&self, target: Target<'_>, sender: BackendId) -> Option<NodeKey> {
        let sender = self.map.node(sender)?.addresses.first()?;
        self.map.find(&target.resolve(sender)?).map(|node| node.key)
    }
}

impl Held {
    fn is_late(&self, now: Timestamp) -> bool {
        now >= self.envelope.deadline || now.since(self.tries.held_since) >= HELD_FOR_MAX
    }
}

/// What travels with a request, as far as that matters to whoever sends it again.
fn envelope_of(pending: &Pending, reply_to: ReplyTo, route: Route) -> Envelope {
    Envelope {
        reply_to,
        route,
        asker: None,
        nature: Nature { class: pending.class, effect: pending.effect },
        touches: Touches::NOTHING,
        tier: pending.tier,
        weight: 0,
        deadline: pending.deadline(),
        overdue: Overdue::Awaited,
    }
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
