//! Buffers for the missing rest of a client's large request, lent to the runtime so that bytes are received
//! in place.

use super::ClientStage;
use super::client::Ending;
use crate::protocol::Room;
use crate::values::ClientId;

impl ClientStage {
    /// Lends the buffer with the bytes of a client's incomplete request, and room for the missing rest of its current
    /// argument. None if no bytes are known to be missing, or if the client may not be read from.
    pub fn lend_room(&mut self, id: ClientId) -> Option<Room> {
        let client =
            self.clients.get(id).filter(|client| !client.stalled && client.ending == Ending::Open)?;
        client.decoder.lend()
    }

    /// Takes back the buffer that [`Self::lend_room`] lent. Returns how many bytes of the request's current argument
    /// are still missing; 0 if that is unknown, or if the client has disconnected.
    pub fn take_room_back(&mut self, id: ClientId, buffer: Vec<u8>) -> usize {
        let Some(client) = self.clients.get(id) else { return 0 };
        client.decoder.take_back(buffer);
        client.decoder.missing()
    }
}
