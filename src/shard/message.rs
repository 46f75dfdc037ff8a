//! Message: the bytes of a request or of a reply on their way between connections and cores.

use bytes::Bytes;

use crate::values::limits::COPY_BYTES_MAX;

/// Bytes of a request or of a reply: copied on each hop if small, shared by reference count if larger than 16
/// KiB.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// A message that is copied whenever it is passed on.
    Small(&'a [u8]),
    /// A message that is passed on without being copied.
    Shared(&'a Bytes),
}

impl<'a> Message<'a> {
    /// Creates a message that is passed on without copying if `shared` (the same bytes, counted by reference)
    /// is given and larger than 16 KiB, else one that is copied.
    pub fn new(bytes: &'a [u8], shared: Option<&'a Bytes>) -> Self {
        match shared {
            Some(shared) if shared.len() > COPY_BYTES_MAX => Self::Shared(shared),
            _ => Self::Small(bytes),
        }
    }

    /// Returns the length of a shared message in bytes, and 0 for one that is copied.
    pub const fn shared_bytes(&self) -> usize {
        match self {
            Self::Small(_) => 0,
            Self::Shared(bytes) => bytes.len(),
        }
    }

    /// Returns the bytes of the message.
    pub fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}
