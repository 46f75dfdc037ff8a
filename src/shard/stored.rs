//! Messages that wait: replies that came before their turn, requests for which there is no room yet.

use bytes::Bytes;

use crate::protocol::{BufferPool, Output};
use crate::shard::message::Message;
use crate::values::limits::COPY_BYTES_MAX;

/// A message that waits.
#[derive(Debug)]
pub enum Stored {
    /// Short enough to be kept in place.
    Short { length: u8, bytes: [u8; Self::SHORT_BYTES_MAX] },
    /// In a buffer of the pool.
    Pooled(Vec<u8>),
    /// Large, and shared.
    Shared(Bytes),
}

impl Stored {
    const SHORT_BYTES_MAX: usize = 22;

    /// Keeps a message.
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

    /// Keeps a request as it was sent; what is large can be shared from then on.
    pub fn of(frame: &[u8], pool: &mut BufferPool) -> Self {
        if frame.len() > COPY_BYTES_MAX {
            Self::Shared(Bytes::copy_from_slice(frame))
        } else {
            Self::new(Message::Small(frame), pool)
        }
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// The bytes themselves.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Pooled(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }

    /// The message as it was.
    pub fn message(&self) -> Message<'_> {
        match self {
            Self::Shared(bytes) => Message::Shared(bytes),
            other => Message::Small(other.bytes()),
        }
    }

    /// Gives its buffer back.
    pub fn release(self, pool: &mut BufferPool) {
        if let Self::Pooled(buffer) = self {
            pool.give(buffer);
        }
    }

    /// Sends it on.
    pub fn send(self, output: &mut Output, pool: &mut BufferPool) {
        match &self {
            Self::Shared(bytes) => output.append_shared(pool, bytes),
            other => output.append(pool, other.bytes()),
        }
        self.release(pool);
    }
}
