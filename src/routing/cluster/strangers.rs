//! Detection of a cluster that was set up anew: if no known node answers any more and the seeds lead to
//! another cluster, that cluster is adopted. It is not enough that another cluster uses an address of a known
//! node, as long as any known node still answers.

use std::time::Duration;

use super::refresh::Ask;
use crate::values::Timestamp;

/// Time for which only nodes of another cluster must have answered before that cluster is adopted.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time since which only nodes of another cluster have answered; None while known nodes do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strangers {
    since: Option<Timestamp>,
}

impl Strangers {
    /// Handles the outcome of a round in which nodes (`asked`) were asked for their views: `views` came, and
    /// `strangers` of them are of another cluster. True if the other cluster is to be adopted now: for 5 s
    /// only nodes of another cluster have answered, and this round asked the configured addresses (seeds).
    pub fn handle_round(&mut self, asked: &Ask, (views, strangers): (usize, usize), now: Timestamp) -> bool {
        if views > strangers {
            self.since = None;
        } else if views > 0 {
            let since = *self.since.get_or_insert(now);
            let is_time = matches!(asked, Ask::Seeds(_)) && now.since(since) >= PATIENCE;
            self.since = self.since.filter(|_| !is_time);
            return is_time;
        }
        false
    }
}
