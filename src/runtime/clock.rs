//! The only place where weir reads a clock.

#![expect(clippy::disallowed_methods, reason = "this is the one place")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::Timespec;
use rustix::time::{ClockId, clock_gettime};

use crate::values::Timestamp;
use crate::values::time::Now;

/// Reads a monotonic clock and the wall clock together. Copies of one clock measure monotonic time from the
/// same start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Creates a clock whose monotonic time is zero now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Reads both clocks: monotonic nanoseconds since the start, and Unix time in milliseconds.
    pub fn now(&self) -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            monotonic: Timestamp::from_nanos(self.start.elapsed().as_nanos() as u64),
            unix_ms: unix.as_millis() as u64,
        }
    }
}

/// Returns a duration in the form that the kernel's system calls take (seconds and nanoseconds).
pub fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

/// Returns the CPU time that the calling thread has used since it started.
pub fn thread_cpu() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}
