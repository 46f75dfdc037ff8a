//! Questions of clients that concern the clients of all shards (`CLIENT LIST`, say). One such question at a
//! time is with the shards; their answers become one reply.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::protocol::Protocol;
use crate::shard::{ClientsAsked, ClientsTold, ReplyTo};
use crate::values::ShardId;

/// Questions about the clients of all shards, in the order in which they came.
#[derive(Debug, Default)]
pub struct ClientRounds {
    under_way: Option<Round>,
    /// Questions that wait until the one under way is answered; their number is bounded by that of questions
    /// which the control executor takes from shards.
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
    /// Queues a question. Returns the question to put to all shards now, if none was under way.
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

    /// Takes a shard's answer to the question under way. After the last shard's, returns the joined reply and
    /// its addressee; the caller then calls [`ClientRounds::begin`].
    pub fn handle_told(&mut self, shard: ShardId, told: ClientsTold) -> Option<(ReplyTo, Vec<u8>)> {
        let round = self.under_way.as_mut()?;
        round.told[usize::from(shard.0)] = Some(told);
        let round = self.under_way.take_if(|round| round.told.iter().all(Option::is_some))?;
        let told = round.told.into_iter().flatten().collect();
        Some((round.to, round.asked.reply(round.protocol, told)))
    }

    /// Starts the next question, unless one is under way. Returns it, to be sent to all shards; None if there
    /// is none to start.
    pub fn begin(&mut self) -> Option<Arc<ClientsAsked>> {
        if self.under_way.is_some() {
            return None;
        }
        self.under_way = self.waiting.pop_front();
        self.under_way.as_ref().map(|round| Arc::clone(&round.asked))
    }
}
