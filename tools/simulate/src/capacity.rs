//! The number of requests that could have been served under overload: what the stores could do, and what
//! running cores could have sent them, which is an upper bound for any proxy.
//!
//! A request passes through two cores, its client's and its key's home core. While either does not run, the
//! request does not reach its store, which has only the other requests and those sent before. With more
//! requests in flight a proxy could keep a store busy for longer, but all replies would be late; so requests
//! sent before count for no more than [`AHEAD`].

use std::ops::Range;
use std::time::Duration;

use super::store::Work;
use weir::values::Timestamp;

/// The longest time for which the requests in flight to a store are expected to keep it busy when no more
/// come: with more in flight, replies would be late.
const AHEAD: Duration = Duration::from_millis(40);

/// The facts about a simulated world under load (the cores' pauses, the stores' work and stalls) from which
/// the number of requests that could have been served is computed.
#[derive(Debug)]
pub(super) struct Ability {
    /// The interval of virtual time whose requests are counted.
    pub counted: Range<Timestamp>,
    /// The load that clients offer, as a multiple of the stores' capacity (1 is all of it).
    pub asked: f64,
    /// The number of servers of each store: the requests that it works on at the same time.
    pub servers: usize,
    /// The mean service time of a request at a store.
    pub service: Duration,
    /// The times in which each core did not run, by core. `clients` is the fraction (0 to 1) of all clients
    /// that are connected to each core.
    pub slept: Vec<Vec<Range<Timestamp>>>,
    pub clients: Vec<f64>,
    /// The work that each store did. `stalled` is the time in which each store carried out nothing, and
    /// `homes` the fraction (0 to 1) of each store's keys that each core handles, by store and core.
    pub works: Vec<Work>,
    pub stalled: Vec<Option<Range<Timestamp>>>,
    pub homes: Vec<Vec<f64>>,
}

impl Ability {
    /// Returns the number of requests that the stores could have carried out in the counted time, and the number of
    /// those that running cores could have sent to them, both less the requests lost with a breaking connection. Both
    /// use the service times that requests really took, which differ by chance a few percent from the mean; the mean is
    /// used for a store that was asked nothing, which could have worked all the same.
    pub fn requests(&self) -> (f64, f64) {
        (0..self.homes.len()).fold((0.0, 0.0), |sum, store| {
            let Work { requests, took, in_vain } = self.works[store];
            let each = if requests == 0 { self.service } else { took.div_f64(requests as f64) };
            let rate = self.servers as f64 / each.as_secs_f64().max(1e-9);
            let (all, busy) = self.busy(store);
            // Requests that are lost with a breaking connection cannot be avoided.
            let lost = in_vain as f64;
            (sum.0 + all * rate - lost, sum.1 + busy * rate - lost)
        })
    }

    /// Returns the seconds of the counted time in which the store with this index did not stall, and the
    /// seconds in which requests from running cores could have kept it busy.
    fn busy(&self, store: usize) -> (f64, f64) {
        let stalled = self.stalled[store].as_ref();
        let mut moments: Vec<Timestamp> =
            self.slept.iter().flatten().chain(stalled).flat_map(|range| [range.start, range.end]).collect();
        moments.extend([self.counted.start, self.counted.end]);
        moments.retain(|at| (self.counted.start..=self.counted.end).contains(at));
        moments.sort_unstable();
        let (mut all, mut busy, mut ahead) = (0.0, 0.0, AHEAD.as_secs_f64());
        for pair in moments.windows(2) {
            let (from, seconds) = (pair[0], pair[1].since(pair[0]).as_secs_f64());
            if stalled.is_some_and(|range| range.contains(&from)) {
                continue;
            }
            let comes = seconds * self.reaches(store, from).min(1.0);
            let from_ahead = ahead.min(seconds - comes);
            // Requests that waited for a core fill the store's queue again.
            ahead = if comes < seconds { ahead - from_ahead } else { AHEAD.as_secs_f64() };
            all += seconds;
            busy += comes + from_ahead;
        }
        (all, busy)
    }

    /// Returns the load that the cores running at a time can send to the store with this index, as a
    /// multiple of the store's capacity.
    fn reaches(&self, store: usize, at: Timestamp) -> f64 {
        let runs = |core: &usize| !self.slept[*core].iter().any(|range| range.contains(&at));
        let running = |parts: &[f64]| (0..parts.len()).filter(runs).map(|core| parts[core]).sum::<f64>();
        self.asked * running(&self.clients) * running(&self.homes[store])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(range: Range<u64>) -> Range<Timestamp> {
        Timestamp::from_millis(range.start)..Timestamp::from_millis(range.end)
    }

    #[test]
    fn a_store_is_idle_while_nobody_can_ask_it() {
        let mut ability = Ability {
            counted: millis(1_000..2_000),
            asked: 1.5,
            servers: 2,
            service: Duration::from_millis(2),
            works: vec![Work { requests: 500, took: Duration::from_secs(1), in_vain: 0 }; 2],
            slept: vec![vec![millis(900..1_100), millis(1_500..1_600)], vec![]],
            clients: vec![1.0, 0.0],
            stalled: vec![None, Some(millis(1_500..2_500))],
            homes: vec![vec![1.0, 0.0], vec![0.0, 1.0]],
        };
        let close = |(all, asked): (f64, f64), expected: (f64, f64)| {
            assert!((all - expected.0).abs() < 1e-6 && (asked - expected.1).abs() < 1e-6, "{all}, {asked}");
        };
        // 40 ms of each absence are bridged; for the second store one of them does not matter, because it
        // stalls.
        close(ability.requests(), (1_500.0, 1_500.0 - 60.0 - 60.0 - 60.0));
        // With half of the clients on another core, three quarters of the store's capacity are requested.
        ability.clients = vec![0.5, 0.5];
        close(ability.requests(), (1_500.0, 1_500.0 - 60.0 - 60.0));
        ability.works[0].in_vain = 7;
        close(ability.requests(), (1_493.0, 1_493.0 - 60.0 - 60.0));
        // A store that weir never asked could have done as much.
        ability.works[0] = Work::default();
        close(ability.requests(), (1_500.0, 1_500.0 - 60.0 - 60.0));
    }
}
