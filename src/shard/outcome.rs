//! Outcome: what became of a request, as far as its price depends on that.

/// Result of a request, from which its final cost is calculated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A backend carried the request out, or weir answered it by itself.
    Served {
        /// Bytes of the reply, including those that were not passed on to the client.
        bytes: u32,
        /// Elements of the reply; 0 if it is no collection.
        rows: u32,
        /// Time that the backend took, in microseconds.
        took_micros: u32,
        /// Time by which the reply took longer than such requests usually do, in microseconds.
        slowness_micros: u32,
    },
    /// The reply was taken from memory, or from a fetch that another request had caused.
    Cached {
        /// Bytes of the reply.
        bytes: u32,
    },
    /// The request was sent to a backend and its fate is unknown: it costs what it was estimated at.
    Lost,
    /// The request was refused after it had been admitted, and was sent to no backend: it costs nothing.
    Refused,
}

impl Outcome {
    /// Returns the outcome of a request that weir answered by itself: only the bytes of its reply cost
    /// anything.
    pub const fn answered(reply_bytes: usize) -> Self {
        Self::Served { bytes: in_32_bits(reply_bytes), rows: 0, took_micros: 0, slowness_micros: 0 }
    }

    /// Returns the outcome of a request that was answered with the reply to another request.
    pub const fn cached(reply_bytes: usize) -> Self {
        Self::Cached { bytes: in_32_bits(reply_bytes) }
    }
}

const fn in_32_bits(bytes: usize) -> u32 {
    if bytes > u32::MAX as usize { u32::MAX } else { bytes as u32 }
}
