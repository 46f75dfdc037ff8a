//! Which users are counted with the fleet: of a million there are a few who ask one host for more than each host may give out
//! anyway. Of these others have to know; of the rest each host gives out an even part, which nobody has use for.
//!
//! A user is known by a hash of the name, the same on all hosts. Who has become light stays counted for a while: whoever goes from host to
//! host would be new to each of them again and again.

use serde::Serialize;

use super::{FleetQuotas, Place, Whose};
use crate::control::reconciliation::{HeavyUser, Reconciliation, UserTerms};
use crate::values::Timestamp;

/// Who asked for little in so many periods is counted no more.
const QUIET_MAX: u32 = 10;

/// What is known of them besides their places.
#[derive(Debug, Default)]
pub(super) struct Users {
    terms: Option<UserTerms>,
    left_out: u64,
}

/// Users who are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UserFigures {
    /// Those there are.
    pub counted: usize,
    /// As many as there may be.
    pub most: usize,
    /// How often a heavy one was not, in a period, because there were too many.
    pub left_out: u64,
}

impl FleetQuotas {
    /// Users who are counted, if any may be.
    pub fn users(&self) -> Option<UserFigures> {
        let most = self.settings.users_max;
        let counted = self.places.len() - self.first_user();
        (most > 0).then_some(UserFigures { counted, most, left_out: self.users.left_out })
    }

    /// Their places are the last.
    fn first_user(&self) -> usize {
        self.places.partition_point(|place| !matches!(place.whose, Whose::User { .. }))
    }

    pub(super) fn take_users(&mut self) -> Vec<Place> {
        self.places.split_off(self.first_user())
    }

    /// A period is over: who was heavy in it is counted from now on, or goes on being.
    pub(super) fn choose_users(&mut self, pools: &mut Reconciliation, now: Timestamp) {
        if self.settings.users_max == 0 {
            return;
        }
        self.tell_demand_of_users(pools, now);
        let mut heavy = pools.take_heavy_users();
        let room = self.settings.users_max - (self.places.len() - self.first_user());
        self.make_room(heavy.len().saturating_sub(room), pools, now);
        let room = self.settings.users_max - (self.places.len() - self.first_user());
        if heavy.len() > room {
            self.users.left_out += (heavy.len() - room) as u64;
            // Those who ask for most.
            heavy.select_nth_unstable_by_key(room, |user| std::cmp::Reverse(user.asked));
            heavy.truncate(room);
        }
        for user in heavy {
            self.admit(&user);
        }
    }

    /// What was asked for of those who are counted, and who of them is heavy no more.
    fn tell_demand_of_users(&mut self, pools: &Reconciliation, now: Timestamp) {
        for at in self.first_user()..self.places.len() {
            let place = &mut self.places[at];
            if let Some((asked, capacity)) = pools.asked(place.bucket) {
                if place.capacity != capacity {
                    self.fleet.resize(at, capacity.ru_per_second);
                    place.capacity = capacity;
                }
                self.fleet.handle_demand(at, asked);
            }
            if let Whose::User { quiet } = &mut place.whose {
                *quiet = if self.fleet.is_heavy(at, now) { 0 } else { *quiet + 1 };
            }
        }
    }

    /// Those who were quiet for long go, and so many besides for whom others are heavy, the quietest first.
    fn make_room(&mut self, wanted: usize, pools: &mut Reconciliation, now: Timestamp) {
        let first = self.first_user();
        let quiet_of = |place: &Place| match place.whose {
            Whose::User { quiet } => quiet,
            Whose::Everybody | Whose::Tenant(_) => 0,
        };
        let mut quiet: Vec<(u32, usize)> = (first..self.places.len())
            .map(|at| (quiet_of(&self.places[at]), at))
            .filter(|(quiet, _)| *quiet > 0)
            .collect();
        quiet.sort_unstable_by(|one, other| other.cmp(one));
        let gone = quiet.iter().enumerate().filter(|(rank, (quiet, _))| *rank < wanted || *quiet > QUIET_MAX);
        let mut gone: Vec<usize> = gone.map(|(_, (_, at))| *at).collect();
        // The last takes the place of who goes, so those behind go before.
        gone.sort_unstable_by(|one, other| other.cmp(one));
        for at in gone {
            self.fleet.dismiss(at);
            let place = self.places.swap_remove(at);
            pools.set_part(place.bucket, place.capacity, self.fleet.uncounted(), now);
            pools.forget_part(place.bucket);
        }
    }

    fn admit(&mut self, user: &HeavyUser) {
        self.fleet.admit(user.capacity.ru_per_second);
        self.fleet.handle_demand(self.places.len(), user.asked);
        self.places.push(Place {
            whose: Whose::User { quiet: 0 },
            key: self.settings.key(&format!("user:{:016x}", user.bucket.0)),
            bucket: user.bucket,
            capacity: user.capacity,
            told: None,
        });
    }

    /// What holds for those who are not counted, if that has changed.
    pub(super) fn tell_terms(&mut self, pools: &mut Reconciliation) {
        let terms = UserTerms { part: self.fleet.uncounted(), floor: self.fleet.floor() };
        if self.settings.users_max > 0 && self.users.terms != Some(terms) {
            self.users.terms = Some(terms);
            pools.share_users(terms);
        }
    }
}

#[cfg(test)]
mod tests;
