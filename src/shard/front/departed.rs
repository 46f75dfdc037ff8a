//! Requests in flight whose clients have left: they still cost what they cost.

use std::collections::HashMap;

use crate::shard::gate::{Charge, Settlement};
use crate::shard::outcome::Outcome;
use crate::shard::request::ReplyTo;
use crate::values::ClientId;

/// All of a shard's, by who they were and the number of the request.
#[derive(Debug, Default)]
pub struct Departed(HashMap<(ClientId, u32), Owing>);

/// A request whose client is not there any more.
#[derive(Debug)]
pub struct Owing {
    /// What was taken for it.
    pub charge: Charge,
    /// Parts of its reply that are still to come.
    pub parts_left: usize,
    /// What the others came to.
    pub settlement: Settlement,
}

impl Departed {
    /// A client leaves before this request of it was answered.
    pub fn remember(&mut self, id: ClientId, sequence: u32, owing: Owing) {
        self.0.insert((id, sequence), owing);
    }

    /// A reply, or a part of one. What the request owes, once all of it is there.
    pub fn part_arrived(&mut self, to: ReplyTo, outcome: Outcome) -> Option<Owing> {
        let key = (to.client_id(), to.sequence);
        let owing = self.0.get_mut(&key)?;
        owing.settlement.add(outcome);
        owing.parts_left -= 1;
        if owing.parts_left == 0 { self.0.remove(&key) } else { None }
    }

    /// How many there are.
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
