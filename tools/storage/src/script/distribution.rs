//! Distributions of service times, with samples from seeded random numbers.

use std::str::FromStr;
use std::time::Duration;

use weir::values::Random;
use weir::values::units::duration;

/// The longest service time: one hour, however long the tail of a distribution is.
const SERVICE_TIME_MAX: Duration = Duration::from_secs(60 * 60);
/// The largest sigma (standard deviation of the logarithm) of a log-normal distribution of service times;
/// with more, nearly all of the time would be in its tail.
const SIGMA_MAX: f64 = 5.0;

/// The random distribution of a scripted store's service time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// The service time is always the given one.
    Fixed(Duration),
    /// The service time is distributed exponentially with the given mean.
    Exponential(Duration),
    /// The service time has a log-normal distribution, which has a long tail.
    LogNormal {
        /// The time below which half of the service times are.
        median: Duration,
        /// The standard deviation of the logarithm of the time. The mean time is
        /// `median * exp(sigma * sigma / 2)`.
        sigma: f64,
    },
}

impl Distribution {
    /// The distribution of a service time that is always zero.
    pub const NONE: Self = Self::Fixed(Duration::ZERO);

    /// Draws a service time. A fixed distribution uses up no number of `random`.
    pub(super) fn sample(&self, random: &mut Random) -> Duration {
        match self {
            Self::Fixed(time) => *time,
            Self::Exponential(mean) => scaled(*mean, -fraction(random).ln()),
            Self::LogNormal { median, sigma } => scaled(*median, (sigma * normal(random)).exp()),
        }
    }
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let complaint = |problem: &str| {
            format!(
                "'{text}' is no service time: {problem}; 1ms, fixed:1ms, exp:MEAN or lognormal:MEDIAN:SIGMA is expected"
            )
        };
        let time = |word: &str| {
            let time = duration(word).map_err(|problem| complaint(&format!("'{word}': {problem}")))?;
            if time > SERVICE_TIME_MAX { Err(complaint("an hour is the most")) } else { Ok(time) }
        };
        match text.split(':').collect::<Vec<_>>()[..] {
            [word] | ["fixed", word] => time(word).map(Self::Fixed),
            ["exp", mean] => time(mean).map(Self::Exponential),
            ["lognormal", median, sigma] => {
                let median = time(median)?;
                let sigma = sigma.parse().ok().filter(|sigma| (0.0..=SIGMA_MAX).contains(sigma));
                let sigma = sigma.ok_or_else(|| complaint("SIGMA is a number from 0 to 5"))?;
                Ok(Self::LogNormal { median, sigma })
            }
            _ => Err(complaint("its form is unknown")),
        }
    }
}

/// Returns a random number above 0 and up to 1.
pub(super) fn fraction(random: &mut Random) -> f64 {
    ((random.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// Returns a sample of the standard normal distribution, by the method of Box and Muller.
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * fraction(random).ln()).sqrt();
    radius * (std::f64::consts::TAU * fraction(random)).cos()
}

fn scaled(time: Duration, factor: f64) -> Duration {
    Duration::from_nanos((time.as_nanos() as f64 * factor).round() as u64).min(SERVICE_TIME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: u32 = 200_000;

    #[test]
    fn means_are_those_asked_for() {
        let asked =
            [("2ms", 2.0), ("fixed:3ms", 3.0), ("exp:10ms", 10.0), ("lognormal:1ms:0.5", 0.125_f64.exp())];
        for (text, mean_ms) in asked {
            let distribution: Distribution = text.parse().expect("well formed");
            let mut random = Random::new(7);
            let total: Duration = (0..SAMPLES).map(|_| distribution.sample(&mut random)).sum();
            let measured = total.as_secs_f64() * 1_000.0 / f64::from(SAMPLES);
            assert!((measured / mean_ms - 1.0).abs() < 0.01, "{text}: {measured}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_samples() {
        let distribution = Distribution::Exponential(Duration::from_millis(1));
        let samples = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| distribution.sample(&mut random)).collect::<Vec<_>>()
        };
        assert_eq!(samples(1), samples(1));
        assert_ne!(samples(1), samples(2));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for text in [
            "",
            "1",
            "exp",
            "exp:1",
            "gamma:1ms",
            "lognormal:1ms",
            "lognormal:1ms:-1",
            "lognormal:1ms:NaN",
            "2h",
        ] {
            let complaint = text.parse::<Distribution>().expect_err(text);
            assert!(
                complaint.contains(&format!("'{text}'")) && complaint.contains("expected"),
                "{complaint}"
            );
        }
    }
}
