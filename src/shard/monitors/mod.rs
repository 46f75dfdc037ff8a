//! Monitors: the lines that this core sends to clients that have sent `MONITOR`, on this core and on others.
//! A request is shown when it is carried out: once it is permitted and admitted, before it is sent or
//! answered.
//!
//! ```text
//!   request carried out -- who watches? (board) -- line --+--> monitors of this core
//!                                                         +--> batch --> monitors of another core
//! ```
//!
//! Nothing is written while no client watches. A core writes and delivers only so many bytes per second;
//! lines beyond that, and lines for a monitor that is behind, are counted, and the monitor is told their
//! number once it has room.

use super::counters::{Counter, Counters};
use super::monitor_board::{MonitorBoard, MonitorSet, Sender};
use crate::policy::byte_rate::ByteRate;
use crate::values::Timestamp;
use crate::values::limits::MONITORS_MAX;
use crate::values::time::{FineClock, Now};

/// Bytes of `MONITOR` lines (each shows one request) that a core may write per second (8 MiB), and at once (256
/// KiB). Lines beyond that are left out, and monitors are told their number.
const WRITTEN: ByteRate = ByteRate::new(8 << 20, 256 << 10);
/// Bytes that each `MONITOR` line counts for, in addition to its own length, when it is written: finding its readers
/// takes time however short the line is.
const BYTES_PER_LINE: usize = 64;
/// Bytes of `MONITOR` lines that a core may pass to its own monitors (clients that sent `MONITOR`) together per
/// second (64 MiB), and at once (1 MiB). Lines beyond that are left out, and monitors are told their number.
const DELIVERED: ByteRate = ByteRate::new(64 << 20, 1 << 20);

/// The limits on the `MONITOR` lines that one core writes and delivers, and the counts of those that it
/// leaves out.
#[derive(Debug)]
pub struct MonitorStage {
    written: ByteRate,
    delivered: ByteRate,
    clock: FineClock,
    /// The monitors (clients that have sent `MONITOR`) that miss the line that was left out last, and the
    /// number of lines in a row that exactly these monitors miss, which `left_out` does not count yet.
    missing: (MonitorSet, u32),
    /// Numbers of lines left out, besides those in `missing`, since the end of the last turn (pass of the
    /// shard's loop), by the index of the monitor that misses them.
    left_out: [u32; MONITORS_MAX as usize],
}

impl Default for MonitorStage {
    fn default() -> Self {
        Self {
            written: WRITTEN,
            delivered: DELIVERED,
            clock: FineClock::default(),
            missing: (MonitorSet::default(), 0),
            left_out: [0; MONITORS_MAX as usize],
        }
    }
}

impl MonitorStage {
    /// Returns the monitors (clients that sent `MONITOR`) for which the line that shows a request of
    /// `sender` is to be written now; empty if this core has written too many bytes lately. Counts the line
    /// as left out for monitors that do not get it.
    pub fn readers(&mut self, board: &MonitorBoard, sender: Sender, now: Timestamp) -> MonitorSet {
        let watchers = board.watchers(sender);
        self.leave_out(watchers.behind, 1);
        if watchers.ready.is_empty() || self.written.has_some(now) {
            return watchers.ready;
        }
        self.leave_out(watchers.ready, 1);
        MonitorSet::default()
    }

    /// Subtracts the bytes of a written line, and 64 more, from the bytes of `MONITOR` lines that this core
    /// may write now.
    pub fn handle_written(&mut self, bytes: usize) {
        self.written.spend(bytes + BYTES_PER_LINE);
    }

    /// Counts `MONITOR` lines as left out for these monitors, which are told the number later.
    pub fn leave_out(&mut self, monitors: MonitorSet, lines: u32) {
        if monitors.is_empty() {
            return;
        }
        if self.missing.0 != monitors {
            self.count_by_place();
            self.missing.0 = monitors;
        }
        self.missing.1 = self.missing.1.saturating_add(lines);
    }

    fn count_by_place(&mut self) {
        let (monitors, lines) = std::mem::take(&mut self.missing);
        for place in monitors.iter() {
            self.left_out[place] = self.left_out[place].saturating_add(lines);
        }
    }

    /// Counts `MONITOR` lines as left out for all monitors that may see requests of `sender`.
    pub fn leave_out_for(&mut self, board: &MonitorBoard, sender: Sender, lines: u32) {
        if lines > 0 {
            let watchers = board.watchers(sender);
            self.leave_out(watchers.ready, lines);
            self.leave_out(watchers.behind, lines);
        }
    }

    /// True if this core may pass another `MONITOR` line to its own monitors now, by the limit on bytes per
    /// second.
    pub fn may_deliver(&mut self, now: Timestamp) -> bool {
        self.delivered.has_some(now)
    }

    /// Subtracts the bytes of `MONITOR` lines that were passed to this core's monitors from those that it
    /// may pass to them now.
    pub fn handle_delivered(&mut self, bytes: usize) {
        self.delivered.spend(bytes);
    }

    /// Returns the time in microseconds since 1970, with which each `MONITOR` line begins.
    pub fn unix_micros(&mut self, now: Now) -> u64 {
        self.clock.unix_micros(now)
    }

    /// True if `MONITOR` lines were left out since the end of the last turn (pass of the shard's loop).
    pub fn has_left_out(&self) -> bool {
        !self.missing.0.is_empty()
    }

    /// Ends a turn (pass of the shard's loop): adds the numbers of lines left out to the board of monitors, which all
    /// cores share and from which the cores that have these monitors as clients take them.
    pub fn handle_turn_end(&mut self, board: &MonitorBoard, counters: &mut Counters) {
        if !self.has_left_out() {
            return;
        }
        self.count_by_place();
        for (place, lines) in self.left_out.iter_mut().enumerate().filter(|(_, lines)| **lines > 0) {
            let lines = u64::from(std::mem::take(lines));
            board.add_left_out(place, lines);
            counters.add(Counter::MonitorLinesLeftOut, lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::monitor_board::Sight;
    use crate::values::{ShardId, TenantId};

    #[test]
    fn each_monitor_is_told_as_many_lines_as_were_left_out_for_it() {
        let (board, mut counters) = (MonitorBoard::new(8), Counters::default());
        let places = [(); 8].map(|()| board.take(ShardId(0), Sight::All).expect("a place"));
        let mut stage = MonitorStage::default();
        let (mut random, mut expected) = (crate::values::Random::new(3), [0; 8]);
        for turn in 0..1_000 {
            let mut monitors = MonitorSet::default();
            places.iter().filter(|_| random.per_mille(500)).for_each(|place| monitors.add(*place));
            for _ in 0..random.below(3) {
                let lines = 1 + random.below(3);
                stage.leave_out(monitors, lines as u32);
                monitors.iter().for_each(|place| expected[place] += lines);
            }
            if turn % 3 == 0 {
                stage.handle_turn_end(&board, &mut counters);
                assert!(!stage.has_left_out());
            }
        }
        stage.handle_turn_end(&board, &mut counters);
        assert_eq!(places.map(|place| board.take_left_out(place)), expected);
        assert_eq!(counters.get(Counter::MonitorLinesLeftOut), expected.iter().sum::<u64>());
        let nobody = Sender { tenant: TenantId(0), version: 0 };
        stage.leave_out_for(&board, nobody, 0);
        assert!(!stage.has_left_out(), "no line is none");
    }
}
