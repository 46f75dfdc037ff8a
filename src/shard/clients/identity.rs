//! The identity of a client: the tenant and user that it speaks for, and the terms of its requests.

use std::time::Duration;

use crate::config::{Quotas, Tenant, TenantId, Tier};
use crate::shard::admission::{AdmissionStage, Payer, UserAccount};
use crate::shard::request::Overdue;

/// The tenant and user that a client's requests are charged to, and the terms of its requests: tier (importance),
/// deadline, and whether replicas may answer reads, perhaps with old values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The tenant; None for a client that has yet to log in. The quotas may have a tenant for clients that have not
    /// logged in.
    pub tenant: Option<TenantId>,
    /// The user within the tenant that the client speaks for; None if it has named none.
    pub user: Option<Box<str>>,
    /// The importance of the client's requests: the tier decides which requests are refused first when stores are
    /// overloaded.
    pub tier: Tier,
    /// The time after which a reply is useless, counted from the arrival of the request; None for no
    /// deadline.
    pub deadline: Option<Duration>,
    /// The terms that the client chose itself. Terms that it did not choose are those of its tenant or user, and change
    /// when the quotas change.
    pub chosen: Chosen,
    /// True if replicas may answer the client's reads, perhaps with old values.
    pub stale_reads: bool,
    /// The account that the client's requests are charged to; None for a client without a tenant.
    pub payer: Option<Payer>,
    /// True if the client has logged in as the tenant, by a password or a certificate. False without a tenant,
    /// or if it is the one that the quotas have for clients that have not logged in.
    pub is_proven: bool,
}

/// The terms that a client chose for its requests; None where it chose nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// The chosen tier (importance); None for the one that the quotas give. A tier above that has no effect.
    pub tier: Option<Tier>,
    /// The chosen deadline: the time after a request's arrival after which its reply is useless; None for the
    /// tenant's.
    pub deadline: Option<Duration>,
    /// The treatment of requests in flight whose deadline passes: they are answered with an error at once, or
    /// their reply is awaited.
    pub overdue: Overdue,
}

impl Identity {
    /// Returns the identity of a connection that has not logged in: that of the tenant for such clients if
    /// the quotas have one, else one without a tenant.
    pub fn stranger(quotas: &Quotas) -> Self {
        let strangers = quotas.strangers().map(|tenant| Self {
            is_proven: false,
            ..Self::of(quotas, tenant, None, None, Chosen::default())
        });
        strangers.unwrap_or_default()
    }

    /// Builds the identity of a client that has logged in as a tenant, or as one of its users (`user`), under
    /// the given quotas. `account` is the user's account; None if no quota limits the user. The terms that the
    /// client chose apply as far as the quotas allow.
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
            is_proven: true,
        }
    }

    /// Returns the client's tenant; `NOBODY`, an id that no tenant has, if it has none.
    pub fn tenant_id(&self) -> TenantId {
        self.tenant.unwrap_or(crate::shard::request::NOBODY)
    }

    /// Returns the client's tenant in the given quotas, or None if the client has no tenant.
    #[inline]
    pub fn tenant<'a>(&self, quotas: &'a Quotas) -> Option<&'a Tenant> {
        self.tenant.map(|tenant| quotas.tenant(tenant))
    }

    /// Returns the client's full name: `tenant` or `tenant/user`; `default` for a client without a tenant.
    pub fn full_name(&self, quotas: &Quotas) -> String {
        let tenant = self.tenant(quotas).map_or("default", |tenant| tenant.name.as_str());
        match &self.user {
            Some(user) => format!("{tenant}/{user}"),
            None => tenant.to_owned(),
        }
    }

    /// Converts this identity from the quotas `before` to the quotas `after`. A tenant that the client has
    /// logged in as is found by name; if it is gone, the client becomes one that has not logged in. A client
    /// that has not logged in gets the tenant that `after` has for such clients, if any.
    #[must_use]
    pub fn carried_over(&self, before: &Quotas, after: &Quotas, admission: &mut AdmissionStage) -> Self {
        let Some(tenant) = self.tenant_after(before, after) else { return Self::stranger(after) };
        let account = self.user.as_ref().and_then(|user| admission.account_of(after.tenant(tenant), user));
        let identity = Self::of(after, tenant, self.user.clone(), account, self.chosen);
        Self { is_proven: self.is_proven, ..identity }
    }

    /// True if the new quotas (`after`) leave the identity's permissions (admin rights, keys, channels,
    /// databases) as they were, or if it has no tenant. False if its tenant is gone.
    pub fn keeps_its_rights(&self, before: &Quotas, after: &Quotas) -> bool {
        let Some(tenant) = self.tenant else { return true };
        let is = self.tenant_after(before, after).map(|tenant| after.tenant(tenant));
        is.is_some_and(|is| is.has_rights_of(before.tenant(tenant)))
    }

    /// Returns the tenant under the quotas `after` of a client that has this identity under the quotas
    /// `before`; None if there is none for it.
    fn tenant_after(&self, before: &Quotas, after: &Quotas) -> Option<TenantId> {
        let tenant = self.tenant?;
        if self.is_proven { after.find(&before.tenant(tenant).name) } else { after.strangers() }
    }
}
