//! Requests of clients that a shard cannot answer alone, and passes to the control executor.

use std::collections::VecDeque;

use super::client_filter::ClientsAsked;
use crate::protocol::Protocol;
use crate::shard::request::ReplyTo;
use crate::values::limits::QUESTIONS_UNDER_WAY_MAX;
use crate::values::{BucketId, Capacity};

/// One of the quota scopes (global, tenant, user) that a client's requests are charged to, with its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeLimit {
    /// Kind of the scope: `global`, `tenant` or `user`.
    pub scope: &'static str,
    /// Name of the scope as the reply shows it: `global`, the tenant's name, or `tenant/user`.
    pub name: String,
    /// The token bucket of the scope, and its rate and burst; None if the scope is unlimited.
    pub bucket: Option<(BucketId, Capacity)>,
}

/// Fields of the stores' own `INFO` that a client may see in weir's `INFO`, which depend on its rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreView {
    /// The client sees only the stores' settings, which show nothing of other clients' requests or keys.
    Settings,
    /// The client, which may use all keys, sees the stores' settings and the numbers of their keys.
    KeyCounts,
    /// The client is an administrator, and may see all fields.
    All,
}

/// A client's request that needs data of all shards, which only the control executor can collect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The command `QOS LIMITS`, which shows how much of its quotas is left for the client.
    Limits {
        /// The quota scopes (global, tenant, user) of the client whose limits and remaining amounts are asked
        /// for.
        limits: Vec<ScopeLimit>,
        /// The RESP version that the client speaks, in which the reply is written.
        protocol: Protocol,
    },
    /// The command `INFO`, with the names of sections in lower case.
    Info {
        /// Names of the sections; empty means the default sections.
        sections: Vec<String>,
        /// Fields of the stores' own `INFO` that the client may see.
        view: StoreView,
        /// The RESP version that the client speaks, in which the reply is written.
        protocol: Protocol,
    },
    /// The command `CLIENT LIST`, or another that concerns clients of all shards (`KILL`, `UNBLOCK`, `PAUSE`,
    /// `UNPAUSE`).
    Clients {
        /// The command: which clients it selects, and what is done with them.
        asked: ClientsAsked,
        /// The RESP version that the client speaks, in which the reply is written.
        protocol: Protocol,
    },
    /// The command `QOS HOTKEYS`, which lists the keys with the most requests.
    HotKeys {
        /// Name of the tenant whose client sent the command, which decides what the reply shows; empty before the
        /// client has logged in.
        asker: String,
        /// The largest number of keys to return.
        count: usize,
        /// The RESP version that the client speaks, in which the reply is written.
        protocol: Protocol,
    },
    /// The command `QOS TENANTS`, which shows the request units that tenants have asked for and got, and which quotas
    /// would suit them.
    Tenants {
        /// Name of the tenant whose client sent the command, which decides what the reply shows; empty before the
        /// client has logged in.
        asker: String,
        /// Only tenants whose names come after this one are listed; all if it is empty.
        after: String,
        /// The RESP version that the client speaks, in which the reply is written.
        protocol: Protocol,
    },
}

/// Questions of one shard's clients for the control executor (the thread that collects data of all shards), the oldest
/// first. At most 64 are with it at a time; the others wait here.
#[derive(Debug, Default)]
pub struct Questions {
    /// Requests that wait for the control executor (the thread that collects data of all shards), with the address of
    /// their reply. A client has at most one: its later requests wait for the reply.
    waiting: VecDeque<(ReplyTo, Question)>,
    /// Number of clients' requests (such as `QOS LIMITS`) that were passed to the control executor (the thread that
    /// collects data of all shards), which has not answered them yet; at most 64.
    in_flight: usize,
}

impl Questions {
    /// Queues a request for the control executor (the thread that collects data of all shards); `to` is the address of
    /// the reply.
    pub fn ask(&mut self, to: ReplyTo, question: Question) {
        self.waiting.push_back((to, question));
    }

    /// Removes and returns the next request for the control executor (the thread that collects data of all shards);
    /// None if there is none, or if 64 requests of this shard are unanswered.
    pub fn poll(&mut self) -> Option<(ReplyTo, Question)> {
        if self.in_flight >= QUESTIONS_UNDER_WAY_MAX {
            return None;
        }
        let question = self.waiting.pop_front()?;
        self.in_flight += 1;
        Some(question)
    }

    /// Records that the control executor has answered one request, so that another may be passed to it.
    pub fn handle_answer(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }
}
