//! Settlement: the correction of a request's estimated price by its real cost, once its reply has come.

use super::accounts::{Accounts, Bill, Charge, Tab};
use crate::shard::outcome::{CACHED, Settlement};
use crate::values::Weights;
use crate::values::time::Now;

impl Settlement {
    /// Returns the final cost of a request of which some or all parts were lost, refused or answered from
    /// memory. If a part was lost, the cost is at least the price that was taken for the whole request
    /// (`charge`).
    fn bill(&self, charge: &Charge, weights: &Weights) -> Bill {
        let unbilled = weights.unbilled(&charge.quote, &self.measured);
        match (self.served, self.lost) {
            (0, 0) if self.is_refused => Bill::Shed,
            (0, 0) if self.is_throttled => Bill::Throttled,
            (0, 0) => Bill::Nothing,
            (0, CACHED) => Bill::Cached(weights.cached(self.measured.bytes_out, self.measured.rows)),
            // Backends did all of the work, or some of it, so the request costs what such work costs.
            (_, 0 | CACHED) => Bill::Cost { due: weights.actual(&charge.quote, &self.measured), unbilled },
            (0, _) => Bill::AsTaken,
            _ => {
                let due = weights.actual(&charge.quote, &self.measured).max(charge.taken);
                Bill::Cost { due, unbilled }
            }
        }
    }
}

impl Accounts {
    /// Settles a request whose reply has come or never will: its real cost replaces the price that was taken
    /// for it.
    #[inline]
    pub fn settle_reply(&mut self, charge: &Charge, reply: &Settlement, weights: &Weights, now: Now) {
        // The fast path of nearly every reply: all of it came from backends.
        if reply.served > 0 && reply.lost == 0 && reply.measured.busy_micros == 0 {
            let cost = weights.actual(&charge.quote, &reply.measured);
            return match self.tab_for(charge) {
                Some(tab) => tab.settle(charge, cost),
                None => self.settle(charge, Bill::Cost { due: cost, unbilled: 0 }, now.monotonic),
            };
        }
        let reply = self.with_billed_time(charge, reply, now);
        self.settle_other(charge, reply.bill(charge, weights), now);
    }

    /// Takes the store's time in the measurements of a reply out of the tenant's leeway (time of stores that it does
    /// not pay for), and returns the measurements with that time split into the part within the leeway, which is not
    /// billed, and the rest, which is.
    pub fn with_billed_time(&mut self, charge: &Charge, reply: &Settlement, now: Now) -> Settlement {
        let mut reply = *reply;
        let busy = reply.measured.busy_micros;
        if busy > 0 {
            let billed = self.billed_time(charge.payer, busy, now.monotonic);
            (reply.measured.busy_micros, reply.measured.unbilled_micros) = (billed, busy - billed);
        }
        reply
    }

    /// Returns the tab (sum of one payer's consecutive requests) on which a charge is settled, if it is open. A
    /// request that is never refused is settled without a tab, because its price may bring buckets only into
    /// limited debt, which a tab cannot check.
    #[inline]
    fn tab_for(&mut self, charge: &Charge) -> Option<&mut Tab> {
        if charge.is_unrefused { None } else { self.tab_of(charge.payer) }
    }

    #[inline(never)]
    fn settle_other(&mut self, charge: &Charge, bill: Bill, now: Now) {
        match (self.tab_for(charge), bill) {
            (Some(tab), Bill::Cached(cost)) => tab.settle_cached(charge, cost),
            _ => self.settle(charge, bill, now.monotonic),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::price::Quote;
    use crate::protocol::command::Class;
    use crate::shard::admission::accounts::Payer;
    use crate::shard::outcome::Outcome;
    use crate::values::{Price, TenantId, UNIT};

    /// Returns the final cost of a request for which `taken` was taken, and to which these outcomes of its parts came.
    fn billed(taken: Price, parts: &[Outcome]) -> Bill {
        let payer = Payer::new(TenantId(0), None, 0);
        let charge =
            Charge { taken, quote: Quote::default(), payer, class: Class::Multi, is_unrefused: false };
        let mut settlement = Settlement::default();
        parts.iter().for_each(|part| settlement.add(*part));
        settlement.bill(&charge, &Weights::default())
    }

    #[test]
    fn what_weir_knew_beside_what_stores_did_makes_nothing_cheaper_than_that() {
        let weights = Weights::default();
        let served = Outcome::served((10, 1), (0, 0), 0);
        let cached = Outcome::cached(10);
        let billed = |parts: &[Outcome]| billed(Price::ZERO, parts);
        let all = billed(&[served, served]);
        assert_ne!(all, billed(&[served]), "bytes have their price");
        assert_eq!([billed(&[served, cached]), billed(&[cached, served])], [all; 2]);
        assert_eq!(billed(&[cached, Outcome::Refused]), Bill::Cached(weights.cached(10, 1)));
        let several = Bill::Cached(weights.cached(30, 3));
        assert_eq!([billed(&[cached; 3]), billed(&[Outcome::cached_values(30, 3)])], [several; 2]);
        let refused =
            [&[Outcome::Refused][..], &[Outcome::Throttled], &[Outcome::Throttled, Outcome::Refused]];
        assert_eq!(refused.map(billed), [Bill::Shed, Bill::Throttled, Bill::Shed]);
        assert_eq!(billed(&[served, served, Outcome::Throttled]), all);
        let lost = billed(&[Outcome::Lost]);
        assert_eq!([billed(&[cached, Outcome::Lost]), billed(&[Outcome::Lost, cached])], [lost; 2]);
    }

    #[test]
    fn work_that_does_not_show_costs_what_it_took_also_if_more_was_taken_at_first() {
        let taken = Price::new(1_000 * UNIT);
        let due_of = |bill: Bill| match bill {
            Bill::Cost { due, .. } => due,
            other => panic!("{other:?}"),
        };
        let brief = Outcome::served((10, 1), (5_000, 0), 5_000);
        assert!(due_of(billed(taken, &[brief])) < taken);
        assert_eq!(
            due_of(billed(taken, &[brief, Outcome::Lost])),
            taken,
            "a lost part may have cost anything"
        );
    }
}
