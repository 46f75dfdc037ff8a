//! Watched keys (WATCH): the connections that watch each key, and for each connection whether a watched key
//! has changed.

use std::collections::{BTreeMap, BTreeSet};

use super::refusal::Refusal;
use crate::values::limits::{ENGINE_DATABASES, ENGINE_WATCHED_BYTES_MAX};

/// The approximate bytes of a watch (WATCH) of one key by one connection, besides the key's name, which is
/// stored twice.
const WATCH_BYTES: usize = 128;

type Name = Box<[u8]>;

/// The keys that one connection watches (WATCH), and whether one has changed.
#[derive(Debug, Default)]
struct Watched {
    keys: Vec<(u8, Name)>,
    /// True if a watched key has changed, so that the connection's EXEC fails.
    broken: bool,
}

/// The keys that all connections watch (WATCH), so that EXEC fails on a connection of whose keys one has
/// changed.
#[derive(Debug)]
pub(super) struct Watches {
    by_key: Vec<BTreeMap<Name, BTreeSet<u64>>>,
    by_session: BTreeMap<u64, Watched>,
    bytes: usize,
}

impl Default for Watches {
    fn default() -> Self {
        Self {
            by_key: (0..ENGINE_DATABASES).map(|_| BTreeMap::new()).collect(),
            by_session: BTreeMap::new(),
            bytes: 0,
        }
    }
}

impl Watches {
    /// True if no connection watches any key (WATCH).
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the number of connections that watch keys, and the number of watches: a key that two
    /// connections watch counts twice.
    pub(super) fn counts(&self) -> (usize, usize) {
        let watching = self.by_session.values().filter(|watched| !watched.keys.is_empty());
        (watching.count(), self.by_session.values().map(|watched| watched.keys.len()).sum())
    }

    /// True if any connection watches the key (WATCH). `database` is that of the key.
    pub(super) fn covers(&self, database: u8, key: &[u8]) -> bool {
        self.by_key[usize::from(database)].contains_key(key)
    }

    /// Returns the keys of a database that connections watch (WATCH).
    pub(super) fn keys(&self, database: u8) -> impl Iterator<Item = Name> {
        self.by_key[usize::from(database)].keys().cloned()
    }

    /// Returns the keys that a connection (`session`) watches, each with its database.
    pub(super) fn of(&self, session: u64) -> Vec<(u8, Name)> {
        self.by_session.get(&session).map_or_else(Vec::new, |watched| watched.keys.clone())
    }

    /// Adds a watch of a key, in a database, by a connection (`session`). Does nothing if the connection
    /// already watches the key, or if any key that it watches has changed. An error if all watches together
    /// would take too much memory.
    pub(super) fn add(&mut self, session: u64, database: u8, key: &[u8]) -> Result<(), Refusal> {
        let watched = self.by_session.entry(session).or_default();
        if watched.broken {
            return Ok(());
        }
        let bytes = WATCH_BYTES + 2 * key.len();
        let watchers = &mut self.by_key[usize::from(database)];
        if watchers.get(key).is_some_and(|sessions| sessions.contains(&session)) {
            return Ok(());
        }
        if self.bytes + bytes > ENGINE_WATCHED_BYTES_MAX {
            return Err(Refusal::Words("ERR too many keys are watched, try again later"));
        }
        self.bytes += bytes;
        watched.keys.push((database, key.into()));
        watchers.entry(key.into()).or_default().insert(session);
        Ok(())
    }

    /// Records for all connections that watch the key that it has changed, so that their EXEC fails, and
    /// drops all their watches. `database` is that of the key.
    pub(super) fn break_all(&mut self, database: u8, key: &[u8]) {
        let Some(sessions) = self.by_key[usize::from(database)].get(key) else { return };
        for session in sessions.clone() {
            let Some(watched) = self.by_session.get_mut(&session) else { continue };
            watched.broken = true;
            let keys = std::mem::take(&mut watched.keys);
            self.remove(session, keys);
        }
    }

    /// Ends all watches of a connection (`session`). True if a watched key had changed, so that its EXEC must
    /// fail.
    pub(super) fn end(&mut self, session: u64) -> bool {
        let Some(watched) = self.by_session.remove(&session) else { return false };
        self.remove(session, watched.keys);
        watched.broken
    }

    fn remove(&mut self, session: u64, keys: Vec<(u8, Name)>) {
        for (database, key) in keys {
            self.bytes -= WATCH_BYTES + 2 * key.len();
            let watchers = &mut self.by_key[usize::from(database)];
            if let Some(sessions) = watchers.get_mut(&key) {
                sessions.remove(&session);
                if sessions.is_empty() {
                    watchers.remove(&key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_watch_forgets_the_others_and_leaves_nothing_behind() {
        let mut watches = Watches::default();
        for (session, database, key) in [(1, 0, b"a"), (1, 0, b"a"), (1, 3, b"b"), (2, 0, b"b"), (2, 0, b"a")]
        {
            watches.add(session, database, key).expect("there is room");
        }
        assert_eq!(watches.counts(), (2, 4));
        watches.break_all(0, b"b");
        assert_eq!(watches.counts(), (1, 2));
        assert!(watches.covers(0, b"a") && watches.covers(3, b"b") && !watches.covers(0, b"b"));
        watches.add(2, 0, b"c").expect("a watch more changes nothing");
        assert!(watches.end(2) && !watches.end(2) && !watches.end(1));
        assert!(watches.is_empty() && watches.by_session.is_empty());
        assert!(watches.by_key.iter().all(BTreeMap::is_empty));
    }

    #[test]
    fn watches_are_bounded() {
        let mut watches = Watches::default();
        let large = vec![b'k'; ENGINE_WATCHED_BYTES_MAX / 5];
        watches.add(1, 0, &large).expect("there is room");
        watches.add(1, 1, &large).expect("there is room");
        assert!(watches.add(2, 2, &large).is_err());
        watches.end(1);
        watches.add(2, 2, &large).expect("there is room again");
    }
}
