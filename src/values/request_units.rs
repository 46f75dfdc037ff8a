//! The currency: request units, counted in millionths.

/// Millionths of a request unit. A quota of N units per second is N millionths per microsecond.
pub type MicroUnits = u64;

/// One request unit.
pub const UNIT: MicroUnits = 1_000_000;
