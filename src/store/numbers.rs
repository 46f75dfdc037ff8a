//! Numbers in the forms in which Redis reads and writes them.

use super::hexadecimal;
use crate::protocol::encode;
use std::io::Write as _;

/// Maximum number of characters of a 64-bit integer in decimal, including a minus sign.
const DIGITS_MAX: usize = 20;

/// A buffer that holds an integer in decimal, without an allocation.
pub(super) struct Digits {
    bytes: [u8; DIGITS_MAX],
    start: usize,
}

impl Digits {
    pub(super) fn new(value: i64) -> Self {
        let mut bytes = [0; DIGITS_MAX];
        let mut start = DIGITS_MAX;
        let mut rest = value.unsigned_abs();
        loop {
            start -= 1;
            bytes[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            start -= 1;
            bytes[start] = b'-';
        }
        Self { bytes, start }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// A string that is stored as its bytes or as an integer, of which it has the digits.
pub(super) enum Spelled<'a> {
    Bytes(&'a [u8]),
    Digits(Digits),
}

impl Spelled<'_> {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Digits(digits) => digits.as_bytes(),
        }
    }
}

/// Parses a signed 64-bit integer in its canonical form: no plus, no leading zero, no space. `None` for any
/// other text.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let (digits, negative) = match text {
        [b'-', digits @ ..] => (digits, true),
        digits => (digits, false),
    };
    if digits == b"0" {
        return (!negative).then_some(0);
    }
    if !matches!(digits.first(), Some(b'1'..=b'9')) || digits.len() >= DIGITS_MAX {
        return None;
    }
    let mut magnitude: u64 = 0;
    for byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        magnitude = magnitude.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
    }
    if negative { 0_i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// A number that was read as C's `strtod` reads one, and whether it is out of the range of an `f64`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Number {
    pub(super) value: f64,
    /// True if the number is too large for an `f64`, or so close to 0 that it lost digits (`ERANGE`).
    pub(super) is_out_of_range: bool,
}

/// Parses a whole text as a number as C's `strtod` does, without spaces before it; `None` for NaN and for any other
/// text.
pub(super) fn number(text: &[u8]) -> Option<Number> {
    let unsigned = if let [b'-' | b'+', rest @ ..] = text { rest } else { text };
    if let Some(read) = hexadecimal::read(unsigned) {
        let (value, is_out_of_range) = read.to_float();
        return Some(Number { value: if text[0] == b'-' { -value } else { value }, is_out_of_range });
    }
    let text = std::str::from_utf8(text).ok()?;
    let value: f64 = text.parse().ok()?;
    let spelled_infinite = text.bytes().any(|byte| matches!(byte, b'n' | b'N'));
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let is_zero = mantissa.bytes().all(|byte| !matches!(byte, b'1'..=b'9'));
    let is_whole = value.is_normal() || value.is_infinite() && spelled_infinite || value == 0.0 && is_zero;
    (!value.is_nan()).then_some(Number { value, is_out_of_range: !is_whole })
}

/// Parses a text as C programs do that call `strtod` and check only that it read the whole text: spaces
/// before the number are skipped, an empty text is 0, and a zero byte ends the text. `None` for NaN and for
/// any other text.
pub(super) fn lenient(text: &[u8]) -> Option<Number> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(Number { value: 0.0, is_out_of_range: false });
    }
    let start = text.iter().position(|byte| !matches!(byte, b' ' | b'\t'..=b'\r')).unwrap_or(0);
    number(&text[start..])
}

/// Parses a whole text as a number as C's `strtod` does; `None` for NaN, for a number that is too large or
/// too close to 0 for an `f64`, and for any other text.
pub(super) fn float(text: &[u8]) -> Option<f64> {
    let Number { value, is_out_of_range } = number(text)?;
    (!is_out_of_range || value.is_finite() && value != 0.0).then_some(value)
}

/// Appends a number as C's `%.17g` prints it (17 significant digits at most), the form in which replies give
/// the scores of sorted sets.
#[expect(clippy::float_cmp, reason = "a whole number equals its own whole part")]
pub(super) fn write_float(out: &mut Vec<u8>, value: f64) {
    // Every whole number below this is exact and shorter than 17 digits.
    const WHOLE_MAX: f64 = 1e15;
    let is_negative_zero = value == 0.0 && value.is_sign_negative();
    if value.abs() < WHOLE_MAX && value.trunc() == value && !is_negative_zero {
        encode::decimal(out, value as i64);
    } else {
        write_general(out, value, 17);
    }
}

/// Appends a number as C's `%.{precision}g` prints it: with at most `precision` significant digits, and an
/// exponent where the number is very large or small.
pub(super) fn write_general(out: &mut Vec<u8>, value: f64, precision: usize) {
    if value.is_nan() {
        out.extend_from_slice(if value.is_sign_negative() { b"-nan" } else { b"nan" });
        return;
    }
    if value.is_sign_negative() {
        out.push(b'-');
    }
    if value.is_infinite() {
        out.extend_from_slice(b"inf");
        return;
    }
    let precision = precision.max(1);
    let scientific = format!("{:.*e}", precision - 1, value.abs());
    let (mantissa, exponent) = scientific.split_once('e').expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    let digits: Vec<u8> = mantissa.bytes().filter(u8::is_ascii_digit).collect();
    let kept = digits.iter().rposition(|digit| *digit != b'0').map_or(1, |last| last + 1);
    let digits = &digits[..kept];
    if exponent < -4 || exponent >= precision as i32 {
        out.push(digits[0]);
        if kept > 1 {
            out.push(b'.');
            out.extend_from_slice(&digits[1..]);
        }
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "e{sign}{:02}", exponent.abs()).expect("a vector takes all");
    } else if exponent < 0 {
        out.extend_from_slice(b"0.");
        out.extend(std::iter::repeat_n(b'0', (-exponent - 1) as usize));
        out.extend_from_slice(digits);
    } else {
        let whole = exponent as usize + 1;
        out.extend((0..whole).map(|place| digits.get(place).copied().unwrap_or(b'0')));
        if kept > whole {
            out.push(b'.');
            out.extend_from_slice(&digits[whole..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(value: f64) -> String {
        let mut out = Vec::new();
        write_float(&mut out, value);
        String::from_utf8(out).expect("digits")
    }

    #[test]
    fn integers_have_one_spelling() {
        for (text, value) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("99999999999999999999", None),
            ("", None),
            ("-", None),
            ("+1", None),
            ("01", None),
            ("-0", None),
            (" 1", None),
            ("1x", None),
        ] {
            assert_eq!(integer(text.as_bytes()), value, "{text}");
        }
    }

    #[test]
    fn floats_follow_strtod_and_printf() {
        for (text, spelling) in [
            ("3.14", "3.1400000000000001"),
            ("1e20", "1e+20"),
            ("1e16", "10000000000000000"),
            ("123456789012345678", "1.2345678901234568e+17"),
            ("0.0001", "0.0001"),
            ("0.00001", "1.0000000000000001e-05"),
            ("-inf", "-inf"),
            ("+INF", "inf"),
            ("-0", "-0"),
            ("1.5e3", "1500"),
            ("12345.75", "12345.75"),
            ("-0x1.8p1", "-3"),
            ("+0x10", "16"),
            ("4.9e-324", "4.9406564584124654e-324"),
        ] {
            assert_eq!(spelled(float(text.as_bytes()).expect(text)), spelling, "{text}");
        }
        for text in
            ["", "nan", "1e400", "1e-400", " 1", "1 ", "abc", "-", "0x", "0x1p1024", "0x1p-1080", "1\0"]
        {
            assert_eq!(float(text.as_bytes()), None, "{text}");
        }
        for (text, value) in
            [("", 0.0), ("\0x", 0.0), ("1\0x", 1.0), (" \t0x1p3", 8.0), ("-1e400", f64::NEG_INFINITY)]
        {
            assert_eq!(lenient(text.as_bytes()).map(|number| number.value), Some(value), "{text}");
        }
        for text in [" ", "1 ", "nan"] {
            assert_eq!(lenient(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn numbers_are_spelled_as_by_printf() {
        for (value, precision, expected) in [
            (0.0, 14, "0"),
            (-0.0, 14, "-0"),
            (3.3, 17, "3.2999999999999998"),
            (3.3, 14, "3.3"),
            (1e20, 17, "1e+20"),
            (1e13, 14, "10000000000000"),
            (1e14, 14, "1e+14"),
            (123_456_789.123_456_79, 14, "123456789.12346"),
            (0.000_1, 14, "0.0001"),
            (0.000_01, 14, "1e-05"),
            (f64::INFINITY, 14, "inf"),
            (f64::NEG_INFINITY, 14, "-inf"),
        ] {
            let mut out = Vec::new();
            write_general(&mut out, value, precision);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
    }
}
