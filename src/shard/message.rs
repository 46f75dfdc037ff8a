//! The bytes of a request or of a reply, on their way.

use bytes::Bytes;

use crate::values::limits::COPY_BYTES_MAX;

/// A message: copied if small, shared if large.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// Copied on every hop.
    Small(&'a [u8]),
    /// Handed on without being copied.
    Shared(&'a Bytes),
}

impl<'a> Message<'a> {
    /// A message that is shared if there is something to share and it is large enough.
    pub fn new(bytes: &'a [u8], shared: Option<&'a Bytes>) -> Self {
        match shared {
            Some(shared) if shared.len() > COPY_BYTES_MAX => Self::Shared(shared),
            _ => Self::Small(bytes),
        }
    }

    /// How many bytes it has if they are shared, not copied.
    pub const fn shared_bytes(&self) -> usize {
        match self {
            Self::Small(_) => 0,
            Self::Shared(bytes) => bytes.len(),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}
