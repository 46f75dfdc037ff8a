//! The data of a `CLIENT PAUSE`: the clients whose requests wait, whether all requests or only writes, and
//! until when.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::protocol::Arguments;
use crate::protocol::command::{Class, Command, Effect};
use crate::shard::script_board::{ScriptBoard, declares_no_writes};
use crate::values::Timestamp;
use crate::values::limits::CLIENT_PAUSE_MS_MAX;

/// Commands that are not writes and are held back with writes all the same, as in Redis: a primary passes
/// them on to its replicas (`PFCOUNT` when it stores the count beside the key).
const PASSED_ON: [&str; 3] = ["pfcount", "publish", "spublish"];

/// True if `CLIENT PAUSE ... WRITE` holds a request back. A script counts as writing unless it declares otherwise, and
/// a function (`FCALL`) always does, because only the store has its flags.
pub fn is_held_as_write(command: &Command, arguments: &Arguments<'_>, scripts: &ScriptBoard) -> bool {
    if command.class == Class::Script {
        let is_declared = match command.name {
            "eval" => declares_no_writes(arguments.at(1)),
            "evalsha" => scripts.has(arguments.at(1)),
            _ => false,
        };
        return command.effect == Effect::Write && !is_declared;
    }
    command.effect == Effect::Write || PASSED_ON.contains(&command.name)
}

/// A `CLIENT PAUSE` in force: an order that requests of clients wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The tenant whose clients wait; None for all clients.
    pub tenant: Option<String>,
    /// The time at which the pause ends by itself, unless `CLIENT UNPAUSE` ends it before.
    pub until: Timestamp,
    /// Requests that the `CLIENT PAUSE` holds back: only those that may write, or all.
    pub extent: Paused,
    /// The number (`CLIENT ID`) of the client that ordered the pause, which waits as others do but may end it. None if
    /// the pause began in another process, and the client has not come from there to this core.
    pub asker: Option<u64>,
}

impl Pause {
    /// Creates the rest of a pause that began in the process before, which this one takes over from: of the
    /// clients of `tenant`, or with None of all. `left` is the time until it ends, of which at most a day
    /// counts, as a pause may have.
    pub fn taken_over(tenant: Option<String>, left: Duration, extent: Paused, now: Timestamp) -> Self {
        let left = left.min(Duration::from_millis(CLIENT_PAUSE_MS_MAX));
        Self { tenant, until: now.after(left), extent, asker: None }
    }

    /// Extends the pause by a later one of the same clients. The client that ordered the later one may end it.
    pub fn extend(&mut self, later: &Self) {
        self.until = self.until.max(later.until);
        self.extent = self.extent.max(later.extent);
        self.asker = later.asker.or(self.asker);
    }

    /// Returns which requests the pause holds back of a client of the paused tenant with this number (`CLIENT
    /// ID`). For the client that ordered a pause of everything, `CLIENT` and `QUIT` are excepted.
    pub fn extent_for(&self, number: u64) -> Paused {
        let may_end_it = self.asker == Some(number) && self.extent == Paused::Everything;
        if may_end_it { Paused::AllButClient } else { self.extent }
    }
}

/// All pauses (`CLIENT PAUSE`) in force, at most one per tenant and one for all clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pauses(Vec<Pause>);

impl Pauses {
    /// Begins a pause. An earlier pause of the same tenant (or, if this one is for all clients, an earlier one
    /// for all) is joined with it: both last until the later end, and all requests are held back that either of
    /// the two holds back.
    pub fn begin(&mut self, pause: &Pause, now: Timestamp) {
        self.end_late(now);
        match self.0.iter_mut().find(|other| other.tenant == pause.tenant) {
            Some(earlier) => earlier.extend(pause),
            None => self.0.push(pause.clone()),
        }
    }

    /// Ends the pause of one tenant, or with None all pauses.
    pub fn end(&mut self, tenant: Option<&str>) {
        self.0.retain(|pause| tenant.is_some() && pause.tenant.as_deref() != tenant);
    }

    /// Removes the pauses whose time is over at `now`.
    pub fn end_late(&mut self, now: Timestamp) {
        self.0.retain(|pause| pause.until > now);
    }

    /// Makes a client that comes from another process the one that may end these pauses, which it ordered there.
    /// `tenants` names the pauses by their tenants, None for that of all clients, and `number` is the client's
    /// `CLIENT ID` here.
    pub fn hand_to(&mut self, number: u64, tenants: &[Option<String>]) {
        for pause in self.0.iter_mut().filter(|pause| pause.asker.is_none()) {
            pause.asker = Some(number).filter(|_| tenants.contains(&pause.tenant));
        }
    }

    /// Returns the pauses that concern clients of a tenant: its own, and that of all clients. With None, those
    /// that concern clients that have not logged in: that of all clients alone.
    pub fn concerning(&self, tenant: Option<&str>) -> impl Iterator<Item = &Pause> {
        self.iter().filter(move |pause| pause.tenant.as_deref().is_none_or(|wanted| tenant == Some(wanted)))
    }

    /// Iterates over all pauses in force, whichever tenants they concern.
    pub fn iter(&self) -> impl Iterator<Item = &Pause> {
        self.0.iter()
    }

    /// True if there is no pause.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Extent of a `CLIENT PAUSE`: the requests of a client that it holds back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Paused {
    #[default]
    /// No request of the client is held back.
    Nothing,
    /// Requests that may write are held back, and those that Redis treats alike: PUBLISH, SPUBLISH, PFCOUNT
    /// (`is_held_as_write`).
    Writes,
    /// All requests are paused except `CLIENT` and `QUIT`: the client that has ordered a pause of everything waits
    /// too, but can end the pause.
    AllButClient,
    /// All requests of the client are held back.
    Everything,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO.after(Duration::from_millis(millis))
    }

    #[test]
    fn a_pause_that_is_taken_over_is_joined_with_others_and_ended_by_who_ordered_it() {
        let mut pauses = Pauses::default();
        let rest = |tenant: Option<&str>, left, extent| {
            Pause::taken_over(tenant.map(str::to_owned), Duration::from_millis(left), extent, at(0))
        };
        pauses.begin(&rest(None, 100, Paused::Everything), at(0));
        pauses.begin(&rest(Some("acme"), 300, Paused::Writes), at(0));
        pauses.begin(&rest(None, 200, Paused::Writes), at(0));
        let told: Vec<_> = pauses.iter().map(|pause| (pause.until, pause.extent)).collect();
        assert_eq!(told, [(at(200), Paused::Everything), (at(300), Paused::Writes)]);

        pauses.hand_to(7, &[Some("acme".to_owned())]);
        pauses.hand_to(8, &[None]);
        pauses.hand_to(9, &[None]);
        let askers = |pauses: &Pauses| pauses.iter().map(|pause| pause.asker).collect::<Vec<_>>();
        assert_eq!(askers(&pauses), [Some(8), Some(7)]);
        pauses.begin(&rest(None, 200, Paused::Writes), at(0));
        assert_eq!(askers(&pauses), [Some(8), Some(7)], "nobody known orders the later one");
        let all = pauses.concerning(None).next().expect("the pause of all clients");
        assert_eq!([8, 9].map(|number| all.extent_for(number)), [Paused::AllButClient, Paused::Everything]);

        pauses.end_late(at(200));
        assert_eq!(askers(&pauses), [Some(7)]);
        pauses.end(Some("zeta"));
        assert!(!pauses.is_empty());
        pauses.end(None);
        assert!(pauses.is_empty());
    }

    #[test]
    fn no_pause_that_is_taken_over_lasts_for_more_than_a_day() {
        let pause = Pause::taken_over(None, Duration::from_secs(1 << 40), Paused::Writes, at(5));
        assert_eq!(pause.until, at(CLIENT_PAUSE_MS_MAX + 5));
    }
}
