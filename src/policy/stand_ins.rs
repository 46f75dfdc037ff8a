//! Which of several nodes that hold the same keys a read goes to: their owner, or one that stands in for it (a replica).
//!
//! The better of two at random goes first: the one with the lower peak EWMA of its latency, times what is in flight there and one
//! more. A reply that took longer than the average is believed at once, quicker ones by and by (10 s). An average that nothing is
//! added to fades, so who was slow is tried again. Who is new starts at twice the median of the others.
//!
//! | a stand-in is left alone | because |
//! |---|---|
//! | five failures in a row | a failure is a timeout, a reset, no connection, or a reply that says that it cannot answer |
//! | slow in three windows of a second in a row | of one class of commands the 95th percentile of 100 replies is above 2 ms, and above three times the median of those of its peers |
//!
//! That is for 5 s, the next time for 10 s, and so on up to 300 s; a minute without takes one step back. Who comes back gets a tenth
//! of its chances at first, and all of them after 10 s. An owner is never left alone: somebody has to answer, and the owner of a hot
//! key is not sick. So the last that stands in for a stand-in is the owner.

use std::time::Duration;

use crate::values::limits::COMMAND_CLASSES;
use crate::values::{Random, Timestamp};

/// Averages fade like this.
const DECAY: Duration = Duration::from_secs(10);
/// Who is new is thought to be so much slower than the median.
const NEWCOMER: f64 = 2.0;
/// What is compared: replies of so long.
const WINDOW: Duration = Duration::from_secs(1);
/// With fewer replies nothing is said.
const SAMPLES_MIN: u32 = 100;
/// Slow is so many times the peers' median, and above this.
const SLOW_TIMES: u64 = 3;
const SLOW_MICROS: u64 = 2_000;
/// So many windows in a row.
const SLOW_WINDOWS: u32 = 3;
/// And so many failures.
const FAILURES: u32 = 5;
/// For how long: as often as it happened, and no longer than this.
const OUT_FOR: Duration = Duration::from_secs(5);
const OUT_MOST: Duration = Duration::from_secs(300);
/// What takes one step back.
const HEALTHY: Duration = Duration::from_secs(60);
/// Who comes back gets this part of its chances at first, and all of them after so long.
const WEIGHT_FIRST: f64 = 0.1;
const RETURNING: Duration = Duration::from_secs(10);

/// What a node is to the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It owns them.
    Owner,
    /// It has a copy.
    StandIn,
}

/// A node that could answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its place in the table of nodes.
    pub place: usize,
    /// What it is.
    pub role: Role,
    /// What it owes this core.
    pub in_flight: u32,
}

/// Why a stand-in is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// So many failures in a row.
    Failures(u32),
    /// In this class of commands, by its number.
    Slow {
        /// The class.
        class: usize,
        /// Its own 95th percentile.
        p95: Duration,
        /// The median of its peers'.
        median: Duration,
    },
}

/// Something happened that people want to know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The node at this place is left alone.
    Out(usize, Why, Duration),
    /// It gets reads again, few at first.
    Back(usize),
}

/// What one core knows of the nodes that it reads from.
#[derive(Debug, Default)]
pub struct StandIns {
    peers: Vec<Option<Box<Peer>>>,
    window_began: Timestamp,
    /// At most one for each node and second.
    events: Vec<Event>,
}

#[derive(Debug)]
struct Peer {
    role: Role,
    /// The average in nanoseconds, and when that was.
    cost: Option<(f64, Timestamp)>,
    failures: u32,
    times: [Option<Box<Times>>; COMMAND_CLASSES],
    slow_windows: u32,
    /// It is left alone until then.
    out_until: Option<Timestamp>,
    /// It came back then, if it ever was left alone.
    back_since: Option<Timestamp>,
    /// How often it was left alone, less what healthy minutes took back.
    steps: u32,
    healthy_since: Timestamp,
}

impl StandIns {
    /// One of these, by its place among them; none if there is none, or only such as are left alone.
    pub fn choose(
        &mut self,
        candidates: impl IntoIterator<Item = Candidate>,
        random: &mut Random,
        now: Timestamp,
    ) -> Option<usize> {
        // Two of those that have a chance, each pair as likely as any other.
        let (mut pair, mut met): ([Option<(usize, Candidate)>; 2], usize) = ([None; 2], 0);
        for (index, candidate) in candidates.into_iter().enumerate() {
            let peer = self.peer(candidate.place, candidate.role, now);
            if peer.look(now).is_some() {
                self.events.push(Event::Back(candidate.place));
            }
            let weight = self.weight(candidate.place, now);
            if weight < 1.0 && random.unit() >= weight {
                continue;
            }
            met += 1;
            match met {
                1 | 2 => pair[met - 1] = Some((index, candidate)),
                _ => {
                    let drawn = random.index(met);
                    if drawn < 2 {
                        pair[drawn] = Some((index, candidate));
                    }
                }
            }
        }
        match pair {
            [Some((one, first)), Some((other, second))] => {
                let (score, rival) = (self.score(first, now), self.score(second, now));
                // Between equals the lot decides.
                let is_first = if random.index(2) == 0 { score <= rival } else { score < rival };
                Some(if is_first { one } else { other })
            }
            [one, other] => one.or(other).map(|(index, _)| index),
        }
    }

    /// A node has answered.
    pub fn handle_reply(&mut self, place: usize, role: Role, class: usize, took: Duration, now: Timestamp) {
        let peer = self.peer(place, role, now);
        peer.failures = 0;
        let nanos = took.as_nanos() as f64;
        let cost = match peer.cost {
            Some((before, at)) => {
                let kept = faded(before, at, now);
                let share = (-seconds(now.since(at)) / DECAY.as_secs_f64()).exp();
                if nanos >= kept { nanos } else { before * share + nanos * (1.0 - share) }
            }
            None => nanos,
        };
        peer.cost = Some((cost, now));
        peer.times[class].get_or_insert_default().add(took.as_micros() as u64);
    }

    /// A node has failed: it did not answer, or said that it cannot.
    pub fn handle_failure(&mut self, place: usize, role: Role, now: Timestamp) {
        let peer = self.peer(place, role, now);
        peer.failures += 1;
        if peer.failures >= FAILURES && role == Role::StandIn && peer.out_until.is_none() {
            let why = Why::Failures(peer.failures);
            let out_for = peer.leave_alone(now);
            self.events.push(Event::Out(place, why, out_for));
        }
    }

    /// Another node has this place, or it is something else now.
    pub fn forget(&mut self, place: usize) {
        if let Some(peer) = self.peers.get_mut(place) {
            *peer = None;
        }
    }

    /// Is there a window to be looked at?
    pub fn is_due(&self, now: Timestamp) -> bool {
        now.since(self.window_began) >= WINDOW
    }

    /// The end of a window.
    pub fn handle_window(&mut self, now: Timestamp) {
        // Where nobody looked for longer, it is no window.
        let is_whole = now.since(self.window_began) < 2 * WINDOW;
        self.window_began = now;
        let told: Vec<[Option<u64>; COMMAND_CLASSES]> = self
            .peers
            .iter_mut()
            .map(|peer| match peer {
                Some(peer) => {
                    std::array::from_fn(|class| peer.times[class].as_mut().and_then(|times| times.take()))
                }
                None => [None; COMMAND_CLASSES],
            })
            .collect();
        for place in 0..self.peers.len() {
            let slow = if is_whole { slow_class(&told, place) } else { None };
            let Some(peer) = self.peers[place].as_deref_mut() else { continue };
            if peer.look(now).is_some() {
                self.events.push(Event::Back(place));
            }
            if peer.role == Role::Owner || peer.out_until.is_some() {
                continue;
            }
            peer.slow_windows = if slow.is_some() { peer.slow_windows + 1 } else { 0 };
            if let Some(why) = slow.filter(|_| peer.slow_windows >= SLOW_WINDOWS) {
                let out_for = peer.leave_alone(now);
                self.events.push(Event::Out(place, why, out_for));
            }
        }
    }

    /// What happened since this was asked last.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Until when the node at a place is left alone, if it is.
    pub fn out_until(&self, place: usize, now: Timestamp) -> Option<Timestamp> {
        self.peers.get(place)?.as_ref()?.out_until.filter(|until| *until > now)
    }

    /// Which part of its chances it gets.
    fn weight(&self, place: usize, now: Timestamp) -> f64 {
        let Some(Some(peer)) = self.peers.get(place) else { return 1.0 };
        match (peer.role, peer.out_until, peer.back_since) {
            (Role::StandIn, Some(_), _) => 0.0,
            (Role::StandIn, None, Some(since)) => {
                let part = seconds(now.since(since)) / RETURNING.as_secs_f64();
                (WEIGHT_FIRST + (1.0 - WEIGHT_FIRST) * part).min(1.0)
            }
            _ => 1.0,
        }
    }

    /// What a read costs there, as far as one can tell: less is better.
    fn score(&mut self, candidate: Candidate, now: Timestamp) -> f64 {
        let known = self.peers[candidate.place].as_ref().and_then(|peer| peer.cost);
        let cost = match known {
            Some((cost, at)) => faded(cost, at, now),
            None => self.welcome(candidate.place, now),
        };
        cost * f64::from(candidate.in_flight + 1)
    }

    /// Who is new is given an average. Where nobody has one, it waits for its first reply.
    fn welcome(&mut self, place: usize, now: Timestamp) -> f64 {
        let costs = self.peers.iter().flatten().filter_map(|peer| peer.cost);
        let mut costs: Vec<f64> = costs.map(|(cost, at)| faded(cost, at, now)).collect();
        costs.sort_by(f64::total_cmp);
        let Some(median) = middle(&costs, f64::midpoint) else { return 1.0 };
        if let Some(peer) = &mut self.peers[place] {
            peer.cost = Some((NEWCOMER * median, now));
        }
        NEWCOMER * median
    }

    fn peer(&mut self, place: usize, role: Role, now: Timestamp) -> &mut Peer {
        if self.peers.len() <= place {
            self.peers.resize_with(place + 1, || None);
        }
        let peer = self.peers[place].get_or_insert_with(|| Box::new(Peer::new(role, now)));
        peer.role = role;
        peer
    }
}

impl Peer {
    fn new(role: Role, now: Timestamp) -> Self {
        Self {
            role,
            cost: None,
            failures: 0,
            times: [const { None }; COMMAND_CLASSES],
            slow_windows: 0,
            out_until: None,
            back_since: None,
            steps: 0,
            healthy_since: now,
        }
    }

    /// It gets nothing for a while. How long.
    fn leave_alone(&mut self, now: Timestamp) -> Duration {
        let healthy = (now.since(self.healthy_since).as_secs() / HEALTHY.as_secs()) as u32;
        self.steps = self.steps.saturating_sub(healthy) + 1;
        let out_for = (OUT_FOR * self.steps).min(OUT_MOST);
        self.out_until = Some(now.after(out_for));
        (self.failures, self.slow_windows) = (0, 0);
        out_for
    }

    /// If its time is over, it is as good as new.
    fn look(&mut self, now: Timestamp) -> Option<()> {
        let until = self.out_until.filter(|until| *until <= now)?;
        self.out_until = None;
        (self.back_since, self.healthy_since) = (Some(until), until);
        self.cost = None;
        (self.failures, self.slow_windows) = (0, 0);
        Some(())
    }
}

/// In which class a node was slow in a window, if in any: by the percentiles of all nodes.
fn slow_class(told: &[[Option<u64>; COMMAND_CLASSES]], place: usize) -> Option<Why> {
    (0..COMMAND_CLASSES).find_map(|class| {
        let own = told[place][class].filter(|own| *own > SLOW_MICROS)?;
        let peers = told.iter().enumerate().filter(|(other, _)| *other != place);
        let mut peers: Vec<u64> = peers.filter_map(|(_, told)| told[class]).collect();
        peers.sort_unstable();
        let median = middle(&peers, u64::midpoint)?;
        (own > SLOW_TIMES * median).then(|| Why::Slow {
            class,
            p95: Duration::from_micros(own),
            median: Duration::from_micros(median),
        })
    })
}

fn middle<T: Copy>(sorted: &[T], mean: impl Fn(T, T) -> T) -> Option<T> {
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    Some(if sorted.len().is_multiple_of(2) { mean(sorted[half - 1], upper) } else { upper })
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

fn faded(cost: f64, at: Timestamp, now: Timestamp) -> f64 {
    cost * (-seconds(now.since(at)) / DECAY.as_secs_f64()).exp()
}

/// Eight counts for each power of two: a percentile is off by an eighth at most.
const PARTS_BITS: u32 = 3;
const PARTS: usize = 1 << PARTS_BITS;
/// Up to a minute.
const COUNTS: usize = PARTS * 24;

/// How long replies took, in microseconds.
#[derive(Debug)]
struct Times {
    counts: [u32; COUNTS],
    total: u32,
}

impl Default for Times {
    fn default() -> Self {
        Self { counts: [0; COUNTS], total: 0 }
    }
}

impl Times {
    fn add(&mut self, micros: u64) {
        self.counts[place_of(micros)] += 1;
        self.total += 1;
    }

    /// The 95th percentile, if there were enough; the next window begins.
    fn take(&mut self) -> Option<u64> {
        let total = self.total;
        if total == 0 {
            return None;
        }
        let counts = std::mem::replace(&mut self.counts, [0; COUNTS]);
        self.total = 0;
        let wanted = u64::from(total) * 95;
        let mut so_far = 0;
        let place = counts.iter().position(|count| {
            so_far += u64::from(*count) * 100;
            so_far >= wanted
        });
        place.filter(|_| total >= SAMPLES_MIN).map(least_of)
    }
}

fn place_of(micros: u64) -> usize {
    if micros < PARTS as u64 {
        return micros as usize;
    }
    let power = micros.ilog2() - PARTS_BITS;
    ((power as usize + 1) * PARTS + (micros >> power) as usize - PARTS).min(COUNTS - 1)
}

/// The least that is counted at a place.
fn least_of(place: usize) -> u64 {
    if place < PARTS {
        return place as u64;
    }
    ((place % PARTS + PARTS) as u64) << (place / PARTS - 1)
}

#[cfg(test)]
mod tests;
