//! Messages about shared channels: between a core whose clients are subscribed and the home core of a channel
//! or pattern. They go in order both ways, so that none overtakes an earlier one.
//!
//! ```text
//! core with subscribers ── Join, Leave, Forget ──> home core of the name ── SUBSCRIBE, UNSUBSCRIBE ──> store
//! <── Joined, Refused, Lost, Message, Numbers ──
//! ```

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use crate::protocol::command::Subscription;
use crate::protocol::reply;
use crate::values::limits::SHARED_MESSAGES_BYTES_MAX;
use crate::values::{ClientId, TenantId};

/// Number of kinds of names for which weir can have one subscription for all its clients: channels and
/// patterns.
pub const SHARED_KINDS: usize = 2;

/// A channel or pattern for which weir has one subscription for all its clients, as one core with subscribers
/// refers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedName {
    /// Kind of the name: channels or patterns.
    pub kind: Subscription,
    /// The name of the channel, or the text of the pattern.
    pub name: Bytes,
    /// Number that the core gave its present set of subscribers of the name when the first of them came. Messages with
    /// another number concern an earlier set.
    pub generation: u32,
}

/// Message from a core with subscribers to the home core (the one that subscribes for all clients) of a
/// channel or pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHome {
    /// A client of the sending core subscribes to a channel or pattern.
    Join {
        /// The name of the channel or pattern.
        name: SharedName,
        /// The client that subscribes.
        client: ClientId,
        /// Tenant of the client.
        tenant: TenantId,
    },
    /// A client has ended its subscription to a channel or pattern, or has disconnected.
    Leave {
        /// The name of the channel or pattern.
        name: SharedName,
        /// The client whose subscription has ended.
        client: ClientId,
    },
    /// The core has dropped all its subscribers, because the home core (the one that subscribes for all
    /// clients) has lost the subscription.
    Forget {
        /// The channel or pattern whose subscription was lost.
        name: SharedName,
    },
}

/// Message from the home core (the one that subscribes for all clients) of a channel or pattern to a core with
/// subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromHome {
    /// All stores have acknowledged the subscription of a client, which gets all messages from here on.
    Joined {
        /// The name of the channel or pattern.
        name: SharedName,
        /// The client that has subscribed.
        client: ClientId,
    },
    /// A client's subscription to a channel or pattern is refused.
    Refused {
        /// The name of the channel or pattern.
        name: SharedName,
        /// The client whose subscription is refused.
        client: ClientId,
        /// The error reply that the client gets.
        error: Bytes,
    },
    /// The connection to a store is lost, so all subscriptions to the channel or pattern have ended.
    Lost {
        /// The channel or pattern whose subscriptions have ended.
        name: SharedName,
        /// The error reply for clients whose subscription was not acknowledged yet.
        error: Bytes,
    },
    /// Messages of a channel or pattern were dropped because more than 32 MiB waited, so the core closes its
    /// subscribers, which would miss them unnoticed otherwise.
    Missed {
        /// The channel or pattern whose messages were dropped.
        name: SharedName,
    },
    /// A message that was published to a channel, for all clients of the core that are subscribed.
    Message {
        /// The channel or pattern that brought the message.
        name: SharedName,
        /// The complete message, in the form of RESP2.
        message: Bytes,
    },
    /// New numbers of subscribers of a channel or pattern, which all cores are sent.
    Numbers {
        /// Kind of the name: channel or pattern.
        kind: Subscription,
        /// The name of the channel or pattern.
        name: Bytes,
        /// The numbers of this process's connections and clients that are subscribed.
        own: OwnNumbers,
    },
}

impl FromHome {
    /// Returns the bytes of memory that a published message takes, and 0 for any other message.
    pub fn message_bytes(&self) -> usize {
        match self {
            Self::Message { message, .. } => message.len() + size_of::<Self>(),
            _ => 0,
        }
    }
}

/// Numbers of this process's connections and clients that are subscribed to one channel or pattern. Replies
/// to clients state the clients in place of the connections, which stores count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnNumbers {
    /// Number of connections of this process that a store counts as subscribers.
    pub links: u32,
    /// Number of clients of this process on whose behalf its connections are subscribed.
    pub subscribers: u32,
}

impl OwnNumbers {
    /// Adds the numbers of another channel or pattern, for a message that reaches subscribers of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            links: self.links.saturating_add(other.links),
            subscribers: self.subscribers.saturating_add(other.subscribers),
        }
    }

    /// Returns a store's number of subscribers (`counted`), in which this process's connections are replaced by its
    /// clients. If the store has counted no subscriber, it did so before the connections subscribed, and the number
    /// stays as it is.
    pub fn correct(self, counted: i64) -> i64 {
        if counted <= 0 {
            return counted;
        }
        // Some of the connections may have ended just before.
        (counted - i64::from(self.links)).max(0) + i64::from(self.subscribers)
    }
}

/// Messages from home cores (those that subscribe for all clients) that wait for delivery on this core, in order. The
/// published ones are bounded: above 32 MiB, those of the channel or pattern with the most bytes are dropped, and its
/// subscribers on this core are to be closed ([`FromHome::Missed`]). If more than three quarters are left, the next
/// largest follows, and so on. So a flood over many channels does not cost a search for each message.
#[derive(Debug, Default)]
pub struct FromHomeQueue {
    waiting: VecDeque<FromHome>,
    message_bytes: usize,
}

impl FromHomeQueue {
    /// Adds a message of a home core (one that subscribes for all clients) to the end of the queue. If published
    /// messages of more than 32 MiB wait then, drops those of the channels or patterns with the most bytes.
    pub fn push(&mut self, told: FromHome) {
        self.message_bytes += told.message_bytes();
        self.waiting.push_back(told);
        if self.message_bytes > SHARED_MESSAGES_BYTES_MAX {
            self.drop_largest();
        }
    }

    /// Removes and returns the oldest message of a home core (the one that subscribes for all clients) that
    /// waits to be delivered on this core; None if nothing waits.
    pub fn pop(&mut self) -> Option<FromHome> {
        let told = self.waiting.pop_front()?;
        self.message_bytes -= told.message_bytes();
        Some(told)
    }

    /// True if no message from a home core (one that subscribes for all clients) waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the bytes of the published messages that wait for delivery on this core.
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// Drops all waiting messages of the channel or pattern that has the most bytes, then those of the next
    /// largest, until at most three quarters of the permitted bytes are left.
    #[cold]
    fn drop_largest(&mut self) {
        let mut sums: HashMap<(bool, Bytes), usize> = HashMap::new();
        let key = |name: &SharedName| (name.kind == Subscription::Patterns, name.name.clone());
        for told in &self.waiting {
            if let FromHome::Message { name, .. } = told {
                *sums.entry(key(name)).or_default() += told.message_bytes();
            }
        }
        let mut largest: Vec<_> = sums.into_iter().collect();
        largest.sort_unstable_by_key(|(_, bytes)| Reverse(*bytes));
        // The names to drop, each with one that its subscribers know once a message of it was found.
        let mut dropped: HashMap<(bool, Bytes), Option<SharedName>> = HashMap::new();
        for (name, bytes) in largest {
            if !dropped.is_empty() && self.message_bytes <= SHARED_MESSAGES_BYTES_MAX / 4 * 3 {
                break;
            }
            self.message_bytes -= bytes;
            dropped.insert(name, None);
        }
        self.waiting.retain(|told| {
            let FromHome::Message { name, .. } = told else { return true };
            let Some(missed) = dropped.get_mut(&key(name)) else { return true };
            *missed = Some(name.clone());
            false
        });
        self.waiting.extend(dropped.into_values().flatten().map(|name| FromHome::Missed { name }));
    }
}

/// Returns the element with this index of a message (an array or a push), if it is a string; None for
/// anything else.
pub fn word_of(message: &[u8], index: usize) -> Option<&[u8]> {
    reply::text(reply::pushed(message)?.nth(index)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &'static str) -> SharedName {
        SharedName { kind: Subscription::Channels, name: Bytes::from_static(text.as_bytes()), generation: 1 }
    }

    #[test]
    fn clients_are_counted_in_the_place_of_connections() {
        let own = OwnNumbers { links: 1, subscribers: 5 }.and(OwnNumbers { links: 1, subscribers: 2 });
        let corrected: Vec<i64> = (0..4).map(|counted| own.correct(counted)).collect();
        assert_eq!(corrected, [0, 7, 7, 8]);
        assert_eq!(OwnNumbers::default().correct(3), 3);
    }

    #[test]
    fn too_many_bytes_cost_the_name_that_has_the_most_and_no_other() {
        let mut queue = FromHomeQueue::default();
        let message =
            |of: &'static str, bytes| FromHome::Message { name: name(of), message: vec![0; bytes].into() };
        queue.push(message("small", 10));
        queue.push(FromHome::Joined { name: name("large"), client: ClientId { index: 1, generation: 1 } });
        for _ in 0..3 {
            queue.push(message("large", SHARED_MESSAGES_BYTES_MAX / 3));
            assert!(queue.message_bytes() <= SHARED_MESSAGES_BYTES_MAX);
        }
        queue.push(message("small", 20));
        let left: Vec<FromHome> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(left.len(), 4);
        assert!(matches!(&left[0], FromHome::Message { message, .. } if message.len() == 10));
        assert!(matches!(&left[1], FromHome::Joined { .. }));
        assert_eq!(left[2], FromHome::Missed { name: name("large") });
        assert!(matches!(&left[3], FromHome::Message { message, .. } if message.len() == 20));
        assert!(queue.is_empty() && queue.message_bytes() == 0);
    }

    #[test]
    fn a_flood_over_many_names_is_dropped_in_large_parts() {
        const NAMES: usize = 1_000;
        let mut queue = FromHomeQueue::default();
        let names: Vec<Bytes> = (0..NAMES).map(|number| format!("channel:{number}").into()).collect();
        let (mut drops, mut before) = (0, 0);
        let length = SHARED_MESSAGES_BYTES_MAX / (20 * NAMES);
        for round in 0..200 * NAMES {
            let name = SharedName { name: names[round % NAMES].clone(), ..name("") };
            queue.push(FromHome::Message { name, message: Bytes::from_static(&[0; 4_096]).slice(..length) });
            assert!(queue.message_bytes() <= SHARED_MESSAGES_BYTES_MAX);
            if queue.message_bytes() < before {
                drops += 1;
                assert!(queue.message_bytes() <= SHARED_MESSAGES_BYTES_MAX / 4 * 3);
            }
            before = queue.message_bytes();
        }
        assert!((10..100).contains(&drops), "{drops}");
        let left: Vec<FromHome> = std::iter::from_fn(|| queue.pop()).collect();
        assert!(left.iter().any(|told| matches!(told, FromHome::Missed { .. })));
        assert_eq!(queue.message_bytes(), 0);
    }
}
