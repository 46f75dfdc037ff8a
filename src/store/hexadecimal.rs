//! Floating-point numbers in hexadecimal digits, such as `0x1.8p3` for 12, which C's `strtod` and `strtold` read and
//! Redis therefore accepts.

use std::cmp::Ordering;

/// The number of leading bits of a number that are kept. Of the later bits, only whether any is set is kept.
const BITS_KEPT: u32 = 124;
/// The largest binary exponent that is read, positive or negative; a larger one counts as this one. It is far
/// beyond every format, and small enough that sums with the lengths of texts do not overflow.
const EXPONENT_MAX: i64 = 1 << 40;
/// The number of bits of the mantissa of an `f64`, with the leading one.
const MANTISSA_BITS: i64 = f64::MANTISSA_DIGITS as i64;
/// The exponent of the smallest positive `f64`.
const EXPONENT_MIN: i64 = f64::MIN_EXP as i64 - MANTISSA_BITS;

/// A number without its sign: `bits * 2^exponent`, or slightly more than that if `more` is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hexadecimal {
    bits: u128,
    more: bool,
    exponent: i64,
}

/// Reads a whole text such as `0x1.8p3`: `0x`, hexadecimal digits with at most one point among them, and
/// optionally `p` with an exponent of two in decimal. `None` for any other text, such as one with a sign
/// before `0x`.
pub(super) fn read(text: &[u8]) -> Option<Hexadecimal> {
    let [b'0', b'x' | b'X', text @ ..] = text else { return None };
    let (digits, power) = match text.iter().position(|byte| byte.eq_ignore_ascii_case(&b'p')) {
        Some(at) => (&text[..at], power(&text[at + 1..])?),
        None => (text, 0),
    };
    let mut number = Hexadecimal { bits: 0, more: false, exponent: 0 };
    let (mut any, mut behind_point) = (false, false);
    for byte in digits {
        if *byte == b'.' && !behind_point {
            behind_point = true;
            continue;
        }
        let digit = char::from(*byte).to_digit(16)?;
        any = true;
        if number.bits >> (BITS_KEPT - 4) == 0 {
            number.bits = number.bits << 4 | u128::from(digit);
            number.exponent -= if behind_point { 4 } else { 0 };
        } else {
            number.more |= digit > 0;
            number.exponent += if behind_point { 0 } else { 4 };
        }
    }
    number.exponent += power;
    any.then_some(number)
}

/// Returns the exponent that a text of decimal digits, with or without a sign, states, limited to 2^40 in
/// either direction; `None` for any other text.
pub(super) fn power(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |power: i64, digit: &u8| (power * 10 + i64::from(digit - b'0')).min(EXPONENT_MAX);
    let power = digits.iter().fold(0, add);
    Some(if negative { -power } else { power })
}

impl Hexadecimal {
    pub(super) fn is_zero(self) -> bool {
        self.bits == 0
    }

    /// Returns the exponent of two of the number's highest bit that is set.
    fn reach(self) -> i64 {
        self.exponent + i64::from(u128::BITS - self.bits.leading_zeros()) - 1
    }

    /// Divides the number by `2^exponent`: returns the whole part, and how the rest compares with half of the
    /// divisor.
    fn divided(self, exponent: i64) -> (u128, Ordering) {
        let dropped = exponent - self.exponent;
        if dropped <= 0 {
            return (self.bits << -dropped, Ordering::Less);
        }
        if dropped > i64::from(u128::BITS) {
            return (0, Ordering::Less);
        }
        let kept = self.bits.checked_shr(dropped as u32).unwrap_or(0);
        let half = 1_u128 << (dropped - 1);
        let rest = self.bits & ((half - 1) | half);
        (kept, rest.cmp(&half).then(if self.more { Ordering::Greater } else { Ordering::Equal }))
    }

    /// True if the number is no whole multiple of `2^exponent`.
    fn is_between(self, exponent: i64) -> bool {
        let lost = exponent - self.exponent;
        self.more || lost > 0 && i64::from(self.bits.trailing_zeros()) < lost
    }

    /// Returns the leading 64 bits as a mantissa, its exponent, and how the bits below compare with half of
    /// the mantissa's last bit. The number must not be zero.
    pub(super) fn mantissa(self) -> (u64, i64, Ordering) {
        let exponent = self.reach() - 63;
        let (kept, rest) = self.divided(exponent);
        (kept as u64, exponent, rest)
    }

    /// Returns the nearest `f64`, and true if the number is too large for one, or so small that it lost bits (`ERANGE`).
    pub(super) fn to_float(self) -> (f64, bool) {
        if self.is_zero() {
            return (0.0, false);
        }
        let reach = self.reach();
        if reach > i64::from(f64::MAX_EXP) {
            return (f64::INFINITY, true);
        }
        let exponent = (reach - MANTISSA_BITS + 1).max(EXPONENT_MIN);
        let (kept, rest) = self.divided(exponent);
        let up = rest == Ordering::Greater || rest == Ordering::Equal && kept & 1 == 1;
        let mantissa = (kept as u64 + u64::from(up)) as f64;
        // In two steps, since the power of two itself may be no `f64`.
        let value = mantissa * power_of_two(exponent / 2) * power_of_two(exponent - exponent / 2);
        let is_tiny = reach < i64::from(f64::MIN_EXP) - 1;
        (value, value.is_infinite() || is_tiny && self.is_between(exponent))
    }
}

/// Returns a power of two, which must be a normal `f64`.
fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(((exponent + i64::from(f64::MAX_EXP) - 1) as u64) << (MANTISSA_BITS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_strtod() {
        for (text, value, is_out_of_range) in [
            ("0x10", 16.0, false),
            ("0X1P-3", 0.125, false),
            ("0x.8p1", 1.0, false),
            ("0x1.", 1.0, false),
            ("0x0p99999999999999999999", 0.0, false),
            ("0x1.fffffffffffff7p1023", f64::MAX, false),
            ("0x1.fffffffffffff8p1023", f64::INFINITY, true),
            ("0x1p1024", f64::INFINITY, true),
            ("0x1p99999999999999999999", f64::INFINITY, true),
            ("0x1p-1022", f64::MIN_POSITIVE, false),
            ("0x1p-1074", 5e-324, false),
            ("0x1p-1075", 0.0, true),
            ("0x1.8p-1075", 5e-324, true),
            ("0x1p-99999999999999999999", 0.0, true),
            ("0x1.00000000000008p0", 1.0, false),
            ("0x1.00000000000018p0", 1.000_000_000_000_000_4, false),
            ("0x1.000000000000080000000000000000000000000001p0", 1.000_000_000_000_000_2, false),
            ("0x123456789abcdef0123456789", 9.014_404_268_289_631e28, false),
        ] {
            let read = read(text.as_bytes()).expect(text);
            assert_eq!(read.to_float(), (value, is_out_of_range), "{text}");
        }
        let long = format!("0x{}1p-4000", "0".repeat(1_000));
        assert_eq!(read(long.as_bytes()).expect("it is one").to_float(), (0.0, true));
        let long = format!("0x1{}p-4000", "0".repeat(1_000));
        assert_eq!(read(long.as_bytes()).expect("it is one").to_float(), (1.0, false));
        for text in
            ["", "0x", "0x.", "0xp1", "0x1p", "0x1p+", "0x1p0x1", "0x1.1.", "0xg", "x1", "0x 1", "0x1p1.0"]
        {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }
}
