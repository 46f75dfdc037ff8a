//! How strained backends are, as this core knows it: what all cores agree on, looked up now and then.

use std::time::Duration;

use super::board::Noticeboard;
use super::settings::{BULKHEADS, Mode, ShardSettings};
use crate::policy::latency_ratio::{Level, agreed};
use crate::values::{BackendId, Tier, Timestamp};

/// How often it is looked up.
const LOOKS_APART: Duration = Duration::from_millis(100);

/// The level of each backend.
#[derive(Debug)]
pub struct Strain {
    levels: Vec<Level>,
    highest: Level,
    look_at: Timestamp,
    /// Those of less important work that were asked about while some of it was refused.
    asked: u32,
}

impl Strain {
    /// None.
    pub fn new(backends: u16) -> Self {
        Self {
            levels: vec![Level::Steady; usize::from(backends)],
            highest: Level::Steady,
            look_at: Timestamp::ZERO,
            asked: 0,
        }
    }

    /// Is it time to look again?
    #[inline]
    pub fn is_due(&self, now: Timestamp) -> bool {
        now >= self.look_at
    }

    /// Looks what cores agree on.
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

    /// Is any backend strained?
    #[inline]
    pub fn is_any(&self) -> bool {
        self.highest != Level::Steady
    }

    /// That of a backend; the highest of all where a request goes to several.
    pub fn level(&self, backend: Option<BackendId>) -> Level {
        backend.map_or(self.highest, |backend| self.levels[usize::from(backend.0)])
    }

    /// What a request there costs, in percent of what it usually does.
    #[inline]
    pub fn percent(&self, backend: Option<BackendId>, tier: Tier) -> u32 {
        if self.is_any() { self.level(backend).price_percent(tier) } else { 100 }
    }

    /// Is a request refused? A few pass all the same.
    pub fn refuses(&mut self, backend: Option<BackendId>, tier: Tier) -> bool {
        let level = self.level(backend);
        // Only what could be refused is counted: else those that pass might always be others.
        if !level.refuses(tier, 1) {
            return false;
        }
        self.asked = self.asked.wrapping_add(1);
        level.refuses(tier, self.asked)
    }
}

/// What cores agree on, whether it is obeyed or not.
pub fn agreed_at(board: &Noticeboard, settings: &ShardSettings, backend: usize, now: Timestamp) -> Level {
    agreed(board.of(settings.id, backend * BULKHEADS).told(), now)
}
