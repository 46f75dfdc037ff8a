//! Keys that connections watch, wait for or track, and the effect of changes on those connections.
//!
//! The keyspace reports each change here. A change is recorded for one key and becomes final with the next
//! change, or at the end of the command: until then a command that has left the key as it was withdraws it.

use super::tracking::Tracking;
use super::waits::Waits;
use super::watches::Watches;

/// The keys that connections of the embedded engine watch (WATCH), wait for (BLPOP and the like) or track
/// (CLIENT TRACKING), and the latest change of one of them.
#[derive(Default)]
pub(super) struct Interest {
    pub(super) waits: Waits,
    pub(super) watches: Watches,
    pub(super) tracking: Tracking,
    /// The database and name of a watched or tracked key that the present command has changed. The change
    /// takes effect for the key's connections when another key is changed or the command ends, unless the
    /// command withdraws it.
    pending: Option<(u8, Box<[u8]>)>,
}

impl Interest {
    /// Records that a key of a database has changed, for connections that watch or track it. The change takes
    /// effect for them when another key is changed or the command ends; until then the command may withdraw
    /// it.
    pub(super) fn touch(&mut self, database: u8, key: &[u8]) {
        if self.watches.is_empty() && self.tracking.is_idle() {
            return;
        }
        if self.pending.as_ref().is_some_and(|(other, name)| *other == database && **name == *key) {
            return;
        }
        self.settle();
        if self.watches.covers(database, key) || self.tracking.covers(key) {
            self.pending = Some((database, key.into()));
        }
    }

    /// Records a change of a key that the command will not withdraw, so that it takes effect at once for
    /// connections that watch or track the key. `database` is that of the key.
    pub(super) fn touch_for_certain(&mut self, database: u8, key: &[u8]) {
        self.touch(database, key);
        self.settle();
    }

    /// Withdraws the last recorded change of a key, unless it has taken effect, because the command has left
    /// the key as it was.
    pub(super) fn withdraw(&mut self) {
        self.pending = None;
    }

    /// Lets the last recorded change of a key take effect: EXEC will fail on connections that watch the key,
    /// and messages are queued for connections that track it.
    pub(super) fn settle(&mut self) {
        if let Some((database, key)) = self.pending.take() {
            self.watches.break_all(database, &key);
            self.tracking.change(&key);
        }
    }

    /// Returns the keys of a database that connections watch (WATCH) or wait for (BLPOP and the like), each
    /// once.
    pub(super) fn keys(&self, database: u8) -> Vec<Box<[u8]>> {
        let mut keys: Vec<Box<[u8]>> = self.watches.keys(database).chain(self.waits.keys(database)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Ends the watches, the wait and the tracking of a connection (`session`) that has been closed.
    pub(super) fn forget(&mut self, session: u64) {
        self.watches.end(session);
        self.waits.leave(session);
        self.tracking.forget(session);
    }
}
