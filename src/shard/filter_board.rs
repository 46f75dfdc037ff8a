//! Board of filters: the patterns of channels (`PSUBSCRIBE`) and the prefixes of keys (`CLIENT TRACKING` with
//! `BCAST`) that the clients of all cores have at stores. A store compares every message with all patterns and the
//! key of every write with all prefixes, whoever sends them. So their number is bounded, for all clients together
//! and for each tenant: otherwise one client could slow the requests of all others at the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::values::TenantId;
use crate::values::limits::{FILTER_PATTERNS_MAX, FILTER_PREFIXES_MAX, TENANT_PART, TENANTS_MAX};

/// Kind of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FilterKind {
    /// A pattern of channels, compared with the channel of each message.
    Pattern,
    /// A prefix of keys, compared with the key of each write.
    Prefix,
}

impl FilterKind {
    /// The kinds, each with the word for it in metrics.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Pattern, "pattern"), (Self::Prefix, "prefix")];

    /// Returns the maximum number of filters of this kind.
    fn limit(self) -> usize {
        match self {
            Self::Pattern => FILTER_PATTERNS_MAX,
            Self::Prefix => FILTER_PREFIXES_MAX,
        }
    }

    /// Returns the maximum number of filters of this kind that the clients of one tenant may have together.
    pub fn tenant_limit(self) -> usize {
        self.limit() * TENANT_PART.0 / TENANT_PART.1
    }
}

/// Numbers of filters that clients have at stores, by tenant and kind. Equal filters of one core count once.
#[derive(Debug)]
pub struct FilterBoard {
    /// The numbers of each tenant; the last row is of clients without a tenant.
    tenants: Box<[[AtomicU32; 2]]>,
    totals: [AtomicU32; 2],
}

/// A filter that counts as long as this value lives.
#[derive(Debug)]
pub struct FilterPlace {
    board: Arc<FilterBoard>,
    tenant: TenantId,
    kind: FilterKind,
}

impl Default for FilterBoard {
    fn default() -> Self {
        let tenants = std::iter::repeat_with(Default::default).take(TENANTS_MAX + 1).collect();
        Self { tenants, totals: Default::default() }
    }
}

impl FilterBoard {
    /// Counts one more filter of a tenant until the returned value is dropped. None if the tenant's clients, or all
    /// clients together, have as many as they may.
    pub fn take(self: &Arc<Self>, tenant: TenantId, kind: FilterKind) -> Option<FilterPlace> {
        let one_more = |most: usize| move |count| ((count as usize) < most).then_some(count + 1);
        let [of_tenant, total] = self.numbers(tenant, kind);
        let (order, most) = (Ordering::Relaxed, kind.limit());
        of_tenant.fetch_update(order, order, one_more(kind.tenant_limit())).ok()?;
        if total.fetch_update(order, order, one_more(most)).is_err() {
            of_tenant.fetch_sub(1, order);
            return None;
        }
        Some(FilterPlace { board: Arc::clone(self), tenant, kind })
    }

    fn numbers(&self, tenant: TenantId, kind: FilterKind) -> [&AtomicU32; 2] {
        let row = &self.tenants[usize::from(tenant.0).min(TENANTS_MAX)];
        [&row[kind as usize], &self.totals[kind as usize]]
    }
}

impl Drop for FilterPlace {
    fn drop(&mut self) {
        for number in self.board.numbers(self.tenant, self.kind) {
            number.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_a_part_of_all_filters_and_all_have_a_limit() {
        let board = Arc::new(FilterBoard::default());
        for (kind, _) in FilterKind::ALL {
            let take = |tenant| board.take(TenantId(tenant), kind);
            let mut first: Vec<_> = std::iter::from_fn(|| take(1)).collect();
            assert_eq!(first.len(), kind.tenant_limit());
            let second: Vec<_> = std::iter::from_fn(|| take(u16::MAX)).collect();
            assert_eq!(first.len() + second.len(), kind.limit());
            assert!(take(2).is_none(), "all places are taken");
            first.pop();
            assert!(take(2).is_some() && take(1).is_some(), "one place is free again");
            drop((first, second));
            let third: Vec<_> = std::iter::from_fn(|| take(3)).collect();
            assert_eq!(third.len(), kind.tenant_limit(), "all places are free again");
        }
    }
}
