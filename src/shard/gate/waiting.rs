//! Clients whose next request waits until a request of its tenant is settled, in the order in which they came.

use std::collections::VecDeque;

use super::admission::SETTLEMENT_PATIENCE;
use crate::values::{ClientId, TenantId, Timestamp};

/// The waiting clients of all tenants of a core. Tenants without any are not in it, so an entry costs nothing later.
#[derive(Debug, Default)]
pub struct Waiting {
    tenants: Vec<(TenantId, VecDeque<Waiter>)>,
    /// Clients that go on in this turn, whatever is settled.
    released: Vec<ClientId>,
}

#[derive(Debug)]
struct Waiter {
    client: ClientId,
    since: Timestamp,
}

impl Waiting {
    /// A client's next request waits for its tenant.
    pub fn push(&mut self, tenant: TenantId, client: ClientId, now: Timestamp) {
        let waiter = Waiter { client, since: now };
        match self.tenants.iter_mut().find(|(known, _)| *known == tenant) {
            Some((_, queue)) => queue.push_back(waiter),
            None => self.tenants.push((tenant, VecDeque::from([waiter]))),
        }
    }

    /// True if no client waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty() && self.released.is_empty()
    }

    /// The number of clients that wait for a tenant.
    pub fn waiting(&self, tenant: TenantId) -> usize {
        self.tenants.iter().find(|(known, _)| *known == tenant).map_or(0, |(_, queue)| queue.len())
    }

    /// The clients that go on: as many of each tenant as requests of it were settled, and all that have waited for as long as
    /// any may.
    pub fn take_due(
        &mut self,
        mut take_settled: impl FnMut(TenantId) -> u32,
        now: Timestamp,
    ) -> Vec<ClientId> {
        let mut due = std::mem::take(&mut self.released);
        for (tenant, queue) in &mut self.tenants {
            let settled = (take_settled(*tenant) as usize).min(queue.len());
            due.extend(queue.drain(..settled).map(|waiter| waiter.client));
            let overdue = queue.partition_point(|waiter| waiter.ends() <= now);
            due.extend(queue.drain(..overdue).map(|waiter| waiter.client));
        }
        self.tenants.retain(|(_, queue)| !queue.is_empty());
        due
    }

    /// All go on.
    pub fn release(&mut self) {
        for (_, queue) in self.tenants.drain(..) {
            self.released.extend(queue.into_iter().map(|waiter| waiter.client));
        }
    }

    /// When a client has waited for as long as any may.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let released = (!self.released.is_empty()).then_some(Timestamp::ZERO);
        self.tenants.iter().filter_map(|(_, queue)| queue.front()).map(Waiter::ends).chain(released).min()
    }
}

impl Waiter {
    fn ends(&self) -> Timestamp {
        self.since.after(SETTLEMENT_PATIENCE)
    }
}
