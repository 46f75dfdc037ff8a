//! A byte string that keeps short contents in place: most keys, fields and members need no allocation, and a
//! list of them is read straight through memory.

use std::fmt;

/// Maximum number of bytes of a string that are stored in place, without an allocation: with tag and length,
/// these fill three words exactly.
const SHORT_BYTES_MAX: usize = 22;
/// The approximate overhead of a memory allocation in bytes.
const BLOCK_BYTES: usize = 16;

/// An immutable byte string, stored in place if it is short.
#[derive(Clone)]
pub(super) enum Text {
    Short { length: u8, bytes: [u8; SHORT_BYTES_MAX] },
    Long(Box<[u8]>),
}

const _: () = assert!(size_of::<Text>() == 24);

impl Text {
    pub(super) fn new(source: &[u8]) -> Self {
        if source.len() > SHORT_BYTES_MAX {
            return Self::Long(source.into());
        }
        let mut bytes = [0; SHORT_BYTES_MAX];
        bytes[..source.len()].copy_from_slice(source);
        Self::Short { length: source.len() as u8, bytes }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }

    /// Returns the approximate bytes that the string takes, the size of this type included.
    pub(super) fn cost(&self) -> usize {
        match self {
            Self::Short { .. } => size_of::<Self>(),
            Self::Long(bytes) => size_of::<Self>() + bytes.len() + BLOCK_BYTES,
        }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Text {}

impl fmt::Debug for Text {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_survive_at_the_edge_of_short() {
        for length in [0, 1, SHORT_BYTES_MAX, SHORT_BYTES_MAX + 1, 1000] {
            let source = vec![7; length];
            assert_eq!(Text::new(&source).as_bytes(), source);
        }
    }
}
