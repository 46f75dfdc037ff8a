//! Bytes that are sent besides the reply to the request which is being carried out: replies to calls that
//! waited, and messages.

use std::collections::VecDeque;

use bytes::Bytes;

use super::channels::Channels;
use super::refusal::Refusal;
use crate::values::limits::{ENGINE_EVENTS_BYTES_MAX, ENGINE_MESSAGES_BYTES_MAX};

/// A reply or message for a connection, which the service in front of the engine sends.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The number of the session (the engine's state of one connection) to which the bytes are sent.
    pub session: u64,
    /// A whole reply or message in RESP, as it is to be sent.
    pub bytes: Bytes,
    /// True for the reply to a blocking call that waited (BLPOP and the like): the connection's further
    /// requests are carried out after it.
    pub ends_wait: bool,
}

/// The replies and messages for connections that are to be delivered, and the subscriptions that decide who
/// gets messages.
#[derive(Debug, Default)]
pub(super) struct Post {
    pub(super) channels: Channels,
    deliveries: VecDeque<Delivery>,
    /// Messages for the connection whose request is being carried out, which are sent before its reply.
    pub(super) own: Vec<u8>,
    /// Number of bytes of the messages to subscribers, and of stream entries to calls that waited, that the
    /// present request has caused. Beyond a limit the request, or the call, is refused.
    messages_bytes: usize,
    /// Number of bytes of the messages about keyspace events that the present request has caused. Beyond a
    /// limit the events are dropped.
    events_bytes: usize,
}

impl Post {
    /// Begins a request or a sweep (search for expired keys): sets to zero the counts of bytes of the
    /// messages and events that it causes, which are limited.
    pub(super) fn begin(&mut self) {
        (self.messages_bytes, self.events_bytes) = (0, 0);
    }

    /// Counts `bytes` bytes of messages before they are made; refuses the request if it causes more than a
    /// request may.
    pub(super) fn spend(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.count(bytes);
        if self.messages_bytes > ENGINE_MESSAGES_BYTES_MAX {
            return Err(Refusal::Words("ERR the request would send too many bytes of messages"));
        }
        Ok(())
    }

    /// Counts `bytes` bytes of messages, or of a reply to a call that waited for entries of streams, which are limited
    /// together.
    pub(super) fn count(&mut self, bytes: usize) {
        self.messages_bytes = self.messages_bytes.saturating_add(bytes);
    }

    /// Returns an error if the present request has caused as many bytes of messages as a request may.
    pub(super) fn has_room(&self) -> Result<(), Refusal> {
        if self.messages_bytes < ENGINE_MESSAGES_BYTES_MAX {
            return Ok(());
        }
        Err(Refusal::Words("ERR too many bytes would be sent to calls that wait at once: ask again"))
    }

    /// Counts `bytes` bytes of messages about an event of a key. False if the present request has caused more
    /// than a request may, so that the event is to be dropped.
    pub(super) fn spend_on_event(&mut self, bytes: usize) -> bool {
        self.events_bytes = self.events_bytes.saturating_add(bytes);
        self.events_bytes <= ENGINE_EVENTS_BYTES_MAX
    }

    pub(super) fn deliver(&mut self, delivery: Delivery) {
        self.deliveries.push_back(delivery);
    }

    pub(super) fn next(&mut self) -> Option<Delivery> {
        self.deliveries.pop_front()
    }
}
