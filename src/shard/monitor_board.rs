//! Board of monitors: the clients of all cores that have sent `MONITOR`, with the requests that each may see.
//! Each core writes the entries of its own monitors and reads all, with relaxed atomics and no lock; while
//! there are no monitors, a request costs one load.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::values::limits::{MONITORS_MAX, SHARDS_MAX};
use crate::values::{ShardId, TenantId};

/// The tenant whose client has sent a request, with the version of the quotas that its id belongs to. Cores put
/// new quotas in force one after the other, so ids of different versions are never compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The tenant whose client sent the request.
    pub tenant: TenantId,
    /// Version of the quotas ([`Quotas::version`](crate::config::Quotas::version)).
    pub version: u64,
}

/// The requests that a monitor (a client that has sent `MONITOR`) is allowed to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The monitor, who is an administrator, sees the requests of all clients.
    All,
    /// The monitor sees the requests of the clients of this tenant.
    Tenant(Sender),
}

impl Sight {
    /// True if a monitor with this sight may see a request of `sender`.
    pub fn covers(self, sender: Sender) -> bool {
        match self {
            Self::All => true,
            Self::Tenant(own) => own == sender,
        }
    }
}

/// Whether a monitor (a client that has sent `MONITOR`) can be sent lines now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The monitor keeps up: few enough bytes wait for it that further lines can be sent.
    Ready,
    /// So many bytes wait for the monitor that lines for it are left out.
    Behind,
}

/// Place of a monitor on the board of all monitors (clients that have sent `MONITOR`): an index below 64.
pub type MonitorPlace = usize;

/// A set of monitors (clients that have sent `MONITOR`), one bit for each of their places on the board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MonitorSet(u64);

impl MonitorSet {
    /// Adds the monitor (client that has sent `MONITOR`) that has this place on the board to the set.
    pub fn add(&mut self, place: MonitorPlace) {
        self.0 |= 1 << place;
    }

    /// Returns the subset of the monitors (clients that have sent `MONITOR`) for whose places on the board
    /// `is_wanted` is true.
    #[must_use]
    pub fn filter(self, is_wanted: impl Fn(MonitorPlace) -> bool) -> Self {
        let mut wanted = Self::default();
        self.iter().filter(|place| is_wanted(*place)).for_each(|place| wanted.add(place));
        wanted
    }

    /// True if the set contains no monitor (client that has sent `MONITOR`).
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Iterates over the places that the set's monitors (clients that have sent `MONITOR`) have on the board.
    pub fn iter(self) -> impl Iterator<Item = MonitorPlace> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let place = (rest != 0).then(|| rest.trailing_zeros() as MonitorPlace)?;
            rest &= rest - 1;
            Some(place)
        })
    }
}

/// The monitors (clients that have sent MONITOR) that may see a request. Those that read too slowly are kept apart:
/// they are not sent the line that shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watchers {
    /// Monitors that can be sent the line that shows the request.
    pub ready: MonitorSet,
    /// Monitors for which too many bytes wait, so that the line that shows the request is left out.
    pub behind: MonitorSet,
}

/// The number of monitors of all cores. It has a cache line of its own, because every request reads it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Taken(AtomicU32);

/// The board of the monitors (clients that have sent `MONITOR`) of all cores: which monitors there are, and
/// which requests each may see.
#[derive(Debug)]
pub struct MonitorBoard {
    taken: Taken,
    /// An entry for each place that a monitor (client that has sent `MONITOR`) may take: 0 if no monitor has it, else
    /// the monitor's flags, tenant and core, packed by [`entry`].
    entries: Box<[AtomicU64]>,
    /// For each monitor, the number of lines that other cores have left out and that the monitor has not been
    /// told of.
    left_out: Box<[AtomicU64]>,
}

const FREE: u64 = 0;
const TAKEN: u64 = 1 << 63;
const BEHIND: u64 = 1 << 62;
const ALL: u64 = 1 << 61;
const SHARD_BITS: u32 = 12;
const TENANT_BITS: u32 = 16;
const SENDER: u64 = ((1 << 61) - 1) & !((1 << SHARD_BITS) - 1);
const VERSION: u64 = SENDER & !((1 << (SHARD_BITS + TENANT_BITS)) - 1);

const _: () = assert!(SHARDS_MAX <= 1 << SHARD_BITS && MONITORS_MAX == 64);

/// Packs the entry of a monitor into 64 bits: three flags, 33 bits of the quotas' version, 16 of the tenant,
/// 12 of the shard.
fn entry(shard: ShardId, sight: Sight, reading: Reading) -> u64 {
    let seen = match sight {
        Sight::All => ALL,
        Sight::Tenant(sender) => sender_bits(sender),
    };
    let flags = if reading == Reading::Behind { TAKEN | BEHIND } else { TAKEN };
    flags | seen | u64::from(shard.0)
}

fn sender_bits(sender: Sender) -> u64 {
    (sender.version << (SHARD_BITS + TENANT_BITS) | u64::from(sender.tenant.0) << SHARD_BITS) & SENDER
}

impl MonitorBoard {
    /// Creates a board with room for this many (`places`) monitors, clients that have sent `MONITOR`; for 64
    /// if it is more.
    pub fn new(places: usize) -> Self {
        let places = places.min(MONITORS_MAX as usize);
        let zeros = || std::iter::repeat_with(AtomicU64::default).take(places).collect();
        Self { taken: Taken::default(), entries: zeros(), left_out: zeros() }
    }

    /// True if any client of any core is a monitor (has sent `MONITOR`), so that requests have to be shown.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.taken.0.load(Ordering::Relaxed) > 0
    }

    /// Returns the largest number of monitors (clients that have sent `MONITOR`) that all cores may have together.
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// True if a monitor (client that has sent `MONITOR`) may see the requests that `sight` says. False if these are
    /// only its tenant's, and other such monitors of that tenant have a quarter of all places (at least one) already.
    /// `own` is the place that the monitor has; None if it is a new one. Monitors of tenants under other quotas, whose
    /// cores are about to put the new ones in force, count as the tenant's, because it is unknown whether they are.
    pub fn has_room(&self, sight: Sight, own: Option<MonitorPlace>) -> bool {
        let Sight::Tenant(sender) = sight else { return true };
        let differing = |place: &AtomicU64| place.load(Ordering::Relaxed) ^ (TAKEN | sender_bits(sender));
        if own.is_some_and(|own| differing(&self.entries[own]) & (TAKEN | ALL | SENDER) == 0) {
            return true;
        }
        let may_be_same = |(place, other): &(MonitorPlace, &AtomicU64)| {
            let differing = differing(other);
            let is_unknown = differing & VERSION != 0;
            Some(*place) != own && differing & (TAKEN | ALL) == 0 && (is_unknown || differing & SENDER == 0)
        };
        self.entries.iter().enumerate().filter(may_be_same).count() < (self.places() / 4).max(1)
    }

    /// Takes a place on the board for a new monitor (client that has sent `MONITOR`) of this core. None if all places
    /// are taken, or if there is no room for one more monitor that may see these requests ([`Self::has_room`]).
    pub fn take(&self, shard: ShardId, sight: Sight) -> Option<MonitorPlace> {
        if !self.has_room(sight, None) {
            return None;
        }
        let new = entry(shard, sight, Reading::Ready);
        let place = self.entries.iter().position(|place| {
            place.compare_exchange(FREE, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })?;
        self.left_out[place].store(0, Ordering::Relaxed);
        self.taken.0.fetch_add(1, Ordering::Relaxed);
        Some(place)
    }

    /// Changes the entry of a monitor: which requests it may see, and whether it can be sent lines. Only its
    /// own core may do so.
    pub fn change(&self, place: MonitorPlace, shard: ShardId, sight: Sight, reading: Reading) {
        self.entries[place].store(entry(shard, sight, reading), Ordering::Relaxed);
    }

    /// Frees the place of a monitor that has ended. Only its own core may do so.
    pub fn give_back(&self, place: MonitorPlace) {
        debug_assert!(self.entries[place].load(Ordering::Relaxed) != FREE, "a place is given back once");
        self.entries[place].store(FREE, Ordering::Relaxed);
        self.taken.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the monitors of all cores that may see a request of `sender`.
    pub fn watchers(&self, sender: Sender) -> Watchers {
        let mut watchers = Watchers::default();
        for (place, entry) in self.entries.iter().enumerate() {
            let entry = entry.load(Ordering::Relaxed);
            let sees = entry & ALL != 0 || entry & SENDER == sender_bits(sender);
            if entry & TAKEN == 0 || !sees {
                continue;
            }
            if entry & BEHIND == 0 { watchers.ready.add(place) } else { watchers.behind.add(place) }
        }
        watchers
    }

    /// Returns the core that has the monitor (client that has sent `MONITOR`) in a place of the board.
    pub fn shard_of(&self, place: MonitorPlace) -> ShardId {
        ShardId((self.entries[place].load(Ordering::Relaxed) & ((1 << SHARD_BITS) - 1)) as u16)
    }

    /// Adds to the number of lines that cores other than its own have left out for a monitor (client that has sent
    /// `MONITOR`), of which it is yet to be told.
    pub fn add_left_out(&self, place: MonitorPlace, lines: u64) {
        self.left_out[place].fetch_add(lines, Ordering::Relaxed);
    }

    /// Returns the number of lines that other cores have left out for a monitor since the last call.
    pub fn take_left_out(&self, place: MonitorPlace) -> u64 {
        let left_out = &self.left_out[place];
        if left_out.load(Ordering::Relaxed) == 0 { 0 } else { left_out.swap(0, Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn sender(tenant: u16, version: u64) -> Sender {
        Sender { tenant: TenantId(tenant), version }
    }

    #[test]
    fn a_tenant_sees_its_own_and_an_administrator_all() {
        let board = MonitorBoard::new(8);
        assert!(!board.is_watched());
        let all = board.take(ShardId(255), Sight::All).expect("a place");
        let own = board.take(ShardId(3), Sight::Tenant(sender(7, 2))).expect("a place");
        assert_eq!((board.shard_of(all), board.shard_of(own)), (ShardId(255), ShardId(3)));
        let ready = |board: &MonitorBoard, of| board.watchers(of).ready.iter().collect::<Vec<_>>();
        assert_eq!(ready(&board, sender(7, 2)), [all, own]);
        for other in [sender(8, 2), sender(7, 3), sender(u16::MAX, 2), sender(0, 0)] {
            assert_eq!(ready(&board, other), [all], "{other:?}");
        }
        board.change(own, ShardId(3), Sight::Tenant(sender(7, 3)), Reading::Behind);
        let watchers = board.watchers(sender(7, 3));
        assert_eq!(watchers.ready.iter().collect::<Vec<_>>(), [all]);
        assert_eq!(watchers.behind.iter().collect::<Vec<_>>(), [own]);
        board.give_back(all);
        assert!(board.is_watched() && board.watchers(sender(8, 3)).ready.is_empty());
        board.give_back(own);
        assert!(!board.is_watched());
    }

    #[test]
    fn places_end_and_one_tenant_does_not_take_them_all() {
        let board = MonitorBoard::new(8);
        let mut take = |sight| board.take(ShardId(0), sight).is_some();
        let [one, other] = [1, 2].map(|tenant| Sight::Tenant(sender(tenant, 0)));
        assert_eq!(
            [one, one, one, other, other, other].map(&mut take),
            [true, true, false, true, true, false]
        );
        assert_eq!([Sight::All; 5].map(&mut take), [true, true, true, true, false]);
        board.give_back(0);
        assert_eq!([one, one].map(|sight| board.take(ShardId(0), sight)), [Some(0), None]);
        let none = MonitorBoard::new(0);
        assert_eq!((none.take(ShardId(0), Sight::All), none.is_watched()), (None, false));
        let few = MonitorBoard::new(1);
        assert_eq!(few.take(ShardId(0), one), Some(0), "the least that a tenant may have is one");
    }

    #[test]
    fn a_monitor_may_become_one_of_a_tenant_that_has_room() {
        let board = MonitorBoard::new(8);
        let [one, other] = [1, 2].map(|tenant| Sight::Tenant(sender(tenant, 0)));
        let places =
            [one, one, other, Sight::All].map(|sight| board.take(ShardId(0), sight).expect("a place"));
        let room_for = |sight| places.map(|place| board.has_room(sight, Some(place)));
        assert_eq!(room_for(one), [true, true, false, false], "the tenant has its quarter");
        assert_eq!((room_for(other), room_for(Sight::All)), ([true; 4], [true; 4]));
        assert!(!board.has_room(one, None) && board.has_room(other, None));
        board.change(places[3], ShardId(0), other, Reading::Behind);
        assert_eq!(room_for(other), [false, false, true, true]);
        board.change(places[0], ShardId(0), Sight::All, Reading::Ready);
        assert_eq!(room_for(one), [true; 4]);
    }

    #[test]
    fn monitors_under_earlier_quotas_may_be_of_any_tenant() {
        let board = MonitorBoard::new(8);
        let [before, after] = [1, 2].map(|version| Sight::Tenant(sender(3, version)));
        let places =
            [before, before, Sight::All].map(|sight| board.take(ShardId(0), sight).expect("a place"));
        assert_eq!(board.take(ShardId(1), after), None);
        board.change(places[0], ShardId(0), Sight::Tenant(sender(4, 2)), Reading::Ready);
        assert!(board.take(ShardId(1), after).is_some());
        assert_eq!(board.take(ShardId(1), after), None);
    }

    #[test]
    fn lines_left_out_are_told_once_and_not_to_the_next_in_the_place() {
        let board = MonitorBoard::new(1);
        let take = || board.take(ShardId(0), Sight::All).expect("a place");
        let place = take();
        board.add_left_out(place, 3);
        board.add_left_out(place, 4);
        assert_eq!([board.take_left_out(place), board.take_left_out(place)], [7, 0]);
        board.add_left_out(place, 5);
        board.give_back(place);
        assert_eq!(board.take_left_out(take()), 0);
    }

    proptest! {
        #[test]
        fn what_the_board_shows_is_what_may_be_seen(
            monitors in proptest::collection::vec((0_u16..256, proptest::option::of((0_u16..4, 0_u64..3))), 0..10),
            tenant in 0_u16..4,
            version in 0_u64..3,
        ) {
            let board = MonitorBoard::new(64);
            let mut expected = Vec::new();
            for (shard, own) in monitors {
                let sight = own.map_or(Sight::All, |(tenant, version)| Sight::Tenant(sender(tenant, version)));
                let place = board.take(ShardId(shard), sight).expect("a place");
                prop_assert_eq!(board.shard_of(place), ShardId(shard));
                if sight.covers(sender(tenant, version)) {
                    expected.push(place);
                }
            }
            let shown = board.watchers(sender(tenant, version));
            prop_assert_eq!(shown.ready.iter().collect::<Vec<_>>(), expected);
            prop_assert!(shown.behind.is_empty());
        }
    }
}
