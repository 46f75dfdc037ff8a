//! The tenants in `/state.json`: those that were refused most come first, then those that use most.

use std::cmp::Reverse;

use serde::Serialize;

use super::{Grade, Number};
use crate::control::recent::Since;
use crate::control::suggestion::suggestion;
use crate::control::{Meter, View};
use crate::values::TenantId;
use crate::values::limits::STATE_TENANTS_MAX;
use crate::values::usage::{Amount, UsageKind, UsageSum};

/// The part of its quota at which a tenant's state becomes "near its quota": 80 %. A tenant that is throttled from
/// there on is said to be beyond its quota.
pub(super) const NEAR: f64 = 0.8;

/// A tenant, with rates in request units per second.
#[derive(Clone, Debug, Serialize)]
pub(in crate::control) struct TenantShown<'a> {
    pub name: &'a str,
    pub grade: Grade,
    /// The tenant's state in one of these words, the first that holds: "shed" (some of its requests are
    /// refused because of overload or an unavailable store), "throttled" (some are refused because a quota is
    /// used up, or because they write a hot key more often than permitted), "near its quota" (80 % or more
    /// consumed), "ok" (requests are answered) or "idle".
    pub state: &'static str,
    pub ru_per_second: Option<u64>,
    /// The part of its quota that the tenant consumed in the last second or so; null without a quota, or if
    /// unknown.
    pub share_of_quota: Option<Number>,
    admitted: Number,
    cached: Number,
    /// Request units per second of the tenant's requests that were refused because a quota was used up, or because
    /// they wrote a hot key more often than permitted.
    pub throttled: Number,
    /// Request units per second of the tenant's requests that were refused because of overload or an
    /// unavailable store.
    pub shed: Number,
    /// The tenant's request units over the current minute so far and the one before it together.
    minute: Minute,
    suggested_ru_per_second: Option<u64>,
}

/// Amounts in request units over the current minute so far and the one before it, by outcome of the requests.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Minute {
    admitted: Number,
    cached: Number,
    throttled: Number,
    shed: Number,
}

impl Minute {
    fn of(sum: &UsageSum) -> Self {
        let [admitted, throttled, shed, cached] = UsageKind::ALL.map(|kind| Number(sum.of(kind).as_f64()));
        Self { admitted, cached, throttled, shed }
    }
}

/// The sort key of tenants: the amounts that were refused in the last second, demanded in the last second,
/// and demanded in the current and the previous minute.
type Rank = (u128, u128, u128);

/// Returns the tenants as `/state.json` shows them, at most `STATE_TENANTS_MAX`, and the number of tenants
/// left out. Those that were refused most come first; those that sent no requests for a minute come last.
/// `since` has the usage in the last second, if it is known.
pub(in crate::control) fn shown<'a>(view: View<'a>, since: Option<&Since>) -> (Vec<TenantShown<'a>>, usize) {
    let quotas = view.versions.current();
    let minute = Meter::minute_of(view.now.monotonic);
    let mut lately = since.map_or(&[][..], |since| &since.tenants).iter().peekable();
    let mut ranked: Vec<(Rank, TenantId, UsageSum)> = quotas
        .tenants()
        .map(|(id, _)| {
            let now = lately.next_if(|(known, _)| *known == id).map(|(_, sum)| *sum).unwrap_or_default();
            let of_late = view.meter.sum(id, minute.saturating_sub(1), minute).asked().0;
            ((refused(&now).0, now.asked().0, of_late), id, now)
        })
        .collect();
    let first = |(rank, id, _): &(Rank, TenantId, UsageSum)| (Reverse(*rank), *id);
    let left_out = ranked.len().saturating_sub(STATE_TENANTS_MAX);
    if left_out > 0 {
        ranked.select_nth_unstable_by_key(STATE_TENANTS_MAX, first);
        ranked.truncate(STATE_TENANTS_MAX);
    }
    ranked.sort_by_key(first);
    let shown = ranked.iter().map(|(_, id, now)| TenantShown::of(view, *id, (now, since), minute));
    (shown.collect(), left_out)
}

fn refused(sum: &UsageSum) -> Amount {
    Amount(sum.of(UsageKind::Throttled).0 + sum.of(UsageKind::Shed).0)
}

impl<'a> TenantShown<'a> {
    /// Returns the tenant's figures that the page of the last ten minutes keeps: request units per second
    /// that were used, and that were refused.
    pub fn figures(&self) -> [f32; 2] {
        [(self.admitted.0 + self.cached.0) as f32, (self.throttled.0 + self.shed.0) as f32]
    }

    fn of(view: View<'a>, id: TenantId, (sum, since): (&UsageSum, Option<&Since>), minute: u64) -> Self {
        let tenant = view.versions.current().tenant(id);
        let quota = tenant.limit.map(|limit| limit.ru_per_second);
        let per_second = |amount: Amount| since.map_or(0.0, |since| since.per_second(amount.as_f64()));
        let [admitted, throttled, shed, cached] = UsageKind::ALL.map(|kind| per_second(sum.of(kind)));
        let share = quota.map(|quota| per_second(sum.consumed()) / quota.max(1) as f64);
        let (grade, state) = match share {
            _ if shed > 0.0 => (Grade::Trouble, "shed"),
            _ if throttled > 0.0 => (Grade::Strained, "throttled"),
            Some(share) if share >= NEAR => (Grade::Well, "near its quota"),
            _ if admitted + cached > 0.0 => (Grade::Well, "ok"),
            _ => (Grade::Well, "idle"),
        };
        let suggested = suggestion(view.meter, id, tenant.limit, minute);
        Self {
            name: &tenant.name,
            grade,
            state,
            ru_per_second: quota,
            share_of_quota: share.filter(|_| since.is_some()).map(Number),
            admitted: Number(admitted),
            cached: Number(cached),
            throttled: Number(throttled),
            shed: Number(shed),
            minute: Minute::of(&view.meter.sum(id, minute.saturating_sub(1), minute)),
            suggested_ru_per_second: suggested.map(|suggestion| suggestion.ru_per_second),
        }
    }
}
