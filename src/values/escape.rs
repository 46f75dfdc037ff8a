//! Bytes of clients written as text for people, with everything unprintable escaped.

use std::fmt::Write as _;

/// Returns any bytes as text from which they can be read again: printable ASCII as itself, a backslash as
/// two, and every other byte as `\x` and two hexadecimal digits.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(*byte)),
            // Writing to a string does not fail.
            _ => drop(write!(text, "\\x{byte:02x}")),
        }
    }
    text
}
