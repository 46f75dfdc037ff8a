//! Looks the names of stores up again, on a thread of its own: who has another address by then is connected to there.
//!
//! A name may have several addresses. The one in use stays in use for as long as it is among them.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use super::connect::{Place, Spot};
use super::messages::{Mailbox, ToControl, ToShard};
use crate::values::{BackendId, ServerAddress};

/// A store that has a name.
struct Named {
    backend: BackendId,
    address: ServerAddress,
    place: Place,
    used: SocketAddr,
}

/// All stores that have one.
pub(super) struct NamesThread {
    stores: Vec<Named>,
    interval: Duration,
}

impl NamesThread {
    /// Stores with their places, in order. Who is given by an address has it for ever.
    pub fn new<'a>(
        stores: impl Iterator<Item = (&'a ServerAddress, Option<Place>)>,
        interval: Duration,
    ) -> Self {
        let stores = stores.enumerate().filter_map(|(index, (address, place))| {
            let place = place?;
            let used = place.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.address.as_socket()?;
            let is_name = address.host.parse::<std::net::IpAddr>().is_err();
            is_name.then(|| Named { backend: BackendId(index as u16), address: address.clone(), place, used })
        });
        Self { stores: stores.collect(), interval }
    }

    /// Goes on looking. The thread ends with the process.
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
            for (backend, line) in self.look(addresses_of) {
                shards.iter().for_each(|shard| shard.post(ToShard::StoreMoved(backend)));
                control.post(ToControl::StoreMoved(line));
            }
        }
    }

    /// Who has moved, and how people are told.
    fn look(&mut self, lookup: impl Fn(&ServerAddress) -> Vec<SocketAddr>) -> Vec<(BackendId, String)> {
        let mut moved = Vec::new();
        for store in &mut self.stores {
            // A name that cannot be looked up now is no reason to leave who answers.
            let found = lookup(&store.address);
            let Some(first) = found.first().filter(|_| !found.contains(&store.used)) else { continue };
            let line = format!("{} was at {} and is at {first} now", store.address, store.used);
            store.used = *first;
            let spot = Spot { address: (*first).into(), host: store.address.host.clone() };
            *store.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(spot);
            moved.push((store.backend, line));
        }
        moved
    }
}

fn addresses_of(address: &ServerAddress) -> Vec<SocketAddr> {
    (address.host.as_str(), address.port).to_socket_addrs().map(Iterator::collect).unwrap_or_default()
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
        let addresses = [("one.example", 1), ("10.0.0.2", 2), ("three.example", 3)]
            .map(|(host, port)| ServerAddress { host: host.to_owned(), port });
        let places: Vec<Place> = addresses
            .iter()
            .map(|address| {
                let spot = Spot { address: at("10.0.0.1:1").into(), host: address.host.clone() };
                Arc::new(Mutex::new(Some(spot)))
            })
            .collect();
        let stores = addresses.iter().zip(places.iter().map(|place| Some(Arc::clone(place))));
        let mut names = NamesThread::new(stores, Duration::from_secs(5));
        assert_eq!(names.stores.len(), 2, "an address is no name");
        let used =
            |place: usize| places[place].lock().expect("whole").clone().expect("there").address.as_socket();
        assert_eq!(names.look(|_| Vec::new()), []);
        assert_eq!(names.look(|_| vec![at("10.0.0.9:1"), at("10.0.0.1:1")]), [], "it is one of several");
        let moved = names.look(|address| match address.host.as_str() {
            "three.example" => vec![at("10.0.0.7:3"), at("10.0.0.8:3")],
            _ => vec![at("10.0.0.1:1")],
        });
        let line = "three.example:3 was at 10.0.0.1:1 and is at 10.0.0.7:3 now";
        assert_eq!(moved, [(BackendId(2), line.to_owned())]);
        assert_eq!([used(0), used(2)], [at("10.0.0.1:1"), at("10.0.0.7:3")].map(Some));
        let again = names.look(|address| match address.host.as_str() {
            "three.example" => vec![at("10.0.0.8:3"), at("10.0.0.7:3")],
            _ => vec![at("10.0.0.1:1")],
        });
        assert_eq!(again, [], "it is used for as long as it is there");
    }
}
