//! What became of a request.

/// What became of a request, for whoever pays for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A backend did the work.
    Served {
        /// Bytes of its reply, whatever of it goes on to the client.
        bytes: u32,
        /// Elements of the reply, where it has elements.
        rows: u32,
        /// How long it took, in microseconds.
        took_micros: u32,
        /// How much longer it took than such requests usually do, in microseconds.
        slowness_micros: u32,
    },
    /// Weir knew the reply, or had asked for it on somebody else's behalf.
    Cached {
        /// Bytes of it.
        bytes: u32,
    },
    /// It was sent to a backend, and what became of it nobody knows: it costs what it was estimated at.
    Lost,
    /// It was refused after it had been admitted, and was sent to no backend: it costs nothing.
    Refused,
}

impl Outcome {
    /// Weir answered by itself: that costs what its bytes cost.
    pub const fn answered(reply_bytes: usize) -> Self {
        Self::Served { bytes: in_32_bits(reply_bytes), rows: 0, took_micros: 0, slowness_micros: 0 }
    }

    /// The reply to another request was also the one to this.
    pub const fn cached(reply_bytes: usize) -> Self {
        Self::Cached { bytes: in_32_bits(reply_bytes) }
    }
}

const fn in_32_bits(bytes: usize) -> u32 {
    if bytes > u32::MAX as usize { u32::MAX } else { bytes as u32 }
}
