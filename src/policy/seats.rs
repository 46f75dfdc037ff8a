//! Limit of the connections (seats) that each tenant may hold. All cores share one count, which is touched
//! when a client comes, goes or logs in, never for a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::values::TenantId;
use crate::values::limits::TENANTS_MAX;

/// Number of client connections that each tenant holds, by tenant id. When quotas change, each core moves its
/// own clients to the new ids, so for a moment a count may have clients of two tenants.
#[derive(Clone, Debug)]
pub struct Seats {
    taken: Arc<[AtomicU32]>,
    /// Number of connections that a tenant may hold where the quotas set no limit.
    usual_max: u32,
}

impl Seats {
    /// Creates the counts, without any connection. `usual_max` is the maximum number of connections of a tenant
    /// for which the quotas set no limit.
    pub fn new(usual_max: u32) -> Self {
        Self { taken: std::iter::repeat_with(AtomicU32::default).take(TENANTS_MAX).collect(), usual_max }
    }

    /// Creates a count of tenants' connections that refuses no connection and counts none.
    pub fn unlimited() -> Self {
        Self { taken: Arc::default(), usual_max: u32::MAX }
    }

    /// Returns how many connections a tenant may hold where the quotas set no limit.
    pub fn usual_max(&self) -> u32 {
        self.usual_max
    }

    /// Counts a connection of the tenant. False, without counting, if the tenant already holds `most`
    /// connections, so that the client is to be refused.
    pub fn take(&self, tenant: TenantId, most: u32) -> bool {
        let Some(taken) = self.of(tenant) else { return true };
        let fits = taken.fetch_add(1, Ordering::Relaxed) < most;
        if !fits {
            self.give_back(tenant);
        }
        fits
    }

    /// Counts a connection of the tenant, even beyond the tenant's limit: its client was counted under other
    /// quotas before they changed, and is not closed for that.
    pub fn keep(&self, tenant: TenantId) {
        if let Some(taken) = self.of(tenant) {
            taken.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts one connection of the tenant less, because it ended.
    pub fn give_back(&self, tenant: TenantId) {
        let before = self.of(tenant).map(|taken| taken.fetch_sub(1, Ordering::Relaxed));
        debug_assert!(before != Some(0), "a seat is given back once");
    }

    /// Returns how many connections the tenant holds.
    pub fn taken(&self, tenant: TenantId) -> u32 {
        self.of(tenant).map_or(0, |taken| taken.load(Ordering::Relaxed))
    }

    fn of(&self, tenant: TenantId) -> Option<&AtomicU32> {
        self.taken.get(usize::from(tenant.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_takes_what_it_may_and_no_more() {
        let seats = Seats::new(3);
        let (acme, other) = (TenantId(7), TenantId(8));
        assert_eq!([(); 5].map(|()| seats.take(acme, 3)), [true, true, true, false, false]);
        assert!(seats.take(other, 3));
        seats.give_back(acme);
        assert!(seats.take(acme, 3) && !seats.take(acme, 3));
        seats.keep(acme);
        assert_eq!((seats.taken(acme), seats.taken(other)), (4, 1));
    }
}
