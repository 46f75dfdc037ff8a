//! Who may be connected: clients that have yet to log in have little time, and make way for newcomers; a tenant has a share.

use std::time::Duration;

use super::client::Ending;
use super::counters::Counter;
use super::{Identity, Shard};
use crate::policy::seats::Seats;
use crate::values::time::Now;
use crate::values::{ClientId, TenantId};

/// What clients may hold.
#[derive(Clone, Debug)]
pub struct ClientLimits {
    /// Whoever has yet to log in is closed after so long.
    pub login_timeout: Option<Duration>,
    /// Bytes that all clients of all shards may hold together.
    pub bytes_max: usize,
    /// Connections of each tenant, over all shards.
    pub seats: Seats,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self { login_timeout: None, bytes_max: usize::MAX, seats: Seats::unlimited() }
    }
}

impl Shard {
    /// Gives a new client a seat among those who need not log in, if there are such and one is left.
    pub(super) fn seat_stranger(&mut self, id: ClientId, now: Now) {
        let stranger = Identity::stranger(&self.quotas);
        let identity = if self.change_seat(id, stranger.tenant) { stranger } else { Identity::default() };
        let client = self.clients.at(id);
        client.stranger_since = identity.tenant.is_none().then_some(now.monotonic);
        self.watch_strangers |= identity.tenant.is_none();
        client.identity = identity;
        self.apply_pauses_to(id);
    }

    /// Moves a client to a seat of a tenant. False, and nothing is changed, if the tenant has none left.
    pub(super) fn change_seat(&mut self, id: ClientId, to: Option<TenantId>) -> bool {
        let most = to.map_or(0, |tenant| self.seats_max(tenant));
        let seats = &self.settings.clients.seats;
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

    /// Connections that a tenant may have. Where there is one tenant only, there is nobody to leave any to.
    pub(super) fn seats_max(&self, tenant: TenantId) -> u32 {
        let usual = if self.quotas.len() == 1 { u32::MAX } else { self.settings.clients.seats.usual_max() };
        self.quotas.tenant(tenant).clients_max.unwrap_or(usual)
    }

    /// What somebody is told whose tenant has no place left.
    pub(super) fn no_seat_left(&self, tenant: TenantId) -> String {
        let (name, limit) = (&self.quotas.tenant(tenant).name, self.seats_max(tenant));
        format!("OVERLOADED reason=clients scope=tenant name={name} limit={limit} retry_after_ms=1000")
    }

    /// The same client under new quotas. Who had a seat has one, though there may be too many now.
    pub(super) fn keep_seat(&mut self, id: ClientId, now: Now) {
        let seats = &self.settings.clients.seats;
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
    pub fn make_room(&mut self) -> bool {
        let longest = self
            .clients
            .ids()
            .filter_map(|id| {
                self.clients.peek(id).and_then(|client| client.stranger_since).map(|since| (since, id))
            })
            .min_by_key(|(since, _)| *since);
        longest.is_some_and(|(_, id)| {
            self.expel(id, Counter::ClientsClosedLogin);
            true
        })
    }

    /// Closes those who had long enough to log in.
    pub(super) fn close_strangers(&mut self, now: Now) {
        let Some(timeout) = self.settings.clients.login_timeout.filter(|_| self.watch_strangers) else {
            return;
        };
        self.watch_strangers = false;
        for place in 0..self.clients.places() {
            let Some(id) = self.clients.in_place(place) else { continue };
            let client = self.clients.at(id);
            let Some(since) = client.stranger_since else { continue };
            // One that is being closed is waited for by the timeout of sending.
            if now.monotonic.since(since) >= timeout && client.ending != Ending::Deaf {
                self.expel(id, Counter::ClientsClosedLogin);
            } else {
                self.watch_strangers = true;
            }
        }
    }
}
