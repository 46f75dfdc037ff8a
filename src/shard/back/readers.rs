//! Reads that replicas of a cluster may answer: who gets them, and what becomes of them if that one has no good answer.
//!
//! ```text
//!   read ── slot at rest? a replica that is well and not far behind? ── no ──────────────────> owner
//!              └ yes ── the better of two, owner among them (policy/stand_ins.rs) ── replica ──┐  ^
//!                                        nil, 0, empty, an error, silence, a lost connection ──┘──┘
//! ```
//!
//! A replica's connections carry nothing but such reads, and are opened while owners still answer: so no read waits for one, and
//! what is lost with one can be asked for again.

use std::sync::Arc;
use std::time::Duration;

use super::forward::{bulkhead_for, link_for};
use super::link::{Link, LinkState, Odd, Pending, Purpose, whole};
use super::{Back, Replies, turn_away};
use crate::policy::stand_ins::{Candidate, Event, Role, StandIns, Why};
use crate::protocol::command::{Class, Effect};
use crate::protocol::{Scanned, reply};
use crate::routing::cluster::{NodeKey, NodeRefusal, ReplicaState};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::request::{Envelope, Route, Track};
use crate::shard::stored::Stored;
use crate::values::limits::REPLICA_LAG_MAX;
use crate::values::time::Now;
use crate::values::{BackendId, ConnectionId, Random, Timestamp};

/// A replica that owes something and says nothing for so long, or for half the time in which an answer is of use, is not waited for.
const PATIENCE: Duration = Duration::from_millis(100);
const PATIENCE_LEAST: Duration = Duration::from_millis(10);
/// What owners take is only looked at while somebody asks for reads of this kind.
const USED: Duration = Duration::from_secs(60);

/// What became of reads that replicas may answer, at one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderFigures {
    /// Answered by it, as a replica.
    pub answered: u64,
    /// Times it was left alone: for failures, and for being slow.
    pub out: [u64; 2],
    /// It is, by this core.
    pub is_out: bool,
}

/// One core's.
#[derive(Debug)]
pub struct Readers {
    policy: StandIns,
    /// By place: which replica it is, whose, and what it has.
    fresh: Vec<Option<(NodeKey, NodeKey, Timestamp)>>,
    candidates: Vec<(Candidate, Route)>,
    random: Random,
    figures: Vec<ReaderFigures>,
    /// Somebody asked for such a read then.
    pub(super) used_at: Option<Timestamp>,
    /// Why each node failed last.
    reasons: Vec<&'static str>,
}

/// Why a reply of a replica is not good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// The key may have gone elsewhere.
    Empty,
    /// It cannot answer.
    Sick,
    /// It says something else.
    Error,
}

impl Readers {
    pub fn new(seed: u64) -> Self {
        Self {
            policy: StandIns::default(),
            fresh: Vec::new(),
            candidates: Vec::new(),
            random: Random::new(seed).fork(),
            figures: Vec::new(),
            used_at: None,
            reasons: Vec::new(),
        }
    }

    fn handle_states(&mut self, states: &[ReplicaState]) {
        self.fresh.clear();
        for state in states {
            let place = usize::from(state.node.backend.0);
            if self.fresh.len() <= place {
                self.fresh.resize(place + 1, None);
            }
            self.fresh[place] = state.as_of.map(|as_of| (state.node, state.primary, as_of));
        }
    }

    /// Is a replica known to have what its primary had a short while ago?
    fn is_fresh(&self, node: NodeKey, primary: NodeKey, now: Timestamp) -> bool {
        let known = self.fresh.get(usize::from(node.backend.0)).copied().flatten();
        known.is_some_and(|(of, whose, as_of)| {
            (of, whose) == (node, primary) && now.since(as_of) <= REPLICA_LAG_MAX
        })
    }

    fn figures_of(&mut self, backend: BackendId) -> &mut ReaderFigures {
        let place = usize::from(backend.0);
        if self.figures.len() <= place {
            self.figures.resize(place + 1, ReaderFigures::default());
        }
        &mut self.figures[place]
    }

    fn handle_failure(&mut self, backend: BackendId, reason: &'static str, now: Timestamp) {
        let place = usize::from(backend.0);
        if self.reasons.len() <= place {
            self.reasons.resize(place + 1, "");
        }
        self.reasons[place] = reason;
        self.policy.handle_failure(place, Role::StandIn, now);
    }

    fn is_used(&self, now: Timestamp) -> bool {
        self.used_at.is_some_and(|used_at| now.since(used_at) <= USED)
    }

    /// What happened, in words.
    fn take_lines(&mut self, env: &mut Env, now: Timestamp) {
        if self.policy.is_due(now) {
            self.policy.handle_window(now);
        }
        for event in self.policy.take_events() {
            let core = env.settings.id.0;
            let line = match event {
                Event::Back(place) => {
                    let backend = BackendId(place as u16);
                    self.figures_of(backend).is_out = false;
                    let name = env.backend_name(backend);
                    format!("replica {name} answers reads of core {core} again, few at first")
                }
                Event::Out(place, why, out_for) => {
                    let backend = BackendId(place as u16);
                    let figures = self.figures_of(backend);
                    figures.is_out = true;
                    figures.out[usize::from(matches!(why, Why::Slow { .. }))] += 1;
                    let why = match why {
                        Why::Failures(count) => {
                            let last = self.reasons.get(place).copied().unwrap_or_default();
                            format!("{count} failures in a row, the last of them: {last}")
                        }
                        Why::Slow { class, p95, median } => format!(
                            "the 95th percentile of '{}' commands was {p95:?} for three seconds, and {median:?} at other nodes",
                            Class::ALL[class].name()
                        ),
                    };
                    let name = env.backend_name(backend);
                    format!("replica {name} gets no reads of core {core} for {out_for:?}: {why}")
                }
            };
            env.say(line);
        }
    }
}

/// How long a replica may be silent where answers are of use for so long.
fn patience(useful: Duration) -> Duration {
    (useful / 2).clamp(PATIENCE_LEAST, PATIENCE)
}

/// When a replica that is asked now is to be looked at.
pub(super) fn patient_until(deadline: Timestamp, now: Timestamp) -> Timestamp {
    now.after(patience(deadline.since(now)))
}

impl Link {
    /// When what it owes has been owed in silence for too long, if it owes anything.
    fn silent_at(&self) -> Option<Timestamp> {
        let due = |pending: &Pending| {
            let useful = pending.deadline().since(pending.sent_at);
            pending.sent_at.max(self.heard_at).after(patience(useful))
        };
        self.pending.iter().map(due).min()
    }

    /// Is it? This core did not look for so long.
    pub(super) fn is_silent(&self, late: Duration, now: Timestamp) -> bool {
        self.silent_at().is_some_and(|at| at.after(late) <= now)
    }
}

impl Back {
    /// How far replicas are behind.
    pub fn handle_replicas(&mut self, states: &[ReplicaState]) {
        if let Some(readers) = &mut self.readers {
            readers.handle_states(states);
        }
    }

    /// A node is another one by now, or does something else: it is not what it was.
    pub(super) fn meet_anew(&mut self, env: &Env, backend: BackendId) {
        let Some(readers) = &mut self.readers else { return };
        readers.policy.forget(usize::from(backend.0));
        readers.figures_of(backend).is_out = false;
        self.forget_health(env, backend);
    }

    /// What nodes did of reads that replicas may answer, by their places.
    pub fn reader_figures(&self) -> Vec<ReaderFigures> {
        self.readers.as_ref().map(|readers| readers.figures.clone()).unwrap_or_default()
    }

    /// The end of a turn.
    pub(super) fn look_after_readers(&mut self, env: &mut Env, now: Now) {
        if let Some(readers) = &mut self.readers {
            readers.take_lines(env, now.monotonic);
        }
    }

    /// Where a read goes that a replica may answer, whose owner is known.
    #[inline(never)]
    pub(super) fn choose_reader(
        &mut self,
        env: &mut Env,
        route: Route,
        deadline: Timestamp,
        now: Now,
    ) -> Route {
        let home = Route { track: Track::Usual, ..route };
        let Some(mut readers) = self.readers.take() else { return home };
        readers.used_at = Some(now.monotonic);
        let chosen = self.find_reader(&mut readers, env, home, deadline, now);
        self.readers = Some(readers);
        chosen.unwrap_or(home)
    }

    fn find_reader(
        &mut self,
        readers: &mut Readers,
        env: &mut Env,
        home: Route,
        deadline: Timestamp,
        now: Now,
    ) -> Option<Route> {
        let slots = self.slots.as_ref().filter(|slots| !slots.is_moving(home.slot))?;
        let map = Arc::clone(&slots.map);
        let owner = map.node(home.backend)?;
        readers.candidates.clear();
        for backend in &owner.replicas {
            let node = map.node(*backend).map(|node| node.key);
            let is_fresh = node.is_some_and(|node| readers.is_fresh(node, owner.key, now.monotonic));
            let is_out = || readers.policy.out_until(usize::from(backend.0), now.monotonic).is_some();
            let route = Route { backend: *backend, track: Track::Replica, ..home };
            if !is_fresh || is_out() || !self.is_reader_ready(env, route, now) {
                continue;
            }
            readers.candidates.extend(self.candidate(route, Role::StandIn, deadline, now));
        }
        if readers.candidates.is_empty() {
            return None;
        }
        let is_reachable =
            |link: &Link| !matches!(link.state, LinkState::BackingOff { until } if until > now.monotonic);
        if is_reachable(&self.links[link_for(&env.settings, home).0 as usize]) {
            readers.candidates.extend(self.candidate(home, Role::Owner, deadline, now));
        }
        let Readers { policy, candidates, random, .. } = readers;
        let chosen =
            policy.choose(candidates.iter().map(|(candidate, _)| *candidate), random, now.monotonic)?;
        Some(candidates[chosen].1)
    }

    /// A node that has room for one more.
    fn candidate(
        &self,
        route: Route,
        role: Role,
        deadline: Timestamp,
        now: Now,
    ) -> Option<(Candidate, Route)> {
        let bulkhead = &self.bulkheads[bulkhead_for(route)];
        let (place, in_flight) = (usize::from(route.backend.0), bulkhead.in_flight());
        bulkhead.has_room(deadline, now.monotonic).then_some((Candidate { place, role, in_flight }, route))
    }

    /// May a read go out to a replica at once? If there is no connection yet, one is opened meanwhile.
    fn is_reader_ready(&mut self, env: &mut Env, route: Route, now: Now) -> bool {
        let connection = link_for(&env.settings, route);
        let is_ready = |back: &Self| back.links[connection.0 as usize].is_ready(back.fences.count());
        // Who cannot be reached is not asked.
        is_ready(self) || self.make_ready(env, connection, now).is_ok() && is_ready(self)
    }

    /// An owner has answered: who is asked next goes by how long that took.
    pub(super) fn hear_owner(&mut self, connection: ConnectionId, pending: &Pending, now: Now) {
        let late = self.late;
        let Some(readers) = &mut self.readers else { return };
        if pending.effect == Effect::Read && pending.odd == Odd::No && readers.is_used(now.monotonic) {
            let place = usize::from(self.links[connection.0 as usize].backend.0);
            let took = now.monotonic.since(pending.sent_at).saturating_sub(late);
            readers.policy.handle_reply(place, Role::Owner, pending.class.index(), took, now.monotonic);
        }
    }

    /// A replica has answered. True if that is not good enough, and the owner is asked.
    #[inline(never)]
    pub(super) fn is_asked_of_owner(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        pending: &Pending,
        (scanned, end): (&Scanned, &[u8]),
        replies: &mut impl Replies,
        now: Now,
    ) -> bool {
        let late = self.late;
        let link = &mut self.links[connection.0 as usize];
        link.proved();
        let doubt = match link.let_go {
            0 => doubt_of(pending.class, scanned.kind, &link.partial, end),
            // It is too large to be kept, so it is not empty.
            _ => None,
        };
        let Some((sent, frame)) = link.unanswered.pop(doubt.is_some()) else { return false };
        let route = Route { backend: link.backend, track: Track::Usual, ..sent.envelope.route };
        if let Some(readers) = &mut self.readers {
            if doubt == Some(Doubt::Sick) {
                readers.handle_failure(route.backend, "it says that it cannot answer", now.monotonic);
            } else if doubt != Some(Doubt::Error) && pending.odd == Odd::No {
                let took = now.monotonic.since(pending.sent_at).saturating_sub(late);
                let (place, class) = (usize::from(route.backend.0), pending.class.index());
                readers.policy.handle_reply(place, Role::StandIn, class, took, now.monotonic);
            }
        }
        let Purpose::Answer(_) = pending.purpose else { return false };
        let counter = match doubt {
            None => {
                if let Some(readers) = &mut self.readers {
                    readers.figures_of(route.backend).answered += 1;
                }
                return false;
            }
            Some(Doubt::Empty) => Counter::ReplicaReadsEmpty,
            Some(Doubt::Sick | Doubt::Error) => Counter::ReplicaReadsRefused,
        };
        env.counters.add(counter, 1);
        self.ask_owner(env, &Envelope { route, ..sent.envelope }, &frame, replies, now);
        true
    }

    /// The owner is asked instead of a replica.
    fn ask_owner(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        frame: &[u8],
        replies: &mut impl Replies,
        now: Now,
    ) {
        let route = envelope.route;
        let owner = self.slots.as_ref().and_then(|slots| slots.owner(route.slot));
        let route = Route { backend: owner.unwrap_or(route.backend), ..route };
        let envelope = Envelope { route, ..*envelope };
        let message = Stored::of(frame, &mut env.pool);
        if let Err(why) = self.send(env, &envelope, message.message(), 1, now) {
            turn_away(env, replies, envelope.addressee(), why, now);
        }
        message.release(&mut env.pool);
    }

    /// Looks whether a replica is silent. When to look again, if it goes on being waited for.
    pub(super) fn give_up_reads(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        replies: &mut impl Replies,
        now: Now,
    ) -> Timestamp {
        let link = &self.links[connection.0 as usize];
        if link.state == LinkState::Open && link.is_silent(self.late, now.monotonic) {
            self.drop_link(env, connection, "silent", replies, now);
        }
        self.links[connection.0 as usize].silent_at().unwrap_or(Timestamp::MAX)
    }

    /// A connection to a replica is lost: owners are asked for what it owes.
    pub(super) fn lose_reads(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        reason: &'static str,
        (spread, replies): (u8, &mut impl Replies),
        now: Now,
    ) {
        let link = &mut self.links[connection.0 as usize];
        let mut unanswered = std::mem::take(&mut link.unanswered);
        let mut pending = std::mem::take(&mut link.pending);
        self.in_flight -= link.clear(&mut env.pool);
        self.in_flight -= pending.iter().map(Pending::replies).sum::<usize>();
        link.costly_ahead = 0;
        link.lost(now.monotonic, spread);
        let (backend, bulkhead) = (link.backend, link.bulkhead);
        for lost in pending.iter().filter(|lost| lost.is_counted()) {
            self.bulkheads[bulkhead].handle_over(lost.tenant);
        }
        self.bulkheads[bulkhead].handle_none_in_flight(now.monotonic);
        if let Some(readers) = &mut self.readers {
            readers.handle_failure(backend, reason, now.monotonic);
        }
        for lost in pending.drain(..) {
            match lost.purpose {
                Purpose::Answer(_) => {
                    let Some((sent, frame)) = unanswered.pop(true) else { continue };
                    env.counters.add(Counter::ReplicaReadsLost, 1);
                    let route = Route { backend, track: Track::Usual, ..sent.envelope.route };
                    self.ask_owner(env, &Envelope { route, ..sent.envelope }, &frame, replies, now);
                }
                Purpose::Abandoned(_) => unanswered.forget(),
                Purpose::Steps(_) | Purpose::Ahead(_) | Purpose::Fence => {}
            }
        }
        self.links[connection.0 as usize].pending = pending;
    }
}

/// What speaks against a reply of a replica. Replicas do not know that a slot has left, or a key: they say that there is none.
fn doubt_of(class: Class, kind: u8, kept: &[u8], end: &[u8]) -> Option<Doubt> {
    let mut start = [0; 16];
    start.iter_mut().zip(kept.iter().chain(end)).for_each(|(place, byte)| *place = *byte);
    let begins = |with: &str| start.starts_with(with.as_bytes());
    let is_empty = match kind {
        b'-' => {
            let sickness = NodeRefusal::parse(&whole(kept, end)).and_then(NodeRefusal::sickness);
            return Some(if sickness.is_some() { Doubt::Sick } else { Doubt::Error });
        }
        b'$' => begins("$-1") || begins("$0\r"),
        b'_' => true,
        b':' => begins(":0\r") || begins(":-"),
        b'+' => begins("+none\r"),
        _ if begins("*0\r") || begins("*-1") || begins("~0\r") || begins("%0\r") => true,
        // One value for each key or field.
        b'*' if class != Class::Range => {
            let whole = whole(kept, end);
            let mut elements = reply::elements(&whole)?;
            let is_null = |element: &[u8]| {
                element.starts_with(b"$-1") || element.starts_with(b"_") || element.starts_with(b"*-1")
            };
            let is_none = |element: &[u8]| element == b":0\r\n" || element.starts_with(b":-");
            elements.clone().any(is_null) || elements.all(is_none)
        }
        _ => false,
    };
    is_empty.then_some(Doubt::Empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_mean_that_a_key_has_gone_elsewhere_is_doubted() {
        let doubt = |class, reply: &str| {
            let bytes = reply.as_bytes();
            let doubts: Vec<_> =
                (0..bytes.len()).map(|at| doubt_of(class, bytes[0], &bytes[..at], &bytes[at..])).collect();
            assert!(doubts.iter().all(|doubt| *doubt == doubts[0]), "{reply}: however it comes");
            doubts[0]
        };
        for empty in [
            "$-1\r\n",
            "$0\r\n\r\n",
            "_\r\n",
            ":0\r\n",
            ":-2\r\n",
            "+none\r\n",
            "*0\r\n",
            "*-1\r\n",
            "%0\r\n",
            "~0\r\n",
            "*2\r\n$1\r\na\r\n$-1\r\n",
            "*2\r\n_\r\n$1\r\na\r\n",
            "*2\r\n:0\r\n:0\r\n",
        ] {
            assert_eq!(doubt(Class::Point, empty), Some(Doubt::Empty), "{empty}");
        }
        for good in [
            "$1\r\na\r\n",
            ":7\r\n",
            "+string\r\n",
            "*1\r\n$0\r\n\r\n",
            "*2\r\n:0\r\n:1\r\n",
            "%1\r\n+a\r\n+b\r\n",
            "$10\r\n0123456789\r\n",
        ] {
            assert_eq!(doubt(Class::Multi, good), None, "{good}");
        }
        assert_eq!(doubt(Class::Range, "*2\r\n$1\r\na\r\n$1\r\nb\r\n"), None);
        for sick in ["-LOADING x\r\n", "-BUSY x\r\n", "-MASTERDOWN x\r\n"] {
            assert_eq!(doubt(Class::Point, sick), Some(Doubt::Sick), "{sick}");
        }
        for error in ["-MOVED 1 a:1\r\n", "-CLUSTERDOWN x\r\n", "-WRONGTYPE x\r\n"] {
            assert_eq!(doubt(Class::Point, error), Some(Doubt::Error), "{error}");
        }
    }
}
