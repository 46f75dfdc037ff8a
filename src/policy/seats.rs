//! How many connections each tenant may hold. One count for all cores: it is touched when a client comes, goes or says who
//! it is, never for a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::values::TenantId;
use crate::values::limits::TENANTS_MAX;

/// The seats that tenants have taken, by their ids. When quotas change, each core moves its own clients to the new ids, so
/// that for a moment the counts are of both.
#[derive(Clone, Debug)]
pub struct Seats {
    taken: Arc<[AtomicU32]>,
    /// What a tenant may take that the quotas say nothing about.
    usual_max: u32,
}

impl Seats {
    /// None is taken.
    pub fn new(usual_max: u32) -> Self {
        Self { taken: std::iter::repeat_with(AtomicU32::default).take(TENANTS_MAX).collect(), usual_max }
    }

    /// As many as anybody wants.
    pub fn unlimited() -> Self {
        Self { taken: Arc::default(), usual_max: u32::MAX }
    }

    /// What a tenant may take that the quotas say nothing about.
    pub fn usual_max(&self) -> u32 {
        self.usual_max
    }

    /// Takes a seat. False if the tenant has as many as it may.
    pub fn take(&self, tenant: TenantId, most: u32) -> bool {
        let Some(taken) = self.of(tenant) else { return true };
        let fits = taken.fetch_add(1, Ordering::Relaxed) < most;
        if !fits {
            self.give_back(tenant);
        }
        fits
    }

    /// Takes a seat for a client that had one under other quotas, however many there are.
    pub fn keep(&self, tenant: TenantId) {
        if let Some(taken) = self.of(tenant) {
            taken.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives a seat back that was taken.
    pub fn give_back(&self, tenant: TenantId) {
        let before = self.of(tenant).map(|taken| taken.fetch_sub(1, Ordering::Relaxed));
        debug_assert!(before != Some(0), "a seat is given back once");
    }

    /// Seats that a tenant has taken.
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
