//! Plain stores that have become replicas: their connections are opened anew, since the address may lead to the new
//! primary by now. A connection through a virtual address, or a service of Kubernetes, goes on to the former one.

use std::time::Duration;

use super::Upstream;
use crate::values::{BackendId, Timestamp};

/// The least time between two renewals (openings anew) of a store's connections, which doubles with each renewal after
/// which the store still refuses writes.
const PAUSE: Duration = Duration::from_secs(1);
/// The largest value that the least time between two renewals (openings anew) of a store's connections grows to, while
/// the store goes on refusing writes.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The last renewal of one store's connections, and the time that has to pass before the next.
#[derive(Clone, Copy, Debug, Default)]
struct Renewal {
    began_at: Timestamp,
    pause: Duration,
}

impl Renewal {
    /// Records that the store refused a write because it is a replica. True if its connections are to be
    /// opened anew now; false while the pause since the last renewal (1 to 60 s) is not over.
    fn handle_refusal(&mut self, now: Timestamp) -> bool {
        let since = now.since(self.began_at);
        if since < self.pause {
            return false;
        }
        self.pause = if since < 2 * self.pause { (2 * self.pause).min(PAUSE_MAX) } else { PAUSE };
        self.began_at = now;
        true
    }
}

/// The renewals of the connections of all stores, on one core.
#[derive(Debug)]
pub(super) struct Renewals {
    each: Vec<Renewal>,
    /// Stores whose connections are being opened anew, not yet returned by [`Upstream::poll_renewed`].
    begun: Vec<BackendId>,
}

impl Renewals {
    pub fn new(backends: usize) -> Self {
        Self { each: vec![Renewal::default(); backends], begun: Vec::new() }
    }
}

impl Upstream {
    /// Handles a store's refusal of a write as a replica (`-READONLY`): lets this core's shared connections to the
    /// store be opened anew, each as soon as nothing is unanswered on it; at most once a second, and less and less
    /// often while the store goes on refusing writes. Does nothing in front of a cluster, whose map says which node
    /// takes writes.
    pub fn handle_read_only(&mut self, backend: BackendId, now: Timestamp) {
        if self.cluster.slots.is_none() && self.renewals.each[usize::from(backend.0)].handle_refusal(now) {
            self.links.retire(backend, self.overload.may_wait());
            self.renewals.begun.push(backend);
        }
    }

    /// Returns the next store whose shared connections are being opened anew, so that those of single clients can be
    /// too; None if there is none.
    pub fn poll_renewed(&mut self) -> Option<BackendId> {
        self.renewals.begun.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_stays_read_only_is_tried_less_and_less_often() {
        let mut renewal = Renewal::default();
        let refused = |renewal: &mut Renewal, seconds: std::ops::Range<u64>| {
            seconds.filter(|second| renewal.handle_refusal(Timestamp::from_millis(second * 1_000))).count()
        };
        assert_eq!(refused(&mut renewal, 100..107), 3, "at 100, 101 and 103 s");
        assert_eq!(refused(&mut renewal, 107..1_007), 18, "four while the pause grows, then one a minute");
        assert_eq!(refused(&mut renewal, 2_000..2_002), 2, "after a long time without refusals it is as new");
    }
}
