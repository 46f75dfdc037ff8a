//! The currency: request units, counted in millionths.

/// Millionths of a request unit. A quota of N units per second is N millionths per microsecond.
pub type MicroUnits = u64;

/// One request unit.
pub const UNIT: MicroUnits = 1_000_000;

/// What each term weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Any request.
    pub base: MicroUnits,
    /// 1,024 bytes of the request.
    pub kib_in: MicroUnits,
    /// 1,024 bytes of the reply.
    pub kib_out: MicroUnits,
    /// One row of the reply, or one key of a request that writes several.
    pub row: MicroUnits,
    /// A millisecond beyond what such requests usually take.
    pub latency_ms: MicroUnits,
}

impl Default for Weights {
    fn default() -> Self {
        Self { base: UNIT, kib_in: UNIT, kib_out: UNIT / 4, row: UNIT / 50, latency_ms: UNIT / 2 }
    }
}
