//! Primaries of a cluster that go away, and replicas that take over: who is what, what each node has heard of it, and what happens next.
//!
//! ```text
//!   goes away ── missed ──> all say that the cluster is down ──> its replica takes over ── news ──> it is back, as the replica
//!      (hand-over: the replica has everything and takes over at once)            (who only stood still believes for a while that it is a primary)
//! ```

use std::time::Duration;

use super::plan::Falls;
use weir::values::{Random, Timestamp};

/// How a primary goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Its process ends: connections are reset, and no others can be made.
    Killed,
    /// Its host is gone: nobody answers any more.
    Vanished,
    /// Its process stands still, and what is sent to it waits.
    Stopped,
    /// It is asked to hand over: nothing is lost.
    HandsOver,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Well,
    /// The way in which it is away.
    Away(Way),
}

/// What happens next to the primary that goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Goes,
    Down,
    TakenOver,
    Back,
    /// It finds out that it is no primary.
    Wiser,
    Over,
}

/// One primary that goes away.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fall {
    pub old: u16,
    pub heir: u16,
    pub way: Way,
    pub next: Step,
}

/// Who is what.
#[derive(Debug)]
pub(super) struct Roles {
    pub falls: Falls,
    /// The primary that a node copies.
    pub copies: Vec<Option<u16>>,
    pub lives: Vec<Life>,
    pub fall: Option<Fall>,
    /// One is to go away as soon as no slot of it is on its way.
    pub is_awaited: bool,
    /// From when on each node says that the cluster is down.
    down_from: Option<Vec<Timestamp>>,
    /// When each node hears of the last takeover, of these slots.
    hears_at: Vec<Timestamp>,
    taken: Vec<bool>,
    /// How often others have taken over.
    pub takeovers: u64,
}

impl Roles {
    /// The second half of the nodes copies the first.
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

    /// Its replica.
    pub fn replica_of(&self, primary: u16) -> Option<u16> {
        self.copies.iter().position(|copies| *copies == Some(primary)).map(|node| node as u16)
    }

    /// Is it there, and a primary, with nothing about to happen to it?
    pub fn is_settled(&self, node: u16) -> bool {
        let falls = self.fall.is_some_and(|fall| [fall.old, fall.heir].contains(&node));
        !falls && self.copies[usize::from(node)].is_none() && self.life(node) == Life::Well
    }

    /// Has a node not heard yet that others have these slots?
    pub fn is_late(&self, node: u16, now: Timestamp) -> Option<(u16, &[bool])> {
        let fall = self.fall.filter(|fall| matches!(fall.next, Step::Back | Step::Wiser | Step::Over))?;
        (self.hears_at[usize::from(node)] > now).then_some((fall.old, &self.taken[..]))
    }

    /// Does a node say that the cluster is down?
    pub fn says_down(&self, node: u16, now: Timestamp) -> bool {
        self.down_from.as_ref().is_some_and(|from| from[usize::from(node)] <= now)
    }

    /// Do the others say that a node has failed?
    pub fn has_failed(&self, node: u16) -> bool {
        let Some(fall) = self.fall.filter(|fall| fall.old == node && fall.way != Way::HandsOver) else {
            return false;
        };
        matches!(fall.next, Step::TakenOver | Step::Back | Step::Wiser)
    }

    /// A primary is chosen that goes away.
    pub fn begin(&mut self, old: u16, random: &mut Random) {
        let Some(heir) = self.replica_of(old) else { return };
        let way = *random.pick(&[Way::Killed, Way::Vanished, Way::Stopped, Way::Stopped, Way::HandsOver]);
        self.fall = Some(Fall { old, heir, way, next: Step::Goes });
    }

    /// What happens now, and after how long the next of it does.
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
                self.hears_at[usize::from(fall.heir)] = now;
                self.copies[usize::from(fall.heir)] = None;
                if fall.way == Way::HandsOver {
                    self.hears_at[old] = now;
                    self.copies[old] = Some(fall.heir);
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
                self.copies[old] = Some(fall.heir);
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

    /// These slots have another owner from now on.
    pub fn note_taken(&mut self, slots: Vec<bool>) {
        self.taken = slots;
    }
}
