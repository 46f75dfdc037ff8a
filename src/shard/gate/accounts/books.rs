//! What was spent in the end: differences to what was taken, what such requests cost lately, and what tenants used.

use super::{Accounts, METERED_REPORT, Payer, Scope};
use crate::policy::price::Quote;
use crate::protocol::command::Class;
use crate::values::{MicroUnits, Price, TenantId, Timestamp, Usage};

/// What was taken for a request, until its reply tells what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// What was taken.
    pub taken: Price,
    /// What was known of its price then.
    pub quote: Quote,
    /// From whose buckets.
    pub payer: Payer,
    /// The class by which the cost of such requests is learnt.
    pub class: Class,
}

/// What a request comes to in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bill {
    /// It cost this, more or less than was taken for it.
    Cost(Price),
    /// No store was asked: it cost this, and says nothing of others.
    Cached(Price),
    /// It was sent, and nobody knows what it cost: what was taken is kept.
    AsTaken,
    /// It was sent to no backend: what was taken is given back.
    Nothing,
}

impl Charge {
    /// What was taken, in about thousandths of a request unit.
    #[inline]
    pub fn weight(&self) -> u32 {
        (self.taken.micro() >> 10).min(u64::from(u32::MAX)) as u32
    }
}

// One stands beside each request that waits for its reply.
const _: () = assert!(size_of::<Option<Charge>>() <= 56);

impl Accounts {
    /// What the next request of a payer and class will cost beyond its fixed part.
    pub fn expected(&mut self, payer: Payer, class: Class) -> MicroUnits {
        self.ledger.buckets().tenants[usize::from(payer.tenant().0)].expected.of(class as usize)
    }

    /// True once a request of the payer's tenant and of a class has been paid for.
    pub fn is_seen(&mut self, payer: Payer, class: Class) -> bool {
        self.ledger.buckets().tenants[usize::from(payer.tenant().0)].expected.is_seen(class as usize)
    }

    /// What was taken for a request becomes what it cost.
    pub fn settle(&mut self, charge: &Charge, bill: Bill, now: Timestamp) {
        self.end(charge);
        let tenant = self.tenant_now(charge.payer);
        let cost = match bill {
            Bill::Cost(cost) | Bill::Cached(cost) => cost,
            Bill::AsTaken => charge.taken,
            Bill::Nothing => Price::ZERO,
        };
        if let Some(tenant) = tenant {
            if let Bill::Cost(cost) = bill {
                let known = &mut self.ledger.buckets().tenants[usize::from(tenant.0)];
                known.expected.learn(charge.class as usize, cost.beyond(charge.quote.fixed));
            }
            let usage = match bill {
                Bill::Cached(_) => Usage { cached: cost.micro(), ..Usage::default() },
                _ => Usage { admitted: cost.micro(), ..Usage::default() },
            };
            self.meter(tenant, usage, now);
        }
        let difference = cost.signed() - charge.taken.signed();
        if difference != 0 {
            self.correct(charge.payer, tenant, difference, now);
        }
        self.handle_booked(charge.payer, now);
    }

    /// Counts what became of a tenant's requests.
    #[inline]
    pub fn meter(&mut self, tenant: TenantId, usage: Usage, now: Timestamp) {
        let metered = &mut self.ledger.buckets().tenants[usize::from(tenant.0)].metered;
        let is_new = metered.is_empty();
        metered.add(usage);
        if is_new && !usage.is_empty() {
            self.metered.push(tenant);
            self.metered_report_at.get_or_insert(now.after(METERED_REPORT));
        }
    }

    fn correct(&mut self, payer: Payer, tenant: Option<TenantId>, difference: i64, now: Timestamp) {
        let buckets = self.ledger.buckets();
        buckets.surprise = buckets.surprise.saturating_add(difference.max(0) as u64);
        let user = tenant.and(payer.user());
        let scopes = [Some(Scope::Global), tenant.map(Scope::Tenant), user.map(Scope::User)];
        for scope in scopes.into_iter().flatten() {
            if let Some(entry) = self.ledger.buckets().entry(scope, now) {
                entry.slice.book(difference);
                self.agenda.list(scope, entry.listed, now);
            }
        }
    }

    /// The tenant of a request that may have been admitted under the quotas before.
    pub(super) fn tenant_now(&self, payer: Payer) -> Option<TenantId> {
        match payer.versions_before(self.version) {
            0 => Some(payer.tenant()),
            1 => self.moved[usize::from(payer.tenant().0)],
            _ => None,
        }
    }
}
