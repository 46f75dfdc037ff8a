//! Requests in flight whose replies no client awaits any more. They are charged for all the same, once their
//! replies come.

use std::collections::HashMap;

use crate::shard::admission::Charge;
use crate::shard::outcome::{Outcome, Settlement};
use crate::shard::request::ReplyTo;
use crate::values::ClientId;

/// Charged requests in flight whose replies no client awaits, because the client has disconnected, or was
/// answered with an error in place of the reply. By the client's id and the request's sequence number.
#[derive(Debug, Default)]
pub struct Abandoned(HashMap<(ClientId, u32), Owing>);

/// A request in flight whose reply no client awaits, with its charge, which is corrected to the real price when the
/// reply comes.
#[derive(Debug)]
pub struct Owing {
    /// The estimated price that was taken for the request, which is corrected to the real one when the reply has
    /// come.
    pub charge: Charge,
    /// The number of parts of the reply that are still to come (1 at first for a request that was not split).
    pub parts_left: usize,
    /// The measurements of the parts of the reply that have come; the real price follows from them.
    pub settlement: Settlement,
}

impl Abandoned {
    /// Keeps the charge of the request in flight with this sequence number whose client has disconnected.
    /// `owing` has the charge and the number of parts of the reply that are still to come.
    pub fn remember(&mut self, id: ClientId, sequence: u32, owing: Owing) {
        self.0.insert((id, sequence), owing);
    }

    /// Keeps the charge of a request in flight, one part of whose reply the client does not await any more.
    /// Called once for each part that the client no longer awaits.
    pub fn remember_part(&mut self, to: ReplyTo, charge: &Charge) {
        let fresh = Owing { charge: *charge, parts_left: 0, settlement: Settlement::default() };
        self.0.entry((to.client_id(), to.sequence)).or_insert(fresh).parts_left += 1;
    }

    /// Returns the charge of a request in flight whose reply no client awaits; None if no charge is kept here
    /// for the request.
    pub fn charge_of(&self, to: ReplyTo) -> Option<&Charge> {
        self.0.get(&(to.client_id(), to.sequence)).map(|owing| &owing.charge)
    }

    /// Counts a reply, or one part of it, that no client awaits. `outcome` is the result of the part, with its
    /// measurements. Returns the charge, to be corrected to the real price, once all parts have come; None
    /// before, and for a request whose charge is not kept here.
    pub fn part_arrived(&mut self, to: ReplyTo, outcome: Outcome) -> Option<Owing> {
        let key = (to.client_id(), to.sequence);
        let owing = self.0.get_mut(&key)?;
        owing.settlement.add(outcome);
        owing.parts_left -= 1;
        if owing.parts_left == 0 { self.0.remove(&key) } else { None }
    }

    /// Returns the number of requests in flight whose charge is still to be corrected to the real price.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Frees unused memory if no charge is kept.
    pub fn tidy(&mut self) {
        if self.0.is_empty() {
            self.0.shrink_to_fit();
        }
    }
}
