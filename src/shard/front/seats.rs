//! Who may be connected: clients that have yet to log in have little time, and make way for newcomers; a tenant has a share.

use super::Front;
use super::client::Ending;
use super::identity::{Chosen, Identity};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::values::time::Now;
use crate::values::{ClientId, TenantId};

impl Front {
    /// Gives a new client a seat among those who need not log in, if there are such and one is left; or one of the tenant that its
    /// certificate names.
    pub(super) fn seat_stranger(&mut self, env: &Env, id: ClientId, now: Now) {
        let certified = self.clients.at(id).certified.as_deref().and_then(|name| env.quotas.find(name));
        let stranger = match certified {
            Some(tenant) => Identity::of(&env.quotas, tenant, None, None, Chosen::default()),
            None => Identity::stranger(&env.quotas),
        };
        let identity =
            if self.change_seat(env, id, stranger.tenant) { stranger } else { Identity::default() };
        let client = self.clients.at(id);
        client.stranger_since = identity.tenant.is_none().then_some(now.monotonic);
        self.watch_strangers |= identity.tenant.is_none();
        client.identity = identity;
        self.apply_pauses_to(&env.quotas, id);
    }

    /// A client that has just come speaks TLS: it has a seat of the tenant that its certificate names, if that is one. The error is for
    /// the client, and the end.
    pub fn note_secure(
        &mut self,
        env: &Env,
        id: ClientId,
        name: Option<&str>,
        now: Now,
    ) -> Result<(), String> {
        let Some(client) = self.clients.get(id) else { return Ok(()) };
        client.secure = true;
        // One that there is no room for stays a stranger until it has left.
        let named = name.filter(|_| client.ending == Ending::Open);
        let Some((name, tenant)) = named.and_then(|name| Some((name, env.quotas.find(name)?))) else {
            return Ok(());
        };
        client.certified = Some(name.into());
        self.seat_stranger(env, id, now);
        match self.clients.at(id).identity.tenant {
            Some(seated) if seated == tenant => Ok(()),
            _ => Err(no_seat_left(env, tenant)),
        }
    }

    /// Moves a client to a seat of a tenant. False, and nothing is changed, if the tenant has none left.
    pub(super) fn change_seat(&mut self, env: &Env, id: ClientId, to: Option<TenantId>) -> bool {
        let most = to.map_or(0, |tenant| seats_max(env, tenant));
        let seats = &env.settings.clients.seats;
        let client = self.clients.at(id);
        if client.seat == to {
            return true;
        }
        if to.is_some_and(|tenant| !seats.take(tenant, most)) {
            return false;
        }
        if let Some(before) = std::mem::replace(&mut client.seat, to) {
            seats.give_back(before);
        }
        true
    }

    /// The same client under new quotas. Who had a seat has one, though there may be too many now.
    pub(super) fn keep_seat(&mut self, env: &Env, id: ClientId, now: Now) {
        let seats = &env.settings.clients.seats;
        let client = self.clients.at(id);
        let to = client.identity.tenant;
        if let Some(tenant) = to {
            seats.keep(tenant);
        }
        if let Some(before) = std::mem::replace(&mut client.seat, to) {
            seats.give_back(before);
        }
        let since = client.stranger_since.unwrap_or(now.monotonic);
        client.stranger_since = to.is_none().then_some(since);
        self.watch_strangers |= to.is_none();
    }

    /// Closes the client that has been here for longest without logging in. False if all have.
    pub fn make_room(&mut self, env: &mut Env) -> bool {
        let longest = self
            .clients
            .ids()
            .filter_map(|id| {
                self.clients.peek(id).and_then(|client| client.stranger_since).map(|since| (since, id))
            })
            .min_by_key(|(since, _)| *since);
        longest.is_some_and(|(_, id)| {
            self.expel(env, id, Counter::ClientsClosedLogin);
            true
        })
    }

    /// May there be clients that have yet to log in?
    pub fn has_strangers(&self) -> bool {
        self.watch_strangers
    }

    /// Closes those who had long enough to log in.
    pub fn close_strangers(&mut self, env: &mut Env, now: Now) {
        let Some(timeout) = env.settings.clients.login_timeout.filter(|_| self.watch_strangers) else {
            return;
        };
        self.watch_strangers = false;
        for place in 0..self.clients.places() {
            let Some(id) = self.clients.in_place(place) else { continue };
            let client = self.clients.at(id);
            let Some(since) = client.stranger_since else { continue };
            // One that is being closed is waited for by the timeout of sending.
            if now.monotonic.since(since) >= timeout && client.ending != Ending::Deaf {
                self.expel(env, id, Counter::ClientsClosedLogin);
            } else {
                self.watch_strangers = true;
            }
        }
    }
}

/// Connections that a tenant may have. Where there is one tenant only, there is nobody to leave any to.
fn seats_max(env: &Env, tenant: TenantId) -> u32 {
    let usual = if env.quotas.len() == 1 { u32::MAX } else { env.settings.clients.seats.usual_max() };
    env.quotas.tenant(tenant).clients_max.unwrap_or(usual)
}

/// What somebody is told whose tenant has no place left.
pub fn no_seat_left(env: &Env, tenant: TenantId) -> String {
    let (name, limit) = (&env.quotas.tenant(tenant).name, seats_max(env, tenant));
    format!("OVERLOADED reason=clients scope=tenant name={name} limit={limit} retry_after_ms=1000")
}
