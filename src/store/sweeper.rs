//! Timing of the search for expired keys and hash fields: regularly while any has an expiry, and again at
//! once while many expired ones are found.

use std::time::Duration;

use super::Engine;
use crate::values::Timestamp;
use crate::values::time::Now;

/// The interval between sweeps (searches for expired keys) while any key or hash field has an expiry and few
/// are found to have expired.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of keys and expired hash fields that one sweep (search for them) visits; the next one goes
/// on behind them.
const SWEEP_KEYS: usize = 400;

/// The timer by which expired keys are removed from an engine, some hundreds at a time.
#[derive(Debug, Default)]
pub struct Sweeper {
    sweep_at: Option<Timestamp>,
}

impl Sweeper {
    /// Removes expired keys and hash fields from the engine (a sweep) at the end of a turn (pass of the
    /// service's loop), if that is due. The next sweep is due at once if more than a quarter of the visited
    /// ones had expired, else in 100 ms. Sweeps go on only while a key or hash field has an expiry.
    pub fn handle_turn_end(&mut self, engine: &mut Engine, now: Now) {
        if self.sweep_at.is_some_and(|at| at <= now.monotonic) {
            self.sweep_at = None;
            let swept = engine.expire_some(now, SWEEP_KEYS);
            if swept.removed * 4 > swept.visited {
                self.sweep_at = Some(now.monotonic);
            }
        }
        if self.sweep_at.is_none() && engine.has_expiries() {
            self.sweep_at = Some(now.monotonic.after(SWEEP_INTERVAL));
        }
    }

    /// Returns the time at which the next sweep (search for expired keys) is due; `None` if none is.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.sweep_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::bench::Bench;

    fn wait(bench: &mut Bench) {
        bench.wait_ms(100);
        bench.now.monotonic = bench.now.monotonic.after(SWEEP_INTERVAL);
    }

    #[test]
    fn keys_and_fields_that_nobody_asks_for_are_removed_in_time() {
        for commands in ["SET k v PX 500", "HSETEX h PX 500 FIELDS 1 f v"] {
            let (mut bench, mut sweeper) = (Bench::new(), Sweeper::default());
            sweeper.handle_turn_end(&mut bench.engine, bench.now);
            assert_eq!(sweeper.deadline(), None, "nothing expires");
            bench.send(commands);
            sweeper.handle_turn_end(&mut bench.engine, bench.now);
            for _ in 0..10 {
                let due = sweeper.deadline().expect("a sweep is due while anything expires");
                assert!(due <= bench.now.monotonic.after(SWEEP_INTERVAL), "{commands}");
                wait(&mut bench);
                sweeper.handle_turn_end(&mut bench.engine, bench.now);
                if bench.engine.statistics().keys == 0 {
                    break;
                }
            }
            assert_eq!(bench.engine.statistics().keys, 0, "{commands}");
            wait(&mut bench);
            sweeper.handle_turn_end(&mut bench.engine, bench.now);
            assert_eq!(sweeper.deadline(), None, "{commands}");
        }
    }
}
