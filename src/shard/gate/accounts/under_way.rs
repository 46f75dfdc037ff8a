//! Requests that are admitted and not settled: their prices are estimates, and what their replies add is owed when they come.
//!
//! A request joins those under way only if its tenant could pay for all of them, though they turn out as dear as such
//! requests do: else a tenant sends dear requests while they still count as cheap, and is served many times its quota before
//! its debt is known. It is let in without that if nothing is under way. A class of commands whose cost nobody knows yet
//! starts slowly: each request that is settled lets two more in.

use std::time::Duration;

use super::{Accounts, Charge, Payer, Scope};
use crate::policy::estimate::UnderWay;
use crate::protocol::command::Class;
use crate::values::{Price, TenantId, Timestamp};

/// A request that is refused because of those under way is told to come back after this long at most: they are settled by
/// then, and may have cost less.
const RETRY_AT_LATEST: Duration = Duration::from_secs(1);

/// Whether a request may join those of its tenant that are under way on this core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// It may.
    Covered,
    /// Too little is known yet of the cost of its class: first one of those under way is settled.
    Unknown,
    /// A bucket has too little for all of them at their worst.
    Risky {
        /// Whose bucket that is.
        scope: Scope,
        /// When the bucket has enough, if nothing is settled before.
        retry_after: Duration,
    },
}

impl Accounts {
    /// Whether one more request of a class may join those under way, where `cost` is to be taken for it.
    pub fn outlook(&mut self, payer: Payer, class: Class, cost: Price, now: Timestamp) -> Outlook {
        let rules = self.rules(now);
        let buckets = &*self.ledger.buckets();
        let tenant = &buckets.tenants[usize::from(payer.tenant().0)];
        let (expected, all) = (&tenant.expected, tenant.under_way);
        if expected.lets_in(class as usize, &all) && (expected.is_even() || all.is_empty()) {
            return Outlook::Covered;
        }
        let mut is_bounded = false;
        for scope in payer.scopes() {
            let Some((slice, capacity)) = buckets.known(scope, now) else { continue };
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
                let earliest = Duration::from_micros(capacity.micros_for(missing as u64));
                let retry_after = earliest.min(RETRY_AT_LATEST);
                return Outlook::Risky { scope, retry_after };
            }
        }
        if is_bounded && !expected.lets_in(class as usize, &all) {
            Outlook::Unknown
        } else {
            Outlook::Covered
        }
    }

    /// Counts a request that is admitted. Each is settled once, by [`Accounts::settle`] or on a tab.
    #[inline]
    pub fn begin(&mut self, payer: Payer, class: Class) {
        if let Some(tab) = self.ledger.tab_of(payer) {
            return tab.begin(class);
        }
        let buckets = self.ledger.buckets();
        buckets.tenants[usize::from(payer.tenant().0)].under_way.begin(class as usize);
        buckets.count_of_user(payer, 1);
    }

    /// Counts a request that is settled, of whichever version of the quotas.
    pub(super) fn end(&mut self, charge: &Charge) {
        let Some(tenant) = self.tenant_now(charge.payer) else { return };
        let is_of_now = charge.payer.versions_before(self.version) == 0;
        let buckets = self.ledger.buckets();
        let known = &mut buckets.tenants[usize::from(tenant.0)];
        let under_way = if is_of_now { &mut known.under_way } else { &mut known.under_way_before };
        under_way.end(charge.class as usize);
        known.settled = known.settled.saturating_add(1);
        buckets.count_of_user(charge.payer, -1);
    }

    /// Requests of a tenant that are admitted and not settled, of these quotas and of the version before.
    pub fn under_way(&mut self, tenant: TenantId) -> u32 {
        let tenant = &self.ledger.buckets().tenants[usize::from(tenant.0)];
        tenant.under_way.total() + tenant.under_way_before.total()
    }

    /// How many requests of a tenant were settled since this was last asked.
    pub fn take_settled(&mut self, tenant: TenantId) -> u32 {
        std::mem::take(&mut self.ledger.buckets().tenants[usize::from(tenant.0)].settled)
    }
}
