//! Rates in requests per second, and how they change: `50000`, `1000..50000`, `1000,2000,4000`.

use std::str::FromStr;

/// The rate of requests over the length of a phase of the load.
#[derive(Clone, Debug, PartialEq)]
pub enum Rate {
    /// A rate that changes linearly from the first to the second value, in requests per second; both are
    /// equal for a constant rate.
    Ramp(f64, f64),
    /// Steps of equal length, each with its constant rate in requests per second.
    Steps(Vec<f64>),
    /// Stretches of linear change, in order. Each is its share of the whole length (0 to 1), and the requests
    /// per second at its start and at its end.
    Stretches(Vec<(f64, f64, f64)>),
}

/// The largest rate that is accepted, in requests per second; a larger one is taken for a mistake.
const PER_SECOND_MAX: f64 = 1e8;
const STEPS_MAX: usize = 1_000;

impl Rate {
    /// Creates a rate of requests, per second, that never changes.
    pub const fn constant(per_second: f64) -> Self {
        Self::Ramp(per_second, per_second)
    }

    /// Splits the rate into stretches of linear change, in order. Each is its share of the phase's length (0
    /// to 1), and the requests per second at its start and at its end.
    pub fn stretches(&self) -> Vec<(f64, f64, f64)> {
        match self {
            Self::Ramp(from, to) => vec![(1.0, *from, *to)],
            Self::Steps(steps) => steps.iter().map(|rate| (1.0 / steps.len() as f64, *rate, *rate)).collect(),
            Self::Stretches(stretches) => stretches.clone(),
        }
    }

    /// Returns the rate over the first part of its length, which is `share` of the whole (above 0, up to 1).
    /// A ramp then ends with the rate that it has reached there, and later steps are left out.
    #[must_use]
    pub fn first(&self, share: f64) -> Self {
        let mut left = share;
        let mut stretches = Vec::new();
        for (part, from, to) in self.stretches() {
            let kept = part.min(left);
            // Shares are rounded, so what is left behind the last step may be a little more than zero.
            if kept < share * 1e-9 {
                break;
            }
            stretches.push((kept / share, from, from + (to - from) * kept / part));
            left -= kept;
        }
        match stretches.as_slice() {
            [(_, from, to)] => Self::Ramp(*from, *to),
            _ => Self::Stretches(stretches),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || {
            format!(
                "'{text}' is no rate: requests per second such as 50000 or 50k are expected, 1000..50000 for a ramp, or \
                 1000,2000,4000 for steps"
            )
        };
        if let Some((from, to)) = text.split_once("..") {
            return Ok(Self::Ramp(number(from).ok_or_else(wanted)?, number(to).ok_or_else(wanted)?));
        }
        let steps: Option<Vec<f64>> = text.split(',').map(number).collect();
        match steps.ok_or_else(wanted)?.as_slice() {
            [rate] => Ok(Self::constant(*rate)),
            steps if steps.len() > STEPS_MAX => Err(format!("{STEPS_MAX} steps are the most")),
            steps => Ok(Self::Steps(steps.to_vec())),
        }
    }
}

fn number(text: &str) -> Option<f64> {
    let text = text.trim().replace('_', "");
    let (digits, scale) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1e3),
        b'm' | b'M' => (&text[..text.len() - 1], 1e6),
        _ => (text.as_str(), 1.0),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let rate = digits.parse::<f64>().ok().filter(|_| plain)? * scale;
    (0.0..=PER_SECOND_MAX).contains(&rate).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_part_of_a_rate_is_as_it_would_be_in_the_whole() {
        assert_eq!(Rate::constant(5.0).first(0.3), Rate::constant(5.0));
        assert_eq!(Rate::Ramp(0.0, 4_000.0).first(0.25), Rate::Ramp(0.0, 1_000.0));
        assert_eq!(Rate::Ramp(3_000.0, 1_000.0).first(0.5), Rate::Ramp(3_000.0, 2_000.0));
        let steps = Rate::Steps(vec![1.0, 2.0, 3.0, 4.0]);
        assert_eq!(steps.first(0.25), Rate::constant(1.0));
        let [(first, 1.0, 1.0), (second, 2.0, 2.0)] = steps.first(0.375).stretches()[..] else {
            panic!("one step and a half are left")
        };
        assert!((first * 3.0 - 2.0).abs() < 1e-9 && (second * 3.0 - 1.0).abs() < 1e-9, "{first} {second}");
        assert_eq!(steps.first(1.0).stretches(), steps.stretches());
    }

    #[test]
    fn rates_as_people_write_them() {
        for (text, rate) in [
            ("50000", Rate::constant(50_000.0)),
            ("50k", Rate::constant(50_000.0)),
            ("1.5M", Rate::constant(1_500_000.0)),
            ("50_000", Rate::constant(50_000.0)),
            ("0..2k", Rate::Ramp(0.0, 2_000.0)),
            ("1000, 2000", Rate::Steps(vec![1_000.0, 2_000.0])),
        ] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
        }
        for text in ["", "fast", "-1", "1..", "1,,2", "1e5", "nan", "inf", "1000M", "k"] {
            assert!(text.parse::<Rate>().expect_err(text).contains("requests per second"), "{text}");
        }
    }
}
