//! What a request costs, in millionths of a request unit.
//!
//! `base + KiB in * in + KiB out * out + rows * row + slowness * latency`, and at least the floor of the kind of
//! command. The first two terms are known when the request comes; the others when its reply does.

use std::time::Duration;

use crate::values::{MicroUnits, UNIT};

/// The slowness of a request may cost at most this many times what the rest of it costs: slowness is often a
/// neighbour's doing.
pub const SLOWNESS_SHARE_MAX: u64 = 4;

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

/// What is known of a request's cost before it is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Requests: more than one in a transaction.
    pub requests: u64,
    /// Bytes of the request.
    pub bytes_in: u64,
    /// Keys that it names, where it names several.
    pub keys: u64,
    /// It costs no less than this.
    pub floor: MicroUnits,
}

/// What the reply told about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of the reply.
    pub bytes_out: u64,
    /// Elements of the reply, where it has elements.
    pub rows: u64,
    /// How much longer it took than such requests usually do.
    pub slowness: Duration,
}

/// A price, term by term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// For being a request.
    pub base: MicroUnits,
    /// For its bytes.
    pub bytes_in: MicroUnits,
    /// For the reply's bytes.
    pub bytes_out: MicroUnits,
    /// For its rows.
    pub rows: MicroUnits,
    /// For being slow.
    pub slowness: MicroUnits,
    /// What is missing to the floor of its kind.
    pub to_floor: MicroUnits,
}

impl Terms {
    /// All of them.
    pub const fn total(&self) -> MicroUnits {
        self.base + self.bytes_in + self.bytes_out + self.rows + self.slowness + self.to_floor
    }
}

impl Weights {
    /// The part of the price that is known at once: no request costs less.
    pub const fn fixed(&self, asked: &Asked) -> MicroUnits {
        asked.requests * self.base + per_kib(asked.bytes_in, self.kib_in)
    }

    /// The price once all is known.
    pub fn terms(&self, asked: &Asked, measured: &Measured) -> Terms {
        let base = asked.requests * self.base;
        let bytes_in = per_kib(asked.bytes_in, self.kib_in);
        let bytes_out = per_kib(measured.bytes_out, self.kib_out);
        let rows = measured.rows.max(asked.keys) * self.row;
        let rest = base + bytes_in + bytes_out + rows;
        let slowness = self.slowness(measured.slowness).min(rest * SLOWNESS_SHARE_MAX);
        let to_floor = asked.floor.saturating_sub(rest + slowness);
        Terms { base, bytes_in, bytes_out, rows, slowness, to_floor }
    }

    /// Where the other terms are only expected: from what such requests cost lately beyond their fixed part.
    pub fn estimate(&self, asked: &Asked, expected: MicroUnits) -> MicroUnits {
        let keys = asked.keys * self.row;
        (self.fixed(asked) + expected.max(keys)).max(asked.floor)
    }

    fn slowness(&self, excess: Duration) -> MicroUnits {
        (excess.as_micros() as u64).saturating_mul(self.latency_ms) / 1_000
    }
}

const fn per_kib(bytes: u64, weight: MicroUnits) -> MicroUnits {
    bytes * weight / 1_024
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: Asked = Asked { requests: 1, bytes_in: 1_024, keys: 0, floor: 0 };

    #[test]
    fn the_terms_of_the_default_price() {
        let measured = Measured { bytes_out: 4_096, rows: 100, slowness: Duration::from_millis(3) };
        let terms = Weights::default().terms(&GET, &measured);
        let units = |hundredths: u64| hundredths * UNIT / 100;
        assert_eq!((terms.base, terms.bytes_in, terms.bytes_out), (units(100), units(100), units(100)));
        assert_eq!((terms.rows, terms.slowness, terms.to_floor), (units(200), units(150), 0));
        assert_eq!(terms.total(), units(650));
    }

    #[test]
    fn slowness_costs_at_most_four_times_the_rest() {
        let measured = Measured { slowness: Duration::from_secs(3_600), ..Measured::default() };
        let terms = Weights::default().terms(&GET, &measured);
        assert_eq!(terms.slowness, 4 * (terms.base + terms.bytes_in));
    }

    #[test]
    fn nothing_costs_less_than_its_floor() {
        let asked = Asked { floor: 10 * UNIT, ..GET };
        assert_eq!(Weights::default().terms(&asked, &Measured::default()).total(), 10 * UNIT);
        assert_eq!(Weights::default().estimate(&asked, 0), 10 * UNIT);
        assert_eq!(Weights::default().estimate(&asked, 20 * UNIT), 22 * UNIT);
    }

    #[test]
    fn a_thousand_keys_are_a_thousand_rows_though_the_reply_is_one() {
        let asked = Asked { keys: 1_000, ..GET };
        let measured = Measured { rows: 0, ..Measured::default() };
        assert_eq!(Weights::default().terms(&asked, &measured).rows, 20 * UNIT);
        assert_eq!(Weights::default().estimate(&asked, 0), 22 * UNIT);
    }
}
