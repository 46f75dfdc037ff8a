//! The stores in `/state.json`, the worst first.

use std::cmp::Reverse;
use std::time::Duration;

use serde::Serialize;

use super::{Grade, Number};
use crate::control::Totals;
use crate::control::bulkhead_series::{at, known, stage_of};
use crate::shard::{BULKHEADS, BreakerStage, BulkheadFigures};
use crate::values::limits::STATE_STORES_MAX;

/// A store, as `/state.json` shows it: the figures of all cores together.
#[derive(Clone, Debug, Serialize)]
pub(in crate::control) struct StoreShown<'a> {
    pub name: &'a str,
    pub grade: Grade,
    /// The store's state in words: "ok", "slow, level 2" (shedding level 1 to 3), "stalled", "queue full" or,
    /// by its breaker, "set aside" (ejected), "being tried" (ejected, with a trial request sent) or "coming
    /// back" (a growing part of the requests is sent).
    pub state: String,
    breaker: &'static str,
    level: u8,
    stalled: bool,
    queue_full: bool,
    in_flight: usize,
    window: usize,
    queue: usize,
    queue_age_ms: Number,
    heavy_in_flight: usize,
    heavy_queue: usize,
    base_ms: Number,
    median_ms: Number,
    latency_ratio: Number,
    ejections: u64,
}

/// Returns the stores as `/state.json` shows them, the worst first, at most `STATE_STORES_MAX`, and the
/// number of stores left out. `backends` are the stores' names by backend number.
pub(in crate::control) fn shown<'a>(backends: &'a [String], totals: &Totals) -> (Vec<StoreShown<'a>>, usize) {
    let mut stores: Vec<StoreShown<'a>> =
        known(backends).map(|(index, name)| StoreShown::of(name, index, totals)).collect();
    // Stores of one grade keep their usual order, so that they do not jump about.
    stores.sort_by_key(|store| Reverse(store.grade));
    let left_out = stores.len().saturating_sub(STATE_STORES_MAX);
    stores.truncate(STATE_STORES_MAX);
    (stores, left_out)
}

impl<'a> StoreShown<'a> {
    /// Returns the store's figures that the page of the last ten minutes keeps: requests in flight (without
    /// expensive ones), and the median latency in milliseconds (the highest of all cores).
    pub fn figures(&self) -> [f32; 2] {
        [self.in_flight as f32, self.median_ms.0 as f32]
    }

    fn of(name: &'a str, index: usize, totals: &Totals) -> Self {
        let [usual, heavy] = [0, 1].map(|track| at(totals, index * BULKHEADS + track));
        let both = usual.clone().chain(heavy.clone());
        let longest = |figure: fn(&BulkheadFigures) -> Duration| {
            let longest = both.clone().map(figure).max().unwrap_or_default();
            Number(longest.as_secs_f64() * 1_000.0)
        };
        let breaker = stage_of(totals, index);
        let level = usual.clone().map(|own| own.level).max().unwrap_or_default();
        let stalled = both.clone().any(|own| own.is_stalled);
        let queue_full = both.clone().any(|own| own.is_full);
        let (grade, state) = judged(breaker, level, stalled, queue_full);
        Self {
            name,
            grade,
            state,
            breaker: breaker.name(),
            level,
            stalled,
            queue_full,
            in_flight: usual.clone().map(|own| own.in_flight).sum(),
            window: usual.clone().map(|own| own.window).sum(),
            queue: usual.clone().map(|own| own.held.requests).sum(),
            queue_age_ms: longest(|own| own.age),
            heavy_in_flight: heavy.clone().map(|own| own.in_flight).sum(),
            heavy_queue: heavy.map(|own| own.held.requests).sum(),
            base_ms: longest(|own| own.base),
            median_ms: longest(|own| own.median),
            latency_ratio: Number(usual.clone().filter_map(|own| own.latency_ratio).fold(1.0, f64::min)),
            ejections: usual.map(|own| own.ejections).sum(),
        }
    }
}

fn judged(breaker: BreakerStage, level: u8, stalled: bool, queue_full: bool) -> (Grade, String) {
    match breaker {
        BreakerStage::Out => return (Grade::Trouble, "set aside".to_owned()),
        BreakerStage::Trying => return (Grade::Trouble, "being tried".to_owned()),
        BreakerStage::Returning | BreakerStage::Well => {}
    }
    if stalled {
        return (Grade::Trouble, "stalled".to_owned());
    }
    if queue_full {
        return (Grade::Trouble, "queue full".to_owned());
    }
    match (breaker, level) {
        (BreakerStage::Returning, _) => (Grade::Strained, "coming back".to_owned()),
        (_, 0) => (Grade::Well, "ok".to_owned()),
        (_, 1 | 2) => (Grade::Strained, format!("slow, level {level}")),
        (_, _) => (Grade::Trouble, format!("slow, level {level}")),
    }
}
