//! Percent encoding, as in URLs: `%40` stands for `@`.

/// Decodes percent encoding, as in URLs (`%40` stands for `@`), and returns the bytes; None if a percent sign
/// is not followed by two hexadecimal digits.
pub fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        plain.push(if byte == b'%' {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            (digit()? * 16 + digit()?) as u8
        } else {
            byte
        });
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_byte_can_be_written() {
        assert_eq!(percent_decoded("a%2Fb%ff%00+").as_deref(), Some(&b"a/b\xff\0+"[..]));
        for wrong in ["%", "%4", "%4g", "%%41", "a%+1"] {
            assert_eq!(percent_decoded(wrong), None, "{wrong}");
        }
    }
}
