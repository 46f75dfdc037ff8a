//! Hash slot of a key: CRC16 over the key or its `{tag}`, as Redis Cluster does.

use crate::values::limits::SLOTS;

/// Tables of CRC-16/XMODEM. Table `n` is the effect of a byte that is followed by `n` zero bytes, so that the
/// effects of eight bytes can be looked up independently of each other.
static TABLES: [[u16; 256]; 8] = {
    let mut tables = [[0_u16; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = (before << 8) ^ tables[0][(before >> 8) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
};

/// Returns the hash slot of a key.
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key)) % SLOTS
}

/// Returns the bytes of a key that are hashed: the text between the first `{` and the next `}` if there is
/// any, else the whole key.
fn tag_of(key: &[u8]) -> &[u8] {
    if has_brace(key) { tag_within(key) } else { key }
}

/// True if a key contains `{`, so that it may have a hash tag (the part in braces, which alone decides the
/// slot). Most keys do not, so eight bytes are looked at together.
fn has_brace(key: &[u8]) -> bool {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let (chunks, rest) = key.as_chunks::<8>();
    // A byte that is `{` becomes zero, and only behind a zero does the subtraction reach the high bit of one
    // below 0x80.
    let found = chunks.iter().fold(0, |found, chunk| {
        let bytes = u64::from_le_bytes(*chunk) ^ (ONES * 0x7b);
        found | (bytes.wrapping_sub(ONES) & !bytes & (ONES * 0x80))
    });
    found != 0 || rest.contains(&b'{')
}

#[cold]
fn tag_within(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    match key[open + 1..].iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(length) => &key[open + 1..][..length],
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let crc = chunks.iter().fold(0_u16, |crc, chunk| {
        let [high, low] = crc.to_be_bytes();
        TABLES[7][usize::from(chunk[0] ^ high)]
            ^ TABLES[6][usize::from(chunk[1] ^ low)]
            ^ TABLES[5][usize::from(chunk[2])]
            ^ TABLES[4][usize::from(chunk[3])]
            ^ TABLES[3][usize::from(chunk[4])]
            ^ TABLES[2][usize::from(chunk[5])]
            ^ TABLES[1][usize::from(chunk[6])]
            ^ TABLES[0][usize::from(chunk[7])]
    });
    rest.iter().fold(crc, |crc, byte| (crc << 8) ^ TABLES[0][usize::from((crc >> 8) as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brace_is_found_wherever_it_is() {
        for length in 0..40 {
            for filler in [0, b'z', b'|', 0xfb, 0xff] {
                let mut key = vec![filler; length];
                assert!(!has_brace(&key));
                for at in 0..length {
                    key[at] = b'{';
                    assert!(has_brace(&key), "{at} of {length}");
                    key[at] = filler;
                }
            }
        }
    }

    #[test]
    fn slots_are_those_of_redis_cluster() {
        // Slots as CLUSTER KEYSLOT of Redis returns them.
        for (key, slot) in [("123456789", 12739), ("foo", 12182), ("bar", 5061), ("", 0), ("user1000", 3443)]
        {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn eight_bytes_at_once_are_eight_bytes_one_by_one() {
        let bytes: Vec<u8> = (0..100_u32).map(|index| (index * 37 % 251) as u8).collect();
        for length in 0..bytes.len() {
            let slow = bytes[..length].iter().fold(0_u16, |crc, byte| {
                (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
                    if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
                })
            });
            assert_eq!(crc16(&bytes[..length]), slow, "{length} bytes");
        }
    }

    #[test]
    fn a_tag_decides_alone() {
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
        assert_eq!(tag_of(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(tag_of(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(tag_of(b"foo{bar"), b"foo{bar");
    }
}
