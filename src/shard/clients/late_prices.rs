//! Requests that were answered before their stores replied, at their deadline for instance. Stores carry them out
//! all the same, so they are charged the rest of their price once the replies have come.

use std::collections::HashMap;

use crate::shard::admission::Charge;
use crate::shard::outcome::{Outcome, Settlement};
use crate::shard::request::ReplyTo;
use crate::values::ClientId;

/// The charged requests of one core's clients that were answered with an error although their stores still work on
/// them, and those whose stores have replied since.
#[derive(Debug, Default)]
pub struct LatePrices {
    expected: HashMap<(ClientId, u32), Expected>,
    known: Vec<(Charge, Settlement)>,
}

/// A request that was answered before its store replied.
#[derive(Debug)]
struct Expected {
    /// The price that was taken for the whole request.
    charge: Charge,
    /// The number of parts of the reply that are still to come.
    parts_left: u32,
    /// The measurements of the late parts that have come.
    settlement: Settlement,
}

impl LatePrices {
    /// Records that a request, or one part of it, is answered before its store has replied. `charge` is the price
    /// that was taken for the whole request.
    pub fn expect(&mut self, to: ReplyTo, charge: &Charge) {
        let key = (to.client_id(), to.sequence);
        let fresh = Expected { charge: *charge, parts_left: 0, settlement: Settlement::default() };
        self.expected.entry(key).or_insert(fresh).parts_left += 1;
    }

    /// Records that the store has replied to a request, or to one part of it, after weir had answered it, or that it
    /// never will; `outcome` tells which, and what was measured.
    pub fn handle_late(&mut self, to: ReplyTo, outcome: Outcome) {
        let key = (to.client_id(), to.sequence);
        let Some(request) = self.expected.get_mut(&key) else { return };
        request.settlement.add(outcome);
        request.parts_left -= 1;
        if request.parts_left == 0 {
            let (charge, settlement) = (request.charge, request.settlement);
            self.expected.remove(&key);
            if settlement.served > 0 {
                self.known.push((charge, settlement));
            }
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

    /// Returns the number of requests whose stores are still to reply.
    pub fn len(&self) -> usize {
        self.expected.len()
    }

    /// Frees unused memory if no reply is awaited.
    pub fn tidy(&mut self) {
        if self.expected.is_empty() {
            self.expected.shrink_to_fit();
        }
    }
}
