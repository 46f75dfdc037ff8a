//! Selection of the users whose quotas are counted with the fleet. Of a million users only a few have more
//! demand at one host than every host may give out anyway. Other hosts have to know of those; for the rest
//! each host gives out an even part, which is enough.
//!
//! A user is identified by a hash of the name, the same on all hosts. A user whose demand has become low
//! stays counted for a while: one who moves from host to host would otherwise be new to each of them again
//! and again.

use serde::Serialize;

use super::{FleetQuotas, Place, Whose};
use crate::control::reconciliation::{HeavyUser, Reconciliation, UserTerms};
use crate::values::Timestamp;

/// A user whose demand was low in more than this number of periods (seconds) in a row is no longer counted
/// with the fleet (weir processes that share quotas).
const QUIET_MAX: u32 = 10;

/// State about the users of tenants: the terms for users whose demand is not counted with the fleet (weir
/// processes that share quotas), as last passed to the pools (`None` before that), and how often a user with
/// high demand was not counted in a period for want of room.
#[derive(Debug, Default)]
pub(super) struct Users {
    terms: Option<UserTerms>,
    left_out: u64,
}

/// Numbers of the users whose demand this host has added up over all hosts of the fleet (weir processes that
/// share quotas), for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UserFigures {
    /// Number of users whose demand this host adds to the counters of the fleet (weir processes that share
    /// quotas) at present.
    pub counted: usize,
    /// Maximum number of users whose demand this host may add to the counters of the fleet (weir processes
    /// that share quotas).
    pub most: usize,
    /// The number of times that a user with high demand was not counted in a period, because too many users
    /// had high demand.
    pub left_out: u64,
}

impl FleetQuotas {
    /// Returns the numbers of the users counted with the fleet (weir processes that share quotas); None if
    /// users' quotas are not shared.
    pub fn users(&self) -> Option<UserFigures> {
        let most = self.settings.users_max;
        let counted = self.places.len() - self.first_user();
        (most > 0).then_some(UserFigures { counted, most, left_out: self.users.left_out })
    }

    /// Returns the index in `places` (the quotas that are counted with the fleet) of the first quota of a
    /// user; users come last.
    fn first_user(&self) -> usize {
        self.places.partition_point(|place| !matches!(place.whose, Whose::User { .. }))
    }

    pub(super) fn take_users(&mut self) -> Vec<Place> {
        self.places.split_off(self.first_user())
    }

    /// Selects, at the end of a period, the users whose quotas are counted with the fleet (weir processes
    /// that share quotas). Removes users whose demand was low for more than `QUIET_MAX` periods and, if room
    /// is short, those with low demand for longest; then adds the new users with the highest demand, up to
    /// `users_max`.
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
            // The users with the highest demand are kept.
            heavy.select_nth_unstable_by_key(room, |user| std::cmp::Reverse(user.asked));
            heavy.truncate(room);
        }
        for user in heavy {
            self.admit(&user);
        }
    }

    /// Adds the demand in this period of the users who are counted with the fleet to what this host reports
    /// to the fleet, and counts the periods in a row in which each had low demand.
    fn tell_demand_of_users(&mut self, pools: &Reconciliation, now: Timestamp) {
        for at in self.first_user()..self.places.len() {
            let place = &mut self.places[at];
            if let Some((asked, capacity)) = pools.asked(place.bucket) {
                if place.capacity != capacity {
                    self.fleet.resize(at, capacity.ru_per_second());
                    place.capacity = capacity;
                }
                self.fleet.handle_demand(at, asked);
            }
            if let Whose::User { quiet } = &mut place.whose {
                *quiet = if self.fleet.is_heavy(at, now) { 0 } else { *quiet + 1 };
            }
        }
    }

    /// Removes from the users who are counted with the fleet those whose demand was low for more than
    /// `QUIET_MAX` periods, then those with low demand for longest until `wanted` are removed; fewer if not
    /// so many have low demand.
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
        // `swap_remove` moves the last place into a free one, so later places are removed first.
        gone.sort_unstable_by(|one, other| other.cmp(one));
        for at in gone {
            self.fleet.dismiss(at);
            let place = self.places.swap_remove(at);
            pools.set_part(place.bucket, place.capacity, self.fleet.uncounted(), now);
            pools.forget_part(place.bucket);
        }
    }

    fn admit(&mut self, user: &HeavyUser) {
        self.fleet.admit(user.capacity.ru_per_second());
        self.fleet.handle_demand(self.places.len(), user.asked);
        if let Some(part) = self.inherited.get(&user.bucket) {
            self.fleet.inherit(self.places.len(), *part);
        }
        self.places.push(Place {
            whose: Whose::User { quiet: 0 },
            key: self.settings.key(&format!("user:{:016x}", user.bucket.0)),
            bucket: user.bucket,
            capacity: user.capacity,
            told: None,
        });
    }

    /// Passes the terms for users who are not counted with the fleet (above all the part of their quotas that
    /// this host may give out) to the pools (the parts of buckets that no core holds), if the terms have
    /// changed.
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
