//! N servers in parallel behind one queue, in virtual time.
//!
//! A request starts as soon as a server is free, in the order of arrival, and is due when its service time is
//! over. Starts and ends between two calls are computed as they would have happened, to the nanosecond.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use weir::values::Timestamp;

/// Simulated servers and their common queue. `J` is the type of a waiting request, and `P` the type of the
/// record that is kept of a request in service.
#[derive(Debug)]
pub(super) struct Stations<J, P> {
    servers: usize,
    waiting: VecDeque<(Timestamp, J)>,
    in_service: BinaryHeap<Reverse<Served<P>>>,
    /// The number of requests whose service has started so far, by which requests due at the same moment end
    /// in the order of starting.
    started: u64,
    /// The last moment at which a server became free, or the number of servers changed: no waiting request
    /// starts before it.
    freed_at: Timestamp,
    stalled_until: Timestamp,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Served<P> {
    due: Timestamp,
    order: u64,
    place: P,
}

impl<J, P: Ord> Stations<J, P> {
    pub(super) fn new(servers: usize) -> Self {
        debug_assert!(servers > 0);
        Self {
            servers,
            waiting: VecDeque::new(),
            in_service: BinaryHeap::new(),
            started: 0,
            freed_at: Timestamp::ZERO,
            stalled_until: Timestamp::ZERO,
        }
    }

    /// True if a request that arrives now would start at once: a server is free, none waits, and there is no
    /// stall.
    pub(super) fn is_free(&self, now: Timestamp) -> bool {
        self.waiting.is_empty() && self.in_service.len() < self.servers && self.stalled_until <= now
    }

    pub(super) fn arrive(&mut self, job: J, now: Timestamp) {
        self.waiting.push_back((now, job));
    }

    /// Returns the next waiting request whose service has started by `now`, and the time of its start;
    /// `None` if there is none. The caller calls [`Stations::serve`] for it before the next call.
    pub(super) fn next_start(&mut self, now: Timestamp) -> Option<(J, Timestamp)> {
        if self.in_service.len() >= self.servers {
            return None;
        }
        let start = self.waiting.front()?.0.max(self.freed_at).max(self.stalled_until);
        if start > now {
            return None;
        }
        self.waiting.pop_front().map(|(_, job)| (job, start))
    }

    /// Occupies a free server with a request from `start` on, for its service time. `place` is the record
    /// that is kept of the request.
    pub(super) fn serve(&mut self, place: P, start: Timestamp, service: Duration) {
        debug_assert!(self.in_service.len() < self.servers, "it started because a server was free");
        self.started += 1;
        self.in_service.push(Reverse(Served { due: start.after(service), order: self.started, place }));
    }

    /// Removes and returns the next request whose service is over by `now`; `None` if there is none.
    pub(super) fn next_finished(&mut self, now: Timestamp) -> Option<P> {
        if self.in_service.peek()?.0.due > now {
            return None;
        }
        let Reverse(served) = self.in_service.pop()?;
        self.freed_at = self.freed_at.max(served.due);
        Some(served.place)
    }

    /// Stalls all servers from `now` for `pause`: requests in service end that much later, and waiting ones
    /// start after it. A stall that ends within another one adds nothing.
    pub(super) fn stall(&mut self, now: Timestamp, pause: Duration) {
        let until = now.after(pause);
        let longer = until.since(self.stalled_until.max(now));
        self.stalled_until = self.stalled_until.max(until);
        let served = std::mem::take(&mut self.in_service).into_vec();
        self.in_service = served
            .into_iter()
            .map(|Reverse(served)| Reverse(Served { due: served.due.after(longer), ..served }))
            .collect();
    }

    /// Ends a stall early: waiting requests start again. Requests in service keep the delay that the stall
    /// gave them.
    pub(super) fn end_stall(&mut self, now: Timestamp) {
        self.stalled_until = self.stalled_until.min(now);
    }

    pub(super) fn set_servers(&mut self, servers: usize, now: Timestamp) {
        debug_assert!(servers > 0);
        if servers != self.servers {
            self.servers = servers;
            // New servers were not there before now, so they cannot have been free earlier.
            self.freed_at = self.freed_at.max(now);
        }
    }

    /// Drops all requests that wait or are in service, and returns how many there were.
    pub(super) fn clear(&mut self) -> usize {
        let lost = self.waiting.len() + self.in_service.len();
        self.waiting.clear();
        self.in_service.clear();
        lost
    }

    pub(super) fn in_service(&self) -> usize {
        self.in_service.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the next time at which a request ends, or a waiting one starts; `None` if there is none.
    pub(super) fn next_event(&self) -> Option<Timestamp> {
        let end = self.in_service.peek().map(|Reverse(served)| served.due);
        let free = self.in_service.len() < self.servers && !self.waiting.is_empty();
        let start = free.then_some(self.stalled_until);
        [end, start].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::super::distribution::Distribution;
    use super::*;
    use weir::values::Random;

    const MS: Duration = Duration::from_millis(1);

    /// Serves `count` requests that all arrive at the start; the servers are advanced every `turn`. Returns
    /// when each request was done.
    fn run(servers: usize, time: &str, count: usize, turn: Duration, seed: u64) -> Vec<(usize, Timestamp)> {
        let time: Distribution = time.parse().expect("well formed");
        let mut random = Random::new(seed);
        let mut stations = Stations::new(servers);
        (0..count).for_each(|job| stations.arrive(job, Timestamp::ZERO));
        let (mut done, mut now) = (Vec::new(), Timestamp::ZERO);
        while done.len() < count {
            loop {
                if let Some((job, start)) = stations.next_start(now) {
                    stations.serve(job, start, time.sample(&mut random));
                } else if let Some(job) = stations.next_finished(now) {
                    done.push((job, now));
                } else {
                    break;
                }
            }
            now = now.after(turn);
        }
        done
    }

    /// Returns the number of requests served per second.
    fn capacity(done: &[(usize, Timestamp)]) -> f64 {
        let (_, end) = done.last().expect("something was served");
        done.len() as f64 / end.since(Timestamp::ZERO).as_secs_f64()
    }

    #[test]
    fn capacity_is_servers_by_service_time() {
        for (servers, time, wanted, tolerance) in [
            (1, "1ms", 1_000.0, 0.01),
            (4, "fixed:2ms", 2_000.0, 0.01),
            (4, "exp:2ms", 2_000.0, 0.03),
            (16, "exp:10ms", 1_600.0, 0.03),
        ] {
            // Late and uneven wake-ups cost no capacity.
            for turn in [Duration::from_micros(50), Duration::from_micros(3_700)] {
                let measured = capacity(&run(servers, time, 40_000, turn, 5));
                assert!((measured / wanted - 1.0).abs() < tolerance, "{servers} x {time}: {measured}");
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_trace() {
        let trace = |seed| run(3, "lognormal:1ms:1", 1_000, MS, seed);
        assert_eq!(trace(1), trace(1));
        assert_ne!(trace(1), trace(2));
    }

    #[test]
    fn equal_service_times_end_in_the_order_of_arrival() {
        let order: Vec<usize> = run(7, "1ms", 500, MS * 20, 1).into_iter().map(|(job, _)| job).collect();
        assert!(order.is_sorted());
    }

    #[test]
    fn a_stall_delays_everything_by_its_length() {
        let at = Timestamp::from_millis;
        let mut stations = Stations::new(1);
        stations.arrive('a', at(0));
        stations.arrive('b', at(0));
        let (job, start) = stations.next_start(at(0)).expect("it is free");
        stations.serve(job, start, MS * 10);
        stations.stall(at(4), MS * 100);
        // A stall that lies within another one adds nothing.
        stations.stall(at(5), MS * 20);
        assert_eq!(stations.next_event(), Some(at(110)));
        assert_eq!(stations.next_finished(at(109)), None);
        assert_eq!(stations.next_finished(at(200)), Some('a'));
        assert_eq!(stations.next_start(at(200)), Some(('b', at(110))));
        stations.serve('b', at(110), MS * 10);
        assert_eq!(stations.next_event(), Some(at(120)));
    }

    #[test]
    fn more_servers_start_more_from_now_on() {
        let at = Timestamp::from_millis;
        let mut stations = Stations::new(1);
        (0..3).for_each(|job| stations.arrive(job, at(0)));
        stations.serve(9, at(0), MS * 100);
        assert!(stations.next_start(at(50)).is_none());
        stations.set_servers(2, at(50));
        assert_eq!(stations.next_start(at(60)), Some((0, at(50))));
        assert_eq!((stations.waiting(), stations.in_service()), (2, 1));
        assert_eq!(stations.clear(), 3);
        assert_eq!(stations.next_event(), None);
    }
}
