//! Settings of windows, queues and load shedding.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use super::{ConfigError, Flags, Size};

/// Range of `--queue-interval`, the time over which a queue is observed. Over a shorter one any burst looks
/// like an overload; before the end of a longer one, clients have given up.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(1);
/// Least value of `--queue-bytes`, the limit on the bytes of queued requests: memory for a few requests.
const QUEUE_BYTES_MIN: Size = Size::mebibytes(1);

/// Limits of the window of requests in flight, and of the queue, of each backend on each core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverloadLimits {
    /// Smallest size of a backend's window, in requests in flight.
    pub window_least: u16,
    /// Largest size of a backend's window, in requests in flight.
    pub window_most: u16,
    /// Maximum number of requests that wait in the queue of one backend on one core. When so many wait, further
    /// requests are refused, or push out less important ones, until a quarter of the queue is gone.
    pub queue_requests: usize,
    /// Maximum number of bytes of the requests in the queues of all backends together, on one core; each
    /// backend has an equal part, at least 1 MiB.
    pub queue_bytes: usize,
    /// Longest time that a request waits in a queue during an overload; after it the request is refused.
    pub queue_target: Duration,
    /// Interval over which a queue is observed: it counts as overloaded if it was not empty for one and a
    /// half intervals and hardly became shorter.
    pub queue_interval: Duration,
    /// Latency ratios (usual latency divided by present latency) below which each level of load shedding
    /// begins, highest first.
    pub shed_levels: [f64; 3],
}

impl OverloadLimits {
    /// Reads the limits of windows, queues and load shedding from the flags, and checks that the flags agree
    /// with each other.
    pub(super) fn from_flags(flags: &Flags) -> Result<Self, ConfigError> {
        let Flags { window_min, window_max, queue_target, queue_interval, queue_bytes, .. } = *flags;
        let problem = if window_min > window_max {
            format!("--window-min {window_min} is more than --window-max {window_max}")
        } else if !INTERVALS.contains(&queue_interval) {
            format!("--queue-interval {queue_interval:?}: 10ms to 1s is expected")
        } else if queue_target >= queue_interval {
            format!(
                "--queue-target {queue_target:?}: less than --queue-interval, which is {queue_interval:?}, is expected"
            )
        } else if queue_bytes < QUEUE_BYTES_MIN {
            format!("--queue-bytes {queue_bytes}: {QUEUE_BYTES_MIN} or more is expected")
        } else {
            return Ok(Self {
                window_least: window_min as u16,
                window_most: window_max as u16,
                queue_requests: flags.queue_limit as usize,
                queue_bytes: queue_bytes.bytes(),
                queue_target,
                queue_interval,
                shed_levels: flags.shed_levels.0,
            });
        };
        Err(ConfigError::new(problem))
    }
}

/// Value of `--shed-levels`: three latency ratios between 1 and 0, each below the previous one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShedLevels(pub [f64; 3]);

impl FromStr for ShedLevels {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let ratios: Option<Vec<f64>> = text.split(',').map(|part| part.trim().parse().ok()).collect();
        let levels: Option<[f64; 3]> = ratios.and_then(|ratios| ratios.try_into().ok());
        let fall = |[first, second, third]: &[f64; 3]| {
            1.0 > *first && first > second && second > third && *third > 0.0
        };
        let levels = levels.filter(fall);
        levels.map(Self).ok_or(
            "three ratios between 1 and 0 are expected, each below the one before, such as 0.7,0.5,0.3",
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn limits(flags: &str) -> Result<OverloadLimits, String> {
        let words = std::iter::once("weir").chain(flags.split_whitespace());
        let flags = Flags::try_parse_from(words).expect("each flag is right alone");
        OverloadLimits::from_flags(&flags).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_reach_the_limits() {
        let limits = limits(
            "--queue-limit 5 --queue-bytes 2MiB --queue-target 2ms --queue-interval 50ms --window-min 2 \
             --window-max 9 --shed-levels 0.9,0.25,0.1",
        );
        let wanted = OverloadLimits {
            window_least: 2,
            window_most: 9,
            queue_requests: 5,
            queue_bytes: 2 << 20,
            queue_target: Duration::from_millis(2),
            queue_interval: Duration::from_millis(50),
            shed_levels: [0.9, 0.25, 0.1],
        };
        assert_eq!(limits, Ok(wanted));
    }

    #[test]
    fn what_does_not_go_together_is_told() {
        let cases = [
            ("--window-min 9 --window-max 8", "--window-min 9 is more than --window-max 8"),
            ("--queue-interval 9ms", "--queue-interval 9ms: 10ms to 1s is expected"),
            ("--queue-interval 2s", "--queue-interval 2s: 10ms to 1s is expected"),
            (
                "--queue-target 100ms",
                "--queue-target 100ms: less than --queue-interval, which is 100ms, is expected",
            ),
            ("--queue-bytes 64KiB", "--queue-bytes 64KiB: 1MiB or more is expected"),
        ];
        for (flags, complaint) in cases {
            assert_eq!(limits(flags), Err(complaint.to_owned()), "{flags}");
        }
    }

    #[test]
    fn levels_fall_between_one_and_nothing() {
        assert_eq!("0.7, 0.5,0.3".parse(), Ok(ShedLevels([0.7, 0.5, 0.3])));
        for text in
            ["", "0.7", "0.7,0.5", "0.7,0.5,0.3,0.1", "0.5,0.7,0.3", "1,0.5,0.3", "0.7,0.5,0", "a,b,c"]
        {
            assert!(text.parse::<ShedLevels>().is_err(), "{text}");
        }
        for text in
            ["NaN,0.5,0.3", "0.7,NaN,0.3", "0.7,0.5,NaN", "inf,0.5,0.3", "0.7,0.7,0.3", "0.7,0.5,-0.1"]
        {
            assert!(text.parse::<ShedLevels>().is_err(), "{text}");
        }
    }
}
