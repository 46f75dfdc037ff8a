//! Price of a request, in millionths of a request unit.
//!
//! `base + KiB in * in + KiB out * out + rows * row + keys * key + slowness * latency`, and at least the
//! floor of the kind of command. Where only time shows a request's work, the price is also at least that of
//! the time for which it kept the store busy. Base, bytes in and keys are known when the request comes; the
//! others when its reply does. Sums and products saturate, and a [`Price`] is far below that.

use crate::values::{MicroUnits, Price, Weights};

/// Most that a request may be charged for its latency beyond the usual, as a multiple of the rest of its
/// price, since slowness is often caused by other requests.
pub const SLOWNESS_SHARE_MAX: u64 = 4;

/// Number of millionths in a thousandth of a request unit.
const MICRO_PER_MILLI: MicroUnits = 1_000;
/// Maximum number of entries (elements of a key) that a store can look at in a microsecond. Limits how many
/// entries a request is charged for, given the time that it took.
const LOOKED_AT_PER_MICRO: u64 = 5;
/// Maximum number of entries (elements of a key) that a request is charged for before it is carried out,
/// however many it names: only the store knows whether there are as many.
const LOOKED_AT_ESTIMATED_MAX: u64 = 1_000;

/// Facts about a request that are known before it is carried out, and from which its price is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Number of requests that are priced together: more than one in a transaction.
    pub requests: u64,
    /// Number of bytes of the request.
    pub bytes_in: u64,
    /// Number of keys that the request writes, where it names several.
    pub keys: u64,
    /// Maximum number of entries (elements of a key) that the request may look at without its reply showing
    /// it. The request is charged for no more of them than a store can look at in the time that the reply
    /// took.
    pub looks_at: u64,
    /// Least price of the request in millionths of a request unit, whatever its reply, by its kind of
    /// command.
    pub floor: MicroUnits,
    /// Part of the request's price that is due besides its base and bytes, whatever the reply is, in
    /// millionths of a request unit: in a transaction, the sum of what raises its single requests to their
    /// least prices; else 0.
    pub hidden: MicroUnits,
}

impl Asked {
    /// Adds another request (`other`) of the same transaction, with its price by the given weights. The least
    /// price of a request (floor) applies to each request of a transaction.
    pub fn add(&mut self, other: &Self, weights: &Weights) {
        let alone = Self { keys: 0, looks_at: 0, ..*other };
        let quote = weights.quote(&alone);
        self.requests = self.requests.saturating_add(other.requests);
        self.bytes_in = self.bytes_in.saturating_add(other.bytes_in);
        self.keys = self.keys.saturating_add(other.keys);
        self.looks_at = self.looks_at.saturating_add(other.looks_at);
        self.hidden =
            self.hidden.saturating_add(other.hidden).saturating_add(quote.floor().beyond(quote.fixed));
    }
}

/// Facts known about a request's cost before it is carried out, converted to prices as far as possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quote {
    /// Price that is due whatever the reply is: for the request as such, its bytes, and the surcharge.
    pub fixed: Price,
    /// Least price of the request without the surcharge, whatever its reply (set by its kind of command), in
    /// millionths of a request unit.
    pub floor: u32,
    /// Surcharge of a strained backend, which is due beside every other term of the price, in thousandths of a
    /// request unit.
    pub surcharge_milli: u32,
    /// Number of keys that the request writes, where it names several.
    pub keys: u32,
    /// Maximum number of entries (elements of a key) that the request may look at without its reply showing
    /// it.
    pub looks_at: u32,
}

/// Measurements of a request's reply on which its price depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Number of bytes of the reply.
    pub bytes_out: u64,
    /// Number of elements of the reply; 0 if it has none.
    pub rows: u64,
    /// Latency of the reply, in microseconds.
    pub took_micros: u64,
    /// Latency beyond what requests of the same class of commands usually take, in microseconds.
    pub slowness_micros: u64,
    /// Time for which the request kept the store busy, in microseconds, where neither the request nor the
    /// reply shows how much work it was; 0 for all other requests.
    pub busy_micros: u64,
    /// Time for which the request kept the store busy in addition to `busy_micros`, in microseconds, which is
    /// not billed.
    pub unbilled_micros: u64,
}

/// A price, split into the terms whose sum it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// Part of the price that is due for the request as such, whatever its size.
    pub base: MicroUnits,
    /// The part of the price that is due for the request's bytes; in a transaction also what raises its single
    /// requests to their least prices.
    pub bytes_in: MicroUnits,
    /// The part of the price that is due for the reply's bytes.
    pub bytes_out: MicroUnits,
    /// Price of the reply's elements (rows), or of the entries looked at to find them if those are more.
    pub rows: MicroUnits,
    /// Price of the keys that the request writes, where it names several.
    pub keys: MicroUnits,
    /// The part of the price that is due for latency beyond the usual.
    pub slowness: MicroUnits,
    /// Amount that raises the sum of the other terms to the least price of the kind of command (floor) or, if
    /// that is more, to the price of the time for which the request kept the store busy. That time counts
    /// only where neither request nor reply shows the work. 0 if the sum is as high already.
    pub to_floor: MicroUnits,
}

impl Breakdown {
    /// Returns the sum of all terms of a price: base, bytes, rows (elements of the reply), keys, slowness,
    /// and the rise to the least price of the request's kind.
    pub const fn total(&self) -> Price {
        let known = self.base.saturating_add(self.bytes_in).saturating_add(self.bytes_out);
        let counted = self.rows.saturating_add(self.keys).saturating_add(self.slowness);
        Price::new(known.saturating_add(counted).saturating_add(self.to_floor))
    }
}

impl Quote {
    /// Returns the least price of the request, whatever its reply, with the surcharge.
    #[inline]
    pub fn floor(&self) -> Price {
        Price::new(u64::from(self.floor) + self.surcharge())
    }

    /// Adds a surcharge to the price, in millionths of a request unit, and returns what is added: `on_top`, rounded
    /// down to thousandths of a request unit, at most four million request units.
    pub fn add_surcharge(&mut self, on_top: MicroUnits) -> MicroUnits {
        self.surcharge_milli = in_32_bits(on_top / MICRO_PER_MILLI);
        self.fixed = Price::new(self.fixed.micro().saturating_add(self.surcharge()));
        self.surcharge()
    }

    const fn surcharge(&self) -> MicroUnits {
        self.surcharge_milli as MicroUnits * MICRO_PER_MILLI
    }
}

impl Weights {
    /// Computes the part of a request's price that is known when the request (`asked`) arrives, and its least
    /// price (floor).
    #[inline]
    pub const fn quote(&self, asked: &Asked) -> Quote {
        let fixed = asked
            .requests
            .saturating_mul(self.base)
            .saturating_add(per_kib(asked.bytes_in, self.kib_in))
            .saturating_add(asked.hidden);
        let (keys, looks_at) = (in_32_bits(asked.keys), in_32_bits(asked.looks_at));
        Quote { fixed: Price::new(fixed), floor: in_32_bits(asked.floor), surcharge_milli: 0, keys, looks_at }
    }

    /// Returns the price to take from buckets before a request is carried out: the fixed part, plus what such
    /// requests have cost lately beyond their fixed parts (`expected`) or, if that is more, the price of the
    /// request's keys and entries (at most 1,000 entries). The sum is at least the request's least price
    /// (floor).
    #[inline]
    pub fn estimate(&self, quote: &Quote, expected: MicroUnits) -> Price {
        Price::new(quote.fixed.micro().saturating_add(self.rest_of_estimate(quote, expected)))
            .max(quote.floor())
    }

    /// Returns the part of a request's estimated price that is added to what is certain on arrival: what such
    /// requests have lately cost beyond that (`expected`), or the price of the request's keys and entries (at
    /// most 1,000 entries) where that is more.
    #[inline]
    pub fn rest_of_estimate(&self, quote: &Quote, expected: MicroUnits) -> MicroUnits {
        if quote.keys == 0 && quote.looks_at == 0 {
            return expected;
        }
        let looked_at = u64::from(quote.looks_at).min(LOOKED_AT_ESTIMATED_MAX);
        let counted =
            u64::from(quote.keys).saturating_mul(self.key).saturating_add(looked_at.saturating_mul(self.row));
        expected.max(counted)
    }

    /// Returns the real price of a request: the part known on arrival (`quote`) plus the price of the keys
    /// that it writes and of its reply's size, elements and excess latency (`measured`); at least its floor
    /// and the price of the busy time that is billed.
    #[inline]
    pub fn actual(&self, quote: &Quote, measured: &Measured) -> Price {
        // Fast path of nearly every reply: one value, in its usual time, to a request without a floor.
        let more = u64::from(quote.keys | quote.looks_at | quote.floor);
        if more | measured.rows | measured.slowness_micros | measured.busy_micros == 0 {
            let bytes_out = per_kib(measured.bytes_out, self.kib_out);
            return Price::new(quote.fixed.micro().saturating_add(bytes_out));
        }
        self.actual_of_more(quote, measured)
    }

    /// Returns the amount by which the real price of a request would be higher if all of the time for which it
    /// kept its store busy were billed, in millionths of a request unit.
    #[inline]
    pub fn unbilled(&self, quote: &Quote, measured: &Measured) -> MicroUnits {
        if measured.unbilled_micros == 0 {
            return 0;
        }
        let busy_micros = measured.busy_micros.saturating_add(measured.unbilled_micros);
        let whole = self.actual(quote, &Measured { busy_micros, ..*measured });
        whole.beyond(self.actual(quote, measured))
    }

    /// Returns the price of a request for one key, as far as its reply shows it: the base, the reply's bytes
    /// (`bytes_out`) and its elements (`rows`).
    pub fn of_reply(&self, bytes_out: u64, rows: u64) -> Price {
        let rows = rows.saturating_mul(self.row);
        Price::new(self.base.saturating_add(per_kib(bytes_out, self.kib_out)).saturating_add(rows))
    }

    /// Returns the price of the bytes of a request and its reply alone.
    pub const fn of_bytes(&self, bytes_in: u64, bytes_out: u64) -> Price {
        Price::new(per_kib(bytes_in, self.kib_in).saturating_add(per_kib(bytes_out, self.kib_out)))
    }

    /// Returns the price of a request that is answered from memory, or with the reply to another request. `bytes_out`
    /// is the size of its reply in bytes, and `values` the number of values that were looked up for it: above 1 only if
    /// the request names several keys. The first look-up is included in the price of any such request.
    #[inline]
    pub const fn cached(&self, bytes_out: u64, values: u64) -> Price {
        let others = values.saturating_sub(1).saturating_mul(self.row);
        Price::new(self.hit.saturating_add(per_kib(bytes_out, self.kib_out)).saturating_add(others))
    }

    #[inline(never)]
    fn actual_of_more(&self, quote: &Quote, measured: &Measured) -> Price {
        let breakdown = self.breakdown_of_reply(quote, measured);
        Price::new(quote.fixed.micro().saturating_add(breakdown.total().micro()))
    }

    /// Returns the price of a request split into its terms: base, bytes, rows (elements of the reply), keys,
    /// slowness, and the rise to the least price of its kind.
    pub fn breakdown(&self, asked: &Asked, measured: &Measured) -> Breakdown {
        let quote = self.quote(asked);
        let base = Price::new(asked.requests.saturating_mul(self.base)).min(quote.fixed);
        Breakdown {
            base: base.micro(),
            bytes_in: quote.fixed.beyond(base),
            ..self.breakdown_of_reply(&quote, measured)
        }
    }

    #[inline]
    fn breakdown_of_reply(&self, quote: &Quote, measured: &Measured) -> Breakdown {
        let bytes_out = per_kib(measured.bytes_out, self.kib_out);
        let looked_at = match quote.looks_at {
            0 => 0,
            most => looked_at(u64::from(most), measured.took_micros),
        };
        let rows = measured.rows.max(looked_at).saturating_mul(self.row);
        let keys = u64::from(quote.keys).saturating_mul(self.key);
        let (fixed, floor) = (quote.fixed.micro(), quote.floor().micro());
        let rest = fixed.saturating_add(bytes_out).saturating_add(rows).saturating_add(keys);
        let slowness = match measured.slowness_micros {
            0 => 0,
            excess => self.slowness(excess).min(rest.max(floor).saturating_mul(SLOWNESS_SHARE_MAX)),
        };
        let busy =
            (measured.busy_micros.saturating_mul(self.busy_ms) / 1_000).saturating_add(quote.surcharge());
        let to_floor = floor.max(busy).saturating_sub(rest.saturating_add(slowness));
        Breakdown { base: 0, bytes_in: 0, bytes_out, rows, keys, slowness, to_floor }
    }

    const fn slowness(&self, excess_micros: u64) -> MicroUnits {
        excess_micros.saturating_mul(self.latency_ms) / 1_000
    }
}

/// Returns how many entries (elements of a key) a store can have looked at in the time that its reply took:
/// at most `most`, the number that the request names or the reply reports.
pub const fn looked_at(most: u64, took_micros: u64) -> u64 {
    let possible = took_micros.saturating_mul(LOOKED_AT_PER_MICRO);
    if possible < most { possible } else { most }
}

const fn per_kib(bytes: u64, weight: MicroUnits) -> MicroUnits {
    bytes.saturating_mul(weight) / 1_024
}

const fn in_32_bits(count: u64) -> u32 {
    if count > u32::MAX as u64 { u32::MAX } else { count as u32 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::values::UNIT;
    use crate::values::limits::PRICE_MAX;

    const GET: Asked = Asked { requests: 1, bytes_in: 1_024, keys: 0, looks_at: 0, floor: 0, hidden: 0 };

    fn estimate(asked: &Asked, expected: MicroUnits) -> MicroUnits {
        let weights = Weights::default();
        weights.estimate(&weights.quote(asked), expected).micro()
    }

    fn total(asked: &Asked, measured: &Measured) -> MicroUnits {
        Weights::default().breakdown(asked, measured).total().micro()
    }

    #[test]
    fn the_terms_of_the_default_price() {
        let measured =
            Measured { bytes_out: 4_096, rows: 100, slowness_micros: 3_000, ..Measured::default() };
        let breakdown = Weights::default().breakdown(&GET, &measured);
        let units = |hundredths: u64| hundredths * UNIT / 100;
        assert_eq!(
            (breakdown.base, breakdown.bytes_in, breakdown.bytes_out),
            (units(100), units(100), units(100))
        );
        assert_eq!((breakdown.rows, breakdown.slowness, breakdown.to_floor), (units(200), units(150), 0));
        assert_eq!(breakdown.total().micro(), units(650));
        let weights = Weights::default();
        assert_eq!(weights.actual(&weights.quote(&GET), &measured).micro(), units(650));
    }

    #[test]
    fn slowness_costs_at_most_four_times_the_rest_or_the_floor() {
        let measured = Measured { slowness_micros: 3_600_000_000, ..Measured::default() };
        let dear = Weights::default().breakdown(&Asked { floor: 5 * UNIT, ..GET }, &measured);
        assert_eq!((dear.slowness, dear.to_floor), (20 * UNIT, 0));
        let breakdown = Weights::default().breakdown(&GET, &measured);
        assert_eq!(breakdown.slowness, 4 * (breakdown.base + breakdown.bytes_in));
    }

    #[test]
    fn nothing_costs_less_than_its_floor() {
        let asked = Asked { floor: 10 * UNIT, ..GET };
        assert_eq!(total(&asked, &Measured::default()), 10 * UNIT);
        assert_eq!(estimate(&asked, 0), 10 * UNIT);
        assert_eq!(estimate(&asked, 20 * UNIT), 22 * UNIT);
    }

    #[test]
    fn each_key_of_several_has_its_price_and_each_row_of_the_reply_too() {
        let asked = Asked { keys: 1_000, ..GET };
        let key = Weights::default().key;
        assert_eq!(Weights::default().breakdown(&asked, &Measured::default()).keys, 1_000 * key);
        assert_eq!(estimate(&asked, 0), 2 * UNIT + 1_000 * key);
        let measured = Measured { rows: 1_000, ..Measured::default() };
        assert_eq!(total(&asked, &measured), 2 * UNIT + 1_000 * key + 20 * UNIT);
    }

    #[test]
    fn what_is_looked_at_counts_as_far_as_there_was_time_for_it() {
        let asked = Asked { looks_at: 1_000_000, ..GET };
        assert_eq!(estimate(&asked, 0), 22 * UNIT, "as much as is thought of at first");
        for (took_micros, rows, units) in
            [(0, 0, 2), (100, 0, 12), (100, 10, 12), (100, 1_000, 22), (u64::MAX, 0, 20_002)]
        {
            let measured = Measured { rows, took_micros, ..Measured::default() };
            assert_eq!(total(&asked, &measured), units * UNIT, "{took_micros} us, {rows} rows");
        }
    }

    #[test]
    fn a_transaction_pays_for_each_request_its_own_floor() {
        let weights = Weights::default();
        let (mut sum, dear) = (Asked::default(), Asked { floor: 5 * UNIT, ..GET });
        [GET, dear, GET, dear].iter().for_each(|one| sum.add(one, &weights));
        assert_eq!(estimate(&sum, 0), (2 + 5 + 2 + 5) * UNIT);
        // The bytes of one large reply do not cover the work of the other requests.
        let measured = Measured { bytes_out: 40 * 1_024, ..Measured::default() };
        assert_eq!(total(&sum, &measured), (14 + 10) * UNIT);
    }

    #[test]
    fn work_that_does_not_show_costs_its_time_if_that_is_more_than_all_else() {
        let asked = Asked { floor: 5 * UNIT, ..GET };
        for (busy_micros, rows, units) in [(0, 0, 5), (249, 0, 5), (2_000, 0, 40), (2_000, 3_000, 62)] {
            let measured = Measured { rows, busy_micros, ..Measured::default() };
            assert_eq!(total(&asked, &measured), units * UNIT, "{busy_micros} us, {rows} rows");
        }
    }

    #[test]
    fn time_that_is_not_billed_would_cost_as_if_it_were() {
        let weights = Weights::default();
        let quote = weights.quote(&Asked { floor: 5 * UNIT, ..GET });
        for (busy_micros, unbilled_micros, units) in
            [(0, 0, 0), (0, 249, 0), (0, 2_000, 35), (2_000, 1_000, 20)]
        {
            let measured = Measured { busy_micros, unbilled_micros, ..Measured::default() };
            assert_eq!(
                weights.unbilled(&quote, &measured),
                units * UNIT,
                "{busy_micros}, {unbilled_micros} us"
            );
            let billed = Measured { unbilled_micros: 0, ..measured };
            assert_eq!(weights.actual(&quote, &measured), weights.actual(&quote, &billed));
        }
    }

    #[test]
    fn a_surcharge_is_due_beside_the_floor_and_the_time_that_a_request_takes() {
        let weights = Weights::default();
        for floor in [0, 5 * UNIT] {
            let quote = weights.quote(&Asked { floor, ..GET });
            let mut strained = quote;
            let added = strained.add_surcharge(2_500_999);
            assert_eq!(added, 2_500_000);
            for expected in [0, 20 * UNIT] {
                let usual = weights.estimate(&quote, expected).micro();
                assert_eq!(weights.estimate(&strained, expected).micro(), usual + added);
            }
            for (busy_micros, rows) in [(0, 0), (249, 0), (2_000, 0), (2_000, 3_000)] {
                let measured = Measured { rows, busy_micros, ..Measured::default() };
                let [usual, dear] = [quote, strained].map(|quote| weights.actual(&quote, &measured));
                assert_eq!(dear.micro(), usual.micro() + added);
                assert_eq!(dear.beyond(strained.fixed), usual.beyond(quote.fixed), "as much is learnt");
            }
        }
    }

    proptest! {
        #[test]
        fn no_price_is_more_than_the_most_or_less_than_what_is_known(
            counts in proptest::array::uniform11(prop_oneof![0..10_u64, any::<u64>()]),
            weight in 0..=1_000_000 * UNIT,
            times in 0..200_usize,
        ) {
            let [requests, bytes_in, keys, looks_at, floor, hidden, bytes_out, rows, took_micros, slowness_micros, busy_micros] = counts;
            let weights = Weights { base: weight, hit: weight, kib_in: weight, kib_out: weight, row: weight, key: weight, latency_ms: weight, busy_ms: weight };
            let one = Asked { requests, bytes_in, keys, looks_at, floor, hidden };
            let mut asked = one;
            (0..times).for_each(|_| asked.add(&one, &weights));
            let measured = Measured { bytes_out, rows, took_micros, slowness_micros, busy_micros, unbilled_micros: 0 };
            let quote = weights.quote(&asked);
            for price in [
                weights.estimate(&quote, rows), weights.actual(&quote, &measured), weights.breakdown(&asked, &measured).total()
            ] {
                prop_assert!(price.signed() >= 0 && price.micro() <= PRICE_MAX);
                prop_assert!(price >= quote.fixed && price >= quote.floor());
            }
            prop_assert!(weights.quote(&one).fixed <= quote.fixed);
        }
    }
}
