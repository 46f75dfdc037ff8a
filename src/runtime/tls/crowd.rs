//! Bounds on the number of TLS handshakes in progress, and on the number that begin per second. Pure.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::values::Timestamp;

/// Chooses the TLS handshake that is given up in favour of a new one: the oldest one of the client address
/// with the most handshakes in progress, so that a flood from one address costs that address only. `all` has
/// the key, client address and beginning of each. Returns its key; `None` if there are no handshakes.
pub(super) fn makes_way<Key: Copy>(all: impl Iterator<Item = (Key, IpAddr, Timestamp)>) -> Option<Key> {
    let mut by_address: HashMap<IpAddr, (usize, Timestamp, Key)> = HashMap::new();
    for (key, address, since) in all {
        let entry = by_address.entry(address).or_insert((0, since, key));
        let (first, who) = if since < entry.1 { (since, key) } else { (entry.1, entry.2) };
        *entry = (entry.0 + 1, first, who);
    }
    let most = by_address.into_values().max_by_key(|(count, since, _)| (*count, std::cmp::Reverse(*since)));
    most.map(|(_, _, key)| key)
}

/// A token bucket for TLS handshakes: at most `most` per second, and at most as many at once after a pause.
#[derive(Debug)]
pub(super) struct Pace {
    period: Duration,
    most: u32,
    /// The content of the bucket, as a time: the bucket holds the tokens that have come in since then. Taking
    /// a token moves the time forward by the period in which one comes in.
    empty_since: Timestamp,
}

impl Pace {
    pub fn new(per_second: u32, now: Timestamp) -> Self {
        let period = Duration::from_secs(1) / per_second.max(1);
        Self { period, most: per_second.max(1), empty_since: now.before(period * per_second.max(1)) }
    }

    /// Takes a token for one TLS handshake. True if there was one, so that the handshake may go on.
    pub fn take(&mut self, now: Timestamp) -> bool {
        self.empty_since = self.empty_since.max(now.before(self.period * self.most));
        let may = now.since(self.empty_since) >= self.period;
        if may {
            self.empty_since = self.empty_since.after(self.period);
        }
        may
    }

    /// Returns the time from which there is a token for the next TLS handshake.
    pub fn next(&self) -> Timestamp {
        self.empty_since.after(self.period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_flood_from_one_address_makes_way_itself() {
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let flood = (0..10).map(|number| (number, address(1), at(50 + number)));
        let others = [(100, address(2), at(1)), (101, address(3), at(2)), (102, address(3), at(3))];
        assert_eq!(
            makes_way(flood.chain(others)),
            Some(0),
            "the oldest of the flood, though others came before it"
        );
        assert_eq!(makes_way(others.into_iter()), Some(101));
        assert_eq!(makes_way(others[..1].iter().copied()), Some(100));
        assert_eq!(makes_way(std::iter::empty::<(u8, IpAddr, Timestamp)>()), None);
    }

    #[test]
    fn no_more_begin_in_any_second_than_twice_the_rate() {
        let mut pace = Pace::new(50, at(10_000));
        let begun: Vec<u64> = (10_000..13_000).filter(|ms| pace.take(at(*ms))).collect();
        assert_eq!(begun.iter().filter(|ms| **ms < 10_001).count(), 1);
        assert_eq!(begun.len(), 50 + 3 * 50 - 1, "a second's worth at once, and then as they come");
        assert_eq!(begun[..50], (10_000..10_050).collect::<Vec<_>>());
        assert!(pace.next() > at(12_980) && pace.next() <= at(13_020));
        // After a pause there is a second's worth again, and no more.
        let burst = (0..1_000).filter(|_| pace.take(at(60_000))).count();
        assert_eq!(burst, 50);
    }
}
