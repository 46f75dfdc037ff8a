//! Numbers as `printf` spells them.

use std::io::Write as _;

/// Appends a number as `%.{precision}g` spells it.
pub(super) fn general(out: &mut Vec<u8>, value: f64, precision: usize) {
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
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
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
        // A vector takes all.
        let _ = write!(out, "e{sign}{:02}", exponent.abs());
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
            general(&mut out, value, precision);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
    }
}
