//! Room for what is missing of a client's request.

use super::Front;
use super::client::Ending;
use crate::protocol::Room;
use crate::values::ClientId;

impl Front {
    /// Lends what a client's decoder holds, with room behind it, if it may go on and something is missing.
    pub fn lend_room(&mut self, id: ClientId) -> Option<Room> {
        let client =
            self.clients.get(id).filter(|client| !client.stalled && client.ending == Ending::Open)?;
        client.decoder.lend()
    }

    /// Takes the buffer back that was lent. How many bytes are missing now.
    pub fn take_room_back(&mut self, id: ClientId, buffer: Vec<u8>) -> usize {
        let Some(client) = self.clients.get(id) else { return 0 };
        client.decoder.take_back(buffer);
        client.decoder.missing()
    }
}
