//! Limits on an engine's memory, and on the cost of a request.

use crate::values::limits::{ENGINE_EFFORT_MAX, ENGINE_REPLY_BYTES_MAX};

/// The limits of an engine: memory, reply size and effort (steps of work).
#[derive(Clone, Debug)]
pub struct EngineLimits {
    /// The approximate bytes of all keys and values at which writes that need memory are refused.
    pub bytes_max: u64,
    /// Maximum number of bytes of a reply, or of all replies of a transaction together. A command whose reply
    /// would be larger gets an error.
    pub reply_bytes_max: usize,
    /// Maximum number of units of effort (steps of work) of a request, or of a whole transaction; a unit is
    /// about one element read. A command that needs more is refused.
    pub effort_max: u64,
}

impl EngineLimits {
    /// Returns the default limits, but with `bytes_max` bytes of memory for keys and values.
    pub fn with_memory(bytes_max: u64) -> Self {
        Self { bytes_max, reply_bytes_max: ENGINE_REPLY_BYTES_MAX, effort_max: ENGINE_EFFORT_MAX }
    }
}
