//! The last panes (50 ms each): their lengths and loads, and the load that makes a key hot.

use super::HotSettings;

/// Number of panes (intervals of 50 ms in which requests are counted) that are kept: two for each value of
/// `Window`.
pub(super) const PANES: usize = 4;
/// One of two stretches of time over which the requests for a key are summed up, each of two panes (intervals
/// of 50 ms in which requests are counted).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// The latest stretch: the two newest panes (intervals of 50 ms).
    Last,
    /// The stretch before `Last`: the third and fourth newest panes (intervals of 50 ms).
    Before,
}

impl Window {
    /// Returns the sum of two of the four values in `panes`: those of this window's two panes. The values are
    /// stored by pane (interval of 50 ms), the newest first.
    pub fn sum(self, panes: &[u64; PANES]) -> u64 {
        let [a, b, c, d] = *panes;
        match self {
            Self::Last => a.saturating_add(b),
            Self::Before => c.saturating_add(d),
        }
    }
}

/// Puts the count of the newest pane (interval of 50 ms) in front and drops that of the oldest.
pub(super) fn keep(panes: &mut [u64; PANES], newest: u64) {
    panes.rotate_right(1);
    panes[0] = newest;
}

/// Lengths and loads of the last panes (intervals of 50 ms in which requests are counted) of a core, newest
/// first, from which follows how many requests make a key hot.
#[derive(Debug)]
pub(super) struct Panes {
    settings: HotSettings,
    nanos: [u64; PANES],
    loads: [u64; PANES],
}

impl Panes {
    pub fn new(settings: HotSettings) -> Self {
        Self { settings, nanos: [0; PANES], loads: [0; PANES] }
    }

    /// Adds a pane (interval of about 50 ms) that has ended, with its length (`nanos`) and its number of
    /// requests (`load`).
    pub fn end(&mut self, nanos: u64, load: u64) {
        keep(&mut self.nanos, nanos);
        keep(&mut self.loads, load);
    }

    /// Returns the length of the newest pane (interval of about 50 ms) in nanoseconds.
    pub fn nanos(&self) -> u64 {
        self.nanos[0]
    }

    /// Returns the length of a window (its two panes of about 50 ms together), in seconds.
    pub fn seconds(&self, window: Window) -> f64 {
        window.sum(&self.nanos) as f64 / 1e9
    }

    /// Returns the number of requests in a window (two panes of 50 ms) from which on a key is hot. Rounded
    /// down, so that a key whose requests come evenly reaches it in every window.
    pub fn hot_from(&self, window: Window) -> u64 {
        self.settings.hot_from(window.sum(&self.nanos), window.sum(&self.loads))
    }
}

impl HotSettings {
    /// Returns the number of requests, in a time span of `nanos` with `load` requests of the core, at which a
    /// key is hot: by the least rate or the least share of the load, whichever is more, and at least 1.
    pub(super) fn hot_from(&self, nanos: u64, load: u64) -> u64 {
        let by_rate = u128::from(self.least_per_second) * u128::from(nanos) / 1_000_000_000;
        let by_share = u128::from(self.least_share_per_mille) * u128::from(load) / 1_000;
        by_rate.max(by_share).clamp(1, u64::MAX.into()) as u64
    }
}
