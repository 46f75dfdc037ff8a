//! Where the rest of a large message is received: into its own memory, behind what has come of it, and not into a buffer that it would
//! be copied out of.

/// Of what has come of a message, so many times as much is given for the rest: who only announces something large is given
/// little, and whoever sends it has it moved seldom.
const GROWTH_MAX: usize = 16;

/// A buffer that is lent for that. It is taken back, whatever was received, before anything else that its connection says.
#[derive(Debug)]
pub struct Room {
    /// What has come of the message.
    pub buffer: Vec<u8>,
    /// So many bytes may be received behind it; there is memory for them.
    pub bytes: usize,
}

impl Room {
    /// Takes a buffer, with room behind what has come for as much of what is missing as is given at once; or leaves it where it is, if
    /// that is nothing.
    pub fn in_buffer(buffer: &mut Vec<u8>, missing: usize) -> Option<Self> {
        let bytes = given(buffer.len(), missing);
        if bytes == 0 {
            return None;
        }
        grow(buffer, bytes);
        Some(Self { buffer: std::mem::take(buffer), bytes })
    }
}

/// Makes room behind what is held for so many bytes that have come, and for what is given of those that will still be missing then.
pub fn expect(buffer: &mut Vec<u8>, bytes: usize, missing: usize) {
    grow(buffer, bytes + given(buffer.len() + bytes, missing));
}

/// How much is given at once, where so many bytes have come.
fn given(come: usize, missing: usize) -> usize {
    missing.min(come.saturating_mul(GROWTH_MAX))
}

/// Just as much as is wanted where that is most of it; otherwise as vectors grow, so that many small steps move no byte often.
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
