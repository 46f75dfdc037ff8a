//! Bounds on the number of TLS handshakes in progress, and on the number that begin per second. Pure.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::values::Timestamp;

/// The time for which a TLS handshake may wait for its client while no more handshakes fit. After it, the
/// handshake may be given up in favour of a new one.
const CLIENT_SILENCE_MAX: Duration = Duration::from_millis(500);

/// The facts about a TLS handshake in progress by which it is decided which one is given up in favour of a new
/// one.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay<Key> {
    pub key: Key,
    pub address: IpAddr,
    /// The time at which the client connected.
    pub since: Timestamp,
    /// The time since which the handshake waits for bytes from its client; `None` if it waits until weir
    /// answers the client's first message, as the rate of handshakes is limited.
    pub awaits_client_since: Option<Timestamp>,
}

/// Chooses the TLS handshake that is given up in favour of a new one that begins at `now`: the oldest one of
/// the client network with the most handshakes in progress, so that a flood from one network costs that network
/// only. If no network has more than one, it is the handshake that has waited longest for its client, if for
/// more than 500 ms. Otherwise returns `None`: the new handshake is given up, because else a flood from many
/// networks would push out every handshake that waits to be answered.
pub(super) fn makes_way<Key: Copy>(
    all: impl Iterator<Item = UnderWay<Key>> + Clone,
    now: Timestamp,
) -> Option<Key> {
    let mut by_network: HashMap<IpAddr, (usize, Timestamp, Key)> = HashMap::new();
    for UnderWay { key, address, since, .. } in all.clone() {
        let entry = by_network.entry(network_of(address)).or_insert((0, since, key));
        let (first, who) = if since < entry.1 { (since, key) } else { (entry.1, entry.2) };
        *entry = (entry.0 + 1, first, who);
    }
    let most = by_network.into_values().max_by_key(|(count, since, _)| (*count, std::cmp::Reverse(*since)));
    if let Some((2.., _, key)) = most {
        return Some(key);
    }
    let quiet = all.filter_map(|one| one.awaits_client_since.map(|since| (since, one.key)));
    let longest = quiet.min_by_key(|(since, _)| *since);
    longest.filter(|(since, _)| now.since(*since) > CLIENT_SILENCE_MAX).map(|(_, key)| key)
}

/// Returns the address that stands for the network of a client: of an IPv6 address its first 64 bits, because
/// one host may use all addresses that share them; an IPv4 address itself, also if it is mapped to IPv6.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        IpAddr::V4(address) => IpAddr::V4(address),
    }
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
    use std::net::Ipv4Addr;

    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// Returns a handshake that waits until weir answers the client's first message, not for its client.
    fn queued(key: u32, address: impl Into<IpAddr>, since: Timestamp) -> UnderWay<u32> {
        UnderWay { key, address: address.into(), since, awaits_client_since: None }
    }

    #[test]
    fn a_flood_from_one_address_makes_way_itself() {
        let address = |last: u8| [10, 0, 0, last];
        let flood = (0..10).map(|number| queued(number, address(1), at(50 + u64::from(number))));
        let others =
            [queued(100, address(2), at(1)), queued(101, address(3), at(2)), queued(102, address(3), at(3))];
        assert_eq!(
            makes_way(flood.chain(others), at(100)),
            Some(0),
            "the oldest of the flood, though others came before it"
        );
        assert_eq!(makes_way(others.into_iter(), at(100)), Some(101));
        assert_eq!(makes_way(std::iter::empty::<UnderWay<u32>>(), at(100)), None);
    }

    #[test]
    fn a_host_with_many_addresses_of_one_network_is_one() {
        let host = |last: u16| [0x2001, 0xdb8, 0, 7, last, last, last, last];
        let flood = (0..10).map(|number| queued(number, host(number as u16), at(50 + u64::from(number))));
        let other = queued(100, [0x2001, 0xdb8, 0, 8, 0, 0, 0, 1], at(1));
        assert_eq!(makes_way(flood.chain([other]), at(100)), Some(0));
        // Addresses of IPv4 that are mapped to IPv6 share their first 64 bits, and are hosts of their own.
        let mapped = |last: u8| Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped();
        let others = [1, 2, 3].map(|last| queued(u32::from(last), mapped(last), at(1)));
        assert_eq!(makes_way(others.into_iter(), at(100)), None);
        let twice = [queued(4, mapped(4), at(4)), queued(5, [10, 0, 0, 4], at(5))];
        assert_eq!(makes_way(others.into_iter().chain(twice), at(100)), Some(4));
    }

    #[test]
    fn a_flood_from_many_addresses_takes_the_turn_of_nobody_who_waits_for_it() {
        let all = [1_u8, 2, 3].map(|last| queued(u32::from(last), [10, 0, 0, last], at(u64::from(last))));
        assert_eq!(makes_way(all.into_iter(), at(9_000)), None, "the new one is given up");
        // Clients that are silent make way after a while, whatever they wait with.
        let silent = |key: u8, since: u64| UnderWay {
            awaits_client_since: Some(at(since)),
            ..queued(u32::from(key), [10, 0, 0, key], at(1))
        };
        let some = all.into_iter().chain([silent(4, 300), silent(5, 200)]);
        assert_eq!(makes_way(some.clone(), at(700)), None);
        assert_eq!(makes_way(some, at(701)), Some(5));
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
