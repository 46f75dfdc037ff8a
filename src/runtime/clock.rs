//! The only place where a clock is read.

#![expect(clippy::disallowed_methods, reason = "this is the one place")]

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::values::Timestamp;
use crate::values::time::Now;

/// Both clocks. Copies share the same start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Reads both.
    pub fn now(&self) -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            monotonic: Timestamp::from_nanos(self.start.elapsed().as_nanos() as u64),
            unix_ms: unix.as_millis() as u64,
        }
    }
}
