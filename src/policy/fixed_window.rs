//! Fixed-window rate limiter, to compare weir with: counts each client's requests per second, and nothing
//! else.
//!
//! A full window lets nothing more in, and the next one starts empty: twice the quota may pass at its edge,
//! and a request that reads one row counts as much as one that reads a hundred thousand.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::values::Timestamp;

/// Length of a window, in which requests of a client are counted.
const WINDOW: Duration = Duration::from_secs(1);
/// Number of low bits of a client's 64-bit word that hold its number of requests in a window (second); the
/// bits above hold the window's number.
const COUNT_BITS: u32 = 32;

/// The windows (seconds) in which clients' requests are counted, by the names of the clients, for all cores.
#[derive(Clone, Debug, Default)]
pub struct FixedWindows(Arc<Mutex<BTreeMap<String, FixedWindow>>>);

impl FixedWindows {
    /// Returns the windows (seconds) in which the requests of the clients with these names are counted, in the order of
    /// the names. All cores get the same window for a name, as long as one of them holds it.
    pub fn of<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<FixedWindow> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let windows = names.map(|name| known.entry(name.to_owned()).or_default().clone()).collect();
        known.retain(|_, window| Arc::strong_count(&window.0) > 1);
        windows
    }
}

/// Number of requests of one client in the present second (window). All cores count in the same word, as a single
/// server would.
#[derive(Clone, Debug, Default)]
pub struct FixedWindow(Arc<AtomicU64>);

impl FixedWindow {
    /// Counts a request of the client. The error, once `requests_max` of its requests have been counted in this window
    /// (second), is the time until the next window starts.
    pub fn count(&self, requests_max: u64, now: Timestamp) -> Result<(), Duration> {
        let window = window_at(now);
        let counted = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| {
            let count = count_in(window, state);
            (count < requests_max).then_some(window << COUNT_BITS | (count + 1))
        });
        counted.map(|_| ()).map_err(|_| until_next(window, now))
    }

    /// Returns how many more requests of the client may be counted in this window (second), if `requests_max` are the
    /// most, and the time until the next window starts. Counts nothing.
    pub fn left(&self, requests_max: u64, now: Timestamp) -> (u64, Duration) {
        let window = window_at(now);
        let count = count_in(window, self.0.load(Ordering::Relaxed));
        (requests_max.saturating_sub(count), until_next(window, now))
    }
}

/// Returns the number of the window (second) that a moment is in.
fn window_at(now: Timestamp) -> u64 {
    now.as_nanos() / WINDOW.as_nanos() as u64
}

/// Returns the number of requests in a window (second) that a client's 64-bit word has counted.
fn count_in(window: u64, state: u64) -> u64 {
    if state >> COUNT_BITS == window { state & u64::from(u32::MAX) } else { 0 }
}

/// Returns the time until the window (second) after this one starts.
fn until_next(window: u64, now: Timestamp) -> Duration {
    Timestamp::from_nanos((window + 1) * WINDOW.as_nanos() as u64).since(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_full_until_the_next_one() {
        let windows = FixedWindows::default().of(["a", "b"].into_iter());
        let at = Timestamp::from_millis;
        let passed = |client: usize, moment| windows[client].count(3, at(moment));
        let left = |moment| windows[0].left(3, at(moment));
        assert_eq!(left(989), (3, Duration::from_millis(11)));
        assert_eq!([passed(0, 990), passed(0, 991), passed(0, 992)], [Ok(()); 3]);
        assert_eq!(passed(0, 993), Err(Duration::from_millis(7)));
        assert_eq!([left(993), left(1_000)], [(0, Duration::from_millis(7)), (3, Duration::from_secs(1))]);
        assert_eq!(passed(1, 993), Ok(()));
        // The weakness of fixed windows: the next window allows the whole quota again, a few milliseconds
        // later.
        assert_eq!([passed(0, 1_000), passed(0, 1_001), passed(0, 1_002)], [Ok(()); 3]);
        assert!(passed(0, 1_999).is_err());
    }

    #[test]
    fn a_client_has_one_window_by_its_name_as_long_as_anybody_holds_it() {
        let windows = FixedWindows::default();
        let of = |names: &[&'static str]| windows.of(names.iter().copied());
        let left = |window: &FixedWindow| window.left(3, Timestamp::ZERO).0;
        let before = of(&["a", "b"]);
        assert_eq!(before[1].count(3, Timestamp::ZERO), Ok(()));
        let after = of(&["aa", "b", "c"]);
        assert_eq!(after.iter().map(left).collect::<Vec<_>>(), [3, 2, 3]);
        drop((before, after));
        assert_eq!(of(&["a", "b"]).iter().map(left).collect::<Vec<_>>(), [3, 2]);
        of(&["a"]);
        assert_eq!(of(&["b"]).iter().map(left).collect::<Vec<_>>(), [3]);
    }
}
