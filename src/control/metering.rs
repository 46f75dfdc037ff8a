//! Usage of each tenant, minute by minute, for the last day.
//!
//! Minutes are counted from the start of the process on the monotonic clock. Only minutes in which a tenant
//! sent requests take memory, with a bound on all of them together: above it the oldest minute of all tenants
//! is dropped, so that figures of different tenants stay comparable.

use std::collections::VecDeque;

use super::Versions;
use super::tenant_series::TenantSeries;
use crate::config::Quotas;
use crate::values::limits::{METERED_ENTRIES_MAX, METERED_MINUTES_MAX};
use crate::values::usage::{Usage, UsageSum};
use crate::values::{TenantId, Timestamp};

/// The number of minutes in an hour.
pub const HOUR: u64 = 60;

/// The usage that all tenants made of their quotas, minute by minute, for the last day.
#[derive(Clone, Debug)]
pub struct Meter {
    /// Usage by minute, for each tenant by its id; None for tenants without usage in the minutes that are
    /// kept.
    tenants: Vec<Option<Box<Minutes>>>,
    series: TenantSeries,
    /// The minutes of which usage is kept, each with the number of tenants that have usage in it.
    active: VecDeque<(u64, u32)>,
    /// The number of pairs of a tenant and a minute for which usage is kept. Brought down to `entries_max`
    /// when a minute begins; the pairs of that minute come on top.
    entries: usize,
    entries_max: usize,
    /// The latest minute in which usage was reported, counted from the start of the process.
    latest: u64,
    /// The first minute whose usage is kept, counted from the start of the process.
    kept_from: u64,
    late_reports: u64,
}

/// The minutes in which a tenant sent requests, in order, each with the usage in it.
type Minutes = VecDeque<(u64, Usage)>;

/// The usage of a tenant in the current minute, the last one, the last hour and the last day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The usage in the current minute so far.
    pub this_minute: UsageSum,
    /// The usage in the minute before the current one.
    pub last_minute: UsageSum,
    /// The usage in the current minute so far, and in the 59 before it.
    pub last_hour: UsageSum,
    /// The usage in the current minute so far, and in the 1,439 before it.
    pub last_day: UsageSum,
}

impl Meter {
    /// Creates a meter that has recorded no usage yet, with a place for each tenant of these quotas.
    pub fn new(quotas: &Quotas) -> Self {
        Self {
            tenants: vec![None; quotas.len()],
            series: TenantSeries::new(quotas),
            active: VecDeque::new(),
            entries: 0,
            entries_max: METERED_ENTRIES_MAX,
            latest: 0,
            kept_from: 0,
            late_reports: 0,
        }
    }

    /// Returns the number of the minute in which a moment lies, counted from the start of the process.
    pub const fn minute_of(moment: Timestamp) -> u64 {
        const NANOS_PER_MINUTE: u64 = 60_000_000_000;
        moment.as_nanos() / NANOS_PER_MINUTE
    }

    /// Adds a shard's report of usage, whose tenant ids belong to the given version of the quotas. A report
    /// of a version that is no longer kept is dropped and counted, since its ids cannot be resolved. `minute`
    /// is the number of the present minute since the start.
    pub fn take_report(
        &mut self,
        versions: &Versions,
        version: u64,
        report: &[(TenantId, Usage)],
        minute: u64,
    ) {
        if !versions.knows(version) {
            self.late_reports += 1;
        }
        for (tenant, usage) in report {
            if let Some(tenant) = versions.now_called(version, *tenant) {
                self.record(tenant, *usage, minute);
            }
        }
    }

    /// Adds a tenant's usage to a minute (counted from the start of the process), or to the latest known
    /// minute if that is later.
    pub fn record(&mut self, tenant: TenantId, usage: Usage, minute: u64) {
        if usage.is_empty() || usize::from(tenant.0) >= self.tenants.len() {
            return;
        }
        if minute > self.latest {
            self.begin(minute);
        }
        self.series.record(tenant, usage);
        let minutes = self.tenants[usize::from(tenant.0)].get_or_insert_default();
        match minutes.back_mut() {
            Some((latest, sum)) if *latest == self.latest => sum.add(usage),
            _ => {
                minutes.push_back((self.latest, usage));
                self.entries += 1;
                match self.active.back_mut() {
                    Some((latest, tenants)) if *latest == self.latest => *tenants += 1,
                    _ => self.active.push_back((self.latest, 1)),
                }
            }
        }
    }

    /// Begins minute number `minute`: drops minutes that are older than a day, then the oldest ones while
    /// more usage is kept (counted in pairs of a tenant and a minute) than the limit.
    fn begin(&mut self, minute: u64) {
        self.series.pass_minutes(minute - self.latest);
        self.latest = minute;
        self.kept_from = self.kept_from.max((minute + 1).saturating_sub(METERED_MINUTES_MAX));
        while let Some((oldest, tenants)) = self.active.front().copied()
            && (oldest < self.kept_from || self.entries > self.entries_max)
        {
            self.kept_from = self.kept_from.max(oldest + 1);
            self.entries -= tenants as usize;
            self.active.pop_front();
        }
        for place in &mut self.tenants {
            let Some(minutes) = place else { continue };
            while minutes.front().is_some_and(|(minute, _)| *minute < self.kept_from) {
                minutes.pop_front();
            }
            if minutes.is_empty() {
                *place = None;
            } else if minutes.capacity() > 4 * minutes.len() {
                minutes.shrink_to_fit();
            }
        }
        self.check();
    }

    /// Puts other quotas in force: `after` in place of `before`. Tenants keep their usage by name; that of
    /// tenants that are gone is dropped.
    pub fn carry_over(&mut self, before: &Quotas, after: &Quotas) {
        self.series.carry_over(before, after);
        let mut old = std::mem::replace(&mut self.tenants, vec![None; after.len()]);
        for (tenant, terms) in after.tenants() {
            if let Some(known) = before.find(&terms.name) {
                self.tenants[usize::from(tenant.0)] = old[usize::from(known.0)].take();
            }
        }
        for (minute, _) in old.into_iter().flatten().flat_map(|minutes| *minutes) {
            let at = self.active.binary_search_by_key(&minute, |(minute, _)| *minute);
            self.active[at.expect("every minute of a tenant is counted")].1 -= 1;
            self.entries -= 1;
        }
        self.active.retain(|(_, tenants)| *tenants > 0);
        self.check();
    }

    /// Returns the usage of a tenant in a minute (counted from the start of the process); empty if it is not
    /// kept.
    pub fn minute(&self, tenant: TenantId, minute: u64) -> Usage {
        self.series_of(tenant, minute, minute).next().map_or(Usage::default(), |(_, usage)| usage)
    }

    /// Returns the usage of a tenant from one minute to another (counted from the start of the process), both
    /// included.
    pub fn sum(&self, tenant: TenantId, from: u64, to: u64) -> UsageSum {
        let mut sum = UsageSum::default();
        self.series_of(tenant, from, to).for_each(|(_, usage)| sum.add(usage));
        sum
    }

    /// Returns the minutes, from one to another, both included, in which a tenant used anything, with its
    /// usage. Minutes are counted from the start of the process.
    pub fn series_of(&self, tenant: TenantId, from: u64, to: u64) -> impl Iterator<Item = (u64, Usage)> {
        let minutes = self.tenants.get(usize::from(tenant.0)).and_then(Option::as_deref);
        let start = minutes.map_or(0, |minutes| minutes.partition_point(|(minute, _)| *minute < from));
        let found = minutes.into_iter().flat_map(move |minutes| minutes.range(start..));
        found.copied().take_while(move |(minute, _)| *minute <= to)
    }

    /// Returns the usage figures that are shown for a tenant if `minute` is the current minute (counted from
    /// the start of the process).
    pub fn figures(&self, tenant: TenantId, minute: u64) -> Figures {
        let before = |minutes: u64| minute.saturating_sub(minutes);
        let last_minute = minute.checked_sub(1).map(|last| self.minute(tenant, last));
        Figures {
            this_minute: self.minute(tenant, minute).into(),
            last_minute: last_minute.unwrap_or_default().into(),
            last_hour: self.sum(tenant, before(HOUR - 1), minute),
            last_day: self.sum(tenant, before(METERED_MINUTES_MAX - 1), minute),
        }
    }

    /// Returns the first minute whose usage is in the figures that are shown if `minute` is the current one;
    /// minutes are counted from the start of the process.
    pub fn kept_from(&self, minute: u64) -> u64 {
        self.kept_from.max((minute + 1).saturating_sub(METERED_MINUTES_MAX))
    }

    /// Returns the counters of the tenants' usage since the start, for the metrics.
    pub fn series(&self) -> &TenantSeries {
        &self.series
    }

    /// Returns the number of shards' reports of usage that were dropped because their version of the quotas
    /// was no longer kept.
    pub fn late_reports(&self) -> u64 {
        self.late_reports
    }

    fn check(&self) {
        debug_assert_eq!(
            self.entries,
            self.active.iter().map(|(_, tenants)| *tenants as usize).sum::<usize>()
        );
        debug_assert!(self.active.iter().is_sorted_by(|one, other| one.0 < other.0));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::control::QuotaSource;
    use crate::values::Random;

    fn quotas(names: &[&str]) -> Quotas {
        Quotas::with_tenants(names.iter().map(ToString::to_string))
    }

    fn some(admitted: u64) -> Usage {
        Usage { admitted, ..Usage::default() }
    }

    /// Slow reference model: all booked usage by the tenant's name, with its minute.
    #[derive(Default)]
    struct Model {
        pieces: Vec<(String, u64, Usage)>,
        latest: u64,
    }

    impl Model {
        fn record(&mut self, name: &str, usage: Usage, minute: u64) {
            self.latest = self.latest.max(minute);
            self.pieces.push((name.to_owned(), self.latest, usage));
        }

        fn sum(&self, name: &str, from: u64, to: u64) -> UsageSum {
            let mut sum = UsageSum::default();
            let mine = self.pieces.iter().filter(|(owner, minute, _)| {
                owner == name && (from..=to).contains(minute) && minute + METERED_MINUTES_MAX > self.latest
            });
            mine.for_each(|(_, _, usage)| sum.add(*usage));
            sum
        }
    }

    #[test]
    fn sums_are_those_of_the_pieces_through_reloads_and_pauses() {
        const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
        for seed in 1..=20 {
            let mut random = Random::new(seed);
            let (mut model, mut present) = (Model::default(), quotas(&NAMES));
            let mut meter = Meter::new(&present);
            let mut minute = 0;
            for _ in 0..600 {
                minute += [0, 0, 1, 1, 2, 30, 400][random.index(7)];
                let tenant = TenantId(random.index(present.len()) as u16);
                let amounts: [u64; 4] = std::array::from_fn(|_| random.below(3) * random.below(1 << 50));
                let [admitted, throttled, shed, cached] = amounts;
                let usage = Usage { admitted, throttled, shed, cached };
                let told = minute - random.below(3).min(minute);
                meter.record(tenant, usage, told);
                if !usage.is_empty() {
                    model.record(&present.tenant(tenant).name, usage, told);
                }
                if random.below(40) == 0 {
                    let stay: Vec<&str> = NAMES.iter().copied().filter(|_| random.below(4) > 0).collect();
                    let after = quotas(if stay.is_empty() { &NAMES } else { &stay });
                    meter.carry_over(&present, &after);
                    model
                        .pieces
                        .retain(|(name, _, _)| present.find(name).is_some() && after.find(name).is_some());
                    present = after;
                }
                // The meter drops old minutes when a new one is reported; the model drops them at once.
                let now = model.latest;
                for (tenant, terms) in present.tenants() {
                    let figures = meter.figures(tenant, now);
                    let before = |minutes: u64| now.saturating_sub(minutes);
                    let sum = |from, to| model.sum(&terms.name, from, to);
                    assert_eq!(figures.this_minute, sum(now, now), "seed {seed}");
                    assert_eq!(
                        figures.last_minute,
                        if now == 0 { UsageSum::default() } else { sum(now - 1, now - 1) }
                    );
                    assert_eq!(figures.last_hour, sum(before(59), now), "seed {seed}");
                    assert_eq!(figures.last_day, sum(before(1_439), now), "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn idle_tenants_and_old_minutes_take_no_memory() {
        let mut meter = Meter::new(&quotas(&["a", "b"]));
        (0..5_000).for_each(|minute| meter.record(TenantId(0), some(1), minute));
        assert_eq!((meter.entries, meter.kept_from(4_999)), (1_440, 3_560));
        assert!(meter.tenants[1].is_none());
        meter.record(TenantId(1), some(1), 10_000);
        assert!(meter.tenants[0].is_none());
        assert_eq!((meter.entries, meter.active.len()), (1, 1));
        meter.record(TenantId(1), Usage::default(), 10_001);
        assert_eq!(meter.latest, 10_000);
    }

    #[test]
    fn with_too_much_activity_the_oldest_minutes_go_of_all_tenants() {
        let mut meter = Meter { entries_max: 300, ..Meter::new(&quotas(&["a", "b", "c"])) };
        for minute in 0..1_000 {
            for tenant in 0..3 {
                meter.record(TenantId(tenant), some(1), minute);
            }
            assert!(meter.entries <= 300 + 3);
        }
        let from = meter.kept_from(999);
        assert!((899..=900).contains(&from), "{from}");
        for tenant in 0..3 {
            assert_eq!(meter.figures(TenantId(tenant), 999).last_hour.asked().0, 60);
            assert_eq!(meter.series_of(TenantId(tenant), 0, 999).next(), Some((from, some(1))));
        }
    }

    #[test]
    fn reports_are_understood_in_the_version_they_speak_of() {
        let [first, second, third] = [&["a", "b", "c"][..], &["0", "a", "c"], &["c", "d"]].map(quotas);
        let mut versions = Versions::new(Arc::new(first), None, 0);
        let mut meter = Meter::new(versions.current());
        let mut reload = |meter: &mut Meter, quotas: Quotas| {
            let before = Arc::clone(versions.current());
            let after = versions.take(quotas, QuotaSource::Post, 0);
            meter.carry_over(&before, &after);
            versions.clone()
        };
        let versions = reload(&mut meter, second);
        let ids = |report: &[u64]| -> Vec<(TenantId, Usage)> {
            (0..).map(TenantId).zip(report.iter().map(|amount| some(*amount))).collect()
        };
        meter.take_report(&versions, 0, &ids(&[1, 10, 100, 1_000]), 0);
        meter.take_report(&versions, 1, &ids(&[10_000, 100_000]), 0);
        let asked = |meter: &Meter, versions: &Versions| -> BTreeMap<String, u128> {
            let tenants = versions.current().tenants();
            tenants
                .map(|(id, terms)| (terms.name.clone(), meter.figures(id, 0).this_minute.asked().0))
                .collect()
        };
        let wanted = |pairs: &[(&str, u128)]| -> BTreeMap<String, u128> {
            pairs.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
        };
        // In the earlier version the first id belonged to another tenant. Usage of the removed tenant, and of
        // an id that never existed, is dropped.
        assert_eq!(asked(&meter, &versions), wanted(&[("0", 10_000), ("a", 100_001), ("c", 100)]));
        let versions = reload(&mut meter, third);
        meter.take_report(&versions, 0, &ids(&[1, 10, 7]), 0);
        assert_eq!(asked(&meter, &versions), wanted(&[("c", 107), ("d", 0)]));
        assert_eq!(meter.late_reports(), 0);
        let versions = (0..7).map(|_| reload(&mut meter, quotas(&["c"]))).last().expect("one of seven");
        meter.take_report(&versions, 0, &ids(&[1, 10, 5]), 0);
        assert_eq!(meter.late_reports(), 1);
        assert_eq!(asked(&meter, &versions), wanted(&[("c", 107)]));
    }
}
