//! Limits on connections: a client that has not logged in has limited time, and is closed to make room for a
//! new one; a tenant may have a limited number of connections (seats).

use super::ClientStage;
use super::client::Ending;
use super::identity::{Chosen, Identity};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::values::time::Now;
use crate::values::{ClientId, TenantId};

/// Text of the error for a client that has to log in.
pub(super) const NOAUTH: &str = "NOAUTH Authentication required.";

impl ClientStage {
    /// Gives a client the identity that it has without a password (when it connects, or after `RESET`), and counts it
    /// as a connection (seat) of a tenant: of the one that its certificate names, else of the tenant for clients that
    /// have not logged in. If there is no such tenant, or the tenant may have no more connections, the client has to
    /// log in.
    pub(super) fn seat_stranger(&mut self, env: &Env, id: ClientId, now: Now) {
        let stranger = match self.certified_tenant(env, id) {
            Some(tenant) => Identity::of(&env.quotas, tenant, None, None, Chosen::default()),
            None => Identity::stranger(&env.quotas),
        };
        let identity = if self.change_seat(env, id, stranger.tenant) {
            stranger
        } else {
            // A client that has logged out by `RESET` gives its former tenant's seat back.
            self.change_seat(env, id, None);
            Identity::default()
        };
        let client = self.clients.at(id);
        // A client that had no tenant before gets no more time by `RESET` or by further HTTP requests.
        let since = client.stranger_since.unwrap_or(now.monotonic);
        client.stranger_since = identity.tenant.is_none().then_some(since);
        self.watch_strangers |= identity.tenant.is_none();
        self.change_identity(id, identity);
        self.apply_pauses_to(&env.quotas, id);
    }

    /// Returns the tenant that a client's certificate names; None if it has no certificate that names a tenant of the
    /// quotas.
    fn certified_tenant(&self, env: &Env, id: ClientId) -> Option<TenantId> {
        let name = self.clients.peek(id)?.certified.as_deref()?;
        env.quotas.find(name)
    }

    /// Returns the text of the error for a client that has no tenant. If the client needs no password, as its
    /// certificate names a tenant or the quotas have one for clients that have not logged in, the error says that all
    /// connections of that tenant are taken.
    pub fn not_logged_in(&self, env: &Env, id: ClientId) -> String {
        let crowded = self.certified_tenant(env, id).or_else(|| env.quotas.strangers());
        crowded.map_or_else(|| NOAUTH.to_owned(), |tenant| no_seat_left(env, tenant))
    }

    /// Records that a new client speaks TLS; `name` is the tenant that its certificate names, if any. If the
    /// quotas have that tenant, counts the client as a connection (seat) of it. If the tenant may have no
    /// more connections, returns the error to send before the client is closed.
    pub fn note_secure(
        &mut self,
        env: &Env,
        id: ClientId,
        name: Option<&str>,
        now: Now,
    ) -> Result<(), String> {
        let Some(client) = self.clients.get(id) else { return Ok(()) };
        client.secure = true;
        // A client that is being closed for lack of room stays without a tenant until it has left.
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

    /// Counts a client as a connection (seat) of another tenant, or of none. Returns false and changes nothing
    /// if that tenant may have no more connections. `to` is that tenant; None for no tenant.
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

    /// Counts a client as a connection (seat) of its tenant after its identity or the quotas have changed,
    /// even if this exceeds the tenant's limit.
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

    /// Closes the client that has been without a tenant, as it has not logged in, for longest, so that another can
    /// connect. False if all clients have a tenant.
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

    /// True if some clients may have yet to log in, so that the login timeout has to be checked; false only if
    /// none has.
    pub fn has_strangers(&self) -> bool {
        self.watch_strangers
    }

    /// Closes clients that have had no tenant, as they have not logged in, for as long as the login timeout. The quotas
    /// may have a tenant for clients that have not logged in; its clients stay.
    pub fn close_strangers(&mut self, env: &mut Env, now: Now) {
        let Some(timeout) = env.settings.clients.login_timeout.filter(|_| self.watch_strangers) else {
            return;
        };
        self.watch_strangers = false;
        for place in 0..self.clients.places() {
            let Some(id) = self.clients.in_place(place) else { continue };
            let client = self.clients.at(id);
            let Some(since) = client.stranger_since else { continue };
            // A connection that is being closed already is left to the send timeout.
            if now.monotonic.since(since) >= timeout && client.ending != Ending::Deaf {
                self.expel(env, id, Counter::ClientsClosedLogin);
            } else {
                self.watch_strangers = true;
            }
        }
    }
}

/// Returns the most connections that a tenant may have: the limit in the quotas, else the one that settings give for
/// tenants without such a limit. A sole tenant without a limit may have any number, as there is no other tenant to
/// leave connections to.
fn seats_max(env: &Env, tenant: TenantId) -> u32 {
    let usual = if env.quotas.len() == 1 { u32::MAX } else { env.settings.clients.seats.usual_max() };
    env.quotas.tenant(tenant).clients_max.unwrap_or(usual)
}

/// Returns the text of the error for a client whose tenant may have no more connections; it names the tenant's
/// limit.
pub(super) fn no_seat_left(env: &Env, tenant: TenantId) -> String {
    let (name, limit) = (&env.quotas.tenant(tenant).name, seats_max(env, tenant));
    format!("OVERLOADED reason=clients scope=tenant name={name} limit={limit} retry_after_ms=1000")
}
