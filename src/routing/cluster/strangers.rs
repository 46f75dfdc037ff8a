//! When nobody is left of the cluster that is known, and the seeds tell of another one: it was set up anew, and is the cluster now.
//! An address that others use by now is not enough for that, as long as any node that is known still answers.

use std::time::Duration;

use super::refresh::Ask;
use crate::values::Timestamp;

/// For so long only strangers must have answered.
const PATIENCE: Duration = Duration::from_secs(5);

/// For how long only strangers have answered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strangers {
    since: Option<Timestamp>,
}

impl Strangers {
    /// So many views have come of a round, so many of them of strangers. True if strangers are to be believed from now on.
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
