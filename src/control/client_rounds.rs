//! What a client wants of the clients of all shards (`CLIENT LIST` and its kin): one such question at a time is with the shards, and
//! what they say becomes one reply.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::protocol::Protocol;
use crate::shard::{ClientsAsked, ClientsTold, ReplyTo};
use crate::values::ShardId;

/// The questions, in the order they came.
#[derive(Debug, Default)]
pub struct ClientRounds {
    under_way: Option<Round>,
    /// No more than clients wait for an answer of the control executor.
    waiting: VecDeque<Round>,
}

#[derive(Debug)]
struct Round {
    to: ReplyTo,
    asked: Arc<ClientsAsked>,
    protocol: Protocol,
    told: Vec<Option<ClientsTold>>,
}

impl ClientRounds {
    /// One more question. What is to be put to all shards now, if anything.
    pub fn ask(
        &mut self,
        to: ReplyTo,
        asked: ClientsAsked,
        protocol: Protocol,
        shards: usize,
    ) -> Option<Arc<ClientsAsked>> {
        let told = std::iter::repeat_with(|| None).take(shards).collect();
        self.waiting.push_back(Round { to, asked: Arc::new(asked), protocol, told });
        self.begin()
    }

    /// A shard has answered. The reply, and to whom, if it was the last one; `begin` follows.
    pub fn handle_told(&mut self, shard: ShardId, told: ClientsTold) -> Option<(ReplyTo, Vec<u8>)> {
        let round = self.under_way.as_mut()?;
        round.told[usize::from(shard.0)] = Some(told);
        let round = self.under_way.take_if(|round| round.told.iter().all(Option::is_some))?;
        let told = round.told.into_iter().flatten().collect();
        Some((round.to, round.asked.reply(round.protocol, told)))
    }

    /// What is to be put to all shards, if none is under way.
    pub fn begin(&mut self) -> Option<Arc<ClientsAsked>> {
        if self.under_way.is_some() {
            return None;
        }
        self.under_way = self.waiting.pop_front();
        self.under_way.as_ref().map(|round| Arc::clone(&round.asked))
    }
}
