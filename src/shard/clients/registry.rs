//! The table of a shard's clients.

use super::client::Client;
use super::identity::Identity;
use crate::protocol::BufferPool;
use crate::values::{ClientId, Timestamp};

/// The table of a shard's clients. A free place is used again with a new generation number, so that ids of
/// former clients no longer match.
#[derive(Debug, Default)]
pub struct Clients {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    client: Option<Box<Client>>,
}

impl Clients {
    /// Returns the number of connected clients in the table.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Adds a client with this number (`CLIENT ID`) and identity to the table. Returns its id.
    pub fn open(&mut self, number: u64, identity: Identity, now: Timestamp) -> ClientId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, client: None });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.generation = place.generation.wrapping_add(1);
        place.client = Some(Box::new(Client::new(number, identity, now)));
        ClientId { index, generation: place.generation }
    }

    /// Removes a client from the table and returns it; the buffers of its replies go back to the pool. None if the
    /// client is gone already.
    pub fn close(&mut self, id: ClientId, pool: &mut BufferPool) -> Option<Box<Client>> {
        let place = &mut self.places[id.index as usize];
        if place.generation != id.generation {
            return None;
        }
        let mut client = place.client.take()?;
        client.order.release(pool);
        self.free.push(id.index);
        Some(client)
    }

    /// Returns a client, or None if it has disconnected.
    pub fn get(&mut self, id: ClientId) -> Option<&mut Client> {
        self.places
            .get_mut(id.index as usize)
            .filter(|place| place.generation == id.generation)
            .and_then(|place| place.client.as_deref_mut())
    }

    /// Returns a client that the caller knows to be connected. Panics if the client has disconnected.
    pub fn at(&mut self, id: ClientId) -> &mut Client {
        self.get(id).expect("the caller holds the id of an open client")
    }

    /// Returns a client for reading, or None if it has disconnected.
    pub fn peek(&self, id: ClientId) -> Option<&Client> {
        let place = self.places.get(id.index as usize)?;
        place.client.as_deref().filter(|_| place.generation == id.generation)
    }

    /// Iterates over all connected clients.
    pub fn all(&self) -> impl Iterator<Item = &Client> {
        self.places.iter().filter_map(|place| place.client.as_deref())
    }

    /// Iterates over the ids of all connected clients.
    pub fn ids(&self) -> impl Iterator<Item = ClientId> {
        (0..self.places()).filter_map(|index| self.in_place(index))
    }

    /// Returns the number of places in the table, taken or free.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// Returns the id of the client in a place of the table, or None if the place is free.
    pub fn in_place(&self, index: usize) -> Option<ClientId> {
        let place = &self.places[index];
        place.client.as_ref().map(|_| ClientId { index: index as u32, generation: place.generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_not_mistaken_for_its_former_owner() {
        let mut clients = Clients::default();
        let mut pool = BufferPool::new(1);
        let former = clients.open(1, Identity::default(), Timestamp::ZERO);
        clients.close(former, &mut pool);
        let owner = clients.open(2, Identity::default(), Timestamp::ZERO);
        assert_eq!(owner.index, former.index);
        assert!(clients.get(former).is_none() && clients.get(owner).is_some());
        assert!(clients.close(former, &mut pool).is_none());
        assert_eq!(clients.len(), 1);
    }
}
