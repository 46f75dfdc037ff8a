//! Leeway: how much of a store's time a tenant's requests may take before they are billed for it. A store
//! stands still now and then for reasons of its own (a fork, a page fault, a lost packet), and requests that
//! wait meanwhile look as if they had kept it busy. Such pauses are rare, so a tenant that only meets them
//! stays within its leeway, while one whose requests really take long soon pays for nearly all of their time.

use crate::values::Timestamp;

/// The most time of stores, in microseconds (half a second), that a tenant need not pay for on one core before
/// its leeway has grown again: longer than a store's usual pauses.
const MOST_MICROS: u32 = 500_000;
/// Share of the time that passes by which all cores' leeways of a tenant grow together, in percent.
const GROWTH_PERCENT: u64 = 1;

/// The time of stores that a tenant need not pay for on one core. It grows with time, up to half a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leeway {
    /// The part of the leeway that is used up, in microseconds.
    used_micros: u32,
    /// Time up to which the leeway has grown.
    grown_at: Timestamp,
}

impl Leeway {
    /// The leeway of a tenant that has not used any of it.
    pub const WHOLE: Self = Self { used_micros: 0, grown_at: Timestamp::ZERO };

    /// Takes time of a store (`micros`, in microseconds) from the leeway, as far as that reaches. Returns the
    /// rest, which is billed. `cores` is the number of cores, on each of which the tenant has a leeway.
    pub fn beyond(&mut self, micros: u64, cores: u16, now: Timestamp) -> u64 {
        let each = 100 * u64::from(cores.max(1)) / GROWTH_PERCENT;
        let grown = now.since(self.grown_at).as_micros() as u64 / each;
        if grown >= u64::from(self.used_micros) {
            *self = Self { used_micros: 0, grown_at: now };
        } else if grown > 0 {
            self.used_micros -= grown as u32;
            self.grown_at = now;
        }
        let taken = micros.min(u64::from(MOST_MICROS - self.used_micros));
        self.used_micros += taken as u32;
        micros - taken
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::values::Random;

    #[test]
    fn a_pause_now_and_then_costs_nothing() {
        let mut leeway = Leeway::WHOLE;
        let minutes = (1..200).map(|minute| Timestamp::ZERO.after(Duration::from_secs(60 * minute)));
        assert!(minutes.map(|now| leeway.beyond(400_000, 1, now)).all(|billed| billed == 0));
    }

    #[test]
    fn all_cores_together_leave_half_a_second_each_and_a_hundredth_of_the_time_unbilled() {
        for cores in [1_u16, 2, 7, 64] {
            let mut random = Random::new(u64::from(cores));
            let (mut leeway, mut now) = (Leeway::WHOLE, Timestamp::ZERO);
            let (mut taken, mut billed) = (0, 0);
            for _ in 0..20_000 {
                now = now.after(Duration::from_micros(random.bits() % 20_000));
                let micros = random.bits() % 10_000;
                taken += micros;
                billed += leeway.beyond(micros, cores, now);
            }
            let passed = now.since(Timestamp::ZERO).as_micros() as u64 / 100 / u64::from(cores);
            let free = taken - billed;
            // Parts of a microsecond are lost where little time passes.
            let least = u64::from(MOST_MICROS) + passed / 2;
            assert!((least..=u64::from(MOST_MICROS) + passed).contains(&free), "{cores}: {free} of {passed}");
        }
    }
}
