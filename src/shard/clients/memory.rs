//! The memory that clients hold together: incomplete requests, waiting requests, unread replies. Each of
//! these is bounded for one client, but many clients together could hold too much. Therefore the sum is
//! measured after every 8 MiB received, and when it is too much, the largest clients of the tenants that hold most in
//! sum are closed.

use std::collections::BinaryHeap;
use std::sync::Arc;

use super::ClientStage;
use super::client::Client;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::values::{ClientId, TenantId};

/// The bytes received from clients, backends and other cores, or written by weir itself, after which the memory of
/// clients is measured again (8 MiB). In between, the memory can grow by little more than these bytes.
const WEIGHED_EVERY: u64 = 8 * 1024 * 1024;
/// The divisor of a core's share of client memory that gives the limit for all clients together that have not
/// logged in (one sixteenth). Beyond it, those of them that hold most are closed.
const STRANGERS_PART: usize = 16;

/// The memory that clients of this core held when it was measured last; their sum decides whether some are closed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Holdings {
    bytes: usize,
    /// The number of bytes that the core had received in all when a measurement was last due; the next is due 8 MiB
    /// later. Measurements in between do not count.
    received: u64,
}

impl ClientStage {
    /// Returns the bytes of memory that clients of this core held when they were measured last, less those of clients
    /// that were closed since to free memory.
    pub fn clients_bytes(&self) -> usize {
        self.holdings.bytes
    }

    /// True if the clients of this core held more bytes of memory than the core's share when they were measured last.
    pub fn holds_much(&self, env: &Env) -> bool {
        self.holdings.bytes > env.settings.clients_bytes_share()
    }

    /// Closes the largest clients of the tenants that hold the most memory on this core, because clients of all cores
    /// hold `excess` bytes too much. Frees no more than about the bytes that this core holds above its share, and
    /// spares clients of administrators with `CLIENT NO-EVICT`.
    pub fn handle_memory_exceeded(&mut self, env: &mut Env, excess: usize) {
        let above = self.holdings.bytes.saturating_sub(env.settings.clients_bytes_share());
        let quotas = Arc::clone(&env.quotas);
        let is_kept = |client: &Client| {
            client.no_evict && client.identity.tenant(&quotas).is_some_and(|tenant| tenant.admin)
        };
        self.close_largest(env, excess.min(above), |client| !is_kept(client));
    }

    /// Measures the memory of all clients of this core if 8 MiB have been received (from clients, backends and other
    /// cores, or written by weir) since a measurement was last due.
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

    /// Measures the memory of all clients. If clients that have not logged in together hold too much, closes
    /// those of them that hold the most.
    pub fn weigh(&mut self, env: &mut Env) {
        let (mut bytes, mut strangers) = (0, 0);
        for client in self.clients.all() {
            let held = client.memory_bytes();
            bytes += held;
            strangers += if client.identity.tenant.is_none() { held } else { 0 };
        }
        self.holdings.bytes = bytes;
        let strangers_max = env.settings.clients_bytes_share() / STRANGERS_PART;
        if strangers > strangers_max {
            self.close_largest(env, strangers - strangers_max, |client| client.identity.tenant.is_none());
        }
    }

    /// Closes clients, among those that `concerned` selects, until `excess` bytes are free: each time the one
    /// that holds most among the clients of the tenant that then holds most in sum. So a tenant with many small
    /// connections does not cause the closing of the few large ones of another tenant. Clients that have not
    /// logged in count as one tenant. `concerned` is asked about each client.
    fn close_largest(&mut self, env: &mut Env, mut excess: usize, concerned: impl Fn(&Client) -> bool) {
        if excess == 0 {
            return;
        }
        let mut held: Vec<Held> = Vec::new();
        for id in self.clients.ids() {
            let client = self.clients.peek(id).filter(|client| concerned(client));
            held.extend(client.map(|client| Held {
                tenant: client.identity.tenant,
                bytes: client.memory_bytes(),
                id,
            }));
        }
        held.sort_unstable_by_key(|held| (held.tenant, std::cmp::Reverse(held.bytes)));
        let mut tenants = BinaryHeap::new();
        let mut first = 0;
        for clients in held.chunk_by(|one, other| one.tenant == other.tenant) {
            let end = first + clients.len();
            tenants
                .push(TenantHeld { bytes: clients.iter().map(|held| held.bytes).sum(), left: (first, end) });
            first = end;
        }
        while excess > 0
            && let Some(tenant) = tenants.pop()
        {
            let (next, end) = tenant.left;
            let Held { bytes, id, .. } = held[next];
            self.expel(env, id, Counter::ClientsClosedMemory);
            self.holdings.bytes = self.holdings.bytes.saturating_sub(bytes);
            excess = excess.saturating_sub(bytes);
            if next + 1 < end {
                tenants.push(TenantHeld { bytes: tenant.bytes - bytes, left: (next + 1, end) });
            }
        }
    }
}

/// The memory of one client that may be closed because clients together hold too much.
struct Held {
    /// The client's tenant; None for a client that has yet to log in.
    tenant: Option<TenantId>,
    /// The bytes of memory that the client takes.
    bytes: usize,
    id: ClientId,
}

/// The clients of one tenant that may still be closed to free memory. Tenants are compared by the bytes that these
/// clients hold together, so that a heap yields the tenant with the most.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct TenantHeld {
    /// The bytes of memory that those clients of the tenant which may still be closed take together.
    bytes: usize,
    /// The range (first index, and the index behind the last) of these clients in the list of all that may be
    /// closed, the largest first.
    left: (usize, usize),
}

#[cfg(test)]
impl ClientStage {
    /// Returns a client for reading, or None if it has left.
    pub fn peek(&self, id: ClientId) -> Option<&Client> {
        self.clients.peek(id)
    }

    /// Returns the number of bytes of all clients' requests that are incomplete or not started yet.
    pub fn undecoded_bytes(&self) -> usize {
        self.clients.all().map(|client| client.decoder.held_bytes()).sum()
    }
}
