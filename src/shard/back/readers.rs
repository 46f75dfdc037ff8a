//! Reads that replicas of a cluster may answer: chooses the replica, and asks the slot's owner if the replica
//! gives no good answer.
//!
//! ```text
//!   read ── slot at rest? a replica that is well and not far behind? ── no ──────────────────> owner
//!              └ yes ── the better of two, owner among them (policy/stand_ins.rs) ── replica ──┐  ^
//!                                        nil, 0, empty, an error, silence, a lost connection ──┘──┘
//! ```
//!
//! Connections to replicas carry only such reads, and are opened while owners still answer. So no read waits
//! for a connection, and reads lost with one can be sent again.

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

/// The silence after which weir stops waiting for a replica: half of the time left until the read's deadline,
/// between `PATIENCE_LEAST` and `PATIENCE`.
const PATIENCE: Duration = Duration::from_millis(100);
const PATIENCE_LEAST: Duration = Duration::from_millis(10);
/// The time after the last replica read during which response times of owners are still sampled.
const USED: Duration = Duration::from_secs(60);

/// Figures on the reads that replicas may answer, at one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderFigures {
    /// Reads that the node answered as a replica.
    pub answered: u64,
    /// The number of times that the node was ejected: for failures, and for being slow.
    pub out: [u64; 2],
    /// True while this core sends the node no such reads.
    pub is_out: bool,
}

/// The state of one core for reads that replicas may answer.
#[derive(Debug)]
pub struct Readers {
    policy: StandIns,
    /// By node: the replica's key, its primary's key, and the time up to which it is known to have the
    /// primary's writes.
    fresh: Vec<Option<(NodeKey, NodeKey, Timestamp)>>,
    candidates: Vec<(Candidate, Route)>,
    random: Random,
    figures: Vec<ReaderFigures>,
    /// The time of the last read that a replica might have answered.
    pub(super) used_at: Option<Timestamp>,
    /// The reason for each node's last failure.
    reasons: Vec<&'static str>,
}

/// The reason why a replica's reply is not good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// The reply is empty: the key may have moved to another node.
    Empty,
    /// The replica cannot answer now (loading, busy, without its primary).
    Sick,
    /// The reply is another error, such as a redirect.
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

    /// True if a replica had all its primary's writes at most `REPLICA_LAG_MAX` ago.
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

    /// Logs which replicas were ejected or taken back.
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

/// The time for which a replica may be silent, given the time until the read's deadline.
fn patience(useful: Duration) -> Duration {
    (useful / 2).clamp(PATIENCE_LEAST, PATIENCE)
}

/// The time at which a replica that is asked now is checked for silence.
pub(super) fn patient_until(deadline: Timestamp, now: Timestamp) -> Timestamp {
    now.after(patience(deadline.since(now)))
}

impl Link {
    /// The earliest time at which an unanswered read has waited in silence for too long; `None` if there is
    /// none.
    fn silent_at(&self) -> Option<Timestamp> {
        let due = |pending: &Pending| {
            let useful = pending.deadline().since(pending.sent_at);
            pending.sent_at.max(self.heard_at).after(patience(useful))
        };
        self.pending.iter().map(due).min()
    }

    /// True if an unanswered read has waited in silence for too long. `late` is the time by which this core
    /// was late itself.
    pub(super) fn is_silent(&self, late: Duration, now: Timestamp) -> bool {
        self.silent_at().is_some_and(|at| at.after(late) <= now)
    }
}

impl Back {
    /// Handles a report on how far replicas are behind their primaries.
    pub fn handle_replicas(&mut self, states: &[ReplicaState]) {
        if let Some(readers) = &mut self.readers {
            readers.handle_states(states);
        }
    }

    /// Forgets what is known of a node's health, because it is another node now or has another role.
    pub(super) fn meet_anew(&mut self, env: &Env, backend: BackendId) {
        let Some(readers) = &mut self.readers else { return };
        readers.policy.forget(usize::from(backend.0));
        readers.figures_of(backend).is_out = false;
        self.forget_health(env, backend);
    }

    /// The figures of all nodes, by index.
    pub fn reader_figures(&self) -> Vec<ReaderFigures> {
        self.readers.as_ref().map(|readers| readers.figures.clone()).unwrap_or_default()
    }

    /// Ends a turn: logs ejected and returning replicas.
    pub(super) fn look_after_readers(&mut self, env: &mut Env, now: Now) {
        if let Some(readers) = &mut self.readers {
            readers.take_lines(env, now.monotonic);
        }
    }

    /// Chooses where to send a read that a replica may answer. The slot's owner is known, and chosen if no
    /// replica is fit.
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

    /// Returns a node as a candidate if its window has room for one more request.
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

    /// True if a read can be sent to a replica at once. Opens the connection if there is none.
    fn is_reader_ready(&mut self, env: &mut Env, route: Route, now: Now) -> bool {
        let connection = link_for(&env.settings, route);
        let is_ready = |back: &Self| back.links[connection.0 as usize].is_ready(back.fences.count());
        // An unreachable replica is not asked.
        is_ready(self) || self.make_ready(env, connection, now).is_ok() && is_ready(self)
    }

    /// Samples the time that an owner took for a read, less this core's own lateness, for later choices
    /// between owner and replicas. Does nothing for writes, for costly reads and those behind them, and once
    /// no read might have gone to a replica for 60 s.
    pub(super) fn hear_owner(&mut self, connection: ConnectionId, pending: &Pending, now: Now) {
        let late = self.late;
        let Some(readers) = &mut self.readers else { return };
        if pending.effect == Effect::Read && pending.odd == Odd::No && readers.is_used(now.monotonic) {
            let place = usize::from(self.links[connection.0 as usize].backend.0);
            let took = now.monotonic.since(pending.sent_at).saturating_sub(late);
            readers.policy.handle_reply(place, Role::Owner, pending.class.index(), took, now.monotonic);
        }
    }

    /// Handles a replica's reply. True if it is not good enough and the owner is asked instead.
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
            // A reply too large to be kept is not empty.
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

    /// Sends a read to its slot's owner after a replica gave no good answer.
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

    /// Closes a replica's connection if it has been silent for too long. Returns when to check it again;
    /// `Timestamp::MAX` if nothing is unanswered.
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

    /// Handles a lost connection to a replica: sends its unanswered reads to their owners.
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

/// Returns why a replica's reply is not good enough. A replica does not know that a slot or a key has moved
/// away; it answers as if the key did not exist.
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
        // The reply has one value for each key or field.
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
