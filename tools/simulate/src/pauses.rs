//! Pauses of all clients (`CLIENT PAUSE`), as the cores of weir know of them, and the requests that have to wait
//! for their end.

use super::history::Sent;
use weir::shard::{ClientsAsked, Paused};
use weir::values::Timestamp;

/// A pause of all clients that a core of weir knows of, with later pauses that were joined with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownPause {
    /// The step (number of the simulation's event) in which the core heard of the pause: writes that were sent
    /// later wait. `everything` is the step since which all requests wait; `None` if only writes do.
    writes: u64,
    everything: Option<u64>,
    until: Timestamp,
}

impl KnownPause {
    /// Returns the pause in force at a core that hears of a command about clients (`asked`) in this step.
    /// `known` is the pause that it knew of before; `None` if there was none.
    pub fn after(known: Option<Self>, asked: &ClientsAsked, step: u64, now: Timestamp) -> Option<Self> {
        match asked {
            ClientsAsked::Pause(pause) => {
                let everything = (pause.extent == Paused::Everything).then_some(step);
                let fresh = Self { writes: step, everything, until: pause.until };
                Some(known.filter(|known| known.until > now).map_or(fresh, |known| Self {
                    writes: known.writes,
                    everything: known.everything.or(everything),
                    until: known.until.max(pause.until),
                }))
            }
            ClientsAsked::Unpause(_) => None,
            _ => known,
        }
    }

    /// True if an answer at `now` to a request that was sent like this breaks the pause. `writes` says whether the
    /// request writes.
    pub fn forbids(self, sent: Sent, writes: bool, now: Timestamp) -> bool {
        let since = if writes { Some(self.writes) } else { self.everything };
        now < self.until && since.is_some_and(|since| sent.step > since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir::shard::Pause;

    const WRITE: bool = true;
    const READ: bool = false;

    fn begins(until: u64, extent: Paused) -> ClientsAsked {
        let until = Timestamp::from_millis(until);
        ClientsAsked::Pause(Pause { tenant: None, until, extent, asker: None })
    }

    fn forbids(pause: Option<KnownPause>, writes: bool, step: u64, millis: u64) -> bool {
        let sent = Sent { client: 1, sequence: 1, step };
        pause.is_some_and(|pause| pause.forbids(sent, writes, Timestamp::from_millis(millis)))
    }

    #[test]
    fn an_answer_during_a_pause_is_noticed() {
        let pause = KnownPause::after(None, &begins(20, Paused::Writes), 7, Timestamp::from_millis(1));
        assert!(forbids(pause, WRITE, 8, 19), "sent and answered during it");
        assert!(!forbids(pause, WRITE, 7, 19), "sent before");
        assert!(!forbids(pause, WRITE, 8, 20), "answered behind it");
        assert!(!forbids(pause, READ, 8, 19), "no write");
    }

    #[test]
    fn a_later_pause_is_joined_with_an_earlier_one_and_both_end_with_an_unpause() {
        let [early, late] = [1, 10].map(Timestamp::from_millis);
        let first = KnownPause::after(None, &begins(20, Paused::Writes), 7, early);
        let joined = KnownPause::after(first, &begins(15, Paused::Everything), 9, late);
        assert!(forbids(joined, WRITE, 8, 19) && forbids(joined, READ, 10, 19));
        assert!(!forbids(joined, READ, 9, 19), "sent before that of everything");
        assert_eq!(KnownPause::after(joined, &ClientsAsked::Unpause(None), 11, late), None);
        let fresh = KnownPause::after(first, &begins(40, Paused::Writes), 9, Timestamp::from_millis(20));
        assert!(forbids(fresh, WRITE, 10, 39) && !forbids(fresh, WRITE, 8, 39), "the first was over");
    }
}
