//! Baseline of a backend: the usual latency of each class of requests, so that slow requests are recognised
//! and billed. Each class has two moving averages (EWMA), of the last moments and of a long time.
//!
//! Slowness is billed only while the backend as a whole is healthy: when all requests take longer than they
//! used to, the clients that wait are victims and pay nothing for it.

use crate::values::limits::COMMAND_CLASSES;

/// Number of replies of a class of commands from a backend after which the class's usual latency at that
/// backend counts as known.
const SAMPLES_MIN: u32 = 100;
/// Weight of a new latency in the short-term average of a class of commands: about the last 16 replies count.
const SHORT: f64 = 1.0 / 16.0;
/// Weight of a new latency in the long-term average of a class of commands: about the last 1,024 replies count.
const LONG: f64 = 1.0 / LONG_SAMPLES as f64;
/// Number of the latest replies of a class of commands that its long-term average latency covers, about.
const LONG_SAMPLES: u32 = 1_024;
/// Multiple of the long-term average latency of a class of commands up to which a latency counts as usual. A
/// longer latency is too rare to be chance.
const USUAL: f64 = 3.0;
/// Latency up to which no reply counts as slow, in microseconds: the scheduler and the network may add so
/// much at any time.
const SLOW_MIN_MICROS: f64 = 2_000.0;
/// Ratio of the short-term to the long-term average latency of all classes of commands above which the backend
/// as a whole counts as slow.
const DEGRADED: f64 = 1.5;

#[derive(Clone, Copy, Debug, Default)]
struct Averages {
    samples: u32,
    short_micros: f64,
    long_micros: f64,
}

impl Averages {
    fn learn(&mut self, micros: f64) {
        self.samples = self.samples.saturating_add(1);
        let (mut short, mut long) = (SHORT, LONG);
        if self.samples < LONG_SAMPLES {
            // The first samples weigh as in a plain mean.
            let least = 1.0 / f64::from(self.samples);
            (short, long) = (SHORT.max(least), LONG.max(least));
        }
        self.short_micros += (micros - self.short_micros) * short;
        self.long_micros += (micros - self.long_micros) * long;
    }

    fn is_known(&self) -> bool {
        self.samples >= SAMPLES_MIN
    }
}

/// The usual latencies of one backend, by class of commands, as one core sees them: by these, slow requests
/// are recognised and billed.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    classes: [Averages; COMMAND_CLASSES],
}

impl Baseline {
    /// Records the latency of a reply of the backend, in microseconds (`took_micros`); `class` is the index of
    /// the request's class of commands. Returns by how many microseconds the latency exceeds three times the
    /// class's long-term average, or 2 ms if that is more; 0 if it does not, while the class has fewer than 100
    /// replies, or while the whole backend is slow.
    pub fn handle_reply(&mut self, class: usize, took_micros: u64) -> u64 {
        // A signed conversion is one instruction, an unsigned one is more.
        let micros = took_micros as i64 as f64;
        self.classes[class].learn(micros);
        self.excess_of(class, micros)
    }

    /// Returns the excess of a latency as [`Baseline::handle_reply`] does, without recording it. Used for
    /// replies that are errors: a backend may refuse at once, and if that entered the averages, its usual
    /// replies would look slow.
    pub fn excess(&self, class: usize, took_micros: u64) -> u64 {
        self.excess_of(class, took_micros as i64 as f64)
    }

    #[inline]
    fn excess_of(&self, class: usize, micros: f64) -> u64 {
        let averages = &self.classes[class];
        if micros <= SLOW_MIN_MICROS {
            return 0;
        }
        let usual = (averages.long_micros * USUAL).max(SLOW_MIN_MICROS);
        if micros <= usual || !averages.is_known() || self.is_degraded() {
            return 0;
        }
        (micros - usual) as u64
    }

    /// True if the backend as a whole is slower than it used to be: the last moments' latency is above 1.5
    /// times the long-term one. Each class of commands counts by its share of the total time, so a change of
    /// the mix of commands alone does not count.
    pub fn is_degraded(&self) -> bool {
        let known = || self.classes.iter().filter(|class| class.is_known());
        let weighted = |time: fn(&Averages) -> f64| -> f64 {
            known().map(|class| time(class) * f64::from(class.samples)).sum()
        };
        weighted(|class| class.short_micros) > DEGRADED * weighted(|class| class.long_micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINT: usize = 0;
    const SCRIPT: usize = 4;

    /// Creates the baseline of a backend that has answered a thousand requests of each class of commands in
    /// its usual time.
    fn settled() -> Baseline {
        let mut baseline = Baseline::default();
        for _ in 0..1_000 {
            baseline.handle_reply(POINT, 400);
            baseline.handle_reply(SCRIPT, 5_000);
        }
        baseline
    }

    #[test]
    fn one_slow_script_among_usual_ones_is_billed_for_what_is_unusual() {
        let mut baseline = settled();
        assert_eq!(baseline.handle_reply(SCRIPT, 14_000), 0);
        let excess = baseline.handle_reply(SCRIPT, 30_000) / 1_000;
        assert!((14..=15).contains(&excess), "{excess} of 30 ms");
    }

    #[test]
    fn errors_that_come_at_once_do_not_make_usual_replies_slow() {
        let mut baseline = settled();
        let excess = baseline.clone().handle_reply(SCRIPT, 30_000);
        assert!((0..10_000).all(|_| baseline.excess(SCRIPT, 20) == 0));
        assert_eq!((baseline.excess(SCRIPT, 30_000), baseline.handle_reply(SCRIPT, 5_000)), (excess + 75, 0));
    }

    #[test]
    fn what_the_scheduler_may_add_is_not_slow() {
        assert_eq!(settled().handle_reply(POINT, 1_900), 0);
    }

    #[test]
    fn nobody_pays_while_everything_is_slow() {
        let mut baseline = settled();
        let bills: Vec<_> = (0..100)
            .flat_map(|_| [(POINT, 20_000), (SCRIPT, 90_000)])
            .map(|(class, took)| baseline.handle_reply(class, took))
            .collect();
        assert!(baseline.is_degraded());
        assert!(bills[4..].iter().all(|bill| *bill == 0), "{bills:?}");
    }

    #[test]
    fn a_new_mix_on_a_healthy_backend_is_no_trouble() {
        let mut baseline = settled();
        for _ in 0..500 {
            baseline.handle_reply(SCRIPT, 5_000);
            assert!(!baseline.is_degraded());
        }
    }

    #[test]
    fn nothing_is_known_of_the_first_replies() {
        let mut baseline = Baseline::default();
        for _ in 0..99 {
            assert_eq!(baseline.handle_reply(POINT, 1_000_000), 0);
        }
    }
}
