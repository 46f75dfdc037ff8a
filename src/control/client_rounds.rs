//! `CLIENT` commands that concern the clients of all shards (`CLIENT LIST` or `CLIENT KILL`, for instance).
//! Only one such command at a time is sent to the shards; their answers become one reply.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::protocol::Protocol;
use crate::shard::{ClientsAsked, ClientsTold, ReplyTo};
use crate::values::ShardId;

/// The `CLIENT` commands of clients that concern the clients of all shards, in the order in which they came:
/// the one that the shards are carrying out, and those that wait for it.
#[derive(Debug, Default)]
pub struct ClientRounds {
    under_way: Option<Round>,
    /// Commands that wait until all shards have answered the one under way. Their number is bounded, because
    /// each shard has only so many requests in flight to the control executor (the thread that handles these
    /// commands).
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
    /// Queues a client's command that concerns the clients of all shards (`CLIENT LIST` or `CLIENT KILL`, for
    /// instance). `to` is where its reply goes, and `protocol` the RESP version of the reply. Returns the
    /// command, to be sent to all `shards` shards now; None if an earlier command is still under way.
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

    /// Takes one shard's answer to the `CLIENT` command that was sent to all shards. The last shard's answer
    /// ends the command: returns where the reply goes and the reply, joined from all answers, and the caller
    /// then calls [`ClientRounds::begin`]. None while other shards have yet to answer.
    pub fn handle_told(&mut self, shard: ShardId, told: ClientsTold) -> Option<(ReplyTo, Vec<u8>)> {
        let round = self.under_way.as_mut()?;
        round.told[usize::from(shard.0)] = Some(told);
        let round = self.under_way.take_if(|round| round.told.iter().all(Option::is_some))?;
        let told = round.told.into_iter().flatten().collect();
        Some((round.to, round.asked.reply(round.protocol, told)))
    }

    /// Begins the next queued `CLIENT` command and returns it, to be sent to all shards. None if a command is
    /// under way, or none is queued.
    pub fn begin(&mut self) -> Option<Arc<ClientsAsked>> {
        if self.under_way.is_some() {
            return None;
        }
        self.under_way = self.waiting.pop_front();
        self.under_way.as_ref().map(|round| Arc::clone(&round.asked))
    }
}
