//! Requests that were answered before their stores replied, at their deadline for instance. Stores carry them out
//! all the same, so they are charged the rest of their price once the replies have come.

use super::abandoned::Abandoned;
use crate::shard::admission::Charge;
use crate::shard::outcome::{Outcome, Settlement};
use crate::shard::request::ReplyTo;

/// The charged requests of one core's clients that were answered with an error although their stores still work on
/// them, and those whose stores have replied since.
#[derive(Debug, Default)]
pub struct LatePrices {
    expected: Abandoned,
    known: Vec<(Charge, Settlement)>,
}

impl LatePrices {
    /// Records that a request, or one part of it, is answered before its store has replied. `charge` is the price
    /// that was taken for the whole request.
    pub fn expect(&mut self, to: ReplyTo, charge: &Charge) {
        self.expected.remember_part(to, charge);
    }

    /// Records that the store has replied to a request, or to one part of it, after weir had answered it, or
    /// that it never will reply; `outcome` says which of the two, and has the measurements of the reply.
    pub fn handle_late(&mut self, to: ReplyTo, outcome: Outcome) {
        if let Some(owing) = self.expected.part_arrived(to, outcome)
            && owing.settlement.served > 0
        {
            self.known.push((owing.charge, owing.settlement));
        }
    }

    /// True if there are requests whose stores have replied since [`Self::take_known`] was called last.
    pub fn has_known(&self) -> bool {
        !self.known.is_empty()
    }

    /// Takes the requests whose stores have replied: the price that was taken for each, and the measurements of all
    /// late parts of the reply.
    pub fn take_known(&mut self) -> Vec<(Charge, Settlement)> {
        std::mem::take(&mut self.known)
    }

    /// Returns the number of requests that were answered and whose stores are still to reply.
    pub fn len(&self) -> usize {
        self.expected.len()
    }

    /// Frees unused memory if no reply is awaited.
    pub fn tidy(&mut self) {
        self.expected.tidy();
    }
}
