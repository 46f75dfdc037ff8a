//! Bytes on their way out of one connection: small ones gathered into one buffer, large ones shared.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::values::Spares;
use crate::values::limits::COPY_BYTES_MAX;

/// What is handed to the socket at once.
#[derive(Debug)]
pub enum Segment {
    /// Small messages, gathered.
    Gathered(Vec<u8>),
    /// One large message, or the rest of it.
    Shared(Bytes),
}

impl Segment {
    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Gathered(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// A buffer kept for reuse is not larger than this; all of them together not larger than that.
const BUFFER_BYTES_KEPT: usize = 1024 * 1024;
const POOL_BYTES_KEPT: usize = 32 * 1024 * 1024;
/// A gathered segment closes at this size, so that a long queue of output is sent in bounded steps.
const SEGMENT_BYTES_MAX: usize = 256 * 1024;

/// Buffers of one core, handed from connection to connection: an idle connection holds none.
#[derive(Debug)]
pub struct BufferPool {
    free: Spares<Vec<u8>>,
    kept_bytes: usize,
}

impl BufferPool {
    /// A pool that keeps at most this many buffers.
    pub fn new(kept_max: usize) -> Self {
        Self { free: Spares::new(kept_max), kept_bytes: 0 }
    }

    /// An empty buffer.
    pub fn take(&mut self) -> Vec<u8> {
        let buffer = self.free.pop().unwrap_or_default();
        self.kept_bytes -= buffer.capacity();
        buffer
    }

    /// Takes a buffer back.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        let room = self.free.has_room() && self.kept_bytes + capacity <= POOL_BYTES_KEPT;
        if room && capacity > 0 && capacity <= BUFFER_BYTES_KEPT {
            buffer.clear();
            self.kept_bytes += capacity;
            self.free.push(buffer);
        }
    }

    /// Lets go of what was not needed for a while. False once nothing is left to let go of.
    pub fn tidy(&mut self) -> bool {
        let Self { free, kept_bytes } = self;
        free.tidy(|buffer| *kept_bytes -= buffer.capacity())
    }

    /// Takes the buffer of a sent segment back.
    pub fn give_segment(&mut self, segment: Segment) {
        if let Segment::Gathered(buffer) = segment {
            self.give(buffer);
        }
    }
}

/// The output of one connection.
#[derive(Debug, Default)]
pub struct Output {
    closed: VecDeque<Segment>,
    open: Vec<u8>,
    /// Bytes in the closed segments.
    closed_bytes: usize,
}

impl Output {
    /// The buffer to append small messages to.
    pub fn buffer(&mut self, pool: &mut BufferPool) -> &mut Vec<u8> {
        if self.open.capacity() == 0 {
            self.open = pool.take();
        } else if self.open.len() >= SEGMENT_BYTES_MAX {
            self.close_open();
            self.open = pool.take();
        }
        &mut self.open
    }

    /// Appends a message, copied if small.
    pub fn append(&mut self, pool: &mut BufferPool, message: &[u8]) {
        self.buffer(pool).extend_from_slice(message);
    }

    /// Appends a message that is shared if it is worth it.
    pub fn append_shared(&mut self, pool: &mut BufferPool, message: &Bytes) {
        if message.len() <= COPY_BYTES_MAX {
            self.append(pool, message);
        } else {
            self.close_open();
            self.closed_bytes += message.len();
            self.closed.push_back(Segment::Shared(message.clone()));
        }
    }

    /// The next segment to send.
    pub fn take(&mut self) -> Option<Segment> {
        let segment = self.closed.pop_front();
        match &segment {
            Some(segment) => self.closed_bytes -= segment.bytes().len(),
            None if self.open.is_empty() => return None,
            None => return Some(Segment::Gathered(std::mem::take(&mut self.open))),
        }
        segment
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.closed_bytes + self.open.len()
    }

    /// Is there nothing to send?
    pub fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.open.is_empty()
    }

    /// Drops everything.
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
        let sent: Vec<Vec<u8>> =
            std::iter::from_fn(|| output.take()).map(|segment| segment.bytes().to_vec()).collect();
        assert_eq!(sent, [b"ab".to_vec(), large.to_vec(), b"c".to_vec()]);
        assert!(output.is_empty() && output.is_empty());
    }

    #[test]
    fn a_large_message_is_not_copied() {
        let mut output = Output::default();
        let large = Bytes::from(vec![b'L'; COPY_BYTES_MAX + 1]);
        output.append_shared(&mut BufferPool::new(1), &large);
        let segment = output.take().expect("something was appended");
        assert_eq!(segment.bytes().as_ptr(), large.as_ptr());
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
