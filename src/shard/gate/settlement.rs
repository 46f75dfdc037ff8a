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
}

/// In the place of a number of lost parts: there are none, because weir had the reply already.
const CACHED: u16 = u16::MAX;

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
                self.lost = CACHED;
                self.measured.bytes_out = self.measured.bytes_out.saturating_add(u64::from(bytes));
            }
            Outcome::Lost => self.lost = self.lost.saturating_add(1).min(CACHED - 1),
            Outcome::Refused => {}
        }
    }

    /// What that comes to, where not all of it came: what was taken for the whole at least, if a part was lost.
    fn bill(&self, charge: &Charge, weights: &Weights) -> Bill {
        match (self.served, self.lost) {
            (0, 0) => Bill::Nothing,
            (_, CACHED) => Bill::Cached(weights.cached(self.measured.bytes_out)),
            (0, _) => Bill::AsTaken,
            _ => Bill::Cost(weights.actual(&charge.quote, &self.measured).max(charge.taken)),
        }
    }
}

impl Accounts {
    /// The reply to a request is there, or will never be: what was taken for it becomes what it cost.
    #[inline]
    pub fn settle_reply(&mut self, charge: &Charge, reply: &Settlement, weights: &Weights, now: Now) {
        // Nearly every reply: all of it came.
        if reply.served > 0 && reply.lost == 0 {
            let cost = weights.actual(&charge.quote, &reply.measured);
            return match self.tab_of(charge.payer) {
                Some(tab) => tab.settle(charge, cost),
                None => self.settle(charge, Bill::Cost(cost), now.monotonic),
            };
        }
        self.settle_other(charge, reply.bill(charge, weights), now);
    }

    #[inline(never)]
    fn settle_other(&mut self, charge: &Charge, bill: Bill, now: Now) {
        match (self.tab_of(charge.payer), bill) {
            (Some(tab), Bill::Cached(cost)) => tab.settle_cached(charge, cost),
            _ => self.settle(charge, bill, now.monotonic),
        }
    }
}
