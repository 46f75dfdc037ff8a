//! Increases of counters over the last second or so: the difference between the counters now and those of an
//! earlier call, at most ten seconds ago.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Meter, Totals};
use crate::config::Quotas;
use crate::shard::{Counter, Counters, Durations, Pressures};
use crate::values::usage::{Usage, UsageSum};
use crate::values::{TenantId, Timestamp};

/// The least age (0.9 s) of the earlier counters that present ones are compared with.
const PERIOD: Duration = Duration::from_millis(900);
/// The greatest age (10 s) of the earlier counters that present ones are compared with: older ones mean that the
/// process stood still meanwhile, since it notes them every 5 s.
const PERIOD_MAX: Duration = Duration::from_secs(10);

/// Counters of all shards and tenants as of a moment, with which later counters are compared.
#[derive(Clone, Debug)]
struct Past {
    at: Timestamp,
    shards: Vec<PastShard>,
    service_times: Durations,
    /// The version of the quotas that the tenant ids in `tenants` belong to.
    version: u64,
    minute: u64,
    /// The usage so far, in minute `minute`, of tenants that sent requests, in the order of their ids.
    tenants: Vec<(TenantId, Usage)>,
}

#[derive(Clone, Debug)]
struct PastShard {
    counters: Counters,
    pressures: Pressures,
    cpu: Duration,
}

/// The increases of counters over a recent interval of 0.9 to 10 s.
#[derive(Clone, Debug, Default)]
pub struct Since {
    /// The length of the interval between the earlier counters and the present ones.
    pub period: Duration,
    /// The increases of each shard's counters in the interval.
    pub shards: Vec<ShardSince>,
    /// Distribution of the times that stores took for the replies that came in the interval, over all shards.
    pub service_times: Durations,
    /// Usage of their quotas in the interval, of the tenants that sent requests in it; empty if other quotas
    /// were put in force since its start.
    pub tenants: Vec<(TenantId, UsageSum)>,
}

/// The increases of one shard's counters over a recent interval.
#[derive(Clone, Debug, Default)]
pub struct ShardSince {
    /// The increase of the shard's counters during the interval.
    pub counters: Counters,
    /// The numbers of requests that the shard refused during the interval because of overload, by reason and
    /// tier (importance).
    pub pressures: Pressures,
    /// The CPU time that the shard's thread used during the interval.
    pub cpu: Duration,
}

impl Since {
    /// Returns the rate per second to which an increase (`count`) over the interval amounts.
    pub fn per_second(&self, count: f64) -> f64 {
        count / self.period.as_secs_f64().max(0.001)
    }

    /// Returns the sum of the given counters' increases in the interval, over all shards.
    pub fn count(&self, counters: &[Counter]) -> u64 {
        let of =
            |shard: &ShardSince| counters.iter().map(|counter| shard.counters.get(*counter)).sum::<u64>();
        self.shards.iter().map(of).sum()
    }
}

/// Counters as of up to four past moments, the oldest first, for comparison with later ones.
#[derive(Clone, Debug, Default)]
pub struct Recent(VecDeque<Past>);

impl Recent {
    /// Returns by how much counters have grown since an earlier call, 0.9 to 10 s ago, that kept them; None
    /// if there was no such call. Keeps the present counters for later calls, unless others have been kept
    /// for less than 0.45 s.
    pub fn look(&mut self, totals: &Totals, meter: &Meter, quotas: &Quotas, now: Timestamp) -> Option<Since> {
        while self.0.front().is_some_and(|past| now.since(past.at) > PERIOD_MAX) {
            self.0.pop_front();
        }
        // Of the counters that are at least a period old, only the latest are ever compared with.
        while self.0.get(1).is_some_and(|past| now.since(past.at) >= PERIOD) {
            self.0.pop_front();
        }
        let before = self.0.front().filter(|past| now.since(past.at) >= PERIOD);
        let service_times = totals.sum().service_times;
        let since = before.map(|past| past.since(totals, &service_times, (meter, quotas), now));
        // However many people look, at most one set per half period is kept.
        if self.0.back().is_none_or(|past| now.since(past.at) >= PERIOD / 2) {
            self.0.push_back(Past::of(totals, service_times, (meter, quotas), now));
        }
        debug_assert!(self.0.len() <= 4);
        since
    }
}

impl Past {
    fn of(
        totals: &Totals,
        service_times: Durations,
        (meter, quotas): (&Meter, &Quotas),
        at: Timestamp,
    ) -> Self {
        let shards = totals.shards.iter().map(|report| PastShard {
            counters: report.counters.clone(),
            pressures: report.pressures.clone(),
            cpu: report.event_loop.cpu,
        });
        let minute = Meter::minute_of(at);
        let used = quotas.tenants().map(|(id, _)| (id, meter.minute(id, minute)));
        let tenants = used.filter(|(_, usage)| !usage.is_empty()).collect();
        Self { at, shards: shards.collect(), service_times, version: quotas.version(), minute, tenants }
    }

    fn since(
        &self,
        totals: &Totals,
        service_times: &Durations,
        (meter, quotas): (&Meter, &Quotas),
        now: Timestamp,
    ) -> Since {
        let shards = totals.shards.iter().zip(&self.shards).map(|(report, past)| ShardSince {
            counters: report.counters.since(&past.counters),
            pressures: report.pressures.since(&past.pressures),
            cpu: report.event_loop.cpu.saturating_sub(past.cpu),
        });
        Since {
            period: now.since(self.at),
            shards: shards.collect(),
            service_times: service_times.since(&self.service_times),
            tenants: self.tenants_since(meter, quotas, now),
        }
    }

    fn tenants_since(&self, meter: &Meter, quotas: &Quotas, now: Timestamp) -> Vec<(TenantId, UsageSum)> {
        // Under other quotas the ids belong to other tenants.
        if quotas.version() != self.version {
            return Vec::new();
        }
        let minute = Meter::minute_of(now);
        let mut past = self.tenants.iter().peekable();
        let of = |(id, _)| {
            let mut sum = meter.sum(id, self.minute, minute);
            if let Some((_, before)) = past.next_if(|(known, _)| *known == id) {
                sum.subtract(*before);
            }
            (id, sum)
        };
        quotas.tenants().map(of).filter(|(_, sum)| sum.asked().0 > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{EventLoopFigures, ShardReport};
    use crate::values::usage::UsageKind;

    fn totals(requests: u64) -> Totals {
        let event_loop =
            EventLoopFigures { cpu: Duration::from_millis(requests), ..EventLoopFigures::default() };
        let mut report = ShardReport { event_loop, ..ShardReport::default() };
        report.counters.add(Counter::Requests, requests);
        (0..requests).for_each(|_| report.service_times.record(1_000_000 * requests));
        report.service_times = report.service_times.told();
        Totals { shards: vec![report], engine: None }
    }

    /// Looks at counters at these times in milliseconds, with one more request for every 10 ms. Returns for
    /// each look the length of the interval and the increase of the requests; None if there were no earlier
    /// counters to compare with.
    fn looks(at: &[u64]) -> Vec<Option<(u64, u64)>> {
        let quotas = Quotas::trusting();
        let meter = Meter::new(&quotas);
        let mut recent = Recent::default();
        let look = |ms: &u64| {
            let now = Timestamp::from_millis(*ms);
            let since = recent.look(&totals(*ms / 10), &meter, &quotas, now);
            since.map(|since| (since.period.as_millis() as u64, since.count(&[Counter::Requests])))
        };
        at.iter().map(look).collect()
    }

    #[test]
    fn what_is_compared_is_about_a_second_old() {
        assert_eq!(looks(&[0, 1_000, 2_000]), [None, Some((1_000, 100)), Some((1_000, 100))]);
        assert_eq!(looks(&[0, 100, 200, 900]), [None, None, None, Some((900, 90))]);
        assert_eq!(looks(&[0, 20_000, 21_000]), [None, None, Some((1_000, 100))], "nobody had looked");
        let often: Vec<u64> = (0..500).map(|n| n * 20).collect();
        for (looked, ms) in looks(&often).into_iter().zip(often) {
            match looked {
                None => assert!(ms < 900, "{ms}"),
                Some((period, requests)) => {
                    assert!((900..1_500).contains(&period) && requests == period / 10, "{period}");
                }
            }
        }
    }

    #[test]
    fn latency_and_cpu_are_those_of_the_time_since() {
        let quotas = Quotas::trusting();
        let meter = Meter::new(&quotas);
        let mut recent = Recent::default();
        recent.look(&totals(10), &meter, &quotas, Timestamp::ZERO);
        let mut later = totals(10);
        later.shards[0].service_times.record(50_000_000);
        later.shards[0].service_times = later.shards[0].service_times.told();
        later.shards[0].event_loop.cpu += Duration::from_millis(500);
        let since =
            recent.look(&later, &meter, &quotas, Timestamp::from_millis(1_000)).expect("it was looked at");
        assert_eq!(since.service_times.count(), 1);
        let longest = since.service_times.quantile(0.5).as_millis();
        assert!((49..=51).contains(&longest), "{longest}");
        assert_eq!(since.shards[0].cpu, Duration::from_millis(500));
    }

    #[test]
    fn tenants_are_told_apart_over_the_end_of_a_minute_and_not_under_other_quotas() {
        let quotas = Quotas::with_tenants(["a", "b", "c"].map(str::to_owned).into_iter());
        let mut meter = Meter::new(&quotas);
        let mut recent = Recent::default();
        let [a, b, _] = ["a", "b", "c"].map(|name| quotas.find(name).expect("it is there"));
        let some = |admitted| Usage { admitted, ..Usage::default() };
        meter.record(a, some(100), 0);
        meter.record(b, some(7), 0);
        recent.look(&totals(0), &meter, &quotas, Timestamp::from_millis(59_500));
        meter.record(a, some(10), 0);
        meter.record(a, some(5), 1);
        let now = Timestamp::from_millis(60_500);
        let since = recent.look(&totals(0), &meter, &quotas, now).expect("it was looked at");
        let told: Vec<_> =
            since.tenants.iter().map(|(id, sum)| (*id, sum.of(UsageKind::Admitted).0)).collect();
        assert_eq!(told, [(a, 15)]);
        let names = ["a", "b", "c"].map(str::to_owned).into_iter();
        let others = Quotas::with_tenants(names).with_version(quotas.version() + 1);
        let now = Timestamp::from_millis(61_500);
        let since = recent.look(&totals(0), &meter, &others, now).expect("it was looked at");
        assert!(since.tenants.is_empty());
    }
}
