//! Questions of clients that concern the clients of all shards (`CLIENT LIST`, for instance). Only one such
//! question at a time is sent to the shards; their answers become one reply.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::protocol::Protocol;
use crate::shard::{ClientsAsked, ClientsTold, ReplyTo};
use crate::values::ShardId;

/// Questions about the clients of all shards, in the order in which they came.
#[derive(Debug, Default)]
pub struct ClientRounds {
    under_way: Option<Round>,
    /// Questions that wait until the one sent to the shards is answered. Their number is bounded, because the
    /// control executor takes only so many questions from shards.
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
    /// Queues a question about the clients of all shards (`CLIENT LIST`, for instance), to be answered in the
    /// RESP version `protocol` to `to`. Returns the question to send to all `shards` shards now; None if an
    /// earlier one is unanswered.
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

    /// Takes a shard's answer to the `CLIENT` command that all shards are being asked about. After the last
    /// shard's, returns the joined reply and the address that it goes to, and the caller calls
    /// [`ClientRounds::begin`] for the next command; None before.
    pub fn handle_told(&mut self, shard: ShardId, told: ClientsTold) -> Option<(ReplyTo, Vec<u8>)> {
        let round = self.under_way.as_mut()?;
        round.told[usize::from(shard.0)] = Some(told);
        let round = self.under_way.take_if(|round| round.told.iter().all(Option::is_some))?;
        let told = round.told.into_iter().flatten().collect();
        Some((round.to, round.asked.reply(round.protocol, told)))
    }

    /// Starts the next queued question about the clients of all shards, unless one is unanswered. Returns it,
    /// to be sent to all shards; None if there is none to start.
    pub fn begin(&mut self) -> Option<Arc<ClientsAsked>> {
        if self.under_way.is_some() {
            return None;
        }
        self.under_way = self.waiting.pop_front();
        self.under_way.as_ref().map(|round| Arc::clone(&round.asked))
    }
}
