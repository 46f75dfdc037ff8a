//! Receives the rest of a large reply directly into the buffer that has its beginning.

use super::Links;
use super::receive::Received;
use crate::protocol::Room;
use crate::shard::env::Env;
use crate::values::ConnectionId;

impl Links {
    /// Returns the number of bytes known to be missing of the reply that is being received on a connection; 0 if none
    /// is, or if it is dropped because it is too large. 0 also if the connection was opened anew since, so that
    /// `generation` is that of an earlier socket.
    pub fn missing(&mut self, (connection, generation): (ConnectionId, u32)) -> usize {
        self.current(connection, generation).map_or(0, |link| link.missing())
    }

    /// Lends out the buffer with the beginning of the reply that a connection is receiving and room for the
    /// rest, at most up to the largest permitted reply; None if nothing large is missing, or if the
    /// connection was opened anew since, so that `generation` is that of an earlier socket.
    pub fn lend_room(&mut self, env: &Env, (connection, generation): (ConnectionId, u32)) -> Option<Room> {
        let bytes_max = env.settings.reply_bytes_max;
        let link = self.current(connection, generation)?;
        let missing = link.missing_within(bytes_max);
        Room::in_buffer(&mut link.partial, missing)
    }

    /// Takes back the buffer that [`Links::lend_room`] lent, with `received` bytes more in it than before. Returns
    /// whether the reply is complete: [`Received::Whole`] without bytes, as all of them stay in the buffer, which the
    /// connection keeps. Drops the buffer if `generation` is that of an earlier socket of the connection.
    pub fn take_filled(
        &mut self,
        env: &mut Env,
        (connection, generation): (ConnectionId, u32),
        (buffer, received): (Vec<u8>, usize),
    ) -> Received<'static> {
        let Some(link) = self.current(connection, generation) else { return Received::Nothing };
        let before = buffer.len() - received;
        link.partial = buffer;
        if received == 0 {
            return Received::Nothing;
        }
        let Ok(scanned) = link.scanner.scan(&link.partial[before..]) else { return Received::Malformed };
        let Some(scanned) = scanned else {
            self.count_partial(env, connection);
            return Received::Nothing;
        };
        env.handle_reply_end((connection, generation));
        debug_assert_eq!(scanned.end, received, "no more is received than is missing");
        debug_assert_ne!(scanned.kind, b'>', "no room is lent for a push message, of which nothing is kept");
        Received::Whole(&[], scanned)
    }
}
