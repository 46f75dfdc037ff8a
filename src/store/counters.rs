//! The value of a `HyperLogLog`: approximate counting of distinct elements, in the format of Redis.
//!
//! ```text
//!     "HYLL" | encoding 1 | unused 3 | cached count 8, its last bit set if stale | registers
//!     dense    16384 registers of 6 bits, the lowest bits first
//!     sparse   00nnnnnn n+1 zeros | 01nnnnnn nnnnnnnn n+1 zeros | 1vvvvvnn n+1 registers of value v+1
//! ```

use super::refusal::Refusal;

/// The number of registers of a `HyperLogLog`, a power of two.
const REGISTERS: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 14;
/// The number of bits of an element's 64-bit hash that do not choose a register of the `HyperLogLog`. A
/// register holds 1 more than the longest run of zeros at the low end of these bits.
const VALUE_BITS: usize = 64 - INDEX_BITS as usize;
const REGISTER_BITS: usize = 6;
const HEADER_BYTES: usize = 16;
const DENSE_BYTES: usize = HEADER_BYTES + REGISTERS * REGISTER_BITS / 8;
/// The largest register value that the sparse encoding of a `HyperLogLog` can hold; with a larger one, all
/// registers are stored densely (6 bits each).
const SPARSE_VALUE_MAX: u8 = 32;
const MAGIC: &[u8] = b"HYLL";
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
const SEED: u64 = 0xadc8_3b19;
/// The constant of the `HyperLogLog` estimate of the number of distinct elements: 1 / (2 ln 2).
const ALPHA: f64 = 0.721_347_520_444_481_7;

/// The refusal of a string that does not begin with the header of a `HyperLogLog`.
const NO_COUNTER: Refusal = Refusal::Words("WRONGTYPE Key is not a valid HyperLogLog string value.");
/// The refusal of a `HyperLogLog` whose sparsely encoded registers do not add up to 16,384.
const DAMAGED: Refusal = Refusal::Words("INVALIDOBJ Corrupted HLL object detected");

/// The 16,384 registers of a `HyperLogLog`, one byte each, and whether it is to be encoded densely.
#[derive(Clone)]
pub(super) struct Registers {
    values: Box<[u8; REGISTERS]>,
    dense: bool,
}

impl Registers {
    pub(super) fn new() -> Self {
        Self { values: Box::new([0; REGISTERS]), dense: false }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        check_header(bytes)?;
        let mut registers = Self::new();
        registers.dense = bytes[4] == DENSE;
        let body = &bytes[HEADER_BYTES..];
        if registers.dense {
            for (index, value) in registers.values.iter_mut().enumerate() {
                *value = dense_at(body, index);
            }
        } else {
            registers.read_sparse(body)?;
        }
        Ok(registers)
    }

    fn read_sparse(&mut self, body: &[u8]) -> Result<(), Refusal> {
        let (mut index, mut rest) = (0, body);
        loop {
            let (count, value);
            (count, value, rest) = match rest {
                [] => break,
                [run @ 0..0x40, rest @ ..] => (usize::from(run & 0x3f) + 1, 0, rest),
                [high @ 0x40..0x80, low, rest @ ..] => {
                    (usize::from(high & 0x3f) * 256 + usize::from(*low) + 1, 0, rest)
                }
                [0x40..0x80] => return Err(DAMAGED),
                [run, rest @ ..] => (usize::from(run & 3) + 1, (run >> 2 & 0x1f) + 1, rest),
            };
            self.values.get_mut(index..index + count).ok_or(DAMAGED)?.fill(value);
            index += count;
        }
        if index == REGISTERS { Ok(()) } else { Err(DAMAGED) }
    }

    /// Adds an element to the `HyperLogLog`. True if a register grew, so that the stored value changes.
    pub(super) fn add(&mut self, element: &[u8]) -> bool {
        let (index, value) = place(element);
        let grows = self.values[index] < value;
        if grows {
            self.values[index] = value;
        }
        grows
    }

    /// Merges another `HyperLogLog` into this one: each register gets the larger of both values. The result
    /// is encoded densely if either of the two was.
    pub(super) fn merge(&mut self, other: &Self) {
        self.dense |= other.dense;
        for (value, other) in self.values.iter_mut().zip(other.values.iter()) {
            *value = (*value).max(*other);
        }
    }

    /// Returns the estimated number of distinct elements that were added (Ertl, "New cardinality estimation
    /// algorithms for `HyperLogLog` sketches", 2017).
    pub(super) fn count(&self) -> u64 {
        let mut histogram = [0_u32; 64];
        self.values.iter().for_each(|value| histogram[usize::from(*value)] += 1);
        let all = REGISTERS as f64;
        let mut sum = all * tau((all - f64::from(histogram[VALUE_BITS + 1])) / all);
        for share in histogram[1..=VALUE_BITS].iter().rev() {
            sum = (sum + f64::from(*share)) * 0.5;
        }
        sum += all * sigma(f64::from(histogram[0]) / all);
        (ALPHA * all * all / sum).round() as u64
    }

    /// Makes `encode` use the dense form (6 bits for each register) from now on, even where the sparse form
    /// would be shorter.
    pub(super) fn make_dense(&mut self) {
        self.dense = true;
    }

    /// Returns the values of all 16,384 registers of the `HyperLogLog`, one byte each.
    pub(super) fn values(&self) -> &[u8] {
        &*self.values
    }

    /// Returns the `HyperLogLog` as the string to store: sparsely encoded, unless it has been made dense or
    /// would take more than `sparse_bytes_max` bytes with its header. The header takes over the cached count
    /// of `former` (the string before the change) and marks it as stale.
    pub(super) fn encode(&self, former: Option<&[u8]>, sparse_bytes_max: usize) -> Vec<u8> {
        let sparse =
            if self.dense { None } else { self.sparse(sparse_bytes_max.saturating_sub(HEADER_BYTES)) };
        let encoding = if sparse.is_some() { SPARSE } else { DENSE };
        let mut bytes = Vec::with_capacity(HEADER_BYTES + sparse.as_ref().map_or(DENSE_BYTES, Vec::len));
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[encoding, 0, 0, 0]);
        bytes.extend_from_slice(former.and_then(|former| former.get(8..HEADER_BYTES)).unwrap_or(&[0; 8]));
        bytes[HEADER_BYTES - 1] |= 0x80;
        if let Some(sparse) = sparse {
            bytes.extend_from_slice(&sparse);
        } else {
            bytes.resize(DENSE_BYTES, 0);
            for (index, value) in self.values.iter().enumerate() {
                set_dense(&mut bytes[HEADER_BYTES..], index, *value);
            }
        }
        bytes
    }

    /// Returns the `HyperLogLog`'s registers in the sparse form, in at most `bytes_max` bytes without the header;
    /// `None` if they would take more bytes, or if a value is too large for this form.
    fn sparse(&self, bytes_max: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for run in self.values.chunk_by(|left, right| left == right) {
            let (mut left, value) = (run.len(), run[0]);
            if value > SPARSE_VALUE_MAX {
                return None;
            }
            while left > 0 {
                let count = left.min(if value == 0 { REGISTERS } else { 4 });
                let stored = count - 1;
                match (value, stored) {
                    (0, 0..64) => bytes.push(stored as u8),
                    (0, _) => bytes.extend_from_slice(&[0x40 | (stored >> 8) as u8, stored as u8]),
                    _ => bytes.push(0x80 | (value - 1) << 2 | stored as u8),
                }
                left -= count;
            }
            if bytes.len() > bytes_max {
                return None;
            }
        }
        Some(bytes)
    }
}

/// True if a `HyperLogLog` is encoded densely, and false if sparsely. Refuses a string that is no
/// `HyperLogLog`.
pub(super) fn is_dense(bytes: &[u8]) -> Result<bool, Refusal> {
    check_header(bytes)?;
    Ok(bytes[4] == DENSE)
}

/// Returns the runs of equal registers of a sparsely encoded `HyperLogLog` in words, as PFDEBUG DECODE shows
/// them. Refuses a dense one, one with more than 16,384 registers, and a string that is no `HyperLogLog`.
pub(super) fn runs(bytes: &[u8]) -> Result<String, Refusal> {
    if is_dense(bytes)? {
        return Err(Refusal::Words("ERR HLL encoding is not sparse"));
    }
    let (mut words, mut registers, mut rest) = (Vec::new(), 0, &bytes[HEADER_BYTES..]);
    loop {
        let (word, count);
        (word, count, rest) = match rest {
            [] => return Ok(words.join(" ")),
            [run @ 0..0x40, rest @ ..] => {
                let count = usize::from(run & 0x3f) + 1;
                (format!("z:{count}"), count, rest)
            }
            [high @ 0x40..0x80, low, rest @ ..] => {
                let count = usize::from(high & 0x3f) * 256 + usize::from(*low) + 1;
                (format!("Z:{count}"), count, rest)
            }
            [0x40..0x80] => return Err(DAMAGED),
            [run, rest @ ..] => {
                let count = usize::from(run & 3) + 1;
                (format!("v:{},{count}", (run >> 2 & 0x1f) + 1), count, rest)
            }
        };
        registers += count;
        if registers > REGISTERS {
            return Err(DAMAGED);
        }
        words.push(word);
    }
}

fn check_header(bytes: &[u8]) -> Result<(), Refusal> {
    let valid = bytes.len() >= HEADER_BYTES
        && bytes.starts_with(MAGIC)
        && (bytes[4] == SPARSE || bytes[4] == DENSE && bytes.len() == DENSE_BYTES);
    if valid { Ok(()) } else { Err(NO_COUNTER) }
}

/// Returns the estimated count that a `HyperLogLog` stores in its header; `None` if it is stale, because
/// elements were added since. Refuses a text that is no `HyperLogLog`.
pub(super) fn cached(bytes: &[u8]) -> Result<Option<u64>, Refusal> {
    check_header(bytes)?;
    let (words, _) = bytes[8..HEADER_BYTES].as_chunks::<8>();
    let count = u64::from_le_bytes(words[0]);
    Ok((count >> 63 == 0).then_some(count))
}

/// Stores a count in the header of a `HyperLogLog`, where it is valid until the value changes.
pub(super) fn cache(bytes: &mut [u8], count: u64) {
    bytes[8..HEADER_BYTES].copy_from_slice(&count.to_le_bytes());
}

/// Adds an element to a densely encoded `HyperLogLog`, whose header has been checked, without decoding it.
/// `None` if the encoding is not dense; otherwise true if a register grew.
pub(super) fn add_dense(bytes: &mut [u8], element: &[u8]) -> Option<bool> {
    if bytes[4] != DENSE {
        return None;
    }
    let (index, value) = place(element);
    let grows = dense_at(&bytes[HEADER_BYTES..], index) < value;
    if grows {
        set_dense(&mut bytes[HEADER_BYTES..], index, value);
        bytes[HEADER_BYTES - 1] |= 0x80;
    }
    Some(grows)
}

fn dense_at(body: &[u8], index: usize) -> u8 {
    let (at, shift) = (index * REGISTER_BITS / 8, index * REGISTER_BITS % 8);
    let pair = u16::from(body[at]) | u16::from(body.get(at + 1).copied().unwrap_or(0)) << 8;
    (pair >> shift) as u8 & 0x3f
}

fn set_dense(body: &mut [u8], index: usize, value: u8) {
    let (at, shift) = (index * REGISTER_BITS / 8, index * REGISTER_BITS % 8);
    let (mask, value) = (0x3f_u16 << shift, u16::from(value) << shift);
    body[at] = body[at] & !(mask as u8) | value as u8;
    if mask > 0xff {
        body[at + 1] = body[at + 1] & !((mask >> 8) as u8) | (value >> 8) as u8;
    }
}

/// Returns the index of the register of a `HyperLogLog` that an element belongs to, and the least value that
/// the register must have once the element is counted.
fn place(element: &[u8]) -> (usize, u8) {
    let hash = hash(element);
    let rest = hash >> INDEX_BITS | 1 << VALUE_BITS;
    (hash as usize % REGISTERS, rest.trailing_zeros() as u8 + 1)
}

/// Returns the 64-bit hash of an element by `MurmurHash64A` (Appleby), the function that Redis uses, so that
/// the stored values agree with those of Redis.
fn hash(text: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;
    const SHIFT: u32 = 47;
    let mut hash = SEED ^ (text.len() as u64).wrapping_mul(MULTIPLIER);
    let (words, rest) = text.as_chunks::<8>();
    for word in words {
        let mut word = u64::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        word ^= word >> SHIFT;
        hash = (hash ^ word.wrapping_mul(MULTIPLIER)).wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(MULTIPLIER);
    }
    hash = (hash ^ (hash >> SHIFT)).wrapping_mul(MULTIPLIER);
    hash ^ (hash >> SHIFT)
}

#[expect(clippy::float_cmp, reason = "the sum has converged when it no longer changes")]
fn tau(share: f64) -> f64 {
    if share == 0.0 || share == 1.0 {
        return 0.0;
    }
    let (mut x, mut y, mut z) = (share, 1.0, 1.0 - share);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x).powi(2) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

#[expect(clippy::float_cmp, reason = "the sum has converged when it no longer changes")]
fn sigma(share: f64) -> f64 {
    if share == 1.0 {
        return f64::INFINITY;
    }
    let (mut x, mut y, mut z) = (share, 1.0, share);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPARSE_MAX: usize = 3_000;

    #[test]
    fn counts_are_within_the_error_and_survive_both_forms() {
        let mut registers = Registers::new();
        let mut dense: Option<Vec<u8>> = None;
        for number in 1..=100_000_u64 {
            let element = format!("element:{number}");
            registers.add(element.as_bytes());
            if let Some(bytes) = &mut dense {
                add_dense(bytes, element.as_bytes()).expect("it is dense");
            }
            if [10, 1_000, 10_000, 100_000].contains(&number) {
                let (count, encoded) = (registers.count(), registers.encode(None, SPARSE_MAX));
                assert!(count.abs_diff(number) * 100 <= number * 3, "{count} for {number}");
                let decoded = Registers::decode(&encoded).expect("it is valid");
                assert_eq!(decoded.values, registers.values);
                assert_eq!(encoded[4], if number <= 1_000 { SPARSE } else { DENSE });
                if let Some(bytes) = &dense {
                    assert_eq!(bytes, &encoded);
                }
                dense = Some(encoded).filter(|encoded| encoded[4] == DENSE);
            }
        }
    }

    #[test]
    fn damaged_counters_are_no_counters() {
        let whole = Registers::new().encode(None, SPARSE_MAX);
        assert_eq!(whole.len(), HEADER_BYTES + 2);
        assert!(Registers::decode(&whole).is_ok());
        assert_eq!(Registers::decode(&whole[..17]).err(), Some(DAMAGED));
        assert_eq!(Registers::decode(&whole[..16]).err(), Some(DAMAGED));
        assert_eq!(Registers::decode(&whole[..15]).err(), Some(NO_COUNTER));
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(Registers::decode(&longer).err(), Some(DAMAGED));
        assert_eq!(cached(b"HYLL\x02-------------").err(), Some(NO_COUNTER));
    }

    #[test]
    fn runs_of_more_than_all_registers_are_damaged() {
        let header = &Registers::new().encode(None, SPARSE_MAX)[..HEADER_BYTES];
        let full = [header, &[0x7f, 0xfd, 0x85]].concat();
        assert_eq!(runs(&full), Ok("Z:16382 v:2,2".to_owned()));
        for more in [vec![0], vec![0x40, 0], vec![0x80], vec![0; 100_000]] {
            assert_eq!(runs(&[full.clone(), more].concat()), Err(DAMAGED));
        }
    }
}
