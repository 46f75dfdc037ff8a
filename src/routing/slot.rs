//! Key to slot: CRC16 over the key or its `{tag}`, as Redis Cluster does.

use crate::values::limits::SLOTS;

/// CRC-16/XMODEM, one entry per byte.
const TABLE: [u16; 256] = {
    let mut table = [0_u16; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The slot of a key.
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key)) % SLOTS
}

/// What is hashed: the text between the first `{` and the next `}` if there is any, else the whole key.
fn tag_of(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    match key[open + 1..].iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(length) => &key[open + 1..][..length],
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        // From `CLUSTER KEYSLOT`.
        for (key, slot) in [("123456789", 12739), ("foo", 12182), ("bar", 5061), ("", 0), ("user1000", 3443)]
        {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
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
