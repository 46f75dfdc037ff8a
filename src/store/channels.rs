//! The table of subscriptions in both directions: the connections by channel or pattern, and the channels and
//! patterns by connection.

use std::collections::{BTreeMap, BTreeSet};

use super::refusal::Refusal;
use crate::protocol::Protocol;
use crate::values::limits::ENGINE_CHANNELS_BYTES_MAX;

/// The approximate memory of one subscription in bytes, besides the name of the channel or pattern, which is
/// stored twice.
const SUBSCRIPTION_BYTES: usize = 192;

type Name = Box<[u8]>;

/// The kinds of names that connections subscribe to. Names of different kinds are independent of each other,
/// even if they are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Channels,
    Patterns,
    /// The names of sharded channels (SSUBSCRIBE).
    Shards,
}

const SPACES: usize = 3;

/// A connection that subscribes to at least one channel or pattern.
#[derive(Debug)]
struct Subscriber {
    protocol: Protocol,
    names: [BTreeSet<Name>; SPACES],
}

/// The subscriptions of all connections to channels, sharded channels and patterns, limited in bytes.
#[derive(Debug, Default)]
pub(super) struct Channels {
    spaces: [BTreeMap<Name, BTreeSet<u64>>; SPACES],
    subscribers: BTreeMap<u64, Subscriber>,
    bytes: usize,
}

impl Channels {
    /// Subscribes a connection (`session`) to a channel, sharded channel or pattern (`space` says which of
    /// them the name is); `protocol` is the RESP version in which it gets messages. False if the connection
    /// was subscribed already; an error if the subscriptions of all connections would take too much memory.
    pub(super) fn subscribe(
        &mut self,
        session: u64,
        protocol: Protocol,
        space: Space,
        name: &[u8],
    ) -> Result<bool, Refusal> {
        let sessions = self.spaces[space as usize].get(name);
        if sessions.is_some_and(|sessions| sessions.contains(&session)) {
            return Ok(false);
        }
        let bytes = SUBSCRIPTION_BYTES + 2 * name.len();
        if self.bytes + bytes > ENGINE_CHANNELS_BYTES_MAX {
            return Err(Refusal::Words("ERR too many subscriptions, try again later"));
        }
        self.bytes += bytes;
        self.spaces[space as usize].entry(name.into()).or_default().insert(session);
        let new = || Subscriber { protocol, names: Default::default() };
        let subscriber = self.subscribers.entry(session).or_insert_with(new);
        subscriber.names[space as usize].insert(name.into());
        Ok(true)
    }

    /// Ends the subscription of a connection (`session`) to a channel, sharded channel or pattern (`space`
    /// says which of them the name is), if the connection has one.
    pub(super) fn unsubscribe(&mut self, session: u64, space: Space, name: &[u8]) {
        let Some(subscriber) = self.subscribers.get_mut(&session) else { return };
        if !subscriber.names[space as usize].remove(name) {
            return;
        }
        if subscriber.names.iter().all(BTreeSet::is_empty) {
            self.subscribers.remove(&session);
        }
        self.bytes -= SUBSCRIPTION_BYTES + 2 * name.len();
        let names = &mut self.spaces[space as usize];
        if let Some(sessions) = names.get_mut(name) {
            sessions.remove(&session);
            if sessions.is_empty() {
                names.remove(name);
            }
        }
    }

    /// Ends all subscriptions of a connection (`session`).
    pub(super) fn forget(&mut self, session: u64) {
        for space in [Space::Channels, Space::Patterns, Space::Shards] {
            for name in self.names_of(session, space) {
                self.unsubscribe(session, space, &name);
            }
        }
    }

    /// Returns the channels, the sharded channels or the patterns (`space` says which) that a connection
    /// (`session`) is subscribed to.
    pub(super) fn names_of(&self, session: u64, space: Space) -> Vec<Name> {
        let subscriber = self.subscribers.get(&session);
        subscriber.map_or_else(Vec::new, |known| known.names[space as usize].iter().cloned().collect())
    }

    /// Returns the number of channels, sharded channels or patterns (`space` says which) that a connection
    /// (`session`) is subscribed to.
    pub(super) fn count_of(&self, session: u64, space: Space) -> usize {
        self.subscribers.get(&session).map_or(0, |known| known.names[space as usize].len())
    }

    /// Sets the RESP version in which a connection (`session`) gets messages of channels, if it has
    /// subscribed to any.
    pub(super) fn set_protocol(&mut self, session: u64, protocol: Protocol) {
        if let Some(subscriber) = self.subscribers.get_mut(&session) {
            subscriber.protocol = protocol;
        }
    }

    /// Returns the numbers of the connections that are subscribed to a channel, sharded channel or pattern
    /// (`space` says which of them the name is), with the RESP version of each.
    pub(super) fn subscribers(&self, space: Space, name: &[u8]) -> impl Iterator<Item = (u64, Protocol)> {
        let sessions = self.spaces[space as usize].get(name).into_iter().flatten();
        sessions.map(|session| (*session, self.subscribers[session].protocol))
    }

    /// Returns the channels, the sharded channels or the patterns (`space` says which) that at least one
    /// connection is subscribed to.
    pub(super) fn names(&self, space: Space) -> impl ExactSizeIterator<Item = &[u8]> {
        self.spaces[space as usize].keys().map(|name| &**name)
    }

    /// Returns the number of connections that are subscribed to this channel, sharded channel or pattern;
    /// `space` says which of the three the name is.
    pub(super) fn number(&self, space: Space, name: &[u8]) -> usize {
        self.spaces[space as usize].get(name).map_or(0, BTreeSet::len)
    }

    /// Returns the number of connections that are subscribed to at least one channel or pattern.
    pub(super) fn clients(&self) -> usize {
        self.subscribers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_are_bounded_and_leave_nothing_behind() {
        let mut channels = Channels::default();
        let large = vec![b'c'; ENGINE_CHANNELS_BYTES_MAX / 5];
        let mut subscribe =
            |session, space, name: &[u8]| channels.subscribe(session, Protocol::Resp2, space, name);
        assert_eq!(subscribe(1, Space::Channels, &large), Ok(true));
        assert_eq!(subscribe(1, Space::Channels, &large), Ok(false));
        assert_eq!(subscribe(1, Space::Patterns, &large), Ok(true));
        assert!(subscribe(2, Space::Channels, &large).is_err());
        assert_eq!(subscribe(2, Space::Shards, b"s"), Ok(true));
        assert_eq!(channels.clients(), 2);
        channels.unsubscribe(1, Space::Channels, b"another");
        channels.forget(1);
        channels.forget(2);
        assert_eq!((channels.bytes, channels.clients()), (0, 0));
        assert!(channels.spaces.iter().all(BTreeMap::is_empty));
    }
}
