//! Shedding level of each backend, as this core knows it: which tiers of requests to the backend are refused
//! or priced higher. The core reads the levels from the board (`board.rs`) ten times per second at most.

use std::time::Duration;

use super::board::Noticeboard;
use super::settings::{BULKHEADS, Mode, ShardSettings};
use crate::policy::latency_ratio::{Level, agreed};
use crate::values::{BackendId, Tier, Timestamp};

/// The price of a request whose backend is not strained, in percent of its usual price.
pub const USUAL_PERCENT: u32 = 100;
/// Interval at which the backends' shedding levels (which requests are refused or cost more) are taken from
/// the board of all cores (`board.rs`).
const LOOKS_APART: Duration = Duration::from_millis(100);

/// Shedding level (which requests are refused or cost more) of each backend, as the cores agree on it from
/// the backend's latency, and the highest level of all backends.
#[derive(Debug)]
pub struct BackendLevels {
    levels: Vec<Level>,
    highest: Level,
    look_at: Timestamp,
    /// Number of requests so far whose tier (importance) their backend's shedding level refuses. Every
    /// hundredth of them is sent all the same.
    asked: u32,
}

impl BackendLevels {
    /// Creates the shedding levels (which requests are refused or cost more) of this many backends, all at the
    /// lowest one (steady).
    pub fn new(backends: u16) -> Self {
        Self {
            levels: vec![Level::Steady; usize::from(backends)],
            highest: Level::Steady,
            look_at: Timestamp::ZERO,
            asked: 0,
        }
    }

    /// True if the backends' shedding levels (which requests are refused or cost more) are to be read from the
    /// board of all cores again, at most every 100 ms.
    #[inline]
    pub fn is_due(&self, now: Timestamp) -> bool {
        now >= self.look_at
    }

    /// Reads from the board of all cores the shedding levels (which requests are refused or cost more) that the cores
    /// agree on. Reads nothing while shedding is off or in shadow mode, and while all levels are steady (the lowest)
    /// and no core has proposed a higher one for 3 s.
    pub fn look(&mut self, settings: &ShardSettings, now: Timestamp) {
        self.look_at = now.after(LOOKS_APART);
        let overload = &settings.overload;
        if overload.shed != Mode::On || self.highest == Level::Steady && !overload.board.is_alarmed(now) {
            return;
        }
        for (backend, level) in self.levels.iter_mut().enumerate() {
            *level = agreed_at(&overload.board, settings, backend, now);
        }
        self.highest = self.levels.iter().copied().max().unwrap_or_default();
    }

    /// True if any backend is above the lowest shedding level (steady), so that levels have to be looked at
    /// for each request.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.highest != Level::Steady
    }

    /// Returns a backend with the highest shedding level of all, which a refusal of a request to several backends
    /// names.
    pub fn worst(&self) -> BackendId {
        let worst = self.levels.iter().position(|level| *level == self.highest);
        BackendId(worst.unwrap_or_default() as u16)
    }

    /// Returns the shedding level (which requests are refused or cost more) of a backend; for None, a request
    /// that goes to several backends, the highest level of all.
    pub fn level(&self, backend: Option<BackendId>) -> Level {
        backend.map_or(self.highest, |backend| self.levels[usize::from(backend.0)])
    }

    /// Returns the price of a request of this tier (importance) to a backend, in percent of its usual price:
    /// 100, or more while the backend sheds load. None stands for a request to several backends, to which the
    /// highest shedding level of all applies.
    #[inline]
    pub fn percent(&self, backend: Option<BackendId>, tier: Tier) -> u32 {
        if self.is_any() { self.level(backend).price_percent(tier) } else { USUAL_PERCENT }
    }

    /// True if a request of this tier (importance) is refused because of its backend's shedding level; for
    /// None, a request to several backends, because of the highest level of all. Counts each request of a
    /// tier that is refused: every hundredth passes, so that the core notices when a backend is fast again.
    pub fn refuses(&mut self, backend: Option<BackendId>, tier: Tier) -> bool {
        let level = self.level(backend);
        // Only requests that could be refused are counted: if others were counted too, the few that pass
        // might always be those.
        if !level.refuses(tier, 1) {
            return false;
        }
        self.asked = self.asked.wrapping_add(1);
        level.refuses(tier, self.asked)
    }
}

/// Returns the shedding level (which requests are refused or cost more) that the cores agree on for the
/// backend with number `backend`, whether shedding is on or not.
pub fn agreed_at(board: &Noticeboard, settings: &ShardSettings, backend: usize, now: Timestamp) -> Level {
    agreed(board.of(settings.id, backend * BULKHEADS).told(), now)
}
