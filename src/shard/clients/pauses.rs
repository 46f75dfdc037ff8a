//! Carries out `CLIENT PAUSE`: which clients of a shard wait, and until when.

use super::ClientStage;
use super::client::Client;
use super::client_filter::ClientsAsked;
use super::pause::Paused;
use crate::config::Quotas;
use crate::values::time::Now;
use crate::values::{ClientId, Timestamp};

impl ClientStage {
    /// Begins a `CLIENT PAUSE`, or ends it (`CLIENT UNPAUSE`), on this shard, and resumes the clients that need not
    /// wait. Returns false for any other command, which changes nothing.
    pub(super) fn change_pauses(&mut self, quotas: &Quotas, asked: &ClientsAsked, now: Now) -> bool {
        let is_changed = asked.change_pauses(&mut self.pauses, now.monotonic);
        if is_changed {
            self.apply_pauses(quotas);
        }
        is_changed
    }

    /// Returns which requests of a client are held back by the pauses (`CLIENT PAUSE`) in force.
    fn paused_for(&self, quotas: &Quotas, client: &Client) -> Paused {
        let tenant = client.identity.tenant(quotas).map(|tenant| tenant.name.as_str());
        let extents = self.pauses.concerning(tenant).map(|pause| pause.extent_for(client.number));
        extents.max().unwrap_or_default()
    }

    /// Returns the pauses that concern a client and that it ordered itself, by their tenants; None for that of all
    /// clients.
    pub(super) fn pauses_ordered_by(&self, quotas: &Quotas, client: &Client) -> Vec<Option<String>> {
        let tenant = client.identity.tenant(quotas).map(|tenant| tenant.name.as_str());
        let own = self.pauses.concerning(tenant).filter(|pause| pause.asker == Some(client.number));
        own.map(|pause| pause.tenant.clone()).collect()
    }

    /// Lets the next request of a client pass whatever pauses (`CLIENT PAUSE`) are in force, until
    /// [`Self::apply_pauses_to`] is called for the client again: a blocking command that began in another process goes
    /// on here.
    pub fn exempt_from_pauses(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get(id) {
            (client.paused, client.waits_by_order) = (Paused::Nothing, false);
        }
    }

    /// Applies the pauses (`CLIENT PAUSE`) in force to a client that has just connected or changed its
    /// identity, or when pauses change.
    pub fn apply_pauses_to(&mut self, quotas: &Quotas, id: ClientId) {
        let Some(paused) = self.clients.peek(id).map(|client| self.paused_for(quotas, client)) else {
            return;
        };
        let client = self.clients.at(id);
        client.paused = paused;
        // A held request goes on waiting while the pause that held it lasts.
        let holds = client.is_paused_in_part() && client.held_request.is_some();
        client.waits_by_order = paused == Paused::Everything || (client.waits_by_order && holds);
    }

    /// Applies the pauses (`CLIENT PAUSE`) in force to all clients, and resumes those that need not wait.
    pub(super) fn apply_pauses(&mut self, quotas: &Quotas) {
        let ids: Vec<ClientId> = self.clients.ids().collect();
        for id in ids {
            self.apply_pauses_to(quotas, id);
            self.list_to_resume(id);
        }
    }

    /// Ends the pauses (`CLIENT PAUSE`) whose time is over, and resumes the clients that waited.
    pub fn end_pauses(&mut self, quotas: &Quotas, now: Now) {
        if self.pause_ends().is_some_and(|at| at <= now.monotonic) {
            self.pauses.end_late(now.monotonic);
            self.apply_pauses(quotas);
        }
    }

    /// Returns the number of clients whose next request a `CLIENT PAUSE` holds back now.
    pub fn clients_held(&self) -> usize {
        if self.pauses.is_empty() {
            return 0;
        }
        self.clients.all().filter(|client| client.is_held_by_pause()).count()
    }

    /// Returns the time at which the next of the pauses (`CLIENT PAUSE`) in force ends; None if there is
    /// none.
    pub fn pause_ends(&self) -> Option<Timestamp> {
        self.pauses.iter().map(|pause| pause.until).min()
    }
}
