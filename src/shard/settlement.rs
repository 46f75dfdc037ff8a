//! Stage 10: what a request really cost, once its reply has come.

use std::collections::HashMap;

use super::Shard;
use super::accounts::{Accounts, Bill, Charge};
use super::batch::{Outcome, ReplyTo};
use super::client::Rewrite;
use crate::policy::price::Measured;
use crate::values::time::Now;
use crate::values::{ClientId, Weights};

/// What the parts of a reply came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settlement {
    measured: Measured,
    /// Parts that a backend answered.
    served: u16,
    /// Parts that were sent and never answered.
    lost: u16,
}

impl Settlement {
    /// Of a reply in one piece.
    #[inline]
    pub fn of(outcome: Outcome) -> Self {
        let mut settlement = Self::default();
        settlement.add(outcome);
        settlement
    }

    /// One part more.
    #[inline]
    pub fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Served { bytes, rows, took_micros, slowness_micros } => {
                self.served = self.served.saturating_add(1);
                let measured = &mut self.measured;
                measured.bytes_out = measured.bytes_out.saturating_add(u64::from(bytes));
                measured.rows = measured.rows.saturating_add(u64::from(rows));
                measured.took_micros = measured.took_micros.max(u64::from(took_micros));
                measured.slowness_micros = measured.slowness_micros.max(u64::from(slowness_micros));
            }
            Outcome::Lost => self.lost = self.lost.saturating_add(1),
            Outcome::Refused => {}
        }
    }

    /// What that comes to. Where a part was lost, it is what was taken for the whole at least.
    #[inline]
    fn bill(&self, charge: &Charge, weights: &Weights) -> Bill {
        match (self.served, self.lost) {
            (0, 0) => Bill::Nothing,
            (0, _) => Bill::AsTaken,
            (_, 0) => Bill::Cost(weights.actual(&charge.quote, &self.measured)),
            _ => Bill::Cost(weights.actual(&charge.quote, &self.measured).max(charge.taken)),
        }
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
        let bill = reply.bill(charge, weights);
        match (self.tab_of(charge.payer), bill) {
            (Some(tab), Bill::Cost(cost)) => tab.settle(charge, cost),
            _ => self.settle(charge, bill, now.monotonic),
        }
    }
}

impl Departed {
    fn part_arrived(&mut self, to: ReplyTo, outcome: Outcome) -> Option<Owing> {
        let key = (ClientId { index: to.client, generation: to.generation }, to.sequence);
        let owing = self.0.get_mut(&key)?;
        owing.settlement.add(outcome);
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
    pub(super) fn settle_departed(&mut self, to: ReplyTo, outcome: Outcome, now: Now) {
        if let Some(owing) = self.departed.part_arrived(to, outcome) {
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
                Rewrite::AsItCame | Rewrite::Cursor { .. } | Rewrite::Splice => (1, Settlement::default()),
            };
            self.departed.0.insert((id, sequence), Owing { charge, parts_left, settlement });
        }
    }
}
