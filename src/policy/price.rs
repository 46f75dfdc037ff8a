//! What a request costs, in millionths of a request unit.
//!
//! `base + KiB in * in + KiB out * out + rows * row + slowness * latency`, and at least the floor of the kind of
//! command. The first two terms are known when the request comes; the others when its reply does.

use crate::values::{MicroUnits, Weights};

/// The slowness of a request may cost at most this many times what the rest of it costs: slowness is often a
/// neighbour's doing.
pub const SLOWNESS_SHARE_MAX: u64 = 4;

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

impl Asked {
    /// One request more.
    pub const fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes_in += other.bytes_in;
        self.keys += other.keys;
        self.floor = self.floor.saturating_add(other.floor);
    }
}

/// The same in weir's currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quote {
    /// What is due whatever the reply is.
    pub fixed: MicroUnits,
    /// It costs no less than this.
    pub floor: MicroUnits,
    /// Keys that it names, where it names several.
    pub keys: u32,
}

/// What the reply told about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of the reply.
    pub bytes_out: u64,
    /// Elements of the reply, where it has elements.
    pub rows: u64,
    /// How much longer it took than such requests usually do, in microseconds.
    pub slowness_micros: u64,
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
    /// What is known at once.
    pub const fn quote(&self, asked: &Asked) -> Quote {
        let fixed = asked.requests * self.base + per_kib(asked.bytes_in, self.kib_in);
        let keys = if asked.keys > u32::MAX as u64 { u32::MAX } else { asked.keys as u32 };
        Quote { fixed, floor: asked.floor, keys }
    }

    /// What to take before it is carried out: the rest is what such requests cost lately.
    pub fn estimate(&self, quote: &Quote, expected: MicroUnits) -> MicroUnits {
        (quote.fixed + expected.max(u64::from(quote.keys) * self.row)).max(quote.floor)
    }

    /// What it really cost.
    pub fn actual(&self, quote: &Quote, measured: &Measured) -> MicroUnits {
        let terms = self.terms_of_reply(quote, measured);
        quote.fixed + terms.total()
    }

    /// Term by term.
    pub fn terms(&self, asked: &Asked, measured: &Measured) -> Terms {
        let base = asked.requests * self.base;
        let quote = self.quote(asked);
        Terms { base, bytes_in: quote.fixed - base, ..self.terms_of_reply(&quote, measured) }
    }

    fn terms_of_reply(&self, quote: &Quote, measured: &Measured) -> Terms {
        let bytes_out = per_kib(measured.bytes_out, self.kib_out);
        let rows = measured.rows.max(u64::from(quote.keys)) * self.row;
        let rest = quote.fixed + bytes_out + rows;
        let slowness = match measured.slowness_micros {
            0 => 0,
            excess => self.slowness(excess).min(rest * SLOWNESS_SHARE_MAX),
        };
        let to_floor = quote.floor.saturating_sub(rest + slowness);
        Terms { base: 0, bytes_in: 0, bytes_out, rows, slowness, to_floor }
    }

    const fn slowness(&self, excess_micros: u64) -> MicroUnits {
        excess_micros.saturating_mul(self.latency_ms) / 1_000
    }
}

const fn per_kib(bytes: u64, weight: MicroUnits) -> MicroUnits {
    bytes * weight / 1_024
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::UNIT;

    const GET: Asked = Asked { requests: 1, bytes_in: 1_024, keys: 0, floor: 0 };

    fn estimate(asked: &Asked, expected: MicroUnits) -> MicroUnits {
        let weights = Weights::default();
        weights.estimate(&weights.quote(asked), expected)
    }

    #[test]
    fn the_terms_of_the_default_price() {
        let measured = Measured { bytes_out: 4_096, rows: 100, slowness_micros: 3_000 };
        let terms = Weights::default().terms(&GET, &measured);
        let units = |hundredths: u64| hundredths * UNIT / 100;
        assert_eq!((terms.base, terms.bytes_in, terms.bytes_out), (units(100), units(100), units(100)));
        assert_eq!((terms.rows, terms.slowness, terms.to_floor), (units(200), units(150), 0));
        assert_eq!(terms.total(), units(650));
        let weights = Weights::default();
        assert_eq!(weights.actual(&weights.quote(&GET), &measured), units(650));
    }

    #[test]
    fn slowness_costs_at_most_four_times_the_rest() {
        let measured = Measured { slowness_micros: 3_600_000_000, ..Measured::default() };
        let terms = Weights::default().terms(&GET, &measured);
        assert_eq!(terms.slowness, 4 * (terms.base + terms.bytes_in));
    }

    #[test]
    fn nothing_costs_less_than_its_floor() {
        let asked = Asked { floor: 10 * UNIT, ..GET };
        assert_eq!(Weights::default().terms(&asked, &Measured::default()).total(), 10 * UNIT);
        assert_eq!(estimate(&asked, 0), 10 * UNIT);
        assert_eq!(estimate(&asked, 20 * UNIT), 22 * UNIT);
    }

    #[test]
    fn a_thousand_keys_are_a_thousand_rows_though_the_reply_is_one() {
        let asked = Asked { keys: 1_000, ..GET };
        let measured = Measured { rows: 0, ..Measured::default() };
        assert_eq!(Weights::default().terms(&asked, &measured).rows, 20 * UNIT);
        assert_eq!(estimate(&asked, 0), 22 * UNIT);
    }
}
