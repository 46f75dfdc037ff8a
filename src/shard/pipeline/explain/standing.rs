//! Explanation of what the window, the queue, the breaker and the shedding before a backend would decide
//! about a request now (`QOS EXPLAIN`).

use std::time::Duration;

use super::Explained;
use crate::policy::breaker::{Stage, Standing as Health};
use crate::policy::latency_ratio::Level;
use crate::shard::board::Section;
use crate::shard::overload::{BulkheadFigures, RESERVED};
use crate::shard::settings::{Mode, OverloadSettings};
use crate::values::{Tier, Timestamp};

/// State of the bulkhead (window and queue) in front of a backend, on the core that would send the request that
/// `QOS EXPLAIN` explains.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    in_flight: usize,
    window: usize,
    waiting: usize,
    is_full: bool,
    is_stalled: bool,
    /// Response time of the backend while it has few requests in flight; zero while it is unknown.
    base: Duration,
}

/// The properties, of a request that `QOS EXPLAIN` explains and of its backend, on which the decisions about
/// the request depend.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub tier: Tier,
    pub deadline: Option<Duration>,
    /// Shedding level of the backend: which tiers (degrees of importance) of requests to it are refused.
    pub level: Level,
}

impl Standing {
    /// Makes the state of a bulkhead (window and queue in front of a backend) from this core's own figures
    /// of it.
    pub fn of(own: &BulkheadFigures) -> Self {
        Self {
            in_flight: own.in_flight,
            window: own.window,
            waiting: own.held.requests,
            is_full: own.is_full,
            is_stalled: own.is_stalled,
            base: own.base,
        }
    }

    /// Makes the state of a bulkhead (window and queue in front of a backend) from the board that all cores
    /// share, as another core published it last. `first` is the window, in requests, that counts where none
    /// has been published yet.
    pub fn told(section: Section<'_>, first: u16) -> Self {
        let (load, record) = (section.load(), section.record());
        Self {
            in_flight: load.in_flight as usize,
            window: if record.window > 0.0 { record.window as usize } else { usize::from(first) },
            waiting: load.waiting as usize,
            is_full: load.is_full,
            is_stalled: load.is_stalled,
            base: Duration::try_from_secs_f64(record.base).unwrap_or_default(),
        }
    }

    /// Adds to an explanation (`map`) what is decided about the request for its deadline, the shedding level
    /// (which requests are refused or cost more), the window (limit on requests in flight), the queue and a
    /// stalled store (one that sends no replies).
    pub fn explain(&self, map: &mut Explained, overload: &OverloadSettings, terms: &Terms) {
        map.text("deadline", self.deadline(overload.shed, terms.deadline));
        map.text("level", level(overload.shed, terms));
        map.text("window", self.window(overload.window, terms.tier));
        map.text("queue", self.queue(overload, terms.tier));
        let stalled = if self.is_stalled { "yes: refused at once (reason=stalled)" } else { "no" };
        map.text("stalled", stalled.to_owned());
    }

    fn deadline(&self, shed: Mode, deadline: Option<Duration>) -> String {
        let Some(deadline) = deadline else { return "none".to_owned() };
        let best = if self.base.is_zero() {
            "the usual latency is not known yet".to_owned()
        } else {
            format!("a reply takes {} at best", in_ms(self.base))
        };
        let verdict = if self.base > deadline { "hopeless" } else { "in time" };
        prefixed(shed, &format!("{verdict}: {}, {best}", in_ms(deadline)))
    }

    fn window(&self, mode: Mode, tier: Tier) -> String {
        let verdict = if self.has_room(tier) { "room" } else { "full" };
        prefixed(mode, &format!("{verdict}: {} of {} in flight", self.in_flight, self.places(tier)))
    }

    fn queue(&self, overload: &OverloadSettings, tier: Tier) -> String {
        let waiting = self.waiting;
        match (overload.window, overload.queue) {
            (Mode::On, Mode::Off) if self.has_room(tier) || self.is_stalled => "off".to_owned(),
            (Mode::On, Mode::Off) => "off: refused (reason=window)".to_owned(),
            (_, Mode::Off) => "off".to_owned(),
            (Mode::Off, _) => "nothing waits: the window is off".to_owned(),
            (Mode::Shadow, _) => "nothing waits: the window is in shadow".to_owned(),
            (Mode::On, mode) if self.is_stalled => prefixed(mode, "refused: the backend has stalled"),
            (Mode::On, mode) if self.has_room(tier) && (waiting == 0 || tier == Tier::Critical) => {
                prefixed(mode, "goes on at once")
            }
            (Mode::On, mode) if self.is_full => {
                let unless =
                    if tier == Tier::Sheddable { "" } else { ", unless a less important request makes way" };
                prefixed(mode, &format!("refused: full, {waiting} wait{unless} (reason=queue)"))
            }
            (Mode::On, mode) => prefixed(mode, &format!("would wait behind {waiting}")),
        }
    }

    fn has_room(&self, tier: Tier) -> bool {
        self.in_flight < self.places(tier)
    }

    /// Returns how many places of the window (limit on requests in flight) requests of a tier may take: a
    /// tenth of them is kept for critical requests.
    fn places(&self, tier: Tier) -> usize {
        let reserved = self.window / RESERVED as usize;
        if tier == Tier::Critical { self.window } else { self.window - reserved }
    }
}

fn level(shed: Mode, Terms { tier, level, .. }: &Terms) -> String {
    let what = match level.price_percent(*tier) {
        // `refuses` lets every hundredth request pass; the first is refused.
        _ if level.refuses(*tier, 1) => "refused, but for one in a hundred (reason=latency)".to_owned(),
        100 => "at the usual price".to_owned(),
        percent => format!("at {percent} % of the usual price"),
    };
    prefixed(shed, &format!("{} ({level:?}): {what}", *level as u8))
}

/// Returns a text about the state of a backend's circuit breaker, and how long it will refuse requests;
/// `mode` says whether the breaker is in force.
pub(super) fn breaker(mode: Mode, health: Health, now: Timestamp) -> String {
    let what = match health.stage {
        Stage::Well => "closed: the backend is well".to_owned(),
        Stage::Out | Stage::Trying => {
            let again = in_ms(Duration::from_millis(health.retry_after(now).as_millis() as u64));
            format!("open: refused at once (reason=ejected), tried again in {again}")
        }
        Stage::Returning => {
            let part = health.part(now).unwrap_or(1.0) * 100.0;
            format!("closing: {part:.0} % of requests pass, the others are refused (reason=ejected)")
        }
    };
    prefixed(mode, &what)
}

/// Returns the text of a layer's verdict (such as of quotas or queues) on a request: `off` alone if the layer
/// is off, the text after `shadow:` if the layer only counts its decisions, else the text itself.
pub(super) fn prefixed(mode: Mode, text: &str) -> String {
    match mode {
        Mode::Off => "off".to_owned(),
        Mode::Shadow => format!("shadow: {text}"),
        Mode::On => text.to_owned(),
    }
}

/// Formats a duration in milliseconds: `50 ms`, `0.230 ms`.
fn in_ms(duration: Duration) -> String {
    let micros = duration.as_micros();
    match micros % 1_000 {
        0 => format!("{} ms", micros / 1_000),
        rest => format!("{}.{rest:03} ms", micros / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Standing = Standing {
        in_flight: 3,
        window: 64,
        waiting: 0,
        is_full: false,
        is_stalled: false,
        base: Duration::from_micros(230),
    };

    fn modes(window: Mode, queue: Mode) -> OverloadSettings {
        OverloadSettings { window, queue, ..OverloadSettings::new(1, 1) }
    }

    #[test]
    fn a_window_keeps_a_tenth_for_what_is_critical() {
        let full = Standing { in_flight: 58, ..CALM };
        assert_eq!(CALM.window(Mode::On, Tier::Standard), "room: 3 of 58 in flight");
        assert_eq!(full.window(Mode::On, Tier::Standard), "full: 58 of 58 in flight");
        assert_eq!(full.window(Mode::Shadow, Tier::Critical), "shadow: room: 58 of 64 in flight");
        assert_eq!(full.window(Mode::Off, Tier::Critical), "off");
    }

    #[test]
    fn a_queue_says_what_it_would_do() {
        let both = modes(Mode::On, Mode::On);
        let full = Standing { in_flight: 64, ..CALM };
        let crowded = Standing { waiting: 7, is_full: true, ..full };
        let cases = [
            (CALM, Tier::Standard, "goes on at once"),
            (Standing { waiting: 7, ..CALM }, Tier::Standard, "would wait behind 7"),
            (Standing { waiting: 7, ..CALM }, Tier::Critical, "goes on at once"),
            (full, Tier::Critical, "would wait behind 0"),
            (crowded, Tier::Sheddable, "refused: full, 7 wait (reason=queue)"),
            (
                crowded,
                Tier::Standard,
                "refused: full, 7 wait, unless a less important request makes way (reason=queue)",
            ),
            (Standing { is_stalled: true, ..crowded }, Tier::Critical, "refused: the backend has stalled"),
        ];
        for (standing, tier, told) in cases {
            assert_eq!(standing.queue(&both, tier), told, "{standing:?} {tier}");
        }
        let cases = [
            (CALM, modes(Mode::On, Mode::Off), "off"),
            (full, modes(Mode::On, Mode::Off), "off: refused (reason=window)"),
            (full, modes(Mode::On, Mode::Shadow), "shadow: would wait behind 0"),
            (full, modes(Mode::Off, Mode::On), "nothing waits: the window is off"),
            (full, modes(Mode::Shadow, Mode::On), "nothing waits: the window is in shadow"),
            (full, modes(Mode::Off, Mode::Off), "off"),
        ];
        for (standing, overload, told) in cases {
            assert_eq!(standing.queue(&overload, Tier::Standard), told, "{overload:?}");
        }
    }

    #[test]
    fn a_breaker_says_until_when() {
        let now = Timestamp::from_millis(10_000);
        let out =
            Health { stage: Stage::Out, at: now.after(Duration::from_millis(250)), ..Health::default() };
        let told = "open: refused at once (reason=ejected), tried again in 250 ms";
        assert_eq!(breaker(Mode::On, out, now), told);
        let returning = Health { stage: Stage::Returning, at: now, ..out };
        let told = "shadow: closing: 10 % of requests pass, the others are refused (reason=ejected)";
        assert_eq!(breaker(Mode::Shadow, returning, now), told);
        assert_eq!(breaker(Mode::On, Health::default(), now), "closed: the backend is well");
        assert_eq!(breaker(Mode::Off, out, now), "off");
    }

    #[test]
    fn a_deadline_is_compared_with_what_a_reply_takes_at_best() {
        let [short, long] = [Duration::from_micros(200), Duration::from_millis(50)];
        assert_eq!(CALM.deadline(Mode::On, None), "none");
        assert_eq!(
            CALM.deadline(Mode::On, Some(short)),
            "hopeless: 0.200 ms, a reply takes 0.230 ms at best"
        );
        assert_eq!(
            CALM.deadline(Mode::Shadow, Some(long)),
            "shadow: in time: 50 ms, a reply takes 0.230 ms at best"
        );
        let unknown = Standing { base: Duration::ZERO, ..CALM };
        assert_eq!(
            unknown.deadline(Mode::On, Some(long)),
            "in time: 50 ms, the usual latency is not known yet"
        );
        assert_eq!(CALM.deadline(Mode::Off, Some(short)), "off");
    }

    #[test]
    fn a_level_is_about_what_matters_less() {
        let told = |tier, at| level(Mode::On, &Terms { tier, deadline: None, level: at });
        assert_eq!(told(Tier::Batch, Level::Steady), "0 (Steady): at the usual price");
        assert_eq!(told(Tier::Batch, Level::Overloaded), "2 (Overloaded): at 150 % of the usual price");
        assert_eq!(
            told(Tier::Sheddable, Level::Shedding),
            "3 (Shedding): refused, but for one in a hundred (reason=latency)"
        );
        assert_eq!(told(Tier::Critical, Level::Shedding), "3 (Shedding): at the usual price");
    }
}
