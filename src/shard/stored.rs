//! Stored messages: replies that came before earlier ones of their client, and requests for which there is no
//! room yet.

use bytes::Bytes;

use crate::protocol::{BufferPool, Output};
use crate::shard::message::Message;
use crate::values::limits::COPY_BYTES_MAX;

/// A message that waits in memory until it can be sent: a reply behind earlier ones, or a request without
/// room.
#[derive(Debug)]
pub enum Stored {
    /// A message of at most 22 bytes, stored in place.
    Short { length: u8, bytes: [u8; Self::SHORT_BYTES_MAX] },
    /// A message in a buffer of the core's buffer pool, to which [`Stored::release`] gives it back.
    Pooled(Vec<u8>),
    /// A large message, shared by reference count.
    Shared(Bytes),
}

impl Stored {
    /// The longest message, in bytes, that is stored without memory of its own.
    const SHORT_BYTES_MAX: usize = 22;

    /// Stores a message: shared if it is shared already, else copied.
    pub fn new(message: Message<'_>, pool: &mut BufferPool) -> Self {
        match message {
            Message::Shared(bytes) => Self::Shared(bytes.clone()),
            Message::Small(bytes) if bytes.len() <= Self::SHORT_BYTES_MAX => {
                let mut place = [0; Self::SHORT_BYTES_MAX];
                place[..bytes.len()].copy_from_slice(bytes);
                Self::Short { length: bytes.len() as u8, bytes: place }
            }
            Message::Small(bytes) => {
                let mut buffer = pool.take();
                buffer.extend_from_slice(bytes);
                Self::Pooled(buffer)
            }
        }
    }

    /// Stores a copy of a request's bytes (`frame`). A request above 16 KiB is shared from then on, so that
    /// it is not copied again.
    pub fn of(frame: &[u8], pool: &mut BufferPool) -> Self {
        if frame.len() > COPY_BYTES_MAX {
            Self::Shared(Bytes::copy_from_slice(frame))
        } else {
            Self::new(Message::Small(frame), pool)
        }
    }

    /// Returns the length of the message in bytes.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Returns the bytes of the message.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Pooled(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }

    /// Returns the stored message: by reference count if it is stored that way, else as a slice.
    pub fn message(&self) -> Message<'_> {
        match self {
            Self::Shared(bytes) => Message::Shared(bytes),
            other => Message::Small(other.bytes()),
        }
    }

    /// Drops the message, and gives its buffer back to the pool.
    pub fn release(self, pool: &mut BufferPool) {
        if let Self::Pooled(buffer) = self {
            pool.give(buffer);
        }
    }

    /// Appends the message to an output, and gives its buffer back to the pool.
    pub fn send(self, output: &mut Output, pool: &mut BufferPool) {
        match &self {
            Self::Shared(bytes) => output.append_shared(pool, bytes),
            other => output.append(pool, other.bytes()),
        }
        self.release(pool);
    }
}
