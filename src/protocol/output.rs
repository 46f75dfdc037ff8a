//! Output of one connection: small messages are gathered into one buffer, large ones are shared.
//!
//! A socket has one send in flight, so later output waits for it. The next send therefore takes all output
//! that waits, up to a bound: several pieces at once where large messages lie between small ones.

use std::borrow::Cow;
use std::collections::VecDeque;

use bytes::Bytes;

use crate::values::Spares;
use crate::values::limits::COPY_BYTES_MAX;

/// Output that is handed to the socket in one send.
#[derive(Debug)]
pub enum Segment {
    /// Small messages, one after the other in a buffer that they were copied to.
    Gathered(Vec<u8>),
    /// One large message, or the rest of it, shared without a copy.
    Shared(Bytes),
    /// Several segments, one after the other, none of which is `Several` itself.
    Several(Vec<Segment>),
}

impl Segment {
    /// Returns the bytes to send, piece by piece, without copying.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let alone = std::slice::from_ref(self);
        let several = if let Self::Several(pieces) = self { pieces } else { alone };
        several.iter().map(|piece| match piece {
            Self::Gathered(bytes) => bytes.as_slice(),
            Self::Shared(bytes) => bytes,
            Self::Several(_) => unreachable!("a piece is one piece"),
        })
    }

    /// Returns the bytes to send as one slice, which copies those of several pieces.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Gathered(bytes) => Cow::Borrowed(bytes),
            Self::Shared(bytes) => Cow::Borrowed(bytes),
            Self::Several(_) => Cow::Owned(self.pieces().collect::<Vec<_>>().concat()),
        }
    }

    /// Returns the number of bytes to send, over all pieces.
    pub fn len(&self) -> usize {
        self.pieces().map(<[u8]>::len).sum()
    }

    /// True if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of memory that are freed with the segment. A large message that is also held
    /// elsewhere, such as the kept reply of a hot key, does not count.
    pub fn own_bytes(&self) -> usize {
        match self {
            Self::Gathered(bytes) => bytes.capacity(),
            Self::Shared(bytes) if bytes.is_unique() => bytes.len(),
            Self::Shared(_) => 0,
            Self::Several(pieces) => pieces.iter().map(Self::own_bytes).sum(),
        }
    }
}

/// Largest output buffer, in bytes, that a core's pool of buffers keeps for reuse; a larger one is freed.
const BUFFER_BYTES_KEPT: usize = 1024 * 1024;
/// Maximum number of bytes of all output buffers that a core's pool keeps for reuse; buffers beyond it are
/// freed.
const POOL_BYTES_KEPT: usize = 32 * 1024 * 1024;
/// Number of bytes at which an output buffer of small messages is closed, and at which a send takes no
/// further pieces, so that a long queue of output is sent in bounded steps.
const SEGMENT_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of pieces of memory that one send on a socket hands to the kernel.
const SEGMENT_PIECES_MAX: usize = 64;

/// Reusable buffers of one core, lent to a connection while it has output: an idle connection has none.
#[derive(Debug)]
pub struct BufferPool {
    free: Spares<Vec<u8>>,
    kept_bytes: usize,
}

impl BufferPool {
    /// Creates a pool of reusable output buffers that keeps at most `kept_max` of them.
    pub fn new(kept_max: usize) -> Self {
        Self { free: Spares::new(kept_max), kept_bytes: 0 }
    }

    /// Takes an empty buffer from the pool, or creates one.
    pub fn take(&mut self) -> Vec<u8> {
        let buffer = self.free.pop().unwrap_or_default();
        self.kept_bytes -= buffer.capacity();
        buffer
    }

    /// Takes an output buffer back for reuse, or frees it if it is larger than 1 MiB or the pool is full.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        let room = self.free.has_room() && self.kept_bytes + capacity <= POOL_BYTES_KEPT;
        if room && capacity > 0 && capacity <= BUFFER_BYTES_KEPT {
            buffer.clear();
            self.kept_bytes += capacity;
            self.free.push(buffer);
        }
    }

    /// Frees half of those buffers in the pool that were not needed since the last call. False if the pool is
    /// empty afterwards.
    pub fn tidy(&mut self) -> bool {
        let Self { free, kept_bytes } = self;
        free.tidy(|buffer| *kept_bytes -= buffer.capacity())
    }

    /// Takes back, for reuse, the buffers of a piece of output that was sent.
    pub fn give_segment(&mut self, segment: Segment) {
        match segment {
            Segment::Gathered(buffer) => self.give(buffer),
            Segment::Shared(_) => {}
            Segment::Several(pieces) => pieces.into_iter().for_each(|piece| self.give_segment(piece)),
        }
    }
}

/// Output of one connection that waits to be sent: small messages are gathered in buffers, large ones stay as
/// they are.
#[derive(Debug, Default)]
pub struct Output {
    closed: VecDeque<Segment>,
    open: Vec<u8>,
    /// Number of bytes in pieces of output that are closed: no more messages are appended to them.
    closed_bytes: usize,
}

impl Output {
    /// Returns the buffer that small messages are appended to; takes another one from the pool if there is
    /// none or it is full.
    pub fn buffer(&mut self, pool: &mut BufferPool) -> &mut Vec<u8> {
        if self.open.capacity() == 0 {
            self.open = pool.take();
        } else if self.open.len() >= SEGMENT_BYTES_MAX {
            self.close_open();
            self.open = pool.take();
        }
        &mut self.open
    }

    /// Appends a message to the output by copying it.
    pub fn append(&mut self, pool: &mut BufferPool, message: &[u8]) {
        self.buffer(pool).extend_from_slice(message);
    }

    /// Appends a message to the output: without copying it if it is larger than 16 KiB, else as a copy.
    pub fn append_shared(&mut self, pool: &mut BufferPool, message: &Bytes) {
        if message.len() <= COPY_BYTES_MAX {
            self.append(pool, message);
        } else {
            self.close_open();
            self.closed_bytes += message.len();
            self.closed.push_back(Segment::Shared(message.clone()));
        }
    }

    /// Takes the next piece of output to hand to the socket in one send; `None` if no output waits.
    pub fn take(&mut self) -> Option<Segment> {
        match (self.closed.len(), self.open.is_empty()) {
            (0, true) => None,
            (0, false) => Some(Segment::Gathered(std::mem::take(&mut self.open))),
            (1, true) => {
                self.closed_bytes = 0;
                self.closed.pop_front()
            }
            _ => Some(self.take_several()),
        }
    }

    /// Takes the oldest piece of output, and further pieces as far as they fit into one send (256 KiB, 64
    /// pieces).
    fn take_several(&mut self) -> Segment {
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        while bytes < SEGMENT_BYTES_MAX
            && pieces.len() < SEGMENT_PIECES_MAX - 1
            && let Some(next) = self.closed.pop_front()
        {
            bytes += next.len();
            pieces.push(next);
        }
        self.closed_bytes -= bytes;
        if self.closed.is_empty() && bytes < SEGMENT_BYTES_MAX && !self.open.is_empty() {
            pieces.push(Segment::Gathered(std::mem::take(&mut self.open)));
        }
        Segment::Several(pieces)
    }

    /// Returns the number of bytes of output that wait to be sent.
    pub fn len(&self) -> usize {
        self.closed_bytes + self.open.len()
    }

    /// True if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.open.is_empty()
    }

    /// Drops all output and gives its buffers back to the pool.
    pub fn clear(&mut self, pool: &mut BufferPool) {
        self.closed.drain(..).for_each(|segment| pool.give_segment(segment));
        self.closed_bytes = 0;
        pool.give(std::mem::take(&mut self.open));
    }

    fn close_open(&mut self) {
        if !self.open.is_empty() {
            self.closed_bytes += self.open.len();
            self.closed.push_back(Segment::Gathered(std::mem::take(&mut self.open)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn order_is_kept_between_small_and_large() {
        let mut pool = BufferPool::new(4);
        let mut output = Output::default();
        let large = Bytes::from(vec![b'L'; COPY_BYTES_MAX + 1]);
        output.append(&mut pool, b"a");
        output.append_shared(&mut pool, &Bytes::from_static(b"b"));
        output.append_shared(&mut pool, &large);
        output.append(&mut pool, b"c");
        assert_eq!(output.len(), 3 + large.len());
        let segment = output.take().expect("something was appended");
        assert_eq!(segment.pieces().collect::<Vec<_>>(), [b"ab".as_slice(), &large, b"c"], "in one send");
        assert_eq!(segment.len(), 3 + large.len());
        assert!(output.is_empty() && output.take().is_none());
    }

    #[test]
    fn a_large_message_is_not_copied() {
        let mut output = Output::default();
        let large = Bytes::from(vec![b'L'; COPY_BYTES_MAX + 1]);
        output.append_shared(&mut BufferPool::new(1), &large);
        let segment = output.take().expect("something was appended");
        assert_eq!(segment.pieces().next().expect("one").as_ptr(), large.as_ptr());
    }

    #[test]
    fn one_send_is_bounded_in_bytes_and_pieces() {
        let mut pool = BufferPool::new(4);
        let mut output = Output::default();
        let large = Bytes::from(vec![b'L'; SEGMENT_BYTES_MAX / 2]);
        (0..3).for_each(|_| output.append_shared(&mut pool, &large));
        assert_eq!(output.take().expect("three wait").len(), 2 * large.len());
        assert_eq!(output.len(), large.len());
        assert_eq!(output.take().expect("one waits").pieces().count(), 1);
        let least = Bytes::from(vec![b'L'; COPY_BYTES_MAX + 1]);
        let small = SEGMENT_BYTES_MAX / least.len() + 1;
        (0..2 * small).for_each(|_| output.append_shared(&mut pool, &least));
        let pieces = output.take().expect("many wait").pieces().count();
        assert!(pieces <= small && pieces <= SEGMENT_PIECES_MAX, "{pieces}");
    }

    #[test]
    fn buffers_of_several_pieces_come_back() {
        let mut pool = BufferPool::new(4);
        let mut output = Output::default();
        output.append(&mut pool, b"a");
        output.append_shared(&mut pool, &Bytes::from(vec![b'L'; COPY_BYTES_MAX + 1]));
        output.append(&mut pool, b"b");
        pool.give_segment(output.take().expect("something was appended"));
        assert!(pool.take().capacity() > 0 && pool.take().capacity() > 0);
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out_in_order(steps in proptest::collection::vec(0_u8..4, 0..200)) {
            let mut pool = BufferPool::new(8);
            let mut output = Output::default();
            let (mut before, mut after) = (Vec::new(), Vec::new());
            for (number, step) in steps.iter().enumerate() {
                let fill = number as u8;
                let message = match step {
                    0 => {
                        let Some(segment) = output.take() else { continue };
                        prop_assert!(!segment.is_empty());
                        prop_assert!(segment.pieces().count() <= SEGMENT_PIECES_MAX);
                        after.extend_from_slice(&segment.bytes());
                        pool.give_segment(segment);
                        prop_assert_eq!(after.len() + output.len(), before.len());
                        continue;
                    }
                    1 => vec![fill; 10],
                    2 => vec![fill; COPY_BYTES_MAX + 1],
                    _ => vec![fill; SEGMENT_BYTES_MAX],
                };
                before.extend_from_slice(&message);
                output.append_shared(&mut pool, &Bytes::from(message));
            }
            while let Some(segment) = output.take() {
                after.extend_from_slice(&segment.bytes());
            }
            prop_assert!(before == after && output.is_empty());
        }
    }

    #[test]
    fn buffers_are_reused() {
        let mut pool = BufferPool::new(1);
        let mut output = Output::default();
        output.append(&mut pool, b"first");
        let segment = output.take().expect("something was appended");
        let place = segment.bytes().as_ptr();
        pool.give_segment(segment);
        output.append(&mut pool, b"second");
        assert_eq!(output.take().expect("something was appended").bytes().as_ptr(), place);
    }
}
