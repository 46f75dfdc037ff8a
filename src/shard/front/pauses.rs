//! Clients that wait by order (`CLIENT PAUSE`).

use super::Front;
use super::client::Client;
use super::pause::{Pause, Paused};
use crate::config::Quotas;
use crate::values::time::Now;
use crate::values::{ClientId, Timestamp};

impl Front {
    pub(super) fn pause(&mut self, quotas: &Quotas, pause: &Pause) {
        self.pauses.retain(|other| other.tenant != pause.tenant);
        self.pauses.push(pause.clone());
        self.apply_pauses(quotas);
    }

    /// An administrator lets everybody go on.
    pub(super) fn unpause(&mut self, quotas: &Quotas, tenant: Option<&str>) {
        self.pauses.retain(|pause| tenant.is_some() && pause.tenant.as_deref() != tenant);
        self.apply_pauses(quotas);
    }

    /// What of a client's waits by order now.
    fn paused_for(&self, quotas: &Quotas, client: &Client) -> Paused {
        let tenant = client.identity.tenant(quotas).map(|tenant| tenant.name.as_str());
        let concerns = |pause: &&Pause| {
            pause.asker != client.number
                && pause.tenant.as_deref().is_none_or(|wanted| tenant == Some(wanted))
        };
        self.pauses.iter().filter(concerns).map(|pause| pause.extent).max().unwrap_or_default()
    }

    /// What waits by order of a client that has come, or is somebody else now, or whose pauses changed.
    pub(super) fn apply_pauses_to(&mut self, quotas: &Quotas, id: ClientId) {
        let Some(paused) = self.clients.peek(id).map(|client| self.paused_for(quotas, client)) else {
            return;
        };
        let client = self.clients.at(id);
        client.paused = paused;
        // What waits for its turn to write waits on while nobody may write.
        let holds = paused == Paused::Writes && client.held_request.is_some();
        client.waits_by_order = paused == Paused::Everything || (client.waits_by_order && holds);
    }

    fn apply_pauses(&mut self, quotas: &Quotas) {
        let ids: Vec<ClientId> = self.clients.ids().collect();
        for id in ids {
            self.apply_pauses_to(quotas, id);
            self.list_to_resume(id);
        }
    }

    pub fn end_pauses(&mut self, quotas: &Quotas, now: Now) {
        if self.pause_ends().is_some_and(|at| at <= now.monotonic) {
            self.pauses.retain(|pause| pause.until > now.monotonic);
            self.apply_pauses(quotas);
        }
    }

    /// When the next of those who wait by order may go on.
    pub fn pause_ends(&self) -> Option<Timestamp> {
        self.pauses.iter().map(|pause| pause.until).min()
    }
}
