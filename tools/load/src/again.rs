//! Retries of requests that were refused or not answered, which wait until they are due.

use std::collections::BTreeMap;

use super::classify::Ending;
use super::connection::Request;
use weir::values::Timestamp;
use weir_client::Retry;

/// A request that is to be sent again, and the way in which its last attempt ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeat {
    pub request: Request,
    pub ending: Ending,
    /// The client library's record of this retry. When the retry is due, the library decides by it whether
    /// the retry may still be sent. `None` for naive clients, which retry at once.
    pub retry: Option<Retry>,
}

/// Retries that wait until they are due, the earliest first. Their number is bounded: naive clients, which
/// retry at once, add at most the requests in flight, and a smart client has a retry budget.
#[derive(Debug, Default)]
pub(super) struct Again {
    waiting: BTreeMap<(Timestamp, u64), Repeat>,
    /// A counter of retries, so that those due at the same moment are sent in the order in which they were
    /// planned.
    number: u64,
}

impl Again {
    pub fn push(&mut self, at: Timestamp, repeat: Repeat) {
        self.waiting.insert((at, self.number), repeat);
        self.number += 1;
    }

    /// Returns the time at which the next retry is due; `None` if none waits.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes and returns the earliest retry, if it is due by `now`; else `None`.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<Repeat> {
        let first = self.waiting.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    /// Removes and returns all retries, due or not.
    pub fn drain(&mut self) -> impl Iterator<Item = Repeat> + use<> {
        std::mem::take(&mut self.waiting).into_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Draw;

    #[test]
    fn each_leaves_at_its_time_and_equals_in_order() {
        let mut again = Again::default();
        for (millis, attempt) in [(5, 1), (3, 2), (5, 3), (9, 4)] {
            let (intended, draw) = (Timestamp::ZERO, Draw::default());
            let request = Request { intended, draw, phase: 0, attempt, sent: None, setup: None };
            let repeat = Repeat { request, ending: Ending::Timeout, retry: None };
            again.push(Timestamp::from_millis(millis), repeat);
        }
        assert_eq!(again.next_at(), Some(Timestamp::from_millis(3)));
        let due = std::iter::from_fn(|| again.pop_due(Timestamp::from_millis(8)));
        assert_eq!(due.map(|repeat| repeat.request.attempt).collect::<Vec<_>>(), [2, 1, 3]);
        assert_eq!(again.drain().count(), 1);
        assert_eq!(again.next_at(), None);
    }
}
