//! What really reached the store.

use std::collections::BTreeMap;

use crate::protocol::command::{self, COMMANDS, CommandId};

/// Keys whose reads are counted; reads of others are counted together.
const KEYS_MAX: usize = 1_000_000;

/// Figures since the start, or since they were reset.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) requests: u64,
    /// Requests that were served, those answered with a scripted error included.
    pub(super) served: u64,
    pub(super) errors_injected: u64,
    /// Requests refused because too many waited.
    pub(super) requests_refused: u64,
    /// Requests without a reply: their connection was gone, or an outage began.
    pub(super) requests_lost: u64,
    pub(super) connections_refused: u64,
    pub(super) concurrency_max: usize,
    pub(super) queue_max: usize,
    pub(super) reads_untracked: u64,
    reads: BTreeMap<Box<[u8]>, u64>,
    commands: Vec<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            requests: 0,
            served: 0,
            errors_injected: 0,
            requests_refused: 0,
            requests_lost: 0,
            connections_refused: 0,
            concurrency_max: 0,
            queue_max: 0,
            reads_untracked: 0,
            reads: BTreeMap::new(),
            commands: vec![0; COMMANDS],
        }
    }
}

impl Tally {
    pub(super) fn note_command(&mut self, id: CommandId) {
        self.commands[usize::from(id.0)] += 1;
    }

    pub(super) fn note_read(&mut self, key: &[u8]) {
        if let Some(count) = self.reads.get_mut(key) {
            *count += 1;
        } else if self.reads.len() < KEYS_MAX {
            self.reads.insert(key.into(), 1);
        } else {
            self.reads_untracked += 1;
        }
    }

    pub(super) fn reads(&self, key: &[u8]) -> u64 {
        self.reads.get(key).copied().unwrap_or_default()
    }

    /// The keys read most, the first in order of bytes where they are equal.
    pub(super) fn top(&self, count: usize) -> Vec<(&[u8], u64)> {
        let mut all: Vec<(&[u8], u64)> = self.reads.iter().map(|(key, count)| (&**key, *count)).collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all.truncate(count);
        all
    }

    pub(super) fn reset_reads(&mut self) {
        self.reads.clear();
        self.reads_untracked = 0;
    }

    /// How often each command was served, by name, those that never were left out.
    pub(super) fn commands(&self) -> Vec<(&'static str, u64)> {
        let all =
            command::all().iter().map(|command| (command.name, self.commands[usize::from(command.id().0)]));
        let mut served: Vec<_> = all.filter(|(_, count)| *count > 0).collect();
        served.sort_unstable();
        served
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_read_most_come_first() {
        let mut tally = Tally::default();
        for key in ["b", "a", "c", "c", "a", "c"] {
            tally.note_read(key.as_bytes());
        }
        assert_eq!(tally.top(2), [(&b"c"[..], 3), (b"a", 2)]);
        assert_eq!((tally.reads(b"b"), tally.reads(b"d")), (1, 0));
        tally.reset_reads();
        assert!(tally.top(9).is_empty());
    }
}
