//! The last panes: how long they were, how much there was, and how much of it makes a key hot.

use super::HotSettings;

/// Panes that are remembered: two windows of two each.
pub(super) const PANES: usize = 4;
/// Windows of two panes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// The last two panes.
    Last,
    /// The two before.
    Before,
}

impl Window {
    /// Its part of what was kept by pane, the newest first.
    pub fn sum(self, panes: &[u64; PANES]) -> u64 {
        let [a, b, c, d] = *panes;
        match self {
            Self::Last => a.saturating_add(b),
            Self::Before => c.saturating_add(d),
        }
    }
}

/// The newest of what is kept by pane.
pub(super) fn keep(panes: &mut [u64; PANES], newest: u64) {
    panes.rotate_right(1);
    panes[0] = newest;
}

/// The panes of a core, the newest first.
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

    /// A pane has ended.
    pub fn end(&mut self, nanos: u64, load: u64) {
        keep(&mut self.nanos, nanos);
        keep(&mut self.loads, load);
    }

    /// How long the newest was.
    pub fn nanos(&self) -> u64 {
        self.nanos[0]
    }

    /// How long a window was, in seconds.
    pub fn seconds(&self, window: Window) -> f64 {
        window.sum(&self.nanos) as f64 / 1e9
    }

    /// So many in a window make a key hot. Rounded down: of requests that come evenly no window has less.
    pub fn hot_from(&self, window: Window) -> u64 {
        self.settings.hot_from(window.sum(&self.nanos), window.sum(&self.loads))
    }
}

impl HotSettings {
    /// So many of that load in that time make a key hot.
    pub(super) fn hot_from(&self, nanos: u64, load: u64) -> u64 {
        let by_rate = u128::from(self.least_per_second) * u128::from(nanos) / 1_000_000_000;
        let by_share = u128::from(self.least_share_per_mille) * u128::from(load) / 1_000;
        by_rate.max(by_share).clamp(1, u64::MAX.into()) as u64
    }
}
