//! Header lines of RESP (`*3`, `$5`): the usual ones, which requests and replies have in common.

/// Reads the number in a header line in the usual case: one or two digits, no leading zero, and the whole line
/// received. Returns the number and the offset at which the next line starts; `None` in any other case, and if
/// `bytes` are fewer than five.
#[inline]
pub fn short_count(bytes: &[u8]) -> Option<(usize, usize)> {
    const LINE_END: u32 = u32::from_le_bytes([b'\r', b'\n', 0, 0]);
    let [_, line @ ..] = *bytes.first_chunk::<5>()?;
    let ([first, second, ..], word) = (line, u32::from_le_bytes(line));
    let digit = |byte: u8| usize::from(byte.wrapping_sub(b'0'));
    if (word >> 8) & 0xffff == LINE_END {
        return (digit(first) <= 9).then(|| (digit(first), 4));
    }
    let is_count = word >> 16 == LINE_END && (1..=9).contains(&digit(first)) && digit(second) <= 9;
    is_count.then(|| (digit(first) * 10 + digit(second), 5))
}

#[cfg(test)]
mod tests {
    use super::short_count;

    #[test]
    fn counts_of_one_and_two_digits_are_read_and_nothing_else() {
        for number in 0..100_usize {
            let line = format!("${number}\r\n+");
            assert_eq!(short_count(line.as_bytes()), Some((number, line.len() - 1)));
        }
        for other in [
            "",
            "$",
            "$5",
            "$5\r\n",
            "$05\r\n",
            "$100\r\n",
            "$-1\r\n",
            "$a\r\nb",
            "$5\n\r5",
            "$5a\r\n",
            "$\r\n\r\n",
        ] {
            assert_eq!(short_count(other.as_bytes()), None, "{other:?}");
        }
    }
}
