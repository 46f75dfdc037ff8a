//! Carries out `CLIENT PAUSE`: which clients of a shard wait, and until when.

use super::ClientStage;
use super::client::Client;
use super::pause::{Pause, Paused};
use crate::config::Quotas;
use crate::values::time::Now;
use crate::values::{ClientId, Timestamp};

impl ClientStage {
    /// Begins a `CLIENT PAUSE` on this shard. An earlier pause of the same tenant (or, if this one is for all
    /// clients, an earlier one for all) is joined with it: both last until the later end, and hold back
    /// whatever either of them holds back.
    pub(super) fn pause(&mut self, quotas: &Quotas, pause: &Pause, now: Now) {
        self.pauses.retain(|earlier| earlier.until > now.monotonic);
        match self.pauses.iter_mut().find(|other| other.tenant == pause.tenant) {
            Some(earlier) => earlier.extend(pause),
            None => self.pauses.push(pause.clone()),
        }
        self.apply_pauses(quotas);
    }

    /// Ends the `CLIENT PAUSE` of one tenant, or with None all pauses, and resumes the clients that waited.
    pub(super) fn unpause(&mut self, quotas: &Quotas, tenant: Option<&str>) {
        self.pauses.retain(|pause| tenant.is_some() && pause.tenant.as_deref() != tenant);
        self.apply_pauses(quotas);
    }

    /// Returns which requests of a client are held back by the pauses (`CLIENT PAUSE`) in force.
    fn paused_for(&self, quotas: &Quotas, client: &Client) -> Paused {
        let tenant = client.identity.tenant(quotas).map(|tenant| tenant.name.as_str());
        let concerns = |pause: &&Pause| pause.tenant.as_deref().is_none_or(|wanted| tenant == Some(wanted));
        let extents = self.pauses.iter().filter(concerns).map(|pause| pause.extent_for(client.number));
        extents.max().unwrap_or_default()
    }

    /// Applies the pauses (`CLIENT PAUSE`) in force to a client that has just connected or changed its
    /// identity, or when pauses change.
    pub(super) fn apply_pauses_to(&mut self, quotas: &Quotas, id: ClientId) {
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
            self.pauses.retain(|pause| pause.until > now.monotonic);
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
