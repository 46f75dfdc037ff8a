//! Selection of the tenants that have metrics of their own, and their counters.
//!
//! Each label value is a time series in the system that scrapes it, so the number of tenants with metrics is
//! bounded, and all other tenants are reported as one. A tenant keeps its metrics until a tenant without any
//! has more than twice its demand. The newcomer's counters start at zero, and its earlier usage stays in the
//! series of all others, so that every series only grows while it exists.

use crate::config::Quotas;
use crate::values::TenantId;
use crate::values::limits::TENANT_SERIES_MAX;
use crate::values::usage::{Usage, UsageSum};

/// The factor by which a tenant's past demand is reduced per minute, so that it counts for about an hour.
const KEPT_PER_MINUTE: f64 = 59.0 / 60.0;
/// Factor between the demands of two tenants: one without metrics of its own replaces one with such metrics
/// only if its demand is more than this many times the other's.
const LEAD: f64 = 2.0;

/// The value of the field `place` of a tenant which means that the tenant has no metrics of its own.
const NONE: u8 = u8::MAX;

/// Counters since the start: one series for each tenant with high demand, and one for all others.
#[derive(Clone, Debug, Default)]
pub struct TenantSeries {
    places: Vec<Place>,
    /// For each tenant, by tenant id: its recent demand and, if it has metrics of its own, its index in
    /// `places`.
    standing: Vec<Standing>,
    others: UsageSum,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    tenant: TenantId,
    sum: UsageSum,
}

#[derive(Clone, Copy, Debug)]
struct Standing {
    place: u8,
    /// The tenant's recent demand: the sum of its requests' prices, which fades by a sixtieth each minute, in
    /// millionths of a request unit.
    asked: f64,
}

impl Standing {
    const NEW: Self = Self { place: NONE, asked: 0.0 };
}

impl TenantSeries {
    /// Creates counters for the tenants of these quotas. The first tenants get metrics of their own before
    /// any has sent a request.
    pub fn new(quotas: &Quotas) -> Self {
        let mut series = Self { standing: vec![Standing::NEW; quotas.len()], ..Self::default() };
        series.fill();
        series
    }

    /// Adds usage of a tenant to its own counters if it has metrics of its own, or else to those of all
    /// others.
    pub fn record(&mut self, tenant: TenantId, usage: Usage) {
        let Some(standing) = self.standing.get_mut(usize::from(tenant.0)) else { return };
        standing.asked += UsageSum::from(usage).asked().0 as f64;
        match self.places.get_mut(usize::from(standing.place)) {
            Some(place) => place.sum.add(usage),
            None => self.others.add(usage),
        }
    }

    /// Lets the recent demands of all tenants fade as in this many minutes, then decides anew which tenants
    /// have metrics of their own: a tenant without them takes the place of the tenant with the least demand
    /// among those with metrics, if its own demand is more than twice as high (`LEAD`).
    pub fn pass_minutes(&mut self, minutes: u64) {
        let kept = KEPT_PER_MINUTE.powf(minutes as f64);
        self.standing.iter_mut().for_each(|standing| standing.asked *= kept);
        let asked = |tenant: TenantId| self.standing[usize::from(tenant.0)].asked;
        let most_first = |one: &TenantId, other: &TenantId| asked(*other).total_cmp(&asked(*one));
        let mut outside: Vec<TenantId> =
            self.ids().filter(|tenant| self.place_of(*tenant) == NONE && asked(*tenant) >= 1.0).collect();
        if outside.len() > TENANT_SERIES_MAX {
            outside.select_nth_unstable_by(TENANT_SERIES_MAX, most_first);
            outside.truncate(TENANT_SERIES_MAX);
        }
        outside.sort_by(most_first);
        let mut inside: Vec<TenantId> = self.places.iter().map(|place| place.tenant).collect();
        inside.sort_by(|one, other| most_first(other, one));
        let changes: Vec<(TenantId, TenantId)> = outside
            .into_iter()
            .zip(inside)
            .take_while(|(comes, goes)| asked(*comes) > LEAD * asked(*goes))
            .collect();
        for (comes, goes) in changes {
            let place = std::mem::replace(&mut self.standing[usize::from(goes.0)].place, NONE);
            self.standing[usize::from(comes.0)].place = place;
            self.places[usize::from(place)] = Place { tenant: comes, sum: UsageSum::default() };
        }
        self.check();
    }

    /// Puts other quotas in force: `after` in place of `before`. Tenants keep their counters by name. Where a
    /// tenant with metrics of its own is gone, another tenant gets such metrics.
    pub fn carry_over(&mut self, before: &Quotas, after: &Quotas) {
        let old = std::mem::take(self);
        self.others = old.others;
        self.standing = vec![Standing::NEW; after.len()];
        for (tenant, terms) in after.tenants() {
            let Some(known) = before.find(&terms.name) else { continue };
            let Standing { place, asked } = old.standing[usize::from(known.0)];
            self.standing[usize::from(tenant.0)].asked = asked;
            if let Some(place) = old.places.get(usize::from(place)) {
                self.standing[usize::from(tenant.0)].place = self.places.len() as u8;
                self.places.push(Place { tenant, ..*place });
            }
        }
        self.fill();
    }

    /// Returns the tenants that have metrics of their own, with their counters, in the order of their ids.
    pub fn named(&self) -> Vec<(TenantId, UsageSum)> {
        let mut named: Vec<_> = self.places.iter().map(|place| (place.tenant, place.sum)).collect();
        named.sort_by_key(|(tenant, _)| *tenant);
        named
    }

    /// Returns the sum of the usage of all tenants without metrics of their own. Usage of a tenant from
    /// before it got metrics of its own stays in this sum.
    pub fn others(&self) -> UsageSum {
        self.others
    }

    /// Gives metrics of their own to tenants that have none, as long as there are fewer than
    /// `TENANT_SERIES_MAX` tenants with metrics of their own.
    fn fill(&mut self) {
        let free = TENANT_SERIES_MAX - self.places.len();
        let without: Vec<TenantId> =
            self.ids().filter(|tenant| self.place_of(*tenant) == NONE).take(free).collect();
        for tenant in without {
            self.standing[usize::from(tenant.0)].place = self.places.len() as u8;
            self.places.push(Place { tenant, sum: UsageSum::default() });
        }
        self.check();
    }

    fn ids(&self) -> impl Iterator<Item = TenantId> + use<> {
        (0..self.standing.len() as u16).map(TenantId)
    }

    fn place_of(&self, tenant: TenantId) -> u8 {
        self.standing[usize::from(tenant.0)].place
    }

    fn check(&self) {
        debug_assert!(self.places.len() == self.standing.len().min(TENANT_SERIES_MAX));
        debug_assert!((0..).zip(&self.places).all(|(index, place)| self.place_of(place.tenant) == index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Random;
    use crate::values::usage::{Amount, UsageKind};

    fn quotas(names: impl Iterator<Item = usize>) -> Quotas {
        Quotas::with_tenants(names.map(|n| format!("t{n:03}")))
    }

    fn some(admitted: u64) -> Usage {
        Usage { admitted, ..Usage::default() }
    }

    fn counted(series: &TenantSeries, tenant: u16) -> Option<u128> {
        let named = series.named();
        named.iter().find(|(id, _)| *id == TenantId(tenant)).map(|(_, sum)| sum.of(UsageKind::Admitted).0)
    }

    #[test]
    fn few_tenants_all_have_places_from_the_start() {
        let mut series = TenantSeries::new(&quotas(0..3));
        assert_eq!(series.named().len(), 3);
        series.record(TenantId(1), some(7));
        series.record(TenantId(u16::MAX), some(7));
        assert_eq!((counted(&series, 0), counted(&series, 1)), (Some(0), Some(7)));
        assert_eq!(series.others(), UsageSum::default());
    }

    #[test]
    fn whoever_asks_for_more_gets_a_place_and_starts_at_nothing() {
        let mut series = TenantSeries::new(&quotas(0..TENANT_SERIES_MAX + 2));
        for tenant in 0..TENANT_SERIES_MAX as u16 {
            series.record(TenantId(tenant), some(1_000));
        }
        let (late, last) = (TENANT_SERIES_MAX as u16, TENANT_SERIES_MAX as u16 + 1);
        series.record(TenantId(late), some(1_500));
        series.record(TenantId(last), some(5_000));
        series.pass_minutes(1);
        // A tenant with 1.5 times the traffic of another does not replace it yet.
        assert_eq!((counted(&series, late), counted(&series, last)), (None, Some(0)));
        assert_eq!(series.named().len(), TENANT_SERIES_MAX);
        assert_eq!(series.others().asked(), Amount(6_500));
        series.record(TenantId(last), some(10));
        assert_eq!((counted(&series, last), series.others().asked()), (Some(10), Amount(6_500)));
    }

    #[test]
    fn every_series_only_grows_while_it_is_there() {
        let mut random = Random::new(1);
        let (mut all, mut gone, mut changes) = (0, 0, 0);
        let mut series = TenantSeries::new(&quotas(0..300));
        let mut others_before = Amount(0);
        for _ in 0..200 {
            for _ in 0..random.below(400) {
                let magnitude = random.below(40);
                let usage = some(random.below(1 << 40) >> magnitude);
                all += u128::from(usage.admitted);
                series.record(TenantId(random.below(300) as u16), usage);
            }
            let told = series.named();
            series.pass_minutes(random.between(1, 3));
            for (tenant, before) in told {
                // A tenant that keeps its place keeps its counters; one that lost its place may have got a
                // new one, where it counts from 0.
                match counted(&series, tenant.0) {
                    Some(sum) if sum == before.asked().0 => {}
                    other => {
                        assert!(matches!(other, None | Some(0)), "{tenant:?}: {before:?}, then {other:?}");
                        gone += before.asked().0;
                        changes += 1;
                    }
                }
            }
            let named: u128 = series.named().iter().map(|(_, sum)| sum.asked().0).sum();
            let others = series.others().asked();
            assert!(others >= others_before);
            assert_eq!(named + others.0 + gone, all, "everything is counted in one place");
            others_before = others;
        }
        assert!(changes > 100, "{changes} places changed hands");
    }

    #[test]
    fn other_quotas_keep_what_is_counted_by_name() {
        let before = quotas(0..5);
        let after = quotas(3..9);
        let mut series = TenantSeries::new(&before);
        (0..5).for_each(|tenant| series.record(TenantId(tenant), some(100 + u64::from(tenant))));
        series.carry_over(&before, &after);
        assert_eq!(counted(&series, 0), Some(103));
        assert_eq!(counted(&series, 1), Some(104));
        assert_eq!((counted(&series, 2), series.named().len()), (Some(0), 6));
    }
}
