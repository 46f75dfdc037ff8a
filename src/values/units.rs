//! Amounts as people write them: `10ms`, `16MiB`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    /// Creates a size of `count` times 1,048,576 bytes.
    pub const fn mebibytes(count: u64) -> Self {
        Self(count << 20)
    }

    /// Returns the size in bytes, for use as an index or a length.
    pub const fn bytes(self) -> usize {
        self.0 as usize
    }
}

const SIZE_UNITS: [(&str, u64); 13] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
];

/// Error text for a text that is no size, where one is expected.
const SIZE_WANTED: &str = "a size is expected, such as 65536, 64KiB, 16MiB or 1GiB";
/// Error text for a text that is no duration, where one is expected.
const DURATION_WANTED: &str = "a duration is expected, such as 500us, 10ms, 1s, 5m or 2h";

impl FromStr for Size {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (number, unit) = split(text);
        let unit = unit.to_ascii_lowercase();
        let (_, scale) = SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or(SIZE_WANTED)?;
        scaled(number, *scale).map(Self).ok_or(SIZE_WANTED)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| self.0 != 0 && self.0.trailing_zeros() >= *shift) {
            Some((shift, name)) => write!(out, "{}{name}", self.0 >> shift),
            None => write!(out, "{}", self.0),
        }
    }
}

/// Reads a duration with its unit (us, ms, s, m, min, h); only `0` needs no unit. The error is a text for the
/// user.
pub fn duration(text: &str) -> Result<Duration, &'static str> {
    let (number, unit) = split(text);
    let nanos_per_unit = match unit {
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "" if number == "0" => 1,
        "" if scaled(number, 1).is_some() => {
            return Err("a duration needs a unit, such as 500us, 10ms, 1s, 5m or 2h");
        }
        _ => return Err(DURATION_WANTED),
    };
    scaled(number, nanos_per_unit).map(Duration::from_nanos).ok_or(DURATION_WANTED)
}

/// Parses a duration with a unit, such as `5s`, that must be above 0. The error is a text for the user.
pub fn positive_duration(text: &str) -> Result<Duration, &'static str> {
    duration(text).and_then(|duration| {
        if duration.is_zero() {
            Err("a duration above 0 is expected, such as 10ms or 1s")
        } else {
            Ok(duration)
        }
    })
}

/// Reads a number of request units (`0.25`, at most 1,000,000) and returns millionths of a request unit. The
/// error is a text for the user.
pub fn request_units(text: &str) -> Result<u64, &'static str> {
    const UNITS_MAX: u64 = 1_000_000;
    let micro = scaled(text, super::UNIT).filter(|micro| *micro <= UNITS_MAX * super::UNIT);
    micro.ok_or("request units are expected, such as 1 or 0.25: up to 1000000, with up to 6 places")
}

/// Splits the text of an amount into its number and its unit, which a space may separate; the unit may be
/// empty.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// Reads a number with or without a decimal fraction, and returns it times `scale`. None if the text is no
/// number or the product not a whole one, so nothing is rounded.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u64 = whole.parse().ok()?;
    let parts = scale.checked_mul(fraction.parse().ok()?)?;
    let divisor = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    parts.is_multiple_of(divisor).then(|| whole.checked_mul(scale)?.checked_add(parts / divisor))?
}

/// Returns a parser of whole numbers from `least` to `most`, for flags of weir and of its tools. Its error is
/// a text for the user.
pub fn number(least: u64, most: u64) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("a whole number from {least} to {most} is expected"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65_536),
            ("64k", 65_536),
            ("64KiB", 65_536),
            ("64kB", 64_000),
            ("16MiB", 16 << 20),
            ("16 MiB", 16 << 20),
            ("1.5g", 3 << 29),
            ("0.5KiB", 512),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in
            ["", "MiB", "-1", "1..5k", "1.3", "16MiBs", "99999999999999999999", "99999999999g", ".5k", "1e3"]
        {
            assert_eq!(text.parse::<Size>(), Err(SIZE_WANTED), "{text}");
        }
    }

    #[test]
    fn a_size_is_shown_as_it_would_be_written() {
        for text in ["0", "1", "1000", "1KiB", "1500", "64KiB", "16MiB", "3GiB", "1TiB"] {
            assert_eq!(text.parse::<Size>().expect("a size").to_string(), text);
        }
    }

    #[test]
    fn durations() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("5us", 5_000),
            ("10ms", 10_000_000),
            ("1.5s", 1_500_000_000),
            ("5m", 300_000_000_000),
            ("2h", 7_200_000_000_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for text in ["", "s", "-1s", "1 day", "1d", "99999999999h", "0.0001us"] {
            assert_eq!(duration(text), Err(DURATION_WANTED), "{text}");
        }
        assert!(duration("10").expect_err("no unit").starts_with("a duration needs a unit"));
        assert!(positive_duration("0ms").expect_err("zero").starts_with("a duration above 0"));
    }

    #[test]
    fn weights() {
        for (text, micro) in [("0", 0), ("1", 1_000_000), ("0.25", 250_000), ("1000000", 1_000_000_000_000)] {
            assert_eq!(request_units(text), Ok(micro), "{text}");
        }
        for text in ["", "-1", "0.0000001", "1ru", "1000001", "NaN"] {
            assert!(request_units(text).is_err(), "{text}");
        }
    }
}
