//! A hash over everything that happens in a run: two runs of one seed must give the same hash.

/// A hash (FNV-1a, 64 bits) of everything that has happened in a simulation run so far.
#[derive(Debug)]
pub(super) struct Trace(u64);

impl Trace {
    pub fn new() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }

    pub fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    pub fn value(&self) -> u64 {
        self.0
    }
}
