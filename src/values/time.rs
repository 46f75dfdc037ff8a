//! Time as an argument: the deciding code never reads a clock.

use std::time::Duration;

/// A moment, in nanoseconds on the monotonic clock since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The start of the process.
    pub const ZERO: Self = Self(0);
    /// A moment later than any event; also the value of a deadline that does not exist.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a moment this many nanoseconds after the start of the process.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Creates a moment this many milliseconds after the start of the process.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// Returns the nanoseconds since the start of the process.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the nanoseconds from `earlier` to this moment, without the detour through a `Duration`; zero
    /// if `earlier` is later.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the moment `duration` after this one.
    #[must_use]
    pub const fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_nanos() as u64))
    }

    /// Returns the moment `duration` before this one, or the start of the process if there was none.
    #[must_use]
    pub const fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration.as_nanos() as u64))
    }

    /// Returns the earliest of some moments; None if there is none. Written as a loop, since that takes a
    /// third of the instructions of an iterator that flattens.
    #[inline]
    pub fn earliest<const N: usize>(moments: [Option<Self>; N]) -> Option<Self> {
        let mut earliest = None;
        for moment in moments {
            earliest = match (earliest, moment) {
                (Some(one), Some(other)) => Some(Self::min(one, other)),
                (one, other) => one.or(other),
            };
        }
        earliest
    }
}

/// The time on the monotonic clock and the wall clock, read together once in each pass of a core's loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock, for deadlines and latencies.
    pub monotonic: Timestamp,
    /// Milliseconds since 1970, for key expiry and for people.
    pub unix_ms: u64,
}

/// A wall clock with microseconds, made of the two clocks of [`Now`]: the monotonic one shows how much time
/// passes within the milliseconds of the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct FineClock {
    /// Microseconds to add to the monotonic clock to get the wall clock.
    ahead: i64,
}

impl FineClock {
    /// Returns microseconds since 1970, always within the millisecond that the wall clock shows. They go back
    /// only if the wall clock does.
    pub fn unix_micros(&mut self, now: Now) -> u64 {
        let monotonic = (now.monotonic.as_nanos() / 1_000) as i64;
        let earliest = (now.unix_ms * 1_000) as i64;
        let micros = (monotonic + self.ahead).clamp(earliest, earliest + 999);
        self.ahead = micros - monotonic;
        micros as u64
    }
}

/// Returns a moment, given in milliseconds since 1970, as text in the form of RFC 3339.
pub fn rfc3339(unix_ms: u64) -> String {
    const SECONDS_PER_DAY: u64 = 86_400;
    let (seconds, millis) = (unix_ms / 1_000, unix_ms % 1_000);
    let (year, month, day) = date(seconds / SECONDS_PER_DAY);
    let second = seconds % SECONDS_PER_DAY;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Returns year, month and day from days since 1970. Years are counted from March, so that the leap day is
/// the last of its year, and in cycles of 400 years, which all have the same number of days.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_PER_CYCLE: u64 = 146_097;
    // Days from the first of March of the year 0 to the start of 1970.
    let days = days + 719_468;
    let (cycle, day_of_cycle) = (days / DAYS_PER_CYCLE, days % DAYS_PER_CYCLE);
    let year_of_cycle =
        (day_of_cycle - day_of_cycle / 1_460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    // From March on, months have 31 30 31 30 31 days, over and over.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (cycle * 400 + year_of_cycle + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_as_they_are_written() {
        // The output of `date -u -d @1709210096 +%FT%TZ`.
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_210_096_007, "2024-02-29T12:34:56.007Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(unix_ms), text);
        }
    }

    #[test]
    fn microseconds_pass_as_on_the_monotonic_clock_once_the_wall_clock_has_shown_its_own() {
        let mut clock = FineClock::default();
        // A wall clock that is 700.3 µs ahead of a whole millisecond, read every 90 µs.
        let at = |micros: u64| Now {
            monotonic: Timestamp::from_nanos(micros * 1_000),
            unix_ms: 1_700_000_000_000 + (micros + 700) / 1_000,
        };
        let mut before = 0;
        for micros in (0..20_000).step_by(90) {
            let now = at(micros);
            let fine = clock.unix_micros(now);
            assert_eq!(fine / 1_000, now.unix_ms);
            assert!(fine > before);
            if micros > 10_000 {
                assert_eq!(fine - before, 90);
            }
            before = fine;
        }
        let exact = 1_700_000_000_000_000 + 20_700;
        assert!(clock.unix_micros(at(20_000)).abs_diff(exact) < 90, "as near as it was looked at");
        let set_back = Now { unix_ms: 1_600_000_000_000, ..at(20_100) };
        assert_eq!(clock.unix_micros(set_back) / 1_000, 1_600_000_000_000, "the wall clock may be set");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let is_leap =
            |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..200_000 {
            assert_eq!(date(days), (year, month, day));
            let last = match month {
                2 => 28 + u64::from(is_leap(year)),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > last {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
    }
}
