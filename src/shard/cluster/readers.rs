//! Reads that replicas of a cluster may answer: chooses the replica, and sends the read to the slot's owner
//! if the replica's reply may be wrong.
//!
//! ```text
//!   read -- slot at rest? a replica that is well and not far behind?
//!            |-- no ----> owner
//!            +-- yes ---> the better of two, owner among them (policy/replica_choice.rs)
//!                          |-- owner
//!                          +-- replica -- nil, 0, empty, an error, silence, a lost connection --> owner
//! ```
//!
//! Connections to replicas carry only such reads, and are opened while owners still answer. So no read waits
//! for a connection, and reads lost with one can be sent again.

use std::time::Duration;

use super::slots::Slots;
use crate::policy::replica_choice::{Candidate, Event, ReplicaChoice, Role, Why};
use crate::protocol::command::{Class, Effect};
use crate::protocol::reply;
use crate::routing::cluster::{NodeKey, NodeRefusal, ReplicaState};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::pending::{InFlight, Odd, whole};
use crate::shard::request::{Envelope, Route, Track};
use crate::values::limits::REPLICA_LAG_MAX;
use crate::values::time::Now;
use crate::values::{BackendId, ConnectionId, Random, Timestamp};

/// The time for which response times of slot owners are still sampled after the last read that a replica
/// might have answered.
const USED: Duration = Duration::from_secs(60);

/// Figures on the reads that one node answered or failed as a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderFigures {
    /// Number of reads that the node answered as a replica.
    pub answered: u64,
    /// The numbers of times that the node was ejected (taken out of use) as a replica: for failures, and for
    /// slowness.
    pub out: [u64; 2],
    /// True while this core sends the node no reads as a replica, because it was ejected (taken out of use).
    pub is_out: bool,
}

/// The state of one core for the choice between replicas and slot owners: how far replicas are behind, how fast nodes
/// answer reads, and whether replicas fail.
#[derive(Debug)]
pub struct Readers {
    policy: ReplicaChoice,
    /// For each replica, by its place in the table of nodes: its key, its primary's key, and the time up to
    /// which it is known to have the primary's writes.
    fresh: Vec<Option<(NodeKey, NodeKey, Timestamp)>>,
    candidates: Vec<(Candidate, Route)>,
    random: Random,
    figures: Vec<ReaderFigures>,
    /// The time of the last read that a replica might have answered; None if there was none.
    used_at: Option<Timestamp>,
    /// The reason why each node last failed as a replica, by the node's index; empty if it has not failed.
    reasons: Vec<&'static str>,
}

/// The reason why a replica's reply is not passed on and the read is sent to the slot's owner instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// The replica's reply is empty (nil, 0, no elements, or such values in place of some key's): the key may have
    /// moved to another node.
    Empty,
    /// The replica replied that it cannot serve reads now (loading, busy, without its primary).
    Sick,
    /// The replica's reply is an error of another kind, such as a redirect: the owner decides what the
    /// client gets.
    Error,
}

impl Readers {
    /// Creates the state of a core that has sent no read to a replica yet. `seed` is that of its random
    /// choices.
    pub fn new(seed: u64) -> Self {
        Self {
            policy: ReplicaChoice::default(),
            fresh: Vec::new(),
            candidates: Vec::new(),
            random: Random::new(seed).fork(),
            figures: Vec::new(),
            used_at: None,
            reasons: Vec::new(),
        }
    }

    /// Records for each replica, in place of all earlier records, the time up to which it is known to have
    /// its primary's writes.
    pub fn handle_states(&mut self, states: &[ReplicaState]) {
        self.fresh.clear();
        for state in states {
            let place = usize::from(state.node.backend.0);
            if self.fresh.len() <= place {
                self.fresh.resize(place + 1, None);
            }
            self.fresh[place] = state.as_of.map(|as_of| (state.node, state.primary, as_of));
        }
    }

    /// True if the replica `node` is known to have all writes that its primary had carried out 3 s (`REPLICA_LAG_MAX`)
    /// ago.
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

    /// Records that a replica failed: it said that it cannot answer reads now, or a connection to it was lost or not
    /// made. The fifth failure in a row ejects it (takes it out of use). `reason` is text for the log.
    pub fn handle_failure(&mut self, backend: BackendId, reason: &'static str, now: Timestamp) {
        let place = usize::from(backend.0);
        if self.reasons.len() <= place {
            self.reasons.resize(place + 1, "");
        }
        self.reasons[place] = reason;
        self.policy.handle_failure(place, Role::Replica, now);
    }

    fn is_used(&self, now: Timestamp) -> bool {
        self.used_at.is_some_and(|used_at| now.since(used_at) <= USED)
    }

    /// Ejects (takes out of use) replicas that have been slow, if it is time to judge them, and writes to the log which
    /// replicas were ejected or answer reads again.
    pub fn log_changes(&mut self, env: &mut Env, now: Timestamp) {
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

    /// Returns, for each node, how many reads it answered as a replica and how often it was ejected (taken
    /// out of use), by the node's index.
    pub fn figures(&self) -> Vec<ReaderFigures> {
        self.figures.clone()
    }

    /// True once a read was sent, at any time, that a replica might have answered; owners' response times
    /// matter from then on.
    #[inline]
    pub fn was_used(&self) -> bool {
        self.used_at.is_some()
    }

    /// Drops all observations of a node, and ends its ejection (it is in use again), because another node has its place
    /// in the table of nodes or the node has another role.
    pub fn forget(&mut self, backend: BackendId) {
        self.policy.forget(usize::from(backend.0));
        self.figures_of(backend).is_out = false;
    }

    /// Chooses the node for a read that a replica may answer; None, so that the slot's owner gets it, if the
    /// slot is moving or no replica is fit. `offer` returns the number of requests in flight at a node, and
    /// None if it can take no read now. `home` is the route to the slot's owner.
    pub fn choose(
        &mut self,
        slots: &Slots,
        home: Route,
        mut offer: impl FnMut(Route, Role) -> Option<u32>,
        now: Now,
    ) -> Option<Route> {
        self.used_at = Some(now.monotonic);
        if slots.is_moving(home.slot) {
            return None;
        }
        let map = &slots.map;
        let owner = map.node(home.backend)?;
        self.candidates.clear();
        for backend in &owner.replicas {
            let place = usize::from(backend.0);
            let node = map.node(*backend).map(|node| node.key);
            let is_fresh = node.is_some_and(|node| self.is_fresh(node, owner.key, now.monotonic));
            let is_out = || self.policy.out_until(place, now.monotonic).is_some();
            let route = Route { backend: *backend, track: Track::Replica, ..home };
            if !is_fresh || is_out() {
                continue;
            }
            if let Some(in_flight) = offer(route, Role::Replica) {
                self.candidates.push((Candidate { place, role: Role::Replica, in_flight }, route));
            }
        }
        if self.candidates.is_empty() {
            return None;
        }
        if let Some(in_flight) = offer(home, Role::Owner) {
            let place = usize::from(home.backend.0);
            self.candidates.push((Candidate { place, role: Role::Owner, in_flight }, home));
        }
        let Self { policy, candidates, random, .. } = self;
        let chosen =
            policy.choose(candidates.iter().map(|(candidate, _)| *candidate), random, now.monotonic)?;
        Some(candidates[chosen].1)
    }

    /// Samples the time that a slot's owner took for a read, less this core's own delay (`late`), for later
    /// choices between owner and replicas. Does nothing for writes, for costly reads and those after them,
    /// and if no read might have gone to a replica for 60 s.
    pub fn record_owner(&mut self, backend: BackendId, request: &InFlight, late: Duration, now: Now) {
        let nature = request.envelope.nature;
        let (class, effect) = (nature.class, nature.effect());
        if effect == Effect::Read && request.odd == Odd::No && self.is_used(now.monotonic) {
            let place = usize::from(backend.0);
            let took = now.monotonic.since(request.sent_at).saturating_sub(late);
            self.policy.handle_reply(place, Role::Owner, class.index(), took, now.monotonic);
        }
    }

    /// Records the reply of a replica (`backend`) to a read: its response time, or a failure if it says that
    /// it cannot serve reads now; other errors are not recorded. `doubt` says why the reply may be wrong;
    /// `late` is the delay of this core itself, for which the replica is not blamed. `request` is the record
    /// of the read.
    fn record_replica(
        &mut self,
        (backend, request): (BackendId, &InFlight),
        doubt: Option<Doubt>,
        late: Duration,
        now: Now,
    ) {
        if doubt == Some(Doubt::Sick) {
            self.handle_failure(backend, "it says that it cannot answer", now.monotonic);
        } else if doubt != Some(Doubt::Error) && request.odd == Odd::No {
            let took = now.monotonic.since(request.sent_at).saturating_sub(late);
            let (place, class) = (usize::from(backend.0), request.envelope.nature.class.index());
            self.policy.handle_reply(place, Role::Replica, class, took, now.monotonic);
        }
    }
}

/// A replica's reply to a read, in parts.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaReply<'a> {
    /// The first byte of the reply, which is its RESP type.
    pub kind: u8,
    /// The beginning of the reply, if it came in several parts.
    pub kept: &'a [u8],
    /// The bytes of the reply that came last; earlier ones are in `kept`.
    pub end: &'a [u8],
    /// False for a reply that was too large to be kept, of which the earlier bytes are missing.
    pub is_kept: bool,
}

impl Slots {
    /// Handles a replica's reply to a read, and adds its response time, less the core's own delay `late`, to the
    /// figures by which replicas are chosen (`readers`). Returns the read, with its bytes, if the reply is an error or
    /// empty and so may be wrong: the caller sends it to the slot's owner then. None if the client gets the reply, or
    /// was answered before. `request` is the record of the read, which was sent over `connection`.
    #[inline(never)]
    pub fn take_replica_reply(
        &mut self,
        env: &mut Env,
        (connection, backend): (ConnectionId, BackendId),
        (request, reply): (&InFlight, ReplicaReply<'_>),
        (mut readers, late): (Option<&mut Readers>, Duration),
        now: Now,
    ) -> Option<(Envelope, Vec<u8>)> {
        self.touch_next(connection);
        let ReplicaReply { kind, kept, end, is_kept } = reply;
        // A reply too large to be kept is not empty.
        let doubt = if is_kept { doubt_of(request.envelope.nature.class, kind, kept, end) } else { None };
        let (_, frame) = self.unanswered_mut(connection).pop(doubt.is_some())?;
        if let Some(readers) = &mut readers {
            readers.record_replica((backend, request), doubt, late, now);
        }
        if request.is_abandoned {
            return None;
        }
        let counter = match doubt {
            None => {
                if let Some(readers) = readers {
                    readers.figures_of(backend).answered += 1;
                }
                return None;
            }
            Some(Doubt::Empty) => Counter::ReplicaReadsEmpty,
            Some(Doubt::Sick | Doubt::Error) => Counter::ReplicaReadsRefused,
        };
        env.counters.add(counter, 1);
        let route = Route { backend, track: Track::Usual, ..request.envelope.route };
        Some((Envelope { route, ..request.envelope }, frame))
    }
}

/// Returns why a replica's reply may be wrong, so that the read is sent to the owner; None if the client may
/// have it. A replica does not know that a slot or a key has moved away; it answers as if the key did not
/// exist. `kind` is the reply's first byte; `kept` and `end` are its earlier bytes, and the last ones.
fn doubt_of(class: Class, kind: u8, kept: &[u8], end: &[u8]) -> Option<Doubt> {
    let mut start = [0; 16];
    start.iter_mut().zip(kept.iter().chain(end)).for_each(|(place, byte)| *place = *byte);
    let begins = |with: &str| start.starts_with(with.as_bytes());
    let is_empty = match kind {
        b'-' => {
            let unavailability = NodeRefusal::parse(&whole(kept, end)).and_then(NodeRefusal::unavailability);
            return Some(if unavailability.is_some() { Doubt::Sick } else { Doubt::Error });
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
