//! Bounds, defaults and names of values that flags and scenario files share.

use std::time::Duration;

use weir_load::schedule::Arrivals;

pub const DURATION_DEFAULT: Duration = Duration::from_secs(10);
pub const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);
pub const CONNECTIONS_MAX: u64 = 60_000;
pub const PIPELINE_MAX: u64 = 4_096;
pub const THREADS_MAX: u64 = 64;
pub const CONNECTIONS_DEFAULT: usize = 50;
pub const PIPELINE_DEFAULT: usize = 16;

/// Parses the name (`word`) of a way to spread requests over time: `even` or `poisson`. The error says what
/// is expected.
pub fn arrivals(word: &str) -> Result<Arrivals, String> {
    match word {
        "even" => Ok(Arrivals::Even),
        "poisson" => Ok(Arrivals::Poisson),
        _ => Err("even or poisson is expected".to_owned()),
    }
}
