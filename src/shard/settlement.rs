//! Stage 10: what a request really cost, once its reply has come.

use std::collections::HashMap;

use super::Shard;
use super::accounts::{Accounts, Charge};
use super::batch::{Outcome, ReplyTo};
use super::client::Rewrite;
use crate::policy::price::Measured;
use crate::values::time::Now;
use crate::values::{ClientId, Weights};

/// What the parts of a reply came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settlement {
    measured: Measured,
    /// A backend did at least a part of the work.
    served: bool,
}

impl Settlement {
    /// Of a reply in one piece.
    pub fn of(outcome: Outcome, bytes: usize) -> Self {
        let mut settlement = Self::default();
        settlement.add(outcome, bytes);
        settlement
    }

    /// One part more.
    pub fn add(&mut self, outcome: Outcome, bytes: usize) {
        let Outcome::Served { rows, slowness_micros } = outcome else { return };
        self.served = true;
        self.measured.bytes_out += bytes as u64;
        self.measured.rows += u64::from(rows);
        self.measured.slowness_micros = self.measured.slowness_micros.max(u64::from(slowness_micros));
    }
}

/// Requests under way whose clients have left: they still cost what they cost.
#[derive(Debug, Default)]
pub(super) struct Departed(HashMap<(ClientId, u32), Owing>);

#[derive(Debug)]
struct Owing {
    charge: Charge,
    parts_left: usize,
    settlement: Settlement,
}

impl Accounts {
    /// The reply to a request is there, or will never be: what was taken for it becomes what it cost.
    #[inline]
    pub(super) fn settle_reply(&mut self, charge: &Charge, reply: &Settlement, weights: &Weights, now: Now) {
        if !reply.served {
            return self.settle(charge, None, now.monotonic);
        }
        let cost = weights.actual(&charge.quote, &reply.measured);
        match self.tab_of(charge.payer) {
            Some(tab) => tab.settle(charge, cost),
            None => self.settle(charge, Some(cost), now.monotonic),
        }
    }
}

impl Departed {
    fn part_arrived(&mut self, to: ReplyTo, outcome: Outcome, bytes: usize) -> Option<Owing> {
        let key = (ClientId { index: to.client, generation: to.generation }, to.sequence);
        let owing = self.0.get_mut(&key)?;
        owing.settlement.add(outcome, bytes);
        owing.parts_left -= 1;
        if owing.parts_left == 0 { self.0.remove(&key) } else { None }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Gives back what many requests took that are over.
    pub fn tidy(&mut self) {
        if self.0.is_empty() {
            self.0.shrink_to_fit();
        }
    }
}

impl Shard {
    /// What was taken for a request becomes what it cost.
    pub(super) fn settle_charge(&mut self, charge: &Charge, reply: &Settlement, now: Now) {
        self.accounts.settle_reply(charge, reply, &self.settings.admission.weights, now);
    }

    /// A reply, or a part of one, to a client that has left.
    pub(super) fn settle_departed(&mut self, to: ReplyTo, outcome: Outcome, bytes: usize, now: Now) {
        if let Some(owing) = self.departed.part_arrived(to, outcome, bytes) {
            self.settle_charge(&owing.charge, &owing.settlement, now);
        }
    }

    /// A client leaves before it was answered.
    pub(super) fn remember_charges(&mut self, id: ClientId) {
        let charges: Vec<_> =
            self.clients.get(id).map(|client| client.open_charges().collect()).unwrap_or_default();
        for (sequence, rewrite, charge) in charges {
            let (parts_left, settlement) = match rewrite {
                Rewrite::Gather(index) => self.gathers.parts_missing(index),
                Rewrite::AsItCame | Rewrite::Cursor { .. } => (1, Settlement::default()),
            };
            self.departed.0.insert((id, sequence), Owing { charge, parts_left, settlement });
        }
    }
}
