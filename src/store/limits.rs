//! What one engine may hold, and one request take.

use crate::values::limits::{ENGINE_EFFORT_MAX, ENGINE_REPLY_BYTES_MAX};

/// Bounds of one engine.
#[derive(Clone, Debug)]
pub struct EngineLimits {
    /// Approximate bytes of all keys and values at which writes that need memory are refused.
    pub bytes_max: u64,
    /// Bytes of one reply; of all replies of a transaction.
    pub reply_bytes_max: usize,
    /// What one request may take, a transaction as a whole: about one for each element looked at.
    pub effort_max: u64,
}

impl EngineLimits {
    /// The usual bounds of one request, and this much memory.
    pub fn with_memory(bytes_max: u64) -> Self {
        Self { bytes_max, reply_bytes_max: ENGINE_REPLY_BYTES_MAX, effort_max: ENGINE_EFFORT_MAX }
    }
}
