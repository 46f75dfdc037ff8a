//! Room for the rest of a large message: it is received into the message's own buffer, behind the bytes
//! already there, and not into a buffer that it would have to be copied out of.

/// Maximum number of room that is given at once, as a multiple of the bytes that have come: a client that
/// only announces something large gets little memory, and one that sends it has it moved seldom.
const GROWTH_MAX: usize = 16;

/// A message's buffer, lent out to receive into. It must be taken back, whatever was received, before any
/// other bytes of its connection.
#[derive(Debug)]
pub struct Room {
    /// Bytes of the message that have come.
    pub buffer: Vec<u8>,
    /// Number of bytes that may be received behind those in `buffer`, which has the capacity for them.
    pub bytes: usize,
}

impl Room {
    /// Takes the buffer, with room behind its bytes for as many of the missing ones as are given at once.
    /// `None`, and the buffer stays, if that is nothing.
    pub fn in_buffer(buffer: &mut Vec<u8>, missing: usize) -> Option<Self> {
        let bytes = given(buffer.len(), missing);
        if bytes == 0 {
            return None;
        }
        grow(buffer, bytes);
        Some(Self { buffer: std::mem::take(buffer), bytes })
    }
}

/// Reserves room for `bytes` that have arrived and for a part of the `missing` bytes that have not.
pub fn expect(buffer: &mut Vec<u8>, bytes: usize, missing: usize) {
    grow(buffer, bytes + given(buffer.len() + bytes, missing));
}

/// Returns the room that is given at once, where `come` bytes have come.
fn given(come: usize, missing: usize) -> usize {
    missing.min(come.saturating_mul(GROWTH_MAX))
}

/// Reserves just the bytes wanted where those are most of the buffer; otherwise grows as vectors do, so that
/// many small steps do not move the bytes each time.
fn grow(buffer: &mut Vec<u8>, bytes: usize) {
    if bytes >= buffer.len() {
        buffer.reserve_exact(bytes);
    } else {
        buffer.reserve(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_is_given_only_where_much_has_come() {
        let mut buffer = Vec::new();
        assert!(Room::in_buffer(&mut buffer, 1_000_000).is_none());
        buffer.resize(100, b'x');
        let room = Room::in_buffer(&mut buffer, 1_000_000).expect("some has come");
        assert_eq!((room.bytes, room.buffer.len()), (100 * GROWTH_MAX, 100));
        assert!(room.buffer.capacity() >= 100 + room.bytes && buffer.is_empty());
        let mut buffer = room.buffer;
        assert_eq!(Room::in_buffer(&mut buffer, 7).expect("some has come").bytes, 7);
    }

    #[test]
    fn many_small_steps_move_no_byte_often() {
        let (mut buffer, mut moved) = (Vec::new(), 0);
        for _ in 0..10_000 {
            let capacity = buffer.capacity();
            let length = buffer.len();
            expect(&mut buffer, 16_000, 400);
            moved += if buffer.capacity() == capacity { 0 } else { length };
            buffer.resize(length + 16_000, b'x');
        }
        assert!(moved < 3 * buffer.len(), "{moved} of {}", buffer.len());
    }
}
