//! Buffers for large messages: the missing rest of a request or reply is received directly into its place,
//! without a copy. The shard lends the runtime the buffer, and takes it back.

use super::Shard;
use crate::protocol::Room;
use crate::shard::counters::Counter;
use crate::values::time::Now;
use crate::values::{ClientId, ConnectionId};

impl Shard {
    /// Lends a buffer for the missing rest of a client's request; None if nothing is missing, or if the
    /// client must not go on. Until the buffer is given back, bytes of the client that arrive in any other
    /// way must wait.
    pub fn lend_client_room(&mut self, id: ClientId) -> Option<Room> {
        self.clients.lend_room(id)
    }

    /// Takes back the buffer for a client's request, with `received` more bytes in it. Returns how many bytes
    /// of the request are still missing.
    pub fn handle_client_filled(
        &mut self,
        id: ClientId,
        buffer: Vec<u8>,
        received: usize,
        now: Now,
    ) -> usize {
        let missing = self.clients.take_room_back(id, buffer);
        if received == 0 {
            return missing;
        }
        self.env.counters.add(Counter::ClientBytesReceived, received as u64);
        self.handle_client_bytes(id, &[], now)
    }

    /// Lends a buffer for the missing rest of a backend's reply. Until it is given back, bytes of the connection that
    /// arrive in any other way must wait. None if nothing large is missing, so that received bytes are copied as usual,
    /// and if `generation` is that of an earlier socket of the connection.
    pub fn lend_link_room(&mut self, connection: ConnectionId, generation: u32) -> Option<Room> {
        self.upstream.lend_room(&self.env, (connection, generation))
    }

    /// Takes back the buffer for a backend's reply, with `received` more bytes in it. Returns how many bytes of the
    /// reply are still missing. Drops the buffer if `generation` is that of an earlier socket of the connection.
    pub fn handle_link_filled(
        &mut self,
        connection: ConnectionId,
        generation: u32,
        buffer: Vec<u8>,
        received: usize,
        now: Now,
    ) -> usize {
        let (env, upstream, mut replies) = self.towards_clients();
        upstream.handle_filled(env, (connection, generation), (buffer, received), &mut replies, now);
        self.upstream.missing((connection, generation))
    }

    /// Stops reserving room, in the memory set aside for large replies, for those whose stores have fallen silent, so
    /// that others get it. Excuses the silence of stores on connections that this core does not read at present,
    /// because large replies on other connections take all of that memory.
    pub(super) fn look_after_large_replies(&mut self, now: Now) {
        self.env.large_replies.handle_time(now.monotonic, &mut self.env.actions);
        for connection in self.env.large_replies.paused() {
            if self.private.is_mine(connection.0) {
                self.private.excuse(connection, now.monotonic);
            } else {
                self.upstream.excuse(connection, now);
            }
        }
    }
}
