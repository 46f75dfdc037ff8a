//! Clients whose next request waits until another request of its tenant is settled (charged at its real cost), in order
//! of arrival.

use std::collections::VecDeque;

use super::decision::SETTLEMENT_PATIENCE;
use crate::values::{ClientId, TenantId, Timestamp};

/// The clients of a core that wait until other requests of their tenant are charged at their real cost, by
/// tenant. Only tenants with waiting clients have an entry.
#[derive(Debug, Default)]
pub struct Waiting {
    tenants: Vec<(TenantId, VecDeque<Waiter>)>,
    /// Clients whose requests are tried again in this turn (pass of the shard's loop) even if no request of
    /// their tenant was charged at its real cost, because quotas have changed.
    released: Vec<ClientId>,
}

#[derive(Debug)]
struct Waiter {
    client: ClientId,
    since: Timestamp,
}

impl Waiting {
    /// Adds a client whose next request waits for a request of its tenant to be charged at its real cost.
    pub fn push(&mut self, tenant: TenantId, client: ClientId, now: Timestamp) {
        let waiter = Waiter { client, since: now };
        match self.tenants.iter_mut().find(|(known, _)| *known == tenant) {
            Some((_, queue)) => queue.push_back(waiter),
            None => self.tenants.push((tenant, VecDeque::from([waiter]))),
        }
    }

    /// True if no client waits for a request of its tenant to be charged at its real cost, and none is to be
    /// tried again in this turn (pass of the shard's loop).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty() && self.released.is_empty()
    }

    /// Returns the number of clients that wait for requests of a tenant to be charged at their real cost.
    pub fn waiting(&self, tenant: TenantId) -> usize {
        self.tenants.iter().find(|(known, _)| *known == tenant).map_or(0, |(_, queue)| queue.len())
    }

    /// Takes the clients whose requests are to be tried again: all released ones (those that waited when quotas
    /// changed), all that have waited for 100 ms, and of each tenant one client for each of its requests that was
    /// charged at its real cost. `take_settled` returns the number of a tenant's requests charged so since its last
    /// call.
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

    /// Lets the requests of all waiting clients be tried again in this turn (pass of the shard's loop), because
    /// new quotas may decide otherwise.
    pub fn release(&mut self) {
        for (_, queue) in self.tenants.drain(..) {
            self.released.extend(queue.into_iter().map(|waiter| waiter.client));
        }
    }

    /// Returns the earliest time at which `take_due` lets clients go on by time alone: when one has waited
    /// for `SETTLEMENT_PATIENCE` (100 ms), or time zero if clients were released. None if no client waits.
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
