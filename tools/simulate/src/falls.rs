//! Primaries of a cluster that go away, and replicas that take over: the role of each node, what each has
//! heard, and the next step.
//!
//! ```text
//!   goes away ── missed ──> all say that the cluster is down ──> its replica takes over ── news ──> back as replica
//!      (hand-over: the replica has everything, and takes over at once)        (a stopped primary believes for a while
//!                                                                              that it still is one)
//! ```

use std::time::Duration;

use super::plan::Falls;
use weir::values::{Random, Timestamp};

/// The way in which a simulated primary goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The process ends: its connections are reset, and no new ones can be made.
    Killed,
    /// The host disappears: packets to it are not answered.
    Vanished,
    /// The process is stopped but not ended: bytes that are sent to it wait.
    Stopped,
    /// The primary hands its slots over to its replica: no write is lost.
    HandsOver,
}

/// The state of a simulated node: working, or away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Well,
    /// The node is away: it was killed, vanished or stopped.
    Away(Way),
}

/// The next step of a primary's failure and of the takeover by its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Goes,
    Down,
    TakenOver,
    Back,
    /// The old primary learns that it is no primary any more, and becomes a replica.
    Wiser,
    Over,
}

/// The failure or hand-over of one primary: the node (`old`), the replica that takes over, the way in which
/// the primary goes away, and the next step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fall {
    pub old: u16,
    pub successor: u16,
    pub way: Way,
    pub next: Step,
}

/// The simulated nodes' roles, which of them are away, and the failure of a primary in progress.
#[derive(Debug)]
pub(super) struct Roles {
    pub falls: Falls,
    /// For each node, the primary that it is a replica of; `None` for a primary.
    pub copies: Vec<Option<u16>>,
    pub lives: Vec<Life>,
    pub fall: Option<Fall>,
    /// True if a primary is to go away as soon as none of its slots is being moved; no further move of a
    /// slot begins until then.
    pub is_awaited: bool,
    /// The time, by node, from which the node replies `-CLUSTERDOWN`; `None` unless the nodes have noticed that a
    /// primary is away, and no replica has taken over yet.
    down_from: Option<Vec<Timestamp>>,
    /// The time, by node, at which the node learns of the last takeover. `taken` is true for each slot that
    /// changed its owner then.
    hears_at: Vec<Timestamp>,
    taken: Vec<bool>,
    /// The number of takeovers by replicas so far.
    pub takeovers: u64,
}

impl Roles {
    /// Creates the roles of `nodes` nodes, all of them working: the second half are replicas of the first.
    pub fn new(falls: Falls, nodes: u16) -> Self {
        let primaries = nodes / 2;
        Self {
            falls,
            copies: (0..nodes).map(|node| node.checked_sub(primaries)).collect(),
            lives: vec![Life::Well; usize::from(nodes)],
            fall: None,
            is_awaited: false,
            down_from: None,
            hears_at: vec![Timestamp::ZERO; usize::from(nodes)],
            taken: Vec::new(),
            takeovers: 0,
        }
    }

    pub fn life(&self, node: u16) -> Life {
        self.lives[usize::from(node)]
    }

    /// Returns the number of a primary's replica; `None` if it has none.
    pub fn replica_of(&self, primary: u16) -> Option<u16> {
        self.copies.iter().position(|copies| *copies == Some(primary)).map(|node| node as u16)
    }

    /// True if the node is a working primary that is neither about to go away nor to take over.
    pub fn is_settled(&self, node: u16) -> bool {
        let falls = self.fall.is_some_and(|fall| [fall.old, fall.successor].contains(&node));
        !falls && self.copies[usize::from(node)].is_none() && self.life(node) == Life::Well
    }

    /// Returns the former owner of the slots of the last takeover, and these slots (true, by slot), if the
    /// node still believes at `now` that they are the former owner's; `None` if it knows of the takeover, or
    /// if none is recent.
    pub fn is_late(&self, node: u16, now: Timestamp) -> Option<(u16, &[bool])> {
        let fall = self.fall.filter(|fall| matches!(fall.next, Step::Back | Step::Wiser | Step::Over))?;
        (self.hears_at[usize::from(node)] > now).then_some((fall.old, &self.taken[..]))
    }

    /// True if the node replies at `now` that the cluster is down.
    pub fn says_down(&self, node: u16, now: Timestamp) -> bool {
        self.down_from.as_ref().is_some_and(|from| from[usize::from(node)] <= now)
    }

    /// True if the other nodes of the cluster report that this node has failed.
    pub fn has_failed(&self, node: u16) -> bool {
        let Some(fall) = self.fall.filter(|fall| fall.old == node && fall.way != Way::HandsOver) else {
            return false;
        };
        matches!(fall.next, Step::TakenOver | Step::Back | Step::Wiser)
    }

    /// Begins the failure or hand-over of a primary (`old`), in a random way. Does nothing if it has no
    /// replica.
    pub fn begin(&mut self, old: u16, random: &mut Random) {
        let Some(successor) = self.replica_of(old) else { return };
        let way = *random.pick(&[Way::Killed, Way::Vanished, Way::Stopped, Way::Stopped, Way::HandsOver]);
        self.fall = Some(Fall { old, successor, way, next: Step::Goes });
    }

    /// Carries out the next step of the failure in progress. Returns the failure with that step (`next`), and the time
    /// until the step after it; `None` if no primary fails at present.
    pub fn go_on(&mut self, now: Timestamp, random: &mut Random) -> Option<(Fall, Duration)> {
        let fall = self.fall?;
        let Falls { missed_for, down_for, news, away_for, deluded_for, .. } = self.falls;
        let some = |longest: Duration, random: &mut Random| {
            Duration::from_nanos(random.below(longest.as_nanos() as u64) + 1)
        };
        let old = usize::from(fall.old);
        let (next, after) = match fall.next {
            Step::Goes if fall.way == Way::HandsOver => (Step::TakenOver, Duration::ZERO),
            Step::Goes => {
                self.lives[old] = Life::Away(fall.way);
                (Step::Down, missed_for)
            }
            Step::Down => {
                let from = |_: &_| now.after(some(down_for * 2, random));
                self.down_from = Some(self.lives.iter().map(from).collect());
                (Step::TakenOver, down_for)
            }
            Step::TakenOver => {
                self.down_from = None;
                self.takeovers += 1;
                let late = |_: &_| now.after(some(news, random));
                self.hears_at = self.lives.iter().map(late).collect();
                self.hears_at[usize::from(fall.successor)] = now;
                self.copies[usize::from(fall.successor)] = None;
                if fall.way == Way::HandsOver {
                    self.hears_at[old] = now;
                    self.copies[old] = Some(fall.successor);
                    (Step::Over, news)
                } else {
                    self.hears_at[old] = Timestamp::MAX;
                    (Step::Back, some(away_for, random))
                }
            }
            Step::Back => {
                self.lives[old] = Life::Well;
                match fall.way {
                    Way::Stopped => (Step::Wiser, some(deluded_for, random)),
                    _ => (Step::Wiser, Duration::ZERO),
                }
            }
            Step::Wiser => {
                self.hears_at[old] = now;
                self.copies[old] = Some(fall.successor);
                (Step::Over, news)
            }
            Step::Over => {
                self.fall = None;
                return Some((fall, self.falls.apart.mul_f64(random.exponential())));
            }
        };
        self.fall = Some(Fall { next, ..fall });
        Some((fall, after))
    }

    /// Records for each slot whether the last takeover gave it to another owner.
    pub fn note_taken(&mut self, slots: Vec<bool>) {
        self.taken = slots;
    }
}
