//! Capacity for the rest of a large message: it is received directly into the message's own buffer, after the
//! bytes already there, so that it need not be copied.

use crate::values::limits;

/// Maximum capacity that is reserved at once for the rest of a message, as a multiple of the bytes that have
/// been received: a client that only announces a large message gets little memory, and the bytes of one that
/// sends it are seldom moved.
const GROWTH_MAX: usize = 16;

/// Number of free items in a buffer below which it is enlarged, if many more items are expected, because it
/// would soon have to be moved anyway.
const ITEMS_SPARE: usize = limits::RECEIVE_BUFFER_BYTES;
/// Divisor of the number of missing items: a buffer that holds less than an eighth of them is enlarged for
/// all of them at once, and by an eighth more, because their number is an estimate.
const EARLY_PART: usize = 8;

/// A message's buffer, lent to the runtime so that bytes are received directly into it. It must be taken
/// back, whatever was received, before any other bytes of its connection are handled.
#[derive(Debug)]
pub struct Room {
    /// The bytes of the message that have been received.
    pub buffer: Vec<u8>,
    /// Number of bytes that may be received after those in `buffer`, which has the capacity for them.
    pub bytes: usize,
}

impl Room {
    /// Takes a message's buffer, with capacity after its bytes for as many of the `missing` bytes as are
    /// granted at once: at most 16 times those received. `None`, and the buffer stays, if that number is 0.
    pub fn in_buffer(buffer: &mut Vec<u8>, missing: usize) -> Option<Self> {
        let bytes = given(buffer.len(), missing);
        if bytes == 0 {
            return None;
        }
        grow(buffer, bytes);
        Some(Self { buffer: std::mem::take(buffer), bytes })
    }
}

/// Reserves capacity for `bytes` bytes that have arrived and for as many of the `missing` bytes as are
/// granted at once: at most 16 times those received.
pub fn expect(buffer: &mut Vec<u8>, bytes: usize, missing: usize) {
    grow(buffer, bytes + given(buffer.len() + bytes, missing));
}

/// Reserves capacity in a list for `missing` more items (an estimate), at most 16 times those in it, if they
/// are more than a receive buffer has bytes and the list's spare capacity is small. A long list would
/// otherwise be moved each time that it has doubled, the last time with half of a message of megabytes at
/// once.
pub fn expect_many<T>(items: &mut Vec<T>, missing: usize) {
    let (come, spare) = (items.len(), items.capacity() - items.len());
    if missing <= spare.max(ITEMS_SPARE) {
        return;
    }
    let is_early = come < missing / EARLY_PART;
    let given = given(come, missing);
    if spare < ITEMS_SPARE || is_early && given == missing {
        items.reserve_exact(given + given / EARLY_PART);
    }
}

/// Returns an estimate of the size (in bytes or words) of the `left` parts of a message that are still to
/// come, if they are as long on average as the first `parts`, which took `length`.
pub fn estimate(length: usize, parts: usize, left: usize) -> usize {
    let estimate = length as u128 * left as u128 / parts.max(1) as u128;
    usize::try_from(estimate).unwrap_or(usize::MAX)
}

/// Returns for how many of the `missing` bytes capacity is granted at once, after `come` bytes have been
/// received: at most 16 times as many, so that a client that only announces a large message gets little
/// memory.
fn given(come: usize, missing: usize) -> usize {
    missing.min(come.saturating_mul(GROWTH_MAX))
}

/// Reserves capacity for `bytes` more bytes: exactly that if it is most of the buffer; otherwise the buffer
/// grows as vectors do, so that many small steps do not move the bytes each time.
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

    #[test]
    fn a_message_of_many_parts_is_moved_only_while_it_is_short() {
        let mut random = crate::values::random::Random::new(3);
        for parts in [100, 10_000, 1_000_000] {
            let (mut buffer, mut moved_most, mut come) = (Vec::new(), 0, 0);
            while come < parts {
                let step = random.below(3_000).min(parts - come) + 1;
                let bytes = step * (10 + random.below(4));
                let (capacity, length) = (buffer.capacity(), buffer.len());
                buffer.resize(length + bytes as usize, b'x');
                come += step;
                let left = parts.saturating_sub(come) as usize;
                let expected = estimate(buffer.len(), come as usize, left);
                expect_many(&mut buffer, expected);
                moved_most = moved_most.max(if buffer.capacity() == capacity { 0 } else { length });
            }
            assert!(moved_most < 100_000 + buffer.len() / 4, "{moved_most} of {}", buffer.len());
            assert!(
                buffer.capacity() < 3 * buffer.len() + 400_000,
                "{} for {}",
                buffer.capacity(),
                buffer.len()
            );
        }
        let mut buffer = vec![b'x'; 100];
        expect_many(&mut buffer, estimate(100, 10, usize::MAX));
        assert!(buffer.capacity() <= 100 + 2 * 100 * GROWTH_MAX, "one that only announces much gets little");
        assert_eq!(estimate(7, 0, 3), 21);
    }
}
