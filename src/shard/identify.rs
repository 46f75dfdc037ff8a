//! Stage 2: who sends this, and may they.

use std::time::Duration;

use super::Shard;
use super::accounts::{Accounts, Payer, UserAccount};
use super::batch::Terms;
use crate::config::{Quotas, Tenant, TenantId, Tier};
use crate::protocol::Arguments;
use crate::protocol::command::{Class, Command, FanOut, Handling, LocalCommand, quoted, sort_names_patterns};
use crate::values::ClientId;
use crate::values::limits::PREFIXES_NAMED_MAX;
use crate::values::time::Now;

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
}

impl Identity {
    /// A connection that has not said who it is.
    pub fn stranger(quotas: &Quotas) -> Self {
        let strangers =
            quotas.strangers().map(|tenant| Self::of(quotas, tenant, None, None, Chosen::default()));
        strangers.unwrap_or_default()
    }

    /// A tenant, or a user of it, on the terms of these quotas. What was chosen holds as far as they allow it.
    pub(super) fn of(
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
            payer: Some(Payer::new(tenant, account, quotas.version())),
            user,
            chosen,
        }
    }

    /// The same under new quotas: a tenant is known by its name.
    #[must_use]
    pub(super) fn carried_over(&self, before: &Quotas, after: &Quotas, accounts: &mut Accounts) -> Self {
        let known = self.tenant.and_then(|tenant| after.find(&before.tenant(tenant).name));
        let Some(tenant) = known else { return Self::stranger(after) };
        let account = self.user.as_ref().and_then(|user| accounts.user(after.tenant(tenant), user));
        Self::of(after, tenant, self.user.clone(), account, self.chosen)
    }

    /// What a request of this identity comes with.
    #[inline]
    pub(super) fn terms(&self, class: Class, now: Now) -> Terms {
        Terms {
            deadline: self.deadline.map(|deadline| now.monotonic.after(deadline)),
            tenant: self.tenant.map_or(u16::MAX, |tenant| tenant.0),
            tier: self.tier as u8,
            class: class as u8,
        }
    }

    /// Whether what this identity was permitted under the quotas before is permitted to it under others, too.
    pub(super) fn keeps_its_rights(&self, before: &Quotas, after: &Quotas) -> bool {
        let Some(tenant) = self.tenant else { return true };
        let was = before.tenant(tenant);
        let is = after.find(&was.name).map(|tenant| after.tenant(tenant));
        is.is_some_and(|is| is.admin == was.admin && is.keys == was.keys)
    }
}

const NOAUTH: &str = "NOAUTH Authentication required.";

impl Shard {
    pub(super) fn terms_of(&mut self, id: ClientId, class: Class, now: Now) -> Terms {
        self.clients.at(id).identity.terms(class, now)
    }

    /// The tenant of a client, if it has one.
    pub(super) fn tenant_of(&mut self, id: ClientId) -> Option<&Tenant> {
        let tenant = self.clients.at(id).identity.tenant?;
        Some(self.quotas.tenant(tenant))
    }

    /// May this client run this? The error is the reply.
    pub(super) fn permit(
        &mut self,
        id: ClientId,
        command: &'static Command,
        handling: Handling,
        arguments: &Arguments<'_>,
    ) -> Result<(), String> {
        let Some(tenant) = self.tenant_of(id) else {
            use LocalCommand::{Auth, Hello, Quit, Reset};
            let opens_the_door = matches!(handling, Handling::Local(Auth | Hello | Quit | Reset));
            return if opens_the_door { Ok(()) } else { Err(self.who_are_you()) };
        };
        if command.admin && !tenant.admin {
            return Err(format!(
                "NOPERM tenant '{}' may not run {}: it touches what belongs to everyone (admin = true allows it)",
                tenant.name,
                command.spoken_name()
            ));
        }
        if tenant.keys.is_empty() { Ok(()) } else { permit_confined(tenant, command, handling, arguments) }
    }

    /// What somebody is told who has yet to log in, or has to because those who need not are too many.
    fn who_are_you(&self) -> String {
        self.quotas.strangers().map_or_else(|| NOAUTH.to_owned(), |tenant| self.no_seat_left(tenant))
    }

    /// Nobody can tell what a command does that is in no table, so only those who may do anything may send it.
    pub(super) fn permit_unknown(&mut self, id: ClientId, arguments: &Arguments<'_>) -> Result<(), String> {
        match self.tenant_of(id) {
            None => Err(self.who_are_you()),
            Some(tenant) if tenant.admin && tenant.keys.is_empty() => Ok(()),
            Some(_) => Err(crate::protocol::command::Unrecognised::Command(*arguments).to_string()),
        }
    }
}

/// The rules for a tenant that has only keys of certain prefixes.
fn permit_confined(
    tenant: &Tenant,
    command: &'static Command,
    handling: Handling,
    arguments: &Arguments<'_>,
) -> Result<(), String> {
    let confined =
        || format!("NOPERM tenant '{}' has only keys that begin with {}", tenant.name, prefixes(tenant));
    if command.class == Class::Script {
        return Err(format!("{}, and a script could reach any", confined()));
    }
    match handling {
        Handling::FanOut(FanOut::Scan) => {
            let walk = command.walk(arguments);
            let pattern = walk.and_then(|walk| walk.pattern(arguments)).unwrap_or(b"*");
            let literal = literal_prefix(pattern);
            let inside = tenant.keys.iter().any(|prefix| literal.starts_with(prefix.as_bytes()));
            return if inside {
                Ok(())
            } else {
                Err(format!("{}, so SCAN needs a MATCH pattern that begins so", confined()))
            };
        }
        Handling::FanOut(_) if !tenant.admin => {
            return Err(format!("{}, and {} is about all keys", confined(), command.spoken_name()));
        }
        _ => {}
    }
    if matches!(command.name, "sort" | "sort_ro") && sort_names_patterns(arguments) {
        return Err(format!("{}, and BY and GET patterns could reach any", confined()));
    }
    let mut foreign = None;
    let found = command.for_each_key(arguments, &mut |index| {
        let key = arguments.at(index);
        if foreign.is_none() && !tenant.keys.iter().any(|prefix| key.starts_with(prefix.as_bytes())) {
            foreign = Some(key);
        }
    });
    match (found, foreign) {
        // What is wrong with such a request is said where it is routed.
        (Err(_), _) | (Ok(()), None) => Ok(()),
        (Ok(()), Some(key)) => Err(format!("{}, not '{}'", confined(), quoted(key))),
    }
}

fn prefixes(tenant: &Tenant) -> String {
    let named = tenant.keys.iter().take(PREFIXES_NAMED_MAX);
    let mut named: Vec<String> = named.map(|prefix| format!("'{}'", quoted(prefix.as_bytes()))).collect();
    if tenant.keys.len() > PREFIXES_NAMED_MAX {
        named.push(format!("{} other prefixes", tenant.keys.len() - PREFIXES_NAMED_MAX));
    }
    named.join(" or ")
}

/// The part of a pattern before anything that matches more than itself.
fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end =
        pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\')).unwrap_or(pattern.len());
    &pattern[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_pattern_must_begin_with_counts() {
        assert_eq!(literal_prefix(b"acme:*"), b"acme:");
        assert_eq!(literal_prefix(b"ac\\me:*"), b"ac");
        assert_eq!(literal_prefix(b"[a]cme:"), b"");
        assert_eq!(literal_prefix(b"acme:1"), b"acme:1");
    }
}
