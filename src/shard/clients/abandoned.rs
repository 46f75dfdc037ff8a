//! Requests in flight whose clients have left: they are charged for as before.

use std::collections::HashMap;

use crate::shard::admission::Charge;
use crate::shard::outcome::{Outcome, Settlement};
use crate::shard::request::ReplyTo;
use crate::values::ClientId;

/// The requests in flight whose clients have left, by the client's id and the request's sequence number.
#[derive(Debug, Default)]
pub struct Abandoned(HashMap<(ClientId, u32), Owing>);

/// A request in flight whose client has left, and whose charge is still to be settled.
#[derive(Debug)]
pub struct Owing {
    /// The charge that was taken for the request.
    pub charge: Charge,
    /// The number of parts of the reply that are still to come.
    pub parts_left: usize,
    /// The measurements of the parts that have come, from which the cost follows.
    pub settlement: Settlement,
}

impl Abandoned {
    /// Keeps the charge of a request whose client has left before it was answered.
    pub fn remember(&mut self, id: ClientId, sequence: u32, owing: Owing) {
        self.0.insert((id, sequence), owing);
    }

    /// Counts a reply, or one part of it. Returns the charge to settle once all parts have come; None before,
    /// and for a request that is not kept here.
    pub fn part_arrived(&mut self, to: ReplyTo, outcome: Outcome) -> Option<Owing> {
        let key = (to.client_id(), to.sequence);
        let owing = self.0.get_mut(&key)?;
        owing.settlement.add(outcome);
        owing.parts_left -= 1;
        if owing.parts_left == 0 { self.0.remove(&key) } else { None }
    }

    /// Returns the number of requests of departed clients whose charge is still to be settled.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Frees spare memory if no request is left.
    pub fn tidy(&mut self) {
        if self.0.is_empty() {
            self.0.shrink_to_fit();
        }
    }
}
