//! What a request really cost, once its reply has come.

use super::accounts::{Accounts, Bill, Charge};
use crate::policy::price::Measured;
use crate::shard::outcome::Outcome;
use crate::values::Weights;
use crate::values::time::Now;

/// What the parts of a reply came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    measured: Measured,
    /// Parts that a backend answered.
    served: u16,
    /// Parts that were sent and never answered.
    lost: u16,
    /// Weir had the reply already.
    is_cached: bool,
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
            Outcome::Cached { bytes } => {
                self.is_cached = true;
                self.measured.bytes_out = self.measured.bytes_out.saturating_add(u64::from(bytes));
            }
            Outcome::Lost => self.lost = self.lost.saturating_add(1),
            Outcome::Refused => {}
        }
    }

    /// What that comes to. Where a part was lost, it is what was taken for the whole at least.
    #[inline]
    fn bill(&self, charge: &Charge, weights: &Weights) -> Bill {
        match (self.served, self.lost) {
            (0, 0) if self.is_cached => Bill::Cached(weights.cached(self.measured.bytes_out)),
            (0, 0) => Bill::Nothing,
            (0, _) => Bill::AsTaken,
            (_, 0) => Bill::Cost(weights.actual(&charge.quote, &self.measured)),
            _ => Bill::Cost(weights.actual(&charge.quote, &self.measured).max(charge.taken)),
        }
    }
}

impl Accounts {
    /// The reply to a request is there, or will never be: what was taken for it becomes what it cost.
    #[inline]
    pub fn settle_reply(&mut self, charge: &Charge, reply: &Settlement, weights: &Weights, now: Now) {
        let bill = reply.bill(charge, weights);
        match (self.tab_of(charge.payer), bill) {
            (Some(tab), Bill::Cost(cost)) => tab.settle(charge, cost),
            (Some(tab), Bill::Cached(cost)) => tab.settle_cached(charge, cost),
            _ => self.settle(charge, bill, now.monotonic),
        }
    }
}
