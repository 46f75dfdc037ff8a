//! Phases: changes of the store's behaviour at times counted from the start of the process.

use std::time::Duration;

use super::behaviour::{Behaviour, Change};
use weir::values::Timestamp;

/// Maximum number of phases (stretches of time with another behaviour) of one script.
const PHASES_MAX: usize = 10_000;

/// A stretch of time in which the store behaves differently.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Phase {
    /// The time at which the phase begins, counted from the start of the process.
    pub at: Duration,
    /// The length of the phase; `None` for one that never ends.
    pub duration: Option<Duration>,
    /// The changes of the behaviour during the phase.
    pub change: Change,
    /// The length of the stall with which the phase begins, in which nothing is served; `None` for no stall.
    pub stall: Option<Duration>,
    /// True if all connections are closed and none is accepted during the phase.
    pub outage: bool,
}

impl Phase {
    /// Checks that a phase with an outage has a duration, that the phase changes something, and that its
    /// changes are valid. The error is a text for the user.
    pub fn check(&self) -> Result<(), String> {
        if self.outage && self.duration.is_none() {
            return Err("an outage ends: duration is expected, such as duration = \"2s\"".to_owned());
        }
        if self.change == Change::default() && self.stall.is_none() && !self.outage {
            return Err(
                "it changes nothing: stall, outage, errors, service_time, servers, per_kib, per_row, \
                        slow_accept or refuse_connections is expected"
                    .to_owned(),
            );
        }
        self.change.check()
    }

    fn begin(&self) -> Timestamp {
        Timestamp::ZERO.after(self.at)
    }

    fn end(&self) -> Option<Timestamp> {
        self.duration.map(|duration| self.begin().after(duration))
    }

    fn holds(&self, now: Timestamp) -> bool {
        self.begin() <= now && self.end().is_none_or(|end| now < end)
    }
}

/// All phases of a script, in the order in which they begin. Where two overlap and contradict each other, the
/// later one applies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Phases(Vec<Phase>);

impl Phases {
    /// Sorts phases of a script by their beginning; they must have been checked. An error, a text for the
    /// user, if there are too many.
    pub fn new(mut phases: Vec<Phase>) -> Result<Self, String> {
        if phases.len() > PHASES_MAX {
            return Err(format!("{} phases: {PHASES_MAX} are the most", phases.len()));
        }
        phases.sort_by_key(|phase| phase.at);
        Ok(Self(phases))
    }

    /// Returns the store's behaviour at `now`: `base`, changed by the phases that have begun and not ended.
    pub(super) fn behaviour(&self, base: &Behaviour, now: Timestamp) -> Behaviour {
        let mut behaviour = base.clone();
        self.0.iter().filter(|phase| phase.holds(now)).for_each(|phase| behaviour.apply(&phase.change));
        behaviour
    }

    /// Returns the next time after `after` at which a phase of the script begins or ends; `None` if there is
    /// none.
    pub(super) fn next_edge(&self, after: Timestamp) -> Option<Timestamp> {
        let edges = self.0.iter().flat_map(|phase| [Some(phase.begin()), phase.end()]).flatten();
        edges.filter(|edge| *edge > after).min()
    }

    /// Returns the phases of the script that began after `since` (at any time, if it is `None`) and not
    /// after `now`.
    pub(super) fn begun(&self, since: Option<Timestamp>, now: Timestamp) -> impl Iterator<Item = &Phase> {
        self.0
            .iter()
            .filter(move |phase| phase.begin() <= now && since.is_none_or(|since| since < phase.begin()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(at: u64, duration: Option<u64>, servers: usize) -> Phase {
        let change = Change { servers: Some(servers), ..Change::default() };
        Phase {
            at: Duration::from_secs(at),
            duration: duration.map(Duration::from_secs),
            change,
            ..Phase::default()
        }
    }

    #[test]
    fn the_later_phase_holds_where_two_overlap() {
        let phases = Phases::new(vec![phase(5, None, 3), phase(1, Some(8), 2), phase(6, Some(1), 4)]);
        let phases = phases.expect("few");
        let at = |second: u64| Timestamp::from_millis(second * 1_000);
        let servers = |second| phases.behaviour(&Behaviour::default(), at(second)).servers;
        assert_eq!([0, 1, 5, 6, 7, 9].map(servers), [1, 2, 3, 4, 3, 3]);
        let mut edges = Vec::new();
        let mut at = Timestamp::ZERO;
        while let Some(edge) = phases.next_edge(at) {
            edges.push(edge.as_nanos() / 1_000_000_000);
            at = edge;
        }
        assert_eq!(edges, [1, 5, 6, 7, 9]);
        assert_eq!(
            phases.begun(Some(Timestamp::from_millis(1_000)), Timestamp::from_millis(5_000)).count(),
            1
        );
    }

    #[test]
    fn phases_that_make_no_sense_are_refused() {
        assert!(Phase::default().check().is_err());
        assert!(Phase { outage: true, ..Phase::default() }.check().is_err());
        assert!(phase(0, None, 0).check().is_err());
        assert!(phase(0, None, 1).check().is_ok());
    }
}
