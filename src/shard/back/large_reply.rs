//! Receives the rest of a large reply directly into the buffer that has its beginning.

use super::{Back, Replies};
use crate::protocol::Room;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::values::ConnectionId;
use crate::values::time::Now;

impl Back {
    /// The number of bytes known to be missing of the reply that is being received.
    pub fn missing(&mut self, (connection, generation): (ConnectionId, u32)) -> usize {
        self.current_link(connection, generation).map_or(0, |link| link.missing())
    }

    /// Lends out the buffer with the beginning of a reply and room for the rest, at most up to the largest
    /// permitted reply.
    pub fn lend_room(&mut self, env: &Env, (connection, generation): (ConnectionId, u32)) -> Option<Room> {
        let bytes_max = env.settings.reply_bytes_max;
        let link = self.current_link(connection, generation)?;
        let missing = link.missing().min(bytes_max.saturating_sub(link.partial.len()));
        Room::in_buffer(&mut link.partial, missing)
    }

    /// Takes a lent buffer back, with `received` bytes more in it. The reply is handled if it is whole now.
    pub fn handle_filled(
        &mut self,
        env: &mut Env,
        (connection, generation): (ConnectionId, u32),
        (buffer, received): (Vec<u8>, usize),
        replies: &mut impl Replies,
        now: Now,
    ) {
        env.counters.add(Counter::BackendBytesReceived, received as u64);
        let Some(link) = self.current_link(connection, generation) else { return };
        let before = buffer.len() - received;
        link.partial = buffer;
        if received == 0 {
            return;
        }
        link.heard_at = now.monotonic;
        let bulkhead = link.bulkhead;
        self.begin_turn(now);
        self.bulkheads[bulkhead].handle_progress(self.late, now.monotonic);
        let link = &mut self.links[connection.0 as usize];
        let Ok(scanned) = link.scanner.scan(&link.partial[before..]) else {
            return self.drop_link(env, connection, "malformed-reply", replies, now);
        };
        let Some(scanned) = scanned else { return };
        debug_assert_eq!(scanned.end, received, "no more is received than is missing");
        self.take_whole(env, connection, &[], &scanned, replies, now);
    }
}
