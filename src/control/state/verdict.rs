//! The verdict of `/state.json`: one word for the state of weir, and the reasons for it.

use serde::Serialize;

use super::stores::StoreShown;
use super::tenants::{NEAR, TenantShown};
use super::{Grade, Number, Requests};

/// Maximum number of reasons in the verdict. If there are more, the last entry says how many others there
/// are.
const REASONS_MAX: usize = 6;
/// The fraction of all requests (1 %) from which refusals for one reason count as trouble.
const MANY: f64 = 0.01;

/// The state of weir in one word, with the reasons: the part `verdict` of `/state.json`.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Verdict {
    /// The word for the state; None while it is unknown, because there are no rates yet and nothing else is wrong.
    pub grade: Option<Grade>,
    /// The reasons for the state, the worst first.
    pub reasons: Vec<Reason>,
}

/// A reason for the state of weir that the verdict names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Reason {
    grade: Grade,
    pub text: String,
}

impl Verdict {
    pub fn of(
        draining: bool,
        requests: &Requests,
        stores: &[StoreShown<'_>],
        tenants: &[TenantShown<'_>],
    ) -> Self {
        let mut reasons = Vec::new();
        let mut say = |grade, text| reasons.push(Reason { grade, text });
        for store in stores.iter().filter(|store| store.grade > Grade::Well) {
            say(store.grade, format!("store {}: {}", store.name, store.state));
        }
        for (word, rate, part) in requests.refusals() {
            if part > 0.0 {
                let grade = if part >= MANY { Grade::Trouble } else { Grade::Strained };
                say(grade, format!("{rate:.0} requests a second refused: {word}"));
            }
        }
        let mut is_explained = false;
        for tenant in tenants.iter().filter(|tenant| tenant.throttled.0 > 0.0) {
            say(Grade::Strained, throttled(tenant));
            is_explained = true;
        }
        // The static limiter meters no tenants.
        let rate = requests.per_second.map_or(0.0, |rates| rates.refused_throttled.0);
        if rate > 0.0 && !is_explained {
            say(Grade::Strained, format!("{rate:.0} requests a second refused: throttled"));
        }
        if draining {
            say(Grade::Strained, "draining: no new clients".to_owned());
        }
        reasons.sort_by_key(|reason: &Reason| std::cmp::Reverse(reason.grade));
        let are_rates_known = requests.per_second.is_some();
        let grade = reasons.first().map(|reason| reason.grade).or(are_rates_known.then_some(Grade::Well));
        if reasons.len() > REASONS_MAX {
            let more = reasons.len() - (REASONS_MAX - 1);
            reasons.truncate(REASONS_MAX - 1);
            reasons.push(Reason { grade: Grade::Well, text: format!("and {more} more") });
        }
        Self { grade, reasons }
    }
}

/// Returns the reason that a tenant is throttled, as text. Its own quota is named as the limit only if the tenant
/// has used most of it: the limit may be another one (of all tenants, of a user, of writes of a hot key, or of this
/// host in a fleet), or the tenant may still owe for a large request.
fn throttled(tenant: &TenantShown<'_>) -> String {
    let rate = format!("tenant {}: {:.1} RU/s", tenant.name, tenant.throttled.0);
    match (tenant.ru_per_second, tenant.share_of_quota) {
        (Some(quota), Some(Number(share))) if share >= NEAR => {
            format!("{rate} beyond its quota of {quota}")
        }
        (Some(quota), Some(Number(share))) => {
            let percent = share * 100.0;
            format!("{rate} throttled at {percent:.0} % of its quota of {quota}, by another limit or a debt")
        }
        _ => format!("{rate} throttled, by a limit of all tenants, a user or a hot key"),
    }
}

impl Requests {
    /// Returns the rates of refusals because of unavailable stores, overload and deadlines: the reason,
    /// refused requests per second, and their fraction of all requests; empty if rates are unknown.
    fn refusals(&self) -> impl Iterator<Item = (&'static str, f64, f64)> {
        self.per_second.into_iter().flat_map(|rates| {
            let all = rates.decoded.0.max(1.0);
            let refusals = [
                ("unavailable", rates.refused_unavailable.0),
                ("overloaded", rates.refused_overloaded.0),
                ("deadline", rates.refused_deadline.0),
            ];
            refusals.map(|(word, rate)| (word, rate, rate / all))
        })
    }
}
