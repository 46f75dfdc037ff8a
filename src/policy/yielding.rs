//! Cap on the expensive requests that one core has in flight at a backend, for the sake of cheap ones: a backend
//! of one thread, or one whose servers are all busy, answers a cheap request only after the expensive ones before it.
//!
//! Cheap requests and expensive ones have windows (limits on requests in flight) of their own, and each window
//! follows the latency of its own requests. If cheap requests are few, their window is never full, so nothing
//! that it does makes their replies come sooner; and for expensive requests, which take long anyway, the backend
//! does not look crowded. Therefore the latency of the cheap ones decides here about the expensive ones:
//!
//! | seen | done |
//! |---|---|
//! | replies to cheap requests came late in two rounds in a row, and expensive ones take more of the backend's time | the cap becomes a fifth to a half smaller |
//! | they came in time, and expensive requests wait | the cap grows by one request or 5 %, up to 80 % of what was in flight when they were last late |
//! | this lasted 10 s, longer each time it was in vain | the cap grows beyond that, to find out whether the backend can do more |
//! | they come no sooner with a quarter of all cores' expensive requests, or fewer, and later than the work of those explains | expensive ones were not the reason: the cap is lifted for a minute |
//! | there were no cheap requests for 10 s | the cap is lifted |
//! | there are cheap requests for the first time, or again | the cap begins at the least, and doubles after half a second |
//!
//! Whether a cap is in vain is judged by the requests of all cores: those of the others may still be on their way when
//! one core has few. And when expensive requests come all at once, the first cut precedes the latency that all of them
//! cause, so replies may come later with a quarter of them than before. Therefore a cap is not in vain as long as cheap
//! requests take no more than twice the time for which the expensive ones in flight keep a server busy.
//!
//! A backend with several servers is why cuts are small and what was too much is remembered: a cap of one would
//! leave its other servers idle, a queue of expensive requests would build up, and then leave all at once.
//!
//! Late means later than usual, and what is usual is known only from replies beside few expensive requests. weir may
//! start, or the first cheap requests may come, while expensive ones crowd the backend already. Hence the last row.

use std::time::Duration;

use crate::values::Timestamp;

/// Number of rounds (stretches of replies whose median latency is taken) in a row in which replies to cheap
/// requests must be late before the cap on expensive requests becomes smaller.
const LATE_ROUNDS: u32 = 2;
/// Largest part of the expensive requests in flight that a smaller cap permits: each cut is by a fifth at
/// least.
const CUT: f64 = 0.8;
/// Smallest part of the expensive requests in flight that a smaller cap permits: each cut is by half at most.
const CUT_DEEPEST: f64 = 0.5;
/// Part by which the cap on expensive requests grows in one step (after a round in which replies to cheap
/// requests came in time); by one request if that is more.
const GROWTH: f64 = 0.05;
/// Shortest time for which the cap on expensive requests stays at most 80 % of the number of expensive requests
/// that this core had in flight when the cap was last cut.
const HOLD: Duration = Duration::from_secs(10);
/// Longest time for which the cap on expensive requests stays at most 80 % of the number of expensive requests
/// that this core had in flight when the cap was last cut. The time doubles up to this when the cap grows in
/// vain.
const HOLD_MOST: Duration = Duration::from_secs(60);
/// Time without replies to cheap requests after which the cap on expensive ones is lifted.
const ALONE: Duration = Duration::from_secs(10);
/// Time for which the cap on expensive requests keeps its smallest value when replies to cheap requests become
/// known for the first time, or again after 10 s without any.
const START_HOLDS: Duration = Duration::from_millis(500);
/// Factor by which the cap on expensive requests grows about every 100 ms, once it has had its smallest value
/// for half a second because replies to cheap requests had just become known.
const START_GROWTH: f64 = 2.0;
/// Time after which a cap on expensive requests that began with its smallest value, because replies to cheap
/// requests had just become known, is lifted unless it was cut meanwhile. For at most as long, the clock by
/// which a queue measures waiting stands still.
const START_MOST: Duration = Duration::from_secs(1);
/// The effect of the cap on expensive requests is judged while all cores together have at most this part in
/// flight of the expensive requests that they had before its first cut: cheap requests should then be answered
/// sooner.
const JUDGED_AT: f64 = 0.25;
/// Like [`JUDGED_AT`], the part of the former expensive requests in flight at which the effect of the cap on
/// them is judged, but once this core has had no more than the smallest cap in flight for 2 s: it cannot lower
/// the number further.
const JUDGED_AT_LEAST: f64 = 0.5;
/// Largest median latency of cheap requests that expensive ones explain, as a multiple of the time for which the
/// expensive requests in flight keep a server busy. A larger one has another reason.
const EXPLAINED: u32 = 2;
/// Part of the largest latency that cheap requests had while more than a quarter of the expensive requests were
/// in flight: if the latency is still above it with a quarter or less, the cap has not helped.
const IN_VAIN: f64 = 0.7;
/// Time for which there is no cap on expensive requests after one that did not make replies to cheap requests
/// come sooner.
const RESTS: Duration = Duration::from_secs(60);
/// Time for which replies to cheap requests must be late, although no more expensive requests are in flight than
/// the smallest cap, before expensive requests are no longer taken for the reason.
const LEAST_LASTS: Duration = Duration::from_secs(2);

/// Recent latency of cheap requests to a backend: the mean over all cores of the median in each core's last
/// round (stretch of replies whose median is taken). The cap on expensive requests follows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cheap {
    /// Time at which the latest of the cores' rounds of replies to cheap requests ended.
    pub at: Timestamp,
    /// The median latency of the cheap requests in a round, as the mean over the cores.
    pub median: Duration,
    /// The largest median latency of cheap requests at which the backend does not count as crowded.
    pub allowed: Duration,
    /// Time for which the cheap requests in flight keep the backend busy, if others wait for room in their own
    /// window (limit on requests in flight), so that they may crowd the backend themselves; zero otherwise.
    pub work: Duration,
}

/// The expensive requests to a backend at one moment, of one core and of all cores, by which that core's cap on
/// them is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expensive {
    /// Number of this core's expensive requests in flight at the backend.
    pub in_flight: u32,
    /// Number of all cores' expensive requests in flight at the backend.
    pub all_in_flight: u32,
    /// Time for which all cores' expensive requests in flight keep the backend busy; None while no core has had a
    /// reply to one, so that this is unknown.
    pub work: Option<Duration>,
    /// True if expensive requests of this core wait until they may be sent.
    pub waits: bool,
}

/// State before the cap on expensive requests was first cut, by which the effect of the cap is judged. Kept
/// while replies to cheap requests are late without a break.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Before {
    /// Number of all cores' expensive requests in flight before the cap on them first became smaller.
    all_in_flight: f64,
    /// The largest median latency of cheap requests since the cap on expensive requests first became smaller,
    /// while more than a quarter of `all_in_flight` were in flight. The latency with fewer is compared with it.
    median: Duration,
}

/// Cap on the expensive requests of one core in flight at a backend, which follows the latency of cheap ones.
#[derive(Clone, Debug)]
pub struct Yielding {
    /// Smallest value that the cap on expensive requests may have, in requests.
    least: f64,
    /// Largest number of expensive requests that may be in flight; infinite while there is no cap.
    cap: f64,
    /// Number of this core's expensive requests in flight when the cap was last cut; infinite before the
    /// first cut.
    too_many: f64,
    /// Time until which the cap on expensive requests does not grow above 80 % of the number of them that this core had
    /// in flight at the last cut (`too_many`).
    holds_until: Timestamp,
    /// Time for which the cap on expensive requests stays at most 80 % of `too_many` after a cut: 10 s, doubled
    /// (up to 60 s) by a cut that came once the cap had grown beyond that, and 10 s anew once more than twice
    /// `too_many` were in flight.
    hold: Duration,
    /// Number of rounds of replies in a row in which replies to cheap requests were late; zero again once the
    /// cap on expensive requests was decided on.
    late_rounds: u32,
    /// End of the round of replies to cheap requests whose latency was judged last, so that no round is
    /// judged twice.
    looked_at: Timestamp,
    /// Time from which on no more expensive requests were in flight than the cap permitted. Replies to cheap
    /// requests sent earlier do not count.
    obeyed_at: Timestamp,
    /// Time at which replies to cheap requests were last known; None if there were none for 10 s.
    company_at: Option<Timestamp>,
    /// Time at which replies to cheap requests became known, so that the cap on expensive requests began with
    /// its smallest value; None once that cap was cut or lifted.
    starts_at: Option<Timestamp>,
    /// State before the first cut of the cap on expensive requests since replies to cheap requests were last in
    /// time; None if there was no cut since.
    before: Option<Before>,
    /// Time from which on all cores together have had at most a quarter of the expensive requests in flight
    /// that they had before the first cut, so that it can be judged whether that helps; None while there are
    /// more, or without a cut.
    few_since: Option<Timestamp>,
    /// Time until which there is no cap on expensive requests, because the last one has not helped.
    rests_until: Timestamp,
    /// Time from which on replies to cheap requests have been late although no more expensive ones were in flight than
    /// the smallest cap permits; None while that is not so.
    least_since: Option<Timestamp>,
    /// True if replies to cheap requests were late in the last round, and cheap requests keep the backend busy for
    /// longer than expensive ones, so that a cap would not help.
    is_theirs: bool,
    /// The expensive requests at the last call of [`Yielding::handle_look`].
    last: Expensive,
}

impl Yielding {
    /// Creates the state of a core that has seen nothing, and has no cap on expensive requests. `least` is the
    /// smallest cap, in requests.
    pub fn new(least: u16) -> Self {
        Self::beginning(f64::from(least.max(1)))
    }

    /// Forgets all that was seen, because another server has taken the backend's place. There is no cap on
    /// expensive requests then.
    pub fn forget(&mut self) {
        *self = Self::beginning(self.least);
    }

    fn beginning(least: f64) -> Self {
        Self {
            least,
            cap: f64::INFINITY,
            too_many: f64::INFINITY,
            holds_until: Timestamp::ZERO,
            hold: HOLD,
            late_rounds: 0,
            looked_at: Timestamp::ZERO,
            obeyed_at: Timestamp::ZERO,
            company_at: None,
            starts_at: None,
            before: None,
            few_since: None,
            rests_until: Timestamp::ZERO,
            least_since: None,
            is_theirs: false,
            last: Expensive::default(),
        }
    }

    /// Returns the largest number of expensive requests that may be in flight; `usize::MAX` without a cap.
    pub fn cap(&self) -> usize {
        self.cap as usize
    }

    /// True while the cap on expensive requests is small because replies to cheap requests have just become known,
    /// which is no sign that the backend is crowded.
    pub fn is_starting(&self) -> bool {
        self.starts_at.is_some()
    }

    /// True while there is no cap because the last one has not made replies to cheap requests come sooner:
    /// expensive requests are not the reason why they come late.
    pub fn rests(&self, now: Timestamp) -> bool {
        now < self.rests_until
    }

    /// True if expensive requests may be the reason why replies to cheap ones come late, and fewer of the
    /// former may soon be in flight. False once a cap has not helped, or while cheap requests themselves take
    /// more of the backend's time.
    pub fn may_help(&self, now: Timestamp) -> bool {
        !self.rests(now) && !self.is_theirs && !self.has_least_lasted(now)
    }

    /// True if replies to cheap requests have been late for 2 s although no more expensive ones were in flight than the
    /// smallest cap permits.
    fn has_least_lasted(&self, now: Timestamp) -> bool {
        self.least_since.is_some_and(|since| now.since(since) >= LEAST_LASTS)
    }

    /// Takes the latency of cheap requests (`cheap`; None if they had no reply lately) and the state of
    /// expensive ones, about every 100 ms, and changes the cap on the latter accordingly. True if the cap
    /// became smaller.
    pub fn handle_look(&mut self, cheap: Option<Cheap>, expensive: Expensive, now: Timestamp) -> bool {
        let last = std::mem::replace(&mut self.last, expensive);
        let most = Expensive {
            in_flight: expensive.in_flight.max(last.in_flight),
            all_in_flight: expensive.all_in_flight.max(last.all_in_flight),
            ..expensive
        };
        match self.before {
            Some(before) if f64::from(most.all_in_flight) <= before.all_in_flight * JUDGED_AT => {
                self.few_since.get_or_insert(now);
            }
            _ => self.few_since = None,
        }
        self.handle_company(cheap.is_some(), now);
        if self.rests(now) {
            return false;
        }
        if self.starts_at.is_some_and(|at| now.since(at) > START_MOST) {
            (self.cap, self.starts_at) = (f64::INFINITY, None);
        }
        if f64::from(expensive.in_flight) > self.cap {
            (self.obeyed_at, self.late_rounds) = (now, 0);
            return false;
        }
        if self.starts_at.is_some() && now.since(self.obeyed_at) >= START_HOLDS {
            self.cap *= START_GROWTH;
        }
        let counts =
            |cheap: &Cheap| cheap.at > self.looked_at && cheap.at.before(cheap.median) >= self.obeyed_at;
        let Some(cheap) = cheap.filter(counts) else { return false };
        self.looked_at = cheap.at;
        if cheap.median > cheap.allowed {
            return self.handle_late(&cheap, &most, now);
        }
        (self.late_rounds, self.before, self.least_since, self.is_theirs) = (0, None, None, false);
        if expensive.waits && self.cap.is_finite() && self.starts_at.is_none() {
            self.grow(now);
        }
        false
    }

    /// Sets the cap to its smallest value when replies to cheap requests become known (`has_cheap`) for the first
    /// time, or again, and lifts the cap when there were none for 10 s.
    fn handle_company(&mut self, has_cheap: bool, now: Timestamp) {
        if !has_cheap && self.company_at.is_some_and(|at| now.since(at) > ALONE) {
            *self = Self { rests_until: self.rests_until, last: self.last, ..Self::beginning(self.least) };
        }
        if has_cheap && self.company_at.replace(now).is_none() && !self.rests(now) {
            (self.cap, self.starts_at, self.obeyed_at) = (self.least, Some(now), now);
        }
    }

    fn handle_late(&mut self, cheap: &Cheap, expensive: &Expensive, now: Timestamp) -> bool {
        self.late_rounds += 1;
        self.is_theirs = expensive.work.is_some_and(|work| cheap.work > work);
        if let Some(before) = &mut self.before
            && self.few_since.is_none()
        {
            before.median = before.median.max(cheap.median);
        }
        let in_use = f64::from(expensive.in_flight).min(self.cap);
        if in_use > self.least {
            self.least_since = None;
        } else {
            self.least_since.get_or_insert(now);
        }
        if self.late_rounds < LATE_ROUNDS || self.is_theirs {
            return false;
        }
        self.late_rounds = 0;
        if self.is_in_vain(cheap, (in_use, expensive), now) {
            *self =
                Self { rests_until: now.after(RESTS), company_at: Some(now), ..Self::beginning(self.least) };
            return false;
        }
        if in_use <= self.least {
            return false;
        }
        let all_in_flight = f64::from(expensive.all_in_flight);
        self.before.get_or_insert(Before { all_in_flight, median: cheap.median });
        if in_use > 2.0 * self.too_many {
            self.hold = HOLD;
        } else if in_use > CUT * self.too_many {
            self.hold = (2 * self.hold).min(HOLD_MOST);
        }
        let part = CUT * cheap.allowed.as_secs_f64() / cheap.median.as_secs_f64();
        (self.too_many, self.holds_until, self.obeyed_at) = (in_use, now.after(self.hold), now);
        self.cap = (in_use * part.clamp(CUT_DEEPEST, CUT)).floor().max(self.least);
        self.starts_at = None;
        true
    }

    /// True if replies to cheap requests come no sooner although fewer expensive ones are in flight, so that
    /// expensive ones are not the reason. `in_use` is the number of them that this core has in flight.
    fn is_in_vain(&self, cheap: &Cheap, (in_use, expensive): (f64, &Expensive), now: Timestamp) -> bool {
        let Some(before) = self.before else { return false };
        let all_in_flight = f64::from(expensive.all_in_flight);
        let are_few = self.few_since.is_some_and(|since| cheap.at.before(cheap.median) >= since)
            || self.has_least_lasted(now) && all_in_flight <= before.all_in_flight * JUDGED_AT_LEAST;
        let is_explained =
            in_use > self.least && expensive.work.is_some_and(|work| cheap.median <= EXPLAINED * work);
        are_few && !is_explained && cheap.median > before.median.mul_f64(IN_VAIN)
    }

    fn grow(&mut self, now: Timestamp) {
        let most = if now < self.holds_until { (CUT * self.too_many).floor() } else { f64::INFINITY };
        let grown = (self.cap * (1.0 + GROWTH)).floor().max(self.cap + 1.0);
        self.cap = self.cap.max(grown.min(most));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BinaryHeap, VecDeque};

    use super::*;

    /// Interval between two calls of [`Yielding::handle_look`], in seconds.
    const LOOKS: f64 = 0.1;

    /// Creates the figures of the only core, which has `in_flight` expensive requests in flight that keep the
    /// backend busy for `work`, while others wait.
    fn waiting(in_flight: u32, work: Duration) -> Expensive {
        Expensive { in_flight, all_in_flight: in_flight, work: Some(work), waits: true }
    }

    /// A backend whose `servers` take one request after another, in the order in which those came.
    #[derive(Clone, Copy, Debug)]
    struct Store {
        servers: usize,
        /// Time that an expensive request takes, in seconds.
        expensive: f64,
        /// Time that a cheap request takes, in seconds.
        cheap: f64,
    }

    /// Load of one core on the backend.
    #[derive(Clone, Copy, Debug)]
    struct Load {
        /// Number of clients that each have one expensive request at a time.
        clients: u32,
        /// Time between two cheap requests, in seconds; infinite for none.
        every: f64,
    }

    /// Creates the state of a core that has known replies to cheap requests for a while, and has no cap on
    /// expensive requests. `least` is the smallest cap, in requests.
    fn acquainted(least: u16) -> Yielding {
        Yielding { company_at: Some(Timestamp::ZERO), ..Yielding::new(least) }
    }

    /// Results of the second half of a simulated minute of load.
    #[derive(Clone, Copy, Debug, Default)]
    struct Seen {
        /// Number of expensive requests answered.
        served: usize,
        /// The median latency of cheap requests, in seconds.
        median: f64,
        /// The part of the calls of [`Yielding::handle_look`], 0 to 1, at which there was no cap on expensive
        /// requests.
        uncapped: f64,
    }

    /// Returns the largest median latency at which a backend with this base is not crowded, both in seconds.
    fn calm(base: f64) -> f64 {
        (2.0 * base).max(base + (8.0 * base).clamp(0.005, 0.040))
    }

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_nanos((seconds * 1e9) as u64)
    }

    fn median(values: &mut [f64]) -> f64 {
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    }

    /// Simulates a minute in which `cap` decides how many expensive requests are in flight. `usual` is the
    /// latency of cheap requests that the core takes for the backend's own; infinite if it takes the least that
    /// it sees. Clients with expensive requests come after 3 s, or from the beginning if `usual` is infinite.
    fn minute(
        store: Store,
        load: Load,
        mut usual: f64,
        mut cap: impl FnMut(Option<Cheap>, Expensive, Timestamp) -> usize,
    ) -> Seen {
        // Times in nanoseconds at which servers become free, and at which requests are answered, negative so that
        // the earliest is the greatest.
        let mut free: BinaryHeap<i64> = (0..store.servers).map(|_| 0).collect();
        let mut answers: BinaryHeap<(i64, bool, i64)> = BinaryHeap::new();
        let (mut seen, mut latencies, mut looks) = (Seen::default(), Vec::new(), 0);
        let (mut round, mut began, mut latest) = (Vec::new(), 0.0, None);
        let (mut in_flight, mut most, is_known) = (0, usize::MAX, usual.is_finite());
        let (mut now, mut next_cheap, mut next_look) = (0.0_f64, 0.0, LOOKS);
        let nanos = |seconds: f64| (seconds * 1e9) as i64;
        while now < 60.0 {
            let mut send = |is_cheap: bool, now: f64| {
                let begins = (-free.pop().expect("there are servers")).max(nanos(now));
                let ends = begins + nanos(if is_cheap { store.cheap } else { store.expensive });
                free.push(-ends);
                answers.push((-ends, is_cheap, nanos(now)));
            };
            if next_cheap <= now {
                send(true, now);
                next_cheap += load.every;
            }
            let clients = if now < 3.0 && is_known { 0 } else { load.clients };
            while in_flight < clients && (in_flight as usize) < most {
                in_flight += 1;
                send(false, now);
            }
            if next_look <= now {
                next_look += LOOKS;
                most = cap(
                    latest.take(),
                    Expensive { waits: in_flight < clients, ..waiting(in_flight, Duration::ZERO) },
                    at(now),
                );
                if now > 30.0 {
                    looks += 1;
                    seen.uncapped += f64::from(u8::from(most == usize::MAX));
                }
            }
            let next = next_cheap.min(next_look);
            match answers.peek() {
                Some((ends, _, _)) if -ends <= nanos(next) => {
                    let (ends, is_cheap, sent) = answers.pop().expect("there is one");
                    now = -ends as f64 / 1e9;
                    let latency = (-ends - sent) as f64 / 1e9;
                    if is_cheap {
                        round.push(latency);
                        if now > 30.0 {
                            latencies.push(latency);
                        }
                    } else {
                        in_flight -= 1;
                        seen.served += usize::from(now > 30.0);
                    }
                    if round.len() >= 3 && now - began >= 0.010 {
                        let median = median(&mut round);
                        usual = if is_known { usual } else { usual.min(median) };
                        let [median, allowed] = [median, calm(usual)].map(Duration::from_secs_f64);
                        latest = Some(Cheap { at: at(now), median, allowed, work: Duration::ZERO });
                        (round, began) = (Vec::new(), now);
                    }
                }
                _ => now = next,
            }
        }
        seen.median = median(&mut latencies);
        seen.uncapped /= f64::from(looks);
        seen
    }

    fn with_policy(store: Store, load: Load, usual: f64) -> Seen {
        let mut yielding = Yielding::new(1);
        minute(store, load, usual, |cheap, expensive, now| {
            yielding.handle_look(cheap, expensive, now);
            yielding.cap()
        })
    }

    #[test]
    fn nearly_as_much_is_served_as_with_the_best_fixed_cap_and_cheap_requests_are_in_time() {
        for (servers, expensive, cheap) in [
            (1, 0.002, 0.000_1),
            (1, 0.020, 0.000_1),
            (8, 0.100, 0.002),
            (3, 0.050, 0.001),
            (16, 0.005, 0.000_2),
        ] {
            let store = Store { servers, expensive, cheap };
            let allowed = calm(cheap);
            for load in [Load { clients: 60, every: 0.010 }, Load { clients: 20, every: 0.030 }] {
                let best = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 60]
                    .into_iter()
                    .map(|cap| minute(store, load, cheap, |_, _, _| cap))
                    .filter(|seen| seen.median <= allowed)
                    .map(|seen| seen.served)
                    .max();
                let least = best.unwrap_or_else(|| minute(store, load, cheap, |_, _, _| 1).served);
                let seen = with_policy(store, load, cheap);
                let all = minute(store, load, cheap, |_, _, _| usize::MAX);
                assert!(
                    seen.served * 10 >= least * 7,
                    "{store:?} {load:?}: {seen:?}, best {least}, all {all:?}"
                );
                let late = if best.is_some() { 1.2 * allowed } else { 2.0 * expensive };
                assert!(seen.median <= late, "{store:?} {load:?}: {seen:?} of {allowed}, all {all:?}");
            }
        }
    }

    #[test]
    fn the_usual_latency_is_found_although_expensive_requests_crowd_the_backend_from_the_beginning() {
        for (servers, expensive, cheap) in [(1, 0.002, 0.000_1), (8, 0.100, 0.002), (3, 0.020, 0.001)] {
            let store = Store { servers, expensive, cheap };
            let load = Load { clients: 60, every: 0.010 };
            let known = with_policy(store, load, cheap);
            let seen = with_policy(store, load, f64::INFINITY);
            let context = format!("{store:?}: {seen:?}, where it is known {known:?}");
            // Beside one expensive request a cheap one may wait for its rest.
            let late = if servers == 1 { calm(cheap + expensive) } else { calm(cheap) };
            assert!(seen.median <= 1.2 * late, "{context}");
            assert!(seen.served * 10 >= known.served * 9, "{context}");
        }
    }

    #[test]
    fn the_cap_begins_small_for_half_a_second_each_time_cheap_requests_come() {
        let mut yielding = Yielding::new(2);
        let mut look = |millis: u64, has_cheap: bool, in_flight: u32| {
            let now = Timestamp::from_millis(millis);
            let median = Duration::from_millis(5);
            let cheap = Cheap { at: now, median, allowed: 2 * median, work: Duration::ZERO };
            let expensive = waiting(in_flight, Duration::ZERO);
            yielding.handle_look(has_cheap.then_some(cheap), expensive, now);
            yielding.cap()
        };
        assert_eq!([look(100, false, 50), look(200, true, 50)], [usize::MAX, 2]);
        assert_eq!([look(300, true, 20), look(400, true, 2)], [2, 2], "50 were too many until 300 ms");
        assert_eq!([look(799, true, 2), look(800, true, 2), look(900, true, 4)], [2, 4, 8]);
        assert_eq!([look(1_200, true, 8), look(1_201, true, 50)], [16, usize::MAX]);
        assert_eq!([look(11_202, false, 50), look(12_000, true, 50)], [usize::MAX, 2]);
        assert_eq!(look(13_001, true, 50), usize::MAX, "even if so many have stayed in flight");
    }

    #[test]
    fn expensive_requests_that_are_not_the_reason_are_held_back_only_now_and_then() {
        let store = Store { servers: 64, expensive: 0.010, cheap: 0.050 };
        let load = Load { clients: 20, every: 0.010 };
        let seen = with_policy(store, load, 0.001);
        let all = minute(store, load, 0.001, |_, _, _| usize::MAX);
        assert!(seen.uncapped > 0.9 && seen.served * 10 > all.served * 9, "{seen:?}, {all:?}");
    }

    /// Returns the median latency of cheap requests in the second half of 40 s, in seconds, at a store of one thread
    /// that is asked for three times the expensive requests that it can do, from the fourth second on. Each of
    /// `cores` has at most `most` expensive requests in flight; if `yields`, at most as many as the policy permits.
    fn crowd_of(cores: usize, expensive: f64, most: usize, yields: bool) -> f64 {
        const CHEAP: f64 = 0.000_1;
        let mut policies = vec![acquainted(1); cores];
        let (mut in_flight, mut waiting) = (vec![0_u32; cores], vec![0_u32; cores]);
        // Requests in flight, in the order in which they are answered: when, by which core and when sent, if cheap.
        let mut answers: VecDeque<(f64, usize, Option<f64>)> = VecDeque::new();
        let (mut round, mut began, mut latest, mut latencies) = (Vec::new(), 0.0, None::<Cheap>, Vec::new());
        let every = (expensive * 1e3 / 3.0) as usize;
        for millis in 0..40_000 {
            let now = millis as f64 / 1e3;
            while let Some((_, core, sent)) = answers.pop_front_if(|(ends, _, _)| *ends <= now) {
                match sent {
                    Some(sent) => round.push(now - sent),
                    None => in_flight[core] -= 1,
                }
            }
            let free =
                |answers: &VecDeque<(f64, usize, Option<f64>)>| answers.back().map_or(now, |last| last.0);
            if millis % 4 == 0 {
                answers.push_back((free(&answers) + CHEAP, 0, Some(now)));
            }
            if millis >= 4_000 && millis % every == 0 {
                let core = &mut waiting[millis / every % cores];
                *core = (*core + 1).min(100);
            }
            for core in 0..cores {
                let cap = if yields { policies[core].cap().min(most) } else { most };
                while waiting[core] > 0 && (in_flight[core] as usize) < cap {
                    waiting[core] -= 1;
                    in_flight[core] += 1;
                    answers.push_back((free(&answers) + expensive, core, None));
                }
            }
            let usual = latest.map_or(0.0, |cheap| cheap.median.as_secs_f64());
            if round.len() >= 8 && now - began >= f64::max(0.010, 2.0 * usual) {
                if millis >= 20_000 {
                    latencies.extend_from_slice(&round);
                }
                let [median, allowed] = [median(&mut round), calm(CHEAP)].map(Duration::from_secs_f64);
                latest = Some(Cheap { at: at(now), median, allowed, work: Duration::ZERO });
                (round, began) = (Vec::new(), now);
            }
            for core in (0..cores).filter(|core| (millis + 13 * core) % 100 == 0) {
                let all_in_flight = in_flight.iter().sum();
                let work = Some(Duration::from_secs_f64(expensive) * all_in_flight);
                let waits = waiting[core] > 0;
                let expensive = Expensive { in_flight: in_flight[core], all_in_flight, work, waits };
                policies[core].handle_look(latest, expensive, at(now));
            }
        }
        median(&mut latencies)
    }

    #[test]
    fn expensive_requests_that_come_to_several_cores_at_once_stay_held_back() {
        for cores in [1, 2, 4, 8] {
            for expensive in [0.003, 0.012, 0.030] {
                let seen = crowd_of(cores, expensive, 64 / cores, true);
                // Beside one of each core, which is the least, or beside all.
                let [least, all] = [1, 64 / cores].map(|most| crowd_of(cores, expensive, most, false));
                let context =
                    format!("{cores} cores, {expensive} s: {seen} s, at least {least} s, at most {all} s");
                assert!(seen <= 1.5 * least + 0.005, "{context}");
            }
        }
    }

    #[test]
    fn a_cap_is_in_vain_only_if_cheap_requests_come_later_than_the_work_of_expensive_ones_explains() {
        for (late, cap) in [(115, 2), (125, usize::MAX)] {
            let mut yielding = acquainted(1);
            let mut look = |second: u64, millis: u64, in_flight: u32| {
                let now = Timestamp::from_millis(1_000 * second);
                let [median, allowed] = [millis, 10].map(Duration::from_millis);
                let cheap = Cheap { at: now, median, allowed, work: Duration::ZERO };
                let work = Duration::from_millis(12) * in_flight;
                let expensive = waiting(in_flight, work);
                yielding.handle_look(Some(cheap), expensive, now);
                yielding.cap()
            };
            // The first cuts come before the latency shows all of the forty.
            assert_eq!([look(1, 50, 40), look(2, 50, 40)], [usize::MAX, 20]);
            assert_eq!([look(3, 60, 20), look(4, 60, 20)], [20, 10]);
            assert_eq!([look(5, late, 10), look(6, late, 10)], [10, 5]);
            assert_eq!([look(7, late, 5), look(8, late, 5)], [5, cap], "five keep a server busy for 60 ms");
        }
    }

    #[test]
    fn the_least_cap_of_a_core_is_judged_once_half_of_all_expensive_requests_are_left() {
        for (others, is_judged) in [(2, true), (3, false)] {
            let mut yielding = acquainted(1);
            let late = Duration::from_millis(100);
            let mut look = |round: u64| {
                let now = Timestamp::from_millis(200 * round);
                let cheap = Cheap { at: now, median: late, allowed: late / 10, work: Duration::ZERO };
                let in_flight = yielding.cap().min(3) as u32;
                let all_in_flight = in_flight + if in_flight == 3 { 3 } else { others };
                let expensive = Expensive { all_in_flight, ..waiting(in_flight, Duration::ZERO) };
                yielding.handle_look(Some(cheap), expensive, now);
                yielding.cap()
            };
            let caps: Vec<usize> = (1..40).map(&mut look).skip_while(|cap| *cap > 1).collect();
            assert_eq!(caps[..10], [1; 10], "for two seconds");
            assert_eq!(caps.contains(&usize::MAX), is_judged, "{caps:?}");
        }
    }

    #[test]
    fn without_cheap_requests_there_is_no_cap_any_more() {
        let mut yielding = acquainted(1);
        let late = Duration::from_millis(50);
        let mut look = |millis: u64, has_cheap: bool| {
            let now = Timestamp::from_millis(millis);
            let cheap = Cheap { at: now, median: late, allowed: late / 5, work: Duration::ZERO };
            let in_flight = yielding.cap().min(20) as u32;
            yielding.handle_look(has_cheap.then_some(cheap), waiting(in_flight, Duration::ZERO), now);
            yielding.cap()
        };
        assert_eq!([look(100, true), look(200, true), look(300, false)], [usize::MAX, 10, 10]);
        assert_eq!([look(10_200, false), look(10_301, false)], [10, usize::MAX]);
    }

    #[test]
    fn cheap_requests_that_crowd_the_backend_themselves_hold_back_no_others() {
        for (millis, is_capped) in [(19, true), (21, false)] {
            let mut yielding = acquainted(1);
            for round in 1..10 {
                let now = Timestamp::from_millis(100 * round);
                let (median, allowed) = (Duration::from_millis(50), Duration::from_millis(10));
                let cheap = Cheap { at: now, median, allowed, work: Duration::from_millis(millis) };
                let in_flight = yielding.cap().min(20) as u32;
                let expensive = waiting(in_flight, Duration::from_millis(20));
                yielding.handle_look(Some(cheap), expensive, now);
                assert!(is_capped || yielding.cap() == usize::MAX);
                if is_capped && yielding.cap() < 20 {
                    break;
                }
                assert!(round < 9 || !is_capped, "{yielding:?}");
            }
        }
    }

    #[test]
    fn a_backend_has_to_be_taken_as_it_is_where_fewer_expensive_requests_are_no_help() {
        let allowed = Duration::from_millis(10);
        let mut yielding = acquainted(1);
        let mut look = |millis: u64, (median, work): (u64, u64), in_flight: u32| {
            let now = Timestamp::from_millis(millis);
            let [median, work] = [median, work].map(Duration::from_millis);
            let expensive = waiting(in_flight, Duration::from_millis(20));
            yielding.handle_look(Some(Cheap { at: now, median, allowed, work }), expensive, now);
            yielding.may_help(now)
        };
        assert!(look(100, (50, 0), 1) && look(2_000, (50, 0), 1), "for less than 2 s");
        assert!(!look(2_100, (50, 0), 1), "there is only one");
        assert!(look(2_200, (9, 0), 1), "in time");
        assert!(!look(2_300, (50, 21), 1), "the cheap ones themselves are more");
        assert!(look(2_400, (50, 19), 1));
    }

    #[test]
    fn cheap_requests_are_not_the_reason_while_nobody_knows_the_work_of_expensive_ones() {
        let allowed = Duration::from_millis(10);
        for (work, may_help) in [(None, true), (Some(Duration::from_millis(19)), false)] {
            let mut yielding = acquainted(1);
            for round in 1..5 {
                let now = Timestamp::from_millis(100 * round);
                let crowd = Cheap { at: now, median: 5 * allowed, allowed, work: Duration::from_millis(20) };
                // All expensive requests are another core's.
                let expensive = Expensive { all_in_flight: 14, work, ..Expensive::default() };
                yielding.handle_look(Some(crowd), expensive, now);
                assert_eq!(yielding.may_help(now), may_help, "{work:?}");
            }
        }
    }

    #[test]
    fn after_a_cut_the_cap_stays_below_what_was_too_much() {
        let mut yielding = acquainted(1);
        let (mut most_held, mut cut_at) = (0, None);
        for round in 1..400 {
            let now = Timestamp::from_millis(100 * round);
            // Replies come late with eight in flight or more.
            let in_flight = yielding.cap().min(20) as u32;
            let median = Duration::from_millis(if in_flight >= 8 { 30 } else { 5 });
            let cheap = Cheap { at: now, median, allowed: Duration::from_millis(10), work: Duration::ZERO };
            let expensive = waiting(in_flight, Duration::ZERO);
            if yielding.handle_look(Some(cheap), expensive, now) {
                (cut_at, most_held) = (Some(now), 0);
            } else if cut_at.is_some_and(|at| now.since(at) < HOLD) {
                most_held = most_held.max(yielding.cap());
            }
        }
        assert_eq!(most_held, 6, "four fifths of eight");
    }

    #[test]
    fn the_cap_is_never_below_the_least() {
        let mut yielding = acquainted(5);
        for round in 1..100 {
            let now = Timestamp::from_millis(100 * round);
            // The fewer are in flight, the sooner come the replies.
            let in_flight = yielding.cap().min(20) as u32;
            let median = Duration::from_millis(20) * in_flight;
            let cheap = Cheap { at: now, median, allowed: Duration::from_millis(10), work: Duration::ZERO };
            yielding.handle_look(Some(cheap), waiting(in_flight, Duration::ZERO), now);
        }
        assert_eq!(yielding.cap(), 5);
    }
}
