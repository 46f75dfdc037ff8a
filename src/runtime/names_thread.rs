//! Looks up the host names of stores again at intervals, on a thread of its own; connections opened after a
//! change go to the new address.
//!
//! A name may have several addresses. The address in use stays in use as long as it is among them.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use super::connect::{Place, Spot, addresses_of, put, spot_of};
use super::messages::{Mailbox, ToControl, ToShard};
use crate::values::{BackendId, ServerAddress};

/// A store that is configured by host name, whose address is looked up again at intervals.
struct Named {
    backend: BackendId,
    address: ServerAddress,
    place: Place,
    used: Option<SocketAddr>,
}

/// The stores that are configured by host name, and the interval between look-ups.
pub(super) struct NamesThread {
    stores: Vec<Named>,
    interval: Duration,
}

impl NamesThread {
    /// Selects the stores that are configured by host name; the others have fixed IP addresses. `stores` lists
    /// all in order of backend number, each with the current address that shards share (None for a store that is
    /// not reached by an address, which is left out). Their names are looked up again after each `interval`.
    pub fn new<'a>(
        stores: impl Iterator<Item = (&'a ServerAddress, Option<Place>)>,
        interval: Duration,
    ) -> Self {
        let stores = stores.enumerate().filter_map(|(index, (address, place))| {
            let place = place?;
            let used = spot_of(&place).and_then(|spot| spot.address.as_socket());
            let is_name = address.host.parse::<std::net::IpAddr>().is_err();
            is_name.then(|| Named { backend: BackendId(index as u16), address: address.clone(), place, used })
        });
        Self { stores: stores.collect(), interval }
    }

    /// Starts the thread that looks up the host names of stores again, unless no store has a host name or the
    /// interval is zero. It reports changes to `shards` and `control`, and ends with the process. Fails if it
    /// cannot be started.
    pub fn start(self, shards: Vec<Mailbox<ToShard>>, control: Mailbox<ToControl>) -> io::Result<()> {
        if self.stores.is_empty() || self.interval.is_zero() {
            return Ok(());
        }
        thread::Builder::new()
            .name("weir-names".to_owned())
            .spawn(move || self.run(&shards, &control))
            .map(|_| ())
    }

    fn run(mut self, shards: &[Mailbox<ToShard>], control: &Mailbox<ToControl>) {
        loop {
            thread::park_timeout(self.interval);
            for (backend, line) in self.look(|address| addresses_of(address).unwrap_or_default()) {
                shards.iter().for_each(|shard| shard.post(ToShard::StoreMoved(backend)));
                control.post(ToControl::StoreMoved(line));
            }
        }
    }

    /// Looks up the host names of all stores with `lookup`. Returns the stores whose address in use is no
    /// longer among those found, and which now have the first one found, each with a line for the log. A name
    /// that cannot be looked up changes nothing.
    fn look(&mut self, lookup: impl Fn(&ServerAddress) -> Vec<SocketAddr>) -> Vec<(BackendId, String)> {
        let mut moved = Vec::new();
        for store in &mut self.stores {
            // A name that cannot be looked up now is no reason to leave a store that answers.
            let found = lookup(&store.address);
            let is_there = store.used.is_some_and(|used| found.contains(&used));
            let Some(first) = found.first().filter(|_| !is_there) else { continue };
            let before = store.used.map_or_else(|| "was nowhere".to_owned(), |used| format!("was at {used}"));
            let line = format!("{} {before} and is at {first} now", store.address);
            store.used = Some(*first);
            put(&store.place, Some(Spot::new(*first, &store.address)));
            moved.push((store.backend, line));
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn who_has_another_address_is_found_there_and_nobody_else_is_touched() {
        let hosts = ["one.example", "10.0.0.2", "three.example", "four.example"];
        let addresses = hosts.map(|host| ServerAddress { host: host.to_owned(), port: 1 });
        let place = |address: &ServerAddress| {
            let spot = Spot::new(at("10.0.0.1:1"), address);
            Arc::new(Mutex::new((address.host != "four.example").then_some(spot)))
        };
        let places: Vec<Place> = addresses.iter().map(place).collect();
        let stores = addresses.iter().zip(places.iter().map(|place| Some(Arc::clone(place))));
        let mut names = NamesThread::new(stores, Duration::from_secs(5));
        assert_eq!(names.stores.len(), 3, "an address is no name");
        let mut look = |one: &[&str], three: &[&str], four: &[&str]| {
            names.look(|address| {
                let found = match address.host.as_str() {
                    "one.example" => one,
                    "three.example" => three,
                    _ => four,
                };
                found.iter().map(|text| at(text)).collect()
            })
        };
        let used = |place: usize| spot_of(&places[place])?.address.as_socket();
        assert_eq!(look(&[], &[], &[]), [], "who cannot be looked up stays");
        assert_eq!(look(&["10.0.0.9:1", "10.0.0.1:1"], &["10.0.0.1:1"], &[]), [], "it is one of several");
        let moved = look(&["10.0.0.1:1"], &["10.0.0.7:1", "10.0.0.8:1"], &[]);
        let line = "three.example:1 was at 10.0.0.1:1 and is at 10.0.0.7:1 now";
        assert_eq!(moved, [(BackendId(2), line.to_owned())]);
        assert_eq!([used(0), used(2), used(3)], [Some(at("10.0.0.1:1")), Some(at("10.0.0.7:1")), None]);
        let moved = look(&["10.0.0.1:1"], &["10.0.0.8:1", "10.0.0.7:1"], &["10.0.0.4:1"]);
        let line = "four.example:1 was nowhere and is at 10.0.0.4:1 now";
        assert_eq!(moved, [(BackendId(3), line.to_owned())], "an address is used for as long as it is there");
        assert_eq!(used(3), Some(at("10.0.0.4:1")));
    }
}
