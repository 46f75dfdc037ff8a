//! The arithmetic of INCRBYFLOAT and HINCRBYFLOAT. Redis adds with 64 bits of mantissa (`long double` on
//! x86-64) and prints 17 decimals, so that 0.1 and 0.2 make 0.3. Rust has no such type, so it is done in
//! integers here.
//!
//! This keeps the promise that replies are Redis's byte for byte. Of 20,000 sums of two random decimals, so
//! many differ from those of redis-server 7.0 (`this` is the method of this file):
//!
//! | digits before and after the point | `this` | `f64`, 17 decimals | `f64`, shortest | exact decimals |
//! |---|---|---|---|---|
//! | to 3 and 2 | 0 | 16,089 | 14,400 | 13,614 |
//! | to 5 and 4 | 0 | 18,587 | 18,583 | 18,544 |
//! | to 9 and 9 | 0 | 19,678 | 19,687 | 19,682 |
//! | to 15 and 15 | 0 | 19,856 | 19,876 | 19,868 |
//!
//! (redis-server replies that -667.6 and 499 make -168.59999999999999998.) `tests/e2e/test_embedded.py`
//! compares such sums in every run.

use super::hexadecimal;
use super::refusal::Refusal;
use std::cmp::Ordering;

/// The units of effort (steps of work) to read a number that is long or has an exponent, and for its share in
/// the sum: enough for any, some tenths of a millisecond.
const EFFORT_MAX: u64 = 4_000;

/// The units of effort (steps of work) to read a short number, and for its share in the sum.
const EFFORT: u64 = 64;

/// Returns the units of effort (steps of work) to add the number `text`: 4,000 if it is longer than 40 bytes
/// or has an exponent (`e`, in hexadecimal numbers `p`), else 64.
pub(super) fn effort(text: &[u8]) -> u64 {
    let long = text.len() > 40 || text.iter().any(|byte| matches!(byte, b'e' | b'E' | b'p' | b'P'));
    if long { EFFORT_MAX } else { EFFORT }
}

/// The length in bytes from which on a text is not read as a number any more, as in Redis.
const TEXT_BYTES_MAX: usize = 5 * 1024;
/// The largest decimal exponent, positive or negative, of a number that INCRBYFLOAT reads. Numbers with
/// larger ones are certainly out of range; up to it every step of the computation is short.
const DECIMAL_EXPONENT_MAX: i64 = 10_000;
/// Maximum number of digits that a number may have before its decimal point, or of zeros after the point and
/// before the first other digit. Larger and smaller numbers are refused.
const DECIMAL_ORDER_MAX: i64 = 5_000;
/// The largest power of ten that fits in a 32-bit word. Long numbers are read and scaled nine digits at once
/// by it.
const TENS: u32 = 1_000_000_000;
const TENS_DIGITS: usize = 9;
/// The largest exponent of two that the highest bit of a long double can have.
const BINARY_EXPONENT_MAX: i64 = 16_383;
const BINARY_EXPONENT_MIN: i64 = -16_445;
const DECIMALS: usize = 17;

/// A finite floating-point number `mantissa * 2^exponent` of 80 bits, with the highest bit of the mantissa
/// set; zero has a mantissa of zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LongDouble {
    negative: bool,
    mantissa: u64,
    exponent: i64,
}

/// Returns the sum of two numbers; operands and sum are decimal texts. An error if an operand is no number,
/// or if an operand or the sum is infinite.
pub(super) fn add(left: &[u8], right: &[u8]) -> Result<String, Refusal> {
    let endless = Refusal::Words("ERR increment would produce NaN or Infinity");
    let (Some(left), Some(right)) = (read(left)?, read(right)?) else { return Err(endless) };
    let sum = left.plus(right);
    if sum.exponent + 63 > BINARY_EXPONENT_MAX {
        return Err(endless);
    }
    Ok(sum.spelled())
}

/// True if the text is a finite number, false if it is an infinity; an error if it is no number, or out of
/// range.
pub(super) fn is_finite(text: &[u8]) -> Result<bool, Refusal> {
    Ok(read(text)?.is_some())
}

/// Parses a decimal or hexadecimal number as a floating-point number of 80 bits (`long double`); `None` for an infinity. An
/// error if the text is no number, or one that is out of range.
fn read(text: &[u8]) -> Result<Option<LongDouble>, Refusal> {
    if text.len() >= TEXT_BYTES_MAX {
        return Err(Refusal::NotAFloat);
    }
    let negative = text.first() == Some(&b'-');
    let unsigned = if let [b'-' | b'+', rest @ ..] = text { rest } else { text };
    if unsigned.eq_ignore_ascii_case(b"inf") || unsigned.eq_ignore_ascii_case(b"infinity") {
        return Ok(None);
    }
    let number = if let Some(read) = hexadecimal::read(unsigned) {
        if read.is_zero() {
            return Ok(Some(LongDouble { negative, ..LongDouble::default() }));
        }
        let (mantissa, exponent, rest) = read.mantissa();
        rounded(mantissa, exponent, rest)
    } else {
        let (digits, exponent) = decimal(unsigned).ok_or(Refusal::NotAFloat)?;
        if digits.is_empty() {
            return Ok(Some(LongDouble { negative, ..LongDouble::default() }));
        }
        if exponent.abs() > DECIMAL_EXPONENT_MAX || (digits.len() as i64 + exponent).abs() > DECIMAL_ORDER_MAX
        {
            return Err(Refusal::NotAFloat);
        }
        nearest(&digits, exponent)
    };
    let number = LongDouble { negative, ..number };
    let reach = number.exponent + 63;
    if (BINARY_EXPONENT_MIN..=BINARY_EXPONENT_MAX).contains(&reach) {
        Ok(Some(number))
    } else {
        Err(Refusal::NotAFloat)
    }
}

/// Returns the digits of a decimal text without leading zeros, and the power of ten of the last digit; `None`
/// if the text is no number.
fn decimal(text: &[u8]) -> Option<(Vec<u8>, i64)> {
    let (mantissa, mut exponent) = match text.iter().position(|byte| byte.eq_ignore_ascii_case(&b'e')) {
        Some(at) => (&text[..at], hexadecimal::power(&text[at + 1..])?),
        None => (text, 0),
    };
    let point = mantissa.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = match point {
        Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
        None => (mantissa, &[][..]),
    };
    let digits = || whole.iter().chain(fraction);
    if digits().next().is_none() || !digits().all(u8::is_ascii_digit) {
        return None;
    }
    exponent -= fraction.len() as i64;
    Some((digits().copied().skip_while(|digit| *digit == b'0').collect(), exponent))
}

/// Returns the floating-point number of 80 bits that is nearest to `digits * 10^exponent`, by long division
/// one bit at a time.
fn nearest(digits: &[u8], exponent: i64) -> LongDouble {
    let (mut numerator, mut denominator) = (Natural::from(0), Natural::from(1));
    for group in digits.chunks(TENS_DIGITS) {
        let value = group.iter().fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
        numerator.multiply_add(10_u32.pow(group.len() as u32), value);
    }
    let scaled = if exponent >= 0 { &mut numerator } else { &mut denominator };
    let tens = exponent.unsigned_abs();
    for _ in 0..tens / TENS_DIGITS as u64 {
        scaled.multiply_add(TENS, 0);
    }
    scaled.multiply_add(10_u32.pow((tens % TENS_DIGITS as u64) as u32), 0);
    let mut shift = numerator.bits() - denominator.bits();
    if shift >= 0 {
        denominator.shift_left(shift as usize);
    } else {
        numerator.shift_left(-shift as usize);
    }
    if numerator.compare(&denominator) == Ordering::Less {
        numerator.shift_left(1);
        shift -= 1;
    }
    // The quotient lies between one and two now; its first 64 bits are the mantissa.
    let mut mantissa = 0_u64;
    for _ in 0..64 {
        mantissa <<= 1;
        if numerator.compare(&denominator) != Ordering::Less {
            numerator.subtract(&denominator);
            mantissa |= 1;
        }
        numerator.shift_left(1);
    }
    let rest = numerator.compare(&denominator);
    rounded(mantissa, shift - 63, rest)
}

/// Returns the number `mantissa * 2^exponent`, rounded to the nearest mantissa of 64 bits, and to an even one
/// from halfway. `rest` compares the bits below the mantissa, which the caller has cut off, with half of its
/// last bit.
fn rounded(mantissa: u64, exponent: i64, rest: Ordering) -> LongDouble {
    let up = rest == Ordering::Greater || rest == Ordering::Equal && mantissa & 1 == 1;
    match mantissa.checked_add(u64::from(up)) {
        Some(mantissa) => LongDouble { negative: false, mantissa, exponent },
        None => LongDouble { negative: false, mantissa: 1 << 63, exponent: exponent + 1 },
    }
}

impl LongDouble {
    fn plus(self, other: Self) -> Self {
        if self.mantissa == 0 || other.mantissa == 0 {
            return if other.mantissa == 0 { self } else { other };
        }
        let order = (self.exponent, self.mantissa).cmp(&(other.exponent, other.mantissa));
        let (large, small) = if order == Ordering::Less { (other, self) } else { (self, other) };
        // One bit is left above for a carry and 63 below; of the bits that a shift loses beyond that, only
        // their existence is kept.
        let distance = (large.exponent - small.exponent).min(127) as u32;
        let high = u128::from(large.mantissa) << 63;
        let low = u128::from(small.mantissa) << 63 >> distance;
        let lost = (low << distance) >> 63 != u128::from(small.mantissa);
        let sum = if large.negative == small.negative { high + low } else { high - low - u128::from(lost) };
        if sum == 0 {
            return Self::default();
        }
        let zeros = sum.leading_zeros();
        let sum = sum << zeros;
        let (mantissa, below) = ((sum >> 64) as u64, sum as u64);
        let rest = below.cmp(&(1 << 63)).then(if lost { Ordering::Greater } else { Ordering::Equal });
        let exponent = large.exponent - 63 + 64 - i64::from(zeros);
        Self { negative: large.negative, ..rounded(mantissa, exponent, rest) }
    }

    /// Returns the number in decimal with at most 17 decimals, without trailing zeros after the point, and
    /// never with an exponent.
    fn spelled(self) -> String {
        let unsigned = if self.exponent >= 0 { self.whole() } else { self.fractional() };
        let sign = if self.negative && unsigned != "0" { "-" } else { "" };
        format!("{sign}{unsigned}")
    }

    fn whole(self) -> String {
        let mut natural = Natural::from(self.mantissa);
        natural.shift_left(self.exponent as usize);
        natural.spelled()
    }

    fn fractional(self) -> String {
        // 64 bits times 10^17 fit in 121 bits.
        let scaled = u128::from(self.mantissa) * 10_u128.pow(DECIMALS as u32);
        let shift = (-self.exponent).min(127) as u32;
        let (kept, rest) = (scaled >> shift, scaled & ((1 << shift) - 1));
        let up = match rest.cmp(&(1 << (shift - 1))) {
            Ordering::Less => false,
            Ordering::Equal => kept & 1 == 1,
            Ordering::Greater => true,
        };
        let digits = format!("{:018}", kept + u128::from(up));
        let (whole, decimals) = digits.split_at(digits.len() - DECIMALS);
        let decimals = decimals.trim_end_matches('0');
        if decimals.is_empty() { whole.to_owned() } else { format!("{whole}.{decimals}") }
    }
}

/// A natural number of any size, as words of which the lowest comes first; the highest word is never zero.
struct Natural {
    words: Vec<u32>,
}

impl Natural {
    fn from(value: u64) -> Self {
        let mut natural = Self { words: vec![value as u32, (value >> 32) as u32] };
        natural.trim();
        natural
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }

    fn bits(&self) -> i64 {
        self.words.last().map_or(0, |high| self.words.len() as i64 * 32 - i64::from(high.leading_zeros()))
    }

    fn multiply_add(&mut self, factor: u32, summand: u32) {
        let mut carry = u64::from(summand);
        for word in &mut self.words {
            carry += u64::from(*word) * u64::from(factor);
            *word = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.words.push(carry as u32);
        }
    }

    fn shift_left(&mut self, bits: usize) {
        if !bits.is_multiple_of(32) {
            self.multiply_add(1 << (bits % 32), 0);
        }
        if !self.words.is_empty() {
            self.words.splice(0..0, std::iter::repeat_n(0, bits / 32));
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        let by_length = self.words.len().cmp(&other.words.len());
        by_length.then_with(|| self.words.iter().rev().cmp(other.words.iter().rev()))
    }

    /// Subtracts another natural number, which must not be larger.
    fn subtract(&mut self, other: &Self) {
        let mut borrowed = false;
        for (index, word) in self.words.iter_mut().enumerate() {
            let (less, first) = word.overflowing_sub(other.words.get(index).copied().unwrap_or(0));
            let (less, second) = less.overflowing_sub(u32::from(borrowed));
            *word = less;
            borrowed = first || second;
        }
        self.trim();
    }

    fn spelled(mut self) -> String {
        const GROUP: u64 = 1_000_000_000;
        let mut groups = Vec::new();
        while !self.words.is_empty() {
            let mut rest = 0;
            for word in self.words.iter_mut().rev() {
                let dividend = rest << 32 | u64::from(*word);
                *word = (dividend / GROUP) as u32;
                rest = dividend % GROUP;
            }
            groups.push(rest);
            self.trim();
        }
        let Some(first) = groups.pop() else { return "0".to_owned() };
        groups.iter().rev().fold(first.to_string(), |text, group| format!("{text}{group:09}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_redis() {
        for (left, right, sum) in [
            ("0.1", "0.2", "0.3"),
            ("10.5", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("1e20", "0.1", "100000000000000000000"),
            ("1000", "0.1", "1000.09999999999999998"),
            ("12345678901234567890", "1", "12345678901234567891"),
            ("18446744073709551615", "1", "18446744073709551616"),
            ("0.00000000000000001", "0", "0.00000000000000001"),
            ("0.000000000000000001", "0", "0"),
            ("-1", "1", "0"),
            ("-0", "0", "0"),
            (".5", "-1.", "-0.5"),
            ("-1e-30", "0", "0"),
            ("0x1p3", "0x.8", "8.5"),
            ("-0X10", "0", "-16"),
            ("0x8000000000000000.8p0", "1", "9223372036854775809"),
            ("0x1p-16445", "1", "1"),
            ("0e99999999999", "0x0p99999999999", "0"),
        ] {
            assert_eq!(add(left.as_bytes(), right.as_bytes()), Ok(sum.to_owned()), "{left} {right}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in [
            "",
            "x",
            "nan",
            "1e",
            "1e99999",
            "1x",
            ".",
            "--1",
            " 1",
            "1e-99999",
            "0x",
            "0x1p16384",
            "0x1p-16446",
        ] {
            assert_eq!(add(text.as_bytes(), b"0"), Err(Refusal::NotAFloat), "{text}");
        }
        assert!(add(b"inf", b"-inf").is_err());
        assert!(add(b"1e4932", b"1e4932").is_err());
    }
}
