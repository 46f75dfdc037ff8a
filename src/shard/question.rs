//! What a shard cannot know alone, and asks the control executor.

use std::collections::VecDeque;

use super::front::client_filter::ClientsAsked;
use super::request::ReplyTo;
use crate::protocol::Protocol;
use crate::values::limits::QUESTIONS_UNDER_WAY_MAX;
use crate::values::{BucketId, Capacity};

/// One scope that a client's requests are paid from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeLimit {
    /// `global`, `tenant` or `user`.
    pub scope: &'static str,
    /// Who that is.
    pub name: String,
    /// The bucket and its size; none if there is no bound.
    pub bucket: Option<(BucketId, Capacity)>,
}

/// What a shard cannot know alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// `QOS LIMITS`.
    Limits {
        /// What is asked for.
        limits: Vec<ScopeLimit>,
        /// The dialect of the reply.
        protocol: Protocol,
    },
    /// `INFO`, with the sections that were named, in lower case.
    Info {
        /// Names of sections; none means the usual ones.
        sections: Vec<String>,
        /// The dialect of the reply.
        protocol: Protocol,
    },
    /// `CLIENT LIST` and its kin.
    Clients {
        /// What is asked of the clients of all shards.
        asked: ClientsAsked,
        /// The dialect of the reply.
        protocol: Protocol,
    },
    /// `QOS HOTKEYS`.
    HotKeys {
        /// The name of the tenant that asks.
        asker: String,
        /// So many at most.
        count: usize,
        /// The dialect of the reply.
        protocol: Protocol,
    },
    /// `QOS TENANTS`.
    Tenants {
        /// The name of the tenant that asks.
        asker: String,
        /// Only tenants whose names come after this one.
        after: String,
        /// The dialect of the reply.
        protocol: Protocol,
    },
}

/// Questions of the clients of one shard, the oldest first.
#[derive(Debug, Default)]
pub struct Questions {
    /// One for each client at most: what a client asks behind it waits for the answer.
    waiting: VecDeque<(ReplyTo, Question)>,
    /// Those that the control executor has yet to answer.
    in_flight: usize,
}

impl Questions {
    /// One more.
    pub fn ask(&mut self, to: ReplyTo, question: Question) {
        self.waiting.push_back((to, question));
    }

    /// The next one, unless the control executor has enough of them.
    pub fn poll(&mut self) -> Option<(ReplyTo, Question)> {
        if self.in_flight >= QUESTIONS_UNDER_WAY_MAX {
            return None;
        }
        let question = self.waiting.pop_front()?;
        self.in_flight += 1;
        Some(question)
    }

    /// One was answered.
    pub fn handle_answer(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }
}
