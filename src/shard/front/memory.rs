//! What clients hold in memory, all together: requests that are not whole, requests that wait, replies that nobody reads. Each
//! has its own bound, and many clients together would pass any; so they are weighed now and then, and those that hold most
//! are closed when all of them hold too much.

use super::Front;
use super::client::Client;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::values::ClientId;

/// Clients are weighed when so many bytes have come in since, from whatever side: they cannot hold much more than that.
const WEIGHED_EVERY: u64 = 8 * 1024 * 1024;
/// All that have yet to log in may together hold this part of what all clients may.
const STRANGERS_PART: usize = 16;

/// What clients held when they were weighed last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Holdings {
    bytes: usize,
    /// Of those that have yet to log in.
    strangers: usize,
    /// Bytes that had come in by then.
    received: u64,
}

impl Front {
    /// Bytes that clients of this core hold, as of when they were weighed last.
    pub fn clients_bytes(&self) -> usize {
        self.holdings.bytes
    }

    /// Do clients of this core hold more than its share?
    pub fn holds_much(&self, env: &Env) -> bool {
        self.holdings.bytes > env.settings.clients_bytes_share()
    }

    /// Clients of all cores hold so many bytes too much: those of this one that hold most are closed, as long as this core has
    /// more than its share.
    pub fn handle_memory_exceeded(&mut self, env: &mut Env, excess: usize) {
        let above = self.holdings.bytes.saturating_sub(env.settings.clients_bytes_share());
        self.close_largest(env, excess.min(above), |client| !client.no_evict);
    }

    pub fn weigh_if_due(&mut self, env: &mut Env) {
        let received = [
            Counter::ClientBytesReceived,
            Counter::BackendBytesReceived,
            Counter::BatchBytesReceived,
            Counter::AnswerBytes,
        ];
        let received = received.iter().map(|counter| env.counters.get(*counter)).sum();
        if received - self.holdings.received >= WEIGHED_EVERY {
            self.holdings.received = received;
            self.weigh(env);
        }
    }

    pub fn weigh(&mut self, env: &mut Env) {
        let (mut bytes, mut strangers) = (0, 0);
        for client in self.clients.all() {
            let held = client.memory_bytes();
            bytes += held;
            strangers += if client.identity.tenant.is_none() { held } else { 0 };
        }
        (self.holdings.bytes, self.holdings.strangers) = (bytes, strangers);
        let strangers_max = env.settings.clients_bytes_share() / STRANGERS_PART;
        if strangers > strangers_max {
            self.close_largest(env, strangers - strangers_max, |client| client.identity.tenant.is_none());
        }
    }

    /// Closes those that hold most until so many bytes are free.
    fn close_largest(&mut self, env: &mut Env, mut excess: usize, concerned: impl Fn(&Client) -> bool) {
        if excess == 0 {
            return;
        }
        let mut largest: Vec<(usize, ClientId)> = Vec::new();
        for id in self.clients.ids() {
            let client = self.clients.peek(id).filter(|client| concerned(client));
            largest.extend(client.map(|client| (client.memory_bytes(), id)));
        }
        largest.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        for (bytes, id) in largest {
            if excess == 0 {
                return;
            }
            self.expel(env, id, Counter::ClientsClosedMemory);
            self.holdings.bytes = self.holdings.bytes.saturating_sub(bytes);
            excess = excess.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
impl Front {
    /// A client, to look at only.
    pub fn peek(&self, id: ClientId) -> Option<&Client> {
        self.clients.peek(id)
    }

    /// Bytes of requests that are not whole, or wait.
    pub fn undecoded_bytes(&self) -> usize {
        self.clients.all().map(|client| client.decoder.held_bytes()).sum()
    }
}
