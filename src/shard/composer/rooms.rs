//! What is missing of large messages is received where it belongs: the shard lends room for it, and takes it back.

use super::Shard;
use crate::protocol::Room;
use crate::shard::counters::Counter;
use crate::values::time::Now;
use crate::values::{ClientId, ConnectionId};

impl Shard {
    /// Room for what is missing of a client's request. Bytes that come in any other way must wait until it is taken back.
    pub fn lend_client_room(&mut self, id: ClientId) -> Option<Room> {
        self.front.lend_room(id)
    }

    /// Takes back what was lent for a client's request, with so many bytes received into it. How many more are missing.
    pub fn handle_client_filled(
        &mut self,
        id: ClientId,
        buffer: Vec<u8>,
        received: usize,
        now: Now,
    ) -> usize {
        let missing = self.front.take_room_back(id, buffer);
        if received == 0 {
            return missing;
        }
        self.env.counters.add(Counter::ClientBytesReceived, received as u64);
        self.handle_client_bytes(id, &[], now)
    }

    /// Room for what is missing of a backend's reply. Bytes that come in any other way must wait until it is taken back.
    pub fn lend_link_room(&mut self, connection: ConnectionId, generation: u32) -> Option<Room> {
        self.back.lend_room(&self.env, (connection, generation))
    }

    /// Takes back what was lent for a backend's reply, with so many bytes received into it. How many more are missing.
    pub fn handle_link_filled(
        &mut self,
        connection: ConnectionId,
        generation: u32,
        buffer: Vec<u8>,
        received: usize,
        now: Now,
    ) -> usize {
        let (env, back, mut replies) = self.towards_clients();
        back.handle_filled(env, (connection, generation), (buffer, received), &mut replies, now);
        self.back.missing((connection, generation))
    }
}
