//! The compact forms in which Redis stores small collections and dumps them: packed lists of strings and
//! integers, sorted integers, and strings compressed by LZF.

use super::numbers::{self, Digits, Spelled};
use super::rdb::DAMAGED;
use super::refusal::Refusal;

/// The number of bytes before the first element of a packed list (Redis's listpack): its size and the number
/// of elements.
const LIST_HEADER_BYTES: usize = 6;
/// The byte after the last element of a packed list (Redis's listpack).
const LIST_END: u8 = 0xff;

/// The elements of a packed list (Redis's listpack) that are still to be read, integers as decimal texts.
/// Where the bytes are malformed, the element is an error, and no further element follows.
pub(super) struct Texts<'a> {
    /// The bytes from the next element on; empty after the last one.
    left: &'a [u8],
}

/// Returns the elements of a packed list (Redis's listpack); an error if its beginning is malformed.
pub(super) fn texts(bytes: &[u8]) -> Result<Texts<'_>, Refusal> {
    let left = bytes.get(LIST_HEADER_BYTES..).filter(|left| !left.is_empty()).ok_or(DAMAGED)?;
    Ok(Texts { left: if left == [LIST_END] { &[] } else { left } })
}

impl<'a> Iterator for Texts<'a> {
    type Item = Result<Spelled<'a>, Refusal>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left.is_empty() {
            return None;
        }
        let left = std::mem::take(&mut self.left);
        let Some((text, length)) = element(left) else { return Some(Err(DAMAGED)) };
        match left.get(length + length_bytes(length)..) {
            None | Some([]) => Some(Err(DAMAGED)),
            Some([LIST_END]) => Some(Ok(text)),
            Some(behind) => {
                self.left = behind;
                Some(Ok(text))
            }
        }
    }
}

/// Returns the number of bytes of the length that follows each element of a packed list, by which the list
/// can be read backwards. `length` is the number of bytes of the element itself.
fn length_bytes(length: usize) -> usize {
    match length {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        0x20_0000..0x1000_0000 => 4,
        _ => 5,
    }
}

/// Returns the number of bytes that an integer takes as an element of a packed list (Redis's listpack).
pub(super) fn integer_bytes(value: i64) -> usize {
    1 + match value {
        0..0x80 => 1,
        -0x1000..0x1000 => 2,
        -0x8000..0x8000 => 3,
        -0x80_0000..0x80_0000 => 4,
        -0x8000_0000..0x8000_0000 => 5,
        _ => 9,
    }
}

/// Returns the number of bytes that a string takes as an element of a packed list (Redis's listpack). A
/// decimal integer is stored as an integer.
pub(super) fn text_bytes(text: &[u8]) -> usize {
    if let Some(integer) = numbers::integer(text) {
        return integer_bytes(integer);
    }
    let header = match text.len() {
        0..0x40 => 1,
        0x40..0x1000 => 2,
        _ => 5,
    };
    header + text.len() + length_bytes(header + text.len())
}

/// Returns the element of a packed list that begins at `bytes`, integers as decimal text, and the number of
/// its bytes without the length after it; `None` if it is malformed.
fn element(bytes: &[u8]) -> Option<(Spelled<'_>, usize)> {
    let integer = |value: i64, length| Some((Spelled::Digits(Digits::new(value)), length));
    let string = |header: usize, length: usize| {
        let end = header.checked_add(length)?;
        Some((Spelled::Bytes(bytes.get(header..end)?), end))
    };
    let (first, rest) = bytes.split_first()?;
    match first {
        0..0x80 => integer(i64::from(*first), 1),
        0x80..0xc0 => string(1, usize::from(first & 0x3f)),
        0xc0..0xe0 => {
            let value = i64::from(first & 0x1f) << 8 | i64::from(*rest.first()?);
            integer(if value < 0x1000 { value } else { value - 0x2000 }, 2)
        }
        0xe0..0xf0 => string(2, usize::from(first & 0xf) << 8 | usize::from(*rest.first()?)),
        0xf0 => string(5, u32::from_le_bytes(*rest.first_chunk()?) as usize),
        0xf1 => integer(i64::from(i16::from_le_bytes(*rest.first_chunk()?)), 3),
        0xf2 => {
            let [low, middle, high] = *rest.first_chunk()?;
            integer(i64::from(i32::from_le_bytes([0, low, middle, high]) >> 8), 4)
        }
        0xf3 => integer(i64::from(i32::from_le_bytes(*rest.first_chunk()?)), 5),
        0xf4 => integer(i64::from_le_bytes(*rest.first_chunk()?), 9),
        _ => None,
    }
}

/// Returns the integers of a packed set of integers (Redis's intset); an error if the bytes are malformed.
pub(super) fn integers(bytes: &[u8]) -> Result<impl Iterator<Item = i64>, Refusal> {
    let (width, rest) = bytes.split_first_chunk::<4>().ok_or(DAMAGED)?;
    let (count, rest) = rest.split_first_chunk::<4>().ok_or(DAMAGED)?;
    let (width, count) = (u32::from_le_bytes(*width) as usize, u32::from_le_bytes(*count) as usize);
    if ![2, 4, 8].contains(&width) || count.checked_mul(width) != Some(rest.len()) {
        return Err(DAMAGED);
    }
    let spread = |bytes: &[u8]| -> i64 {
        let filler = if bytes.last().is_some_and(|last| last & 0x80 != 0) { 0xff } else { 0 };
        let mut word = [filler; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        i64::from_le_bytes(word)
    };
    Ok(rest.chunks_exact(width).map(spread))
}

/// Decompresses a string (`packed`) that LZF has compressed, to `length` bytes. An error if it is malformed
/// or does not yield exactly `length` bytes.
pub(super) fn decompressed(packed: &[u8], length: usize) -> Result<Vec<u8>, Refusal> {
    // No more than `length` bytes are reserved, however many the last copy would add.
    let mut out: Vec<u8> = Vec::with_capacity(length);
    let mut left = packed;
    while let Some((control, rest)) = left.split_first() {
        if *control < 0x20 {
            let (run, rest) = rest.split_at_checked(usize::from(*control) + 1).ok_or(DAMAGED)?;
            if run.len() > length - out.len() {
                return Err(DAMAGED);
            }
            out.extend_from_slice(run);
            left = rest;
        } else {
            let (mut count, mut rest) = (usize::from(control >> 5) + 2, rest);
            if *control >> 5 == 7 {
                let (more, behind) = rest.split_first().ok_or(DAMAGED)?;
                (count, rest) = (count + usize::from(*more), behind);
            }
            let (low, behind) = rest.split_first().ok_or(DAMAGED)?;
            let back = (usize::from(control & 0x1f) << 8 | usize::from(*low)) + 1;
            let start = out.len().checked_sub(back).ok_or(DAMAGED)?;
            if count > length - out.len() {
                return Err(DAMAGED);
            }
            for at in start..start + count {
                out.push(out[at]);
            }
            left = behind;
        }
    }
    if out.len() == length { Ok(out) } else { Err(DAMAGED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_strings_are_restored() {
        // LZF: two literal bytes, then 18 bytes from two places back, then three from one place back.
        let packed = [1, b'a', b'b', 0xe0, 9, 1, 0x20, 0];
        let whole = decompressed(&packed, 23).expect("it is whole");
        assert_eq!(whole, b"ababababababababababbbb");
        assert_eq!(decompressed(&packed, 22), Err(DAMAGED));
        assert_eq!(decompressed(&[0x20, 0], 3), Err(DAMAGED));
    }

    #[test]
    fn packed_elements_have_many_forms() {
        let list = [
            vec![0; LIST_HEADER_BYTES],
            vec![7, 1],
            vec![0x82, b'a', b'b', 3],
            vec![0xdf, 0xff, 2],
            vec![0xf1, 0x18, 0xfc, 3],
            vec![0xf2, 0x00, 0x00, 0x80, 4],
            vec![LIST_END],
        ];
        let expected = ["7", "ab", "-1", "-1000", "-8388608"].map(|text| text.as_bytes().to_vec());
        let read = |bytes: &[u8]| {
            texts(bytes)?.map(|text| Ok(text?.as_bytes().to_vec())).collect::<Result<Vec<_>, Refusal>>()
        };
        assert_eq!(read(&list.concat()).expect("it is whole"), expected);
        assert_eq!(read(&list[..6].concat()), Err(DAMAGED));
        assert_eq!(read(&list[..1].concat()), Err(DAMAGED));
        assert_eq!(read(&[vec![0; LIST_HEADER_BYTES], vec![LIST_END]].concat()), Ok(Vec::new()));
        let read = |bytes: &[u8]| integers(bytes).map(Iterator::collect::<Vec<_>>);
        assert_eq!(read(&[2, 0, 0, 0, 2, 0, 0, 0, 0xff, 0xff, 1, 0]), Ok(vec![-1, 1]));
        assert_eq!(read(&[2, 0, 0, 0, 3, 0, 0, 0, 0xff, 0xff, 1, 0]), Err(DAMAGED));
    }
}
