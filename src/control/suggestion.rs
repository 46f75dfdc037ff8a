//! Suggestions for tenants whose quota is too small: when to make one, and of which size.
//!
//! A minute counts as near the quota if the tenant *consumed* 80 % of it: the prices of requests that were
//! admitted or answered from the cache, which the quota pays for too. Refused requests do not count here. A
//! tenant that is held back by its own quota consumes nearly all of it and so counts anyway; a tenant that is
//! held back earlier, by the limits of its users or by the global quota, would gain nothing from a larger
//! quota of its own. Refused requests count when the larger quota is chosen, because they show how much is
//! missing.
//!
//! All minutes are compared with the current quota, so after an increase the suggestion disappears at once.

use super::metering::{HOUR, Meter};
use crate::config::quotas::Limit;
use crate::values::limits::RU_PER_SECOND_MAX;
use crate::values::usage::{UsageKind, UsageSum};
use crate::values::{TenantId, UNIT};

/// The percentage of its quota that a tenant must have consumed in a minute for that minute to count as near
/// the quota.
const NEAR_PERCENT: u128 = 80;
/// The least number of the last 60 minutes in which a tenant must have been near its quota for a suggestion
/// of a larger one.
const MINUTES_NEAR_MIN: usize = 45;
/// The number of the last 60 minutes in which the tenant would not be near the suggested quota: all but a
/// tenth.
const MINUTES_EASED: usize = 54;

/// A suggestion of a larger quota for a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// The rate of the suggested quota, in request units per second.
    pub ru_per_second: u64,
    /// The number of minutes, of the last 60, in which the tenant consumed at least 80 % of its quota.
    pub minutes_near: usize,
}

/// Returns the suggestion of a larger quota for a tenant if `minute` is the current one (counted from the
/// start of the process), from the tenant's usage in the 60 complete minutes before. `limit` is the tenant's
/// present quota. None without a quota, if the quota suffices or is the largest possible, or if the process
/// is younger than an hour.
pub fn suggestion(meter: &Meter, tenant: TenantId, limit: Option<Limit>, minute: u64) -> Option<Suggestion> {
    let quota = limit?.ru_per_second;
    let (first, last) = (minute.checked_sub(HOUR)?, minute - 1);
    let minutes: Vec<UsageSum> =
        meter.series_of(tenant, first, last).map(|(_, usage)| UsageSum::from(usage)).collect();
    let allowed = u128::from(quota) * 60 * u128::from(UNIT);
    let near = |usage: &&UsageSum| usage.consumed().0 * 100 >= allowed * NEAR_PERCENT;
    let minutes_near = minutes.iter().filter(near).count();
    if minutes_near < MINUTES_NEAR_MIN {
        return None;
    }
    let larger = larger_quota(quota, minutes);
    (larger > quota).then_some(Suggestion { ru_per_second: larger, minutes_near })
}

/// Returns a quota, in request units per second, that is large enough: in nine minutes of ten, demand
/// (without requests refused because of overload) would have been at most 80 % of it. It has at most two
/// digits before its zeros, as people choose quotas. It is at least a quarter above the current `quota`, so
/// that the change is worthwhile, and at most twice as much, because refused clients retry and so inflate
/// their demand. `minutes` is the usage in each of the last 60 minutes in which there was any.
fn larger_quota(quota: u64, minutes: Vec<UsageSum>) -> u64 {
    let mut asked: Vec<u128> =
        minutes.into_iter().map(|usage| usage.asked().0 - usage.of(UsageKind::Shed).0).collect();
    asked.resize(HOUR as usize, 0);
    asked.sort_unstable();
    let per_second = asked[MINUTES_EASED - 1] / 60 * 100 / NEAR_PERCENT / u128::from(UNIT);
    let least = quota + quota.div_ceil(4);
    let most = least.max(2 * quota);
    let wanted = u64::try_from(per_second).unwrap_or(u64::MAX).clamp(least, most);
    let rounded = wanted.next_multiple_of(unit_of(wanted));
    // Rounding down takes less than a tenth off, so a quarter more than the quota is left.
    let suggested = if rounded > most { most - most % unit_of(most) } else { rounded };
    suggested.min(RU_PER_SECOND_MAX)
}

/// Returns the step between numbers of the size of `number` that have at most two digits before their zeros: 100
/// for 1,234.
fn unit_of(number: u64) -> u64 {
    let mut unit = 1;
    while number / unit >= 100 {
        unit *= 10;
    }
    unit
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Quotas;
    use crate::values::Usage;

    const TENANT: TenantId = TenantId(0);
    const NOW: u64 = 100;

    fn limit(ru_per_second: u64) -> Limit {
        Limit { ru_per_second, burst: Duration::from_secs(1) }
    }

    /// The suggestion for a quota of 1,000, given the last minutes, the oldest first. Each minute is in
    /// thousandths of the quota: admitted, throttled, shed, cached. None if none is made.
    fn suggested(minutes: impl Iterator<Item = [u64; 4]>) -> Option<Suggestion> {
        let mut meter = Meter::new(&Quotas::trusting());
        let minutes: Vec<[u64; 4]> = minutes.collect();
        for (at, parts) in (NOW - minutes.len() as u64..NOW).zip(minutes) {
            let [admitted, throttled, shed, cached] = parts.map(|part| part * 60 * UNIT);
            meter.record(TENANT, Usage { admitted, throttled, shed, cached }, at);
        }
        suggestion(&meter, TENANT, Some(limit(1_000)), NOW)
    }

    fn times(count: usize, minute: [u64; 4]) -> impl Iterator<Item = [u64; 4]> {
        std::iter::repeat_n(minute, count)
    }

    #[test]
    fn forty_five_minutes_at_eighty_percent() {
        let near = [800, 0, 0, 0];
        let idle = || times(30, [1, 0, 0, 0]);
        assert_eq!(suggested(times(44, near)), None);
        assert_eq!(suggested(idle().chain(times(44, near))), None);
        let some = Some(Suggestion { ru_per_second: 1_300, minutes_near: 45 });
        assert_eq!(suggested(times(45, near)), some);
        // The order of the minutes has no effect, as long as none is older than an hour.
        assert_eq!(suggested(times(45, near).chain(times(15, [0, 0, 0, 0]))), some);
        assert_eq!(suggested(times(45, near).chain(times(16, [1, 0, 0, 0]))), None);
        assert_eq!(suggested(times(60, [799, 0, 0, 0])), None);
    }

    #[test]
    fn the_cache_counts_and_what_was_refused_does_not() {
        assert_eq!(suggested(times(60, [400, 0, 0, 400])).map(|found| found.minutes_near), Some(60));
        // The tenant stays at 79 % of its quota, whatever it asks for, so another limit holds it back.
        assert_eq!(suggested(times(60, [790, 5_000, 5_000, 0])), None);
        // The quota holds the tenant back.
        let throttled = suggested(times(60, [990, 300, 0, 0])).expect("it is at its quota");
        assert_eq!(throttled.ru_per_second, 1_700, "1,290 are 80 % of 1,612");
    }

    #[test]
    fn rounding_leads_to_no_more_than_twice_the_quota() {
        for quota in (1..2_000).chain([10_100, 50_049, 999_999, 1_234_567]) {
            for demand in [quota, quota + quota / 3, 2 * quota, 100 * quota] {
                let mut meter = Meter::new(&Quotas::trusting());
                for at in NOW - HOUR..NOW {
                    let admitted = quota * 60 * UNIT;
                    let throttled = (demand - quota) * 60 * UNIT;
                    meter.record(TENANT, Usage { admitted, throttled, ..Usage::default() }, at);
                }
                let found = suggestion(&meter, TENANT, Some(limit(quota)), NOW).expect("it is at its quota");
                let times = quota + quota.div_ceil(4)..=(2 * quota).max(2);
                assert!(times.contains(&found.ru_per_second), "{quota}: {}", found.ru_per_second);
            }
        }
    }

    #[test]
    fn a_larger_quota_is_a_quarter_more_to_twice_as_much() {
        let for_minutes = |minute| suggested(times(60, minute)).map(|found| found.ru_per_second);
        assert_eq!(for_minutes([800, 0, 0, 0]), Some(1_300));
        assert_eq!(for_minutes([1_000, 0, 0, 0]), Some(1_300));
        assert_eq!(for_minutes([1_000, 200, 9_000, 0]), Some(1_500));
        assert_eq!(for_minutes([1_000, 100_000, 0, 0]), Some(2_000));
        // Six minutes of sixty do not determine a quota.
        let peaks = times(54, [1_000, 0, 0, 0]).chain(times(6, [1_000, 9_000, 0, 0]));
        assert_eq!(suggested(peaks).map(|found| found.ru_per_second), Some(1_300));
    }

    #[test]
    fn without_a_quota_or_an_hour_there_is_nothing_to_suggest() {
        let mut meter = Meter::new(&Quotas::trusting());
        (0..59).for_each(|minute| {
            meter.record(TENANT, Usage { admitted: u64::MAX, ..Usage::default() }, minute);
        });
        assert_eq!(suggestion(&meter, TENANT, Some(limit(1)), 59), None);
        assert_eq!(suggestion(&meter, TENANT, Some(limit(1)), 60).map(|found| found.ru_per_second), Some(2));
        assert_eq!(suggestion(&meter, TENANT, None, 60), None);
        assert_eq!(suggestion(&meter, TENANT, Some(limit(RU_PER_SECOND_MAX)), 60), None);
    }

    #[test]
    fn quotas_are_rounded_as_people_choose_them() {
        let cases = [(1, 1), (99, 99), (100, 100), (101, 110), (1_250, 1_300), (9_901, 10_000), (990, 990)];
        for (number, rounded) in cases {
            assert_eq!(u64::next_multiple_of(number, unit_of(number)), rounded);
        }
    }
}
