//! Choice of the node that answers a read: the owner of the keys, or one of its replicas.
//!
//! Two nodes are drawn at random and the better one answers: the one with the lower score, the peak EWMA of
//! its latency times its requests in flight plus one. A reply slower than the average is believed at once,
//! quicker ones by and by (10 s). An average that nothing is added to fades, so a node that was slow is tried
//! again. A new node starts at twice the median of the others.
//!
//! | a replica is ejected after | in detail |
//! |---|---|
//! | five failures in a row | a failure is a timeout, a reset, no connection, or a reply that says that it cannot answer |
//! | slowness in three windows of a second in a row | the 95th percentile of at least 100 replies of one class of commands is above 2 ms, and above three times the median of its peers' |
//!
//! A replica is ejected for 5 s, the next time for 10 s, and so on up to 300 s; a minute without trouble
//! takes one step back. A replica that comes back gets a tenth of its chances at first, and all of them after
//! 10 s. An owner is never ejected: somebody has to answer, and the owner of a hot key is slow because of the
//! load. So the owner answers the reads whose replicas are all ejected.

use std::time::Duration;

use crate::values::limits::COMMAND_CLASSES;
use crate::values::{Random, Timestamp};

/// Time constant of the moving averages of nodes' latencies: after this time, a reply has a third (1/e) of its
/// first weight.
const DECAY: Duration = Duration::from_secs(10);
/// Latency assumed for a new node until its first reply, as a multiple of the other nodes' median.
const NEWCOMER: f64 = 2.0;
/// Length of the window (interval) over which the latencies of nodes are compared.
const WINDOW: Duration = Duration::from_secs(1);
/// Number of replies of a class of commands that a node needs in a window (one second) to be compared with
/// other nodes.
const SAMPLES_MIN: u32 = 100;
/// Ratio of a node's 95th percentile of latency to the median of the other nodes' above which it is slow.
const SLOW_TIMES: u64 = 3;
/// 95th percentile of latency up to which no node counts as slow, in microseconds.
const SLOW_MICROS: u64 = 2_000;
/// Number of windows (seconds) in a row with slow replies after which a replica is ejected (taken out of
/// use).
const SLOW_WINDOWS: u32 = 3;
/// Number of failures in a row after which a replica is ejected (taken out of use).
const FAILURES: u32 = 5;
/// Time for which a replica is ejected (taken out of use), multiplied by the number of recent ejections, this
/// one included.
const OUT_FOR: Duration = Duration::from_secs(5);
/// Longest time for which a replica is ejected (gets no reads), however many ejections came before.
const OUT_MOST: Duration = Duration::from_secs(300);
/// Time since the end of a replica's last ejection (taking out of use) after which one earlier ejection no
/// longer lengthens the next one.
const HEALTHY: Duration = Duration::from_secs(60);
/// Share of its usual reads that a replica gets when it comes back after an ejection (taking out of use).
const WEIGHT_FIRST: f64 = 0.1;
/// Time after which a replica that came back from an ejection (taking out of use) gets its usual reads again.
const RETURNING: Duration = Duration::from_secs(10);

/// Role of a cluster's node for the keys of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The node owns the slot of the read's keys.
    Owner,
    /// The node is a replica of the owner.
    Replica,
}

/// A node of a cluster that could answer a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Index of the node in the table of nodes.
    pub place: usize,
    /// Role of the node for the read's keys: owner of their slot, or replica of the owner.
    pub role: Role,
    /// Number of requests of this core in flight at the node.
    pub in_flight: u32,
}

/// Reason why a replica is ejected (taken out of use).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The replica failed this many times in a row: timeouts, lost connections, or replies by which the node
    /// cannot serve reads now.
    Failures(u32),
    /// The replica was slow in one class of commands, in three seconds in a row.
    Slow {
        /// Index of the class of commands in which the replica was slow.
        class: usize,
        /// The 95th percentile of the replica's own latency in the class of commands in which it was slow.
        p95: Duration,
        /// The median of the 95th percentiles of latency of the nodes with which the replica was compared.
        median: Duration,
    },
}

/// An ejection (taking out of use) of a replica or its end, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The node at this index in the table of nodes is ejected (taken out of use): the reason, and for how
    /// long.
    Out(usize, Why, Duration),
    /// The node at this index in the table of nodes gets reads again after an ejection (taking out of use), few
    /// at first.
    Back(usize),
}

/// One core's view of the cluster's nodes that it reads from, by which it chooses the node for each read.
#[derive(Debug, Default)]
pub struct ReplicaChoice {
    peers: Vec<Option<Box<Peer>>>,
    window_began: Timestamp,
    /// Ejections (takings out of use) of nodes and their ends that the caller has not taken for its log yet.
    events: Vec<Event>,
}

#[derive(Debug)]
struct Peer {
    role: Role,
    /// Average latency of the node in nanoseconds (an EWMA that a slower reply raises to its own latency),
    /// and when it was computed; None for a new node, or one whose ejection has ended, until its first reply
    /// or its first comparison with another node.
    cost: Option<(f64, Timestamp)>,
    failures: u32,
    times: [Option<Box<Times>>; COMMAND_CLASSES],
    slow_windows: u32,
    /// End of the time for which the node is ejected (taken out of use); None if it is in use.
    out_until: Option<Timestamp>,
    /// Time at which the node came back after an ejection; None if it never was ejected (taken out of use).
    back_since: Option<Timestamp>,
    /// Number of recent ejections of the node, by which the next one is longer. When the node is ejected,
    /// each whole minute since its last ejection ended counts as one ejection less.
    steps: u32,
    healthy_since: Timestamp,
}

impl ReplicaChoice {
    /// Chooses the node that answers a read, of two drawn at random from the candidates, and returns its
    /// position among them; None if there are no candidates, or only replicas that are ejected, or that came
    /// back lately and are passed over: they get few reads at first.
    pub fn choose(
        &mut self,
        candidates: impl IntoIterator<Item = Candidate>,
        random: &mut Random,
        now: Timestamp,
    ) -> Option<usize> {
        // A uniform draw of two among the nodes that have a chance.
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
                // A tie is decided by lot.
                let is_first = if random.index(2) == 0 { score <= rival } else { score < rival };
                Some(if is_first { one } else { other })
            }
            [one, other] => one.or(other).map(|(index, _)| index),
        }
    }

    /// Records a reply of the node at the index `place` in the table of nodes. Its latency (`took`) enters
    /// the node's average over all classes of commands, which rises to a higher latency at once and falls
    /// slowly, and the present second's latencies of `class`, the class of the request's command by its
    /// index. The node has no failures in a row any more. `role` is the node's role for the read's keys.
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

    /// Records a failure of the node at the index `place` in the table of nodes: a timeout, a lost
    /// connection, or a reply by which it cannot serve reads now. The fifth in a row ejects a replica (takes
    /// it out of use). `role` is the node's role for the read's keys: owners are never ejected.
    pub fn handle_failure(&mut self, place: usize, role: Role, now: Timestamp) {
        let peer = self.peer(place, role, now);
        peer.failures += 1;
        if peer.failures >= FAILURES && role == Role::Replica && peer.out_until.is_none() {
            let why = Why::Failures(peer.failures);
            let out_for = peer.leave_alone(now);
            self.events.push(Event::Out(place, why, out_for));
        }
    }

    /// Forgets the latencies and failures of the node at the index `place` in the table of nodes, because the
    /// node there or its role has changed.
    pub fn forget(&mut self, place: usize) {
        if let Some(peer) = self.peers.get_mut(place) {
            *peer = None;
        }
    }

    /// True if the present window (one second of latencies) is over, so that [`ReplicaChoice::handle_window`]
    /// is to be called.
    pub fn is_due(&self, now: Timestamp) -> bool {
        now.since(self.window_began) >= WINDOW
    }

    /// Ends a window (one second of latencies): replicas that were slow in three windows in a row are ejected
    /// (taken out of use), and those whose ejection is over come back. A window that lasted two seconds or
    /// longer, because nothing called this, is not compared, and counts as one without slowness.
    pub fn handle_window(&mut self, now: Timestamp) {
        // After a longer gap the percentiles cover more than one window, so they are not compared.
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

    /// Returns the ejections (takings out of use) of replicas, and the ends of ejections, since the last
    /// call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Returns the end of the ejection (taking out of use) of the node at the index `place` in the table of
    /// nodes; None if it is not ejected.
    pub fn out_until(&self, place: usize, now: Timestamp) -> Option<Timestamp> {
        self.peers.get(place)?.as_ref()?.out_until.filter(|until| *until > now)
    }

    /// Returns the share of its usual reads that the node at the index `place` in the table of nodes gets,
    /// from 0 (ejected) to 1. It is 1 for owners and unknown nodes, and rises from 0.1 to 1 in the 10 s after
    /// an ejection.
    fn weight(&self, place: usize, now: Timestamp) -> f64 {
        let Some(Some(peer)) = self.peers.get(place) else { return 1.0 };
        match (peer.role, peer.out_until, peer.back_since) {
            (Role::Replica, Some(_), _) => 0.0,
            (Role::Replica, None, Some(since)) => {
                let part = seconds(now.since(since)) / RETURNING.as_secs_f64();
                (WEIGHT_FIRST + (1.0 - WEIGHT_FIRST) * part).min(1.0)
            }
            _ => 1.0,
        }
    }

    /// Returns the expected cost of a read at a node (latency times requests in flight plus one): the lower
    /// the better. A node without an average latency is given one first ([`Self::welcome`]).
    fn score(&mut self, candidate: Candidate, now: Timestamp) -> f64 {
        let known = self.peers[candidate.place].as_ref().and_then(|peer| peer.cost);
        let cost = match known {
            Some((cost, at)) => faded(cost, at, now),
            None => self.welcome(candidate.place, now),
        };
        cost * f64::from(candidate.in_flight + 1)
    }

    /// Gives a new node, at the index `place` in the table of nodes, an average latency before its first
    /// reply: twice the median of the other nodes' averages. Returns it in nanoseconds. While no other node
    /// has an average, the node gets none, and 1 is returned.
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

    /// Ejects the node (takes it out of use) from now on, and returns for how long.
    fn leave_alone(&mut self, now: Timestamp) -> Duration {
        let healthy = (now.since(self.healthy_since).as_secs() / HEALTHY.as_secs()) as u32;
        self.steps = self.steps.saturating_sub(healthy) + 1;
        let out_for = (OUT_FOR * self.steps).min(OUT_MOST);
        self.out_until = Some(now.after(out_for));
        (self.failures, self.slow_windows) = (0, 0);
        out_for
    }

    /// Ends the node's ejection (taking out of use) if its time is over; earlier latencies and failures are
    /// forgotten. Some if it ends now, else None.
    fn look(&mut self, now: Timestamp) -> Option<()> {
        let until = self.out_until.filter(|until| *until <= now)?;
        self.out_until = None;
        (self.back_since, self.healthy_since) = (Some(until), until);
        self.cost = None;
        (self.failures, self.slow_windows) = (0, 0);
        Some(())
    }
}

/// Returns the first class of commands in which the node at the index `place` was slow in the last second
/// (its 95th percentile above 2 ms, and above three times the median of the other nodes'), with both
/// latencies; None if it was slow in none. `told` has the 95th percentile of latency in microseconds of each
/// node and class, None where there were too few replies.
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

/// Binary logarithm of the number of latency counters for each power of two microseconds: a percentile is off
/// by at most an eighth.
const PARTS_BITS: u32 = 3;
/// Number of latency counters for each power of two microseconds.
const PARTS: usize = 1 << PARTS_BITS;
/// Number of latency counters of a window (second): enough for latencies of a minute, in microseconds.
const COUNTS: usize = PARTS * 24;

/// Latencies of one window (a second), in microseconds, counted by size.
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

    /// Returns the 95th percentile of latency in microseconds, and empties the counters for the next window
    /// (second); None if there were fewer than 100 replies.
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

/// Returns the least latency that the counter with the index `place` counts, in microseconds.
fn least_of(place: usize) -> u64 {
    if place < PARTS {
        return place as u64;
    }
    ((place % PARTS + PARTS) as u64) << (place / PARTS - 1)
}

#[cfg(test)]
mod tests;
