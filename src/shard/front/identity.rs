//! Who a client is.

use std::time::Duration;

use crate::config::{Quotas, Tenant, TenantId, Tier};
use crate::shard::gate::{Gate, Payer, UserAccount};
use crate::shard::request::Overdue;

/// Who a connection speaks for, and on what terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Nobody yet, until it authenticates.
    pub tenant: Option<TenantId>,
    /// The user within the tenant.
    pub user: Option<Box<str>>,
    /// How much its requests matter.
    pub tier: Tier,
    /// How long an answer is of use.
    pub deadline: Option<Duration>,
    /// What of this the client chose itself. All else is its tenant's, and changes with that.
    pub chosen: Chosen,
    /// Its reads may be answered by replicas.
    pub stale_reads: bool,
    /// Who that is in the accounts, if anybody.
    pub payer: Option<Payer>,
}

/// What a client chose for its requests, where it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// How much they matter, where that is less than the quotas say.
    pub tier: Option<Tier>,
    /// How long an answer is of use.
    pub deadline: Option<Duration>,
    /// What becomes of what is in flight then.
    pub overdue: Overdue,
}

impl Identity {
    /// A connection that has not said who it is.
    pub fn stranger(quotas: &Quotas) -> Self {
        let strangers =
            quotas.strangers().map(|tenant| Self::of(quotas, tenant, None, None, Chosen::default()));
        strangers.unwrap_or_default()
    }

    /// A tenant, or a user of it, on the terms of these quotas. What was chosen holds as far as they allow it.
    pub fn of(
        quotas: &Quotas,
        tenant: TenantId,
        user: Option<Box<str>>,
        account: Option<UserAccount>,
        chosen: Chosen,
    ) -> Self {
        let terms = quotas.tenant(tenant);
        let highest = terms.tier_of(user.as_deref());
        Self {
            tenant: Some(tenant),
            tier: chosen.tier.map_or(highest, |tier| tier.max(highest)),
            deadline: chosen.deadline.or(terms.deadline),
            stale_reads: terms.stale_reads,
            payer: Some(Payer::new(tenant, account, quotas.version())),
            user,
            chosen,
        }
    }

    /// Its tenant, if it has one.
    #[inline]
    pub fn tenant<'a>(&self, quotas: &'a Quotas) -> Option<&'a Tenant> {
        self.tenant.map(|tenant| quotas.tenant(tenant))
    }

    /// `tenant` or `tenant/user`.
    pub fn full_name(&self, quotas: &Quotas) -> String {
        let tenant = self.tenant(quotas).map_or("default", |tenant| tenant.name.as_str());
        match &self.user {
            Some(user) => format!("{tenant}/{user}"),
            None => tenant.to_owned(),
        }
    }

    /// The same under new quotas: a tenant is known by its name.
    #[must_use]
    pub fn carried_over(&self, before: &Quotas, after: &Quotas, gate: &mut Gate) -> Self {
        let known = self.tenant.and_then(|tenant| after.find(&before.tenant(tenant).name));
        let Some(tenant) = known else { return Self::stranger(after) };
        let account = self.user.as_ref().and_then(|user| gate.account_of(after.tenant(tenant), user));
        Self::of(after, tenant, self.user.clone(), account, self.chosen)
    }

    /// Whether what this identity was permitted under the quotas before is permitted to it under others, too.
    pub fn keeps_its_rights(&self, before: &Quotas, after: &Quotas) -> bool {
        let Some(tenant) = self.tenant else { return true };
        let was = before.tenant(tenant);
        let is = after.find(&was.name).map(|tenant| after.tenant(tenant));
        is.is_some_and(|is| is.admin == was.admin && is.keys == was.keys)
    }
}
