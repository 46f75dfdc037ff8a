//! Requests that are admitted and not settled (charged at their real cost). Their prices are estimates; any cost beyond
//! the estimate is owed once their replies come.
//!
//! A request is admitted beside unsettled ones only if its tenant could pay for all of them even if they turn
//! out as expensive as such requests sometimes are. Otherwise a tenant could send expensive requests while
//! they still count as cheap, and be served many times its quota before its debt is known. If no request is
//! unsettled, a request passes without that check. A class of commands whose cost is not known yet starts
//! slowly: each settled request lets two more in.

use std::time::Duration;

use super::{Accounts, Charge, Payer, Scope};
use crate::policy::estimate::UnderWay;
use crate::policy::slice::Verdict;
use crate::protocol::command::Class;
use crate::values::{Price, TenantId, Timestamp};

/// The longest retry delay (1 s) named to a client whose request is refused because others of its tenant are
/// not charged at their real cost yet. By then most are charged, and may have cost less than they might have.
const RETRY_AT_LATEST: Duration = Duration::from_secs(1);

/// The decision whether a request may be admitted beside those of its tenant that are in flight on this core
/// and have not been charged at their real cost yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// The request may be admitted as far as those in flight are concerned: there are none, no cost of the
    /// tenant's requests has varied lately, the payer has no limit, or the buckets have enough for the
    /// request and for all of those, even if they turn out as expensive as such requests sometimes are.
    Covered,
    /// The request is not admitted, whatever the requests in flight turn out to cost: a bucket has less than
    /// its price.
    Lacking,
    /// The request is not admitted yet, because the cost of its class is not known well enough: one request of the
    /// class in flight must be charged at its real cost first.
    Unknown,
    /// The request is not admitted yet: a bucket has too little left if this request and those in flight turn
    /// out as expensive as such requests sometimes are.
    Risky {
        /// The scope (global, tenant or user) of the quota whose bucket has too little left; the first one
        /// found if there are several.
        scope: Scope,
        /// The time until the bucket has enough if no request in flight is charged at its real cost before,
        /// at most 1 s.
        retry_after: Duration,
    },
}

impl Accounts {
    /// Decides whether one more request of a class may be admitted beside the requests of the payer's tenant
    /// (for a user's quota, of the user) that are in flight on this core and not yet charged at their real
    /// cost. `cost` is the price that the caller would take for it; nothing is taken here.
    pub fn outlook(&mut self, payer: Payer, class: Class, cost: Price, now: Timestamp) -> Outlook {
        let rules = self.rules(now);
        let buckets = &*self.ledger.buckets();
        let tenant = &buckets.tenants[usize::from(payer.tenant().0)];
        let (expected, all) = (&tenant.expected, tenant.under_way);
        let is_let_in = expected.lets_in(class as usize, &all);
        if is_let_in && (expected.is_even() || all.is_empty()) {
            return Outlook::Covered;
        }
        let mut is_bounded = false;
        for scope in payer.scopes() {
            let Some((mut slice, capacity)) = buckets.known(scope, now) else { continue };
            is_bounded = true;
            let under_way = match scope {
                Scope::User(_) => UnderWay::of(class as usize, u32::from(slice.under_way())),
                Scope::Global | Scope::Tenant(_) => all,
            };
            if under_way.is_empty() {
                continue;
            }
            let worst = cost.signed().saturating_add(expected.risk(&under_way, class as usize));
            let (in_sight, enough) = slice.in_sight(capacity, now, rules);
            let missing = enough.map_or(worst, |enough| worst.min(enough)).saturating_sub(in_sight);
            if missing > 0 {
                // A bucket with a short burst overflows before a refused client tries again, if requests in
                // flight turn out cheap. So a request waits for that.
                let is_long = enough.is_none();
                if is_long && matches!(slice.check(cost, capacity, now, rules), Verdict::Refused(_)) {
                    return Outlook::Lacking;
                }
                let earliest = Duration::from_micros(capacity.micros_for(missing as u64));
                let retry_after = earliest.min(RETRY_AT_LATEST);
                return Outlook::Risky { scope, retry_after };
            }
        }
        if is_bounded && !is_let_in { Outlook::Unknown } else { Outlook::Covered }
    }

    /// Counts a request as admitted and in flight. Each is charged at its real cost once, by
    /// [`Accounts::settle`] or on a tab (sum of one payer's consecutive requests).
    #[inline]
    pub fn begin(&mut self, payer: Payer, class: Class) {
        if let Some(tab) = self.ledger.tab_of(payer) {
            return tab.begin(class);
        }
        let buckets = self.ledger.buckets();
        buckets.tenants[usize::from(payer.tenant().0)].under_way.begin(class as usize);
        buckets.count_of_user(payer, 1);
    }

    /// Counts a request as no longer in flight, since it is charged at its real cost, and lets a waiting request of its
    /// tenant be tried again. It may have been admitted under earlier quotas.
    pub(super) fn end(&mut self, charge: &Charge) {
        // A user's bucket is that of all versions of the quotas; a tenant's count begins anew after two.
        self.ledger.buckets().count_of_user(charge.payer, -1);
        let Some(tenant) = self.tenant_now(charge.payer) else { return };
        let age = charge.payer.versions_before(self.version);
        let known = &mut self.ledger.buckets().tenants[usize::from(tenant.0)];
        match age {
            0 => known.under_way.end(charge.class as usize),
            1 => known.under_way_before.end(charge.class as usize),
            _ => {}
        }
        known.settled = known.settled.saturating_add(1);
    }

    /// Returns the number of a tenant's requests that are admitted and have not been charged at their real
    /// cost yet, under the current and the previous quotas.
    pub fn under_way(&mut self, tenant: TenantId) -> u32 {
        let tenant = &self.ledger.buckets().tenants[usize::from(tenant.0)];
        tenant.under_way.total() + tenant.under_way_before.total()
    }

    /// Returns the number of a tenant's requests charged at their real cost since the last call.
    pub fn take_settled(&mut self, tenant: TenantId) -> u32 {
        std::mem::take(&mut self.ledger.buckets().tenants[usize::from(tenant.0)].settled)
    }
}
